//! `/sys/class/nvme` and `/sys/class/nvme-subsystem`, and the directories that they lead to, as
//! Linux has them where a namespace has one way to it only (`nvme_core.multipath=N`).
//!
//! Controllers are found while the system starts, so all of it is made when it is looked at.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;

use fs::block::{NvmeController, controllers};
use fs::pseudo::StaticDir;

use super::made::{Content, Entries, Make, TreeNumbers, directory, link, text};

/// TreeNumbers of the files here.
const NUMBERS: TreeNumbers = TreeNumbers::from(1 << 57);

/// Adds the directories.
pub(super) fn add(root: &Arc<StaticDir>, dev: u64) {
    let add = |n: u64, path: &str, make: Make| {
        crate::procfs::add_at_path(root, path, directory(dev, NUMBERS.of(n), make));
    };
    add(1, "class/nvme", links("../../devices/virtual/nvme/", name));
    add(
        2,
        "class/nvme-subsystem",
        links("../../devices/virtual/nvme-subsystem/", subsystem_name),
    );
    add(3, "devices/virtual/nvme", directories(name, controller));
    add(
        4,
        "devices/virtual/nvme-subsystem",
        directories(subsystem_name, subsystem),
    );
}

fn name(controller: &NvmeController) -> String {
    controller.name.clone()
}

fn subsystem_name(controller: &NvmeController) -> String {
    format!("nvme-subsys{}", controller.index)
}

/// Links to directories of controllers.
fn links(to: &'static str, name: fn(&NvmeController) -> String) -> Make {
    let entry = move |controller: Arc<NvmeController>| {
        let name = name(&controller);
        let target = format!("{to}{name}");
        (name, Content::Link(target))
    };
    Box::new(move || controllers().into_iter().map(entry).collect())
}

/// A directory for each controller.
fn directories(name: fn(&NvmeController) -> String, make: fn(&NvmeController) -> Entries) -> Make {
    let entry = move |controller: Arc<NvmeController>| {
        let name = name(&controller);
        let make: Make = Box::new(move || make(&controller));
        (name, Content::Directory(make))
    };
    Box::new(move || controllers().into_iter().map(entry).collect())
}

fn controller(it: &NvmeController) -> Entries {
    let (major, minor) = it.node.split_once(':').unwrap_or_default();
    let uevent = format!(
        "MAJOR={major}\nMINOR={minor}\nDEVNAME={}\nNVME_TRTYPE=pcie",
        it.name
    );
    let mut entries = alloc::vec![
        text("address", &*it.address),
        text("cntlid", it.number.to_string()),
        text("cntrltype", it.kind),
        text("dctype", "none"),
        text("dev", &*it.node),
        text("firmware_rev", &*it.firmware),
        text("kato", "0"),
        text("model", &*it.model),
        text("numa_node", "-1"),
        text("queue_count", it.queues.to_string()),
        text("serial", &*it.serial),
        text("sqsize", (it.entries - 1).to_string()),
        text("state", "live"),
        text("subsysnqn", &*it.subsystem),
        text("transport", "pcie"),
        text("uevent", uevent),
        link(
            "device",
            format!("../../../../bus/pci/devices/{}", it.address)
        ),
        link("subsystem", "../../../../class/nvme".into()),
    ];
    let disk = |name: &String| link(name, format!("../../block/{name}"));
    entries.extend(it.disks.iter().map(disk));
    entries
}

fn subsystem(it: &NvmeController) -> Entries {
    alloc::vec![
        text("firmware_rev", &*it.firmware),
        text("model", &*it.model),
        text("serial", &*it.serial),
        text("subsysnqn", &*it.subsystem),
        text("subsystype", "nvm"),
        link(&it.name, format!("../../nvme/{}", it.name)),
        link("subsystem", "../../../../class/nvme-subsystem".into()),
    ]
}
