//! Waiting and waking under a scheduler that takes threads off their processors, delays and moves
//! them at random (`sched=perturb,seed=N`, see `docs/tasks.md`).

use std::fs::File;
use std::io::Read;

use anyhow::Result;

use super::programs::{Family, Side, choose};
use crate::test::{Check, Setting};

/// Prefixes of the names of checks that depend on who runs when.
const CONCURRENT: &[&str] = &[
    "event-fds-",
    "files-pipe",
    "files-poll",
    "fpu-state-",
    "futexes-",
    "go-",
    "inet-stream",
    "inotify-wakes",
    "ipc-",
    "job-control-",
    "lost-wakeups-",
    "mm-stress-",
    "processes-",
    "ptrace-",
    "ptys-",
    "seccomp-notify-",
    "shootdowns-",
    "sigio-",
    "signals-",
    "sockets-",
    "splice-",
    "threads-",
    "tlb-coherence-",
    "tokio-",
];
/// Seeds for each number of processors.
const SEEDS: usize = 10;

/// Each check with each number of processors, from many seeds.
pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for _ in 0..SEEDS {
        for (cpus, side) in [
            (1, Side::Supervisor),
            (2, Side::Instance),
            (4, Side::Supervisor),
        ] {
            let is_concurrent = |name: &str| {
                CONCURRENT
                    .iter()
                    .any(|beginning| name.starts_with(beginning))
            };
            let chosen = choose(|_, name| is_concurrent(name).then_some(side))?;
            let seed = seed()?;
            let family = Family {
                cpus,
                append: [(); 2].map(|()| format!("sched=perturb,seed={seed}")),
            };
            checks.extend(family.run(setting, chosen)?);
        }
    }
    Ok(checks)
}

/// Small enough to be typed.
fn seed() -> Result<u32> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}
