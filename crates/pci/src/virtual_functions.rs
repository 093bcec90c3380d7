//! Virtual functions (SR-IOV; PCI Express Base 5.0, chapter 9): what a function offers, switching
//! them on, and where they are.

use crate::access_control::extended_capability;
use crate::function::{CAPABILITY_EXPRESS, capability};
use crate::{Address, Bar, BarKind, ConfigRegisters, Window, WindowKind, bar};

/// Kinds of extended capabilities: numbers of functions above 7, and virtual functions.
const ARI: u32 = 0x000e;
const SRIOV: u32 = 0x0010;
/// Offsets in the capability (9.3.3): control, numbers of functions, their places, the product,
/// the size of pages, base address registers.
const CONTROL: u16 = 0x08;
const TOTAL: u16 = 0x0c;
const COUNT: u16 = 0x10;
const PLACES: u16 = 0x14;
const DEVICE: u16 = 0x18;
const PAGE_SIZE: u16 = 0x20;
const BARS: u16 = 0x24;
/// Bits of the control: they are there, they answer at their addresses, they may have numbers above
/// 7 on the bus of the first one.
const ENABLE: u32 = 1 << 0;
const MEMORY: u32 = 1 << 3;
const ARI_HIERARCHY: u32 = 1 << 4;
/// Pages of 4 KiB, of which each base address register of each function is a multiple.
const PAGES_OF_4K: u32 = 1;
/// Offsets in the capability of PCI Express, and the bit in both, of forwarding what goes to
/// functions with numbers above 7 (7.5.3.15 and 7.5.3.16).
const EXPRESS_ABLE_2: u16 = 0x24;
const EXPRESS_CONTROL_2: u16 = 0x28;
const ARI_FORWARDING: u32 = 1 << 5;
/// Times that functions are left alone after they were switched on, and off (9.3.3.3.1).
const ON_MS: u32 = 100;
const OFF_MS: u32 = 1000;

/// Virtual functions that a function offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualFunctions {
    at: u16,
    /// How many there can be.
    pub total: u16,
    /// How many there are.
    pub count: u16,
    /// Distance of the first one from the function, in places on the bus.
    pub first: u16,
    /// Distance of each other one from the one before.
    pub stride: u16,
    /// Product.
    pub device: u16,
    /// Whether they may have numbers above 7.
    pub has_high: bool,
}

impl VirtualFunctions {
    /// Looks at what a function offers, and how many of them are there.
    #[must_use]
    pub fn find(registers: &impl ConfigRegisters) -> Option<Self> {
        let at = extended_capability(registers, SRIOV)?;
        let control = registers.read(at + CONTROL);
        let is_on = control & ENABLE != 0;
        let places = registers.read(at + PLACES);
        Some(Self {
            at,
            total: (registers.read(at + TOTAL) >> 16) as u16,
            count: if is_on {
                registers.read(at + COUNT) as u16
            } else {
                0
            },
            first: places as u16,
            stride: (places >> 16) as u16,
            device: (registers.read(at + DEVICE) >> 16) as u16,
            has_high: control & ARI_HIERARCHY != 0,
        })
    }

    /// Place of the `n`th one, from 0 on, of a function; `None` if it is on another bus.
    #[must_use]
    pub fn address(&self, of: Address, n: u16) -> Option<Address> {
        let distance = u32::from(self.first) + u32::from(self.stride) * u32::from(n);
        let devfn = u8::try_from(u32::from(of.devfn()) + distance).ok()?;
        (devfn != of.devfn()).then_some(Address { devfn, ..of })
    }

    /// Places of those that there are, of a function, as far as they are on its bus.
    pub fn places(self, of: Address) -> impl Iterator<Item = Address> {
        (0..self.count).map_while(move |n| self.address(of, n))
    }

    /// Base address registers of each of them, and addresses of the first one's; sizes are found
    /// out, for which they have to be off.
    #[must_use]
    pub fn bars(&self, registers: &impl ConfigRegisters) -> [Option<Bar>; 6] {
        bar::sizes(registers, self.at + BARS, 6)
    }

    /// The addresses of the first one's base address registers, whose sizes are known otherwise.
    #[must_use]
    pub fn addresses(&self, registers: &impl ConfigRegisters) -> [u64; 6] {
        let read = |n: u16| u64::from(registers.read(self.at + BARS + 4 * n));
        core::array::from_fn(|n| {
            let low = read(n as u16);
            let high = if bar::is_wide(low as u32) && n < 5 {
                read(n as u16 + 1)
            } else {
                0
            };
            high << 32 | low & !0xf
        })
    }

    /// Switches on so many, whose base address registers begin at the addresses of `bars`; what
    /// there is then, or `None` if the function does not do that. `has_high` says whether they may
    /// have numbers above 7 ([`forwards_high`]). `wait_ms` waits that long, at least.
    pub fn switch_on(
        &self,
        registers: &impl ConfigRegisters,
        count: u16,
        bars: &[Option<Bar>; 6],
        has_high: bool,
        mut wait_ms: impl FnMut(u32),
    ) -> Option<Self> {
        registers.write(self.at + COUNT, count.into());
        registers.write(self.at + PAGE_SIZE, PAGES_OF_4K);
        for (offset, bar) in (self.at + BARS..).step_by(4).zip(bars) {
            if let Some(bar) = bar {
                registers.write(offset, bar.address as u32 | bar.flags);
                if bar.kind == BarKind::Memory64 {
                    registers.write(offset + 4, (bar.address >> 32) as u32);
                }
            }
        }
        let high = if has_high { ARI_HIERARCHY } else { 0 };
        registers.write(self.at + CONTROL, high);
        registers.write(self.at + CONTROL, high | ENABLE | MEMORY);
        wait_ms(ON_MS);
        // Their places may depend on how many there are.
        Self::find(registers).filter(|on| on.count == count)
    }

    /// Switches all of them off.
    pub fn switch_off(&self, registers: &impl ConfigRegisters, mut wait_ms: impl FnMut(u32)) {
        registers.write(self.at + CONTROL, 0);
        wait_ms(OFF_MS);
    }
}

/// Base address registers of the `n`th virtual function, of the first one's.
#[must_use]
pub fn bars_of_virtual(first: &[Option<Bar>; 6], n: u16) -> [Option<Bar>; 6] {
    first.map(|bar| {
        bar.filter(|bar| bar.address != 0).map(|bar| Bar {
            address: bar
                .address
                .saturating_add(bar.size.saturating_mul(n.into())),
            ..bar
        })
    })
}

/// Has a port forward what goes to functions with numbers above 7 of the device behind it, which
/// `function` is one of; false if one of both cannot.
pub fn forwards_high(port: &impl ConfigRegisters, function: &impl ConfigRegisters) -> bool {
    let Some(at) = capability(port, CAPABILITY_EXPRESS) else {
        return false;
    };
    if port.read(at + EXPRESS_ABLE_2) & ARI_FORWARDING == 0
        || extended_capability(function, ARI).is_none()
    {
        return false;
    }
    let control = port.read(at + EXPRESS_CONTROL_2) & 0xffff;
    port.write(at + EXPRESS_CONTROL_2, control | ARI_FORWARDING);
    port.read(at + EXPRESS_CONTROL_2) & ARI_FORWARDING != 0
}

/// The lowest addresses for `count` base address registers alike, in a row, that a bridge with
/// these windows passes on, and that are nobody's: `taken` are the first and the last address of
/// each that is somebody's.
#[must_use]
pub fn room_for(
    bar: &Bar,
    count: u16,
    windows: &[Option<Window>; 3],
    taken: impl Iterator<Item = (u64, u64)> + Clone,
) -> Option<u64> {
    let is_for = |window: &&Window| match window.kind {
        WindowKind::Ports => false,
        WindowKind::Memory => true,
        WindowKind::Prefetchable32 => bar.prefetchable,
        WindowKind::Prefetchable64 => bar.prefetchable && bar.kind == BarKind::Memory64,
    };
    let bytes = bar
        .size
        .checked_mul(count.into())
        .filter(|bytes| *bytes > 0)?;
    let mut windows = windows.iter().flatten().filter(is_for);
    windows.find_map(|window| {
        let mut first = window.first.checked_next_multiple_of(bar.size)?;
        loop {
            let last = first
                .checked_add(bytes - 1)
                .filter(|last| *last <= window.last)?;
            let in_the_way = taken
                .clone()
                .find(|(from, to)| first <= *to && *from <= last);
            let Some((_, to)) = in_the_way else {
                return Some(first);
            };
            first = to.checked_add(1)?.checked_next_multiple_of(bar.size)?;
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    /// Place of the capability.
    const AT: u16 = 0x120;

    /// A function that offers four, with a base address register of 64 bits and 16 KiB.
    struct Space {
        words: RefCell<Vec<u32>>,
        /// Whether it does not switch them on.
        is_deaf: bool,
    }

    impl Space {
        fn new() -> Self {
            let mut words = vec![0; 1024];
            words[1] = 1 << 20;
            words[0x34 / 4] = 0x40;
            words[0x40 / 4] = 4 << 20 | 0x10;
            words[(0x40 + EXPRESS_ABLE_2) as usize / 4] = ARI_FORWARDING;
            words[0x100 / 4] = u32::from(AT) << 20 | 1 << 16 | ARI;
            words[AT as usize / 4] = 1 << 16 | SRIOV;
            words[(AT + TOTAL) as usize / 4] = 4 << 16 | 4;
            words[(AT + PLACES) as usize / 4] = 2 << 16 | 1;
            words[(AT + DEVICE) as usize / 4] = 0x10 << 16;
            words[(AT + BARS) as usize / 4] = 4;
            Self {
                words: RefCell::new(words),
                is_deaf: false,
            }
        }

        fn word(&self, at: u16) -> u32 {
            self.words.borrow()[usize::from(at / 4)]
        }
    }

    impl ConfigRegisters for Space {
        fn read(&self, offset: u16) -> u32 {
            self.word(offset)
        }

        fn write(&self, offset: u16, value: u32) {
            let is_on = self.word(AT + CONTROL) & ENABLE != 0;
            let moves = (AT + COUNT..AT + 0x3c).contains(&offset);
            assert!(!(is_on && moves), "they are on");
            let mask = match offset {
                0x68 => u32::MAX,
                _ if offset == AT + CONTROL && !self.is_deaf => 0x1f,
                _ if offset == AT + COUNT || offset == AT + PAGE_SIZE => 0xffff,
                _ if offset == AT + BARS => !0x3fff,
                _ if offset == AT + BARS + 4 => u32::MAX,
                _ => 0,
            };
            let mut words = self.words.borrow_mut();
            let word = &mut words[usize::from(offset / 4)];
            *word = *word & !mask | value & mask;
        }
    }

    #[test]
    fn they_are_sized_placed_and_switched_on() {
        let space = Space::new();
        let offered = VirtualFunctions::find(&space).unwrap();
        assert_eq!((offered.total, offered.count, offered.device), (4, 0, 0x10));
        let mut bars = offered.bars(&space);
        let sized = bars[0].unwrap();
        assert_eq!(
            (sized.size, sized.kind, sized.address),
            (16384, BarKind::Memory64, 0)
        );
        assert_eq!(bars[1..], [None; 5]);
        bars[0].as_mut().unwrap().address = 1 << 32 | 0xfe60_4000;
        let mut waited = 0;
        let on = offered.switch_on(&space, 3, &bars, true, |ms| waited += ms);
        let on = on.unwrap();
        assert_eq!((on.count, on.has_high, waited), (3, true, 100));
        assert_eq!(space.word(AT + CONTROL), ENABLE | MEMORY | ARI_HIERARCHY);
        assert_eq!(space.word(AT + PAGE_SIZE), 1);
        assert_eq!(on.addresses(&space)[0], 1 << 32 | 0xfe60_4000);
        let third = bars_of_virtual(&bars, 2)[0].unwrap();
        assert_eq!(third.address, 1 << 32 | 0xfe60_c000);
        on.switch_off(&space, |ms| waited += ms);
        assert_eq!(
            (VirtualFunctions::find(&space).unwrap().count, waited),
            (0, 1100)
        );
    }

    #[test]
    fn a_function_that_does_not_switch_them_on_has_none() {
        let mut space = Space::new();
        space.is_deaf = true;
        let offered = VirtualFunctions::find(&space).unwrap();
        assert_eq!(
            offered.switch_on(&space, 1, &[None; 6], false, |_| ()),
            None
        );
        space.words.borrow_mut()[AT as usize / 4] = 0;
        assert_eq!(VirtualFunctions::find(&space), None);
    }

    #[test]
    fn numbers_above_7_are_for_ports_and_functions_that_know_them() {
        let (port, function) = (Space::new(), Space::new());
        assert!(forwards_high(&port, &function));
        assert_eq!(port.word(0x68) & ARI_FORWARDING, ARI_FORWARDING);
        port.words.borrow_mut()[0x64 / 4] = 0;
        assert!(!forwards_high(&port, &function));
        let port = Space::new();
        function.words.borrow_mut()[0x100 / 4] = u32::from(AT) << 20 | 1 << 16 | 1;
        assert!(!forwards_high(&port, &function));
    }

    #[test]
    fn each_has_a_place_on_the_bus_or_none() {
        let of = |first, stride| {
            let mut offered = VirtualFunctions::find(&Space::new()).unwrap();
            (offered.first, offered.stride) = (first, stride);
            offered
        };
        let at = Address::new(0, 1, 0, 0);
        let place = |first, stride, n| of(first, stride).address(at, n).map(Address::devfn);
        assert_eq!(place(1, 1, 0), Some(1));
        assert_eq!(place(1, 1, 7), Some(8));
        assert_eq!(place(0x80, 2, 0x3f), Some(0xfe));
        assert_eq!(place(0x80, 2, 0x40), None, "on the next bus");
        assert_eq!(place(u16::MAX, u16::MAX, u16::MAX), None);
        assert_eq!(place(0, 0, 3), None, "the function itself");
    }

    proptest! {
        /// Room is within a window that passes it on, at a multiple of the size, and nobody's; if
        /// there is none, there is none at any place.
        #[test]
        fn room_is_nobodys(
            size in 12_u32..16, count in 0_u16..6, prefetchable: bool, is_wide: bool,
            first in 0_u64..16, pages in 1_u64..32, is_memory: bool,
            taken in prop::collection::vec((0_u64..48, 0_u64..8), 0..6),
        ) {
            let bar = Bar {
                kind: if is_wide { BarKind::Memory64 } else { BarKind::Memory32 },
                prefetchable,
                address: 0,
                size: 1 << size,
                flags: 0,
            };
            let base = 0xfe00_0000 + first * 4096;
            let window = Window {
                kind: if is_memory { WindowKind::Memory } else { WindowKind::Prefetchable64 },
                first: base,
                last: base + pages * 4096 - 1,
            };
            let at = |page: u64| 0xfe00_0000 + page * 4096;
            let taken: Vec<(u64, u64)> = taken
                .iter()
                .map(|(page, more)| (at(*page), at(page + more) + 4095))
                .collect();
            let bytes = bar.size * u64::from(count);
            let is_free = |place: u64| {
                let last = place + bytes - 1;
                place >= window.first
                    && last <= window.last
                    && taken.iter().all(|(from, to)| last < *from || place > *to)
            };
            let windows = [None, Some(window), None];
            let found = room_for(&bar, count, &windows, taken.iter().copied());
            let may = count > 0 && (is_memory || prefetchable && is_wide);
            let all = (0..64).map(at).filter(|place| place.is_multiple_of(bar.size));
            let wanted = all.into_iter().find(|place| may && is_free(*place));
            prop_assert_eq!(found, wanted);
        }
    }
}
