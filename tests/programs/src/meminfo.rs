//! `/proc/meminfo`: its rows beside each other, and beside what is taken.

use std::fs;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::calls::call;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("meminfo-rows-fit-into-the-whole", rows_fit),
    ("meminfo-rows-move-by-what-is-taken", rows_move),
];

/// Time limit for counts that a system adds up now and then only, and for what is freed late.
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;
/// Memory that one page table maps.
const TABLE_SPAN: usize = 2 << 20;
/// Bytes of pages that are taken.
const PAGES: usize = 16 << 20;
const TABLES: usize = 256;
const THREADS: usize = 160;
const PAIRS: usize = 400;

/// A row, in bytes.
pub fn row(name: &str) -> Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    Ok(number.with_context(|| format!("no {name}"))? << 10)
}

fn rows_fit() -> Result<()> {
    // One text: the rows are of one moment, but for what a system counts late.
    let text = fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| -> Result<usize> {
        let words = text.lines().map(|line| line.split_whitespace());
        let mut found = words.filter_map(|mut words| {
            (words.next()? == format!("{name}:")).then(|| words.next()?.parse().ok())?
        });
        found.next().with_context(|| format!("no {name}"))
    };
    let all = of("MemTotal")?;
    let parts = [
        "MemFree",
        "Buffers",
        "Cached",
        "AnonPages",
        "Slab",
        "KernelStack",
        "PageTables",
    ];
    let sizes = parts.map(of).into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(
        sizes.iter().sum::<usize>() <= all,
        "{parts:?} have {sizes:?} of {all}"
    );
    ensure!(
        of("Slab")? == of("SReclaimable")? + of("SUnreclaim")?,
        "the parts of Slab"
    );
    ensure!(
        of("Shmem")? <= of("Cached")?,
        "shared memory is in the cache"
    );
    ensure!(
        of("MemAvailable")? <= all,
        "more is available than there is"
    );
    Ok(())
}

fn rows_move() -> Result<()> {
    moves("AnonPages", PAGES, || {
        let mut pages = vec![0u8; PAGES];
        pages.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        Ok(std::hint::black_box(pages))
    })?;
    for name in ["Shmem", "Cached"] {
        moves(name, PAGES, || {
            let fd = call!(SYS_memfd_create, c"meminfo".as_ptr(), 0);
            ensure!(fd >= 0, "memfd_create: {fd}");
            // SAFETY: a descriptor that nobody else has.
            let mut file = unsafe { fs::File::from_raw_fd(fd as i32) };
            file.write_all(&vec![1; PAGES])?;
            Ok(file)
        })?;
    }
    moves("PageTables", TABLES * PAGE, || Sparse::new(TABLES))?;
    // What a pair of sockets and their files have of a slab at least.
    moves("Slab", PAIRS * 512, || {
        let pairs = (0..PAIRS).map(|_| UnixStream::pair());
        Ok(pairs.collect::<Result<Vec<_>, _>>()?)
    })?;
    stacks()
}

/// Sees that a row grows by `bytes`, or nearly so, while something is there, and becomes less when
/// it is not any more.
fn moves<T>(name: &str, bytes: usize, take: impl FnOnce() -> Result<T>) -> Result<()> {
    let before = row(name)?;
    let taken = take().with_context(|| name.to_owned())?;
    let with = until(name, |now| now >= before + bytes / 4 * 3)?;
    drop(taken);
    until(name, |now| now + bytes / 4 * 3 <= with).map(drop)
}

/// Threads that all wait have stacks in the kernel. It may have kept them from threads before, and
/// may keep them for the next ones.
fn stacks() -> Result<()> {
    // Linux' have four pages, this kernel's eight.
    const LEAST: usize = THREADS * 4 * PAGE;
    let barrier = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| barrier.wait());
        }
        let all = until("KernelStack", |now| now >= LEAST);
        barrier.wait();
        all.map(drop)
    })
}

/// Waits until a row is as it should be; what it is.
fn until(name: &str, holds: impl Fn(usize) -> bool) -> Result<usize> {
    let (begin, first) = (Instant::now(), row(name)?);
    loop {
        let now = row(name)?;
        if holds(now) {
            return Ok(now);
        }
        ensure!(
            begin.elapsed() < PATIENCE,
            "{name} was {first} and is {now}, which does not fit what was done"
        );
        thread::yield_now();
    }
}

/// A mapping with one page in the span of each table.
struct Sparse(*mut libc::c_void, usize);

impl Sparse {
    fn new(tables: usize) -> Result<Self> {
        let len = (tables + 1) * TABLE_SPAN;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        ensure!(at != libc::MAP_FAILED, "mmap");
        let sparse = Self(at, len);
        // SAFETY: the mapping is this function's.
        checked(unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) })?;
        for table in 0..tables {
            // SAFETY: within the mapping.
            unsafe {
                at.cast::<u8>()
                    .add((table + 1) * TABLE_SPAN)
                    .sub(PAGE)
                    .write_volatile(1);
            }
        }
        Ok(sparse)
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nobody uses it any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}
