//! The end of a process that leaves a core dump: one thread writes it, while the others wait with
//! their registers at the end of their ways. `write` has what is written.

mod write;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ::task::{Mutex, WaitQueue};
use guard::fpu;
use guard::user::UserRegs;
use uapi::user_regs::{self, UserRegsStruct};
use vm::DumpFilter;
pub(crate) use write::{HELPER_LIMIT, dump_and_kill};

use crate::Task;
use crate::process::Process;

/// State of a process's core dump.
pub(crate) struct CoreDump {
    /// Whether a thread writes it: the others wait.
    running: AtomicBool,
    /// Whether the process was killed, which ends it.
    aborted: AtomicBool,
    /// Threads that wait for the end of the dump.
    waiters: WaitQueue,
    /// Kinds of memory that are dumped: bits of [`DumpFilter`].
    filter: AtomicU32,
}

impl CoreDump {
    /// State of a process that dumps what `filter` says.
    pub(crate) fn new(filter: DumpFilter) -> Self {
        Self {
            running: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            waiters: WaitQueue::new(),
            filter: AtomicU32::new(filter.bits()),
        }
    }

    /// Whether a dump is being written.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }

    /// Whether the process was killed.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Ends a dump that is being written, as soon as it can be: the process is killed.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    /// Kinds of memory that are dumped.
    pub(crate) fn filter(&self) -> DumpFilter {
        DumpFilter::from_bits_truncate(self.filter.load(Ordering::Relaxed))
    }

    /// Changes the kinds of memory that are dumped; unknown ones are left out.
    pub(crate) fn set_filter(&self, bits: u32) {
        let filter = DumpFilter::from_bits_truncate(bits);
        self.filter.store(filter.bits(), Ordering::Relaxed);
    }
}

/// Registers of a thread, as a core dump has them.
pub(crate) struct DumpedRegisters {
    pub(crate) general: UserRegsStruct,
    /// Content of `NT_X86_XSTATE`; empty if memory was short.
    pub(crate) extended: Vec<u8>,
}

impl DumpedRegisters {
    /// Registers of the calling thread, which left its program with `regs`.
    pub(crate) fn of_caller(task: &Task, regs: &UserRegs) -> Self {
        let mut frame = fallible::zeroed(fpu::signal_frame_size()).unwrap_or_default();
        let bases = task.thread().with_fpu(|state| {
            if !frame.is_empty() {
                frame.copy_from_slice(state.signal_frame());
            }
            state.bases()
        });
        Self {
            general: UserRegsStruct::of(regs, bases.unwrap_or_default()),
            extended: if frame.is_empty() {
                frame
            } else {
                user_regs::xstate_regset(&frame)
            },
        }
    }
}

/// Outcome of a core dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DumpResult {
    /// Something was written: `WCOREDUMP` says so.
    Written,
    Nothing,
}

/// Part of a thread in the core dump of its process.
#[derive(Default)]
pub(crate) struct DumpedThread {
    /// Whether the thread has come to its end: the dump need not wait for it any more.
    arrived: AtomicBool,
    /// Registers it had, if it came there because of the dump; none also if memory was short.
    pub(crate) registers: Mutex<Vec<DumpedRegisters>>,
}

impl Process {
    /// Ends the process by `signal`, with a core dump that `task`, the caller, writes: begins it
    /// when all other threads have come to their end. False: there is none, as the end has begun
    /// before, or the process is about to run another program.
    pub(crate) fn begin_core_dump(&self, task: &Arc<Task>, signal: i32) -> bool {
        if self.is_replaced() {
            return false;
        }
        {
            let mut status = self.group_exit_status.lock();
            if status.is_some() {
                return false;
            }
            *status = Some(signal);
        }
        self.core_dump.running.store(true, Ordering::SeqCst);
        self.group_exit(signal);
        if self.is_replaced() {
            // The thread that replaces it may not have seen that it ends, and waits for this one.
            self.end_core_dump(DumpResult::Nothing);
            return false;
        }
        let others = |other: &Arc<Task>| {
            !Arc::ptr_eq(other, task) && !other.dumped.arrived.load(Ordering::SeqCst)
        };
        let mut tasks = self.tasks.lock();
        while tasks.iter().any(others) {
            tasks = self.tasks_changed.wait(tasks);
        }
        true
    }

    /// Ends the dump and lets the other threads go on to their ends.
    pub(crate) fn end_core_dump(&self, result: DumpResult) {
        const CORE: i32 = 0x80;
        if result == DumpResult::Written
            && !self.core_dump.is_aborted()
            && let Some(status) = self.group_exit_status.lock().as_mut()
        {
            *status |= CORE;
        }
        self.core_dump.running.store(false, Ordering::SeqCst);
        self.core_dump.waiters.wake_all();
    }
}

/// Has a thread that comes to its end wait for the core dump of its process, if there is one going
/// on. It left its program with `regs`.
pub(crate) fn wait_at_exit(task: &Task, regs: &UserRegs) {
    let process = task.process();
    let arrive = || {
        task.dumped.arrived.store(true, Ordering::SeqCst);
        let tasks = process.tasks.lock();
        process.tasks_changed.notify_all(&tasks);
    };
    if !process.core_dump.is_running() {
        task.dumped.arrived.store(true, Ordering::SeqCst);
        // A dump that began in between may wait for this thread; one that begins later does not.
        if process.core_dump.is_running() {
            arrive();
        }
        return;
    }
    if let Ok(mut registers) = fallible::with_capacity(1) {
        registers.push(DumpedRegisters::of_caller(task, regs));
        *task.dumped.registers.lock() = registers;
    }
    arrive();
    process
        .core_dump
        .waiters
        .wait(|| (!process.core_dump.is_running()).then_some(()));
}
