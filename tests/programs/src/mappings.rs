//! Mappings of files and of shared memory: truncation, seals, System V segments, locks, barriers.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime};
use std::{fs, ptr, slice};

use anyhow::{Result, ensure};
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE,
    c_int, c_long, c_void,
};

use crate::calls::{call, fails, is};
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("mappings-behind-the-end-is-a-bus-error", behind_the_end),
    ("mappings-follow-the-file", follow_the_file),
    ("mappings-holes-are-seen", holes_are_seen),
    ("mappings-seals-hold", seals_hold),
    ("mappings-system-v-segments", system_v_segments),
    ("mappings-places-are-respected", places_are_respected),
    ("mappings-locks-have-a-limit", locks_have_a_limit),
    ("mappings-twice", twice),
    ("mappings-barriers", barriers),
    ("mappings-of-code-can-move", of_code_can_move),
    ("mappings-set-the-times-of-writes", set_the_times_of_writes),
    ("mappings-of-a-removed-segment", of_a_removed_segment),
    ("mappings-that-are-no-stack", of_no_stack),
    ("mappings-that-are-sealed", that_are_sealed),
    ("mappings-protection-up-to-a-hole", protection_up_to_a_hole),
    ("mappings-set-the-access-time", set_the_access_time),
];

const PAGE: usize = 4096;
const READ_WRITE: c_int = PROT_READ | PROT_WRITE;

/// A mapping; unmapped when dropped.
struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    fn of(file: &File, pages: usize, protection: c_int, flags: c_int) -> io::Result<Self> {
        Self::at(ptr::null_mut(), pages, protection, flags, file.as_raw_fd())
    }

    fn at(
        at: *mut c_void,
        pages: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
    ) -> io::Result<Self> {
        let length = pages * PAGE;
        // SAFETY: a place of the kernel's choice, or a hint that replaces nothing.
        let start = unsafe { libc::mmap(at, length, protection, flags, fd, 0) };
        if start == MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self {
                start: start.cast(),
                length,
            })
        }
    }

    fn byte(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.length);
        self.start.wrapping_add(offset)
    }

    fn get(&self, offset: usize) -> u8 {
        // SAFETY: within the mapping, and the caller knows that there is a page.
        unsafe { self.byte(offset).read_volatile() }
    }

    fn set(&self, offset: usize, value: u8) {
        // SAFETY: as in `get`, and the mapping is writable.
        unsafe { self.byte(offset).write_volatile(value) }
    }

    /// Whether the kernel can read the byte for a `write` into a pipe.
    fn there(&self, offset: usize) -> bool {
        let Ok((_reader, writer)) = io::pipe() else {
            return false;
        };
        // SAFETY: the kernel checks the address; nothing here is dereferenced.
        unsafe { libc::write(writer.as_raw_fd(), self.byte(offset).cast(), 1) == 1 }
    }

    /// The signal that a child gets for touching the byte.
    fn signal(&self, offset: usize) -> Result<c_int> {
        // SAFETY: the child does nothing but touch memory and leave.
        let child = checked(unsafe { libc::fork() })?;
        if child == 0 {
            self.get(offset);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is this thread's.
        checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
        Ok(if libc::WIFSIGNALED(status) {
            libc::WTERMSIG(status)
        } else {
            0
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A file without a name whose pages begin with 1, 2, 3, …
fn numbered(pages: usize, flags: libc::c_uint) -> Result<File> {
    let name = CString::new("numbered")?;
    // SAFETY: the name is a string; the descriptor is new.
    let mut file = unsafe { File::from_raw_fd(checked(libc::memfd_create(name.as_ptr(), flags))?) };
    for page in 0..pages {
        file.write_all(&[page as u8 + 1; PAGE])?;
    }
    Ok(file)
}

fn behind_the_end() -> Result<()> {
    let file = numbered(40, 0)?;
    let shared = Mapping::of(&file, 40, READ_WRITE, MAP_SHARED)?;
    let private = Mapping::of(&file, 40, READ_WRITE, MAP_PRIVATE)?;
    for page in 0..40 {
        ensure!(
            shared.get(page * PAGE) == page as u8 + 1
                && private.get(page * PAGE + 9) == page as u8 + 1,
            "page {page} is wrong"
        );
    }
    private.set(20 * PAGE, 99);
    file.set_len(10 * PAGE as u64 + 5)?;
    ensure!(
        shared.get(10 * PAGE + 4) == 11 && shared.get(10 * PAGE + 5) == 0,
        "the last page is not cut"
    );
    for (mapping, name) in [(&shared, "shared"), (&private, "private")] {
        ensure!(
            !mapping.there(11 * PAGE) && !mapping.there(20 * PAGE),
            "{name} pages behind the end are still there"
        );
        let signal = mapping.signal(39 * PAGE)?;
        ensure!(
            signal == libc::SIGBUS,
            "touching {name} pages behind the end gives signal {signal}"
        );
    }
    file.set_len(40 * PAGE as u64)?;
    ensure!(
        shared.get(20 * PAGE) == 0 && private.get(20 * PAGE) == 0,
        "what was cut off came back"
    );
    Ok(())
}

fn follow_the_file() -> Result<()> {
    let mut file = numbered(20, 0)?;
    let shared = Mapping::of(&file, 20, READ_WRITE, MAP_SHARED)?;
    let private = Mapping::of(&file, 20, READ_WRITE, MAP_PRIVATE)?;
    private.set(3 * PAGE, 200);
    shared.set(2 * PAGE, 77);
    file.seek(io::SeekFrom::Start(5 * PAGE as u64))?;
    file.write_all(b"written")?;
    ensure!(
        shared.get(5 * PAGE) == b'w' && private.get(5 * PAGE) == b'w',
        "a mapping does not show what was written"
    );
    let mut byte = [0];
    file.seek(io::SeekFrom::Start(2 * PAGE as u64))?;
    file.read_exact(&mut byte)?;
    ensure!(byte == [77], "the file does not show what was stored");
    ensure!(
        shared.get(3 * PAGE) == 4 && private.get(3 * PAGE) == 200,
        "a private page is not private"
    );
    ensure!(
        private.signal(3 * PAGE)? == 0,
        "a child misses a private page"
    );
    Ok(())
}

fn holes_are_seen() -> Result<()> {
    let file = numbered(20, 0)?;
    let shared = Mapping::of(&file, 20, READ_WRITE, MAP_SHARED)?;
    ensure!(shared.get(7 * PAGE) == 8, "page 7 is wrong");
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain numbers.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, 6 * PAGE as i64, 3 * PAGE as i64) })?;
    ensure!(
        shared.get(7 * PAGE) == 0 && shared.get(9 * PAGE) == 10,
        "a mapping does not show the hole"
    );
    shared.set(7 * PAGE, 5);
    let again = Mapping::of(&file, 20, PROT_READ, MAP_SHARED)?;
    ensure!(again.get(7 * PAGE) == 5, "two mappings of one page differ");
    Ok(())
}

fn seals_hold() -> Result<()> {
    let add = |file: &File, seals: c_int| {
        // SAFETY: plain numbers.
        checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
    };
    let errno = |result: io::Result<()>| result.err().and_then(|e| e.raw_os_error());
    let plain = numbered(1, 0)?;
    ensure!(
        add(&plain, libc::F_SEAL_GROW).is_err(),
        "a file made without leave was sealed"
    );
    let mut file = numbered(2, libc::MFD_ALLOW_SEALING)?;
    let mapping = Mapping::of(&file, 2, READ_WRITE, MAP_SHARED)?;
    let busy = add(&file, libc::F_SEAL_WRITE).map(drop);
    ensure!(
        errno(busy) == Some(libc::EBUSY),
        "it was sealed against writing while mapped for that"
    );
    drop(mapping);
    add(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    ensure!(
        errno(file.set_len(1)) == Some(libc::EPERM)
            && errno(file.set_len(1 << 20)) == Some(libc::EPERM),
        "the size was changed"
    );
    ensure!(
        errno(file.write_all(b"x")) == Some(libc::EPERM),
        "it grew by writing"
    );
    file.rewind()?;
    file.write_all(b"y")?;
    add(&file, libc::F_SEAL_WRITE)?;
    file.rewind()?;
    ensure!(
        errno(file.write_all(b"z")) == Some(libc::EPERM),
        "it was written to"
    );
    let refused = Mapping::of(&file, 2, READ_WRITE, MAP_SHARED).map(drop);
    ensure!(
        errno(refused) == Some(libc::EPERM),
        "it was mapped for writing"
    );
    let readable = Mapping::of(&file, 2, PROT_READ, MAP_SHARED)?;
    ensure!(readable.get(0) == b'y', "the content is wrong");
    // SAFETY: the mapping is this function's; making it writable is to fail.
    let protect =
        checked(unsafe { libc::mprotect(readable.start.cast(), PAGE, READ_WRITE) }).map(drop);
    ensure!(
        errno(protect) == Some(libc::EACCES),
        "a sealed mapping became writable"
    );
    add(&file, libc::F_SEAL_SEAL)?;
    ensure!(
        add(&file, libc::F_SEAL_FUTURE_WRITE).is_err(),
        "a seal was added to a closed file"
    );
    // SAFETY: plain numbers.
    let seals = checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
    ensure!(
        seals == libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL,
        "the seals are {seals:#x}"
    );
    Ok(())
}

fn system_v_segments() -> Result<()> {
    let key = 0x5e99 + std::process::id() as c_int;
    let get = |size: usize, flags: c_int| {
        // SAFETY: plain numbers.
        checked(unsafe { libc::shmget(key, size, flags) })
    };
    let id = get(3 * PAGE - 7, libc::IPC_CREAT | libc::IPC_EXCL | 0o600)?;
    ensure!(
        get(PAGE, libc::IPC_CREAT | libc::IPC_EXCL | 0o600).is_err(),
        "a key was given twice"
    );
    ensure!(
        get(PAGE, 0)? == id && get(4 * PAGE, 0).is_err(),
        "it is not found, or found for a larger size"
    );
    let attach = |flags: c_int| -> Result<*mut u8> {
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { libc::shmat(id, ptr::null(), flags) };
        ensure!(
            at.addr() != usize::MAX,
            "shmat: {}",
            io::Error::last_os_error()
        );
        Ok(at.cast())
    };
    let (first, second) = (attach(0)?, attach(libc::SHM_RDONLY)?);
    // SAFETY: both are mapped; another address is no alias to the compiler, hence volatile.
    unsafe { first.add(PAGE).write_volatile(42) };
    ensure!(
        // SAFETY: as above.
        unsafe { second.add(PAGE).read_volatile() } == 42,
        "two places of a segment differ"
    );
    let stat = || -> Result<libc::shmid_ds> {
        // SAFETY: all zeros is a value of the structure.
        let mut info: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is this function's.
        checked(unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut info) })?;
        Ok(info)
    };
    let info = stat()?;
    ensure!(
        info.shm_nattch == 2 && info.shm_segsz == 3 * PAGE - 7,
        "{} attachments of {}",
        info.shm_nattch,
        info.shm_segsz
    );
    ensure!(
        info.shm_perm.mode & 0o777 == 0o600 && info.shm_cpid == std::process::id() as i32,
        "mode or creator are wrong"
    );
    // SAFETY: the mapping was made by `shmat` and is not used any more.
    checked(unsafe { libc::shmdt(second.cast()) })?;
    ensure!(
        stat()?.shm_nattch == 1,
        "a detached segment counts as attached"
    );
    ensure!(
        // SAFETY: not attached any more: to be refused.
        checked(unsafe { libc::shmdt(second.cast()) }).is_err(),
        "it was detached twice"
    );
    // SAFETY: the command uses no structure.
    checked(unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) })?;
    ensure!(
        // SAFETY: still attached here.
        unsafe { first.add(PAGE).read_volatile() } == 42,
        "a removed segment lost its content"
    );
    // SAFETY: as with the second.
    checked(unsafe { libc::shmdt(first.cast()) })?;
    ensure!(
        get(PAGE, 0).is_err() && stat().is_err(),
        "a removed segment is still there"
    );
    Ok(())
}

fn places_are_respected() -> Result<()> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let first = Mapping::at(ptr::null_mut(), 4, READ_WRITE, flags, -1)?;
    first.set(PAGE, 3);
    let over = Mapping::at(
        first.byte(PAGE).cast(),
        1,
        READ_WRITE,
        flags | MAP_FIXED_NOREPLACE,
        -1,
    )
    .map(drop);
    ensure!(
        over.err().and_then(|e| e.raw_os_error()) == Some(libc::EEXIST) && first.get(PAGE) == 3,
        "something was replaced"
    );
    let elsewhere = Mapping::at(first.byte(PAGE).cast(), 1, READ_WRITE, flags, -1)?;
    ensure!(
        elsewhere.start != first.byte(PAGE),
        "a hint replaced something"
    );
    let stack = Mapping::at(
        ptr::null_mut(),
        2,
        READ_WRITE,
        flags | libc::MAP_STACK | libc::MAP_NORESERVE,
        -1,
    )?;
    stack.set(PAGE, 1);
    Ok(())
}

fn locks_have_a_limit() -> Result<()> {
    let mapping = Mapping::at(
        ptr::null_mut(),
        64,
        READ_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
    )?;
    // SAFETY: the mapping is this function's.
    checked(unsafe { libc::mlock(mapping.start.cast(), 8 * PAGE) })?;
    let mut present = [0u8; 64];
    // SAFETY: a byte for each page.
    checked(unsafe { libc::mincore(mapping.start.cast(), 64 * PAGE, present.as_mut_ptr()) })?;
    let there = present.iter().filter(|page| **page & 1 == 1).count();
    ensure!(there == 8, "{there} pages are there, 8 are locked");
    // SAFETY: the pages are not to be dropped.
    let dropped =
        checked(unsafe { libc::madvise(mapping.start.cast(), PAGE, libc::MADV_DONTNEED) });
    ensure!(dropped.is_err(), "a locked page was dropped");
    // SAFETY: the child changes only itself, and leaves.
    let child = checked(unsafe { libc::fork() })?;
    if child == 0 {
        let limit = libc::rlimit {
            rlim_cur: 16 * PAGE as u64,
            rlim_max: 16 * PAGE as u64,
        };
        // SAFETY: as above; the mapping is a copy.
        let refused = unsafe {
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) == 0
                && libc::setuid(1000) == 0
                && libc::mlock(mapping.start.cast(), 16 * PAGE) == 0
                && libc::mlock(mapping.start.cast(), 17 * PAGE) == -1
                && libc::munlock(mapping.start.cast(), 16 * PAGE) == 0
                && libc::mlock(mapping.byte(20 * PAGE).cast(), 10 * PAGE) == 0
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: `status` is this thread's.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    ensure!(status == 0, "the limit does not hold");
    Ok(())
}

fn twice() -> Result<()> {
    let shared = Mapping::at(
        ptr::null_mut(),
        2,
        READ_WRITE,
        MAP_SHARED | MAP_ANONYMOUS,
        -1,
    )?;
    // SAFETY: an old length of 0 makes a second mapping; the first stays.
    let again = unsafe { libc::mremap(shared.start.cast(), 0, 2 * PAGE, libc::MREMAP_MAYMOVE) };
    ensure!(
        again != MAP_FAILED,
        "mremap: {}",
        io::Error::last_os_error()
    );
    let again = Mapping {
        start: again.cast(),
        length: 2 * PAGE,
    };
    shared.set(PAGE, 9);
    ensure!(
        again.get(PAGE) == 9,
        "the second mapping shows something else"
    );
    // SAFETY: both are mapped, and read only here.
    let bytes = unsafe { slice::from_raw_parts(again.start, 2 * PAGE) };
    ensure!(
        bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>() == 9,
        "there is more than was stored"
    );
    Ok(())
}

fn barriers() -> Result<()> {
    const QUERY: c_int = 0;
    const EXPEDITED: c_int = 8;
    const EXPECT: c_int = 16;
    let call = |command: c_int| {
        // SAFETY: plain numbers.
        checked(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } as c_int)
    };
    ensure!(
        call(QUERY)? & (EXPEDITED | EXPECT) == EXPEDITED | EXPECT,
        "private barriers are not offered"
    );
    ensure!(call(EXPEDITED).is_err(), "a barrier that was not announced");
    call(EXPECT)?;
    std::thread::scope(|scope| {
        let busy: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| (0..2_000_000u64).fold(1, |a, b| std::hint::black_box(a ^ b))))
            .collect();
        let result = (0..50).try_for_each(|_| call(EXPEDITED).map(drop));
        busy.into_iter().for_each(|thread| drop(thread.join()));
        result
    })?;
    Ok(())
}

/// Pages before a hole are protected although the call fails, and empty ranges are fine anywhere.
fn protection_up_to_a_hole() -> Result<()> {
    let pages = Mapping::at(
        ptr::null_mut(),
        2,
        READ_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
    )?;
    pages.set(0, 1);
    let start = pages.byte(0).cast::<c_void>();
    // SAFETY: the second page is the mapping's and nobody reads it again; the first is read through
    // the kernel only.
    unsafe {
        checked(libc::munmap(start.byte_add(PAGE), PAGE))?;
        ensure!(
            libc::mprotect(start, 2 * PAGE, libc::PROT_NONE) == -1,
            "a hole was protected"
        );
        ensure!(io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM));
        let (_reader, writer) = io::pipe()?;
        ensure!(
            libc::write(writer.as_raw_fd(), start, 1) == -1,
            "the page before the hole is still readable"
        );
        ensure!(io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT));
        checked(libc::madvise(
            ptr::without_provenance_mut(1 << 63),
            0,
            libc::MADV_NORMAL,
        ))?;
        ensure!(libc::mprotect(ptr::without_provenance_mut(1 << 63), PAGE, PROT_READ) == -1);
        ensure!(io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM));
    }
    Ok(())
}

/// A range that is to reach down to where a stack begins is one of a stack.
fn of_no_stack() -> Result<()> {
    let memory = call!(
        SYS_mmap,
        0,
        2 * PAGE,
        PROT_READ,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1i32,
        0
    ) as usize;
    let protect =
        |at: usize, len: usize| call!(SYS_mprotect, at, len, PROT_READ | libc::PROT_GROWSDOWN);
    fails(
        protect(memory + PAGE, PAGE),
        libc::EINVAL,
        "memory that does not grow",
    )?;
    is(call!(SYS_munmap, memory, 2 * PAGE), 0, "munmap")?;
    fails(protect(memory, 2 * PAGE), libc::ENOMEM, "nothing")
}

/// Code runs where it was moved to, from memory that may be written or not.
fn of_code_can_move() -> Result<()> {
    for access in [
        libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        libc::PROT_READ | libc::PROT_EXEC,
    ] {
        let map = |prot: i32| {
            call!(
                SYS_mmap,
                0,
                2 * PAGE,
                prot,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1i32,
                0
            )
        };
        let (code, place) = (
            map(libc::PROT_READ | libc::PROT_WRITE) as usize,
            map(libc::PROT_NONE) as usize,
        );
        // SAFETY: new memory; the bytes are `mov eax, 42; ret`.
        unsafe { (code as *mut [u8; 6]).write([0xb8, 42, 0, 0, 0, 0xc3]) };
        is(call!(SYS_mprotect, code, 2 * PAGE, access), 0, "mprotect")?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is(
            call!(SYS_mremap, code, 2 * PAGE, 2 * PAGE, flags, place),
            place as i64,
            "mremap",
        )?;
        // SAFETY: the function just moved.
        let answer = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(place)() };
        ensure!(answer == 42, "it returned {answer}");
        is(call!(SYS_munmap, place, 2 * PAGE), 0, "munmap")?;
    }
    Ok(())
}

/// Sealed memory (`mseal(2)`, Linux 6.10) stays as it is until the process ends, whole or not at
/// all; it can be read and written.
fn that_are_sealed() -> Result<()> {
    const SYS_MSEAL: c_long = 462;
    let seal =
        |at: usize, len: usize, flags: usize| crate::calls::make(SYS_MSEAL, &[at, len, flags]);
    let (access, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    let start = call!(SYS_mmap, 0, 4 * PAGE, access, kind, -1i32, 0) as usize;
    let sealed = start + PAGE;
    if seal(sealed, PAGE, 0) == -i64::from(libc::ENOSYS) {
        return Ok(());
    }
    fails(seal(sealed, PAGE, 1), libc::EINVAL, "mseal with a flag")?;
    fails(seal(sealed + 1, PAGE, 0), libc::EINVAL, "mseal of no page")?;
    is(seal(sealed, PAGE, 0), 0, "mseal again")?;
    // By itself, and in the middle of a range of which the rest must stay, too.
    for (at, len) in [(sealed, PAGE), (start, 4 * PAGE)] {
        fails(call!(SYS_munmap, at, len), libc::EPERM, "munmap")?;
        fails(
            call!(SYS_mprotect, at, len, PROT_READ),
            libc::EPERM,
            "mprotect",
        )?;
        fails(
            call!(SYS_mmap, at, len, access, kind | libc::MAP_FIXED, -1i32, 0),
            libc::EPERM,
            "mmap over it",
        )?;
    }
    fails(
        call!(SYS_mremap, sealed, PAGE, 0, 0, 0),
        libc::EINVAL,
        "mremap to nothing",
    )?;
    fails(
        call!(SYS_mremap, sealed, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE, 0),
        libc::EPERM,
        "mremap",
    )?;
    for page in 0..4 {
        // SAFETY: pages of this check's own, which are all there, as was just seen to.
        unsafe { ((start + page * PAGE) as *mut u8).write_volatile(page as u8) };
    }
    is(call!(SYS_munmap, start, PAGE), 0, "munmap beside it")?;
    fails(seal(start, 2 * PAGE, 0), libc::ENOMEM, "mseal of a hole")
}

/// Mapping a file counts as reading it.
fn set_the_access_time() -> Result<()> {
    let place = Place::new("mappings-time")?;
    let path = place.0.join("file");
    fs::write(&path, "text")?;
    let file = File::open(&path)?;
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    file.set_times(
        fs::FileTimes::new()
            .set_accessed(at(100))
            .set_modified(at(200)),
    )?;
    let flags = libc::MAP_PRIVATE;
    let map = call!(
        SYS_mmap,
        0,
        4096,
        libc::PROT_READ,
        flags,
        file.as_raw_fd(),
        0
    );
    ensure!(map > 0, "mmap: {map}");
    is(call!(SYS_munmap, map, 4096), 0, "munmap")?;
    let read = file.metadata()?.accessed()?;
    ensure!(read > at(1_000_000_000), "it was read at {read:?}");
    Ok(())
}

/// Writing by a shared mapping counts as writing to the file, but takes no set-id bits away; by a
/// private one it is nobody's business.
fn set_the_times_of_writes() -> Result<()> {
    let place = Place::new("mappings-writes")?;
    let path = place.0.join("file");
    fs::write(&path, vec![b'x'; PAGE])?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))?;
    let file = File::options().read(true).write(true).open(&path)?;
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(200);
    file.set_times(fs::FileTimes::new().set_modified(long_ago))?;
    for (flags, noticed) in [(MAP_PRIVATE, false), (MAP_SHARED, true)] {
        let map = call!(
            SYS_mmap,
            0,
            PAGE,
            PROT_READ | PROT_WRITE,
            flags,
            file.as_raw_fd(),
            0
        );
        ensure!(map > 0, "mmap: {map}");
        // SAFETY: a page of this check's own.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(map as usize).write_volatile(b'y') };
        is(call!(SYS_msync, map, PAGE, libc::MS_SYNC), 0, "msync")?;
        let now = file.metadata()?;
        let changed = (now.ctime(), now.ctime_nsec());
        let written = (now.mtime(), now.mtime_nsec());
        ensure!(
            (now.modified()? != long_ago) == noticed && (written == changed) == noticed,
            "after a write with flags {flags:#x} it was written at {written:?}, changed at {changed:?}"
        );
        ensure!(now.mode() & 0o7777 == 0o4755, "mode {:o}", now.mode());
        is(call!(SYS_munmap, map, PAGE), 0, "munmap")?;
    }
    Ok(())
}

/// A call that remaps all that is left of a removed segment takes it away first, and with it the
/// segment.
fn of_a_removed_segment() -> Result<()> {
    let attach = || -> Result<(i64, i64)> {
        let id = call!(SYS_shmget, libc::IPC_PRIVATE, 2 * PAGE, 0o600);
        ensure!(id >= 0, "shmget: {id}");
        let at = call!(SYS_shmat, id, 0, 0);
        ensure!(at > 0, "shmat: {at}");
        Ok((id, at))
    };
    let remove = |id: i64| is(call!(SYS_shmctl, id, libc::IPC_RMID, 0), 0, "IPC_RMID");
    let (id, at) = attach()?;
    let remap = |at: i64, len: usize| call!(SYS_remap_file_pages, at, len, 0, 0, 0);
    is(remap(at, 2 * PAGE), 0, "of a segment that is there")?;
    remove(id)?;
    is(remap(at, PAGE), 0, "of a part")?;
    is(call!(SYS_munmap, at, PAGE), 0, "munmap")?;
    is(call!(SYS_munmap, at as usize + PAGE, PAGE), 0, "munmap")?;
    let (id, at) = attach()?;
    let other = call!(SYS_shmat, id, 0, 0);
    ensure!(other > 0, "a second shmat: {other}");
    remove(id)?;
    is(remap(at, 2 * PAGE), 0, "of one that is mapped twice")?;
    is(call!(SYS_shmdt, other), 0, "shmdt")?;
    fails(
        remap(at, 2 * PAGE),
        libc::EINVAL,
        "of the last of a segment",
    )?;
    fails(call!(SYS_shmdt, at), libc::EINVAL, "shmdt")
}
