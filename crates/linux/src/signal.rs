//! Signals: sending, delivering, and the calls for it. What is waited for is in `sigwait`.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use ::task::Mutex;
use abi::errno::Errno;
use guard::fpu::{self, UserFpu};
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::SIGPENDING;
use crate::process::{self, Process};
use crate::process_table as processes;
use crate::sigframe::{self, AltStack, Frame, LastFault, UContext};
use crate::siginfo::{
    COUNT, Default as DefaultAction, FIRST_REAL_TIME, STOPPING, SYNCHRONOUS, SigInfo, SigSet, UNBLOCKABLE, bit, default_action,
};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, rseq};

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const SIGKILL: i32 = sys::SIGKILL as i32;
const SIGSTOP: i32 = sys::SIGSTOP as i32;
const SIGCONT: i32 = sys::SIGCONT as i32;
const SIGCHLD: i32 = sys::SIGCHLD as i32;
const SIGSEGV: i32 = sys::SIGSEGV as i32;

/// Signals that were sent and not delivered, in order.
#[derive(Default)]
pub(crate) struct Pending {
    queue: VecDeque<SigInfo>,
    set: SigSet,
}

impl Pending {
    /// Those there are.
    pub(crate) fn set(&self) -> SigSet {
        self.set
    }

    /// Adds one. An ordinary signal that is there already is not added again; of real-time signals there are `most`.
    fn add(&mut self, info: &SigInfo, most: usize) -> Result<(), Errno> {
        let there = self.set & bit(info.signo) != 0;
        if there && info.signo < FIRST_REAL_TIME {
            return Ok(());
        }
        if info.signo >= FIRST_REAL_TIME && self.queue.len() >= most {
            return Err(Errno::EAGAIN);
        }
        self.set |= bit(info.signo);
        self.queue.push_back(*info);
        Ok(())
    }

    /// Takes the next one that is in `wanted`: those that instructions caused, then by number.
    #[inline]
    pub(crate) fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        if self.set & wanted == 0 { None } else { self.take_first(self.set & wanted) }
    }

    fn take_first(&mut self, there: SigSet) -> Option<SigInfo> {
        if self.queue.len() == 1 {
            self.set = 0;
            return self.queue.pop_front();
        }
        let first = if there & SYNCHRONOUS != 0 { there & SYNCHRONOUS } else { there };
        let signo = first.trailing_zeros() as i32 + 1;
        let info = match self.queue.pop_front_if(|info| info.signo == signo) {
            Some(info) => info,
            None => {
                let at = self.queue.iter().position(|info| info.signo == signo)?;
                self.queue.remove(at)?
            }
        };
        if !self.queue.iter().any(|info| info.signo == signo) {
            self.set &= !bit(signo);
        }
        Some(info)
    }

    fn discard(&mut self, unwanted: SigSet) {
        if self.set & unwanted != 0 {
            self.queue.retain(|info| bit(info.signo) & unwanted == 0);
            self.set &= !unwanted;
        }
    }
}

/// What a process does with one signal: `struct sigaction` of the kernel.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

impl Action {
    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }
}

/// What a process does with signals; processes may share it (`CLONE_SIGHAND`).
pub(crate) struct Actions(Mutex<[Action; COUNT as usize]>);

impl Default for Actions {
    fn default() -> Self {
        Self(Mutex::new([Action::default(); COUNT as usize]))
    }
}

impl Actions {
    pub(crate) fn get(&self, signal: i32) -> Action {
        self.0.lock()[signal as usize - 1]
    }

    fn set(&self, signal: i32, action: Action) {
        self.0.lock()[signal as usize - 1] = action;
    }

    /// A copy of its own.
    pub(crate) fn fork(&self) -> Arc<Self> {
        Arc::new(Self(Mutex::new(*self.0.lock())))
    }

    /// A copy without handlers, for another program.
    pub(crate) fn after_exec(&self) -> Arc<Self> {
        let copy = self.fork();
        for action in copy.0.lock().iter_mut() {
            *action = Action { handler: if action.handler == SIG_IGN { SIG_IGN } else { SIG_DFL }, ..Action::default() };
        }
        copy
    }

    /// Whether a signal has no effect.
    pub(crate) fn is_ignored(&self, signal: i32) -> bool {
        match self.get(signal).handler {
            SIG_DFL => default_action(signal) == DefaultAction::Ignore,
            handler => handler == SIG_IGN,
        }
    }

    /// Whether children vanish at their end, without being waited for.
    pub(crate) fn reaps_children(&self) -> bool {
        let action = self.get(SIGCHLD);
        action.handler == SIG_IGN || action.has(sys::SA_NOCLDWAIT)
    }

    /// Whether stops of children are told.
    pub(crate) fn wants_child_stops(&self) -> bool {
        !self.get(SIGCHLD).has(sys::SA_NOCLDSTOP)
    }

    /// Signals ignored, and signals with a handler.
    pub(crate) fn sets(&self) -> (SigSet, SigSet) {
        let mut sets = (0, 0);
        for (i, action) in self.0.lock().iter().enumerate() {
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => sets.0 |= 1 << i,
                _ => sets.1 |= 1 << i,
            }
        }
        sets
    }
}

/// Puts a signal where its receiver finds it: with `task`, or with the process.
fn post(process: &Arc<Process>, task: Option<&Task>, info: &SigInfo) -> Result<(), Errno> {
    let signo = info.signo;
    if signo == SIGKILL {
        process.kill(SIGKILL);
        return Ok(());
    }
    let discard = |unwanted: SigSet| {
        process.pending.lock().discard(unwanted);
        for task in process.tasks() {
            task.signals.lock().pending.discard(unwanted);
        }
    };
    if signo == SIGCONT {
        discard(STOPPING);
        process.resume();
    } else if bit(signo) & STOPPING != 0 {
        discard(bit(SIGCONT));
    }
    let blocked = |task: &Task| task.signals.lock().blocked & bit(signo) != 0;
    let ignored = process.ignores(signo);
    let most =
        if signo < FIRST_REAL_TIME { 0 } else { usize::try_from(process.limits.lock()[SIGPENDING][0]).unwrap_or(usize::MAX) };
    match task {
        Some(task) => {
            let held = blocked(task);
            if ignored && !held {
                return Ok(());
            }
            task.signals.lock().pending.add(info, most)?;
            if !held {
                task.interrupt();
            }
        }
        None => {
            let receiver = process.find_task(|task| !blocked(task));
            if ignored && receiver.is_some() {
                return Ok(());
            }
            process.pending.lock().add(info, most)?;
            if let Some(task) = receiver {
                task.interrupt();
            }
        }
    }
    process.signal_sent.notify();
    Ok(())
}

/// Sends a signal to a process, from the kernel.
pub(crate) fn send(process: &Arc<Process>, info: SigInfo) {
    // A full queue loses real-time signals only, and the kernel sends none.
    let _ = post(process, None, &info);
}

/// Sends a signal to a thread, from the kernel.
pub(crate) fn send_task(task: &Task, info: SigInfo) {
    let _ = post(task.process(), Some(task), &info);
}

/// Sends a signal to all processes of a group, from the kernel.
pub(crate) fn send_group(group: i32, info: SigInfo) {
    for process in processes::select(|_, node| node.group == group && node.ended.is_none()) {
        send(&process, info);
    }
}

/// A signal that an instruction of the thread caused: it cannot be blocked or ignored.
pub(crate) fn force(task: &Task, info: SigInfo, fault: LastFault) {
    let actions = task.process().actions();
    let mask = bit(info.signo);
    let ignored = actions.get(info.signo).handler == SIG_IGN;
    let blocked = {
        let mut signals = task.signals.lock();
        signals.fault = fault;
        let blocked = signals.blocked & mask != 0;
        signals.blocked &= !mask;
        blocked
    };
    if ignored || blocked {
        actions.set(info.signo, Action::default());
    }
    send_task(task, info);
}

/// Looks at what a thread has to do before it goes on in user mode: end, stop, handle signals. `interrupted` is the result of a
/// system call that a signal interrupted. True: the thread ends.
pub(crate) fn attend(task: &Arc<Task>, regs: &mut UserRegs, mut interrupted: Option<Errno>) -> bool {
    let process = task.process();
    task.thread().clear_interrupt();
    loop {
        if task.must_end() {
            return true;
        }
        process.wait_while_stopped(task);
        if task.must_end() {
            return true;
        }
        // Looked at where it is: it is large.
        let info = next(task);
        let Some(info) = &info else { break };
        let signo = info.signo;
        let action = process.action(signo);
        match action.handler {
            SIG_IGN => {}
            SIG_DFL => match default_action(signo) {
                DefaultAction::Ignore => {}
                DefaultAction::Stop => {
                    let [_, _, group, _] = processes::relations(process.pid());
                    let jobs: &dyn fs::tty::JobControl = &processes::Jobs;
                    if signo == SIGSTOP || !jobs.is_orphaned(group.cast_unsigned()) {
                        process.stop(signo);
                    }
                }
                DefaultAction::End => {
                    if crate::siginfo::dumps(signo) {
                        let fault = task.signals.lock().fault;
                        let place = format_args!("at {:#x}, address {:#x}", regs.rip, fault.cr2);
                        process::log_end(process, signo, place);
                    }
                    process.kill(signo);
                }
            },
            _ => {
                if let Some(code) = interrupted.take() {
                    let again = code == Errno::ERESTARTNOINTR || code == Errno::ERESTARTSYS && action.has(sys::SA_RESTART);
                    if again {
                        restart(regs, regs.orig_rax);
                    } else {
                        regs.rax = i64::from(-Errno::EINTR.raw()).cast_unsigned();
                    }
                }
                if action.has(sys::SA_RESETHAND) {
                    process.actions().set(signo, Action { handler: SIG_DFL, ..action });
                }
                rseq::resume(task, regs);
                if handle(task, regs, info, &action).is_err() {
                    process::log_end(process, SIGSEGV, format_args!("no room for the frame of {}", crate::siginfo::name(signo)));
                    process.kill(SIGSEGV);
                }
            }
        }
    }
    if let Some(code) = interrupted {
        let number = if code == Errno::ERESTART_RESTARTBLOCK { u64::from(sys::__NR_restart_syscall) } else { regs.orig_rax };
        restart(regs, number);
    }
    let mut signals = task.signals.lock();
    if let Some(mask) = signals.saved.take() {
        task.block(signals, mask);
    }
    false
}

/// Makes the program execute its SYSCALL instruction, which is two bytes long, again.
fn restart(regs: &mut UserRegs, number: u64) {
    regs.rax = number;
    regs.rip -= 2;
}

/// The next signal the thread has to handle.
fn next(task: &Task) -> Option<SigInfo> {
    let wanted = {
        let mut signals = task.signals.lock();
        let wanted = !signals.blocked;
        if let Some(info) = signals.pending.take(wanted) {
            return Some(info);
        }
        wanted
    };
    task.process().pending.lock().take(wanted)
}

/// Makes the thread run a handler.
#[inline(never)]
fn handle(task: &Task, regs: &mut UserRegs, info: &SigInfo, action: &Action) -> Result<(), Errno> {
    if !action.has(sys::SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let own = if action.has(sys::SA_NODEFER) { 0 } else { bit(info.signo) };
    // If there is no room for the frame, the process ends: what is changed here matters to nobody then.
    let (stack, mask, fault) = {
        let mut signals = task.signals.lock();
        let stack = signals.stack;
        let mask = signals.saved.take().unwrap_or(signals.blocked);
        signals.blocked |= (action.mask | own) & !UNBLOCKABLE;
        // Handlers that jump out never come back to the alternate stack.
        if stack.flags & sys::SS_AUTODISARM != 0 {
            signals.stack = AltStack::none();
        }
        (stack, mask, signals.fault)
    };
    let on_stack = stack.contains(regs.rsp);
    let alternate = (action.has(sys::SA_ONSTACK) && stack.enabled() && !on_stack).then_some(&stack);
    let mut shown = stack;
    shown.flags |= if on_stack { AltStack::ONSTACK } else { 0 };
    let size = fpu::signal_frame_size();
    let place = sigframe::place(regs.rsp, alternate, size).ok_or(Errno::EFAULT)?;
    let fpu = place.fpu as usize;
    while let Some(Err(_)) = task.thread().with_fpu(|state| uaccess::write_bytes(fpu, state.signal_frame())) {
        uaccess::fetch(fpu, size, true)?;
    }
    let frame = Frame::new(regs, place, action.restorer, info, shown, mask, fault);
    UserPtr::new(place.frame as usize).write(&frame)?;
    sigframe::enter_handler(regs, place, action.handler, info.signo);
    Ok(())
}

/// `rt_sigreturn(2)`: what the frame on the stack says becomes true again. The result is the accumulator's old value.
pub fn sys_rt_sigreturn(task: &Task, regs: &mut UserRegs) -> SysResult {
    // The handler's return took the first word.
    let addr = regs.rsp.wrapping_sub(8) as usize;
    let restored = restore(task, regs, addr);
    if restored.is_err() {
        force(task, SigInfo::kernel(SIGSEGV), LastFault::default());
        return Ok(regs.rax as usize);
    }
    Ok(regs.rax as usize)
}

fn restore(task: &Task, regs: &mut UserRegs, addr: usize) -> Result<(), Errno> {
    UserPtr::<UContext>::new(addr.wrapping_add(Frame::UCONTEXT)).with(|frame| restore_frame(task, regs, frame))?
}

#[inline(always)]
fn restore_frame(task: &Task, regs: &mut UserRegs, frame: &UContext) -> Result<(), Errno> {
    if frame.fpu() != 0 {
        let from = frame.fpu() as usize;
        let load = |fpu: &mut UserFpu| fpu.load_signal_frame(|to| uaccess::read_bytes(from, to));
        while let Some(Err(_)) = task.thread().with_fpu(load) {
            uaccess::fetch(from, fpu::signal_frame_size(), false)?;
        }
    }
    frame.restore(regs);
    let stack = frame.stack();
    let mut signals = task.signals.lock();
    signals.stack = stack.with_flags(stack.flags & !AltStack::ONSTACK);
    task.block(signals, frame.mask());
    Ok(())
}

/// `sigaltstack(2)`
pub fn sys_sigaltstack(task: &Task, regs: &mut UserRegs, new: UserPtr<AltStack>, old: UserPtr<AltStack>) -> SysResult {
    let new = new.read_optional()?;
    let mut current = task.signals.lock().stack;
    let on_stack = current.contains(regs.rsp);
    if let Some(stack) = new {
        if on_stack {
            return Err(Errno::EPERM);
        }
        let stack = match stack.flags & !sys::SS_AUTODISARM {
            0 | AltStack::ONSTACK if stack.size < sys::MINSIGSTKSZ.into() => return Err(Errno::ENOMEM),
            0 | AltStack::ONSTACK => stack.with_flags(stack.flags & sys::SS_AUTODISARM),
            AltStack::DISABLE => AltStack::none(),
            _ => return Err(Errno::EINVAL),
        };
        task.signals.lock().stack = stack;
    }
    if on_stack {
        current.flags |= AltStack::ONSTACK;
    }
    old.write_optional(&current)?;
    Ok(0)
}

/// `rt_sigaction(2)`
pub fn sys_rt_sigaction(task: &Task, signal: i32, new: UserPtr<Action>, old: UserPtr<Action>, size: usize) -> SysResult {
    if size != size_of::<SigSet>() || !(1..=COUNT).contains(&signal) {
        return Err(Errno::EINVAL);
    }
    let new = new.read_optional()?;
    if new.is_some() && bit(signal) & UNBLOCKABLE != 0 {
        return Err(Errno::EINVAL);
    }
    let process = task.process();
    let actions = process.actions();
    let before = actions.get(signal);
    if let Some(action) = new {
        actions.set(signal, Action { mask: action.mask & !UNBLOCKABLE, ..action });
        if actions.is_ignored(signal) {
            // What waits is forgotten, blocked or not (POSIX).
            process.pending.lock().discard(bit(signal));
            for task in process.tasks() {
                task.signals.lock().pending.discard(bit(signal));
            }
        }
    }
    old.write_optional(&before)?;
    Ok(0)
}

/// Whether the caller may send `signal` to a process.
fn check_permission(task: &Task, process: &Process, signal: i32) -> Result<(), Errno> {
    if core::ptr::eq(&**task.process(), process) || task.cred().may_signal(&process.credentials()) {
        return Ok(());
    }
    let session = |pid| processes::relations(pid)[3];
    if signal == SIGCONT && session(task.pid()) == session(process.pid()) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Process 1 is not ended or stopped by those it looks after; it gets what it handles, and what it has blocked to wait for it.
pub(crate) fn is_spared(process: &Process, signal: i32) -> bool {
    process.pid() == 1
        && process.actions().get(signal).handler == SIG_DFL
        && !process.tasks().iter().any(|task| task.signals.lock().blocked & bit(signal) != 0)
}

/// Sends from a call of `task`. 0 only checks.
fn send_from(task: &Task, process: &Arc<Process>, thread: Option<&Task>, info: &SigInfo) -> Result<(), Errno> {
    check_permission(task, process, info.signo)?;
    if info.signo == 0 {
        return Ok(());
    }
    if is_spared(process, info.signo) {
        return Ok(());
    }
    post(process, thread, info)
}

fn check_signal(signal: i32) -> Result<(), Errno> {
    if (0..=COUNT).contains(&signal) { Ok(()) } else { Err(Errno::EINVAL) }
}

fn info_of(task: &Task, signal: i32, code: i32) -> SigInfo {
    SigInfo::from_process(signal, code, task.pid(), task.uid())
}

/// `kill(2)`
pub fn sys_kill(task: &Task, pid: i32, signal: i32) -> SysResult {
    check_signal(signal)?;
    let info = info_of(task, signal, sys::SI_USER as i32);
    let own = task.pid();
    let receivers = match pid {
        1.. if pid == own => return send_from(task, task.process(), None, &info).map(|()| 0),
        1.. => {
            let process = processes::find(pid).ok_or(Errno::ESRCH)?;
            return send_from(task, &process, None, &info).map(|()| 0);
        }
        // Everybody else.
        -1 => processes::select(|pid, node| pid != 1 && pid != own && node.ended.is_none()),
        _ => {
            let group = if pid == 0 { processes::relations(own)[2] } else { pid.checked_neg().ok_or(Errno::ESRCH)? };
            processes::select(|_, node| node.group == group)
        }
    };
    let mut result = Err(Errno::ESRCH);
    for process in receivers {
        match send_from(task, &process, None, &info) {
            Ok(()) => result = Ok(0),
            Err(e) if result.is_err() => result = Err(e),
            Err(_) => {}
        }
    }
    result
}

fn to_thread(task: &Task, process: Option<i32>, tid: i32, info: SigInfo) -> SysResult {
    if tid <= 0 || process.is_some_and(|pid| pid <= 0) {
        return Err(Errno::EINVAL);
    }
    check_signal(info.signo)?;
    let other = if tid == task.tid() { None } else { Some(processes::find_task(tid).ok_or(Errno::ESRCH)?) };
    let target = other.as_deref().unwrap_or(task);
    if process.is_some_and(|pid| pid != target.pid()) {
        return Err(Errno::ESRCH);
    }
    send_from(task, target.process(), Some(target), &info).map(|()| 0)
}

/// Sends to the process that a descriptor means: `pidfd_send_signal(2)`.
pub(crate) fn send_by_descriptor(task: &Task, process: &Arc<Process>, signal: i32, info: UserPtr<SigInfo>) -> SysResult {
    check_signal(signal)?;
    let info = match info.is_null() {
        true => info_of(task, signal, sys::SI_USER as i32),
        false => claimed(task, process.pid(), signal, info)?,
    };
    send_from(task, process, None, &info).map(|()| 0)
}

/// `tgkill(2)`
pub fn sys_tgkill(task: &Task, pid: i32, tid: i32, signal: i32) -> SysResult {
    to_thread(task, Some(pid), tid, info_of(task, signal, sys::SI_TKILL))
}

/// `tkill(2)`
pub fn sys_tkill(task: &Task, tid: i32, signal: i32) -> SysResult {
    to_thread(task, None, tid, info_of(task, signal, sys::SI_TKILL))
}

/// What the caller of a `*queueinfo` call may claim.
fn claimed(task: &Task, to: i32, signal: i32, info: UserPtr<SigInfo>) -> Result<SigInfo, Errno> {
    let mut info = info.read()?;
    info.signo = signal;
    let from_kernel = info.code >= 0 || info.code == sys::SI_TKILL;
    if from_kernel && to != task.pid() { Err(Errno::EPERM) } else { Ok(info) }
}

/// `rt_sigqueueinfo(2)`
pub fn sys_rt_sigqueueinfo(task: &Task, pid: i32, signal: i32, info: UserPtr<SigInfo>) -> SysResult {
    check_signal(signal)?;
    let info = claimed(task, pid, signal, info)?;
    let process = processes::find(pid).ok_or(Errno::ESRCH)?;
    send_from(task, &process, None, &info).map(|()| 0)
}

/// `rt_tgsigqueueinfo(2)`
pub fn sys_rt_tgsigqueueinfo(task: &Task, pid: i32, tid: i32, signal: i32, info: UserPtr<SigInfo>) -> SysResult {
    let info = claimed(task, pid, signal, info)?;
    to_thread(task, Some(pid), tid, info)
}
