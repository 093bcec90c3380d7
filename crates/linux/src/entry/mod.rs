//! The way into the kernel: the table of system calls, dispatch, the loop that runs a program,
//! set-up and the first process.

#[macro_use]
pub(crate) mod dispatch;
pub mod exec_program;
pub mod init;
pub(crate) mod object_counts;
pub mod syscall_table;
pub mod syscall_trace;
pub(crate) mod taskstats;
pub mod user_loop;
