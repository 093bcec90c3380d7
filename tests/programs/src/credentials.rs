//! Users, groups, capabilities, and what they allow.

use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{fs, io};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("credentials-user-ids", user_ids),
    (
        "credentials-capabilities-follow-ids",
        capabilities_follow_ids,
    ),
    ("credentials-capset", capset),
    ("credentials-set-user-id-file", set_user_id_file),
    ("credentials-no-new-privileges", no_new_privileges),
    ("credentials-bounding-and-ambient", bounding_and_ambient),
    ("credentials-secure-bits", secure_bits),
    ("credentials-file-permissions", file_permissions),
    ("credentials-sticky-directory", sticky_directory),
    ("credentials-who-may-signal", who_may_signal),
    ("credentials-dumpable", dumpable),
    ("credentials-shared-directories", shared_directories),
    ("credentials-subreaper", subreaper),
];

const USER: u32 = 1000;
pub const OTHER: u32 = 1234;

/// Runs `check` in a child of its own, which may give its powers away.
pub fn in_child(check: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut pipe = [0; 2];
    // SAFETY: the array has room for both descriptors.
    checked(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: this program has one thread when it forks.
    let pid = checked(unsafe { libc::fork() })?;
    // SAFETY: each descriptor is owned by one value in each process.
    let [mut input, mut output] = pipe.map(|fd| unsafe { fs::File::from_raw_fd(fd) });
    if pid == 0 {
        let status = match check() {
            Ok(()) => 0,
            Err(error) => {
                let _ = write!(output, "{error:#}");
                1
            }
        };
        // SAFETY: the child ends here.
        unsafe { libc::_exit(status) };
    }
    drop(output);
    let mut text = String::new();
    input.read_to_string(&mut text)?;
    let mut status = 0;
    // SAFETY: the word is valid.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    if status == 0 {
        Ok(())
    } else {
        Err(anyhow!("{text} (status {status:#x})"))
    }
}

pub fn become_user(uid: u32) -> Result<()> {
    // SAFETY: the calls take numbers only, and no list.
    unsafe {
        checked(libc::setgroups(0, std::ptr::null()))?;
        checked(libc::setresgid(uid, uid, uid))?;
        checked(libc::setresuid(uid, uid, uid))?;
    }
    Ok(())
}

fn ids() -> [u32; 3] {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: three valid words.
    unsafe { libc::getresuid(real, effective, saved) };
    ids
}

pub fn prctl(option: i32, arg: usize, arg3: usize) -> io::Result<i32> {
    // SAFETY: the options used here take numbers.
    checked(unsafe { libc::prctl(option, arg, arg3, 0, 0) })
}

/// A field of `/proc/self/status`, in hexadecimal.
fn status_field(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("no {name}"))?;
    Ok(u64::from_str_radix(
        line.trim_start_matches(':').trim(),
        16,
    )?)
}

const CAP_CHOWN: u64 = 1;
const CAP_KILL_NUMBER: usize = 5;
const CAP_SETUID: u64 = 1 << 7;
const CAP_NET_BIND: u64 = 1 << 10;

/// Effective, permitted and inheritable capabilities as `capget` tells them, low words.
fn caps() -> Result<[u32; 3]> {
    let mut header = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    checked(
        // SAFETY: both have the lengths that this version has.
        unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) } as i32,
    )?;
    Ok([data[0], data[1], data[2]])
}

fn set_caps(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let mut header = [0x2008_0522u32, 0];
    let (low, high) = (|set: u64| set as u32, |set: u64| (set >> 32) as u32);
    let data = [
        low(effective),
        low(permitted),
        low(inheritable),
        high(effective),
        high(permitted),
        high(inheritable),
    ];
    // SAFETY: as above.
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), data.as_ptr()) } as i32)
        .map(drop)
}

fn refused<T>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    match result {
        Ok(_) => Err(anyhow!("{what} was allowed")),
        Err(e) => {
            ensure!(e.raw_os_error() == Some(errno), "{what}: {e}");
            Ok(())
        }
    }
}

fn user_ids() -> Result<()> {
    in_child(|| {
        // SAFETY: the calls take numbers only.
        unsafe {
            checked(libc::setresuid(USER, OTHER, 0))?;
            ensure!(ids() == [USER, OTHER, 0], "setresuid: {:?}", ids());
            refused(
                checked(libc::setresuid(77, u32::MAX, u32::MAX)),
                libc::EPERM,
                "a foreign id",
            )?;
            checked(libc::setreuid(u32::MAX, 0))?;
            ensure!(ids() == [USER, 0, 0], "setreuid: {:?}", ids());
            checked(libc::setuid(USER))?;
            ensure!(ids() == [USER; 3], "setuid of the superuser: {:?}", ids());
            refused(
                checked(libc::setuid(0)),
                libc::EPERM,
                "becoming the superuser again",
            )?;
            refused(checked(libc::setgroups(1, &0)), libc::EPERM, "setgroups")
        }
    })?;
    // Who has no rights may act as who he is, and as who he was.
    in_child(|| {
        // SAFETY: the calls take numbers only.
        unsafe {
            checked(libc::setresgid(USER, OTHER, 77))?;
            checked(libc::setresuid(USER, OTHER, 77))?;
            for id in [77, USER] {
                checked(libc::setuid(id))?;
                checked(libc::setgid(id))?;
                ensure!(
                    ids() == [USER, id, 77] && libc::getegid() == id,
                    "setuid({id}): {:?}, {}",
                    ids(),
                    libc::getegid()
                );
            }
            refused(
                checked(libc::setuid(OTHER)),
                libc::EPERM,
                "setuid to who he acted as",
            )?;
            refused(
                checked(libc::setgid(OTHER)),
                libc::EPERM,
                "setgid to what he acted as",
            )
        }
    })
}

fn capabilities_follow_ids() -> Result<()> {
    in_child(|| {
        let [effective, permitted, _] = caps()?;
        ensure!(
            effective == permitted && u64::from(effective) & (CAP_CHOWN | CAP_SETUID) != 0,
            "root has {effective:#x}"
        );
        // SAFETY: the calls take numbers only.
        checked(unsafe { libc::setresuid(u32::MAX, USER, u32::MAX) })?;
        ensure!(
            caps()? == [0, permitted, 0],
            "acting as a user: {:x?}",
            caps()?
        );
        // SAFETY: likewise.
        checked(unsafe { libc::setresuid(u32::MAX, 0, u32::MAX) })?;
        ensure!(
            caps()?[0] == permitted,
            "the superuser's come back: {:x?}",
            caps()?
        );
        prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
        become_user(USER)?;
        ensure!(
            caps()? == [0, permitted, 0],
            "kept over setresuid: {:x?}",
            caps()?
        );
        set_caps(CAP_SETUID, CAP_SETUID, 0)?;
        refused(
            set_caps(CAP_CHOWN, CAP_CHOWN | CAP_SETUID, 0),
            libc::EPERM,
            "taking a capability back",
        )?;
        // SAFETY: likewise.
        checked(unsafe { libc::setresuid(0, 0, 0) })?;
        Ok(())
    })?;
    in_child(|| {
        become_user(USER)?;
        ensure!(caps()? == [0; 3], "without keeping them: {:x?}", caps()?);
        Ok(())
    })
}

fn capset() -> Result<()> {
    in_child(|| {
        set_caps(CAP_CHOWN, CAP_CHOWN | CAP_SETUID, CAP_NET_BIND)?;
        ensure!(
            caps()?
                == [
                    CAP_CHOWN as u32,
                    (CAP_CHOWN | CAP_SETUID) as u32,
                    CAP_NET_BIND as u32
                ],
            "{:x?}",
            caps()?
        );
        ensure!(
            status_field("CapPrm")? == CAP_CHOWN | CAP_SETUID,
            "/proc tells otherwise"
        );
        refused(
            set_caps(CAP_CHOWN, CAP_CHOWN, CAP_CHOWN | CAP_NET_BIND << 1),
            libc::EPERM,
            "inheriting what is not permitted",
        )?;
        let mut header = [7u32, 0];
        // SAFETY: no data is asked for.
        checked(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), 0) } as i32)?;
        ensure!(
            header[0] == 0x2008_0522,
            "the version to use is {:#x}",
            header[0]
        );
        Ok(())
    })
}

/// This program in a file that belongs to `OTHER`, with set-user-id bit; removed when dropped.
struct SetUserId(PathBuf);

impl SetUserId {
    fn new(name: &str, mode: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/tmp/{name}.{}", std::process::id()));
        fs::copy("/proc/self/exe", &path)?;
        let file = Self(path);
        chown(&file.0, Some(OTHER), Some(OTHER))?;
        fs::set_permissions(&file.0, fs::Permissions::from_mode(mode))?;
        Ok(file)
    }

    /// Credentials of the child, as it prints them.
    fn says(&self) -> Result<String> {
        says(&self.0)
    }
}

impl Drop for SetUserId {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn says(path: &Path) -> Result<String> {
    let output = Command::new(path)
        .args(["credentials-child", "ids"])
        .output()
        .with_context(|| format!("{}", path.display()))?;
    Ok(String::from_utf8(output.stdout)?)
}

/// The other half: a program that says who it is.
pub fn child(what: &[&str]) -> ExitCode {
    match what {
        ["ids"] => {
            let [real, effective, saved] = ids();
            // SAFETY: the calls take numbers.
            let (secure, group) = unsafe { (libc::getauxval(libc::AT_SECURE), libc::getegid()) };
            print!("{real} {effective} {saved} group {group} secure {secure}");
        }
        ["caps"] => match caps() {
            Ok([effective, permitted, inheritable]) => {
                print!("{effective:x} {permitted:x} {inheritable:x}");
            }
            Err(_) => return ExitCode::FAILURE,
        },
        ["dumpable"] => match prctl(libc::PR_GET_DUMPABLE, 0, 0) {
            Ok(value) => print!("{value}"),
            Err(_) => return ExitCode::FAILURE,
        },
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn set_user_id_file() -> Result<()> {
    let file = SetUserId::new("set-user-id", 0o6755)?;
    in_child(|| {
        become_user(USER)?;
        let (said, wanted) = (
            file.says()?,
            format!("{USER} {OTHER} {OTHER} group {OTHER} secure 1"),
        );
        ensure!(said == wanted, "{said}");
        Ok(())
    })?;
    chown(&file.0, Some(USER), None)?;
    let mode = fs::metadata(&file.0)?.mode();
    ensure!(mode & 0o6000 == 0, "after chown the mode is {mode:o}");
    Ok(())
}

fn no_new_privileges() -> Result<()> {
    let file = SetUserId::new("no-new-privileges", 0o4755)?;
    in_child(|| {
        become_user(USER)?;
        refused(
            prctl(libc::PR_SET_NO_NEW_PRIVS, 0, 0),
            libc::EINVAL,
            "taking it back",
        )?;
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
        ensure!(
            prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0)? == 1 && status_field("NoNewPrivs")? == 1,
            "it is not told"
        );
        let said = file.says()?;
        ensure!(
            said == format!("{USER} {USER} {USER} group {USER} secure 0"),
            "{said}"
        );
        Ok(())
    })
}

fn bounding_and_ambient() -> Result<()> {
    let said = || -> Result<String> {
        let output = Command::new("/proc/self/exe")
            .args(["credentials-child", "caps"])
            .output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    in_child(|| {
        prctl(libc::PR_CAPBSET_DROP, CAP_KILL_NUMBER, 0)?;
        ensure!(
            prctl(libc::PR_CAPBSET_READ, CAP_KILL_NUMBER, 0)? == 0,
            "it is still there"
        );
        refused(
            prctl(libc::PR_CAPBSET_READ, 64, 0),
            libc::EINVAL,
            "reading no capability",
        )?;
        ensure!(
            caps()?[1] >> CAP_KILL_NUMBER & 1 != 0,
            "the caller lost it, too"
        );
        let after = said()?;
        let permitted = u32::from_str_radix(after.split(' ').nth(1).context("no sets")?, 16)?;
        ensure!(
            permitted >> CAP_KILL_NUMBER & 1 == 0 && permitted & CAP_SETUID as u32 != 0,
            "a program has {after}"
        );
        Ok(())
    })?;
    in_child(|| {
        let raise = || {
            prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_RAISE as usize,
                10,
            )
        };
        refused(
            raise(),
            libc::EPERM,
            "making ambient what is not inheritable",
        )?;
        prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
        become_user(USER)?;
        set_caps(CAP_NET_BIND, CAP_NET_BIND, CAP_NET_BIND)?;
        raise()?;
        ensure!(
            status_field("CapAmb")? == CAP_NET_BIND,
            "/proc tells otherwise"
        );
        let after = said()?;
        ensure!(after == "400 400 400", "a program has {after}");
        prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL as usize,
            0,
        )?;
        let after = said()?;
        ensure!(
            after == "0 0 400",
            "without ambient ones a program has {after}"
        );
        Ok(())
    })
}

fn secure_bits() -> Result<()> {
    const NOROOT: usize = 1;
    const NOROOT_LOCKED: usize = 2;
    in_child(|| {
        prctl(libc::PR_SET_SECUREBITS, NOROOT | NOROOT_LOCKED, 0)?;
        refused(
            prctl(libc::PR_SET_SECUREBITS, 0, 0),
            libc::EPERM,
            "unlocking",
        )?;
        let output = Command::new("/proc/self/exe")
            .args(["credentials-child", "caps"])
            .output()?;
        let after = String::from_utf8(output.stdout)?;
        ensure!(after == "0 0 0", "root, who is nobody special, has {after}");
        Ok(())
    })
}

/// A directory of its own, open to all; removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str, mode: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/tmp/{name}.{}", std::process::id()));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(Self(path))
    }

    /// A file with an owner.
    fn file(&self, name: &str, (uid, gid): (u32, u32), mode: u32) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, name)?;
        chown(&path, Some(uid), Some(gid))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn file_permissions() -> Result<()> {
    let place = Place::new("permissions", 0o777)?;
    let secret = place.file("secret", (0, 0), 0o600)?;
    let shared = place.file("shared", (0, OTHER), 0o640)?;
    let own = place.file("own", (USER, USER), 0o066)?;
    in_child(|| {
        become_user(USER)?;
        refused(fs::read(&secret), libc::EACCES, "reading a secret")?;
        refused(fs::read(&shared), libc::EACCES, "reading a group's file")?;
        refused(
            fs::read(&own),
            libc::EACCES,
            "reading one's own file that only others may read",
        )?;
        refused(
            chown(&own, Some(OTHER), None),
            libc::EPERM,
            "giving a file away",
        )?;
        refused(
            fs::set_permissions(&secret, fs::Permissions::from_mode(0o777)),
            libc::EPERM,
            "opening a secret",
        )
    })?;
    in_child(|| {
        // SAFETY: a list of one group; numbers.
        unsafe {
            checked(libc::setgroups(1, &OTHER))?;
            checked(libc::setresuid(USER, USER, USER))?;
        }
        ensure!(
            fs::read(&shared)? == b"shared",
            "a member reads something else"
        );
        refused(
            fs::write(&shared, ""),
            libc::EACCES,
            "writing what a group reads",
        )
    })?;
    in_child(|| {
        // SAFETY: the calls take numbers only.
        let old = unsafe { libc::setfsuid(USER) };
        ensure!(old == 0, "the file system saw {old}");
        refused(
            fs::read(&secret),
            libc::EACCES,
            "reading a secret as another user of the file system",
        )?;
        // SAFETY: likewise.
        unsafe { libc::setfsuid(0) };
        ensure!(fs::read(&secret)? == b"secret", "root reads something else");
        Ok(())
    })?;
    in_child(|| {
        const DAC_READ_SEARCH: u64 = 1 << 2;
        prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
        become_user(USER)?;
        set_caps(DAC_READ_SEARCH, DAC_READ_SEARCH, 0)?;
        ensure!(
            fs::read(&secret)? == b"secret",
            "a backup reads something else"
        );
        refused(fs::write(&secret, ""), libc::EACCES, "a backup's writing")
    })
}

fn sticky_directory() -> Result<()> {
    let place = Place::new("sticky", 0o1777)?;
    let (own, foreign) = (
        place.file("own", (USER, USER), 0o666)?,
        place.file("foreign", (OTHER, OTHER), 0o666)?,
    );
    in_child(|| {
        become_user(USER)?;
        refused(
            fs::remove_file(&foreign),
            libc::EPERM,
            "removing another's file",
        )?;
        refused(
            fs::rename(&foreign, place.0.join("mine")),
            libc::EPERM,
            "renaming another's file",
        )?;
        fs::remove_file(&own)?;
        Ok(())
    })
}

fn who_may_signal() -> Result<()> {
    let kill = |pid: i32| {
        // SAFETY: signal 0 does nothing.
        checked(unsafe { libc::kill(pid, 0) })
    };
    let mut sleeper = Command::new("/proc/self/exe")
        .args(["child", "upper"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = sleeper.id() as i32;
    let of_user = in_child(|| {
        become_user(USER)?;
        let mut pipe = [0; 2];
        // SAFETY: room for two; numbers; the child waits for the end of the pipe only.
        unsafe {
            checked(libc::pipe(pipe.as_mut_ptr()))?;
            let own = checked(libc::fork())?;
            if own == 0 {
                libc::close(pipe[1]);
                libc::read(pipe[0], [0u8; 1].as_mut_ptr().cast(), 1);
                libc::_exit(0);
            }
            kill(own)?;
            refused(kill(pid), libc::EPERM, "a signal to root's process")?;
            refused(kill(1), libc::EPERM, "a signal to process 1")?;
            libc::close(pipe[1]);
            checked(libc::waitpid(own, std::ptr::null_mut(), 0))?;
        }
        Ok(())
    });
    drop(sleeper.stdin.take());
    sleeper.wait()?;
    of_user?;
    in_child(|| {
        const KILL: u64 = 1 << 5;
        prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
        become_user(USER)?;
        set_caps(KILL, KILL, 0)?;
        kill(1)?;
        Ok(())
    })
}

fn dumpable() -> Result<()> {
    let file = SetUserId::new("dumpable", 0o4755)?;
    in_child(|| {
        ensure!(
            prctl(libc::PR_GET_DUMPABLE, 0, 0)? == 1,
            "root's process cannot be dumped"
        );
        refused(
            prctl(libc::PR_SET_DUMPABLE, 2, 0),
            libc::EINVAL,
            "setting 2",
        )?;
        become_user(USER)?;
        ensure!(
            prctl(libc::PR_GET_DUMPABLE, 0, 0)? == 0,
            "who changed the user can be dumped"
        );
        in_child(|| {
            ensure!(
                prctl(libc::PR_GET_DUMPABLE, 0, 0)? == 0,
                "a child of who changed the user can be dumped"
            );
            Ok(())
        })?;
        let says = |path: &Path| -> Result<String> {
            let output = Command::new(path)
                .args(["credentials-child", "dumpable"])
                .output()?;
            Ok(String::from_utf8(output.stdout)?)
        };
        ensure!(says(&file.0)? == "0", "a set-user-id program can be dumped");
        fs::read("/proc/self/exe").context("the program itself")?;
        Ok(())
    })
}

/// A file gives nothing to a process that shares its directories with another one, which could
/// move them.
fn shared_directories() -> Result<()> {
    let file = SetUserId::new("shared-directories", 0o4755)?;
    in_child(|| {
        become_user(USER)?;
        for (flags, wanted) in [
            (0, format!("{USER} {OTHER} {OTHER} ")),
            (libc::CLONE_FS, format!("{USER} {USER} {USER} ")),
        ] {
            let [output, input] = crate::calls::pipe(0)?;
            let program = crate::mounts::c(&file.0);
            let words = [c"program", c"credentials-child", c"ids"];
            let arguments = [
                words[0].as_ptr(),
                words[1].as_ptr(),
                words[2].as_ptr(),
                std::ptr::null(),
            ];
            // SAFETY: this process has one thread; the child only runs the program.
            let pid =
                checked(
                    unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) }
                        as i32,
                )?;
            if pid == 0 {
                // SAFETY: valid strings, and a list that ends.
                unsafe {
                    libc::dup2(input.0, 1);
                    libc::execve(
                        program.as_ptr(),
                        arguments.as_ptr(),
                        arguments[3..].as_ptr(),
                    );
                    libc::_exit(1);
                }
            }
            drop(input);
            let mut said = String::new();
            // SAFETY: the descriptor is this value's alone from here on.
            let mut reader = unsafe { fs::File::from_raw_fd(output.0) };
            std::mem::forget(output);
            reader.read_to_string(&mut said)?;
            // SAFETY: no place for the status.
            checked(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) })?;
            ensure!(said.starts_with(&wanted), "with flags {flags:#x}: {said}");
        }
        Ok(())
    })
}

fn subreaper() -> Result<()> {
    in_child(|| {
        prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0)?;
        let mut told = 0;
        prctl(libc::PR_GET_CHILD_SUBREAPER, (&raw mut told) as usize, 0)?;
        ensure!(told == 1, "it is not told");
        // SAFETY: the children call nothing but what is safe after a fork; numbers and a valid
        // word.
        unsafe {
            let own = libc::getpid();
            let middle = checked(libc::fork())?;
            if middle == 0 {
                let middle = libc::getpid();
                let grandchild = libc::fork();
                if grandchild == 0 {
                    while libc::getppid() == middle {
                        libc::sched_yield();
                    }
                    libc::_exit(if libc::getppid() == own { 7 } else { 1 });
                }
                libc::_exit(i32::from(grandchild <= 0));
            }
            let mut statuses = Vec::new();
            for _ in 0..2 {
                let mut status = 0;
                checked(libc::waitpid(-1, &mut status, 0))
                    .context("a grandchild did not become a child")?;
                statuses.push(status);
            }
            statuses.sort_unstable();
            ensure!(statuses == [0, 7 << 8], "{statuses:x?}");
        }
        Ok(())
    })
}
