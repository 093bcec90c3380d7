//! Counts of packets of IP and messages of ICMP over interfaces, by the names of RFC 4293 and
//! Linux' `/proc/net/snmp`.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::Ipv6Addr;
use core::sync::atomic::{AtomicU64, Ordering};

use ip::icmp;
use ip::icmp::kind;

use super::state::Class;

/// Declares counters: a name each, as Linux writes it.
macro_rules! counters {
    ($(#[$outer:meta])* $all:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum $all {
            $($(#[$doc])* $name,)*
        }

        impl $all {
            const ALL: [(Self, &str); [$(Self::$name),*].len()] =
                [$((Self::$name, stringify!($name))),*];
        }
    };
}

counters! {
    /// A counter of IP.
    Counter {
        /// Packets that have come in.
        InReceives,
        /// Packets that were malformed, or had made too many hops.
        InHdrErrors,
        /// Packets for another host, while none are passed on.
        InAddrErrors,
        /// Packets that were passed on.
        ForwDatagrams,
        /// Packets of protocols that nobody listens to.
        InUnknownProtos,
        /// Packets that were lost for want of room.
        InDiscards,
        /// Packets that were given to their protocol.
        InDelivers,
        /// Packets of this host's.
        OutRequests,
        /// Packets of this host's that were lost for want of room.
        OutDiscards,
        /// Datagrams whose fragments did not all come in time.
        ReasmTimeout,
        /// Fragments that have come in.
        ReasmReqds,
        /// Datagrams that became whole.
        ReasmOKs,
        /// Fragments that were lost.
        ReasmFails,
        /// Packets that were cut.
        FragOKs,
        /// Packets that had to be cut and must not be.
        FragFails,
        /// Fragments that were made.
        FragCreates,
        /// Bytes of packets that have come in, from here on names of `IpExt`.
        InOctets,
        /// Bytes of packets of this host's.
        OutOctets,
        /// Packets to groups that have come in.
        InMcastPkts,
        /// Bytes of these.
        InMcastOctets,
        /// Packets to everybody that have come in.
        InBcastPkts,
        /// Bytes of these.
        InBcastOctets,
        /// Packets to groups of this host's.
        OutMcastPkts,
        /// Bytes of these.
        OutMcastOctets,
        /// Packets to everybody of this host's.
        OutBcastPkts,
        /// Bytes of these.
        OutBcastOctets,
        /// Packets that have come in from senders without ECN (RFC 3168).
        InNoECTPkts,
        /// Packets that have come in with the code point ECT(1).
        InECT1Pkts,
        /// Packets that have come in with the code point ECT(0).
        InECT0Pkts,
        /// Packets that have come in and have met congestion.
        InCEPkts,
    }
}

counters! {
    /// A counter of IPv6.
    Counter6 {
        /// Packets that have come in.
        InReceives,
        /// Packets that were malformed, or had made too many hops.
        InHdrErrors,
        /// Packets that were too long to be passed on.
        InTooBigErrors,
        /// Packets that there is no route for, to be passed on by.
        InNoRoutes,
        /// Packets for another host, while none are passed on.
        InAddrErrors,
        /// Packets of protocols that nobody listens to.
        InUnknownProtos,
        /// Packets that may not be believed, or were lost for want of room.
        InDiscards,
        /// Packets that were given to their protocol.
        InDelivers,
        /// Packets that were passed on.
        OutForwDatagrams,
        /// Packets of this host's.
        OutRequests,
        /// Packets of this host's that were lost for want of room.
        OutDiscards,
        /// Datagrams whose fragments did not all come in time.
        ReasmTimeout,
        /// Fragments that have come in.
        ReasmReqds,
        /// Datagrams that became whole.
        ReasmOKs,
        /// Fragments that were lost.
        ReasmFails,
        /// Packets that were cut.
        FragOKs,
        /// Packets that had to be cut and must not be.
        FragFails,
        /// Fragments that were made.
        FragCreates,
        /// Packets to groups that have come in.
        InMcastPkts,
        /// Packets to groups of this host's.
        OutMcastPkts,
        /// Bytes of packets that have come in.
        InOctets,
        /// Bytes of packets of this host's.
        OutOctets,
    }
}

/// Messages of ICMP of one way, by what they are.
#[derive(Default)]
struct Messages {
    all: AtomicU64,
    errors: AtomicU64,
    wrong_checksums: AtomicU64,
    /// By kind; none above are counted by Linux.
    kinds: [AtomicU64; KINDS],
}

/// Kinds of messages that have counters.
const KINDS: usize = 19;

/// Counters.
#[derive(Default)]
pub(in crate::inet) struct PacketCounts {
    ip: [AtomicU64; Counter::ALL.len()],
    received: Messages,
    sent: Messages,
    pub(super) v6: PacketCounts6,
}

/// Kinds of messages of ICMPv6 that have counters: errors, and those from this one on.
const KINDS6: usize = ERRORS6 + 16;
const ERRORS6: usize = 5;
const FIRST_INFORMATION: usize = 128;

/// Messages of ICMPv6 of one way.
#[derive(Default)]
struct Messages6 {
    all: AtomicU64,
    errors: AtomicU64,
    wrong_checksums: AtomicU64,
    kinds: [AtomicU64; KINDS6],
}

/// Counters of IPv6.
#[derive(Default)]
pub(super) struct PacketCounts6 {
    ip: [AtomicU64; Counter6::ALL.len()],
    received: Messages6,
    sent: Messages6,
}

impl PacketCounts6 {
    pub(super) fn count(&self, counter: Counter6) {
        self.add(counter, 1);
    }

    fn add(&self, counter: Counter6, number: u64) {
        add(&self.ip[counter as usize], number);
    }

    /// A packet of so many bytes has come in.
    pub(super) fn receive(&self, bytes: usize) {
        self.count(Counter6::InReceives);
        self.add(Counter6::InOctets, bytes as u64);
    }

    /// This host sends a packet of so many bytes.
    pub(super) fn send(&self, to: Ipv6Addr, bytes: usize) {
        self.count(Counter6::OutRequests);
        self.add(Counter6::OutOctets, bytes as u64);
        if to.is_multicast() {
            self.count(Counter6::OutMcastPkts);
        }
    }

    /// A message of ICMPv6 has come in, whose checksum is right or not.
    pub(super) fn receive_icmp(&self, message: &[u8], is_whole: bool) {
        add(&self.received.all, 1);
        if is_whole {
            self.received.count_kind(message);
        } else {
            add(&self.received.errors, 1);
            add(&self.received.wrong_checksums, 1);
        }
    }

    /// A message of ICMPv6 is sent.
    pub(super) fn send_icmp(&self, message: &[u8]) {
        add(&self.sent.all, 1);
        self.sent.count_kind(message);
    }
}

impl Messages6 {
    fn count_kind(&self, message: &[u8]) {
        let place = message
            .first()
            .and_then(|kind| place_of_kind(usize::from(*kind)));
        if let Some(counter) = place.and_then(|place| self.kinds.get(place)) {
            add(counter, 1);
        }
    }

    fn value(&self, name: &str) -> u64 {
        let kind = match name {
            "Msgs" => return self.all.load(Ordering::Relaxed),
            "Errors" => return self.errors.load(Ordering::Relaxed),
            "CsumErrors" => return self.wrong_checksums.load(Ordering::Relaxed),
            name => KINDS6_NAMES.iter().find(|(known, _)| *known == name),
        };
        let place = kind.and_then(|(_, kind)| place_of_kind(*kind));
        let counter = place.and_then(|place| self.kinds.get(place));
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Kinds of messages of ICMPv6 by the names of Linux.
const KINDS6_NAMES: [(&str, usize); 14] = [
    ("DestUnreachs", 1),
    ("PktTooBigs", 2),
    ("TimeExcds", 3),
    ("ParmProblems", 4),
    ("Echos", 128),
    ("EchoReplies", 129),
    ("GroupMembQueries", 130),
    ("GroupMembResponses", 131),
    ("GroupMembReductions", 132),
    ("RouterSolicits", 133),
    ("RouterAdvertisements", 134),
    ("NeighborSolicits", 135),
    ("NeighborAdvertisements", 136),
    ("MLDv2Reports", 143),
];

fn place_of_kind(kind: usize) -> Option<usize> {
    match kind {
        0..ERRORS6 => Some(kind),
        FIRST_INFORMATION.. => Some(kind - FIRST_INFORMATION + ERRORS6),
        _ => None,
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl PacketCounts {
    pub(super) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(super) fn add(&self, counter: Counter, number: u64) {
        add(&self.ip[counter as usize], number);
    }

    /// A packet of so many bytes has come in.
    pub(super) fn receive(&self, bytes: usize) {
        self.count(Counter::InReceives);
        self.add(Counter::InOctets, bytes as u64);
    }

    /// The packet that has come in is whole, of which this is the type of service.
    pub(super) fn receive_ecn(&self, tos: u8) {
        self.count(match tos & 3 {
            0 => Counter::InNoECTPkts,
            1 => Counter::InECT1Pkts,
            2 => Counter::InECT0Pkts,
            _ => Counter::InCEPkts,
        });
    }

    /// The packet of so many bytes that has come in is for many.
    pub(super) fn receive_by_many(&self, class: Class, bytes: usize) {
        let (packets, octets) = match class {
            Class::Multicast => (Counter::InMcastPkts, Counter::InMcastOctets),
            Class::Broadcast => (Counter::InBcastPkts, Counter::InBcastOctets),
            Class::Own | Class::Other => return,
        };
        self.count(packets);
        self.add(octets, bytes as u64);
    }

    /// This host sends a packet of so many bytes.
    pub(super) fn send(&self, to: Class, bytes: usize) {
        self.count(Counter::OutRequests);
        self.add(Counter::OutOctets, bytes as u64);
        let (packets, octets) = match to {
            Class::Multicast => (Counter::OutMcastPkts, Counter::OutMcastOctets),
            Class::Broadcast => (Counter::OutBcastPkts, Counter::OutBcastOctets),
            Class::Own | Class::Other => return,
        };
        self.count(packets);
        self.add(octets, bytes as u64);
    }

    /// Writes the two lines of `/proc/net/snmp` that count messages by their kinds, of which those
    /// are named that there were.
    pub(in crate::inet) fn write_kinds(&self, text: &mut String) {
        let ways = [("InType", &self.received), ("OutType", &self.sent)];
        let mut seen = ways.map(|(way, messages)| {
            let kinds = messages.kinds.iter().enumerate();
            let counts = kinds.map(|(kind, count)| (kind, count.load(Ordering::Relaxed)));
            (
                way,
                counts.filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
            )
        });
        if seen.iter().all(|(_, kinds)| kinds.is_empty()) {
            return;
        }
        let _ = text.write_str("IcmpMsg:");
        for (way, kinds) in &seen {
            for (kind, _) in kinds {
                let _ = write!(text, " {way}{kind}");
            }
        }
        let _ = text.write_str("\nIcmpMsg:");
        for (_, count) in seen.iter_mut().flat_map(|(_, kinds)| kinds.drain(..)) {
            let _ = write!(text, " {count}");
        }
        text.push('\n');
    }

    /// A message of ICMP has come in.
    pub(super) fn receive_icmp(&self, message: &[u8]) {
        add(&self.received.all, 1);
        if ip::checksum(message) != 0 {
            add(&self.received.wrong_checksums, 1);
            add(&self.received.errors, 1);
        } else if message.len() < icmp::HEADER {
            add(&self.received.errors, 1);
        } else {
            self.received.count_kind(message);
        }
    }

    /// A message of ICMP is sent.
    pub(super) fn send_icmp(&self, message: &[u8]) {
        add(&self.sent.all, 1);
        self.sent.count_kind(message);
    }

    /// The value of a counter of `/proc/net/snmp6` by its name; 0 of one that does not count.
    pub(in crate::inet) fn value_v6(&self, name: &str) -> u64 {
        if let Some(name) = name.strip_prefix("Ip6") {
            let known = Counter6::ALL.iter().find(|(_, known)| *known == name);
            return known.map_or(0, |(counter, _)| {
                self.v6.ip[*counter as usize].load(Ordering::Relaxed)
            });
        }
        match (name.strip_prefix("Icmp6In"), name.strip_prefix("Icmp6Out")) {
            (Some(name), _) => self.v6.received.value(name),
            (_, Some(name)) => self.v6.sent.value(name),
            _ => 0,
        }
    }

    /// The value of a counter by its name; 0 of one that does not count.
    pub(in crate::inet) fn value(&self, group: &str, name: &str) -> u64 {
        if group != "Icmp" {
            let known = Counter::ALL.iter().find(|(_, known)| *known == name);
            return known.map_or(0, |(counter, _)| {
                self.ip[*counter as usize].load(Ordering::Relaxed)
            });
        }
        match (name.strip_prefix("In"), name.strip_prefix("Out")) {
            (Some(name), _) => self.received.value(name),
            (_, Some(name)) => self.sent.value(name),
            _ => 0,
        }
    }
}

impl Messages {
    fn count_kind(&self, message: &[u8]) {
        let kind = message.first().map(|kind| usize::from(*kind));
        if let Some(counter) = kind.and_then(|kind| self.kinds.get(kind)) {
            add(counter, 1);
        }
    }

    fn value(&self, name: &str) -> u64 {
        let kind = match name {
            "Msgs" => return self.all.load(Ordering::Relaxed),
            "Errors" => return self.errors.load(Ordering::Relaxed),
            "CsumErrors" => return self.wrong_checksums.load(Ordering::Relaxed),
            "DestUnreachs" => kind::UNREACHABLE,
            "TimeExcds" => kind::TIME_EXCEEDED,
            "ParmProbs" => kind::PARAMETER_PROBLEM,
            "SrcQuenchs" => 4,
            "Redirects" => 5,
            "Echos" => kind::ECHO,
            "EchoReps" => kind::ECHO_REPLY,
            "Timestamps" => 13,
            "TimestampReps" => 14,
            "AddrMasks" => 17,
            "AddrMaskReps" => 18,
            _ => return 0,
        };
        self.kinds[usize::from(kind)].load(Ordering::Relaxed)
    }
}
