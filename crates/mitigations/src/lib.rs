//! Weaknesses of processors by which one program can read what is another's, and what the kernel
//! does about each (`docs/mitigations.md`).
//!
//! Pure logic: [`Processor`] is what CPUID and a register say, [`Bugs`] which weaknesses follow,
//! [`Plan`] what is done about them, [`Report`] how programs are told. The guard reads the former
//! and carries out the latter.
//!
//! | file | subject |
//! |---|---|
//! | `processor` | identity and capabilities |
//! | `bugs` | weaknesses by model |
//! | `plan` | means against them |
//! | `report` | the words for it, which are Linux's |
#![no_std]
#![forbid(unsafe_code)]

mod bugs;
mod plan;
mod processor;
mod report;
#[cfg(test)]
mod tests;

use bitflags::bitflags;
pub use bugs::Bugs;
pub use plan::{Branches, Buffers, Entry, Plan};
pub use processor::{Capabilities, Microcode, Processor, Vendor};
pub use report::{Report, Vulnerability};

bitflags! {
    /// Restrictions that a thread can ask for, of its own speculation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Restrictions: u32 {
        /// Indirect branches of the thread are kept from those of other programs.
        const INDIRECT_BRANCH = 1 << 0;
        /// Loads of the thread do not overtake stores.
        const STORE_BYPASS = 1 << 1;
    }
}

/// Choice of page-table isolation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Isolation if the processor needs it, unless mitigations are off.
    #[default]
    Auto,
    /// On any processor.
    On,
    /// On none.
    Off,
}

/// Choice of whoever starts the kernel: `mitigations=`, `pti=`, `nopti` and `smt=` on its command
/// line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Nothing is done that costs time while programs run.
    pub off: bool,
    /// One thread of each core is used.
    pub single_threads: bool,
    /// All that is done on any processor is done on this one. Only emulators are forced: what a
    /// processor does not have it must not be asked for.
    pub force: bool,
    /// Page-table isolation.
    pub isolation: Isolation,
    /// The other threads of this kernel's cores may be another kernel's.
    pub shares_cores: bool,
}

impl Mode {
    /// The last `mitigations=` among the words of a command line: `auto`, `off`, `auto,nosmt` or
    /// `force`; and the last of `pti=auto`, `pti=on`, `pti=off` and `nopti`, as on Linux. Others
    /// mean `auto`. With `smt=allow` cores are shared.
    #[must_use]
    pub fn parse(cmdline: &str) -> Self {
        let words = || cmdline.split_whitespace().rev();
        let value = words().find_map(|word| word.strip_prefix("mitigations="));
        let isolation = words().find_map(|word| match word {
            "nopti" => Some("off"),
            _ => word.strip_prefix("pti="),
        });
        let smt = words().find_map(|word| word.strip_prefix("smt="));
        Self {
            shares_cores: smt == Some("allow"),
            off: value == Some("off"),
            single_threads: value == Some("auto,nosmt"),
            force: value == Some("force"),
            isolation: match isolation {
                Some("on") => Isolation::On,
                Some("off") => Isolation::Off,
                _ => Isolation::Auto,
            },
        }
    }
}
