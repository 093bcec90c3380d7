//! Types of file systems (`filesystems(5)`).

/// The types of file systems there are; none needs a device.
pub(crate) const TYPES: [&str; 8] = [
    "sysfs", "tmpfs", "proc", "cgroup2", "devtmpfs", "devpts", "ramfs", "mqueue",
];

/// The type of this name, if there is one.
pub(crate) fn knows_type(name: &[u8]) -> Option<&'static str> {
    TYPES.into_iter().find(|known| known.as_bytes() == name)
}
