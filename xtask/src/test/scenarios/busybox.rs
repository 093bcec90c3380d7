//! Debian's busybox at work: scripts whose results are the host's, or known.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::test::batch::{self, Judge};
use crate::test::{Check, Setting};
use crate::vm::Addition;
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/busybox.cases");

/// A bus behind a bridge that Linux has no driver for, and a device on it.
const BRIDGE: [&str; 4] = [
    "-device",
    "i82801b11-bridge,id=behind,addr=1e",
    "-device",
    "virtio-rng-pci,bus=behind,addr=1",
];

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(300));
    machine.hardware.extra.extend(BRIDGE.map(OsString::from));
    for (tools, guest) in [
        (packages::PCI, "/pciutils.tar"),
        (packages::DISKS, "/disk-tools.tar"),
    ] {
        machine.additions.push(Addition {
            host: rootfs::cached(&[tools])?,
            guest: guest.into(),
        });
    }
    let steps = batch::steps(CASES, JUDGES)?;
    batch::run(machine, &steps)
}

/// Functions that look at the output of cases.
const JUDGES: &[(&str, Judge)] = &[
    ("ps lists the processes with their parents", |printed| {
        ensure!(
            printed.lines().any(|line| line.ends_with(" sleep"))
                && printed.lines().any(|line| line.ends_with(" ps")),
            "sleep or ps is missing"
        );
        let agent = printed
            .lines()
            .find(|line| line.trim_start().starts_with("1 "))
            .context("process 1 is missing")?;
        ensure!(
            agent.split_whitespace().nth(1) == Some("0"),
            "the first process has a parent"
        );
        Ok(format!("{} processes", printed.lines().count() - 1))
    }),
    ("top shows processors, memory and processes", |printed| {
        for word in ["Mem:", "CPU:", "Load average:", "PID", "top"] {
            ensure!(printed.contains(word), "{word:?} is missing");
        }
        Ok(String::new())
    }),
    ("free adds up", |printed| {
        let line = printed
            .lines()
            .find(|line| line.starts_with("Mem:"))
            .context("there is no Mem: line")?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        ensure!(
            numbers[0] > 256 << 20 && numbers[1] + numbers[2] <= numbers[0] && numbers[2] > 0,
            "the numbers are impossible"
        );
        Ok(format!("{} MiB in all", numbers[0] >> 20))
    }),
    ("/proc/cpuinfo names the processors", |printed| {
        for field in [
            "processor\t: 0",
            "vendor_id\t:",
            "model name\t:",
            "flags\t\t:",
        ] {
            ensure!(printed.contains(field), "{field:?} is missing");
        }
        let count = printed
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count();
        Ok(format!("{count} processors"))
    }),
    ("the clock shows this year or a later one", |printed| {
        ensure!(printed.parse::<u32>()? >= 2025, "the year is wrong");
        Ok(printed.to_owned())
    }),
    ("uptime and load", |printed| {
        ensure!(
            printed.contains("load average:") && printed.lines().count() == 2,
            "a line is missing"
        );
        Ok(String::new())
    }),
    ("mounts are listed", |printed| {
        ensure!(
            printed
                .lines()
                .any(|line| line.contains(" /proc type proc")),
            "/proc is missing"
        );
        Ok(String::new())
    }),
    (
        "/proc/meminfo, /proc/stat, /proc/version, /proc/uptime can be read",
        |printed| {
            ensure!(
                printed.contains("MemTotal:")
                    && printed.contains("cpu ")
                    && printed.lines().count() == 5,
                "a line is missing"
            );
            Ok(String::new())
        },
    ),
];
