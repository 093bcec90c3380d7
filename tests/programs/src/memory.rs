//! Memory: the `mmap` family, demand paging, copy on write, the heap.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::{fs, ptr, slice};

use anyhow::{Context, Result, ensure};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_int,
    c_void,
};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("memory-new-pages-are-zero", new_pages_are_zero),
    ("memory-holes-can-be-cut", holes_can_be_cut),
    ("memory-protection-holds", protection_holds),
    ("memory-grows-in-place-or-moves", grows_in_place_or_moves),
    (
        "memory-dropped-pages-are-zero-again",
        dropped_pages_are_zero_again,
    ),
    ("memory-private-file-mapping", private_file_mapping),
    ("memory-shared-file-mapping", shared_file_mapping),
    ("memory-fork-copies-on-write", fork_copies_on_write),
    ("memory-fork-shares-shared", fork_shares_shared),
    ("memory-heap-of-32-mib", heap),
    ("memory-maps-are-listed", maps_are_listed),
    ("memory-bad-pointers-are-refused", bad_pointers_are_refused),
];

const PAGE: usize = 4096;

/// A mapping; unmapped when dropped.
struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(length: usize, protection: c_int, flags: c_int, file: Option<&File>) -> Result<Self> {
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, fd, 0) };
        ensure!(
            start != libc::MAP_FAILED,
            "mmap: {}",
            io::Error::last_os_error()
        );
        Ok(Self {
            start: start.cast(),
            length,
        })
    }

    fn anonymous(length: usize) -> Result<Self> {
        Self::new(
            length,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            None,
        )
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the callers have the whole mapping readable and writable when they ask, and it is
        // borrowed through self.
        unsafe { slice::from_raw_parts_mut(self.start, self.length) }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.start.wrapping_add(offset).cast()
    }

    /// Whether the kernel can read `length` bytes at `offset` for a `write` into a pipe.
    fn kernel_can_read(&self, offset: usize, length: usize) -> bool {
        let Ok((_reader, writer)) = io::pipe() else {
            return false;
        };
        // SAFETY: the kernel checks the address; nothing here is dereferenced.
        unsafe { libc::write(writer.as_raw_fd(), self.at(offset), length) == length as isize }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

fn new_pages_are_zero() -> Result<()> {
    let mut mapping = Mapping::anonymous(4 << 20)?;
    ensure!(
        mapping.bytes().iter().all(|&byte| byte == 0),
        "a new page is not zero"
    );
    for (index, page) in mapping.bytes().chunks_mut(PAGE).enumerate() {
        page[index % PAGE] = index as u8 | 1;
    }
    let wrong = mapping
        .bytes()
        .chunks(PAGE)
        .enumerate()
        .filter(|(index, page)| page[index % PAGE] != *index as u8 | 1)
        .count();
    ensure!(wrong == 0, "{wrong} pages lost what was written");
    Ok(())
}

fn holes_can_be_cut() -> Result<()> {
    let mut mapping = Mapping::anonymous(8 * PAGE)?;
    mapping.bytes().fill(7);
    // SAFETY: the pages are of this mapping, and nothing refers to them now.
    checked(unsafe { libc::munmap(mapping.at(2 * PAGE), 3 * PAGE) })?;
    let readable: Vec<_> = (0..8)
        .map(|page| mapping.kernel_can_read(page * PAGE, PAGE))
        .collect();
    ensure!(
        readable == [true, true, false, false, false, true, true, true],
        "readable pages: {readable:?}"
    );
    // SAFETY: the place lies in the hole that was cut above.
    let filled = unsafe {
        libc::mmap(
            mapping.at(3 * PAGE),
            PAGE,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
            -1,
            0,
        )
    };
    ensure!(
        filled == mapping.at(3 * PAGE),
        "MAP_FIXED put the page elsewhere"
    );
    ensure!(
        mapping.kernel_can_read(3 * PAGE, PAGE) && !mapping.kernel_can_read(2 * PAGE, PAGE),
        "the hole was filled wrongly"
    );
    Ok(())
}

fn protection_holds() -> Result<()> {
    let mut mapping = Mapping::anonymous(3 * PAGE)?;
    mapping.bytes().fill(1);
    // SAFETY: the page is of this mapping, and nothing reads it until it is readable again.
    checked(unsafe { libc::mprotect(mapping.at(PAGE), PAGE, PROT_NONE) })?;
    ensure!(
        !mapping.kernel_can_read(PAGE, PAGE),
        "a page without access can be read"
    );
    ensure!(
        mapping.kernel_can_read(0, PAGE) && mapping.kernel_can_read(2 * PAGE, PAGE),
        "its neighbours lost access"
    );
    // SAFETY: as above.
    checked(unsafe { libc::mprotect(mapping.at(PAGE), PAGE, PROT_READ | PROT_WRITE) })?;
    ensure!(
        mapping.bytes().iter().all(|&byte| byte == 1),
        "the page lost its contents"
    );
    Ok(())
}

fn grows_in_place_or_moves() -> Result<()> {
    let mut mapping = Mapping::anonymous(2 * PAGE)?;
    mapping.bytes().fill(9);
    // SAFETY: the mapping is this value's own, and it is described anew below.
    let moved = unsafe {
        libc::mremap(
            mapping.start.cast(),
            mapping.length,
            64 * PAGE,
            libc::MREMAP_MAYMOVE,
        )
    };
    ensure!(
        moved != libc::MAP_FAILED,
        "mremap: {}",
        io::Error::last_os_error()
    );
    (mapping.start, mapping.length) = (moved.cast(), 64 * PAGE);
    let (old, new) = mapping.bytes().split_at(2 * PAGE);
    ensure!(
        old.iter().all(|&byte| byte == 9) && new.iter().all(|&byte| byte == 0),
        "contents changed"
    );
    Ok(())
}

fn dropped_pages_are_zero_again() -> Result<()> {
    let mut mapping = Mapping::anonymous(4 * PAGE)?;
    mapping.bytes().fill(5);
    // SAFETY: the pages are of this mapping; they read as zero afterwards.
    checked(unsafe { libc::madvise(mapping.at(PAGE), 2 * PAGE, libc::MADV_DONTNEED) })?;
    let sums: Vec<_> = mapping
        .bytes()
        .chunks(PAGE)
        .map(|page| page.iter().map(|&byte| usize::from(byte)).sum::<usize>())
        .collect();
    ensure!(sums == [5 * PAGE, 0, 0, 5 * PAGE], "sums by page: {sums:?}");
    Ok(())
}

/// A file of `length` bytes with a pattern.
fn pattern_file(name: &str, length: usize) -> Result<(File, Vec<u8>)> {
    let path = std::env::temp_dir().join(name);
    let pattern: Vec<u8> = (0..length).map(|index| (index * 7 % 251) as u8).collect();
    fs::write(&path, &pattern)?;
    let file = File::options().read(true).write(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok((file, pattern))
}

fn private_file_mapping() -> Result<()> {
    let (mut file, pattern) = pattern_file("machine-tests-private", 3 * PAGE + 100)?;
    let mut mapping = Mapping::new(
        pattern.len(),
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE,
        Some(&file),
    )?;
    ensure!(
        mapping.bytes() == pattern,
        "the mapping does not show the file"
    );
    mapping.bytes()[PAGE] ^= 0xff;
    let mut read = Vec::new();
    file.read_to_end(&mut read)?;
    ensure!(read == pattern, "a private write reached the file");
    Ok(())
}

fn shared_file_mapping() -> Result<()> {
    let (mut file, mut pattern) = pattern_file("machine-tests-shared", 2 * PAGE)?;
    let mut mapping = Mapping::new(
        pattern.len(),
        PROT_READ | PROT_WRITE,
        MAP_SHARED,
        Some(&file),
    )?;
    mapping.bytes()[PAGE + 1] = 0xee;
    pattern[PAGE + 1] = 0xee;
    let mut read = vec![0; pattern.len()];
    file.read_exact(&mut read)?;
    ensure!(read == pattern, "a shared write did not reach the file");
    io::Seek::seek(&mut file, io::SeekFrom::Start(10))?;
    file.write_all(b"written")?;
    ensure!(
        &mapping.bytes()[10..17] == b"written",
        "a file write did not reach the mapping"
    );
    Ok(())
}

/// Runs `work` in a forked child; its exit status.
fn in_child(work: impl FnOnce() -> bool) -> Result<c_int> {
    // SAFETY: this program has one thread here, and the child leaves by `_exit`.
    let child = checked(unsafe { libc::fork() }).context("fork")?;
    if child == 0 {
        let status = i32::from(!work());
        // SAFETY: the call does not return.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the status is written to a valid place.
    checked(unsafe { libc::waitpid(child, &mut status, 0) }).context("waitpid")?;
    ensure!(libc::WIFEXITED(status), "the child ended with {status:#x}");
    Ok(libc::WEXITSTATUS(status))
}

fn fork_copies_on_write() -> Result<()> {
    let mut mapping = Mapping::anonymous(64 * PAGE)?;
    mapping.bytes().fill(1);
    let mut on_stack = [3u8; 2000];
    let status = in_child(|| {
        let inherited = mapping.bytes().iter().all(|&byte| byte == 1);
        mapping.bytes().fill(2);
        on_stack.fill(4);
        inherited
            && mapping.bytes().iter().all(|&byte| byte == 2)
            && on_stack.iter().all(|&byte| byte == 4)
    })?;
    ensure!(status == 0, "the child did not see its own copy");
    ensure!(
        mapping.bytes().iter().all(|&byte| byte == 1) && on_stack == [3; 2000],
        "the child's writes reached the parent"
    );
    mapping.bytes().fill(5);
    ensure!(
        mapping.bytes().iter().all(|&byte| byte == 5),
        "the parent cannot write any more"
    );
    Ok(())
}

fn fork_shares_shared() -> Result<()> {
    let mut mapping = Mapping::new(
        2 * PAGE,
        PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS,
        None,
    )?;
    mapping.bytes()[0] = 1;
    let status = in_child(|| {
        mapping.bytes()[PAGE] = 77;
        mapping.bytes()[0] == 1
    })?;
    ensure!(
        status == 0 && mapping.bytes()[PAGE] == 77,
        "parent and child do not share a shared mapping"
    );
    Ok(())
}

fn heap() -> Result<()> {
    let mut blocks: Vec<Vec<u8>> = (0..512).map(|n| vec![n as u8; 64 << 10]).collect();
    blocks.retain(|block| block[0] % 2 == 0);
    blocks.extend((0..256).map(|_| vec![0xab; 60_000]));
    let right = blocks
        .iter()
        // Without an early end this is done by vectors, which an emulator is glad of.
        .all(|block| block.iter().fold(0, |other, byte| other | byte ^ block[0]) == 0);
    ensure!(right, "blocks of the heap overlap");
    Ok(())
}

fn maps_are_listed() -> Result<()> {
    let mapping = Mapping::anonymous(16 * PAGE)?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let place = mapping.start as usize;
    let listed = maps.lines().any(|line| {
        let mut ends = line
            .split([' ', '-'])
            .map(|word| usize::from_str_radix(word, 16).unwrap_or(0));
        let (start, end) = (ends.next().unwrap_or(0), ends.next().unwrap_or(0));
        start <= place && place + 16 * PAGE <= end && line.contains("rw-p")
    });
    ensure!(listed, "/proc/self/maps does not list {place:#x}:\n{maps}");
    ensure!(
        maps.contains("[stack]"),
        "/proc/self/maps lists no stack:\n{maps}"
    );
    Ok(())
}

fn bad_pointers_are_refused() -> Result<()> {
    let (reader, writer) = io::pipe()?;
    io::Write::write_all(&mut &writer, b"12345678")?;
    for bad in [
        0usize,
        8,
        0x7fff_ffff_f000,
        0x8000_0000_0000,
        0xffff_8000_0000_0000,
        0xffff_ffff_8020_0000,
        usize::MAX - 7,
    ] {
        // SAFETY: the kernel checks the address; nothing here is dereferenced.
        let result = unsafe { libc::read(reader.as_raw_fd(), bad as *mut c_void, 8) };
        let error = io::Error::last_os_error();
        ensure!(
            result == -1 && error.raw_os_error() == Some(libc::EFAULT),
            "read to {bad:#x} returned {result}: {error}"
        );
    }
    let mut rest = [0; 8];
    ensure!(
        io::Read::read(&mut &reader, &mut rest)? == 8 && &rest == b"12345678",
        "refused reads took bytes out of the pipe"
    );
    Ok(())
}
