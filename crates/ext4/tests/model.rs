//! Random operations beside a model in memory, with `e2fsck -fn` and a new mount in between.

mod common;

use std::collections::BTreeMap;

use abi::errno::Errno;
use common::{Disk, new};
use ext4::{Ext4, FileType, NewKind, ROOT, RenameMode, Renamed, Result, SetMode, Unlinked};
use proptest::prelude::*;

const KINDS: [&[&str]; 4] = [
    &["-b", "1024", "-J", "size=1", "-g", "2048"],
    &["-b", "4096"],
    &["-b", "1024", "-O", "^has_journal,^metadata_csum,^64bit"],
    &["-b", "2048", "-I", "128", "-O", "^dir_index"],
];

/// An operation; numbers select among the names and directories there are.
#[derive(Clone, Debug)]
enum Step {
    Create(u8, u8),
    Mkdir(u8, u8),
    Symlink(u8, u8, u16),
    Link(u8, u8, u8, u8),
    Unlink(u8, u8),
    Rmdir(u8, u8),
    Rename((u8, u8), (u8, u8), u8),
    Write(u8, u8, u32, u16),
    Truncate(u8, u8, u32),
    Punch(u8, u8, u32, u32),
    Allocate(u8, u8, u32, u32),
    Xattr(u8, u8, u8, Option<u16>),
    Commit,
    Remount,
}

fn step() -> impl Strategy<Value = Step> {
    let dir = || 0..4_u8;
    let name = || 0..12_u8;
    let at = || prop_oneof![0..5000_u32, 0..300_000_u32];
    prop_oneof![
        4 => (dir(), name()).prop_map(|(dir, name)| Step::Create(dir, name)),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::Mkdir(dir, name)),
        1 => (dir(), name(), 1..1500_u16)
            .prop_map(|(dir, name, len)| Step::Symlink(dir, name, len)),
        1 => (dir(), name(), dir(), name()).prop_map(|(a, b, c, d)| Step::Link(a, b, c, d)),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::Unlink(dir, name)),
        1 => (dir(), name()).prop_map(|(dir, name)| Step::Rmdir(dir, name)),
        2 => ((dir(), name()), (dir(), name()), 0..3_u8)
            .prop_map(|(a, b, how)| Step::Rename(a, b, how)),
        6 => (dir(), name(), at(), 1..40_000_u16).prop_map(|(a, b, c, d)| Step::Write(a, b, c, d)),
        2 => (dir(), name(), at()).prop_map(|(a, b, c)| Step::Truncate(a, b, c)),
        2 => (dir(), name(), at(), 1..100_000_u32).prop_map(|(a, b, c, d)| Step::Punch(a, b, c, d)),
        2 => (dir(), name(), at(), 1..100_000_u32)
            .prop_map(|(a, b, c, d)| Step::Allocate(a, b, c, d)),
        2 => (dir(), name(), 0..6_u8, prop::option::of(0..400_u16))
            .prop_map(|(a, b, c, d)| Step::Xattr(a, b, c, d)),
        1 => Just(Step::Commit),
        1 => Just(Step::Remount),
    ]
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u32>),
    Symlink(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    contents: Contents,
    links: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The model: files by the numbers that the file system gave them.
struct Model {
    nodes: BTreeMap<u32, Node>,
}

fn name_of(name: u8) -> Vec<u8> {
    // Some are long, so that directories have several blocks.
    let width = if name.is_multiple_of(3) { 220 } else { 4 };
    format!("{name:0width$}").into_bytes()
}

impl Model {
    fn new(lost_and_found: u32) -> Self {
        let names = BTreeMap::from([(b"lost+found".to_vec(), lost_and_found)]);
        let node = |names, links| Node {
            contents: Contents::Directory(names),
            links,
            xattrs: BTreeMap::new(),
        };
        let nodes = BTreeMap::from([
            (ROOT, node(names, 3)),
            (lost_and_found, node(BTreeMap::new(), 2)),
        ]);
        Self { nodes }
    }

    /// One of the directories: there is always the top one.
    fn dir(&self, number: u8) -> u32 {
        let dirs: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(node.contents, Contents::Directory(_)))
            .map(|(ino, _)| *ino)
            .collect();
        dirs[usize::from(number) % dirs.len()]
    }

    fn names(&mut self, dir: u32) -> &mut BTreeMap<Vec<u8>, u32> {
        match &mut self.nodes.get_mut(&dir).expect("a directory").contents {
            Contents::Directory(names) => names,
            _ => panic!("{dir} is no directory"),
        }
    }

    fn find(&mut self, dir: u32, name: &[u8]) -> Result<u32> {
        self.names(dir).get(name).copied().ok_or(Errno::ENOENT)
    }

    fn node(&mut self, ino: u32) -> &mut Node {
        self.nodes.get_mut(&ino).expect("a file")
    }

    fn is_dir(&mut self, ino: u32) -> bool {
        matches!(self.node(ino).contents, Contents::Directory(_))
    }

    fn is_empty(&mut self, ino: u32) -> bool {
        self.names(ino).is_empty()
    }

    fn add(&mut self, dir: u32, name: &[u8], ino: u32, contents: Contents) {
        let is_dir = matches!(contents, Contents::Directory(_));
        self.names(dir).insert(name.to_vec(), ino);
        self.node(dir).links += u32::from(is_dir);
        let node = Node {
            contents,
            links: 1 + u32::from(is_dir),
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(ino, node);
    }

    /// One name fewer; whether the file is gone.
    fn drop_link(&mut self, dir: u32, ino: u32) -> bool {
        if self.is_dir(ino) {
            self.node(dir).links -= 1;
            self.nodes.remove(&ino);
            return true;
        }
        self.node(ino).links -= 1;
        let is_gone = self.node(ino).links == 0;
        if is_gone {
            self.nodes.remove(&ino);
        }
        is_gone
    }

    /// Whether a directory is another, or above it.
    fn is_above(&mut self, dir: u32, other: u32) -> bool {
        if dir == other {
            return true;
        }
        let children: Vec<_> = match &self.node(dir).contents {
            Contents::Directory(names) => names.values().copied().collect(),
            _ => return false,
        };
        children
            .into_iter()
            .any(|child| self.is_dir(child) && self.is_above(child, other))
    }
}

/// A file that a step on contents is for.
fn file(model: &mut Model, dir: u8, name: u8) -> Option<u32> {
    let dir = model.dir(dir);
    let ino = model.find(dir, &name_of(name)).ok()?;
    matches!(model.node(ino).contents, Contents::File(_)).then_some(ino)
}

fn bytes_of(model: &mut Model, ino: u32) -> &mut Vec<u8> {
    match &mut model.node(ino).contents {
        Contents::File(bytes) => bytes,
        _ => panic!("{ino} is no file"),
    }
}

fn apply(fs: &mut Ext4, model: &mut Model, step: &Step) {
    match *step {
        Step::Create(dir, name) => {
            let (dir, name) = (model.dir(dir), name_of(name));
            let made = fs.create(dir, &name, &new(NewKind::Regular));
            match model.find(dir, &name) {
                Ok(_) => assert_eq!(made, Err(Errno::EEXIST)),
                Err(_) => model.add(dir, &name, made.expect("create"), Contents::File(vec![])),
            }
        }
        Step::Mkdir(dir, name) => {
            let (dir, name) = (model.dir(dir), name_of(name));
            let made = fs.create(dir, &name, &new(NewKind::Directory));
            let contents = Contents::Directory(BTreeMap::new());
            match model.find(dir, &name) {
                Ok(_) => assert_eq!(made, Err(Errno::EEXIST)),
                Err(_) => model.add(dir, &name, made.expect("mkdir"), contents),
            }
        }
        Step::Symlink(dir, name, len) => {
            let (dir, name) = (model.dir(dir), name_of(name));
            let target = vec![b't'; usize::from(len)];
            let made = fs.create(dir, &name, &new(NewKind::Symlink(&target)));
            if model.find(dir, &name).is_ok() {
                assert_eq!(made, Err(Errno::EEXIST));
            } else if target.len() >= fs.statfs().block_size as usize {
                assert_eq!(made, Err(Errno::ENAMETOOLONG));
            } else {
                model.add(
                    dir,
                    &name,
                    made.expect("symlink"),
                    Contents::Symlink(target),
                );
            }
        }
        Step::Link(dir, name, to_dir, to) => {
            let (dir, to_dir) = (model.dir(dir), model.dir(to_dir));
            let (name, to) = (name_of(name), name_of(to));
            let Ok(ino) = model.find(dir, &name) else {
                return;
            };
            let done = fs.link(to_dir, &to, ino);
            if model.is_dir(ino) {
                assert_eq!(done, Err(Errno::EPERM));
            } else if model.find(to_dir, &to).is_ok() {
                assert_eq!(done, Err(Errno::EEXIST));
            } else {
                done.expect("link");
                model.names(to_dir).insert(to, ino);
                model.node(ino).links += 1;
            }
        }
        Step::Unlink(dir, name) => {
            let (dir, name) = (model.dir(dir), name_of(name));
            let done = fs.unlink(dir, &name);
            match model.find(dir, &name) {
                Err(error) => assert_eq!(done, Err(error)),
                Ok(ino) if model.is_dir(ino) => assert_eq!(done, Err(Errno::EISDIR)),
                Ok(ino) => {
                    model.names(dir).remove(&name);
                    let is_gone = model.drop_link(dir, ino);
                    assert_eq!(done, Ok(Unlinked { ino, is_gone }));
                    if is_gone {
                        fs.release(ino).expect("release");
                    }
                }
            }
        }
        Step::Rmdir(dir, name) => {
            let (dir, name) = (model.dir(dir), name_of(name));
            let done = fs.rmdir(dir, &name);
            match model.find(dir, &name) {
                Err(error) => assert_eq!(done, Err(error)),
                Ok(ino) if !model.is_dir(ino) => assert_eq!(done, Err(Errno::ENOTDIR)),
                Ok(ino) if !model.is_empty(ino) => assert_eq!(done, Err(Errno::ENOTEMPTY)),
                Ok(ino) => {
                    model.names(dir).remove(&name);
                    model.drop_link(dir, ino);
                    assert_eq!(done, Ok(ino));
                    fs.release(ino).expect("release");
                }
            }
        }
        Step::Rename((dir, name), (to_dir, to), how) => {
            let (dir, to_dir) = (model.dir(dir), model.dir(to_dir));
            rename(fs, model, (dir, name_of(name)), (to_dir, name_of(to)), how);
        }
        Step::Write(dir, name, at, len) => {
            let Some(ino) = file(model, dir, name) else {
                return;
            };
            let (at, len) = (at as usize, usize::from(len));
            let new: Vec<_> = (0..len).map(|index| (index * 7 + at) as u8 | 1).collect();
            assert_eq!(fs.write(ino, at as u64, &new), Ok(len));
            let bytes = bytes_of(model, ino);
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&new);
        }
        Step::Truncate(dir, name, size) => {
            let Some(ino) = file(model, dir, name) else {
                return;
            };
            fs.truncate(ino, u64::from(size)).expect("truncate");
            bytes_of(model, ino).resize(size as usize, 0);
        }
        Step::Punch(dir, name, at, len) => {
            let Some(ino) = file(model, dir, name) else {
                return;
            };
            fs.punch(ino, u64::from(at), u64::from(len)).expect("punch");
            let bytes = bytes_of(model, ino);
            let end = bytes.len().min((at + len) as usize);
            if let Some(part) = bytes.get_mut(at as usize..end) {
                part.fill(0);
            }
        }
        Step::Allocate(dir, name, at, len) => {
            let Some(ino) = file(model, dir, name) else {
                return;
            };
            fs.allocate_range(ino, u64::from(at), u64::from(len), false)
                .expect("fallocate");
            let bytes = bytes_of(model, ino);
            bytes.resize(bytes.len().max((at + len) as usize), 0);
        }
        Step::Xattr(dir, name, attribute, len) => {
            let dir = model.dir(dir);
            let Ok(ino) = model.find(dir, &name_of(name)) else {
                return;
            };
            let name = format!("user.{attribute}").into_bytes();
            let Some(len) = len else {
                let done = fs.remove_xattr(ino, &name);
                let was_there = model.node(ino).xattrs.remove(&name).is_some();
                assert_eq!(
                    done,
                    if was_there {
                        Ok(())
                    } else {
                        Err(Errno::ENODATA)
                    }
                );
                return;
            };
            let value = vec![attribute + 1; usize::from(len)];
            match fs.set_xattr(ino, &name, &value, SetMode::Any) {
                Ok(()) => drop(model.node(ino).xattrs.insert(name, value)),
                Err(error) => assert_eq!(error, Errno::ENOSPC),
            }
        }
        Step::Commit => fs.commit().expect("commit"),
        Step::Remount => {}
    }
}

fn rename(
    fs: &mut Ext4,
    model: &mut Model,
    (dir, name): (u32, Vec<u8>),
    (to_dir, to): (u32, Vec<u8>),
    how: u8,
) {
    let mode = [
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ][usize::from(how)];
    let found = (model.find(dir, &name), model.find(to_dir, &to));
    // The VFS refuses to move a directory below itself.
    for (ino, other) in [(found.0, to_dir), (found.1, dir)] {
        if ino.is_ok_and(|ino| model.is_dir(ino) && model.is_above(ino, other)) {
            return;
        }
    }
    let done = fs.rename((dir, &name), (to_dir, &to), mode, None);
    let (ino, old) = match (found, mode) {
        ((Err(error), _), _) => return assert_eq!(done, Err(error)),
        ((_, Ok(_)), RenameMode::NoReplace) => return assert_eq!(done, Err(Errno::EEXIST)),
        ((_, Err(error)), RenameMode::Exchange) => return assert_eq!(done, Err(error)),
        ((Ok(ino), old), _) => (ino, old.ok()),
    };
    let renamed = |is_gone| Renamed {
        moved: ino,
        other: old.map(|ino| Unlinked { ino, is_gone }),
    };
    if old == Some(ino) {
        return assert_eq!(done, Ok(renamed(false)));
    }
    let is_dir = model.is_dir(ino);
    if mode == RenameMode::Exchange {
        assert_eq!(done, Ok(renamed(false)));
        let old = old.expect("the other");
        model.names(dir).insert(name, old);
        model.names(to_dir).insert(to, ino);
        for (moved, from, into) in [(ino, dir, to_dir), (old, to_dir, dir)] {
            if model.is_dir(moved) {
                model.node(from).links -= 1;
                model.node(into).links += 1;
            }
        }
        return;
    }
    if let Some(old) = old {
        match (is_dir, model.is_dir(old)) {
            (true, false) => return assert_eq!(done, Err(Errno::ENOTDIR)),
            (false, true) => return assert_eq!(done, Err(Errno::EISDIR)),
            (true, true) if !model.is_empty(old) => return assert_eq!(done, Err(Errno::ENOTEMPTY)),
            _ => {}
        }
    }
    let gone = old.filter(|old| model.drop_link(to_dir, *old));
    assert_eq!(done, Ok(renamed(gone.is_some())));
    if let Some(ino) = gone {
        fs.release(ino).expect("release");
    }
    model.names(dir).remove(&name);
    model.names(to_dir).insert(to, ino);
    if is_dir {
        model.node(dir).links -= 1;
        model.node(to_dir).links += 1;
    }
}

fn compare(fs: &mut Ext4, model: &Model) {
    for (&ino, node) in &model.nodes {
        let stat = fs.stat(ino).expect("stat");
        assert_eq!(stat.links, node.links, "links of {ino}");
        match &node.contents {
            Contents::File(bytes) => {
                assert_eq!(stat.kind, FileType::Regular);
                assert!(common::contents(fs, ino) == *bytes, "contents of {ino}");
            }
            Contents::Symlink(target) => assert_eq!(fs.read_link(ino).as_ref(), Ok(target)),
            Contents::Directory(names) => {
                let found = common::names(fs, ino)
                    .into_iter()
                    .map(|(name, ino, _)| (name, ino));
                assert_eq!(&found.collect::<BTreeMap<_, _>>(), names, "names in {ino}");
            }
        }
        let names = fs.xattr_names(ino).expect("names");
        let found = names.into_iter().map(|name| {
            let value = fs.xattr(ino, &name).expect("a value");
            (name, value)
        });
        assert_eq!(
            found.collect::<BTreeMap<_, _>>(),
            node.xattrs,
            "attributes of {ino}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("EXT4_MODELS").ok().and_then(|text| text.parse().ok()).unwrap_or(12),
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_is_what_the_model_says(
        kind in 0..KINDS.len(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let disk = Disk::new(common::mkfs(12 * 1024, KINDS[kind]));
        let mut fs = common::mount(&disk);
        let lost = fs.lookup(ROOT, b"lost+found").expect("lost+found");
        let mut model = Model::new(lost);
        for step in &steps {
            apply(&mut fs, &mut model, step);
            if matches!(step, Step::Remount) {
                fs.unmount().expect("unmount");
                common::assert_clean(&disk.bytes(), "in the middle");
                fs = common::mount(&disk);
                compare(&mut fs, &model);
            }
        }
        compare(&mut fs, &model);
        fs.unmount().expect("unmount");
        common::assert_clean(&disk.bytes(), "at the end");
    }
}
