//! Virtio disks of the machine, as `fs` knows them.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use block::{BlockDevice, Limits, PageCache, Request};
use devices::{DmaPage, PciDevice, Vector};
use fs::DeviceId;
use fs::block::{Disk, DiskDriver, DiskNumbers, DiskOpener, Protection};
use fs::ioctl::IoctlRequest;
use guard::cpu::{self, CpuId};
use task::Event;
use virtio::pci::Pci;
use virtqueue::Address;
use vm::Page;
use zerocopy::{Immutable, IntoBytes};

use super::{Board, Messages, QueueMemory, open, queue_memory, start_devices, text};
use crate::virtio_blk::{DiskParts, Lent, VirtioDisk};
use crate::virtio_parts::Parts;

/// Kind of disks among virtio devices.
const KIND: u16 = 2;
/// Major number of virtio disks, and minor numbers of each: what Debian's kernel gives them.
const MAJOR: u32 = 254;
const MINORS: u32 = 16;

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

/// This machine's parts for a disk.
struct Machine;

impl Parts for Machine {
    type Transport = Pci<Board>;
    type Memory = QueueMemory;
    type Interrupt = Vector;
}

impl DiskParts for Machine {
    type Lent = DmaPage;

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

/// Finds disks and makes them known.
pub fn probe() {
    static DONE: Event = Event::new();
    start_devices(KIND, "virtio disks", &DONE, start_disk);
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
    let claim = device.claim().map_err(|error| text(&error))?;
    let queues = usize::from(claim.vectors()).min(devices::vector_cpus());
    let vectors: Vec<Vector> = (0..queues)
        .map_while(|n| claim.vector(n as u16, CpuId(n as u32)).ok())
        .collect();
    if vectors.is_empty() {
        return Err("it has no interrupt messages".into());
    }
    let transport = open(&claim, Messages::Queues)?;
    let memory = |bytes: u64| queue_memory(&claim, bytes);
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
