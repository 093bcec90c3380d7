//! Leaks: a deed is done many times, and the machine has as much of everything as before
//! (`/proc/skerry/objects`). On a system without that file it is only done.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, make, pair, pipe};

mod deeds;
mod files;
mod messages;

pub const CHECKS: &[(&str, Check)] = &[
    ("leaks-processes", || leaves_nothing(deeds::PROCESSES)),
    ("leaks-threads", || leaves_nothing(deeds::THREADS)),
    ("leaks-memory", || leaves_nothing(deeds::MEMORY)),
    ("leaks-timers", || leaves_nothing(deeds::TIMERS)),
    ("leaks-system-v", || leaves_nothing(deeds::SYSTEM_V)),
    ("leaks-files", || leaves_nothing(files::FILES)),
    ("leaks-locks", || leaves_nothing(files::LOCKS)),
    ("leaks-watches", || leaves_nothing(files::WATCHES)),
    ("leaks-pipes-and-sockets", || {
        leaves_nothing(messages::SOCKETS)
    }),
    ("leaks-descriptors-under-way", || {
        leaves_nothing(messages::RIGHTS)
    }),
    ("leaks-calls-that-fail", || {
        leaves_nothing(messages::FAILURES)
    }),
];

/// Something that is done, by its name.
pub type Deed = (&'static str, fn() -> Result<()>);

/// Number of times a deed is done before the first look: caches, pools and the C library take what
/// they keep.
const WARM_UP: usize = 3;
/// Number of times it is done between the looks.
const ROUNDS: usize = 32;
/// Time limit for objects that end by themselves, after a grace period or in a thread of the
/// kernel.
const PATIENCE: Duration = Duration::from_secs(20);
/// An address where nothing is.
const NOWHERE: usize = 64;

/// The kernel's counts of objects; `None` where it gives none.
pub fn look() -> Option<String> {
    std::fs::read_to_string("/proc/skerry/objects").ok()
}

/// The same when nothing has grown any more that tells, or what ends by itself has had its time.
pub fn look_until_as(before: &Option<String>) -> Option<String> {
    let begin = Instant::now();
    let before = Objects::parse(before.as_ref()?).ok()?;
    loop {
        let text = look()?;
        if Objects::parse(&text).ok()?.grown(&before).is_empty() || begin.elapsed() > PATIENCE {
            return Some(text);
        }
        thread::yield_now();
    }
}

/// All deeds.
pub fn all_deeds() -> impl Iterator<Item = &'static Deed> {
    [
        deeds::PROCESSES,
        deeds::THREADS,
        deeds::MEMORY,
        deeds::TIMERS,
        deeds::SYSTEM_V,
        files::FILES,
        files::LOCKS,
        files::WATCHES,
        messages::SOCKETS,
        messages::RIGHTS,
        messages::FAILURES,
    ]
    .into_iter()
    .flatten()
}

/// Counts of objects by class.
pub struct Objects(Vec<(String, u64)>);

impl Objects {
    /// `None` where the kernel does not tell.
    pub fn now() -> Result<Option<Self>> {
        let Ok(mut file) = File::open("/proc/skerry/objects") else {
            return Ok(None);
        };
        // On the stack: what the C library takes for a buffer, and keeps, would be counted.
        let mut buffer = [0; 8192];
        let mut len = 0;
        loop {
            match file.read(&mut buffer[len..])? {
                0 => break,
                n => len += n,
            }
        }
        Self::parse(std::str::from_utf8(&buffer[..len])?).map(Some)
    }

    /// Classes that have grown since, when what ends by itself has had its time.
    pub fn left(&self) -> Result<Vec<String>> {
        let begin = Instant::now();
        loop {
            let now = Self::now()?.context("/proc/skerry/objects went away")?;
            let grown = now.grown(self);
            if grown.is_empty() || begin.elapsed() > PATIENCE {
                return Ok(grown);
            }
            thread::yield_now();
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let parse = |line: &str| {
            let (name, count) = line
                .split_once(' ')
                .with_context(|| format!("{line:?} has no count"))?;
            Ok((name.to_owned(), count.parse()?))
        };
        text.lines().map(parse).collect::<Result<_>>().map(Self)
    }

    /// Small objects, by size, of which there are more than `before`: one at least.
    pub fn more_small_ones(&self, before: &Self) -> BTreeSet<String> {
        let pairs = before.0.iter().zip(&self.0);
        pairs
            .filter(|((name, before), (_, now))| name.starts_with("heap_") && now > before)
            .map(|((name, _), _)| name.clone())
            .collect()
    }

    /// Classes that have grown since `before` by more than the tolerance.
    fn grown(&self, before: &Self) -> Vec<String> {
        let grown = |((name, before), (_, now)): (&(String, u64), &(String, u64))| {
            // Of these a table that grew, a cache or this program itself may have some more: but
            // not one for each round.
            let vague = name.starts_with("heap_") || name.starts_with("frames_") || name == "names";
            let most = before + if vague { ROUNDS as u64 / 2 } else { 0 };
            (*now > most).then(|| format!("{name} {before} → {now}"))
        };
        before.0.iter().zip(&self.0).filter_map(grown).collect()
    }
}

/// Does each deed many times, and sees that nothing grows.
fn leaves_nothing(deeds: &[Deed]) -> Result<()> {
    fill_tables();
    let mut left = Vec::new();
    for (what, deed) in deeds {
        let again = |rounds| (0..rounds).try_for_each(|_| deed()).context(*what);
        again(WARM_UP)?;
        let Some(before) = Objects::now()? else {
            again(1)?;
            continue;
        };
        again(ROUNDS)?;
        let grown = before.left()?;
        if !grown.is_empty() {
            left.push(format!("{what}: {}", grown.join(", ")));
        }
    }
    ensure!(left.is_empty(), "after {ROUNDS} times\n{}", left.join("\n"));
    Ok(())
}

/// A place of a table of futexes keeps the room it once had, and where a process's words are is
/// luck: each place gets its room now.
pub fn fill_tables() {
    let words = [0u32; 4096];
    let soon = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1,
    };
    for word in &words {
        call!(
            SYS_futex,
            ptr::from_ref(word),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            0,
            &raw const soon,
            0,
            0
        );
    }
}

/// A child that does `work` and ends, if that returns; its number.
fn child(work: impl FnOnce()) -> Result<i32> {
    // SAFETY: the child calls nothing that another thread could hold a lock of, and ends without
    // returning.
    let pid = crate::checked(unsafe { libc::fork() })?;
    if pid == 0 {
        work();
        call!(SYS_exit_group, 0);
    }
    Ok(pid)
}

/// Waits for a child's end; its status.
fn wait(pid: i32) -> Result<i32> {
    let mut status = 0;
    is(
        call!(SYS_wait4, pid, &raw mut status, 0, 0),
        pid.into(),
        "wait4",
    )?;
    Ok(status)
}

/// Ends a child that has said, through the pipe, that it is where it should be, once it waits
/// there.
fn kill_waiting(pid: i32) -> Result<()> {
    sleeps(pid)?;
    is(call!(SYS_kill, pid, libc::SIGKILL), 0, "kill")?;
    ensure!(wait(pid)? == libc::SIGKILL, "it was not killed");
    Ok(())
}

/// Waits until all threads of a process sleep in a call.
fn sleeps(pid: i32) -> Result<()> {
    let begin = Instant::now();
    loop {
        let mut asleep = true;
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let stat = std::fs::read_to_string(task?.path().join("stat"))?;
            asleep &= stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('S'));
        }
        if asleep {
            return Ok(());
        }
        ensure!(begin.elapsed() < PATIENCE, "it does not sleep");
        thread::yield_now();
    }
}
