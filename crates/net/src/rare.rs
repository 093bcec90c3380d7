//! Options that few sockets have: filters, the time of arrival, and numbers that are remembered and have no meaning here.

use crate::Options;
use crate::notices::{Cause, Notice};
use abi::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bpf::Program;
use core::sync::atomic::{AtomicU64, Ordering};
use fs::{Result, Timestamp};
use linux_raw_sys::net;

/// A control message: level, kind, bytes.
pub(crate) type Beside = (u32, u32, Vec<u8>);

/// What few sockets have.
#[derive(Clone, Default)]
pub(crate) struct Rare {
    filter: Option<Arc<Program>>,
    /// The filter stays as it is (`SO_LOCK_FILTER`).
    locked: bool,
    /// What tells it from others; 0 until somebody asks.
    cookie: u64,
    /// Chooses among sockets that share a port (`SO_ATTACH_REUSEPORT_CBPF`).
    chooser: Option<Arc<Program>>,
    /// Clock and flags of times at which messages are to go out (`SO_TXTIME`).
    launch: Option<(i32, u32)>,
    numbers: Vec<(u32, i32)>,
}

/// Numbers that are remembered, what they are at first, and whether it takes a right to set them.
const REMEMBERED: [(u32, i32, bool); 9] = [
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

/// Flags of `SO_TIMESTAMPING`: software's stamps, of what arrives and of what is sent, at each stage; all there are.
const OF_SENT: u32 = 1 << 1;
const OF_ARRIVALS: u32 = 1 << 3;
const SOFTWARE: u32 = 1 << 4;
const OF_QUEUED: u32 = 1 << 8;
const OF_ENDED: u32 = 1 << 9;
/// What is sent is told of with a number; without its bytes; with counters, which takes that it is without.
const NUMBERED: u32 = 1 << 7;
const WITHOUT_BYTES: u32 = 1 << 11;
const WITH_COUNTERS: u32 = 1 << 12;
/// Those that one message may have of its own.
const OF_A_MESSAGE: u32 = 1 | OF_SENT | OF_QUEUED | OF_ENDED;
const ALL_STAMPING: u32 = (1 << 16) - 1;
/// The option was set by its newer number; somebody asks for the time of the last message (`SIOCGSTAMP`).
const NEWER: u32 = 1 << 31;
const OF_LAST: u32 = 1 << 30;

fn known(option: u32) -> Result<(u32, i32, bool)> {
    REMEMBERED.into_iter().find(|known| known.0 == option).ok_or(Errno::ENOPROTOOPT)
}

impl Options {
    fn change_rare<R>(&self, change: impl FnOnce(&mut Rare) -> R) -> R {
        change(self.rare.lock().get_or_insert_with(Box::default))
    }

    pub(crate) fn remembered(&self, option: u32) -> Result<i32> {
        let first = known(option)?.1;
        let rare = self.rare.lock();
        let set = rare.iter().flat_map(|rare| &rare.numbers).find(|(known, _)| *known == option);
        Ok(set.map_or(first, |(_, value)| *value))
    }

    pub(crate) fn remember(&self, option: u32, value: i32, privileged: bool) -> Result<()> {
        let raises = known(option)?.2 && value > self.remembered(option)?;
        if !privileged && (raises || matches!(option, net::SO_MARK | net::SO_RCVMARK)) {
            return Err(Errno::EPERM);
        }
        if value < 0 && matches!(option, net::SO_BUSY_POLL | net::SO_BUSY_POLL_BUDGET | net::SO_BINDTOIFINDEX) {
            return Err(Errno::EINVAL);
        }
        self.change_rare(|rare| {
            rare.numbers.retain(|(known, _)| *known != option);
            rare.numbers.push((option, value));
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
                let interfaces = crate::inet::network::current().interfaces();
                interfaces.iter().find(|i| i.name.as_bytes() == name).ok_or(Errno::ENODEV)?.index.cast_signed()
            }
        };
        self.remember(net::SO_BINDTOIFINDEX, index, true)
    }

    /// The name of the interface the socket is bound to, with its NUL; nothing if it is any.
    #[must_use]
    pub fn device(&self) -> Vec<u8> {
        let index = self.remembered(net::SO_BINDTOIFINDEX).unwrap_or(0);
        let interfaces = crate::inet::network::current().interfaces();
        let bound = interfaces.iter().find(|i| i.index.cast_signed() == index);
        bound.map_or_else(Vec::new, |interface| [interface.name.as_bytes(), &[0]].concat())
    }

    /// A number no other socket has (`SO_COOKIE`).
    #[must_use]
    pub fn cookie(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.change_rare(|rare| {
            let cookie = match rare.cookie {
                0 => NEXT.fetch_add(1, Ordering::Relaxed),
                cookie => cookie,
            };
            rare.cookie = cookie;
            cookie
        })
    }

    /// What a socket made by accepting from this one has of it.
    pub(crate) fn inherited_rare(&self) -> Option<Box<Rare>> {
        self.rare.lock().clone().map(|rare| Box::new(Rare { cookie: 0, ..*rare }))
    }

    /// Whether setting `SO_TIMESTAMPING` to `flags` begins to number what is sent.
    #[must_use]
    pub fn begins_numbers(&self, flags: i32) -> bool {
        flags.cast_unsigned() & NUMBERED != 0 && self.stamping() & NUMBERED == 0
    }

    /// Sets what is stamped with the time (`SO_TIMESTAMPING`). If that begins to number what is sent, `first` is the number of what is sent
    /// next, or of the stream's byte from which they are counted.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn set_stamping(&self, option: u32, flags: i32, first: u32) -> Result<()> {
        let begins = self.begins_numbers(flags);
        let flags = flags.cast_unsigned();
        if flags & !ALL_STAMPING != 0 || flags & (WITH_COUNTERS | WITHOUT_BYTES) == WITH_COUNTERS {
            return Err(Errno::EINVAL);
        }
        if begins {
            self.stamp_key.store(first, Ordering::Relaxed);
        }
        let newer = if option == net::SO_TIMESTAMPING_NEW { NEWER } else { 0 };
        let kept = self.stamping.load(Ordering::Relaxed) & OF_LAST;
        self.stamping.store(flags | newer | kept, Ordering::Relaxed);
        Ok(())
    }

    /// The flags of `SO_TIMESTAMPING`.
    #[must_use]
    pub fn stamping(&self) -> u32 {
        self.stamping.load(Ordering::Relaxed) & ALL_STAMPING
    }

    /// At which stages what is sent now is stamped, if at any; `beside` is what was said of the message.
    pub(crate) fn stages(&self, beside: &[Beside]) -> u32 {
        let stamping = self.stamping.load(Ordering::Relaxed);
        if stamping == 0 {
            return 0;
        }
        let own = beside.iter().find(|(level, kind, _)| {
            *level == net::SOL_SOCKET && matches!(*kind, net::SO_TIMESTAMPING_OLD | net::SO_TIMESTAMPING_NEW)
        });
        let asked = own.and_then(|(.., bytes)| bytes.first_chunk()).map_or(stamping, |bytes| u32::from_ne_bytes(*bytes));
        asked & (OF_SENT | OF_QUEUED | OF_ENDED)
    }

    /// The number of a message that is sent now.
    pub(crate) fn next_number(&self) -> u32 {
        if self.stamping() & NUMBERED == 0 { 0 } else { self.stamp_key.fetch_add(1, Ordering::Relaxed) }
    }

    /// The number of what ends with a stream's byte number `last`.
    pub(crate) fn byte_number(&self, last: u64) -> u32 {
        if self.stamping() & NUMBERED == 0 { 0 } else { (last as u32).wrapping_sub(self.stamp_key.load(Ordering::Relaxed)) }
    }

    /// Tells when what was sent as number `key` went through its stages; `packet` makes it as it went out.
    pub(crate) fn stamp_sent(&self, stages: u32, key: u32, packet: impl FnOnce() -> Vec<u8>) {
        let time = Some(now());
        let bare = self.stamping() & WITHOUT_BYTES != 0;
        let data = if bare { Vec::new() } else { packet() };
        for (asked, stage) in [(OF_QUEUED, 1), (OF_SENT, 0), (OF_ENDED, 2)] {
            if stages & asked != 0 {
                // What has come to its end has no bytes any more.
                let data = if stage == 2 { Vec::new() } else { data.clone() };
                self.notice(Notice { cause: Cause::stamped(stage, key), offender: None, to: None, time, data });
            }
        }
    }

    /// What was sent was told of at stages that only streams have.
    pub(crate) const fn of_messages(stages: u32) -> u32 {
        stages & !OF_ENDED
    }

    /// The control message that tells of a time, if those of software are wanted.
    pub(crate) fn stamp_of(&self, time: u64) -> Option<Beside> {
        let stamping = self.stamping.load(Ordering::Relaxed);
        (stamping & SOFTWARE != 0).then(|| three_stamps(Timestamp::from_ns(time), stamping))
    }

    /// Checks what a program says of a message at the level of all sockets.
    ///
    /// # Errors
    /// `EINVAL`; `EPERM` for a mark unless `privileged`.
    pub fn check_beside(&self, kind: u32, bytes: &[u8], privileged: bool) -> Result<()> {
        let word = || bytes.first_chunk().filter(|_| bytes.len() == 4).map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::EINVAL);
        match kind {
            net::SO_MARK if !privileged => Err(Errno::EPERM),
            net::SO_MARK => word().map(drop),
            net::SO_TIMESTAMPING_OLD | net::SO_TIMESTAMPING_NEW => {
                if word()? & !OF_A_MESSAGE == 0 {
                    Ok(())
                } else {
                    Err(Errno::EINVAL)
                }
            }
            // Nothing waits at the loop, so that it goes out at once whatever the time is.
            net::SO_TXTIME if bytes.len() == 8 && self.launch().is_some() => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Clock and flags of times at which messages are to go out (`SO_TXTIME`), if there may be such.
    #[must_use]
    pub fn launch(&self) -> Option<(i32, u32)> {
        self.rare.lock().as_ref()?.launch
    }

    /// Allows such times.
    ///
    /// # Errors
    /// `EINVAL`; `EPERM` for a clock that only the `privileged` may use.
    pub fn set_launch(&self, clock: i32, flags: u32, privileged: bool) -> Result<()> {
        const ALL: u32 = 3;
        const MONOTONIC: i32 = 1;
        if flags & !ALL != 0 {
            return Err(Errno::EINVAL);
        }
        if clock != MONOTONIC && !privileged {
            return Err(Errno::EPERM);
        }
        self.change_rare(|rare| rare.launch = Some((clock, flags)));
        Ok(())
    }

    /// Sets what chooses among the sockets that share this one's port, or takes it away.
    ///
    /// # Errors
    /// `ENOENT` if there is nothing to be taken away.
    pub fn set_chooser(&self, chooser: Option<Program>) -> Result<()> {
        self.change_rare(|rare| {
            if chooser.is_none() && rare.chooser.is_none() {
                return Err(Errno::ENOENT);
            }
            rare.chooser = chooser.map(Arc::new);
            Ok(())
        })
    }

    /// Which of `count` sockets that share this one's port gets a message, if there is something that chooses and it does.
    pub(crate) fn choose(&self, data: &[u8], count: usize) -> Option<usize> {
        let chooser = self.rare.lock().as_ref()?.chooser.clone()?;
        let chosen = chooser.run(&(&[][..], data)) as usize;
        (chosen < count).then_some(chosen)
    }

    /// The time, nanoseconds since 1970, if what arrives now has to be stamped with it; else 0.
    pub(crate) fn arrival(&self) -> u64 {
        let stamps = self.stamp.load(Ordering::Relaxed) != 0 || self.stamping.load(Ordering::Relaxed) != 0;
        if stamps { now() } else { 0 }
    }

    /// When the message that was received last arrived (`SIOCGSTAMP`). From the first time that somebody asks it is looked at.
    ///
    /// # Errors
    /// `ENOENT` if there was none.
    pub(crate) fn last_arrival(&self) -> Result<Timestamp> {
        self.stamping.fetch_or(OF_LAST, Ordering::Relaxed);
        match self.last.load(Ordering::Relaxed) {
            0 => Err(Errno::ENOENT),
            1 => Ok(Timestamp::now()),
            time => Ok(Timestamp::from_ns(time)),
        }
    }

    /// The control messages that tell when something arrived. What was there before anybody asked arrives now.
    pub(crate) fn stamps(&self, arrival: u64) -> Vec<Beside> {
        let (stamp, stamping) = (self.stamp.load(Ordering::Relaxed), self.stamping.load(Ordering::Relaxed));
        let mut told = Vec::new();
        if stamp | stamping == 0 {
            return told;
        }
        let time = Timestamp::from_ns(if arrival == 0 { now() } else { arrival });
        let pair = |fraction: u32| pair(time.sec, fraction);
        match stamp {
            0 => {}
            net::SO_TIMESTAMP_OLD | net::SO_TIMESTAMP_NEW => told.push((net::SOL_SOCKET, stamp, pair(time.nsec / 1000))),
            _ => told.push((net::SOL_SOCKET, stamp, pair(time.nsec))),
        }
        if stamping & (OF_ARRIVALS | SOFTWARE) == OF_ARRIVALS | SOFTWARE {
            told.push(three_stamps(time, stamping));
        }
        told
    }

    /// Sets the filter of what arrives, or takes it away.
    ///
    /// # Errors
    /// `EPERM` if it is locked; `ENOENT` if there is none to be taken away.
    pub fn set_filter(&self, filter: Option<Program>) -> Result<()> {
        let set = filter.is_some();
        self.change_rare(|rare| {
            if rare.locked {
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
        self.rare.lock().as_ref()?.filter.clone()
    }

    /// Keeps the filter from being changed (`SO_LOCK_FILTER`).
    ///
    /// # Errors
    /// `EPERM` for letting it be changed again.
    pub fn lock_filter(&self, locked: bool) -> Result<()> {
        self.change_rare(|rare| {
            if rare.locked && !locked {
                return Err(Errno::EPERM);
            }
            rare.locked = locked;
            Ok(())
        })
    }

    /// Whether the filter is kept from being changed.
    #[must_use]
    pub fn filter_locked(&self) -> bool {
        self.rare.lock().as_ref().is_some_and(|rare| rare.locked)
    }

    /// How many bytes the filter lets in of a packet whose header and rest these are; `None`: it is thrown away.
    pub(crate) fn admits(&self, header: &[u8], rest: &[u8]) -> Option<usize> {
        let whole = header.len() + rest.len();
        let Some(filter) = self.filter() else { return Some(whole) };
        match filter.run(&(header, rest)) as usize {
            0 => None,
            length => Some(length.clamp(header.len(), whole.max(header.len()))),
        }
    }
}

fn pair(seconds: i64, fraction: u32) -> Vec<u8> {
    [seconds.to_ne_bytes(), i64::from(fraction).to_ne_bytes()].concat()
}

/// The control message of `SO_TIMESTAMPING`: three stamps, software's, one that is not used any more, hardware's.
fn three_stamps(time: Timestamp, stamping: u32) -> Beside {
    let kind = if stamping & NEWER != 0 { net::SO_TIMESTAMPING_NEW } else { net::SO_TIMESTAMPING_OLD };
    (net::SOL_SOCKET, kind, [pair(time.sec, time.nsec), alloc::vec![0; 32]].concat())
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let now = Timestamp::now();
    (now.sec.cast_unsigned()) * 1_000_000_000 + u64::from(now.nsec)
}
