//! What running a file makes of who runs it: set-id bits, and capabilities of files
//! (`capabilities(7)`).

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::state::credentials::{
    ALL_CAPABILITIES, CapSet, Capabilities, Credentials, KEEP_CAPS, NOROOT,
};

/// Ids that a file's set-id bits ask for.
#[derive(Clone, Copy, Default, Debug)]
pub struct SetIds {
    /// The owner, of a set-user-id file.
    pub user: Option<u32>,
    /// The group, of a set-group-id file.
    pub group: Option<u32>,
}

/// Capabilities that a file's extended attribute `security.capability` gives to who runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCapabilities {
    /// Whatever the bounding set allows of these.
    permitted: CapSet,
    /// Capabilities that the file gives if the thread's inheritable set has them, too.
    inheritable: CapSet,
    /// All it gets is effective at once; then it must get all, or the program does not run.
    effective: bool,
}

impl FileCapabilities {
    /// The attribute's value: a word with revision and flag, then for each 32 capabilities a word
    /// of permitted and one of inheritable ones; in revision 3 the user who is root where they
    /// count. `None` if that is not our root.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        let word = |at: usize| {
            value
                .get(4 * at..4 * at + 4)
                .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        };
        let magic = word(0).ok_or(Errno::EINVAL)?;
        let (words, len) = match magic & sys::VFS_CAP_REVISION_MASK {
            sys::VFS_CAP_REVISION_1 => (1, 12),
            sys::VFS_CAP_REVISION_2 => (2, 20),
            sys::VFS_CAP_REVISION_3 => (2, 24),
            _ => return Err(Errno::EINVAL),
        };
        if value.len() != len {
            return Err(Errno::EINVAL);
        }
        if len == 24 && word(5) != Some(0) {
            return Ok(None);
        }
        let set = |first: usize| {
            let bits = |i: usize| u64::from(word(first + 2 * i).unwrap_or(0)) << (32 * i);
            (0..words).fold(0, |set, i| set | bits(i)) & ALL_CAPABILITIES
        };
        Ok(Some(Self {
            permitted: set(1),
            inheritable: set(2),
            effective: magic & sys::VFS_CAP_FLAGS_EFFECTIVE != 0,
        }))
    }
}

impl Credentials {
    /// Credentials after running a file, and whether the program must not trust its environment
    /// (`AT_SECURE`). `set_ids` and `file` are those that the mount allows. The order is Linux'
    /// (`cap_bprm_creds_from_file`).
    ///
    /// # Errors
    /// `EPERM` if the file's capabilities are to be effective, and it does not get all of them.
    pub fn after_exec(
        &self,
        set_ids: SetIds,
        file: Option<FileCapabilities>,
    ) -> Result<(Self, bool), Errno> {
        let mut new = self.clone();
        let old = self.caps;
        if !self.no_new_privs {
            new.user.effective = set_ids.user.unwrap_or(new.user.effective);
            new.group.effective = set_ids.group.unwrap_or(new.group.effective);
        }
        let (mut permitted, mut effective) = (0, false);
        if let Some(file) = file {
            permitted = old.bounding & file.permitted | old.inheritable & file.inheritable;
            effective = file.effective;
            if effective && file.permitted & !permitted != 0 {
                return Err(Errno::EPERM);
            }
        }
        // What a set-user-id file of root's gives to others is what its capabilities say, if it has
        // any.
        let acts_as_root = new.user.effective == 0;
        let limited = file.is_some() && acts_as_root && new.user.real != 0;
        if self.securebits & NOROOT == 0 && !limited {
            if acts_as_root || new.user.real == 0 {
                permitted = old.bounding | old.inheritable;
            }
            effective |= acts_as_root;
        }
        let switched =
            new.user.effective != self.user.real || new.group.effective != self.group.real;
        if self.no_new_privs && (switched || permitted & !old.permitted != 0) {
            (new.user.effective, new.group.effective) = (new.user.real, new.group.real);
            permitted &= old.permitted;
        }
        let ambient = if file.is_some() || switched {
            0
        } else {
            old.ambient
        };
        permitted |= ambient;
        new.caps = Capabilities {
            permitted,
            effective: if effective { permitted } else { ambient },
            ambient,
            ..old
        };
        (new.user.saved, new.user.fs) = (new.user.effective, new.user.effective);
        (new.group.saved, new.group.fs) = (new.group.effective, new.group.effective);
        new.securebits &= !KEEP_CAPS;
        let gained = new.user.real != 0 && (effective || permitted & !ambient != 0);
        Ok((new, switched || gained))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::credentials::NO_SETUID_FIXUP;
    use crate::state::credentials::tests::user;

    const BIND: CapSet = 1 << sys::CAP_NET_BIND_SERVICE;
    const RAW: CapSet = 1 << sys::CAP_NET_RAW;

    fn file(permitted: CapSet, inheritable: CapSet, effective: bool) -> Option<FileCapabilities> {
        Some(FileCapabilities {
            permitted,
            inheritable,
            effective,
        })
    }

    #[test]
    fn running_a_file() {
        let root = Credentials::root();
        assert_eq!(
            root.after_exec(SetIds::default(), None).unwrap(),
            (root.clone(), false)
        );
        let ordinary = user(7);
        assert_eq!(
            ordinary.after_exec(SetIds::default(), None).unwrap(),
            (ordinary.clone(), false)
        );
        let (powerful, secure) = ordinary
            .after_exec(
                SetIds {
                    user: Some(0),
                    group: None,
                },
                None,
            )
            .unwrap();
        assert!(secure);
        assert_eq!(powerful.user.list(), [7, 0, 0, 0]);
        assert_eq!(powerful.caps.effective, ALL_CAPABILITIES);
        let bound = Credentials {
            no_new_privs: true,
            ..ordinary.clone()
        };
        assert_eq!(
            bound
                .after_exec(
                    SetIds {
                        user: Some(0),
                        group: Some(0)
                    },
                    None
                )
                .unwrap(),
            (bound.clone(), false)
        );
        // The bounding set holds for the superuser, too.
        let mut bounded = ordinary.clone();
        bounded.caps.bounding &= !(1 << sys::CAP_KILL);
        let (powerful, _) = bounded
            .after_exec(
                SetIds {
                    user: Some(0),
                    group: None,
                },
                None,
            )
            .unwrap();
        assert!(!powerful.capable(sys::CAP_KILL) && powerful.capable(sys::CAP_CHOWN));
        // Ambient capabilities outlast an ordinary file.
        let mut ambient = ordinary;
        let set = 1 << sys::CAP_NET_BIND_SERVICE;
        ambient.caps = Capabilities {
            permitted: set,
            effective: set,
            inheritable: set,
            ambient: set,
            ..ambient.caps
        };
        let (after, secure) = ambient.after_exec(SetIds::default(), None).unwrap();
        assert_eq!(
            (after.caps.effective, after.caps.permitted, secure),
            (set, set, false)
        );
        let (after, _) = ambient
            .after_exec(
                SetIds {
                    user: Some(9),
                    group: None,
                },
                None,
            )
            .unwrap();
        assert_eq!(after.caps.effective, 0);
    }

    #[test]
    fn values_of_the_attribute() {
        let value = |revision: u32, words: &[u32]| {
            [revision]
                .iter()
                .chain(words)
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let parse = |revision, words: &[u32]| FileCapabilities::parse(&value(revision, words));
        assert_eq!(
            parse(0x0200_0001, &[BIND as u32, 0, 0, 0]),
            Ok(file(BIND, 0, true))
        );
        assert_eq!(
            parse(0x0200_0000, &[0, RAW as u32, 1 << 8, 1 << 31]),
            Ok(file(1 << 40, RAW, false))
        );
        assert_eq!(
            parse(0x0100_0001, &[BIND as u32, RAW as u32]),
            Ok(file(BIND, RAW, true))
        );
        assert_eq!(
            parse(0x0300_0001, &[BIND as u32, 0, 0, 0, 0]),
            Ok(file(BIND, 0, true))
        );
        assert_eq!(parse(0x0300_0001, &[BIND as u32, 0, 0, 0, 1000]), Ok(None));
        for (revision, words) in [
            (0x0200_0000, 5),
            (0x0200_0000, 3),
            (0x0400_0000, 4),
            (0, 4),
            (0x0300_0000, 4),
        ] {
            assert_eq!(parse(revision, &vec![0; words]), Err(Errno::EINVAL));
        }
        assert_eq!(FileCapabilities::parse(&[]), Err(Errno::EINVAL));
    }

    #[test]
    fn capabilities_of_files() {
        let one = user(7);
        let (after, secure) = one
            .after_exec(SetIds::default(), file(BIND, 0, true))
            .unwrap();
        assert_eq!(
            (after.caps.permitted, after.caps.effective, secure),
            (BIND, BIND, true)
        );
        let (after, secure) = one
            .after_exec(SetIds::default(), file(BIND, RAW, false))
            .unwrap();
        assert_eq!(
            (after.caps.permitted, after.caps.effective, secure),
            (BIND, 0, true)
        );
        // Of the inheritable ones what both have.
        let mut inheriting = one.clone();
        inheriting.caps.inheritable = RAW;
        let (after, _) = inheriting
            .after_exec(SetIds::default(), file(0, RAW | BIND, true))
            .unwrap();
        assert_eq!(
            (
                after.caps.permitted,
                after.caps.effective,
                after.caps.inheritable
            ),
            (RAW, RAW, RAW)
        );
        // The bounding set holds; a program that counts on having all does not run.
        let mut bounded = one.clone();
        bounded.caps.bounding &= !BIND;
        assert_eq!(
            bounded.after_exec(SetIds::default(), file(BIND, 0, true)),
            Err(Errno::EPERM)
        );
        assert_eq!(
            bounded
                .after_exec(SetIds::default(), file(BIND | RAW, 0, false))
                .unwrap()
                .0
                .caps
                .permitted,
            RAW
        );
        // Nothing new.
        let bound = Credentials {
            no_new_privs: true,
            ..one.clone()
        };
        assert_eq!(
            bound
                .after_exec(SetIds::default(), file(BIND, 0, true))
                .unwrap()
                .0
                .caps
                .permitted,
            0
        );
        // They take the place of ambient ones, and of all that set-user-id would give.
        let mut ambient = one.clone();
        ambient.caps = Capabilities {
            permitted: RAW,
            effective: RAW,
            inheritable: RAW,
            ambient: RAW,
            ..ambient.caps
        };
        let (after, _) = ambient
            .after_exec(SetIds::default(), file(BIND, 0, true))
            .unwrap();
        assert_eq!((after.caps.permitted, after.caps.ambient), (BIND, 0));
        let (after, _) = one
            .after_exec(
                SetIds {
                    user: Some(0),
                    group: None,
                },
                file(BIND, 0, true),
            )
            .unwrap();
        assert_eq!((after.user.effective, after.caps.permitted), (0, BIND));
        // To root they give nothing but what it has, unless it is nobody special.
        let root = Credentials::root();
        assert_eq!(
            root.after_exec(SetIds::default(), file(BIND, 0, true))
                .unwrap()
                .0
                .caps
                .permitted,
            ALL_CAPABILITIES
        );
        let plain = root.with_secure_bits(NOROOT | NO_SETUID_FIXUP).unwrap();
        assert_eq!(
            plain
                .after_exec(SetIds::default(), None)
                .unwrap()
                .0
                .caps
                .permitted,
            0
        );
        assert_eq!(
            plain
                .after_exec(SetIds::default(), file(BIND, 0, true))
                .unwrap()
                .0
                .caps
                .permitted,
            BIND
        );
    }

    #[test]
    fn a_superuser_with_less_gains_nothing_new() {
        let mut less = Credentials {
            no_new_privs: true,
            ..Credentials::root()
        };
        less.caps.permitted = BIND;
        less.caps.effective = BIND;
        assert_eq!(
            less.after_exec(SetIds::default(), None)
                .unwrap()
                .0
                .caps
                .permitted,
            BIND
        );
        less.no_new_privs = false;
        assert_eq!(
            less.after_exec(SetIds::default(), None)
                .unwrap()
                .0
                .caps
                .permitted,
            ALL_CAPABILITIES
        );
    }
}
