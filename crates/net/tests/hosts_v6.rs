//! Two hosts on one wire, over IPv6, in virtual time: addresses, neighbours, routers, sockets.

mod common;

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use abi::errno::Errno;
use common::v6::{
    CLOCK, Machine, ON_LINK_AND_AUTONOMOUS, advertisement, frame, header, inet, ip, kinds, message,
    now, pair, pass, prefix, receive, run, send,
};
use common::wire::End;
use common::{NOW, call, protocol};
use fs::OpenFlags;
use ip::SECOND;
use ip::neighbour::State;
use ip::route::{Insert, Kind, Prefix, Route};
use ip::v6::{address, icmp};
use linux_raw_sys::net as sys;
use net::inet::{Ipv6Scope, Ipv6Setting, procfs};
use net::socket::{InterfaceAddress, Interfaces, address_flag};
use net::{Address, LinkKind, NewInterface, SocketType};

#[test]
fn a_link_address_comes_after_nobody_has_answered() {
    let machine = Machine::down(1).up();
    let own = machine.link_address();
    assert_eq!(own, ip("fe80::ff:fe00:1"));
    assert_ne!(machine.flags(own).unwrap() & address_flag::TENTATIVE, 0);
    // Its group is told of at once; who has it is asked within a second.
    assert_eq!(kinds(&machine.end), [143]);
    let machines = [machine];
    pass(&machines, 3 * SECOND);
    assert_eq!(machines[0].flags(own), Some(address_flag::PERMANENT));
    CLOCK.set(now() + 60 * SECOND);
    assert!(machines[0].host.deadline().is_some(), "routers");
    pass(&machines, 60 * SECOND);
    assert_eq!(machines[0].host.deadline(), None, "nothing is left to do");
    assert_eq!(machines[0].count("Icmp6OutRouterSolicits"), 3);
    assert_eq!(machines[0].count("Icmp6OutNeighborSolicits"), 1);
    let text = procfs::if_inet6(machines[0].stack.inet());
    assert!(
        text.contains("fe8000000000000000000000000000ff".get(..20).unwrap())
            && text.contains("02 40 20 80     eth0"),
        "{text}"
    );
}

#[test]
fn two_with_one_address_do_not_both_use_it() {
    // Both ask at once: neither may have it.
    let machines = Vec::from([1, 1].map(|number| Machine::down(number).up()));
    pass(&machines, 10 * SECOND);
    let failed = |machine: &Machine| {
        let flags = machine.flags(machine.link_address()).unwrap();
        flags & address_flag::DAD_FAILED != 0
    };
    assert!(machines.iter().any(failed));
    // One that is in use stays so; the second one is told.
    let machines = pair();
    let shared = ip("2001:db8::9");
    machines[0].add(shared);
    pass(&machines, 5 * SECOND);
    machines[1].add(shared);
    pass(&machines, 5 * SECOND);
    assert_eq!(machines[0].flags(shared), Some(address_flag::PERMANENT));
    let flags = machines[1].flags(shared).unwrap();
    assert_ne!(flags & address_flag::DAD_FAILED, 0);
    let udp = machines[1].socket(SocketType::Datagram, 0);
    let bound = call(|caller| protocol(&udp).bind(caller, &inet(shared, 1, 0)));
    assert_eq!(bound, Err(Errno::EADDRNOTAVAIL));
}

#[test]
fn an_own_question_that_comes_back_is_no_other_host() {
    let machine = Machine::down(1).up();
    for _ in 0..4 {
        let due = machine.host.deadline().unwrap();
        CLOCK.set(due.max(now()));
        machine.host.run_timers();
        for data in machine.end.take() {
            machine.receive(data);
        }
    }
    let flags = machine.flags(machine.link_address());
    assert_eq!(flags, Some(address_flag::PERMANENT));
}

#[test]
fn neighbours_are_found_and_looked_after() {
    let machines = pair();
    let [client, server] = [machines[0].udp(1000), machines[1].udp(2000)];
    let to = inet(machines[1].link_address(), 2000, machines[0].index);
    assert_eq!(
        send(&client, &inet(machines[1].link_address(), 2000, 0), b"x"),
        Ok(1),
        "without a link the first one counts"
    );
    send(&client, &to, b"first").unwrap();
    run(&machines, &mut |_| false);
    let from = inet(machines[0].link_address(), 1000, machines[1].index);
    assert_eq!(receive(&server), Ok((b"x".to_vec(), Some(from.clone()))));
    assert_eq!(
        receive(&server),
        Ok((b"first".to_vec(), Some(from.clone())))
    );
    let state = |machine: &Machine| machine.host.neighbours().unwrap()[0].state;
    assert_eq!(
        (state(&machines[0]), state(&machines[1])),
        (State::Reachable, State::Stale)
    );
    send(&server, &from, b"answer").unwrap();
    run(&machines, &mut |_| false);
    assert_eq!(receive(&client).unwrap().0, b"answer");
    // Confirmed for a while, then stale; used, delayed, asked, and confirmed again.
    pass(&machines, 50 * SECOND);
    assert_eq!(state(&machines[0]), State::Stale);
    send(&client, &to, b"again").unwrap();
    assert_eq!(state(&machines[0]), State::Delay);
    pass(&machines, 6 * SECOND);
    assert_eq!(state(&machines[0]), State::Reachable);
    // One that is gone is asked three times, and its packets are lost.
    pass(&machines, 60 * SECOND);
    send(&client, &to, b"lost").unwrap();
    let mut asked = 0;
    for _ in 0..20 {
        CLOCK.set(now() + SECOND);
        machines[0].host.run_timers();
        asked += machines[0]
            .end
            .take()
            .iter()
            .filter(|frame| frame[54] == 135)
            .count();
    }
    assert_eq!((asked, state(&machines[0])), (3, State::Failed));
    // Who connects hears of it.
    call(|caller| protocol(&client).connect(caller, &to, NOW)).unwrap();
    let wants = 1i32.to_ne_bytes();
    protocol(&client)
        .set_option(sys::IPPROTO_IPV6 as u32, sys::IPV6_RECVERR, &wants)
        .unwrap();
    send(&client, &to, b"lost").unwrap();
    for _ in 0..5 {
        CLOCK.set(now() + SECOND);
        machines[0].host.run_timers();
    }
    assert_eq!(receive(&client), Err(Errno::EHOSTUNREACH));
}

#[test]
fn routers_bring_addresses_and_routes_for_a_time() {
    let machines = [Machine::down(1).up()];
    pass(&machines, 5 * SECOND);
    let [machine] = &machines;
    let options = [
        prefix("2001:db8:1::", ON_LINK_AND_AUTONOMOUS, 600, 300),
        vec![5, 1, 0, 0, 0, 0, 5, 0x78],
    ];
    machine.receive(advertisement(1800, &options.concat()));
    let own = ip("2001:db8:1::ff:fe00:1");
    assert_ne!(machine.flags(own).unwrap() & address_flag::TENTATIVE, 0);
    pass(&machines, 3 * SECOND);
    assert_eq!(machine.flags(own).unwrap() & address_flag::TENTATIVE, 0);
    let routes = machine.host.ipv6_routes().unwrap();
    let show = |(route, left): &(Route<Ipv6Addr>, Option<u64>)| {
        let Prefix { address, length } = route.destination;
        (
            address,
            length,
            route.gateway,
            left.map(|left| left / SECOND),
        )
    };
    let shown: Vec<_> = routes.iter().map(show).collect();
    let router = address::link_local([2, 0, 0, 0, 0, 9]);
    assert!(
        shown.contains(&(ip("2001:db8:1::"), 64, None, Some(597))),
        "{shown:?}"
    );
    assert!(
        shown.contains(&(ip("::"), 0, Some(router), Some(1797))),
        "{shown:?}"
    );
    // The way out is by the router, from the address that it has brought, in packets as it says.
    let udp = machine.udp(1000);
    machine.end.take();
    send(&udp, &inet(ip("2001:db8:2::1"), 9, 0), &[7; 1390]).unwrap();
    let sent = machine.end.take();
    assert_eq!(sent.len(), 2, "1,400 bytes take two");
    assert_eq!(
        (&sent[0][..6], &sent[0][22..38]),
        (&[2, 0, 0, 0, 0, 9][..], &own.octets()[..])
    );
    // Not preferred any more, then gone.
    pass(&machines, 300 * SECOND);
    assert_ne!(machine.flags(own).unwrap() & address_flag::DEPRECATED, 0);
    pass(&machines, 300 * SECOND);
    assert_eq!(machine.flags(own), None);
    pass(&machines, 1200 * SECOND);
    let routes = machine.host.ipv6_routes().unwrap();
    assert!(
        routes.iter().all(|(route, _)| route.gateway.is_none()),
        "{routes:?}"
    );
}

#[test]
fn a_router_may_go_but_not_cut_a_life_short() {
    let machines = [Machine::down(1).up()];
    let [machine] = &machines;
    pass(&machines, 5 * SECOND);
    let flags = ON_LINK_AND_AUTONOMOUS;
    machine.receive(advertisement(
        1800,
        &prefix("2001:db8:1::", flags, 86_400, 86_400),
    ));
    pass(&machines, 5 * SECOND);
    let own = ip("2001:db8:1::ff:fe00:1");
    machine.receive(advertisement(0, &prefix("2001:db8:1::", flags, 1, 1)));
    let gateways = || machine.host.ipv6_routes().unwrap();
    assert!(gateways().iter().all(|(route, _)| route.gateway.is_none()));
    pass(&machines, 7100 * SECOND);
    assert!(machine.flags(own).is_some(), "two hours are left");
    pass(&machines, 200 * SECOND);
    assert_eq!(machine.flags(own), None);
}

/// A setting and its value.
type Value = (Ipv6Setting, i32);

#[test]
fn settings_say_whether_routers_are_believed() {
    let bring = prefix("2001:db8:1::", ON_LINK_AND_AUTONOMOUS, 600, 300);
    let own = ip("2001:db8:1::ff:fe00:1");
    let cases: [(&[Value], bool, bool); 7] = [
        (&[], true, true),
        (&[(Ipv6Setting::AcceptRa, 0)], false, false),
        (&[(Ipv6Setting::Forwarding, 1)], false, false),
        (
            &[(Ipv6Setting::Forwarding, 1), (Ipv6Setting::AcceptRa, 2)],
            true,
            true,
        ),
        (&[(Ipv6Setting::Autoconf, 0)], false, true),
        (&[(Ipv6Setting::AcceptRaPinfo, 0)], false, true),
        (&[(Ipv6Setting::AcceptRaDefrtr, 0)], true, false),
    ];
    for (settings, has_address, has_route) in cases {
        let machine = Machine::down(1);
        settings
            .iter()
            .for_each(|(setting, value)| machine.set(*setting, *value));
        let machine = machine.up();
        machine.receive(advertisement(1800, &bring));
        let routes = machine.host.ipv6_routes().unwrap();
        let gateway = routes.iter().any(|(route, _)| route.gateway.is_some());
        let got = (machine.flags(own).is_some(), gateway);
        assert_eq!(got, (has_address, has_route), "{settings:?}");
        // Without IPv6 all of it goes.
        machine.set(Ipv6Setting::DisableIpv6, 1);
        assert!(machine.host.ipv6_routes().unwrap().is_empty());
        assert_eq!(machine.flags(machine.link_address()), None);
        let address = InterfaceAddress::of_v6(own, 64);
        let refused = machine.host.add_address(machine.index, address, false);
        assert_eq!(refused, Err(Errno::EACCES));
        machine.set(Ipv6Setting::DisableIpv6, 0);
        assert!(machine.flags(machine.link_address()).is_some());
    }
    let machine = Machine::down(1);
    let of = Ipv6Scope::Interface("eth0");
    assert_eq!(
        machine.host.set_ipv6(of, Ipv6Setting::AcceptRa, 3),
        Err(Errno::EINVAL)
    );
    let none = Ipv6Scope::Interface("eth9");
    assert_eq!(
        machine.host.ipv6_setting(none, Ipv6Setting::AcceptRa),
        Err(Errno::ENOENT)
    );
}

#[test]
fn a_flood_of_routers_and_neighbours_stays_bounded() {
    let machines = [Machine::down(1).up()];
    let [machine] = &machines;
    pass(&machines, 5 * SECOND);
    for n in 0..3000u16 {
        let [a, b] = n.to_be_bytes();
        let router = address::link_local([2, 0, 0, 1, a, b]);
        let option = prefix(&format!("2001:db8:{n:x}::"), 0xc0, 600, 300);
        let fixed = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let bytes = [&fixed[..], &[1, 1, 2, 0, 0, 1, a, b], &option].concat();
        let head = header(router, address::ALL_NODES, 255);
        machine.receive(message([0x33, 0x33, 0, 0, 0, 1], &head, bytes));
        let target = machine.link_address();
        let group = address::solicited_node(target);
        let question = [
            &[135, 0, 0, 0, 0, 0, 0, 0][..],
            &target.octets(),
            &[1, 1, 2, 0, 0, 2, a, b],
        ];
        let head = header(address::link_local([2, 0, 0, 2, a, b]), group, 255);
        machine.receive(message(
            address::group_hardware(group),
            &head,
            question.concat(),
        ));
        machine.end.take();
    }
    let interface = machine.host.interface(machine.index).unwrap();
    assert!(
        interface.addresses.len() <= 17,
        "{}",
        interface.addresses.len()
    );
    assert!(machine.host.ipv6_routes().unwrap().len() <= 41);
    assert!(machine.host.neighbours().unwrap().len() <= ip::neighbour::MOST);
    // It still answers.
    pass(&machines, 5 * SECOND);
    let friend = Machine::down(2).up();
    let two = [machines.into_iter().next().unwrap(), friend];
    pass(&two, 5 * SECOND);
    let client = two[1].udp(1000);
    let server = two[0].udp(2000);
    send(
        &client,
        &inet(two[0].link_address(), 2000, two[1].index),
        b"hello",
    )
    .unwrap();
    run(&two, &mut |_| false);
    assert_eq!(receive(&server).unwrap().0, b"hello");
}

#[test]
fn discovery_that_came_from_afar_is_not_believed() {
    let machine = Machine::down(1).up();
    machine.set(Ipv6Setting::DadTransmits, 0);
    let bring = prefix("2001:db8:1::", ON_LINK_AND_AUTONOMOUS, 600, 300);
    let own = ip("2001:db8:1::ff:fe00:1");
    let good = advertisement(1800, &bring);
    let mut from_afar = good.clone();
    from_afar[21] = 254;
    machine.receive(from_afar);
    let mut damaged = good.clone();
    damaged[58] ^= 1;
    machine.receive(damaged);
    let mut endless = advertisement(1800, &[9, 0, 0, 0, 0, 0, 0, 0]);
    machine.receive(std::mem::take(&mut endless));
    let mut global = good.clone();
    global[22..38].copy_from_slice(&ip("2001:db8::1").octets());
    let mut bytes = global[54..].to_vec();
    icmp::seal(ip("2001:db8::1"), address::ALL_NODES, &mut bytes);
    global[54..].copy_from_slice(&bytes);
    machine.receive(global);
    assert_eq!(machine.flags(own), None);
    machine.receive(good);
    assert!(machine.flags(own).is_some());
}

#[test]
fn long_datagrams_come_whole_or_not_at_all() {
    let machines = pair();
    let [client, server] = [machines[0].udp(1000), machines[1].udp(2000)];
    let to = inet(machines[1].link_address(), 2000, machines[0].index);
    let data: Vec<u8> = (0..65_527u32).map(|n| ((n * 7) >> 3) as u8).collect();
    for length in [0, 1, 1452, 1453, 1460, 8000, 65_527] {
        send(&client, &to, &data[..length]).unwrap();
        run(&machines, &mut |frame| {
            assert!(frame.len() <= 1514);
            false
        });
        assert_eq!(receive(&server).unwrap().0, data[..length], "{length}");
    }
    let mut number = 0;
    send(&client, &to, &data[..8000]).unwrap();
    run(&machines, &mut |_| {
        number += 1;
        number == 3
    });
    assert_eq!(receive(&server), Err(Errno::EAGAIN));
    // One whose first fragment has come is complained of in time.
    pass(&machines, 40 * SECOND);
    assert_eq!(machines[1].count("Icmp6OutTimeExcds"), 1);
    assert_eq!(machines[1].count("Ip6ReasmTimeout"), 1);
    let forbids = 2i32.to_ne_bytes();
    let level = sys::IPPROTO_IPV6 as u32;
    protocol(&client)
        .set_option(level, sys::IPV6_MTU_DISCOVER, &forbids)
        .unwrap();
    assert_eq!(send(&client, &to, &data[..1453]), Err(Errno::EMSGSIZE));
    assert_eq!(send(&client, &to, &data[..1452]), Ok(1452));
}

#[test]
fn errors_come_to_the_sockets_they_are_of() {
    let machines = pair();
    let client = machines[0].udp(1000);
    let to = inet(machines[1].link_address(), 2000, machines[0].index);
    call(|caller| protocol(&client).connect(caller, &to, NOW)).unwrap();
    send(&client, &to, b"?").unwrap();
    run(&machines, &mut |_| false);
    assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
    assert_eq!(receive(&client), Err(Errno::EAGAIN), "told once");
    let unknown = machines[0].socket(SocketType::Raw, 99);
    send(
        &unknown,
        &inet(machines[1].link_address(), 0, machines[0].index),
        b"?",
    )
    .unwrap();
    run(&machines, &mut |_| false);
    assert_eq!(machines[0].count("Icmp6InParmProblems"), 1);
}

#[test]
fn echo_requests_are_answered_those_to_all_too() {
    let machines = pair();
    let ping = machines[0].socket(SocketType::Raw, sys::IPPROTO_ICMPV6);
    let request = [128, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4];
    let index = machines[0].index;
    for to in [machines[1].link_address(), address::ALL_NODES] {
        send(&ping, &inet(to, 0, index), &request).unwrap();
        run(&machines, &mut |_| false);
        let mut answers = Vec::new();
        while let Ok((reply, from)) = receive(&ping) {
            if reply[0] == 129 && reply[4..] == request[4..] {
                answers.push(from);
            }
        }
        let expected = Some(inet(machines[1].link_address(), 0, index));
        assert!(answers.contains(&expected), "{to}: {answers:?}");
    }
}

#[test]
fn a_packet_too_big_shortens_the_path() {
    let machines = pair();
    for (machine, last) in machines.iter().zip(["1", "2"]) {
        machine.add(ip(&format!("2001:db8::{last}")));
    }
    pass(&machines, 5 * SECOND);
    let client = machines[0].udp(1000);
    let to = inet(ip("2001:db8::2"), 2000, 0);
    let server = machines[1].udp(2000);
    send(&client, &to, &[1; 1400]).unwrap();
    let mut quoted = Vec::new();
    run(&machines, &mut |frame| {
        if frame.len() > 1400 {
            quoted = frame[14..].to_vec();
        }
        false
    });
    assert_eq!(receive(&server).unwrap().0.len(), 1400);
    let router = header(ip("2001:db8::99"), ip("2001:db8::1"), 60);
    let too_big = [&[2, 0, 0, 0, 0, 0, 5, 0x14][..], &quoted[..600]].concat();
    machines[0].receive(message(machines[0].hardware, &router, too_big));
    send(&client, &to, &[1; 1400]).unwrap();
    let mut lengths = Vec::new();
    run(&machines, &mut |frame| {
        lengths.push(frame.len());
        false
    });
    assert!(
        lengths.len() == 2 && lengths.iter().all(|len| *len <= 1314),
        "{lengths:?}"
    );
    assert_eq!(receive(&server).unwrap().0.len(), 1400);
}

/// A connection over the link, and one over global addresses.
#[test]
fn connections_carry_both_ways() {
    let machines = pair();
    for (machine, last) in machines.iter().zip(["1", "2"]) {
        machine.add(ip(&format!("2001:db8::{last}")));
    }
    pass(&machines, 5 * SECOND);
    let listener = machines[1].socket(SocketType::Stream, 0);
    call(|caller| protocol(&listener).bind(caller, &inet(Ipv6Addr::UNSPECIFIED, 80, 0))).unwrap();
    protocol(&listener).listen(5).unwrap();
    for (to, scope) in [
        (machines[1].link_address(), machines[0].index),
        (ip("2001:db8::2"), 0),
    ] {
        let client = machines[0].socket(SocketType::Stream, 0);
        let begun = call(|caller| protocol(&client).connect(caller, &inet(to, 80, scope), NOW));
        assert_eq!(begun, Err(Errno::EINPROGRESS));
        pass(&machines, SECOND);
        let server = protocol(&listener).accept(NOW).unwrap();
        let server = server.into_file(OpenFlags::NONBLOCK);
        let Address::Inet(SocketAddr::V6(peer)) = protocol(&server).peer_address().unwrap() else {
            panic!("no peer")
        };
        assert_eq!(
            peer.scope_id(),
            if scope == 0 { 0 } else { machines[1].index }
        );
        let data: Vec<u8> = (0..200_000u32).map(|n| (n >> 3) as u8).collect();
        let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 70_000]);
        for _ in 0..2000 {
            sent += client.write(&data[sent..]).unwrap_or(0);
            pass(&machines, SECOND / 100);
            let count = server.read(&mut buf).unwrap_or(0);
            got.extend_from_slice(&buf[..count]);
            if got.len() == data.len() {
                break;
            }
        }
        assert!(got == data, "{} of {}", got.len(), data.len());
        server.write(b"thanks").unwrap();
        pass(&machines, SECOND);
        let count = client.read(&mut buf).unwrap();
        assert_eq!(&buf[..count], b"thanks");
    }
    let text = procfs::tcp(machines[1].stack.inet(), net::inet::Family::V6).unwrap();
    assert!(text.lines().count() >= 4, "{text}");
    let refused = machines[0].socket(SocketType::Stream, 0);
    let _ = call(|caller| protocol(&refused).connect(caller, &inet(ip("2001:db8::2"), 81, 0), NOW));
    pass(&machines, SECOND);
    assert_eq!(protocol(&refused).take_error(), Some(Errno::ECONNREFUSED));
}

#[test]
fn addresses_of_a_link_need_the_link() {
    let machines = pair();
    let peer = machines[1].link_address();
    for kind in [SocketType::Stream, SocketType::Datagram] {
        let file = machines[0].socket(kind, 0);
        let begun = call(|caller| protocol(&file).connect(caller, &inet(peer, 9, 0), NOW));
        assert_eq!(begun, Err(Errno::EINVAL));
        let own = machines[0].link_address();
        // One of datagrams has a port from then on, as on Linux.
        let file = machines[0].socket(kind, 0);
        let bound = call(|caller| protocol(&file).bind(caller, &inet(own, 0, 0)));
        assert_eq!(bound, Err(Errno::EINVAL));
        let bound = call(|caller| protocol(&file).bind(caller, &inet(own, 0, 99)));
        assert!(bound.is_err());
        let index = machines[0].index;
        call(|caller| protocol(&file).bind(caller, &inet(own, 0, index))).unwrap();
    }
}

#[test]
fn a_router_passes_packets_on_and_says_why_not() {
    let router = Machine::down(9);
    router.set(Ipv6Setting::Forwarding, 1);
    let end = Arc::new(End::default());
    let second = NewInterface {
        name: "eth%d",
        link: LinkKind::Ethernet([2, 0, 0, 0, 1, 9]),
        mtu: 1300,
        max_mtu: 9000,
        queue_len: 1000,
        has_carrier: true,
        has_ipv6: true,
    };
    let other = router.host.add_interface(&second, end.clone()).unwrap();
    router.host.set_up(other, true).unwrap();
    let router = router.up();
    router.add(ip("2001:db8:1::9"));
    let address = InterfaceAddress::of_v6(ip("2001:db8:2::9"), 64);
    router.host.add_address(other, address, false).unwrap();
    let machines = [router];
    pass(&machines, 5 * SECOND);
    let [router] = &machines;
    end.take();
    let head = header(ip("2001:db8:1::1"), ip("2001:db8:2::1"), 64);
    router.receive(frame(router.hardware, &head, 17, &[0; 16]));
    let asked = end.take();
    assert_eq!(
        (asked.len(), asked[0][54]),
        (1, 135),
        "the next hop is asked for"
    );
    let hardware = [2, 0, 0, 0, 0, 7];
    let answer = [
        &[136, 0, 0, 0, 0x60, 0, 0, 0][..],
        &ip("2001:db8:2::1").octets(),
        &[2, 1],
        &hardware,
    ];
    let asker = Ipv6Addr::from(<[u8; 16]>::try_from(&asked[0][22..38]).unwrap());
    let from = header(ip("2001:db8:2::1"), asker, 255);
    let frame_of = message([2, 0, 0, 0, 1, 9], &from, answer.concat());
    router.host.receive(other, &frame_of);
    let sent = end.take();
    assert_eq!(
        (sent.len(), &sent[0][..6], sent[0][21]),
        (1, &hardware[..], 63)
    );
    // Too many hops, too long, no way, of the link only.
    let errors = |hops: u8, to: &str, from: &str, length: usize| {
        CLOCK.set(now() + 10 * SECOND);
        router.end.take();
        let head = header(ip(from), ip(to), hops);
        router.receive(frame(router.hardware, &head, 17, &vec![0; length]));
        let sent = router.end.take();
        // The host that is told is asked for first.
        let neighbour = [
            &[136, 0, 0, 0, 0x60, 0, 0, 0][..],
            &ip(from).octets(),
            &[2, 1, 2, 0, 0, 0, 0, 3],
        ];
        if let Some(asked) = sent.iter().find(|frame| frame[54] == 135) {
            let asker = Ipv6Addr::from(<[u8; 16]>::try_from(&asked[22..38]).unwrap());
            let head = header(ip(from), asker, 255);
            router.receive(message(router.hardware, &head, neighbour.concat()));
        }
        let mut all = sent.into_iter().chain(router.end.take());
        let error = all.find(|frame| frame[54] < 128);
        error.map(|frame| (frame[54], frame[55], frame[58..62].to_vec()))
    };
    let one = "2001:db8:1::1";
    assert_eq!(
        errors(1, "2001:db8:2::1", one, 16),
        Some((3, 0, vec![0; 4]))
    );
    assert_eq!(
        errors(9, "2001:db8:2::1", one, 1400),
        Some((2, 0, vec![0, 0, 5, 20]))
    );
    assert_eq!(
        errors(9, "2001:db8:3::1", one, 16),
        Some((1, 0, vec![0; 4]))
    );
}

#[test]
fn administrators_add_and_remove_routes() {
    let machines = pair();
    let [one, other] = &machines[..] else {
        panic!()
    };
    let client = one.udp(1000);
    let far = |last: u16| ip(&format!("2001:db8:9::{last}"));
    let try_to = |last| send(&client, &inet(far(last), 9, 0), b"x");
    assert_eq!(try_to(1), Err(Errno::ENETUNREACH));
    one.add(ip("2001:db8::1"));
    pass(&machines, 5 * SECOND);
    let mut route = Route {
        destination: Prefix::of(Ipv6Addr::UNSPECIFIED, 0).unwrap(),
        kind: Kind::Unicast,
        interface: one.index,
        gateway: Some(other.link_address()),
        source: None,
        metric: 1024,
        protocol: 3,
        scope: 0,
    };
    one.host.add_ipv6_route(route, Insert::Exclusive).unwrap();
    let again = one.host.add_ipv6_route(route, Insert::Exclusive);
    assert_eq!(again, Err(Errno::EEXIST));
    try_to(1).unwrap();
    let nowhere = Route {
        gateway: Some(far(9)),
        ..route
    };
    let refused = one.host.add_ipv6_route(nowhere, Insert::Append);
    assert_eq!(refused, Err(Errno::EHOSTUNREACH));
    let kinds = [
        (Kind::Unreachable, Errno::EHOSTUNREACH),
        (Kind::Prohibit, Errno::EACCES),
        (Kind::Blackhole, Errno::EINVAL),
    ];
    for (last, (kind, error)) in (1..).zip(kinds) {
        route.destination = Prefix::of(far(last), 128).unwrap();
        (route.kind, route.gateway) = (kind, None);
        one.host.add_ipv6_route(route, Insert::Exclusive).unwrap();
        assert_eq!(try_to(last), Err(error));
    }
    let gone = one
        .host
        .remove_ipv6_route(route.destination, &Default::default());
    assert_eq!(gone, Ok(()));
    try_to(3).unwrap();
    one.host.set_up(one.index, false).unwrap();
    assert_eq!(try_to(3), Err(Errno::ENETUNREACH));
    assert!(one.host.interfaces()[1].addresses.is_empty());
}

#[test]
fn queries_for_groups_are_answered() {
    let machines = [Machine::down(1).up()];
    let [machine] = &machines;
    pass(&machines, 20 * SECOND);
    machine.end.take();
    let query = |alert: bool| {
        let router = address::link_local([2, 0, 0, 0, 0, 9]);
        let head = header(router, address::ALL_NODES, 1);
        let mut bytes = vec![130, 0, 0, 0, 3, 232, 0, 0];
        bytes.extend_from_slice(&[0; 20]);
        icmp::seal(router, address::ALL_NODES, &mut bytes);
        let option: &[u8] = if alert {
            &[58, 0, 5, 2, 0, 0, 1, 0]
        } else {
            &[58, 0, 1, 4, 0, 0, 0, 0]
        };
        frame(
            [0x33, 0x33, 0, 0, 0, 1],
            &head,
            0,
            &[option, &bytes].concat(),
        )
    };
    machine.receive(query(false));
    assert_eq!(machine.host.deadline(), None, "routers say that they are");
    machine.receive(query(true));
    CLOCK.set(now() + 2 * SECOND);
    machine.host.run_timers();
    assert_eq!(kinds(&machine.end), [143]);
}
