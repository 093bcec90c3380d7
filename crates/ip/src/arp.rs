//! Messages of ARP between hosts of IPv4 on Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::{HardwareAddress, Malformed};

/// Bytes of a message.
pub const LENGTH: usize = 28;

/// The meaning of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// The address of the target is asked for.
    Request,
    /// The sender has it.
    Reply,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The meaning of the message.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_hardware: HardwareAddress,
    /// Address of the sender; none if it asks whether it may have one (RFC 5227).
    pub sender: Ipv4Addr,
    /// Hardware address of the target, which a request does not know.
    pub target_hardware: HardwareAddress,
    /// Address of the target.
    pub target: Ipv4Addr,
}

const FIXED: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// It is none between hosts of IPv4 on Ethernet, or its sender cannot be one host.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes = bytes.first_chunk::<LENGTH>().ok_or(Malformed)?;
        let operation = match bytes[6..8] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return Err(Malformed),
        };
        let hardware = |at: usize| {
            let mut address = [0; 6];
            address.copy_from_slice(&bytes[at..at + 6]);
            address
        };
        let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let message = Self {
            operation,
            sender_hardware: hardware(8),
            sender: ip(14),
            target_hardware: hardware(18),
            target: ip(24),
        };
        let is_group = message.sender_hardware[0] & 1 != 0;
        let first = message.sender.octets()[0];
        let sender_is_host = message.sender.is_unspecified() || first != 127 && first < 224;
        let target = message.target;
        let target_is_host = !target.is_loopback() && !target.is_multicast();
        if bytes[..6] != FIXED || is_group || !sender_is_host || !target_is_host {
            return Err(Malformed);
        }
        Ok(message)
    }

    /// The bytes of the message.
    #[must_use]
    pub fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..6].copy_from_slice(&FIXED);
        bytes[7] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        bytes[8..14].copy_from_slice(&self.sender_hardware);
        bytes[14..18].copy_from_slice(&self.sender.octets());
        bytes[18..24].copy_from_slice(&self.target_hardware);
        bytes[24..].copy_from_slice(&self.target.octets());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_unless_no_host_could_have_sent_them() {
        let message = Message {
            operation: Operation::Request,
            sender_hardware: [2, 0, 0, 0, 0, 1],
            sender: Ipv4Addr::new(10, 0, 0, 1),
            target_hardware: [0; 6],
            target: Ipv4Addr::new(10, 0, 0, 2),
        };
        assert_eq!(Message::parse(&message.emit()), Ok(message));
        let from = |sender: [u8; 4]| Message {
            sender: sender.into(),
            ..message
        };
        assert!(Message::parse(&from([0; 4]).emit()).is_ok(), "a probe");
        for sender in [[127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
            assert_eq!(Message::parse(&from(sender).emit()), Err(Malformed));
        }
        let mut group = message.emit();
        group[8] |= 1;
        assert_eq!(Message::parse(&group), Err(Malformed));
        assert_eq!(Message::parse(&message.emit()[..27]), Err(Malformed));
        let mut other = message.emit();
        other[4] = 8;
        assert_eq!(Message::parse(&other), Err(Malformed));
    }
}
