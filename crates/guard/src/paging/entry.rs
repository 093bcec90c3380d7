//! Page-table entries of x86-64, 4-level (Intel SDM vol. 3A, 4.5; AMD APM vol. 2, 5.3).

use bitflags::bitflags;

use crate::mem::phys::PhysAddr;

bitflags! {
    /// Attribute bits of an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u64 {
        /// The entry is valid.
        const PRESENT = 1 << 0;
        /// Writes are allowed (in ring 0 too: CR0.WP is set).
        const WRITE = 1 << 1;
        /// Ring 3 may use it.
        const USER = 1 << 2;
        /// Writes go through the cache to memory.
        const WRITE_THROUGH = 1 << 3;
        /// Not cached: device registers.
        const NO_CACHE = 1 << 4;
        /// Set by the processor at the first use.
        const ACCESSED = 1 << 5;
        /// Set by the processor at the first write.
        const DIRTY = 1 << 6;
        /// A 2 MiB page, in a table of level 2.
        const LARGE = 1 << 7;
        /// Survives a change of CR3: kernel mappings that are the same in all tables of the instance.
        const GLOBAL = 1 << 8;
        /// No instruction is fetched from it (EFER.NXE is set).
        const NO_EXECUTE = 1 << 63;
    }
}

/// Bits 12 to 51: the physical address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The value of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    /// Nothing mapped.
    pub(crate) const NONE: Self = Self(0);

    /// A 4 KiB page (level 1).
    pub(crate) const fn page(at: PhysAddr, flags: Flags) -> Self {
        Self(at.0 & ADDRESS | flags.bits() | Flags::PRESENT.bits())
    }

    /// A 2 MiB page (level 2).
    pub(crate) const fn large(at: PhysAddr, flags: Flags) -> Self {
        Self::page(at, flags.union(Flags::LARGE))
    }

    /// A pointer to a table whose leaves decide what the kernel may do; ring 3 is locked out.
    pub(crate) const fn kernel_table(at: PhysAddr) -> Self {
        Self::page(at, Flags::WRITE)
    }

    /// A pointer to a table whose leaves decide what ring 3 may do.
    pub(crate) const fn user_table(at: PhysAddr) -> Self {
        Self::page(at, Flags::WRITE.union(Flags::USER))
    }

    /// Whether the entry is valid.
    pub(crate) const fn present(self) -> bool {
        self.0 & Flags::PRESENT.bits() != 0
    }

    /// The attribute bits.
    pub(crate) const fn flags(self) -> Flags {
        Flags::from_bits_truncate(self.0)
    }

    /// The same target with other attribute bits.
    pub(crate) const fn with(self, flags: Flags) -> Self {
        Self(self.0 & ADDRESS | flags.bits())
    }

    /// Where a valid entry points to.
    pub(crate) const fn address(self) -> PhysAddr {
        PhysAddr(self.0 & ADDRESS)
    }

    /// The table a valid entry of level 2 or higher points to; `None` if there is none.
    pub(crate) const fn table(self) -> Option<PhysAddr> {
        if self.present() && self.0 & Flags::LARGE.bits() == 0 { Some(self.address()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_mix() {
        let at = PhysAddr(0x000f_ffff_ffff_f000);
        let entry = Entry::page(at, Flags::NO_EXECUTE | Flags::WRITE);
        assert_eq!(entry.0, 0x800f_ffff_ffff_f003);
        assert_eq!(entry.address(), at);
        assert_eq!(entry.flags(), Flags::NO_EXECUTE | Flags::WRITE | Flags::PRESENT);
        assert_eq!(entry.with(Flags::PRESENT).0, 0x000f_ffff_ffff_f001);
    }

    #[test]
    fn a_large_page_is_no_table() {
        let at = PhysAddr(0x20_0000);
        assert_eq!(Entry::large(at, Flags::WRITE).0, 0x20_0083);
        assert_eq!(Entry::large(at, Flags::WRITE).table(), None);
        assert_eq!(Entry::kernel_table(at).table(), Some(at));
        assert_eq!(Entry::NONE.table(), None);
        assert!(!Entry::NONE.present());
    }

    #[test]
    fn ring_3_is_let_in_by_user_tables_only() {
        assert!(!Entry::kernel_table(PhysAddr(0x1000)).flags().contains(Flags::USER));
        assert!(Entry::user_table(PhysAddr(0x1000)).flags().contains(Flags::USER));
    }
}
