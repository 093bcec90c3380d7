//! Transfers past the cache (`O_DIRECT`) by pages of the program's, while other threads do to these
//! pages what they can.
//!
//! `direct-transfers DISK FILE`: what is on the disk is lost; the file is made, on ext4. With
//! `--linux` leaves out what Linux 6.1 does not promise.

use std::fs::{self, File};
use std::io::{Error, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use disk_tests::calls::{Mapping, open_direct};
use disk_tests::contents::filled;

const PAGE: usize = 4096;
/// Pages of the disk and of the file that are used.
const PAGES: usize = 64;
/// Most bytes of a request.
const WHOLE: usize = 32 * PAGE;

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_linux = arguments.first().is_some_and(|first| first == "--linux");
    if is_linux {
        arguments.remove(0);
    }
    let [disk, file] = &arguments[..] else {
        bail!("usage: direct-transfers [--linux] DISK FILE");
    };
    let (disk, file) = (Path::new(disk), Path::new(file));
    fs::write(file, vec![0xa5; PAGES * PAGE])?;
    let before = lent()?;
    for path in [disk, file] {
        every_shape(path).with_context(|| format!("shapes, {}", path.display()))?;
        agrees_with_the_cache(path).with_context(|| format!("cache, {}", path.display()))?;
        unmapped_meanwhile(path).with_context(|| format!("unmapping, {}", path.display()))?;
    }
    for path in [disk, file] {
        // Linux 6.1 counts what was read of a disk, and nothing of a file (EFAULT).
        if is_linux && path == file {
            continue;
        }
        short_of_memory(path).with_context(|| format!("a short read, {}", path.display()))?;
    }
    into_a_file_s_own_page(file).context("a mapping of a file as memory")?;
    cut_meanwhile(file).context("a file that is cut")?;
    killed_meanwhile(disk).context("a process that is killed")?;
    if !is_linux {
        forked_meanwhile(disk).context("forking")?;
        let (lent, returned) = lent()?;
        ensure!(lent > before.0, "no page was lent");
        ensure!(
            lent == returned,
            "{lent} pages were lent, {returned} came back"
        );
    }
    println!("direct transfers are as if they were copied");
    Ok(())
}

/// Pages that were lent to devices, and that have come back.
fn lent() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().parse().ok())
            .with_context(|| format!("{name} in /proc/vmstat"))
    };
    Ok((
        number("nr_foll_pin_acquired")?,
        number("nr_foll_pin_released")?,
    ))
}

fn check(memory: &Mapping, at: usize, wanted: &[u8]) -> Result<()> {
    let mut found = vec![0; wanted.len()];
    memory.load(at, &mut found);
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(n) => bail!("byte {n} is {:#x} instead of {:#x}", found[n], wanted[n]),
    }
}

/// Memory, lengths and places of all alignments bring the same bytes.
fn every_shape(path: &Path) -> Result<()> {
    let file = open_direct(path)?;
    let memory = Mapping::anonymous(2 * WHOLE)?;
    let mut key = 1;
    for at in [0, 512] {
        for len in [512, PAGE, PAGE + 512, WHOLE, WHOLE + PAGE + 1024] {
            for offset in [0, PAGE, PAGE + 512] {
                key += 1;
                let bytes = filled(key, 0, len as u64);
                memory.store(at, &bytes);
                let done = memory.write_out(at, len, &file, offset as u64)?;
                ensure!(done == len, "{done} of {len} bytes written");
                // What is beside the memory stays.
                memory.store(0, &vec![1; 2 * WHOLE]);
                let done = memory.read_in(at, len, &file, offset as u64)?;
                ensure!(done == len, "{done} of {len} bytes read");
                check(&memory, at, &bytes)
                    .with_context(|| format!("{len} bytes at {offset}, memory at {at}"))?;
                check(&memory, 0, &vec![1; at])?;
                check(&memory, at + len, &vec![1; 512])?;
            }
        }
    }
    ensure!(memory.read_in(8, PAGE, &file, 100).is_err(), "at byte 100");
    Ok(())
}

/// Cached and direct transfers of the same pages see each other's bytes.
fn agrees_with_the_cache(path: &Path) -> Result<()> {
    let direct = open_direct(path)?;
    let cached = File::options().read(true).write(true).open(path)?;
    let memory = Mapping::anonymous(4 * PAGE)?;
    let mut found = vec![0; 4 * PAGE];
    for key in 100..130 {
        // The second page is in the cache, and newer than what the disk has.
        let (ours, theirs) = (filled(key, 0, 4 * PAGE as u64), vec![key as u8; PAGE]);
        memory.store(0, &ours);
        memory.write_out(0, 4 * PAGE, &direct, 0)?;
        cached.read_exact_at(&mut found, 0)?;
        ensure!(found == ours, "a cached read, {key}");
        cached.write_all_at(&theirs, PAGE as u64)?;
        memory.read_in(0, 4 * PAGE, &direct, 0)?;
        check(&memory, PAGE, &theirs).context("a direct read of what is newer")?;
        check(&memory, 2 * PAGE, &ours[2 * PAGE..]).context("the rest of it")?;
        memory.store(0, &ours);
        memory.write_out(0, 4 * PAGE, &direct, 0)?;
        cached.read_exact_at(&mut found, 0)?;
        ensure!(
            found == ours,
            "a cached read of what was in the cache, {key}"
        );
    }
    Ok(())
}

/// Runs `work` while another thread does `other` over and over.
fn beside(
    mut other: impl FnMut() -> Result<()> + Send,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut outcome = Ok(());
            while !ends.load(Ordering::Relaxed) && outcome.is_ok() {
                outcome = other();
            }
            outcome
        });
        let done = work();
        ends.store(true, Ordering::Relaxed);
        done.and(other.join().expect("nobody panics"))
    })
}

/// Memory that is unmapped during a transfer: the transfer ends, as a whole or up to there.
fn unmapped_meanwhile(path: &Path) -> Result<()> {
    let file = open_direct(path)?;
    let bytes = filled(7, 0, 4 * PAGE as u64);
    file.write_all_at_aligned(&bytes)?;
    for round in 0..60 {
        let memory = Mapping::anonymous(4 * PAGE)?;
        memory.store(0, &vec![3; 4 * PAGE]);
        let mut is_mapped = true;
        let other = || {
            if std::mem::take(&mut is_mapped) {
                memory.unmap_page(PAGE)?;
            }
            thread::yield_now();
            Ok(())
        };
        beside(other, || {
            let read = memory.read_in(0, 4 * PAGE, &file, 0);
            match read {
                Ok(n) if n == PAGE || n == 4 * PAGE => check(&memory, 0, &bytes[..PAGE]),
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
                other => bail!("round {round}: {other:?}"),
            }
        })?;
    }
    Ok(())
}

/// Memory that ends before the read does: what does not reach it was not read, cached or not.
fn short_of_memory(path: &Path) -> Result<()> {
    let bytes = filled(9, 0, 4 * PAGE as u64);
    open_direct(path)?.write_all_at_aligned(&bytes)?;
    for mut file in [File::open(path)?, open_direct(path)?] {
        let memory = Mapping::anonymous(4 * PAGE)?;
        memory.unmap_page(2 * PAGE)?;
        let (skip, len) = (PAGE / 2, 3 * PAGE);
        let start = file.seek(SeekFrom::Start(if is_direct(&file)? { 0 } else { 100 }))?;
        let at = if start == 0 { 0 } else { skip };
        let done = memory.read_on(at, len, &file)?;
        ensure!(done == 2 * PAGE - at, "{done} bytes");
        ensure!(
            file.stream_position()? == start + done as u64,
            "the position"
        );
        check(&memory, at, &bytes[start as usize..start as usize + done])?;
        let start = file.stream_position()?;
        let error = memory.read_on(2 * PAGE, PAGE, &file).err();
        let error = error.and_then(|error| error.raw_os_error());
        ensure!(error == Some(libc::EFAULT), "{error:?}");
        ensure!(
            file.stream_position()? == start,
            "the position after an error"
        );
    }
    Ok(())
}

/// Whether a file was opened with `O_DIRECT`.
fn is_direct(file: &File) -> Result<bool> {
    Ok(rustix::fs::fcntl_getfl(file)?.contains(rustix::fs::OFlags::DIRECT))
}

/// Memory that is a shared mapping of the file itself.
fn into_a_file_s_own_page(path: &Path) -> Result<()> {
    let file = open_direct(path)?;
    let bytes = filled(8, 0, PAGES as u64 * PAGE as u64);
    file.write_all_at_aligned(&bytes)?;
    let cached = File::options().read(true).write(true).open(path)?;
    let mapping = Mapping::new(&cached, PAGES * PAGE)?;
    mapping.read_in(0, PAGES * PAGE, &cached, 0)?;
    check(&mapping, 0, &bytes).context("read from itself")?;
    mapping.read_in(PAGE, 2 * PAGE, &file, 8 * PAGE as u64)?;
    check(&mapping, PAGE, &bytes[8 * PAGE..10 * PAGE]).context("read")?;
    mapping.sync()?;
    let memory = Mapping::anonymous(2 * PAGE)?;
    memory.read_in(0, 2 * PAGE, &file, PAGE as u64)?;
    check(&memory, 0, &bytes[8 * PAGE..10 * PAGE]).context("what was read is on the disk")?;
    mapping.write_out(20 * PAGE, PAGE, &file, 20 * PAGE as u64)?;
    check(&mapping, 20 * PAGE, &bytes[20 * PAGE..21 * PAGE]).context("written to itself")
}

/// A file that is cut while it is written and read.
fn cut_meanwhile(path: &Path) -> Result<()> {
    let file = open_direct(path)?;
    let other = File::options().read(true).write(true).open(path)?;
    let cut = || {
        other.set_len(3 * PAGE as u64 + 100)?;
        other.set_len(PAGES as u64 * PAGE as u64)?;
        Ok(())
    };
    beside(cut, || {
        let memory = Mapping::anonymous(8 * PAGE)?;
        let zeros = vec![0; PAGE];
        for round in 0..200 {
            let bytes = vec![1 + round as u8; 8 * PAGE];
            memory.store(0, &bytes);
            let done = memory.write_out(0, 8 * PAGE, &file, 0)?;
            ensure!(done == 8 * PAGE, "{done} bytes written");
            let done = memory.read_in(0, 8 * PAGE, &file, 0)?;
            ensure!(done >= 3 * PAGE, "{done} bytes read");
            check(&memory, 0, &bytes[..3 * PAGE])?;
            // Behind that it is as it was, or was cut.
            let mut page = vec![0; PAGE];
            for at in (4 * PAGE..done - done % PAGE).step_by(PAGE) {
                memory.load(at, &mut page);
                ensure!(
                    page == zeros || page == bytes[..PAGE],
                    "round {round}, {at}"
                );
            }
        }
        Ok(())
    })
}

/// Processes that are killed while their memory is lent.
fn killed_meanwhile(disk: &Path) -> Result<()> {
    let file = open_direct(disk)?;
    let memory = Mapping::anonymous(8 * WHOLE)?;
    for _ in 0..20 {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "fork: {}", Error::last_os_error());
        if child == 0 {
            loop {
                for at in (0..8 * WHOLE).step_by(WHOLE) {
                    let _ = memory.read_in(at, WHOLE, &file, 0);
                }
            }
        }
        // It reads for as long as we do.
        for _ in 0..20 {
            memory.read_in(0, WHOLE, &file, 0)?;
        }
        // SAFETY: the child, which is waited for.
        let ended = unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0)
        };
        ensure!(ended == child, "waitpid: {}", Error::last_os_error());
    }
    Ok(())
}

/// A program forks, and writes to the memory of a read: it gets all that was read.
fn forked_meanwhile(disk: &Path) -> Result<()> {
    let file = open_direct(disk)?;
    let memory = Mapping::anonymous(PAGE)?;
    for number in 0..PAGES {
        memory.store(0, &vec![number as u8; PAGE]);
        memory.write_out(0, PAGE, &file, (number * PAGE) as u64)?;
    }
    let fork = || {
        // SAFETY: the child makes one system call.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "fork: {}", Error::last_os_error());
        if child == 0 {
            // SAFETY: it ends.
            unsafe { libc::_exit(0) };
        }
        // The first byte is this thread's; with it the page becomes another one.
        memory.write_byte(0);
        // SAFETY: the child, which is waited for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        Ok(())
    };
    beside(fork, || {
        for round in 0..3000 {
            let number = round % PAGES;
            memory.read_in(0, PAGE, &file, (number * PAGE) as u64)?;
            check(&memory, 1, &vec![number as u8; PAGE - 1])
                .with_context(|| format!("round {round}"))?;
        }
        Ok(())
    })
}

/// Writing a whole file or disk from its beginning.
trait WriteAligned {
    /// Writes bytes, whole pages, from memory that is aligned.
    fn write_all_at_aligned(&self, bytes: &[u8]) -> Result<()>;
}

impl WriteAligned for File {
    fn write_all_at_aligned(&self, bytes: &[u8]) -> Result<()> {
        let memory = Mapping::anonymous(bytes.len())?;
        memory.store(0, bytes);
        let done = memory.write_out(0, bytes.len(), self, 0)?;
        ensure!(done == bytes.len(), "{done} bytes written");
        Ok(())
    }
}
