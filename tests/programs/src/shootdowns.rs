//! A page that a thread on another processor has just used, and goes on to use: what is done to it
//! holds for that thread as soon as the call returns. Both threads keep to their processors and
//! nothing else runs, so nothing but the kernel makes the other processor forget.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, mem, ptr, thread};

use anyhow::{Context, Result, ensure};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_int,
    c_void,
};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("shootdowns-of-access", access),
    ("shootdowns-of-writing", writing),
    ("shootdowns-of-mappings", mappings),
    ("shootdowns-of-moved-pages", moved_pages),
    ("shootdowns-of-replaced-pages", replaced_pages),
    ("shootdowns-of-dropped-pages", dropped_pages),
    ("shootdowns-of-a-file-cut-short", cut_short),
    ("shootdowns-of-holes", holes),
    ("shootdowns-by-fork", by_fork),
];

const PAGE: usize = 4096;
const ROUNDS: usize = 8;
/// First value of the page, and first value that is written to it; then it is one more.
const BEFORE: u32 = 7;
const WRITTEN: u32 = 8;

/// Use of the page by the other thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// End of the other thread's second use of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Signal(c_int),
    Value(u32),
}

/// A page, with a file behind it or none.
struct Ground {
    page: *mut AtomicU32,
    file: Option<File>,
}

impl Ground {
    /// Memory of the process's own.
    fn private() -> Result<Self> {
        Ok(Self {
            page: map(ptr::null_mut(), MAP_PRIVATE | MAP_ANONYMOUS, -1)?,
            file: None,
        })
    }

    /// A page of a file, mapped to be shared.
    fn of_file() -> Result<Self> {
        // SAFETY: the name ends with a zero byte; nothing else has the descriptor.
        let file =
            unsafe { File::from_raw_fd(checked(libc::memfd_create(c"shootdowns".as_ptr(), 0))?) };
        file.set_len(PAGE as u64)?;
        Ok(Self {
            page: map(ptr::null_mut(), MAP_SHARED, file.as_raw_fd())?,
            file: Some(file),
        })
    }

    fn address(&self) -> *mut c_void {
        self.page.cast()
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().context("there is a file")
    }

    fn word(&self) -> Word {
        Word(self.page as usize)
    }
}

/// The first word of the page, which is used wherever it is mapped then.
#[derive(Clone, Copy)]
struct Word(usize);

impl Word {
    fn used(self, how: Use, value: u32) -> u32 {
        let word = self.0 as *mut u32;
        // SAFETY: the page is mapped, or the signal that ends the process is what is looked for.
        unsafe {
            if how == Use::Write {
                word.write_volatile(value);
            }
            word.read_volatile()
        }
    }
}

fn map(at: *mut c_void, flags: c_int, fd: c_int) -> Result<*mut AtomicU32> {
    // SAFETY: a place of the kernel's choice, or the page of this check's own.
    let start = unsafe { libc::mmap(at, PAGE, PROT_READ | PROT_WRITE, flags, fd, 0) };
    ensure!(
        start != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    Ok(start.cast())
}

/// Two processors that the process may use; the same twice if there is only one.
fn processors() -> Result<[usize; 2]> {
    // SAFETY: the set is as large as the call is told.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        checked(libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set))?;
        set
    };
    // SAFETY: the numbers are within the set.
    let mut permitted =
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
    let first = permitted.next().context("no processor is permitted")?;
    Ok([first, permitted.next().unwrap_or(first)])
}

pub fn keep_to(cpu: usize) -> io::Result<()> {
    // SAFETY: the set is as large as the call is told, and the number within it.
    checked(unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    })
    .map(drop)
}

/// Waits for a step without leaving the processor, if the other thread has one of its own.
fn wait_for(steps: &AtomicU32, step: u32, alone: bool) {
    while steps.load(Ordering::Acquire) != step {
        if alone {
            std::hint::black_box(());
        } else {
            thread::yield_now();
        }
    }
}

/// The other thread uses the page, this one changes it, the other uses it again: what it saw then.
fn play(word: Word, how: Use, change: impl FnOnce() -> Result<()>) -> Result<u32> {
    let [here, there] = processors()?;
    let (steps, alone) = (AtomicU32::new(0), here != there);
    keep_to(here)?;
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let kept = keep_to(there);
            word.used(how, WRITTEN);
            steps.store(1, Ordering::Release);
            wait_for(&steps, 2, alone);
            kept.map(|()| word.used(how, WRITTEN + 1))
        });
        wait_for(&steps, 1, alone);
        let changed = change();
        steps.store(2, Ordering::Release);
        let seen = other
            .join()
            .map_err(|_| anyhow::anyhow!("the other thread panicked"))??;
        changed.map(|()| seen)
    })
}

/// Plays it again and again, each time in a process of its own, which ends as `end` says.
fn ends(
    ground: fn() -> Result<Ground>,
    how: Use,
    change: fn(&Ground) -> Result<()>,
    end: End,
) -> Result<()> {
    for round in 0..ROUNDS {
        // SAFETY: this process has one thread.
        let child = checked(unsafe { libc::fork() })?;
        if child == 0 {
            let status = match ground().and_then(|ground| {
                // SAFETY: the page is this process's, and mapped.
                unsafe { &*ground.page }.store(BEFORE, Ordering::Relaxed);
                play(ground.word(), how, || change(&ground))
            }) {
                Ok(seen) => seen as i32,
                Err(error) => {
                    println!("{error:#}");
                    99
                }
            };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let seen = match wait(child)? {
            status if libc::WIFSIGNALED(status) => End::Signal(libc::WTERMSIG(status)),
            status => End::Value(libc::WEXITSTATUS(status) as u32),
        };
        ensure!(
            seen == end,
            "round {round}: the other thread's use of the page ended with {seen:?} instead of {end:?}"
        );
    }
    Ok(())
}

fn wait(child: c_int) -> Result<c_int> {
    let mut status = 0;
    ensure!(
        // SAFETY: the status is this function's.
        checked(unsafe { libc::waitpid(child, &mut status, 0) })? == child,
        "another child ended"
    );
    Ok(status)
}

fn access() -> Result<()> {
    let change = |ground: &Ground| {
        // SAFETY: the page is the check's own, here and below; nothing but the other thread uses
        // it, whose end is what is looked at.
        Ok(checked(unsafe { libc::mprotect(ground.address(), PAGE, PROT_NONE) }).map(drop)?)
    };
    ends(
        Ground::private,
        Use::Read,
        change,
        End::Signal(libc::SIGSEGV),
    )
}

fn writing() -> Result<()> {
    let change = |ground: &Ground| {
        // SAFETY: as above.
        Ok(checked(unsafe { libc::mprotect(ground.address(), PAGE, PROT_READ) }).map(drop)?)
    };
    ends(
        Ground::private,
        Use::Write,
        change,
        End::Signal(libc::SIGSEGV),
    )?;
    ends(
        Ground::of_file,
        Use::Write,
        change,
        End::Signal(libc::SIGSEGV),
    )?;
    ends(Ground::private, Use::Read, change, End::Value(BEFORE))
}

fn mappings() -> Result<()> {
    // SAFETY: as above.
    let change =
        |ground: &Ground| Ok(checked(unsafe { libc::munmap(ground.address(), PAGE) }).map(drop)?);
    ends(
        Ground::private,
        Use::Read,
        change,
        End::Signal(libc::SIGSEGV),
    )?;
    ends(
        Ground::of_file,
        Use::Write,
        change,
        End::Signal(libc::SIGSEGV),
    )
}

fn moved_pages() -> Result<()> {
    let change = |ground: &Ground| {
        let to = map(ptr::null_mut(), MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
        // SAFETY: as above; both places are the check's.
        let moved = unsafe {
            libc::mremap(
                ground.address(),
                PAGE,
                PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                to.cast::<c_void>(),
            )
        };
        ensure!(moved == to.cast(), "mremap: {}", io::Error::last_os_error());
        Ok(())
    };
    ends(
        Ground::private,
        Use::Read,
        change,
        End::Signal(libc::SIGSEGV),
    )?;
    ends(
        Ground::of_file,
        Use::Write,
        change,
        End::Signal(libc::SIGSEGV),
    )
}

fn replaced_pages() -> Result<()> {
    let change = |ground: &Ground| {
        map(
            ground.address(),
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
            -1,
        )
        .map(drop)
    };
    ends(Ground::private, Use::Read, change, End::Value(0))?;
    ends(Ground::of_file, Use::Read, change, End::Value(0))
}

fn dropped_pages() -> Result<()> {
    let change = |ground: &Ground| {
        Ok(
            // SAFETY: as above.
            checked(unsafe { libc::madvise(ground.address(), PAGE, libc::MADV_DONTNEED) })
                .map(drop)?,
        )
    };
    ends(Ground::private, Use::Read, change, End::Value(0))
}

fn cut_short() -> Result<()> {
    ends(
        Ground::of_file,
        Use::Read,
        |ground| Ok(ground.file()?.set_len(0)?),
        End::Signal(libc::SIGBUS),
    )
}

fn holes() -> Result<()> {
    let change = |ground: &Ground| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: numbers only.
        Ok(
            checked(unsafe { libc::fallocate(ground.file()?.as_raw_fd(), mode, 0, PAGE as i64) })
                .map(drop)?,
        )
    };
    ends(Ground::of_file, Use::Read, change, End::Value(0))
}

/// A write of the other thread after the fork is not in the child's memory.
fn by_fork() -> Result<()> {
    let told = map(ptr::null_mut(), MAP_SHARED | MAP_ANONYMOUS, -1)?;
    // SAFETY: the page stays mapped until the process ends.
    let told = unsafe { &*told };
    for round in 0..ROUNDS {
        told.store(0, Ordering::Relaxed);
        let word = Ground::private()?.word();
        let mut child = 0;
        let seen = play(word, Use::Write, || {
            // SAFETY: the child makes no calls but those that give up its processor and end it.
            child = checked(unsafe { libc::fork() })?;
            if child == 0 {
                wait_for(told, 1, false);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(word.used(Use::Read, 0) as i32) };
            }
            Ok(())
        })?;
        told.store(1, Ordering::Release);
        let status = wait(child)?;
        ensure!(
            seen == WRITTEN + 1,
            "round {round}: the other thread reads {seen}"
        );
        let has = libc::WEXITSTATUS(status) as u32;
        ensure!(
            libc::WIFEXITED(status) && has == WRITTEN,
            "round {round}: the child reads {has}: status {status:#x}"
        );
    }
    Ok(())
}
