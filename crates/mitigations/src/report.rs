//! The words in which programs are told, in `/sys/devices/system/cpu/vulnerabilities`: Linux's,
//! as far as what is done is the same.

use core::fmt;

use x86_spec::msr::{arch_capabilities as arch, mcu_opt_ctrl, spec_ctrl};

use crate::{Branches, Buffers, Bugs, Capabilities, Mode, Plan, Processor, Vendor};

/// A weakness that programs are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Vulnerability {
    GatherDataSampling,
    IndirectTargetSelection,
    ItlbMultihit,
    L1tf,
    Mds,
    Meltdown,
    MmioStaleData,
    RegFileDataSampling,
    Retbleed,
    SpecRstackOverflow,
    SpecStoreBypass,
    SpectreV1,
    SpectreV2,
    Srbds,
    Tsa,
    TsxAsyncAbort,
    /// From guests to their monitor.
    Vmscape,
}

impl Vulnerability {
    /// All, by name.
    pub const ALL: [Self; 17] = [
        Self::GatherDataSampling,
        Self::IndirectTargetSelection,
        Self::ItlbMultihit,
        Self::L1tf,
        Self::Mds,
        Self::Meltdown,
        Self::MmioStaleData,
        Self::RegFileDataSampling,
        Self::Retbleed,
        Self::SpecRstackOverflow,
        Self::SpecStoreBypass,
        Self::SpectreV1,
        Self::SpectreV2,
        Self::Srbds,
        Self::Tsa,
        Self::TsxAsyncAbort,
        Self::Vmscape,
    ];

    /// Name of its file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GatherDataSampling => "gather_data_sampling",
            Self::IndirectTargetSelection => "indirect_target_selection",
            Self::ItlbMultihit => "itlb_multihit",
            Self::L1tf => "l1tf",
            Self::Mds => "mds",
            Self::Meltdown => "meltdown",
            Self::MmioStaleData => "mmio_stale_data",
            Self::RegFileDataSampling => "reg_file_data_sampling",
            Self::Retbleed => "retbleed",
            Self::SpecRstackOverflow => "spec_rstack_overflow",
            Self::SpecStoreBypass => "spec_store_bypass",
            Self::SpectreV1 => "spectre_v1",
            Self::SpectreV2 => "spectre_v2",
            Self::Srbds => "srbds",
            Self::Tsa => "tsa",
            Self::TsxAsyncAbort => "tsx_async_abort",
            Self::Vmscape => "vmscape",
        }
    }

    const fn bugs(self) -> Bugs {
        match self {
            Self::GatherDataSampling => Bugs::GDS,
            Self::IndirectTargetSelection => Bugs::ITS,
            Self::ItlbMultihit => Bugs::ITLB_MULTIHIT,
            Self::L1tf => Bugs::L1TF,
            Self::Mds => Bugs::MDS,
            Self::Meltdown => Bugs::MELTDOWN,
            Self::MmioStaleData => Bugs::MMIO_STALE_DATA.union(Bugs::MMIO_UNKNOWN),
            Self::RegFileDataSampling => Bugs::RFDS,
            Self::Retbleed => Bugs::RETBLEED,
            Self::SpecRstackOverflow => Bugs::SRSO,
            Self::SpecStoreBypass => Bugs::SSB,
            Self::SpectreV1 => Bugs::SPECTRE_V1,
            Self::SpectreV2 => Bugs::SPECTRE_V2,
            Self::Srbds => Bugs::SRBDS,
            Self::Tsa => Bugs::TSA,
            Self::TsxAsyncAbort => Bugs::TAA,
            // There are no guests.
            Self::Vmscape => Bugs::empty(),
        }
    }
}

/// A processor, its weaknesses, and what is done: all that programs are told.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The processor.
    pub processor: Processor,
    /// Weaknesses of it.
    pub bugs: Bugs,
    /// The means applied.
    pub plan: Plan,
}

impl Report {
    /// The report on a processor with a kernel that was started so.
    #[must_use]
    pub fn new(processor: Processor, mode: Mode) -> Self {
        let bugs = Bugs::of(&processor);
        Self {
            processor,
            bugs,
            plan: Plan::new(&processor, bugs, mode),
        }
    }

    /// The line on a weakness, without its end. `siblings`: some of this kernel's CPUs are threads
    /// of one core.
    #[must_use]
    pub fn line(&self, of: Vulnerability, siblings: bool) -> impl fmt::Display {
        Line {
            report: *self,
            of,
            siblings,
        }
    }
}

struct Line {
    report: Report,
    of: Vulnerability,
    siblings: bool,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            processor,
            bugs,
            plan,
        } = &self.report;
        if !bugs.intersects(self.of.bugs()) {
            return f.write_str("Not affected");
        }
        match self.of {
            Vulnerability::Meltdown if plan.isolate => f.write_str("Mitigation: PTI"),
            Vulnerability::Meltdown
            | Vulnerability::SpecRstackOverflow
            | Vulnerability::IndirectTargetSelection
            | Vulnerability::Vmscape => f.write_str("Vulnerable"),
            Vulnerability::SpectreV1 => {
                f.write_str("Mitigation: usercopy/swapgs barriers and __user pointer sanitization")
            }
            Vulnerability::SpectreV2 => self.spectre_v2(f),
            Vulnerability::SpecStoreBypass => f.write_str(if plan.ssbd {
                "Mitigation: Speculative Store Bypass disabled via prctl"
            } else {
                "Vulnerable"
            }),
            // An entry that is not present is 0.
            Vulnerability::L1tf => f.write_str("Mitigation: PTE Inversion"),
            Vulnerability::Mds => self.buffers(f, plan.mds),
            Vulnerability::TsxAsyncAbort if plan.tsx_off => f.write_str("Mitigation: TSX disabled"),
            Vulnerability::TsxAsyncAbort => self.buffers(f, plan.taa),
            Vulnerability::MmioStaleData if bugs.contains(Bugs::MMIO_STALE_DATA) => {
                self.buffers(f, plan.mmio)
            }
            Vulnerability::MmioStaleData => f.write_str("Unknown: No mitigations"),
            Vulnerability::RegFileDataSampling => f.write_str(match plan.rfds {
                Buffers::Cleared => "Mitigation: Clear Register File",
                Buffers::Attempted => "Vulnerable: No microcode",
                _ => "Vulnerable",
            }),
            Vulnerability::Tsa => f.write_str(match plan.tsa {
                Buffers::Cleared => "Mitigation: Clear CPU buffers",
                Buffers::Attempted => "Vulnerable: No microcode",
                _ => "Vulnerable",
            }),
            Vulnerability::Retbleed => f.write_str(match (processor.vendor, plan.branches) {
                (Vendor::Intel, Branches::Enhanced) => "Mitigation: Enhanced IBRS",
                (Vendor::Intel, Branches::AtEntry) => "Mitigation: IBRS",
                _ => "Vulnerable",
            }),
            Vulnerability::ItlbMultihit => f.write_str(if processor.has(Capabilities::VMX) {
                "KVM: Mitigation: VMX disabled"
            } else {
                "KVM: Mitigation: VMX unsupported"
            }),
            Vulnerability::Srbds => f.write_str(self.by_microcode(
                processor.has(Capabilities::SRBDS_CONTROL),
                mcu_opt_ctrl::RNGDS_MITG_DIS,
            )),
            Vulnerability::GatherDataSampling => f.write_str(
                self.by_microcode(processor.says(arch::GDS_CTRL), mcu_opt_ctrl::GDS_MITG_DIS),
            ),
        }
    }
}

impl Line {
    fn spectre_v2(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            processor,
            bugs,
            plan,
        } = &self.report;
        f.write_str(match plan.branches {
            Branches::Enhanced => "Mitigation: Enhanced / Automatic IBRS",
            Branches::AlwaysOn | Branches::AtEntry => "Mitigation: IBRS",
            Branches::Vulnerable | Branches::NotAffected => "Vulnerable",
        })?;
        let by_thread = |f: &mut fmt::Formatter<'_>, name: &str| {
            let state = if plan.indirect_branch {
                "conditional"
            } else {
                "disabled"
            };
            write!(f, "; {name}: {state}")
        };
        if processor.has(Capabilities::IBPB) {
            by_thread(f, "IBPB")?;
        }
        // Intel's enhanced IBRS is STIBP too.
        if plan.branches != Branches::Enhanced || plan.auto_ibrs {
            if plan.keep_apart {
                f.write_str("; STIBP: forced")?;
            } else if plan.stibp {
                by_thread(f, "STIBP")?;
            } else {
                f.write_str("; STIBP: disabled")?;
            }
        }
        if plan.fill_return_stack {
            f.write_str("; RSB filling")?;
        }
        // There are no guests to return from.
        f.write_str("; PBRSB-eIBRS: Not affected")?;
        f.write_str(if !bugs.contains(Bugs::BHI) {
            "; BHI: Not affected"
        } else if plan.kernel_spec_ctrl & spec_ctrl::BHI_DIS_S != 0 {
            "; BHI: BHI_DIS_S"
        } else {
            "; BHI: Vulnerable"
        })
    }

    fn buffers(&self, f: &mut fmt::Formatter<'_>, done: Buffers) -> fmt::Result {
        f.write_str(match done {
            Buffers::Cleared => "Mitigation: Clear CPU buffers",
            Buffers::Attempted => "Vulnerable: Clear CPU buffers attempted, no microcode",
            Buffers::Vulnerable | Buffers::NotAffected => "Vulnerable",
        })?;
        let threads = if self.report.processor.has(Capabilities::HYPERVISOR) {
            "Host state unknown"
        } else if !self.siblings {
            "disabled"
        } else if self.report.bugs.contains(Bugs::MSBDS_ONLY) && done == Buffers::Cleared {
            "mitigated"
        } else {
            "vulnerable"
        };
        write!(f, "; SMT {threads}")
    }

    /// Words for what microcode does by itself, unless it is told not to. Linux never asks it under
    /// a hypervisor.
    fn by_microcode(&self, is_there: bool, switched_off: u64) -> &'static str {
        if self.report.processor.has(Capabilities::HYPERVISOR) {
            "Unknown: Dependent on hypervisor status"
        } else if !is_there {
            "Vulnerable: No microcode"
        } else if self.report.processor.microcode.options & switched_off != 0 {
            "Vulnerable"
        } else {
            "Mitigation: Microcode"
        }
    }
}
