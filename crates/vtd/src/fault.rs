//! Reports of what was refused (11.4.14).

use iotable::Access;

/// Bytes of a report.
pub const FAULT_BYTES: usize = 16;

/// Reasons that are of interrupts (table 25).
const INTERRUPTS: u8 = 0x20;
const LAST_INTERRUPT: u8 = 0x2f;

/// A request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function: bus in the upper byte, device and function in the lower.
    pub function: u16,
    /// Page that was asked for; of an interrupt the number of the entry that it named.
    pub address: u64,
    /// Kind of the request.
    pub access: Access,
    /// Reason, by the standard's number (table 25).
    pub reason: u8,
}

impl Fault {
    /// Place, in a report, of the word to clear it by, and what is written there.
    pub const CLEAR: (usize, u32) = (12, 1 << 31);

    /// Reads a report of two words; `None` if there is none.
    #[must_use]
    pub const fn read(low: u64, high: u64) -> Option<Self> {
        if high >> 63 == 0 {
            return None;
        }
        let reason = (high >> 32) as u8;
        let (access, address) = match reason {
            INTERRUPTS..=LAST_INTERRUPT => (Access::Interrupt, low >> 48),
            _ if high >> 62 & 1 != 0 => (Access::Read, low & !0xfff),
            _ => (Access::Write, low & !0xfff),
        };
        Some(Self {
            function: high as u16,
            address,
            access,
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        assert_eq!(Fault::read(0, 0), None);
        assert_eq!(Fault::read(u64::MAX, u64::MAX >> 1), None);
        let fault = Fault::read(0x1234_5fff, 1 << 63 | 1 << 62 | 6 << 32 | 0x0310).unwrap();
        assert_eq!(fault.function, 0x0310);
        assert_eq!(fault.address, 0x1234_5000);
        assert_eq!((fault.access, fault.reason), (Access::Read, 6));
        let write = Fault::read(0, 1 << 63).unwrap();
        assert_eq!(write.access, Access::Write);
        let interrupt = Fault::read(0x12 << 48, 1 << 63 | 0x26 << 32 | 0x0310).unwrap();
        assert_eq!(
            (interrupt.access, interrupt.address),
            (Access::Interrupt, 0x12)
        );
    }
}
