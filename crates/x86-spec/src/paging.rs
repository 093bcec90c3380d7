//! Page tables of 4 levels (Intel SDM vol. 3A, 4.5; AMD APM vol. 2, 5.3).

use bitflags::bitflags;

/// Bytes of a page.
const PAGE_SIZE: usize = 4096;
/// Entries of a table.
pub const ENTRIES: usize = 512;
/// First entry of the root that belongs to the upper half of the address space.
pub const UPPER_HALF: usize = ENTRIES / 2;

/// Index of the entry for `va` in a table of `level` (1: pages, 2: 2 MiB, 3: 1 GiB, 4: root).
#[inline]
#[must_use]
pub const fn index(va: usize, level: usize) -> usize {
    va >> (12 + 9 * (level - 1)) & (ENTRIES - 1)
}

/// Bytes that one entry of a table of `level` covers.
#[inline]
#[must_use]
pub const fn span(level: usize) -> usize {
    PAGE_SIZE << (9 * (level - 1))
}

/// A physical address: for page tables, device registers and CR3, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PhysAddr(
    /// The address.
    pub u64,
);

impl PhysAddr {
    /// The address `bytes` further on.
    #[inline]
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

bitflags! {
    /// Attribute bits of an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// The entry is valid.
        const PRESENT = 1 << 0;
        /// Writes are allowed (in ring 0 too: CR0.WP is set).
        const WRITE = 1 << 1;
        /// Ring 3 may use it.
        const USER = 1 << 2;
        /// Writes go through the cache to memory.
        const WRITE_THROUGH = 1 << 3;
        /// Uncached, for device registers.
        const NO_CACHE = 1 << 4;
        /// Accessed: set by the processor at the first use.
        const ACCESSED = 1 << 5;
        /// Dirty: set by the processor at the first write.
        const DIRTY = 1 << 6;
        /// A 2 MiB page, in a table of level 2.
        const LARGE = 1 << 7;
        /// Survives a change of CR3: kernel mappings that are the same in all tables of the
        /// instance.
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
pub struct Entry(
    /// The value in memory.
    pub u64,
);

impl Entry {
    /// An entry that maps nothing.
    pub const NONE: Self = Self(0);

    /// A 4 KiB page (level 1).
    #[inline]
    #[must_use]
    pub const fn page(at: PhysAddr, flags: Flags) -> Self {
        Self(at.0 & ADDRESS | flags.bits() | Flags::PRESENT.bits())
    }

    /// A 2 MiB page (level 2).
    #[inline]
    #[must_use]
    pub const fn large(at: PhysAddr, flags: Flags) -> Self {
        Self::page(at, flags.union(Flags::LARGE))
    }

    /// A pointer to a table whose leaves decide what the kernel may do; ring 3 is locked out.
    #[inline]
    #[must_use]
    pub const fn kernel_table(at: PhysAddr) -> Self {
        Self::page(at, Flags::WRITE)
    }

    /// A pointer to a table whose leaves decide what ring 3 may do.
    #[inline]
    #[must_use]
    pub const fn user_table(at: PhysAddr) -> Self {
        Self::page(at, Flags::WRITE.union(Flags::USER))
    }

    /// Whether the entry is valid.
    #[inline]
    #[must_use]
    pub const fn present(self) -> bool {
        self.0 & Flags::PRESENT.bits() != 0
    }

    /// The attribute bits.
    #[inline]
    #[must_use]
    pub const fn flags(self) -> Flags {
        Flags::from_bits_truncate(self.0)
    }

    /// The entry with other attribute bits and the same target.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Flags) -> Self {
        Self(self.0 & ADDRESS | flags.bits())
    }

    /// Physical address that a valid entry points to.
    #[inline]
    #[must_use]
    pub const fn address(self) -> PhysAddr {
        PhysAddr(self.0 & ADDRESS)
    }

    /// The table a valid entry of level 2 or higher points to; `None` if there is none.
    #[inline]
    #[must_use]
    pub const fn table(self) -> Option<PhysAddr> {
        if self.present() && self.0 & Flags::LARGE.bits() == 0 {
            Some(self.address())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_the_manuals() {
        let va = 0xffff_8000_0000_0000 | 3 << 39 | 5 << 30 | 7 << 21 | 9 << 12 | 0xabc;
        assert_eq!(
            [4, 3, 2, 1].map(|level| index(va, level)),
            [256 + 3, 5, 7, 9]
        );
        assert_eq!([1, 2, 3].map(span), [4096, 2 << 20, 1 << 30]);
    }

    #[test]
    fn fields_do_not_mix() {
        let at = PhysAddr(0x000f_ffff_ffff_f000);
        let entry = Entry::page(at, Flags::NO_EXECUTE | Flags::WRITE);
        assert_eq!(entry.0, 0x800f_ffff_ffff_f003);
        assert_eq!(entry.address(), at);
        assert_eq!(
            entry.flags(),
            Flags::NO_EXECUTE | Flags::WRITE | Flags::PRESENT
        );
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
        assert!(
            !Entry::kernel_table(PhysAddr(0x1000))
                .flags()
                .contains(Flags::USER)
        );
        assert!(
            Entry::user_table(PhysAddr(0x1000))
                .flags()
                .contains(Flags::USER)
        );
    }
}
