//! Files, locks, and what watches them.

use super::*;

const RW: i32 = libc::O_CREAT | libc::O_RDWR;
const NAME: *const libc::c_char = c"leaks-file".as_ptr();
const OTHER: *const libc::c_char = c"leaks-other".as_ptr();
const DIR: *const libc::c_char = c"leaks-dir".as_ptr();

fn open(name: *const libc::c_char, flags: i32) -> Result<Fd> {
    Fd::new(call!(SYS_open, name, flags, 0o600), "open")
}

fn unlink(name: *const libc::c_char) -> Result<()> {
    is(call!(SYS_unlink, name), 0, "unlink")
}

pub const FILES: &[Deed] = &[
    ("a file that is removed while it is open", || {
        let file = open(NAME, RW)?;
        is(
            call!(SYS_write, file.0, [7u8; 9000].as_ptr(), 9000),
            9000,
            "write",
        )?;
        is(
            call!(SYS_fsetxattr, file.0, c"trusted.leaks".as_ptr(), NAME, 4, 0),
            0,
            "fsetxattr",
        )?;
        unlink(NAME)?;
        is(call!(SYS_ftruncate, file.0, 100), 0, "ftruncate")
    }),
    ("a file over which another is moved", || {
        drop((open(NAME, RW)?, open(OTHER, RW)?));
        is(call!(SYS_rename, NAME, OTHER), 0, "rename")?;
        unlink(OTHER)
    }),
    ("a file without a name, and one that gets a name", || {
        let file = Fd::new(
            call!(
                SYS_open,
                c".".as_ptr(),
                libc::O_TMPFILE | libc::O_RDWR,
                0o600
            ),
            "O_TMPFILE",
        )?;
        is(call!(SYS_write, file.0, NAME, 4), 4, "write")?;
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.0))?;
        is(
            call!(
                SYS_linkat,
                libc::AT_FDCWD,
                path.as_ptr(),
                libc::AT_FDCWD,
                NAME,
                libc::AT_SYMLINK_FOLLOW
            ),
            0,
            "linkat",
        )?;
        unlink(NAME)
    }),
    ("directories, links and nodes", || {
        is(call!(SYS_mkdir, DIR, 0o700), 0, "mkdir")?;
        let dir = open(DIR, libc::O_DIRECTORY)?;
        is(
            call!(SYS_symlinkat, c"elsewhere".as_ptr(), dir.0, NAME),
            0,
            "symlinkat",
        )?;
        is(
            call!(SYS_mknodat, dir.0, OTHER, libc::S_IFIFO | 0o600, 0),
            0,
            "mknodat",
        )?;
        fails(call!(SYS_rmdir, DIR), libc::ENOTEMPTY, "rmdir")?;
        is(call!(SYS_unlinkat, dir.0, NAME, 0), 0, "unlinkat")?;
        is(call!(SYS_unlinkat, dir.0, OTHER, 0), 0, "unlinkat")?;
        is(call!(SYS_rmdir, DIR), 0, "rmdir")
    }),
    ("names that are not there", || {
        fails(
            call!(SYS_open, c"not/there".as_ptr(), 0, 0),
            libc::ENOENT,
            "open",
        )?;
        fails(
            call!(SYS_open, c"leaks-nothing".as_ptr(), 0, 0),
            libc::ENOENT,
            "open",
        )?;
        fails(
            call!(SYS_link, c"leaks-nothing".as_ptr(), NAME),
            libc::ENOENT,
            "link",
        )?;
        fails(call!(SYS_symlink, NOWHERE, NAME), libc::EFAULT, "symlink")
    }),
    ("a mount that goes while a file in it is open", || {
        let pid = child(|| {
            call!(SYS_unshare, libc::CLONE_NEWNS);
            call!(
                SYS_mount,
                c"none".as_ptr(),
                c"/".as_ptr(),
                0,
                libc::MS_REC | libc::MS_PRIVATE,
                0
            );
            call!(
                SYS_mount,
                c"none".as_ptr(),
                c"/tmp".as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                0
            );
            let file = call!(SYS_open, c"/tmp/left".as_ptr(), RW, 0o600);
            call!(SYS_umount2, c"/tmp".as_ptr(), libc::MNT_DETACH);
            call!(SYS_write, file, NAME, 4);
        })?;
        wait(pid).map(drop)
    }),
    ("mounts that are not made", || {
        let context = Fd::new(call!(SYS_fsopen, c"tmpfs".as_ptr(), 0), "fsopen")?;
        is(
            call!(
                SYS_fsconfig,
                context.0,
                1,
                c"size".as_ptr(),
                c"1M".as_ptr(),
                0
            ),
            0,
            "fsconfig",
        )?;
        is(
            call!(SYS_fsconfig, context.0, 6, 0, 0, 0),
            0,
            "fsconfig create",
        )?;
        drop(Fd::new(call!(SYS_fsmount, context.0, 0, 0), "fsmount")?);
        drop(Fd::new(
            call!(SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), 1),
            "open_tree",
        )?);
        Ok(())
    }),
    ("terminals", || {
        let master = open(c"/dev/ptmx".as_ptr(), libc::O_RDWR | libc::O_NOCTTY)?;
        let (mut number, unlocked) = (0i32, 0i32);
        is(
            call!(SYS_ioctl, master.0, libc::TIOCGPTN, &raw mut number),
            0,
            "TIOCGPTN",
        )?;
        is(
            call!(SYS_ioctl, master.0, libc::TIOCSPTLCK, &raw const unlocked),
            0,
            "TIOCSPTLCK",
        )?;
        let name = std::ffi::CString::new(format!("/dev/pts/{number}"))?;
        let pid = child(|| {
            call!(SYS_setsid);
            call!(SYS_open, name.as_ptr(), libc::O_RDWR, 0);
            call!(SYS_pause);
        })?;
        kill_waiting(pid)
    }),
    ("files of processes", || {
        let pid = child(|| _ = call!(SYS_pause))?;
        for name in ["maps", "status", "fd", "task", "mountinfo", "environ"] {
            let _ = std::fs::read(format!("/proc/{pid}/{name}"));
        }
        let held = File::open(format!("/proc/{pid}/maps"))?;
        kill_waiting(pid)?;
        drop(held);
        Ok(())
    }),
    ("calls on files that fail at the last moment", || {
        let file = open(NAME, RW)?;
        fails(call!(SYS_fstat, file.0, NOWHERE), libc::EFAULT, "fstat")?;
        fails(
            call!(
                SYS_getdents64,
                open(c".".as_ptr(), libc::O_DIRECTORY)?.0,
                NOWHERE,
                4096
            ),
            libc::EFAULT,
            "getdents64",
        )?;
        fails(
            call!(
                SYS_fsetxattr,
                file.0,
                c"trusted.leaks".as_ptr(),
                NOWHERE,
                400,
                0
            ),
            libc::EFAULT,
            "fsetxattr",
        )?;
        fails(
            call!(
                SYS_name_to_handle_at,
                file.0,
                c"".as_ptr(),
                NOWHERE,
                NOWHERE,
                0x1000
            ),
            libc::EFAULT,
            "a handle",
        )?;
        fails(
            call!(SYS_readlink, c"/proc/self/exe".as_ptr(), NOWHERE, 100),
            libc::EFAULT,
            "readlink",
        )?;
        let vector = libc::iovec {
            iov_base: ptr::without_provenance_mut(NOWHERE),
            iov_len: 100_000,
        };
        fails(
            call!(SYS_writev, file.0, &raw const vector, 1),
            libc::EFAULT,
            "writev",
        )?;
        fails(
            call!(SYS_writev, file.0, NOWHERE, 30),
            libc::EFAULT,
            "writev",
        )?;
        unlink(NAME)
    }),
];

fn lock(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: 0,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

pub const LOCKS: &[Deed] = &[
    ("locks of a file that is removed", || {
        let file = open(NAME, RW)?;
        is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
        is(call!(SYS_flock, file.0, libc::LOCK_SH), 0, "flock")?;
        let (first, second) = (lock(libc::F_WRLCK, 0, 10), lock(libc::F_RDLCK, 20, 5));
        is(
            call!(SYS_fcntl, file.0, libc::F_SETLK, &raw const first),
            0,
            "F_SETLK",
        )?;
        is(
            call!(SYS_fcntl, file.0, libc::F_OFD_SETLK, &raw const second),
            0,
            "F_OFD_SETLK",
        )?;
        unlink(NAME)
    }),
    ("a lock that is given back", || {
        let file = open(NAME, RW)?;
        is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
        is(call!(SYS_flock, file.0, libc::LOCK_UN), 0, "flock")?;
        let none = lock(libc::F_UNLCK, 0, 0);
        is(
            call!(SYS_fcntl, file.0, libc::F_SETLK, &raw const none),
            0,
            "F_SETLK",
        )?;
        unlink(NAME)
    }),
    ("locks that are refused", || {
        let (file, other) = (open(NAME, RW)?, open(NAME, RW)?);
        is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
        fails(
            call!(SYS_flock, other.0, libc::LOCK_SH | libc::LOCK_NB),
            libc::EAGAIN,
            "flock of another",
        )?;
        let all = lock(libc::F_WRLCK, 0, 0);
        is(
            call!(SYS_fcntl, file.0, libc::F_OFD_SETLK, &raw const all),
            0,
            "F_OFD_SETLK",
        )?;
        fails(
            call!(SYS_fcntl, other.0, libc::F_OFD_SETLK, &raw const all),
            libc::EAGAIN,
            "F_OFD_SETLK of another",
        )?;
        fails(
            call!(SYS_fcntl, other.0, libc::F_SETLK, NOWHERE),
            libc::EFAULT,
            "F_SETLK",
        )?;
        drop(file);
        drop(other);
        unlink(NAME)
    }),
    ("a lock that is refused on a file by itself", || {
        let file = open(NAME, RW)?;
        is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
        let pid = child(|| {
            let own = open(NAME, libc::O_RDWR);
            if let Ok(own) = own {
                call!(SYS_flock, own.0, libc::LOCK_EX | libc::LOCK_NB);
            }
        })?;
        wait(pid)?;
        unlink(NAME)
    }),
    ("who waits for a lock is killed", || {
        let file = open(NAME, RW)?;
        is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
        let all = lock(libc::F_WRLCK, 0, 0);
        is(
            call!(SYS_fcntl, file.0, libc::F_SETLK, &raw const all),
            0,
            "F_SETLK",
        )?;
        let blocked = child(|| {
            if let Ok(own) = open(NAME, libc::O_RDWR) {
                call!(SYS_flock, own.0, libc::LOCK_EX);
            }
        })?;
        kill_waiting(blocked)?;
        for command in [libc::F_SETLKW, libc::F_OFD_SETLKW] {
            let blocked = child(|| {
                if let Ok(own) = open(NAME, libc::O_RDWR) {
                    call!(SYS_fcntl, own.0, command, &raw const all);
                }
            })?;
            kill_waiting(blocked)?;
        }
        drop(file);
        unlink(NAME)
    }),
    ("who waits for a lock gets it", || {
        let file = open(NAME, RW)?;
        is(call!(SYS_flock, file.0, libc::LOCK_EX), 0, "flock")?;
        let blocked = child(|| {
            // The lock is the opening's, which both have.
            call!(SYS_close, file.0);
            if let Ok(own) = open(NAME, libc::O_RDWR) {
                call!(SYS_flock, own.0, libc::LOCK_EX);
            }
        })?;
        sleeps(blocked)?;
        drop(file);
        wait(blocked)?;
        unlink(NAME)
    }),
    ("locks of a process that is killed", || {
        drop(open(NAME, RW)?);
        let pid = child(|| {
            if let Ok(own) = open(NAME, libc::O_RDWR) {
                let all = lock(libc::F_WRLCK, 0, 0);
                call!(SYS_fcntl, own.0, libc::F_SETLK, &raw const all);
                call!(SYS_flock, own.0, libc::LOCK_EX);
                call!(SYS_pause);
            }
        })?;
        kill_waiting(pid)?;
        unlink(NAME)
    }),
    ("leases", || {
        drop(open(NAME, RW)?);
        let file = open(NAME, libc::O_RDONLY)?;
        is(
            call!(SYS_fcntl, file.0, libc::F_SETLEASE, libc::F_RDLCK),
            0,
            "F_SETLEASE",
        )?;
        unlink(NAME)
    }),
];

pub const WATCHES: &[Deed] = &[
    ("watches that are left", || {
        let group = Fd::new(call!(SYS_inotify_init1, 0), "inotify_init1")?;
        drop(open(NAME, RW)?);
        for name in [NAME, c".".as_ptr()] {
            ensure!(
                call!(SYS_inotify_add_watch, group.0, name, libc::IN_ALL_EVENTS) > 0,
                "inotify_add_watch"
            );
        }
        fails(
            call!(SYS_inotify_add_watch, group.0, NOWHERE, libc::IN_ALL_EVENTS),
            libc::EFAULT,
            "inotify_add_watch",
        )?;
        drop(open(NAME, RW)?);
        unlink(NAME)
    }),
    ("watches that are taken back", || {
        let group = Fd::new(call!(SYS_inotify_init1, 0), "inotify_init1")?;
        let watch = call!(
            SYS_inotify_add_watch,
            group.0,
            c".".as_ptr(),
            libc::IN_CREATE | libc::IN_DELETE
        );
        is(
            call!(SYS_inotify_rm_watch, group.0, watch),
            0,
            "inotify_rm_watch",
        )
    }),
    ("signals for changes of a directory", || {
        let dir = open(c".".as_ptr(), libc::O_DIRECTORY)?;
        is(
            call!(SYS_fcntl, dir.0, libc::F_NOTIFY, 0x8u32 | 0x8000_0000),
            0,
            "F_NOTIFY",
        )
    }),
    ("sets that watch each other", || {
        let sets: Vec<_> = (0..4)
            .map(|_| Fd::new(call!(SYS_epoll_create1, 0), "epoll_create1"))
            .collect::<Result<_>>()?;
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let counter = Fd::new(call!(SYS_eventfd2, 1, 0), "eventfd2")?;
        is(
            call!(
                SYS_epoll_ctl,
                sets[0].0,
                libc::EPOLL_CTL_ADD,
                counter.0,
                &raw mut event
            ),
            0,
            "EPOLL_CTL_ADD",
        )?;
        for two in sets.windows(2) {
            is(
                call!(
                    SYS_epoll_ctl,
                    two[1].0,
                    libc::EPOLL_CTL_ADD,
                    two[0].0,
                    &raw mut event
                ),
                0,
                "EPOLL_CTL_ADD of a set",
            )?;
        }
        fails(
            call!(
                SYS_epoll_ctl,
                sets[0].0,
                libc::EPOLL_CTL_ADD,
                sets[3].0,
                &raw mut event
            ),
            libc::ELOOP,
            "a ring",
        )?;
        fails(
            call!(SYS_epoll_wait, sets[3].0, NOWHERE, 1, 0),
            libc::EFAULT,
            "epoll_wait",
        )?;
        is(
            call!(SYS_epoll_wait, sets[3].0, &raw mut event, 1, 0),
            1,
            "epoll_wait",
        )
    }),
    ("what is closed, or taken out, while it is watched", || {
        let set = Fd::new(call!(SYS_epoll_create1, 0), "epoll_create1")?;
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32,
            u64: 0,
        };
        let ends: Vec<_> = [pipe(0)?, pair(libc::SOCK_STREAM)?, pair(libc::SOCK_DGRAM)?]
            .into_iter()
            .flatten()
            .collect();
        for end in &ends {
            is(
                call!(
                    SYS_epoll_ctl,
                    set.0,
                    libc::EPOLL_CTL_ADD,
                    end.0,
                    &raw mut event
                ),
                0,
                "EPOLL_CTL_ADD",
            )?;
        }
        is(
            call!(SYS_epoll_ctl, set.0, libc::EPOLL_CTL_DEL, ends[0].0, 0),
            0,
            "EPOLL_CTL_DEL",
        )?;
        is(call!(SYS_write, ends[1].0, NAME, 4), 4, "write")?;
        fails(
            call!(
                SYS_epoll_ctl,
                set.0,
                libc::EPOLL_CTL_ADD,
                ends[0].0,
                NOWHERE
            ),
            libc::EFAULT,
            "EPOLL_CTL_ADD",
        )?;
        drop(ends);
        is(
            call!(SYS_epoll_wait, set.0, &raw mut event, 1, 0),
            0,
            "epoll_wait",
        )
    }),
    ("counters and descriptors of signals", || {
        let mask = 1u64 << 9;
        let counter = Fd::new(call!(SYS_eventfd2, 5, libc::EFD_SEMAPHORE), "eventfd2")?;
        drop(Fd::new(
            call!(SYS_signalfd4, -1i32, &raw const mask, 8, 0),
            "signalfd4",
        )?);
        fails(
            call!(SYS_signalfd4, -1i32, NOWHERE, 8, 0),
            libc::EFAULT,
            "signalfd4",
        )?;
        fails(call!(SYS_read, counter.0, NOWHERE, 8), libc::EFAULT, "read")
    }),
];
