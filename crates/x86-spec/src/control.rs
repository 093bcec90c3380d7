//! Control registers and RFLAGS (SDM vol. 3A, 2.3 and 2.5; APM vol. 2, 3.1).

/// Bits of CR0.
pub mod cr0 {
    /// Protected mode.
    pub const PE: u64 = 1 << 0;
    /// WAIT looks at TS.
    pub const MP: u64 = 1 << 1;
    /// Extension type; always set.
    pub const ET: u64 = 1 << 4;
    /// Errors of the x87 unit are exceptions, not interrupts.
    pub const NE: u64 = 1 << 5;
    /// Ring 0 obeys read-only pages.
    pub const WP: u64 = 1 << 16;
    /// RFLAGS.AC checks alignment in ring 3.
    pub const AM: u64 = 1 << 18;
    /// Paging.
    pub const PG: u64 = 1 << 31;
}

/// Bits of CR4.
pub mod cr4 {
    /// RDTSC is for ring 0 only.
    pub const TSD: u64 = 1 << 2;
    /// Physical addresses of more than 32 bits.
    pub const PAE: u64 = 1 << 5;
    /// Machine checks are exceptions.
    pub const MCE: u64 = 1 << 6;
    /// Global pages.
    pub const PGE: u64 = 1 << 7;
    /// FXSAVE and SSE may be used.
    pub const OSFXSR: u64 = 1 << 9;
    /// Errors of SSE are exceptions of their own.
    pub const OSXMMEXCPT: u64 = 1 << 10;
    /// SGDT, SIDT, SLDT, SMSW and STR are for ring 0 only.
    pub const UMIP: u64 = 1 << 11;
    /// Ring 3 may read and write the bases of FS and GS.
    pub const FSGSBASE: u64 = 1 << 16;
    /// Process-context identifiers.
    pub const PCIDE: u64 = 1 << 17;
    /// XSAVE and XCR0 may be used.
    pub const OSXSAVE: u64 = 1 << 18;
    /// Ring 0 executes no code of user pages.
    pub const SMEP: u64 = 1 << 20;
    /// Ring 0 touches user pages only while RFLAGS.AC is set.
    pub const SMAP: u64 = 1 << 21;
}

/// Bits of RFLAGS (SDM vol. 1, 3.4.3).
pub mod rflags {
    /// Carry.
    pub const CF: u64 = 1 << 0;
    /// Always set.
    pub const FIXED: u64 = 1 << 1;
    /// Parity.
    pub const PF: u64 = 1 << 2;
    /// Auxiliary carry.
    pub const AF: u64 = 1 << 4;
    /// Zero.
    pub const ZF: u64 = 1 << 6;
    /// Sign.
    pub const SF: u64 = 1 << 7;
    /// A debug exception after each instruction.
    pub const TF: u64 = 1 << 8;
    /// Interrupts are on.
    pub const IF: u64 = 1 << 9;
    /// String instructions go down.
    pub const DF: u64 = 1 << 10;
    /// Overflow.
    pub const OF: u64 = 1 << 11;
    /// Ring from which I/O instructions are allowed: two bits.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// The next instruction meets no instruction breakpoint.
    pub const RF: u64 = 1 << 16;
    /// Alignment check in ring 3; access to user pages in ring 0 with SMAP.
    pub const AC: u64 = 1 << 18;
    /// Can be changed if the processor has CPUID.
    pub const ID: u64 = 1 << 21;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 3A, figure 2-7 and 2.5: control registers of a system in long mode.
    #[test]
    fn control_registers() {
        assert_eq!(
            cr0::PE | cr0::MP | cr0::ET | cr0::NE | cr0::WP | cr0::PG,
            0x8001_0033
        );
        assert_eq!(cr4::PAE | cr4::MCE | cr4::OSFXSR | cr4::OSXMMEXCPT, 0x660);
        assert_eq!(cr4::TSD | cr4::PGE | cr4::UMIP, 0x884);
        assert_eq!(
            cr4::FSGSBASE | cr4::PCIDE | cr4::OSXSAVE | cr4::SMEP | cr4::SMAP,
            0x37_0000
        );
    }

    /// SDM vol. 1, figure 3-8: reserved bits are those of no flag.
    #[test]
    fn flags() {
        use rflags::*;
        let status = CF | PF | AF | ZF | SF | OF;
        assert_eq!(status, 0x8d5);
        assert_eq!(TF | IF | DF | IOPL | NT | RF | AC | ID, 0x25_7700);
        assert_eq!(FIXED, 2);
    }
}
