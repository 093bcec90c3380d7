//! The Linux personality: processes, signals and the system calls of x86-64 Linux (see
//! `docs/linux-personality.md`).
//!
//! A program's thread is a kernel thread that runs the loop in [`entry::user_loop`]: into ring 3,
//! and back here for every system call, fault and signal. System calls are ordinary functions of
//! typed arguments, `sys_foo(task, …) -> SysResult`, in the folder of their subject;
//! `entry::syscall_table` binds them to their numbers, `entry::dispatch` calls them.
//!
//! The folders are layers, the lowest first: a module uses its own folder and those above it in
//! this table, never one below it (`cargo xtask check` refuses that; why:
//! `docs/decisions/008-layers-of-linux.md`). What a lower layer has to cause in `entry` are the
//! functions of `process::upcalls`. Below all is the crate `uapi`: structures that programs pass,
//! ELF, the initial stack, signal frames.
//!
//! | folder | holds |
//! |---|---|
//! | `uaccess`, `uio` | access to the memory of programs; their lists of buffers |
//! | `state` | what threads, processes and namespaces have of each feature, with the rules that need nothing else |
//! | `process` | `Task`, `Process` and the process table; sending signals; timers, limits and accounting of processes |
//! | `time`, `mm`, `cred`, `sched` | clocks, timers, usage; memory; users and capabilities; policies, priorities, CPUs |
//! | `socket`, `files`, `ipc` | sockets; files, pipes, polling; System V IPC and POSIX message queues |
//! | `ptrace`, `futex`, `seccomp`, `signal` | tracing and other processes' memory; futexes; filters of system calls; signals |
//! | `system` | names and reboot of the machine, the kernel log |
//! | `procfs` | `/proc` |
//! | `process_control` | clone, exec, exit, wait, namespaces, limits, `prctl(2)` |
//! | `kernfs`, `mount` | `/sys` and cgroups; mounting |
//! | `entry` | the table of calls, dispatch, the loop of user mode, the first process |
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

// What needs no kernel below it; tested on the host.
pub mod state;

pub mod cred;
#[macro_use]
pub mod entry;
pub mod files;
pub mod futex;
pub mod ipc;
pub mod kernfs;
pub mod mm;
pub mod mount;
pub mod process;
pub mod process_control;
pub mod procfs;
pub mod ptrace;
pub mod sched;
pub mod seccomp;
pub mod signal;
pub mod socket;
pub mod system;
#[cfg(test)]
mod tests;
pub mod time;
pub mod uaccess;
pub(crate) mod uio;

pub use entry::exec_program;
pub use entry::init::{Hooks, InitProgram, init, signal_init, spawn_init};
pub use entry::object_counts::object_counts;
pub use process::task::{Task, current_task};
pub use state::boot_network::configure as configure_network;
pub use state::namespaces::host as network_host;

/// Result of a system call: the value for the program, or the error whose negative number it sees.
pub type SysResult = Result<usize, abi::errno::Errno>;
