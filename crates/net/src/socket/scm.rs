//! Open files that travel beside the bytes of a message (`SCM_RIGHTS`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use fs::File;
use fs::charge::Charge;

/// The account of the open files in flight: sent over a socket and not received yet. The family
/// whose sockets pass files keeps one, to find those that nobody can reach any more.
pub trait InflightTable: Send + Sync {
    /// Counts files that are sent. Called with no lock of a socket held.
    fn insert(&self, files: &[Arc<File>]);

    /// Uncounts files that have arrived, or are thrown away.
    fn remove(&self, files: &[Arc<File>]);

    /// Drops files that were thrown away, and without recursion what waits in the queues of those
    /// of them that are sockets.
    fn discard(&self, files: Vec<Arc<File>>);
}

/// Open files in flight from one socket to another, counted by a table. Made, opened and dropped
/// with no lock of a socket held.
pub struct ScmRights {
    files: Vec<Arc<File>>,
    table: Arc<dyn InflightTable>,
    /// Charge of the sender's user.
    charge: Option<Charge>,
}

impl ScmRights {
    /// Sends files on their way.
    #[must_use]
    pub fn new(
        table: Arc<dyn InflightTable>,
        files: Vec<Arc<File>>,
        charge: Option<Charge>,
    ) -> Self {
        table.insert(&files);
        Self {
            files,
            table,
            charge,
        }
    }

    /// The files, still under way.
    #[must_use]
    pub fn files(&self) -> &[Arc<File>] {
        &self.files
    }

    /// The files, which have arrived.
    #[must_use]
    pub fn into_files(mut self) -> Vec<Arc<File>> {
        self.table.remove(&self.files);
        core::mem::take(&mut self.files)
    }

    /// The files of a message that is looked at (`MSG_PEEK`): they stay in its queue, and are in
    /// flight once more.
    pub(crate) fn peek(&self) -> PeekedRights {
        PeekedRights {
            files: self.files.clone(),
            table: self.table.clone(),
        }
    }
}

impl Drop for ScmRights {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            self.table.remove(&self.files);
            self.charge = None;
            self.table.discard(core::mem::take(&mut self.files));
        }
    }
}

/// The files of a message that was looked at, not counted yet: that takes that no lock of a socket
/// is held.
pub(crate) struct PeekedRights {
    files: Vec<Arc<File>>,
    table: Arc<dyn InflightTable>,
}

impl PeekedRights {
    /// Counts the files.
    pub(crate) fn into_rights(self) -> ScmRights {
        ScmRights::new(self.table, self.files, None)
    }
}
