//! Peers of an instance (`docs/messages.md`).

use abi::dev::{self, Peers};
use guard::partition::Partition;

use super::Instance;
use crate::brief::lock_briefly;
use crate::peers::Names;

impl Instance {
    /// Names of the peers that it was created with.
    pub(crate) fn peer_names(&self) -> &Names {
        &self.peer_names
    }

    /// Calls `f` with its partition, if it has one.
    pub(crate) fn with_partition<R>(&self, f: impl FnOnce(&mut Partition) -> R) -> Option<R> {
        lock_briefly(&self.record).partition.as_mut().map(f)
    }

    /// The names of its peers, and who they are.
    pub(crate) fn peers(&self) -> Peers {
        let mut told: Peers = dev::zeroed();
        told.id = self.id;
        let record = lock_briefly(&self.record);
        let partition = record.partition.as_ref();
        told.count = self.peer_names.tell(partition, &mut told.peers) as u32;
        told
    }
}
