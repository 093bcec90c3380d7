//! Open file descriptions: transfers that end early because the program's memory does, flags, and
//! pipes.

use std::ffi::{CString, c_int, c_void};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::files::Scratch;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("open-files-write-exactly-what-is-there", files_are_exact),
    ("open-files-of-pipes-lose-nothing", pipes_lose_nothing),
    ("open-files-of-null-see-nothing", nowhere),
    ("open-files-for-ioctl-only", for_ioctl_only),
    ("open-files-say-how-they-were-made", flags),
    ("open-files-of-the-unnamed", unnamed),
    (
        "open-files-of-named-pipes-start-empty",
        named_pipes_start_empty,
    ),
    ("pipes-have-owner-and-mode", pipe_attributes),
    ("pipes-of-a-privileged-user-grow", pipe_size),
    ("rename-leaves-a-whiteout", whiteout),
];

const PAGE: usize = 4096;

/// Two pages of which the second is not there.
struct Edge(*mut c_void);

impl Edge {
    fn new() -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, of which nobody knows.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        ensure!(start != libc::MAP_FAILED, "no memory");
        // SAFETY: the second of the two pages, in which nothing is.
        checked(unsafe { libc::munmap(start.byte_add(PAGE), PAGE) })?;
        // SAFETY: the first of them.
        unsafe { start.write_bytes(b'e', PAGE) };
        Ok(Self(start))
    }

    /// Where the last `n` bytes that are there begin.
    fn last(&self, n: usize) -> *mut c_void {
        self.0.wrapping_byte_add(PAGE - n)
    }

    fn bytes(&self, n: usize) -> Vec<u8> {
        // SAFETY: the last bytes of the page that is there.
        unsafe { std::slice::from_raw_parts(self.last(n).cast::<u8>(), n) }.to_vec()
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: the page that is left of them.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}

fn transferred(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn read(file: &impl AsRawFd, to: *mut c_void, len: usize) -> io::Result<usize> {
    // SAFETY: the kernel says so where the memory ends.
    transferred(unsafe { libc::read(file.as_raw_fd(), to, len) })
}

fn write(file: &impl AsRawFd, from: *const c_void, len: usize) -> io::Result<usize> {
    // SAFETY: as for `read`.
    transferred(unsafe { libc::write(file.as_raw_fd(), from, len) })
}

fn is_fault(result: &io::Result<usize>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT))
}

fn files_are_exact() -> Result<()> {
    let (scratch, edge) = (Scratch::new()?, Edge::new()?);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(scratch.path("file"))?;
    for (there, len) in [(7, 8), (1, 1000), (100, 300), (4000, 300_000)] {
        file.set_len(0)?;
        file.rewind()?;
        let written = write(&file, edge.last(there), len)?;
        ensure!(
            written == there,
            "{written} of {len} bytes are written where there are {there}"
        );
        ensure!(
            file.stream_position()? == there as u64,
            "the position is {} after {there} bytes",
            file.stream_position()?
        );
        fs::write(scratch.path("file"), vec![b'x'; 400_000])?;
        file.rewind()?;
        let got = read(&file, edge.last(there), len)?;
        ensure!(
            got == there,
            "{got} of {len} bytes are read into memory for {there}"
        );
        ensure!(
            file.stream_position()? == there as u64,
            "the position is {} after {there} bytes",
            file.stream_position()?
        );
        ensure!(
            edge.bytes(there) == vec![b'x'; there],
            "something else is read"
        );
    }
    file.rewind()?;
    let result = read(&file, edge.last(0), 1);
    ensure!(
        is_fault(&result) && file.stream_position()? == 0,
        "reading to nowhere: {result:?}, then at {}",
        file.stream_position()?
    );
    Ok(())
}

fn pipes_lose_nothing() -> Result<()> {
    let edge = Edge::new()?;
    for (there, len) in [(0, 1), (7, 8), (100, 300)] {
        let (mut reader, mut writer) = io::pipe()?;
        let sent: Vec<u8> = (0..len).map(|n| n as u8).collect();
        writer.write_all(&sent)?;
        let result = read(&reader, edge.last(there), len);
        ensure!(
            is_fault(&result),
            "reading {len} bytes into memory for {there}: {result:?}"
        );
        let mut received = vec![0; len];
        reader.read_exact(&mut received)?;
        ensure!(received == sent, "{received:?} are left of {len} bytes");
        let result = write(&writer, edge.last(there), len);
        ensure!(
            is_fault(&result),
            "writing {len} bytes of which there are {there}: {result:?}"
        );
        drop(writer);
        ensure!(
            reader.read(&mut received)? == 0,
            "something was written all the same"
        );
    }
    Ok(())
}

fn nowhere() -> Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    let edge = Edge::new()?;
    for len in [1, 100, 100_000] {
        let written = write(&null, edge.last(0), len)?;
        ensure!(
            written == len,
            "/dev/null takes {written} of {len} bytes that are not there"
        );
    }
    Ok(())
}

/// Opens with the access mode 3.
fn open_without_access(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: a string.
    let fd = checked(unsafe { libc::open(path.as_ptr(), libc::O_ACCMODE) })?;
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn for_ioctl_only() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "text")?;
    let file = open_without_access(&scratch.path("file"))?;
    let mut byte = [0u8];
    for result in [
        read(&file, byte.as_mut_ptr().cast(), 1),
        write(&file, byte.as_ptr().cast(), 1),
    ] {
        ensure!(
            result
                .as_ref()
                .is_err_and(|e| e.raw_os_error() == Some(libc::EBADF)),
            "with access mode 3: {result:?}"
        );
    }
    let directory = open_without_access(&scratch.0);
    let error = directory.err().and_then(|error| error.raw_os_error());
    ensure!(
        error == Some(libc::EISDIR),
        "a directory, which nobody writes, opens with {error:?}"
    );
    Ok(())
}

fn status_flags(fd: RawFd) -> io::Result<c_int> {
    // SAFETY: numbers only.
    checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

fn flags() -> Result<()> {
    const LARGE: c_int = 0o100_000;
    let file = File::open("/dev/null")?;
    ensure!(
        status_flags(file.as_raw_fd())? == LARGE,
        "an opened file has {:#o}",
        status_flags(file.as_raw_fd())?
    );
    let place = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_APPEND)
        .open("/")?;
    ensure!(
        status_flags(place.as_raw_fd())? == libc::O_PATH,
        "a place has {:#o}",
        status_flags(place.as_raw_fd())?
    );
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_DIRECT) })?;
    // SAFETY: both are new.
    let [reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let shown = (
        status_flags(reader.as_raw_fd())?,
        status_flags(writer.as_raw_fd())?,
    );
    let expected = (
        libc::O_NONBLOCK,
        libc::O_NONBLOCK | libc::O_DIRECT | libc::O_WRONLY,
    );
    ensure!(shown == expected, "the ends of a pipe have {shown:x?}");
    Ok(())
}

fn unnamed() -> Result<()> {
    let scratch = Scratch::new()?;
    let tmpfile = libc::O_TMPFILE & !libc::O_DIRECTORY;
    for flags in [
        tmpfile | libc::O_RDWR,
        libc::O_TMPFILE | libc::O_CREAT | libc::O_RDWR,
        libc::O_TMPFILE,
    ] {
        let path = CString::new(scratch.0.as_os_str().as_encoded_bytes())?;
        // SAFETY: a string.
        let result = checked(unsafe { libc::open(path.as_ptr(), flags, 0o600) });
        let error = result.err().and_then(|error| error.raw_os_error());
        ensure!(
            error == Some(libc::EINVAL),
            "flags {flags:#x} give {error:?}"
        );
    }
    Ok(())
}

fn pipe_attributes() -> Result<()> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: numbers only.
    checked(unsafe { libc::fchmod(reader.as_raw_fd(), 0o640) })?;
    // SAFETY: numbers only.
    checked(unsafe { libc::fchown(reader.as_raw_fd(), 1, 2) })?;
    let status = File::from(OwnedFd::from(writer)).metadata()?;
    let seen = (status.mode(), status.uid(), status.gid());
    ensure!(
        seen == (libc::S_IFIFO | 0o640, 1, 2),
        "the other end shows {seen:?}"
    );
    Ok(())
}

fn pipe_size() -> Result<()> {
    let (_reader, writer) = io::pipe()?;
    // SAFETY: numbers only.
    let set =
        |size: c_int| checked(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, size) });
    ensure!(
        set((1 << 20) + 1)? == 1 << 21,
        "a pipe of one byte more than everybody may have"
    );
    ensure!(
        set(0)? == PAGE as c_int,
        "a pipe of no size has another than one page"
    );
    Ok(())
}

fn whiteout() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("old"), "text")?;
    let [old, new] =
        ["old", "new"].map(|name| CString::new(scratch.path(name).as_os_str().as_encoded_bytes()));
    let (old, new) = (old?, new?);
    // SAFETY: two strings.
    checked(unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_WHITEOUT,
        )
    })?;
    ensure!(
        fs::read_to_string(scratch.path("new"))? == "text",
        "the file did not move"
    );
    let left = fs::symlink_metadata(scratch.path("old"))?;
    ensure!(
        left.file_type().is_char_device() && left.rdev() == 0,
        "in the old place is {left:?}"
    );
    Ok(())
}

fn named_pipes_start_empty() -> Result<()> {
    let scratch = Scratch::new()?;
    let path = scratch.0.join("pipe");
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the name is alive during the call.
    checked(unsafe { libc::mkfifo(name.as_ptr(), 0o600) })?;
    let both = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
    };
    let mut first = both()?;
    first.write_all(b"left")?;
    let mut reader = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)?;
    drop(first);
    let mut buf = [0; 8];
    ensure!(
        reader.read(&mut buf)? == 4,
        "what a closed writer wrote is gone while somebody reads"
    );
    ensure!(reader.read(&mut buf)? == 0, "no end without a writer");
    let mut second = both()?;
    second.write_all(b"forgotten")?;
    drop(reader);
    drop(second);
    let nothing = both()?
        .read(&mut buf)
        .err()
        .and_then(|error| error.raw_os_error());
    ensure!(
        nothing == Some(libc::EAGAIN),
        "what nobody read before the last end was closed is there: {nothing:?}"
    );
    Ok(())
}
