//! The clock's discipline: `adjtimex(2)`, `clock_adjtime(2)`. The clock can be looked at and moved,
//! and what is told of how well it is kept is remembered; nothing makes it faster or slower.

use ::task::{Mutex, now_ns};
use abi::errno::Errno;
use guard::timer;
use linux_raw_sys::general as sys;
use uapi::time::{NS_PER_SEC, TimeVal};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::time::wall_clock;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// Parameters of the clock's adjustment: `struct timex`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Timex {
    modes: u32,
    pad: u32,
    offset: i64,
    frequency: i64,
    max_error: i64,
    estimated_error: i64,
    status: i32,
    pad2: u32,
    constant: i64,
    precision: i64,
    tolerance: i64,
    time: TimeVal,
    tick: i64,
    pulses: [i64; 8],
    /// Seconds by which the clock without leap seconds is ahead.
    tai: u32,
    rest: [u32; 11],
}

const _: () = assert!(size_of::<Timex>() == 208);

impl Timex {
    /// Distance by which `time` is to move the clock, in nanoseconds.
    fn delta_ns(&self) -> Result<i64, Errno> {
        let (parts, length) = if self.modes & mode::NANO == 0 {
            (1_000_000, 1000)
        } else {
            (1_000_000_000, 1)
        };
        if !(0..parts).contains(&self.time.usec) {
            return Err(Errno::EINVAL);
        }
        let seconds = self.time.sec.checked_mul(NS_PER_SEC.cast_signed());
        seconds
            .and_then(|seconds| seconds.checked_add(self.time.usec * length))
            .ok_or(Errno::EINVAL)
    }
}

/// Bits of `modes`: what is to be set.
mod mode {
    pub const OFFSET: u32 = 0x1;
    pub const FREQUENCY: u32 = 0x2;
    pub const MAX_ERROR: u32 = 0x4;
    pub const ESTIMATED_ERROR: u32 = 0x8;
    pub const STATUS: u32 = 0x10;
    pub const TIME_CONSTANT: u32 = 0x20;
    pub const TAI: u32 = 0x80;
    /// Adds `time` to the clock, which has nanoseconds rather than microseconds with [`NANO`].
    pub const SET_OFFSET: u32 = 0x100;
    pub const MICRO: u32 = 0x1000;
    pub const NANO: u32 = 0x2000;
    /// Sets `tick`, microseconds that a hundredth of a second has.
    pub const TICK: u32 = 0x4000;
    /// `adjtime(3)`, which goes with [`OFFSET`] and [`NANO`] (here: only to ask) alone.
    pub const ADJTIME: u32 = 0x8000;
}

/// Bits of `status`.
mod status {
    pub const PHASE_LOCKED: i32 = 0x1;
    pub const INSERT_LEAP_SECOND: i32 = 0x10;
    pub const DELETE_LEAP_SECOND: i32 = 0x20;
    pub const UNSYNCHRONISED: i32 = 0x40;
    pub const NANO: i32 = 0x2000;
    /// Bits that programs do not set.
    pub const READ_ONLY: i32 = 0xff00;
}

const NOMINAL_TICK: i64 = 10_000;
const TICKS: core::ops::RangeInclusive<i64> = 9000..=11_000;
/// Result of the call for a clock that nobody keeps synchronised.
const TIME_ERROR: usize = 5;
/// Microseconds that such a clock may be wrong.
const UNKNOWN_ERROR: i64 = 16_000_000;
/// Microseconds by which the largest error grows in a second.
const DRIFT: i64 = 500;
const MAX_TIME_CONSTANT: i64 = 10;
/// Most seconds by which the clock without leap seconds is ahead.
const MAX_TAI: u32 = 100_000;

/// State of the wall clock as programs that keep it have told it.
struct Discipline {
    status: i32,
    /// Microseconds, at the time of the monotonic clock beside it.
    max_error: i64,
    told_ns: u64,
    estimated_error: i64,
    constant: i64,
}

static DISCIPLINE: Mutex<Discipline> = Mutex::new(Discipline {
    status: status::UNSYNCHRONISED,
    max_error: UNKNOWN_ERROR,
    told_ns: 0,
    estimated_error: UNKNOWN_ERROR,
    constant: 2,
});

impl Discipline {
    /// Lets the largest error grow; at its end the clock counts as not synchronised.
    fn age(&mut self) {
        let seconds = now_ns().saturating_sub(self.told_ns) / NS_PER_SEC;
        self.told_ns += seconds * NS_PER_SEC;
        let grown = seconds.cast_signed().saturating_mul(DRIFT);
        self.max_error = self.max_error.saturating_add(grown);
        if self.max_error > UNKNOWN_ERROR {
            self.max_error = UNKNOWN_ERROR;
            self.status |= status::UNSYNCHRONISED;
        }
    }

    fn set(&mut self, asked: &Timex) {
        let has = |mode| asked.modes & mode != 0;
        if has(mode::STATUS) {
            // Who gives up the loop sets all of it anew.
            if self.status & status::PHASE_LOCKED != 0 && asked.status & status::PHASE_LOCKED == 0 {
                self.status = 0;
            }
            self.status = self.status & status::READ_ONLY | asked.status & !status::READ_ONLY;
        }
        if has(mode::NANO) {
            self.status |= status::NANO;
        }
        if has(mode::MICRO) {
            self.status &= !status::NANO;
        }
        if has(mode::MAX_ERROR) {
            (self.max_error, self.told_ns) = (asked.max_error, now_ns());
        }
        if has(mode::ESTIMATED_ERROR) {
            self.estimated_error = asked.estimated_error;
        }
        if has(mode::TIME_CONSTANT) {
            let finer = if self.status & status::NANO == 0 {
                4
            } else {
                0
            };
            self.constant = asked
                .constant
                .saturating_add(finer)
                .clamp(0, MAX_TIME_CONSTANT);
        }
    }
}

/// Checks what is asked for, before anything is changed.
///
/// # Errors
/// `EPERM` for who may not set the clock; `EINVAL` for a bad value; `EOPNOTSUPP` for what would
/// change the clock's rate, or its time by and by.
fn check(task: &Task, asked: &Timex) -> Result<(), Errno> {
    let modes = asked.modes;
    if modes & mode::ADJTIME != 0 {
        if modes & mode::OFFSET == 0 {
            return Err(Errno::EINVAL);
        }
        if modes & mode::NANO == 0 {
            wall_clock::check_sys_time(task)?;
            return if asked.offset == 0 {
                Ok(())
            } else {
                Err(Errno::EOPNOTSUPP)
            };
        }
        return Ok(());
    }
    if modes == 0 {
        return Ok(());
    }
    wall_clock::check_sys_time(task)?;
    if modes & mode::TICK != 0 && !TICKS.contains(&asked.tick) {
        return Err(Errno::EINVAL);
    }
    if modes & mode::SET_OFFSET != 0 {
        asked.delta_ns()?;
    }
    // In parts of a million, and parts of 2^16 of those, which Linux has in parts of 2^32.
    const PARTS: i64 = 65_536_000;
    if modes & mode::FREQUENCY != 0 && asked.frequency.checked_mul(PARTS).is_none() {
        return Err(Errno::EINVAL);
    }
    let leap = status::INSERT_LEAP_SECOND | status::DELETE_LEAP_SECOND;
    let steers = modes & mode::TICK != 0 && asked.tick != NOMINAL_TICK
        || modes & mode::FREQUENCY != 0 && asked.frequency != 0
        || modes & mode::OFFSET != 0 && asked.offset != 0
        || modes & mode::STATUS != 0 && asked.status & leap != 0;
    if steers {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// `adjtimex(2)`: reads and adjusts the wall clock.
pub fn sys_adjtimex(task: &Task, state: UserPtr<Timex>) -> SysResult {
    let asked = state.read()?;
    let modes = asked.modes;
    check(task, &asked)?;
    let sets = modes & mode::ADJTIME == 0;
    if sets && modes & mode::SET_OFFSET != 0 {
        wall_clock::step(task, asked.delta_ns()?)?;
    }
    let mut now = Timex::new_zeroed();
    {
        let mut kept = DISCIPLINE.lock();
        kept.age();
        if sets {
            kept.set(&asked);
        }
        now.status = kept.status;
        (now.max_error, now.estimated_error) = (kept.max_error, kept.estimated_error);
        now.constant = kept.constant;
    }
    if sets
        && modes & mode::TAI != 0
        && let Ok(seconds @ 0..=MAX_TAI) = u32::try_from(asked.constant)
    {
        wall_clock::set_tai(seconds);
    }
    now.modes = modes;
    (now.precision, now.tolerance, now.tick) = (1, 500 << 16, NOMINAL_TICK);
    now.tai = wall_clock::tai_seconds();
    let ns = timer::wall_ns();
    now.time = TimeVal::from_ns(ns);
    if now.status & status::NANO != 0 {
        now.time.usec = (ns % NS_PER_SEC).cast_signed();
    }
    state.write(&now)?;
    Ok(if now.status & status::UNSYNCHRONISED != 0 {
        TIME_ERROR
    } else {
        0
    })
}

/// `clock_adjtime(2)`: reads and adjusts a clock.
pub fn sys_clock_adjtime(task: &Task, clock: i32, state: UserPtr<Timex>) -> SysResult {
    // Of clocks by number 10 was given up; negative ones are processor time, or a descriptor's.
    const FIXED: u32 = sys::CLOCK_REALTIME + 1;
    const BY_DESCRIPTOR: i32 = 3;
    match clock.cast_unsigned() {
        sys::CLOCK_REALTIME => sys_adjtimex(task, state),
        FIXED..=sys::CLOCK_BOOTTIME_ALARM | sys::CLOCK_TAI => Err(Errno::EOPNOTSUPP),
        _ if clock < 0 && clock & 7 != BY_DESCRIPTOR => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
