//! Exceptions, and gates of the interrupt descriptor table (SDM vol. 3A, 6.3, 6.13 to 6.15; APM
//! vol. 2, 8.2).

/// Debug exception (#DB).
pub const DEBUG: u8 = 1;
/// Non-maskable interrupt.
pub const NMI: u8 = 2;
/// Breakpoint (#BP): INT3.
pub const BREAKPOINT: u8 = 3;
/// Overflow (#OF): INTO.
pub const OVERFLOW: u8 = 4;
/// Double fault (#DF).
pub const DOUBLE_FAULT: u8 = 8;
/// General protection (#GP).
pub const GENERAL_PROTECTION: u8 = 13;
/// Page fault (#PF).
pub const PAGE_FAULT: u8 = 14;
/// Machine check (#MC).
pub const MACHINE_CHECK: u8 = 18;

/// Vectors of an interrupt descriptor table.
pub const VECTORS: usize = 256;

/// Bits of a page fault's error code (SDM vol. 3A, 4.7).
pub mod page_fault {
    /// Something is mapped, and does not allow the access.
    pub const PRESENT: u64 = 1 << 0;
    /// The access was a write.
    pub const WRITE: u64 = 1 << 1;
    /// A reserved bit of a page-table entry is set.
    pub const RESERVED: u64 = 1 << 3;
    /// The access was an instruction fetch.
    pub const FETCH: u64 = 1 << 4;
}

/// One entry of the interrupt descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Gate {
    low: u64,
    high: u64,
}

impl Gate {
    /// No handler: the vector is a general protection fault.
    pub const NONE: Self = Self { low: 0, high: 0 };

    /// An interrupt gate (interrupts off inside) to `handler` in the segment `code`. INT n reaches
    /// it from ring `dpl` inwards; the handler runs on the stack `ist` of the interrupt stack
    /// table, or with 0 on the stack of the ring.
    #[must_use]
    pub const fn interrupt(handler: u64, code: u16, dpl: u8, ist: u8) -> Self {
        let low = handler & 0xffff
            | (code as u64) << 16
            | (ist as u64) << 32
            | (0x8e | (dpl as u64) << 5) << 40
            | (handler >> 16 & 0xffff) << 48;
        Self {
            low,
            high: handler >> 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 3A, figure 6-8: present, type 0xE, offset in three pieces.
    #[test]
    fn gates() {
        let gate = Gate::interrupt(0x1122_3344_5566_7788, 0x10, 0, 0);
        assert_eq!((gate.low, gate.high), (0x5566_8e00_0010_7788, 0x1122_3344));
        let gate = Gate::interrupt(0, 0x10, 3, 2);
        assert_eq!((gate.low, gate.high), (0x0000_ee02_0010_0000, 0));
        assert_eq!(size_of::<Gate>(), 16);
    }
}
