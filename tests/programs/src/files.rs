//! Files, directories, pipes and polling.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[
    ("files-read-what-was-written", read_what_was_written),
    ("files-append-and-truncate", append_and_truncate),
    ("files-have-holes", have_holes),
    ("files-live-on-unlinked", live_on_unlinked),
    ("files-links", links),
    ("files-rename-replaces", rename_replaces),
    ("files-directory-of-1000", directory_of_1000),
    ("files-errors-have-names", errors_have_names),
    ("files-metadata", metadata),
    ("files-descriptors-are-lowest", descriptors_are_lowest),
    ("files-pipe-of-4-mib", big_pipe),
    ("files-pipe-ends", pipe_ends),
    ("files-poll", poll),
    ("files-devices", devices),
    ("files-proc-self", proc_self),
];

/// A new empty directory; removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("machine-tests-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A check that failed has said so already.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read_what_was_written() -> Result<()> {
    let scratch = Scratch::new()?;
    let text: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
    fs::write(scratch.path("text"), &text)?;
    ensure!(
        fs::read_to_string(scratch.path("text"))? == text,
        "the file reads differently"
    );
    let lines = BufReader::new(File::open(scratch.path("text"))?)
        .lines()
        .count();
    ensure!(lines == 20_000, "{lines} lines");
    let mut file = File::options()
        .read(true)
        .write(true)
        .open(scratch.path("text"))?;
    file.write_all_at(b"XYZ", 100_000)?;
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 99_999)?;
    ensure!(&bytes[1..4] == b"XYZ", "pread shows {bytes:?}");
    ensure!(
        file.stream_position()? == 0,
        "pread and pwrite moved the file offset"
    );
    ensure!(
        file.seek(SeekFrom::End(-10))? == text.len() as u64 - 10,
        "the end is elsewhere"
    );
    let mut rest = String::new();
    file.read_to_string(&mut rest)?;
    ensure!(rest == text[text.len() - 10..], "the end reads {rest:?}");
    Ok(())
}

fn append_and_truncate() -> Result<()> {
    let scratch = Scratch::new()?;
    let path = scratch.path("log");
    for n in 0..10 {
        let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
        file.seek(SeekFrom::Start(0))?;
        write!(file, "{n}")?;
    }
    ensure!(
        fs::read(&path)? == b"0123456789",
        "appending wrote elsewhere than at the end"
    );
    let file = OpenOptions::new().write(true).open(&path)?;
    file.set_len(4)?;
    ensure!(fs::read(&path)? == b"0123", "truncating kept other bytes");
    file.set_len(6)?;
    ensure!(
        fs::read(&path)? == b"0123\0\0",
        "growing did not add zeroes"
    );
    File::create(&path)?;
    ensure!(fs::read(&path)?.is_empty(), "O_TRUNC kept bytes");
    let again = OpenOptions::new().write(true).create_new(true).open(&path);
    ensure!(
        again.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists),
        "O_EXCL opened an existing file"
    );
    Ok(())
}

fn have_holes() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(scratch.path("sparse"))?;
    file.write_all_at(b"end", 64 << 20)?;
    let metadata = file.metadata()?;
    ensure!(
        metadata.len() == (64 << 20) + 3,
        "the length is {}",
        metadata.len()
    );
    ensure!(
        metadata.blocks() * 512 < 1 << 20,
        "a hole takes {} blocks",
        metadata.blocks()
    );
    let mut bytes = [1; 1000];
    file.read_exact_at(&mut bytes, 12_345_678)?;
    ensure!(bytes == [0; 1000], "a hole is not zero");
    Ok(())
}

fn live_on_unlinked() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("gone"), "still here")?;
    let mut file = File::open(scratch.path("gone"))?;
    fs::remove_file(scratch.path("gone"))?;
    ensure!(
        File::open(scratch.path("gone")).is_err_and(|error| error.kind() == ErrorKind::NotFound),
        "the name is still there"
    );
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    ensure!(
        text == "still here" && file.metadata()?.nlink() == 0,
        "it reads {text:?}"
    );
    Ok(())
}

fn links() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::create_dir_all(scratch.path("a/b/c"))?;
    fs::write(scratch.path("a/b/c/file"), "x")?;
    symlink("b/c", scratch.path("a/short"))?;
    ensure!(
        fs::read(scratch.path("a/short/file"))? == b"x",
        "a relative link leads elsewhere"
    );
    ensure!(
        fs::read_link(scratch.path("a/short"))? == Path::new("b/c"),
        "the link reads differently"
    );
    ensure!(
        fs::symlink_metadata(scratch.path("a/short"))?.is_symlink(),
        "lstat follows the link"
    );
    fs::hard_link(scratch.path("a/b/c/file"), scratch.path("other"))?;
    ensure!(
        fs::metadata(scratch.path("other"))?.nlink() == 2,
        "the link count is wrong"
    );
    let (one, other) = (
        fs::metadata(scratch.path("other"))?.ino(),
        fs::metadata(scratch.path("a/b/c/file"))?.ino(),
    );
    ensure!(
        one == other,
        "hard links have different inodes: {one}, {other}"
    );
    symlink("loop", scratch.path("loop"))?;
    let error = File::open(scratch.path("loop"))
        .map(drop)
        .expect_err("a loop leads nowhere");
    ensure!(
        error.raw_os_error() == Some(libc::ELOOP),
        "a loop of links gives: {error}"
    );
    ensure!(
        fs::canonicalize(scratch.path("a/short/../c"))? == fs::canonicalize(scratch.path("a/b/c"))?,
        "`..` after a link"
    );
    Ok(())
}

fn rename_replaces() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("old"), "old")?;
    fs::write(scratch.path("new"), "new")?;
    fs::rename(scratch.path("new"), scratch.path("old"))?;
    ensure!(
        fs::read(scratch.path("old"))? == b"new" && !scratch.path("new").exists(),
        "rename did not replace"
    );
    fs::create_dir_all(scratch.path("from/inner"))?;
    fs::rename(scratch.path("from"), scratch.path("to"))?;
    ensure!(
        scratch.path("to/inner").is_dir(),
        "a directory lost its contents"
    );
    let into_itself = fs::rename(scratch.path("to"), scratch.path("to/inner/deeper"));
    ensure!(
        into_itself.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)),
        "a directory moved into itself"
    );
    Ok(())
}

fn directory_of_1000() -> Result<()> {
    let scratch = Scratch::new()?;
    for n in 0..1000 {
        File::create(scratch.path(&format!("entry-{n:04}")))?;
    }
    let mut names = fs::read_dir(&scratch.0)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()?;
    names.sort();
    let right = names.len() == 1000
        && names
            .iter()
            .enumerate()
            .all(|(n, name)| *name == *format!("entry-{n:04}"));
    ensure!(right, "the directory lists {} names", names.len());
    let error = fs::remove_dir(&scratch.0).expect_err("a full directory stays");
    ensure!(
        error.raw_os_error() == Some(libc::ENOTEMPTY),
        "removing a full directory gives: {error}"
    );
    Ok(())
}

fn errors_have_names() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "")?;
    fs::create_dir(scratch.path("dir"))?;
    let cases: [(&str, io::Result<()>, i32); 6] = [
        (
            "open of nothing",
            File::open(scratch.path("none")).map(drop),
            libc::ENOENT,
        ),
        (
            "a file as a directory",
            File::open(scratch.path("file/x")).map(drop),
            libc::ENOTDIR,
        ),
        (
            "writing a directory",
            File::options()
                .write(true)
                .open(scratch.path("dir"))
                .map(drop),
            libc::EISDIR,
        ),
        (
            "rmdir of a file",
            fs::remove_dir(scratch.path("file")),
            libc::ENOTDIR,
        ),
        (
            "unlink of a directory",
            fs::remove_file(scratch.path("dir")),
            libc::EISDIR,
        ),
        (
            "a name of 300 letters",
            File::create(scratch.path(&"n".repeat(300))).map(drop),
            libc::ENAMETOOLONG,
        ),
    ];
    for (what, result, expected) in cases {
        let found = result.err().and_then(|error| error.raw_os_error());
        ensure!(
            found == Some(expected),
            "{what} gives {found:?} instead of {expected}"
        );
    }
    Ok(())
}

fn metadata() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(scratch.path("file"))?;
    ensure!(
        file.metadata()?.permissions().mode() & 0o777 == 0o640,
        "the mode is {:o}",
        file.metadata()?.permissions().mode()
    );
    fs::set_permissions(scratch.path("file"), fs::Permissions::from_mode(0o755))?;
    let metadata = fs::metadata(scratch.path("file"))?;
    ensure!(
        metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o755,
        "chmod left {:o}",
        metadata.permissions().mode()
    );
    let age = std::time::SystemTime::now()
        .duration_since(metadata.modified()?)
        .unwrap_or_default();
    ensure!(age < Duration::from_secs(60), "a new file is {age:?} old");
    let earlier = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(earlier)?;
    ensure!(
        fs::metadata(scratch.path("file"))?.modified()? == earlier,
        "utimensat set another time"
    );
    Ok(())
}

fn descriptors_are_lowest() -> Result<()> {
    let first = File::open("/dev/null")?;
    let second = File::open("/dev/null")?;
    let free = first.as_raw_fd();
    ensure!(
        second.as_raw_fd() == free + 1,
        "descriptors {free} and {}",
        second.as_raw_fd()
    );
    drop(first);
    let third = second.try_clone()?;
    // The clone is made above 2 at the lowest free place, which is the one just closed.
    ensure!(
        third.as_raw_fd() == free,
        "a copy of the descriptor is {} with {free} free",
        third.as_raw_fd()
    );
    // SAFETY: the call takes numbers only.
    let closed = unsafe { libc::close(900) };
    ensure!(
        closed == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF),
        "closing nothing works"
    );
    Ok(())
}

fn big_pipe() -> Result<()> {
    let (mut reader, mut writer) = io::pipe()?;
    let data: Vec<u8> = (0..4u32 << 20).map(|n| (n % 253) as u8).collect();
    let sent = data.clone();
    let sender = thread::spawn(move || {
        sent.chunks(70_001)
            .try_for_each(|chunk| writer.write_all(chunk))
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received)?;
    sender.join().expect("the thread ended well")?;
    ensure!(
        received == data,
        "{} bytes of {} came through",
        received.len(),
        data.len()
    );
    Ok(())
}

fn pipe_ends() -> Result<()> {
    let (mut reader, writer) = io::pipe()?;
    drop(writer);
    ensure!(
        reader.read(&mut [0; 10])? == 0,
        "a pipe without writer does not end"
    );
    let (reader, mut writer) = io::pipe()?;
    drop(reader);
    // The library ignores SIGPIPE, so there is an error instead.
    ensure!(
        writer
            .write(b"x")
            .is_err_and(|error| error.kind() == ErrorKind::BrokenPipe),
        "a pipe without reader takes bytes"
    );
    Ok(())
}

/// `poll` on one descriptor: what it reports within `timeout` milliseconds.
fn poll_one(fd: &impl AsRawFd, events: i16, timeout: i32) -> i16 {
    let mut polled = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut polled, 1, timeout) };
    polled.revents
}

fn poll() -> Result<()> {
    let (reader, mut writer) = io::pipe()?;
    let start = Instant::now();
    ensure!(
        poll_one(&reader, libc::POLLIN, 50) == 0 && start.elapsed() >= Duration::from_millis(50),
        "an empty pipe is ready"
    );
    ensure!(
        poll_one(&writer, libc::POLLOUT, 0) == libc::POLLOUT,
        "an empty pipe cannot be written"
    );
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        writer.write_all(b"x").map(|()| writer)
    });
    ensure!(
        poll_one(&reader, libc::POLLIN, 10_000) == libc::POLLIN,
        "a byte does not wake poll"
    );
    let writer = late.join().expect("the thread ended well")?;
    reader.try_clone()?.read_exact(&mut [0])?;
    drop(writer);
    ensure!(
        poll_one(&reader, libc::POLLIN, 10_000) & libc::POLLHUP != 0,
        "the writer's end is not reported"
    );
    Ok(())
}

fn devices() -> Result<()> {
    ensure!(
        File::open("/dev/null")?.read(&mut [0; 8])? == 0,
        "/dev/null has contents"
    );
    fs::write("/dev/null", "gone")?;
    let mut zeroes = [1; 5000];
    File::open("/dev/zero")?.read_exact(&mut zeroes)?;
    ensure!(zeroes == [0; 5000], "/dev/zero is not zero");
    let (mut one, mut other) = ([0; 32], [0; 32]);
    File::open("/dev/urandom")?.read_exact(&mut one)?;
    File::open("/dev/urandom")?.read_exact(&mut other)?;
    ensure!(
        one != other && one != [0; 32],
        "/dev/urandom repeats itself"
    );
    Ok(())
}

fn proc_self() -> Result<()> {
    let id = std::process::id();
    ensure!(
        fs::read_link("/proc/self")?.to_str() == Some(&id.to_string()),
        "/proc/self leads elsewhere"
    );
    let status = fs::read_to_string("/proc/self/status")?;
    ensure!(
        status.lines().any(|line| line == format!("Pid:\t{id}")),
        "/proc/self/status:\n{status}"
    );
    let line = fs::read("/proc/self/cmdline")?;
    ensure!(
        line.ends_with(b"\0files-proc-self\0"),
        "/proc/self/cmdline: {line:?}"
    );
    let file = File::open("/dev/null")?;
    let target = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    ensure!(
        target == Path::new("/dev/null"),
        "the descriptor leads to {}",
        target.display()
    );
    Ok(())
}
