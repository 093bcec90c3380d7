//! Devices of a supervisor that starts again in place: they reach no memory any more until a driver
//! has them again. Those that instances have go on.

use abi::keep::Keep;

use crate::port;

/// The registers by which configuration space is read and written without tables: an address, and
/// what is there (PCI 3.0, 3.2.2.3.2).
const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

const COMMAND: u32 = 0x04;
const BUS_MASTER: u32 = 1 << 2;
const CLASS: u32 = 0x08;
const HEADER: u32 = 0x0c;
const MANY_FUNCTIONS: u32 = 1 << 23;
const CLASS_BRIDGE: u32 = 6;

fn read(function: u32, register: u32) -> u32 {
    // SAFETY: the supervisor owns configuration space, and nobody else runs on its behalf; reading
    // has no effects there.
    unsafe {
        port::outl(ADDRESS, ENABLE | function << 8 | register);
        port::inl(DATA)
    }
}

/// Ends all mastery of the bus in segment 0, but for bridges, which only pass on, and for functions
/// that an instance may have. A function takes no interrupt messages either then: those are writes,
/// too.
pub(super) fn silence(notes: &Keep<'_>) {
    for device in 0..1_u32 << 13 {
        let first = device << 3;
        let functions = match read(first, HEADER) {
            header if header & MANY_FUNCTIONS != 0 => 8,
            _ => 1,
        };
        for function in first..first + functions {
            let is_there = read(function, 0) as u16 != u16::MAX;
            if !is_there || read(function, CLASS) >> 24 == CLASS_BRIDGE {
                continue;
            }
            let command = read(function, COMMAND) & 0xffff;
            if command & BUS_MASTER != 0 && !notes.has_function(function) {
                // SAFETY: as in `read`; the upper half is bits that only ones would change.
                unsafe {
                    port::outl(ADDRESS, ENABLE | function << 8 | COMMAND);
                    port::outl(DATA, command & !BUS_MASTER);
                }
            }
        }
    }
}
