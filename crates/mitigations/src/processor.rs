//! Identity of a processor, and what it says of its weaknesses and of the means against them.

use bitflags::bitflags;
use x86_spec::CpuidRegisters;
use x86_spec::identity::CpuInfo;
use x86_spec::msr::arch_capabilities as arch;

/// Manufacturer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// `GenuineIntel`.
    Intel,
    /// `AuthenticAMD`.
    Amd,
    /// `HygonGenuine`.
    Hygon,
    /// `CentaurHauls` and `  Shanghai  `.
    Zhaoxin,
    /// Any other.
    Other,
}

bitflags! {
    /// Means and abilities by CPUID; the bits are our own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Indirect branches can be restricted (IBRS).
        const IBRS = 1 << 0;
        /// Predictions of indirect branches can be dropped (IBPB).
        const IBPB = 1 << 1;
        /// Predictions can be kept from the core's other thread (STIBP).
        const STIBP = 1 << 2;
        /// Loads can be kept from overtaking stores (SSBD in the same register).
        const SSBD = 1 << 3;
        /// IBRS is to be left on, and is enough then (AMD).
        const IBRS_ALWAYS_ON = 1 << 4;
        /// A bit of EFER restricts indirect branches in ring 0 (AMD's automatic IBRS).
        const AUTO_IBRS = 1 << 5;
        /// History of branches can be kept from indirect ones (`BHI_DIS_S`).
        const BHI_CONTROL = 1 << 6;
        /// VERW clears buffers (Intel).
        const MD_CLEAR = 1 << 7;
        /// VERW clears buffers (AMD).
        const VERW_CLEAR = 1 << 8;
        /// The data cache of the first level can be flushed.
        const FLUSH_L1D = 1 << 9;
        /// Microcode has closed the leak of random numbers, unless it is told not to.
        const SRBDS_CONTROL = 1 << 10;
        /// Transactions.
        const RTM = 1 << 11;
        /// AVX, and with it perhaps GATHER.
        const AVX = 1 << 12;
        /// RDRAND or RDSEED.
        const RANDOM = 1 << 13;
        /// Loads do not overtake stores in a way that can be seen (AMD).
        const SSB_NO = 1 << 14;
        /// Branches are not predicted by the wrong kind (AMD's `BTC_NO`).
        const BTC_NO = 1 << 15;
        /// Return addresses are not mispredicted from elsewhere (AMD's `SRSO_NO`).
        const SRSO_NO = 1 << 16;
        /// No transient forwarding by its schedulers (AMD's `TSA_SQ_NO` and `TSA_L1_NO`).
        const TSA_NO = 1 << 17;
        /// The register that tells of weaknesses is there.
        const ARCH_CAPABILITIES = 1 << 18;
        /// Hardware virtualisation.
        const VMX = 1 << 19;
        /// The processor is a virtual one.
        const HYPERVISOR = 1 << 20;
        /// Ring 0 can be kept from executing user pages.
        const SMEP = 1 << 21;
    }
}

/// Settings of microcode that a kernel finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Microcode {
    /// The register `IA32_ARCH_CAPABILITIES`; 0 where there is none.
    pub arch_capabilities: u64,
    /// The register `IA32_MCU_OPT_CTRL`; 0 where there is none.
    pub options: u64,
}

/// A processor, as far as its weaknesses depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    /// Manufacturer.
    pub vendor: Vendor,
    /// Family, model and stepping, as `/proc/cpuinfo` has them.
    pub version: (u32, u32, u32),
    /// Means and abilities.
    pub capabilities: Capabilities,
    /// Settings of its microcode.
    pub microcode: Microcode,
}

impl Processor {
    /// The processor whose leaves and their parts `cpuid` reads. `microcode` reads the registers
    /// that there are by these capabilities.
    #[must_use]
    pub fn read(
        cpuid: impl Fn(u32, u32) -> CpuidRegisters,
        microcode: impl FnOnce(Capabilities) -> Microcode,
    ) -> Self {
        let info = CpuInfo::read(&cpuid);
        let vendor = match info.vendor() {
            "GenuineIntel" => Vendor::Intel,
            "AuthenticAMD" => Vendor::Amd,
            "HygonGenuine" => Vendor::Hygon,
            "CentaurHauls" | "  Shanghai  " => Vendor::Zhaoxin,
            _ => Vendor::Other,
        };
        let capabilities = capabilities(cpuid);
        Self {
            vendor,
            version: (info.family, info.model, info.stepping),
            capabilities,
            microcode: microcode(capabilities),
        }
    }

    /// Whether it has all the given capabilities.
    #[must_use]
    pub const fn has(&self, capabilities: Capabilities) -> bool {
        self.capabilities.contains(capabilities)
    }

    /// Names of its means on the line `flags` of `/proc/cpuinfo`, Linux's.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        const NAMES: [(Capabilities, &str); 9] = [
            (Capabilities::IBRS, "ibrs"),
            (Capabilities::IBPB, "ibpb"),
            (Capabilities::STIBP, "stibp"),
            (Capabilities::SSBD, "ssbd"),
            (Capabilities::AUTO_IBRS, "autoibrs"),
            (Capabilities::BTC_NO, "btc_no"),
            (Capabilities::MD_CLEAR, "md_clear"),
            (Capabilities::FLUSH_L1D, "flush_l1d"),
            (Capabilities::ARCH_CAPABILITIES, "arch_capabilities"),
        ];
        let enhanced = self.has_enhanced_ibrs().then_some("ibrs_enhanced");
        NAMES
            .into_iter()
            .filter(|(capability, _)| self.has(*capability))
            .map(|(_, name)| name)
            .chain(enhanced)
    }

    /// Whether `IA32_ARCH_CAPABILITIES` has all the given bits.
    pub(crate) const fn says(&self, bits: u64) -> bool {
        self.microcode.arch_capabilities & bits == bits
    }

    /// Whether IBRS needs to be set only once: for all privileges and always.
    pub(crate) const fn has_enhanced_ibrs(&self) -> bool {
        self.says(arch::IBRS_ALL) || self.has(Capabilities::AUTO_IBRS)
    }
}

/// SDM vol. 2A, CPUID, leaves 1 and 7; APM vol. 3, appendix E, leaves 0x8000_0008 and 0x8000_0021.
fn capabilities(cpuid: impl Fn(u32, u32) -> CpuidRegisters) -> Capabilities {
    let [last, ..] = cpuid(0, 0);
    let [last_extended, ..] = cpuid(0x8000_0000, 0);
    let leaf = |leaf: u32, part: u32| {
        let within = if leaf >= 0x8000_0000 {
            last_extended >= 0x8000_0000 && leaf <= last_extended
        } else {
            leaf <= last
        };
        if within { cpuid(leaf, part) } else { [0; 4] }
    };
    let [_, _, basic, _] = leaf(1, 0);
    let [parts, structured, _, security] = leaf(7, 0);
    let [_, _, _, more] = if parts >= 2 { leaf(7, 2) } else { [0; 4] };
    let [_, sizes, _, _] = leaf(0x8000_0008, 0);
    let [extended, _, transient, _] = leaf(0x8000_0021, 0);
    let mut found = Capabilities::empty();
    let mut note = |word: u32, bit: u32, capability: Capabilities| {
        if word & 1 << bit != 0 {
            found |= capability;
        }
    };
    note(basic, 5, Capabilities::VMX);
    note(basic, 28, Capabilities::AVX);
    note(basic, 30, Capabilities::RANDOM);
    note(basic, 31, Capabilities::HYPERVISOR);
    note(structured, 7, Capabilities::SMEP);
    note(structured, 11, Capabilities::RTM);
    note(structured, 18, Capabilities::RANDOM);
    note(security, 9, Capabilities::SRBDS_CONTROL);
    note(security, 10, Capabilities::MD_CLEAR);
    note(security, 26, Capabilities::IBRS | Capabilities::IBPB);
    note(security, 27, Capabilities::STIBP);
    note(security, 28, Capabilities::FLUSH_L1D);
    note(security, 29, Capabilities::ARCH_CAPABILITIES);
    note(security, 31, Capabilities::SSBD);
    note(more, 4, Capabilities::BHI_CONTROL);
    note(sizes, 12, Capabilities::IBPB);
    note(sizes, 14, Capabilities::IBRS);
    note(sizes, 15, Capabilities::STIBP);
    // Bit 18: the processor prefers it to what software can do.
    if sizes & 1 << 18 != 0 {
        note(sizes, 16, Capabilities::IBRS_ALWAYS_ON);
    }
    note(sizes, 24, Capabilities::SSBD);
    note(sizes, 26, Capabilities::SSB_NO);
    note(sizes, 29, Capabilities::BTC_NO);
    note(extended, 5, Capabilities::VERW_CLEAR);
    note(extended, 8, Capabilities::AUTO_IBRS);
    note(extended, 29, Capabilities::SRSO_NO);
    if transient & 0b110 == 0b110 {
        found |= Capabilities::TSA_NO;
    }
    found
}
