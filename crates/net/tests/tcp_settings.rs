//! Sysctls of TCP that an engine acts on, seen in the frames of two hosts on a wire.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use abi::errno::Errno;
use common::connections::{
    MILLISECOND, SECOND, TCP, Wire, accept, begin, bytes, connect_result, exchange, read, time,
};
use common::protocol;
use linux_raw_sys::net as sys;

/// Flags of segments, as the header has them.
const SYN: u8 = 2;
const ACK: u8 = 16;
const ECE: u8 = 64;
const CWR: u8 = 128;

/// Offsets in a frame of Ethernet: of the IPv4 header, and behind one without options.
const IP: usize = 14;
const SEGMENT: usize = IP + 20;

/// The frames that a wire carries, each with its sender.
type Carried = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

/// Keeps what the wire carries.
fn watch(wire: &mut Wire) -> Carried {
    let seen = Carried::default();
    let kept = seen.clone();
    wire.filter = Some(Rc::new(move |from, frame| {
        if frame.len() > SEGMENT + 13 && frame[12..14] == [8, 0] && frame[IP + 9] == 6 {
            kept.borrow_mut().push((from, frame.to_vec()));
        }
        false
    }));
    seen
}

/// Flags of the first segment of a sender that has these.
fn flags_of(seen: &Carried, from: usize, with: u8) -> u8 {
    let seen = seen.borrow();
    let mut flags = seen
        .iter()
        .filter(|(sender, _)| *sender == from)
        .map(|(_, frame)| frame[SEGMENT + 13]);
    flags.find(|flags| flags & with == with).unwrap()
}

/// `tcp_ecn`: 0 neither asks nor grants, 1 does both, 2 grants. What is agreed shows in the marks
/// of the packets.
#[test]
fn congestion_notification_is_asked_for_and_granted_as_told() {
    for (asks, grants, agreed) in [
        ("0", "1", false),
        ("1", "0", false),
        ("1", "2", true),
        ("2", "2", false),
        ("1", "1", true),
    ] {
        let mut wire = Wire::clean();
        wire.machines[0].set("ipv4/tcp_ecn", asks);
        wire.machines[1].set("ipv4/tcp_ecn", grants);
        let seen = watch(&mut wire);
        let listener = wire.machines[1].listen(80, 4);
        let files = wire.connect(&listener, 80);
        exchange(&mut wire, &files, [5000, 5000], 1);
        let asked = flags_of(&seen, 0, SYN) & (ECE | CWR) == ECE | CWR;
        assert_eq!(asked, asks == "1");
        assert_eq!(flags_of(&seen, 1, SYN | ACK) & ECE != 0, agreed);
        let marked = |from: usize| {
            let seen = seen.borrow();
            let mut data = seen
                .iter()
                .filter(|(sender, frame)| *sender == from && frame.len() > 1000);
            data.any(|(_, frame)| frame[IP + 1] & 3 == 2)
        };
        assert_eq!([marked(0), marked(1)], [agreed; 2], "{asks} and {grants}");
    }
}

/// A router that marks instead of dropping: the receiver tells, and the sender says that it heard.
#[test]
fn a_mark_of_a_router_is_told_to_the_sender() {
    let mut wire = Wire::clean();
    wire.machines[0].set("ipv4/tcp_ecn", "1");
    let listener = wire.machines[1].listen(80, 4);
    let files = wire.connect(&listener, 80);
    let seen = watch(&mut wire);
    files[0].write(&bytes(0, 0, 1000)).unwrap();
    wire.collect();
    wire.mark_congestion();
    wire.until(|_| read(&files[1]).ok());
    files[1].write(b"heard").unwrap();
    wire.until(|_| read(&files[0]).ok());

    assert_ne!(flags_of(&seen, 1, ACK) & ECE, 0);
    files[0].write(&bytes(0, 1000, 2000)).unwrap();
    wire.until(|_| read(&files[1]).ok());
    let heard = seen.borrow();
    let mut data = heard
        .iter()
        .filter(|(from, frame)| *from == 0 && frame.len() > 900);
    assert!(data.any(|(_, frame)| frame[SEGMENT + 13] & CWR != 0));
}

/// A path that swallows long segments without a word: with `tcp_mtu_probing` what is to be sent
/// comes in shorter ones, the first as long as `tcp_base_mss` says; without it nothing comes.
#[test]
fn a_silent_path_is_tried_with_short_segments_if_told() {
    for probes in [true, false] {
        let mut wire = Wire::clean();
        if probes {
            wire.machines[0].set("ipv4/tcp_mtu_probing", "1");
            wire.machines[0].set("ipv4/tcp_base_mss", "700");
        }
        let listener = wire.machines[1].listen(80, 4);
        let files = wire.connect(&listener, 80);
        let lengths = Rc::new(RefCell::new(Vec::new()));
        let kept = lengths.clone();
        wire.filter = Some(Rc::new(move |from, frame| {
            if from == 0 {
                kept.borrow_mut().push(frame.len());
            }
            from == 0 && frame.len() > 1000
        }));
        files[0].write(&bytes(0, 0, 3000)).unwrap();
        wire.run(30 * SECOND);
        let mut received = 0;
        while let Ok(data) = read(&files[1]) {
            received += data.len();
        }
        assert_eq!(received, if probes { 3000 } else { 0 });
        // 700 bytes with their timestamps, and the headers.
        let least = lengths
            .borrow()
            .iter()
            .copied()
            .max_by_key(|length| if *length > 1000 { 0 } else { *length });
        assert_eq!(least == Some(IP + 40 + 700), probes, "{least:?}");
    }
}

/// `tcp_slow_start_after_idle`: what goes out at once after a pause is the initial window, or as
/// much as before it.
#[test]
fn a_pause_takes_the_window_back_if_told() {
    let mut at_once = [0, 0];
    for restarts in [0, 1] {
        let mut wire = Wire::clean();
        wire.machines[0].set("ipv4/tcp_slow_start_after_idle", ["0", "1"][restarts]);
        let listener = wire.machines[1].listen(80, 4);
        let files = wire.connect(&listener, 80);
        for round in 0..8 {
            files[0]
                .write(&bytes(0, round * 16_000, (round + 1) * 16_000))
                .unwrap();
            let mut received = 0;
            wire.until(|_| {
                while let Ok(data) = read(&files[1]) {
                    received += data.len();
                }
                (received == 16_000).then_some(())
            });
        }
        wire.run(20 * SECOND);
        let seen = watch(&mut wire);
        assert!(files[0].write(&bytes(0, 0, 60_000)).unwrap() > 20_000);
        wire.collect();
        at_once[restarts] = seen.borrow().len();
    }
    assert_eq!(at_once[1], 10);
    assert!(at_once[0] > 10, "{at_once:?}");
}

/// `tcp_dsack`: whether a repetition is told by a block of selective acknowledgement.
#[test]
fn what_came_twice_is_told_if_told() {
    for tells in [true, false] {
        let mut wire = Wire::clean();
        wire.machines[1].set("ipv4/tcp_dsack", if tells { "1" } else { "0" });
        let listener = wire.machines[1].listen(80, 4);
        let files = wire.connect(&listener, 80);
        let seen = watch(&mut wire);
        files[0].write(&bytes(0, 0, 1000)).unwrap();
        wire.until(|_| read(&files[1]).ok());
        wire.run(SECOND);
        let again = seen.borrow().iter().find(|(from, _)| *from == 0).cloned();
        seen.borrow_mut().clear();
        wire.put(1, &again.unwrap().1);
        wire.run(100 * MILLISECOND);
        let seen = seen.borrow();
        let (_, answer) = seen.iter().find(|(from, _)| *from == 1).unwrap();
        // Timestamps alone take twelve bytes; a block is told by twelve more.
        let options = usize::from(answer[SEGMENT + 12] >> 4) * 4 - 20;
        assert_eq!(options, if tells { 24 } else { 12 });
    }
}

/// `tcp_abort_on_overflow`: who finds too many waiting is refused, instead of trying again.
#[test]
fn too_many_connections_are_refused_if_told() {
    for aborts in [true, false] {
        let mut wire = Wire::clean();
        wire.machines[1].set("ipv4/tcp_abort_on_overflow", if aborts { "1" } else { "0" });
        let listener = wire.machines[1].listen(80, 1);
        // One waits more than the backlog says, as on Linux. All are answered before one is there.
        let clients = [(); 3].map(|()| {
            let client = wire.machines[0].tcp();
            begin(&client, wire.machines[1].address, 80);
            client
        });
        wire.run(100 * MILLISECOND);
        let results = clients.map(|client| (connect_result(&client), client));
        let refused = Some(Err(Errno::ECONNRESET));
        let count = results.iter().filter(|(one, _)| *one == refused).count();
        assert_eq!(count, usize::from(aborts));
        assert!(accept(&listener).is_some());
    }
}

/// `tcp_orphan_retries`: a connection that its program has closed is given up sooner or later.
#[test]
fn an_orphan_is_given_up_as_soon_as_told() {
    let lasted = ["1", "0"].map(|retries| {
        let mut wire = Wire::clean();
        wire.machines[0].set("ipv4/tcp_orphan_retries", retries);
        let listener = wire.machines[1].listen(80, 4);
        let [client, _server] = wire.connect(&listener, 80);
        wire.filter = Some(Rc::new(|_, _| true));
        client.write(b"lost").unwrap();
        drop(client);
        let began = time();
        wire.until(|wire| wire.machines[0].states().is_empty().then_some(()));
        time() - began
    });
    assert!(
        lasted[0] < 5 * SECOND && lasted[1] > 20 * SECOND,
        "{lasted:?}"
    );
}

/// `tcp_congestion_control` is a name, for sockets that have chosen none.
#[test]
fn the_algorithm_of_sockets_that_choose_none_is_the_hosts() {
    let wire = Wire::clean();
    let machine = &wire.machines[0];
    let sysctls = machine.stack.sysctls();
    let setting = sysctls
        .all()
        .find(|one| one.path() == "ipv4/tcp_congestion_control")
        .unwrap();
    let of = |file: &fs::File| {
        let name = protocol(file).option(TCP, sys::TCP_CONGESTION).unwrap();
        String::from_utf8(name)
            .unwrap()
            .trim_end_matches('\0')
            .to_owned()
    };
    let [early, chosen] = [(); 2].map(|()| machine.tcp());
    protocol(&chosen)
        .set_option(TCP, sys::TCP_CONGESTION, b"cubic")
        .unwrap();
    assert_eq!(
        (setting.text().as_str(), of(&early).as_str()),
        ("cubic\n", "cubic")
    );
    assert_eq!(setting.set(b"bbr\n"), Err(Errno::ENOENT));
    assert_eq!(setting.set(b"1\n"), Err(Errno::ENOENT));
    setting.set(b"reno\n").unwrap();
    assert_eq!(setting.text(), "reno\n");
    assert_eq!(of(&machine.tcp()), "reno");
    assert_eq!(of(&chosen), "cubic");
}
