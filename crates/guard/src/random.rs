//! Random numbers: ChaCha20, seeded by the partition descriptor's seed (which the supervisor draws from its own generator and
//! never gives twice), the processor's generator where there is one, and the clock.
//!
//! The generator is rekeyed with its own output after every call, so what was given out earlier cannot be computed from a
//! later state.

use core::arch::asm;

use chacha20::ChaCha20Rng;
use lfmutex::{Mutex, Once};
use rand_core::{Rng, SeedableRng};

use crate::arch::features::{self, Features};
use crate::{role, timer};

const KEY_BYTES: usize = 32;

static GENERATOR: Once<Mutex<ChaCha20Rng>> = Once::new();

/// Fills `buffer` with random bytes. May sleep: not for interrupt handlers.
pub fn fill(buffer: &mut [u8]) {
    let mut generator = GENERATOR.call_once(|| Mutex::new(ChaCha20Rng::from_seed(first_seed()))).lock();
    generator.fill_bytes(buffer);
    let mut key = [0; KEY_BYTES];
    generator.fill_bytes(&mut key);
    mix_in_hardware(&mut key);
    *generator = ChaCha20Rng::from_seed(key);
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
        unsafe { asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) valid, options(nostack, nomem)) };
        if valid != 0 {
            for (byte, random) in word.iter_mut().zip(value.to_le_bytes()) {
                *byte ^= random;
            }
        }
    }
}
