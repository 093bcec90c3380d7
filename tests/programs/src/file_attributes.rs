//! Attributes of files that `chattr(1)` sets, and what `statx(2)` shows of a file.

use std::fs;
use std::mem::zeroed;
use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pipe};
use crate::credentials::{OTHER, become_user, in_child};
use crate::file_requests::{c, open};
use crate::files::Scratch;

pub const CHECKS: &[(&str, Check)] = &[
    ("file-attributes-are-kept", are_kept),
    ("file-attributes-immutable", immutable),
    ("file-attributes-append-only", append_only),
    ("file-attributes-of-directories", of_directories),
    ("file-attributes-shown", shown),
];

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;

fn set(fd: &Fd, flags: u32) -> i64 {
    call!(SYS_ioctl, fd.0, FS_IOC_SETFLAGS, &raw const flags)
}

fn get(fd: &Fd) -> Result<u32> {
    let mut flags = u32::MAX;
    is(
        call!(SYS_ioctl, fd.0, FS_IOC_GETFLAGS, &raw mut flags),
        0,
        "FS_IOC_GETFLAGS",
    )?;
    Ok(flags)
}

/// Takes the attributes away at the end, so that the directory can be removed.
struct Attributed<'a>(&'a Fd);

impl<'a> Attributed<'a> {
    fn new(fd: &'a Fd, flags: u32) -> Result<Self> {
        is(set(fd, flags), 0, "FS_IOC_SETFLAGS")?;
        Ok(Self(fd))
    }
}

impl Drop for Attributed<'_> {
    fn drop(&mut self) {
        set(self.0, 0);
    }
}

fn are_kept() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    ensure!(get(&file)? == 0, "none at first");
    for flags in [IMMUTABLE, APPEND | NODUMP, NOATIME, 0] {
        is(set(&file, flags), 0, "FS_IOC_SETFLAGS")?;
        ensure!(get(&file)? == flags);
    }
    // A flag of others: FS_SYNC_FL.
    fails(set(&file, 8), libc::EOPNOTSUPP, "what there is not")?;
    fails(
        call!(SYS_ioctl, file.0, FS_IOC_SETFLAGS, 8),
        libc::EFAULT,
        "from nowhere",
    )?;
    let [reader, _writer] = pipe(0)?;
    fails(set(&reader, 0), libc::ENOTTY, "of a pipe")?;
    // The other way to say the same.
    let mut words = [0_u32; 7];
    let extended =
        |words: &mut [u32; 7], number: u32| call!(SYS_ioctl, file.0, number, words.as_mut_ptr());
    words[0] = 0x40 | 0x80;
    is(
        extended(&mut words, FS_IOC_FSSETXATTR),
        0,
        "FS_IOC_FSSETXATTR",
    )?;
    ensure!(get(&file)? == NODUMP | NOATIME);
    words = [9; 7];
    is(
        extended(&mut words, FS_IOC_FSGETXATTR),
        0,
        "FS_IOC_FSGETXATTR",
    )?;
    ensure!(words == [0xc0, 0, 0, 0, 0, 0, 0], "{words:?}");
    words[1] = 4096;
    let refused = extended(&mut words, FS_IOC_FSSETXATTR);
    ensure!(refused < 0, "a size of extents");
    // An owner sets what restricts nobody.
    let path = c(&scratch.0.join("f"));
    is(call!(SYS_chown, path.as_ptr(), OTHER, OTHER), 0, "chown")?;
    in_child(|| {
        become_user(OTHER)?;
        is(set(&file, NODUMP), 0, "the owner")?;
        fails(
            set(&file, NODUMP | APPEND),
            libc::EPERM,
            "APPEND by an ordinary user",
        )?;
        fails(
            set(&file, IMMUTABLE),
            libc::EPERM,
            "IMMUTABLE by an ordinary user",
        )
    })?;
    in_child(|| {
        become_user(OTHER + 1)?;
        fails(set(&file, 0), libc::EPERM, "another")
    })
}

fn immutable() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let path = c(&scratch.0.join("f"));
    let other = c(&scratch.0.join("g"));
    let _kept = Attributed::new(&file, IMMUTABLE)?;
    let opened = |flags: i32| call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0);
    for flags in [libc::O_WRONLY, libc::O_RDWR | libc::O_APPEND, libc::O_TRUNC] {
        fails(opened(flags), libc::EPERM, "open")?;
    }
    Fd::new(opened(libc::O_RDONLY), "open for reading")?;
    fails(
        call!(SYS_access, path.as_ptr(), libc::W_OK),
        libc::EPERM,
        "access",
    )?;
    fails(
        call!(SYS_truncate, path.as_ptr(), 0),
        libc::EPERM,
        "truncate",
    )?;
    fails(call!(SYS_chmod, path.as_ptr(), 0o644), libc::EPERM, "chmod")?;
    fails(call!(SYS_chown, path.as_ptr(), 0, 0), libc::EPERM, "chown")?;
    fails(
        call!(SYS_utimensat, libc::AT_FDCWD, path.as_ptr(), 0, 0),
        libc::EPERM,
        "utimensat",
    )?;
    fails(call!(SYS_unlink, path.as_ptr()), libc::EPERM, "unlink")?;
    fails(
        call!(SYS_rename, path.as_ptr(), other.as_ptr()),
        libc::EPERM,
        "rename",
    )?;
    fails(
        call!(SYS_link, path.as_ptr(), other.as_ptr()),
        libc::EPERM,
        "link",
    )?;
    fails(
        call!(
            SYS_setxattr,
            path.as_ptr(),
            c"trusted.a".as_ptr(),
            c"b".as_ptr(),
            1,
            0
        ),
        libc::EPERM,
        "setxattr",
    )?;
    open(&scratch, "g", RDWR)?;
    fails(
        call!(SYS_rename, other.as_ptr(), path.as_ptr()),
        libc::EPERM,
        "rename over it",
    )?;
    // Who had it open goes on, except for what gives it room.
    is(call!(SYS_write, file.0, c"abc".as_ptr(), 3), 3, "write")?;
    fails(
        call!(SYS_fallocate, file.0, 0, 0, 4096),
        libc::EPERM,
        "fallocate",
    )?;
    let source = open(&scratch, "g", RDWR)?;
    fails(
        call!(SYS_copy_file_range, source.0, 0, file.0, 0, 5, 0),
        libc::EPERM,
        "copy_file_range",
    )?;
    is(call!(SYS_ftruncate, file.0, 1), 0, "ftruncate")
}

fn append_only() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let path = c(&scratch.0.join("f"));
    let _kept = Attributed::new(&file, APPEND)?;
    let opened = |flags: i32| call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0);
    for flags in [
        libc::O_WRONLY,
        libc::O_RDWR,
        libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC,
        libc::O_TRUNC,
    ] {
        fails(opened(flags), libc::EPERM, "open")?;
    }
    let end = Fd::new(opened(libc::O_RDWR | libc::O_APPEND), "open to append")?;
    is(call!(SYS_write, end.0, c"abc".as_ptr(), 3), 3, "write")?;
    fails(
        call!(SYS_fcntl, end.0, libc::F_SETFL, 0),
        libc::EPERM,
        "F_SETFL",
    )?;
    is(
        call!(
            SYS_fcntl,
            end.0,
            libc::F_SETFL,
            libc::O_APPEND | libc::O_NONBLOCK
        ),
        0,
        "F_SETFL",
    )?;
    fails(
        call!(SYS_truncate, path.as_ptr(), 0),
        libc::EPERM,
        "truncate",
    )?;
    fails(call!(SYS_ftruncate, end.0, 0), libc::EPERM, "ftruncate")?;
    is(
        call!(SYS_fallocate, end.0, libc::FALLOC_FL_KEEP_SIZE, 0, 8192),
        0,
        "more room",
    )?;
    let punch = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    fails(
        call!(SYS_fallocate, end.0, punch, 0, 4096),
        libc::EPERM,
        "a hole",
    )?;
    fails(call!(SYS_chmod, path.as_ptr(), 0o644), libc::EPERM, "chmod")?;
    is(
        call!(SYS_utimensat, libc::AT_FDCWD, path.as_ptr(), 0, 0),
        0,
        "the present",
    )?;
    let times = [1_i64, 0, 1, 0];
    fails(
        call!(
            SYS_utimensat,
            libc::AT_FDCWD,
            path.as_ptr(),
            times.as_ptr(),
            0
        ),
        libc::EPERM,
        "another time",
    )?;
    fails(call!(SYS_unlink, path.as_ptr()), libc::EPERM, "unlink")?;
    let map = |kind: i32| call!(SYS_mmap, 0, 4096, libc::PROT_READ, kind, end.0, 0);
    fails(map(libc::MAP_SHARED), libc::EACCES, "a shared mapping")?;
    let at = map(libc::MAP_PRIVATE);
    ensure!(at > 0, "a private one");
    is(call!(SYS_munmap, at, 4096), 0, "munmap")
}

fn of_directories() -> Result<()> {
    let scratch = Scratch::new()?;
    let above = c(&scratch.0.join("d"));
    let within = |name: &str| c(&scratch.0.join("d").join(name));
    is(call!(SYS_mkdir, above.as_ptr(), 0o755), 0, "mkdir")?;
    let dir = Fd::new(
        call!(
            SYS_openat,
            libc::AT_FDCWD,
            above.as_ptr(),
            libc::O_RDONLY,
            0
        ),
        "open",
    )?;
    let make = |name: &str| {
        let path = within(name);
        Fd::new(
            call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), RDWR, 0o600),
            name,
        )
    };
    make("a")?;
    {
        let _kept = Attributed::new(&dir, APPEND)?;
        make("b")?;
        fails(
            call!(SYS_unlink, within("a").as_ptr()),
            libc::EPERM,
            "unlink",
        )?;
        fails(
            call!(SYS_rename, within("a").as_ptr(), within("c").as_ptr()),
            libc::EPERM,
            "rename",
        )?;
        fails(call!(SYS_rmdir, above.as_ptr()), libc::EPERM, "rmdir")?;
    }
    {
        let _kept = Attributed::new(&dir, IMMUTABLE)?;
        let path = within("c");
        fails(
            call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), RDWR, 0o600),
            libc::EPERM,
            "a new name",
        )?;
        fails(
            call!(SYS_mkdir, within("e").as_ptr(), 0o755),
            libc::EPERM,
            "mkdir",
        )?;
        fails(
            call!(SYS_unlink, within("a").as_ptr()),
            libc::EPERM,
            "unlink",
        )?;
        // Its files are not.
        is(call!(SYS_truncate, within("a").as_ptr(), 5), 0, "truncate")?;
    }
    // What restricts nobody is handed down.
    let _kept = Attributed::new(&dir, NODUMP | NOATIME)?;
    ensure!(get(&make("h")?)? == NODUMP | NOATIME, "handed down");
    ensure!(get(&make("a")?)? == 0, "not to what is there");
    Ok(())
}

fn shown() -> Result<()> {
    const ALWAYS: u64 = 0x1000 | 0x2000 | 0x20_0000;
    const OF_FILES: u64 = 0x10 | 0x20 | 0x40;
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let of = |path: &std::ffi::CStr| -> Result<libc::statx> {
        // SAFETY: all bytes of the structure may be zero.
        let mut statx: libc::statx = unsafe { zeroed() };
        let done = call!(
            SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            0,
            libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            &raw mut statx
        );
        is(done, 0, "statx").map(|()| statx)
    };
    let path = c(&scratch.0.join("f"));
    let told = of(&path)?;
    ensure!(
        (told.stx_attributes, told.stx_attributes_mask) == (0, ALWAYS | OF_FILES),
        "{:#x} of {:#x}",
        told.stx_attributes,
        told.stx_attributes_mask
    );
    ensure!(told.stx_mask & libc::STATX_BTIME != 0, "when it was made");
    let proc = of(c"/proc/self/status")?;
    ensure!(
        proc.stx_attributes_mask == ALWAYS,
        "{:#x}",
        proc.stx_attributes_mask
    );
    ensure!(
        proc.stx_mask & libc::STATX_BTIME == 0,
        "/proc knows when a file was made"
    );
    {
        let _kept = Attributed::new(&file, IMMUTABLE | APPEND | NODUMP | NOATIME)?;
        ensure!(of(&path)?.stx_attributes == OF_FILES);
    }
    // Links and special files have what their directory hands down, and show it.
    let dir = open(&scratch, ".", libc::O_RDONLY)?;
    let of_link = {
        let _kept = Attributed::new(&dir, NODUMP)?;
        symlink("f", scratch.path("l"))?;
        let fifo = c(&scratch.path("p"));
        is(
            call!(SYS_mknod, fifo.as_ptr(), libc::S_IFIFO | 0o600, 0),
            0,
            "mknod",
        )?;
        let fifo = of(&fifo)?;
        ensure!(
            (fifo.stx_attributes, fifo.stx_attributes_mask)
                == (u64::from(NODUMP), ALWAYS | OF_FILES),
            "a pipe: {:#x} of {:#x}",
            fifo.stx_attributes,
            fifo.stx_attributes_mask
        );
        // SAFETY: all bytes of the structure may be zero.
        let mut statx: libc::statx = unsafe { zeroed() };
        let link = c(&scratch.path("l"));
        let done = call!(
            SYS_statx,
            libc::AT_FDCWD,
            link.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            libc::STATX_BASIC_STATS,
            &raw mut statx
        );
        is(done, 0, "statx of a link").map(|()| statx)?
    };
    ensure!(
        (of_link.stx_attributes, of_link.stx_attributes_mask)
            == (u64::from(NODUMP), ALWAYS | OF_FILES),
        "a link: {:#x} of {:#x}",
        of_link.stx_attributes,
        of_link.stx_attributes_mask
    );
    // Reading leaves the time.
    is(call!(SYS_write, file.0, c"abc".as_ptr(), 3), 3, "write")?;
    let _kept = Attributed::new(&file, NOATIME)?;
    let times = [1_i64, 0, 1, 0];
    is(
        call!(
            SYS_utimensat,
            libc::AT_FDCWD,
            path.as_ptr(),
            times.as_ptr(),
            0
        ),
        0,
        "utimensat",
    )?;
    fs::read(scratch.0.join("f"))?;
    ensure!(of(&path)?.stx_atime.tv_sec == 1, "the access time");
    Ok(())
}
