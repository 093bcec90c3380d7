//! Memory of devices of ours, for the tests of drivers: rings, and pages that were lent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use block::{BlockDevice, Operation, Request, Transfer};
use virtqueue::{Address, Memory, Unreachable, Words};
use vm::Page;

use crate::lanes::Lent;

/// Pages that were lent and not given back, by address; those of all tests.
static PAGES: Mutex<BTreeMap<u64, Page>> = Mutex::new(BTreeMap::new());
static NEXT_PAGE: AtomicU64 = AtomicU64::new(1 << 40);

fn pages() -> MutexGuard<'static, BTreeMap<u64, Page>> {
    PAGES.lock().unwrap()
}

/// A page that was lent.
pub struct LentPage(u64);

impl Lent for LentPage {
    fn lend(page: &Page) -> Self {
        // Some are one behind the other, and some are not.
        let n = NEXT_PAGE.fetch_add(4096, Ordering::Relaxed);
        if n % (5 * 4096) == 0 {
            NEXT_PAGE.fetch_add(4096, Ordering::Relaxed);
        }
        pages().insert(n, page.clone());
        Self(n)
    }

    fn address(&self) -> Address {
        Address::new(self.0)
    }

    fn completed(self) {
        pages().remove(&self.0).expect("lent once");
    }
}

/// Rings at the beginning, pages where they are as long as they are lent.
#[derive(Clone)]
pub struct Shared(pub Arc<Words>);

impl Shared {
    /// The pages of a range, with the parts of them and of it.
    fn each(at: Address, len: usize, mut each: impl FnMut(&Page, usize, usize, usize)) -> bool {
        let pages = pages();
        let mut done = 0;
        while done < len {
            let at = at.number() + done as u64;
            let within = (at % 4096) as usize;
            let n = (len - done).min(4096 - within);
            let Some(page) = pages.get(&(at - within as u64)) else {
                return false;
            };
            each(page, within, done, n);
            done += n;
        }
        true
    }
}

impl Memory for Shared {
    fn reaches(&self, at: Address, len: u64) -> bool {
        self.0.reaches(at, len) || Self::each(at, len as usize, |_, _, _, _| ())
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        self.0.load16(at)
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        self.0.store16(at, value)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        if self.0.reaches(at, into.len() as u64) {
            return self.0.read(at, into);
        }
        let len = into.len();
        let copy = |page: &Page, within, done, n| page.read(within, &mut into[done..done + n]);
        Self::each(at, len, copy)
            .then_some(())
            .ok_or(Unreachable(at))
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        if self.0.reaches(at, from.len() as u64) {
            return self.0.write(at, from);
        }
        let copy = |page: &Page, within, done, n| page.write(within, &from[done..done + n]);
        Self::each(at, from.len(), copy)
            .then_some(())
            .ok_or(Unreachable(at))
    }
}

std::thread_local! {
    /// Processor that a thread says it is on.
    pub static CPU: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Pages, each filled with a byte of its own.
pub fn filled(pages: usize, byte: u8) -> Vec<Page> {
    let filled = |n: usize| {
        let page = Page::zeroed().unwrap();
        page.write(0, &[byte.wrapping_add(n as u8); 4096]);
        page
    };
    (0..pages).map(filled).collect()
}

/// The byte that a page is filled with.
pub fn first_byte(page: &Page) -> u8 {
    let mut bytes = [0; 4096];
    page.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn page");
    bytes[0]
}

/// When a device of ours lies. A request that is in flight at two resets ends with an error, so
/// a lie comes only when all that was in flight at the last reset has ended, however late a
/// thread is.
#[derive(Default)]
pub struct Liar(Mutex<Lies>);

#[derive(Default)]
struct Lies {
    is_on: bool,
    /// Rounds that each thread of [`hammer`] has ended.
    rounds: Vec<usize>,
    /// The rounds that each is to have ended before the next lie.
    wanted: Vec<usize>,
    /// Number of resets at the last lie, as long as none came of it.
    told: Option<usize>,
}

impl Liar {
    fn lies(&self) -> MutexGuard<'_, Lies> {
        self.0.lock().unwrap()
    }

    /// Whether the device lies from now on.
    pub fn set(&self, is_on: bool) {
        self.lies().is_on = is_on;
    }

    /// Whether the device, which was reset so often, is to lie now.
    pub fn is_time(&self, resets: usize) -> bool {
        let mut lies = self.lies();
        if let Some(told) = lies.told {
            if told == resets {
                return false;
            }
            lies.told = None;
            // The round in which each thread is may have been in flight.
            lies.wanted = lies.rounds.iter().map(|n| n.saturating_add(1)).collect();
        }
        let is_time = lies.is_on && lies.wanted.iter().zip(&lies.rounds).all(|(w, n)| n >= w);
        lies.told = is_time.then_some(resets);
        is_time
    }
}

/// Threads that write and read back, each a part of a disk from an offset on, in batches of any
/// size; the parts: disk, processor of the thread, offset.
pub fn hammer<D: BlockDevice + 'static>(
    parts: impl Iterator<Item = (Arc<D>, usize, u64)>,
    rounds: usize,
    liar: &Liar,
) {
    std::thread::scope(|scope| {
        for (thread, (disk, cpu, base)) in (0..).zip(parts) {
            liar.lies().rounds.push(0);
            scope.spawn(move || {
                CPU.set(cpu);
                for round in 0..rounds {
                    write_and_read_back(&*disk, thread, base, round);
                    liar.lies().rounds[thread] += 1;
                }
                liar.lies().rounds[thread] = usize::MAX;
            });
        }
    });
}

/// Two transfers, the first of many pages, and a flush, in one batch.
fn write_and_read_back(disk: &impl BlockDevice, thread: usize, base: u64, round: usize) {
    let count = 1 + (round * 7 + thread) % 20;
    let byte = (round * 31 + thread * 101) as u8;
    let first = filled(count, byte);
    let second = filled(1, !byte);
    let transfer = |n: usize, pages| Transfer {
        offset: base + n as u64 * 4096,
        len: 4096 * <[Page]>::len(pages),
        pages,
    };
    let mut batch = [
        Request::new(Operation::Write(transfer(0, &first))),
        Request::new(Operation::Write(transfer(count, &second))),
        Request::new(Operation::Flush),
    ];
    disk.submit(&mut batch);
    for request in &batch {
        assert_eq!(request.outcome, Ok(()));
    }
    let back = filled(count + 1, 0);
    assert_eq!(disk.execute(Operation::Read(transfer(0, &back))), Ok(()));
    for (n, page) in back[..count].iter().enumerate() {
        assert_eq!(first_byte(page), byte.wrapping_add(n as u8));
    }
    assert_eq!(first_byte(&back[count]), !byte);
}
