//! Virtual functions (SR-IOV) of a controller of QEMU's, given to instances.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::devices::{behind_port, drive};
use crate::cleanup::Directory;
use crate::qemu::{Hardware, Iommu};
use crate::test::{Check, Setting, batch};
use crate::vm::Addition;
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/virtual-functions.cases");

/// The controller: nine virtual functions, of which the last two have numbers above 7, and what is
/// shared out between them.
const CONTROLLER: &str = "nvme,id=nvme,serial=rock,subsys=subsystem,max_ioqpairs=24,msix_qsize=16,\
                          sriov_max_vfs=9,sriov_vq_flexible=18,sriov_vi_flexible=9";

/// Images of the namespaces.
pub fn images(directory: &Directory) -> Result<Vec<PathBuf>> {
    let path = |n| directory.join(&format!("namespace-{n}"));
    let made = (1..=2).map(path).map(|image| {
        File::create(&image)?.set_len(8 << 20)?;
        Ok(image)
    });
    made.collect()
}

/// Adds the controller behind a port, with namespaces that all of its functions have.
pub fn attach(hardware: &mut Hardware, images: &[PathBuf]) {
    let add = |hardware: &mut Hardware, device: &str| {
        hardware.extra.extend(["-device", device].map(Into::into));
    };
    add(hardware, "nvme-subsys,id=subsystem");
    behind_port(hardware, 1, CONTROLLER);
    for (n, image) in (1..).zip(images) {
        let id = format!("ns{n}");
        drive(hardware, &id, image);
        let namespace = format!("nvme-ns,bus=nvme,nsid={n},drive={id},shared=on");
        add(hardware, &namespace);
    }
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut machine = setting.machine("confined");
    machine.timeout = Some(Duration::from_secs(300));
    machine.append = "pci.sriov=01:00.0:8".into();
    let hardware = &mut machine.hardware;
    hardware.iommu = Some(Iommu::Intel);
    attach(hardware, &images(&directory)?);
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::PCI])?,
        guest: "/pciutils.tar".into(),
    });
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 90;
    }
    batch::run(machine, &steps)
}
