//! Power cuts: at every flush, and with any part of the writes after it.
//!
//! A run of operations is recorded. For a cut the disk is what was flushed before, and some of the
//! writes since, each in pieces of a block; then it is replayed, by us or by e2fsck, has to pass
//! `e2fsck -fn`, and to hold all that was promised by then.
//!
//! `EXT4_CUTS=5000 cargo test -p ext4 --test crash --release` tries so many instead of a few.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Disk, Op, new};
use ext4::{Ext4, FileType, NewKind, ROOT, RenameMode};

/// Numbers that depend on a seed only.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Contents of a file system: names with bytes; directories have none.
type Tree = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn tree_of(fs: &mut Ext4) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![(ROOT, Vec::new())];
    while let Some((dir, path)) = dirs.pop() {
        for (name, ino, kind) in common::names(fs, dir) {
            let path = [&path[..], b"/", &name].concat();
            if kind == Some(FileType::Directory) {
                tree.insert(path.clone(), None);
                dirs.push((ino, path));
            } else {
                tree.insert(path, Some(common::contents(fs, ino)));
            }
        }
    }
    tree
}

/// A state that was promised: the number of operations on the disk by then, and the tree.
struct Promise {
    position: usize,
    tree: Tree,
}

/// Runs operations that leave no doubt about the tree: contents are written once, under a name that
/// nobody had. Returns the states between operations, each with whether it was promised, and when.
fn run(
    fs: &mut Ext4,
    disk: &Arc<Disk>,
    random: &mut Random,
    count: u64,
) -> (Vec<Tree>, Vec<Promise>) {
    let mut states = vec![tree_of(fs)];
    let mut promises = Vec::new();
    let mut files: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut dirs = vec![ROOT];
    let mut number = 0;
    for _ in 0..count {
        number += 1;
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let name = format!("{number:0width$}", width = 5 + random.below(200) as usize).into_bytes();
        match random.below(12) {
            0 => dirs.push(
                fs.create(dir, &name, &new(NewKind::Directory))
                    .expect("mkdir"),
            ),
            1..=4 => {
                let ino = fs
                    .create(dir, &name, &new(NewKind::Regular))
                    .expect("a file");
                files.push((dir, name));
                states.push(tree_of(fs));
                let len = random.below(30_000) as usize;
                let bytes: Vec<_> = (0..len).map(|at| (at as u64 * number / 8) as u8).collect();
                assert_eq!(fs.write(ino, 0, &bytes), Ok(len));
            }
            5 if !files.is_empty() => {
                let (dir, name) = files.swap_remove(random.below(files.len() as u64) as usize);
                let unlinked = fs.unlink(dir, &name).expect("unlink");
                assert!(unlinked.is_gone, "the last name");
                fs.release(unlinked.ino).expect("release");
            }
            6..=7 if !files.is_empty() => {
                let index = random.below(files.len() as u64) as usize;
                let (from_dir, from) = files[index].clone();
                let from = (from_dir, &from[..]);
                fs.rename(from, (dir, &name), RenameMode::NoReplace, None)
                    .expect("rename");
                files[index] = (dir, name);
            }
            8 if files.len() > 1 => {
                let (from_dir, from) = files.swap_remove(0);
                let (dir, name) = files[0].clone();
                let from = (from_dir, &from[..]);
                let gone = fs.rename(from, (dir, &name), RenameMode::Replace, None);
                fs.release(gone.expect("rename").gone().expect("a file"))
                    .expect("release");
            }
            9 if !files.is_empty() => {
                let (dir, name) = &files[random.below(files.len() as u64) as usize];
                let ino = fs.lookup(*dir, name).expect("a file");
                let size = fs.stat(ino).expect("stat").size;
                fs.truncate(ino, size + 5000).expect("truncate");
            }
            10 => {
                fs.commit().expect("commit");
                promises.push(Promise {
                    position: disk.position(),
                    tree: tree_of(fs),
                });
            }
            _ => {}
        }
        let tree = tree_of(fs);
        if states.last() != Some(&tree) {
            states.push(tree);
        }
    }
    (states, promises)
}

/// The disk after a cut: everything before the last flush up to `end`, some of the rest.
fn cut(
    start: &[u8],
    log: &[Op],
    end: usize,
    block: usize,
    random: &mut Random,
    mode: u64,
) -> Vec<u8> {
    let mut bytes = start.to_vec();
    let log = &log[..end];
    let flushed = log
        .iter()
        .rposition(|op| matches!(op, Op::Flush))
        .unwrap_or(0);
    for (index, op) in log.iter().enumerate() {
        let Op::Write(offset, new) = op else {
            continue;
        };
        for (piece, part) in new.chunks(block).enumerate() {
            let at = *offset as usize + piece * block;
            // All, none, or any part of what was not flushed, nor written through.
            let is_through = matches!(log.get(index + 1), Some(Op::Through));
            let is_there =
                is_through || index < flushed || mode == 0 || mode > 1 && random.below(2) == 0;
            if is_there {
                bytes[at..at + part.len()].copy_from_slice(part);
            }
        }
    }
    bytes
}

fn cuts_of(args: &[&str], seed: u64, operations: u64, cuts: u64) {
    let start = common::mkfs(10 * 1024, args);
    let disk = Disk::new(start.clone());
    disk.record();
    let mut fs = common::mount(&disk);
    let block = fs.statfs().block_size as usize;
    let mut random = Random(seed | 1);
    let (states, promises) = run(&mut fs, &disk, &mut random, operations);
    fs.unmount().expect("unmount");
    common::assert_clean(&disk.bytes(), "after the run");
    let log = disk.recorded();
    let flushes: Vec<_> = (0..log.len())
        .filter(|at| matches!(log[*at], Op::Flush | Op::Through))
        .collect();
    assert!(flushes.len() > 10);
    for turn in 0..cuts {
        // Before a flush, when most is under way, and anywhere.
        let end = if turn % 3 == 0 {
            flushes[random.below(flushes.len() as u64) as usize]
        } else {
            1 + random.below(log.len() as u64) as usize
        };
        let image = cut(&start, &log, end, block, &mut random, turn % 5);
        let when = format!(
            "{args:?}, seed {seed}, turn {turn}, cut at {end} of {}",
            log.len()
        );
        let image = if turn % 2 == 0 {
            common::replay_by_e2fsck(&image)
        } else {
            image
        };
        let disk = Disk::new(image);
        let mut fs = Ext4::mount(disk.clone(), common::options())
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        let tree = tree_of(&mut fs);
        fs.unmount().expect("unmount");
        common::assert_clean(&disk.bytes(), &when);
        let state = states.iter().position(|state| *state == tree);
        let state = state.unwrap_or_else(|| panic!("{when}: a tree that never was"));
        // A promise that was given before the cut holds: the state is that one, or a later one.
        let promised = promises
            .iter()
            .rev()
            .find(|promise| promise.position <= end);
        if let Some(promised) = promised {
            let least = states.iter().position(|state| *state == promised.tree);
            assert!(Some(state) >= least, "{when}: {state} is before {least:?}");
        }
    }
}

/// Cuts that are tried of each kind of file system.
fn cuts() -> u64 {
    let given = std::env::var("EXT4_CUTS")
        .ok()
        .and_then(|text| text.parse().ok());
    given.unwrap_or(24)
}

#[test]
fn cuts_of_a_file_system_of_4_kib_blocks() {
    cuts_of(&["-b", "4096"], 0x1234_5678, 150, cuts());
}

#[test]
fn cuts_of_a_small_journal_that_wraps_around() {
    cuts_of(
        &["-b", "1024", "-J", "size=1", "-g", "2048"],
        0x8765_4321,
        250,
        cuts(),
    );
}

/// Every cut of a mount, one change, a change of the mount to reading and back, and the end of it:
/// what is left is nothing that somebody has to decide about, whoever replays it.
#[test]
fn mounts_can_be_cut_anywhere() {
    let start = common::mkfs(10 * 1024, &["-b", "1024", "-J", "size=1"]);
    let disk = Disk::new(start.clone());
    disk.record();
    let mut fs = common::mount(&disk);
    fs.create(ROOT, b"name", &new(NewKind::Fifo))
        .expect("a name");
    fs.make_read_only().expect("only reading");
    fs.make_writable().expect("writing again");
    fs.unmount().expect("unmount");
    let log = disk.recorded();
    let mut random = Random(1);
    for end in 1..=log.len() {
        // All of what was not flushed, and none of it.
        for mode in [0, 1] {
            let image = cut(&start, &log, end, 1024, &mut random, mode);
            let when = format!("cut at {end} of {}, mode {mode}", log.len());
            common::assert_clean(&common::replay_by_e2fsck(&image), &when);
            let disk = Disk::new(image);
            common::mount(&disk).unmount().expect("unmount");
            common::assert_clean(&disk.bytes(), &when);
        }
    }
}

#[test]
fn freed_metadata_is_not_replayed_over_data() {
    for args in [["-b", "1024"], ["-b", "4096"]] {
        let disk = Disk::new(common::mkfs(10 * 1024, &args));
        let mut fs = common::mount(&disk);
        let dir = fs
            .create(ROOT, b"dir", &new(NewKind::Directory))
            .expect("mkdir");
        for index in 0..100 {
            let name = format!("{index:0200}");
            fs.create(dir, name.as_bytes(), &new(NewKind::Fifo))
                .expect("a name");
        }
        fs.commit().expect("commit");
        for (name, ino, _) in common::names(&mut fs, dir) {
            fs.unlink(dir, &name).expect("unlink");
            fs.release(ino).expect("release");
        }
        fs.rmdir(ROOT, b"dir").expect("rmdir");
        fs.release(dir).expect("release");
        // Takes all there is, also what was the directory's.
        let file = fs
            .create(ROOT, b"file", &new(NewKind::Regular))
            .expect("a file");
        let mut len = 0;
        while let Ok(count) = fs.write(file, len, &[b'd'; 1 << 16]) {
            len += count as u64;
        }
        assert_eq!(fs.statfs().free_blocks, 0);
        fs.commit().expect("commit");
        drop(fs);
        for image in [disk.bytes(), common::replay_by_e2fsck(&disk.bytes())] {
            let mut fs = common::mount(&Disk::new(image));
            let bytes = common::contents(&mut fs, file);
            assert!(bytes.len() as u64 == len && bytes.iter().all(|byte| *byte == b'd'));
        }
    }
}
