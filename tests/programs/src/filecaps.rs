//! Capabilities of files: what running them gives.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::credentials::{OTHER, become_user, in_child, prctl};
use crate::text_busy::Place;
use crate::xattrs::{get, set};

pub const CHECKS: &[(&str, Check)] = &[
    ("filecaps-are-given", are_given),
    ("filecaps-are-bounded", are_bounded),
    ("filecaps-values", values),
    ("filecaps-go-with-changes", go_with_changes),
];

const NAME: &str = "security.capability";
const REVISION_2: u32 = 0x0200_0000;
const REVISION_3: u32 = 0x0300_0000;
const EFFECTIVE: u32 = 1;
const BIND: u32 = 1 << 10;
const KILL: u32 = 1 << 5;

fn value(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A copy of this program.
fn program(place: &Place) -> Result<PathBuf> {
    let path = place.0.join("program");
    fs::copy("/proc/self/exe", &path).context("copying this program")?;
    Ok(path)
}

/// Effective, permitted and inheritable set of a program that runs.
fn says(path: &PathBuf) -> io::Result<String> {
    let output = Command::new(path)
        .args(["credentials-child", "caps"])
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn are_given() -> Result<()> {
    let place = Place::new("filecaps")?;
    let path = program(&place)?;
    for (words, wanted) in [
        (
            [REVISION_2 | EFFECTIVE, BIND, 0, 0, 0].as_slice(),
            "400 400 0",
        ),
        (&[REVISION_2, BIND, 0, 0, 0], "0 400 0"),
        (&[REVISION_2 | EFFECTIVE, 0, BIND, 0, 0], "0 0 0"),
        (
            &[REVISION_3 | EFFECTIVE, BIND | KILL, 0, 0, 0, 0],
            "420 420 0",
        ),
        // Where another user is root.
        (&[REVISION_3 | EFFECTIVE, BIND, 0, 0, 0, 4321], "0 0 0"),
    ] {
        set(&path, NAME, &value(words), 0)?;
        in_child(|| {
            become_user(OTHER)?;
            let said = says(&path)?;
            ensure!(said == wanted, "{words:x?}: {said} instead of {wanted}");
            let output = Command::new(&path)
                .args(["credentials-child", "dumpable"])
                .output()?;
            let (dumpable, gains) = (output.stdout != b"0", wanted != "0 0 0");
            ensure!(
                dumpable != gains,
                "{words:x?}: it can be dumped: {dumpable}"
            );
            let output = Command::new(&path)
                .args(["credentials-child", "ids"])
                .output()?;
            let ids = String::from_utf8_lossy(&output.stdout).into_owned();
            let secure = ids.ends_with("secure 1");
            ensure!(
                secure == (words[0] & EFFECTIVE != 0 && words[5..] != [4321] || gains),
                "{words:x?}: {ids}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn are_bounded() -> Result<()> {
    let place = Place::new("filecaps-bounded")?;
    let path = program(&place)?;
    set(
        &path,
        NAME,
        &value(&[REVISION_2 | EFFECTIVE, BIND | KILL, 0, 0, 0]),
        0,
    )?;
    in_child(|| {
        prctl(libc::PR_CAPBSET_DROP, 5, 0)?;
        become_user(OTHER)?;
        let refused = says(&path).err().and_then(|e| e.raw_os_error());
        ensure!(
            refused == Some(libc::EPERM),
            "a program that cannot get all that is to be effective: {refused:?}"
        );
        Ok(())
    })?;
    in_child(|| {
        become_user(OTHER)?;
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
        let said = says(&path)?;
        ensure!(said == "0 0 0", "new privileges: {said}");
        Ok(())
    })?;
    // What a program of root's gives to others is what it has been given.
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755))?;
    in_child(|| {
        become_user(OTHER)?;
        let said = says(&path)?;
        ensure!(said == "420 420 0", "set-user-id: {said}");
        Ok(())
    })
}

fn values() -> Result<()> {
    let place = Place::new("filecaps-values")?;
    let path = program(&place)?;
    for words in [
        &[REVISION_2, 0, 0, 0][..],
        &[REVISION_2, 0, 0, 0, 0, 0],
        &[REVISION_3, 0, 0, 0, 0],
        &[0x0400_0000, 0, 0, 0, 0],
        &[0],
    ] {
        let refused = set(&path, NAME, &value(words), 0)
            .err()
            .and_then(|e| e.raw_os_error());
        ensure!(refused == Some(libc::EINVAL), "{words:x?}: {refused:?}");
    }
    set(&path, NAME, &value(&[REVISION_3, BIND, 0, 0, 0, 0]), 0)?;
    ensure!(
        get(&path, NAME, 64)? == value(&[REVISION_2, BIND, 0, 0, 0]),
        "with the only root there is"
    );
    let other = value(&[REVISION_3, BIND, 0, 0, 0, 4321]);
    set(&path, NAME, &other, 0)?;
    ensure!(get(&path, NAME, 64)? == other, "with another root");
    in_child(|| {
        become_user(OTHER)?;
        let refused = set(&path, NAME, &other, 0)
            .err()
            .and_then(|e| e.raw_os_error());
        ensure!(
            refused == Some(libc::EPERM),
            "an ordinary user: {refused:?}"
        );
        Ok(())
    })
}

fn go_with_changes() -> Result<()> {
    let place = Place::new("filecaps-changes")?;
    let path = place.0.join("file");
    let gone = |what: &str| -> Result<()> {
        let left = get(&path, NAME, 64).err().and_then(|e| e.raw_os_error());
        ensure!(left == Some(libc::ENODATA), "after {what}: {left:?}");
        Ok(())
    };
    let give = || set(&path, NAME, &value(&[REVISION_2, BIND, 0, 0, 0]), 0);
    fs::write(&path, "text")?;
    give()?;
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, b"more"))?;
    gone("a write")?;
    give()?;
    std::os::unix::fs::chown(&path, Some(OTHER), None)?;
    gone("chown")?;
    give()?;
    fs::OpenOptions::new().write(true).open(&path)?.set_len(2)?;
    gone("truncation")?;
    give()?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    ensure!(
        get(&path, NAME, 64).is_ok() && fs::metadata(&path)?.mode() & 0o777 == 0o600,
        "chmod takes them away"
    );
    Ok(())
}
