//! A record in two copies, of which one is whole whenever a crash comes.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::check;

/// Words of both copies of a content: each has its check and a sequence number before it.
pub(super) const fn words(content: usize) -> usize {
    2 * (content + 2)
}

/// Both copies of a content of `N` words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies<'a, const N: usize> {
    copies: [&'a [AtomicU64]; 2],
    place: usize,
}

impl<'a, const N: usize> Copies<'a, N> {
    /// The copies in words ([`words`]), at a place whose number no other ones have.
    pub(super) fn new(words: &'a [AtomicU64], place: usize) -> Self {
        let (first, second) = words.split_at(N + 2);
        Self {
            copies: [first, second],
            place,
        }
    }

    /// Check of a copy at its place: one word that was changed changes it, and so does one that was
    /// moved.
    fn check_of(&self, copy: usize, sequence: u64, content: &[u64; N]) -> u64 {
        let seed = (2 * self.place + copy) as u64;
        check(content.iter().copied().chain([sequence, seed]))
    }

    /// The sequence number and the content of a copy, if it proves itself.
    fn read(&self, copy: usize) -> Option<(u64, [u64; N])> {
        let words = self.copies[copy];
        let check = words[0].load(Ordering::Acquire);
        let sequence = words[1].load(Ordering::Relaxed);
        let mut content = [0; N];
        for (to, from) in content.iter_mut().zip(&words[2..]) {
            *to = from.load(Ordering::Relaxed);
        }
        (check == self.check_of(copy, sequence, &content)).then_some((sequence, content))
    }

    /// The newest copy that proves itself: which one it is, its sequence number, its content.
    pub(super) fn newest(&self) -> Option<(usize, u64, [u64; N])> {
        let copies = (0..2).filter_map(|copy| {
            let (sequence, content) = self.read(copy)?;
            Some((copy, sequence, content))
        });
        copies.max_by_key(|(_, sequence, _)| *sequence)
    }

    /// Content of the newest copy that proves itself.
    pub(super) fn content(&self) -> Option<[u64; N]> {
        self.newest().map(|(_, _, content)| content)
    }

    /// Whether nothing was ever written here.
    pub(super) fn are_new(&self) -> bool {
        let mut words = self.copies.into_iter().flatten();
        words.all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Writes a content over the older copy, and then over the other one: whoever looks at whatever
    /// moment finds the content of before, or this one, and afterwards one copy is enough. One
    /// writer at a time.
    pub(super) fn write(&self, content: &[u64; N]) {
        let (copy, sequence) = match self.newest() {
            Some((newest, sequence, _)) => (1 - newest, sequence.wrapping_add(1)),
            None => (0, 1),
        };
        self.write_copy(copy, sequence, content);
        self.write_copy(1 - copy, sequence.wrapping_add(1), content);
    }

    fn write_copy(&self, copy: usize, sequence: u64, content: &[u64; N]) {
        let words = self.copies[copy];
        let check = self.check_of(copy, sequence, content);
        // Half written it is none.
        words[0].store(!check, Ordering::Relaxed);
        fence(Ordering::Release);
        words[1].store(sequence, Ordering::Relaxed);
        for (to, from) in words[2..].iter().zip(content) {
            to.store(*from, Ordering::Relaxed);
        }
        words[0].store(check, Ordering::Release);
    }

    /// Damages a copy, for tests of what comes then.
    pub(super) fn damage(&self, copy: usize) {
        self.copies[copy][4].fetch_xor(0x10, Ordering::Relaxed);
    }
}
