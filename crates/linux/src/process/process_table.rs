//! Which processes there are, and how they are related: parents, groups, sessions, and what parents
//! have not been told yet.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use ::task::Mutex;
use abi::errno::Errno;
use fs::tty::{CallerIds as TtyProcess, JobControl};

use crate::Task;
use crate::process::{Process, send_signal};
use crate::uapi::pid::{Pgid, Pid, Sid, Tid};
use crate::uapi::siginfo::{SigInfo, bit};

/// Numbers begin again after this one (`/proc/sys/kernel/pid_max`).
const LAST_NUMBER: i32 = 32_767;
/// Numbers below are used once only.
const FIRST_RECYCLED: i32 = 300;

/// A process and its relations.
pub(crate) struct ProcessEntry {
    pub(crate) process: Arc<Process>,
    pub(crate) children: Vec<Pid>,
    pub(crate) group: Pgid,
    pub(crate) session: Sid,
    /// Wait status, once the process has ended.
    pub(crate) ended: Option<i32>,
    /// Whether it has ended and its tracer, who is not its parent, is told first.
    pub(crate) held: bool,
    /// The signal that stopped it, until the parent has been told.
    pub(crate) stop_report: Option<i32>,
    /// Whether it went on after a stop and the parent has not been told.
    pub(crate) continue_report: bool,
    pub(crate) has_run_exec: bool,
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
    nodes: BTreeMap<Pid, ProcessEntry>,
    tasks: BTreeMap<Tid, Weak<Task>>,
    last: i32,
}

/// The one table.
pub(crate) static TABLE: Mutex<ProcessTable> = Mutex::new(ProcessTable {
    nodes: BTreeMap::new(),
    tasks: BTreeMap::new(),
    last: 0,
});

impl ProcessTable {
    pub(crate) fn node(&self, pid: Pid) -> Option<&ProcessEntry> {
        self.nodes.get(&pid)
    }

    /// The process that a number means, which may be any of its threads'.
    pub(crate) fn node_of_any(&self, tid: Tid) -> Option<&ProcessEntry> {
        self.node(tid.led_process())
            .or_else(|| self.node(self.tasks.get(&tid)?.upgrade()?.pid()))
    }

    pub(crate) fn node_mut(&mut self, pid: Pid) -> Option<&mut ProcessEntry> {
        self.nodes.get_mut(&pid)
    }

    /// Whether a number is neither a process's, a thread's, a group's nor a session's.
    fn is_free(&self, number: i32) -> bool {
        !self.nodes.contains_key(&Pid::new(number))
            && !self.tasks.contains_key(&Tid::new(number))
            && !self
                .nodes
                .values()
                .any(|n| n.group == Pgid::new(number) || n.session == Sid::new(number))
    }

    fn allocate(&mut self) -> Option<Tid> {
        for _ in 0..LAST_NUMBER {
            self.last = if self.last == LAST_NUMBER {
                FIRST_RECYCLED
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
        self.nodes.values().any(|n| n.group == group)
    }

    pub(crate) fn session_of(&self, group: Pgid) -> Option<Sid> {
        self.nodes
            .values()
            .find(|n| n.group == group)
            .map(|n| n.session)
    }

    /// Whether no member of a group has a parent in another group of the same session.
    fn is_orphaned(&self, group: Pgid) -> bool {
        !self
            .nodes
            .values()
            .filter(|n| n.group == group && n.ended.is_none())
            .any(|n| {
                self.nodes
                    .get(&n.parent())
                    .is_some_and(|parent| parent.group != group && parent.session == n.session)
            })
    }

    fn has_stopped(&self, group: Pgid) -> bool {
        self.nodes
            .values()
            .any(|n| n.group == group && n.ended.is_none() && n.process.is_stopped())
    }

    /// Number of the process that gets the children of one that has ended: the nearest living
    /// ancestor, `parent` or above, that asked for it (`PR_SET_CHILD_SUBREAPER`), or 1.
    fn find_new_reaper(&self, parent: Pid) -> Pid {
        let mut pid = parent;
        while let Some(node) = self.nodes.get(&pid) {
            if node.subreaper && node.ended.is_none() {
                return pid;
            }
            pid = node.parent();
        }
        Pid::INIT
    }

    /// Takes a process that has ended out of the table.
    pub(crate) fn reap(&mut self, pid: Pid) -> Option<ProcessEntry> {
        let node = self.nodes.remove(&pid)?;
        if let Some(parent) = self.nodes.get_mut(&node.parent()) {
            parent.children.retain(|&child| child != pid);
        }
        Some(node)
    }
}

/// A number for a new process or thread; `None` if all are taken.
pub(crate) fn allocate() -> Option<Tid> {
    TABLE.lock().allocate()
}

/// Takes a number that was asked for.
///
/// # Errors
/// `EEXIST` if somebody has it, `EINVAL` if it is none.
pub(crate) fn claim(number: i32) -> Result<Tid, Errno> {
    if !(1..=LAST_NUMBER).contains(&number) {
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
    if let Some(node) = table.nodes.get_mut(&parent) {
        node.children.push(pid);
        (group, session) = (node.group, node.session);
    }
    process.set_parent(parent);
    let node = ProcessEntry {
        process,
        children: Vec::new(),
        group,
        session,
        ended: None,
        held: false,
        stop_report: None,
        continue_report: false,
        has_run_exec: false,
        subreaper: false,
    };
    table.nodes.insert(pid, node);
}

/// Takes a process out again that never ran.
pub(crate) fn forget_process(pid: Pid) {
    let node = TABLE.lock().reap(pid);
    drop(node);
}

/// Enters a thread.
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
        processes: table.nodes.len(),
        threads: table.tasks.len(),
        children: table.nodes.values().map(|node| node.children.len()).sum(),
    }
}

/// The process with this number, living or not waited for yet.
#[must_use]
pub fn find(pid: Pid) -> Option<Arc<Process>> {
    TABLE.lock().nodes.get(&pid).map(|n| n.process.clone())
}

/// Whether a process has ended, waited for or not.
pub(crate) fn has_ended(process: &Arc<Process>) -> bool {
    let table = TABLE.lock();
    table
        .nodes
        .get(&process.pid())
        .is_none_or(|node| node.ended.is_some() || !Arc::ptr_eq(&node.process, process))
}

/// The thread with this number.
#[must_use]
pub fn find_task(tid: Tid) -> Option<Arc<Task>> {
    TABLE.lock().tasks.get(&tid)?.upgrade()
}

/// The process that a number means which may be any of its threads'.
///
/// # Errors
/// `ESRCH`.
pub(crate) fn find_any(tid: Tid) -> Result<Arc<Process>, Errno> {
    find(tid.led_process())
        .or_else(|| find_task(tid).map(|task| task.process().clone()))
        .ok_or(Errno::ESRCH)
}

/// The numbers of all processes, ascending.
#[must_use]
pub fn pids() -> Vec<Pid> {
    TABLE.lock().nodes.keys().copied().collect()
}

/// All processes for which `which` holds.
pub(crate) fn select(which: impl Fn(Pid, &ProcessEntry) -> bool) -> Vec<Arc<Process>> {
    TABLE
        .lock()
        .nodes
        .iter()
        .filter(|(pid, node)| which(**pid, node))
        .map(|(_, node)| node.process.clone())
        .collect()
}

/// The processes of a group, the youngest first: in this order Linux goes through them, and which
/// error is told depends on it.
pub(crate) fn of_group(group: Pgid) -> Vec<Arc<Process>> {
    let mut members = select(|_, node| node.group == group);
    members.reverse();
    members
}

/// The number given out last.
#[must_use]
pub fn last_pid() -> i32 {
    TABLE.lock().last
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
        .nodes
        .get(&pid)
        .map_or_else(Relations::default, |n| Relations {
            parent: n.parent(),
            group: n.group,
            session: n.session,
        })
}

/// Remembers for the parent that a process was stopped by a signal, or (`None`) goes on. Returns
/// the parent.
pub(crate) fn note_stop(pid: Pid, signal: Option<i32>) -> Option<Arc<Process>> {
    let mut table = TABLE.lock();
    let node = table.nodes.get_mut(&pid)?;
    node.stop_report = signal;
    node.continue_report = signal.is_none();
    let parent = node.parent();
    table.nodes.get(&parent).map(|n| n.process.clone())
}

/// Remembers that a process has run another program, after which its parent cannot move it to
/// another group.
pub(crate) fn note_exec(pid: Pid) {
    if let Some(node) = TABLE.lock().nodes.get_mut(&pid) {
        node.has_run_exec = true;
    }
}

/// Makes a process the one that orphans among its descendants go to, or not.
pub(crate) fn set_subreaper(pid: Pid, on: bool) {
    if let Some(node) = TABLE.lock().nodes.get_mut(&pid) {
        node.subreaper = on;
    }
}

/// Whether orphans among its descendants go to it.
pub(crate) fn is_subreaper(pid: Pid) -> bool {
    TABLE
        .lock()
        .nodes
        .get(&pid)
        .is_some_and(|node| node.subreaper)
}

/// Processes and groups that have to be told about the end of a process.
#[derive(Default)]
pub(crate) struct ExitEffects {
    pub(crate) parent: Option<Arc<Process>>,
    /// Children, which have a new parent.
    pub(crate) reparented: Vec<Arc<Process>>,
    /// Groups with stopped members whom nobody can continue now.
    pub(crate) orphaned_groups: Vec<Pgid>,
    /// The new parent, if some of the children have ended already.
    pub(crate) new_reaper: Option<Arc<Process>>,
}

/// A process has ended: its children become those of the nearest ancestor that wants them, or
/// process 1's, and it waits to be waited for, unless its parent does not want to know.
pub(crate) fn end(process: &Process, status: i32, held: bool) -> ExitEffects {
    let mut aftermath = ExitEffects::default();
    let pid = process.pid();
    let mut reaped = Vec::new();
    let mut table = TABLE.lock();
    let table = &mut *table;
    let Some(node) = table.nodes.get_mut(&pid) else {
        return aftermath;
    };
    node.ended = Some(status);
    node.held = held;
    let (parent, own_group, own_session) = (node.parent(), node.group, node.session);
    let children = core::mem::take(&mut node.children);
    // A group is orphaned by this end only if it loses a tie to another group of its session: one
    // that had none before hears nothing.
    let other = |pid: &Pid| {
        table
            .nodes
            .get(pid)
            .filter(|n| n.group != own_group && n.session == own_session)
            .map(|n| n.group)
    };
    let mut groups: Vec<Pgid> = children.iter().filter_map(other).collect();
    groups.extend(other(&parent).map(|_| own_group));
    groups.sort_unstable();
    groups.dedup();
    let heir = table.find_new_reaper(parent);
    let heirs_process = table.nodes.get(&heir).map(|n| n.process.clone());
    let heir_waits = heirs_process
        .as_ref()
        .is_some_and(|heir| !heir.actions().reaps_children());
    for &child in &children {
        let Some(node) = table.nodes.get_mut(&child) else {
            continue;
        };
        node.process.set_parent(heir);
        // Who gets it waits for ordinary children only, and would never hear of one whose end was
        // to be told by another signal.
        node.process
            .set_exit_signal(linux_raw_sys::general::SIGCHLD as i32);
        aftermath.reparented.push(node.process.clone());
        if node.ended.is_some() && !node.held {
            aftermath.new_reaper.clone_from(&heirs_process);
            if !heir_waits {
                reaped.extend(table.nodes.remove(&child));
                continue;
            }
        }
        if let Some(node) = table.nodes.get_mut(&heir) {
            node.children.push(child);
        }
    }
    aftermath.orphaned_groups = groups
        .into_iter()
        .filter(|&g| table.has_stopped(g) && table.is_orphaned(g))
        .collect();
    aftermath.parent = table.nodes.get(&parent).map(|n| n.process.clone());
    let unwanted = aftermath
        .parent
        .as_ref()
        .is_none_or(|parent| parent.actions().reaps_children());
    if unwanted && !held {
        reaped.extend(table.reap(pid));
    }
    aftermath
}

/// The tracer of a process that has ended was told: its parent, who is returned, may be now.
pub(crate) fn release(pid: Pid) -> Option<Arc<Process>> {
    let mut table = TABLE.lock();
    let node = table.nodes.get_mut(&pid).filter(|node| node.held)?;
    node.held = false;
    let parent = node.parent();
    let parent = table.nodes.get(&parent).map(|n| n.process.clone());
    // Dropped when the lock is open.
    let _reaped = if parent
        .as_ref()
        .is_none_or(|parent| parent.actions().reaps_children())
    {
        table.reap(pid)
    } else {
        None
    };
    drop(table);
    parent
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
        blocked & bit(signal) != 0 || task.process().actions().is_ignored(signal)
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
