//! Job control: which session a terminal belongs to, which group of processes may use it, and who
//! is told what.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::{Mutex, Once};

use super::Tty;
use crate::Result;

/// The calling process, as a terminal sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallerIds {
    /// Its id.
    pub pid: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
}

impl CallerIds {
    fn is_leader(self) -> bool {
        self.pid == self.session
    }
}

/// Process groups and signals as terminals need them; the Linux personality implements it.
pub trait JobControl: Send + Sync {
    /// The process that calls; `None` in a kernel thread.
    fn caller(&self) -> Option<CallerIds>;

    /// Whether the calling thread ignores or blocks a signal.
    fn is_ignored(&self, signal: u32) -> bool;

    /// Sends a signal to every process of a group.
    fn signal_group(&self, group: u32, signal: u32);

    /// Sends a signal to one process.
    fn signal_process(&self, pid: u32, signal: u32);

    /// Whether a group has no member whose parent is in another group of the same session: nobody
    /// could continue it if it stopped.
    fn is_orphaned(&self, group: u32) -> bool;

    /// The session a group is in; `None` if there is no such group.
    fn session_of(&self, group: u32) -> Option<u32>;

    /// The caller's user and group: who owns a terminal that it makes.
    fn owner(&self) -> (u32, u32) {
        (0, 0)
    }
}

static JOB_CONTROL: Once<Arc<dyn JobControl>> = Once::new();

/// Installs the personality's side. Before that, and in kernel threads, terminals know no job
/// control. Only the first call counts.
pub fn set_job_control(hook: Arc<dyn JobControl>) {
    JOB_CONTROL.call_once(|| hook);
}

pub(super) fn job_control() -> Option<&'static Arc<dyn JobControl>> {
    JOB_CONTROL.get()
}

pub(super) fn caller() -> Option<CallerIds> {
    job_control()?.caller()
}

/// User and group of what the caller makes; root in a kernel thread.
pub(super) fn owner() -> (u32, u32) {
    job_control().map_or((0, 0), |hook| hook.owner())
}

/// The controlling terminal of each session that has one.
static CONTROLLING: Mutex<BTreeMap<u32, Arc<Tty>>> = Mutex::new(BTreeMap::new());

/// How many sessions have one.
pub(crate) fn controlling_count() -> u64 {
    CONTROLLING.lock().len() as u64
}

/// The controlling terminal of a session.
#[must_use]
pub fn controlling(session: u32) -> Option<Arc<Tty>> {
    CONTROLLING.lock().get(&session).cloned()
}

/// Session and foreground process group of a terminal.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct JobControlState {
    pub(super) session: Option<u32>,
    pub(super) foreground: Option<u32>,
}

impl Tty {
    /// Makes this the controlling terminal of the caller, if it leads a session without one and the
    /// terminal is free. `steal` takes it from the session that has it.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn set_controlling(self: &Arc<Self>, steal: bool) -> Result<()> {
        let process = caller().ok_or(Errno::EPERM)?;
        let mut table = CONTROLLING.lock();
        let mut jobs = self.jobs.lock();
        if jobs.session == Some(process.session) {
            return Ok(());
        }
        if !process.is_leader() || table.contains_key(&process.session) {
            return Err(Errno::EPERM);
        }
        let old = match jobs.session {
            Some(_) if !steal => return Err(Errno::EPERM),
            Some(session) => table.remove(&session),
            None => None,
        };
        table.insert(process.session, self.clone());
        *jobs = JobControlState {
            session: Some(process.session),
            foreground: Some(process.group),
        };
        drop(jobs);
        drop(table);
        drop(old);
        Ok(())
    }

    /// The caller gives its controlling terminal up (`TIOCNOTTY`); if it leads the session, the
    /// whole session does.
    ///
    /// # Errors
    /// `ENOTTY` if this is not the caller's controlling terminal.
    pub(super) fn disassociate(&self) -> Result<()> {
        let process = caller().ok_or(Errno::ENOTTY)?;
        if self.jobs.lock().session != Some(process.session) {
            return Err(Errno::ENOTTY);
        }
        if process.is_leader() {
            clear_controlling(process.session, &GIVEN_UP);
        }
        Ok(())
    }

    /// Refuses or stops a caller in the background: reading (`SIGTTIN`), writing or changing
    /// settings (`SIGTTOU`).
    ///
    /// # Errors
    /// `EIO`, or `ERESTARTSYS` after the signal was sent.
    pub(super) fn check_foreground(&self, signal: u32) -> Result<()> {
        let Some(hook) = job_control() else {
            return Ok(());
        };
        let Some(process) = hook.caller() else {
            return Ok(());
        };
        let jobs = *self.jobs.lock();
        if jobs.session != Some(process.session)
            || jobs.foreground.is_none_or(|group| group == process.group)
        {
            return Ok(());
        }
        if hook.is_ignored(signal) {
            return if signal == sys::SIGTTIN {
                Err(Errno::EIO)
            } else {
                Ok(())
            };
        }
        if hook.is_orphaned(process.group) {
            return Err(Errno::EIO);
        }
        hook.signal_group(process.group, signal);
        Err(Errno::ERESTARTSYS)
    }

    /// The foreground group.
    #[must_use]
    pub fn foreground(&self) -> Option<u32> {
        self.jobs.lock().foreground
    }

    /// The session whose controlling terminal this is.
    #[must_use]
    pub fn session(&self) -> Option<u32> {
        self.jobs.lock().session
    }

    pub(super) fn set_foreground(&self, group: i32) -> Result<()> {
        let hook = job_control().ok_or(Errno::ENOTTY)?;
        let process = hook.caller().ok_or(Errno::ENOTTY)?;
        if self.session() != Some(process.session) {
            return Err(Errno::ENOTTY);
        }
        let group = u32::try_from(group).map_err(|_| Errno::EINVAL)?;
        match hook.session_of(group) {
            None => return Err(Errno::ESRCH),
            Some(session) if session != process.session => return Err(Errno::EPERM),
            Some(_) => {}
        }
        self.jobs.lock().foreground = Some(group);
        Ok(())
    }

    /// Sends a signal to the foreground group.
    pub fn signal_foreground(&self, signal: u32) {
        if let (Some(hook), Some(group)) = (job_control(), self.foreground()) {
            hook.signal_group(group, signal);
        }
    }

    /// Tells the session that the line is gone.
    pub(super) fn signal_hangup(&self) {
        let Some(hook) = job_control() else { return };
        let jobs = *self.jobs.lock();
        if let Some(session) = jobs.session {
            hook.signal_process(session, sys::SIGHUP);
            hook.signal_process(session, sys::SIGCONT);
            clear_controlling(session, &GIVEN_UP);
        }
    }
}

/// Signals to the foreground group when the terminal is given up, or its line is gone.
const GIVEN_UP: [u32; 2] = [sys::SIGHUP, sys::SIGCONT];

/// A session's leader ends: its controlling terminal is free again, and the foreground group hears
/// `SIGHUP`. Open files go on, as those of pseudo-terminals do on Linux.
pub fn session_leader_exits(session: u32) {
    clear_controlling(session, &[sys::SIGHUP]);
}

/// Takes a session its controlling terminal, and sends the foreground group signals.
fn clear_controlling(session: u32, signals: &[u32]) {
    let Some(tty) = CONTROLLING.lock().remove(&session) else {
        return;
    };
    let jobs = core::mem::take(&mut *tty.jobs.lock());
    if let (Some(hook), Some(group)) = (job_control(), jobs.foreground) {
        for &signal in signals {
            hook.signal_group(group, signal);
        }
    }
}
