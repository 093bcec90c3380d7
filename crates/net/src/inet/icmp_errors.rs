//! ICMP errors, and the sockets whose packets they are about.

use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;

use super::ip::{ICMP, ICMP6, TCP, UDP, UDP_LITE};
use super::stack::InetStack;
use super::with_link;
use crate::socket::error_queue::ExtendedError;

/// An error that tells a socket of what it has sent.
pub(super) struct UnreachableReport<'a> {
    pub(super) error: ExtendedError,
    pub(super) errno: Errno,
    /// Whether it lasts: who talks to somebody hears of it without asking.
    pub(super) is_hard: bool,
    /// The host that says so.
    pub(super) offender: IpAddr,
    /// The destination of what was sent.
    pub(super) to: SocketAddr,
    /// The bytes that were sent, as far as the error quotes them.
    pub(super) data: &'a [u8],
}

/// An error of ICMP, of either family, about a packet that a host has sent.
#[derive(Clone, Copy, Debug)]
pub struct QuotedError<'a> {
    /// Whether it is one of IPv4.
    pub is_v4: bool,
    /// Kind of the message.
    pub kind: u8,
    /// Code of the message.
    pub code: u8,
    /// The word behind the checksum, or the MTU in it.
    pub info: u32,
    /// Source of the packet that it is about.
    pub source: IpAddr,
    /// Destination of that packet.
    pub destination: IpAddr,
    /// Protocol of that packet.
    pub protocol: u8,
    /// Eight bytes or more of that packet behind its headers.
    pub payload: &'a [u8],
    /// Number of the interface that it came in by, or 0.
    pub interface: u32,
}

impl<'a> QuotedError<'a> {
    /// The error in a message of ICMP.
    pub(super) fn of_v4(error: &ip::icmp::Error<'a>) -> Self {
        Self {
            is_v4: true,
            kind: error.kind,
            code: error.code,
            info: error.info & 0xffff,
            source: error.header.source.into(),
            destination: error.header.destination.into(),
            protocol: error.header.protocol,
            payload: error.payload,
            interface: 0,
        }
    }

    /// The error in a message of ICMPv6 that has come in by an interface.
    pub(super) fn of_v6(error: &ip::v6::icmp::Error<'a>, interface: u32) -> Self {
        Self {
            is_v4: false,
            kind: error.kind,
            code: error.code,
            info: error.info,
            source: error.header.source.into(),
            destination: error.header.destination.into(),
            protocol: error.protocol,
            payload: error.payload,
            interface,
        }
    }

    /// The error of a program that it means, and whether that lasts.
    fn meaning(&self) -> Option<(Errno, bool)> {
        if self.is_v4 {
            meaning(self.kind, self.code)
        } else {
            meaning_v6(self.kind, self.code)
        }
    }

    /// The longest packet that goes to the destination, if that is what it is about.
    pub(super) fn mtu(&self) -> Option<u16> {
        let is_about_mtu = matches!(self.meaning(), Some((Errno::EMSGSIZE, _)));
        is_about_mtu.then(|| u16::try_from(self.info).unwrap_or(u16::MAX))
    }
}

/// The error of a program that a message of ICMPv6 means, and whether it lasts (Linux
/// `icmpv6_err_convert`).
fn meaning_v6(kind: u8, code: u8) -> Option<(Errno, bool)> {
    use ip::v6::icmp::kind;
    const UNREACHABLE: [(Errno, bool); 7] = [
        (Errno::ENETUNREACH, false),
        (Errno::EACCES, true),
        (Errno::EHOSTUNREACH, false),
        (Errno::EHOSTUNREACH, false),
        (Errno::ECONNREFUSED, true),
        (Errno::EACCES, true),
        (Errno::EACCES, true),
    ];
    match kind {
        kind::UNREACHABLE => UNREACHABLE.get(usize::from(code)).copied(),
        kind::TOO_BIG => Some((Errno::EMSGSIZE, false)),
        kind::TIME_EXCEEDED => Some((Errno::EHOSTUNREACH, false)),
        kind::PARAMETER_PROBLEM => Some((Errno::EPROTO, true)),
        _ => None,
    }
}

/// The error of a program that a message of ICMP means, and whether it lasts (Linux
/// `icmp_err_convert`).
fn meaning(kind: u8, code: u8) -> Option<(Errno, bool)> {
    const UNREACHABLE: [(Errno, bool); 16] = [
        (Errno::ENETUNREACH, false),
        (Errno::EHOSTUNREACH, false),
        (Errno::ENOPROTOOPT, true),
        (Errno::ECONNREFUSED, true),
        (Errno::EMSGSIZE, false),
        (Errno::EOPNOTSUPP, false),
        (Errno::ENETUNREACH, true),
        (Errno::EHOSTDOWN, true),
        (Errno::ENONET, true),
        (Errno::ENETUNREACH, true),
        (Errno::EHOSTUNREACH, true),
        (Errno::ENETUNREACH, false),
        (Errno::EHOSTUNREACH, false),
        (Errno::EHOSTUNREACH, true),
        (Errno::EHOSTUNREACH, true),
        (Errno::EHOSTUNREACH, true),
    ];
    match kind {
        ip::icmp::kind::UNREACHABLE => UNREACHABLE.get(usize::from(code)).copied(),
        ip::icmp::kind::TIME_EXCEEDED => Some((Errno::EHOSTUNREACH, false)),
        ip::icmp::kind::PARAMETER_PROBLEM => Some((Errno::EPROTO, true)),
        _ => None,
    }
}

impl InetStack {
    /// An ICMP error has arrived, from `offender`: the socket that has sent the packet hears of it.
    /// Returns whether there is one.
    pub(super) fn handle_icmp_error(&self, error: &QuotedError<'_>, offender: IpAddr) -> bool {
        let Some((errno, is_hard)) = error.meaning() else {
            return false;
        };
        let is_about_mtu = errno == Errno::EMSGSIZE;
        let info = error.mtu().map_or(0, u32::from);
        let (from, to) = (error.source, error.destination);
        let Some(ports) = error.payload.first_chunk::<8>() else {
            return false;
        };
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let protocol = error.protocol;
        let (from_port, to_port, header_len) = match protocol {
            UDP | UDP_LITE => (port(0), port(2), 8),
            _ => (0, 0, 0),
        };
        let report = UnreachableReport {
            error: ExtendedError::icmp(error.is_v4, errno, error.kind, error.code, info),
            errno,
            is_hard: is_hard || is_about_mtu,
            offender,
            to: with_link(SocketAddr::new(to, to_port), error.interface),
            data: &error.payload[header_len..],
        };
        let mut is_ours = false;
        match protocol {
            UDP | UDP_LITE => {
                let from = SocketAddr::new(from, from_port);
                let sender = self.udp.find_sender(protocol, from, report.to);
                if let Some(socket) = sender {
                    socket.report(&report);
                    is_ours = true;
                }
            }
            TCP => is_ours = self.network.handle_tcp_error(error, errno),
            ICMP | ICMP6
                if [ip::icmp::kind::ECHO, ip::v6::icmp::kind::ECHO].contains(&ports[0]) =>
            {
                if let Some(socket) = self.raw.find_ping(error.is_v4, port(4)) {
                    socket.report(&report);
                    is_ours = true;
                }
            }
            _ => {}
        }
        for socket in self.raw.find_senders(protocol, from, to) {
            socket.report(&report);
            is_ours = true;
        }
        is_ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_they_mean_to_linux() {
        assert_eq!(meaning(3, 3), Some((Errno::ECONNREFUSED, true)));
        assert_eq!(meaning(3, 1), Some((Errno::EHOSTUNREACH, false)));
        assert_eq!(meaning(11, 0), Some((Errno::EHOSTUNREACH, false)));
        assert_eq!(meaning(3, 16), None);
        assert_eq!(meaning(0, 0), None);
        assert_eq!(meaning_v6(1, 4), Some((Errno::ECONNREFUSED, true)));
        assert_eq!(meaning_v6(2, 0), Some((Errno::EMSGSIZE, false)));
        assert_eq!(meaning_v6(1, 7), None);
        assert_eq!(meaning_v6(128, 0), None);
    }
}
