//! A flow of address translation: a connection of an instance with the world. There is one copy of
//! it, as one that is lost is no more than that.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::check;

/// Flows that there is room for.
pub const FLOWS: usize = 16_384;
/// Words of a flow.
pub(super) const WORDS: usize = 4;

/// A flow. What its numbers stand for is the translation's; the protocol is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFlow {
    /// Addresses and ports of its packets as they arrive: from, to; of its answers: from, to.
    pub ends: [(u32, u16); 4],
    /// Protocol, by its number in IP.
    pub protocol: u8,
    /// State.
    pub state: u8,
    /// Flags.
    pub flags: u8,
}

/// Bits of the last word that are no check.
const FACTS: u64 = 0xff_ffff;

fn check_of(words: &[u64; WORDS], place: u32) -> u64 {
    let [first, second, third, last] = *words;
    check([first, second, third, last & FACTS, place.into()].into_iter()) & !FACTS
}

impl KeptFlow {
    fn to_words(self, place: u32) -> [u64; WORDS] {
        let [a, b, c, d] = self.ends;
        let addresses =
            |one: (u32, u16), other: (u32, u16)| u64::from(one.0) | u64::from(other.0) << 32;
        let ports = [a, b, c, d].map(|(_, port)| port);
        let ports = ports.into_iter().rev();
        let facts = [0, self.flags, self.state, self.protocol].into_iter();
        let mut words = [
            addresses(a, b),
            addresses(c, d),
            ports.fold(0, |word, port| word << 16 | u64::from(port)),
            facts.fold(0, |word, fact| word << 8 | u64::from(fact)),
        ];
        words[3] |= check_of(&words, place);
        words
    }

    fn from_words(words: &[u64; WORDS], place: u32) -> Option<Self> {
        let [first, second, ports, last] = *words;
        let port = |number: u32| (ports >> (16 * number)) as u16;
        let flow = Self {
            ends: [
                (first as u32, port(0)),
                ((first >> 32) as u32, port(1)),
                (second as u32, port(2)),
                ((second >> 32) as u32, port(3)),
            ],
            protocol: last as u8,
            state: (last >> 8) as u8,
            flags: (last >> 16) as u8,
        };
        let is_whole = last & !FACTS == check_of(words, place);
        (is_whole && flow.protocol != 0).then_some(flow)
    }
}

/// Makes a place one of no flow, whatever is there.
pub(super) fn clear(words: &[AtomicU64; WORDS]) {
    words[WORDS - 1].store(0, Ordering::Relaxed);
}

pub(super) fn write(to: &[AtomicU64; WORDS], place: u32, flow: Option<&KeptFlow>) {
    // Half written it is none.
    clear(to);
    fence(Ordering::Release);
    let words = flow.map_or([0; WORDS], |flow| flow.to_words(place));
    for (word, from) in to[..3].iter().zip(words) {
        word.store(from, Ordering::Relaxed);
    }
    to[3].store(words[3], Ordering::Release);
}

pub(super) fn read(from: &[AtomicU64; WORDS], place: u32) -> Option<KeptFlow> {
    let last = from[3].load(Ordering::Acquire);
    let [first, second, third] = [0, 1, 2].map(|word| from[word].load(Ordering::Relaxed));
    KeptFlow::from_words(&[first, second, third, last], place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow() -> impl Strategy<Value = KeptFlow> {
        (any::<[(u32, u16); 4]>(), 1..=u8::MAX, any::<[u8; 2]>()).prop_map(
            |(ends, protocol, [state, flags])| KeptFlow {
                ends,
                protocol,
                state,
                flags,
            },
        )
    }

    proptest! {
        /// A flow is read as it was written, at its place only, and not with a bit turned.
        #[test]
        fn a_flow_is_read_as_it_was_written(
            flow in flow(),
            place in 0..FLOWS as u32,
            (word, bit) in (0..WORDS, 0..64),
        ) {
            let words: [AtomicU64; WORDS] = Default::default();
            prop_assert_eq!(read(&words, place), None);
            write(&words, place, Some(&flow));
            prop_assert_eq!(read(&words, place), Some(flow));
            prop_assert_eq!(read(&words, place + 1), None);
            words[word].fetch_xor(1_u64 << bit, Ordering::Relaxed);
            prop_assert_eq!(read(&words, place), None);
            write(&words, place, None);
            prop_assert_eq!(read(&words, place), None);
        }

        /// A crash between any two stores leaves one of the two, or none.
        #[test]
        fn a_flow_that_is_half_written_is_none(old in flow(), new in flow(), stores in 0..5_usize) {
            let words: [AtomicU64; WORDS] = Default::default();
            write(&words, 7, Some(&old));
            let after = new.to_words(7);
            let mut steps = [(3, 0), (0, after[0]), (1, after[1]), (2, after[2]), (3, after[3])].into_iter();
            steps.by_ref().take(stores).for_each(|(word, value)| {
                words[word].store(value, Ordering::Relaxed);
            });
            let wanted = match stores {
                0 => Some(old),
                5 => Some(new),
                _ => None,
            };
            prop_assert_eq!(read(&words, 7), wanted);
        }
    }
}
