//! What the files of a process are made of.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use fallible::Pieces;
use uapi::pid::{Pid, Tid};
use uapi::siginfo::SigSet;
use vm::AddressSpace;

use crate::process::Process;
use crate::process::image::ProcessImage;
use crate::process::process_table::{self, Relations};
use crate::state::credentials::{Capabilities, Ids};
use crate::state::rlimit::{LIMIT_NAMES, Rlimit};
use crate::state::sched_params::SchedParams;
use crate::state::seccomp::SeccompStatus;
use crate::state::speculation::Speculation;
use crate::state::usage::Usage;
use crate::{Task, ptrace, sched};

/// The most of its arguments or environment that is shown.
const SHOWN_STRINGS: usize = 1 << 20;

/// State of a process of which the texts are made.
pub(crate) struct Snapshot {
    pub(crate) pid: Pid,
    pub(crate) relations: Relations,
    /// Name of the thread, at most 15 bytes.
    pub(crate) name: String,
    /// One letter for what the thread does: `R`, `S`, `T`, `t`, `Z`.
    pub(crate) state: char,
    pub(crate) uids: Ids,
    pub(crate) gids: Ids,
    pub(crate) capabilities: Capabilities,
    pub(crate) no_new_privileges: bool,
    pub(crate) speculation: Speculation,
    pub(crate) seccomp: SeccompStatus,
    /// Ids of the supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// Threads of the process.
    pub(crate) threads: Vec<Tid>,
    /// Usage of the process, and of the children it waited for.
    pub(crate) usage: Usage,
    pub(crate) children_usage: Usage,
    /// When it started, nanoseconds since boot.
    pub(crate) start_ns: u64,
    /// Size of the address space, bytes.
    pub(crate) size_bytes: u64,
    /// The part of it that is in memory, bytes.
    pub(crate) resident_bytes: u64,
    pub(crate) signals: SignalSets,
    /// The CPU it last ran on.
    pub(crate) cpu: u32,
    /// Mask of CPUs it may run on, as words of 64.
    pub(crate) allowed_cpus: Vec<u64>,
    pub(crate) schedule: SchedParams,
}

/// The signals of a thread and its process, by what becomes of them.
pub(crate) struct SignalSets {
    /// Pending for the thread.
    pub(crate) own_pending: SigSet,
    /// Pending for the process.
    pub(crate) pending: SigSet,
    pub(crate) blocked: SigSet,
    pub(crate) ignored: SigSet,
    pub(crate) caught: SigSet,
}

impl Process {
    /// Strings that the image of the process says are in its memory.
    fn strings(
        &self,
        space: &Arc<AddressSpace>,
        place: impl FnOnce(&ProcessImage) -> Range<usize>,
    ) -> Vec<u8> {
        let Some(range) = self.of_image(space, place) else {
            return Vec::new();
        };
        let mut bytes = vec![0; range.len().min(SHOWN_STRINGS)];
        if space.read(range.start, &mut bytes).is_err() {
            bytes.clear();
        }
        bytes
    }

    /// Arguments as they are in the process's memory now, each with a NUL (`/proc/<pid>/cmdline`).
    #[must_use]
    pub fn arguments(&self) -> Vec<u8> {
        self.space().map_or_else(Vec::new, |space| {
            self.strings(&space, |image| image.args.clone())
        })
    }

    /// Environment as it is in the process's memory now (`/proc/<pid>/environ`), which is to be
    /// this.
    pub(crate) fn environment(&self, space: &Arc<AddressSpace>) -> Vec<u8> {
        self.strings(space, |image| image.env.clone())
    }

    /// Names, units, and soft and hard values of its limits.
    pub fn limits(&self) -> impl Iterator<Item = (&'static str, &'static str, Rlimit)> {
        let limits = *self.limits.lock();
        LIMIT_NAMES
            .iter()
            .zip(limits.values())
            .map(|(&(name, units), limit)| (name, units, limit))
    }

    /// One letter for what thread `tid` does: `R`, `S`, `D`, `T`, `t`, or `Z` if it has ended.
    fn state(&self, tasks: &Pieces<Arc<Task>>, tid: Tid) -> char {
        match tasks.iter().find(|task| task.tid() == tid) {
            None => 'Z',
            Some(task) if ptrace::is_in_ptrace_stop(task) => 't',
            Some(_) if self.is_stopped() => 'T',
            Some(task)
                if task
                    .started_thread()
                    .is_some_and(|thread| thread.is_blocked_on_lock()) =>
            {
                'D'
            }
            Some(task)
                if task
                    .started_thread()
                    .is_some_and(|thread| thread.is_sleeping()) =>
            {
                if task.waits_killable.load(Ordering::Relaxed) {
                    'D'
                } else {
                    'S'
                }
            }
            Some(_) => 'R',
        }
    }

    /// State of the process that `/proc` shows.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot_of(None)
    }

    /// State of the process, or of one of its threads, that `/proc` shows.
    pub(crate) fn snapshot_of(&self, tid: Option<Tid>) -> Snapshot {
        let tasks = self.tasks();
        let shown = match tid {
            Some(tid) => tasks.iter().find(|task| task.tid() == tid),
            None => tasks.first(),
        };
        let cred = shown.map_or_else(|| self.credentials(), |task| task.cred());
        let memory = self.space().map(|space| space.stats()).unwrap_or_default();
        let (own_pending, blocked) = shown.map_or((0, 0), |task| {
            let signals = task.signals.lock();
            (signals.pending.set(), signals.blocked)
        });
        let (ignored, caught) = self.sighand().sets();
        let allowed_cpus = shown.map(|t| t.cpus_allowed()).filter(|c| !c.is_empty());
        Snapshot {
            pid: self.pid(),
            relations: process_table::relations(self.pid()),
            name: shown.map_or_else(|| self.name(), |task| task.name()),
            state: self.state(&tasks, tid.unwrap_or(self.pid().leader())),
            uids: cred.user,
            gids: cred.group,
            capabilities: cred.caps,
            no_new_privileges: cred.no_new_privs,
            speculation: shown
                .map(|task| task.prctl.lock().speculation)
                .unwrap_or_default(),
            seccomp: shown
                .map(|task| task.seccomp.lock().status())
                .unwrap_or_default(),
            groups: cred.groups.to_vec(),
            threads: tasks.iter().map(|t| t.tid()).collect(),
            usage: match (tid, shown) {
                (Some(_), Some(task)) => task.usage(),
                _ => self.usage(),
            },
            children_usage: *self.children_usage.lock(),
            start_ns: if tid.is_some() {
                shown.map_or(0, |task| task.start_ns)
            } else {
                self.start_ns
            },
            size_bytes: memory.size as u64,
            resident_bytes: memory.resident as u64,
            signals: SignalSets {
                own_pending,
                pending: self.pending_set(),
                blocked,
                ignored,
                caught,
            },
            cpu: shown
                .and_then(|t| t.started_thread())
                .map_or(0, |t| t.cpu().0),
            allowed_cpus: allowed_cpus.unwrap_or_else(sched::all_cpus),
            schedule: shown.map(|t| t.sched_params()).unwrap_or_default(),
        }
    }
}
