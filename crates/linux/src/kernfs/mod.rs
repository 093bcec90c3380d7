//! Generated file systems beside `/proc`: `/sys` and the hierarchy of control groups.

mod block;
pub mod cgroup;
mod made;
mod net;
mod nvme;
pub mod pci;
pub mod sysfs;
