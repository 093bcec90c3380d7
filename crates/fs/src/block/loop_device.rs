//! Loop devices: a file as a block device (Linux `drivers/block/loop.c`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::block::{BlockDevice, Limits, Operation, PageCache, Request, SECTOR_SIZE, Transfer};
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use linux_raw_sys::general as sys;
use linux_raw_sys::loop_device as lo;
use task::Mutex;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{DiskDriver, DiskOpener, Protection};
use crate::ioctl::IoctlRequest;
use crate::{File, FileType, Result};

const READ_ONLY: u32 = lo::LO_FLAGS_READ_ONLY as u32;
const AUTOCLEAR: u32 = lo::LO_FLAGS_AUTOCLEAR as u32;
const DIRECT_IO: u32 = lo::LO_FLAGS_DIRECT_IO as u32;

/// `struct loop_info64`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; lo::LO_NAME_SIZE as usize],
    crypt_name: [u8; lo::LO_NAME_SIZE as usize],
    encrypt_key: [u8; lo::LO_KEY_SIZE as usize],
    init: [u64; 2],
}

/// `struct loop_config`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == size_of::<lo::loop_info64>());
const _: () = assert!(size_of::<LoopConfig>() == size_of::<lo::loop_config>());

/// The file behind a device, and the part of it that the device is.
#[derive(Clone)]
struct Bound {
    file: Arc<File>,
    offset: u64,
    /// Most bytes of the device; 0 for all of the file.
    size_limit: u64,
    /// Bytes of the device, as they were when somebody asked for it last.
    capacity: u64,
    block_size: u32,
    flags: u32,
    name: [u8; lo::LO_NAME_SIZE as usize],
}

impl Bound {
    /// Takes over the size of the file: whole sectors of it.
    fn measure(&mut self) {
        let size = self.file.metadata().size.saturating_sub(self.offset);
        let size = if self.size_limit > 0 {
            size.min(self.size_limit)
        } else {
            size
        };
        self.capacity = size - size % SECTOR_SIZE;
    }

    /// Takes over the part of the file that `info` names.
    fn set_part(&mut self, info: &LoopInfo) -> Result<()> {
        if info.encrypt_type != 0 || i64::try_from(info.offset).is_err() {
            return Err(Errno::EINVAL);
        }
        (self.offset, self.size_limit) = (info.offset, info.size_limit);
        self.name = info.file_name;
        // A text, for those who read it.
        self.name[self.name.len() - 1] = 0;
        self.measure();
        Ok(())
    }

    /// Does what one request says, page by page.
    fn execute(&self, operation: &Operation<'_>, buffer: &mut [u8]) -> Result<()> {
        let inode = self.file.inode();
        match *operation {
            Operation::Read(transfer) => transfer.for_each_page(|page, at, len| {
                // What the file does not have any more is zeros.
                let n = inode.read_at(self.offset + at, &mut buffer[..len])?;
                buffer[n..len].fill(0);
                page.write(0, &buffer[..len]);
                Ok(())
            }),
            Operation::Write(transfer) => self.write(transfer, buffer),
            // `check` has refused it.
            Operation::WriteThrough(_) => Err(Errno::EOPNOTSUPP),
            Operation::Flush => self.file.ops().sync(),
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len } => {
                let punch = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;
                inode.fallocate(punch, self.offset + offset, len)
            }
        }
    }

    fn write(&self, transfer: Transfer<'_>, buffer: &mut [u8]) -> Result<()> {
        transfer.for_each_page(|page, at, len| {
            page.read(0, &mut buffer[..len]);
            let mut done = 0;
            while done < len {
                let at = self.offset + at + done as u64;
                match self.file.inode().write_at(at, &buffer[done..len])? {
                    // The file system is full.
                    0 => return Err(Errno::ENOSPC),
                    n => done += n,
                }
            }
            Ok(())
        })
    }
}

/// A loop device, with a file behind it or without: then it has no bytes.
pub(super) struct LoopDevice {
    number: u32,
    bound: Mutex<Option<Bound>>,
    /// A page through which all goes, one request at a time. It is there from the beginning, as who
    /// writes back may have no memory.
    buffer: Mutex<Vec<u8>>,
}

impl LoopDevice {
    /// Device `number`, without a file.
    pub(super) fn new(number: u32) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            number,
            bound: Mutex::new(None),
            buffer: Mutex::new(fallible::zeroed(PAGE_SIZE)?),
        }))
    }

    /// Whether it has a file.
    pub(super) fn is_bound(&self) -> bool {
        self.bound.lock().is_some()
    }

    /// Looks at what is behind the device.
    fn with_bound<R>(&self, look: impl FnOnce(&mut Bound) -> Result<R>) -> Result<R> {
        self.bound
            .lock()
            .as_mut()
            .ok_or(Errno::ENXIO)
            .and_then(look)
    }

    /// Puts a file behind the device (`LOOP_SET_FD`, `LOOP_CONFIGURE`).
    fn bind(
        &self,
        opener: &DiskOpener<'_>,
        request: &IoctlRequest<'_>,
        config: &LoopConfig,
    ) -> Result<()> {
        const KNOWN: u32 = READ_ONLY | AUTOCLEAR | DIRECT_IO;
        let file = request.caller.file(config.fd)?;
        let block_size = match config.block_size {
            0 => SECTOR_SIZE as u32,
            size => checked_block_size(size)?,
        };
        if self.is_bound() {
            return Err(Errno::EBUSY);
        }
        if file.inode().kind() != FileType::Regular || config.info.flags & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let mut flags = config.info.flags & AUTOCLEAR;
        let is_read_only = config.info.flags & READ_ONLY != 0;
        if is_read_only || !file.flags().is_writable() || !opener.is_writable {
            flags |= READ_ONLY;
        }
        let mut bound = Bound {
            file,
            offset: 0,
            size_limit: 0,
            capacity: 0,
            block_size,
            flags,
            name: [0; _],
        };
        bound.set_part(&config.info)?;
        let mut place = self.bound.lock();
        if place.is_some() {
            return Err(Errno::EBUSY);
        }
        *place = Some(bound);
        Ok(())
    }

    /// Takes the file away; what was written is written back before.
    fn unbind(&self, cache: &PageCache) {
        cache.sync();
        cache.forget();
        // The file may end with this, which can take long.
        let bound = self.bound.lock().take();
        drop(bound);
    }

    /// Takes the file away (`LOOP_CLR_FD`): at once, or when the others have closed the device.
    fn clear(&self, opener: &DiskOpener<'_>) -> Result<()> {
        let has_others = opener.disk.opener_count() > 1;
        self.with_bound(|bound| {
            if has_others {
                bound.flags |= AUTOCLEAR;
            }
            Ok(())
        })?;
        if !has_others {
            self.unbind(opener.disk.cache());
        }
        Ok(())
    }

    /// Changes which part of the file it is (`LOOP_SET_STATUS64`).
    fn set_status(&self, cache: &PageCache, info: &LoopInfo) -> Result<()> {
        let moves = self.with_bound(|bound| {
            Ok((bound.offset, bound.size_limit) != (info.offset, info.size_limit))
        })?;
        if moves {
            cache.sync();
        }
        self.with_bound(|bound| {
            bound.set_part(info)?;
            bound.flags = bound.flags & !AUTOCLEAR | info.flags & AUTOCLEAR;
            Ok(())
        })?;
        if moves {
            cache.forget();
        }
        Ok(())
    }

    /// The file, the part of it, and flags (`LOOP_GET_STATUS64`).
    fn status(&self) -> Result<LoopInfo> {
        self.with_bound(|bound| {
            let file = bound.file.metadata();
            Ok(LoopInfo {
                device: file.dev,
                inode: file.ino,
                offset: bound.offset,
                size_limit: bound.size_limit,
                number: self.number,
                flags: bound.flags,
                file_name: bound.name,
                ..LoopInfo::new_zeroed()
            })
        })
    }
}

/// A size of blocks that a device may have.
fn checked_block_size(size: u32) -> Result<u32> {
    let is_possible = size.is_power_of_two() && (512..=PAGE_SIZE as u32).contains(&size);
    is_possible.then_some(size).ok_or(Errno::EINVAL)
}

impl BlockDevice for LoopDevice {
    fn capacity(&self) -> u64 {
        self.with_bound(|bound| Ok(bound.capacity)).unwrap_or(0)
    }

    fn limits(&self) -> Limits {
        let size = self.with_bound(|bound| Ok(bound.block_size));
        Limits::of_blocks(size.unwrap_or(SECTOR_SIZE as u32))
    }

    fn is_read_only(&self) -> bool {
        self.with_bound(|bound| Ok(bound.flags & READ_ONLY != 0))
            .unwrap_or(false)
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        let Ok(bound) = self.with_bound(|bound| Ok(bound.clone())) else {
            // Without a file there is nothing to bring anywhere, which is no failure: `sync(2)`
            // comes by here, and the next file's openers would be told.
            for request in batch {
                if matches!(request.operation, Operation::Flush) {
                    request.outcome = Ok(());
                }
            }
            return;
        };
        let mut buffer = self.buffer.lock();
        for request in batch {
            // Whatever the file says, to who uses the device it is one that fails, as on Linux.
            request.outcome = request
                .operation
                .check(self)
                .and_then(|()| bound.execute(&request.operation, &mut buffer))
                .map_err(|error| match error {
                    Errno::EOPNOTSUPP => error,
                    _ => Errno::EIO,
                });
        }
    }
}

impl DiskDriver for LoopDevice {
    fn ioctl(&self, opener: &DiskOpener<'_>, request: &IoctlRequest<'_>) -> Result<usize> {
        let cache = opener.disk.cache();
        let may_change = || {
            if opener.is_writable || request.caller.privileged() {
                Ok(())
            } else {
                Err(Errno::EPERM)
            }
        };
        match request.command {
            lo::LOOP_SET_FD => {
                let mut config = LoopConfig::new_zeroed();
                config.fd = request.arg as u32;
                self.bind(opener, request, &config)?;
            }
            lo::LOOP_CONFIGURE => self.bind(opener, request, &request.read()?)?,
            lo::LOOP_CLR_FD => self.clear(opener)?,
            lo::LOOP_SET_STATUS64 => {
                may_change()?;
                self.set_status(cache, &request.read()?)?;
            }
            lo::LOOP_GET_STATUS64 => request.write(&self.status()?)?,
            lo::LOOP_SET_CAPACITY => {
                may_change()?;
                self.with_bound(|bound| {
                    bound.measure();
                    Ok(())
                })?;
            }
            lo::LOOP_SET_BLOCK_SIZE => {
                may_change()?;
                let size = checked_block_size(request.arg as u32)?;
                self.with_bound(|_| Ok(()))?;
                cache.sync();
                cache.forget();
                self.with_bound(|bound| {
                    bound.block_size = size;
                    Ok(())
                })?;
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }

    fn protect(&self, protection: Protection) {
        let _ = self.with_bound(|bound| {
            bound.flags &= !READ_ONLY;
            if protection == Protection::ReadOnly {
                bound.flags |= READ_ONLY;
            }
            Ok(())
        });
    }

    fn closed(&self, cache: &PageCache) {
        if self.with_bound(|bound| Ok(bound.flags & AUTOCLEAR != 0)) == Ok(true) {
            self.unbind(cache);
        }
    }
}
