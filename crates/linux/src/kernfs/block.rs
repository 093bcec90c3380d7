//! `/sys/block`, `/sys/class/block`, `/sys/dev/block`, and the directories of disks and partitions
//! that they lead to.
//!
//! Disks come and go, so all of it is made when it is looked at. A disk that belongs to a function
//! of PCI is in `/sys/devices/virtual/block` like the others.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use block::READ_AHEAD;
use fs::block::{Disk, SECTOR_SIZE, disks};
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr, StaticDir};
use fs::{FileType, Inode, LinkTarget, Result};

use super::made::attr;

/// Directory of all disks, from the top.
const DISKS: &str = "devices/virtual/block";
/// Numbers of the files here, by the disk's number and the place in its directory.
const FIRST_INO: u64 = 1 << 56;
/// Files of one disk that have numbers.
const FILES: u64 = 256;
/// Numbers of files of a queue begin here.
const QUEUE: u64 = 128;

/// Adds the directories.
pub(super) fn add(root: &Arc<StaticDir>, dev: u64) {
    let add = |path: &str, up: &'static str, naming| {
        let links = Links {
            attr: PseudoAttr::new(dev, 0o555),
            up,
            naming,
        };
        crate::procfs::add_at_path(root, path, pseudo::dynamic_dir(links));
    };
    add("block", "..", Naming::Whole);
    add("class/block", "../..", Naming::All);
    add("dev/block", "../..", Naming::Number);
    let all = AllDisks(PseudoAttr::new(dev, 0o555));
    crate::procfs::add_at_path(root, DISKS, pseudo::dynamic_dir(all));
}

/// Disks that a directory of links has, and their names there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// Disks that are no partitions.
    Whole,
    /// All.
    All,
    /// All, by number.
    Number,
}

fn ino(disk: &Disk, file: u64) -> u64 {
    let id = disk.id();
    FIRST_INO + (u64::from(id.major) << 20 | u64::from(id.minor)) * FILES + file
}

/// Directory of a disk or partition, from the top.
fn path(disk: &Disk) -> String {
    match disk.whole() {
        Some(whole) => format!("{DISKS}/{}/{}", whole.name(), disk.name()),
        None => format!("{DISKS}/{}", disk.name()),
    }
}

fn number(disk: &Disk) -> String {
    format!("{}:{}", disk.id().major, disk.id().minor)
}

/// A directory of links to disks.
struct Links {
    attr: PseudoAttr,
    up: &'static str,
    naming: Naming,
}

impl Links {
    fn name(&self, disk: &Disk) -> String {
        match self.naming {
            Naming::Number => number(disk),
            Naming::Whole | Naming::All => disk.name().into(),
        }
    }

    fn disks(&self) -> impl Iterator<Item = Arc<Disk>> {
        let all = self.naming != Naming::Whole;
        disks()
            .into_iter()
            .filter(move |disk| all || disk.number() == 0)
    }
}

/// Key of a disk in a listing.
fn key(disk: &Disk) -> u64 {
    1 + (u64::from(disk.id().major) << 20 | u64::from(disk.id().minor))
}

impl DynamicDir for Links {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let mut disks = self.disks();
        let disk = disks
            .find(|disk| self.name(disk).as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        let target = format!("{}/{}", self.up, path(&disk));
        Ok(link(self.attr.dev, target))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let entries = self.disks().map(|disk| DynamicEntry {
            name: self.name(&disk).into_bytes(),
            ino: ino(&disk, 1),
            kind: FileType::Symlink,
            key: key(&disk),
        });
        Ok(entries.filter(|entry| entry.key > after).collect())
    }
}

fn link(dev: u64, target: String) -> Arc<dyn Inode> {
    pseudo::symlink(PseudoAttr::new(dev, 0o777), move || {
        Ok(LinkTarget::Text(target.clone().into_bytes()))
    })
}

/// The directory with a directory for each disk.
struct AllDisks(PseudoAttr);

impl DynamicDir for AllDisks {
    fn attr(&self) -> PseudoAttr {
        self.0
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let disk = disks()
            .into_iter()
            .find(|disk| disk.number() == 0 && disk.name().as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        Ok(directory(self.0.dev, disk, Part::Itself))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let whole = disks().into_iter().filter(|disk| disk.number() == 0);
        let entries = whole.map(|disk| entry_of(&disk, key(&disk)));
        Ok(entries.filter(|entry| entry.key > after).collect())
    }
}

/// The entry of a disk's directory.
fn entry_of(disk: &Disk, key: u64) -> DynamicEntry {
    DynamicEntry {
        name: disk.name().into(),
        ino: ino(disk, 0),
        kind: FileType::Directory,
        key,
    }
}

/// A directory of a disk's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Itself,
    Queue,
}

struct DiskDir {
    dev: u64,
    disk: Arc<Disk>,
    part: Part,
}

fn directory(dev: u64, disk: Arc<Disk>, part: Part) -> Arc<dyn Inode> {
    pseudo::dynamic_dir(DiskDir { dev, disk, part })
}

/// A file: its name, and its text without the end of the line.
type File = (&'static str, fn(&Disk) -> String);

fn flag(is_so: bool) -> String {
    u8::from(is_so).to_string()
}

fn sectors(bytes: u64) -> String {
    (bytes / SECTOR_SIZE).to_string()
}

/// Numbers as `stat` has them: each in eight columns at least.
fn statistics(disk: &Disk) -> String {
    let columns = disk.statistics();
    let columns = columns.iter().map(|number| format!("{number:>8}"));
    columns.collect::<Vec<_>>().join(" ")
}

/// Files of disks and of partitions.
const BOTH: [File; 7] = [
    ("dev", number),
    ("size", |disk| sectors(disk.device().capacity())),
    ("ro", |disk| flag(disk.device().is_read_only())),
    ("alignment_offset", |_| "0".into()),
    ("discard_alignment", |_| "0".into()),
    ("stat", statistics),
    ("uevent", uevent),
];
/// Files of disks.
const WHOLE: [File; 3] = [
    ("removable", |_| "0".into()),
    ("hidden", |_| "0".into()),
    ("range", |disk| disk.minors().to_string()),
];
/// Files of partitions.
const PART: [File; 2] = [
    ("partition", |disk| disk.number().to_string()),
    ("start", |disk| sectors(disk.start())),
];
/// Files of a disk's queue.
const OF_QUEUE: [File; 8] = [
    ("logical_block_size", |disk| {
        disk.device().limits().logical_block.to_string()
    }),
    ("hw_sector_size", |disk| {
        disk.device().limits().logical_block.to_string()
    }),
    ("physical_block_size", |disk| {
        disk.device().limits().physical_block.to_string()
    }),
    ("minimum_io_size", |disk| {
        disk.device().limits().min_io.to_string()
    }),
    ("optimal_io_size", |disk| {
        disk.device().limits().optimal_io.to_string()
    }),
    ("rotational", |_| "1".into()),
    ("read_ahead_kb", |_| (READ_AHEAD >> 10).to_string()),
    ("zoned", |_| "none".into()),
];

fn uevent(disk: &Disk) -> String {
    let id = disk.id();
    let mut text = format!(
        "MAJOR={}\nMINOR={}\nDEVNAME={}\nDEVTYPE={}",
        id.major,
        id.minor,
        disk.name(),
        if disk.number() == 0 {
            "disk"
        } else {
            "partition"
        },
    );
    if disk.number() > 0 {
        text += &format!("\nPARTN={}", disk.number());
    }
    text
}

impl DiskDir {
    /// The files, with their numbers.
    fn files(&self) -> impl Iterator<Item = (u64, &'static File)> {
        let (both, rest): (&'static [File], &'static [File]) = match self.part {
            Part::Queue => (&OF_QUEUE, &[]),
            Part::Itself if self.disk.number() == 0 => (&BOTH, &WHOLE),
            Part::Itself => (&BOTH, &PART),
        };
        let first = if self.part == Part::Queue {
            QUEUE + 1
        } else {
            16
        };
        (first..).zip(both.iter().chain(rest))
    }

    /// The directories and links beside the files and partitions.
    fn others(&self) -> &'static [&'static str] {
        match self.part {
            Part::Queue => &[],
            Part::Itself if self.disk.number() == 0 => &["holders", "slaves", "queue", "subsystem"],
            Part::Itself => &["holders", "subsystem"],
        }
    }
}

impl DynamicDir for DiskDir {
    fn attr(&self) -> PseudoAttr {
        let file = if self.part == Part::Queue { QUEUE } else { 0 };
        attr(self.dev, ino(&self.disk, file), 0o555)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let dev = self.dev;
        let mut files = self.files();
        if let Some((n, (_, text))) = files.find(|(_, file)| file.0.as_bytes() == name) {
            let disk = self.disk.clone();
            let attr = attr(dev, ino(&disk, n), 0o444);
            let show = move || Ok((text(&disk) + "\n").into_bytes());
            return Ok(pseudo::file(attr, show));
        }
        let name = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        if self.others().contains(&name) {
            return Ok(match name {
                "queue" => directory(dev, self.disk.clone(), Part::Queue),
                "subsystem" => {
                    let up = "../".repeat(path(&self.disk).split('/').count());
                    link(dev, format!("{up}class/block"))
                }
                _ => StaticDir::with(attr(dev, ino(&self.disk, 2), 0o555)),
            });
        }
        let parts = self.disk.partitions();
        let part = parts
            .into_iter()
            .find(|part| self.part == Part::Itself && part.name() == name);
        Ok(directory(dev, part.ok_or(Errno::ENOENT)?, Part::Itself))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let disk = &self.disk;
        let mut entries: Vec<_> = self
            .files()
            .map(|(n, (name, _))| DynamicEntry {
                name: (*name).into(),
                ino: ino(disk, n),
                kind: FileType::Regular,
                key: n,
            })
            .collect();
        for (n, name) in (FILES..).zip(self.others()) {
            let kind = if *name == "subsystem" {
                FileType::Symlink
            } else {
                FileType::Directory
            };
            entries.push(DynamicEntry {
                name: (*name).into(),
                ino: ino(disk, 2),
                kind,
                key: n,
            });
        }
        if self.part == Part::Itself {
            let parts = disk.partitions();
            let first = 2 * FILES;
            entries.extend(
                parts
                    .iter()
                    .map(|part| entry_of(part, first + u64::from(part.number()))),
            );
        }
        entries.retain(|entry| entry.key > after);
        Ok(entries)
    }
}
