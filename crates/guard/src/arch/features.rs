//! Features of the processor that the kernel uses. Decided once, on the first CPU; an instance's
//! CPUs are alike.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use x86_spec::control::{cr0, cr4};
pub use x86_spec::features::Features;

use super::cpuinfo::cpuid;
use super::msr::MemoryType::{
    Uncached, UncachedMinus, WriteBack, WriteCombining, WriteProtected, WriteThrough,
};
use super::msr::{self, efer};
use crate::isolation;

static FEATURES: AtomicU32 = AtomicU32::new(0);

/// The features of this machine; none before the first CPU is set up.
#[inline]
pub fn get() -> Features {
    Features::from_bits_retain(FEATURES.load(Ordering::Relaxed))
}

/// Whether the machine has all the given features.
#[inline]
pub fn has(features: Features) -> bool {
    get().contains(features)
}

/// Asks CPUID.
pub(super) fn detect() {
    FEATURES.store(Features::read(cpuid).bits(), Ordering::Relaxed);
}

/// Linux's page attribute table. Instances of different kernels may share pages, and a page must
/// have one memory type.
const PAT_LAYOUT: u64 = msr::pat([
    WriteBack,
    WriteCombining,
    UncachedMinus,
    Uncached,
    WriteBack,
    WriteProtected,
    UncachedMinus,
    WriteThrough,
]);
const _: () = assert!(PAT_LAYOUT == 0x0407_0506_0007_0106);

/// Writes the control registers as a whole: what a previous owner of the CPU left in them does not
/// survive.
pub(super) fn enable() {
    let features = get();
    let mut cr4_value = cr4::PAE | cr4::OSFXSR | cr4::OSXMMEXCPT;
    // What is cached of the kernel must not outlive the change to a program's tables.
    if !isolation::is_on() {
        cr4_value |= cr4::PGE;
    }
    for (feature, bit) in [
        (Features::MCE, cr4::MCE),
        (Features::UMIP, cr4::UMIP),
        (Features::FSGSBASE, cr4::FSGSBASE),
        (Features::PCID, cr4::PCIDE),
        (Features::XSAVE, cr4::OSXSAVE),
        (Features::SMEP, cr4::SMEP),
        (Features::SMAP, cr4::SMAP),
    ] {
        if features.contains(feature) {
            cr4_value |= bit;
        }
    }
    let mut efer_value = efer::SCE | efer::LME | efer::LMA;
    if features.contains(Features::NX) {
        efer_value |= efer::NXE;
    }
    let cr0_value = cr0::PE | cr0::MP | cr0::ET | cr0::NE | cr0::WP | cr0::AM | cr0::PG;
    // SAFETY: the CPU is in long mode with paging on, and stays so (PE, PG, PAE, LME, LMA are set
    // in all three values); every other bit is either architectural in long mode or reported by
    // CPUID. The tables in use were loaded as a plain address, so PCIDE finds the identifier 0 it
    // needs in CR3. CR4 is written first because CR0.WP must not change under CR4.CET, which the
    // value clears. EFER and PAT exist on every 64-bit CPU.
    unsafe {
        asm!("mov cr4, {}", in(reg) cr4_value, options(nostack, preserves_flags));
        asm!("mov cr0, {}", in(reg) cr0_value, options(nostack, preserves_flags));
        msr::write(msr::EFER, efer_value);
        msr::write(msr::PAT, PAT_LAYOUT);
    }
}
