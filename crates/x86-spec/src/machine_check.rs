//! Machine checks: the registers that tell of errors, and what an error means for whoever runs on
//! the processor (SDM vol. 3B, 17.3, 17.6 and 17.9).

/// Number of banks, and what the processor can do ([`capabilities`]).
pub const CAPABILITIES: u32 = 0x179;
/// State of the machine check under way ([`global`]).
pub const GLOBAL_STATUS: u32 = 0x17a;
/// Switches reporting on, all ones; exists with [`capabilities::CONTROL`].
pub const GLOBAL_CONTROL: u32 = 0x17b;

/// Control register of bank 0; each bank has four registers.
const BANKS: u32 = 0x400;

/// Switches the reporting of a bank's errors on, a bit each.
#[must_use]
pub const fn control(bank: u32) -> u32 {
    BANKS + 4 * bank
}

/// Error of a bank ([`status`]); writing 0 makes room for the next one.
#[must_use]
pub const fn bank_status(bank: u32) -> u32 {
    BANKS + 4 * bank + 1
}

/// Address of a bank's error; exists while [`status::ADDRESS_VALID`] is set.
#[must_use]
pub const fn address(bank: u32) -> u32 {
    BANKS + 4 * bank + 2
}

/// Bits of [`CAPABILITIES`].
pub mod capabilities {
    /// Number of banks.
    pub const COUNT: u64 = 0xff;
    /// There is [`super::GLOBAL_CONTROL`].
    pub const CONTROL: u64 = 1 << 8;
    /// Uncorrected errors say what software has to do about them.
    pub const RECOVERY: u64 = 1 << 24;
}

/// Bits of [`GLOBAL_STATUS`].
pub mod global {
    /// The interrupted program can go on.
    pub const RESTART_VALID: u64 = 1 << 0;
    /// A machine check is under way: another one shuts the processor down.
    pub const IN_PROGRESS: u64 = 1 << 2;
}

/// Bits of a bank's status.
pub mod status {
    /// There is an error.
    pub const VALID: u64 = 1 << 63;
    /// Hardware could not correct it.
    pub const UNCORRECTED: u64 = 1 << 61;
    /// Reporting of the error is switched on.
    pub const ENABLED: u64 = 1 << 60;
    /// The address register holds where it is.
    pub const ADDRESS_VALID: u64 = 1 << 58;
    /// The processor's state cannot be trusted any more.
    pub const CONTEXT_CORRUPT: u64 = 1 << 57;
    /// This machine check reports it (with [`super::capabilities::RECOVERY`]).
    pub const SIGNALED: u64 = 1 << 56;
    /// Whoever runs has met it, and cannot go on (with [`super::capabilities::RECOVERY`]).
    pub const ACTION_REQUIRED: u64 = 1 << 55;
}

/// Meaning of a bank's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// None, or none that is reported here.
    Nothing,
    /// Hardware has corrected it.
    Corrected,
    /// In memory, at a known address, and nobody has used it yet.
    Memory,
    /// In memory, at a known address, and whoever runs has met it and cannot go on.
    Consumed,
    /// Nobody can tell what it has done.
    Fatal,
}

/// The meaning of the error that a bank's `status` tells of.
#[must_use]
pub const fn meaning(capabilities: u64, status: u64) -> Error {
    use status::{
        ACTION_REQUIRED, ADDRESS_VALID, CONTEXT_CORRUPT, ENABLED, SIGNALED, UNCORRECTED, VALID,
    };
    if status & VALID == 0 {
        return Error::Nothing;
    }
    if status & UNCORRECTED == 0 {
        return Error::Corrected;
    }
    if status & CONTEXT_CORRUPT != 0 {
        return Error::Fatal;
    }
    if status & ENABLED == 0 {
        return Error::Nothing;
    }
    let recovery = capabilities & capabilities::RECOVERY != 0;
    if !recovery {
        return Error::Fatal;
    }
    if status & (SIGNALED | ACTION_REQUIRED) == SIGNALED | ACTION_REQUIRED {
        return if status & ADDRESS_VALID != 0 {
            Error::Consumed
        } else {
            Error::Fatal
        };
    }
    if status & ADDRESS_VALID != 0 {
        Error::Memory
    } else {
        Error::Corrected
    }
}

#[cfg(test)]
mod tests {
    use super::status::{
        ACTION_REQUIRED, ADDRESS_VALID, CONTEXT_CORRUPT, ENABLED, SIGNALED, UNCORRECTED, VALID,
    };
    use super::*;

    /// SDM vol. 4, table 2-2.
    #[test]
    fn registers_of_the_banks() {
        let registers = |bank| [control(bank), bank_status(bank), address(bank)];
        assert_eq!(registers(0), [0x400, 0x401, 0x402]);
        assert_eq!(registers(9), [0x424, 0x425, 0x426]);
    }

    /// SDM vol. 3B, table 17-6, and what there is without recovery.
    #[test]
    fn what_an_error_means() {
        let recoverable = VALID | UNCORRECTED | ENABLED;
        for (status, with, without) in [
            (0, Error::Nothing, Error::Nothing),
            (UNCORRECTED | ENABLED, Error::Nothing, Error::Nothing),
            (VALID, Error::Corrected, Error::Corrected),
            (
                VALID | ENABLED | ADDRESS_VALID,
                Error::Corrected,
                Error::Corrected,
            ),
            // One that is none of this processor's business, as a broadcast brings it.
            (VALID | UNCORRECTED, Error::Nothing, Error::Nothing),
            (recoverable | CONTEXT_CORRUPT, Error::Fatal, Error::Fatal),
            // Action required, optional, and none.
            (
                recoverable | ADDRESS_VALID | SIGNALED | ACTION_REQUIRED,
                Error::Consumed,
                Error::Fatal,
            ),
            (
                recoverable | SIGNALED | ACTION_REQUIRED,
                Error::Fatal,
                Error::Fatal,
            ),
            (
                recoverable | ADDRESS_VALID | SIGNALED | ACTION_REQUIRED | CONTEXT_CORRUPT,
                Error::Fatal,
                Error::Fatal,
            ),
            (
                recoverable | ADDRESS_VALID | SIGNALED,
                Error::Memory,
                Error::Fatal,
            ),
            (recoverable | ADDRESS_VALID, Error::Memory, Error::Fatal),
            (recoverable | SIGNALED, Error::Corrected, Error::Fatal),
        ] {
            assert_eq!(meaning(capabilities::RECOVERY, status), with, "{status:#x}");
            assert_eq!(meaning(0, status), without, "{status:#x}");
        }
    }
}
