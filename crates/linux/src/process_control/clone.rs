//! Making threads and processes: `clone(2)`, `clone3(2)`, `fork(2)`, `vfork(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use fs::{FsStruct, OpenFlags};
use guard::fpu::{SegmentBases, UserFpu};
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::pid::Pid;
use uapi::sigframe::AltStack;
use uapi::siginfo;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mm::mmap;
use crate::process::ptrace_state::Event;
use crate::process::rlimit::check_threads;
use crate::process::task::{Completion, NewTask};
use crate::process::{NewProcess, Process, pidfd, process_table, upcalls};
use crate::process_control::namespaces;
use crate::state::fdtable::CloseOnExec;
use crate::time::posix_timers;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, ptrace};

/// Arguments of `clone(2)`, `clone3(2)`, `fork(2)` and `vfork(2)` in one form.
#[derive(Clone, Copy, Default)]
struct KernelCloneArgs {
    flags: u32,
    /// The signal that the parent gets when the child ends; 0 for none.
    exit_signal: i32,
    /// The child's stack pointer; 0 for the parent's.
    stack: u64,
    parent_tid: UserAddr,
    /// Address where a descriptor of the child is stored, if it is asked for.
    pidfd: UserAddr,
    child_tid: UserAddr,
    tls: u64,
    /// Number that the child is to have.
    set_tid: Option<i32>,
    /// Whether signals that the parent handles have their default action in the child.
    clear_sighand: bool,
}

impl KernelCloneArgs {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn check(&self) -> Result<(), Errno> {
        let needs = |flag, other| !self.has(flag) || self.has(other);
        let sound = needs(sys::CLONE_THREAD, sys::CLONE_SIGHAND)
            && needs(sys::CLONE_SIGHAND, sys::CLONE_VM)
            && !(self.has(sys::CLONE_PIDFD)
                && (self.has(sys::CLONE_THREAD) || self.has(sys::CLONE_DETACHED)))
            && !(self.clear_sighand && self.has(sys::CLONE_SIGHAND))
            && !(self.has(sys::CLONE_NEWNS) && self.has(sys::CLONE_FS))
            && !(self.has(sys::CLONE_NEWIPC) && self.has(sys::CLONE_SYSVSEM));
        if sound { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// A copy of those of the calling thread's registers that stay in the CPU, with what the child's
/// thread-local storage is.
fn copy_fpu(task: &Task, request: &KernelCloneArgs) -> Result<UserFpu, Errno> {
    let mut copy = UserFpu::new().ok_or(Errno::ENOMEM)?;
    task.thread().with_fpu(|fpu| copy.copy_from(fpu));
    if request.has(sys::CLONE_SETTLS) {
        let bases = SegmentBases {
            fs: request.tls,
            ..copy.bases()
        };
        copy.set_bases(bases).map_err(|_| Errno::EPERM)?;
    }
    Ok(copy)
}

/// Copies of what the new thread takes over from the caller.
fn copy_task(task: &Task, request: &KernelCloneArgs) -> Result<NewTask, Errno> {
    let (blocked, stack) = {
        let signals = task.signals.lock();
        (
            signals.saved_sigmask.unwrap_or(signals.blocked),
            signals.alt_stack,
        )
    };
    // A thread in the same memory needs an alternate stack of its own; vfork's child borrows
    // everything.
    let keeps_stack = !request.has(sys::CLONE_VM) || request.has(sys::CLONE_VFORK);
    Ok(NewTask {
        files: if request.has(sys::CLONE_FILES) {
            task.files()
        } else {
            task.files().fork()?
        },
        fs: copy_fs(task, request),
        namespaces: task.namespaces().with_new(request.flags),
        cred: task.identity(),
        name: task.name(),
        blocked,
        stack: if keeps_stack { stack } else { AltStack::none() },
        cpus_allowed: task.cpus_allowed(),
        sched_params: task.sched_params().inherited(),
        seccomp: task.seccomp.lock().clone(),
        memory_policy: *task.memory_policy.lock(),
        io_priority: task.io_priority.load(Ordering::Relaxed),
        prctl: task.prctl.lock().inherited(),
    })
}

/// Directories and file creation mask of the child: the caller's own (`CLONE_FS`) or a copy.
fn copy_fs(task: &Task, request: &KernelCloneArgs) -> Arc<FsStruct> {
    if request.has(sys::CLONE_FS) {
        return task.fs();
    }
    let own = task.fs().fork();
    if request.has(sys::CLONE_NEWNS) {
        own.copy_namespace();
    }
    own
}

/// Makes the process that a call asks for, with what the caller's leaves to it.
fn copy_process(task: &Task, request: &KernelCloneArgs, pid: Pid) -> Result<Arc<Process>, Errno> {
    let old = task.process();
    let memory = old.require_space()?;
    let space = if request.has(sys::CLONE_VM) {
        memory
    } else {
        mmap::check_fork(&memory)?;
        memory.fork()?
    };
    let actions = old.sighand();
    let new = NewProcess {
        pid,
        creator: crate::current_task()
            .as_ref()
            .map(Arc::downgrade)
            .unwrap_or_default(),
        // A sibling ends as the caller does: the caller's parent has not asked for any other
        // signal.
        exit_signal: if request.has(sys::CLONE_PARENT) {
            old.exit_signal()
        } else {
            request.exit_signal
        },
        space,
        sighand: if request.has(sys::CLONE_SIGHAND) {
            actions
        } else if request.clear_sighand {
            actions.after_exec()
        } else {
            actions.fork()
        },
        limits: *old.limits.lock(),
        cred: task.cred(),
        image: old.image.lock().clone(),
        oom_score_adj: old.oom_score_adj.load(Ordering::Relaxed),
        oom_score_adj_min: old.oom_score_adj_min.load(Ordering::Relaxed),
        personality: old.personality.load(Ordering::Relaxed),
        dump_filter: old.core_dump.filter(),
        logs_syscalls: old.logs_syscalls(),
    };
    let process = Process::new(new);
    // What its parent has in memory and others may not see it has, too.
    process
        .dumpable
        .store(old.dumpable.load(Ordering::Relaxed), Ordering::Relaxed);
    posix_timers::update_rlimit_cpu(&process);
    Ok(process)
}

fn do_clone(task: &Task, regs: &mut UserRegs, request: &KernelCloneArgs) -> SysResult {
    request.check()?;
    namespaces::check_new(task, request.flags)?;
    if task.pid() == Pid::INIT && request.has(sys::CLONE_PARENT) {
        return Err(Errno::EINVAL);
    }
    let is_thread = request.has(sys::CLONE_THREAD);
    check_threads(task)?;
    let fpu = copy_fpu(task, request)?;
    let tid = match request.set_tid {
        Some(number) => process_table::allocate_exact(number)?,
        None => process_table::allocate().ok_or(Errno::EAGAIN)?,
    };
    let own = copy_task(task, request)?;
    let process = if is_thread {
        task.process().clone()
    } else {
        copy_process(task, request, tid.led_process())?
    };
    let child = Task::new(tid, process.clone(), own);
    let mut child_regs = UserRegs {
        rax: 0,
        orig_rax: u64::MAX,
        ..*regs
    };
    if request.stack != 0 {
        child_regs.rsp = request.stack;
    }
    if request.has(sys::CLONE_PARENT_SETTID) {
        // Whoever gives no place for it has a child all the same.
        let _ = UserPtr::<i32>::new(request.parent_tid).write(&tid.raw());
    }
    let pidfd = match request.has(sys::CLONE_PIDFD) {
        true => Some(install_pidfd(task, &process, request.pidfd)?),
        false => None,
    };
    if request.has(sys::CLONE_CHILD_CLEARTID) {
        child
            .clear_child_tid
            .store(request.child_tid.raw(), Ordering::Relaxed);
    }
    if !request.has(sys::CLONE_VM) {
        *child.rseq.lock() = *task.rseq.lock();
    }
    let vfork = request
        .has(sys::CLONE_VFORK)
        .then(Arc::<Completion>::default);
    child.vfork_done.lock().clone_from(&vfork);

    // From here on others see the child.
    if !is_thread {
        let parent = if request.has(sys::CLONE_PARENT) {
            process_table::relations(task.pid()).parent
        } else {
            task.pid()
        };
        process_table::add_process(parent, process.clone());
    }
    let set_tid = request
        .has(sys::CLONE_CHILD_SETTID)
        .then(|| UserPtr::<i32>::new(request.child_tid));
    let event = ptrace_event_of(task, request);
    let started = register_child(&process, &child).and_then(|()| {
        if task.is_ptraced() && (event.is_some() || request.has(sys::CLONE_PTRACE)) {
            ptrace::link_child(task, &child);
        }
        wake_up_new_task(child.clone(), child_regs, fpu, set_tid)
    });
    if let Err(e) = started {
        ptrace::untrace(&child);
        process_table::remove_task(tid);
        process.remove_unstarted(&child);
        if !is_thread {
            process_table::remove_unstarted_process(tid.led_process());
        }
        if let Some(fd) = pidfd {
            task.files().close(fd)?;
        }
        return Err(e);
    }
    if let Some(event) = event {
        ptrace::report_event(task, regs, event, tid.raw() as u64);
    }
    if let Some(vfork) = vfork {
        vfork.wait(task);
        ptrace::report_event(task, regs, Event::VforkDone, tid.raw() as u64);
    }
    Ok(tid.raw() as usize)
}

/// Event that a tracer of the caller gets for the new thread or process, if any.
fn ptrace_event_of(task: &Task, request: &KernelCloneArgs) -> Option<Event> {
    if !task.is_ptraced() || request.has(sys::CLONE_UNTRACED) {
        return None;
    }
    let event = match request.exit_signal {
        _ if request.has(sys::CLONE_VFORK) => Event::Vfork,
        signal if signal == sys::SIGCHLD as i32 => Event::Fork,
        _ => Event::Clone,
    };
    ptrace::event_enabled(task, event).then_some(event)
}

/// Gives the parent a pidfd of its child, and stores its number at `at`.
fn install_pidfd(task: &Task, child: &Arc<Process>, at: UserAddr) -> Result<Fd, Errno> {
    let files = task.files();
    let fd = files.install(
        pidfd::open(child.clone(), OpenFlags::empty()),
        CloseOnExec::Yes,
    )?;
    let fd = Fd::from_index(fd);
    UserPtr::new(at)
        .write(&fd)
        .or_else(|e| files.close(fd).and(Err(e)))?;
    Ok(fd)
}

/// Adds a new process or thread to the process table.
fn register_child(process: &Process, child: &Arc<Task>) -> Result<(), Errno> {
    process.add_task(child.clone())?;
    process_table::add_task(child);
    Ok(())
}

/// Starts a task in a kernel thread of its own.
pub(crate) fn wake_up_new_task(
    task: Arc<Task>,
    regs: UserRegs,
    fpu: UserFpu,
    set_tid: Option<UserPtr<i32>>,
) -> Result<(), Errno> {
    let (name, child) = (task.name(), task.clone());
    let body = move || {
        task.bind_thread();
        let thread = task.thread();
        if let Some(space) = task.process().space() {
            thread.set_user(Some(space));
        }
        thread.set_fpu(Some(fpu));
        if let Some(addr) = set_tid {
            // As on Linux, a bad address is the program's own loss.
            let _ = addr.write(&task.tid().raw());
        }
        (upcalls::get().run_user)(&task, regs);
    };
    // From the first, so that it goes on nowhere else and waits for whom its maker waits: what is
    // changed meanwhile it gets when it is known.
    let (policy, cpus) = (child.sched_params().class(), child.cpus_allowed());
    let thread = ::task::spawn_scheduled(&name, policy, &cpus, body).map_err(|_| Errno::EAGAIN)?;
    child.attach_thread(thread);
    Ok(())
}

/// `clone(2)`: makes a process or thread that shares what flags say.
pub fn sys_clone(
    task: &Task,
    regs: &mut UserRegs,
    flags: u64,
    stack: u64,
    parent_tid: UserAddr,
    child_tid: UserAddr,
    tls: u64,
) -> SysResult {
    if flags as u32 & (sys::CLONE_PIDFD | sys::CLONE_PARENT_SETTID)
        == sys::CLONE_PIDFD | sys::CLONE_PARENT_SETTID
    {
        return Err(Errno::EINVAL);
    }
    let request = KernelCloneArgs {
        flags: flags as u32 & !sys::CSIGNAL,
        exit_signal: (flags as u32 & sys::CSIGNAL).cast_signed(),
        stack,
        parent_tid,
        // The old call has one place for both.
        pidfd: parent_tid,
        child_tid,
        tls,
        set_tid: None,
        clear_sighand: false,
    };
    do_clone(task, regs, &request)
}

/// Arguments of `clone3(2)`: `struct clone_args`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The length of the structure's first version.
const CLONE_ARGS_V0: usize = 64;

/// Flag of `clone3(2)`: the child handles no signals (`CLONE_CLEAR_SIGHAND`).
const CLEAR_SIGHAND: u64 = 1 << 32;

/// Number that the child is to have (`set_tid`): there is one pid namespace, so at most one.
fn requested_tid(task: &Task, args: &CloneArgs) -> Result<Option<i32>, Errno> {
    match (args.set_tid_size, args.set_tid) {
        (0, 0) => Ok(None),
        (1, addr @ 1..) => {
            let cred = task.cred();
            if !cred.has_sys_admin() && !cred.capable(sys::CAP_CHECKPOINT_RESTORE) {
                return Err(Errno::EPERM);
            }
            UserPtr::<i32>::new(addr.into()).read().map(Some)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `clone3(2)`: makes a process or thread as `struct clone_args` says.
pub fn sys_clone3(task: &Task, regs: &mut UserRegs, args: UserAddr, size: usize) -> SysResult {
    if size < CLONE_ARGS_V0 {
        return Err(Errno::EINVAL);
    }
    if size > PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    let mut bytes = [0; size_of::<CloneArgs>()];
    // What a later kernel would know must be zero.
    uaccess::check_zeroed(args, bytes.len()..size)?;
    let known = size.min(bytes.len());
    uaccess::read_bytes(args, &mut bytes[..known])?;
    let args = CloneArgs::read_from_bytes(&bytes).map_err(|_| Errno::EINVAL)?;
    let high = args.flags & !u64::from(u32::MAX);
    if args.flags as u32 & (sys::CLONE_THREAD | sys::CLONE_PARENT) != 0 && args.exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    const BOTH: u32 = sys::CLONE_PIDFD | sys::CLONE_PARENT_SETTID;
    let one_place = args.flags as u32 & BOTH == BOTH && args.pidfd == args.parent_tid;
    if high & !CLEAR_SIGHAND != 0
        || args.flags as u32 & sys::CLONE_DETACHED != 0
        || one_place
        || args.flags & u64::from(sys::CSIGNAL & !sys::CLONE_NEWTIME) != 0
        || (args.stack == 0) != (args.stack_size == 0)
        || args.exit_signal > siginfo::NSIG as u64
    {
        return Err(Errno::EINVAL);
    }
    let request = KernelCloneArgs {
        flags: args.flags as u32,
        exit_signal: i32::try_from(args.exit_signal).map_err(|_| Errno::EINVAL)?,
        stack: args.stack.wrapping_add(args.stack_size),
        parent_tid: args.parent_tid.into(),
        pidfd: args.pidfd.into(),
        child_tid: args.child_tid.into(),
        tls: args.tls,
        set_tid: requested_tid(task, &args)?,
        clear_sighand: high & CLEAR_SIGHAND != 0,
    };
    do_clone(task, regs, &request)
}

/// `fork(2)`: makes a copy of the process.
pub fn sys_fork(task: &Task, regs: &mut UserRegs) -> SysResult {
    do_clone(
        task,
        regs,
        &KernelCloneArgs {
            exit_signal: sys::SIGCHLD as i32,
            ..KernelCloneArgs::default()
        },
    )
}

/// `vfork(2)`: makes a process on the same memory; waits until it leaves that.
pub fn sys_vfork(task: &Task, regs: &mut UserRegs) -> SysResult {
    let flags = sys::CLONE_VM | sys::CLONE_VFORK;
    do_clone(
        task,
        regs,
        &KernelCloneArgs {
            flags,
            exit_signal: sys::SIGCHLD as i32,
            ..KernelCloneArgs::default()
        },
    )
}
