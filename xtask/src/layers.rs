//! The folders of a crate are layers: what is in one uses what is in it or in an earlier one.
//!
//! A new arrow upward closes a circle, and modules in a circle can only be read, tested and changed
//! together: of the first 93 modules of `linux` 77 were in one
//! (`docs/decisions/008-layers-of-linux.md`), of the 44 of `net` 29
//! (`docs/decisions/009-layers-of-net.md`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use crate::source;

/// A crate in layers.
struct Crate {
    /// Path of the sources, from the root of the repository.
    sources: &'static str,
    /// Folders and files below that, the lowest first.
    layers: &'static [&'static str],
    /// Items that the crate's root exports from a layer, with that layer. What the root defines
    /// itself is below all.
    exports: &'static [(&'static str, &'static str)],
}

const CRATES: [Crate; 2] = [LINUX, NET];

const LINUX: Crate = Crate {
    sources: "crates/linux/src",
    layers: &[
        "state",
        "uaccess",
        "uio",
        "process",
        "time",
        "mm",
        "cred",
        "sched",
        "socket",
        "files",
        "ipc",
        "ptrace",
        "futex",
        "seccomp",
        "signal",
        "system",
        "procfs",
        "process_control",
        "kernfs",
        "mount",
        "entry",
    ],
    exports: &[("Task", "process"), ("current_task", "process")],
};

const NET: Crate = Crate {
    sources: "crates/net/src",
    layers: &[
        "socket", "unix", "inet", "packet", "netlink", "tun", "stack",
    ],
    exports: &[
        ("Address", "socket"),
        ("Caller", "socket"),
        ("Linger", "socket"),
        ("LinkAddress", "socket"),
        ("MsgFlags", "socket"),
        ("OutgoingMessage", "socket"),
        ("ReceivedMessage", "socket"),
        ("ScmRights", "socket"),
        ("Socket", "socket"),
        ("SocketMemory", "socket"),
        ("SocketOps", "socket"),
        ("SocketOptions", "socket"),
        ("SocketType", "socket"),
        ("Stack", "stack"),
        ("SupplementaryGroups", "socket"),
        ("TimerCallback", "socket"),
        ("Ucred", "socket"),
        ("UnixName", "socket"),
        ("WaitPolicy", "socket"),
        ("set_credentials_provider", "socket"),
        ("set_timer_scheduler", "socket"),
    ],
};

impl Crate {
    /// The place of a layer, which an item of the crate's root may stand for.
    fn rank(&self, name: &str) -> Option<usize> {
        let layer = self
            .exports
            .iter()
            .find(|(item, _)| *item == name)
            .map_or(name, |(_, layer)| layer);
        self.layers.iter().position(|known| *known == layer)
    }

    /// Whether the crate's root has an item of this name.
    fn has_item(root: &str, name: &str) -> bool {
        source::words(root).any(|word| word == name)
    }

    /// Arrows upward from a file, given by its path below the sources, and whether its layer is
    /// known.
    fn upward(&self, file: &Path, text: &str, root: &str) -> Result<Vec<String>> {
        let layer = file.iter().next().unwrap_or_default().to_string_lossy();
        let layer = layer.trim_end_matches(".rs");
        let Some(own) = self.rank(layer) else {
            bail!("{}: `{layer}` is not one of the layers", file.display())
        };
        let mut wrong = Vec::new();
        for (line, name) in source::crate_paths(text) {
            match self.rank(name) {
                Some(rank) if rank > own => wrong.push(format!(
                    "{}:{line}: `{name}` is above `{layer}`",
                    file.display()
                )),
                Some(_) => {}
                None => ensure!(
                    Self::has_item(root, name),
                    "{}:{line}: there is no `crate::{name}`",
                    file.display()
                ),
            }
        }
        Ok(wrong)
    }
}

/// Checks the crates in layers; `sources` are all sources, each with its path from the root.
pub fn check(sources: &[(PathBuf, String)]) -> Result<String> {
    let mut wrong = Vec::new();
    let mut modules = 0;
    for of in &CRATES {
        let files = sources
            .iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(of.sources).ok()?, text)));
        // Tests may use all.
        let files: Vec<_> = files
            .filter(|(path, _)| !path.starts_with("tests"))
            .collect();
        let root = files
            .iter()
            .find(|(path, _)| *path == Path::new("lib.rs"))
            .map_or("", |(_, text)| text.as_str());
        for (path, text) in files
            .iter()
            .filter(|(path, _)| *path != Path::new("lib.rs"))
        {
            modules += 1;
            wrong.extend(of.upward(path, text, root)?);
        }
        let used: BTreeSet<_> = files
            .iter()
            .filter_map(|(path, _)| of.rank(path.iter().next()?.to_str()?.trim_end_matches(".rs")))
            .collect();
        ensure!(
            used.len() == of.layers.len(),
            "{}: a layer of the list is not there",
            of.sources
        );
    }
    if wrong.is_empty() {
        Ok(format!("{modules} modules"))
    } else {
        bail!("{}", wrong.join("\n        "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Crate = Crate {
        sources: "",
        layers: &["low", "high"],
        exports: &[("Exported", "high")],
    };
    const ROOT: &str = "mod low; mod high; pub use high::Exported; pub struct Own;";

    fn upward(file: &str, text: &str) -> Vec<String> {
        TWO.upward(Path::new(file), text, ROOT).unwrap()
    }

    #[test]
    fn arrows_go_downward() {
        assert!(
            upward(
                "high/mod.rs",
                "use crate::low::{A, B}; fn f() { crate::high::g() }"
            )
            .is_empty()
        );
        assert!(
            upward(
                "low.rs",
                "use crate::Own; // crate::high\nconst TEXT: &str = \"crate::high\";"
            )
            .is_empty()
        );
        assert_eq!(
            upward("low/a.rs", "\nuse crate::high;"),
            ["low/a.rs:2: `high` is above `low`"]
        );
        assert_eq!(
            upward("low.rs", "use crate::{Own, high::{A, low}};"),
            ["low.rs:1: `high` is above `low`"]
        );
        assert_eq!(
            upward("low.rs", "fn f(_: &crate::Exported) {}"),
            ["low.rs:1: `Exported` is above `low`"]
        );
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert!(TWO.upward(Path::new("other.rs"), "", ROOT).is_err());
        assert!(
            TWO.upward(Path::new("low.rs"), "use crate::unknown::A;", ROOT)
                .is_err()
        );
    }
}
