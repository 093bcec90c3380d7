//! Types of file systems (`filesystems(5)`).

/// Types of file systems.
pub(crate) const FILE_SYSTEM_TYPES: [&str; 9] = [
    "sysfs", "tmpfs", "proc", "cgroup2", "devtmpfs", "devpts", "ramfs", "mqueue", "ext4",
];

/// Whether file systems of a type are on a disk.
pub(crate) fn needs_disk(name: &str) -> bool {
    name == "ext4"
}

/// Type of file system with this name, if there is one.
pub(crate) fn find_type(name: &[u8]) -> Option<&'static str> {
    FILE_SYSTEM_TYPES
        .into_iter()
        .find(|known| known.as_bytes() == name)
}
