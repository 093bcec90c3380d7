//! NVMe controllers of the machine: finding them, and their namespaces as `fs` knows them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::live::Refusal;
use devices::{Claim, DmaPage, PciDevice, Registers, Vector};
use fs::block::{self, Disk, DiskNumbers, NvmeController};
use fs::ioctl::IoctlRequest;
use fs::{DeviceId, devfs};
use guard::cpu;
use nvme::{Capabilities, NoSecondaries, Secondaries};
use task::Event;

use crate::gate::Close;
use crate::hotplug::{Started, refusal_of};
use crate::lanes::QUEUE_SIZE;
use crate::nvme::{Control, NvmeDisk, Parts, start};
use crate::pci_parts::{
    DiskOfMachine, Geometric, QueueMemory, pause, queue_memory, queue_vectors, start_devices, text,
};

/// Class of controllers: mass storage, non-volatile memory, NVM Express.
const CLASS: u32 = 0x01_08_02;
/// The base address register of the registers (section 2.1.10).
const BAR: u8 = 0;

/// This machine's parts for a controller.
struct Machine;

impl Parts for Machine {
    type Function = Board;
    type Memory = QueueMemory;
    type Interrupt = Vector;
    type Lent = DmaPage;

    fn cpu() -> usize {
        cpu::current().0 as usize
    }
}

/// A function of the machine, with its registers.
struct Board {
    name: String,
    claim: Arc<Claim>,
    registers: Registers,
}

impl nvme::Function for Board {
    fn bytes(&self) -> usize {
        self.registers.bytes()
    }

    fn read(&self, at: usize) -> u32 {
        self.registers.read(at)
    }

    fn write(&self, at: usize, value: u32) {
        self.registers.write(at, value);
    }

    fn let_reach(&self) {
        self.claim.start();
    }

    fn force_reset(&self) -> bool {
        self.claim.reset().is_ok()
    }

    fn virtual_functions(&self) -> u16 {
        self.claim.device().function().virtual_places().count() as u16
    }

    fn put_online(&self, outcome: Result<Secondaries, NoSecondaries>) {
        let name = &self.name;
        match outcome {
            Ok(online) => log::info!(
                "{name}: {} controllers of virtual functions are online, each with {} queues and \
                 {} interrupts",
                online.count,
                online.queues,
                online.interrupts
            ),
            Err(why) => log::error!("{name}: no controller of a virtual function is used: {why}"),
        }
    }

    fn pause(&self, n: u32) {
        pause(n);
    }
}

impl Geometric for NvmeDisk<Machine> {
    /// Numbers that Linux makes up.
    fn geometry(&self) -> (u16, u8, u8) {
        let sectors = self.namespace().capacity() / block::SECTOR_SIZE;
        ((sectors >> 11) as u16, 64, 32)
    }

    fn own_ioctl(&self, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        self.ioctl(request)
    }
}

/// A controller that was made known.
struct StartedController {
    name: String,
    disks: Vec<String>,
    /// Devices that take commands of programs, by name.
    nodes: Vec<(String, DeviceId)>,
    gate: Arc<dyn Close>,
}

impl Started for StartedController {
    fn end(&mut self, force: bool) -> Result<(), Refusal> {
        Disk::remove(&self.disks, force).map_err(refusal_of)?;
        block::unregister_controller(&self.name);
        for (name, id) in &self.nodes {
            devfs::unregister(name, *id);
        }
        self.gate.close(force);
        Ok(())
    }
}

/// Finds controllers and makes their namespaces known. One that cannot be used costs a line in the
/// log, and one that does not answer a while: the start of the system waits for it no longer than
/// that.
pub fn probe() {
    static DONE: Event = Event::new();
    let is_controller = |function: &pci::Function| function.class == CLASS;
    start_devices(is_controller, "NVMe disks", &DONE, start_controller);
}

/// Registers with the doorbells of so many queue pairs, or of fewer if something else is there.
fn registers(claim: &Arc<Claim>, queues: usize) -> Result<Registers, String> {
    let no_registers = "its registers cannot be had";
    let map = |len| claim.registers(BAR, 0, len).ok();
    let capabilities = {
        let registers = map(Capabilities::BYTES).ok_or(no_registers)?;
        Capabilities::parse(registers.read(0), registers.read(4)).map_err(|error| text(&error))?
    };
    let mut queues = queues as u16;
    while queues > 0 {
        if let Some(registers) = map(capabilities.bytes(queues)) {
            return Ok(registers);
        }
        queues /= 2;
    }
    Err(no_registers.into())
}

/// Brings the `index`th controller up and makes its namespaces known, as Linux names them: by their
/// order, not their numbers.
fn start_controller(device: &'static PciDevice, index: u32) -> Result<Box<dyn Started>, String> {
    let claim = device.claim().map_err(|error| text(&error))?;
    let vectors = queue_vectors(&claim)?;
    let registers = registers(&claim, vectors.len())?;
    let name = alloc::format!("nvme{index}");
    let board = Board {
        name: name.clone(),
        claim: claim.clone(),
        registers,
    };
    let memory = |bytes: u64| queue_memory(&claim, bytes);
    let (control, disks) =
        start::<Machine>(name.clone(), board, vectors, memory).map_err(|error| text(&error))?;
    let (mut names, mut nodes) = (Vec::new(), Vec::new());
    for (number, disk) in (1..).zip(disks) {
        let name = alloc::format!("{name}n{number}");
        let namespace = disk.namespace();
        log::info!(
            "{name}: NVMe {} namespace {}, {} blocks of {} bytes, queues for {} CPUs{}",
            device.function().address,
            namespace.id,
            namespace.blocks,
            namespace.block(),
            disk.queues(),
            if namespace.is_read_only {
                ", read-only"
            } else {
                ""
            },
        );
        let generic = Arc::new(disk.generic());
        let node = alloc::format!("ng{index}n{number}");
        match devfs::register(&node, generic) {
            Ok(id) => nodes.push((node, id)),
            Err(error) => log::error!("{name}: commands cannot be passed: {error}"),
        }
        let driver = Arc::new(DiskOfMachine::new(disk));
        let registered = Disk::register(&name, DiskNumbers::further(), driver);
        match registered {
            Ok(()) => names.push(name),
            Err(error) => log::error!("{name}: {error}"),
        }
    }
    let control = Arc::new(control);
    let disks = names.clone();
    let known = devfs::register(&name, control.clone()).and_then(|id| {
        nodes.push((name.clone(), id));
        let about = about(&control, name.clone(), index, id);
        block::register_controller(NvmeController {
            address: text(&device.function().address),
            disks: names,
            ..about
        })
    });
    if let Err(error) = known {
        log::error!("{name}: commands cannot be passed: {error}");
    }
    Ok(Box::new(StartedController {
        gate: control.gate(),
        name,
        disks,
        nodes,
    }))
}

/// Description of a controller for programs, but for its place and its disks.
fn about(control: &Control<Machine>, name: String, index: u32, id: DeviceId) -> NvmeController {
    let identity = control.identity();
    let ascii = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (serial, model) = (ascii(&identity.serial), ascii(&identity.model));
    let subsystem = match identity.subsystem.split(|byte| *byte == 0).next() {
        Some([]) | None => {
            // As Linux names one that has no name of its own.
            let [vendor, board] = identity.vendors;
            alloc::format!("nqn.2014.08.org.nvmexpress:{vendor:04x}{board:04x}{serial}{model}")
        }
        Some(own) => ascii(own),
    };
    NvmeController {
        name,
        index,
        node: alloc::format!("{}:{}", id.major, id.minor),
        address: String::new(),
        serial,
        model,
        firmware: ascii(&identity.firmware),
        subsystem,
        kind: match identity.kind {
            1 => "io",
            2 => "discovery",
            3 => "admin",
            _ => "reserved",
        },
        number: identity.number,
        queues: control.queues() + 1,
        entries: QUEUE_SIZE,
        disks: Vec::new(),
    }
}
