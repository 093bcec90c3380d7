//! Mounting by descriptors: contexts, trees that hang nowhere, attributes.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use anyhow::{Result, ensure};

use crate::calls::{call, fails, is};
use crate::credentials::{OTHER, become_user, in_child};
use crate::mounts::{Ground, c, code, line_of, mount, tags, unmount};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("mount-api-a-file-system", a_file_system),
    ("mount-api-trees", trees),
    ("mount-api-attributes", attributes),
    ("mount-api-changes", changes),
    ("mount-api-groups", groups),
    ("mount-api-are-checked", are_checked),
    ("mount-api-values-of-other-kinds", values_of_other_kinds),
];

const SET_FLAG: u32 = 0;
const SET_STRING: u32 = 1;
const CREATE: u32 = 6;
const RECONFIGURE: u32 = 7;
const F_EMPTY_PATH: u32 = 4;
const SET_GROUP: u32 = 0x100;
const CLONE: u32 = 1;
const ATTR_RDONLY: u64 = 1;
const ATTR_NODEV: u64 = 4;
const ATTR_NOATIME: u64 = 0x10;
const ATTR_ATIME: u64 = 0x70;
const RECURSIVE: u32 = 0x8000;

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = checked(result as i32)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn fsopen(kind: &str) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in NUL.
    descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c(kind).as_ptr(), 1) })
}

fn fsconfig(
    context: &OwnedFd,
    command: u32,
    key: Option<&str>,
    value: Option<&str>,
) -> io::Result<()> {
    let text = |text: Option<&str>| text.map(|text| CString::new(text).expect("no NUL"));
    let (key, value) = (text(key), text(value));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: both texts end in NUL, or are null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            command,
            pointer(&key),
            pointer(&value),
            0,
        )
    };
    checked(result as i32).map(drop)
}

fn fsmount(context: &OwnedFd, attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, attributes) })
}

fn fspick(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in NUL.
    descriptor(unsafe { libc::syscall(libc::SYS_fspick, libc::AT_FDCWD, c(path).as_ptr(), 1) })
}

fn open_tree(path: &Path, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in NUL.
    descriptor(unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            c(path).as_ptr(),
            flags | libc::O_CLOEXEC as u32,
        )
    })
}

fn move_mount(from: RawFd, name: &Path, to: &Path, flags: u32) -> io::Result<()> {
    // SAFETY: both names end in NUL.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            from,
            c(name).as_ptr(),
            libc::AT_FDCWD,
            c(to).as_ptr(),
            flags,
        )
    };
    checked(result as i32).map(drop)
}

fn hang(tree: &OwnedFd, at: &Path) -> io::Result<()> {
    move_mount(tree.as_raw_fd(), Path::new(""), at, F_EMPTY_PATH)
}

fn setattr(path: &Path, flags: u32, attributes: [u64; 4]) -> io::Result<()> {
    // SAFETY: the name ends in NUL; the structure is as long as said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c(path).as_ptr(),
            flags,
            attributes.as_ptr(),
            32,
        )
    };
    checked(result as i32).map(drop)
}

fn a_file_system() -> Result<()> {
    let ground = Ground::new("newmounts")?;
    let at = ground.dir("at")?;
    let context = fsopen("tmpfs")?;
    fsconfig(&context, SET_STRING, Some("source"), Some("named"))?;
    fsconfig(&context, SET_STRING, Some("size"), Some("64k"))?;
    fsconfig(&context, SET_STRING, Some("mode"), Some("0700"))?;
    let wrong = code(fsconfig(&context, SET_STRING, Some("bogus"), Some("1")));
    ensure!(wrong == Some(libc::EINVAL), "an unknown option: {wrong:?}");
    let mut complaint = [0; 256];
    // SAFETY: the buffer is as long as said.
    let n = checked(unsafe {
        libc::read(
            context.as_raw_fd(),
            complaint.as_mut_ptr().cast(),
            complaint.len(),
        )
    } as i32)? as usize;
    let text = String::from_utf8_lossy(&complaint[..n]).into_owned();
    ensure!(
        text.starts_with("e ") && text.contains("bogus"),
        "it complains {text}"
    );
    let early = code(fsmount(&context, 0));
    ensure!(
        early == Some(libc::EINVAL),
        "mounted before it is made: {early:?}"
    );
    fsconfig(&context, CREATE, None, None)?;
    let tree = fsmount(&context, ATTR_NODEV)?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    ensure!(!mounts.contains("named "), "it is in the tree already");
    // It can be used before.
    let inner = format!("/proc/self/fd/{}/file", tree.as_raw_fd());
    fs::write(&inner, "early")?;
    hang(&tree, &at)?;
    ensure!(
        fs::read_to_string(at.join("file"))? == "early",
        "another file system"
    );
    let line = line_of("mounts", &at)?;
    ensure!(
        line.starts_with("named ") && line.contains(" tmpfs rw,nodev,relatime,size=64k,mode=700"),
        "{line}"
    );
    drop(tree);
    ensure!(at.join("file").exists(), "it went with its descriptor");
    let again = code(fsmount(&context, 0));
    ensure!(
        again == Some(libc::EBUSY) || again == Some(libc::EINVAL),
        "mounted twice: {again:?}"
    );
    unmount(&at, 0)?;
    Ok(())
}

fn trees() -> Result<()> {
    let ground = Ground::new("mount-api-trees")?;
    let a = ground.tmpfs("a", 0, "")?;
    ground.tmpfs("a/below", 0, "")?;
    let (b, d) = (ground.dir("b")?, ground.dir("d")?);
    let alone = open_tree(&a, CLONE)?;
    hang(&alone, &b)?;
    ensure!(
        b.join("mark").exists() && !b.join("below/mark").exists(),
        "what is below comes, too"
    );
    let whole = open_tree(&a, CLONE | RECURSIVE)?;
    let inside = format!("/proc/self/fd/{}/below/mark", whole.as_raw_fd());
    ensure!(
        fs::read_to_string(inside)? == "a/below",
        "the copy lacks what is below"
    );
    hang(&whole, &d)?;
    ensure!(
        fs::read_to_string(d.join("below/mark"))? == "a/below",
        "what is below does not come"
    );
    // Not a copy: the mount itself.
    let here = open_tree(&d, 0)?;
    let e = ground.dir("e")?;
    move_mount(here.as_raw_fd(), Path::new(""), &e, F_EMPTY_PATH)?;
    ensure!(
        e.join("below/mark").exists() && !d.join("mark").exists(),
        "not moved"
    );
    // By name.
    move_mount(libc::AT_FDCWD, &e, &d, 0)?;
    ensure!(d.join("below/mark").exists(), "not moved back");
    // What is never mounted goes.
    let mut file = {
        let gone = open_tree(&a, CLONE)?;
        File::open(format!("/proc/self/fd/{}/mark", gone.as_raw_fd()))?
    };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    ensure!(
        text == "a",
        "an open file of a tree that is gone reads {text}"
    );
    Ok(())
}

fn attributes() -> Result<()> {
    let ground = Ground::new("mount-api-attributes")?;
    let a = ground.tmpfs("a", 0, "")?;
    let below = ground.tmpfs("a/below", 0, "")?;
    let options = |path: &Path| -> Result<String> {
        Ok(line_of("mountinfo", path)?
            .split(' ')
            .nth(5)
            .unwrap_or_default()
            .to_owned())
    };
    setattr(&a, 0, [ATTR_RDONLY | ATTR_NODEV, 0, 0, 0])?;
    ensure!(
        options(&a)? == "ro,nodev,relatime" && options(&below)? == "rw,relatime",
        "{} {}",
        options(&a)?,
        options(&below)?
    );
    ensure!(
        code(File::create(a.join("x"))) == Some(libc::EROFS),
        "it can be written"
    );
    setattr(
        &a,
        RECURSIVE,
        [ATTR_NOATIME, ATTR_ATIME | ATTR_RDONLY, 0, 0],
    )?;
    ensure!(
        options(&a)? == "rw,nodev,noatime" && options(&below)? == "rw,noatime",
        "{} {}",
        options(&a)?,
        options(&below)?
    );
    // All or none.
    let writer = File::create(below.join("w"))?;
    let busy = code(setattr(&a, RECURSIVE, [ATTR_RDONLY, 0, 0, 0]));
    ensure!(
        busy == Some(libc::EBUSY) && options(&a)?.starts_with("rw"),
        "{busy:?} {}",
        options(&a)?
    );
    drop(writer);
    setattr(&a, RECURSIVE, [0, 0, libc::MS_SHARED, 0])?;
    ensure!(
        tags(&a)?.starts_with("shared:") && tags(&below)?.starts_with("shared:"),
        "{} {}",
        tags(&a)?,
        tags(&below)?
    );
    for (wrong, flags) in [
        ([ATTR_NOATIME, 0, 0, 0], 0),
        ([0, ATTR_NOATIME, 0, 0], 0),
        ([1 << 40, 0, 0, 0], 0),
        ([1, 0, 0, 0], 1),
    ] {
        let found = code(setattr(&a, flags, wrong));
        ensure!(found == Some(libc::EINVAL), "{wrong:x?}: {found:?}");
    }
    let no_top = code(setattr(&a.join("mark"), 0, [1, 0, 0, 0]));
    ensure!(no_top == Some(libc::EINVAL), "no mount's top: {no_top:?}");
    Ok(())
}

fn changes() -> Result<()> {
    let ground = Ground::new("mount-api-changes")?;
    let a = ground.tmpfs("a", 0, "size=64k")?;
    let context = fspick(&a)?;
    fsconfig(&context, SET_STRING, Some("size"), Some("128k"))?;
    fsconfig(&context, SET_FLAG, Some("ro"), None)?;
    fsconfig(&context, RECONFIGURE, None, None)?;
    let line = line_of("mounts", &a)?;
    ensure!(line.contains(" tmpfs ro,relatime,size=128k"), "{line}");
    let no_top = code(fspick(&a.join("mark")));
    ensure!(no_top == Some(libc::EINVAL), "no mount's top: {no_top:?}");
    Ok(())
}

fn groups() -> Result<()> {
    let ground = Ground::new("mount-api-groups")?;
    let a = ground.tmpfs("a", 0, "")?;
    mount("none", &a, "", libc::MS_SHARED, "")?;
    let b = ground.dir("b")?;
    mount(&a, &b, "", libc::MS_BIND, "")?;
    mount("none", &b, "", libc::MS_PRIVATE, "")?;
    move_mount(libc::AT_FDCWD, &a, &b, SET_GROUP)?;
    ensure!(tags(&a)? == tags(&b)?, "{} {}", tags(&a)?, tags(&b)?);
    let again = code(move_mount(libc::AT_FDCWD, &a, &b, SET_GROUP));
    ensure!(
        again == Some(libc::EINVAL),
        "one that shares already: {again:?}"
    );
    Ok(())
}

fn are_checked() -> Result<()> {
    let ground = Ground::new("mount-api-checked")?;
    let a = ground.tmpfs("a", 0, "")?;
    let found = [
        (code(fsopen("no-such-type")), libc::ENODEV),
        (code(open_tree(&a, RECURSIVE)), libc::EINVAL),
        (
            code(open_tree(&ground.path("nothing"), CLONE)),
            libc::ENOENT,
        ),
        (
            code(move_mount(libc::AT_FDCWD, &a, &a.join("x"), 1 << 20)),
            libc::EINVAL,
        ),
        (
            code(move_mount(libc::AT_FDCWD, &a.join("mark"), &a, 0)),
            libc::EINVAL,
        ),
    ];
    for (found, expected) in found {
        ensure!(found == Some(expected), "{found:?} instead of {expected}");
    }
    let context = fsopen("tmpfs")?;
    let both = code(fsconfig(&context, SET_FLAG, Some("ro"), Some("1")));
    ensure!(both == Some(libc::EINVAL), "a flag with a value: {both:?}");
    let file = File::open("/proc/self/status")?;
    let other = code(fsmount(&file.into(), 0));
    ensure!(other == Some(libc::EINVAL), "another file: {other:?}");
    in_child(|| {
        become_user(OTHER)?;
        let found = [
            code(fsopen("tmpfs")),
            code(open_tree(Path::new("/"), CLONE)),
            code(move_mount(
                libc::AT_FDCWD,
                Path::new("/"),
                Path::new("/"),
                0,
            )),
            code(setattr(Path::new("/"), 0, [1, 0, 0, 0])),
            code(fspick(Path::new("/"))),
        ];
        ensure!(
            found.iter().all(|found| *found == Some(libc::EPERM)),
            "an ordinary user: {found:?}"
        );
        Ok(())
    })
}

/// No option takes bytes, a path or a descriptor, but whether those are there is looked at first.
fn values_of_other_kinds() -> Result<()> {
    const BINARY: u32 = 2;
    const PATH: u32 = 3;
    const PATH_EMPTY: u32 = 4;
    const FD: u32 = 5;
    let context = fsopen("proc")?;
    let number = 2u32;
    let bytes: *const u32 = &raw const number;
    let config = |of: &OwnedFd, command: u32, key: &CStr, value: usize, aux: i32| {
        call!(
            SYS_fsconfig,
            of.as_raw_fd(),
            command,
            key.as_ptr(),
            value,
            aux
        )
    };
    let set = |command, value, aux| config(&context, command, c"hidepid", value, aux);
    let (here, path) = (bytes as usize, c"/".as_ptr() as usize);
    let cases = [
        (BINARY, here, 4, libc::EINVAL, "bytes"),
        (BINARY, here, 0, libc::EINVAL, "no bytes"),
        (BINARY, 8, 4, libc::EFAULT, "bytes that are not there"),
        (PATH, path, libc::AT_FDCWD, libc::EINVAL, "a path"),
        (PATH, path, -5, libc::EINVAL, "a path from nowhere"),
        (
            PATH,
            c"".as_ptr() as usize,
            libc::AT_FDCWD,
            libc::ENOENT,
            "an empty path",
        ),
        (
            PATH_EMPTY,
            c"".as_ptr() as usize,
            context.as_raw_fd(),
            libc::EINVAL,
            "a path that may be empty",
        ),
        (FD, 0, context.as_raw_fd(), libc::EINVAL, "a descriptor"),
        (FD, 0, 4000, libc::EBADF, "a closed descriptor"),
        (FD, here, 0, libc::EINVAL, "a descriptor and a value"),
        (9, 0, 0, libc::EOPNOTSUPP, "an unknown command"),
    ];
    for (command, value, aux, error, what) in cases {
        fails(set(command, value, aux), error, what)?;
    }
    // Of what all types know only the name counts.
    is(config(&context, BINARY, c"ro", here, 4), 0, "`ro` as bytes")?;
    is(set(SET_STRING, c"2".as_ptr() as usize, 0), 0, "a text")?;
    let terminals = fsopen("devpts")?;
    fails(
        config(&terminals, BINARY, c"mode", here, 4),
        libc::EOPNOTSUPP,
        "bytes of a type that takes one text",
    )?;
    // What there is to complain of is not cut.
    let log = fsopen("tmpfs")?;
    let wrong = code(fsconfig(&log, SET_STRING, Some("bogus"), Some("1")));
    ensure!(wrong == Some(libc::EINVAL), "an unknown option: {wrong:?}");
    let mut bytes = [0u8; 100];
    let mut read = |len: usize| call!(SYS_read, log.as_raw_fd(), bytes.as_mut_ptr(), len);
    fails(read(1), libc::EMSGSIZE, "a complaint that does not fit")?;
    fails(
        read(0),
        libc::EMSGSIZE,
        "a complaint where there is no room",
    )?;
    ensure!(read(100) > 0, "the complaint is gone");
    fails(read(0), libc::ENODATA, "a complaint that was read")
}
