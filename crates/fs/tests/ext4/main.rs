//! ext4 through the VFS: page caches, mappings, write-back and `fsync` over disks in memory that
//! lose power and fail. `mke2fs` makes what is on them, `e2fsck` says whether it is right.

mod crash;
mod disk;
mod failure;
mod full;
mod hostile;
mod model;
mod names;
mod root_names;
