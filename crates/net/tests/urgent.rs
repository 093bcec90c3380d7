//! Urgent bytes of TCP over a wire (RFC 9293, section 3.8.5): marks travel with the stream, and
//! ahead of it.

mod common;

use std::sync::Arc;

use abi::errno::Errno;
use common::wire::{Machine, TIME, carry, connections, pair};
use common::{NOW, protocol};
use fs::File;
use fs::poll::Events;
use ip::SECOND;
use net::{MsgFlags, OutgoingMessage};

fn machines() -> ([Machine; 2], [Arc<File>; 2]) {
    let machines = pair();
    let ends = connections(&machines, 1).remove(0);
    carry(&machines);
    (machines, ends)
}

fn urgent(file: &File, data: &[u8]) -> Result<usize, Errno> {
    protocol(file).send(OutgoingMessage::plain(data), MsgFlags::OOB, NOW)
}

/// The urgent byte by itself.
fn take(file: &File) -> Result<u8, Errno> {
    let (data, got) = protocol(file).receive_to_vec(9, MsgFlags::OOB, NOW)?;
    assert!(got.urgent && data.len() == 1);
    Ok(data[0])
}

fn read(file: &File) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 1 << 16];
    let count = file.read(&mut buf)?;
    buf.truncate(count);
    Ok(buf)
}

fn has_urgent(file: &File) -> bool {
    file.poll(None).contains(Events::PRI)
}

#[test]
fn an_urgent_byte_is_apart_from_the_others() {
    let (machines, [client, server]) = machines();
    client.write(b"ab").unwrap();
    assert_eq!(urgent(&client, b"cX"), Ok(2));
    client.write(b"de").unwrap();
    assert_eq!(take(&server), Err(Errno::EINVAL), "nothing has come");
    carry(&machines);
    assert!(has_urgent(&server));
    let at_mark = || protocol(&server).at_mark().unwrap();
    assert_eq!((at_mark(), read(&server)), (false, Ok(b"abc".to_vec())));
    assert_eq!((at_mark(), take(&server)), (true, Ok(b'X')));
    assert!(!has_urgent(&server));
    assert_eq!(take(&server), Err(Errno::EINVAL), "it was taken");
    assert_eq!(read(&server), Ok(b"de".to_vec()));
    // One that nobody takes by itself is passed over.
    urgent(&client, b"fY").unwrap();
    client.write(b"g").unwrap();
    carry(&machines);
    assert_eq!(
        [read(&server), read(&server)],
        [b"f", b"g"].map(|one| Ok(one.to_vec()))
    );
    assert_eq!(
        (take(&server), has_urgent(&server)),
        (Err(Errno::EINVAL), false)
    );
}

/// Of a segment that is sent again the mark is on what follows it, which Nagle has held back.
#[test]
fn a_mark_is_known_before_its_byte_comes() {
    let (machines, [client, server]) = machines();
    client.write(b"12").unwrap();
    assert_eq!(machines[0].end.take().len(), 1, "which is lost");
    urgent(&client, b"Y").unwrap();
    TIME.set(TIME.get() + 2 * SECOND);
    machines[0].host.run_timers();
    for frame in machines[0].end.take() {
        machines[1].host.receive(machines[1].index, &frame);
    }
    assert_eq!(
        (take(&server), has_urgent(&server)),
        (Err(Errno::EAGAIN), false)
    );
    assert_eq!(read(&server), Ok(b"12".to_vec()));
    assert_eq!(read(&server), Err(Errno::EAGAIN));
    assert_eq!(protocol(&server).at_mark(), Ok(true));
    carry(&machines);
    assert!(has_urgent(&server));
    assert_eq!(
        (take(&server), take(&server)),
        (Ok(b'Y'), Err(Errno::EINVAL))
    );
    assert_eq!(read(&server), Err(Errno::EAGAIN), "it is not in the stream");
}

/// The first of several segments has the mark, and the others are still under way.
#[test]
fn a_reader_gets_what_there_is_before_a_mark() {
    let (machines, [client, server]) = machines();
    assert_eq!(urgent(&client, &[7; 4000]), Ok(4000));
    let frames = machines[0].end.take();
    assert_eq!(frames.len(), 3);
    let [first, rest @ ..] = &frames[..] else {
        unreachable!()
    };
    machines[1].host.receive(machines[1].index, first);
    assert_eq!(take(&server), Err(Errno::EAGAIN));
    assert_eq!(read(&server).map(|bytes| bytes.len()), Ok(1448));
    for frame in rest {
        machines[1].host.receive(machines[1].index, frame);
    }
    assert_eq!(read(&server).map(|bytes| bytes.len()), Ok(4000 - 1448 - 1));
    assert_eq!(take(&server), Ok(7));
}

/// A mark further away than a segment can say comes when it can be said.
#[test]
fn a_mark_may_be_far_away() {
    const LENGTH: usize = 300_000;
    let (machines, [client, server]) = machines();
    let long: Vec<u8> = (0..LENGTH)
        .map(|at| ((at * 31) ^ (at >> 8)) as u8)
        .collect();
    let (mut sent, mut received) = (0, Vec::new());
    while received.len() < LENGTH - 1 {
        sent += urgent(&client, &long[sent..]).unwrap_or(0);
        carry(&machines);
        match read(&server) {
            Ok(more) => received.extend(more),
            Err(error) => assert_eq!(error, Errno::EAGAIN),
        }
        TIME.set(TIME.get() + SECOND);
        machines
            .iter()
            .for_each(|machine| machine.host.run_timers());
    }
    assert!(received[..] == long[..LENGTH - 1], "all but the last");
    assert_eq!(take(&server), Ok(long[LENGTH - 1]));
}
