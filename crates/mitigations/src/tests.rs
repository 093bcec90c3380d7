extern crate std;

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use proptest::prelude::*;
use x86_spec::msr::arch_capabilities as arch;
use x86_spec::msr::spec_ctrl;

use super::*;

/// Capabilities of Intel's processors with microcode of 2018 or later.
const UPDATED: Capabilities = Capabilities::IBRS
    .union(Capabilities::IBPB)
    .union(Capabilities::STIBP)
    .union(Capabilities::SSBD)
    .union(Capabilities::MD_CLEAR)
    .union(Capabilities::FLUSH_L1D)
    .union(Capabilities::SMEP)
    .union(Capabilities::AVX)
    .union(Capabilities::RANDOM)
    .union(Capabilities::VMX);
/// Capabilities of those that have the register.
const TELLING: Capabilities = UPDATED.union(Capabilities::ARCH_CAPABILITIES);
const AMD: Capabilities = Capabilities::IBPB
    .union(Capabilities::SSBD)
    .union(Capabilities::STIBP)
    .union(Capabilities::SMEP)
    .union(Capabilities::AVX)
    .union(Capabilities::RANDOM);

fn processor(
    vendor: Vendor,
    version: (u32, u32, u32),
    capabilities: Capabilities,
    arch_capabilities: u64,
) -> Processor {
    Processor {
        vendor,
        version,
        capabilities,
        microcode: Microcode {
            arch_capabilities,
            options: 0,
        },
    }
}

fn broadwell() -> Processor {
    processor(Vendor::Intel, (6, 0x4f, 1), UPDATED | Capabilities::RTM, 0)
}

fn cascade_lake() -> Processor {
    let says = arch::RDCL_NO
        | arch::IBRS_ALL
        | arch::MDS_NO
        | arch::TSX_CTRL
        | arch::FB_CLEAR
        | arch::PSCHANGE_MC_NO
        | arch::GDS_CTRL;
    processor(
        Vendor::Intel,
        (6, 0x55, 7),
        TELLING | Capabilities::RTM,
        says,
    )
}

fn ice_lake() -> Processor {
    let says = arch::RDCL_NO
        | arch::IBRS_ALL
        | arch::MDS_NO
        | arch::TAA_NO
        | arch::FB_CLEAR
        | arch::PSCHANGE_MC_NO
        | arch::GDS_CTRL;
    processor(Vendor::Intel, (6, 0x6a, 6), TELLING, says)
}

fn sapphire_rapids() -> Processor {
    let says = arch::RDCL_NO
        | arch::IBRS_ALL
        | arch::MDS_NO
        | arch::TAA_NO
        | arch::MMIO_NO
        | arch::PSCHANGE_MC_NO
        | arch::GDS_NO
        | arch::PBRSB_NO
        | arch::RFDS_NO;
    let capabilities = TELLING | Capabilities::BHI_CONTROL;
    processor(Vendor::Intel, (6, 0x8f, 8), capabilities, says)
}

fn zen_2() -> Processor {
    processor(Vendor::Amd, (0x17, 0x31, 0), AMD | Capabilities::IBRS, 0)
}

fn zen_4() -> Processor {
    let capabilities = AMD
        | Capabilities::IBRS
        | Capabilities::AUTO_IBRS
        | Capabilities::BTC_NO
        | Capabilities::VERW_CLEAR;
    processor(Vendor::Amd, (0x19, 0x11, 1), capabilities, 0)
}

/// QEMU's `qemu64`, and `max` under emulation.
fn emulated() -> Processor {
    let capabilities = Capabilities::SMEP | Capabilities::HYPERVISOR | Capabilities::RANDOM;
    processor(Vendor::Amd, (15, 107, 1), capabilities, 0)
}

fn names(processor: &Processor) -> Vec<&'static str> {
    Bugs::of(processor).names().collect()
}

fn plan(processor: &Processor, cmdline: &str) -> Plan {
    Report::new(*processor, Mode::parse(cmdline)).plan
}

fn line(processor: &Processor, of: Vulnerability, siblings: bool) -> String {
    Report::new(*processor, Mode::default())
        .line(of, siblings)
        .to_string()
}

/// Intel's table of affected processors, and what Linux 6.9 finds on them.
#[test]
fn weaknesses_of_real_processors() {
    assert_eq!(
        names(&broadwell()),
        [
            "cpu_meltdown",
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "l1tf",
            "mds",
            "swapgs",
            "taa",
            "itlb_multihit",
            "mmio_stale_data"
        ]
    );
    assert_eq!(
        names(&cascade_lake()),
        [
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "swapgs",
            "taa",
            "mmio_stale_data",
            "retbleed",
            "eibrs_pbrsb",
            "gds",
            "bhi",
            "its"
        ]
    );
    assert_eq!(
        names(&ice_lake()),
        [
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "swapgs",
            "mmio_stale_data",
            "eibrs_pbrsb",
            "gds",
            "bhi",
            "its"
        ]
    );
    assert_eq!(
        names(&sapphire_rapids()),
        [
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "swapgs",
            "bhi"
        ]
    );
    assert_eq!(
        names(&zen_2()),
        [
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "retbleed",
            "srso"
        ]
    );
    assert_eq!(
        names(&zen_4()),
        [
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "srso",
            "tsa"
        ]
    );
    assert_eq!(names(&emulated()), ["spectre_v1", "spectre_v2"]);
    // Bonnell runs in order; Goldmont and Silvermont have some of its successors' weaknesses.
    let atom = |model| processor(Vendor::Intel, (6, model, 1), UPDATED, 0);
    assert!(names(&atom(0x1c)).is_empty());
    assert_eq!(
        names(&atom(0x5c)),
        [
            "cpu_meltdown",
            "spectre_v1",
            "spectre_v2",
            "spec_store_bypass",
            "rfds"
        ]
    );
    assert_eq!(
        names(&atom(0x37)),
        [
            "cpu_meltdown",
            "spectre_v1",
            "spectre_v2",
            "mds",
            "msbds_only",
            "mmio_unknown"
        ]
    );
    // Skylake without new microcode.
    let old = processor(
        Vendor::Intel,
        (6, 0x5e, 3),
        Capabilities::SMEP | Capabilities::RANDOM,
        0,
    );
    assert!(Bugs::of(&old).contains(Bugs::MELTDOWN | Bugs::L1TF | Bugs::SRBDS | Bugs::RETBLEED));
    assert!(!Bugs::of(&old).contains(Bugs::GDS), "no AVX, no GATHER");
}

#[test]
fn means_are_flags() {
    let flags = |processor: Processor| processor.flags().collect::<Vec<_>>().join(" ");
    assert_eq!(flags(emulated()), "");
    assert_eq!(
        flags(cascade_lake()),
        "ibrs ibpb stibp ssbd md_clear flush_l1d arch_capabilities ibrs_enhanced"
    );
    assert_eq!(
        flags(zen_4()),
        "ibrs ibpb stibp ssbd autoibrs btc_no ibrs_enhanced"
    );
}

/// A processor's word for itself counts for more than its model.
#[test]
fn processors_are_believed() {
    let with = |says| Bugs::of(&processor(Vendor::Intel, (6, 0x55, 7), TELLING, says));
    for (says, bugs) in [
        (arch::RDCL_NO, Bugs::MELTDOWN | Bugs::L1TF),
        (arch::SSB_NO, Bugs::SSB),
        (arch::MDS_NO, Bugs::MDS),
        (arch::PSCHANGE_MC_NO, Bugs::ITLB_MULTIHIT),
        (arch::MMIO_NO, Bugs::MMIO_STALE_DATA),
        (arch::GDS_NO, Bugs::GDS),
        (arch::ITS_NO, Bugs::ITS),
    ] {
        assert_eq!(with(0) - with(says), bugs, "{says:#x}");
        assert_eq!(with(says) - with(0), Bugs::empty(), "{says:#x}");
    }
    assert_eq!(with(arch::RFDS_CLEAR) - with(0), Bugs::RFDS);
    assert_eq!(with(arch::TSX_CTRL) - with(0), Bugs::TAA);
    assert_eq!(with(arch::TSX_CTRL | arch::TAA_NO), with(0));
}

#[test]
fn a_plan_is_what_the_processor_needs_and_has() {
    let plain = plan(&emulated(), "");
    assert_eq!(
        (plain.branches, plain.entry),
        (Branches::Vulnerable, Entry::Plain)
    );
    assert!(!plain.has_spec_ctrl && !plain.fill_return_stack && !plain.ibpb);

    let old = plan(&broadwell(), "quiet");
    assert_eq!(
        (old.branches, old.entry),
        (Branches::AtEntry, Entry::RestrictBranches)
    );
    assert_eq!(
        (old.kernel_spec_ctrl, old.user_spec_ctrl),
        (spec_ctrl::IBRS, 0)
    );
    assert!(old.fill_return_stack && old.ssbd && old.indirect_branch && old.flush_l1d);
    assert!(!old.tsx_off, "there is no register for it");

    let between = plan(&cascade_lake(), "");
    assert_eq!(
        (between.branches, between.entry),
        (Branches::Enhanced, Entry::ClearBuffers)
    );
    assert_eq!(between.user_spec_ctrl, spec_ctrl::IBRS);
    assert!(between.tsx_off);

    let new = plan(&sapphire_rapids(), "");
    assert_eq!(
        (new.branches, new.entry),
        (Branches::Enhanced, Entry::Plain)
    );
    assert_eq!(new.kernel_spec_ctrl, spec_ctrl::IBRS | spec_ctrl::BHI_DIS_S);

    let amd = plan(&zen_4(), "");
    assert_eq!(
        (amd.branches, amd.entry),
        (Branches::Enhanced, Entry::ClearBuffers)
    );
    assert!(amd.auto_ibrs && amd.kernel_spec_ctrl == 0);
    let earlier = plan(&zen_2(), "");
    assert_eq!(earlier.entry, Entry::RestrictBranches);
    let mut asks = zen_2();
    asks.capabilities |= Capabilities::IBRS_ALWAYS_ON;
    assert_eq!(plan(&asks, "").branches, Branches::AlwaysOn);
    assert_eq!(plan(&asks, "").entry, Entry::Plain);
}

/// `pti=` counts for more than `mitigations=`, as on Linux.
#[test]
fn isolation_is_for_meltdown_or_by_choice() {
    for (cmdline, affected, spared) in [
        ("", true, false),
        ("pti=auto", true, false),
        ("mitigations=off", false, false),
        ("pti=on", true, true),
        ("mitigations=off pti=on", true, true),
        ("pti=off", false, false),
        ("nopti", false, false),
        ("pti=on nopti", false, false),
        ("nopti pti=on", true, true),
        ("pti=of", true, false),
    ] {
        let isolates = |processor: Processor| plan(&processor, cmdline).isolate;
        assert_eq!(isolates(broadwell()), affected, "{cmdline:?}");
        assert_eq!(isolates(cascade_lake()), spared, "{cmdline:?}");
        assert_eq!(isolates(zen_2()), spared, "{cmdline:?}");
    }
    let forced = |cmdline| Plan::forced(Mode::parse(cmdline)).isolate;
    assert!(forced("mitigations=force") && !forced("mitigations=force pti=off"));
}

/// With a core that is shared the other thread is kept out all the time, also by a kernel that does
/// nothing else, unless enhanced IBRS does that.
#[test]
fn threads_of_a_shared_core_are_kept_apart() {
    for (processor, by_default, off) in [
        (broadwell(), true, true),
        (cascade_lake(), false, true),
        (zen_2(), true, true),
        (zen_4(), true, true),
        (emulated(), false, false),
    ] {
        for (cmdline, kept) in [("", by_default), ("mitigations=off", off)] {
            let alone = plan(&processor, cmdline);
            let shared = plan(&processor, &format!("{cmdline} smt=allow"));
            let bit = if kept { spec_ctrl::STIBP } else { 0 };
            assert_eq!(shared.kernel_spec_ctrl, alone.kernel_spec_ctrl | bit);
            assert_eq!(shared.user_spec_ctrl, alone.user_spec_ctrl | bit);
            assert_eq!((shared.keep_apart, alone.keep_apart), (kept, false));
        }
    }
    let shared = Report::new(zen_2(), Mode::parse("smt=allow"));
    let told = shared.line(Vulnerability::SpectreV2, true).to_string();
    assert!(told.contains("; STIBP: forced"), "{told}");
}

/// Without SMEP a return at the entry could be steered before the register is written.
#[test]
fn entries_are_restricted_with_smep_only() {
    let mut without = broadwell();
    without.capabilities -= Capabilities::SMEP;
    assert_eq!(plan(&without, "").branches, Branches::Vulnerable);
    assert_eq!(plan(&without, "").entry, Entry::ClearBuffers);
}

#[test]
fn off_is_off_but_for_the_change_of_hands() {
    for processor in [broadwell(), cascade_lake(), zen_4()] {
        let off = plan(&processor, "mitigations=off");
        assert_eq!(off.entry, Entry::Plain);
        assert_eq!((off.kernel_spec_ctrl, off.user_spec_ctrl), (0, 0));
        assert!(!off.auto_ibrs && !off.fill_return_stack && !off.tsx_off);
        assert!(!off.ssbd && !off.indirect_branch);
        let on = plan(&processor, "");
        assert_eq!((off.ibpb, off.flush_l1d), (on.ibpb, on.flush_l1d));
    }
}

#[test]
fn choices_of_the_command_line() {
    let off = Mode {
        off: true,
        ..Mode::default()
    };
    let single_threads = Mode {
        single_threads: true,
        ..Mode::default()
    };
    let force = Mode {
        force: true,
        ..Mode::default()
    };
    for (cmdline, mode) in [
        ("", Mode::default()),
        ("mitigations=auto", Mode::default()),
        ("a mitigations=off b", off),
        ("mitigations=auto,nosmt", single_threads),
        ("mitigations=force", force),
        // The last one counts; what nobody knows is the default, which is on.
        ("mitigations=off mitigations=auto", Mode::default()),
        ("mitigations=auto mitigations=off", off),
        ("mitigations=of", Mode::default()),
        ("xmitigations=off", Mode::default()),
    ] {
        assert_eq!(Mode::parse(cmdline), mode, "{cmdline:?}");
    }
}

/// The words are those of Linux 6.1 on such machines.
#[test]
fn what_programs_are_told() {
    use Vulnerability::*;
    let old = broadwell();
    for (of, told) in [
        (Meltdown, "Mitigation: PTI"),
        (
            SpectreV1,
            "Mitigation: usercopy/swapgs barriers and __user pointer sanitization",
        ),
        (
            SpectreV2,
            "Mitigation: IBRS; IBPB: conditional; STIBP: conditional; RSB filling; \
             PBRSB-eIBRS: Not affected; BHI: Not affected",
        ),
        (
            SpecStoreBypass,
            "Mitigation: Speculative Store Bypass disabled via prctl",
        ),
        (L1tf, "Mitigation: PTE Inversion"),
        (Mds, "Mitigation: Clear CPU buffers; SMT vulnerable"),
        (
            TsxAsyncAbort,
            "Mitigation: Clear CPU buffers; SMT vulnerable",
        ),
        (
            MmioStaleData,
            "Mitigation: Clear CPU buffers; SMT vulnerable",
        ),
        (ItlbMultihit, "KVM: Mitigation: VMX disabled"),
        (Retbleed, "Not affected"),
        (Srbds, "Not affected"),
        (Vmscape, "Not affected"),
    ] {
        assert_eq!(line(&old, of, true), told, "{of:?}");
    }
    assert_eq!(
        line(&old, Mds, false),
        "Mitigation: Clear CPU buffers; SMT disabled"
    );
    let mut guest = old;
    guest.capabilities |= Capabilities::HYPERVISOR;
    guest.capabilities -= Capabilities::MD_CLEAR;
    assert_eq!(
        line(&guest, Mds, false),
        "Vulnerable: Clear CPU buffers attempted, no microcode; SMT Host state unknown"
    );
    assert_eq!(
        line(&sapphire_rapids(), SpectreV2, true),
        "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; RSB filling; \
         PBRSB-eIBRS: Not affected; BHI: BHI_DIS_S"
    );
    assert_eq!(
        line(&cascade_lake(), TsxAsyncAbort, true),
        "Mitigation: TSX disabled"
    );
    assert_eq!(
        line(&cascade_lake(), Retbleed, true),
        "Mitigation: Enhanced IBRS"
    );
    assert_eq!(
        line(&cascade_lake(), GatherDataSampling, true),
        "Mitigation: Microcode"
    );
    assert_eq!(line(&zen_4(), Tsa, true), "Mitigation: Clear CPU buffers");
    assert_eq!(line(&zen_2(), Retbleed, true), "Vulnerable");
    assert_eq!(line(&zen_2(), SpecRstackOverflow, true), "Vulnerable");
    assert_eq!(
        line(&emulated(), SpectreV2, false),
        "Vulnerable; STIBP: disabled; PBRSB-eIBRS: Not affected; BHI: Not affected"
    );
    assert_eq!(line(&emulated(), Meltdown, false), "Not affected");
    let without = Report::new(old, Mode::parse("nopti"));
    assert_eq!(without.line(Meltdown, true).to_string(), "Vulnerable");
}

/// A processor with leaves 7 (with its part 2), 0x8000_0008 and 0x8000_0021 in which one bit is
/// set.
fn with_bit(leaf: (u32, u32), register: usize, bit: u32) -> Capabilities {
    let text = |four: &[u8; 4]| u32::from_le_bytes(*four);
    let read = |asked: u32, part: u32| {
        let mut registers = match asked {
            0 => [7, text(b"Genu"), text(b"ntel"), text(b"ineI")],
            7 if part == 0 => [2, 0, 0, 0],
            0x8000_0000 => [0x8000_0021, 0, 0, 0],
            _ => [0; 4],
        };
        if (asked, part) == leaf {
            registers[register] |= 1 << bit;
        }
        registers
    };
    Processor::read(read, |_| Microcode::default()).capabilities
}

/// SDM vol. 2A, tables 3-11 and 3-12; APM vol. 3, appendix E.4.
#[test]
fn each_bit_is_its_capability() {
    for (leaf, register, bit, capability) in [
        ((1, 0), 2, 5, Capabilities::VMX),
        ((1, 0), 2, 28, Capabilities::AVX),
        ((1, 0), 2, 30, Capabilities::RANDOM),
        ((1, 0), 2, 31, Capabilities::HYPERVISOR),
        ((7, 0), 1, 7, Capabilities::SMEP),
        ((7, 0), 1, 11, Capabilities::RTM),
        ((7, 0), 1, 18, Capabilities::RANDOM),
        ((7, 0), 3, 9, Capabilities::SRBDS_CONTROL),
        ((7, 0), 3, 10, Capabilities::MD_CLEAR),
        ((7, 0), 3, 26, Capabilities::IBRS | Capabilities::IBPB),
        ((7, 0), 3, 27, Capabilities::STIBP),
        ((7, 0), 3, 28, Capabilities::FLUSH_L1D),
        ((7, 0), 3, 29, Capabilities::ARCH_CAPABILITIES),
        ((7, 0), 3, 31, Capabilities::SSBD),
        ((7, 2), 3, 4, Capabilities::BHI_CONTROL),
        ((0x8000_0008, 0), 1, 12, Capabilities::IBPB),
        ((0x8000_0008, 0), 1, 14, Capabilities::IBRS),
        ((0x8000_0008, 0), 1, 15, Capabilities::STIBP),
        // Only where it is preferred, too.
        ((0x8000_0008, 0), 1, 16, Capabilities::empty()),
        ((0x8000_0008, 0), 1, 24, Capabilities::SSBD),
        ((0x8000_0008, 0), 1, 26, Capabilities::SSB_NO),
        ((0x8000_0008, 0), 1, 29, Capabilities::BTC_NO),
        ((0x8000_0021, 0), 0, 5, Capabilities::VERW_CLEAR),
        ((0x8000_0021, 0), 0, 8, Capabilities::AUTO_IBRS),
        ((0x8000_0021, 0), 0, 29, Capabilities::SRSO_NO),
        // One kind of two.
        ((0x8000_0021, 0), 2, 1, Capabilities::empty()),
    ] {
        assert_eq!(
            with_bit(leaf, register, bit),
            capability,
            "{leaf:x?} {register} {bit}"
        );
    }
}

#[test]
fn leaves_that_are_not_there_say_nothing() {
    let old = |leaf, _| {
        if leaf == 0 {
            [1, 0, 0, 0]
        } else {
            [0, u32::MAX, 0, u32::MAX]
        }
    };
    let read = Processor::read(old, |_| Microcode::default());
    assert_eq!(
        (read.vendor, read.capabilities),
        (Vendor::Other, Capabilities::empty())
    );
}

fn any_processor() -> impl Strategy<Value = Processor> {
    let vendor = prop_oneof![
        Just(Vendor::Intel),
        Just(Vendor::Amd),
        Just(Vendor::Hygon),
        Just(Vendor::Zhaoxin),
        Just(Vendor::Other)
    ];
    let version = (prop_oneof![Just(6u32), 5u32..0x20], 0u32..0x100, 0u32..16);
    (vendor, version, any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(vendor, version, capabilities, arch_capabilities, options)| Processor {
            vendor,
            version,
            capabilities: Capabilities::from_bits_truncate(capabilities),
            microcode: Microcode {
                arch_capabilities,
                options,
            },
        },
    )
}

proptest! {
    /// Of any processor: no register is written that it has not, what a line calls a mitigation is
    /// in the plan, and with `off` nothing is.
    #[test]
    fn plans_are_sound(processor in any_processor(), siblings in any::<bool>()) {
        let report = Report::new(processor, Mode::default());
        let Report { bugs, plan, .. } = report;
        prop_assert!(plan.kernel_spec_ctrl == 0 || processor.has(Capabilities::IBRS)
            || plan.kernel_spec_ctrl == spec_ctrl::BHI_DIS_S && processor.has(Capabilities::BHI_CONTROL));
        prop_assert!(plan.has_spec_ctrl || plan.kernel_spec_ctrl & !spec_ctrl::BHI_DIS_S == 0);
        let shared = Report::new(processor, Mode { shares_cores: true, ..Mode::default() }).plan;
        prop_assert!(!shared.keep_apart || processor.has(Capabilities::STIBP) && shared.has_spec_ctrl);
        prop_assert!(!plan.tsx_off || processor.says(arch::TSX_CTRL));
        prop_assert!(!plan.auto_ibrs || processor.has(Capabilities::AUTO_IBRS));
        prop_assert!(plan.entry < Entry::RestrictBranches || processor.has(Capabilities::IBRS));
        for of in Vulnerability::ALL {
            let told = format!("{}", report.line(of, siblings));
            let is_one = told == "Not affected" || ["Mitigation: ", "Vulnerable", "Unknown: ", "KVM: "]
                .iter()
                .any(|start| told.starts_with(start));
            prop_assert!(is_one, "{told}");
            if told.starts_with("Mitigation: Clear") {
                prop_assert!(plan.entry >= Entry::ClearBuffers, "{of:?}: {told}");
            }
            let off = Report::new(processor, Mode { off: true, ..Mode::default() });
            let told = format!("{}", off.line(of, siblings));
            prop_assert!(!told.contains("IBRS;") && !told.contains("Clear") && !told.contains("prctl"), "{told}");
        }
        prop_assert_eq!(bugs.names().count(), bugs.iter().count());
    }
}
