//! What a socket is told beside its data (`MSG_ERRQUEUE`): why what it sent was refused, when it went out, that its bytes were copied.

use crate::extended_options::ControlMessage;
use crate::{Address, ReceivedMessage};
use abi::errno::Errno;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use linux_raw_sys::net;
use task::Mutex;

/// Where a notice comes from (`SO_EE_ORIGIN_*`).
const BY_ICMP: u8 = 2;
const BY_ICMP6: u8 = 3;
const BY_CLOCK: u8 = 4;
const BY_COPYING: u8 = 5;
/// The bytes were copied after all (`SO_EE_CODE_ZEROCOPY_COPIED`).
const COPIED: u8 = 1;
/// What a notice takes up of the receiver's buffer besides its bytes.
const COST: usize = 256;

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
    /// There is no such port.
    pub(crate) fn refused(v4: bool) -> Self {
        let (origin, kind, code) = if v4 { (BY_ICMP, 3, 3) } else { (BY_ICMP6, 1, 4) };
        Self { errno: Errno::ECONNREFUSED.raw().cast_unsigned(), origin, kind, code, info: 0, data: 0 }
    }

    /// What was sent as number `key` has come so far: to the network's queue (1), out (0), to its end (2).
    pub(crate) fn stamped(stage: u32, key: u32) -> Self {
        Self { errno: Errno::ENOMSG.raw().cast_unsigned(), origin: BY_CLOCK, kind: 0, code: 0, info: stage, data: key }
    }

    /// The sends with the numbers `from` to `to` were copied.
    const fn copied(from: u32, to: u32) -> Self {
        Self { errno: 0, origin: BY_COPYING, kind: 0, code: COPIED, info: from, data: to }
    }

    fn encode(self) -> Vec<u8> {
        let Self { errno, origin, kind, code, info, data } = self;
        [&errno.to_ne_bytes()[..], &[origin, kind, code, 0], &info.to_ne_bytes(), &data.to_ne_bytes()].concat()
    }
}

/// One thing that a socket is told.
#[derive(Clone, Debug)]
pub(crate) struct ErrorQueueEntry {
    pub(crate) cause: ExtendedError,
    /// Who says so.
    pub(crate) offender: Option<SocketAddr>,
    /// Where what was sent was to go.
    pub(crate) to: Option<SocketAddr>,
    /// When, nanoseconds since 1970.
    pub(crate) time: Option<u64>,
    /// What was sent.
    pub(crate) data: Vec<u8>,
}

/// What one socket has still to be told.
#[derive(Default)]
pub(crate) struct ErrorQueue {
    any: AtomicBool,
    queue: Mutex<VecDeque<ErrorQueueEntry>>,
    /// How many sends there were that were not to be copied, all of which were.
    sends: AtomicU32,
}

impl ErrorQueue {
    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Adds one if there is `room` for it, bytes; else it is lost.
    pub(crate) fn put(&self, notice: ErrorQueueEntry, room: usize) {
        let mut queue = self.queue.lock();
        let used: usize = queue.iter().map(|notice| notice.data.len() + COST).sum();
        if used + notice.data.len() + COST <= room {
            queue.push_back(notice);
            self.any.store(true, Ordering::Release);
        }
    }

    /// The next send that was not to be copied has been. Sends that follow each other become one notice.
    pub(crate) fn copied(&self, room: usize) {
        let number = self.sends.fetch_add(1, Ordering::Relaxed);
        {
            let mut queue = self.queue.lock();
            if let Some(ErrorQueueEntry { cause, .. }) = queue.back_mut()
                && cause.origin == BY_COPYING
                && cause.data.wrapping_add(1) == number
            {
                cause.data = number;
                return;
            }
        }
        let cause = ExtendedError::copied(number, number);
        self.put(ErrorQueueEntry { cause, offender: None, to: None, time: None, data: Vec::new() }, room);
    }

    /// The oldest.
    pub(crate) fn take(&self) -> Option<ErrorQueueEntry> {
        if !self.any() {
            return None;
        }
        let mut queue = self.queue.lock();
        let notice = queue.pop_front();
        self.any.store(!queue.is_empty(), Ordering::Release);
        notice
    }
}

impl ErrorQueueEntry {
    /// What its receiver is given, through a socket of IPv6 or of IPv4: bytes, and what is beside them. `shown` is an address as that
    /// socket shows it.
    pub(crate) fn incoming(
        self,
        v6: bool,
        limit: usize,
        mut beside: Vec<ControlMessage>,
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
        beside.push((level, kind, [self.cause.encode(), offender].concat()));
        let mut data = self.data;
        let full = data.len();
        data.truncate(limit);
        let copied = data.len();
        (
            data,
            ReceivedMessage {
                copied,
                message_len: full,
                from: self.to.map(shown),
                control: beside,
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
        let notices = ErrorQueue::default();
        for _ in 0..3 {
            notices.copied(4096);
        }
        let time =
            ErrorQueueEntry { cause: ExtendedError::stamped(0, 7), offender: None, to: None, time: Some(1), data: vec![1; 9] };
        notices.put(time, 4096);
        notices.copied(4096);
        let causes: Vec<ExtendedError> = std::iter::from_fn(|| notices.take()).map(|notice| notice.cause).collect();
        assert_eq!(causes, [ExtendedError::copied(0, 2), ExtendedError::stamped(0, 7), ExtendedError::copied(3, 3)]);
        assert!(!notices.any());
    }

    #[test]
    fn what_has_no_room_is_lost() {
        let notices = ErrorQueue::default();
        let notice =
            ErrorQueueEntry { cause: ExtendedError::refused(true), offender: None, to: None, time: None, data: vec![0; 100] };
        notices.put(notice.clone(), 100);
        assert!(notices.take().is_none());
        for _ in 0..5 {
            notices.put(notice.clone(), 1000);
        }
        assert_eq!(std::iter::from_fn(|| notices.take()).count(), 2);
    }
}
