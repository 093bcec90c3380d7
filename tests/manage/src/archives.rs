//! Archives in which something was changed: the tool says what is wrong with one, or the instance
//! does, by its status; its kernel does not panic.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::random::Random;
use crate::tool::{Options, Tool};
use crate::untouched::{Untouched, entries, words};

/// Directory of the archives.
const PLACE: &str = "/tmp/archives";
/// Time that a program from a changed archive has, in microseconds: it may wait for ever.
const LIFE: u64 = 3_000_000;
/// From this status on a program, or the tool, was ended by a signal.
const BY_SIGNAL: u8 = 128;

/// Changes archives for so long.
pub(crate) fn run(seed: &str, seconds: &str) -> Result<ExitCode> {
    let (seed, time) = (seed.parse()?, Duration::from_secs(seconds.parse()?));
    let originals = make()?;
    let untouched = Untouched::now()?;
    let start = Instant::now();
    let (mut tried, mut ran, mut refused) = (0, 0, 0);
    while start.elapsed() < time {
        let mut random = Random::new(seed, tried);
        let (extension, original) = random.pick(&originals);
        let path = format!("{PLACE}/changed.{extension}");
        fs::write(&path, change(&mut random, original, extension))?;
        match start_from(&path).with_context(|| format!("archive {tried} of seed {seed}"))? {
            0 => ran += 1,
            _ => refused += 1,
        }
        tried += 1;
    }
    untouched.is_again()?;
    println!("hunt-result {tried} archives: {ran} ran all the same, {refused} did not");
    Ok(ExitCode::SUCCESS)
}

/// Runs an instance from an archive; its status.
fn start_from(path: &str) -> Result<u8> {
    let run = [
        "run",
        "--name",
        "changed",
        "--mem",
        "64M",
        "--rootfs",
        path,
        "--",
        "/bin/manage",
    ];
    let guest = ["guest", "exit", "0"];
    let tool = Tool::start(&words(&[&run[..], &guest].concat()), Options::default())?;
    let seen = tool.finish_within(Duration::from_micros(LIFE))?;
    for entry in entries()? {
        ensure!(
            entry.state != "panicked",
            "the instance's kernel panicked; the tool: {seen:?}"
        );
        Tool::start(&words(&["rm", "--force", &entry.name]), Options::default())?.finish()?;
    }
    ensure!(
        seen.status == 0 || seen.status >= BY_SIGNAL || !seen.err.is_empty(),
        "no word of what is wrong: {seen:?}"
    );
    Ok(seen.status)
}

/// A small file system as a tar and as a cpio archive.
fn make() -> Result<Vec<(&'static str, &'static [u8])>> {
    let root = Path::new(PLACE).join("root");
    for directory in ["bin", "dev", "etc", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::copy(std::env::current_exe()?, root.join("bin/manage")).context("cannot copy this")?;
    fs::write(root.join("etc/file"), "text\n")?;
    std::os::unix::fs::symlink("file", root.join("etc/link")).or_else(|error| {
        (error.kind() == std::io::ErrorKind::AlreadyExists)
            .then_some(())
            .ok_or(error)
    })?;
    let shell = |script: &str| -> Result<Vec<u8>> {
        let done = Command::new("sh")
            .args(["-c", script])
            .current_dir(&root)
            .output()?;
        ensure!(done.status.success(), "{script}: {done:?}");
        Ok(done.stdout)
    };
    let tar = shell("tar cf - .")?;
    let cpio = shell("find . | cpio -o -H newc")?;
    Ok(vec![("tar", tar.leak()), ("cpio", cpio.leak())])
}

/// An archive with a few changes, most of them in headers.
fn change(random: &mut Random, original: &[u8], extension: &str) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let header = header(random, &bytes, extension);
        let at = (header + random.below(if extension == "tar" { 512 } else { 130 }) as usize)
            .min(bytes.len() - 1);
        match random.below(8) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => {
                let number = random.pick(&[
                    &b"FFFFFFFF"[..],
                    b"80000000",
                    b"7FFFFFFF",
                    b"00000000",
                    b"77777777777",
                    b"-0000001",
                ]);
                // Fields of cpio have eight bytes from the sixth on, sizes of tar twelve from
                // number 124 on.
                let at = header
                    + match extension {
                        "tar" => random.pick(&[100, 108, 116, 124, 136, 148, 329, 337]),
                        _ => 6 + 8 * random.below(13) as usize,
                    };
                let end = (at + number.len()).min(bytes.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&number[..end - at]);
                }
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + 1 + random.below(700) as usize).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() as u64) as usize;
                bytes.splice(to..to, piece);
            }
            5 => {
                let end = (at + 1 + random.below(600) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                let name =
                    random.pick(&[&b"../x\0"[..], b"/\0", b"dev\0", b".\0", b"\0", b"a/a/a\0"]);
                let at = header + if extension == "tar" { 0 } else { 110 };
                let end = (at + name.len()).min(bytes.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&name[..end - at]);
                }
            }
            _ => bytes.extend(std::iter::repeat_n(
                random.next() as u8,
                random.below(3000) as usize,
            )),
        }
        // Else what reads an archive would hardly ever come beyond the sum of a header.
        if extension == "tar" && random.below(4) != 0 {
            seal(&mut bytes, header);
        }
    }
    bytes
}

/// Makes the sum of a tar header right, if the header is all there.
fn seal(bytes: &mut [u8], header: usize) {
    const SUM: std::ops::Range<usize> = 148..156;
    if let Some(header) = bytes.get_mut(header..header + 512) {
        header[SUM].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[SUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// Where a header is.
fn header(random: &mut Random, bytes: &[u8], extension: &str) -> usize {
    let magic: &[u8] = if extension == "tar" {
        b"ustar"
    } else {
        b"070701"
    };
    let found: Vec<usize> = bytes
        .windows(magic.len())
        .enumerate()
        .filter_map(|(at, window)| (window == magic).then_some(at))
        .collect();
    if found.is_empty() {
        return 0;
    }
    let at = random.pick(&found);
    if extension == "tar" {
        at.saturating_sub(257)
    } else {
        at
    }
}
