//! A processor's identity by CPUID, as `/proc/cpuinfo` shows it (SDM vol. 2A, CPUID; APM vol. 3,
//! appendix E).

use crate::CpuidRegisters;

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
    /// The identity of the processor whose leaves and their parts `cpuid` reads.
    #[must_use]
    pub fn read(cpuid: impl Fn(u32, u32) -> CpuidRegisters) -> Self {
        let [max, vendor_start, vendor_end, vendor_middle] = cpuid(0, 0);
        let [version, _, ecx, edx] = cpuid(1, 0);
        let [max_extended, ..] = cpuid(0x8000_0000, 0);
        let mut vendor = [0; 12];
        for (to, word) in vendor
            .chunks_exact_mut(4)
            .zip([vendor_start, vendor_middle, vendor_end])
        {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let mut name = [0; 48];
        if max_extended >= 0x8000_0004 {
            for (leaf, to) in (0x8000_0002..).zip(name.chunks_exact_mut(16)) {
                for (to, word) in to.chunks_exact_mut(4).zip(cpuid(leaf, 0)) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        let mut words = [0; WORDS];
        words[LEAF1_EDX] = edx;
        words[LEAF1_ECX] = ecx;
        if max_extended >= 0x8000_0001 {
            [_, _, words[EXT1_ECX], words[EXT1_EDX]] = cpuid(0x8000_0001, 0);
        }
        if max >= 7 {
            [_, words[LEAF7_EBX], words[LEAF7_ECX], _] = cpuid(7, 0);
        }
        if max >= 0xd {
            [words[LEAFD_EAX], ..] = cpuid(0xd, 1);
        }
        let (family, model, stepping) = signature(version);
        Self {
            vendor,
            family,
            model,
            stepping,
            name,
            words,
        }
    }

    /// Manufacturer, as Linux prints it (`GenuineIntel`).
    #[must_use]
    pub fn vendor(&self) -> &str {
        core::str::from_utf8(&self.vendor).unwrap_or("unknown")
    }

    /// Model name; empty if the processor has none.
    #[must_use]
    pub fn name(&self) -> &str {
        let end = self
            .name
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..end]).unwrap_or("").trim()
    }

    /// CPUID leaf 1's EDX, which programs get as `AT_HWCAP`.
    #[must_use]
    pub fn hwcap(&self) -> u32 {
        self.words[LEAF1_EDX]
    }

    /// Names of its features, as in the `flags` line of `/proc/cpuinfo`.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + '_ {
        FLAGS
            .iter()
            .filter(|(word, bit, _)| self.words[*word] & 1 << bit != 0)
            .map(|(.., name)| *name)
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

/// Family, model and stepping of leaf 1's EAX (SDM vol. 2A, figure 3-6), as Linux adds them up.
const fn signature(version: u32) -> (u32, u32, u32) {
    let base_family = version >> 8 & 0xf;
    let base_model = version >> 4 & 0xf;
    let family = if base_family == 0xf {
        base_family + (version >> 20 & 0xff)
    } else {
        base_family
    };
    let model = if base_family >= 6 {
        base_model + (version >> 12 & 0xf0)
    } else {
        base_model
    };
    (family, model, version & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaf 1's EAX of an Intel Core i7-8700K (family 6, model 158), an AMD EPYC 7551 (family 23,
    /// model 1) and a Pentium 4.
    #[test]
    fn signatures_of_real_processors() {
        assert_eq!(signature(0x0009_06ea), (6, 158, 10));
        assert_eq!(signature(0x0080_0f12), (23, 1, 2));
        assert_eq!(signature(0x0000_0f29), (15, 2, 9));
        assert_eq!(signature(0x0000_0543), (5, 4, 3));
    }

    #[test]
    fn an_identity_is_put_together() {
        let text = |four: &[u8; 4]| u32::from_le_bytes(*four);
        let info = CpuInfo::read(|leaf, part| match (leaf, part) {
            (0, _) => [0xd, text(b"Genu"), text(b"ntel"), text(b"ineI")],
            (1, _) => [0x0009_06ea, 0, 1 << 26, 1 << 4],
            (7, 0) => [0, 1 << 7, 1 << 22, 0],
            (0xd, 1) => [1, 0, 0, 0],
            (0x8000_0000, _) => [0x8000_0004, 0, 0, 0],
            (0x8000_0001, _) => [0, 0, 1, 1 << 29],
            (0x8000_0002, _) => [text(b"  Te"), text(b"st p"), text(b"roce"), text(b"ssor")],
            _ => [0; 4],
        });
        assert_eq!(
            (info.vendor(), info.name()),
            ("GenuineIntel", "Test processor")
        );
        assert_eq!((info.family, info.model, info.stepping), (6, 158, 10));
        assert_eq!(info.hwcap(), 1 << 4);
        assert!(
            info.flags()
                .eq(["tsc", "lm", "xsave", "lahf_lm", "smep", "xsaveopt", "rdpid"])
        );
    }
}
