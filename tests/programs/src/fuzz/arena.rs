//! Objects for the calls of a round: memory of every kind at fixed addresses, descriptors of every
//! kind with fixed numbers, paths.

use std::ffi::CString;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Where the memory is.
pub const BASE: u64 = 0x10_0000_0000;
/// Kinds of the pages: writable ones alternate with each of the others.
const KINDS: [Page; 16] = [
    Page::Writable,
    Page::ReadOnly,
    Page::Writable,
    Page::Hole,
    Page::Writable,
    Page::Inaccessible,
    Page::Writable,
    Page::PastEnd,
    Page::Writable,
    Page::Hole,
    Page::Shared,
    Page::Shared,
    Page::Hole,
    Page::Writable,
    Page::Writable,
    Page::Hole,
];
/// The first of those that others have, too.
pub const SHARED: u64 = BASE + 10 * PAGE;
/// Length of the memory in bytes.
pub const LENGTH: u64 = KINDS.len() as u64 * PAGE;
/// Writable pages that are followed by something else.
pub const WRITABLE: u64 = 5;
/// Descriptors have the numbers from 0 to this; the last ones are what calls of the round open.
pub const LAST_FD: u64 = 66;
/// The number of the file that is mapped.
const FILE: i32 = 26;
/// Names of files that there are, that there are not, and that cannot be.
pub const PATHS: [&str; 51] = [
    ".",
    "..",
    "/",
    "",
    "file",
    "dir",
    "dir/file",
    "dir/new",
    "new",
    "link",
    "loop",
    "fifo",
    "socket",
    "dangling",
    "elf",
    "script",
    "file/under",
    "dir/../dir/./file",
    "new2",
    "dir/new3",
    "/dev/null",
    "/dev/zero",
    "/dev/ptmx",
    "/dev/full",
    "/dev/tty",
    "/dev/shm/fuzz",
    "/dev/urandom",
    "/proc/self/maps",
    "/proc/self/mem",
    "/proc/self/exe",
    "/proc/self/fd/3",
    "/proc/self/fd",
    "/proc/self/status",
    "/proc/self/environ",
    "/proc/self/task",
    "/proc/self/oom_score_adj",
    "/proc/meminfo",
    "/proc/pressure/memory",
    "/proc/sys/kernel",
    "/sys/devices/system/cpu",
    "user.name",
    "user.other.name",
    "tmpfs",
    "proc",
    "memory.pressure",
    "/proc/self/attr",
    "/proc/self/ns/mnt",
    "/proc/self/coredump_filter",
    "/proc/self/fdinfo/16",
    "/sys/fs/cgroup/memory.max",
    "/queue",
];

/// Number of paths, from the first, that are in the round's own directory, or lead there.
pub const OWN_PATHS: u64 = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Writable,
    ReadOnly,
    Hole,
    Inaccessible,
    /// Of a file, past its end.
    PastEnd,
    /// Of a file that others have mapped, too.
    Shared,
}

/// The address of one of the writable pages.
pub fn writable(index: u64) -> u64 {
    BASE + index * 2 * PAGE
}

/// The address after one of them, where something else is.
pub fn end_of_writable(index: u64) -> u64 {
    writable(index) + PAGE
}

/// Where a path is in the program's memory: past the pages.
pub fn path(index: u64) -> u64 {
    BASE + LENGTH + PAGE + index * 64
}

/// Maps the memory, anew if parts of it are lost.
pub fn map() {
    for (index, kind) in KINDS.iter().enumerate() {
        let address = (BASE + index as u64 * PAGE) as *mut libc::c_void;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let (access, flags, file, offset) = match kind {
            Page::Writable => (libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0),
            Page::ReadOnly => (libc::PROT_READ, anonymous, -1, 0),
            Page::Inaccessible => (libc::PROT_NONE, anonymous, -1, 0),
            Page::PastEnd => (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                FILE,
                64 << 12,
            ),
            Page::Shared => (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                FILE,
                0,
            ),
            Page::Hole => {
                // SAFETY: nothing of this program's own is at these addresses.
                unsafe { libc::munmap(address, PAGE as usize) };
                continue;
            }
        };
        // SAFETY: nothing of this program's own is at these addresses. What cannot be mapped is a
        // hole.
        unsafe { libc::mmap(address, PAGE as usize, access, flags, file, offset) };
    }
    map_paths();
}

fn map_paths() {
    let length = (PATHS.len() * 64).next_multiple_of(PAGE as usize);
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    // SAFETY: as above.
    let paths = unsafe { libc::mmap(path(0) as *mut libc::c_void, length, access, flags, -1, 0) };
    if paths == libc::MAP_FAILED {
        return;
    }
    for (index, name) in PATHS.iter().enumerate() {
        // SAFETY: the place has 64 bytes of the mapping that was just made, zeroed; no name is
        // longer than 63.
        unsafe {
            std::ptr::copy_nonoverlapping(name.as_ptr(), path(index as u64) as *mut u8, name.len());
        };
    }
}

/// Fills the working directory; what cannot be made is not there.
pub fn files(elf: &[u8]) {
    let fifo = CString::new("fifo").expect("no zero byte");
    // SAFETY: the name is a string that ends with a zero byte.
    unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) };
    drop(fs::create_dir("dir"));
    drop(fs::write("file", [0x5a; 9000]));
    drop(fs::write("dir/file", "short"));
    drop(fs::write("elf", elf));
    drop(fs::write("script", "#!script\n"));
    for (target, name) in [("file", "link"), ("loop", "loop"), ("nothing", "dangling")] {
        drop(symlink(target, name));
    }
    for name in ["elf", "script"] {
        let name = CString::new(name).expect("no zero byte");
        // SAFETY: the name is a string that ends with a zero byte.
        unsafe { libc::chmod(name.as_ptr(), 0o755) };
    }
}

/// Sort of a descriptor, as far as calls tell them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Pipe,
    /// A local socket.
    Unix,
    Inet,
    /// A socket of either family that waits for connections.
    Listener,
    Netlink,
    Epoll,
    Timer,
    /// Of signals.
    Signal,
    /// A file in memory.
    Memory,
    Process,
    /// Of inotify.
    Watch,
    /// Of messages.
    Queue,
    File,
    Directory,
    /// A file of `/proc`.
    Proc,
    /// Descriptors that calls of the round open.
    Opened,
    Other,
}

/// The number of the first of them.
const FIRST_FD: i32 = 3;
/// Sorts of the descriptors, in their order.
const SORTS: [Sort; 57] = {
    use Sort::{
        Directory, Epoll, File, Inet, Listener, Memory, Netlink, Other, Pipe, Proc, Process, Queue,
        Signal, Timer, Unix, Watch,
    };
    [
        Pipe, Pipe, Pipe, Pipe, Unix, Unix, Unix, Unix, Unix, Unix, Other, Epoll, Epoll, Timer,
        Signal, Memory, Process, Watch, Unix, Inet, Inet, Inet, Netlink, File, Directory,
        Directory, Other, File, Other, Other, Proc, Proc, Directory, Proc, Proc, Directory, Queue,
        Queue, Other, Listener, Inet, Inet, Listener, Inet, Inet, Listener, Pipe, File, Memory,
        Timer, Process, Proc, Other, Directory, Other, Epoll, Watch,
    ]
};

/// The numbers of the descriptors of this sort.
pub fn of(sort: Sort) -> Vec<u64> {
    let opened = FIRST_FD as u64 + SORTS.len() as u64..LAST_FD;
    let numbers = (FIRST_FD as u64..)
        .zip(SORTS)
        .chain(opened.map(|number| (number, Sort::Opened)));
    numbers
        .filter(|&(_, of)| of == sort)
        .map(|(number, _)| number)
        .collect()
}

/// Opens one of everything, or several, and gives each its number. What this system does not have
/// is not open.
pub fn descriptors(child: i32) {
    let mut all = local();
    all.extend(events(child));
    let opened = [
        ("file", libc::O_RDWR),
        (".", libc::O_RDONLY | libc::O_DIRECTORY),
        ("dir", libc::O_RDONLY),
        ("file", libc::O_PATH),
        ("file", libc::O_WRONLY | libc::O_APPEND),
        ("/dev/zero", libc::O_RDWR),
        (
            "/dev/ptmx",
            libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK,
        ),
        ("/proc/self/maps", libc::O_RDONLY),
        ("/proc/self/mem", libc::O_RDWR),
        ("/proc/self/fd", libc::O_RDONLY),
        ("/proc/stat", libc::O_RDONLY),
        ("/proc/pressure/cpu", libc::O_RDWR),
        ("/", libc::O_RDONLY),
    ]
    .map(|(path, flags)| open(path, flags));
    let terminal = opened[6];
    all.extend(opened);
    let queue = |flags| {
        let name = CString::new(format!("/{}", std::process::id())).expect("no zero byte");
        // SAFETY: the name is a string that ends with a zero byte; no attributes.
        unsafe {
            libc::mq_open(
                name.as_ptr(),
                flags | libc::O_CREAT,
                0o600,
                std::ptr::null_mut::<libc::mq_attr>(),
            )
        }
    };
    all.extend([queue(libc::O_RDWR), queue(libc::O_RDWR | libc::O_NONBLOCK)]);
    let unlocked = 0;
    // SAFETY: the first reads a number of this function's, the second takes a number.
    all.push(unsafe {
        libc::ioctl(terminal, libc::TIOCSPTLCK, &raw const unlocked);
        libc::ioctl(terminal, libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY)
    });
    all.extend(internet());
    all.extend(more());
    // First out of the way, then where they belong.
    // SAFETY: numbers only.
    let high: Vec<_> = all
        .into_iter()
        .map(|fd| unsafe { libc::fcntl(fd, libc::F_DUPFD, 100) })
        .collect();
    debug_assert_eq!(high.len(), SORTS.len());
    for (number, fd) in (FIRST_FD..).zip(high) {
        // SAFETY: as above.
        unsafe {
            libc::close(number);
            libc::dup2(fd, number);
            libc::close(fd);
        }
    }
}

fn open(path: &str, flags: i32) -> i32 {
    let path = CString::new(path).expect("no zero byte");
    // SAFETY: the path is a string that ends with a zero byte.
    unsafe { libc::open(path.as_ptr(), flags, 0o600) }
}

/// Pipes and pairs of sockets.
fn local() -> Vec<i32> {
    let pair = |make: &dyn Fn(*mut i32) -> i32| {
        let mut pair = [-1; 2];
        make(pair.as_mut_ptr());
        pair
    };
    // SAFETY: each of these calls writes two numbers where it is told to.
    let pipes = [
        pair(&|to| unsafe { libc::pipe(to) }),
        pair(&|to| unsafe { libc::pipe2(to, libc::O_NONBLOCK) }),
    ];
    let sockets = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET].map(|kind| {
        // SAFETY: as above.
        pair(&|to| unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0, to) })
    });
    pipes.into_iter().chain(sockets).flatten().collect()
}

/// Descriptors made of nothing: event sources, and sockets without an address.
fn events(child: i32) -> [i32; 13] {
    let mut mask = std::mem::MaybeUninit::zeroed();
    // SAFETY: the set is written before it is read; the other calls take numbers and strings of the
    // program's own.
    unsafe {
        libc::sigfillset(mask.as_mut_ptr());
        [
            libc::eventfd(3, libc::EFD_NONBLOCK),
            libc::epoll_create1(0),
            libc::epoll_create1(0),
            libc::timerfd_create(libc::CLOCK_MONOTONIC, 0),
            libc::signalfd(-1, mask.as_ptr(), libc::SFD_NONBLOCK),
            libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_ALLOW_SEALING),
            libc::syscall(libc::SYS_pidfd_open, child, 0) as i32,
            libc::inotify_init1(libc::IN_NONBLOCK),
            libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0),
            libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0),
            libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0),
            libc::socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0),
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_NONBLOCK,
                libc::NETLINK_ROUTE,
            ),
        ]
    }
}

/// A listener with both ends of a connection, another listener, a socket that sends to itself, one
/// of ICMP.
fn internet() -> [i32; 6] {
    let connection = || {
        let listener = TcpListener::bind("127.0.0.1:0").ok()?;
        let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
        let (server, _) = listener.accept().ok()?;
        Some([
            listener.into_raw_fd(),
            client.into_raw_fd(),
            server.into_raw_fd(),
        ])
    };
    let [listener, client, server] = connection().unwrap_or([-1; 3]);
    let second = TcpListener::bind("[::1]:0").map_or(-1, IntoRawFd::into_raw_fd);
    let datagrams = || {
        let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
        socket.connect(socket.local_addr().ok()?).ok()?;
        Some(socket.into_raw_fd())
    };
    // SAFETY: numbers only.
    let control = unsafe {
        libc::socket(
            libc::AF_INET,
            libc::SOCK_RAW | libc::SOCK_NONBLOCK,
            libc::IPPROTO_ICMP,
        )
    };
    [
        listener,
        client,
        server,
        second,
        datagrams().unwrap_or(-1),
        control,
    ]
}

/// Descriptors with a state: a listener with a name, a file without one, sealed memory, a timer
/// that runs, interest in others.
fn more() -> [i32; 12] {
    let listener = UnixListener::bind("socket").map_or(-1, IntoRawFd::into_raw_fd);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 3_000_000,
    };
    let every = libc::itimerspec {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: the calls take numbers, strings of the program's own, and structures that live as
    // long as they.
    let [sealed, timer, own, interest, watch] = unsafe {
        let sealed = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        libc::ftruncate(sealed, 8192);
        libc::fcntl(
            sealed,
            libc::F_ADD_SEALS,
            libc::F_SEAL_GROW | libc::F_SEAL_SHRINK,
        );
        let timer = libc::timerfd_create(libc::CLOCK_REALTIME, libc::TFD_NONBLOCK);
        libc::timerfd_settime(timer, 0, &every, std::ptr::null_mut());
        let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as i32;
        let interest = libc::epoll_create1(0);
        for (fd, events) in [
            (timer, libc::EPOLLIN),
            (listener, libc::EPOLLIN | libc::EPOLLET),
            (own, libc::EPOLLIN | libc::EPOLLONESHOT),
        ] {
            let mut event = libc::epoll_event {
                events: events as u32,
                u64: 1,
            };
            libc::epoll_ctl(interest, libc::EPOLL_CTL_ADD, fd, &mut event);
        }
        let watch = libc::inotify_init1(libc::IN_NONBLOCK);
        libc::inotify_add_watch(watch, c".".as_ptr(), libc::IN_ALL_EVENTS);
        libc::inotify_add_watch(watch, c"file".as_ptr(), libc::IN_ALL_EVENTS);
        [sealed, timer, own, interest, watch]
    };
    [
        listener,
        open("fifo", libc::O_RDWR),
        open(".", libc::O_TMPFILE | libc::O_RDWR),
        sealed,
        timer,
        own,
        open("/proc/self/pagemap", libc::O_RDONLY),
        open("/proc/self/ns/mnt", libc::O_RDONLY),
        open("/sys/fs/cgroup", libc::O_RDONLY),
        open("/dev/urandom", libc::O_RDWR),
        interest,
        watch,
    ]
}
