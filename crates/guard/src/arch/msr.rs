//! Model-specific registers and the few privileged instructions that need no file of their own.

use core::arch::asm;

use x86_spec::debug::DR6_CLEAR;
pub use x86_spec::msr::*;

/// Reads a model-specific register.
///
/// # Safety
/// The register exists on this CPU, and reading it has no effect but the read.
pub unsafe fn read(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller vouches for the register.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nostack, preserves_flags));
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The register exists on this CPU, accepts the value, and the effect breaks no invariant of the
/// kernel.
pub unsafe fn write(msr: u32, value: u64) {
    // SAFETY: the caller vouches for register and value.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
    }
}

/// The address of the last page fault.
pub fn cr2() -> usize {
    let value;
    // SAFETY: reading CR2 has no effect.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nostack, nomem, preserves_flags)) };
    value
}

/// Takes the cause of the last debug exception (DR6): reads it and clears the register.
pub fn take_dr6() -> u64 {
    let value: u64;
    // SAFETY: the register only tells; the value written leaves its reserved bits as they are.
    unsafe {
        asm!("mov {0}, dr6", "mov dr6, {1}", out(reg) value, in(reg) u64::from(DR6_CLEAR), options(nostack, nomem));
    };
    value ^ u64::from(DR6_CLEAR)
}

/// The active page-table root and its flags.
pub fn cr3() -> u64 {
    let value;
    // SAFETY: reading CR3 has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nostack, nomem, preserves_flags)) };
    value
}

/// Halts with interrupts off, for ever; only an NMI runs in between.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: stops this CPU and touches nothing.
        unsafe { asm!("cli", "hlt", options(nostack, nomem)) };
    }
}
