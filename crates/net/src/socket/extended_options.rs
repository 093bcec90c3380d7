//! Options that few sockets have: filters, the time of arrival, and numbers that are remembered and
//! have no meaning here.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use bpf::Program;
use fs::{Result, Timestamp};
use linux_raw_sys::net;

use super::error_queue::{ErrorQueueEntry, ExtendedError};
use super::message::ControlMessage;
use super::options::SocketOptions;

/// The clock of times at which messages are to go out (`SO_TXTIME`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxTime {
    /// Number of the clock (`CLOCK_*`).
    pub clock: i32,
    /// Flags (`SOF_TXTIME_*`).
    pub flags: u32,
}

/// The options that few sockets have, allocated on demand.
#[derive(Clone, Default)]
pub(crate) struct ExtendedOptions {
    filter: Option<Arc<Program>>,
    /// The filter stays as it is (`SO_LOCK_FILTER`).
    filter_locked: bool,
    /// The number that tells the socket from all others; 0 until somebody asks.
    cookie: u64,
    /// Chooses among sockets that share a port (`SO_ATTACH_REUSEPORT_CBPF`).
    reuseport_program: Option<Arc<Program>>,
    /// Clock and flags of times at which messages are to go out (`SO_TXTIME`).
    txtime: Option<TxTime>,
    stored_values: Vec<(u32, i32)>,
}

/// Numbers that are remembered, what they are at first, and whether it takes a right to set them.
const STORED_OPTIONS: [(u32, i32, bool); 9] = [
    (net::SO_MARK, 0, true),
    (net::SO_BUSY_POLL, 0, true),
    (net::SO_PREFER_BUSY_POLL, 0, true),
    (net::SO_BUSY_POLL_BUDGET, 8, true),
    // The most there is: no limit.
    (net::SO_MAX_PACING_RATE, -1, false),
    (net::SO_INCOMING_CPU, -1, false),
    (net::SO_BINDTOIFINDEX, 0, false),
    (net::SO_RCVMARK, 0, true),
    // "As the host does it."
    (net::SO_TXREHASH, 255, false),
];

/// Flags of `SO_TIMESTAMPING`: software's stamps, of what arrives and of what is sent, at each
/// stage; all there are.
const TX_SOFTWARE: u32 = 1 << 1;
const RX_SOFTWARE: u32 = 1 << 3;
const SOFTWARE: u32 = 1 << 4;
const TX_SCHED: u32 = 1 << 8;
const TX_ACK: u32 = 1 << 9;
/// Flags of stamps of what is sent: with a number; without its bytes; with counters, which takes
/// that it is without.
const OPT_ID: u32 = 1 << 7;
const OPT_TSONLY: u32 = 1 << 11;
const OPT_STATS: u32 = 1 << 12;
/// The flags that one message may have of its own.
const TX_RECORD_MASK: u32 = 1 | TX_SOFTWARE | TX_SCHED | TX_ACK;
const TIMESTAMPING_MASK: u32 = (1 << 16) - 1;
/// The option was set by its newer number; somebody asks for the time of the last message
/// (`SIOCGSTAMP`).
const TSTAMP_NEW: u32 = 1 << 31;
const STAMP_LAST: u32 = 1 << 30;

fn stored_option(option: u32) -> Result<(u32, i32, bool)> {
    STORED_OPTIONS
        .into_iter()
        .find(|known| known.0 == option)
        .ok_or(Errno::ENOPROTOOPT)
}

impl SocketOptions {
    fn update_extended<R>(&self, change: impl FnOnce(&mut ExtendedOptions) -> R) -> R {
        change(self.extended.lock().get_or_insert_with(Box::default))
    }

    pub(crate) fn stored_value(&self, option: u32) -> Result<i32> {
        let first = stored_option(option)?.1;
        let rare = self.extended.lock();
        let set = rare
            .iter()
            .flat_map(|rare| &rare.stored_values)
            .find(|(known, _)| *known == option);
        Ok(set.map_or(first, |(_, value)| *value))
    }

    pub(crate) fn set_stored_value(&self, option: u32, value: i32, privileged: bool) -> Result<()> {
        let raises = stored_option(option)?.2 && value > self.stored_value(option)?;
        if !privileged && (raises || matches!(option, net::SO_MARK | net::SO_RCVMARK)) {
            return Err(Errno::EPERM);
        }
        if value < 0
            && matches!(
                option,
                net::SO_BUSY_POLL | net::SO_BUSY_POLL_BUDGET | net::SO_BINDTOIFINDEX
            )
        {
            return Err(Errno::EINVAL);
        }
        self.update_extended(|rare| {
            rare.stored_values.retain(|(known, _)| *known != option);
            rare.stored_values.push((option, value));
        });
        Ok(())
    }

    /// Binds the socket to the interface of a name (`SO_BINDTODEVICE`); an empty one is any.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn bind_to_device(&self, name: &[u8]) -> Result<()> {
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        let index = match name {
            [] => 0,
            name => {
                let found = self.stack().find_interface(|i| i.name.as_bytes() == name);
                found.ok_or(Errno::ENODEV)?.index.cast_signed()
            }
        };
        self.set_stored_value(net::SO_BINDTOIFINDEX, index, true)
    }

    /// Binds the socket to the interface with a number, for which no privilege is needed.
    ///
    /// # Errors
    /// `ENODEV`.
    pub(crate) fn bind_to_interface(&self, index: u32) -> Result<()> {
        let found = self.stack().find_interface(|one| one.index == index);
        let index = found.ok_or(Errno::ENODEV)?.index.cast_signed();
        self.set_stored_value(net::SO_BINDTOIFINDEX, index, true)
    }

    /// The number of the interface the socket is bound to; 0 if it is any.
    pub(crate) fn bound_interface(&self) -> u32 {
        self.stored_value(net::SO_BINDTOIFINDEX)
            .map_or(0, i32::cast_unsigned)
    }

    /// The name of the interface the socket is bound to, with its NUL; nothing if it is any.
    #[must_use]
    pub fn bound_device(&self) -> Vec<u8> {
        let index = self.bound_interface();
        let bound = self.stack().find_interface(|i| i.index == index);
        bound.map_or_else(Vec::new, |interface| {
            [interface.name.as_bytes(), &[0]].concat()
        })
    }

    /// A number no other socket has (`SO_COOKIE`).
    #[must_use]
    pub fn cookie(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.update_extended(|rare| {
            let cookie = match rare.cookie {
                0 => NEXT.fetch_add(1, Ordering::Relaxed),
                cookie => cookie,
            };
            rare.cookie = cookie;
            cookie
        })
    }

    /// The part that a socket made by accepting from this one inherits.
    pub(crate) fn inherited_extended(&self) -> Option<Box<ExtendedOptions>> {
        self.extended
            .lock()
            .clone()
            .map(|rare| Box::new(ExtendedOptions { cookie: 0, ..*rare }))
    }

    /// Whether setting `SO_TIMESTAMPING` to `flags` begins to number what is sent.
    #[must_use]
    pub fn enables_timestamp_keys(&self, flags: i32) -> bool {
        flags.cast_unsigned() & OPT_ID != 0 && self.timestamping() & OPT_ID == 0
    }

    /// Sets what is stamped with the time (`SO_TIMESTAMPING`). If that begins to number what is
    /// sent, `first` is the number of what is sent next, or of the stream's byte from which they
    /// are counted.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn set_timestamping(&self, option: u32, flags: i32, first: u32) -> Result<()> {
        let begins = self.enables_timestamp_keys(flags);
        let flags = flags.cast_unsigned();
        if flags & !TIMESTAMPING_MASK != 0 || flags & (OPT_STATS | OPT_TSONLY) == OPT_STATS {
            return Err(Errno::EINVAL);
        }
        if begins {
            self.timestamp_key.store(first, Ordering::Relaxed);
        }
        let newer = if option == net::SO_TIMESTAMPING_NEW {
            TSTAMP_NEW
        } else {
            0
        };
        let kept = self.timestamping.load(Ordering::Relaxed) & STAMP_LAST;
        self.timestamping
            .store(flags | newer | kept, Ordering::Relaxed);
        Ok(())
    }

    /// The flags of `SO_TIMESTAMPING`.
    #[must_use]
    pub fn timestamping(&self) -> u32 {
        self.timestamping.load(Ordering::Relaxed) & TIMESTAMPING_MASK
    }

    /// At which stages what is sent now is stamped, if at any; `control` is what was said of the
    /// message.
    pub(crate) fn tx_timestamp_flags(&self, control: &[ControlMessage]) -> u32 {
        let stamping = self.timestamping.load(Ordering::Relaxed);
        if stamping == 0 {
            return 0;
        }
        let own = control.iter().find(|(level, kind, _)| {
            *level == net::SOL_SOCKET
                && matches!(*kind, net::SO_TIMESTAMPING_OLD | net::SO_TIMESTAMPING_NEW)
        });
        let asked = own
            .and_then(|(.., bytes)| bytes.first_chunk())
            .map_or(stamping, |bytes| u32::from_ne_bytes(*bytes));
        asked & (TX_SOFTWARE | TX_SCHED | TX_ACK)
    }

    /// The number of a message that is sent now.
    pub(crate) fn next_timestamp_key(&self) -> u32 {
        if self.timestamping() & OPT_ID == 0 {
            0
        } else {
            self.timestamp_key.fetch_add(1, Ordering::Relaxed)
        }
    }

    /// The number of what ends with a stream's byte number `last`.
    pub(crate) fn stream_timestamp_key(&self, last: u64) -> u32 {
        if self.timestamping() & OPT_ID == 0 {
            0
        } else {
            (last as u32).wrapping_sub(self.timestamp_key.load(Ordering::Relaxed))
        }
    }

    /// Tells when what was sent as number `key` went through its stages; `packet` makes it as it
    /// went out.
    pub(crate) fn queue_tx_timestamps(
        &self,
        stages: u32,
        key: u32,
        packet: impl FnOnce() -> Vec<u8>,
    ) {
        let time = Some(realtime_ns());
        let bare = self.timestamping() & OPT_TSONLY != 0;
        let data = if bare { Vec::new() } else { packet() };
        for (asked, stage) in [(TX_SCHED, 1), (TX_SOFTWARE, 0), (TX_ACK, 2)] {
            if stages & asked != 0 {
                // What has come to its end has no bytes any more.
                let data = if stage == 2 { Vec::new() } else { data.clone() };
                self.queue_error(ErrorQueueEntry {
                    error: ExtendedError::tx_timestamp(stage, key),
                    offender: None,
                    to: None,
                    time,
                    data,
                });
            }
        }
    }

    /// Masks out the stages that only streams have.
    pub(crate) const fn datagram_tx_flags(stages: u32) -> u32 {
        stages & !TX_ACK
    }

    /// The control message that tells of a time, if those of software are wanted.
    pub(crate) fn timestamping_message(&self, time: u64) -> Option<ControlMessage> {
        let stamping = self.timestamping.load(Ordering::Relaxed);
        (stamping & SOFTWARE != 0).then(|| scm_timestamping(Timestamp::from_ns(time), stamping))
    }

    /// Checks what a program says of a message at the level of all sockets.
    ///
    /// # Errors
    /// `EINVAL`; `EPERM` for a mark unless `privileged`.
    pub fn check_control_message(&self, kind: u32, bytes: &[u8], privileged: bool) -> Result<()> {
        let word = || {
            bytes
                .first_chunk()
                .filter(|_| bytes.len() == 4)
                .map(|word| u32::from_ne_bytes(*word))
                .ok_or(Errno::EINVAL)
        };
        match kind {
            net::SO_MARK if !privileged => Err(Errno::EPERM),
            net::SO_MARK => word().map(drop),
            net::SO_TIMESTAMPING_OLD | net::SO_TIMESTAMPING_NEW => {
                if word()? & !TX_RECORD_MASK == 0 {
                    Ok(())
                } else {
                    Err(Errno::EINVAL)
                }
            }
            // Nothing waits at the loop, so that it goes out at once whatever the time is.
            net::SO_TXTIME if bytes.len() == 8 && self.txtime().is_some() => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Clock and flags of times at which messages are to go out (`SO_TXTIME`), if there may be
    /// such.
    #[must_use]
    pub fn txtime(&self) -> Option<TxTime> {
        self.extended.lock().as_ref()?.txtime
    }

    /// Allows such times.
    ///
    /// # Errors
    /// `EINVAL`; `EPERM` for a clock that only the `privileged` may use.
    pub fn set_txtime(&self, clock: i32, flags: u32, privileged: bool) -> Result<()> {
        const ALL: u32 = 3;
        const MONOTONIC: i32 = 1;
        if flags & !ALL != 0 {
            return Err(Errno::EINVAL);
        }
        if clock != MONOTONIC && !privileged {
            return Err(Errno::EPERM);
        }
        self.update_extended(|rare| rare.txtime = Some(TxTime { clock, flags }));
        Ok(())
    }

    /// Sets what chooses among the sockets that share this one's port, or takes it away.
    ///
    /// # Errors
    /// `ENOENT` if there is nothing to be taken away.
    pub fn set_reuseport_program(&self, chooser: Option<Program>) -> Result<()> {
        self.update_extended(|rare| {
            if chooser.is_none() && rare.reuseport_program.is_none() {
                return Err(Errno::ENOENT);
            }
            rare.reuseport_program = chooser.map(Arc::new);
            Ok(())
        })
    }

    /// The socket, of `count` ones that share this one's port, that gets a message, if there is
    /// something that chooses and it does.
    pub(crate) fn select_reuseport(&self, data: &[u8], count: usize) -> Option<usize> {
        let chooser = self.extended.lock().as_ref()?.reuseport_program.clone()?;
        let chosen = chooser.run(&IncomingMessage(&[], data)) as usize;
        (chosen < count).then_some(chosen)
    }

    /// The time, nanoseconds since 1970, if what arrives now has to be stamped with it; else 0.
    pub(crate) fn receive_timestamp(&self) -> u64 {
        let stamps = self.timestamp_option.load(Ordering::Relaxed) != 0
            || self.timestamping.load(Ordering::Relaxed) != 0;
        if stamps { realtime_ns() } else { 0 }
    }

    /// The arrival time of the message that was received last (`SIOCGSTAMP`). From the first time
    /// that somebody asks it is looked at.
    ///
    /// # Errors
    /// `ENOENT` if there was none.
    pub(crate) fn last_timestamp(&self) -> Result<Timestamp> {
        self.timestamping.fetch_or(STAMP_LAST, Ordering::Relaxed);
        match self.last_timestamp.load(Ordering::Relaxed) {
            0 => Err(Errno::ENOENT),
            1 => Ok(Timestamp::now()),
            time => Ok(Timestamp::from_ns(time)),
        }
    }

    /// The control messages that tell when something arrived. What was there before anybody asked
    /// arrives now.
    pub(crate) fn timestamp_messages(&self, arrival: u64) -> Vec<ControlMessage> {
        let (stamp, stamping) = (
            self.timestamp_option.load(Ordering::Relaxed),
            self.timestamping.load(Ordering::Relaxed),
        );
        let mut told = Vec::new();
        if stamp | stamping == 0 {
            return told;
        }
        let time = Timestamp::from_ns(if arrival == 0 { realtime_ns() } else { arrival });
        let pair = |fraction: u32| encode_timespec(time.sec, fraction);
        match stamp {
            0 => {}
            net::SO_TIMESTAMP_OLD | net::SO_TIMESTAMP_NEW => {
                told.push((net::SOL_SOCKET, stamp, pair(time.nsec / 1000)));
            }
            _ => told.push((net::SOL_SOCKET, stamp, pair(time.nsec))),
        }
        if stamping & (RX_SOFTWARE | SOFTWARE) == RX_SOFTWARE | SOFTWARE {
            told.push(scm_timestamping(time, stamping));
        }
        told
    }

    /// Sets the filter of what arrives, or takes it away.
    ///
    /// # Errors
    /// `EPERM` if it is locked; `ENOENT` if there is none to be taken away.
    pub fn set_filter(&self, filter: Option<Program>) -> Result<()> {
        let set = filter.is_some();
        self.update_extended(|rare| {
            if rare.filter_locked {
                return Err(Errno::EPERM);
            }
            if !set && rare.filter.is_none() {
                return Err(Errno::ENOENT);
            }
            rare.filter = filter.map(Arc::new);
            Ok(())
        })?;
        self.filtered.store(set, Ordering::Release);
        Ok(())
    }

    /// The filter.
    #[must_use]
    pub fn filter(&self) -> Option<Arc<Program>> {
        if !self.filtered.load(Ordering::Acquire) {
            return None;
        }
        self.extended.lock().as_ref()?.filter.clone()
    }

    /// Keeps the filter from being changed (`SO_LOCK_FILTER`).
    ///
    /// # Errors
    /// `EPERM` for letting it be changed again.
    pub fn lock_filter(&self, locked: bool) -> Result<()> {
        self.update_extended(|rare| {
            if rare.filter_locked && !locked {
                return Err(Errno::EPERM);
            }
            rare.filter_locked = locked;
            Ok(())
        })
    }

    /// Whether the filter is kept from being changed.
    #[must_use]
    pub fn is_filter_locked(&self) -> bool {
        self.extended
            .lock()
            .as_ref()
            .is_some_and(|rare| rare.filter_locked)
    }

    /// The bytes that the filter lets in of a packet whose header and rest these are; `None`: it is
    /// thrown away.
    pub(crate) fn apply_filter(&self, header: &[u8], rest: &[u8]) -> Option<usize> {
        let whole = header.len() + rest.len();
        let Some(filter) = self.filter() else {
            return Some(whole);
        };
        match filter.run(&IncomingMessage(header, rest)) as usize {
            0 => None,
            length => Some(length.clamp(header.len(), whole.max(header.len()))),
        }
    }
}

/// A message as filters see it: a header, what follows, and the processor that delivers it.
struct IncomingMessage<'a>(&'a [u8], &'a [u8]);

impl bpf::Data for IncomingMessage<'_> {
    fn length(&self) -> u32 {
        (self.0, self.1).length()
    }

    fn load(&self, at: u32, size: u32) -> Option<u32> {
        (self.0, self.1).load(at, size)
    }

    fn beside(&self, number: u32) -> u32 {
        match number {
            SKF_AD_CPU => this_cpu(),
            _ => 0,
        }
    }
}

/// Number of the processor as a fact about a packet (`SKF_AD_CPU`).
pub(crate) const SKF_AD_CPU: u32 = 36;

/// The processor of the caller.
pub(crate) fn this_cpu() -> u32 {
    task::current().cpu().0
}

fn encode_timespec(seconds: i64, fraction: u32) -> Vec<u8> {
    [seconds.to_ne_bytes(), i64::from(fraction).to_ne_bytes()].concat()
}

/// The control message of `SO_TIMESTAMPING`: three stamps, software's, one that is not used any
/// more, hardware's.
fn scm_timestamping(time: Timestamp, stamping: u32) -> ControlMessage {
    let kind = if stamping & TSTAMP_NEW != 0 {
        net::SO_TIMESTAMPING_NEW
    } else {
        net::SO_TIMESTAMPING_OLD
    };
    (
        net::SOL_SOCKET,
        kind,
        [encode_timespec(time.sec, time.nsec), alloc::vec![0; 32]].concat(),
    )
}

/// Nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    let now = Timestamp::now();
    (now.sec.cast_unsigned()) * 1_000_000_000 + u64::from(now.nsec)
}

#[cfg(test)]
mod tests {
    use bpf::{Instruction, Purpose};

    use super::*;
    use crate::socket::core_stack::CoreStack;

    /// A program that returns a number.
    fn constant(k: u32) -> Program {
        Program::new(
            alloc::vec![Instruction {
                code: 6,
                if_true: 0,
                if_false: 0,
                k
            }],
            Purpose::Packets,
        )
        .unwrap()
    }

    #[test]
    fn who_may_not_raise_a_number_may_lower_it() {
        let options = SocketOptions::new(CoreStack::for_tests());
        let set = |option, value, privileged| options.set_stored_value(option, value, privileged);
        // A mark takes the right whatever it is.
        assert_eq!(
            (set(net::SO_MARK, 0, false), set(net::SO_MARK, 5, true)),
            (Err(Errno::EPERM), Ok(()))
        );
        assert_eq!(
            (
                set(net::SO_BUSY_POLL, 1, false),
                set(net::SO_BUSY_POLL, 5, true)
            ),
            (Err(Errno::EPERM), Ok(()))
        );
        assert_eq!(
            (
                set(net::SO_BUSY_POLL, 6, false),
                set(net::SO_BUSY_POLL, 5, false),
                set(net::SO_BUSY_POLL, 4, false)
            ),
            (Err(Errno::EPERM), Ok(()), Ok(()))
        );
        assert_eq!(
            (
                options.stored_value(net::SO_BUSY_POLL),
                options.stored_value(net::SO_BUSY_POLL_BUDGET)
            ),
            (Ok(4), Ok(8))
        );
        assert_eq!(
            (
                set(net::SO_BUSY_POLL, -1, true),
                set(net::SO_BUSY_POLL, 0, true)
            ),
            (Err(Errno::EINVAL), Ok(()))
        );
        assert_eq!(
            (
                set(net::SO_MAX_PACING_RATE, -7, false),
                options.stored_value(net::SO_MAX_PACING_RATE)
            ),
            (Ok(()), Ok(-7))
        );
        assert_eq!(
            (set(9999, 0, true), options.stored_value(9999)),
            (Err(Errno::ENOPROTOOPT), Err(Errno::ENOPROTOOPT))
        );
        // An interface by its name, with a zero behind it or not.
        assert_eq!(
            (options.bind_to_device(b"lo\0rest"), options.bound_device()),
            (Ok(()), b"lo\0".to_vec())
        );
        assert_eq!(
            (
                options.bind_to_device(b"eth7"),
                options.bind_to_device(b""),
                options.bound_device()
            ),
            (Err(Errno::ENODEV), Ok(()), Vec::new())
        );
    }

    #[test]
    fn numbers_of_what_is_sent_begin_where_they_are_asked_for() {
        let options = SocketOptions::new(CoreStack::for_tests());
        let (numbered, bare) = (OPT_ID.cast_signed(), OPT_TSONLY.cast_signed());
        assert_eq!(
            (
                options.enables_timestamp_keys(numbered),
                options.enables_timestamp_keys(bare)
            ),
            (true, false)
        );
        options
            .set_timestamping(net::SO_TIMESTAMPING_OLD, numbered, 5)
            .unwrap();
        assert_eq!(
            (
                options.next_timestamp_key(),
                options.next_timestamp_key(),
                options.stream_timestamp_key(9)
            ),
            (5, 6, 2)
        );
        // Set again they go on, and are no beginning.
        assert!(!options.enables_timestamp_keys(numbered));
        options
            .set_timestamping(net::SO_TIMESTAMPING_OLD, numbered | bare, 77)
            .unwrap();
        assert_eq!(
            (options.next_timestamp_key(), options.timestamping()),
            (7, OPT_ID | OPT_TSONLY)
        );
        options
            .set_timestamping(net::SO_TIMESTAMPING_OLD, 0, 0)
            .unwrap();
        assert_eq!(
            (
                options.next_timestamp_key(),
                options.stream_timestamp_key(9),
                options.enables_timestamp_keys(numbered)
            ),
            (0, 0, true)
        );
        let counters = OPT_STATS.cast_signed();
        for (flags, result) in [
            (counters, Err(Errno::EINVAL)),
            (counters | bare, Ok(())),
            (1 << 16, Err(Errno::EINVAL)),
            (1 << 15, Ok(())),
        ] {
            assert_eq!(
                options.set_timestamping(net::SO_TIMESTAMPING_OLD, flags, 0),
                result,
                "{flags:#x}"
            );
        }
    }

    #[test]
    fn stages_are_those_of_the_socket_or_of_the_message() {
        let options = SocketOptions::new(CoreStack::for_tests());
        let own = [(
            net::SOL_SOCKET,
            net::SO_TIMESTAMPING_OLD,
            (TX_SOFTWARE | RX_SOFTWARE).to_ne_bytes().to_vec(),
        )];
        assert_eq!(
            (
                options.tx_timestamp_flags(&[]),
                options.tx_timestamp_flags(&own)
            ),
            (0, 0),
            "nothing is stamped"
        );
        options
            .set_timestamping(
                net::SO_TIMESTAMPING_OLD,
                (TX_SCHED | TX_ACK | SOFTWARE).cast_signed(),
                0,
            )
            .unwrap();
        assert_eq!(
            (
                options.tx_timestamp_flags(&[]),
                options.tx_timestamp_flags(&own)
            ),
            (TX_SCHED | TX_ACK, TX_SOFTWARE)
        );
        assert_eq!(
            SocketOptions::datagram_tx_flags(TX_SCHED | TX_ACK),
            TX_SCHED
        );
        // Each stage is told by itself; what has ended has no bytes any more.
        options.queue_tx_timestamps(TX_SCHED | TX_SOFTWARE | TX_ACK, 3, || alloc::vec![1, 2, 3]);
        let told: Vec<_> = core::iter::from_fn(|| options.error_queue.pop())
            .map(|entry| (entry.error, entry.data.len()))
            .collect();
        assert_eq!(
            told,
            [
                (ExtendedError::tx_timestamp(1, 3), 3),
                (ExtendedError::tx_timestamp(0, 3), 3),
                (ExtendedError::tx_timestamp(2, 3), 0)
            ]
        );
    }

    #[test]
    fn what_a_message_says_is_checked() {
        let options = SocketOptions::new(CoreStack::for_tests());
        let check =
            |kind, bytes: &[u8], privileged| options.check_control_message(kind, bytes, privileged);
        let word = |word: u32| word.to_ne_bytes();
        assert_eq!(
            (
                check(net::SO_MARK, &word(1), false),
                check(net::SO_MARK, &word(1), true)
            ),
            (Err(Errno::EPERM), Ok(()))
        );
        assert_eq!(
            (
                check(net::SO_MARK, &[0; 3], true),
                check(net::SO_MARK, &[0; 5], true)
            ),
            (Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
        for kind in [net::SO_TIMESTAMPING_OLD, net::SO_TIMESTAMPING_NEW] {
            assert_eq!(
                (
                    check(kind, &word(TX_SOFTWARE), false),
                    check(kind, &word(TX_RECORD_MASK), false)
                ),
                (Ok(()), Ok(()))
            );
            assert_eq!(
                (
                    check(kind, &word(RX_SOFTWARE), false),
                    check(kind, &word(SOFTWARE), false)
                ),
                (Err(Errno::EINVAL), Err(Errno::EINVAL))
            );
        }
        assert_eq!(
            check(net::SO_TXTIME, &[0; 8], true),
            Err(Errno::EINVAL),
            "it may not be said yet"
        );
        assert_eq!(
            (
                options.set_txtime(0, 0, false),
                options.set_txtime(1, 4, true)
            ),
            (Err(Errno::EPERM), Err(Errno::EINVAL))
        );
        assert_eq!(
            (options.set_txtime(1, 3, false), options.txtime()),
            (Ok(()), Some(TxTime { clock: 1, flags: 3 }))
        );
        assert_eq!(
            (
                check(net::SO_TXTIME, &[0; 8], false),
                check(net::SO_TXTIME, &[0; 7], false)
            ),
            (Ok(()), Err(Errno::EINVAL))
        );
        assert_eq!(check(1234, &word(0), true), Err(Errno::EINVAL));
    }

    #[test]
    fn a_chooser_chooses_among_those_there_are() {
        let options = SocketOptions::new(CoreStack::for_tests());
        assert_eq!(
            (
                options.select_reuseport(b"x", 3),
                options.set_reuseport_program(None)
            ),
            (None, Err(Errno::ENOENT))
        );
        options.set_reuseport_program(Some(constant(2))).unwrap();
        assert_eq!(
            (
                options.select_reuseport(b"x", 3),
                options.select_reuseport(b"x", 2)
            ),
            (Some(2), None)
        );
        assert_eq!(
            (
                options.set_reuseport_program(None),
                options.select_reuseport(b"x", 3)
            ),
            (Ok(()), None)
        );
    }

    #[test]
    fn a_filter_is_set_taken_away_and_locked() {
        let options = SocketOptions::new(CoreStack::for_tests());
        assert!(options.filter().is_none());
        assert_eq!(
            (
                options.set_filter(None),
                options.apply_filter(b"head", b"rest")
            ),
            (Err(Errno::ENOENT), Some(8))
        );
        options.set_filter(Some(constant(6))).unwrap();
        assert_eq!(
            (
                options.filter().is_some(),
                options.apply_filter(b"head", b"rest")
            ),
            (true, Some(6))
        );
        for (k, admitted) in [(0, None), (1, Some(4)), (8, Some(8)), (9, Some(8))] {
            options.set_filter(Some(constant(k))).unwrap();
            assert_eq!(options.apply_filter(b"head", b"rest"), admitted, "{k}");
        }
        assert_eq!(
            (options.set_filter(None), options.filter().is_none()),
            (Ok(()), true)
        );
        options.set_filter(Some(constant(1))).unwrap();
        assert_eq!(
            (
                options.lock_filter(false),
                options.is_filter_locked(),
                options.lock_filter(true)
            ),
            (Ok(()), false, Ok(()))
        );
        assert!(options.is_filter_locked());
        assert_eq!(
            (options.lock_filter(true), options.lock_filter(false)),
            (Ok(()), Err(Errno::EPERM))
        );
        assert_eq!(
            (
                options.set_filter(None),
                options.set_filter(Some(constant(1)))
            ),
            (Err(Errno::EPERM), Err(Errno::EPERM))
        );
    }

    #[test]
    fn times_are_told_in_the_form_that_was_asked_for() {
        let options = SocketOptions::new(CoreStack::for_tests());
        assert_eq!(options.last_timestamp(), Err(Errno::ENOENT));
        options.record_timestamp(3_000_000_007);
        assert_eq!(options.last_timestamp(), Ok(Timestamp { sec: 3, nsec: 7 }));
        let options = SocketOptions::new(CoreStack::for_tests());
        assert_eq!(
            (
                options.receive_timestamp(),
                options.timestamp_messages(3_000_007_999).len(),
                options.timestamping_message(5)
            ),
            (0, 0, None)
        );
        let two = |seconds: i64, rest: i64| [seconds.to_ne_bytes(), rest.to_ne_bytes()].concat();
        for (option, rest) in [
            (net::SO_TIMESTAMP_OLD, 7),
            (net::SO_TIMESTAMP_NEW, 7),
            (net::SO_TIMESTAMPNS_OLD, 7999),
        ] {
            options.set_int_option(option, 1, false).unwrap();
            assert_eq!(
                options.timestamp_messages(3_000_007_999),
                [(net::SOL_SOCKET, option, two(3, rest))]
            );
        }
        options
            .set_int_option(net::SO_TIMESTAMPNS_OLD, 0, false)
            .unwrap();
        // Of arrivals by software: both have to be asked for.
        let three = |kind| {
            (
                net::SOL_SOCKET,
                kind,
                [two(3, 7999), alloc::vec![0; 32]].concat(),
            )
        };
        for (flags, told) in [
            (RX_SOFTWARE, false),
            (SOFTWARE, false),
            (RX_SOFTWARE | SOFTWARE, true),
        ] {
            options
                .set_timestamping(net::SO_TIMESTAMPING_OLD, flags.cast_signed(), 0)
                .unwrap();
            let expected = if told {
                alloc::vec![three(net::SO_TIMESTAMPING_OLD)]
            } else {
                Vec::new()
            };
            assert_eq!(
                (
                    options.timestamp_messages(3_000_007_999),
                    options.receive_timestamp() > 0
                ),
                (expected, true)
            );
        }
        options
            .set_timestamping(net::SO_TIMESTAMPING_NEW, SOFTWARE.cast_signed(), 0)
            .unwrap();
        assert_eq!(
            options.timestamping_message(3_000_007_999),
            Some(three(net::SO_TIMESTAMPING_NEW))
        );
    }
}
