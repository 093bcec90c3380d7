//! The kernel starts on every kind of machine it is meant for.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::json;
use crate::qemu::{Board, Firmware};
use crate::test::{Check, Setting};
use crate::vm::{Ending, Machine, last_lines};

/// A machine, and what is changed to make it of the default one.
type Variant = (&'static str, u32, fn(&mut Machine));

/// A processor as of 2011.
const NO_RDRAND: &str = "max,x2apic=off,rdrand=off,rdseed=off";

const SMALL: &[Variant] = &[
    ("one processor", 1, |_| {}),
    ("two processors without x2APIC and RDRAND", 2, |machine| {
        machine
            .hardware
            .extra
            .extend(["-cpu", NO_RDRAND].map(OsString::from));
    }),
    ("the microvm board", 4, |machine| {
        machine.hardware.board = Board::Microvm;
    }),
    (
        "6 GiB, with the hole below 4 GiB in between",
        2,
        |machine| machine.hardware.memory = "6G".into(),
    ),
    ("64 MiB", 1, |machine| {
        machine.hardware.memory = "64M".into();
    }),
    ("counting instructions on one thread", 2, |machine| {
        machine.hardware.icount = true;
    }),
];

/// Boots on small machines of several kinds.
pub fn small(setting: &Setting) -> Result<Vec<Check>> {
    Ok(boot_all(setting, SMALL))
}

/// Boots from an ISO image.
pub fn iso(setting: &Setting) -> Result<Vec<Check>> {
    Ok(boot_all(
        setting,
        &[
            ("an ISO image under a BIOS", 4, |machine| {
                machine.firmware = Some(Firmware::Bios);
            }),
            ("an ISO image under UEFI", 4, |machine| {
                machine.firmware = Some(Firmware::Uefi);
            }),
        ],
    ))
}

/// Boots on 64 processors.
pub fn large(setting: &Setting) -> Result<Vec<Check>> {
    Ok(boot_all(
        setting,
        &[("64 processors", 64, |machine| {
            machine.timeout = Some(Duration::from_secs(240));
        })],
    ))
}

fn boot_all(setting: &Setting, variants: &[Variant]) -> Vec<Check> {
    variants
        .iter()
        .map(|variant| {
            Check::new(
                format!("Skerry boots: {}", variant.0),
                boot(setting, variant),
            )
        })
        .collect()
}

/// Boots the machine, and sees that the supervisor knows all processors, says what it makes random
/// numbers of if that is not the usual, and powers off.
fn boot(setting: &Setting, (what, cpus, change): &Variant) -> Result<String> {
    let mut machine = setting.machine(&what.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    machine.hardware.cpus = *cpus;
    machine.command = ["skerry", "resources", "--json"]
        .map(OsString::from)
        .to_vec();
    change(&mut machine);
    let run = machine.run_collected()?;
    ensure!(
        run.ending == Ending::Exited(0),
        "{:?}: {}; the log ends:\n{}",
        run.ending,
        run.complaints,
        last_lines(&machine.log, 25)
    );
    ensure!(run.powered_off, "it did not power off");
    let resources = json::resources(&run.output)?;
    ensure!(
        resources.cpus_total == u64::from(*cpus),
        "it knows {} of {cpus} processors",
        resources.cpus_total
    );
    ensure!(
        resources.cpus_free + 1 == resources.cpus_total,
        "{} processors are free",
        resources.cpus_free
    );
    let log = std::fs::read_to_string(&machine.log)?;
    let odd = machine.hardware.extra.iter().any(|word| word == NO_RDRAND);
    ensure!(
        log.contains("random numbers") == odd,
        "it says the wrong thing, or nothing, of random numbers; the log:\n{log}"
    );
    Ok(format!(
        "{} processors free, {} MiB",
        resources.cpus_free,
        resources.memory_free >> 20
    ))
}
