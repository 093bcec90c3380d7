//! The initramfs: real archives, and hostile ones.

use std::sync::Arc;

use fs::cpio::{self, ErrorKind};
use fs::mount::FileSystem as _;
use fs::ramfs::RamFs;
use fs::{FileType, Inode, LinkTarget};
use proptest::prelude::*;

struct Entry<'a> {
    name: &'a str,
    mode: u32,
    ino: u32,
    nlink: u32,
    data: &'a [u8],
}

fn entry<'a>(name: &'a str, mode: u32, data: &'static [u8]) -> Entry<'a> {
    Entry {
        name,
        mode,
        ino: 0,
        nlink: 1,
        data,
    }
}

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    aligned_archive(entries, 1)
}

/// An archive in which contents begin at multiples of `alignment`.
fn aligned_archive(entries: &[Entry<'_>], alignment: usize) -> Vec<u8> {
    let trailer = entry("TRAILER!!!", 0, b"");
    let mut out = Vec::new();
    for e in entries.iter().chain([&trailer]) {
        let name_end = out.len() + 110 + e.name.len() + 1;
        let name_size = e.name.len() + 1 + name_end.next_multiple_of(alignment) - name_end;
        let fields = [
            e.ino,
            e.mode,
            1,
            2,
            e.nlink,
            1000,
            e.data.len() as u32,
            8,
            1,
            5,
            1,
            name_size as u32,
            0,
        ];
        out.extend_from_slice(b"070701");
        fields
            .iter()
            .for_each(|f| out.extend_from_slice(format!("{f:08x}").as_bytes()));
        out.extend_from_slice(e.name.as_bytes());
        out.resize(out.len() - e.name.len() + name_size, 0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend_from_slice(e.data);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

fn find(root: &Arc<dyn Inode>, path: &str) -> Option<Arc<dyn Inode>> {
    path.split('/')
        .try_fold(root.clone(), |dir, name| dir.lookup(name.as_bytes()).ok())
}

fn unpack(bytes: &[u8]) -> (Arc<dyn Inode>, Result<cpio::Summary, cpio::Error>) {
    let root = RamFs::new("rootfs", Some(4096), 0o755).root();
    let result = cpio::unpack(&mut &*bytes, &root);
    (root, result)
}

#[test]
fn everything_arrives() {
    let bytes = archive(&[
        entry(".", 0o40700, b""),
        entry("bin", 0o40755, b""),
        entry("./bin/sh", 0o100_755, b"#!ELF"),
        entry("bin/bash", 0o120_777, b"sh"),
        entry("deep/er/file", 0o100_644, b"x"),
        entry("dev/console", 0o20600, b""),
        entry("pipe", 0o10600, b""),
    ]);
    let (root, result) = unpack(&bytes);
    assert_eq!(
        result.unwrap(),
        cpio::Summary {
            entries: 7,
            bytes: 8
        }
    );
    assert_eq!(root.metadata().mode, 0o700);
    let sh = find(&root, "bin/sh").unwrap();
    let meta = sh.metadata();
    assert_eq!(
        (meta.mode, meta.uid, meta.gid, meta.mtime.sec, meta.size),
        (0o755, 1, 2, 1000, 5)
    );
    assert!(
        matches!(find(&root, "bin/bash").unwrap().get_link(), Ok(LinkTarget::Text(t)) if t == b"sh")
    );
    let mut contents = [0; 4];
    assert_eq!(
        (
            find(&root, "deep/er/file")
                .unwrap()
                .read_at(0, &mut contents),
            contents[0]
        ),
        (Ok(1), b'x')
    );
    assert_eq!(
        find(&root, "dev/console").unwrap().device(),
        Some(fs::DeviceId::new(5, 1))
    );
    assert_eq!(find(&root, "pipe").unwrap().kind(), FileType::Fifo);
}

#[test]
fn hard_links_share_contents_whichever_entry_has_them() {
    let link = |name, data| Entry {
        name,
        mode: 0o100_644,
        ino: 7,
        nlink: 2,
        data,
    };
    for (first, second) in [(&b""[..], &b"data"[..]), (b"data", b"")] {
        let (root, result) = unpack(&archive(&[link("a", first), link("b", second)]));
        result.unwrap();
        let (a, b) = (find(&root, "a").unwrap(), find(&root, "b").unwrap());
        assert_eq!(a.metadata().ino, b.metadata().ino);
        assert_eq!((a.metadata().nlink, a.metadata().size), (2, 4));
    }
}

#[test]
fn later_archives_add_and_replace() {
    let mut bytes = archive(&[entry("f", 0o100_644, b"old"), entry("g", 0o100_644, b"g")]);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(archive(&[entry("f", 0o100_600, b"newer")]));
    let (root, result) = unpack(&bytes);
    assert_eq!(result.unwrap().entries, 3);
    assert_eq!(find(&root, "f").unwrap().metadata().size, 5);
    assert!(find(&root, "g").is_some());
}

#[test]
fn bad_archives_are_refused_by_name() {
    let what = |entries: &[Entry<'_>]| unpack(&archive(entries)).1.unwrap_err().kind;
    assert_eq!(what(&[entry("../x", 0o100_644, b"")]), ErrorKind::BadName);
    assert_eq!(
        what(&[entry("a/../../x", 0o100_644, b"")]),
        ErrorKind::BadName
    );
    assert_eq!(
        what(&[entry("a", 0o100_644, b""), entry("a/b", 0o100_644, b"")]),
        ErrorKind::Refused(abi::errno::Errno::ENOTDIR)
    );
    // A link is not a way out: directories are never looked for through one.
    assert_eq!(
        what(&[entry("l", 0o120_777, b"/etc"), entry("l/x", 0o100_644, b"")]),
        ErrorKind::Refused(abi::errno::Errno::ENOTDIR)
    );
    assert_eq!(what(&[entry("x", 0o170_000, b"")]), ErrorKind::BadKind);
    assert_eq!(
        unpack(b"\x1f\x8b\x08gzip").1.unwrap_err().kind,
        ErrorKind::BadMagic
    );
    let good = archive(&[entry("f", 0o100_644, b"some data")]);
    let cut = unpack(&good[..120]).1.unwrap_err();
    assert_eq!(cut.kind, ErrorKind::Truncated);
    let message = unpack(&archive(&[
        entry("ok", 0o100_644, b""),
        entry("../x", 0o100_644, b""),
    ]))
    .1
    .unwrap_err()
    .to_string();
    assert!(message.contains("'../x'"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_damage_makes_it_panic(
        at in 0usize..700, value in any::<u8>(), more in proptest::collection::vec((0usize..700, any::<u8>()), 0..20), cut in 0usize..700
    ) {
        let mut bytes = archive(&[
            entry("dir", 0o40755, b""),
            entry("dir/file", 0o100_644, b"contents of a file"),
            Entry { name: "l1", mode: 0o100_644, ino: 9, nlink: 2, data: b"linked" },
            Entry { name: "l2", mode: 0o100_644, ino: 9, nlink: 2, data: b"" },
        ]);
        for (at, value) in more.into_iter().chain([(at, value)]) {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        bytes.truncate(bytes.len() - cut % bytes.len());
        let _ = unpack(&bytes);
    }

    #[test]
    fn noise_does_not_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = unpack(&bytes);
        let mut tail = b"070701".to_vec();
        tail.extend(&bytes);
        let _ = unpack(&tail);
    }
}

/// An archive whose pages can be taken, as the kernel's.
struct Paged<'a> {
    bytes: &'a [u8],
    at: usize,
    taken: usize,
}

impl cpio::ArchiveReader for Paged<'_> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn consume(&mut self, count: usize) {
        self.at = self.bytes.len().min(self.at + count);
    }

    fn take_page(&mut self) -> Option<vm::Page> {
        let whole = self.at.is_multiple_of(vm::PAGE_SIZE) && self.rest().len() >= vm::PAGE_SIZE;
        let page = whole.then(vm::Page::zeroed)??;
        page.write(0, &self.rest()[..vm::PAGE_SIZE]);
        self.consume(vm::PAGE_SIZE);
        self.taken += 1;
        Some(page)
    }
}

#[test]
fn pages_on_page_boundaries_are_taken_as_they_are() {
    let data: Vec<u8> = (0..3 * 4096 + 100).map(|n| (n % 251) as u8).collect();
    let data: &'static [u8] = data.leak();
    let entries = [
        entry("small", 0o100_644, b"x"),
        entry("large", 0o100_755, data),
        entry("exact", 0o100_644, &data[..8192]),
        entry("dir", 0o40755, b""),
        entry("last", 0o100_644, &data[..4097]),
    ];
    for (alignment, taken) in [(1, 0), (4096, 6)] {
        let bytes = aligned_archive(&entries, alignment);
        let root = RamFs::new("rootfs", Some(4096), 0o755).root();
        let mut source = Paged {
            bytes: &bytes,
            at: 0,
            taken: 0,
        };
        let summary = cpio::unpack(&mut source, &root).unwrap();
        assert_eq!((summary.entries, source.taken), (5, taken));
        for e in entries.iter().filter(|e| e.mode & 0o170_000 == 0o100_000) {
            let inode = find(&root, e.name).unwrap();
            assert_eq!(
                (inode.metadata().size, inode.metadata().mtime.sec),
                (e.data.len() as u64, 1000)
            );
            let mut contents = vec![0; e.data.len() + 1];
            assert_eq!(inode.read_at(0, &mut contents).unwrap(), e.data.len());
            assert_eq!(&contents[..e.data.len()], e.data, "{}", e.name);
        }
    }
}

#[test]
fn a_name_may_have_zeros_behind_it_and_nowhere_else() {
    let bytes = aligned_archive(&[entry("file", 0o100_644, b"x")], 64);
    assert!(find(&unpack(&bytes).0, "file").is_some());
    let mut bad = bytes.clone();
    bad[110 + 6] = b'x';
    assert_eq!(unpack(&bad).1.unwrap_err().kind, ErrorKind::BadName);
}
