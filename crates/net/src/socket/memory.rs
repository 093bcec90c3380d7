//! Memory of all sockets of a protocol together (`tcp_mem`, `udp_mem`): the pages that what waits
//! in their buffers takes, counted and limited as Linux 6.1 does (`__sk_mem_raise_allocated`).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vm::PAGE_SIZE;

use super::core_stack::CoreStack;
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

/// The pages of one buffer. Its bytes may become more and less within them without anybody being
/// asked.
pub(crate) struct BufferMemory {
    of: Option<(Arc<CoreStack>, Transport)>,
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
            of: None,
            pages: 0,
            covered: usize::MAX,
            trim_below: 0,
        }
    }
}

impl BufferMemory {
    /// The memory of an empty buffer of a protocol.
    pub(crate) fn new(stack: Arc<CoreStack>, protocol: Transport) -> Self {
        stack
            .memory(protocol)
            .buffers
            .fetch_add(1, Ordering::Relaxed);
        Self {
            of: Some((stack, protocol)),
            pages: 0,
            covered: 0,
            trim_below: 0,
        }
    }

    /// Whether there is memory for so many bytes, which may take pages for them.
    #[inline]
    pub(crate) fn covers(&mut self, bytes: usize) -> bool {
        bytes <= self.covered || self.cover(0, bytes) == bytes
    }

    /// Makes sure of memory for so many bytes behind the `has` that are there; returns for how many
    /// of them there is. Of TCP there always is a page for the first ones.
    #[inline(never)]
    pub(crate) fn cover(&mut self, has: usize, more: usize) -> usize {
        let then = (has + more).div_ceil(PAGE_SIZE);
        if let Some((stack, protocol)) = &self.of {
            let memory = stack.memory(*protocol);
            let missing = then.saturating_sub(self.pages);
            if memory.take(missing, then, *protocol, stack.sysctls.memory(*protocol)) {
                self.pages += missing;
            } else if self.pages == 0 && *protocol == Transport::Tcp {
                // Who sends waits for the peer, which needs something to receive.
                memory.pages.fetch_add(1, Ordering::Relaxed);
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
        if let Some((stack, protocol)) = &self.of
            && keep < self.pages
        {
            stack.memory(*protocol).give(self.pages - keep);
            self.pages = keep;
            self.cover_pages();
        }
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        if let Some((stack, protocol)) = &self.of {
            let memory = stack.memory(*protocol);
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
        let mut buffer = BufferMemory::new(stack.clone(), Transport::Tcp);
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
        let new = || BufferMemory::new(stack.clone(), Transport::Tcp);
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
        let new = || BufferMemory::new(stack.clone(), Transport::Udp);
        let (mut first, mut second, mut third) = (new(), new(), new());
        assert_eq!(first.cover(0, 2 * PAGE_SIZE), 2 * PAGE_SIZE);
        assert_eq!(second.cover(0, PAGE_SIZE + 1), 0);
        assert_eq!(second.cover(0, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(third.cover(0, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(new().cover(0, 1), 0);
    }
}
