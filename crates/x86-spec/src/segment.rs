//! Segment descriptors and the 64-bit task state segment (SDM vol. 3A, 3.4.5, 8.2.3 and 8.7; APM
//! vol. 2, 4.8 and 12.2.5).

use core::mem::offset_of;

/// Base addresses of a program's segments FS and GS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentBases {
    /// Of FS, which points at thread-local storage.
    pub fs: u64,
    /// Of GS.
    pub gs: u64,
}

/// Code of ring 0 in 64-bit mode.
pub const CODE: u64 = 0x00af_9a00_0000_ffff;
/// Data of ring 0, writable.
pub const DATA: u64 = 0x00cf_9200_0000_ffff;
/// Descriptor privilege level: ring 3.
pub const DPL3: u64 = 3 << 45;

/// A read-only data segment of ring 3 of which only the limit matters, which LSL tells: 16 bits of
/// it.
#[must_use]
pub const fn limit_only(limit: u16) -> u64 {
    0x0040_f500_0000_0000 | limit as u64
}

/// Two entries: an available 64-bit task state segment at `base`.
#[must_use]
pub const fn task_state(base: u64) -> [u64; 2] {
    const LIMIT: u64 = size_of::<Tss>() as u64 - 1;
    [
        LIMIT | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56,
        base >> 32,
    ]
}

/// Task state segment: stack pointers, and an I/O permission map that is empty.
#[repr(C, packed(4))]
pub struct Tss {
    reserved0: u32,
    /// Stack for entries from ring 3.
    pub rsp0: u64,
    rsp12: [u64; 2],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    io_map: u16,
}

const _: () = assert!(
    offset_of!(Tss, rsp0) == 4 && offset_of!(Tss, ist) == 36 && offset_of!(Tss, io_map) == 102
);

impl Tss {
    /// A segment with the interrupt stack table `ist`, whose first entry has index 1 in a gate.
    #[must_use]
    pub const fn new(ist: [u64; 7]) -> Self {
        // An I/O map beyond the limit allows no port.
        let io_map = size_of::<Self>() as u16;
        Self {
            reserved0: 0,
            rsp0: 0,
            rsp12: [0; 2],
            reserved1: 0,
            ist,
            reserved2: 0,
            reserved3: 0,
            io_map,
        }
    }
}

/// Operand of LGDT and LIDT (SDM vol. 3A, 2.4): where a table is.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct TablePointer {
    limit: u16,
    base: u64,
}

impl TablePointer {
    /// No table: whatever looks into it faults.
    pub const EMPTY: Self = Self { limit: 0, base: 0 };

    /// A table of so many bytes at `base`.
    #[must_use]
    pub const fn new(base: u64, bytes: usize) -> Self {
        Self {
            limit: (bytes - 1) as u16,
            base,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields of a descriptor: base, limit, access byte (P, DPL, S, type), flags (G, D/B, L, AVL).
    fn fields(descriptor: u64) -> (u64, u64, u64, u64) {
        let base = descriptor >> 16 & 0xff_ffff | (descriptor >> 56) << 24;
        let limit = descriptor & 0xffff | (descriptor >> 48 & 0xf) << 16;
        (base, limit, descriptor >> 40 & 0xff, descriptor >> 52 & 0xf)
    }

    /// SDM vol. 3A, figure 3-8 and table 3-1.
    #[test]
    fn code_and_data() {
        // Present, code or data, execute/read; 4 KiB granules, 64-bit.
        assert_eq!(fields(CODE), (0, 0xf_ffff, 0x9a, 0b1010));
        assert_eq!(fields(CODE | DPL3), (0, 0xf_ffff, 0xfa, 0b1010));
        // Present, code or data, read/write; 4 KiB granules, 32-bit.
        assert_eq!(fields(DATA), (0, 0xf_ffff, 0x92, 0b1100));
        assert_eq!(fields(DATA | DPL3), (0, 0xf_ffff, 0xf2, 0b1100));
        assert_eq!(fields(limit_only(0x1234)), (0, 0x1234, 0xf5, 0b0100));
    }

    /// SDM vol. 3A, figure 8-4 (the descriptor) and 8-11 (the segment, 104 bytes).
    #[test]
    fn the_task_state_segment() {
        assert_eq!(size_of::<Tss>(), 104);
        assert_eq!(offset_of!(Tss, ist), 0x24);
        assert_eq!(offset_of!(Tss, io_map), 0x66);
        let [low, high] = task_state(0xffff_8012_3456_789a);
        assert_eq!(fields(low), (0x3456_789a, 103, 0x89, 0));
        assert_eq!(high, 0xffff_8012);
        let io_map = Tss::new([0; 7]).io_map;
        assert!(usize::from(io_map) > 103);
    }

    #[test]
    fn a_table_pointer_holds_the_last_byte() {
        assert_eq!(size_of::<TablePointer>(), 10);
        let pointer = TablePointer::new(0x1000, 4096);
        let (limit, base) = (pointer.limit, pointer.base);
        assert_eq!((limit, base), (0xfff, 0x1000));
    }
}
