//! The clock's discipline: `adjtimex(2)`, `clock_adjtime(2)`. The clock can be looked at and moved;
//! nothing makes it faster or slower.

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
    rest: [u64; 14],
}

const _: () = assert!(size_of::<Timex>() == 208);

impl Timex {
    /// Distance by which `time` is to move the clock, in nanoseconds.
    fn delta_ns(&self) -> Result<i64, Errno> {
        let (parts, length) = if self.modes & NANO == 0 {
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

/// Asks for what is left of `adjtime(3)`.
const OFFSET_SS_READ: u32 = 0xa001;
/// Adds `time` to the clock, which has nanoseconds rather than microseconds with the second one.
const SETOFFSET: u32 = 0x100;
const NANO: u32 = 0x2000;
/// Sets `tick`, microseconds that a hundredth of a second has, within these bounds.
const TICK: u32 = 0x4000;
const TICKS: core::ops::RangeInclusive<i64> = 9000..=11_000;
const STA_UNSYNC: i32 = 0x40;
/// Result of the call for a clock that nobody disciplines.
const TIME_ERROR: usize = 5;
/// Microseconds that such a clock may be wrong.
const UNKNOWN_ERROR: i64 = 16_000_000;

/// `adjtimex(2)`: reads and adjusts the wall clock.
pub fn sys_adjtimex(task: &Task, state: UserPtr<Timex>) -> SysResult {
    let asked = state.read()?;
    let modes = asked.modes;
    if modes & !NANO == SETOFFSET {
        wall_clock::step(task, asked.delta_ns()?)?;
    } else if modes != 0 && modes != OFFSET_SS_READ {
        let ticks = modes & TICK != 0 && !TICKS.contains(&asked.tick);
        return Err(if ticks && task.cred().capable(sys::CAP_SYS_TIME) {
            Errno::EINVAL
        } else {
            Errno::EPERM
        });
    }
    let mut now = Timex::new_zeroed();
    now.modes = modes;
    (now.max_error, now.estimated_error, now.status) = (UNKNOWN_ERROR, UNKNOWN_ERROR, STA_UNSYNC);
    (now.constant, now.precision, now.tolerance, now.tick) = (2, 1, 500 << 16, 10_000);
    now.time = TimeVal::from_ns(timer::wall_ns());
    state.write(&now)?;
    Ok(TIME_ERROR)
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
