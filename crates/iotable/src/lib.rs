//! Tables by which units translate: from addresses that devices use to those of the machine. They
//! are like a processor's, of three or four levels; Intel's and AMD's differ in their entries
//! ([`Format`]).
//!
//! Memory changes hands by granules of 2 MiB, and so it is translated. A table, once it is there,
//! stays until its domain ends.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// Bytes of a granule.
pub const GRANULE: u64 = 2 << 20;
const PAGE: u64 = 4096;

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Format of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Intel's (VT-d 4.1, 9.8): an entry counts if it allows reading or writing, and a bit says
    /// that one above the last level stands for memory.
    Intel,
    /// AMD's (AMD I/O Virtualization Technology 3.05, 2.2.3): an entry says of which level the
    /// table below it is, and stands for memory if of none.
    Amd,
}

/// Meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Absent,
    Table(u64),
    Memory(u64),
}

impl Format {
    const READ: u64 = 1 << 0;
    const WRITE: u64 = 1 << 1;
    const LARGE: u64 = 1 << 7;

    const PRESENT: u64 = 1 << 0;
    const LEVEL: u32 = 9;
    /// Snooped by processors' caches, read, written.
    const ACCESS: u64 = 1 << 60 | 1 << 61 | 1 << 62;
    const MAY_READ_WRITE: u64 = 1 << 61 | 1 << 62;

    /// The entry, in a table of a level, for the table below.
    const fn table(self, level: u32, at: u64) -> u64 {
        match self {
            Self::Intel => at | Self::READ | Self::WRITE,
            Self::Amd => {
                let below = (level as u64 - 1) << Self::LEVEL;
                at | Self::PRESENT | below | Self::MAY_READ_WRITE
            }
        }
    }

    /// The entry, in a table of a level, for memory.
    const fn memory(self, level: u32, at: u64) -> u64 {
        match self {
            Self::Intel if level > 1 => at | Self::LARGE | Self::READ | Self::WRITE,
            Self::Intel => at | Self::READ | Self::WRITE,
            Self::Amd => at | Self::PRESENT | Self::ACCESS,
        }
    }

    /// Meaning of an entry in a table of a level.
    const fn meaning(self, level: u32, entry: u64) -> Entry {
        let (is_absent, is_memory) = match self {
            Self::Intel => (
                entry & (Self::READ | Self::WRITE) == 0,
                level == 1 || entry & Self::LARGE != 0,
            ),
            Self::Amd => (entry & Self::PRESENT == 0, entry >> Self::LEVEL & 7 == 0),
        };
        match entry & ADDRESS {
            _ if is_absent => Entry::Absent,
            at if is_memory => Entry::Memory(at),
            at => Entry::Table(at),
        }
    }
}

/// Kind of a request that a unit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read of memory.
    Read,
    /// A write.
    Write,
    /// An interrupt.
    Interrupt,
}

/// Shape of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Format of the entries.
    pub format: Format,
    /// Flag: four levels, for 48 bits; otherwise three, for 39.
    pub four_levels: bool,
    /// Flag: an entry may stand for 2 MiB.
    pub large_pages: bool,
}

impl Geometry {
    /// Number of levels.
    #[must_use]
    pub const fn levels(self) -> u32 {
        if self.four_levels { 4 } else { 3 }
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

/// The table below an entry of one of a level, which is made if need be.
fn make_below(
    tables: &mut impl Tables,
    format: Format,
    level: u32,
    table: u64,
    index: usize,
) -> Result<u64, NoTable> {
    if let Entry::Table(next) = format.meaning(level, tables.load(table, index)) {
        return Ok(next);
    }
    let next = tables.table().ok_or(NoTable)?;
    tables.store(table, index, format.table(level, next));
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
    let format = geometry.format;
    let is_whole = at.is_multiple_of(GRANULE) && phys.is_multiple_of(GRANULE);
    if !is_whole || at >= geometry.end() || phys & !ADDRESS != 0 {
        return Err(NoTable);
    }
    let mut table = root;
    for level in (3..=geometry.levels()).rev() {
        table = make_below(tables, format, level, table, index(at, level))?;
    }
    if geometry.large_pages {
        tables.store(table, index(at, 2), format.memory(2, phys));
        return Ok(());
    }
    let last = make_below(tables, format, 2, table, index(at, 2))?;
    for page in 0..512 {
        let at = phys + page as u64 * PAGE;
        tables.store(last, page, format.memory(1, at));
    }
    Ok(())
}

/// Has a granule stand for nothing. The unit may remember what it stood for until it is told to
/// forget.
pub fn unmap(tables: &mut impl Tables, root: u64, geometry: Geometry, at: u64) {
    if at >= geometry.end() {
        return;
    }
    let meaning = |tables: &_, table, level| {
        let entry = Tables::load(tables, table, index(at, level));
        geometry.format.meaning(level, entry)
    };
    let mut table = root;
    for level in (3..=geometry.levels()).rev() {
        match meaning(tables, table, level) {
            Entry::Table(next) => table = next,
            _ => return,
        }
    }
    match meaning(tables, table, 2) {
        Entry::Table(last) => (0..512).for_each(|page| tables.store(last, page, 0)),
        _ => tables.store(table, index(at, 2), 0),
    }
}

/// A look at tables that are there already.
pub trait Walk {
    /// There is a table at this address: before anything of it is loaded. False ends the walk.
    fn enter(&mut self, table: u64) -> bool;

    /// The entry of a table that was [entered](Self::enter).
    fn load(&self, table: u64, index: usize) -> u64;

    /// A granule of devices' addresses, `at`, stands for one of the machine's. False ends the walk.
    fn granule(&mut self, at: u64, phys: u64) -> bool;
}

/// Walks tables, ascending by addresses of devices. False if the walk was ended, or the tables are
/// none that [`map`] and [`unmap`] make.
pub fn walk(walk: &mut impl Walk, root: u64, geometry: Geometry) -> bool {
    walk_below(walk, root, geometry, geometry.levels(), 0)
}

fn walk_below(
    walk: &mut impl Walk,
    table: u64,
    geometry: Geometry,
    level: u32,
    start: u64,
) -> bool {
    if !walk.enter(table) {
        return false;
    }
    (0..512).all(|index| {
        let entry = walk.load(table, index);
        let at = start + ((index as u64) << (12 + 9 * (level - 1)));
        let phys = entry & ADDRESS;
        match geometry.format {
            _ if entry == 0 => true,
            format if level == 2 && geometry.large_pages => {
                let is_large = entry == format.memory(2, phys) && phys.is_multiple_of(GRANULE);
                is_large && walk.granule(at, phys)
            }
            format if entry != format.table(level, phys) => false,
            _ if level > 2 => walk_below(walk, phys, geometry, level - 1, at),
            format => walk_pages(walk, format, phys, at),
        }
    })
}

/// Walks a table of pages, which all are there, in a row, or none is.
fn walk_pages(walk: &mut impl Walk, format: Format, table: u64, at: u64) -> bool {
    if !walk.enter(table) {
        return false;
    }
    let first = walk.load(table, 0);
    let is_row = (0..512).all(|page| {
        let step = if first == 0 { 0 } else { page as u64 * PAGE };
        walk.load(table, page) == first.wrapping_add(step)
    });
    if first == 0 {
        return is_row;
    }
    let phys = first & ADDRESS;
    let is_granule = first == format.memory(1, phys) && phys.is_multiple_of(GRANULE);
    is_row && is_granule && walk.granule(at, phys)
}

/// Address of the machine that an address stands for, as the unit finds it; `None` if for none.
pub fn translate(tables: &impl Tables, root: u64, geometry: Geometry, at: u64) -> Option<u64> {
    if at >= geometry.end() {
        return None;
    }
    let mut table = root;
    for level in (1..=geometry.levels()).rev() {
        let entry = tables.load(table, index(at, level));
        match geometry.format.meaning(level, entry) {
            Entry::Absent => return None,
            Entry::Memory(start) => {
                let span = PAGE << (9 * (level - 1));
                return Some(start + at % span);
            }
            Entry::Table(next) => table = next,
        }
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
        let format = prop_oneof![Just(Format::Intel), Just(Format::Amd)];
        (format, any::<bool>(), any::<bool>()).prop_map(|(format, four_levels, large_pages)| {
            Geometry {
                format,
                four_levels,
                large_pages,
            }
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

    /// A walk that tells what it comes by.
    struct Seen<'a> {
        memory: &'a Memory,
        tables: Vec<u64>,
        granules: Vec<(u64, u64)>,
    }

    impl Walk for Seen<'_> {
        fn enter(&mut self, table: u64) -> bool {
            let is_new = !self.tables.contains(&table);
            self.tables.push(table);
            is_new && self.memory.tables.contains_key(&table)
        }
        fn load(&self, table: u64, index: usize) -> u64 {
            self.memory.load(table, index)
        }
        fn granule(&mut self, at: u64, phys: u64) -> bool {
            self.granules.push((at, phys));
            true
        }
    }

    fn seen(memory: &Memory, root: u64, geometry: Geometry) -> Option<Seen<'_>> {
        let mut seen = Seen {
            memory,
            tables: Vec::new(),
            granules: Vec::new(),
        };
        walk(&mut seen, root, geometry).then_some(seen)
    }

    proptest! {
        /// A walk comes by each table once, and by what is mapped and nothing else, ascending; any
        /// bit of any entry that is turned is seen.
        #[test]
        fn a_walk_sees_what_is_mapped(
            geometry in geometry(),
            steps in proptest::collection::vec((any::<bool>(), 0..4_u64, 0..4_u64, 1..64_u64), 1..20),
            (which, index, bit) in (any::<usize>(), 0..512_usize, 0..64),
        ) {
            let (mut memory, root) = Memory::new(100);
            let mut set = BTreeMap::new();
            for (maps, high, low, phys) in steps {
                let start = high * (geometry.end() / 5);
                let at = start - start % GRANULE + low * GRANULE;
                if maps {
                    map(&mut memory, root, geometry, at, phys * GRANULE).unwrap();
                    set.insert(at, phys * GRANULE);
                } else {
                    unmap(&mut memory, root, geometry, at);
                    set.remove(&at);
                }
            }
            let found = seen(&memory, root, geometry).unwrap();
            prop_assert_eq!(&found.granules, &set.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(found.tables.len(), memory.tables.len());
            let granules = found.granules;
            let tables: Vec<u64> = memory.tables.keys().copied().collect();
            memory.tables.get_mut(&tables[which % tables.len()]).unwrap()[index] ^= 1_u64 << bit;
            let other = seen(&memory, root, geometry);
            prop_assert!(other.is_none_or(|other| other.granules != granules));
        }
    }

    #[test]
    fn what_is_no_granule_is_refused() {
        let geometry = Geometry {
            format: Format::Intel,
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

    /// Entries as the standards lay them out, so that the walk above agrees with more than itself.
    #[test]
    fn entries_are_those_of_the_standards() {
        const RW: u64 = 3 << 61;
        for (format, large_pages, flags) in [
            (Format::Intel, true, [3, 3, 0x83, 0]),
            (Format::Intel, false, [3, 3, 3, 3]),
            (
                Format::Amd,
                true,
                [0x601 | RW, 0x401 | RW, 1 << 60 | RW | 1, 0],
            ),
            (
                Format::Amd,
                false,
                [0x601 | RW, 0x401 | RW, 0x201 | RW, 1 << 60 | RW | 1],
            ),
        ] {
            let (mut memory, root) = Memory::new(9);
            let geometry = Geometry {
                format,
                four_levels: true,
                large_pages,
            };
            let at = 1 << 39 | 2 << 30 | 3 << 21;
            map(&mut memory, root, geometry, at, 5 << 21).unwrap();
            let mut table = root;
            for (index, flags) in [1, 2, 3, 1].into_iter().zip(flags) {
                let entry = memory.load(table, index);
                table = entry & ADDRESS;
                assert_eq!(entry & !ADDRESS, flags, "{geometry:?} {index}");
                if index == 3 && large_pages {
                    break;
                }
            }
            let wanted = if large_pages {
                5 << 21
            } else {
                (5 << 21) + PAGE
            };
            assert_eq!(table, wanted);
        }
    }
}
