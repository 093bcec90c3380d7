//! What the processor calls itself, for `/proc/cpuinfo`.

use core::arch::x86_64::{__cpuid, __cpuid_count};

use topology::{Levels, Topology};

use crate::role;

/// Identity of the processor.
#[derive(Clone, Debug)]
pub struct CpuInfo {
    vendor: [u8; 12],
    /// Family, with the extended family added.
    pub family: u32,
    /// Model, with the extended model added.
    pub model: u32,
    /// Stepping.
    pub stepping: u32,
    name: [u8; 48],
    words: [u32; WORDS],
}

impl CpuInfo {
    /// Manufacturer, as Linux prints it (`GenuineIntel`).
    #[must_use]
    pub fn vendor(&self) -> &str {
        core::str::from_utf8(&self.vendor).unwrap_or("unknown")
    }

    /// Model name; empty if the processor has none.
    #[must_use]
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..end]).unwrap_or("").trim()
    }

    /// CPUID leaf 1's EDX, which programs get as `AT_HWCAP`.
    #[must_use]
    pub fn hwcap(&self) -> u32 {
        self.words[LEAF1_EDX]
    }

    /// Names of its features, as in the `flags` line of `/proc/cpuinfo`.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + '_ {
        FLAGS.iter().filter(|(word, bit, _)| self.words[*word] & 1 << bit != 0).map(|(.., name)| *name)
    }
}

const LEAF1_EDX: usize = 0;
const LEAF1_ECX: usize = 1;
const EXT1_EDX: usize = 2;
const EXT1_ECX: usize = 3;
const LEAF7_EBX: usize = 4;
const LEAF7_ECX: usize = 5;
const LEAFD_EAX: usize = 6;
const WORDS: usize = 7;

/// Word, bit, and the name Linux gives it.
const FLAGS: &[(usize, u32, &str)] = &[
    (LEAF1_EDX, 0, "fpu"),
    (LEAF1_EDX, 3, "pse"),
    (LEAF1_EDX, 4, "tsc"),
    (LEAF1_EDX, 5, "msr"),
    (LEAF1_EDX, 6, "pae"),
    (LEAF1_EDX, 7, "mce"),
    (LEAF1_EDX, 8, "cx8"),
    (LEAF1_EDX, 9, "apic"),
    (LEAF1_EDX, 13, "pge"),
    (LEAF1_EDX, 15, "cmov"),
    (LEAF1_EDX, 16, "pat"),
    (LEAF1_EDX, 19, "clflush"),
    (LEAF1_EDX, 23, "mmx"),
    (LEAF1_EDX, 24, "fxsr"),
    (LEAF1_EDX, 25, "sse"),
    (LEAF1_EDX, 26, "sse2"),
    (EXT1_EDX, 11, "syscall"),
    (EXT1_EDX, 20, "nx"),
    (EXT1_EDX, 26, "pdpe1gb"),
    (EXT1_EDX, 27, "rdtscp"),
    (EXT1_EDX, 29, "lm"),
    (LEAF1_ECX, 0, "pni"),
    (LEAF1_ECX, 1, "pclmulqdq"),
    (LEAF1_ECX, 9, "ssse3"),
    (LEAF1_ECX, 12, "fma"),
    (LEAF1_ECX, 13, "cx16"),
    (LEAF1_ECX, 17, "pcid"),
    (LEAF1_ECX, 19, "sse4_1"),
    (LEAF1_ECX, 20, "sse4_2"),
    (LEAF1_ECX, 21, "x2apic"),
    (LEAF1_ECX, 22, "movbe"),
    (LEAF1_ECX, 23, "popcnt"),
    (LEAF1_ECX, 24, "tsc_deadline_timer"),
    (LEAF1_ECX, 25, "aes"),
    (LEAF1_ECX, 26, "xsave"),
    (LEAF1_ECX, 28, "avx"),
    (LEAF1_ECX, 29, "f16c"),
    (LEAF1_ECX, 30, "rdrand"),
    (LEAF1_ECX, 31, "hypervisor"),
    (EXT1_ECX, 0, "lahf_lm"),
    (EXT1_ECX, 2, "svm"),
    (EXT1_ECX, 5, "abm"),
    (EXT1_ECX, 6, "sse4a"),
    (LEAF7_EBX, 0, "fsgsbase"),
    (LEAF7_EBX, 3, "bmi1"),
    (LEAF7_EBX, 5, "avx2"),
    (LEAF7_EBX, 7, "smep"),
    (LEAF7_EBX, 8, "bmi2"),
    (LEAF7_EBX, 9, "erms"),
    (LEAF7_EBX, 16, "avx512f"),
    (LEAF7_EBX, 18, "rdseed"),
    (LEAF7_EBX, 19, "adx"),
    (LEAF7_EBX, 20, "smap"),
    (LEAF7_EBX, 23, "clflushopt"),
    (LEAF7_EBX, 29, "sha_ni"),
    (LEAFD_EAX, 0, "xsaveopt"),
    (LEAF7_ECX, 2, "umip"),
    (LEAF7_ECX, 22, "rdpid"),
];

/// Asks this CPU who it is.
#[must_use]
pub fn brand() -> CpuInfo {
    let zero = __cpuid(0);
    let one = __cpuid(1);
    let max_extended = __cpuid(0x8000_0000).eax;
    let mut vendor = [0; 12];
    for (to, word) in vendor.chunks_exact_mut(4).zip([zero.ebx, zero.edx, zero.ecx]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let mut name = [0; 48];
    if max_extended >= 0x8000_0004 {
        for (leaf, to) in (0x8000_0002..).zip(name.chunks_exact_mut(16)) {
            let part = __cpuid(leaf);
            for (to, word) in to.chunks_exact_mut(4).zip([part.eax, part.ebx, part.ecx, part.edx]) {
                to.copy_from_slice(&word.to_le_bytes());
            }
        }
    }
    let mut words = [0; WORDS];
    words[LEAF1_EDX] = one.edx;
    words[LEAF1_ECX] = one.ecx;
    if max_extended >= 0x8000_0001 {
        let extended = __cpuid(0x8000_0001);
        words[EXT1_EDX] = extended.edx;
        words[EXT1_ECX] = extended.ecx;
    }
    if zero.eax >= 7 {
        let seven = __cpuid_count(7, 0);
        words[LEAF7_EBX] = seven.ebx;
        words[LEAF7_ECX] = seven.ecx;
    }
    if zero.eax >= 0xd {
        words[LEAFD_EAX] = __cpuid_count(0xd, 1).eax;
    }
    let base_family = one.eax >> 8 & 0xf;
    let base_model = one.eax >> 4 & 0xf;
    let family = if base_family == 0xf { base_family + (one.eax >> 20 & 0xff) } else { base_family };
    let model = if base_family >= 6 { base_model + (one.eax >> 12 & 0xf0) } else { base_model };
    CpuInfo { vendor, family, model, stepping: one.eax & 0xf, name, words }
}

/// Where the CPUs of this instance are in the machine, as this CPU sees it.
#[must_use]
pub fn topology() -> Topology {
    let levels = Levels::read(|leaf, part| {
        let answer = __cpuid_count(leaf, part);
        [answer.eax, answer.ebx, answer.ecx, answer.edx]
    });
    Topology::new(levels, role::descriptor().cpus().iter().map(|cpu| cpu.apic_id))
}
