//! Watches: what they report, in which order, and when they end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::inotify::{InotifyFile, MAX_QUEUED_EVENTS, inotify};
use fs::mount::{self, SuperBlock, UnmountFlags};
use fs::path::LookupFlags;
use fs::ramfs::RamFs;
use fs::{Cred, File, FsStruct, NewInodeKind, OpenFlags, Path, RenameFlags, ops};
use linux_raw_sys::general::*;

fn tree() -> FsStruct {
    FsStruct::new(mount::Namespace::new(
        RamFs::new("rootfs", None, 0o755),
        "rootfs",
    ))
}

fn lookup(context: &FsStruct, name: &str) -> Path {
    context
        .lookup_context(&Cred::root())
        .lookup(name.as_bytes(), LookupFlags::empty())
        .unwrap()
}

fn open(context: &FsStruct, name: &str, flags: OpenFlags) -> Arc<File> {
    ops::open(
        &context.lookup_context(&Cred::root()),
        name.as_bytes(),
        flags,
        0o644,
    )
    .unwrap()
}

fn watch(group: &File, path: &Path, mask: u32) -> Result<i32, Errno> {
    group
        .ops_as::<InotifyFile>()
        .unwrap()
        .group()
        .add(path.inode(), mask)
}

/// Events that can be read: descriptor, mask, cookie, name.
fn events(group: &File) -> Vec<(i32, u32, u32, String)> {
    let mut buf = vec![0; 1 << 20];
    let n = group.read(&mut buf).unwrap_or(0);
    let mut rest = &buf[..n];
    let mut events = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let (name, behind) = behind.split_at(word(12) as usize);
        let name = name.iter().copied().take_while(|&b| b != 0).collect();
        events.push((
            word(0).cast_signed(),
            word(4),
            word(8),
            String::from_utf8(name).unwrap(),
        ));
        rest = behind;
    }
    events
}

#[test]
fn marks_end_with_their_file_and_their_group() {
    let context = tree();
    let group = inotify(OpenFlags::NONBLOCK);
    let file = open(&context, "/file", OpenFlags::RDWR | OpenFlags::CREAT);
    let wd = watch(&group, file.path(), IN_ATTRIB | IN_DELETE_SELF).unwrap();
    ops::remove(
        &context.lookup_context(&Cred::root()),
        b"/file",
        ops::Removal::Unlink,
    )
    .unwrap();
    assert_eq!(events(&group), [(wd, IN_ATTRIB, 0, String::new())]);
    drop(file);
    assert_eq!(
        events(&group),
        [
            (wd, IN_DELETE_SELF, 0, String::new()),
            (wd, IN_IGNORED, 0, String::new())
        ]
    );
    let root = lookup(&context, "/");
    watch(&group, &root, IN_CREATE).unwrap();
    drop(group);
    open(&context, "/other", OpenFlags::RDWR | OpenFlags::CREAT);
}

#[test]
fn moves_have_two_halves() {
    let context = tree();
    let cred = Cred::root();
    let walk = context.lookup_context(&cred);
    for name in [&b"/a"[..], b"/b", b"/a/dir"] {
        ops::create_node(&walk, name, NewInodeKind::Directory, 0o755).unwrap();
    }
    let group = inotify(OpenFlags::NONBLOCK);
    let a = watch(&group, &lookup(&context, "/a"), IN_MOVE).unwrap();
    let b = watch(&group, &lookup(&context, "/b"), IN_MOVE).unwrap();
    let (from, to) = (
        walk.lookup_parent(b"/a/dir").unwrap(),
        walk.lookup_parent(b"/b/moved").unwrap(),
    );
    ops::rename(&walk, from, to, RenameFlags::empty()).unwrap();
    let found = events(&group);
    let cookie = found[0].2;
    assert_ne!(cookie, 0);
    let expected = [
        (a, IN_MOVED_FROM | IN_ISDIR, cookie, "dir".into()),
        (b, IN_MOVED_TO | IN_ISDIR, cookie, "moved".into()),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_full_queue_says_so_once() {
    let context = tree();
    let group = inotify(OpenFlags::NONBLOCK);
    let most = MAX_QUEUED_EVENTS.load(Ordering::Relaxed);
    watch(&group, &lookup(&context, "/"), IN_OPEN).unwrap();
    open(&context, "/a", OpenFlags::RDWR | OpenFlags::CREAT);
    open(&context, "/b", OpenFlags::RDWR | OpenFlags::CREAT);
    for n in 0..most + 10 {
        open(
            &context,
            if n % 2 == 0 { "/a" } else { "/b" },
            OpenFlags::RDONLY,
        );
    }
    let found = events(&group);
    assert_eq!(found.len(), most + 1);
    assert_eq!(found[most], (-1, IN_Q_OVERFLOW, 0, String::new()));
    assert_eq!(group.read(&mut [0; 64]), Err(Errno::EAGAIN));
}

#[test]
fn an_event_that_is_refused_memory_is_lost_and_that_is_said() {
    let context = tree();
    let group = inotify(OpenFlags::NONBLOCK);
    watch(&group, &lookup(&context, "/"), IN_DELETE).unwrap();
    for name in ["/a", "/b", "/c"] {
        open(&context, name, OpenFlags::RDWR | OpenFlags::CREAT);
    }
    let unlink = |name: &str| {
        let cred = Cred::root();
        let walk = context.lookup_context(&cred);
        ops::remove(&walk, name.as_bytes(), ops::Removal::Unlink).unwrap();
    };
    for name in ["/a", "/b"] {
        fallible::inject::set(1).unwrap();
        unlink(name);
        assert_eq!(fallible::inject::left(), 0, "the event asks");
        fallible::inject::clear();
    }
    unlink("/c");
    let said: Vec<_> = events(&group)
        .into_iter()
        .map(|(_, mask, _, name)| (mask, name))
        .collect();
    assert_eq!(
        said,
        [(IN_Q_OVERFLOW, String::new()), (IN_DELETE, "c".into())],
        "once for both"
    );
}

#[test]
fn an_unmounted_file_system_ends_its_marks() {
    let context = tree();
    let cred = Cred::root();
    ops::create_node(
        &context.lookup_context(&cred),
        b"/mnt",
        NewInodeKind::Directory,
        0o755,
    )
    .unwrap();
    mount::mount(
        &context.namespace(),
        SuperBlock::for_fs(RamFs::new("tmpfs", None, 0o755), 0),
        &lookup(&context, "/mnt"),
        "tmpfs",
        0,
    )
    .unwrap();
    let group = inotify(OpenFlags::NONBLOCK);
    let wd = watch(&group, &lookup(&context, "/mnt"), IN_CREATE).unwrap();
    mount::unmount(
        &context.namespace(),
        &lookup(&context, "/mnt"),
        &context.root(),
        UnmountFlags::DETACH,
    )
    .unwrap();
    assert_eq!(
        events(&group),
        [
            (wd, IN_UNMOUNT, 0, String::new()),
            (wd, IN_IGNORED, 0, String::new())
        ]
    );
}

/// How many files are watched.
fn watched() -> u64 {
    let mut found = None;
    fs::census(&mut |name, count| {
        if name == "watched_files" {
            found = Some(count);
        }
    });
    found.expect("they are counted")
}

#[test]
fn who_is_gone_watches_nothing() {
    let context = tree();
    let files: Vec<_> = (0..50)
        .map(|n| {
            open(
                &context,
                &format!("/{n}"),
                OpenFlags::RDWR | OpenFlags::CREAT,
            )
        })
        .collect();
    // Others of this program watch a file or two meanwhile.
    let about = |more: u64, before: u64| (before + more).abs_diff(watched()) < 20;
    let before = watched();
    let group = inotify(OpenFlags::NONBLOCK);
    let watches: Vec<_> = files
        .iter()
        .map(|file| watch(&group, file.path(), IN_OPEN).unwrap())
        .collect();
    assert!(about(50, before));
    drop(group);
    assert!(about(0, before), "the group has gone");
    let group = inotify(OpenFlags::NONBLOCK);
    let again: Vec<_> = files
        .iter()
        .map(|file| watch(&group, file.path(), IN_OPEN).unwrap())
        .collect();
    assert_eq!(again, watches);
    let marks = group.ops_as::<InotifyFile>().unwrap().group();
    for wd in again {
        marks.remove(wd).unwrap();
    }
    assert!(about(0, before), "the watches have");
    assert_eq!(marks.remove(1), Err(Errno::EINVAL));
    assert_eq!(events(&group).len(), 50, "each says so");
}

#[test]
fn masks_have_an_event_and_nothing_unknown() {
    assert_eq!(
        [IN_OPEN, IN_ALL_EVENTS | IN_ONESHOT, IN_ISDIR].map(fs::inotify::check_mask),
        [Ok(()); 3]
    );
    assert_eq!(
        [0, 1 << 20, IN_OPEN | 1 << 20].map(fs::inotify::check_mask),
        [Err(Errno::EINVAL); 3]
    );
}

#[test]
fn changed_attributes_are_told_and_only_what_was_asked_for() {
    let context = tree();
    let cred = Cred::root();
    let file = open(&context, "/f", OpenFlags::RDWR | OpenFlags::CREAT);
    let group = inotify(OpenFlags::NONBLOCK);
    let own = watch(&group, file.path(), IN_ATTRIB).unwrap();
    let directory = watch(&group, &lookup(&context, "/"), IN_ATTRIB | IN_MODIFY).unwrap();
    fs::xattr::set(file.path(), b"user.a", b"x", fs::xattr::SetMode::Any, &cred).unwrap();
    let attributes = [
        (directory, IN_ATTRIB, 0, "f".to_owned()),
        (own, IN_ATTRIB, 0, String::new()),
    ];
    let mut found = events(&group);
    found.sort_by_key(|event| std::cmp::Reverse(event.3.len()));
    assert_eq!(found, attributes);
    file.write(b"x").unwrap();
    assert_eq!(events(&group), [(directory, IN_MODIFY, 0, "f".to_owned())]);
    // More is asked for, or something else; a watch for one event ends with it.
    assert_eq!(watch(&group, file.path(), IN_MODIFY | IN_MASK_ADD), Ok(own));
    assert_eq!(
        watch(&group, file.path(), IN_OPEN | IN_MASK_CREATE),
        Err(Errno::EEXIST)
    );
    assert_eq!(
        watch(&group, &lookup(&context, "/"), IN_CREATE | IN_ONESHOT),
        Ok(directory)
    );
    file.write(b"y").unwrap();
    ops::chmod(file.path(), 0o600, &cred).unwrap();
    for name in ["/g", "/h"] {
        open(&context, name, OpenFlags::RDWR | OpenFlags::CREAT);
    }
    let told: Vec<_> = events(&group)
        .into_iter()
        .map(|(wd, mask, ..)| (wd, mask))
        .collect();
    assert_eq!(
        told,
        [
            (own, IN_MODIFY),
            (own, IN_ATTRIB),
            (directory, IN_CREATE),
            (directory, IN_IGNORED)
        ]
    );
}

#[test]
fn signals_of_directories_are_of_directories_only() {
    let context = tree();
    let file = open(&context, "/f", OpenFlags::RDWR | OpenFlags::CREAT);
    assert_eq!(
        fs::dnotify::fcntl_dirnotify(&file, 3, DN_CREATE),
        Err(Errno::ENOTDIR)
    );
    assert_eq!(
        fs::dnotify::fcntl_dirnotify(&open(&context, "/", OpenFlags::DIRECTORY), 3, DN_CREATE),
        Ok(())
    );
}
