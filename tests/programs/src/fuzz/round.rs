//! One round: a process that makes the calls of its list.

use std::arch::asm;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, thread};

use anyhow::{Result, ensure};

use super::program::{self, CHILD_PID, Call, OWN_PID, Random, Shown, Signature};
use super::{DIRECTORY, THREADS, Users, arena};
use crate::checked;

/// The user and group of rounds that are not root's.
pub(super) const NOBODY: u32 = 65534;
/// The descriptor by which calls are shown.
const SHOWN: i32 = 250;
/// Descriptor of `/dev/null`, opened before the first round: a round that runs as root may remove
/// the file.
const NOWHERE: i32 = 251;
/// Descriptor of the file by which requests for memory are refused, opened as root.
const REFUSALS: i32 = 252;
/// One call of so many begins with one of the next requests of its thread refused.
const REFUSED_ONE_OF: usize = 4;
/// Calls that make a process or thread, which ends at once; but a child of `fork` makes some of the
/// calls that follow.
const MAKES_TASK: [u64; 4] = [56, FORK, 58, 435];
const FORK: u64 = libc::SYS_fork as u64;
/// Number of calls of a child.
const CALLS_OF_CHILD: usize = 20;

/// Counters of all rounds together.
pub struct Counters {
    made: [AtomicU64; 512],
    succeeded: [AtomicU64; 512],
}

impl Counters {
    /// In memory that the rounds share.
    pub fn map() -> Result<&'static Self> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                access,
                flags,
                -1,
                0,
            )
        };
        ensure!(at != libc::MAP_FAILED, "no memory to count in");
        // SAFETY: it is large enough, aligned, all zeros, atomic throughout, and never unmapped.
        Ok(unsafe { &*at.cast() })
    }

    fn count(&self, call: u64, result: i64) {
        let Some(made) = self.made.get(call as usize) else {
            return;
        };
        made.fetch_add(1, Ordering::Relaxed);
        if !(-4095..0).contains(&result) {
            self.succeeded[call as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of calls that were made, and of those that succeeded.
    pub fn totals(&self) -> (u64, u64) {
        let sum = |counters: &[AtomicU64]| {
            counters
                .iter()
                .map(|counter| counter.load(Ordering::Relaxed))
                .sum()
        };
        (sum(&self.made), sum(&self.succeeded))
    }

    /// Whether this call succeeded once.
    pub fn has_succeeded(&self, call: u64) -> bool {
        self.succeeded
            .get(call as usize)
            .is_some_and(|counter| counter.load(Ordering::Relaxed) > 0)
    }
}

/// Prepares what has to be there before the first round.
pub fn prepare() -> Result<()> {
    let null = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    // SAFETY: numbers only.
    checked(unsafe { libc::dup2(null.as_raw_fd(), NOWHERE) })?;
    if let Ok(refusals) = fs::File::options()
        .write(true)
        .open("/proc/skerry/fail-nth")
    {
        // SAFETY: numbers only.
        checked(unsafe { libc::dup2(refusals.as_raw_fd(), REFUSALS) })?;
    }
    Ok(())
}

/// Makes the calls, and ends the process.
pub fn run(
    signatures: &[Signature],
    counters: &'static Counters,
    (seed, round): (u64, u64),
    users: Users,
    show: bool,
) -> ! {
    let lists: Vec<_> = (0..THREADS)
        .map(|thread| program::calls(signatures, seed, round, thread))
        .collect();
    let lines: Vec<Vec<String>> = (lists.iter().enumerate())
        .map(|(thread, list)| {
            let line =
                |(index, call)| format!("{round}.{thread}.{index} {}\n", Shown(call, signatures));
            if show {
                list.iter().enumerate().map(line).collect()
            } else {
                Vec::new()
            }
        })
        .collect();
    let child = set_up(&mut Random::new(seed, round, 99), users, show);
    let threads: Vec<_> = lists
        .into_iter()
        .zip(lines)
        .map(|(list, lines)| {
            thread::Builder::new().spawn(move || {
                interrupt_often();
                make(&list, &lines, counters, child, true);
            })
        })
        .collect();
    for thread in threads.into_iter().flatten() {
        drop(thread.join());
    }
    // SAFETY: nothing is to be done at the end of this process.
    unsafe { libc::_exit(0) }
}

/// Makes the process such that nothing it does can stop it for long; returns a child that does
/// nothing.
fn set_up(random: &mut Random, users: Users, show: bool) -> i32 {
    // SAFETY: numbers, and structures that live as long as the calls. The handler does nothing.
    unsafe {
        libc::setsid();
        if show {
            libc::dup2(1, SHOWN);
        }
        for fd in 0..3 {
            libc::dup2(NOWHERE, fd);
        }
        libc::close(NOWHERE);
        for (what, limit) in [
            (libc::RLIMIT_FSIZE, 4 << 20),
            (libc::RLIMIT_AS, 256 << 20),
            (libc::RLIMIT_NPROC, 100),
        ] {
            libc::setrlimit(
                what,
                &libc::rlimit {
                    rlim_cur: limit,
                    rlim_max: limit,
                },
            );
        }
        if users == Users::Nobody {
            // Before it has anything that only root can have.
            become_nobody();
        }
        let child = libc::fork();
        if child == 0 {
            loop {
                libc::pause();
            }
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        for signal in 1..=64 {
            if ![
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGFPE,
                libc::SIGTRAP,
                libc::SIGSYS,
            ]
            .contains(&signal)
            {
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        directory(random);
        arena::descriptors(child);
        arena::map();
        if random.below(3) == 0 && users == Users::Any {
            become_nobody();
        }
        child
    }
}

/// Goes on as nobody in particular.
fn become_nobody() {
    // SAFETY: numbers only. Who cannot become it does not go on as root.
    unsafe {
        libc::setgroups(0, std::ptr::null());
        libc::setresgid(NOBODY, NOBODY, NOBODY);
        if libc::setresuid(NOBODY, NOBODY, NOBODY) != 0 {
            libc::_exit(1);
        }
    }
}

/// Has every wait of the calling thread interrupted.
pub(super) fn interrupt_often() {
    let often = libc::timespec {
        tv_sec: 0,
        tv_nsec: 5_000_000,
    };
    // SAFETY: structures of zeros are valid; they live as long as the calls.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer = std::ptr::null_mut();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0 {
            let time = libc::itimerspec {
                it_interval: often,
                it_value: often,
            };
            libc::timer_settime(timer, 0, &time, std::ptr::null_mut());
        }
    }
}

pub(super) extern "C" fn nothing(_: i32) {}

/// A directory of this round's own, with files in it.
fn directory(random: &mut Random) {
    let path = format!("{DIRECTORY}/{}", std::process::id());
    drop(fs::remove_dir_all(&path));
    drop(fs::create_dir(&path));
    if std::env::set_current_dir(&path).is_ok() {
        arena::files(&broken_program(random));
    } else {
        // What it leaves must not be the files of the machine.
        drop(std::env::set_current_dir("/tmp"));
    }
}

/// The beginning of this very program with some of its headers' bytes changed.
fn broken_program(random: &mut Random) -> Vec<u8> {
    use std::io::Read;
    let mut elf = Vec::new();
    if let Ok(file) = fs::File::open("/proc/self/exe") {
        drop(file.take(16384).read_to_end(&mut elf));
    }
    for _ in 0..random.below(6) {
        let at = random.below(64 + 56 * 8) as usize;
        if let Some(byte) = elf.get_mut(at) {
            let other = random.next() as u8;
            *byte = random.pick(&[0, 1, 0x7f, 0x80, 0xff, other]);
        }
    }
    elf
}

fn make(list: &[Call], lines: &[String], counters: &Counters, child: i32, forks: bool) {
    for (index, call) in list.iter().enumerate() {
        if !forks && MAKES_TASK.contains(&(call.number & 0xffff)) {
            continue;
        }
        if index % 16 == 15 {
            arena::map();
        }
        if let Some(line) = lines.get(index) {
            // SAFETY: a string of the program's own.
            unsafe { libc::write(SHOWN, line.as_ptr().cast(), line.len()) };
        }
        let mut pokes = call.pokes.iter();
        // SAFETY: the arena is nothing that this program relies on. If it is no longer there, the
        // process dies of it, as it may.
        pokes
            .by_ref()
            .for_each(|&(address, value)| unsafe { (address as *mut u64).write_unaligned(value) });
        let arguments = call.arguments.map(|argument| match argument {
            OWN_PID => u64::from(std::process::id()),
            CHILD_PID => child as u64,
            argument => argument,
        });
        if let Some(frame) = call.frame {
            // SAFETY: the process goes on wherever the frame says, or dies. That is what is tried.
            unsafe {
                asm!("mov rsp, {}", "mov eax, 15", "syscall", "ud2", in(reg) frame, options(noreturn))
            }
        }
        if index % REFUSED_ONE_OF == 0 {
            let n = b'1' + (call.number ^ index as u64) as u8 % 8;
            // SAFETY: a byte of the program's own.
            unsafe { libc::write(REFUSALS, (&raw const n).cast(), 1) };
        }
        let result = if call.number == FORK {
            fork(|| {
                let after = index + 1..list.len().min(index + 1 + CALLS_OF_CHILD);
                make(
                    &list[after.clone()],
                    lines.get(after).unwrap_or(&[]),
                    counters,
                    child,
                    false,
                );
            })
        } else {
            system_call(call.number, arguments)
        };
        counters.count(call.number, result);
    }
}

/// Makes a child of the calling thread, which does this and ends. It must not allocate: another
/// thread may have had the allocator's lock.
fn fork(work: impl FnOnce()) -> i64 {
    // SAFETY: the child goes on with a copy of everything. The raw call, because the library's
    // waits for locks of its own.
    let result = unsafe { libc::syscall(libc::SYS_fork) };
    if result == 0 {
        interrupt_often();
        work();
        // SAFETY: nothing is to be done at the end of this process.
        unsafe { libc::_exit(0) }
    }
    result
}

/// Makes the call; a task that it makes ends at once.
fn system_call(number: u64, arguments: [u64; 6]) -> i64 {
    let makes_task = u64::from(MAKES_TASK.contains(&(number & 0xffff)));
    let result;
    // SAFETY: whatever it does to this process, the process may die of it; the watching one checks
    // what must hold.
    unsafe {
        asm!(
            "syscall",
            "test r12, r12",
            "jz 2f",
            "test rax, rax",
            "jnz 2f",
            "mov eax, 60",
            "xor edi, edi",
            "syscall",
            "2:",
            inlateout("rax") number => result,
            inlateout("rdi") arguments[0] => _,
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            in("r12") makes_task,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}
