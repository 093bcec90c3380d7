//! Requests that were refused: a unit reports each by a message, until its reports are full.

use guard::device::Message;
use pci::Address;
use vtd::{FAULT_BYTES, Fault, FaultEvent, offset, status};

use crate::machine;

/// A request of a function that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The function.
    pub function: Address,
    /// The request.
    pub fault: Fault,
}

/// Has all units send this message when they have refused something that was not
/// [taken](take_faults) yet.
///
/// # Safety
/// It is a message that interrupts a CPU of this kernel: units write it wherever it says.
pub unsafe fn report_faults(message: Message) {
    let event = FaultEvent {
        address: message.address,
        data: message.data,
    };
    for unit in machine().iter().flat_map(|machine| &machine.units) {
        let registers = unit.registers();
        for (offset, word) in event.words() {
            registers.write(offset, word);
        }
        registers.write(offset::FAULT_CONTROL, 0_u32);
    }
}

/// Has units send no message, whatever they refuse.
pub fn rest_from_faults() {
    for unit in machine().iter().flat_map(|machine| &machine.units) {
        (unit.registers()).write(offset::FAULT_CONTROL, status::FAULT_MASKED);
    }
}

/// Calls `each` for every report there is; true if more was refused than there was room to report.
pub fn take_faults(mut each: impl FnMut(Refused)) -> bool {
    let mut is_lost = false;
    for unit in machine().iter().flat_map(|machine| &machine.units) {
        let registers = unit.registers();
        let (first, count) = unit.abilities().faults;
        for at in (first..).step_by(FAULT_BYTES).take(count) {
            let Some(fault) = Fault::read(registers.read(at), registers.read(at + 8)) else {
                continue;
            };
            let (offset, word) = Fault::CLEAR;
            registers.write(at + offset, word);
            let bus = (fault.function >> 8) as u8;
            let devfn = fault.function as u8;
            each(Refused {
                function: Address::new(unit.segment(), bus, devfn >> 3, devfn & 7),
                fault,
            });
        }
        let now: u32 = registers.read(offset::FAULT_STATUS);
        if now & status::FAULT_OVERFLOW != 0 {
            registers.write(offset::FAULT_STATUS, status::FAULT_OVERFLOW);
            is_lost = true;
        }
    }
    is_lost
}
