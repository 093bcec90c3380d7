//! From power-on, and from the kernel's entry, to the first instruction of the first process; and
//! the image's size.

use std::fs;

use anyhow::{Context, Result, ensure};
use object::read::elf::{ElfFile64, ProgramHeader};

use super::{Arguments, System, Table};
use crate::vm::{Kernel, Machine};
use crate::{build, rootfs};

/// Measures boots of both kernels, one after the other in turn.
pub fn measure(arguments: &Arguments, systems: &[System], table: &mut Table) -> Result<()> {
    for (cpus, icount) in [(4, false), (4, true), (1, true)] {
        // Counted instructions are the same every time.
        let runs = if icount {
            1
        } else {
            arguments.runs.unwrap_or(5)
        };
        let mut samples: Vec<Vec<Boot>> = systems.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs {
            for (system, samples) in systems.iter().zip(&mut samples) {
                samples.push(boot(&system.kernel, cpus, icount, &[])?);
            }
        }
        let (unit, scale) = match (cpus, icount) {
            (_, false) => ("ms", 1e6),
            (1, true) => ("M instructions", 1e6),
            (_, true) => (super::COUNTED_MS, 1e6),
        };
        for (
            System {
                name: system,
                kernel,
            },
            samples,
        ) in systems.iter().zip(&samples)
        {
            let goal = (cpus == 4 && *kernel == Kernel::Skerry).then_some(20.0);
            let from_entry = samples
                .iter()
                .filter_map(|boot| Some(boot.from_entry? as f64 / scale))
                .collect();
            table.add(
                format!("kernel entry to first user instruction, {cpus} CPUs"),
                system,
                unit,
                goal,
                from_entry,
            );
            let monotonic = samples
                .iter()
                .map(|boot| boot.monotonic as f64 / scale)
                .collect();
            table.add(
                format!("clock set-up to first user instruction, {cpus} CPUs"),
                system,
                unit,
                None,
                monotonic,
            );
            if icount && cpus == 1 {
                let power_on = samples
                    .iter()
                    .map(|boot| boot.counter as f64 / scale)
                    .collect();
                table.add(
                    format!("power-on to first user instruction, {cpus} CPUs"),
                    system,
                    unit,
                    None,
                    power_on,
                );
            }
        }
    }
    for System {
        name: system,
        kernel,
    } in systems
    {
        let (file, memory) = match kernel {
            Kernel::Skerry | Kernel::Mutant(_) => skerry_size()?,
            Kernel::Linux(image) => (fs::metadata(image)?.len(), None),
        };
        table.add(
            "kernel image, as loaded from a file",
            system,
            "KiB",
            None,
            vec![file as f64 / 1024.0],
        );
        table.add(
            "kernel image, in memory",
            system,
            "KiB",
            None,
            memory
                .into_iter()
                .map(|memory| memory as f64 / 1024.0)
                .collect(),
        );
    }
    Ok(())
}

/// Times of one boot. With counted instructions the virtual clock's nanoseconds are instructions
/// too.
pub struct Boot {
    /// The time-stamp counter at the first user instruction.
    pub counter: u64,
    /// The monotonic clock then, in nanoseconds.
    monotonic: u64,
    /// From the kernel's entry, in nanoseconds or instructions, where the kernel tells.
    from_entry: Option<u64>,
}

/// Boots once, with a first process that tells the clocks, and these packages as its file system.
pub fn boot(kernel: &Kernel, cpus: u32, icount: bool, packages: &[&str]) -> Result<Boot> {
    let mut machine = Machine {
        kernel: kernel.clone(),
        append: "quiet".into(),
        log: super::scratch("log"),
        ..Machine::default()
    };
    (machine.hardware.cpus, machine.hardware.icount) = (cpus, icount);
    let program = build::bench_programs()?.program("first-instruction");
    let log = machine.run_without_agent(&program, |archive| match packages {
        [] => Ok(()),
        _ => archive.tar(&rootfs::cached(&[packages])?),
    })?;
    let line = log
        .lines()
        .find_map(|line| line.split_once("first-instruction: "))
        .context("the first process told nothing")?
        .1;
    let words: Vec<_> = line.split_whitespace().collect();
    ensure!(words.len() == 4, "the first process told {line:?}");
    Ok(Boot {
        counter: words[1].parse()?,
        monotonic: words[3].parse()?,
        from_entry: from_entry(&log, icount),
    })
}

/// Time from Skerry's own log: `boot: first user instruction after N us (tsc delta T)`.
fn from_entry(log: &str, icount: bool) -> Option<u64> {
    let rest = log.split_once("boot: first user instruction after ")?.1;
    let microseconds: u64 = rest.split_once(" us")?.0.trim().parse().ok()?;
    let ticks: u64 = rest
        .split_once("tsc delta ")?
        .1
        .split(')')
        .next()?
        .trim()
        .parse()
        .ok()?;
    Some(if icount { ticks } else { microseconds * 1000 })
}

/// Bytes of the image that a loader reads, and bytes of memory that it takes.
pub fn skerry_size() -> Result<(u64, Option<u64>)> {
    let image = fs::read(build::kernel()?)?;
    let elf = ElfFile64::<object::Endianness>::parse(image.as_slice())?;
    let endian = object::Endianness::Little;
    let (mut file, mut memory) = (0, 0);
    for segment in elf
        .elf_program_headers()
        .iter()
        .filter(|segment| segment.p_type(endian) == object::elf::PT_LOAD)
    {
        file += segment.p_filesz(endian);
        memory += segment.p_memsz(endian);
    }
    Ok((file, Some(memory)))
}
