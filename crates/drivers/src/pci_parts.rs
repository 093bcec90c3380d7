//! Parts of the machine that drivers of PCI functions have: finding the functions, memory of their
//! queues, pages and interrupts; what `fs` wants of a disk.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use block::{BlockDevice, Limits, PageCache, Request};
use devices::{Claim, DmaMemory, DmaPage, PciDevice, Vector};
use fs::block::{DiskDriver, DiskOpener, Protection};
use fs::ioctl::IoctlRequest;
use guard::cpu::CpuId;
use pci::Function;
use task::{Deadline, Event};
use virtqueue::{Address, Memory, Unreachable};
use vm::Page;
use zerocopy::{Immutable, IntoBytes};

use crate::hotplug::{self, Kind, Started};
use crate::lanes::Lent;
use crate::virtio_parts::Interrupt;

/// Times that a device is looked at without sleeping in between.
const QUICK_LOOKS: u32 = 64;
const LOOK_NS: u64 = 1_000_000;

/// Time that the start of the system waits for devices of a kind.
const START_NS: u64 = 20_000_000_000;

/// Lets time pass before a device is looked at for the `n`th time.
pub fn pause(n: u32) {
    if n >= QUICK_LOOKS {
        task::sleep_until(Deadline::after_ns(LOOK_NS));
    }
}

/// Starts the devices of a kind, in the order of their addresses, in a thread, and waits for that a
/// bounded time; `start` is given the number of each among those of the kind. Those that come later
/// are started when they do ([`hotplug::came`]).
pub fn start_devices(
    is_kind: impl Fn(&Function) -> bool + Copy + Send + Sync + 'static,
    what: &'static str,
    done: &'static Event,
    start: impl Fn(&'static PciDevice, u32) -> Result<Box<dyn Started>, String> + Send + Sync + 'static,
) {
    let kind = hotplug::add_kind(Kind {
        what,
        is_kind: Box::new(is_kind),
        start: Box::new(start),
    });
    let all = move || {
        let all = devices::pci_devices();
        all.filter(move |device| is_kind(device.function()) && !device.is_hidden())
    };
    if all().next().is_none() {
        return;
    }
    let start_all = move || {
        for device in all() {
            if let Err(error) = hotplug::start(&kind, device) {
                log::error!("{what}: {}: {error}", device.function().address);
            }
        }
        done.set();
    };
    if task::spawn(what, None, start_all).is_err() {
        log::error!("{what}: no memory to look at them");
    } else if !done.wait_until(Deadline::after_ns(START_NS)) {
        log::error!("{what}: one does not answer: the system starts without it");
    }
}

/// Memory for a queue, so many bytes, and its address for the device.
pub fn queue_memory(claim: &Arc<Claim>, bytes: u64) -> Option<(QueueMemory, Address)> {
    let memory = claim.memory(usize::try_from(bytes).ok()?)?;
    let at = Address::new(memory.address().number());
    Some((QueueMemory { memory, at }, at))
}

/// Interrupts for the queues of a function: one for each CPU that can have some, as far as the
/// function has messages.
pub fn queue_vectors(claim: &Arc<Claim>) -> Result<Vec<Vector>, String> {
    let queues = usize::from(claim.vectors()).min(devices::vector_cpus());
    let vectors: Vec<Vector> = (0..queues)
        .map_while(|n| claim.vector(n as u16, CpuId(n as u32)).ok())
        .collect();
    if vectors.is_empty() {
        return Err("it has no interrupt messages".into());
    }
    Ok(vectors)
}

/// An error as text.
pub fn text(error: &dyn core::fmt::Display) -> String {
    alloc::format!("{error}")
}

/// Memory of a queue, by the addresses that the device knows.
pub struct QueueMemory {
    memory: DmaMemory,
    /// Address by which the device finds it.
    at: Address,
}

impl QueueMemory {
    fn offset(&self, at: Address) -> Option<usize> {
        let offset = at.number().checked_sub(self.at.number())?;
        usize::try_from(offset).ok()
    }
}

impl Memory for QueueMemory {
    fn reaches(&self, at: Address, len: u64) -> bool {
        let bytes = self.memory.bytes() as u64;
        self.offset(at)
            .and_then(|offset| (offset as u64).checked_add(len))
            .is_some_and(|end| end <= bytes)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.memory.load16(offset).ok_or(Unreachable(at))
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.memory.store16(offset, value).ok_or(Unreachable(at))
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.memory.read(offset, into).ok_or(Unreachable(at))
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.memory.write(offset, from).ok_or(Unreachable(at))
    }
}

impl Interrupt for Vector {
    fn event(&self) -> &Event {
        self.event()
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

/// A disk that tells in how many cylinders, heads and sectors it is divided.
pub trait Geometric: BlockDevice {
    /// Cylinders, heads, sectors.
    fn geometry(&self) -> (u16, u8, u8);

    /// A request of the disk's own kind.
    ///
    /// # Errors
    /// `ENOTTY` if it does not know it.
    fn own_ioctl(&self, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        let _ = request;
        Err(Errno::ENOTTY)
    }
}

/// A disk with what `fs` wants of it.
pub struct DiskOfMachine<D> {
    disk: D,
    /// Whether somebody forbade changes (`BLKROSET`).
    is_protected: AtomicBool,
}

impl<D> DiskOfMachine<D> {
    /// A disk that lets itself be changed.
    pub const fn new(disk: D) -> Self {
        Self {
            disk,
            is_protected: AtomicBool::new(false),
        }
    }
}

impl<D: BlockDevice> BlockDevice for DiskOfMachine<D> {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only() || self.is_protected.load(Ordering::Relaxed)
    }

    fn writes_through(&self) -> bool {
        self.disk.writes_through()
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

impl<D: Geometric> DiskDriver for DiskOfMachine<D> {
    fn ioctl(&self, opener: &DiskOpener<'_>, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        let (cylinders, heads, sectors) = match request.command {
            HDIO_GETGEO => self.disk.geometry(),
            _ => return self.disk.own_ioctl(request),
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
