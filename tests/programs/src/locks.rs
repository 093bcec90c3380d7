//! Locks under stress: many threads take locks that sleep on futexes, and go through the kernel's
//! own behind system calls.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, RwLock};
use std::thread;

use anyhow::{Result, ensure};

use crate::Check;

/// In machines of several sizes.
pub const STRESS: &[(&str, Check)] = &[
    ("locks-torture", locks),
    ("locks-torture-in-the-kernel", kernel_locks),
];

/// Number of rounds of all threads together; a quarter of them in the kernel.
const ROUNDS: u32 = 40_000;
/// Threads that may be within a semaphore.
const PERMITS: u32 = 3;

/// Two counts that are changed together, by loads and stores: an update is lost, or they differ, if
/// two threads are there at once.
#[derive(Default)]
struct Pair([AtomicU64; 2]);

impl Pair {
    fn add(&self, pause: bool) {
        let [first, second] = &self.0;
        let (one, two) = (
            first.load(Ordering::Relaxed),
            second.load(Ordering::Relaxed),
        );
        first.store(one + 1, Ordering::Relaxed);
        if pause {
            thread::yield_now();
        }
        second.store(two + 1, Ordering::Relaxed);
    }

    fn is_even(&self, pause: bool) -> bool {
        let [first, second] = &self.0;
        let one = first.load(Ordering::Relaxed);
        if pause {
            thread::yield_now();
        }
        one == second.load(Ordering::Relaxed)
    }

    fn total(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }
}

/// Counts who is inside.
#[derive(Default)]
struct Inside(AtomicU32);

impl Inside {
    fn visit(&self, pause: bool) -> Result<()> {
        let there = self.0.fetch_add(1, Ordering::Relaxed);
        if pause {
            thread::yield_now();
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
        ensure!(
            there < PERMITS,
            "{} threads within a semaphore of {PERMITS}",
            there + 1
        );
        Ok(())
    }
}

/// The same in each run.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Four threads for each processor, and at least eight, do a part of `rounds` each; `work` is told
/// which thread it is in. Returns how many rounds that was.
fn everywhere(rounds: u32, work: impl Fn(u32, &mut u64) -> Result<()> + Sync) -> Result<u32> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .max(2) as u32
        * 4;
    let part = |n: u32| {
        let mut state = u64::from(n) + 1;
        (0..rounds / threads).try_for_each(|_| work(n, &mut state))
    };
    thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || part(n))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread ended well"))
    })?;
    Ok(rounds / threads * threads)
}

/// A mutex, a read-write lock, a condition variable and a semaphore made of one, all at once.
fn locks() -> Result<()> {
    let (mutex, lock) = (Mutex::new(Pair::default()), RwLock::new(Pair::default()));
    let (permits, given_back, inside) = (Mutex::new(PERMITS), Condvar::new(), Inside::default());
    let written = AtomicU64::new(0);
    let rounds = everywhere(ROUNDS, |_, state| {
        let number = random(state);
        let pause = number.is_multiple_of(16);
        mutex.lock().expect("nobody panics").add(pause);
        if (number >> 8).is_multiple_of(4) {
            lock.write().expect("nobody panics").add(pause);
            written.fetch_add(1, Ordering::Relaxed);
        } else {
            ensure!(
                lock.read().expect("nobody panics").is_even(pause),
                "a reader saw half of what a writer did"
            );
        }
        *given_back
            .wait_while(permits.lock().expect("nobody panics"), |permits| {
                *permits == 0
            })
            .expect("nobody panics") -= 1;
        inside.visit(pause)?;
        *permits.lock().expect("nobody panics") += 1;
        given_back.notify_one();
        Ok(())
    })?;
    let (mutex, lock) = (
        mutex.into_inner().expect("nobody panics"),
        lock.into_inner().expect("nobody panics"),
    );
    ensure!(
        mutex.is_even(false) && mutex.total() == u64::from(rounds),
        "{} updates of {rounds}",
        mutex.total()
    );
    let written = written.into_inner();
    ensure!(
        lock.is_even(false) && lock.total() == written,
        "{} updates of {written}",
        lock.total()
    );
    Ok(())
}

/// Bytes of a record in the shared file.
const RECORD: usize = 48;

/// A pipe as a semaphore, a file that all append to, memory that all map and unmap, descriptors
/// that all open and close.
fn kernel_locks() -> Result<()> {
    let mut ends = [0; 2];
    // SAFETY: room for two integers.
    ensure!(unsafe { libc::pipe(ends.as_mut_ptr()) } == 0, "pipe failed");
    // SAFETY: both were just made, and are nobody else's.
    let (tokens, back) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    (&back).write_all(&[7; PERMITS as usize])?;
    let path = format!("/tmp/locks-{}", std::process::id());
    let file = File::options().append(true).create_new(true).open(&path)?;
    let inside = Inside::default();
    let rounds = everywhere(ROUNDS / 4, |n, state| {
        let number = random(state);
        let pause = number.is_multiple_of(16);
        let mut token = [0];
        (&tokens).read_exact(&mut token)?;
        ensure!(token == [7], "a token became {}", token[0]);
        inside.visit(pause)?;
        (&back).write_all(&token)?;
        (&file).write_all(&[n as u8; RECORD])?;
        map(n as u8)?;
        drop(file.try_clone()?);
        Ok(())
    });
    let mut records = Vec::new();
    File::open(&path)?.read_to_end(&mut records)?;
    std::fs::remove_file(&path)?;
    let expected = rounds? as usize * RECORD;
    ensure!(
        records.len() == expected,
        "the file has {} bytes, not {expected}",
        records.len()
    );
    let whole = records
        .chunks(RECORD)
        .all(|record| record.iter().all(|byte| *byte == record[0]));
    ensure!(whole, "records of two threads are mixed");
    Ok(())
}

/// Maps two pages, uses them, and unmaps them.
fn map(mark: u8) -> Result<()> {
    const BYTES: usize = 8192;
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: fresh memory wherever the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, kind, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "mmap failed");
    // SAFETY: mapped just now, and nobody else's.
    let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), BYTES) };
    let fresh = memory[0] == 0 && memory[BYTES - 1] == 0;
    (memory[0], memory[BYTES - 1]) = (mark, mark);
    let kept = memory[0] == mark && memory[BYTES - 1] == mark;
    // SAFETY: nobody uses it any more.
    let unmapped = unsafe { libc::munmap(at, BYTES) } == 0;
    ensure!(
        fresh && kept && unmapped,
        "fresh: {fresh}, kept: {kept}, unmapped: {unmapped}"
    );
    Ok(())
}
