//! State that a program leaves behind: descriptors, signals, files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use differential::layout::MAPPING_AREA;
use differential::record::hash;

use crate::actor::ActorContext;
use crate::sys;

/// Descriptors that are looked at.
const DESCRIPTORS: i32 = 72;

/// Tells what the calling process has at its end.
pub fn tell(context: &ActorContext<'_>) {
    let left = &context.shared.left;
    let mut polled: Vec<_> = (0..DESCRIPTORS)
        .map(|fd| libc::pollfd {
            fd,
            events: 0x7ff,
            revents: 0,
        })
        .collect();
    sys::call(
        libc::SYS_poll,
        [polled.as_mut_ptr() as u64, polled.len() as u64, 0, 0, 0, 0],
    );
    // poll(2) looks at no more descriptors than a process may have.
    let open = |poll: &&libc::pollfd| {
        sys::simple(libc::SYS_fcntl, [poll.fd as u64, libc::F_GETFD as u64, 0]) >= 0
    };
    for poll in polled.iter().filter(open) {
        left.push(&format!(
            "left descriptor {}: {}\n",
            poll.fd,
            descriptor(poll)
        ));
    }
    let (mut blocked, mut pending) = (0u64, 0u64);
    sys::call(
        libc::SYS_rt_sigprocmask,
        [0, 0, &raw mut blocked as u64, 8, 0, 0],
    );
    sys::call(
        libc::SYS_rt_sigpending,
        [&raw mut pending as u64, 8, 0, 0, 0, 0],
    );
    left.push(&format!(
        "left signals: blocked {blocked:x}, pending {pending:x}\n"
    ));
    let wants = |word: &str| {
        let area = context.spec.area(&context.program.area);
        area.is_some_and(|area| area.surroundings.iter().any(|known| known == word))
    };
    if wants("maps") {
        maps().iter().for_each(|line| left.push(line));
    }
    if wants("status") {
        left.push(&status());
    }
    if wants("limits") {
        left.push(&limits());
    }
    left.push(&format!(
        "left umask: {:o}\n",
        sys::simple(libc::SYS_umask, [0o22, 0, 0])
    ));
}

/// Addresses from the playground on that are looked at.
const NEAR: std::ops::Range<u64> = MAPPING_AREA..MAPPING_AREA + (1 << 32);

/// A part of the address space.
struct Mapping {
    start: u64,
    end: u64,
    access: String,
    /// Where it begins in its file, if it has one with a name.
    offset: Option<u64>,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let (access, offset) = (words.next()?.to_owned(), hexadecimal(words.next()?)?);
        let name = words.nth(2).unwrap_or("");
        // Anonymous memory that is shared has a file that every kernel calls something else.
        let named = name.starts_with(crate::supervisor::ROOT) || name.starts_with("/memfd");
        Some(Self {
            start: hexadecimal(start)?,
            end: hexadecimal(end)?,
            access,
            offset: named.then_some(offset),
        })
    }

    /// Whether the other goes on where this ends, so that one kernel may keep as one what another
    /// keeps as two.
    fn continues(&self, next: &Self) -> bool {
        let offset = self.offset.map(|offset| offset + self.end - self.start);
        self.end == next.start && self.access == next.access && offset == next.offset
    }
}

/// Lines on the mappings of the playground.
fn maps() -> Vec<String> {
    let Ok(text) = fs::read_to_string("/proc/self/maps") else {
        return vec!["left map: unreadable\n".into()];
    };
    let mut mappings: Vec<Mapping> = Vec::new();
    for mapping in text
        .lines()
        .filter_map(Mapping::parse)
        .filter(|mapping| NEAR.contains(&mapping.start))
    {
        match mappings.last_mut() {
            Some(last) if last.continues(&mapping) => last.end = mapping.end,
            _ => mappings.push(mapping),
        }
    }
    let line = |mapping: &Mapping| {
        let offset = mapping
            .offset
            .map_or(String::new(), |offset| format!(", file at {offset:#x}"));
        let page = (mapping.start - MAPPING_AREA) >> 12;
        format!(
            "left map {page}: {} pages, access {}{offset}\n",
            (mapping.end - mapping.start) >> 12,
            mapping.access
        )
    };
    mappings.iter().map(line).collect()
}

/// Lines on who the calling process is.
fn status() -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let known = [
        "Uid",
        "Gid",
        "Groups",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
    ];
    let lines = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| known.contains(name));
    lines
        .map(|(name, value)| format!("left status {name}: {}\n", value.trim().replace('\t', " ")))
        .collect()
}

/// Lines on the limits of the calling process.
fn limits() -> String {
    let limit = |resource: u64| {
        let mut limit = [0u64; 2];
        sys::simple(
            libc::SYS_getrlimit,
            [resource, limit.as_mut_ptr() as u64, 0],
        );
        format!(
            "left limit {resource}: soft {:x}, hard {:x}\n",
            limit[0], limit[1]
        )
    };
    (0..16).map(limit).collect()
}

fn descriptor(poll: &libc::pollfd) -> String {
    let fd = poll.fd as u64;
    let control = |command: i32| sys::simple(libc::SYS_fcntl, [fd, command as u64, 0]);
    // SAFETY: all fields of a stat are numbers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    sys::simple(libc::SYS_fstat, [fd, &raw mut status as u64, 0]);
    let kind = status.st_mode & libc::S_IFMT;
    let size = if kind == libc::S_IFREG {
        status.st_size
    } else {
        0
    };
    let at = sys::simple(libc::SYS_lseek, [fd, 0, 1]);
    format!(
        "type {kind:o}, flags {:x} {:x}, at {at}, size {size}, ready {:x}",
        control(libc::F_GETFD),
        control(libc::F_GETFL),
        poll.revents
    )
}

/// Lines on the files under `directory`, sorted by name.
pub fn files(directory: &Path) -> String {
    let mut lines = String::new();
    walk(directory, "", &mut lines);
    lines
}

fn walk(directory: &Path, prefix: &str, lines: &mut String) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in names {
        let path = directory.join(&name);
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let contents = match () {
            () if metadata.is_file() => format!(
                "{} bytes, {}",
                metadata.len(),
                contents(&path, metadata.len())
            ),
            () if metadata.is_symlink() => fs::read_link(&path)
                .map_or_else(|_| "?".into(), |target| target.display().to_string()),
            () => String::new(),
        };
        let name = if name.len() > 40 {
            format!("{}…", &name[..8])
        } else {
            name
        };
        lines.push_str(&format!(
            "left file {prefix}{name}: mode {:o}, links {}, owner {} {}, {contents}\n",
            metadata.mode(),
            if metadata.is_dir() {
                0
            } else {
                metadata.nlink()
            },
            metadata.uid(),
            metadata.gid()
        ));
        if metadata.is_dir() {
            walk(&path, &format!("{prefix}{name}/"), lines);
        }
    }
}

/// A hash of the first bytes: files may have holes of any size.
fn contents(path: &Path, length: u64) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(length.min(1 << 21)).read_to_end(&mut bytes));
    read.map_or_else(
        |error| error.to_string(),
        |_| format!("{:016x}", hash(&bytes)),
    )
}
