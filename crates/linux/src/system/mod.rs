//! The machine as a whole: its names, memory and load, the kernel log, reboot.

pub mod klog;
pub mod sysinfo;
