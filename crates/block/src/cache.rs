//! The page cache: pages of a block device, or of a file on one, that are in memory.

mod direct;
mod file;
mod run;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::{Range, RangeBounds};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
pub use direct::DirectWrite;
pub use file::zero;
pub use run::CachedRun;
use task::{Condvar, Mutex, MutexGuard};
use vm::Page;

use crate::writeback::{self, CacheOwner};
use crate::{BlockDevice, ErrorCursor, ErrorSequence, Operation, Request, Transfer, account};

/// Most pages of one request: 128 KiB, which is also how far is read ahead (Linux `read_ahead_kb`).
const MAX_PAGES: usize = 32;
const PAGE: u64 = PAGE_SIZE as u64;

/// How far is read ahead, in bytes.
pub const READ_AHEAD: u64 = MAX_PAGES as u64 * PAGE;

/// Pages that a request has, lent to the device.
type Pages = ArrayVec<Page, MAX_PAGES>;

/// State of a page in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The device fills it; nobody looks at it before that.
    Filling,
    /// The device has the same bytes.
    Clean,
    /// Newer than what the device has, since this time (ns).
    Dirty(u64),
    /// The device is writing it; programs have written to it again since this time (ns), if any.
    Writing(Option<u64>),
}

struct Cached {
    page: Page,
    state: State,
    /// Whether it was used since the last search for pages to give back.
    is_referenced: bool,
    /// Of a file's: whether there are blocks for all of it, so that a mapping may change it.
    is_prepared: bool,
}

/// Further pages that are brought in with one that is not there.
#[derive(Clone, Copy)]
enum ReadAhead {
    /// Wanted pages, up to this one, and more if the page before is there: somebody reads on.
    Sequential(u64),
    /// No further pages: a part of the one is written.
    Off,
}

/// Pages that are to be written back.
#[expect(
    clippy::large_enum_variant,
    reason = "it is on the stack for a moment; a box takes memory when there is none"
)]
enum Due {
    /// Dirty pages in a row from this number on, which count as being written from now on.
    Run(u64, Pages),
    /// The number of a page that somebody else is writing, and whether programs have written to it
    /// since that began.
    Writing(u64, bool),
}

struct Contents {
    pages: BTreeMap<u64, Cached>,
    /// Counter of these pages.
    counter: &'static AtomicU64,
    errors: ErrorSequence,
    /// Place at which the next search for pages to give back begins.
    hand: u64,
}

/// Pages of a block device that are in memory, by number.
///
/// Reading and writing go through it. A page that is written to is dirty until it is written back:
/// by [`Self::sync`], with age, or by who makes more pages dirty than there may be. A page counts
/// as clean only when the device has said that it has it; a failure is noted for every opener
/// before that. Pages that are being read or written by the device are waited for, never taken
/// away.
pub struct PageCache {
    device: Arc<dyn BlockDevice>,
    contents: Mutex<Contents>,
    /// A page has left the state of being filled or written.
    changed: Condvar,
    /// Pages that are not as on the device.
    dirty: AtomicUsize,
    /// Outcome of writing pages that the device has lost, since it has become shorter.
    beyond_end: Result<(), Errno>,
}

/// The parts of `offset..offset + len` that lie in one page each: index, offset in the page, range
/// in the buffer.
fn page_spans(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let n = (len - done).min(PAGE_SIZE - within);
        let range = done..done + n;
        done += n;
        (n > 0).then_some((at / PAGE, within, range))
    })
}

/// Numbers of the pages that a range of bytes touches.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

/// Up to `count` pages for a request: as many as there are, and one at least.
fn new_pages(count: usize) -> Result<Pages, Errno> {
    let mut pages = Pages::new();
    for _ in 0..count {
        match new_page() {
            Ok(page) => pages.push(page),
            Err(error) if pages.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(pages)
}

/// A page of what programs may have.
fn new_page() -> Result<Page, Errno> {
    vm::has_room(PAGE_SIZE)
        .then(Page::zeroed)
        .flatten()
        .ok_or(Errno::ENOMEM)
}

impl PageCache {
    /// An empty cache in front of a device.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(device: Arc<dyn BlockDevice>) -> Result<Arc<Self>, Errno> {
        let cache = Self::with(device, &writeback::DEVICE_PAGES, Err(Errno::EIO));
        let owner: Arc<dyn CacheOwner> = cache.clone();
        writeback::register(Arc::downgrade(&owner))?;
        Ok(cache)
    }

    fn with(
        device: Arc<dyn BlockDevice>,
        counter: &'static AtomicU64,
        beyond_end: Result<(), Errno>,
    ) -> Arc<Self> {
        Arc::new(Self {
            device,
            contents: Mutex::new(Contents {
                pages: BTreeMap::new(),
                counter,
                errors: ErrorSequence::none(),
                hand: 0,
            }),
            changed: Condvar::new(),
            dirty: AtomicUsize::new(0),
            beyond_end,
        })
    }

    /// The device behind it.
    #[must_use]
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    /// The bytes of a transfer that are on the device.
    fn clamp(&self, offset: u64, len: usize) -> usize {
        let left = self.device.capacity().saturating_sub(offset);
        usize::try_from(left).unwrap_or(usize::MAX).min(len)
    }

    /// Reads from `offset` on; 0 at or behind the end.
    ///
    /// # Errors
    /// The device's; `ENOMEM`. What was read before is told instead.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let len = self.clamp(offset, buf.len());
        let end = (offset + len as u64).div_ceil(PAGE);
        let mut done = 0;
        for (index, within, range) in page_spans(offset, len) {
            let ahead = ReadAhead::Sequential(end);
            let read = self.with_page(index, ahead, |cached| {
                cached.page.read(within, &mut buf[range.clone()]);
            });
            match read {
                Ok(()) => done = range.end,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes at `offset`. A short count means that the device ends, or an error behind that. Who
    /// makes too many pages dirty writes them back, and so is as fast as the device.
    ///
    /// # Errors
    /// `ENOSPC` at or behind the end; the device's, if it had to be read first; `ENOMEM`.
    pub fn write(&self, offset: u64, buf: &[u8]) -> Result<usize, Errno> {
        let len = self.clamp(offset, buf.len());
        if len == 0 && !buf.is_empty() {
            return Err(Errno::ENOSPC);
        }
        let is_end = |end| end == self.device.capacity();
        let mut done = 0;
        for (index, within, range) in page_spans(offset, len) {
            let bytes = &buf[range.clone()];
            let whole =
                within == 0 && (bytes.len() == PAGE_SIZE || is_end(offset + range.end as u64));
            let change = |cached: &mut Cached| {
                cached.page.write(within, bytes);
                self.mark_dirty(cached);
            };
            let written = if whole {
                self.with_any_page(index, change)
            } else {
                self.with_page(index, ReadAhead::Off, change)
            };
            match written {
                Ok(()) => done = range.end,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if writeback::is_over_limit() {
            self.write_back(0..u64::MAX, u64::MAX);
        }
        Ok(done)
    }

    /// Calls `then` with page `index`, which is brought in if need be.
    fn with_page<R>(
        &self,
        index: u64,
        ahead: ReadAhead,
        then: impl FnOnce(&mut Cached) -> R,
    ) -> Result<R, Errno> {
        loop {
            let mut contents = self.settled(index);
            if let Some(cached) = contents.pages.get_mut(&index) {
                cached.is_referenced = true;
                return Ok(then(cached));
            }
            drop(contents);
            self.fill(index, ahead)?;
        }
    }

    /// The contents when page `index` is not being filled.
    fn settled(&self, index: u64) -> MutexGuard<'_, Contents> {
        let mut contents = self.contents.lock();
        while contents
            .pages
            .get(&index)
            .is_some_and(|cached| cached.state == State::Filling)
        {
            contents = self.changed.wait(contents);
        }
        contents
    }

    /// Notes that a page is newer than what the device has.
    fn mark_dirty(&self, cached: &mut Cached) {
        if cached.mark_dirty() {
            self.dirty.fetch_add(1, Ordering::Relaxed);
            writeback::count_dirty();
            account::note_dirty(PAGE_SIZE as u64);
        }
    }

    /// Notes that so many dirty pages were given up.
    fn give_up_dirty(&self, pages: usize) {
        self.uncount_dirty(pages);
        account::note_given_up((pages * PAGE_SIZE) as u64);
    }

    /// Notes that so many pages are not dirty any more.
    fn uncount_dirty(&self, pages: usize) {
        self.dirty.fetch_sub(pages, Ordering::Relaxed);
        writeback::uncount_dirty(pages);
    }

    /// Calls `then` with page `index`, which is zeros if it is not there: the device is not read.
    fn with_any_page(&self, index: u64, then: impl FnOnce(&mut Cached)) -> Result<(), Errno> {
        let mut fresh = None;
        loop {
            let mut contents = self.settled(index);
            if let Some(page) = fresh.take() {
                contents.insert(index, page, State::Clean);
            }
            if let Some(cached) = contents.pages.get_mut(&index) {
                cached.is_referenced = true;
                then(cached);
                return Ok(());
            }
            drop(contents);
            // Without the lock, as a cache that is short of memory is asked for some.
            fresh = Some(new_page()?);
        }
    }

    /// Reads page `index`, and what is missing of those ahead.
    fn fill(&self, index: u64, ahead: ReadAhead) -> Result<(), Errno> {
        let capacity = self.device.capacity();
        let (wanted, count) = {
            let contents = self.contents.lock();
            let is_missing = |index: &u64| !contents.pages.contains_key(index);
            let follows = index == 0 || !is_missing(&(index - 1));
            let last = (index + MAX_PAGES as u64).min(capacity.div_ceil(PAGE));
            let (end, until) = match ahead {
                ReadAhead::Sequential(end) if follows => (end, last),
                ReadAhead::Sequential(end) => (end, end.min(last)),
                ReadAhead::Off => (index + 1, last.min(index + 1)),
            };
            let count = (index..until).take_while(is_missing).count();
            (end - index, count)
        };
        let mut pages = new_pages(count)?;
        {
            let mut contents = self.contents.lock();
            // A file may have become shorter, and then has no pages there any more.
            let last = self.device.capacity().div_ceil(PAGE);
            let mut taken = 0;
            while let Some(page) = pages.get(taken)
                && index + (taken as u64) < last
                && contents.insert(index + taken as u64, page.clone(), State::Filling)
            {
                taken += 1;
            }
            pages.truncate(taken);
        }
        // What nobody asked for has an outcome of its own.
        let split = pages
            .len()
            .min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let first = index + split as u64;
        // Pages behind those are others', who may be filling them.
        let behind = index + pages.len() as u64;
        let mut batch = [
            Request::new(Operation::Read(transfer(index, &pages[..split], capacity))),
            Request::new(Operation::Read(transfer(first, &pages[split..], capacity))),
        ];
        let used = if split == pages.len() { 1 } else { 2 };
        self.device.submit(&mut batch[..used]);
        let outcomes = batch.map(|request| request.outcome);
        drop(pages);
        let mut contents = self.contents.lock();
        for (outcome, range) in outcomes.into_iter().zip([index..first, first..behind]) {
            contents.finish_filling(range, outcome);
        }
        self.changed.notify_all(&contents);
        outcomes[0]
    }

    /// The first pages among `pages` that are to be written back: those dirty since `before` or
    /// longer (ns), which the caller has to write now, or one that somebody else is writing.
    fn next_due(&self, pages: Range<u64>, before: u64) -> Option<Due> {
        if !self.is_dirty() {
            return None;
        }
        let mut run = Pages::new();
        let mut first = 0;
        for (&index, cached) in self.contents.lock().pages.range_mut(pages) {
            let is_due = matches!(cached.state, State::Dirty(since) if since <= before);
            if run.is_empty() {
                if let State::Writing(again) = cached.state {
                    return Some(Due::Writing(index, again.is_some()));
                }
                first = index;
            } else if !is_due || index != first + run.len() as u64 || run.is_full() {
                break;
            }
            if is_due {
                cached.state = State::Writing(None);
                run.push(cached.page.clone());
            }
        }
        (!run.is_empty()).then_some(Due::Run(first, run))
    }

    /// Writes pages that [`Self::next_due`] gave, and notes an error.
    fn write_run(&self, first: u64, run: Pages) -> Result<(), Errno> {
        let behind = first + run.len() as u64;
        let capacity = self.device.capacity();
        let outcome = if first * PAGE < capacity {
            self.device
                .execute(Operation::Write(transfer(first, &run, capacity)))
        } else {
            self.beyond_end
        };
        drop(run);
        let mut contents = self.contents.lock();
        let cleaned = contents.finish_writing(first..behind, outcome);
        self.uncount_dirty(cleaned);
        self.changed.notify_all(&contents);
        outcome
    }

    /// Whether a page is not as on the device.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) > 0
    }

    /// Writes the dirty pages among `pages` back that are so since `before` or longer (ns), and
    /// notes errors. Leaves alone what others are writing.
    pub fn write_back(&self, pages: Range<u64>, before: u64) {
        let mut next = pages.start;
        while let Some(due) = self.next_due(next..pages.end, before) {
            next = match due {
                Due::Run(first, run) => {
                    let behind = first + run.len() as u64;
                    let _noted = self.write_run(first, run);
                    behind
                }
                Due::Writing(index, _) => index + 1,
            };
        }
    }

    /// Brings what was written to a range of bytes before this call to the device. A page that
    /// somebody else is writing is waited for, and written once more if programs have written to it
    /// since that began: the device may have read it before.
    pub fn write_range(&self, bytes: Range<u64>) {
        let _noted = self.write_pages(pages_of(&bytes));
    }

    /// The same for pages: how many of them this call has written itself.
    ///
    /// # Errors
    /// The first error of those, when all have been tried.
    fn write_pages(&self, pages: Range<u64>) -> Result<usize, Errno> {
        let (mut count, mut outcome) = (0, Ok(()));
        let mut write = |first: u64, run: Pages| {
            let behind = first + run.len() as u64;
            count += run.len();
            outcome = outcome.and(self.write_run(first, run));
            behind
        };
        let mut next = pages.start;
        while let Some(due) = self.next_due(next..pages.end, u64::MAX) {
            next = match due {
                Due::Run(first, run) => write(first, run),
                Due::Writing(index, is_newer) => {
                    self.wait_until_written(index);
                    if is_newer {
                        match self.next_due(index..index + 1, u64::MAX) {
                            Some(Due::Run(first, run)) => {
                                write(first, run);
                            }
                            // Somebody else was quicker, and began after the programs had written.
                            Some(Due::Writing(..)) => self.wait_until_written(index),
                            None => {}
                        }
                    }
                    index + 1
                }
            };
        }
        outcome.map(|()| count)
    }

    /// Waits until the device is not writing page `index`.
    fn wait_until_written(&self, index: u64) {
        let mut contents = self.contents.lock();
        while let Some(cached) = contents.pages.get(&index)
            && matches!(cached.state, State::Writing(_))
        {
            contents = self.changed.wait(contents);
        }
    }

    /// Brings everything that was written before to the medium. Errors are noted:
    /// [`Self::check_errors`] tells them.
    pub fn sync(&self) {
        self.write_range(0..u64::MAX);
        if let Err(error) = self.device.execute(Operation::Flush) {
            self.contents.lock().errors.record(error);
        }
    }

    /// The place of a new opener in the list of errors.
    #[must_use]
    pub fn sample_errors(&self) -> ErrorCursor {
        self.contents.lock().errors.sample()
    }

    /// Tells an opener of an error of writing back that it was not told of.
    ///
    /// # Errors
    /// That error.
    pub fn check_errors(&self, cursor: &mut ErrorCursor) -> Result<(), Errno> {
        self.contents.lock().errors.check_and_advance(cursor)
    }

    /// Waits until the device neither reads nor writes any page among `pages`. After a wait it
    /// looks on from the page that it waited for, and looks at those before it when it has come
    /// through: a cache has many pages, and each request that ends wakes whoever waits.
    fn wait_while_busy(&self, pages: &Range<u64>) -> MutexGuard<'_, Contents> {
        let mut contents = self.contents.lock();
        let mut from = pages.start;
        loop {
            let busy = contents
                .pages
                .range(from..pages.end)
                .find(|(_, cached)| matches!(cached.state, State::Writing(_) | State::Filling))
                .map(|(&index, _)| index);
            match busy {
                Some(index) => {
                    from = index;
                    contents = self.changed.wait(contents);
                }
                None if from == pages.start => return contents,
                None => from = pages.start,
            }
        }
    }

    /// Changes the device without the cache (discarding, zeroing): what is dirty in `bytes` is
    /// written first, and what the cache has of it is forgotten afterwards.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn bypass(
        &self,
        bytes: Range<u64>,
        change: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.write_range(bytes.clone());
        let result = change();
        let pages = pages_of(&bytes);
        let mut contents = self.wait_while_busy(&pages);
        contents.remove_if(pages, usize::MAX, |cached| cached.state == State::Clean);
        result
    }

    /// Forgets all pages, dirty ones too: the device has other contents now.
    pub fn forget(&self) {
        let mut contents = self.wait_while_busy(&(0..u64::MAX));
        self.forget_in(&mut contents, ..);
    }

    /// Forgets the dirty pages that nobody is writing: nobody will want to read them.
    pub fn forget_dirty(&self) {
        let mut contents = self.contents.lock();
        let is_dirty = |cached: &mut Cached| matches!(cached.state, State::Dirty(_));
        let dirty = contents.remove_if(.., usize::MAX, is_dirty);
        self.give_up_dirty(dirty);
    }

    fn forget_in(&self, contents: &mut Contents, pages: impl RangeBounds<u64> + Clone) {
        let is_dirty = |cached: &mut Cached| cached.state != State::Clean;
        let dirty = contents.remove_if(pages.clone(), usize::MAX, is_dirty);
        self.give_up_dirty(dirty);
        contents.remove_if(pages, usize::MAX, |_| true);
    }

    /// Gives back up to `count` clean pages, those used lately last. Returns how many. Called by
    /// who is short of memory, with any locks: waits for none, and allocates nothing. Pages that
    /// programs have mapped stay.
    pub fn try_shrink(&self, count: usize) -> usize {
        let Some(mut contents) = self.contents.try_lock() else {
            return 0;
        };
        let mut freed = 0;
        for _ in 0..2 {
            let hand = contents.hand;
            let is_old = |cached: &mut Cached| {
                let is_kept = core::mem::take(&mut cached.is_referenced);
                cached.state == State::Clean && !is_kept && cached.page.refs() == 1
            };
            freed += contents.remove_if(hand.., count - freed, is_old);
            freed += contents.remove_if(..hand, count - freed, is_old);
        }
        freed
    }
}

/// The transfer of `pages`, the first of which has number `first`, as far as the device goes.
fn transfer(first: u64, pages: &[Page], capacity: u64) -> Transfer<'_> {
    let offset = first * PAGE;
    let left = usize::try_from(capacity.saturating_sub(offset)).unwrap_or(usize::MAX);
    Transfer {
        offset,
        len: (pages.len() * PAGE_SIZE).min(left),
        pages,
    }
}

impl Cached {
    /// Makes it dirty; whether it is one more that is not as on the device.
    fn mark_dirty(&mut self) -> bool {
        match &mut self.state {
            State::Dirty(_) => false,
            State::Writing(again) => {
                again.get_or_insert_with(task::now_ns);
                false
            }
            State::Clean | State::Filling => {
                self.state = State::Dirty(task::now_ns());
                true
            }
        }
    }
}

impl Contents {
    /// Adds a page; `false` if there is one.
    fn insert(&mut self, index: u64, page: Page, state: State) -> bool {
        if self.pages.contains_key(&index) {
            return false;
        }
        let cached = Cached {
            page,
            state,
            is_referenced: false,
            is_prepared: false,
        };
        self.pages.insert(index, cached);
        self.counter.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Removes up to `count` pages of which `which` says so. Returns how many.
    fn remove_if(
        &mut self,
        pages: impl RangeBounds<u64>,
        count: usize,
        mut which: impl FnMut(&mut Cached) -> bool,
    ) -> usize {
        let mut last = self.hand;
        let removed = self
            .pages
            .extract_if(pages, |_, cached| which(cached))
            .take(count)
            .inspect(|(index, _)| last = index + 1)
            .count();
        self.hand = last;
        self.counter.fetch_sub(removed as u64, Ordering::Relaxed);
        removed
    }

    /// The device has read `pages`, or not: then they are not there, and who wants them asks again.
    fn finish_filling(&mut self, pages: Range<u64>, outcome: Result<(), Errno>) {
        if outcome.is_err() {
            self.remove_if(pages, usize::MAX, |cached| cached.state == State::Filling);
            return;
        }
        for (_, cached) in self.pages.range_mut(pages) {
            if cached.state == State::Filling {
                cached.state = State::Clean;
            }
        }
    }

    /// The device has written `pages`, or not. The error is noted first. As on Linux a page that
    /// could not be written is clean then: it would keep others from being written to for ever.
    /// Returns how many are clean now.
    fn finish_writing(&mut self, pages: Range<u64>, outcome: Result<(), Errno>) -> usize {
        if let Err(error) = outcome {
            self.errors.record(error);
        }
        let mut cleaned = 0;
        for (_, cached) in self.pages.range_mut(pages) {
            if let State::Writing(again) = cached.state {
                cached.state = again.map_or(State::Clean, State::Dirty);
                cleaned += usize::from(again.is_none());
            }
        }
        cleaned
    }
}

impl CacheOwner for PageCache {
    fn write_back(&self, before: u64) {
        self.write_back(0..u64::MAX, before);
    }

    fn write_all(&self) {
        self.write_range(0..u64::MAX);
    }

    fn sync(&self) {
        self.sync();
    }

    fn try_shrink(&self, count: usize) -> usize {
        self.try_shrink(count)
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        self.forget();
    }
}
