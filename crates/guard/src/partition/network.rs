//! Pages that the supervisor shares with an instance for its network (`abi::network`).

use alloc::sync::Arc;
use core::ops::Deref;

use abi::Network;
use abi::layout::PAGE_SIZE;

use crate::mem::alloc::Block;
use crate::mem::frame::Frame;

pub(super) const ORDER: u8 = (Network::SIZE / PAGE_SIZE).next_power_of_two().ilog2() as u8;

/// Pages of an instance's network. They are free when all who have them have let go: the partition
/// does when its CPUs have proved that they do not reach them any more.
#[derive(Clone, Debug)]
pub struct NetworkPages(Arc<Block>);

impl NetworkPages {
    /// Takes pages of zeroes; `None` without memory.
    pub(super) fn take() -> Option<Self> {
        Some(Self(Arc::new(Block::zeroed(ORDER)?)))
    }

    /// Pages that an instance has of a supervisor before this one.
    ///
    /// # Safety
    /// They are memory of the supervisor's that nobody else has.
    pub(super) unsafe fn adopt(first: Frame) -> Self {
        // SAFETY: by the caller's promise; an allocator that did not give them takes them, too.
        Self(Arc::new(unsafe { Block::from_raw(first, ORDER) }))
    }

    /// The first of them.
    pub(super) fn first(&self) -> Frame {
        self.0.first()
    }
}

impl Deref for NetworkPages {
    type Target = Network;

    fn deref(&self) -> &Network {
        // SAFETY: a block of that size, aligned to it, ours as long as `self`, zeroed when it was
        // made; it consists of atomics, so the instance may write while we read.
        unsafe { &*self.0.ptr().cast::<Network>() }
    }
}
