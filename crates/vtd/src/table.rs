//! Tables that translate (9.8): from addresses that devices use to those of the machine. Like a
//! processor's, of three or four levels, but an entry counts if it allows reading or writing.
//!
//! Memory changes hands by granules of 2 MiB, and so it is translated. A table, once it is there,
//! stays until its domain ends.

/// Bytes of a granule.
pub const GRANULE: u64 = 2 << 20;
const PAGE: u64 = 4096;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
/// The entry stands for 2 MiB.
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Shape of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Flag: four levels, for 48 bits; otherwise three, for 39.
    pub four_levels: bool,
    /// Flag: an entry may stand for 2 MiB.
    pub large_pages: bool,
}

impl Geometry {
    /// Number of levels.
    const fn levels(self) -> u32 {
        if self.four_levels { 4 } else { 3 }
    }

    /// The width as an entry for a function has it (9.3).
    pub(crate) const fn width(self) -> u64 {
        if self.four_levels { 2 } else { 1 }
    }

    /// End of the addresses that are translated.
    #[must_use]
    pub const fn end(self) -> u64 {
        1 << (12 + 9 * self.levels())
    }
}

/// Memory that tables are in, by addresses of the machine.
pub trait Tables {
    /// A table more, of zeroes; `None` without memory. It is there for as long as the others.
    fn table(&mut self) -> Option<u64>;

    /// The entry of a table that [`Self::table`] has given.
    fn load(&self, table: u64, index: usize) -> u64;

    /// Sets an entry, in one step, so that the unit sees it.
    fn store(&mut self, table: u64, index: usize, entry: u64);
}

/// There is no memory for a table, or the address cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTable;

/// Index of the entry for an address in a table of a level, 1 being the last.
const fn index(at: u64, level: u32) -> usize {
    (at >> (12 + 9 * (level - 1)) & 0x1ff) as usize
}

/// The table below an entry.
const fn below(entry: u64) -> Option<u64> {
    if entry & (READ | WRITE) != 0 && entry & LARGE == 0 {
        Some(entry & ADDRESS)
    } else {
        None
    }
}

/// The table below an entry, which is made if need be.
fn make_below(tables: &mut impl Tables, table: u64, index: usize) -> Result<u64, NoTable> {
    if let Some(next) = below(tables.load(table, index)) {
        return Ok(next);
    }
    let next = tables.table().ok_or(NoTable)?;
    tables.store(table, index, next | READ | WRITE);
    Ok(next)
}

/// Has a granule of devices' addresses, `at`, stand for one of the machine's, `phys`, both
/// multiples of [`GRANULE`], below `root`.
///
/// # Errors
/// [`NoTable`]; the granule stands for nothing.
pub fn map(
    tables: &mut impl Tables,
    root: u64,
    geometry: Geometry,
    at: u64,
    phys: u64,
) -> Result<(), NoTable> {
    let is_whole = at.is_multiple_of(GRANULE) && phys.is_multiple_of(GRANULE);
    if !is_whole || at >= geometry.end() || phys & !ADDRESS != 0 {
        return Err(NoTable);
    }
    let mut table = root;
    for level in (3..=geometry.levels()).rev() {
        table = make_below(tables, table, index(at, level))?;
    }
    if geometry.large_pages {
        tables.store(table, index(at, 2), phys | LARGE | READ | WRITE);
        return Ok(());
    }
    let last = make_below(tables, table, index(at, 2))?;
    for page in 0..512 {
        let at = phys + page as u64 * PAGE;
        tables.store(last, page, at | READ | WRITE);
    }
    Ok(())
}

/// Has a granule stand for nothing. The unit may remember what it stood for until it is told to
/// forget.
pub fn unmap(tables: &mut impl Tables, root: u64, geometry: Geometry, at: u64) {
    if at >= geometry.end() {
        return;
    }
    let mut table = root;
    for level in (3..=geometry.levels()).rev() {
        match below(tables.load(table, index(at, level))) {
            Some(next) => table = next,
            None => return,
        }
    }
    match below(tables.load(table, index(at, 2))) {
        Some(last) => (0..512).for_each(|page| tables.store(last, page, 0)),
        None => tables.store(table, index(at, 2), 0),
    }
}

/// Address of the machine that an address stands for, as the unit finds it; `None` if for none.
pub fn translate(tables: &impl Tables, root: u64, geometry: Geometry, at: u64) -> Option<u64> {
    if at >= geometry.end() {
        return None;
    }
    let mut table = root;
    for level in (1..=geometry.levels()).rev() {
        let entry = tables.load(table, index(at, level));
        if entry & (READ | WRITE) == 0 {
            return None;
        }
        if level == 1 || entry & LARGE != 0 {
            let span = PAGE << (9 * (level - 1));
            return Some((entry & ADDRESS) + at % span);
        }
        table = entry & ADDRESS;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Memory with room for so many tables.
    struct Memory {
        tables: BTreeMap<u64, Vec<u64>>,
        room: usize,
    }

    impl Memory {
        fn new(room: usize) -> (Self, u64) {
            let tables = BTreeMap::new();
            let mut memory = Self {
                tables,
                room: room + 1,
            };
            let root = memory.table().unwrap();
            (memory, root)
        }
    }

    impl Tables for Memory {
        fn table(&mut self) -> Option<u64> {
            let at = 0x10_0000 + self.tables.len() as u64 * PAGE;
            (self.tables.len() < self.room).then(|| {
                self.tables.insert(at, vec![0; 512]);
                at
            })
        }
        fn load(&self, table: u64, index: usize) -> u64 {
            self.tables[&table][index]
        }
        fn store(&mut self, table: u64, index: usize, entry: u64) {
            self.tables.get_mut(&table).unwrap()[index] = entry;
        }
    }

    fn geometry() -> impl Strategy<Value = Geometry> {
        (any::<bool>(), any::<bool>()).prop_map(|(four_levels, large_pages)| Geometry {
            four_levels,
            large_pages,
        })
    }

    proptest! {
        /// All that is mapped is translated, and nothing else, also when memory for tables is
        /// short.
        #[test]
        fn tables_say_what_a_set_says(
            geometry in geometry(),
            room in 0..12_usize,
            steps in proptest::collection::vec((any::<bool>(), 0..6_u64, 0..4_u64, 1..64_u64), 1..80),
        ) {
            let (mut memory, root) = Memory::new(room);
            let mut set = BTreeMap::new();
            let place = |high: u64, low: u64| {
                let start = high * (geometry.end() / 5);
                start - start % GRANULE + low * GRANULE
            };
            for (maps, high, low, phys) in steps {
                let (at, phys) = (place(high, low), phys * GRANULE);
                if maps {
                    let before = set.get(&at).copied();
                    let mapped = map(&mut memory, root, geometry, at, phys);
                    if mapped.is_ok() {
                        set.insert(at, phys);
                    } else {
                        prop_assert!(at >= geometry.end() || memory.tables.len() > room);
                        prop_assert_eq!(before, None, "what is there needs no table");
                    }
                } else {
                    unmap(&mut memory, root, geometry, at);
                    set.remove(&at);
                }
            }
            for high in 0..6 {
                for low in 0..5 {
                    let at = place(high, low);
                    for offset in [0, 1, 4095, 4096, GRANULE / 2, GRANULE - 1] {
                        let wanted = set.get(&at).map(|phys| phys + offset);
                        prop_assert_eq!(translate(&memory, root, geometry, at + offset), wanted);
                    }
                    if at > 0 {
                        let before = set.get(&(at - GRANULE)).map(|phys| phys + GRANULE - 1);
                        prop_assert_eq!(translate(&memory, root, geometry, at - 1), before);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_granule_is_refused() {
        let geometry = Geometry {
            four_levels: false,
            large_pages: true,
        };
        let (mut memory, root) = Memory::new(9);
        for (at, phys) in [
            (4096, 0),
            (0, 4096),
            (1 << 39, 0),
            (0, 1 << 52),
            (!(GRANULE - 1), 0),
        ] {
            assert_eq!(map(&mut memory, root, geometry, at, phys), Err(NoTable));
        }
        assert_eq!(memory.tables.len(), 1);
        unmap(&mut memory, root, geometry, u64::MAX);
    }

    /// Entries as the standard lays them out (9.8), so that the walk above agrees with more than
    /// itself.
    #[test]
    fn entries_are_those_of_the_standard() {
        let (mut memory, root) = Memory::new(9);
        let geometry = Geometry {
            four_levels: true,
            large_pages: true,
        };
        let at = 1 << 39 | 2 << 30 | 3 << 21;
        map(&mut memory, root, geometry, at, 5 << 21).unwrap();
        let third = memory.load(root, 1);
        assert_eq!(third & 0xfff, 3);
        let second = memory.load(third & ADDRESS, 2);
        assert_eq!(second & 0xfff, 3);
        assert_eq!(memory.load(second & ADDRESS, 3), 5 << 21 | 0x83);
    }
}
