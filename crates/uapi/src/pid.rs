//! Numbers of processes, threads, process groups and sessions: all are a `pid_t` to programs.

use core::fmt;

use abi::errno::Errno;

/// Defines a number that programs see as a `pid_t`.
macro_rules! pid_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
        #[repr(transparent)]
        pub struct $name(i32);

        impl $name {
            /// The number with this `pid_t`, whether anything has it or not.
            #[must_use]
            pub const fn new(raw: i32) -> Self {
                Self(raw)
            }

            /// The number as a `pid_t`.
            #[must_use]
            pub const fn raw(self) -> i32 {
                self.0
            }

            /// The number's bits as an unsigned word.
            #[must_use]
            pub const fn as_u32(self) -> u32 {
                self.0.cast_unsigned()
            }

            /// The number that a program passed; `None` for 0, by which most calls mean the caller.
            #[must_use]
            pub const fn of_argument(raw: i32) -> Option<Self> {
                if raw == 0 { None } else { Some(Self(raw)) }
            }

            /// Whether anything can have the number: it is positive.
            #[must_use]
            pub const fn is_valid(self) -> bool {
                self.0 > 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

pid_number! {
    /// Process ID, which `getpid(2)` returns (Linux: `PIDTYPE_TGID`).
    Pid
}
pid_number! {
    /// Thread ID, which `gettid(2)` returns (Linux: `PIDTYPE_PID`).
    Tid
}
pid_number! {
    /// Process group ID (Linux: `PIDTYPE_PGID`).
    Pgid
}
pid_number! {
    /// Session ID (Linux: `PIDTYPE_SID`).
    Sid
}

impl Pid {
    /// No process: the parent of process 1.
    pub const NONE: Self = Self(0);
    /// Number of process 1.
    pub const INIT: Self = Self(1);

    /// Number of the process's first thread, and of the one that `execve(2)` leaves.
    #[must_use]
    pub const fn leader(self) -> Tid {
        Tid(self.0)
    }

    /// The process group that the process leads or can make (`setpgid(2)`).
    #[must_use]
    pub const fn own_group(self) -> Pgid {
        Pgid(self.0)
    }

    /// The session that the process leads or can make (`setsid(2)`).
    #[must_use]
    pub const fn own_session(self) -> Sid {
        Sid(self.0)
    }
}

impl Tid {
    /// The process whose first thread has this number.
    #[must_use]
    pub const fn led_process(self) -> Pid {
        Pid(self.0)
    }
}

/// The processes that the `pid_t` of `kill(2)` or `waitpid(2)` selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PidSelector {
    /// One process, or the process of one of its threads: a positive number.
    One(Tid),
    /// The caller's process group: 0.
    OwnGroup,
    /// All that the call can reach: -1.
    All,
    /// A process group: its number, negated.
    Group(Pgid),
}

impl PidSelector {
    /// The meaning of a `pid_t`.
    ///
    /// # Errors
    /// `ESRCH` for the least number, of which no process group has the negated one.
    pub fn new(raw: i32) -> Result<Self, Errno> {
        Ok(match raw {
            1.. => Self::One(Tid(raw)),
            0 => Self::OwnGroup,
            -1 => Self::All,
            _ => Self::Group(Pgid(raw.checked_neg().ok_or(Errno::ESRCH)?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_t_selects_one_a_group_or_all() {
        assert_eq!(PidSelector::new(7), Ok(PidSelector::One(Tid(7))));
        assert_eq!(
            PidSelector::new(i32::MAX),
            Ok(PidSelector::One(Tid(i32::MAX)))
        );
        assert_eq!(PidSelector::new(0), Ok(PidSelector::OwnGroup));
        assert_eq!(PidSelector::new(-1), Ok(PidSelector::All));
        assert_eq!(PidSelector::new(-2), Ok(PidSelector::Group(Pgid(2))));
        assert_eq!(
            PidSelector::new(-i32::MAX),
            Ok(PidSelector::Group(Pgid(i32::MAX)))
        );
        assert_eq!(PidSelector::new(i32::MIN), Err(Errno::ESRCH));
    }

    #[test]
    fn numbers_cost_nothing() {
        assert_eq!(size_of::<Pid>(), size_of::<i32>());
        assert_eq!(size_of::<Tid>(), size_of::<i32>());
    }
}
