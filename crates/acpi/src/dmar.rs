//! The units that translate what devices read and write, and the functions behind each (DMAR;
//! Intel Virtualization Technology for Directed I/O 4.1, chapter 8).
//!
//! The table is checked as a whole before anything of it is used: a unit that is missed would leave
//! devices unconfined, so a table that lies is refused with its reason.

use core::fmt;

/// Bytes of the header that all tables have.
const HEADER: usize = 36;
/// Bytes before the first structure: header, width of addresses, flags, reserved.
const FIXED: usize = HEADER + 12;
/// Bytes of a structure before its first scope: a unit's, and a reserved region's.
const UNIT: usize = 16;
const REGION: usize = 24;

const KIND_UNIT: u16 = 0;
const KIND_REGION: u16 = 1;
/// Place of the flags of the table, and the one that its units remap interrupts.
const FLAGS: usize = HEADER + 1;
const REMAPS_INTERRUPTS: u8 = 1 << 0;
/// Flag of a unit: it has all functions of its segment that no other unit has.
const COVERS_REST: u8 = 1 << 0;

/// Reason why a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmarError {
    /// Fewer bytes than the fixed part, or than it says.
    Short,
    /// A structure or a scope at this offset is longer than what it is in, or too short.
    Length(usize),
    /// A unit's registers are nowhere, or on no page boundary; its offset.
    Registers(usize),
    /// Two units have the same registers; the offset of the second.
    Twice(usize),
    /// A unit at this offset stands behind the one that has all other functions of its segment.
    Rest(usize),
    /// A reserved region at this offset ends before it begins.
    Region(usize),
    /// There is no unit.
    NoUnit,
}

impl fmt::Display for DmarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("it is shorter than it says"),
            Self::Length(at) => write!(f, "what is at byte {at} does not fit into it"),
            Self::Registers(at) => write!(f, "the unit at byte {at} has no registers"),
            Self::Twice(at) => write!(f, "the unit at byte {at} is there twice"),
            Self::Rest(at) => write!(
                f,
                "the unit at byte {at} stands behind one that has the rest"
            ),
            Self::Region(at) => write!(f, "the region at byte {at} ends before it begins"),
            Self::NoUnit => f.write_str("it names no unit"),
        }
    }
}

impl core::error::Error for DmarError {}

/// A table that makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Dmar<'a>(&'a [u8]);

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit<'a> {
    /// Physical address of its registers.
    pub registers: u64,
    /// Segment of its functions.
    pub segment: u16,
    /// Flag: it has all functions of the segment that no other unit has.
    pub covers_rest: bool,
    scopes: &'a [u8],
}

/// Memory that functions use for the firmware, whoever has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region<'a> {
    /// First byte.
    pub base: u64,
    /// Last byte.
    pub limit: u64,
    /// Segment of the functions.
    pub segment: u16,
    scopes: &'a [u8],
}

/// Kind of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// One function.
    Endpoint,
    /// A bridge and all that is behind it.
    Bridge,
    /// An interrupt controller for lines.
    IoApic,
    /// A timer, or what only AML names: no function that is given.
    Other,
}

/// A scope: where one function is, by a way over bridges, which have no fixed bus numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Kind of the function.
    pub kind: ScopeKind,
    /// Number of an interrupt controller, as the table of these has it.
    pub id: u8,
    first_bus: u8,
    /// Device and function, two bytes for each step.
    path: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Structures of a table's bytes: offset, kind, bytes. Ends with an error where one does not fit.
fn structures(table: &[u8]) -> impl Iterator<Item = Result<(usize, u16, &[u8]), DmarError>> {
    let mut at = FIXED;
    core::iter::from_fn(move || {
        if at == table.len() {
            return None;
        }
        let (start, rest) = (at, &table[at..]);
        // An error is the last item.
        at = table.len();
        if rest.len() < 4 {
            return Some(Err(DmarError::Length(start)));
        }
        let (kind, length) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
        if length < 4 || length > rest.len() {
            return Some(Err(DmarError::Length(start)));
        }
        at = start + length;
        Some(Ok((start, kind, &rest[..length])))
    })
}

/// Scopes in the bytes behind a structure's fixed part; `None` where one does not fit.
fn scopes(bytes: &[u8]) -> impl Iterator<Item = Option<Scope<'_>>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let length = match *rest {
            [] => return None,
            [_, length, ..] => usize::from(length),
            [_] => 0,
        };
        let fits = length >= 8 && length <= rest.len() && length.is_multiple_of(2);
        let scope = fits.then(|| Scope {
            kind: match rest[0] {
                1 => ScopeKind::Endpoint,
                2 => ScopeKind::Bridge,
                3 => ScopeKind::IoApic,
                _ => ScopeKind::Other,
            },
            id: rest[4],
            first_bus: rest[5],
            path: &rest[6..length],
        });
        rest = if fits { &rest[length..] } else { &[] };
        Some(scope)
    })
}

impl<'a> Dmar<'a> {
    /// The table of these bytes, header included, whose checksum was seen to be right.
    ///
    /// # Errors
    /// [`DmarError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DmarError> {
        let length = bytes.get(4..8).ok_or(DmarError::Short)?;
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length < FIXED || length > bytes.len() {
            return Err(DmarError::Short);
        }
        let table = Self(&bytes[..length]);
        for structure in structures(table.0) {
            let (at, kind, structure) = structure?;
            let fixed = match kind {
                KIND_UNIT => UNIT,
                KIND_REGION => REGION,
                _ => continue,
            };
            if structure.len() < fixed {
                return Err(DmarError::Length(at));
            }
            if scopes(&structure[fixed..]).any(|scope| scope.is_none()) {
                return Err(DmarError::Length(at));
            }
            if kind == KIND_UNIT {
                table.check_unit(at, &unit(structure))?;
            } else if u64_at(structure, 8) > u64_at(structure, 16) {
                return Err(DmarError::Region(at));
            }
        }
        if table.units().next().is_none() {
            return Err(DmarError::NoUnit);
        }
        Ok(table)
    }

    /// Checks a unit at an offset against those before it.
    fn check_unit(&self, at: usize, unit: &Unit<'_>) -> Result<(), DmarError> {
        if unit.registers == 0 || !unit.registers.is_multiple_of(4096) {
            return Err(DmarError::Registers(at));
        }
        let before = self
            .units_with_offsets()
            .take_while(|(place, _)| *place < at);
        for (_, other) in before {
            if other.registers == unit.registers {
                return Err(DmarError::Twice(at));
            }
            if other.segment == unit.segment && other.covers_rest {
                return Err(DmarError::Rest(at));
            }
        }
        Ok(())
    }

    fn of_kind(&self, wanted: u16) -> impl Iterator<Item = (usize, &'a [u8])> {
        let all = structures(self.0).flatten();
        all.filter(move |(_, kind, _)| *kind == wanted)
            .map(|(at, _, structure)| (at, structure))
    }

    fn units_with_offsets(&self) -> impl Iterator<Item = (usize, Unit<'a>)> {
        let all = self.of_kind(KIND_UNIT);
        all.map(|(at, structure)| (at, unit(structure)))
    }

    /// The units, in the order of the table.
    pub fn units(&self) -> impl Iterator<Item = Unit<'a>> {
        self.units_with_offsets().map(|(_, unit)| unit)
    }

    /// The reserved regions.
    pub fn regions(&self) -> impl Iterator<Item = Region<'a>> {
        let all = self.of_kind(KIND_REGION);
        all.map(|(_, structure)| Region {
            base: u64_at(structure, 8),
            limit: u64_at(structure, 16),
            segment: u16_at(structure, 6),
            scopes: &structure[REGION..],
        })
    }

    /// The number, in the order of the table, of the unit that has a function; `None` if none has.
    /// `buses` says of a bridge, by bus and place on the bus, which buses are behind it.
    pub fn unit_of(
        &self,
        segment: u16,
        function: (u8, u8),
        buses: impl Fn(u8, u8) -> Option<(u8, u8)>,
    ) -> Option<usize> {
        let of_segment = || {
            let all = self.units().enumerate();
            all.filter(|(_, unit)| unit.segment == segment)
        };
        let named = of_segment().find(|(_, unit)| {
            let mut scopes = unit.scopes();
            scopes.any(|scope| scope.has(function, &buses))
        });
        let found = named.or_else(|| of_segment().find(|(_, unit)| unit.covers_rest));
        found.map(|(number, _)| number)
    }

    /// Flag: the units can remap interrupts.
    #[must_use]
    pub fn remaps_interrupts(&self) -> bool {
        self.0[FLAGS] & REMAPS_INTERRUPTS != 0
    }

    /// The number, in the order of the table, of the unit that has an interrupt controller for
    /// lines, by that one's id, and the bus and the place on it in whose name it sends; `None` if
    /// none has. `buses` is as with [`Self::unit_of`].
    pub fn ioapic(
        &self,
        id: u8,
        buses: impl Fn(u8, u8) -> Option<(u8, u8)>,
    ) -> Option<(usize, (u8, u8))> {
        self.units().enumerate().find_map(|(number, unit)| {
            let mut scopes = unit.scopes();
            let scope = scopes.find(|scope| scope.kind == ScopeKind::IoApic && scope.id == id)?;
            Some((number, scope.function(&buses)?))
        })
    }

    /// Whether a function uses memory for the firmware.
    pub fn is_reserved(
        &self,
        segment: u16,
        function: (u8, u8),
        buses: impl Fn(u8, u8) -> Option<(u8, u8)>,
    ) -> bool {
        let mut regions = self.regions().filter(|region| region.segment == segment);
        regions.any(|region| {
            let mut scopes = scopes(region.scopes).flatten();
            scopes.any(|scope| scope.has(function, &buses))
        })
    }
}

/// A unit of a structure that is long enough.
fn unit(structure: &[u8]) -> Unit<'_> {
    Unit {
        registers: u64_at(structure, 8),
        segment: u16_at(structure, 6),
        covers_rest: structure[4] & COVERS_REST != 0,
        scopes: structure.get(UNIT..).unwrap_or_default(),
    }
}

impl<'a> Unit<'a> {
    /// Scopes of the unit.
    pub fn scopes(&self) -> impl Iterator<Item = Scope<'a>> {
        scopes(self.scopes).flatten()
    }
}

impl Scope<'_> {
    /// Bus of the function, and place on it; `None` if the way leads over what is no bridge.
    pub fn function(&self, buses: impl Fn(u8, u8) -> Option<(u8, u8)>) -> Option<(u8, u8)> {
        let mut steps = self
            .path
            .chunks_exact(2)
            .map(|step| step[0] << 3 | step[1] & 7);
        let mut place = (self.first_bus, steps.next()?);
        for step in steps {
            place = (buses(place.0, place.1)?.0, step);
        }
        Some(place)
    }

    /// Whether it is of a function.
    fn has(&self, function: (u8, u8), buses: &impl Fn(u8, u8) -> Option<(u8, u8)>) -> bool {
        let Some(place) = self.function(buses) else {
            return false;
        };
        match self.kind {
            ScopeKind::Endpoint => place == function,
            ScopeKind::Bridge => {
                let behind = buses(place.0, place.1);
                place == function
                    || behind.is_some_and(|(first, last)| (first..=last).contains(&function.0))
            }
            ScopeKind::IoApic | ScopeKind::Other => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(structures: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; FIXED];
        bytes[..4].copy_from_slice(b"DMAR");
        bytes.extend(structures.concat());
        let length = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn structure(kind: u16, fixed: &[u8], scopes: &[Vec<u8>]) -> Vec<u8> {
        let scopes = scopes.concat();
        let length = (4 + fixed.len() + scopes.len()) as u16;
        let mut bytes = [kind.to_le_bytes(), length.to_le_bytes()].concat();
        bytes.extend(fixed);
        bytes.extend(scopes);
        bytes
    }

    fn unit(registers: u64, segment: u16, flags: u8, scopes: &[Vec<u8>]) -> Vec<u8> {
        let mut fixed = vec![flags, 0];
        fixed.extend(segment.to_le_bytes());
        fixed.extend(registers.to_le_bytes());
        structure(KIND_UNIT, &fixed, scopes)
    }

    fn region(base: u64, limit: u64, scopes: &[Vec<u8>]) -> Vec<u8> {
        let mut fixed = vec![0; 4];
        fixed.extend(base.to_le_bytes());
        fixed.extend(limit.to_le_bytes());
        structure(KIND_REGION, &fixed, scopes)
    }

    fn scope(kind: u8, bus: u8, path: &[(u8, u8)]) -> Vec<u8> {
        let mut bytes = vec![kind, 6 + 2 * path.len() as u8, 0, 0, 0, bus];
        bytes.extend(
            path.iter()
                .flat_map(|(device, function)| [*device, *function]),
        );
        bytes
    }

    /// A bridge at 0:1.0 to buses 5 to 9, and one at 5:0.0 to bus 7.
    fn buses(bus: u8, devfn: u8) -> Option<(u8, u8)> {
        match (bus, devfn) {
            (0, 0x08) => Some((5, 9)),
            (5, 0) => Some((7, 7)),
            _ => None,
        }
    }

    #[test]
    fn each_function_is_found_at_its_unit() {
        let bytes = table(&[
            unit(0xfed9_0000, 0, 0, &[scope(1, 0, &[(2, 0)])]),
            unit(
                0xfed9_1000,
                0,
                0,
                &[scope(2, 0, &[(1, 0), (0, 0)]), scope(3, 0, &[(31, 7)])],
            ),
            structure(2, &[0; 4], &[]),
            unit(0xfed9_2000, 0, COVERS_REST, &[]),
            unit(0xfed9_3000, 1, 0, &[scope(1, 0, &[(2, 0)])]),
            region(0x1000, 0x1fff, &[scope(1, 0, &[(2, 0)])]),
        ]);
        let dmar = Dmar::parse(&bytes).unwrap();
        assert_eq!(dmar.units().count(), 4);
        for (segment, function, wanted) in [
            (0, (0, 0x10), Some(0)),
            (0, (0, 0x11), Some(2)),
            (0, (5, 0), Some(1)),
            (0, (7, 0x18), Some(1)),
            (0, (8, 0), Some(2)),
            // The interrupt controller's number is no function's.
            (0, (0, 0xff), Some(2)),
            (1, (0, 0x10), Some(3)),
            (1, (0, 0x18), None),
            (2, (0, 0x10), None),
        ] {
            assert_eq!(
                dmar.unit_of(segment, function, buses),
                wanted,
                "{function:x?}"
            );
        }
        assert!(dmar.is_reserved(0, (0, 0x10), buses));
        assert!(!dmar.is_reserved(0, (5, 0), buses) && !dmar.is_reserved(1, (0, 0x10), buses));
        assert_eq!(dmar.ioapic(0, buses), Some((1, (0, 0xff))));
        assert_eq!(dmar.ioapic(1, buses), None);
        assert!(!dmar.remaps_interrupts());
        let mut remaps = bytes.clone();
        remaps[FLAGS] = 1;
        assert!(Dmar::parse(&remaps).unwrap().remaps_interrupts());
        let regions: Vec<_> = dmar
            .regions()
            .map(|region| (region.base, region.limit))
            .collect();
        assert_eq!(regions, [(0x1000, 0x1fff)]);
    }

    #[test]
    fn a_table_that_lies_is_refused_with_its_reason() {
        let good = unit(0xfed9_0000, 0, 0, &[scope(1, 0, &[(2, 0)])]);
        let mut odd = good.clone();
        odd[UNIT + 1] = 7;
        let mut beyond = good.clone();
        beyond[UNIT + 1] = 10;
        let mut long = good.clone();
        long[2] += 1;
        let at = FIXED + good.len();
        for (structures, error) in [
            (vec![], DmarError::NoUnit),
            (vec![structure(2, &[0; 4], &[])], DmarError::NoUnit),
            (vec![odd], DmarError::Length(FIXED)),
            (vec![beyond], DmarError::Length(FIXED)),
            (vec![long], DmarError::Length(FIXED)),
            (vec![good.clone(), vec![0; 3]], DmarError::Length(at)),
            (vec![good.clone(), vec![0, 0, 0, 0]], DmarError::Length(at)),
            (
                vec![structure(KIND_UNIT, &[0; 8], &[])],
                DmarError::Length(FIXED),
            ),
            (
                vec![good.clone(), structure(KIND_REGION, &[0; 19], &[])],
                DmarError::Length(at),
            ),
            (vec![unit(0, 0, 1, &[])], DmarError::Registers(FIXED)),
            (
                vec![unit(0xfed9_0010, 0, 1, &[])],
                DmarError::Registers(FIXED),
            ),
            (vec![good.clone(), good.clone()], DmarError::Twice(at)),
            (vec![good.clone(), region(2, 1, &[])], DmarError::Region(at)),
            (
                vec![unit(0x1000, 0, 1, &[]), unit(0x2000, 0, 1, &[])],
                DmarError::Rest(FIXED + UNIT),
            ),
        ] {
            let bytes = table(&structures);
            assert_eq!(Dmar::parse(&bytes).map(drop), Err(error), "{structures:x?}");
        }
        let bytes = table(&[good]);
        for cut in 0..bytes.len() {
            assert_eq!(Dmar::parse(&bytes[..cut]).map(drop), Err(DmarError::Short));
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_read_to_its_end(
            body in proptest::collection::vec(any::<u8>(), 0..200),
            kinds in proptest::collection::vec((0..3u16, 0..80u16), 0..8),
        ) {
            let mut bytes = table(&[body]);
            // Some structures whose heads make sense.
            let mut at = FIXED;
            for (kind, length) in kinds {
                if at + 4 > bytes.len() {
                    break;
                }
                bytes[at..at + 2].copy_from_slice(&kind.to_le_bytes());
                bytes[at + 2..at + 4].copy_from_slice(&length.to_le_bytes());
                at += usize::from(length).max(4);
            }
            if let Ok(dmar) = Dmar::parse(&bytes) {
                prop_assert!(dmar.units().all(|unit| unit.registers != 0));
                for devfn in 0..=255 {
                    let number = dmar.unit_of(0, (0, devfn), |_, devfn| Some((devfn, 255)));
                    prop_assert!(number.is_none_or(|number| number < dmar.units().count()));
                    dmar.is_reserved(0, (0, devfn), |_, _| None);
                }
            }
        }
    }
}
