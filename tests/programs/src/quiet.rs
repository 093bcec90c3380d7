//! A processor with one runnable thread takes no interrupts, and neither does one without any:
//! counted over ten seconds.
//!
//! Skerry's own counters say so (`/proc/skerry/interrupts`): lines of processor, vector, name,
//! count.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

const WATCHED: Duration = Duration::from_secs(10);

/// Interrupts taken, by processor and vector.
type Counts = BTreeMap<(usize, String), u64>;

fn interrupts() -> Result<Counts> {
    let text = fs::read_to_string("/proc/skerry/interrupts")?;
    let mut counts = Counts::new();
    for line in text.lines().skip(1) {
        if let [cpu, vector, _, count] = line.split_whitespace().collect::<Vec<_>>()[..] {
            counts.insert((cpu.parse()?, vector.to_owned()), count.parse()?);
        }
    }
    Ok(counts)
}

/// Counts since `before`.
fn since(before: &Counts) -> Result<Counts> {
    let mut counts = interrupts()?;
    counts.retain(|key, count| {
        *count -= before.get(key).copied().unwrap_or(0);
        *count != 0
    });
    Ok(counts)
}

/// Spins until nothing has come in for a while, at most a minute: what was under way when the
/// program started is over then.
fn settle() -> Result<()> {
    let start = Instant::now();
    loop {
        let before = interrupts()?;
        let turn = Instant::now();
        while turn.elapsed() < Duration::from_millis(500) {}
        if since(&before)?.is_empty() {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(60),
            "interrupts keep coming: {:?}",
            since(&before)?
        );
    }
}

pub fn run() -> Result<()> {
    settle()?;
    let before = interrupts().context("the counters")?;
    let start = Instant::now();
    while start.elapsed() < WATCHED {}
    let spinning = since(&before)?;
    ensure!(
        spinning.is_empty(),
        "while one thread computed and all else slept: {spinning:?}"
    );

    let before = interrupts()?;
    thread::sleep(WATCHED);
    let sleeping = since(&before)?;
    // The one that ends the sleep.
    ensure!(
        sleeping.len() <= 1 && sleeping.values().all(|&n| n == 1),
        "while all slept: {sleeping:?}"
    );
    Ok(())
}
