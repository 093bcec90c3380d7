//! Files that cannot be written while they run as programs (`ETXTBSY`), numbers of calls, and
//! processes by their directories in `/proc`.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{io, process, ptr};

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is};
use crate::credentials::{OTHER, become_user, in_child};

pub const CHECKS: &[(&str, Check)] = &[
    ("text-busy-file-is-not-written", running_file_is_not_written),
    (
        "text-busy-written-file-does-not-run",
        written_file_does_not_run,
    ),
    ("text-busy-numbers-count-by-half", numbers_count_by_half),
    ("text-busy-signal-by-directory", signal_by_directory),
    (
        "text-busy-file-that-nobody-may-read",
        file_that_nobody_may_read,
    ),
    ("text-busy-file-by-a-place", file_by_a_place),
    ("script-by-a-descriptor", script_by_a_descriptor),
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
    Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
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
        is_busy(
            OpenOptions::new().write(true).open(&path),
            "opened for writing",
        )?;
        is_busy(
            OpenOptions::new().read(true).append(true).open(&path),
            "opened for appending",
        )?;
        is_busy(File::create(&path), "made anew")?;
        is_busy(
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_TRUNC)
                .open(&path),
            "cut while opened for reading",
        )?;
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
    is_busy(
        start(&path),
        "run while written by a copy of the descriptor",
    )?;
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
        let result = unsafe {
            libc::syscall(
                number,
                ptr::null::<u8>(),
                ptr::null::<u8>(),
                ptr::null::<u8>(),
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error().raw_os_error())
        } else {
            Ok(result)
        }
    };
    let own = i64::from(process::id());
    ensure!(call(libc::SYS_getpid | 1 << 32) == Ok(own), "bit 32 counts");
    ensure!(
        call(libc::SYS_getpid | i64::MIN) == Ok(own),
        "bit 63 counts"
    );
    ensure!(
        call(libc::SYS_execve | 1 << 40) == Err(Some(libc::EFAULT)),
        "bit 40 counts"
    );
    for number in [
        libc::SYS_getpid | 1 << 30,
        libc::SYS_getpid | 1 << 31,
        -1,
        1 << 20,
    ] {
        ensure!(
            call(number) == Err(Some(libc::ENOSYS)),
            "there is a call {number:#x}"
        );
    }
    Ok(())
}

fn send(directory: &File, signal: i32) -> io::Result<()> {
    // SAFETY: no information is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            directory.as_raw_fd(),
            signal,
            0usize,
            0,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn signal_by_directory() -> Result<()> {
    let place = Place::new("directory")?;
    let mut child = start(&waiting_program(&place)?)?;
    let pid = child.id();
    let directory = File::open(format!("/proc/{pid}"))?;
    send(&directory, 0)?;
    for (other, name) in [
        ("/proc".into(), "all processes"),
        (format!("/proc/{pid}/task/{pid}"), "a thread"),
    ] {
        let refused = send(&File::open(&other)?, 0)
            .err()
            .and_then(|e| e.raw_os_error());
        ensure!(refused == Some(libc::EBADF), "{name}: {refused:?}");
    }
    // SAFETY: the call takes numbers.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, directory.as_raw_fd(), 0, 0) };
    ensure!(
        taken == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF),
        "a directory gave a descriptor"
    );
    send(&directory, libc::SIGTERM)?;
    ensure!(
        child.wait()?.signal() == Some(libc::SIGTERM),
        "it ended in another way"
    );
    let gone = send(&directory, 0).err().and_then(|e| e.raw_os_error());
    ensure!(gone == Some(libc::ESRCH), "after its end: {gone:?}");
    Ok(())
}

/// A copy of this program, which ends with status 5 if its number is the one it is told
/// (`child number N`).
fn own_copy(place: &Place, mode: u32) -> Result<PathBuf> {
    let path = place.0.join("program");
    let _ = fs::remove_file(&path);
    fs::copy("/proc/self/exe", &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    Ok(path)
}

fn exits_with(status: io::Result<process::ExitStatus>, expected: i32, what: &str) -> Result<()> {
    let code = status.with_context(|| what.to_owned())?.code();
    ensure!(code == Some(expected), "{what}: {code:?}");
    Ok(())
}

fn file_that_nobody_may_read() -> Result<()> {
    let place = Place::new("unreadable")?;
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755))?;
    for mode in [0o711, 0o4511, 0o511, 0o111] {
        let program = own_copy(&place, mode)?;
        in_child(|| {
            become_user(OTHER)?;
            ensure!(
                File::open(&program).is_err(),
                "mode {mode:o} lets everybody read"
            );
            exits_with(
                Command::new(&program).args(["child", "exit", "7"]).status(),
                7,
                &format!("mode {mode:o}"),
            )
        })?;
    }
    let program = own_copy(&place, 0o744)?;
    in_child(|| {
        become_user(OTHER)?;
        let refused = Command::new(&program)
            .args(["child", "exit", "7"])
            .status()
            .err()
            .and_then(|e| e.raw_os_error());
        ensure!(refused == Some(libc::EACCES), "mode 744: {refused:?}");
        Ok(())
    })
}

/// Runs what a descriptor of `O_PATH` means, as `fexecve(3)` does, in a child: its exit status.
fn run_place(place: &Fd) -> Result<i32> {
    // SAFETY: the child executes or ends at once.
    match unsafe { libc::fork() } {
        0 => {
            let arguments = [
                c"program".as_ptr(),
                c"child".as_ptr(),
                c"exit".as_ptr(),
                c"9".as_ptr(),
                ptr::null(),
            ];
            let environment = [ptr::null::<u8>()];
            let failed = call!(
                SYS_execveat,
                place.0,
                c"".as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
                libc::AT_EMPTY_PATH
            );
            // SAFETY: the child ends here.
            unsafe { libc::_exit(-failed as i32) }
        }
        child => {
            let mut status = 0;
            is(
                call!(SYS_wait4, child, &raw mut status, 0, 0),
                child.into(),
                "wait4",
            )?;
            Ok(libc::WEXITSTATUS(status))
        }
    }
}

fn file_by_a_place() -> Result<()> {
    let place = Place::new("by-a-place")?;
    let name = CString::new(own_copy(&place, 0o755)?.as_os_str().as_bytes())?;
    let at = |flags: i32| Fd::new(call!(SYS_open, name.as_ptr(), flags), "open");
    ensure!(run_place(&at(libc::O_PATH)?)? == 9, "O_PATH");
    ensure!(run_place(&at(libc::O_RDONLY)?)? == 9, "O_RDONLY");
    fails(
        call!(SYS_execveat, at(libc::O_PATH)?.0, c"".as_ptr(), 0, 0, 0),
        libc::ENOENT,
        "execveat without a name and AT_EMPTY_PATH",
    )?;
    let link = CString::new(place.0.join("link").as_os_str().as_bytes())?;
    is(
        call!(SYS_symlink, name.as_ptr(), link.as_ptr()),
        0,
        "symlink",
    )?;
    let nofollow = libc::AT_SYMLINK_NOFOLLOW;
    fails(
        call!(SYS_execveat, libc::AT_FDCWD, link.as_ptr(), 0, 0, nofollow),
        libc::ELOOP,
        "a link that is not followed",
    )?;
    let of_link = Fd::new(
        call!(SYS_open, link.as_ptr(), libc::O_PATH | libc::O_NOFOLLOW),
        "open",
    )?;
    let empty = libc::AT_EMPTY_PATH;
    fails(
        call!(SYS_execveat, of_link.0, c"".as_ptr(), 0, 0, empty),
        libc::ELOOP,
        "a link itself",
    )?;
    fails(
        call!(SYS_execveat, libc::AT_FDCWD, c"/tmp".as_ptr(), 0, 0, 0),
        libc::EACCES,
        "a directory",
    )
}

/// A script that `execveat(2)` runs is opened by its interpreter through `/dev/fd`; one of a
/// descriptor that is closed by then cannot be.
fn script_by_a_descriptor() -> Result<()> {
    let place = Place::new("script")?;
    let script = place.0.join("script");
    fs::write(&script, "#!/bin/busybox echo\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let path = CString::new(script.as_os_str().as_bytes())?;
    let directory = CString::new(place.0.as_os_str().as_bytes())?;
    let run = |from: &CString, name: &CStr, cloexec: i32| {
        let mut command = Command::new("nothing");
        let (from, name) = (from.clone(), name.to_owned());
        // SAFETY: the child makes system calls only.
        unsafe {
            command.pre_exec(move || {
                let fd = call!(SYS_open, from.as_ptr(), libc::O_PATH | cloexec);
                let arguments = [c"program".as_ptr(), c"argument".as_ptr(), ptr::null()];
                let environment = [ptr::null::<u8>()];
                let failed = call!(
                    SYS_execveat,
                    call!(SYS_dup3, fd, 77, cloexec),
                    name.as_ptr(),
                    arguments.as_ptr(),
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH
                );
                Err(io::Error::from_raw_os_error(-failed as i32))
            });
        }
        let output = command.output().map_err(|e| e.raw_os_error());
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    fs::create_dir(place.0.join("inner"))?;
    let inner = CString::new(place.0.join("inner").as_os_str().as_bytes())?;
    for (from, name, told) in [
        (&path, c"", "/dev/fd/77 argument\n"),
        (&directory, c"script", "/dev/fd/77/script argument\n"),
        (&inner, c"../script", "/dev/fd/77/../script argument\n"),
    ] {
        let said = run(from, name, 0);
        ensure!(said.as_deref() == Ok(told), "{name:?}: {said:?}");
        let closed = run(from, name, libc::O_CLOEXEC);
        ensure!(
            closed == Err(Some(libc::ENOENT)),
            "{name:?}, closed: {closed:?}"
        );
    }
    // A whole path says nothing of the descriptor.
    let said = run(&directory, &path, libc::O_CLOEXEC)
        .map_err(|e| anyhow::anyhow!("a whole path: {e:?}"))?;
    ensure!(
        said == format!("{} argument\n", script.display()),
        "a whole path: {said:?}"
    );
    Ok(())
}
