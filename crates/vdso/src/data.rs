//! The page that kernel and programs share: how to make a time out of the time-stamp counter, and
//! how to ask for the processor.

/// Data of the shared object, the same in all programs. A writer, which is the kernel, makes
/// `sequence` odd before and even afterwards: a reader that finds it odd, or another one at its
/// end, reads again.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(vdso_image),
    derive(
        zerocopy::IntoBytes,
        zerocopy::FromBytes,
        zerocopy::Immutable,
        zerocopy::KnownLayout
    )
)]
pub struct Data {
    /// Odd while the rest is being changed.
    pub sequence: u32,
    /// Way for programs to ask for the number of their processor: [`ASK`], [`RDPID`], [`RDTSCP`] or
    /// [`LSL`].
    pub processor: u32,
    /// The counter when the monotonic clock was 0.
    pub base: u64,
    /// Nanoseconds per tick, times 2^32.
    pub factor: u64,
    /// Unix time in nanoseconds when the monotonic clock was 0.
    pub wall: u64,
    /// Nanoseconds by which the clock without leap seconds (`CLOCK_TAI`) is ahead of Unix time.
    pub tai: u64,
    /// Generation of the kernel's random number generator, never 0: keys of an earlier one are to
    /// be replaced.
    pub generation: u64,
}

/// By a system call.
pub const ASK: u32 = 0;
/// By RDPID, of what the kernel keeps in `IA32_TSC_AUX`.
pub const RDPID: u32 = 1;
/// By RDTSCP, of the same.
pub const RDTSCP: u32 = 2;
/// By the limit of the segment [`SEGMENT`].
pub const LSL: u32 = 3;

/// The segment whose limit is the processor's number, as on Linux.
pub const SEGMENT: u16 = 0x7b;

/// Bits of the processor's number in what those instructions give; the node's number is above.
pub const PROCESSOR_BITS: u32 = 12;

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// Unit of the coarse clocks, in nanoseconds: a tick of Debian's Linux (`HZ=250`).
pub const COARSE: u64 = 4_000_000;

/// A coarse clock's time when the other one's is `ns`.
#[must_use]
pub const fn coarse(ns: u64) -> u64 {
    ns - ns % COARSE
}

impl Data {
    /// Data in which nothing is set.
    pub const NONE: Self = Self {
        sequence: 0,
        processor: ASK,
        base: 0,
        factor: 0,
        wall: 0,
        tai: 0,
        generation: 0,
    };

    /// Nanoseconds since the monotonic clock was 0.
    #[inline]
    #[must_use]
    pub const fn monotonic(&self, counter: u64) -> u64 {
        ((counter.saturating_sub(self.base) as u128 * self.factor as u128) >> 32) as u64
    }

    /// The first value of the counter at which [`Self::monotonic`] has reached `ns`; the greatest
    /// one if none has.
    #[cfg(not(vdso_image))]
    #[must_use]
    pub const fn counter_at(&self, ns: u64) -> u64 {
        let factor = if self.factor == 0 { 1 } else { self.factor };
        let ticks = ((ns as u128) << 32).div_ceil(factor as u128) + self.base as u128;
        if ticks > u64::MAX as u128 {
            u64::MAX
        } else {
            ticks as u64
        }
    }
}
