//! `/proc/skerry/trace`: writing a list of classes of events to it begins to record them, reading
//! takes the records out, and closing it ends the recording, whatever became of the reader. One may
//! have it open at a time.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use fs::pseudo::PseudoAttr;
use fs::{File, FileOps, FileType, Inode, Metadata, OpenFlags, Result, Whence};
use guard::trace::{self, Class, RECORD_BYTES};
use linux::entry::syscall_trace::set_recording;
use task::CpuId;

struct Trace(Metadata);

/// The file.
pub(crate) fn file(dev: u64) -> Arc<dyn Inode> {
    let attr = PseudoAttr::new(dev, 0o600);
    Arc::new(Trace(Metadata::generated(
        attr.dev,
        attr.ino,
        FileType::Regular,
        attr.mode,
    )))
}

static OPEN: AtomicBool = AtomicBool::new(false);

impl Inode for Trace {
    fn metadata(&self) -> Metadata {
        self.0
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn truncate(&self, _: u64) -> Result<()> {
        // `echo all > trace` truncates first.
        Ok(())
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        if OPEN.swap(true, Ordering::AcqRel) {
            return Err(Errno::EBUSY);
        }
        Ok(Some(Arc::new(Recording)))
    }
}

/// The open file.
struct Recording;

impl Drop for Recording {
    fn drop(&mut self) {
        // Ending it takes no memory, so it succeeds.
        let _ = set_recording(0);
        OPEN.store(false, Ordering::Release);
    }
}

impl FileOps for Recording {
    /// Whole records, those of one CPU in order of time; nothing if there are none at the moment.
    fn read(&self, _: &File, buf: &mut [u8]) -> Result<usize> {
        if buf.len() < RECORD_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut room = buf.chunks_exact_mut(RECORD_BYTES);
        let mut left = room.len();
        for cpu in (0..guard::cpu::most() as u32).map(CpuId) {
            if left == 0 {
                break;
            }
            trace::take(cpu, |record| {
                if let Some(to) = room.next() {
                    to.copy_from_slice(&record.to_bytes());
                    left -= 1;
                }
                left != 0
            });
        }
        Ok(buf.len() / RECORD_BYTES * RECORD_BYTES - left * RECORD_BYTES)
    }

    fn read_at(&self, file: &File, _: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(file, buf)
    }

    /// `off`, or classes of events by name.
    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        let text = core::str::from_utf8(buf).map_err(|_| Errno::EINVAL)?.trim();
        let classes = if text == "off" {
            0
        } else {
            Class::parse(text).ok_or(Errno::EINVAL)?
        };
        set_recording(classes).map_err(|_| Errno::ENOMEM)?;
        Ok(buf.len())
    }

    fn write_at(&self, file: &File, _: u64, buf: &[u8]) -> Result<usize> {
        self.write(file, buf)
    }

    fn seek(&self, _: &File, _: Whence, _: i64) -> Result<u64> {
        Err(Errno::ESPIPE)
    }

    fn is_pollable(&self) -> bool {
        false
    }
}
