//! Reports of the groups that programs are in, to routers and switches, in virtual time.

mod common;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use common::protocol;
use common::v6::{self, CLOCK, now};
use common::wire::Machine;
use fs::{File, OpenFlags};
use ip::groups::igmp;
use ip::ipv4::Packet;
use ip::{SECOND, checksum};
use linux_raw_sys::net as sys;
use net::inet::{Host, procfs_groups};
use net::{Socket, SocketType, Stack};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

fn datagram(stack: &Arc<Stack>, family: u32) -> Arc<File> {
    let socket: Socket = stack.socket(family, SocketType::Datagram, 0).unwrap();
    socket.into_file(OpenFlags::NONBLOCK)
}

/// `struct ip_mreq_source` or, without a source, `struct ip_mreqn`.
fn request(machine: &Machine, source: Option<Ipv4Addr>) -> Vec<u8> {
    match source {
        Some(source) => [GROUP, machine.address, source]
            .map(|ip| ip.octets())
            .concat(),
        None => {
            let any = Ipv4Addr::UNSPECIFIED;
            [GROUP.octets(), any.octets(), machine.index.to_ne_bytes()].concat()
        }
    }
}

fn set(file: &File, option: u32, value: &[u8]) {
    protocol(file).set_option(0, option, value).unwrap();
}

/// The messages of IGMP that were sent: whom to, and the bytes behind the checksum.
fn told(machine: &Machine) -> Vec<(Ipv4Addr, u8, Vec<u8>)> {
    let sent = machine.end.take();
    let read = |frame: &Vec<u8>| {
        assert_eq!(frame[12..14], [8, 0]);
        let packet = Packet::parse(&frame[14..]).unwrap();
        let to = packet.header.destination;
        assert_eq!(frame[..6], igmp::group_hardware(to));
        assert_eq!((packet.header.protocol, packet.header.ttl), (2, 1));
        assert_eq!(
            (packet.header.source, checksum(packet.payload)),
            (machine.address, 0)
        );
        (to, packet.payload[0], packet.payload[6..].to_vec())
    };
    sent.iter().map(read).collect()
}

fn step(machine: &Machine, span: u64) {
    CLOCK.set(now() + span);
    machine.host.run_timers();
}

fn record(kind: u8, sources: &[Ipv4Addr]) -> (Ipv4Addr, u8, Vec<u8>) {
    let count = sources.len() as u8;
    let mut bytes = vec![0, 1, kind, 0, 0, count];
    for ip in [&[GROUP], sources].concat() {
        bytes.extend_from_slice(&ip.octets());
    }
    (Ipv4Addr::new(224, 0, 0, 22), 0x22, bytes)
}

fn ask(machine: &Machine, message: &[u8; 8], third: bool) {
    let mut message = message.to_vec();
    if third {
        message.extend_from_slice(&[2, 125, 0, 0]);
    }
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = ip::ipv4::Header {
        tos: 0xc0,
        id: 1,
        dont_fragment: false,
        more_fragments: false,
        offset: 0,
        ttl: 1,
        protocol: 2,
        source: ROUTER,
        destination: igmp::ALL_HOSTS,
    };
    let link = [1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0];
    let frame = [&link[..], &header.emit(message.len()), &message].concat();
    machine.host.receive(machine.index, &frame);
}

#[test]
fn the_first_who_joins_and_the_last_who_leaves_are_told_of() {
    let machine = Machine::new(Host::with_clock(now), 1);
    let [one, two] = [0; 2].map(|_| datagram(&machine.stack, sys::AF_INET));
    set(&one, sys::IP_ADD_MEMBERSHIP, &request(&machine, None));
    assert_eq!(told(&machine), [record(4, &[])], "to all but no sources");
    set(&two, sys::IP_ADD_MEMBERSHIP, &request(&machine, None));
    assert_eq!(told(&machine), [], "nothing is new");
    step(&machine, 2 * SECOND);
    assert_eq!(told(&machine), [record(4, &[])], "once more");
    assert_eq!(machine.host.deadline(), None);
    let shown = || procfs_groups::igmp(machine.stack.inet()).unwrap();
    assert!(
        shown().contains("\t\t\t\t030201EF     2 0:00000000\t\t0\n"),
        "{}",
        shown()
    );
    set(&one, sys::IP_DROP_MEMBERSHIP, &request(&machine, None));
    assert_eq!(told(&machine), []);
    // A socket that is closed leaves.
    drop(two);
    assert_eq!(told(&machine), [record(3, &[])]);
    step(&machine, 2 * SECOND);
    assert_eq!(told(&machine), [record(3, &[])]);
    step(&machine, 2 * SECOND);
    assert_eq!((told(&machine), machine.host.deadline()), (vec![], None));
    assert!(!shown().contains("030201EF"), "{}", shown());
}

#[test]
fn sources_are_told_of() {
    let machine = Machine::new(Host::with_clock(now), 1);
    let file = datagram(&machine.stack, sys::AF_INET);
    set(
        &file,
        sys::IP_ADD_SOURCE_MEMBERSHIP,
        &request(&machine, Some(SOURCE)),
    );
    assert_eq!(told(&machine), [record(5, &[SOURCE])]);
    step(&machine, 2 * SECOND);
    told(&machine);
    ask(&machine, &[0x11, 10, 0, 0, 0, 0, 0, 0], true);
    step(&machine, 2 * SECOND);
    assert_eq!(told(&machine), [record(1, &[SOURCE])]);
    set(
        &file,
        sys::IP_DROP_SOURCE_MEMBERSHIP,
        &request(&machine, Some(SOURCE)),
    );
    assert_eq!(told(&machine), [record(6, &[SOURCE])]);
    step(&machine, 2 * SECOND);
    told(&machine);
    set(&file, sys::IP_ADD_MEMBERSHIP, &request(&machine, None));
    told(&machine);
    set(
        &file,
        sys::IP_BLOCK_SOURCE,
        &request(&machine, Some(SOURCE)),
    );
    step(&machine, 2 * SECOND);
    assert_eq!(
        told(&machine)[0],
        record(4, &[SOURCE]),
        "the mode is still told"
    );
}

#[test]
fn routers_hear_when_they_ask_and_links_when_they_come() {
    let machine = Machine::new(Host::with_clock(now), 1);
    let file = datagram(&machine.stack, sys::AF_INET);
    set(&file, sys::IP_ADD_MEMBERSHIP, &request(&machine, None));
    step(&machine, 2 * SECOND);
    told(&machine);
    ask(&machine, &[0x11, 100, 0, 0, 0, 0, 0, 0], true);
    assert_eq!(told(&machine), [], "not all hosts at once");
    let due = machine.host.deadline().unwrap();
    assert!(due <= now() + 10 * SECOND);
    step(&machine, due - now());
    assert_eq!(told(&machine), [record(2, &[])]);
    // A link that is down is not told of; when it is up again it hears all.
    machine.host.set_carrier(machine.index, false);
    let other = datagram(&machine.stack, sys::AF_INET);
    let all_hosts = [[224, 0, 0, 7], [0; 4], machine.index.to_ne_bytes()].concat();
    set(&other, sys::IP_ADD_MEMBERSHIP, &all_hosts);
    step(&machine, 20 * SECOND);
    assert_eq!((told(&machine), machine.host.deadline()), (vec![], None));
    machine.host.set_carrier(machine.index, true);
    let [(_, 0x22, both)] = &told(&machine)[..] else {
        panic!("one report");
    };
    assert_eq!((&both[..2], both.len()), (&[0, 2][..], 2 + 2 * 8));
    // So it is with an interface that is taken down and brought up.
    machine.host.set_up(machine.index, false).unwrap();
    machine.end.take();
    machine.host.set_up(machine.index, true).unwrap();
    assert_eq!(told(&machine).len(), 1);
    // A router of the second version is told in its way, and another's answer will do.
    step(&machine, 2 * SECOND);
    told(&machine);
    ask(&machine, &[0x11, 100, 0, 0, 239, 1, 2, 3], false);
    ask(&machine, &[0x11, 100, 0, 0, 0, 0, 0, 0], false);
    step(&machine, 11 * SECOND);
    let mut all = told(&machine);
    all.sort();
    let kinds: Vec<_> = all.iter().map(|(to, kind, _)| (*to, *kind)).collect();
    assert_eq!(kinds, [(Ipv4Addr::new(224, 0, 0, 7), 0x16), (GROUP, 0x16)]);
    drop(other);
    let [(to, 0x17, _)] = &told(&machine)[..] else {
        panic!("left");
    };
    assert_eq!(*to, Ipv4Addr::new(224, 0, 0, 2));
    // An interface that goes takes them with it, and its sockets' ends change nothing.
    machine.host.remove_interface(machine.index).unwrap();
    drop(file);
    assert_eq!(
        (machine.end.take().len(), machine.host.deadline()),
        (0, None)
    );
}

#[test]
fn groups_of_ipv6_outlive_the_addresses() {
    let machines = [v6::Machine::down(1).up()];
    v6::pass(&machines, 60 * SECOND);
    let [machine] = &machines;
    machine.end.take();
    let group: Ipv6Addr = v6::ip("ff05::1:3");
    let wanted = [&group.octets()[..], &machine.index.to_ne_bytes()].concat();
    let file = machine.udp(5000);
    let set = |option| protocol(&file).set_option(sys::IPPROTO_IPV6 as u32, option, &wanted);
    set(sys::IPV6_ADD_MEMBERSHIP).unwrap();
    let reports = || {
        let mut kinds = Vec::new();
        for frame in machine.end.take() {
            assert_eq!(
                (frame[20], frame[62]),
                (0, 143),
                "a report with a router alert"
            );
            kinds.extend(
                frame[70..]
                    .chunks(20)
                    .filter(|one| one[4..] == group.octets())
                    .map(|one| one[0]),
            );
        }
        kinds
    };
    assert_eq!(reports(), [4]);
    v6::CLOCK.set(now() + 2 * SECOND);
    machine.host.run_timers();
    assert_eq!(reports(), [4]);
    let shown = || procfs_groups::igmp6(machine.stack.inet()).unwrap();
    assert!(
        shown().contains("ff050000000000000000000000010003     1"),
        "{}",
        shown()
    );
    assert!(
        shown().contains("ff0200000000000000000001ff000001     1"),
        "{}",
        shown()
    );
    // The card goes down, and its address with it. The program is still in its group.
    machine.host.set_up(machine.index, false).unwrap();
    assert!(shown().contains("ff0500"), "{}", shown());
    assert!(!shown().contains("0001ff000001"), "{}", shown());
    machine.end.take();
    machine.host.set_up(machine.index, true).unwrap();
    assert!(reports().contains(&4));
    v6::CLOCK.set(now() + 60 * SECOND);
    machine.host.run_timers();
    machine.end.take();
    set(sys::IPV6_DROP_MEMBERSHIP).unwrap();
    assert_eq!(reports(), [3]);
}
