//! What threads and processes have used: `getrusage(2)`, `times(2)`.

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::time::{NS_PER_SEC, TimeVal};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::state::usage::Usage;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// Clock ticks per second, as programs count them (`sysconf(_SC_CLK_TCK)`).
const TICKS: u64 = 100;

/// Resources used as `getrusage(2)` stores them: `struct rusage`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RUsage {
    user: TimeVal,
    system: TimeVal,
    max_resident_kib: i64,
    sizes: [i64; 3],
    minor_faults: i64,
    major_faults: i64,
    swaps: i64,
    blocks_in: i64,
    blocks_out: i64,
    rest: [i64; 3],
    voluntary_switches: i64,
    involuntary_switches: i64,
}

const _: () = assert!(size_of::<RUsage>() == 144);

impl RUsage {
    /// Usage as programs see it. All pages are in memory, so that every fault is a minor one.
    pub(crate) fn of(usage: &Usage) -> Self {
        Self {
            user: TimeVal::from_ns(usage.user_ns),
            system: TimeVal::from_ns(usage.system_ns),
            max_resident_kib: (usage.max_rss >> 10).cast_signed(),
            minor_faults: usage.faults.cast_signed(),
            // In units of 512 bytes.
            blocks_in: (usage.storage.read >> 9).cast_signed(),
            blocks_out: (usage.storage.written >> 9).cast_signed(),
            voluntary_switches: usage.switches.voluntary.cast_signed(),
            involuntary_switches: usage.switches.involuntary.cast_signed(),
            ..Self::new_zeroed()
        }
    }
}

/// `getrusage(2)`: stores the usage of the process, its children or the thread.
pub fn sys_getrusage(task: &Task, who: i32, to: UserPtr<RUsage>) -> SysResult {
    const SELF: i32 = sys::RUSAGE_SELF as i32;
    const THREAD: i32 = sys::RUSAGE_THREAD as i32;
    let process = task.process();
    let usage = match who {
        sys::RUSAGE_CHILDREN => *process.children_usage.lock(),
        SELF => process.usage(),
        THREAD => Usage {
            max_rss: process.update_max_rss(),
            ..task.usage()
        },
        _ => return Err(Errno::EINVAL),
    };
    to.write(&RUsage::of(&usage))?;
    Ok(0)
}

/// `struct tms`: processor times in ticks of the clock, 100 to a second.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Tms {
    user: u64,
    system: u64,
    children_user: u64,
    children_system: u64,
}

/// `times(2)`: stores processor times in ticks; returns the ticks since the start.
pub fn sys_times(task: &Task, times: UserPtr<Tms>) -> SysResult {
    let ticks = |ns: u64| ns / (NS_PER_SEC / TICKS);
    let process = task.process();
    let (own, children) = (process.usage(), *process.children_usage.lock());
    times.write_optional(&Tms {
        user: ticks(own.user_ns),
        system: ticks(own.system_ns),
        children_user: ticks(children.user_ns),
        children_system: ticks(children.system_ns),
    })?;
    Ok(ticks(::task::now_ns()) as usize)
}
