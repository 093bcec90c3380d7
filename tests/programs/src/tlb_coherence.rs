//! Coherence of translations: memory that one thread takes away is gone on all processors before
//! its call returns, whatever they have cached.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, PROT_READ, PROT_WRITE};

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[
    (
        "tlb-coherence-fork-freezes-the-child",
        fork_freezes_the_child,
    ),
    (
        "tlb-coherence-replaced-pages-are-let-go",
        replaced_pages_are_let_go,
    ),
];

const PAGE: usize = 4096;
/// More than are dropped one by one, so that both ways are gone.
const PAGES: usize = 40;
const WRITERS: usize = 3;

fn map(at: *mut libc::c_void, flags: libc::c_int) -> Result<*mut libc::c_void> {
    // SAFETY: `at` is null, or a mapping of this test's own of that length.
    let start = unsafe {
        libc::mmap(
            at,
            PAGES * PAGE,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    ensure!(
        start != libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    Ok(start)
}

/// Runs `work` with the words of a mapping, one per page, that other threads count up all the time,
/// each its own.
fn beside_writers(work: impl FnOnce(*mut libc::c_void, &[&AtomicU64]) -> Result<()>) -> Result<()> {
    let start = map(ptr::null_mut(), 0)?;
    // SAFETY: the mapping stays, or is replaced by another one, as long as the program runs.
    let words: Vec<&AtomicU64> = (0..PAGES)
        .map(|page| unsafe { AtomicU64::from_ptr(start.cast::<u64>().add(page * PAGE / 8)) })
        .collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (words, over) = (&words, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    for word in words.iter().skip(writer).step_by(WRITERS) {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let result = work(start, &words);
        over.store(true, Ordering::Relaxed);
        result
    })
}

fn sum(words: &[&AtomicU64]) -> u64 {
    words.iter().map(|word| word.load(Ordering::Relaxed)).sum()
}

/// The child's memory is that of the moment of the fork, whatever the parent's threads write on
/// other processors.
fn fork_freezes_the_child() -> Result<()> {
    beside_writers(|_, words| {
        for round in 0..25 {
            // SAFETY: the child looks at memory and ends.
            let child = unsafe { libc::fork() };
            ensure!(child >= 0, "fork: {}", std::io::Error::last_os_error());
            if child == 0 {
                let at_first = sum(words);
                let same = (0..200).all(|_| sum(words) == at_first);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!same)) };
            }
            let mut status = 0;
            // SAFETY: `status` is this thread's.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if waited != child || status != 0 {
                bail!("round {round}: the memory of child {child} changed: status {status:#x}");
            }
        }
        Ok(())
    })
}

/// A thread that writes to pages which are replaced meanwhile writes to the old or to the new ones,
/// and never to the old ones once they are somebody else's: here this thread's, which gets them
/// from the allocator and looks whether they stay as they are.
fn replaced_pages_are_let_go() -> Result<()> {
    beside_writers(|start, _| {
        for round in 0..60 {
            map(start, MAP_FIXED)?;
            // The frames given back are most likely these.
            let fresh = map(ptr::null_mut(), 0).context("more pages")?;
            // SAFETY: the mapping is as large and this thread's alone.
            let fresh_words: Vec<&AtomicU64> = (0..PAGES)
                .map(|page| unsafe {
                    AtomicU64::from_ptr(fresh.cast::<u64>().add(page * PAGE / 8))
                })
                .collect();
            fresh_words
                .iter()
                .for_each(|word| word.store(round, Ordering::Relaxed));
            for _ in 0..50 {
                if let Some(word) = fresh_words
                    .iter()
                    .find(|word| word.load(Ordering::Relaxed) != round)
                {
                    bail!(
                        "round {round}: a page of this thread's holds {:#x}",
                        word.load(Ordering::Relaxed)
                    );
                }
            }
            // SAFETY: the mapping is not used any more.
            unsafe { libc::munmap(fresh, PAGES * PAGE) };
        }
        Ok(())
    })
}
