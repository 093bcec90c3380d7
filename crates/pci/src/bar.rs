//! Base address registers: which addresses a function's registers have, and how many. Their size is
//! what stays zero when all ones are written (PCI Local Bus 3.0, 6.2.5.1).

use crate::ConfigRegisters;
use crate::function::{COMMAND, COMMAND_IO, COMMAND_MEMORY, Layout};

/// Offset of the first base address register.
const BARS: u16 = 0x10;
const BAR_IO: u32 = 1 << 0;
/// Bits of a memory register that say how wide the address is, and that value for 64 bits.
const BAR_WIDTH: u32 = 3 << 1;
const BAR_WIDE: u32 = 2 << 1;
const BAR_PREFETCHABLE: u32 = 1 << 3;
const BAR_MEMORY_FLAGS: u32 = 0xf;
const BAR_IO_FLAGS: u32 = 0x3;
const ROM_ENABLE: u32 = 1 << 0;
const ROM_FLAGS: u32 = 0x7ff;
/// Ports that an x86 processor can name.
const PORTS: u32 = 0xffff;

/// Sort of addresses that a base address register asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// I/O ports.
    Ports,
    /// Memory, at any address below 4 GiB.
    Memory32,
    /// Memory, at any address.
    Memory64,
    /// The expansion ROM, below 4 GiB.
    Rom,
}

/// A base address register that the function has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Sort of addresses.
    pub kind: BarKind,
    /// Whether reads have no effects, so that bridges may read ahead.
    pub prefetchable: bool,
    /// First address; 0 if nobody has given it one.
    pub address: u64,
    /// Bytes, a power of two.
    pub size: u64,
    /// Low bits of the register, which say what it is.
    pub flags: u32,
}

/// Sort of addresses that a bridge passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// I/O ports.
    Ports,
    /// Memory, below 4 GiB.
    Memory,
    /// Memory without effects of reads, below 4 GiB.
    Prefetchable32,
    /// Memory without effects of reads, at any address.
    Prefetchable64,
}

/// A range of addresses that a bridge passes on to the bus behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sort of addresses.
    pub kind: WindowKind,
    /// First address.
    pub first: u64,
    /// Last address.
    pub last: u64,
}

/// The base address registers and the expansion ROM of a function, as far as it has them.
pub(crate) struct Bars {
    pub(crate) bars: [Option<Bar>; 6],
    pub(crate) rom: Option<Bar>,
}

impl Bars {
    pub(crate) const NONE: Self = Self {
        bars: [None; 6],
        rom: None,
    };
}

/// Finds out which registers there are and how large. Meanwhile the function answers at none of
/// them, unless it stays on: it is the host's bridge, which the processor's own way to memory may
/// lead through, or one by which something is reached that is in use.
pub(crate) fn probe(registers: &impl ConfigRegisters, layout: Layout, stays_on: bool) -> Bars {
    let (count, rom) = match layout {
        Layout::Device => (6, 0x30),
        Layout::Bridge => (2, 0x38),
        Layout::Other => return Bars::NONE,
    };
    let command = registers.read(COMMAND) & 0xffff;
    let off = command & !(COMMAND_IO | COMMAND_MEMORY);
    if !stays_on && off != command {
        registers.write(COMMAND, off);
    }
    let bars = sizes(registers, BARS, count);
    let value = registers.read(rom);
    let rom = expansion_rom(value, sizing_by(registers, rom, !ROM_FLAGS));
    if !stays_on && off != command {
        registers.write(COMMAND, command);
    }
    Bars { bars, rom }
}

/// Whether a register is the lower half of one of 64 bits.
pub(crate) const fn is_wide(low: u32) -> bool {
    low & BAR_IO == 0 && low & BAR_WIDTH == BAR_WIDE
}

/// Finds out which of `count` base address registers there are from `first` on, and how large.
pub(crate) fn sizes(registers: &impl ConfigRegisters, first: u16, count: u16) -> [Option<Bar>; 6] {
    let mut found = [None; 6];
    let mut next = 0;
    while next < count {
        let offset = first + 4 * next;
        let low = registers.read(offset);
        let slot = usize::from(next);
        if is_wide(low) && next + 1 < count {
            let high = registers.read(offset + 4);
            found[slot] = wide(low, high, sizing(registers, offset), {
                sizing(registers, offset + 4)
            });
            next += 2;
        } else {
            found[slot] = narrow(low, sizing(registers, offset));
            next += 1;
        }
    }
    found
}

/// The register after all ones were written to it; its value is put back.
fn sizing(registers: &impl ConfigRegisters, offset: u16) -> u32 {
    sizing_by(registers, offset, u32::MAX)
}

fn sizing_by(registers: &impl ConfigRegisters, offset: u16, ones: u32) -> u32 {
    let value = registers.read(offset);
    registers.write(offset, ones);
    let mask = registers.read(offset);
    registers.write(offset, value);
    mask
}

/// Bytes that a register covers of which the bits `mask` can be changed: the lowest of them. 0 if
/// there is none, or one above the lowest cannot be changed.
fn size_of(mask: u64, all: u64) -> u64 {
    let lowest = mask & mask.wrapping_neg();
    if lowest == 0 || mask != all & !(lowest - 1) {
        0
    } else {
        lowest
    }
}

fn narrow(value: u32, mask: u32) -> Option<Bar> {
    // All ones is what a function that is not there answers.
    if mask == 0 || mask == u32::MAX && value == u32::MAX {
        return None;
    }
    let (kind, flags, all) = if value & BAR_IO != 0 {
        (BarKind::Ports, BAR_IO_FLAGS, PORTS & !BAR_IO_FLAGS)
    } else {
        (BarKind::Memory32, BAR_MEMORY_FLAGS, !BAR_MEMORY_FLAGS)
    };
    let size = size_of(u64::from(mask & all), u64::from(all));
    (size > 0).then(|| Bar {
        kind,
        prefetchable: kind == BarKind::Memory32 && value & BAR_PREFETCHABLE != 0,
        address: u64::from(value & all) & !(size - 1),
        size,
        flags: value & flags,
    })
}

fn wide(low: u32, high: u32, low_mask: u32, high_mask: u32) -> Option<Bar> {
    let all = !u64::from(BAR_MEMORY_FLAGS);
    let mask = (u64::from(high_mask) << 32 | u64::from(low_mask)) & all;
    let size = size_of(mask, all);
    (size > 0).then(|| Bar {
        kind: BarKind::Memory64,
        prefetchable: low & BAR_PREFETCHABLE != 0,
        address: (u64::from(high) << 32 | u64::from(low)) & all & !(size - 1),
        size,
        flags: low & BAR_MEMORY_FLAGS,
    })
}

fn expansion_rom(value: u32, mask: u32) -> Option<Bar> {
    let all = !ROM_FLAGS;
    if value == u32::MAX {
        return None;
    }
    let size = size_of(u64::from(mask & all), u64::from(all));
    (size > 0).then(|| Bar {
        kind: BarKind::Rom,
        prefetchable: true,
        address: u64::from(value & all) & !(size - 1),
        size,
        flags: value & ROM_ENABLE,
    })
}

/// The ranges that a bridge passes on: ports, memory, prefetchable memory (PCI-to-PCI Bridge 1.2,
/// 3.2.5.6 to 3.2.5.10).
pub(crate) fn windows(registers: &impl ConfigRegisters) -> [Option<Window>; 3] {
    let between = |kind, first: u64, last: u64| {
        let is_open = first <= last;
        is_open.then_some(Window { kind, first, last })
    };
    let ports = registers.read(0x1c);
    let ports_high = registers.read(0x30);
    let is_wide = ports & 0xf == 1;
    let port = |low: u32, high: u32| {
        let high = if is_wide { high & 0xffff } else { 0 };
        u64::from(high << 16 | (low & 0xf0) << 8)
    };
    // A bridge without such a window has zeroes there; one that begins at 0 passes nothing on.
    let ports = (ports & 0xffff != 0)
        .then(|| {
            between(
                WindowKind::Ports,
                port(ports, ports_high),
                port(ports >> 8, ports_high >> 16) | 0xfff,
            )
        })
        .flatten();
    let halves = |offset| {
        let value = registers.read(offset);
        (
            u64::from(value & 0xfff0) << 16,
            u64::from(value >> 16 & 0xfff0) << 16 | 0xf_ffff,
            value,
        )
    };
    let (first, last, value) = halves(0x20);
    let memory = (value != 0)
        .then(|| between(WindowKind::Memory, first, last))
        .flatten();
    let (first, last, value) = halves(0x24);
    let (kind, high) = if value & 0xf == 1 {
        let high = |offset| u64::from(registers.read(offset)) << 32;
        (WindowKind::Prefetchable64, (high(0x28), high(0x2c)))
    } else {
        (WindowKind::Prefetchable32, (0, 0))
    };
    let prefetchable = (value != 0)
        .then(|| between(kind, high.0 | first, high.1 | last))
        .flatten();
    [ports, memory, prefetchable]
}
