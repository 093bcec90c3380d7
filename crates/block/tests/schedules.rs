//! The page cache under all schedules with a few pre-emptions (`docs/locks.md`).

use std::sync::Arc;

use abi::errno::Errno;
use block::{BlockDevice, Limits, Operation, PageCache, Request, SECTOR_SIZE};
use task::Mutex;
use task::explore::{Model, spawn};

const PAGE: usize = 4096;

/// A device of two pages, which takes its time between the pages of a request.
struct Device(Mutex<Vec<u8>>);

impl BlockDevice for Device {
    fn capacity(&self) -> u64 {
        2 * PAGE as u64
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(SECTOR_SIZE as u32)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        for request in batch {
            request.outcome = match &request.operation {
                Operation::Write(transfer) => transfer.for_each_page(|page, at, len| {
                    let mut bytes = vec![0; len];
                    page.read(0, &mut bytes);
                    self.0.lock()[at as usize..at as usize + len].copy_from_slice(&bytes);
                    Ok(())
                }),
                Operation::Read(transfer) => transfer.for_each_page(|page, at, len| {
                    page.write(0, &self.0.lock()[at as usize..at as usize + len]);
                    Ok(())
                }),
                Operation::Flush => Ok(()),
                _ => Err(Errno::EOPNOTSUPP),
            };
        }
    }
}

fn cache() -> (Arc<Device>, Arc<PageCache>) {
    let device = Arc::new(Device(Mutex::new(vec![0; 2 * PAGE])));
    let cache = PageCache::new(device.clone()).unwrap();
    (device, cache)
}

#[test]
fn what_was_written_before_a_sync_is_on_the_device_after_it() {
    Model::new().preemptions(3).check(|| {
        let (device, cache) = cache();
        cache.write(0, &[1; PAGE]).unwrap();
        let theirs = cache.clone();
        let other = spawn("other", move || theirs.sync());
        cache.write(0, &[2; PAGE]).unwrap();
        cache.sync();
        assert_eq!(
            device.0.lock()[0],
            2,
            "a sync ended before its page was written"
        );
        other.join();
    });
}

#[test]
fn readers_of_the_same_pages_see_what_the_device_has() {
    Model::new().preemptions(3).check(|| {
        let (device, cache) = cache();
        device.0.lock().fill(7);
        let theirs = cache.clone();
        let second = spawn("second", move || {
            let mut byte = [0; 1];
            theirs.read(PAGE as u64, &mut byte).unwrap();
            assert_eq!(byte, [7], "page 1 was read before the device had filled it");
        });
        let mut bytes = [0; 2 * PAGE];
        cache.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 2 * PAGE]);
        second.join();
    });
}

#[test]
fn what_was_written_directly_is_read_by_who_read_before_it_ended() {
    Model::new().preemptions(3).check(|| {
        let (device, cache) = cache();
        let theirs = cache.clone();
        let reader = spawn("reader", move || {
            theirs.read(0, &mut [0; 8]).unwrap();
        });
        let told = Mutex::new(cache.sample_errors());
        cache.write(0, &[2; PAGE]).unwrap();
        cache.write_through(0..PAGE as u64, &told).unwrap();
        assert_eq!(device.0.lock()[0], 2, "it ended before the device had it");
        reader.join();
        let (mut kept, mut direct) = ([0; 1], [0; 1]);
        cache.read(0, &mut kept).unwrap();
        cache.read_direct(0, &mut direct).unwrap();
        assert_eq!((kept, direct), ([2], [2]), "an older page is in the cache");
    });
}

#[test]
fn what_was_written_by_pages_is_read_by_who_read_before_it_ended() {
    Model::new().preemptions(3).check(|| {
        let (device, cache) = cache();
        let theirs = cache.clone();
        let reader = spawn("reader", move || {
            theirs.read(0, &mut [0; 8]).unwrap();
        });
        let page = vm::Page::zeroed().unwrap();
        page.write(0, &[2; PAGE]);
        let told = Mutex::new(cache.sample_errors());
        let pages = [page];
        // Otherwise the reader has the page in the cache, and a copy is made.
        if let Some(write) = cache.begin_write(0, &pages) {
            write.finish(&told).unwrap();
            assert_eq!(device.0.lock()[0], 2, "it ended before the device had it");
            let mut kept = [0; 1];
            cache.read(0, &mut kept).unwrap();
            assert_eq!(kept, [2], "an older page is in the cache");
        }
        reader.join();
    });
}

#[test]
fn what_is_cached_while_pages_are_written_comes_after_it() {
    Model::new().preemptions(3).check(|| {
        let (device, cache) = cache();
        let page = vm::Page::zeroed().unwrap();
        page.write(0, &[2; PAGE]);
        let told = Mutex::new(cache.sample_errors());
        let pages = [page];
        let write = cache.begin_write(0, &pages).unwrap();
        let theirs = cache.clone();
        let writer = spawn("writer", move || {
            theirs.write(8, &[3; 8]).unwrap();
            theirs.sync();
        });
        write.finish(&told).unwrap();
        writer.join();
        let mut found = [0; 16];
        cache.read(0, &mut found).unwrap();
        assert_eq!(found, [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(device.0.lock()[..16], found);
        let mut kept = [0; 16];
        pages[0].read(0, &mut kept);
        assert_eq!(kept, [2; 16], "the program's page is its own");
    });
}

#[test]
fn a_cache_that_forgets_while_others_read_and_write_ends() {
    Model::new().preemptions(2).check(|| {
        let (_, cache) = cache();
        cache.write(0, &[1; 2 * PAGE]).unwrap();
        let theirs = cache.clone();
        let writer = spawn("writer", move || theirs.sync());
        let theirs = cache.clone();
        let reader = spawn("reader", move || {
            theirs.read(PAGE as u64, &mut [0; 8]).unwrap();
        });
        cache.forget();
        writer.join();
        reader.join();
    });
}
