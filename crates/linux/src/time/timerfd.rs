//! Timers that are read: `timerfd_create(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::ioctl::IoctlRequest;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags, Whence};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::time::TimerMode;

use crate::process::timer::Timer;
use crate::state::expirations::Expirations;
use crate::state::fdtable::CloseOnExec;
use crate::time::check_alarm_clock;
use crate::time::posix_timers::{ITimerSpec, clock_base};
use crate::time::wall_clock::lock_wall_clock;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `ioctl(2)`: sets the count of expirations (`_IOW('T', 0, __u64)`).
const TFD_IOC_SET_TICKS: u32 = 0x4008_5400;

/// A descriptor of a timer.
struct TimerFd {
    _counted: census::TimerFd,
    timer: Arc<Timer>,
    expirations: Arc<Expirations>,
}

impl FileOps for TimerFd {
    fn read(&self, file: &File, buf: &mut [u8]) -> fs::Result<usize> {
        let to = buf.first_chunk_mut::<8>().ok_or(Errno::EINVAL)?;
        let attempt = || match self.expirations.count.swap(0, Ordering::AcqRel) {
            _ if self.expirations.take_cancelled() => Some(Err(Errno::ECANCELED)),
            0 => None,
            count => Some(Ok(count + self.timer.resume().unwrap_or(0))),
        };
        let count = match attempt() {
            Some(count) => count?,
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => self.expirations.readable.wait(attempt)??,
        };
        *to = count.to_ne_bytes();
        Ok(8)
    }

    fn min_transfer(&self) -> usize {
        size_of::<u64>()
    }

    fn keeps_data_on_fault(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.expirations.readable);
        }
        let expirations = &self.expirations;
        let something = expirations.count.load(Ordering::Acquire) > 0
            || expirations.cancelled.load(Ordering::Acquire);
        if something {
            Events::IN
        } else {
            Events::empty()
        }
    }

    /// Sets how often the timer is said to have fired, for who restores a process.
    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        if request.command != TFD_IOC_SET_TICKS {
            return Err(Errno::ENOTTY);
        }
        let ticks = request.read::<u64>()?;
        if ticks == 0 {
            return Err(Errno::EINVAL);
        }
        if self.expirations.take_cancelled() {
            return Err(Errno::ECANCELED);
        }
        self.expirations.set(ticks);
        Ok(0)
    }

    /// Moves nothing: the descriptor has a position that stays 0.
    fn seek(&self, _: &File, _: Whence, _: i64) -> fs::Result<u64> {
        Ok(0)
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        self.timer.set(None, 0);
    }
}

/// `timerfd_create(2)`: makes a descriptor of a timer.
pub fn sys_timerfd_create(task: &Task, clock: i32, flags: u32) -> SysResult {
    if flags & !(sys::TFD_CLOEXEC | sys::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if clock.cast_unsigned() == sys::CLOCK_TAI {
        return Err(Errno::EINVAL);
    }
    let base = clock_base(clock)?;
    check_alarm_clock(task, clock)?;
    let expirations = Arc::<Expirations>::default();
    let timer = Timer::for_timerfd(expirations.clone(), base);
    let open = OpenFlags::RDWR | OpenFlags::from_bits_retain(flags & sys::TFD_NONBLOCK);
    let file = File::anonymous(
        "anon_inode:[timerfd]",
        Arc::new(TimerFd {
            _counted: census::TimerFd::default(),
            timer,
            expirations,
        }),
        open,
    );
    task.files()
        .install(file, CloseOnExec::when(flags & sys::TFD_CLOEXEC != 0))
}

/// `timerfd_settime(2)`: arms or disarms a timer; stores what it was.
pub fn sys_timerfd_settime(
    task: &Task,
    fd: Fd,
    flags: u32,
    new: UserPtr<ITimerSpec>,
    old: UserPtr<ITimerSpec>,
) -> SysResult {
    let new = new.read()?;
    if flags & !(sys::TFD_TIMER_ABSTIME | sys::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    new.check()?;
    let file = task.file_io(fd)?;
    let timer = file.ops_as::<TimerFd>().ok_or(Errno::EINVAL)?;
    let still = lock_wall_clock();
    let before = timer.timer.set(None, 0);
    let expirations = &timer.expirations;
    expirations.count.store(0, Ordering::Release);
    expirations.cancellable.store(
        flags == sys::TFD_TIMER_ABSTIME | sys::TFD_TIMER_CANCEL_ON_SET,
        Ordering::Release,
    );
    timer
        .timer
        .set_to(&still, &new, TimerMode::of_flags(flags))?;
    drop(still);
    timer.timer.fire_if_due();
    old.write_optional(&ITimerSpec::new(before))?;
    if expirations.take_cancelled() {
        Err(Errno::ECANCELED)
    } else {
        Ok(0)
    }
}

/// `timerfd_gettime(2)`: stores a timer's time left and interval.
pub fn sys_timerfd_gettime(task: &Task, fd: Fd, value: UserPtr<ITimerSpec>) -> SysResult {
    let file = task.file_io(fd)?;
    let timer = file.ops_as::<TimerFd>().ok_or(Errno::EINVAL)?;
    value.write(&ITimerSpec::new(timer.timer.value()))?;
    Ok(0)
}
