//! Messages (RFC 1035, 4.1): a query, and what is answered.

use core::net::Ipv4Addr;

use crate::Zone;
use crate::name::{LONGEST, Name};

/// Bytes of a header.
const HEADER: usize = 12;
/// Bytes of a question behind its name: type and class.
const QUESTION_END: usize = 4;
/// Bytes of a record between its name and its data: type, class, time to live, length.
const RECORD_MIDDLE: usize = 10;
/// Bytes of the record of EDNS (RFC 6891, 6.1.2), without options.
const OPT: usize = 11;
/// Bytes of a reply, at most: header, question, a record with a name in it, EDNS.
pub const REPLY_ROOM: usize = HEADER + LONGEST + QUESTION_END + 2 + RECORD_MIDDLE + LONGEST + OPT;

/// Time for which an answer may be kept, in seconds. The address of who ends is given to the next
/// one at once, and asking costs microseconds: none.
const TIME_TO_LIVE: u32 = 0;
/// Bytes of a datagram that we take (RFC 9715: what passes everywhere in one piece).
const OWN_PAYLOAD: u16 = 1232;

/// Bits of the third byte of a header: an answer, its operation, by the authority, with recursion.
const IS_ANSWER: u8 = 0x80;
const OPERATION: u8 = 0x78;
const BY_AUTHORITY: u8 = 0x04;
const WANTS_RECURSION: u8 = 0x01;

/// Types of records.
const A: u16 = 1;
const PTR: u16 = 12;
const OPT_TYPE: u16 = 41;
const ANY: u16 = 255;
/// The class of the Internet.
const INTERNET: u16 = 1;
/// A name that refers to that of the question.
const SAME_NAME: [u8; 2] = [0xc0, HEADER as u8];

/// A query that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// Outcomes of queries (RFC 1035, 4.1.1; RFC 6891, 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
enum Outcome {
    Good = 0,
    BadFormat = 1,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    BadVersion = 16,
}

/// A question, and whether its sender understands EDNS, and of what version.
struct Question<'a> {
    name: Name,
    kind: u16,
    class: u16,
    /// The bytes of it, which the answer repeats.
    bytes: &'a [u8],
    edns: Option<u8>,
}

/// A record of the question's name.
struct Record {
    kind: u16,
    data: [u8; LONGEST],
    len: usize,
}

impl Record {
    fn address(address: Ipv4Addr) -> Self {
        let mut data = [0; LONGEST];
        data[..4].copy_from_slice(&address.octets());
        Self {
            kind: A,
            data,
            len: 4,
        }
    }

    fn name(name: &Name) -> Option<Self> {
        let mut data = [0; LONGEST];
        let len = name.write(&mut data)?;
        Some(Self {
            kind: PTR,
            data,
            len,
        })
    }
}

/// A message that answers a query.
#[derive(Clone, Debug)]
pub struct Reply {
    bytes: [u8; REPLY_ROOM],
    len: usize,
}

impl Reply {
    /// The bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        // There is room for the longest: the constants above.
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

impl<'a> Question<'a> {
    /// Reads the one question of a query with a header.
    fn read(query: &'a [u8]) -> Result<Self, Malformed> {
        let count = |at| word(query, at).ok_or(Malformed);
        if count(4)? != 1 {
            return Err(Malformed);
        }
        let rest = query.get(HEADER..).ok_or(Malformed)?;
        let (name, length) = Name::read(rest)?;
        let end = length + QUESTION_END;
        let bytes = rest.get(..end).ok_or(Malformed)?;
        // That of EDNS is the only record that a query has, or the first of those behind.
        let extra = &rest[end..];
        let may_have_edns = (count(6)?, count(8)?) == (0, 0) && count(10)? > 0;
        let is_edns = may_have_edns
            && extra.len() >= OPT
            && extra[0] == 0
            && word(extra, 1) == Some(OPT_TYPE);
        Ok(Self {
            name,
            kind: word(bytes, length).ok_or(Malformed)?,
            class: word(bytes, length + 2).ok_or(Malformed)?,
            bytes,
            edns: is_edns.then(|| extra[6]),
        })
    }

    /// Outcome of the question, and the record that answers it.
    fn outcome(&self, zone: &impl Zone) -> (Outcome, Option<Record>) {
        if self.edns.is_some_and(|version| version != 0) {
            return (Outcome::BadVersion, None);
        }
        if ![INTERNET, ANY].contains(&self.class) {
            return (Outcome::Refused, None);
        }
        let asks_for = |kind: u16| [kind, ANY].contains(&self.kind);
        match self.name.reverse() {
            Some(address) if zone.contains(address) => match zone.name_of(address) {
                None => (Outcome::NoSuchName, None),
                Some(name) => {
                    let record = Record::name(&name);
                    (Outcome::Good, record.filter(|_| asks_for(PTR)))
                }
            },
            Some(_) => (Outcome::Refused, None),
            None => match zone.address_of(&self.name) {
                None => (Outcome::Refused, None),
                Some(address) => {
                    let record = Record::address(address);
                    (Outcome::Good, asks_for(A).then_some(record))
                }
            },
        }
    }
}

/// Answers a query; `None` if the bytes are none, and nobody waits for an answer to them.
///
/// * A name of the zone has its address (A), and nothing of any other type: an empty answer, by
///   which a resolver knows that there is no other address.
/// * An address of the zone has its owner's name (PTR); one without a name is said not to exist.
/// * Everything else is refused.
#[must_use]
pub fn answer(query: &[u8], zone: &impl Zone) -> Option<Reply> {
    let header = query.first_chunk::<HEADER>()?;
    if header[2] & IS_ANSWER != 0 {
        return None;
    }
    let question = match header[2] & OPERATION {
        0 => Question::read(query).map_err(|Malformed| Outcome::BadFormat),
        _ => Err(Outcome::NotImplemented),
    };
    let (outcome, record) = match &question {
        Ok(question) => question.outcome(zone),
        Err(outcome) => (*outcome, None),
    };
    let edns = question
        .as_ref()
        .is_ok_and(|question| question.edns.is_some());
    let mut flags = IS_ANSWER | header[2] & (OPERATION | WANTS_RECURSION);
    // Without it an empty answer is taken for that of a server that knows nothing.
    if matches!(outcome, Outcome::Good | Outcome::NoSuchName) {
        flags |= BY_AUTHORITY;
    }
    let outcome = outcome as u16;
    let mut reply = Reply {
        bytes: [0; REPLY_ROOM],
        len: 0,
    };
    reply.put(&header[..2]);
    reply.put(&[flags, outcome as u8 & 0xf]);
    let counts = [question.is_ok(), record.is_some(), false, edns];
    for count in counts {
        reply.put(&u16::from(count).to_be_bytes());
    }
    if let Ok(question) = &question {
        reply.put(question.bytes);
    }
    if let Some(record) = record {
        reply.record(record.kind, &record.data[..record.len]);
    }
    if edns {
        let [high, low] = OWN_PAYLOAD.to_be_bytes();
        reply.put(&[0, 0, OPT_TYPE as u8, high, low, (outcome >> 4) as u8]);
        reply.put(&[0; 5]);
    }
    Some(reply)
}

impl Reply {
    /// Adds a record of the question's name.
    fn record(&mut self, kind: u16, data: &[u8]) {
        self.put(&SAME_NAME);
        self.put(&kind.to_be_bytes());
        self.put(&INTERNET.to_be_bytes());
        self.put(&TIME_TO_LIVE.to_be_bytes());
        self.put(&(data.len() as u16).to_be_bytes());
        self.put(data);
    }
}
