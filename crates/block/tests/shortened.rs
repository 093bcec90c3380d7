//! Dirty pages behind the end of a device that has become shorter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use block::{BlockDevice, Limits, PageCache, Request, SECTOR_SIZE};

/// A device that takes everything.
struct Device {
    capacity: AtomicU64,
}

impl BlockDevice for Device {
    fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(SECTOR_SIZE as u32)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        for request in batch {
            request.outcome = Ok(());
        }
    }
}

/// Has the third page of a cache, which `write` makes dirty, written back when the device has lost
/// it. Returns what an opener is told.
fn outcome(
    make: impl FnOnce(Arc<Device>) -> Arc<PageCache>,
    write: impl FnOnce(&PageCache, u64),
) -> Result<(), Errno> {
    let device = Arc::new(Device {
        capacity: AtomicU64::new(5 * 4096),
    });
    let cache = make(device.clone());
    let mut opener = cache.sample_errors();
    write(&cache, 2 * 4096);
    device.capacity.store(4096, Ordering::Relaxed);
    cache.write_back(0..u64::MAX, u64::MAX);
    assert!(!cache.is_dirty());
    cache.check_errors(&mut opener)
}

#[test]
fn pages_that_a_file_has_lost_are_no_error() {
    let told = outcome(
        |device| PageCache::of_file(device),
        |cache, at| assert_eq!(cache.write_file(at, &[1; 4096], 5 * 4096), Ok(4096)),
    );
    assert_eq!(told, Ok(()));
}

#[test]
fn pages_that_a_disk_has_lost_are_an_error() {
    let told = outcome(
        |device| PageCache::new(device).unwrap(),
        |cache, at| assert_eq!(cache.write(at, &[1; 4096]), Ok(4096)),
    );
    assert_eq!(told, Err(Errno::EIO));
}
