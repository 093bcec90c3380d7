//! Files of a process in `/proc`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::{io, process, ptr, thread};

use anyhow::{Context, Result, ensure};

use crate::calls::{call, is};
use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("proc-kinds-of-memory", kinds_of_memory),
    (
        "proc-oom-adjustment-has-a-minimum",
        oom_adjustment_has_a_minimum,
    ),
    ("proc-pagemap", pagemap),
    ("proc-files-that-are-mapped", mapped_files),
    ("proc-names-of-threads", names_of_threads),
    ("proc-threads-that-have-ended", threads_that_have_ended),
    ("proc-threads-have-their-own", threads_have_their_own),
    ("proc-transfers", transfers),
    ("proc-children", children),
    ("proc-small-files", small_files),
    ("proc-low-layout", low_layout),
    ("proc-sum-of-areas", sum_of_areas),
    (
        "proc-pages-of-files-have-their-owner",
        pages_of_files_have_their_owner,
    ),
];

const PAGE: usize = 4096;

/// A field of a file of `Name: value` lines, as a number.
fn field(file: &str, name: &str) -> Result<usize> {
    field_of(&fs::read_to_string(file)?, name).with_context(|| file.to_owned())
}

/// A field of the text of such a file.
fn field_of(text: &str, name: &str) -> Result<usize> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let line = line.with_context(|| format!("there is no {name}"))?;
    Ok(line
        .split_whitespace()
        .next()
        .context("no value")?
        .parse()?)
}

fn map(len: usize, flags: i32, file: Option<&File>) -> Result<*mut u8> {
    use std::os::fd::AsRawFd;
    let (fd, flags) = file.map_or((-1, flags | libc::MAP_ANONYMOUS), |file| {
        (file.as_raw_fd(), flags)
    });
    // SAFETY: a place of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    ensure!(
        at != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    Ok(at.cast())
}

/// Reads, or writes, a byte of each page.
fn touch(at: *mut u8, pages: usize, write: bool) {
    for page in 0..pages {
        // SAFETY: the mapping has that many pages.
        unsafe {
            let byte = at.add(page * PAGE);
            if write {
                byte.write_volatile(1);
            } else {
                _ = byte.read_volatile();
            }
        }
    }
}

fn kinds_of_memory() -> Result<()> {
    const PAGES: usize = 4096;
    in_child(|| {
        let path = std::env::temp_dir().join(format!("mapped-{}", process::id()));
        fs::write(&path, vec![7; PAGES * PAGE])?;
        let file = File::options().read(true).write(true).open(&path)?;
        fs::remove_file(&path)?;
        // Files in memory count as shared memory on Linux.
        let kinds = || -> Result<[usize; 2]> {
            // Of one moment: this program's own code comes into memory as it runs.
            let text = fs::read_to_string("/proc/self/status")?;
            let [all, anonymous, file, shared] = ["VmRSS", "RssAnon", "RssFile", "RssShmem"]
                .map(|name| field_of(&text, name).unwrap_or(usize::MAX / 8));
            ensure!(
                all.abs_diff(anonymous + file + shared) < 256,
                "{anonymous} + {file} + {shared} is not {all}"
            );
            Ok([anonymous / 4, (all - anonymous) / 4])
        };
        // Linux counts in batches of up to 64 faults of each thread, and a fault can bring 16
        // pages.
        let close = |now: [usize; 2], then: [usize; 2]| {
            now.iter()
                .zip(then)
                .all(|(now, then)| now.abs_diff(then) <= PAGES / 3)
        };
        let [anonymous, shown] = kinds()?;
        let private = map(PAGES * PAGE, libc::MAP_PRIVATE, Some(&file))?;
        touch(private, PAGES, false);
        ensure!(
            close(kinds()?, [anonymous, shown + PAGES]),
            "a file read privately: {:?} after {anonymous} {shown}",
            kinds()?
        );
        touch(private, PAGES / 2, true);
        let then = [anonymous + PAGES / 2, shown + PAGES / 2];
        ensure!(
            close(kinds()?, then),
            "half of it written to: {:?}, not {then:?}",
            kinds()?
        );
        let own = map(PAGES * PAGE, libc::MAP_PRIVATE, None)?;
        touch(own, PAGES, true);
        let then = [then[0] + PAGES, then[1]];
        ensure!(
            close(kinds()?, then),
            "anonymous memory: {:?}, not {then:?}",
            kinds()?
        );
        let shared = map(PAGES * PAGE, libc::MAP_SHARED, None)?;
        touch(shared, PAGES, true);
        let then = [then[0], then[1] + PAGES];
        ensure!(
            close(kinds()?, then),
            "shared memory: {:?}, not {then:?}",
            kinds()?
        );
        let statm = fs::read_to_string("/proc/self/statm")?;
        let pages = statm
            .split_whitespace()
            .nth(2)
            .context("too short")?
            .parse::<usize>()?;
        ensure!(
            pages.abs_diff(then[1]) <= PAGES / 3,
            "statm says {pages}, not {}",
            then[1]
        );
        let (peak, size) = (
            field("/proc/self/status", "VmPeak")?,
            field("/proc/self/status", "VmSize")?,
        );
        // SAFETY: these are this function's.
        unsafe {
            for at in [private, own, shared] {
                libc::munmap(at.cast(), PAGES * PAGE);
            }
        }
        let now = field("/proc/self/status", "VmSize")?;
        ensure!(
            field("/proc/self/status", "VmPeak")? >= peak.max(size) && now < size,
            "the most there was is forgotten"
        );
        Ok(())
    })
}

fn pagemap() -> Result<()> {
    let at = map(4 * PAGE, libc::MAP_PRIVATE, None)?;
    touch(at, 2, true);
    let file = File::open("/proc/self/pagemap")?;
    let mut bytes = [0; 32];
    let offset = (at.addr() / PAGE * 8) as u64;
    ensure!(file.read_at(&mut bytes, offset)? == 32, "it is short");
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight")))
        .collect();
    ensure!(
        words.iter().map(|word| word >> 63).collect::<Vec<_>>() == [1, 1, 0, 0],
        "{words:x?}"
    );
    ensure!(
        words[0] >> 56 & 0b10_0001 == 1,
        "own memory is {:#x}",
        words[0]
    );
    let code = pagemap as fn() -> Result<()> as usize;
    ensure!(
        file.read_at(&mut bytes[..8], (code / PAGE * 8) as u64)? == 8,
        "it is short"
    );
    let word = u64::from_ne_bytes(bytes[..8].try_into()?);
    ensure!(word >> 61 & 0b101 == 0b101, "code is {word:#x}");
    ensure!(
        file.read_at(&mut bytes[..7], offset).is_err()
            && file.read_at(&mut bytes, offset + 1).is_err(),
        "half words"
    );
    Ok(())
}

fn mapped_files() -> Result<()> {
    let own = fs::read_link("/proc/self/exe")?;
    let mut found = 0;
    for entry in fs::read_dir("/proc/self/map_files")? {
        let path = entry?.path();
        found += usize::from(fs::read_link(&path)? == own);
    }
    ensure!(found > 0, "{own:?} is not there");
    let text = fs::read_to_string("/proc/self/numa_maps")?;
    ensure!(
        text.lines()
            .all(|line| line.split_whitespace().nth(1).is_some()),
        "{text}"
    );
    ensure!(
        text.contains("N0=") && text.contains(&format!("file={}", own.display())),
        "{text}"
    );
    Ok(())
}

/// A thread that waits until it is told to end, and its number.
fn with_thread(check: impl FnOnce(i32) -> Result<()>) -> Result<()> {
    let ((tell, told), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
    thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: the call takes nothing.
            let sent = tell.send(unsafe { libc::gettid() });
            sent.is_ok().then(|| ends.recv())
        });
        let result = check(told.recv()?);
        drop(end);
        result
    })
}

fn threads_that_have_ended() -> Result<()> {
    let mut kept = None;
    with_thread(|tid| {
        for name in ["stat", "status", "comm", "io"] {
            fs::read_to_string(format!("/proc/self/task/{tid}/{name}"))
                .with_context(|| format!("{name} of a thread"))?;
        }
        let status = fs::File::open(format!("/proc/self/task/{tid}/status"))?;
        kept = Some((tid, status));
        Ok(())
    })?;
    let (tid, status) = kept.context("no thread")?;
    // It is heard of before the kernel is quite done with it.
    while fs::exists(format!("/proc/self/task/{tid}"))? {
        thread::yield_now();
    }
    let error = status
        .read_at(&mut [0; 64], 0)
        .err()
        .and_then(|error| error.raw_os_error());
    ensure!(
        error == Some(libc::ESRCH),
        "the state of a thread that has ended: {error:?}"
    );
    Ok(())
}

fn names_of_threads() -> Result<()> {
    with_thread(|tid| {
        let path = format!("/proc/self/task/{tid}/comm");
        let before = fs::read_to_string("/proc/self/comm")?;
        fs::write(&path, "a worker with a long name")?;
        ensure!(
            fs::read_to_string(&path)? == "a worker with a\n",
            "{:?}",
            fs::read_to_string(&path)?
        );
        let status = fs::read_to_string(format!("/proc/self/task/{tid}/status"))?;
        ensure!(status.starts_with("Name:\ta worker with a\n"), "{status}");
        ensure!(
            fs::read_to_string("/proc/self/comm")? == before,
            "the process has its thread's name"
        );
        in_child(|| {
            // SAFETY: the call takes nothing.
            let parent = unsafe { libc::getppid() };
            let refused = fs::write(format!("/proc/{parent}/comm"), "x")
                .err()
                .and_then(|e| e.raw_os_error());
            ensure!(refused == Some(libc::EINVAL), "another's name: {refused:?}");
            Ok(())
        })
    })
}

fn threads_have_their_own() -> Result<()> {
    in_child(|| {
        with_thread(|tid| {
            // SAFETY: plain old data, and numbers.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigaddset(&mut set, libc::SIGUSR2);
                checked(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()))?;
                checked(libc::syscall(
                    libc::SYS_tgkill,
                    libc::getpid(),
                    libc::gettid(),
                    libc::SIGUSR2,
                ) as i32)?;
            }
            let bits = |path: &str, name: &str| -> Result<u64> {
                let text = fs::read_to_string(path)?;
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
                    .context("no such line")?;
                Ok(u64::from_str_radix(line, 16)?)
            };
            let other = format!("/proc/self/task/{tid}/status");
            let mask = 1 << (libc::SIGUSR2 - 1);
            let own =
                bits("/proc/self/status", "SigPnd")? & bits("/proc/self/status", "SigBlk")? & mask;
            ensure!(
                own != 0 && bits("/proc/self/status", "ShdPnd")? & mask == 0,
                "it is the process's"
            );
            ensure!(
                (bits(&other, "SigPnd")? | bits(&other, "SigBlk")?) & mask == 0,
                "it is the other thread's"
            );
            ensure!(
                field(&other, "Pid")? == tid as usize
                    && field(&other, "Tgid")? == process::id() as usize,
                "numbers"
            );
            // It waits sooner or later.
            while field(&other, "voluntary_ctxt_switches")? == 0 {
                thread::yield_now();
            }
            Ok(())
        })
    })
}

fn transfers() -> Result<()> {
    in_child(|| {
        let of = |name| field("/proc/self/io", name);
        let [read, written, reads, writes] =
            [of("rchar")?, of("wchar")?, of("syscr")?, of("syscw")?];
        let mut bytes = vec![0; 5000];
        let zero = File::open("/dev/zero")?;
        let null = File::options().write(true).open("/dev/null")?;
        for _ in 0..10 {
            io::Read::read_exact(&mut &zero, &mut bytes)?;
            io::Write::write_all(&mut &null, &bytes)?;
        }
        let [more_read, more_written] = [of("rchar")? - read, of("wchar")? - written];
        // Reading this file is reading, too.
        ensure!(
            (50_000..60_000).contains(&more_read) && more_written == 50_000,
            "{more_read} and {more_written} bytes"
        );
        ensure!(
            of("syscr")? >= reads + 10 && of("syscw")? == writes + 10,
            "calls"
        );
        for _ in 0..100_000 {
            io::Write::write_all(&mut &null, &bytes[..1])?;
        }
        // By samples, if the kernel does so.
        ensure!(
            of("wchar")? > written + 50_000 && of("syscw")? > writes + 10,
            "short ones are not counted"
        );
        Ok(())
    })
}

fn children() -> Result<()> {
    in_child(|| {
        // SAFETY: the program has one thread, and the child ends at once.
        let child = unsafe {
            match checked(libc::fork())? {
                0 => libc::_exit(0),
                child => child,
            }
        };
        let path = format!("/proc/self/task/{}/children", process::id());
        ensure!(
            fs::read_to_string(&path)? == format!("{child} "),
            "{:?}",
            fs::read_to_string(&path)?
        );
        // SAFETY: no place for the status.
        checked(unsafe { libc::waitpid(child, ptr::null_mut(), 0) })?;
        ensure!(fs::read_to_string(&path)?.is_empty(), "it is still there");
        Ok(())
    })
}

/// The adjustment comes back to the last one that somebody with the power over resources chose, and
/// no further.
fn oom_adjustment_has_a_minimum() -> Result<()> {
    const CAP_SYS_RESOURCE: u32 = 24;
    let (score, older) = ("/proc/self/oom_score_adj", "/proc/self/oom_adj");
    let refused = |file: &str, text: &str| -> Result<()> {
        let error = fs::write(file, text)
            .err()
            .and_then(|error| error.raw_os_error());
        ensure!(error == Some(libc::EACCES), "{text} to {file}: {error:?}");
        Ok(())
    };
    in_child(|| {
        fs::write(score, "-500")?;
        fs::write(score, "-400")?;
        let header = [0x2008_0522u32, 0];
        let mut sets = [0u32; 6];
        is(
            call!(SYS_capget, header.as_ptr(), sets.as_mut_ptr()),
            0,
            "capget",
        )?;
        sets[0] &= !(1 << CAP_SYS_RESOURCE);
        is(
            call!(SYS_capset, header.as_ptr(), sets.as_ptr()),
            0,
            "capset",
        )?;
        in_child(|| {
            fs::write(score, "300")?;
            fs::write(score, "-400")?;
            refused(score, "-401")
        })?;
        fs::write(score, "1000")?;
        fs::write(score, "0")?;
        // By the older file only upwards.
        refused(older, "-1")?;
        fs::write(older, "1")?;
        refused(older, "0")?;
        fs::write(score, "-400")?;
        refused(score, "-500")
    })
}

fn small_files() -> Result<()> {
    in_child(|| {
        fs::write("/proc/self/oom_adj", "15")?;
        ensure!(
            fs::read_to_string("/proc/self/oom_score_adj")? == "1000\n",
            "the old scale's end"
        );
        fs::write("/proc/self/oom_adj", "0")?;
        ensure!(
            fs::read_to_string("/proc/self/oom_score_adj")? == "0\n",
            "the old scale's middle"
        );
        ensure!(fs::read_to_string("/proc/self/cpuset")? == "/\n", "cpuset");
        let schedstat = fs::read_to_string("/proc/self/schedstat")?;
        ensure!(
            schedstat
                .split_whitespace()
                .filter_map(|word| word.parse::<u64>().ok())
                .count()
                == 3,
            "{schedstat}"
        );
        let sched = fs::read_to_string("/proc/self/sched")?;
        ensure!(
            sched.contains(&format!("({}, #threads: 1)", process::id()))
                && sched.contains("nr_switches"),
            "{sched}"
        );
        ensure!(
            fs::read_to_string("/proc/self/timens_offsets")?.contains("boottime"),
            "timens_offsets"
        );
        let kept = map(PAGE * 2000, libc::MAP_PRIVATE, None)?;
        touch(kept, 2000, true);
        let peak = field("/proc/self/status", "VmHWM")?;
        // SAFETY: this function's.
        unsafe { libc::munmap(kept.cast(), PAGE * 2000) };
        ensure!(
            field("/proc/self/status", "VmHWM")? >= peak && peak >= 8000,
            "the peak is {peak}"
        );
        fs::write("/proc/self/clear_refs", "5")?;
        ensure!(
            field("/proc/self/status", "VmHWM")? + 4000 < peak,
            "the peak is not forgotten"
        );
        Ok(())
    })
}

fn low_layout() -> Result<()> {
    const ADDR_COMPAT_LAYOUT: libc::c_ulong = 0x20_0000;
    in_child(|| {
        // SAFETY: a number.
        checked(unsafe { libc::personality(ADDR_COMPAT_LAYOUT) })?;
        let output = process::Command::new("/proc/self/exe")
            .arg("layout-child")
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        // The stack, the heap, and a new mapping.
        let place = text
            .lines()
            .nth(2)
            .and_then(|place| usize::from_str_radix(place.strip_prefix("0x")?, 16).ok());
        let place = place.context(text)?;
        ensure!(
            (0x2aaa_0000_0000..0x3fff_0000_0000).contains(&place),
            "a mapping is at {place:#x}"
        );
        Ok(())
    })
}

/// The first line of `smaps_rollup` has its name where the lines of `maps` have theirs, also of a
/// process without any memory.
fn sum_of_areas() -> Result<()> {
    let check = |of: &str, range: &str| {
        let sum = fs::read_to_string(format!("/proc/{of}/smaps_rollup"))?;
        let line = sum.lines().next().context("no line")?.to_owned();
        let expected = format!("{:<73}[rollup]", format!("{range} ---p 00000000 00:00 0"));
        ensure!(line == expected, "{line:?}, not {expected:?}");
        field_of(&sum, "Rss")
    };
    let maps = fs::read_to_string("/proc/self/maps")?;
    let bounds = |line: Option<&str>| {
        let range = line?.split(' ').next()?;
        range
            .split_once('-')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    let below_the_kernel = |line: &&str| !line.starts_with('f');
    let lines = || maps.lines().filter(below_the_kernel);
    let (start, _) = bounds(lines().next()).context("no first area")?;
    let (_, end) = bounds(lines().next_back()).context("no last area")?;
    ensure!(check("self", &format!("{start}-{end}"))? > 0, "nothing");
    // SAFETY: the child makes two calls and is stopped by the fault that follows.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: nothing of the child's is used any more.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::syscall(libc::SYS_munmap, 0usize, (1usize << 47) - PAGE);
            libc::_exit(1);
        }
    }
    let mut status = 0;
    // SAFETY: the word is valid.
    checked(unsafe { libc::waitpid(child, &mut status, 0) })?;
    ensure!(libc::WIFSTOPPED(status), "the child ended: {status:#x}");
    let of = child.to_string();
    let seen = check(&of, "00000000-00000000").and_then(|rss| {
        ensure!(rss == 0, "{rss} KiB of nothing");
        for name in ["maps", "smaps"] {
            let got = fs::read_to_string(format!("/proc/{of}/{name}"))?;
            let own: String = got.lines().filter(below_the_kernel).collect();
            ensure!(own.is_empty(), "{name}: {got:?}");
        }
        let sizes = fs::read_to_string(format!("/proc/{of}/statm"))?;
        ensure!(sizes.starts_with("0 0 0 "), "{sizes:?}");
        Ok(())
    });
    // SAFETY: the child is this check's.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
    }
    seen
}

/// Pages of a file that one process has mapped, privately and not written to, are all its own: that
/// the file has them too does not count.
fn pages_of_files_have_their_owner() -> Result<()> {
    const LENGTH: usize = 4 * PAGE;
    let file = crate::calls::Fd::new(call!(SYS_memfd_create, c"own".as_ptr(), 0), "memfd_create")?;
    let bytes = [1u8; LENGTH];
    is(
        call!(SYS_write, file.0, bytes.as_ptr(), LENGTH),
        LENGTH as i64,
        "write",
    )?;
    let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
    let place = call!(SYS_mmap, 0, LENGTH, read, private, file.0, 0);
    ensure!(place > 0, "mmap: {place}");
    for page in 0..4 {
        // SAFETY: within the mapping, which lasts.
        unsafe { ptr::read_volatile((place as usize + page * PAGE) as *const u8) };
    }
    let all = fs::read_to_string("/proc/self/smaps")?;
    let begin = all
        .find(&format!("{place:x}-"))
        .context("it is not mapped")?;
    let area = &all[begin..];
    let own = field_of(area, "Private_Clean")? + field_of(area, "Private_Dirty")?;
    let [resident, share, clean, dirty] = ["Rss", "Pss", "Shared_Clean", "Shared_Dirty"]
        .map(|name| field_of(area, name).unwrap_or(usize::MAX));
    ensure!(
        (resident, share, own, clean, dirty) == (16, 16, 16, 0, 0),
        "{resident} KiB, {share} of it its share, {own} its own, {clean} and {dirty} shared"
    );
    is(call!(SYS_munmap, place, LENGTH), 0, "munmap")
}
