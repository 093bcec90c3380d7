//! Writers, and what each does step by step: a function of a seed.
//!
//! Each has a directory of its own, `w0` and so on, with the directories [`DIRS`] in it. A step is
//! one operation with the call that makes it durable (`fsync` and its kin); when that has returned,
//! the tree is promised to be as [`Plan::tree`] says. One more writer, [`NOISE`], is promised
//! nothing.

use std::collections::BTreeMap;

use crate::contents::{Random, filled};

/// The files of a writer with their contents, by their paths in its directory. The name of a
/// directory ends with a slash, and it has no contents.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// Directories that a writer's directory has from the beginning, and always.
pub const DIRS: [&str; 2] = ["a/", "b/"];

/// Most bytes of a file.
const LONGEST: u64 = 100_000;

/// Files that a writer has at a time.
const FILES: usize = 10;

/// The kind of steps that a writer does most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes, removes and renames files.
    Names,
    /// Replaces files by others that were written under another name, or none.
    Replace,
    /// Writes over what is there, by calls and through mappings.
    InPlace,
    /// Appends, cuts, preallocates and punches.
    Sizes,
    /// Everything.
    Mixed,
}

/// The writers that are promised something.
pub const WRITERS: [Kind; 5] = [
    Kind::Names,
    Kind::Replace,
    Kind::InPlace,
    Kind::Sizes,
    Kind::Mixed,
];

/// The call that makes a step durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// `fsync` of the file.
    File,
    /// `fdatasync` of the file.
    Data,
    /// The file is opened with `O_DSYNC`.
    Dsync,
    /// The file is opened with `O_SYNC`.
    Osync,
    /// The bytes are stored through a shared mapping, then `msync`.
    Mapped,
    /// `syncfs`.
    All,
}

/// An operation. Paths are in the writer's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new file is written.
    Create {
        /// Its path.
        path: String,
        /// Its length.
        len: u64,
        /// The key of its contents.
        key: u64,
        /// How it becomes durable.
        sync: Sync,
    },
    /// Bytes of a file are written.
    Write {
        /// The file.
        path: String,
        /// The first byte that is written.
        at: u64,
        /// Bytes that are written.
        len: u64,
        /// The key of the contents.
        key: u64,
        /// How they become durable.
        sync: Sync,
    },
    /// A file gets another length.
    Truncate {
        /// The file.
        path: String,
        /// Its new length.
        len: u64,
    },
    /// Bytes of a file become a hole.
    Punch {
        /// The file.
        path: String,
        /// The first byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Room is preallocated, and the file is as long as that.
    Allocate {
        /// The file.
        path: String,
        /// The first byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// A file is removed.
    Remove {
        /// The file.
        path: String,
    },
    /// A file is renamed; another of the new name is removed by that.
    Rename {
        /// The old path.
        from: String,
        /// The new one.
        to: String,
    },
    /// A file is written under another name ([`temporary`]), synced, and renamed.
    Replace {
        /// The path in the end.
        path: String,
        /// Its length.
        len: u64,
        /// The key of its contents.
        key: u64,
    },
    /// A file without a name (`O_TMPFILE`) is written, synced, and given one.
    Publish {
        /// The path in the end.
        path: String,
        /// Its length.
        len: u64,
        /// The key of its contents.
        key: u64,
    },
    /// A directory is made.
    MakeDir {
        /// Its path, which ends with a slash.
        path: String,
    },
    /// An empty directory is removed.
    RemoveDir {
        /// Its path, which ends with a slash.
        path: String,
    },
}

/// The name under which [`Op::Replace`] writes.
pub fn temporary(path: &str) -> String {
    format!("{path}.new")
}

/// A writer after so many steps.
#[derive(Clone, Debug)]
pub struct Plan {
    kind: Kind,
    seed: [u64; 2],
    steps: u64,
    tree: Tree,
}

impl Plan {
    /// The writer of this number before its first step.
    pub fn new(seed: u64, writer: usize) -> Self {
        Self {
            kind: WRITERS[writer],
            seed: [seed, writer as u64],
            steps: 0,
            tree: DIRS.map(|dir| (dir.to_owned(), Vec::new())).into(),
        }
    }

    /// Number of steps that are done.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The tree that is promised.
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The next step.
    pub fn next(&self) -> Op {
        let mut random = Random::new(&[self.seed[0], self.seed[1], self.steps]);
        let files: Vec<&String> = self
            .tree
            .keys()
            .filter(|path| !path.ends_with('/'))
            .collect();
        // Above a limit something is removed, and without a file one is made.
        let choice = match (files.len(), self.kind) {
            (0..2, _) => 0,
            (FILES.., _) => 7,
            (_, Kind::Names) => [0, 0, 7, 8, 8, 8, 9, 10][random.below(8) as usize],
            (_, Kind::Replace) => [5, 5, 5, 6, 8][random.below(5) as usize],
            (_, Kind::InPlace) => [0, 1, 1, 1, 1, 1][random.below(6) as usize],
            (_, Kind::Sizes) => [2, 2, 3, 4, 11, 0][random.below(6) as usize],
            (_, Kind::Mixed) => random.below(12),
        };
        let old = |random: &mut Random| files[random.below(files.len() as u64) as usize].clone();
        let key = random.number();
        let len = random.small(LONGEST, 10);
        let new = format!(
            "{}f{}",
            ["", DIRS[0], DIRS[1]][random.below(3) as usize],
            self.steps
        );
        match choice {
            0 => Op::Create {
                path: new,
                len,
                key,
                sync: [Sync::File, Sync::File, Sync::All][random.below(3) as usize],
            },
            // Within the file.
            1 => {
                let path = old(&mut random);
                let size = self.tree[&path].len() as u64;
                let at = random.below(size + 1);
                let ways = [Sync::Mapped, Sync::Data, Sync::File, Sync::Dsync, Sync::All];
                Op::Write {
                    at,
                    len: len.min(size - at),
                    path,
                    key,
                    sync: ways[random.below(5) as usize],
                }
            }
            // At its end, across it or behind it.
            2 | 11 => {
                let path = old(&mut random);
                let size = self.tree[&path].len() as u64;
                let at = if choice == 2 {
                    size
                } else {
                    random.below(size + size / 4 + 1)
                };
                let ways = [Sync::Osync, Sync::Data, Sync::File, Sync::Dsync];
                Op::Write {
                    at,
                    len: len.min(LONGEST.saturating_sub(at)),
                    path,
                    key,
                    sync: ways[random.below(4) as usize],
                }
            }
            3 => Op::Truncate {
                path: old(&mut random),
                len,
            },
            4 => {
                let path = old(&mut random);
                let at = random.below(LONGEST.min(self.tree[&path].len() as u64) + 1);
                if random.below(2) == 0 {
                    Op::Punch {
                        path,
                        at,
                        len: len.max(1),
                    }
                } else {
                    Op::Allocate {
                        path,
                        at,
                        len: len.clamp(1, LONGEST),
                    }
                }
            }
            5 => Op::Replace {
                path: old(&mut random),
                len,
                key,
            },
            6 => Op::Publish {
                path: new,
                len,
                key,
            },
            7 => Op::Remove {
                path: old(&mut random),
            },
            8 => {
                let from = old(&mut random);
                let to = if random.below(2) == 0 {
                    old(&mut random)
                } else {
                    new
                };
                Op::Rename { from, to }
            }
            9 => Op::MakeDir {
                path: format!("d{}/", self.steps),
            },
            _ => match self.tree.keys().find(|path| path.starts_with('d')) {
                Some(path) => Op::RemoveDir { path: path.clone() },
                None => Op::MakeDir {
                    path: format!("d{}/", self.steps),
                },
            },
        }
    }

    /// The tree when a step has been done.
    pub fn apply(&mut self, op: &Op) {
        self.steps += 1;
        let tree = &mut self.tree;
        let file = |tree: &mut Tree, path: &str| tree.remove(path).unwrap_or_default();
        match op {
            Op::Create { path, len, key, .. }
            | Op::Replace { path, len, key }
            | Op::Publish { path, len, key } => {
                tree.insert(path.clone(), filled(*key, 0, *len));
            }
            Op::Write {
                path, at, len, key, ..
            } => {
                let mut bytes = file(tree, path);
                if *len > 0 {
                    let (at, end) = (*at as usize, (at + len) as usize);
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[at..end].copy_from_slice(&filled(*key, at as u64, *len));
                }
                tree.insert(path.clone(), bytes);
            }
            Op::Truncate { path, len } => {
                let mut bytes = file(tree, path);
                bytes.resize(*len as usize, 0);
                tree.insert(path.clone(), bytes);
            }
            Op::Punch { path, at, len } => {
                let mut bytes = file(tree, path);
                let end = bytes.len().min((at + len) as usize);
                bytes[*at as usize..end].fill(0);
                tree.insert(path.clone(), bytes);
            }
            Op::Allocate { path, at, len } => {
                let mut bytes = file(tree, path);
                bytes.resize(bytes.len().max((at + len) as usize), 0);
                tree.insert(path.clone(), bytes);
            }
            Op::Remove { path } | Op::RemoveDir { path } => {
                tree.remove(path);
            }
            Op::Rename { from, to } => {
                let bytes = file(tree, from);
                tree.insert(to.clone(), bytes);
            }
            Op::MakeDir { path } => {
                tree.insert(path.clone(), Vec::new());
            }
        }
    }
}

/// The directory of the writer that is promised nothing: it writes, cuts and removes files `n0` to
/// `n5`, whose bytes depend on their name and place.
pub const NOISE: &str = "noise";

/// Files of [`NOISE`].
pub const NOISE_FILES: u64 = 6;

/// Most bytes of such a file.
pub const NOISE_LONGEST: u64 = 300_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_comes_and_files_stay_few() {
        let mut seen = std::collections::BTreeSet::new();
        for writer in 0..WRITERS.len() {
            let mut plan = Plan::new(1, writer);
            for _ in 0..300 {
                let op = plan.next();
                assert_eq!(op, plan.next());
                let name = format!("{op:?}");
                seen.insert(name.split(' ').next().expect("a name").to_owned());
                plan.apply(&op);
                let files = plan.tree.keys().filter(|path| !path.ends_with('/'));
                assert!(files.count() <= FILES);
                let sizes = plan.tree.values().map(Vec::len);
                assert!(sizes.max().expect("a file") <= 2 * LONGEST as usize);
            }
        }
        assert_eq!(seen.len(), 11, "{seen:?}");
    }
}
