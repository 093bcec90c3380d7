//! Memory that changes its owner: one instance fills its own with a pattern, the next looks for it.
//!
//! What a program sees of its memory is what the kernel did not clear before handing it over; so the scan looks through as much
//! of the instance as it can get, by a way on which the kernel promises nothing about clearing it twice.

use std::process::ExitCode;
use std::{fs, io};

/// Sixteen bytes that are nowhere by chance.
const PATTERN: [u8; 16] = *b"\x8e\xd1skerry-canary\x5a";
/// Memory that is written and looked through, in bytes.
const LENGTH: usize = 192 << 20;

/// `machine-tests canary write` and `machine-tests canary scan`.
pub fn run(what: &str) -> ExitCode {
    let outcome = match what {
        "write" => write(),
        "scan" => scan(),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    match outcome {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("canary: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fills memory of the process, and a file in memory.
fn write() -> io::Result<&'static str> {
    let memory = PATTERN.repeat(LENGTH / PATTERN.len());
    fs::write("/tmp/canary", &memory[..memory.len() / 4])?;
    Ok(if memory.iter().rev().step_by(16).all(|&byte| byte == PATTERN[15]) { "written" } else { "lost" })
}

/// Looks through as much memory as was written, before anything is written to it.
fn scan() -> io::Result<&'static str> {
    // The allocator takes zeroed memory for this straight from the kernel and does not write to it.
    let memory = vec![0u8; LENGTH];
    let found = memory.chunks_exact(16).any(|chunk| chunk == PATTERN);
    Ok(if found { "found the canary" } else { "no trace" })
}
