//! Debug registers: what a tracer finds in them, and what it may put there. Pure.

use abi::errno::Errno;
use guard::user::USER_END;

/// Bits of the status register that say nothing, as they are always read.
const STATUS_FIXED: u64 = 0xffff_0ff0;
/// Status bits of the addresses that were touched, and of a single step.
const STATUS_HITS: u64 = 0xf;
const STATUS_STEP: u64 = 1 << 14;
/// Bits of the control register that cannot be set.
const CONTROL_RESERVED: u64 = 0xffff_ffff_0000_fc00;
/// Kinds of access: execution; of a port, which nobody may ask for.
const EXECUTE: u64 = 0;
const PORT: u64 = 2;

/// Why there was a debug exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The trap flag: one instruction was run.
    Step,
    /// A watchpoint, or a breakpoint (which has to be passed over, once).
    Hit { breakpoint: bool },
    /// The instruction made for it.
    Instruction,
}

/// Debug registers of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DebugRegisters {
    pub(crate) addresses: [u64; 4],
    pub(crate) control: u64,
    /// Control register of the thread that made this one: it is read until another is set, and
    /// asks for nothing, as the addresses were not copied.
    copied_control: u64,
    /// Without the fixed bits.
    status: u64,
}

impl DebugRegisters {
    /// Registers of a new thread that this one's thread makes.
    pub(crate) fn of_child(&self) -> Self {
        Self {
            copied_control: self.get(7),
            ..Self::default()
        }
    }

    /// A register by its number.
    pub(crate) fn get(&self, number: usize) -> u64 {
        match number {
            0..=3 => self.addresses[number],
            6 => self.status ^ STATUS_FIXED,
            7 => self.control | self.copied_control,
            _ => 0,
        }
    }

    /// Sets a debug register (0 to 3, 6 or 7) after a check of what it asks for.
    ///
    /// # Errors
    /// `EINVAL` for what cannot be watched, `EPERM` for addresses of the kernel, `EIO` if there is
    /// no such register.
    pub(crate) fn set(&mut self, number: usize, value: u64) -> Result<(), Errno> {
        let mut new = *self;
        match number {
            0..=3 => new.addresses[number] = value,
            6 => new.status = value ^ STATUS_FIXED,
            7 => (new.control, new.copied_control) = (value & !CONTROL_RESERVED, 0),
            _ => return Err(Errno::EIO),
        }
        (0..4).try_for_each(|at| new.check(at))?;
        *self = new;
        Ok(())
    }

    fn is_on(&self, at: usize) -> bool {
        self.control >> (2 * at) & 3 != 0
    }

    /// The kind of access that counts, and the number of bytes less one.
    fn kind(&self, at: usize) -> (u64, u64) {
        let bits = self.control >> (16 + 4 * at);
        (bits & 3, [0, 1, 7, 3][(bits >> 2 & 3) as usize])
    }

    fn check(&self, at: usize) -> Result<(), Errno> {
        let (address, (kind, more)) = (self.addresses[at], self.kind(at));
        if address >= USER_END as u64 {
            return Err(Errno::EPERM);
        }
        let bad = kind == PORT || (kind == EXECUTE && more != 0) || address & more != 0;
        if self.is_on(at) && bad {
            Err(Errno::EINVAL)
        } else {
            Ok(())
        }
    }

    /// Cause of a debug exception with the value `status` of DR6. `None`: nobody asked for it.
    pub(crate) fn take_cause(&mut self, status: u64) -> Option<Cause> {
        let hits = (0..4).filter(|&at| status >> at & 1 != 0 && self.is_on(at));
        let (mut touched, mut breakpoint) = (0, false);
        for at in hits {
            touched |= 1 << at;
            breakpoint |= self.kind(at).0 == EXECUTE;
        }
        self.status = status & STATUS_STEP | touched;
        match (status & STATUS_STEP != 0, touched != 0) {
            (true, _) => Some(Cause::Step),
            (false, true) => Some(Cause::Hit { breakpoint }),
            (false, false) => (status & STATUS_HITS == 0).then_some(Cause::Instruction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_watched_is_accepted() {
        let mut debug = DebugRegisters::default();
        assert_eq!(
            (debug.get(6), debug.get(7), debug.get(4)),
            (STATUS_FIXED, 0, 0)
        );
        debug.set(1, 0x1004).unwrap();
        // Four bytes, when written; bits that cannot be are left out.
        debug.set(7, 0xffff_ff00_00d0_fd04).unwrap();
        assert_eq!(debug.get(7), 0xd0_0104);
        // Eight bytes must be aligned so; an instruction has one byte; ports are not watched.
        for control in [0x90_0004, 0x40_0004, 0x20_0004] {
            assert_eq!(debug.set(7, control), Err(Errno::EINVAL));
        }
        assert_eq!(debug.set(1, 0x1006), Err(Errno::EINVAL));
        assert_eq!(debug.set(2, USER_END as u64), Err(Errno::EPERM));
        assert_eq!(debug.set(5, 0), Err(Errno::EIO));
        assert_eq!((debug.get(1), debug.get(7)), (0x1004, 0xd0_0104));
    }

    #[test]
    fn an_exception_is_of_what_is_on() {
        let mut debug = DebugRegisters::default();
        debug.set(0, 0x1000).unwrap();
        debug.set(7, 0xd_0001).unwrap();
        assert_eq!(debug.take_cause(1), Some(Cause::Hit { breakpoint: false }));
        assert_eq!(debug.get(6), STATUS_FIXED | 1);
        assert_eq!(debug.take_cause(2), None);
        assert_eq!(debug.take_cause(0), Some(Cause::Instruction));
        assert_eq!(debug.take_cause(STATUS_STEP | 3), Some(Cause::Step));
        assert_eq!(debug.get(6), STATUS_FIXED | STATUS_STEP | 1);
        debug.set(7, 2).unwrap();
        assert_eq!(debug.take_cause(1), Some(Cause::Hit { breakpoint: true }));
    }
}
