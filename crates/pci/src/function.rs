//! The header of a function: who made it, what it is, how it is laid out.

use crate::bar::{self, Bar, Bars, Window};
use crate::{
    Address, CONFIG_BYTES, ConfigRegisters, EXTENDED_CONFIG_BYTES, HEADER_BYTES, VirtualFunctions,
};

/// Offset of vendor and device.
pub(crate) const IDENTITY: u16 = 0x00;
/// Offset of command and status.
pub(crate) const COMMAND: u16 = 0x04;
/// Bit of the command: the function answers at its ports.
pub(crate) const COMMAND_IO: u32 = 1 << 0;
/// Bit of the command: the function answers at its memory addresses.
pub(crate) const COMMAND_MEMORY: u32 = 1 << 1;
/// Bit of the status, in the register's upper half: there is a list of capabilities.
const STATUS_CAPABILITIES: u32 = 1 << 4 << 16;
const CLASS: u16 = 0x08;
const HEADER_TYPE: u16 = 0x0c;
const MULTI_FUNCTION: u32 = 1 << 7;
const BUSES: u16 = 0x18;
const SUBSYSTEM: u16 = 0x2c;
const CAPABILITIES: u16 = 0x34;
const INTERRUPT: u16 = 0x3c;
/// First register behind the ones that every function has.
const EXTENDED: u16 = CONFIG_BYTES;

/// Capability: subsystem of a bridge.
const CAPABILITY_SUBSYSTEM: u8 = 0x0d;
/// Capability: PCI Express.
pub(crate) const CAPABILITY_EXPRESS: u8 = 0x10;
/// More entries than fit between the header and the end are a loop.
const MOST_CAPABILITIES: u16 = (CONFIG_BYTES - HEADER_BYTES) / 4;

/// Class of the bridge to the processors.
const CLASS_HOST_BRIDGE: u32 = 0x06_00;

/// Layout of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A device.
    Device,
    /// A bridge to another bus.
    Bridge,
    /// Another one, of which only the common part is read.
    Other,
}

/// A function of a device, as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Place of the function.
    pub address: Address,
    /// Bridge that leads to its bus; none on a root bus.
    pub upstream: Option<Address>,
    /// Function whose virtual one this is; none of others, and in an instance.
    pub physical: Option<Address>,
    /// Virtual functions that it offers, if somebody has looked.
    pub offered: Option<VirtualFunctions>,
    /// Manufacturer.
    pub vendor: u16,
    /// Product.
    pub device: u16,
    /// Base class, sub-class and programming interface, in 24 bits.
    pub class: u32,
    /// Revision of the product.
    pub revision: u8,
    /// Vendor and number of the board; zeroes where it has none.
    pub subsystem: (u16, u16),
    /// Layout of the header.
    pub layout: Layout,
    /// Whether other functions of the same device may follow.
    pub(crate) is_multi_function: bool,
    /// Interrupt pin, 1 to 4 for A to D; 0 for none.
    pub interrupt_pin: u8,
    /// Interrupt line, as the firmware noted it.
    pub interrupt_line: u8,
    /// Base address registers. One of 64 bits leaves out the next.
    pub bars: [Option<Bar>; 6],
    /// Expansion ROM.
    pub rom: Option<Bar>,
    /// Of a bridge: the first and the last bus behind it.
    pub buses: Option<(u8, u8)>,
    /// Of a bridge: ports, memory and prefetchable memory that it passes on.
    pub windows: [Option<Window>; 3],
    /// Bytes of its configuration space.
    pub config_bytes: u16,
}

impl Function {
    /// Whether a function answers at all.
    pub(crate) fn is_there(registers: &impl ConfigRegisters) -> bool {
        // Zeroes are a broken board, and ones a place where nothing is. One is a function that is
        // not ready yet (PCI Express Base 5.0, 2.3.2).
        !matches!(registers.read(IDENTITY) & 0xffff, 0 | 1 | 0xffff)
    }

    /// Reads a function's header and finds out the sizes of its registers; `None` if nothing
    /// answers. While that goes on the function answers at no address, unless it is a bridge and
    /// something behind it `is_in_use`: then its own registers alone are somewhere else meanwhile.
    pub fn read(
        address: Address,
        upstream: Option<Address>,
        registers: &impl ConfigRegisters,
        is_in_use: bool,
    ) -> Option<Self> {
        let mut function = Self::read_header(address, upstream, registers)?;
        let is_host = function.class >> 8 == CLASS_HOST_BRIDGE;
        let stays_on = is_host || is_in_use && function.layout == Layout::Bridge;
        let Bars { bars, rom } = bar::probe(registers, function.layout, stays_on);
        (function.bars, function.rom) = (bars, rom);
        Some(function)
    }

    /// Reads the header of a function whose registers are known; `None` if nothing answers. Writes
    /// nothing.
    pub fn with_bars(
        address: Address,
        upstream: Option<Address>,
        bars: [Option<Bar>; 6],
        registers: &impl ConfigRegisters,
    ) -> Option<Self> {
        let function = Self::read_header(address, upstream, registers)?;
        Some(Self { bars, ..function })
    }

    /// Places of the virtual functions that the function has.
    pub fn virtual_places(&self) -> impl Iterator<Item = Address> + use<> {
        let address = self.address;
        let offered = self.offered.into_iter();
        offered.flat_map(move |offered| offered.places(address))
    }

    /// Reads what a function's header says but for the sizes of its registers.
    fn read_header(
        address: Address,
        upstream: Option<Address>,
        registers: &impl ConfigRegisters,
    ) -> Option<Self> {
        if !Self::is_there(registers) {
            return None;
        }
        let identity = registers.read(IDENTITY);
        let class = registers.read(CLASS);
        let header = registers.read(HEADER_TYPE) >> 16 & 0xff;
        let layout = match header & !MULTI_FUNCTION {
            0 => Layout::Device,
            1 => Layout::Bridge,
            _ => Layout::Other,
        };
        let subsystem = match layout {
            Layout::Device => halves(registers.read(SUBSYSTEM)),
            Layout::Bridge => capability(registers, CAPABILITY_SUBSYSTEM)
                .map_or((0, 0), |at| halves(registers.read(at + 4))),
            Layout::Other => (0, 0),
        };
        let interrupt = registers.read(INTERRUPT);
        let is_host = class >> 16 == CLASS_HOST_BRIDGE;
        let buses = (layout == Layout::Bridge).then(|| {
            let buses = registers.read(BUSES);
            ((buses >> 8) as u8, (buses >> 16) as u8)
        });
        let windows = match layout {
            Layout::Bridge => bar::windows(registers),
            _ => [None; 3],
        };
        // A conventional function behind a bridge may show its first registers there again.
        let is_express = is_host || capability(registers, CAPABILITY_EXPRESS).is_some();
        let has_extended = is_express
            && registers.read(EXTENDED) != u32::MAX
            && registers.read(EXTENDED) != identity;
        Some(Self {
            address,
            upstream,
            physical: None,
            offered: None,
            vendor: identity as u16,
            device: (identity >> 16) as u16,
            class: class >> 8,
            revision: class as u8,
            subsystem,
            layout,
            is_multi_function: header & MULTI_FUNCTION != 0,
            interrupt_pin: (interrupt >> 8) as u8,
            interrupt_line: interrupt as u8,
            bars: [None; 6],
            rom: None,
            buses,
            windows,
            config_bytes: if has_extended {
                EXTENDED_CONFIG_BYTES
            } else {
                CONFIG_BYTES
            },
        })
    }
}

fn halves(value: u32) -> (u16, u16) {
    (value as u16, (value >> 16) as u16)
}

/// Offset of the first capability of a kind (PCI Local Bus 3.0, 6.7).
pub(crate) fn capability(registers: &impl ConfigRegisters, kind: u8) -> Option<u16> {
    capabilities(|at| registers.read(at))
        .find(|(found, _)| *found == kind)
        .map(|(_, at)| at)
}

/// Kinds and offsets of a function's capabilities, in the order of its list (PCI Local Bus 3.0,
/// 6.7), whose registers `read` reads. It ends, whatever the list says.
pub fn capabilities(read: impl Fn(u16) -> u32) -> impl Iterator<Item = (u8, u16)> {
    let mut next = if read(COMMAND) & STATUS_CAPABILITIES == 0 {
        0
    } else {
        read(CAPABILITIES) as u8 & !3
    };
    let step = move || {
        let at = u16::from(next);
        if at < HEADER_BYTES {
            return None;
        }
        let entry = read(at);
        next = (entry >> 8) as u8 & !3;
        // With ones nothing answers any more.
        (entry as u8 != 0xff).then_some((entry as u8, at))
    };
    core::iter::from_fn(step).take(usize::from(MOST_CAPABILITIES))
}
