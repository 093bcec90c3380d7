//! What programs see of a disk that fails, in a machine whose disk fails as it is told.
//!
//! `disk-errors DISK` prints what each call said; Linux 6.1 and Skerry say the same. The disk goes
//! on to its next state when bytes of its first partition are made zeros (`BLKZEROOUT`); the file
//! system is in the second.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use disk_tests::calls::{
    DIRECT_BLOCK, Mapping, aligned, drop_caches, mount_ext4, open_direct, umount,
    write_without_flush, zero_out,
};
use disk_tests::contents::filled;
use rustix::fs::syncfs;

const PAGE: usize = 4096;
const PLACE: &str = "/mnt";
/// A file of which page [`BAD`] cannot be written in state 2, and its length.
const DATA: &str = "/mnt/data";
/// A file of which page [`BAD`] cannot be read in states 4 and 5.
const READ: &str = "/mnt/read";
const BAD: u64 = 10;

/// Prints the outcome of a call.
fn tell<T>(what: &str, outcome: io::Result<T>) -> Option<T> {
    match outcome {
        Ok(value) => {
            println!("{what}: ok");
            Some(value)
        }
        Err(error) => {
            let name = match error.raw_os_error() {
                Some(libc::EIO) => "EIO".to_owned(),
                Some(libc::EROFS) => "EROFS".to_owned(),
                _ => error.to_string(),
            };
            println!("{what}: {name}");
            None
        }
    }
}

struct Disk {
    partition: String,
    states: File,
}

impl Disk {
    /// Has the disk go on to its next state.
    fn next(&self, what: &str) -> Result<()> {
        zero_out(&self.states, 0, PAGE as u64).context("BLKZEROOUT")?;
        println!("== {what}");
        Ok(())
    }

    fn mount(&self) -> Option<()> {
        tell("mount", mount_ext4(&self.partition, Path::new(PLACE)))
    }
}

fn read_write(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [word] if word == "touch" => touch(),
        [path] => {
            let states = read_write(&format!("{path}1"))?;
            let disk = Disk {
                partition: format!("{path}2"),
                states,
            };
            fs::create_dir_all(PLACE)?;
            failing_writes(&disk)?;
            failing_reads(&disk)?;
            failing_once(&disk)?;
            failing_flushes(&disk)?;
            failing_journal(&disk)?;
            gone(&disk)
        }
        _ => anyhow::bail!("usage: disk-errors DISK"),
    }
}

/// Touches the page that cannot be read, in a process of its own.
fn touch() -> Result<()> {
    let mapping = Mapping::new(&read_write(READ)?, 64 * PAGE)?;
    mapping.load(BAD as usize * PAGE, &mut [0]);
    Ok(())
}

fn failing_writes(disk: &Disk) -> Result<()> {
    disk.mount();
    let (first, second) = (read_write(DATA)?, read_write(DATA)?);
    let other = read_write(READ)?;
    disk.next("a page of a file cannot be written")?;
    let write = |key| first.write_all_at(&filled(key, 0, PAGE as u64), BAD * PAGE as u64);
    tell("write", write(1));
    tell("fsync of the first opening", first.sync_all());
    tell("the same again", first.sync_all());
    tell("fsync of the second", second.sync_all());
    tell("the same again", second.sync_all());
    tell("fsync of a new one", read_write(DATA)?.sync_all());
    tell("fsync of another file", other.sync_all());
    tell("write", write(2));
    tell("sync_file_range", write_without_flush(&first, 0, 1 << 20));
    tell("fsync of the first", first.sync_all());
    tell("fdatasync of the second", second.sync_data());
    let mapping = Mapping::new(&first, 64 * PAGE)?;
    mapping.store(BAD as usize * PAGE + 7, b"mapped");
    tell("msync", mapping.sync());
    tell("msync again", mapping.sync());
    tell("fsync of the second", second.sync_all());
    drop(mapping);
    let direct = open_direct(Path::new(DATA))?;
    let mut buffer = Vec::new();
    let bytes = aligned(&mut buffer, PAGE as u64, DIRECT_BLOCK);
    for page in [BAD, BAD + 1] {
        let outcome = direct.write_all_at(bytes, page * PAGE as u64);
        tell(&format!("direct write of page {page}"), outcome);
    }
    tell("fsync of the same opening", direct.sync_all());
    tell("fsync of a new one", read_write(DATA)?.sync_all());
    tell("write", write(3));
    tell("syncfs", syncfs(&other).map_err(Into::into));
    tell("syncfs again", syncfs(&other).map_err(Into::into));
    drop((first, second, other));
    Ok(())
}

fn failing_reads(disk: &Disk) -> Result<()> {
    disk.next("it can be written again")?;
    let file = read_write(DATA)?;
    let bytes = filled(4, 0, PAGE as u64);
    tell("write", file.write_all_at(&bytes, BAD * PAGE as u64));
    tell("fsync", file.sync_all());
    drop_caches()?;
    let mut found = vec![0; PAGE];
    tell("read", file.read_exact_at(&mut found, BAD * PAGE as u64));
    println!("same: {}", found == bytes);

    disk.next("a page of a file cannot be read")?;
    drop_caches()?;
    let file = read_write(READ)?;
    for page in [BAD - 1, BAD, BAD + 1, BAD] {
        let read = file.read_exact_at(&mut found, page * PAGE as u64);
        tell(&format!("read of page {page}"), read);
    }
    let mut all = vec![0; 64 * PAGE];
    println!("read of all: {:?}", file.read_at(&mut all, 0));
    let direct = open_direct(Path::new(READ))?;
    let mut buffer = Vec::new();
    let bytes = aligned(&mut buffer, PAGE as u64, DIRECT_BLOCK);
    for page in [BAD - 1, BAD] {
        let outcome = direct.read_exact_at(bytes, page * PAGE as u64);
        tell(&format!("direct read of page {page}"), outcome);
    }
    let status = Command::new("/proc/self/exe").arg("touch").status()?;
    println!("mapping: {status}");
    disk.next("it can be read again")?;
    tell("read", file.read_exact_at(&mut all, 0));
    println!("same: {}", all == filled(2, 0, all.len() as u64));
    Ok(())
}

fn failing_once(disk: &Disk) -> Result<()> {
    let file = read_write(DATA)?;
    let bytes = filled(5, 0, PAGE as u64);
    disk.next("a page of a file cannot be written, once")?;
    tell("write", file.write_all_at(&bytes, BAD * PAGE as u64));
    tell("fsync", file.sync_all());
    tell("the same again", file.sync_all());
    tell("write", file.write_all_at(&bytes, BAD * PAGE as u64));
    tell("fsync", file.sync_all());
    drop_caches()?;
    let mut found = vec![0; PAGE];
    tell("read", file.read_exact_at(&mut found, BAD * PAGE as u64));
    println!("same: {}", found == bytes);
    Ok(())
}

fn failing_flushes(disk: &Disk) -> Result<()> {
    let file = File::create("/mnt/flushed")?;
    disk.next("the disk cannot be flushed")?;
    tell("write", file.write_all_at(b"flushed", 0));
    tell("fsync", file.sync_all());
    tell("fsync again", file.sync_all());
    tell("a new file", File::create("/mnt/new"));
    tell("read", fs::read(READ));
    drop(file);
    tell("umount", umount(Path::new(PLACE)));
    disk.next("it can be flushed again")?;
    disk.mount();
    tell("a new file", File::create("/mnt/new"));
    Ok(())
}

fn failing_journal(disk: &Disk) -> Result<()> {
    disk.next("nothing can be written")?;
    let new = tell("a new file", File::create("/mnt/lost")).context("it needs no disk yet")?;
    tell("fsync", new.sync_all());
    tell("another", File::create("/mnt/another"));
    tell("removing", fs::remove_file(DATA));
    tell("read", fs::read(DATA));
    drop(new);
    tell("umount", umount(Path::new(PLACE)));
    disk.next("it can be written again")?;
    disk.mount();
    println!("lost: {}", !Path::new("/mnt/lost").exists());
    tell("a new file", File::create("/mnt/lost"));
    Ok(())
}

fn gone(disk: &Disk) -> Result<()> {
    let file = read_write(DATA)?;
    tell("syncfs", syncfs(&file).map_err(Into::into));
    disk.next("the disk is gone")?;
    drop_caches()?;
    tell("read", fs::read(READ));
    tell("write", file.write_all_at(b"x", 5 * PAGE as u64));
    tell("fsync", file.sync_all());
    drop(file);
    tell("umount", umount(Path::new(PLACE)));
    disk.mount();
    disk.next("it is back")?;
    disk.mount();
    tell("a new file", File::create("/mnt/back"));
    tell("umount", umount(Path::new(PLACE)));
    fs::remove_dir(PLACE)?;
    Ok(())
}
