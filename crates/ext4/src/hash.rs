//! Hashes of names in indexed directories: half MD4, TEA, and the first one there was.

use crate::superblock::Superblock;

/// A name's hash: the part by which the index is sorted (its lowest bit is clear), and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    pub major: u32,
    pub minor: u32,
}

/// A hash function, as the root of an index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Legacy,
    HalfMd4,
    Tea,
}

/// A hash function with the sign of its bytes and its seed.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    function: Function,
    is_unsigned: bool,
    seed: [u32; 4],
}

const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
/// Hashes end before this one, which ends a listing on Linux.
const LAST: u32 = 0xFFFF_FFFE;

impl Hasher {
    /// The one with a number, for a file system.
    pub fn new(version: u8, sb: &Superblock) -> Option<Self> {
        let (function, is_unsigned) = match version {
            0 => (Function::Legacy, sb.hash_unsigned),
            1 => (Function::HalfMd4, sb.hash_unsigned),
            2 => (Function::Tea, sb.hash_unsigned),
            3 => (Function::Legacy, true),
            4 => (Function::HalfMd4, true),
            5 => (Function::Tea, true),
            _ => return None,
        };
        let seed = if sb.hash_seed == [0; 4] {
            DEFAULT_SEED
        } else {
            sb.hash_seed
        };
        Some(Self {
            function,
            is_unsigned,
            seed,
        })
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (major, minor) = match self.function {
            Function::Legacy => (self.legacy(name), 0),
            Function::HalfMd4 => {
                let mut state = self.seed;
                self.for_each_chunk::<8>(name, |words| half_md4(&mut state, words));
                (state[1], state[2])
            }
            Function::Tea => {
                let mut state = self.seed;
                self.for_each_chunk::<4>(name, |words| tea(&mut state, words));
                (state[0], state[1])
            }
        };
        let major = major & !1;
        let major = if major == LAST { LAST - 2 } else { major };
        NameHash { major, minor }
    }

    fn value(&self, byte: u8) -> u32 {
        if self.is_unsigned {
            u32::from(byte)
        } else {
            i32::from(byte as i8) as u32
        }
    }

    /// Calls `each` for a name in pieces of `N` words. What is missing of the last one is filled
    /// with the length of what was left of the name.
    fn for_each_chunk<const N: usize>(&self, name: &[u8], mut each: impl FnMut([u32; N])) {
        let mut left = name;
        while !left.is_empty() {
            let len = left.len() as u32;
            let pad = len | len << 8;
            let pad = pad | pad << 16;
            let (piece, rest) = left.split_at(left.len().min(4 * N));
            let mut words = [pad; N];
            for (word, bytes) in words.iter_mut().zip(piece.chunks(4)) {
                for &byte in bytes {
                    *word = self.value(byte).wrapping_add(*word << 8);
                }
            }
            each(words);
            left = rest;
        }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut now, mut before) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
        for &byte in name {
            let mixed = now ^ self.value(byte).wrapping_mul(7_152_373);
            let mut next = before.wrapping_add(mixed);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7FFF_FFFF);
            }
            (before, now) = (now, next);
        }
        now << 1
    }
}

/// Three rounds of eight steps of MD4 each.
fn half_md4(state: &mut [u32; 4], words: [u32; 8]) {
    const ORDER: [[usize; 8]; 3] = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 3, 5, 7, 0, 2, 4, 6],
        [3, 7, 2, 6, 1, 5, 0, 4],
    ];
    const TURNS: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    const CONSTANTS: [u32; 3] = [0, 0x5A82_7999, 0x6ED9_EBA1];
    let mix = |round: usize, x: u32, y: u32, z: u32| match round {
        0 => z ^ (x & (y ^ z)),
        1 => (x & y).wrapping_add((x ^ y) & z),
        _ => x ^ y ^ z,
    };
    let [mut a, mut b, mut c, mut d] = *state;
    for round in 0..3 {
        for step in 0..8 {
            let word = words[ORDER[round][step]].wrapping_add(CONSTANTS[round]);
            let sum = a.wrapping_add(mix(round, b, c, d)).wrapping_add(word);
            (a, b, c, d) = (d, sum.rotate_left(TURNS[round][step % 4]), b, c);
        }
    }
    for (old, new) in state.iter_mut().zip([a, b, c, d]) {
        *old = old.wrapping_add(new);
    }
}

/// Sixteen rounds of the Tiny Encryption Algorithm.
fn tea(state: &mut [u32; 4], [a, b, c, d]: [u32; 4]) {
    let (mut x, mut y) = (state[0], state[1]);
    let mut sum = 0_u32;
    let step = |value: u32, sum: u32, first: u32, second: u32| {
        (value << 4).wrapping_add(first)
            ^ value.wrapping_add(sum)
            ^ (value >> 5).wrapping_add(second)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        x = x.wrapping_add(step(y, sum, a, b));
        y = y.wrapping_add(step(x, sum, c, d));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}
