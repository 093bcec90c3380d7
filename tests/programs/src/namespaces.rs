//! Namespaces of mounts, of the machine's names and of System V objects: made, shown, entered and
//! kept.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::credentials::{OTHER, become_user, in_child};
use crate::mounts::{Ground, c, code, mount, tags, unmount};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("namespaces-of-mounts", of_mounts),
    ("namespaces-share-mounts", share_mounts),
    ("namespaces-entered", entered),
    ("namespaces-of-names", of_names),
    ("namespaces-of-objects", of_objects),
    ("namespaces-kept", kept),
    ("namespaces-pivot", pivot),
    ("namespaces-are-checked", are_checked),
];

const NS_GET_USERNS: libc::Ioctl = 0xb701u32 as libc::Ioctl;
const NS_GET_NSTYPE: libc::Ioctl = 0xb703u32 as libc::Ioctl;

fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: the call takes a number.
    checked(unsafe { libc::unshare(flags) }).map(drop)
}

fn setns(namespace: &impl AsRawFd, kind: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), kind) }).map(drop)
}

fn link(name: &str) -> Result<PathBuf> {
    Ok(fs::read_link(format!("/proc/self/ns/{name}"))?)
}

fn of_mounts() -> Result<()> {
    let ground = Ground::new("namespaces-mounts")?;
    let a = ground.tmpfs("a", 0, "")?;
    let before = link("mnt")?;
    std::env::set_current_dir(&a)?;
    in_child(|| {
        unshare(libc::CLONE_NEWNS)?;
        ensure!(
            link("mnt")? != before,
            "the namespace has the number of the old one"
        );
        ensure!(
            fs::read_to_string("mark")? == "a" && std::env::current_dir()? == a,
            "the working directory is elsewhere"
        );
        // The place in the new tree: what is mounted here now is seen from here.
        ground.tmpfs("a/x", 0, "")?;
        ensure!(
            fs::read_to_string("x/mark")? == "a/x",
            "the working directory is in the old tree"
        );
        unmount(&a, libc::MNT_DETACH)?;
        ensure!(!a.join("mark").exists(), "not unmounted");
        Ok(())
    })?;
    ensure!(
        a.join("mark").exists() && !a.join("x/mark").exists(),
        "the child changed this tree"
    );
    // The name is covered in another namespace only: it can be removed, and is uncovered there.
    std::env::set_current_dir("/")?;
    let free = ground.dir("free")?;
    let _guest = Guest::new(libc::CLONE_NEWNS, || Ok(mount("t", &free, "tmpfs", 0, "")?))?;
    fs::remove_dir(&free)?;
    Ok(())
}

fn share_mounts() -> Result<()> {
    let ground = Ground::new("namespaces-shared")?;
    let a = ground.tmpfs("a", 0, "")?;
    for name in ["a/x", "a/y"] {
        ground.dir(name)?;
    }
    mount("none", &a, "", libc::MS_SHARED, "")?;
    let group = tags(&a)?;
    in_child(|| {
        unshare(libc::CLONE_NEWNS)?;
        ensure!(tags(&a)? == group, "the copy is no peer: {}", tags(&a)?);
        mount("none", &a, "", libc::MS_SLAVE, "")?;
        ensure!(
            tags(&a)? == group.replace("shared", "master"),
            "{}",
            tags(&a)?
        );
        mount("y", a.join("y"), "tmpfs", 0, "")?;
        Ok(())
    })?;
    in_child(|| {
        unshare(libc::CLONE_NEWNS)?;
        ground.tmpfs("a/x", 0, "")?;
        Ok(())
    })?;
    // What a peer mounted stays when its namespace ends.
    ensure!(a.join("x/mark").exists(), "what a peer mounts is not seen");
    ensure!(
        !fs::read_to_string("/proc/self/mounts")?.contains("/a/y "),
        "what a slave mounts is seen"
    );
    Ok(())
}

/// A child that is in namespaces of its own until the result is dropped.
struct Guest {
    pid: i32,
    _until: OwnedFd,
}

impl Guest {
    fn new(flags: i32, prepare: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (ready, tell) = io::pipe()?;
        let (wait, until) = io::pipe()?;
        // SAFETY: this program has one thread when it forks.
        let pid = checked(unsafe { libc::fork() })?;
        if pid == 0 {
            drop((ready, until));
            let done = unshare(flags).map_err(Into::into).and_then(|()| prepare());
            let text = done
                .err()
                .map_or_else(String::new, |error| format!("{error:#}"));
            let _ = io::Write::write_all(&mut &tell, text.as_bytes());
            drop(tell);
            let _ = io::Read::read(&mut &wait, &mut [0]);
            // SAFETY: the child ends here.
            unsafe { libc::_exit(0) };
        }
        drop(tell);
        let guest = Self {
            pid,
            _until: until.into(),
        };
        let text = io::read_to_string(ready)?;
        ensure!(text.is_empty(), "{text}");
        Ok(guest)
    }

    fn namespace(&self, name: &str) -> Result<File> {
        Ok(File::open(format!("/proc/{}/ns/{name}", self.pid))?)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // SAFETY: the child is this process's.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

fn hostname() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/hostname")?
        .trim()
        .to_owned())
}

fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: the name is as long as said.
    checked(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

fn entered() -> Result<()> {
    let ground = Ground::new("namespaces-entered")?;
    let point = ground.dir("a")?;
    let guest = Guest::new(libc::CLONE_NEWNS | libc::CLONE_NEWUTS, || {
        ground.tmpfs("a", 0, "")?;
        Ok(set_hostname("guest")?)
    })?;
    let (space, names) = (guest.namespace("mnt")?, guest.namespace("uts")?);
    in_child(|| {
        let home = File::open("/proc/self/ns/mnt")?;
        setns(&space, libc::CLONE_NEWNS)?;
        ensure!(
            point.join("mark").exists() && std::env::current_dir()?.as_os_str() == "/",
            "it is not where the guest is"
        );
        setns(&home, 0)?;
        ensure!(!point.join("mark").exists(), "it does not come back");
        let wrong = code(setns(&names, libc::CLONE_NEWNS));
        ensure!(wrong == Some(libc::EINVAL), "another kind: {wrong:?}");
        setns(&names, 0)?;
        ensure!(hostname()? == "guest", "{}", hostname()?);
        Ok(())
    })?;
    in_child(|| {
        // SAFETY: the call takes numbers; the descriptor is new.
        let pidfd = unsafe {
            OwnedFd::from_raw_fd(checked(
                libc::syscall(libc::SYS_pidfd_open, guest.pid, 0) as i32
            )?)
        };
        let none = code(setns(&pidfd, 0));
        ensure!(none == Some(libc::EINVAL), "none of a process's: {none:?}");
        setns(&pidfd, libc::CLONE_NEWNS | libc::CLONE_NEWUTS)?;
        ensure!(
            point.join("mark").exists() && hostname()? == "guest",
            "it is not where the guest is"
        );
        Ok(())
    })?;
    // SAFETY: the requests take no argument; the descriptor is new.
    unsafe {
        let kind = checked(libc::ioctl(space.as_raw_fd(), NS_GET_NSTYPE))?;
        ensure!(kind == libc::CLONE_NEWNS, "{kind:#x} is its kind");
        let user = OwnedFd::from_raw_fd(checked(libc::ioctl(space.as_raw_fd(), NS_GET_USERNS))?);
        let of = |fd: i32| fs::read_link(format!("/proc/self/fd/{fd}"));
        ensure!(
            of(user.as_raw_fd())? == link("user")?,
            "{:?} owns it",
            of(user.as_raw_fd())?
        );
    }
    let inner = fs::metadata(format!("/proc/{}/ns/mnt", guest.pid))?;
    let number = format!("mnt:[{}]", std::os::unix::fs::MetadataExt::ino(&inner));
    ensure!(
        fs::read_link(format!("/proc/{}/ns/mnt", guest.pid))?.as_os_str() == &*number,
        "{number}"
    );
    Ok(())
}

fn of_names() -> Result<()> {
    let (before, number) = (hostname()?, link("uts")?);
    in_child(|| {
        unshare(libc::CLONE_NEWUTS)?;
        ensure!(
            hostname()? == before && link("uts")? != number,
            "the new one begins otherwise"
        );
        set_hostname("other")?;
        // SAFETY: numbers and texts only.
        let names = unsafe {
            let mut names: libc::utsname = std::mem::zeroed();
            libc::uname(&mut names);
            names
        };
        ensure!(
            names.nodename[..6]
                .iter()
                .zip(b"other\0")
                .all(|(a, b)| *a as u8 == *b),
            "uname tells another name"
        );
        ensure!(hostname()? == "other", "{}", hostname()?);
        Ok(())
    })?;
    ensure!(
        hostname()? == before,
        "the old one has the name {}",
        hostname()?
    );
    Ok(())
}

fn of_objects() -> Result<()> {
    const KEY: i32 = 0x5ca1_ab1e;
    // SAFETY: the calls take numbers and a name that ends in NUL.
    unsafe {
        let id = checked(libc::shmget(KEY, 4096, libc::IPC_CREAT | 0o600))?;
        let set = checked(libc::semget(KEY, 1, libc::IPC_CREAT | 0o600))?;
        let queue = checked(libc::msgget(KEY, libc::IPC_CREAT | 0o600))?;
        let name = CString::new("/namespaces")?;
        let open = |flags| {
            checked(libc::mq_open(
                name.as_ptr(),
                flags | libc::O_RDWR,
                0o600,
                std::ptr::null::<libc::mq_attr>(),
            ))
        };
        open(libc::O_CREAT)?;
        let result = in_child(|| {
            unshare(libc::CLONE_NEWIPC)?;
            let found = [
                libc::shmget(KEY, 0, 0),
                libc::semget(KEY, 0, 0),
                libc::msgget(KEY, 0),
            ];
            ensure!(
                found == [-1; 3] && code(open(0)) == Some(libc::ENOENT),
                "objects of the old one: {found:?}"
            );
            checked(libc::shmget(
                KEY,
                8192,
                libc::IPC_CREAT | libc::IPC_EXCL | 0o600,
            ))?;
            let listed = fs::read_to_string("/proc/sysvipc/shm")?;
            ensure!(listed.lines().count() == 2, "{listed}");
            open(libc::O_CREAT | libc::O_EXCL)?;
            Ok(())
        });
        let size = {
            let mut info: libc::shmid_ds = std::mem::zeroed();
            checked(libc::shmctl(id, libc::IPC_STAT, &mut info))?;
            info.shm_segsz
        };
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        libc::semctl(set, 0, libc::IPC_RMID);
        libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut());
        libc::mq_unlink(name.as_ptr());
        ensure!(size == 4096, "the child changed the segment: {size}");
        result
    }
}

fn kept() -> Result<()> {
    let ground = Ground::new("namespaces-kept")?;
    let (names, space) = (ground.path("names"), ground.path("space"));
    for file in [&names, &space] {
        File::create(file)?;
    }
    let own = code(mount("/proc/self/ns/mnt", &space, "", libc::MS_BIND, ""));
    ensure!(
        own == Some(libc::EINVAL),
        "a namespace holds itself: {own:?}"
    );
    let point = ground.dir("a")?;
    let guest = Guest::new(libc::CLONE_NEWNS | libc::CLONE_NEWUTS, || {
        ground.tmpfs("a", 0, "")?;
        Ok(set_hostname("kept")?)
    })?;
    mount(
        format!("/proc/{}/ns/uts", guest.pid),
        &names,
        "",
        libc::MS_BIND,
        "",
    )?;
    mount(
        format!("/proc/{}/ns/mnt", guest.pid),
        &space,
        "",
        libc::MS_BIND,
        "",
    )?;
    drop(guest);
    in_child(|| {
        setns(&File::open(&names)?, libc::CLONE_NEWUTS)?;
        ensure!(hostname()? == "kept", "{}", hostname()?);
        setns(&File::open(&space)?, libc::CLONE_NEWNS)?;
        ensure!(point.join("mark").exists(), "the tree is gone");
        Ok(())
    })?;
    unmount(&names, 0)?;
    unmount(&space, 0)?;
    Ok(())
}

fn pivot_root(new: &str, put: &str) -> io::Result<()> {
    // SAFETY: both names end in NUL.
    checked(unsafe { libc::syscall(libc::SYS_pivot_root, c(new).as_ptr(), c(put).as_ptr()) } as i32)
        .map(drop)
}

fn pivot() -> Result<()> {
    let ground = Ground::new("namespaces-pivot")?;
    in_child(|| {
        unshare(libc::CLONE_NEWNS)?;
        mount("none", "/", "", libc::MS_PRIVATE | libc::MS_REC, "")?;
        let new = ground.tmpfs("new", 0, "")?;
        fs::create_dir(new.join("old"))?;
        fs::create_dir(new.join("proc"))?;
        let name = new.to_string_lossy().into_owned();
        let same = code(pivot_root("/", "/"));
        ensure!(
            same == Some(libc::EBUSY) || same == Some(libc::EINVAL),
            "the root for itself: {same:?}"
        );
        let no_top = code(pivot_root(&format!("{name}/old"), &format!("{name}/old")));
        ensure!(no_top == Some(libc::EINVAL), "no mount's top: {no_top:?}");
        std::env::set_current_dir("/")?;
        if let Err(error) = pivot_root(&name, &format!("{name}/old")) {
            // The root of a machine that lives in the file system it was started from cannot be
            // exchanged.
            return if error.raw_os_error() == Some(libc::EINVAL) {
                chrooted(&name)
            } else {
                Err(error.into())
            };
        }
        ensure!(
            fs::read_to_string("/mark")? == "new" && fs::metadata("old/proc").is_ok(),
            "the root is the old one"
        );
        unmount("/old", libc::MNT_DETACH)?;
        ensure!(fs::read_dir("/old")?.count() == 0, "the old root is there");
        mount("proc", "/proc", "proc", 0, "")?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        ensure!(
            mounts.lines().count() == 2 && mounts.starts_with("new / tmpfs "),
            "{mounts}"
        );
        Ok(())
    })
}

/// After `chroot` the tree is moved over the root, as on Linux.
fn chrooted(name: &str) -> Result<()> {
    std::env::set_current_dir(name)?;
    mount(".", "/", "", libc::MS_MOVE, "").context("moving over the root")?;
    std::os::unix::fs::chroot(".")?;
    ensure!(
        fs::read_to_string("/mark")? == "new",
        "the root is the old one"
    );
    Ok(())
}

fn are_checked() -> Result<()> {
    let refused = |flags| code(unshare(flags));
    ensure!(
        refused(1) == Some(libc::EINVAL),
        "what there is not: {:?}",
        refused(1)
    );
    // SAFETY: the child, if there is one, ends at once.
    let both = unsafe {
        let result = libc::syscall(
            libc::SYS_clone,
            libc::CLONE_NEWNS | libc::CLONE_FS | libc::SIGCHLD,
            0,
            0,
            0,
            0,
        );
        if result == 0 {
            libc::_exit(0);
        }
        checked(result as i32)
    };
    ensure!(
        code(both) == Some(libc::EINVAL),
        "new and shared directories"
    );
    let file = File::open("/proc/self/status")?;
    ensure!(
        code(setns(&file, 0)) == Some(libc::EINVAL),
        "another file is entered"
    );
    let own = File::open("/proc/self/ns/uts")?;
    setns(&own, 0)?;
    let user = File::open("/proc/self/ns/user")?;
    ensure!(
        code(setns(&user, 0)) == Some(libc::EINVAL),
        "the own namespace of users is entered"
    );
    in_child(|| {
        become_user(OTHER)?;
        for flag in [libc::CLONE_NEWNS, libc::CLONE_NEWUTS, libc::CLONE_NEWIPC] {
            ensure!(
                refused(flag) == Some(libc::EPERM),
                "an ordinary user with {flag:#x}: {:?}",
                refused(flag)
            );
        }
        ensure!(
            code(setns(&own, 0)) == Some(libc::EPERM),
            "an ordinary user enters one"
        );
        Ok(())
    })
}
