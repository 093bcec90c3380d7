//! Names, attributes and lists of directories, through the VFS.

use abi::errno::Errno;
use fs::acl::AclKind;
use fs::ops::{self, Removal};
use fs::xattr::{self, SetMode};
use fs::{Access, Cred, NewInodeKind, OpenFlags, SetAttr};

use crate::disk::{World, alone, contents, mke2fs};

fn listed(world: &World, name: &str) -> Vec<String> {
    let dir = world.open(name, OpenFlags::RDONLY).unwrap();
    let mut names = Vec::new();
    dir.readdir(&mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })
    .unwrap();
    names.sort();
    names
}

#[test]
fn names_are_made_moved_linked_and_removed() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let walk = world.walk();
    let rename = |from: &str, to: &str| {
        let parent = |name: &str| walk.lookup_parent(name.as_bytes()).unwrap();
        let flags = fs::RenameFlags::empty();
        ops::rename(&walk, parent(from), parent(to), flags)
    };
    ops::create_node(&walk, b"/mnt/dir", NewInodeKind::Directory, 0o750).unwrap();
    ops::create_node(
        &walk,
        b"/mnt/link",
        NewInodeKind::Symlink(b"dir/file"),
        0o777,
    )
    .unwrap();
    ops::create_node(&walk, b"/mnt/pipe", NewInodeKind::Fifo, 0o600).unwrap();
    let file = world.create("/mnt/dir/file").unwrap();
    file.write(b"contents").unwrap();
    let linked = world.open("/mnt/link", OpenFlags::RDONLY).unwrap();
    assert_eq!(contents(&linked), b"contents");
    ops::link(file.path(), &walk, b"/mnt/second").unwrap();
    assert_eq!(file.metadata().nlink, 2);
    rename("/mnt/second", "/mnt/dir/third").unwrap();
    let other = world.create("/mnt/other").unwrap();
    other.write(b"other").unwrap();
    rename("/mnt/dir/third", "/mnt/other").unwrap();
    assert_eq!(other.metadata().nlink, 0);
    assert_eq!(contents(&other), b"other", "as long as it is open");
    ops::remove(&walk, b"/mnt/dir/file", Removal::Unlink).unwrap();
    assert_eq!(file.metadata().nlink, 1);
    assert_eq!(
        ops::remove(&walk, b"/mnt/dir", Removal::Unlink),
        Err(Errno::EISDIR)
    );
    ops::create_node(&walk, b"/mnt/dir/sub", NewInodeKind::Directory, 0o755).unwrap();
    assert_eq!(
        ops::remove(&walk, b"/mnt/dir", Removal::Rmdir),
        Err(Errno::ENOTEMPTY)
    );
    assert_eq!(world.at("/mnt/dir").unwrap().metadata().nlink, 3);
    rename("/mnt/dir/sub", "/mnt/sub").unwrap();
    assert_eq!(world.at("/mnt/dir").unwrap().metadata().nlink, 2);
    ops::remove(&walk, b"/mnt/dir", Removal::Rmdir).unwrap();
    let names = listed(&world, "/mnt");
    let wanted = [".", "..", "link", "lost+found", "other", "pipe", "sub"];
    assert_eq!(names, wanted);
    drop((file, linked, other));
    world.finish();
}

#[test]
fn a_listing_in_pieces_is_whole_while_names_come_and_go() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&["-b", "1024"], 8 << 20));
    let walk = world.walk();
    let name = |n: u32| format!("/mnt/name-{n}");
    (0..700).for_each(|n| drop(world.create(&name(n)).unwrap()));
    let dir = world.open("/mnt", OpenFlags::RDONLY).unwrap();
    let mut names = Vec::new();
    for turn in 0.. {
        let mut left = 50;
        let before = names.len();
        dir.readdir(&mut |entry| {
            if left > 0 {
                names.push(entry.name.to_vec());
            }
            left -= 1;
            left >= 0
        })
        .unwrap();
        if names.len() == before {
            break;
        }
        let odd = 2 * turn + 1;
        if odd < 700 {
            ops::remove(&walk, name(odd).as_bytes(), Removal::Unlink).unwrap();
        }
        drop(world.create(&format!("/mnt/new-{turn}")).unwrap());
    }
    for n in (0..700).step_by(2) {
        let text = format!("name-{n}").into_bytes();
        assert_eq!(names.iter().filter(|it| **it == text).count(), 1, "{n}");
    }
    drop(dir);
    world.finish();
}

#[test]
fn attributes_and_lists_stay() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let file = world.create("/mnt/file").unwrap();
    let root = Cred::root();
    let path = file.path().clone();
    xattr::set(&path, b"user.colour", b"grey", SetMode::Any, &root).unwrap();
    // Mode 0640, and user 7 may read and write.
    let list: Vec<u8> = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 6, 0, 7, 0, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 6, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    let access = AclKind::Access.xattr();
    xattr::set(&path, access, &list, SetMode::Any, &root).unwrap();
    let time = fs::Timestamp { sec: 77, nsec: 5 };
    let change = SetAttr {
        uid: Some(100_000),
        gid: Some(5),
        mtime: Some(time),
        ..SetAttr::default()
    };
    file.inode().set_attr(&change).unwrap();
    drop((file, path));
    let world = World::mounted(world.finish());
    let path = world.at("/mnt/file").unwrap();
    let meta = path.metadata();
    assert_eq!((meta.uid, meta.gid, meta.mtime), (100_000, 5, time));
    assert_eq!(meta.mode, 0o660);
    assert_eq!(xattr::get(&path, b"user.colour", &root).unwrap(), b"grey");
    assert_eq!(xattr::get(&path, access, &root).unwrap(), list);
    let may = |uid, want| Cred::user(uid, 99).check_inode(&**path.inode(), want);
    assert_eq!(may(7, Access::WRITE), Ok(()));
    assert_eq!(may(8, Access::READ), Err(Errno::EACCES));
    assert_eq!(
        xattr::list(&path, &root),
        b"system.posix_acl_access\0user.colour\0"
    );
    drop(path);
    world.finish();
}

#[test]
fn a_file_made_without_a_name_gets_one_or_goes() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let free = || world.at("/mnt").unwrap().mount().fs().statfs().files_free;
    let before = free();
    let flags = OpenFlags::RDWR | OpenFlags::TMPFILE | OpenFlags::DIRECTORY;
    drop(world.open("/mnt", flags).unwrap());
    assert_eq!(free(), before);
    let file = world.open("/mnt", flags).unwrap();
    file.write(b"named").unwrap();
    let walk = world.walk();
    ops::link(file.path(), &walk, b"/mnt/name").unwrap();
    drop(file);
    let world = World::mounted(world.finish());
    let file = world.open("/mnt/name", OpenFlags::RDONLY).unwrap();
    assert_eq!(contents(&file), b"named");
    drop(file);
    world.finish();
}
