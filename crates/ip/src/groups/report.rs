//! Messages that tell of groups, but for their checksums.

use alloc::vec::Vec;

use super::{GroupAddress, Version};

/// The kind of a record of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// Packets of these sources are wanted.
    IsInclude = 1,
    /// Packets of all but these sources are wanted.
    IsExclude = 2,
    /// From now on packets of these sources are wanted.
    ToInclude = 3,
    /// From now on packets of all but these sources are wanted.
    ToExclude = 4,
    /// Packets of these sources are wanted, too.
    Allow = 5,
    /// Packets of these sources are not wanted any more.
    Block = 6,
}

/// Bytes of a report before its records.
const REPORT_HEADER: usize = 8;
/// Bytes of a record before its addresses.
const RECORD_HEADER: usize = 4;
/// Sources of one record; IPv6's addresses then fit into the least MTU.
pub(super) const MOST_SOURCES: usize = 64;

/// A message that is to be sent.
#[derive(PartialEq, Eq, Debug)]
pub enum MessageOf<A> {
    /// A report of the newest version: its bytes, with zeros for its kind and its checksum.
    Report(Vec<u8>),
    /// The host is in a group: a message of an older version.
    Joined(A),
    /// The host has left a group: a message of an older version.
    Left(A),
}

/// Messages that are being made.
pub(super) struct Messages<A> {
    version: Version,
    list: Vec<MessageOf<A>>,
}

impl<A: GroupAddress> Messages<A> {
    pub(super) fn new(version: Version) -> Self {
        Self {
            version,
            list: Vec::new(),
        }
    }

    /// Whether a message tells of one group only, and of no sources.
    pub(super) fn is_old(&self) -> bool {
        self.version != Version::Newest
    }

    pub(super) fn joined(&mut self, group: A) {
        self.push(MessageOf::Joined(group));
    }

    pub(super) fn left(&mut self, group: A) {
        self.push(MessageOf::Left(group));
    }

    /// Adds a message; one that there is no memory for is lost.
    fn push(&mut self, message: MessageOf<A>) {
        if self.list.try_reserve(1).is_ok() {
            self.list.push(message);
        }
    }

    /// Adds a record with all sources that fit into one. Of those that are not wanted the others
    /// come nevertheless: such a record cannot go on in another (RFC 3376, 4.2.16).
    pub(super) fn record(&mut self, kind: RecordKind, group: A, sources: impl Iterator<Item = A>) {
        self.add(kind, group, &mut sources.take(MOST_SOURCES));
    }

    /// Adds records with sources, if there are any.
    pub(super) fn changed(&mut self, kind: RecordKind, group: A, sources: impl Iterator<Item = A>) {
        let mut sources = sources.peekable();
        while sources.peek().is_some() {
            self.add(kind, group, &mut sources.by_ref().take(MOST_SOURCES));
        }
    }

    fn add(&mut self, kind: RecordKind, group: A, sources: &mut dyn Iterator<Item = A>) {
        let address = usize::from(A::BITS / 8);
        let longest = RECORD_HEADER + (1 + MOST_SOURCES) * address;
        let mut record = Vec::new();
        if record.try_reserve_exact(longest).is_err() {
            return;
        }
        record.extend_from_slice(&[kind as u8, 0, 0, 0]);
        group.write(&mut record);
        let mut count = 0u16;
        for source in sources {
            source.write(&mut record);
            count += 1;
        }
        record[2..4].copy_from_slice(&count.to_be_bytes());
        let fits = |report: &Vec<u8>| report.len() + record.len() <= A::LONGEST_REPORT;
        match self.list.last_mut() {
            Some(MessageOf::Report(report)) if fits(report) => {
                if report.try_reserve(record.len()).is_ok() {
                    report.extend_from_slice(&record);
                    let records = u16::from_be_bytes([report[6], report[7]]) + 1;
                    report[6..8].copy_from_slice(&records.to_be_bytes());
                }
            }
            _ => {
                let mut report = Vec::new();
                if report.try_reserve(REPORT_HEADER + record.len()).is_ok() {
                    report.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1]);
                    report.extend_from_slice(&record);
                    self.push(MessageOf::Report(report));
                }
            }
        }
    }

    pub(super) fn finish(self) -> Vec<MessageOf<A>> {
        self.list
    }
}
