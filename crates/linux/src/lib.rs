//! The Linux personality: processes, signals and the system calls of x86-64 Linux (see `docs/linux-personality.md`).
//!
//! A program's thread is a kernel thread that runs the loop in `run`: into ring 3, and back here for every system call, fault and
//! signal. System calls are ordinary functions of typed arguments, `sys_foo(task, …) -> SysResult`, sorted into files by area;
//! `table` binds them to their numbers, `dispatch` calls them. A call named `foo` is in:
//!
//! | file | calls |
//! |---|---|
//! | `file`, `fcntl`, `storage`, `path`, `stat`, `dirent`, `pipe`, `splice`, `poll`, `inotify`, `xattr`, `handle`, `ioctl`, `mount` | files |
//! | `sem`, `msg`, `mqueue` | System V semaphores and message queues (`ipc` has what they share), POSIX message queues |
//! | `seccomp`, `seccomp_notify` | filters of system calls; `bpf` runs them |
//! | `ptrace` | tracing threads; `registers` is what their registers look like |
//! | `peer` | other processes' memory, and what they share |
//! | `mempolicy`, `ioprio`, `timex` | what is checked and has little effect |
//! | `socket`, `sockmsg`, `sockopt` | sockets, what is sent and received through them, and their options |
//! | `mm`, `shm`, `membarrier` | memory; `vdso` is what programs find in theirs |
//! | `clone`, `exec`, `exit`, `wait`, `pids`, `pidfd` | processes and threads: beginning, changing, ending, groups and sessions |
//! | `signal`, `kill`, `sigwait`, `signalfd` | signals; `sigstate` is what there is of them; `sigframe` is what a handler finds on its stack |
//! | `futex`, `futex_pi`, `futex2` | sleeping on words of memory |
//! | `rseq` | sequences of instructions that begin again when interrupted; `section` describes one |
//! | `time`, `wallclock`, `itimer`, `timerfd`, `usage` | clocks, sleeping, timers, what was used |
//! | `sched`, `sys`, `limits`, `klog` | processors, the machine, what a process may use of it, the log; `log_ring` keeps its lines |
//! | `cred`, `capability`, `prctl`, `prctl_mm`, `layout`, `user_dispatch` | users, capabilities, settings of a process; `credentials` and `privileges` have the rules |
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

// What needs no kernel below it; tested on the host.
pub mod credentials;
pub mod elf;
pub mod layout;
pub mod log_ring;
pub mod privileges;
pub mod registers;
pub mod section;
pub mod sigframe;
pub mod siginfo;
pub mod stack;

#[cfg(target_os = "none")]
mod accounts;
#[cfg(target_os = "none")]
pub mod capability;
#[cfg(target_os = "none")]
pub mod cgroup;
#[cfg(target_os = "none")]
pub mod clone;
#[cfg(target_os = "none")]
pub mod cred;
#[cfg(target_os = "none")]
pub mod dirent;
#[cfg(target_os = "none")]
#[macro_use]
mod dispatch;
#[cfg(target_os = "none")]
pub mod exec;
#[cfg(target_os = "none")]
pub mod exit;
#[cfg(target_os = "none")]
pub mod fcntl;
#[cfg(target_os = "none")]
pub mod fdtable;
#[cfg(target_os = "none")]
pub mod file;
#[cfg(target_os = "none")]
pub mod fsopen;
#[cfg(target_os = "none")]
pub mod futex;
#[cfg(target_os = "none")]
pub mod futex2;
#[cfg(target_os = "none")]
mod futex_pi;
#[cfg(target_os = "none")]
pub mod handle;
#[cfg(target_os = "none")]
pub mod inotify;
#[cfg(target_os = "none")]
pub mod ioctl;
#[cfg(target_os = "none")]
pub mod ioprio;
#[cfg(target_os = "none")]
mod ipc;
#[cfg(target_os = "none")]
pub mod itimer;
#[cfg(target_os = "none")]
pub mod kill;
#[cfg(target_os = "none")]
pub mod klog;
#[cfg(target_os = "none")]
pub mod limits;
#[cfg(target_os = "none")]
pub mod membarrier;
#[cfg(target_os = "none")]
pub mod mempolicy;
#[cfg(target_os = "none")]
pub mod mm;
#[cfg(target_os = "none")]
pub mod mount;
#[cfg(target_os = "none")]
pub mod mqueue;
#[cfg(target_os = "none")]
mod mqueuefs;
#[cfg(target_os = "none")]
pub mod msg;
#[cfg(target_os = "none")]
pub mod namespaces;
#[cfg(target_os = "none")]
mod oom;
#[cfg(target_os = "none")]
pub mod path;
#[cfg(target_os = "none")]
pub mod peer;
#[cfg(target_os = "none")]
pub mod pidfd;
#[cfg(target_os = "none")]
pub mod pids;
#[cfg(target_os = "none")]
pub mod pipe;
#[cfg(target_os = "none")]
pub mod poll;
#[cfg(target_os = "none")]
pub mod prctl;
#[cfg(target_os = "none")]
mod prctl_mm;
#[cfg(target_os = "none")]
pub mod proc;
#[cfg(target_os = "none")]
pub mod process;
#[cfg(target_os = "none")]
pub mod process_table;
#[cfg(target_os = "none")]
pub mod ptrace;
#[cfg(target_os = "none")]
pub mod rseq;
#[cfg(target_os = "none")]
pub mod run;
#[cfg(target_os = "none")]
pub mod sched;
#[cfg(target_os = "none")]
mod schedule;
#[cfg(target_os = "none")]
pub mod seccomp;
#[cfg(target_os = "none")]
mod seccomp_notify;
#[cfg(target_os = "none")]
pub mod sem;
#[cfg(target_os = "none")]
pub mod shm;
#[cfg(target_os = "none")]
pub mod sigio;
#[cfg(target_os = "none")]
pub mod signal;
#[cfg(target_os = "none")]
pub mod signalfd;
#[cfg(target_os = "none")]
mod sigstate;
#[cfg(target_os = "none")]
pub mod sigwait;
#[cfg(target_os = "none")]
pub mod socket;
#[cfg(target_os = "none")]
pub mod sockmsg;
#[cfg(target_os = "none")]
pub mod sockopt;
#[cfg(target_os = "none")]
pub mod splice;
#[cfg(target_os = "none")]
pub mod start;
#[cfg(target_os = "none")]
pub mod stat;
#[cfg(target_os = "none")]
pub mod storage;
#[cfg(target_os = "none")]
pub mod sys;
#[cfg(target_os = "none")]
pub mod sysfs;
#[cfg(target_os = "none")]
pub mod table;
#[cfg(target_os = "none")]
mod tables;
#[cfg(target_os = "none")]
pub mod task;
#[cfg(target_os = "none")]
pub mod time;
#[cfg(target_os = "none")]
pub mod timerfd;
#[cfg(target_os = "none")]
pub mod timers;
#[cfg(target_os = "none")]
pub mod timex;
#[cfg(target_os = "none")]
pub mod trace;
#[cfg(target_os = "none")]
pub mod uaccess;
#[cfg(target_os = "none")]
pub mod usage;
#[cfg(target_os = "none")]
mod user_dispatch;
#[cfg(target_os = "none")]
mod vdso;
#[cfg(target_os = "none")]
pub mod wait;
#[cfg(target_os = "none")]
pub mod wallclock;
#[cfg(target_os = "none")]
pub mod xattr;

#[cfg(target_os = "none")]
pub use crate::task::{Task, current_task};
#[cfg(target_os = "none")]
pub use start::{Hooks, Program, init, signal_init, spawn_init};
#[cfg(target_os = "none")]
pub use tables::census;

/// What a system call returns: the value for the program, or the error whose negative number it sees.
pub type SysResult = Result<usize, abi::errno::Errno>;
