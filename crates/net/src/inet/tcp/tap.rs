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

/// Shows taps the handshake of a connection that is accepted.
pub(super) fn tap_handshake(stack: &InetStack, request: &ConnectRequest) {
    if tap_syn(stack, request) {
        let (from, to) = (request.from, request.to);
        tap_segment(stack, &control_segment(to, from, 0, 1, SYN | ACK));
        tap_segment(stack, &control_segment(from, to, 1, 1, ACK));
    }
}

/// Shows taps a request for a connection that is refused.
pub(super) fn tap_refusal(stack: &InetStack, request: &ConnectRequest) {
    if tap_syn(stack, request) {
        let (from, to) = (request.from, request.to);
        tap_segment(stack, &control_segment(to, from, 0, 1, RST | ACK));
    }
}

/// Shows taps a request for a connection; false if there is none to whom it can be shown.
fn tap_syn(stack: &InetStack, request: &ConnectRequest) -> bool {
    let is_seen = stack.core.taps.any() && request.end().is_loopback();
    if is_seen {
        tap_segment(stack, &control_segment(request.from, request.to, 0, 0, SYN));
    }
    is_seen
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

    /// Shows taps the end of what is sent, once.
    pub(super) fn tap_fin(&self, connection: &Connection) {
        if !self.endpoint.is_shut_down(SEND_SHUTDOWN) {
            self.tap_last(connection, FIN);
        }
    }

    /// Shows taps a reset.
    pub(super) fn tap_reset(&self, connection: &Connection) {
        self.tap_last(connection, RST);
    }

    /// Shows taps the last segment that is sent, with the flag that ends the connection, and the
    /// acknowledgment of a FIN.
    fn tap_last(&self, connection: &Connection, flag: u8) {
        if !self.has_taps() || !connection.peer.is_loopback() {
            return;
        }
        let sequence = (self.bytes_sent(connection) as u32).wrapping_add(1);
        let acknowledgment = (self.bytes_received() as u32).wrapping_add(1);
        let (from, to) = (connection.local, connection.remote);
        tap_segment(
            self.common.stack(),
            &control_segment(from, to, sequence, acknowledgment, ACK | flag),
        );
        if flag == FIN {
            tap_segment(
                self.common.stack(),
                &control_segment(to, from, acknowledgment, sequence.wrapping_add(1), ACK),
            );
        }
    }
}
