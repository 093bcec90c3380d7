//! Options that few sockets have: filters, the time of arrival, and numbers that are remembered and have no meaning here.

use crate::Options;
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
    numbers: Vec<(u32, i32)>,
}

/// Numbers that are remembered, what they are at first, and whether it takes a right to set them.
const REMEMBERED: [(u32, i32, bool); 8] = [
    (net::SO_MARK, 0, true),
    (net::SO_BUSY_POLL, 0, true),
    (net::SO_PREFER_BUSY_POLL, 0, true),
    (net::SO_BUSY_POLL_BUDGET, 8, true),
    // The most there is: no limit.
    (net::SO_MAX_PACING_RATE, -1, false),
    (net::SO_INCOMING_CPU, -1, false),
    (net::SO_BINDTOIFINDEX, 0, false),
    (net::SO_BUF_LOCK, 0, false),
];

/// Flags of `SO_TIMESTAMPING`: software's stamps, of what arrives; all there are.
const OF_ARRIVALS: u32 = 1 << 3;
const SOFTWARE: u32 = 1 << 4;
const ALL_STAMPING: u32 = (1 << 16) - 1;
/// The option was set by its newer number.
const NEWER: u32 = 1 << 31;

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
        if known(option)?.2 && !privileged && value > self.remembered(option)? {
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

    pub(crate) fn set_stamping(&self, option: u32, flags: i32) -> Result<()> {
        let flags = flags.cast_unsigned();
        if flags & !ALL_STAMPING != 0 {
            return Err(Errno::EINVAL);
        }
        let newer = if option == net::SO_TIMESTAMPING_NEW { NEWER } else { 0 };
        self.stamping.store(flags | newer, Ordering::Relaxed);
        Ok(())
    }

    /// The flags of `SO_TIMESTAMPING`.
    #[must_use]
    pub fn stamping(&self) -> u32 {
        self.stamping.load(Ordering::Relaxed) & !NEWER
    }

    /// The time, nanoseconds since 1970, if what arrives now has to be stamped with it; else 0.
    pub(crate) fn arrival(&self) -> u64 {
        let stamps = self.stamp.load(Ordering::Relaxed) != 0 || self.stamping.load(Ordering::Relaxed) != 0;
        if stamps { now() } else { 0 }
    }

    /// The control messages that tell when something arrived. What was there before anybody asked arrives now.
    pub(crate) fn stamps(&self, arrival: u64) -> Vec<Beside> {
        let (stamp, stamping) = (self.stamp.load(Ordering::Relaxed), self.stamping.load(Ordering::Relaxed));
        let mut told = Vec::new();
        if stamp | stamping == 0 {
            return told;
        }
        let time = Timestamp::from_ns(if arrival == 0 { now() } else { arrival });
        let pair = |fraction: u32| [time.sec.to_ne_bytes(), i64::from(fraction).to_ne_bytes()].concat();
        match stamp {
            0 => {}
            net::SO_TIMESTAMP_OLD | net::SO_TIMESTAMP_NEW => told.push((net::SOL_SOCKET, stamp, pair(time.nsec / 1000))),
            _ => told.push((net::SOL_SOCKET, stamp, pair(time.nsec))),
        }
        if stamping & (OF_ARRIVALS | SOFTWARE) == OF_ARRIVALS | SOFTWARE {
            let kind = if stamping & NEWER != 0 { net::SO_TIMESTAMPING_NEW } else { net::SO_TIMESTAMPING_OLD };
            // Three stamps: software's, one that is not used any more, hardware's.
            told.push((net::SOL_SOCKET, kind, [pair(time.nsec), alloc::vec![0; 32]].concat()));
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

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = Timestamp::now();
    (now.sec.cast_unsigned()) * 1_000_000_000 + u64::from(now.nsec)
}
