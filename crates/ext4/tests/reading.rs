//! Trees that `mkfs.ext4 -d` makes of a directory, and what debugfs does to them, are read.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use abi::errno::Errno;
use common::{Disk, Scratch};
use ext4::{Ext4, FileType, ROOT};

/// A tree with all that a program can make without being root.
fn make_tree(root: &Path) {
    let write = |name: &str, bytes: &[u8]| std::fs::write(root.join(name), bytes).expect(name);
    std::fs::create_dir_all(root.join("a/b/c")).expect("directories");
    std::fs::create_dir(root.join("many")).expect("a directory");
    write("empty", b"");
    write("a/small", b"some bytes\n");
    let large: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    write("a/large", &large);
    // Holes make extents.
    let holes = std::fs::File::create(root.join("a/holes")).expect("a file");
    for index in 0..40_u64 {
        use std::os::unix::fs::FileExt;
        holes.write_at(b"island", index * 50_000).expect("a write");
    }
    holes.set_len(3_000_000).expect("a length");
    for index in 0..900 {
        write(
            &format!("many/a name that is not short {index}"),
            format!("{index}").as_bytes(),
        );
    }
    symlink("a/small", root.join("short link")).expect("a link");
    symlink("x/".repeat(200), root.join("long link")).expect("a link");
    std::fs::hard_link(root.join("a/small"), root.join("a/b/second name")).expect("a link");
    let mode = std::fs::Permissions::from_mode(0o4751);
    std::fs::set_permissions(root.join("a/small"), mode).expect("a mode");
}

fn compare(fs: &mut Ext4, ino: u32, path: &Path, seen: &mut BTreeMap<u64, u32>) {
    let stat = fs.stat(ino).expect("stat");
    let host = std::fs::symlink_metadata(path).expect("metadata");
    assert_eq!(
        u32::from(stat.mode),
        host.mode() & 0o7777,
        "{}",
        path.display()
    );
    assert_eq!(
        (stat.uid, stat.gid),
        (host.uid(), host.gid()),
        "{}",
        path.display()
    );
    // The root is made by mkfs, with the time at which that ran.
    if ino != ROOT {
        assert_eq!(stat.modified.seconds, host.mtime(), "{}", path.display());
    }
    let same = *seen.entry(host.ino()).or_insert(ino);
    assert_eq!(same, ino, "two names of a file: {}", path.display());
    if host.is_dir() {
        assert_eq!(stat.kind, FileType::Directory);
        let mut expected: Vec<_> = std::fs::read_dir(path)
            .expect("a listing")
            .map(|entry| entry.expect("an entry").file_name().into_encoded_bytes())
            .collect();
        if ino == ROOT {
            expected.push(b"lost+found".to_vec());
        }
        expected.sort();
        let names = common::names(fs, ino);
        let found: Vec<_> = names.iter().map(|(name, ..)| name.clone()).collect();
        assert_eq!(found, expected, "{}", path.display());
        for (name, child, kind) in names {
            assert_eq!(fs.lookup(ino, &name), Ok(child));
            assert_eq!(Some(fs.stat(child).expect("stat").kind), kind);
            if name != b"lost+found" {
                let text = String::from_utf8(name).expect("a name");
                compare(fs, child, &path.join(text), seen);
            }
        }
        assert_eq!(fs.lookup(ino, b"no such name"), Err(Errno::ENOENT));
    } else if host.is_symlink() {
        let target = std::fs::read_link(path).expect("a target");
        assert_eq!(
            fs.read_link(ino),
            Ok(target.into_os_string().into_encoded_bytes())
        );
    } else {
        assert_eq!(stat.links, host.nlink() as u32);
        let bytes = std::fs::read(path).expect("contents");
        assert!(common::contents(fs, ino) == bytes, "{}", path.display());
        // From the middle, to behind the end.
        let mut part = [0xEE; 5000];
        let from = bytes.len() / 2 + 77;
        let count = fs.read(ino, from as u64, &mut part).expect("a read");
        let rest = bytes.get(from..).unwrap_or_default();
        assert_eq!(&part[..count], &rest[..rest.len().min(part.len())]);
    }
}

fn compare_tree(args: &[&str]) {
    let tree = Scratch(common::scratch("tree"));
    make_tree(&tree.0);
    let name = tree.0.to_str().expect("a name");
    let image = common::mkfs(24 * 1024, &[args, &["-d", name]].concat());
    let mut fs = common::mount_with(&Disk::new(image.clone()), common::read_only());
    compare(&mut fs, ROOT, &tree.0, &mut BTreeMap::new());
    // e2fsck -D makes indexes of large directories.
    let (image, _) = common::on_image(&image, "e2fsck", &["-fyD"]);
    let mut fs = common::mount_with(&Disk::new(image), common::read_only());
    compare(&mut fs, ROOT, &tree.0, &mut BTreeMap::new());
}

#[test]
fn a_tree_of_4_kib_blocks_is_read() {
    compare_tree(&["-b", "4096"]);
}

#[test]
fn a_tree_of_1_kib_blocks_is_read() {
    compare_tree(&["-b", "1024", "-g", "2048"]);
}

#[test]
fn a_tree_of_2_kib_blocks_and_small_inodes_is_read() {
    compare_tree(&["-b", "2048", "-I", "128"]);
}

#[test]
fn a_tree_without_checksums_and_journal_is_read() {
    compare_tree(&["-O", "^metadata_csum,^has_journal,^64bit,uninit_bg"]);
}

#[test]
fn a_tree_of_ext2_is_read() {
    compare_tree(&[
        "-b",
        "1024",
        "-O",
        "^extent,^has_journal,^metadata_csum,^64bit,^flex_bg",
    ]);
}

#[test]
fn hashes_are_those_of_debugfs() {
    for (number, function) in ["legacy", "half_md4", "tea"].iter().enumerate() {
        let image = common::mkfs(8 * 1024, &["-O", "^has_journal"]);
        let command = format!("set_super_value def_hash_version {number}");
        let image = common::debugfs_write(&image, &[&command]);
        let disk = Disk::new(image);
        let mut fs = common::mount(&disk);
        for index in 0..300 {
            let name = format!("{index} \u{e4} {}", "n".repeat(index % 90));
            let kind = ext4::NewKind::Regular;
            fs.create(ROOT, name.as_bytes(), &common::new(kind))
                .expect("a file");
        }
        fs.unmount().expect("unmount");
        // e2fsck computes each name's hash, and finds it in the wrong block if it is another.
        common::assert_clean(&disk.bytes(), function);
        let mut fs = common::mount(&disk);
        assert_eq!(common::names(&mut fs, ROOT).len(), 301);
    }
}
