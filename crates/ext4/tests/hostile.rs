//! Images with random bytes changed: nothing panics, loops or asks for memory without bound.

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use abi::errno::Errno;
use common::{Disk, new};
use ext4::{Ext4, FileType, MountError, NewKind, ROOT, RenameMode, SetMode, Unlinked};
use proptest::prelude::*;

/// Kinds of file systems; without checksums it is the structures that are checked.
const KINDS: [&[&str]; 4] = [
    &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum"],
    &[
        "-b",
        "1024",
        "-O",
        "^has_journal,^metadata_csum,^64bit,uninit_bg",
    ],
    &["-b", "4096"],
    &[
        "-b",
        "1024",
        "-O",
        "^extent,^has_journal,^metadata_csum,^64bit,^flex_bg",
    ],
];

/// An image with the offsets of bytes that are not zero: most of them are metadata.
struct Sample {
    image: Vec<u8>,
    places: Vec<usize>,
}

/// A file system with something of each kind in it. It was not unmounted if it has a journal.
fn make_sample(args: &[&str]) -> Sample {
    let tree = common::Scratch(common::scratch("tree"));
    std::fs::create_dir_all(tree.0.join("a/b")).expect("directories");
    std::fs::write(tree.0.join("a/file"), vec![7; 20_000]).expect("a file");
    let name = tree.0.to_str().expect("a name");
    let disk = Disk::new(common::mkfs(4 * 1024, &[args, &["-d", name]].concat()));
    let mut fs = common::mount(&disk);
    // What is impossible on a file system without extents is left out.
    if let Ok(ino) = fs.create(ROOT, b"extents", &new(NewKind::Regular)) {
        for index in 0..200 {
            fs.write(ino, index * 8192, b"x").expect("a write");
        }
        fs.set_xattr(ino, b"user.large", &[b'v'; 400], SetMode::Any)
            .expect("xattr");
        let dir = fs
            .create(ROOT, b"indexed", &new(NewKind::Directory))
            .expect("mkdir");
        for index in 0..150 {
            fs.link(dir, format!("{index:0100}").as_bytes(), ino)
                .expect("link");
        }
        fs.create(ROOT, b"link", &new(NewKind::Symlink(&[b't'; 300])))
            .expect("symlink");
        fs.commit().expect("commit");
        let gone = fs
            .create(ROOT, b"gone", &new(NewKind::Regular))
            .expect("a file");
        fs.write(gone, 0, &[1; 5000]).expect("a write");
        fs.unlink(ROOT, b"gone").expect("unlink");
        fs.commit().expect("commit");
    }
    if args.iter().any(|arg| arg.contains("^has_journal")) {
        fs.unmount().expect("unmount");
    }
    let image = disk.bytes();
    let is_data = |byte: u8| byte == 0 || byte == 7;
    let places = (0..image.len()).filter(|at| !is_data(image[*at])).collect();
    Sample { image, places }
}

fn sample(kind: usize) -> &'static Sample {
    static SAMPLES: [OnceLock<Sample>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
    SAMPLES[kind].get_or_init(|| make_sample(KINDS[kind]))
}

/// Looks at everything that can be reached.
fn walk(fs: &mut Ext4) -> Vec<(u32, Vec<u8>, u32)> {
    let mut all = Vec::new();
    let mut seen = BTreeSet::from([ROOT]);
    let mut dirs = vec![ROOT];
    while let Some(dir) = dirs.pop() {
        let mut names = Vec::new();
        let _ = fs.read_dir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 2000
        });
        for name in names {
            let Ok(ino) = fs.lookup(dir, &name) else {
                continue;
            };
            all.push((dir, name, ino));
            if !seen.insert(ino) {
                continue;
            }
            let Ok(stat) = fs.stat(ino) else {
                continue;
            };
            match stat.kind {
                FileType::Directory => dirs.push(ino),
                FileType::Symlink => drop(fs.read_link(ino)),
                FileType::Regular => {
                    let mut bytes = vec![0; 100_000];
                    let _ = fs.read(ino, 0, &mut bytes);
                    let _ = fs.read(ino, stat.size.saturating_sub(5000), &mut bytes);
                    let _ = fs.mapping(ino, 1 << 30);
                }
                _ => {}
            }
            for name in fs.xattr_names(ino).unwrap_or_default() {
                let _ = fs.xattr(ino, &name);
            }
        }
    }
    all
}

/// Changes everything that can be reached.
fn change(fs: &mut Ext4, all: &[(u32, Vec<u8>, u32)]) {
    for (index, (dir, name, ino)) in all.iter().enumerate().take(40) {
        let _ = fs.write(*ino, 3000, &[9; 3000]);
        let _ = fs.allocate_range(*ino, 1 << 20, 9000, false);
        let _ = fs.punch(*ino, 8000, 20_000);
        let _ = fs.truncate(*ino, 700);
        let _ = fs.set_xattr(*ino, b"user.new", &[1; 90], SetMode::Any);
        let _ = fs.remove_xattr(*ino, b"user.large");
        let other = format!("{index:0150}");
        let _ = fs.create(*ino, other.as_bytes(), &new(NewKind::Directory));
        let _ = fs.create(*dir, other.as_bytes(), &new(NewKind::Symlink(&[b'z'; 99])));
        let to = (ROOT, &b"renamed"[..]);
        let renamed = fs.rename((*dir, name), to, RenameMode::Replace, None);
        if let Some(gone) = renamed.ok().and_then(|renamed| renamed.gone()) {
            let _ = fs.release(gone);
        }
        if let Ok(Unlinked {
            ino: gone,
            is_gone: true,
        }) = fs.unlink(ROOT, b"renamed")
        {
            let _ = fs.release(gone);
        }
        if let Ok(gone) = fs.rmdir(ROOT, b"renamed") {
            let _ = fs.release(gone);
        }
    }
}

fn try_image(image: Vec<u8>) {
    let disk = Disk::new(image);
    if let Ok(mut fs) = Ext4::mount(disk.clone(), common::read_only()) {
        walk(&mut fs);
    }
    if let Ok(mut fs) = Ext4::mount(disk, common::options()) {
        let all = walk(&mut fs);
        change(&mut fs, &all);
        let _ = fs.unmount();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("EXT4_IMAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
    ))]

    #[test]
    fn damaged_images_are_only_errors(
        kind in 0..KINDS.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let sample = sample(kind);
        let mut image = sample.image.clone();
        for (place, value) in flips {
            image[*place.get(&sample.places)] = value;
        }
        try_image(image);
    }
}

/// Byte of the image with a field of the superblock.
const fn super_field(at: usize) -> usize {
    1024 + at
}

fn mount_error(image: Vec<u8>) -> MountError {
    let disk: Arc<Disk> = Disk::new(image);
    Ext4::mount(disk, common::options())
        .err()
        .expect("an error")
}

#[test]
fn what_is_not_supported_is_named() {
    for (features, named) in [
        ("inline_data", "inline_data"),
        ("encrypt", "encrypt"),
        ("casefold", "casefold"),
        ("meta_bg,^resize_inode", "meta_bg"),
        ("mmp", "mmp"),
        ("bigalloc", "bigalloc"),
        ("ea_inode", "ea_inode"),
    ] {
        let error = mount_error(common::mkfs(8 * 1024, &["-O", features]));
        assert_eq!(error, MountError::Unsupported(named.into()));
        assert_eq!(error.errno(), Errno::EINVAL);
    }
    for named in ["quota", "verity"] {
        let image = common::mkfs(8 * 1024, &["-O", named]);
        let error = mount_error(image.clone());
        assert_eq!(error, MountError::ReadOnlyFeature(named.into()));
        let disk = Disk::new(image);
        assert!(Ext4::mount(disk, common::read_only()).is_ok(), "{named}");
    }
    assert_eq!(mount_error(vec![0; 1 << 20]), MountError::NotExt4);
    assert_eq!(mount_error(vec![0; 1024]), MountError::NotExt4);
}

#[test]
fn checksums_that_are_wrong_are_noticed() {
    let image = common::mkfs(8 * 1024, &["-b", "1024"]);
    let mut damaged = image.clone();
    damaged[super_field(0x78)] ^= 1;
    assert_eq!(
        mount_error(damaged),
        MountError::Damaged("superblock checksum")
    );
    let mut damaged = image.clone();
    damaged[2 * 1024] ^= 1;
    assert_eq!(
        mount_error(damaged),
        MountError::Damaged("checksum of a group descriptor")
    );
    // The inode of the top directory: its owner.
    let told = common::debugfs(&image, "imap <2>");
    let after = |word: &str| {
        let rest = told.split(word).nth(1).expect("a place").trim_start();
        let digits = rest.chars().take_while(char::is_ascii_hexdigit);
        digits.collect::<String>()
    };
    let block: usize = after("located at block").parse().expect("a block");
    let offset = usize::from_str_radix(&after("0x"), 16).expect("an offset");
    let mut damaged = image;
    damaged[block * 1024 + offset + 2] ^= 1;
    let mut fs = common::mount(&Disk::new(damaged));
    assert_eq!(fs.stat(ROOT).err(), Some(Errno::EUCLEAN));
}
