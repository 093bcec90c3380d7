//! TCP and datagrams by a card that has little room, in virtual time: nothing is lost on the way to
//! it (`docs/ip.md`, "The queue before a card").

mod common;

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::errno::Errno;
use common::wire::{Machine, inet, own};
use common::{NOW, call, protocol};
use fs::poll::Events;
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::inet::{Host, procfs, procfs_host};
use net::{Linger, MsgFlags, OutgoingMessage, Socket, SocketType, WaitPolicy};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;

thread_local! {
    /// The time of the test in this thread.
    static TIME: Cell<u64> = const { Cell::new(SECOND) };
}

fn time() -> u64 {
    TIME.get()
}

/// Two machines on a clean wire; the first one's card has room for so many frames.
struct Narrow([Machine; 2]);

impl Narrow {
    fn new(room: usize) -> Self {
        let machines = [1, 2].map(|number| Machine::new(Host::with_clock(time), number));
        *machines[0].end.room.lock().unwrap() = Some(room);
        Self(machines)
    }

    /// A millisecond, in which the first machine's card sends what its ring holds, unless it is
    /// stuck.
    fn step(&self, is_stuck: bool) {
        let [one, two] = &self.0;
        if !is_stuck {
            for frame in one.end.take() {
                two.host.receive(two.index, &frame);
            }
            if one.end.is_awaited.swap(false, Ordering::Relaxed) {
                one.host.has_room(one.index);
            }
        }
        for frame in two.end.take() {
            one.host.receive(one.index, &frame);
        }
        TIME.set(time() + MILLISECOND);
        for machine in &self.0 {
            if machine.host.deadline().is_some_and(|due| due <= time()) {
                machine.host.run_timers();
                let due = machine.host.deadline();
                assert!(due.is_none_or(|due| due > time()), "a timer does nothing");
            }
        }
    }

    fn tcp(&self, which: usize) -> Arc<File> {
        let stack = &self.0[which].stack;
        let socket = stack.socket(sys::AF_INET, SocketType::Stream, 0).unwrap();
        socket.into_file(OpenFlags::NONBLOCK)
    }

    /// A socket of datagrams, bound to a port if that is not 0.
    fn udp(&self, which: usize, port: u16) -> Arc<File> {
        let stack = &self.0[which].stack;
        let socket = stack.socket(sys::AF_INET, SocketType::Datagram, 0).unwrap();
        let file = socket.into_file(OpenFlags::NONBLOCK);
        let any = inet(Ipv4Addr::UNSPECIFIED, port);
        call(|caller| protocol(&file).bind(caller, &any)).unwrap();
        file
    }

    /// Sends a datagram to the second machine.
    fn datagram(&self, socket: &File, data: &[u8], wait: WaitPolicy) -> Result<usize, Errno> {
        let to = inet(self.0[1].address, 9);
        call(|caller| {
            let message = OutgoingMessage {
                to: Some((caller, &to)),
                ..OutgoingMessage::plain(data)
            };
            protocol(socket).send(message, MsgFlags::empty(), wait)
        })
    }

    /// So many connections from the first machine to the second.
    fn connect(&self, count: usize) -> Vec<[Arc<File>; 2]> {
        let to = self.0[1].address;
        self.connect_to(&vec![to; count])
    }

    /// A connection from the first machine to each of the second one's addresses.
    fn connect_to(&self, addresses: &[Ipv4Addr]) -> Vec<[Arc<File>; 2]> {
        let count = addresses.len();
        let listener = self.tcp(1);
        let any = inet(Ipv4Addr::UNSPECIFIED, 80);
        call(|caller| protocol(&listener).bind(caller, &any)).unwrap();
        protocol(&listener).listen(count).unwrap();
        let clients: Vec<_> = (0..count).map(|_| self.tcp(0)).collect();
        for (client, to) in clients.iter().zip(addresses) {
            let to = inet(*to, 80);
            let result = call(|caller| protocol(client).connect(caller, &to, NOW));
            assert_eq!(result, Err(Errno::EINPROGRESS));
        }
        for _ in 0..200 {
            self.step(false);
        }
        assert!(
            clients
                .iter()
                .all(|one| one.poll(None).contains(Events::OUT))
        );
        let mut servers: Vec<_> = (0..count)
            .map(|_| {
                let socket = protocol(&listener).accept(NOW).unwrap();
                socket.into_file(OpenFlags::NONBLOCK)
            })
            .collect();
        // Which is whose, a byte tells.
        let pair = |client: Arc<File>| {
            assert_eq!(client.write(b"x"), Ok(1));
            (0..50).for_each(|_| self.step(false));
            let is_it = |server: &Arc<File>| server.read(&mut [0]) == Ok(1);
            let at = servers.iter().position(is_it).unwrap();
            [client, servers.swap_remove(at)]
        };
        clients.into_iter().map(pair).collect()
    }

    /// A counter of the first machine's.
    fn count(&self, name: &str) -> u64 {
        let stack = self.0[0].stack.inet();
        let text = procfs::snmp(stack) + &procfs_host::netstat(stack);
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let mut both = names.split(' ').zip(values.split(' ')).skip(1);
            if let Some((_, value)) = both.find(|(found, _)| *found == name) {
                return value.parse().unwrap();
            }
        }
        panic!("no counter {name}");
    }

    fn dropped(&self) -> u64 {
        self.0[0]
            .host
            .interface(self.0[0].index)
            .unwrap()
            .sent
            .dropped
    }

    fn assert_nothing_was_sent_again(&self) {
        for name in [
            "RetransSegs",
            "TCPFastRetrans",
            "TCPTimeouts",
            "TCPLossProbes",
        ] {
            assert_eq!(self.count(name), 0, "{name}");
        }
    }
}

fn bytes(stream: usize, from: usize, to: usize) -> Vec<u8> {
    (from..to)
        .map(|at| ((at * 31) ^ (at >> 8) ^ stream) as u8)
        .collect()
}

/// Sends as much of a stream as there is room for; returns where it is then.
fn send(file: &File, stream: usize, mut sent: usize, length: usize) -> usize {
    while sent < length {
        match file.write(&bytes(stream, sent, length.min(sent + 16_000))) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error, Errno::EAGAIN);
                break;
            }
        }
    }
    sent
}

/// Reads what has come of a stream, and checks it.
fn receive(file: &File, stream: usize, mut received: usize) -> usize {
    let mut buf = vec![0; 1 << 16];
    loop {
        match file.read(&mut buf) {
            Ok(0) => return received,
            Ok(count) => {
                assert!(buf[..count] == bytes(stream, received, received + count));
                received += count;
            }
            Err(error) => {
                assert_eq!(error, Errno::EAGAIN);
                return received;
            }
        }
    }
}

/// Has streams of so many bytes go through connections, with something in between.
fn transfer(pair: &Narrow, ends: &[[Arc<File>; 2]], length: usize, mut between: impl FnMut()) {
    let mut places = vec![(0, 0); ends.len()];
    for _ in 0..100_000 {
        for ((n, [client, server]), (sent, received)) in ends.iter().enumerate().zip(&mut places) {
            *sent = send(client, n, *sent, length);
            *received = receive(server, n, *received);
        }
        if places.iter().all(|(_, received)| *received == length) {
            return;
        }
        between();
        pair.step(false);
    }
    panic!("they are at {places:?} of {length}");
}

#[test]
fn a_stream_through_a_small_ring_repeats_nothing() {
    for room in [1, 4, 30] {
        let pair = Narrow::new(room);
        let ends = pair.connect(1);
        transfer(&pair, &ends, 1_000_000, || ());
        pair.assert_nothing_was_sent_again();
        assert_eq!(pair.dropped(), 0);
    }
}

#[test]
fn many_streams_share_a_small_ring_and_repeat_nothing() {
    let pair = Narrow::new(8);
    let ends = pair.connect(20);
    transfer(&pair, &ends, 100_000, || ());
    pair.assert_nothing_was_sent_again();
    assert_eq!(pair.dropped(), 0);
}

/// There are more destinations than ways that are remembered, so segments go by the tables, too.
#[test]
fn streams_to_many_hosts_repeat_nothing() {
    let narrow = Narrow::new(8);
    let two = &narrow.0[1];
    let addresses: Vec<_> = (3..203).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect();
    for address in &addresses {
        two.host
            .add_address(two.index, own(*address), false)
            .unwrap();
    }
    let ends = narrow.connect_to(&addresses);
    transfer(&narrow, &ends, 20_000, || ());
    narrow.assert_nothing_was_sent_again();
    assert_eq!(narrow.dropped(), 0);
}

#[test]
fn a_flood_of_datagrams_loses_its_own_and_lets_streams_through() {
    let pair = Narrow::new(32);
    let ends = pair.connect(2);
    // More than their buffers let wait at a time.
    let sockets: Vec<_> = (0..12).map(|_| pair.udp(0, 0)).collect();
    let flood = || {
        for socket in &sockets {
            let full = (0..200).find_map(|_| pair.datagram(socket, &[0; 1400], NOW).err());
            assert!(full.is_none_or(|error| error == Errno::EAGAIN));
        }
    };
    transfer(&pair, &ends, 200_000, flood);
    assert!(pair.dropped() > 1000, "the flood has found its limit");
    assert_eq!(pair.count("TCPFastRetrans"), 0);
}

/// A card that takes nothing any more ends connections as a peer that is silent does, and holds no
/// more than its queue.
#[test]
fn a_card_that_is_stuck_ends_connections_in_time() {
    let pair = Narrow::new(4);
    let ends = pair.connect(3);
    let client = &ends[0][0];
    let tcp = sys::IPPROTO_TCP as i32;
    let timeout = 5000_u32.to_ne_bytes();
    protocol(client)
        .set_option(tcp as u32, sys::TCP_USER_TIMEOUT, &timeout)
        .unwrap();
    for ([client, _], n) in ends.iter().zip(0..) {
        send(client, n, 0, 1 << 20);
    }
    for _ in 0..12_000 {
        pair.step(true);
    }
    assert_eq!(protocol(client).take_error(), Some(Errno::ETIMEDOUT));
    // The others go on when the card does.
    assert_eq!(protocol(&ends[1][0]).take_error(), None);
    let mut places = [0; 2];
    for _ in 0..20_000 {
        pair.step(false);
        for (n, place) in [1, 2].into_iter().zip(&mut places) {
            *place = receive(&ends[n][1], n, *place);
        }
    }
    assert!(places.iter().all(|place| *place > 50_000), "{places:?}");
}

/// One that ends while it waits says so, and leaves nothing behind.
#[test]
fn a_connection_that_is_reset_while_it_waits_tells_its_peer() {
    let pair = Narrow::new(2);
    let mut ends = pair.connect(2);
    for ([client, _], n) in ends.iter().zip(0..) {
        send(client, n, 0, 1 << 20);
    }
    let [client, server] = ends.remove(0);
    let options = client.ops_as::<Socket>().unwrap().options();
    options.set_linger(Linger {
        on: true,
        seconds: 0,
    });
    drop(client);
    let mut received = 0;
    let error = (0..2000).find_map(|_| {
        pair.step(false);
        let mut buf = [0; 4096];
        loop {
            match server.read(&mut buf) {
                Ok(count) => received += count,
                Err(Errno::EAGAIN) => return None,
                Err(error) => return Some(error),
            }
        }
    });
    assert_eq!(error, Some(Errno::ECONNRESET));
    assert!(received > 0);
}

#[test]
fn an_interface_that_goes_down_and_up_lets_connections_go_on() {
    let pair = Narrow::new(2);
    let ends = pair.connect(1);
    let one = &pair.0[0];
    let mut sent = send(&ends[0][0], 0, 0, 500_000);
    pair.step(false);
    one.host.set_up(one.index, false).unwrap();
    assert!(pair.dropped() > 0, "what has waited is lost");
    (0..100).for_each(|_| pair.step(false));
    one.host.set_up(one.index, true).unwrap();
    let mut received = 0;
    for _ in 0..60_000 {
        sent = send(&ends[0][0], 0, sent, 500_000);
        received = receive(&ends[0][1], 0, received);
        if received == 500_000 {
            break;
        }
        pair.step(false);
    }
    assert_eq!(received, 500_000);
}

/// Datagrams that wait before a card take up their socket's buffer, and nobody else's.
#[test]
fn what_waits_before_a_card_takes_up_its_senders_buffer() {
    let pair = Narrow::new(4);
    let [full, other] = [0, 0].map(|port| pair.udp(0, port));
    let receiver = pair.udp(1, 9);
    let options = receiver.ops_as::<Socket>().unwrap().options();
    options
        .set_int_option(sys::SO_RCVBUF, 1 << 20, true)
        .unwrap();
    // The neighbour is found, which is none of this.
    pair.datagram(&full, b"first", NOW).unwrap();
    (0..10).for_each(|_| pair.step(false));
    assert_eq!(receiver.read(&mut [0; 2000]), Ok(5));
    let queued = |socket: &File| protocol(socket).send_queue_bytes();
    let is_writable = |socket: &File| socket.poll(None).contains(Events::WRITABLE);
    let sent = (0..1000).take_while(|_| {
        let (before, could) = (queued(&full), is_writable(&full));
        let result = pair.datagram(&full, &[0; 1000], NOW);
        let buffer = 212_992;
        assert_eq!(could, 2 * before < buffer);
        assert_eq!(
            result,
            if before < buffer {
                Ok(1000)
            } else {
                Err(Errno::EAGAIN)
            }
        );
        result.is_ok()
    });
    let sent = sent.count();
    // Four are in the card's ring.
    assert_eq!(queued(&full), (sent - 4) * (1042 + 256));
    assert_eq!(pair.datagram(&other, b"!", NOW), Ok(1));
    assert!(is_writable(&other) && !is_writable(&full));
    // The ring is sent bit by bit; half of the buffer is room.
    while !is_writable(&full) {
        assert!(queued(&full) > 0);
        pair.step(false);
    }
    assert!(2 * queued(&full) < 212_992 && queued(&full) > 80_000);
    (0..1000).for_each(|_| pair.step(false));
    assert_eq!([&full, &other].map(|socket| queued(socket)), [0, 0]);
    for length in (0..sent).map(|_| 1000).chain([1]) {
        assert_eq!(receiver.read(&mut [0; 2000]), Ok(length));
    }
    assert_eq!(pair.dropped(), 0);
    // What is lost with its link takes up nothing either.
    for _ in 0..50 {
        assert_eq!(pair.datagram(&full, &[0; 1000], NOW), Ok(1000));
    }
    assert!(queued(&full) > 0);
    let one = &pair.0[0];
    one.host.set_up(one.index, false).unwrap();
    assert_eq!(queued(&full), 0);
    assert_eq!(pair.dropped(), 46);
}

#[test]
fn who_waits_for_room_before_a_card_goes_on_when_there_is_some() {
    let pair = Narrow::new(4);
    let patient = WaitPolicy {
        nonblocking: false,
        timeout_ns: 0,
    };
    let (sender, ended) = (pair.udp(0, 0), pair.udp(0, 0));
    pair.datagram(&sender, b"first", NOW).unwrap();
    (0..10).for_each(|_| pair.step(false));
    while pair.datagram(&ended, &[0; 1000], NOW).is_ok() {}
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.datagram(&ended, &[0; 1000], patient));
        protocol(&ended).shutdown(false, true).unwrap_err();
        assert_eq!(waits.join().unwrap(), Err(Errno::EPIPE));
        let sends = scope
            .spawn(|| (0..500).all(|_| pair.datagram(&sender, &[0; 1000], patient) == Ok(1000)));
        while !sends.is_finished() {
            pair.step(false);
            std::thread::yield_now();
        }
        assert!(sends.join().unwrap());
    });
    assert_eq!(pair.dropped(), 0);
}
