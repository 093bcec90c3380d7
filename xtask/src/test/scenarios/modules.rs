//! Modules that a Debian kernel needs for virtio devices.

use std::path::Path;

use anyhow::{Context, Result};

use crate::vm::Addition;

/// Modules that all virtio devices need, in the order in which they are loaded.
const COMMON: [&str; 5] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
];

/// Modules that virtio network cards need beside those.
pub const NETWORK: [&str; 3] = [
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
];

/// The modules for all virtio devices and then `own`, of this Linux, as `/modules/N.ko` in the
/// order in which they are loaded; a hundred of them at most, so that names sort as their numbers
/// do.
pub fn of(image: &Path, own: &[&str]) -> Result<Vec<Addition>> {
    let name = image.file_name().and_then(|name| name.to_str());
    let version = name.and_then(|name| name.strip_prefix("vmlinuz-"));
    let version = version.context("the image's name does not tell its version")?;
    let module = |(n, name): (usize, &&str)| Addition {
        host: format!("/lib/modules/{version}/kernel/{name}.ko").into(),
        guest: format!("/modules/{n:02}.ko"),
    };
    Ok(COMMON.iter().chain(own).enumerate().map(module).collect())
}
