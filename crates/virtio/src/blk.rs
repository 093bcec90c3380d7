//! Disks: virtio 1.3, section 5.2.

mod device;
mod driver;
mod properties;
mod queue;
#[cfg(test)]
mod tests;

pub use device::{Backend, BackendError, Served, Server};
pub use driver::{Disk, Shape, StartError, Started};
pub use properties::{BadConfig, Properties, Ranges};
pub use queue::{Completion, Failure, Operation, Queue, Refusal, Refused, Unmap};

/// Bytes of a sector, the unit of the protocol, whatever a device's blocks are.
pub const SECTOR: u64 = 512;

/// Features of disks, by bit (section 5.2.3).
mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const GEOMETRY: u64 = 1 << 4;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const QUEUES: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// All of these.
    pub const ALL: u64 = SIZE_MAX
        | SEG_MAX
        | GEOMETRY
        | READ_ONLY
        | BLOCK_SIZE
        | FLUSH
        | TOPOLOGY
        | QUEUES
        | DISCARD
        | WRITE_ZEROES;
}

/// Types of requests (section 5.2.6).
mod kind {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Results of requests (section 5.2.6).
mod status {
    pub const OK: u8 = 0;
    pub const IO_ERROR: u8 = 1;
    pub const UNSUPPORTED: u8 = 2;
    /// No result: there before a device has written one.
    pub const NONE: u8 = 0xff;
}

/// Bytes of a request's header: type, reserved, sector.
const HEADER: u64 = 16;
/// Bytes of a range to be discarded or made zeros: sector, sectors, flags.
const RANGE: u64 = 16;
/// Bytes of a device's name (`VIRTIO_BLK_T_GET_ID`).
pub const ID: usize = 20;
/// Flag of a range: the zeros may be what is read where nothing is.
const UNMAP: u32 = 1;
