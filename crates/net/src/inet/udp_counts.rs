//! Counts of datagrams, by the names of Linux' `/proc/net/snmp` and `snmp6`.

use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::net::IPPROTO_UDPLITE;

use super::datagram::Datagram;

/// Events of datagrams of one protocol and one family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UdpEvent {
    /// A program has received one.
    Received,
    /// One was for a port that nobody has.
    NoPort,
    /// One was refused by a socket's filter.
    Filtered,
    /// One had a wrong checksum.
    WrongChecksum,
    /// A socket's receive buffer had no room for one.
    NoReceiveRoom,
    /// There was no memory for one.
    NoMemory,
    /// One was sent.
    Sent,
    /// One could not be sent for want of room.
    NoSendRoom,
}

/// Events by their places in [`UdpEvent`].
const EVENTS: usize = UdpEvent::NoSendRoom as usize + 1;

/// Counts of UDP and of UDP-Lite, of each over IPv4 and over IPv6.
#[derive(Default)]
pub(super) struct UdpCounts([[[AtomicU64; EVENTS]; 2]; 2]);

impl UdpCounts {
    /// Counts an event of a datagram.
    pub(super) fn count(&self, datagram: &Datagram, event: UdpEvent) {
        self.count_of(datagram.protocol, datagram.to.is_ipv6(), event);
    }

    /// Counts an event of a protocol over a family.
    pub(super) fn count_of(&self, protocol: u8, is_v6: bool, event: UdpEvent) {
        let is_lite = u32::from(protocol) == IPPROTO_UDPLITE as u32;
        let counters = &self.0[usize::from(is_lite)][usize::from(is_v6)];
        counters[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The value of a counter by its name; 0 of one that does not count.
    pub(super) fn value(&self, is_lite: bool, is_v6: bool, name: &str) -> u64 {
        use UdpEvent::{
            Filtered, NoMemory, NoPort, NoReceiveRoom, NoSendRoom, Received, Sent, WrongChecksum,
        };
        let events: &[UdpEvent] = match name {
            "InDatagrams" => &[Received],
            "NoPorts" => &[NoPort],
            "InErrors" => &[Filtered, WrongChecksum, NoReceiveRoom, NoMemory],
            "OutDatagrams" => &[Sent],
            "RcvbufErrors" => &[NoReceiveRoom],
            "SndbufErrors" => &[NoSendRoom],
            "InCsumErrors" => &[WrongChecksum],
            "MemErrors" => &[NoMemory],
            _ => &[],
        };
        let counters = &self.0[usize::from(is_lite)][usize::from(is_v6)];
        let count = |event: &UdpEvent| counters[*event as usize].load(Ordering::Relaxed);
        events.iter().map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_counted_by_its_cause_and_among_all() {
        let counts = UdpCounts::default();
        let udp = 17;
        counts.count_of(udp, false, UdpEvent::NoReceiveRoom);
        counts.count_of(udp, false, UdpEvent::WrongChecksum);
        let value = |name| counts.value(false, false, name);
        assert_eq!(value("InErrors"), 2);
        assert_eq!((value("RcvbufErrors"), value("InCsumErrors")), (1, 1));
        assert_eq!((value("MemErrors"), value("InDatagrams")), (0, 0));
        assert_eq!(counts.value(false, true, "InErrors"), 0);
        assert_eq!(counts.value(true, false, "InErrors"), 0);
    }
}
