//! Points in time as inodes have them.

/// A point in time: seconds since 1970, which reach to the year 2446, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// From the two words of an inode; the second one only where the inode has it.
    pub(crate) fn decode(seconds: u32, extra: Option<u32>) -> Self {
        let base = i64::from(seconds as i32);
        let Some(extra) = extra else {
            return Self {
                seconds: base,
                nanoseconds: 0,
            };
        };
        Self {
            seconds: base + (i64::from(extra & 3) << 32),
            nanoseconds: (extra >> 2).min(999_999_999),
        }
    }

    /// The two words. What an inode cannot say becomes the nearest that it can.
    pub(crate) fn encode(self, has_extra: bool) -> (u32, u32) {
        let last = if has_extra {
            0x3_7FFF_FFFF
        } else {
            i64::from(i32::MAX)
        };
        let seconds = self.seconds.clamp(i64::from(i32::MIN), last);
        let epoch = (seconds - i64::from(seconds as i32)) >> 32;
        (seconds as u32, epoch as u32 & 3 | self.nanoseconds << 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_to_the_year_2446() {
        for seconds in [
            i64::from(i32::MIN),
            -1,
            0,
            0x7FFF_FFFF,
            0x8000_0000,
            0x3_7FFF_FFFF,
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds: 999_999_999,
            };
            let (low, extra) = time.encode(true);
            assert_eq!(Timestamp::decode(low, Some(extra)), time);
        }
    }

    #[test]
    fn what_cannot_be_said_is_the_nearest() {
        let late = Timestamp {
            seconds: 1 << 40,
            nanoseconds: 0,
        };
        let (low, extra) = late.encode(true);
        assert_eq!(Timestamp::decode(low, Some(extra)).seconds, 0x3_7FFF_FFFF);
        let (low, _) = late.encode(false);
        assert_eq!(Timestamp::decode(low, None).seconds, 0x7FFF_FFFF);
    }
}
