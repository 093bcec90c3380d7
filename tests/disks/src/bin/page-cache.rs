//! What the page cache of a file system costs and does by itself, in a machine.
//!
//! `page-cache PARTITION DISK` mounts ext4, which has the file [`BIG`], and prints a line for each
//! thing that holds; `DISK` is the name in `/sys/block` of the disk that it is on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use disk_tests::calls::{Mapping, drop_caches, mount_ext4, umount};
use disk_tests::contents::filled;

const PAGE: usize = 4096;
const PLACE: &str = "/mnt";
/// A file that the host made, and its length.
const BIG: &str = "/mnt/big";
const BIG_LEN: usize = 32 << 20;
/// A file of which only the first page has a block.
const SPARSE: &str = "/mnt/sparse";
const SPARSE_PAGES: usize = 64;
const SECTOR: usize = 512;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [word, page] if word == "store" => store(page.parse()?),
        [partition, disk] => {
            fs::create_dir_all(PLACE)?;
            mount_ext4(partition, Path::new(PLACE)).context("mount")?;
            once()?;
            ahead(disk)?;
            with_age(disk)?;
            full()?;
            umount(Path::new(PLACE)).context("umount")?;
            Ok(fs::remove_dir(PLACE)?)
        }
        _ => bail!("usage: page-cache PARTITION DISK"),
    }
}

/// Stores a byte in a page of a mapping of [`SPARSE`], in a process of its own.
fn store(page: usize) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(SPARSE)?;
    let mapping = Mapping::new(&file, SPARSE_PAGES * PAGE)?;
    mapping.store(page * PAGE, b"x");
    Ok(())
}

/// Bytes that a line of `/proc/meminfo` tells.
fn memory(name: &str) -> Result<i64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let words = line.and_then(|line| line.strip_prefix(':'));
    let number = words.and_then(|words| words.split_whitespace().next());
    Ok(number.context("no such line")?.parse::<i64>()? * 1024)
}

/// A number of `/sys/block/DISK/stat`.
fn requests(disk: &str, column: usize) -> Result<u64> {
    let text = fs::read_to_string(format!("/sys/block/{disk}/stat"))?;
    let number = text.split_whitespace().nth(column);
    Ok(number.context("no such column")?.parse()?)
}

/// A file that is read and mapped is in memory once.
fn once() -> Result<()> {
    rustix::fs::sync();
    drop_caches()?;
    let free = || memory("MemFree");
    let (before, cached) = (free()?, memory("Cached")?);
    let mut file = OpenOptions::new().read(true).write(true).open(BIG)?;
    let mut all = vec![0; BIG_LEN / 32];
    for part in 0..32 {
        file.read_exact(&mut all)?;
        if part == 7 {
            let wanted = filled(1, (part * all.len()) as u64, all.len() as u64);
            ensure!(all == wanted, "other bytes");
        }
    }
    drop(all);
    let read = free()?;
    let mapping = Mapping::new(&file, BIG_LEN)?;
    for page in 0..BIG_LEN / PAGE {
        mapping.load(page * PAGE, &mut [0]);
    }
    let (mapped, grown) = (free()?, memory("Cached")? - cached);
    let slack = (BIG_LEN / 8) as i64;
    let len = BIG_LEN as i64;
    ensure!(
        before - read > len - slack && before - mapped < len + 2 * slack,
        "reading took {} bytes, and mapping, too, {}",
        before - read,
        before - mapped
    );
    ensure!((grown - len).abs() < slack, "{grown} bytes more are cached");
    println!("read and mapped: once");
    Ok(())
}

/// Reads in small pieces, one after the other, become large requests.
fn ahead(disk: &str) -> Result<()> {
    drop_caches()?;
    let before = requests(disk, 0)?;
    let mut file = File::open(BIG)?;
    let mut page = [0; PAGE];
    let pages = BIG_LEN / PAGE / 4;
    for _ in 0..pages {
        file.read_exact(&mut page)?;
    }
    let made = requests(disk, 0)? - before;
    ensure!(
        made <= pages as u64 / 8,
        "{made} requests for {pages} pages"
    );
    println!("read ahead: fewer requests");
    Ok(())
}

/// Dirty pages are written when they are old enough, though nobody syncs them.
fn with_age(disk: &str) -> Result<()> {
    const SETTINGS: [&str; 2] = ["dirty_expire_centisecs", "dirty_writeback_centisecs"];
    const LEN: usize = 1 << 20;
    let paths = SETTINGS.map(|name| format!("/proc/sys/vm/{name}"));
    let mut kept = Vec::new();
    for path in &paths {
        kept.push(fs::read_to_string(path)?);
        fs::write(path, "50")?;
    }
    rustix::fs::sync();
    let before = requests(disk, 6)?;
    let bytes = filled(2, 0, LEN as u64);
    fs::write("/mnt/old", &bytes)?;
    // The machine's time limit ends this.
    while requests(disk, 6)? < before + (LEN / SECTOR) as u64 {
        thread::sleep(Duration::from_millis(20));
    }
    for (path, value) in paths.iter().zip(kept) {
        fs::write(path, value)?;
    }
    drop_caches()?;
    ensure!(fs::read("/mnt/old")? == bytes, "other bytes");
    println!("old and dirty: written");
    Ok(())
}

/// Writes until nothing more goes in, whatever is reserved and not needed afterwards.
fn fill(path: &str) -> Result<()> {
    let mut file = File::create(path)?;
    let page = [7; PAGE];
    loop {
        let mut written = 0;
        let error = loop {
            match file.write_all(&page) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        ensure!(error.kind() == io::ErrorKind::StorageFull, "{error}");
        rustix::fs::sync();
        if written == 0 {
            return Ok(());
        }
    }
}

/// A store in a hole of a shared mapping is a signal while the disk is full.
fn full() -> Result<()> {
    let file = File::create(SPARSE)?;
    file.set_len((SPARSE_PAGES * PAGE) as u64)?;
    file.write_all_at(&[1; PAGE], 0)?;
    file.sync_all()?;
    fill("/mnt/filler")?;
    let stored = |page: usize| -> Result<Option<i32>> {
        let mut store = Command::new("/proc/self/exe");
        let status = store.args(["store", &page.to_string()]).status()?;
        ensure!(status.success() || status.signal().is_some(), "{status}");
        Ok(status.signal())
    };
    println!("full, a page with a block: {:?}", stored(0)?);
    println!("full, a hole: {:?}", stored(9)?);
    fs::remove_file("/mnt/filler")?;
    rustix::fs::sync();
    println!("room, the same hole: {:?}", stored(9)?);
    let mut page = [1; PAGE];
    File::open(SPARSE)?.read_exact_at(&mut page, 9 * PAGE as u64)?;
    ensure!(page[0] == b'x' && page[1..].iter().all(|byte| *byte == 0));
    Ok(())
}
