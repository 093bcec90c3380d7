//! What threads, processes and namespaces have of each feature, with the rules that need nothing
//! but that. Nothing here knows a task or a process: those hold it ([`crate::process`]), and the
//! system calls that change it are in the folder of the feature.

pub mod boot_network;
pub(crate) mod core_pattern;
pub(crate) mod cred;
pub mod credentials;
pub(crate) mod debug_registers;
pub mod exec_credentials;
pub(crate) mod expirations;
pub mod fdtable;
pub(crate) mod ipc;
pub mod kernel_log;
pub mod log_ring;
pub(crate) mod mempolicy;
pub(crate) mod namespaces;
pub(crate) mod prctl;
pub(crate) mod ratelimit;
pub(crate) mod rlimit;
pub(crate) mod rseq;
pub(crate) mod sched_params;
pub(crate) mod seccomp;
pub(crate) mod sighand;
pub(crate) mod speculation;
pub(crate) mod syscall_user_dispatch;
pub mod timer_queue;
pub(crate) mod usage;
