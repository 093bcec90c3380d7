//! Senders of frames, as far as a switch looks into them.

use core::net::Ipv4Addr;

use abi::network::mac_of;

/// Offset of an Ethernet header's source, of its type, and of what follows.
const SOURCE: usize = 6;
const KIND: usize = 12;
const PAYLOAD: usize = 14;

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];

/// First bytes of an ARP packet of Ethernet and IPv4 (RFC 826): kinds and lengths of addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// Bytes of such a packet.
const ARP_BYTES: usize = 28;
/// Bytes of an IPv4 header without options.
const IPV4_BYTES: usize = 20;

/// Whether a frame is one that the station of an address may send: IPv4 from that address or ARP
/// that tells of it (or asks as nobody, RFC 5227), from the hardware address that goes with it.
#[must_use]
pub fn sends_as(frame: &[u8], address: Ipv4Addr) -> bool {
    let Some((header, payload)) = frame.split_at_checked(PAYLOAD) else {
        return false;
    };
    let mac = mac_of(address);
    if header[SOURCE..KIND] != mac {
        return false;
    }
    if header[KIND..] == IPV4 {
        let has_header = payload.len() >= IPV4_BYTES && payload[0] >> 4 == 4;
        return has_header && payload[12..16] == address.octets();
    }
    let is_arp =
        header[KIND..] == ARP && payload.len() >= ARP_BYTES && payload.starts_with(&ARP_HEAD);
    let sender = is_arp.then(|| (&payload[8..14], &payload[14..18]));
    sender.is_some_and(|(hardware, protocol)| {
        let nobody = Ipv4Addr::UNSPECIFIED.octets();
        hardware == mac && (protocol == address.octets() || protocol == nobody)
    })
}
