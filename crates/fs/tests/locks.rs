//! Advisory locks between openings and processes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use abi::errno::Errno;
use fs::lock::LockKind::{Exclusive, Shared};
use fs::lock::OnConflict::{Fail, Wait};
use fs::lock::{self, LockOwner, LockRange};
use fs::ramfs::RamFs;
use fs::{File, OpenFlags, Path};

fn two_openings(name: &str) -> (Path, Arc<File>, Arc<File>) {
    let path = RamFs::memfd(name, 0o600, 0);
    let open = || File::from_inode(path.clone(), OpenFlags::RDWR, None);
    let (a, b) = (open(), open());
    (path, a, b)
}

fn process(n: u64) -> LockOwner {
    LockOwner::Process {
        table: n,
        pid: n as i32,
    }
}

#[test]
fn whole_file_locks_belong_to_openings() {
    let (_path, a, b) = two_openings("flock");
    lock::flock(&a, Shared, 1, Fail).unwrap();
    lock::flock(&b, Shared, 1, Fail).unwrap();
    assert_eq!(lock::flock(&a, Exclusive, 1, Fail), Err(Errno::EAGAIN));
    lock::unflock(&b);
    lock::flock(&a, Exclusive, 1, Fail).unwrap();
    assert_eq!(lock::flock(&b, Shared, 1, Fail), Err(Errno::EAGAIN));
    // The end of the opening is the end of its lock, and wakes who waits.
    let waiter = thread::spawn(move || lock::flock(&b, Exclusive, 1, Wait));
    thread::sleep(Duration::from_millis(10));
    drop(a);
    assert_eq!(waiter.join().unwrap(), Ok(()));
}

#[test]
fn record_locks_belong_to_processes() {
    let (_path, a, b) = two_openings("records");
    let range = |start, end| LockRange { start, end };
    lock::set_record_lock(&a, process(1), range(0, 10), Some(Exclusive), Fail).unwrap();
    // Another opening of the same process is no obstacle.
    lock::set_record_lock(&b, process(1), range(5, 15), Some(Exclusive), Fail).unwrap();
    assert_eq!(
        lock::set_record_lock(&b, process(2), range(14, 20), Some(Shared), Fail),
        Err(Errno::EAGAIN)
    );
    lock::set_record_lock(&b, process(2), range(15, 20), Some(Shared), Fail).unwrap();
    assert_eq!(
        lock::test_lock(&b, process(2), range(0, 100), Shared).map(|lock| lock.pid),
        Some(1)
    );
    let waiter = {
        let b = b.clone();
        thread::spawn(move || {
            lock::set_record_lock(&b, process(3), range(0, 1), Some(Exclusive), Wait)
        })
    };
    thread::sleep(Duration::from_millis(10));
    lock::release_record_locks(&a, process(1));
    assert_eq!(waiter.join().unwrap(), Ok(()));
    // Locks of an opening end with it.
    lock::set_record_lock(
        &a,
        LockOwner::open_file(&a),
        range(50, 60),
        Some(Exclusive),
        Fail,
    )
    .unwrap();
    assert!(lock::test_lock(&b, LockOwner::open_file(&b), range(50, 51), Shared).is_some());
    drop(a);
    assert!(lock::test_lock(&b, LockOwner::open_file(&b), range(50, 51), Shared).is_none());
}

/// Waits in a thread of its own until it sleeps for the lock, interrupts it, and says what it was
/// told.
fn interrupted(wait: impl FnOnce() -> Result<(), Errno> + Send + 'static) -> Result<(), Errno> {
    let (tell, told) = std::sync::mpsc::channel();
    let waiter = task::spawn("waiter", None, move || tell.send(wait()).unwrap()).unwrap();
    waiter.set_signal_pending();
    told.recv().unwrap()
}

#[test]
fn an_interrupted_wait_takes_nothing() {
    let (_path, a, b) = two_openings("interrupted");
    lock::flock(&a, Exclusive, 1, Fail).unwrap();
    let other = b.clone();
    assert_eq!(
        interrupted(move || lock::flock(&other, Exclusive, 1, Wait)),
        Err(Errno::ERESTARTSYS)
    );
    lock::unflock(&a);
    assert_eq!(
        lock::flock(&a, Exclusive, 1, Fail),
        Ok(()),
        "the other one did not get it"
    );
    let whole = LockRange {
        start: 0,
        end: u64::MAX,
    };
    lock::set_record_lock(&a, process(11), whole, Some(Exclusive), Fail).unwrap();
    let other = b.clone();
    assert_eq!(
        interrupted(move || lock::set_record_lock(
            &other,
            process(12),
            whole,
            Some(Exclusive),
            Wait
        )),
        Err(Errno::ERESTARTSYS)
    );
    lock::release_record_locks(&a, process(11));
    assert!(lock::test_lock(&a, process(13), whole, Exclusive).is_none());
}

#[test]
fn a_lock_that_becomes_less_lets_others_in() {
    let (_path, a, b) = two_openings("less");
    lock::flock(&a, Exclusive, 1, Fail).unwrap();
    let (begins, begun) = std::sync::mpsc::channel();
    let other = b.clone();
    let waiter = thread::spawn(move || {
        begins.send(()).unwrap();
        lock::flock(&other, Shared, 1, Wait)
    });
    begun.recv().unwrap();
    thread::sleep(Duration::from_millis(10));
    lock::flock(&a, Shared, 1, Fail).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(()));
    assert_eq!(
        (
            lock::flock(&a, Exclusive, 1, Fail),
            lock::flock(&b, Shared, 1, Fail)
        ),
        (Err(Errno::EAGAIN), Ok(()))
    );
}

#[test]
fn the_tables_count_what_is_there() {
    let count = |wanted: &str| {
        let mut found = None;
        fs::census(&mut |name, number| {
            if name == wanted {
                found = Some(number);
            }
        });
        found.unwrap_or_else(|| panic!("{wanted} is not counted"))
    };
    // Others of this program lock files meanwhile, but none so many.
    let files: Vec<_> = (0..100)
        .map(|n| two_openings(&format!("counted-{n}")))
        .collect();
    let before = (count("locked_files"), count("file_locks"));
    for (_, a, b) in &files {
        lock::flock(a, Shared, 1, Fail).unwrap();
        lock::flock(b, Shared, 1, Fail).unwrap();
    }
    assert!(
        count("locked_files") + 20 > before.0 + 100 && count("file_locks") + 20 > before.1 + 200
    );
    for name in [
        "file_lock_waits",
        "leases",
        "watched_files",
        "controlling_terminals",
        "terminal_pairs",
        "file_pages",
    ] {
        assert!(count(name) < 1 << 40, "{name}");
    }
}
