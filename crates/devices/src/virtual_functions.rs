//! Virtual functions (SR-IOV): switched on as the command line says, and listed with all others.

use alloc::vec::Vec;

use guard::device::FunctionPlace;
use guard::role;
use pci::{Address, Bar, Function, VirtualFunctions};
use task::Deadline;

use crate::config::{self, FunctionRegisters};
use crate::{Owner, PciDevice, StillReaches, pci_device};

/// Virtual functions that a function has, and where the first one's registers are.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) functions: VirtualFunctions,
    bars: [Option<Bar>; 6],
}

fn wait(ms: u32) {
    task::sleep_until(Deadline::after_ns(u64::from(ms) * 1_000_000));
}

/// How many virtual functions the command line has a function have: `pci.sriov=0000:03:00.0:4`,
/// several with commas.
fn wanted(text: &str, function: Address) -> u16 {
    let mut all = text.split(',').filter_map(|word| word.rsplit_once(':'));
    all.find(|(address, _)| address.parse() == Ok(function))
        .and_then(|(_, count)| count.parse().ok())
        .unwrap_or(0)
}

/// Switches on the virtual functions that the command line names, and adds all that there are.
/// Those of which instances have some already (`kept`) stay as they are.
pub(crate) fn find(found: &mut Vec<PciDevice>, kept: &[(u32, FunctionPlace)]) {
    let text = role::cmdline_value("pci.sriov").unwrap_or_default();
    for index in 0..found.len() {
        let device = &found[index];
        let address = device.function.address;
        let wanted = wanted(text, address);
        let Some(mut functions) = VirtualFunctions::find(&device.registers) else {
            if wanted > 0 {
                log::error!("PCI function {address} has no virtual functions (SR-IOV)");
            }
            continue;
        };
        let is_used = functions
            .places(address)
            .any(|at| config::kept(kept, at).is_some());
        let offer = if is_used {
            Some(Offer {
                functions,
                bars: bars_of_kept(&functions, device, kept),
            })
        } else {
            if functions.count > 0 {
                functions.switch_off(&device.registers, wait);
                functions.count = 0;
            }
            match wanted {
                0 => None,
                wanted => switch_on(found, index, &functions, wanted),
            }
        };
        let count = offer.as_ref().map_or(0, |offer| offer.functions.count);
        if count < wanted {
            log::error!("PCI function {address} has {count} virtual functions, not {wanted}");
        }
        if let Some(offer) = &offer {
            add(found, index, offer, kept);
        }
        let on = offer.as_ref().map(|offer| offer.functions);
        found[index].function.offered = Some(on.unwrap_or(functions));
        found[index].offer = offer;
    }
}

/// Base address registers of the first one, some of which instances have already: they are not
/// switched off to find out sizes, which are those that instances were told.
fn bars_of_kept(
    functions: &VirtualFunctions,
    device: &PciDevice,
    kept: &[(u32, FunctionPlace)],
) -> [Option<Bar>; 6] {
    let addresses = functions.addresses(&device.registers);
    let mut places = functions.places(device.function.address);
    let told = places.find_map(|at| {
        let (_, place) = config::kept(kept, at)?;
        (!place.registers.is_empty()).then(|| config::bars_of(place))
    });
    let mut bars = told.unwrap_or_default();
    for (bar, address) in bars.iter_mut().zip(addresses) {
        if let Some(bar) = bar {
            bar.address = address;
        }
    }
    bars
}

/// Switches virtual functions on. Their registers lie where the firmware has them, or where the
/// port before them has room.
fn switch_on(
    found: &[PciDevice],
    index: usize,
    functions: &VirtualFunctions,
    wanted: u16,
) -> Option<Offer> {
    let device = &found[index];
    let address = device.function.address;
    let count = wanted.min(functions.total);
    let port = found
        .iter()
        .find(|port| Some(port.function.address) == device.function.upstream);
    let has_high = port.is_some_and(|port| pci::forwards_high(&port.registers, &device.registers));
    let mut bars = functions.bars(&device.registers);
    for n in 0..bars.len() {
        let Some(bar) = bars[n].filter(|bar| bar.address == 0) else {
            continue;
        };
        let others = found.iter().flat_map(|other| {
            let own = other.function.bars.iter().chain([&other.function.rom]);
            own.flatten()
        });
        let taken = others
            .chain(bars.iter().flatten())
            .filter(|bar| bar.address != 0);
        let taken = taken.map(|bar| (bar.address, bar.address.saturating_add(bar.size - 1)));
        let room = port.and_then(|port| pci::room_for(&bar, count, &port.function.windows, taken));
        let Some(room) = room else {
            log::error!(
                "PCI function {address}: the port before it has no room for the registers of \
                 {count} virtual functions"
            );
            return None;
        };
        bars[n] = Some(Bar {
            address: room,
            ..bar
        });
    }
    let on = functions.switch_on(&device.registers, count, &bars, has_high, wait);
    if on.is_none() {
        log::error!("PCI function {address} does not switch its virtual functions on");
    }
    Some(Offer {
        functions: on?,
        bars,
    })
}

/// Adds the virtual functions of the function at `index`.
fn add(found: &mut Vec<PciDevice>, index: usize, offer: &Offer, kept: &[(u32, FunctionPlace)]) {
    let (physical, config) = (found[index].function, found[index].config);
    let identity = u32::from(offer.functions.device) << 16 | u32::from(physical.vendor);
    for (n, address) in (0..).zip(offer.functions.places(physical.address)) {
        let distance = u64::from(address.devfn() - physical.address.devfn());
        let config = config + distance * u64::from(pci::EXTENDED_CONFIG_BYTES);
        let bars = pci::bars_of_virtual(&offer.bars, n);
        let registers =
            config::map_page(config).map(|region| FunctionRegisters::of_virtual(region, identity));
        let function = registers
            .as_ref()
            .and_then(|registers| Function::with_bars(address, physical.upstream, bars, registers));
        match (function, registers) {
            (Some(mut function), Some(registers)) if found.try_reserve(1).is_ok() => {
                function.physical = Some(physical.address);
                found.push(config::device(&function, registers, config, kept));
            }
            _ => log::error!("PCI function {address} does not answer, or there is no memory"),
        }
    }
}

/// Virtual functions that nobody has while the function that they are of is reset, which takes them
/// away.
pub(crate) struct Held<'a> {
    device: &'a PciDevice,
    all: Vec<&'static PciDevice>,
}

impl PciDevice {
    /// Takes all virtual functions of the function.
    ///
    /// # Errors
    /// [`StillReaches`]: somebody has one, which would be taken away under them; or there is no
    /// memory.
    pub(crate) fn hold_virtual(&self) -> Result<Held<'_>, StillReaches> {
        let mut held = Held {
            device: self,
            all: Vec::new(),
        };
        for address in self.function.virtual_places() {
            let Some(device) = pci_device(address) else {
                continue;
            };
            held.all.try_reserve(1).map_err(|_| StillReaches)?;
            let taken = device.ownership.take(Owner::Driver);
            taken.map_err(|_| StillReaches)?;
            held.all.push(device);
        }
        Ok(held)
    }
}

impl Held<'_> {
    /// Has the virtual functions be there again, of a function that was reset: they are as new.
    pub(crate) fn come_back(mut self) {
        let Some(offer) = &self.device.offer else {
            return;
        };
        let on = offer.functions.switch_on(
            &self.device.registers,
            offer.functions.count,
            &offer.bars,
            offer.functions.has_high,
            wait,
        );
        if on == Some(offer.functions) {
            for device in self.all.drain(..) {
                device.ownership.leave_reset();
            }
        } else {
            log::error!(
                "PCI function {} does not switch its virtual functions on again",
                self.device.function.address
            );
        }
    }
}

impl Drop for Held<'_> {
    /// Whoever takes one then has it reset first.
    fn drop(&mut self) {
        for device in self.all.drain(..) {
            device.ownership.leave_to(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_how_many() {
        let text = "0000:03:00.0:4,04:00.1:2,05:00.0:many,0000:06:00.0";
        let of = |bus, function| wanted(text, Address::new(0, bus, 0, function));
        assert_eq!((of(3, 0), of(4, 1)), (4, 2));
        assert_eq!(
            (
                of(4, 0),
                of(5, 0),
                of(6, 0),
                wanted("", Address::new(0, 3, 0, 0))
            ),
            (0, 0, 0, 0)
        );
    }
}
