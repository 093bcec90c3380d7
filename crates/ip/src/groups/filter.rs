//! What the members of a group want, merged (RFC 3376, section 3.2), and which of it nobody has
//! been told of yet (section 5.1).

use alloc::vec::Vec;
use core::net::IpAddr;

use super::report::{MOST_SOURCES, Messages, RecordKind};
use super::{GroupAddress, OutOfMemory};
use crate::Nanos;

/// The mode of a member's filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Only packets of the listed sources are wanted.
    Include,
    /// Packets of the listed sources are not wanted.
    Exclude,
}

/// The packets to a group that a member wants. No source is listed twice.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    /// The mode.
    pub mode: Mode,
    /// The sources, of the group's family.
    pub sources: &'a [IpAddr],
}

/// A source that members list.
#[derive(Debug)]
struct Source<A> {
    address: A,
    /// Members that list it, by the mode of their filters.
    includes: u32,
    excludes: u32,
    /// Whether it was wanted before the change that is being made.
    was_wanted: bool,
    /// How often it is still to be told whether it is wanted.
    left: u8,
}

/// The number of times that something is still to be told.
pub(super) type Told = u8;

/// A group, with all its members of a host.
#[derive(Debug)]
pub(super) struct Group<A> {
    pub(super) address: A,
    /// The host itself is in it.
    pub(super) is_held: bool,
    /// Members by the mode of their filters.
    includes: u32,
    excludes: u32,
    /// In the order of their addresses.
    sources: Vec<Source<A>>,
    /// The mode before the change that is being made.
    old_mode: Mode,
    /// How often the mode is still to be told.
    mode_left: Told,
    /// When the state is told, because a router has asked.
    pub(super) answer_due: Option<Nanos>,
}

impl<A: GroupAddress> Group<A> {
    pub(super) fn new(address: A) -> Self {
        Self {
            address,
            is_held: false,
            includes: 0,
            excludes: 0,
            sources: Vec::new(),
            old_mode: Mode::Include,
            mode_left: 0,
            answer_due: None,
        }
    }

    pub(super) fn members(&self) -> u32 {
        self.includes + self.excludes + u32::from(self.is_held)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members() == 0
    }

    fn mode(&self) -> Mode {
        if self.is_held || self.excludes > 0 {
            Mode::Exclude
        } else {
            Mode::Include
        }
    }

    /// Whether the group's mode lists a source.
    fn lists(&self, source: &Source<A>) -> bool {
        match self.mode() {
            Mode::Include => source.includes > 0,
            // Who wants all but some gets along with who wants all but others if neither's are
            // kept out that the other wants.
            Mode::Exclude => {
                !self.is_held && source.excludes == self.excludes && source.includes == 0
            }
        }
    }

    fn wants(&self, source: &Source<A>) -> bool {
        self.lists(source) == (self.mode() == Mode::Include)
    }

    /// The sources that the mode lists.
    fn listed(&self) -> impl Iterator<Item = A> {
        let all = self.sources.iter().filter(|source| self.lists(source));
        all.map(|source| source.address)
    }

    /// Remembers what was wanted, for [`Self::note_changes`].
    pub(super) fn remember(&mut self) {
        self.old_mode = self.mode();
        for at in 0..self.sources.len() {
            self.sources[at].was_wanted = self.wants(&self.sources[at]);
        }
    }

    /// Adds a member's filter.
    pub(super) fn add(&mut self, filter: &Filter<'_>) -> Result<(), OutOfMemory> {
        let new = filter.sources.len();
        self.sources.try_reserve(new).map_err(|_| OutOfMemory)?;
        *self.members_of(filter.mode) += 1;
        for source in filter.sources.iter().filter_map(|ip| A::of(*ip)) {
            let at = match self.find(source) {
                Ok(at) => at,
                Err(at) => {
                    let new = Source {
                        address: source,
                        includes: 0,
                        excludes: 0,
                        was_wanted: self.old_mode == Mode::Exclude,
                        left: 0,
                    };
                    self.sources.insert(at, new);
                    at
                }
            };
            *self.sources[at].listed_by(filter.mode) += 1;
        }
        Ok(())
    }

    /// Takes a member's filter away.
    pub(super) fn remove(&mut self, filter: &Filter<'_>) {
        let members = self.members_of(filter.mode);
        *members = members.saturating_sub(1);
        for source in filter.sources.iter().filter_map(|ip| A::of(*ip)) {
            if let Ok(at) = self.find(source) {
                let listed = self.sources[at].listed_by(filter.mode);
                *listed = listed.saturating_sub(1);
            }
        }
    }

    fn members_of(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Include => &mut self.includes,
            Mode::Exclude => &mut self.excludes,
        }
    }

    fn find(&self, source: A) -> Result<usize, usize> {
        self.sources
            .binary_search_by_key(&source, |known| known.address)
    }

    /// Has what is different from what was remembered told so many times. Returns whether anything
    /// is.
    pub(super) fn note_changes(&mut self, times: Told) -> bool {
        let has_new_mode = self.mode() != self.old_mode;
        let is_told = self.address.is_told();
        let mut is_news = has_new_mode && is_told;
        if is_news {
            self.mode_left = times;
        }
        for at in 0..self.sources.len() {
            let is_wanted = self.wants(&self.sources[at]);
            let source = &mut self.sources[at];
            if has_new_mode {
                // The new mode is told with all sources.
                source.left = 0;
            } else if is_wanted != source.was_wanted && is_told {
                source.left = times;
                is_news = true;
            }
        }
        self.drop_sources();
        is_news
    }

    fn drop_sources(&mut self) {
        self.sources
            .retain(|source| source.includes + source.excludes > 0 || source.left > 0);
    }

    /// Has all of it told so many times.
    pub(super) fn tell(&mut self, times: Told) {
        if !self.address.is_told() {
            return;
        }
        if self.mode() == Mode::Exclude {
            self.mode_left = times;
        } else {
            for source in &mut self.sources {
                source.left = times;
            }
        }
    }

    pub(super) fn forget_changes(&mut self) {
        self.mode_left = 0;
        self.answer_due = None;
        for source in &mut self.sources {
            source.left = 0;
        }
        self.drop_sources();
    }

    /// Whether something is left to be told.
    pub(super) fn has_changes(&self) -> bool {
        self.mode_left > 0 || self.sources.iter().any(|source| source.left > 0)
    }

    /// Tells what has changed, once.
    pub(super) fn tell_changes(&mut self, messages: &mut Messages<A>) {
        if !self.has_changes() {
            return;
        }
        if messages.is_old() {
            if self.is_empty() {
                // It is said once that the host has left.
                messages.left(self.address);
                return self.forget_changes();
            }
            messages.joined(self.address);
        } else if self.mode_left > 0 {
            let kind = match self.mode() {
                Mode::Include => RecordKind::ToInclude,
                Mode::Exclude => RecordKind::ToExclude,
            };
            messages.record(kind, self.address, self.listed());
            if kind == RecordKind::ToInclude {
                let others = self.listed().skip(MOST_SOURCES);
                messages.changed(RecordKind::Allow, self.address, others);
            }
        } else {
            for (kind, is_wanted) in [(RecordKind::Allow, true), (RecordKind::Block, false)] {
                let all = self.sources.iter();
                let changed =
                    all.filter(|source| source.left > 0 && self.wants(source) == is_wanted);
                messages.changed(kind, self.address, changed.map(|source| source.address));
            }
        }
        self.mode_left = self.mode_left.saturating_sub(1);
        for source in &mut self.sources {
            source.left = source.left.saturating_sub(1);
        }
        self.drop_sources();
    }

    /// Tells what is wanted.
    pub(super) fn tell_state(&self, messages: &mut Messages<A>) {
        if self.is_empty() || !self.address.is_told() {
            return;
        }
        if messages.is_old() {
            return messages.joined(self.address);
        }
        match self.mode() {
            Mode::Include => messages.changed(RecordKind::IsInclude, self.address, self.listed()),
            Mode::Exclude => messages.record(RecordKind::IsExclude, self.address, self.listed()),
        }
    }
}

impl<A> Source<A> {
    fn listed_by(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Include => &mut self.includes,
            Mode::Exclude => &mut self.excludes,
        }
    }
}
