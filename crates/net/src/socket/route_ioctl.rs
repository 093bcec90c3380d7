//! `ioctl(2)`s about routes and neighbours of IPv4 (`route(8)`, `arp(7)`).

use core::net::Ipv4Addr;

use abi::errno::Errno;
use fs::Result;
use fs::ioctl::IoctlRequest;
use ip::route::netmask_len;
use linux_raw_sys::ioctl as nr;

use super::core_stack::CoreStack;
use super::credentials::caller_administers_networks;
use super::dev_ioctl::decode_sockaddr_in;
use super::if_req::text;
use super::interface::{ArpEntry, IFNAMSIZ, Interface, RouteRequest};

/// The requests that are handled here.
pub(super) const REQUESTS: [u32; 5] = [
    nr::SIOCADDRT,
    nr::SIOCDELRT,
    nr::SIOCGARP,
    nr::SIOCSARP,
    nr::SIOCDARP,
];

/// Bytes of a `struct sockaddr`.
const SOCKADDR: usize = 16;
/// `struct rtentry`.
type RtEntry = [u8; 120];
/// Places in it.
const RT_DST: usize = 8;
const RT_GATEWAY: usize = 24;
const RT_GENMASK: usize = 40;
const RT_FLAGS: usize = 56;
const RT_METRIC: usize = 80;
const RT_DEV: usize = 88;
/// Flags of a route.
const RTF_GATEWAY: u16 = 2;
const RTF_HOST: u16 = 4;
const RTF_REJECT: u16 = 0x200;

/// `struct arpreq`.
type ArpReq = [u8; 68];
/// Places in it.
const ARP_HA: usize = 16;
const ARP_FLAGS: usize = 32;
const ARP_DEV: usize = 52;
/// Flags of an entry.
const ATF_COM: u32 = 2;
const ATF_PERM: u32 = 4;
const ATF_PUBL: u32 = 8;
const ATF_NETMASK: u32 = 0x20;
const ATF_DONTPUB: u32 = 0x40;

/// Carries out a request.
///
/// # Errors
/// `EPERM`, `EFAULT`, `ENODEV`; `EINVAL`, `EAFNOSUPPORT`, `EPFNOSUPPORT` for what makes no sense;
/// those of the change.
pub(super) fn ioctl(stack: &CoreStack, request: &IoctlRequest<'_>) -> Result<usize> {
    if request.command != nr::SIOCGARP && !caller_administers_networks() {
        return Err(Errno::EPERM);
    }
    match request.command {
        nr::SIOCADDRT | nr::SIOCDELRT => {
            let entry = request.read::<RtEntry>()?;
            let mut name = [0; IFNAMSIZ];
            let at = u64::from_ne_bytes(*field(&entry, RT_DEV));
            if at != 0 {
                read_text(request, at as usize, &mut name[..IFNAMSIZ - 1])?;
            }
            let interface = named(stack, &name)?;
            let is_new = request.command == nr::SIOCADDRT;
            let route = decode_route(&entry, interface.as_ref(), is_new)?;
            stack.change_route(&route, is_new)?;
        }
        _ => arp(stack, request)?,
    }
    Ok(0)
}

/// The bytes of a field.
fn field<const N: usize>(entry: &[u8], at: usize) -> &[u8; N] {
    entry[at..].first_chunk().expect("a field is within")
}

/// Reads a text up to its zero, or as far as there is room for it.
fn read_text(request: &IoctlRequest<'_>, at: usize, into: &mut [u8]) -> Result<()> {
    for (n, byte) in into.iter_mut().enumerate() {
        let mut one = [0];
        request.caller.read_bytes(at + n, &mut one)?;
        [*byte] = one;
        if *byte == 0 {
            break;
        }
    }
    Ok(())
}

/// The interface with a name, or the one of an address with a label; `None` if there is no name.
fn named(stack: &CoreStack, name: &[u8]) -> Result<Option<Interface>> {
    let name = text(name)?.split(':').next().unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    let found = stack.find_interface(|interface| *interface.name == *name);
    found.map(Some).ok_or(Errno::ENODEV)
}

/// A route that is to be added or removed (Linux `rtentry_to_fib_config`).
fn decode_route(
    entry: &RtEntry,
    interface: Option<&Interface>,
    is_new: bool,
) -> Result<RouteRequest> {
    let to = decode_sockaddr_in(field::<SOCKADDR>(entry, RT_DST)).ok_or(Errno::EAFNOSUPPORT)?;
    let flags = u16::from_ne_bytes(*field(entry, RT_FLAGS));
    let prefix_len = if flags & RTF_HOST != 0 {
        32
    } else {
        let genmask = field::<SOCKADDR>(entry, RT_GENMASK);
        // A mask may come without its family, if it is none.
        let mask = match decode_sockaddr_in(genmask) {
            Some(mask) => mask,
            None if genmask.iter().all(|&byte| byte == 0) => Ipv4Addr::UNSPECIFIED,
            None => return Err(Errno::EAFNOSUPPORT),
        };
        netmask_len(mask).ok_or(Errno::EINVAL)?
    };
    let metric = i16::from_ne_bytes(*field(entry, RT_METRIC));
    let is_reject = flags & RTF_REJECT != 0;
    let gateway = decode_sockaddr_in(field::<SOCKADDR>(entry, RT_GATEWAY))
        .filter(|gateway| !gateway.is_unspecified());
    if is_new && !is_reject && flags & RTF_GATEWAY != 0 && gateway.is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(RouteRequest {
        to,
        prefix_len,
        gateway: gateway.filter(|_| !is_reject),
        interface: interface.filter(|_| !is_reject).map(|found| found.index),
        // The number is one more than the metric.
        metric: u32::try_from(metric)
            .ok()
            .and_then(|metric| metric.checked_sub(1)),
        is_reject,
    })
}

/// Carries out a request about a neighbour (Linux `arp_ioctl`).
fn arp(stack: &CoreStack, request: &IoctlRequest<'_>) -> Result<()> {
    let mut entry = request.read::<ArpReq>()?;
    let ip = decode_sockaddr_in(field::<SOCKADDR>(&entry, 0)).ok_or(Errno::EPFNOSUPPORT)?;
    let flags = u32::from_ne_bytes(*field(&entry, ARP_FLAGS));
    if flags & ATF_PUBL == 0 && flags & (ATF_NETMASK | ATF_DONTPUB) != 0 {
        return Err(Errno::EINVAL);
    }
    let interface = named(stack, &entry[ARP_DEV..])?;
    let index = interface.as_ref().map_or(0, |found| found.index);
    let [k0, k1, hardware @ ..] = field::<SOCKADDR>(&entry, ARP_HA);
    let kind = u16::from_ne_bytes([*k0, *k1]);
    let is_wrong = |found: &Interface| kind != 0 && kind != found.hardware_type;
    if request.command == nr::SIOCSARP && interface.as_ref().is_some_and(is_wrong) {
        return Err(Errno::EINVAL);
    }
    if request.command == nr::SIOCGARP {
        let interface = interface.ok_or(Errno::ENODEV)?;
        let found = stack.arp_entry(ip, index).ok_or(Errno::ENXIO)?;
        let known = found.hardware.map_or(0, |_| ATF_COM);
        let kept = if found.is_permanent { ATF_PERM } else { 0 };
        entry[ARP_HA..ARP_HA + 2].copy_from_slice(&interface.hardware_type.to_ne_bytes());
        entry[ARP_HA + 2..ARP_HA + 8].copy_from_slice(&found.hardware.unwrap_or_default());
        entry[ARP_FLAGS..ARP_FLAGS + 4].copy_from_slice(&(known | kept).to_ne_bytes());
        return request.write(&entry);
    }
    // Answers in somebody else's name are not given.
    if flags & ATF_PUBL != 0 {
        return Err(match request.command {
            nr::SIOCDARP => Errno::ENXIO,
            _ => Errno::EOPNOTSUPP,
        });
    }
    let is_new = request.command == nr::SIOCSARP;
    stack.change_arp(&ArpEntry {
        interface: index,
        ip,
        hardware: hardware.first_chunk().copied().filter(|_| is_new),
        is_permanent: flags & ATF_PERM != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::dev_ioctl::encode_sockaddr_in;

    fn entry(to: Ipv4Addr, mask: Ipv4Addr, flags: u16) -> RtEntry {
        let mut entry = [0; size_of::<RtEntry>()];
        for (at, ip) in [(RT_DST, to), (RT_GENMASK, mask)] {
            entry[at..at + SOCKADDR].copy_from_slice(&encode_sockaddr_in(ip));
        }
        entry[RT_FLAGS..RT_FLAGS + 2].copy_from_slice(&flags.to_ne_bytes());
        entry
    }

    #[test]
    fn a_route_is_to_a_host_or_a_network() {
        let to = Ipv4Addr::new(10, 7, 0, 0);
        let net = entry(to, Ipv4Addr::new(255, 255, 0, 0), 1);
        let route = decode_route(&net, None, true).unwrap();
        assert_eq!((route.to, route.prefix_len, route.metric), (to, 16, None));
        let host = entry(to, Ipv4Addr::UNSPECIFIED, RTF_HOST);
        assert_eq!(decode_route(&host, None, true).unwrap().prefix_len, 32);
        let torn = entry(to, Ipv4Addr::new(255, 0, 255, 0), 1);
        assert_eq!(decode_route(&torn, None, true).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn a_gateway_is_there_if_the_flags_say_so_and_the_metric_is_one_less() {
        let mut bytes = entry(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, RTF_GATEWAY);
        assert_eq!(decode_route(&bytes, None, true).err(), Some(Errno::EINVAL));
        assert!(decode_route(&bytes, None, false).is_ok(), "any goes");
        let gateway = Ipv4Addr::new(10, 0, 2, 2);
        bytes[RT_GATEWAY..RT_GATEWAY + SOCKADDR].copy_from_slice(&encode_sockaddr_in(gateway));
        bytes[RT_METRIC] = 6;
        let route = decode_route(&bytes, None, true).unwrap();
        assert_eq!((route.gateway, route.metric), (Some(gateway), Some(5)));
    }

    #[test]
    fn a_destination_of_another_family_is_refused() {
        let mut bytes = entry(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, 1);
        bytes[RT_DST] = 10;
        let refused = decode_route(&bytes, None, true).err();
        assert_eq!(refused, Some(Errno::EAFNOSUPPORT));
    }
}
