//! Damaged file systems: who uses them gets errors, whatever is called, and what they have is not
//! damaged further.

use std::sync::OnceLock;

use abi::errno::Errno;
use fs::xattr::{self, SetMode};
use fs::{Cred, FileType, NewInodeKind, OpenFlags, RenameFlags, ops};
use linux_raw_sys::general as sys;
use proptest::prelude::*;

use crate::disk::{World, alone, contents, debugfs, mke2fs};

#[test]
fn a_file_without_links_that_has_a_name_is_not_removed() {
    let _alone = alone();
    let options = ["-b", "1024", "-O", "^metadata_csum"];
    let world = World::mounted(mke2fs(&options, 8 << 20));
    let file = world.create("/mnt/file").unwrap();
    file.write(&[7; 100_000]).unwrap();
    drop(file);
    let image = debugfs(&world.finish(), "set_inode_field file links_count 0");
    let world = World::mounted(image);
    for _ in 0..3 {
        let found = world.open("/mnt/file", OpenFlags::RDONLY);
        assert_eq!(found.err(), Some(Errno::EUCLEAN));
    }
    world.unmount().unwrap();
    let image = debugfs(&world.disk.bytes(), "set_inode_field file links_count 1");
    let world = World::mounted(image);
    let file = world.open("/mnt/file", OpenFlags::RDONLY).unwrap();
    assert!(contents(&file) == vec![7; 100_000]);
    drop(file);
    world.finish();
}

/// Byte of all contents of files.
const CONTENTS: u8 = 7;
/// Most names that are used, and levels of directories: they may be in a circle.
const NAMES: usize = 50;
const DEPTH: usize = 5;

/// File systems; without checksums it is the structures that are looked at.
const KINDS: [&[&str]; 3] = [
    &["-b", "1024", "-O", "^metadata_csum", "-J", "size=1"],
    &["-b", "4096", "-O", "^metadata_csum,^has_journal"],
    &["-b", "1024", "-J", "size=1"],
];

/// An image with the places of its metadata.
struct Sample {
    image: Vec<u8>,
    places: Vec<usize>,
}

/// A file system with something of each kind, which was not unmounted: its journal is replayed.
fn make_sample(options: &[&str]) -> Sample {
    let world = World::mounted(mke2fs(options, 4 << 20));
    let walk = world.walk();
    let make = |name: &str, kind| {
        ops::create_node(&walk, format!("/mnt/{name}").as_bytes(), kind, 0o755).unwrap()
    };
    make("a", NewInodeKind::Directory);
    make("a/b", NewInodeKind::Directory);
    make("many", NewInodeKind::Directory);
    make("short", NewInodeKind::Symlink(b"a/file"));
    make("long", NewInodeKind::Symlink(&[b'x'; 100]));
    make("fifo", NewInodeKind::Fifo);
    for n in 0..60 {
        make(&format!("many/{n:0100}"), NewInodeKind::Regular);
    }
    let file = world.create("/mnt/a/file").unwrap();
    for n in 0..40 {
        file.write_at(n * 8192, &[CONTENTS; 1000]).unwrap();
    }
    let root = Cred::root();
    xattr::set(
        file.path(),
        b"user.large",
        &[CONTENTS; 400],
        SetMode::Any,
        &root,
    )
    .unwrap();
    ops::link(file.path(), &walk, b"/mnt/a/b/linked").unwrap();
    let gone = world.create("/mnt/gone").unwrap();
    gone.write(&[CONTENTS; 9000]).unwrap();
    ops::remove(&walk, b"/mnt/gone", ops::Removal::Unlink).unwrap();
    let fs = world.at("/mnt").unwrap().mount().fs().clone();
    fs.sync().unwrap();
    let image = world.disk.bytes();
    drop((file, gone, fs, walk));
    world.finish();
    let is_metadata = |at: &usize| !matches!(image[*at], 0 | CONTENTS);
    let places = (0..image.len()).filter(is_metadata).collect();
    Sample { image, places }
}

fn sample(kind: usize) -> &'static Sample {
    static SAMPLES: [OnceLock<Sample>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
    SAMPLES[kind].get_or_init(|| make_sample(KINDS[kind]))
}

/// Collects the names in a directory and below it.
fn collect(world: &World, dir: &str, depth: usize, found: &mut Vec<String>) {
    let Ok(path) = world.at(dir) else { return };
    let mut names = Vec::new();
    let _ = path.inode().readdir(0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        names.len() < 2 * NAMES
    });
    for name in names {
        let name = format!("{dir}/{name}");
        if name.ends_with("/.") || name.ends_with("/..") {
            continue;
        }
        let is_directory = world
            .at(&name)
            .is_ok_and(|path| path.inode().kind() == FileType::Directory);
        if found.len() < NAMES {
            found.push(name.clone());
        }
        if is_directory && depth < DEPTH && found.len() < NAMES {
            collect(world, &name, depth + 1, found);
        }
    }
}

/// Calls whatever may be called of a file.
fn use_file(world: &World, name: &str) {
    let root = Cred::root();
    if let Ok(path) = world.at(name) {
        let _ = path.inode().get_link();
        let _ = xattr::list(&path, &root);
        let _ = xattr::get(&path, b"user.large", &root);
        let _ = xattr::set(&path, b"user.large", &[9; 300], SetMode::Any, &root);
        let _ = xattr::set(&path, b"user.new", &[9; 50], SetMode::Any, &root);
    }
    let flags = OpenFlags::RDWR | OpenFlags::NONBLOCK;
    let Ok(file) = world.open(name, flags) else {
        return;
    };
    let inode = file.inode();
    if inode.kind() != FileType::Regular {
        return;
    }
    let size = file.metadata().size;
    let mut bytes = vec![0; 20_000];
    for at in [0, size / 2, size.saturating_sub(5000)] {
        let _ = file.read_at(at, &mut bytes);
    }
    let _ = file.write_at(3000, &[CONTENTS; 5000]);
    if let Ok(backing) = file.backing() {
        let _ = backing.page(1);
        let _ = backing.page_for_write(0);
    }
    let _ = inode.fallocate(0, 20_000, 9000);
    let punch = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;
    let _ = inode.fallocate(punch, 8000, 20_000);
    let _ = file.ops().sync();
    let _ = inode.truncate(700);
    let _ = file.append(&[CONTENTS; 2000], false);
}

fn change_names(world: &World, name: &str, n: usize) {
    let walk = world.walk();
    let other = format!("/mnt/other-{n}");
    if let Ok(path) = world.at(name) {
        let _ = ops::link(&path, &walk, other.as_bytes());
    }
    let parent = |name: &str| walk.lookup_parent(name.as_bytes());
    if let (Ok(from), Ok(to)) = (parent(name), parent(&format!("{other}-moved"))) {
        let _ = ops::rename(&walk, from, to, RenameFlags::empty());
    }
    let below = format!("{name}/new");
    let _ = ops::create_node(&walk, below.as_bytes(), NewInodeKind::Directory, 0o755);
    for how in [ops::Removal::Unlink, ops::Removal::Rmdir] {
        let _ = ops::remove(&walk, name.as_bytes(), how);
    }
    if n.is_multiple_of(2) {
        let moved = format!("{other}-moved");
        let _ = ops::remove(&walk, moved.as_bytes(), ops::Removal::Unlink);
    }
}

fn try_image(image: Vec<u8>) {
    let world = World::new(image);
    if world.mount(0).is_ok() {
        let mut names = Vec::new();
        collect(&world, "/mnt", 0, &mut names);
        names.iter().for_each(|name| use_file(&world, name));
        for (n, name) in names.iter().enumerate() {
            change_names(&world, name, n);
        }
        let _ = world.at("/mnt").map(|path| path.mount().fs().sync());
        assert_eq!(world.unmount(), Ok(()), "nothing is in use any more");
    }
    world.disk.forget();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("EXT4_FILE_IMAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
    ))]

    #[test]
    fn damaged_file_systems_are_only_errors(
        kind in 0..KINDS.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let _alone = alone();
        let sample = sample(kind);
        let mut image = sample.image.clone();
        for (place, value) in flips {
            image[*place.get(&sample.places)] = value;
        }
        try_image(image);
    }
}
