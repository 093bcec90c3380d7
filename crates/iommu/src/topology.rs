//! Places of functions: the unit that each is behind, by the table of either maker.

use acpi::{Dmar, Ivrs};
use pci::Function;

use crate::unit::Sender;
use crate::{Found, number_of};

/// The table of units.
pub(crate) enum Topology<'a> {
    Dmar(Dmar<'a>),
    Ivrs(Ivrs<'a>),
}

/// Place of a function: the unit that it is behind, by its number, and the name that it has there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) unit: Option<usize>,
    /// Flag: the firmware has it use memory of its own.
    pub(crate) is_reserved: bool,
    /// Flag: no other function has its name.
    pub(crate) is_alone: bool,
    pub(crate) sender: Sender,
}

/// Finds the buses behind a bridge of a segment, by bus and place on it.
fn buses_of<'a>(
    functions: &(impl Iterator<Item = Found<'a>> + Clone),
    segment: u16,
) -> impl Fn(u8, u8) -> Option<(u8, u8)> {
    move |bus, devfn| {
        let mut all = functions.clone().map(|found| found.function);
        let bridge = all.find(|bridge| {
            let at = bridge.address;
            (at.segment, at.bus, at.devfn()) == (segment, bus, devfn)
        });
        bridge?.buses
    }
}

impl Topology<'_> {
    /// The place of a function.
    pub(crate) fn place<'a>(
        &self,
        function: &Function,
        functions: &(impl Iterator<Item = Found<'a>> + Clone),
    ) -> Place {
        let segment = function.address.segment;
        let number = number_of(function.address);
        let buses = shared_buses(function, functions);
        match self {
            Self::Dmar(dmar) => {
                // Scopes name what firmware has seen.
                let named = function.physical.unwrap_or(function.address);
                let place = (named.bus, named.devfn());
                let behind = buses_of(functions, segment);
                Place {
                    unit: dmar.unit_of(segment, place, &behind),
                    is_reserved: dmar.is_reserved(segment, place, &behind),
                    is_alone: buses.is_none(),
                    sender: Sender { number, buses },
                }
            }
            Self::Ivrs(ivrs) => {
                let found = ivrs.unit_of(segment, number);
                let name = found.map_or(number, |(_, name)| name);
                Place {
                    unit: found.map(|(unit, _)| unit),
                    is_reserved: ivrs.is_reserved(number),
                    is_alone: buses.is_none() && name == number,
                    sender: Sender {
                        number: name,
                        buses,
                    },
                }
            }
        }
    }

    /// Whether the firmware lets interrupts be remapped.
    pub(crate) fn remaps_interrupts(&self) -> bool {
        match self {
            Self::Dmar(dmar) => dmar.remaps_interrupts(),
            Self::Ivrs(_) => true,
        }
    }

    /// The unit that has a controller of lines, by that one's id, and its name there.
    pub(crate) fn ioapic<'a>(
        &self,
        id: u8,
        functions: &(impl Iterator<Item = Found<'a>> + Clone),
    ) -> Option<(usize, Sender)> {
        let (unit, number) = match self {
            Self::Dmar(dmar) => {
                let (unit, (bus, devfn)) = dmar.ioapic(id, buses_of(functions, 0))?;
                (unit, u16::from(bus) << 8 | u16::from(devfn))
            }
            Self::Ivrs(ivrs) => ivrs.ioapic(id)?,
        };
        let buses = None;
        Some((unit, Sender { number, buses }))
    }
}

/// The buses whose names a function may have, if it is behind a bridge that does not keep names.
fn shared_buses<'a>(
    function: &Function,
    functions: &(impl Iterator<Item = Found<'a>> + Clone),
) -> Option<(u8, u8)> {
    let mut shared = None;
    let mut upstream = function.upstream;
    // No more steps than there are functions, whatever they say.
    for _ in functions.clone() {
        let mut all = functions.clone();
        let Some(bridge) = all.find(|found| Some(found.function.address) == upstream) else {
            break;
        };
        if !bridge.keeps_names {
            shared = Some((bridge.function.address.bus, function.address.bus));
        }
        upstream = bridge.function.upstream;
    }
    shared
}

#[cfg(test)]
mod tests;
