//! `/proc/<pid>/mounts`, `mountinfo`, `mountstats`: what is mounted in a process's namespace, as
//! far as its root reaches.

use alloc::string::String;
use core::fmt::Write;

use abi::errno::Errno;
use fallible::Text;
use fs::Path;
use fs::mount::{
    MS_NOATIME, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW, MS_RDONLY, Mount, Namespace,
};
use linux_raw_sys::general as sys;

/// Escapes in octal what cannot stand in a field.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, &b| {
        let _ = match b {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => write!(text, "\\{b:03o}"),
            _ => write!(text, "{}", char::from(b)),
        };
        text
    })
}

/// Names of bits, each after a comma.
fn names(bits: u32, names: &[(u32, &str)]) -> String {
    names
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .fold(String::new(), |text, (_, name)| text + "," + name)
}

fn of_mount(mount: &Mount) -> String {
    const NAMES: [(u32, &str); 7] = [
        (MS_NOSUID, "nosuid"),
        (MS_NODEV, "nodev"),
        (MS_NOEXEC, "noexec"),
        (MS_NOATIME, "noatime"),
        (sys::MS_NODIRATIME, "nodiratime"),
        (sys::MS_RELATIME, "relatime"),
        (MS_NOSYMFOLLOW, "nosymfollow"),
    ];
    names(mount.flags(), &NAMES)
}

fn of_super(mount: &Mount) -> String {
    const NAMES: [(u32, &str); 4] = [
        (sys::MS_SYNCHRONOUS, "sync"),
        (sys::MS_DIRSYNC, "dirsync"),
        (sys::MS_MANDLOCK, "mand"),
        (sys::MS_LAZYTIME, "lazytime"),
    ];
    names(mount.super_block().flags(), &NAMES)
}

const fn access(read_only: bool) -> &'static str {
    if read_only { "ro" } else { "rw" }
}

fn info(mount: &Mount, source: &str, point: &str) -> String {
    let parent = mount.mountpoint().map_or(mount.id(), |p| p.mount().id());
    let dev = fs::DeviceId::decode(mount.root().inode().metadata().dev);
    let sharing = mount.propagation();
    let numbered = |name, number: Option<u32>| {
        number.map_or_else(String::new, |number| alloc::format!(" {name}:{number}"))
    };
    alloc::format!(
        "{} {parent} {}:{} {} {point} {}{}{}{}{} - {} {source} {}{}{}\n",
        mount.id(),
        dev.major,
        dev.minor,
        escaped(&mount.root_name()),
        access(mount.flags() & MS_RDONLY != 0),
        of_mount(mount),
        numbered("shared", sharing.shared),
        numbered("master", sharing.master),
        if sharing.unbindable {
            " unbindable"
        } else {
            ""
        },
        mount.fs().name(),
        access(mount.super_block().flags() & MS_RDONLY != 0),
        of_super(mount),
        mount.fs().options(),
    )
}

/// The table with this name of the mounts of a namespace that are below `root`.
///
/// # Errors
/// `ENOMEM`: there may be very many.
pub(super) fn table(space: &Namespace, root: &Path, name: &str) -> Result<String, Errno> {
    let mut text = Text::default();
    for mount in space.mounts() {
        let Some(point) = mount.clone().root_path().to_bytes_below(root) else {
            continue;
        };
        let (source, point) = (escaped(mount.source().as_bytes()), escaped(&point));
        let kind = mount.fs().name();
        let line = match name {
            "mountinfo" => info(&mount, &source, &point),
            "mountstats" => {
                alloc::format!("device {source} mounted on {point} with fstype {kind}\n")
            }
            _ => {
                let (common, own, more) =
                    (of_super(&mount), of_mount(&mount), mount.fs().options());
                alloc::format!(
                    "{source} {point} {kind} {}{common}{own}{more} 0 0\n",
                    access(mount.is_read_only())
                )
            }
        };
        text.write_str(&line).map_err(|_| Errno::ENOMEM)?;
    }
    Ok(text.into_string())
}
