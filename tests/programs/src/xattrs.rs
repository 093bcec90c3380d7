//! Extended attributes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::files::Scratch;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("xattrs-are-kept", are_kept),
    ("xattrs-errors-have-names", errors_have_names),
];

fn c(text: impl AsRef<[u8]>) -> CString {
    CString::new(text.as_ref()).expect("no NUL")
}

pub fn set(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c(path.as_os_str().as_bytes()), c(name));
    // SAFETY: both names end in NUL, and the value's length is given.
    checked(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    })
    .map(drop)
}

pub fn get(path: &Path, name: &str, size: usize) -> io::Result<Vec<u8>> {
    let (path, name) = (c(path.as_os_str().as_bytes()), c(name));
    let mut value = vec![0; size];
    // SAFETY: both names end in NUL, and the buffer's length is given.
    let n = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    value.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
    Ok(value)
}

fn remove(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c(path.as_os_str().as_bytes()), c(name));
    // SAFETY: both names end in NUL.
    checked(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let path = c(path.as_os_str().as_bytes());
    let mut list = vec![0u8; 4096];
    // SAFETY: the name ends in NUL, and the buffer's length is given.
    let n = unsafe { libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
    let mut names: Vec<String> = list
        .split(|&b| b == 0)
        .filter(|n| n.starts_with(b"user.") || n.starts_with(b"trusted."))
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// The kinds of attributes that files in memory have: until 6.6, Linux' had none of `user`, and
/// says so.
fn kinds(scratch: &Scratch) -> Result<Vec<&'static str>> {
    match set(&scratch.0, "user.probe", b"", 0) {
        Ok(()) => remove(&scratch.0, "user.probe")?,
        Err(error) => {
            let old = error.raw_os_error() == Some(libc::EOPNOTSUPP);
            ensure!(old && !fs::exists("/proc/skerry")?, "user.probe: {error}");
            return Ok(vec!["trusted"]);
        }
    }
    Ok(vec!["user", "trusted"])
}

fn are_kept() -> Result<()> {
    let scratch = Scratch::new()?;
    for kind in kinds(&scratch)? {
        kept_of(&scratch, kind)?;
    }
    Ok(())
}

fn kept_of(scratch: &Scratch, kind: &str) -> Result<()> {
    let [one, two, dir] = ["one", "two", "dir"].map(|name| format!("{kind}.{name}"));
    let path = scratch.path("file");
    fs::write(&path, "x")?;
    set(&path, &one, b"first value", 0)?;
    set(&path, &two, b"", libc::XATTR_CREATE)?;
    ensure!(
        names(&path)? == [&*one, &two],
        "the names are {:?}",
        names(&path)?
    );
    set(&path, &one, b"other", libc::XATTR_REPLACE)?;
    ensure!(
        get(&path, &one, 100)? == b"other" && get(&path, &two, 100)?.is_empty(),
        "the values differ"
    );
    let link = scratch.path("link");
    fs::hard_link(&path, &link)?;
    fs::rename(&path, scratch.path(kind))?;
    ensure!(
        get(&link, &one, 5)? == b"other",
        "another name of the file has other attributes"
    );
    remove(&link, &one)?;
    ensure!(
        names(&link)? == [&*two],
        "the names are {:?}",
        names(&link)?
    );
    set(&scratch.0, &dir, b"d", 0)?;
    ensure!(get(&scratch.0, &dir, 1)? == b"d", "a directory's attribute");
    Ok(fs::remove_file(link)?)
}

fn errors_have_names() -> Result<()> {
    let scratch = Scratch::new()?;
    for kind in kinds(&scratch)? {
        errors_of(&scratch, kind)?;
    }
    Ok(())
}

fn errors_of(scratch: &Scratch, kind: &str) -> Result<()> {
    let [a, b, none] = ["a", "b", "none"].map(|name| format!("{kind}.{name}"));
    let path = scratch.path("file");
    fs::write(&path, "x")?;
    set(&path, &a, b"value", 0)?;
    let cases: [(&str, io::Result<()>, i32); 7] = [
        (
            "a value that is not there",
            get(&path, &none, 10).map(drop),
            libc::ENODATA,
        ),
        ("too little room", get(&path, &a, 2).map(drop), libc::ERANGE),
        (
            "making it twice",
            set(&path, &a, b"", libc::XATTR_CREATE),
            libc::EEXIST,
        ),
        (
            "replacing nothing",
            set(&path, &b, b"", libc::XATTR_REPLACE),
            libc::ENODATA,
        ),
        ("unknown flags", set(&path, &a, b"", 8), libc::EINVAL),
        (
            "a name space that is none",
            set(&path, "nonsense.a", b"", 0),
            libc::EOPNOTSUPP,
        ),
        ("removing nothing", remove(&path, &none), libc::ENODATA),
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
