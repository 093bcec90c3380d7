//! Lists of the sockets of this family.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{Arguments, Write};
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fallible::{Pieces, Text};

use super::{UnixSocket, UnixStack};
use crate::socket::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::{SocketOps as _, SocketType, UnixName};

/// A socket as lists of sockets tell of it.
pub(crate) struct UnixDiagEntry {
    pub(crate) kind: u8,
    /// The number of a state of TCP.
    pub(crate) state: u8,
    pub(crate) id: u64,
    pub(crate) ino: u64,
    /// The number of the peer's file.
    pub(crate) peer: Option<u64>,
    /// A path, or a NUL and an abstract name.
    pub(crate) name: Vec<u8>,
    /// Bytes that wait to be received, and its own that wait elsewhere; of a listener the
    /// connections there are and may be.
    pub(crate) queues: (usize, usize),
    /// Bit 0: receiving has ended; bit 1: sending.
    pub(crate) shut: u8,
}

impl UnixStack {
    /// The text of `/proc/net/unix`.
    ///
    /// # Errors
    /// `ENOMEM`: a user may make thousands of lines.
    pub fn proc_net_unix(&self) -> Result<String, Errno> {
        const ACCEPTING: u32 = 1 << 16;
        const UNCONNECTED: u32 = 1;
        const CONNECTED: u32 = 3;
        let mut text = Text::default();
        let mut add = |line: Arguments<'_>| text.write_fmt(line).map_err(|_| Errno::ENOMEM);
        add(format_args!(
            "Num       RefCount Protocol Flags    Type St Inode Path\n"
        ))?;
        for socket in self.sockets.all() {
            let flags = if socket.is_listening() { ACCEPTING } else { 0 };
            let state = if socket.peer.get().is_some() || socket.endpoint.datagram_peer().is_some()
            {
                CONNECTED
            } else {
                UNCONNECTED
            };
            let name = match socket.endpoint.name() {
                UnixName::Unnamed => String::new(),
                UnixName::Path(path) => String::from(" ") + &String::from_utf8_lossy(&path),
                UnixName::Abstract(name) => {
                    String::from(" @") + &String::from_utf8_lossy(&name).replace('\0', "@")
                }
            };
            let (id, kind, ino) = (
                socket.id,
                socket.socket_type.as_raw(),
                socket.ino.load(Ordering::Relaxed),
            );
            add(format_args!(
                "{id:016x}: 00000002 00000000 {flags:08x} {kind:04x} {state:02x} {ino:5}{name}\n"
            ))?;
        }
        Ok(text.into_string())
    }

    /// All sockets, as `NETLINK_SOCK_DIAG` lists them.
    pub(crate) fn diag_entries(&self) -> Pieces<UnixDiagEntry> {
        const ESTABLISHED: u8 = 1;
        const UNCONNECTED: u8 = 7;
        const LISTENING: u8 = 10;
        let sockets = self.sockets.all();
        let inos: BTreeMap<usize, u64> = sockets
            .iter()
            .map(|socket| {
                (
                    Arc::as_ptr(&socket.endpoint).addr(),
                    socket.ino.load(Ordering::Relaxed),
                )
            })
            .collect();
        let show = |socket: &Arc<UnixSocket>| {
            let peer = socket.peer_endpoint();
            let backlog = socket
                .state
                .lock()
                .backlog
                .as_ref()
                .map(|backlog| (backlog.accept_queue.len(), backlog.limit));
            let state = match (&backlog, &peer) {
                (Some(_), _) => LISTENING,
                (None, Some(_)) => ESTABLISHED,
                (None, None) => UNCONNECTED,
            };
            let name = match socket.endpoint.name() {
                UnixName::Unnamed => Vec::new(),
                UnixName::Path(path) => path.to_vec(),
                UnixName::Abstract(name) => [&[0], &name[..]].concat(),
            };
            let sent = match (socket.socket_type, &peer) {
                (SocketType::Datagram, _) | (_, None) => socket.endpoint.send_charged_bytes(),
                (_, Some(peer)) => peer.charged_bytes(),
            };
            UnixDiagEntry {
                kind: socket.socket_type.as_raw() as u8,
                state,
                id: socket.id,
                ino: socket.ino.load(Ordering::Relaxed),
                peer: peer.and_then(|peer| inos.get(&Arc::as_ptr(&peer).addr()).copied()),
                name,
                queues: backlog.unwrap_or((socket.endpoint.readable_bytes(), sent)),
                shut: u8::from(socket.endpoint.is_shut_down(RCV_SHUTDOWN))
                    | u8::from(socket.endpoint.is_shut_down(SEND_SHUTDOWN)) << 1,
            }
        };
        sockets.iter().map(show).collect()
    }
}
