//! The emulator's command line.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

/// The board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Board {
    /// A PC with PCI Express.
    #[default]
    Q35,
    /// A machine without PCI, as the cloud's small VMMs make it.
    Microvm,
}

/// Firmware of a machine that boots from an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Firmware {
    /// SeaBIOS.
    Bios,
    /// OVMF.
    Uefi,
}

/// UEFI firmware (package ovmf).
const OVMF: &str = "/usr/share/ovmf/OVMF.fd";

/// Medium that the machine starts from.
#[derive(Clone, Debug)]
pub enum Boot {
    /// A kernel image, loaded by QEMU.
    Kernel {
        /// An ELF with a PVH note, or a Linux `bzImage`.
        kernel: PathBuf,
        /// The initial RAM file system.
        initramfs: PathBuf,
        /// The kernel command line.
        command_line: String,
    },
    /// A CD-ROM.
    Iso {
        /// The image.
        image: PathBuf,
        /// Firmware that reads the image.
        firmware: Firmware,
    },
}

/// A unit that confines what devices read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Iommu {
    /// VT-d.
    Intel,
    /// AMD-Vi.
    Amd,
}

/// The hardware of a machine.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// The board.
    pub board: Board,
    /// Processors.
    pub cpus: u32,
    /// Threads of each core; divides `cpus`.
    pub threads: u32,
    /// Memory, as QEMU spells it.
    pub memory: String,
    /// Virtual time counts instructions; all processors run in turn on one thread. Deterministic
    /// with one processor.
    pub icount: bool,
    /// Images of virtio disks, the first of which is `vda`.
    pub disks: Vec<PathBuf>,
    /// Networks of virtio network cards, the first of which is `eth0`: what QEMU's `-netdev` is
    /// given, without an `id`.
    pub networks: Vec<OsString>,
    /// Unit that confines devices.
    pub iommu: Option<Iommu>,
    /// Wait for gdb before the first instruction.
    pub gdb: bool,
    /// Anything else for QEMU.
    pub extra: Vec<OsString>,
}

/// The emulator.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// QEMU for `hardware`, with COM1 written to `log` and COM2 on its standard streams.
pub fn command(hardware: &Hardware, boot: &Boot, log: &Path) -> Command {
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", "--", PROGRAM]);
    qemu.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    qemu.args([
        "-machine",
        match hardware.board {
            Board::Q35 => "q35",
            // The serial ports, the clock and a way to power off are asked for, the rest of a PC is
            // not.
            Board::Microvm => "microvm,acpi=on,rtc=on,pic=on,pit=on,isa-serial=off",
        },
    ]);
    let Hardware { cpus, threads, .. } = hardware;
    let processors = format!(
        "{cpus},sockets=1,cores={},threads={threads}",
        cpus / threads
    );
    qemu.args(["-cpu", "max", "-m", &hardware.memory, "-smp", &processors]);
    if hardware.icount {
        qemu.args([
            "-accel",
            "tcg,thread=single",
            "-icount",
            "shift=0,sleep=off",
        ]);
        qemu.args(["-seed", "1", "-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi"]);
    }
    qemu.arg("-chardev")
        .arg(option(&["file,id=com1,path=".as_ref(), log.as_os_str()]));
    qemu.args(["-chardev", "stdio,id=com2,signal=off"]);
    qemu.args(["-device", "isa-serial,iobase=0x3f8,irq=4,chardev=com1"]);
    qemu.args(["-device", "isa-serial,iobase=0x2f8,irq=3,chardev=com2"]);
    // Before all that it is to translate for.
    if let Some(iommu) = hardware.iommu {
        let unit = match iommu {
            Iommu::Intel => "intel-iommu,intremap=on,eim=on,aw-bits=48",
            Iommu::Amd => "amd-iommu,intremap=on,xtsup=on,pt=off",
        };
        qemu.args(["-device", unit]);
    }
    // A virtio device goes by it only if it is told to.
    let platform = match hardware.iommu {
        Some(_) => ",iommu_platform=on",
        None => "",
    };
    match boot {
        Boot::Kernel {
            kernel,
            initramfs,
            command_line,
        } => {
            qemu.arg("-kernel")
                .arg(kernel)
                .arg("-initrd")
                .arg(initramfs)
                .args(["-append", command_line]);
        }
        Boot::Iso { image, firmware } => {
            qemu.arg("-cdrom").arg(image).args(["-boot", "d"]);
            if *firmware == Firmware::Uefi {
                qemu.args(["-bios", OVMF]);
            }
        }
    }
    for (n, image) in hardware.disks.iter().enumerate() {
        let drive = format!("if=none,id=disk{n},format=raw,discard=unmap,file=");
        qemu.arg("-drive")
            .arg(option(&[drive.as_ref(), image.as_os_str()]));
        qemu.args([
            "-device",
            &format!("virtio-blk-pci,drive=disk{n}{platform}"),
        ]);
    }
    for (n, network) in hardware.networks.iter().enumerate() {
        let mut network = network.clone();
        network.push(format!(",id=net{n}"));
        qemu.arg("-netdev").arg(network);
        // Nothing boots from a network, and firmware for that may not be there.
        let device = format!("virtio-net-pci,netdev=net{n},romfile={platform}");
        qemu.args(["-device", &device]);
    }
    if hardware.gdb {
        qemu.args(["-s", "-S"]);
    }
    qemu.args(&hardware.extra);
    qemu.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    qemu
}

/// A QEMU option put together from literal text and a path, in whose place QEMU reads a doubled
/// comma as a comma.
fn option(parts: &[&OsStr]) -> OsString {
    let (path, text) = parts.split_last().expect("an option has parts");
    let mut option: OsString = text.iter().copied().collect();
    option.push(path.to_string_lossy().replace(',', ",,"));
    option
}
