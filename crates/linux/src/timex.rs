//! The clock's discipline: `adjtimex(2)`, `clock_adjtime(2)`. The clock is the supervisor's; it can be looked at.

use abi::errno::Errno;
use guard::timer;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::time::TimeVal;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `struct timex`.
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

/// Asks for what is left of `adjtime(3)`.
const OFFSET_SS_READ: u32 = 0xa001;
const STA_UNSYNC: i32 = 0x40;
/// What the call returns of a clock that nobody disciplines.
const TIME_ERROR: usize = 5;
/// Microseconds that such a clock may be wrong.
const UNKNOWN_ERROR: i64 = 16_000_000;

/// `adjtimex(2)`
pub fn sys_adjtimex(_: &Task, state: UserPtr<Timex>) -> SysResult {
    let modes = state.read()?.modes;
    if modes != 0 && modes != OFFSET_SS_READ {
        return Err(Errno::EPERM);
    }
    let mut now = Timex::new_zeroed();
    now.modes = modes;
    (now.max_error, now.estimated_error, now.status) = (UNKNOWN_ERROR, UNKNOWN_ERROR, STA_UNSYNC);
    (now.constant, now.precision, now.tolerance, now.tick) = (2, 1, 500 << 16, 10_000);
    now.time = TimeVal::from_ns(timer::wall_ns());
    state.write(&now)?;
    Ok(TIME_ERROR)
}

/// `clock_adjtime(2)`
pub fn sys_clock_adjtime(task: &Task, clock: i32, state: UserPtr<Timex>) -> SysResult {
    match clock.cast_unsigned() {
        sys::CLOCK_REALTIME => sys_adjtimex(task, state),
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME | sys::CLOCK_TAI => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
