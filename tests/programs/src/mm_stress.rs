//! Address spaces under fire: threads that fault, map, unmap, protect and fork at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{io, ptr, slice, thread};

use anyhow::{Result, anyhow, bail, ensure};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, c_int};

use crate::calls::{call, is};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    (
        "mm-stress-threads-change-their-own-parts",
        threads_change_their_own_parts,
    ),
    (
        "mm-stress-faults-on-the-same-pages",
        faults_on_the_same_pages,
    ),
    (
        "mm-stress-replaced-mappings-are-always-there",
        replaced_mappings_are_always_there,
    ),
    ("mm-stress-fork-beside-faults", fork_beside_faults),
    ("mm-stress-heap-of-many", heap_of_many),
];

const PAGE: usize = 4096;
const READ_WRITE: c_int = PROT_READ | PROT_WRITE;

/// Maps `pages` pages of zeros at `at`, or somewhere if it is null.
fn map(at: *mut u8, pages: usize) -> Result<*mut u8> {
    let fixed = if at.is_null() { 0 } else { MAP_FIXED };
    // SAFETY: a place of the kernel's choice, or one whose owner asks to have it replaced.
    let start = unsafe {
        libc::mmap(
            at.cast(),
            pages * PAGE,
            READ_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | fixed,
            -1,
            0,
        )
    };
    ensure!(
        start != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    Ok(start.cast())
}

/// The pages of the calling thread.
struct Part {
    start: *mut u8,
    pages: usize,
}

impl Part {
    fn word(&self, page: usize) -> *mut u64 {
        self.start.wrapping_add(page * PAGE).cast()
    }

    fn get(&self, page: usize) -> u64 {
        assert!(page < self.pages);
        // SAFETY: the page is this thread's and readable when it asks.
        unsafe { self.word(page).read_volatile() }
    }

    fn set(&self, page: usize, value: u64) {
        assert!(page < self.pages);
        // SAFETY: the page is this thread's and writable when it asks.
        unsafe { self.word(page).write_volatile(value) };
    }

    fn protect(&self, page: usize, protection: c_int) -> Result<()> {
        // SAFETY: this thread touches the page again only after it has made it accessible.
        checked(unsafe { libc::mprotect(self.word(page).cast(), PAGE, protection) })?;
        Ok(())
    }

    fn drop_page(&self, page: usize) -> Result<()> {
        // SAFETY: the page stays mapped and reads as zero.
        checked(unsafe { libc::madvise(self.word(page).cast(), PAGE, libc::MADV_DONTNEED) })?;
        Ok(())
    }

    fn unmap(&self, page: usize) -> Result<()> {
        // SAFETY: this thread's, and mapped again before it is touched.
        checked(unsafe { libc::munmap(self.word(page).cast(), PAGE) })?;
        Ok(())
    }
}

/// One thread's life: what it wrote is there, whatever its neighbours do.
fn churn(part: &Part, seed: u64, rounds: u64) -> Result<()> {
    let mut expected = vec![0u64; part.pages];
    let mut state = seed | 1;
    for round in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let page = (state >> 33) as usize % part.pages;
        ensure!(
            part.get(page) == expected[page],
            "page {page} is {:#x}, not {:#x}",
            part.get(page),
            expected[page]
        );
        match state % 6 {
            0 => {
                part.drop_page(page)?;
                expected[page] = 0;
            }
            1 => {
                part.protect(page, PROT_NONE)?;
                part.protect(
                    page,
                    if round % 2 == 0 {
                        READ_WRITE
                    } else {
                        PROT_READ
                    },
                )?;
                ensure!(
                    part.get(page) == expected[page],
                    "page {page} lost its content behind PROT_NONE"
                );
                part.protect(page, READ_WRITE)?;
            }
            2 => {
                map(part.word(page).cast(), 1)?;
                expected[page] = 0;
            }
            3 => {
                part.unmap(page)?;
                map(part.word(page).cast(), 1)?;
                expected[page] = 0;
            }
            _ => {
                part.set(page, state);
                expected[page] = state;
            }
        }
    }
    for (page, &value) in expected.iter().enumerate() {
        ensure!(
            part.get(page) == value,
            "page {page} is {:#x} at the end, not {value:#x}",
            part.get(page)
        );
    }
    Ok(())
}

/// Runs `body` in `count` threads, each with its number, and returns the first error.
fn in_threads(count: usize, body: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                scope.spawn({
                    let body = &body;
                    move || body(number)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Where several threads' parts begin, one behind the other.
struct Shared(*mut u8);

// SAFETY: threads take disjoint parts of it, or words of their own.
unsafe impl Sync for Shared {}

impl Shared {
    fn part(&self, number: usize, pages: usize) -> Part {
        Part {
            start: self.0.wrapping_add(number * pages * PAGE),
            pages,
        }
    }
}

fn threads_change_their_own_parts() -> Result<()> {
    const PAGES: usize = 24;
    let all = Shared(map(ptr::null_mut(), 8 * PAGES)?);
    in_threads(8, |number| {
        churn(
            &all.part(number, PAGES),
            0x9e37_79b9 * (number as u64 + 1),
            400,
        )
    })
}

fn faults_on_the_same_pages() -> Result<()> {
    const PAGES: usize = 64;
    for round in 0..20 {
        let all = Shared(map(ptr::null_mut(), PAGES)?);
        let part = all.part(0, PAGES);
        in_threads(6, |number| {
            let part = all.part(0, PAGES);
            for page in 0..PAGES {
                if (page + number + round) % 3 == 0 {
                    // SAFETY: readable; read before this thread's word is written.
                    unsafe { part.word(page).add(number).read_volatile() };
                }
                // SAFETY: this thread's word of the page.
                unsafe {
                    part.word(page)
                        .add(number)
                        .write_volatile(number as u64 + 1);
                };
            }
            Ok(())
        })?;
        for page in 0..PAGES {
            // SAFETY: the threads are gone.
            let words = unsafe { slice::from_raw_parts(part.word(page), 7) };
            ensure!(
                words == [1, 2, 3, 4, 5, 6, 0],
                "page {page} lost a thread's word: {words:?}"
            );
        }
        // SAFETY: nobody uses it any more.
        checked(unsafe { libc::munmap(part.start.cast(), PAGES * PAGE) })?;
    }
    Ok(())
}

fn replaced_mappings_are_always_there() -> Result<()> {
    let all = Shared(map(ptr::null_mut(), 8)?);
    let over = AtomicBool::new(false);
    in_threads(4, |number| {
        let part = all.part(0, 8);
        if number == 0 {
            for _ in 0..500 {
                map(part.start, 8)?;
                part.protect(3, READ_WRITE)?;
            }
            over.store(true, Ordering::Relaxed);
        }
        let mut page = number;
        while !over.load(Ordering::Relaxed) {
            // A mapping that was missing for a moment would be a SIGSEGV here.
            part.set(page % 8, number as u64);
            page += 1;
        }
        Ok(())
    })
}

fn fork_beside_faults() -> Result<()> {
    const PAGES: usize = 16;
    let all = Shared(map(ptr::null_mut(), 4 * PAGES)?);
    let over = AtomicBool::new(false);
    in_threads(4, |number| {
        let part = all.part(number, PAGES);
        if number > 0 {
            let mut seed = number as u64;
            while !over.load(Ordering::Relaxed) {
                seed += 1;
                churn(&part, seed * 77, 50)?;
                (0..PAGES).try_for_each(|page| part.drop_page(page))?;
            }
            return Ok(());
        }
        let outcome = (0..20).try_for_each(|round| {
            part.set(0, round);
            // SAFETY: the child does nothing but touch memory and leave.
            let child = checked(unsafe { libc::fork() })?;
            if child == 0 {
                part.set(1, 7);
                let seen = part.get(0) == round && part.get(1) == 7;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!seen)) };
            }
            part.set(0, round + 1);
            let mut status = 0;
            // SAFETY: `status` is this thread's.
            checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
            if status != 0 || part.get(1) == 7 {
                bail!(
                    "round {round}: the child's status is {status:#x}, its page {}",
                    part.get(1)
                );
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Threads that grow the heap and take it back at once: each is given what it asks for. Nobody
/// allocates memory meanwhile.
fn heap_of_many() -> Result<()> {
    const THREADS: usize = 4;
    let base = call!(SYS_brk, 0);
    let ready = std::sync::Barrier::new(THREADS + 1);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 1..=THREADS as i64 {
            let (ready, refused) = (&ready, &refused);
            scope.spawn(move || {
                ready.wait();
                for _ in 0..1000 {
                    for end in [base + thread * 4096, base + thread * 2048, base] {
                        refused
                            .fetch_add(usize::from(call!(SYS_brk, end) != end), Ordering::Relaxed);
                    }
                }
            });
        }
        ready.wait();
    });
    is(call!(SYS_brk, base), base, "the heap as it was")?;
    let refused = refused.load(Ordering::Relaxed);
    ensure!(refused == 0, "{refused} calls were refused");
    is(
        call!(SYS_brk, base + (1 << 20)),
        base + (1 << 20),
        "a larger heap",
    )?;
    is(call!(SYS_brk, base), base, "the heap as it was")
}
