//! Trees of mounts: binding, moving, pivoting, protecting and taking away.

use std::sync::Arc;

use abi::errno::Errno;
use fs::mount::{self, MS_RDONLY, Namespace, SuperBlock, UnmountFlags};
use fs::path::LookupFlags;
use fs::ramfs::RamFs;
use fs::{Cred, FsStruct, NewInodeKind, OpenFlags, Path, ops};

struct World(FsStruct);

impl World {
    fn new() -> Self {
        Self(FsStruct::new(Namespace::new(
            RamFs::new("tmpfs", None, 0o755),
            "none",
        )))
    }

    fn space(&self) -> Arc<Namespace> {
        self.0.namespace()
    }

    fn at(&self, name: &str) -> Path {
        self.0
            .lookup_context(&Cred::root())
            .lookup(name.as_bytes(), LookupFlags::empty())
            .unwrap_or_else(|e| panic!("{name}: {e:?}"))
    }

    fn is_there(&self, name: &str) -> bool {
        self.0
            .lookup_context(&Cred::root())
            .lookup(name.as_bytes(), LookupFlags::empty())
            .is_ok()
    }

    fn make(&self, names: &[&str]) {
        for name in names {
            ops::create_node(
                &self.0.lookup_context(&Cred::root()),
                name.as_bytes(),
                NewInodeKind::Directory,
                0o755,
            )
            .unwrap();
        }
    }

    fn mount(&self, name: &str) {
        mount::mount(
            &self.space(),
            SuperBlock::for_fs(RamFs::new("tmpfs", None, 0o755), 0),
            &self.at(name),
            "tmp",
            0,
        )
        .unwrap();
    }

    fn unmount(&self, name: &str, how: UnmountFlags) -> Result<(), Errno> {
        let (at, root) = (self.at(name), self.0.root());
        mount::unmount(&self.space(), &at, &root, how)
    }

    fn open(&self, name: &str, flags: OpenFlags) -> Result<Arc<fs::File>, Errno> {
        ops::open(
            &self.0.lookup_context(&Cred::root()),
            name.as_bytes(),
            flags.checked()?,
            0o644,
        )
    }
}

#[test]
fn a_tree_is_moved_with_all_on_it_but_not_below_itself() {
    let w = World::new();
    w.make(&["/a", "/b"]);
    w.mount("/a");
    w.make(&["/a/in", "/a/dir"]);
    w.mount("/a/in");
    w.make(&["/a/in/deep"]);
    let move_to = |from: &str, to: &str| mount::move_mount(&w.space(), &w.at(from), &w.at(to));
    assert_eq!(move_to("/a", "/a/in"), Err(Errno::ELOOP));
    assert_eq!(move_to("/a", "/a/dir"), Err(Errno::ELOOP));
    assert_eq!(move_to("/a/dir", "/b"), Err(Errno::EINVAL), "it is no top");
    w.open("/file", OpenFlags::CREAT | OpenFlags::RDWR).unwrap();
    assert_eq!(move_to("/a", "/file"), Err(Errno::EINVAL));
    assert_eq!(move_to("/a", "/b"), Ok(()));
    assert!(w.is_there("/b/in/deep") && !w.is_there("/a/in"));
    let other = World::new();
    assert_eq!(
        mount::move_mount(&w.space(), &other.at("/"), &w.at("/a")),
        Err(Errno::EINVAL)
    );
    // A copy with what is below has the mounts of the part that is copied, and no others.
    w.make(&["/c", "/d", "/b/dir/x"]);
    w.mount("/b/dir/x");
    w.make(&["/b/dir/x/y"]);
    for (point, recursive, deep, under) in [("/c", true, false, true), ("/d", false, false, false)]
    {
        mount::bind(&w.space(), &w.at("/b/dir"), &w.at(point), recursive).unwrap();
        assert_eq!(
            (
                w.is_there(&format!("{point}/in")),
                w.is_there(&format!("{point}/x/y"))
            ),
            (deep, under)
        );
    }
    assert_eq!(w.at("/c").mount().root_name(), b"/dir");
    assert_eq!(
        (
            w.at("/c/x").mount().root_name(),
            w.at("/").mount().root_name()
        ),
        (b"/".to_vec(), b"/".to_vec())
    );
    w.make(&["/e"]);
    mount::bind(&w.space(), &w.at("/b/in/deep"), &w.at("/e"), false).unwrap();
    w.make(&["/b/in/deep/er", "/f"]);
    mount::bind(&w.space(), &w.at("/b/in/deep/er"), &w.at("/f"), false).unwrap();
    assert_eq!(
        w.at("/f").mount().root_name(),
        b"/deep/er",
        "the outer name first"
    );
}

#[test]
fn a_root_is_put_below_another() {
    let w = World::new();
    w.make(&["/outer"]);
    w.mount("/outer");
    w.make(&["/outer/new", "/outer/plain"]);
    w.mount("/outer/new");
    w.make(&["/outer/new/old", "/outer/new/bin"]);
    let (root, new) = (w.at("/outer"), w.at("/outer/new"));
    let pivot = |new: &Path, put: &Path| mount::pivot_root(&w.space(), &root, new, put);
    assert_eq!(
        pivot(&w.at("/outer/plain"), &w.at("/outer/new/old")),
        Err(Errno::EBUSY),
        "the same mount"
    );
    assert_eq!(pivot(&new, &w.at("/outer/plain")), Err(Errno::EBUSY));
    assert_eq!(
        pivot(&w.at("/outer/new/bin"), &w.at("/outer/new/old")),
        Err(Errno::EINVAL),
        "no top"
    );
    // What the new root is to hold must be below it, and it below the old one.
    w.make(&["/other"]);
    w.mount("/other");
    assert_eq!(pivot(&new, &w.at("/other")), Err(Errno::EINVAL));
    w.make(&["/other/old"]);
    assert_eq!(
        pivot(&w.at("/other"), &w.at("/other/old")),
        Err(Errno::EINVAL)
    );
    assert_eq!(pivot(&new, &w.at("/outer/new/old")), Ok(()));
    assert!(
        w.is_there("/outer/bin") && w.is_there("/outer/old/plain") && !w.is_there("/outer/plain")
    );
}

#[test]
fn what_is_read_only_is_so_for_all_of_a_file_system() {
    let w = World::new();
    w.make(&["/m", "/n"]);
    w.mount("/m");
    mount::bind(&w.space(), &w.at("/m"), &w.at("/n"), false).unwrap();
    let writes = |name: &str| w.open(name, OpenFlags::CREAT | OpenFlags::RDWR).map(drop);
    let shown = w.at("/m").mount().super_block().clone();
    let open = w.open("/n/f", OpenFlags::CREAT | OpenFlags::RDWR).unwrap();
    assert_eq!(
        shown.reconfigure(MS_RDONLY, ""),
        Err(Errno::EBUSY),
        "somebody writes through the other mount"
    );
    assert_eq!((writes("/m/a"), shown.flags() & MS_RDONLY), (Ok(()), 0));
    drop(open);
    assert_eq!(
        (
            shown.reconfigure(MS_RDONLY, ""),
            writes("/m/b"),
            writes("/n/b")
        ),
        (Ok(()), Err(Errno::EROFS), Err(Errno::EROFS))
    );
    assert_eq!(shown.reconfigure(0, "bogus"), Err(Errno::EINVAL));
    assert_eq!(
        (writes("/m/b"), shown.reconfigure(0, ""), writes("/m/b")),
        (Err(Errno::EROFS), Ok(()), Ok(()))
    );
    // One mount alone; a refused attempt leaves no trace, and one that failed is no writer.
    let n = w.at("/n").mount().clone();
    assert_eq!(
        (n.set_flags(MS_RDONLY), writes("/n/c"), writes("/m/c")),
        (Ok(()), Err(Errno::EROFS), Ok(()))
    );
    assert_eq!(
        (n.set_flags(0), n.set_flags(MS_RDONLY), n.set_flags(0)),
        (Ok(()), Ok(()), Ok(()))
    );
    let program = fs::DenyWriteAccess::acquire(&w.at("/n/c")).unwrap();
    assert_eq!(w.open("/n/c", OpenFlags::RDWR).err(), Some(Errno::ETXTBSY));
    assert_eq!(
        n.set_flags(MS_RDONLY),
        Ok(()),
        "who was refused does not write"
    );
    drop(program);
    let root = Cred::root();
    assert_eq!(
        fs::xattr::set(
            &w.at("/n/c"),
            b"user.a",
            b"x",
            fs::xattr::SetMode::Any,
            &root
        ),
        Err(Errno::EROFS)
    );
    assert_eq!(
        (
            ops::truncate(&w.at("/n/c"), 1, &root),
            ops::chmod(&w.at("/n/c"), 0o600, &root)
        ),
        (Err(Errno::EROFS), Err(Errno::EROFS))
    );
}

#[test]
fn the_root_can_at_most_be_protected() {
    let w = World::new();
    assert_eq!(w.unmount("/", UnmountFlags::EXPIRE), Err(Errno::EINVAL));
    assert_eq!(w.unmount("/", UnmountFlags::empty()), Ok(()));
    assert!(w.is_there("/"));
    assert_eq!(
        w.open("/f", OpenFlags::CREAT | OpenFlags::RDWR).err(),
        Some(Errno::EROFS)
    );
}

#[test]
fn what_is_in_use_stays_unless_it_is_detached() {
    let w = World::new();
    w.make(&["/m", "/p"]);
    assert_eq!(
        w.unmount("/p", UnmountFlags::empty()),
        Err(Errno::EINVAL),
        "nothing is mounted there"
    );
    w.mount("/m");
    w.make(&["/m/in"]);
    assert_eq!(
        w.unmount("/m/in", UnmountFlags::empty()),
        Err(Errno::EINVAL)
    );
    w.mount("/m/in");
    assert_eq!(
        w.unmount("/m", UnmountFlags::empty()),
        Err(Errno::EBUSY),
        "there is a mount on it"
    );
    assert_eq!(w.unmount("/m/in", UnmountFlags::empty()), Ok(()));
    let file = w.open("/m/f", OpenFlags::CREAT | OpenFlags::RDWR).unwrap();
    assert_eq!(w.unmount("/m", UnmountFlags::empty()), Err(Errno::EBUSY));
    assert_eq!(w.unmount("/m", UnmountFlags::DETACH), Ok(()));
    assert!(!w.is_there("/m/in"));
    assert_eq!(file.write(b"still"), Ok(5));
    // Marked first, and gone the second time; use takes the mark away.
    w.mount("/p");
    assert_eq!(
        w.unmount("/p", UnmountFlags::EXPIRE | UnmountFlags::FORCE),
        Err(Errno::EINVAL)
    );
    assert_eq!(w.unmount("/p", UnmountFlags::EXPIRE), Err(Errno::EAGAIN));
    w.make(&["/p/used"]);
    assert_eq!(w.unmount("/p", UnmountFlags::EXPIRE), Err(Errno::EAGAIN));
    assert!(w.is_there("/p/used"));
}
