//! Handles: what an operation has changed, and how that is taken back.
//!
//! A change of some bytes keeps these bytes; one of a block as a whole keeps the block, which is
//! shared with who changes it until it is copied. What was kept last is put back first, so bytes
//! find the block as they left it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;

use crate::Result;
use crate::store::{Buffer, Counts, State, Store};

/// Entries, and bytes, that are kept allocated from handle to handle.
const KEPT: (usize, usize) = (64, 8192);

/// A change, as it is taken back.
enum Undo {
    /// Of some bytes of a block: what they were is at the end of the list's bytes.
    Part {
        block: u64,
        at: usize,
        len: usize,
        state: State,
    },
    /// Of a block as a whole; `None` was not in memory.
    Whole {
        block: u64,
        buffer: Option<Buffer>,
        was_revoked: bool,
    },
}

/// Changes of the operation in progress, in their order.
#[derive(Default)]
pub struct UndoList {
    changes: Vec<Undo>,
    bytes: Vec<u8>,
}

impl UndoList {
    /// Keeps a part of a block that is going to be changed.
    pub fn keep_part(&mut self, block: u64, at: usize, part: &[u8], state: State) -> Result<()> {
        let room = self.bytes.try_reserve(part.len());
        room.map_err(|_| Errno::ENOMEM)?;
        fallible::push(
            &mut self.changes,
            Undo::Part {
                block,
                at,
                len: part.len(),
                state,
            },
        )?;
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    /// Keeps a block that is going to be changed as a whole.
    pub fn keep_whole(
        &mut self,
        block: u64,
        buffer: Option<Buffer>,
        was_revoked: bool,
    ) -> Result<()> {
        fallible::push(
            &mut self.changes,
            Undo::Whole {
                block,
                buffer,
                was_revoked,
            },
        )
    }

    /// Forgets everything: the operation has ended.
    fn clear(&mut self) {
        self.changes.clear();
        self.bytes.clear();
        if self.changes.capacity() > KEPT.0 {
            self.changes = Vec::new();
        }
        if self.bytes.capacity() > KEPT.1 {
            self.bytes = Vec::new();
        }
    }
}

/// An operation in progress.
pub struct Handle {
    /// Tells it from those before.
    pub number: u64,
    counts: Counts,
    /// Blocks that it may still add to the transaction.
    credits: usize,
    pub has_freed: bool,
    /// A change failed in the middle: it must not end well.
    pub is_broken: bool,
}

impl Handle {
    /// One more block of the transaction.
    pub fn take_credit(&mut self) -> Result<()> {
        debug_assert!(self.credits > 0, "an operation has too few credits");
        self.credits = self.credits.checked_sub(1).ok_or(Errno::EIO)?;
        Ok(())
    }
}

impl Store {
    /// Begins a handle. There is room for it.
    pub fn begin(&mut self, credits: usize) -> Result<()> {
        if self.is_read_only || self.handle.is_some() {
            return Err(Errno::EROFS);
        }
        self.handles += 1;
        self.handle = Some(Handle {
            number: self.handles,
            counts: self.counts,
            credits,
            has_freed: false,
            is_broken: false,
        });
        Ok(())
    }

    /// Ends the handle: what it changed belongs to the running transaction.
    pub fn end(&mut self) -> Result<()> {
        match &self.handle {
            Some(handle) if !handle.is_broken => {
                self.has_freed |= handle.has_freed;
                self.handle = None;
                self.undo.clear();
                Ok(())
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Ends the handle as if it had never been.
    pub fn roll_back(&mut self) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        self.counts = handle.counts;
        while let Some(change) = self.undo.changes.pop() {
            match change {
                Undo::Part {
                    block,
                    at,
                    len,
                    state,
                } => {
                    let from = self.undo.bytes.len().saturating_sub(len);
                    let bytes = self.undo.bytes.get(from..).unwrap_or(&[]);
                    if put_back(self.buffers.get_mut(block), at, bytes, state).is_none() {
                        // Nobody else has the block now. Otherwise nothing wrong is committed.
                        debug_assert!(false, "a change cannot be taken back");
                        self.is_read_only = true;
                    }
                    self.undo.bytes.truncate(from);
                    put(&mut self.dirty, block, state.is_dirty);
                }
                Undo::Whole {
                    block,
                    buffer,
                    was_revoked,
                } => {
                    let was_dirty = buffer.as_ref().is_some_and(|it| it.state.is_dirty);
                    match buffer {
                        Some(buffer) => self.buffers.insert(block, buffer),
                        None => drop(self.buffers.remove(block)),
                    }
                    put(&mut self.dirty, block, was_dirty);
                    put(&mut self.revoked, block, was_revoked);
                }
            }
        }
        self.undo.clear();
    }
}

/// Makes a part of a block what it was.
fn put_back(buffer: Option<&mut Buffer>, at: usize, part: &[u8], state: State) -> Option<()> {
    let buffer = buffer?;
    let bytes = Arc::get_mut(&mut buffer.data)?;
    bytes.get_mut(at..at + part.len())?.copy_from_slice(part);
    buffer.state = state;
    if !state.is_dirty {
        buffer.committed = None;
    }
    Some(())
}

fn put(set: &mut alloc::collections::BTreeSet<u64>, block: u64, is_in: bool) {
    if is_in {
        set.insert(block);
    } else {
        set.remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::store::Seal;

    const SIZE: usize = 1024;

    /// A disk whose blocks are full of their numbers.
    struct Numbers;

    impl Device for Numbers {
        fn size(&self) -> u64 {
            64 * SIZE as u64
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            buf.fill((offset / SIZE as u64) as u8);
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<()> {
            Err(Errno::EIO)
        }

        fn flush(&self) -> Result<()> {
            Err(Errno::EIO)
        }
    }

    fn set(store: &mut Store, block: u64, at: usize, value: u8) {
        let unsealed = Some((Seal::Inodes(1), at as u32 % 4));
        let done = store.edit_part(block, (at, 4), unsealed, |part| {
            part.fill(value);
            Ok(())
        });
        done.expect("a change");
    }

    fn fill(store: &mut Store, block: u64, value: u8) {
        let done = store.edit(block, None, |bytes| {
            bytes.fill(value);
            Ok(())
        });
        done.expect("a change");
    }

    /// Contents of each block, and which of its structures are not sealed.
    type Contents = Vec<(Vec<u8>, Option<u64>)>;

    fn contents(store: &mut Store) -> Contents {
        let mut all = Contents::new();
        for block in 1..9 {
            let unsealed = store.next_unsealed(block).filter(|it| it.0 == block);
            let bytes = store.read(block).expect("a block").to_vec();
            let is_dirty = store.buffers.get(block).is_some_and(|it| it.state.is_dirty);
            assert_eq!(is_dirty, store.dirty.contains(&block), "block {block}");
            all.push((bytes, unsealed.map(|it| it.2)));
        }
        all
    }

    #[test]
    fn what_failed_has_changed_nothing_whatever_the_order() {
        let mut store = Store::new(Arc::new(Numbers), SIZE, 64);
        store.is_read_only = false;
        store.begin(8).expect("a handle");
        set(&mut store, 1, 0, 200);
        set(&mut store, 2, 8, 201);
        fill(&mut store, 3, 202);
        store.end().expect("its end");
        let (before, dirty) = (contents(&mut store), store.dirty.clone());
        for order in [
            [1, 2, 3, 4],
            [2, 1, 4, 3],
            [3, 4, 1, 2],
            [4, 3, 2, 1],
            [1, 1, 2, 2],
            [2, 1, 2, 1],
            [3, 4, 4, 1],
            [4, 2, 3, 1],
        ] {
            store.begin(64).expect("a handle");
            for block in 1..6 {
                for (step, what) in order.into_iter().enumerate() {
                    match what {
                        1 => set(&mut store, block, 9, 210 + step as u8),
                        2 => fill(&mut store, block, 220 + step as u8),
                        3 => store.forget(block).expect("forgotten"),
                        _ => store.fresh(block).expect("zeros"),
                    }
                }
            }
            let failed = store.edit_part(6, (0, 9), None, |part| {
                part.fill(0);
                Err::<(), _>(Errno::ENOSPC)
            });
            assert_eq!(failed, Err(Errno::ENOSPC));
            assert_eq!(store.end(), Err(Errno::EIO), "it failed in the middle");
            store.roll_back();
            assert_eq!(contents(&mut store), before, "after {order:?}");
            assert!(store.dirty == dirty && store.revoked.is_empty());
            assert!(!store.is_read_only);
        }
    }
}
