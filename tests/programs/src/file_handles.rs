//! Files by handles, kinds of kernels a program may ask for, and what epoll sets of processes
//! share.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::credentials::{OTHER, become_user, in_child};
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("file-handles-outlast-names", outlast_names),
    ("file-handles-are-checked", are_checked),
    ("file-handles-kinds-of-kernels", kinds_of_kernels),
    ("file-handles-of-sets-are-compared", sets_are_compared),
];

/// `struct file_handle` with as much room as it can need.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
struct Handle {
    bytes: u32,
    kind: i32,
    body: [u8; 128],
}

/// The handle of a file, and the number of its mount.
fn handle_of(path: &Path, room: u32) -> io::Result<(Handle, i32)> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut handle = Handle {
        bytes: room,
        kind: 0,
        body: [0; 128],
    };
    let mut mount = -1;
    // SAFETY: the name ends with NUL, and the handle has at least as much room as it says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    match checked(result as i32) {
        Ok(_) => Ok((handle, mount)),
        Err(error) if error.raw_os_error() == Some(libc::EOVERFLOW) => Ok((handle, -1)),
        Err(error) => Err(error),
    }
}

fn open(mount: &File, handle: &Handle, flags: i32) -> io::Result<File> {
    // SAFETY: a valid handle; the descriptor is new.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw const *handle,
            flags,
        );
        checked(fd as i32).map(|fd| File::from_raw_fd(fd))
    }
}

fn outlast_names() -> Result<()> {
    let place = Place::new("handles")?;
    let path = place.0.join("file");
    fs::write(&path, "text")?;
    let (handle, mount) = handle_of(&path, 128)?;
    ensure!(
        handle == handle_of(&path, 128)?.0 && handle != handle_of(&place.0, 128)?.0,
        "handles are mixed up"
    );
    let infos = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(
        infos
            .lines()
            .any(|line| line.starts_with(&format!("{mount} "))),
        "there is no mount {mount}"
    );
    let directory = File::open(&place.0)?;
    fs::rename(&path, place.0.join("renamed"))?;
    let mut text = String::new();
    open(&directory, &handle, libc::O_RDONLY)?.read_to_string(&mut text)?;
    ensure!(text == "text", "another file: {text}");
    fs::remove_file(place.0.join("renamed"))?;
    let gone = open(&directory, &handle, libc::O_RDONLY)
        .err()
        .and_then(|e| e.raw_os_error());
    ensure!(gone == Some(libc::ESTALE), "a file that is gone: {gone:?}");
    Ok(())
}

fn are_checked() -> Result<()> {
    let place = Place::new("file-handles-checked")?;
    let (small, _) = handle_of(&place.0, 0)?;
    ensure!(small.bytes > 0, "how much room it needs is not told");
    let refused = handle_of(&place.0, 129)
        .err()
        .and_then(|e| e.raw_os_error());
    ensure!(refused == Some(libc::EINVAL), "too much room: {refused:?}");
    let none = handle_of(Path::new("/proc/self/status"), 128)
        .err()
        .and_then(|e| e.raw_os_error());
    ensure!(
        none == Some(libc::EOPNOTSUPP),
        "a file without handle: {none:?}"
    );
    let (handle, _) = handle_of(&place.0, 128)?;
    let directory = File::open(&place.0)?;
    let inner = place.0.join("outer/inner");
    fs::create_dir_all(&inner)?;
    let (handle_inside, _) = handle_of(&inner, 128)?;
    fs::rename(place.0.join("outer"), place.0.join("renamed"))?;
    let found = open(&directory, &handle_inside, libc::O_RDONLY)?;
    let known = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    ensure!(
        known == place.0.canonicalize()?.join("renamed/inner"),
        "the directory is {known:?}"
    );
    ensure!(
        open(&directory, &handle, libc::O_RDONLY)?
            .metadata()?
            .is_dir(),
        "the directory is none"
    );
    in_child(|| {
        become_user(OTHER)?;
        let refused = open(&directory, &handle, libc::O_RDONLY)
            .err()
            .and_then(|e| e.raw_os_error());
        ensure!(
            refused == Some(libc::EPERM),
            "an ordinary user: {refused:?}"
        );
        Ok(())
    })
}

fn kinds_of_kernels() -> Result<()> {
    const UNAME26: u64 = 0x002_0000;
    const STICKY_TIMEOUTS: u64 = 0x400_0000;
    const READ_IMPLIES_EXEC: u64 = 0x040_0000;
    const LINUX32: u64 = 8;
    // SAFETY: the calls take numbers, or valid places.
    in_child(|| unsafe {
        let names = || {
            let mut names: libc::utsname = std::mem::zeroed();
            libc::uname(&mut names);
            let text = |name: &[libc::c_char]| {
                CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
            };
            (text(&names.release), text(&names.machine))
        };
        let plain = names();
        ensure!(
            libc::personality(UNAME26 | LINUX32) == 0
                && libc::personality(0xffff_ffff) == (UNAME26 | LINUX32) as i32,
            "not told"
        );
        let (release, machine) = names();
        ensure!(
            release.starts_with("2.6.6") || release.starts_with("2.6.7"),
            "{release} of {}",
            plain.0
        );
        ensure!(machine == "i686", "{machine}");
        libc::personality(STICKY_TIMEOUTS);
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: 1000,
        };
        checked(libc::select(
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            &mut time,
        ))?;
        ensure!(time.tv_usec == 1000, "the time was changed");
        libc::personality(READ_IMPLIES_EXEC);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        let maps = fs::read_to_string("/proc/self/maps")?;
        let start = format!("{:x}-", page.addr());
        ensure!(
            maps.lines()
                .any(|line| line.starts_with(&start) && line.contains("rwxp")),
            "{start} in {maps}"
        );
        libc::personality(0);
        ensure!(names() == plain, "it does not go back");
        Ok(())
    })
}

fn sets_are_compared() -> Result<()> {
    const KCMP_EPOLL_TFD: i32 = 7;
    // SAFETY: the calls take numbers, and valid places.
    unsafe {
        let set = File::from_raw_fd(checked(libc::epoll_create1(0))?);
        let watched = File::from_raw_fd(checked(libc::eventfd(0, 0))?);
        let other = File::from_raw_fd(checked(libc::eventfd(0, 0))?);
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        checked(libc::epoll_ctl(
            set.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            watched.as_raw_fd(),
            &mut event,
        ))?;
        let own = std::process::id();
        let compare = |file: &File, watched: &File, skip: u32| {
            let slot = [set.as_raw_fd() as u32, watched.as_raw_fd() as u32, skip];
            checked(libc::syscall(
                libc::SYS_kcmp,
                own,
                own,
                KCMP_EPOLL_TFD,
                file.as_raw_fd(),
                slot.as_ptr(),
            ) as i32)
        };
        let same = match compare(&watched, &watched, 0) {
            // A kernel may be built without the call.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(()),
            result => result?,
        };
        ensure!(same == 0, "what is watched is another: {same}");
        ensure!(
            compare(&watched.try_clone()?, &watched, 0)? == 0 && compare(&other, &watched, 0)? != 0,
            "others are the same"
        );
        for (file, skip) in [(&other, 0), (&watched, 1)] {
            let code = compare(&watched, file, skip)
                .err()
                .and_then(|e| e.raw_os_error());
            ensure!(code == Some(libc::ENOENT), "what is not watched: {code:?}");
        }
    }
    Ok(())
}
