//! Contents of files in memory, beside a model: bytes, which pages there are, and how many there
//! may be; and what seals leave possible.

use std::collections::BTreeSet;
use std::sync::Arc;

use abi::errno::Errno;
use fs::mount::FileSystem;
use fs::ramfs::RamFs;
use fs::{Inode, NewInode, NewInodeKind};
use linux_raw_sys::general as sys;
use proptest::prelude::*;

const PAGE: usize = 4096;
/// Pages that all files may have together.
const LIMIT: usize = 5;
const PUNCH: u32 = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, u8),
    Append(usize, u8),
    Read(usize, usize),
    Truncate(usize),
    Allocate(usize, usize),
    AllocateWithin(usize, usize),
    Punch(usize, usize),
    Put(usize, u8),
    Seek(usize),
}

/// Places in a file: at, before and behind the borders of pages, and anywhere.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..7 * PAGE,
        (0..7usize, 0..3usize).prop_map(|(page, by)| (page * PAGE + by).saturating_sub(1))
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1..100usize, 1..3 * PAGE, Just(PAGE), Just(2 * PAGE)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (place(), length(), 1u8..).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        1 => (length(), 1u8..).prop_map(|(len, byte)| Step::Append(len, byte)),
        2 => (place(), length()).prop_map(|(at, len)| Step::Read(at, len)),
        2 => place().prop_map(Step::Truncate),
        1 => (place(), length()).prop_map(|(at, len)| Step::Allocate(at, len)),
        1 => (place(), length()).prop_map(|(at, len)| Step::AllocateWithin(at, len)),
        2 => (place(), length()).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => (0..6usize, 1u8..).prop_map(|(page, byte)| Step::Put(page, byte)),
        2 => place().prop_map(Step::Seek),
    ]
}

#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    pages: BTreeSet<usize>,
}

impl Model {
    fn write(&mut self, at: usize, len: usize, byte: u8) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len {
            let page = (at + done) / PAGE;
            if !self.pages.contains(&page) && self.pages.len() == LIMIT {
                break;
            }
            self.pages.insert(page);
            done = len.min((page + 1) * PAGE - at);
        }
        if done == 0 {
            return Err(Errno::ENOSPC);
        }
        self.grow(at + done);
        self.bytes[at..at + done].fill(byte);
        Ok(done)
    }

    fn grow(&mut self, size: usize) {
        self.bytes.resize(self.bytes.len().max(size), 0);
    }

    fn punch(&mut self, at: usize, end: usize) {
        let size = self.bytes.len();
        self.bytes[at.min(size)..end.min(size)].fill(0);
        self.pages
            .retain(|page| page * PAGE < at || (page + 1) * PAGE > end);
    }

    fn truncate(&mut self, size: usize) {
        if size < self.bytes.len() {
            self.punch(size, self.bytes.len().next_multiple_of(PAGE));
        }
        self.bytes.resize(size, 0);
    }

    fn allocate(&mut self, at: usize, end: usize, grows: bool) -> Result<(), Errno> {
        let mut pages = self.pages.clone();
        pages.extend(at / PAGE..end.div_ceil(PAGE));
        if pages.len() > LIMIT {
            return Err(Errno::ENOSPC);
        }
        self.pages = pages;
        if grows {
            self.grow(end);
        }
        Ok(())
    }

    fn seek(&self, at: usize, hole: bool) -> Result<u64, Errno> {
        let size = self.bytes.len();
        let here = |at: &usize| self.pages.contains(&(at / PAGE)) != hole;
        match (at..size).find(here) {
            Some(found) => Ok(found as u64),
            None if hole && at < size => Ok(size as u64),
            None => Err(Errno::ENXIO),
        }
    }
}

fn make(limit: Option<u64>) -> (Arc<RamFs>, Arc<dyn Inode>) {
    let fs = RamFs::new("tmpfs", limit, 0o755);
    let file = fs
        .root()
        .create(
            b"f",
            &NewInode {
                kind: NewInodeKind::Regular,
                mode: 0o644,
                umask: 0,
                uid: 0,
                gid: 0,
            },
        )
        .unwrap();
    (fs, file)
}

proptest! {
    #[test]
    fn a_file_is_bytes_in_pages_with_holes(steps in prop::collection::vec(step(), 1..60)) {
        let (fs, file) = make(Some(LIMIT as u64));
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Write(at, len, byte) => {
                    prop_assert_eq!(file.write_at(at as u64, &vec![byte; len]), model.write(at, len, byte));
                }
                Step::Append(len, byte) => {
                    let end = model.bytes.len();
                    let expected = model.write(end, len, byte).map(|done| (end as u64, done));
                    prop_assert_eq!(file.append(&vec![byte; len]), expected);
                }
                Step::Read(at, len) => {
                    let mut buffer = vec![0xee; len];
                    let there = model.bytes.get(at..).unwrap_or_default();
                    let there = &there[..len.min(there.len())];
                    prop_assert_eq!(file.read_at(at as u64, &mut buffer), Ok(there.len()));
                    prop_assert_eq!(&buffer[..there.len()], there);
                    prop_assert!(buffer[there.len()..].iter().all(|byte| *byte == 0xee));
                }
                Step::Truncate(size) => {
                    prop_assert_eq!(file.truncate(size as u64), Ok(()));
                    model.truncate(size);
                }
                Step::Allocate(at, len) => {
                    prop_assert_eq!(file.fallocate(0, at as u64, len as u64), model.allocate(at, at + len, true));
                }
                Step::AllocateWithin(at, len) => {
                    let end = (at + len).min(model.bytes.len());
                    if at < end {
                        let result = file.fallocate(sys::FALLOC_FL_KEEP_SIZE, at as u64, (end - at) as u64);
                        prop_assert_eq!(result, model.allocate(at, end, false));
                    }
                }
                Step::Punch(at, len) => {
                    prop_assert_eq!(file.fallocate(PUNCH, at as u64, len as u64), Ok(()));
                    model.punch(at, at + len);
                }
                Step::Put(page, byte) => if model.pages.len() < LIMIT {
                    let whole = vm::Page::zeroed().unwrap();
                    whole.write(0, &[byte; PAGE]);
                    prop_assert_eq!(file.insert_page((page * PAGE) as u64, whole), Ok(()));
                    model.write(page * PAGE, PAGE, byte).unwrap();
                },
                Step::Seek(at) => for hole in [false, true] {
                    prop_assert_eq!(file.seek_hole_data(at as u64, hole), model.seek(at, hole));
                },
            }
            let metadata = file.metadata();
            prop_assert_eq!((metadata.size, metadata.blocks), (model.bytes.len() as u64, model.pages.len() as u64 * 8));
            prop_assert_eq!(fs.statfs().blocks_free, (LIMIT - model.pages.len()) as u64);
            // What a mapping shows: nothing behind the last page.
            for page in 0..8 {
                let shown = file.clone().backing().unwrap().cached(page as u64).is_some();
                prop_assert_eq!(shown, model.pages.contains(&page) && page * PAGE < model.bytes.len());
            }
        }
        let mut whole = vec![1; model.bytes.len() + 1];
        prop_assert_eq!(file.read_at(0, &mut whole), Ok(model.bytes.len()));
        prop_assert!(whole[..model.bytes.len()] == model.bytes);
    }
}

#[test]
fn the_largest_size_is_that_of_offsets() {
    const LARGEST: u64 = i64::MAX as u64;
    let (_, file) = make(None);
    assert_eq!(file.write_at(LARGEST, b"x"), Err(Errno::EFBIG));
    assert_eq!(file.write_at(LARGEST - 2, b"xyz"), Ok(2));
    assert_eq!(
        (file.metadata().size, file.append(b"x")),
        (LARGEST, Err(Errno::EFBIG))
    );
    assert_eq!(
        (file.truncate(LARGEST + 1), file.truncate(LARGEST)),
        (Err(Errno::EFBIG), Ok(()))
    );
    assert_eq!(file.fallocate(0, LARGEST, 1), Err(Errno::EFBIG));
    assert_eq!(file.fallocate(0, LARGEST - 1, 1), Ok(()));
    assert_eq!(file.fallocate(0, u64::MAX, 1), Err(Errno::EFBIG));
    assert_eq!(
        file.fallocate(sys::FALLOC_FL_COLLAPSE_RANGE, 0, 4096),
        Err(Errno::EOPNOTSUPP)
    );
    let page = || vm::Page::zeroed().unwrap();
    assert_eq!(file.insert_page(100, page()), Err(Errno::EFBIG));
    assert_eq!(
        file.insert_page(LARGEST + 1 - 4096, page()),
        Err(Errno::EFBIG)
    );
}

/// Each seal of `memfd_create(2)` forbids its own operations (writing, growing, shrinking, further
/// seals) and no others.
#[test]
fn seals_forbid_what_they_say() {
    #[derive(Debug, PartialEq)]
    struct Allowed {
        writes: bool,
        appends: bool,
        grows: bool,
        shrinks: bool,
        punches: bool,
        allocates: bool,
    }
    let allowed = |seals: u32| {
        let attempt = |act: &dyn Fn(&dyn Inode) -> Result<(), Errno>| {
            let path = RamFs::memfd("sealed", 0o600, 0);
            let file = path.inode();
            file.write_at(0, &[1; 100]).unwrap();
            file.add_seals(seals).unwrap();
            match act(&**file) {
                Ok(()) => true,
                Err(Errno::EPERM) => false,
                Err(other) => panic!("{other:?}"),
            }
        };
        Allowed {
            writes: attempt(&|file| file.write_at(50, &[2; 50]).map(drop)),
            appends: attempt(&|file| file.append(b"x").map(drop)),
            grows: attempt(&|file| file.truncate(101)),
            shrinks: attempt(&|file| file.truncate(99)),
            punches: attempt(&|file| file.fallocate(PUNCH, 0, 50)),
            allocates: attempt(&|file| file.fallocate(0, 0, 101)),
        }
    };
    let all = || Allowed {
        writes: true,
        appends: true,
        grows: true,
        shrinks: true,
        punches: true,
        allocates: true,
    };
    assert_eq!(allowed(0), all());
    assert_eq!(allowed(sys::F_SEAL_SEAL), all());
    assert_eq!(
        allowed(sys::F_SEAL_SHRINK),
        Allowed {
            shrinks: false,
            ..all()
        }
    );
    assert_eq!(
        allowed(sys::F_SEAL_GROW),
        Allowed {
            appends: false,
            grows: false,
            allocates: false,
            ..all()
        }
    );
    for seal in [sys::F_SEAL_WRITE, sys::F_SEAL_FUTURE_WRITE] {
        assert_eq!(
            allowed(seal),
            Allowed {
                writes: false,
                appends: false,
                punches: false,
                ..all()
            }
        );
    }
    // As it is, a file may be cut to its own size, and told to keep what it has.
    let path = RamFs::memfd("sealed", 0o600, 0);
    let file = path.inode();
    file.write_at(0, &[1; 100]).unwrap();
    file.add_seals(sys::F_SEAL_SHRINK | sys::F_SEAL_GROW)
        .unwrap();
    assert_eq!(
        (
            file.truncate(100),
            file.fallocate(0, 0, 100),
            file.write_at(0, &[1; 100])
        ),
        (Ok(()), Ok(()), Ok(100))
    );
    assert_eq!(file.write_at(1, &[1; 100]), Err(Errno::EPERM));
    assert_eq!(file.fallocate(sys::FALLOC_FL_KEEP_SIZE, 0, 200), Ok(()));
    // Others can be added until that is sealed, too; and none that nobody knows.
    assert_eq!(file.add_seals(1 << 20), Err(Errno::EINVAL));
    assert_eq!(
        (file.add_seals(sys::F_SEAL_SEAL), file.add_seals(0)),
        (Ok(()), Err(Errno::EPERM))
    );
    assert_eq!(
        file.seals(),
        sys::F_SEAL_SEAL | sys::F_SEAL_SHRINK | sys::F_SEAL_GROW
    );
    let (fs, ordinary) = make(None);
    assert_eq!(
        (ordinary.seals(), ordinary.add_seals(sys::F_SEAL_WRITE)),
        (sys::F_SEAL_SEAL, Err(Errno::EPERM))
    );
    assert_eq!(
        (fs.root().seals(), fs.root().add_seals(0)),
        (0, Err(Errno::EINVAL))
    );
}
