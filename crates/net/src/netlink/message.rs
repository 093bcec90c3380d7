//! Messages of netlink: requests and replies (`netlink(7)`).

use alloc::vec::Vec;

pub(super) const NLMSG_HDRLEN: usize = 16;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;

pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_MULTI: u16 = 2;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;

/// Bytes of a list that a program gets at once. Linux's lists come so as well, by default
/// (`NLMSG_GOODSIZE`: a page without the buffer's description), and programs read them into buffers
/// of a page or a few.
const LIST_PART: usize = 3776;

/// The header of a request.
#[derive(Clone, Copy)]
pub(super) struct NlmsgHeader {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
}

/// Messages on their way to a program.
pub(super) struct Reply {
    /// Datagrams of whole messages; those of a list have [`LIST_PART`] bytes at most.
    pub(super) datagrams: Vec<Vec<u8>>,
    /// Whether there was no memory for a message; the whole reply is an error then.
    pub(super) lacks_memory: bool,
    pub(super) request: NlmsgHeader,
    pub(super) port_id: u32,
}

/// Adds an attribute. Padding follows it, which belongs to whatever it is in.
pub(super) fn push_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

impl Reply {
    pub(super) const fn new(request: NlmsgHeader, port_id: u32) -> Self {
        Self {
            datagrams: Vec::new(),
            lacks_memory: false,
            request,
            port_id,
        }
    }

    /// Adds a message: a fixed part, and attributes, each at a multiple of four. There may be as
    /// many as there are sockets.
    pub(super) fn push_message(
        &mut self,
        kind: u16,
        flags: u16,
        fixed: &[u8],
        attributes: &[(u16, &[u8])],
    ) {
        let (sequence, port_id) = (self.request.sequence, self.port_id);
        // Each attribute has a header, and may need padding, as the message does.
        let attributes_len = attributes.iter().map(|(_, value)| value.len() + 8);
        let most = NLMSG_HDRLEN + fixed.len() + attributes_len.sum::<usize>() + 8;
        let Some(bytes) = self.room_for(most, flags & NLM_F_MULTI != 0) else {
            self.lacks_memory = true;
            return;
        };
        let start = bytes.len();
        bytes.extend_from_slice(&[0; NLMSG_HDRLEN]);
        bytes.extend_from_slice(fixed);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        for (kind, value) in attributes {
            push_attribute(bytes, *kind, value);
        }
        // With the last one's padding: Go's parser relies on it.
        let len = (bytes.len() - start) as u32;
        let header = &mut bytes[start..start + NLMSG_HDRLEN];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        header[12..].copy_from_slice(&port_id.to_ne_bytes());
    }

    /// The datagram that a message of `most` bytes goes to, with room for it: the last one, or, if
    /// that part of a list is full, a new one. `None` if memory is short now or was.
    fn room_for(&mut self, most: usize, listed: bool) -> Option<&mut Vec<u8>> {
        let fits = |last: &Vec<u8>| !listed || last.is_empty() || last.len() + most <= LIST_PART;
        if self.lacks_memory || !self.datagrams.last().is_some_and(fits) && !self.begin_datagram() {
            return None;
        }
        let datagram = self.datagrams.last_mut()?;
        datagram.try_reserve(most).is_ok().then_some(datagram)
    }

    /// Lets the next message begin a datagram; `false` if memory is short.
    fn begin_datagram(&mut self) -> bool {
        let has_room = self.datagrams.try_reserve(1).is_ok();
        if has_room {
            self.datagrams.push(Vec::new());
        }
        has_room
    }

    /// Adds the end of a list, in a datagram of its own, as Linux does.
    pub(super) fn push_done(&mut self) {
        self.lacks_memory |= !self.begin_datagram();
        self.push_message(NLMSG_DONE, NLM_F_MULTI, &0u32.to_ne_bytes(), &[]);
    }

    /// An acknowledgement, or that there is an error, with the request's header.
    pub(super) fn push_ack(&mut self, error: i32, header: &[u8]) {
        let fixed = [&(-error).to_ne_bytes()[..], header].concat();
        self.push_message(NLMSG_ERROR, 0, &fixed, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_in_parts_of_whole_messages() {
        let request = NlmsgHeader {
            kind: 18,
            flags: NLM_F_DUMP,
            sequence: 1,
        };
        let mut reply = Reply::new(request, 1);
        for number in 0..100u32 {
            let fixed = [number.to_ne_bytes(); 25].concat();
            reply.push_message(16, NLM_F_MULTI, &fixed, &[(1, &[0; 5])]);
        }
        // One that is longer than a part comes by itself.
        reply.push_message(16, NLM_F_MULTI, &[0; LIST_PART], &[]);
        reply.push_done();
        let (parts, ends) = reply.datagrams.split_at(reply.datagrams.len() - 2);
        let mut numbers = Vec::new();
        for part in parts {
            assert!(part.len() <= LIST_PART);
            let mut rest = &part[..];
            while let [l0, l1, l2, l3, ..] = rest {
                let (message, after) =
                    rest.split_at(u32::from_ne_bytes([*l0, *l1, *l2, *l3]) as usize);
                numbers.push(u32::from(message[NLMSG_HDRLEN]));
                rest = after;
            }
        }
        assert!(numbers.into_iter().eq(0..100));
        assert!(parts.len() > 1 && parts[0].len() > LIST_PART - 128);
        assert_eq!(ends[0].len(), NLMSG_HDRLEN + LIST_PART);
        assert_eq!(ends[1].len(), NLMSG_HDRLEN + 4);
    }

    #[test]
    fn what_is_no_list_comes_at_once() {
        let request = NlmsgHeader {
            kind: 18,
            flags: 0,
            sequence: 1,
        };
        let mut reply = Reply::new(request, 1);
        (0..3).for_each(|_| reply.push_message(16, 0, &[0; LIST_PART], &[]));
        assert_eq!(reply.datagrams.len(), 1);
    }
}
