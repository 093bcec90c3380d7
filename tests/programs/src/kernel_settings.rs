//! Settings of the kernel itself below `/proc/sys/kernel` and `/proc/sys/vm`: what it says, when it
//! ends, and what it does with segments that nobody maps.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::{fs, process};

use anyhow::{Context, Result, bail, ensure};

use crate::calls::{call, fails, is};
use crate::credentials::in_child;
use crate::seccomp::{for_call, no_new_privileges};
use crate::settings::{Setting, of_own_objects};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("settings-of-the-console", console),
    ("settings-of-unmarked-lines", unmarked_lines),
    ("settings-of-the-end", end),
    ("settings-of-fatal-signals", fatal_signals),
    ("settings-of-abandoned-segments", abandoned_segments),
    ("settings-of-logged-actions", logged_actions),
];

/// `syslog(2)` with a number and no text.
fn syslog(action: i32, number: i32) -> i64 {
    call!(SYS_syslog, action, 0, number)
}

fn console() -> Result<()> {
    const OFF: i32 = 6;
    const ON: i32 = 7;
    const LEVEL: i32 = 8;
    let levels = Setting::new("kernel/printk")?;
    levels.refuses(&["x", "2147483648"])?;
    levels.set("6\t5\t3\t7")?;
    fs::write(levels.path(), "5")?;
    let console = || -> Result<String> {
        let levels = levels.get()?;
        let console = levels.strip_suffix("\t5\t3\t7").context(levels.clone())?;
        Ok(console.to_owned())
    };
    ensure!(console()? == "5", "the first number alone: {}", console()?);
    is(syslog(LEVEL, 8), 0, "level 8")?;
    ensure!(console()? == "8", "level 8: {}", console()?);
    is(syslog(LEVEL, 1), 0, "level 1")?;
    ensure!(console()? == "3", "below the least one: {}", console()?);
    fails(syslog(LEVEL, 9), libc::EINVAL, "level 9")?;
    fails(syslog(LEVEL, 0), libc::EINVAL, "level 0")?;
    is(syslog(LEVEL, 6), 0, "level 6")?;
    is(syslog(OFF, 0), 0, "off")?;
    ensure!(console()? == "3", "switched off: {}", console()?);
    is(syslog(OFF, 0), 0, "off again")?;
    is(syslog(ON, 0), 0, "on")?;
    ensure!(console()? == "6", "switched on: {}", console()?);
    is(syslog(ON, 0), 0, "on again")?;
    ensure!(console()? == "6", "switched on twice: {}", console()?);
    // Those before a wrong one count.
    ensure!(fs::write(levels.path(), "4 x").is_err(), "4 x is taken");
    ensure!(console()? == "4", "4 before x: {}", console()?);
    levels.set("4\t4\t1\t7")
}

/// An opening of the kernel's log that begins with the next line.
struct Log(File);

impl Log {
    fn follow() -> Result<Self> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kmsg");
        let log = Self(file.context("/dev/kmsg")?);
        log.skip()?;
        Ok(log)
    }

    fn skip(&self) -> Result<()> {
        use std::os::fd::AsRawFd;
        is(
            call!(SYS_lseek, self.0.as_raw_fd(), 0, libc::SEEK_END),
            0,
            "the end of the log",
        )
    }

    /// The next line that has a text in it, when it is there, and those before it.
    fn wait_for(&mut self, text: &str) -> Result<(String, Vec<String>)> {
        let mut before = Vec::new();
        let mut buf = [0; 8192];
        loop {
            match self.0.read(&mut buf) {
                Ok(0) => bail!("the log has an end"),
                Ok(n) => {
                    let line = String::from_utf8_lossy(&buf[..n]).into_owned();
                    if line.contains(text) {
                        return Ok((line, before));
                    }
                    before.push(line);
                }
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn unmarked_lines() -> Result<()> {
    let levels = Setting::new("kernel/printk")?;
    let mut log = Log::follow()?;
    for level in [5, 3] {
        fs::write(levels.path(), format!("4 {level}"))?;
        let text = format!("machine-tests {} unmarked {level}", process::id());
        (&log.0).write_all(text.as_bytes())?;
        let (line, _) = log.wait_for(&text)?;
        let priority = format!("{},", 8 | level);
        ensure!(line.starts_with(&priority), "{line}");
    }
    Ok(())
}

fn end() -> Result<()> {
    let wrong = ["x", "2147483648"];
    for (name, taken, refused) in [
        ("kernel/panic", &["10", "-1", "0"][..], &wrong[..]),
        ("kernel/panic_on_oops", &["1"], &wrong),
        ("kernel/panic_on_warn", &["1", "0"], &["2", "-1", "x"]),
        ("vm/panic_on_oom", &["1", "2", "0"], &["3", "-1", "x"]),
        ("vm/oom_dump_tasks", &["0", "1"], &wrong),
        ("vm/oom_kill_allocating_task", &["1", "0"], &wrong),
        ("kernel/print-fatal-signals", &["1", "0"], &wrong),
        ("kernel/printk_ratelimit", &["1"], &wrong),
        ("kernel/printk_ratelimit_burst", &["20"], &wrong),
    ] {
        let setting = Setting::new(name)?;
        setting.refuses(refused)?;
        for value in taken {
            setting.set(value)?;
        }
    }
    Ok(())
}

/// Runs a child that ends by a signal.
fn dies_by(signal: i32) -> Result<i32> {
    // SAFETY: this program has one thread; the child sends itself a signal, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::kill(libc::getpid(), signal);
            libc::_exit(0);
        }
    }
    ensure!(child > 0, "no child");
    let mut status = 0;
    is(
        call!(SYS_wait4, child, &raw mut status, 0, 0),
        i64::from(child),
        "wait4",
    )?;
    ensure!(libc::WTERMSIG(status) == signal, "{status:#x}");
    Ok(child)
}

fn fatal_signals() -> Result<()> {
    let print = Setting::new("kernel/print-fatal-signals")?;
    // No other line is to be left out for these.
    let unlimited = Setting::new("kernel/printk_ratelimit")?;
    unlimited.set("0")?;
    let mut log = Log::follow()?;
    print.set("0")?;
    dies_by(libc::SIGABRT)?;
    print.set("1")?;
    // By this one it leaves no core dump.
    dies_by(libc::SIGTERM)?;
    dies_by(libc::SIGQUIT)?;
    let (line, before) = log.wait_for("potentially unexpected fatal signal")?;
    ensure!(line.contains("fatal signal 3"), "{line}, after {before:?}");
    Ok(())
}

/// Whether there is a segment of a number.
fn is_there(id: i64) -> bool {
    let mut state = [0u64; 14];
    let result = call!(SYS_shmctl, id, libc::IPC_STAT, state.as_mut_ptr());
    result == 0
}

fn new_segment() -> Result<i64> {
    let id = call!(SYS_shmget, libc::IPC_PRIVATE, 4096, 0o600);
    ensure!(id >= 0, "shmget: {id}");
    Ok(id)
}

/// A segment that a child has made, which has ended since.
fn orphan(attach: bool) -> Result<i64> {
    let (mut reader, mut writer) = std::io::pipe()?;
    in_child(|| {
        let id = new_segment()?;
        if attach {
            ensure!(call!(SYS_shmat, id, 0, 0) > 0, "shmat");
        }
        Ok(writer.write_all(&id.to_ne_bytes())?)
    })?;
    let mut id = [0; 8];
    reader.read_exact(&mut id)?;
    Ok(i64::from_ne_bytes(id))
}

fn abandoned_segments() -> Result<()> {
    of_own_objects(|| {
        let forced = Setting::new("kernel/shm_rmid_forced")?;
        ensure!(
            forced.get()? == "0",
            "of a new namespace: {}",
            forced.get()?
        );
        forced.refuses(&["2", "-1", "x"])?;
        let abandoned = [orphan(false)?, orphan(true)?];
        ensure!(abandoned.iter().all(|id| is_there(*id)), "gone too early");
        let used = new_segment()?;
        let mapped = call!(SYS_shmat, used, 0, 0);
        let (later, kept) = (new_segment()?, new_segment()?);
        forced.set("1")?;
        ensure!(!abandoned.iter().any(|id| is_there(*id)), "still there");
        ensure!(
            [used, later, kept].iter().all(|id| is_there(*id)),
            "the maker is there"
        );
        // What is made now goes with its last attachment, or its maker.
        is(call!(SYS_shmdt, mapped), 0, "shmdt")?;
        ensure!(!is_there(used), "the last attachment went");
        let mapped = call!(SYS_shmat, later, 0, 0);
        in_child(|| {
            ensure!(is_there(later), "in a child that maps it");
            is(call!(SYS_shmdt, mapped), 0, "shmdt of a child")?;
            ensure!(is_there(later), "its parent maps it");
            Ok(())
        })?;
        let gone = [orphan(false)?, orphan(true)?];
        ensure!(!gone.iter().any(|id| is_there(*id)), "without a maker");
        // Off again, what is attached stays.
        forced.set("0")?;
        is(call!(SYS_shmdt, mapped), 0, "shmdt")?;
        ensure!(is_there(later) && is_there(kept), "it is off");
        forced.set("1")?;
        ensure!(is_there(later) && is_there(kept), "the maker is there");
        Ok(())
    })
}

/// Has the calling process filtered so that a call does this, and the kernel logs it if `flags` say
/// so.
fn filter(number: libc::c_long, action: u32, flags: u32) -> Result<()> {
    let program = for_call(number, action);
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    is(
        call!(SYS_seccomp, 1, flags, &raw const program),
        0,
        "a filter",
    )
}

fn logged_actions() -> Result<()> {
    const LOG: u32 = 0x7ffc_0000;
    const ERRNO: u32 = 0x0005_0000;
    const FLAG_LOG: u32 = 2;
    const ALL: &str = "kill_process kill_thread trap errno user_notif trace log";
    let logged = Setting::new("kernel/seccomp/actions_logged")?;
    ensure!(logged.get()? == ALL, "at first {}", logged.get()?);
    let available = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")?;
    ensure!(available == format!("{ALL} allow\n"), "{available}");
    logged.refuses(&["allow", "log allow", "kill", "errno,log"])?;
    let unlimited = Setting::new("kernel/printk_ratelimit")?;
    unlimited.set("0")?;
    let mut log = Log::follow()?;
    let line_of = |number: libc::c_long, action: u32, flags: u32| {
        in_child(|| {
            no_new_privileges()?;
            filter(number, action, flags)?;
            call_of(number);
            Ok(())
        })
    };
    // Each text ends with a line that is there in any case, so what is not there does not come.
    logged.set("errno log")?;
    line_of(libc::SYS_getppid, ERRNO | 5, 0)?;
    line_of(libc::SYS_getuid, ERRNO | 5, FLAG_LOG)?;
    line_of(libc::SYS_getgid, LOG, 0)?;
    let getgid = format!("syscall={} ", libc::SYS_getgid);
    let (_, before) = log.wait_for(&getgid)?;
    let lines = |before: &[String], number: libc::c_long| {
        let call = format!("syscall={number} ");
        let of_call = |line: &&String| line.contains("type=1326") && line.contains(&call);
        before.iter().filter(of_call).count()
    };
    ensure!(
        lines(&before, libc::SYS_getuid) == 1 && lines(&before, libc::SYS_getppid) == 0,
        "{before:?}"
    );
    logged.set("log")?;
    line_of(libc::SYS_getuid, ERRNO | 5, FLAG_LOG)?;
    line_of(libc::SYS_getgid, LOG, 0)?;
    let (line, before) = log.wait_for(&getgid)?;
    ensure!(lines(&before, libc::SYS_getuid) == 0, "{before:?}");
    ensure!(
        line.contains("sig=0 arch=c000003e") && line.contains("code=0x7ffc0000"),
        "{line}"
    );
    Ok(())
}

/// Makes a call that takes nothing.
fn call_of(number: libc::c_long) {
    // SAFETY: such calls take nothing.
    let _ = checked(unsafe { libc::syscall(number) } as i32);
}
