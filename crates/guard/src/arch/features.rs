//! What the processor can do. Decided once, on the first CPU; an instance's CPUs are alike.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use bitflags::bitflags;
use core::sync::atomic::{AtomicU32, Ordering};

use super::msr;

bitflags! {
    /// Optional processor features the guard uses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u32 {
        const NX = 1 << 0;
        const SMEP = 1 << 1;
        const SMAP = 1 << 2;
        const UMIP = 1 << 3;
        const FSGSBASE = 1 << 4;
        const XSAVE = 1 << 5;
        const XSAVEOPT = 1 << 6;
        const TSC_DEADLINE = 1 << 7;
        const RDRAND = 1 << 8;
        const HUGE_1G = 1 << 9;
        const MCE = 1 << 10;
        const HYPERVISOR = 1 << 11;
        const MWAIT = 1 << 12;
        const PCID = 1 << 13;
        const RDPID = 1 << 14;
        const RDTSCP = 1 << 15;
    }
}

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
    let mut found = Features::empty();
    let mut note = |bit: bool, feature: Features| found.set(feature, bit);
    let max = __cpuid(0).eax;
    let max_extended = __cpuid(0x8000_0000).eax;

    let one = __cpuid(1);
    note(one.ecx & 1 << 3 != 0, Features::MWAIT);
    note(one.ecx & 1 << 17 != 0, Features::PCID);
    note(one.ecx & 1 << 24 != 0, Features::TSC_DEADLINE);
    note(one.ecx & 1 << 26 != 0, Features::XSAVE);
    note(one.ecx & 1 << 30 != 0, Features::RDRAND);
    note(one.ecx & 1 << 31 != 0, Features::HYPERVISOR);
    note(one.edx & 1 << 7 != 0, Features::MCE);
    if max >= 7 {
        let seven = __cpuid_count(7, 0);
        note(seven.ebx & 1 << 0 != 0, Features::FSGSBASE);
        note(seven.ebx & 1 << 7 != 0, Features::SMEP);
        note(seven.ebx & 1 << 20 != 0, Features::SMAP);
        note(seven.ecx & 1 << 2 != 0, Features::UMIP);
        note(seven.ecx & 1 << 22 != 0, Features::RDPID);
    }
    if one.ecx & 1 << 26 != 0 && max >= 0xd {
        note(__cpuid_count(0xd, 1).eax & 1 != 0, Features::XSAVEOPT);
    }
    if max_extended >= 0x8000_0001 {
        let extended = __cpuid(0x8000_0001);
        note(extended.edx & 1 << 20 != 0, Features::NX);
        note(extended.edx & 1 << 26 != 0, Features::HUGE_1G);
        note(extended.edx & 1 << 27 != 0, Features::RDTSCP);
    }
    FEATURES.store(found.bits(), Ordering::Relaxed);
}

const CR0_PE: u64 = 1 << 0;
const CR0_MP: u64 = 1 << 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_AM: u64 = 1 << 18;
const CR0_PG: u64 = 1 << 31;

const CR4_PAE: u64 = 1 << 5;
const CR4_MCE: u64 = 1 << 6;
const CR4_PGE: u64 = 1 << 7;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const CR4_UMIP: u64 = 1 << 11;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_PCIDE: u64 = 1 << 17;
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

const EFER_SCE: u64 = 1 << 0;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

/// Linux's page attribute table. Instances of different kernels may share pages, and a page must have one memory type:
/// WB, WC, UC-, UC, WB, WP, UC-, WT.
const PAT_LAYOUT: u64 = 0x0407_0506_0007_0106;

/// Writes the control registers as a whole: what a previous owner of the CPU left in them does not survive.
pub(super) fn enable() {
    let features = get();
    let mut cr4 = CR4_PAE | CR4_PGE | CR4_OSFXSR | CR4_OSXMMEXCPT;
    for (feature, bit) in [
        (Features::MCE, CR4_MCE),
        (Features::UMIP, CR4_UMIP),
        (Features::FSGSBASE, CR4_FSGSBASE),
        (Features::PCID, CR4_PCIDE),
        (Features::XSAVE, CR4_OSXSAVE),
        (Features::SMEP, CR4_SMEP),
        (Features::SMAP, CR4_SMAP),
    ] {
        if features.contains(feature) {
            cr4 |= bit;
        }
    }
    let mut efer = EFER_SCE | EFER_LME | EFER_LMA;
    if features.contains(Features::NX) {
        efer |= EFER_NXE;
    }
    let cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_WP | CR0_AM | CR0_PG;
    // SAFETY: the CPU is in long mode with paging on, and stays so (PE, PG, PAE, LME, LMA are set in all three values);
    // every other bit is either architectural in long mode or reported by CPUID. The
    // tables in use were loaded as a plain address, so PCIDE finds the identifier 0 it needs in CR3. CR4 is written first because CR0.WP must
    // not change under CR4.CET, which the value clears. EFER and PAT exist on every 64-bit CPU.
    unsafe {
        asm!("mov cr4, {}", in(reg) cr4, options(nostack, preserves_flags));
        asm!("mov cr0, {}", in(reg) cr0, options(nostack, preserves_flags));
        msr::write(msr::EFER, efer);
        msr::write(msr::PAT, PAT_LAYOUT);
    }
}
