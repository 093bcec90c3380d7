//! Access control lists as ext4 stores them: as an attribute, whose entries have a number only
//! where it names somebody.

use alloc::vec::Vec;

use abi::errno::Errno;

use crate::Result;
use crate::acl::{Acl, UncheckedAcl};

/// Version of the stored format, and of the format of extended attributes.
const STORED_VERSION: u32 = 1;
const VERSION: u32 = 2;
/// Tags of entries that name a user or a group.
const NAMED: [u16; 2] = [0x02, 0x08];
const NO_ID: u32 = u32::MAX;

fn split<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk().ok_or(Errno::EUCLEAN)?;
    *bytes = rest;
    Ok(*first)
}

/// The list of a stored value, if it has entries.
pub(super) fn from_stored(mut value: &[u8]) -> Result<Option<Acl>> {
    if u32::from_le_bytes(split(&mut value)?) != STORED_VERSION {
        return Err(Errno::EUCLEAN);
    }
    let mut told: Vec<u8> = fallible::with_capacity(4 + 2 * value.len())?;
    told.extend_from_slice(&VERSION.to_le_bytes());
    while !value.is_empty() {
        let tag_and_access: [u8; 4] = split(&mut value)?;
        let [low, high, ..] = tag_and_access;
        let id = if NAMED.contains(&u16::from_le_bytes([low, high])) {
            split(&mut value)?
        } else {
            NO_ID.to_le_bytes()
        };
        told.extend_from_slice(&tag_and_access);
        told.extend_from_slice(&id);
    }
    let list = UncheckedAcl::from_xattr(&told).map_err(|_| Errno::EUCLEAN)?;
    list.map(|list| list.check().map_err(|_| Errno::EUCLEAN))
        .transpose()
}

/// The value that is stored for a list.
pub(super) fn to_stored(list: &Acl) -> Result<Vec<u8>> {
    let told = list.to_xattr()?;
    let mut value: Vec<u8> = fallible::with_capacity(told.len())?;
    value.extend_from_slice(&STORED_VERSION.to_le_bytes());
    let (entries, _) = told[4..].as_chunks::<8>();
    for entry in entries {
        let is_named = NAMED.contains(&u16::from_le_bytes([entry[0], entry[1]]));
        value.extend_from_slice(if is_named { entry } else { &entry[..4] });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_stored_as_linux_stores_them() {
        // What `setfacl -m u:7:rw` makes of a file of mode 0644, as `debugfs ea_get` shows it.
        let stored = [
            1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 6, 0, 7, 0, 0, 0, 4, 0, 4, 0, 0x10, 0, 6, 0, 0x20, 0, 4,
            0,
        ];
        let list = from_stored(&stored).unwrap().unwrap();
        assert_eq!(list.mode(), 0o664);
        assert_eq!(to_stored(&list).unwrap(), stored);
        assert_eq!(from_stored(&stored[..4]), Ok(None));
        for damaged in [&stored[..3], &stored[..10], &stored[..14], &stored[4..]] {
            assert_eq!(from_stored(damaged), Err(Errno::EUCLEAN));
        }
    }
}
