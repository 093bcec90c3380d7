//! Numbers below `/proc/sys` that the superuser changes, and that count from then on.

#![allow(
    clippy::cast_lossless,
    reason = "one macro reads variables of several types"
)]

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, Ordering};

use abi::errno::Errno;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use fs::tty::pty;
use fs::{charge, dnotify, inotify, lease, mount, pipe, protected};

use super::{add_at_path, remembered};
use crate::current_task;
use crate::ipc::mqueue::{HARD_MESSAGES, HARD_SIZE};
use crate::mm::mmap::{ADMIN_RESERVE_KBYTES, OVERCOMMIT, OVERCOMMIT_KBYTES, OVERCOMMIT_RATIO};
use crate::mm::oom::{DUMP_TASKS, KILL_ALLOCATING_TASK, PANIC_ON_OOM};
use crate::process::namespaces;
use crate::process::personality::RANDOMIZE_VA_SPACE;
use crate::process::process_table::{self, PID_MAX, PID_MAX_LIMIT, RESERVED_PIDS};
use crate::seccomp::actions_logged;
use crate::signal::PRINT_FATAL_SIGNALS;
use crate::state::fdtable::{self, NR_OPEN};
use crate::state::ipc::limits::{IpcLimits, Limit};
use crate::state::{ratelimit, rlimit};
use crate::system::klog::{self, DMESG_RESTRICT, PRINTK};

/// `/proc/sys/kernel/kptr_restrict`: who sees addresses of the kernel. Nobody does: no file shows
/// any, whatever is written here.
static KPTR_RESTRICT: AtomicU8 = AtomicU8::new(0);

/// `/proc/sys/kernel/panic`: seconds between a panic and what it leads to; 0 for ever, less for
/// none.
static PANIC: AtomicI32 = AtomicI32::new(-1);

/// `/proc/sys/kernel/panic_on_warn`: whether a warning about the kernel itself ends it. It gives
/// none, so both are true.
static PANIC_ON_WARN: AtomicU8 = AtomicU8::new(0);

/// `/proc/sys/vm/min_free_kbytes` as the superuser wrote it; -1: what the kernel needs.
static MIN_FREE_KBYTES: AtomicI64 = AtomicI64::new(-1);

/// A number, wide enough for those without a sign.
type Number = i128;

/// A setting that is a number.
struct Tunable {
    path: &'static str,
    mode: u32,
    /// The least and the highest that it takes.
    range: (Number, Number),
    get: fn() -> Number,
    set: fn(Number) -> Result<(), Errno>,
}

/// Largest number of most settings, and the least of some.
const INT_MAX: Number = i32::MAX as Number;
const INT_MIN: Number = i32::MIN as Number;

const NS_PER_MS: u64 = 1_000_000;

/// Most System V objects of a kind that can be allowed: their identifiers have so many indexes.
const MAX_OBJECTS: Number = 32_768;

const fn setting(
    path: &'static str,
    range: (Number, Number),
    get: fn() -> Number,
    set: fn(Number) -> Result<(), Errno>,
) -> Tunable {
    Tunable {
        path,
        mode: 0o644,
        range,
        get,
        set,
    }
}

/// Number in an atomic variable, and the function that puts another there.
macro_rules! stored {
    ($variable:expr) => {
        (
            || $variable.load(Ordering::Relaxed) as Number,
            |number| {
                $variable.store(number as _, Ordering::Relaxed);
                Ok(())
            },
        )
    };
}

/// A setting in an atomic variable.
macro_rules! variable {
    ($path:literal, $least:expr, $most:expr, $variable:expr) => {{
        let (get, set): (fn() -> Number, fn(Number) -> Result<(), Errno>) = stored!($variable);
        setting($path, ($least as Number, $most as Number), get, set)
    }};
}

/// A limit on what users have open ([`charge::Limit`]).
macro_rules! charged {
    ($path:literal, $most:expr, $limit:ident) => {
        setting(
            $path,
            (0, $most as Number),
            || charge::$limit.get() as Number,
            |number| {
                charge::$limit.set(number as usize);
                Ok(())
            },
        )
    };
}

/// A limit of the caller's namespace of System V objects and message queues.
macro_rules! ipc {
    ($path:literal, $least:expr, $most:expr, $limit:ident) => {
        setting(
            $path,
            ($least as Number, $most as Number),
            || of_limit(|limits| &limits.$limit).into(),
            |number| set_limit(|limits| &limits.$limit, number),
        )
    };
}

/// Number that the next System V object of a kind is to get, in the caller's namespace. `0444`, as
/// on Linux: the superuser writes it all the same.
macro_rules! next_id {
    ($path:literal, $get:expr, $set:expr) => {
        Tunable {
            mode: 0o444,
            ..setting(
                $path,
                (0, INT_MAX),
                || {
                    let get: fn(&crate::state::namespaces::IpcNamespace) -> i32 = $get;
                    get(&namespaces::current().ipc).into()
                },
                |number| {
                    let set: fn(&crate::state::namespaces::IpcNamespace, i32) = $set;
                    set(&namespaces::current().ipc, number as i32);
                    Ok(())
                },
            )
        }
    };
}

fn of_limit(which: fn(&IpcLimits) -> &Limit) -> u64 {
    which(&namespaces::current().ipc.limits).get()
}

fn set_limit(which: fn(&IpcLimits) -> &Limit, number: Number) -> Result<(), Errno> {
    let number = u64::try_from(number).map_err(|_| Errno::EINVAL)?;
    which(&namespaces::current().ipc.limits).set(number);
    Ok(())
}

/// Checks that the caller may do more than write the superuser's files.
fn check_sys_admin() -> Result<(), Errno> {
    if current_task().is_none_or(|task| task.cred().has_sys_admin()) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

const SETTINGS: &[Tunable] = &[
    variable!("fs/protected_symlinks", 0, 1, protected::SYMLINKS),
    variable!("fs/protected_hardlinks", 0, 1, protected::HARDLINKS),
    variable!("fs/protected_fifos", 0, 2, protected::FIFOS),
    variable!("fs/protected_regular", 0, 2, protected::REGULAR),
    variable!(
        "fs/inotify/max_queued_events",
        0,
        INT_MAX,
        inotify::MAX_QUEUED_EVENTS
    ),
    variable!(
        "fs/nr_open",
        fdtable::LEAST_NR_OPEN,
        fdtable::MAX_LIMIT,
        NR_OPEN
    ),
    charged!("fs/file-max", i64::MAX, MAX_FILES),
    setting(
        "fs/pipe-max-size",
        (0, INT_MAX),
        || pipe::MAX_SIZE.load(Ordering::Relaxed) as Number,
        |bytes| pipe::set_max_size(bytes as usize),
    ),
    // Any number of 32 bits, as on Linux; below 0 it is a high one.
    setting(
        "fs/mqueue/queues_max",
        (INT_MIN, INT_MAX),
        || (of_limit(|limits| &limits.posix_queues) as i32).into(),
        |number| {
            let number = number as i32 as u32;
            set_limit(|limits| &limits.posix_queues, number.into())
        },
    ),
    ipc!("fs/mqueue/msg_max", 1, HARD_MESSAGES, posix_messages),
    ipc!(
        "fs/mqueue/msg_default",
        1,
        HARD_MESSAGES,
        posix_default_messages
    ),
    ipc!("fs/mqueue/msgsize_max", 128, HARD_SIZE, posix_size),
    ipc!(
        "fs/mqueue/msgsize_default",
        128,
        HARD_SIZE,
        posix_default_size
    ),
    ipc!("kernel/msgmax", 0, INT_MAX, message),
    ipc!("kernel/msgmnb", 0, INT_MAX, queue),
    ipc!("kernel/msgmni", 0, MAX_OBJECTS, queues),
    ipc!("kernel/shmmax", 0, u64::MAX, segment),
    ipc!("kernel/shmmni", 0, MAX_OBJECTS, segments),
    ipc!("kernel/shmall", 0, u64::MAX, segment_pages),
    next_id!(
        "kernel/msg_next_id",
        |ipc| ipc.messages.next(),
        |ipc, id| ipc.messages.set_next(id)
    ),
    next_id!(
        "kernel/sem_next_id",
        |ipc| ipc.semaphores.next(),
        |ipc, id| ipc.semaphores.set_next(id)
    ),
    next_id!(
        "kernel/shm_next_id",
        |ipc| ipc.segments.table.lock().next(),
        |ipc, id| ipc.segments.table.lock().set_next(id)
    ),
    setting(
        "kernel/threads-max",
        (1, rlimit::HIGHEST_MAX_THREADS as Number),
        || rlimit::max_threads() as Number,
        |count| {
            rlimit::set_max_threads(count as usize);
            Ok(())
        },
    ),
    variable!("kernel/pid_max", RESERVED_PIDS + 1, PID_MAX_LIMIT, PID_MAX),
    Tunable {
        // Who may write it is asked when it is written.
        mode: 0o666,
        ..setting(
            "kernel/ns_last_pid",
            (0, PID_MAX_LIMIT as Number),
            || process_table::last_pid().into(),
            |number| process_table::set_last_pid(number as i32),
        )
    },
    setting(
        "kernel/dmesg_restrict",
        (0, 1),
        || DMESG_RESTRICT.load(Ordering::Relaxed).into(),
        |number| {
            check_sys_admin()?;
            DMESG_RESTRICT.store(number != 0, Ordering::Relaxed);
            Ok(())
        },
    ),
    setting(
        "kernel/kptr_restrict",
        (0, 2),
        || KPTR_RESTRICT.load(Ordering::Relaxed).into(),
        |number| {
            check_sys_admin()?;
            KPTR_RESTRICT.store(number as u8, Ordering::Relaxed);
            Ok(())
        },
    ),
    variable!("kernel/randomize_va_space", 0, 2, RANDOMIZE_VA_SPACE),
    setting(
        "vm/max_map_count",
        (0, INT_MAX),
        || vm::max_map_count() as Number,
        |count| {
            vm::set_max_map_count(count as usize);
            Ok(())
        },
    ),
    variable!("vm/overcommit_memory", 0, 2, OVERCOMMIT),
    setting(
        "vm/overcommit_ratio",
        (INT_MIN, INT_MAX),
        || OVERCOMMIT_RATIO.load(Ordering::Relaxed).into(),
        |percent| {
            OVERCOMMIT_KBYTES.store(0, Ordering::Relaxed);
            OVERCOMMIT_RATIO.store(percent as i32, Ordering::Relaxed);
            Ok(())
        },
    ),
    setting(
        "vm/overcommit_kbytes",
        (0, u64::MAX as Number),
        || OVERCOMMIT_KBYTES.load(Ordering::Relaxed).into(),
        |kbytes| {
            OVERCOMMIT_RATIO.store(0, Ordering::Relaxed);
            OVERCOMMIT_KBYTES.store(kbytes as u64, Ordering::Relaxed);
            Ok(())
        },
    ),
    variable!("vm/admin_reserve_kbytes", 0, u64::MAX, ADMIN_RESERVE_KBYTES),
    setting(
        "vm/min_free_kbytes",
        (0, INT_MAX),
        || match MIN_FREE_KBYTES.load(Ordering::Relaxed) {
            -1 => (guard::mem::min_free_bytes() >> 10).into(),
            written => written.into(),
        },
        |kbytes| {
            MIN_FREE_KBYTES.store(kbytes as i64, Ordering::Relaxed);
            guard::mem::set_min_free_bytes((kbytes as u64) << 10);
            Ok(())
        },
    ),
    variable!("vm/oom_dump_tasks", INT_MIN, INT_MAX, DUMP_TASKS),
    variable!("vm/panic_on_oom", 0, 2, PANIC_ON_OOM),
    variable!(
        "vm/oom_kill_allocating_task",
        INT_MIN,
        INT_MAX,
        KILL_ALLOCATING_TASK
    ),
    variable!(
        "fs/lease-break-time",
        INT_MIN,
        INT_MAX,
        lease::BREAK_SECONDS
    ),
    variable!("fs/leases-enable", INT_MIN, INT_MAX, lease::ENABLED),
    variable!("fs/dir-notify-enable", INT_MIN, INT_MAX, dnotify::ENABLED),
    variable!("fs/mount-max", 1, INT_MAX, mount::MAX_MOUNTS),
    variable!("kernel/pty/max", 0, INT_MAX, pty::MAX_PAIRS),
    setting(
        "kernel/panic",
        (INT_MIN, INT_MAX),
        || PANIC.load(Ordering::Relaxed).into(),
        |seconds| {
            PANIC.store(seconds as i32, Ordering::Relaxed);
            guard::power::set_panic_timeout_seconds(seconds as i32);
            Ok(())
        },
    ),
    // The kernel's every mistake is a panic; there are no warnings of such.
    setting("kernel/panic_on_oops", (1, INT_MAX), || 1, |_| Ok(())),
    variable!("kernel/panic_on_warn", 0, 1, PANIC_ON_WARN),
    variable!(
        "kernel/print-fatal-signals",
        INT_MIN,
        INT_MAX,
        PRINT_FATAL_SIGNALS
    ),
    setting(
        "kernel/shm_rmid_forced",
        (0, 1),
        || {
            namespaces::current()
                .ipc
                .segments
                .is_removal_forced()
                .into()
        },
        |number| {
            namespaces::current()
                .ipc
                .segments
                .force_removal(number != 0);
            Ok(())
        },
    ),
    variable!(
        "kernel/printk_ratelimit",
        INT_MIN,
        INT_MAX,
        ratelimit::INTERVAL_SECONDS
    ),
    variable!(
        "kernel/printk_ratelimit_burst",
        INT_MIN,
        INT_MAX,
        ratelimit::BURST
    ),
    setting(
        "kernel/sched_rr_timeslice_ms",
        (INT_MIN, INT_MAX),
        || (::task::rr_quantum_ns() / NS_PER_MS).into(),
        |ms| {
            ::task::set_rr_quantum_ns(u64::try_from(ms).unwrap_or(0) * NS_PER_MS);
            Ok(())
        },
    ),
    // Linux gave the setting up, and takes both values.
    setting("kernel/auto_msgmni", (0, 1), || 0, |_| Ok(())),
    charged!("user/max_inotify_instances", INT_MAX, MAX_USER_INSTANCES),
    charged!("user/max_inotify_watches", INT_MAX, MAX_INOTIFY_WATCHES),
];

/// Number that a text begins with, as Linux reads it: with a sign, decimal, octal or hexadecimal.
pub(super) fn parse(text: &[u8]) -> Option<Number> {
    let text = core::str::from_utf8(text.trim_ascii_start()).ok()?;
    let end = text
        .find(|c: char| c.is_ascii_whitespace() || c == '\0')
        .unwrap_or(text.len());
    let (negative, digits) = match text[..end].strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, &text[..end]),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    Some(if negative {
        -Number::from(number)
    } else {
        number.into()
    })
}

impl Tunable {
    /// Puts the number in force that a text begins with.
    ///
    /// # Errors
    /// `EINVAL`; what the setting says.
    fn store(&self, text: &[u8]) -> Result<(), Errno> {
        let (least, most) = self.range;
        let number = parse(text).filter(|number| (least..=most).contains(number));
        (self.set)(number.ok_or(Errno::EINVAL)?)
    }
}

/// Puts the settings in force that a kernel command line has as `sysctl.PATH=NUMBER`, with dots or
/// slashes in the path, as Linux does.
pub(super) fn apply_command_line(words: &str) {
    let settings = words
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("sysctl.")?.split_once('='));
    for (name, value) in settings {
        let path = name.replace('.', "/");
        let text = value.as_bytes();
        let done = match SETTINGS.iter().find(|setting| setting.path == path) {
            Some(setting) => setting.store(text),
            None => remembered::find(&path).map_or(Err(Errno::ENOENT), |kept| kept.store(text)),
        };
        if let Err(error) = done {
            log::warn!("sysctl {name}={value}: {error}");
        }
    }
}

/// The four limits of semaphores of the caller's namespace, as `/proc/sys/kernel/sem` shows them.
fn semaphore_limits() -> Result<Vec<u8>, Errno> {
    let ipc = &namespaces::current().ipc;
    let [of_set, all, operations, sets] = ipc.limits.semaphores.each_ref().map(Limit::get);
    Ok(format!("{of_set}\t{all}\t{operations}\t{sets}\n").into_bytes())
}

/// Changes the first of them, as many as the text has numbers; as on Linux those before a wrong one
/// count.
///
/// # Errors
/// `EINVAL`; `ERANGE` for more sets than there are numbers for.
fn set_semaphore_limits(text: &[u8]) -> Result<(), Errno> {
    let ipc = &namespaces::current().ipc;
    let numbers = text
        .split(u8::is_ascii_whitespace)
        .filter(|number| !number.is_empty());
    let bounds = [
        (INT_MAX, Errno::EINVAL),
        (INT_MAX, Errno::EINVAL),
        (INT_MAX, Errno::EINVAL),
        (MAX_OBJECTS, Errno::ERANGE),
    ];
    let limits = ipc.limits.semaphores.iter().zip(bounds);
    for ((limit, (most, beyond)), number) in limits.zip(numbers) {
        let number = parse(number).ok_or(Errno::EINVAL)?;
        if !(0..=most).contains(&number) {
            return Err(beyond);
        }
        limit.set(number as u64);
    }
    Ok(())
}

/// The numbers of `/proc/sys/kernel/printk`.
fn printk() -> Result<Vec<u8>, Errno> {
    let [console, unnamed, least, first] = PRINTK
        .each_ref()
        .map(|number| number.load(Ordering::Relaxed));
    Ok(format!("{console}\t{unnamed}\t{least}\t{first}\n").into_bytes())
}

/// Changes the first of them, as many as the text has numbers; as on Linux those before a wrong one
/// count.
///
/// # Errors
/// `EINVAL`.
fn set_printk(text: &[u8]) -> Result<(), Errno> {
    let words = text.split(u8::is_ascii_whitespace);
    let mut words = words.filter(|word| !word.is_empty()).peekable();
    let mut done = words.peek().map(|_| ()).ok_or(Errno::EINVAL);
    for (number, word) in PRINTK.iter().zip(words) {
        match parse(word).map(i32::try_from) {
            Some(Ok(new)) => number.store(new, Ordering::Relaxed),
            _ => {
                done = Err(Errno::EINVAL);
                break;
            }
        }
    }
    klog::apply_console_level();
    done
}

/// Text of a setting, and what changes it.
type Lines = (
    &'static str,
    fn() -> Result<Vec<u8>, Errno>,
    fn(&[u8]) -> Result<(), Errno>,
);

/// The settings that are not one number.
const LINES: [Lines; 3] = [
    ("kernel/sem", semaphore_limits, set_semaphore_limits),
    ("kernel/printk", printk, set_printk),
    (
        "kernel/seccomp/actions_logged",
        || Ok(actions_logged::logged_names().into_bytes()),
        |text| {
            check_sys_admin()?;
            actions_logged::set_logged(text)
        },
    ),
];

/// Adds the settings to `/proc/sys`.
pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    for (path, show, set) in LINES {
        let file = pseudo::setting_file(PseudoAttr::new(dev, 0o644), show, set);
        add_at_path(dir, path, file);
    }
    for setting in SETTINGS {
        let file = pseudo::setting_file(
            PseudoAttr::new(dev, setting.mode),
            || Ok(format!("{}\n", (setting.get)()).into_bytes()),
            |text| setting.store(text),
        );
        add_at_path(dir, setting.path, file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_linux_does() {
        for (text, number) in [
            ("5\n", Some(5)),
            (" -1", Some(-1)),
            ("0x10 ", Some(16)),
            ("010\t", Some(8)),
            ("0", Some(0)),
            ("18446744073709551615\n", Some(Number::from(u64::MAX))),
            ("7 8", Some(7)),
            ("", None),
            ("\n", None),
            ("-", None),
            ("5x", None),
            ("+5", None),
            ("0x", None),
            ("09", None),
        ] {
            assert_eq!(parse(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn a_command_line_sets_what_it_names() {
        apply_command_line(
            "quiet sysctl.kernel.kptr_restrict=2 sysctl.kernel/sem_next_id=-7 sysctl.x",
        );
        assert_eq!(KPTR_RESTRICT.swap(0, Ordering::Relaxed), 2);
    }

    #[test]
    fn paths_are_there_once_and_values_within_their_ranges() {
        for (place, setting) in SETTINGS.iter().enumerate() {
            let Tunable {
                path, range, get, ..
            } = setting;
            let again = SETTINGS[place + 1..]
                .iter()
                .any(|other| other.path == *path);
            assert!(!again, "{path}");
            if setting.mode != 0o444 {
                assert!((range.0..=range.1).contains(&get()), "{path}: {}", get());
            }
        }
    }
}
