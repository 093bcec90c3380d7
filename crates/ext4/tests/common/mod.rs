//! Disks in memory, and the real e2fsprogs to make and to check what is on them.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use abi::errno::Errno;
use ext4::{Device, Ext4, FileType, NewFile, NewKind, Options, Result, Timestamp};

/// An operation that was done to a disk.
#[derive(Clone, Debug)]
pub enum Op {
    Write(u64, Vec<u8>),
    /// The write before is on the medium.
    Through,
    Flush,
}

/// A disk in memory, which can keep a record of its writes, and fail.
pub struct Disk {
    bytes: Mutex<Vec<u8>>,
    log: Mutex<Option<Vec<Op>>>,
    /// Writes and flushes until all fail; from `u64::MAX` none does.
    fuse: AtomicU64,
    pub is_read_only: bool,
}

impl Disk {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes),
            log: Mutex::new(None),
            fuse: AtomicU64::new(u64::MAX),
            is_read_only: false,
        })
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("bytes").clone()
    }

    /// Begins a record.
    pub fn record(&self) {
        *self.log.lock().expect("log") = Some(Vec::new());
    }

    /// The record so far.
    pub fn recorded(&self) -> Vec<Op> {
        self.log.lock().expect("log").clone().unwrap_or_default()
    }

    /// Number of operations in the record.
    pub fn position(&self) -> usize {
        self.log.lock().expect("log").as_ref().map_or(0, Vec::len)
    }

    /// Lets all writes and flushes fail after so many.
    pub fn fail_after(&self, count: u64) {
        self.fuse.store(count, Ordering::Relaxed);
    }

    fn burn(&self) -> Result<()> {
        let fuse = self.fuse.load(Ordering::Relaxed);
        match fuse {
            u64::MAX => Ok(()),
            0 => Err(Errno::EIO),
            _ => {
                self.fuse.store(fuse - 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.bytes.lock().expect("bytes").len() as u64
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        assert!(offset.is_multiple_of(1024) && buf.len().is_multiple_of(1024));
        let bytes = self.bytes.lock().expect("bytes");
        let from = bytes.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(from.ok_or(Errno::EIO)?);
        Ok(())
    }

    fn write(&self, offset: u64, new: &[u8]) -> Result<()> {
        assert!(!self.is_read_only, "a write to a read-only disk");
        assert!(offset.is_multiple_of(1024) && new.len().is_multiple_of(1024));
        self.burn()?;
        let mut bytes = self.bytes.lock().expect("bytes");
        let to = bytes.get_mut(offset as usize..offset as usize + new.len());
        to.ok_or(Errno::EIO)?.copy_from_slice(new);
        if let Some(log) = &mut *self.log.lock().expect("log") {
            log.push(Op::Write(offset, new.to_vec()));
        }
        Ok(())
    }

    fn write_through(&self, offset: u64, new: &[u8]) -> Result<()> {
        self.write(offset, new)?;
        self.burn()?;
        if let Some(log) = &mut *self.log.lock().expect("log") {
            log.push(Op::Through);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.burn()?;
        if let Some(log) = &mut *self.log.lock().expect("log") {
            log.push(Op::Flush);
        }
        Ok(())
    }
}

/// A path for a file of a test, which no other has.
pub fn scratch(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = format!("{}-{number}-{name}", std::process::id());
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(file)
}

/// A file or directory that goes with the value.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program of e2fsprogs.
pub fn run(program: &str, args: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new(program)
        .args(args)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("MKE2FS_DEVICE_SECTSIZE", "512")
        .output()
        .unwrap_or_else(|error| {
            panic!("{program} of Debian's e2fsprogs cannot be run ({error}): run `make setup`")
        })
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// An image that `mkfs.ext4` makes, with so many KiB.
pub fn mkfs(kib: u64, args: &[&str]) -> Vec<u8> {
    let file = Scratch(scratch("image"));
    let image = std::fs::File::create(&file.0).expect("an image");
    image.set_len(kib * 1024).expect("the image's length");
    let name = file.0.to_str().expect("a name");
    let output = run("mkfs.ext4", &[&["-q", "-F"], args, &[name]].concat());
    assert!(output.status.success(), "mkfs.ext4: {}", text(&output));
    std::fs::read(&file.0).expect("the image")
}

/// Runs a program on an image; what the image is then, and what was said.
pub fn on_image(image: &[u8], program: &str, args: &[&str]) -> (Vec<u8>, Output) {
    let file = Scratch(scratch("image"));
    std::fs::write(&file.0, image).expect("an image");
    let name = file.0.to_str().expect("a name");
    let output = run(program, &[args, &[name]].concat());
    (std::fs::read(&file.0).expect("the image"), output)
}

/// Asks debugfs.
pub fn debugfs(image: &[u8], command: &str) -> String {
    let (_, output) = on_image(image, "debugfs", &["-R", command]);
    text(&output)
}

/// Lets debugfs change an image.
pub fn debugfs_write(image: &[u8], commands: &[&str]) -> Vec<u8> {
    let script = Scratch(scratch("commands"));
    std::fs::write(&script.0, commands.join("\n")).expect("commands");
    let script = script.0.to_str().expect("a name");
    let (image, output) = on_image(image, "debugfs", &["-w", "-f", script]);
    assert!(output.status.success(), "debugfs: {}", text(&output));
    image
}

/// Asserts that `e2fsck -fn` finds nothing.
pub fn assert_clean(image: &[u8], when: &str) {
    let (_, output) = on_image(image, "e2fsck", &["-fn"]);
    if output.status.code() != Some(0) {
        let kept = scratch("failed.img");
        std::fs::write(&kept, image).expect("the failed image");
        panic!("e2fsck -fn {when}: {}\n{}", text(&output), kept.display());
    }
}

/// Replays the journal as e2fsck does, which is not to find that somebody has to decide.
pub fn replay_by_e2fsck(image: &[u8]) -> Vec<u8> {
    let (image, output) = on_image(image, "e2fsck", &["-p", "-E", "journal_only"]);
    let replayed = output.status.code().is_some_and(|code| code < 4);
    assert!(replayed, "e2fsck: {}", text(&output));
    image
}

/// A clock that goes on by a second each time.
pub fn clock() -> Timestamp {
    static NOW: AtomicU64 = AtomicU64::new(1_800_000_000);
    Timestamp {
        seconds: NOW.fetch_add(1, Ordering::Relaxed) as i64,
        nanoseconds: 123_456_789,
    }
}

/// Numbers that differ.
pub fn generation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(7);
    NEXT.fetch_add(0x9E37_79B9, Ordering::Relaxed)
}

pub fn options() -> Options {
    Options {
        clock,
        generation,
        ..Options::default()
    }
}

pub fn read_only() -> Options {
    Options {
        read_only: true,
        ..options()
    }
}

/// Mounts what has to be right.
pub fn mount(disk: &Arc<Disk>) -> Ext4 {
    mount_with(disk, options())
}

pub fn mount_with(disk: &Arc<Disk>, options: Options) -> Ext4 {
    Ext4::mount(disk.clone(), options).unwrap_or_else(|error| panic!("mount: {error}"))
}

/// A file that is to be made, with rights for everybody.
pub const fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile {
        kind,
        mode: 0o644,
        uid: 1000,
        gid: 100,
    }
}

/// Names of a directory with the files' numbers, sorted.
pub fn names(fs: &mut Ext4, dir: u32) -> Vec<(Vec<u8>, u32, Option<FileType>)> {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino, entry.kind));
        true
    })
    .expect("a listing");
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names
}

/// All contents of a file.
pub fn contents(fs: &mut Ext4, ino: u32) -> Vec<u8> {
    let size = fs.stat(ino).expect("stat").size;
    let mut bytes = vec![0xEE; size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    bytes
}
