//! Watching files and directories: `inotify`.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use libc::{
    IN_ACCESS, IN_ALL_EVENTS, IN_ATTRIB, IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, IN_CREATE, IN_DELETE,
    IN_DELETE_SELF, IN_IGNORED, IN_ISDIR, IN_MODIFY, IN_MOVE_SELF, IN_MOVED_FROM, IN_MOVED_TO,
    IN_OPEN,
};

use crate::Check;
use crate::files::Scratch;

pub const CHECKS: &[(&str, Check)] = &[
    ("inotify-a-directory", a_directory),
    ("inotify-a-file", a_file),
    ("inotify-moves", moves),
    ("inotify-what-goes-away", what_goes_away),
    ("inotify-with-flags", with_flags),
    ("inotify-wakes-readers", wakes_readers),
    ("inotify-overflows", overflows),
    ("inotify-descriptors-tell", descriptors_tell),
];

struct Watcher(File);

#[derive(Debug, PartialEq, Eq)]
struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: String,
}

impl Watcher {
    fn new() -> Result<Self> {
        // SAFETY: the call takes flags only.
        let fd =
            crate::checked(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    fn add(&self, path: &Path, mask: u32) -> io::Result<i32> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the name ends in NUL.
        crate::checked(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), mask) })
    }

    fn remove(&self, wd: i32) -> io::Result<i32> {
        // SAFETY: the call takes numbers only.
        crate::checked(unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), wd) })
    }

    fn events(&mut self) -> Result<Vec<Event>> {
        let mut buf = vec![0; 1 << 20];
        let len = match self.0.read(&mut buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Vec::new()),
            read => read?,
        };
        let mut rest = &buf[..len];
        let mut events = Vec::new();
        while let Some((header, behind)) = rest.split_first_chunk::<16>() {
            let word =
                |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
            let (name, behind) = behind
                .split_at_checked(word(12) as usize)
                .context("a name reaches beyond the events")?;
            let name = String::from_utf8(name.iter().copied().take_while(|&b| b != 0).collect())?;
            events.push(Event {
                wd: word(0).cast_signed(),
                mask: word(4),
                cookie: word(8),
                name,
            });
            rest = behind;
        }
        Ok(events)
    }

    /// Checks that the next events are these.
    fn expect(&mut self, expected: &[(i32, u32, &str)]) -> Result<()> {
        let events = self.events()?;
        let found: Vec<(i32, u32, &str)> =
            events.iter().map(|e| (e.wd, e.mask, &e.name[..])).collect();
        ensure!(
            found == expected,
            "the events are {found:x?} instead of {expected:x?}"
        );
        Ok(())
    }
}

fn a_directory() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut watcher = Watcher::new()?;
    let wd = watcher.add(&scratch.0, IN_ALL_EVENTS)?;
    fs::write(scratch.path("file"), "x")?;
    watcher.expect(&[
        (wd, IN_CREATE, "file"),
        (wd, IN_OPEN, "file"),
        (wd, IN_MODIFY, "file"),
        (wd, IN_CLOSE_WRITE, "file"),
    ])?;
    fs::create_dir(scratch.path("dir"))?;
    fs::hard_link(scratch.path("file"), scratch.path("link"))?;
    std::os::unix::fs::symlink("file", scratch.path("symlink"))?;
    watcher.expect(&[
        (wd, IN_CREATE | IN_ISDIR, "dir"),
        (wd, IN_CREATE, "link"),
        (wd, IN_CREATE, "symlink"),
    ])?;
    let mut text = String::new();
    File::open(scratch.path("link"))?.read_to_string(&mut text)?;
    watcher.expect(&[
        (wd, IN_OPEN, "link"),
        (wd, IN_ACCESS, "link"),
        (wd, IN_CLOSE_NOWRITE, "link"),
    ])?;
    fs::set_permissions(
        scratch.path("file"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )?;
    watcher.expect(&[(wd, IN_ATTRIB, "file")])?;
    fs::remove_file(scratch.path("file"))?;
    fs::remove_dir(scratch.path("dir"))?;
    watcher.expect(&[(wd, IN_DELETE, "file"), (wd, IN_DELETE | IN_ISDIR, "dir")])
}

fn a_file() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "x")?;
    let mut watcher = Watcher::new()?;
    let wd = watcher.add(&scratch.path("file"), IN_ALL_EVENTS)?;
    let mut file = File::options()
        .read(true)
        .write(true)
        .open(scratch.path("file"))?;
    file.write_all(b"one")?;
    file.write_all(b"two")?;
    // The second says the same as the first.
    watcher.expect(&[(wd, IN_OPEN, ""), (wd, IN_MODIFY, "")])?;
    file.set_len(1)?;
    drop(file);
    fs::hard_link(scratch.path("file"), scratch.path("other"))?;
    watcher.expect(&[
        (wd, IN_MODIFY, ""),
        (wd, IN_CLOSE_WRITE, ""),
        (wd, IN_ATTRIB, ""),
    ])?;
    watcher.remove(wd)?;
    fs::write(scratch.path("file"), "y")?;
    watcher.expect(&[(wd, IN_IGNORED, "")])?;
    ensure!(
        watcher
            .remove(wd)
            .is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)),
        "a watch ends twice"
    );
    Ok(())
}

fn moves() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::create_dir(scratch.path("from"))?;
    fs::create_dir(scratch.path("to"))?;
    fs::write(scratch.path("from/a"), "x")?;
    let mut watcher = Watcher::new()?;
    let from = watcher.add(&scratch.path("from"), IN_ALL_EVENTS)?;
    let to = watcher.add(&scratch.path("to"), IN_ALL_EVENTS)?;
    let own = watcher.add(&scratch.path("from/a"), IN_MOVE_SELF)?;
    fs::rename(scratch.path("from/a"), scratch.path("to/b"))?;
    let events = watcher.events()?;
    let [left, came, itself] = &events[..] else {
        bail!("{} events: {events:?}", events.len())
    };
    ensure!(
        left.cookie != 0 && left.cookie == came.cookie && itself.cookie == 0,
        "the cookies: {events:?}"
    );
    let right = (left.wd, left.mask, &left.name[..]) == (from, IN_MOVED_FROM, "a")
        && (came.wd, came.mask, &came.name[..]) == (to, IN_MOVED_TO, "b")
        && (itself.wd, itself.mask, &itself.name[..]) == (own, IN_MOVE_SELF, "");
    ensure!(right, "the events are {events:?}");
    fs::rename(scratch.path("to"), scratch.path("elsewhere"))?;
    watcher.expect(&[(to, IN_MOVE_SELF, "")])
}

fn what_goes_away() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "x")?;
    fs::create_dir(scratch.path("dir"))?;
    let mut watcher = Watcher::new()?;
    let file_wd = watcher.add(&scratch.path("file"), IN_ATTRIB | IN_DELETE_SELF)?;
    let dir_wd = watcher.add(&scratch.path("dir"), IN_DELETE_SELF)?;
    let open = File::open(scratch.path("file"))?;
    fs::remove_file(scratch.path("file"))?;
    watcher.expect(&[(file_wd, IN_ATTRIB, "")])?;
    drop(open);
    watcher.expect(&[(file_wd, IN_DELETE_SELF, ""), (file_wd, IN_IGNORED, "")])?;
    fs::remove_dir(scratch.path("dir"))?;
    watcher.expect(&[(dir_wd, IN_DELETE_SELF, ""), (dir_wd, IN_IGNORED, "")])
}

fn with_flags() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "x")?;
    let mut watcher = Watcher::new()?;
    let code = |result: io::Result<i32>| result.err().and_then(|e| e.raw_os_error());
    ensure!(
        code(watcher.add(&scratch.path("file"), libc::IN_ONLYDIR | IN_OPEN)) == Some(libc::ENOTDIR),
        "IN_ONLYDIR of a file"
    );
    ensure!(
        code(watcher.add(&scratch.path("none"), IN_OPEN)) == Some(libc::ENOENT),
        "a watch of nothing"
    );
    ensure!(
        code(watcher.add(&scratch.path("file"), 0)) == Some(libc::EINVAL),
        "a watch for nothing"
    );
    let wd = watcher.add(&scratch.path("file"), IN_CLOSE_WRITE)?;
    ensure!(
        watcher.add(&scratch.path("file"), IN_OPEN | libc::IN_MASK_ADD)? == wd,
        "the watch is another"
    );
    ensure!(
        code(watcher.add(&scratch.path("file"), IN_OPEN | libc::IN_MASK_CREATE))
            == Some(libc::EEXIST),
        "it is made twice"
    );
    drop(File::options().write(true).open(scratch.path("file"))?);
    watcher.expect(&[(wd, IN_OPEN, ""), (wd, IN_CLOSE_WRITE, "")])?;
    ensure!(
        watcher.add(&scratch.path("file"), IN_OPEN | libc::IN_ONESHOT)? == wd,
        "the watch is another"
    );
    drop(File::open(scratch.path("file"))?);
    drop(File::open(scratch.path("file"))?);
    watcher.expect(&[(wd, IN_OPEN, ""), (wd, IN_IGNORED, "")])?;
    // A buffer for less than one event.
    watcher.add(&scratch.path("file"), IN_OPEN)?;
    drop(File::open(scratch.path("file"))?);
    ensure!(
        watcher
            .0
            .read(&mut [0; 8])
            .is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)),
        "half an event is read"
    );
    let mut waiting = 0;
    // SAFETY: the argument is a valid integer.
    crate::checked(unsafe { libc::ioctl(watcher.0.as_raw_fd(), libc::FIONREAD, &mut waiting) })?;
    ensure!(waiting == 16, "{waiting} bytes wait");
    Ok(())
}

fn wakes_readers() -> Result<()> {
    let scratch = Scratch::new()?;
    // SAFETY: the call takes flags only.
    let fd = crate::checked(unsafe { libc::inotify_init1(libc::IN_CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let mut watcher = Watcher(unsafe { File::from_raw_fd(fd) });
    let wd = watcher.add(&scratch.0, IN_CREATE)?;
    let path = scratch.path("late");
    let maker = std::thread::spawn(move || File::create(path));
    watcher.expect(&[(wd, IN_CREATE, "late")])?;
    maker.join().expect("the thread ended well")?;
    Ok(())
}

fn overflows() -> Result<()> {
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")?
        .trim()
        .parse()?;
    let scratch = Scratch::new()?;
    fs::write(scratch.path("a"), "")?;
    fs::write(scratch.path("b"), "")?;
    let mut watcher = Watcher::new()?;
    watcher.add(&scratch.0, IN_OPEN)?;
    for n in 0..limit + 10 {
        File::open(scratch.path(if n % 2 == 0 { "a" } else { "b" }))?;
    }
    let mut events = Vec::new();
    loop {
        match watcher.events()? {
            more if more.is_empty() => break,
            more => events.extend(more),
        }
    }
    ensure!(
        events.len() == limit + 1,
        "{} events of at most {limit}",
        events.len()
    );
    let last = events.last().context("no event")?;
    ensure!(
        last.wd == -1 && last.mask == libc::IN_Q_OVERFLOW,
        "the last event is {last:?}"
    );
    Ok(())
}

/// `/proc/self/fdinfo` names each watch.
fn descriptors_tell() -> Result<()> {
    let place = Scratch::new()?;
    let watcher = Watcher::new()?;
    let wd = watcher.add(&place.0, libc::IN_CREATE | libc::IN_DELETE)?;
    let meta = fs::metadata(&place.0)?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", watcher.0.as_raw_fd()))?;
    let line = text
        .lines()
        .find(|line| line.starts_with("inotify "))
        .with_context(|| text.clone())?;
    let wanted = format!(
        "inotify wd:{wd:x} ino:{:x} sdev:{:x} mask:300 ignored_mask:0 ",
        meta.ino(),
        libc::major(meta.dev()) << 20 | libc::minor(meta.dev())
    );
    ensure!(line.starts_with(&wanted), "{line}, not {wanted}");
    ensure!(
        text.starts_with("pos:\t0\nflags:\t")
            && text.contains("\nmnt_id:\t")
            && text.contains("\nino:\t"),
        "{text}"
    );
    Ok(())
}
