//! The segments that a connection would send, for who listens to the interface. Sequence numbers
//! begin at 0.

use core::net::SocketAddr;

use super::{ConnectRequest, Connection, TcpSocket};
use crate::inet::frame::{ACK, FIN, PSH, RST, SYN, Segment};
use crate::inet::stack::InetStack;
use crate::socket::endpoint::SEND_SHUTDOWN;

/// The most bytes of one segment.
const MAX_SEGMENT: usize = 65_483;
/// The window of segments, in units of 128 bytes.
const WINDOW: u16 = 512;

fn tap_segment(stack: &InetStack, segment: &Segment<'_>) {
    if let Ok(route) = stack.route(segment.to.ip()) {
        stack
            .core
            .deliver_to_taps(&segment.frame(), route.interface_index, None);
    }
}

fn control_segment(
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
) -> Segment<'static> {
    Segment {
        from,
        to,
        sequence,
        acknowledgment,
        flags,
        window: WINDOW,
        data: &[],
    }
}

/// A connection has been made, or refused.
pub(super) fn tap_handshake(stack: &InetStack, request: &ConnectRequest, accepted: bool) {
    if !stack.core.taps.any() || !request.end().is_loopback() {
        return;
    }
    let (from, to) = (request.from, request.to);
    tap_segment(stack, &control_segment(from, to, 0, 0, SYN));
    if accepted {
        tap_segment(stack, &control_segment(to, from, 0, 1, SYN | ACK));
        tap_segment(stack, &control_segment(from, to, 1, 1, ACK));
    } else {
        tap_segment(stack, &control_segment(to, from, 0, 1, RST | ACK));
    }
}

impl TcpSocket {
    /// The number of bytes received, and waiting to be received.
    fn bytes_received(&self) -> u64 {
        let queue = self.endpoint.queue.lock();
        queue.read_offset + queue.bytes.len() as u64
    }

    /// Bytes of the stream as they would go out; `start` is how many there were before them.
    pub(super) fn data_segment<'a>(
        &self,
        connection: &Connection,
        start: u64,
        data: &'a [u8],
    ) -> Segment<'a> {
        let (sequence, acknowledgment) = (
            (start as u32).wrapping_add(1),
            (self.bytes_received() as u32).wrapping_add(1),
        );
        let (from, to) = (connection.local, connection.remote);
        Segment {
            from,
            to,
            sequence,
            acknowledgment,
            flags: PSH | ACK,
            window: WINDOW,
            data,
        }
    }

    /// Bytes go out, and are acknowledged.
    pub(super) fn tap_data(&self, connection: &Connection, start: u64, data: &[u8]) {
        for (number, piece) in data.chunks(MAX_SEGMENT).enumerate() {
            tap_segment(
                self.common.stack(),
                &self.data_segment(connection, start + (number * MAX_SEGMENT) as u64, piece),
            );
        }
        let end = (start as u32)
            .wrapping_add(data.len() as u32)
            .wrapping_add(1);
        tap_segment(
            self.common.stack(),
            &control_segment(
                connection.remote,
                connection.local,
                (self.bytes_received() as u32).wrapping_add(1),
                end,
                ACK,
            ),
        );
    }

    /// Shows taps the end of what is sent (only once), or a reset.
    pub(super) fn tap_close(&self, connection: &Connection, resets: bool) {
        let seen = self.has_taps() && connection.peer.is_loopback();
        if !seen || (!resets && self.endpoint.is_shut_down(SEND_SHUTDOWN)) {
            return;
        }
        let sequence = (self.bytes_sent(connection) as u32).wrapping_add(1);
        let acknowledgment = (self.bytes_received() as u32).wrapping_add(1);
        let (from, to) = (connection.local, connection.remote);
        tap_segment(
            self.common.stack(),
            &control_segment(
                from,
                to,
                sequence,
                acknowledgment,
                ACK | if resets { RST } else { FIN },
            ),
        );
        if !resets {
            tap_segment(
                self.common.stack(),
                &control_segment(to, from, acknowledgment, sequence.wrapping_add(1), ACK),
            );
        }
    }
}
