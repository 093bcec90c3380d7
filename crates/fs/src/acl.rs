//! Access control lists: `acl(5)`, the draft of POSIX 1003.1e that Linux follows. A file has one
//! that says who may do what, beside its permission bits; a directory has, besides, one that is
//! given to what is made in it. Programs read and write them as extended attributes.
//!
//! An access list and the permission bits say the same where they overlap: the owner's and the
//! others' bits are those of the list, the group's bits its mask. A list that says no more than the
//! bits is not kept.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;

use crate::{Access, Cred, Permissions, Result, charge};

/// Version of the attributes' format, their header and their entries' length in bytes (Linux
/// `posix_acl_xattr_header`, `posix_acl_xattr_entry`).
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Number of an entry that is about nobody in particular, and of no user or group.
const NO_ID: u32 = u32::MAX;
/// Permission bits of all classes.
const ALL_BITS: u32 = 0o777;

/// One of the lists that a file can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclKind {
    /// The list that says who may do what.
    Access,
    /// The list that new files in a directory get.
    Default,
}

impl AclKind {
    /// Both, in the order in which `listxattr(2)` names them.
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The list that an extended attribute stands for.
    #[must_use]
    pub fn from_xattr(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.xattr() == name)
    }

    /// Name of the list as an extended attribute.
    #[must_use]
    pub const fn xattr(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }
}

/// Kind of user that an entry is about. Entries stand in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    /// The most that entries get which are not the owner's or the others'.
    Mask,
    Others,
}

impl Tag {
    /// Tags with their numbers in an attribute.
    const ALL: [(Self, u16); 6] = [
        (Self::Owner, 0x01),
        (Self::User, 0x02),
        (Self::OwningGroup, 0x04),
        (Self::Group, 0x08),
        (Self::Mask, 0x10),
        (Self::Others, 0x20),
    ];

    fn from_raw(raw: u16) -> Option<Self> {
        let known = Self::ALL.into_iter().find(|(_, known)| *known == raw);
        known.map(|(tag, _)| tag)
    }

    fn raw(self) -> u16 {
        Self::ALL
            .into_iter()
            .find(|(tag, _)| *tag == self)
            .map_or(0, |(_, raw)| raw)
    }

    /// Whether entries of this kind name a user or group.
    const fn is_named(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    /// Bits of [`Access`].
    access: u8,
    id: u32,
}

impl Entry {
    fn grants(self, want: Access) -> bool {
        u32::from(self.access) & want.0 == want.0
    }

    /// Takes away what none of three permission bits allows, and these bits what it does not grant;
    /// the bits then.
    fn intersect(&mut self, bits: u32) -> u32 {
        self.access &= bits as u8 & 7;
        self.access.into()
    }
}

/// A list as an extended attribute has it, of which is not said yet that it makes sense.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct UncheckedAcl {
    entries: Vec<Entry>,
    /// Whether no entry grants what there is not.
    has_known_access: bool,
}

impl UncheckedAcl {
    /// Reads the value of an extended attribute; `None` if that has no entries, by which the list
    /// is taken away.
    ///
    /// # Errors
    /// `EINVAL` for what is none, `EOPNOTSUPP` for another version, `ENOSPC` if memory is short.
    pub(crate) fn from_xattr(value: &[u8]) -> Result<Option<Self>> {
        let (header, rest) = value
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (raw, []) = rest.as_chunks::<ENTRY_BYTES>() else {
            return Err(Errno::EINVAL);
        };
        if raw.is_empty() {
            return Ok(None);
        }
        let mut entries = room_for(raw.len())?;
        let mut has_known_access = true;
        for &[tag0, tag1, access0, access1, id @ ..] in raw {
            let tag = Tag::from_raw(u16::from_le_bytes([tag0, tag1])).ok_or(Errno::EINVAL)?;
            let id = u32::from_le_bytes(id);
            if tag.is_named() && id == NO_ID {
                return Err(Errno::EINVAL);
            }
            has_known_access &= u16::from_le_bytes([access0, access1]) & !7 == 0;
            entries.push(Entry {
                tag,
                access: access0 & 7,
                id: if tag.is_named() { id } else { NO_ID },
            });
        }
        Ok(Some(Self {
            entries,
            has_known_access,
        }))
    }

    /// The list, if entries are in order, those of which there has to be one are there once, and
    /// there is a mask for those that need one (Linux `posix_acl_valid`).
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn check(self) -> Result<Acl> {
        let entries = self.entries;
        let count = |tag: Tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let in_order = entries.is_sorted_by_key(|entry| entry.tag);
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Others].map(count) == [1; 3];
        let masks = count(Tag::Mask);
        let needs_mask = count(Tag::User) + count(Tag::Group) != 0;
        let has_masks = masks == 1 || masks == 0 && !needs_mask;
        if self.has_known_access && in_order && once && has_masks {
            Ok(Acl::new(entries))
        } else {
            Err(Errno::EINVAL)
        }
    }
}

/// A valid access control list. Copies share it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Arc<Box<[Entry]>>);

impl Acl {
    /// The value of the extended attribute.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn to_xattr(&self) -> Result<Vec<u8>> {
        let mut value = fallible::with_capacity(HEADER_BYTES + self.0.len() * ENTRY_BYTES)?;
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &**self.0 {
            value.extend_from_slice(&entry.tag.raw().to_le_bytes());
            value.extend_from_slice(&u16::from(entry.access).to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        Ok(value)
    }

    fn new(entries: Vec<Entry>) -> Self {
        Self(Arc::new(entries.into()))
    }

    /// A copy that `change` has changed; the same list if it changes nothing.
    fn changed(&self, change: impl FnOnce(&mut [Entry])) -> Result<Self> {
        let mut entries = room_for(self.0.len())?;
        entries.extend_from_slice(&self.0);
        change(&mut entries);
        if entries[..] == self.0[..] {
            return Ok(self.clone());
        }
        Ok(Self::new(entries))
    }

    /// The permission bits that say the same, as far as bits can.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let access = |tag: Tag| {
            let entry = self.0.iter().find(|entry| entry.tag == tag);
            entry.map(|entry| u32::from(entry.access))
        };
        let group = access(Tag::Mask).or(access(Tag::OwningGroup));
        [access(Tag::Owner), group, access(Tag::Others)]
            .into_iter()
            .fold(0, |mode, class| mode << 3 | class.unwrap_or(0))
    }

    /// Whether permission bits say all that the list says.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        let plain = |entry: &Entry| !entry.tag.is_named() && entry.tag != Tag::Mask;
        self.0.iter().all(plain)
    }

    /// The list that says the same as these permission bits, of which the group's are the mask's.
    ///
    /// # Errors
    /// `ENOSPC` if memory is short.
    pub fn with_mode(&self, mode: u32) -> Result<Self> {
        self.changed(|entries| {
            for (entry, shift) in classes(entries) {
                entry.access = (mode >> shift & 7) as u8;
            }
        })
    }

    /// The access list of a new file in a directory with this default list, and its permission
    /// bits, of which the program asks for `mode`; no list if the bits say it all.
    ///
    /// # Errors
    /// `ENOSPC` if memory is short.
    pub fn for_new_file(&self, mode: u32) -> Result<(Option<Self>, u32)> {
        let mut granted = mode & !ALL_BITS;
        let list = self.changed(|entries| {
            for (entry, shift) in classes(entries) {
                granted |= entry.intersect(mode >> shift) << shift;
            }
        })?;
        Ok((Some(list).filter(|list| !list.is_mode()), granted))
    }

    /// Whether the list grants something to somebody who does not own the file (Linux
    /// `posix_acl_permission`). A user's own entry counts before all groups'; of groups any that
    /// grants it will do.
    #[must_use]
    pub fn grants(&self, cred: &Cred, of: &Permissions, want: Access) -> bool {
        let mask = self.0.iter().find(|entry| entry.tag == Tag::Mask);
        let masked =
            |entry: &Entry| entry.grants(want) && mask.is_none_or(|mask| mask.grants(want));
        let mut in_any_group = false;
        for entry in &**self.0 {
            let is_member = match entry.tag {
                Tag::User if entry.id == cred.uid => return masked(entry),
                Tag::OwningGroup => cred.in_group(of.gid),
                Tag::Group => cred.in_group(entry.id),
                Tag::Others => return !in_any_group && entry.grants(want),
                _ => false,
            };
            if is_member && entry.grants(want) {
                return masked(entry);
            }
            in_any_group |= is_member;
        }
        false
    }
}

/// Room for a list of so many entries.
fn room_for(entries: usize) -> Result<Vec<Entry>> {
    if !charge::has_room(entries * size_of::<Entry>()) {
        return Err(Errno::ENOSPC);
    }
    fallible::with_capacity(entries).map_err(|_| Errno::ENOSPC)
}

/// Entries of which permission bits are a copy, with the place of the bits. The group's bits are
/// the mask's, if there is one.
fn classes(entries: &mut [Entry]) -> impl Iterator<Item = (&mut Entry, u32)> {
    let group = if entries.iter().any(|entry| entry.tag == Tag::Mask) {
        Tag::Mask
    } else {
        Tag::OwningGroup
    };
    entries.iter_mut().filter_map(move |entry| {
        let shift = match entry.tag {
            Tag::Owner => 6,
            Tag::Others => 0,
            tag if tag == group => 3,
            _ => return None,
        };
        Some((entry, shift))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileType;
    use crate::attributes::FileAttributes;

    const OWNER: u32 = 10;
    const GROUP: u32 = 20;

    /// Value of an attribute with entries of tag, access and number.
    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, access, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(access.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// The list of a value that has one.
    fn read(value: &[u8]) -> Result<Acl> {
        UncheckedAcl::from_xattr(value)?.unwrap().check()
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        read(&value(entries)).unwrap()
    }

    const PLAIN: [(u16, u16, u32); 3] = [(1, 6, NO_ID), (4, 4, NO_ID), (0x20, 0, NO_ID)];
    /// The owner may read and write, user 7 read and write, group 8 read and execute, of which the
    /// mask leaves reading.
    const NAMED: [(u16, u16, u32); 6] = [
        (1, 6, NO_ID),
        (2, 6, 7),
        (4, 0, NO_ID),
        (8, 5, 8),
        (0x10, 4, NO_ID),
        (0x20, 2, NO_ID),
    ];

    #[test]
    fn values_are_taken_as_linux_takes_them() {
        for entries in [&PLAIN[..], &NAMED] {
            assert_eq!(acl(entries).to_xattr().unwrap(), value(entries));
        }
        // The number of an entry that names nobody is not kept.
        let numbered = [(1, 6, 5), (4, 4, 0), (0x20, 0, 1)];
        assert_eq!(acl(&numbered).to_xattr().unwrap(), value(&PLAIN));
        assert_eq!(UncheckedAcl::from_xattr(&value(&[])), Ok(None));
        let without = |place: usize| {
            let mut entries = NAMED.to_vec();
            entries.remove(place);
            value(&entries)
        };
        let with = |place: usize, entry| {
            let mut entries = NAMED.to_vec();
            entries[place] = entry;
            value(&entries)
        };
        let mut swapped = NAMED;
        swapped.swap(1, 2);
        let mut twice = NAMED.to_vec();
        twice.insert(4, (0x10, 4, NO_ID));
        for (wrong, what) in [
            (Vec::new(), "nothing"),
            (vec![2, 0, 0], "part of a header"),
            (value(&PLAIN)[..27].to_vec(), "part of an entry"),
            (without(0), "no owner"),
            (without(2), "no group"),
            (without(4), "no mask, but a user"),
            (without(5), "no others"),
            (with(1, (2, 6, NO_ID)), "a user without a number"),
            (with(1, (2, 8, 7)), "more than there is"),
            (with(1, (3, 6, 7)), "an unknown tag"),
            (value(&swapped), "another order"),
            (value(&twice), "two masks"),
        ] {
            assert_eq!(read(&wrong), Err(Errno::EINVAL), "{what}");
        }
        // Users that are named twice are taken, as on Linux; the first entry counts.
        let doubled = [NAMED[0], NAMED[1], (2, 0, 7), NAMED[2], NAMED[4], NAMED[5]];
        assert!(read(&value(&doubled)).is_ok());
        assert_eq!(read(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn modes_and_lists_say_the_same() {
        assert_eq!((acl(&PLAIN).mode(), acl(&PLAIN).is_mode()), (0o640, true));
        assert_eq!((acl(&NAMED).mode(), acl(&NAMED).is_mode()), (0o642, false));
        // The group's bits are the mask; the group's own entry stays.
        let changed = acl(&NAMED).with_mode(0o751).unwrap();
        let mut entries = NAMED;
        (entries[0].1, entries[4].1, entries[5].1) = (7, 5, 1);
        assert_eq!(changed, acl(&entries));
        assert_eq!(changed.mode(), 0o751);
        let plain = acl(&PLAIN).with_mode(0o111).unwrap();
        assert_eq!(plain.mode(), 0o111);
        let list = acl(&NAMED);
        assert!(Arc::ptr_eq(&list.0, &list.with_mode(0o642).unwrap().0));
    }

    #[test]
    fn new_files_get_what_both_allow() {
        // Of a plain default list only bits are left.
        assert_eq!(acl(&PLAIN).for_new_file(0o2777), Ok((None, 0o2640)));
        assert_eq!(acl(&PLAIN).for_new_file(0o604), Ok((None, 0o600)));
        let (list, mode) = acl(&NAMED).for_new_file(0o666).unwrap();
        assert_eq!((list, mode), (Some(acl(&NAMED)), 0o642));
        let (list, mode) = acl(&NAMED).for_new_file(0o400).unwrap();
        let mut entries = NAMED;
        (entries[0].1, entries[4].1, entries[5].1) = (4, 0, 0);
        assert_eq!((list, mode), (Some(acl(&entries)), 0o400));
    }

    #[test]
    fn the_entry_that_is_about_somebody_counts() {
        let of = |mode| Permissions {
            is_directory: false,
            mode,
            uid: OWNER,
            gid: GROUP,
            attributes: FileAttributes::empty(),
        };
        let granted = |list: &Acl, cred: &Cred| {
            let of = of(list.mode());
            [4, 2, 1].map(|want| cred.check_with_acl(&of, Some(list), Access(want)).is_ok())
        };
        let list = acl(&NAMED);
        let user = |uid, gid| Cred::user(uid, gid);
        assert_eq!(granted(&list, &user(OWNER, 99)), [true, true, false]);
        assert_eq!(granted(&list, &user(7, 99)), [true, false, false], "masked");
        assert_eq!(granted(&list, &user(7, 8)), [true, false, false]);
        assert_eq!(granted(&list, &user(9, 8)), [true, false, false], "masked");
        // A member of a group that grants nothing is not one of the others.
        assert_eq!(granted(&list, &user(9, GROUP)), [false; 3]);
        assert_eq!(granted(&list, &user(9, 99)), [false, true, false]);
        let both = Cred {
            groups: Arc::from([8]),
            ..user(9, GROUP)
        };
        assert_eq!(granted(&list, &both), [true, false, false], "any group");
        // All of what is wanted has to come from one entry.
        let mut halves = NAMED;
        (halves[2].1, halves[3].1, halves[4].1) = (2, 4, 7);
        let list = acl(&halves);
        let of = of(list.mode());
        assert_eq!(granted(&list, &both), [true, true, false]);
        let all = Access::READ.union(Access::WRITE);
        assert!(both.check_with_acl(&of, Some(&list), all).is_err());
        // Without any bits of the group the list is not looked at, as on Linux.
        let mut entries = NAMED;
        entries[4].1 = 0;
        assert_eq!(granted(&acl(&entries), &user(7, 99)), [false, true, false]);
        let root = Cred::root();
        assert_eq!(granted(&list, &root), [true, true, true]);
        assert_eq!(FileType::Regular.mode_bits() & ALL_BITS, 0);
    }
}
