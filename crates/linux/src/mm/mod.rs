//! Memory: mappings, policies, barriers, and what happens when there is none.

#[cfg(target_os = "none")]
pub mod leaving;
pub mod membarrier;
pub mod mempolicy;
pub mod mmap;
pub(crate) mod oom;
