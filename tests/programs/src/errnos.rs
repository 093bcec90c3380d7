//! Calls that refuse, and with which error where several would do.

use std::ffi::CString;
use std::fs;

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};

pub const CHECKS: &[(&str, Check)] = &[
    ("errnos-names", names),
    ("errnos-devices", devices),
    ("errnos-positions", positions),
    ("errnos-memory-files", memory_files),
    ("errnos-clones-of-files", clones),
    ("errnos-memory", memory),
    ("errnos-sockets", sockets),
    (
        "errnos-of-sockets-without-connections",
        sockets_without_connections,
    ),
    ("errnos-addresses", addresses),
    ("errnos-clocks-and-processors", clocks),
    ("errnos-contexts", contexts),
    ("errnos-words", words),
    ("errnos-beyond-the-end", beyond_the_end),
    ("errnos-adjusting-clocks", adjusting_clocks),
];

const PAGE: usize = 4096;

/// A futex in memory that never changes is none, except for those who look at nothing but its
/// address.
fn words() -> Result<()> {
    let map = call!(
        SYS_mmap,
        0,
        PAGE,
        libc::PROT_READ,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1i32,
        0
    );
    ensure!(map > 0, "no memory");
    let futex = |word: i64, operation: i32| call!(SYS_futex, word, operation, 1, 0, 0, u32::MAX);
    let private = libc::FUTEX_PRIVATE_FLAG;
    fails(
        futex(map, libc::FUTEX_WAIT),
        libc::EFAULT,
        "to wait for a word that cannot be written",
    )?;
    fails(
        futex(map, libc::FUTEX_WAIT | private),
        libc::EAGAIN,
        "to wait for a private word of another value",
    )?;
    fails(
        futex(map, libc::FUTEX_WAKE),
        libc::EFAULT,
        "to wake waiters for a word that cannot be written",
    )?;
    is(
        futex(map, libc::FUTEX_WAKE | private),
        0,
        "to wake waiters for a private word",
    )?;
    fails(
        futex(map, libc::FUTEX_LOCK_PI),
        libc::EFAULT,
        "to lock what cannot be written",
    )?;
    fails(
        futex(map + 2, libc::FUTEX_UNLOCK_PI),
        libc::EPERM,
        "to unlock what is not one's own, and no lock",
    )?;
    fails(
        futex(map, libc::FUTEX_WAKE | libc::FUTEX_CLOCK_REALTIME),
        libc::ENOSYS,
        "to wake by a clock",
    )?;
    is(call!(SYS_munmap, map, PAGE), 0, "munmap")
}

fn open(path: &str, flags: i32) -> Result<Fd> {
    let name = CString::new(path)?;
    Fd::new(
        call!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, 0o644),
        path,
    )
}

fn names() -> Result<()> {
    let mut text = [0u8; 64];
    fails(
        call!(SYS_readlink, c"".as_ptr(), text.as_mut_ptr(), 64),
        libc::ENOENT,
        "readlink without a name",
    )?;
    fails(
        call!(SYS_readlink, 0, text.as_mut_ptr(), 64),
        libc::EFAULT,
        "readlink of no address",
    )?;
    let here = open("/tmp", libc::O_PATH)?;
    fails(
        call!(SYS_readlinkat, here.0, c"".as_ptr(), text.as_mut_ptr(), 64),
        libc::ENOENT,
        "readlinkat of a directory",
    )?;
    fails(
        call!(SYS_readlinkat, here.0, 0, text.as_mut_ptr(), 64),
        libc::EFAULT,
        "readlinkat of no address",
    )?;
    fails(
        call!(SYS_readlink, c"/tmp".as_ptr(), text.as_mut_ptr(), 64),
        libc::EINVAL,
        "readlink of a directory",
    )?;

    let path = "/tmp/refusals-names";
    fs::create_dir(path)?;
    let gone = open(path, libc::O_DIRECTORY)?;
    fs::remove_dir(path)?;
    let mut entries = [0u8; 1024];
    fails(
        call!(SYS_getdents64, gone.0, entries.as_mut_ptr(), 1024),
        libc::ENOENT,
        "getdents64 of a removed directory",
    )
}

fn devices() -> Result<()> {
    for name in ["/dev/null", "/dev/zero", "/dev/urandom"] {
        let device = open(name, libc::O_RDWR)?;
        fails(
            call!(SYS_fsync, device.0),
            libc::EINVAL,
            &format!("fsync of {name}"),
        )?;
        fails(
            call!(SYS_fdatasync, device.0),
            libc::EINVAL,
            &format!("fdatasync of {name}"),
        )?;
    }
    let mut bits = 0i32;
    let random = open("/dev/random", libc::O_RDONLY)?;
    is(
        call!(SYS_ioctl, random.0, 0x8004_5200u32, &raw mut bits),
        0,
        "RNDGETENTCNT",
    )?;
    ensure!(bits == 256, "the pool has {bits} bits");
    let (read, write) = (0u32, libc::SYNC_FILE_RANGE_WRITE);
    let file = open("/tmp/refusals-devices", libc::O_RDWR | libc::O_CREAT)?;
    fs::remove_file("/tmp/refusals-devices")?;
    is(
        call!(SYS_sync_file_range, file.0, 0, 0, write),
        0,
        "sync_file_range",
    )?;
    fails(
        call!(SYS_sync_file_range, file.0, 0, 0, 8),
        libc::EINVAL,
        "sync_file_range with a flag there is not",
    )?;
    fails(
        call!(SYS_sync_file_range, file.0, -1i64, 0, read),
        libc::EINVAL,
        "sync_file_range before the beginning",
    )?;
    let [reader, _writer] = pipe(0)?;
    fails(
        call!(SYS_sync_file_range, reader.0, 0, 0, 8),
        libc::EINVAL,
        "sync_file_range of a pipe with such a flag",
    )?;
    fails(
        call!(SYS_sync_file_range, reader.0, 0, 0, 0),
        libc::ESPIPE,
        "sync_file_range of a pipe",
    )
}

fn positions() -> Result<()> {
    let [reader, writer] = pipe(0)?;
    let mut byte = 0u8;
    let iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    for (fd, end) in [(reader.0, "reading"), (writer.0, "writing")] {
        let of = |name: &str| format!("{name} at an offset of a pipe's {end} end");
        fails(
            call!(SYS_pread64, fd, &raw mut byte, 1, 0),
            libc::ESPIPE,
            &of("pread64"),
        )?;
        fails(
            call!(SYS_pwrite64, fd, &raw mut byte, 1, 0),
            libc::ESPIPE,
            &of("pwrite64"),
        )?;
        fails(
            call!(SYS_preadv, fd, &raw const iov, 1, 0, 0),
            libc::ESPIPE,
            &of("preadv"),
        )?;
        fails(
            call!(SYS_pwritev2, fd, &raw const iov, 1, 0, 0, 0),
            libc::ESPIPE,
            &of("pwritev2"),
        )?;
    }
    fails(
        call!(SYS_pread64, -1i32, &raw mut byte, 1, -1i64),
        libc::EINVAL,
        "pread64 of no file before its beginning",
    )?;
    fails(
        call!(SYS_fcntl, reader.0, libc::F_SETPIPE_SZ, 0x8000_0001u32),
        libc::EINVAL,
        "a pipe beyond 2 GiB",
    )
}

fn memory_files() -> Result<()> {
    let named = |len: usize, flags: u32| -> Result<i64> {
        let name = CString::new("n".repeat(len))?;
        let made = call!(SYS_memfd_create, name.as_ptr(), flags);
        if made >= 0 {
            drop(Fd(made as i32));
        }
        Ok(made.min(0))
    };
    is(named(249, 0)?, 0, "memfd_create with the longest name")?;
    fails(
        named(250, 0)?,
        libc::EINVAL,
        "memfd_create with a longer one",
    )?;
    fails(
        call!(SYS_memfd_create, 0, 0),
        libc::EFAULT,
        "memfd_create without a name",
    )?;
    fails(
        named(1, 0x100)?,
        libc::EINVAL,
        "memfd_create with a flag there is not",
    )?;
    fails(
        named(1, 0x18)?,
        libc::EINVAL,
        "memfd_create of what may and may not be executed",
    )?;
    fails(
        named(1, libc::MFD_HUGETLB | 13 << 26)?,
        libc::ENODEV,
        "memfd_create with pages of 8 KiB",
    )?;
    fails(
        named(1, 13 << 26)?,
        libc::EINVAL,
        "memfd_create with a size and no large pages",
    )
}

fn clones() -> Result<()> {
    const FICLONE: u32 = 0x4004_9409;
    let paths = ["/tmp/refusals-clones-a", "/tmp/refusals-clones-b"];
    let from = open(paths[0], libc::O_RDWR | libc::O_CREAT)?;
    let to = open(paths[1], libc::O_RDWR | libc::O_CREAT)?;
    let read_only = open(paths[1], libc::O_RDONLY)?;
    let directory = open("/tmp", libc::O_DIRECTORY)?;
    fails(
        call!(SYS_ioctl, to.0, FICLONE, from.0),
        libc::EOPNOTSUPP,
        "FICLONE",
    )?;
    fails(
        call!(SYS_ioctl, to.0, FICLONE, -1i32),
        libc::EBADF,
        "FICLONE of nothing",
    )?;
    fails(
        call!(SYS_ioctl, read_only.0, FICLONE, from.0),
        libc::EBADF,
        "FICLONE into a file that is open for reading",
    )?;
    fails(
        call!(SYS_ioctl, to.0, FICLONE, directory.0),
        libc::EISDIR,
        "FICLONE of a directory",
    )?;
    paths.into_iter().try_for_each(fs::remove_file)?;
    Ok(())
}

fn map(len: usize, flags: i32, fd: i32) -> i64 {
    call!(
        SYS_mmap,
        0,
        len,
        libc::PROT_READ | libc::PROT_WRITE,
        flags,
        fd,
        0
    )
}

fn memory() -> Result<()> {
    const WIPE: i32 = libc::MADV_WIPEONFORK;
    let file = Fd::new(
        call!(SYS_memfd_create, c"memory".as_ptr(), 0),
        "memfd_create",
    )?;
    is(call!(SYS_ftruncate, file.0, PAGE), 0, "ftruncate")?;
    let anonymous = map(PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    is(
        call!(SYS_madvise, anonymous, PAGE, WIPE),
        0,
        "MADV_WIPEONFORK",
    )?;
    // The processor reads what it may write; the program has not asked for that.
    for (advice, protection, errno) in [
        (libc::MADV_POPULATE_READ, libc::PROT_WRITE, libc::EINVAL),
        (libc::MADV_POPULATE_WRITE, libc::PROT_WRITE, 0),
        (libc::MADV_POPULATE_READ, libc::PROT_EXEC, libc::EINVAL),
        (libc::MADV_POPULATE_WRITE, libc::PROT_READ, libc::EINVAL),
    ] {
        let changed = call!(SYS_mprotect, anonymous, PAGE, protection);
        is(changed, 0, "mprotect")?;
        let outcome = call!(SYS_madvise, anonymous, PAGE, advice);
        is(
            outcome,
            -i64::from(errno),
            &format!("advice {advice} where {protection:#x} is allowed"),
        )?;
    }
    for (flags, fd, what) in [
        (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, "shared memory"),
        (libc::MAP_PRIVATE, file.0, "a file"),
        (libc::MAP_SHARED, file.0, "a shared file"),
    ] {
        let at = map(PAGE, flags, fd);
        fails(
            call!(SYS_madvise, at, PAGE, WIPE),
            libc::EINVAL,
            &format!("MADV_WIPEONFORK of {what}"),
        )?;
        is(
            call!(SYS_madvise, at, PAGE, libc::MADV_KEEPONFORK),
            0,
            &format!("MADV_KEEPONFORK of {what}"),
        )?;
    }
    fails(
        map(0, libc::MAP_PRIVATE, -1),
        libc::EBADF,
        "mmap of nothing of no file",
    )?;
    fails(
        map(0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        libc::EINVAL,
        "mmap of nothing",
    )?;
    let validate = libc::MAP_SHARED_VALIDATE;
    ensure!(
        map(PAGE, validate | libc::MAP_POPULATE, file.0) > 0,
        "a flag that all mappings know"
    );
    fails(
        map(PAGE, validate | 1 << 24, file.0),
        libc::EOPNOTSUPP,
        "mmap with a flag there is not",
    )?;

    // The file comes before the length, and that something is in the way before what the file
    // allows.
    fails(
        map(usize::MAX, libc::MAP_PRIVATE, -1),
        libc::EBADF,
        "mmap of more than there is of no file",
    )?;
    let over = call!(
        SYS_mmap,
        anonymous,
        PAGE,
        1,
        libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE,
        open("/tmp", 0)?.0,
        0
    );
    fails(over, libc::EEXIST, "mmap of a directory over memory")?;
    // Pages that only their mapping holds may be lost, those of a file not.
    is(
        call!(SYS_madvise, anonymous, PAGE, libc::MADV_FREE),
        0,
        "MADV_FREE",
    )?;
    fails(
        call!(
            SYS_madvise,
            map(PAGE, libc::MAP_PRIVATE, file.0),
            PAGE,
            libc::MADV_FREE
        ),
        libc::EINVAL,
        "MADV_FREE of a file",
    )?;
    // What cannot be there is locked, and that is said.
    is(call!(SYS_mprotect, anonymous, PAGE, 0), 0, "mprotect")?;
    fails(
        call!(SYS_mlock, anonymous, PAGE),
        libc::ENOMEM,
        "mlock of what may not be touched",
    )?;
    is(call!(SYS_munlock, anonymous, PAGE), 0, "munlock")?;
    fails(
        call!(SYS_mprotect, anonymous, usize::MAX - PAGE, 1),
        libc::ENOMEM,
        "mprotect beyond all memory",
    )?;
    let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS;
    fails(
        call!(SYS_mmap, 0, PAGE, 1, flags, -1i32, 0),
        libc::EINVAL,
        "mmap of no file with flags to be known",
    )?;
    fails(
        call!(SYS_mprotect, anonymous, PAGE, 0x100),
        libc::EINVAL,
        "mprotect with a bit there is not",
    )
}

fn sockets() -> Result<()> {
    let tcp = Fd::new(
        call!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0),
        "socket",
    )?;
    let udp = Fd::new(
        call!(SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0),
        "socket",
    )?;
    let mut one = 1i32;
    let mut len = 4u32;
    for (fd, what) in [(tcp.0, "TCP"), (udp.0, "UDP")] {
        let set = call!(SYS_setsockopt, fd, 500, 1, &raw const one, 4);
        fails(
            set,
            libc::ENOPROTOOPT,
            &format!("setsockopt of {what} at a level there is not"),
        )?;
        let get = call!(SYS_getsockopt, fd, 500, 1, &raw mut one, &raw mut len);
        fails(
            get,
            libc::EOPNOTSUPP,
            &format!("getsockopt of {what} at a level there is not"),
        )?;
    }
    let mut fds = [0i32; 2];
    let mut of = |kind: i32, protocol: i32| {
        call!(
            SYS_socketpair,
            libc::AF_INET,
            kind,
            protocol,
            fds.as_mut_ptr()
        )
    };
    fails(
        of(libc::SOCK_DGRAM, libc::IPPROTO_TCP),
        libc::EPROTONOSUPPORT,
        "a pair of datagrams over TCP",
    )?;
    fails(
        of(libc::SOCK_STREAM, libc::IPPROTO_TCP),
        libc::EOPNOTSUPP,
        "a pair of TCP sockets",
    )?;

    // What was shut without a connection is shut.
    fails(
        call!(SYS_shutdown, tcp.0, libc::SHUT_RD),
        libc::ENOTCONN,
        "shutdown without a connection",
    )?;
    is(
        call!(SYS_recvfrom, tcp.0, &raw mut one, 4, 0, 0, 0),
        0,
        "recvfrom after that",
    )?;
    let [local, _peer] = pair(libc::SOCK_STREAM)?;
    fails(
        call!(SYS_getsockopt, local.0, 6, 1, 1, 1),
        libc::EOPNOTSUPP,
        "getsockopt of a level there is not, into no memory",
    )
}

fn sockets_without_connections() -> Result<()> {
    let kinds = [
        (libc::AF_NETLINK, libc::SOCK_RAW, 0, "netlink"),
        (libc::AF_PACKET, libc::SOCK_RAW, 0, "packets"),
        (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP, "raw"),
        (libc::AF_INET, libc::SOCK_DGRAM, 0, "UDP"),
        (libc::AF_UNIX, libc::SOCK_DGRAM, 0, "local datagrams"),
    ];
    for (family, kind, protocol, what) in kinds {
        let socket = Fd::new(call!(SYS_socket, family, kind, protocol), what)?;
        fails(
            call!(SYS_listen, socket.0, 1),
            libc::EOPNOTSUPP,
            &format!("listen: {what}"),
        )?;
        fails(
            call!(SYS_accept, socket.0, 0, 0),
            libc::EOPNOTSUPP,
            &format!("accept: {what}"),
        )?;
        if family == libc::AF_PACKET {
            let address = [libc::AF_PACKET as u16; 16];
            fails(
                call!(SYS_connect, socket.0, address.as_ptr(), 20),
                libc::EOPNOTSUPP,
                &format!("connect: {what}"),
            )?;
        }
        if family != libc::AF_UNIX {
            let mut fds = [0i32; 2];
            let pair = call!(SYS_socketpair, family, kind, protocol, fds.as_mut_ptr());
            fails(pair, libc::EOPNOTSUPP, &format!("socketpair: {what}"))?;
        }
    }
    Ok(())
}

/// Two connected TCP sockets.
fn connection() -> Result<(std::net::TcpStream, std::net::TcpStream)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let near = std::net::TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}

fn addresses() -> Result<()> {
    use std::os::fd::AsRawFd;
    let mut byte = [7u8; 4];
    let mut iov = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut address = [0u8; 128];
    // SAFETY: a message without anything is one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = address.as_mut_ptr().cast();
    message.msg_namelen = -1i32 as u32;
    (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
    let [a, b] = pair(libc::SOCK_STREAM)?;
    is(call!(SYS_write, a.0, byte.as_ptr(), 1), 1, "write")?;
    fails(
        call!(SYS_recvmsg, b.0, &raw mut message, 0),
        libc::EINVAL,
        "recvmsg with an address of -1 bytes",
    )?;
    message.msg_name = std::ptr::null_mut();
    is(
        call!(SYS_recvmsg, b.0, &raw mut message, 0),
        1,
        "recvmsg without an address of -1 bytes",
    )?;

    let (near, far) = connection()?;
    is(
        call!(SYS_write, near.as_raw_fd(), byte.as_ptr(), 2),
        2,
        "write",
    )?;
    let mut len = 16i32;
    let got = call!(
        SYS_recvfrom,
        far.as_raw_fd(),
        byte.as_mut_ptr(),
        1,
        0,
        1,
        &raw mut len
    );
    is(
        got,
        1,
        "recvfrom of TCP, which has no addresses, to a place there is not",
    )?;
    ensure!(len == 0, "an address of {len} bytes");
    fails(
        call!(SYS_recvfrom, far.as_raw_fd(), byte.as_mut_ptr(), 1, 0, 1, 1),
        libc::EFAULT,
        "recvfrom with a bad length",
    )
}

fn clocks() -> Result<()> {
    const ARCH_GET_CPUID: i32 = 0x1011;
    let span = [0i64, 1];
    let sleep = |clock: i32, at: usize| call!(SYS_clock_nanosleep, clock, 0, at, 0);
    let at = span.as_ptr() as usize;
    fails(
        sleep(libc::CLOCK_THREAD_CPUTIME_ID, at),
        libc::EOPNOTSUPP,
        "sleeping by the thread's own time",
    )?;
    fails(
        sleep(libc::CLOCK_MONOTONIC_RAW, at),
        libc::EOPNOTSUPP,
        "sleeping by the raw clock",
    )?;
    fails(
        sleep(libc::CLOCK_MONOTONIC_COARSE, at),
        libc::EOPNOTSUPP,
        "sleeping by the coarse clock",
    )?;
    fails(
        sleep(99, at),
        libc::EINVAL,
        "sleeping by a clock there is not",
    )?;
    fails(
        sleep(libc::CLOCK_MONOTONIC, 1),
        libc::EFAULT,
        "sleeping for an unreadable time",
    )?;
    fails(
        sleep(-2, at),
        libc::EINVAL,
        "sleeping by the thread's own time, by number",
    )?;
    let mut id = -1i32;
    let timer = |clock: i32, id: *mut i32| call!(SYS_timer_create, clock, 0, id);
    fails(
        timer(libc::CLOCK_MONOTONIC_RAW, &raw mut id),
        libc::EOPNOTSUPP,
        "a timer by the raw clock",
    )?;
    is(
        timer(libc::CLOCK_BOOTTIME_ALARM, &raw mut id),
        0,
        "a timer that wakes the machine up",
    )?;
    is(call!(SYS_timer_delete, id), 0, "timer_delete")?;
    let counter = Fd::new(call!(SYS_eventfd2, 0, 0), "eventfd2")?;
    is(
        call!(SYS_lseek, counter.0, 5, libc::SEEK_SET),
        0,
        "lseek of an event descriptor",
    )?;
    is(
        call!(SYS_arch_prctl, ARCH_GET_CPUID, 0),
        1,
        "ARCH_GET_CPUID",
    )
}

fn contexts() -> Result<()> {
    const FSPICK_CLOEXEC: u32 = 1;
    const FSCONFIG_SET_STRING: u32 = 1;
    let path = CString::new("/tmp/refusals-contexts")?;
    fs::create_dir("/tmp/refusals-contexts")?;
    is(
        call!(
            SYS_mount,
            c"none".as_ptr(),
            path.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            0
        ),
        0,
        "mount",
    )?;
    let context = Fd::new(
        call!(SYS_fspick, libc::AT_FDCWD, path.as_ptr(), FSPICK_CLOEXEC),
        "fspick",
    )?;
    let key = c"sync".as_ptr();
    let set = call!(
        SYS_fsconfig,
        context.0,
        FSCONFIG_SET_STRING,
        key,
        c"false".as_ptr(),
        0
    );
    is(set, 0, "a value of an option that has none")?;
    let set = Fd::new(call!(SYS_epoll_create1, 0), "epoll_create1")?;
    let event = libc::epoll_event { events: 1, u64: 0 };
    let added = call!(
        SYS_epoll_ctl,
        set.0,
        libc::EPOLL_CTL_ADD,
        context.0,
        &raw const event
    );
    fails(added, libc::EPERM, "a context in an epoll set")?;
    drop((context, set));
    is(call!(SYS_umount2, path.as_ptr(), 0), 0, "umount2")?;

    // That there are to be no devices comes before that there is nothing behind one.
    is(
        call!(
            SYS_mount,
            c"none".as_ptr(),
            path.as_ptr(),
            c"tmpfs".as_ptr(),
            libc::MS_NODEV,
            0
        ),
        0,
        "mount",
    )?;
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let name = c"/tmp/refusals-contexts/device".as_ptr();
        is(call!(SYS_mknod, name, kind | 0o666, 0xf0f0), 0, "mknod")?;
        fails(
            call!(SYS_open, name, libc::O_RDWR, 0),
            libc::EACCES,
            "a device where there are to be none",
        )?;
        is(call!(SYS_unlink, name), 0, "unlink")?;
    }
    is(call!(SYS_umount2, path.as_ptr(), 0), 0, "umount2")?;
    fs::remove_dir("/tmp/refusals-contexts")?;
    Ok(())
}

/// Positions that no file reaches are invalid, not too large.
fn beyond_the_end() -> Result<()> {
    let file = Fd::new(call!(SYS_memfd_create, c"end".as_ptr(), 0), "memfd_create")?;
    let seek = |offset: i64, whence: i32| call!(SYS_lseek, file.0, offset, whence);
    is(call!(SYS_ftruncate, file.0, 10), 0, "ftruncate")?;
    is(seek(1, libc::SEEK_SET), 1, "SEEK_SET")?;
    for whence in [libc::SEEK_CUR, libc::SEEK_END] {
        fails(seek(i64::MAX, whence), libc::EINVAL, "beyond the end")?;
        fails(seek(-11, whence), libc::EINVAL, "before the beginning")?;
    }
    is(seek(i64::MAX - 10, libc::SEEK_END), i64::MAX, "the end")
}

/// Only the wall clock can be adjusted; other clocks say so, and what is none is invalid.
fn adjusting_clocks() -> Result<()> {
    let adjust = |clock: i32| {
        let asked = [0u64; 26];
        call!(SYS_clock_adjtime, clock, asked.as_ptr())
    };
    for clock in [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, -1, -2, -6] {
        fails(adjust(clock), libc::EOPNOTSUPP, &format!("clock {clock}"))?;
    }
    for clock in [10, 12, 16, i32::MAX] {
        fails(adjust(clock), libc::EINVAL, &format!("clock {clock}"))?;
    }
    ensure!(adjust(0) >= 0, "the wall clock");
    // Hundredths of a second are about as long as they are.
    for tick in [0, 8999, 11_001] {
        let mut asked = [0u64; 26];
        (asked[0], asked[11]) = (0x4000, tick);
        let set = call!(SYS_adjtimex, asked.as_ptr());
        fails(set, libc::EINVAL, &format!("a tick of {tick}"))?;
    }
    Ok(())
}
