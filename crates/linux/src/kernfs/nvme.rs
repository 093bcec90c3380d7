//! `/sys/class/nvme` and `/sys/class/nvme-subsystem`, and the directories that they lead to, as
//! Linux has them where a namespace has one way to it only (`nvme_core.multipath=N`).
//!
//! Controllers are found while the system starts, so all of it is made when it is looked at.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::block::{NvmeController, controllers};
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr, StaticDir};
use fs::{FileType, Inode, LinkTarget, Result};

/// Numbers of the files here: of a directory this and its place, and so on down.
const FIRST_INO: u64 = 1 << 57;
/// Entries of a directory that have numbers.
const ENTRIES: u64 = 1 << 12;

/// Adds the directories.
pub(super) fn add(root: &Arc<StaticDir>, dev: u64) {
    let add = |n: u64, path: &str, make: Make| {
        let ino = FIRST_INO + n;
        crate::procfs::add_at_path(root, path, directory(dev, ino, make));
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

/// An entry of a directory.
enum Content {
    Text(String),
    Link(String),
    Directory(Make),
}

type Entries = Vec<(String, Content)>;
type Make = Box<dyn Fn() -> Entries + Send + Sync>;

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

fn text(name: &str, text: impl Into<String>) -> (String, Content) {
    (name.into(), Content::Text(text.into()))
}

fn link(name: &str, target: String) -> (String, Content) {
    (name.into(), Content::Link(target))
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

fn attr(dev: u64, ino: u64, mode: u32) -> PseudoAttr {
    PseudoAttr {
        dev,
        ino,
        mode,
        uid: 0,
        gid: 0,
    }
}

/// A directory whose entries are made when they are looked at.
struct Made {
    dev: u64,
    ino: u64,
    make: Make,
}

fn directory(dev: u64, ino: u64, make: Make) -> Arc<dyn Inode> {
    pseudo::dynamic_dir(Made { dev, ino, make })
}

impl Made {
    /// The number of the `n`th entry. Numbers of this tree are below those of others.
    fn ino_of(&self, n: u64) -> u64 {
        FIRST_INO + (self.ino - FIRST_INO) * ENTRIES + n + 1
    }
}

impl DynamicDir for Made {
    fn attr(&self) -> PseudoAttr {
        attr(self.dev, self.ino, 0o555)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let mut entries = (0..).zip((self.make)());
        let (n, (_, content)) = entries
            .find(|(_, entry)| entry.0.as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        let ino = self.ino_of(n);
        Ok(match content {
            Content::Text(text) => pseudo::file(attr(self.dev, ino, 0o444), move || {
                Ok((text.clone() + "\n").into_bytes())
            }),
            Content::Link(target) => pseudo::symlink(attr(self.dev, ino, 0o777), move || {
                Ok(LinkTarget::Text(target.clone().into_bytes()))
            }),
            Content::Directory(make) => directory(self.dev, ino, make),
        })
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let entries = (0..).zip((self.make)());
        let entries = entries.map(|(n, (name, content))| DynamicEntry {
            name: name.into_bytes(),
            ino: self.ino_of(n),
            kind: match content {
                Content::Text(_) => FileType::Regular,
                Content::Link(_) => FileType::Symlink,
                Content::Directory(_) => FileType::Directory,
            },
            key: n + 1,
        });
        Ok(entries.filter(|entry| entry.key > after).collect())
    }
}
