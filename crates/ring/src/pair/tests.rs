use super::*;

/// Words of one side.
struct Page {
    taken: AtomicU64,
    awaited: AtomicU64,
    room: AtomicU64,
    cells: [[AtomicU64; WORDS + 1]; CELLS],
}

impl Page {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            taken: word(),
            awaited: word(),
            room: word(),
            cells: core::array::from_fn(|_| core::array::from_fn(|_| word())),
        }
    }

    fn side(&self) -> Side<'_> {
        Side {
            taken: &self.taken,
            awaited: &self.awaited,
            room: &self.room,
            cells: &self.cells,
        }
    }
}

/// The pages of two sides.
struct Pages([Page; 2]);

impl Pages {
    fn new() -> Self {
        Self([Page::new(), Page::new()])
    }

    /// The pages as side 0 or 1 sees them.
    fn of(&self, side: usize) -> Pair<'_> {
        Pair::new(self.0[side].side(), self.0[1 - side].side())
    }
}

fn words(content: u64) -> [u64; WORDS] {
    core::array::from_fn(|index| content * 100 + index as u64)
}

#[cfg(not(loom))]
mod plain {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::vec::Vec;

    use explore::{Model, spawn};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_arrive_in_order_with_their_numbers_and_a_full_ring_refuses() {
        let pages = Pages::new();
        let (mut sender, mut receiver) = (Sender::new(7), Receiver::new(7));
        let mut sent = 0;
        for round in 0..5 {
            for _ in 0..CELLS {
                sent += 1;
                assert_eq!(
                    sender.send(&pages.of(0), &words(sent)),
                    Ok(Doorbell::Needless)
                );
            }
            assert!(!sender.has_room(&pages.of(0)));
            assert_eq!(sender.send(&pages.of(0), &words(0)), Err(Full));
            for index in 1..=CELLS as u64 {
                let number = round * CELLS as u64 + index;
                let got = receiver.receive(&pages.of(1)).unwrap();
                assert_eq!(
                    (u64::from(got.number), got.words, got.doorbell),
                    (number, words(number), Doorbell::Needless)
                );
            }
            assert_eq!(receiver.receive(&pages.of(1)), None);
        }
        // Both directions at once do not meet.
        let (mut back, mut taker) = (Sender::new(7), Receiver::new(7));
        let _ = back.send(&pages.of(1), &words(3)).unwrap();
        assert_eq!(receiver.receive(&pages.of(1)), None);
        assert_eq!(taker.receive(&pages.of(0)).unwrap().words, words(3));
    }

    #[test]
    fn only_the_awaited_message_rings() {
        let pages = Pages::new();
        let (mut sender, mut receiver) = (Sender::new(1), Receiver::new(1));
        let mut send = |n| sender.send(&pages.of(0), &words(n));
        assert_eq!(send(1), Ok(Doorbell::Needless));
        assert!(receiver.await_message(&pages.of(1)), "one is there");
        receiver.receive(&pages.of(1)).unwrap();
        assert!(!receiver.await_message(&pages.of(1)));
        assert_eq!(send(2), Ok(Doorbell::Wanted));
        assert_eq!(send(3), Ok(Doorbell::Needless));
        receiver.receive(&pages.of(1)).unwrap();
        receiver.receive(&pages.of(1)).unwrap();
        assert_eq!(send(4), Ok(Doorbell::Needless), "it polls");
    }

    #[test]
    fn a_sender_that_waits_is_rung_when_half_is_taken() {
        let pages = Pages::new();
        let (mut sender, mut receiver) = (Sender::new(1), Receiver::new(1));
        while sender.send(&pages.of(0), &words(1)).is_ok() {}
        assert!(!sender.await_room(&pages.of(0)));
        let rings = |receiver: &mut Receiver| receiver.receive(&pages.of(1)).unwrap().doorbell;
        for _ in 1..CELLS / 2 {
            assert_eq!(rings(&mut receiver), Doorbell::Needless);
        }
        assert_eq!(rings(&mut receiver), Doorbell::Wanted);
        assert_eq!(rings(&mut receiver), Doorbell::Needless);
        assert!(sender.await_room(&pages.of(0)));
    }

    /// The numbers of messages come round after 2^32.
    #[test]
    fn numbers_wrap() {
        let pages = Pages::new();
        let near = u32::MAX - 5;
        let (mut sender, mut receiver) = (Sender::new(1), Receiver::new(1));
        (sender.sent, receiver.taken) = (near, near);
        pages.0[1].taken.store(stamp(1, near), Ordering::Relaxed);
        for round in 0..20 {
            let _ = sender.send(&pages.of(0), &words(round)).unwrap();
            if round >= 3 {
                let got = receiver.receive(&pages.of(1)).unwrap();
                assert_eq!(got.words, words(round - 3));
                assert_eq!(got.number, near.wrapping_add(round as u32 - 2));
            }
        }
    }

    /// All that an earlier incarnation may have left, in both pages: nothing of it is a message,
    /// room, or the lack of it, for the next generation.
    #[test]
    fn nothing_of_an_earlier_generation_counts() {
        let pages = Pages::new();
        let (mut old, mut reader) = (Sender::new(1), Receiver::new(1));
        for n in 0..CELLS as u64 {
            let _ = old.send(&pages.of(0), &words(n)).unwrap();
        }
        assert!(!old.await_room(&pages.of(0)));
        for _ in 0..5 {
            reader.receive(&pages.of(1)).unwrap();
        }
        let (mut sender, mut receiver) = (Sender::new(2), Receiver::new(2));
        assert_eq!(receiver.receive(&pages.of(1)), None);
        for n in 0..CELLS as u64 {
            let _ = sender.send(&pages.of(0), &words(n)).unwrap();
        }
        assert_eq!(sender.send(&pages.of(0), &words(0)), Err(Full));
        for n in 0..CELLS as u64 {
            let got = receiver.receive(&pages.of(1)).unwrap();
            assert_eq!((got.words, got.doorbell), (words(n), Doorbell::Needless));
        }
        // The old reader, late, finds nothing either.
        assert_eq!(reader.receive(&pages.of(1)), None);
    }

    /// Sends two messages and takes them, each side in a thread of a model; the receiver waits as
    /// kernels do: until it is rung. A ring that does not come is a deadlock.
    fn wait_and_ring(pages: &Arc<Pages>, generation: u32) {
        let shared = pages.clone();
        let receiving = explore::number().unwrap();
        let sending = spawn("sender", move || {
            let mut sender = Sender::new(generation);
            for content in 1..=2 {
                let sent = sender.send(&shared.of(0), &words(content)).unwrap();
                if sent == Doorbell::Wanted {
                    explore::unpark(receiving);
                }
            }
        });
        let (pair, mut receiver) = (pages.of(1), Receiver::new(generation));
        for content in 1..=2 {
            let got = loop {
                if let Some(got) = receiver.receive(&pair) {
                    break got;
                }
                if !receiver.await_message(&pair) {
                    explore::park(None);
                }
            };
            let number = u64::from(got.number);
            assert_eq!((number, got.words), (content, words(content)));
        }
        sending.join();
    }

    /// No schedule loses a doorbell or a message.
    #[test]
    fn no_ring_is_lost() {
        Model::new().check(|| wait_and_ring(&Arc::new(Pages::new()), 1));
    }

    /// A side whose kernel has ended at any instruction of a send, and its successor: the page is
    /// not even zeroed in between.
    #[test]
    fn a_successor_goes_on_wherever_its_predecessor_has_died() {
        // Stores of two messages, in the order in which `send` makes them.
        let steps: Vec<(usize, usize, u64)> = (1..=2)
            .flat_map(|number: u32| {
                let cell = number as usize % CELLS;
                let content = words(1000 + u64::from(number));
                let mut steps: Vec<_> = (0..WORDS).map(|w| (cell, w + 1, content[w])).collect();
                steps.push((cell, 0, stamp(1, number)));
                steps
            })
            .collect();
        for died in 0..=steps.len() {
            let left = steps[..died].to_vec();
            Model::new().preemptions(1).random(20).check(move || {
                let pages = Arc::new(Pages::new());
                for (cell, word, value) in &left {
                    pages.0[0].cells[*cell][*word].store(*value, Ordering::Relaxed);
                }
                wait_and_ring(&pages, 2);
            });
        }
    }

    /// Somebody who writes what he likes into his page, and is believed in nothing.
    #[derive(Clone, Debug)]
    enum Step {
        Send,
        Receive,
        Await,
        AwaitRoom,
        Write { at: usize, value: u64 },
    }

    fn value() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            (0..3u64, 0..80u64).prop_map(|(generation, number)| generation << 32 | number),
            (0..3u64, any::<u32>()).prop_map(|(generation, n)| generation << 32 | u64::from(n)),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Send),
            Just(Step::Receive),
            Just(Step::Await),
            Just(Step::AwaitRoom),
            (0..3 + CELLS * (WORDS + 1), value()).prop_map(|(at, value)| Step::Write { at, value }),
        ]
    }

    fn word(page: &Page, at: usize) -> &AtomicU64 {
        match at {
            0 => &page.taken,
            1 => &page.awaited,
            2 => &page.room,
            at => &page.cells.as_flattened()[at - 3],
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 20_000 }))]

        /// A victim beside a hostile peer: what it takes bears the stamp that it expects, its
        /// numbers go up by one, it never sends more than there is room for, and all that it has
        /// written is what it has sent.
        #[test]
        fn a_hostile_peer_gets_no_further_than_its_own_page(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let pages = Pages::new();
            let pair = pages.of(0);
            let (mut sender, mut receiver) = (Sender::new(1), Receiver::new(1));
            let (mut sent, mut taken) = (VecDeque::new(), 0_u32);
            for step in steps {
                match step {
                    Step::Write { at, value } => word(&pages.0[1], at).store(value, Ordering::Relaxed),
                    Step::Send => {
                        let content = words(sent.len() as u64);
                        let said = pages.0[1].taken.load(Ordering::Relaxed);
                        if sender.send(&pair, &content).is_ok() {
                            sent.push_back(content);
                        } else {
                            // Refused only for what the peer itself says it has not taken.
                            prop_assert!(said >> 32 != 1
                                || (sent.len() as u32).wrapping_sub(said as u32) >= ALL);
                        }
                    }
                    Step::Receive => {
                        let number = taken + 1;
                        let cell = &pages.0[1].cells[number as usize % CELLS];
                        let there = cell[0].load(Ordering::Relaxed) == stamp(1, number);
                        let got = receiver.receive(&pair);
                        prop_assert_eq!(got.is_some(), there);
                        if let Some(got) = got {
                            taken = number;
                            prop_assert_eq!(got.number, number);
                            for (got, word) in got.words.iter().zip(&cell[1..]) {
                                prop_assert_eq!(*got, word.load(Ordering::Relaxed));
                            }
                        }
                    }
                    Step::Await => {
                        prop_assert_eq!(receiver.await_message(&pair), receiver.has_message(&pair));
                    }
                    Step::AwaitRoom => {
                        prop_assert_eq!(sender.await_room(&pair), sender.has_room(&pair));
                    }
                }
                // The own page holds the last of what was sent, whole.
                for (back, content) in sent.iter().rev().take(CELLS).enumerate() {
                    let number = sent.len() - back;
                    let cell = &pages.0[0].cells[number % CELLS];
                    prop_assert_eq!(cell[0].load(Ordering::Relaxed), stamp(1, number as u32));
                    prop_assert_eq!(cell[1].load(Ordering::Relaxed), content[0]);
                }
                let told = pages.0[0].taken.load(Ordering::Relaxed);
                prop_assert_eq!(told, if taken == 0 { 0 } else { stamp(1, taken) });
            }
        }
    }

    /// Real threads, both directions, with doorbells as flags.
    #[test]
    fn two_threads_exchange_what_they_send() {
        const MESSAGES: u64 = if cfg!(miri) { 100 } else { 200_000 };
        let pages = Pages::new();
        std::thread::scope(|scope| {
            for side in 0..2 {
                let pages = &pages;
                scope.spawn(move || {
                    let pair = pages.of(side);
                    let (mut sender, mut receiver) = (Sender::new(9), Receiver::new(9));
                    let (mut sent, mut got) = (0, 0);
                    while sent < MESSAGES || got < MESSAGES {
                        if sent < MESSAGES && sender.send(&pair, &words(sent)).is_ok() {
                            sent += 1;
                        }
                        if let Some(message) = receiver.receive(&pair) {
                            assert_eq!(message.words, words(got));
                            got += 1;
                        } else {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// In all interleavings: a message is whole; who finds none after it has asked for a doorbell
    /// gets one.
    #[test]
    fn a_message_is_whole_and_rings() {
        loom::model(|| {
            let pages = Arc::new(Pages::new());
            let shared = pages.clone();
            let sender = thread::spawn(move || {
                let mut sender = Sender::new(1);
                sender.send(&shared.of(0), &words(5)).unwrap()
            });
            let mut receiver = Receiver::new(1);
            let there = receiver.await_message(&pages.of(1));
            if there {
                assert_eq!(receiver.receive(&pages.of(1)).unwrap().words, words(5));
            }
            let rung = sender.join().unwrap();
            assert!(there || rung == Doorbell::Wanted, "asleep for ever");
        });
    }

    /// A cell that is used again: no word is taken that was written after the receipt; and who
    /// waits for room gets a doorbell.
    #[test]
    fn a_cell_is_written_again_only_when_it_was_read() {
        loom::model(|| {
            let pages = Arc::new(Pages::new());
            let mut sender = Sender::new(1);
            for content in 0..CELLS as u64 {
                let _ = sender.send(&pages.of(0), &words(content)).unwrap();
            }
            let shared = pages.clone();
            let receiver = thread::spawn(move || {
                let mut receiver = Receiver::new(1);
                let got = receiver.receive(&shared.of(1)).unwrap();
                assert_eq!(got.words, words(0));
                got.doorbell
            });
            let room = sender.await_room(&pages.of(0));
            if room {
                let _ = sender.send(&pages.of(0), &words(9)).unwrap();
            }
            let rung = receiver.join().unwrap();
            assert!(room || rung == Doorbell::Wanted, "asleep for ever");
        });
    }

    /// A sender that has died in the middle of a cell, and the next generation in the same memory.
    #[test]
    fn a_dead_senders_cell_is_no_message_of_its_successor() {
        loom::model(|| {
            let pages = Arc::new(Pages::new());
            let mut dead = Sender::new(1);
            let _ = dead.send(&pages.of(0), &words(1)).unwrap();
            pages.0[0].cells[0][1].store(77, Ordering::Relaxed);
            let shared = pages.clone();
            let sender = thread::spawn(move || {
                let _ = Sender::new(2).send(&shared.of(0), &words(3)).unwrap();
            });
            let mut receiver = Receiver::new(2);
            if let Some(got) = receiver.receive(&pages.of(1)) {
                assert_eq!((got.number, got.words), (1, words(3)));
            }
            sender.join().unwrap();
        });
    }
}
