//! The last bytes of a stream of an instance, kept in the supervisor's memory, and those who read
//! it.
//!
//! Positions count bytes since the stream began. While a reader with *pressure* is attached,
//! nothing it has not read is dropped: the ring behind fills up, and the instance waits. Without
//! one, the oldest bytes go.
//!
//! Bytes are kept in pages. Each log has one page of its own from its beginning, so it can always
//! take something in. What all logs have beyond that has a limit in sum ([`set_limit`]): a log that
//! gets no further page uses its oldest one again, and those of instances that have ended are cut
//! when the sum comes near the limit ([`is_near_limit`], [`StreamLog::cut`]).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use ring::Consumer;
use task::Mutex;

/// Number of bytes of a stream that are kept.
pub(crate) const CAPACITY: usize = 256 << 10;
/// Number of bytes that stay of a stream whose instance has ended when memory for logs is short.
const LAST_WORDS: u64 = 4096;

/// Pages of all logs, and the limit on them.
static PAGES: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Limits the memory of all logs together, to so many bytes; the first page of each log comes on
/// top.
pub(crate) fn set_limit(bytes: u64) {
    LIMIT.store(bytes / PAGE_SIZE as u64, Ordering::Relaxed);
}

/// Whether all logs together have more than three quarters of what they may have.
pub(crate) fn is_near_limit() -> bool {
    PAGES.load(Ordering::Relaxed) > LIMIT.load(Ordering::Relaxed) / 4 * 3
}

/// A page with bytes of a stream, counted in [`PAGES`].
#[derive(Debug)]
struct LogPage(Vec<u8>);

impl LogPage {
    /// Makes a page whatever the limit is.
    fn new() -> Result<Self, Errno> {
        let page = Self(fallible::zeroed(PAGE_SIZE)?);
        PAGES.fetch_add(1, Ordering::Relaxed);
        Ok(page)
    }

    /// Makes a page if the limit allows it and there is memory.
    fn within_limit() -> Option<Self> {
        let below = PAGES.load(Ordering::Relaxed) < LIMIT.load(Ordering::Relaxed);
        below.then(Self::new)?.ok()
    }
}

impl Drop for LogPage {
    fn drop(&mut self) {
        PAGES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Last bytes of an instance's output stream, with its readers.
#[derive(Debug)]
pub(crate) struct StreamLog {
    /// The bytes from `start` to `end`; the first page holds the one at `start`.
    pages: VecDeque<LogPage>,
    /// A page for what comes.
    spare: Option<LogPage>,
    /// Position of the first byte kept.
    start: u64,
    /// Position behind the newest byte.
    end: u64,
    /// The stream is over: nothing will be added.
    pub(crate) closed: bool,
    /// Bytes in the ring wait for a reader with pressure.
    stalled: bool,
    /// Positions of readers with pressure.
    blocking_readers: BTreeMap<u64, u64>,
    next_reader: u64,
}

/// Number of the page that a position is in.
fn page_of(position: u64) -> u64 {
    position / PAGE_SIZE as u64
}

impl StreamLog {
    /// An empty log.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut pages = VecDeque::new();
        // One more than a log as long as it may be: it need not begin where a page does.
        pages
            .try_reserve(CAPACITY / PAGE_SIZE + 1)
            .map_err(|_| Errno::ENOMEM)?;
        Ok(Self {
            pages,
            spare: Some(LogPage::new()?),
            start: 0,
            end: 0,
            closed: false,
            stalled: false,
            blocking_readers: BTreeMap::new(),
            next_reader: 0,
        })
    }

    /// Position of the oldest byte kept.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Position behind the newest byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Position of the first byte that a reader with pressure has not read.
    fn unread(&self) -> Option<u64> {
        let slowest = *self.blocking_readers.values().min()?;
        Some(slowest.clamp(self.start, self.end))
    }

    /// Number of bytes that may be added without dropping unread ones of a reader with pressure, if
    /// there is memory for them.
    pub(crate) fn room(&self) -> usize {
        self.unread().map_or(CAPACITY, |unread| {
            CAPACITY.saturating_sub((self.end - unread) as usize)
        })
    }

    /// Where the next bytes are to be put, for [`Self::commit`]: as many as fit into a page, or
    /// none, if for `extent` unread ones of a reader with pressure would have to go.
    fn space(&mut self, extent: DrainExtent) -> &mut [u8] {
        let room = match extent {
            DrainExtent::LogRoom => self.room(),
            DrainExtent::All => PAGE_SIZE,
        };
        let last = (page_of(self.end) - page_of(self.start)) as usize;
        self.stalled = room == 0 || last == self.pages.len() && !self.add_page(extent);
        if self.stalled {
            return &mut [];
        }
        // Again: the oldest page may have become the last one.
        let last = (page_of(self.end) - page_of(self.start)) as usize;
        let from = self.end as usize % PAGE_SIZE;
        &mut self.pages[last].0[from..PAGE_SIZE.min(from + room)]
    }

    /// Adds a page behind the others: a fresh one, or the oldest, whose bytes go.
    fn add_page(&mut self, extent: DrainExtent) -> bool {
        let page = self
            .spare
            .take()
            .or_else(LogPage::within_limit)
            .or_else(|| {
                let next = (page_of(self.start) + 1) * PAGE_SIZE as u64;
                let kept = match extent {
                    DrainExtent::LogRoom => self.unread().unwrap_or(u64::MAX),
                    DrainExtent::All => u64::MAX,
                };
                if next <= kept {
                    self.discard(next.min(self.end));
                }
                self.spare.take()
            });
        let reserved = page.is_some() && self.pages.try_reserve(1).is_ok();
        self.pages.extend(page.filter(|_| reserved));
        reserved
    }

    /// Adds `count` bytes that were put into [`Self::space`], and drops the oldest beyond the
    /// capacity; of those that a reader with pressure has not read, only those beyond twice the
    /// capacity.
    fn commit(&mut self, count: usize) {
        self.end += count as u64;
        let beyond = |bytes: usize| self.end.saturating_sub(bytes as u64);
        let unread = self.unread().unwrap_or(u64::MAX);
        self.discard(beyond(CAPACITY).min(unread).max(beyond(2 * CAPACITY)));
    }

    /// Drops the bytes before `start`, which is no further than the end. Keeps one of the pages.
    fn discard(&mut self, start: u64) {
        while page_of(self.start) < page_of(start) {
            self.spare = self.pages.pop_front().or(self.spare.take());
            self.start = (page_of(self.start) + 1) * PAGE_SIZE as u64;
        }
        self.start = self.start.max(start);
    }

    /// Drops all but the last words, to make room for logs of others; what a reader with pressure
    /// has not read stays.
    pub(crate) fn cut(&mut self) {
        let oldest = self.end.saturating_sub(LAST_WORDS);
        self.discard(oldest.min(self.unread().unwrap_or(u64::MAX)));
        self.spare = None;
    }

    /// Adds bytes; the oldest go as far as they must, whoever has not read them.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space(DrainExtent::All);
            let (now, later) = bytes.split_at(bytes.len().min(space.len()));
            space[..now.len()].copy_from_slice(now);
            if now.is_empty() {
                return;
            }
            self.commit(now.len());
            bytes = later;
        }
    }

    /// Copies what is there from `*position` on, or from the oldest byte kept if that is gone, and
    /// moves the position on.
    pub(crate) fn read(&self, position: &mut u64, buf: &mut [u8]) -> usize {
        let from = (*position).max(self.start);
        let mut at = from;
        while at < self.end && ((at - from) as usize) < buf.len() {
            let page = &self.pages[(page_of(at) - page_of(self.start)) as usize].0;
            let part = &page[at as usize % PAGE_SIZE..];
            let to = &mut buf[(at - from) as usize..];
            let count = part.len().min(to.len()).min((self.end - at) as usize);
            to[..count].copy_from_slice(&part[..count]);
            at += count as u64;
        }
        *position = at;
        (at - from) as usize
    }

    /// Reads like [`Self::read`], and moves a reader with pressure on, if `key` is one's. Also
    /// returns whether the instance may have waited for that, so that the ring is to be looked at
    /// again.
    pub(crate) fn read_with_backpressure(
        &mut self,
        position: &mut u64,
        key: Option<u64>,
        buf: &mut [u8],
    ) -> (usize, bool) {
        let count = self.read(position, buf);
        if let Some(key) = key {
            self.advance(key, *position);
        }
        (count, count > 0 && core::mem::take(&mut self.stalled))
    }

    /// Attaches a reader with pressure, at `position`.
    pub(crate) fn attach(&mut self, position: u64) -> u64 {
        let key = self.next_reader;
        self.next_reader += 1;
        self.blocking_readers.insert(key, position);
        key
    }

    /// A reader with pressure has read up to `position`.
    pub(crate) fn advance(&mut self, key: u64, position: u64) {
        if let Some(at) = self.blocking_readers.get_mut(&key) {
            *at = position;
        }
    }

    /// Detaches a reader with pressure.
    pub(crate) fn detach(&mut self, key: u64) {
        self.blocking_readers.remove(&key);
    }
}

/// Outcome of draining a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DrainOutcome {
    /// Whether bytes were added to the log.
    pub(crate) grown: bool,
    /// The ring may hold more, and nobody will ring for it.
    pub(crate) more: bool,
    /// The ring was full, and its writer may wait for room.
    pub(crate) made_room: bool,
}

/// Amount that is moved from a ring into a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainExtent {
    /// As far as the log has room. Unless there is more, or no room, the writer rings for what
    /// comes next.
    LogRoom,
    /// All there is: the last time.
    All,
}

/// Bytes that were taken out of a ring, and what that means for its writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Popped {
    count: usize,
    made_room: bool,
}

impl Popped {
    /// Nothing: the ring is gone.
    pub(crate) const NOTHING: Self = Self {
        count: 0,
        made_room: false,
    };
}

/// Takes what fits into `buf` out of a ring. If nothing is there, the writer rings when there is.
pub(crate) fn pop(consumer: &mut Consumer<'_>, buf: &mut [u8]) -> Popped {
    let mut count = consumer.pop(buf);
    if count == 0 && !buf.is_empty() {
        consumer.want_doorbell();
        count = consumer.pop(buf);
    }
    Popped {
        count,
        made_room: consumer.made_room(count),
    }
}

/// Moves what is in a ring of `size` bytes into a log, by `pop`, which is called for at most a page
/// at a time; at most as much as the ring holds.
pub(crate) fn drain(
    size: usize,
    log: &Mutex<StreamLog>,
    extent: DrainExtent,
    mut pop: impl FnMut(&mut [u8]) -> Popped,
) -> DrainOutcome {
    let mut drained = DrainOutcome::default();
    let mut budget = size;
    while budget > 0 {
        let mut log = log.lock();
        let space = log.space(extent);
        let room = space.len().min(budget);
        let Popped { count, made_room } = pop(&mut space[..room]);
        drained.made_room |= made_room;
        log.commit(count);
        drained.grown |= count > 0;
        budget -= count;
        if count == 0 {
            break;
        }
    }
    drained.more = budget == 0;
    drained
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use abi::window::RingHeader;
    use ring::Producer;

    use super::*;

    fn fill(
        log: &Mutex<StreamLog>,
        consumer: &mut Consumer<'_>,
        size: usize,
        extent: DrainExtent,
    ) -> DrainOutcome {
        drain(size, log, extent, |buf| pop(consumer, buf))
    }

    #[test]
    fn a_reader_that_does_not_read_makes_the_ring_wait_and_not_the_history_grow() {
        let (header, area) = (RingHeader::new(), [const { AtomicU8::new(0) }; 8]);
        let log = Mutex::new(StreamLog::new().unwrap());
        let key = log.lock().attach(0);
        log.lock().push(&vec![1; CAPACITY - 2]);
        assert_eq!(Producer::new(&header, &area).push(b"12345"), 5);
        let mut consumer = Consumer::resume(&header, &area, 0);
        assert!(fill(&log, &mut consumer, area.len(), DrainExtent::LogRoom).grown);
        assert!(!fill(&log, &mut consumer, area.len(), DrainExtent::LogRoom).grown);
        assert_eq!(log.lock().end(), CAPACITY as u64);
        // What an instance that has ended left is taken in as a whole, which is no more than its
        // ring holds.
        assert!(fill(&log, &mut consumer, area.len(), DrainExtent::All).grown);
        assert_eq!(log.lock().end(), CAPACITY as u64 + 3);
        log.lock().detach(key);
    }

    #[test]
    fn the_newest_are_kept() {
        let mut log = StreamLog::new().unwrap();
        log.push(&vec![1; CAPACITY - 1]);
        log.push(&[2, 3]);
        assert_eq!((log.start(), log.end()), (1, CAPACITY as u64 + 1));
        let (mut position, mut buf) = (0, [0; 4]);
        assert_eq!((log.read(&mut position, &mut buf), position), (4, 5));
        position = log.end() - 2;
        assert_eq!(log.read(&mut position, &mut buf), 2);
        assert_eq!(&buf[..2], [2, 3]);
        assert_eq!(log.read(&mut position, &mut buf), 0);
        log.push(&vec![7; CAPACITY + 5]);
        assert_eq!(log.end() - log.start(), CAPACITY as u64);
    }

    #[test]
    fn pressure_holds_what_was_not_read() {
        let mut log = StreamLog::new().unwrap();
        assert_eq!(log.room(), CAPACITY);
        log.push(&[0; 100]);
        let reader = log.attach(log.start());
        assert_eq!(log.room(), CAPACITY - 100);
        let mut position = 0;
        log.read(&mut position, &mut [0; 60]);
        log.advance(reader, position);
        assert_eq!(log.room(), CAPACITY - 40);
        log.push(&[0; CAPACITY]);
        assert_eq!(log.start(), position, "the reader lost something");
        assert_eq!(log.room(), 0);
        log.detach(reader);
        assert_eq!(log.room(), CAPACITY);
        log.push(&[0]);
        assert_eq!(log.end() - log.start(), CAPACITY as u64);
    }

    /// Byte of the tests' stream at a position.
    fn byte(position: u64) -> u8 {
        (position % 251) as u8
    }

    #[test]
    fn bytes_stay_in_order_over_pages() {
        let mut log = StreamLog::new().unwrap();
        let (mut position, mut at) = (0, 0);
        for len in [1, 4095, 1, 4096, 5000, 9000, CAPACITY, 3, 4093]
            .into_iter()
            .cycle()
            .take(60)
        {
            let bytes: Vec<u8> = (at..at + len as u64).map(byte).collect();
            log.push(&bytes);
            at += len as u64;
            assert_eq!(log.end(), at);
            assert!(log.end() - log.start() <= CAPACITY as u64);
            assert!(log.pages.len() <= CAPACITY / PAGE_SIZE + 1);
            let mut buf = vec![0; len / 2 + 7];
            let count = log.read(&mut position, &mut buf) as u64;
            assert!(
                (position - count..position)
                    .map(byte)
                    .eq(buf[..count as usize].iter().copied())
            );
        }
        log.cut();
        assert_eq!(log.end() - log.start(), LAST_WORDS);
        assert!(log.pages.len() <= 2 && log.spare.is_none());
        let reader = log.attach(log.start());
        log.cut();
        log.push(&[0; 9000]);
        log.cut();
        assert_eq!(
            log.end() - log.start(),
            LAST_WORDS + 9000,
            "a reader lost what it had not read"
        );
        log.detach(reader);
    }

    /// The limit is for all logs of a process: the test has one to itself.
    #[test]
    fn logs_without_a_further_page_use_their_oldest_again() {
        let me = "logs_without_a_further_page_use_their_oldest_again";
        if std::env::var_os("LIMITED").is_none() {
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("stream_log::tests::{me}")])
                .env("LIMITED", "1")
                .status();
            assert!(status.unwrap().success());
            return;
        }
        set_limit(4 * PAGE_SIZE as u64);
        let mut logs = [(); 5].map(|()| StreamLog::new().unwrap());
        assert!(is_near_limit());
        for log in &mut logs {
            log.push(&(0..20_000).map(byte).collect::<Vec<u8>>());
            assert_eq!(log.end(), 20_000);
            let (mut position, mut buf) = (0, [0; PAGE_SIZE]);
            let count = log.read(&mut position, &mut buf) as u64;
            assert_eq!((position, count), (20_000, 20_000 % PAGE_SIZE as u64));
            assert!(
                (20_000 - count..20_000)
                    .map(byte)
                    .eq(buf[..count as usize].iter().copied())
            );
        }
        // With a reader, the ring waits instead, until that has read a page.
        let log = &mut logs[0];
        log.attach(log.start());
        let (header, area) = (RingHeader::new(), [const { AtomicU8::new(0) }; 8192]);
        let log = Mutex::new(std::mem::replace(log, StreamLog::new().unwrap()));
        assert_eq!(Producer::new(&header, &area).push(&[7; 8192]), 8192);
        let mut consumer = Consumer::resume(&header, &area, 0);
        let _ = fill(&log, &mut consumer, area.len(), DrainExtent::LogRoom);
        assert_eq!(log.lock().end(), 5 * PAGE_SIZE as u64);
        let mut position = log.lock().start();
        let (_, waits) = log
            .lock()
            .read_with_backpressure(&mut position, Some(0), &mut [0; 9000]);
        assert!(waits && position == 5 * PAGE_SIZE as u64);
        let _ = fill(&log, &mut consumer, area.len(), DrainExtent::LogRoom);
        assert_eq!(log.lock().end(), 6 * PAGE_SIZE as u64);
    }
}
