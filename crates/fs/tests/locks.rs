//! Advisory locks between openings and processes.

use abi::errno::Errno;
use fs::lock::{self, Owner, Range};
use fs::ramfs::RamFs;
use fs::{File, OpenFlags, Path};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn two_openings(name: &str) -> (Path, Arc<File>, Arc<File>) {
    let path = RamFs::memfd(name, 0o600, 0);
    let open = || File::of_inode(path.clone(), OpenFlags::RDWR, None);
    let (a, b) = (open(), open());
    (path, a, b)
}

fn process(n: u64) -> Owner {
    Owner::Process { table: n, pid: n as i32 }
}

#[test]
fn whole_file_locks_belong_to_openings() {
    let (_path, a, b) = two_openings("flock");
    lock::flock(&a, false, true).unwrap();
    lock::flock(&b, false, true).unwrap();
    assert_eq!(lock::flock(&a, true, true), Err(Errno::EAGAIN));
    lock::unflock(&b);
    lock::flock(&a, true, true).unwrap();
    assert_eq!(lock::flock(&b, false, true), Err(Errno::EAGAIN));
    // The end of the opening is the end of its lock, and wakes who waits.
    let waiter = thread::spawn(move || lock::flock(&b, true, false));
    thread::sleep(Duration::from_millis(10));
    drop(a);
    assert_eq!(waiter.join().unwrap(), Ok(()));
}

#[test]
fn record_locks_belong_to_processes() {
    let (_path, a, b) = two_openings("records");
    let range = |start, end| Range { start, end };
    lock::set_record(&a, process(1), range(0, 10), Some(true), false).unwrap();
    // Another opening of the same process is no obstacle.
    lock::set_record(&b, process(1), range(5, 15), Some(true), false).unwrap();
    assert_eq!(lock::set_record(&b, process(2), range(14, 20), Some(false), false), Err(Errno::EAGAIN));
    lock::set_record(&b, process(2), range(15, 20), Some(false), false).unwrap();
    assert_eq!(lock::conflicting(&b, process(2), range(0, 100), false).map(|(pid, ..)| pid), Some(1));
    let waiter = {
        let b = b.clone();
        thread::spawn(move || lock::set_record(&b, process(3), range(0, 1), Some(true), true))
    };
    thread::sleep(Duration::from_millis(10));
    lock::release(&a, process(1));
    assert_eq!(waiter.join().unwrap(), Ok(()));
    // Locks of an opening end with it.
    lock::set_record(&a, Owner::opening(&a), range(50, 60), Some(true), false).unwrap();
    assert!(lock::conflicting(&b, Owner::opening(&b), range(50, 51), false).is_some());
    drop(a);
    assert!(lock::conflicting(&b, Owner::opening(&b), range(50, 51), false).is_none());
}
