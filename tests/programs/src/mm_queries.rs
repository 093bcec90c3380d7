//! Queries and advice about areas of memory: seals, holes, other pages, residency, sizes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use anyhow::{Context, Result, ensure};
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ,
    PROT_WRITE, c_int, c_long, c_void,
};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("mm-queries-sealed-stay", sealed_stay),
    ("mm-queries-holes", holes),
    ("mm-queries-other-pages", other_pages),
    ("mm-queries-presence", presence),
    ("mm-queries-populate", populate),
    ("mm-queries-no-huge-pages", no_huge_pages),
    ("mm-queries-listed-sizes", listed_sizes),
];

const PAGE: usize = 4096;
const SYS_MSEAL: c_long = 462;
const READ_WRITE: c_int = PROT_READ | PROT_WRITE;

/// Maps pages; they stay until the program ends.
fn map(pages: usize, protection: c_int, flags: c_int, fd: c_int) -> io::Result<*mut u8> {
    // SAFETY: a place of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, protection, flags, fd, 0) };
    if at == MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(at.cast())
    }
}

fn anonymous(pages: usize) -> io::Result<*mut u8> {
    map(pages, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
}

fn get(at: *mut u8, page: usize) -> u8 {
    // SAFETY: the caller has mapped it.
    unsafe { at.add(page * PAGE).read_volatile() }
}

fn set(at: *mut u8, page: usize, value: u8) {
    // SAFETY: as in `get`.
    unsafe { at.add(page * PAGE).write_volatile(value) }
}

fn advise(at: *mut u8, page: usize, pages: usize, advice: c_int) -> io::Result<()> {
    // SAFETY: what may be lost is the caller's.
    checked(unsafe { libc::madvise(at.wrapping_add(page * PAGE).cast(), pages * PAGE, advice) })
        .map(drop)
}

fn error<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// A file without a name whose pages begin with 1, 2, 3, …
fn numbered(pages: usize) -> Result<File> {
    let name = CString::new("numbered")?;
    // SAFETY: the name is a string; the descriptor is new.
    let mut file = unsafe { File::from_raw_fd(checked(libc::memfd_create(name.as_ptr(), 0))?) };
    for page in 0..pages {
        file.write_all(&[page as u8 + 1; PAGE])?;
    }
    Ok(file)
}

fn sealed_stay() -> Result<()> {
    let at = anonymous(8)?;
    (0..8).for_each(|page| set(at, page, 7));
    let address = |page: usize| at.wrapping_add(page * PAGE).cast::<c_void>();
    // SAFETY: nothing below succeeds in changing what is used.
    unsafe {
        let seal = |page: usize, pages: usize, flags: usize| {
            let result = libc::syscall(SYS_MSEAL, address(page), pages * PAGE, flags);
            if result < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(())
            }
        };
        if error(seal(0, 0, 0)) == Some(libc::ENOSYS) {
            // Linux before 6.10.
            return Ok(());
        }
        ensure!(
            error(seal(2, 2, 1)) == Some(libc::EINVAL),
            "unknown flags are not refused"
        );
        checked(libc::munmap(address(7), PAGE))?;
        ensure!(
            error(seal(6, 2, 0)) == Some(libc::ENOMEM),
            "what is not mapped is sealed"
        );
        seal(2, 2, 0)?;
        seal(2, 2, 0)?;
        ensure!(
            error(checked(libc::munmap(address(3), PAGE))) == Some(libc::EPERM),
            "it is unmapped"
        );
        ensure!(
            error(checked(libc::munmap(address(0), 7 * PAGE))) == Some(libc::EPERM),
            "it is unmapped with others"
        );
        ensure!(
            error(checked(libc::mprotect(address(2), PAGE, PROT_READ))) == Some(libc::EPERM),
            "it is protected"
        );
        let moved = libc::mremap(address(2), PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE);
        ensure!(
            moved == MAP_FAILED && error(checked(-1)) == Some(libc::EPERM),
            "it is moved"
        );
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        let replaced = libc::mmap(address(2), PAGE, READ_WRITE, flags, -1, 0);
        ensure!(
            replaced == MAP_FAILED && error(checked(-1)) == Some(libc::EPERM),
            "it is replaced"
        );
        // What the program could write zeros to itself, it may give back.
        advise(at, 2, 1, libc::MADV_DONTNEED)?;
        ensure!(
            get(at, 2) == 0 && get(at, 3) == 7,
            "the wrong page was given back"
        );
        checked(libc::mprotect(address(0), 2 * PAGE, PROT_READ))?;
        checked(libc::munmap(address(4), PAGE))?;
        let other = anonymous(1)?;
        set(other, 0, 9);
        checked(libc::mprotect(other.cast(), PAGE, PROT_READ))?;
        ensure!(
            libc::syscall(SYS_MSEAL, other, PAGE, 0) == 0,
            "it is not sealed"
        );
        ensure!(
            error(advise(other, 0, 1, libc::MADV_DONTNEED)) == Some(libc::EPERM),
            "constant contents are lost"
        );
        ensure!(get(other, 0) == 9, "constant contents changed");
    }
    Ok(())
}

fn holes() -> Result<()> {
    let file = numbered(8)?;
    let shared = map(8, READ_WRITE, MAP_SHARED, file.as_raw_fd())?;
    let again = map(8, PROT_READ, MAP_SHARED, file.as_raw_fd())?;
    let private = map(8, READ_WRITE, MAP_PRIVATE, file.as_raw_fd())?;
    ensure!(
        get(again, 2) == 3 && get(private, 3) == 4,
        "the file is not there"
    );
    set(private, 3, 99);
    advise(shared, 2, 2, libc::MADV_REMOVE)?;
    let seen: Vec<u8> = (0..8).map(|page| get(shared, page)).collect();
    ensure!(
        seen == [1, 2, 0, 0, 5, 6, 7, 8],
        "a hole of two pages looks like {seen:?}"
    );
    ensure!(
        get(again, 2) == 0 && get(private, 3) == 99,
        "others see {} and {}",
        get(again, 2),
        get(private, 3)
    );
    ensure!(
        file.metadata()?.len() == 8 * PAGE as u64,
        "the file is shorter"
    );
    ensure!(
        error(advise(private, 0, 1, libc::MADV_REMOVE)) == Some(libc::EACCES),
        "a private mapping has a hole"
    );
    let nameless = map(4, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1)?;
    (0..4).for_each(|page| set(nameless, page, 5));
    advise(nameless, 1, 2, libc::MADV_REMOVE)?;
    let seen: Vec<u8> = (0..4).map(|page| get(nameless, page)).collect();
    ensure!(
        seen == [5, 0, 0, 5],
        "shared memory with a hole looks like {seen:?}"
    );
    set(nameless, 1, 6);
    ensure!(get(nameless, 1) == 6, "a hole cannot be filled");
    Ok(())
}

fn other_pages() -> Result<()> {
    let file = numbered(8)?;
    let shared = map(8, READ_WRITE, MAP_SHARED, file.as_raw_fd())?;
    let private = map(8, READ_WRITE, MAP_PRIVATE, file.as_raw_fd())?;
    let show = |at: *mut u8, page: usize, pages: usize, first: usize| {
        // SAFETY: the mapping is this check's own.
        let result = unsafe {
            libc::syscall(
                libc::SYS_remap_file_pages,
                at.wrapping_add(page * PAGE),
                pages * PAGE,
                0,
                first,
                0,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    show(shared, 0, 1, 7)?;
    show(shared, 7, 1, 0)?;
    let seen: Vec<u8> = (0..8).map(|page| get(shared, page)).collect();
    ensure!(
        seen == [8, 2, 3, 4, 5, 6, 7, 1],
        "first and last exchanged are {seen:?}"
    );
    set(shared, 0, 80);
    let again = map(8, PROT_READ, MAP_SHARED, file.as_raw_fd())?;
    ensure!(
        get(again, 7) == 80,
        "what is written to another page does not reach the file"
    );
    ensure!(
        error(show(private, 0, 1, 7)) == Some(libc::EINVAL),
        "a private mapping shows other pages"
    );
    Ok(())
}

fn resident(at: *mut u8, pages: usize) -> Result<Vec<u8>> {
    let mut there = vec![9; pages];
    // SAFETY: one byte for each page.
    checked(unsafe { libc::mincore(at.cast(), pages * PAGE, there.as_mut_ptr()) })?;
    Ok(there.iter().map(|byte| byte & 1).collect())
}

fn presence() -> Result<()> {
    let at = anonymous(5)?;
    set(at, 1, 1);
    set(at, 3, 1);
    ensure!(
        resident(at, 5)? == [0, 1, 0, 1, 0],
        "of five pages there are {:?}",
        resident(at, 5)?
    );
    let file = numbered(3)?;
    let shared = map(3, PROT_READ, MAP_SHARED, file.as_raw_fd())?;
    ensure!(
        resident(shared, 3)? == [1, 1, 1],
        "a file's pages are not there before they are touched"
    );
    // SAFETY: the page is not used again.
    checked(unsafe { libc::munmap(at.wrapping_add(2 * PAGE).cast(), PAGE) })?;
    let error = resident(at, 5).err().context("a gap is present")?;
    ensure!(
        error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
            == Some(libc::ENOMEM),
        "{error}"
    );
    Ok(())
}

fn populate() -> Result<()> {
    let at = anonymous(4)?;
    advise(at, 0, 4, libc::MADV_POPULATE_WRITE)?;
    ensure!(resident(at, 4)? == [1; 4], "populated pages are not there");
    // SAFETY: pages of this check's own.
    unsafe {
        checked(libc::mprotect(at.cast(), PAGE, PROT_NONE))?;
        ensure!(
            error(advise(at, 0, 4, libc::MADV_POPULATE_READ)) == Some(libc::EINVAL),
            "what is forbidden is populated"
        );
        checked(libc::mprotect(
            at.wrapping_add(PAGE).cast(),
            PAGE,
            PROT_READ,
        ))?;
        ensure!(
            error(advise(at, 1, 3, libc::MADV_POPULATE_WRITE)) == Some(libc::EINVAL),
            "constants are populated for writing"
        );
        advise(at, 1, 3, libc::MADV_POPULATE_READ)?;
        checked(libc::munmap(at.wrapping_add(2 * PAGE).cast(), PAGE))?;
    }
    ensure!(
        error(advise(at, 1, 3, libc::MADV_POPULATE_READ)) == Some(libc::ENOMEM),
        "a gap is populated"
    );
    let file = numbered(1)?;
    let shared = map(2, PROT_READ, MAP_SHARED, file.as_raw_fd())?;
    ensure!(
        error(advise(shared, 0, 2, libc::MADV_POPULATE_READ)) == Some(libc::EFAULT),
        "what is behind the end is populated"
    );
    advise(at, 3, 1, libc::MADV_COLD)?;
    advise(at, 3, 1, libc::MADV_PAGEOUT)?;
    Ok(())
}

/// Huge pages are not to be had, in a way that programs expect.
fn no_huge_pages() -> Result<()> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let free = fs::read_to_string("/proc/meminfo")?
        .lines()
        .any(|line| line.starts_with("HugePages_Total:") && line.ends_with(" 0"));
    if free {
        ensure!(
            error(map(512, READ_WRITE, flags, -1)) == Some(libc::ENOMEM),
            "a huge page where there are none"
        );
    }
    // SAFETY: a name with its end.
    let file = unsafe {
        libc::memfd_create(
            c"huge".as_ptr(),
            libc::MFD_HUGETLB | 15 << libc::MFD_HUGE_SHIFT,
        )
    };
    ensure!(
        error(checked(file)) == Some(libc::ENODEV),
        "a file of huge pages of 32 KiB"
    );
    for (log, expected) in [(0, libc::ENOMEM), (21, libc::ENOMEM), (15, libc::EINVAL)] {
        // SAFETY: makes nothing that would have to be removed.
        let segment = unsafe {
            libc::shmget(
                libc::IPC_PRIVATE,
                2 << 20,
                libc::IPC_CREAT | libc::SHM_HUGETLB | log << 26 | 0o600,
            )
        };
        ensure!(
            !free || error(checked(segment)) == Some(expected),
            "a segment of huge pages of 2^{log} bytes"
        );
    }
    let too_much = error(map(
        usize::MAX / PAGE,
        READ_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
    ));
    ensure!(
        too_much == Some(libc::ENOMEM),
        "more than all addresses: {too_much:?}"
    );
    // SAFETY: nothing is there.
    let locked = error(checked(unsafe {
        libc::mlock(PAGE as *const c_void, usize::MAX / 4)
    }));
    ensure!(
        locked == Some(libc::ENOMEM),
        "locking more than there is: {locked:?}"
    );
    let odd = flags | 15 << libc::MAP_HUGE_SHIFT;
    ensure!(
        error(map(512, READ_WRITE, odd, -1)) == Some(libc::EINVAL),
        "huge pages of 32 KiB"
    );
    Ok(())
}

/// A number of KiB in a file of /proc/self; in `smaps` of the mapping that begins at `at`.
fn listed(file: &str, at: Option<*mut u8>, name: &str) -> Result<usize> {
    let text = fs::read_to_string(format!("/proc/self/{file}"))?;
    let begin = at.map(|at| format!("{:08x}-", at.addr()));
    let lines = text
        .lines()
        .skip_while(|line| begin.as_ref().is_some_and(|begin| !line.starts_with(begin)));
    let line = lines
        .skip(usize::from(at.is_some()))
        .find(|line| line.starts_with(name))
        .with_context(|| format!("no {name}"))?;
    Ok(line
        .split_whitespace()
        .nth(1)
        .context("no number")?
        .parse()?)
}

fn listed_sizes() -> Result<()> {
    let at = anonymous(64)?;
    (0..16).for_each(|page| set(at, page, 1));
    // Neighbours join: a protection of its own keeps this one apart.
    // SAFETY: a page of this check's own.
    checked(unsafe { libc::mprotect(at.wrapping_add(63 * PAGE).cast(), PAGE, PROT_NONE) })?;
    let before = listed("status", None, "VmLck:")?;
    // SAFETY: locks this check's pages.
    checked(unsafe { libc::mlock2(at.cast(), 16 * PAGE, 1) })?;
    ensure!(
        listed("status", None, "VmLck:")? == before + 64,
        "VmLck does not count"
    );
    let of = |name: &str| listed("smaps", Some(at), name);
    ensure!(
        of("Size:")? == 64 && of("Rss:")? == 64,
        "{} and {} KiB",
        of("Size:")?,
        of("Rss:")?
    );
    ensure!(
        of("Pss:")? == 64 && of("Private_Dirty:")? == 64 && of("Anonymous:")? == 64,
        "16 pages are not all this program's"
    );
    ensure!(of("Locked:")? == 64, "{} KiB are locked", of("Locked:")?);
    // SAFETY: as above.
    checked(unsafe { libc::munlock(at.cast(), 16 * PAGE) })?;
    ensure!(listed("status", None, "VmLck:")? == before, "VmLck stays");
    // SAFETY: as above; nobody else in this program locks memory.
    unsafe {
        checked(libc::mlock(at.cast(), 16 * PAGE))?;
        checked(libc::munlockall())?;
    }
    ensure!(
        listed("status", None, "VmLck:")? == 0,
        "munlockall leaves {} KiB",
        listed("status", None, "VmLck:")?
    );
    ensure!(
        listed("smaps_rollup", None, "Rss:")? >= 64,
        "the sum is less than its parts"
    );
    let [size, resident] = [
        listed("status", None, "VmSize:")?,
        listed("status", None, "VmRSS:")?,
    ];
    ensure!(
        size >= 256 && resident >= 64 && resident <= size,
        "{resident} KiB of {size} KiB"
    );
    Ok(())
}
