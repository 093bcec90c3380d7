//! Random system calls with hostile arguments, from a seed.
//!
//! The process that watches starts *rounds*: each is a process with three threads that make the
//! calls of a list (`program.rs`) on memory and descriptors of every kind (`arena.rs`). A round may
//! die of what it does. What must not happen: that the kernel panics, that a round which is killed
//! does not end, that something is left of it.

mod arena;
mod calls;
mod executables;
mod ioctls;
mod program;
mod round;
mod shapes;
mod themes;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
pub use executables::run as run_executables;
pub use ioctls::run as run_ioctls;
pub use program::Random;
use program::{Shown, Signature};
use round::Counters;

use crate::checked;
use crate::runner::waits;

/// Threads of a round.
const THREADS: u64 = 3;
/// Time limit of a round, after which it is killed.
const ROUND: Duration = Duration::from_secs(4);
/// Time limit for a killed process to end, on a machine that is emulated and busy.
const DEATH: Duration = Duration::from_secs(90);
/// Working directory of the rounds.
const DIRECTORY: &str = "/tmp/fuzz";

/// The users that rounds are made as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Users {
    /// Root and nobody, in an instance of which the watching process is the first.
    Any,
    /// Nobody, beside processes of others, which must not notice.
    Nobody,
}

struct Options {
    users: Users,
    seed: u64,
    seconds: u64,
    processes: usize,
    /// Only this round, with each of its calls shown before it is made.
    round: Option<u64>,
}

/// `machine-tests fuzz [--nobody] TABLE SEED SECONDS PROCESSES [ROUND]`, and
/// `machine-tests fuzz-show TABLE SEED ROUND`.
pub fn run(arguments: &[&str]) -> ExitCode {
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("fuzz: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &[&str]) -> Result<()> {
    let (users, arguments) = match arguments {
        ["--nobody", rest @ ..] => (Users::Nobody, rest),
        _ => (Users::Any, arguments),
    };
    ensure!(
        users == Users::Nobody || std::process::id() == 1,
        "it would harm other processes: it runs as the first process of an instance only"
    );
    run_from_sealed_memory()?;
    let [table, seed, seconds, processes, rest @ ..] = arguments else {
        bail!("usage: fuzz [--nobody] TABLE SEED SECONDS PROCESSES [ROUND]")
    };
    let signatures = program::signatures(
        &fs::read_to_string(table).with_context(|| format!("cannot read {table}"))?,
    );
    ensure!(!signatures.is_empty(), "{table} has no calls");
    let round = rest.first().map(|round| round.parse()).transpose()?;
    let options = Options {
        users,
        seed: seed.parse()?,
        seconds: seconds.parse()?,
        processes: processes.parse()?,
        round,
    };
    Watch::new(options, signatures)?.run()
}

/// Runs this program again from a file that nobody can change: a round may find and truncate
/// `/proc/self/exe`.
fn run_from_sealed_memory() -> Result<()> {
    const SEALS: i32 =
        libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let own = fs::File::open("/proc/self/exe")?;
    // SAFETY: numbers only.
    if unsafe { libc::fcntl(own.as_raw_fd(), libc::F_GET_SEALS) } == SEALS {
        return Ok(());
    }
    // SAFETY: the name is a string that ends with a zero byte; nothing else has the descriptor.
    let mut copy = unsafe {
        let fd = checked(libc::memfd_create(
            c"fuzz".as_ptr(),
            libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
        ))?;
        fs::File::from_raw_fd(fd)
    };
    std::io::copy(&mut &own, &mut copy)?;
    // SAFETY: numbers only.
    checked(unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    // What is open for writing cannot be run.
    let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
    let readable = fs::File::open(&path)?;
    drop(copy);
    let error = Command::new(format!("/proc/self/fd/{}", readable.as_raw_fd()))
        .args(std::env::args().skip(1))
        .exec();
    Err(error).context("cannot run from memory")
}

/// Prints the calls of a round.
pub fn show(arguments: &[&str]) -> ExitCode {
    let outcome = || -> Result<()> {
        let [table, seed, round] = arguments else {
            bail!("usage: fuzz-show TABLE SEED ROUND")
        };
        let signatures = program::signatures(&fs::read_to_string(table)?);
        for thread in 0..THREADS {
            for (index, call) in program::calls(&signatures, seed.parse()?, round.parse()?, thread)
                .iter()
                .enumerate()
            {
                println!("{thread}.{index} {}", Shown(call, &signatures));
            }
        }
        Ok(())
    };
    crate::report("fuzz-show", outcome())
}

/// A round that runs.
struct Running {
    round: u64,
    since: Instant,
    killed: bool,
}

struct Watch {
    options: Options,
    signatures: Vec<Signature>,
    counters: &'static Counters,
    running: BTreeMap<i32, Running>,
    next: u64,
    ended: u64,
    refused_since: Option<Instant>,
}

impl Watch {
    fn new(options: Options, signatures: Vec<Signature>) -> Result<Self> {
        fs::create_dir_all(DIRECTORY)?;
        fs::set_permissions(DIRECTORY, fs::Permissions::from_mode(0o1777))?;
        round::prepare()?;
        // A round of root's may unmount `/proc` ("proc" after a `chdir` to "/"). Who stands in it
        // still reads it by relative paths.
        std::env::set_current_dir("/proc")?;
        // SAFETY: numbers only. What rounds leave is this process' to take in.
        checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) })?;
        // Threads of a round that may go before all others and never sleep have the CPUs until
        // somebody ends them: there is no throttle.
        let first = libc::sched_param {
            sched_priority: calls::WATCHER_PRIORITY as i32,
        };
        // SAFETY: the structure is valid. Rounds begin as ordinary processes.
        checked(unsafe {
            libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &first)
        })?;
        let next = options.round.unwrap_or(0);
        Ok(Self {
            options,
            signatures,
            counters: Counters::map()?,
            running: BTreeMap::new(),
            next,
            ended: 0,
            refused_since: None,
        })
    }

    fn run(mut self) -> Result<()> {
        let start = Instant::now();
        let time = Duration::from_secs(self.options.seconds);
        loop {
            let over = start.elapsed() >= time
                || self.options.round.is_some() && self.next > self.options.round.unwrap_or(0);
            if over && self.running.is_empty() {
                break;
            }
            while !over && self.running.len() < self.options.processes && self.begin()? {
                if self.options.round.is_some() {
                    break;
                }
            }
            self.look_after_killed()?;
            self.reap(Duration::from_millis(100));
        }
        self.nothing_is_left()?;
        let (calls, done) = self.counters.totals();
        let (good, others): (Vec<_>, Vec<_>) = self
            .signatures
            .iter()
            .partition(|known| self.counters.has_succeeded(known.number));
        let others: Vec<_> = others
            .iter()
            .map(|known| known.name.as_str())
            .filter(|name| !program::LEFT_OUT.contains(name))
            .collect();
        println!(
            "fuzz-result {{\"rounds\": {}, \"calls\": {calls}, \"succeeded\": {done}, \"calls_that_succeeded_once\": {}, \"calls_that_never_did\": {others:?}}}",
            self.ended,
            good.len()
        );
        Ok(())
    }

    /// Starts a round; none if there is no memory for it at this time.
    fn begin(&mut self) -> Result<bool> {
        let round = self.next;
        // What is shown last before a panic is what was going on. On one CPU all rounds but one
        // wait.
        println!("round {round}");
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => round::run(
                &self.signatures,
                self.counters,
                (self.options.seed, round),
                self.options.users,
                self.options.round.is_some(),
            ),
            -1 => {
                let since = *self.refused_since.get_or_insert_with(Instant::now);
                ensure!(
                    since.elapsed() < DEATH,
                    "no process could be made for {} s: {}",
                    DEATH.as_secs(),
                    std::io::Error::last_os_error()
                );
                Ok(false)
            }
            pid => {
                self.refused_since = None;
                self.next += 1;
                self.running.insert(
                    pid,
                    Running {
                        round,
                        since: Instant::now(),
                        killed: false,
                    },
                );
                Ok(true)
            }
        }
    }

    /// Ends rounds whose time is over, and finds those that do not end.
    fn look_after_killed(&mut self) -> Result<()> {
        for (&pid, running) in &mut self.running {
            if running.since.elapsed() > ROUND && !running.killed {
                running.killed = true;
                kill(pid);
            }
            ensure!(
                running.since.elapsed() < ROUND + DEATH,
                "HUNG: process {pid} of round {} was killed and does not end\n{}",
                running.round,
                waits(pid)
            );
        }
        Ok(())
    }

    /// Takes ended children until there is none for so long.
    fn reap(&mut self, time: Duration) {
        loop {
            let mut status = 0;
            // SAFETY: the status is written to a variable of this function's.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
            if pid <= 0 {
                break;
            }
            if libc::WIFSTOPPED(status) {
                // SAFETY: numbers only.
                unsafe { libc::kill(pid, libc::SIGCONT) };
            } else if self.running.remove(&pid).is_some() {
                kill(pid);
                self.ended += 1;
            }
        }
        let mut set = std::mem::MaybeUninit::zeroed();
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // SAFETY: the set is made before it is read, and lives as long as the calls. SIGCHLD is
        // blocked so that none is missed.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &time);
        }
    }

    /// Ends whatever the rounds have started, and sees that it ends.
    fn nothing_is_left(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let others: Vec<i32> = fs::read_dir(".")?
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .filter(|&pid| pid != std::process::id() as i32)
                .filter(|&pid| self.options.users == Users::Any || is_of_nobody(pid))
                .collect();
            if others.is_empty() {
                return Ok(());
            }
            others.iter().for_each(|&pid| kill(pid));
            let waits: String = others.iter().map(|&pid| waits(pid)).collect();
            ensure!(
                start.elapsed() < DEATH,
                "HUNG: processes {others:?} are killed and do not end\n{waits}"
            );
            self.reap(Duration::from_millis(200));
        }
    }
}

/// Whether a process is of a user that rounds are made as; the working directory is `/proc`.
fn is_of_nobody(pid: i32) -> bool {
    let nobody = round::NOBODY.to_string();
    fs::read_to_string(format!("{pid}/status")).is_ok_and(|status| {
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .is_some_and(|ids| ids.split_whitespace().any(|id| id == nobody))
    })
}

/// Ends a round and what is in its group.
fn kill(pid: i32) {
    // SAFETY: numbers only.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::kill(-pid, libc::SIGKILL);
    }
}
