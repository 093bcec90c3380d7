//! Tests on the host.

use crate::{Address, Areas, DeviceQueue, DriverQueue, Features, Piece, Setup, Tables, Words};

mod halves;
mod hostile;
mod packed;
mod rules;
mod vmm;

/// Beginning of the memory for buffers, after queue and tables.
const BUFFERS: u64 = 0x8000;
/// Bytes of memory.
const MEMORY: usize = 0x1_0000;

fn words() -> Words {
    Words::new(MEMORY).expect("memory")
}

fn piece(at: u64, len: u32) -> Piece {
    Piece {
        at: Address::new(at),
        len,
    }
}

/// A queue at address 0, with tables behind it if that is negotiated.
fn setup(size: u16, features: Features) -> Setup {
    Setup {
        size,
        areas: Areas::at(Address::new(0), size),
        features,
    }
}

fn tables(size: u16) -> Tables {
    Tables {
        at: Address::new(Areas::bytes(size)),
        entries: size.min(8),
    }
}

/// Two ends of a queue, whose values are of this type.
fn pair<T>(memory: &Words, setup: Setup) -> (DriverQueue<&Words, T>, DeviceQueue<&Words>) {
    (
        DriverQueue::new(memory, setup, Some(tables(setup.size))).expect("a driver half"),
        DeviceQueue::new(memory, setup, setup.size).expect("a device half"),
    )
}
