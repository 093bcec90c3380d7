//! Interprocess communication: System V semaphores, message queues and shared memory
//! (`sysvipc(7)`), POSIX message queues (`mq_overview(7)`). The objects are in `state::ipc`.

pub mod mqueue;
pub(crate) mod mqueuefs;
pub mod msg;
pub mod sem;
pub mod shm;
