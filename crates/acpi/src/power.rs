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

/// How the machine is switched off and reset.
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
    /// What the fixed description table says, with the sleep type of `\_S5` looked up in the DSDT. That package is found
    /// by its name and read if it holds plain integers, as every firmware writes it: no AML is run.
    #[must_use]
    pub fn power(&self) -> PowerOff {
        let Some((at, header)) = self.find(b"FACP") else { return PowerOff::default() };
        let mut fadt = [0; FADT_BYTES];
        let length = (header.length as usize).min(FADT_BYTES);
        if !self.memory().read(at, &mut fadt[..length]) {
            return PowerOff::default();
        }
        let u32_at = |at: usize| u32::from_le_bytes([fadt[at], fadt[at + 1], fadt[at + 2], fadt[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let flags = u32_at(FADT_FLAGS);
        let dsdt = if u64_at(FADT_X_DSDT) != 0 { u64_at(FADT_X_DSDT) } else { u64::from(u32_at(FADT_DSDT)) };
        let sleep_type = self.sleep_type(dsdt);
        let sleep = if flags & FLAG_REDUCED != 0 {
            let value = REDUCED_SLEEP_ENABLE | u16::from(sleep_type.unwrap_or(5)) << 2;
            register(&fadt[FADT_SLEEP..FADT_SLEEP + 12]).map(|register| (register, value))
        } else {
            let port = u16::try_from(u32_at(FADT_PM1A)).ok().filter(|port| *port != 0);
            sleep_type.zip(port).map(|(kind, port)| (Register::Port(port), SLEEP_ENABLE | u16::from(kind) << 10))
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
        // 0x12 is a package; its length takes one to four bytes, then the number of elements, then the first.
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

    #[test]
    fn sleep_type_and_registers() {
        let mut body = [0; FADT_BYTES - 36];
        body[FADT_DSDT - 36..][..4].copy_from_slice(&0x8000u32.to_le_bytes());
        body[FADT_PM1A - 36..][..4].copy_from_slice(&0x604u32.to_le_bytes());
        body[FADT_FLAGS - 36..][..4].copy_from_slice(&FLAG_RESET.to_le_bytes());
        body[FADT_RESET - 36] = 1;
        body[FADT_RESET - 36 + 4..][..2].copy_from_slice(&0xcf9u16.to_le_bytes());
        body[FADT_RESET_VALUE - 36] = 0x0f;
        let mut memory = machine(&[(b"FACP", &body)]);
        place(&mut memory, 0x8000, b"DSDT", 1, b"junk\x08_S5_\x12\x06\x04\x0a\x05\x00\x00\x00more");
        let power = Tables::new(&memory, 0x40).unwrap().power();
        assert_eq!(power.sleep, Some((Register::Port(0x604), SLEEP_ENABLE | 5 << 10)));
        assert_eq!(power.reset, Some((Register::Port(0xcf9), 0x0f)));
    }
}
