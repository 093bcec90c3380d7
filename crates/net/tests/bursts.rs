//! Frames that come together (`docs/ip.md`, "Bursts"): what a connection answers once, and what at
//! once.

mod common;

use std::sync::Arc;

use abi::errno::Errno;
use common::protocol;
use common::wire::{Machine, carry, connections, pair};
use fs::File;
use tcp::{Flags, Segment};

/// Bytes of a segment on these wires.
const SEGMENT: usize = 1448;

/// Two machines with connections from the first to the second, whose sender may send many segments
/// at once.
fn machines(count: usize) -> ([Machine; 2], Vec<[Arc<File>; 2]>) {
    let machines = pair();
    let all = connections(&machines, count);
    for [client, server] in &all {
        for _ in 0..20 {
            let sent = client.write(&[1; 60 * SEGMENT]).unwrap();
            carry(&machines);
            assert_eq!(read(server), sent);
            carry(&machines);
        }
    }
    (machines, all)
}

/// The bytes that there are to be read.
fn read(file: &File) -> usize {
    let mut bytes = vec![0; 1 << 20];
    match file.read(&mut bytes) {
        Ok(count) => count,
        Err(Errno::EAGAIN) => 0,
        Err(error) => panic!("{error:?}"),
    }
}

/// The frames of so many segments.
fn segments(machine: &Machine, file: &File, count: usize) -> Vec<Vec<u8>> {
    file.write(&vec![7; count * SEGMENT]).unwrap();
    let frames = machine.end.take();
    assert_eq!(frames.len(), count);
    frames
}

/// The segments that a machine has sent since: their flags, and what they acknowledge.
fn answers(machine: &Machine) -> Vec<(Flags, u32)> {
    let frames = machine.end.take();
    let header = |frame: &Vec<u8>| Segment::parse(&frame[34..]).unwrap().header;
    let headers = frames.iter().map(header);
    headers.map(|header| (header.flags, header.ack.0)).collect()
}

/// The number behind the bytes of a frame.
fn behind(frame: &[u8]) -> u32 {
    let segment = Segment::parse(&frame[34..]).unwrap();
    let end = segment.header.flags.contains(Flags::FIN);
    let length = segment.payload.len() as u32 + u32::from(end);
    segment.header.seq.plus(length).0
}

#[test]
fn segments_that_come_together_are_answered_once() {
    let (machines, all) = machines(1);
    let [one, two] = &machines;
    let [client, server] = &all[0];
    let frames = segments(one, client, 10);
    let mut burst = two.host.burst(two.index);
    frames[..9].iter().for_each(|frame| burst.receive(frame));
    assert_eq!(answers(two), []);
    drop(burst);
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[8]))]);
    assert_eq!(read(server), 9 * SEGMENT);
    answers(two);
    // By themselves every second one is answered, as ever; the last one has a push.
    two.host.receive(two.index, &frames[9]);
    assert_eq!(read(server), SEGMENT);
    carry(&machines);
    let frames = segments(one, client, 10);
    for frame in &frames {
        two.host.receive(two.index, frame);
    }
    assert!(answers(two).len() >= 5);
}

#[test]
fn a_push_and_a_limit_end_the_wait() {
    let (machines, all) = machines(1);
    let [one, two] = &machines;
    let [client, server] = &all[0];
    let frames = segments(one, client, 4);
    let mut burst = two.host.burst(two.index);
    frames.iter().for_each(|frame| burst.receive(frame));
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[3]))]);
    drop(burst);
    assert_eq!(answers(two), [], "once");
    assert_eq!(read(server), 4 * SEGMENT);
    carry(&machines);
    let frames = segments(one, client, 50);
    let mut burst = two.host.burst(two.index);
    frames[..49].iter().for_each(|frame| burst.receive(frame));
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[31]))]);
    drop(burst);
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[48]))]);
}

/// RFC 5681, section 4.2: whoever sends again counts these answers.
#[test]
fn what_comes_behind_a_gap_is_answered_at_once() {
    let (machines, all) = machines(1);
    let [one, two] = &machines;
    let [client, server] = &all[0];
    let frames = segments(one, client, 10);
    let mut burst = two.host.burst(two.index);
    for at in [0, 1, 3, 4, 5, 6, 7, 8, 2] {
        burst.receive(&frames[at]);
    }
    let mut expected = vec![(Flags::ACK, behind(&frames[1])); 6];
    expected.push((Flags::ACK, behind(&frames[8])));
    assert_eq!(answers(two), expected);
    drop(burst);
    assert_eq!(answers(two), []);
    // One that has come before is answered, too.
    let mut burst = two.host.burst(two.index);
    burst.receive(&frames[4]);
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[8]))]);
    drop(burst);
    assert_eq!(read(server), 9 * SEGMENT);
}

#[test]
fn connections_do_not_wait_for_each_other() {
    let (machines, all) = machines(3);
    let [one, two] = &machines;
    let frames: Vec<_> = all
        .iter()
        .map(|[client, _]| segments(one, client, 4))
        .collect();
    let mut burst = two.host.burst(two.index);
    for at in [0, 1, 2] {
        frames.iter().for_each(|of| burst.receive(&of[at]));
    }
    drop(burst);
    let last = answers(two);
    for (frames, [_, server]) in frames.iter().zip(&all) {
        // The third one may wait for a fourth.
        assert!(last.contains(&(Flags::ACK, behind(&frames[1]))), "{last:?}");
        assert_eq!(read(server), 3 * SEGMENT);
    }
}

#[test]
fn an_end_and_a_reset_follow_what_came_before_them() {
    let (machines, all) = machines(2);
    let [one, two] = &machines;
    // The peer's end, with segments in front of it.
    let [client, server] = &all[0];
    let mut frames = segments(one, client, 4);
    protocol(client).shutdown(false, true).unwrap();
    frames.extend(one.end.take());
    assert_eq!(frames.len(), 5);
    let mut burst = two.host.burst(two.index);
    frames.iter().for_each(|frame| burst.receive(frame));
    assert_eq!(read(server), 4 * SEGMENT);
    assert_eq!(server.read(&mut [0; 1]), Ok(0));
    drop(burst);
    assert!(answers(two).contains(&(Flags::ACK, behind(&frames[4]))));
    // This program's end in the middle of a burst: what comes for it is reset.
    let (machines, mut all) = self::machines(1);
    let [one, two] = &machines;
    let [client, server] = all.pop().unwrap();
    let frames = segments(one, &client, 4);
    let mut burst = two.host.burst(two.index);
    burst.receive(&frames[0]);
    assert_eq!(read(&server), SEGMENT);
    drop(server);
    burst.receive(&frames[1]);
    burst.receive(&frames[2]);
    drop(burst);
    let sent = answers(two);
    assert!(sent.iter().any(|(flags, _)| flags.contains(Flags::RST)));
}

/// RFC 5681, section 4.2: what fills a part of a gap is answered at once.
#[test]
fn a_segment_before_another_gap_does_not_wait() {
    let (machines, all) = machines(1);
    let [one, two] = &machines;
    let frames = segments(one, &all[0][0], 4);
    two.host.receive(two.index, &frames[2]);
    assert_eq!(answers(two).len(), 1, "of what came too early");
    let mut burst = two.host.burst(two.index);
    burst.receive(&frames[0]);
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[0]))]);
    burst.receive(&frames[1]);
    assert_eq!(answers(two), [(Flags::ACK, behind(&frames[2]))]);
}
