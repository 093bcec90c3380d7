//! What devices of instances were refused: counted for the instance, and said from time to time.
//!
//! A device may be refused as often as it likes. Whoever has it makes the supervisor look ten times
//! a second, at as many reports as its units have room for, and say so when their number has
//! doubled.

use core::sync::atomic::{AtomicU64, Ordering};

use devices::{Access, DmaFault, DmaFaults, Owner};
use task::Deadline;

/// Least time between two looks at what was refused.
const INTERVAL_NS: u64 = 100_000_000;

/// Refused accesses of functions that no instance has.
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// Notes what is refused, for ever; returns at once on a machine without units.
pub(crate) fn watch() {
    let Ok(faults) = DmaFaults::new() else {
        return;
    };
    // Of what was refused while there was no supervisor its units do not tell again.
    faults.take(|fault| note(&fault));
    loop {
        faults.wait();
        faults.take(|fault| note(&fault));
        task::sleep_until(Deadline::after_ns(INTERVAL_NS));
        // What came meanwhile is found with what comes next.
    }
}

fn note(fault: &DmaFault) {
    let instance = match fault.owner {
        Some(Owner::Instance(id)) => crate::active_instance(id),
        _ => None,
    };
    if let Some(instance) = instance {
        instance.note_dma_fault(fault);
    } else if (OTHERS.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
        log::warn!(
            "PCI function {}, which no instance has, was refused {}",
            fault.function,
            Shown(fault)
        );
    }
}

/// An access, as the log tells it.
pub(crate) struct Shown<'a>(pub &'a DmaFault);

impl core::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let DmaFault {
            address, reason, ..
        } = self.0;
        let access = match self.0.access {
            Access::Write => "a write to",
            Access::Read => "a read of",
            Access::Interrupt => "an interrupt by entry",
        };
        write!(f, "{access} {address:#x} (reason {reason:#x})")
    }
}
