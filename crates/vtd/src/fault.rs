//! Reports of what was refused (11.4.14).

/// Bytes of a report.
pub const FAULT_BYTES: usize = 16;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read of memory.
    Read,
    /// A write.
    Write,
}

/// A request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function: bus in the upper byte, device and function in the lower.
    pub function: u16,
    /// Page that was asked for.
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
        Some(Self {
            function: high as u16,
            address: low & !0xfff,
            access: if high >> 62 & 1 != 0 {
                Access::Read
            } else {
                Access::Write
            },
            reason: (high >> 32) as u8,
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
    }
}
