//! The tree of a file's extents: looking up, inserting, removing.
//!
//! Whoever calls has the inode in hand and stores it afterwards: the root of the tree and the count
//! of blocks are in it.

use abi::errno::Errno;
use arrayvec::ArrayVec;

use crate::Result;
use crate::extent::{
    self, Extent, MAX_DEPTH, Node, Place, append, child, close_gap, entries, entry_bytes, key,
    max_entries, open_gap, position, put_child, put_extent, set_entries, set_key,
};
use crate::inode::Inode;
use crate::mount::Ext4;

/// Blocks of a file from some block on that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block of the file system; `None` is a hole.
    pub block: Option<u64>,
    /// Allocated, and reads as zeros.
    pub is_unwritten: bool,
    /// Number of blocks; a hole may go on behind it.
    pub len: u32,
}

/// A node on the way to a leaf. `position` is the number of its entries whose keys are not beyond
/// what was looked for; above the leaf, the way goes through the entry before.
struct Step {
    place: Place,
    node: Node,
    position: usize,
}

type Path = ArrayVec<Step, { MAX_DEPTH as usize + 1 }>;

impl Ext4 {
    fn find(&mut self, inode: &Inode, logical: u32) -> Result<Path> {
        let mut path = Path::new();
        let mut place = Place::Root;
        let mut expected = None;
        loop {
            let node = self.node(inode, place)?;
            let depth = extent::depth(&node)?;
            if expected.is_some_and(|expected| expected != depth) {
                return Err(Errno::EUCLEAN);
            }
            let mut position = position(&node, logical)?;
            if depth > 0 {
                // What is before the first key belongs to the first child.
                position = position.max(1);
                if entries(&node)? == 0 {
                    return Err(Errno::EUCLEAN);
                }
            }
            let next = if depth > 0 {
                Some(child(&node, position - 1)?)
            } else {
                None
            };
            let step = Step {
                place,
                node,
                position,
            };
            path.try_push(step).map_err(|_| Errno::EUCLEAN)?;
            let Some(block) = next else {
                return Ok(path);
            };
            place = Place::Block(block);
            expected = Some(depth - 1);
        }
    }

    /// Place of a block of a file, and how many behind it are alike.
    pub(crate) fn map_extents(&mut self, inode: &Inode, logical: u32) -> Result<Run> {
        let path = self.find(inode, logical)?;
        let leaf = path.last().ok_or(Errno::EUCLEAN)?;
        if let Some(index) = leaf.position.checked_sub(1) {
            let found = extent::extent(&leaf.node, index)?;
            if found.end() > u64::from(logical) {
                self.check_range(found.block, u64::from(found.len))?;
                let within = logical - found.logical;
                return Ok(Run {
                    block: Some(found.block + u64::from(within)),
                    is_unwritten: found.is_unwritten,
                    len: found.len - within,
                });
            }
        }
        let next = path.iter().rev().find_map(|step| {
            let more = entries(&step.node).is_ok_and(|count| step.position < count);
            more.then(|| key(&step.node, step.position))
        });
        let end = next.transpose()?.unwrap_or(u32::MAX);
        let len = end.checked_sub(logical).filter(|len| *len > 0);
        Ok(Run {
            block: None,
            is_unwritten: false,
            len: match (len, next.is_some()) {
                (Some(len), _) => len,
                (None, false) => 1,
                (None, true) => return Err(Errno::EUCLEAN),
            },
        })
    }

    /// Adds an extent where there is none.
    pub(crate) fn insert_extent(&mut self, inode: &mut Inode, new: Extent) -> Result<()> {
        // Each turn but the last makes the tree deeper or splits a node on the way: twice the depth
        // is enough.
        for _ in 0..3 * MAX_DEPTH {
            let path = self.find(inode, new.logical)?;
            let leaf = path.last().ok_or(Errno::EUCLEAN)?;
            let (place, at, count) = (leaf.place, leaf.position, entries(&leaf.node)?);
            let before = at
                .checked_sub(1)
                .map(|at| extent::extent(&leaf.node, at))
                .transpose()?;
            let after = (at < count)
                .then(|| extent::extent(&leaf.node, at))
                .transpose()?;
            if before.is_some_and(|before| before.end() > u64::from(new.logical))
                || after.is_some_and(|after| new.end() > u64::from(after.logical))
            {
                return Err(Errno::EUCLEAN);
            }
            if let Some(before) = before.filter(|before| before.is_followed_by(&new)) {
                let mut whole = Extent {
                    len: before.len + new.len,
                    ..before
                };
                return self.edit_node(inode, place, |node| {
                    if let Some(after) = after.filter(|after| whole.is_followed_by(after)) {
                        whole.len += after.len;
                        close_gap(node, at)?;
                    }
                    put_extent(node, at - 1, &whole)
                });
            }
            let merged = after.filter(|after| new.is_followed_by(after));
            if merged.is_none() && count >= max_entries(&leaf.node)? {
                self.split(inode, &path)?;
                continue;
            }
            self.edit_node(inode, place, |node| {
                let mut new = new;
                if let Some(after) = merged {
                    new.len += after.len;
                } else {
                    open_gap(node, at)?;
                }
                put_extent(node, at, &new)
            })?;
            return if at == 0 {
                self.fix_keys(inode, &path, new.logical)
            } else {
                Ok(())
            };
        }
        Err(Errno::EUCLEAN)
    }

    /// The first key of a leaf changed: so do those of the nodes above.
    fn fix_keys(&mut self, inode: &mut Inode, path: &[Step], first: u32) -> Result<()> {
        let above = path.len().saturating_sub(1);
        for step in path.iter().take(above).rev() {
            let index = step.position - 1;
            if key(&step.node, index)? != first {
                self.edit_node(inode, step.place, |node| set_key(node, index, first))?;
            }
            if index > 0 {
                break;
            }
        }
        Ok(())
    }

    /// A block for a node of the tree.
    fn new_node(&mut self, inode: &mut Inode) -> Result<u64> {
        let goal = self.goal_of(inode)?;
        let block = self.allocate_one(goal)?;
        inode.sectors += u64::from(self.sb.block_size / 512);
        self.store.fresh(block)?;
        Ok(block)
    }

    fn free_node(&mut self, inode: &mut Inode, block: u64) -> Result<()> {
        let sectors = u64::from(self.sb.block_size / 512);
        inode.sectors = inode.sectors.checked_sub(sectors).ok_or(Errno::EUCLEAN)?;
        self.store.forget(block)?;
        self.free_blocks(block, 1)
    }

    /// Makes room on the way to a full leaf: splits a node on it, or makes the tree deeper.
    fn split(&mut self, inode: &mut Inode, path: &[Step]) -> Result<()> {
        let mut parent = None;
        for (level, step) in path.iter().enumerate().rev().skip(1) {
            if entries(&step.node)? < max_entries(&step.node)? {
                parent = Some(level);
                break;
            }
        }
        let Some(parent) = parent else {
            return self.make_deeper(inode);
        };
        let [parent, full] = path.get(parent..parent + 2).ok_or(Errno::EUCLEAN)? else {
            return Err(Errno::EUCLEAN);
        };
        let count = entries(&full.node)?;
        // Files grow at their end: the node before stays full then.
        let moved = if full.position == count { 1 } else { count / 2 };
        let from = count - moved;
        let (first, depth) = (key(&full.node, from)?, extent::depth(&full.node)?);
        let block = self.new_node(inode)?;
        let capacity = extent::capacity(self.store.block_size - 4);
        self.edit_node(inode, Place::Block(block), |node| {
            extent::make(node, capacity, depth)?;
            append(node, entry_bytes(&full.node, from, count)?)
        })?;
        self.edit_node(inode, full.place, |node| set_entries(node, from))?;
        let at = parent.position;
        self.edit_node(inode, parent.place, |node| {
            open_gap(node, at)?;
            put_child(node, at, first, block)
        })
    }

    fn make_deeper(&mut self, inode: &mut Inode) -> Result<()> {
        let root = inode.root;
        let (count, depth) = (entries(&root)?, extent::depth(&root)?);
        if depth >= MAX_DEPTH {
            return Err(Errno::EFBIG);
        }
        let block = self.new_node(inode)?;
        let capacity = extent::capacity(self.store.block_size - 4);
        self.edit_node(inode, Place::Block(block), |node| {
            extent::make(node, capacity, depth)?;
            append(node, entry_bytes(&root, 0, count)?)
        })?;
        make_root(inode, depth + 1)?;
        let first = key(&root, 0)?;
        open_gap(&mut inode.root, 0)?;
        put_child(&mut inode.root, 0, first, block)
    }

    /// Takes an entry of the leaf away, and nodes that become empty.
    fn remove_entry(&mut self, inode: &mut Inode, path: &[Step], index: usize) -> Result<()> {
        let mut index = index;
        for (level, step) in path.iter().enumerate().rev() {
            let left = entries(&step.node)? - 1;
            if left == 0
                && let Place::Block(block) = step.place
            {
                self.free_node(inode, block)?;
                let above = level.checked_sub(1).and_then(|level| path.get(level));
                index = above.ok_or(Errno::EUCLEAN)?.position - 1;
                continue;
            }
            if left == 0 {
                return make_root(inode, 0);
            }
            self.edit_node(inode, step.place, |node| close_gap(node, index))?;
            if index == 0 {
                let first = key(&step.node, 1)?;
                let way = path.get(..=level).ok_or(Errno::EUCLEAN)?;
                self.fix_keys(inode, way, first)?;
            }
            break;
        }
        self.make_flatter(inode)
    }

    /// Takes what is below the only entry of the root into the root, if it has room there.
    fn make_flatter(&mut self, inode: &mut Inode) -> Result<()> {
        let root = inode.root;
        let depth = extent::depth(&root)?;
        if depth == 0 || entries(&root)? != 1 {
            return Ok(());
        }
        let block = child(&root, 0)?;
        let below = self.node(inode, Place::Block(block))?;
        let count = entries(&below)?;
        if count > max_entries(&root)? || extent::depth(&below)? + 1 != depth {
            return Ok(());
        }
        make_root(inode, depth - 1)?;
        append(&mut inode.root, entry_bytes(&below, 0, count)?)?;
        self.free_node(inode, block)
    }

    /// Removes the last extent, or the part of it, that lies within `from` and before `end`, at
    /// most `most` blocks of it. `None`: there is none.
    ///
    /// Its blocks are the caller's to free.
    pub(crate) fn remove_last(
        &mut self,
        inode: &mut Inode,
        from: u32,
        end: u64,
        most: u32,
    ) -> Result<Option<Extent>> {
        let Some(last) = end.checked_sub(1).filter(|last| *last >= u64::from(from)) else {
            return Ok(None);
        };
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        let path = self.find(inode, last)?;
        let leaf = path.last().ok_or(Errno::EUCLEAN)?;
        let Some(index) = leaf.position.checked_sub(1) else {
            return Ok(None);
        };
        let found = extent::extent(&leaf.node, index)?;
        if found.end() <= u64::from(from) {
            return Ok(None);
        }
        let stop = found.end().min(end);
        let start = found.logical.max(from);
        let start = start.max((stop - u64::from(most).min(stop)) as u32);
        let cut = found.part(start, stop);
        let has_left = cut.logical > found.logical;
        let has_right = cut.end() < found.end();
        let place = leaf.place;
        if !has_left && !has_right {
            self.remove_entry(inode, &path, index)?;
            return Ok(Some(cut));
        }
        let right = has_right.then(|| found.part(cut.end() as u32, found.end()));
        let stays = if has_left {
            found.part(found.logical, u64::from(cut.logical))
        } else {
            right.ok_or(Errno::EUCLEAN)?
        };
        self.edit_node(inode, place, |node| put_extent(node, index, &stays))?;
        if index == 0 {
            self.fix_keys(inode, &path, stays.logical)?;
        }
        if let Some(right) = right.filter(|_| has_left) {
            self.insert_extent(inode, right)?;
        }
        Ok(Some(cut))
    }

    /// Makes the preallocated blocks of a range written.
    pub(crate) fn set_written(&mut self, inode: &mut Inode, from: u32, end: u64) -> Result<()> {
        let mut at = u64::from(from);
        while at < end {
            let logical = u32::try_from(at).map_err(|_| Errno::EFBIG)?;
            let run = self.map_extents(inode, logical)?;
            let stop = (at + u64::from(run.len)).min(end);
            if run.is_unwritten {
                let cut = self
                    .remove_last(inode, logical, stop, run.len)?
                    .ok_or(Errno::EUCLEAN)?;
                let written = Extent {
                    is_unwritten: false,
                    ..cut
                };
                self.insert_extent(inode, written)?;
            }
            at = stop;
        }
        Ok(())
    }
}

/// Makes the root a node without entries.
pub fn make_root(inode: &mut Inode, depth: u16) -> Result<()> {
    let max = extent::capacity(inode.root.len());
    inode.root.fill(0);
    extent::make(&mut inode.root, max, depth)
}
