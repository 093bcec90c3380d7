//! Groups that a host is in on a link: what its programs want, merged, and what routers, and
//! switches that listen, are told of it. This is the host's half of IGMPv3 (RFC 3376) and MLDv2
//! (RFC 3810), and of the older versions that a router may ask in (RFC 1112, 2236, 2710).

mod filter;
pub mod igmp;
mod query;
mod report;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use filter::Group;
pub use filter::{Filter, Mode};
use query::Older;
pub(crate) use query::decode_time;
pub use query::{Query, Version};
use report::Messages;
pub use report::{MessageOf, RecordKind};

use crate::v6::address::{ALL_NODES, Scope, scope};
use crate::{Address, Nanos, SECOND};

/// How often a change is told if no router says otherwise (the robustness variable).
const ROBUSTNESS: u8 = 2;
/// A change is told again within this time: in the newest versions, and in those before.
const AGAIN_WITHIN: Nanos = SECOND;
const OLDER_AGAIN_WITHIN: Nanos = 10 * SECOND;

/// No memory for it; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// Differences between the families.
pub trait GroupAddress: Address {
    /// The longest reports, bytes, without the headers of the packet.
    const LONGEST_REPORT: usize;

    /// Whether anybody is told of a group: not of that of all hosts.
    fn is_told(self) -> bool;

    /// An address, if it is of this family.
    fn of(address: IpAddr) -> Option<Self>;

    /// Adds the bytes of the address.
    fn write(self, bytes: &mut Vec<u8>);
}

impl GroupAddress for Ipv4Addr {
    const LONGEST_REPORT: usize = 552;

    fn is_told(self) -> bool {
        self != igmp::ALL_HOSTS
    }

    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.octets());
    }
}

impl GroupAddress for Ipv6Addr {
    const LONGEST_REPORT: usize = 1_232;

    fn is_told(self) -> bool {
        self != ALL_NODES && scope(self) != Scope::Interface
    }

    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        }
    }

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.octets());
    }
}

/// The groups of a link, of one family.
///
/// Times are handed in, and random numbers: each `random` gives one below its argument.
#[derive(Debug)]
pub struct Groups<A> {
    /// In the order of their addresses.
    groups: Vec<Group<A>>,
    /// When changes are told.
    changes_due: Option<Nanos>,
    /// When all groups are told, because a router has asked.
    all_due: Option<Nanos>,
    /// A time not after that of the first answer of a single group.
    answers_due: Option<Nanos>,
    /// How often a change is told.
    robustness: u8,
    older: Older,
}

impl<A> Default for Groups<A> {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            changes_due: None,
            all_due: None,
            answers_due: None,
            robustness: ROBUSTNESS,
            older: Older::default(),
        }
    }
}

fn sooner(known: Option<Nanos>, due: Nanos) -> Option<Nanos> {
    Some(known.map_or(due, |before| before.min(due)))
}

impl<A: GroupAddress> Groups<A> {
    /// A member of a group wants something else from now on; `None`: it is no member.
    ///
    /// # Errors
    /// [`OutOfMemory`], where `after` is a filter only.
    pub fn change(
        &mut self,
        now: Nanos,
        group: A,
        before: Option<Filter<'_>>,
        after: Option<Filter<'_>>,
    ) -> Result<(), OutOfMemory> {
        self.update(now, group, |group| {
            if let Some(after) = &after {
                group.add(after)?;
            }
            if let Some(before) = &before {
                group.remove(before);
            }
            Ok(())
        })
    }

    /// The host itself is in a group, or is not any more, whatever programs want.
    ///
    /// # Errors
    /// [`OutOfMemory`] where it would be in it.
    pub fn hold(&mut self, now: Nanos, group: A, is_held: bool) -> Result<(), OutOfMemory> {
        self.update(now, group, |group| {
            group.is_held = is_held;
            Ok(())
        })
    }

    fn update(
        &mut self,
        now: Nanos,
        address: A,
        change: impl FnOnce(&mut Group<A>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let at = self.position(address).or_else(|at| {
            self.groups.try_reserve(1).map_err(|_| OutOfMemory)?;
            self.groups.insert(at, Group::new(address));
            Ok(at)
        })?;
        let group = &mut self.groups[at];
        group.remember();
        let result = change(group);
        if result.is_ok() && group.note_changes(self.robustness) {
            self.changes_due = sooner(self.changes_due, now);
        }
        if group.is_empty() && !group.has_changes() {
            self.groups.remove(at);
        }
        result
    }

    fn position(&self, group: A) -> Result<usize, usize> {
        self.groups
            .binary_search_by_key(&group, |known| known.address)
    }

    /// Whether the host is in a group.
    #[must_use]
    pub fn contains(&self, group: A) -> bool {
        self.position(group)
            .is_ok_and(|at| !self.groups[at].is_empty())
    }

    /// The groups that the host is in, with the number of members of each.
    pub fn iter(&self) -> impl Iterator<Item = (A, u32)> {
        let all = self.groups.iter().filter(|group| !group.is_empty());
        all.map(|group| (group.address, group.members()))
    }

    /// The host's addresses on the link have all gone: it is in groups for its programs only. The
    /// link is down, and nobody is told.
    pub fn let_go(&mut self) {
        self.groups.retain_mut(|group| {
            group.is_held = false;
            group.forget_changes();
            !group.is_empty()
        });
    }

    /// The link has come up, or an address that can be told from: all is told.
    pub fn tell_all(&mut self, now: Nanos) {
        for group in &mut self.groups {
            group.tell(self.robustness);
        }
        if self.groups.iter().any(Group::has_changes) {
            self.changes_due = Some(now);
        }
    }

    /// When there is something to tell, if the link is up.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let due = [self.changes_due, self.all_due, self.answers_due];
        due.into_iter().flatten().min()
    }

    /// A router asks who is in groups.
    pub fn take_query(
        &mut self,
        now: Nanos,
        query: &Query<A>,
        mut random: impl FnMut(Nanos) -> Nanos,
    ) {
        if query.version == Version::Newest {
            self.robustness = match query.robustness {
                0 => ROBUSTNESS,
                told => told,
            };
        } else if query.group.is_none() {
            self.older.heard(query.version, now);
        }
        let is_old = self.version(now) != Version::Newest;
        match query.group {
            None if !is_old => {
                let due = now + random(query.within);
                self.all_due = sooner(self.all_due, due);
            }
            group => {
                let is_asked = |known: &Group<A>| group.is_none_or(|group| group == known.address);
                for known in &mut self.groups {
                    if is_asked(known) && known.address.is_told() && !known.is_empty() {
                        let due = now + random(query.within);
                        known.answer_due = sooner(known.answer_due, due);
                        self.answers_due = sooner(self.answers_due, due);
                    }
                }
            }
        }
    }

    /// Another host has told of a group in an older version: this one need not.
    pub fn heard_report(&mut self, now: Nanos, group: A) {
        if self.version(now) != Version::Newest
            && let Ok(at) = self.position(group)
        {
            self.groups[at].answer_due = None;
        }
    }

    /// The version in which the link's routers ask.
    #[must_use]
    pub fn version(&self, now: Nanos) -> Version {
        self.older.version(now)
    }

    /// The messages that are due. Those that there is no memory for are lost, as on a link.
    pub fn messages(
        &mut self,
        now: Nanos,
        mut random: impl FnMut(Nanos) -> Nanos,
    ) -> Vec<MessageOf<A>> {
        let mut messages = Messages::new(self.version(now));
        if self.changes_due.is_some_and(|due| due <= now) {
            let within = match self.version(now) {
                Version::Newest => AGAIN_WITHIN,
                Version::First | Version::Second => OLDER_AGAIN_WITHIN,
            };
            for group in &mut self.groups {
                group.tell_changes(&mut messages);
            }
            self.groups
                .retain(|group| !group.is_empty() || group.has_changes());
            let is_left = self.groups.iter().any(Group::has_changes);
            self.changes_due = is_left.then(|| now + 1 + random(within));
        }
        let all = self.all_due.is_some_and(|due| due <= now);
        if all {
            self.all_due = None;
        }
        if all || self.answers_due.is_some_and(|due| due <= now) {
            self.answers_due = None;
            for group in &mut self.groups {
                if all || group.answer_due.is_some_and(|due| due <= now) {
                    group.answer_due = None;
                    group.tell_state(&mut messages);
                }
                if let Some(due) = group.answer_due {
                    self.answers_due = sooner(self.answers_due, due);
                }
            }
        }
        messages.finish()
    }
}
