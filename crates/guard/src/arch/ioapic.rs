//! The I/O interrupt controllers, which route device lines to CPUs. Only instances that were given
//! lines touch them; today that is the supervisor. The two old 8259s are put to sleep.

use abi::descriptor::{IRQ_ACTIVE_LOW, IRQ_LEVEL, IrqLine};
use lfmutex::{Mutex, Once};
use x86_spec::ioapic::{self, ACTIVE_LOW, LEVEL, MASKED, SELECT, VERSION, WINDOW, entry_low};

use super::{apic, port};
use crate::irq::Hook;
use crate::mem::phys::PhysAddr;
use crate::paging::kernel::MmioRegion;
use crate::role;

struct IoApic {
    registers: MmioRegion,
    id: u8,
    gsi_base: u32,
    inputs: u32,
}

/// A line that interrupts a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Id of its controller.
    pub controller: u8,
    /// The vector: [`crate::irq::ISA_VECTOR`] and the number of the line.
    pub vector: u8,
    /// The CPU.
    pub apic_id: u32,
    /// Flag: it interrupts as long as it is raised.
    pub is_level: bool,
}

/// Gives the word by which a controller names a line's entry to the unit that remaps interrupts,
/// without the bits that say how the line is triggered. Not set where no unit does.
static REMAP: Hook<fn(Line) -> Option<u64>> = Hook::new();

impl IoApic {
    // The lock around all controllers keeps select and access together.
    fn read(&self, register: u32) -> u32 {
        self.registers.write::<u32>(SELECT, register);
        self.registers.read::<u32>(WINDOW)
    }

    fn write(&self, register: u32, value: u32) {
        self.registers.write::<u32>(SELECT, register);
        self.registers.write::<u32>(WINDOW, value);
    }

    /// Routes an input; false, and it is masked, if its unit has no entry for it.
    fn route(&self, input: u32, vector: u8, trigger: u32, apic_id: u32) -> bool {
        // Masked while it is half written.
        self.write(entry_low(input), MASKED);
        let line = Line {
            controller: self.id,
            vector,
            apic_id,
            is_level: trigger & LEVEL != 0,
        };
        let word = match REMAP.get() {
            None => Some(u64::from(ioapic::destination(apic_id)) << 32 | u64::from(vector)),
            Some(remap) => remap(line),
        };
        if let Some(word) = word {
            self.write(ioapic::entry_high(input), (word >> 32) as u32);
            self.write(entry_low(input), word as u32 | trigger);
        }
        word.is_some()
    }

    /// Routes an input again as it was routed before there was a unit.
    fn route_again(&self, input: u32) {
        let low = self.read(entry_low(input));
        if low & MASKED != 0 {
            return;
        }
        let vector = low as u8;
        let apic_id = ioapic::apic_id(self.read(ioapic::entry_high(input)));
        if self.route(input, vector, low & (LEVEL | ACTIVE_LOW), apic_id) {
            // What the line had to say meanwhile is lost: its handler only has somebody look.
            apic::send_ipi(apic_id, vector);
        } else {
            log::error!("interrupt line {input} of I/O APIC {} stays off", self.id);
        }
    }
}

type Controllers = arrayvec::ArrayVec<IoApic, { abi::descriptor::MAX_IOAPICS }>;

static CONTROLLERS: Once<Mutex<Controllers>> = Once::new();

fn controllers() -> &'static Mutex<Controllers> {
    CONTROLLERS.call_once(|| Mutex::new(find_all()))
}

fn with_input<R>(gsi: u32, f: impl FnOnce(&IoApic, u32) -> R) -> Option<R> {
    let controllers = controllers().lock();
    let controller = controllers
        .iter()
        .find(|c| gsi >= c.gsi_base && gsi - c.gsi_base < c.inputs)?;
    Some(f(controller, gsi - controller.gsi_base))
}

/// Maps the controllers of the descriptor and masks all their inputs.
fn find_all() -> Controllers {
    let mut found = Controllers::new();
    for entry in role::descriptor().ioapics() {
        let Ok(registers) = MmioRegion::map(PhysAddr(entry.phys), ioapic::BYTES) else {
            log::warn!("no memory to map I/O APIC {}: its lines stay off", entry.id);
            continue;
        };
        let mut controller = IoApic {
            registers,
            id: entry.id as u8,
            gsi_base: entry.gsi_base,
            inputs: 0,
        };
        controller.inputs = ioapic::inputs(controller.read(VERSION));
        for input in 0..controller.inputs {
            controller.write(entry_low(input), MASKED);
        }
        found.push(controller);
    }
    found
}

/// Moves the old controllers' vectors away from the exceptions and masks every line, if this
/// instance has the platform's interrupt routing. A spurious interrupt of theirs ends up at vectors
/// 0x27 or 0x2f, which are ignored.
///
/// Done before the local APIC stops listening to them: an interrupt they had already asserted would
/// otherwise stay asserted at the CPU with nobody to give its vector (QEMU then raises a general
/// protection fault at the first STI).
pub(super) fn silence_8259() {
    const COMMANDS: [(u16, u8); 10] = [
        (0x20, 0x11),
        (0xa0, 0x11),
        (0x21, 0x20),
        (0xa1, 0x28),
        (0x21, 4),
        (0xa1, 2),
        (0x21, 1),
        (0xa1, 1),
        (0x21, 0xff),
        (0xa1, 0xff),
    ];
    if role::descriptor().ioapics().is_empty() {
        return;
    }
    for (port, value) in COMMANDS {
        // SAFETY: the initialisation sequence of the 8259 pair; only the guard touches these ports,
        // and an instance with I/O APICs in its descriptor owns the platform's interrupt routing.
        unsafe { port::outb(port, value) };
    }
}

/// Routes a line to a vector of one CPU and unmasks it. `false` if no controller has it, or the CPU
/// is out of its reach.
pub fn enable(line: IrqLine, vector: u8, apic_id: u32) -> bool {
    if apic_id > 0xfe {
        return false;
    }
    let mut trigger = 0;
    if line.flags & IRQ_LEVEL != 0 {
        trigger |= LEVEL;
    }
    if line.flags & IRQ_ACTIVE_LOW != 0 {
        trigger |= ACTIVE_LOW;
    }
    with_input(line.gsi, |controller, input| {
        controller.route(input, vector, trigger, apic_id)
    })
    .unwrap_or(false)
}

/// Has lines name entries of units from now on, those that are routed already too.
pub fn remap(by: fn(Line) -> Option<u64>) {
    let controllers = controllers().lock();
    REMAP.set(by);
    for controller in &*controllers {
        (0..controller.inputs).for_each(|input| controller.route_again(input));
    }
}

/// Masks a line.
pub fn disable(line: IrqLine) {
    with_input(line.gsi, |controller, input| {
        controller.write(entry_low(input), MASKED);
    });
}
