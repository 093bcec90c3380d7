//! What users see of each other: files of processes, links and pipes in sticky directories, the
//! kernel's log, settings of the machine.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::{fs, process};

use anyhow::{Context, Result, ensure};

use crate::calls::{Fd, call, fails, is, pipe};
use crate::credentials::{become_user, in_child, prctl};
use crate::mounts::{c, mount};
use crate::settings::Setting;
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("users-files-of-processes", files_of_processes),
    ("users-openings-of-processes", openings_of_processes),
    (
        "users-openings-outlast-no-program",
        openings_outlast_no_program,
    ),
    ("users-look-by-the-ids-files-see", look_by_the_ids_files_see),
    ("users-ask-to-be-traced", ask_to_be_traced),
    ("users-exclusive-numbers-given-again", numbers_given_again),
    ("users-exclusive-hidden-processes", hidden_processes),
    (
        "users-exclusive-links-in-sticky-directories",
        links_in_sticky_directories,
    ),
    ("users-exclusive-kernel-log", kernel_log),
];

/// Nobody special: the user of most of these checks.
const NOBODY: u32 = 65534;
/// Another one.
const USER: u32 = 1000;

const EACCES: i32 = libc::EACCES;
const EPERM: i32 = libc::EPERM;

/// A child that runs as a user until it is ended.
struct Target {
    pid: i32,
    _keeps: Fd,
}

impl Target {
    fn start(uid: u32, dumpable: usize) -> Result<Self> {
        let [told, tells] = pipe(libc::O_CLOEXEC)?;
        let [waits, keeps] = pipe(libc::O_CLOEXEC)?;
        // SAFETY: this program has one thread when it forks.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop((told, keeps));
            let ready = become_user(uid).is_ok()
                && prctl(libc::PR_SET_DUMPABLE, dumpable, 0).is_ok()
                && call!(SYS_write, tells.0, [1u8; 1].as_ptr(), 1) == 1;
            if ready {
                call!(SYS_read, waits.0, [0u8; 1].as_mut_ptr(), 1);
            }
            // SAFETY: the child ends here.
            unsafe { libc::_exit(0) };
        }
        drop((tells, waits));
        let said = call!(SYS_read, told.0, [0u8; 1].as_mut_ptr(), 1);
        is(said, 1, "what the child says")?;
        Ok(Self { pid, _keeps: keeps })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        call!(SYS_kill, self.pid, libc::SIGKILL);
        call!(SYS_wait4, self.pid, 0, 0, 0);
    }
}

/// A short word for the outcome of a call.
fn word(outcome: i64) -> &'static str {
    match i32::try_from(-outcome) {
        Ok(libc::EACCES) => "EACCES",
        Ok(libc::EPERM) => "EPERM",
        Ok(libc::ENOENT) => "ENOENT",
        Ok(libc::EINVAL) => "EINVAL",
        Ok(libc::EIO) => "EIO",
        Ok(libc::ESRCH) => "ESRCH",
        Ok(1..) => "another error",
        _ => "ok",
    }
}

/// Owner of a file below `/proc/PID`, and how far the caller comes with reading it.
fn seen(pid: i32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    let meta = match fs::symlink_metadata(&path) {
        Ok(meta) => meta,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            return Ok(format!("stat {}", word(-i64::from(errno))));
        }
    };
    let path = CString::new(path)?;
    let owner = if meta.uid() == 0 { "root" } else { "user" };
    let mut buf = vec![0u8; 4096];
    if meta.is_symlink() {
        let text = call!(SYS_readlink, path.as_ptr(), buf.as_mut_ptr(), buf.len());
        let to = call!(SYS_open, path.as_ptr(), libc::O_PATH, 0);
        if to >= 0 {
            drop(Fd(to as i32));
        }
        return Ok(format!("{owner} {} {}", word(text), word(to)));
    }
    let flags = if meta.mode() & 0o444 == 0 {
        libc::O_WRONLY
    } else {
        libc::O_RDONLY
    };
    let fd = call!(SYS_open, path.as_ptr(), flags, 0);
    if fd < 0 {
        return Ok(format!("{owner} {}", word(fd)));
    }
    let fd = Fd(fd as i32);
    let read = if meta.is_dir() {
        call!(SYS_getdents64, fd.0, buf.as_mut_ptr(), buf.len())
    } else if flags == libc::O_WRONLY {
        0
    } else {
        call!(SYS_read, fd.0, buf.as_mut_ptr(), buf.len())
    };
    Ok(format!("{owner} ok {}", word(read)))
}

/// Files that user 65534 finds below `/proc/PID`, by name and mode: of a process of root's, of
/// another user's, of an own one that cannot be dumped, and of an own one. Of each who owns the
/// file, and how opening and reading it comes out, or reading and following a link; of files that
/// nobody reads, opening them to write.
const TABLE: &str = "\
.                40555 | root ok ok         | user ok ok         | user ok ok         | user ok ok
arch_status     100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
auxv            100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
cgroup          100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
clear_refs      100200 | root EACCES        | user EACCES        | root EACCES        | user ok ok
cmdline         100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
comm            100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
coredump_filter 100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
cpuset          100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
cwd             120777 | root EACCES EACCES | user EACCES EACCES | root EACCES EACCES | user ok ok
environ         100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
exe             120777 | root EACCES EACCES | user EACCES EACCES | root EACCES EACCES | user ok ok
fd               40500 | root EACCES        | user EACCES        | root EACCES        | user ok ok
fd/0            120500 | stat EACCES        | stat EACCES        | stat EACCES        | user ok ok
fdinfo           40555 | root EACCES        | user EACCES        | user EACCES        | user ok ok
fdinfo/0        100444 | stat EACCES        | stat EACCES        | stat EACCES        | user ok ok
gid_map         100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
io              100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
limits          100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
loginuid        100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
map_files        40500 | root EACCES        | user EACCES        | root EACCES        | user ok ok
maps            100444 | root EACCES        | user EACCES        | root EACCES        | user ok ok
mem             100600 | root EACCES        | user EACCES        | root EACCES        | user ok EIO
mountinfo       100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
mounts          100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
mountstats      100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
ns               40511 | root EACCES        | user EACCES        | root EACCES        | user ok ok
ns/mnt          120777 | root EACCES EACCES | user EACCES EACCES | root EACCES EACCES | user ok ok
ns/user         120777 | root EACCES EACCES | user EACCES EACCES | root EACCES EACCES | user ok ok
numa_maps       100444 | root EACCES        | user EACCES        | root EACCES        | user ok ok
oom_adj         100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
oom_score       100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
oom_score_adj   100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
pagemap         100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
personality     100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
projid_map      100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
root            120777 | root EACCES EACCES | user EACCES EACCES | root EACCES EACCES | user ok ok
sched           100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
schedstat       100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
sessionid       100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
setgroups       100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
smaps           100444 | root EACCES        | user EACCES        | root EACCES        | user ok ok
smaps_rollup    100444 | root EACCES        | user EACCES        | root EACCES        | user ok ok
stack           100400 | root EACCES        | user EACCES        | root EACCES        | user ok EACCES
stat            100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
statm           100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
status          100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
syscall         100400 | root EACCES        | user EACCES        | root EACCES        | user ok ok
task             40555 | root ok ok         | user ok ok         | user ok ok         | user ok ok
timens_offsets  100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
timerslack_ns   100666 | root ok EPERM      | user ok EPERM      | root ok EPERM      | user ok EPERM
uid_map         100644 | root ok ok         | user ok ok         | root ok ok         | user ok ok
wchan           100444 | root ok ok         | user ok ok         | root ok ok         | user ok ok
";

fn files_of_processes() -> Result<()> {
    let targets = [
        Target::start(0, 1)?,
        Target::start(USER, 1)?,
        Target::start(NOBODY, 0)?,
        Target::start(NOBODY, 1)?,
    ];
    in_child(|| {
        become_user(NOBODY)?;
        let own = targets[3].pid;
        for line in TABLE.lines() {
            let name = line[..16].trim_end();
            let mode = fs::symlink_metadata(format!("/proc/{own}/{name}"))
                .with_context(|| name.to_owned())?
                .mode();
            let mut row = format!("{name:16}{mode:6o}");
            for target in &targets {
                write!(row, " | {:18}", seen(target.pid, name)?)?;
            }
            ensure!(
                row.trim_end() == line,
                "\n{}\n, not\n{line}",
                row.trim_end()
            );
        }
        // What does not refuse says less.
        let foreign = fs::read_to_string(format!("/proc/{}/stat", targets[0].pid))?;
        let fields: Vec<&str> = foreign
            .rsplit(") ")
            .next()
            .context("no name")?
            .split(' ')
            .collect();
        // Of code and stack, and of data, heap, arguments and environment.
        ensure!(
            fields[23..26] == ["1", "1", "0"] && fields[42..49] == ["0"; 7],
            "addresses: {foreign}"
        );
        let waits = fs::read_to_string(format!("/proc/{}/wchan", targets[0].pid))?;
        ensure!(waits == "0", "where it waits: {waits}");
        Ok(())
    })
}

/// Opens a file of a process.
fn open(pid: i32, name: &str, flags: i32) -> i64 {
    let path = c(format!("/proc/{pid}/{name}"));
    call!(SYS_open, path.as_ptr(), flags | libc::O_CLOEXEC, 0)
}

/// Contents of a file, as far as it is short.
fn contents(fd: &Fd) -> Vec<u8> {
    let mut buf = vec![0u8; 4096];
    let n = call!(SYS_pread64, fd.0, buf.as_mut_ptr(), buf.len(), 0);
    buf.truncate(usize::try_from(n).unwrap_or(0));
    buf
}

/// Reads from the beginning of a file.
fn read(fd: &Fd) -> i64 {
    let mut buf = [0u8; 512];
    call!(SYS_pread64, fd.0, buf.as_mut_ptr(), buf.len(), 0)
}

/// Files are looked at when they are opened, or when they are read: some by who opened them.
fn openings_of_processes() -> Result<()> {
    const AT_READ: &[(&str, i32)] = &[
        ("io", EACCES),
        ("personality", EPERM),
        ("syscall", EPERM),
        ("stack", EPERM),
    ];
    let opened = [
        "auxv",
        "environ",
        "maps",
        "smaps",
        "smaps_rollup",
        "numa_maps",
        "pagemap",
    ];
    let target = Target::start(0, 1)?;
    let of_root = |name: &str| Fd::new(open(target.pid, name, libc::O_RDONLY), name);
    let held = opened
        .iter()
        .map(|name| of_root(name))
        .collect::<Result<Vec<_>>>()?;
    let asked = AT_READ
        .iter()
        .map(|(name, _)| of_root(name))
        .collect::<Result<Vec<_>>>()?;
    let own = Target::start(NOBODY, 1)?;
    in_child(|| {
        become_user(NOBODY)?;
        for (fd, name) in held.iter().zip(opened) {
            ensure!(read(fd) > 0, "{name}, opened by root");
        }
        for (fd, (name, errno)) in asked.iter().zip(AT_READ) {
            fails(read(fd), *errno, &format!("{name}, opened by root"))?;
        }
        // The stack is root's alone to see.
        let stack = Fd::new(
            open(own.pid, "stack", libc::O_RDONLY),
            "an own process's stack",
        )?;
        fails(read(&stack), EACCES, "the stack of an own process")
    })
}

/// An opening of the memory of a program shows nothing of the one with more powers that it runs.
fn openings_outlast_no_program() -> Result<()> {
    let place = Place::new("outlast")?;
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755))?;
    let program = place.0.join("program");
    fs::copy("/proc/self/exe", &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    in_child(|| {
        become_user(NOBODY)?;
        let [told, tells] = pipe(libc::O_CLOEXEC)?;
        let [waits, keeps] = pipe(0)?;
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop((told, keeps));
            call!(SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
            call!(SYS_write, tells.0, [1u8; 1].as_ptr(), 1);
            call!(SYS_read, waits.0, [0u8; 1].as_mut_ptr(), 1);
            call!(SYS_dup2, waits.0, 0);
            let (path, words) = (c(&program), [c("program"), c("child"), c("upper")]);
            let arguments = [
                words[0].as_ptr(),
                words[1].as_ptr(),
                words[2].as_ptr(),
                std::ptr::null(),
            ];
            call!(
                SYS_execve,
                path.as_ptr(),
                arguments.as_ptr(),
                arguments[3..].as_ptr()
            );
            // SAFETY: the child ends here.
            unsafe { libc::_exit(1) };
        }
        let pid = pid as i32;
        drop((tells, waits));
        is(
            call!(SYS_read, told.0, [0u8; 1].as_mut_ptr(), 1),
            1,
            "the child",
        )?;
        let vector = Fd::new(open(pid, "auxv", libc::O_RDONLY), "auxv")?;
        let old = contents(&vector);
        let names = ["environ", "maps", "smaps", "numa_maps", "pagemap"];
        let held = names
            .iter()
            .map(|name| Fd::new(open(pid, name, libc::O_RDONLY), name))
            .collect::<Result<Vec<_>>>()?;
        let mem = Fd::new(open(pid, "mem", libc::O_RDWR), "mem")?;
        let place = std::ptr::from_ref(&TABLE).addr();
        let mut word = [0u8; 8];
        let peek = |word: &mut [u8; 8]| call!(SYS_pread64, mem.0, word.as_mut_ptr(), 8, place);
        is(peek(&mut word), 8, "memory of an own program")?;
        is(
            call!(SYS_write, keeps.0, [1u8; 1].as_ptr(), 1),
            1,
            "to the child",
        )?;
        // The pipe that says so is closed by the new program's start.
        is(
            call!(SYS_read, told.0, [0u8; 1].as_mut_ptr(), 1),
            0,
            "the child's program",
        )?;
        for (fd, name) in held.iter().zip(names) {
            is(read(fd), 0, &format!("{name}, when another program runs"))?;
            fails(open(pid, name, libc::O_RDONLY), EACCES, name)?;
        }
        is(peek(&mut word), 0, "memory, when another program runs")?;
        ensure!(
            !old.is_empty() && contents(&vector) == old,
            "the auxiliary vector is another program's"
        );
        fails(open(pid, "auxv", libc::O_RDONLY), EACCES, "auxv")?;
        fails(open(pid, "mem", libc::O_RDWR), EACCES, "mem")?;
        drop(keeps);
        call!(SYS_kill, pid, libc::SIGKILL);
        call!(SYS_wait4, pid, 0, 0, 0);
        Ok(())
    })
}

/// Files of processes are for the user whom files see, calls for the real one.
fn look_by_the_ids_files_see() -> Result<()> {
    let (real, acting) = (Target::start(USER, 1)?, Target::start(NOBODY, 1)?);
    in_child(|| {
        // SAFETY: the calls take numbers only.
        unsafe {
            checked(libc::setgroups(0, std::ptr::null()))?;
            checked(libc::setresgid(USER, NOBODY, USER))?;
            checked(libc::setresuid(USER, NOBODY, USER))?;
        }
        let own = process::id();
        let kcmp = |pid| call!(SYS_kcmp, own, pid, 1, 0, 0).min(0);
        is(kcmp(real.pid), 0, "kcmp of the real user's")?;
        fails(kcmp(acting.pid), EPERM, "kcmp of the acting user's")?;
        fails(
            open(real.pid, "maps", libc::O_RDONLY),
            EACCES,
            "maps of the real user's",
        )?;
        fails(
            open(real.pid, "exe", libc::O_PATH),
            EACCES,
            "exe of the real user's",
        )?;
        for name in ["maps", "exe"] {
            Fd::new(open(acting.pid, name, libc::O_PATH), name)?;
        }
        Fd::new(
            open(acting.pid, "maps", libc::O_RDONLY),
            "maps of the acting user's",
        )
        .map(drop)
    })
}

/// A child may ask to be traced by who may do as much, whoever that is.
fn ask_to_be_traced() -> Result<()> {
    for (parent, child) in [(0, Some(NOBODY)), (NOBODY, None)] {
        in_child(|| {
            become_user(parent)?;
            // SAFETY: this process has one thread.
            let pid = checked(unsafe { libc::fork() })?;
            if pid == 0 {
                let done = child.is_none_or(|uid| become_user(uid).is_ok())
                    && call!(SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) == 0;
                // SAFETY: the child ends here.
                unsafe { libc::_exit(i32::from(!done)) };
            }
            let mut status = 0i32;
            let ended = call!(SYS_wait4, pid, &raw mut status, 0, 0);
            is(ended, pid.into(), "the child's end")?;
            ensure!(
                status == 0,
                "a child of {parent} that is {child:?} is refused"
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// A process that has ended and been waited for: its number, and its directory and a file of it,
/// opened before.
fn ended() -> Result<(i32, Fd, Fd)> {
    // SAFETY: this process has one thread; the child waits to be killed.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        loop {
            call!(SYS_pause);
        }
    }
    let path = c(format!("/proc/{pid}"));
    let dir = Fd::new(
        call!(
            SYS_open,
            path.as_ptr(),
            libc::O_DIRECTORY | libc::O_CLOEXEC,
            0
        ),
        "the directory of a process",
    )?;
    let file = Fd::new(open(pid, "oom_score_adj", libc::O_RDWR), "oom_score_adj")?;
    call!(SYS_kill, pid, libc::SIGKILL);
    call!(SYS_wait4, pid, 0, 0, 0);
    Ok((pid, dir, file))
}

/// Openings of files of a process are not of the next one with its number.
fn numbers_given_again() -> Result<()> {
    in_child(|| {
        let (pid, dir, file) = ended()?;
        let mut next = 0;
        // Others may take the number first.
        for _ in 0..50 {
            fs::write("/proc/sys/kernel/ns_last_pid", format!("{}", pid - 1))?;
            // SAFETY: this process has one thread; the child waits to be killed.
            next = checked(unsafe { libc::fork() })?;
            if next == 0 {
                loop {
                    call!(SYS_pause);
                }
            }
            if next == pid {
                break;
            }
            call!(SYS_kill, next, libc::SIGKILL);
            call!(SYS_wait4, next, 0, 0, 0);
        }
        ensure!(next == pid, "number {pid} is not given again");
        let within = call!(SYS_openat, dir.0, c"status".as_ptr(), libc::O_RDONLY, 0);
        let written = call!(SYS_write, file.0, b"500".as_ptr(), 3);
        let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
        call!(SYS_kill, pid, libc::SIGKILL);
        call!(SYS_wait4, pid, 0, 0, 0);
        fails(within, libc::ESRCH, "a file in the directory of what ended")?;
        fails(written, libc::ESRCH, "writing to a file of what ended")?;
        ensure!(score.trim() == "0", "the next one has {score}");
        Ok(())
    })
}

/// Names in a directory that are numbers.
fn pids(dir: &Path) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok()),
        );
    }
    Ok(found)
}

fn hidden_processes() -> Result<()> {
    in_child(|| {
        // SAFETY: a number.
        checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "")?;
        let place = Place::new("hidden")?;
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755))?;
        let at = &place.0;
        mount("proc", at, "proc", 0, "hidepid=1")?;
        let foreign = Target::start(USER, 1)?;
        // How a directory, its listing and a file in it come out, and whether it is listed.
        let look = |uid: u32| -> Result<String> {
            let said = at.with_extension("said");
            fs::write(&said, "")?;
            fs::set_permissions(&said, fs::Permissions::from_mode(0o666))?;
            in_child(|| {
                become_user(uid)?;
                let base = at.join(format!("{}", foreign.pid));
                let open = |path: PathBuf| {
                    let fd = call!(SYS_open, c(path).as_ptr(), libc::O_RDONLY, 0);
                    if fd >= 0 {
                        drop(Fd(fd as i32));
                    }
                    word(fd)
                };
                let stat = fs::metadata(&base)
                    .err()
                    .and_then(|error| error.raw_os_error())
                    .map_or("ok", |errno| word(-i64::from(errno)));
                let listed = pids(at)?.contains(&foreign.pid);
                let own = at.join("self/status");
                let text = format!(
                    "{stat} {} {} {} {listed} {}",
                    open(base.clone()),
                    open(base.join("status")),
                    open(base.join("task")),
                    open(own),
                );
                Ok(fs::write(&said, text)?)
            })?;
            let text = fs::read_to_string(&said)?;
            fs::remove_file(&said)?;
            Ok(text)
        };
        let shown = || -> Result<String> {
            let mounts = fs::read_to_string("/proc/self/mounts")?;
            let line = mounts
                .lines()
                .find(|line| line.contains(at.to_str().unwrap_or("?")));
            let options = line
                .and_then(|line| line.split(' ').nth(3))
                .context("no mount")?;
            Ok(options.to_owned())
        };
        for (options, of_nobody, of_root) in [
            (
                "hidepid=1",
                "ok EPERM EPERM EPERM true ok",
                "ok ok ok ok true ok",
            ),
            (
                "hidepid=noaccess",
                "ok EPERM EPERM EPERM true ok",
                "ok ok ok ok true ok",
            ),
            (
                "hidepid=2",
                "ENOENT ENOENT ENOENT ENOENT false ok",
                "ok ok ok ok true ok",
            ),
            (
                "hidepid=invisible,gid=65534",
                "ok ok ok ok true ok",
                "ok ok ok ok true ok",
            ),
            (
                "hidepid=4",
                "ENOENT ENOENT ENOENT ENOENT false ok",
                "ok ok ok ok true ok",
            ),
            ("hidepid=off", "ok ok ok ok true ok", "ok ok ok ok true ok"),
        ] {
            mount("proc", at, "proc", libc::MS_REMOUNT, options)?;
            let (nobody, root) = (look(NOBODY)?, look(0)?);
            ensure!(nobody == of_nobody, "{options}: nobody finds {nobody}");
            ensure!(root == of_root, "{options}: root finds {root}");
        }
        ensure!(shown()? == "rw,relatime,gid=65534", "{}", shown()?);
        mount("proc", at, "proc", libc::MS_REMOUNT, "hidepid=2,gid=0")?;
        ensure!(shown()? == "rw,relatime,hidepid=invisible", "{}", shown()?);
        let refused = mount("proc", at, "proc", libc::MS_REMOUNT, "hidepid=3");
        ensure!(
            refused.err().and_then(|error| error.raw_os_error()) == Some(libc::EINVAL),
            "hidepid=3"
        );
        // Each mount has options of its own.
        ensure!(
            pids(Path::new("/proc"))?.contains(&foreign.pid),
            "the first one hides, too"
        );
        ensure!(
            fs::metadata("/proc")?.dev() != fs::metadata(at)?.dev(),
            "both have one device's number"
        );
        // SAFETY: the name ends in NUL.
        checked(unsafe { libc::umount(c(at).as_ptr()) })?;
        mount("proc", at, "proc", 0, "subset=pid")?;
        ensure!(
            fs::metadata(at.join("1/status")).is_ok()
                && fs::metadata(at.join("self/status")).is_ok(),
            "processes are not there"
        );
        ensure!(
            fs::metadata(at.join("meminfo")).is_err() && fs::metadata(at.join("sys")).is_err(),
            "more than processes is there"
        );
        // SAFETY: the name ends in NUL.
        checked(unsafe { libc::umount(c(at).as_ptr()) })?;
        Ok(())
    })
}

fn links_in_sticky_directories() -> Result<()> {
    let place = Place::new("sticky-links")?;
    let dir = &place.0;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777))?;
    let [target, link, file, fifo, through] =
        ["target", "link", "file", "fifo", "through"].map(|name| dir.join(name));
    fs::write(&target, "")?;
    fs::set_permissions(&target, fs::Permissions::from_mode(0o666))?;
    in_child(|| {
        become_user(USER)?;
        symlink(&target, &link)?;
        symlink(dir, &through)?;
        fs::write(&file, "")?;
        is(
            call!(SYS_mknod, c(&fifo).as_ptr(), libc::S_IFIFO | 0o666, 0),
            0,
            "mknod",
        )?;
        for path in [&file, &fifo] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        }
        Ok(())
    })?;
    let open = |path: &Path, flags: i32| {
        let fd = call!(SYS_open, c(path).as_ptr(), flags | libc::O_NONBLOCK, 0o600);
        if fd >= 0 {
            drop(Fd(fd as i32));
        }
        fd.min(0)
    };
    // Each as nobody and as root.
    let both = |expected: i64, what: &str, act: &dyn Fn() -> i64| -> Result<()> {
        is(act(), expected, &format!("{what}, as root"))?;
        in_child(|| {
            become_user(NOBODY)?;
            is(act(), expected, &format!("{what}, as nobody"))
        })
    };
    let refused = -i64::from(EACCES);
    let symlinks = Setting::new("fs/protected_symlinks")?;
    for (value, expected) in [("0", 0), ("1", refused)] {
        symlinks.set(value)?;
        both(expected, "following another's link", &|| {
            open(&link, libc::O_RDONLY)
        })?;
        both(expected, "creating through another's link", &|| {
            open(&link, libc::O_RDWR | libc::O_CREAT)
        })?;
        both(expected, "looking at another's link's target", &|| {
            let mut stat = [0u8; 256];
            call!(SYS_stat, c(&link).as_ptr(), stat.as_mut_ptr())
        })?;
        both(0, "a link on the way", &|| {
            open(&through.join("target"), libc::O_RDONLY)
        })?;
        both(0, "the link itself", &|| {
            call!(SYS_readlink, c(&link).as_ptr(), [0u8; 64].as_mut_ptr(), 64).min(0)
        })?;
        in_child(|| {
            become_user(USER)?;
            is(open(&link, libc::O_RDONLY), 0, "an own link")
        })?;
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))?;
    both(0, "a link where nothing is sticky", &|| {
        open(&link, libc::O_RDONLY)
    })?;
    for (name, path) in [
        ("fs/protected_regular", &file),
        ("fs/protected_fifos", &fifo),
    ] {
        let setting = Setting::new(name)?;
        let create = || open(path, libc::O_RDWR | libc::O_CREAT);
        for (value, to_all, to_group) in [("0", 0, 0), ("1", refused, 0), ("2", refused, refused)] {
            setting.set(value)?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o1777))?;
            both(to_all, &format!("{name} {value}"), &create)?;
            both(0, &format!("{name} {value}, without O_CREAT"), &|| {
                open(path, libc::O_RDWR)
            })?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o1775))?;
            both(
                to_group,
                &format!("{name} {value}, a group's directory"),
                &create,
            )?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o775))?;
            both(0, &format!("{name} {value}, not sticky"), &create)?;
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o1777))?;
        in_child(|| {
            become_user(USER)?;
            is(create(), 0, "an own file")
        })?;
        chown(dir, Some(USER), None)?;
        both(0, "a file of whose directory it is", &create)?;
        chown(dir, Some(0), None)?;
    }
    let hardlinks = Setting::new("fs/protected_hardlinks")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    for (value, expected) in [("0", 0), ("1", -i64::from(EPERM))] {
        hardlinks.set(value)?;
        in_child(|| {
            become_user(NOBODY)?;
            let name = c(dir.join(format!("name-{value}")));
            let made = call!(SYS_link, c(&file).as_ptr(), name.as_ptr());
            is(
                made,
                expected,
                &format!("a name for what one only reads, with {value}"),
            )
        })?;
    }
    // Who may not write settings, and what they take.
    for (name, wrong) in [
        ("fs/protected_symlinks", "2"),
        ("fs/protected_hardlinks", "-1"),
        ("fs/protected_fifos", "3"),
        ("fs/protected_regular", "x"),
    ] {
        let path = format!("/proc/sys/{name}");
        let error = fs::write(&path, wrong)
            .err()
            .and_then(|error| error.raw_os_error());
        ensure!(error == Some(libc::EINVAL), "{wrong} to {name}: {error:?}");
        in_child(|| {
            become_user(NOBODY)?;
            let error = fs::write(&path, "0")
                .err()
                .and_then(|error| error.raw_os_error());
            ensure!(error == Some(EACCES), "{name}, by nobody: {error:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn kernel_log() -> Result<()> {
    const READ_ALL: usize = 3;
    const SIZE: usize = 10;
    let restrict = Setting::new("kernel/dmesg_restrict")?;
    for (value, expected) in [("0", 0), ("1", -i64::from(EPERM))] {
        restrict.set(value)?;
        in_child(|| {
            become_user(NOBODY)?;
            let mut buf = vec![0u8; 4096];
            let all = call!(SYS_syslog, READ_ALL, buf.as_mut_ptr(), buf.len()).min(0);
            is(all, expected, &format!("reading the log with {value}"))?;
            let size = call!(SYS_syslog, SIZE, 0, 0).min(0);
            is(size, expected, &format!("its size with {value}"))?;
            let fd = call!(
                SYS_open,
                c"/dev/kmsg".as_ptr(),
                libc::O_RDONLY | libc::O_NONBLOCK,
                0
            );
            is(fd.min(0), expected, &format!("/dev/kmsg with {value}"))?;
            let fd = call!(SYS_open, c"/dev/kmsg".as_ptr(), libc::O_WRONLY, 0);
            fails(fd, EACCES, "/dev/kmsg to write")?;
            fails(call!(SYS_syslog, 5, 0, 0), EPERM, "clearing")
        })?;
        let mut buf = vec![0u8; 4096];
        let all = call!(SYS_syslog, READ_ALL, buf.as_mut_ptr(), buf.len());
        ensure!(all >= 0, "root, with {value}: {all}");
    }
    Ok(())
}
