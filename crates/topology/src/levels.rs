//! Levels of an APIC id: the bits that count threads, cores, dies and packages.

use crate::Place;

/// EAX, EBX, ECX and EDX of a leaf.
type Registers = [u32; 4];

/// Bit positions in an APIC id that separate thread, core, die and package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Low bits that name the thread of a core.
    thread: u32,
    /// Low bits that name anything within a die.
    die: Option<u32>,
    /// Low bits that name anything within a package.
    package: u32,
}

/// Kinds of levels in leaves 0xB and 0x1F.
const SMT: u32 = 1;
const DIE: u32 = 5;
/// More levels than there are kinds: where to stop with a processor that does not.
const MAX_LEVELS: u32 = 8;

/// Bits that hold `count` numbers.
pub(crate) fn bits(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

impl Levels {
    /// Each CPU a core of its own, in one package.
    pub const NONE: Self = Self {
        thread: 0,
        die: None,
        package: 32,
    };

    /// Reads the levels from CPUID; `cpuid` gives the registers of a leaf and its part.
    /// [`Self::NONE`] if it says nothing.
    #[must_use]
    pub fn read(cpuid: impl Fn(u32, u32) -> Registers) -> Self {
        let [most, vendor @ ..] = cpuid(0, 0);
        let listed = [0x1f, 0xb]
            .into_iter()
            .filter(|leaf| *leaf <= most)
            .find_map(|leaf| Self::listed(|part| cpuid(leaf, part)));
        // "Auth", "Hygo".
        let amd = matches!(vendor[0], 0x6874_7541 | 0x6f67_7948);
        listed
            .or_else(|| {
                if amd {
                    Self::by_amd(&cpuid)
                } else {
                    Self::by_counts(&cpuid, most)
                }
            })
            .filter(|levels| levels.thread <= levels.package)
            .unwrap_or(Self::NONE)
    }

    /// Leaf 0x1F or 0xB: a list of levels, each with the number of bits below the next.
    fn listed(part: impl Fn(u32) -> Registers) -> Option<Self> {
        let mut levels: Option<Self> = None;
        for [shift, cpus, kind, _] in (0..MAX_LEVELS).map(part) {
            let (shift, kind) = (shift & 0x1f, kind >> 8 & 0xff);
            if kind == 0 || cpus & 0xffff == 0 {
                break;
            }
            let below = levels.map_or(0, |levels| levels.package);
            let found = levels.get_or_insert(Self {
                thread: 0,
                die: None,
                package: 0,
            });
            match kind {
                SMT => found.thread = shift,
                DIE => found.die = Some(below),
                _ => {}
            }
            found.package = shift;
        }
        levels
    }

    /// Leaves 1 and 4: how many numbers there are for CPUs in a package and for cores in it.
    fn by_counts(cpuid: &impl Fn(u32, u32) -> Registers, most: u32) -> Option<Self> {
        let [_, cpus, _, features] = cpuid(1, 0);
        if features & 1 << 28 == 0 {
            return None;
        }
        let package = bits(cpus >> 16 & 0xff);
        let [caches, ..] = if most >= 4 { cpuid(4, 0) } else { [0; 4] };
        // Without a leaf 4 there was one core, and the rest are its threads.
        let cores = if caches & 0x1f != 0 {
            bits((caches >> 26) + 1)
        } else {
            0
        };
        Some(Self {
            thread: package.checked_sub(cores)?,
            die: None,
            package,
        })
    }

    /// AMD's leaf 0x8000_0008: bits for the CPUs of a package; 0x8000_001E: threads of a core.
    fn by_amd(cpuid: &impl Fn(u32, u32) -> Registers) -> Option<Self> {
        let [most, ..] = cpuid(0x8000_0000, 0);
        if most < 0x8000_0008 {
            return None;
        }
        let [_, _, sizes, _] = cpuid(0x8000_0008, 0);
        let package = match sizes >> 12 & 0xf {
            0 => bits((sizes & 0xff) + 1),
            stated => stated,
        };
        let extended = most >= 0x8000_001e && cpuid(0x8000_0001, 0)[2] & 1 << 22 != 0;
        let threads = if extended {
            (cpuid(0x8000_001e, 0)[1] >> 8 & 0xff) + 1
        } else {
            1
        };
        Some(Self {
            thread: bits(threads),
            die: None,
            package,
        })
    }

    /// Takes an APIC id apart.
    #[must_use]
    pub fn place(self, apic_id: u32) -> Place {
        let low = |bits: u32| apic_id & 1u32.checked_shl(bits).map_or(u32::MAX, |bit| bit - 1);
        let within = low(self.package);
        Place {
            apic_id,
            package: apic_id.checked_shr(self.package).unwrap_or(0),
            die: self.die.map(|die| within.checked_shr(die).unwrap_or(0)),
            core: within.checked_shr(self.thread).unwrap_or(0),
            thread: low(self.thread),
        }
    }
}
