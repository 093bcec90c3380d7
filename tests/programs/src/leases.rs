//! Leases of files and signals of directories (`F_SETLEASE`, `F_NOTIFY`), which wait for signals
//! with `sigtimedwait`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::credentials::{OTHER, become_user, in_child};
use crate::sigio::F_SETSIG;
use crate::text_busy::{Place, truncate};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("leases-are-taken", are_taken),
    ("leases-are-broken", are_broken),
    ("leases-become-less", become_less),
    ("leases-directory-signals", directory_signals),
];

const SIGNAL: i32 = 40;
/// Events for `F_NOTIFY`.
pub const DN_CREATE: i32 = 4;
const DN_DELETE: i32 = 8;
const DN_RENAME: i32 = 16;
const DN_MULTISHOT: i32 = i32::MIN;

fn control(file: &File, command: i32, argument: i32) -> io::Result<i32> {
    // SAFETY: the commands used here take numbers.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, argument) })
}

fn lease(file: &File, kind: i32) -> io::Result<i32> {
    control(file, libc::F_SETLEASE, kind)
}

fn refused<T>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    let code = result.err().and_then(|e| e.raw_os_error());
    ensure!(code == Some(errno), "{what}: {code:?}");
    Ok(())
}

fn signals() -> Result<libc::sigset_t> {
    // SAFETY: a valid set.
    unsafe {
        let mut set = zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, SIGNAL);
        libc::sigaddset(&mut set, libc::SIGIO);
        checked(libc::pthread_sigmask(
            libc::SIG_BLOCK,
            &set,
            std::ptr::null_mut(),
        ))?;
        Ok(set)
    }
}

/// The next signal and the descriptor it tells of; none if there is none within `seconds`.
fn next(set: &libc::sigset_t, seconds: i64) -> Option<(i32, i32)> {
    let time = libc::timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    // SAFETY: valid places; band and descriptor follow the three numbers every signal has.
    unsafe {
        let mut info: libc::siginfo_t = zeroed();
        let signal = libc::sigtimedwait(set, &mut info, &time);
        let words = (&raw const info).cast::<[i32; 8]>().read();
        (signal > 0).then_some((signal, words[6]))
    }
}

fn are_taken() -> Result<()> {
    let place = Place::new("leases")?;
    let path = place.0.join("file");
    fs::write(&path, "text")?;
    let file = File::open(&path)?;
    ensure!(
        control(&file, libc::F_GETLEASE, 0)? == libc::F_UNLCK,
        "a lease from the beginning"
    );
    refused(lease(&file, libc::F_UNLCK), libc::EAGAIN, "giving up none")?;
    lease(&file, libc::F_RDLCK)?;
    ensure!(
        control(&file, libc::F_GETLEASE, 0)? == libc::F_RDLCK,
        "not told"
    );
    lease(&file, libc::F_WRLCK).context("more for the only opening")?;
    ensure!(
        control(&file, libc::F_GETLEASE, 0)? == libc::F_WRLCK,
        "not more"
    );
    lease(&file, libc::F_UNLCK)?;
    let second = File::open(&path)?;
    refused(
        lease(&file, libc::F_WRLCK),
        libc::EAGAIN,
        "while another has it open",
    )?;
    lease(&file, libc::F_RDLCK)?;
    lease(&second, libc::F_RDLCK).context("two to read")?;
    drop(file);
    lease(&second, libc::F_UNLCK)?;
    let writer = OpenOptions::new().write(true).open(&path)?;
    refused(
        lease(&second, libc::F_RDLCK),
        libc::EAGAIN,
        "while another writes",
    )?;
    drop(second);
    refused(
        lease(&writer, libc::F_RDLCK),
        libc::EAGAIN,
        "to read, of who writes",
    )?;
    lease(&writer, libc::F_WRLCK).context("to write, of who writes")?;
    refused(lease(&writer, 9), libc::EINVAL, "no kind")?;
    refused(
        lease(&File::open(&place.0)?, libc::F_RDLCK),
        libc::EINVAL,
        "a directory",
    )?;
    in_child(|| {
        let file = File::open("/proc/self/exe")?;
        become_user(OTHER)?;
        refused(
            lease(&file, libc::F_RDLCK),
            libc::EACCES,
            "of somebody else's file",
        )
    })
}

fn are_broken() -> Result<()> {
    let set = signals()?;
    let place = Place::new("leases-broken")?;
    let path = place.0.join("file");
    fs::write(&path, "text")?;
    let file = File::open(&path)?;
    control(&file, F_SETSIG, SIGNAL)?;
    lease(&file, libc::F_RDLCK)?;
    drop(File::open(&path)?);
    ensure!(next(&set, 0).is_none(), "a reader breaks it");
    thread::scope(|scope| {
        let writer = scope.spawn(|| fs::write(&path, "new"));
        ensure!(
            next(&set, 10) == Some((SIGNAL, file.as_raw_fd())),
            "no signal"
        );
        ensure!(
            control(&file, libc::F_GETLEASE, 0)? == libc::F_UNLCK,
            "something is left to it"
        );
        ensure!(
            !writer.is_finished() && fs::read(&path)? == b"text",
            "it did not wait"
        );
        lease(&file, libc::F_UNLCK)?;
        writer.join().expect("the thread ended well")?;
        Ok(())
    })?;
    ensure!(fs::read(&path)? == b"new", "it was not written");
    // Cutting by name, and the end of the opening.
    // Giving a lease up has made the signal the usual one.
    lease(&file, libc::F_RDLCK)?;
    let quick = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path);
    refused(quick, libc::EAGAIN, "who does not wait")?;
    ensure!(
        next(&set, 10).map(|signal| signal.0) == Some(libc::SIGIO),
        "no signal of who does not wait"
    );
    lease(&file, libc::F_UNLCK)?;
    lease(&file, libc::F_RDLCK)?;
    thread::scope(|scope| {
        let cutter = scope.spawn(|| truncate(&path));
        ensure!(
            next(&set, 10).map(|signal| signal.0) == Some(libc::SIGIO),
            "no signal of the cut"
        );
        drop(file);
        cutter.join().expect("the thread ended well")?;
        Ok(())
    })?;
    ensure!(fs::read(&path)? == b"n", "it was not cut");
    Ok(())
}

fn become_less() -> Result<()> {
    let set = signals()?;
    let place = Place::new("leases-less")?;
    let path = place.0.join("file");
    let file = File::create(&path)?;
    lease(&file, libc::F_WRLCK)?;
    let quick = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path);
    refused(quick, libc::EAGAIN, "a reader that does not wait")?;
    ensure!(
        next(&set, 10).map(|signal| signal.0) == Some(libc::SIGIO),
        "no signal"
    );
    ensure!(
        control(&file, libc::F_GETLEASE, 0)? == libc::F_RDLCK,
        "what is left"
    );
    lease(&file, libc::F_UNLCK)?;
    drop(file);
    let file = File::open(&path)?;
    lease(&file, libc::F_WRLCK)?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| File::open(&path));
        ensure!(
            next(&set, 10).map(|signal| signal.0) == Some(libc::SIGIO),
            "no signal"
        );
        lease(&file, libc::F_RDLCK).context("becoming less")?;
        reader.join().expect("the thread ended well")?;
        ensure!(
            control(&file, libc::F_GETLEASE, 0)? == libc::F_RDLCK,
            "it is gone"
        );
        Ok(())
    })
}

fn directory_signals() -> Result<()> {
    let set = signals()?;
    let place = Place::new("leases-directory")?;
    let directory = File::open(&place.0)?;
    control(&directory, F_SETSIG, SIGNAL)?;
    let wanted = Some((SIGNAL, directory.as_raw_fd()));
    control(&directory, libc::F_NOTIFY, DN_CREATE)?;
    fs::create_dir(place.0.join("one"))?;
    ensure!(next(&set, 10) == wanted, "nothing about a new entry");
    fs::create_dir(place.0.join("two"))?;
    ensure!(next(&set, 0).is_none(), "it is told twice");
    control(&directory, libc::F_NOTIFY, DN_DELETE | DN_MULTISHOT)?;
    for name in ["one", "two"] {
        fs::remove_dir(place.0.join(name))?;
        ensure!(
            next(&set, 10) == wanted,
            "nothing about {name}, which is gone"
        );
    }
    control(&directory, libc::F_NOTIFY, 0)?;
    fs::create_dir(place.0.join("three"))?;
    fs::remove_dir(place.0.join("three"))?;
    ensure!(next(&set, 0).is_none(), "it goes on");
    fs::write(place.0.join("file"), "text")?;
    refused(
        control(&File::open(place.0.join("file"))?, libc::F_NOTIFY, 1),
        libc::ENOTDIR,
        "a file",
    )?;
    // A name that is changed within the directory, and not one that comes or goes.
    let other = Place::new("leases-other-directory")?;
    control(&directory, libc::F_NOTIFY, DN_RENAME | DN_MULTISHOT)?;
    fs::rename(place.0.join("file"), place.0.join("renamed"))?;
    ensure!(next(&set, 10) == wanted, "nothing about another name");
    ensure!(next(&set, 0).is_none(), "it is told twice");
    fs::rename(place.0.join("renamed"), other.0.join("file"))?;
    fs::rename(other.0.join("file"), place.0.join("file"))?;
    ensure!(
        next(&set, 0).is_none(),
        "it is told of what goes to another directory"
    );
    Ok(())
}
