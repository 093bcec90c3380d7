//! Random numbers: ChaCha20, seeded by the partition descriptor's seed (which the supervisor draws
//! from its own generator and never gives twice), the processor's generator where there is one, and
//! the clock.
//!
//! The generator works ahead: one run fills a stock, and rekeys it with its own output; what is
//! given out is erased from the stock. So what was given out earlier cannot be computed from a
//! later state (Bernstein, "Fast-key-erasure random-number generators", 2017), and a few bytes cost
//! a copy.

use core::arch::asm;

use chacha20::ChaCha20Rng;
use lfmutex::{Mutex, Once};
use rand_core::{Rng, SeedableRng};

use crate::arch::features::{self, Features};
use crate::{role, timer};

const KEY_BYTES: usize = 32;

/// Bytes the generator works ahead.
const BUFFER_BYTES: usize = 512;

struct Generator {
    rng: ChaCha20Rng,
    stock: [u8; BUFFER_BYTES],
    /// Number of bytes at the beginning of the stock that are not given out yet.
    left: usize,
}

static GENERATOR: Once<Mutex<Generator>> = Once::new();

/// Fills `buffer` with random bytes. May sleep: not for interrupt handlers.
pub fn fill(buffer: &mut [u8]) {
    let new = || {
        Mutex::new(Generator {
            rng: ChaCha20Rng::from_seed(first_seed()),
            stock: [0; BUFFER_BYTES],
            left: 0,
        })
    };
    let Generator { rng, stock, left } = &mut *GENERATOR.call_once(new).lock();
    if buffer.len() > BUFFER_BYTES / 4 {
        rng.fill_bytes(buffer);
        return rekey(rng);
    }
    if *left < buffer.len() {
        rng.fill_bytes(stock);
        rekey(rng);
        *left = BUFFER_BYTES;
    }
    let taken = &mut stock[*left - buffer.len()..*left];
    buffer.copy_from_slice(taken);
    taken.fill(0);
    *left -= buffer.len();
}

fn rekey(rng: &mut ChaCha20Rng) {
    let mut key = [0; KEY_BYTES];
    rng.fill_bytes(&mut key);
    mix_in_hardware(&mut key);
    *rng = ChaCha20Rng::from_seed(key);
}

fn first_seed() -> [u8; KEY_BYTES] {
    let mut seed = role::descriptor().random_seed;
    mix_in_hardware(&mut seed);
    for (byte, time) in seed.iter_mut().zip(timer::tsc().to_le_bytes()) {
        *byte ^= time;
    }
    seed
}

/// Exclusive-ors the processor's random numbers in. One that always says 0 does no harm.
fn mix_in_hardware(key: &mut [u8; KEY_BYTES]) {
    if !features::has(Features::RDRAND) {
        return;
    }
    for word in key.chunks_exact_mut(8) {
        let (value, valid): (u64, u8);
        // SAFETY: the instruction exists; it writes a register and the flags.
        unsafe {
            asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) valid, options(nostack, nomem));
        };
        if valid != 0 {
            for (byte, random) in word.iter_mut().zip(value.to_le_bytes()) {
                *byte ^= random;
            }
        }
    }
}
