//! `monitor`: carries out the restart policies, and takes back loans of CPUs.
//!
//! A round looks at all instances and does what is due. It knows nothing but what the kernel's
//! records and the files of [`Store`] say, so one monitor goes on where another one was killed, and
//! an event only tells it when to look. It is started by whoever starts an instance with a policy,
//! if there is none, and ends when there is nothing left for it to do.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use abi::dev::{self, Event, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::apply;
use crate::device::Device;
use crate::failure::{Context, Failure, Result};
use crate::instances::{self, CreateOptions, label, nanoseconds};
use crate::loans::{self, Class, Open};
use crate::managed::{self, Cause};
use crate::restart::Policy;
use crate::state::{Lock, Record, Store};
use crate::streams::is_ready;

/// The monitor's role, of which there is one.
const ROLE: &str = "monitor";
/// Lock under which the role is taken or looked at: who only looks has the role for a moment, and
/// must not be taken for a monitor.
const GATE: &str = "monitor-gate";
/// Interval between looks at what somebody else has locked, and until it is known again what there
/// is to do after a look that failed.
const AGAIN: Duration = Duration::from_millis(200);

/// Outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// No instance has a policy that could come to something.
    Nothing,
    /// The next event.
    Event,
    /// The end of this time, or an event.
    After(Duration),
}

impl Next {
    fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(one), Self::After(other)) => Self::After(one.min(other)),
            (Self::After(one), _) | (_, Self::After(one)) => Self::After(one),
            (Self::Event, _) | (_, Self::Event) => Self::Event,
            _ => Self::Nothing,
        }
    }
}

/// Next step for an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// The instance may end.
    Event,
    /// The instance was put into its place and not started: whoever did it was killed.
    Start,
    Restart(Duration),
    /// Nobody knows yet.
    Later,
}

fn due(status: &Status, record: &Record, now_ns: u64) -> Due {
    let wanted = record.restart != Policy::No && !record.stopped && !managed::is_aside(status);
    match status.state {
        // Its `apply` is at work, or was killed, and what is to become of that one is found out.
        _ if record.staged && record.restart != Policy::No => Due::Later,
        dev::STATE_CREATED if wanted && record.starting => Due::Start,
        dev::STATE_CREATED | dev::STATE_RUNNING if wanted => Due::Event,
        _ if wanted && record.restart.wants(status, record.restarts) => {
            Due::Restart(record.backoff.remaining(status, now_ns))
        }
        _ => Due::Nothing,
    }
}

/// Looks at all instances once, and starts those again that are due.
fn round(
    device: &dyn Device,
    store: &Store,
    clock: &dyn Fn() -> SystemTime,
    out: &mut dyn Write,
) -> Result<Next> {
    let mut next = Next::Nothing;
    if let Some(_role) = store.try_lock_role(apply::ROLE)? {
        apply::recover(device, store)?;
    }
    next = next.sooner(match loans::settle(device, store, out)? {
        Open::Nothing => Next::Nothing,
        Open::Loans => Next::Event,
        Open::Busy => Next::After(AGAIN),
    });
    for status in instances::all(device)? {
        next = next.sooner(
            look_at(device, store, &status, clock(), out).unwrap_or_else(|failure| {
                // Where that goes is gone: nothing more can be said.
                let _ = writeln!(out, "{}: {failure}", label(&status));
                Next::After(AGAIN)
            }),
        );
    }
    Ok(next)
}

fn look_at(
    device: &dyn Device,
    store: &Store,
    status: &Status,
    now: SystemTime,
    out: &mut dyn Write,
) -> Result<Next> {
    let now_ns = nanoseconds(now);
    let due_now = |status: &Status| {
        let record = store.read(status.id)?;
        Ok::<_, Failure>(record.map(|record| (due(status, &record, now_ns), record)))
    };
    match due_now(status)? {
        None | Some((Due::Nothing, _)) => return Ok(Next::Nothing),
        Some((Due::Event, _)) => return Ok(Next::Event),
        Some((Due::Later, _)) => return Ok(Next::After(AGAIN)),
        Some((Due::Restart(left), _)) if !left.is_zero() => return Ok(Next::After(left)),
        Some((Due::Start | Due::Restart(_), _)) => {}
    }
    let Some(_lock) = store.try_lock(label(status))? else {
        return Ok(Next::After(AGAIN));
    };
    // Whoever had the lock may have done something about it.
    let name = label(status).to_owned();
    let Ok(status) = device.status(status.id) else {
        return Ok(Next::Nothing);
    };
    if label(&status) != name {
        return Ok(Next::After(Duration::ZERO));
    }
    match due_now(&status)? {
        Some((Due::Start, _)) => {
            instances::start(device, &status)?;
            let _ = writeln!(out, "{name}: started");
        }
        Some((Due::Restart(left), record)) if left.is_zero() => {
            restart(device, store, &status, &record, now, out)?;
        }
        _ => return Ok(Next::After(Duration::ZERO)),
    }
    Ok(Next::Event)
}

/// Restarts an instance; if that fails, it is tried again later.
fn restart(
    device: &dyn Device,
    store: &Store,
    status: &Status,
    record: &Record,
    now: SystemTime,
    out: &mut dyn Write,
) -> Result<()> {
    let name = label(status).to_owned();
    match managed::replace(device, store, status, record, Cause::Policy, now) {
        Ok(_) => {
            let _ = writeln!(out, "{name}: restarted ({})", record.restarts + 1);
            Ok(())
        }
        Err(failure) => {
            store.update(status.id, |record| {
                record.backoff = record.backoff.after_failure(status, nanoseconds(now));
                record.error = Some(failure.message.clone());
            })?;
            Err(failure)
        }
    }
}

/// Carries out the policies until it is ended, or, in the background, until there is nothing left
/// to do. Another one that is at work already is enough.
///
/// # Errors
/// If the supervisor cannot be watched.
pub fn run(
    device: &dyn Device,
    store: &Store,
    background: bool,
    out: &mut dyn Write,
) -> Result<()> {
    let Some(mut role) = take_role(store)? else {
        return writeln!(out, "another monitor is at work").context(|| "standard output");
    };
    let events = device.events(dev::EVENTS_FOLLOW);
    let mut events = File::from(events.context(|| "cannot watch the instances")?);
    if background {
        writeln!(out, "at work")
            .and_then(|()| out.flush())
            .and_then(|()| leave_the_caller())
            .context(|| "cannot go on in the background")?;
    }
    let look = |out: &mut dyn Write| {
        round(device, store, &SystemTime::now, out).unwrap_or_else(|failure| {
            let _ = writeln!(out, "{failure}");
            Next::After(AGAIN)
        })
    };
    loop {
        let mut next = look(out);
        if background && next == Next::Nothing {
            drop(role);
            // Whoever makes an instance with a policy looks for a monitor afterwards: one that came
            // before the role was given up is seen now.
            next = look(out);
            if next == Next::Nothing {
                return Ok(());
            }
            let Some(again) = take_role(store)? else {
                return Ok(());
            };
            role = again;
        }
        wait(&mut events, next).context(|| "cannot watch the instances")?;
    }
}

/// Waits for an event or for the end of a time, and takes the events there are: what they tell is
/// looked up.
fn wait(events: &mut File, next: Next) -> io::Result<()> {
    let limit = match next {
        Next::After(limit) => Timespec::try_from(limit).ok(),
        Next::Event | Next::Nothing => None,
    };
    let mut fds = [PollFd::new(&*events, PollFlags::IN)];
    match poll(&mut fds, limit.as_ref()) {
        Err(rustix::io::Errno::INTR) => {}
        other => other.map(drop)?,
    }
    let mut bytes = [0; 64 * size_of::<Event>()];
    while is_ready(&*events)? && events.read(&mut bytes)? > 0 {}
    Ok(())
}

/// Makes the process one of its own, without its caller's terminal, folder and streams.
fn leave_the_caller() -> io::Result<()> {
    // Its caller's group has a leader; this one is not it.
    rustix::process::setsid()?;
    std::env::set_current_dir("/")?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(nowhere.as_fd())?;
    rustix::stdio::dup2_stdout(nowhere.as_fd())?;
    rustix::stdio::dup2_stderr(nowhere.as_fd())?;
    Ok(())
}

/// Whether a monitor is at work.
///
/// # Errors
/// If that cannot be told.
pub fn is_at_work(store: &Store) -> Result<bool> {
    let _gate = store.lock_role(GATE)?;
    let role = store.try_lock_role(ROLE)?;
    Ok(role.is_none())
}

/// The role of the monitor, if nobody has it.
fn take_role(store: &Store) -> Result<Option<Lock>> {
    let _gate = store.lock_role(GATE)?;
    store.try_lock_role(ROLE)
}

/// Whether an instance needs a monitor at work.
#[must_use]
pub fn is_needed(options: &CreateOptions, restart: Policy) -> bool {
    restart != Policy::No || options.class == Some(Class::Latency)
}

/// Sees to it that a monitor is at work. To be called after an instance that needs one was made,
/// and before it is started.
///
/// # Errors
/// If none can be started.
pub fn ensure(store: &Store) -> Result<()> {
    if is_at_work(store)? {
        return Ok(());
    }
    let cannot = || "cannot start `skerry monitor`, which restarts instances";
    let program = std::env::current_exe().context(cannot)?;
    let mut monitor = Command::new(program)
        .args(["monitor", "--background"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context(cannot)?;
    let mut said = String::new();
    if let Some(output) = monitor.stdout.take() {
        BufReader::new(output)
            .read_line(&mut said)
            .context(cannot)?;
    }
    // It says something when it has the role, or another one has it.
    if said.is_empty() {
        let status = monitor.wait().context(cannot)?;
        return Err(Failure::new(format!("{}: {status}", cannot())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Mock, TestDirectory, request};

    struct Here {
        _directory: TestDirectory,
        mock: Mock,
        store: Store,
    }

    impl Here {
        fn new() -> Self {
            let directory = TestDirectory::new();
            let store = Store::at(&directory.0, "boot").unwrap();
            Self {
                _directory: directory,
                mock: Mock::new(4, 1 << 30),
                store,
            }
        }

        fn start(&self, name: &str, command: &[&str], restart: Policy) -> u32 {
            let options = request(name, command);
            let now = SystemTime::now();
            managed::create(&self.mock, &self.store, &options, restart, now).unwrap();
            managed::start(&self.mock, &self.store, name).unwrap();
            instances::find(&self.mock, name).unwrap().id
        }

        /// A round at a time in seconds since 1970; the mock's instances end at 1 ns.
        fn round(&self, seconds: f64) -> Next {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
            round(&self.mock, &self.store, &|| now, &mut io::sink()).unwrap()
        }

        fn restarts(&self, name: &str) -> u32 {
            let id = instances::find(&self.mock, name).unwrap().id;
            self.store.read(id).unwrap().unwrap().restarts
        }
    }

    #[test]
    fn a_failing_program_is_restarted_as_often_as_its_policy_says() {
        let here = Here::new();
        here.start(
            "box",
            &["say", "x", "1"],
            Policy::OnFailure { most: Some(3) },
        );
        assert!(matches!(here.round(0.0), Next::After(left) if left.as_millis() == 100));
        assert_eq!(here.restarts("box"), 0, "it is not due");
        for restarts in 1..=3 {
            here.round(1000.0);
            assert_eq!(here.restarts("box"), restarts);
        }
        assert_eq!(here.round(2000.0), Next::Nothing);
        assert_eq!(here.restarts("box"), 3);
    }

    #[test]
    fn what_ended_well_or_was_stopped_stays() {
        let here = Here::new();
        here.start("good", &["say", "x", "0"], Policy::OnFailure { most: None });
        assert_eq!(here.round(1000.0), Next::Nothing);
        here.start("busy", &["sleep", "9"], Policy::Always);
        assert_eq!(here.round(1000.0), Next::Event);
        let busy = managed::mark_stopped(&here.mock, &here.store, "busy").unwrap();
        instances::halt(&here.mock, &busy).unwrap();
        assert_eq!(here.round(1000.0), Next::Nothing);
        let now = SystemTime::now();
        managed::restart(&here.mock, &here.store, "busy", Duration::ZERO, now).unwrap();
        assert_eq!(here.round(1000.0), Next::Event);
    }

    #[test]
    fn one_that_is_locked_is_looked_at_again() {
        let here = Here::new();
        here.start("box", &["say", "x", "1"], Policy::Always);
        let lock = here.store.lock(["box"]).unwrap();
        assert_eq!(here.round(1000.0), Next::After(AGAIN));
        drop(lock);
        here.round(1000.0);
        assert_eq!(here.restarts("box"), 1);
    }

    #[test]
    fn a_restart_without_room_is_tried_again_and_not_counted() {
        let here = Here::new();
        let id = here.start("box", &["say", "x", "1"], Policy::Always);
        here.mock.refuse_loads();
        assert_eq!(here.round(1000.0), Next::After(AGAIN));
        let record = here.store.read(id).unwrap().unwrap();
        assert!(record.error.unwrap().contains("does not fit"));
        assert_eq!(record.restarts, 0);
        assert!(matches!(here.round(1000.0), Next::After(left) if left.as_millis() == 200));
        assert_eq!(here.mock.list().unwrap(), [id]);
    }

    #[test]
    fn who_waits_longest_does_not_decide() {
        let after = |ms| Next::After(Duration::from_millis(ms));
        assert_eq!(Next::Nothing.sooner(Next::Event), Next::Event);
        assert_eq!(after(5).sooner(Next::Event), after(5));
        assert_eq!(Next::Event.sooner(after(5)).sooner(after(3)), after(3));
        assert_eq!(Next::Nothing.sooner(Next::Nothing), Next::Nothing);
    }
}
