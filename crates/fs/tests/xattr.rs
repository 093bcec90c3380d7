//! Extended attributes: who may see and change which, what they are set to, and how much there may
//! be.

use abi::errno::Errno;
use fs::ramfs::RamFs;
use fs::xattr::{self, CAPABILITY, SIZE_MAX, SetMode};
use fs::{Cred, FsStruct, NewInodeKind, Path, mount, ops};
use linux_raw_sys::general as sys;

struct World(FsStruct);

impl World {
    fn new() -> Self {
        Self(FsStruct::new(mount::Namespace::new(
            RamFs::new("tmpfs", None, 0o755),
            "none",
        )))
    }

    fn make(&self, name: &str, kind: NewInodeKind<'_>, mode: u32, owner: u32) -> Path {
        let root = Cred::root();
        let path =
            ops::create_node(&self.0.lookup_context(&root), name.as_bytes(), kind, mode).unwrap();
        ops::chown(&path, Some(owner), Some(owner), &root).unwrap();
        ops::chmod(&path, mode, &root).unwrap();
        path
    }
}

fn with(caps: &[u32]) -> Cred {
    Cred {
        caps: caps.iter().fold(0, |all, cap| all | 1 << cap),
        ..Cred::user(1000, 1000)
    }
}

fn set(path: &Path, name: &[u8], cred: &Cred) -> Result<(), Errno> {
    xattr::set(path, name, b"value", SetMode::Any, cred)
}

#[test]
fn each_space_has_its_own_rules() {
    let w = World::new();
    let file = w.make("/f", NewInodeKind::Regular, 0o644, 1000);
    let (owner, other, root) = (with(&[]), Cred::user(2000, 2000), Cred::root());
    // `user`: as the permissions of the contents.
    assert_eq!(
        (set(&file, b"user.a", &owner), set(&file, b"user.a", &other)),
        (Ok(()), Err(Errno::EACCES))
    );
    assert_eq!(xattr::get(&file, b"user.a", &other), Ok(b"value".to_vec()));
    assert_eq!(xattr::remove(&file, b"user.a", &other), Err(Errno::EACCES));
    ops::chmod(&file, 0o600, &owner).unwrap();
    assert_eq!(xattr::get(&file, b"user.a", &other), Err(Errno::EACCES));
    assert_eq!(
        (
            xattr::remove(&file, b"user.a", &owner),
            xattr::get(&file, b"user.a", &owner)
        ),
        (Ok(()), Err(Errno::ENODATA))
    );
    // `trusted`: an administrator's, and to others not there.
    let admin = with(&[sys::CAP_SYS_ADMIN]);
    assert_eq!(
        (
            set(&file, b"trusted.a", &owner),
            set(&file, b"trusted.a", &admin)
        ),
        (Err(Errno::EPERM), Ok(()))
    );
    assert_eq!(xattr::get(&file, b"trusted.a", &owner), Err(Errno::ENODATA));
    assert_eq!(
        xattr::get(&file, b"trusted.a", &admin),
        Ok(b"value".to_vec())
    );
    assert_eq!(
        (xattr::list(&file, &owner), xattr::list(&file, &admin)),
        (vec![], b"trusted.a\0".to_vec())
    );
    // `security`: read by everybody, set by an administrator; capabilities by who may set those.
    assert_eq!(
        (
            set(&file, b"security.a", &owner),
            set(&file, b"security.a", &admin)
        ),
        (Err(Errno::EPERM), Ok(()))
    );
    assert_eq!(
        xattr::get(&file, b"security.a", &other),
        Ok(b"value".to_vec())
    );
    let setter = with(&[sys::CAP_SETFCAP]);
    let capability = |cred: &Cred| xattr::set(&file, CAPABILITY, &[0; 0], SetMode::Any, cred);
    assert_eq!(
        (
            capability(&admin),
            capability(&setter),
            set(&file, b"security.b", &setter)
        ),
        (Err(Errno::EPERM), Ok(()), Err(Errno::EPERM))
    );
    // Others there are not, nor names that end with the space.
    for name in [&b"system.a"[..], b"other.a", b"nodot", b""] {
        assert_eq!(set(&file, name, &root), Err(Errno::EOPNOTSUPP), "{name:?}");
        assert_eq!(
            xattr::get(&file, name, &root),
            Err(Errno::EOPNOTSUPP),
            "{name:?}"
        );
    }
    for name in [&b"user."[..], b"trusted.", b"security."] {
        assert_eq!(set(&file, name, &root), Err(Errno::EINVAL), "{name:?}");
    }
}

#[test]
fn user_attributes_are_of_files_and_directories() {
    let w = World::new();
    let (owner, other, root) = (with(&[]), Cred::user(2000, 2000), Cred::root());
    let fifo = w.make("/p", NewInodeKind::Fifo, 0o666, 1000);
    assert_eq!(
        (
            set(&fifo, b"user.a", &root),
            xattr::get(&fifo, b"user.a", &root)
        ),
        (Err(Errno::EPERM), Err(Errno::ENODATA))
    );
    assert_eq!(set(&fifo, b"trusted.a", &root), Ok(()));
    let open = w.make("/d", NewInodeKind::Directory, 0o777, 1000);
    let sticky = w.make("/s", NewInodeKind::Directory, 0o1777, 1000);
    assert_eq!(
        (
            set(&open, b"user.a", &other),
            set(&sticky, b"user.a", &other)
        ),
        (Ok(()), Err(Errno::EPERM))
    );
    assert_eq!(
        (
            set(&sticky, b"user.a", &owner),
            xattr::get(&sticky, b"user.a", &other)
        ),
        (Ok(()), Ok(b"value".to_vec()))
    );
    let file = w.make("/f", NewInodeKind::Regular, 0o1666, 1000);
    assert_eq!(
        set(&file, b"user.a", &other),
        Ok(()),
        "a sticky file is no directory"
    );
}

#[test]
fn attributes_are_made_or_replaced_as_asked() {
    let w = World::new();
    let (file, root) = (w.make("/f", NewInodeKind::Regular, 0o644, 0), Cred::root());
    let set = |name: &[u8], mode| xattr::set(&file, name, b"x", mode, &root);
    assert_eq!(
        (
            set(b"user.a", SetMode::Replace),
            set(b"user.a", SetMode::Never)
        ),
        (Err(Errno::ENODATA), Err(Errno::ENODATA))
    );
    assert_eq!(
        (
            set(b"user.a", SetMode::Create),
            set(b"user.a", SetMode::Create)
        ),
        (Ok(()), Err(Errno::EEXIST))
    );
    assert_eq!(
        (
            set(b"user.a", SetMode::Replace),
            set(b"user.a", SetMode::Never)
        ),
        (Ok(()), Err(Errno::EEXIST))
    );
    assert_eq!(set(b"user.b", SetMode::Any), Ok(()));
    assert_eq!(xattr::list(&file, &root), b"user.a\0user.b\0");
    assert_eq!(
        (
            xattr::remove(&file, b"user.c", &root),
            xattr::remove(&file, b"user.a", &root)
        ),
        (Err(Errno::ENODATA), Ok(()))
    );
    // Names and values of all of them have room for twice the largest value; what is replaced makes
    // room.
    let full = vec![1; SIZE_MAX];
    let put =
        |name: &[u8], size: usize| xattr::set(&file, name, &full[..size], SetMode::Any, &root);
    xattr::remove(&file, b"user.b", &root).unwrap();
    assert_eq!(
        (put(b"user.1", SIZE_MAX), put(b"user.2", SIZE_MAX - 11)),
        (Ok(()), Err(Errno::ENOSPC))
    );
    assert_eq!(
        (put(b"user.2", SIZE_MAX - 12), put(b"user.2", SIZE_MAX - 11)),
        (Ok(()), Err(Errno::ENOSPC))
    );
    assert_eq!(
        (put(b"user.2", SIZE_MAX - 12), put(b"user.3", 0)),
        (Ok(()), Err(Errno::ENOSPC))
    );
}

#[test]
fn capabilities_are_well_formed_and_taken_away_by_writing() {
    let w = World::new();
    let (file, root) = (w.make("/f", NewInodeKind::Regular, 0o644, 0), Cred::root());
    let set = |value: &[u8]| xattr::set(&file, CAPABILITY, value, SetMode::Any, &root);
    let value = |revision: u8, length: usize, last: u8| {
        let mut value = vec![0; length];
        (value[3], value[length - 1]) = (revision, last);
        value
    };
    for (revision, length) in [(1, 20), (2, 19), (2, 24), (3, 20), (3, 23), (4, 24)] {
        assert_eq!(
            set(&value(revision, length, 0)),
            Err(Errno::EINVAL),
            "{revision} {length}"
        );
    }
    assert_eq!(
        (set(b"abc"), set(&value(2, 20, 1))),
        (Err(Errno::EINVAL), Ok(()))
    );
    assert_eq!(xattr::get(&file, CAPABILITY, &root), Ok(value(2, 20, 1)));
    // The user who is root where it counts is said unless it is root himself.
    set(&value(3, 24, 1)).unwrap();
    assert_eq!(xattr::get(&file, CAPABILITY, &root), Ok(value(3, 24, 1)));
    set(&value(3, 24, 0)).unwrap();
    assert_eq!(xattr::get(&file, CAPABILITY, &root), Ok(value(2, 20, 0)));
    file.inode().write_at(0, b"x").unwrap();
    assert_eq!(xattr::get(&file, CAPABILITY, &root), Err(Errno::ENODATA));
}
