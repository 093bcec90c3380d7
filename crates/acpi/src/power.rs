//! Switching a machine off and resetting it (4.8.3, 5.2.9).

use crate::layout::{Header, Memory, Tables};

/// A register of the fixed hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// An I/O port.
    Port(u16),
    /// A byte in memory.
    Memory(u64),
}

/// Registers, with the values to write, that switch the machine off and reset it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerOff {
    /// Write this to switch off: a 16-bit port, or a byte register on hardware-reduced machines.
    pub sleep: Option<(Register, u16)>,
    /// Write this byte to reset.
    pub reset: Option<(Register, u8)>,
}

const FADT_DSDT: usize = 40;
const FADT_PM1A: usize = 64;
const FADT_FLAGS: usize = 112;
const FADT_RESET: usize = 116;
const FADT_RESET_VALUE: usize = 128;
const FADT_X_DSDT: usize = 140;
const FADT_SLEEP: usize = 244;
const FADT_BYTES: usize = 268;
const FLAG_RESET: u32 = 1 << 10;
const FLAG_REDUCED: u32 = 1 << 20;
const SLEEP_ENABLE: u16 = 1 << 13;
const REDUCED_SLEEP_ENABLE: u16 = 1 << 5;

fn register(gas: &[u8]) -> Option<Register> {
    let address = u64::from_le_bytes(gas.get(4..12)?.try_into().ok()?);
    match gas[0] {
        _ if address == 0 => None,
        0 => Some(Register::Memory(address)),
        1 => u16::try_from(address).ok().map(Register::Port),
        _ => None,
    }
}

impl<M: Memory> Tables<'_, M> {
    /// Registers and values that switch the machine off or reset it, from the fixed description
    /// table (FADT) and the sleep type of `\_S5` in the DSDT; empty where the tables say nothing.
    /// The package `\_S5` is found by its name and read if it holds plain integers, as every
    /// firmware writes it: no AML is run.
    #[must_use]
    pub fn power(&self) -> PowerOff {
        let Some((at, header)) = self.find(b"FACP") else {
            return PowerOff::default();
        };
        let mut fadt = [0; FADT_BYTES];
        let length = (header.length as usize).min(FADT_BYTES);
        if !self.memory().read(at, &mut fadt[..length]) {
            return PowerOff::default();
        }
        let u32_at =
            |at: usize| u32::from_le_bytes([fadt[at], fadt[at + 1], fadt[at + 2], fadt[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let flags = u32_at(FADT_FLAGS);
        let dsdt = if u64_at(FADT_X_DSDT) != 0 {
            u64_at(FADT_X_DSDT)
        } else {
            u64::from(u32_at(FADT_DSDT))
        };
        let sleep_type = self.sleep_type(dsdt);
        let sleep = if flags & FLAG_REDUCED != 0 {
            let value = REDUCED_SLEEP_ENABLE | u16::from(sleep_type.unwrap_or(5)) << 2;
            register(&fadt[FADT_SLEEP..FADT_SLEEP + 12]).map(|register| (register, value))
        } else {
            let port = u16::try_from(u32_at(FADT_PM1A))
                .ok()
                .filter(|port| *port != 0);
            sleep_type
                .zip(port)
                .map(|(kind, port)| (Register::Port(port), SLEEP_ENABLE | u16::from(kind) << 10))
        };
        let reset = register(&fadt[FADT_RESET..FADT_RESET + 12])
            .filter(|_| flags & FLAG_RESET != 0)
            .map(|register| (register, fadt[FADT_RESET_VALUE]));
        PowerOff { sleep, reset }
    }

    /// The first element of `Name (_S5, Package () { … })`.
    fn sleep_type(&self, dsdt: u64) -> Option<u8> {
        let header: Header = self.checked_header(dsdt)?;
        let end = dsdt + u64::from(header.length);
        let mut at = dsdt + size_of::<Header>() as u64;
        // 0x12 is a package; its length takes one to four bytes, then the number of elements, then
        // the first.
        let mut window = [0; 11];
        while at + window.len() as u64 <= end {
            if !self.memory().read(at, &mut window) {
                return None;
            }
            if window.starts_with(b"_S5_\x12") {
                let body = &window[6 + usize::from(window[5] >> 6)..];
                return match *body {
                    [_, 0x0a, value, ..] => Some(value & 7),
                    [_, value @ (0 | 1), ..] => Some(value),
                    _ => None,
                };
            }
            at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{machine, place};

    /// A fixed description table, to be filled in by its offsets.
    struct Fadt([u8; FADT_BYTES]);

    impl Fadt {
        fn new() -> Self {
            let mut fadt = Self([0; FADT_BYTES]);
            fadt.set(FADT_DSDT, &0x8000u32.to_le_bytes());
            fadt.set(FADT_PM1A, &0x604u32.to_le_bytes());
            fadt.set(FADT_FLAGS, &FLAG_RESET.to_le_bytes());
            fadt.register(FADT_RESET, 1, 0xcf9);
            fadt.set(FADT_RESET_VALUE, &[0x0f]);
            fadt
        }

        fn set(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn register(&mut self, at: usize, space: u8, address: u64) {
            self.set(at, &[space, 8, 0, 1]);
            self.set(at + 4, &address.to_le_bytes());
        }

        /// The power-off registers found in a machine whose FADT is the first `length` bytes of
        /// this one, and whose DSDT has this content.
        fn power(&self, length: usize, dsdt: &[u8]) -> PowerOff {
            let mut memory = machine(&[(b"FACP", &self.0[36..length])]);
            place(&mut memory, 0x8000, b"DSDT", 1, dsdt);
            Tables::new(&memory, 0x40).unwrap().power()
        }
    }

    /// A DSDT that says 5.
    const S5: &[u8] = b"junk\x08_S5_\x12\x06\x04\x0a\x05\x00\x00\x00more";

    #[test]
    fn sleep_type_and_registers() {
        let power = Fadt::new().power(FADT_BYTES, S5);
        assert_eq!(
            power.sleep,
            Some((Register::Port(0x604), SLEEP_ENABLE | 5 << 10))
        );
        assert_eq!(power.reset, Some((Register::Port(0xcf9), 0x0f)));
    }

    #[test]
    fn the_reset_register_is_looked_at() {
        let reset = |space, address, flags: u32| {
            let mut fadt = Fadt::new();
            fadt.register(FADT_RESET, space, address);
            fadt.set(FADT_FLAGS, &flags.to_le_bytes());
            fadt.power(FADT_BYTES, S5).reset
        };
        assert_eq!(
            reset(0, 0x1_0000_0000, FLAG_RESET),
            Some((Register::Memory(0x1_0000_0000), 0x0f))
        );
        assert_eq!(
            reset(1, 0xffff, FLAG_RESET),
            Some((Register::Port(0xffff), 0x0f))
        );
        assert_eq!(
            reset(1, 0x1_0000, FLAG_RESET),
            None,
            "there is no such port"
        );
        assert_eq!(
            reset(2, 0xcf9, FLAG_RESET),
            None,
            "PCI's configuration space"
        );
        assert_eq!(reset(1, 0, FLAG_RESET), None);
        assert_eq!(
            reset(1, 0xcf9, !FLAG_RESET),
            None,
            "the machine does not have it"
        );
        assert_eq!(
            Fadt::new().power(FADT_RESET + 12, S5).reset,
            Some((Register::Port(0xcf9), 0)),
            "an older, shorter table"
        );
        assert_eq!(Fadt::new().power(FADT_RESET, S5).reset, None);
    }

    #[test]
    fn machines_without_the_fixed_hardware_have_a_sleep_register() {
        let mut fadt = Fadt::new();
        fadt.set(FADT_FLAGS, &FLAG_REDUCED.to_le_bytes());
        assert_eq!(fadt.power(FADT_BYTES, S5).sleep, None);
        fadt.register(FADT_SLEEP, 0, 0x8_0000_0000);
        let sleep = |kind: u16| {
            Some((
                Register::Memory(0x8_0000_0000),
                REDUCED_SLEEP_ENABLE | kind << 2,
            ))
        };
        assert_eq!(fadt.power(FADT_BYTES, S5).sleep, sleep(5));
        assert_eq!(
            fadt.power(FADT_BYTES, b"\x08_S5_\x12\x06\x04\x0a\x07\x00\x00\x00")
                .sleep,
            sleep(7)
        );
        assert_eq!(
            fadt.power(FADT_BYTES, b"").sleep,
            sleep(5),
            "what they all have, if nothing is said"
        );
        assert_eq!(fadt.power(FADT_BYTES, S5).reset, None);
    }

    #[test]
    fn the_sleep_port_must_be_one() {
        for (port, found) in [
            (0u32, None),
            (1, Some(1)),
            (0xffff, Some(0xffff)),
            (0x1_0000, None),
        ] {
            let mut fadt = Fadt::new();
            fadt.set(FADT_PM1A, &port.to_le_bytes());
            let found = found.map(|port| (Register::Port(port), SLEEP_ENABLE | 5 << 10));
            assert_eq!(fadt.power(FADT_BYTES, S5).sleep, found, "{port:#x}");
        }
    }

    /// Each way in which firmware writes the number, wherever in the table; and none that is no
    /// plain number.
    #[test]
    fn the_sleep_type_is_found_as_it_is_written() {
        let kind = |dsdt: &[u8]| {
            Fadt::new()
                .power(FADT_BYTES, dsdt)
                .sleep
                .map(|(_, value)| value >> 10 & 7)
        };
        // At the very beginning, and at the very end: eleven bytes are looked at.
        assert_eq!(kind(b"_S5_\x12\x06\x04\x0a\x05\x00\x00"), Some(5));
        assert_eq!(kind(b"_S5_\x12\x06\x04\x0a\x05\x00"), None);
        assert_eq!(kind(&[&[0; 300], S5].concat()), Some(5));
        // The numbers 0 and 1 have operations of their own; a byte has its own prefix, and three
        // bits of it count.
        assert_eq!(kind(b"_S5_\x12\x06\x04\x00\x05\x00\x00"), Some(0));
        assert_eq!(kind(b"_S5_\x12\x06\x04\x01\x05\x00\x00"), Some(1));
        assert_eq!(kind(b"_S5_\x12\x06\x04\x02\x05\x00\x00"), None);
        assert_eq!(kind(b"_S5_\x12\x06\x04\x0a\x0e\x00\x00"), Some(6));
        // The length of the package takes up to four bytes.
        assert_eq!(kind(b"_S5_\x12\x40\x06\x04\x0a\x05\x00"), Some(5));
        assert_eq!(kind(b"_S5_\x12\x80\x06\x00\x04\x0a\x05"), Some(5));
        assert_eq!(kind(b"_S5_\x12\xc0\x06\x00\x00\x04\x01"), Some(1));
        // The name of something else.
        assert_eq!(kind(b"_S5_\x14\x06\x04\x0a\x05\x00\x00"), None);
        assert_eq!(kind(b"_S4_\x12\x06\x04\x0a\x05\x00\x00"), None);
    }

    #[test]
    fn the_larger_address_of_the_dsdt_comes_first() {
        let mut fadt = Fadt::new();
        fadt.set(FADT_X_DSDT, &0x9000u64.to_le_bytes());
        let mut memory = machine(&[(b"FACP", &fadt.0[36..])]);
        place(&mut memory, 0x8000, b"DSDT", 1, S5);
        place(
            &mut memory,
            0x9000,
            b"DSDT",
            1,
            b"_S5_\x12\x06\x04\x0a\x03\x00\x00",
        );
        let sleep = |memory: &_| Tables::new(memory, 0x40).unwrap().power().sleep;
        assert_eq!(
            sleep(&memory),
            Some((Register::Port(0x604), SLEEP_ENABLE | 3 << 10))
        );
        // A DSDT that is not sound says nothing.
        memory.0[0x9000 + 36] ^= 1;
        assert_eq!(sleep(&memory), None);
        let nothing = machine(&[(b"HPET", &[])]);
        assert_eq!(
            Tables::new(&nothing, 0x40).unwrap().power(),
            PowerOff::default()
        );
    }
}
