//! Registers of the local APIC (SDM vol. 3A, 11.4 to 11.12; APM vol. 2, 16.3).
//!
//! A register has one number in both modes: [`msr`] and [`offset`] say where it is.

use crate::msr::X2APIC;

/// APIC id of this CPU; in xAPIC mode in the upper 8 bits.
pub const ID: u32 = 0x02;
/// Interrupts of this priority class and below are held back.
pub const TASK_PRIORITY: u32 = 0x08;
/// A write acknowledges the interrupt in service.
pub const END_OF_INTERRUPT: u32 = 0x0b;
/// Vector of spurious interrupts, and [`SOFTWARE_ENABLE`].
pub const SPURIOUS: u32 = 0x0f;
/// First of the eight registers with one bit for each interrupt in service.
pub const IN_SERVICE: u32 = 0x10;
/// Interrupts that wait, 32 vectors in each of eight registers.
pub const REQUESTED: u32 = 0x20;
/// Errors since the last write.
pub const ERROR_STATUS: u32 = 0x28;
/// Interrupt command register, lower half; all 64 bits in x2APIC mode.
pub const COMMAND: u32 = 0x30;
/// Interrupt command register, upper half: the destination. Not there in x2APIC mode.
pub const COMMAND_HIGH: u32 = 0x31;
/// Local vector table: timer.
pub const LVT_TIMER: u32 = 0x32;
/// Local vector table: thermal sensor.
pub const LVT_THERMAL: u32 = 0x33;
/// Local vector table: performance counters.
pub const LVT_PERFORMANCE: u32 = 0x34;
/// Local vector table: pin LINT0.
pub const LVT_LINT0: u32 = 0x35;
/// Local vector table: pin LINT1.
pub const LVT_LINT1: u32 = 0x36;
/// Local vector table: errors of the APIC itself.
pub const LVT_ERROR: u32 = 0x37;
/// Count from which the timer counts down; a write starts it, 0 stops it.
pub const TIMER_INITIAL: u32 = 0x38;
/// Count of the timer now.
pub const TIMER_CURRENT: u32 = 0x39;
/// Divisor of the timer's clock.
pub const TIMER_DIVIDE: u32 = 0x3e;

/// In [`SPURIOUS`]: the APIC delivers interrupts.
pub const SOFTWARE_ENABLE: u32 = 1 << 8;
/// In a local vector table entry: no interrupts from this source.
pub const MASKED: u32 = 1 << 16;
/// In [`LVT_TIMER`]: the timer fires when the TSC passes the value of [`crate::msr::TSC_DEADLINE`].
pub const TIMER_DEADLINE_MODE: u32 = 2 << 17;
/// In [`TIMER_DIVIDE`]: by 16.
pub const DIVIDE_BY_16: u32 = 0b0011;

/// In [`COMMAND`]: a non-maskable interrupt.
pub const DELIVERY_NMI: u32 = 4 << 8;
/// In [`COMMAND`]: INIT, after which the CPU waits for a start-up message.
pub const DELIVERY_INIT: u32 = 5 << 8;
/// In [`COMMAND`]: start-up (SIPI), in real mode at the vector times 4096.
pub const DELIVERY_STARTUP: u32 = 6 << 8;
/// In [`COMMAND`], xAPIC mode: the last command is not sent yet.
pub const DELIVERY_PENDING: u32 = 1 << 12;
/// In [`COMMAND`]: level asserted, as in all commands but INIT level de-assert.
pub const LEVEL_ASSERT: u32 = 1 << 14;

/// In [`COMMAND`]: to the CPU that gives the command, whatever destination stands there.
pub const DESTINATION_SELF: u32 = 1 << 18;

/// The MSR of a register in x2APIC mode.
#[inline]
#[must_use]
pub const fn msr(register: u32) -> u32 {
    X2APIC + register
}

/// The offset of a register in the page of an xAPIC.
#[inline]
#[must_use]
pub const fn offset(register: u32) -> usize {
    register as usize * 16
}

/// Value of an x2APIC's [`COMMAND`]: `low` to one CPU.
#[inline]
#[must_use]
pub const fn x2apic_command(apic_id: u32, low: u32) -> u64 {
    (apic_id as u64) << 32 | low as u64
}

/// Value of an xAPIC's [`COMMAND_HIGH`]: one CPU.
#[inline]
#[must_use]
pub const fn xapic_destination(apic_id: u32) -> u32 {
    apic_id << 24
}

/// The id in the value of an xAPIC's [`ID`].
#[inline]
#[must_use]
pub const fn xapic_id(register: u32) -> u32 {
    register >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 3A, tables 11-1 and 11-6.
    #[test]
    fn addresses_are_the_manuals() {
        for (register, at, number) in [
            (ID, 0x20, 0x802),
            (TASK_PRIORITY, 0x80, 0x808),
            (END_OF_INTERRUPT, 0xb0, 0x80b),
            (SPURIOUS, 0xf0, 0x80f),
            (IN_SERVICE, 0x100, 0x810),
            (REQUESTED, 0x200, 0x820),
            (ERROR_STATUS, 0x280, 0x828),
            (COMMAND, 0x300, 0x830),
            (LVT_TIMER, 0x320, 0x832),
            (LVT_ERROR, 0x370, 0x837),
            (TIMER_INITIAL, 0x380, 0x838),
            (TIMER_CURRENT, 0x390, 0x839),
            (TIMER_DIVIDE, 0x3e0, 0x83e),
        ] {
            assert_eq!((offset(register), msr(register)), (at, number));
        }
        assert_eq!(offset(COMMAND_HIGH), 0x310);
    }

    /// SDM vol. 3A, 9.4.4.1: 0xC4500 and 0xC4600 plus vector are broadcast INIT and SIPI; without
    /// the shorthand (bits 18, 19) they go to one CPU.
    #[test]
    fn commands_are_those_of_the_start_up_sequence() {
        assert_eq!(LEVEL_ASSERT | DELIVERY_INIT, 0xc_4500 & !(3 << 18));
        assert_eq!(
            LEVEL_ASSERT | DELIVERY_STARTUP | 0x9a,
            0xc_469a & !(3 << 18)
        );
        assert_eq!(
            x2apic_command(0x123, LEVEL_ASSERT | DELIVERY_NMI),
            0x123_0000_4400
        );
        assert_eq!(xapic_id(xapic_destination(0x7f)), 0x7f);
    }
}
