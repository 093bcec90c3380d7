//! The root file system on a disk: `root=` and its like on the kernel's command line, with Linux'
//! words and meanings (`docs/boot.md`).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use fs::block::{self, DiskName};
use fs::mount::{Namespace, SuperBlock};
use linux_raw_sys::general as sys;
use task::Once;

use super::common_options;

/// Programs that are tried when the command line names none, in this order.
const INIT_PROGRAMS: [&str; 4] = ["/sbin/init", "/etc/init", "/bin/init", "/bin/sh"];

/// Wish for a root file system on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDisk {
    name: DiskName,
    /// Bits of `mount(2)`.
    bits: u32,
    /// Options of the file system.
    options: String,
    /// Whether a disk that is not there is waited for.
    waits: bool,
}

impl RootDisk {
    /// Reads a command line: `root=DISK`, `rootfstype=`, `rootflags=`, `ro`, `rw`, `rootwait`; the
    /// last of each counts. `None`: the root is no disk's.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(cmdline: &str) -> Result<Option<Self>, String> {
        let value = |name: &str| {
            let words = cmdline.split_whitespace();
            let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            values.next_back()
        };
        let Some(root) = value("root") else {
            return Ok(None);
        };
        let name = DiskName::parse(root).ok_or_else(|| {
            format!(
                "root={root} names no disk: give /dev/NAME, MAJOR:MINOR, PARTUUID=, UUID= or LABEL="
            )
        })?;
        if let Some(kinds) = value("rootfstype")
            && !kinds.split(',').any(|kind| kind == "ext4")
        {
            return Err(format!("rootfstype={kinds}: only ext4 can be the root"));
        }
        let mut words = cmdline.split_whitespace();
        let last = words.rfind(|word| matches!(*word, "ro" | "rw"));
        let is_writable = last == Some("rw");
        Ok(Some(Self {
            name,
            bits: if is_writable { 0 } else { sys::MS_RDONLY },
            options: value("rootflags").unwrap_or_default().into(),
            waits: cmdline.split_whitespace().any(|word| word == "rootwait"),
        }))
    }

    /// Mounts it; returns a tree with nothing else in it.
    ///
    /// # Errors
    /// Why it cannot be mounted. If there is no such disk, it says which there are.
    pub fn mount(&self) -> Result<Arc<Namespace>, String> {
        let name = &self.name;
        let disk = match self.name.find() {
            Some(disk) => disk,
            None if self.waits => {
                log::info!("waiting for the root device {name}: {}", there_are());
                self.name.wait()
            }
            None => return Err(format!("there is no disk {name}: {}", there_are())),
        };
        let (options, bits) = common_options(&self.options, self.bits);
        let node = format!("/dev/{}", disk.name());
        let super_block = fs::ext4::mount(disk.id(), &options, bits).map_err(|error| {
            format!("{node} cannot be mounted: {error} (the kernel's log says why)")
        })?;
        ROOT.call_once(|| Arc::downgrade(&super_block));
        Ok(Namespace::with_root(super_block, &node, bits))
    }
}

static ROOT: Once<Weak<SuperBlock>> = Once::new();

/// Writes everything back, and leaves the root's disk as if it were unmounted, unless files on it
/// are open for writing. Without such a root, nothing.
pub fn finish() {
    let Some(root) = ROOT.get().and_then(Weak::upgrade) else {
        return;
    };
    block::writeback::sync_all();
    // With its journal a disk that stays as it is, is whole, too.
    let _ = root.reconfigure(root.flags() | sys::MS_RDONLY, "");
}

/// Paths of the programs of which the first that is there is the system's first one.
#[must_use]
pub fn init_programs(asked: Option<&'static str>) -> Vec<&'static str> {
    asked.map_or_else(|| INIT_PROGRAMS.into(), |path| Vec::from([path]))
}

/// The disks that there are, as a sentence.
fn there_are() -> String {
    let disks: Vec<String> = block::disks()
        .iter()
        .filter(|disk| disk.device().capacity() > 0)
        .map(|disk| {
            let mib = disk.device().capacity() >> 20;
            format!("{} ({mib} MiB)", disk.name())
        })
        .collect();
    if disks.is_empty() {
        "there are no disks".to_string()
    } else {
        format!("there are {}", disks.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(cmdline: &str) -> Option<RootDisk> {
        RootDisk::parse(cmdline).unwrap()
    }

    #[test]
    fn words_are_those_of_linux() {
        assert_eq!(parse("console=ttyS0 ro"), None);
        let plain = parse("root=/dev/vda1").unwrap();
        assert_eq!(plain.name, DiskName::parse("/dev/vda1").unwrap());
        assert_eq!((plain.bits, plain.waits), (sys::MS_RDONLY, false));
        let all = "rw root=/dev/vda ro rootfstype=xfs,ext4 rootflags=acl,sync rootwait rw \
                   root=LABEL=top";
        let all = parse(all).unwrap();
        assert_eq!(all.name, DiskName::parse("LABEL=top").unwrap());
        assert_eq!((all.bits, all.waits), (0, true));
        assert_eq!(all.options, "acl,sync");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let error = |cmdline| RootDisk::parse(cmdline).unwrap_err();
        assert!(error("root=vda1").starts_with("root=vda1 names no disk: give /dev/NAME"));
        let other = error("root=/dev/vda1 rootfstype=xfs");
        assert_eq!(other, "rootfstype=xfs: only ext4 can be the root");
        let missing = parse("root=/dev/none").unwrap().mount().err().unwrap();
        assert!(
            missing.starts_with("there is no disk /dev/none: there are"),
            "{missing}"
        );
    }

    #[test]
    fn the_first_program_is_the_one_that_was_asked_for() {
        assert_eq!(init_programs(Some("/check")), ["/check"]);
        assert_eq!(init_programs(None)[0], "/sbin/init");
    }
}
