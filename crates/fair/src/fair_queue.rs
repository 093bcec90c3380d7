//! The fair threads of one group that wait for a CPU, and the group's virtual time.

use alloc::vec::Vec;

use crate::heap::Heap;
use crate::queue::{ByDeadline, ByStart, Entity};
use crate::virt::Clock;

/// Memory for the waiting threads of a [`FairQueue`].
#[derive(Debug)]
pub(crate) struct FairRoom {
    pub(crate) eligible: Vec<Entity>,
    pub(crate) ahead: Vec<Entity>,
}

/// Waiting fair threads of one group. The current thread may be in its virtual time besides.
#[derive(Debug)]
pub(crate) struct FairQueue {
    /// Threads that are owed service.
    eligible: Heap<Entity, ByDeadline>,
    /// Threads that are ahead of their share.
    ahead: Heap<Entity, ByStart>,
    pub(crate) clock: Clock,
}

impl FairQueue {
    pub(crate) const fn new(virtual_time: u64) -> Self {
        Self {
            eligible: Heap::new(),
            ahead: Heap::new(),
            clock: Clock::new(virtual_time),
        }
    }

    pub(crate) fn move_into(&mut self, room: &mut FairRoom) {
        self.eligible.move_into(&mut room.eligible);
        self.ahead.move_into(&mut room.ahead);
    }

    pub(crate) fn capacity(&self) -> usize {
        self.eligible.capacity().min(self.ahead.capacity())
    }

    /// Whether threads wait.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !(self.eligible.is_empty() && self.ahead.is_empty())
    }

    pub(crate) fn insert(&mut self, entity: Entity) {
        if self.clock.eligible(entity.point.at) {
            self.eligible.push(entity);
        } else {
            self.ahead.push(entity);
        }
    }

    /// Takes the thread with the best claim.
    pub(crate) fn pop(&mut self) -> Option<Entity> {
        while self
            .ahead
            .first()
            .is_some_and(|first| self.clock.eligible(first.point.at))
        {
            if let Some(entity) = self.ahead.pop() {
                self.eligible.push(entity);
            }
        }
        // A thread that yields is not in the heaps, and may be the only one that is not ahead.
        self.eligible.pop().or_else(|| self.ahead.pop())
    }

    /// Takes a thread that `wanted` is true of: O(n).
    pub(crate) fn take(&mut self, mut wanted: impl FnMut(u32) -> bool) -> Option<Entity> {
        self.eligible
            .take(|entity| wanted(entity.id))
            .or_else(|| self.ahead.take(|entity| wanted(entity.id)))
    }
}
