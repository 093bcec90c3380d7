//! ICMP errors, and the sockets whose packets they are about.

use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;

use super::ip::{ICMP, TCP, UDP, UDP_LITE};
use super::stack::InetStack;
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
    pub(super) fn handle_icmp_error(&self, error: &ip::icmp::Error<'_>, offender: IpAddr) -> bool {
        let Some((errno, is_hard)) = meaning(error.kind, error.code) else {
            return false;
        };
        let is_about_mtu = errno == Errno::EMSGSIZE;
        let info = if is_about_mtu { error.info & 0xffff } else { 0 };
        let (from, to) = (error.header.source, error.header.destination);
        let Some(ports) = error.payload.first_chunk::<8>() else {
            return false;
        };
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let protocol = error.header.protocol;
        let (from_port, to_port, header_len) = match protocol {
            UDP | UDP_LITE => (port(0), port(2), 8),
            _ => (0, 0, 0),
        };
        let report = UnreachableReport {
            error: ExtendedError::icmp(errno, error.kind, error.code, info),
            errno,
            is_hard: is_hard || is_about_mtu,
            offender,
            to: SocketAddr::new(to.into(), to_port),
            data: &error.payload[header_len..],
        };
        let mut is_ours = false;
        match protocol {
            UDP | UDP_LITE => {
                let from = SocketAddr::new(from.into(), from_port);
                let sender = self.udp.find_sender(protocol, from, report.to);
                if let Some(socket) = sender {
                    socket.report(&report);
                    is_ours = true;
                }
            }
            TCP => is_ours = self.network.handle_tcp_error(error, errno),
            ICMP if ports[0] == ip::icmp::kind::ECHO => {
                if let Some(socket) = self.raw.find_ping(true, port(4)) {
                    socket.report(&report);
                    is_ours = true;
                }
            }
            _ => {}
        }
        for socket in self.raw.find_senders(protocol, from.into(), to.into()) {
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
    }
}
