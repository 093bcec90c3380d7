//! Clocks that show how much processor time a process or thread has used
//! (`CLOCK_PROCESS_CPUTIME_ID`).

use alloc::sync::{Arc, Weak};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::{Pid, Tid};

use crate::Task;
use crate::process::{Process, process_table};

/// A clock that shows how much processor time was used.
#[derive(Clone)]
pub(crate) struct CpuClock {
    of: CpuClockOf,
    counted: CountedTime,
}

/// The part of the processor time that a clock counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CountedTime {
    /// Time in user mode (Linux: `CPUCLOCK_VIRT`).
    User,
    /// Time in user mode and in the kernel (Linux: `CPUCLOCK_PROF`, `CPUCLOCK_SCHED`).
    Total,
}

#[derive(Clone)]
pub(crate) enum CpuClockOf {
    Process(Weak<Process>),
    Thread(Weak<Task>),
}

impl CpuClock {
    /// The clock of a process.
    pub(crate) fn of_process(process: &Arc<Process>, counted: CountedTime) -> Self {
        Self {
            of: CpuClockOf::Process(Arc::downgrade(process)),
            counted,
        }
    }

    pub(crate) fn of_thread(task: &Arc<Task>, counted: CountedTime) -> Self {
        Self {
            of: CpuClockOf::Thread(Arc::downgrade(task)),
            counted,
        }
    }

    /// Clock of processor time that a `clockid_t` names; `None` if it names one of another kind.
    ///
    /// # Errors
    /// `EINVAL` if there is no such process or thread.
    pub(crate) fn from_clockid(task: &Task, clock: i32) -> Result<Option<Self>, Errno> {
        /// Low bits of a negative number; all of them set is no clock of this kind, 1 is that of
        /// user mode.
        const KIND: i32 = 3;
        const USER: i32 = 1;
        const OF_THREAD: i32 = 4;
        let own = || crate::current_task().ok_or(Errno::EINVAL);
        match clock.cast_unsigned() {
            sys::CLOCK_PROCESS_CPUTIME_ID => {
                return Ok(Some(Self::of_process(task.process(), CountedTime::Total)));
            }
            sys::CLOCK_THREAD_CPUTIME_ID => {
                return Ok(Some(Self::of_thread(&own()?, CountedTime::Total)));
            }
            _ if clock >= 0 => return Ok(None),
            _ => {}
        }
        let counted = if clock & KIND == USER {
            CountedTime::User
        } else {
            CountedTime::Total
        };
        if clock & KIND == KIND {
            return Err(Errno::EINVAL);
        }
        match (clock & OF_THREAD != 0, !(clock >> 3)) {
            (true, 0) => own().map(|own| Some(Self::of_thread(&own, counted))),
            (false, 0) => Ok(Some(Self::of_process(task.process(), counted))),
            (true, tid) => {
                let other = process_table::find_task(Tid::new(tid))
                    .filter(|t| t.pid() == task.pid())
                    .ok_or(Errno::EINVAL)?;
                Ok(Some(Self::of_thread(&other, counted)))
            }
            (false, pid) => {
                let process = process_table::find(Pid::new(pid)).ok_or(Errno::EINVAL)?;
                Ok(Some(Self::of_process(&process, counted)))
            }
        }
    }

    /// Whether it is the clock of one thread, the one with this number.
    pub(crate) fn is_of_thread(&self, tid: Tid) -> bool {
        matches!(&self.of, CpuClockOf::Thread(task) if task.upgrade().is_some_and(|task| task.tid() == tid))
    }

    /// Time that the clock shows, in nanoseconds; 0 once its process or thread is gone.
    pub(crate) fn now(&self) -> u64 {
        let usage = match &self.of {
            CpuClockOf::Process(process) => process.upgrade().map(|process| process.usage()),
            CpuClockOf::Thread(task) => task.upgrade().map(|task| task.usage()),
        };
        let usage = usage.unwrap_or_default();
        match self.counted {
            CountedTime::User => usage.user_ns,
            CountedTime::Total => usage.total_ns(),
        }
    }
}
