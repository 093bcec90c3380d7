//! Device drivers, in safe code over what the guard and `devices` grant: ports and interrupt lines,
//! functions of PCI with their registers, memory and vectors.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod gate;
#[cfg(target_os = "none")]
pub mod hotplug;
pub mod lanes;
#[cfg(target_os = "none")]
mod net_interface;
pub mod nvme;
#[cfg(target_os = "none")]
pub mod nvme_pci;
#[cfg(target_os = "none")]
mod pci_parts;
#[cfg(test)]
mod test_memory;
pub mod uart;
pub mod virtio_blk;
pub mod virtio_net;
pub mod virtio_parts;
#[cfg(target_os = "none")]
pub mod virtio_pci;
#[cfg(target_os = "none")]
pub mod window_net;
