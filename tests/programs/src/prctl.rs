//! Settings of a process by `prctl(2)`, and where they are seen.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::{fs, io, mem, ptr};

use anyhow::{Context, Result, ensure};

use crate::credentials::{OTHER, become_user, in_child};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("prctl-memory-layout", memory_layout),
    ("prctl-memory-map", memory_map),
    ("prctl-executable", executable),
    ("prctl-names-of-memory", names_of_memory),
    ("prctl-dispatch-of-calls", dispatch_of_calls),
    ("prctl-machine-checks", machine_checks),
    ("prctl-timer-slack", timer_slack),
    ("prctl-speculation", speculation),
];

const PR_SET_MM: i32 = 35;
const PR_SET_MM_START_BRK: usize = 6;
const PR_SET_MM_BRK: usize = 7;
const PR_SET_MM_ARG_START: usize = 8;
const PR_SET_MM_ARG_END: usize = 9;
const PR_SET_MM_AUXV: usize = 12;
const PR_SET_MM_EXE_FILE: usize = 13;
const PR_SET_MM_MAP: usize = 14;
const PR_SET_MM_MAP_SIZE: usize = 15;

fn prctl(option: i32, args: [usize; 4]) -> io::Result<i32> {
    let [a, b, c, d] = args;
    // SAFETY: the options used here take numbers, or places that are valid; what is said about
    // memory is only believed by `/proc`.
    checked(unsafe { libc::prctl(option, a, b, c, d) })
}

fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    ensure!(
        result
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(errno)),
        "{what}: {result:?}"
    );
    Ok(())
}

/// The fields of `/proc/self/stat` behind the name; the state is number 3.
fn stat(number: usize) -> Result<usize> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let rest = &text[text.rfind(')').context("no name")? + 2..];
    Ok(rest
        .split_whitespace()
        .nth(number - 3)
        .context("too few fields")?
        .parse()?)
}

const START_CODE: usize = 26;
const END_CODE: usize = 27;
const START_STACK: usize = 28;
const START_DATA: usize = 45;
const END_DATA: usize = 46;
const START_BRK: usize = 47;
const ARG_START: usize = 48;
const ARG_END: usize = 49;
const ENV_START: usize = 50;
const ENV_END: usize = 51;

fn memory_layout() -> Result<()> {
    let local = 0u8;
    let here = memory_layout as fn() -> Result<()> as usize;
    ensure!(
        (stat(START_CODE)?..stat(END_CODE)?).contains(&here),
        "the code is elsewhere"
    );
    ensure!(
        stat(START_STACK)? > (&raw const local).addr(),
        "the stack begins elsewhere"
    );
    let length = stat(ARG_END)? - stat(ARG_START)?;
    ensure!(
        length == fs::read("/proc/self/cmdline")?.len(),
        "arguments of {length} bytes"
    );
    in_child(|| {
        let text = Box::leak(Box::new(*b"a new name\0more\0"));
        let at = text.as_ptr().addr();
        // First the end, or the beginning would be behind it (or the other way round).
        let (first, second) = if at > stat(ARG_END)? {
            (
                (PR_SET_MM_ARG_END, at + text.len()),
                (PR_SET_MM_ARG_START, at),
            )
        } else {
            (
                (PR_SET_MM_ARG_START, at),
                (PR_SET_MM_ARG_END, at + text.len()),
            )
        };
        for (what, at) in [first, second] {
            prctl(PR_SET_MM, [what, at, 0, 0])?;
        }
        ensure!(
            *fs::read("/proc/self/cmdline")? == *text,
            "the arguments are others"
        );
        ensure!(stat(ARG_START)? == at, "the new place is not told");
        // SAFETY: the heap of this allocator is not moved by these calls.
        let heap = unsafe { libc::sbrk(0) }.addr();
        refused(
            prctl(PR_SET_MM, [PR_SET_MM_BRK, stat(START_BRK)? - 1, 0, 0]),
            libc::EINVAL,
            "a heap that ends first",
        )?;
        refused(
            prctl(PR_SET_MM, [PR_SET_MM_START_BRK, 0, 0, 0]),
            libc::EINVAL,
            "a heap at 0",
        )?;
        refused(
            prctl(PR_SET_MM, [PR_SET_MM_BRK, usize::MAX, 0, 0]),
            libc::EINVAL,
            "a heap beyond everything",
        )?;
        refused(
            prctl(PR_SET_MM, [PR_SET_MM_BRK, heap, 1, 0]),
            libc::EINVAL,
            "a length of the heap",
        )?;
        refused(prctl(PR_SET_MM, [99, heap, 0, 0]), libc::EINVAL, "nothing")?;
        prctl(PR_SET_MM, [PR_SET_MM_BRK, heap, 0, 0])?;
        let mut aux = [6usize, 4096, 33, 1, 5, 5];
        prctl(
            PR_SET_MM,
            [
                PR_SET_MM_AUXV,
                aux.as_mut_ptr().addr(),
                mem::size_of_val(&aux),
                0,
            ],
        )?;
        let told = fs::read("/proc/self/auxv")?;
        ensure!(
            told.len() >= 64 && told[..8] == 6usize.to_ne_bytes() && told[48..64] == [0; 16],
            "{told:?}"
        );
        become_user(OTHER)?;
        refused(
            prctl(PR_SET_MM, [PR_SET_MM_BRK, heap, 0, 0]),
            libc::EPERM,
            "without CAP_SYS_RESOURCE",
        )
    })
}

/// `struct prctl_mm_map`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Map {
    places: [usize; 11],
    auxv: usize,
    auxv_size: u32,
    exe_fd: u32,
}

fn memory_map() -> Result<()> {
    let mut size = 0u32;
    prctl(
        PR_SET_MM,
        [PR_SET_MM_MAP_SIZE, (&raw mut size).addr(), 0, 0],
    )?;
    ensure!(size as usize == size_of::<Map>(), "a map has {size} bytes");
    in_child(|| {
        let text = Box::leak(Box::new(*b"restored\0"));
        // SAFETY: nothing moves.
        let heap = unsafe { libc::sbrk(0) }.addr();
        let places = [
            stat(START_CODE)?,
            stat(END_CODE)?,
            stat(START_DATA)?,
            stat(END_DATA)?,
            stat(START_BRK)?,
            heap,
            stat(START_STACK)?,
            text.as_ptr().addr(),
            text.as_ptr().addr() + text.len(),
            stat(ENV_START)?,
            stat(ENV_END)?,
        ];
        let map = Map {
            places,
            auxv: 0,
            auxv_size: 0,
            exe_fd: u32::MAX,
        };
        // It needs no capability.
        become_user(OTHER)?;
        let set = |map: &Map, len: usize| {
            prctl(
                PR_SET_MM,
                [PR_SET_MM_MAP, ptr::from_ref(map).addr(), len, 0],
            )
        };
        prctl(libc::PR_SET_DUMPABLE, [1, 0, 0, 0])?;
        set(&map, size_of::<Map>())?;
        ensure!(
            *fs::read("/proc/self/cmdline")? == *text,
            "the arguments are others"
        );
        refused(set(&map, size_of::<Map>() - 8), libc::EINVAL, "a short map")?;
        let mut wrong = map;
        wrong.places.swap(0, 1);
        refused(
            set(&wrong, size_of::<Map>()),
            libc::EINVAL,
            "code that ends first",
        )?;
        refused(
            set(
                &Map {
                    auxv_size: 8,
                    ..map
                },
                size_of::<Map>(),
            ),
            libc::EINVAL,
            "a vector nowhere",
        )?;
        refused(
            set(&Map { exe_fd: 0, ..map }, size_of::<Map>()),
            libc::EPERM,
            "a file without a capability",
        )
    })
}

fn executable() -> Result<()> {
    in_child(|| {
        let path = std::env::temp_dir().join(format!("program-{}", std::process::id()));
        fs::write(&path, b"#!/bin/sh\n")?;
        let file = fs::File::open(&path)?;
        let set = |fd: i32| prctl(PR_SET_MM, [PR_SET_MM_EXE_FILE, fd as usize, 0, 0]);
        refused(
            set(file.as_raw_fd()),
            libc::EACCES,
            "a file that cannot be run",
        )?;
        refused(set(999), libc::EBADF, "no file")?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        refused(
            set(file.as_raw_fd()),
            libc::EBUSY,
            "while the program is mapped",
        )?;
        fs::remove_file(&path)?;
        Ok(())
    })
}

/// The line of `maps` or `smaps` for what is at an address.
fn line_of(at: usize) -> Result<String> {
    let text = fs::read_to_string("/proc/self/maps")?;
    let start = format!("{at:08x}-");
    Ok(text
        .lines()
        .find(|line| line.starts_with(&start))
        .with_context(|| format!("{start} is not in {text}"))?
        .into())
}

/// A kernel without names refuses all of them.
fn names_of_memory() -> Result<()> {
    const PR_SET_VMA: i32 = 0x5356_4d41;
    const PAGE: usize = 4096;
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            4 * PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
        .addr()
    };
    let set =
        |from: usize, pages: usize, name: usize| prctl(PR_SET_VMA, [0, from, pages * PAGE, name]);
    let name = c"a pool".as_ptr().addr();
    match set(at + PAGE, 2, name) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
        result => result?,
    };
    ensure!(
        line_of(at + PAGE)?.ends_with(" [anon:a pool]"),
        "{}",
        line_of(at + PAGE)?
    );
    ensure!(
        line_of(at)?.ends_with(" 0 ")
            && line_of(at + 3 * PAGE)?.starts_with(&format!("{:08x}", at + 3 * PAGE)),
        "more is named"
    );
    refused(
        set(at, 1, c"a$".as_ptr().addr()),
        libc::EINVAL,
        "a name that is none",
    )?;
    refused(
        set(at, 1, [b'a'; 81].as_ptr().addr()),
        libc::EINVAL,
        "a long name",
    )?;
    refused(set(at, 1, 1), libc::EFAULT, "no name")?;
    refused(set(at + 1, 1, name), libc::EINVAL, "half a page")?;
    let code = names_of_memory as fn() -> Result<()> as usize / PAGE * PAGE;
    refused(set(code, 1, name), libc::EBADF, "a file's memory")?;
    in_child(|| {
        ensure!(
            line_of(at + PAGE)?.ends_with(" [anon:a pool]"),
            "a child's has no name"
        );
        Ok(())
    })?;
    // SAFETY: the mapping is this function's.
    unsafe { libc::munmap(ptr::without_provenance_mut(at + 3 * PAGE), PAGE) };
    refused(set(at + 2 * PAGE, 2, 0), libc::ENOMEM, "what is not there")?;
    ensure!(
        line_of(at + PAGE)?.ends_with(" [anon:a pool]")
            && !line_of(at + 2 * PAGE)?.contains("pool"),
        "the name goes wrong"
    );
    // SAFETY: the same.
    unsafe { libc::munmap(ptr::without_provenance_mut(at), 3 * PAGE) };
    Ok(())
}

static SELECTOR: AtomicU8 = AtomicU8::new(0);
static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn catch(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SELECTOR.store(0, Ordering::SeqCst);
    // SAFETY: the kernel gives valid structures; the number of the call is behind its address.
    unsafe {
        let words = info.cast::<i32>();
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        if *words.add(2) == 2 && registers[libc::REG_RAX as usize] == i64::from(*words.add(6)) {
            CAUGHT.store(*words.add(6) as u32, Ordering::SeqCst);
        }
        registers[libc::REG_RAX as usize] = 4321;
    }
}

fn dispatch_of_calls() -> Result<()> {
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    in_child(|| {
        // SAFETY: the handler is as it has to be, and everything outlives the child.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            (action.sa_sigaction, action.sa_flags) =
                (catch as *const () as usize, libc::SA_SIGINFO);
            checked(libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()))?;
        }
        let set = |args| prctl(PR_SET_SYSCALL_USER_DISPATCH, args);
        let selector = SELECTOR.as_ptr().addr();
        refused(set([2, 0, 0, 0]), libc::EINVAL, "another mode")?;
        refused(set([0, 1, 0, 0]), libc::EINVAL, "off, and a place")?;
        refused(set([1, 1, 0, selector]), libc::EINVAL, "an empty place")?;
        refused(
            set([1, 0, 0, 1 << 62]),
            libc::EFAULT,
            "no place of the byte",
        )?;
        set([1, 0, 0, selector])?;
        // SAFETY: the call takes nothing.
        let parent = || unsafe { libc::syscall(libc::SYS_getppid) };
        let own = parent();
        SELECTOR.store(1, Ordering::SeqCst);
        let answer = parent();
        ensure!(
            answer == 4321 && CAUGHT.load(Ordering::SeqCst) == libc::SYS_getppid as u32,
            "{answer}, {CAUGHT:?}"
        );
        ensure!(parent() == own, "the byte is not heeded");
        // A child has none of it.
        SELECTOR.store(0, Ordering::SeqCst);
        in_child(|| {
            SELECTOR.store(1, Ordering::SeqCst);
            ensure!(parent() != 4321, "the child's calls are dispatched");
            Ok(())
        })?;
        // All calls are allowed from everywhere.
        set([1, 1, usize::MAX >> 1, selector])?;
        SELECTOR.store(1, Ordering::SeqCst);
        let answer = parent();
        SELECTOR.store(0, Ordering::SeqCst);
        ensure!(answer == own, "an allowed place is not: {answer}");
        set([0, 0, 0, 0])?;
        SELECTOR.store(1, Ordering::SeqCst);
        ensure!(parent() == own, "it is not off");
        Ok(())
    })?;
    // Another program has none of it: there is nothing where the byte was.
    let status = in_child(|| {
        // SAFETY: new memory; the arguments end as they have to.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let place = libc::mmap(
                ptr::without_provenance_mut(0x1234_5678_0000),
                4096,
                libc::PROT_READ,
                flags,
                -1,
                0,
            );
            ensure!(place != libc::MAP_FAILED, "no memory for the byte");
            prctl(PR_SET_SYSCALL_USER_DISPATCH, [1, 0, 0, place.addr()])?;
            let arguments = [
                c"/proc/self/exe".as_ptr(),
                c"child".as_ptr(),
                c"exit".as_ptr(),
                c"0".as_ptr(),
                ptr::null(),
            ];
            libc::execv(arguments[0], arguments.as_ptr());
        }
        Err(io::Error::last_os_error().into())
    });
    status.context("a program that was begun while calls were dispatched")
}

fn machine_checks() -> Result<()> {
    const SET: i32 = libc::PR_MCE_KILL;
    const GET: i32 = libc::PR_MCE_KILL_GET;
    in_child(|| {
        ensure!(prctl(GET, [0; 4])? == 2, "not the default");
        prctl(SET, [1, 1, 0, 0])?;
        ensure!(prctl(GET, [0; 4])? == 1, "it is not told");
        in_child(|| {
            ensure!(prctl(GET, [0; 4])? == 1, "it is not inherited");
            Ok(())
        })?;
        refused(prctl(SET, [1, 3, 0, 0]), libc::EINVAL, "another kind")?;
        refused(prctl(SET, [0, 1, 0, 0]), libc::EINVAL, "clearing a kind")?;
        refused(prctl(GET, [1, 0, 0, 0]), libc::EINVAL, "an odd question")?;
        prctl(SET, [0, 0, 0, 0])?;
        ensure!(prctl(GET, [0; 4])? == 2, "it stays");
        ensure!(
            prctl(libc::PR_GET_TIMING, [0; 4])? == 0,
            "times are not statistical"
        );
        refused(
            prctl(libc::PR_SET_TIMING, [1, 0, 0, 0]),
            libc::EINVAL,
            "exact times",
        )?;
        ensure!(prctl(58, [0; 4])? == 0, "it flushes");
        prctl(57, [1, 0, 0, 0])?;
        ensure!(prctl(58, [0; 4])? == 1, "it does not flush");
        become_user(OTHER)?;
        refused(prctl(58, [0; 4]), libc::EPERM, "without CAP_SYS_RESOURCE")
    })
}

fn timer_slack() -> Result<()> {
    in_child(|| {
        let slack = || prctl(libc::PR_GET_TIMERSLACK, [0; 4]);
        let before = slack()?;
        prctl(libc::PR_SET_TIMERSLACK, [70_000, 0, 0, 0])?;
        ensure!(
            slack()? == 70_000 && fs::read_to_string("/proc/self/timerslack_ns")? == "70000\n",
            "it is not told"
        );
        in_child(|| {
            prctl(libc::PR_SET_TIMERSLACK, [1, 0, 0, 0])?;
            prctl(libc::PR_SET_TIMERSLACK, [0; 4])?;
            ensure!(
                slack()? == 70_000,
                "the child's default is not its parent's slack"
            );
            Ok(())
        })?;
        fs::write("/proc/self/timerslack_ns", "0")?;
        ensure!(slack()? == before, "not the default: {}", slack()?);
        Ok(())
    })
}

fn speculation() -> Result<()> {
    let get = |what: usize| prctl(libc::PR_GET_SPECULATION_CTRL, [what, 0, 0, 0]);
    let set = |what: usize, how: usize| prctl(libc::PR_SET_SPECULATION_CTRL, [what, how, 0, 0]);
    refused(get(9), libc::ENODEV, "another feature")?;
    refused(set(9, 2), libc::ENODEV, "setting another feature")?;
    refused(
        prctl(libc::PR_GET_SPECULATION_CTRL, [0, 1, 0, 0]),
        libc::EINVAL,
        "an odd question",
    )?;
    for (what, words) in SPECULATION_WORDS.into_iter().enumerate() {
        let told = || -> Result<i32> {
            let answer = get(what)?;
            let (_, expected) = words
                .iter()
                .find(|(of, _)| *of == answer)
                .with_context(|| format!("no answer about {what}: {answer}"))?;
            let status = fs::read_to_string("/proc/thread-self/status")?;
            let title = ["Speculation_Store_Bypass:", "SpeculationIndirectBranch:"][what];
            let word = status
                .lines()
                .find_map(|line| line.strip_prefix(title))
                .context("no such line")?;
            ensure!(word.trim() == *expected, "{answer}: {word}, not {expected}");
            Ok(answer)
        };
        if told()? & PR_SPEC_PRCTL == 0 {
            continue;
        }
        in_child(|| {
            refused(set(what, 0x100), libc::ERANGE, "an odd choice")?;
            set(what, PR_SPEC_DISABLE as usize)?;
            ensure!(told()? == PR_SPEC_PRCTL | PR_SPEC_DISABLE, "it is not told");
            // Threads and children inherit it, and choose for themselves.
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| -> Result<()> {
                    ensure!(told()? == PR_SPEC_PRCTL | PR_SPEC_DISABLE, "a thread");
                    set(what, PR_SPEC_ENABLE as usize)?;
                    ensure!(told()? == PR_SPEC_PRCTL | PR_SPEC_ENABLE, "not back");
                    Ok(())
                });
                thread.join().expect("no panic")
            })?;
            ensure!(
                told()? == PR_SPEC_PRCTL | PR_SPEC_DISABLE,
                "changed by a thread"
            );
            in_child(|| {
                set(what, PR_SPEC_FORCE_DISABLE as usize)?;
                refused(set(what, PR_SPEC_ENABLE as usize), libc::EPERM, "back")?;
                ensure!(
                    told()? == PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE,
                    "not for good"
                );
                Ok(())
            })?;
            set(what, PR_SPEC_ENABLE as usize)?;
            ensure!(told()? == PR_SPEC_PRCTL | PR_SPEC_ENABLE, "not back");
            Ok(())
        })?;
    }
    weaknesses()
}

const PR_SPEC_PRCTL: i32 = 1;
const PR_SPEC_ENABLE: i32 = 2;
const PR_SPEC_DISABLE: i32 = 4;
const PR_SPEC_FORCE_DISABLE: i32 = 8;

/// The word in `/proc/PID/status` for each answer, of store bypass and of indirect branches.
const SPECULATION_WORDS: [&[(i32, &str)]; 2] = [
    &[
        (0, "not vulnerable"),
        (PR_SPEC_ENABLE, "vulnerable"),
        (PR_SPEC_DISABLE, "globally mitigated"),
        (PR_SPEC_PRCTL | PR_SPEC_ENABLE, "thread vulnerable"),
        (PR_SPEC_PRCTL | PR_SPEC_DISABLE, "thread mitigated"),
        (
            PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE,
            "thread force mitigated",
        ),
    ],
    &[
        (0, "not affected"),
        (PR_SPEC_ENABLE, "always enabled"),
        (PR_SPEC_DISABLE, "always disabled"),
        (PR_SPEC_PRCTL | PR_SPEC_ENABLE, "conditional enabled"),
        (PR_SPEC_PRCTL | PR_SPEC_DISABLE, "conditional disabled"),
        (
            PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE,
            "conditional force disabled",
        ),
    ],
];

/// Each line on a weakness of the processor is of one of a few kinds, and agrees with
/// `/proc/cpuinfo`.
fn weaknesses() -> Result<()> {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let told = |name: &str| -> Result<String> {
        fs::read_to_string(format!("{folder}/{name}")).with_context(|| name.to_owned())
    };
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let bugs: Vec<&str> = info
        .lines()
        .find_map(|line| line.strip_prefix("bugs"))
        .context("no line of bugs")?
        .split_whitespace()
        .collect();
    for (name, bug) in [
        ("meltdown", "cpu_meltdown"),
        ("spectre_v1", "spectre_v1"),
        ("spectre_v2", "spectre_v2"),
        ("spec_store_bypass", "spec_store_bypass"),
        ("l1tf", "l1tf"),
        ("mds", "mds"),
        ("tsx_async_abort", "taa"),
        ("itlb_multihit", "itlb_multihit"),
        ("srbds", "srbds"),
        ("retbleed", "retbleed"),
    ] {
        let line = told(name)?;
        let is_one = line == "Not affected\n"
            || ["Mitigation: ", "Vulnerable", "Unknown: ", "KVM: "]
                .iter()
                .any(|start| line.starts_with(start));
        ensure!(is_one && line.ends_with('\n'), "{name}: {line:?}");
        let affected = line != "Not affected\n";
        ensure!(
            affected == bugs.contains(&bug),
            "{name}: {line:?}, but {bugs:?}"
        );
    }
    Ok(())
}
