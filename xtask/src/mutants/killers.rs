//! Map from parts of the source to the tests that are near to them.
//!
//! A killer is a test of `cargo xtask test` that boots machines. Whatever it boots through
//! `Setting::machine` has the kernel with the mutant. In a first run without a mutant, those that
//! are near are recorded: which changes each of their steps comes by. Only steps that come by a
//! change are run against it.

/// A test and what it is near to.
pub struct Killer {
    /// Name of the test, as `cargo xtask test --list` has it.
    pub test: &'static str,
    /// Prefixes of paths that the test is near to.
    pub near: &'static [&'static str],
}

/// All killers, the quick ones first.
pub const KILLERS: &[Killer] = &[
    Killer {
        test: "machine/diff",
        near: &[
            "crates/linux",
            "crates/uapi",
            "crates/futex",
            "crates/fs",
            "crates/net",
            "crates/vm",
            "crates/task",
        ],
    },
    Killer {
        test: "long/programs-2",
        near: &[
            "crates/linux",
            "crates/uapi",
            "crates/futex",
            "crates/fs",
            "crates/net",
            "crates/vm",
            "crates/task",
            "crates/guard/src/mem",
            "kernel/",
        ],
    },
    Killer {
        test: "machine/busybox",
        near: &["crates/", "kernel/"],
    },
    Killer {
        test: "machine/life",
        near: &[
            "crates/node",
            "crates/link",
            "crates/guard",
            "kernel/",
            "crates/drivers",
            "crates/task",
        ],
    },
    Killer {
        test: "machine/faults",
        near: &[
            "crates/node",
            "crates/link",
            "crates/guard/src/partition",
            "crates/linux/src/mm/oom",
        ],
    },
    Killer {
        test: "machine/churn",
        near: &["crates/node", "crates/link", "crates/guard/src/partition"],
    },
    Killer {
        test: "machine/observe",
        near: &["crates/node", "crates/link", "kernel/"],
    },
    Killer {
        test: "machine/terminal",
        near: &["crates/drivers", "crates/link", "crates/fs/src/tty"],
    },
    Killer {
        test: "machine/memory",
        near: &["crates/vm", "crates/guard/src/mem", "crates/fs/src/ramfs"],
    },
    Killer {
        test: "machine/scheduler",
        near: &["crates/task"],
    },
];

/// Killers that are near to a file.
pub fn near(file: &str) -> impl Iterator<Item = &'static Killer> {
    KILLERS
        .iter()
        .filter(move |killer| killer.near.iter().any(|prefix| file.starts_with(prefix)))
}
