use pci::{Address, ConfigRegisters};

use super::*;

/// Header of a function: a device, or a bridge to these buses.
struct Header(Option<(u8, u8)>);

impl ConfigRegisters for Header {
    fn read(&self, offset: u16) -> u32 {
        match (offset, self.0) {
            (0x00, _) => 0x0010_1b36,
            (0x0c, Some(_)) => 1 << 16,
            (0x18, Some((first, last))) => u32::from(last) << 16 | u32::from(first) << 8,
            _ => 0,
        }
    }

    fn write(&self, _: u16, _: u32) {}
}

/// A function at a bus and a place on it, behind a bridge.
fn function(place: (u8, u8), behind: Option<(u8, u8)>, buses: Option<(u8, u8)>) -> Function {
    let at = |(bus, devfn): (u8, u8)| Address::new(0, bus, devfn >> 3, devfn & 7);
    Function::with_bars(at(place), behind.map(at), [None; 6], &Header(buses)).unwrap()
}

fn found(function: &Function, keeps_names: bool) -> Found<'_> {
    Found {
        function,
        config: 0,
        keeps_names,
    }
}

/// DMAR with one unit that has what is behind the bridge at 0:1.0 but for bus 5, one that has the
/// function at 1:0.0, and one that has the rest; the function at 1:0.0 uses memory of the firmware.
fn dmar() -> Vec<u8> {
    let unit = |flags: u8, at: u8, scope: &[u8]| {
        let mut bytes = vec![0, 0, 16 + scope.len() as u8, 0, flags, 0, 0, 0];
        bytes.extend([0, 0, at, 0xfe, 0, 0, 0, 0]);
        bytes.extend(scope);
        bytes
    };
    let one = [1, 10, 0, 0, 0, 0, 1, 0, 0, 0];
    let behind = [2, 8, 0, 0, 0, 0, 1, 0];
    let mut region = vec![1, 0, 34, 0, 0, 0, 0, 0];
    region.extend([0; 16]);
    region.extend(one);
    let mut bytes = b"DMAR".to_vec();
    bytes.resize(48, 0);
    bytes.extend(unit(0, 1, &one));
    bytes.extend(unit(0, 2, &behind));
    bytes.extend(unit(1, 3, &[]));
    bytes.extend(region);
    bytes[4] = bytes.len() as u8;
    bytes
}

/// IVRS with one unit that has all, and the function at 1:0.1 in the name of that at 1:0.0.
fn ivrs() -> Vec<u8> {
    let mut unit = vec![0x10, 0, 0, 0, 2, 0, 0x40, 0, 0, 0, 0xd8, 0xfe, 0, 0, 0, 0];
    unit.resize(24, 0);
    unit.extend([1, 0, 0, 0, 66, 1, 1, 0, 0, 0, 1, 0]);
    unit[2] = unit.len() as u8;
    let mut bytes = b"IVRS".to_vec();
    bytes.resize(48, 0);
    bytes.extend(unit);
    bytes[4] = bytes.len() as u8;
    bytes
}

#[test]
fn a_virtual_function_goes_by_the_unit_of_its_physical_one() {
    let bytes = dmar();
    let topology = Topology::Dmar(Dmar::parse(&bytes).unwrap());
    let bridge = function((0, 8), None, Some((1, 1)));
    let physical = function((1, 0), Some((0, 8)), None);
    let own = function((1, 1), Some((0, 8)), None);
    let other = function((0, 0x10), None, None);
    let all = [&bridge, &physical, &own, &other].map(|one| found(one, true));
    let place = |function: &Function| topology.place(function, &all.iter().copied());
    assert_eq!(place(&physical).unit, Some(0));
    assert!(place(&physical).is_reserved);
    // A function beside it is behind the bridge; a virtual one is where its physical one is, which
    // uses memory of the firmware.
    assert_eq!(
        (place(&own).unit, place(&own).is_reserved),
        (Some(1), false)
    );
    let mut own = own;
    own.physical = Some(physical.address);
    let place_of_own = place(&own);
    assert_eq!(
        (place_of_own.unit, place_of_own.is_reserved),
        (Some(0), true)
    );
    // It has a name of its own all the same.
    let sender = Sender {
        number: 0x101,
        buses: None,
    };
    assert_eq!((place_of_own.sender, place_of_own.is_alone), (sender, true));
    assert_eq!(
        (place(&other).unit, place(&bridge).unit),
        (Some(2), Some(1))
    );
}

#[test]
fn what_is_behind_a_bridge_that_keeps_no_names_is_not_alone() {
    let bytes = dmar();
    let topology = Topology::Dmar(Dmar::parse(&bytes).unwrap());
    let outer = function((0, 0x18), None, Some((2, 4)));
    let inner = function((2, 0), Some((0, 0x18)), Some((3, 4)));
    let deep = function((3, 8), Some((2, 0)), None);
    for (outer_keeps, inner_keeps, buses) in [
        (true, true, None),
        (true, false, Some((2, 3))),
        (false, true, Some((0, 3))),
        (false, false, Some((0, 3))),
    ] {
        let all = [
            found(&outer, outer_keeps),
            found(&inner, inner_keeps),
            found(&deep, true),
        ];
        let place = topology.place(&deep, &all.iter().copied());
        assert_eq!(place.sender.buses, buses);
        assert_eq!(place.is_alone, buses.is_none());
        assert_eq!(place.sender.number, 0x308);
        let place = topology.place(&outer, &all.iter().copied());
        assert!(place.is_alone, "it is behind nothing");
    }
    // Bridges that say that they are behind one another.
    let one = function((5, 0), Some((6, 0)), Some((6, 6)));
    let two = function((6, 0), Some((5, 0)), Some((5, 5)));
    let all = [found(&one, true), found(&two, true)];
    assert!(topology.place(&one, &all.iter().copied()).is_alone);
}

#[test]
fn a_function_that_sends_in_the_name_of_another_is_not_alone() {
    let bytes = ivrs();
    let topology = Topology::Ivrs(Ivrs::parse(&bytes).unwrap());
    let functions = [(1, 0), (1, 1), (1, 2)].map(|place| function(place, None, None));
    let all = functions.each_ref().map(|one| found(one, true));
    let places = functions
        .each_ref()
        .map(|one| topology.place(one, &all.iter().copied()));
    let is_alone = places.map(|place| place.is_alone);
    assert_eq!(is_alone, [true, false, true]);
    let names = places.map(|place| place.sender.number);
    assert_eq!(names, [0x100, 0x100, 0x102]);
    assert!(
        places
            .iter()
            .all(|place| place.unit == Some(0) && !place.is_reserved)
    );
}
