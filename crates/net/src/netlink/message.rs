//! Messages of netlink: requests and replies (`netlink(7)`).

use alloc::vec::Vec;

pub(super) const NLMSG_HDRLEN: usize = 16;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;

pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_MULTI: u16 = 2;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;

/// The header of a request.
#[derive(Clone, Copy)]
pub(super) struct NlmsgHeader {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
}

/// Messages on their way to a program.
pub(super) struct Reply {
    pub(super) bytes: Vec<u8>,
    /// Whether there was no memory for a message; the whole reply is an error then.
    pub(super) lacks_memory: bool,
    pub(super) request: NlmsgHeader,
    pub(super) port_id: u32,
}

impl Reply {
    pub(super) const fn new(request: NlmsgHeader, port_id: u32) -> Self {
        Self {
            bytes: Vec::new(),
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
        let start = self.bytes.len();
        // Each attribute has a header, and may need padding, as the message does.
        let attributes_len = attributes.iter().map(|(_, value)| value.len() + 8);
        let most = NLMSG_HDRLEN + fixed.len() + attributes_len.sum::<usize>() + 8;
        if self.lacks_memory || self.bytes.try_reserve(most).is_err() {
            self.lacks_memory = true;
            return;
        }
        self.bytes.extend_from_slice(&[0; NLMSG_HDRLEN]);
        self.bytes.extend_from_slice(fixed);
        for (kind, value) in attributes {
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
            self.bytes
                .extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            self.bytes.extend_from_slice(&kind.to_ne_bytes());
            self.bytes.extend_from_slice(value);
        }
        // The last one's padding belongs to the message: Go's parser relies on it.
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let len = (self.bytes.len() - start) as u32;
        let header = &mut self.bytes[start..start + NLMSG_HDRLEN];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&self.request.sequence.to_ne_bytes());
        header[12..].copy_from_slice(&self.port_id.to_ne_bytes());
    }

    pub(super) fn push_done(&mut self) {
        self.push_message(NLMSG_DONE, NLM_F_MULTI, &0u32.to_ne_bytes(), &[]);
    }

    /// An acknowledgement, or that there is an error, with the request's header.
    pub(super) fn push_ack(&mut self, error: i32, header: &[u8]) {
        let fixed = [&(-error).to_ne_bytes()[..], header].concat();
        self.push_message(NLMSG_ERROR, 0, &fixed, &[]);
    }
}
