//! The writers of `machine/power-cuts`, in a machine.
//!
//! `power-cut-writers SEED STEPS DISK…` mounts the second partition of each disk, does so many
//! steps of each writer on it, all beside each other, and says in the first partition what is
//! done. What it prints at the end is the number of steps.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result};
use disk_tests::calls::{Mapping, mount_ext4, write_without_flush};
use disk_tests::contents::{Random, filled};
use disk_tests::power_cut::mark::{LEN, Mark};
use disk_tests::power_cut::plan::{
    NOISE, NOISE_FILES, NOISE_LONGEST, Op, Plan, Sync, WRITERS, temporary,
};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, fallocate, linkat, syncfs};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seed, steps, disks @ ..] = &arguments[..] else {
        anyhow::bail!("usage: power-cut-writers SEED STEPS DISK…");
    };
    let (seed, steps) = (seed.parse()?, steps.parse()?);
    let mut done = 0;
    thread::scope(|scope| {
        let all: Vec<_> = disks
            .iter()
            .enumerate()
            .map(|(number, disk)| scope.spawn(move || fill_disk(seed, steps, number, disk)))
            .collect();
        for one in all {
            done += one.join().expect("no writer panics")?;
        }
        println!("{done}");
        Ok(())
    })
}

/// Mounts a disk and runs its writers; the number of their steps.
fn fill_disk(seed: u64, steps: u64, number: usize, disk: &str) -> Result<u64> {
    let place = PathBuf::from(format!("/mnt{number}"));
    fs::create_dir(&place)?;
    let source = format!("{disk}2");
    mount_ext4(&source, &place).with_context(|| format!("cannot mount {source}"))?;
    let marks = File::options().write(true).open(format!("{disk}1"))?;
    thread::scope(|scope| {
        let (sender, told) = channel();
        let mut all = Vec::new();
        for writer in 0..WRITERS.len() {
            let (place, marks, sender) = (&place, &marks, sender.clone());
            all.push(scope.spawn(move || write(seed, writer, steps, place, marks, &sender)));
        }
        drop(sender);
        let noise = place.join(NOISE);
        let noise = scope.spawn(move || make_noise(seed, &noise, &told));
        for (writer, one) in all.into_iter().enumerate() {
            let end = one.join().expect("no writer panics");
            end.with_context(|| format!("writer {writer} on {disk}"))?;
        }
        noise.join().expect("no writer panics")?;
        Ok(steps * WRITERS.len() as u64)
    })
}

/// Does the steps of a writer, and marks each that is done.
fn write(
    seed: u64,
    writer: usize,
    steps: u64,
    place: &Path,
    marks: &File,
    told: &Sender<()>,
) -> Result<()> {
    let place = place.join(format!("w{writer}"));
    let mut plan = Plan::new(seed, writer);
    while plan.steps() < steps {
        let op = plan.next();
        carry_out(&place, &op).with_context(|| format!("step {}: {op:?}", plan.steps()))?;
        plan.apply(&op);
        let mark = Mark {
            writer: writer as u64,
            steps: plan.steps(),
        };
        marks.write_all_at(&mark.encode(), mark.place())?;
        write_without_flush(marks, mark.place(), LEN)?;
        // Who makes noise ends last.
        let _ = told.send(());
    }
    Ok(())
}

/// The directory in which a file's name is, synced.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("no parent")?;
    File::open(parent)?
        .sync_all()
        .context("fsync of a directory")
}

/// Does an operation; when it returns the outcome is promised.
fn carry_out(place: &Path, op: &Op) -> Result<()> {
    let at_path = |path: &str| place.join(path);
    match op {
        Op::Create {
            path,
            len,
            key,
            sync,
        } => {
            let file = new_file(&at_path(path))?;
            // In pieces, so that some are written back before the next.
            for (n, part) in filled(*key, 0, *len).chunks(30_000).enumerate() {
                file.write_all_at(part, n as u64 * 30_000)?;
            }
            match sync {
                Sync::All => syncfs(&file)?,
                _ => file.sync_all()?,
            }
        }
        Op::Write {
            path,
            at,
            len,
            key,
            sync,
        } => write_bytes(&at_path(path), *at, &filled(*key, *at, *len), *sync)?,
        Op::Truncate { path, len } => {
            let file = File::options().write(true).open(at_path(path))?;
            file.set_len(*len)?;
            file.sync_all()?;
        }
        Op::Punch { path, at, len } => {
            let file = File::options().write(true).open(at_path(path))?;
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, how, *at, *len)?;
            file.sync_all()?;
        }
        Op::Allocate { path, at, len } => {
            let file = File::options().write(true).open(at_path(path))?;
            fallocate(&file, FallocateFlags::empty(), *at, *len)?;
            file.sync_data()?;
        }
        Op::Remove { path } => {
            fs::remove_file(at_path(path))?;
            sync_parent(&at_path(path))?;
        }
        Op::Rename { from, to } => {
            fs::rename(at_path(from), at_path(to))?;
            sync_parent(&at_path(to))?;
        }
        Op::Replace { path, len, key } => {
            let other = at_path(&temporary(path));
            let file = new_file(&other)?;
            file.write_all_at(&filled(*key, 0, *len), 0)?;
            file.sync_all()?;
            fs::rename(&other, at_path(path))?;
            sync_parent(&at_path(path))?;
        }
        Op::Publish { path, len, key } => {
            let target = at_path(path);
            let parent = target.parent().context("no parent")?;
            let mut options = OpenOptions::new();
            let flags = OFlags::TMPFILE.bits() as i32;
            let file = options.write(true).custom_flags(flags).open(parent)?;
            file.write_all_at(&filled(*key, 0, *len), 0)?;
            file.sync_all()?;
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(
                CWD,
                CString::new(own)?,
                CWD,
                &target,
                AtFlags::SYMLINK_FOLLOW,
            )?;
            sync_parent(&target)?;
        }
        Op::MakeDir { path } => {
            let path = at_path(path.trim_end_matches('/'));
            fs::create_dir(&path)?;
            sync_parent(&path)?;
        }
        Op::RemoveDir { path } => {
            let path = at_path(path.trim_end_matches('/'));
            fs::remove_dir(&path)?;
            sync_parent(&path)?;
        }
    }
    Ok(())
}

fn new_file(path: &Path) -> Result<File> {
    let file = File::options().write(true).create_new(true).open(path);
    file.with_context(|| format!("cannot make {}", path.display()))
}

fn write_bytes(path: &Path, at: u64, bytes: &[u8], sync: Sync) -> Result<()> {
    let mut options = File::options();
    options.read(true).write(true);
    match sync {
        Sync::Dsync => options.custom_flags(libc::O_DSYNC),
        Sync::Osync => options.custom_flags(libc::O_SYNC),
        _ => &mut options,
    };
    let file = options.open(path)?;
    if sync == Sync::Mapped {
        return store(&file, at, bytes);
    }
    file.write_all_at(bytes, at)?;
    match sync {
        Sync::File => file.sync_all()?,
        Sync::Data => file.sync_data()?,
        Sync::All => syncfs(&file)?,
        Sync::Dsync | Sync::Osync | Sync::Mapped => {}
    }
    Ok(())
}

/// Stores bytes through a shared mapping of the file, which is as long as that.
fn store(file: &File, at: u64, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mapping = Mapping::new(file, at as usize + bytes.len())?;
    mapping.store(at as usize, bytes);
    mapping.sync().context("msync")
}

/// Writes, cuts and removes files without syncing any, once for each step of the others.
fn make_noise(seed: u64, place: &Path, told: &Receiver<()>) -> Result<()> {
    let mut random = Random::new(&[seed, u64::MAX]);
    while told.recv().is_ok() {
        let key = random.below(NOISE_FILES);
        let path = place.join(format!("n{key}"));
        let len = random.small(NOISE_LONGEST, 6);
        let at = random.below(NOISE_LONGEST - len);
        match random.below(8) {
            0 => drop(fs::remove_file(&path)),
            1 => {
                if let Ok(file) = File::options().write(true).open(&path) {
                    file.set_len(at)?;
                }
            }
            2 => {
                if let Ok(file) = File::open(&path) {
                    write_without_flush(&file, 0, NOISE_LONGEST)?;
                }
            }
            _ => {
                let mut options = File::options();
                let file = options
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&path)?;
                file.write_all_at(&filled(key, at, len), at)?;
            }
        }
    }
    Ok(())
}
