//! The switch against a model, and frames that nobody may send.

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const SUPERVISOR: Ipv4Addr = Subnet::BRIDGE.gateway();
const EVERYBODY: [u8; 6] = [0xff; 6];

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, last)
}

/// An IPv4 frame.
fn packet(to: [u8; 6], from: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&to[..], &mac_of(from), &[8, 0, 0x45]].concat();
    frame.resize(14 + 20, 0);
    frame[26..30].copy_from_slice(&from.octets());
    frame
}

/// An ARP frame that tells of an address.
fn arp(from: Ipv4Addr, told: Ipv4Addr) -> Vec<u8> {
    let mut frame = [
        &EVERYBODY[..],
        &mac_of(from),
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
    ]
    .concat();
    frame.extend(mac_of(from));
    frame.extend(told.octets());
    frame.resize(14 + 28, 0);
    frame
}

fn two() -> Switch<()> {
    let mut switch = Switch::new(Subnet::BRIDGE);
    assert_eq!(switch.add(7, None, ()), Ok(address(2)));
    assert_eq!(switch.add(8, None, ()), Ok(address(3)));
    switch
}

#[test]
fn a_frame_goes_to_whom_it_is_for() {
    let mut switch = two();
    let supervisor = mac_of(SUPERVISOR);
    let outside = Ipv4Addr::new(192, 0, 2, 1);
    for (source, frame, verdict) in [
        (
            Source::Port(7),
            packet(mac_of(address(3)), address(2)),
            Verdict::Port(8),
        ),
        (
            Source::Port(8),
            packet(supervisor, address(3)),
            Verdict::Uplink,
        ),
        (Source::Port(8), packet(EVERYBODY, address(3)), Verdict::All),
        (Source::Port(8), arp(address(3), address(3)), Verdict::All),
        (
            Source::Port(8),
            arp(address(3), Ipv4Addr::UNSPECIFIED),
            Verdict::All,
        ),
        (
            Source::Port(8),
            packet(mac_of(address(9)), address(3)),
            Verdict::Nobody,
        ),
        (
            Source::Port(8),
            packet([2, 0, 10, 88, 0, 2], address(3)),
            Verdict::Nobody,
        ),
        (
            Source::Port(8),
            packet(mac_of(address(3)), address(3)),
            Verdict::Nobody,
        ),
        (
            Source::Port(9),
            packet(mac_of(address(3)), address(9)),
            Verdict::Refused,
        ),
        // What the supervisor forwards is of others.
        (
            Source::Uplink,
            packet(mac_of(address(3)), outside),
            Verdict::Port(8),
        ),
        (
            Source::Uplink,
            packet(supervisor, SUPERVISOR),
            Verdict::Nobody,
        ),
        (Source::Uplink, Vec::from([2; 5]), Verdict::Nobody),
    ] {
        assert_eq!(switch.judge(source, &frame), verdict, "{frame:x?}");
    }
    let counters = switch.port(8).unwrap().counters;
    assert_eq!(
        (counters.sent, counters.sent_lost, counters.refused),
        (4, 3, 0)
    );
    assert_eq!(counters.sent_bytes, 2 * 34 + 2 * 42);
}

#[test]
fn nobody_sends_as_another() {
    let mut switch = two();
    let mut wrong: Vec<Vec<u8>> = Vec::new();
    let right = packet(mac_of(address(3)), address(2));
    // Each byte of the sender's two addresses counts, and so do type and version.
    for at in (6..15).chain(26..30) {
        let mut frame = right.clone();
        frame[at] ^= if at == 14 { 0x20 } else { 1 };
        wrong.push(frame);
    }
    let right = arp(address(2), address(2));
    for at in (6..20).chain(22..32) {
        let mut frame = right.clone();
        frame[at] ^= 1;
        wrong.push(frame);
    }
    // Cut short, behind a tag, and of another protocol.
    wrong.extend((0..34).map(|len| packet(EVERYBODY, address(2))[..len].to_vec()));
    wrong.extend((0..42).map(|len| arp(address(2), address(2))[..len].to_vec()));
    for kind in [0x8100_u16, 0x88a8, 0x86dd, 0x0026] {
        let mut frame = packet(EVERYBODY, address(2));
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        wrong.push(frame);
    }
    for frame in &wrong {
        assert_eq!(
            switch.judge(Source::Port(7), frame),
            Verdict::Refused,
            "{frame:x?}"
        );
    }
    let counters = switch.port(7).unwrap().counters;
    let refused = NetworkCounters {
        refused: wrong.len() as u64,
        ..NetworkCounters::default()
    };
    assert_eq!(counters, refused);
}

#[test]
fn addresses_are_given_once_and_come_back() {
    let mut switch = two();
    assert_eq!(switch.add(9, Some(address(3)), ()), Err(AddError::Taken(8)));
    for foreign in [
        Ipv4Addr::new(10, 88, 0, 0),
        SUPERVISOR,
        Ipv4Addr::new(10, 88, 255, 255),
        Ipv4Addr::new(10, 89, 0, 2),
        Ipv4Addr::new(192, 168, 0, 2),
    ] {
        assert_eq!(switch.add(9, Some(foreign), ()), Err(AddError::Foreign));
    }
    let last = Ipv4Addr::new(10, 88, 255, 254);
    assert_eq!(switch.add(9, Some(last), ()), Ok(last));
    assert_eq!(
        switch.remove(7).map(|port| port.address()),
        Some(address(2))
    );
    assert!(switch.remove(7).is_none());
    assert_eq!(switch.add(10, None, ()), Ok(address(2)));
    let rest = (11..).map_while(|number| switch.add(number, None, ()).ok());
    assert_eq!(rest.count(), MOST_PORTS - 3);
    assert_eq!(
        switch.add(9999, Some(address(254)), ()),
        Err(AddError::Full)
    );
}

proptest! {
    /// Ports that come and go: none has another's address, the lowest free one is given, and
    /// frames find the owner.
    #[test]
    fn ports_are_as_in_a_list(
        steps in prop::collection::vec(
            (0_u32..20, prop::option::of(1_u8..12), any::<bool>()), 1..80
        ),
    ) {
        let mut switch = Switch::new(Subnet::BRIDGE);
        let mut model: BTreeMap<u32, Ipv4Addr> = BTreeMap::new();
        for (number, wanted, adds) in steps {
            if adds && !model.contains_key(&number) {
                let wanted = wanted.map(address);
                let owner = |address| {
                    let mut all = model.iter();
                    all.find(|(_, has)| **has == address).map(|(number, _)| *number)
                };
                let expected = match wanted {
                    Some(SUPERVISOR) => Err(AddError::Foreign),
                    Some(wanted) => owner(wanted).map_or(Ok(wanted), |by| Err(AddError::Taken(by))),
                    None => {
                        let mut all = (2..).map(address);
                        Ok(all.find(|address| owner(*address).is_none()).unwrap())
                    }
                };
                prop_assert_eq!(switch.add(number, wanted, number), expected);
                model.extend(expected.ok().map(|address| (number, address)));
            } else {
                let removed = switch.remove(number).map(|port| (port.value, port.address()));
                prop_assert_eq!(removed, model.remove(&number).map(|address| (number, address)));
            }
            for (number, has) in &model {
                let frame = packet(mac_of(*has), Ipv4Addr::new(8, 8, 8, 8));
                prop_assert_eq!(switch.judge(Source::Uplink, &frame), Verdict::Port(*number));
                prop_assert_eq!(switch.port(*number).map(Port::address), Some(*has));
            }
            prop_assert_eq!(switch.ports().count(), model.len());
        }
    }

    /// Whatever bytes come: a port's frame goes on only if it is of that port.
    #[test]
    fn any_bytes_are_judged(
        mut frame in prop::collection::vec(any::<u8>(), 0..80), as_own in any::<bool>(),
    ) {
        let mut switch = two();
        if as_own && frame.len() >= 14 {
            frame[6..12].copy_from_slice(&mac_of(address(2)));
            let kind = if frame[0] & 2 == 0 { 0 } else { 6 };
            frame[12..14].copy_from_slice(&[8, kind]);
        }
        let verdict = switch.judge(Source::Port(7), &frame);
        prop_assert_eq!(verdict == Verdict::Refused, !sends_as(&frame, address(2)));
        prop_assert_ne!(verdict, Verdict::Port(7));
    }
}

#[test]
fn a_small_network_is_full_when_its_addresses_are_taken() {
    let gateway = Ipv4Addr::new(10, 90, 0, 6);
    let mut switch = Switch::new(Subnet::new(gateway, 29).unwrap());
    let all: Vec<_> = (0..6).map(|number| switch.add(number, None, ())).collect();
    let free = [1, 2, 3, 4, 5].map(|last| Ok(Ipv4Addr::new(10, 90, 0, last)));
    assert_eq!(all[..5], free);
    assert_eq!(all[5], Err(AddError::Full));
    switch.remove(2);
    assert_eq!(switch.add(9, None, ()), free[2]);
    assert_eq!(
        switch.judge(Source::Port(9), &packet(mac_of(gateway), free[2].unwrap())),
        Verdict::Uplink
    );
}
