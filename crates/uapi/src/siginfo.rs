//! Signals by number and name, and what is told with one (`siginfo_t`).

use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::pid::{Pid, Tid};

/// Number of signals; they are numbered from 1.
pub const NSIG: i32 = 64;
/// Number of the first real-time signal: from here on every signal that is sent arrives.
pub const SIGRTMIN: i32 = 32;

/// A set of signals: bit `n - 1` is signal `n`.
pub type SigSet = u64;

/// The set of one signal.
#[must_use]
pub const fn sigmask(signal: i32) -> SigSet {
    1 << (signal - 1)
}

/// The set of several signals.
const fn set(signals: &[u32]) -> SigSet {
    let (mut set, mut i) = (0, 0);
    while i < signals.len() {
        set |= sigmask(signals[i] as i32);
        i += 1;
    }
    set
}

/// Bits of an address that are the place in its page.
const PAGE_BITS: u32 = 12;

/// Signals that cannot be blocked, caught or ignored.
pub const UNBLOCKABLE: SigSet = set(&[sys::SIGKILL, sys::SIGSTOP]);
/// Signals that stop a process unless caught.
pub const STOPPING: SigSet = set(&[sys::SIGSTOP, sys::SIGTSTP, sys::SIGTTIN, sys::SIGTTOU]);
/// Signals that an instruction causes; they are delivered first.
pub const SYNCHRONOUS: SigSet = set(&[
    sys::SIGSEGV,
    sys::SIGBUS,
    sys::SIGILL,
    sys::SIGTRAP,
    sys::SIGFPE,
    sys::SIGSYS,
]);
/// Signals that do nothing unless caught.
const IGNORED: SigSet = set(&[sys::SIGCHLD, sys::SIGCONT, sys::SIGURG, sys::SIGWINCH]);
/// Signals whose default would also write a core file; a process's status tells.
const CORE_DUMPING: SigSet = set(&[
    sys::SIGQUIT,
    sys::SIGILL,
    sys::SIGTRAP,
    sys::SIGABRT,
    sys::SIGBUS,
    sys::SIGFPE,
    sys::SIGSEGV,
    sys::SIGXCPU,
    sys::SIGXFSZ,
    sys::SIGSYS,
]);

/// Default action of a signal (`signal(7)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultAction {
    /// The signal is ignored.
    Ignore,
    /// The process stops until `SIGCONT`.
    Stop,
    /// The process is terminated.
    Terminate,
}

/// The default action of a signal.
#[must_use]
pub const fn default_action(signal: i32) -> DefaultAction {
    let bit = sigmask(signal);
    if bit & IGNORED != 0 {
        DefaultAction::Ignore
    } else if bit & STOPPING != 0 {
        DefaultAction::Stop
    } else {
        DefaultAction::Terminate
    }
}

/// Whether the default action of a signal writes a core file.
#[must_use]
pub const fn dumps_core(signal: i32) -> bool {
    sigmask(signal) & CORE_DUMPING != 0
}

const NAMES: [&str; 32] = [
    "0",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// The name of a signal, for messages.
#[must_use]
pub fn name(signal: i32) -> &'static str {
    usize::try_from(signal)
        .ok()
        .and_then(|n| NAMES.get(n))
        .copied()
        .unwrap_or(if signal <= NSIG { "SIGRT" } else { "SIG?" })
}

/// A signal with its origin: `siginfo_t`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct SigInfo {
    /// Number of the signal, from 1 to [`NSIG`].
    pub signo: i32,
    /// An error number; hardly ever set.
    pub errno: i32,
    /// Origin of the signal (`SI_*`), or what happened (`SEGV_*`, `CLD_*`, …).
    pub code: i32,
    padding: i32,
    /// Fields whose meaning depends on the code.
    pub fields: [u32; 28],
}

const _: () = assert!(size_of::<SigInfo>() == 128);

impl SigInfo {
    /// Whether Linux knows what belongs to such a code of such a signal.
    pub fn has_known_form(&self) -> bool {
        /// The least code of those for all signals, without two that stand apart.
        const LEAST: i32 = -7;
        const ASYNC_NAMES: i32 = -60;
        const KERNEL: i32 = 0x80;
        let most = match self.signo.cast_unsigned() {
            sys::SIGILL => 11,
            sys::SIGFPE => 15,
            sys::SIGSEGV => 9,
            sys::SIGBUS => 5,
            sys::SIGSYS => 2,
            _ => 6,
        };
        (LEAST..=most).contains(&self.code) || matches!(self.code, ASYNC_NAMES | KERNEL)
    }

    fn new(signo: i32, code: i32) -> Self {
        Self {
            signo,
            errno: 0,
            code,
            padding: 0,
            fields: [0; 28],
        }
    }

    fn put(mut self, at: usize, value: u64) -> Self {
        self.fields[at] = value as u32;
        self.fields[at + 1] = (value >> 32) as u32;
        self
    }

    /// From the kernel, about nothing in particular.
    #[must_use]
    pub fn kernel(signo: i32) -> Self {
        Self::new(signo, sys::SI_KERNEL as i32)
    }

    /// From a process: `code` says by which call.
    #[must_use]
    pub fn from_process(signo: i32, code: i32, pid: Pid, uid: u32) -> Self {
        let mut info = Self::new(signo, code);
        info.fields[0] = pid.as_u32();
        info.fields[1] = uid;
        info
    }

    /// From an instruction that touched `addr`, or is there.
    #[must_use]
    pub fn fault(signo: i32, code: i32, addr: u64) -> Self {
        Self::new(signo, code).put(0, addr)
    }

    /// From an instruction that met an error in the memory of the page at `addr`.
    #[must_use]
    pub fn memory_error(code: i32, addr: u64) -> Self {
        let mut info = Self::fault(sys::SIGBUS as i32, code, addr);
        // `si_addr_lsb`: so many bits of the address are not known.
        info.fields[2] = PAGE_BITS;
        info
    }

    /// About a child: what happened to it, its status or signal, its processor time in clock ticks.
    #[must_use]
    pub fn child(code: i32, tid: Tid, uid: u32, status: i32, ticks: u64) -> Self {
        let mut info = Self::new(sys::SIGCHLD as i32, code);
        info.fields[0] = tid.as_u32();
        info.fields[1] = uid;
        info.fields[2] = status.cast_unsigned();
        info.put(4, ticks)
    }

    /// About a system call that was not allowed: from where it came, its number and the kind of
    /// processor.
    #[must_use]
    pub fn system_call(
        signo: i32,
        code: i32,
        errno: i32,
        addr: u64,
        number: u32,
        arch: u32,
    ) -> Self {
        let mut info = Self::new(signo, code).put(0, addr);
        info.errno = errno;
        (info.fields[2], info.fields[3]) = (number, arch);
        info
    }

    /// From a POSIX message queue: who sent the message.
    #[must_use]
    pub fn message_queue(signo: i32, pid: Pid, uid: u32, value: u64) -> Self {
        Self::from_process(signo, sys::SI_MESGQ, pid, uid).put(2, value)
    }

    /// About a descriptor (`F_SETSIG`): what happened there, and what it is ready for.
    #[must_use]
    pub fn poll(signo: i32, code: i32, band: u32, fd: i32) -> Self {
        let mut info = Self::new(signo, code).put(0, u64::from(band));
        info.fields[2] = fd.cast_unsigned();
        info
    }

    /// From a POSIX timer.
    #[must_use]
    pub fn timer(signo: i32, id: i32, overrun: i32, value: u64) -> Self {
        let mut info = Self::new(signo, sys::SI_TIMER);
        info.fields[0] = id.cast_unsigned();
        info.fields[1] = overrun.cast_unsigned();
        info.put(2, value)
    }

    /// Number of the POSIX timer that it is from, if it says that it is from one.
    #[must_use]
    pub fn timer_id(&self) -> Option<i32> {
        (self.code == sys::SI_TIMER).then(|| self.fields[0].cast_signed())
    }

    /// Adds to the number of expirations of a timer that it stands for, as far as that can be told.
    pub fn add_overrun(&mut self, more: u64) {
        let sum = u64::from(self.fields[1]).saturating_add(more);
        self.fields[1] = sum.min(i32::MAX as u64) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_linux_has_them() {
        let info = SigInfo::fault(11, 1, 0x1122_3344_5566_7788);
        assert_eq!(
            info.as_bytes()[16..24],
            0x1122_3344_5566_7788u64.to_ne_bytes()
        );
        let info = SigInfo::child(1, Tid::new(7), 8, 9, 10);
        let word = |at: usize| i32::from_ne_bytes(info.as_bytes()[at..at + 4].try_into().unwrap());
        assert_eq!(
            [word(0), word(8), word(16), word(20), word(24), word(32)],
            [17, 1, 7, 8, 9, 10]
        );
        let info = SigInfo::timer(14, 3, 2, 99);
        assert_eq!(info.as_bytes()[24..32], 99u64.to_ne_bytes());
    }

    #[test]
    fn defaults() {
        assert_eq!(default_action(sys::SIGCHLD as i32), DefaultAction::Ignore);
        assert_eq!(default_action(sys::SIGTSTP as i32), DefaultAction::Stop);
        assert_eq!(
            default_action(sys::SIGTERM as i32),
            DefaultAction::Terminate
        );
        assert_eq!(default_action(NSIG), DefaultAction::Terminate);
        assert!(dumps_core(sys::SIGSEGV as i32) && !dumps_core(sys::SIGKILL as i32));
        assert_eq!((name(11), name(40), name(0)), ("SIGSEGV", "SIGRT", "0"));
    }
}
