//! Sequence numbers (RFC 9293, section 3.4).

/// A sequence number as a segment carries it: modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Seq(pub u32);

/// A sequence number that does not wrap: the low half is what segments carry. Positions of a
/// connection begin above 2^32, so that those before its first can be named.
pub type Position = u64;

impl Seq {
    /// The number of a position.
    #[must_use]
    pub const fn of(position: Position) -> Self {
        Self(position as u32)
    }

    /// The position of the initial sequence number of a connection.
    #[must_use]
    pub fn first(self) -> Position {
        (1 << 32) + Position::from(self.0)
    }

    /// The one position of this number that is at most 2^31 from `reference`.
    #[must_use]
    pub const fn near(self, reference: Position) -> Position {
        let distance = self.0.wrapping_sub(reference as u32).cast_signed();
        reference.wrapping_add_signed(distance as i64)
    }

    /// This number and so many more.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Whether this number is before `other` in the order of the circle.
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_near_its_position_is_that_position(
            position in (1_u64 << 32)..(1 << 48),
            distance in -(1_i64 << 31) + 1..(1 << 31),
        ) {
            let other = position.wrapping_add_signed(distance);
            prop_assert_eq!(Seq::of(other).near(position), other);
            prop_assert_eq!(Seq::of(other).before(Seq::of(position)), distance < 0);
        }
    }

    #[test]
    fn the_order_goes_round() {
        assert!(Seq(u32::MAX).before(Seq(0)) && !Seq(0).before(Seq(u32::MAX)));
        assert_eq!(Seq(u32::MAX).plus(2), Seq(1));
        assert_eq!(Seq(5).first(), (1 << 32) + 5);
    }
}
