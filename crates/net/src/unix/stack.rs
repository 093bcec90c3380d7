//! The part of a network stack that `AF_UNIX` sockets have.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use fs::Result;

use super::garbage::InflightSockets;
use super::name_table::NameTable;
use super::{UnixSocket, caller_peer_credentials, check_protocol};
use crate::socket::core_stack::CoreStack;
use crate::socket::socket_list::SocketList;
use crate::{Socket, SocketType};

/// The state of the `AF_UNIX` sockets of a network stack (Linux `struct netns_unix`).
pub struct UnixStack {
    pub(super) core: Arc<CoreStack>,
    /// All sockets.
    pub(super) sockets: SocketList<UnixSocket>,
    next_id: AtomicU64,
    pub(super) names: NameTable,
    pub(super) inflight: Arc<InflightSockets>,
    /// The bytes still counted against senders when they were gone, though nothing of theirs was in
    /// a queue any more.
    pub(super) leaked_charge: AtomicU64,
}

impl UnixStack {
    pub(crate) fn new(core: Arc<CoreStack>) -> Arc<Self> {
        Arc::new(Self {
            core,
            sockets: SocketList::default(),
            next_id: AtomicU64::new(1),
            names: NameTable::default(),
            inflight: Arc::default(),
            leaked_charge: AtomicU64::new(0),
        })
    }

    /// A new socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`.
    pub(crate) fn socket(self: &Arc<Self>, kind: SocketType, protocol: i32) -> Result<Socket> {
        check_protocol(protocol)?;
        Ok(UnixSocket::new(self, kind).into_socket())
    }

    /// Two sockets connected with each other.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`.
    pub(crate) fn pair(
        self: &Arc<Self>,
        kind: SocketType,
        protocol: i32,
    ) -> Result<(Socket, Socket)> {
        check_protocol(protocol)?;
        let (a, b) = (UnixSocket::new(self, kind), UnixSocket::new(self, kind));
        let who = caller_peer_credentials();
        for (one, other) in [(&a, &b), (&b, &a)] {
            one.endpoint.set_credentials(who.clone());
            if kind.is_connection_oriented() {
                one.endpoint.pay_for_queue_of(&other.endpoint);
                one.peer.call_once(|| other.endpoint.clone());
            } else {
                one.endpoint.set_datagram_peer(Some(&other.endpoint));
            }
        }
        Ok((a.into_socket(), b.into_socket()))
    }

    /// A number that no other socket of the stack has had.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The account of the files that are sent over these sockets.
    pub(crate) fn inflight(&self) -> &Arc<InflightSockets> {
        &self.inflight
    }

    /// Calls `each` with the name and the number of what each table holds.
    pub(crate) fn object_counts(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("sockets_under_way", self.inflight.socket_count());
        each("references_under_way", self.inflight.reference_count());
        each("unix_names", self.names.len() as u64);
        // Anything but 0 is a mistake of ours.
        each(
            "unix_bytes_unreturned",
            self.leaked_charge.load(Ordering::Relaxed),
        );
    }
}
