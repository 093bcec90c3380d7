//! What is written passes `e2fsck -fn`, and is what debugfs sees.

mod common;

use std::sync::Arc;

use abi::errno::Errno;
use common::{Disk, new};
use ext4::{
    Attributes, Ext4, FileType, NewKind, Options, ROOT, RenameMode, Renamed, SetMode, Timestamp,
    Unlinked,
};

/// Kinds of file systems, by what `mkfs.ext4` is told.
const KINDS: [&[&str]; 5] = [
    &["-b", "4096"],
    &["-b", "1024", "-g", "2048", "-J", "size=1"],
    &["-b", "1024", "-O", "^has_journal"],
    &[
        "-b",
        "2048",
        "-I",
        "128",
        "-O",
        "^metadata_csum,^64bit,uninit_bg",
    ],
    &[
        "-b",
        "4096",
        "-O",
        "^dir_index,^flex_bg,^metadata_csum,^64bit",
    ],
];

fn on_each(kib: u64, test: impl Fn(&mut Ext4, &Arc<Disk>)) {
    for args in KINDS {
        let disk = Disk::new(common::mkfs(kib, args));
        let mut fs = common::mount(&disk);
        test(&mut fs, &disk);
        let before = fs.statfs();
        fs.unmount().expect("unmount");
        common::assert_clean(&disk.bytes(), &format!("{args:?}"));
        let fs = common::mount(&disk);
        let after = fs.statfs();
        assert_eq!(before, after);
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let next = |value: u64| value.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17);
    let mut value = seed + 1;
    std::iter::repeat_with(|| {
        value = next(value + 1);
        value as u8
    })
    .take(len)
    .collect()
}

#[test]
fn an_empty_mount_and_unmount_leave_a_clean_file_system() {
    on_each(8 * 1024, |_, _| {});
}

#[test]
fn files_of_all_kinds_are_made_and_removed() {
    on_each(8 * 1024, |fs, _| {
        let dir = fs
            .create(ROOT, b"dir", &new(NewKind::Directory))
            .expect("mkdir");
        let long = [b'x'; 500];
        let kinds = [
            (NewKind::Regular, FileType::Regular),
            (NewKind::Directory, FileType::Directory),
            (NewKind::Symlink(b"short"), FileType::Symlink),
            (NewKind::Symlink(&long), FileType::Symlink),
            (NewKind::Fifo, FileType::Fifo),
            (NewKind::Socket, FileType::Socket),
            (NewKind::Char(1, 3), FileType::Char),
            (NewKind::Block(259, 70_000), FileType::Block),
        ];
        for (index, (kind, expected)) in kinds.into_iter().enumerate() {
            let name = format!("file {index}");
            let ino = fs.create(dir, name.as_bytes(), &new(kind)).expect("a file");
            assert_eq!(fs.lookup(dir, name.as_bytes()), Ok(ino));
            assert_eq!(
                fs.create(dir, name.as_bytes(), &new(kind)),
                Err(Errno::EEXIST)
            );
            let stat = fs.stat(ino).expect("stat");
            assert_eq!((stat.kind, stat.uid, stat.gid), (expected, 1000, 100));
            match kind {
                NewKind::Symlink(target) => assert_eq!(fs.read_link(ino).as_deref(), Ok(target)),
                NewKind::Char(major, minor) | NewKind::Block(major, minor) => {
                    assert_eq!(stat.device, (major, minor));
                }
                _ => {}
            }
        }
        assert_eq!(fs.stat(dir).expect("stat").links, 3);
        assert_eq!(fs.rmdir(ROOT, b"dir"), Err(Errno::ENOTEMPTY));
        assert_eq!(fs.unlink(dir, b"file 1"), Err(Errno::EISDIR));
        assert_eq!(fs.rmdir(dir, b"file 0"), Err(Errno::ENOTDIR));
        for index in [0, 3, 7] {
            let unlinked = fs.unlink(dir, format!("file {index}").as_bytes());
            let unlinked = unlinked.expect("unlink");
            assert!(unlinked.is_gone, "the last name");
            fs.release(unlinked.ino).expect("release");
        }
        let gone = fs.rmdir(dir, b"file 1").expect("rmdir");
        fs.release(gone).expect("release");
        assert_eq!(fs.stat(dir).expect("stat").links, 2);
    });
}

#[test]
fn contents_are_what_was_written() {
    on_each(16 * 1024, |fs, _| {
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let mut model = Vec::new();
        let mut put = |fs: &mut Ext4, at: usize, bytes: &[u8]| {
            assert_eq!(fs.write(ino, at as u64, bytes), Ok(bytes.len()));
            if model.len() < at + bytes.len() {
                model.resize(at + bytes.len(), 0);
            }
            model[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(common::contents(fs, ino) == model);
        };
        put(fs, 0, b"first");
        put(fs, 3, &pattern(1, 70_000));
        put(fs, 100_001, &pattern(2, 333));
        // Fills the hole between.
        put(fs, 60_000, &pattern(3, 50_000));
        put(fs, 2_000_000, &pattern(4, 10_000));
        for index in 0..60 {
            put(fs, 200_000 + index * 20_000, &pattern(index as u64, 5000));
        }
        put(fs, 0, &pattern(5, 2_500_000));
    });
}

#[test]
fn a_file_of_many_extents_grows_and_is_cut() {
    on_each(16 * 1024, |fs, disk| {
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let block = u64::from(fs.statfs().block_size);
        let free = fs.statfs().free_blocks;
        // Backwards, every second block: no two extents touch.
        for index in (0..1200_u64).rev() {
            assert_eq!(fs.write(ino, index * 2 * block, b"x"), Ok(1));
        }
        assert_eq!(fs.stat(ino).expect("stat").size, 1199 * 2 * block + 1);
        fs.commit().expect("commit");
        if fs.statfs().block_size == 4096 {
            common::assert_clean(&common::replay_by_e2fsck(&disk.bytes()), "of many extents");
        }
        fs.truncate(ino, 1000 * block + 1).expect("truncate");
        let bytes = common::contents(fs, ino);
        for (index, chunk) in bytes.chunks(block as usize).enumerate() {
            let is_island = index % 2 == 0;
            assert_eq!(chunk[0] == b'x', is_island);
            assert!(chunk[1..].iter().all(|byte| *byte == 0));
        }
        fs.truncate(ino, 0).expect("truncate");
        fs.commit().expect("commit");
        assert_eq!(fs.statfs().free_blocks, free);
        assert_eq!(fs.stat(ino).expect("stat").sectors, 0);
    });
}

#[test]
fn preallocation_reads_as_zeros_and_is_written_in_place() {
    on_each(16 * 1024, |fs, _| {
        let block = u64::from(fs.statfs().block_size);
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        fs.allocate_range(ino, 0, 100 * block, false)
            .expect("fallocate");
        assert!(common::contents(fs, ino).iter().all(|byte| *byte == 0));
        let sectors = fs.stat(ino).expect("stat").sectors;
        let free = fs.statfs().free_blocks;
        let mut model = vec![0; 100 * block as usize];
        for (at, len) in [
            (0, 10),
            (50 * block, 3 * block),
            (20 * block + 5, block),
            (99 * block, block),
        ] {
            let bytes = pattern(at, len as usize);
            assert_eq!(fs.write(ino, at, &bytes), Ok(bytes.len()));
            model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            assert!(common::contents(fs, ino) == model);
        }
        let tree = fs.stat(ino).expect("stat").sectors - sectors;
        assert_eq!(free - fs.statfs().free_blocks, tree / (block / 512));
        let before = fs.stat(ino).expect("stat").size;
        fs.allocate_range(ino, 200 * block, 10 * block, true)
            .expect("fallocate");
        assert_eq!(fs.stat(ino).expect("stat").size, before);
        // Holes, also within a block.
        for (at, len) in [
            (7, 20),
            (50 * block, block),
            (10 * block + 1, 30 * block),
            (block, 1),
        ] {
            fs.punch(ino, at, len).expect("punch");
            model[at as usize..][..len as usize].fill(0);
            assert!(common::contents(fs, ino) == model);
        }
    });
}

#[test]
fn directories_of_many_names_are_indexed() {
    on_each(16 * 1024, |fs, _| {
        let dir = fs
            .create(ROOT, b"dir", &new(NewKind::Directory))
            .expect("mkdir");
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let name = |index: u32| format!("name {index:0100}").into_bytes();
        for index in 0..3000 {
            fs.link(dir, &name(index), ino).expect("link");
        }
        assert_eq!(fs.stat(ino).expect("stat").links, 3001);
        for index in (0..3000).step_by(7) {
            assert_eq!(fs.lookup(dir, &name(index)), Ok(ino));
        }
        assert_eq!(fs.lookup(dir, b"none"), Err(Errno::ENOENT));
        for index in (0..3000).filter(|index| index % 3 != 0) {
            assert!(!fs.unlink(dir, &name(index)).expect("unlink").is_gone);
        }
        let left: Vec<_> = common::names(fs, dir)
            .into_iter()
            .map(|(name, ..)| name)
            .collect();
        assert_eq!(left, (0..3000).step_by(3).map(name).collect::<Vec<_>>());
        // The directory's blocks, which are more than a transaction has room for at once.
        for (name, ..) in common::names(fs, dir) {
            assert!(!fs.unlink(dir, &name).expect("unlink").is_gone);
        }
        assert_eq!(fs.rmdir(ROOT, b"dir"), Ok(dir));
        fs.release(dir).expect("release");
    });
}

#[test]
fn a_listing_shows_what_stays_once_while_names_come_and_go() {
    on_each(16 * 1024, |fs, _| {
        let dir = fs
            .create(ROOT, b"dir", &new(NewKind::Directory))
            .expect("mkdir");
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let stays = |index: u32| format!("stays {index:050}").into_bytes();
        for index in 0..40 {
            fs.link(dir, &stays(index), ino).expect("link");
        }
        let (mut cursor, mut seen, mut turn) = (0, Vec::new(), 0);
        loop {
            let mut last = None;
            fs.read_dir(dir, cursor, &mut |entry| {
                last = Some((entry.name.to_vec(), entry.next));
                false
            })
            .expect("a listing");
            let Some((name, next)) = last else {
                break;
            };
            cursor = next;
            seen.extend(name.starts_with(b"stays").then_some(name));
            for index in (0..10).filter(|_| turn < 60) {
                let name = format!("comes {turn} {index:060}");
                fs.link(dir, name.as_bytes(), ino).expect("link");
                if turn > 3 && index > 3 {
                    fs.unlink(dir, format!("comes {} {index:060}", turn - 3).as_bytes())
                        .ok();
                }
            }
            turn += 1;
        }
        seen.sort();
        assert_eq!(seen, (0..40).map(stays).collect::<Vec<_>>());
    });
}

#[test]
fn renames_replace_exchange_and_move_directories() {
    on_each(8 * 1024, |fs, _| {
        let a = fs
            .create(ROOT, b"a", &new(NewKind::Directory))
            .expect("mkdir");
        let b = fs
            .create(ROOT, b"b", &new(NewKind::Directory))
            .expect("mkdir");
        let x = fs.create(a, b"x", &new(NewKind::Regular)).expect("a file");
        let y = fs.create(b, b"y", &new(NewKind::Regular)).expect("a file");
        let d = fs.create(a, b"d", &new(NewKind::Directory)).expect("mkdir");
        let rename = |fs: &mut Ext4, from, to, mode| {
            let renamed = fs.rename(from, to, mode, None);
            renamed.map(|renamed| renamed.gone())
        };
        let replace = RenameMode::Replace;
        assert_eq!(rename(fs, (a, b"x"), (a, b"z"), replace), Ok(None));
        assert_eq!(
            rename(fs, (a, b"x"), (a, b"z"), replace),
            Err(Errno::ENOENT)
        );
        let no = RenameMode::NoReplace;
        assert_eq!(rename(fs, (a, b"z"), (b, b"y"), no), Err(Errno::EEXIST));
        assert_eq!(rename(fs, (a, b"z"), (b, b"y"), replace), Ok(Some(y)));
        fs.release(y).expect("release");
        assert_eq!(fs.lookup(b, b"y"), Ok(x));
        assert_eq!(
            rename(fs, (a, b"d"), (b, b"y"), replace),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(
            rename(fs, (b, b"y"), (a, b"d"), replace),
            Err(Errno::EISDIR)
        );
        assert_eq!(rename(fs, (a, b"d"), (b, b"e"), replace), Ok(None));
        assert_eq!(fs.lookup(d, b".."), Ok(b));
        assert_eq!(
            (fs.stat(a).unwrap().links, fs.stat(b).unwrap().links),
            (2, 3)
        );
        let swap = RenameMode::Exchange;
        assert_eq!(rename(fs, (ROOT, b"a"), (b, b"y"), swap), Ok(None));
        assert_eq!((fs.lookup(ROOT, b"a"), fs.lookup(b, b"y")), (Ok(x), Ok(a)));
        assert_eq!(fs.lookup(a, b".."), Ok(b));
        let empty = fs
            .create(ROOT, b"empty", &new(NewKind::Directory))
            .expect("mkdir");
        assert_eq!(
            rename(fs, (b, b"e"), (ROOT, b"empty"), replace),
            Ok(Some(empty))
        );
        fs.release(empty).expect("release");
        let whiteout = new(NewKind::Char(0, 0));
        let renamed = fs.rename((ROOT, b"a"), (b, b"w"), replace, Some(&whiteout));
        assert_eq!(
            renamed,
            Ok(Renamed {
                moved: x,
                other: None
            })
        );
        let left = fs.lookup(ROOT, b"a").expect("a whiteout");
        assert_eq!(fs.stat(left).expect("stat").kind, FileType::Char);
    });
}

#[test]
fn attributes_and_times_are_kept_beyond_2038() {
    on_each(8 * 1024, |fs, _| {
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let time = Timestamp {
            seconds: 9_000_000_000,
            nanoseconds: 987_654_321,
        };
        let change = Attributes {
            mode: Some(0o6711),
            uid: Some(100_000),
            gid: Some(200_000),
            accessed: Some(time),
            modified: Some(time),
            ..Attributes::default()
        };
        fs.set_attributes(ino, &change).expect("attributes");
        let stat = fs.stat(ino).expect("stat");
        assert_eq!((stat.mode, stat.uid, stat.gid), (0o6711, 100_000, 200_000));
        let has_extra = stat.created != Timestamp::default();
        let expected = if has_extra {
            time.seconds
        } else {
            i64::from(i32::MAX)
        };
        assert_eq!(
            (stat.accessed.seconds, stat.modified.seconds),
            (expected, expected)
        );
    });
}

#[test]
fn extended_attributes_are_in_the_inode_and_in_a_block() {
    on_each(8 * 1024, |fs, disk| {
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let large = pattern(1, 700);
        fs.set_xattr(ino, b"user.small", b"value", SetMode::Create)
            .expect("set");
        fs.set_xattr(ino, b"user.large", &large, SetMode::Any)
            .expect("set");
        fs.set_xattr(ino, b"security.empty", b"", SetMode::Any)
            .expect("set");
        fs.set_xattr(ino, b"trusted.t\xFF", b"12345", SetMode::Any)
            .expect("set");
        let again = fs.set_xattr(ino, b"user.small", b"", SetMode::Create);
        assert_eq!(again, Err(Errno::EEXIST));
        let none = fs.set_xattr(ino, b"user.none", b"", SetMode::Replace);
        assert_eq!(none, Err(Errno::ENODATA));
        let unknown = fs.set_xattr(ino, b"other.name", b"", SetMode::Any);
        assert_eq!(unknown, Err(Errno::EOPNOTSUPP));
        fs.set_xattr(ino, b"user.small", b"other value", SetMode::Replace)
            .expect("set");
        assert_eq!(
            fs.xattr(ino, b"user.small").as_deref(),
            Ok(&b"other value"[..])
        );
        assert_eq!(fs.xattr(ino, b"user.large"), Ok(large.clone()));
        assert_eq!(fs.xattr(ino, b"security.empty"), Ok(Vec::new()));
        let mut names = fs.xattr_names(ino).expect("names");
        names.sort();
        let expected = [
            &b"security.empty"[..],
            b"trusted.t\xFF",
            b"user.large",
            b"user.small",
        ];
        assert_eq!(names, expected);
        fs.commit().expect("commit");
        let image = common::replay_by_e2fsck(&disk.bytes());
        let told = common::debugfs(&image, "ea_get /file user.small");
        if fs.statfs().block_size != 1024 {
            assert!(told.contains("other value"), "{told}");
        }
        let full = fs.set_xattr(ino, b"user.too.large", &[1; 4000], SetMode::Any);
        assert_eq!(full, Err(Errno::ENOSPC));
        fs.remove_xattr(ino, b"user.large").expect("remove");
        assert_eq!(fs.remove_xattr(ino, b"user.large"), Err(Errno::ENODATA));
        // Goes with the file.
        fs.set_xattr(ino, b"user.large", &large, SetMode::Any)
            .expect("set");
        let other = fs
            .create(ROOT, b"other", &new(NewKind::Regular))
            .expect("a file");
        fs.set_xattr(other, b"user.large", &large, SetMode::Any)
            .expect("set");
        let unlinked = fs.unlink(ROOT, b"other").expect("unlink");
        assert!(unlinked.is_gone, "the last name");
        fs.release(unlinked.ino).expect("release");
    });
}

#[test]
fn files_without_a_name_go_or_get_one() {
    on_each(8 * 1024, |fs, _| {
        let free = fs.statfs();
        let kept = fs.tmpfile(ROOT, &new(NewKind::Regular)).expect("a file");
        let gone = fs.tmpfile(ROOT, &new(NewKind::Regular)).expect("a file");
        let other = fs.tmpfile(ROOT, &new(NewKind::Regular)).expect("a file");
        for ino in [kept, gone, other] {
            assert_eq!(fs.write(ino, 0, &pattern(7, 30_000)), Ok(30_000));
        }
        fs.link(ROOT, b"kept", kept).expect("link");
        fs.release(gone).expect("release");
        fs.release(kept).expect("nothing to do");
        assert_eq!(common::contents(fs, kept), pattern(7, 30_000));
        fs.release(other).expect("release");
        fs.commit().expect("commit");
        assert_eq!(fs.statfs().free_inodes, free.free_inodes - 1);
    });
}

#[test]
fn orphans_of_a_crash_go_when_it_is_mounted_next() {
    for args in [KINDS[0], KINDS[1]] {
        let disk = Disk::new(common::mkfs(16 * 1024, args));
        let mut fs = common::mount(&disk);
        let free = fs.statfs();
        let block = u64::from(free.block_size);
        let ino = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        for index in 0..300 {
            assert_eq!(fs.write(ino, index * 2 * block, b"x"), Ok(1));
        }
        let is_gone = true;
        assert_eq!(fs.unlink(ROOT, b"file"), Ok(Unlinked { ino, is_gone }));
        let dir = fs
            .create(ROOT, b"dir", &new(NewKind::Directory))
            .expect("mkdir");
        assert_eq!(fs.rmdir(ROOT, b"dir"), Ok(dir));
        fs.commit().expect("commit");
        drop(fs);
        let fs = common::mount(&disk);
        assert!(fs.recovery().expect("a replay").transactions > 0);
        assert_eq!(fs.statfs(), free);
        fs.unmount().expect("unmount");
        common::assert_clean(&disk.bytes(), "after orphans");
    }
}

#[test]
fn a_full_disk_refuses_each_operation_as_a_whole() {
    on_each(6 * 1024, |fs, _| {
        let dir = fs
            .create(ROOT, b"dir", &new(NewKind::Directory))
            .expect("mkdir");
        let big = fs
            .create(ROOT, b"big", &new(NewKind::Regular))
            .expect("a file");
        let mut at = 0;
        loop {
            match fs.write(big, at, &[7; 64 << 10]) {
                Ok(count) => at += count as u64,
                Err(error) => {
                    assert_eq!(error, Errno::ENOSPC);
                    break;
                }
            }
        }
        assert_eq!(fs.statfs().free_blocks, 0);
        // One block after the other: each operation fails at each step once.
        let block = u64::from(fs.statfs().block_size);
        let name = |index: u32| format!("{index:0200}");
        let mut made = 0;
        for left in 0..12_u64 {
            fs.truncate(big, at.saturating_sub(left * block))
                .expect("truncate");
            while let Ok(ino) = fs.create(dir, name(made).as_bytes(), &new(NewKind::Directory)) {
                made += 1;
                assert_eq!(fs.lookup(dir, name(made - 1).as_bytes()), Ok(ino));
            }
            let full = fs.create(dir, name(made).as_bytes(), &new(NewKind::Directory));
            assert_eq!(full, Err(Errno::ENOSPC));
            assert_eq!(fs.lookup(dir, name(made).as_bytes()), Err(Errno::ENOENT));
        }
        assert!(made > 3);
        assert_eq!(common::names(fs, dir).len() as u32, made);
    });
}

#[test]
fn inodes_run_out() {
    let disk = Disk::new(common::mkfs(8 * 1024, &["-N", "64", "-b", "1024"]));
    let mut fs = common::mount(&disk);
    let mut made = 0;
    let error = loop {
        match fs.create(ROOT, format!("{made}").as_bytes(), &new(NewKind::Fifo)) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Errno::ENOSPC);
    assert_eq!(fs.statfs().free_inodes, 0);
    fs.unmount().expect("unmount");
    common::assert_clean(&disk.bytes(), "without free inodes");
}

#[test]
fn files_are_larger_than_4_gib() {
    let disk = Disk::new(common::mkfs(8 * 1024, &[]));
    let mut fs = common::mount(&disk);
    let ino = fs
        .create(ROOT, b"file", &new(NewKind::Regular))
        .expect("a file");
    let far = (5 << 30) + 123;
    assert_eq!(fs.write(ino, far, b"far away"), Ok(8));
    let mut bytes = [0xEE; 10];
    assert_eq!(fs.read(ino, far - 1, &mut bytes), Ok(9));
    assert_eq!(&bytes[..9], b"\0far away");
    assert_eq!(fs.write(ino, 1 << 44, b"x"), Err(Errno::EFBIG));
    assert_eq!(fs.truncate(ino, 1 << 44), Err(Errno::EFBIG));
    assert_eq!(fs.stat(ino).expect("stat").size, far + 8);
    fs.unmount().expect("unmount");
    common::assert_clean(&disk.bytes(), "with a large file");
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let image = common::mkfs(8 * 1024, &[]);
    let disk = Disk::new(image.clone());
    let options = Options {
        read_only: true,
        ..common::options()
    };
    let mut fs = common::mount_with(&disk, options);
    let refused = fs.create(ROOT, b"file", &new(NewKind::Regular));
    assert_eq!(refused, Err(Errno::EROFS));
    fs.unmount().expect("unmount");
    assert!(disk.bytes() == image);
}

#[test]
fn a_clock_that_was_not_set_makes_no_links_of_the_list_of_orphans() {
    let disk = Disk::new(common::mkfs(8 * 1024, &[]));
    let mut fs = common::mount_with(&disk, Options::default());
    let file = fs.create(ROOT, b"file", &new(NewKind::Regular));
    fs.unlink(ROOT, b"file").expect("unlink");
    fs.release(file.expect("a file")).expect("release");
    fs.unmount().expect("unmount");
    common::assert_clean(&disk.bytes(), "after a file was deleted in 1970");
}
