//! `ioctl(2)`s about interfaces (`netdevice(7)`).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use abi::errno::Errno;
use fs::Result;
use fs::ioctl::IoctlRequest;
use linux_raw_sys::ioctl as nr;

use super::address::Address;
use super::core_stack::CoreStack;
use super::credentials::caller_administers_networks;
use super::interface::{IFNAMSIZ, Interface, InterfaceAddress, InterfaceChange};

/// Requests of wireless interfaces.
const WIRELESS_FIRST: u32 = 0x8b00;
const WIRELESS_LAST: u32 = 0x8bff;
/// The flags that can be changed.
const CHANGEABLE: u32 = linux_raw_sys::net::net_device_flags::IFF_UP as u32
    | linux_raw_sys::net::net_device_flags::IFF_PROMISC as u32;
/// `struct ifreq`: the name, and 24 bytes whose meaning is the request's.
type IfReq = [u8; 40];
/// `struct ifconf`: bytes of room, padding, and where it is.
type IfConf = [u32; 4];
/// Asks a driver.
const SIOCETHTOOL: u32 = 0x8946;
const SIOCGMIIPHY: u32 = 0x8947;
const SIOCGMIIREG: u32 = 0x8948;
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

fn ipv4_address(interface: &Interface) -> Result<(Ipv4Addr, &InterfaceAddress)> {
    interface.first_ipv4().ok_or(Errno::EADDRNOTAVAIL)
}

/// `struct sockaddr_in`.
fn encode_sockaddr_in(ip: impl Into<Ipv4Addr>) -> Vec<u8> {
    Address::Inet(SocketAddr::new(IpAddr::V4(ip.into()), 0)).encode()
}

fn encode_ifreq(name: &str, value: &[u8]) -> IfReq {
    let mut bytes = [0; size_of::<IfReq>()];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes[IFNAMSIZ..IFNAMSIZ + value.len()].copy_from_slice(value);
    bytes
}

fn get_ifconf(stack: &CoreStack, request: &IoctlRequest<'_>) -> Result<usize> {
    let [room, padding, low, high] = request.read::<IfConf>()?;
    let at = u64::from(low) | u64::from(high) << 32;
    let mut bytes = Vec::new();
    for interface in stack.interfaces() {
        if let Ok((ip, _)) = ipv4_address(&interface) {
            bytes.extend_from_slice(&encode_ifreq(&interface.name, &encode_sockaddr_in(ip)));
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
fn set(stack: &CoreStack, command: u32, interface: &Interface, value: &[u8]) -> Result<usize> {
    if is_unchanged(command, interface, value)? {
        return Ok(0);
    }
    let word = || {
        let bytes = value.first_chunk().ok_or(Errno::EINVAL)?;
        Ok::<_, Errno>(u32::from_ne_bytes(*bytes))
    };
    let ip = || match Address::decode(value.get(..16).ok_or(Errno::EINVAL)?)? {
        Address::Inet(SocketAddr::V4(address)) => Ok(*address.ip()),
        _ => Err(Errno::EINVAL),
    };
    let change = match command {
        // They are 16 bits.
        nr::SIOCSIFFLAGS => InterfaceChange::Flags(word()? & 0xffff),
        nr::SIOCSIFMTU => InterfaceChange::Mtu(word()?),
        nr::SIOCSIFTXQLEN => InterfaceChange::QueueLen(word()?),
        nr::SIOCSIFADDR => InterfaceChange::Address(ip()?),
        nr::SIOCSIFNETMASK => InterfaceChange::Netmask(ip()?),
        nr::SIOCSIFBRDADDR => InterfaceChange::Broadcast(ip()?),
        nr::SIOCSIFDSTADDR => InterfaceChange::Peer(ip()?),
        nr::SIOCSIFHWADDR => {
            let (kind, address) = value.split_first_chunk::<2>().ok_or(Errno::EINVAL)?;
            if u16::from_ne_bytes(*kind) != interface.hardware_type {
                return Err(Errno::EINVAL);
            }
            InterfaceChange::HardwareAddress(*address.first_chunk().ok_or(Errno::EINVAL)?)
        }
        _ => {
            let name = value.split(|&b| b == 0).next().unwrap_or_default();
            let name = name.get(..name.len().min(IFNAMSIZ)).unwrap_or_default();
            InterfaceChange::Name(core::str::from_utf8(name).map_err(|_| Errno::EINVAL)?)
        }
    };
    stack.change_interface(interface.index, &change).map(|()| 0)
}

/// Whether a request changes nothing.
///
/// # Errors
/// `EADDRNOTAVAIL` of an interface without an address.
fn is_unchanged(command: u32, interface: &Interface, value: &[u8]) -> Result<bool> {
    let word = value
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let ip = || match Address::decode(value.get(..16)?) {
        Ok(Address::Inet(address)) => Some(address.ip()),
        _ => None,
    };
    Ok(match command {
        nr::SIOCSIFFLAGS => (word ^ interface.flags) & CHANGEABLE == 0,
        nr::SIOCSIFMTU => word == interface.mtu,
        nr::SIOCSIFADDR => interface
            .first_ipv4()
            .is_some_and(|(known, _)| ip() == Some(known.into())),
        nr::SIOCSIFNETMASK => {
            ip() == Some(Ipv4Addr::from(netmask(ipv4_address(interface)?.1.prefix_len)).into())
        }
        _ => false,
    })
}

/// The mask of a network with a prefix of so many bits.
fn netmask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

/// Carries out a request.
///
/// # Errors
/// `ENOTTY` for one that is not about interfaces; `ENODEV`, `EADDRNOTAVAIL`, `EPERM`, `EFAULT`.
pub(super) fn ioctl(stack: &CoreStack, request: &IoctlRequest<'_>) -> Result<usize> {
    if request.command == nr::SIOCGIFCONF {
        return get_ifconf(stack, request);
    }
    // Linux reads it before it looks for what is asked.
    let bytes: IfReq = if request.command >> 8 == 0x89 {
        request.read()?
    } else {
        [0; size_of::<IfReq>()]
    };
    if SET_REQUESTS.contains(&request.command) && !caller_administers_networks() {
        return Err(Errno::EPERM);
    }
    match request.command {
        // The loop has no driver that could be asked for more, and is no wireless one.
        SIOCETHTOOL | SIOCGMIIPHY | SIOCGMIIREG | WIRELESS_FIRST..=WIRELESS_LAST => {
            return Err(Errno::EOPNOTSUPP);
        }
        // It has no neighbours, either.
        nr::SIOCGARP => return Err(Errno::ENXIO),
        _ => {}
    }
    let asked = matches!(
        request.command,
        nr::SIOCGIFNAME
            | nr::SIOCGIFFLAGS
            | nr::SIOCGIFADDR
            | nr::SIOCGIFDSTADDR
            | nr::SIOCGIFBRDADDR
            | nr::SIOCGIFNETMASK
            | nr::SIOCGIFMETRIC
            | nr::SIOCGIFMTU
            | nr::SIOCGIFHWADDR
            | nr::SIOCGIFINDEX
            | nr::SIOCGIFTXQLEN
            | nr::SIOCGIFMAP
    ) || SET_REQUESTS.contains(&request.command);
    if !asked {
        return Err(Errno::ENOTTY);
    }
    let name = bytes[..IFNAMSIZ]
        .split(|&b| b == 0)
        .next()
        .unwrap_or_default();
    let mut index = [0; 4];
    index.copy_from_slice(&bytes[IFNAMSIZ..IFNAMSIZ + 4]);
    let by_index = request.command == nr::SIOCGIFNAME;
    let is_it = |i: &Interface| {
        if by_index {
            i.index == u32::from_ne_bytes(index)
        } else {
            i.name.as_bytes() == name
        }
    };
    let interface = stack.find_interface(is_it).ok_or(Errno::ENODEV)?;
    let value = match request.command {
        nr::SIOCGIFFLAGS => (interface.flags as u16).to_ne_bytes().to_vec(),
        nr::SIOCGIFADDR => encode_sockaddr_in(ipv4_address(&interface)?.0),
        nr::SIOCGIFDSTADDR => {
            let (ip, known) = ipv4_address(&interface)?;
            encode_sockaddr_in(known.peer.unwrap_or(ip))
        }
        nr::SIOCGIFBRDADDR => {
            let (_, known) = ipv4_address(&interface)?;
            encode_sockaddr_in(known.broadcast.unwrap_or(Ipv4Addr::UNSPECIFIED))
        }
        nr::SIOCGIFNETMASK => encode_sockaddr_in(netmask(ipv4_address(&interface)?.1.prefix_len)),
        nr::SIOCGIFMTU => interface.mtu.to_ne_bytes().to_vec(),
        nr::SIOCGIFHWADDR => [
            &interface.hardware_type.to_ne_bytes()[..],
            &interface.hardware_address.unwrap_or_default(),
        ]
        .concat(),
        nr::SIOCGIFMETRIC => 0u32.to_ne_bytes().to_vec(),
        nr::SIOCGIFTXQLEN => interface.queue_len.to_ne_bytes().to_vec(),
        nr::SIOCGIFMAP => [0; 24].to_vec(),
        change if SET_REQUESTS.contains(&change) => {
            return set(stack, change, &interface, &bytes[IFNAMSIZ..]);
        }
        _ => interface.index.to_ne_bytes().to_vec(),
    };
    request.write(&encode_ifreq(&interface.name, &value))?;
    Ok(0)
}
