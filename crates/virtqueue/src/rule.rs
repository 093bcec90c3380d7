//! What the other end of a queue can do wrong.

use core::fmt;

use crate::memory::{Address, Unreachable};

/// A rule of the specification that the other end has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The device has used more chains than there were, by its index (section 2.7.8).
    UsedIndex(u16),
    /// The device has used a chain that it does not have: one that was never offered, or one that
    /// it has used before (section 2.7.8).
    UsedId(u32),
    /// The device says that it has written more bytes than it was given (section 2.7.8.2).
    UsedLength {
        /// Bytes, by the device.
        written: u32,
        /// Bytes of the chain that it may write.
        given: u32,
    },
    /// The driver has offered more chains than the queue holds, by its index (section 2.7.6).
    AvailableIndex(u16),
    /// A chain begins outside of the table (section 2.7.6).
    Head(u16),
    /// A chain was offered a second time before it was used (section 2.7.13).
    HeadTwice(u16),
    /// A chain goes on outside of its table (section 2.7.5).
    Next(u16),
    /// A chain is longer than the queue, or than the device allows, or has no end (section
    /// 2.7.5.2).
    ChainLength,
    /// Memory that the device may write is followed by memory that it may only read (section
    /// 2.7.4.2).
    Order,
    /// A chain has more bytes than 2^32 (section 2.7.5.2).
    TooManyBytes,
    /// A chain names memory that the device cannot reach.
    Buffer(Address),
    /// A table of descriptors that was not negotiated, is inside of another, goes on after its end,
    /// or is not made of whole descriptors (section 2.7.5.3).
    Table,
    /// The memory of the ring itself cannot be reached.
    Ring(Address),
}

impl From<Unreachable> for Rule {
    /// The rule for a failed access to the ring itself.
    fn from(Unreachable(at): Unreachable) -> Self {
        Self::Ring(at)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsedIndex(index) => {
                write!(f, "the device's index {index} is ahead of the driver's")
            }
            Self::UsedId(id) => write!(f, "the device has used chain {id}, which it does not have"),
            Self::UsedLength { written, given } => {
                write!(f, "the device has written {written} bytes of {given}")
            }
            Self::AvailableIndex(index) => {
                write!(
                    f,
                    "the driver's index {index} offers more than the queue holds"
                )
            }
            Self::Head(head) => write!(f, "there is no descriptor {head} to begin with"),
            Self::HeadTwice(head) => write!(f, "chain {head} was offered twice"),
            Self::Next(next) => write!(f, "there is no descriptor {next} to go on with"),
            Self::ChainLength => f.write_str("a chain is too long, or has no end"),
            Self::Order => f.write_str("a chain has readable memory after writable memory"),
            Self::TooManyBytes => f.write_str("a chain has more than 2^32 bytes"),
            Self::Buffer(at) => write!(f, "no memory for a buffer at {:#x}", at.number()),
            Self::Table => f.write_str("a table of descriptors is where or as it must not be"),
            Self::Ring(at) => write!(f, "no memory for the ring at {:#x}", at.number()),
        }
    }
}

impl core::error::Error for Rule {}

/// Why a device's end of a queue has no chain to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The driver has broken a rule. Nothing works until the queue is reset.
    Broken(Rule),
    /// There is no memory to copy the chain into. It is still in the queue.
    NoMemory,
}

impl From<Rule> for Error {
    fn from(rule: Rule) -> Self {
        Self::Broken(rule)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(rule) => write!(f, "the driver broke a rule: {rule}"),
            Self::NoMemory => f.write_str("no memory for a chain"),
        }
    }
}

impl core::error::Error for Error {}
