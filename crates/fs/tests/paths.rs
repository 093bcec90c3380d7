//! Names: walking, making, linking, renaming, removing — on a RAM file system, as a process would.

use std::sync::Arc;

use abi::errno::Errno;
use fs::mount::{self, FileSystem as _, SuperBlock, UnmountFlags};
use fs::ops::{self, TimeUpdate};
use fs::path::{LookupContext, LookupFlags};
use fs::ramfs::RamFs;
use fs::{
    Access, Cred, File, FileType, FsStruct, NewInodeKind, OpenFlags, Path, RenameFlags, Whence,
};

struct World {
    fs: FsStruct,
    cred: Cred,
}

impl World {
    fn new() -> Self {
        let root = mount::Namespace::new(RamFs::new("tmpfs", None, 0o755), "none");
        Self {
            fs: FsStruct::new(root),
            cred: Cred::root(),
        }
    }

    fn as_user(&self, uid: u32) -> Self {
        let fs = FsStruct::new(self.fs.namespace());
        fs.set_root(self.fs.root());
        fs.set_cwd(self.fs.cwd());
        Self {
            fs,
            cred: Cred::user(uid, uid),
        }
    }

    fn mount(&self, fs: Arc<RamFs>, point: &Path, flags: u32) -> Result<(), Errno> {
        mount::mount(
            &self.fs.namespace(),
            SuperBlock::for_fs(fs, flags),
            point,
            "tmp",
            flags,
        )
    }

    fn unmount(&self, name: &str) -> Result<(), Errno> {
        mount::unmount(
            &self.fs.namespace(),
            &self.lookup(name)?,
            &self.fs.root(),
            UnmountFlags::empty(),
        )
    }

    fn walk(&self) -> LookupContext<'_> {
        self.fs.lookup_context(&self.cred)
    }

    fn open(&self, name: &str, flags: OpenFlags) -> Result<Arc<File>, Errno> {
        ops::open(&self.walk(), name.as_bytes(), flags.checked()?, 0o644)
    }

    fn write(&self, name: &str, text: &str) {
        let file = self
            .open(
                name,
                OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC,
            )
            .expect(name);
        assert_eq!(file.write(text.as_bytes()), Ok(text.len()));
    }

    fn read(&self, name: &str) -> Result<String, Errno> {
        let file = self.open(name, OpenFlags::RDONLY)?;
        let mut buf = [0; 1000];
        let n = file.read(&mut buf)?;
        Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
    }

    fn make(&self, name: &str, kind: NewInodeKind<'_>) -> Result<Path, Errno> {
        ops::create_node(&self.walk(), name.as_bytes(), kind, 0o755)
    }

    fn mkdir(&self, name: &str) -> Result<Path, Errno> {
        self.make(name, NewInodeKind::Directory)
    }

    fn symlink(&self, target: &str, name: &str) {
        self.make(name, NewInodeKind::Symlink(target.as_bytes()))
            .expect(name);
    }

    fn lookup(&self, name: &str) -> Result<Path, Errno> {
        self.walk().lookup(name.as_bytes(), LookupFlags::empty())
    }

    fn unlink(&self, name: &str) -> Result<(), Errno> {
        ops::remove(&self.walk(), name.as_bytes(), ops::Removal::Unlink)
    }

    fn rmdir(&self, name: &str) -> Result<(), Errno> {
        ops::remove(&self.walk(), name.as_bytes(), ops::Removal::Rmdir)
    }

    fn rename(&self, old: &str, new: &str) -> Result<(), Errno> {
        self.rename2(old, new, RenameFlags::empty())
    }

    fn rename2(&self, old: &str, new: &str, flags: RenameFlags) -> Result<(), Errno> {
        let walk = self.walk();
        ops::rename(
            &walk,
            walk.lookup_parent(old.as_bytes())?,
            walk.lookup_parent(new.as_bytes())?,
            flags,
        )
    }

    fn list(&self, name: &str) -> Vec<String> {
        let dir = self.open(name, OpenFlags::DIRECTORY).expect(name);
        let mut names = Vec::new();
        dir.readdir(&mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .expect(name);
        names
    }
}

fn text(path: &Path) -> String {
    String::from_utf8(path.to_bytes(None)).expect("names of this test are UTF-8")
}

fn err<T>(result: Result<T, Errno>) -> Option<Errno> {
    result.err()
}

#[test]
fn names_resolve_as_posix_has_it() {
    let w = World::new();
    w.mkdir("/a").unwrap();
    w.mkdir("a/b/").unwrap();
    w.write("/a/b/f", "hello");
    assert_eq!(w.read("//a///b/./../b/f").unwrap(), "hello");
    assert_eq!(w.read("/../../a/b/f").unwrap(), "hello");
    assert_eq!(text(&w.lookup("/a/b/../b/f").unwrap()), "/a/b/f");
    assert_eq!(err(w.lookup("")), Some(Errno::ENOENT));
    assert_eq!(err(w.lookup("/a/x/../b")), Some(Errno::ENOENT));
    assert_eq!(err(w.lookup("/a/b/f/")), Some(Errno::ENOTDIR));
    assert_eq!(err(w.lookup("/a/b/f/.")), Some(Errno::ENOTDIR));
    assert_eq!(err(w.lookup("/a/b/f/..")), Some(Errno::ENOTDIR));
    assert_eq!(
        err(w.lookup(&format!("/{}", "x".repeat(256)))),
        Some(Errno::ENAMETOOLONG)
    );
    assert_eq!(err(w.lookup(&"a/".repeat(3000))), Some(Errno::ENAMETOOLONG));
    w.fs.set_cwd(w.lookup("/a").unwrap());
    assert_eq!(w.read("b/f").unwrap(), "hello");
    assert_eq!(text(&w.lookup(".").unwrap()), "/a");
    assert_eq!(text(&w.lookup("..").unwrap()), "/");
}

#[test]
fn symbolic_links() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    w.write("/d/f", "x");
    w.symlink("d", "/rel");
    w.symlink("/d/f", "/abs");
    w.symlink("../abs", "/d/up");
    w.symlink("loop2", "/loop1");
    w.symlink("loop1", "/loop2");
    w.symlink("nowhere", "/dangling");
    assert_eq!(w.read("/rel/f").unwrap(), "x");
    assert_eq!(w.read("/d/up").unwrap(), "x");
    assert_eq!(
        w.lookup("/rel/").unwrap().inode().kind(),
        FileType::Directory
    );
    assert_eq!(
        w.walk()
            .lookup(b"/rel", LookupFlags::NOFOLLOW)
            .unwrap()
            .inode()
            .kind(),
        FileType::Symlink
    );
    // A slash behind a link asks for what it leads to, NOFOLLOW or not.
    assert_eq!(
        w.walk()
            .lookup(b"/rel/", LookupFlags::NOFOLLOW)
            .unwrap()
            .inode()
            .kind(),
        FileType::Directory
    );
    assert_eq!(err(w.lookup("/loop1")), Some(Errno::ELOOP));
    assert_eq!(err(w.lookup("/abs/")), Some(Errno::ENOTDIR));
    assert_eq!(err(w.open("/rel", OpenFlags::NOFOLLOW)), Some(Errno::ELOOP));
    assert!(
        w.open("/rel", OpenFlags::NOFOLLOW | OpenFlags::PATH)
            .is_ok()
    );
    // O_CREAT goes through a link that dangles; O_EXCL does not.
    assert_eq!(
        err(w.open(
            "/dangling",
            OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::RDWR
        )),
        Some(Errno::EEXIST)
    );
    w.write("/dangling", "made");
    assert_eq!(w.read("/nowhere").unwrap(), "made");
    for i in 0..45 {
        w.symlink(&format!("l{i}"), &format!("/l{}", i + 1));
    }
    w.write("/l0", "end");
    assert_eq!(w.read("/l40").unwrap(), "end");
    assert_eq!(err(w.read("/l41")), Some(Errno::ELOOP));
}

#[test]
fn open_flags() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    w.write("/f", "12345");
    assert_eq!(
        err(w.open("/new/", OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::EISDIR)
    );
    assert_eq!(err(w.open("/d", OpenFlags::RDWR)), Some(Errno::EISDIR));
    assert_eq!(err(w.open("/d", OpenFlags::CREAT)), Some(Errno::EISDIR));
    assert_eq!(
        err(w.open("/d/.", OpenFlags::CREAT | OpenFlags::EXCL)),
        Some(Errno::EEXIST)
    );
    assert_eq!(
        err(w.open("/f", OpenFlags::DIRECTORY)),
        Some(Errno::ENOTDIR)
    );
    assert_eq!(
        err(w.open("/g", OpenFlags::DIRECTORY | OpenFlags::CREAT)),
        Some(Errno::EINVAL)
    );
    assert_eq!(
        err(w.open("/f", OpenFlags::CREAT | OpenFlags::EXCL)),
        Some(Errno::EEXIST)
    );
    let path_only = w.open("/f", OpenFlags::PATH).unwrap();
    assert_eq!(path_only.read(&mut [0; 4]), Err(Errno::EBADF));
    let read_only = w.open("/f", OpenFlags::RDONLY).unwrap();
    assert_eq!(read_only.write(b"x"), Err(Errno::EBADF));
    let appender = w.open("/f", OpenFlags::WRONLY | OpenFlags::APPEND).unwrap();
    appender.write(b"67").unwrap();
    appender.seek(Whence::Set, 0).unwrap();
    appender.write(b"89").unwrap();
    assert_eq!(w.read("/f").unwrap(), "123456789");
    let tmp = w.open("/d", OpenFlags::TMPFILE | OpenFlags::RDWR).unwrap();
    tmp.write(b"unnamed").unwrap();
    assert_eq!(tmp.metadata().nlink, 0);
    ops::link(tmp.path(), &w.walk(), b"/d/named").unwrap();
    assert_eq!(w.read("/d/named").unwrap(), "unnamed");
}

#[test]
fn hard_links_and_unlink_while_open() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    w.write("/a", "text");
    let a = w.lookup("/a").unwrap();
    ops::link(&a, &w.walk(), b"/d/b").unwrap();
    assert_eq!(err(ops::link(&a, &w.walk(), b"/d/b")), Some(Errno::EEXIST));
    assert_eq!(
        err(ops::link(&w.lookup("/d").unwrap(), &w.walk(), b"/dd")),
        Some(Errno::EPERM)
    );
    assert_eq!(a.metadata().nlink, 2);
    let open = w.open("/a", OpenFlags::RDWR).unwrap();
    w.unlink("/a").unwrap();
    assert_eq!(err(w.lookup("/a")), Some(Errno::ENOENT));
    assert_eq!(text(open.path()), "/a (deleted)");
    w.unlink("/d/b").unwrap();
    assert_eq!(open.metadata().nlink, 0);
    let mut buf = [0; 4];
    assert_eq!(open.read(&mut buf), Ok(4));
    assert_eq!(&buf, b"text");
    assert_eq!(err(w.unlink("/d")), Some(Errno::EISDIR));
    assert_eq!(err(w.unlink("/")), Some(Errno::EISDIR));
}

#[test]
fn directories_come_and_go() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    assert_eq!(err(w.mkdir("/d")), Some(Errno::EEXIST));
    assert_eq!(err(w.mkdir("/")), Some(Errno::EEXIST));
    assert_eq!(err(w.mkdir("/x/y")), Some(Errno::ENOENT));
    w.mkdir("/d/sub").unwrap();
    assert_eq!(w.lookup("/d").unwrap().metadata().nlink, 3);
    assert_eq!(err(w.rmdir("/d")), Some(Errno::ENOTEMPTY));
    assert_eq!(err(w.rmdir("/d/sub/.")), Some(Errno::EINVAL));
    assert_eq!(err(w.rmdir("/d/sub/..")), Some(Errno::ENOTEMPTY));
    assert_eq!(err(w.rmdir("/")), Some(Errno::EBUSY));
    let gone = w.lookup("/d/sub").unwrap();
    w.rmdir("/d/sub/").unwrap();
    assert_eq!(text(&gone), "/d/sub (deleted)");
    // Nothing can be made in a directory that was removed, even from within.
    w.fs.set_cwd(gone);
    assert_eq!(err(w.mkdir("x")), Some(Errno::ENOENT));
    assert_eq!(
        err(w.open("x", OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::ENOENT)
    );
    assert_eq!(text(&w.lookup("..").unwrap()), "/d");
}

#[test]
fn rename_replaces_and_refuses() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    w.mkdir("/e").unwrap();
    w.write("/f", "f");
    w.write("/g", "g");
    w.rename("/f", "/g").unwrap();
    assert_eq!(w.read("/g").unwrap(), "f");
    assert_eq!(err(w.lookup("/f")), Some(Errno::ENOENT));
    // Onto itself, and onto another name of itself: nothing happens.
    w.rename("/g", "/g").unwrap();
    ops::link(&w.lookup("/g").unwrap(), &w.walk(), b"/g2").unwrap();
    w.rename("/g", "/g2").unwrap();
    assert_eq!(
        (w.read("/g").unwrap(), w.read("/g2").unwrap()),
        ("f".into(), "f".into())
    );
    // Kinds must agree.
    assert_eq!(err(w.rename("/g", "/d")), Some(Errno::EISDIR));
    assert_eq!(err(w.rename("/d", "/g")), Some(Errno::ENOTDIR));
    assert_eq!(err(w.rename("/g/", "/h")), Some(Errno::ENOTDIR));
    assert_eq!(err(w.rename("/g", "/h/")), Some(Errno::ENOTDIR));
    // A directory replaces an empty one only.
    w.write("/e/full", "");
    assert_eq!(err(w.rename("/d", "/e")), Some(Errno::ENOTEMPTY));
    w.unlink("/e/full").unwrap();
    w.rename("/d", "/e/").unwrap();
    assert_eq!(err(w.lookup("/d")), Some(Errno::ENOENT));
    // Not into itself, nor over what is above it.
    w.mkdir("/e/x").unwrap();
    w.mkdir("/e/x/y").unwrap();
    assert_eq!(err(w.rename("/e", "/e/x/z")), Some(Errno::EINVAL));
    assert_eq!(err(w.rename("/e/x/y", "/e")), Some(Errno::ENOTEMPTY));
    assert_eq!(err(w.rename("/e/.", "/q")), Some(Errno::EBUSY));
    assert_eq!(err(w.rename("/nothing", "/q")), Some(Errno::ENOENT));
    // Flags.
    assert_eq!(
        err(w.rename2("/g", "/g2", RenameFlags::NOREPLACE)),
        Some(Errno::EEXIST)
    );
    w.write("/one", "1");
    w.write("/e/two", "2");
    w.rename2("/one", "/e/two", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (w.read("/one").unwrap(), w.read("/e/two").unwrap()),
        ("2".into(), "1".into())
    );
    w.rename2("/e/x", "/one", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(w.read("/e/x").unwrap(), "2");
    assert_eq!(w.list("/one"), [".", "..", "y"]);
    assert_eq!(
        err(w.rename2("/g", "/none", RenameFlags::EXCHANGE)),
        Some(Errno::ENOENT)
    );
}

#[test]
fn a_directory_in_use_moves_with_its_name() {
    let w = World::new();
    w.mkdir("/a").unwrap();
    w.mkdir("/a/b").unwrap();
    w.mkdir("/c").unwrap();
    w.fs.set_cwd(w.lookup("/a/b").unwrap());
    let before = w.lookup("/").unwrap().metadata().nlink;
    w.rename("/a", "/c/moved").unwrap();
    assert_eq!(text(&w.fs.cwd()), "/c/moved/b");
    assert_eq!(text(&w.lookup("../..").unwrap()), "/c");
    assert_eq!(w.lookup("/").unwrap().metadata().nlink, before - 1);
    w.write("here", "x");
    assert_eq!(w.read("/c/moved/b/here").unwrap(), "x");
}

#[test]
fn permissions() {
    let w = World::new();
    let root_only = w.mkdir("/secret").unwrap();
    ops::chmod(&root_only, 0o700, &w.cred).unwrap();
    w.write("/secret/f", "s");
    w.write("/readable", "r");
    let user = w.as_user(1000);
    assert_eq!(err(user.lookup("/secret/f")), Some(Errno::EACCES));
    assert_eq!(user.read("/readable").unwrap(), "r");
    assert_eq!(
        err(user.open("/readable", OpenFlags::RDWR)),
        Some(Errno::EACCES)
    );
    assert_eq!(
        err(user.open("/readable", OpenFlags::TRUNC)),
        Some(Errno::EACCES)
    );
    assert_eq!(err(user.mkdir("/x")), Some(Errno::EACCES));
    assert_eq!(err(user.unlink("/readable")), Some(Errno::EACCES));
    // The sticky bit: only owners remove.
    let tmp = w.mkdir("/tmp").unwrap();
    ops::chmod(&tmp, 0o1777, &w.cred).unwrap();
    user.write("/tmp/mine", "m");
    let other = w.as_user(1001);
    assert_eq!(err(other.unlink("/tmp/mine")), Some(Errno::EPERM));
    assert_eq!(
        err(other.rename("/tmp/mine", "/tmp/his")),
        Some(Errno::EPERM)
    );
    user.rename("/tmp/mine", "/tmp/still-mine").unwrap();
    let file = user.lookup("/tmp/still-mine").unwrap();
    assert_eq!(file.metadata().uid, 1000);
    assert_eq!(
        err(ops::chown(&file, Some(1001), None, &user.cred)),
        Some(Errno::EPERM)
    );
    assert_eq!(
        err(ops::chmod(&file, 0o777, &other.cred)),
        Some(Errno::EPERM)
    );
    assert!(ops::chown(&file, Some(1000), Some(1000), &user.cred).is_ok());
    // A new owner takes set-id bits away, and so does a write.
    ops::chmod(&file, 0o4755, &user.cred).unwrap();
    ops::chown(&file, Some(0), Some(0), &w.cred).unwrap();
    assert_eq!(file.metadata().mode, 0o755);
    ops::chmod(&file, 0o6755, &w.cred).unwrap();
    w.write("/tmp/still-mine", "new");
    assert_eq!(file.metadata().mode, 0o755);
    // A set-group-id directory hands its group down.
    let shared = w.mkdir("/shared").unwrap();
    ops::chown(&shared, None, Some(77), &w.cred).unwrap();
    ops::chmod(&shared, 0o2777, &w.cred).unwrap();
    user.write("/shared/f", "");
    assert_eq!(w.lookup("/shared/f").unwrap().metadata().gid, 77);
    assert_eq!(
        user.mkdir("/shared/d").unwrap().metadata().mode & 0o2000,
        0o2000
    );
    // Times: anybody who may write may say "now", only the owner anything else.
    ops::chmod(&file, 0o666, &w.cred).unwrap();
    assert!(ops::set_times(&file, TimeUpdate::Now, TimeUpdate::Now, &user.cred).is_ok());
    assert_eq!(
        ops::set_times(&file, TimeUpdate::Now, TimeUpdate::Omit, &user.cred),
        Err(Errno::EPERM)
    );
    assert!(user.cred.check(&file.metadata(), Access::WRITE).is_ok());
}

#[test]
fn listings_survive_changes() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    for i in 0..100 {
        w.write(&format!("/d/{i}"), "");
    }
    let dir = w.open("/d", OpenFlags::DIRECTORY).unwrap();
    let mut seen = Vec::new();
    loop {
        let mut batch = Vec::new();
        dir.readdir(&mut |entry| {
            batch.push(String::from_utf8_lossy(entry.name).into_owned());
            batch.len() < 7
        })
        .unwrap();
        // The entry that was refused comes again.
        let full = batch.len() == 7;
        if full {
            batch.pop();
        }
        // `rm -r`: what was listed is removed before the listing goes on.
        for name in batch.iter().filter(|n| !n.starts_with('.')) {
            w.unlink(&format!("/d/{name}")).unwrap();
        }
        seen.extend(batch);
        if !full {
            break;
        }
    }
    assert_eq!(seen.len(), 102);
    assert_eq!(w.list("/d"), [".", ".."]);
}

#[test]
fn contents() {
    let w = World::new();
    let file = w.open("/f", OpenFlags::CREAT | OpenFlags::RDWR).unwrap();
    // Sparse.
    assert_eq!(file.write_at(1 << 40, b"far"), Ok(3));
    assert_eq!(file.metadata().size, (1 << 40) + 3);
    assert_eq!(file.metadata().blocks, 8);
    let mut buf = [1; 8];
    assert_eq!(file.read_at(5000, &mut buf), Ok(8));
    assert_eq!(buf, [0; 8]);
    assert_eq!(file.seek(Whence::Data, 10), Ok(1 << 40));
    assert_eq!(file.seek(Whence::Hole, 10), Ok(10));
    assert_eq!(file.seek(Whence::Hole, 1 << 40), Ok((1 << 40) + 3));
    // What was cut reads as zeros when the file grows again.
    let inode = file.inode();
    inode.truncate(0).unwrap();
    file.write_at(0, b"abcdef").unwrap();
    inode.truncate(3).unwrap();
    inode.truncate(6).unwrap();
    let mut buf = [1; 6];
    file.read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"abc\0\0\0");
    // Holes are punched at any boundary.
    let pattern: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8 + 1).collect();
    file.write_at(0, &pattern).unwrap();
    inode.fallocate(3, 5000, 10_000).unwrap();
    let mut back = vec![0; 20_000];
    assert_eq!(file.read_at(0, &mut back), Ok(20_000));
    assert_eq!(back[..5000], pattern[..5000]);
    assert!(back[5000..15_000].iter().all(|&b| b == 0));
    assert_eq!(back[15_000..], pattern[15_000..]);
    inode.fallocate(3, 100, 50).unwrap();
    assert_eq!(file.write_at(u64::MAX - 5, b"x"), Err(Errno::EFBIG));
    assert_eq!(file.seek(Whence::Set, -1), Err(Errno::EINVAL));
    assert_eq!(file.seek(Whence::End, 5), Ok(20_005));
    assert_eq!(file.read(&mut buf), Ok(0));
}

#[test]
fn a_limit_is_kept() {
    let limited = RamFs::new("tmpfs", Some(4), 0o755);
    let root = mount::Namespace::new(limited.clone(), "none");
    let w = World {
        fs: FsStruct::new(root),
        cred: Cred::root(),
    };
    let file = w.open("/f", OpenFlags::CREAT | OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&[7; 20_000]), Ok(16_384));
    assert_eq!(file.write(b"x"), Err(Errno::ENOSPC));
    assert_eq!(file.inode().fallocate(0, 0, 20_000), Err(Errno::ENOSPC));
    assert_eq!(limited.statfs().blocks_free, 0);
    drop(file);
    w.unlink("/f").unwrap();
    assert_eq!(limited.statfs().blocks_free, 4);
}

#[test]
fn mounts_are_crossed_both_ways() {
    let w = World::new();
    w.mkdir("/mnt").unwrap();
    w.write("/mnt/under", "");
    let point = w.lookup("/mnt").unwrap();
    w.mount(RamFs::new("tmpfs", None, 0o755), &point, 0)
        .unwrap();
    assert_eq!(err(w.lookup("/mnt/under")), Some(Errno::ENOENT));
    w.mkdir("/mnt/inner").unwrap();
    assert_eq!(text(&w.lookup("/mnt/inner").unwrap()), "/mnt/inner");
    assert_eq!(text(&w.lookup("/mnt/inner/../..").unwrap()), "/");
    assert_eq!(err(w.rmdir("/mnt")), Some(Errno::EBUSY));
    assert_eq!(err(w.rename("/mnt", "/m2")), Some(Errno::EBUSY));
    w.write("/f", "");
    assert_eq!(err(w.rename("/f", "/mnt/f")), Some(Errno::EXDEV));
    assert_eq!(
        err(ops::link(&w.lookup("/f").unwrap(), &w.walk(), b"/mnt/f")),
        Some(Errno::EXDEV)
    );
    // A bind mount shows the same files.
    w.mkdir("/also").unwrap();
    mount::bind(
        &w.fs.namespace(),
        &w.lookup("/mnt/inner").unwrap(),
        &w.lookup("/also").unwrap(),
        false,
    )
    .unwrap();
    w.write("/also/f", "bound");
    assert_eq!(w.read("/mnt/inner/f").unwrap(), "bound");
    assert_eq!(text(&w.lookup("/also/f").unwrap()), "/also/f");
    // In use: by a path that somebody holds.
    let held = w.lookup("/mnt/inner").unwrap();
    assert_eq!(err(w.unmount("/mnt")), Some(Errno::EBUSY));
    drop(held);
    w.unmount("/also").unwrap();
    w.unmount("/mnt").unwrap();
    assert!(w.lookup("/mnt/under").is_ok());
    // Read-only.
    w.mount(
        RamFs::new("tmpfs", None, 0o777),
        &w.lookup("/mnt").unwrap(),
        mount::MS_RDONLY,
    )
    .unwrap();
    assert_eq!(err(w.mkdir("/mnt/x")), Some(Errno::EROFS));
    assert_eq!(
        err(w.open("/mnt/x", OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::EROFS)
    );
}

#[test]
fn a_root_cannot_be_left() {
    let w = World::new();
    w.mkdir("/jail").unwrap();
    w.mkdir("/jail/in").unwrap();
    w.write("/outside", "");
    w.symlink("/outside", "/jail/escape");
    let jail = w.lookup("/jail").unwrap();
    let outside = w.lookup("/outside").unwrap();
    w.fs.set_root(jail.clone());
    w.fs.set_cwd(jail.clone());
    // What links of /proc say of it, and what is no path at all below the root.
    assert_eq!(outside.to_bytes(Some(&jail)), b"/outside");
    assert_eq!(outside.to_bytes_below(&jail), None);
    assert_eq!(err(w.lookup("../../outside")), Some(Errno::ENOENT));
    assert_eq!(err(w.lookup("escape")), Some(Errno::ENOENT));
    assert_eq!(
        w.lookup("/in").unwrap().to_bytes(Some(&w.fs.root())),
        b"/in"
    );
}

#[test]
fn a_tree_of_any_depth_is_taken_down_without_recursion() {
    let w = World::new();
    for _ in 0..100_000 {
        w.fs.set_cwd(w.mkdir("d").unwrap());
    }
    w.fs.set_cwd(w.fs.root());
    drop(w);
}

#[test]
fn names_and_paths_may_be_so_long() {
    let w = World::new();
    let longest = "x".repeat(255);
    w.write(&format!("/{longest}"), "long");
    assert_eq!(w.read(&format!("/{longest}")).unwrap(), "long");
    assert_eq!(
        err(w.open(&format!("/{longest}x"), OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::ENAMETOOLONG)
    );
    assert_eq!(
        err(w.mkdir(&format!("/{longest}x"))),
        Some(Errno::ENAMETOOLONG)
    );
    assert_eq!(err(w.mkdir(&format!("/{}", "y".repeat(255)))), None);
    // With the final NUL 4096 bytes.
    let path = |length: usize| format!("{}{longest}", "/".repeat(length - 255));
    assert_eq!(
        (w.read(&path(4095)).is_ok(), err(w.lookup(&path(4096)))),
        (true, Some(Errno::ENAMETOOLONG))
    );
}

#[test]
fn what_may_be_searched_and_made_is_asked_of_each_directory() {
    let w = World::new();
    w.mkdir("/closed").unwrap();
    w.write("/closed/f", "x");
    let user = w.as_user(1000);
    ops::chmod(&w.lookup("/closed").unwrap(), 0o666, &w.cred).unwrap();
    // It can be written to, and not be gone through.
    assert_eq!(
        err(user.open("/closed/new", OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::EACCES)
    );
    assert_eq!(
        err(user.open("/closed/f", OpenFlags::CREAT | OpenFlags::RDONLY)),
        Some(Errno::EACCES)
    );
    assert_eq!(err(user.lookup("/closed/..")), Some(Errno::EACCES));
    assert_eq!(
        err(user.open("/closed", OpenFlags::TMPFILE | OpenFlags::RDWR)),
        Some(Errno::EACCES)
    );
    ops::chmod(&w.lookup("/closed").unwrap(), 0o555, &w.cred).unwrap();
    assert_eq!(
        err(user.open("/closed/new", OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::EACCES),
        "it cannot be written to"
    );
    assert_eq!(
        err(user.open("/closed", OpenFlags::TMPFILE | OpenFlags::RDWR)),
        Some(Errno::EACCES)
    );
    assert_eq!(user.read("/closed/f").unwrap(), "x");
}

#[test]
fn what_is_no_directory_has_nothing_in_it() {
    let w = World::new();
    w.write("/f", "x");
    w.symlink("f", "/l");
    for name in ["/f/x", "/f/..", "/l/x", "/f/x/y"] {
        assert_eq!(err(w.lookup(name)), Some(Errno::ENOTDIR), "{name}");
    }
    assert_eq!(
        err(w.open("/f/x", OpenFlags::CREAT | OpenFlags::RDWR)),
        Some(Errno::ENOTDIR)
    );
    let lookup = |name: &str, flags| w.walk().lookup(name.as_bytes(), flags);
    assert_eq!(
        err(lookup("/f", LookupFlags::DIRECTORY)),
        Some(Errno::ENOTDIR)
    );
    assert_eq!(
        err(lookup("/l", LookupFlags::DIRECTORY)),
        Some(Errno::ENOTDIR)
    );
    assert!(lookup("/", LookupFlags::DIRECTORY).is_ok());
    // Sockets and block devices have names, and nobody to open.
    w.make("/s", NewInodeKind::Socket).unwrap();
    assert_eq!(err(w.open("/s", OpenFlags::RDWR)), Some(Errno::ENXIO));
    assert!(w.lookup("/s").unwrap().inode().clone().backing().is_err());
    let directory = w.lookup("/").unwrap().inode().clone();
    assert_eq!(err(directory.backing()), Some(Errno::ENODEV));
}

/// A file of which nothing can be changed.
struct Fixed;

impl fs::Inode for Fixed {
    fn metadata(&self) -> fs::Metadata {
        fs::Metadata::generated(1, 1, FileType::Regular, 0o444)
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }
}

#[test]
fn owners_that_cannot_be_changed_are_an_error() {
    let sealed = RamFs::memfd("sealed", 0o4755, 0);
    sealed
        .inode()
        .add_seals(linux_raw_sys::general::F_SEAL_EXEC)
        .unwrap();
    let root = Cred::root();
    assert_eq!(
        ops::chmod(&sealed, 0o644, &root),
        Err(Errno::EPERM),
        "it stays executable"
    );
    assert_eq!(
        (
            ops::chmod(&sealed, 0o711, &root),
            ops::chown(&sealed, Some(5), None, &root)
        ),
        (Ok(()), Ok(()))
    );
    let fixed = Path::pseudo(Arc::new(Fixed), "fixed");
    assert_eq!(ops::chown(&fixed, Some(5), None, &root), Err(Errno::EPERM));
    assert_eq!(
        (
            ops::chmod(&fixed, 0o600, &root),
            ops::set_times(&fixed, TimeUpdate::Now, TimeUpdate::Now, &root)
        ),
        (Err(Errno::EPERM), Err(Errno::EPERM))
    );
}

#[test]
fn a_name_that_is_mounted_on_elsewhere_can_be_removed() {
    let w = World::new();
    w.mkdir("/d").unwrap();
    let (other, _) = w.fs.namespace().copy::<0>([]);
    let theirs = FsStruct::new(other.clone());
    let before = other.mounts().len();
    let point = theirs
        .lookup_context(&w.cred)
        .lookup(b"/d", LookupFlags::empty())
        .unwrap();
    mount::mount(
        &other,
        SuperBlock::for_fs(RamFs::new("tmpfs", None, 0o755), 0),
        &point,
        "tmp",
        0,
    )
    .unwrap();
    drop(point);
    assert_eq!(other.mounts().len(), before + 1);
    w.rmdir("/d").unwrap();
    assert_eq!(
        other.mounts().len(),
        before,
        "what was mounted there goes with it"
    );
}
