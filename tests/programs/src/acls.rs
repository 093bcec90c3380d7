//! Access control lists of files in memory: `acl(5)`, by the extended attributes with which
//! programs read and write them.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is};
use crate::credentials::{OTHER, become_user, in_child};
use crate::files::Scratch;
use crate::xattrs::{get, set};

pub const CHECKS: &[(&str, Check)] = &[
    ("acls-are-kept", are_kept),
    ("acls-errors", errors),
    ("acls-decide", decide),
    ("acls-follow-modes", follow_modes),
    ("acls-are-inherited", are_inherited),
    ("acls-take-set-group-id-away", take_set_group_id_away),
];

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// A group of nobody's, and two of which users are made members.
const THIRD: u32 = 1500;

type Entry = (u16, u16, u32);

/// Value of an attribute with entries of tag, permissions and number.
fn acl(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// The owner has all, the user `OTHER` may read and write, the group gets nothing, others may read;
/// the mask leaves reading.
const LIST: [Entry; 5] = [
    (OWNER, 7, NO_ID),
    (USER, 6, OTHER),
    (OWNING_GROUP, 0, NO_ID),
    (MASK, 4, NO_ID),
    (OTHERS, 4, NO_ID),
];

fn error<T: std::fmt::Debug>(result: std::io::Result<T>, errno: i32, what: &str) -> Result<()> {
    let code = result.as_ref().err().and_then(std::io::Error::raw_os_error);
    ensure!(code == Some(errno), "{what}: {result:?}");
    Ok(())
}

fn mode(path: &Path) -> Result<u32> {
    Ok(fs::symlink_metadata(path)?.mode() & 0o7777)
}

fn c(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn remove(path: &Path, name: &str) -> Result<i64> {
    let (path, name) = (c(path)?, CString::new(name)?);
    Ok(call!(SYS_removexattr, path.as_ptr(), name.as_ptr()))
}

/// Names of a file's lists, in the order in which they are told.
fn lists(path: &Path) -> Result<Vec<String>> {
    let mut names = vec![0u8; 4096];
    let path = c(path)?;
    let n = call!(
        SYS_listxattr,
        path.as_ptr(),
        names.as_mut_ptr(),
        names.len()
    );
    ensure!(n >= 0, "listxattr: {n}");
    names.truncate(n as usize);
    let names = names.split(|&byte| byte == 0);
    let lists = names.filter(|name| name.starts_with(b"system."));
    Ok(lists
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}

fn are_kept() -> Result<()> {
    let scratch = Scratch::new()?;
    let (file, dir) = (scratch.path("file"), scratch.path("dir"));
    fs::write(&file, "x")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    fs::create_dir(&dir)?;
    error(get(&file, ACCESS, 100), libc::ENODATA, "no list")?;
    // Numbers of entries that name nobody are not kept; whether there is a list is not asked.
    let mut given = LIST;
    (given[0].2, given[3].2) = (7, 8);
    set(&file, ACCESS, &acl(&given), libc::XATTR_REPLACE)?;
    set(&file, ACCESS, &acl(&given), libc::XATTR_CREATE)?;
    ensure!(get(&file, ACCESS, 100)? == acl(&LIST), "another list");
    error(get(&file, ACCESS, 10), libc::ERANGE, "a short buffer")?;
    ensure!(mode(&file)? == 0o744, "mode {:o}", mode(&file)?);
    ensure!(lists(&file)? == [ACCESS], "{:?}", lists(&file)?);
    // A list that says no more than bits is not kept.
    let plain = [
        (OWNER, 6, NO_ID),
        (OWNING_GROUP, 5, NO_ID),
        (OTHERS, 1, NO_ID),
    ];
    set(&file, ACCESS, &acl(&plain), 0)?;
    error(get(&file, ACCESS, 100), libc::ENODATA, "a plain list")?;
    ensure!(mode(&file)? == 0o651, "mode {:o}", mode(&file)?);
    // A mask alone is kept.
    let masked = [plain[0], plain[1], (MASK, 1, NO_ID), plain[2]];
    set(&file, ACCESS, &acl(&masked), 0)?;
    ensure!(get(&file, ACCESS, 100)? == acl(&masked), "a mask");
    ensure!(mode(&file)? == 0o611, "mode {:o}", mode(&file)?);
    // Without the list the bits stay.
    is(remove(&file, ACCESS)?, 0, "removexattr")?;
    is(remove(&file, ACCESS)?, 0, "removexattr of none")?;
    ensure!(
        mode(&file)? == 0o611 && lists(&file)?.is_empty(),
        "mode {:o}",
        mode(&file)?
    );
    // An empty list is none.
    set(&file, ACCESS, &acl(&LIST), 0)?;
    set(&file, ACCESS, &acl(&[]), 0)?;
    ensure!(lists(&file)?.is_empty(), "{:?}", lists(&file)?);
    // A default list is kept as it is, and changes no bits.
    let before = mode(&dir)?;
    set(&dir, DEFAULT, &acl(&plain), 0)?;
    set(&dir, ACCESS, &acl(&LIST), 0)?;
    ensure!(lists(&dir)? == [ACCESS, DEFAULT], "{:?}", lists(&dir)?);
    ensure!(get(&dir, DEFAULT, 100)? == acl(&plain), "a default list");
    is(remove(&dir, ACCESS)?, 0, "removexattr")?;
    is(remove(&dir, DEFAULT)?, 0, "removexattr")?;
    ensure!(before == 0o755 && mode(&dir)? == 0o744, "modes of {dir:?}");
    Ok(())
}

fn errors() -> Result<()> {
    let scratch = Scratch::new()?;
    let (file, link) = (scratch.path("file"), scratch.path("link"));
    fs::write(&file, "x")?;
    symlink("file", &link)?;
    let without = |tag: u16| {
        let mut list = LIST.to_vec();
        list.retain(|entry| entry.0 != tag);
        acl(&list)
    };
    let with = |place: usize, entry: Entry| {
        let mut list = LIST;
        list[place] = entry;
        acl(&list)
    };
    let mut swapped = LIST;
    swapped.swap(1, 2);
    // What is no list is seen first, then what it cannot be of, then what makes no sense.
    for (value, of_a_file, what) in [
        (vec![], libc::EINVAL, "nothing"),
        (vec![2, 0, 0], libc::EINVAL, "part of a header"),
        (acl(&LIST)[..43].to_vec(), libc::EINVAL, "part of an entry"),
        (with(1, (USER, 6, NO_ID)), libc::EINVAL, "nobody"),
        (with(1, (3, 6, OTHER)), libc::EINVAL, "an unknown tag"),
        (without(OWNER), libc::EACCES, "no owner"),
        (without(OWNING_GROUP), libc::EACCES, "no group"),
        (without(MASK), libc::EACCES, "no mask"),
        (without(OTHERS), libc::EACCES, "no others"),
        (
            with(1, (USER, 8, OTHER)),
            libc::EACCES,
            "an unknown permission",
        ),
        (acl(&swapped), libc::EACCES, "out of order"),
    ] {
        error(set(&file, ACCESS, &value, 0), libc::EINVAL, what)?;
        error(set(&file, DEFAULT, &value, 0), of_a_file, what)?;
    }
    let mut old = acl(&LIST);
    old[0] = 1;
    error(set(&file, ACCESS, &old, 0), libc::EOPNOTSUPP, "version 1")?;
    error(
        set(&file, DEFAULT, &acl(&LIST), 0),
        libc::EACCES,
        "a default list of a file",
    )?;
    error(get(&file, DEFAULT, 100), libc::ENODATA, "reading it")?;
    is(remove(&file, DEFAULT)?, 0, "removing it")?;
    error(
        set(&file, "system.posix_acl_mask", &acl(&LIST), 0),
        libc::EOPNOTSUPP,
        "another attribute of the system",
    )?;
    let (path, name, value) = (c(&link)?, CString::new(ACCESS)?, acl(&LIST));
    fails(
        call!(
            SYS_lsetxattr,
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr(),
            value.len(),
            0
        ),
        libc::EOPNOTSUPP,
        "of a symbolic link",
    )?;
    fails(
        call!(SYS_lgetxattr, path.as_ptr(), name.as_ptr(), 0, 0),
        libc::EOPNOTSUPP,
        "of a symbolic link",
    )?;
    let status = Path::new("/proc/self/status");
    error(
        set(status, ACCESS, &acl(&LIST), 0),
        libc::EOPNOTSUPP,
        "in /proc",
    )?;
    set(&file, ACCESS, &acl(&LIST), 0)?;
    in_child(|| {
        become_user(OTHER)?;
        error(set(&file, ACCESS, &acl(&LIST), 0), libc::EPERM, "another's")?;
        fails(remove(&file, ACCESS)?, libc::EPERM, "removing another's")?;
        ensure!(get(&file, ACCESS, 100)? == acl(&LIST), "reading another's");
        Ok(())
    })
}

/// Permissions that `OTHER`, with one more group, has for a file: read, write and execute, as
/// `access(2)` tells and as opening tells.
fn allowed(file: &Path, group: u32) -> Result<u32> {
    use std::io::{Read, Write};
    let (mut reader, mut writer) = std::io::pipe()?;
    in_child(|| {
        // SAFETY: one number.
        ensure!(unsafe { libc::setgroups(1, &group) } == 0, "setgroups");
        // SAFETY: numbers.
        unsafe {
            ensure!(libc::setresgid(OTHER, OTHER, OTHER) == 0, "setresgid");
            ensure!(libc::setresuid(OTHER, OTHER, OTHER) == 0, "setresuid");
        }
        let path = c(file)?;
        let may = |want: i32| call!(SYS_access, path.as_ptr(), want) == 0;
        let bits = [4, 2, 1].map(|want| u32::from(may(want)) * want as u32);
        let all: u32 = bits.iter().sum();
        let both = may(6);
        ensure!(both == (all & 6 == 6), "{all:o}, both {both}");
        let opens = [libc::O_RDONLY, libc::O_WRONLY]
            .map(|flags| Fd::new(call!(SYS_open, path.as_ptr(), flags), "open").is_ok());
        ensure!(
            opens == [all & 4 != 0, all & 2 != 0],
            "{all:o}, opened {opens:?}"
        );
        Ok(writer.write_all(&[all as u8])?)
    })?;
    let mut all = [0];
    reader.read_exact(&mut all)?;
    Ok(all[0].into())
}

fn decide() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.path("file");
    fs::write(&file, "x")?;
    chown(&file, Some(0), Some(THIRD))?;
    let list = |user: u16, owning: u16, group: u16, mask: u16, others: u16| {
        acl(&[
            (OWNER, 7, NO_ID),
            (USER, user, OTHER),
            (OWNING_GROUP, owning, NO_ID),
            (GROUP, group, OTHER + 1),
            (MASK, mask, NO_ID),
            (OTHERS, others, NO_ID),
        ])
    };
    let without_user = |owning: u16, group: u16, mask: u16, others: u16| {
        acl(&[
            (OWNER, 7, NO_ID),
            (OWNING_GROUP, owning, NO_ID),
            (GROUP, group, OTHER + 1),
            (MASK, mask, NO_ID),
            (OTHERS, others, NO_ID),
        ])
    };
    const NONE: u32 = THIRD + 1;
    for (value, group, expected, what) in [
        (list(6, 7, 7, 7, 7), NONE, 6, "his own entry"),
        (list(6, 7, 7, 7, 7), THIRD, 6, "his own before his group's"),
        (list(6, 0, 0, 4, 7), NONE, 4, "his own, masked"),
        (list(0, 7, 7, 7, 7), THIRD, 0, "his own, which is empty"),
        (without_user(5, 0, 7, 7), THIRD, 5, "the owning group's"),
        (
            without_user(5, 0, 3, 7),
            THIRD,
            1,
            "the owning group's, masked",
        ),
        (without_user(0, 6, 7, 7), OTHER + 1, 6, "another group's"),
        (
            without_user(0, 6, 5, 7),
            OTHER + 1,
            4,
            "another group's, masked",
        ),
        (
            without_user(0, 0, 7, 7),
            OTHER + 1,
            0,
            "of a group without any",
        ),
        (without_user(7, 7, 7, 2), NONE, 2, "of the others"),
        // Without bits of the group, which are the mask, the list is not looked at.
        (list(7, 7, 7, 0, 5), NONE, 5, "an empty mask"),
        (list(7, 7, 7, 0, 5), THIRD, 0, "an empty mask, in the group"),
    ] {
        set(&file, ACCESS, &value, 0)?;
        let all = allowed(&file, group)?;
        ensure!(all == expected, "{what}: {all:o}, not {expected:o}");
    }
    // In a directory, too: to search it, and to make files in it.
    let dir = scratch.path("dir");
    fs::create_dir(&dir)?;
    fs::write(dir.join("file"), "x")?;
    set(&dir, ACCESS, &list(0, 7, 7, 7, 7), 0)?;
    let makes = || {
        in_child(|| {
            become_user(OTHER)?;
            fs::metadata(dir.join("file"))?;
            Ok(fs::write(dir.join("new"), "x")?)
        })
    };
    ensure!(makes().is_err(), "nothing is allowed to him");
    set(&dir, ACCESS, &list(7, 0, 0, 7, 0), 0)?;
    makes()
}

fn follow_modes() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.path("file");
    fs::write(&file, "x")?;
    set(&file, ACCESS, &acl(&LIST), 0)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4651))?;
    let mut list = LIST;
    (list[0].1, list[3].1, list[4].1) = (6, 5, 1);
    ensure!(get(&file, ACCESS, 100)? == acl(&list), "after chmod");
    ensure!(mode(&file)? == 0o4651, "mode {:o}", mode(&file)?);
    // The owner changes, and the list stays.
    chown(&file, Some(OTHER + 5), Some(THIRD))?;
    ensure!(get(&file, ACCESS, 100)? == acl(&list), "after chown");
    ensure!(mode(&file)? == 0o651, "mode {:o}", mode(&file)?);
    // Without a mask the group's entry is the group's bits.
    let plain = [
        (OWNER, 6, NO_ID),
        (OWNING_GROUP, 5, NO_ID),
        (OTHERS, 1, NO_ID),
    ];
    let dir = scratch.path("dir");
    fs::create_dir(&dir)?;
    set(&dir, DEFAULT, &acl(&plain), 0)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
    ensure!(get(&dir, DEFAULT, 100)? == acl(&plain), "a default list");
    Ok(())
}

fn are_inherited() -> Result<()> {
    let scratch = Scratch::new()?;
    in_child(|| {
        call!(SYS_umask, 0o077);
        let dir = scratch.path("dir");
        fs::create_dir(&dir)?;
        ensure!(mode(&dir)? == 0o700, "by the umask: {:o}", mode(&dir)?);
        let default = [
            (OWNER, 7, NO_ID),
            (USER, 6, OTHER),
            (OWNING_GROUP, 5, NO_ID),
            (MASK, 7, NO_ID),
            (OTHERS, 5, NO_ID),
        ];
        set(&dir, DEFAULT, &acl(&default), 0)?;
        let path = c(&dir.join("file"))?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        Fd::new(call!(SYS_open, path.as_ptr(), flags, 0o2666), "a file")?;
        let of_file = [
            (OWNER, 6, NO_ID),
            (USER, 6, OTHER),
            (OWNING_GROUP, 5, NO_ID),
            (MASK, 6, NO_ID),
            (OTHERS, 4, NO_ID),
        ];
        let file = dir.join("file");
        ensure!(get(&file, ACCESS, 100)? == acl(&of_file), "a file's list");
        ensure!(lists(&file)? == [ACCESS], "{:?}", lists(&file)?);
        ensure!(mode(&file)? == 0o2664, "a file: {:o}", mode(&file)?);
        let below = dir.join("below");
        let path = c(&below)?;
        is(call!(SYS_mkdir, path.as_ptr(), 0o770), 0, "mkdir")?;
        let of_dir = [
            default[0],
            default[1],
            default[2],
            default[3],
            (OTHERS, 0, NO_ID),
        ];
        ensure!(get(&below, ACCESS, 100)? == acl(&of_dir), "a directory's");
        ensure!(get(&below, DEFAULT, 100)? == acl(&default), "its default");
        ensure!(mode(&below)? == 0o770, "a directory: {:o}", mode(&below)?);
        let fifo = below.join("fifo");
        let path = c(&fifo)?;
        is(
            call!(SYS_mknod, path.as_ptr(), libc::S_IFIFO | 0o666, 0),
            0,
            "mknod",
        )?;
        ensure!(mode(&fifo)? == 0o664, "a pipe: {:o}", mode(&fifo)?);
        symlink("file", dir.join("link"))?;
        ensure!(mode(&dir.join("link"))? == 0o777, "a link");
        let path = c(&dir)?;
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        let nameless = Fd::new(call!(SYS_open, path.as_ptr(), flags, 0o606), "O_TMPFILE")?;
        let nameless = format!("/proc/self/fd/{}", nameless.0);
        let made = fs::metadata(&nameless)?.mode() & 0o7777;
        ensure!(made == 0o604, "without a name: {made:o}");
        // Of a plain default list only bits are left, whatever the umask.
        let plain = [
            (OWNER, 7, NO_ID),
            (OWNING_GROUP, 7, NO_ID),
            (OTHERS, 5, NO_ID),
        ];
        set(&dir, DEFAULT, &acl(&plain), 0)?;
        let other = dir.join("plain");
        fs::write(&other, "x")?;
        ensure!(mode(&other)? == 0o664, "plain: {:o}", mode(&other)?);
        ensure!(lists(&other)?.is_empty(), "{:?}", lists(&other)?);
        is(remove(&dir, DEFAULT)?, 0, "removexattr")?;
        let last = dir.join("last");
        fs::write(&last, "x")?;
        ensure!(mode(&last)? == 0o600, "the umask again: {:o}", mode(&last)?);
        Ok(())
    })
}

fn take_set_group_id_away() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.path("file");
    fs::write(&file, "x")?;
    chown(&file, Some(OTHER), Some(THIRD))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2755))?;
    set(&file, ACCESS, &acl(&LIST), 0)?;
    ensure!(mode(&file)? == 0o2744, "by root: {:o}", mode(&file)?);
    in_child(|| {
        become_user(OTHER)?;
        Ok(set(&file, ACCESS, &acl(&LIST), 0)?)
    })?;
    ensure!(mode(&file)? == 0o744, "by its owner: {:o}", mode(&file)?);
    Ok(())
}
