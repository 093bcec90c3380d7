//! `/proc/bus/pci`: functions with their configuration space, for `lspci` and its kind.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;

use abi::errno::Errno;
use devices::PciDevice;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use fs::{File, FileOps, FileType, Inode, Metadata, OpenFlags, Result, Whence, seek_position};
use pci::{Bar, BarKind, Function, HEADER_BYTES};
use task::Mutex;

/// Bits of a base address register that are shown with its address.
const SHOWN_FLAGS: u32 = 0xf;

/// Top directories, with their device numbers.
static TOPS: Mutex<Vec<(u64, Weak<StaticDir>)>> = Mutex::new(Vec::new());

/// Adds `bus/pci` to the top directory where there are functions.
pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    TOPS.lock().push((dev, Arc::downgrade(dir)));
    devices::pci_devices().for_each(|device| add_device(dir, device, dev));
}

/// Takes in that a function has come.
pub(crate) fn function_came(device: &'static PciDevice) {
    for (dev, dir) in TOPS.lock().iter() {
        if let Some(dir) = dir.upgrade() {
            add_device(&dir, device, *dev);
        }
    }
}

/// Takes in that a function has left.
pub(crate) fn function_left(device: &PciDevice) {
    let (bus, name) = place(device);
    for (_, dir) in TOPS.lock().iter() {
        if let Some(dir) = dir.upgrade() {
            dir.subdir("bus/pci").subdir(&bus).remove(&name);
        }
    }
}

/// The directory of a function's bus, and the name of its file there.
fn place(device: &PciDevice) -> (String, String) {
    let address = device.function().address;
    // Functions of further segments have their segment before the bus, as on Linux.
    let bus = match address.segment {
        0 => format!("{:02x}", address.bus),
        segment => format!("{segment:04x}:{:02x}", address.bus),
    };
    let name = format!("{:02x}.{:x}", address.device(), address.function());
    (bus, name)
}

fn add_device(dir: &Arc<StaticDir>, device: &'static PciDevice, dev: u64) {
    let dir = dir.subdir("bus/pci");
    dir.add(
        "devices",
        pseudo::file(PseudoAttr::new(dev, 0o444), || {
            Ok(list(devices::pci_devices()).into_bytes())
        }),
    );
    let (bus, name) = place(device);
    dir.subdir(&bus).add(&name, config_file(device, dev));
}

/// One line for each function: place, vendor and device, interrupt, addresses and sizes of its six
/// base address registers and its ROM, and an empty name of a driver.
fn list(devices: impl Iterator<Item = &'static PciDevice>) -> String {
    devices.fold(String::new(), |mut text, device| {
        let function = device.function();
        let _ = write!(
            text,
            "{:02x}{:02x}\t{:04x}{:04x}\t{:x}",
            function.address.bus,
            function.address.devfn(),
            function.vendor,
            function.device,
            irq(function),
        );
        let bars = || function.bars.iter().chain([&function.rom]);
        for bar in bars() {
            let shown = bar.map_or(0, |bar| bar.address | u64::from(bar.flags & SHOWN_FLAGS));
            let _ = write!(text, "\t{shown:16x}");
        }
        for bar in bars() {
            let _ = write!(text, "\t{:16x}", bar.map_or(0, |bar| bar.size));
        }
        text.push_str("\t\n");
        text
    })
}

/// The interrupt line of a function that nobody drives: the firmware's.
pub(crate) fn irq(function: &Function) -> u8 {
    match function.interrupt_pin {
        0 => 0,
        _ => function.interrupt_line,
    }
}

/// Flags of a register's addresses, as `resource` files show them (`IORESOURCE_*` of Linux).
pub(crate) fn resource_flags(bar: &Bar) -> u64 {
    const PORTS: u64 = 0x100;
    const MEMORY: u64 = 0x200;
    const PREFETCH: u64 = 0x2000;
    const READ_ONLY: u64 = 0x4000;
    const ALIGNED_TO_SIZE: u64 = 0x4_0000;
    const MEMORY_64: u64 = 0x10_0000;
    let kind = match bar.kind {
        BarKind::Ports => PORTS,
        BarKind::Memory32 => MEMORY,
        BarKind::Memory64 => MEMORY | MEMORY_64,
        BarKind::Rom => MEMORY | READ_ONLY,
    };
    let prefetch = if bar.prefetchable { PREFETCH } else { 0 };
    kind | prefetch | ALIGNED_TO_SIZE | u64::from(bar.flags)
}

/// A file with a function's configuration space. Who may not administrate the system sees the
/// header only.
pub(crate) fn config_file(device: &'static PciDevice, dev: u64) -> Arc<dyn Inode> {
    Arc::new(ConfigFile {
        attr: PseudoAttr::new(dev, 0o644),
        device,
    })
}

struct ConfigFile {
    attr: PseudoAttr,
    device: &'static PciDevice,
}

impl Inode for ConfigFile {
    fn metadata(&self) -> Metadata {
        let mut meta = self.attr.metadata(FileType::Regular);
        meta.size = u64::from(self.device.function().config_bytes);
        meta
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        let may_see_all = crate::current_task().is_some_and(|task| task.cred().has_sys_admin());
        let bytes = if may_see_all {
            self.device.function().config_bytes
        } else {
            HEADER_BYTES
        };
        Ok(Some(Arc::new(OpenConfig {
            device: self.device,
            bytes,
        })))
    }
}

struct OpenConfig {
    device: &'static PciDevice,
    /// Bytes that this opening shows.
    bytes: u16,
}

impl FileOps for OpenConfig {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.read_at(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    /// Refused: what stands there decides where a device writes to.
    fn write(&self, _: &File, _: &[u8]) -> Result<usize> {
        Err(Errno::EPERM)
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, _: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if !self.device.is_here() {
            return Err(Errno::ENODEV);
        }
        let offset = offset.min(u64::from(self.bytes)) as u16;
        let len = buf.len().min(usize::from(self.bytes - offset));
        Ok(self.device.read_config(offset, &mut buf[..len]))
    }

    fn write_at(&self, file: &File, _: u64, buf: &[u8]) -> Result<usize> {
        self.write(file, buf)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        let end = u64::from(self.device.function().config_bytes);
        file.with_offset(|position| {
            *position = seek_position(*position, Some(end), whence, offset)?;
            Ok(*position)
        })
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn fills_buffers(&self) -> bool {
        true
    }
}
