//! Generated file systems beside `/proc`: `/sys` and the hierarchy of control groups.

pub mod cgroup;
pub mod sysfs;
