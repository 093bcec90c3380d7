//! Access control lists of files in memory: whether they are asked wherever permission bits are,
//! and what new files have.

use abi::errno::Errno;
use fs::ops::CreationMode;
use fs::path::LookupFlags;
use fs::ramfs::RamFs;
use fs::xattr::{self, SetMode};
use fs::{Access, Cred, FsStruct, NewInodeKind, OpenFlags, Path, mount, ops};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const USER: u32 = 1000;

fn world() -> FsStruct {
    FsStruct::new(mount::Namespace::new(
        RamFs::new("tmpfs", None, 0o755),
        "none",
    ))
}

fn make(world: &FsStruct, name: &[u8], kind: NewInodeKind<'_>, mode: CreationMode) -> Path {
    let root = Cred::root();
    ops::create_node(&world.lookup_context(&root), name, kind, mode).unwrap()
}

/// Value of an attribute: permissions of the owner, of [`USER`], of the group, of the mask and of
/// others.
fn list(permissions: [u8; 5]) -> Vec<u8> {
    let tags = [1u8, 2, 4, 0x10, 0x20];
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions) in tags.into_iter().zip(permissions) {
        let id = if tag == 2 { USER } else { u32::MAX };
        value.extend([tag, 0, permissions, 0]);
        value.extend(id.to_le_bytes());
    }
    value
}

fn set(path: &Path, name: &[u8], value: &[u8]) {
    xattr::set(path, name, value, SetMode::Any, &Cred::root()).unwrap();
}

#[test]
fn a_list_counts_where_bits_would_let_everybody_in() {
    let world = world();
    let dir = make(&world, b"/dir", NewInodeKind::Directory, 0o777_u32.into());
    let file = make(&world, b"/dir/f", NewInodeKind::Regular, 0o777_u32.into());
    let (user, other) = (Cred::user(USER, USER), Cred::user(USER + 1, USER));
    let walk = |cred: &Cred| {
        let found = world
            .lookup_context(cred)
            .lookup(b"/dir/f", LookupFlags::empty());
        found.map(drop)
    };
    let open = |cred: &Cred, flags: OpenFlags| {
        ops::open(&world.lookup_context(cred), b"/dir/f", flags, 0_u32).map(drop)
    };
    assert_eq!((walk(&user), walk(&other)), (Ok(()), Ok(())));
    set(&dir, ACCESS, &list([7, 0, 7, 7, 7]));
    assert_eq!(dir.metadata().mode, 0o777);
    assert_eq!((walk(&user), walk(&other)), (Err(Errno::EACCES), Ok(())));
    set(&dir, ACCESS, &list([7, 7, 0, 7, 0]));
    set(&file, ACCESS, &list([7, 4, 7, 7, 7]));
    assert_eq!(open(&user, OpenFlags::RDONLY), Ok(()));
    assert_eq!(open(&user, OpenFlags::RDWR), Err(Errno::EACCES));
    assert_eq!(ops::truncate(&file, 0, &user), Err(Errno::EACCES));
    assert_eq!(
        open(&other, OpenFlags::RDONLY),
        Err(Errno::EACCES),
        "no way"
    );
    // Without the list the bits count again, without any delay.
    xattr::remove(&file, ACCESS, &Cred::root()).unwrap();
    assert_eq!(open(&user, OpenFlags::RDWR), Ok(()));
    assert!(file.inode().is_granted_to_all(Access(7)));
}

#[test]
fn a_default_list_stands_in_for_the_umask() {
    let world = world();
    let masked = |bits| CreationMode { bits, umask: 0o077 };
    let dir = make(&world, b"/dir", NewInodeKind::Directory, masked(0o777));
    assert_eq!(dir.metadata().mode, 0o700);
    set(&dir, DEFAULT, &list([7, 6, 5, 7, 5]));
    assert_eq!(dir.metadata().mode, 0o700, "its own bits stay");
    let root = Cred::root();
    let get = |path: &Path, name: &[u8]| xattr::get(path, name, &root);
    let file = make(&world, b"/dir/f", NewInodeKind::Regular, masked(0o640));
    assert_eq!(file.metadata().mode, 0o640);
    assert_eq!(get(&file, ACCESS), Ok(list([6, 6, 5, 4, 0])));
    assert_eq!(get(&file, DEFAULT), Err(Errno::ENODATA));
    let below = make(&world, b"/dir/d", NewInodeKind::Directory, masked(0o777));
    assert_eq!(get(&below, ACCESS), Ok(list([7, 6, 5, 7, 5])));
    assert_eq!(get(&below, DEFAULT), Ok(list([7, 6, 5, 7, 5])));
    let link = make(
        &world,
        b"/dir/l",
        NewInodeKind::Symlink(b"f"),
        masked(0o777),
    );
    assert_eq!(link.metadata().mode, 0o777);
    assert_eq!(get(&link, ACCESS), Err(Errno::EOPNOTSUPP));
    // The mask follows the bits, and the other way round.
    ops::chmod(&file, 0o604, &root).unwrap();
    assert_eq!(get(&file, ACCESS), Ok(list([6, 6, 5, 0, 4])));
    set(&file, ACCESS, &list([4, 0, 0, 2, 1]));
    assert_eq!(file.metadata().mode, 0o421);
}
