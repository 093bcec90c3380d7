//! Names by which the kernel's command line asks for a disk.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use ::ext4::Identity;

use super::{Disk, DiskClaim, disks};
use crate::DeviceId;
use crate::poll::PollQueue;

/// Disks and partitions that were made known so far, which who waits for one is told of.
static ARRIVALS: AtomicU64 = AtomicU64::new(0);
static ARRIVED: PollQueue = PollQueue::new();

/// Tells those who wait that a disk has become known.
pub(super) fn note_arrival() {
    ARRIVALS.fetch_add(1, Ordering::SeqCst);
    ARRIVED.notify();
}

/// Name of a disk or a partition, as `root=` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskName {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Name of its node.
    Node(String),
    Number(DeviceId),
    /// Identity of a partition, as its table has it.
    Partition(String),
    /// Number of the file system on it.
    FileSystem([u8; 16]),
    /// Name of the file system on it.
    Label(String),
}

impl DiskName {
    /// Reads `/dev/NAME`, `MAJOR:MINOR`, `PARTUUID=…`, `UUID=…` or `LABEL=…`. `None`: it is none of
    /// these.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let kind = if let Some(node) = text.strip_prefix("/dev/") {
            Kind::Node(filled(node)?)
        } else if let Some(number) = text.strip_prefix("PARTUUID=") {
            Kind::Partition(filled(number)?)
        } else if let Some(number) = text.strip_prefix("UUID=") {
            Kind::FileSystem(uuid(number)?)
        } else if let Some(label) = text.strip_prefix("LABEL=") {
            Kind::Label(filled(label)?)
        } else {
            let (major, minor) = text.split_once(':')?;
            Kind::Number(DeviceId::new(major.parse().ok()?, minor.parse().ok()?))
        };
        let text = text.into();
        Some(Self { text, kind })
    }

    /// The disk of that name, if there is one now. By what is on a disk it is found if nobody else
    /// has that for himself; of several, the one with the lowest number.
    #[must_use]
    pub fn find(&self) -> Option<Arc<Disk>> {
        disks().into_iter().find(|disk| self.is_of(disk))
    }

    /// Waits until there is a disk of that name.
    #[must_use]
    pub fn wait(&self) -> Arc<Disk> {
        loop {
            let seen = ARRIVALS.load(Ordering::SeqCst);
            if let Some(disk) = self.find() {
                return disk;
            }
            // What is on disks is not looked at while one waits.
            ARRIVED
                .wait_uninterruptible(|| (ARRIVALS.load(Ordering::SeqCst) != seen).then_some(()));
        }
    }

    fn is_of(&self, disk: &Disk) -> bool {
        match &self.kind {
            Kind::Node(name) => disk.name() == name,
            Kind::Number(id) => disk.id() == *id,
            Kind::Partition(wanted) => disk
                .part
                .as_ref()
                .and_then(|part| part.identity)
                .is_some_and(|own| own.to_string().eq_ignore_ascii_case(wanted)),
            Kind::FileSystem(wanted) => identity(disk).is_some_and(|own| own.uuid == *wanted),
            Kind::Label(wanted) => identity(disk).is_some_and(|own| {
                let end = own.label.iter().position(|byte| *byte == 0);
                own.label[..end.unwrap_or(own.label.len())] == *wanted.as_bytes()
            }),
        }
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.into())
}

/// Names of the ext4 file system on a disk.
fn identity(disk: &Disk) -> Option<Identity> {
    if disk.device().capacity() < Identity::OFFSET + Identity::BYTES as u64 {
        return None;
    }
    let claim = DiskClaim::new(disk.id()).ok()?;
    let mut raw = [0; Identity::BYTES];
    let read = claim.disk().cache().read(Identity::OFFSET, &mut raw).ok()?;
    if read == raw.len() {
        Identity::parse(&raw)
    } else {
        None
    }
}

/// The bytes of a number as `01234567-89ab-cdef-0123-456789abcdef`.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let mut bytes = [0; 16];
    let mut digits = 0;
    for (at, letter) in text.bytes().enumerate() {
        if is_dash(at) {
            if letter != b'-' {
                return None;
            }
            continue;
        }
        let digit = char::from(letter).to_digit(16)? as u8;
        let byte = bytes.get_mut(digits / 2)?;
        *byte = *byte << 4 | digit;
        digits += 1;
    }
    (text.len() == 36).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_linux() {
        let kind = |text: &str| DiskName::parse(text).map(|name| name.kind);
        assert_eq!(kind("/dev/vda1"), Some(Kind::Node("vda1".into())));
        assert_eq!(kind("254:1"), Some(Kind::Number(DeviceId::new(254, 1))));
        let number = "PARTUUID=12ab34cd-02";
        assert_eq!(kind(number), Some(Kind::Partition("12ab34cd-02".into())));
        assert_eq!(kind("LABEL=root"), Some(Kind::Label("root".into())));
        let raw = [1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
        let mut twice = [0; 16];
        twice[..8].copy_from_slice(&raw);
        twice[8..].copy_from_slice(&raw);
        let number = "UUID=01234567-89AB-cdef-0123-456789abcdef";
        assert_eq!(kind(number), Some(Kind::FileSystem(twice)));
        for wrong in [
            "",
            "vda1",
            "/dev/",
            "LABEL=",
            "PARTUUID=",
            "UUID=01234567",
            "UUID=0123456789abcdef0123456789abcdef0000",
            "UUID=01234567-89ab-cdef-0123-456789abcdef0",
            "1:",
            "a:1",
            "/dev",
        ] {
            assert_eq!(kind(wrong), None, "{wrong}");
        }
    }
}
