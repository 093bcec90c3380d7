//! Layout of a program's memory as the kernel makes it: the vDSO, and random addresses.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::{env, mem};

use anyhow::{Context, Result, ensure};
use elf::ElfBytes;
use elf::endian::LittleEndian;
use libc::{c_int, c_long, timespec};

use crate::files::Scratch;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("layout-vdso-agrees-with-the-kernel", agrees),
    ("layout-vdso-takes-no-system-call", takes_no_call),
    ("layout-files-have-coarse-times", files_have_coarse_times),
    ("layout-vdso-knows-the-processor", knows_the_processor),
    ("layout-vdso-makes-random-numbers", makes_random_numbers),
    ("layout-addresses-are-random", random),
];

/// Nanoseconds between two times of a coarse clock: a tick of Debian's Linux.
const TICK: i64 = 4_000_000;

/// A clock as the C library reads it.
fn by_library(clock: c_int) -> Result<(i64, i64)> {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is this thread's.
    checked(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok((time.tv_sec, time.tv_nsec))
}

/// A clock as the kernel reads it.
fn by_kernel(clock: c_int) -> Result<(i64, i64)> {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    checked(
        // SAFETY: the structure is this thread's.
        unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), &raw mut time) }
            as c_int,
    )?;
    Ok((time.tv_sec, time.tv_nsec))
}

fn agrees() -> Result<()> {
    ensure!(
        // SAFETY: the call takes nothing of this program's.
        unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0,
        "there is no vDSO"
    );
    let clocks = [
        libc::CLOCK_REALTIME,
        libc::CLOCK_MONOTONIC,
        libc::CLOCK_MONOTONIC_RAW,
        libc::CLOCK_BOOTTIME,
        libc::CLOCK_TAI,
        libc::CLOCK_REALTIME_COARSE,
        libc::CLOCK_MONOTONIC_COARSE,
    ];
    for clock in clocks {
        for _ in 0..1000 {
            let times = [by_kernel(clock)?, by_library(clock)?, by_kernel(clock)?];
            ensure!(
                times.is_sorted(),
                "clock {clock} shows {times:?}: kernel, library, kernel"
            );
        }
    }
    for _ in 0..100 {
        let before = by_kernel(libc::CLOCK_REALTIME)?;
        let mut day = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        // SAFETY: the structure is this thread's.
        checked(unsafe { libc::gettimeofday(&raw mut day, std::ptr::null_mut()) })?;
        let after = by_kernel(libc::CLOCK_REALTIME)?;
        let micro = |(sec, nsec): (i64, i64)| (sec, nsec / 1000);
        let times = [micro(before), (day.tv_sec, day.tv_usec), micro(after)];
        ensure!(
            times.is_sorted(),
            "gettimeofday is not between the kernel's: {times:?}"
        );
    }
    // Those without a clock of their own are the kernel's.
    ensure!(
        by_library(libc::CLOCK_THREAD_CPUTIME_ID)? > (0, 0),
        "this thread has not run"
    );
    ensure!(by_library(99).is_err(), "there is a clock 99");
    for (clock, step) in [
        (libc::CLOCK_MONOTONIC, 1),
        (libc::CLOCK_REALTIME_COARSE, TICK),
        (libc::CLOCK_MONOTONIC_COARSE, TICK),
    ] {
        for by_kernel in [false, true] {
            let mut resolution = timespec {
                tv_sec: 1,
                tv_nsec: 1,
            };
            let at = &raw mut resolution;
            // SAFETY: the structure is this thread's.
            checked(unsafe {
                if by_kernel {
                    libc::syscall(libc::SYS_clock_getres, c_long::from(clock), at) as c_int
                } else {
                    libc::clock_getres(clock, at)
                }
            })?;
            ensure!(
                (resolution.tv_sec, resolution.tv_nsec) == (0, step),
                "a step of clock {clock}: {resolution:?}"
            );
        }
    }
    Ok(())
}

/// Times that a file gets are the coarse clock's.
fn files_have_coarse_times() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = File::create(scratch.0.join("file"))?;
    for turn in 0..1000 {
        let before = by_library(libc::CLOCK_REALTIME_COARSE)?;
        file.write_all_at(b"x", turn % 10)?;
        let found = file.metadata()?;
        let times = [
            before,
            (found.mtime(), found.mtime_nsec()),
            (found.ctime(), found.ctime_nsec()),
            by_library(libc::CLOCK_REALTIME_COARSE)?,
        ];
        ensure!(
            times.is_sorted(),
            "coarse clock, mtime, ctime, coarse clock: {times:?}"
        );
    }
    Ok(())
}

/// Asks for the time again and again.
fn look_at_the_clock() {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut day = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    for _ in 0..1000 {
        // SAFETY: the structures are this thread's.
        unsafe {
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time);
            libc::gettimeofday(&raw mut day, std::ptr::null_mut());
            libc::time(std::ptr::null_mut());
            libc::sched_getcpu();
        }
    }
}

/// The calls that nobody needs.
const FORBIDDEN: [c_long; 4] = [
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_getcpu,
];

/// Skerry's records of calls say so; elsewhere a child would be killed for one.
fn takes_no_call() -> Result<()> {
    match OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/skerry/trace")
    {
        Ok(trace) => by_records(trace),
        Err(_) => by_filter(),
    }
}

fn by_records(mut trace: File) -> Result<()> {
    const CALL_BEGINS: u8 = 6;
    trace.write_all(b"call")?;
    look_at_the_clock();
    trace.write_all(b"off")?;
    let (mut records, mut part) = (Vec::new(), vec![0; 1 << 20]);
    // What is not read at once is nobody's: a read of an empty ring waits.
    let read = trace.read(&mut part)?;
    records.extend_from_slice(&part[..read]);
    ensure!(records.len() >= 32, "nothing was recorded");
    let word = |record: &[u8], at: usize| {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
    };
    let calls = records
        .chunks_exact(32)
        .filter(|record| record[8] == CALL_BEGINS)
        .map(|record| word(record, 16));
    let found: Vec<u64> = calls
        .filter(|&call| FORBIDDEN.iter().any(|&number| number as u64 == call))
        .collect();
    ensure!(
        found.is_empty(),
        "{} system calls for the time",
        found.len()
    );
    Ok(())
}

fn by_filter() -> Result<()> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let filter = |code: u32, k: u32, jt: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let mut program = vec![filter(load, 0, 0)];
    program.extend(
        (0..)
            .zip(FORBIDDEN)
            .map(|(at, call)| filter(equal, call as u32, FORBIDDEN.len() as u8 - at)),
    );
    program.extend([
        filter(answer, libc::SECCOMP_RET_ALLOW, 0),
        filter(answer, libc::SECCOMP_RET_KILL_PROCESS, 0),
    ]);
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the child makes no calls but these, and leaves.
    let child = checked(unsafe { libc::fork() })?;
    if child == 0 {
        // SAFETY: as above; the filter is this process's.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let filtered = libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            );
            look_at_the_clock();
            libc::_exit(filtered.abs());
        }
    }
    let mut status = 0;
    // SAFETY: `status` is this thread's.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    ensure!(status == 0, "the child ended with status {status:#x}");
    Ok(())
}

/// `__vdso_getrandom` (`vgetrandom` in Linux 6.11): buffer, its length, flags, state, its length.
type GetRandom = unsafe extern "C" fn(*mut u8, usize, u32, *mut u8, usize) -> isize;

/// The vDSO's function of that name, if it has one.
fn find_getrandom() -> Result<Option<GetRandom>> {
    // SAFETY: the call takes nothing of this program's.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps
        .lines()
        .find(|line| line.ends_with("[vdso]"))
        .context("no [vdso] in maps")?;
    let end = line
        .split_once('-')
        .and_then(|(_, rest)| rest.split_once(' '))
        .context("no range")?
        .0;
    // SAFETY: the object is mapped there for as long as the program runs.
    let image = unsafe {
        std::slice::from_raw_parts(base as *const u8, usize::from_str_radix(end, 16)? - base)
    };
    let file = ElfBytes::<LittleEndian>::minimal_parse(image)?;
    let (symbols, strings) = file.dynamic_symbol_table()?.context("no symbols")?;
    let symbol = symbols.iter().find(|symbol| {
        strings
            .get(symbol.st_name as usize)
            .is_ok_and(|name| name == "__vdso_getrandom")
    });
    // SAFETY: the function of that name has this type.
    Ok(symbol.map(|symbol| unsafe {
        mem::transmute::<usize, GetRandom>(base + symbol.st_value as usize)
    }))
}

fn makes_random_numbers() -> Result<()> {
    let Some(getrandom) = find_getrandom()? else {
        ensure!(
            !std::path::Path::new("/proc/skerry").exists(),
            "the vDSO has no getrandom"
        );
        return Ok(());
    };
    let mut parameters = [0u32; 16];
    // SAFETY: asked like this, it fills 64 bytes with what a state is to be like.
    let asked = unsafe {
        getrandom(
            std::ptr::null_mut(),
            0,
            0,
            parameters.as_mut_ptr().cast(),
            usize::MAX,
        )
    };
    let [size, protection, flags, ..] = parameters.map(|word| word as usize);
    ensure!(
        asked == 0 && size > 0 && size <= 4096,
        "{asked}, {parameters:?}"
    );
    // SAFETY: new memory.
    let state = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            protection as c_int,
            flags as c_int,
            -1,
            0,
        )
    };
    ensure!(
        state != libc::MAP_FAILED,
        "no memory for a state: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: the state is one thread's at a time, in memory as it is to be.
    let fill = |buffer: &mut [u8]| unsafe {
        getrandom(buffer.as_mut_ptr(), buffer.len(), 0, state.cast(), size)
    };
    let mut seen = BTreeSet::new();
    for length in (16..400).chain([5000, 100_000]) {
        let mut buffer = vec![0; length];
        ensure!(fill(&mut buffer) == length as isize, "{length} bytes");
        ensure!(
            buffer
                .chunks_exact(16)
                .all(|chunk| seen.insert(chunk.to_vec())),
            "16 bytes came twice"
        );
        if length >= 5000 {
            let values: BTreeSet<u8> = buffer.iter().copied().collect();
            ensure!(
                values.len() == 256,
                "{} values in {length} bytes",
                values.len()
            );
        }
    }
    let mut pipe = [0; 2];
    // SAFETY: two descriptors; the child makes no calls but these, and leaves.
    let child = unsafe {
        checked(libc::pipe(pipe.as_mut_ptr()))?;
        checked(libc::fork())?
    };
    let mut own = [0u8; 16];
    ensure!(fill(&mut own) == 16, "16 bytes");
    if child == 0 {
        // SAFETY: the child's buffer.
        unsafe {
            libc::write(pipe[1], own.as_ptr().cast(), 16);
            libc::_exit(0);
        }
    }
    let (mut others, mut status) = ([0u8; 16], 0);
    // SAFETY: the parent's memory.
    unsafe {
        ensure!(
            libc::read(pipe[0], others.as_mut_ptr().cast(), 16) == 16,
            "the child wrote nothing"
        );
        checked(libc::waitpid(child, &raw mut status, 0))?;
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    ensure!(
        own != others && !seen.contains(&others[..]),
        "the child's numbers are its parent's"
    );
    // SAFETY: what is refused touches nothing.
    let refused = unsafe { getrandom(own.as_mut_ptr(), 16, 0, state.cast(), size - 1) };
    ensure!(
        refused == -(libc::EINVAL as isize),
        "a state of another size: {refused}"
    );
    // SAFETY: the state is not used any more.
    checked(unsafe { libc::munmap(state, 4096) })?;
    Ok(())
}

fn knows_the_processor() -> Result<()> {
    // SAFETY: a set is plain bits; all zeros is the empty one.
    let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    // SAFETY: the sets are this thread's.
    checked(unsafe { libc::sched_getaffinity(0, size_of_val(&all), &raw mut all) })?;
    for cpu in 0..1024 {
        // SAFETY: the number is within the set.
        if !unsafe { libc::CPU_ISSET(cpu, &all) } {
            continue;
        }
        // SAFETY: as above.
        unsafe {
            libc::CPU_ZERO(&mut one);
            libc::CPU_SET(cpu, &mut one);
            checked(libc::sched_setaffinity(
                0,
                size_of_val(&one),
                &raw const one,
            ))?;
            let found = libc::sched_getcpu();
            ensure!(
                found == cpu as c_int,
                "on processor {cpu} it is said to be {found}"
            );
        }
    }
    Ok(())
}

/// Prints where things are in this program.
pub fn child() -> ExitCode {
    let on_stack = 0u8;
    // SAFETY: the calls change nothing; the mapping is never used.
    let places = unsafe {
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        [
            &raw const on_stack as usize,
            libc::sbrk(0) as usize,
            libc::mmap(
                std::ptr::null_mut(),
                1 << 22,
                libc::PROT_NONE,
                private,
                -1,
                0,
            ) as usize,
            libc::getauxval(libc::AT_SYSINFO_EHDR) as usize,
        ]
    };
    places.iter().for_each(|place| println!("{place:#x}"));
    ExitCode::SUCCESS
}

fn random() -> Result<()> {
    const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x4_0000;
    let places = |fixed: bool| -> Result<Vec<String>> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("layout-child").env_clear();
        if fixed {
            // SAFETY: one system call, between fork and exec.
            unsafe { command.pre_exec(|| checked(libc::personality(ADDR_NO_RANDOMIZE)).map(drop)) };
        }
        let output = command.output().context("the child does not run")?;
        Ok(String::from_utf8(output.stdout)?
            .lines()
            .map(str::to_owned)
            .collect())
    };
    let runs = (0..4).map(|_| places(false)).collect::<Result<Vec<_>>>()?;
    for (at, what) in ["stack", "heap", "mappings", "vDSO"].iter().enumerate() {
        let different: BTreeSet<_> = runs.iter().map(|run| &run[at]).collect();
        ensure!(different.len() > 1, "the {what} is always at {different:?}");
    }
    let (one, other) = (places(true)?, places(true)?);
    ensure!(
        one == other && one.len() == 4,
        "without random addresses they are {one:?} and {other:?}"
    );
    Ok(())
}
