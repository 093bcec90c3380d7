//! Files without a name that are being removed: who finds no room waits for them.

use task::{Condvar, Mutex};

#[derive(Default)]
struct Counts {
    /// Removals that have begun and not ended.
    under_way: u64,
    /// Removals that have ended.
    ended: u64,
}

/// The removals of a file system.
#[derive(Default)]
pub(super) struct Removals {
    counts: Mutex<Counts>,
    ended: Condvar,
}

impl Removals {
    /// Notes that the last user of a file without a name has ended, which is removed soon.
    pub(super) fn begin(&self) {
        self.counts.lock().under_way += 1;
    }

    /// Notes that such a file has been removed.
    pub(super) fn end(&self) {
        let mut counts = self.counts.lock();
        counts.under_way -= 1;
        counts.ended += 1;
        self.ended.notify_all(&counts);
    }

    /// Number of removals that have ended.
    pub(super) fn count(&self) -> u64 {
        self.counts.lock().ended
    }

    /// Waits until as many have ended as are under way. Whether any has since there were `before`.
    ///
    /// May be called with the locks of a file or a directory that is in use: a removal needs the
    /// disk and the metadata only.
    pub(super) fn wait(&self, before: u64) -> bool {
        let mut counts = self.counts.lock();
        let wanted = counts.ended + counts.under_way;
        while counts.ended < wanted {
            counts = self.ended.wait(counts);
        }
        counts.ended != before
    }
}
