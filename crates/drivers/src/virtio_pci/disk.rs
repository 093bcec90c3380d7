//! Virtio disks of the machine, as `fs` knows them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::live::Refusal;
use devices::{DmaPage, PciDevice, Vector};
use fs::DeviceId;
use fs::block::{Disk, DiskNumbers};
use guard::cpu;
use task::Event;
use virtio::pci::Pci;

use super::{Board, Messages, is_kind, open};
use crate::gate::Close;
use crate::hotplug::{Started, refusal_of};
use crate::pci_parts::{
    DiskOfMachine, Geometric, QueueMemory, queue_memory, queue_vectors, start_devices, text,
};
use crate::virtio_blk::{DiskParts, VirtioDisk};
use crate::virtio_parts::Parts;

/// Kind of disks among virtio devices.
const KIND: u16 = 2;
/// Major number of virtio disks, and minor numbers of each: what Debian's kernel gives them.
const MAJOR: u32 = 254;
const MINORS: u32 = 16;

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

impl Geometric for VirtioDisk<Machine> {
    fn geometry(&self) -> (u16, u8, u8) {
        self.properties().geometry
    }
}

/// A disk that was made known.
struct StartedDisk {
    names: [String; 1],
    gate: Arc<dyn Close>,
}

impl Started for StartedDisk {
    fn end(&mut self, force: bool) -> Result<(), Refusal> {
        Disk::remove(&self.names, force).map_err(refusal_of)?;
        self.gate.close(force);
        Ok(())
    }
}

/// Finds disks and makes them known.
pub fn probe() {
    static DONE: Event = Event::new();
    start_devices(is_kind(KIND), "virtio disks", &DONE, start_disk);
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
fn start_disk(device: &'static PciDevice, index: u32) -> Result<Box<dyn Started>, String> {
    let claim = device.claim().map_err(|error| text(&error))?;
    let vectors = queue_vectors(&claim)?;
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
    let gate = disk.gate();
    let driver = Arc::new(DiskOfMachine::new(disk));
    let place = DiskNumbers {
        id: DeviceId::new(MAJOR, index * MINORS),
        minors: MINORS,
    };
    Disk::register(&name, place, driver).map_err(|error| text(&error))?;
    let names = [name];
    Ok(Box::new(StartedDisk { names, gate }))
}
