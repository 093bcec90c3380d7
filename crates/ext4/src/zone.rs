//! Blocks that belong to the file system itself, and so to no file.

use alloc::vec::Vec;

use crate::Result;

/// Ranges of blocks, sorted and disjoint once [`Zones::sort`] was called.
#[derive(Default)]
pub struct Zones(Vec<(u64, u64)>);

impl Zones {
    /// Adds blocks.
    pub fn add(&mut self, start: u64, len: u64) -> Result<()> {
        if let Some((_, end)) = self.0.last_mut()
            && *end == start
        {
            *end += len;
            return Ok(());
        }
        fallible::push(&mut self.0, (start, start + len))
    }

    /// Makes it ready to be asked.
    pub fn sort(&mut self) {
        self.0.sort_unstable();
        self.0.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1;
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
    }

    /// Whether a block of a range is one of them.
    pub fn touches(&self, start: u64, len: u64) -> bool {
        self.within(start, len).next().is_some()
    }

    /// The parts of a range that are.
    pub fn within(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = start.saturating_add(len);
        let from = self.0.partition_point(|&(_, zone_end)| zone_end <= start);
        let rest = self
            .0
            .iter()
            .skip(from)
            .take_while(move |(zone, _)| *zone < end);
        rest.map(move |&(zone, zone_end)| (zone.max(start), zone_end.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found() {
        let mut zones = Zones::default();
        for (start, len) in [(20, 5), (0, 3), (3, 1), (22, 8)] {
            zones.add(start, len).expect("memory");
        }
        zones.sort();
        assert!(zones.touches(3, 1) && !zones.touches(4, 16) && zones.touches(4, 17));
        assert_eq!(zones.within(2, 100).collect::<Vec<_>>(), [(2, 4), (20, 30)]);
    }
}
