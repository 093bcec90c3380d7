//! Processes and threads begin, change, end and are waited for; what they may use, and what they
//! say of themselves.

pub mod clone;
pub mod exec;
pub mod exit;
pub(crate) mod kernel_exec;
pub mod namespaces;
pub mod pid;
pub mod pidfd;
pub mod prctl;
pub(crate) mod prctl_mm;
pub mod rlimit;
pub mod wait;
