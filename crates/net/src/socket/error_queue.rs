//! The error queue of a socket (`MSG_ERRQUEUE`): why what it sent was refused, when it went out,
//! that its bytes were copied.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::errno::Errno;
use linux_raw_sys::net;
use task::Mutex;

use super::address::Address;
use super::message::ControlMessage;
use super::message::ReceivedMessage;

/// The origin of an entry (`SO_EE_ORIGIN_*`).
const ORIGIN_LOCAL: u8 = 1;
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;
const ORIGIN_TIMESTAMPING: u8 = 4;
const ORIGIN_ZEROCOPY: u8 = 5;
/// The bytes were copied after all (`SO_EE_CODE_ZEROCOPY_COPIED`).
const ZEROCOPY_COPIED: u8 = 1;
/// The bytes of the receiver's buffer that an entry takes up besides its own.
const ENTRY_OVERHEAD: usize = 256;

/// `struct sock_extended_err`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExtendedError {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    info: u32,
    data: u32,
}

impl ExtendedError {
    /// An ICMP error: no socket has the port.
    pub(crate) fn port_unreachable(v4: bool) -> Self {
        let (kind, code) = if v4 { (3, 3) } else { (1, 4) };
        Self::icmp(v4, Errno::ECONNREFUSED, kind, code, 0)
    }

    /// An error that ICMP of a family tells of; `info` is the MTU of a path.
    pub(crate) fn icmp(v4: bool, error: Errno, kind: u8, code: u8, info: u32) -> Self {
        Self {
            errno: error.raw().cast_unsigned(),
            origin: if v4 { ORIGIN_ICMP } else { ORIGIN_ICMP6 },
            kind,
            code,
            info,
            data: 0,
        }
    }

    /// A packet that was to be sent is longer than the MTU, and must not be cut.
    pub(crate) fn too_long(mtu: u32) -> Self {
        Self {
            errno: Errno::EMSGSIZE.raw().cast_unsigned(),
            origin: ORIGIN_LOCAL,
            kind: 0,
            code: 0,
            info: mtu,
            data: 0,
        }
    }

    /// A timestamp of what was sent as number `key`, which has come so far: to the network's queue
    /// (1), out (0), to its end (2).
    pub(crate) fn tx_timestamp(stage: u32, key: u32) -> Self {
        Self {
            errno: Errno::ENOMSG.raw().cast_unsigned(),
            origin: ORIGIN_TIMESTAMPING,
            kind: 0,
            code: 0,
            info: stage,
            data: key,
        }
    }

    /// The sends with the numbers `from` to `to` were copied.
    const fn zerocopy(from: u32, to: u32) -> Self {
        Self {
            errno: 0,
            origin: ORIGIN_ZEROCOPY,
            kind: 0,
            code: ZEROCOPY_COPIED,
            info: from,
            data: to,
        }
    }

    fn encode(self) -> Vec<u8> {
        let Self {
            errno,
            origin,
            kind,
            code,
            info,
            data,
        } = self;
        [
            &errno.to_ne_bytes()[..],
            &[origin, kind, code, 0],
            &info.to_ne_bytes(),
            &data.to_ne_bytes(),
        ]
        .concat()
    }
}

/// An entry of a socket's error queue.
#[derive(Clone, Debug)]
pub(crate) struct ErrorQueueEntry {
    pub(crate) error: ExtendedError,
    /// The host that says so.
    pub(crate) offender: Option<SocketAddr>,
    /// The destination of what was sent.
    pub(crate) to: Option<SocketAddr>,
    /// The time, nanoseconds since 1970.
    pub(crate) time: Option<u64>,
    /// The bytes that were sent.
    pub(crate) data: Vec<u8>,
}

/// The error queue of one socket (`MSG_ERRQUEUE`).
#[derive(Default)]
pub(crate) struct ErrorQueue {
    nonempty: AtomicBool,
    queue: Mutex<VecDeque<ErrorQueueEntry>>,
    /// The count of `MSG_ZEROCOPY` sends, all of which were copied.
    zerocopy_sends: AtomicU32,
}

impl ErrorQueue {
    /// Whether there is any entry.
    pub(crate) fn has_entries(&self) -> bool {
        self.nonempty.load(Ordering::Acquire)
    }

    /// Adds one if there is `room` for it, bytes; else it is lost.
    pub(crate) fn push(&self, entry: ErrorQueueEntry, room: usize) {
        let mut queue = self.queue.lock();
        let used: usize = queue
            .iter()
            .map(|entry| entry.data.len() + ENTRY_OVERHEAD)
            .sum();
        if used + entry.data.len() + ENTRY_OVERHEAD <= room {
            queue.push_back(entry);
            self.nonempty.store(true, Ordering::Release);
        }
    }

    /// The next send that was not to be copied has been. Sends that follow each other become one
    /// entry.
    pub(crate) fn push_zerocopy(&self, room: usize) {
        let number = self.zerocopy_sends.fetch_add(1, Ordering::Relaxed);
        {
            let mut queue = self.queue.lock();
            if let Some(ErrorQueueEntry { error, .. }) = queue.back_mut()
                && error.origin == ORIGIN_ZEROCOPY
                && error.data.wrapping_add(1) == number
            {
                error.data = number;
                return;
            }
        }
        let error = ExtendedError::zerocopy(number, number);
        self.push(
            ErrorQueueEntry {
                error,
                offender: None,
                to: None,
                time: None,
                data: Vec::new(),
            },
            room,
        );
    }

    /// The oldest.
    pub(crate) fn pop(&self) -> Option<ErrorQueueEntry> {
        if !self.has_entries() {
            return None;
        }
        let mut queue = self.queue.lock();
        let entry = queue.pop_front();
        self.nonempty.store(!queue.is_empty(), Ordering::Release);
        entry
    }
}

impl ErrorQueueEntry {
    /// Makes of the entry what `recvmsg(2)` is given through a socket of IPv6 or of IPv4: bytes and
    /// control messages. `shown` is an address as that socket shows it.
    pub(crate) fn into_received(
        self,
        v6: bool,
        limit: usize,
        mut control: Vec<ControlMessage>,
        shown: impl Fn(SocketAddr) -> Address,
    ) -> (Vec<u8>, ReceivedMessage) {
        const V4_ADDRESS: usize = 16;
        const V6_ADDRESS: usize = 28;
        let (level, kind, room) = if v6 {
            (net::IPPROTO_IPV6 as u32, net::IPV6_RECVERR, V6_ADDRESS)
        } else {
            (net::IPPROTO_IP as u32, net::IP_RECVERR, V4_ADDRESS)
        };
        let mut offender = self.offender.map_or_else(Vec::new, |ip| shown(ip).encode());
        offender.resize(room, 0);
        control.push((level, kind, [self.error.encode(), offender].concat()));
        let mut data = self.data;
        let message_len = data.len();
        data.truncate(limit);
        let copied = data.len();
        (
            data,
            ReceivedMessage {
                copied,
                message_len,
                from: self.to.map(shown),
                control,
                ..ReceivedMessage::default()
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_that_follow_each_other_are_told_of_together() {
        let errors = ErrorQueue::default();
        for _ in 0..3 {
            errors.push_zerocopy(4096);
        }
        let time = ErrorQueueEntry {
            error: ExtendedError::tx_timestamp(0, 7),
            offender: None,
            to: None,
            time: Some(1),
            data: vec![1; 9],
        };
        errors.push(time, 4096);
        errors.push_zerocopy(4096);
        let causes: Vec<ExtendedError> = std::iter::from_fn(|| errors.pop())
            .map(|entry| entry.error)
            .collect();
        assert_eq!(
            causes,
            [
                ExtendedError::zerocopy(0, 2),
                ExtendedError::tx_timestamp(0, 7),
                ExtendedError::zerocopy(3, 3)
            ]
        );
        assert!(!errors.has_entries());
    }

    #[test]
    fn what_has_no_room_is_lost() {
        let errors = ErrorQueue::default();
        let entry = ErrorQueueEntry {
            error: ExtendedError::port_unreachable(true),
            offender: None,
            to: None,
            time: None,
            data: vec![0; 100],
        };
        errors.push(entry.clone(), 100);
        assert!(errors.pop().is_none());
        for _ in 0..5 {
            errors.push(entry.clone(), 1000);
        }
        assert_eq!(std::iter::from_fn(|| errors.pop()).count(), 2);
    }
}
