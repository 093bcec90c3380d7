//! Who somebody is, and what he may do: user and group ids, capability sets, secure bits
//! (`credentials(7)`, `capabilities(7)`).
//!
//! All rules by which these change are here, without anything of the kernel; the calls are in the
//! folder `cred` and in `prctl`.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::Cred;
use linux_raw_sys::general as sys;

/// A set of capabilities: bit `n` is capability `n` (`CAP_*`).
pub type CapSet = u64;

/// All capabilities there are.
pub const ALL_CAPABILITIES: CapSet = (1 << (sys::CAP_LAST_CAP + 1)) - 1;

/// The set of some capabilities.
const fn set(capabilities: &[u32]) -> CapSet {
    let (mut set, mut i) = (0, 0);
    while i < capabilities.len() {
        set |= 1 << capabilities[i];
        i += 1;
    }
    set
}

/// Capabilities that follow the user id the file system sees.
const FILE_CAPABILITIES: CapSet = set(&[
    sys::CAP_CHOWN,
    sys::CAP_DAC_OVERRIDE,
    sys::CAP_DAC_READ_SEARCH,
    sys::CAP_FOWNER,
    sys::CAP_FSETID,
    sys::CAP_LINUX_IMMUTABLE,
    sys::CAP_MKNOD,
    sys::CAP_MAC_OVERRIDE,
]);

/// Secure bit: the superuser gets no capabilities by `execve(2)`.
pub const NOROOT: u32 = 1 << 0;
/// Secure bit: capabilities do not change with user ids.
pub const NO_SETUID_FIXUP: u32 = 1 << 2;
/// Secure bit: permitted capabilities outlast the end of being the superuser, until `execve(2)`.
pub const KEEP_CAPS: u32 = 1 << 4;
/// Secure bit: no ambient capability can be added.
pub const NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;
/// Each secure bit has a lock, the next higher bit: it and the bit stay as they are.
const LOCKS: u32 = 0xaa;
const SECURE_BITS: u32 = 0xff;

/// The five sets of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Capabilities that the thread may make effective.
    pub permitted: CapSet,
    /// Capabilities that permissions are decided by.
    pub effective: CapSet,
    /// Capabilities that `execve(2)` keeps if the file says so.
    pub inheritable: CapSet,
    /// Capabilities that `execve(2)` can give at most.
    pub bounding: CapSet,
    /// Capabilities that `execve(2)` keeps of an ordinary file.
    pub ambient: CapSet,
}

impl Capabilities {
    /// Everything; nothing is inherited.
    pub const ALL: Self = Self {
        permitted: ALL_CAPABILITIES,
        effective: ALL_CAPABILITIES,
        inheritable: 0,
        bounding: ALL_CAPABILITIES,
        ambient: 0,
    };
}

/// Real, effective and saved id, and the one the file system sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// ID of who started the process.
    pub real: u32,
    /// ID that the process acts as.
    pub effective: u32,
    /// ID that the process may take on again.
    pub saved: u32,
    /// ID that files see; follows `effective`.
    pub fs: u32,
}

/// Id that a call sets; `None` for `u32::MAX`, which leaves it as it is.
fn id_to_set(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

impl Ids {
    /// All four are this one.
    #[must_use]
    pub const fn all(id: u32) -> Self {
        Self {
            real: id,
            effective: id,
            saved: id,
            fs: id,
        }
    }

    /// Whether one of the first three is this.
    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }

    /// Whether all of the first three are this.
    fn all_are(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved] == [id; 3]
    }

    /// Real, effective, saved and file system id: the order of `/proc/<pid>/status`.
    #[must_use]
    pub fn list(&self) -> [u32; 4] {
        [self.real, self.effective, self.saved, self.fs]
    }

    /// `setuid(2)` of one kind of ids.
    ///
    /// # Errors
    /// `EINVAL`; `EPERM`.
    pub fn setuid(self, privileged: bool, id: u32) -> Result<Self, Errno> {
        if id == u32::MAX {
            return Err(Errno::EINVAL);
        }
        if privileged {
            return Ok(Self {
                real: id,
                effective: id,
                saved: id,
                fs: id,
            });
        }
        if id == self.real || id == self.saved {
            Ok(Self {
                effective: id,
                fs: id,
                ..self
            })
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Ids after `setreuid(2)`; [`u32::MAX`] leaves one as it is.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn setreuid(self, privileged: bool, real: u32, effective: u32) -> Result<Self, Errno> {
        let (real, effective) = (id_to_set(real), id_to_set(effective));
        let real_allowed = real.is_none_or(|id| id == self.real || id == self.effective);
        let allowed = privileged || real_allowed && effective.is_none_or(|id| self.has(id));
        if !allowed {
            return Err(Errno::EPERM);
        }
        let new_effective = effective.unwrap_or(self.effective);
        let keeps_saved = real.is_none() && effective.is_none_or(|id| id == self.real);
        let saved = if keeps_saved {
            self.saved
        } else {
            new_effective
        };
        Ok(Self {
            real: real.unwrap_or(self.real),
            effective: new_effective,
            saved,
            fs: new_effective,
        })
    }

    /// Ids after `setresuid(2)`; [`u32::MAX`] leaves one as it is.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn setresuid(
        self,
        privileged: bool,
        real: u32,
        effective: u32,
        saved: u32,
    ) -> Result<Self, Errno> {
        let [real, effective, saved] = [real, effective, saved].map(id_to_set);
        if !privileged
            && ![real, effective, saved]
                .into_iter()
                .flatten()
                .all(|id| self.has(id))
        {
            return Err(Errno::EPERM);
        }
        let effective = effective.unwrap_or(self.effective);
        Ok(Self {
            real: real.unwrap_or(self.real),
            effective,
            saved: saved.unwrap_or(self.saved),
            fs: effective,
        })
    }
}

/// Ids and capabilities of a caller that count when it looks into another process
/// (`ptrace(2)`, "Ptrace access mode checking").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceCreds {
    /// The real ids and the permitted capabilities: of most system calls.
    Real,
    /// Ids that files see and the effective capabilities: of a file in `/proc`.
    Fs,
}

/// Users, groups and capabilities of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// User ids: real, effective, saved, of the file system.
    pub user: Ids,
    /// Group ids: real, effective, saved, of the file system.
    pub group: Ids,
    /// Ids of the supplementary groups (`setgroups(2)`).
    pub groups: Arc<[u32]>,
    /// Sets of capabilities (`capabilities(7)`).
    pub caps: Capabilities,
    /// Secure bits (`SECBIT_*`), which limit what user 0 gets.
    pub securebits: u32,
    /// `execve(2)` gives nothing that was not there before.
    pub no_new_privs: bool,
}

impl Credentials {
    /// Credentials of the superuser: all ids 0, all capabilities.
    #[must_use]
    pub fn root() -> Self {
        Self {
            user: Ids::default(),
            group: Ids::default(),
            groups: Arc::from([]),
            caps: Capabilities::ALL,
            securebits: 0,
            no_new_privs: false,
        }
    }

    /// Whether a capability is effective.
    #[must_use]
    pub fn capable(&self, capability: u32) -> bool {
        self.caps.effective >> capability & 1 != 0
    }

    /// Whether it may administrate the system (`CAP_SYS_ADMIN`).
    #[must_use]
    pub fn has_sys_admin(&self) -> bool {
        self.capable(sys::CAP_SYS_ADMIN)
    }

    /// Credentials for the file system: `fsuid`, `fsgid`, groups.
    #[must_use]
    pub fn fs_cred(&self) -> Cred {
        Cred {
            uid: self.user.fs,
            gid: self.group.fs,
            groups: self.groups.clone(),
            caps: self.caps.effective,
        }
    }

    /// Credentials for the file system with the real user's ids (`access(2)`).
    #[must_use]
    pub fn real_fs_cred(&self) -> Cred {
        let caps = if self.securebits & NO_SETUID_FIXUP != 0 {
            self.caps.effective
        } else if self.user.real == 0 {
            self.caps.permitted
        } else {
            0
        };
        Cred {
            uid: self.user.real,
            gid: self.group.real,
            groups: self.groups.clone(),
            caps,
        }
    }

    /// Whether it may send signals to a process of `other`'s.
    #[must_use]
    pub fn may_signal(&self, other: &Self) -> bool {
        let mine = [self.user.effective, self.user.real];
        mine.contains(&other.user.real)
            || mine.contains(&other.user.saved)
            || self.capable(sys::CAP_KILL)
    }

    /// Whether it may look into, and change, a process of `other`'s that can be dumped or not, by
    /// the ids and capabilities that count for what it does (Linux `__ptrace_may_access`).
    #[must_use]
    pub fn may_trace(&self, by: TraceCreds, other: &Self, dumpable: bool) -> bool {
        let (user, group, caps) = match by {
            TraceCreds::Real => (self.user.real, self.group.real, self.caps.permitted),
            TraceCreds::Fs => (self.user.fs, self.group.fs, self.caps.effective),
        };
        let same = other.user.all_are(user) && other.group.all_are(group);
        let covers = other.caps.permitted & !caps == 0;
        same && dumpable && covers || self.capable(sys::CAP_SYS_PTRACE)
    }

    /// Whether a child of `other`'s may ask to be traced by a parent with these
    /// (`PTRACE_TRACEME`): the child may do no more than the parent.
    #[must_use]
    pub fn may_trace_child(&self, other: &Self) -> bool {
        other.caps.permitted & !self.caps.permitted == 0 || self.capable(sys::CAP_SYS_PTRACE)
    }

    /// Whether somebody with these acts as somebody else than with `old`, or may do more: nobody
    /// who could look into him before may do so any more.
    #[must_use]
    pub fn exceeds(&self, old: &Self) -> bool {
        let acts_as = |cred: &Self| {
            [
                cred.user.effective,
                cred.user.fs,
                cred.group.effective,
                cred.group.fs,
            ]
        };
        acts_as(self) != acts_as(old) || self.caps.permitted & !old.caps.permitted != 0
    }

    /// Whether it may change the limits of a process of `other`'s.
    #[must_use]
    pub fn may_limit(&self, other: &Self) -> bool {
        let same = other.user.all_are(self.user.real) && other.group.all_are(self.group.real);
        same || self.capable(sys::CAP_SYS_RESOURCE)
    }

    /// Whether it may change how a thread of `other`'s is scheduled, other than by capability.
    #[must_use]
    pub fn owns_schedule_of(&self, other: &Self) -> bool {
        [other.user.real, other.user.effective].contains(&self.user.effective)
    }

    /// Credentials with other user ids: capabilities follow, unless a secure bit says otherwise.
    #[must_use]
    pub fn with_user(&self, user: Ids) -> Self {
        let mut new = Self {
            user,
            ..self.clone()
        };
        if self.securebits & NO_SETUID_FIXUP != 0 {
            return new;
        }
        let caps = &mut new.caps;
        if self.user.has(0) && !user.has(0) {
            if self.securebits & KEEP_CAPS == 0 {
                (caps.permitted, caps.effective) = (0, 0);
            }
            caps.ambient = 0;
        }
        if self.user.effective == 0 && user.effective != 0 {
            caps.effective = 0;
        } else if self.user.effective != 0 && user.effective == 0 {
            caps.effective = caps.permitted;
        }
        new
    }

    /// Credentials with another user id for the file system.
    #[must_use]
    pub fn with_file_user(&self, id: u32) -> Self {
        let mut new = Self {
            user: Ids {
                fs: id,
                ..self.user
            },
            ..self.clone()
        };
        if self.securebits & NO_SETUID_FIXUP == 0 {
            if self.user.fs == 0 && id != 0 {
                new.caps.effective &= !FILE_CAPABILITIES;
            } else if self.user.fs != 0 && id == 0 {
                new.caps.effective |= self.caps.permitted & FILE_CAPABILITIES;
            }
        }
        new
    }

    /// Credentials with the sets that `capset(2)` asks for.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn with_sets(
        &self,
        permitted: CapSet,
        effective: CapSet,
        inheritable: CapSet,
    ) -> Result<Self, Errno> {
        let [permitted, effective, inheritable] =
            [permitted, effective, inheritable].map(|set| set & ALL_CAPABILITIES);
        let old = &self.caps;
        let within = |set: CapSet, limit: CapSet| set & !limit == 0;
        let inherits =
            self.capable(sys::CAP_SETPCAP) || within(inheritable, old.inheritable | old.permitted);
        let allowed = inherits
            && within(inheritable, old.inheritable | old.bounding)
            && within(permitted, old.permitted)
            && within(effective, permitted);
        if !allowed {
            return Err(Errno::EPERM);
        }
        let ambient = old.ambient & permitted & inheritable;
        Ok(Self {
            caps: Capabilities {
                permitted,
                effective,
                inheritable,
                bounding: old.bounding,
                ambient,
            },
            ..self.clone()
        })
    }

    /// Credentials with other secure bits.
    ///
    /// # Errors
    /// `EPERM` for bits that are locked or not there, and without `CAP_SETPCAP`.
    pub fn with_secure_bits(&self, bits: u32) -> Result<Self, Errno> {
        let old = self.securebits;
        let locked = (old & LOCKS) >> 1;
        let allowed = (old ^ bits) & locked == 0
            && old & LOCKS & !bits == 0
            && bits & !SECURE_BITS == 0
            && self.capable(sys::CAP_SETPCAP);
        if allowed {
            Ok(Self {
                securebits: bits,
                ..self.clone()
            })
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Credentials with permitted capabilities kept over a change of user ids, or not.
    ///
    /// # Errors
    /// `EPERM` if that is locked.
    pub fn with_keep_caps(&self, keep: bool) -> Result<Self, Errno> {
        if self.securebits & KEEP_CAPS << 1 != 0 {
            return Err(Errno::EPERM);
        }
        let others = self.securebits & !KEEP_CAPS;
        Ok(Self {
            securebits: if keep { others | KEEP_CAPS } else { others },
            ..self.clone()
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn user(id: u32) -> Credentials {
        let root = Credentials::root();
        let group = root.group.setuid(true, id).unwrap();
        Credentials {
            group,
            ..root.with_user(root.user.setuid(true, id).unwrap())
        }
    }

    #[test]
    fn capabilities_go_with_the_superuser() {
        let root = Credentials::root();
        let ordinary = user(7);
        assert_eq!((ordinary.caps.permitted, ordinary.caps.effective), (0, 0));
        assert_eq!(ordinary.caps.bounding, ALL_CAPABILITIES);
        // Effective only: they come back.
        let acting = root.with_user(root.user.setresuid(true, u32::MAX, 7, u32::MAX).unwrap());
        assert_eq!(
            (acting.caps.permitted, acting.caps.effective),
            (ALL_CAPABILITIES, 0)
        );
        let back = acting.with_user(acting.user.setresuid(false, u32::MAX, 0, u32::MAX).unwrap());
        assert_eq!(back, root);
        let kept = root.with_keep_caps(true).unwrap();
        let kept = kept.with_user(kept.user.setuid(true, 7).unwrap());
        assert_eq!(
            (kept.caps.permitted, kept.caps.effective),
            (ALL_CAPABILITIES, 0)
        );
        assert!(
            kept.with_sets(kept.caps.permitted, 1 << sys::CAP_KILL, 0)
                .unwrap()
                .capable(sys::CAP_KILL)
        );
    }

    #[test]
    fn the_file_user_takes_file_capabilities_only() {
        let root = Credentials::root();
        let file = root.with_file_user(7);
        assert!(!file.capable(sys::CAP_DAC_OVERRIDE) && file.capable(sys::CAP_KILL));
        assert_eq!(file.with_file_user(0), root);
    }

    #[test]
    fn sets_only_shrink() {
        let root = Credentials::root();
        let less = root.with_sets(0b11, 0b1, 0).unwrap();
        assert_eq!(less.with_sets(0b111, 0b1, 0), Err(Errno::EPERM));
        assert_eq!(less.with_sets(0b11, 0b100, 0), Err(Errno::EPERM));
        assert_eq!(less.with_sets(0b11, 0b10, 0b100), Err(Errno::EPERM));
        assert!(less.with_sets(0b10, 0b10, 0b10).is_ok());
    }

    #[test]
    fn secure_bits_can_be_locked() {
        let root = Credentials::root();
        let locked = root.with_secure_bits(NOROOT | NOROOT << 1).unwrap();
        assert_eq!(locked.with_secure_bits(0), Err(Errno::EPERM));
        assert!(
            locked
                .with_secure_bits(NOROOT | NOROOT << 1 | NO_SETUID_FIXUP)
                .is_ok()
        );
        assert_eq!(user(7).with_secure_bits(NOROOT), Err(Errno::EPERM));
    }

    #[test]
    fn who_may_signal_and_trace() {
        let (root, one, other) = (Credentials::root(), user(7), user(8));
        assert!(
            root.may_signal(&one)
                && !one.may_signal(&root)
                && one.may_signal(&one)
                && !one.may_signal(&other)
        );
        for by in [TraceCreds::Real, TraceCreds::Fs] {
            assert!(
                root.may_trace(by, &one, false)
                    && one.may_trace(by, &one, true)
                    && !one.may_trace(by, &one, false)
            );
            assert!(!one.may_trace(by, &other, true) && !one.may_trace(by, &root, true));
        }
        assert!(one.may_limit(&one) && !one.may_limit(&other));
    }

    #[test]
    fn whose_ids_and_capabilities_count_when_somebody_looks_into_a_process() {
        let (one, other) = (user(7), user(8));
        // Acts as 8 with the real ids of 7: a program of 8's with set-id bits.
        let mut acting = one.clone();
        (acting.user.effective, acting.user.fs) = (8, 8);
        (acting.group.effective, acting.group.fs) = (8, 8);
        let seen = |by, target| acting.may_trace(by, target, true);
        assert!(seen(TraceCreds::Real, &one) && !seen(TraceCreds::Real, &other));
        assert!(seen(TraceCreds::Fs, &other) && !seen(TraceCreds::Fs, &one));
        // All three ids of both kinds must be the caller's.
        for part in 0..6 {
            let mut mixed = one.clone();
            let ids = if part < 3 {
                &mut mixed.user
            } else {
                &mut mixed.group
            };
            *[&mut ids.real, &mut ids.effective, &mut ids.saved][part % 3] = 8;
            assert!(!one.may_trace(TraceCreds::Real, &mixed, true), "{part}");
            assert!(!one.may_trace(TraceCreds::Fs, &mixed, true), "{part}");
        }
        // Who has a capability is looked into by those who have it, too.
        let mut able = one.clone();
        able.caps.permitted = 1 << sys::CAP_KILL;
        assert!(!one.may_trace(TraceCreds::Real, &able, true));
        assert!(able.may_trace(TraceCreds::Real, &able, true));
        assert!(
            !able.may_trace(TraceCreds::Fs, &able, true),
            "it is permitted and not effective"
        );
        able.caps.effective = able.caps.permitted;
        assert!(able.may_trace(TraceCreds::Fs, &able, true));
    }

    #[test]
    fn who_may_be_asked_to_trace_a_child() {
        let (root, one, other) = (Credentials::root(), user(7), user(8));
        assert!(one.may_trace_child(&other) && root.may_trace_child(&one));
        assert!(!one.may_trace_child(&root));
        let mut tracer = one.clone();
        tracer.caps.effective = 1 << sys::CAP_SYS_PTRACE;
        assert!(tracer.may_trace_child(&root));
    }

    #[test]
    fn who_exceeds_whom() {
        let (root, one) = (Credentials::root(), user(7));
        assert!(one.exceeds(&root) && root.exceeds(&one) && !one.exceeds(&one));
        for part in 0..4 {
            let mut new = one.clone();
            *[
                &mut new.user.effective,
                &mut new.user.fs,
                &mut new.group.effective,
                &mut new.group.fs,
            ][part] = 8;
            assert!(new.exceeds(&one), "{part}");
        }
        let mut new = one.clone();
        (new.user.real, new.user.saved) = (8, 8);
        assert!(!new.exceeds(&one), "it acts as before");
        let mut able = one.clone();
        able.caps.permitted = 1 << sys::CAP_KILL;
        assert!(able.exceeds(&one) && !one.exceeds(&able));
    }
}
