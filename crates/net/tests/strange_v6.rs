//! Packets of IPv6 that nobody sane sends.

mod common;

use std::net::Ipv6Addr;

use common::v6::{CLOCK, Machine, frame, header, ip, message, now};
use ip::SECOND;
use ip::v6::{address, icmp};
use net::inet::Ipv6Setting;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Headers, options and messages of every kind, near what makes sense: nothing panics, and the
    /// host answers after it.
    #[test]
    fn no_packet_is_too_strange(
        packets in proptest::collection::vec(strange(), 1..12),
    ) {
        let machine = Machine::down(1).up();
        machine.set(Ipv6Setting::DadTransmits, 0);
        machine.add(ip("2001:db8::1"));
        for packet in packets {
            machine.receive(packet);
            CLOCK.set(now() + SECOND / 7);
            machine.host.run_timers();
        }
        machine.end.take();
        let interface = machine.host.interface(machine.index).unwrap();
        prop_assert!(interface.addresses.len() <= 20);
        for data in machine.end.take() {
            prop_assert!(data.len() <= 1514);
        }
        let from = ip("2001:db8::77");
        let question = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &ip("2001:db8::1").octets(), &[1, 1, 2, 0, 0, 0, 0, 77]];
        let head = header(from, ip("2001:db8::1"), 255);
        machine.receive(message(machine.hardware, &head, question.concat()));
        let answers = machine.end.take();
        prop_assert!(answers.iter().any(|frame| frame.get(54) == Some(&136)), "{answers:?}");
    }
}

fn addresses() -> impl Strategy<Value = Ipv6Addr> {
    prop_oneof![
        Just(ip("2001:db8::1")),
        Just(ip("2001:db8::2")),
        Just(address::link_local([2, 0, 0, 0, 0, 1])),
        Just(address::link_local([2, 0, 0, 0, 0, 9])),
        Just(address::ALL_NODES),
        Just(address::solicited_node(ip("2001:db8::1"))),
        Just(Ipv6Addr::UNSPECIFIED),
        Just(Ipv6Addr::LOCALHOST),
        any::<u128>().prop_map(Ipv6Addr::from),
    ]
}

fn strange() -> impl Strategy<Value = Vec<u8>> {
    let extension = prop_oneof![
        (
            0u8..=60,
            0u8..3,
            proptest::collection::vec(any::<u8>(), 0..24)
        )
            .prop_map(|(kind, units, bytes)| {
                let mut bytes = bytes;
                bytes.resize(usize::from(units) * 8 + 6, 0);
                (kind, [&[0, units][..], &bytes].concat())
            }),
        (any::<u16>(), 0u32..3).prop_map(|(place, id)| {
            let [a, b] = (place & 0x1ff9).to_be_bytes();
            (44, [&[0, 0, a, b][..], &id.to_be_bytes()].concat())
        }),
        Just((0, vec![0, 0, 5, 2, 0, 0, 1, 0])),
    ];
    let upper = prop_oneof![
        (
            proptest::sample::select(vec![
                1u8, 2, 3, 4, 128, 129, 130, 133, 134, 135, 136, 137, 143
            ]),
            0u8..2,
            addresses(),
            proptest::collection::vec(any::<u8>(), 0..80),
            any::<bool>(),
        )
            .prop_map(|(kind, code, target, rest, is_whole)| {
                let bytes = [&[kind, code, 0, 0, 0, 0, 0, 0][..], &target.octets(), &rest].concat();
                (58, bytes, is_whole)
            }),
        (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..60))
            .prop_map(|(protocol, bytes)| (protocol, bytes, false)),
    ];
    (
        addresses(),
        addresses(),
        proptest::sample::select(vec![0u8, 1, 64, 255]),
        proptest::collection::vec(extension, 0..4),
        upper,
        -4i32..5,
    )
        .prop_map(|(source, destination, hops, extensions, upper, off)| {
            let (protocol, mut bytes, is_whole) = upper;
            if is_whole {
                icmp::seal(source, destination, &mut bytes);
            }
            let mut first = protocol;
            let mut all = Vec::new();
            for (kind, mut header) in extensions.into_iter().rev() {
                header[0] = first;
                first = kind;
                all = [header, all].concat();
            }
            all.extend_from_slice(&bytes);
            let to = if destination.is_multicast() {
                address::group_hardware(destination)
            } else {
                [2, 0, 0, 0, 0, 1]
            };
            let mut data = frame(to, &header(source, destination, hops), first, &all);
            let length = (all.len() as i32 + off).clamp(0, 65_535) as u16;
            data[18..20].copy_from_slice(&length.to_be_bytes());
            data
        })
}
