//! Peers of an instance (`docs/messages.md`).

use abi::dev::{self, Peers};
use guard::partition::Partition;

use super::Instance;
use crate::brief::lock_briefly;
use crate::peers::Names;

impl Instance {
    /// Names of the peers and groups that it was created with.
    pub(crate) fn peer_names(&self) -> &Names {
        &self.peer_names
    }

    /// Calls `f` with its partition, if it has one.
    pub(crate) fn with_partition<R>(&self, f: impl FnOnce(&mut Partition) -> R) -> Option<R> {
        lock_briefly(&self.record).partition.as_mut().map(f)
    }

    /// The names of its peers and groups, and who they are, but for the first `from`.
    pub(crate) fn peers(&self, from: u32) -> Peers {
        let mut told: Peers = dev::zeroed();
        (told.id, told.from) = (self.id, from);
        let record = lock_briefly(&self.record);
        let partition = record.partition.as_ref();
        let (count, total) = self
            .peer_names
            .tell(partition, from as usize, &mut told.peers);
        (told.count, told.total) = (count as u32, total as u32);
        told
    }
}
