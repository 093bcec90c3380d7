//! Reports of what was refused (2.5): a ring of 16-byte events.

use iotable::Access;

/// Events in a log of one page.
pub const EVENTS: usize = 256;

const ILLEGAL_ENTRY: u8 = 1;
const PAGE_FAULT: u8 = 2;
const INVALID_REQUEST: u8 = 8;
/// Flags of a page fault: an interrupt, a write.
const INTERRUPT: u64 = 1 << 51;
const WRITE: u64 = 1 << 53;

/// A request of a function that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The function: bus in the upper byte, device and function in the lower.
    pub function: u16,
    /// Address that was asked for.
    pub address: u64,
    /// Kind of the request.
    pub access: Access,
    /// Code of the event.
    pub code: u8,
}

impl Event {
    /// Bytes of an event.
    pub const BYTES: usize = 16;

    /// Reads an event; `None` if it is of no function's doing.
    #[must_use]
    pub const fn read([low, address]: [u64; 2]) -> Option<Self> {
        let code = (low >> 60) as u8;
        if !matches!(code, ILLEGAL_ENTRY | PAGE_FAULT | INVALID_REQUEST) {
            return None;
        }
        let access = match code {
            PAGE_FAULT if low & INTERRUPT != 0 => Access::Interrupt,
            _ if low & WRITE != 0 => Access::Write,
            _ => Access::Read,
        };
        Some(Self {
            function: low as u16,
            address,
            access,
            code,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read() {
        let fault = Event::read([0x2020_0000_0000_0310, 0x5000]).unwrap();
        assert_eq!((fault.function, fault.address), (0x0310, 0x5000));
        assert_eq!((fault.access, fault.code), (Access::Write, 2));
        let read = Event::read([0x2000_0000_0000_0310, 0]).unwrap();
        assert_eq!(read.access, Access::Read);
        let interrupt = Event::read([0x2008_0000_0000_0310, 0]).unwrap();
        assert_eq!(interrupt.access, Access::Interrupt);
        for code in [0, 3, 4, 5, 6, 7, 9, 15] {
            assert_eq!(Event::read([code << 60, 0]), None);
        }
    }
}
