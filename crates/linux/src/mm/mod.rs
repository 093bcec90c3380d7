//! Memory: mappings, policies, barriers, and what happens when there is none.

pub mod membarrier;
pub mod mempolicy;
pub mod mmap;
pub(crate) mod oom;
