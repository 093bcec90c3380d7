//! The kernel's log: `syslog(2)`, `/dev/kmsg`.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};
use std::{fs, process};

use anyhow::{Context, Result, ensure};

use crate::credentials::{OTHER, become_user, in_child};
use crate::{Check, checked};

/// Time for which a crash is waited for that the log has a line of: several intervals of its limit.
const TIMEOUT: Duration = Duration::from_secs(60);

pub const CHECKS: &[(&str, Check)] = &[
    ("klog-lines-of-programs", lines_of_programs),
    ("klog-read-and-cleared", read_and_cleared),
    ("klog-permissions", permissions),
    ("klog-crashes-are-limited", crashes_are_limited),
];

fn open() -> Result<File> {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg");
    file.context("/dev/kmsg")
}

fn syslog(action: i32, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid.
    checked(unsafe { libc::klogctl(action, buf.as_mut_ptr().cast(), buf.len() as i32) })
        .map(|n| n as usize)
}

/// All there is to read from an opening.
fn rest(mut file: &File) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut buf = [0; 8192];
    loop {
        match file.read(&mut buf) {
            Ok(n) => lines.push(String::from_utf8_lossy(&buf[..n]).into_owned()),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(lines),
            Err(error) => return Err(error.into()),
        }
    }
}

fn lines_of_programs() -> Result<()> {
    let mut file = open()?;
    let seek = |whence| {
        // SAFETY: numbers.
        let place = unsafe { libc::lseek(file.as_raw_fd(), 0, whence) };
        if place < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(place)
        }
    };
    seek(libc::SEEK_END)?;
    let line = format!("machine-tests {} says\thello", process::id());
    (&file).write_all(format!("<5>{line}\n").as_bytes())?;
    let mut entry = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    ensure!(
        // SAFETY: one valid entry.
        checked(unsafe { libc::poll(&mut entry, 1, 10_000) })? == 1,
        "nothing to read"
    );
    let start = format!("machine-tests {}", process::id());
    let own: Vec<String> = rest(&file)?
        .into_iter()
        .filter(|line| line.contains(&start))
        .collect();
    ensure!(
        own.len() == 1 && own[0].starts_with("13,") && own[0].ends_with('\n'),
        "{own:?}"
    );
    let fields: Vec<&str> = own[0].split([',', ';']).collect();
    ensure!(
        fields.len() >= 5 && fields[1].parse::<u64>().is_ok() && fields[2].parse::<u64>().is_ok(),
        "{own:?}"
    );
    seek(libc::SEEK_SET)?;
    ensure!(
        rest(&file)?.iter().any(|line| line.contains(&start)),
        "it is not there from the beginning"
    );
    ensure!(seek(libc::SEEK_CUR).is_err(), "there are positions");
    ensure!(file.write(&[b'a'; 4096]).is_err(), "a long line");
    Ok(())
}

fn read_and_cleared() -> Result<()> {
    let size = syslog(10, &mut [])?;
    ensure!(size >= 4096, "a log of {size} bytes");
    let marker = format!("machine-tests {} clears", process::id());
    open()?.write_all(format!("{marker}\n").as_bytes())?;
    let mut buf = vec![0; size];
    let mut all = |action| -> Result<String> {
        let n = syslog(action, &mut buf)?;
        Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
    };
    let text = all(3)?;
    let line = text
        .lines()
        .find(|line| line.contains(&marker))
        .context("it is not there")?;
    ensure!(line.starts_with("<12>["), "{line}");
    // Of a short buffer it is the end.
    let mut end = vec![0; line.len() + 1];
    let n = syslog(3, &mut end)?;
    ensure!(
        n <= end.len() && (n == 0 || end[n - 1] == b'\n'),
        "not whole lines"
    );
    ensure!(
        all(4)?.contains(&marker),
        "it is not there when it is cleared"
    );
    ensure!(!all(3)?.contains(&marker), "it was not cleared");
    for (action, errno) in [(99, libc::EINVAL), (8, libc::EINVAL)] {
        let code = syslog(action, &mut [])
            .err()
            .and_then(|error| error.raw_os_error());
        ensure!(code == Some(errno), "action {action}: {code:?}");
    }
    Ok(())
}

fn permissions() -> Result<()> {
    in_child(|| {
        become_user(OTHER)?;
        let code = syslog(5, &mut [])
            .err()
            .and_then(|error| error.raw_os_error());
        ensure!(code == Some(libc::EPERM), "clearing: {code:?}");
        Ok(())
    })
}

/// A hundred programs that crash cost a few lines of the log, not a hundred: by default ten in five
/// seconds.
fn crashes_are_limited() -> Result<()> {
    let file = open()?;
    // SAFETY: numbers.
    checked(unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) } as i32)?;
    let name = format!("crash-{}", process::id());
    let own_name = CString::new(name.clone())?;
    let begin = Instant::now();
    let own_lines = |lines: &[String]| lines.iter().filter(|line| line.contains(&name)).count();
    let (mut crashes, mut own) = (0, 0);
    // What crashed before this may have used the present interval up.
    while crashes < 100 || own == 0 && begin.elapsed() < TIMEOUT {
        if crashes % 100 == 99 {
            own += own_lines(&rest(&file)?);
        }
        crashes += 1;
        // SAFETY: the program has one thread when it forks; the child sets its name, and follows a
        // pointer to nothing.
        let child = checked(unsafe { libc::fork() })?;
        if child == 0 {
            // SAFETY: the name ends with a zero; nothing is at the address, and that is the point.
            unsafe {
                libc::prctl(libc::PR_SET_NAME, own_name.as_ptr());
                std::ptr::without_provenance::<u8>(8).read_volatile();
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: the word is valid.
        checked(unsafe { libc::waitpid(child, &mut status, 0) })?;
        ensure!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
            "the child ended with {status:#x}"
        );
    }
    let intervals = begin.elapsed().as_secs() / 5 + 2;
    own += own_lines(&rest(&file)?);
    ensure!(
        own >= 1 && own as u64 <= 10 * intervals && own < crashes,
        "{own} lines of {crashes} crashes in {intervals} intervals of 5 s"
    );
    Ok(())
}
