//! `NETLINK_SOCK_DIAG`: lists of sockets, which `ss` asks for (`sock_diag(7)`).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

use super::message::{NLM_F_DUMP, NLM_F_MULTI, Reply};
use crate::inet::InetStack;
use crate::inet::procfs::{self, InetDiagEntry};
use crate::unix::{UnixDiagEntry, UnixStack};

/// The only request.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bytes of a request about sockets of `AF_INET`, and of one about those of `AF_UNIX`.
const INET_REQUEST: usize = 56;
const UNIX_REQUEST: usize = 24;

/// Attributes beside the fixed part of an answer about an `AF_INET` socket.
mod of_inet {
    pub const INFO: u16 = 2;
    pub const CONGESTION: u16 = 4;
    pub const SHUTDOWN: u16 = 8;
    pub const ONLY_V6: u16 = 11;
}

/// Attributes of an answer about an `AF_UNIX` socket, each with the bit of the request that asks
/// for it.
mod of_unix {
    pub const NAME: (u16, u32) = (0, 1);
    pub const PEER: (u16, u32) = (2, 4);
    pub const QUEUES: (u16, u32) = (4, 0x10);
    pub const SHUTDOWN: u16 = 6;
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Answers a request about sockets. Returns whether the answer is a list.
///
/// # Errors
/// `EINVAL` for a request that is too short, `ENOENT` for a family or protocol there is nothing of,
/// `EOPNOTSUPP` for others than lists.
pub(super) fn handle_message(
    inet: &InetStack,
    unix: &UnixStack,
    reply: &mut Reply,
    body: &[u8],
) -> Result<bool> {
    if reply.request.kind != SOCK_DIAG_BY_FAMILY {
        return Err(Errno::EINVAL);
    }
    if reply.request.flags & NLM_F_DUMP == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    match body {
        [family, protocol, wanted, ..]
            if body.len() >= INET_REQUEST
                && matches!(u32::from(*family), net::AF_INET | net::AF_INET6) =>
        {
            let sockets = procfs::diag_entries(inet, *protocol).ok_or(Errno::ENOENT)?;
            let states = word(body, 4);
            let of_family = |socket: &&InetDiagEntry| {
                u32::from(*family) == socket.family && states >> socket.state & 1 != 0
            };
            sockets
                .iter()
                .filter(of_family)
                .for_each(|socket| push_inet_entry(reply, socket, *wanted));
            Ok(true)
        }
        [family, ..] if body.len() >= UNIX_REQUEST && u32::from(*family) == net::AF_UNIX => {
            let (states, show) = (word(body, 4), word(body, 12));
            let sockets = unix.diag_entries();
            sockets
                .iter()
                .filter(|s| states >> s.state & 1 != 0)
                .for_each(|socket| push_unix_entry(reply, socket, show));
            Ok(true)
        }
        [family, ..]
            if matches!(
                u32::from(*family),
                net::AF_INET | net::AF_INET6 | net::AF_UNIX
            ) =>
        {
            Err(Errno::EINVAL)
        }
        _ => Err(Errno::ENOENT),
    }
}

/// An address, in the sixteen bytes there are for either family.
fn octets(address: SocketAddr, family: u32) -> [u8; 16] {
    let mut octets = [0; 16];
    match address.ip() {
        IpAddr::V4(ip) if family == net::AF_INET6 => octets = ip.to_ipv6_mapped().octets(),
        IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => octets = ip.octets(),
    }
    octets
}

fn push_inet_entry(reply: &mut Reply, socket: &InetDiagEntry, wanted: u8) {
    let (local, remote) = (socket.local, socket.remote);
    let fixed = [
        &[socket.family as u8, socket.state, 0, 0][..],
        &local.port().to_be_bytes(),
        &remote.port().to_be_bytes(),
        &octets(local, socket.family),
        &octets(remote, socket.family),
        // Interface: any.
        &[0; 4],
        &socket.id.to_ne_bytes(),
        // No timer runs.
        &[0; 4],
        &(socket.queues.1 as u32).to_ne_bytes(),
        &(socket.queues.0 as u32).to_ne_bytes(),
        &socket.uid.to_ne_bytes(),
        &(socket.ino as u32).to_ne_bytes(),
    ]
    .concat();
    let asked = |attribute: u16| wanted >> (attribute - 1) & 1 != 0;
    let only_v6 = [u8::from(socket.only_v6)];
    let shut = [socket.shut];
    let mut attributes: Vec<(u16, &[u8])> = alloc::vec![(of_inet::SHUTDOWN, &shut[..])];
    if socket.family == net::AF_INET6 {
        attributes.push((of_inet::ONLY_V6, &only_v6));
    }
    if let Some(info) = socket.info.as_ref().filter(|_| asked(of_inet::INFO)) {
        attributes.push((of_inet::INFO, info));
    }
    if socket.info.is_some() && asked(of_inet::CONGESTION) {
        attributes.push((of_inet::CONGESTION, b"cubic\0"));
    }
    reply.push_message(SOCK_DIAG_BY_FAMILY, NLM_F_MULTI, &fixed, &attributes);
}

fn push_unix_entry(reply: &mut Reply, socket: &UnixDiagEntry, show: u32) {
    let fixed = [
        &[net::AF_UNIX as u8, socket.kind, socket.state, 0][..],
        &(socket.ino as u32).to_ne_bytes(),
        &socket.id.to_ne_bytes(),
    ]
    .concat();
    let peer = socket.peer.map(|ino| (ino as u32).to_ne_bytes());
    let queues = [socket.queues.0 as u32, socket.queues.1 as u32]
        .map(u32::to_ne_bytes)
        .concat();
    let mut attributes: Vec<(u16, &[u8])> = Vec::new();
    let asked = |bit: u32| show & bit != 0;
    if !socket.name.is_empty() && asked(of_unix::NAME.1) {
        attributes.push((of_unix::NAME.0, &socket.name));
    }
    if let Some(peer) = peer.as_ref().filter(|_| asked(of_unix::PEER.1)) {
        attributes.push((of_unix::PEER.0, peer));
    }
    if asked(of_unix::QUEUES.1) {
        attributes.push((of_unix::QUEUES.0, &queues));
    }
    attributes.push((of_unix::SHUTDOWN, core::slice::from_ref(&socket.shut)));
    reply.push_message(SOCK_DIAG_BY_FAMILY, NLM_F_MULTI, &fixed, &attributes);
}
