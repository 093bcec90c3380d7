//! Requests that were refused: a unit reports each, and sends a message that it has.

use guard::device::Message;
pub use iotable::Access;
use pci::Address;

use crate::machine;

/// A request of a function that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The function.
    pub function: Address,
    /// Kind of the request.
    pub access: Access,
    /// Page that was asked for; of an interrupt, as its unit tells it.
    pub address: u64,
    /// Reason, by the number that the unit's maker has for it.
    pub reason: u8,
}

/// Has all units send this message when they have refused something that was not
/// [taken](take_faults) yet. True if there is something already, for which none may come.
///
/// # Safety
/// It is a message that interrupts a CPU of this kernel: units write it wherever it says.
pub unsafe fn report_faults(message: Message) -> bool {
    let mut has_some = false;
    for unit in machine().iter().flat_map(|machine| &machine.units) {
        has_some |= unit.report_faults(Some(message));
    }
    has_some
}

/// Has units send no message, whatever they refuse.
pub fn rest_from_faults() {
    for unit in machine().iter().flat_map(|machine| &machine.units) {
        unit.report_faults(None);
    }
}

/// Calls `each` for every report there is, as many as units have room for; true if more was refused
/// than that.
pub fn take_faults(mut each: impl FnMut(Refused)) -> bool {
    let mut is_lost = false;
    for unit in machine().iter().flat_map(|machine| &machine.units) {
        is_lost |= unit.take_faults(&mut each);
    }
    is_lost
}
