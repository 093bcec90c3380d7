//! Several segments at once: cutting what is sent for hardware that does not (TSO, GSO), and
//! joining what arrives (GRO).

use core::ops::Range;

use crate::connection::Outgoing;
use crate::segment::{Flags, Header, Segment};

impl Outgoing {
    /// The segments that this one stands for, in order: a header, and which bytes of the payload.
    /// One if it is not several.
    pub fn cut(&self) -> impl Iterator<Item = (Header, Range<usize>)> + use<> {
        let Self {
            header, payload, ..
        } = *self;
        let size = self.segment_size.map_or(payload, usize::from).max(1);
        let count = payload.div_ceil(size).max(1);
        (0..count).map(move |index| {
            let start = index * size;
            let end = payload.min(start + size);
            let mut part = header;
            part.seq = header.seq.plus(start as u32);
            if index + 1 < count {
                part.flags -= Flags::FIN | Flags::PSH;
            }
            (part, start..end)
        })
    }
}

/// Segments that follow each other and are taken for one: what Linux' `tcp_gro_receive` joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merged {
    header: Header,
    length: usize,
    /// Payload of the first: all but the last have as much.
    size: usize,
    count: usize,
    /// Nothing can follow.
    ended: bool,
}

impl Merged {
    /// Begins with a segment, if any can follow it: one with data, and no other control than ACK
    /// and PSH.
    #[must_use]
    pub fn begin(segment: &Segment<'_>) -> Option<Self> {
        let header = segment.header;
        let allowed = Flags::ACK | Flags::PSH | Flags::FIN;
        let length = segment.payload.len();
        if length == 0 || header.flags - allowed != Flags::empty() {
            return None;
        }
        Some(Self {
            header,
            length,
            size: length,
            count: 1,
            ended: header.flags.intersects(Flags::PSH | Flags::FIN),
        })
    }

    /// Adds the segment that follows, whose packet came from the same address and was marked
    /// equally. Whether it could be: else it begins anew. All together have at most `most` bytes.
    #[must_use]
    pub fn append(&mut self, segment: &Segment<'_>, most: usize) -> bool {
        let header = &segment.header;
        let length = segment.payload.len();
        let expected = Header {
            seq: self.header.seq.plus(self.length as u32),
            flags: header.flags,
            ..self.header
        };
        let ends = header.flags & (Flags::PSH | Flags::FIN);
        let fits = !self.ended
            && length > 0
            && length <= self.size
            && self.length + length <= most
            && *header == expected
            && header.flags - ends == self.header.flags;
        if fits {
            self.header.flags |= ends;
            self.length += length;
            self.count += 1;
            self.ended = !ends.is_empty() || length < self.size;
        }
        fits
    }

    /// Header of all of them.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Number of segments.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Size of a segment, for [`crate::Arrival::segment_size`].
    #[must_use]
    pub fn segment_size(&self) -> u16 {
        u16::try_from(self.size).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::segment::{Options, Timestamps};
    use crate::seq::Seq;

    fn outgoing(payload: usize, segment_size: Option<u16>, flags: Flags) -> Outgoing {
        Outgoing {
            header: Header {
                seq: Seq(u32::MAX - 700),
                ack: Seq(9),
                flags,
                window: 5,
                options: Options {
                    timestamps: Some(Timestamps { value: 1, echo: 2 }),
                    ..Options::default()
                },
                ..Header::default()
            },
            payload,
            segment_size,
            ecn_capable: false,
        }
    }

    proptest! {
        /// Joining undoes cutting, whatever the sizes; flags are told once.
        #[test]
        fn joining_undoes_cutting(payload in 1_usize..20_000, size in 100_u16..3000, fin: bool) {
            let mut flags = Flags::ACK | Flags::PSH;
            flags.set(Flags::FIN, fin);
            let outgoing = outgoing(payload, Some(size), flags);
            let bytes: Vec<u8> = (0..payload).map(|at| at as u8).collect();
            let mut merged: Option<Merged> = None;
            let mut at = 0;
            for (header, range) in outgoing.cut() {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.len() <= usize::from(size));
                at = range.end;
                let segment = Segment { header, payload: &bytes[range] };
                match &mut merged {
                    None => merged = Merged::begin(&segment),
                    Some(merged) => prop_assert!(merged.append(&segment, 65536)),
                }
            }
            let merged = merged.unwrap();
            prop_assert_eq!(at, payload);
            prop_assert_eq!((merged.header(), merged.length()), (&outgoing.header, payload));
            prop_assert_eq!(merged.count(), payload.div_ceil(size.into()));
        }
    }

    #[test]
    fn others_are_not_joined() {
        let first = outgoing(100, None, Flags::ACK).header;
        let bytes = [0; 200];
        let second = Header {
            seq: first.seq.plus(100),
            ..first
        };
        let accepts = |header: Header, length: usize, most| {
            let mut merged = Merged::begin(&Segment {
                header: first,
                payload: &bytes[..100],
            })
            .unwrap();
            let payload = &bytes[..length];
            merged.append(&Segment { header, payload }, most)
        };
        assert!(accepts(second, 100, 200));
        assert!(accepts(second, 1, 200));
        for (length, most) in [(0, 200), (101, 300), (100, 199)] {
            assert!(!accepts(second, length, most), "{length} {most}");
        }
        let mut others = [second; 6];
        others[0].seq = first.seq.plus(99);
        others[1].ack = Seq(10);
        others[2].window = 6;
        others[3].options.timestamps = None;
        others[4].source = 1;
        others[5].flags |= Flags::URG;
        for other in others {
            assert!(!accepts(other, 100, 200), "{other:?}");
        }
        // Behind a push, an end or a shorter one nothing follows.
        for (flags, length) in [(Flags::PSH, 100), (Flags::FIN, 100), (Flags::empty(), 50)] {
            let mut merged = Merged::begin(&Segment {
                header: first,
                payload: &bytes[..100],
            })
            .unwrap();
            let mut last = second;
            last.flags |= flags;
            let payload = &bytes[..length];
            assert!(merged.append(
                &Segment {
                    header: last,
                    payload
                },
                500
            ));
            let next = Header {
                seq: second.seq.plus(length as u32),
                ..first
            };
            let payload = &bytes[..50];
            assert!(!merged.append(
                &Segment {
                    header: next,
                    payload
                },
                500
            ));
        }
        for flags in [Flags::SYN, Flags::RST, Flags::URG, Flags::ECE, Flags::CWR] {
            let header = Header { flags, ..first };
            let payload = &bytes[..100];
            assert_eq!(Merged::begin(&Segment { header, payload }), None);
        }
    }
}
