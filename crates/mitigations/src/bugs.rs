//! Weaknesses of processors by vendor, model and what the processor says itself.
//!
//! Sources: Intel, "Affected Processors: Transient Execution Attacks" (the table by family and
//! model) and SDM vol. 4 (`IA32_ARCH_CAPABILITIES`); AMD's security bulletins AMD-SB-1037,
//! -7005, -7008, -7029 and APM vol. 3, appendix E. Which models Linux takes for affected is the
//! same, so that programs are told the same by both.

use bitflags::bitflags;
use x86_spec::msr::arch_capabilities as arch;

use crate::{Capabilities, Processor, Vendor};

bitflags! {
    /// Weaknesses; the bits are our own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Bugs: u32 {
        /// Reads of kernel memory from ring 3 (CVE-2017-5754).
        const MELTDOWN = 1 << 0;
        /// Bounds are passed by (CVE-2017-5753).
        const SPECTRE_V1 = 1 << 1;
        /// SWAPGS is passed by (CVE-2019-1125).
        const SWAPGS = 1 << 2;
        /// Indirect branches are steered (CVE-2017-5715).
        const SPECTRE_V2 = 1 << 3;
        /// Loads overtake stores (CVE-2018-3639).
        const SSB = 1 << 4;
        /// Reads of the first cache through entries of page tables that are not present
        /// (CVE-2018-3620).
        const L1TF = 1 << 5;
        /// Reads of internal buffers (CVE-2018-12126 and others).
        const MDS = 1 << 6;
        /// Of those only the store buffer.
        const MSBDS_ONLY = 1 << 7;
        /// The same in aborted transactions (CVE-2019-11135).
        const TAA = 1 << 8;
        /// Page sizes that change stop the machine (CVE-2018-12207).
        const ITLB_MULTIHIT = 1 << 9;
        /// Reads of others' random numbers (CVE-2020-0543).
        const SRBDS = 1 << 10;
        /// Reads of what device registers left in buffers (CVE-2022-21123 and others).
        const MMIO_STALE_DATA = 1 << 11;
        /// The same, of processors of which nobody says whether.
        const MMIO_UNKNOWN = 1 << 12;
        /// Returns are steered (CVE-2022-29900, CVE-2022-29901).
        const RETBLEED = 1 << 13;
        /// The same by return addresses that are trained (CVE-2023-20569).
        const SRSO = 1 << 14;
        /// Reads of vector registers by GATHER (CVE-2022-40982).
        const GDS = 1 << 15;
        /// Reads of registers (CVE-2023-28746).
        const RFDS = 1 << 16;
        /// Indirect branches are steered by the history of branches (CVE-2022-0001).
        const BHI = 1 << 17;
        /// A return after a guest is steered, in spite of IBRS (CVE-2022-26373).
        const EIBRS_PBRSB = 1 << 18;
        /// Indirect branches in the lower half of a cache line are steered (CVE-2024-28956).
        const ITS = 1 << 19;
        /// Reads of what schedulers forward (CVE-2024-36350, CVE-2024-36357).
        const TSA = 1 << 20;
    }
}

/// Weaknesses that all processors have which speculate, unless they are listed.
const COMMON: Bugs = Bugs::MELTDOWN
    .union(Bugs::SPECTRE_V1)
    .union(Bugs::SWAPGS)
    .union(Bugs::SPECTRE_V2)
    .union(Bugs::SSB)
    .union(Bugs::L1TF)
    .union(Bugs::MDS)
    .union(Bugs::ITLB_MULTIHIT)
    .union(Bugs::MMIO_UNKNOWN)
    .union(Bugs::EIBRS_PBRSB)
    .union(Bugs::BHI);

/// Weaknesses that no processor of AMD's has.
const NOT_AMD: Bugs = Bugs::MELTDOWN
    .union(Bugs::SWAPGS)
    .union(Bugs::L1TF)
    .union(Bugs::MDS)
    .union(Bugs::ITLB_MULTIHIT)
    .union(Bugs::MMIO_UNKNOWN)
    .union(Bugs::EIBRS_PBRSB)
    .union(Bugs::BHI);

/// Weaknesses that Goldmont does not have; Silvermont and Knights Landing have some more.
const NOT_GOLDMONT: Bugs = Bugs::MDS
    .union(Bugs::L1TF)
    .union(Bugs::SWAPGS)
    .union(Bugs::ITLB_MULTIHIT)
    .union(Bugs::MMIO_UNKNOWN);
const NOT_SILVERMONT: Bugs = Bugs::SSB
    .union(Bugs::L1TF)
    .union(Bugs::SWAPGS)
    .union(Bugs::ITLB_MULTIHIT);

/// Of the common weaknesses, those that this model does not have.
fn spared(processor: &Processor) -> Bugs {
    let (family, model, _) = processor.version;
    match (processor.vendor, family, model) {
        (Vendor::Amd, 0x0f..=0x12, _) => NOT_AMD.difference(Bugs::EIBRS_PBRSB).union(Bugs::SSB),
        (Vendor::Amd | Vendor::Hygon, ..) => NOT_AMD,
        (Vendor::Zhaoxin, 7, _) => Bugs::SPECTRE_V2
            .union(Bugs::SWAPGS)
            .union(Bugs::MMIO_UNKNOWN)
            .union(Bugs::BHI),
        // Tiger Lake, Alder Lake.
        (Vendor::Intel, 6, 0x8c | 0x8d | 0x97 | 0x9a) => Bugs::MMIO_UNKNOWN,
        // Bonnell, Saltwell: in order, without speculation.
        (Vendor::Intel, 6, 0x1c | 0x26 | 0x27 | 0x35 | 0x36) => COMMON,
        // Silvermont, Airmont, Knights Landing and Mill.
        (Vendor::Intel, 6, 0x37 | 0x4a | 0x4c | 0x4d | 0x57 | 0x85) => NOT_SILVERMONT,
        (Vendor::Intel, 6, 0x5a | 0x75) => NOT_SILVERMONT.difference(Bugs::SSB),
        // Goldmont, Goldmont Plus.
        (Vendor::Intel, 6, 0x5c | 0x5f) => NOT_GOLDMONT,
        (Vendor::Intel, 6, 0x7a) => NOT_GOLDMONT.union(Bugs::EIBRS_PBRSB),
        // Tremont.
        (Vendor::Intel, 6, 0x96 | 0x9c) => Bugs::EIBRS_PBRSB,
        (Vendor::Intel, 6, 0x86) => Bugs::ITLB_MULTIHIT.union(Bugs::EIBRS_PBRSB),
        _ => Bugs::empty(),
    }
}

/// Further weaknesses of this model.
fn listed(processor: &Processor) -> Bugs {
    const MMIO: Bugs = Bugs::MMIO_STALE_DATA;
    let (family, model, stepping) = processor.version;
    let newer = |since: u32| {
        if stepping >= since {
            Bugs::ITS
        } else {
            Bugs::empty()
        }
    };
    match (processor.vendor, family, model) {
        (Vendor::Amd, 0x15 | 0x16, _) => Bugs::RETBLEED,
        (Vendor::Amd, 0x17, _) | (Vendor::Hygon, 0x18, _) => Bugs::RETBLEED | Bugs::SRSO,
        (Vendor::Amd, 0x19, _) => Bugs::SRSO | Bugs::TSA,
        (Vendor::Amd, 0x1a, _) => Bugs::SRSO,
        // Silvermont, Airmont, Knights Landing and Mill.
        (Vendor::Intel, 6, 0x37 | 0x4a | 0x4c | 0x4d | 0x57 | 0x5a | 0x85) => Bugs::MSBDS_ONLY,
        // Ivy Bridge, Haswell, Broadwell.
        (Vendor::Intel, 6, 0x3a | 0x3c | 0x3d | 0x45 | 0x46 | 0x47) => Bugs::SRBDS,
        (Vendor::Intel, 6, 0x3f | 0x4f | 0x56) => MMIO,
        // Skylake and its successors, servers (Cascade Lake and Cooper Lake among them) and others.
        (Vendor::Intel, 6, 0x55) => MMIO | Bugs::RETBLEED | Bugs::GDS | newer(6),
        (Vendor::Intel, 6, 0x4e | 0x5e) => MMIO | Bugs::RETBLEED | Bugs::GDS | Bugs::SRBDS,
        (Vendor::Intel, 6, 0x8e) => MMIO | Bugs::RETBLEED | Bugs::GDS | Bugs::SRBDS | newer(0xc),
        (Vendor::Intel, 6, 0x9e) => MMIO | Bugs::RETBLEED | Bugs::GDS | Bugs::SRBDS | newer(0xd),
        (Vendor::Intel, 6, 0x66) => Bugs::RETBLEED,
        // Ice Lake.
        (Vendor::Intel, 6, 0x7e) => MMIO | Bugs::SRBDS | Bugs::RETBLEED | Bugs::GDS | Bugs::ITS,
        (Vendor::Intel, 6, 0x6a | 0x6c) => MMIO | Bugs::GDS | Bugs::ITS,
        // Comet Lake.
        (Vendor::Intel, 6, 0xa6) if stepping == 0 => MMIO | Bugs::RETBLEED | Bugs::ITS,
        (Vendor::Intel, 6, 0xa5 | 0xa6) => {
            MMIO | Bugs::SRBDS | Bugs::RETBLEED | Bugs::GDS | Bugs::ITS
        }
        // Tiger Lake, Lakefield, Rocket Lake.
        (Vendor::Intel, 6, 0x8c | 0x8d) => Bugs::GDS | Bugs::ITS,
        (Vendor::Intel, 6, 0x8a) => MMIO | Bugs::SRBDS | Bugs::RETBLEED,
        (Vendor::Intel, 6, 0xa7) => MMIO | Bugs::RETBLEED | Bugs::GDS | Bugs::ITS,
        // Alder Lake, Raptor Lake, Gracemont; Goldmont.
        (Vendor::Intel, 6, 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0xbe | 0x5c | 0x5f | 0x7a) => {
            Bugs::RFDS
        }
        // Tremont.
        (Vendor::Intel, 6, 0x96 | 0x9c) => MMIO | Bugs::SRBDS | Bugs::RFDS,
        (Vendor::Intel, 6, 0x86) => MMIO | Bugs::RFDS,
        _ => Bugs::empty(),
    }
}

impl Bugs {
    /// Weaknesses of a processor.
    #[must_use]
    pub fn of(processor: &Processor) -> Self {
        let mut bugs = COMMON.difference(spared(processor)) | listed(processor);
        if matches!(processor.version, (..=5, ..)) {
            return Self::empty();
        }
        let says = |bits| processor.says(bits);
        let has = |capabilities| processor.has(capabilities);
        for (spared, bug) in [
            (says(arch::RDCL_NO), Self::MELTDOWN | Self::L1TF),
            (says(arch::SSB_NO) || has(Capabilities::SSB_NO), Self::SSB),
            (says(arch::MDS_NO), Self::MDS),
            (
                !bugs.contains(Self::MDS) || says(arch::MDS_NO),
                Self::MSBDS_ONLY,
            ),
            (says(arch::PSCHANGE_MC_NO), Self::ITLB_MULTIHIT),
            (
                says(arch::MMIO_NO),
                Self::MMIO_STALE_DATA | Self::MMIO_UNKNOWN,
            ),
            (bugs.contains(Self::MMIO_STALE_DATA), Self::MMIO_UNKNOWN),
            (!has(Capabilities::RANDOM), Self::SRBDS),
            (says(arch::GDS_NO) || !has(Capabilities::AVX), Self::GDS),
            (says(arch::RFDS_NO), Self::RFDS),
            (
                says(arch::ITS_NO) || has(Capabilities::BHI_CONTROL),
                Self::ITS,
            ),
            (has(Capabilities::SRSO_NO), Self::SRSO),
            (has(Capabilities::TSA_NO), Self::TSA),
            (
                says(arch::PBRSB_NO) || !processor.has_enhanced_ibrs(),
                Self::EIBRS_PBRSB,
            ),
            (
                says(arch::BHI_NO)
                    || !processor.has_enhanced_ibrs() && !has(Capabilities::HYPERVISOR),
                Self::BHI,
            ),
        ] {
            if spared {
                bugs -= bug;
            }
        }
        // What it says of itself, whatever its model.
        if !says(arch::TAA_NO) && (has(Capabilities::RTM) || says(arch::TSX_CTRL)) {
            bugs |= Self::TAA;
        }
        if says(arch::RFDS_CLEAR) && !says(arch::RFDS_NO) {
            bugs |= Self::RFDS;
        }
        if says(arch::RSBA) {
            bugs |= Self::RETBLEED;
        }
        if has(Capabilities::BTC_NO) {
            bugs -= Self::RETBLEED;
        }
        bugs
    }

    /// Names on the line `bugs` of `/proc/cpuinfo`, Linux's.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        const NAMES: [(Bugs, &str); 21] = [
            (Bugs::MELTDOWN, "cpu_meltdown"),
            (Bugs::SPECTRE_V1, "spectre_v1"),
            (Bugs::SPECTRE_V2, "spectre_v2"),
            (Bugs::SSB, "spec_store_bypass"),
            (Bugs::L1TF, "l1tf"),
            (Bugs::MDS, "mds"),
            (Bugs::MSBDS_ONLY, "msbds_only"),
            (Bugs::SWAPGS, "swapgs"),
            (Bugs::TAA, "taa"),
            (Bugs::ITLB_MULTIHIT, "itlb_multihit"),
            (Bugs::SRBDS, "srbds"),
            (Bugs::MMIO_STALE_DATA, "mmio_stale_data"),
            (Bugs::MMIO_UNKNOWN, "mmio_unknown"),
            (Bugs::RETBLEED, "retbleed"),
            (Bugs::EIBRS_PBRSB, "eibrs_pbrsb"),
            (Bugs::GDS, "gds"),
            (Bugs::SRSO, "srso"),
            (Bugs::RFDS, "rfds"),
            (Bugs::BHI, "bhi"),
            (Bugs::ITS, "its"),
            (Bugs::TSA, "tsa"),
        ];
        NAMES
            .into_iter()
            .filter(move |(bug, _)| self.contains(*bug))
            .map(|(_, name)| name)
    }
}
