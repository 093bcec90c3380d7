//! Identification and features of the processor, by CPUID, for `/proc/cpuinfo`.

use core::arch::x86_64::__cpuid_count;

use topology::{Levels, Topology};
use x86_spec::CpuidRegisters;
pub use x86_spec::identity::CpuInfo;

use crate::cpu_table;

/// The registers of a leaf and its part.
pub(crate) fn cpuid(leaf: u32, part: u32) -> CpuidRegisters {
    let answer = __cpuid_count(leaf, part);
    [answer.eax, answer.ebx, answer.ecx, answer.edx]
}

/// Identity of this CPU.
#[must_use]
pub fn brand() -> CpuInfo {
    CpuInfo::read(cpuid)
}

/// Meaning of the machine's APIC ids.
pub(crate) fn levels() -> Levels {
    Levels::read(cpuid)
}

/// Topology of this instance's CPUs, as this CPU sees it.
#[must_use]
pub fn topology() -> Topology {
    Topology::new(levels(), cpu_table::apic_ids())
}
