//! A disk with no room, or little: each change is done or refused as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use fs::xattr::{self, SetMode};
use fs::{Cred, File, NewInodeKind, RenameFlags, ops};

use crate::disk::{World, alone, contents, mke2fs};

/// File systems: with blocks of both sizes, and without a journal.
const KINDS: [&[&str]; 3] = [
    &["-b", "1024", "-m", "0", "-N", "4096", "-J", "size=1"],
    &["-b", "4096", "-m", "0", "-N", "4096"],
    &["-b", "1024", "-m", "0", "-N", "4096", "-O", "^has_journal"],
];
/// Most free blocks with which each change is tried.
const MOST: u64 = 6;
/// Directories of which some are removed so that there are free blocks.
const FILLERS: u64 = 40;

type Outcome = fs::Result<()>;

/// A full disk.
struct Full {
    world: World,
    block: u64,
    fillers: u64,
}

impl Full {
    fn new(options: &[&str]) -> Self {
        let world = World::mounted(mke2fs(options, 8 << 20));
        let block = world.at("/mnt").unwrap().metadata().blksize.into();
        let mut full = Self {
            world,
            block,
            fillers: 0,
        };
        for directory in ["room", "full", "fill"] {
            full.mkdir(directory).unwrap();
        }
        for n in 0..FILLERS {
            full.mkdir(&format!("fill/{n}")).unwrap();
            full.fillers += 1;
        }
        full
    }

    /// Has a file take all blocks that files can have.
    fn fill(&self) {
        let big = self.create("big");
        let (mut size, mut step) = (0, 1 << 20);
        while step >= self.block {
            match big.inode().fallocate(0, size, step) {
                Ok(()) => size += step,
                Err(error) => {
                    assert_eq!(error, Errno::ENOSPC);
                    step /= 2;
                }
            }
        }
    }

    /// Number of blocks that can be had.
    fn free(&self) -> u64 {
        let fs = self.world.at("/mnt").unwrap().mount().fs().clone();
        let figures = fs.statfs();
        figures
            .blocks_free
            .checked_sub(figures.blocks_reserved)
            .expect("what is kept is left")
    }

    /// Leaves so many blocks.
    fn set_free(&mut self, left: u64) {
        while self.free() < left {
            self.fillers -= 1;
            self.rmdir(&format!("fill/{}", self.fillers));
        }
        while self.free() > left {
            self.mkdir(&format!("fill/{}", self.fillers)).unwrap();
            self.fillers += 1;
        }
    }

    fn make(&self, name: &str, kind: NewInodeKind<'_>) -> Outcome {
        let path = format!("/mnt/{name}");
        ops::create_node(&self.world.walk(), path.as_bytes(), kind, 0o755).map(drop)
    }

    fn mkdir(&self, name: &str) -> Outcome {
        self.make(name, NewInodeKind::Directory)
    }

    fn create(&self, name: &str) -> Arc<File> {
        self.world.create(&format!("/mnt/{name}")).unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.world.at(&format!("/mnt/{name}")).is_ok()
    }

    fn rmdir(&self, name: &str) {
        self.remove(name, ops::Removal::Rmdir);
    }

    fn unlink(&self, name: &str) {
        self.remove(name, ops::Removal::Unlink);
    }

    fn remove(&self, name: &str, how: ops::Removal) {
        let path = format!("/mnt/{name}");
        ops::remove(&self.world.walk(), path.as_bytes(), how).unwrap();
    }

    fn rename(&self, from: &str, to: &str) -> Outcome {
        let walk = self.world.walk();
        let parent = |name: &str| walk.lookup_parent(format!("/mnt/{name}").as_bytes());
        ops::rename(&walk, parent(from)?, parent(to)?, RenameFlags::empty())
    }

    /// Blocks of a page.
    fn page(&self) -> u64 {
        4096 / self.block
    }

    fn names(&self) {
        self.create("room/new");
        self.unlink("room/new");
        assert_eq!(
            self.make("room/short", NewInodeKind::Symlink(b"target")),
            Ok(())
        );
        self.unlink("room/short");
    }

    fn one_block_each(&self, left: u64) {
        let enough = |outcome: Outcome| assert_eq!(outcome, needs(1, left));
        enough(self.mkdir("room/new"));
        assert_eq!(self.has("room/new"), left > 0);
        if left > 0 {
            self.rmdir("room/new");
        }
        enough(self.make("room/long", NewInodeKind::Symlink(&[b'x'; 100])));
        if left > 0 {
            self.unlink("room/long");
        }
        let file = self.create("room/file");
        let root = Cred::root();
        let set = |value: &[u8]| xattr::set(file.path(), b"user.a", value, SetMode::Any, &root);
        set(b"old").unwrap();
        enough(set(&[b'n'; 300]));
        let value = xattr::get(file.path(), b"user.a", &root).unwrap();
        assert_eq!(
            value,
            if left > 0 {
                vec![b'n'; 300]
            } else {
                b"old".to_vec()
            }
        );
        drop(file);
        self.unlink("room/file");
    }

    fn contents(&self, left: u64) {
        let file = self.create("room/file");
        let all = vec![7; (left * self.block) as usize];
        let more = vec![7; all.len() + 5];
        let count = file.write_at(0, &more);
        let expected = if left > 0 {
            Ok(all.len())
        } else {
            Err(Errno::ENOSPC)
        };
        assert_eq!(count, expected, "what fits");
        assert_eq!(file.write_at(all.len() as u64, &[7]), Err(Errno::ENOSPC));
        assert_eq!(file.ops().sync(), Ok(()));
        assert!(contents(&file) == all);
        file.inode().truncate(0).unwrap();
        assert_eq!(self.free(), left);
        // An extent each, so that their blocks get full.
        let mut written = Vec::new();
        for n in 0..8 {
            match file.write_at(n * 3 * 4096, &[n as u8 + 1; 100]) {
                Ok(100) => written.push(n),
                other => assert_eq!(other, Err(Errno::ENOSPC)),
            }
        }
        assert!(written.len() as u64 + 1 >= left.min(8), "{written:?}");
        assert_eq!(file.ops().sync(), Ok(()));
        let found = contents(&file);
        for n in written {
            let at = (n * 3 * 4096) as usize;
            assert_eq!(found[at..at + 100], [n as u8 + 1; 100]);
        }
        drop(file);
        self.unlink("room/file");
    }

    fn preallocated_and_mapped(&self, left: u64) {
        let file = self.create("room/file");
        let inode = file.inode().clone();
        let outcome = inode.fallocate(0, 0, 3 * self.block);
        assert_eq!(outcome, needs(3, left));
        inode.truncate(0).unwrap();
        assert_eq!(self.free(), left, "what was allocated before the end");
        inode.truncate(3 * 4096).unwrap();
        let backing = file.backing().unwrap();
        for page in 0..3 {
            let found = backing.page_for_write(page);
            let fits = (page + 1) * self.page() <= left;
            match found {
                Ok(found) => found.write(0, &[5; 4096]),
                // A signal: SIGBUS.
                Err(error) => assert_eq!((error, fits), (Errno::EFAULT, false)),
            }
        }
        assert_eq!(file.ops().sync(), Ok(()));
        drop((backing, inode, file));
        self.unlink("room/file");
    }

    /// Makes and moves files into a directory that has to grow for some.
    fn growing_directory(&self) {
        let long = |n: u64| format!("full/{n:0200}");
        let mut made = 0;
        while made < 40 {
            let new = long(made);
            let outcome = if made.is_multiple_of(2) {
                self.make(&new, NewInodeKind::Fifo)
            } else {
                self.make("room/moved", NewInodeKind::Fifo).unwrap();
                self.rename("room/moved", &new)
            };
            assert_eq!(self.has(&new), outcome.is_ok());
            if made % 2 == 1 {
                assert_eq!(self.has("room/moved"), outcome.is_err());
            }
            if let Err(error) = outcome {
                assert_eq!(error, Errno::ENOSPC);
                break;
            }
            made += 1;
        }
        if self.has("room/moved") {
            self.unlink("room/moved");
        }
        (0..made).for_each(|n| self.unlink(&long(n)));
    }
}

/// The outcome of what needs so many blocks.
fn needs(blocks: u64, left: u64) -> Outcome {
    if blocks <= left {
        Ok(())
    } else {
        Err(Errno::ENOSPC)
    }
}

#[test]
fn each_change_of_a_full_disk_is_done_or_refused() {
    let _alone = alone();
    for options in KINDS {
        let mut full = Full::new(options);
        let before = full.free();
        full.fill();
        for left in 0..=MOST {
            full.set_free(left);
            full.names();
            let changes: [(&str, &dyn Fn()); 3] = [
                ("one block each", &|| full.one_block_each(left)),
                ("contents", &|| full.contents(left)),
                ("preallocated", &|| full.preallocated_and_mapped(left)),
            ];
            for (what, change) in changes {
                change();
                assert_eq!(full.free(), left, "{what} of {options:?}");
            }
        }
        for left in 0..=MOST {
            full.set_free(left);
            full.growing_directory();
        }
        full.unlink("big");
        for n in 0..full.fillers {
            full.rmdir(&format!("fill/{n}"));
        }
        for directory in ["room", "full", "fill"] {
            full.rmdir(directory);
        }
        // The directories of the beginning are gone, too.
        assert!(full.free() >= before + FILLERS + 3, "{options:?}");
        full.world.finish();
    }
}

#[test]
fn blocks_of_root_are_not_for_the_names_of_others() {
    static IS_ROOT: AtomicBool = AtomicBool::new(true);
    let _alone = alone();
    fs::ext4::set_may_use_reserved(|| IS_ROOT.load(Ordering::Relaxed));
    let full = Full::new(&["-b", "1024", "-m", "5", "-N", "4096"]);
    IS_ROOT.store(false, Ordering::Relaxed);
    let file = full.create("room/file");
    full.fill();
    let outcomes = (full.mkdir("room/new"), file.write(&[1; 1000]));
    IS_ROOT.store(true, Ordering::Relaxed);
    assert_eq!(outcomes, (Err(Errno::ENOSPC), Err(Errno::ENOSPC)));
    assert_eq!(full.mkdir("room/new"), Ok(()));
    assert_eq!(file.write(&[1; 1000]), Ok(1000));
    drop(file);
    full.world.finish();
}

#[test]
fn what_was_preallocated_is_written_when_names_have_taken_all_room() {
    let _alone = alone();
    for options in KINDS {
        let full = Full::new(options);
        let file = full.create("room/file");
        let (block, count) = (full.block, 800 << 10);
        file.inode().fallocate(0, 0, count).unwrap();
        full.fill();
        let mut n = 0;
        while full.mkdir(&format!("room/{n:0100}")).is_ok() {
            n += 1;
        }
        // Each is an extent of its own between those that are not written.
        for at in (0..count).step_by(2 * block as usize) {
            let bytes = vec![at as u8 | 1; block as usize];
            assert_eq!(file.write_at(at, &bytes), Ok(bytes.len()));
            if block == 4096 {
                assert_eq!(file.ops().sync_range(at..at + block), Ok(()));
            }
        }
        assert_eq!(file.ops().sync(), Ok(()), "{options:?}");
        drop(file);
        let world = World::mounted(full.world.finish());
        let file = world.create("/mnt/room/file").unwrap();
        let found = contents(&file);
        for at in (0..count as usize).step_by(2 * block as usize) {
            assert_eq!(
                found[at..at + block as usize],
                vec![at as u8 | 1; block as usize]
            );
        }
        drop(file);
        world.finish();
    }
}
