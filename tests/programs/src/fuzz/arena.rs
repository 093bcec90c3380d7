//! What the calls of a round are made on: memory of every kind at fixed addresses, descriptors of every kind with fixed numbers, paths.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Where the memory is.
pub const BASE: u64 = 0x10_0000_0000;
/// Its pages: writable ones alternate with each of the others.
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
/// Its length.
pub const LENGTH: u64 = KINDS.len() as u64 * PAGE;
/// Writable pages that are followed by something else.
pub const WRITABLE: u64 = 5;
/// Descriptors have the numbers from 0 to this.
pub const LAST_FD: u64 = 40;
/// The number of the file that is mapped.
const FILE: i32 = 26;
/// Names of files that there are, that there are not, and that cannot be.
pub const PATHS: [&str; 44] = [
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
    "tmpfs",
    "proc",
    "memory.pressure",
];

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
            Page::PastEnd => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED, FILE, 64 << 12),
            Page::Shared => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED, FILE, 0),
            Page::Hole => {
                // SAFETY: nothing of this program's own is at these addresses.
                unsafe { libc::munmap(address, PAGE as usize) };
                continue;
            }
        };
        // SAFETY: nothing of this program's own is at these addresses. What cannot be mapped is a hole.
        unsafe { libc::mmap(address, PAGE as usize, access, flags, file, offset) };
    }
    map_paths();
}

fn map_paths() {
    let length = (PATHS.len() * 64).next_multiple_of(PAGE as usize);
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: as above.
    let paths = unsafe { libc::mmap(path(0) as *mut libc::c_void, length, access, flags, -1, 0) };
    if paths == libc::MAP_FAILED {
        return;
    }
    for (index, name) in PATHS.iter().enumerate() {
        // SAFETY: the place has 64 bytes of the mapping that was just made, zeroed; no name is longer than 63.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), path(index as u64) as *mut u8, name.len()) };
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

/// Opens one of everything and gives it its number. What this system does not have is not open.
pub fn descriptors(child: i32) {
    let open = |path: &str, flags: i32| {
        let path = CString::new(path).expect("no zero byte");
        // SAFETY: the path is a string that ends with a zero byte.
        unsafe { libc::open(path.as_ptr(), flags, 0o600) }
    };
    let pair = |make: &dyn Fn(*mut i32) -> i32| {
        let mut pair = [-1; 2];
        make(pair.as_mut_ptr());
        pair
    };
    // SAFETY: each of these calls writes two numbers where it is told to.
    let pipes = [pair(&|to| unsafe { libc::pipe(to) }), pair(&|to| unsafe { libc::pipe2(to, libc::O_NONBLOCK) })];
    // SAFETY: as above.
    let sockets = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET]
        .map(|kind| pair(&|to| unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0, to) }));
    let mut mask = std::mem::MaybeUninit::zeroed();
    // SAFETY: the set is written before it is read; the other calls take numbers and strings of the program's own.
    let made = unsafe {
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
            libc::syscall(libc::SYS_userfaultfd, 1) as i32,
        ]
    };
    let opened = [
        ("file", libc::O_RDWR),
        (".", libc::O_RDONLY | libc::O_DIRECTORY),
        ("dir", libc::O_RDONLY),
        ("file", libc::O_PATH),
        ("file", libc::O_WRONLY | libc::O_APPEND),
        ("/dev/zero", libc::O_RDWR),
        ("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK),
        ("/proc/self/maps", libc::O_RDONLY),
        ("/proc/self/mem", libc::O_RDWR),
        ("/proc/self/fd", libc::O_RDONLY),
        ("/proc/stat", libc::O_RDONLY),
        ("/proc/pressure/cpu", libc::O_RDWR),
        ("/", libc::O_RDONLY),
    ]
    .map(|(path, flags)| open(path, flags));
    let all = pipes.concat().into_iter().chain(sockets.concat()).chain(made).chain(opened);
    // First out of the way, then where they belong.
    // SAFETY: numbers only.
    let high: Vec<_> = all.map(|fd| unsafe { libc::fcntl(fd, libc::F_DUPFD, 100) }).collect();
    for (number, fd) in high.into_iter().enumerate() {
        let number = number as i32 + 3;
        // SAFETY: as above.
        unsafe {
            libc::close(number);
            libc::dup2(fd, number);
            libc::close(fd);
        }
    }
}
