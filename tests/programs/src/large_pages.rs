//! Pages of 2 MiB: that who asks gets them, and that nobody can tell by what is in memory.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, c_int,
    c_void,
};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("large-pages-are-had", are_had),
    ("large-pages-are-split", are_split),
    ("large-pages-are-forked", are_forked),
    ("large-pages-are-moved", are_moved),
    ("large-pages-are-collapsed", are_collapsed),
    ("large-pages-are-forbidden", are_forbidden),
    ("large-pages-in-other-hands", in_other_hands),
    ("large-pages-race", race),
];

const PAGE: usize = 4096;
const LARGE: usize = 2 << 20;
/// Pages of a large page.
const PAGES: usize = LARGE / PAGE;
const READ_WRITE: c_int = PROT_READ | PROT_WRITE;
const MADV_COLLAPSE: c_int = 25;

/// Large pages' worth of memory at an aligned address, with room of one page that cannot be used on
/// both sides.
struct Memory {
    at: *mut u8,
    len: usize,
}

impl Memory {
    fn new(count: usize) -> Result<Self> {
        let len = count * LARGE;
        // SAFETY: a place of the kernel's choice.
        let around = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len + 2 * LARGE,
                PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        ensure!(around != MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        let inner = around.wrapping_byte_add(PAGE).cast::<u8>();
        let memory = Self {
            at: inner.wrapping_add(inner.align_offset(LARGE)),
            len,
        };
        memory.protect(0, len, READ_WRITE)?;
        Ok(memory)
    }

    fn wanted(count: usize) -> Result<Self> {
        let memory = Self::new(count)?;
        memory.advise(0, memory.len, libc::MADV_HUGEPAGE)?;
        Ok(memory)
    }

    fn advise(&self, from: usize, len: usize, advice: c_int) -> io::Result<()> {
        // SAFETY: what may be lost is the caller's.
        checked(unsafe { libc::madvise(self.at.wrapping_add(from).cast(), len, advice) }).map(drop)
    }

    fn protect(&self, from: usize, len: usize, protection: c_int) -> io::Result<()> {
        // SAFETY: the caller knows what may be touched.
        checked(unsafe { libc::mprotect(self.at.wrapping_add(from).cast(), len, protection) })
            .map(drop)
    }

    fn unmap(&self, from: usize, len: usize) -> io::Result<()> {
        // SAFETY: the caller does not touch it any more.
        checked(unsafe { libc::munmap(self.at.wrapping_add(from).cast(), len) }).map(drop)
    }

    fn get(&self, page: usize) -> u32 {
        // SAFETY: the caller knows that the page may be read.
        unsafe { self.at.add(page * PAGE).cast::<u32>().read_volatile() }
    }

    fn set(&self, page: usize, value: u32) {
        // SAFETY: the caller knows that the page may be written to.
        unsafe { self.at.add(page * PAGE).cast::<u32>().write_volatile(value) }
    }

    /// Marks every page with its number and `plus`.
    fn mark(&self, plus: u32) {
        (0..self.len / PAGE).for_each(|page| self.set(page, page as u32 + plus));
    }

    /// Whether pages of a range have these marks.
    fn marked(&self, mut pages: std::ops::Range<usize>, plus: u32) -> bool {
        pages.all(|page| self.get(page) == page as u32 + plus)
    }

    /// KiB that `smaps` has by this name for what is here.
    fn listed(&self, name: &str) -> Result<usize> {
        let (mut inside, mut sum) = (false, 0);
        for line in fs::read_to_string("/proc/self/smaps")?.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().context("an empty line")?;
            if let Some((start, end)) = first.split_once('-') {
                let part = usize::from_str_radix(start, 16)?..usize::from_str_radix(end, 16)?;
                inside = part.start >= self.at.addr() && part.end <= self.at.addr() + self.len;
            } else if inside && first == name {
                sum += words.next().context("no number")?.parse::<usize>()?;
            }
        }
        Ok(sum)
    }

    /// Large pages here, and single pages' worth of memory in all.
    fn sizes(&self) -> Result<(usize, usize)> {
        Ok((
            self.listed("AnonHugePages:")? * 1024 / LARGE,
            self.listed("Rss:")? * 1024 / PAGE,
        ))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: its own, and nobody has references into it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// A number in a file of names and numbers.
fn number(file: &str, name: &str) -> Result<usize> {
    let text = fs::read_to_string(file)?;
    let line = text
        .lines()
        .find(|line| line.split([':', ' ']).next() == Some(name))
        .with_context(|| format!("no {name}"))?;
    Ok(line
        .split_whitespace()
        .nth(1)
        .context("no number")?
        .parse()?)
}

fn faults() -> i64 {
    // SAFETY: zeros are such a structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a place for it.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_minflt
}

fn are_had() -> Result<()> {
    let base = "/sys/kernel/mm/transparent_hugepage";
    let enabled = fs::read_to_string(format!("{base}/enabled"))?;
    ensure!(
        enabled.contains("[madvise]") || enabled.contains("[always]"),
        "enabled: {enabled}"
    );
    ensure!(
        fs::read_to_string(format!("{base}/hpage_pmd_size"))?.trim() == "2097152",
        "another size"
    );
    let memory = Memory::wanted(32)?;
    ensure!(memory.listed("THPeligible:")? == 1, "not eligible");
    let before = (faults(), number("/proc/vmstat", "thp_fault_alloc")?);
    memory.mark(1);
    let after = (faults(), number("/proc/vmstat", "thp_fault_alloc")?);
    ensure!(memory.sizes()? == (32, 32 * PAGES), "{:?}", memory.sizes());
    ensure!(
        after.0 - before.0 < 200 && after.1 - before.1 >= 32,
        "{before:?} {after:?}"
    );
    ensure!(memory.marked(0..32 * PAGES, 1), "something is lost");
    for file in ["/proc/meminfo", "/proc/self/smaps_rollup"] {
        ensure!(
            number(file, "AnonHugePages")? >= 32 * LARGE / 1024,
            "less in {file}"
        );
    }
    // Zeros, whoever had the memory before.
    let again = Memory::wanted(1)?;
    ensure!(
        (0..LARGE).step_by(8).all(|at| {
            // SAFETY: within the memory.
            unsafe { again.at.add(at).cast::<u64>().read_volatile() == 0 }
        }),
        "not zeros"
    );
    Ok(())
}

fn are_split() -> Result<()> {
    let memory = Memory::wanted(5)?;
    memory.mark(7);
    ensure!(memory.sizes()? == (5, 5 * PAGES), "{:?}", memory.sizes());
    memory.unmap(LARGE / 2, PAGE)?;
    ensure!(
        memory.sizes()? == (4, 5 * PAGES - 1),
        "after munmap of a page: {:?}",
        memory.sizes()
    );
    ensure!(
        memory.marked(0..PAGES / 2, 7) && memory.marked(PAGES / 2 + 1..5 * PAGES, 7),
        "munmap lost something"
    );
    memory.protect(LARGE + 3 * PAGE, PAGE, PROT_READ)?;
    ensure!(
        memory.sizes()? == (3, 5 * PAGES - 1) && memory.marked(PAGES..5 * PAGES, 7),
        "after mprotect: {:?}",
        memory.sizes()
    );
    memory.set(PAGES + 4, 9);
    memory.advise(2 * LARGE + PAGE, 2 * PAGE, libc::MADV_DONTNEED)?;
    ensure!(
        memory.sizes()? == (2, 5 * PAGES - 3),
        "after MADV_DONTNEED: {:?}",
        memory.sizes()
    );
    ensure!(
        [0, 1, 2, 3].map(|n| memory.get(2 * PAGES + n)) == [1031, 0, 0, 1034],
        "MADV_DONTNEED dropped something else"
    );
    // All of one: it stays whole, whatever is made of it.
    memory.protect(3 * LARGE, LARGE, PROT_READ)?;
    memory.protect(3 * LARGE, LARGE, READ_WRITE)?;
    memory.set(3 * PAGES, 3);
    ensure!(memory.sizes()?.0 == 2, "mprotect of the whole split it");
    // Neither readable nor anything, and back.
    memory.protect(3 * LARGE + PAGE, LARGE - PAGE, PROT_NONE)?;
    memory.protect(3 * LARGE + PAGE, LARGE - PAGE, READ_WRITE)?;
    ensure!(
        memory.marked(3 * PAGES + 1..5 * PAGES, 7) && memory.get(3 * PAGES) == 3,
        "PROT_NONE lost something"
    );
    // SAFETY: locks this check's memory.
    checked(unsafe { libc::mlock(memory.at.wrapping_add(4 * LARGE).cast(), LARGE) })
        .context("mlock")?;
    memory.unmap(4 * LARGE, LARGE - PAGE)?;
    ensure!(memory.marked(5 * PAGES - 1..5 * PAGES, 7), "the last page");
    Ok(())
}

/// Runs `work` in a child and sees it succeed.
fn in_child(work: impl FnOnce() -> bool) -> Result<()> {
    // SAFETY: the child uses nothing that another thread may hold, and leaves by `_exit`.
    let child = checked(unsafe { libc::fork() }).context("fork")?;
    if child == 0 {
        // SAFETY: the call does not return.
        unsafe { libc::_exit(i32::from(!work())) };
    }
    let mut status = 0;
    // SAFETY: the status is written to a valid place.
    checked(unsafe { libc::waitpid(child, &mut status, 0) }).context("waitpid")?;
    ensure!(status == 0, "the child ended with {status:#x}");
    Ok(())
}

fn are_forked() -> Result<()> {
    let memory = Memory::wanted(4)?;
    memory.mark(1);
    // The child writes: its copies are its own.
    in_child(|| {
        let seen = memory.marked(0..4 * PAGES, 1);
        (0..4 * PAGES)
            .step_by(3)
            .for_each(|page| memory.set(page, 5));
        memory.protect(0, PAGE, PROT_READ).is_ok()
            && seen
            && (0..4 * PAGES)
                .all(|page| memory.get(page) == if page % 3 == 0 { 5 } else { page as u32 + 1 })
    })?;
    ensure!(
        memory.marked(0..4 * PAGES, 1),
        "the child's writes reached the parent"
    );
    memory.mark(2);
    ensure!(
        memory.marked(0..4 * PAGES, 2),
        "the parent cannot write any more"
    );
    // The parent writes while the child waits; the child sees what was.
    let (reader, mut writer) = io::pipe()?;
    // SAFETY: as in `in_child`.
    let child = checked(unsafe { libc::fork() })?;
    if child == 0 {
        drop(writer);
        let read = io::Read::read_exact(&mut &reader, &mut [0]).is_ok();
        // SAFETY: the call does not return.
        unsafe { libc::_exit(i32::from(!(read && memory.marked(0..4 * PAGES, 2)))) };
    }
    (0..PAGES).for_each(|page| memory.set(page, 9));
    memory.unmap(2 * LARGE + PAGE, PAGE)?;
    writer.write_all(&[1])?;
    let mut status = 0;
    // SAFETY: the status is written to a valid place.
    checked(unsafe { libc::waitpid(child, &mut status, 0) })?;
    ensure!(status == 0, "the child saw the parent's writes");
    ensure!(
        (0..PAGES).all(|page| memory.get(page) == 9) && memory.marked(PAGES..2 * PAGES, 2),
        "the parent's own"
    );
    Ok(())
}

fn are_moved() -> Result<()> {
    let (memory, elsewhere) = (Memory::wanted(3)?, Memory::new(3)?);
    memory.mark(1);
    let move_to = |from: usize, len: usize, to: usize| {
        let (old, new) = (memory.at.wrapping_add(from), elsewhere.at.wrapping_add(to));
        // SAFETY: both are this check's.
        let at = unsafe {
            libc::mremap(
                old.cast(),
                len,
                len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                new.cast::<c_void>(),
            )
        };
        if at == MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    move_to(0, LARGE, LARGE)?;
    ensure!(
        (PAGES..2 * PAGES).all(|page| elsewhere.get(page) == (page - PAGES) as u32 + 1),
        "lost on the way"
    );
    move_to(LARGE, LARGE, PAGE)?;
    let moved = |page: usize| (PAGES + page - 1) as u32 + 1;
    ensure!(
        (1..=PAGES).all(|page| elsewhere.get(page) == moved(page)),
        "lost on an odd way"
    );
    move_to(2 * LARGE + PAGE, PAGE, 0)?;
    ensure!(
        elsewhere.get(0) == 2 * PAGES as u32 + 2 && memory.marked(2 * PAGES + 2..3 * PAGES, 1),
        "a page of it"
    );
    Ok(())
}

fn are_collapsed() -> Result<()> {
    let memory = Memory::new(2)?;
    memory.advise(0, 2 * LARGE, libc::MADV_NOHUGEPAGE)?;
    (0..PAGES)
        .step_by(5)
        .for_each(|page| memory.set(page, page as u32 + 1));
    ensure!(memory.sizes()?.0 == 0, "large in spite of MADV_NOHUGEPAGE");
    memory.advise(0, LARGE, libc::MADV_HUGEPAGE)?;
    match memory.advise(0, LARGE, MADV_COLLAPSE) {
        // Before Linux 6.1.
        Err(error)
            if error.raw_os_error() == Some(libc::EINVAL)
                && number("/proc/vmstat", "thp_split_pmd").is_err() =>
        {
            return Ok(());
        }
        result => result.context("MADV_COLLAPSE")?,
    }
    ensure!(memory.sizes()? == (1, PAGES), "{:?}", memory.sizes());
    ensure!(
        (0..PAGES).all(|page| memory.get(page) == if page % 5 == 0 { page as u32 + 1 } else { 0 }),
        "other content"
    );
    memory.mark(4);
    ensure!(memory.marked(0..PAGES, 4), "not to be written to");
    Ok(())
}

fn are_forbidden() -> Result<()> {
    // SAFETY: numbers only.
    let forbid =
        |yes: u64| checked(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, 0u64, 0u64, 0u64) });
    // SAFETY: numbers only.
    let forbidden = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0u64, 0u64, 0u64, 0u64) };
    ensure!(forbidden() == 0, "forbidden at first");
    forbid(1)?;
    let memory = Memory::wanted(2)?;
    memory.mark(1);
    ensure!(
        forbidden() == 1 && memory.sizes()? == (0, 2 * PAGES),
        "{:?}",
        memory.sizes()
    );
    in_child(|| forbidden() == 1)?;
    forbid(0)?;
    let memory = Memory::wanted(1)?;
    memory.set(0, 1);
    ensure!(
        forbidden() == 0 && memory.sizes()? == (1, PAGES),
        "{:?}",
        memory.sizes()
    );
    ensure!(
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1u64, 1u64, 0u64, 0u64) } == -1,
        "odd arguments are taken"
    );
    Ok(())
}

fn in_other_hands() -> Result<()> {
    let memory = Memory::wanted(2)?;
    memory.mark(3);
    let page = PAGES + 17;
    // As another process would write to it.
    let new = 77u32.to_ne_bytes();
    let word = libc::iovec {
        iov_base: memory.at.wrapping_add(page * PAGE).cast(),
        iov_len: new.len(),
    };
    // SAFETY: writes to this check's own memory.
    let put = unsafe {
        libc::process_vm_writev(
            libc::getpid(),
            [IoSlice::new(&new)].as_ptr().cast(),
            1,
            &word,
            1,
            0,
        )
    };
    ensure!(
        put == 4 && memory.get(page) == 77,
        "process_vm_writev: {put}"
    );
    // As another process sees it, across the border of two.
    let mut copy = vec![0u8; LARGE];
    let local = [IoSliceMut::new(&mut copy)];
    let remote = libc::iovec {
        iov_base: memory.at.wrapping_add(LARGE / 2).cast(),
        iov_len: LARGE,
    };
    // SAFETY: writes to `copy` only.
    let got =
        unsafe { libc::process_vm_readv(libc::getpid(), local.as_ptr().cast(), 1, &remote, 1, 0) };
    ensure!(got == LARGE as isize, "process_vm_readv: {got}");
    let at =
        |n: usize| u32::from_ne_bytes(copy[n * PAGE..n * PAGE + 4].try_into().unwrap_or_default());
    ensure!(
        (0..PAGES).all(|n| n + PAGES / 2 == page || at(n) == (n + PAGES / 2) as u32 + 3),
        "process_vm_readv read something else"
    );
    // Pages in a pipe keep what they were when the memory goes.
    let (reader, writer) = io::pipe()?;
    // SAFETY: the memory is not written to until the pipe has been read.
    let gift = [IoSlice::new(unsafe {
        std::slice::from_raw_parts(memory.at.add(5 * PAGE), 2 * PAGE)
    })];
    // SAFETY: as above.
    let put = unsafe { libc::vmsplice(writer.as_raw_fd(), gift.as_ptr().cast(), 1, 0) };
    ensure!(put == 2 * PAGE as isize, "vmsplice: {put}");
    memory.unmap(0, LARGE)?;
    let mut bytes = vec![0; 2 * PAGE];
    io::Read::read_exact(&mut &reader, &mut bytes)?;
    ensure!(
        bytes[..4] == 8u32.to_ne_bytes() && bytes[PAGE..PAGE + 4] == 9u32.to_ne_bytes(),
        "the pipe has something else"
    );
    // A futex in it is the same word before and after it is split.
    let word = memory.at.wrapping_add(LARGE + 40 * PAGE).addr();
    memory.set(PAGES + 40, 0);
    let waiter = std::thread::spawn(move || {
        // SAFETY: the memory outlives the thread, which is joined.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word,
                libc::FUTEX_WAIT,
                0,
                ptr::null::<libc::timespec>(),
            )
        }
    });
    memory.protect(LARGE + 41 * PAGE, PAGE, PROT_READ)?;
    memory.set(PAGES + 40, 1);
    while !waiter.is_finished() {
        // SAFETY: wakes only.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
        std::thread::yield_now();
    }
    waiter
        .join()
        .map_err(|_| anyhow::anyhow!("the waiter panicked"))?;
    Ok(())
}

/// Writes to a child's copy.
fn scribble(at: usize) -> bool {
    // SAFETY: mapped in the child as it was in the parent.
    (0..2 * PAGES)
        .step_by(2)
        .for_each(|page| unsafe { ((at + page * PAGE) as *mut u32).write_volatile(u32::MAX) });
    true
}

/// Threads write to memory of which others unmap, protect, drop and fork parts: every thread finds
/// in its own pages what it wrote, or zeros where they were dropped.
fn race() -> Result<()> {
    const THREADS: usize = 3;
    const ROUNDS: u32 = 60;
    let memory = Memory::wanted(2)?;
    let over = AtomicBool::new(false);
    let bad = AtomicU32::new(0);
    let shared = memory.at.addr();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (over, bad) = (&over, &bad);
            scope.spawn(move || {
                // The even pages are written to by one thread each and never dropped.
                let own = || (2 * thread..2 * PAGES).step_by(2 * THREADS);
                for round in 0..ROUNDS {
                    for page in own() {
                        let at = (shared + page * PAGE) as *mut u32;
                        // SAFETY: mapped until the threads are joined.
                        unsafe { at.write_volatile(round) };
                    }
                    for page in own() {
                        let at = (shared + page * PAGE) as *const u32;
                        // SAFETY: as above.
                        if unsafe { at.read_volatile() } != round {
                            bad.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        let (over, bad) = (&over, &bad);
        scope.spawn(move || {
            for n in (0..).take_while(|_| !over.load(Ordering::Relaxed)) {
                let odd = (shared + (n * 7 % PAGES * 2 + 1) * PAGE) as *mut c_void;
                // SAFETY: nobody but this thread uses the odd pages.
                let done = unsafe {
                    odd.cast::<u8>().write_volatile(1);
                    let dropped = libc::madvise(odd, PAGE, libc::MADV_DONTNEED) == 0
                        && odd.cast::<u8>().read_volatile() == 0;
                    let again = libc::mmap(
                        odd,
                        PAGE,
                        READ_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                        -1,
                        0,
                    ) == odd;
                    let protected = libc::mprotect(odd, PAGE, PROT_READ) == 0
                        && libc::mprotect(odd, PAGE, READ_WRITE) == 0;
                    // It becomes large again, under the others' hands.
                    let _ = libc::madvise(shared as *mut c_void, 2 * LARGE, libc::MADV_HUGEPAGE);
                    let _ = libc::madvise(
                        (shared + n % 2 * LARGE) as *mut c_void,
                        LARGE,
                        MADV_COLLAPSE,
                    );
                    dropped && again && protected
                };
                if !done {
                    bad.fetch_add(1, Ordering::Relaxed);
                }
                if n % 16 == 0 && in_child(|| scribble(shared)).is_err() {
                    bad.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    });
    ensure!(
        bad.load(Ordering::Relaxed) == 0,
        "{} times something else was found",
        bad.load(Ordering::Relaxed)
    );
    Ok(())
}
