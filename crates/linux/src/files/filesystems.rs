//! Types of file systems (`filesystems(5)`).

/// Types of file systems; none needs a device.
pub(crate) const FILE_SYSTEM_TYPES: [&str; 8] = [
    "sysfs", "tmpfs", "proc", "cgroup2", "devtmpfs", "devpts", "ramfs", "mqueue",
];

/// Type of file system with this name, if there is one.
pub(crate) fn find_type(name: &[u8]) -> Option<&'static str> {
    FILE_SYSTEM_TYPES
        .into_iter()
        .find(|known| known.as_bytes() == name)
}
