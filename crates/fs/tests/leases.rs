//! Leases: who may have which, and what breaks them.

use std::sync::Arc;

use abi::errno::Errno;
use fs::lease::{self, LeaseKind};
use fs::ramfs::RamFs;
use fs::{Cred, File, FsStruct, NewInodeKind, OpenFlags, mount, ops};

fn tree() -> FsStruct {
    FsStruct::new(mount::Namespace::new(
        RamFs::new("tmpfs", None, 0o755),
        "none",
    ))
}

fn open(context: &FsStruct, flags: OpenFlags) -> Result<Arc<File>, Errno> {
    ops::open(
        &context.lookup_context(&Cred::root()),
        b"/f",
        flags | OpenFlags::NONBLOCK,
        0o644,
    )
}

fn set(file: &Arc<File>, kind: Option<LeaseKind>, others: bool) -> Result<(), Errno> {
    lease::set(file, (1, 3), kind, &Cred::root(), || others)
}

const RDWR: OpenFlags = OpenFlags::RDWR;
const RDONLY: OpenFlags = OpenFlags::RDONLY;

#[test]
fn a_lease_goes_together_with_who_has_the_file_open() {
    let context = tree();
    let writer = open(&context, OpenFlags::CREAT | RDWR).unwrap();
    let reader = open(&context, RDONLY).unwrap();
    assert_eq!(
        (lease::get(&reader), set(&reader, None, false)),
        (None, Err(Errno::EAGAIN))
    );
    // To read: nobody writes. To write: nobody else has it open at all.
    assert_eq!(
        set(&reader, Some(LeaseKind::Read), true),
        Err(Errno::EAGAIN)
    );
    assert_eq!(
        (
            set(&writer, Some(LeaseKind::Write), true),
            lease::get(&writer)
        ),
        (Err(Errno::EAGAIN), None)
    );
    assert_eq!(
        set(&reader, Some(LeaseKind::Write), false),
        Err(Errno::EAGAIN),
        "the other one writes"
    );
    drop(reader);
    assert_eq!(
        (
            set(&writer, Some(LeaseKind::Write), false),
            lease::get(&writer)
        ),
        (Ok(()), Some(LeaseKind::Write))
    );
    assert_eq!(
        (
            set(&writer, None, false),
            lease::get(&writer),
            set(&writer, None, false)
        ),
        (Ok(()), None, Err(Errno::EAGAIN))
    );
    drop(writer);
    let readers = [(); 2].map(|()| open(&context, RDONLY).unwrap());
    for reader in &readers {
        assert_eq!(
            (set(reader, Some(LeaseKind::Read), true), lease::get(reader)),
            (Ok(()), Some(LeaseKind::Read))
        );
    }
    assert_eq!(
        set(&readers[0], Some(LeaseKind::Write), false),
        Err(Errno::EAGAIN),
        "the other one has a lease"
    );
    // Only of regular files, by their owner.
    let user = Cred::user(1000, 1000);
    assert_eq!(
        lease::set(&readers[0], (1, 3), Some(LeaseKind::Read), &user, || true),
        Err(Errno::EACCES)
    );
    ops::create_node(
        &context.lookup_context(&Cred::root()),
        b"/d",
        NewInodeKind::Directory,
        0o755,
    )
    .unwrap();
    let directory = ops::open(&context.lookup_context(&Cred::root()), b"/d", RDONLY, 0).unwrap();
    assert_eq!(
        set(&directory, Some(LeaseKind::Read), false),
        Err(Errno::EINVAL)
    );
}

#[test]
fn who_opens_otherwise_breaks_it() {
    let context = tree();
    drop(open(&context, OpenFlags::CREAT | RDWR).unwrap());
    let holder = open(&context, RDONLY).unwrap();
    set(&holder, Some(LeaseKind::Read), false).unwrap();
    assert!(open(&context, RDONLY).is_ok(), "readers do not matter");
    assert_eq!(lease::get(&holder), Some(LeaseKind::Read));
    assert_eq!(open(&context, RDWR).err(), Some(Errno::EAGAIN));
    // It is being broken, and nothing is left of it.
    assert_eq!(lease::get(&holder), None);
    assert_eq!(open(&context, RDWR).err(), Some(Errno::EAGAIN));
    set(&holder, None, false).unwrap();
    let writer = open(&context, RDWR).unwrap();
    // Of one to write a reader leaves the right to read.
    drop(holder);
    set(&writer, Some(LeaseKind::Write), false).unwrap();
    assert_eq!(
        (open(&context, RDONLY).err(), lease::get(&writer)),
        (Some(Errno::EAGAIN), Some(LeaseKind::Read))
    );
    set(&writer, None, false).unwrap();
    assert!(open(&context, RDONLY).is_ok());
    // It ends with its opening.
    drop(writer);
    let holder = open(&context, RDONLY).unwrap();
    set(&holder, Some(LeaseKind::Write), false).unwrap();
    drop(holder);
    assert!(open(&context, RDWR).is_ok());
}

#[test]
fn who_cuts_the_file_waits_for_the_holder() {
    let context = tree();
    let file = open(&context, OpenFlags::CREAT | RDWR).unwrap();
    file.write(b"contents").unwrap();
    drop(file);
    let holder = open(&context, RDONLY).unwrap();
    set(&holder, Some(LeaseKind::Read), false).unwrap();
    let path = holder.path().clone();
    let (begins, begun) = std::sync::mpsc::channel();
    let other = task::spawn("cutter", None, move || {
        begins.send(()).unwrap();
        assert_eq!(
            ops::truncate(&path, 3, &Cred::root()),
            Err(Errno::ERESTARTSYS)
        );
    })
    .unwrap();
    begun.recv().unwrap();
    while lease::get(&holder).is_some() {
        std::thread::yield_now();
    }
    assert_eq!(holder.metadata().size, 8);
    other.set_signal_pending();
    other.join();
    assert_eq!(holder.metadata().size, 8, "interrupted, it has cut nothing");
}
