//! Pages of all kinds, whose words are checked all the time while their memory is moved from under
//! them: nobody may notice.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_int,
};

use crate::checked;
use crate::leaving_cpus::told;

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;
const READ_WRITE: c_int = PROT_READ | PROT_WRITE;
/// Factor by which the number of a word becomes its content.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// `machine-tests moved-pages KIB FILE`: has so much of each kind, says `ready`, and checks until
/// the file is there.
pub fn run(kib: &str, done: &str) -> ExitCode {
    told("moved-pages", check_all(kib, done))
}

/// Memory whose words are looked at and changed one by one.
#[derive(Clone, Copy)]
struct Memory(&'static [AtomicU64]);

impl Memory {
    fn map(pages: usize, protection: c_int, flags: c_int, fd: c_int) -> Result<Self> {
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, protection, flags, fd, 0) };
        ensure!(at != MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        // SAFETY: mapped above, and never unmapped; any bits are an atomic number.
        Ok(Self(unsafe {
            std::slice::from_raw_parts(at.cast(), pages * WORDS)
        }))
    }

    fn private(pages: usize) -> Result<Self> {
        Self::map(pages, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
    }

    /// One word of each page in eight.
    fn words(&self) -> impl Iterator<Item = (u64, &AtomicU64)> {
        (0..).zip(self.0).step_by(WORDS / 8 - 1)
    }

    fn fill(&self, round: u64) {
        for (index, word) in self.words() {
            word.store(
                (round << 40 | index).wrapping_mul(FACTOR),
                Ordering::Relaxed,
            );
        }
    }

    /// Whether the words are those of a round.
    fn check(&self, round: u64, what: &str) -> Result<()> {
        for (index, word) in self.words() {
            let (is, wanted) = (
                word.load(Ordering::Relaxed),
                (round << 40 | index).wrapping_mul(FACTOR),
            );
            ensure!(
                is == wanted,
                "{what}: word {index} of round {round} is {is:#x} instead of {wanted:#x}"
            );
        }
        Ok(())
    }

    fn protect(&self, protection: c_int) -> Result<()> {
        let at = self.0.as_ptr().cast_mut().cast();
        // SAFETY: a mapping of this program's, which nobody uses while it is inaccessible.
        checked(unsafe { libc::mprotect(at, self.0.len() * 8, protection) })?;
        Ok(())
    }

    fn advise(&self, advice: c_int) -> Result<()> {
        let at = self.0.as_ptr().cast_mut().cast();
        // SAFETY: changes nothing of what is in memory.
        checked(unsafe { libc::madvise(at, self.0.len() * 8, advice) })?;
        Ok(())
    }
}

/// Runs `child` in a child process; its process number.
fn fork(child: impl FnOnce() -> Result<()>) -> Result<c_int> {
    // SAFETY: the child allocates little, and before there are threads.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        let status = match child() {
            Ok(()) => 0,
            Err(error) => {
                println!("moved-pages: a child: {error:#}");
                1
            }
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

fn check_all(kib: &str, done: &str) -> Result<String> {
    let pages = kib.parse::<usize>()? * 1024 / PAGE;
    let done = done.to_owned();
    let goes_on = move || fs::metadata(&done).is_err();
    // Of those that children share, before there are threads.
    let forked = Memory::private(pages)?;
    forked.fill(1);
    let shared = Memory::map(pages, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1)?;
    let name = c"moved";
    // SAFETY: the name is a string; the descriptor is new.
    let memfd = unsafe { File::from_raw_fd(checked(libc::memfd_create(name.as_ptr(), 0))?) };
    memfd.set_len((pages * PAGE) as u64)?;
    let mapped = Memory::map(pages, READ_WRITE, MAP_SHARED, memfd.as_raw_fd())?;
    mapped.fill(1);
    let copied = Memory::map(pages, READ_WRITE, MAP_PRIVATE, memfd.as_raw_fd())?;
    let mut children = Vec::new();
    for number in 0..2 {
        children.push(fork(|| {
            let mut round = 1;
            while goes_on() {
                forked.check(round, "forked")?;
                if number == 1 {
                    // Its own from here on.
                    round += 1;
                    forked.fill(round);
                }
                for (_, word) in shared.words() {
                    word.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })?);
    }
    let path = format!("/tmp/moved-{}", std::process::id());
    let file = File::create_new(&path)?;
    let file = File::options()
        .read(true)
        .open(&path)
        .map(|reader| (file, reader))?;
    fs::remove_file(&path)?;
    println!("ready");
    thread::scope(|scope| {
        let goes_on = &goes_on;
        let (file, memfd) = (&file, &memfd);
        let kinds: Vec<Box<dyn FnOnce() -> Result<u64> + Send + '_>> = vec![
            Box::new(move || writes(Memory::private(pages)?, "private", goes_on)),
            Box::new(move || {
                let memory = Memory::private(2 * pages)?;
                memory.advise(libc::MADV_HUGEPAGE)?;
                writes(memory, "large", goes_on)
            }),
            Box::new(move || {
                let memory = Memory::private(pages)?;
                let at = memory.0.as_ptr().cast();
                // SAFETY: changes nothing of what is in memory.
                checked(unsafe { libc::mlock(at, pages * PAGE) })?;
                writes(memory, "locked", goes_on)
            }),
            Box::new(move || inaccessible(Memory::private(pages)?, goes_on)),
            Box::new(move || {
                // Read-only and shared with two children until it ends.
                let mut rounds = 0;
                while goes_on() {
                    forked.check(1, "forked")?;
                    rounds += 1;
                }
                Ok(rounds)
            }),
            Box::new(move || in_file(file, pages, goes_on)),
            Box::new(move || in_memfd(mapped, copied, memfd, goes_on)),
            Box::new(move || {
                // Nobody takes an addition away.
                let mut last = vec![0; shared.words().count()];
                let mut rounds = 0;
                while goes_on() {
                    for (last, (index, word)) in last.iter_mut().zip(shared.words()) {
                        let now = word.fetch_add(1, Ordering::Relaxed);
                        ensure!(
                            now >= *last,
                            "shared: word {index} is {now}, and was {last}"
                        );
                        *last = now + 1;
                    }
                    rounds += 1;
                }
                Ok(rounds)
            }),
        ];
        let threads: Vec<_> = kinds.into_iter().map(|kind| scope.spawn(kind)).collect();
        for thread in threads {
            let rounds = thread.join().map_err(|_| anyhow::anyhow!("a panic"))??;
            ensure!(rounds > 0, "nothing was checked");
        }
        Ok::<(), anyhow::Error>(())
    })?;
    for child in children {
        let mut status = 0;
        // SAFETY: `status` is this thread's.
        checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
        ensure!(status == 0, "a child ended with {status:#x}");
    }
    Ok("checked all kinds".into())
}

/// Writes other words again and again, and checks that they stay.
fn writes(memory: Memory, what: &str, goes_on: &impl Fn() -> bool) -> Result<u64> {
    let mut round: u64 = 0;
    while goes_on() {
        round += 1;
        if round.is_multiple_of(4) && what != "locked" {
            // Other pages come, from where there is most room.
            memory.advise(libc::MADV_DONTNEED)?;
        }
        memory.fill(round);
        thread::sleep(Duration::from_millis(round % 8));
        memory.check(round, what)?;
    }
    Ok(round)
}

/// Memory that cannot be reached for a while.
fn inaccessible(memory: Memory, goes_on: &impl Fn() -> bool) -> Result<u64> {
    let mut round: u64 = 0;
    while goes_on() {
        round += 1;
        memory.advise(libc::MADV_DONTNEED)?;
        memory.fill(round);
        memory.protect(PROT_NONE)?;
        thread::sleep(Duration::from_millis(5));
        memory.protect(PROT_READ)?;
        memory.check(round, "inaccessible")?;
        memory.protect(READ_WRITE)?;
    }
    Ok(round)
}

/// A file in memory that is read and written, and mapped by nobody.
fn in_file(
    (file, reader): &(File, File),
    pages: usize,
    goes_on: &impl Fn() -> bool,
) -> Result<u64> {
    let mut round: u64 = 0;
    let mut buffer = [0; PAGE];
    while goes_on() {
        round += 1;
        if round.is_multiple_of(4) {
            file.set_len(0)?;
        }
        for page in 0..pages as u64 {
            let word = (round << 40 | page).wrapping_mul(FACTOR);
            file.write_all_at(&word.to_le_bytes().repeat(WORDS), page * PAGE as u64)
                .context("cannot write")?;
        }
        for page in 0..pages as u64 {
            reader.read_exact_at(&mut buffer, page * PAGE as u64)?;
            let word = (round << 40 | page).wrapping_mul(FACTOR).to_le_bytes();
            let is_right = buffer.as_chunks::<8>().0.iter().all(|is| *is == word);
            ensure!(is_right, "file: page {page} of round {round}");
        }
    }
    Ok(round)
}

/// A file in memory that is mapped, and written by the mapping; of a private mapping half the pages
/// are copies, which stay.
fn in_memfd(
    mapped: Memory,
    copied: Memory,
    file: &File,
    goes_on: &impl Fn() -> bool,
) -> Result<u64> {
    let of_own = |copied: &Memory| {
        let half = copied.0.len() / 2;
        Memory(&copied.0[..half])
    };
    of_own(&copied).fill(7);
    let mut round = 1;
    let mut buffer = [0; 8];
    while goes_on() {
        round += 1;
        mapped.fill(round);
        for (index, _) in mapped.words().step_by(5) {
            file.read_exact_at(&mut buffer, index * 8)?;
            let (is, wanted) = (
                u64::from_le_bytes(buffer),
                (round << 40 | index).wrapping_mul(FACTOR),
            );
            ensure!(
                is == wanted,
                "memfd: word {index} of round {round} is {is:#x}"
            );
        }
        mapped.check(round, "memfd")?;
        of_own(&copied).check(7, "copied")?;
        // The other half shows the file.
        for (index, word) in copied
            .words()
            .filter(|(index, _)| *index as usize >= copied.0.len() / 2 + WORDS)
        {
            let is = word.load(Ordering::Relaxed);
            ensure!(
                is == (round << 40 | index).wrapping_mul(FACTOR),
                "copied: word {index} of round {round} is {is:#x}"
            );
        }
    }
    Ok(round)
}
