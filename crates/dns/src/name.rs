//! Names, as they are in messages and as people write them (RFC 1035, 3.1).

use core::fmt;
use core::net::Ipv4Addr;

use crate::message::Malformed;

/// Bytes of a name in a message, at most.
pub(crate) const LONGEST: usize = 255;
/// Bytes of a name as people write it, at most: with the length of its first label, and without the
/// empty one at its end, it is that long.
const LONGEST_TEXT: usize = LONGEST - 2;
/// Bytes of a label, at most.
const LONGEST_LABEL: usize = 63;
/// Labels behind those of an address in the name that asks for its owner (RFC 1035, 3.5).
const REVERSE: [&[u8]; 2] = [b"in-addr", b"arpa"];

/// A name: labels with dots between, without one at the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; LONGEST_TEXT],
    len: u8,
    /// A label holds a dot of its own, so that the name is not what it looks like.
    is_odd: bool,
}

impl Name {
    const EMPTY: Self = Self {
        bytes: [0; LONGEST_TEXT],
        len: 0,
        is_odd: false,
    };

    /// The name that a text writes; `None` of one that has no form in a message: a label in it is
    /// empty or longer than 63 bytes, or all of it too long.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut name = Self::EMPTY;
        for label in text.split('.') {
            if label.is_empty() || label.len() > LONGEST_LABEL {
                return None;
            }
            name.push(label.as_bytes())?;
        }
        Some(name)
    }

    /// Adds a label; `None` if there is no room: the name is too long then.
    fn push(&mut self, label: &[u8]) -> Option<()> {
        let at = usize::from(self.len);
        let start = if at == 0 { 0 } else { at + 1 };
        let end = start + label.len();
        let room = self.bytes.get_mut(at..end)?;
        if at > 0 {
            room[0] = b'.';
        }
        room[start - at..].copy_from_slice(label);
        self.len = end as u8;
        self.is_odd |= label.contains(&b'.');
        Some(())
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.as_bytes().split(|byte| *byte == b'.')
    }

    /// Whether this is the name that a text writes; letters of both cases are the same (RFC 4343).
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        !self.is_odd && self.as_bytes().eq_ignore_ascii_case(text.as_bytes())
    }

    /// Reads the name at the start of `bytes`. Returns it, and how many bytes it takes.
    ///
    /// # Errors
    /// It is cut short, too long, or refers to another place of the message, which a question has
    /// nothing before itself to refer to.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let mut name = Self::EMPTY;
        let mut rest = bytes;
        loop {
            let (length, behind) = rest.split_first().ok_or(Malformed)?;
            let length = usize::from(*length);
            if length == 0 {
                return Ok((name, bytes.len() - behind.len()));
            }
            if length > LONGEST_LABEL {
                return Err(Malformed);
            }
            let (label, behind) = behind.split_at_checked(length).ok_or(Malformed)?;
            name.push(label).ok_or(Malformed)?;
            rest = behind;
        }
    }

    /// Writes the name as it is in messages. Returns how many bytes it takes; `None` if there is no
    /// room.
    pub(crate) fn write(&self, to: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        for label in self.labels() {
            let room = to.get_mut(at..=at + label.len())?;
            room[0] = label.len() as u8;
            room[1..].copy_from_slice(label);
            at += room.len();
        }
        *to.get_mut(at)? = 0;
        Some(at + 1)
    }

    /// The address whose owner the name asks for; `None` if it is no such name.
    pub(crate) fn reverse(&self) -> Option<Ipv4Addr> {
        let mut labels = self.labels();
        let mut octets = [0; 4];
        for octet in octets.iter_mut().rev() {
            *octet = decimal(labels.next()?)?;
        }
        let is_reverse = REVERSE.iter().all(|own| {
            labels
                .next()
                .is_some_and(|label| label.eq_ignore_ascii_case(own))
        });
        let is_one = is_reverse && labels.next().is_none() && !self.is_odd;
        is_one.then(|| Ipv4Addr::from_octets(octets))
    }
}

/// A number of at most 255, in the only way to write it.
fn decimal(label: &[u8]) -> Option<u8> {
    let text = core::str::from_utf8(label).ok()?;
    let has_only_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    (has_only_digits && is_short).then(|| text.parse().ok())?
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}
