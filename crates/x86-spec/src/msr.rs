//! Numbers of model-specific registers and their fields (SDM vol. 4, chapter 2; APM vol. 2,
//! appendix A).

/// Address and mode of the local APIC.
pub const APIC_BASE: u32 = 0x1b;
/// Speculation of indirect branches and of loads ([`spec_ctrl`]).
pub const SPEC_CTRL: u32 = 0x48;
/// Command that drops predictions; [`PRED_CMD_IBPB`].
pub const PRED_CMD: u32 = 0x49;
/// Weaknesses that a processor of Intel's has not ([`arch_capabilities`]).
pub const ARCH_CAPABILITIES: u32 = 0x10a;
/// Command that flushes caches; [`FLUSH_CMD_L1D`].
pub const FLUSH_CMD: u32 = 0x10b;
/// Transactions: 0 leaves them on; [`TSX_OFF`].
pub const TSX_CTRL: u32 = 0x122;
/// Protections that microcode leaves out ([`mcu_opt_ctrl`]).
pub const MCU_OPT_CTRL: u32 = 0x123;
/// Page attribute table: the memory types that page-table entries choose from.
pub const PAT: u32 = 0x277;
/// Code segment of SYSENTER; with 0 the instruction faults.
pub const SYSENTER_CS: u32 = 0x174;
/// Counter value at which the local APIC's timer fires in TSC-deadline mode; 0 disarms it.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// First of the registers of an x2APIC ([`crate::apic`]).
pub const X2APIC: u32 = 0x800;
/// Extended features ([`efer`]).
pub const EFER: u32 = 0xc000_0080;
/// Segments of SYSCALL and SYSRET ([`star`]).
pub const STAR: u32 = 0xc000_0081;
/// Entry point of SYSCALL in 64-bit mode.
pub const LSTAR: u32 = 0xc000_0082;
/// Entry point of SYSCALL in compatibility mode (AMD only).
pub const CSTAR: u32 = 0xc000_0083;
/// Flags that SYSCALL clears.
pub const SFMASK: u32 = 0xc000_0084;
/// Base address of FS.
pub const FS_BASE: u32 = 0xc000_0100;
/// Base address of GS.
pub const GS_BASE: u32 = 0xc000_0101;
/// Base address that SWAPGS exchanges with that of GS.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// Value that RDTSCP and RDPID give to programs.
pub const TSC_AUX: u32 = 0xc000_0103;

/// Bits of [`APIC_BASE`] (SDM vol. 3A, 11.4.4 and 11.12.1).
pub mod apic_base {
    /// Registers are MSRs (x2APIC) instead of memory.
    pub const X2APIC: u64 = 1 << 10;
    /// The local APIC is on.
    pub const ENABLE: u64 = 1 << 11;
}

/// Bits of [`SPEC_CTRL`] (SDM vol. 4, table 2-2).
pub mod spec_ctrl {
    /// Indirect branches are restricted (IBRS).
    pub const IBRS: u64 = 1 << 0;
    /// Predictions are kept from the core's other thread (STIBP).
    pub const STIBP: u64 = 1 << 1;
    /// Loads do not overtake stores (SSBD).
    pub const SSBD: u64 = 1 << 2;
    /// The history of branches is kept from ring 0's indirect ones (`BHI_DIS_S`).
    pub const BHI_DIS_S: u64 = 1 << 10;
}

/// The command of [`PRED_CMD`]: predictions of indirect branches.
pub const PRED_CMD_IBPB: u64 = 1 << 0;
/// The command of [`FLUSH_CMD`]: the data cache of the first level.
pub const FLUSH_CMD_L1D: u64 = 1 << 0;
/// The value of [`TSX_CTRL`] with which transactions abort at once, and CPUID does not show them.
pub const TSX_OFF: u64 = 0b11;

/// Bits of [`MCU_OPT_CTRL`] (SDM vol. 4, table 2-2).
pub mod mcu_opt_ctrl {
    /// Random numbers are not protected from other cores.
    pub const RNGDS_MITG_DIS: u64 = 1 << 0;
    /// Values that GATHER forwards are not protected.
    pub const GDS_MITG_DIS: u64 = 1 << 4;
}

/// Bits of [`ARCH_CAPABILITIES`] (SDM vol. 4, table 2-2): a processor that has one is spared what
/// its name says, or has the means against it.
pub mod arch_capabilities {
    /// Ring 3 reads no kernel memory.
    pub const RDCL_NO: u64 = 1 << 0;
    /// IBRS is for all privileges, and set once.
    pub const IBRS_ALL: u64 = 1 << 1;
    /// Returns may use the prediction of indirect branches.
    pub const RSBA: u64 = 1 << 2;
    /// Loads do not overtake stores.
    pub const SSB_NO: u64 = 1 << 4;
    /// Buffers cannot be read.
    pub const MDS_NO: u64 = 1 << 5;
    /// Page sizes may change.
    pub const PSCHANGE_MC_NO: u64 = 1 << 6;
    /// [`super::TSX_CTRL`] is there.
    pub const TSX_CTRL: u64 = 1 << 7;
    /// Aborted transactions read nothing.
    pub const TAA_NO: u64 = 1 << 8;
    /// Device registers leave nothing in buffers: three kinds of buffers.
    pub const MMIO_NO: u64 = 0b111 << 13;
    /// VERW clears those buffers.
    pub const FB_CLEAR: u64 = 1 << 17;
    /// The history of branches steers nothing.
    pub const BHI_NO: u64 = 1 << 20;
    /// Returns after a guest are not steered.
    pub const PBRSB_NO: u64 = 1 << 24;
    /// Microcode protects what GATHER forwards, unless it is told not to.
    pub const GDS_CTRL: u64 = 1 << 25;
    /// GATHER forwards nothing.
    pub const GDS_NO: u64 = 1 << 26;
    /// Registers cannot be read.
    pub const RFDS_NO: u64 = 1 << 27;
    /// VERW clears them.
    pub const RFDS_CLEAR: u64 = 1 << 28;
    /// Indirect branches in the lower half of a cache line are as good as others.
    pub const ITS_NO: u64 = 1 << 62;
}

/// Bits of [`EFER`] (SDM vol. 3A, 2.2.1; APM vol. 2, 3.1.7).
pub mod efer {
    /// SYSCALL and SYSRET exist.
    pub const SCE: u64 = 1 << 0;
    /// Paging turns long mode on.
    pub const LME: u64 = 1 << 8;
    /// Long mode is on.
    pub const LMA: u64 = 1 << 10;
    /// The no-execute bit of page-table entries counts.
    pub const NXE: u64 = 1 << 11;
    /// Indirect branches in ring 0 are restricted (AMD's automatic IBRS).
    pub const AIBRSE: u64 = 1 << 21;
}

/// Memory types of [`PAT`] (SDM vol. 3A, table 13-10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryType {
    /// UC: every access goes to the device, in order.
    Uncached = 0,
    /// WC: writes are gathered in a buffer.
    WriteCombining = 1,
    /// WT: writes go through the cache.
    WriteThrough = 4,
    /// WP: reads are cached, writes go to memory and drop the line from other caches.
    WriteProtected = 5,
    /// WB: ordinary memory.
    WriteBack = 6,
    /// UC-: uncached, unless a memory type range register says WC.
    UncachedMinus = 7,
}

/// Value of [`PAT`] with these types, entry 0 first.
#[must_use]
pub const fn pat(types: [MemoryType; 8]) -> u64 {
    let mut bytes = [0; 8];
    let mut entry = 0;
    while entry < bytes.len() {
        bytes[entry] = types[entry] as u8;
        entry += 1;
    }
    u64::from_le_bytes(bytes)
}

/// Value of [`STAR`] (SDM vol. 3A, 5.8.8): SYSCALL loads CS with `syscall` and SS with the next
/// descriptor's selector; SYSRET to 64-bit code loads SS with `sysret` + 8 and CS with `sysret` +
/// 16.
#[must_use]
pub const fn star(sysret: u16, syscall: u16) -> u64 {
    (sysret as u64) << 48 | (syscall as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::MemoryType::{Uncached, UncachedMinus, WriteBack, WriteThrough};
    use super::*;

    /// SDM vol. 3A, table 13-12: the types after a reset are WB, WT, UC-, UC, twice.
    #[test]
    fn the_reset_value_of_the_page_attribute_table() {
        let half = [WriteBack, WriteThrough, UncachedMinus, Uncached];
        let [a, b, c, d] = half;
        assert_eq!(pat([a, b, c, d, a, b, c, d]), 0x0007_0406_0007_0406);
    }

    #[test]
    fn selectors_of_system_calls() {
        assert_eq!(star(0x23, 0x10), 0x0023_0010_0000_0000);
    }
}
