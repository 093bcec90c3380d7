//! Processes: what threads of a program share, how they end, groups and sessions.
//!
//! # Lock order
//! From the outside in; whoever holds one may take those that come later:
//!
//! 1. the futex buckets (crate `futex`), or the table of locks with priority inheritance
//!    (`futex::pi`);
//! 2. the process table (`process_table::TABLE`);
//! 3. of a process: `tasks`, then `sighand`, then `pending`;
//! 4. of a task: `sched_params`, `pi_boost`; `signals`, then the small ones (`files`, `fs`, `cred`,
//!    `name`), which are held for a copy only;
//! 5. the queue of timers (`state::timer_queue`).
//!
//! None of 2 to 5 is held while user memory is touched, while a file is closed, or while a thread
//! sleeps for something else than a lock. A futex bucket, or that table, is held while words are
//! read and changed, and so comes before the locks of address spaces and files. Interrupting and
//! waking threads is allowed under all of them.

pub(crate) mod access;
pub(crate) mod accounting;
pub(crate) mod core_dump;
pub(crate) mod cpu_clock;
pub(crate) mod image;
pub(crate) mod namespaces;
pub(crate) mod personality;
pub(crate) mod pidfd;
pub mod process_table;
pub(crate) mod ptrace_state;
pub(crate) mod rlimit;
pub(crate) mod schedule;
pub(crate) mod send_signal;
pub mod task;
pub(crate) mod timer;
pub(crate) mod upcalls;

use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use ::task::{Condvar, Mutex, WaitQueue};
use abi::errno::Errno;
use fallible::Pieces;
use fs::poll::PollQueue;
use fs::{FsStruct, Path};
use guard::trace::Kind;
use linux_raw_sys::general as sys;
use uapi::pid::{Pid, Tid};
use uapi::siginfo::{self, SigInfo, SigSet};
use vm::{AddressSpace, DumpFilter};

use crate::Task;
use crate::process::core_dump::CoreDump;
use crate::process::image::ProcessImage;
use crate::state::core_pattern;
use crate::state::credentials::Credentials;
use crate::state::fdtable::FdTable;
use crate::state::ratelimit::LogLimit;
use crate::state::rlimit::{Resource, Rlimits};
use crate::state::sighand::{SigAction, SigHand, SigPending};
use crate::state::usage::Usage;

/// A process: what its threads share.
pub struct Process {
    _counted: census::Process,
    pid: Pid,
    pub(crate) start_ns: u64,
    /// The signal its parent gets at its end; none if there is no signal of this number.
    exit_signal: AtomicI32,
    /// `None` once it has ended.
    pub(crate) space: Mutex<Option<Arc<AddressSpace>>>,
    /// Number of the address space, for those who need no more.
    space_id: AtomicU64,
    pub(crate) tasks: Mutex<Vec<Arc<Task>>>,
    sighand: Mutex<Arc<SigHand>>,
    pub(crate) pending: Mutex<SigPending>,
    /// Wait status that `exit_group(2)` or a signal ended the process with.
    pub(crate) group_exit_status: Mutex<Option<i32>>,
    /// Whether it has a group exit status: its threads end.
    exiting: AtomicBool,
    /// Wait status of the thread that called `exit(2)` last.
    pub(crate) last_exit_status: AtomicI32,
    /// The thread that ends all others to run another program; 0 for none.
    group_exec_tid: AtomicI32,
    stopped: AtomicBool,
    /// The last stop: how many there have been, and the signal in the lowest byte.
    stops: AtomicU32,
    /// Woken when it, or a thread of it that is traced, goes on after a stop, or ends.
    pub(crate) resumed: WaitQueue,
    /// Thread that made the process.
    pub(crate) creator: Weak<Task>,
    /// The threads that its threads trace.
    pub(crate) tracees: Mutex<Vec<Arc<Task>>>,
    /// The first thread of the process, if that is traced.
    pub(crate) traced_leader: Mutex<Weak<Task>>,
    /// Threads in `wait(2)`, woken when something happened to a child.
    pub(crate) wait_chldexit: WaitQueue,
    /// Threads that wait to trace one which is in `execve(2)`.
    pub(crate) execve_over: WaitQueue,
    /// Notified when one of `tasks` has ended.
    pub(crate) tasks_changed: Condvar,
    /// Told when a signal was sent.
    pub(crate) signal_sent: PollQueue,
    /// Pollers and threads that wait for its end, when it can be waited for.
    pub(crate) exit_waiters: PollQueue,
    /// Unset from when its end can be waited for until its parent has been sent the signal.
    pub(crate) exit_announced: AtomicBool,
    pub(crate) limits: Mutex<Rlimits>,
    cred: Mutex<Arc<Credentials>>,
    pub(crate) image: Mutex<ProcessImage>,
    /// Adjustment of its score as a victim (`/proc/<pid>/oom_score_adj`), from -1000 to 1000.
    pub(crate) oom_score_adj: AtomicI32,
    /// Lowest adjustment that it may get from who has no power over resources: the last one that
    /// somebody with that power gave it.
    pub(crate) oom_score_adj_min: AtomicI32,
    /// Bits of `personality(2)`, which programs inherit.
    pub(crate) personality: AtomicU32,
    pub(crate) name: Mutex<String>,
    /// Number of the parent; changed under the lock of the table of processes.
    parent: AtomicI32,
    /// Usage of threads that have ended, and (below) of children that were waited for.
    pub(crate) exited_usage: Mutex<Usage>,
    pub(crate) children_usage: Mutex<Usage>,
    /// The most memory that was seen to be present, bytes.
    pub(crate) max_rss: AtomicU64,
    /// `RLIMIT_FSIZE`, which each write asks for.
    pub(crate) file_size_limit: AtomicU64,
    /// `PR_SET_DUMPABLE`: whether others of the same user may look into it.
    pub(crate) dumpable: AtomicI32,
    pub(crate) core_dump: CoreDump,
    /// Whether semaphores were operated with `SEM_UNDO`.
    pub(crate) has_sem_undo: AtomicBool,
    pub(crate) timers: Mutex<timer::Timers>,
    /// Whether its calls are written to the kernel log.
    logs_syscalls: AtomicBool,
    /// Whether its calls are recorded as events.
    records_syscalls: AtomicBool,
}

/// Arguments of [`Process::new`]: what a process has from its beginning.
pub(crate) struct NewProcess {
    pub(crate) pid: Pid,
    pub(crate) creator: Weak<Task>,
    pub(crate) exit_signal: i32,
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) sighand: Arc<SigHand>,
    pub(crate) limits: Rlimits,
    pub(crate) cred: Arc<Credentials>,
    pub(crate) image: ProcessImage,
    pub(crate) oom_score_adj: i32,
    pub(crate) oom_score_adj_min: i32,
    pub(crate) personality: u32,
    pub(crate) dump_filter: DumpFilter,
    pub(crate) logs_syscalls: bool,
}

impl Process {
    pub(crate) fn new(new: NewProcess) -> Arc<Self> {
        Arc::new(Self {
            _counted: census::Process::default(),
            pid: new.pid,
            start_ns: ::task::now_ns(),
            exit_signal: AtomicI32::new(new.exit_signal),
            space_id: AtomicU64::new(new.space.id()),
            space: Mutex::new(Some(new.space)),
            tasks: Mutex::default(),
            sighand: Mutex::new(new.sighand),
            pending: Mutex::default(),
            group_exit_status: Mutex::new(None),
            exiting: AtomicBool::new(false),
            last_exit_status: AtomicI32::new(0),
            group_exec_tid: AtomicI32::new(0),
            stopped: AtomicBool::new(false),
            stops: AtomicU32::new(0),
            creator: new.creator,
            tracees: Mutex::default(),
            traced_leader: Mutex::default(),
            resumed: WaitQueue::new(),
            wait_chldexit: WaitQueue::new(),
            execve_over: WaitQueue::new(),
            tasks_changed: Condvar::new(),
            signal_sent: PollQueue::new(),
            exit_waiters: PollQueue::new(),
            exit_announced: AtomicBool::new(true),
            limits: Mutex::new(new.limits),
            cred: Mutex::new(new.cred),
            image: Mutex::new(new.image),
            oom_score_adj: AtomicI32::new(new.oom_score_adj),
            oom_score_adj_min: AtomicI32::new(new.oom_score_adj_min),
            personality: AtomicU32::new(new.personality),
            name: Mutex::default(),
            parent: AtomicI32::new(0),
            exited_usage: Mutex::default(),
            children_usage: Mutex::default(),
            max_rss: AtomicU64::new(0),
            file_size_limit: AtomicU64::new(new.limits[Resource::FileSize].soft),
            dumpable: AtomicI32::new(1),
            core_dump: CoreDump::new(new.dump_filter),
            has_sem_undo: AtomicBool::new(false),
            timers: Mutex::default(),
            logs_syscalls: AtomicBool::new(new.logs_syscalls),
            records_syscalls: AtomicBool::new(false),
        })
    }

    /// Number of the process (PID).
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Number of the parent; [`Pid::NONE`] of process 1.
    pub(crate) fn parent(&self) -> Pid {
        Pid::new(self.parent.load(Ordering::Relaxed))
    }

    /// Changes the parent, under the lock of the process table.
    pub(super) fn set_parent(&self, parent: Pid) {
        self.parent.store(parent.raw(), Ordering::Relaxed);
    }

    /// Whether its system calls are written to the kernel log.
    #[must_use]
    pub fn logs_syscalls(&self) -> bool {
        self.logs_syscalls.load(Ordering::Relaxed)
    }

    /// Whether its system calls take the slow path because they are logged or recorded.
    pub(crate) fn has_syscall_trace(&self) -> bool {
        self.logs_syscalls() || self.records_syscalls.load(Ordering::Relaxed)
    }

    /// Updates whether its system calls are recorded, as `guard::trace` has it at the moment.
    pub(crate) fn update_recording(&self) {
        self.records_syscalls
            .store(guard::trace::wants(Kind::CallBegin), Ordering::Relaxed);
    }

    /// Address space of the process; `None` once it has ended.
    #[must_use]
    pub fn space(&self) -> Option<Arc<AddressSpace>> {
        self.space.lock().clone()
    }

    /// Address space of the process, for a call of one of its threads.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    pub(crate) fn require_space(&self) -> Result<Arc<AddressSpace>, Errno> {
        self.space().ok_or(Errno::ESRCH)
    }

    /// The number of its address space ([`AddressSpace::id`]).
    #[inline]
    pub(crate) fn space_id(&self) -> u64 {
        self.space_id.load(Ordering::Relaxed)
    }

    /// Whether this is the memory of the process.
    pub(crate) fn has_space(&self, space: &Arc<AddressSpace>) -> bool {
        let own = self.space.lock();
        own.as_ref().is_some_and(|own| Arc::ptr_eq(own, space))
    }

    /// Something of the image of the program that has this memory; `None` if that is not the
    /// process's any more.
    pub(crate) fn of_image<R>(
        &self,
        space: &Arc<AddressSpace>,
        part: impl FnOnce(&ProcessImage) -> R,
    ) -> Option<R> {
        let image = self.image.lock();
        self.has_space(space).then(|| part(&image))
    }

    /// Gives the process the memory of another program, and its image with it.
    pub(crate) fn replace_program(&self, space: Arc<AddressSpace>, new: ProcessImage) {
        self.update_max_rss();
        let mut image = self.image.lock();
        self.space_id.store(space.id(), Ordering::Relaxed);
        let old_space = self.space.lock().replace(space);
        let old_image = core::mem::replace(&mut *image, new);
        // What goes with them goes without the lock.
        drop(image);
        drop((old_space, old_image));
    }

    /// Actions on signals, which processes may share (`CLONE_SIGHAND`).
    pub(crate) fn sighand(&self) -> Arc<SigHand> {
        self.sighand.lock().clone()
    }

    /// Action on one signal.
    #[inline]
    pub(crate) fn action(&self, signal: i32) -> SigAction {
        self.sighand.lock().get(signal)
    }

    /// Replaces the actions on signals.
    pub(crate) fn replace_sighand(&self, actions: Arc<SigHand>) {
        *self.sighand.lock() = actions;
    }

    /// Signals sent to it and not to one of its threads.
    #[must_use]
    pub fn pending_set(&self) -> SigSet {
        self.pending.lock().set()
    }

    /// Signals that wait for it and its threads, and POSIX timers: what its user's limit counts.
    pub(crate) fn queued_signals(&self) -> usize {
        let of_tasks: usize = {
            let tasks = self.tasks.lock();
            let counted = |task: &Arc<Task>| task.signals.lock().pending.counted();
            tasks.iter().map(counted).sum()
        };
        self.pending.lock().counted() + self.timers.lock().created.len() + of_tasks
    }

    /// Threads that have not ended.
    pub(crate) fn tasks(&self) -> Pieces<Arc<Task>> {
        Pieces::copy_of(&self.tasks.lock())
    }

    /// Adds a thread; not if the process is about to end.
    pub(crate) fn add_task(&self, task: Arc<Task>) -> Result<(), Errno> {
        let mut tasks = self.tasks.lock();
        if self.exiting.load(Ordering::SeqCst) || self.group_exec_tid.load(Ordering::SeqCst) != 0 {
            return Err(Errno::EAGAIN);
        }
        fallible::push(&mut tasks, task)
    }

    /// Takes a thread out again that could not be started.
    pub(crate) fn remove_unstarted(&self, task: &Arc<Task>) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|t| !Arc::ptr_eq(t, task));
        self.tasks_changed.notify_all(&tasks);
    }

    /// The first thread for which `which` holds.
    #[inline]
    pub(crate) fn find_task(&self, which: impl Fn(&Task) -> bool) -> Option<Arc<Task>> {
        self.tasks.lock().iter().find(|task| which(task)).cloned()
    }

    fn first_task(&self) -> Option<Arc<Task>> {
        self.tasks.lock().first().cloned()
    }

    /// Whether the thread `tid` has to end.
    pub(crate) fn must_exit(&self, tid: Tid) -> bool {
        let group_exec_tid = self.group_exec_tid.load(Ordering::SeqCst);
        self.exiting.load(Ordering::SeqCst) || (group_exec_tid != 0 && group_exec_tid != tid.raw())
    }

    /// Whether its end has been announced.
    pub(crate) fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::SeqCst)
    }

    fn interrupt_all(&self) {
        // Under the lock: a list of them would take memory, and a process is ended for want of it.
        for task in self.tasks.lock().iter() {
            task.signal_wake_up();
        }
    }

    /// Ends the process: its threads exit as soon as they come by. The first status counts.
    pub(crate) fn group_exit(&self, status: i32) {
        self.group_exit_status.lock().get_or_insert(status);
        self.exiting.store(true, Ordering::SeqCst);
        self.interrupt_all();
        self.resumed.wake_all();
    }

    /// Ends it by a signal. `SIGKILL` also ends a core dump that it writes, and is what it then
    /// ends by.
    pub(crate) fn kill(&self, signal: i32) {
        if signal == sys::SIGKILL as i32 {
            self.core_dump.abort();
            if self.core_dump.is_running() {
                *self.group_exit_status.lock() = Some(signal);
            }
        }
        self.group_exit(signal);
    }

    /// Whether a thread ends all others to run another program.
    pub(crate) fn is_replaced(&self) -> bool {
        self.group_exec_tid.load(Ordering::SeqCst) != 0
    }

    /// Leaves `task` as its only thread, under the process's number. `EAGAIN` if somebody else was
    /// first.
    ///
    /// `renamed` is called if it has got another number than it had.
    pub(crate) fn de_thread(&self, task: &Task, renamed: impl FnOnce()) -> Result<(), Errno> {
        let mine = task.tid();
        let won = self
            .group_exec_tid
            .compare_exchange(0, mine.raw(), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if !won || self.exiting.load(Ordering::SeqCst) {
            if won {
                self.group_exec_tid.store(0, Ordering::SeqCst);
            }
            return Err(Errno::EAGAIN);
        }
        for other in self.tasks() {
            if other.tid() != mine {
                other.signal_wake_up();
            }
        }
        // Those that are stopped must come by, too.
        self.resumed.wake_all();
        let mut tasks = self.tasks.lock();
        while tasks.len() != 1 {
            tasks = self.tasks_changed.wait(tasks);
        }
        drop(tasks);
        if mine != self.pid.leader() {
            process_table::rename_task(task, self.pid);
            renamed();
        }
        self.group_exec_tid.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Stops the process, as `signal` asked for.
    pub(crate) fn stop(self: &Arc<Self>, signal: i32) {
        if self.exiting.load(Ordering::SeqCst) || self.is_stopped() {
            return;
        }
        let count = (self.stops.load(Ordering::Relaxed) >> 8) + 1;
        self.stops
            .store(count << 8 | signal.cast_unsigned(), Ordering::SeqCst);
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        self.interrupt_all();
        let parent = process_table::record_stop(self.pid, Some(signal));
        notify_parent(parent, self, sys::CLD_STOPPED as i32, signal);
    }

    /// Lets it go on after a stop.
    pub(crate) fn resume(self: &Arc<Self>) {
        if self.stopped.swap(false, Ordering::SeqCst) {
            let parent = process_table::record_stop(self.pid, None);
            self.resumed.wake_all();
            notify_parent(parent, self, sys::CLD_CONTINUED as i32, sys::SIGCONT as i32);
        }
    }

    /// Waits until the parent has been sent the signal of an end that was found. That is soon: its
    /// sender holds no lock, and is not stopped before.
    pub(crate) fn wait_until_announced(&self) {
        let sent = || self.exit_announced.load(Ordering::SeqCst).then_some(());
        if sent().is_none() {
            self.exit_waiters.wait_uninterruptible(sent);
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Number of the stop in force, which no other stop of the process has; `None` if it is not
    /// stopped.
    pub(crate) fn current_stop(&self) -> Option<u32> {
        self.is_stopped().then(|| self.stops.load(Ordering::SeqCst))
    }

    /// Signal that caused the stop with this number.
    pub(crate) fn signal_of_stop(stop: u32) -> i32 {
        (stop & 0xff) as i32
    }

    /// Keeps one of its threads while it is stopped, until somebody traces that.
    pub(crate) fn wait_while_stopped(&self, task: &Task) {
        if self.is_stopped() {
            task.in_group_stop.store(true, Ordering::SeqCst);
            self.resumed.wait(|| {
                (!self.is_stopped() || task.must_exit() || task.is_ptraced()).then_some(())
            });
            task.in_group_stop.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn exit_signal(&self) -> i32 {
        self.exit_signal.load(Ordering::Relaxed)
    }

    pub(crate) fn set_exit_signal(&self, signal: i32) {
        self.exit_signal.store(signal, Ordering::Relaxed);
    }

    /// Whether others of the same user may look into it.
    pub(crate) fn is_dumpable(&self) -> bool {
        self.dumpable.load(Ordering::Acquire) == 1
    }

    /// Keeps others of the same user from looking into it, as it has got other powers; whether
    /// there are core dumps of it then is a setting (`fs.suid_dumpable`).
    pub(crate) fn forbid_dumps(&self) {
        self.dumpable
            .store(core_pattern::suid_dumpable(), Ordering::Release);
    }

    /// Credentials of the process, as others find them.
    #[must_use]
    pub fn credentials(&self) -> Arc<Credentials> {
        self.cred.lock().clone()
    }

    pub(crate) fn set_owner(&self, owner: Arc<Credentials>) {
        *self.cred.lock() = owner;
    }

    /// The file it runs.
    #[must_use]
    pub fn executable(&self) -> Option<Path> {
        self.image
            .lock()
            .executable
            .as_ref()
            .map(|running| running.path().clone())
    }

    /// Root, working directory and mask of its first thread.
    #[must_use]
    pub fn fs(&self) -> Option<Arc<FsStruct>> {
        self.first_task().map(|task| task.fs())
    }

    /// Descriptors of its first thread.
    #[must_use]
    pub fn files(&self) -> Option<Arc<FdTable>> {
        self.first_task().map(|task| task.files())
    }

    /// Name of the first thread (`comm`), or of the last one that ended.
    #[must_use]
    pub fn name(&self) -> String {
        self.first_task()
            .map_or_else(|| self.name.lock().clone(), |task| task.name())
    }

    /// Changes the name of the process's first thread.
    pub fn set_name(&self, name: &[u8]) {
        if let Some(task) = self.first_task() {
            task.set_name(name);
        }
    }
}

/// Tells a parent what happened to its child: `SIGCHLD` if it wants to know, and whoever waits
/// looks again.
pub(crate) fn notify_parent(
    parent: Option<Arc<Process>>,
    child: &Arc<Process>,
    code: i32,
    status: i32,
) {
    let Some(parent) = parent else { return };
    let ended = !matches!(code.cast_unsigned(), sys::CLD_STOPPED | sys::CLD_CONTINUED);
    let signo = if ended {
        child.exit_signal()
    } else {
        sys::SIGCHLD as i32
    };
    let told = (1..=siginfo::NSIG).contains(&signo);
    if told
        && !send_signal::is_unkillable(&parent, signo)
        && (ended || parent.sighand().wants_child_stops())
    {
        let mut info = SigInfo::child(
            code,
            child.pid().leader(),
            child.credentials().user.real,
            status,
            child.cpu_ns() / 10_000_000,
        );
        info.signo = signo;
        send_signal::send(&parent, info);
    }
    parent.wait_chldexit.wake_all();
}

/// `SIGPIPE` to a thread that wrote to something nobody reads.
pub(crate) fn signal_broken_pipe(task: &Task) {
    send_signal::send_task(
        task,
        SigInfo::from_process(
            sys::SIGPIPE as i32,
            sys::SI_USER as i32,
            task.pid(),
            task.cred().user.real,
        ),
    );
}

/// Logs why the kernel ends a process by a signal, as often as Linux does: anybody can bring it
/// about.
pub(crate) fn log_fatal_signal(process: &Process, signal: i32, why: core::fmt::Arguments<'_>) {
    static LIMIT: LogLimit = LogLimit::new();
    if !LIMIT.allows("log_fatal_signal") {
        return;
    }
    log::warn!(
        "process {} ({}) ends by {}: {why}",
        process.pid(),
        process.name(),
        siginfo::name(signal)
    );
}

/// Values of `si_code` and `si_status` for a wait status.
#[must_use]
pub(crate) fn sigchld_code_and_status(status: i32) -> (i32, i32) {
    match status & 0x7f {
        0 => (sys::CLD_EXITED as i32, status >> 8 & 0xff),
        signal if status & 0x80 != 0 => (sys::CLD_DUMPED as i32, signal),
        signal => (sys::CLD_KILLED as i32, signal),
    }
}
