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

use super::devices::{behind_port, on_bus_0};
use crate::cleanup::Directory;
use crate::qemu::{Hardware, Iommu};
use crate::test::{Check, Setting, batch};

const CASES: &str = include_str!("../../../../tests/cases/iommu.cases");
const VIRTIO: &str = include_str!("../../../../tests/cases/iommu-virtio.cases");
const ENDS: &str = include_str!("../../../../tests/cases/iommu-ends.cases");

/// Memory of the machine, for QEMU and in bytes.
const MEMORY: (&str, u64) = ("2G", 2 << 30);
pub(super) const PAGE: usize = 4096;
/// A card that goes by the unit. (A disk would have firmware take memory that the archive lies
/// in.)
const CARD: &str = "virtio-net-pci,netdev=net,romfile=,iommu_platform=on";
const OTHER_DISK: &str = "nvme,serial=other,drive=other";
/// Bytes of the disk.
pub(super) const DISK: usize = 32 << 20;
/// Pages of the disk that stray transfers are made of: those of the cases.
const STRAY_PAGES: [u64; 5] = [1024, 1536, 2048, 2560, 3584];
/// Pages of the disk that instances read while they end.
const READ_AT_ENDS: Range<u64> = 4096..6400;
/// Rounds in which an instance ends, and of the long test.
const ROUNDS: u32 = 3;
const MANY_ROUNDS: u32 = 100;
/// Bytes that the disk transfers in a second: reads of the ends take longer than they do.
const SLOW: u32 = 4 << 20;
/// Kinds of units, and how each is tested.
const KINDS: [Kind; 2] = [
    // The entry of a line of the supervisor's, one of another instance's function, one that nobody
    // has, and two beyond all.
    Kind {
        iommu: Iommu::Intel,
        name: "intel",
        functions: ["01:00.0", "02:00.0", "03:00.0"],
        usage: Usage {
            once: "ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; \
                   ping -c 2 -W 20 10.0.2.2 >/dev/null",
            always: "ping -c 9 -A 10.0.2.2 >/dev/null",
            unheard: "ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0 2>/dev/null; \
                      ping -c 3 -W 1 10.0.2.2 >/dev/null",
        },
        messages: &[
            "fee00018:4",
            "fee00218:0",
            "fee00018:0",
            "feeffff8:0",
            "fee00018:ffff",
        ],
        counts: true,
    },
    // An entry that the function does not have, and NMI, INIT and what has no vector for the
    // supervisor's CPU. QEMU's unit notes neither interrupts that it refuses nor accesses to what
    // no table says anything of. It takes the bus of a function when that is made, which is before
    // buses have numbers, so all functions behind ports are 00:00.0 for it.
    Kind {
        iommu: Iommu::Amd,
        name: "amd",
        functions: ["00:04.0", "00:05.0", "00:06.0"],
        usage: Usage {
            once: "seq 20000 | dd of=/dev/nvme1n1 conv=fsync 2>/dev/null; \
                   seq 20000 | cmp -n 108894 - /dev/nvme1n1",
            always: "dd if=/dev/nvme1n1 of=/dev/null bs=1M count=8 iflag=direct 2>/dev/null",
            unheard: "[ -e /dev/nvme0n1 ] && sleep 1",
        },
        messages: &[
            "fee00000:df",
            "fee00000:400",
            "fee00000:500",
            "fee01000:7ff",
        ],
        counts: false,
    },
];

/// A kind of units.
struct Kind {
    iommu: Iommu,
    name: &'static str,
    /// Numbers of the controller, the other function, and what does not go by the unit.
    functions: [&'static str; 3],
    usage: Usage,
    /// Messages that are refused: address and data.
    messages: &'static [&'static str],
    /// Flag: the emulator's unit notes what it refuses.
    counts: bool,
}

/// Commands by which an instance uses the other function.
struct Usage {
    once: &'static str,
    /// Ends, and is started again for as long as the instance is there.
    always: &'static str,
    /// The same when the function's interrupts get nowhere.
    unheard: &'static str,
}

impl Kind {
    /// Adds a device that will have one of the numbers.
    fn add(&self, hardware: &mut Hardware, place: usize, device: &str) {
        match self.iommu {
            Iommu::Intel => behind_port(hardware, place as u32 + 1, device),
            Iommu::Amd => on_bus_0(hardware, place as u32 + 4, device),
        }
    }

    /// Adds the other function. `disk` is the image for it, if it needs one.
    fn add_other(&self, hardware: &mut Hardware, disk: &Path) {
        let (backend, device) = match self.iommu {
            Iommu::Intel => (["-netdev".into(), "user,id=net".into()], CARD),
            Iommu::Amd => {
                let drive = format!("if=none,id=other,format=raw,file={}", disk.display());
                (["-drive".into(), drive.into()], OTHER_DISK)
            }
        };
        hardware.extra.extend(backend);
        self.add(hardware, 1, device);
    }

    /// Cases with the names of functions, and what uses them.
    fn named(&self, cases: &str) -> String {
        let [disk, other, _] = self.functions;
        cases
            .replace("@DISK@", disk)
            .replace("@OTHER@", other)
            .replace("@USE@", self.usage.once)
            .replace("@BUSY@", self.usage.always)
            .replace("@TRY@", self.usage.unheard)
    }

    /// The cases as they are for this kind.
    fn cases(&self) -> String {
        const FAULTS: &str =
            "faults() { skerry inspect --json w | grep dma_faults | tr -dc '0-9'; }";
        let (counted, events) = if self.counts {
            (
                "until [ \"$(faults)\" -gt $1 ]; do sleep 0.1; done",
                "[1-9]",
            )
        } else {
            (":", "[0-9]")
        };
        let messages = self.messages.iter();
        let refused: Vec<_> = messages
            .map(|message| format!("-- refused {message}"))
            .collect();
        self.named(CASES)
            .replace("@FAULTS@", &format!("{FAULTS}\ncounted() {{ {counted}; }}"))
            .replace("@EVENTS@", events)
            .replace("@MESSAGES@", &self.messages.join(" "))
            .replace("@REFUSED@", &refused.join("\n"))
    }
}

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
pub(super) fn write_disk(path: &Path) -> Result<()> {
    let pages = (0..(DISK / PAGE) as u64).flat_map(content);
    Ok(fs::write(path, pages.collect::<Vec<u8>>())?)
}

/// Has the machine's memory be a file of the host's.
pub(super) fn keep_memory(hardware: &mut Hardware, memory: &Path) {
    let (size, _) = MEMORY;
    hardware.memory = size.into();
    let backend = format!(
        "memory-backend-file,id=ram,size={size},share=on,mem-path={}",
        memory.display()
    );
    let arguments = ["-object", &backend, "-machine", "memory-backend=ram"];
    (hardware.extra).extend(arguments.iter().map(OsString::from));
}

/// Does so, and adds the controller with its disk, and what else is said of that.
fn attach(kind: &Kind, hardware: &mut Hardware, memory: &Path, disk: &Path, more: &str) {
    keep_memory(hardware, memory);
    let drive = format!("if=none,id=nvme,format=raw,file={}{more}", disk.display());
    (hardware.extra).extend(["-drive", &drive].map(OsString::from));
    kind.add(hardware, 0, "nvme,serial=rock,drive=nvme");
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for kind in &KINDS {
        checks.extend(run_with(setting, kind)?);
    }
    Ok(checks)
}

fn run_with(setting: &Setting, kind: &Kind) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let nvme = directory.join("nvme");
    write_disk(&nvme)?;
    let (memory, other) = (directory.join("memory"), directory.join("other"));
    File::create(&other)?.set_len(DISK as u64)?;
    let mut machine = setting.machine(&format!("{}-confined", kind.name));
    machine.timeout = Some(Duration::from_secs(300));
    machine.append = format!("fault=unreset pci.hide={}", kind.functions.join(","));
    machine.hardware.iommu = Some(kind.iommu);
    let hardware = &mut machine.hardware;
    attach(kind, hardware, &memory, &nvme, "");
    kind.add_other(hardware, &other);
    let mut steps = batch::steps(&kind.cases(), &[])?;
    // A virtio device can be reset in a slot only.
    if kind.iommu == Iommu::Intel {
        kind.add(hardware, 2, "virtio-rng-pci");
        steps.extend(batch::steps(VIRTIO, &[])?);
    }
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
    checks.extend(unconfined(setting, kind, &memory, &nvme)?);
    fs::remove_file(&memory)?;
    checks.extend(ends(setting, kind, &directory, ROUNDS)?);
    Ok(checks)
}

/// A hundred ends with each kind.
pub fn long_ends(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for kind in &KINDS {
        let directory = Directory::create().context("cannot make a temporary directory")?;
        checks.extend(ends(setting, kind, &directory, MANY_ROUNDS)?);
    }
    Ok(checks)
}

/// Instances that end while their devices transfer, so many.
fn ends(setting: &Setting, kind: &Kind, directory: &Directory, rounds: u32) -> Result<Vec<Check>> {
    let [disk, other, memory] = ["nvme", "other", "memory"].map(|name| directory.join(name));
    write_disk(&disk)?;
    File::create(&other)?.set_len(DISK as u64)?;
    let mut machine = setting.machine(&format!("{}-ends", kind.name));
    machine.timeout = Some(Duration::from_secs(120 + 30 * u64::from(rounds)));
    machine.append = format!("pci.hide={}", kind.functions[..2].join(","));
    machine.hardware.iommu = Some(kind.iommu);
    let hardware = &mut machine.hardware;
    let slow = format!(",throttling.bps-total={SLOW}");
    attach(kind, hardware, &memory, &disk, &slow);
    kind.add_other(hardware, &other);
    let cases = kind.named(ENDS).replace("@ROUNDS@", &rounds.to_string());
    let mut steps = batch::steps(&cases, &[])?;
    for step in &mut steps {
        step.limit = 60 + 30 * rounds;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new(
        "the host finds what instances were reading at their ends nowhere in the machine's memory",
        find_none(&memory, READ_AT_ENDS),
    ));
    Ok(checks)
}

/// The same driver on the same machine, whose unit is left alone: the transfer gets where it was
/// told to.
fn unconfined(setting: &Setting, kind: &Kind, memory: &Path, disk: &Path) -> Result<Vec<Check>> {
    const CASE: &str = "\
== without the unit a function is refused, or at large
skerry run --device @DISK@ -- true 2>&1 | cut -c 1-69
skerry run --device @DISK@ --unsafe-dma -- sh -c '
    echo stray=50000 > /proc/skerry/fault
    dd if=/dev/nvme0n1 of=/dev/null bs=4096 skip=1024 count=1 2>/dev/null'
grep -c '^ *df:' /proc/interrupts
skerry run -d --name w --device @DISK@ --unsafe-dma --kernel-args fault=message=fee00000:df@memory -- sleep 1000 >/dev/null
until grep -q '^ *df:' /proc/interrupts; do sleep 0.1; done
echo interrupted
skerry stop --force w >/dev/null
-- skerry: cannot give 0000:@DISK@ to an instance: no IOMMU confines it
-- 0
-- interrupted
";
    let mut machine = setting.machine(&format!("{}-at-large", kind.name));
    machine.append = format!("iommu=off pci.hide={}", kind.functions[0]);
    machine.hardware.iommu = Some(kind.iommu);
    attach(kind, &mut machine.hardware, memory, disk, "");
    let mut checks = batch::run(machine, &batch::steps(&kind.named(CASE), &[])?)?;
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
pub(super) fn find_none(memory: &Path, pages: impl Iterator<Item = u64>) -> Result<String> {
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
