//! Configuration space in memory (ECAM; PCI Express Base 5.0, 7.2.2): 4 KiB for each function.

use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;

use acpi::ConfigWindow;
use guard::device::{self, MmioRegion};
use lfmutex::{Mutex, Once};
use pci::{Address, ConfigRegisters, EXTENDED_CONFIG_BYTES, Function};

/// Bytes of the configuration space of all functions of a bus.
const BUS_BYTES: usize = 256 * EXTENDED_CONFIG_BYTES as usize;

/// Configuration space of one function.
#[derive(Debug)]
pub(crate) struct FunctionRegisters(MmioRegion);

impl ConfigRegisters for FunctionRegisters {
    fn read(&self, offset: u16) -> u32 {
        self.0.read(usize::from(offset))
    }

    fn write(&self, offset: u16, value: u32) {
        self.0.write(usize::from(offset), value);
    }
}

/// A function of the machine.
#[derive(Debug)]
pub struct PciDevice {
    pub(crate) function: Function,
    pub(crate) registers: FunctionRegisters,
    /// Whether there is a `Claim` of it, or was one that could not be let go.
    pub(crate) is_claimed: AtomicBool,
}

impl PciDevice {
    /// The function, as it was found.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Copies from the function's configuration space; returns how many bytes there were before
    /// its end.
    pub fn read_config(&self, offset: u16, to: &mut [u8]) -> usize {
        let end = usize::from(self.function.config_bytes);
        let start = usize::from(offset).min(end);
        let len = to.len().min(end - start);
        let mut word = None;
        for (at, byte) in (start..start + len).zip(&mut *to) {
            let aligned = at & !3;
            let (_, bytes) = match word {
                Some(read @ (from, _)) if from == aligned => read,
                _ => (aligned, self.registers.read(aligned as u16).to_le_bytes()),
            };
            word = Some((aligned, bytes));
            *byte = bytes[at % 4];
        }
        len
    }
}

/// The buses of a window of configuration space, mapped when they are first looked at.
struct Buses {
    window: ConfigWindow,
    /// The bus that was looked at last.
    mapped: Mutex<Option<(u8, MmioRegion)>>,
}

impl Buses {
    fn bus(&self, bus: u8) -> Option<MmioRegion> {
        let mut mapped = self.mapped.lock();
        if let Some((number, region)) = *mapped
            && number == bus
        {
            return Some(region);
        }
        let at = self
            .window
            .base
            .checked_add(u64::from(bus) * BUS_BYTES as u64)?;
        // SAFETY: ACPI says that configuration space is there. Nobody but this crate writes there:
        // the scan, which sizes registers with the function switched off and puts their values
        // back, and a `Claim`, which lets a function reach memory only as long as there is one.
        let region = unsafe { device::map(at, BUS_BYTES) };
        match region {
            Ok(region) => {
                *mapped = Some((bus, region));
                Some(region)
            }
            Err(error) => {
                log::warn!("cannot look at PCI bus {bus:02x}: {error:?}");
                None
            }
        }
    }
}

impl pci::Machine for Buses {
    type Registers = FunctionRegisters;

    fn registers(&self, address: Address) -> Option<FunctionRegisters> {
        let bytes = usize::from(EXTENDED_CONFIG_BYTES);
        let offset = usize::from(address.devfn()) * bytes;
        self.bus(address.bus)?
            .part(offset, bytes)
            .map(FunctionRegisters)
    }
}

/// All functions of the machine, by address; none in an instance. They are looked for when this is
/// first called.
pub fn pci_devices() -> &'static [PciDevice] {
    static DEVICES: Once<Vec<PciDevice>> = Once::new();
    DEVICES.call_once(find_all)
}

fn find_all() -> Vec<PciDevice> {
    let mut found: Vec<PciDevice> = Vec::new();
    for window in device::config_windows() {
        let buses = Buses {
            window: *window,
            mapped: Mutex::new(None),
        };
        let add = |function, registers| {
            found.try_reserve(1).ok()?;
            found.push(PciDevice {
                function,
                registers,
                is_claimed: AtomicBool::new(false),
            });
            Some(())
        };
        let ConfigWindow {
            segment,
            first_bus,
            last_bus,
            ..
        } = *window;
        if pci::scan(&buses, segment, first_bus, last_bus, add).is_none() {
            log::warn!("no memory for more than {} PCI functions", found.len());
            break;
        }
    }
    found.sort_unstable_by_key(|device| device.function.address);
    found
}
