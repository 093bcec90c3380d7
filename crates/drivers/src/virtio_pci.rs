//! Virtio devices of the machine: finding them, and what their drivers have of it.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use block::{BlockDevice, Limits, PageCache, Request};
use devices::{Claim, DmaMemory, DmaPage, PciDevice, Vector};
use fs::DeviceId;
use fs::block::{Disk, DiskDriver, DiskNumbers, DiskOpener, Protection};
use fs::ioctl::IoctlRequest;
use guard::cpu::{self, CpuId};
use task::{Deadline, Event};
use virtio::pci::{Function, Pci};
use virtqueue::{Address, Memory, Transport, Unreachable};
use vm::Page;
use zerocopy::{Immutable, IntoBytes};

use crate::virtio_blk::{Interrupt, Lent, Parts, VirtioDisk};

/// Kind of disks among virtio devices.
const KIND_DISK: u16 = 2;
/// Major number of virtio disks, and minor numbers of each: what Debian's kernel gives them.
const MAJOR: u32 = 254;
const MINORS: u32 = 16;
/// Times that a device is looked at without sleeping in between.
const QUICK_LOOKS: u32 = 64;
const LOOK_NS: u64 = 1_000_000;
/// Time that the start of the system waits for disks.
const START_NS: u64 = 20_000_000_000;

/// A function of the machine, as the transport wants it.
struct Board(Arc<Claim>);

struct Registers(devices::Registers);

impl virtio::pci::Registers for Registers {
    fn read8(&self, at: usize) -> u8 {
        self.0.read(at)
    }

    fn read16(&self, at: usize) -> u16 {
        self.0.read(at)
    }

    fn read32(&self, at: usize) -> u32 {
        self.0.read(at)
    }

    fn write8(&self, at: usize, value: u8) {
        self.0.write(at, value);
    }

    fn write16(&self, at: usize, value: u16) {
        self.0.write(at, value);
    }

    fn write32(&self, at: usize, value: u32) {
        self.0.write(at, value);
    }
}

impl Function for Board {
    type Registers = Registers;

    fn config(&self, at: u16) -> u32 {
        let mut bytes = [0xff; 4];
        self.0.device().read_config(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn registers(&self, bar: u8, offset: u32, len: u32) -> Option<Registers> {
        let registers = self.0.registers(bar, offset.into(), len as usize);
        registers.ok().map(Registers)
    }

    fn message_of(&self, queue: u16) -> u16 {
        queue
    }

    fn force_reset(&self) -> bool {
        let is_stopped = self.0.reset().is_ok();
        self.0.start();
        is_stopped
    }

    fn pause(&self, n: u32) {
        if n >= QUICK_LOOKS {
            task::sleep_until(Deadline::after_ns(LOOK_NS));
        }
    }
}

/// Memory of a queue, by the addresses that the device knows.
struct QueueMemory(DmaMemory);

impl QueueMemory {
    fn offset(&self, at: Address) -> Option<usize> {
        let offset = at.number().checked_sub(self.0.address().number())?;
        usize::try_from(offset).ok()
    }
}

impl Memory for QueueMemory {
    fn reaches(&self, at: Address, len: u64) -> bool {
        let bytes = self.0.bytes() as u64;
        self.offset(at)
            .and_then(|offset| (offset as u64).checked_add(len))
            .is_some_and(|end| end <= bytes)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.load16(offset).ok_or(Unreachable(at))
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.store16(offset, value).ok_or(Unreachable(at))
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.read(offset, into).ok_or(Unreachable(at))
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.write(offset, from).ok_or(Unreachable(at))
    }
}

impl Lent for DmaPage {
    fn lend(page: &Page) -> Self {
        Self::lend(page.clone())
    }

    fn address(&self) -> Address {
        Address::new(self.address().number())
    }

    fn completed(self) {
        self.completed();
    }
}

impl Interrupt for Vector {
    fn event(&self) -> &Event {
        self.event()
    }
}

/// This machine's parts for drivers.
struct Machine;

impl Parts for Machine {
    type Transport = Pci<Board>;
    type Memory = QueueMemory;
    type Lent = DmaPage;
    type Interrupt = Vector;

    fn cpu() -> usize {
        cpu::current().0 as usize
    }
}

/// A virtio disk with what `fs` wants of it.
struct DiskOfMachine {
    disk: VirtioDisk<Machine>,
    /// Whether somebody forbade changes (`BLKROSET`).
    is_protected: AtomicBool,
}

impl BlockDevice for DiskOfMachine {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only() || self.is_protected.load(Ordering::Relaxed)
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        self.disk.submit(batch);
    }
}

/// `struct hd_geometry`, and the request for it.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Geometry {
    heads: u8,
    sectors: u8,
    cylinders: u16,
    padding: u32,
    start: u64,
}

const HDIO_GETGEO: u32 = 0x0301;

impl DiskDriver for DiskOfMachine {
    fn ioctl(&self, opener: &DiskOpener<'_>, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        let (cylinders, heads, sectors) = match request.command {
            HDIO_GETGEO => self.disk.properties().geometry,
            _ => return Err(Errno::ENOTTY),
        };
        let geometry = Geometry {
            heads,
            sectors,
            cylinders,
            padding: 0,
            start: opener.disk.start() / block::SECTOR_SIZE,
        };
        request.write(&geometry).map(|()| 0)
    }

    fn protect(&self, protection: Protection) {
        let is_protected = protection == Protection::ReadOnly;
        self.is_protected.store(is_protected, Ordering::Relaxed);
    }

    fn closed(&self, _: &PageCache) {}
}

/// Finds the machine's virtio devices, in the order of their addresses, and makes what they are
/// known. A device that cannot be used costs a line in the log, and one that does not answer a
/// while: the start of the system waits for it no longer than that.
pub fn probe() {
    static DONE: Event = Event::new();
    if !devices::pci_devices().iter().any(is_disk) {
        return;
    }
    let find = || {
        start_disks();
        DONE.set();
    };
    if task::spawn("disks", None, find).is_err() {
        log::error!("no memory to look at disks");
    } else if !DONE.wait_until(Deadline::after_ns(START_NS)) {
        log::error!("a disk does not answer: the system starts without it");
    }
}

fn is_disk(device: &PciDevice) -> bool {
    let function = device.function();
    virtio::pci::kind(function.vendor, function.device) == Some(KIND_DISK)
}

fn start_disks() {
    let mut disks = 0;
    for device in devices::pci_devices()
        .iter()
        .filter(|device| is_disk(device))
    {
        match start_disk(device, disks) {
            Ok(()) => disks += 1,
            Err(error) => log::error!("virtio disk {}: {error}", device.function().address),
        }
    }
}

/// Name of a disk: `vda` to `vdz`, `vdaa` and so on.
fn disk_name(index: u32) -> String {
    let mut letters = Vec::new();
    let mut rest = index;
    loop {
        letters.push(b'a' + (rest % 26) as u8);
        match (rest / 26).checked_sub(1) {
            Some(more) => rest = more,
            None => break,
        }
    }
    let letters = letters.iter().rev().map(|letter| char::from(*letter));
    "vd".chars().chain(letters).collect()
}

/// Brings the `index`th disk up and makes it known.
fn start_disk(device: &'static PciDevice, index: u32) -> Result<(), String> {
    let text = |error: &dyn core::fmt::Display| alloc::format!("{error}");
    let claim = device.claim().map_err(|error| text(&error))?;
    let queues = usize::from(claim.vectors()).min(cpu::count());
    let vectors: Vec<Vector> = (0..queues)
        .map_while(|n| claim.vector(n as u16, CpuId(n as u32)).ok())
        .collect();
    if vectors.is_empty() {
        return Err("it has no interrupt messages".into());
    }
    let transport = Pci::new(Board(claim.clone())).map_err(|error| text(&error))?;
    // What firmware has told it of ends before it may reach memory.
    transport.reset().map_err(|error| text(&error))?;
    claim.start();
    let memory = |bytes: u64| {
        let memory = claim.memory(usize::try_from(bytes).ok()?)?;
        let at = Address::new(memory.address().number());
        Some((QueueMemory(memory), at))
    };
    let name = disk_name(index);
    let disk = VirtioDisk::<Machine>::start(name.clone(), transport, vectors, memory)
        .map_err(|error| text(&error))?;
    let properties = disk.properties();
    log::info!(
        "{name}: virtio disk {}, {} blocks of {} bytes, queues for {} CPUs{}",
        device.function().address,
        properties.capacity / u64::from(properties.block),
        properties.block,
        disk.queues(),
        if properties.read_only {
            ", read-only"
        } else {
            ""
        },
    );
    let driver = Arc::new(DiskOfMachine {
        disk,
        is_protected: AtomicBool::new(false),
    });
    let place = DiskNumbers {
        id: DeviceId::new(MAJOR, index * MINORS),
        minors: MINORS,
    };
    Disk::register(&name, place, driver).map_err(|error| text(&error))
}
