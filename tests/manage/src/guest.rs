//! The programs in the instances (`spec::Program`).

use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::numbered_lines;
use crate::spec::{READY, count};

/// Lines written at a time.
const BATCH: u64 = 256;

/// Does what `spec::Program::command` says.
pub(crate) fn run(words: &[&str]) -> Result<ExitCode> {
    let code = match words {
        ["exit", code] => code,
        ["write", seed, out, err, code] => {
            let seed: u32 = seed.parse()?;
            write_lines(&mut io::stdout(), seed, out.parse()?)?;
            write_lines(&mut io::stderr(), !seed, err.parse()?)?;
            code
        }
        ["cat", code] => {
            io::copy(&mut io::stdin(), &mut io::stdout())?;
            code
        }
        ["count", code] => {
            let mut input = Vec::new();
            io::stdin().read_to_end(&mut input)?;
            io::stdout().write_all(count(&input).as_bytes())?;
            code
        }
        ["endless", seed] => {
            write_lines(&mut io::stdout(), seed.parse()?, u64::MAX)?;
            "0"
        }
        ["sleep"] => {
            ready()?;
            sleep()
        }
        ["trap", code] => {
            trap()?;
            code
        }
        ["fault", name] => {
            ready()?;
            fs::write("/proc/skerry/fault", name)?;
            sleep()
        }
        _ => bail!("no such program: {words:?}"),
    };
    io::stdout().flush()?;
    Ok(ExitCode::from(code.parse::<u8>()?))
}

fn sleep() -> ! {
    loop {
        std::thread::park();
    }
}

fn ready() -> io::Result<()> {
    io::stdout().write_all(READY)?;
    io::stdout().flush()
}

fn write_lines(to: &mut dyn Write, seed: u32, count: u64) -> io::Result<()> {
    let mut next = 0;
    while next < count {
        let end = count.min(next + BATCH);
        let batch: Vec<u8> = (next..end)
            .flat_map(|index| numbered_lines::line(seed, index))
            .collect();
        match to.write_all(&batch) {
            // A reader that is gone makes no difference to what follows.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => next = end,
        }
    }
    to.flush()
}

/// Tells of the first signal.
fn trap() -> Result<()> {
    let (mut read, write) = io::pipe()?;
    let mut came = Vec::new();
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, flag.clone())?;
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        came.push((signal, flag));
    }
    ready()?;
    read.read_exact(&mut [0])?;
    let first = came
        .iter()
        .find(|(_, flag)| flag.load(Ordering::SeqCst))
        .map_or(0, |(signal, _)| *signal);
    writeln!(io::stdout(), "signal {first}")?;
    Ok(())
}
