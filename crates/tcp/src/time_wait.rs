//! A connection that waits for late segments, as a small record (RFC 9293, section 3.4.2; RFC
//! 6191; RFC 1337).

use crate::segment::{Flags, Header, Options, Segment, Timestamps};
use crate::seq::Seq;
use crate::{MILLISECOND, Nanos, SECOND};

/// Distance from the last number of a connection to the first of one that follows it: whatever is
/// under way of the old one is not in the new one's window, as long as that is not scaled.
const APART: u32 = 0xffff + 2;
/// Least time between two answers to segments without data or controls (Linux
/// `tcp_invalid_ratelimit`).
pub(crate) const ANSWER_INTERVAL: Nanos = 500 * MILLISECOND;

/// The fate of a segment that belongs to a waiting connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing.
    Drop,
    /// A segment answers it.
    Answer(Header),
    /// A new connection begins: the record is over, and the listener is asked. The
    /// new connection begins at least at this number.
    Reopen(Seq),
}

/// The memory of a connection that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeWait {
    pub(crate) ports: (u16, u16),
    pub(crate) snd_nxt: Seq,
    pub(crate) rcv_nxt: Seq,
    pub(crate) recent: Option<(u32, Nanos)>,
    pub(crate) clock_offset: u32,
    pub(crate) span: Nanos,
    pub(crate) until: Nanos,
    /// When a segment without data or controls was answered last.
    pub(crate) answered: Option<Nanos>,
}

impl TimeWait {
    /// When the record is over.
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.until
    }

    /// The first number of a connection that this end may begin although it waits
    /// (`tcp_tw_reuse`): if both ends have clocks, which tell the new one's segments from late ones
    /// (RFC 6191, section 2), and a second has passed since the peer's was seen.
    #[must_use]
    pub fn follow(&self, now: Nanos) -> Option<Seq> {
        let (_, seen) = self.recent?;
        (now.saturating_sub(seen) > SECOND).then(|| self.snd_nxt.plus(APART))
    }

    /// Takes a segment.
    pub fn arrive(&mut self, now: Nanos, segment: &Segment<'_>) -> Verdict {
        let header = &segment.header;
        let clock = header.options.timestamps.map(|clock| Seq(clock.value));
        let recent = self.recent.map(|(recent, _)| Seq(recent));
        // RFC 1337: a reset does not end the wait.
        if header.flags.contains(Flags::RST) {
            return Verdict::Drop;
        }
        if header.flags & (Flags::SYN | Flags::ACK) == Flags::SYN {
            // RFC 6191, section 2: later by the clock, or by its number.
            let later = match (recent, clock) {
                (Some(recent), Some(clock)) if recent != clock => recent.before(clock),
                _ => self.rcv_nxt.before(header.seq),
            };
            if later {
                return Verdict::Reopen(self.snd_nxt.plus(APART));
            }
        }
        if segment.is_empty() && header.seq == self.rcv_nxt {
            return Verdict::Drop;
        }
        if segment.is_empty() {
            if self
                .answered
                .is_some_and(|last| now.saturating_sub(last) < ANSWER_INTERVAL)
            {
                return Verdict::Drop;
            }
            self.answered = Some(now);
        }
        if header.flags.contains(Flags::FIN) && header.seq.plus(segment.len()) == self.rcv_nxt {
            // The acknowledgement of the FIN was lost (RFC 9293, section 3.10.7.4).
            self.until = now + self.span;
        }
        Verdict::Answer(Header {
            source: self.ports.0,
            destination: self.ports.1,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            options: Options {
                timestamps: self.recent.map(|(recent, _)| Timestamps {
                    value: ((now / MILLISECOND) as u32).wrapping_add(self.clock_offset),
                    echo: recent,
                }),
                ..Options::default()
            },
            ..Header::default()
        })
    }
}
