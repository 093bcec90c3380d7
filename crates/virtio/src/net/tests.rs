//! The driver's end of a network card against the device's, and against ones that lie.

mod peer;
mod window;

use std::vec::Vec;

use peer::{ADDRESS, Peer, Shared};
use proptest::prelude::*;
use virtqueue::{Address, BringUpError, Features, Left, Memory, Status, TransportError};

use super::*;

const SHAPE: Shape = Shape {
    size: 16,
    bytes: 0x1_0000,
};
const PACKED: u64 = Features::PACKED.bits();

type Card<'a> = Started<&'a Peer, Shared>;

fn start(peer: &Peer) -> Result<Card<'_>, StartError> {
    let mut next = 0x1000;
    Nic::start(peer, SHAPE, |bytes| {
        let base = Address::new(next);
        next += bytes.next_multiple_of(4096);
        Some((Shared(peer.memory.clone()), base))
    })
}

/// A frame of a length that is like no other.
fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n * 7 + seed * 31 + n / 256) as u8)
        .collect()
}

/// Something that was received, for the test to keep.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Frame(Vec<u8>),
    Lost,
    Nothing,
}

/// Takes a frame as the thread of a driver does.
fn next(card: &mut Card<'_>) -> Next {
    let (nic, receive, _) = card;
    let received = match receive.receive().expect("nobody broke a rule") {
        Some(Received::Frame(frame)) => Next::Frame(frame.to_vec()),
        Some(Received::Lost) => Next::Lost,
        None => Next::Nothing,
    };
    nic.notify_receive(receive).unwrap();
    received
}

fn send(card: &mut Card<'_>, frame: &[u8]) -> Result<(), NotSent> {
    let (nic, _, transmit) = card;
    transmit.send(frame)?;
    Ok(nic.notify_transmit(transmit)?)
}

/// Cards in each layout of rings, with frames in one buffer or in several.
fn each_kind(mtu: u16, mut each: impl FnMut(&Peer)) {
    for without in [0, PACKED, feature::MERGE, PACKED | feature::MERGE] {
        for events in [0, Features::EVENT_IDX.bits()] {
            let peer = Peer::new(mtu);
            peer.state().offered &= !(without | events);
            each(&peer);
        }
    }
}

#[test]
fn a_card_tells_its_properties() {
    let peer = Peer::new(9000);
    let (nic, _, _) = start(&peer).unwrap();
    let properties = nic.properties();
    assert_eq!((properties.mac, properties.mtu), (ADDRESS, 9000));
    assert!(properties.has_link_status && !nic.needs_reset());
    assert_eq!(nic.is_link_up(), Ok(true));
    peer.state().config[6] = 0;
    assert_eq!(nic.is_link_up(), Ok(false));
    peer.state().status |= Status::NEEDS_RESET;
    assert!(nic.needs_reset());
    // Without these features the fields mean nothing.
    peer.state().offered &= !(feature::MTU | feature::STATUS);
    let (nic, _, _) = start(&peer).unwrap();
    assert_eq!(nic.properties().mtu, 1500);
    assert_eq!(nic.is_link_up(), Ok(true));
}

#[test]
fn a_card_that_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut peer::State)| {
        let peer = Peer::new(1500);
        change(&mut peer.state());
        let why = start(&peer).map(|_| ()).unwrap_err();
        assert_eq!(peer.state().status, Status::empty(), "it was reset");
        why
    };
    let bad = |what| StartError::Config(BadConfig(what));
    assert_eq!(
        refused(&|state| state.config[..6].fill(0)),
        bad("MAC address")
    );
    assert_eq!(refused(&|state| state.config[0] |= 1), bad("MAC address"));
    assert_eq!(
        refused(&|state| state.config[10..].copy_from_slice(&67_u16.to_le_bytes())),
        bad("MTU")
    );
    assert_eq!(
        refused(&|state| state.offered &= !feature::MAC),
        StartError::BringUp(BringUpError::Missing(feature::MAC))
    );
    // One buffer of 2 KiB, and a frame that needs five.
    assert_eq!(
        refused(&|state| {
            state.size = 1;
            state.config[10..].copy_from_slice(&9000_u16.to_le_bytes());
        }),
        StartError::SmallQueue
    );
    assert_eq!(refused(&|state| state.size = 0), StartError::SmallQueue);
}

#[test]
fn frames_come_in_whole_and_in_order() {
    for mtu in [68, 1500, 9000, 20_000] {
        each_kind(mtu, |peer| {
            let mut card = start(peer).unwrap();
            let most = usize::from(mtu) + 18;
            // More than there are buffers, so that each is used several times.
            for round in 0..50 {
                let frames: Vec<_> = (0..round % 7)
                    .map(|n| frame(14 + (round * 997 + n * 4001) % (most - 13), round + n))
                    .collect();
                frames.iter().for_each(|frame| peer.arrive(frame));
                for frame in frames {
                    assert_eq!(next(&mut card), Next::Frame(frame));
                }
                assert_eq!(next(&mut card), Next::Nothing);
            }
        });
    }
}

#[test]
fn frames_go_out_whole_and_in_order() {
    each_kind(1500, |peer| {
        let mut card = start(peer).unwrap();
        let frames: Vec<_> = (0..100).map(|n| frame(14 + n * 15, n)).collect();
        for frame in &frames {
            send(&mut card, frame).unwrap();
        }
        assert_eq!(peer.state().sent, frames);
    });
}

#[test]
fn what_is_no_frame_is_lost_and_the_next_one_is_not() {
    each_kind(1500, |peer| {
        let mut card = start(peer).unwrap();
        for len in [0, 1, 13, 14, 1518, 1519] {
            let bytes = frame(len, len);
            if len + HEADER <= 1536 || peer.state().offered & feature::MERGE != 0 {
                peer.arrive(&bytes);
                let is_frame = (14..=1518).contains(&len);
                let expected = if is_frame {
                    Next::Frame(bytes)
                } else {
                    Next::Lost
                };
                assert_eq!(next(&mut card), expected);
            }
        }
        assert_eq!(next(&mut card), Next::Nothing);
        let sent = [13, 1519].map(|len| send(&mut card, &frame(len, 0)));
        assert_eq!(sent, [Err(NotSent::Length); 2]);
        assert_eq!(send(&mut card, &frame(14, 0)), Ok(()));
        assert_eq!(send(&mut card, &frame(1518, 0)), Ok(()));
        assert_eq!(peer.state().sent.len(), 2);
    });
}

#[test]
fn a_full_ring_loses_frames_and_goes_on_when_there_is_room() {
    each_kind(1500, |peer| {
        let mut card = start(peer).unwrap();
        peer.state().sleeps = true;
        for n in 0..16 {
            assert_eq!(send(&mut card, &frame(60, n)), Ok(()));
        }
        for _ in 0..3 {
            assert_eq!(send(&mut card, &frame(60, 99)), Err(NotSent::Full));
        }
        peer.state().sleeps = false;
        peer.state().serve();
        for n in 16..40 {
            assert_eq!(send(&mut card, &frame(60, n)), Ok(()));
        }
        let expected: Vec<_> = (0..40).map(|n| frame(60, n)).collect();
        assert_eq!(peer.state().sent, expected);
    });
}

/// A device without buffers waits to be told of them, and what it then has comes without anything
/// else happening.
#[test]
fn buffers_are_told_of_when_the_device_waits_for_them() {
    each_kind(1500, |peer| {
        let mut card = start(peer).unwrap();
        let frames: Vec<_> = (0..100).map(|n| frame(100, n)).collect();
        frames.iter().for_each(|frame| peer.arrive(frame));
        assert!(!peer.state().wire.is_empty(), "there are not so many");
        for frame in frames {
            assert_eq!(next(&mut card), Next::Frame(frame));
        }
        assert_eq!(next(&mut card), Next::Nothing);
    });
}

#[test]
fn an_interrupt_is_asked_for_or_there_is_something_left() {
    each_kind(1500, |peer| {
        let mut card = start(peer).unwrap();
        assert_eq!(card.1.want_interrupt(), Ok(Left::Nothing));
        let before = peer.state().interrupts;
        peer.arrive(&frame(60, 1));
        assert_eq!(peer.state().interrupts, before + 1);
        assert_eq!(card.1.want_interrupt(), Ok(Left::Something));
        card.1.decline_interrupts().unwrap();
        assert_eq!(next(&mut card), Next::Frame(frame(60, 1)));
        assert_eq!(card.1.want_interrupt(), Ok(Left::Nothing));
    });
}

/// A device may use the buffers of a frame one after the other.
#[test]
fn a_frame_is_waited_for_until_it_is_whole() {
    let peer = Peer::new(9000);
    let mut card = start(&peer).unwrap();
    let bytes = frame(5000, 3);
    let header = Header {
        buffers: 3,
        ..Header::default()
    };
    let first = [&header.to_bytes()[..], &bytes[..2036]].concat();
    for part in [&first[..], &bytes[2036..4084], &bytes[4084..]] {
        assert_eq!(next(&mut card), Next::Nothing);
        peer.use_buffer(part, part.len() as u32);
    }
    assert_eq!(next(&mut card), Next::Frame(bytes));
    // What has no end that is a frame is lost, as one.
    let header = Header {
        buffers: 6,
        ..Header::default()
    };
    peer.use_buffer(&header.to_bytes(), 12);
    for _ in 0..5 {
        assert_eq!(next(&mut card), Next::Nothing);
        peer.use_buffer(&[1; 2048], 2048);
    }
    assert_eq!(next(&mut card), Next::Lost);
    peer.arrive(&frame(60, 5));
    assert_eq!(next(&mut card), Next::Frame(frame(60, 5)));
}

/// Bytes of a header with one thing changed.
fn header(change: impl FnOnce(&mut Header)) -> [u8; HEADER] {
    let mut header = Header {
        buffers: 1,
        ..Header::default()
    };
    change(&mut header);
    header.to_bytes()
}

#[test]
fn each_rule_that_is_broken_stops_the_card_until_it_is_reset() {
    type Lie<'a> = (&'a dyn Fn(&Peer), Broken);
    let offload = |flags, segments| Broken::Offload { flags, segments };
    let tell = |bytes: [u8; HEADER]| move |peer: &Peer| peer.use_buffer(&bytes, 74);
    let lies: [Lie<'_>; 9] = [
        (&tell(header(|it| it.buffers = 0)), Broken::Buffers(0)),
        (&tell(header(|it| it.buffers = 17)), Broken::Buffers(17)),
        (&tell(header(|it| it.segments = 1)), offload(0, 1)),
        (&tell(header(|it| it.flags = 5)), offload(5, 0)),
        (&|peer| peer.use_buffer(&[], 11), Broken::NoHeader(11)),
        (&|peer| peer.use_buffer(&[], 0), Broken::NoHeader(0)),
        (
            &|peer| peer.use_ring(0, 1, 99, 60),
            Broken::Ring(Rule::UsedId(99)),
        ),
        (
            &|peer| peer.use_ring(0, 1, 3, 1537),
            Broken::Ring(Rule::UsedLength {
                written: 1537,
                given: 1536,
            }),
        ),
        (
            &|peer| peer.use_ring(0, 17, 0, 60),
            Broken::Ring(Rule::UsedIndex(17)),
        ),
    ];
    for (lie, broken) in lies {
        let peer = Peer::new(1500);
        peer.state().offered &= !PACKED;
        let mut card = start(&peer).unwrap();
        lie(&peer);
        for _ in 0..2 {
            assert_eq!(card.1.receive(), Err(broken));
        }
        let (nic, receive, transmit) = &mut card;
        nic.recover(receive, transmit).unwrap();
        assert_eq!(next(&mut card), Next::Nothing);
        peer.arrive(&frame(60, 5));
        assert_eq!(next(&mut card), Next::Frame(frame(60, 5)));
        send(&mut card, &frame(60, 6)).unwrap();
        assert_eq!(peer.state().sent, [frame(60, 6)]);
    }
}

#[test]
fn a_rule_that_is_broken_while_sending_stops_the_card() {
    let peer = Peer::new(1500);
    peer.state().offered &= !PACKED;
    let mut card = start(&peer).unwrap();
    peer.state().sleeps = true;
    for n in 0..16 {
        send(&mut card, &frame(60, n)).unwrap();
    }
    // A card writes nothing into what it sends.
    peer.use_ring(1, 1, 4, 1);
    let broken = Rule::UsedLength {
        written: 1,
        given: 0,
    };
    for _ in 0..2 {
        let sent = send(&mut card, &frame(60, 17));
        assert_eq!(sent, Err(NotSent::Broken(Broken::Ring(broken))));
    }
    peer.state().sleeps = false;
    let (nic, receive, transmit) = &mut card;
    nic.recover(receive, transmit).unwrap();
    for n in 0..40 {
        send(&mut card, &frame(60, n)).unwrap();
    }
    assert_eq!(peer.state().sent.len(), 40, "those from before are lost");
}

#[test]
fn a_flag_that_means_nothing_is_not_looked_at() {
    let peer = Peer::new(1500);
    let mut card = start(&peer).unwrap();
    // The checksum is right, says the device, which was not asked.
    let bytes = [&header(|it| it.flags = 2)[..], &frame(60, 1)].concat();
    peer.use_buffer(&bytes, 72);
    assert_eq!(next(&mut card), Next::Frame(frame(60, 1)));
}

#[test]
fn a_card_that_does_not_come_back_says_why() {
    let peer = Peer::new(1500);
    let (nic, mut receive, mut transmit) = start(&peer).unwrap();
    let mut recover = || nic.recover(&mut receive, &mut transmit);
    peer.state().is_stuck = true;
    assert_eq!(recover(), Err(TransportError::Stuck.into()));
    peer.state().is_stuck = false;
    peer.state().config[5] = 8;
    assert_eq!(recover(), Err(StartError::Changed));
    assert_eq!(peer.state().status, Status::empty(), "it is not half there");
    peer.state().config[5] = 7;
    peer.state().offered &= !feature::MERGE;
    assert_eq!(recover(), Err(StartError::Changed));
    peer.state().offered |= feature::MERGE;
    assert_eq!(recover(), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A device that writes anything anywhere: what comes is a frame, nothing or an error, and
    /// after a reset the card works.
    #[test]
    fn nonsense_does_no_harm(
        packed in any::<bool>(),
        merge in any::<bool>(),
        writes in prop::collection::vec((0_u64..0x6000, any::<[u8; 8]>(), 0_u8..4), 1..200),
        seed in 0_usize..1000,
    ) {
        let peer = Peer::new(1500);
        if !packed {
            peer.state().offered &= !PACKED;
        }
        if !merge {
            peer.state().offered &= !feature::MERGE;
        }
        let mut card = start(&peer).unwrap();
        peer.state().sleeps = true;
        for (at, bytes, what) in writes {
            peer.memory.write(Address::new(0x1000 + at), &bytes).unwrap();
            match what {
                0 => {
                    if let Ok(Some(Received::Frame(frame))) = card.1.receive() {
                        prop_assert!((14..=1518).contains(&frame.len()));
                    }
                }
                1 => {
                    let _ = card.2.send(&frame(100, seed));
                }
                2 => {
                    let _ = card.1.want_interrupt();
                }
                // As a device does that keeps to the rings, but not to headers.
                _ if !packed => {
                    let len = u32::from(bytes[0]) * 6;
                    peer.use_ring(0, 1, u32::from(bytes[1] % 20), len);
                }
                _ => {}
            }
        }
        peer.state().sleeps = false;
        let (nic, receive, transmit) = &mut card;
        nic.recover(receive, transmit).unwrap();
        prop_assert_eq!(next(&mut card), Next::Nothing);
        peer.arrive(&frame(60, 5));
        prop_assert_eq!(next(&mut card), Next::Frame(frame(60, 5)));
        send(&mut card, &frame(60, 6)).unwrap();
        prop_assert_eq!(&peer.state().sent, &[frame(60, 6)]);
    }
}
