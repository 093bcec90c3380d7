//! Mounts: what hangs where, by which rules, and what is shown of it.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use anyhow::{Context, Result, ensure};

use crate::credentials::in_child;
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("mounts-bind-and-move", bind_and_move),
    ("mounts-flags-act", flags_act),
    ("mounts-flags-are-shown", flags_are_shown),
    ("mounts-access-times", access_times),
    ("mounts-remount", remount_changes),
    ("mounts-tmpfs-options", tmpfs_options),
    ("mounts-propagate", propagate),
    ("mounts-slaves-and-unbindable", slaves_and_unbindable),
    ("mounts-unmount", unmount_how),
    ("mounts-errors", errors),
    ("mounts-are-watched", are_watched),
];

/// `MS_NOSYMFOLLOW`, which the C library does not name.
const NOSYMFOLLOW: libc::c_ulong = 256;
/// `ST_NOSYMFOLLOW`.
const ST_NOSYMFOLLOW: u64 = 0x2000;

pub fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).expect("no NUL")
}

pub fn mount(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    kind: &str,
    flags: libc::c_ulong,
    data: &str,
) -> io::Result<()> {
    let (source, target, kind, data) = (c(source), c(target), c(kind), c(data));
    // SAFETY: all four end in NUL.
    checked(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    })
    .map(drop)
}

pub fn unmount(target: impl AsRef<Path>, flags: i32) -> io::Result<()> {
    // SAFETY: the name ends in NUL.
    checked(unsafe { libc::umount2(c(target).as_ptr(), flags) }).map(drop)
}

pub fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

macro_rules! gives {
    ($expected:expr, $call:expr) => {
        let found = code($call);
        ensure!(
            found == Some($expected),
            "{} gives {found:?} instead of {}",
            stringify!($call),
            stringify!($expected)
        );
    };
}

/// A file system in memory to play in, which shares nothing and is gone afterwards.
pub struct Ground(Place);

impl Ground {
    pub fn new(name: &str) -> Result<Self> {
        let place = Place::new(name)?;
        mount("ground", &place.0, "tmpfs", 0, "").context("ground")?;
        mount("none", &place.0, "", libc::MS_PRIVATE, "")?;
        Ok(Self(place))
    }

    /// A new directory.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// A new directory with a file system on it, in which is a file `mark`.
    pub fn tmpfs(&self, name: &str, flags: libc::c_ulong, data: &str) -> Result<PathBuf> {
        let path = self.dir(name)?;
        mount(name, &path, "tmpfs", flags, data)
            .with_context(|| format!("{name} with {flags:#x} and {data}"))?;
        if flags & libc::MS_RDONLY == 0 {
            fs::write(path.join("mark"), name)?;
        }
        Ok(path)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // What a check has left is below.
        let _ = unmount(&self.0.0, libc::MNT_DETACH);
    }
}

/// The line of a mount in a table, by its place.
pub fn line_of(table: &str, path: &Path) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/self/{table}"))?;
    let column = if table == "mountinfo" { 4 } else { 1 };
    let name = path.to_string_lossy();
    let line = text
        .lines()
        .rfind(|line| line.split(' ').nth(column) == Some(&*name));
    Ok(line
        .with_context(|| format!("{name} is not in {text}"))?
        .to_owned())
}

/// Tags of `mountinfo` about propagation (shared, master).
pub fn tags(path: &Path) -> Result<String> {
    let line = line_of("mountinfo", path)?;
    let (own, _) = line.split_once(" - ").context("no dash")?;
    Ok(own.split(' ').skip(6).collect::<Vec<_>>().join(" "))
}

fn number(tags: &str, name: &str) -> Result<u32> {
    let found = tags
        .split(' ')
        .find_map(|tag| tag.strip_prefix(name))
        .with_context(|| format!("no {name} in {tags:?}"))?;
    Ok(found.parse()?)
}

fn is_there(path: &Path, mark: &str) -> bool {
    fs::read_to_string(path.join("mark")).is_ok_and(|text| text == mark)
}

/// Result of `statvfs(3)` for the file system at a place.
fn told(path: &Path) -> io::Result<libc::statvfs> {
    // SAFETY: numbers only; the name ends in NUL, and the buffer is of the right type.
    unsafe {
        let mut buffer: libc::statvfs = std::mem::zeroed();
        checked(libc::statvfs(c(path).as_ptr(), &mut buffer))?;
        Ok(buffer)
    }
}

fn bind_and_move() -> Result<()> {
    let ground = Ground::new("mounts-bind")?;
    let a = ground.tmpfs("a", 0, "")?;
    let inner = ground.tmpfs("a/inner", 0, "")?;
    let (b, r, m) = (ground.dir("b")?, ground.dir("r")?, ground.dir("m")?);
    mount(&a, &b, "", libc::MS_BIND, "")?;
    ensure!(
        is_there(&b, "a") && !is_there(&b.join("inner"), "a/inner"),
        "a bind brings what is mounted below"
    );
    mount(&a, &r, "", libc::MS_BIND | libc::MS_REC, "")?;
    ensure!(
        is_there(&r, "a") && is_there(&r.join("inner"), "a/inner"),
        "a recursive bind leaves out what is mounted below"
    );
    fs::write(r.join("inner/new"), "")?;
    ensure!(
        inner.join("new").exists(),
        "a bound file system is another one"
    );
    // A part of a file system.
    fs::create_dir_all(a.join("part/of"))?;
    fs::write(a.join("part/mark"), "part")?;
    let p = ground.dir("p")?;
    mount(a.join("part"), &p, "", libc::MS_BIND, "")?;
    ensure!(
        is_there(&p, "part") && line_of("mountinfo", &p)?.split(' ').nth(3) == Some("/part"),
        "a part is not shown as one"
    );
    // A file on a file.
    fs::write(ground.path("file"), "below")?;
    mount(a.join("mark"), ground.path("file"), "", libc::MS_BIND, "")?;
    ensure!(
        fs::read_to_string(ground.path("file"))? == "a",
        "a file is not bound on a file"
    );
    unmount(ground.path("file"), 0)?;
    ensure!(
        fs::read_to_string(ground.path("file"))? == "below",
        "the file below is gone"
    );
    gives!(
        libc::ENOTDIR,
        mount(a.join("mark"), &m, "", libc::MS_BIND, "")
    );
    // A tree is moved with all on it.
    let open = File::open(a.join("inner/mark"))?;
    mount(&a, &m, "", libc::MS_MOVE, "")?;
    ensure!(
        !a.join("mark").exists() && is_there(&m, "a") && is_there(&m.join("inner"), "a/inner"),
        "the tree is not moved"
    );
    let mut text = String::new();
    (&open).read_to_string(&mut text)?;
    ensure!(text == "a/inner", "an open file reads {text}");
    ensure!(
        fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&open)
        ))? == m.join("inner/mark"),
        "its name stays"
    );
    gives!(
        libc::ELOOP,
        mount(&m, m.join("part"), "", libc::MS_MOVE, "")
    );
    gives!(
        libc::EINVAL,
        mount(m.join("part"), &a, "", libc::MS_MOVE, "")
    );
    gives!(
        libc::EINVAL,
        mount(&m, ground.path("file"), "", libc::MS_MOVE, "")
    );
    gives!(libc::EBUSY, fs::remove_dir(&m));
    gives!(libc::EBUSY, fs::rename(&m, ground.path("elsewhere")));
    Ok(())
}

fn flags_act() -> Result<()> {
    let ground = Ground::new("mounts-act")?;
    let plain = ground.tmpfs("plain", 0, "")?;
    fs::copy("/proc/self/exe", plain.join("program"))?;
    fs::set_permissions(plain.join("program"), fs::Permissions::from_mode(0o755))?;
    let device = c(plain.join("null"));
    // SAFETY: the name ends in NUL.
    checked(unsafe { libc::mknod(device.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) })?;
    symlink("mark", plain.join("link"))?;
    ensure!(
        File::open(plain.join("null")).is_ok() && plain.join("link").exists(),
        "without flags something is refused"
    );
    let bound = |name: &str, flags| -> Result<PathBuf> {
        let path = ground.dir(name)?;
        mount(&plain, &path, "", libc::MS_BIND, "")?;
        mount(
            "none",
            &path,
            "",
            libc::MS_REMOUNT | libc::MS_BIND | flags,
            "",
        )
        .with_context(|| name.to_owned())?;
        Ok(path)
    };
    gives!(
        libc::EACCES,
        Command::new(bound("noexec", libc::MS_NOEXEC)?.join("program"))
            .arg("list")
            .output()
    );
    gives!(
        libc::EACCES,
        File::open(bound("nodev", libc::MS_NODEV)?.join("null"))
    );
    gives!(
        libc::ELOOP,
        File::open(bound("nosymfollow", NOSYMFOLLOW)?.join("link"))
    );
    let readonly = bound("ro", libc::MS_RDONLY)?;
    gives!(libc::EROFS, File::create(readonly.join("new")));
    gives!(
        libc::EROFS,
        OpenOptions::new().write(true).open(readonly.join("mark"))
    );
    gives!(libc::EROFS, fs::create_dir(readonly.join("dir")));
    gives!(libc::EROFS, fs::remove_file(readonly.join("mark")));
    gives!(
        libc::EROFS,
        fs::set_permissions(readonly.join("mark"), fs::Permissions::from_mode(0o600))
    );
    fs::write(plain.join("new"), "")?;
    ensure!(
        readonly.join("new").exists(),
        "the other mount shows something else"
    );
    // A file system that is read-only is so everywhere.
    mount("none", &plain, "", libc::MS_REMOUNT | libc::MS_RDONLY, "")?;
    gives!(libc::EROFS, File::create(ground.path("noexec/other")));
    Ok(())
}

fn flags_are_shown() -> Result<()> {
    let ground = Ground::new("mounts-shown")?;
    let cases: [(libc::c_ulong, &str, u64); 9] = [
        (0, "rw,relatime", libc::ST_RELATIME),
        (
            libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
            "rw,nosuid,nodev,noexec,relatime",
            0,
        ),
        (
            libc::MS_NOATIME | libc::MS_NODIRATIME,
            "rw,noatime,nodiratime",
            libc::ST_NOATIME | libc::ST_NODIRATIME,
        ),
        (libc::MS_STRICTATIME, "rw", 0),
        (libc::MS_RDONLY, "ro,relatime", libc::ST_RDONLY),
        (NOSYMFOLLOW, "rw,relatime,nosymfollow", ST_NOSYMFOLLOW),
        (
            libc::MS_SYNCHRONOUS,
            "rw,sync,relatime",
            libc::ST_SYNCHRONOUS,
        ),
        (libc::MS_DIRSYNC, "rw,dirsync,relatime", 0),
        (libc::MS_LAZYTIME, "rw,lazytime,relatime", 0),
    ];
    for (at, (flags, shown, st)) in cases.into_iter().enumerate() {
        let path = ground.tmpfs(&format!("t{at}"), flags, "size=64k")?;
        let line = line_of("mounts", &path)?;
        let options = line.split(' ').nth(3).unwrap_or_default();
        ensure!(
            options.starts_with(&format!("{shown},size=64k")),
            "{flags:#x} is shown as {options}"
        );
        let found = told(&path)?.f_flag;
        ensure!(
            found & st == st,
            "{flags:#x} is told by statfs as {found:#x}"
        );
        let info = line_of("mountinfo", &path)?;
        let fields: Vec<&str> = info.split(' ').collect();
        ensure!(
            fields[3] == "/" && fields[4] == path.to_string_lossy(),
            "{info}"
        );
        let (_, of_super) = info.split_once(" - ").context("no dash")?;
        ensure!(of_super.starts_with(&format!("tmpfs t{at} ")), "{info}");
        let dev = fs::metadata(&path)?.dev();
        ensure!(
            fields[2] == format!("{}:{}", libc::major(dev), libc::minor(dev)),
            "{info} is of {dev:#x}"
        );
        ensure!(
            of_super.contains(" ro,") == (flags & libc::MS_RDONLY != 0),
            "{info}"
        );
        for name in ["sync", "dirsync", "lazytime"] {
            ensure!(
                of_super.contains(&format!(",{name},")) == shown.contains(&format!(",{name},")),
                "{info}"
            );
        }
        let stats = fs::read_to_string("/proc/self/mountstats")?;
        let line = format!(
            "device t{at} mounted on {} with fstype tmpfs",
            path.display()
        );
        ensure!(
            stats.lines().any(|known| known.trim_end() == line),
            "{line} is not in {stats}"
        );
    }
    // What cannot stand in a field.
    let odd = ground.dir("a b\\c")?;
    mount("x y", &odd, "tmpfs", 0, "")?;
    let text = fs::read_to_string("/proc/self/mounts")?;
    ensure!(
        text.lines()
            .any(|line| line.starts_with("x\\040y ") && line.contains("/a\\040b\\134c tmpfs ")),
        "{text}"
    );
    Ok(())
}

fn access_times() -> Result<()> {
    let ground = Ground::new("mounts-times")?;
    // Long after the last change and the last reading, so that `relatime` leaves it.
    let rests = |path: &Path| -> Result<bool> {
        let times = fs::FileTimes::new();
        let at = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
        let before = at + std::time::Duration::from_secs(10);
        File::open(path)?.set_times(times.set_modified(at).set_accessed(before))?;
        let old = fs::metadata(path)?;
        // The time of the last change of all is now, before which the reading is: only where times
        // are kept strictly, or are told anew.
        if old.is_dir() {
            fs::read_dir(path)?.count();
        } else {
            fs::read(path)?;
        }
        Ok(fs::metadata(path)?.atime_nsec() == old.atime_nsec()
            && fs::metadata(path)?.atime() == old.atime())
    };
    for (name, flags, file, dir) in [
        ("noatime", libc::MS_NOATIME, true, true),
        ("nodiratime", libc::MS_NODIRATIME, false, true),
        ("strictatime", libc::MS_STRICTATIME, false, false),
        ("relatime", libc::MS_RELATIME, false, false),
    ] {
        let path = ground.tmpfs(name, flags, "")?;
        let below = path.join("dir");
        fs::create_dir(&below)?;
        fs::write(below.join("entry"), "")?;
        ensure!(rests(&path.join("mark"))? == file, "{name}: reading a file");
        ensure!(rests(&below)? == dir, "{name}: listing a directory");
    }
    // Once it was read after its last change, reading tells nothing new.
    let times = |path: &Path| -> Result<[(i64, i64); 2]> {
        let meta = fs::metadata(path)?;
        Ok([
            (meta.atime(), meta.atime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ])
    };
    let [relative, strict] = [
        ground.path("relatime/mark"),
        ground.path("strictatime/mark"),
    ];
    while times(&relative)?[0] <= times(&relative)?[1] {
        fs::read(&relative)?;
    }
    let before = times(&relative)?;
    for _ in 0..1000 {
        fs::read(&relative)?;
    }
    ensure!(
        times(&relative)? == before,
        "relative times change with each reading"
    );
    let before = times(&strict)?;
    while times(&strict)? == before {
        fs::read(&strict)?;
    }
    Ok(())
}

fn remount_changes() -> Result<()> {
    let ground = Ground::new("mounts-remount")?;
    let path = ground.tmpfs("t", libc::MS_NOATIME, "size=64k")?;
    let options = |path: &Path| -> Result<String> {
        Ok(line_of("mounts", path)?
            .split(' ')
            .nth(3)
            .unwrap_or_default()
            .to_owned())
    };
    // Times stay if nothing is said of them.
    mount(
        "none",
        &path,
        "",
        libc::MS_REMOUNT | libc::MS_NODEV,
        "size=128k",
    )?;
    ensure!(
        options(&path)?.starts_with("rw,nodev,noatime,size=128k"),
        "{}",
        options(&path)?
    );
    mount(
        "none",
        &path,
        "",
        libc::MS_REMOUNT | libc::MS_RELATIME,
        "nr_inodes=50",
    )?;
    ensure!(
        options(&path)?.starts_with("rw,relatime,size=128k,nr_inodes=50"),
        "{}",
        options(&path)?
    );
    // Not read-only while somebody writes.
    let writer = OpenOptions::new().write(true).open(path.join("mark"))?;
    gives!(
        libc::EBUSY,
        mount("none", &path, "", libc::MS_REMOUNT | libc::MS_RDONLY, "")
    );
    gives!(
        libc::EBUSY,
        mount(
            "none",
            &path,
            "",
            libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY,
            ""
        )
    );
    (&writer).write_all(b"still")?;
    let other = ground.dir("other")?;
    mount(&path, &other, "", libc::MS_BIND, "")?;
    // The writer came by another mount.
    mount(
        "none",
        &other,
        "",
        libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY,
        "",
    )?;
    ensure!(
        options(&other)?.starts_with("ro,") && options(&path)?.starts_with("rw,"),
        "{} {}",
        options(&other)?,
        options(&path)?
    );
    drop(writer);
    mount("none", &path, "", libc::MS_REMOUNT | libc::MS_RDONLY, "")?;
    gives!(libc::EROFS, File::create(path.join("x")));
    mount("none", &path, "", libc::MS_REMOUNT, "")?;
    File::create(path.join("x"))?;
    // All options, or none.
    fs::write(path.join("full"), vec![1; 100_000])?;
    gives!(
        libc::EINVAL,
        mount("none", &path, "", libc::MS_REMOUNT, "size=64k")
    );
    gives!(
        libc::EINVAL,
        mount("none", &path, "", libc::MS_REMOUNT, "nr_inodes=2")
    );
    gives!(
        libc::EINVAL,
        mount("none", &path, "", libc::MS_REMOUNT, "bogus")
    );
    ensure!(
        options(&path)?.contains(",size=128k,nr_inodes=50"),
        "{}",
        options(&path)?
    );
    gives!(
        libc::EINVAL,
        mount("none", ground.dir("t/no-mount")?, "", libc::MS_REMOUNT, "")
    );
    Ok(())
}

fn tmpfs_options() -> Result<()> {
    let ground = Ground::new("mounts-options")?;
    let sized = ground.tmpfs("sized", 0, "size=1m,mode=0750,uid=7,gid=8")?;
    let (meta, stats) = (fs::metadata(&sized)?, told(&sized)?);
    ensure!(
        meta.mode() & 0o7777 == 0o750 && (meta.uid(), meta.gid()) == (7, 8),
        "{meta:?}"
    );
    ensure!(stats.f_blocks == 256, "{} blocks", stats.f_blocks);
    let line = line_of("mounts", &sized)?;
    ensure!(line.contains(",size=1024k,mode=750,uid=7,gid=8"), "{line}");
    let blocks = ground.tmpfs("blocks", 0, "nr_blocks=16,nr_inodes=4")?;
    ensure!(
        told(&blocks)?.f_blocks == 16 && told(&blocks)?.f_files == 4,
        "limits are not kept"
    );
    let written = File::create(blocks.join("big"))?.write(&[1; 100_000])?;
    ensure!(written == 15 * 4096, "{written} bytes fit");
    // The top directory is counted, too.
    fs::write(blocks.join("last"), "")?;
    gives!(libc::ENOSPC, File::create(blocks.join("one more")));
    gives!(libc::ENOSPC, fs::create_dir(blocks.join("one more")));
    fs::remove_file(blocks.join("last"))?;
    File::create(blocks.join("again"))?;
    ensure!(
        told(&blocks)?.f_ffree == 0,
        "{} files are left",
        told(&blocks)?.f_ffree
    );
    let half = ground.tmpfs("percent", 0, "size=25%")?;
    let usual = ground.tmpfs("usual", 0, "")?;
    ensure!(
        told(&half)?.f_blocks.abs_diff(told(&usual)?.f_blocks / 2) <= 1,
        "a quarter is not half of a half"
    );
    ensure!(
        fs::metadata(&usual)?.mode() & 0o7777 == 0o1777,
        "the usual mode"
    );
    let point = ground.dir("wrong")?;
    for wrong in [
        "bogus",
        "size=1x",
        "mode=9",
        "uid=none",
        "huge=sometimes",
        "size",
    ] {
        gives!(libc::EINVAL, mount("none", &point, "tmpfs", 0, wrong));
    }
    Ok(())
}

fn propagate() -> Result<()> {
    let ground = Ground::new("mounts-shared")?;
    let a = ground.tmpfs("a", 0, "")?;
    for name in ["a/x", "a/y"] {
        ground.dir(name)?;
    }
    ensure!(
        tags(&a)?.is_empty(),
        "a private mount is shown as {}",
        tags(&a)?
    );
    mount("none", &a, "", libc::MS_SHARED, "")?;
    let b = ground.dir("b")?;
    mount(&a, &b, "", libc::MS_BIND, "")?;
    ensure!(
        number(&tags(&a)?, "shared:")? == number(&tags(&b)?, "shared:")?,
        "a bound mount is no peer"
    );
    // Both ways, and what is mounted is shared, too.
    ground.tmpfs("a/x", 0, "")?;
    ground.tmpfs("b/y", 0, "")?;
    ensure!(
        is_there(&b.join("x"), "a/x") && is_there(&a.join("y"), "b/y"),
        "mounts do not propagate"
    );
    ensure!(
        number(&tags(&a.join("x"))?, "shared:")? == number(&tags(&b.join("x"))?, "shared:")?,
        "what propagates is no peer"
    );
    // Trees, too.
    let t = ground.tmpfs("t", 0, "")?;
    ground.tmpfs("t/below", 0, "")?;
    fs::create_dir(a.join("tree"))?;
    mount(&t, a.join("tree"), "", libc::MS_BIND | libc::MS_REC, "")?;
    ensure!(
        is_there(&b.join("tree/below"), "t/below"),
        "a tree does not propagate"
    );
    gives!(libc::EBUSY, unmount(b.join("tree"), 0));
    unmount(b.join("tree"), libc::MNT_DETACH)?;
    ensure!(
        !a.join("tree/mark").exists(),
        "unmounting a tree does not propagate"
    );
    unmount(b.join("x"), 0)?;
    ensure!(!a.join("x/mark").exists(), "unmounting does not propagate");
    // A peer in use holds all.
    let open = File::open(a.join("y/mark"))?;
    gives!(libc::EBUSY, unmount(b.join("y"), 0));
    drop(open);
    unmount(b.join("y"), 0)?;
    // Nothing goes to who has left.
    mount("none", &b, "", libc::MS_PRIVATE, "")?;
    ground.tmpfs("a/x", 0, "")?;
    ensure!(
        !b.join("x/mark").exists() && tags(&b)?.is_empty(),
        "a private mount gets something"
    );
    gives!(libc::EINVAL, mount(a.join("x"), &t, "", libc::MS_MOVE, ""));
    Ok(())
}

fn slaves_and_unbindable() -> Result<()> {
    let ground = Ground::new("mounts-slaves")?;
    let a = ground.tmpfs("a", 0, "")?;
    for name in ["a/x", "a/y", "a/z"] {
        ground.dir(name)?;
    }
    mount("none", &a, "", libc::MS_SHARED, "")?;
    let [b, d] = [ground.dir("b")?, ground.dir("d")?];
    mount(&a, &b, "", libc::MS_BIND, "")?;
    mount("none", &b, "", libc::MS_SLAVE, "")?;
    let group = number(&tags(&a)?, "shared:")?;
    ensure!(tags(&b)? == format!("master:{group}"), "{}", tags(&b)?);
    ground.tmpfs("a/x", 0, "")?;
    ground.tmpfs("b/y", 0, "")?;
    ensure!(
        is_there(&b.join("x"), "a/x") && !a.join("y/mark").exists(),
        "a slave does not get or does give"
    );
    // A slave that shares passes on.
    mount("none", &b, "", libc::MS_SHARED, "")?;
    mount(&b, &d, "", libc::MS_BIND, "")?;
    let own = tags(&b)?;
    ensure!(
        number(&own, "shared:")? != group && number(&own, "master:")? == group && tags(&d)? == own,
        "{own}, {}",
        tags(&d)?
    );
    ground.tmpfs("a/z", 0, "")?;
    ensure!(
        is_there(&d.join("z"), "a/z"),
        "nothing comes through a slave"
    );
    unmount(a.join("z"), 0)?;
    ensure!(
        !d.join("z/mark").exists() && !b.join("z/mark").exists(),
        "unmounting does not go through"
    );
    // The last of the masters leaves.
    mount("none", &a, "", libc::MS_PRIVATE, "")?;
    ensure!(!tags(&b)?.contains("master"), "{}", tags(&b)?);
    mount("none", &d, "", libc::MS_SLAVE, "")?;
    ensure!(
        tags(&d)? == format!("master:{}", number(&own, "shared:")?),
        "{}",
        tags(&d)?
    );
    // What cannot be bound.
    let u = ground.tmpfs("u", 0, "")?;
    let below = ground.tmpfs("u/below", 0, "")?;
    mount("none", &below, "", libc::MS_UNBINDABLE, "")?;
    ensure!(tags(&below)? == "unbindable", "{}", tags(&below)?);
    let target = ground.dir("target")?;
    gives!(libc::EINVAL, mount(&below, &target, "", libc::MS_BIND, ""));
    mount(&u, &target, "", libc::MS_BIND | libc::MS_REC, "")?;
    ensure!(
        is_there(&target, "u") && !target.join("below/mark").exists(),
        "what cannot be bound was"
    );
    // All below.
    mount("none", &u, "", libc::MS_SHARED | libc::MS_REC, "")?;
    ensure!(
        tags(&u)?.starts_with("shared:") && tags(&below)?.starts_with("shared:"),
        "{} {}",
        tags(&u)?,
        tags(&below)?
    );
    gives!(
        libc::EINVAL,
        mount("none", &u, "", libc::MS_SHARED | libc::MS_PRIVATE, "")
    );
    gives!(
        libc::EINVAL,
        mount("none", u.join("mark"), "", libc::MS_SHARED, "")
    );
    Ok(())
}

fn unmount_how() -> Result<()> {
    let ground = Ground::new("mounts-unmount")?;
    let a = ground.tmpfs("a", 0, "")?;
    // Twice without use in between.
    gives!(libc::EAGAIN, unmount(&a, libc::MNT_EXPIRE));
    ensure!(is_there(&a, "a"), "it is gone");
    gives!(libc::EAGAIN, unmount(&a, libc::MNT_EXPIRE));
    let open = File::open(&a)?;
    gives!(libc::EBUSY, unmount(&a, libc::MNT_EXPIRE));
    drop(open);
    gives!(libc::EAGAIN, unmount(&a, libc::MNT_EXPIRE));
    unmount(&a, libc::MNT_EXPIRE)?;
    ensure!(!a.join("mark").exists(), "it is there");
    gives!(
        libc::EINVAL,
        unmount(&a, libc::MNT_EXPIRE | libc::MNT_DETACH)
    );
    // In use.
    let b = ground.tmpfs("b", 0, "")?;
    let mut open = File::open(b.join("mark"))?;
    gives!(libc::EBUSY, unmount(&b, 0));
    ground.tmpfs("b/below", 0, "")?;
    unmount(&b, libc::MNT_DETACH)?;
    ensure!(!b.join("mark").exists(), "what was detached is there");
    let mut text = String::new();
    open.read_to_string(&mut text)?;
    ensure!(text == "b", "a file of what was detached reads {text}");
    ensure!(
        !fs::read_to_string("/proc/self/mounts")?.contains("/b/below"),
        "what was mounted below is there"
    );
    let f = ground.tmpfs("f", 0, "")?;
    unmount(&f, libc::MNT_FORCE)?;
    // By a link, and not by it.
    let d = ground.tmpfs("d", 0, "")?;
    symlink(&d, ground.path("link"))?;
    gives!(
        libc::EINVAL,
        unmount(ground.path("link"), libc::UMOUNT_NOFOLLOW)
    );
    unmount(ground.path("link"), 0)?;
    Ok(())
}

fn errors() -> Result<()> {
    let ground = Ground::new("mounts-errors")?;
    let a = ground.tmpfs("a", 0, "")?;
    gives!(libc::ENODEV, mount("none", &a, "no-such-type", 0, ""));
    gives!(
        libc::ENOENT,
        mount("none", ground.path("nothing"), "tmpfs", 0, "")
    );
    gives!(libc::ENOTDIR, mount("none", a.join("mark"), "tmpfs", 0, ""));
    gives!(
        libc::ENOENT,
        mount(ground.path("nothing"), &a, "", libc::MS_BIND, "")
    );
    gives!(libc::EINVAL, mount("", &a, "", libc::MS_BIND, ""));
    gives!(libc::EINVAL, unmount(a.join("mark"), 0));
    gives!(libc::EINVAL, unmount(&a, 0x100));
    gives!(libc::ENOENT, unmount(ground.path("nothing"), 0));
    let without = |source, kind| {
        // SAFETY: null pointers are not followed; the name ends in NUL.
        checked(unsafe { libc::mount(source, c(&a).as_ptr(), kind, 0, ptr::null()) })
    };
    gives!(libc::EINVAL, without(ptr::null(), ptr::null()));
    in_child(|| {
        crate::credentials::become_user(crate::credentials::OTHER)?;
        gives!(libc::EPERM, mount("none", "/", "tmpfs", 0, ""));
        gives!(libc::EPERM, unmount("/", 0));
        gives!(libc::ENOENT, unmount("/no-such-place", 0));
        Ok(())
    })
}

/// The table of mounts tells who polls it of changes, once.
fn are_watched() -> Result<()> {
    const CHANGED: i16 = libc::POLLPRI | libc::POLLERR;
    in_child(|| {
        // SAFETY: a number.
        checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "")?;
        let place = Place::new("watched")?;
        for name in ["mounts", "mountinfo"] {
            let file = File::open(format!("/proc/self/{name}"))?;
            let changed = |milliseconds: i32| -> Result<i16> {
                let mut entry = libc::pollfd {
                    fd: file.as_raw_fd(),
                    events: libc::POLLPRI,
                    revents: 0,
                };
                // SAFETY: one valid entry.
                checked(unsafe { libc::poll(&mut entry, 1, milliseconds) })?;
                Ok(entry.revents)
            };
            ensure!(changed(0)? == 0, "{name} is changed from the beginning");
            mount("tmp", &place.0, "tmpfs", 0, "")?;
            ensure!(changed(10_000)? == CHANGED, "{name}: nothing of a mount");
            ensure!(changed(0)? == 0, "{name}: it is told twice");
            let at = c(&place.0);
            // SAFETY: a name that ends in NUL.
            checked(unsafe { libc::umount(at.as_ptr()) })?;
            ensure!(changed(10_000)? == CHANGED, "{name}: nothing of its end");
            // Who waits in a set is woken.
            let set = crate::calls::Fd::new(crate::calls::call!(SYS_epoll_create1, 0), "a set")?;
            let mut event = libc::epoll_event {
                events: (libc::EPOLLPRI | libc::EPOLLET) as u32,
                u64: 7,
            };
            let added = crate::calls::call!(
                SYS_epoll_ctl,
                set.0,
                libc::EPOLL_CTL_ADD,
                file.as_raw_fd(),
                &raw mut event
            );
            crate::calls::is(added, 0, "EPOLL_CTL_ADD")?;
            let waiter = std::thread::spawn(move || {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                let n = crate::calls::call!(SYS_epoll_wait, set.0, &raw mut event, 1, 20_000);
                (n, { event.events })
            });
            mount("tmp", &place.0, "tmpfs", 0, "")?;
            let woken = waiter.join().ok().context("the waiter")?;
            let wanted = (libc::EPOLLPRI | libc::EPOLLERR) as u32;
            ensure!(woken == (1, wanted), "{name}: {woken:?}");
            // SAFETY: a name that ends in NUL.
            checked(unsafe { libc::umount(at.as_ptr()) })?;
        }
        Ok(())
    })
}
