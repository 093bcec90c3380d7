//! System calls that the programs in machines make, and that no library has as they need them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Mounts ext4 on a directory.
///
/// # Errors
/// `mount(2)`'s.
pub fn mount_ext4(source: &str, place: &Path) -> io::Result<()> {
    let no_options = None::<&std::ffi::CStr>;
    Ok(mount(
        source,
        place,
        "ext4",
        MountFlags::empty(),
        no_options,
    )?)
}

/// Unmounts it.
///
/// # Errors
/// `umount(2)`'s.
pub fn umount(place: &Path) -> io::Result<()> {
    Ok(unmount(place, UnmountFlags::empty())?)
}

/// Has the pages of a range written, and not flushed.
///
/// # Errors
/// `sync_file_range(2)`'s.
pub fn write_without_flush(file: &File, at: u64, len: u64) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes numbers.
    checked(unsafe { libc::sync_file_range(file.as_raw_fd(), at as i64, len as i64, how) })
}

/// Makes bytes of a disk zeros (`BLKZEROOUT`), not through its cache.
///
/// # Errors
/// `ioctl(2)`'s.
pub fn zero_out(disk: &File, at: u64, len: u64) -> io::Result<()> {
    const BLKZEROOUT: libc::Ioctl = 0x127f;
    let range = [at, len];
    // SAFETY: it reads two numbers of 64 bits.
    checked(unsafe { libc::ioctl(disk.as_raw_fd(), BLKZEROOUT, range.as_ptr()) })
}

/// Bytes of a block of direct transfers.
pub const DIRECT_BLOCK: u64 = 512;

/// Opens a file to read and write it past the cache (`O_DIRECT`).
///
/// # Errors
/// `open(2)`'s.
pub fn open_direct(path: &Path) -> Result<File> {
    let mut how = File::options();
    how.read(true).write(true).custom_flags(libc::O_DIRECT);
    how.open(path)
        .with_context(|| format!("{} with O_DIRECT", path.display()))
}

/// A part of `buffer` of so many bytes that begins at a multiple of `unit`.
pub fn aligned(buffer: &mut Vec<u8>, len: u64, unit: u64) -> &mut [u8] {
    buffer.resize((len + unit) as usize, 0);
    let skip = buffer.as_ptr().align_offset(unit as usize);
    &mut buffer[skip..skip + len as usize]
}

/// Has the machine forget what it has cached and need not have.
///
/// # Errors
/// When it cannot be told to.
pub fn drop_caches() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("drop_caches")
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A shared mapping of the beginning of a file, which nobody cuts while there is one, or memory of
/// the program's alone.
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps so many bytes, of which there is at least one.
    ///
    /// # Errors
    /// `mmap(2)`'s.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping anywhere, of an open file.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self {
                start: start.cast(),
                len,
            })
        }
    }

    /// Memory of the program's alone, zeros.
    ///
    /// # Errors
    /// `mmap(2)`'s.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping anywhere.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast();
        Ok(Self { start, len })
    }

    /// Has the kernel read `len` bytes of a file into the mapping (`pread(2)`); how many it did.
    ///
    /// # Errors
    /// `pread(2)`'s.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn read_in(&self, at: usize, len: usize, file: &File, offset: u64) -> io::Result<usize> {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: within the mapping, to which nothing refers.
        let to = unsafe { self.start.add(at) };
        // SAFETY: the same; what is not mapped any more is an error.
        let done = unsafe { libc::pread(file.as_raw_fd(), to.cast(), len, offset as i64) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Has the kernel read `len` bytes of a file from its position on into the mapping (`read(2)`);
    /// how many it did.
    ///
    /// # Errors
    /// `read(2)`'s.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn read_on(&self, at: usize, len: usize, file: &File) -> io::Result<usize> {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: within the mapping, to which nothing refers.
        let to = unsafe { self.start.add(at) };
        // SAFETY: the same; what is not mapped any more is an error.
        let done = unsafe { libc::read(file.as_raw_fd(), to.cast(), len) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Has the kernel write `len` bytes of the mapping to a file (`pwrite(2)`); how many it did.
    ///
    /// # Errors
    /// `pwrite(2)`'s.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn write_out(&self, at: usize, len: usize, file: &File, offset: u64) -> io::Result<usize> {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: within the mapping.
        let from = unsafe { self.start.add(at) };
        // SAFETY: the same; what is not mapped any more is an error.
        let done = unsafe { libc::pwrite(file.as_raw_fd(), from.cast(), len, offset as i64) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Unmaps a page of it. Whoever uses it afterwards does so by calls that may fail.
    ///
    /// # Errors
    /// `munmap(2)`'s.
    ///
    /// # Panics
    /// When it is not within the mapping.
    pub fn unmap_page(&self, at: usize) -> io::Result<()> {
        assert!(at < self.len && at.is_multiple_of(4096));
        // SAFETY: a page of the mapping, to which nothing refers.
        checked(unsafe { libc::munmap(self.start.add(at).cast(), 4096) })
    }

    /// Stores a byte that is there already, so that the page is written to.
    ///
    /// # Panics
    /// When it is not within the mapping.
    pub fn write_byte(&self, at: usize) {
        assert!(at < self.len);
        // SAFETY: within the mapping, to which nothing refers.
        unsafe {
            let byte = self.start.add(at);
            byte.write_volatile(byte.read_volatile());
        }
    }

    /// Stores bytes.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at);
        // SAFETY: it is within the mapping, to which nothing refers.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len());
        }
    }

    /// Loads bytes.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn load(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at);
        // SAFETY: it is within the mapping, to which nothing refers.
        unsafe {
            ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Has the kernel load a page's first bytes, in a call that fails where there is none.
    ///
    /// # Errors
    /// `EFAULT`.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn write_to(&self, at: usize) -> io::Result<()> {
        assert!(at < self.len && self.len - at >= 8);
        let (_reader, writer) = rustix::pipe::pipe()?;
        // SAFETY: eight bytes within the mapping.
        let done = unsafe { libc::write(writer.as_raw_fd(), self.start.add(at).cast(), 8) };
        if done == 8 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Has the kernel store a page's first bytes, in the same way.
    ///
    /// # Errors
    /// `EFAULT`.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn read_from(&self, at: usize) -> io::Result<()> {
        assert!(at < self.len && self.len - at >= 8);
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::write(&writer, b"hostile!")?;
        // SAFETY: eight bytes within the mapping, to which nothing refers.
        let done = unsafe { libc::read(reader.as_raw_fd(), self.start.add(at).cast(), 8) };
        if done == 8 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Brings what was stored to the medium.
    ///
    /// # Errors
    /// `msync(2)`'s.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping of this value.
        checked(unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) })
    }
}

// SAFETY: its bytes are copied in and out, and never referred to.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, to which nothing refers.
        let _ = unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
