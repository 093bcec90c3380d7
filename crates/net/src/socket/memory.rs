//! Memory of sockets' buffers, in pages: that of all sockets of a protocol together (`tcp_mem`,
//! `udp_mem`), counted and limited as Linux 6.1 does (`__sk_mem_raise_allocated`), and that of all
//! sockets of a user (`net.core.socket_user_pages`; FreeBSD's `RLIMIT_SBSIZE`).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fs::charge::{Charge, Resource};
use vm::PAGE_SIZE;

use super::core_stack::CoreStack;
use super::options::SocketOptions;
use super::sysctl::Sysctl;

/// Bytes of a buffer that are had under pressure, too: Linux' `tcp_wmem[0]`, `udp_rmem_min`.
const LEAST: usize = 4096;

/// A protocol whose sockets' memory is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// Pages of all sockets of one protocol.
#[derive(Default)]
pub(crate) struct ProtocolMemory {
    pages: AtomicUsize,
    /// The buffers that have pages, or may.
    buffers: AtomicUsize,
    /// More than the second limit was in use, and not yet less than the first.
    pressure: AtomicBool,
}

impl ProtocolMemory {
    /// The pages in use.
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Whether buffers should not grow: more than the second limit was in use, and not yet less
    /// than the first.
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
    }

    /// Takes pages for a buffer, if the limits allow that it has so many then.
    fn take(&self, more: usize, then: usize, protocol: Transport, limits: &Sysctl) -> bool {
        let all = self.pages.fetch_add(more, Ordering::Relaxed) + more;
        let allowed = self.allow(all, then, protocol, limits.limits());
        if !allowed {
            self.give(more);
        }
        allowed
    }

    fn allow(&self, all: usize, then: usize, protocol: Transport, limits: [usize; 3]) -> bool {
        let [low, pressure, high] = limits;
        if all <= low {
            self.pressure.store(false, Ordering::Relaxed);
            return true;
        }
        if all > pressure {
            self.pressure.store(true, Ordering::Relaxed);
        }
        if all > high {
            return false;
        }
        if then * PAGE_SIZE <= LEAST {
            return true;
        }
        // UDP knows no pressure: beyond the first limit each socket has the least.
        protocol == Transport::Tcp
            && (!self.pressure.load(Ordering::Relaxed)
                || high > self.buffers.load(Ordering::Relaxed) * then)
    }

    fn give(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// Pages of a user's buffers that are charged at a time: a buffer that grows and shrinks with the
/// traffic does not ask for each of them. The first page of a buffer is charged by itself.
const CHARGED_AT_ONCE: usize = 16;

/// The payer of the pages of a buffer.
struct Payer {
    stack: Arc<CoreStack>,
    /// The protocol, if it has limits.
    protocol: Option<Transport>,
    /// The user, unless it is the superuser.
    user: Option<Charge>,
}

impl Payer {
    /// Takes pages for a buffer that has `then` with them. The first page of a buffer is not
    /// refused for its user's sake: as many sockets as he may have can have one.
    fn take(&mut self, more: usize, then: usize) -> bool {
        if let Some(user) = &mut self.user
            && user.amount() < then
        {
            let most = match self.stack.sysctls.socket_user_pages.as_usize() {
                0 => usize::MAX,
                most => most,
            };
            let charged = if then == 1 {
                user.resize(1, usize::MAX)
            } else {
                user.resize(then.next_multiple_of(CHARGED_AT_ONCE), most) || user.resize(then, most)
            };
            if !charged {
                return false;
            }
        }
        let taken = self.protocol.is_none_or(|protocol| {
            let limits = self.stack.sysctls.memory(protocol);
            self.stack
                .memory(protocol)
                .take(more, then, protocol, limits)
        });
        if let Some(user) = self.user.as_mut().filter(|_| !taken) {
            user.resize(then - more, 0);
        }
        taken
    }

    /// Takes the first page of a buffer whatever the protocol's limits say.
    fn take_first(&self) {
        if let Some(protocol) = self.protocol {
            let memory = self.stack.memory(protocol);
            memory.pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives pages back of a buffer that has `rest` then.
    fn give(&mut self, pages: usize, rest: usize) {
        if let Some(protocol) = self.protocol {
            self.stack.memory(protocol).give(pages);
        }
        if let Some(user) = &mut self.user
            && rest + 2 * CHARGED_AT_ONCE < user.amount()
        {
            user.resize(rest, 0);
        }
    }
}

/// The pages of one buffer. Its bytes may become more and less within them without anybody being
/// asked.
pub(crate) struct BufferMemory {
    payer: Option<Payer>,
    pages: usize,
    /// The bytes that need no further page.
    covered: usize,
    /// With fewer bytes there are pages to give back.
    trim_below: usize,
}

impl Default for BufferMemory {
    /// The memory of a buffer that nobody limits.
    fn default() -> Self {
        Self {
            payer: None,
            pages: 0,
            covered: usize::MAX,
            trim_below: 0,
        }
    }
}

impl BufferMemory {
    /// The memory of an empty buffer of a protocol, for which the socket's owner pays.
    pub(crate) fn new(options: &SocketOptions, protocol: Transport) -> Self {
        Self::paid_by(options.stack().clone(), Some(protocol), charge_for(options))
    }

    /// The memory of an empty buffer of a protocol, for which no user pays.
    pub(crate) fn of_protocol(stack: Arc<CoreStack>, protocol: Transport) -> Self {
        Self::paid_by(stack, Some(protocol), None)
    }

    /// The memory of an empty buffer that no protocol limits, for which the socket's owner pays.
    pub(crate) fn of_owner(options: &SocketOptions) -> Self {
        match charge_for(options) {
            None => Self::default(),
            user => Self::paid_by(options.stack().clone(), None, user),
        }
    }

    fn paid_by(stack: Arc<CoreStack>, protocol: Option<Transport>, user: Option<Charge>) -> Self {
        if let Some(protocol) = protocol {
            let buffers = &stack.memory(protocol).buffers;
            buffers.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            payer: Some(Payer {
                stack,
                protocol,
                user,
            }),
            pages: 0,
            covered: 0,
            trim_below: 0,
        }
    }

    /// Has the owner of another socket pay for a buffer that has held nothing yet.
    pub(crate) fn set_owner(&mut self, options: &SocketOptions) {
        if self.pages == 0
            && let Some(payer) = &mut self.payer
        {
            payer.user = charge_for(options);
        }
    }

    /// Whether there is memory for so many bytes, which may take pages for them.
    #[inline]
    pub(crate) fn covers(&mut self, bytes: usize) -> bool {
        bytes <= self.covered || self.cover(0, bytes) == bytes
    }

    /// Makes sure of memory for so many bytes behind the `has` that are there; returns for how many
    /// of them there is. But for UDP there always is a page for the first ones.
    #[inline(never)]
    pub(crate) fn cover(&mut self, has: usize, more: usize) -> usize {
        let then = (has + more).div_ceil(PAGE_SIZE);
        if let Some(payer) = &mut self.payer {
            let missing = then.saturating_sub(self.pages);
            if payer.take(missing, then) {
                self.pages += missing;
            } else if self.pages == 0 && payer.protocol != Some(Transport::Udp) {
                // Who sends waits for the peer, which needs something to receive.
                payer.take_first();
                self.pages = 1;
            }
            self.cover_pages();
        }
        more.min(self.covered.saturating_sub(has))
    }

    /// The buffer has other pages than before.
    fn cover_pages(&mut self) {
        self.covered = self.pages * PAGE_SIZE;
        self.trim_below = match self.pages {
            0 | 1 => 0,
            pages => (pages - 2) * PAGE_SIZE + 1,
        };
    }

    /// Gives back what exceeds so many bytes by more than a page.
    #[inline]
    pub(crate) fn trim(&mut self, has: usize) {
        if has < self.trim_below {
            self.trim_slow(has);
        }
    }

    #[cold]
    #[inline(never)]
    fn trim_slow(&mut self, has: usize) {
        let keep = has.div_ceil(PAGE_SIZE) + 1;
        if let Some(payer) = &mut self.payer
            && keep < self.pages
        {
            payer.give(self.pages - keep, keep);
            self.pages = keep;
            self.cover_pages();
        }
    }
}

/// The charge for pages of a socket's owner, of whom there are none yet; none for the superuser.
fn charge_for(options: &SocketOptions) -> Option<Charge> {
    let user = options.owner();
    (user != 0).then_some(Charge::empty(user, Resource::SocketPages))
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        if let Some(payer) = &mut self.payer
            && let Some(protocol) = payer.protocol
        {
            let memory = payer.stack.memory(protocol);
            memory.give(self.pages);
            memory.buffers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(tcp: &[u8], udp: &[u8]) -> Arc<CoreStack> {
        let stack = CoreStack::for_tests();
        stack.sysctls.tcp_mem.set(tcp).unwrap();
        stack.sysctls.udp_mem.set(udp).unwrap();
        stack
    }

    #[test]
    fn pages_are_counted_and_given_back() {
        let stack = stack(b"10 20 30", b"10 20 30");
        let mut buffer = BufferMemory::of_protocol(stack.clone(), Transport::Tcp);
        assert_eq!(buffer.cover(0, 9000), 9000);
        assert_eq!(stack.memory(Transport::Tcp).pages(), 3);
        assert_eq!(buffer.cover(9000, 3288), 3288, "to the end of the third");
        assert_eq!(stack.memory(Transport::Tcp).pages(), 3);
        buffer.trim(0);
        assert_eq!(stack.memory(Transport::Tcp).pages(), 1);
        drop(buffer);
        assert_eq!(stack.memory(Transport::Tcp).pages(), 0);
        assert_eq!(BufferMemory::default().cover(1 << 40, 1 << 40), 1 << 40);
    }

    #[test]
    fn tcp_has_its_share_under_pressure_and_a_page_beyond_the_limit() {
        let stack = stack(b"4 8 12", b"1 1 1");
        let new = || BufferMemory::of_protocol(stack.clone(), Transport::Tcp);
        let (mut first, mut second) = (new(), new());
        assert_eq!(
            first.cover(0, 9 * PAGE_SIZE),
            PAGE_SIZE,
            "nine of twelve are no share of two"
        );
        assert_eq!(first.cover(0, 5 * PAGE_SIZE), 5 * PAGE_SIZE);
        assert_eq!(second.cover(0, 5 * PAGE_SIZE), 5 * PAGE_SIZE);
        assert_eq!(first.cover(5 * PAGE_SIZE, 3 * PAGE_SIZE), 0);
        stack.sysctls.tcp_mem.set(b"1 1 1").unwrap();
        let mut third = new();
        assert_eq!(third.cover(0, 100), 100, "the first page");
        assert_eq!(third.cover(100, 2 * PAGE_SIZE), PAGE_SIZE - 100);
        assert!(!third.covers(PAGE_SIZE + 1));
    }

    #[test]
    fn udp_has_the_least_beyond_the_first_limit_and_nothing_beyond_the_last() {
        let stack = stack(b"1 1 1", b"2 3 4");
        let new = || BufferMemory::of_protocol(stack.clone(), Transport::Udp);
        let (mut first, mut second, mut third) = (new(), new(), new());
        assert_eq!(first.cover(0, 2 * PAGE_SIZE), 2 * PAGE_SIZE);
        assert_eq!(second.cover(0, PAGE_SIZE + 1), 0);
        assert_eq!(second.cover(0, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(third.cover(0, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(new().cover(0, 1), 0);
    }

    #[test]
    fn a_user_has_so_many_pages_and_the_first_of_each_buffer() {
        const USER: u32 = 4_000_000_101;
        let stack = stack(b"1000 1000 1000", b"1000 1000 1000");
        stack.sysctls.socket_user_pages.set(b"40").unwrap();
        let of = |user| BufferMemory::of_owner(&SocketOptions::of_owner(stack.clone(), user));
        let charged = |memory: &BufferMemory| {
            let payer = memory.payer.as_ref().unwrap();
            payer.user.as_ref().unwrap().amount()
        };
        let (mut first, mut second) = (of(USER), of(USER));
        assert_eq!(first.cover(0, 20 * PAGE_SIZE), 20 * PAGE_SIZE);
        assert_eq!(charged(&first), 32, "whole steps");
        assert_eq!(second.cover(0, 8 * PAGE_SIZE), 8 * PAGE_SIZE, "to the last");
        assert_eq!(charged(&second), 8, "no step is left");
        assert_eq!(second.cover(8 * PAGE_SIZE, 1), 0);
        let mut third = of(USER);
        assert_eq!(third.cover(0, 2 * PAGE_SIZE), PAGE_SIZE, "the first");
        assert_eq!(of(USER + 1).cover(0, 30 * PAGE_SIZE), 30 * PAGE_SIZE);
        assert_eq!(of(0).cover(0, 1 << 30), 1 << 30, "the superuser");
        drop(first);
        assert_eq!(second.cover(8 * PAGE_SIZE, PAGE_SIZE), PAGE_SIZE);
        stack.sysctls.socket_user_pages.set(b"0").unwrap();
        assert_eq!(second.cover(0, 1 << 30), 1 << 30, "no limit");
        second.trim(0);
        assert_eq!((second.pages, charged(&second)), (1, 1));
    }

    #[test]
    fn what_the_protocol_refuses_is_not_charged_to_the_user() {
        const USER: u32 = 4_000_000_103;
        let stack = stack(b"4 4 4", b"4 4 4");
        stack.sysctls.socket_user_pages.set(b"10").unwrap();
        let options = SocketOptions::of_owner(stack.clone(), USER);
        let mut buffer = BufferMemory::new(&options, Transport::Udp);
        assert_eq!(buffer.cover(0, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(buffer.cover(PAGE_SIZE, 5 * PAGE_SIZE), 0);
        let mut other = BufferMemory::of_owner(&options);
        assert_eq!(other.cover(0, 9 * PAGE_SIZE), 9 * PAGE_SIZE);
        assert_eq!(other.cover(9 * PAGE_SIZE, 1), 0);
        drop(buffer);
        assert_eq!(other.cover(9 * PAGE_SIZE, 1), 1);
        assert_eq!(stack.memory(Transport::Udp).pages(), 0);
    }
}
