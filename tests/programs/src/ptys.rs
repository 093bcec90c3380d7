//! Pseudo-terminals as shells, `script` and terminal programs use them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};

use crate::credentials::in_child;
use crate::lost_wakeups::Number;
use crate::sockets::errno;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("ptys-carry-lines", carry_lines),
    ("ptys-have-names", have_names),
    ("ptys-control-a-session", control_a_session),
    ("ptys-hang-up", hang_up),
    ("ptys-end-with-the-last-slave", end_with_the_last_slave),
    ("ptys-tell-window-sizes", tell_window_sizes),
    ("ptys-old-settings", old_settings),
    ("ptys-locked-settings", locked_settings),
    ("ptys-that-are-full", that_are_full),
    ("ptys-are-given-up", are_given_up),
    ("ptys-tell-nobody-who-has-no-room", tell_nobody),
    (
        "ptys-stop-who-is-in-the-background",
        stop_who_is_in_the_background,
    ),
];

/// A master and its slave.
fn pair() -> Result<(File, File)> {
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: both descriptors are stored in valid places; the rest may be null.
    checked(unsafe { libc::openpty(&mut master, &mut slave, null_mut(), null_mut(), null_mut()) })?;
    for fd in [master, slave] {
        // SAFETY: the call takes numbers only.
        checked(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    }
    // SAFETY: the descriptors are new and nobody else's.
    Ok(unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) })
}

fn read(file: &mut File) -> io::Result<String> {
    let mut buf = [0; 4096];
    let n = file.read(&mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
}

/// Reads up to the end of a line, which may come in pieces.
fn read_line(file: &mut File) -> io::Result<String> {
    let mut line = String::new();
    while !line.ends_with('\n') {
        let more = read(file)?;
        if more.is_empty() {
            break;
        }
        line.push_str(&more);
    }
    Ok(line)
}

/// Everything until the slave's side is closed.
fn read_to_end(master: &mut File) -> Result<String> {
    let mut text = String::new();
    loop {
        match read(master) {
            Ok(more) => text.push_str(&more),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(text),
            Err(error) => return Err(error.into()),
        }
    }
}

fn carry_lines() -> Result<()> {
    let (mut master, mut slave) = pair()?;
    master.write_all(b"typed\n")?;
    ensure!(
        read(&mut slave)? == "typed\n",
        "the slave reads something else"
    );
    ensure!(
        read_line(&mut master)? == "typed\r\n",
        "the echo is something else"
    );
    slave.write_all(b"shown\n")?;
    ensure!(
        read_line(&mut master)? == "shown\r\n",
        "the master reads something else"
    );
    // A mistake mended, and the end of input.
    master.write_all(b"oopx\x7fs\n\x04")?;
    ensure!(
        read(&mut slave)? == "oops\n",
        "the erased character is there"
    );
    ensure!(read(&mut slave)?.is_empty(), "Ctrl-D is no end of file");
    drop(slave);
    let rest = read_to_end(&mut master)?;
    ensure!(rest.starts_with("oopx"), "the master reads {rest:?}");
    Ok(())
}

fn name_of(fd: RawFd) -> Result<String> {
    let mut name = [0u8; 64];
    // SAFETY: the buffer's size is given.
    let error = unsafe { libc::ttyname_r(fd, name.as_mut_ptr().cast(), name.len()) };
    ensure!(error == 0, "ttyname: error {error}");
    Ok(String::from_utf8(
        name.into_iter().take_while(|&b| b != 0).collect(),
    )?)
}

fn have_names() -> Result<()> {
    let (master, slave) = pair()?;
    let name = name_of(slave.as_raw_fd())?;
    ensure!(name.starts_with("/dev/pts/"), "the slave is {name}");
    ensure!(
        // SAFETY: the descriptor is open.
        unsafe { libc::isatty(slave.as_raw_fd()) } == 1,
        "the slave is no terminal"
    );
    ensure!(std::fs::exists(&name)?, "{name} is not there");
    let listed = std::fs::read_dir("/dev/pts")?
        .filter_map(Result::ok)
        .any(|e| e.path().to_str() == Some(&name));
    ensure!(listed, "/dev/pts does not list {name}");
    drop((master, slave));
    ensure!(!std::fs::exists(&name)?, "{name} is still there");
    Ok(())
}

/// Runs a shell command in a session of its own on the slave.
fn session(slave: File, script: &str) -> Result<std::process::Child> {
    let copy = |slave: &File| slave.try_clone().map(|f| Stdio::from(OwnedFd::from(f)));
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script])
        .stdin(copy(&slave)?)
        .stdout(copy(&slave)?)
        .stderr(copy(&slave)?);
    // SAFETY: the two calls may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            checked(libc::setsid())?;
            checked(libc::ioctl(0, libc::TIOCSCTTY, 0)).map(drop)
        });
    }
    Ok(command.spawn()?)
}

fn control_a_session() -> Result<()> {
    let (mut master, slave) = pair()?;
    let mut child = session(slave, "echo ready > /dev/tty; read line; echo got $line")?;
    ensure!(
        read_line(&mut master)? == "ready\r\n",
        "/dev/tty leads elsewhere"
    );
    master.write_all(b"a word\n")?;
    let text = read_to_end(&mut master)?;
    ensure!(
        text == "a word\r\ngot a word\r\n",
        "the session printed {text:?}"
    );
    ensure!(child.wait()?.success(), "the shell failed");
    // Ctrl-C reaches who is in the foreground.
    let (mut master, slave) = pair()?;
    let mut child = session(slave, "echo ready; exec cat")?;
    ensure!(
        read_line(&mut master)? == "ready\r\n",
        "the shell says something else"
    );
    master.write_all(b"\x03")?;
    let status = child.wait()?;
    ensure!(
        status.signal() == Some(libc::SIGINT),
        "Ctrl-C ended it with {status}"
    );
    Ok(())
}

fn hang_up() -> Result<()> {
    let (mut master, slave) = pair()?;
    let mut child = session(slave, "echo ready; exec cat")?;
    ensure!(
        read_line(&mut master)? == "ready\r\n",
        "the shell says something else"
    );
    drop(master);
    let status = child.wait()?;
    ensure!(
        status.signal() == Some(libc::SIGHUP),
        "the master's end ended it with {status}"
    );
    // Without a session there is no signal: the slave reads the end, and cannot be written.
    let (master, mut slave) = pair()?;
    drop(master);
    ensure!(
        read(&mut slave)?.is_empty(),
        "a slave without master does not end"
    );
    ensure!(
        slave
            .write_all(b"x")
            .is_err_and(|e| e.raw_os_error() == Some(libc::EIO)),
        "it can be written"
    );
    Ok(())
}

/// The end of a session leaves its openings as they are; the master's end comes with the last of
/// them.
fn end_with_the_last_slave() -> Result<()> {
    let (mut master, mut slave) = pair()?;
    let mut child = session(slave.try_clone()?, "echo ready")?;
    ensure!(
        read_line(&mut master)? == "ready\r\n",
        "the shell says something else"
    );
    child.wait()?;
    let line = master.as_raw_fd();
    let hung_up = || {
        let mut fd = libc::pollfd {
            fd: line,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the list is one structure, which lives through the call.
        checked(unsafe { libc::poll(&mut fd, 1, 0) }).map(|_| fd.revents & libc::POLLHUP != 0)
    };
    slave.write_all(b"after\n")?;
    ensure!(
        read_line(&mut master)? == "after\r\n",
        "what is written after the session does not come"
    );
    ensure!(!hung_up()?, "the master has its end while a slave is open");
    drop(slave);
    ensure!(hung_up()?, "the master has no end");
    Ok(())
}

fn tell_window_sizes() -> Result<()> {
    let (mut master, slave) = pair()?;
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut child = session(slave, script)?;
    ensure!(
        read_line(&mut master)? == "ready\r\n",
        "the shell says something else"
    );
    // SAFETY: all zeroes is a valid size.
    let mut size: libc::winsize = unsafe { zeroed() };
    (size.ws_row, size.ws_col) = (33, 99);
    // SAFETY: the argument is a valid structure.
    checked(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &size) })?;
    let text = read_to_end(&mut master)?;
    ensure!(text.contains("33 99"), "the session printed {text:?}");
    child.wait()?;
    Ok(())
}

const TCGETA: libc::c_ulong = 0x5405;
const TCSETA: libc::c_ulong = 0x5406;
const TCSETAW: libc::c_ulong = 0x5407;
const TCSETAF: libc::c_ulong = 0x5408;

fn control<T>(file: &File, command: libc::c_ulong, value: &mut T) -> io::Result<()> {
    // SAFETY: each command is used with the structure it takes.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), command, &raw mut *value) }).map(drop)
}

fn settings(file: &File) -> io::Result<libc::termios> {
    // SAFETY: a structure of numbers, filled by the call.
    unsafe {
        let mut termios = zeroed();
        checked(libc::tcgetattr(file.as_raw_fd(), &mut termios))?;
        Ok(termios)
    }
}

fn old_settings() -> Result<()> {
    /// `struct termio`.
    #[repr(C)]
    struct Termio {
        modes: [u16; 4],
        line: u8,
        characters: [u8; 8],
    }
    let (master, slave) = pair()?;
    let before = settings(&slave)?;
    let mut old = Termio {
        modes: [0; 4],
        line: 0,
        characters: [0; 8],
    };
    control(&slave, TCGETA, &mut old)?;
    let [input, output, _, local] = old.modes;
    ensure!(
        (u32::from(input), u32::from(output)) == (before.c_iflag & 0xffff, before.c_oflag & 0xffff),
        "{:x?}",
        old.modes
    );
    ensure!(old.characters == before.c_cc[..8], "{:?}", old.characters);
    for (command, character) in [(TCSETA, 7), (TCSETAW, 8), (TCSETAF, 9)] {
        old.modes[3] = local & !(libc::ECHO as u16);
        old.characters[libc::VINTR] = character;
        control(&slave, command, &mut old)?;
        let after = settings(&slave)?;
        ensure!(
            after.c_lflag == before.c_lflag & !libc::ECHO && after.c_cc[libc::VINTR] == character,
            "{command:x}"
        );
        ensure!(
            after.c_cc[8..17] == before.c_cc[8..17],
            "{command:x} changes what it does not know"
        );
    }
    drop(master);
    Ok(())
}

fn tell_nobody() -> Result<()> {
    let (master, slave) = pair()?;
    let asked = [
        ("TCGETS", libc::TCGETS),
        ("TCGETS2", 0x802c_542a),
        ("TCGETA", TCGETA),
        ("TCSETS", libc::TCSETS),
        ("TIOCGWINSZ", libc::TIOCGWINSZ),
        ("TIOCSWINSZ", libc::TIOCSWINSZ),
        ("TIOCGETD", libc::TIOCGETD),
        ("TIOCGEXCL", libc::TIOCGEXCL),
        ("TIOCOUTQ", libc::TIOCOUTQ),
        ("FIONREAD", libc::FIONREAD),
    ];
    for (name, command) in asked {
        // SAFETY: there is no memory where the answer should go, or the value come from.
        let result = checked(unsafe { libc::ioctl(slave.as_raw_fd(), command, 8) });
        ensure!(errno(result) == libc::EFAULT, "{name} at 8");
    }
    for (name, command) in [
        ("TIOCGPTN", libc::TIOCGPTN),
        ("TIOCGPTLCK", libc::TIOCGPTLCK),
        ("TIOCGPKT", libc::TIOCGPKT),
    ] {
        // SAFETY: the same.
        let result = checked(unsafe { libc::ioctl(master.as_raw_fd(), command, 8) });
        ensure!(errno(result) == libc::EFAULT, "{name} at 8");
    }
    Ok(())
}

fn locked_settings() -> Result<()> {
    const TIOCGLCKTRMIOS: libc::c_ulong = 0x5456;
    const TIOCSLCKTRMIOS: libc::c_ulong = 0x5457;
    /// The kernel's `struct termios`.
    #[repr(C)]
    struct Termios {
        modes: [u32; 4],
        line: u8,
        characters: [u8; 19],
    }
    let (_master, slave) = pair()?;
    let mut locked = Termios {
        modes: [0; 4],
        line: 0,
        characters: [0; 19],
    };
    control(&slave, TIOCGLCKTRMIOS, &mut locked)?;
    ensure!(
        locked.modes == [0; 4] && locked.line == 0,
        "something is locked"
    );
    locked.modes[3] = libc::ECHO;
    locked.characters[libc::VINTR] = 1;
    control(&slave, TIOCSLCKTRMIOS, &mut locked)?;
    let mut termios = settings(&slave)?;
    let interrupt = termios.c_cc[libc::VINTR];
    termios.c_lflag &= !(libc::ECHO | libc::ISIG);
    (termios.c_cc[libc::VINTR], termios.c_cc[libc::VQUIT]) = (7, 8);
    // SAFETY: a valid structure.
    checked(unsafe { libc::tcsetattr(slave.as_raw_fd(), libc::TCSANOW, &termios) })?;
    let after = settings(&slave)?;
    ensure!(
        after.c_lflag & (libc::ECHO | libc::ISIG) == libc::ECHO,
        "modes: {:x}",
        after.c_lflag
    );
    ensure!(
        (after.c_cc[libc::VINTR], after.c_cc[libc::VQUIT]) == (interrupt, 8),
        "characters: {:?}",
        after.c_cc
    );
    Ok(())
}

/// Sets or clears `O_NONBLOCK`.
fn wait_for(file: &File, waits: bool) -> io::Result<()> {
    // SAFETY: numbers only.
    checked(unsafe {
        libc::fcntl(
            file.as_raw_fd(),
            libc::F_SETFL,
            if waits { 0 } else { libc::O_NONBLOCK },
        )
    })
    .map(drop)
}

/// Writes until nothing more is taken; how much that was.
fn fill(file: &mut File) -> Result<usize> {
    wait_for(file, false)?;
    let mut written = 0;
    loop {
        match file.write(&[b'x'; 4096]) {
            Ok(n) => written += n,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    wait_for(file, true)?;
    Ok(written)
}

fn that_are_full() -> Result<()> {
    let (mut master, slave) = pair()?;
    let mut termios = settings(&slave)?;
    // SAFETY: a valid structure.
    unsafe {
        libc::cfmakeraw(&mut termios);
        checked(libc::tcsetattr(slave.as_raw_fd(), libc::TCSANOW, &termios))?;
    }
    // What the master writes has an end, and goes on when the slave reads.
    ensure!(fill(&mut master)? > 0, "nothing fits");
    beside_a_writer(&master, || {
        let mut last = b'x';
        while last == b'x' {
            let mut buf = [0; 4096];
            let n = (&slave).read(&mut buf)?;
            last = buf[n - 1];
        }
        Ok(())
    })
}

/// Does `work` when a thread that writes to `file` waits, after which the thread has to go on.
fn beside_a_writer(file: &File, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let (number, enough) = (Number::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> io::Result<()> {
            number.tell();
            // Linux moves what was written on by and by: there may be room although there was none.
            while !enough.load(Ordering::SeqCst) {
                (&mut &*file).write_all(b"y")?;
            }
            Ok(())
        });
        number.sleeps()?;
        enough.store(true, Ordering::SeqCst);
        work()?;
        Ok(writer.join().expect("the thread ended well")?)
    })
}

fn are_given_up() -> Result<()> {
    let (master, slave) = pair()?;
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { checked(libc::fork())? };
    if child == 0 {
        let tty = slave.as_raw_fd();
        // SAFETY: numbers only; SIGHUP, which the leader gets, too, is ignored.
        let bad = unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            libc::setsid();
            let open = || libc::open(c"/dev/tty".as_ptr(), libc::O_RDWR);
            [
                libc::ioctl(tty, libc::TIOCNOTTY) == 0,
                libc::ioctl(tty, libc::TIOCSCTTY, 0) != 0,
                open() < 0,
                libc::ioctl(tty, libc::TIOCNOTTY) != 0,
                open() >= 0,
                libc::ioctl(tty, libc::TIOCNOTTY) == 0,
                // It is nobody's now, so it can be had again.
                libc::ioctl(tty, libc::TIOCSCTTY, 0) != 0,
            ]
        };
        // SAFETY: ends the process.
        unsafe {
            libc::_exit(
                bad.iter()
                    .position(|bad| *bad)
                    .map_or(0, |at| at as i32 + 1),
            )
        };
    }
    let mut status = 0;
    // SAFETY: the status is alive during the call.
    checked(unsafe { libc::waitpid(child, &mut status, 0) })?;
    ensure!(status == 0, "step {}", status >> 8);
    drop(master);
    Ok(())
}

fn stop_who_is_in_the_background() -> Result<()> {
    type Deed = fn(RawFd) -> i32;
    let (mut master, slave) = pair()?;
    let tty = slave.as_raw_fd();
    let waiting = || {
        let mut count = -1;
        control(&slave, libc::FIONREAD, &mut count).map(|()| count)
    };
    master.write_all(b"line\n")?;
    while waiting()? == 0 {
        std::thread::yield_now();
    }
    let deeds: [(&str, Deed); 5] = [
        // SAFETY: numbers, and memory of this process.
        ("TCSETS", |tty| unsafe {
            let mut settings = zeroed();
            libc::tcgetattr(tty, &mut settings) + libc::tcsetattr(tty, libc::TCSANOW, &settings)
        }),
        // SAFETY: numbers.
        ("TIOCSPGRP", |tty| unsafe {
            libc::tcsetpgrp(tty, libc::getpgrp())
        }),
        // SAFETY: numbers.
        ("TCXONC", |tty| unsafe { libc::tcflow(tty, libc::TCOON) }),
        // SAFETY: numbers.
        ("TCSBRK", |tty| unsafe { libc::tcdrain(tty) }),
        // SAFETY: numbers.
        ("TCFLSH", |tty| unsafe {
            libc::tcflush(tty, libc::TCIOFLUSH)
        }),
    ];
    in_child(|| {
        // SAFETY: numbers only.
        unsafe {
            checked(libc::setsid())?;
            checked(libc::ioctl(tty, libc::TIOCSCTTY, 0))?;
        }
        for (name, deed) in deeds {
            // SAFETY: the children make system calls only, and end.
            let child = checked(unsafe { libc::fork() })?;
            if child == 0 {
                // SAFETY: numbers only.
                unsafe {
                    libc::setpgid(0, 0);
                    libc::_exit(i32::from(deed(tty) != 0));
                }
            }
            let mut status = 0;
            // SAFETY: the status is alive during the calls.
            unsafe {
                checked(libc::waitpid(child, &mut status, libc::WUNTRACED))?;
                let stopped = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTTOU;
                ensure!(stopped, "{name} in the background: {status:#x}");
                ensure!(waiting()? == 5, "{name} was done by who was stopped for it");
                // Who ignores the signal may do it.
                checked(libc::kill(child, libc::SIGKILL))?;
                checked(libc::waitpid(child, &mut status, 0))?;
            }
            // SAFETY: as before.
            let child = checked(unsafe { libc::fork() })?;
            if child == 0 {
                // SAFETY: numbers only.
                unsafe {
                    libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                    libc::setpgid(0, 0);
                    let result = deed(tty);
                    // What was in the foreground is so again.
                    libc::tcsetpgrp(tty, libc::getppid());
                    libc::_exit(i32::from(result != 0));
                }
            }
            // SAFETY: the status is alive during the call.
            checked(unsafe { libc::waitpid(child, &mut status, libc::WUNTRACED) })?;
            ensure!(
                status == 0,
                "{name} in the background by who ignores SIGTTOU: {status:#x}"
            );
            ensure!(
                (waiting()? == 0) == (name == "TCFLSH"),
                "{name} by who ignores SIGTTOU leaves {}",
                waiting()?
            );
        }
        Ok(())
    })
}
