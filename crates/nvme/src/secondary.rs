//! Controllers of virtual functions (secondary controllers; section 8.5): the one of the physical
//! function (the primary) gives them queues and interrupts, and puts them online.

use core::fmt;

use crate::PAGE;
use crate::completion::Status;

/// Kinds of resources (figure 320): queue pairs, and interrupts.
pub(crate) const RESOURCES: [u8; 2] = [QUEUES, INTERRUPTS];
const QUEUES: u8 = 0;
const INTERRUPTS: u8 = 1;
/// Actions (figure 319): the primary's own share from its next reset on; a secondary's share; a
/// secondary goes online.
pub(crate) const OWN_SHARE: u8 = 1;
pub(crate) const SHARE: u8 = 8;
pub(crate) const ONLINE: u8 = 9;

/// Queue pairs of a controller that is of use: its own and one more.
const LEAST_QUEUES: u16 = 2;
/// Secondary controllers in a list, at most, and bytes of the list's head and of an entry.
pub(crate) const MAX_LISTED: usize = 127;
const ENTRY: usize = 32;

/// Resources of one kind that a primary controller has to share out (figure 251).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flexible {
    /// How many there are.
    pub(crate) total: u32,
    /// Number of them that the primary has itself.
    pub(crate) own: u16,
    /// As many as a secondary can have; without limit if 0.
    most: u16,
    /// Secondaries have a multiple of this.
    step: u16,
}

impl Flexible {
    /// Queues and interrupts of a primary controller, of what it says of itself.
    pub(crate) fn parse(bytes: &[u8; PAGE]) -> [Self; 2] {
        [32, 64].map(|at| {
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            Self {
                total: u32::from(half(at + 2)) << 16 | u32::from(half(at)),
                own: half(at + 8),
                most: half(at + 12),
                step: half(at + 14).max(1),
            }
        })
    }

    /// The share of each of so many secondaries.
    fn share(&self, secondaries: u16) -> u16 {
        let most = match self.most {
            0 => u16::MAX,
            most => most,
        };
        let each = self.total / u32::from(secondaries.max(1));
        let share = u16::try_from(each).unwrap_or(u16::MAX).min(most);
        share - share % self.step
    }
}

/// Secondary controllers that were put online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secondaries {
    /// How many.
    pub count: u16,
    /// Queue pairs of each, with its own.
    pub queues: u16,
    /// Interrupts of each.
    pub interrupts: u16,
}

impl Secondaries {
    /// The share of each of so many.
    pub(crate) fn plan(flexible: [Flexible; 2], count: u16) -> Result<Self, NoSecondaries> {
        let [queues, interrupts] = flexible.map(|kind| kind.share(count));
        if queues < LEAST_QUEUES || interrupts == 0 {
            return Err(NoSecondaries::Short { queues, interrupts });
        }
        Ok(Self {
            count,
            queues,
            interrupts,
        })
    }

    /// The share of each of a kind of resources.
    pub(crate) const fn share(&self, resource: u8) -> u16 {
        match resource {
            QUEUES => self.queues,
            _ => self.interrupts,
        }
    }
}

/// Why secondary controllers are not online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSecondaries {
    /// The controller does not have enough for so many: each would have this.
    Short {
        /// Queue pairs.
        queues: u16,
        /// Interrupts.
        interrupts: u16,
    },
    /// The controller does not list one for each virtual function.
    Missing,
    /// The controller refuses.
    Refused(Status),
}

impl fmt::Display for NoSecondaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { queues, interrupts } => write!(
                f,
                "each would have {queues} queues and {interrupts} interrupts"
            ),
            Self::Missing => f.write_str("it does not list one for each"),
            Self::Refused(status) => write!(f, "{status}"),
        }
    }
}

/// Numbers of the secondary controllers of the virtual functions 1 to `count`, of a list of them
/// (figure 253).
pub(crate) fn parse_list(bytes: &[u8; PAGE], count: u16) -> impl Iterator<Item = u16> + '_ {
    let entries = bytes[ENTRY..].chunks_exact(ENTRY);
    let listed = usize::from(bytes[0]).min(MAX_LISTED);
    entries.take(listed).filter_map(move |entry| {
        let function = u16::from_le_bytes([entry[8], entry[9]]);
        let is_one = (1..=count).contains(&function);
        is_one.then(|| u16::from_le_bytes([entry[0], entry[1]]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flexible(total: u32, most: u16, step: u16) -> Flexible {
        Flexible {
            total,
            own: 0,
            most,
            step,
        }
    }

    #[test]
    fn what_there_is_is_shared_out() {
        for (total, most, step, secondaries, each) in [
            (8, 0, 1, 4, 2),
            (9, 0, 1, 4, 2),
            (9, 3, 1, 2, 3),
            (9, 0, 2, 1, 8),
            (1 << 20, 0, 1, 2, u16::MAX),
            (7, 0, 1, 8, 0),
            (7, 0, 1, 0, 7),
        ] {
            assert_eq!(flexible(total, most, step).share(secondaries), each);
        }
        let few = [flexible(8, 0, 1), flexible(3, 0, 1)];
        let planned = Secondaries::plan(few, 3).unwrap();
        assert_eq!((planned.queues, planned.interrupts), (2, 1));
        assert_eq!((planned.share(QUEUES), planned.share(INTERRUPTS)), (2, 1));
        for (count, queues, interrupts) in [(4, 2, 0), (5, 1, 0)] {
            let short = NoSecondaries::Short { queues, interrupts };
            assert_eq!(Secondaries::plan(few, count), Err(short));
        }
    }

    #[test]
    fn a_list_that_says_too_much_ends() {
        let mut bytes = [0; PAGE];
        bytes[0] = u8::MAX;
        for (n, entry) in (1_u16..).zip(bytes[ENTRY..].chunks_exact_mut(ENTRY)) {
            entry[..2].copy_from_slice(&(n + 100).to_le_bytes());
            entry[8..10].copy_from_slice(&n.to_le_bytes());
        }
        assert!(parse_list(&bytes, 3).eq([101, 102, 103]));
        assert_eq!(parse_list(&bytes, u16::MAX).count(), 127);
        bytes[0] = 2;
        assert!(parse_list(&bytes, 3).eq([101, 102]));
        assert_eq!(parse_list(&bytes, 0).count(), 0);
        // One that is no virtual function's.
        bytes[ENTRY + 8..ENTRY + 10].fill(0);
        assert!(parse_list(&bytes, 3).eq([102]));
    }
}
