//! Sockets under all schedules with a few pre-emptions (`docs/locks.md`).

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};

use abi::errno::Errno;
use common::{PATIENT, call, protocol};
use fs::poll::{Events, PollPass, poll};
use fs::{File, OpenFlags};
use linux_raw_sys::net::{AF_INET, AF_UNIX, IPPROTO_TCP, SO_SNDBUF, TCP_NODELAY};
use net::inet::Loopback;
use net::{Address, MsgFlags, OutgoingMessage, Socket, SocketType, Stack, UnixName, WaitPolicy};
use task::explore::{Model, spawn};

const HASTY: WaitPolicy = WaitPolicy {
    nonblocking: false,
    timeout_ns: 1000,
};
/// The smallest buffer there is.
const BUFFER: usize = 4608;

fn file(socket: Socket) -> Arc<File> {
    socket
        .options()
        .set_int_option(SO_SNDBUF, 1, false)
        .unwrap();
    socket.into_file(OpenFlags::empty())
}

/// A datagram socket whose own buffer holds more messages than a receiver's queue.
fn roomy() -> Arc<File> {
    stack()
        .socket(AF_UNIX, SocketType::Datagram, 0)
        .unwrap()
        .into_file(OpenFlags::empty())
}

fn stack() -> &'static Stack {
    static STACK: LazyLock<Arc<Stack>> = LazyLock::new(|| Stack::new(Arc::new(Loopback)));
    &STACK
}

fn files(kind: SocketType) -> (Arc<File>, Arc<File>) {
    let (a, b) = stack().socket_pair(kind, 0).unwrap();
    (file(a), file(b))
}

fn name(name: &[u8]) -> Address {
    Address::Unix(UnixName::Abstract(name.into()))
}

fn bind(socket: &File, address: &Address) {
    call(|caller| protocol(socket).bind(caller, address)).unwrap();
}

fn connect(socket: &File, address: &Address, wait: WaitPolicy) -> fs::Result<()> {
    call(|caller| protocol(socket).connect(caller, address, wait))
}

/// Reads until the end.
fn read_all(file: &File) -> Vec<u8> {
    let (mut got, mut buf) = (Vec::new(), [0; 8192]);
    while let n @ 1.. = file.read(&mut buf).unwrap() {
        got.extend_from_slice(&buf[..n]);
    }
    got
}

mod streams {
    use super::*;

    #[test]
    fn what_is_sent_before_the_end_is_received_before_it() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let sender = spawn("sender", move || {
                assert_eq!(a.write(b"la"), Ok(2));
                assert_eq!(a.write(b"st"), Ok(2));
                protocol(&a).shutdown(false, true).unwrap();
                drop(a);
            });
            assert_eq!(read_all(&b), b"last");
            sender.join();
        });
    }

    /// The receiver makes room for what there is: it was one byte if the end came while it looked.
    #[test]
    fn what_is_sent_at_once_is_received_at_once_also_before_an_end() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let sender = spawn("sender", move || {
                assert_eq!(a.write(b"last"), Ok(4));
                protocol(&a).shutdown(false, true).unwrap();
            });
            let got = protocol(&b).receive_to_vec(100, MsgFlags::empty(), PATIENT);
            assert_eq!(got.unwrap().0, b"last");
            sender.join();
        });
    }

    #[test]
    fn a_sender_that_found_no_room_goes_on_as_the_receiver_reads_bit_by_bit() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let data: Vec<u8> = (0..2 * BUFFER + 3).map(|at| at as u8).collect();
            let sent = data.clone();
            let sender = spawn("sender", move || assert_eq!(a.write(&sent), Ok(sent.len())));
            let mut got = vec![0; 3];
            assert_eq!(b.read(&mut got), Ok(3));
            got.extend(read_all(&b));
            assert_eq!(got, data);
            sender.join();
        });
    }

    /// No end wakes anybody here: both sockets stay open.
    #[test]
    fn who_waits_for_an_answer_is_woken_by_it_alone() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let theirs = b.clone();
            let other = spawn("other", move || {
                assert_eq!(theirs.read(&mut [0; 4]), Ok(4));
                assert_eq!(theirs.write(b"pong"), Ok(4));
            });
            assert_eq!(a.write(b"ping"), Ok(4));
            assert_eq!(a.read(&mut [0; 4]), Ok(4));
            other.join();
            drop((a, b));
        });
    }

    #[test]
    fn room_made_by_who_waits_for_all_wakes_the_sender() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let theirs = a.clone();
            let sender = spawn("sender", move || {
                assert_eq!(theirs.write(&vec![7; 2 * BUFFER]), Ok(2 * BUFFER));
            });
            let mut got = vec![0; 2 * BUFFER];
            assert_eq!(
                protocol(&b)
                    .receive(&mut got, MsgFlags::WAITALL, PATIENT)
                    .unwrap()
                    .copied,
                2 * BUFFER
            );
            sender.join();
            drop((a, b));
        });
    }

    #[test]
    fn a_sender_hears_that_the_receiver_has_gone_or_will_not_receive() {
        for closes in [true, false] {
            Model::new().preemptions(2).check(move || {
                let (a, b) = files(SocketType::Stream);
                let sender = spawn("sender", move || {
                    let sent = a.write(&vec![0; 2 * BUFFER]);
                    assert!(
                        sent == Ok(BUFFER) || matches!(sent, Err(Errno::EPIPE | Errno::ECONNRESET)),
                        "{sent:?}"
                    );
                });
                if closes {
                    drop(b);
                    sender.join();
                } else {
                    protocol(&b).shutdown(true, false).unwrap();
                    sender.join();
                    drop(b);
                }
            });
        }
    }

    #[test]
    fn both_of_two_receivers_hear_of_the_end() {
        Model::new().preemptions(1).check(|| {
            let (a, b) = files(SocketType::Stream);
            let receivers = [(); 2].map(|()| {
                let b = b.clone();
                spawn(
                    "receiver",
                    move || while b.read(&mut [0; 1]).unwrap() > 0 {},
                )
            });
            assert_eq!(a.write(b"xy"), Ok(2));
            protocol(&a).shutdown(false, true).unwrap();
            receivers.into_iter().for_each(|receiver| receiver.join());
            drop((a, b));
        });
    }

    #[test]
    fn who_waits_for_all_of_it_gets_all_or_what_came_before_the_end() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let sender = spawn("sender", move || {
                for bytes in [&b"ab"[..], b"c"] {
                    assert_eq!(a.write(bytes), Ok(bytes.len()));
                }
            });
            let mut buf = [0; 3];
            let got = protocol(&b)
                .receive(&mut buf, MsgFlags::WAITALL, PATIENT)
                .unwrap();
            assert_eq!((got.copied, &buf), (3, b"abc"));
            let got = protocol(&b)
                .receive(&mut buf, MsgFlags::WAITALL, PATIENT)
                .unwrap();
            assert_eq!(got.copied, 0);
            sender.join();
        });
    }

    #[test]
    fn a_receiver_that_times_out_takes_nothing() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let sender = spawn("sender", move || {
                assert_eq!(a.write(b"x"), Ok(1));
                drop(a);
            });
            let early = protocol(&b)
                .receive(&mut [0; 2], MsgFlags::empty(), HASTY)
                .map(|got| got.copied);
            assert!(matches!(early, Ok(1) | Err(Errno::EAGAIN)), "{early:?}");
            assert_eq!(read_all(&b).len(), usize::from(early.is_err()));
            sender.join();
        });
    }

    #[test]
    fn poll_reports_room_bytes_and_the_end() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            assert_eq!(a.write(&[0; BUFFER]), Ok(BUFFER));
            let theirs = b.clone();
            let receiver = spawn("receiver", move || {
                assert_eq!(theirs.read(&mut [0; BUFFER]), Ok(BUFFER));
                assert_eq!(theirs.write(b"x"), Ok(1));
                protocol(&theirs).shutdown(false, true).unwrap();
            });
            for wanted in [Events::OUT, Events::IN, Events::RDHUP] {
                let look = |pass: &mut PollPass<'_>| {
                    pass.poll(&a, wanted);
                };
                assert_eq!(poll(None, look), Ok(1));
            }
            receiver.join();
            drop(b);
        });
    }

    #[test]
    fn urgent_and_other_bytes_are_told_apart() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            let sender = spawn("sender", move || {
                assert_eq!(a.write(b"a"), Ok(1));
                assert_eq!(
                    protocol(&a).send(OutgoingMessage::plain(b"bU"), MsgFlags::OOB, PATIENT),
                    Ok(2)
                );
                assert_eq!(a.write(b"c"), Ok(1));
            });
            assert_eq!(read_all(&b), b"abc");
            sender.join();
        });
    }
}

mod messages {
    use super::*;

    #[test]
    fn a_message_that_found_no_room_is_sent_when_there_is_some() {
        for kind in [SocketType::Seqpacket, SocketType::Datagram] {
            Model::new().preemptions(2).check(move || {
                let (a, b) = files(kind);
                let sender = spawn("sender", move || {
                    (0..3u8).for_each(|n| assert_eq!(a.write(&[n; 3000]), Ok(3000)));
                });
                let mut buf = [0; 4000];
                for n in 0..3 {
                    assert_eq!((b.read(&mut buf), buf[0]), (Ok(3000), n));
                }
                sender.join();
            });
        }
    }

    #[test]
    fn a_sender_of_messages_hears_that_the_receiver_has_gone() {
        for kind in [SocketType::Seqpacket, SocketType::Datagram] {
            Model::new().preemptions(3).check(move || {
                let (a, b) = files(kind);
                let sender = spawn("sender", move || {
                    let results = [(); 3].map(|()| a.write(&[0; 3000]));
                    assert!(results[2].is_err(), "{results:?}");
                });
                drop(b);
                sender.join();
            });
        }
    }

    #[test]
    fn two_senders_to_a_full_queue_are_both_told_of_room() {
        Model::new().preemptions(1).check(|| {
            let [receiver, filler] = [(); 2].map(|()| roomy());
            bind(&receiver, &name(b"full"));
            connect(&filler, &name(b"full"), PATIENT).unwrap();
            // As many as wait at most.
            (0..11).for_each(|_| assert_eq!(filler.write(b"x"), Ok(1)));
            let senders = [(); 2].map(|()| {
                let sender = file(stack().socket(AF_UNIX, SocketType::Datagram, 0).unwrap());
                connect(&sender, &name(b"full"), PATIENT).unwrap();
                spawn("sender", move || assert_eq!(sender.write(b"y"), Ok(1)))
            });
            for _ in 0..2 {
                assert_eq!(receiver.read(&mut [0; 1]), Ok(1));
            }
            senders.into_iter().for_each(|sender| sender.join());
            drop(filler);
        });
    }

    #[test]
    fn senders_to_a_full_queue_hear_that_it_is_closed() {
        Model::new().preemptions(2).check(|| {
            let [receiver, filler, sender] = [(); 3].map(|()| roomy());
            bind(&receiver, &name(b"closing"));
            for socket in [&filler, &sender] {
                connect(socket, &name(b"closing"), PATIENT).unwrap();
            }
            (0..11).for_each(|_| assert_eq!(filler.write(b"x"), Ok(1)));
            let sender = spawn("sender", move || {
                assert_eq!(sender.write(b"y"), Err(Errno::ECONNREFUSED));
            });
            drop(receiver);
            sender.join();
            drop(filler);
        });
    }
}

mod connections {
    use super::*;

    /// A listening socket of each family that connects, and its address.
    fn listener(inet: bool, backlog: usize) -> (Arc<File>, Address) {
        let (socket, address) = if inet {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            (
                stack().socket(AF_INET, SocketType::Stream, 0),
                Address::Inet(any),
            )
        } else {
            (
                stack().socket(AF_UNIX, SocketType::Stream, 0),
                name(b"listener"),
            )
        };
        let socket = file(socket.unwrap());
        bind(&socket, &address);
        protocol(&socket).listen(backlog).unwrap();
        let address = protocol(&socket).local_address();
        (socket, address)
    }

    fn client(inet: bool) -> Arc<File> {
        file(
            if inet {
                stack().socket(AF_INET, SocketType::Stream, 0)
            } else {
                stack().socket(AF_UNIX, SocketType::Stream, 0)
            }
            .unwrap(),
        )
    }

    #[test]
    fn a_connection_is_accepted_and_carries_bytes() {
        for inet in [false, true] {
            Model::new().preemptions(2).check(move || {
                let (listener, address) = listener(inet, 1);
                let client = spawn("client", move || {
                    let client = client(inet);
                    connect(&client, &address, PATIENT).unwrap();
                    assert_eq!(client.write(b"x"), Ok(1));
                });
                let served = protocol(&listener)
                    .accept(PATIENT)
                    .unwrap()
                    .into_file(OpenFlags::empty());
                assert_eq!(read_all(&served), b"x");
                client.join();
            });
        }
    }

    #[test]
    fn nothing_overtakes_what_was_held_back() {
        Model::new().preemptions(2).check(|| {
            let (listener, address) = listener(true, 1);
            let a = client(true);
            connect(&a, &address, PATIENT).unwrap();
            let b = protocol(&listener)
                .accept(PATIENT)
                .unwrap()
                .into_file(OpenFlags::empty());
            let pusher = spawn("pusher", {
                let a = a.clone();
                move || {
                    let on = 1i32.to_ne_bytes();
                    protocol(&a)
                        .set_option(IPPROTO_TCP as u32, TCP_NODELAY, &on)
                        .unwrap();
                }
            });
            let first = protocol(&a).send(OutgoingMessage::plain(b"ab"), MsgFlags::MORE, PATIENT);
            assert_eq!(first, Ok(2));
            assert_eq!(a.write(b"c"), Ok(1));
            pusher.join();
            drop(a);
            assert_eq!(read_all(&b), b"abc");
        });
    }

    #[test]
    fn all_that_wait_for_a_full_backlog_get_in() {
        for inet in [false, true] {
            Model::new().preemptions(1).check(move || {
                let (listener, address) = listener(inet, 0);
                let clients = [(); 2].map(|()| {
                    let address = address.clone();
                    spawn("client", move || {
                        let client = client(inet);
                        connect(&client, &address, PATIENT).unwrap();
                    })
                });
                // Kept until all are in: their end would wake who waits, too.
                let served = [(); 2].map(|()| {
                    protocol(&listener)
                        .accept(PATIENT)
                        .unwrap()
                        .into_file(OpenFlags::empty())
                });
                clients.into_iter().for_each(|client| client.join());
                drop(served);
            });
        }
    }

    #[test]
    fn all_that_wait_hear_that_the_listener_has_gone() {
        for inet in [false, true] {
            Model::new().preemptions(1).check(move || {
                let (listener, address) = listener(inet, 0);
                let clients = [(); 2].map(|()| {
                    let address = address.clone();
                    spawn("client", move || {
                        let client = client(inet);
                        match connect(&client, &address, PATIENT) {
                            // It was in the backlog.
                            Ok(()) => assert!(matches!(
                                client.read(&mut [0; 1]),
                                Ok(0) | Err(Errno::ECONNRESET)
                            )),
                            Err(error) => assert!(
                                matches!(error, Errno::ECONNREFUSED | Errno::ECONNRESET),
                                "{error}"
                            ),
                        }
                    })
                });
                drop(listener);
                clients.into_iter().for_each(|client| client.join());
            });
        }
    }

    #[test]
    fn who_accepts_hears_that_the_listener_is_shut() {
        for inet in [false, true] {
            Model::new().preemptions(3).check(move || {
                let (listener, _) = listener(inet, 1);
                let theirs = listener.clone();
                let other = spawn("other", move || {
                    protocol(&theirs).shutdown(true, true).unwrap();
                });
                assert_eq!(
                    protocol(&listener).accept(PATIENT).err(),
                    Some(Errno::EINVAL)
                );
                other.join();
            });
        }
    }

    #[test]
    fn the_end_of_a_connection_over_the_loop_does_not_overtake_bytes() {
        Model::new().preemptions(2).check(|| {
            let (listener, address) = listener(true, 1);
            let client = client(true);
            connect(&client, &address, PATIENT).unwrap();
            let served = protocol(&listener)
                .accept(PATIENT)
                .unwrap()
                .into_file(OpenFlags::empty());
            let sender = spawn("sender", move || {
                assert_eq!(served.write(b"bytes"), Ok(5));
                drop(served);
            });
            assert_eq!(read_all(&client), b"bytes");
            sender.join();
            drop(listener);
        });
    }

    #[test]
    fn who_waits_for_room_in_a_backlog_hears_that_there_is_more() {
        Model::new().preemptions(2).check(|| {
            let (listener, address) = listener(false, 0);
            let first = client(false);
            connect(&first, &address, PATIENT).unwrap();
            let other = client(false);
            assert_eq!(
                connect(
                    &other,
                    &address,
                    WaitPolicy {
                        nonblocking: true,
                        timeout_ns: 0
                    }
                ),
                Err(Errno::EAGAIN)
            );
            let theirs = other.clone();
            let waits = spawn("client", move || {
                connect(&theirs, &address, PATIENT).unwrap();
            });
            protocol(&listener).listen(1).unwrap();
            waits.join();
            drop((first, other));
        });
    }
}

mod notices {
    use linux_raw_sys::net::{AF_INET6, SO_PASSCRED};
    use net::Ucred;

    use super::*;

    #[test]
    fn who_waits_for_news_beside_data_hears_that_bytes_were_copied() {
        for kind in [SocketType::Stream, SocketType::Datagram] {
            for family in [AF_INET, AF_INET6] {
                Model::new().preemptions(2).check(move || {
                    let socket = file(stack().socket(family, kind, 0).unwrap());
                    let theirs = socket.clone();
                    let other = spawn("other", move || protocol(&theirs).complete_zerocopy());
                    // One that is not connected is hung up, which is told always.
                    while !socket.poll(None).contains(Events::ERR) {
                        let look = |pass: &mut PollPass<'_>| {
                            pass.poll(&socket, Events::ERR);
                        };
                        assert_eq!(poll(None, look), Ok(1));
                        if kind == SocketType::Stream {
                            break;
                        }
                    }
                    other.join();
                    assert!(socket.poll(None).contains(Events::ERR));
                });
            }
        }
    }

    #[test]
    fn a_datagram_ends_the_wait_for_one() {
        Model::new().preemptions(2).check(|| {
            let any = Address::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let [receiver, sender] =
                [(); 2].map(|()| file(stack().socket(AF_INET, SocketType::Datagram, 0).unwrap()));
            bind(&receiver, &any);
            connect(&sender, &protocol(&receiver).local_address(), PATIENT).unwrap();
            let sender = spawn("sender", move || assert_eq!(sender.write(b"x"), Ok(1)));
            assert_eq!(receiver.read(&mut [0; 4]), Ok(1));
            sender.join();
        });
    }

    #[test]
    fn who_waits_for_all_of_one_senders_bytes_gets_them() {
        Model::new().preemptions(2).check(|| {
            let (a, b) = files(SocketType::Stream);
            b.ops_as::<Socket>()
                .unwrap()
                .options()
                .set_int_option(SO_PASSCRED, 1, false)
                .unwrap();
            let who = Ucred {
                pid: 7,
                uid: 8,
                gid: 9,
            };
            let theirs = a.clone();
            let sender = spawn("sender", move || {
                for bytes in [&b"ab"[..], b"cd"] {
                    let message = OutgoingMessage {
                        credentials: Some(who),
                        ..OutgoingMessage::plain(bytes)
                    };
                    assert_eq!(
                        protocol(&theirs).send(message, MsgFlags::empty(), PATIENT),
                        Ok(2)
                    );
                }
            });
            let mut buf = [0; 4];
            let got = protocol(&b)
                .receive(&mut buf, MsgFlags::WAITALL, PATIENT)
                .unwrap();
            assert_eq!((got.copied, &buf, got.credentials), (4, b"abcd", Some(who)));
            sender.join();
        });
    }
}

mod wires {
    use std::sync::atomic::{AtomicU64, Ordering};

    use common::wire::{Machine, inet};
    use net::inet::Host;

    use super::*;

    /// A clock that goes on whenever somebody looks at it.
    fn clock() -> u64 {
        static NOW: AtomicU64 = AtomicU64::new(1_000_000_000);
        NOW.fetch_add(1000, Ordering::Relaxed)
    }

    fn run(machines: &[Machine; 2]) {
        loop {
            let [one, two] = machines;
            let (there, back) = (one.end.take(), two.end.take());
            if there.is_empty() && back.is_empty() {
                return;
            }
            there
                .iter()
                .for_each(|frame| two.host.receive(two.index, frame));
            back.iter()
                .for_each(|frame| one.host.receive(one.index, frame));
        }
    }

    /// Two threads send by one connection: the engine asserts that what it sends later is not of an
    /// earlier time, which would look like a loss.
    #[test]
    fn time_does_not_go_back_between_two_senders() {
        Model::new().preemptions(1).check(|| {
            let machines = [1, 2].map(|number| Machine::new(Host::with_clock(clock), number));
            let tcp = |machine: &Machine| {
                let socket = machine.stack.socket(AF_INET, SocketType::Stream, 0);
                socket.unwrap().into_file(OpenFlags::NONBLOCK)
            };
            let (client, listener) = (tcp(&machines[0]), tcp(&machines[1]));
            bind(&listener, &inet(Ipv4Addr::UNSPECIFIED, 80));
            protocol(&listener).listen(1).unwrap();
            let to = inet(machines[1].address, 80);
            let begun = connect(&client, &to, common::NOW);
            assert_eq!(begun, Err(Errno::EINPROGRESS));
            run(&machines);
            let options = IPPROTO_TCP as u32;
            protocol(&client)
                .set_option(options, TCP_NODELAY, &1_u32.to_ne_bytes())
                .unwrap();
            let other = client.clone();
            let sender = spawn("sender", move || {
                assert_eq!(other.write(b"one"), Ok(3));
            });
            assert_eq!(client.write(b"two"), Ok(3));
            sender.join();
            run(&machines);
        });
    }
}
