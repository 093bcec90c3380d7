//! Calls whose arguments go together: the right descriptor with the right structure, its length,
//! flags that there are. What is random is which, and that one of them may be wrong. Without these,
//! most calls would only ever find the first mistake.

use super::arena::{self, PAGE, Sort};
use super::program::CHILD_PID;
use super::shapes::{LENGTHS, SIGNALS, Shaper};

/// The priority of whoever ends rounds whose time is over: above all that calls ask for.
pub(super) const WATCHER_PRIORITY: u64 = 99;
const CLOCKS: [u64; 12] = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    11,
    (-6i64) as u64,
    (-14i64) as u64,
];
/// Of `open(2)`: access, and what may be added to it.
#[rustfmt::skip]
const OPEN: [u64; 22] = [
    0, 1, 2, 0o100, 0o200, 0o400, 0o1000, 0o2000, 0o4000, 0o10000, 0o40000, 0o100000, 0o200000, 0o400000, 0o1000000, 0o2000000,
    0o4010000, 0o10000000, 0o20200000, 0o102, 0o302, 0o2101,
];
/// `AT_…`
const AT: [u64; 6] = [0, 0x100, 0x200, 0x400, 0x800, 0x1000];
const MMAP: [u64; 14] = [
    0x22, 0x21, 0x02, 0x01, 0x03, 0x32, 0x31, 0x12, 0x10_0022, 0x0122, 0x8022, 0x4_0022, 0x2022,
    0x2_0022,
];
const MSG: [u64; 14] = [
    0,
    0,
    1,
    2,
    4,
    0x20,
    0x40,
    0x80,
    0x100,
    0x4000,
    0x8000,
    0x10000,
    0x4000_0000,
    0x2000_0000,
];
/// `MADV_…`
const MADVISE: [u64; 20] = [
    0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21, 22, 25,
];
#[rustfmt::skip]
const FCNTL: [u64; 32] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 36, 37, 38, 1024, 1025, 1026, 1028, 1030, 1031, 1032, 1033, 1034, 1035,
    1036, 1037, 1038,
];
#[rustfmt::skip]
const IOCTL: [u64; 44] = [
    0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5409, 0x540a, 0x540b, 0x540e, 0x540f, 0x5410, 0x5411, 0x5412, 0x5413, 0x5414,
    0x5415, 0x541b, 0x5420, 0x5421, 0x5422, 0x5424, 0x5429, 0x5450, 0x5451, 0x5452, 0x8004_5430, 0x4004_5431, 0x8004_5432, 0x5441,
    0x8905, 0x8906, 0x8907, 0x8910, 0x8912, 0x8913, 0x8914, 0x8915, 0x891b, 0x8921, 0x8927, 0x8933, 0xb701, 0x8008_6601,
    0xc020_660b,
];
#[rustfmt::skip]
const PTRACE: [u64; 32] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 24, 31, 32, 0x4200, 0x4201, 0x4202, 0x4203, 0x4204, 0x4205, 0x4206,
    0x4207, 0x4208, 0x4209, 0x420a, 0x420b, 0x420e,
];
#[rustfmt::skip]
const PRCTL: [u64; 38] = [
    1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 47,
    50, 53, 65, 0x5056_4d41, 0x5961_6d61,
];
/// `CLONE_…`, alone and as libraries have them.
#[rustfmt::skip]
const CLONE: [u64; 22] = [
    0, 0x11, 0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000, 0x1_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x100_0000,
    0x8000_0000, 0x100_0000_0000, 0x2_0000, 0x3d_0f00, 0x4111, 0x1_0f00, 0x120_0011,
];
/// Levels with options of `setsockopt(2)`.
const OPTIONS: [(u64, std::ops::Range<u64>); 6] = [
    (1, 1..80),
    (0, 1..52),
    (6, 1..40),
    (41, 1..80),
    (17, 1..105),
    (270, 1..13),
];
/// Where in the first page the handle of a file is.
const HANDLE: u64 = 2048;
/// Contents of a file of the round.
const UNTOUCHED: u64 = 0x5a5a_5a5a;

impl Shaper<'_> {
    /// The arguments of a call, if something is known of them.
    pub fn arguments(&self, name: &str) -> Option<[u64; 6]> {
        let made = self
            .of_files(name)
            .or_else(|| self.of_sockets(name))
            .or_else(|| self.of_events(name));
        let mut made = made
            .or_else(|| self.of_memory(name))
            .or_else(|| self.of_processes(name))?;
        if self.below(8) == 0 {
            let which = self.below(6) as usize;
            made[which] = self.word();
        }
        Some(made)
    }

    fn of_files(&self, name: &str) -> Option<[u64; 6]> {
        let (buffer, length) = self.buffer();
        let open = self.flags(&OPEN);
        let offset = self.pick(&[0, 0, 1, 100, 4095, 8999, 1 << 20, u64::MAX, 1 << 62]);
        Some(match name {
            "read" | "write" | "getdents" | "getdents64" => {
                [self.any_fd(), buffer, length, 0, 0, 0]
            }
            "pread64" | "pwrite64" => [self.any_fd(), buffer, length, offset, 0, 0],
            "readv" | "writev" | "preadv" | "pwritev" | "preadv2" | "pwritev2" => {
                let (vectors, count) = self.vectors();
                [
                    self.any_fd(),
                    vectors,
                    count,
                    offset,
                    0,
                    self.pick(&[0, 0, 1, 2, 4, 8, 16, 31]),
                ]
            }
            "open" => [self.path(), open, 0o644, 0, 0, 0],
            "openat" => [self.directory(), self.path(), open, 0o644, 0, 0],
            "openat2" => {
                let how = [open, 0o644, self.flags(&[0, 1, 2, 4, 8, 16, 32])];
                [
                    self.directory(),
                    self.path(),
                    self.words(&how),
                    self.pick(&[24, 24, 24, 23, 32, 4096]),
                    0,
                    0,
                ]
            }
            "newfstatat" => [self.directory(), self.path(), buffer, self.flags(&AT), 0, 0],
            "statx" => [
                self.directory(),
                self.path(),
                self.flags(&AT),
                self.pick(&[0x7ff, 0xfff, 0x1fff]),
                buffer,
                0,
            ],
            "unlinkat" => [
                self.directory(),
                self.path(),
                self.pick(&[0, 0x200]),
                0,
                0,
                0,
            ],
            "renameat2" => [
                self.directory(),
                self.path(),
                self.directory(),
                self.path(),
                self.pick(&[0, 1, 2, 4]),
                0,
            ],
            "linkat" => [
                self.directory(),
                self.path(),
                self.directory(),
                self.path(),
                self.flags(&AT),
                0,
            ],
            "utimensat" => [
                self.directory(),
                self.path(),
                self.interval(),
                self.flags(&AT),
                0,
                0,
            ],
            "name_to_handle_at" => {
                let handle = self.words(&[self.word() & 0xff, 0, 0, 0]);
                let handle = if self.below(2) == 0 {
                    handle
                } else {
                    self.handle(128)
                };
                [
                    self.directory(),
                    self.path(),
                    handle,
                    self.place(),
                    self.pick(&[0, 0, 0x400, 0x1000]),
                    0,
                ]
            }
            "fcntl" => {
                let lock = [
                    self.below(3) | self.below(3) << 16,
                    self.below(100),
                    self.below(100),
                    self.process(),
                ];
                let command = self.pick(&FCNTL);
                let argument = match command {
                    5..8 | 36..39 => self.words(&lock),
                    10 | 11 => self.pick(&SIGNALS),
                    1033 => self.flags(&[0, 1, 2, 4, 8, 16]),
                    1031 => self.pick(&LENGTHS),
                    4 => self.flags(&[0, 0o2000, 0o4000, 0o20000]),
                    _ => self.below(64),
                };
                [self.any_fd(), command, argument, 0, 0, 0]
            }
            "ioctl" => [self.any_fd(), self.pick(&IOCTL), self.place(), 0, 0, 0],
            "fallocate" => [
                self.fd(&[Sort::File, Sort::Memory]),
                self.pick(&[0, 1, 2, 3, 8, 16, 32, 64]),
                offset,
                length,
                0,
                0,
            ],
            "ftruncate" => [
                self.fd(&[Sort::File, Sort::Memory]),
                self.pick(&[0, 1, 100, 5000, 1 << 20, 1 << 40]),
                0,
                0,
                0,
                0,
            ],
            "splice" => [
                self.any_fd(),
                self.maybe(),
                self.fd(&[Sort::Pipe]),
                self.maybe(),
                length,
                self.below(16),
            ],
            "tee" => [
                self.fd(&[Sort::Pipe]),
                self.fd(&[Sort::Pipe]),
                length,
                self.below(16),
                0,
                0,
            ],
            "vmsplice" => {
                let (vectors, count) = self.vectors();
                [self.fd(&[Sort::Pipe]), vectors, count, self.below(16), 0, 0]
            }
            "sendfile" => [
                self.any_fd(),
                self.fd(&[Sort::File, Sort::Memory, Sort::Proc]),
                self.maybe(),
                length,
                0,
                0,
            ],
            "copy_file_range" => {
                let sorts = [Sort::File, Sort::Memory];
                [
                    self.fd(&sorts),
                    self.maybe(),
                    self.fd(&sorts),
                    self.maybe(),
                    length,
                    0,
                ]
            }
            "mount" => [
                self.path(),
                self.path(),
                self.path(),
                self.flags(&[0, 1, 2, 4, 8, 32, 4096, 8192, 1 << 14, 1 << 18, 1 << 20]),
                0,
                0,
            ],
            "execve" => [self.path(), self.strings(), self.strings(), 0, 0, 0],
            "execveat" => [
                self.directory(),
                self.path(),
                self.strings(),
                self.strings(),
                self.flags(&AT),
                0,
            ],
            "setxattr" | "lsetxattr" => [
                self.path(),
                self.attribute(),
                buffer,
                length.min(5000),
                self.below(3),
                0,
            ],
            "fsetxattr" => [
                self.any_fd(),
                self.attribute(),
                buffer,
                length.min(5000),
                self.below(3),
                0,
            ],
            "getxattr" | "lgetxattr" | "removexattr" | "lremovexattr" => {
                [self.path(), self.attribute(), buffer, length, 0, 0]
            }
            "fgetxattr" | "fremovexattr" => [self.any_fd(), self.attribute(), buffer, length, 0, 0],
            "fchownat" => [
                self.directory(),
                self.path(),
                self.pick(&[0, 65534, u64::MAX]),
                self.pick(&[0, 65534, u64::MAX]),
                self.flags(&AT),
                0,
            ],
            "open_by_handle_at" => [self.directory(), arena::writable(0) + HANDLE, open, 0, 0, 0],
            "mknodat" => {
                let kind = self.pick(&[0, 0o100000, 0o010000, 0o140000, 0o020000, 0o060000]);
                [
                    self.directory(),
                    self.path(),
                    kind | 0o600,
                    self.pick(&[0, 0x103, 0x105, 0x801]),
                    0,
                    0,
                ]
            }
            "faccessat2" | "fchmodat2" => [
                self.directory(),
                self.path(),
                self.below(8),
                self.pick(&[0, 0x100, 0x200, 0x1000]),
                0,
                0,
            ],
            "symlinkat" => [self.path(), self.directory(), self.path(), 0, 0, 0],
            "memfd_create" => [self.path(), self.flags(&[0, 1, 2, 4, 8, 16]), 0, 0, 0, 0],
            "close_range" => [
                20 + self.below(60),
                20 + self.below(80),
                self.pick(&[0, 2, 4, 6]),
                0,
                0,
                0,
            ],
            _ => return None,
        })
    }

    /// Where the handle of a file is that one call makes and another takes, with room for so much.
    fn handle(&self, room: u64) -> u64 {
        self.at(arena::writable(0) + HANDLE, room);
        arena::writable(0) + HANDLE
    }

    fn of_sockets(&self, name: &str) -> Option<[u64; 6]> {
        let socket = self.fd(&[
            Sort::Unix,
            Sort::Inet,
            Sort::Inet,
            Sort::Netlink,
            Sort::Opened,
        ]);
        let (address, address_length) = self.address();
        let (buffer, length) = self.buffer();
        let flags = self.flags(&MSG);
        Some(match name {
            "socket" | "socketpair" => {
                let family = self.pick(&[1, 2, 10, 16, 17, 0]);
                let kind = self.pick(&[1, 2, 3, 5, 0x801, 0x802, 0x805, 0x8_0001]);
                [
                    family,
                    kind,
                    self.pick(&[0, 0, 1, 6, 17, 58, 4, 15]),
                    self.place(),
                    0,
                    0,
                ]
            }
            // To the listener of the round.
            "connect" if self.below(3) == 0 => {
                let listener = self.words(&[u64::from_le_bytes(*b"\x01\0socket"), 0]);
                [self.fd(&[Sort::Unix, Sort::Opened]), listener, 9, 0, 0, 0]
            }
            "bind" | "connect" => [socket, address, address_length, 0, 0, 0],
            "listen" => [socket, self.pick(&[0, 1, 5, 128, u64::MAX]), 0, 0, 0, 0],
            "accept" | "accept4" | "getsockname" | "getpeername" => {
                let size = self.words(&[128]);
                let socket = if name.starts_with("accept") {
                    self.fd(&[Sort::Listener])
                } else {
                    socket
                };
                [
                    socket,
                    buffer,
                    size,
                    self.pick(&[0, 0o4000, 0o2000000]),
                    0,
                    0,
                ]
            }
            "sendto" => [socket, buffer, length, flags, address, address_length],
            "recvfrom" => [
                socket,
                buffer,
                length,
                flags,
                self.maybe(),
                self.words(&[128]),
            ],
            "sendmsg" | "recvmsg" => {
                let message = self.message();
                [socket, self.words(&message), flags, 0, 0, 0]
            }
            "sendmmsg" | "recvmmsg" => {
                let (at, count) = self.messages();
                [socket, at, count, flags, self.time_at(), 0]
            }
            "setsockopt" => {
                let (level, names) = OPTIONS[self.below(6) as usize].clone();
                let option = names.start + self.below(names.end - names.start);
                let value = if level == 1 && option == 26 {
                    self.filter()
                } else {
                    self.words(&[self.small(), 0, 0, 0])
                };
                [
                    socket,
                    level,
                    option,
                    value,
                    self.pick(&[4, 4, 4, 1, 8, 12, 16, 20, 32, 40]),
                    0,
                ]
            }
            "getsockopt" => {
                let (level, names) = OPTIONS[self.below(6) as usize].clone();
                let size = self.pick(&[4, 4, 1, 8, 16, 100, 256, 0xffff_ffff]);
                [
                    socket,
                    level,
                    names.start + self.below(names.end - names.start),
                    buffer,
                    self.words(&[size]),
                    0,
                ]
            }
            _ => return None,
        })
    }

    fn small(&self) -> u64 {
        if self.below(4) == 0 {
            self.next()
        } else {
            self.below(5)
        }
    }

    fn of_events(&self, name: &str) -> Option<[u64; 6]> {
        let clock = self.pick(&CLOCKS);
        Some(match name {
            "epoll_ctl" => {
                let interest =
                    self.next() & 0x1fff | self.pick(&[0, 1 << 31, 1 << 30, 1 << 28, 1 << 29]);
                let event = self.words(&[interest | self.small() << 32, 7]);
                [
                    self.fd(&[Sort::Epoll]),
                    1 + self.below(3),
                    self.any_fd(),
                    event,
                    0,
                    0,
                ]
            }
            "epoll_wait" | "epoll_pwait" => [
                self.fd(&[Sort::Epoll]),
                self.place(),
                1 + self.below(20),
                self.pick(&[0, 1, 3, u64::MAX]),
                self.maybe(),
                8,
            ],
            "epoll_pwait2" => [
                self.fd(&[Sort::Epoll]),
                self.place(),
                1 + self.below(20),
                self.time_at(),
                self.maybe(),
                8,
            ],
            "poll" => {
                let (at, count) = self.polled();
                [at, count, self.pick(&[0, 1, 3, u64::MAX]), 0, 0, 0]
            }
            "ppoll" => {
                let (at, count) = self.polled();
                [at, count, self.time_at(), self.set(), 8, 0]
            }
            "select" | "pselect6" => [
                self.pick(&[1, 8, 40, 64, 65]),
                self.set(),
                self.set(),
                self.maybe(),
                self.time_at(),
                0,
            ],
            "timerfd_create" => [clock, self.pick(&[0, 0o4000, 0o2000000]), 0, 0, 0, 0],
            "timerfd_settime" => [
                self.fd(&[Sort::Timer]),
                self.below(4),
                self.interval(),
                self.maybe(),
                0,
                0,
            ],
            "timer_create" => [clock, self.notification(), self.place(), 0, 0, 0],
            "timer_settime" => [
                self.below(6),
                self.below(2),
                self.interval(),
                self.maybe(),
                0,
                0,
            ],
            "setitimer" => [self.below(3), self.interval(), self.maybe(), 0, 0, 0],
            "nanosleep" => [self.time_at(), self.maybe(), 0, 0, 0, 0],
            "clock_nanosleep" => [clock, self.below(2), self.time_at(), self.maybe(), 0, 0],
            "clock_gettime" | "clock_getres" => [clock, self.place(), 0, 0, 0, 0],
            "signalfd" | "signalfd4" => {
                let to = if self.below(2) == 0 {
                    u64::MAX
                } else {
                    self.fd(&[Sort::Signal])
                };
                [to, self.set(), 8, self.pick(&[0, 0o4000]), 0, 0]
            }
            "rt_sigprocmask" => [self.below(3), self.set(), self.maybe(), 8, 0, 0],
            "rt_sigtimedwait" => [self.set(), self.maybe(), self.time_at(), 8, 0, 0],
            "rt_sigqueueinfo" | "rt_tgsigqueueinfo" | "pidfd_send_signal" => {
                let signal = self.pick(&SIGNALS);
                let info = self.words(&[
                    signal,
                    self.pick(&[0xffff_ffff, 0xffff_fffe, 0, 0x80]),
                    self.word(),
                    0,
                ]);
                match name {
                    "rt_sigqueueinfo" => [CHILD_PID, signal, info, 0, 0, 0],
                    "pidfd_send_signal" => {
                        [self.fd(&[Sort::Process]), signal, info, self.below(5), 0, 0]
                    }
                    _ => [CHILD_PID, CHILD_PID, signal, info, 0, 0],
                }
            }
            "kill" | "tkill" => [self.process(), self.pick(&SIGNALS), 0, 0, 0, 0],
            "inotify_add_watch" => [
                self.fd(&[Sort::Watch]),
                self.path(),
                self.next() & 0xfff | 1 << self.below(32),
                0,
                0,
                0,
            ],
            "inotify_rm_watch" => [self.fd(&[Sort::Watch]), 1 + self.below(4), 0, 0, 0, 0],
            "mq_open" => {
                let attributes = self.words(&[0, 1 + self.below(12), 1 + self.below(8192), 0]);
                [self.path(), self.flags(&OPEN), 0o600, attributes, 0, 0]
            }
            "mq_timedsend" => [
                self.fd(&[Sort::Queue]),
                self.place(),
                self.below(100),
                self.below(40),
                self.time_at(),
                0,
            ],
            "mq_timedreceive" => [
                self.fd(&[Sort::Queue]),
                self.place(),
                8192,
                self.maybe(),
                self.time_at(),
                0,
            ],
            "mq_notify" => [
                self.fd(&[Sort::Queue]),
                if self.below(3) == 0 {
                    0
                } else {
                    self.notification()
                },
                0,
                0,
                0,
                0,
            ],
            "mq_getsetattr" => [self.fd(&[Sort::Queue]), self.maybe(), self.maybe(), 0, 0, 0],
            "semget" => [
                self.below(4),
                self.below(9),
                self.pick(&[0, 0o1600, 0o3600]),
                0,
                0,
                0,
            ],
            "semop" | "semtimedop" => {
                let count = 1 + self.below(3);
                let operations =
                    self.words(&[self.operation(), self.operation(), self.operation()]);
                [self.below(4), operations, count, self.time_at(), 0, 0]
            }
            "semctl" => [
                self.below(4),
                self.below(4),
                self.pick(&[0, 1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
                self.place(),
                0,
                0,
            ],
            "msgget" => [self.below(4), self.pick(&[0, 0o1600, 0o3600]), 0, 0, 0, 0],
            "msgsnd" => [
                self.below(4),
                self.words(&[1 + self.word() % 4, 0]),
                self.below(200),
                self.pick(&[0, 0o4000]),
                0,
                0,
            ],
            "msgrcv" => [
                self.below(4),
                self.place(),
                self.below(200),
                self.below(6),
                self.pick(&[0, 0o4000, 0o10000, 0o20000, 0o44000]),
                0,
            ],
            "msgctl" => [
                self.below(4),
                self.pick(&[0, 1, 2, 3, 11, 12, 13]),
                self.place(),
                0,
                0,
                0,
            ],
            _ => return None,
        })
    }

    /// `struct sembuf`
    fn operation(&self) -> u64 {
        self.below(4)
            | (self.below(5).wrapping_sub(2) & 0xffff) << 16
            | self.pick(&[0, 0x800, 0x1000, 0x1800]) << 32
    }

    fn of_memory(&self, name: &str) -> Option<[u64; 6]> {
        let (at, length) = self.memory();
        let access = self.pick(&[0, 1, 2, 3, 3, 5, 7, 0x0100_0003, 0x0200_0003]);
        Some(match name {
            "mmap" => {
                let fd = self.fd(&[Sort::File, Sort::Memory, Sort::Other, Sort::Proc]);
                let fd = if self.below(3) == 0 { u64::MAX } else { fd };
                let flags = self.pick(&MMAP);
                [
                    if flags & 0x10 == 0 && self.below(2) == 0 {
                        0
                    } else {
                        at
                    },
                    length.min(64 << 20),
                    access,
                    flags,
                    fd,
                    self.below(4) * PAGE,
                ]
            }
            "mprotect" | "pkey_mprotect" => {
                [at, length, access, self.pick(&[u64::MAX, 0, 1, 2]), 0, 0]
            }
            "munmap" | "mlock" | "munlock" | "mlock2" | "mseal" => {
                [at, length.min(64 << 20), self.below(2), 0, 0, 0]
            }
            "mremap" => [
                at,
                length,
                self.memory().1,
                self.below(8),
                self.memory().0,
                0,
            ],
            "madvise" => [at, length, self.pick(&MADVISE), 0, 0, 0],
            "process_madvise" => {
                let vector = self.words(&[at, length]);
                [
                    self.fd(&[Sort::Process]),
                    vector,
                    1,
                    self.pick(&MADVISE),
                    0,
                    0,
                ]
            }
            "msync" => [at, length, self.below(8), 0, 0, 0],
            "mincore" => [at, length, self.place(), 0, 0, 0],
            "remap_file_pages" => [at, length, 0, self.below(8), 0, 0],
            "shmget" => [
                self.below(4),
                self.pick(&[1, PAGE, 10 * PAGE, 0, 1 << 40]),
                self.pick(&[0, 0o1600, 0o3600, 0o11600]),
                0,
                0,
                0,
            ],
            "shmat" => [
                self.below(4),
                if self.below(2) == 0 { 0 } else { at },
                self.pick(&[0, 0o10000, 0o20000, 0o40000, 0o100000]),
                0,
                0,
                0,
            ],
            "shmctl" => [
                self.below(4),
                self.pick(&[0, 1, 2, 3, 11, 12, 13, 14, 15]),
                self.place(),
                0,
                0,
                0,
            ],
            "shmdt" => [at, 0, 0, 0, 0, 0],
            "mbind" | "set_mempolicy" | "get_mempolicy" => {
                let nodes = self.words(&[self.word() & 3]);
                match name {
                    "mbind" => [
                        at,
                        length,
                        self.below(7),
                        nodes,
                        self.below(66),
                        self.below(8),
                    ],
                    "set_mempolicy" => [self.below(7), nodes, self.below(66), 0, 0, 0],
                    _ => [self.maybe(), self.maybe(), 64, at, self.below(8), 0],
                }
            }
            "futex" => {
                let cell = self.cell();
                let operation = self.below(14) | self.pick(&[0, 0, 128, 256, 384]);
                let count = self.pick(&[0, 1, 2, 0x7fff_ffff]);
                let other = if self.below(2) == 0 {
                    self.time_at()
                } else {
                    count
                };
                [cell, operation, count, other, self.cell(), self.mask()]
            }
            "futex_wake" => [
                self.one(&[self.cell(), self.untouched()]),
                self.mask(),
                self.below(4),
                self.pick(&[2, 0x82]),
                0,
                0,
            ],
            "futex_wait" => [
                self.untouched(),
                self.pick(&[0, UNTOUCHED]),
                self.mask(),
                self.pick(&[2, 0x82]),
                self.time_at(),
                self.below(2),
            ],
            "futex_waitv" | "futex_requeue" => {
                let mut words = Vec::new();
                for _ in 0..4 {
                    words.extend([
                        self.pick(&[0, UNTOUCHED]),
                        self.untouched(),
                        self.pick(&[2, 0x82]),
                    ]);
                }
                let waiters = self.words(&words);
                match name {
                    "futex_waitv" => [
                        waiters,
                        1 + self.below(4),
                        0,
                        self.time_at(),
                        self.below(2),
                        0,
                    ],
                    _ => [waiters, 0, self.below(3), self.below(3), 0, 0],
                }
            }
            "set_robust_list" => {
                let node = self.cell();
                let head = self.words(&[node, 0, node]);
                [head, 24, 0, 0, 0, 0]
            }
            "process_vm_readv" | "process_vm_writev" => {
                let [(near, count), (far, far_count)] = [self.vectors(), self.vectors()];
                [self.process(), near, count, far, far_count, 0]
            }
            "membarrier" => [
                self.pick(&[0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
                self.below(2),
                self.below(3),
                0,
                0,
                0,
            ],
            _ => return None,
        })
    }

    fn mask(&self) -> u64 {
        self.pick(&[0xffff_ffff, 0xffff_ffff, 1, 2, 0])
    }

    /// One of a few words that the threads of a round wait at.
    fn cell(&self) -> u64 {
        arena::writable(self.below(arena::WRITABLE)) + 8 * self.below(4)
    }

    /// A word that is zero, unless something went astray.
    fn untouched(&self) -> u64 {
        arena::SHARED + 8 * self.below(4)
    }

    fn of_processes(&self, name: &str) -> Option<[u64; 6]> {
        let process = self.process();
        Some(match name {
            "clone" => [
                self.flags(&CLONE) & !0xff | self.pick(&[0, 17, 9]),
                0,
                self.place(),
                self.place(),
                self.maybe(),
                0,
            ],
            "clone3" => {
                let flags = self.flags(&CLONE) & !0xff;
                let places = [self.place(), self.place(), self.place()];
                let words = [
                    flags,
                    places[0],
                    places[1],
                    places[2],
                    self.pick(&[0, 17]),
                    0,
                    0,
                    self.maybe(),
                    0,
                    0,
                    0,
                ];
                [
                    self.words(&words),
                    self.pick(&[64, 80, 88, 88, 63, 96]),
                    0,
                    0,
                    0,
                    0,
                ]
            }
            "wait4" => [
                self.pick(&[u64::MAX, CHILD_PID, 0]),
                self.maybe(),
                self.pick(&[1, 3, 9, 0x4000_0001, 0x8000_0001]),
                self.maybe(),
                0,
                0,
            ],
            "waitid" => {
                let (how, of) = self.one(&[(0, 0), (1, CHILD_PID), (2, 0), (3, 19)]);
                [
                    how,
                    of,
                    self.maybe(),
                    self.pick(&[5, 7, 15, 0x0100_0005, 0x4000_0005]),
                    self.maybe(),
                    0,
                ]
            }
            "ptrace" => {
                let request = self.pick(&PTRACE);
                let options = self.pick(&[0, 1, 0x7f, 0x10_0001, 0x20_007f]);
                let (vectors, _) = self.vectors();
                let at = match request {
                    0x4204 | 0x4205 => self.pick(&[1, 2, 0x202, 0x200]),
                    3 | 6 => 8 * self.below(120),
                    _ => self.place(),
                };
                let data = match request {
                    0x4200 | 0x4206 => options,
                    0x4204 | 0x4205 => vectors,
                    7 | 8 | 9 | 17 | 24 | 31 | 32 => self.pick(&[0, 0, 9, 10, 19]),
                    _ => self.place(),
                };
                [
                    request,
                    CHILD_PID,
                    if request == 0x4206 { 0 } else { at },
                    data,
                    0,
                    0,
                ]
            }
            "prctl" => [
                self.pick(&PRCTL),
                self.small(),
                self.place(),
                self.below(200),
                self.below(2),
                0,
            ],
            "seccomp" => [
                self.pick(&[1, 1, 2, 3]),
                self.pick(&[0, 0, 1, 2, 4, 8]),
                self.filter(),
                0,
                0,
                0,
            ],
            "sched_setscheduler" => [
                process,
                self.pick(&[0, 1, 2, 3, 5, 0x4000_0001]),
                self.words(&[self.word() % WATCHER_PRIORITY]),
                0,
                0,
                0,
            ],
            "sched_setattr" => {
                let policy = self.pick(&[0, 1, 2, 3, 5, 6]);
                let words = [
                    48 | policy << 32,
                    self.below(128),
                    self.below(20) | self.below(WATCHER_PRIORITY) << 32,
                    0,
                    0,
                    0,
                    0,
                ];
                [process, self.words(&words), 0, 0, 0, 0]
            }
            "sched_setaffinity" => [process, 8, self.words(&[self.word() & 15]), 0, 0, 0],
            "ioprio_set" => [1, process, self.below(4) << 13 | self.below(8), 0, 0, 0],
            "prlimit64" => {
                let limits = [
                    self.pick(&[0, 4096, 1 << 26, u64::MAX]),
                    self.pick(&[4096, 1 << 26, u64::MAX]),
                ];
                [
                    CHILD_PID,
                    self.below(17),
                    self.words(&limits),
                    self.maybe(),
                    0,
                    0,
                ]
            }
            "kcmp" => [
                process,
                process,
                self.below(8),
                self.any_fd(),
                self.any_fd(),
                0,
            ],
            "pidfd_open" => [process, self.pick(&[0, 0o4000, 0o200]), 0, 0, 0, 0],
            "pidfd_getfd" => [self.fd(&[Sort::Process]), self.any_fd(), 0, 0, 0, 0],
            "capget" | "capset" => {
                let sets = self.next();
                let header = self.words(&[0x2008_0522, 0]);
                [header, self.words(&[sets, sets, sets]), 0, 0, 0, 0]
            }
            "sigaltstack" => [
                self.words(&[arena::writable(0), 0, PAGE]),
                self.maybe(),
                0,
                0,
                0,
                0,
            ],
            _ => return None,
        })
    }
}
