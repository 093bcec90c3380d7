//! Loop devices: block special files, and the page cache in front of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::mounts::Ground;
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("loop-devices-are-their-files", are_their_files),
    ("loop-devices-have-limits", have_limits),
    (
        "loop-devices-are-claimed-and-cleared",
        are_claimed_and_cleared,
    ),
    ("loop-devices-give-up-contents", give_up_contents),
    ("loop-devices-tell-errors-once", tell_errors_once),
    ("loop-devices-do-not-fill-memory", do_not_fill_memory),
];

const LOOP_SET_FD: u64 = 0x4c00;
const LOOP_CLR_FD: u64 = 0x4c01;
const LOOP_SET_STATUS64: u64 = 0x4c04;
const LOOP_GET_STATUS64: u64 = 0x4c05;
const LOOP_SET_CAPACITY: u64 = 0x4c07;
const LOOP_CTL_GET_FREE: u64 = 0x4c82;
const BLKROSET: u64 = 0x125d;
const BLKROGET: u64 = 0x125e;
const BLKSSZGET: u64 = 0x1268;
const BLKGETSIZE64: u64 = 0x8008_1272;
const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;
const AUTOCLEAR: u32 = 4;

/// The kernel module of a Linux that has loop devices in one, if it was added to the machine.
const MODULE: &str = "/loop.ko";

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

/// `ioctl(2)` with an argument that the kernel reads or writes.
fn control<T>(file: &File, request: u64, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the requests here read or write as much as `T` has.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), request as _, &raw mut *argument) })
}

/// `ioctl(2)` with a number.
fn control_number(file: &File, request: u64, number: i32) -> io::Result<i32> {
    // SAFETY: the requests here take a number.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), request as _, i64::from(number)) })
}

fn error_of<T>(result: io::Result<T>) -> i32 {
    result
        .err()
        .and_then(|error| error.raw_os_error())
        .unwrap_or(0)
}

fn read_write(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// A loop device with a file behind it, until it is dropped.
struct Loop {
    path: PathBuf,
    file: File,
}

impl Loop {
    /// Puts a file behind a device that is free.
    fn new(backing: &File) -> Result<Self> {
        if let Ok(module) = File::open(MODULE)
            && !Path::new("/sys/module/loop").exists()
        {
            // SAFETY: a descriptor, a text and no flags.
            checked(unsafe {
                libc::syscall(libc::SYS_finit_module, module.as_raw_fd(), c"".as_ptr(), 0) as i32
            })
            .context("cannot load the module")?;
        }
        let all = read_write("/dev/loop-control").context("there are no loop devices")?;
        loop {
            let number = control_number(&all, LOOP_CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = read_write(&path)?;
            match control_number(&file, LOOP_SET_FD, backing.as_raw_fd()) {
                Ok(_) => return Ok(Self { path, file }),
                // Another check was faster.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn status(&self) -> io::Result<LoopInfo> {
        // SAFETY: numbers and bytes, for which zeros are values.
        let mut info: LoopInfo = unsafe { std::mem::zeroed() };
        control(&self.file, LOOP_GET_STATUS64, &mut info).map(|_| info)
    }

    fn size(&self) -> io::Result<u64> {
        let mut size = 0u64;
        control(&self.file, BLKGETSIZE64, &mut size).map(|_| size)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A check that took the file away itself has done so.
        let _ = control_number(&self.file, LOOP_CLR_FD, 0);
    }
}

/// A file of `len` bytes, each of which says where it is.
fn backing(place: &Place, name: &str, len: usize) -> Result<File> {
    let path = place.0.join(name);
    fs::write(&path, pattern(0, len))?;
    Ok(read_write(&path)?)
}

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len)
        .map(|at| (at / 512 * 7 + at) as u8)
        .collect()
}

fn are_their_files() -> Result<()> {
    const LEN: usize = 300 << 10;
    // Of devices without a file there is nothing to bring anywhere, and nothing to tell later.
    // SAFETY: it takes nothing and always succeeds.
    unsafe { libc::sync() };
    let place = Place::new("loop-files")?;
    let under = backing(&place, "disk", LEN + 100)?;
    let mut disk = Loop::new(&under)?;
    ensure!(disk.size()? == LEN as u64, "the size is {}", disk.size()?);
    let mut read = Vec::new();
    File::open(&disk.path)?.read_to_end(&mut read)?;
    ensure!(read == pattern(0, LEN), "it does not read as the file");
    // Across pages, whole pages, and a sector within one: nothing is in the file before it is
    // written back, and all of it is afterwards.
    let mut expected = read;
    for (at, len) in [(4090, 10), (8192, 8192), (20_480 + 512, 512), (LEN - 5, 5)] {
        let bytes = vec![at as u8 | 1; len];
        disk.file.write_all_at(&bytes, at as u64)?;
        expected[at..at + len].copy_from_slice(&bytes);
    }
    let mut seen = vec![0; LEN];
    disk.file.read_exact_at(&mut seen, 0)?;
    ensure!(seen == expected, "it does not read as it was written");
    disk.file.sync_all()?;
    under.read_exact_at(&mut seen, 0)?;
    ensure!(seen == expected, "fsync did not bring it to the file");
    // Closing does, too, and the file goes then. (Taken away before, Linux 6.1 loses it.)
    disk.file.write_all_at(b"later", 100)?;
    let mut status = disk.status()?;
    status.flags |= AUTOCLEAR;
    control(&disk.file, LOOP_SET_STATUS64, &mut status)?;
    disk.file = File::open("/dev/null")?;
    under.read_exact_at(&mut seen[..5], 100)?;
    ensure!(
        &seen[..5] == b"later",
        "closing did not bring it to the file"
    );
    // With O_DSYNC a write is in the file when it returns.
    let disk = Loop::new(&under)?;
    // SAFETY: a name that ends in NUL; the descriptor is new.
    let mut through = unsafe {
        let name = std::ffi::CString::new(disk.path.to_string_lossy().as_bytes())?;
        let fd = checked(libc::open(name.as_ptr(), libc::O_RDWR | libc::O_DSYNC))?;
        File::from_raw_fd(fd)
    };
    through.seek(SeekFrom::Start(1000))?;
    through.write_all(b"at once")?;
    under.read_exact_at(&mut seen[..7], 1000)?;
    ensure!(
        &seen[..7] == b"at once",
        "O_DSYNC did not bring it to the file"
    );
    Ok(())
}

fn have_limits() -> Result<()> {
    const LEN: u64 = 64 << 10;
    let place = Place::new("loop-limits")?;
    let under = backing(&place, "disk", LEN as usize)?;
    let mut disk = Loop::new(&under)?;
    let mut sector = 0i32;
    control(&disk.file, BLKSSZGET, &mut sector)?;
    ensure!(sector == 512, "sectors of {sector} bytes");
    let seen = (
        disk.file.seek(SeekFrom::End(0))?,
        error_of(disk.file.seek(SeekFrom::Start(LEN + 1))),
        disk.file.read_at(&mut [0; 8], LEN)?,
        error_of(disk.file.write_at(&[1; 8], LEN)),
        disk.file.write_at(&[1; 8], LEN - 3)?,
        disk.file.read_at(&mut [0; 8], LEN - 3)?,
    );
    let expected = (LEN, libc::EINVAL, 0, libc::ENOSPC, 3, 3);
    ensure!(
        seen == expected,
        "at the end: {seen:?} and not {expected:?}"
    );
    // A part of the file.
    let mut part = disk.status()?;
    (part.offset, part.size_limit) = (4096 + 512, 8192 + 100);
    control(&disk.file, LOOP_SET_STATUS64, &mut part)?;
    let mut first = [0; 16];
    disk.file.read_exact_at(&mut first, 0)?;
    ensure!(
        disk.size()? == 8192 && first[..] == pattern(4096 + 512, 16),
        "a part of the file is {} bytes, {first:?}",
        disk.size()?
    );
    part.size_limit = 0;
    control(&disk.file, LOOP_SET_STATUS64, &mut part)?;
    under.set_len(LEN + 1024)?;
    let before = disk.size()?;
    control_number(&disk.file, LOOP_SET_CAPACITY, 0)?;
    ensure!(
        (before, disk.size()?) == (LEN - 4608, LEN + 1024 - 4608),
        "the size went from {before} to {}",
        disk.size()?
    );
    // What may not be written to.
    let mut flag = 1i32;
    control(&disk.file, BLKROSET, &mut flag)?;
    flag = 0;
    control(&disk.file, BLKROGET, &mut flag)?;
    let error = error_of(disk.file.write_at(&[1; 8], 0));
    control(&disk.file, BLKROSET, &mut 0i32)?;
    ensure!(
        (flag, error) == (1, libc::EPERM),
        "read only is {flag}, and writing error {error}"
    );
    Ok(())
}

fn are_claimed_and_cleared() -> Result<()> {
    let place = Place::new("loop-claims")?;
    let under = backing(&place, "disk", 64 << 10)?;
    let disk = Loop::new(&under)?;
    ensure!(
        error_of(control_number(&disk.file, LOOP_SET_FD, under.as_raw_fd())) == libc::EBUSY,
        "a device took a second file"
    );
    let claim = || -> io::Result<File> {
        let name = std::ffi::CString::new(disk.path.to_string_lossy().as_bytes())?;
        // SAFETY: a name that ends in NUL; the descriptor is new.
        unsafe {
            checked(libc::open(name.as_ptr(), libc::O_RDWR | libc::O_EXCL))
                .map(|fd| File::from_raw_fd(fd))
        }
    };
    let first = claim()?;
    let second = error_of(claim());
    drop(first);
    ensure!(
        second == libc::EBUSY && claim().is_ok(),
        "two have it for themselves: {second}"
    );
    // While somebody else has it open, the file goes later.
    let other = File::open(&disk.path)?;
    control_number(&disk.file, LOOP_CLR_FD, 0)?;
    ensure!(
        disk.status()?.flags & AUTOCLEAR != 0,
        "the file went from under an opener"
    );
    drop(other);
    control_number(&disk.file, LOOP_CLR_FD, 0)?;
    ensure!(
        error_of(disk.status()) == libc::ENXIO,
        "the file did not go"
    );
    let nothing = File::open(place.0.clone())?;
    ensure!(
        error_of(control_number(&disk.file, LOOP_SET_FD, nothing.as_raw_fd())) == libc::EINVAL
            && error_of(control_number(&disk.file, LOOP_SET_FD, -1)) == libc::EBADF,
        "a device took what is no file"
    );
    Ok(())
}

fn give_up_contents() -> Result<()> {
    const LEN: usize = 256 << 10;
    let place = Place::new("loop-discard")?;
    let under = backing(&place, "disk", LEN)?;
    let disk = Loop::new(&under)?;
    let mut expected = pattern(0, LEN);
    // In the cache, dirty, on both sides of an edge.
    disk.file.write_all_at(&[9; 8192], 61_440)?;
    expected[61_440..69_632].fill(9);
    control(&disk.file, BLKDISCARD, &mut [65_536u64, 131_072])?;
    expected[65_536..196_608].fill(0);
    control(&disk.file, BLKZEROOUT, &mut [512u64, 1024])?;
    expected[512..1536].fill(0);
    let mut seen = vec![0; LEN];
    disk.file.read_exact_at(&mut seen, 0)?;
    ensure!(seen == expected, "what was given up is still there");
    let refused = [
        [100u64, 512],
        [0, 100],
        [LEN as u64, 512],
        [u64::MAX - 511, 512],
    ]
    .map(|mut range| error_of(control(&disk.file, BLKDISCARD, &mut range)));
    let reader = File::open(&disk.path)?;
    ensure!(
        refused == [libc::EINVAL; 4]
            && error_of(control(&reader, BLKDISCARD, &mut [0u64, 512])) == libc::EBADF,
        "ranges that are none: {refused:?}"
    );
    Ok(())
}

/// A `tmpfs` that has less room than the file in it says.
fn too_small(ground: &Ground, room: &str, len: u64) -> Result<File> {
    let path = ground.tmpfs("small", 0, room)?.join("disk");
    File::create(&path)?.set_len(len)?;
    Ok(read_write(&path)?)
}

fn tell_errors_once() -> Result<()> {
    let ground = Ground::new("loop-errors")?;
    let disk = Loop::new(&too_small(&ground, "size=64k", 1 << 20)?)?;
    let [early, other] = [File::open(&disk.path)?, File::open(&disk.path)?];
    // There is room in the cache, not in the file.
    disk.file.write_all_at(&vec![5; 512 << 10], 0)?;
    let told = |file: &File| [error_of(file.sync_all()), error_of(file.sync_all())];
    let expected = [libc::EIO, 0];
    for (who, file) in [("the writer", &disk.file), ("a reader", &early)] {
        let seen = told(file);
        ensure!(seen == expected, "{who} is told {seen:?}");
    }
    let late = File::open(&disk.path)?;
    ensure!(told(&late) == [0, 0], "who came later is told of it");
    let seen = told(&other);
    ensure!(seen == expected, "the last is told {seen:?}");
    // The next one is told to all again.
    disk.file.write_all_at(&vec![6; 512 << 10], 0)?;
    for file in [&late, &disk.file, &other] {
        let seen = told(file);
        ensure!(seen == expected, "of the second failure is told {seen:?}");
    }
    Ok(())
}

/// KiB of memory that are dirty.
fn dirty() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("Dirty:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.context("there is no such line")?.parse()?)
}

/// Limits of what may be dirty, which are as ever when this is dropped.
struct DirtyLimits;

impl DirtyLimits {
    const PLACE: &str = "/proc/sys/vm";

    fn new(bytes: u64) -> io::Result<Self> {
        fs::write(format!("{}/dirty_bytes", Self::PLACE), bytes.to_string())?;
        let background = (bytes / 2).to_string();
        fs::write(
            format!("{}/dirty_background_bytes", Self::PLACE),
            background,
        )?;
        Ok(Self)
    }
}

impl Drop for DirtyLimits {
    fn drop(&mut self) {
        // They take what they took before.
        let _ = fs::write(format!("{}/dirty_ratio", Self::PLACE), "20");
        let _ = fs::write(format!("{}/dirty_background_ratio", Self::PLACE), "10");
    }
}

fn do_not_fill_memory() -> Result<()> {
    // A disk of holes: what is written to it does not fit, and of what is written only a part is
    // dirty at each moment.
    const LIMIT: u64 = 8 << 20;
    let ground = Ground::new("loop-pressure")?;
    let _limits = DirtyLimits::new(LIMIT)?;
    let disk = Loop::new(&too_small(&ground, "size=4m", 8 * LIMIT)?)?;
    let bytes = vec![3; 64 << 10];
    let mut most = 0;
    for at in (0..8 * LIMIT).step_by(bytes.len()) {
        disk.file.write_all_at(&bytes, at)?;
        most = most.max(dirty()? << 10);
    }
    ensure!(
        most > 0 && most <= 2 * LIMIT,
        "{most} bytes were dirty at a limit of {LIMIT}"
    );
    ensure!(
        error_of(disk.file.sync_all()) == libc::EIO,
        "what did not fit was lost without a word"
    );
    Ok(())
}
