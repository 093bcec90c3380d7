//! Segments: parsing and emitting headers and options (RFC 9293, section 3.1).
//!
//! Whatever bytes arrive, parsing reads inside them and says what is wrong. Options that are not
//! known are skipped; one whose length is impossible makes the whole segment malformed, since
//! nothing behind it can be found.

use core::net::IpAddr;

use bitflags::bitflags;
use ip::Checksum;

use crate::seq::Seq;

bitflags! {
    /// Control bits (RFC 9293, section 3.1; RFC 3168, section 6.1 for the first two).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Flags: u8 {
        /// Congestion window reduced.
        const CWR = 0x80;
        /// Congestion was experienced (ECN echo).
        const ECE = 0x40;
        /// The urgent pointer counts.
        const URG = 0x20;
        /// The acknowledgement number counts.
        const ACK = 0x10;
        /// Push.
        const PSH = 0x08;
        /// Reset.
        const RST = 0x04;
        /// Synchronise sequence numbers.
        const SYN = 0x02;
        /// No more data from the sender.
        const FIN = 0x01;
    }
}

/// Length of a header without options.
pub const HEADER: usize = 20;
/// Length of a header with as many options as there can be.
pub const LONGEST_HEADER: usize = 60;
/// Length of the timestamps option with its padding.
pub const TIMESTAMPS: usize = 12;
/// Largest shift of the window (RFC 7323, section 2.3).
pub const LARGEST_SHIFT: u8 = 14;

/// The protocol's number in headers of IP.
const PROTOCOL: u8 = 6;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;

/// The timestamps option (RFC 7323, section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timestamps {
    /// The sender's clock (TSval).
    pub value: u32,
    /// The receiver's clock as the sender saw it last (TSecr).
    pub echo: u32,
}

/// Blocks of a SACK option (RFC 2018, section 3), at most four.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); 4],
    count: u8,
}

impl SackBlocks {
    /// Adds a block, the first number and the one behind the last, if there is room.
    pub fn push(&mut self, block: (Seq, Seq)) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = block;
            self.count += 1;
        }
    }

    /// The blocks, in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Drops blocks behind the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.count = self.count.min(u8::try_from(count).unwrap_or(u8::MAX));
        self.blocks[usize::from(self.count)..].fill(<(Seq, Seq)>::default());
    }
}

/// Options of a segment that are known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Largest segment that the sender takes (RFC 9293, section 3.7.1).
    pub mss: Option<u16>,
    /// Shift of the sender's windows (RFC 7323, section 2).
    pub window_scale: Option<u8>,
    /// The sender understands selective acknowledgements (RFC 2018, section 2).
    pub sack_permitted: bool,
    /// Clocks.
    pub timestamps: Option<Timestamps>,
    /// Stretches that the sender has received beyond the acknowledgement number.
    pub sack: SackBlocks,
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Port of the sender.
    pub source: u16,
    /// Port of the receiver.
    pub destination: u16,
    /// Number of the first byte, or of the SYN.
    pub seq: Seq,
    /// Next number that the sender expects.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window, not scaled yet.
    pub window: u16,
    /// Distance from `seq` to the byte behind the urgent one.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

/// A segment that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Header of the segment.
    pub header: Header,
    /// Bytes behind the header.
    pub payload: &'a [u8],
}

/// The reason why bytes are no segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than its header.
    Short,
    /// The header's length is less than a header's or more than the segment's.
    HeaderLength,
    /// An option has an impossible length.
    Option,
    /// The checksum is another.
    Checksum,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let part = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(part.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let part = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(part.try_into().ok()?))
}

/// Length of an option with so many blocks, with its padding.
pub fn blocks_length(count: usize) -> usize {
    4 + 8 * count
}

impl Options {
    /// Parses what stands between the header and the payload.
    ///
    /// # Errors
    /// [`Malformed::Option`].
    pub fn parse(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        while let Some(&kind) = bytes.first() {
            match kind {
                END => break,
                NOP => bytes = &bytes[1..],
                _ => {
                    let length = usize::from(*bytes.get(1).ok_or(Malformed::Option)?);
                    if length < 2 {
                        return Err(Malformed::Option);
                    }
                    let body = bytes.get(2..length).ok_or(Malformed::Option)?;
                    options.take(kind, body);
                    bytes = &bytes[length..];
                }
            }
        }
        Ok(options)
    }

    /// Takes an option over. One of a length that its kind does not have is as if not there.
    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body.len()) {
            (MSS, 2) => self.mss = half(body, 0),
            // RFC 7323, section 2.3: a larger shift is taken as the largest.
            (WINDOW_SCALE, 1) => self.window_scale = Some(body[0].min(LARGEST_SHIFT)),
            (SACK_PERMITTED, 0) => self.sack_permitted = true,
            (SACK, length) if length % 8 == 0 => {
                self.sack = SackBlocks::default();
                for block in body.chunks_exact(8) {
                    if let (Some(left), Some(right)) = (word(block, 0), word(block, 4)) {
                        self.sack.push((Seq(left), Seq(right)));
                    }
                }
            }
            (TIMESTAMP, 8) => {
                if let (Some(value), Some(echo)) = (word(body, 0), word(body, 4)) {
                    self.timestamps = Some(Timestamps { value, echo });
                }
            }
            _ => {}
        }
    }

    /// Length of these options in a segment, with padding: a multiple of four.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mss.map_or(0, |_| 4)
            + self.window_scale.map_or(0, |_| 4)
            + self.timestamps.map_or(0, |_| TIMESTAMPS)
            + if self.sack_permitted { 4 } else { 0 }
            + match self.sack.as_slice().len() {
                0 => 0,
                blocks => blocks_length(blocks),
            }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of SACK blocks that fit beside the other options.
    #[must_use]
    pub fn room_for_blocks(&self) -> usize {
        let others = Self {
            sack: SackBlocks::default(),
            ..*self
        };
        (LONGEST_HEADER - HEADER).saturating_sub(others.len() + 4) / 8
    }

    fn emit(&self, out: &mut Writer<'_>) {
        if let Some(mss) = self.mss {
            out.put(&[MSS, 4]);
            out.put(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            out.put(&[NOP, WINDOW_SCALE, 3, shift]);
        }
        if self.sack_permitted {
            out.put(&[NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            out.put(&[NOP, NOP, TIMESTAMP, 10]);
            out.put(&value.to_be_bytes());
            out.put(&echo.to_be_bytes());
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            out.put(&[NOP, NOP, SACK, 2 + 8 * self.sack.count]);
            for (left, right) in blocks {
                out.put(&left.0.to_be_bytes());
                out.put(&right.0.to_be_bytes());
            }
        }
    }
}

/// Bytes being filled from the front.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, part: &[u8]) {
        self.bytes[self.at..self.at + part.len()].copy_from_slice(part);
        self.at += part.len();
    }
}

impl Header {
    /// Length of the header with its options.
    #[must_use]
    pub fn length(&self) -> usize {
        HEADER + self.options.len()
    }

    /// Writes the header to the beginning of `bytes`, with a checksum of zero. Returns its length,
    /// or `None` if the options do not fit a header or the header does not fit `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) -> Option<usize> {
        let length = self.length();
        if length > LONGEST_HEADER || length > bytes.len() {
            return None;
        }
        let mut out = Writer { bytes, at: 0 };
        out.put(&self.source.to_be_bytes());
        out.put(&self.destination.to_be_bytes());
        out.put(&self.seq.0.to_be_bytes());
        out.put(&self.ack.0.to_be_bytes());
        out.put(&[((length / 4) as u8) << 4, self.flags.bits()]);
        out.put(&self.window.to_be_bytes());
        out.put(&[0, 0]);
        out.put(&self.urgent.to_be_bytes());
        self.options.emit(&mut out);
        Some(length)
    }
}

impl<'a> Segment<'a> {
    /// Parses a segment, whose checksum is not looked at.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let fixed = bytes.get(..HEADER).ok_or(Malformed::Short)?;
        let length = usize::from(fixed[12] >> 4) * 4;
        let options = bytes.get(HEADER..length).ok_or(Malformed::HeaderLength)?;
        let half = |at| half(fixed, at).ok_or(Malformed::Short);
        let word = |at| word(fixed, at).ok_or(Malformed::Short);
        Ok(Self {
            header: Header {
                source: half(0)?,
                destination: half(2)?,
                seq: Seq(word(4)?),
                ack: Seq(word(8)?),
                flags: Flags::from_bits_retain(fixed[13]),
                window: half(14)?,
                urgent: half(18)?,
                options: Options::parse(options)?,
            },
            payload: &bytes[length..],
        })
    }

    /// Parses a segment that came from `source` to `destination`, and verifies its checksum (RFC
    /// 9293, section 3.1: MUST-3).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(source: IpAddr, destination: IpAddr, bytes: &'a [u8]) -> Result<Self, Malformed> {
        if checksum(source, destination, bytes) != 0 {
            return Err(Malformed::Checksum);
        }
        Self::parse(bytes)
    }

    /// Numbers that the segment takes: its bytes, its SYN and its FIN (SEG.LEN).
    #[must_use]
    pub fn len(&self) -> u32 {
        let controls = self.header.flags & (Flags::SYN | Flags::FIN);
        self.payload.len() as u32 + controls.bits().count_ones()
    }

    /// Whether it takes no number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Answer to a segment that belongs to no connection (RFC 9293, section 3.10.7.1): a reset,
    /// none to a reset.
    #[must_use]
    pub fn refusal(&self) -> Option<Header> {
        let header = &self.header;
        if header.flags.contains(Flags::RST) {
            return None;
        }
        let (seq, ack, flags) = if header.flags.contains(Flags::ACK) {
            (header.ack, Seq(0), Flags::RST)
        } else {
            (Seq(0), header.seq.plus(self.len()), Flags::RST | Flags::ACK)
        };
        Some(Header {
            source: header.destination,
            destination: header.source,
            seq,
            ack,
            flags,
            ..Header::default()
        })
    }
}

/// The checksum over the pseudo header and the segment (RFC 9293, section 3.1; RFC 8200, section
/// 8.1). Of a segment with its checksum it is zero.
#[must_use]
pub fn checksum(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u16 {
    let wide = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let length = segment.len();
    let mut sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Checksum::pseudo_header(source, destination, PROTOCOL, length)
        }
        (source, destination) => {
            Checksum::pseudo_header_v6(wide(source), wide(destination), PROTOCOL, length)
        }
    };
    sum.add(segment);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn options() -> impl Strategy<Value = Options> {
        (
            proptest::option::of(any::<u16>()),
            proptest::option::of(0..=LARGEST_SHIFT),
            any::<bool>(),
            proptest::option::of(any::<(u32, u32)>()),
            proptest::collection::vec(any::<(u32, u32)>(), 0..5),
        )
            .prop_map(|(mss, window_scale, sack_permitted, clocks, blocks)| {
                let mut options = Options {
                    mss,
                    window_scale,
                    sack_permitted,
                    timestamps: clocks.map(|(value, echo)| Timestamps { value, echo }),
                    sack: SackBlocks::default(),
                };
                let room = options.room_for_blocks();
                for (left, right) in blocks {
                    options.sack.push((Seq(left), Seq(right)));
                }
                options.sack.truncate(room);
                options
            })
    }

    proptest! {
        /// RFC 9293, section 3.1: what is emitted is parsed.
        #[test]
        fn headers_come_back(
            options in options(),
            numbers in any::<(u16, u16, u32, u32, u8, u16, u16)>(),
            payload in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let (source, destination, seq, ack, flags, window, urgent) = numbers;
            let header = Header {
                source, destination, seq: Seq(seq), ack: Seq(ack),
                flags: Flags::from_bits_retain(flags), window, urgent, options,
            };
            let mut bytes = [0; 120];
            let length = header.emit(&mut bytes).unwrap();
            prop_assert_eq!(length, header.length());
            bytes[length..length + payload.len()].copy_from_slice(&payload);
            let segment = Segment::parse(&bytes[..length + payload.len()]).unwrap();
            prop_assert_eq!(segment.header, header);
            prop_assert_eq!(segment.payload, &payload[..]);
        }

        /// RFC 9293, section 3.1: MUST-7, malformed options.
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(segment) = Segment::parse(&bytes) {
                prop_assert!(segment.payload.len() + HEADER <= bytes.len());
                prop_assert!(segment.header.length() <= LONGEST_HEADER + 16);
            }
        }

        #[test]
        fn a_flipped_bit_is_noticed(
            mut bytes in proptest::collection::vec(any::<u8>(), 20..60),
            place in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let (from, to) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            bytes[16..18].fill(0);
            let sum = checksum(from, to, &bytes).to_be_bytes();
            bytes[16..18].copy_from_slice(&sum);
            prop_assert_eq!(checksum(from, to, &bytes), 0);
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            prop_assert_eq!(Segment::verify(from, to, &bytes), Err(Malformed::Checksum));
        }
    }

    #[test]
    fn an_option_of_an_impossible_length_is_refused() {
        for wrong in [&[MSS][..], &[MSS, 1, 0, 0], &[MSS, 5, 0, 0], &[200, 0]] {
            assert_eq!(Options::parse(wrong), Err(Malformed::Option), "{wrong:?}");
        }
        let unknown: Vec<u8> = [&[200, 4, 1, 2][..], &[NOP, MSS, 4, 5, 0xb4, END, 77]].concat();
        assert_eq!(Options::parse(&unknown).unwrap().mss, Some(1460));
    }
}
