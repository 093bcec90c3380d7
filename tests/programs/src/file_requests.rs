//! Requests about files by `ioctl(2)` and `fcntl(2)`, and what opening refuses.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::files::Scratch;

pub const CHECKS: &[(&str, Check)] = &[
    ("file-requests-of-sizes", of_sizes),
    ("file-requests-that-no-file-here-can", that_no_file_here_can),
    ("file-requests-of-space", of_space),
    ("file-requests-of-signals", of_signals),
    ("file-requests-of-hints", of_hints),
    ("file-requests-without-cache", without_cache),
    ("file-requests-cached-only", cached_only),
    ("file-requests-set-ticks", set_ticks),
    ("file-requests-of-event-counts", of_event_counts),
    ("file-requests-locks-are-listed", locks_are_listed),
];

const FIBMAP: u32 = 1;
const FIGETBSZ: u32 = 2;
const FIOQSIZE: u32 = 0x5460;
const FIOASYNC: u32 = 0x5452;
const FIONREAD: u32 = 0x541b;
const FIFREEZE: u32 = 0xc004_5877;
const FITHAW: u32 = 0xc004_5878;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const FIDEDUPERANGE: u32 = 0xc018_9436;
const FICLONERANGE: u32 = 0x4020_940d;
const FS_IOC_RESVSP: u32 = 0x4030_5828;
const FS_IOC_UNRESVSP: u32 = 0x4030_5829;
const TFD_IOC_SET_TICKS: u32 = 0x4008_5400;

pub fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

/// Opens a file below a directory of this check's own.
pub fn open(scratch: &Scratch, name: &str, flags: i32) -> Result<Fd> {
    let path = c(&scratch.0.join(name));
    Fd::new(
        call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600),
        "open",
    )
}

fn directory(scratch: &Scratch) -> Result<Fd> {
    let path = c(&scratch.0);
    Fd::new(
        call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY, 0),
        "open",
    )
}

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;

fn of_sizes() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let data = vec![7_u8; 10_000];
    is(
        call!(SYS_write, file.0, data.as_ptr(), 10_000),
        10_000,
        "write",
    )?;
    let mut bytes = 0_i64;
    is(
        call!(SYS_ioctl, file.0, FIOQSIZE, &raw mut bytes),
        0,
        "FIOQSIZE",
    )?;
    ensure!(bytes == 12_288, "three pages are {bytes} bytes");
    is(
        call!(SYS_ioctl, directory(&scratch)?.0, FIOQSIZE, &raw mut bytes),
        0,
        "of a directory",
    )?;
    fails(
        call!(SYS_ioctl, file.0, FIOQSIZE, 8),
        libc::EFAULT,
        "FIOQSIZE to nowhere",
    )?;
    let [reader, _writer] = pipe(0)?;
    fails(
        call!(SYS_ioctl, reader.0, FIOQSIZE, &raw mut bytes),
        libc::ENOTTY,
        "of a pipe",
    )?;
    for (fd, what) in [
        (file.0, "a file"),
        (reader.0, "a pipe"),
        (pair(libc::SOCK_STREAM)?[0].0, "a socket"),
    ] {
        let mut block = 0_i32;
        is(
            call!(SYS_ioctl, fd, FIGETBSZ, &raw mut block),
            0,
            "FIGETBSZ",
        )?;
        ensure!(block == 4096, "blocks of {what} have {block} bytes");
    }
    fails(
        call!(SYS_ioctl, file.0, FIGETBSZ, 8),
        libc::EFAULT,
        "FIGETBSZ to nowhere",
    )?;
    // How much is behind the position, which may be less than nothing.
    for (position, rest) in [(0, 10_000), (9_000, 1000), (10_007, -7)] {
        let mut got = 0_i32;
        is(
            call!(SYS_lseek, file.0, position, libc::SEEK_SET),
            position,
            "lseek",
        )?;
        is(
            call!(SYS_ioctl, file.0, FIONREAD, &raw mut got),
            0,
            "FIONREAD",
        )?;
        ensure!(got == rest, "{got} bytes behind {position}");
    }
    Ok(())
}

fn that_no_file_here_can() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let [reader, _writer] = pipe(0)?;
    let mut block = 3_i32;
    fails(
        call!(SYS_ioctl, file.0, FIBMAP, &raw mut block),
        libc::EINVAL,
        "FIBMAP",
    )?;
    ensure!(block == 0, "block {block}");
    block = -1;
    fails(
        call!(SYS_ioctl, file.0, FIBMAP, &raw mut block),
        libc::EINVAL,
        "FIBMAP below 0",
    )?;
    ensure!(block == -1, "block {block}");
    fails(
        call!(SYS_ioctl, file.0, FIBMAP, 8),
        libc::EFAULT,
        "FIBMAP of nowhere",
    )?;
    fails(
        call!(SYS_ioctl, reader.0, FIBMAP, &raw mut block),
        libc::ENOTTY,
        "FIBMAP of a pipe",
    )?;
    let zeros = [0_u64; 16];
    let requests = [
        (FIFREEZE, libc::EOPNOTSUPP),
        (FITHAW, libc::EINVAL),
        (FS_IOC_FIEMAP, libc::EOPNOTSUPP),
    ];
    for (request, errno) in requests {
        fails(
            call!(SYS_ioctl, file.0, request, zeros.as_ptr()),
            errno,
            &format!("{request:#x}"),
        )?;
    }
    let dedupe = |fd: &Fd| call!(SYS_ioctl, fd.0, FIDEDUPERANGE, zeros.as_ptr());
    fails(dedupe(&file), libc::EOPNOTSUPP, "FIDEDUPERANGE")?;
    fails(
        dedupe(&directory(&scratch)?),
        libc::EISDIR,
        "of a directory",
    )?;
    fails(dedupe(&reader), libc::EINVAL, "of a pipe")?;
    fails(
        dedupe(&open(&scratch, "f", libc::O_WRONLY)?),
        libc::EINVAL,
        "not for reading",
    )?;
    let with_word = |word: u64| {
        let mut words = zeros;
        words[2] = word;
        call!(SYS_ioctl, file.0, FIDEDUPERANGE, words.as_ptr())
    };
    fails(with_word(0xffff), libc::ENOMEM, "too many files")?;
    fails(with_word(1 << 16), libc::EINVAL, "a reserved field")?;
    fails(
        call!(SYS_ioctl, file.0, FIDEDUPERANGE, 8),
        libc::EFAULT,
        "of nowhere",
    )?;
    let other = open(&scratch, "g", RDWR)?;
    let clone = |from: i32| {
        let range = [u64::from(from.cast_unsigned()), 0, 0, 0];
        call!(SYS_ioctl, file.0, FICLONERANGE, range.as_ptr())
    };
    fails(clone(other.0), libc::EOPNOTSUPP, "FICLONERANGE")?;
    fails(clone(-1), libc::EBADF, "FICLONERANGE of nothing")?;
    fails(clone(reader.0), libc::EXDEV, "FICLONERANGE of a pipe")
}

/// `struct space_resv`.
#[repr(C)]
struct Space {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    unused: [u32; 6],
}

fn of_space() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let blocks = || -> Result<(i64, i64)> {
        // SAFETY: all bytes of the structure may be zero.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        is(call!(SYS_fstat, file.0, &raw mut stat), 0, "fstat")?;
        Ok((stat.st_size, stat.st_blocks))
    };
    let request = |number: u32, whence: i32, start: i64, len: i64| {
        let space = Space {
            kind: 0,
            whence: whence as i16,
            start,
            len,
            unused: [0; 6],
        };
        call!(SYS_ioctl, file.0, number, &raw const space)
    };
    is(request(FS_IOC_RESVSP, libc::SEEK_SET, 0, 8192), 0, "RESVSP")?;
    ensure!(blocks()? == (0, 16), "two pages: {:?}", blocks()?);
    is(call!(SYS_ftruncate, file.0, 8192), 0, "ftruncate")?;
    is(
        request(FS_IOC_UNRESVSP, libc::SEEK_END, -4096, 4096),
        0,
        "UNRESVSP",
    )?;
    ensure!(blocks()? == (8192, 8), "one page: {:?}", blocks()?);
    fails(
        request(FS_IOC_RESVSP, 7, 0, 1),
        libc::EINVAL,
        "from nowhere",
    )?;
    fails(
        request(FS_IOC_RESVSP, libc::SEEK_SET, -1, 1),
        libc::EINVAL,
        "before the beginning",
    )?;
    fails(
        request(FS_IOC_RESVSP, libc::SEEK_SET, 0, 0),
        libc::EINVAL,
        "nothing",
    )?;
    let [reader, _writer] = pipe(0)?;
    fails(
        call!(SYS_ioctl, reader.0, FS_IOC_RESVSP, 8),
        libc::ENOTTY,
        "of a pipe",
    )
}

fn of_signals() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let [reader, _writer] = pipe(0)?;
    let set = |fd: &Fd, on: i32| call!(SYS_ioctl, fd.0, FIOASYNC, &raw const on);
    let has = |fd: &Fd| call!(SYS_fcntl, fd.0, libc::F_GETFL) & i64::from(libc::O_ASYNC) != 0;
    // What is always ready cannot; but it is not asked if nothing changes.
    is(set(&file, 0), 0, "off")?;
    fails(set(&file, 1), libc::ENOTTY, "on")?;
    ensure!(!has(&file));
    is(set(&reader, 1), 0, "a pipe")?;
    ensure!(has(&reader));
    is(set(&reader, 0), 0, "a pipe, off")?;
    ensure!(!has(&reader));
    fails(
        call!(SYS_ioctl, reader.0, FIOASYNC, 8),
        libc::EFAULT,
        "from nowhere",
    )
}

fn of_hints() -> Result<()> {
    const F_GET_RW_HINT: i32 = 1035;
    const F_SET_RW_HINT: i32 = 1036;
    const OF_OPEN_FILE: [i32; 2] = [1037, 1038];
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    let get = |fd: &Fd| {
        let mut hint = 99_u64;
        is(
            call!(SYS_fcntl, fd.0, F_GET_RW_HINT, &raw mut hint),
            0,
            "F_GET_RW_HINT",
        )
        .map(|()| hint)
    };
    let set = |hint: u64| call!(SYS_fcntl, file.0, F_SET_RW_HINT, &raw const hint);
    ensure!(get(&file)? == 0, "none at first");
    for hint in [5, 1, 3] {
        is(set(hint), 0, "F_SET_RW_HINT")?;
        ensure!(get(&file)? == hint);
    }
    for hint in [6, 1 << 33, u64::MAX] {
        fails(set(hint), libc::EINVAL, "no such hint")?;
    }
    let again = open(&scratch, "f", libc::O_RDONLY)?;
    ensure!(get(&again)? == 3, "it is the file's");
    let [reader, writer] = pipe(0)?;
    ensure!(get(&reader)? == 0, "of a pipe");
    let hint = 4_u64;
    let of_kinds = [
        writer,
        Fd::new(call!(SYS_open, c"/dev/null".as_ptr(), RDWR), "a device")?,
        Fd::new(call!(SYS_open, c"/".as_ptr(), 0), "a directory")?,
        Fd::new(
            call!(SYS_open, c"/proc/self/status".as_ptr(), 0),
            "in /proc",
        )?,
        Fd::new(
            call!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0),
            "a socket",
        )?,
    ];
    for (place, fd) in of_kinds.iter().enumerate() {
        let set = |hint: u64| call!(SYS_fcntl, fd.0, F_SET_RW_HINT, &raw const hint);
        is(set(hint), 0, &format!("hint of kind {place}"))?;
        ensure!(get(fd)? == hint, "hint of kind {place}");
        fails(set(6), libc::EINVAL, "no such hint")?;
        let again = Fd::new(call!(SYS_dup, fd.0), "dup")?;
        ensure!(get(&again)? == hint, "hint of a copy of kind {place}");
        if place != 0 {
            is(set(0), 0, "no hint")?;
        }
    }
    ensure!(get(&reader)? == hint, "of the other end of a pipe");
    fails(
        call!(SYS_fcntl, file.0, F_GET_RW_HINT, 8),
        libc::EFAULT,
        "to nowhere",
    )?;
    fails(
        call!(SYS_fcntl, file.0, F_SET_RW_HINT, 8),
        libc::EFAULT,
        "from nowhere",
    )?;
    for command in OF_OPEN_FILE {
        let hint = 1_u64;
        fails(
            call!(SYS_fcntl, file.0, command, &raw const hint),
            libc::EINVAL,
            "given up",
        )?;
    }
    Ok(())
}

/// Until 6.6 `tmpfs` has nothing to go past; since, `O_DIRECT` is taken and means nothing.
fn without_cache() -> Result<()> {
    let scratch = Scratch::new()?;
    let direct = |name: &str, flags: i32| {
        let path = c(&scratch.0.join(name));
        call!(
            SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags | libc::O_DIRECT,
            0o600
        )
    };
    let data = [1_u8; 3];
    let file = open(&scratch, "f", RDWR)?;
    is(call!(SYS_write, file.0, data.as_ptr(), 3), 3, "write")?;
    if let Ok(taken) = Fd::new(direct("f", libc::O_RDWR), "open") {
        return is(
            call!(SYS_fcntl, taken.0, libc::F_SETFL, libc::O_DIRECT),
            0,
            "F_SETFL",
        );
    }
    fails(
        direct("f", libc::O_RDWR | libc::O_TRUNC),
        libc::EINVAL,
        "open",
    )?;
    is(
        call!(SYS_lseek, file.0, 0, libc::SEEK_END),
        3,
        "it is not cut",
    )?;
    fails(
        direct("", libc::O_TMPFILE | libc::O_RDWR),
        libc::EINVAL,
        "without a name",
    )?;
    fails(
        direct("", libc::O_RDONLY | libc::O_DIRECTORY),
        libc::EINVAL,
        "a directory",
    )?;
    fails(direct("made", RDWR), libc::EINVAL, "a new file")?;
    ensure!(scratch.0.join("made").exists(), "which is there now");
    Fd::new(direct("f", libc::O_PATH), "only its name")?;
    let set = |fd: &Fd| call!(SYS_fcntl, fd.0, libc::F_SETFL, libc::O_DIRECT);
    fails(set(&file), libc::EINVAL, "F_SETFL")?;
    fails(
        set(&pair(libc::SOCK_STREAM)?[0]),
        libc::EINVAL,
        "F_SETFL of a socket",
    )?;
    is(set(&pipe(0)?[1]), 0, "F_SETFL of a pipe")
}

fn cached_only() -> Result<()> {
    const RESOLVE_CACHED: u64 = 0x20;
    let scratch = Scratch::new()?;
    open(&scratch, "f", RDWR)?;
    let dir = directory(&scratch)?;
    let opened = |name: &std::ffi::CStr, flags: i32, mode: u64| {
        let how = [u64::from(flags.cast_unsigned()), mode, RESOLVE_CACHED];
        call!(SYS_openat2, dir.0, name.as_ptr(), how.as_ptr(), 24)
    };
    Fd::new(opened(c"f", libc::O_RDWR, 0), "what is known")?;
    Fd::new(opened(c".", libc::O_DIRECTORY, 0), "a directory")?;
    for (flags, mode, what) in [
        (libc::O_RDWR | libc::O_TRUNC, 0, "cutting"),
        (RDWR, 0o600, "making"),
        (libc::O_RDWR | libc::O_TMPFILE, 0o600, "without a name"),
    ] {
        fails(opened(c"f", flags, mode), libc::EAGAIN, what)?;
    }
    Ok(())
}

fn set_ticks() -> Result<()> {
    let timer = Fd::new(
        call!(
            SYS_timerfd_create,
            libc::CLOCK_MONOTONIC,
            libc::TFD_NONBLOCK
        ),
        "timerfd_create",
    )?;
    let set = |ticks: u64| call!(SYS_ioctl, timer.0, TFD_IOC_SET_TICKS, &raw const ticks);
    let mut count = 0_u64;
    let mut read = || (call!(SYS_read, timer.0, &raw mut count, 8), count);
    ensure!(read().0 == -i64::from(libc::EAGAIN), "nothing yet");
    is(set(7), 0, "TFD_IOC_SET_TICKS")?;
    let mut poll = libc::pollfd {
        fd: timer.0,
        events: libc::POLLIN,
        revents: 0,
    };
    is(call!(SYS_poll, &raw mut poll, 1, 0), 1, "poll")?;
    ensure!(read() == (8, 7), "as many as were set");
    ensure!(read().0 == -i64::from(libc::EAGAIN), "once");
    fails(set(0), libc::EINVAL, "none")?;
    fails(
        call!(SYS_ioctl, timer.0, TFD_IOC_SET_TICKS, 8),
        libc::EFAULT,
        "from nowhere",
    )?;
    fails(
        call!(SYS_ioctl, timer.0, FIONREAD, &raw mut count),
        libc::ENOTTY,
        "another",
    )
}

fn of_event_counts() -> Result<()> {
    is(
        call!(SYS_prctl, libc::PR_TASK_PERF_EVENTS_DISABLE),
        0,
        "off",
    )?;
    is(call!(SYS_prctl, libc::PR_TASK_PERF_EVENTS_ENABLE), 0, "on")
}

/// Held locks of every kind are shown, with who holds them.
fn locks_are_listed() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = open(&scratch, "f", RDWR)?;
    // SAFETY: all bytes of the structures may be zero.
    let (mut stat, mut lock): (libc::stat, libc::flock) = unsafe { std::mem::zeroed() };
    is(call!(SYS_fstat, file.0, &raw mut stat), 0, "fstat")?;
    let (major, minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    let place = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let shown = || -> Result<Vec<String>> {
        let text = std::fs::read_to_string("/proc/locks")?;
        let mut lines = Vec::new();
        for line in text.lines().filter(|line| line.contains(&place)) {
            let (number, rest) = line.split_once(": ").unwrap_or_default();
            ensure!(number.parse::<u32>().is_ok_and(|n| n > 0), "{line}");
            lines.push(rest.replace(&place, "FILE"));
        }
        lines.sort();
        Ok(lines)
    };
    let me = std::process::id();
    ensure!(shown()?.is_empty(), "none at first");
    let mut record = |command: i32, kind: i32, start: i64, len: i64| {
        (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, len);
        is(
            call!(SYS_fcntl, file.0, command, &raw const lock),
            0,
            "a record lock",
        )
    };
    record(libc::F_SETLK, libc::F_WRLCK, 10, 5)?;
    record(libc::F_SETLK, libc::F_RDLCK, 100, 0)?;
    let posix = [
        format!("POSIX  ADVISORY  READ {me} FILE 100 EOF"),
        format!("POSIX  ADVISORY  WRITE {me} FILE 10 14"),
    ];
    ensure!(shown()? == posix, "{:?}", shown()?);
    record(libc::F_SETLK, libc::F_UNLCK, 0, 0)?;
    record(libc::F_OFD_SETLK, libc::F_WRLCK, 0, 1)?;
    is(call!(SYS_flock, file.0, libc::LOCK_SH), 0, "flock")?;
    let expected = [
        format!("FLOCK  ADVISORY  READ {me} FILE 0 EOF"),
        "OFDLCK ADVISORY  WRITE -1 FILE 0 0".to_owned(),
    ];
    ensure!(shown()? == expected, "{:?}", shown()?);
    is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
    ensure!(shown()?[0] == format!("FLOCK  ADVISORY  WRITE {me} FILE 0 EOF"));
    drop(file);
    ensure!(shown()?.is_empty(), "they end with the open file");
    let file = open(&scratch, "f", libc::O_RDONLY)?;
    is(
        call!(SYS_fcntl, file.0, libc::F_SETLEASE, libc::F_RDLCK),
        0,
        "F_SETLEASE",
    )?;
    ensure!(
        shown()? == [format!("LEASE  ACTIVE    READ {me} FILE 0 EOF")],
        "{:?}",
        shown()?
    );
    Ok(())
}
