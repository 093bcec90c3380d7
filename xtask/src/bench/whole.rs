//! Metrics of whole machines: boot, image, least memory, wake-ups of an idle machine.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::boot;
use super::metrics::Metric;
use super::micro::{self, Outcome, Setup};
use crate::build;
use crate::vm::{Kernel, Machine};

/// Time limit for a machine with enough memory to reach its first process.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Where the least memory is sought, in MiB.
const MEMORIES: std::ops::Range<u32> = 1..1024;
/// Processors of the machine that idles.
const IDLE_CPUS: u32 = 4;

/// From power-on to the first process, or with packages until its `bash -c true` has ended:
/// instructions, or without counting nanoseconds of the host, from QEMU's start to its end.
pub fn boot_time(kernel: &Kernel, setup: Setup<'_>) -> Result<Outcome> {
    let packages: &[&str] = if setup.packages { &["bash"] } else { &[] };
    let started = Instant::now();
    let boot = boot::boot(kernel, setup.cpus, setup.icount, packages)?;
    let median = if setup.icount {
        boot.counter as f64
    } else {
        started.elapsed().as_nanos() as f64
    };
    Ok(Outcome::Value {
        median,
        operations: 1,
    })
}

/// The bytes that a loader reads.
pub fn image_size(kernel: &Kernel) -> Result<Outcome> {
    let bytes = match kernel {
        Kernel::Skerry | Kernel::Mutant(_) => boot::skerry_size()?.0,
        Kernel::Linux(image) => fs::metadata(image)
            .with_context(|| format!("cannot read {}", image.display()))?
            .len(),
    };
    Ok(Outcome::Value {
        median: bytes as f64,
        operations: 1,
    })
}

/// The least memory, in MiB, with which the first process runs, by bisection.
pub fn least_memory(kernel: &Kernel) -> Result<Outcome> {
    let program = build::bench_programs()?.program("first-instruction");
    let boots = |memory: u32, limit: Duration| -> Result<bool> {
        let mut machine = Machine {
            kernel: kernel.clone(),
            append: "quiet".into(),
            log: super::scratch("log"),
            timeout: Some(limit),
            ..Machine::default()
        };
        (machine.hardware.cpus, machine.hardware.memory) = (1, format!("{memory}M"));
        // Whether it could power off after that is another matter.
        drop(machine.run_without_agent(&program, |_| Ok(())));
        Ok(String::from_utf8_lossy(&fs::read(&machine.log)?).contains("first-instruction: tsc"))
    };
    let (mut fails, mut works) = (MEMORIES.start - 1, MEMORIES.end);
    let started = Instant::now();
    if !boots(works, BOOT_LIMIT)? {
        bail!("{works} MiB are not enough");
    }
    // A machine with too little may stop without a word.
    let limit = 4 * started.elapsed();
    while works - fails > 1 {
        let middle = fails.midpoint(works);
        if boots(middle, limit)? {
            works = middle;
        } else {
            fails = middle;
        }
    }
    Ok(Outcome::Value {
        median: f64::from(works),
        operations: 1,
    })
}

/// Number of times that a processor was woken in the ten seconds in which the program slept, its
/// own end of sleep apart.
pub fn idle_wake_ups(kernel: &Kernel, metric: &Metric) -> Result<Outcome> {
    let counts = super::scratch("counts");
    drop(fs::remove_file(&counts));
    // QEMU tells of a processor's sleep only where each has a thread of its own.
    let devices = metric.how.devices();
    let setup = Setup {
        cpus: if devices.is_some() { 1 } else { IDLE_CPUS },
        icount: false,
        packages: false,
        devices,
        append: "",
    };
    let mut machine = micro::machine(kernel, setup)?;
    let plugin = format!(
        "{},out={}",
        build::profile_plugin()?.display(),
        counts.display()
    );
    machine.hardware.extra = vec!["-plugin".into(), plugin.into()];
    let log = micro::boot(&machine, setup, &[metric.name])?;
    match micro::outcome(&log, metric.name) {
        Some(Outcome::Value { operations, .. }) => {
            let counts =
                fs::read_to_string(&counts).with_context(|| format!("no {}", counts.display()))?;
            let resumed: f64 = counts
                .lines()
                .find_map(|line| line.strip_prefix("resumed "))
                .context("the plugin did not count")?
                .parse()?;
            Ok(Outcome::Value {
                median: (resumed - 1.0).max(0.0),
                operations,
            })
        }
        Some(other) => Ok(other),
        None => bail!(
            "{} was not reported; the log is {}",
            metric.name,
            machine.log.display()
        ),
    }
}
