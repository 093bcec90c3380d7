//! Disks as they may be after a power cut, and what is wrong with them.
//!
//! Between two flushes is a *window*. A cut in a window leaves everything that was written before
//! it, and any part of what was written in it so far, in pieces of a block: a disk is free to write
//! in any order until it is told to flush.

use std::fs;
use std::mem;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use abi::errno::Errno;
use anyhow::{Context, Result, bail, ensure};
use ext4::{Ext4, FileType, Options, ROOT};

use super::judge::{judge, judge_noise};
use super::mark::{self, Mark};
use super::plan::{NOISE, Plan, Tree, WRITERS};
use crate::contents::Random;
use crate::log::Entry;
use crate::memory::Memory;

/// A disk whose writes were logged.
pub struct Recorded<'a> {
    /// Contents of the disk before the first write of the log.
    pub start: &'a [u8],
    /// All that was done to it.
    pub log: &'a [Entry<'a>],
    /// Place of the marks on the disk, in bytes.
    pub marks: Range<u64>,
    /// Place of the file system on the disk, in bytes.
    pub file_system: Range<u64>,
    /// Bytes of its blocks.
    pub block: usize,
    /// The writers' seed.
    pub seed: u64,
}

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    /// Cuts.
    pub cuts: u64,
    /// Windows in which they were, of so many.
    pub windows: [usize; 2],
    /// Steps that were promised in the end, of all writers.
    pub steps: u64,
    /// Cuts after which there was something to replay.
    pub replays: u64,
}

/// How a disk treats what it has not been told to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// A flush empties it.
    Flushed,
    /// A flush does nothing: what the file system believes to be on the medium may be lost. The
    /// tests must notice.
    NeverFlushed,
}

/// Questions that are asked of file systems after cuts.
pub trait Judge {
    /// Takes a mark of the log; the cuts that are judged next are behind it.
    ///
    /// # Errors
    /// It is not one that a writer can have made.
    fn promise(&mut self, mark: Mark) -> Result<()>;

    /// Looks at the file system after a cut, of which there were so many before. Returns whether
    /// there was something to replay.
    ///
    /// # Errors
    /// What is wrong with it.
    fn look(&mut self, image: &[u8], turn: u64) -> Result<bool>;
}

/// Writers as far as the log has been read, and where images are written to.
struct Promised<'a> {
    plans: Vec<Plan>,
    path: &'a Path,
    seen: &'a mut dyn FnMut(u64, &[u8]) -> Result<()>,
}

impl Judge for Promised<'_> {
    /// Takes a mark, which is of the step that comes next, or was seen already.
    fn promise(&mut self, mark: Mark) -> Result<()> {
        let plan = self
            .plans
            .get_mut(mark.writer as usize)
            .context("a writer that there is not")?;
        if mark.steps > plan.steps() {
            let op = plan.next();
            plan.apply(&op);
        }
        ensure!(
            mark.steps == plan.steps(),
            "writer {} said that step {} was done after step {}",
            mark.writer,
            mark.steps,
            plan.steps()
        );
        Ok(())
    }

    fn look(&mut self, image: &[u8], turn: u64) -> Result<bool> {
        let replayed = look(image, &self.plans, turn, self.path)?;
        (self.seen)(turn, image)?;
        Ok(replayed)
    }
}

impl Recorded<'_> {
    /// Cuts the power so many times, and looks at what is left of what [`Plan`]s were promised.
    ///
    /// Images are written to `directory`; one with which something is wrong stays there. The others
    /// are shown to `seen`, as they were before the replay, with the number of those before.
    ///
    /// # Errors
    /// What is wrong, and where the image is.
    pub fn cuts(
        &self,
        count: u64,
        cache: Cache,
        directory: &Path,
        seen: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Tried> {
        let path = directory.join("cut.img");
        let mut promised = Promised {
            plans: (0..WRITERS.len())
                .map(|writer| Plan::new(self.seed, writer))
                .collect(),
            path: &path,
            seen,
        };
        let tried = self
            .judge(count, cache, &mut promised)
            .with_context(|| format!("image: {}", path.display()))?;
        Ok(Tried {
            steps: promised.plans.iter().map(Plan::steps).sum(),
            ..tried
        })
    }

    /// Cuts the power so many times, as evenly over the windows as can be, and has what is left
    /// judged.
    ///
    /// # Errors
    /// What is wrong, and where the cut was.
    pub fn judge(&self, count: u64, cache: Cache, judge: &mut dyn Judge) -> Result<Tried> {
        let windows = self.windows(cache);
        let mut random = Random::new(&[self.seed, count]);
        let mut base = self.start.to_vec();
        let mut tried = Tried {
            windows: [0, windows.len()],
            ..Tried::default()
        };
        for (index, window) in windows.iter().enumerate() {
            let until = |index: usize| count * index as u64 / windows.len() as u64;
            let mut ends: Vec<usize> = (until(index)..until(index + 1))
                .map(|turn| self.end_of(window, turn, &mut random))
                .collect();
            // Promises are taken in the order of the log.
            ends.sort_unstable();
            tried.windows[0] += usize::from(!ends.is_empty());
            let mut at = window.start;
            for end in ends {
                self.take_marks(at..end, judge)?;
                at = end;
                let image = self.image(&base, window.start..end, &mut random);
                let turn = tried.cuts;
                tried.cuts += 1;
                let replayed = judge.look(&image, turn).with_context(|| {
                    format!(
                        "cut {turn} at entry {end}, of a window from {} to {}, of {}, seed {}",
                        window.start,
                        window.end,
                        self.log.len(),
                        self.seed,
                    )
                })?;
                tried.replays += u64::from(replayed);
            }
            self.take_marks(at..window.end, judge)?;
            for entry in &self.log[window.clone()] {
                apply(&mut base, entry, 0, self.start.len(), &mut || true);
            }
        }
        Ok(tried)
    }

    /// The parts of the log between flushes; without any, all of it is one.
    fn windows(&self, cache: Cache) -> Vec<Range<usize>> {
        let is_flush = |at: &usize| cache == Cache::Flushed && self.log[*at] == Entry::Flush;
        let mut start = 0;
        let mut windows: Vec<_> = (0..self.log.len())
            .filter(is_flush)
            .map(|at| mem::replace(&mut start, at + 1)..at)
            .collect();
        windows.push(start..self.log.len());
        windows
    }

    /// Where in a window a cut is: mostly at its end, where most is under way.
    fn end_of(&self, window: &Range<usize>, turn: u64, random: &mut Random) -> usize {
        if turn.is_multiple_of(3) || window.is_empty() {
            window.start + random.below(window.len() as u64 + 1) as usize
        } else {
            window.end
        }
    }

    fn take_marks(&self, entries: Range<usize>, judge: &mut dyn Judge) -> Result<()> {
        for entry in &self.log[entries] {
            if let Entry::Write { at, bytes, .. } = entry
                && self.marks.contains(at)
            {
                // Marks of neighbours may be written at once.
                for mark in bytes.chunks(mark::LEN as usize).filter_map(Mark::decode) {
                    judge.promise(mark)?;
                }
            }
        }
        Ok(())
    }

    /// The file system with any part of what was written by these entries.
    fn image(&self, base: &[u8], entries: Range<usize>, random: &mut Random) -> Vec<u8> {
        let Range { start, end } = self.file_system;
        let mut image = base[start as usize..end as usize].to_vec();
        // All, nothing, or few, half or most of the pieces.
        let (kept, of) = [(1, 1), (0, 1), (1, 8), (1, 2), (1, 2), (7, 8)][random.below(6) as usize];
        for entry in &self.log[entries] {
            apply(&mut image, entry, start, self.block, &mut || {
                random.below(of) < kept
            });
        }
        image
    }
}

/// Does to the bytes of a disk from `start` on what an entry did, piece by piece.
fn apply(
    image: &mut [u8],
    entry: &Entry<'_>,
    start: u64,
    piece: usize,
    is_kept: &mut dyn FnMut() -> bool,
) {
    let mut put = |at: u64, bytes: &[u8]| {
        let at = at.checked_sub(start).map(|at| at as usize);
        if let Some(at) = at
            && let Some(to) = image.get_mut(at..at + bytes.len())
        {
            to.copy_from_slice(bytes);
        }
    };
    match entry {
        Entry::Write {
            at,
            bytes,
            is_durable,
        } => {
            for (n, part) in bytes.chunks(piece).enumerate() {
                if *is_durable || is_kept() {
                    put(at + (n * piece) as u64, part);
                }
            }
        }
        // What it then has nobody knows.
        Entry::Discard { at, len } => {
            if is_kept() {
                put(*at, &vec![crate::contents::GARBAGE; *len as usize]);
            }
        }
        Entry::Flush => {}
    }
}

/// Runs e2fsck on an image; what it said.
fn e2fsck(how: &str, path: &Path) -> Result<Output> {
    Command::new("/usr/sbin/e2fsck")
        .arg(how)
        .arg(path)
        .output()
        .context("cannot run e2fsck")
}

/// Requires that e2fsck finds nothing wrong.
fn check(path: &Path) -> Result<()> {
    let output = e2fsck("-fn", path)?;
    ensure!(
        output.status.success(),
        "e2fsck -fn: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(())
}

/// Looks at a file system after a cut: replayed by us or by e2fsck in turns, it is without a fault,
/// and has what was promised. Whether there was something to replay.
fn look(image: &[u8], plans: &[Plan], turn: u64, path: &Path) -> Result<bool> {
    fs::write(path, image).with_context(|| format!("cannot write {}", path.display()))?;
    let (trees, replayed) = if turn.is_multiple_of(2) {
        let disk = Memory::new(image.to_vec());
        let mut fs = mount(&disk, false)?;
        let replayed = fs.recovery().is_some();
        let trees = trees(&mut fs)?;
        fs.unmount().context("umount")?;
        fs::write(path, disk.bytes())?;
        (trees, replayed)
    } else {
        let output = e2fsck("-p", path)?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.code() <= Some(1), "e2fsck -p: {text}");
        let disk = Memory::new(fs::read(path)?);
        let trees = trees(&mut mount(&disk, true)?)?;
        (trees, text.contains("recovering journal"))
    };
    check(path)?;
    for (writer, plan) in plans.iter().enumerate() {
        let op = plan.next();
        judge(plan, &op, &trees[writer]).with_context(|| {
            let steps = plan.steps();
            format!("writer {writer} was promised {steps} steps, and was at {op:?}")
        })?;
    }
    judge_noise(&trees[WRITERS.len()]).context("the writer without promises")?;
    Ok(replayed)
}

fn mount(disk: &Arc<Memory>, is_read_only: bool) -> Result<Ext4> {
    let options = Options {
        read_only: is_read_only,
        ..Options::default()
    };
    Ext4::mount(disk.clone(), options).map_err(|error| anyhow::anyhow!("mount: {error}"))
}

/// The trees of all writers, and of the one without promises.
fn trees(fs: &mut Ext4) -> Result<Vec<Tree>> {
    let mut trees = Vec::new();
    let names = (0..WRITERS.len()).map(|writer| format!("w{writer}"));
    for name in names.chain([NOISE.to_owned()]) {
        let dir = fs.lookup(ROOT, name.as_bytes());
        let tree = dir.map_err(Into::into).and_then(|dir| tree(fs, dir));
        trees.push(tree.context(name)?);
    }
    Ok(trees)
}

/// All files below a directory.
fn tree(fs: &mut Ext4, dir: u32) -> Result<Tree> {
    let mut found = Tree::new();
    let mut dirs = vec![(dir, String::new())];
    while let Some((dir, prefix)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.read_dir(dir, 0, &mut |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            entries.push((name, entry.ino, entry.kind));
            true
        })
        .with_context(|| prefix.clone())?;
        for (name, ino, kind) in entries {
            let path = format!("{prefix}{name}");
            if kind == Some(FileType::Directory) {
                dirs.push((ino, format!("{path}/")));
                found.insert(format!("{path}/"), Vec::new());
            } else {
                let bytes = contents(fs, ino).with_context(|| path.clone())?;
                if found.insert(path.clone(), bytes).is_some() {
                    bail!("{path} is there twice");
                }
            }
        }
    }
    Ok(found)
}

fn contents(fs: &mut Ext4, ino: u32) -> ext4::Result<Vec<u8>> {
    let mut bytes = vec![0; fs.stat(ino)?.size as usize];
    let len = fs.read(ino, 0, &mut bytes)?;
    if len == bytes.len() {
        Ok(bytes)
    } else {
        Err(Errno::EIO)
    }
}
