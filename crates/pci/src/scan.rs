//! Finding all functions: devices of a bus, functions of a device, buses behind bridges.

use crate::{Address, Bar, ConfigRegisters, DEVICES, FUNCTIONS, Function};

/// A machine's configuration space.
pub trait Machine {
    /// The registers of one function.
    type Registers: ConfigRegisters;

    /// The registers of the function at `address`, whether it is there or not; `None` if they
    /// cannot be reached.
    fn registers(&self, address: Address) -> Option<Self::Registers>;

    /// Whether functions are in use already, so that no bridge is to be switched off.
    fn is_in_use(&self) -> bool {
        false
    }

    /// Base address registers of a function that somebody uses, if they are known: it is not
    /// switched off to find out their sizes.
    fn known_bars(&self, _: Address) -> Option<[Option<Bar>; 6]> {
        None
    }
}

/// Calls `found` for each function of a segment that can be reached from bus `first`, with its
/// registers: a bridge before what is behind it. Buses beyond `last` are left out, and each is
/// looked at once, whatever bridges say. Ends early where `found` says so by `None`.
pub fn scan<M: Machine>(
    machine: &M,
    segment: u16,
    first: u8,
    last: u8,
    mut found: impl FnMut(Function, M::Registers) -> Option<()>,
) -> Option<()> {
    // The bridge that leads to each bus, and whether it is to be looked at, or was.
    let mut upstream = [None; 256];
    let mut seen = [false; 256];
    let mut waiting = [false; 256];
    waiting[usize::from(first)] = true;
    while let Some(bus) = (first..=last).find(|bus| waiting[usize::from(*bus)]) {
        waiting[usize::from(bus)] = false;
        seen[usize::from(bus)] = true;
        for device in 0..DEVICES {
            for number in 0..FUNCTIONS {
                let address = Address::new(segment, bus, device, number);
                let function = machine.registers(address).and_then(|registers| {
                    let upstream = upstream[usize::from(bus)];
                    let function = match machine.known_bars(address) {
                        Some(bars) => Function::with_bars(address, upstream, bars, &registers),
                        None => {
                            let is_in_use = machine.is_in_use();
                            Function::read(address, upstream, &registers, is_in_use)
                        }
                    }?;
                    Some((function, registers))
                });
                // The first one of a device says whether there are others.
                let Some((function, registers)) = function else {
                    if number == 0 {
                        break;
                    }
                    continue;
                };
                if let Some((behind, _)) = function.buses {
                    let index = usize::from(behind);
                    if (first..=last).contains(&behind) && !seen[index] && !waiting[index] {
                        waiting[index] = true;
                        upstream[index] = Some(address);
                    }
                }
                let is_alone = number == 0 && !function.is_multi_function;
                found(function, registers)?;
                if is_alone {
                    break;
                }
            }
        }
    }
    Some(())
}
