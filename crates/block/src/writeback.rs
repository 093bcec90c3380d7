//! Limits of the number and age of dirty pages of all caches; giving clean ones back.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use shrink::{Shrinker, Ticket, Urgency};
use task::{Deadline, Event, Mutex};

/// A cache, or the caches of a file system, as who writes back with age sees it.
pub trait CacheOwner: Send + Sync {
    /// Writes back what is dirty since `before` (ns) or longer, and notes errors. Leaves alone what
    /// others are writing.
    fn write_back(&self, before: u64);

    /// Writes everything back that is dirty, and waits for what others are writing.
    fn write_all(&self);

    /// Brings everything that was written before to the medium. Errors are noted.
    fn sync(&self);

    /// Gives back up to `count` clean pages. Returns how many. Called by who is short of memory,
    /// with any locks: waits for none, and allocates nothing.
    fn try_shrink(&self, count: usize) -> usize;
}

/// The caches there are, or were.
static CACHES: Mutex<Vec<Weak<dyn CacheOwner>>> = Mutex::new(Vec::new());
/// Pages in caches of devices.
pub(crate) static DEVICE_PAGES: AtomicU64 = AtomicU64::new(0);
/// Pages in caches of files on disks.
pub(crate) static FILE_PAGES: AtomicU64 = AtomicU64::new(0);
/// Number of cached pages, of devices and of files, that are not as on their device.
static DIRTY: AtomicU64 = AtomicU64::new(0);
/// File systems with changes, beside those of pages, that are not on their device yet.
static CHANGED: AtomicU64 = AtomicU64::new(0);
/// Whether the thread sleeps without a timer, so that who has work for it has to wake it.
static SLEEPS: AtomicBool = AtomicBool::new(true);
/// Pages of memory. Before it is told there is little.
static MEMORY: AtomicU64 = AtomicU64::new(1024);
/// The settings, which are parts of memory.
static SETTINGS: Mutex<Settings> = Mutex::new(Settings::DEFAULT);

/// There are dirty pages, or more than may be for long.
static WORK: Event = Event::new();
/// Whether the thread runs that writes back.
static IS_STARTED: Mutex<bool> = Mutex::new(false);

/// A part of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Hundredths of all memory.
    Percent(u64),
    /// A number of bytes.
    Bytes(u64),
}

impl Share {
    fn pages(self) -> u64 {
        match self {
            Self::Percent(percent) => MEMORY.load(Ordering::Relaxed) * percent / 100,
            Self::Bytes(bytes) => bytes / PAGE_SIZE as u64,
        }
    }
}

/// Settings of writing back (Linux `vm.dirty_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// With more dirty memory, who makes more dirty writes some back himself.
    pub limit: Share,
    /// With more, the thread that writes back does not wait for the age of pages.
    pub background: Share,
    /// Age at which a dirty page is written back.
    pub expire_ns: u64,
    /// Interval between looks of the thread, in nanoseconds; it never looks if that is 0.
    pub interval_ns: u64,
}

impl Settings {
    /// Linux' defaults.
    pub const DEFAULT: Self = Self {
        limit: Share::Percent(20),
        background: Share::Percent(10),
        expire_ns: 30_000_000_000,
        interval_ns: 5_000_000_000,
    };
}

/// Limits that follow from the settings, in pages and ns.
static LIMIT: AtomicU64 = AtomicU64::new(1024 / 5);
static BACKGROUND: AtomicU64 = AtomicU64::new(1024 / 10);
static EXPIRE_NS: AtomicU64 = AtomicU64::new(Settings::DEFAULT.expire_ns);
static INTERVAL_NS: AtomicU64 = AtomicU64::new(Settings::DEFAULT.interval_ns);

/// Tells how much memory there is, in bytes. Returns what gives clean pages back.
pub fn init(memory: u64) -> Arc<dyn Shrinker> {
    set_memory(memory);
    Arc::new(CacheShrinker)
}

/// Tells how much memory there is from now on, in bytes: what is a part of it follows.
pub fn set_memory(memory: u64) {
    MEMORY.store(memory / PAGE_SIZE as u64, Ordering::Relaxed);
    apply(&SETTINGS.lock());
}

/// Changes the settings. As on Linux the thread begins at half of the limit, if it was to begin
/// later than that is reached.
pub fn set(settings: &Settings) {
    let mut kept = SETTINGS.lock();
    *kept = *settings;
    apply(&kept);
}

fn apply(settings: &Settings) {
    let (limit, background) = (settings.limit.pages(), settings.background.pages());
    let background = if background < limit {
        background
    } else {
        limit / 2
    };
    for (place, value) in [
        (&LIMIT, limit),
        (&BACKGROUND, background),
        (&EXPIRE_NS, settings.expire_ns),
        (&INTERVAL_NS, settings.interval_ns),
    ] {
        place.store(value, Ordering::Relaxed);
    }
    WORK.set();
}

/// Notes a cache, in the place of one that ended if there is one: the others keep theirs, so that
/// who goes through them meets each.
///
/// # Errors
/// `ENOMEM`.
pub fn register(cache: Weak<dyn CacheOwner>) -> Result<(), Errno> {
    let mut caches = CACHES.lock();
    match caches.iter_mut().find(|place| place.strong_count() == 0) {
        Some(place) => {
            *place = cache;
            Ok(())
        }
        None => fallible::push(&mut caches, cache),
    }
}

/// Calls `each` with every cache, without a lock.
fn for_each_cache(mut each: impl FnMut(&dyn CacheOwner)) {
    let mut n = 0;
    loop {
        let cache = match CACHES.lock().get(n) {
            Some(cache) => cache.upgrade(),
            None => return,
        };
        if let Some(cache) = cache {
            each(&*cache);
        }
        n += 1;
    }
}

/// Brings everything that was written before to its medium (`sync(2)`).
pub fn sync_all() {
    for_each_cache(|cache| cache.sync());
}

/// Starts the thread that writes back with age, if it does not run. Needed before anything is
/// written.
///
/// # Errors
/// `ENOMEM`.
pub fn start() -> Result<(), Errno> {
    let mut is_started = IS_STARTED.lock();
    if !*is_started {
        task::spawn("writeback", None, run).map_err(|_| Errno::ENOMEM)?;
        *is_started = true;
    }
    Ok(())
}

/// Writes back for ever. While nothing is dirty the thread sleeps without a timer, but for one
/// interval: who writes a page and then the page to its device, again and again, wakes it once.
fn run() {
    loop {
        SLEEPS.store(true, Ordering::SeqCst);
        // Who has work from here on sees that it sleeps, or the work is seen.
        while SLEEPS.load(Ordering::SeqCst) && !has_work() {
            WORK.wait();
        }
        SLEEPS.store(false, Ordering::SeqCst);
        loop {
            if dirty_pages() > BACKGROUND.load(Ordering::Relaxed) {
                for_each_cache(|cache| cache.write_all());
            } else {
                WORK.wait_until(match INTERVAL_NS.load(Ordering::Relaxed) {
                    0 => Deadline::NEVER,
                    interval => Deadline::after_ns(interval),
                });
                let age = EXPIRE_NS.load(Ordering::Relaxed);
                let before = task::now_ns().saturating_sub(age);
                for_each_cache(|cache| cache.write_back(before));
            }
            if !has_work() {
                break;
            }
        }
    }
}

fn has_work() -> bool {
    DIRTY.load(Ordering::SeqCst) > 0 || CHANGED.load(Ordering::SeqCst) > 0
}

/// There is work where there was none, perhaps.
fn note_work() {
    if SLEEPS.load(Ordering::SeqCst) && SLEEPS.swap(false, Ordering::SeqCst) {
        WORK.set();
    }
}

/// Pages of memory that there are.
#[must_use]
pub fn memory_pages() -> u64 {
    MEMORY.load(Ordering::Relaxed)
}

/// Pages that are not as on their device.
#[must_use]
pub fn dirty_pages() -> u64 {
    DIRTY.load(Ordering::Relaxed)
}

/// Pages in caches of devices, dirty or not.
#[must_use]
pub fn device_pages() -> u64 {
    DEVICE_PAGES.load(Ordering::Relaxed)
}

/// Pages in caches of files on disks, dirty or not.
#[must_use]
pub fn file_pages() -> u64 {
    FILE_PAGES.load(Ordering::Relaxed)
}

/// Notes that a file system has changes now, beside those of pages, that are to be written with
/// age.
pub fn count_changed() {
    CHANGED.fetch_add(1, Ordering::SeqCst);
    note_work();
}

/// Notes that it has none any more.
pub fn uncount_changed() {
    CHANGED.fetch_sub(1, Ordering::Relaxed);
}

/// Whether so many pages are dirty that who makes more dirty has to write some back.
#[must_use]
pub fn is_over_limit() -> bool {
    dirty_pages() > LIMIT.load(Ordering::Relaxed)
}

pub(crate) fn count_dirty() {
    let before = DIRTY.fetch_add(1, Ordering::SeqCst);
    if before == BACKGROUND.load(Ordering::Relaxed) {
        WORK.set();
    }
    if before == 0 {
        note_work();
    }
}

pub(crate) fn uncount_dirty(pages: usize) {
    DIRTY.fetch_sub(pages as u64, Ordering::Relaxed);
}

struct CacheShrinker;

impl Shrinker for CacheShrinker {
    fn name(&self) -> &'static str {
        "pages of devices and disks' files"
    }

    fn reclaimable(&self, urgency: Urgency) -> u64 {
        if urgency < Urgency::Low {
            return 0;
        }
        (device_pages() + file_pages()).saturating_sub(dirty_pages()) * PAGE_SIZE as u64
    }

    /// Only clean pages: to write some back takes memory, of which there is none.
    fn shrink(&self, bytes: u64, _: Urgency, ticket: Ticket) {
        let wanted = bytes.div_ceil(PAGE_SIZE as u64) as usize;
        let mut freed = 0;
        let Some(caches) = CACHES.try_lock() else {
            return;
        };
        for cache in caches.iter().filter_map(Weak::upgrade) {
            freed += cache.try_shrink(wanted - freed);
            if freed == wanted {
                break;
            }
        }
        drop(caches);
        ticket.freed((freed * PAGE_SIZE) as u64);
    }
}
