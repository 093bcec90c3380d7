//! Files while they run as programs, numbers of calls, and processes by their directories in `/proc`.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{io, process, ptr};

use anyhow::{Context, Result, ensure};

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[
    ("running-file-is-not-written", running_file_is_not_written),
    ("running-written-file-does-not-run", written_file_does_not_run),
    ("running-numbers-count-by-half", numbers_count_by_half),
    ("running-signal-by-directory", signal_by_directory),
];

/// A directory of its own, removed when dropped.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("{name}-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A copy of `cat`, which runs until its input ends.
fn waiting_program(place: &Place) -> Result<PathBuf> {
    let path = place.0.join("cat");
    fs::copy(fs::canonicalize("/bin/cat")?, &path).context("copying cat")?;
    Ok(path)
}

fn start(program: &Path) -> io::Result<Child> {
    Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

/// Ends it by the end of its input.
fn finish(mut child: Child) -> Result<()> {
    drop(child.stdin.take());
    ensure!(child.wait()?.success(), "the program failed");
    Ok(())
}

fn is_busy<T>(result: io::Result<T>, what: &str) -> Result<()> {
    let code = result.err().and_then(|e| e.raw_os_error());
    ensure!(code == Some(libc::ETXTBSY), "{what}: {code:?}");
    Ok(())
}

/// Cuts a file by its name to one byte.
pub fn truncate(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name ends with NUL.
    crate::checked(unsafe { libc::truncate(name.as_ptr(), 1) }).map(drop)
}

fn running_file_is_not_written() -> Result<()> {
    let place = Place::new("running")?;
    let path = waiting_program(&place)?;
    let size = fs::metadata(&path)?.len();
    let (one, other) = (start(&path)?, start(&path)?);
    for child in [one, other] {
        is_busy(OpenOptions::new().write(true).open(&path), "opened for writing")?;
        is_busy(OpenOptions::new().read(true).append(true).open(&path), "opened for appending")?;
        is_busy(File::create(&path), "made anew")?;
        is_busy(OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&path), "cut while opened for reading")?;
        is_busy(truncate(&path), "cut by name")?;
        ensure!(fs::read(&path)?.len() as u64 == size, "it cannot be read");
        finish(child)?;
    }
    // Its name may be another file's at any time.
    let child = start(&path)?;
    fs::rename(&path, place.0.join("renamed"))?;
    fs::write(&path, "other")?;
    finish(child)?;
    truncate(&place.0.join("renamed")).context("cut when nobody runs it any more")?;
    Ok(())
}

fn written_file_does_not_run() -> Result<()> {
    let place = Place::new("writing")?;
    let path = waiting_program(&place)?;
    let writer = OpenOptions::new().append(true).open(&path)?;
    let second = writer.try_clone()?;
    is_busy(start(&path), "run while written")?;
    drop(writer);
    is_busy(start(&path), "run while written by a copy of the descriptor")?;
    drop(second);
    finish(start(&path)?)?;
    let script = place.0.join("script");
    fs::write(&script, format!("#!{}\n", path.display()))?;
    fs::set_permissions(&script, fs::metadata(&path)?.permissions())?;
    let writer = OpenOptions::new().append(true).open(&path)?;
    is_busy(start(&script), "interpreter run while written")?;
    drop(writer);
    finish(start(&script)?)
}

fn numbers_count_by_half() -> Result<()> {
    let call = |number: i64| {
        // SAFETY: `getpid` takes nothing, and `execve` fails for want of a name.
        let result = unsafe { libc::syscall(number, ptr::null::<u8>(), ptr::null::<u8>(), ptr::null::<u8>()) };
        if result < 0 { Err(io::Error::last_os_error().raw_os_error()) } else { Ok(result) }
    };
    let own = i64::from(process::id());
    ensure!(call(libc::SYS_getpid | 1 << 32) == Ok(own), "bit 32 counts");
    ensure!(call(libc::SYS_getpid | i64::MIN) == Ok(own), "bit 63 counts");
    ensure!(call(libc::SYS_execve | 1 << 40) == Err(Some(libc::EFAULT)), "bit 40 counts");
    for number in [libc::SYS_getpid | 1 << 30, libc::SYS_getpid | 1 << 31, -1, 1 << 20] {
        ensure!(call(number) == Err(Some(libc::ENOSYS)), "there is a call {number:#x}");
    }
    Ok(())
}

fn send(directory: &File, signal: i32) -> io::Result<()> {
    // SAFETY: no information is passed.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, directory.as_raw_fd(), signal, 0usize, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn signal_by_directory() -> Result<()> {
    let place = Place::new("directory")?;
    let mut child = start(&waiting_program(&place)?)?;
    let pid = child.id();
    let directory = File::open(format!("/proc/{pid}"))?;
    send(&directory, 0)?;
    for (other, name) in [("/proc".into(), "all processes"), (format!("/proc/{pid}/task/{pid}"), "a thread")] {
        let refused = send(&File::open(&other)?, 0).err().and_then(|e| e.raw_os_error());
        ensure!(refused == Some(libc::EBADF), "{name}: {refused:?}");
    }
    // SAFETY: the call takes numbers.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, directory.as_raw_fd(), 0, 0) };
    ensure!(taken == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF), "a directory gave a descriptor");
    send(&directory, libc::SIGTERM)?;
    ensure!(child.wait()?.signal() == Some(libc::SIGTERM), "it ended in another way");
    let gone = send(&directory, 0).err().and_then(|e| e.raw_os_error());
    ensure!(gone == Some(libc::ESRCH), "after its end: {gone:?}");
    Ok(())
}
