//! Numbers of model-specific registers and their fields (SDM vol. 4, chapter 2; APM vol. 2,
//! appendix A).

/// Address and mode of the local APIC.
pub const APIC_BASE: u32 = 0x1b;
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
