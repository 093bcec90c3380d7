//! Many checks in one boot: side by side where they do not disturb each other, and a hang costs
//! nobody but the check that hangs.
//!
//! Each check is a process that leads a group of its own, with an empty directory, a time limit,
//! and nothing to read. When it has ended, or its time is over, the whole group is killed and the
//! next one begins.

use std::fs::{self, File};
use std::io::{PipeReader, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use anyhow::{Context, Result, ensure};

use crate::{checked, exclusive, leaks};

/// Time limit for a killed process to end, on a machine that is emulated and busy.
const DEATH: Duration = Duration::from_secs(60);
/// Mark at the beginning and end of a check's result; `cargo xtask test` looks for it, and no check
/// prints it.
const MARK: &str = "@@skerry-check@@";
/// The status of a check whose time was over, as `timeout -s KILL` has it.
const OVERDUE: i32 = 137;

/// A line of the list: `NUMBER PROGRAM NAME`.
struct Job {
    number: String,
    program: PathBuf,
    name: String,
}

/// `machine-tests batch JOBS SECONDS LIST`: so many at a time, each for so long.
pub fn run(arguments: [&str; 3]) -> ExitCode {
    match as_first_process(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("batch: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The first process of an instance has to take in orphans, which checks wait for: that is left to
/// a process of its own.
fn as_first_process(arguments: [&str; 3]) -> Result<()> {
    if std::process::id() != 1 {
        return start(arguments);
    }
    let child = Command::new("/proc/self/exe")
        .args(std::env::args().skip(1))
        .spawn()?
        .id();
    loop {
        let mut status = 0;
        // SAFETY: the status is written to a variable of this function's.
        let pid = checked(unsafe { libc::waitpid(-1, &mut status, 0) })?;
        if pid as u32 == child {
            ensure!(status == 0, "the runner ended with wait status {status:#x}");
            return Ok(());
        }
    }
}

fn start([jobs, seconds, list]: [&str; 3]) -> Result<()> {
    let (jobs, limit) = (jobs.parse()?, Duration::from_secs(seconds.parse()?));
    let text = fs::read_to_string(list).with_context(|| format!("cannot read {list}"))?;
    let all = text.lines().map(parse).collect::<Result<Vec<_>>>()?;
    // What the first look itself leaves behind, it leaves before the second one; and the file
    // systems of namespaces and of memfd_create(2) are made by who is first to need them.
    drop(File::open("/proc/self/ns/mnt"));
    // SAFETY: the name ends with a zero byte; nothing else has the descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(checked(libc::memfd_create(c"first".as_ptr(), 0))?) });
    leaks::look();
    let before = leaks::look();
    tell("before", list, &before);
    let (alone, mut others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|job| exclusive::is_exclusive(&job.name));
    others.reverse();
    let others = Mutex::new(others);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(job) = next(&others) {
                    report(&job, limit);
                }
            });
        }
    });
    alone.iter().for_each(|job| report(job, limit));
    tell("after", list, &leaks::look_until_as(&before));
    Ok(())
}

/// Prints what there is in the machine, if it says so.
fn tell(when: &str, list: &str, objects: &Option<String>) {
    let place = list.rsplit('/').next().unwrap_or_default();
    if let Some(objects) = objects {
        say(&format!(
            "\n{MARK} objects {when} {place}\n{objects}\n{MARK} objects end\n"
        ));
    }
}

fn parse(line: &str) -> Result<Job> {
    let words: Vec<_> = line.split(' ').collect();
    let &[number, program, name] = words.as_slice() else {
        anyhow::bail!("{line:?} is not `NUMBER PROGRAM NAME`")
    };
    Ok(Job {
        number: number.into(),
        program: program.into(),
        name: name.into(),
    })
}

fn next(jobs: &Mutex<Vec<Job>>) -> Option<Job> {
    jobs.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .pop()
}

/// Runs a check, and prints what it printed and how it ended.
fn report(job: &Job, limit: Duration) {
    // Should the machine stop: what was going on.
    say(&format!("\n{MARK} start {}\n", job.number));
    let start = Instant::now();
    let (output, status) = carry_out(job, limit)
        .unwrap_or_else(|error| (format!("it could not be run: {error:#}"), 1));
    let took = start.elapsed().as_millis();
    say(&format!(
        "\n{MARK} begin {}\n{output}\n{MARK} end {status} {took}\n",
        job.number
    ));
}

/// All of it at once, so that nothing of another check comes in between.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    // Nobody reads any more: there is nobody to tell.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn carry_out(job: &Job, limit: Duration) -> Result<(String, i32)> {
    let directory = PathBuf::from(format!("/tmp/work-{}", job.number));
    fs::create_dir_all(&directory)?;
    let mut output = unnamed(&directory)?;
    let waiter = Waiter::new()?;
    let mut child = Command::new(&job.program)
        .arg(&job.name)
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("{}", job.program.display()))?;
    let (complaint, status) = watch(&mut child, waiter, limit)?;
    // What a check left here is not worth a failure.
    let _ = fs::remove_dir_all(&directory);
    let mut printed = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut printed)?;
    Ok((
        String::from_utf8_lossy(&printed).into_owned() + &complaint,
        status,
    ))
}

/// A file for what a check prints, which nobody else finds.
fn unnamed(directory: &std::path::Path) -> Result<File> {
    let path = directory.join("output");
    let file = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// A thread that waits for a process. It is made before the process: a check may count what there
/// is in the machine, and one thread more, or a descriptor of the process, from some moment of the
/// check on would be counted. So would be a wait for a futex that begins after the check's first
/// look: nobody waits for one while a check runs.
struct Waiter {
    process: Sender<i32>,
    /// At its end when the process is.
    ended: PipeReader,
}

impl Waiter {
    fn new() -> Result<Self> {
        let (process, given) = mpsc::channel();
        let (ended, end) = io::pipe()?;
        thread::spawn(move || {
            // Without a process there is nothing to wait for, and nobody who asks.
            let _ = given.recv().map(over);
            drop(end);
        });
        Ok(Self { process, ended })
    }

    /// Waits until the process has ended, for so long at most; whether it has.
    fn ends_within(&self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        let mut ended = libc::pollfd {
            fd: self.ended.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        loop {
            // Up to a millisecond more, so that the last wait is not too short.
            let left = deadline
                .saturating_duration_since(Instant::now())
                .as_millis()
                + 1;
            // SAFETY: one structure, which lives as long as the call.
            let ready = checked(unsafe { libc::poll(&mut ended, 1, left.try_into()?) });
            match ready {
                Ok(0) if Instant::now() < deadline => {}
                Ok(ready) => return Ok(ready > 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns when a child has ended, and leaves it to be waited for.
fn over(pid: i32) {
    // SAFETY: zeroes are a structure of no signal.
    let mut info = unsafe { mem::zeroed() };
    // SAFETY: numbers, and a structure that lives as long as the call.
    while unsafe {
        libc::waitid(
            libc::P_PID,
            pid as libc::id_t,
            &mut info,
            libc::WEXITED | libc::WNOWAIT,
        )
    } != 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Waits for a check's end, or makes one: what is to be said of it if its time was over, and its
/// status as shells show it.
fn watch(child: &mut Child, waiter: Waiter, limit: Duration) -> Result<(String, i32)> {
    let pid = child.id() as i32;
    waiter.process.send(pid)?;
    let in_time = waiter.ends_within(limit)?;
    let waits = if in_time {
        String::new()
    } else {
        format!("\nits processes when its time was over:\n{}", group(pid))
    };
    // Before it is waited for: until then no other group has its number.
    // SAFETY: numbers only.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    if !in_time && !waiter.ends_within(DEATH)? {
        return Ok((
            format!("{waits}\nkilled, it does not end:\n{}", group(pid)),
            OVERDUE,
        ));
    }
    let status = child.wait()?;
    let status = status.code().unwrap_or(128 + status.signal().unwrap_or(0));
    Ok((waits, if in_time { status } else { OVERDUE }))
}

/// Text of `/proc` about the processes of a group.
fn group(leader: i32) -> String {
    let Ok(entries) = fs::read_dir("/proc") else {
        return String::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| group_of(pid) == Some(leader))
        .map(waits)
        .collect()
}

fn group_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state, parent, group.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(2)?
        .parse()
        .ok()
}

/// Where a process's threads are.
pub fn waits(pid: i32) -> String {
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return text;
    };
    for task in tasks.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text += &format!(
            "{}\n{}\n{}\n",
            read("stat").trim(),
            read("syscall").trim(),
            read("stack").trim()
        );
    }
    text
}
