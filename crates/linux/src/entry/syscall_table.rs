//! The table of system calls: number, name, the kinds of the arguments (for tracing), the function.
//! How they are called is in `dispatch`.

use guard::user::{SyscallOutcome, UserRegs};

use crate::cred::{capability, setuid};
use crate::entry::dispatch::{
    ArgKind, Handler, SYSCALL_COUNT, Syscall, arg, is_time_sampled, syscall_outcome,
};
use crate::files::{
    dirent, fallocate, fcntl, fhandle, inotify, ioctl, namei, pipe, poll, read_write, splice, stat,
    xattr,
};
use crate::futex::{self, waitv};
use crate::ipc::{mqueue, msg, sem, shm};
use crate::mm::{membarrier, mempolicy, mmap};
use crate::mount::{self, fsopen};
use crate::process_control::{clone, exec, exit, namespaces, pid, pidfd, prctl, rlimit, wait};
use crate::ptrace::{self, process_vm};
use crate::sched::{self, ioprio, rseq};
use crate::signal::{self, kill, restart_syscall, signalfd, sigwait};
use crate::socket::{self, send_recv, sockopt};
use crate::system::{klog, sysinfo};
use crate::time::{self, posix_timers, rusage, timerfd, timex, wall_clock};
use crate::{Task, seccomp};

macro_rules! calls {
    ($($number:literal $name:ident($($kind:ident),*) = [$($function:tt)+]);+ ;) => {
        /// All system calls that are implemented, by number.
        pub static SYSCALLS: [Option<Syscall>; SYSCALL_COUNT] = {
            let mut table = [const { None }; SYSCALL_COUNT];
            $(table[$number] = Some(Syscall {
                name: stringify!($name),
                args: &[$(ArgKind::$kind),*],
                handler: handler!($name($($kind),*) $($function)+),
            });)+
            table
        };
    };
}

// A remark behind a call says what it lacks (`partial: …`), or why it may do nothing (`stub: …`);
// `cargo xtask abi` makes docs/linux-abi.md of it.
#[rustfmt::skip]
calls! {
    0 read(Fd, Ptr, Num) = [read_write::sys_read];
    1 write(Fd, Ptr, Num) = [read_write::sys_write];
    2 open(Str, Hex, Oct) = [namei::sys_open];
    3 close(Fd) = [fcntl::sys_close];
    4 stat(Str, Ptr) = [stat::sys_stat];
    5 fstat(Fd, Ptr) = [stat::sys_fstat];
    6 lstat(Str, Ptr) = [stat::sys_lstat];
    7 poll(Ptr, Num, Int) = [poll::sys_poll];
    8 lseek(Fd, Int, Num) = [read_write::sys_lseek];
    9 mmap(Ptr, Num, Hex, Hex, Fd, Hex) = [mmap::sys_mmap]; // partial: nothing is mapped below mmap_min_addr, for no capability
    10 mprotect(Ptr, Num, Hex) = [mmap::sys_mprotect];
    11 munmap(Ptr, Num) = [mmap::sys_munmap];
    12 brk(Ptr) = [mmap::sys_brk];
    13 rt_sigaction(Sig, Ptr, Ptr, Num) = [signal::sys_rt_sigaction];
    14 rt_sigprocmask(Num, Ptr, Ptr, Num) = [sigwait::sys_rt_sigprocmask];
    15 rt_sigreturn() = [regs signal::sys_rt_sigreturn];
    16 ioctl(Fd, Hex, Ptr) = [ioctl::sys_ioctl];
    17 pread64(Fd, Ptr, Num, Int) = [read_write::sys_pread64];
    18 pwrite64(Fd, Ptr, Num, Int) = [read_write::sys_pwrite64];
    19 readv(Fd, Ptr, Num) = [read_write::sys_readv];
    20 writev(Fd, Ptr, Num) = [read_write::sys_writev];
    21 access(Str, Oct) = [stat::sys_access];
    22 pipe(Ptr) = [pipe::sys_pipe];
    23 select(Int, Ptr, Ptr, Ptr, Ptr) = [poll::sys_select];
    24 sched_yield() = [sched::sys_sched_yield];
    25 mremap(Ptr, Num, Num, Hex, Ptr) = [mmap::sys_mremap];
    26 msync(Ptr, Num, Hex) = [mmap::sys_msync];
    27 mincore(Ptr, Num, Ptr) = [mmap::sys_mincore];
    28 madvise(Ptr, Num, Num) = [mmap::sys_madvise];
    29 shmget(Int, Num, Oct) = [shm::sys_shmget];
    30 shmat(Int, Ptr, Oct) = [shm::sys_shmat];
    31 shmctl(Int, Num, Ptr) = [shm::sys_shmctl];
    32 dup(Fd) = [fcntl::sys_dup];
    33 dup2(Fd, Fd) = [fcntl::sys_dup2];
    34 pause() = [sigwait::sys_pause];
    35 nanosleep(Ptr, Ptr) = [time::sys_nanosleep];
    36 getitimer(Num, Ptr) = [posix_timers::sys_getitimer];
    37 alarm(Num) = [posix_timers::sys_alarm];
    38 setitimer(Num, Ptr, Ptr) = [posix_timers::sys_setitimer];
    39 getpid() = [pid::sys_getpid];
    40 sendfile(Fd, Fd, Ptr, Num) = [splice::sys_sendfile];
    41 socket(Num, Hex, Int) = [socket::sys_socket];
    42 connect(Fd, Ptr, Num) = [socket::sys_connect];
    43 accept(Fd, Ptr, Ptr) = [socket::sys_accept];
    44 sendto(Fd, Ptr, Num, Hex, Ptr, Num) = [send_recv::sys_sendto];
    45 recvfrom(Fd, Ptr, Num, Hex, Ptr, Ptr) = [send_recv::sys_recvfrom];
    46 sendmsg(Fd, Ptr, Hex) = [send_recv::sys_sendmsg];
    47 recvmsg(Fd, Ptr, Hex) = [send_recv::sys_recvmsg];
    48 shutdown(Fd, Num) = [socket::sys_shutdown];
    49 bind(Fd, Ptr, Num) = [socket::sys_bind];
    50 listen(Fd, Int) = [socket::sys_listen];
    51 getsockname(Fd, Ptr, Ptr) = [socket::sys_getsockname];
    52 getpeername(Fd, Ptr, Ptr) = [socket::sys_getpeername];
    53 socketpair(Num, Hex, Int, Ptr) = [socket::sys_socketpair];
    54 setsockopt(Fd, Num, Num, Ptr, Int) = [sockopt::sys_setsockopt];
    55 getsockopt(Fd, Num, Num, Ptr, Ptr) = [sockopt::sys_getsockopt];
    56 clone(Hex, Ptr, Ptr, Ptr, Ptr) = [regs clone::sys_clone];
    57 fork() = [regs clone::sys_fork];
    58 vfork() = [regs clone::sys_vfork];
    59 execve(Str, Ptr, Ptr) = [regs exec::sys_execve];
    60 exit(Int) = [exit::sys_exit];
    61 wait4(Int, Ptr, Hex, Ptr) = [wait::sys_wait4];
    62 kill(Int, Sig) = [kill::sys_kill];
    63 uname(Ptr) = [sysinfo::sys_uname];
    64 semget(Int, Int, Oct) = [sem::sys_semget];
    65 semop(Int, Ptr, Num) = [sem::sys_semop];
    66 semctl(Int, Int, Num, Ptr) = [sem::sys_semctl];
    67 shmdt(Ptr) = [shm::sys_shmdt];
    68 msgget(Int, Oct) = [msg::sys_msgget];
    69 msgsnd(Int, Ptr, Num, Oct) = [msg::sys_msgsnd];
    70 msgrcv(Int, Ptr, Num, Int, Oct) = [msg::sys_msgrcv];
    71 msgctl(Int, Num, Ptr) = [msg::sys_msgctl];
    72 fcntl(Fd, Num, Ptr) = [fcntl::sys_fcntl];
    73 flock(Fd, Hex) = [fcntl::sys_flock];
    74 fsync(Fd) = [fallocate::sys_fsync];
    75 fdatasync(Fd) = [fallocate::sys_fdatasync];
    76 truncate(Str, Int) = [namei::sys_truncate];
    77 ftruncate(Fd, Int) = [fallocate::sys_ftruncate];
    78 getdents(Fd, Ptr, Num) = [dirent::sys_getdents];
    79 getcwd(Ptr, Num) = [namei::sys_getcwd];
    80 chdir(Str) = [namei::sys_chdir];
    81 fchdir(Fd) = [namei::sys_fchdir];
    82 rename(Str, Str) = [namei::sys_rename];
    83 mkdir(Str, Oct) = [namei::sys_mkdir];
    84 rmdir(Str) = [namei::sys_rmdir];
    85 creat(Str, Oct) = [namei::sys_creat];
    86 link(Str, Str) = [namei::sys_link];
    87 unlink(Str) = [namei::sys_unlink];
    88 symlink(Str, Str) = [namei::sys_symlink];
    89 readlink(Str, Ptr, Num) = [namei::sys_readlink];
    90 chmod(Str, Oct) = [namei::sys_chmod];
    91 fchmod(Fd, Oct) = [namei::sys_fchmod];
    92 chown(Str, Int, Int) = [namei::sys_chown];
    93 fchown(Fd, Int, Int) = [namei::sys_fchown];
    94 lchown(Str, Int, Int) = [namei::sys_lchown];
    95 umask(Oct) = [namei::sys_umask];
    96 gettimeofday(Ptr, Ptr) = [time::sys_gettimeofday];
    97 getrlimit(Num, Ptr) = [rlimit::sys_getrlimit];
    98 getrusage(Int, Ptr) = [rusage::sys_getrusage];
    99 sysinfo(Ptr) = [sysinfo::sys_sysinfo];
    100 times(Ptr) = [rusage::sys_times];
    101 ptrace(Num, Int, Ptr, Ptr) = [ptrace::sys_ptrace]; // partial: no PTRACE_O_SUSPEND_SECCOMP, no requests about filters, rseq and user dispatch
    102 getuid() = [setuid::sys_getuid];
    103 syslog(Num, Ptr, Num) = [klog::sys_syslog];
    104 getgid() = [setuid::sys_getgid];
    105 setuid(Int) = [setuid::sys_setuid];
    106 setgid(Int) = [setuid::sys_setgid];
    107 geteuid() = [setuid::sys_geteuid];
    108 getegid() = [setuid::sys_getegid];
    109 setpgid(Int, Int) = [pid::sys_setpgid];
    110 getppid() = [pid::sys_getppid];
    111 getpgrp() = [pid::sys_getpgrp];
    112 setsid() = [pid::sys_setsid];
    113 setreuid(Int, Int) = [setuid::sys_setreuid];
    114 setregid(Int, Int) = [setuid::sys_setregid];
    115 getgroups(Int, Ptr) = [setuid::sys_getgroups];
    116 setgroups(Num, Ptr) = [setuid::sys_setgroups];
    117 setresuid(Int, Int, Int) = [setuid::sys_setresuid];
    118 getresuid(Ptr, Ptr, Ptr) = [setuid::sys_getresuid];
    119 setresgid(Int, Int, Int) = [setuid::sys_setresgid];
    120 getresgid(Ptr, Ptr, Ptr) = [setuid::sys_getresgid];
    121 getpgid(Int) = [pid::sys_getpgid];
    122 setfsuid(Int) = [setuid::sys_setfsuid];
    123 setfsgid(Int) = [setuid::sys_setfsgid];
    124 getsid(Int) = [pid::sys_getsid];
    125 capget(Ptr, Ptr) = [capability::sys_capget];
    126 capset(Ptr, Ptr) = [capability::sys_capset];
    127 rt_sigpending(Ptr, Num) = [sigwait::sys_rt_sigpending];
    128 rt_sigtimedwait(Ptr, Ptr, Ptr, Num) = [sigwait::sys_rt_sigtimedwait];
    129 rt_sigqueueinfo(Int, Sig, Ptr) = [kill::sys_rt_sigqueueinfo];
    130 rt_sigsuspend(Ptr, Num) = [sigwait::sys_rt_sigsuspend];
    131 sigaltstack(Ptr, Ptr) = [regs signal::sys_sigaltstack];
    132 utime(Str, Ptr) = [namei::sys_utime];
    133 mknod(Str, Oct, Hex) = [namei::sys_mknod];
    135 personality(Hex) = [sysinfo::sys_personality]; // partial: no MMAP_PAGE_ZERO: nothing is mapped below mmap_min_addr
    136 ustat(Num, Ptr) = [stat::sys_ustat];
    137 statfs(Str, Ptr) = [stat::sys_statfs];
    138 fstatfs(Fd, Ptr) = [stat::sys_fstatfs];
    139 sysfs(Num, Ptr, Ptr) = [mount::sys_sysfs];
    140 getpriority(Num, Int) = [sched::sys_getpriority];
    141 setpriority(Num, Int, Int) = [sched::sys_setpriority];
    142 sched_setparam(Int, Ptr) = [sched::sys_sched_setparam];
    143 sched_getparam(Int, Ptr) = [sched::sys_sched_getparam];
    144 sched_setscheduler(Int, Num, Ptr) = [sched::sys_sched_setscheduler];
    145 sched_getscheduler(Int) = [sched::sys_sched_getscheduler];
    146 sched_get_priority_max(Num) = [sched::sys_sched_get_priority_max];
    147 sched_get_priority_min(Num) = [sched::sys_sched_get_priority_min];
    148 sched_rr_get_interval(Int, Ptr) = [sched::sys_sched_rr_get_interval];
    149 mlock(Ptr, Num) = [mmap::sys_mlock];
    150 munlock(Ptr, Num) = [mmap::sys_munlock];
    151 mlockall(Hex) = [mmap::sys_mlockall];
    152 munlockall() = [mmap::sys_munlockall];
    153 vhangup() = [sysinfo::sys_vhangup];
    155 pivot_root(Str, Str) = [mount::sys_pivot_root];
    157 prctl(Num, Ptr, Ptr, Ptr, Ptr) = [prctl::sys_prctl];
    158 arch_prctl(Hex, Ptr) = [sysinfo::sys_arch_prctl];
    159 adjtimex(Ptr) = [timex::sys_adjtimex]; // partial: the clock can be read and moved (ADJ_SETOFFSET, ADJ_TAI), and what is told of how well it is kept is remembered; what would change its rate, its time by and by, or put in leap seconds is EOPNOTSUPP
    160 setrlimit(Num, Ptr) = [rlimit::sys_setrlimit];
    161 chroot(Str) = [namei::sys_chroot];
    162 sync() = [fallocate::sys_sync];
    164 settimeofday(Ptr, Ptr) = [wall_clock::sys_settimeofday];
    165 mount(Str, Str, Str, Hex, Ptr) = [mount::sys_mount];
    166 umount2(Str, Hex) = [mount::sys_umount2];
    169 reboot(Hex, Hex, Hex, Ptr) = [sysinfo::sys_reboot]; // partial: power off, restart and Ctrl-Alt-Del
    170 sethostname(Ptr, Num) = [sysinfo::sys_sethostname];
    171 setdomainname(Ptr, Num) = [sysinfo::sys_setdomainname];
    186 gettid() = [pid::sys_gettid];
    187 readahead(Fd, Int, Num) = [fallocate::sys_readahead]; // stub: all files are in memory
    188 setxattr(Str, Str, Ptr, Num, Hex) = [xattr::sys_setxattr];
    189 lsetxattr(Str, Str, Ptr, Num, Hex) = [xattr::sys_lsetxattr];
    190 fsetxattr(Fd, Str, Ptr, Num, Hex) = [xattr::sys_fsetxattr];
    191 getxattr(Str, Str, Ptr, Num) = [xattr::sys_getxattr];
    192 lgetxattr(Str, Str, Ptr, Num) = [xattr::sys_lgetxattr];
    193 fgetxattr(Fd, Str, Ptr, Num) = [xattr::sys_fgetxattr];
    194 listxattr(Str, Ptr, Num) = [xattr::sys_listxattr];
    195 llistxattr(Str, Ptr, Num) = [xattr::sys_llistxattr];
    196 flistxattr(Fd, Ptr, Num) = [xattr::sys_flistxattr];
    197 removexattr(Str, Str) = [xattr::sys_removexattr];
    198 lremovexattr(Str, Str) = [xattr::sys_lremovexattr];
    199 fremovexattr(Fd, Str) = [xattr::sys_fremovexattr];
    200 tkill(Int, Sig) = [kill::sys_tkill];
    201 time(Ptr) = [time::sys_time];
    202 futex(Ptr, Hex, Num, Ptr, Ptr, Hex) = [futex::sys_futex];
    203 sched_setaffinity(Int, Num, Ptr) = [sched::sys_sched_setaffinity];
    204 sched_getaffinity(Int, Num, Ptr) = [sched::sys_sched_getaffinity];
    213 epoll_create(Int) = [poll::sys_epoll_create];
    216 remap_file_pages(Ptr, Num, Hex, Num, Hex) = [mmap::sys_remap_file_pages];
    217 getdents64(Fd, Ptr, Num) = [dirent::sys_getdents64];
    218 set_tid_address(Ptr) = [pid::sys_set_tid_address];
    219 restart_syscall() = [restart_syscall::sys_restart_syscall];
    220 semtimedop(Int, Ptr, Num, Ptr) = [sem::sys_semtimedop];
    221 fadvise64(Fd, Int, Int, Num) = [fallocate::sys_fadvise64];
    222 timer_create(Num, Ptr, Ptr) = [posix_timers::sys_timer_create];
    223 timer_settime(Int, Hex, Ptr, Ptr) = [posix_timers::sys_timer_settime];
    224 timer_gettime(Int, Ptr) = [posix_timers::sys_timer_gettime];
    225 timer_getoverrun(Int) = [posix_timers::sys_timer_getoverrun];
    226 timer_delete(Int) = [posix_timers::sys_timer_delete];
    227 clock_settime(Int, Ptr) = [wall_clock::sys_clock_settime];
    228 clock_gettime(Int, Ptr) = [time::sys_clock_gettime];
    229 clock_getres(Int, Ptr) = [time::sys_clock_getres];
    230 clock_nanosleep(Int, Hex, Ptr, Ptr) = [time::sys_clock_nanosleep];
    231 exit_group(Int) = [exit::sys_exit_group];
    232 epoll_wait(Fd, Ptr, Int, Int) = [poll::sys_epoll_wait];
    233 epoll_ctl(Fd, Num, Fd, Ptr) = [poll::sys_epoll_ctl];
    234 tgkill(Int, Int, Sig) = [kill::sys_tgkill];
    235 utimes(Str, Ptr) = [namei::sys_utimes];
    237 mbind(Ptr, Num, Num, Ptr, Num, Hex) = [mempolicy::sys_mbind];
    238 set_mempolicy(Num, Ptr, Num) = [mempolicy::sys_set_mempolicy];
    239 get_mempolicy(Ptr, Ptr, Num, Ptr, Hex) = [mempolicy::sys_get_mempolicy];
    240 mq_open(Str, Hex, Oct, Ptr) = [mqueue::sys_mq_open];
    241 mq_unlink(Str) = [mqueue::sys_mq_unlink];
    242 mq_timedsend(Fd, Ptr, Num, Num, Ptr) = [mqueue::sys_mq_timedsend];
    243 mq_timedreceive(Fd, Ptr, Num, Ptr, Ptr) = [mqueue::sys_mq_timedreceive];
    244 mq_notify(Fd, Ptr) = [mqueue::sys_mq_notify];
    245 mq_getsetattr(Fd, Ptr, Ptr) = [mqueue::sys_mq_getsetattr];
    247 waitid(Num, Int, Ptr, Hex, Ptr) = [wait::sys_waitid];
    251 ioprio_set(Num, Int, Hex) = [ioprio::sys_ioprio_set];
    252 ioprio_get(Num, Int) = [ioprio::sys_ioprio_get];
    253 inotify_init() = [inotify::sys_inotify_init];
    254 inotify_add_watch(Fd, Str, Hex) = [inotify::sys_inotify_add_watch];
    255 inotify_rm_watch(Fd, Int) = [inotify::sys_inotify_rm_watch];
    256 migrate_pages(Int, Num, Ptr, Ptr) = [mempolicy::sys_migrate_pages];
    257 openat(Fd, Str, Hex, Oct) = [namei::sys_openat];
    258 mkdirat(Fd, Str, Oct) = [namei::sys_mkdirat];
    259 mknodat(Fd, Str, Oct, Hex) = [namei::sys_mknodat];
    260 fchownat(Fd, Str, Int, Int, Hex) = [namei::sys_fchownat];
    261 futimesat(Fd, Str, Ptr) = [namei::sys_futimesat];
    262 newfstatat(Fd, Str, Ptr, Hex) = [stat::sys_newfstatat];
    263 unlinkat(Fd, Str, Hex) = [namei::sys_unlinkat];
    264 renameat(Fd, Str, Fd, Str) = [namei::sys_renameat];
    265 linkat(Fd, Str, Fd, Str, Hex) = [namei::sys_linkat];
    266 symlinkat(Str, Fd, Str) = [namei::sys_symlinkat];
    267 readlinkat(Fd, Str, Ptr, Num) = [namei::sys_readlinkat];
    268 fchmodat(Fd, Str, Oct) = [namei::sys_fchmodat];
    269 faccessat(Fd, Str, Oct) = [stat::sys_faccessat];
    270 pselect6(Int, Ptr, Ptr, Ptr, Ptr, Ptr) = [poll::sys_pselect6];
    271 ppoll(Ptr, Num, Ptr, Ptr, Num) = [poll::sys_ppoll];
    272 unshare(Hex) = [namespaces::sys_unshare];
    273 set_robust_list(Ptr, Num) = [futex::sys_set_robust_list];
    274 get_robust_list(Int, Ptr, Ptr) = [futex::sys_get_robust_list];
    275 splice(Fd, Ptr, Fd, Ptr, Num, Hex) = [splice::sys_splice];
    276 tee(Fd, Fd, Num, Hex) = [splice::sys_tee];
    277 sync_file_range(Fd, Int, Int, Hex) = [fallocate::sys_sync_file_range];
    278 vmsplice(Fd, Ptr, Num, Hex) = [splice::sys_vmsplice];
    279 move_pages(Int, Num, Ptr, Ptr, Ptr, Hex) = [mempolicy::sys_move_pages];
    280 utimensat(Fd, Str, Ptr, Hex) = [namei::sys_utimensat];
    281 epoll_pwait(Fd, Ptr, Int, Int, Ptr, Num) = [poll::sys_epoll_pwait];
    282 signalfd(Fd, Ptr, Num) = [signalfd::sys_signalfd];
    283 timerfd_create(Int, Hex) = [timerfd::sys_timerfd_create];
    284 eventfd(Num) = [pipe::sys_eventfd];
    285 fallocate(Fd, Hex, Int, Int) = [fallocate::sys_fallocate];
    286 timerfd_settime(Fd, Hex, Ptr, Ptr) = [timerfd::sys_timerfd_settime];
    287 timerfd_gettime(Fd, Ptr) = [timerfd::sys_timerfd_gettime];
    288 accept4(Fd, Ptr, Ptr, Hex) = [socket::sys_accept4];
    289 signalfd4(Fd, Ptr, Num, Hex) = [signalfd::sys_signalfd4];
    290 eventfd2(Num, Hex) = [pipe::sys_eventfd2];
    291 epoll_create1(Hex) = [poll::sys_epoll_create1];
    292 dup3(Fd, Fd, Hex) = [fcntl::sys_dup3];
    293 pipe2(Ptr, Hex) = [pipe::sys_pipe2];
    294 inotify_init1(Hex) = [inotify::sys_inotify_init1];
    295 preadv(Fd, Ptr, Num, Int) = [read_write::sys_preadv];
    296 pwritev(Fd, Ptr, Num, Int) = [read_write::sys_pwritev];
    297 rt_tgsigqueueinfo(Int, Int, Sig, Ptr) = [kill::sys_rt_tgsigqueueinfo];
    299 recvmmsg(Fd, Ptr, Num, Hex, Ptr) = [send_recv::sys_recvmmsg];
    302 prlimit64(Int, Num, Ptr, Ptr) = [rlimit::sys_prlimit64];
    303 name_to_handle_at(Fd, Str, Ptr, Ptr, Hex) = [fhandle::sys_name_to_handle_at];
    304 open_by_handle_at(Fd, Ptr, Hex) = [fhandle::sys_open_by_handle_at];
    305 clock_adjtime(Int, Ptr) = [timex::sys_clock_adjtime]; // partial: the clock can be read and moved (ADJ_SETOFFSET, ADJ_TAI), and what is told of how well it is kept is remembered; what would change its rate, its time by and by, or put in leap seconds is EOPNOTSUPP
    306 syncfs(Fd) = [fallocate::sys_syncfs];
    307 sendmmsg(Fd, Ptr, Num, Hex) = [send_recv::sys_sendmmsg];
    308 setns(Fd, Hex) = [namespaces::sys_setns];
    309 getcpu(Ptr, Ptr, Ptr) = [sched::sys_getcpu];
    310 process_vm_readv(Int, Ptr, Num, Ptr, Num, Hex) = [process_vm::sys_process_vm_readv];
    311 process_vm_writev(Int, Ptr, Num, Ptr, Num, Hex) = [process_vm::sys_process_vm_writev];
    312 kcmp(Int, Int, Num, Num, Num) = [process_vm::sys_kcmp];
    314 sched_setattr(Int, Ptr, Hex) = [sched::sys_sched_setattr]; // partial: no SCHED_DEADLINE
    315 sched_getattr(Int, Ptr, Num, Hex) = [sched::sys_sched_getattr];
    316 renameat2(Fd, Str, Fd, Str, Hex) = [namei::sys_renameat2];
    317 seccomp(Num, Hex, Ptr) = [seccomp::sys_seccomp];
    318 getrandom(Ptr, Num, Hex) = [sysinfo::sys_getrandom];
    319 memfd_create(Str, Hex) = [fallocate::sys_memfd_create];
    322 execveat(Fd, Str, Ptr, Ptr, Hex) = [regs exec::sys_execveat];
    324 membarrier(Num, Hex, Int) = [membarrier::sys_membarrier];
    325 mlock2(Ptr, Num, Hex) = [mmap::sys_mlock2];
    326 copy_file_range(Fd, Ptr, Fd, Ptr, Num, Hex) = [splice::sys_copy_file_range];
    327 preadv2(Fd, Ptr, Num, Int, Num, Hex) = [read_write::sys_preadv2];
    328 pwritev2(Fd, Ptr, Num, Int, Num, Hex) = [read_write::sys_pwritev2];
    329 pkey_mprotect(Ptr, Num, Hex, Int) = [mempolicy::sys_pkey_mprotect];
    330 pkey_alloc(Hex, Hex) = [mempolicy::sys_pkey_alloc];
    331 pkey_free(Int) = [mempolicy::sys_pkey_free];
    332 statx(Fd, Str, Hex, Hex, Ptr) = [stat::sys_statx];
    334 rseq(Ptr, Num, Hex, Hex) = [rseq::sys_rseq];
    424 pidfd_send_signal(Fd, Sig, Ptr, Hex) = [pidfd::sys_pidfd_send_signal];
    428 open_tree(Fd, Str, Hex) = [fsopen::sys_open_tree];
    429 move_mount(Fd, Str, Fd, Str, Hex) = [fsopen::sys_move_mount];
    430 fsopen(Str, Hex) = [fsopen::sys_fsopen];
    431 fsconfig(Fd, Num, Str, Ptr, Int) = [fsopen::sys_fsconfig]; // partial: flags and strings, which is all that the file systems there are take
    432 fsmount(Fd, Hex, Hex) = [fsopen::sys_fsmount];
    433 fspick(Fd, Str, Hex) = [fsopen::sys_fspick];
    434 pidfd_open(Int, Hex) = [pidfd::sys_pidfd_open];
    435 clone3(Ptr, Num) = [regs clone::sys_clone3]; // partial: no CLONE_INTO_CGROUP
    436 close_range(Num, Num, Hex) = [fcntl::sys_close_range];
    437 openat2(Fd, Str, Ptr, Num) = [namei::sys_openat2];
    438 pidfd_getfd(Fd, Fd, Hex) = [pidfd::sys_pidfd_getfd];
    439 faccessat2(Fd, Str, Oct, Hex) = [stat::sys_faccessat2];
    440 process_madvise(Fd, Ptr, Num, Num, Hex) = [process_vm::sys_process_madvise];
    441 epoll_pwait2(Fd, Ptr, Int, Ptr, Ptr, Num) = [poll::sys_epoll_pwait2];
    442 mount_setattr(Fd, Str, Hex, Ptr, Num) = [fsopen::sys_mount_setattr]; // partial: no MOUNT_ATTR_IDMAP
    448 process_mrelease(Fd, Hex) = [process_vm::sys_process_mrelease];
    449 futex_waitv(Ptr, Num, Hex, Ptr, Int) = [waitv::sys_futex_waitv];
    450 set_mempolicy_home_node(Ptr, Num, Num, Hex) = [mempolicy::sys_set_mempolicy_home_node];
    452 fchmodat2(Fd, Str, Oct, Hex) = [namei::sys_fchmodat2];
    454 futex_wake(Ptr, Hex, Int, Hex) = [waitv::sys_futex_wake];
    455 futex_wait(Ptr, Num, Hex, Hex, Ptr, Int) = [waitv::sys_futex_wait];
    456 futex_requeue(Ptr, Hex, Int, Int) = [waitv::sys_futex_requeue];
    462 mseal(Ptr, Num, Hex) = [mmap::sys_mseal];
}

/// Numbers and names of the calls that fail with `ENOSYS`.
#[rustfmt::skip]
pub static UNIMPLEMENTED: &[(u16, &str)] = &[
    (134, "uselib"), (154, "modify_ldt"), (156, "_sysctl"), (163, "acct"),
    (167, "swapon"), (168, "swapoff"), (172, "iopl"), (173, "ioperm"), (174, "create_module"), (175, "init_module"),
    (176, "delete_module"), (177, "get_kernel_syms"), (178, "query_module"), (179, "quotactl"), (180, "nfsservctl"),
    (181, "getpmsg"), (182, "putpmsg"), (183, "afs_syscall"), (184, "tuxcall"), (185, "security"), (205, "set_thread_area"),
    (206, "io_setup"), (207, "io_destroy"), (208, "io_getevents"), (209, "io_submit"), (210, "io_cancel"),
    (211, "get_thread_area"), (212, "lookup_dcookie"), (214, "epoll_ctl_old"), (215, "epoll_wait_old"),
    (236, "vserver"), (246, "kexec_load"), (248, "add_key"), (249, "request_key"), (250, "keyctl"),
    (298, "perf_event_open"), (300, "fanotify_init"), (301, "fanotify_mark"),
    (313, "finit_module"), (320, "kexec_file_load"), (321, "bpf"), (323, "userfaultfd"), (333, "io_pgetevents"), (335, "uretprobe"), (425, "io_uring_setup"), (426, "io_uring_enter"), (427, "io_uring_register"), (443, "quotactl_fd"), (444, "landlock_create_ruleset"), (445, "landlock_add_rule"), (446, "landlock_restrict_self"), (447, "memfd_secret"), (451, "cachestat"), (453, "map_shadow_stack"), (457, "statmount"), (458, "listmount"), (459, "lsm_get_self_attr"), (460, "lsm_set_self_attr"), (461, "lsm_list_modules"), (463, "setxattrat"), (464, "getxattrat"), (465, "listxattrat"), (466, "removexattrat"), (467, "open_tree_attr"), (468, "file_getattr"), (469, "file_setattr"),
];
