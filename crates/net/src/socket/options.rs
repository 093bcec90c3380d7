//! Options that `setsockopt(2)` sets on any socket (`socket(7)`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;
use task::Mutex;

use super::core_stack::CoreStack;
use super::credentials::caller_ucred;
use super::error_queue::{ErrorQueue, ErrorQueueEntry};
use super::extended_options::ExtendedOptions;
use super::message::{MsgFlags, WaitPolicy};

const MIN_SEND_BUFFER: usize = 4608;
const MIN_RECEIVE_BUFFER: usize = 2304;
/// The highest priority that takes no right.
const MAX_UNPRIVILEGED_PRIORITY: i32 = 6;

/// Bits of `SO_BUF_LOCK`.
const SNDBUF_LOCK: i32 = 1;
const RCVBUF_LOCK: i32 = 2;

/// The wait for unsent data when a connection is closed (`SO_LINGER`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Linger {
    /// Whether closing waits.
    pub on: bool,
    /// For how many seconds.
    pub seconds: i32,
}

/// The options of one socket.
pub struct SocketOptions {
    stack: Arc<CoreStack>,
    /// The user who made the socket, or the one from which it was accepted.
    owner: u32,
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    /// The buffer sizes that were set by the program (`SO_BUF_LOCK`): a bit each.
    buffer_lock: AtomicI32,
    /// Nanoseconds; 0 is for ever.
    send_timeout: AtomicU64,
    receive_timeout: AtomicU64,
    receive_low_water: AtomicUsize,
    pass_credentials: AtomicBool,
    /// Bit `n` is the option number `n`, of those that are on or off and have no meaning here.
    boolean_options: AtomicU64,
    priority: AtomicU32,
    linger: AtomicU64,
    /// The number of the option that has arrivals stamped with the time, or 0.
    pub(crate) timestamp_option: AtomicU32,
    /// The flags of `SO_TIMESTAMPING`.
    pub(crate) timestamping: AtomicU32,
    /// The number of the message that is stamped next, or of a stream the byte from which they are
    /// counted.
    pub(crate) timestamp_key: AtomicU32,
    /// The offset of the first byte that is peeked at (`SO_PEEK_OFF`); -1: always the first.
    peek_offset: AtomicI32,
    pub(crate) error_queue: ErrorQueue,
    /// The arrival time of the message that was received last; 0: there was none, 1: nobody looked.
    pub(crate) last_timestamp: AtomicU64,
    /// Whether there is a filter.
    pub(crate) filtered: AtomicBool,
    pub(crate) extended: Mutex<Option<Box<ExtendedOptions>>>,
}

impl SocketOptions {
    /// The options of a new socket of a stack, for which the caller pays.
    #[must_use]
    pub fn new(stack: Arc<CoreStack>) -> Self {
        Self::of_owner(stack, caller_ucred().uid)
    }

    /// The options of a new socket for which another user than the caller pays.
    pub(crate) fn of_owner(stack: Arc<CoreStack>, owner: u32) -> Self {
        let sysctls = &stack.sysctls;
        Self {
            send_buffer: AtomicUsize::new(sysctls.wmem_default.as_usize()),
            receive_buffer: AtomicUsize::new(sysctls.rmem_default.as_usize()),
            buffer_lock: AtomicI32::new(0),
            send_timeout: AtomicU64::new(0),
            receive_timeout: AtomicU64::new(0),
            receive_low_water: AtomicUsize::new(1),
            pass_credentials: AtomicBool::new(false),
            boolean_options: AtomicU64::new(0),
            priority: AtomicU32::new(0),
            linger: AtomicU64::new(0),
            timestamp_option: AtomicU32::new(0),
            timestamping: AtomicU32::new(0),
            timestamp_key: AtomicU32::new(0),
            peek_offset: AtomicI32::new(-1),
            error_queue: ErrorQueue::default(),
            last_timestamp: AtomicU64::new(0),
            filtered: AtomicBool::new(false),
            extended: Mutex::new(None),
            owner,
            stack,
        }
    }
}

/// Options that are on or off.
const BOOLEAN_OPTIONS: u64 = 1 << net::SO_DEBUG
    | 1 << net::SO_REUSEADDR
    | 1 << net::SO_DONTROUTE
    | 1 << net::SO_BROADCAST
    | 1 << net::SO_KEEPALIVE
    | 1 << net::SO_OOBINLINE
    | 1 << net::SO_REUSEPORT
    | 1 << net::SO_NO_CHECK
    | 1 << net::SO_RXQ_OVFL
    | 1 << net::SO_SELECT_ERR_QUEUE
    | 1 << net::SO_PASSSEC
    | 1 << net::SO_WIFI_STATUS
    | 1 << net::SO_NOFCS
    | 1 << net::SO_ZEROCOPY;

fn is_boolean(option: u32) -> bool {
    option < u64::BITS && BOOLEAN_OPTIONS >> option & 1 != 0
}

impl SocketOptions {
    /// The user who pays for the socket's buffers.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// The same with buffers of other sizes.
    pub(crate) fn with_buffers(mut self, send: usize, receive: usize) -> Self {
        *self.send_buffer.get_mut() = send;
        *self.receive_buffer.get_mut() = receive;
        self
    }

    /// The options of a socket that is made by accepting from this one; the same user pays for it.
    pub(crate) fn inherit(&self) -> Self {
        let mut new = Self::of_owner(self.stack.clone(), self.owner);
        let size = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        let wide = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let word = |of: &AtomicU32| of.load(Ordering::Relaxed);
        *new.send_buffer.get_mut() = size(&self.send_buffer);
        *new.receive_buffer.get_mut() = size(&self.receive_buffer);
        let lock = self.buffer_lock.load(Ordering::Relaxed);
        *new.buffer_lock.get_mut() = lock;
        *new.send_timeout.get_mut() = wide(&self.send_timeout);
        *new.receive_timeout.get_mut() = wide(&self.receive_timeout);
        *new.receive_low_water.get_mut() = size(&self.receive_low_water);
        *new.pass_credentials.get_mut() = self.pass_credentials();
        *new.boolean_options.get_mut() = wide(&self.boolean_options);
        *new.priority.get_mut() = word(&self.priority);
        *new.linger.get_mut() = wide(&self.linger);
        *new.timestamp_option.get_mut() = word(&self.timestamp_option);
        *new.timestamping.get_mut() = word(&self.timestamping);
        let filtered = self.filtered.load(Ordering::Relaxed);
        *new.filtered.get_mut() = filtered;
        *new.extended.get_mut() = self.inherited_extended();
        new
    }

    /// The part of the socket's stack that all families share.
    pub(crate) fn stack(&self) -> &Arc<CoreStack> {
        &self.stack
    }

    /// The bytes that may be sent and not yet received.
    #[must_use]
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Ordering::Relaxed)
    }

    /// Makes room for at least so many bytes to be sent, unless the program has said how many it
    /// wants.
    pub(crate) fn grow_send_buffer(&self, bytes: usize) {
        if self.buffer_lock.load(Ordering::Relaxed) & SNDBUF_LOCK == 0 {
            self.send_buffer.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Makes room for at least so many bytes to be received, unless the program has said how many
    /// it wants.
    pub(crate) fn grow_receive_buffer(&self, bytes: usize) {
        if self.buffer_lock.load(Ordering::Relaxed) & RCVBUF_LOCK == 0 {
            self.receive_buffer.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// The bytes that may wait to be received.
    #[must_use]
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer.load(Ordering::Relaxed)
    }

    /// The longest that a call that sends waits, nanoseconds; 0 is for ever.
    #[must_use]
    pub fn send_timeout(&self) -> u64 {
        self.send_timeout.load(Ordering::Relaxed)
    }

    /// The longest that a call that receives waits, nanoseconds; 0 is for ever.
    #[must_use]
    pub fn receive_timeout(&self) -> u64 {
        self.receive_timeout.load(Ordering::Relaxed)
    }

    /// The terms on which a call that sends waits.
    pub(crate) fn send_wait(&self, nonblocking: bool) -> WaitPolicy {
        WaitPolicy {
            nonblocking,
            timeout_ns: self.send_timeout(),
        }
    }

    /// The terms on which a call that receives waits.
    pub(crate) fn receive_wait(&self, nonblocking: bool) -> WaitPolicy {
        WaitPolicy {
            nonblocking,
            timeout_ns: self.receive_timeout(),
        }
    }

    /// Sets how long calls that send wait, in nanoseconds (`SO_SNDTIMEO`).
    pub fn set_send_timeout(&self, nanoseconds: u64) {
        self.send_timeout.store(nanoseconds, Ordering::Relaxed);
    }

    /// Sets how long calls that receive wait, in nanoseconds (`SO_RCVTIMEO`).
    pub fn set_receive_timeout(&self, nanoseconds: u64) {
        self.receive_timeout.store(nanoseconds, Ordering::Relaxed);
    }

    /// The bytes of a stream that a receiver waits for.
    #[must_use]
    pub fn receive_low_water(&self) -> usize {
        self.receive_low_water.load(Ordering::Relaxed)
    }

    /// Whether the receiver is told who sent (`SO_PASSCRED`).
    #[must_use]
    pub fn pass_credentials(&self) -> bool {
        self.pass_credentials.load(Ordering::Relaxed)
    }

    /// The way of closing with data unsent.
    #[must_use]
    pub fn linger(&self) -> Linger {
        let value = self.linger.load(Ordering::Relaxed);
        Linger {
            on: value >> 32 != 0,
            seconds: (value as u32).cast_signed(),
        }
    }

    /// Sets what happens at closing.
    pub fn set_linger(&self, Linger { on, seconds }: Linger) {
        self.linger.store(
            u64::from(on) << 32 | u64::from(seconds.cast_unsigned()),
            Ordering::Relaxed,
        );
    }

    /// The offset of the first byte that is peeked at; -1: always the first.
    #[must_use]
    pub fn peek_offset(&self) -> i32 {
        self.peek_offset.load(Ordering::Relaxed)
    }

    /// Sets the offset of the first byte that is peeked at; -1: always the first.
    pub fn set_peek_offset(&self, offset: i32) {
        self.peek_offset.store(offset, Ordering::Relaxed);
    }

    /// The bytes that a call with these flags leaves out.
    pub(crate) fn peek_skip(&self, flags: MsgFlags) -> usize {
        if flags.contains(MsgFlags::PEEK) {
            self.peek_offset().max(0) as usize
        } else {
            0
        }
    }

    /// Moves the peek offset on by bytes that were looked at, back by bytes that were received.
    pub(crate) fn advance_peek_offset(&self, bytes: usize, flags: MsgFlags) {
        let offset = self.peek_offset();
        if offset >= 0 {
            let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
            let ahead = if flags.contains(MsgFlags::PEEK) {
                offset.saturating_add(bytes)
            } else {
                (offset - bytes).max(0)
            };
            self.set_peek_offset(ahead);
        }
    }

    /// A message was received that arrived at a time, or at one that nobody looked at (0).
    pub(crate) fn record_timestamp(&self, arrival: u64) {
        self.last_timestamp.store(arrival.max(1), Ordering::Relaxed);
    }

    /// The socket has to be told something, unless there are too many such things.
    pub(crate) fn queue_error(&self, entry: ErrorQueueEntry) {
        self.error_queue.push(entry, self.receive_buffer());
    }

    /// An option of the level `SOL_SOCKET` that is a number and the same for all families.
    ///
    /// # Errors
    /// `ENOPROTOOPT`.
    pub fn int_option(&self, option: u32) -> Result<i32> {
        let size = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        Ok(match option {
            net::SO_SNDBUF => size(self.send_buffer()),
            net::SO_RCVBUF => size(self.receive_buffer()),
            net::SO_BUF_LOCK => self.buffer_lock.load(Ordering::Relaxed),
            net::SO_RCVLOWAT => size(self.receive_low_water()),
            net::SO_SNDLOWAT => 1,
            net::SO_PASSCRED => i32::from(self.pass_credentials()),
            net::SO_PRIORITY => self.priority.load(Ordering::Relaxed).cast_signed(),
            net::SO_TIMESTAMP_OLD
            | net::SO_TIMESTAMPNS_OLD
            | net::SO_TIMESTAMP_NEW
            | net::SO_TIMESTAMPNS_NEW => {
                i32::from(self.timestamp_option.load(Ordering::Relaxed) == option)
            }
            _ if is_boolean(option) => {
                (self.boolean_options.load(Ordering::Relaxed) >> option & 1) as i32
            }
            _ => self.stored_value(option)?,
        })
    }

    /// Whether a boolean option is on.
    #[must_use]
    pub fn is_enabled(&self, option: u32) -> bool {
        is_boolean(option) && self.boolean_options.load(Ordering::Relaxed) >> option & 1 != 0
    }

    /// Sets such an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT`; unless `privileged` `EACCES` for `SO_DEBUG` and `EPERM` for other things.
    pub fn set_int_option(&self, option: u32, value: i32, privileged: bool) -> Result<()> {
        // Twice what was asked for, because Linux counts its own overhead, and programs know it.
        let buffer = |least: usize, limit: usize| {
            (value.max(0) as usize)
                .min(limit)
                .saturating_mul(2)
                .max(least)
        };
        let fixed = match option {
            net::SO_SNDBUF | net::SO_SNDBUFFORCE => SNDBUF_LOCK,
            net::SO_RCVBUF | net::SO_RCVBUFFORCE => RCVBUF_LOCK,
            _ => 0,
        };
        match option {
            net::SO_BUF_LOCK if value & !(SNDBUF_LOCK | RCVBUF_LOCK) != 0 => {
                return Err(Errno::EINVAL);
            }
            net::SO_BUF_LOCK => self.buffer_lock.store(value, Ordering::Relaxed),
            net::SO_SNDBUF => self.send_buffer.store(
                buffer(MIN_SEND_BUFFER, self.stack.sysctls.wmem_max.as_usize()),
                Ordering::Relaxed,
            ),
            net::SO_RCVBUF => self.receive_buffer.store(
                buffer(MIN_RECEIVE_BUFFER, self.stack.sysctls.rmem_max.as_usize()),
                Ordering::Relaxed,
            ),
            net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE if !privileged => return Err(Errno::EPERM),
            net::SO_SNDBUFFORCE => self.send_buffer.store(
                buffer(MIN_SEND_BUFFER, i32::MAX as usize / 2),
                Ordering::Relaxed,
            ),
            net::SO_RCVBUFFORCE => {
                self.receive_buffer.store(
                    buffer(MIN_RECEIVE_BUFFER, i32::MAX as usize / 2),
                    Ordering::Relaxed,
                );
            }
            net::SO_RCVLOWAT => {
                let least = if value < 0 {
                    i32::MAX as usize
                } else {
                    value.max(1) as usize
                };
                self.receive_low_water.store(least, Ordering::Relaxed);
            }
            net::SO_PASSCRED => self.pass_credentials.store(value != 0, Ordering::Relaxed),
            net::SO_DEBUG if value != 0 && !privileged => return Err(Errno::EACCES),
            net::SO_PRIORITY
                if !(0..=MAX_UNPRIVILEGED_PRIORITY).contains(&value) && !privileged =>
            {
                return Err(Errno::EPERM);
            }
            net::SO_PRIORITY => self
                .priority
                .store(value.cast_unsigned(), Ordering::Relaxed),
            _ if is_boolean(option) && value != 0 => {
                self.boolean_options
                    .fetch_or(1 << option, Ordering::Relaxed);
            }
            _ if is_boolean(option) => {
                self.boolean_options
                    .fetch_and(!(1 << option), Ordering::Relaxed);
            }
            net::SO_TIMESTAMP_OLD
            | net::SO_TIMESTAMPNS_OLD
            | net::SO_TIMESTAMP_NEW
            | net::SO_TIMESTAMPNS_NEW => {
                self.timestamp_option
                    .store(if value != 0 { option } else { 0 }, Ordering::Relaxed);
            }
            _ => return self.set_stored_value(option, value, privileged),
        }
        self.buffer_lock.fetch_or(fixed, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::error_queue::ExtendedError;

    fn lingers(seconds: i32) -> Linger {
        Linger { on: true, seconds }
    }

    #[test]
    fn buffers_are_doubled_and_bounded_as_on_linux() {
        let options = SocketOptions::new(CoreStack::for_tests());
        assert_eq!(options.int_option(net::SO_SNDBUF), Ok(212_992));
        options.grow_send_buffer(300_000);
        assert_eq!(
            (
                options.int_option(net::SO_SNDBUF),
                options.int_option(net::SO_BUF_LOCK)
            ),
            (Ok(300_000), Ok(0))
        );
        for (asked, granted) in [(0, 4608), (10_000, 20_000), (i32::MAX, 425_984)] {
            options
                .set_int_option(net::SO_SNDBUF, asked, false)
                .unwrap();
            assert_eq!(options.int_option(net::SO_SNDBUF), Ok(granted));
        }
        options.set_int_option(net::SO_RCVBUF, 1, false).unwrap();
        assert_eq!(options.int_option(net::SO_RCVBUF), Ok(2304));
        assert_eq!(
            options.set_int_option(net::SO_SNDBUFFORCE, 1_000_000, false),
            Err(Errno::EPERM)
        );
        options
            .set_int_option(net::SO_SNDBUFFORCE, 1_000_000, true)
            .unwrap();
        assert_eq!(options.int_option(net::SO_SNDBUF), Ok(2_000_000));
        assert_eq!(options.int_option(net::SO_BUF_LOCK), Ok(3));
        options.grow_send_buffer(3_000_000);
        assert_eq!(options.int_option(net::SO_SNDBUF), Ok(2_000_000));
    }

    #[test]
    fn switches_are_remembered_and_others_refused() {
        let options = SocketOptions::new(CoreStack::for_tests());
        options.set_int_option(net::SO_REUSEADDR, 7, false).unwrap();
        assert_eq!(options.int_option(net::SO_REUSEADDR), Ok(1));
        assert_eq!(options.int_option(net::SO_KEEPALIVE), Ok(0));
        assert_eq!(
            options.set_int_option(net::SO_DEBUG, 1, false),
            Err(Errno::EACCES)
        );
        assert_eq!(options.set_int_option(net::SO_DEBUG, 0, false), Ok(()));
        assert_eq!(options.set_int_option(net::SO_PRIORITY, 6, false), Ok(()));
        assert_eq!(
            options.set_int_option(net::SO_PRIORITY, 7, false),
            Err(Errno::EPERM)
        );
        assert_eq!(
            options.set_int_option(net::SO_MARK, 0, false),
            Err(Errno::EPERM)
        );
        assert_eq!(options.int_option(net::SO_PEERSEC), Err(Errno::ENOPROTOOPT));
        assert_eq!(options.int_option(200), Err(Errno::ENOPROTOOPT));
        options.set_linger(lingers(-3));
        assert_eq!(options.linger(), lingers(-3));
    }

    #[test]
    fn numbers_are_kept_within_their_limits() {
        let options = SocketOptions::new(CoreStack::for_tests());
        let set = |option, value| {
            options.set_int_option(option, value, true).unwrap();
            options.int_option(option).unwrap()
        };
        assert_eq!(
            [
                set(net::SO_RCVLOWAT, 0),
                set(net::SO_RCVLOWAT, 7),
                set(net::SO_RCVLOWAT, -1)
            ],
            [1, 7, i32::MAX]
        );
        assert_eq!(
            [
                set(net::SO_PRIORITY, 6),
                set(net::SO_PASSCRED, 9),
                set(net::SO_PASSCRED, 0)
            ],
            [6, 1, 0]
        );
        assert_eq!(
            [
                set(net::SO_SNDBUF, 2304),
                set(net::SO_SNDBUF, 2305),
                set(net::SO_RCVBUF, 1152)
            ],
            [4608, 4610, 2304]
        );
        assert_eq!(
            [set(net::SO_SNDBUF, -5), set(net::SO_RCVBUF, i32::MAX)],
            [4608, 425_984]
        );
        options
            .set_int_option(net::SO_RCVBUFFORCE, i32::MAX, true)
            .unwrap();
        assert_eq!(options.receive_buffer(), (i32::MAX as usize / 2) * 2);
        assert_eq!(
            options.set_int_option(net::SO_RCVBUFFORCE, 1, false),
            Err(Errno::EPERM)
        );
        assert_eq!(options.int_option(net::SO_SNDLOWAT), Ok(1));
        // One way of stamping at a time.
        options
            .set_int_option(net::SO_TIMESTAMP_OLD, 1, false)
            .unwrap();
        options
            .set_int_option(net::SO_TIMESTAMPNS_NEW, 1, false)
            .unwrap();
        assert_eq!(
            (
                options.int_option(net::SO_TIMESTAMP_OLD),
                options.int_option(net::SO_TIMESTAMPNS_NEW)
            ),
            (Ok(0), Ok(1))
        );
        options
            .set_int_option(net::SO_TIMESTAMPNS_NEW, 0, false)
            .unwrap();
        assert_eq!(options.int_option(net::SO_TIMESTAMPNS_NEW), Ok(0));
        // A switch goes off again, and is no other one.
        for on in [true, false] {
            options
                .set_int_option(net::SO_REUSEPORT, on.into(), false)
                .unwrap();
            assert_eq!(
                (
                    options.is_enabled(net::SO_REUSEPORT),
                    options.is_enabled(net::SO_REUSEADDR)
                ),
                (on, false)
            );
        }
        assert!(!options.is_enabled(64) && !options.is_enabled(net::SO_TYPE));
    }

    #[test]
    fn looking_goes_on_where_it_was_and_taking_comes_back() {
        let options = SocketOptions::new(CoreStack::for_tests());
        // Without the option, always at the front.
        options.advance_peek_offset(5, MsgFlags::PEEK);
        assert_eq!(
            (options.peek_offset(), options.peek_skip(MsgFlags::PEEK)),
            (-1, 0)
        );
        options.set_peek_offset(0);
        options.advance_peek_offset(5, MsgFlags::PEEK);
        assert_eq!(
            (
                options.peek_skip(MsgFlags::PEEK),
                options.peek_skip(MsgFlags::empty())
            ),
            (5, 0)
        );
        options.advance_peek_offset(3, MsgFlags::empty());
        assert_eq!(options.peek_skip(MsgFlags::PEEK), 2);
        options.advance_peek_offset(9, MsgFlags::empty());
        assert_eq!(options.peek_offset(), 0);
    }

    #[test]
    fn what_is_accepted_inherits() {
        let options = SocketOptions::new(CoreStack::for_tests()).with_buffers(7000, 8000);
        options.set_send_timeout(3);
        options.set_receive_timeout(4);
        options.set_linger(lingers(9));
        for option in [
            net::SO_KEEPALIVE,
            net::SO_PASSCRED,
            net::SO_PRIORITY,
            net::SO_RCVLOWAT,
        ] {
            options.set_int_option(option, 1, false).unwrap();
        }
        let heir = options.inherit();
        assert_eq!(
            (
                heir.send_buffer(),
                heir.receive_buffer(),
                heir.send_timeout(),
                heir.receive_timeout()
            ),
            (7000, 8000, 3, 4)
        );
        assert_eq!(
            (
                heir.linger(),
                heir.is_enabled(net::SO_KEEPALIVE),
                heir.pass_credentials()
            ),
            (lingers(9), true, true)
        );
        assert_eq!(
            (
                options.linger(),
                SocketOptions::new(CoreStack::for_tests()).linger()
            ),
            (lingers(9), Linger::default())
        );
    }

    #[test]
    fn what_a_socket_is_told_waits_for_it() {
        let options = SocketOptions::new(CoreStack::for_tests());
        options.set_int_option(net::SO_RCVBUF, 1152, false).unwrap();
        let entry = |data: usize| ErrorQueueEntry {
            error: ExtendedError::port_unreachable(true),
            offender: None,
            to: None,
            time: None,
            data: alloc::vec![0; data],
        };
        options.queue_error(entry(3000));
        assert!(
            !options.error_queue.has_entries(),
            "there is no room for that"
        );
        options.queue_error(entry(10));
        assert_eq!(
            options.error_queue.pop().map(|entry| entry.data.len()),
            Some(10)
        );
    }
}
