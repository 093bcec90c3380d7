//! Numbers and bytes that depend on a seed only.

/// The byte that the host fills a disk with before it makes a file system; no file has it.
pub const GARBAGE: u8 = 0xEE;

/// Numbers that look random (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

fn mix(mut number: u64) -> u64 {
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl Random {
    /// Numbers of this seed.
    pub fn new(seed: &[u64]) -> Self {
        Self(seed.iter().fold(0, |state, part| mix(state ^ mix(*part))))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A number below `limit`, which is at least 2 to the power of `halves`; small ones come more
    /// often.
    pub fn small(&mut self, limit: u64, halves: u64) -> u64 {
        let limit = limit >> self.below(halves);
        self.below(limit)
    }
}

/// The bytes of a file that was written with this key, from this place on. None is zero, which is
/// what a hole has, nor [`GARBAGE`].
pub fn fill(key: u64, mut at: u64, mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        let within = (at % 8) as usize;
        let word = mix(key.wrapping_add((at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let count = bytes.len().min(8 - within);
        let (now, rest) = bytes.split_at_mut(count);
        for (to, from) in now.iter_mut().zip(&word.to_le_bytes()[within..]) {
            *to = 1 + from % (GARBAGE - 1);
        }
        bytes = rest;
        at += count as u64;
    }
}

/// The same as a vector.
pub fn filled(key: u64, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill(key, at, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_key_and_place_only() {
        let whole = filled(7, 0, 1000);
        assert!(whole.iter().all(|byte| *byte != 0 && *byte != GARBAGE));
        for (at, len) in [(0, 1), (3, 5), (3, 6), (9, 700), (999, 1)] {
            let wanted = &whole[at as usize..(at + len) as usize];
            assert_eq!(filled(7, at, len), wanted);
        }
        assert_ne!(filled(8, 0, 1000), whole);
    }
}
