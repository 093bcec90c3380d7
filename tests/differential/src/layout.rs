//! Where the memory of a program under test is: the same addresses on every kernel, so that what is
//! recorded can be compared.

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Actors of a program at most: processes or threads.
pub const ACTORS: usize = 4;
/// Steps of a program at most.
pub const STEPS: usize = 24;

/// Where the first actor's memory begins.
pub const BASE: u64 = 0x10_0000_0000;
/// Distance between the memories of two actors.
pub const PER_ACTOR: u64 = 0x1000_0000;
/// Small rooms of an actor: a writable page each, with a hole behind it.
pub const BUFFERS: u64 = 24;
/// Large rooms of an actor, of [`LARGE`] writable bytes each, with a hole behind them.
pub const LARGE_BUFFERS: u64 = 4;
/// Bytes of a large room.
pub const LARGE: u64 = 0x21_0000;

/// A page that cannot be written.
pub const READ_ONLY: u64 = 0xf_0000_0000;
/// A page that cannot be accessed.
pub const NO_ACCESS: u64 = 0xf_0000_2000;
/// An address at which nothing is mapped.
pub const HOLE: u64 = 0xf_0000_5000;
/// An address of the kernel's half.
pub const KERNEL: u64 = 0xffff_8880_0000_1000;

/// Memory that the calls of the area `memory` work on: [`MAPPING_AREA_PAGES`] pages, private and
/// anonymous at first.
pub const MAPPING_AREA: u64 = 0x20_0000_0000;
/// Pages of the playground.
pub const MAPPING_AREA_PAGES: u64 = 32;

/// The start of a small room of `actor`.
pub fn buffer(actor: usize, index: u64) -> u64 {
    BASE + actor as u64 * PER_ACTOR + index * 2 * PAGE
}

/// The start of a large room of `actor`.
pub fn large_buffer(actor: usize, index: u64) -> u64 {
    BASE + actor as u64 * PER_ACTOR + 0x100_0000 + index * (LARGE + 0x10_0000)
}
