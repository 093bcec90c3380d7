//! The machine and its settings: `uname(2)`, `sysinfo(2)`, `reboot(2)`.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use ::task::{CpuId, Mutex, Once, now_ns};
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use fs::block::writeback;
use guard::fpu::SegmentBases;
use guard::{PowerToken, mem};
use linux_raw_sys::general as sys;
use psi::{Load, Work};
use uapi::time::NS_PER_SEC;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::process::personality::{UNAME26, has_personality_bit};
use crate::process::{namespaces, process_table};
use crate::state::namespaces::NAME_MAX;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Release that the system tells; programs decide by it what they may use.
pub(crate) const RELEASE: &str = "6.1.0-skerry";
const VERSION: &str = concat!("#1 SMP Skerry ", env!("CARGO_PKG_VERSION"));

/// Names that `uname(2)` tells (`struct utsname`).
pub(crate) struct UtsName {
    pub(crate) sysname: &'static str,
    pub(crate) nodename: Vec<u8>,
    pub(crate) release: &'static str,
    pub(crate) version: &'static str,
    pub(crate) machine: &'static str,
}

/// Names of this system, as `uname(2)` tells them.
pub(crate) fn uname() -> UtsName {
    let nodename = namespaces::current().uts.nodename.lock().clone();
    UtsName {
        sysname: "Linux",
        nodename,
        release: RELEASE,
        version: VERSION,
        machine: "x86_64",
    }
}

/// Sets the machine's name.
///
/// # Errors
/// `EINVAL` if it is too long.
pub fn set_hostname(name: &[u8]) -> Result<(), Errno> {
    set_name(&namespaces::current().uts.nodename, name)
}

/// The domain's name; "(none)" if it never had one.
pub(crate) fn domain_name() -> Vec<u8> {
    namespaces::current().uts.domain.lock().clone()
}

/// Sets the NIS domain name of the caller's namespace.
///
/// # Errors
/// `EINVAL` if it is too long.
pub(crate) fn set_domain_name(name: &[u8]) -> Result<(), Errno> {
    set_name(&namespaces::current().uts.domain, name)
}

fn set_name(which: &Mutex<Vec<u8>>, name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    *which.lock() = name.into();
    Ok(())
}

fn set_name_from(task: &Task, which: &Mutex<Vec<u8>>, addr: UserAddr, len: i32) -> SysResult {
    if !task.cred().has_sys_admin() {
        return Err(Errno::EPERM);
    }
    let mut name = [0; NAME_MAX];
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    let name = name.get_mut(..len).ok_or(Errno::EINVAL)?;
    uaccess::read_bytes(addr, name)?;
    set_name(which, name).map(|()| 0)
}

/// `sethostname(2)`: sets the host name, in bytes without NUL.
pub fn sys_sethostname(task: &Task, name: UserAddr, len: i32) -> SysResult {
    set_name_from(task, &task.namespaces().uts.nodename, name, len)
}

/// `setdomainname(2)`: sets the NIS domain name, in bytes without NUL.
pub fn sys_setdomainname(task: &Task, name: UserAddr, len: i32) -> SysResult {
    set_name_from(task, &task.namespaces().uts.domain, name, len)
}

/// Length of each string of `struct new_utsname`.
const FIELD: usize = NAME_MAX + 1;

/// A release as programs of the time of 2.6 can read it: 6.1 is 2.6.61.
fn release_26(release: &str) -> String {
    let minor: u32 = release
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .unwrap_or(0);
    let rest = release
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .map_or("", |at| &release[at..]);
    alloc::format!("2.6.{}{rest}", minor + 60)
}

/// `uname(2)`: stores names and version of the system.
pub fn sys_uname(task: &Task, to: UserAddr) -> SysResult {
    let names = uname();
    let machine = if task.process().personality.load(Ordering::Relaxed) & KIND == LINUX32 {
        "i686"
    } else {
        names.machine
    };
    let release = if has_personality_bit(task, UNAME26) {
        release_26(names.release)
    } else {
        names.release.into()
    };
    let domain = domain_name();
    let mut bytes = [0; 6 * FIELD];
    let texts = [
        names.sysname.as_bytes(),
        &names.nodename,
        release.as_bytes(),
        names.version.as_bytes(),
        machine.as_bytes(),
        &domain,
    ];
    for (field, text) in bytes.chunks_mut(FIELD).zip(texts) {
        field[..text.len()].copy_from_slice(text);
    }
    uaccess::write_bytes(to, &bytes)?;
    Ok(0)
}

/// Memory in use, in bytes, without pages of devices that are given back to whoever asks.
#[must_use]
pub fn used_bytes() -> u64 {
    let stats = mem::stats();
    let own = stats.total - stats.granted - stats.leaked;
    let cached = writeback::device_pages() + writeback::file_pages();
    let clean = cached.saturating_sub(writeback::dirty_pages());
    own.saturating_sub(stats.free).saturating_sub(clean) * PAGE_SIZE as u64
}

/// Load averages of 1, 5 and 15 minutes, in units of 2^-16.
fn load_fixed_point() -> [u64; 3] {
    static LOAD: Mutex<Load> = Mutex::new(Load::new());
    let now = now_ns();
    let (mut work, mut waiting, mut crowded) = (Work::default(), 0, 0);
    for stats in (0..guard::cpu::most() as u32).map(|n| ::task::stats::cpu(CpuId(n))) {
        work.busy_ns += stats.busy_ns();
        work.stalled_ns += stats.stalled_ns;
        let queued = u64::from(stats.runnable.saturating_sub(1));
        waiting += queued;
        crowded += u64::from(queued > 0);
    }
    LOAD.lock()
        .update(now, work, waiting.div_ceil(crowded.max(1)))
}

/// The load of the last 1, 5 and 15 minutes, as `/proc/loadavg` shows it.
pub(crate) fn load_average() -> [String; 3] {
    load_fixed_point()
        .map(|load| alloc::format!("{}.{:02}", load >> 16, ((load & 0xffff) * 100) >> 16))
}

/// Memory, load and time since the start as `sysinfo(2)` stores them: `struct sysinfo`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SysInfo {
    uptime: i64,
    loads: [u64; 3],
    total_ram: u64,
    free_ram: u64,
    shared_ram: u64,
    buffer_ram: u64,
    total_swap: u64,
    free_swap: u64,
    processes: u16,
    padding: [u8; 6],
    total_high: u64,
    free_high: u64,
    unit: u32,
    padding2: u32,
}

const _: () = assert!(size_of::<SysInfo>() == 112);

/// `sysinfo(2)`: stores memory, load and time since the start.
pub fn sys_sysinfo(_: &Task, to: UserPtr<SysInfo>) -> SysResult {
    let memory = guard::mem::stats();
    let mut info = SysInfo::new_zeroed();
    info.uptime = (now_ns() / NS_PER_SEC).cast_signed();
    info.loads = load_fixed_point();
    info.total_ram = (memory.total - memory.granted - memory.leaked) * vm::PAGE_SIZE as u64;
    info.free_ram = memory.free * vm::PAGE_SIZE as u64;
    info.processes = u16::try_from(process_table::thread_count()).unwrap_or(u16::MAX);
    info.unit = 1;
    to.write(&info)?;
    Ok(0)
}

/// `getrandom(2)`: fills a buffer with random bytes.
pub fn sys_getrandom(task: &Task, to: UserAddr, len: usize, flags: u32) -> SysResult {
    let both = sys::GRND_RANDOM | sys::GRND_INSECURE;
    if flags & !(sys::GRND_NONBLOCK | both) != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    if !to.access_ok(len) {
        return Err(Errno::EFAULT);
    }
    let mut bytes = [0; 256];
    let mut done = 0;
    // Large requests end early when a signal comes, as on Linux.
    while done < len && (done == 0 || !task.thread().is_signal_pending()) {
        let chunk = &mut bytes[..(len - done).min(256)];
        guard::random::fill(chunk);
        // What lies before memory that cannot be written counts.
        let written = uaccess::write_partial(to.wrapping_add(done), chunk);
        done += written;
        if written < chunk.len() {
            break;
        }
    }
    if done == 0 && len > 0 {
        Err(Errno::EFAULT)
    } else {
        Ok(done)
    }
}

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;
const ARCH_GET_CPUID: u32 = 0x1011;
const ARCH_SET_CPUID: u32 = 0x1012;

/// `arch_prctl(2)`: sets or stores the bases of the FS and GS segments.
pub fn sys_arch_prctl(task: &Task, code: u32, addr: u64) -> SysResult {
    let thread = task.thread();
    let set = |bases| match thread.with_fpu(|fpu| fpu.set_bases(bases)) {
        Some(Ok(())) => Ok(()),
        _ => Err(Errno::EPERM),
    };
    let to = UserPtr::<u64>::new(addr.into());
    let bases = thread.with_fpu(|fpu| fpu.bases()).ok_or(Errno::EPERM)?;
    match code {
        ARCH_SET_FS => set(SegmentBases { fs: addr, ..bases })?,
        ARCH_SET_GS => set(SegmentBases { gs: addr, ..bases })?,
        ARCH_GET_FS => to.write(&bases.fs)?,
        ARCH_GET_GS => to.write(&bases.gs)?,
        // CPUID always works, and the processor is not asked to make it fault.
        ARCH_GET_CPUID => return Ok(1),
        ARCH_SET_CPUID => return Err(Errno::ENODEV),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The part that names a kind of kernel.
const KIND: u32 = 0xff;
/// A kernel on a processor of 32 bits.
const LINUX32: u32 = 8;

/// `personality(2)`: any is taken and told; of what they change there is what the constants above
/// say.
pub fn sys_personality(task: &Task, persona: u32) -> SysResult {
    const QUERY: u32 = u32::MAX;
    let own = &task.process().personality;
    Ok(if persona == QUERY {
        own.load(Ordering::Relaxed)
    } else {
        own.swap(persona, Ordering::Relaxed)
    } as usize)
}

/// `vhangup(2)`: hangs up the caller's terminal.
pub fn sys_vhangup(task: &Task) -> SysResult {
    if !task.cred().capable(sys::CAP_SYS_TTY_CONFIG) {
        return Err(Errno::EPERM);
    }
    let session = process_table::relations(task.pid()).session;
    if let Some(tty) = fs::tty::controlling(session.as_u32()) {
        tty.hang_up();
    }
    Ok(0)
}

const REBOOT_MAGIC1: u32 = 0xfee1_dead;
const REBOOT_MAGIC2: [u32; 4] = [672_274_793, 85_072_278, 369_367_448, 537_993_216];
const REBOOT_RESTART: u32 = 0x0123_4567;
const REBOOT_RESTART2: u32 = 0xa1b2_c3d4;
const REBOOT_HALT: u32 = 0xcdef_0123;
const REBOOT_POWER_OFF: u32 = 0x4321_fedc;
const REBOOT_CAD_ON: u32 = 0x89ab_cdef;
const REBOOT_CAD_OFF: u32 = 0;

static POWER: Once<PowerToken> = Once::new();

/// Keeps the right to end the machine, for `reboot(2)`. Once, before the first process.
pub(crate) fn set_power(token: PowerToken) {
    POWER.call_once(|| token);
}

fn power() -> Result<&'static PowerToken, Errno> {
    POWER.get().ok_or(Errno::EPERM)
}

/// `reboot(2)`: restarts or stops the machine.
pub fn sys_reboot(
    task: &Task,
    magic1: u32,
    magic2: u32,
    command: u32,
    _arg: UserAddr,
) -> SysResult {
    if !task.cred().capable(sys::CAP_SYS_BOOT) {
        return Err(Errno::EPERM);
    }
    if magic1 != REBOOT_MAGIC1 || !REBOOT_MAGIC2.contains(&magic2) {
        return Err(Errno::EINVAL);
    }
    match command {
        REBOOT_POWER_OFF | REBOOT_HALT => guard::power::off(power()?),
        REBOOT_RESTART | REBOOT_RESTART2 => guard::power::reset(power()?),
        REBOOT_CAD_ON | REBOOT_CAD_OFF => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}
