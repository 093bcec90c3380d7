//! A disk's device with counts of what it did (`/proc/diskstats`).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use ::block::{BlockDevice, Limits, Operation, Request, SECTOR_SIZE, account};

use super::DiskDriver;

/// Requests of one kind that were done.
#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    sectors: AtomicU64,
    /// Time that they took together, in nanoseconds.
    ns: AtomicU64,
}

/// A device that counts.
pub(super) struct CountedDevice {
    driver: Arc<dyn DiskDriver>,
    /// Whether it passes requests on to a disk that counts them, too.
    is_part: bool,
    /// By kind: reads, writes, discards, flushes.
    counts: [Counts; 4],
    in_flight: AtomicU64,
    /// Time since which requests are under way, and how long some were before that (ns). Two that
    /// begin or end at once may be off by their difference.
    busy_since: AtomicU64,
    busy_ns: AtomicU64,
}

/// Index among the kinds of counts. Zeroing counts as writing, as on Linux.
fn kind(operation: &Operation<'_>) -> usize {
    match operation {
        Operation::Read(_) => 0,
        Operation::Write(_) | Operation::WriteThrough(_) | Operation::WriteZeroes { .. } => 1,
        Operation::Discard { .. } => 2,
        Operation::Flush => 3,
    }
}

impl CountedDevice {
    pub(super) fn new(driver: Arc<dyn DiskDriver>, is_part: bool) -> Arc<Self> {
        Arc::new(Self {
            driver,
            is_part,
            counts: Default::default(),
            in_flight: AtomicU64::new(0),
            busy_since: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
        })
    }

    /// Columns of `/proc/diskstats` after the name (Linux
    /// `Documentation/admin-guide/iostats.rst`); requests are never merged.
    pub(super) fn columns(&self) -> [u64; 17] {
        let [reads, writes, discards, flushes] = &self.counts;
        let of = |counts: &Counts| {
            let count = counts.requests.load(Ordering::Relaxed);
            let sectors = counts.sectors.load(Ordering::Relaxed);
            [
                count,
                0,
                sectors,
                counts.ns.load(Ordering::Relaxed) / 1_000_000,
            ]
        };
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let mut busy = self.busy_ns.load(Ordering::Relaxed);
        if in_flight > 0 {
            busy += task::now_ns().saturating_sub(self.busy_since.load(Ordering::Relaxed));
        }
        let (reads, writes, discards, flushes) = (of(reads), of(writes), of(discards), of(flushes));
        let all = reads[3] + writes[3] + discards[3] + flushes[3];
        let mut columns = [0; 17];
        columns[..4].copy_from_slice(&reads);
        columns[4..8].copy_from_slice(&writes);
        columns[8..11].copy_from_slice(&[in_flight, busy / 1_000_000, all]);
        columns[11..15].copy_from_slice(&discards);
        columns[15..].copy_from_slice(&[flushes[0], flushes[3]]);
        columns
    }
}

impl BlockDevice for CountedDevice {
    fn capacity(&self) -> u64 {
        self.driver.capacity()
    }

    fn limits(&self) -> Limits {
        self.driver.limits()
    }

    fn writes_through(&self) -> bool {
        self.driver.writes_through()
    }

    fn is_read_only(&self) -> bool {
        self.driver.is_read_only()
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        let len = batch.len() as u64;
        let begin = task::now_ns();
        if self.in_flight.fetch_add(len, Ordering::Relaxed) == 0 {
            self.busy_since.store(begin, Ordering::Relaxed);
        }
        if self.is_part {
            self.driver.submit(batch);
        } else {
            let reads = batch.iter().map(|request| match &request.operation {
                Operation::Read(transfer) => transfer.len as u64,
                _ => 0,
            });
            match reads.sum() {
                0 => {}
                bytes => account::note_read(bytes),
            }
            account::waiting(|| self.driver.submit(batch));
        }
        let end = task::now_ns();
        if self.in_flight.fetch_sub(len, Ordering::Relaxed) == len {
            let since = self.busy_since.load(Ordering::Relaxed);
            let busy = end.saturating_sub(since);
            self.busy_ns.fetch_add(busy, Ordering::Relaxed);
        }
        for request in batch {
            let counts = &self.counts[kind(&request.operation)];
            let bytes = request.operation.range().map_or(0, |(_, len)| len);
            counts.requests.fetch_add(1, Ordering::Relaxed);
            counts
                .sectors
                .fetch_add(bytes / SECTOR_SIZE, Ordering::Relaxed);
            counts
                .ns
                .fetch_add(end.saturating_sub(begin), Ordering::Relaxed);
        }
    }
}
