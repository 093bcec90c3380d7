//! `ioctl(2)`s about interfaces (`netdevice(7)`).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use abi::errno::Errno;
use fs::Result;
use fs::ioctl::IoctlRequest;
use linux_raw_sys::ioctl as nr;
use linux_raw_sys::net::net_device_flags;
use linux_raw_sys::net::{AF_INET, AF_PACKET};

use super::address::Address;
use super::core_stack::CoreStack;
use super::credentials::caller_administers_networks;
use super::if_req::{IfReq, text};
use super::interface::{AddressChange, IFNAMSIZ, Interface, InterfaceChange};
use super::{ethtool, route_ioctl};

/// Requests of wireless interfaces.
const WIRELESS_FIRST: u32 = 0x8b00;
const WIRELESS_LAST: u32 = 0x8bff;
/// `IFF_UP`.
const IFF_UP: u32 = net_device_flags::IFF_UP as u32;
/// The flags that can be changed.
const CHANGEABLE: u32 = IFF_UP | net_device_flags::IFF_PROMISC as u32;
/// `struct ifconf`: bytes of room, padding, and where it is.
type IfConf = [u32; 4];
/// Asks a driver.
const SIOCETHTOOL: u32 = 0x8946;
const SIOCGMIIPHY: u32 = 0x8947;
const SIOCGMIIREG: u32 = 0x8948;
/// Requests that ask something.
const GET_REQUESTS: [u32; 13] = [
    SIOCETHTOOL,
    nr::SIOCGIFNAME,
    nr::SIOCGIFFLAGS,
    nr::SIOCGIFADDR,
    nr::SIOCGIFDSTADDR,
    nr::SIOCGIFBRDADDR,
    nr::SIOCGIFNETMASK,
    nr::SIOCGIFMETRIC,
    nr::SIOCGIFMTU,
    nr::SIOCGIFHWADDR,
    nr::SIOCGIFINDEX,
    nr::SIOCGIFTXQLEN,
    nr::SIOCGIFMAP,
];
/// Requests that change something.
const SET_REQUESTS: [u32; 9] = [
    nr::SIOCSIFFLAGS,
    nr::SIOCSIFADDR,
    nr::SIOCSIFNETMASK,
    nr::SIOCSIFMTU,
    nr::SIOCSIFHWADDR,
    nr::SIOCSIFNAME,
    nr::SIOCSIFBRDADDR,
    nr::SIOCSIFDSTADDR,
    nr::SIOCSIFTXQLEN,
];

/// The address in a `struct sockaddr`, if it is one of IPv4.
pub(super) fn decode_sockaddr_in(sockaddr: &[u8]) -> Option<Ipv4Addr> {
    match Address::decode(sockaddr) {
        Ok(Address::Inet(SocketAddr::V4(address))) => Some(*address.ip()),
        _ => None,
    }
}

/// `struct sockaddr_in`.
pub(super) fn encode_sockaddr_in(ip: impl Into<Ipv4Addr>) -> Vec<u8> {
    Address::Inet(SocketAddr::new(IpAddr::V4(ip.into()), 0)).encode()
}

fn get_ifconf(stack: &CoreStack, request: &IoctlRequest<'_>) -> Result<usize> {
    let [room, padding, low, high] = request.read::<IfConf>()?;
    let at = u64::from(low) | u64::from(high) << 32;
    let mut bytes = Vec::new();
    for interface in stack.interfaces() {
        for known in interface.v4_addresses() {
            let mut entry = IfReq::zeroed();
            entry.set_name(known.label.as_ref().unwrap_or(&interface.name));
            if let IpAddr::V4(ip) = known.ip {
                entry.set_value(&encode_sockaddr_in(ip));
            }
            bytes.extend_from_slice(&entry.into_bytes());
        }
    }
    if at != 0 {
        // Whole entries only.
        bytes.truncate(room as usize / size_of::<IfReq>() * size_of::<IfReq>());
        request.caller.write_bytes(at as usize, &bytes)?;
    }
    request.write(&[bytes.len() as u32, padding, low, high])?;
    Ok(0)
}

/// Carries out a request that changes something; one that does not is accepted of any interface.
fn set(stack: &CoreStack, command: u32, interface: &Interface, asked: &IfReq) -> Result<usize> {
    if is_unchanged(command, interface, asked)? {
        return Ok(0);
    }
    let label = asked.name()?;
    let address = |change: fn(Ipv4Addr) -> AddressChange| {
        let change = change(decode_sockaddr_in(&asked.value()[..16]).ok_or(Errno::EINVAL)?);
        Ok::<_, Errno>(InterfaceChange::Address { label, change })
    };
    let change = match command {
        // Of one of several addresses: it goes if it is not to be up.
        nr::SIOCSIFFLAGS if label.contains(':') => InterfaceChange::Address {
            label,
            change: AddressChange::Remove,
        },
        nr::SIOCSIFFLAGS => InterfaceChange::Flags(asked.flags()),
        nr::SIOCSIFMTU => InterfaceChange::Mtu(asked.word()),
        nr::SIOCSIFTXQLEN => InterfaceChange::QueueLen(asked.word()),
        nr::SIOCSIFADDR => address(AddressChange::Local)?,
        nr::SIOCSIFNETMASK => address(AddressChange::Netmask)?,
        nr::SIOCSIFBRDADDR => address(AddressChange::Broadcast)?,
        nr::SIOCSIFDSTADDR => address(AddressChange::Peer)?,
        nr::SIOCSIFHWADDR => {
            let (kind, address) = asked.hardware_address();
            if kind != interface.hardware_type {
                return Err(Errno::EINVAL);
            }
            InterfaceChange::HardwareAddress(address)
        }
        _ => InterfaceChange::Name(text(&asked.value()[..IFNAMSIZ])?),
    };
    stack.change_interface(interface.index, &change).map(|()| 0)
}

/// Whether a request changes nothing.
///
/// # Errors
/// `EADDRNOTAVAIL` for an address that is not there.
fn is_unchanged(command: u32, interface: &Interface, asked: &IfReq) -> Result<bool> {
    let label = asked.name()?;
    let known = || interface.labelled(label).ok_or(Errno::EADDRNOTAVAIL);
    Ok(match command {
        nr::SIOCSIFFLAGS if label.contains(':') => {
            known()?;
            asked.flags() & IFF_UP != 0
        }
        nr::SIOCSIFFLAGS => (asked.flags() ^ interface.flags) & CHANGEABLE == 0,
        nr::SIOCSIFMTU => asked.word() == interface.mtu,
        nr::SIOCSIFADDR => {
            known().is_ok_and(|(ip, _)| decode_sockaddr_in(&asked.value()[..16]) == Some(ip))
        }
        nr::SIOCSIFNETMASK => {
            decode_sockaddr_in(&asked.value()[..16]) == Some(netmask(known()?.1.prefix_len).into())
        }
        _ => false,
    })
}

/// The mask of a network with a prefix of so many bits.
fn netmask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

/// Carries out a request of a socket of a family.
///
/// # Errors
/// `ENOTTY` for one that is not about interfaces; `ENODEV`, `EADDRNOTAVAIL`, `EPERM`, `EFAULT`.
pub(super) fn ioctl(stack: &CoreStack, family: u32, request: &IoctlRequest<'_>) -> Result<usize> {
    match request.command {
        nr::SIOCGIFCONF => return get_ifconf(stack, request),
        command if route_ioctl::REQUESTS.contains(&command) && has_routes(family) => {
            return route_ioctl::ioctl(stack, request);
        }
        _ => {}
    }
    // Linux reads it before it looks for what is asked.
    let asked = if request.command >> 8 == 0x89 {
        IfReq::read(request)?
    } else {
        IfReq::zeroed()
    };
    let is_set = SET_REQUESTS.contains(&request.command);
    if is_set && !caller_administers_networks() {
        return Err(Errno::EPERM);
    }
    match request.command {
        // There is no such driver.
        SIOCGMIIPHY | SIOCGMIIREG | WIRELESS_FIRST..=WIRELESS_LAST => {
            return Err(Errno::EOPNOTSUPP);
        }
        command if is_set || GET_REQUESTS.contains(&command) => {}
        _ => return Err(Errno::ENOTTY),
    }
    let label = asked.name().unwrap_or_default();
    // An address' label begins with the interface's name.
    let name = label.split(':').next().unwrap_or_default();
    let is_it = |i: &Interface| {
        if request.command == nr::SIOCGIFNAME {
            i.index == asked.word()
        } else {
            *i.name == *name
        }
    };
    let interface = stack.find_interface(is_it).ok_or(Errno::ENODEV)?;
    if is_set {
        return set(stack, request.command, &interface, &asked);
    }
    let known = || interface.labelled(label).ok_or(Errno::EADDRNOTAVAIL);
    let mut answer = IfReq::zeroed();
    answer.set_name(if request.command == nr::SIOCGIFNAME {
        &interface.name
    } else {
        label
    });
    match request.command {
        SIOCETHTOOL => return ethtool::ioctl(stack, &interface, &asked, request),
        nr::SIOCGIFFLAGS => answer.set_value(&(interface.flags as u16).to_ne_bytes()),
        nr::SIOCGIFADDR => answer.set_value(&encode_sockaddr_in(known()?.0)),
        nr::SIOCGIFDSTADDR => {
            let (ip, known) = known()?;
            answer.set_value(&encode_sockaddr_in(known.peer.unwrap_or(ip)));
        }
        nr::SIOCGIFBRDADDR => {
            let broadcast = known()?.1.broadcast.unwrap_or(Ipv4Addr::UNSPECIFIED);
            answer.set_value(&encode_sockaddr_in(broadcast));
        }
        nr::SIOCGIFNETMASK => {
            answer.set_value(&encode_sockaddr_in(netmask(known()?.1.prefix_len)));
        }
        nr::SIOCGIFMTU => answer.set_value(&interface.mtu.to_ne_bytes()),
        nr::SIOCGIFHWADDR => answer.set_hardware_address(&interface),
        nr::SIOCGIFMETRIC | nr::SIOCGIFMAP => {}
        nr::SIOCGIFTXQLEN => answer.set_value(&interface.queue_len.to_ne_bytes()),
        _ => answer.set_value(&interface.index.to_ne_bytes()),
    }
    answer.write(request)?;
    Ok(0)
}

/// Whether sockets of a family are asked about routes and neighbours of IPv4.
fn has_routes(family: u32) -> bool {
    matches!(family, AF_INET | AF_PACKET)
}
