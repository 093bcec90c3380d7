//! Threads that sleep on words of memory: the waiting protocol of `futex(2)`, without the memory.
//!
//! Whoever waits is in the bucket of its word's key. Looking at the word and entering the bucket
//! happen under the bucket's lock, and so does taking out whom to wake: no wake-up can fall
//! between. The words are the caller's, who reads and changes them in the closures that are called
//! under the lock.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use task::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use task::{Deadline, Mutex, MutexGuard, Thread};
use vm::FutexKey;
/// Numbers of the futex word that threads wait for.
pub use vm::FutexWord as Word;

const BUCKETS: usize = 256;

/// Number of waiters by the place of their word in its page: the same for everybody who may wake
/// them, whatever he calls the word.
static WAITING: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
const PLACES: usize = PAGE_SIZE / 4;

/// Counts a waiter. Called before the waiter looks at the word, while whoever wakes changes the
/// word before he looks at the count: either the waiter sees the word changed, or the other sees
/// the waiter.
fn count_in(addr: usize) {
    WAITING[addr / 4 % PLACES].fetch_add(1, Ordering::SeqCst);
}

/// Takes a waiter out of the count of [`count_in`].
fn count_out(addr: usize) {
    census::released(
        WAITING[addr / 4 % PLACES].fetch_sub(1, Ordering::Relaxed),
        1,
    );
}

/// Numbers of what the table of waiters holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitCounts {
    /// Waits that are counted.
    pub waits: u64,
    /// Threads in the table.
    pub waiters: u64,
}

/// Returns how much the table of waiters holds.
#[must_use]
pub fn counts() -> WaitCounts {
    let counted: u32 = WAITING
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .sum();
    WaitCounts {
        waits: u64::from(counted),
        waiters: TABLE.iter().map(|bucket| bucket.lock().len() as u64).sum(),
    }
}

/// Whether nobody waits for a word at this place of its page. The caller has changed the word.
#[inline]
#[must_use]
pub fn nobody_at(addr: usize) -> bool {
    fence(Ordering::SeqCst);
    WAITING[addr / 4 % PLACES].load(Ordering::Relaxed) == 0
}

/// A thread that waits; made once for each thread. All but the last two change under the lock of
/// the bucket it is in, or while it is in none.
pub struct Waiter {
    thread: Arc<Thread>,
    /// Rank of the thread among waiters: real-time priorities, 0 for all others.
    rank: AtomicU32,
    /// The rank it was queued with: others of its bucket are in the order of theirs.
    queued_rank: AtomicU32,
    bits: AtomicU32,
    /// The futex word that is waited for.
    word: AtomicWord,
    /// The bucket it is in.
    bucket: AtomicUsize,
    /// Keeps the object of the word it was moved to.
    moved_to: Mutex<Option<FutexKey>>,
    woken: AtomicBool,
}

/// A [`Word`] that other threads look at. Changed under the lock of the waiter's bucket.
#[derive(Default)]
struct AtomicWord {
    space: AtomicU64,
    index: AtomicU64,
    object: AtomicU64,
}

impl AtomicWord {
    fn store(&self, word: &Word) {
        self.space.store(word.space, Ordering::Relaxed);
        self.index.store(word.index, Ordering::Relaxed);
        self.object.store(word.object, Ordering::Relaxed);
    }

    fn is(&self, word: &Word) -> bool {
        self.space.load(Ordering::Relaxed) == word.space
            && self.index.load(Ordering::Relaxed) == word.index
            && self.object.load(Ordering::Relaxed) == word.object
    }
}

/// Threads that wait for words of this bucket, in the order in which they are woken: real-time
/// threads by their priority, then all others as they came.
type Bucket = Vec<Arc<Waiter>>;

static TABLE: [Mutex<Bucket>; BUCKETS] = [const { Mutex::new(Vec::new()) }; BUCKETS];

fn bucket_of(word: Word) -> usize {
    let mixed = (word.space ^ word.object.rotate_left(32)).wrapping_add(word.index);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % BUCKETS
}

/// Locks the buckets of two keys, in the order of their numbers.
fn lock_two(
    a: usize,
    b: usize,
) -> (
    MutexGuard<'static, Bucket>,
    Option<MutexGuard<'static, Bucket>>,
) {
    if a == b {
        return (TABLE[a].lock(), None);
    }
    if a < b {
        let first = TABLE[a].lock();
        let second = TABLE[b].lock();
        return (first, Some(second));
    }
    let second = TABLE[b].lock();
    let first = TABLE[a].lock();
    (first, Some(second))
}

impl Waiter {
    /// One that does not wait.
    #[must_use]
    pub fn new(thread: Arc<Thread>) -> Arc<Self> {
        Arc::new(Self {
            thread,
            rank: AtomicU32::new(0),
            queued_rank: AtomicU32::new(0),
            bits: AtomicU32::new(0),
            word: AtomicWord::default(),
            bucket: AtomicUsize::new(0),
            moved_to: Mutex::new(None),
            woken: AtomicBool::new(false),
        })
    }

    /// Sets the rank with which it is queued from now on: the highest is woken first.
    pub fn set_rank(&self, rank: u32) {
        self.rank.store(rank, Ordering::Relaxed);
    }

    /// Joins a bucket, behind those of its rank.
    #[inline(always)]
    fn join(self: &Arc<Self>, bucket: &mut Bucket) {
        let rank = self.queued_rank.load(Ordering::Relaxed);
        if rank == 0 {
            bucket.push(self.clone());
        } else {
            self.join_ranked(bucket, rank);
        }
    }

    #[inline(never)]
    fn join_ranked(self: &Arc<Self>, bucket: &mut Bucket, rank: u32) {
        let before = |other: &Arc<Self>| other.queued_rank.load(Ordering::Relaxed) >= rank;
        let at = bucket.partition_point(before);
        bucket.insert(at, self.clone());
    }

    fn waits_for(&self, word: &Word) -> bool {
        self.word.is(word)
    }

    fn set_word(&self, word: &Word) {
        self.word.store(word);
    }

    /// Whether it was taken out of its bucket to go on.
    #[must_use]
    pub fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Was taken out of its bucket.
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Enters for a word, which is at `addr`, unless it is not `expected`: `load` reads it.
    ///
    /// # Errors
    /// `EAGAIN` if it is another one; `EFAULT` if it cannot be read.
    #[inline(always)]
    pub fn enter<E>(
        self: &Arc<Self>,
        word: Word,
        addr: usize,
        expected: u32,
        bits: u32,
        load: impl FnOnce() -> Result<u32, E>,
    ) -> Result<(), Errno> {
        let number = bucket_of(word);
        // Nobody else has it now: it is in no bucket, and who took it out last has said so.
        self.bits.store(bits, Ordering::Relaxed);
        let rank = self.rank.load(Ordering::Relaxed);
        self.queued_rank.store(rank, Ordering::Relaxed);
        self.set_word(&word);
        self.woken.store(false, Ordering::Relaxed);
        self.bucket.store(number, Ordering::Relaxed);
        let mut bucket = TABLE[number].lock();
        count_in(addr);
        match load() {
            Ok(found) if found == expected => self.join(&mut bucket),
            other => {
                count_out(addr);
                return Err(if other.is_ok() {
                    Errno::EAGAIN
                } else {
                    Errno::EFAULT
                });
            }
        }
        Ok(())
    }

    /// Sleeps until somebody has taken it out of its bucket and woken it, or takes it out for
    /// another reason.
    ///
    /// # Errors
    /// `ETIMEDOUT`, and for a signal `ERESTARTSYS`, or with a deadline `ERESTART_RESTARTBLOCK`.
    #[inline(always)]
    pub fn sleep(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<(), Errno> {
        loop {
            if self.is_woken() {
                return Ok(());
            }
            let error = if self.thread.is_signal_pending() {
                if deadline.is_some() {
                    Errno::ERESTART_RESTARTBLOCK
                } else {
                    Errno::ERESTARTSYS
                }
            } else if deadline.is_some_and(Deadline::has_passed) {
                Errno::ETIMEDOUT
            } else {
                park(deadline);
                continue;
            };
            if self.withdraw() {
                return Err(error);
            }
            return Ok(());
        }
    }

    /// Takes it out of its bucket. False if somebody else did: then it has been woken when this
    /// returns.
    #[must_use]
    pub fn withdraw(self: &Arc<Self>) -> bool {
        loop {
            let number = self.bucket.load(Ordering::Acquire);
            let mut bucket = TABLE[number].lock();
            if self.bucket.load(Ordering::Acquire) != number {
                // Moved in between.
                continue;
            }
            if let Some(at) = bucket.iter().position(|other| Arc::ptr_eq(other, self)) {
                return take_one(&mut bucket, at).is_some();
            }
            break;
        }
        // The next wait begins when the waking is done.
        while !self.is_woken() {
            task::park();
        }
        false
    }

    /// Lets go of the object of a word it was moved to.
    pub fn forget_moves(&self) {
        let kept = self.moved_to.lock().take();
        drop(kept);
    }
}

/// Sleeps until somebody gives a reason to look again, or the deadline.
#[inline(always)]
pub fn park(deadline: Option<Deadline>) {
    match deadline {
        Some(deadline) => {
            task::park_until(deadline);
        }
        None => task::park(),
    }
}

/// Takes one waiter out; the order of the others stays.
#[inline]
fn take_one(bucket: &mut Bucket, at: usize) -> Option<Arc<Waiter>> {
    // Mostly there is only one.
    let waiter = if at + 1 == bucket.len() {
        bucket.pop()
    } else {
        Some(bucket.remove(at))
    };
    waiter.inspect(|waiter| count_out(waiter.word.index.load(Ordering::Relaxed) as usize))
}

/// Takes up to `most` waiters of a key out of a bucket, those with one of `bits`.
fn take(bucket: &mut Bucket, word: Word, most: usize, bits: u32, woken: &mut Vec<Arc<Waiter>>) {
    let limit = woken.len().saturating_add(most);
    bucket.retain(|waiter| {
        let chosen = woken.len() < limit
            && waiter.bits.load(Ordering::Relaxed) & bits != 0
            && waiter.waits_for(&word);
        if chosen {
            count_out(word.index as usize);
            woken.push(waiter.clone());
        }
        !chosen
    });
}

/// Wakes those taken out; without locks.
fn wake_all(woken: Vec<Arc<Waiter>>) -> usize {
    woken.iter().for_each(|waiter| waiter.wake());
    woken.len()
}

/// Wakes up to `most` waiters of a word, those with one of `bits`. Returns how many.
#[inline(always)]
pub fn wake(word: Word, most: usize, bits: u32) -> usize {
    let bucket = &TABLE[bucket_of(word)];
    if most == 1 {
        let mut bucket = bucket.lock();
        let chosen = |waiter: &Arc<Waiter>| {
            waiter.bits.load(Ordering::Relaxed) & bits != 0 && waiter.waits_for(&word)
        };
        let Some(waiter) = bucket
            .iter()
            .position(chosen)
            .and_then(|at| take_one(&mut bucket, at))
        else {
            return 0;
        };
        drop(bucket);
        waiter.wake();
        return 1;
    }
    let mut woken = Vec::new();
    take(&mut bucket.lock(), word, most, bits, &mut woken);
    wake_all(woken)
}

/// Whether somebody waits for the word. It may be different by the time this returns.
#[must_use]
pub fn has_waiter(word: Word) -> bool {
    let bucket = TABLE[bucket_of(word)].lock();
    bucket.iter().any(|waiter| waiter.waits_for(&word))
}

/// Where waiters are moved to: a word, its address, and what keeps the word from changing its
/// meaning.
pub struct Target {
    /// The word.
    pub word: Word,
    /// Where it is.
    pub addr: usize,
    /// `None` if it is known in one address space only.
    pub key: Option<FutexKey>,
}

/// If `check` agrees, wakes some waiters of a word and moves others to another one. Returns how
/// many of both.
///
/// # Errors
/// That of `check`.
pub fn requeue(
    from: Word,
    to: &Target,
    (wakes, moves): (usize, usize),
    check: impl FnOnce() -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let to_number = bucket_of(to.word);
    let mut woken = Vec::new();
    let mut moved = Vec::new();
    // What waiters held before is dropped without locks.
    let mut kept = Vec::new();
    {
        let (mut source, mut target) = lock_two(bucket_of(from), to_number);
        check()?;
        take(&mut source, from, wakes, u32::MAX, &mut woken);
        take(&mut source, from, moves, u32::MAX, &mut moved);
        for waiter in &moved {
            count_in(to.addr);
            waiter.set_word(&to.word);
            if to.key.is_some() {
                kept.push(core::mem::replace(
                    &mut *waiter.moved_to.lock(),
                    to.key.clone(),
                ));
            }
            waiter.bucket.store(to_number, Ordering::Release);
            waiter.join(target.as_mut().unwrap_or(&mut source));
        }
    }
    Ok(wake_all(woken) + moved.len())
}

/// Wakes up to `most` waiters of a word, and, if `change` says so, up to `most2` of a second one.
/// Returns how many.
///
/// # Errors
/// That of `change`, which changes the second word.
pub fn wake_two(
    (first, most): (Word, usize),
    (second, most2): (Word, usize),
    change: impl FnOnce() -> Result<bool, Errno>,
) -> Result<usize, Errno> {
    let mut woken = Vec::new();
    {
        let (mut bucket, mut bucket2) = lock_two(bucket_of(first), bucket_of(second));
        let also = change()?;
        take(&mut bucket, first, most, u32::MAX, &mut woken);
        if also {
            take(
                bucket2.as_mut().unwrap_or(&mut bucket),
                second,
                most2,
                u32::MAX,
                &mut woken,
            );
        }
    }
    Ok(wake_all(woken))
}
