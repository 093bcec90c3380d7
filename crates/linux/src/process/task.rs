//! A thread of a program.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ::futex::Waiter;
use ::task::{Deadline, Mutex, MutexGuard, Once, Policy, Thread, WaitQueue};
use abi::errno::Errno;
use fs::path::LookupContext;
use fs::{Cred, File, FsStruct};
use net::Stack;
use uapi::fd::Fd;
use uapi::futex::FutexScope;
use uapi::pid::{Pid, Tid};
use uapi::sigframe::{AltStack, LastFault};
use uapi::siginfo::{SigSet, UNBLOCKABLE};
use uapi::user_addr::UserAddr;

use crate::SysResult;
use crate::process::core_dump::DumpedThread;
use crate::process::ptrace_state::PtraceState;
use crate::process::{Process, schedule};
use crate::state::cred::TaskCred;
use crate::state::credentials::Credentials;
use crate::state::fdtable::{CloseOnExec, FdTable, FdTableRef};
use crate::state::mempolicy::MemoryPolicy;
use crate::state::namespaces::{IpcNamespace, Namespaces};
use crate::state::prctl::PrctlState;
use crate::state::rseq::Registration;
use crate::state::sched_params::SchedParams;
use crate::state::seccomp::Seccomp;
use crate::state::sighand::SigPending;
use crate::state::syscall_user_dispatch::UserDispatch;
use crate::state::usage::{IoAccounting, PrevCputime};
use crate::uaccess::UserPtr;

/// Signal state of a thread.
pub(crate) struct TaskSignals {
    /// Signals that are blocked (`rt_sigprocmask(2)`).
    pub(crate) blocked: SigSet,
    /// Mask that `blocked` goes back to once the signal that ended a wait was handled
    /// (`sigsuspend`, `ppoll`, …).
    pub(crate) saved_sigmask: Option<SigSet>,
    /// Signals that were sent to this thread and not delivered.
    pub(crate) pending: SigPending,
    /// The alternate stack (`sigaltstack(2)`).
    pub(crate) alt_stack: AltStack,
    /// The last fault, for the frame of its signal's handler.
    pub(crate) last_fault: LastFault,
}

/// A call that a signal interrupted and that goes on by `restart_syscall(2)`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RestartBlock {
    /// A sleep until a time, monotonic. `rest` is where the caller wants the rest to be stored; 0
    /// for nowhere.
    Sleep { deadline: Deadline, rest: UserAddr },
    /// A wait for a word until a time, monotonic.
    Futex {
        addr: UserAddr,
        scope: FutexScope,
        expected: u32,
        deadline: Deadline,
        bits: u32,
    },
    /// A `poll(2)` until a time, monotonic, or without a limit.
    Poll {
        fds: UserAddr,
        count: usize,
        deadline: Option<Deadline>,
    },
}

/// Something that happens once, and whoever waits for it.
#[derive(Default)]
pub(crate) struct Completion {
    done: AtomicBool,
    waiters: WaitQueue,
}

impl Completion {
    /// Marks the event as happened, and wakes who waits.
    pub(crate) fn complete(&self) {
        self.done.store(true, Ordering::Release);
        self.waiters.wake_all();
    }

    /// Waits for it, whatever signals come, but not longer than `task` lives.
    pub(crate) fn wait(&self, task: &Task) {
        let ended = || (self.done.load(Ordering::Acquire) || task.must_exit()).then_some(());
        let mut postponed = false;
        while self.waiters.wait_interruptible(None, ended).is_err() {
            // An ordinary signal: it is looked at when the call is over.
            task.thread().clear_signal_pending();
            postponed = true;
        }
        if postponed {
            task.signal_wake_up();
        }
    }
}

/// A thread of a program.
///
/// A system call gets the task that made it:
///
/// ```
/// use abi::errno::Errno;
/// use linux::Task;
/// use uapi::fd::Fd;
///
/// /// Like `lseek(fd, 0, SEEK_CUR) == 0`, for root only.
/// fn is_at_start(task: &Task, fd: Fd) -> Result<bool, Errno> {
///     if task.fs_cred().uid != 0 {
///         return Err(Errno::EPERM);
///     }
///     Ok(task.file(fd)?.position() == 0)
/// }
/// ```
pub struct Task {
    _counted: census::Task,
    tid: AtomicI32,
    process: Arc<Process>,
    thread: Once<Arc<Thread>>,
    /// The descriptors it began with, and those that it has instead once it unshared or gave back
    /// the first ones. Most never do: looking one up takes no lock.
    files: FdTableRef,
    /// Descriptors that took the place of those the thread began with (`unshare(2)`, `execve(2)`).
    unshared_files: Mutex<Option<Arc<FdTableRef>>>,
    /// Whether `unshared_files` are the thread's descriptors.
    has_unshared_files: AtomicBool,
    fs: Mutex<Arc<FsStruct>>,
    cred: Mutex<TaskCred>,
    name: Mutex<String>,
    namespaces: Mutex<Namespaces>,
    pub(crate) signals: Mutex<TaskSignals>,
    /// Whether the thread called `exit(2)`.
    pub(crate) exiting: AtomicBool,
    /// Wait status of the `exit(2)` that was called.
    pub(crate) exit_status: AtomicI32,
    /// Whether it stands still because its process is stopped.
    pub(crate) in_group_stop: AtomicBool,
    /// Somebody traces it, and what is known of that.
    ptraced: AtomicBool,
    /// State of tracing, if the thread is traced.
    pub(crate) ptrace: Mutex<Option<Box<PtraceState>>>,
    /// Address of the word that is cleared and woken when the thread ends; 0 for none.
    pub(crate) clear_child_tid: AtomicUsize,
    /// Address of the head of the list of robust futexes; 0 for none.
    pub(crate) robust_list: AtomicUsize,
    /// Completion for the parent that waits for this thread to leave its parent's memory
    /// (`vfork(2)`).
    pub(crate) vfork_done: Mutex<Option<Arc<Completion>>>,
    pub(crate) restart_block: Mutex<Option<RestartBlock>>,
    /// Whether the thread is in a call that ends at a time of the wall clock.
    pub(crate) waits_on_realtime: AtomicBool,
    /// Whether the thread waits for what only its end interrupts any more.
    pub(crate) waits_killable: AtomicBool,
    /// Registration of `rseq(2)`.
    pub(crate) rseq: Mutex<Registration>,
    /// Page faults of its program.
    pub(crate) faults: AtomicU64,
    /// Processor times that were reported last, which never go back.
    pub(crate) prev_cputime: Mutex<PrevCputime>,
    /// Bytes read and written, and calls that did.
    pub(crate) io_accounting: IoAccounting,
    /// Time of its start, in nanoseconds since boot.
    pub(crate) start_ns: u64,
    /// Values that `prctl(2)` sets.
    pub(crate) prctl: Mutex<PrctlState>,
    /// Restrictions of its system calls, and the calls that its program does itself.
    pub(crate) seccomp: Mutex<Seccomp>,
    pub(crate) user_dispatch: Mutex<Option<UserDispatch>>,
    /// Whether seccomp or syscall user dispatch looks at its calls.
    pub(crate) has_syscall_work: AtomicBool,
    /// Memory policy of its new pages (`set_mempolicy(2)`).
    pub(crate) memory_policy: Mutex<MemoryPolicy>,
    /// Signal that its process gets when the parent ends; 0 for none (`PR_SET_PDEATHSIG`).
    pub(crate) parent_death_signal: AtomicI32,
    /// Class and level of its input and output; 0 if they were not set.
    pub(crate) io_priority: AtomicU32,
    /// Whether it is about to run another program. Nobody begins to trace it meanwhile: what it may
    /// then do depends on who traces it.
    pub(crate) in_execve: AtomicBool,
    /// Whether it may have made segments of shared memory in its namespace.
    pub(crate) has_made_segments: AtomicBool,
    /// CPUs it may run on, as words of 64; empty for all. [`Self::cpus_allowed`] reads it.
    cpus_allowed: Mutex<Vec<u64>>,
    /// Scheduling parameters as `sched_setattr(2)` set them.
    pub(crate) sched_params: Mutex<SchedParams>,
    /// Policy of a thread that waits for a lock this one holds, if that policy goes first.
    pub(crate) pi_boost: Mutex<Option<Policy>>,
    /// Whether its locks with priority inheritance have been passed on: it has ended.
    pub(crate) pi_locks_released: AtomicBool,
    /// Waiter that stands for it where futexes are waited for.
    pub(crate) futex: Once<Arc<Waiter>>,
    /// Part of the thread in the core dump of its process.
    pub(crate) dumped: DumpedThread,
}

/// State that a new thread takes over from the one that makes it.
pub(crate) struct NewTask {
    pub(crate) files: Arc<FdTable>,
    pub(crate) fs: Arc<FsStruct>,
    pub(crate) namespaces: Namespaces,
    pub(crate) cred: TaskCred,
    pub(crate) name: String,
    pub(crate) blocked: SigSet,
    pub(crate) stack: AltStack,
    pub(crate) cpus_allowed: Vec<u64>,
    pub(crate) sched_params: SchedParams,
    pub(crate) seccomp: Seccomp,
    pub(crate) memory_policy: MemoryPolicy,
    pub(crate) io_priority: u32,
    pub(crate) prctl: PrctlState,
}

impl Task {
    pub(crate) fn new(tid: Tid, process: Arc<Process>, from: NewTask) -> Arc<Self> {
        let signals = TaskSignals {
            blocked: from.blocked,
            saved_sigmask: None,
            pending: SigPending::default(),
            alt_stack: from.stack,
            last_fault: LastFault::default(),
        };
        Arc::new(Self {
            _counted: census::Task::default(),
            tid: AtomicI32::new(tid.raw()),
            process,
            thread: Once::new(),
            files: FdTableRef::new(from.files),
            unshared_files: Mutex::new(None),
            has_unshared_files: AtomicBool::new(false),
            fs: Mutex::new(from.fs),
            namespaces: Mutex::new(from.namespaces),
            cred: Mutex::new(from.cred),
            name: Mutex::new(from.name),
            signals: Mutex::new(signals),
            exiting: AtomicBool::new(false),
            exit_status: AtomicI32::new(0),
            in_group_stop: AtomicBool::new(false),
            ptraced: AtomicBool::new(false),
            ptrace: Mutex::new(None),
            clear_child_tid: AtomicUsize::new(0),
            robust_list: AtomicUsize::new(0),
            vfork_done: Mutex::new(None),
            restart_block: Mutex::new(None),
            waits_on_realtime: AtomicBool::new(false),
            waits_killable: AtomicBool::new(false),
            rseq: Mutex::default(),
            faults: AtomicU64::new(0),
            prev_cputime: Mutex::default(),
            io_accounting: IoAccounting::default(),
            start_ns: ::task::now_ns(),
            prctl: Mutex::new(from.prctl),
            user_dispatch: Mutex::default(),
            has_syscall_work: AtomicBool::new(from.seccomp.mode() != 0),
            seccomp: Mutex::new(from.seccomp),
            memory_policy: Mutex::new(from.memory_policy),
            parent_death_signal: AtomicI32::new(0),
            io_priority: AtomicU32::new(from.io_priority),
            in_execve: AtomicBool::new(false),
            has_made_segments: AtomicBool::new(false),
            cpus_allowed: Mutex::new(from.cpus_allowed),
            sched_params: Mutex::new(from.sched_params),
            pi_boost: Mutex::new(None),
            pi_locks_released: AtomicBool::new(false),
            futex: Once::new(),
            dumped: DumpedThread::default(),
        })
    }

    /// Thread ID, which changes only in `execve(2)`.
    #[must_use]
    pub fn tid(&self) -> Tid {
        Tid::new(self.tid.load(Ordering::Relaxed))
    }

    /// A thread that calls `execve(2)` gets its process's number.
    pub(crate) fn set_tid(&self, tid: Tid) {
        self.tid.store(tid.raw(), Ordering::Relaxed);
    }

    /// Process of the thread.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Process ID of the thread's process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The kernel thread it runs on.
    ///
    /// # Panics
    /// Before it runs.
    #[must_use]
    pub fn thread(&self) -> &Arc<Thread> {
        self.thread.get().expect("a task that runs has a thread")
    }

    /// Runs `work`, whose time counts as system time.
    #[inline(always)]
    pub(crate) fn account_system_time<R>(&self, work: impl FnOnce() -> R) -> R {
        let thread = self.thread();
        thread.begin_system_time();
        let result = work();
        thread.end_system_time();
        result
    }

    /// Runs `work` like [`Self::account_system_time`], for one of `calls` calls most of which are
    /// not measured, or measure themselves.
    pub(crate) fn account_sampled_system_time<R>(&self, calls: u64, work: impl FnOnce() -> R) -> R {
        let thread = self.thread();
        thread.begin_system_time();
        let result = work();
        thread.end_sampled_system_time(calls);
        result
    }

    /// Kernel thread of the task, if it has been started.
    pub(crate) fn started_thread(&self) -> Option<&Arc<Thread>> {
        self.thread.get()
    }

    /// Binds the task to the calling kernel thread.
    pub(crate) fn bind_thread(self: &Arc<Self>) {
        let thread = ::task::current();
        // A weak reference: the task holds its thread.
        let me: Arc<dyn Any + Send + Sync> = Arc::new(Current(Arc::downgrade(self)));
        thread.set_ext(me);
        thread.set_name(&self.name.lock());
        thread.set_ids(self.process.pid().as_u32(), self.tid().as_u32());
        self.attach_thread(thread);
    }

    /// Gives the task its kernel thread, which has the policy and the CPUs that the task had when
    /// it was started. Before it runs for the first time, as its maker may be what keeps it from
    /// running; the thread does it too, as it may run first.
    pub(crate) fn attach_thread(&self, thread: Arc<Thread>) {
        // Known to others first: what they change from now on reaches the thread, and what they
        // changed before is done here.
        if self.thread.set(thread).is_err() {
            return;
        }
        let cpus = self.cpus_allowed.lock();
        if !cpus.is_empty() {
            self.thread().set_affinity(&cpus);
        }
        drop(cpus);
        if self.sched_params() != SchedParams::default() {
            // Nothing is changed, so nothing fails; the thread gets it.
            let _ = self.set_sched_params(|_| Ok(()));
        }
    }

    /// CPUs that the thread may run on, as words of 64; empty for all, as also after those that it
    /// was bound to have left.
    pub(crate) fn cpus_allowed(&self) -> Vec<u64> {
        let allowed = self.cpus_allowed.lock();
        match self.started_thread() {
            Some(thread) if thread.is_unbound() => Vec::new(),
            _ => allowed.clone(),
        }
    }

    /// Sets the CPUs that the thread may run on, a bit for each.
    pub(crate) fn set_cpus_allowed(&self, cpus: Vec<u64>) {
        // Held to the end, so that the thread has what was set last: its maker gives it its CPUs
        // when it may be running, and have chosen others, already.
        let mut allowed = self.cpus_allowed.lock();
        if let Some(thread) = self.started_thread() {
            thread.set_affinity(&cpus);
        }
        *allowed = cpus;
    }

    /// Makes the thread look at signals and at whether it must end, soon.
    pub(crate) fn signal_wake_up(&self) {
        if let Some(thread) = self.started_thread() {
            thread.set_signal_pending();
        }
    }

    /// Lets the parent in `vfork(2)` go on: the thread has left its memory.
    pub(crate) fn complete_vfork_done(&self) {
        let waiter = self.vfork_done.lock().take();
        if let Some(waiter) = waiter {
            waiter.complete();
        }
    }

    /// Whether the thread has to end, and may start nothing more.
    pub(crate) fn must_exit(&self) -> bool {
        self.exiting.load(Ordering::Relaxed) || self.process.must_exit(self.tid())
    }

    /// Whether somebody traces it (`ptrace(2)`).
    #[inline]
    pub(crate) fn is_ptraced(&self) -> bool {
        self.ptraced.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ptraced(&self, on: bool) {
        self.ptraced.store(on, Ordering::Relaxed);
    }

    /// Descriptors that the thread began with, unless it has others by now.
    #[inline(always)]
    pub(crate) fn initial_files(&self) -> Option<&Arc<FdTable>> {
        (!self.has_unshared_files.load(Ordering::Acquire)).then(|| self.files.table())
    }

    #[inline(always)]
    fn with_files<R>(&self, act: impl FnOnce(&Arc<FdTable>) -> R) -> R {
        if let Some(files) = self.initial_files() {
            act(files)
        } else {
            act(&self.current_files_slow())
        }
    }

    /// Descriptors of a thread that no longer has those it began with.
    #[cold]
    #[inline(never)]
    fn current_files_slow(&self) -> Arc<FdTable> {
        self.unshared_files
            .lock()
            .as_ref()
            .map_or_else(|| self.files.table(), |share| share.table())
            .clone()
    }

    /// Table of the thread's descriptors.
    #[must_use]
    pub fn files(&self) -> Arc<FdTable> {
        self.with_files(Arc::clone)
    }

    /// The open file behind a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline(always)]
    pub fn file(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        self.find_file(fd).ok_or(Errno::EBADF)
    }

    #[inline(always)]
    fn find_file(&self, fd: Fd) -> Option<Arc<File>> {
        if let Some(files) = self.initial_files() {
            files.find(fd)
        } else {
            self.find_file_slow(fd)
        }
    }

    /// File of a descriptor of a thread that no longer has the table it began with.
    #[cold]
    #[inline(never)]
    fn find_file_slow(&self, fd: Fd) -> Option<Arc<File>> {
        self.current_files_slow().find(fd)
    }

    /// The open file behind a descriptor that was not opened with `O_PATH`.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline(always)]
    pub fn file_io(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        FdTable::for_io(self.file(fd)?)
    }

    /// Gives an open file the lowest free number.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn install(&self, file: Arc<File>, cloexec: CloseOnExec) -> SysResult {
        self.with_files(|files| files.install(file, cloexec))
    }

    /// Opens a file and installs it at the descriptor that is the lowest free one before: to open
    /// may mean to wait, while other threads open theirs.
    ///
    /// # Errors
    /// `EMFILE`, and those of `open`.
    #[inline(always)]
    pub(crate) fn open_with_reserved_fd(
        &self,
        cloexec: CloseOnExec,
        open: impl FnOnce() -> Result<Arc<File>, Errno>,
    ) -> SysResult {
        // Who is alone with its table sees no other number than the one at the end.
        let files = self.shares_files().then(|| self.files());
        let number = files
            .as_ref()
            .map(|files| files.reserve(cloexec))
            .transpose()?;
        let file = open()?;
        match number {
            None => self.install(file, cloexec),
            Some(number) => Ok(number.install(file)),
        }
    }

    /// Checks that there may be one more open file, and is a descriptor for it.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    #[inline]
    pub(crate) fn check_fd_available(&self) -> Result<(), Errno> {
        self.with_files(|files| files.check_fd_available())
    }

    /// Frees a descriptor's number.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        self.with_files(|files| files.close(fd))
    }

    fn replace_files(&self, share: Arc<FdTableRef>) {
        let old = self.unshared_files.lock().replace(share);
        self.has_unshared_files.store(true, Ordering::Release);
        self.files.release();
        drop(old);
    }

    /// Gives the thread's descriptors back: those that no other thread has are closed.
    pub(crate) fn exit_files(&self) {
        self.replace_files(FdTableRef::empty());
    }

    /// Whether other threads have its descriptors, too.
    #[inline]
    fn shares_files(&self) -> bool {
        if self.initial_files().is_some() {
            return self.files.has_others();
        }
        self.unshared_files
            .lock()
            .as_deref()
            .unwrap_or(&self.files)
            .has_others()
    }

    /// Gives the task descriptors of its own, copies of those it shares with others.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn unshare_files(&self) -> Result<(), Errno> {
        if self.shares_files() {
            self.replace_files(Arc::new(FdTableRef::new(self.files().fork()?)));
        }
        Ok(())
    }

    /// Root, working directory and mask of the thread.
    #[must_use]
    pub fn fs(&self) -> Arc<FsStruct> {
        self.fs.lock().clone()
    }

    /// A walk from its working directory.
    #[inline]
    #[must_use]
    pub fn walk<'a>(&self, cred: &'a Cred) -> LookupContext<'a> {
        self.fs.lock().lookup_context(cred)
    }

    /// Gives the task another root, working directory and mask.
    pub(crate) fn replace_fs(&self, fs: Arc<FsStruct>) {
        // The old ones are dropped without the lock.
        let old = core::mem::replace(&mut *self.fs.lock(), fs);
        drop(old);
    }

    /// Gives the task a working directory of its own, a copy of one that it shares with others.
    pub(crate) fn unshare_fs(&self) {
        let copy = self.fs().fork();
        *self.fs.lock() = copy;
    }

    /// The namespaces it is in.
    pub(crate) fn namespaces(&self) -> Namespaces {
        self.namespaces.lock().clone()
    }

    /// The System V objects and message queues it sees.
    pub(crate) fn ipc(&self) -> Arc<IpcNamespace> {
        self.namespaces.lock().ipc.clone()
    }

    /// The network stack its sockets are of.
    pub(crate) fn net(&self) -> Arc<Stack> {
        self.namespaces.lock().net.clone()
    }

    pub(crate) fn set_namespaces(&self, new: Namespaces) {
        let old = core::mem::replace(&mut *self.namespaces.lock(), new);
        drop(old);
    }

    /// Credentials of the thread.
    #[must_use]
    pub fn cred(&self) -> Arc<Credentials> {
        self.cred.lock().all.clone()
    }

    /// Real user id of the thread.
    pub(crate) fn uid(&self) -> u32 {
        self.cred.lock().all.user.real
    }

    /// Credentials of the thread in the form that a new thread takes over.
    pub(crate) fn identity(&self) -> TaskCred {
        self.cred.lock().clone()
    }

    /// Changes who it is. Who gets other powers by that is not for his old likes to look into, nor
    /// to end with his parent.
    pub(crate) fn set_cred(&self, cred: Credentials) {
        if cred.exceeds(&self.cred()) {
            // Before the credentials: nobody sees what has powers as something that has none.
            self.process.forbid_dumps();
        }
        self.install_cred(cred);
    }

    /// Changes who it is, but not who may look into its process: `execve` decides that by more than
    /// the credentials, and after them.
    pub(crate) fn install_cred(&self, cred: Credentials) {
        if cred.exceeds(&self.cred()) {
            self.parent_death_signal.store(0, Ordering::Relaxed);
        }
        if cred.user.real != self.cred().user.real
            && let Some(thread) = self.started_thread()
        {
            thread.set_group(schedule::group_of(cred.user.real));
        }
        let cred = Arc::new(cred);
        self.process.set_owner(cred.clone());
        *self.cred.lock() = cred.into();
    }

    /// Credentials of the thread as the file system takes them.
    #[inline]
    #[must_use]
    pub fn fs_cred(&self) -> Arc<Cred> {
        self.cred.lock().files.clone()
    }

    /// Credentials for `access(2)`, which asks for the real user.
    #[must_use]
    pub fn real_fs_cred(&self) -> Arc<Cred> {
        Arc::new(self.cred().real_fs_cred())
    }

    /// Name of the thread (`comm`).
    #[must_use]
    pub fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// Changes its name; 15 bytes count.
    pub fn set_name(&self, name: &[u8]) {
        let name = String::from_utf8_lossy(&name[..name.len().min(15)]).into_owned();
        if let Some(thread) = self.started_thread() {
            thread.set_name(&name);
        }
        *self.name.lock() = name;
    }

    /// Runs `wait` with another signal mask (null: the same), which a handler of the signal that
    /// ends the wait finds replaced by the old one again (`ppoll(2)`, `pselect(2)`,
    /// `epoll_pwait(2)`).
    ///
    /// # Errors
    /// Those of `wait`; `EINVAL` for a wrong size of the mask, `EFAULT`.
    pub fn with_signal_mask(
        &self,
        mask: UserPtr<u64>,
        size: usize,
        wait: impl FnOnce() -> SysResult,
    ) -> SysResult {
        if mask.is_null() {
            return wait();
        }
        if size != size_of::<SigSet>() {
            return Err(Errno::EINVAL);
        }
        let mask = mask.read()?;
        self.with_temporary_sigmask(mask, wait)
    }

    /// Runs `wait` with another mask of blocked signals; a handler that ends the wait runs with it.
    pub(crate) fn with_temporary_sigmask(
        &self,
        mask: SigSet,
        wait: impl FnOnce() -> SysResult,
    ) -> SysResult {
        let old = self.set_blocked(mask);
        let result = wait();
        match result {
            // Delivery takes the mask back after it has chosen the signal.
            Err(e) if e == Errno::EINTR || e.is_restart() => {
                self.signals.lock().saved_sigmask = Some(old);
                self.signal_wake_up();
            }
            _ => {
                self.set_blocked(old);
            }
        }
        result
    }

    /// Sets the blocked signals and returns those that were; what is deliverable now is looked at
    /// before the program goes on.
    pub(crate) fn set_blocked(&self, mask: SigSet) -> SigSet {
        self.block(self.signals.lock(), mask)
    }

    /// Sets the blocked signals like [`Self::set_blocked`], with `signals` locked already.
    pub(crate) fn block(&self, mut signals: MutexGuard<'_, TaskSignals>, mask: SigSet) -> SigSet {
        let old = core::mem::replace(&mut signals.blocked, mask & !UNBLOCKABLE);
        let own = signals.pending.set();
        drop(signals);
        if (own | self.process.pending_set()) & !mask != 0 {
            self.signal_wake_up();
        }
        old
    }
}

/// Link from a kernel thread to the task it runs.
struct Current(Weak<Task>);

/// The calling task; `None` in a kernel thread that is none.
#[must_use]
pub fn current_task() -> Option<Arc<Task>> {
    let thread = ::task::try_current()?;
    thread.ext()?.downcast_ref::<Current>()?.0.upgrade()
}
