//! Names and trees: restricted walks, files that get their name later, large directories, what the
//! kernel shows of itself as files.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::files::Scratch;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("paths-restricted-walks", restricted_walks),
    ("paths-name-a-file-later", name_a_file_later),
    ("paths-exchange-names", exchange_names),
    ("paths-directory-of-100000", directory_of_100000),
    ("paths-proc-of-a-process", proc_of_a_process),
    ("paths-proc-of-a-thread", proc_of_a_thread),
    ("paths-proc-of-the-machine", proc_of_the_machine),
    ("paths-sys-counts-processors", sys_counts_processors),
];

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).expect("no NUL")
}

/// `struct open_how`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn open_below(dir: &File, name: &str, resolve: u64) -> io::Result<File> {
    let how = OpenHow {
        flags: libc::O_RDONLY as u64,
        mode: 0,
        resolve,
    };
    let name = c(name);
    // SAFETY: the name ends in NUL, and the structure is as long as said.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            name.as_ptr(),
            &how,
            size_of::<OpenHow>(),
        )
    };
    let fd = checked(RawFd::try_from(fd).expect("a descriptor or -1"))?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn restricted_walks() -> Result<()> {
    const NO_XDEV: u64 = 1;
    const NO_MAGICLINKS: u64 = 2;
    const NO_SYMLINKS: u64 = 4;
    const BENEATH: u64 = 8;
    const IN_ROOT: u64 = 16;
    let scratch = Scratch::new()?;
    fs::create_dir_all(scratch.path("top/inner"))?;
    fs::write(scratch.path("top/file"), "below")?;
    fs::write(scratch.path("outside"), "outside")?;
    symlink("../file", scratch.path("top/inner/up"))?;
    symlink("../outside", scratch.path("top/out"))?;
    symlink("/file", scratch.path("top/absolute"))?;
    let top = File::open(scratch.path("top"))?;
    let magic = format!("/proc/self/fd/{}", top.as_raw_fd());
    let cases: [(&str, u64, Option<i32>); 14] = [
        ("file", BENEATH, None),
        ("inner/up", BENEATH, None),
        ("inner/../file", BENEATH, None),
        ("out", BENEATH, Some(libc::EXDEV)),
        ("../outside", BENEATH, Some(libc::EXDEV)),
        ("/etc", BENEATH, Some(libc::EXDEV)),
        ("absolute", BENEATH, Some(libc::EXDEV)),
        ("absolute", IN_ROOT, None),
        ("/../../file", IN_ROOT, None),
        ("inner/up", NO_SYMLINKS, Some(libc::ELOOP)),
        ("inner", NO_SYMLINKS, None),
        (&magic, NO_MAGICLINKS, Some(libc::ELOOP)),
        ("/proc/self", NO_XDEV, Some(libc::EXDEV)),
        ("file", BENEATH | IN_ROOT, Some(libc::EINVAL)),
    ];
    for (name, resolve, expected) in cases {
        let found = open_below(&top, name, resolve)
            .err()
            .and_then(|error| error.raw_os_error());
        ensure!(
            found == expected,
            "{name} with {resolve:#x} gives {found:?} instead of {expected:?}"
        );
    }
    Ok(())
}

fn name_a_file_later() -> Result<()> {
    let scratch = Scratch::new()?;
    let dir = c(&scratch.0);
    // SAFETY: the name ends in NUL.
    let fd = checked(unsafe { libc::open(dir.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let mut file = unsafe { File::from_raw_fd(fd) };
    io::Write::write_all(&mut file, b"contents")?;
    ensure!(
        fs::read_dir(&scratch.0)?.next().is_none(),
        "the file has a name already"
    );
    // It is shown by its number, as descriptor and as mapping.
    let shown = format!(
        "{}/#{} (deleted)",
        fs::canonicalize(&scratch.0)?.display(),
        file.metadata()?.ino()
    );
    let link = fs::read_link(format!("/proc/self/fd/{fd}"))?;
    ensure!(link == Path::new(&shown), "{link:?} instead of {shown}");
    // SAFETY: a new mapping, which nothing else uses.
    let page = unsafe {
        let kind = libc::MAP_SHARED;
        libc::mmap(std::ptr::null_mut(), 8, libc::PROT_READ, kind, fd, 0)
    };
    let maps = fs::read_to_string("/proc/self/maps")?;
    let of_page = format!("{:x}-", page.addr());
    let line = maps.lines().find(|line| line.starts_with(&of_page));
    ensure!(
        line.is_some_and(|line| line.ends_with(&shown)),
        "{line:?} instead of {shown}"
    );
    let (old, new) = (c(format!("/proc/self/fd/{fd}")), c(scratch.path("name")));
    // SAFETY: both names end in NUL.
    checked(unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    })?;
    ensure!(
        fs::read(scratch.path("name"))? == b"contents",
        "the file reads differently by its name"
    );
    Ok(())
}

fn exchange_names() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("a"), "a")?;
    fs::create_dir(scratch.path("b"))?;
    let (a, b) = (c(scratch.path("a")), c(scratch.path("b")));
    let rename = |flags| {
        // SAFETY: both names end in NUL.
        checked(unsafe {
            libc::renameat2(
                libc::AT_FDCWD,
                a.as_ptr(),
                libc::AT_FDCWD,
                b.as_ptr(),
                flags,
            )
        })
    };
    let taken = rename(libc::RENAME_NOREPLACE)
        .err()
        .and_then(|e| e.raw_os_error());
    ensure!(
        taken == Some(libc::EEXIST),
        "RENAME_NOREPLACE gives {taken:?}"
    );
    rename(libc::RENAME_EXCHANGE)?;
    ensure!(
        scratch.path("a").is_dir() && fs::read(scratch.path("b"))? == b"a",
        "the names are not exchanged"
    );
    let both = rename(libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE)
        .err()
        .and_then(|e| e.raw_os_error());
    ensure!(both == Some(libc::EINVAL), "both flags give {both:?}");
    Ok(())
}

fn directory_of_100000() -> Result<()> {
    const COUNT: usize = 100_000;
    let scratch = Scratch::new()?;
    for n in 0..COUNT {
        File::create(scratch.path(&format!("entry-{n}")))?;
    }
    let mut names = HashSet::new();
    for entry in fs::read_dir(&scratch.0)? {
        ensure!(names.insert(entry?.file_name()), "a name is listed twice");
    }
    ensure!(names.len() == COUNT, "{} names are listed", names.len());
    for n in (0..COUNT).rev() {
        fs::remove_file(scratch.path(&format!("entry-{n}")))?;
    }
    ensure!(
        fs::read_dir(&scratch.0)?.next().is_none(),
        "something is left"
    );
    Ok(())
}

fn proc_of_a_process() -> Result<()> {
    let own = [
        "stat",
        "status",
        "statm",
        "maps",
        "smaps",
        "smaps_rollup",
        "cmdline",
        "comm",
        "environ",
        "limits",
        "mountinfo",
    ];
    let more = [
        "mounts",
        "oom_score_adj",
        "cgroup",
        "personality",
        "syscall",
        "uid_map",
        "setgroups",
    ];
    for name in own.into_iter().chain(more) {
        let text = fs::read(format!("/proc/self/{name}")).with_context(|| name.to_owned())?;
        ensure!(!text.is_empty(), "/proc/self/{name} is empty");
    }
    for name in ["exe", "cwd", "root", "ns/mnt", "ns/pid", "net"] {
        fs::read_link(format!("/proc/self/{name}"))
            .or_else(|_| fs::canonicalize(format!("/proc/self/{name}")))
            .context(name)?;
    }
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat
        .rsplit_once(')')
        .context("no name")?
        .1
        .split_whitespace()
        .count();
    ensure!(fields == 50, "/proc/self/stat has {} fields", fields + 2);
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let whole = mounts.lines().all(|l| {
        l.contains(" - ")
            && l.split_whitespace()
                .nth(3)
                .is_some_and(|root| root.contains('/') || root.contains(':'))
    });
    ensure!(whole, "/proc/self/mountinfo:\n{mounts}");
    Ok(())
}

/// A thread that works and one that waits each show what they do.
fn proc_of_a_thread() -> Result<()> {
    // SAFETY: the call takes nothing.
    let me = unsafe { libc::gettid() };
    let (worker, over) = (AtomicI32::new(0), AtomicBool::new(false));
    let state = |tid: i32| -> Result<char> {
        let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat"))?;
        let status = fs::read_to_string(format!("/proc/self/task/{tid}/status"))?;
        ensure!(
            status.contains(&format!("Pid:\t{tid}\n")),
            "the status of another: {status}"
        );
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
            .context("no state")
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: likewise.
            worker.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                std::hint::black_box(());
            }
        });
        let watcher = scope.spawn(|| -> Result<()> {
            while state(me)? != 'S' {}
            ensure!(
                state(worker.load(Ordering::SeqCst))? == 'R',
                "a thread that works does not run"
            );
            Ok(())
        });
        while worker.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let result = watcher.join().expect("the thread ended well");
        over.store(true, Ordering::SeqCst);
        result
    })
}

fn proc_of_the_machine() -> Result<()> {
    let names = [
        "stat",
        "meminfo",
        "cpuinfo",
        "loadavg",
        "uptime",
        "version",
        "filesystems",
        "vmstat",
        "zoneinfo",
    ];
    let more = [
        "interrupts",
        "softirqs",
        "devices",
        "cmdline",
        "mounts",
        "tty/drivers",
        "cgroups",
    ];
    for name in names.into_iter().chain(more) {
        match fs::read(format!("/proc/{name}")) {
            Ok(text) => ensure!(!text.is_empty(), "/proc/{name} is empty"),
            Err(error) => ensure!(name == "cgroups", "/proc/{name}: {error}"),
        }
    }
    let types = fs::read_to_string("/proc/filesystems")?;
    ensure!(
        types.contains("tmpfs") && types.contains("devpts"),
        "/proc/filesystems:\n{types}"
    );
    Ok(())
}

fn sys_counts_processors() -> Result<()> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut count = 0;
    for part in online.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        count += last.parse::<usize>()? - first.parse::<usize>()? + 1;
    }
    let available = std::thread::available_parallelism()?.get();
    ensure!(
        count >= available,
        "{count} processors are online, {available} can be used"
    );
    let core = fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/core_id")?;
    core.trim().parse::<u32>()?;
    Ok(())
}
