//! The page cache over a device that fails, forgets at a power cut what it was not told to keep,
//! and tears what it is writing: beside a model of what readers see and of what must be on the
//! medium.

use std::sync::{Arc, Mutex, PoisonError};

use abi::errno::Errno;
use block::{BlockDevice, CachedRun, Limits, Operation, PageCache, Request, SECTOR_SIZE, Transfer};
use proptest::prelude::*;

const SECTOR: usize = SECTOR_SIZE as usize;
const PAGE: usize = 4096;
/// Not a number of whole pages.
const SECTORS: usize = 8 * 20 + 3;
const LEN: usize = SECTORS * SECTOR;

/// Held by each test: the one gives clean pages of all caches back, and the other counts on those
/// that the device did not take.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Default)]
struct Medium {
    /// Contents that are kept whatever happens.
    kept: Vec<u8>,
    /// Contents that the device shows, and the order in which sectors came to be so.
    shown: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    /// Requests that still fail.
    failing: usize,
}

#[derive(Default)]
struct Device(Mutex<Medium>);

impl Device {
    fn new() -> Arc<Self> {
        let medium = Medium {
            kept: vec![0; LEN],
            shown: vec![0; LEN],
            ..Medium::default()
        };
        Arc::new(Self(Mutex::new(medium)))
    }

    /// The medium after a power cut: of the sectors written since the last flush those are there of
    /// which `chosen` says so, in any order.
    fn after_cut(&self, mut chosen: impl FnMut() -> bool) -> Vec<u8> {
        let medium = self.0.lock().unwrap();
        let mut kept = medium.kept.clone();
        for (at, sector) in &medium.unflushed {
            if chosen() {
                kept[*at..at + SECTOR].copy_from_slice(sector);
            }
        }
        kept
    }
}

fn execute(medium: &mut Medium, operation: &Operation<'_>) -> Result<(), Errno> {
    let fails = medium.failing > 0;
    medium.failing = medium.failing.saturating_sub(1);
    let each = |transfer: &Transfer<'_>, f: &mut dyn FnMut(&vm::Page, usize, usize)| {
        transfer.for_each_page(|page, at, len| {
            f(page, at as usize, len);
            Ok(())
        })
    };
    match operation {
        Operation::Read(transfer) if !fails => each(transfer, &mut |page, at, len| {
            page.write(0, &medium.shown[at..at + len]);
        })?,
        Operation::Write(transfer) => {
            let mut sectors = transfer.len / SECTOR;
            if fails {
                // Some of it is there.
                sectors /= 2;
            }
            each(transfer, &mut |page, at, len| {
                for within in (0..len).step_by(SECTOR).take(sectors) {
                    let mut sector = vec![0; SECTOR];
                    page.read(within, &mut sector);
                    medium.shown[at + within..at + within + SECTOR].copy_from_slice(&sector);
                    medium.unflushed.push((at + within, sector));
                }
                sectors = sectors.saturating_sub(len / SECTOR);
            })?;
        }
        Operation::Flush if !fails => {
            medium.kept.copy_from_slice(&medium.shown);
            medium.unflushed.clear();
        }
        Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len } if !fails => {
            for at in (*offset..offset + len).step_by(SECTOR) {
                medium.shown[at as usize..at as usize + SECTOR].fill(0);
                medium.unflushed.push((at as usize, vec![0; SECTOR]));
            }
        }
        _ => {}
    }
    if fails { Err(Errno::EIO) } else { Ok(()) }
}

impl BlockDevice for Device {
    fn capacity(&self) -> u64 {
        LEN as u64
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(SECTOR as u32)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        // The last first: the order within a batch is the device's.
        for request in batch.iter_mut().rev() {
            request.outcome = request
                .operation
                .check(self)
                .and_then(|()| execute(&mut self.0.lock().unwrap(), &request.operation));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(usize, usize),
    Write(usize, usize, u8),
    Sync,
    WriteRange(usize, usize),
    ReadDirect(usize, usize),
    WriteDirect(usize, usize, u8),
    ReadPages(usize, usize),
    WritePages(usize, usize, u8),
    Zero(usize, usize),
    Fail(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..LEN + SECTOR, 0..20_000usize);
    prop_oneof![
        3 => place().prop_map(|(at, len)| Step::Read(at, len)),
        6 => (place(), 1..=u8::MAX).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
        2 => Just(Step::Sync),
        1 => place().prop_map(|(at, len)| Step::WriteRange(at, len)),
        2 => place().prop_map(|(at, len)| Step::ReadDirect(at, len)),
        3 => (place(), 1..=u8::MAX).prop_map(|((at, len), byte)| Step::WriteDirect(at, len, byte)),
        2 => (0..21usize, 1..8usize).prop_map(|(first, n)| Step::ReadPages(first, n)),
        3 => (0..21usize, 1..8usize, 1..=u8::MAX)
            .prop_map(|(first, n, byte)| Step::WritePages(first, n, byte)),
        1 => (0..SECTORS, 0..40usize).prop_map(|(at, len)| Step::Zero(at, len.min(SECTORS - at))),
        1 => (1..4usize).prop_map(Step::Fail),
    ]
}

/// Reads by a run, and the same bytes into a buffer.
fn read_both_ways(cache: &PageCache, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    let mut run = CachedRun::default();
    let by_run = cache.read_run(at, buf.len(), &mut run)?;
    for (page, within, range) in run.parts() {
        page.read(within, &mut buf[range]);
    }
    let mut copy = vec![0; by_run];
    // The device may fail; what was read is there already.
    assert_eq!(cache.read(at, &mut copy), Ok(by_run));
    assert!(copy == buf[..by_run]);
    Ok(by_run)
}

/// Pages of a program's, full of a byte.
fn pages(count: usize, byte: u8) -> Vec<vm::Page> {
    let page = |_| {
        let page = vm::Page::zeroed().unwrap();
        page.write(0, &[byte; PAGE]);
        page
    };
    (0..count).map(page).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_was_synced_is_kept_and_failures_are_told(
        steps in prop::collection::vec(step(), 1..40),
        chosen in prop::collection::vec(any::<bool>(), 64),
    ) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Device::new();
        let cache = PageCache::new(device.clone()).unwrap();
        let told = task::Mutex::new(cache.sample_errors());
        let mut model = vec![0; LEN];
        // What a sync without an error has promised; `None` where something was written since.
        let mut promised: Vec<Option<u8>> = vec![Some(0); LEN];
        for step in steps {
            match step {
                Step::Read(at, len) | Step::ReadDirect(at, len) => {
                    let mut buf = vec![0; len];
                    let result = if matches!(step, Step::Read(..)) {
                        read_both_ways(&cache, at as u64, &mut buf)
                    } else {
                        cache.read_direct(at as u64, &mut buf)
                    };
                    match result {
                        Ok(n) => prop_assert!(
                            buf[..n] == model[at.min(LEN)..at.min(LEN) + n],
                            "{at}+{n} reads differently"
                        ),
                        Err(error) => prop_assert_eq!(error, Errno::EIO),
                    }
                }
                Step::Write(at, len, byte) => {
                    let result = cache.write(at as u64, &vec![byte; len]);
                    if let Ok(n) = result {
                        model[at.min(LEN)..at.min(LEN) + n].fill(byte);
                        promised[at.min(LEN)..at.min(LEN) + n].fill(None);
                    }
                    if at >= LEN && len > 0 {
                        prop_assert_eq!(result, Err(Errno::ENOSPC));
                    }
                }
                Step::Sync => {
                    let had_failing = device.0.lock().unwrap().failing;
                    cache.sync();
                    let used = had_failing > device.0.lock().unwrap().failing;
                    let outcome = cache.check_errors(&mut told.lock());
                    match outcome {
                        Ok(()) => {
                            prop_assert!(!used, "a failure was not told");
                            prop_assert!(device.0.lock().unwrap().shown == model);
                            promised = model.iter().copied().map(Some).collect();
                        }
                        // What is on the device is not known any more; a program writes it again.
                        Err(error) => {
                            prop_assert_eq!(error, Errno::EIO);
                            device.0.lock().unwrap().failing = 0;
                            cache.write(0, &model).unwrap();
                            promised.fill(None);
                        }
                    }
                }
                Step::WriteRange(at, len) => {
                    let had_failing = device.0.lock().unwrap().failing;
                    cache.write_range(at as u64..(at + len) as u64);
                    // Told by the next sync. The cache may forget what the device did not take, as
                    // zeroing does for the rest of its pages; a program writes it again.
                    if had_failing > device.0.lock().unwrap().failing {
                        device.0.lock().unwrap().failing = 0;
                        cache.write(0, &model).unwrap();
                        promised.fill(None);
                    }
                }
                Step::WriteDirect(at, len, byte) => {
                    let Ok(n) = cache.write(at as u64, &vec![byte; len]) else {
                        continue;
                    };
                    let range = at.min(LEN)..at.min(LEN) + n;
                    model[range.clone()].fill(byte);
                    promised[range.clone()].fill(None);
                    let had_failing = device.0.lock().unwrap().failing;
                    let result = cache.write_through(at as u64..(at + n) as u64, &told);
                    let failed = had_failing > device.0.lock().unwrap().failing;
                    prop_assert_eq!(result, if failed { Err(Errno::EIO) } else { Ok(()) });
                    if failed {
                        device.0.lock().unwrap().failing = 0;
                        cache.write(0, &model).unwrap();
                        promised.fill(None);
                    } else {
                        let device = device.0.lock().unwrap();
                        prop_assert!(device.shown[range.clone()] == model[range]);
                    }
                }
                Step::ReadPages(first, count) => {
                    let pages = pages(count, 0);
                    match cache.read_pages(first as u64, &pages) {
                        Ok(n) => {
                            let mut buf = vec![0; n];
                            for (part, page) in buf.chunks_mut(PAGE).zip(&pages) {
                                page.read(0, part);
                            }
                            let at = (first * PAGE).min(LEN);
                            prop_assert!(buf[..] == model[at..at + n], "page {first} differs");
                        }
                        Err(error) => prop_assert_eq!(error, Errno::EIO),
                    }
                }
                Step::WritePages(first, count, byte) => {
                    let pages = pages(count, byte);
                    let Some(write) = cache.begin_write(first as u64, &pages) else {
                        continue;
                    };
                    let range = first * PAGE..(first + count) * PAGE;
                    prop_assert!(range.end <= LEN);
                    model[range.clone()].fill(byte);
                    promised[range.clone()].fill(None);
                    let had_failing = device.0.lock().unwrap().failing;
                    let result = write.finish(&told);
                    let failed = had_failing > device.0.lock().unwrap().failing;
                    let wanted = if failed { Err(Errno::EIO) } else { Ok(count * PAGE) };
                    prop_assert_eq!(result, wanted);
                    prop_assert!(pages.iter().all(|page| page.refs() == 1));
                    if failed {
                        device.0.lock().unwrap().failing = 0;
                        cache.write(0, &model).unwrap();
                        promised.fill(None);
                    } else {
                        let device = device.0.lock().unwrap();
                        prop_assert!(device.shown[range.clone()] == model[range]);
                    }
                }
                Step::Zero(at, len) => {
                    let (offset, len) = (at * SECTOR, len * SECTOR);
                    let range = offset as u64..(offset + len) as u64;
                    device.0.lock().unwrap().failing = 0;
                    cache.bypass(range, || {
                        let (offset, len) = (offset as u64, len as u64);
                        device.execute(Operation::WriteZeroes { offset, len })
                    }).unwrap();
                    model[offset..offset + len].fill(0);
                    promised[offset..offset + len].fill(None);
                }
                Step::Fail(requests) => device.0.lock().unwrap().failing = requests,
            }
            let mut choice = chosen.iter().cycle();
            let kept = device.after_cut(|| *choice.next().unwrap());
            for (at, promise) in promised.iter().enumerate() {
                prop_assert!(promise.is_none_or(|byte| byte == kept[at]), "byte {at} was lost");
            }
        }
    }
}

#[test]
fn direct_transfers_keep_no_pages_but_those_that_are_in_use() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::new();
    let cache = PageCache::new(device.clone()).unwrap();
    let pages = block::writeback::device_pages();
    assert_eq!(cache.read_direct(0, &mut vec![0; LEN + 1]), Ok(LEN));
    let told = task::Mutex::new(cache.sample_errors());
    assert_eq!(cache.write(4608, &[1; 9000]), Ok(9000));
    cache.write_through(4608..13_608, &told).unwrap();
    assert_eq!(block::writeback::device_pages(), pages);
    assert!(device.0.lock().unwrap().shown[4608..13_608] == [1; 9000]);
    // What is newer than the device is read, and what somebody has mapped changes and stays.
    let mapped = cache.page(2).unwrap();
    cache.write(4096, &[2; 4096]).unwrap();
    let mut bytes = vec![0; 8192];
    assert_eq!(cache.read_direct(4096, &mut bytes), Ok(8192));
    assert!(bytes[..4096] == [2; 4096] && bytes[4096..] == [1; 4096]);
    cache.write(8192, &[3; 4096]).unwrap();
    cache.write_through(8192..12_288, &told).unwrap();
    mapped.read(0, &mut bytes[..1]);
    assert_eq!((bytes[0], block::writeback::device_pages() - pages), (3, 2));
}

#[test]
fn reading_on_reads_ahead_and_old_pages_go() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::new();
    let shrinkers = shrink::Shrinkers::new();
    shrinkers.register(block::writeback::init(1 << 30));
    let cache = PageCache::new(device.clone()).unwrap();
    cache.read(0, &mut [0; 1]).unwrap();
    assert!(block::writeback::device_pages() >= 20);
    // Of what is there nothing is asked again.
    device.0.lock().unwrap().failing = usize::MAX;
    assert_eq!(cache.read(0, &mut vec![0; LEN]), Ok(LEN));
    cache.write(0, &[1; 5000]).unwrap();
    let round = Arc::default();
    shrinkers.reclaim(&round, u64::MAX / 2, shrink::Urgency::Critical);
    // The two that are dirty stay, the others have to be read.
    assert_eq!(cache.read(0, &mut vec![0; 8192]), Ok(8192));
    assert_eq!(cache.read(8192, &mut [0; 1]), Err(Errno::EIO));
    assert!(round.freed() >= 18 * 4096);
}
