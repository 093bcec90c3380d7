//! SYN cookies: a handshake of which nothing is kept, since all of it is in the numbers that the
//! peer returns (RFC 4987, section 3.6 and appendix A).
//!
//! A cookie is Linux' (`secure_tcp_syn_cookie`), with SipHash: a hash of the ends, the peer's
//! number, eight bits of a clock of minutes, and 24 of a hash of the ends at that minute to which
//! the index of a segment size is added. Where both ends have timestamps, six bits of the clock
//! hold the shift of the peer's windows, and whether selective acknowledgements and congestion
//! notification were offered.

use crate::handshake::Ends;
use crate::isn::{Purpose, Secret};
use crate::seq::Seq;
use crate::{MILLISECOND, Nanos, SECOND};

/// Step of the cookies' clock.
const PERIOD: Nanos = 60 * SECOND;
/// Steps for which a cookie is valid: this one and the one before.
const AGES: u32 = 2;
/// Time after which no cookie is valid any more.
pub const VALID: Nanos = AGES as Nanos * PERIOD;
/// Bits of the hash that the index of a segment size is added to.
const DATA_BITS: u32 = 24;
const DATA_MASK: u32 = (1 << DATA_BITS) - 1;
/// Segment sizes that a cookie can name: of a peer's the largest that is not above it. Beside the
/// usual ones of IPv4 and IPv6 there are the least and that of large frames.
const SIZES: [u16; 8] = [88, 536, 1220, 1300, 1420, 1440, 1460, 8940];

/// Bits of a clock that hold options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const SHIFT_MASK: u32 = 0xf;
const SACK: u32 = 0x10;
const ECN: u32 = 0x20;

/// The secrets of cookies: the one by which they are made, and the one before.
#[derive(Clone, Debug)]
pub struct SynCookies {
    current: Secret,
    /// The one before, and when its last cookie is too old.
    previous: Option<(Secret, Nanos)>,
}

/// Options of a SYN that a clock can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockOptions {
    pub shift: Option<u8>,
    pub sack: bool,
    pub ecn: bool,
}

impl SynCookies {
    /// Cookies of a secret that nobody outside knows.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        Self {
            current: secret,
            previous: None,
        }
    }

    /// Makes cookies by a new secret. Those of the secret before stay valid for two minutes; those
    /// of an older one are not valid any more.
    pub fn rotate(&mut self, now: Nanos, secret: Secret) {
        self.previous = Some((self.current, now + VALID));
        self.current = secret;
    }

    /// A cookie, as initial number, for a SYN with this number and segment size.
    pub(crate) fn make(&self, now: Nanos, ends: &Ends, irs: Seq, peer_mss: u16) -> Seq {
        let fitting = SIZES.iter().rposition(|size| *size <= peer_mss);
        let index = fitting.unwrap_or(0) as u32;
        let minute = (now / PERIOD) as u32;
        let data = hash(&self.current, ends, Purpose::CookieData, minute).wrapping_add(index);
        Seq(hash(&self.current, ends, Purpose::CookieBase, 0)
            .wrapping_add(irs.0)
            .wrapping_add(minute << DATA_BITS)
            .wrapping_add(data & DATA_MASK))
    }

    /// The segment size that a cookie names, if it is one of these ends that is not too old.
    pub(crate) fn check(&self, now: Nanos, ends: &Ends, irs: Seq, cookie: Seq) -> Option<u16> {
        let previous = self.previous.filter(|(_, until)| now < *until);
        [Some(self.current), previous.map(|(secret, _)| secret)]
            .into_iter()
            .flatten()
            .find_map(|secret| check_by(&secret, now, ends, irs, cookie))
    }
}

fn hash(secret: &Secret, ends: &Ends, purpose: Purpose, minute: u32) -> u32 {
    secret.hash_ends(ends, purpose, minute.into()) as u32
}

fn check_by(secret: &Secret, now: Nanos, ends: &Ends, irs: Seq, cookie: Seq) -> Option<u16> {
    let rest = cookie
        .0
        .wrapping_sub(hash(secret, ends, Purpose::CookieBase, 0))
        .wrapping_sub(irs.0);
    let minute = (now / PERIOD) as u32;
    let age = minute.wrapping_sub(rest >> DATA_BITS) & 0xff;
    if age >= AGES {
        return None;
    }
    let made = minute.wrapping_sub(age);
    let index = rest.wrapping_sub(hash(secret, ends, Purpose::CookieData, made)) & DATA_MASK;
    SIZES.get(index as usize).copied()
}

/// A clock that is not later than `now`, with the options in its last bits.
pub(crate) fn clock_with(now: Nanos, offset: u32, options: ClockOptions) -> u32 {
    let mut bits = u32::from(options.shift.unwrap_or(SHIFT_MASK as u8)) & SHIFT_MASK;
    if options.sack {
        bits |= SACK;
    }
    if options.ecn {
        bits |= ECN;
    }
    let clock = (now / MILLISECOND) as u32;
    let mut value = clock & !OPTION_MASK | bits;
    if bits > clock & OPTION_MASK {
        value = value.wrapping_sub(1 << OPTION_BITS);
    }
    value.wrapping_add(offset)
}

/// The options in a clock that the peer returns, if they can be.
pub(crate) fn options_of(clock: u32, offset: u32) -> Option<ClockOptions> {
    let bits = clock.wrapping_sub(offset);
    let shift = (bits & SHIFT_MASK) as u8;
    if shift != SHIFT_MASK as u8 && shift > crate::segment::LARGEST_SHIFT {
        return None;
    }
    Some(ClockOptions {
        shift: (shift != SHIFT_MASK as u8).then_some(shift),
        sack: bits & SACK != 0,
        ecn: bits & ECN != 0,
    })
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;

    fn ends(port: u16) -> Ends {
        Ends {
            local: SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: SocketAddr::from(([10, 0, 0, 2], port)),
        }
    }

    proptest! {
        /// RFC 4987, appendix A: what was asked for comes back, for a minute at least and two at
        /// most, to these ends and for this number only.
        #[test]
        fn a_cookie_is_its_own_memory(
            now in 0..1_000_000 * SECOND,
            irs in any::<u32>(),
            mss in 88_u16..,
            age in 0..4 * PERIOD,
            port in any::<u16>(),
        ) {
            let cookies = SynCookies::new(Secret([1, 2]));
            let cookie = cookies.make(now, &ends(port), Seq(irs), mss);
            let size = cookies.check(now + age, &ends(port), Seq(irs), cookie);
            if age <= PERIOD {
                prop_assert!(size.is_some());
            }
            if age >= 2 * PERIOD {
                prop_assert_eq!(size, None);
            }
            if let Some(size) = size {
                prop_assert!(size <= mss);
                prop_assert!(SIZES.iter().all(|other| *other <= size || *other > mss));
            }
        }

        /// RFC 7323, section 5.4: a clock with options is not ahead and hardly late.
        #[test]
        fn a_clock_holds_options(
            now in SECOND..1_000_000 * SECOND,
            offset in any::<u32>(),
            shift in proptest::option::of(0_u8..=14),
            sack in any::<bool>(),
            ecn in any::<bool>(),
        ) {
            let options = ClockOptions { shift, sack, ecn };
            let clock = clock_with(now, offset, options);
            prop_assert_eq!(options_of(clock, offset), Some(options));
            let late = ((now / MILLISECOND) as u32).wrapping_sub(clock.wrapping_sub(offset));
            prop_assert!(late < 2 << OPTION_BITS);
        }
    }

    /// RFC 4987, section 3.6: guesses do not succeed more often than their bits allow.
    #[test]
    fn guesses_fail() {
        let cookies = SynCookies::new(Secret([3, 4]));
        let good = cookies.make(0, &ends(1), Seq(9), 1460);
        let mut hits = 0;
        for guess in 0..1_000_000_u32 {
            let guess = Seq(guess.wrapping_mul(0x9e37_79b9));
            hits += u32::from(cookies.check(0, &ends(1), Seq(9), guess).is_some());
        }
        // Sixteen of 2^32 numbers are right at a time.
        assert_eq!(hits, 0);
        assert_eq!(cookies.check(0, &ends(2), Seq(9), good), None);
        assert_eq!(cookies.check(0, &ends(1), Seq(20), good), None);
        assert_eq!(cookies.check(0, &ends(1), Seq(9), good), Some(1460));
    }

    #[test]
    fn an_old_secret_lasts_two_minutes() {
        let mut cookies = SynCookies::new(Secret([5, 6]));
        let now = 1019 * SECOND;
        let old = cookies.make(now, &ends(1), Seq(1), 1460);
        cookies.rotate(now, Secret([7, 8]));
        assert_eq!(cookies.check(now, &ends(1), Seq(1), old), Some(1460));
        let new = cookies.make(now, &ends(1), Seq(1), 1460);
        assert_ne!(old, new);
        assert_eq!(cookies.check(now, &ends(1), Seq(1), new), Some(1460));
        cookies.rotate(now, Secret([9, 10]));
        assert_eq!(cookies.check(now, &ends(1), Seq(1), old), None);
        assert_eq!(cookies.check(now, &ends(1), Seq(1), new), Some(1460));
        // The clock has not moved on by two steps, but the secret is over.
        cookies.rotate(now - VALID, Secret([11, 12]));
        assert_eq!(cookies.check(now, &ends(1), Seq(1), new), None);
    }
}
