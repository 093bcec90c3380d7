//! Random calls on some files, by descriptor and by mapping, beside a model.

use std::sync::Arc;

use fs::{File, Whence};
use linux_raw_sys::general as sys;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vm::{AddressSpace, MapRequest, Object, PAGE_SIZE, Placement, Prot, SharedWrites, VmaFlags};

use crate::disk::{World, alone, contents, mke2fs};

/// Files, and the most bytes of one.
const FILES: usize = 3;
const LEN: u64 = 150_000;
/// Place of the mappings.
const AT: usize = 0x1000_0000;

#[derive(Clone, Copy, Debug)]
enum Call {
    Write(usize, u64, u64, u8),
    Append(usize, u64, u8),
    Truncate(usize, u64),
    Punch(usize, u64, u64),
    Zero(usize, u64, u64),
    Allocate(usize, u64, u64, bool),
    /// Write through the mapping, if the file reaches there.
    Store(usize, u64, u8),
    Load(usize, u64),
    Read(usize, u64, u64),
    SeekData(usize, u64),
    Sync(usize),
    SyncAll,
    Shrink,
    Remount,
}

fn call() -> impl Strategy<Value = Call> {
    let (file, at) = (0..FILES, 0..LEN);
    let len = prop_oneof![0..9000_u64, 1..60_000_u64];
    let range = || (file.clone(), at.clone(), len.clone());
    prop_oneof![
        6 => (range(), any::<u8>()).prop_map(|((f, a, l), b)| Call::Write(f, a, l, b)),
        3 => (file.clone(), len.clone(), any::<u8>()).prop_map(|(f, l, b)| Call::Append(f, l, b)),
        3 => (file.clone(), at.clone()).prop_map(|(f, a)| Call::Truncate(f, a)),
        2 => range().prop_map(|(f, a, l)| Call::Punch(f, a, l)),
        1 => range().prop_map(|(f, a, l)| Call::Zero(f, a, l)),
        2 => (range(), any::<bool>()).prop_map(|((f, a, l), k)| Call::Allocate(f, a, l, k)),
        6 => (file.clone(), at.clone(), any::<u8>()).prop_map(|(f, a, b)| Call::Store(f, a, b)),
        3 => (file.clone(), at.clone()).prop_map(|(f, a)| Call::Load(f, a)),
        3 => range().prop_map(|(f, a, l)| Call::Read(f, a, l)),
        2 => (file.clone(), at.clone()).prop_map(|(f, a)| Call::SeekData(f, a)),
        2 => file.prop_map(Call::Sync),
        1 => Just(Call::SyncAll),
        2 => Just(Call::Shrink),
        1 => Just(Call::Remount),
    ]
}

struct Tested {
    file: Arc<File>,
    space: Arc<AddressSpace>,
    model: Vec<u8>,
}

impl Tested {
    fn new(world: &World, n: usize, model: Vec<u8>) -> Self {
        let file = world.create(&format!("/mnt/file{n}")).unwrap();
        let space = AddressSpace::new(1 << 40).unwrap();
        let meta = file.metadata();
        let object = Object::file_with(
            file.backing().unwrap(),
            SharedWrites::Allowed,
            Vec::new(),
            (meta.dev, meta.ino),
            file.path().mount().clone(),
        );
        let request = MapRequest {
            placement: Placement::Fixed(AT),
            len: (2 * LEN as usize).next_multiple_of(PAGE_SIZE),
            prot: Prot::READ | Prot::WRITE,
            flags: VmaFlags::SHARED,
            object: Some((object, 0)),
        };
        space.mmap(request).unwrap();
        Self { file, space, model }
    }

    fn put(&mut self, at: u64, len: u64, byte: u8) -> Vec<u8> {
        let (at, end) = (at as usize, (at + len) as usize);
        if len > 0 && self.model.len() < end {
            self.model.resize(end, 0);
        }
        let bytes: Vec<u8> = (at..end).map(|n| byte.wrapping_add(n as u8)).collect();
        if len > 0 {
            self.model[at..end].copy_from_slice(&bytes);
        }
        bytes
    }

    fn clear(&mut self, at: u64, len: u64) {
        let end = (at + len).min(self.model.len() as u64) as usize;
        let at = (at as usize).min(end);
        self.model[at..end].fill(0);
    }

    fn do_call(&mut self, call: Call) {
        const KEEP: u32 = sys::FALLOC_FL_KEEP_SIZE;
        let inode = self.file.inode().clone();
        match call {
            Call::Write(_, at, len, byte) => {
                let bytes = self.put(at, len, byte);
                assert_eq!(self.file.write_at(at, &bytes), Ok(bytes.len()));
            }
            Call::Append(_, len, byte) => {
                let at = self.model.len() as u64;
                if at + len < 2 * LEN {
                    let bytes = self.put(at, len, byte);
                    assert_eq!(self.file.append(&bytes, false), Ok(bytes.len()));
                }
            }
            Call::Truncate(_, size) => {
                inode.truncate(size).unwrap();
                self.model.resize(size as usize, 0);
            }
            Call::Punch(_, at, len) if len > 0 => {
                let mode = sys::FALLOC_FL_PUNCH_HOLE | KEEP;
                inode.fallocate(mode, at, len).unwrap();
                self.clear(at, len);
            }
            Call::Zero(_, at, len) if len > 0 => {
                let mode = sys::FALLOC_FL_ZERO_RANGE;
                inode.fallocate(mode, at, len).unwrap();
                self.clear(at, len);
                let size = self.model.len().max((at + len) as usize);
                self.model.resize(size, 0);
            }
            Call::Allocate(_, at, len, keeps) if len > 0 => {
                inode
                    .fallocate(if keeps { KEEP } else { 0 }, at, len)
                    .unwrap();
                if !keeps {
                    let size = self.model.len().max((at + len) as usize);
                    self.model.resize(size, 0);
                }
            }
            Call::Store(_, at, byte) => {
                // Also behind the end, in the last page: nobody sees that afterwards.
                let pages = self.model.len().next_multiple_of(PAGE_SIZE);
                let done = self.space.write(AT + at as usize, &[byte]);
                assert_eq!(done.is_ok(), (at as usize) < pages, "{at} of {pages}");
                if let Some(place) = self.model.get_mut(at as usize) {
                    *place = byte;
                }
            }
            Call::Load(_, at) => {
                let mut byte = [0];
                let done = self.space.read(AT + at as usize, &mut byte);
                match self.model.get(at as usize) {
                    Some(wanted) => assert_eq!((done, byte[0]), (Ok(()), *wanted)),
                    None => {
                        let pages = self.model.len().next_multiple_of(PAGE_SIZE);
                        assert_eq!(done.is_ok(), (at as usize) < pages);
                    }
                }
            }
            Call::Read(_, at, len) => {
                let mut bytes = vec![1; len as usize];
                let n = self.file.read_at(at, &mut bytes).unwrap();
                let from = (at as usize).min(self.model.len());
                let end = (from + len as usize).min(self.model.len());
                assert!(bytes[..n] == self.model[from..end], "{at} {len}");
            }
            Call::SeekData(_, at) => {
                let data = self.file.seek(Whence::Data, at as i64);
                let until = data.unwrap_or(self.model.len() as u64);
                let skipped = &self.model[(at as usize).min(self.model.len())..];
                let skipped = &skipped[..(until.saturating_sub(at)) as usize];
                assert!(skipped.iter().all(|byte| *byte == 0));
            }
            Call::Sync(_) => self.file.ops().sync().unwrap(),
            _ => {}
        }
        assert_eq!(self.file.metadata().size, self.model.len() as u64);
    }
}

fn tested_file(call: Call) -> usize {
    match call {
        Call::Write(n, ..)
        | Call::Append(n, ..)
        | Call::Truncate(n, ..)
        | Call::Punch(n, ..)
        | Call::Zero(n, ..)
        | Call::Allocate(n, ..)
        | Call::Store(n, ..)
        | Call::Load(n, ..)
        | Call::Read(n, ..)
        | Call::SeekData(n, ..)
        | Call::Sync(n) => n,
        _ => 0,
    }
}

fn play(image: &[u8], calls: &[Call]) {
    let world = World::mounted(image.to_vec());
    let open = |models: Vec<Vec<u8>>| -> Vec<Tested> {
        let models = models.into_iter().enumerate();
        models
            .map(|(n, model)| Tested::new(&world, n, model))
            .collect()
    };
    let mut files = open(vec![Vec::new(); FILES]);
    for &call in calls {
        match call {
            Call::SyncAll => block::writeback::sync_all(),
            Call::Shrink => {
                shrink_all();
            }
            Call::Remount => {
                let models = files.iter_mut().map(|it| std::mem::take(&mut it.model));
                let models = models.collect();
                files.clear();
                world.unmount().unwrap();
                world.mount(0).unwrap();
                files = open(models);
            }
            _ => files[tested_file(call)].do_call(call),
        }
    }
    for tested in &files {
        assert!(contents(&tested.file) == tested.model);
    }
    let models: Vec<Vec<u8>> = files.into_iter().map(|it| it.model).collect();
    let again = World::mounted(world.finish());
    for (n, model) in models.iter().enumerate() {
        let file = again.create(&format!("/mnt/file{n}")).unwrap();
        assert!(contents(&file) == *model, "file {n} after the mount");
    }
    again.at("/mnt").unwrap().mount().fs().sync().unwrap();
}

/// Has clean pages given back.
fn shrink_all() {
    let shrinkers = shrink::Shrinkers::new();
    shrinkers.register(block::writeback::init(1 << 30));
    let round = Arc::new(shrink::Round::default());
    shrinkers.reclaim(&round, 64 << 12, shrink::Urgency::Critical);
    round.wait();
}

#[test]
fn files_are_what_was_written_whatever_is_called() {
    let _alone = alone();
    let images = [
        mke2fs(&["-b", "4096"], 8 << 20),
        mke2fs(&["-b", "1024"], 8 << 20),
        mke2fs(&["-b", "2048", "-O", "^has_journal"], 8 << 20),
    ];
    let cases = std::env::var("EXT4_FILE_MODELS").ok();
    let cases = cases.and_then(|text| text.parse().ok()).unwrap_or(4);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    };
    let strategy = (0..images.len(), prop::collection::vec(call(), 1..150));
    TestRunner::new(config)
        .run(&strategy, |(image, calls)| {
            play(&images[image], &calls);
            Ok(())
        })
        .unwrap();
}
