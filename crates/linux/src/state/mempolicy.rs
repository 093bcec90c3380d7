//! Memory policies as threads and areas remember them (`set_mempolicy(2)`). An instance's memory is
//! one node.

use abi::errno::Errno;

pub(crate) const MPOL_DEFAULT: u32 = 0;
pub(crate) const MPOL_PREFERRED: u32 = 1;
pub(crate) const MPOL_BIND: u32 = 2;
pub(crate) const MPOL_INTERLEAVE: u32 = 3;
pub(crate) const MPOL_LOCAL: u32 = 4;
pub(crate) const MPOL_PREFERRED_MANY: u32 = 5;
pub(crate) const MPOL_F_STATIC_NODES: u32 = 0x8000;
pub(crate) const MPOL_F_RELATIVE_NODES: u32 = 0x4000;
pub(crate) const MPOL_F_NUMA_BALANCING: u32 = 0x2000;
pub(crate) const MODE_FLAGS: u32 =
    MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES | MPOL_F_NUMA_BALANCING;

/// The policy of a thread or of memory.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryPolicy {
    /// Mode (`MPOL_*`) with its flags.
    pub(crate) mode: u32,
    /// The mask that a question is answered with: of the nodes in force, or with flags of those
    /// asked for, the first ones.
    pub(crate) nodes: u64,
}

impl MemoryPolicy {
    /// Number of nodes that areas remember.
    const REMEMBERED: u32 = 48;

    /// Policy as one word, which areas remember.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.mode) | self.nodes << (u64::BITS - Self::REMEMBERED)
    }

    pub(crate) fn of_word(word: u64) -> Self {
        let nodes = word >> (u64::BITS - Self::REMEMBERED);
        Self {
            mode: word as u32 & 0xffff,
            nodes,
        }
    }

    pub(crate) fn kind(self) -> u32 {
        self.mode & !MODE_FLAGS
    }

    /// The policy of a mode and a mask, as Linux' `mpol_new` and `mpol_set_nodemask` have it.
    pub(crate) fn new(mode: u32, nodes: &Nodes) -> Result<Self, Errno> {
        let flagged = mode & (MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES) != 0;
        let kind = mode & !MODE_FLAGS;
        if kind == MPOL_DEFAULT {
            return if nodes.is_empty() {
                Ok(Self::default())
            } else {
                Err(Errno::EINVAL)
            };
        }
        if kind == MPOL_LOCAL || kind == MPOL_PREFERRED && nodes.is_empty() {
            let sound = nodes.is_empty() && !flagged;
            return if sound {
                Ok(Self {
                    mode: MPOL_LOCAL | mode & MODE_FLAGS,
                    nodes: 0,
                })
            } else {
                Err(Errno::EINVAL)
            };
        }
        // Relative ones are counted round: with one node, any is that one.
        let there = if mode & MPOL_F_RELATIVE_NODES != 0 {
            !nodes.is_empty()
        } else {
            nodes.first & 1 != 0
        };
        let shown = if flagged {
            nodes.first & !(u64::MAX << Self::REMEMBERED)
        } else {
            1
        };
        if there {
            Ok(Self { mode, nodes: shown })
        } else {
            Err(Errno::EINVAL)
        }
    }
}

/// Text of a policy in `/proc/<pid>/numa_maps`.
pub(crate) fn policy_name(word: u64) -> &'static str {
    match MemoryPolicy::of_word(word).kind() {
        MPOL_PREFERRED => "prefer:0",
        MPOL_BIND => "bind:0",
        MPOL_INTERLEAVE => "interleave:0",
        MPOL_PREFERRED_MANY => "prefer (many):0",
        MPOL_LOCAL => "local",
        _ => "default",
    }
}

/// A mask of nodes as a program gives it.
#[derive(Default)]
pub(crate) struct Nodes {
    /// Mask of the first 64 nodes.
    pub(crate) first: u64,
    /// Whether others are in it.
    pub(crate) others: bool,
}

impl Nodes {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0 && !self.others
    }
}
