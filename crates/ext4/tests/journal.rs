//! Journals that others left are replayed, and ours by others.

mod common;

use abi::errno::Errno;
use common::{Disk, new};
use ext4::{MountError, NewKind, ROOT, Unlinked};

/// Layouts of the journal: checksums of both versions and none, with and without high halves of
/// block numbers.
const LAYOUTS: [(&[&str], &str); 4] = [
    (&[], "journal_open -c -v 3"),
    (&[], "journal_open -c -v 2"),
    (&["-O", "^metadata_csum"], "journal_open"),
    (
        &["-O", "^metadata_csum,^64bit", "-b", "1024"],
        "journal_open",
    ),
];

/// A file with contents for debugfs to write into the journal.
fn block_file(len: usize, byte: u8) -> common::Scratch {
    let file = common::Scratch(common::scratch("block"));
    std::fs::write(&file.0, vec![byte; len]).expect("a file");
    file
}

/// Blocks of a file of 16 blocks in an image, which are free to be written.
fn image_with_file(args: &[&str]) -> (Vec<u8>, usize, Vec<u64>) {
    let disk = Disk::new(common::mkfs(8 * 1024, args));
    let mut fs = common::mount(&disk);
    let size = fs.statfs().block_size as usize;
    let ino = fs
        .create(ROOT, b"file", &new(NewKind::Regular))
        .expect("a file");
    assert_eq!(fs.write(ino, 0, &vec![b'o'; 16 * size]), Ok(16 * size));
    let blocks = (0..16)
        .map(|index| {
            let mapping = fs.mapping(ino, index * size as u64).expect("a mapping");
            mapping.device.expect("a block") / size as u64
        })
        .collect();
    fs.unmount().expect("unmount");
    (disk.bytes(), size, blocks)
}

#[test]
fn a_journal_of_debugfs_is_replayed_as_e2fsck_does() {
    for (args, open) in LAYOUTS {
        let (image, size, blocks) = image_with_file(args);
        let first = block_file(4 * size, b'1');
        let second = block_file(4 * size, b'2');
        // Data that looks like a block of the journal's own is escaped.
        let third = block_file(size, 0);
        let mut bytes = vec![b'3'; 2 * size];
        bytes[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
        std::fs::write(&third.0, &bytes).expect("a file");
        let write = |blocks: &[u64], file: &common::Scratch| {
            let list: Vec<_> = blocks.iter().map(u64::to_string).collect();
            format!("journal_write -b {} {}", list.join(","), file.0.display())
        };
        let commands = [
            open.to_owned(),
            write(&blocks[0..4], &first),
            write(&blocks[2..6], &second),
            format!("journal_write -r {},{}", blocks[0], blocks[5]),
            write(&blocks[6..8], &third),
            "journal_close".to_owned(),
        ];
        let commands: Vec<_> = commands.iter().map(String::as_str).collect();
        let dirty = common::debugfs_write(&image, &commands);
        let disk = Disk::new(dirty.clone());
        let mut fs = common::mount_with(&disk, common::read_only());
        let recovery = fs.recovery().expect("a replay");
        assert_eq!((recovery.transactions, recovery.revoked), (4, 2), "{open}");
        let ino = fs.lookup(ROOT, b"file").expect("the file");
        let found = common::contents(&mut fs, ino);
        let told: Vec<u8> = found.chunks(size).map(|chunk| chunk[size - 1]).collect();
        assert_eq!(told, b"o1222o33oooooooo", "{args:?} {open}");
        fs.unmount().expect("unmount");
        common::assert_clean(&disk.bytes(), open);
        // The same by e2fsck.
        let other = Disk::new(common::replay_by_e2fsck(&dirty));
        let mut fs = common::mount_with(&other, common::read_only());
        assert!(fs.recovery().is_none());
        assert!(common::contents(&mut fs, ino) == found, "{open}");
    }
}

/// A file system that was not unmounted, after so many rounds of changes.
fn crashed(args: &[&str], rounds: u32) -> Vec<u8> {
    let disk = Disk::new(common::mkfs(16 * 1024, args));
    let mut fs = common::mount(&disk);
    change(&mut fs, rounds);
    disk.bytes()
}

fn change(fs: &mut ext4::Ext4, rounds: u32) {
    for round in 0..rounds {
        let dir = fs.create(
            ROOT,
            format!("{round}").as_bytes(),
            &new(NewKind::Directory),
        );
        let dir = dir.expect("mkdir");
        for index in 0..30 {
            let name = format!("{index:0120}");
            let ino = fs
                .create(dir, name.as_bytes(), &new(NewKind::Regular))
                .expect("a file");
            assert_eq!(fs.write(ino, 0, &[round as u8; 100]), Ok(100));
        }
        fs.commit().expect("commit");
        if let Some(old) = round.checked_sub(3) {
            let name = format!("{old}");
            let dir = fs.lookup(ROOT, name.as_bytes()).expect("a directory");
            for (name, ino, _) in common::names(fs, dir) {
                let is_gone = true;
                assert_eq!(fs.unlink(dir, &name), Ok(Unlinked { ino, is_gone }));
                fs.release(ino).expect("release");
            }
            fs.rmdir(ROOT, name.as_bytes()).expect("rmdir");
            fs.release(dir).expect("release");
            fs.commit().expect("commit");
        }
    }
}

#[test]
fn our_journal_is_replayed_by_e2fsck_as_by_us() {
    let journals: [&[&str]; 4] = [
        &["-b", "4096"],
        &["-b", "1024", "-J", "size=1"],
        &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"],
        &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum"],
    ];
    for args in journals {
        // The small ones wrap around several times.
        for rounds in [1, 12] {
            let image = crashed(args, rounds);
            let theirs = common::replay_by_e2fsck(&image);
            common::assert_clean(&theirs, "after e2fsck's replay");
            let disk = Disk::new(image);
            let mut ours = common::mount(&disk);
            assert!(ours.recovery().is_some());
            let mut other = common::mount_with(&Disk::new(theirs), common::read_only());
            let expected = common::names(&mut other, ROOT);
            assert_eq!(common::names(&mut ours, ROOT), expected);
            assert_eq!(expected.len() as u32, rounds.min(3) + 1);
            for (_, dir, _) in expected.iter().filter(|(name, ..)| name != b"lost+found") {
                for (_, ino, _) in common::names(&mut other, *dir) {
                    let bytes = common::contents(&mut other, ino);
                    assert_eq!(common::contents(&mut ours, ino), bytes);
                }
            }
            ours.unmount().expect("unmount");
            common::assert_clean(&disk.bytes(), "after our replay");
        }
    }
}

#[test]
fn it_goes_on_after_a_replay() {
    let mut disk = Disk::new(crashed(&["-b", "1024", "-J", "size=1"], 5));
    for _ in 0..5 {
        let mut fs = common::mount(&disk);
        for (name, ino, _) in common::names(&mut fs, ROOT) {
            if name == b"lost+found" {
                continue;
            }
            for (name, file, _) in common::names(&mut fs, ino) {
                fs.unlink(ino, &name).expect("unlink");
                fs.release(file).expect("release");
            }
            fs.rmdir(ROOT, &name).expect("rmdir");
            fs.release(ino).expect("release");
        }
        change(&mut fs, 3);
        drop(fs);
        disk = Disk::new(disk.bytes());
    }
    common::mount(&disk).unmount().expect("unmount");
    common::assert_clean(&disk.bytes(), "after five replays");
}

#[test]
fn an_error_of_the_disk_ends_all_changes_and_nothing_is_lost() {
    for failing in 0..40 {
        let disk = Disk::new(common::mkfs(8 * 1024, &["-b", "1024", "-J", "size=1"]));
        let mut fs = common::mount(&disk);
        fs.create(ROOT, b"before", &new(NewKind::Directory))
            .expect("mkdir");
        fs.commit().expect("commit");
        disk.fail_after(failing);
        let mut committed = 0;
        let error = (0..1000).find_map(|index| {
            let done = fs
                .create(
                    ROOT,
                    format!("{index}").as_bytes(),
                    &new(NewKind::Directory),
                )
                .and_then(|_| fs.commit());
            committed += u32::from(done.is_ok());
            done.err()
        });
        assert!(matches!(error, Some(Errno::EIO | Errno::EROFS)));
        if !fs.is_read_only() {
            continue;
        }
        let refused = fs.create(ROOT, b"refused", &new(NewKind::Directory));
        assert_eq!(refused, Err(Errno::EROFS));
        // What was lost stays lost when the disk works again: nobody is told that it is there.
        disk.fail_after(u64::MAX);
        assert_eq!(fs.sync(), Err(Errno::EIO));
        drop(fs);
        let disk = Disk::new(disk.bytes());
        let mut fs = common::mount(&disk);
        assert!(fs.lookup(ROOT, b"before").is_ok());
        for index in 0..committed {
            assert!(fs.lookup(ROOT, format!("{index}").as_bytes()).is_ok());
        }
        fs.unmount().expect("unmount");
        if failing % 5 == 0 {
            common::assert_clean(&disk.bytes(), "after an error of the disk");
        }
    }
}

#[test]
fn a_damaged_block_of_the_journal_is_found_before_anything_is_written() {
    let (image, size, blocks) = image_with_file(&[]);
    let contents = block_file(size, b'1');
    let write = format!("journal_write -b {} {}", blocks[0], contents.0.display());
    let commands = ["journal_open -c -v 3", &write, "journal_close"];
    let mut dirty = common::debugfs_write(&image, &commands);
    // The copy in the log: the only block of so many ones.
    let ones = vec![b'1'; size];
    let at = dirty
        .chunks(size)
        .position(|block| block == ones)
        .expect("the copy")
        * size;
    dirty[at + 77] ^= 1;
    let disk = Disk::new(dirty.clone());
    let error = ext4::Ext4::mount(disk.clone(), common::options()).err();
    assert_eq!(error, Some(MountError::Failed(Errno::EUCLEAN)));
    assert!(disk.bytes() == dirty);
}
