//! What may be followed, linked and opened in directories that everybody may write to: the settings
//! `/proc/sys/fs/protected_*`, and what they forbid (`proc(5)`). With them nobody lays a link, pipe
//! or file of his own in the way of a program that works in `/tmp`.

use core::sync::atomic::{AtomicU8, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general::{S_ISGID, S_ISUID, S_ISVTX, S_IWGRP, S_IWOTH};

use crate::{Access, Cred, FileType, Metadata, Permissions, Result};

/// With 1, links that end a name are not followed in sticky directories that everybody may write
/// to, unless the link belongs to who follows it or to whom the directory belongs.
pub static SYMLINKS: AtomicU8 = AtomicU8::new(1);
/// With 1, only who owns a file, or may write to it and gains nothing by running it, gives it
/// further names.
pub static HARDLINKS: AtomicU8 = AtomicU8::new(1);
/// With 1, `O_CREAT` does not open another's pipe in a sticky directory that everybody may write
/// to; with 2, nor in one that its group may write to.
pub static FIFOS: AtomicU8 = AtomicU8::new(0);
/// The same of regular files.
pub static REGULAR: AtomicU8 = AtomicU8::new(0);

/// Checks that somebody may follow a symbolic link of user `owner`, which ends a name, in a
/// directory (Linux `may_follow_link`).
///
/// # Errors
/// `EACCES`.
pub(crate) fn check_follow(dir: &Permissions, owner: u32, cred: &Cred) -> Result<()> {
    const OPEN_TO_ALL: u32 = S_ISVTX | S_IWOTH;
    let allowed = SYMLINKS.load(Ordering::Relaxed) == 0
        || cred.uid == owner
        || dir.mode & OPEN_TO_ALL != OPEN_TO_ALL
        || dir.uid == owner;
    if allowed { Ok(()) } else { Err(Errno::EACCES) }
}

/// Whether [`check_open_existing`] may refuse files of a kind: mostly nobody has to ask it.
pub(crate) fn restricts(kind: FileType) -> bool {
    match kind {
        FileType::Directory => false,
        FileType::Fifo => FIFOS.load(Ordering::Relaxed) != 0,
        FileType::Regular => REGULAR.load(Ordering::Relaxed) != 0,
        _ => true,
    }
}

/// Checks that somebody may open a file with `O_CREAT` that is there already, in a directory (Linux
/// `may_create_in_sticky`).
///
/// # Errors
/// `EACCES`.
pub(crate) fn check_open_existing(
    dir: &Permissions,
    kind: FileType,
    owner: u32,
    cred: &Cred,
) -> Result<()> {
    let setting = match kind {
        FileType::Fifo => Some(&FIFOS),
        FileType::Regular => Some(&REGULAR),
        _ => None,
    };
    let level = setting.map(|setting| setting.load(Ordering::Relaxed));
    if level == Some(0) || dir.mode & S_ISVTX == 0 || owner == dir.uid || owner == cred.uid {
        return Ok(());
    }
    if dir.mode & S_IWOTH != 0 || dir.mode & S_IWGRP != 0 && level.is_some_and(|level| level > 1) {
        Err(Errno::EACCES)
    } else {
        Ok(())
    }
}

/// Checks that somebody may give a file a further name: its owner, and others if they could write
/// to it anyway, which `check` asks, and it lends nobody's rights (Linux `may_linkat`).
///
/// # Errors
/// `EPERM`.
pub(crate) fn check_link(
    meta: &Metadata,
    cred: &Cred,
    check: impl FnOnce(Access) -> Result<()>,
) -> Result<()> {
    const SETGID_EXEC: u32 = S_ISGID | 0o010;
    let lends = meta.mode & S_ISUID != 0 || meta.mode & SETGID_EXEC == SETGID_EXEC;
    let harmless = || {
        meta.kind == FileType::Regular && !lends && check(Access::READ.union(Access::WRITE)).is_ok()
    };
    if HARDLINKS.load(Ordering::Relaxed) == 0 || cred.owns(meta) || harmless() {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::FileAttributes;

    const ROOT: u32 = 0;
    const ONE: u32 = 7;
    const OTHER: u32 = 8;

    fn dir(mode: u32, uid: u32) -> Permissions {
        Permissions {
            is_directory: true,
            mode,
            uid,
            gid: uid,
            attributes: FileAttributes::empty(),
        }
    }

    /// All of it in one test, since the settings are everybody's.
    #[test]
    fn what_the_settings_forbid() {
        let (root, one) = (Cred::root(), Cred::user(ONE, ONE));
        let follow = |mode, dir_owner, owner, cred: &Cred| {
            check_follow(&dir(mode, dir_owner), owner, cred).is_ok()
        };
        assert!(!follow(0o1777, ROOT, OTHER, &one));
        assert!(!follow(0o1777, ROOT, OTHER, &root), "root above all");
        assert!(follow(0o1777, ROOT, ONE, &one), "his own");
        assert!(
            follow(0o1777, OTHER, OTHER, &one),
            "of whose directory it is"
        );
        assert!(follow(0o777, ROOT, OTHER, &one) && follow(0o1775, ROOT, OTHER, &one));
        SYMLINKS.store(0, Ordering::Relaxed);
        assert!(follow(0o1777, ROOT, OTHER, &one));
        SYMLINKS.store(1, Ordering::Relaxed);

        for (kind, setting) in [(FileType::Fifo, &FIFOS), (FileType::Regular, &REGULAR)] {
            let open =
                |mode, owner| check_open_existing(&dir(mode, ROOT), kind, owner, &one).is_ok();
            assert!(open(0o1777, OTHER) && open(0o1770, OTHER));
            setting.store(1, Ordering::Relaxed);
            assert!(!open(0o1777, OTHER) && open(0o1770, OTHER));
            assert!(open(0o1777, ONE) && open(0o1777, ROOT) && open(0o777, OTHER));
            setting.store(2, Ordering::Relaxed);
            assert!(!open(0o1777, OTHER) && !open(0o1770, OTHER) && open(0o1700, OTHER));
            setting.store(0, Ordering::Relaxed);
        }
        let device =
            |mode| check_open_existing(&dir(mode, ROOT), FileType::Char, OTHER, &one).is_ok();
        assert!(!device(0o1777) && device(0o1770), "whatever is set");

        let file = |kind, mode| {
            let mut meta = Metadata::generated(1, 1, kind, mode);
            meta.uid = OTHER;
            check_link(&meta, &one, |want| one.check(&meta, want)).is_ok()
        };
        assert!(file(FileType::Regular, 0o666) && !file(FileType::Regular, 0o664));
        assert!(!file(FileType::Regular, 0o4666) && !file(FileType::Regular, 0o2676));
        assert!(file(FileType::Regular, 0o2666) && !file(FileType::Fifo, 0o666));
        HARDLINKS.store(0, Ordering::Relaxed);
        assert!(file(FileType::Regular, 0o600) && file(FileType::Fifo, 0o600));
        HARDLINKS.store(1, Ordering::Relaxed);
    }
}
