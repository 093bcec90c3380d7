//! Exponentially decaying run time in fixed point (OSv, USENIX ATC 2014, section 2.4).
//!
//! A thread's usage is `R(t) = 1/τ · ∫ run(s) · e^{-(t-s)/τ} ds`, with `run` 1 while it runs and 0
//! otherwise: the part of the recent past, between 0 and 1, that it had a CPU. `R` is never touched
//! while nothing changes: it is brought up to date from its time stamp when the thread gets or
//! leaves the CPU. Each step multiplies by a factor below one, so that rounding is forgotten with
//! the past and nothing drifts.

/// Time constant of the decay, OSv's, in nanoseconds.
pub const TAU_NS: u64 = 200_000_000;

/// 1.0 as a factor.
const ONE: u64 = 1 << 32;
/// 2^(-1/256), times 2^63.
const ROOT: u64 = 9_198_432_556_164_277_330;
/// 2^57 / (τ·ln 2): turns nanoseconds into half-lives with 57 binary places.
const HALF_LIVES: u64 = 1_039_571_335;
/// Age from which on nothing of the usage is left (31 half-lives).
const FORGOTTEN_NS: u64 = 1 << 32;

/// 2^(-j/256) with 32 binary places.
static POWERS: [u64; 257] = powers();

const fn powers() -> [u64; 257] {
    let mut table = [ONE; 257];
    let mut value = 1 << 63;
    let mut j = 1;
    while j < table.len() {
        value = ((value as u128 * ROOT as u128) >> 63) as u64;
        table[j] = (value + (1 << 30)) >> 31;
        j += 1;
    }
    table
}

/// `e^(-ns/τ)` with 32 binary places.
#[inline]
fn factor(ns: u64) -> u64 {
    if ns < TAU_NS / 1024 {
        // e^-x is 1-x here, to 5·10⁻⁷.
        return ONE - ((ns * (u64::MAX / TAU_NS)) >> 32);
    }
    power(ns)
}

/// The same by the table.
#[cold]
#[inline(never)]
fn power(ns: u64) -> u64 {
    if ns >= FORGOTTEN_NS {
        return 0;
    }
    let halves = (ns * HALF_LIVES) >> 25;
    let (whole, part) = (halves >> 32, halves & (ONE - 1));
    let (index, between) = ((part >> 24) as usize, part & ((1 << 24) - 1));
    let (from, to) = (POWERS[index], POWERS[index + 1]);
    (from - (((from - to) * between) >> 24)) >> whole
}

/// The share of a CPU a thread used lately: a fraction with 62 binary places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usage(u64);

impl Usage {
    /// Always on a CPU.
    pub const FULL: Self = Self(1 << 62);

    /// After `ns` nanoseconds without a CPU.
    #[inline]
    #[must_use]
    pub fn rested(self, ns: u64) -> Self {
        Self(scale(self.0, factor(ns)))
    }

    /// After `ns` nanoseconds on a CPU.
    #[inline]
    #[must_use]
    pub fn ran(self, ns: u64) -> Self {
        Self(Self::FULL.0 - scale(Self::FULL.0 - self.0, factor(ns)))
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The decayed run time itself, `τ·R`, in nanoseconds.
    #[must_use]
    pub fn ns(self) -> u64 {
        ((u128::from(self.0) * u128::from(TAU_NS)) >> 62) as u64
    }
}

fn scale(value: u64, factor: u64) -> u64 {
    ((u128::from(value) * u128::from(factor)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_factor_is_the_exponential(ns in 0..FORGOTTEN_NS) {
            let exact = (-(ns as f64) / TAU_NS as f64).exp();
            prop_assert!((factor(ns) as f64 / ONE as f64 - exact).abs() < 2e-6);
        }

        #[test]
        fn usage_does_not_depend_on_how_time_is_cut(cuts in prop::collection::vec(1u64..50_000_000, 1..200)) {
            let total: u64 = cuts.iter().sum();
            let pieces = cuts.iter().fold(Usage::default(), |usage, &ns| usage.ran(ns));
            prop_assert!(pieces.ns().abs_diff(Usage::default().ran(total).ns()) < TAU_NS / 10_000);
        }
    }

    #[test]
    fn usage_stays_between_nothing_and_all() {
        let mut usage = Usage::default();
        for _ in 0..100_000 {
            usage = usage.ran(700);
            assert!(usage <= Usage::FULL);
        }
        assert!(usage.ran(u64::MAX).ns() <= TAU_NS);
        assert_eq!(usage.ran(u64::MAX).rested(u64::MAX), Usage::default());
    }

    #[test]
    fn the_factor_never_grows_with_time() {
        let mut last = ONE;
        for ns in (0..FORGOTTEN_NS).step_by(9_973) {
            let now = factor(ns);
            assert!(now <= last + 1000, "{ns}");
            last = now;
        }
        assert!(factor(0) == ONE);
    }
}
