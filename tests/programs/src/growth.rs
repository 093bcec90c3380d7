//! Memory that comes while a program runs: waits for it, fills it with a pattern from two threads,
//! and checks every word of it.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io, thread};

/// Threads that fill memory side by side.
const THREADS: usize = 2;
/// Bytes of a piece of memory: less than a page of 2 MiB, so that large and small pages are used.
const PIECE: usize = 3 << 20;
/// Factor by which the number of a word becomes its content.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// `machine-tests growth MIB`: waits until more than so many MiB of memory are available.
pub fn run(mib: &str) -> ExitCode {
    match mib.parse().map_err(io::Error::other).and_then(fill) {
        Ok(checked) => {
            println!("checked {checked} MiB");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("growth: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fill(mib: usize) -> io::Result<usize> {
    println!("ready");
    while available()? < mib + mib / 8 {
        thread::sleep(Duration::from_millis(10));
    }
    let pieces = mib.div_ceil(PIECE >> 20);
    let halves = (0..THREADS).map(|half| {
        thread::spawn(move || {
            let numbers = (half..pieces).step_by(THREADS);
            let mut memory: Vec<(u64, Vec<u64>)> = numbers
                .map(|number| (number as u64 + 1, vec![0; PIECE / 8]))
                .collect();
            for round in 1..=2 {
                for (number, words) in &mut memory {
                    let first = (*number * round) << 32;
                    for (index, word) in (first..).zip(words.iter_mut()) {
                        *word = index.wrapping_mul(FACTOR);
                    }
                }
                for (number, words) in black_box(&memory) {
                    let first = (number * round) << 32;
                    let mut words = (first..).zip(words);
                    if words.any(|(index, word)| *word != index.wrapping_mul(FACTOR)) {
                        return false;
                    }
                }
            }
            true
        })
    });
    let halves: Vec<_> = halves.collect();
    for half in halves {
        if !half.join().is_ok_and(|right| right) {
            return Err(io::Error::other(
                "memory holds something else than was written",
            ));
        }
    }
    Ok(pieces * (PIECE >> 20))
}

/// Memory that is available to programs, in MiB.
fn available() -> io::Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.map(|kib| kib >> 10)
        .ok_or_else(|| io::Error::other("no MemAvailable"))
}
