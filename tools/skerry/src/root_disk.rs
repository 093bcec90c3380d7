//! Disks that are the root file system of instances (`docs/devices.md`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A disk of an instance's own, as its kernel names it, and whether it may be written:
/// `/dev/NAME[:ro]`, or the disk by `PARTUUID=`, `UUID=` or `LABEL=`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RootDisk {
    name: String,
    read_only: bool,
}

impl RootDisk {
    /// Words of its kernel's command line, which are Linux' own.
    #[must_use]
    pub fn words(&self) -> String {
        let access = if self.read_only { "ro" } else { "rw" };
        format!("root={} {access}", self.name)
    }
}

impl FromStr for RootDisk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, read_only) = match text.strip_suffix(":ro") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let is_named = ["/dev/", "PARTUUID=", "UUID=", "LABEL="]
            .iter()
            .any(|kind| name.strip_prefix(kind).is_some_and(|rest| !rest.is_empty()));
        // What separates words of a command line cannot be in one.
        if is_named && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            let name = name.into();
            Ok(Self { name, read_only })
        } else {
            Err(format!(
                "{text:?} names no disk of an instance: give one like /dev/vda1, \
                 /dev/nvme0n1p1:ro (read-only), PARTUUID=…, UUID=… or LABEL=…"
            ))
        }
    }
}

impl fmt::Display for RootDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        f.write_str(if self.read_only { ":ro" } else { "" })
    }
}

impl TryFrom<String> for RootDisk {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<RootDisk> for String {
    fn from(disk: RootDisk) -> Self {
        disk.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances;
    use crate::mock::{Mock, request};

    #[test]
    fn a_disk_is_named_as_the_kernel_names_it() {
        for (text, words) in [
            ("/dev/vda1", "root=/dev/vda1 rw"),
            ("/dev/nvme0n1p1:ro", "root=/dev/nvme0n1p1 ro"),
            ("PARTUUID=12ab34cd-02", "root=PARTUUID=12ab34cd-02 rw"),
            ("LABEL=top:ro", "root=LABEL=top ro"),
        ] {
            let disk: RootDisk = text.parse().unwrap();
            assert_eq!(
                (disk.words().as_str(), disk.to_string()),
                (words, text.into())
            );
        }
        for wrong in [
            "",
            "vda1",
            "/dev/",
            ":ro",
            "/dev/vda rw",
            "LABEL=",
            "/dev/\u{e9}",
        ] {
            let error = wrong.parse::<RootDisk>().unwrap_err();
            assert!(error.contains("names no disk"), "{error}");
        }
    }

    #[test]
    fn who_has_no_device_has_no_root_on_one() {
        let mock = Mock::new(4, 1 << 30);
        let mut options = request("one", &["sleep", "9"]);
        options.root = Some("/dev/vda".parse().unwrap());
        options.rootfs = None;
        let refused = |options: &_| {
            let failure = instances::create(&mock, options, SystemTime::now()).unwrap_err();
            assert!(instances::all(&mock).unwrap().is_empty(), "{failure}");
            failure.message
        };
        assert!(refused(&options).contains("give --device"));
        options.devices = vec!["01:00.0".into()];
        options.unsafe_dma = true;
        options.kernel = "x".repeat(240);
        assert!(refused(&options).contains("longer than 255 bytes"));
        options.kernel = "loglevel=8".into();
        instances::create(&mock, &options, SystemTime::now()).unwrap();
    }
}
