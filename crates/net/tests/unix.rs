//! `AF_UNIX` on the host: what a machine's program cannot see, or not force.

mod common;

use std::sync::{Arc, Weak};

use abi::errno::Errno;
use common::{NOW, PATIENT, call, protocol, stack};
use fs::poll::Events;
use fs::{File, OpenFlags};
use linux_raw_sys::net::AF_UNIX;
use net::{Address, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketType, UnixName};
use proptest::prelude::*;

fn files(kind: SocketType) -> (Arc<File>, Arc<File>) {
    let (a, b) = stack().socket_pair(kind, 0).unwrap();
    (
        a.into_file(OpenFlags::empty()),
        b.into_file(OpenFlags::empty()),
    )
}

fn send(file: &File, data: &[u8], rights: &[&Arc<File>]) -> fs::Result<usize> {
    let rights = (!rights.is_empty())
        .then(|| stack().scm_rights(rights.iter().map(|&f| f.clone()).collect(), None));
    protocol(file).send(
        OutgoingMessage {
            rights,
            ..OutgoingMessage::plain(data)
        },
        MsgFlags::empty(),
        NOW,
    )
}

fn receive(file: &File, limit: usize) -> fs::Result<(Vec<u8>, ReceivedMessage)> {
    protocol(file).receive_to_vec(limit, MsgFlags::empty(), NOW)
}

/// Closing any socket is when unreachable ones are looked for.
fn collect() {
    drop(files(SocketType::Datagram));
}

#[test]
fn sockets_only_reachable_from_each_other_are_freed() {
    for kind in [
        SocketType::Stream,
        SocketType::Datagram,
        SocketType::Seqpacket,
    ] {
        let (a, b) = files(kind);
        let (c, d) = files(kind);
        send(&a, b"x", &[&a, &c]).unwrap();
        send(&c, b"x", &[&b, &d]).unwrap();
        send(&d, b"x", &[&b]).unwrap();
        let all: Vec<Weak<File>> = [&a, &b, &c, &d].map(Arc::downgrade).into();
        drop((a, b, c));
        collect();
        // The last one open still holds those in its queue, and these the others.
        assert!(all.iter().all(|f| f.strong_count() > 0), "{kind:?}");
        drop(d);
        collect();
        assert!(all.iter().all(|f| f.strong_count() == 0), "{kind:?}");
    }
}

#[test]
fn a_connection_that_is_refused_memory_is_not_made() {
    let stream = || stack().socket(AF_UNIX, SocketType::Stream, 0).unwrap();
    let (server, client) = (
        stream().into_file(OpenFlags::empty()),
        stream().into_file(OpenFlags::empty()),
    );
    let address = Address::Unix(UnixName::Abstract(b"refused"[..].into()));
    call(|caller| protocol(&server).bind(caller, &address)).unwrap();
    protocol(&server).listen(1).unwrap();
    let connect = || call(|caller| protocol(&client).connect(caller, &address, NOW));
    fallible::inject::set(1).unwrap();
    let refused = connect();
    fallible::inject::clear();
    assert_eq!(
        (refused, protocol(&server).accept(NOW).err()),
        (Err(Errno::ENOMEM), Some(Errno::EAGAIN))
    );
    connect().unwrap();
    protocol(&server).accept(NOW).unwrap();
}

#[test]
fn what_is_received_is_out_of_the_collectors_hands() {
    let (a, b) = files(SocketType::Stream);
    let (c, d) = files(SocketType::Stream);
    send(&c, b"inner", &[&c]).unwrap();
    send(&a, b"outer", &[&d]).unwrap();
    drop((c, d));
    collect();
    let (_, got) = receive(&b, 64).unwrap();
    let arrived = got.rights.unwrap().into_files();
    collect();
    let (text, got) = receive(&arrived[0], 64).unwrap();
    assert_eq!(text, b"inner");
    assert_eq!(got.rights.unwrap().into_files().len(), 1);
}

#[test]
fn a_sender_that_waits_for_room_is_woken_by_the_receiver() {
    for kind in [
        SocketType::Stream,
        SocketType::Seqpacket,
        SocketType::Datagram,
    ] {
        let (a, b) = files(kind);
        let mut sent = 0usize;
        while send(&a, &[7; 4096], &[]).is_ok_and(|n| n == 4096) {
            sent += 4096;
        }
        assert_eq!(
            protocol(&a).poll(&a, None) & Events::OUT,
            Events::empty(),
            "{kind:?}"
        );
        let sender = std::thread::spawn(move || {
            let n = protocol(&a)
                .send(
                    OutgoingMessage::plain(&[8; 4096]),
                    MsgFlags::empty(),
                    PATIENT,
                )
                .unwrap();
            (n, a)
        });
        let mut received = 0;
        while received < sent + 4096 {
            received += protocol(&b)
                .receive_to_vec(1 << 20, MsgFlags::empty(), PATIENT)
                .unwrap()
                .0
                .len();
            if kind == SocketType::Stream && received >= sent {
                break;
            }
        }
        assert_eq!(sender.join().unwrap().0, 4096, "{kind:?}");
    }
}

#[test]
fn the_end_of_one_ends_the_waiting_of_the_other() {
    let (a, b) = files(SocketType::Stream);
    let reader = std::thread::spawn(move || {
        protocol(&b)
            .receive(&mut [0; 8], MsgFlags::empty(), PATIENT)
            .map(|got| got.copied)
    });
    drop(a);
    assert_eq!(reader.join().unwrap(), Ok(0));
    let (a, b) = files(SocketType::Seqpacket);
    drop(b);
    assert_eq!(send(&a, b"x", &[]), Err(Errno::EPIPE));
}

#[test]
fn what_arrives_is_under_way_no_longer() {
    let under_way = || {
        let mut found = [0; 2];
        stack().object_counts(&mut |name, count| match name {
            "sockets_under_way" => found[0] = count,
            "references_under_way" => found[1] = count,
            _ => {}
        });
        found
    };
    let before = under_way();
    let (a, b) = files(SocketType::Stream);
    let (c, d) = files(SocketType::Stream);
    send(&a, b"x", &[&c, &c, &d]).unwrap();
    assert_eq!(under_way(), [before[0] + 2, before[1] + 3]);
    let (_, got) = receive(&b, 10).unwrap();
    assert_eq!(got.rights.unwrap().into_files().len(), 3);
    assert_eq!(under_way(), before);
}

#[test]
fn looking_at_a_message_goes_on_by_what_was_seen() {
    for kind in [SocketType::Datagram, SocketType::Seqpacket] {
        let (a, b) = files(kind);
        send(&a, b"abcd", &[]).unwrap();
        send(&a, b"ef", &[]).unwrap();
        let options = b.ops_as::<Socket>().unwrap().options();
        options.set_peek_offset(0);
        let peek = |limit| {
            protocol(&b)
                .receive_to_vec(limit, MsgFlags::PEEK, NOW)
                .map(|(data, _)| data)
        };
        assert_eq!(
            (peek(3), options.peek_offset(), peek(3), peek(3)),
            (
                Ok(b"abc".to_vec()),
                3,
                Ok(b"d".to_vec()),
                Ok(b"ef".to_vec())
            )
        );
        // A message is taken whole, however little of it was wanted.
        assert_eq!(
            (receive(&b, 1).unwrap().0, options.peek_offset()),
            (b"a".to_vec(), 2)
        );
    }
}

/// As on Linux, who waits for room is told when more than three quarters of it are free.
#[test]
fn room_is_told_when_there_is_more_than_a_little() {
    let (a, b) = files(SocketType::Stream);
    a.ops_as::<Socket>()
        .unwrap()
        .options()
        .set_int_option(linux_raw_sys::net::SO_SNDBUF, 4000, false)
        .unwrap();
    let writable = || a.poll(None).contains(Events::OUT);
    assert_eq!(
        (
            send(&a, &[0; 2000], &[]),
            writable(),
            send(&a, b"x", &[]),
            writable()
        ),
        (Ok(2000), true, Ok(1), false)
    );
    receive(&b, 1).unwrap();
    assert!(writable());
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, bool),
    Receive(usize),
    Peek(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1usize..40, any::<bool>()).prop_map(|(n, rights)| Step::Send(n, rights)),
        (1usize..60).prop_map(Step::Receive),
        (1usize..60).prop_map(Step::Peek),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// A stream gives its bytes in order, and open files with the first byte of what they were sent
    /// with, never two lots at once.
    #[test]
    fn a_stream_keeps_bytes_and_files_together(steps in steps()) {
            let (a, b) = files(SocketType::Stream);
        let (passed, _other) = files(SocketType::Stream);
        let mut next = 0u8;
        // What is under way: byte, and whether a lot of files came with it.
        let mut model: std::collections::VecDeque<(u8, bool)> = std::collections::VecDeque::new();
        // Where lots end, as bytes from the front of the model.
        let mut ends: Vec<(usize, usize)> = Vec::new();
        for step in steps {
            match step {
                Step::Send(n, with_files) => {
                    let data: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                    next = next.wrapping_add(n as u8);
                    let rights: Vec<&Arc<File>> = if with_files { vec![&passed] } else { vec![] };
                    prop_assert_eq!(send(&a, &data, &rights), Ok(n));
                    if with_files {
                        ends.push((model.len(), model.len() + n));
                    }
                    model.extend(data.iter().enumerate().map(|(i, &b)| (b, with_files && i == 0)));
                }
                Step::Receive(limit) | Step::Peek(limit) => {
                    let peek = matches!(step, Step::Peek(_));
                    let flags = if peek { MsgFlags::PEEK } else { MsgFlags::empty() };
                    let result = protocol(&b).receive_to_vec(limit, flags, NOW);
                    if model.is_empty() {
                        prop_assert_eq!(result.err(), Some(Errno::EAGAIN));
                        continue;
                    }
                    let (data, got) = result.unwrap();
                    // Up to the end of the first lot of files whose beginning is reached.
                    let stop = ends.iter().find(|lot| lot.0 < limit.min(model.len())).map_or(usize::MAX, |lot| lot.1);
                    let n = limit.min(model.len()).min(stop);
                    let expected: Vec<u8> = model.iter().take(n).map(|b| b.0).collect();
                    prop_assert_eq!(&data, &expected);
                    let lots = model.iter().take(n).filter(|b| b.1).count();
                    prop_assert!(lots <= 1);
                    prop_assert_eq!(got.rights.map_or(0, |r| r.into_files().len()), lots);
                    if !peek {
                        model.drain(..n);
                        ends = ends.iter().filter(|lot| lot.0 >= n).map(|lot| (lot.0 - n, lot.1 - n)).collect();
                    }
                }
            }
        }
    }
}
