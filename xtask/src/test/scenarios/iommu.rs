//! PCI functions behind an IOMMU: a driver of an instance names memory that is not its own.
//!
//! Each page of the disk that a stray transfer is made of holds words that are nowhere else. The
//! machine's memory is a file, in which the host looks for them when the machine has ended.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::devices::behind_port;
use crate::cleanup::Directory;
use crate::qemu::{Hardware, Iommu};
use crate::test::{Check, Setting, batch};

const CASES: &str = include_str!("../../../../tests/cases/iommu.cases");
const ENDS: &str = include_str!("../../../../tests/cases/iommu-ends.cases");

/// Memory of the machine, for QEMU and in bytes.
const MEMORY: (&str, u64) = ("2G", 2 << 30);
const PAGE: usize = 4096;
/// A card that goes by the unit. (A disk would have firmware take memory that the archive lies
/// in.)
const CARD: &str = "virtio-net-pci,netdev=net,romfile=,iommu_platform=on";
/// Bytes of the disk.
const DISK: usize = 32 << 20;
/// Pages of the disk that stray transfers are made of: those of the cases.
const STRAY_PAGES: [u64; 5] = [1024, 1536, 2048, 2560, 3584];
/// Pages of the disk that instances read while they end.
const READ_AT_ENDS: Range<u64> = 4096..6400;
/// Rounds in which an instance ends, and of the long test.
const ROUNDS: u32 = 6;
const MANY_ROUNDS: u32 = 100;
/// Bytes that the disk transfers in a second: reads of the ends take longer than they do.
const SLOW: u32 = 4 << 20;
/// Messages that are refused, with VT-d: address and data. The entry of a line of the supervisor's,
/// one of another instance's function, one that nobody has, and two beyond all.
const INTEL_MESSAGES: [&str; 5] = [
    "fee00018:4",
    "fee00218:0",
    "fee00018:0",
    "feeffff8:0",
    "fee00018:ffff",
];
/// The page that a stray transfer was to write, and did not.
const UNWRITTEN: u64 = 6144;
/// Address of firmware's code.
const FIRMWARES: u64 = 0xf_f000;
/// Address that nobody has: conventional memory that no kernel uses.
const NOBODYS: u64 = 0x5_0000;

/// Bytes by which a page is told.
const HEAD: usize = 64;

/// Content of a page of the disk: words that tell the page, and are in no other memory.
fn content(page: u64) -> Vec<u8> {
    let words = (0..PAGE as u64 / 8).map(|word| {
        let seed = page << 16 | word;
        (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995_0b0b_0b0b
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// A disk all of whose pages are told by their content.
fn write_disk(path: &Path) -> Result<()> {
    let pages = (0..(DISK / PAGE) as u64).flat_map(content);
    Ok(fs::write(path, pages.collect::<Vec<u8>>())?)
}

/// Has the machine's memory be a file of the host's, and adds the controller with its disk, and
/// what else is said of that.
fn attach(hardware: &mut Hardware, memory: &Path, disk: &Path, more: &str) {
    let (size, _) = MEMORY;
    hardware.memory = size.into();
    let backend = format!(
        "memory-backend-file,id=ram,size={size},share=on,mem-path={}",
        memory.display()
    );
    let arguments = ["-object", &backend, "-machine", "memory-backend=ram"];
    (hardware.extra).extend(arguments.iter().map(OsString::from));
    let drive = format!("if=none,id=nvme,format=raw,file={}{more}", disk.display());
    (hardware.extra).extend(["-drive", &drive].map(OsString::from));
    behind_port(hardware, 1, "nvme,serial=rock,drive=nvme");
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let nvme = directory.join("nvme");
    write_disk(&nvme)?;
    let memory = directory.join("memory");
    let mut machine = setting.machine("confined");
    machine.timeout = Some(Duration::from_secs(300));
    machine.append = "fault=unreset pci.hide=01:00.0,02:00.0,03:00.0".into();
    machine.hardware.iommu = Some(Iommu::Intel);
    let hardware = &mut machine.hardware;
    attach(hardware, &memory, &nvme, "");
    (hardware.extra).extend(["-netdev", "user,id=net"].map(OsString::from));
    behind_port(hardware, 2, CARD);
    behind_port(hardware, 3, "virtio-rng-pci");
    let refused = INTEL_MESSAGES.map(|message| format!("-- refused {message}"));
    let cases = CASES
        .replace("@MESSAGES@", &INTEL_MESSAGES.join(" "))
        .replace("@REFUSED@", &refused.join("\n"));
    let mut steps = batch::steps(&cases, &[])?;
    for step in &mut steps {
        step.limit = 120;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new(
        "the host finds what stray transfers were made of nowhere in the machine's memory",
        find_none(&memory, STRAY_PAGES.into_iter()),
    ));
    checks.push(Check::new(
        "what a device would have read from foreign memory is not on the disk",
        check_unwritten(&nvme, &memory),
    ));
    write_disk(&nvme)?;
    fs::remove_file(&memory)?;
    checks.extend(unconfined(setting, &memory, &nvme)?);
    write_disk(&nvme)?;
    fs::remove_file(&memory)?;
    checks.extend(ends(setting, &memory, &nvme, ROUNDS)?);
    Ok(checks)
}

/// A hundred ends.
pub fn long_ends(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let nvme = directory.join("nvme");
    write_disk(&nvme)?;
    ends(setting, &directory.join("memory"), &nvme, MANY_ROUNDS)
}

/// Instances that end while their devices transfer, so many.
fn ends(setting: &Setting, memory: &Path, disk: &Path, rounds: u32) -> Result<Vec<Check>> {
    let mut machine = setting.machine("ends");
    machine.timeout = Some(Duration::from_secs(120 + 30 * u64::from(rounds)));
    machine.append = "pci.hide=01:00.0,02:00.0".into();
    machine.hardware.iommu = Some(Iommu::Intel);
    let hardware = &mut machine.hardware;
    attach(
        hardware,
        memory,
        disk,
        &format!(",throttling.bps-total={SLOW}"),
    );
    (hardware.extra).extend(["-netdev", "user,id=net"].map(OsString::from));
    behind_port(hardware, 2, CARD);
    let mut steps = batch::steps(&ENDS.replace("@ROUNDS@", &rounds.to_string()), &[])?;
    for step in &mut steps {
        step.limit = 60 + 30 * rounds;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new(
        "the host finds what instances were reading at their ends nowhere in the machine's memory",
        find_none(memory, READ_AT_ENDS),
    ));
    Ok(checks)
}

/// The same driver on the same machine, whose unit is left alone: the transfer gets where it was
/// told to.
fn unconfined(setting: &Setting, memory: &Path, disk: &Path) -> Result<Vec<Check>> {
    const CASE: &str = "\
== without the unit a function is refused, or at large
skerry run --device 01:00.0 -- true 2>&1 | cut -c 1-69
skerry run --device 01:00.0 --unsafe-dma -- sh -c '
    echo stray=50000 > /proc/skerry/fault
    dd if=/dev/nvme0n1 of=/dev/null bs=4096 skip=1024 count=1 2>/dev/null'
grep -c '^ *df:' /proc/interrupts
skerry run -d --name w --device 01:00.0 --unsafe-dma --kernel-args fault=message=fee00000:df@memory -- sleep 1000 >/dev/null
until grep -q '^ *df:' /proc/interrupts; do sleep 0.1; done
echo interrupted
skerry stop --force w >/dev/null
-- skerry: cannot give 0000:01:00.0 to an instance: no IOMMU confines it
-- 0
-- interrupted
";
    let mut machine = setting.machine("at-large");
    machine.append = "iommu=off pci.hide=01:00.0".into();
    machine.hardware.iommu = Some(Iommu::Intel);
    attach(&mut machine.hardware, memory, disk, "");
    let mut checks = batch::run(machine, &batch::steps(CASE, &[])?)?;
    checks.push(Check::new(
        "without the unit a stray transfer is found where it was told to go",
        check_stray(memory),
    ));
    Ok(checks)
}

fn page_of(file: &mut File, at: u64) -> Result<Vec<u8>> {
    let mut page = vec![0; PAGE];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut page)?;
    Ok(page)
}

fn check_stray(memory: &Path) -> Result<String> {
    let found = page_of(&mut File::open(memory)?, NOBODYS)?;
    ensure!(
        found == content(STRAY_PAGES[0]),
        "it is not at {NOBODYS:#x}"
    );
    Ok(format!("at {NOBODYS:#x}"))
}

fn check_unwritten(disk: &Path, memory: &Path) -> Result<String> {
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let foreign = page_of(&mut File::open(memory)?, FIRMWARES)?;
    ensure!(!is_zero(&foreign), "there is nothing at {FIRMWARES:#x}");
    let found = page_of(&mut File::open(disk)?, UNWRITTEN * PAGE as u64)?;
    // QEMU's controller takes a read that was refused for zeroes. A driver that has tried again
    // with the right address has written what it was to.
    let what = match found {
        _ if found == content(UNWRITTEN) => "unchanged",
        _ if found == b"y\n".repeat(PAGE / 2) => "written by the next attempt",
        _ if is_zero(&found) => "zeroes",
        _ => bail!("foreign bytes are there: {:x?}", &found[..16]),
    };
    Ok(what.into())
}

/// Looks at all of the machine's memory for pages of the disk.
fn find_none(memory: &Path, pages: impl Iterator<Item = u64>) -> Result<String> {
    let mut file = File::open(memory)?;
    let heads: HashSet<Vec<u8>> = pages.map(|page| content(page)[..HEAD].to_vec()).collect();
    let mut chunk = vec![0; 1 << 20];
    for at in (0..MEMORY.1).step_by(chunk.len()) {
        file.read_exact(&mut chunk)?;
        for (page, bytes) in (at..).step_by(PAGE).zip(chunk.chunks(PAGE)) {
            ensure!(
                !heads.contains(&bytes[..HEAD]),
                "what was on the disk is at {page:#x}"
            );
        }
    }
    Ok(format!("{} MiB", MEMORY.1 >> 20))
}
