//! Features of a processor, by CPUID (SDM vol. 2A, CPUID; APM vol. 3, appendix E).

use bitflags::bitflags;

use crate::CpuidRegisters;

/// First of the extended leaves, which tells the last one.
const EXTENDED: u32 = 0x8000_0000;

bitflags! {
    /// Optional processor features that the kernel uses; the bits are our own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u32 {
        /// Pages that are not executed.
        const NX = 1 << 0;
        /// Ring 0 can be kept from executing user pages.
        const SMEP = 1 << 1;
        /// Ring 0 can be kept from touching user pages.
        const SMAP = 1 << 2;
        /// Instructions that tell where the descriptor tables are can be kept from ring 3.
        const UMIP = 1 << 3;
        /// Ring 3 can read and write the bases of FS and GS.
        const FSGSBASE = 1 << 4;
        /// XSAVE, XRSTOR and XCR0.
        const XSAVE = 1 << 5;
        /// XSAVEOPT, which leaves out what is unchanged.
        const XSAVEOPT = 1 << 6;
        /// The local APIC's timer has a TSC-deadline mode.
        const TSC_DEADLINE = 1 << 7;
        /// RDRAND.
        const RDRAND = 1 << 8;
        /// Pages of 1 GiB.
        const HUGE_1G = 1 << 9;
        /// Machine-check exceptions.
        const MCE = 1 << 10;
        /// The processor is a virtual one.
        const HYPERVISOR = 1 << 11;
        /// MONITOR and MWAIT.
        const MWAIT = 1 << 12;
        /// Process-context identifiers.
        const PCID = 1 << 13;
        /// RDPID.
        const RDPID = 1 << 14;
        /// RDTSCP.
        const RDTSCP = 1 << 15;
    }
}

impl Features {
    /// The features of the processor whose leaves and their parts `cpuid` reads.
    #[must_use]
    pub fn read(cpuid: impl Fn(u32, u32) -> CpuidRegisters) -> Self {
        let mut found = Features::empty();
        let mut note = |bit: bool, feature: Features| found.set(feature, bit);
        let [max, ..] = cpuid(0, 0);
        let [max_extended, ..] = cpuid(EXTENDED, 0);

        let [_, _, ecx, edx] = cpuid(1, 0);
        note(ecx & 1 << 3 != 0, Features::MWAIT);
        note(ecx & 1 << 17 != 0, Features::PCID);
        note(ecx & 1 << 24 != 0, Features::TSC_DEADLINE);
        note(ecx & 1 << 26 != 0, Features::XSAVE);
        note(ecx & 1 << 30 != 0, Features::RDRAND);
        note(ecx & 1 << 31 != 0, Features::HYPERVISOR);
        note(edx & 1 << 7 != 0, Features::MCE);
        if max >= 7 {
            let [_, ebx, ecx, _] = cpuid(7, 0);
            note(ebx & 1 << 0 != 0, Features::FSGSBASE);
            note(ebx & 1 << 7 != 0, Features::SMEP);
            note(ebx & 1 << 20 != 0, Features::SMAP);
            note(ecx & 1 << 2 != 0, Features::UMIP);
            note(ecx & 1 << 22 != 0, Features::RDPID);
        }
        if ecx & 1 << 26 != 0 && max >= 0xd {
            note(cpuid(0xd, 1)[0] & 1 != 0, Features::XSAVEOPT);
        }
        if max_extended > EXTENDED {
            let [.., edx] = cpuid(EXTENDED + 1, 0);
            note(edx & 1 << 20 != 0, Features::NX);
            note(edx & 1 << 26 != 0, Features::HUGE_1G);
            note(edx & 1 << 27 != 0, Features::RDTSCP);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 2A, tables 3-10 and 3-11, and CPUID leaves 7, 0xD and 0x8000_0001.
    #[test]
    fn each_bit_is_one_feature() {
        for (leaf, part, register, bit, feature) in [
            (1, 0, 2, 3, Features::MWAIT),
            (1, 0, 2, 17, Features::PCID),
            (1, 0, 2, 24, Features::TSC_DEADLINE),
            (1, 0, 2, 26, Features::XSAVE),
            (1, 0, 2, 30, Features::RDRAND),
            (1, 0, 2, 31, Features::HYPERVISOR),
            (1, 0, 3, 7, Features::MCE),
            (7, 0, 1, 0, Features::FSGSBASE),
            (7, 0, 1, 7, Features::SMEP),
            (7, 0, 1, 20, Features::SMAP),
            (7, 0, 2, 2, Features::UMIP),
            (7, 0, 2, 22, Features::RDPID),
            (0x8000_0001, 0, 3, 20, Features::NX),
            (0x8000_0001, 0, 3, 26, Features::HUGE_1G),
            (0x8000_0001, 0, 3, 27, Features::RDTSCP),
        ] {
            let found = Features::read(|asked, asked_part| match asked {
                0 => [0xd, 0, 0, 0],
                EXTENDED => [0x8000_0001, 0, 0, 0],
                _ if (asked, asked_part) == (leaf, part) => {
                    let mut registers = [0; 4];
                    registers[register] = 1 << bit;
                    registers
                }
                _ => [0; 4],
            });
            assert_eq!(found, feature);
        }
    }

    #[test]
    fn leaves_that_are_not_there_say_nothing() {
        let old = |leaf, _| {
            if leaf == 0 {
                [1, 0, 0, 0]
            } else {
                [0, u32::MAX, 0, 0]
            }
        };
        assert_eq!(Features::read(old), Features::empty());
    }

    #[test]
    fn xsaveopt_needs_xsave() {
        let read = |xsave: u32| {
            Features::read(|leaf, part| match (leaf, part) {
                (0, _) => [0xd, 0, 0, 0],
                (1, _) => [0, 0, xsave << 26, 0],
                (0xd, 1) => [1, 0, 0, 0],
                _ => [0; 4],
            })
        };
        assert_eq!(read(0), Features::empty());
        assert_eq!(read(1), Features::XSAVE | Features::XSAVEOPT);
    }
}
