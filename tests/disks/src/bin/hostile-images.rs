//! Damaged file systems in a machine: mounted, walked, written to and unmounted.
//!
//! `hostile-images SEED FROM TO DISK IMAGE…` writes each image in turn, damaged, to the disk. It
//! prints the number of each, so that the last one is known when the machine dies, and at the end
//! how often each error was seen. Whatever is wrong with an image, a call ends, and with an error
//! that says so.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use disk_tests::calls::{Mapping, mount_ext4, umount};
use disk_tests::contents::Random;
use disk_tests::hostile::{CONTENTS, damage, metadata};
use rustix::fs::{FallocateFlags, fallocate, getxattr, listxattr, setxattr, statfs, syncfs};

const PLACE: &str = "/mnt";
/// Most files of an image that are looked at, and levels of directories: they may be in a circle.
const FILES: usize = 200;
const DEPTH: usize = 8;

/// Errors that calls may have: of damage, and of what the names and sizes happen to be.
const EXPECTED: [i32; 22] = [
    libc::EUCLEAN,
    libc::EIO,
    libc::EROFS,
    libc::ENOSPC,
    libc::EFBIG,
    libc::EINVAL,
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::ENOTEMPTY,
    libc::EMLINK,
    libc::ELOOP,
    libc::ENXIO,
    libc::ENODEV,
    libc::EPERM,
    libc::EACCES,
    libc::EOPNOTSUPP,
    libc::ENODATA,
    libc::ERANGE,
    libc::EFAULT,
    libc::EBUSY,
];

/// Errors by the call and their number, with how often each was seen.
#[derive(Default)]
struct Seen(BTreeMap<(&'static str, i32), u64>);

impl Seen {
    /// Counts the error of a call.
    fn note<T>(&mut self, call: &'static str, outcome: io::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(0);
                *self.0.entry((call, number)).or_default() += 1;
                None
            }
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seed, from, to, disk, images @ ..] = &arguments[..] else {
        anyhow::bail!("usage: hostile-images SEED FROM TO DISK IMAGE…");
    };
    let seed = seed.parse()?;
    let mut originals = Vec::new();
    for path in images {
        let image = fs::read(path).with_context(|| path.clone())?;
        originals.push((metadata(&image), image));
    }
    ensure!(!originals.is_empty(), "no images");
    fs::create_dir_all(PLACE)?;
    let mut seen = Seen::default();
    let mut mounted = 0;
    for number in from.parse()?..to.parse::<u64>()? {
        println!("{number}");
        io::stdout().flush()?;
        let mut random = Random::new(&[seed, number]);
        let (places, image) = &originals[number as usize % originals.len()];
        let mut image = image.clone();
        damage(&mut image, places, &mut random);
        let device = OpenOptions::new().write(true).open(disk)?;
        device.write_all_at(&image, 0)?;
        drop(device);
        if seen
            .note("mount", mount_ext4(disk, Path::new(PLACE)))
            .is_some()
        {
            mounted += 1;
            use_it(&mut seen, &mut random);
            umount(Path::new(PLACE)).context("umount")?;
        }
    }
    for ((call, number), count) in &seen.0 {
        println!("{call}: {} {count}", io::Error::from_raw_os_error(*number));
    }
    println!("mounted {mounted}");
    let unexpected = seen.0.keys().find(|(_, number)| !EXPECTED.contains(number));
    ensure!(unexpected.is_none(), "{unexpected:?} is no error of damage");
    Ok(())
}

/// Does with a file system whatever programs do.
fn use_it(seen: &mut Seen, random: &mut Random) {
    let mut found = Vec::new();
    walk(seen, Path::new(PLACE), 0, &mut found);
    seen.note("statfs", statfs(PLACE).map_err(Into::into));
    for (number, path) in found.iter().enumerate() {
        look(seen, path);
        if number < 40 {
            change(seen, path, random);
        }
    }
    for n in 0..20 {
        let path = Path::new(PLACE).join(format!("new-{n}"));
        if seen
            .note("write", fs::write(&path, [CONTENTS; 5000]))
            .is_some()
            && n % 3 == 0
        {
            seen.note("remove", fs::remove_file(&path));
        }
    }
    seen.note("mkdir", fs::create_dir_all(format!("{PLACE}/x/y/z")));
    if let Some(root) = seen.note("open", File::open(PLACE)) {
        seen.note("syncfs", syncfs(&root).map_err(Into::into));
    }
}

/// Collects what is in a directory and below it.
fn walk(seen: &mut Seen, dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Some(entries) = seen.note("readdir", fs::read_dir(dir)) else {
        return;
    };
    for entry in entries {
        let Some(entry) = seen.note("readdir", entry) else {
            return;
        };
        if found.len() >= FILES {
            return;
        }
        let path = entry.path();
        found.push(path.clone());
        let metadata = seen.note("stat", fs::symlink_metadata(&path));
        if depth < DEPTH && metadata.is_some_and(|metadata| metadata.is_dir()) {
            walk(seen, &path, depth + 1, found);
        }
    }
}

/// Reads a file in every way.
fn look(seen: &mut Seen, path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        seen.note("readlink", fs::read_link(path));
    }
    let mut names = vec![0; 4096];
    let names_len = listxattr(path, &mut names).map_err(Into::into);
    if let Some(len) = seen.note("listxattr", names_len) {
        let names = String::from_utf8_lossy(&names[..len]).into_owned();
        for name in names.split_terminator('\0').take(8) {
            let value = getxattr(path, name, &mut vec![0; 4096]);
            seen.note("getxattr", value.map_err(Into::into));
        }
    }
    let options = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let Some(file) = seen.note("open", options) else {
        return;
    };
    let Ok(metadata) = file.metadata() else {
        return;
    };
    if metadata.is_file() {
        let mut buffer = vec![0; 1 << 16];
        for at in [
            0,
            1 << 16,
            metadata.len() / 2,
            metadata.len().saturating_sub(1000),
        ] {
            seen.note("read", file.read_at(&mut buffer, at));
        }
    }
}

/// Changes a file in some way.
fn change(seen: &mut Seen, path: &Path, random: &mut Random) {
    let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
    if is_file
        && let Some(file) = seen.note("open", OpenOptions::new().read(true).write(true).open(path))
    {
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        let at = random.below(size.min(1 << 20) + 5000);
        seen.note("write", file.write_at(&[CONTENTS; 3000], at));
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match random.below(6) {
            0 => drop(seen.note("truncate", file.set_len(at))),
            1 => drop(seen.note("punch", fallocate(&file, how, at, 9000).map_err(Into::into))),
            2 => {
                let done = fallocate(&file, FallocateFlags::empty(), at, 9000);
                seen.note("fallocate", done.map_err(Into::into));
            }
            3 if size > 0 => touch_mapping(seen, &file),
            4 => drop(seen.note("fsync", file.sync_all())),
            _ => {}
        }
    }
    let other = path.with_extension("other");
    match random.below(8) {
        0 => drop(seen.note("rename", fs::rename(path, &other))),
        1 => drop(seen.note("link", fs::hard_link(path, &other))),
        2 if is_file => drop(seen.note("remove", fs::remove_file(path))),
        3 => {
            let set = setxattr(path, "user.new", &[7; 300], rustix::fs::XattrFlags::empty());
            seen.note("setxattr", set.map_err(Into::into));
        }
        4 => drop(seen.note("rmdir", fs::remove_dir(path))),
        _ => {}
    }
}

/// Has the kernel load and store through a mapping: where there is no page, it says so.
fn touch_mapping(seen: &mut Seen, file: &File) {
    let Some(mapping) = seen.note("mmap", Mapping::new(file, 1 << 16)) else {
        return;
    };
    seen.note("mapped read", mapping.write_to(0));
    seen.note("mapped write", mapping.read_from(4096));
    seen.note("msync", mapping.sync());
}
