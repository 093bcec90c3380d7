//! Random numbers: ChaCha20, seeded at its first use.
//!
//! The generator works ahead: one run fills a stock, and rekeys it with its own output; what is
//! given out is erased from the stock. So what was given out earlier cannot be computed from a
//! later state (Bernstein, "Fast-key-erasure random-number generators", 2017), and a few bytes cost
//! a copy.
//!
//! **The seed** of an instance is in its descriptor: the supervisor has drawn it from its own
//! generator, gives none twice, and says if it is as good as any. The supervisor's comes from the
//! processor's generator. A machine without one is asked for the time that pieces of work take,
//! again and again, until enough of these times were not what those before let expect; what counts
//! as a surprise, and for how much, is on the safe side (`Predictor`, `SURPRISES_PER_BIT`).
//! Everything else that differs from one machine or boot to the next (clock, rates, memory, command
//! line) is mixed in and counts for nothing. If all of it is not enough the log says so, and
//! programs find the number of bits in `/proc/sys/kernel/random/entropy_avail`.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::descriptor::FLAG_SEEDED;
use chacha20::ChaCha20Rng;
use lfmutex::{Mutex, Once};
use rand_core::{Rng, SeedableRng};
use zerocopy::IntoBytes;

use crate::arch::features::{self, Features};
use crate::{role, timer};

const KEY_BYTES: usize = 32;

/// Bytes the generator works ahead.
const BUFFER_BYTES: usize = 512;

/// Bits of a seed that nobody can guess.
pub(crate) const ENOUGH_BITS: u32 = 8 * KEY_BYTES as u32;

struct Generator {
    rng: ChaCha20Rng,
    stock: [u8; BUFFER_BYTES],
    /// Number of bytes at the beginning of the stock that are not given out yet.
    left: usize,
}

static GENERATOR: Once<Mutex<Generator>> = Once::new();

/// Bits that the seed counts for.
static SEED_BITS: AtomicU32 = AtomicU32::new(0);

fn generator() -> &'static Mutex<Generator> {
    GENERATOR.call_once(|| {
        Mutex::new(Generator {
            rng: ChaCha20Rng::from_seed(first_seed()),
            stock: [0; BUFFER_BYTES],
            left: 0,
        })
    })
}

/// Fills `buffer` with random bytes. May sleep: not for interrupt handlers.
pub fn fill(buffer: &mut [u8]) {
    let Generator { rng, stock, left } = &mut *generator().lock();
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

/// Bits that the seed counts for: 256, or fewer on a machine that has nothing to make one of.
pub fn seed_bits() -> u32 {
    generator();
    SEED_BITS.load(Ordering::Relaxed)
}

fn rekey(rng: &mut ChaCha20Rng) {
    let mut key = [0; KEY_BYTES];
    rng.fill_bytes(&mut key);
    // Whatever is added, the key is not easier to guess than without.
    let fresh = hardware().unwrap_or([timer::tsc(), 0, 0, 0]);
    xor(&mut key, fresh.as_bytes());
    *rng = ChaCha20Rng::from_seed(key);
}

fn first_seed() -> [u8; KEY_BYTES] {
    let descriptor = role::descriptor();
    let mut pool = Pool::default();
    pool.mix(&timer::tsc().to_le_bytes());
    pool.mix(&descriptor.random_seed);
    let mut bits = if descriptor.has(FLAG_SEEDED) {
        ENOUGH_BITS
    } else {
        0
    };
    if let Some(words) = hardware() {
        pool.mix(words.as_bytes());
        bits = ENOUGH_BITS;
    }
    if bits < ENOUGH_BITS {
        pool.mix(descriptor.as_bytes());
        bits = collect(&mut pool, timer::tsc);
        if bits < ENOUGH_BITS {
            log::warn!(
                "random numbers may be guessed: no generator, and {bits} bits by the timing of work"
            );
        } else {
            log::info!("random numbers are seeded by the timing of work: there is no generator");
        }
    }
    SEED_BITS.store(bits, Ordering::Relaxed);
    pool.key
}

/// Pieces of a seed, mixed into a key that depends on every bit of each.
#[derive(Default)]
struct Pool {
    key: [u8; KEY_BYTES],
}

impl Pool {
    fn mix(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(KEY_BYTES) {
            xor(&mut self.key, piece);
            ChaCha20Rng::from_seed(self.key).fill_bytes(&mut self.key);
        }
    }
}

fn xor(key: &mut [u8; KEY_BYTES], bytes: &[u8]) {
    for (to, byte) in key.iter_mut().zip(bytes) {
        *to ^= byte;
    }
}

/// Most pieces of work that are timed, so that a machine where all take the same time goes on.
const MOST_SAMPLES: usize = 8192;

/// Surprises that count for one bit. A time that nobody expected is hardly ever one of two that are
/// equally likely, and what looks like one may be the like of others, which whoever knows the
/// machine knows too.
const SURPRISES_PER_BIT: u32 = 8;

/// Times pieces of work by the clock `now`, mixes the times in, and returns the bits for which they
/// count.
fn collect(pool: &mut Pool, mut now: impl FnMut() -> u64) -> u32 {
    let (mut predictor, mut surprises, mut last) = (Predictor::new(), 0, now());
    for _ in 0..MOST_SAMPLES {
        // The work itself: a run of the cipher.
        pool.mix(&last.to_le_bytes());
        let time = now();
        surprises += u32::from(predictor.is_surprised(time.wrapping_sub(last)));
        last = time;
        if surprises == ENOUGH_BITS * SURPRISES_PER_BIT {
            break;
        }
    }
    surprises / SURPRISES_PER_BIT
}

/// Contexts that a [`Predictor`] tells apart.
const CONTEXTS: u64 = 256;

/// Expects of a sequence that it goes on as it did the last time after the same two numbers, or in
/// even steps.
struct Predictor {
    followed: [u64; CONTEXTS as usize],
    before: [u64; 2],
}

impl Predictor {
    fn new() -> Self {
        Self {
            followed: [0; CONTEXTS as usize],
            before: [0; 2],
        }
    }

    /// Takes the next number; true if it was not expected.
    fn is_surprised(&mut self, number: u64) -> bool {
        let [first, second] = self.before;
        let context = (first.wrapping_mul(31).wrapping_add(second)) % CONTEXTS;
        let again = core::mem::replace(&mut self.followed[context as usize], number);
        let even = second.wrapping_add(second.wrapping_sub(first));
        self.before = [second, number];
        number != again && number != even
    }
}

/// Random words of the processor's generator, if there is one and it works.
fn hardware() -> Option<[u64; 4]> {
    /// Times that it may have nothing to give (SDM vol. 1, 7.3.17.1).
    const ATTEMPTS: usize = 10;
    if !features::has(Features::RDRAND) {
        return None;
    }
    let mut words = [0; 4];
    for word in &mut words {
        *word = (0..ATTEMPTS).find_map(|_| rdrand())?;
    }
    // One that is broken says the same each time.
    words.iter().any(|word| *word != words[0]).then_some(words)
}

/// The instruction, which the processor must have; `None` if it has no number at the moment.
fn rdrand() -> Option<u64> {
    let (value, valid): (u64, u8);
    // SAFETY: `hardware` has seen that the instruction exists; it writes a register and the flags.
    unsafe {
        asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) valid, options(nostack, nomem));
    };
    (valid != 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a machine on which the pieces of work take so long, one after the other.
    fn bits(durations: impl Iterator<Item = u64>) -> u32 {
        let (mut durations, mut clock) = (durations, 0u64);
        collect(&mut Pool::default(), || {
            clock += durations.next().unwrap();
            clock
        })
    }

    #[test]
    fn what_can_be_expected_counts_for_nothing() {
        assert_eq!(bits(std::iter::repeat(170)), 0);
        assert_eq!(bits((0..).map(|n| 100 + 7 * n)), 0);
        // An emulator that counts instructions: now and then it has something else to do.
        assert_eq!(
            bits((0..).map(|n: u64| [170, 172, 170, 190, 171][n as usize % 5])),
            0
        );
        assert!(bits((0..).map(|n: u64| if n % 100 == 0 { 900 } else { 170 })) < 32);
    }

    #[test]
    fn what_nobody_expects_is_enough_soon() {
        let mut rng = ChaCha20Rng::from_seed([7; KEY_BYTES]);
        let noise = std::iter::from_fn(|| Some(150 + rng.next_u64() % 32));
        assert_eq!(bits(noise), ENOUGH_BITS);
    }

    #[test]
    fn every_piece_matters_and_its_place() {
        let key = |pieces: &[&[u8]]| {
            let mut pool = Pool::default();
            pieces.iter().for_each(|piece| pool.mix(piece));
            pool.key
        };
        let mut all = vec![
            key(&[b"a", b"b"]),
            key(&[b"b", b"a"]),
            key(&[b"a"]),
            key(&[&[0; 33]]),
            key(&[&[0; 32]]),
            key(&[]),
        ];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn times_end_up_in_the_seed() {
        let key = |step: u64| {
            let (mut pool, mut clock) = (Pool::default(), 0);
            collect(&mut pool, || {
                clock += step;
                clock
            });
            pool.key
        };
        assert_ne!(key(100), key(101));
    }
}
