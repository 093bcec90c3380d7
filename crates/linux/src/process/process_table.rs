//! Which processes there are, and how they are related: parents, groups, sessions, and what parents
//! have not been told yet.

use alloc::collections::{BTreeMap, BTreeSet, LinkedList};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::{AtomicI32, Ordering};

use ::task::Mutex;
use abi::errno::Errno;
use fallible::Pieces;
use fs::tty::{CallerIds as TtyProcess, JobControl};
use linux_raw_sys::general::CAP_CHECKPOINT_RESTORE;
use uapi::pid::{Pgid, Pid, Sid, Tid};
use uapi::siginfo::{SigInfo, sigmask};

use crate::Task;
use crate::process::{Process, send_signal};

/// `/proc/sys/kernel/pid_max`: numbers are below this one; the next begins again below.
pub(crate) static PID_MAX: AtomicI32 = AtomicI32::new(32_768);
/// The highest that [`PID_MAX`] can be (Linux' `PID_MAX_LIMIT`).
pub(crate) const PID_MAX_LIMIT: i32 = 4 << 20;
/// Numbers below this one are given once only.
pub(crate) const RESERVED_PIDS: i32 = 300;

/// Children of a process in the order in which it got them. In small pieces: a process may get
/// thousands by the end of another one, which must not fail for want of memory in a row.
#[derive(Default)]
pub(crate) struct Children {
    pids: BTreeMap<u64, Pid>,
    next: u64,
}

impl Children {
    fn add(&mut self, pid: Pid) {
        self.pids.insert(self.next, pid);
        self.next += 1;
    }

    fn remove(&mut self, pid: Pid) {
        self.pids.retain(|_, &mut child| child != pid);
    }

    fn iter(&self) -> impl Iterator<Item = &Pid> {
        self.pids.values()
    }

    /// The first child at or behind a place, and the place behind it; places begin with 0.
    pub(crate) fn at(&self, place: u64) -> Option<(u64, Pid)> {
        let (place, pid) = self.pids.range(place..).next()?;
        Some((place + 1, *pid))
    }
}

/// A process and its relations.
pub(crate) struct ProcessEntry {
    pub(crate) process: Arc<Process>,
    pub(crate) children: Children,
    pub(crate) group: Pgid,
    pub(crate) session: Sid,
    /// Wait status, once the process has ended.
    pub(crate) exit_status: Option<i32>,
    /// Whether it has ended and its tracer, which is not its parent, is told first.
    pub(crate) awaits_tracer: bool,
    /// The signal that stopped it, until the parent has been told.
    pub(crate) stop_report: Option<i32>,
    /// Whether it went on after a stop and the parent has not been told.
    pub(crate) continue_report: bool,
    /// Whether it has called `execve(2)` since it was made: its parent cannot move it any more.
    pub(crate) did_exec: bool,
    /// Descendants whose parents end become its children (`PR_SET_CHILD_SUBREAPER`).
    pub(crate) subreaper: bool,
}

impl ProcessEntry {
    pub(crate) fn parent(&self) -> Pid {
        self.process.parent()
    }
}

/// Parent, process group and session of a process. Process 1 has parent 0.
#[derive(Clone, Copy, Default)]
pub(crate) struct Relations {
    pub(crate) parent: Pid,
    pub(crate) group: Pgid,
    pub(crate) session: Sid,
}

/// Sizes of the process table.
pub(crate) struct TableCounts {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// Children that are listed with their parents.
    pub(crate) children: usize,
}

/// All processes and threads.
#[derive(Default)]
pub(crate) struct ProcessTable {
    entries: BTreeMap<Pid, ProcessEntry>,
    tasks: BTreeMap<Tid, Weak<Task>>,
    last: i32,
}

/// The table of all processes.
pub(crate) static TABLE: Mutex<ProcessTable> = Mutex::new(ProcessTable {
    entries: BTreeMap::new(),
    tasks: BTreeMap::new(),
    last: 0,
});

impl ProcessTable {
    /// Entry of a process.
    pub(crate) fn entry(&self, pid: Pid) -> Option<&ProcessEntry> {
        self.entries.get(&pid)
    }

    /// Entry of the process of a thread, by the thread's number.
    pub(crate) fn entry_by_tid(&self, tid: Tid) -> Option<&ProcessEntry> {
        self.entry(tid.led_process())
            .or_else(|| self.entry(self.tasks.get(&tid)?.upgrade()?.pid()))
    }

    /// Entry of a process, to be changed.
    pub(crate) fn entry_mut(&mut self, pid: Pid) -> Option<&mut ProcessEntry> {
        self.entries.get_mut(&pid)
    }

    /// Whether a number is neither a process's, a thread's, a group's nor a session's.
    fn is_free(&self, number: i32) -> bool {
        !self.entries.contains_key(&Pid::new(number))
            && !self.tasks.contains_key(&Tid::new(number))
            && !self
                .entries
                .values()
                .any(|n| n.group == Pgid::new(number) || n.session == Sid::new(number))
    }

    fn allocate(&mut self) -> Option<Tid> {
        let last = PID_MAX.load(Ordering::Relaxed) - 1;
        for _ in 0..last {
            self.last = if self.last >= last {
                RESERVED_PIDS
            } else {
                self.last + 1
            };
            // Before the numbers have come round once, none can be taken.
            if self.is_free(self.last) {
                return Some(Tid::new(self.last));
            }
        }
        None
    }

    pub(crate) fn group_exists(&self, group: Pgid) -> bool {
        self.entries.values().any(|n| n.group == group)
    }

    pub(crate) fn session_of(&self, group: Pgid) -> Option<Sid> {
        self.entries
            .values()
            .find(|n| n.group == group)
            .map(|n| n.session)
    }

    /// Whether no member of a group has a parent in another group of the same session.
    fn is_orphaned(&self, group: Pgid) -> bool {
        !self
            .entries
            .values()
            .filter(|n| n.group == group && n.exit_status.is_none())
            .any(|n| {
                self.entries
                    .get(&n.parent())
                    .is_some_and(|parent| parent.group != group && parent.session == n.session)
            })
    }

    fn has_stopped(&self, group: Pgid) -> bool {
        self.entries
            .values()
            .any(|n| n.group == group && n.exit_status.is_none() && n.process.is_stopped())
    }

    /// Number of the process that gets the children of one that has ended: the nearest living
    /// ancestor, `parent` or above, that asked for it (`PR_SET_CHILD_SUBREAPER`), or 1.
    fn find_new_reaper(&self, parent: Pid) -> Pid {
        let mut pid = parent;
        while let Some(entry) = self.entries.get(&pid) {
            if entry.subreaper && entry.exit_status.is_none() {
                return pid;
            }
            pid = entry.parent();
        }
        Pid::INIT
    }

    /// Takes a process that has ended out of the table.
    pub(crate) fn reap(&mut self, pid: Pid) -> Option<ProcessEntry> {
        let entry = self.entries.remove(&pid)?;
        if let Some(parent) = self.entries.get_mut(&entry.parent()) {
            parent.children.remove(pid);
        }
        Some(entry)
    }
}

/// A number for a new process or thread; `None` if all are taken.
pub(crate) fn allocate() -> Option<Tid> {
    TABLE.lock().allocate()
}

/// Takes the number that was asked for (`set_tid` of `clone3(2)`).
///
/// # Errors
/// `EEXIST` if somebody has it, `EINVAL` if it is none.
pub(crate) fn allocate_exact(number: i32) -> Result<Tid, Errno> {
    if !(1..PID_MAX.load(Ordering::Relaxed)).contains(&number) {
        return Err(Errno::EINVAL);
    }
    if TABLE.lock().is_free(number) {
        Ok(Tid::new(number))
    } else {
        Err(Errno::EEXIST)
    }
}

/// Enters a new process as a child of `parent` ([`Pid::NONE`] for process 1), in whose group and
/// session it is.
pub(crate) fn add_process(parent: Pid, process: Arc<Process>) {
    let pid = process.pid();
    let mut table = TABLE.lock();
    let (mut group, mut session) = (pid.own_group(), pid.own_session());
    if let Some(entry) = table.entries.get_mut(&parent) {
        entry.children.add(pid);
        (group, session) = (entry.group, entry.session);
    }
    process.set_parent(parent);
    let entry = ProcessEntry {
        process,
        children: Children::default(),
        group,
        session,
        exit_status: None,
        awaits_tracer: false,
        stop_report: None,
        continue_report: false,
        did_exec: false,
        subreaper: false,
    };
    table.entries.insert(pid, entry);
}

/// Removes a process that never ran.
pub(crate) fn remove_unstarted_process(pid: Pid) {
    let entry = TABLE.lock().reap(pid);
    drop(entry);
}

/// Adds a thread to the table by its number.
pub(crate) fn add_task(task: &Arc<Task>) {
    TABLE.lock().tasks.insert(task.tid(), Arc::downgrade(task));
}

/// Takes a thread out.
pub(crate) fn remove_task(tid: Tid) {
    TABLE.lock().tasks.remove(&tid);
}

/// Gives a thread its process's number.
pub(crate) fn rename_task(task: &Task, pid: Pid) {
    let leader = pid.leader();
    let mut table = TABLE.lock();
    if let Some(entry) = table.tasks.remove(&task.tid()) {
        table.tasks.insert(leader, entry);
    }
    task.set_tid(leader);
    task.thread().set_ids(pid.as_u32(), leader.as_u32());
}

/// The number of processes, of threads and of listed children.
pub(crate) fn counts() -> TableCounts {
    let table = TABLE.lock();
    TableCounts {
        processes: table.entries.len(),
        threads: table.tasks.len(),
        children: table
            .entries
            .values()
            .map(|entry| entry.children.pids.len())
            .sum(),
    }
}

/// The process with this number, living or not waited for yet.
#[must_use]
pub fn find(pid: Pid) -> Option<Arc<Process>> {
    TABLE.lock().entries.get(&pid).map(|n| n.process.clone())
}

/// Whether a process has ended, waited for or not.
pub(crate) fn has_ended(process: &Arc<Process>) -> bool {
    let table = TABLE.lock();
    table
        .entries
        .get(&process.pid())
        .is_none_or(|entry| entry.exit_status.is_some() || !Arc::ptr_eq(&entry.process, process))
}

/// The thread with this number.
#[must_use]
pub fn find_task(tid: Tid) -> Option<Arc<Task>> {
    TABLE.lock().tasks.get(&tid)?.upgrade()
}

/// Process of a thread, by the thread's number.
///
/// # Errors
/// `ESRCH`.
pub(crate) fn find_by_tid(tid: Tid) -> Result<Arc<Process>, Errno> {
    find(tid.led_process())
        .or_else(|| find_task(tid).map(|task| task.process().clone()))
        .ok_or(Errno::ESRCH)
}

/// The numbers of all processes, ascending.
#[must_use]
pub fn pids() -> Vec<Pid> {
    TABLE.lock().entries.keys().copied().collect()
}

/// All processes for which `which` holds.
pub(crate) fn processes_where(which: impl Fn(Pid, &ProcessEntry) -> bool) -> Pieces<Arc<Process>> {
    TABLE
        .lock()
        .entries
        .iter()
        .filter(|(pid, entry)| which(**pid, entry))
        .map(|(_, entry)| entry.process.clone())
        .collect()
}

/// The process with the next higher number. For going through all of them without a list, which
/// takes memory; what comes and goes meanwhile may be met or not.
pub(crate) fn next_process(after: Pid) -> Option<Arc<Process>> {
    let table = TABLE.lock();
    let mut higher = table.entries.range((Excluded(after), Unbounded));
    higher.next().map(|(_, entry)| entry.process.clone())
}

/// Processes of a group, the youngest first: in this order Linux goes through them, and which error
/// is told depends on it.
pub(crate) fn group_members(group: Pgid) -> Pieces<Arc<Process>> {
    let table = TABLE.lock();
    let youngest_first = table.entries.values().rev();
    youngest_first
        .filter(|entry| entry.group == group)
        .map(|entry| entry.process.clone())
        .collect()
}

/// The number given out last.
#[must_use]
pub fn last_pid() -> i32 {
    TABLE.lock().last
}

/// Makes the numbers of new processes begin behind this one (`/proc/sys/kernel/ns_last_pid`).
///
/// # Errors
/// `EPERM` to who may not restore processes; `EINVAL`.
pub(crate) fn set_last_pid(number: i32) -> Result<(), Errno> {
    let allowed = crate::current_task().is_none_or(|task| {
        let cred = task.cred();
        cred.has_sys_admin() || cred.capable(CAP_CHECKPOINT_RESTORE)
    });
    if !allowed {
        return Err(Errno::EPERM);
    }
    if number >= PID_MAX.load(Ordering::Relaxed) {
        return Err(Errno::EINVAL);
    }
    TABLE.lock().last = number;
    Ok(())
}

/// Number of threads of all processes.
#[must_use]
pub fn thread_count() -> usize {
    TABLE.lock().tasks.len()
}

/// Parent, process group and session of a process; zeros if there is no such process.
pub(crate) fn relations(pid: Pid) -> Relations {
    TABLE
        .lock()
        .entries
        .get(&pid)
        .map_or_else(Relations::default, |n| Relations {
            parent: n.parent(),
            group: n.group,
            session: n.session,
        })
}

/// Records for the parent that a process was stopped by a signal, or (`None`) goes on. Returns the
/// parent.
pub(crate) fn record_stop(pid: Pid, signal: Option<i32>) -> Option<Arc<Process>> {
    let mut table = TABLE.lock();
    let entry = table.entries.get_mut(&pid)?;
    entry.stop_report = signal;
    entry.continue_report = signal.is_none();
    let parent = entry.parent();
    table.entries.get(&parent).map(|n| n.process.clone())
}

/// Records that a process has called `execve(2)`, after which its parent cannot move it to another
/// group.
pub(crate) fn set_did_exec(pid: Pid) {
    if let Some(entry) = TABLE.lock().entries.get_mut(&pid) {
        entry.did_exec = true;
    }
}

/// Makes a process the one that orphans among its descendants go to, or not.
pub(crate) fn set_subreaper(pid: Pid, on: bool) {
    if let Some(entry) = TABLE.lock().entries.get_mut(&pid) {
        entry.subreaper = on;
    }
}

/// Whether orphans among its descendants go to it.
pub(crate) fn is_subreaper(pid: Pid) -> bool {
    TABLE
        .lock()
        .entries
        .get(&pid)
        .is_some_and(|entry| entry.subreaper)
}

/// Processes and groups that have to be told about the end of a process. In lists of small pieces,
/// as [`Children`].
#[derive(Default)]
pub(crate) struct ExitEffects<'a> {
    /// The parent, to be told before `announcement` is dropped.
    pub(crate) parent: Option<Arc<Process>>,
    /// None if a tracer is told first.
    pub(crate) announcement: Option<ExitAnnouncement<'a>>,
    /// Children, which have a new parent.
    pub(crate) reparented: LinkedList<Arc<Process>>,
    /// Groups with stopped members whom nobody can continue now.
    pub(crate) orphaned_groups: LinkedList<Pgid>,
    /// The new parent, if some of the children have ended already.
    pub(crate) new_reaper: Option<Arc<Process>>,
}

/// The time between an end that `wait(2)` can find and its signal. Made under the table's lock,
/// and dropped when the signal has been sent: until then `wait(2)` does not return with that end.
/// So a parent that is told by it has the signal, as on Linux, where one lock is held over both.
#[must_use = "the signal is to be sent before it is dropped"]
pub(crate) struct ExitAnnouncement<'a>(&'a Process);

impl<'a> ExitAnnouncement<'a> {
    fn new(process: &'a Process) -> Self {
        process.exit_announced.store(false, Ordering::SeqCst);
        Self(process)
    }
}

impl Drop for ExitAnnouncement<'_> {
    fn drop(&mut self) {
        self.0.exit_announced.store(true, Ordering::SeqCst);
        self.0.exit_waiters.notify();
    }
}

/// Makes a process that has ended a zombie, which waits for its parent unless that does not want to
/// know; its children become those of the nearest subreaper, or of process 1.
pub(crate) fn exit_notify(process: &Process, status: i32, held: bool) -> ExitEffects<'_> {
    let mut effects = ExitEffects::default();
    let pid = process.pid();
    let mut reaped = LinkedList::new();
    let mut table = TABLE.lock();
    let table = &mut *table;
    let Some(entry) = table.entries.get_mut(&pid) else {
        return effects;
    };
    entry.exit_status = Some(status);
    entry.awaits_tracer = held;
    let (parent, own_group, own_session) = (entry.parent(), entry.group, entry.session);
    let children = core::mem::take(&mut entry.children);
    // A group is orphaned by this end only if it loses a tie to another group of its session: one
    // that had none before hears nothing.
    let other = |pid: &Pid| {
        table
            .entries
            .get(pid)
            .filter(|n| n.group != own_group && n.session == own_session)
            .map(|n| n.group)
    };
    let mut groups: BTreeSet<Pgid> = children.iter().filter_map(other).collect();
    groups.extend(other(&parent).map(|_| own_group));
    let reaper = table.find_new_reaper(parent);
    let reaper_process = table.entries.get(&reaper).map(|n| n.process.clone());
    let heir_waits = reaper_process
        .as_ref()
        .is_some_and(|reaper| !reaper.sighand().reaps_children());
    for &child in children.iter() {
        let Some(entry) = table.entries.get_mut(&child) else {
            continue;
        };
        entry.process.set_parent(reaper);
        // Who gets it waits for ordinary children only, and would never hear of one whose end was
        // to be told by another signal.
        entry
            .process
            .set_exit_signal(linux_raw_sys::general::SIGCHLD as i32);
        effects.reparented.push_back(entry.process.clone());
        if entry.exit_status.is_some() && !entry.awaits_tracer {
            effects.new_reaper.clone_from(&reaper_process);
            if !heir_waits {
                reaped.extend(table.entries.remove(&child));
                continue;
            }
        }
        if let Some(entry) = table.entries.get_mut(&reaper) {
            entry.children.add(child);
        }
    }
    effects.orphaned_groups = groups
        .into_iter()
        .filter(|&g| table.has_stopped(g) && table.is_orphaned(g))
        .collect();
    effects.parent = table.entries.get(&parent).map(|n| n.process.clone());
    let unwanted = effects
        .parent
        .as_ref()
        .is_none_or(|parent| parent.sighand().reaps_children());
    if !held {
        effects.announcement = Some(ExitAnnouncement::new(process));
        if unwanted {
            reaped.extend(table.reap(pid));
        }
    }
    effects
}

/// Lets the parent, which is returned, wait for a process whose tracer has been told of its end.
pub(crate) fn release_to_parent(process: &Process) -> Option<(Arc<Process>, ExitAnnouncement<'_>)> {
    let pid = process.pid();
    let mut table = TABLE.lock();
    let entry = table
        .entries
        .get_mut(&pid)
        .filter(|entry| entry.awaits_tracer)?;
    entry.awaits_tracer = false;
    let parent = entry.parent();
    let parent = table.entries.get(&parent).map(|n| n.process.clone());
    // Dropped when the lock is open.
    let _reaped = if parent
        .as_ref()
        .is_none_or(|parent| parent.sighand().reaps_children())
    {
        table.reap(pid)
    } else {
        None
    };
    let announcement = ExitAnnouncement::new(process);
    drop(table);
    Some((parent?, announcement))
}

/// The personality's side of terminals' job control.
pub(crate) struct TtyJobControl;

impl JobControl for TtyJobControl {
    fn caller(&self) -> Option<TtyProcess> {
        let task = crate::current_task()?;
        let Relations { group, session, .. } = relations(task.pid());
        Some(TtyProcess {
            pid: task.pid().as_u32(),
            group: group.as_u32(),
            session: session.as_u32(),
        })
    }

    fn is_ignored(&self, signal: u32) -> bool {
        let Some(task) = crate::current_task() else {
            return false;
        };
        let signal = signal.cast_signed();
        let blocked = task.signals.lock().blocked;
        blocked & sigmask(signal) != 0 || task.process().sighand().is_ignored(signal)
    }

    fn signal_group(&self, group: u32, signal: u32) {
        send_signal::send_group(
            Pgid::new(group.cast_signed()),
            SigInfo::kernel(signal.cast_signed()),
        );
    }

    fn signal_process(&self, pid: u32, signal: u32) {
        if let Some(process) = find(Pid::new(pid.cast_signed())) {
            send_signal::send(&process, SigInfo::kernel(signal.cast_signed()));
        }
    }

    fn is_orphaned(&self, group: u32) -> bool {
        TABLE.lock().is_orphaned(Pgid::new(group.cast_signed()))
    }

    fn session_of(&self, group: u32) -> Option<u32> {
        TABLE
            .lock()
            .session_of(Pgid::new(group.cast_signed()))
            .map(Sid::as_u32)
    }

    fn owner(&self) -> (u32, u32) {
        crate::current_task().map_or((0, 0), |task| {
            let cred = task.fs_cred();
            (cred.uid, cred.gid)
        })
    }
}
