//! Numbers below `/proc/sys` that the superuser changes: what they take, and what they do.

use std::ffi::CString;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::calls::{Fd, call, fails, is, pipe};
use crate::credentials::{become_user, in_child};
use crate::text_busy::Place;
use crate::{Check, checked, meminfo};

pub const CHECKS: &[(&str, Check)] = &[
    ("settings-of-pipes", pipes),
    ("settings-of-posix-queues", posix_queues),
    ("settings-of-messages", messages),
    ("settings-of-segments", segments),
    ("settings-of-semaphores", semaphores),
    ("settings-of-open-files", open_files),
    ("settings-of-threads", threads),
    ("settings-next-numbers", next_numbers),
    ("settings-of-process-numbers", process_numbers),
    ("settings-of-mappings", mappings),
    ("settings-of-descriptors", descriptors),
    ("settings-of-commitment", commitment),
    ("settings-of-watches", watches),
    ("settings-that-are-kept", kept),
    ("settings-of-commitment-in-kbytes", commitment_in_kbytes),
    ("settings-of-leases", leases),
    ("settings-of-turns", turns),
    ("settings-of-terminals", terminals),
    ("settings-of-mounts", mounts),
];

const NOBODY: u32 = 65534;
const PAGE: usize = 4096;

/// A setting below `/proc/sys` that is what it was when this is dropped.
pub struct Setting {
    path: String,
    before: String,
}

impl Setting {
    pub fn new(name: &str) -> Result<Self> {
        let path = format!("/proc/sys/{name}");
        let before = fs::read_to_string(&path).with_context(|| path.clone())?;
        Ok(Self { path, before })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes a value, which is then there.
    pub fn set(&self, value: &str) -> Result<()> {
        fs::write(&self.path, value).with_context(|| format!("{value} to {}", self.path))?;
        let now = self.get()?;
        ensure!(now == value, "{} is {now}, not {value}", self.path);
        Ok(())
    }

    pub fn get(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.path)?.trim().to_owned())
    }

    /// Checks that values are refused, and nobody else writes any.
    pub fn refuses(&self, values: &[&str]) -> Result<()> {
        let write = |value: &str| {
            let error = fs::write(&self.path, value).err();
            error.and_then(|error| error.raw_os_error())
        };
        for value in values {
            let error = write(value);
            ensure!(
                error == Some(libc::EINVAL),
                "{value:?} to {}: {error:?}",
                self.path
            );
        }
        in_child(|| {
            become_user(NOBODY)?;
            let error = write("1");
            ensure!(
                error == Some(libc::EACCES),
                "{}, by nobody: {error:?}",
                self.path
            );
            Ok(())
        })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}

/// Settings of a namespace of System V objects and queues of the caller's own.
pub fn of_own_objects(check: impl FnOnce() -> Result<()>) -> Result<()> {
    in_child(|| {
        // SAFETY: a number.
        checked(unsafe { libc::unshare(libc::CLONE_NEWIPC) })?;
        check()
    })
}

fn pipes() -> Result<()> {
    let most = Setting::new("fs/pipe-max-size")?;
    most.refuses(&["-1", "x", "2147483649"])?;
    fs::write(&most.path, "5000")?;
    ensure!(most.get()? == "8192", "5000 becomes {}", most.get()?);
    let [reader, _writer] = pipe(0)?;
    let resize = |bytes: usize| call!(SYS_fcntl, reader.0, libc::F_SETPIPE_SZ, bytes);
    is(resize(65_536), 65_536, "root grows a pipe")?;
    is(resize(4096), 4096, "and shrinks it")?;
    in_child(|| {
        become_user(NOBODY)?;
        is(
            resize(8192),
            8192,
            "nobody grows a pipe as far as is allowed",
        )?;
        fails(resize(8193), libc::EPERM, "and beyond")
    })
}

/// Opens a POSIX queue that is to hold `messages` of `size` bytes, or as many as is usual.
fn open_queue(name: &str, limits: Option<(i64, i64)>) -> Result<i64> {
    let name = CString::new(name)?;
    let attributes = limits.map(|(messages, size)| [0, messages, size, 0, 0, 0, 0, 0i64]);
    let at = attributes
        .as_ref()
        .map_or(std::ptr::null(), |given| given.as_ptr());
    Ok(call!(
        SYS_mq_open,
        name.as_ptr(),
        libc::O_CREAT | libc::O_RDWR,
        0o600,
        at
    ))
}

fn posix_queues() -> Result<()> {
    of_own_objects(|| {
        let [queues, messages, usual, size] = [
            "fs/mqueue/queues_max",
            "fs/mqueue/msg_max",
            "fs/mqueue/msg_default",
            "fs/mqueue/msgsize_max",
        ]
        .map(Setting::new);
        let (queues, messages, usual, size) = (queues?, messages?, usual?, size?);
        queues.refuses(&["x", "2147483648"])?;
        messages.refuses(&["0", "65537"])?;
        size.refuses(&["127", "16777217"])?;
        queues.set("2")?;
        messages.set("20")?;
        usual.set("7")?;
        size.set("200")?;
        in_child(|| {
            become_user(NOBODY)?;
            let fd = Fd::new(open_queue("settings-a", Some((20, 200)))?, "as is allowed")?;
            let mut now = [0i64; 8];
            is(
                call!(SYS_mq_getsetattr, fd.0, 0, now.as_mut_ptr()),
                0,
                "mq_getattr",
            )?;
            ensure!(now[1..3] == [20, 200], "{now:?}");
            fails(
                open_queue("settings-b", Some((21, 200)))?,
                libc::EINVAL,
                "more messages",
            )?;
            fails(
                open_queue("settings-b", Some((20, 201)))?,
                libc::EINVAL,
                "longer ones",
            )?;
            let fd = Fd::new(open_queue("settings-b", None)?, "what is usual")?;
            is(
                call!(SYS_mq_getsetattr, fd.0, 0, now.as_mut_ptr()),
                0,
                "mq_getattr",
            )?;
            ensure!(now[1..3] == [7, 200], "{now:?}");
            fails(
                open_queue("settings-c", None)?,
                libc::ENOSPC,
                "a third queue",
            )
        })?;
        Fd::new(
            open_queue("settings-c", Some((30, 300)))?,
            "root's third queue",
        )
        .map(drop)
    })
}

/// `struct msqid_ds`, in words: bytes that the queue holds are the 13th.
type Msqid = [u64; 15];

fn messages() -> Result<()> {
    of_own_objects(|| {
        let [message, queue, queues] =
            ["kernel/msgmax", "kernel/msgmnb", "kernel/msgmni"].map(Setting::new);
        let (message, queue, queues) = (message?, queue?, queues?);
        message.refuses(&["-1", "2147483648"])?;
        queues.refuses(&["-1", "32769"])?;
        message.set("100")?;
        queue.set("150")?;
        queues.set("2")?;
        let get = || call!(SYS_msgget, libc::IPC_PRIVATE, 0o600);
        let id = get();
        ensure!(id >= 0, "msgget: {id}");
        let text = [1u64; 32];
        let send = |len: usize| call!(SYS_msgsnd, id, text.as_ptr(), len, libc::IPC_NOWAIT);
        fails(send(101), libc::EINVAL, "a message of 101 bytes")?;
        is(send(100), 0, "one of 100")?;
        fails(send(51), libc::EAGAIN, "more than the queue holds")?;
        is(send(50), 0, "as much as it holds")?;
        let second = get();
        ensure!(second >= 0, "a second queue: {second}");
        fails(get(), libc::ENOSPC, "a third queue")?;
        for id in [id, second] {
            is(call!(SYS_msgctl, id, libc::IPC_RMID, 0), 0, "IPC_RMID")?;
        }
        Ok(())
    })
}

fn segments() -> Result<()> {
    of_own_objects(|| {
        let [largest, segments, pages] =
            ["kernel/shmmax", "kernel/shmmni", "kernel/shmall"].map(Setting::new);
        let (largest, segments, pages) = (largest?, segments?, pages?);
        ensure!(pages.before == "18446744073692774399\n", "{}", pages.before);
        largest.set("8192")?;
        segments.set("2")?;
        let get = |size: usize| call!(SYS_shmget, libc::IPC_PRIVATE, size, 0o600);
        fails(get(8193), libc::EINVAL, "a segment that is too large")?;
        let ids = [get(8192), get(1)];
        ensure!(ids.iter().all(|id| *id >= 0), "segments: {ids:?}");
        fails(get(1), libc::ENOSPC, "a third one")?;
        segments.set("10")?;
        // Three pages are there, whoever has touched them.
        pages.set("4")?;
        fails(get(4097), libc::ENOSPC, "more pages than there may be")?;
        let last = get(4096);
        ensure!(last >= 0, "the last page: {last}");
        fails(get(1), libc::ENOSPC, "one page more")?;
        for id in [ids[0], ids[1], last] {
            is(call!(SYS_shmctl, id, libc::IPC_RMID, 0), 0, "IPC_RMID")?;
        }
        Ok(())
    })
}

fn semaphores() -> Result<()> {
    of_own_objects(|| {
        let limits = Setting::new("kernel/sem")?;
        limits.refuses(&["x", "10 x"])?;
        let many = fs::write(&limits.path, "10 20 5 32769").err();
        let error = many.and_then(|error| error.raw_os_error());
        ensure!(error == Some(libc::ERANGE), "32,769 sets: {error:?}");
        limits.set("10\t20\t5\t3")?;
        // Fewer numbers change the first ones.
        fs::write(&limits.path, "11")?;
        ensure!(limits.get()? == "11\t20\t5\t3", "{}", limits.get()?);
        let get = |count: i32| call!(SYS_semget, libc::IPC_PRIVATE, count, 0o600);
        fails(get(12), libc::EINVAL, "a set that is too large")?;
        let first = get(11);
        ensure!(first >= 0, "the largest set: {first}");
        fails(get(10), libc::ENOSPC, "more than there may be")?;
        let rest = [get(8), get(1)];
        ensure!(rest.iter().all(|id| *id >= 0), "{rest:?}");
        fails(get(1), libc::ENOSPC, "a fourth set")?;
        let nothing = libc::sembuf {
            sem_num: 0,
            sem_op: 0,
            sem_flg: 0,
        };
        let operations = [nothing; 6];
        let operate = |count: usize| call!(SYS_semop, first, operations.as_ptr(), count);
        is(operate(5), 0, "as many operations as there may be")?;
        fails(operate(6), libc::E2BIG, "one more")?;
        for id in [first, rest[0], rest[1]] {
            is(call!(SYS_semctl, id, 0, libc::IPC_RMID), 0, "IPC_RMID")?;
        }
        Ok(())
    })
}

/// `file-nr`: open files, and how many there may be.
fn file_nr() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/sys/fs/file-nr")?;
    let numbers = text
        .split_whitespace()
        .map(|number| Ok(number.parse()?))
        .collect::<Result<Vec<u64>>>()?;
    ensure!(numbers.len() == 3 && numbers[1] == 0, "{text}");
    Ok((numbers[0], numbers[2]))
}

fn open_files() -> Result<()> {
    /// Files by which Linux may be mistaken at first: it counts for each processor.
    const MARGIN: u64 = 1000;
    let most = Setting::new("fs/file-max")?;
    most.refuses(&["-1", "x", "9223372036854775808"])?;
    most.set("9223372036854775807")?;
    drop(most);
    let most = Setting::new("fs/file-max")?;
    ensure!(most.get()?.parse::<u64>()? >= 8192, "{}", most.get()?);
    in_child(|| {
        let limits = [8192u64; 2];
        let set = call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limits.as_ptr(), 0);
        is(set, 0, "RLIMIT_NOFILE")?;
        let (before, _) = file_nr()?;
        most.set(&(before + MARGIN).to_string())?;
        ensure!(file_nr()?.1 == before + MARGIN, "{:?}", file_nr()?);
        let open = || call!(SYS_openat, libc::AT_FDCWD, c"/".as_ptr(), libc::O_RDONLY);
        let mut files = Vec::new();
        let error = loop {
            ensure!((files.len() as u64) < 3 * MARGIN, "no end of files");
            // What root does is not limited.
            is(call!(SYS_setresuid, 0, NOBODY, 0), 0, "setresuid")?;
            let file = open();
            if file < 0 {
                break file;
            }
            is(call!(SYS_setresuid, 0, 0, 0), 0, "setresuid")?;
            files.push(Fd(file as i32));
        };
        fails(error, libc::ENFILE, "one file more")?;
        let opened = files.len() as u64;
        ensure!(opened + 100 >= MARGIN, "{opened} files");
        let mut fds = [-1i32; 2];
        fails(
            call!(SYS_pipe2, fds.as_mut_ptr(), 0),
            libc::ENFILE,
            "a pipe",
        )?;
        fails(call!(SYS_eventfd2, 0, 0), libc::ENFILE, "an eventfd")?;
        fails(call!(SYS_epoll_create1, 0), libc::ENFILE, "an epoll set")?;
        let socket = call!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0);
        fails(socket, libc::ENFILE, "a socket")?;
        let name = c"/tmp/settings-open-files";
        let flags = libc::O_CREAT | libc::O_RDWR;
        let made = call!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, 0o600);
        fails(made, libc::ENFILE, "a new file")?;
        let access = call!(SYS_access, name.as_ptr(), libc::F_OK);
        fails(access, libc::ENOENT, "what was not made")?;
        // What is open is shared as ever.
        drop(Fd::new(call!(SYS_dup, files[0].0), "dup")?);
        is(call!(SYS_setresuid, 0, 0, 0), 0, "setresuid")?;
        let of_root = Fd::new(open(), "a file of root's")?;
        drop((of_root, files));
        most.set(most.before.trim())?;
        let (after, _) = file_nr()?;
        ensure!(after < before + 100, "{before} files, then {after}");
        Ok(())
    })
}

fn threads() -> Result<()> {
    let most = Setting::new("kernel/threads-max")?;
    most.refuses(&["0", "-1", "1073741824", "x"])?;
    let fork = || {
        // SAFETY: this program has one thread; the child ends at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        if pid < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error());
        }
        Ok(call!(SYS_wait4, pid, 0, 0, 0))
    };
    ensure!(fork().is_ok(), "a child");
    most.set("1")?;
    let refused = fork();
    most.set(most.before.trim())?;
    ensure!(
        refused == Err(Some(libc::EAGAIN)),
        "one of one: {refused:?}"
    );
    ensure!(fork().is_ok(), "a child again");
    Ok(())
}

/// The next object's number can be asked for; `*_STAT` takes indexes and whole numbers.
fn next_numbers() -> Result<()> {
    const STAT: usize = 11;
    of_own_objects(|| {
        // Sequence 5, index 7.
        let wanted = 5i64 << 15 | 7;
        for kind in ["msg", "sem", "shm"] {
            let next = Setting::new(&format!("kernel/{kind}_next_id"))?;
            ensure!(next.before == "-1\n", "{}", next.before);
            next.set(&wanted.to_string())?;
            let get = || match kind {
                "msg" => call!(SYS_msgget, libc::IPC_PRIVATE, 0o600),
                "sem" => call!(SYS_semget, libc::IPC_PRIVATE, 1, 0o600),
                _ => call!(SYS_shmget, libc::IPC_PRIVATE, 1, 0o600),
            };
            let first = get();
            is(first, wanted, &format!("the next {kind}"))?;
            ensure!(next.get()? == "-1", "{}", next.get()?);
            // Who has the number keeps it.
            next.set(&wanted.to_string())?;
            let second = get();
            is(second, wanted + 1, &format!("the one after it of {kind}"))?;
            let third = get();
            ensure!((0..1 << 15).contains(&third), "an ordinary {kind}: {third}");
            for id in [first, second, third] {
                is(
                    match kind {
                        "msg" => call!(SYS_msgctl, id, libc::IPC_RMID, 0),
                        "sem" => call!(SYS_semctl, id, 0, libc::IPC_RMID),
                        _ => call!(SYS_shmctl, id, libc::IPC_RMID, 0),
                    },
                    0,
                    "IPC_RMID",
                )?;
            }
            drop(next);
        }
        let next = Setting::new("kernel/msg_next_id")?;
        next.set(&wanted.to_string())?;
        let id = call!(SYS_msgget, libc::IPC_PRIVATE, 0o600);
        let mut state: Msqid = [0; 15];
        for by in [7, id, 9 << 15 | 7] {
            let stat = call!(SYS_msgctl, by, STAT, state.as_mut_ptr());
            is(stat, id, &format!("MSG_STAT of {by}"))?;
        }
        fails(
            call!(SYS_msgctl, 8, STAT, state.as_mut_ptr()),
            libc::EINVAL,
            "another index",
        )?;
        for command in [STAT, libc::IPC_INFO as usize, 12] {
            fails(
                call!(SYS_msgctl, -1i64, command, state.as_mut_ptr()),
                libc::EINVAL,
                "a negative number",
            )?;
        }
        is(call!(SYS_msgctl, id, libc::IPC_RMID, 0), 0, "IPC_RMID")
    })
}

fn process_numbers() -> Result<()> {
    let most = Setting::new("kernel/pid_max")?;
    most.refuses(&["300", "4194305", "-1"])?;
    most.set("40000")?;
    let last = Setting::new("kernel/ns_last_pid")?;
    fs::write(&last.path, "39990")?;
    let mut seen = Vec::new();
    for _ in 0..20 {
        // SAFETY: this program has one thread; the child ends at once.
        let pid = checked(unsafe { libc::fork() })?;
        if pid == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        is(call!(SYS_wait4, pid, 0, 0, 0), pid.into(), "a child")?;
        seen.push(pid);
    }
    ensure!(
        seen.iter().any(|pid| *pid > 32_768) && seen.iter().all(|pid| *pid < 40_000),
        "{seen:?}"
    );
    // Beyond the highest number the lower ones begin again.
    ensure!(seen.iter().any(|pid| *pid < 32_768), "{seen:?}");
    in_child(|| {
        become_user(NOBODY)?;
        let error = fs::write(&last.path, "1")
            .err()
            .and_then(|error| error.raw_os_error());
        ensure!(
            error == Some(libc::EPERM),
            "ns_last_pid, by nobody: {error:?}"
        );
        Ok(())
    })
}

fn mappings() -> Result<()> {
    let most = Setting::new("vm/max_map_count")?;
    most.refuses(&["-1", "2147483648"])?;
    in_child(|| {
        let now = fs::read_to_string("/proc/self/maps")?.lines().count();
        most.set(&(now + 20).to_string())?;
        let mut made = 0;
        let error = loop {
            // Of two kinds, so that neighbours stay two.
            let prot = if made % 2 == 0 {
                libc::PROT_READ
            } else {
                libc::PROT_NONE
            };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = call!(SYS_mmap, 0, PAGE, prot, flags, -1i64, 0);
            if at < 0 {
                break at;
            }
            made += 1;
            ensure!(made < 1000, "{made} mappings");
        };
        // Memory to go on with, and be it for the message.
        fs::write(&most.path, &most.before)?;
        fails(error, libc::ENOMEM, "one mapping more")?;
        ensure!((10..=30).contains(&made), "{made} mappings");
        Ok(())
    })
}

fn descriptors() -> Result<()> {
    let most = Setting::new("fs/nr_open")?;
    most.refuses(&["63", "-1"])?;
    in_child(|| {
        let limit = |hard: u64| {
            let limits = [1024, hard];
            call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limits.as_ptr(), 0)
        };
        most.set("2048")?;
        is(limit(2048), 0, "a limit as high as is allowed")?;
        fails(limit(2049), libc::EPERM, "a higher one")?;
        Ok(())
    })?;
    most.set("1048576")?;
    in_child(|| {
        let limits = [20_000u64, 20_000];
        let set = call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limits.as_ptr(), 0);
        is(set, 0, "a high limit")?;
        most.set("2048")?;
        let high = || call!(SYS_fcntl, 0, libc::F_DUPFD, 15_000);
        fails(
            call!(SYS_dup2, 0, 15_000),
            libc::EBADF,
            "a number that is too high",
        )?;
        fails(high(), libc::EMFILE, "one that is not given, either")?;
        most.set("1048576")?;
        is(
            call!(SYS_dup2, 0, 15_000),
            15_000,
            "a number that is allowed again",
        )?;
        is(high(), 15_001, "and one that is given")
    })
}

fn commitment() -> Result<()> {
    let (mode, ratio) = (
        Setting::new("vm/overcommit_memory")?,
        Setting::new("vm/overcommit_ratio")?,
    );
    mode.refuses(&["3", "-1"])?;
    ratio.refuses(&["x"])?;
    let all = meminfo::row("MemTotal")?;
    let ask = |flags: i32| {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_ANONYMOUS | flags;
        let at = call!(SYS_mmap, 0, all, prot, flags, -1i64, 0);
        if at > 0 {
            call!(SYS_munmap, at, all);
        }
        at.min(0)
    };
    let kinds = [
        libc::MAP_PRIVATE,
        libc::MAP_PRIVATE | libc::MAP_NORESERVE,
        libc::MAP_SHARED,
    ];
    ratio.set("50")?;
    mode.set("2")?;
    let (limit, committed) = (meminfo::row("CommitLimit")?, meminfo::row("Committed_AS")?);
    ensure!(
        limit.abs_diff(all / 2) < all / 8 && committed < limit,
        "{committed} of {limit} bytes are promised, of {all}"
    );
    let strict = kinds.map(ask);
    ratio.set("400")?;
    let lenient = kinds.map(ask);
    mode.set("1")?;
    ratio.set("50")?;
    let any = kinds.map(ask);
    ensure!(
        strict == [-i64::from(libc::ENOMEM); 3] && lenient == [0; 3] && any == [0; 3],
        "strict {strict:?}, with more {lenient:?}, with any {any:?}"
    );
    Ok(())
}

fn watches() -> Result<()> {
    let most = Setting::new("fs/inotify/max_queued_events")?;
    most.refuses(&["-1", "x"])?;
    let place = Place::new("settings-watches")?;
    most.set("3")?;
    let group = Fd::new(call!(SYS_inotify_init1, libc::IN_NONBLOCK), "inotify_init1")?;
    let path = CString::new(place.0.to_str().context("the directory's name")?)?;
    let watch = call!(
        SYS_inotify_add_watch,
        group.0,
        path.as_ptr(),
        libc::IN_CREATE
    );
    ensure!(watch > 0, "inotify_add_watch: {watch}");
    for name in 0..8 {
        fs::write(place.0.join(name.to_string()), "")?;
    }
    let mut events = [0u32; 256];
    let n = call!(SYS_read, group.0, events.as_mut_ptr(), size_of_val(&events));
    // Each of the first three has 16 bytes of a name; the last one has none.
    is(n, 3 * 32 + 16, "events")?;
    ensure!(events[25] == libc::IN_Q_OVERFLOW, "{:x?}", &events[..28]);
    Ok(())
}

/// Settings that steer nothing in a machine without swap and disks, or nothing that could be seen
/// from here: what they take is there, and what they do not take is refused.
fn kept() -> Result<()> {
    const OF_32_BITS: &[&str] = &["x", "2147483648"];
    const WITHOUT_SIGN: &[&str] = &["x", "-1", "2147483648"];
    let all: [(&str, &[&str], &[&str]); 26] = [
        ("vm/swappiness", &["0", "200"], &["201", "-1", "x"]),
        ("vm/page-cluster", &["0", "70000"], WITHOUT_SIGN),
        ("vm/laptop_mode", &["-1", "5"], OF_32_BITS),
        ("vm/dirty_expire_centisecs", &["0", "70000"], WITHOUT_SIGN),
        ("vm/dirty_writeback_centisecs", &["-1", "0"], OF_32_BITS),
        ("vm/dirtytime_expire_seconds", &["0", "70000"], WITHOUT_SIGN),
        ("vm/vfs_cache_pressure", &["0", "1000"], WITHOUT_SIGN),
        ("vm/zone_reclaim_mode", &["0", "7"], WITHOUT_SIGN),
        ("vm/stat_interval", &["-1", "5"], OF_32_BITS),
        ("vm/admin_reserve_kbytes", &["0", "9000"], &["x", "-1"]),
        ("vm/panic_on_oom", &["0"], &["3", "-1", "x"]),
        ("vm/oom_kill_allocating_task", &["-1", "1"], OF_32_BITS),
        ("vm/min_free_kbytes", &["46000", "50000"], WITHOUT_SIGN),
        ("kernel/numa_balancing", &["0", "3"], &["5", "-1", "x"]),
        ("kernel/sched_child_runs_first", &["1", "-1"], OF_32_BITS),
        ("kernel/pty/reserve", &["0", "5"], WITHOUT_SIGN),
        ("kernel/pty/max", &["2000"], WITHOUT_SIGN),
        ("kernel/printk_ratelimit", &["-1", "7"], OF_32_BITS),
        ("kernel/printk_ratelimit_burst", &["-1", "7"], OF_32_BITS),
        ("kernel/auto_msgmni", &["0"], &["2", "-1", "x"]),
        ("fs/lease-break-time", &["-1", "7"], OF_32_BITS),
        ("fs/leases-enable", &["-1", "1"], OF_32_BITS),
        ("fs/dir-notify-enable", &["-1", "1"], OF_32_BITS),
        ("fs/mount-max", &["90000"], &["0", "-1", "x"]),
        ("user/max_inotify_instances", &["64"], WITHOUT_SIGN),
        ("user/max_inotify_watches", &["64"], WITHOUT_SIGN),
    ];
    for (name, taken, refused) in all {
        let setting = Setting::new(name)?;
        setting.refuses(refused)?;
        for value in taken {
            setting.set(value)?;
        }
    }
    // The same in two units: the one counts that was written last.
    for (ratio, bytes, least) in [
        ("vm/dirty_ratio", "vm/dirty_bytes", "8192"),
        (
            "vm/dirty_background_ratio",
            "vm/dirty_background_bytes",
            "1",
        ),
    ] {
        let (ratio, bytes) = (Setting::new(ratio)?, Setting::new(bytes)?);
        ratio.refuses(&["101", "-1", "x"])?;
        bytes.refuses(&["0", "-1", "x"])?;
        bytes.set(least)?;
        ensure!(ratio.get()? == "0", "{} is {}", ratio.path, ratio.get()?);
        ratio.set("11")?;
        ensure!(bytes.get()? == "0", "{} is {}", bytes.path, bytes.get()?);
    }
    let instances = Setting::new("user/max_inotify_instances")?;
    instances.set("77")?;
    let same = Setting::new("fs/inotify/max_user_instances")?;
    ensure!(same.get()? == "77", "max_user_instances is {}", same.get()?);
    for name in ["urandom_min_reseed_secs", "write_wakeup_threshold"] {
        let setting = Setting::new(&format!("kernel/random/{name}"))?;
        fs::write(&setting.path, "1")?;
        ensure!(setting.get()? == setting.before.trim(), "{name} changed");
    }
    Ok(())
}

/// The limit of what programs may ask for is a number of bytes or a part of memory, whichever was
/// written last.
fn commitment_in_kbytes() -> Result<()> {
    let ratio = Setting::new("vm/overcommit_ratio")?;
    let kbytes = Setting::new("vm/overcommit_kbytes")?;
    kbytes.refuses(&["-1", "x"])?;
    kbytes.set("1000000")?;
    let limit = meminfo::row("CommitLimit")?;
    ensure!(
        limit == 1_000_000 << 10 && ratio.get()? == "0",
        "the limit is {limit}, overcommit_ratio {}",
        ratio.get()?
    );
    let mode = Setting::new("vm/overcommit_memory")?;
    mode.set("2")?;
    let ask = |bytes: usize| {
        let flags = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
        let at = call!(SYS_mmap, 0, bytes, libc::PROT_WRITE, flags, -1i64, 0);
        if at > 0 {
            call!(SYS_munmap, at, bytes);
        }
        at.min(0)
    };
    let (more, less) = (ask(1_000_000 << 10), ask(500_000 << 10));
    mode.set("0")?;
    fails(more, libc::ENOMEM, "all of it and what is promised already")?;
    is(less, 0, "half of it")?;
    ratio.set("60")?;
    ensure!(
        kbytes.get()? == "0",
        "overcommit_kbytes is {}",
        kbytes.get()?
    );
    Ok(())
}

/// Leases are broken after the time that is set, and none can be taken, nor a directory watched,
/// when that is forbidden.
fn leases() -> Result<()> {
    let place = Place::new("settings-leases")?;
    let path = place.0.join("file");
    fs::write(&path, "x")?;
    let name = CString::new(path.to_str().context("the file's name")?)?;
    let open = |flags: i32| call!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags);
    let (time, enabled) = (
        Setting::new("fs/lease-break-time")?,
        Setting::new("fs/leases-enable")?,
    );
    let holder = Fd::new(open(libc::O_RDONLY), "the file")?;
    // Its holder does not react.
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let take = || call!(SYS_fcntl, holder.0, libc::F_SETLEASE, libc::F_RDLCK);
    enabled.set("0")?;
    fails(take(), libc::EINVAL, "a lease that is forbidden")?;
    enabled.set("1")?;
    is(take(), 0, "a lease")?;
    time.set("1")?;
    drop(Fd::new(open(libc::O_WRONLY), "who breaks it")?);
    let left = call!(SYS_fcntl, holder.0, libc::F_GETLEASE);
    is(left, libc::F_UNLCK.into(), "what is left of it")?;
    let watching = Setting::new("fs/dir-notify-enable")?;
    let directory = CString::new(place.0.to_str().context("the directory's name")?)?;
    let flags = libc::O_RDONLY;
    let directory = call!(SYS_openat, libc::AT_FDCWD, directory.as_ptr(), flags);
    let directory = Fd::new(directory, "the directory")?;
    let watch = || {
        call!(
            SYS_fcntl,
            directory.0,
            libc::F_NOTIFY,
            crate::leases::DN_CREATE
        )
    };
    watching.set("0")?;
    fails(watch(), libc::EINVAL, "a watch that is forbidden")?;
    watching.set("1")?;
    is(watch(), 0, "a watch")
}

/// How long round-robin threads run in turn.
fn turns() -> Result<()> {
    let slice = Setting::new("kernel/sched_rr_timeslice_ms")?;
    ensure!(slice.get()? == "100", "{}", slice.get()?);
    slice.refuses(&["x", "2147483648"])?;
    in_child(|| {
        let priority = 1i32;
        let policy = libc::SCHED_RR;
        let set = call!(SYS_sched_setscheduler, 0, policy, &raw const priority);
        is(set, 0, "SCHED_RR")?;
        let interval = |written: &str, seconds: i64, nanoseconds: i64| {
            fs::write(&slice.path, written)?;
            let mut time = [0i64; 2];
            let got = call!(SYS_sched_rr_get_interval, 0, time.as_mut_ptr());
            is(got, 0, "sched_rr_get_interval")?;
            ensure!(time == [seconds, nanoseconds], "{written}: {time:?}");
            Ok(())
        };
        interval("20", 0, 20_000_000)?;
        interval("5000", 5, 0)?;
        interval("0", 0, 100_000_000)?;
        ensure!(slice.get()? == "100", "0 becomes {}", slice.get()?);
        interval("-1", 0, 100_000_000)
    })
}

fn terminals() -> Result<()> {
    let open = || {
        call!(
            SYS_openat,
            libc::AT_FDCWD,
            c"/dev/ptmx".as_ptr(),
            libc::O_RDWR
        )
    };
    let first = Fd::new(open(), "a pair")?;
    let most = Setting::new("kernel/pty/max")?;
    most.set("1")?;
    let second = open();
    most.set(most.before.trim())?;
    fails(second, libc::ENOSPC, "one of one")?;
    drop(first);
    Fd::new(open(), "a pair again").map(drop)
}

fn mounts() -> Result<()> {
    in_child(|| {
        is(call!(SYS_unshare, libc::CLONE_NEWNS), 0, "unshare")?;
        let count = fs::read_to_string("/proc/self/mountinfo")?.lines().count();
        let place = Place::new("settings-mounts")?;
        let at = CString::new(place.0.to_str().context("the directory's name")?)?;
        let most = Setting::new("fs/mount-max")?;
        most.set(&count.to_string())?;
        let kind = c"tmpfs".as_ptr();
        let mount = || call!(SYS_mount, kind, at.as_ptr(), kind, 0, 0);
        let refused = mount();
        // The root that is not shown counts on Linux.
        most.set(&(count + 2).to_string())?;
        let allowed = mount();
        fails(refused, libc::ENOSPC, "one mount more")?;
        is(allowed, 0, "one that is allowed")?;
        is(call!(SYS_umount2, at.as_ptr(), 0), 0, "umount2")
    })
}
