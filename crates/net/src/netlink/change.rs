//! Requests of `NETLINK_ROUTE` that change something: links, addresses, routes, neighbours.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::errno::Errno;
use fs::Result;
use ip::neighbour::{Key, State};
use ip::route::{Filter, Insert, Kind, Prefix, Route};
use linux_raw_sys::net;
use linux_raw_sys::net::net_device_flags::{IFF_PROMISC, IFF_UP};

use super::link::{IFLA_ADDRESS, IFLA_IFALIAS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, IFLA_TXQLEN};
use super::message::NlmsgHeader;
use super::route::{
    IFA_ADDRESS, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_LABEL, IFA_LOCAL, NDA_DST,
    NDA_LLADDR, RT_TABLE_MAIN, RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE,
    RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH,
    RTM_NEWROUTE, RTM_SETLINK, attributes, requested_interface,
};
use crate::inet::{Host, InetStack};
use crate::socket::if_req::text;
use crate::socket::{AddressLife, InterfaceAddress, InterfaceName, address_flag};

/// Flags of a request to make something: for one that is there already, or is not.
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
/// Routes of any scope (`RT_SCOPE_NOWHERE`).
const ANY_SCOPE: u8 = 255;

/// A request's fixed part and its attributes.
struct Body<'a> {
    fixed: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// # Errors
    /// `EINVAL` if it is shorter than its fixed part.
    fn new(body: &'a [u8], fixed_len: usize) -> Result<Self> {
        let (fixed, rest) = body.split_at_checked(fixed_len).ok_or(Errno::EINVAL)?;
        Ok(Self { fixed, rest })
    }

    fn byte(&self, at: usize) -> u8 {
        self.fixed.get(at).copied().unwrap_or(0)
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.fixed.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    /// The value of an attribute, which has to have so many bytes.
    fn value<const N: usize>(&self, wanted: u16) -> Result<Option<[u8; N]>> {
        let found = attributes(self.rest).find(|(kind, _)| *kind == wanted);
        match found.map(|(_, value)| value.first_chunk::<N>()) {
            Some(Some(value)) => Ok(Some(*value)),
            Some(None) => Err(Errno::EINVAL),
            None => Ok(None),
        }
    }

    fn number(&self, wanted: u16) -> Result<Option<u32>> {
        Ok(self.value(wanted)?.map(u32::from_ne_bytes))
    }

    /// The address in an attribute.
    fn ip<A: Family>(&self, wanted: u16) -> Result<Option<A>> {
        A::read(self, wanted)
    }

    /// The label in an attribute, if it is another one than an interface's name.
    ///
    /// # Errors
    /// `EINVAL` for what is no label.
    fn label(&self, host: &Host, index: u32) -> Result<Option<InterfaceName>> {
        let Some((_, label)) = attributes(self.rest).find(|(kind, _)| *kind == IFA_LABEL) else {
            return Ok(None);
        };
        let label = InterfaceName::new_label(text(label)?).ok_or(Errno::EINVAL)?;
        let own = host.interface(index).map(|interface| interface.name);
        Ok(Some(label).filter(|label| Some(*label) != own))
    }

    /// Whether it is about IPv6.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another family than that or that of IPv4.
    fn is_v6(&self) -> Result<bool> {
        match u32::from(self.byte(0)) {
            net::AF_INET => Ok(false),
            net::AF_INET6 => Ok(true),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// A family of addresses, and of routes to them.
trait Family: ip::Address + Into<IpAddr> {
    /// No address.
    const NONE: Self;
    /// The metric of a route that is made without one.
    const METRIC: u32;
    /// Whether routes are told apart by how far they lead.
    const HAS_SCOPES: bool;

    /// The address in an attribute.
    fn read(body: &Body<'_>, wanted: u16) -> Result<Option<Self>>;

    /// Adds a route to a host.
    fn add(host: &Host, route: Route<Self>, insert: Insert) -> Result<()>;

    /// Removes a route from a host.
    fn remove(host: &Host, to: Prefix<Self>, filter: &Filter<Self>) -> Result<()>;
}

impl Family for Ipv4Addr {
    const NONE: Self = Self::UNSPECIFIED;
    const METRIC: u32 = 0;
    const HAS_SCOPES: bool = true;

    fn read(body: &Body<'_>, wanted: u16) -> Result<Option<Self>> {
        Ok(body.value::<4>(wanted)?.map(Self::from))
    }

    fn add(host: &Host, route: Route, insert: Insert) -> Result<()> {
        host.add_route(route, insert)
    }

    fn remove(host: &Host, to: Prefix, filter: &Filter) -> Result<()> {
        host.remove_route(to, filter)
    }
}

impl Family for Ipv6Addr {
    const NONE: Self = Self::UNSPECIFIED;
    /// Linux `IP6_RT_PRIO_USER`.
    const METRIC: u32 = 1024;
    const HAS_SCOPES: bool = false;

    fn read(body: &Body<'_>, wanted: u16) -> Result<Option<Self>> {
        Ok(body.value::<16>(wanted)?.map(Self::from))
    }

    fn add(host: &Host, route: Route<Self>, insert: Insert) -> Result<()> {
        host.add_ipv6_route(route, insert)
    }

    fn remove(host: &Host, to: Prefix<Self>, filter: &Filter<Self>) -> Result<()> {
        host.remove_ipv6_route(to, filter)
    }
}

/// Carries out a request.
///
/// # Errors
/// `EOPNOTSUPP` for what cannot be changed, `EINVAL` for what makes no sense, and those of the
/// change.
pub(super) fn handle(
    stack: &InetStack,
    host: &Host,
    request: NlmsgHeader,
    body: &[u8],
) -> Result<()> {
    match request.kind {
        RTM_NEWLINK | RTM_SETLINK => set_link(stack, host, request.flags, body),
        RTM_DELLINK => {
            let interface = requested_interface(stack, body)?;
            // That of a card goes with its card.
            if stack.core.device(interface.index).tun.is_none() {
                return Err(Errno::EOPNOTSUPP);
            }
            host.remove_interface(interface.index)
        }
        RTM_NEWADDR | RTM_DELADDR => change_address(host, request, &Body::new(body, 8)?),
        RTM_NEWROUTE | RTM_DELROUTE => {
            let body = Body::new(body, 12)?;
            if body.is_v6()? {
                change_route::<Ipv6Addr>(host, request, &body)
            } else {
                change_route::<Ipv4Addr>(host, request, &body)
            }
        }
        RTM_NEWNEIGH | RTM_DELNEIGH => change_neighbour(host, request, &Body::new(body, 12)?),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn set_link(stack: &InetStack, host: &Host, flags: u16, body: &[u8]) -> Result<()> {
    let parsed = Body::new(body, 16)?;
    let interface = match requested_interface(stack, body) {
        // To make one is a driver's.
        Err(Errno::ENODEV) if flags & NLM_F_CREATE != 0 => return Err(Errno::EOPNOTSUPP),
        found => found?,
    };
    if flags & NLM_F_EXCL != 0 {
        return Err(Errno::EEXIST);
    }
    let index = interface.index;
    if attributes(parsed.rest).any(|(kind, _)| matches!(kind, IFLA_LINKINFO | IFLA_IFALIAS)) {
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(address) = parsed.value::<6>(IFLA_ADDRESS)? {
        host.set_hardware_address(index, address)?;
    }
    if let Some(mtu) = parsed.number(IFLA_MTU)? {
        host.set_mtu(index, mtu)?;
    }
    if let Some(queue_len) = parsed.number(IFLA_TXQLEN)? {
        host.set_queue_len(index, queue_len)?;
    }
    let is_meant_by_index = parsed.word(4) != 0;
    let name = attributes(parsed.rest).find(|(kind, _)| *kind == IFLA_IFNAME);
    if is_meant_by_index && let Some((_, name)) = name {
        host.rename(index, text(name)?)?;
    }
    let (flags, changed) = (parsed.word(8), parsed.word(12));
    // Flags without a mask are all that there are.
    let changed = if changed == 0 && flags != 0 {
        u32::MAX
    } else {
        changed
    };
    if changed & IFF_PROMISC as u32 != 0 && changed != u32::MAX {
        host.set_promiscuous(index, flags & IFF_PROMISC as u32 != 0)?;
    }
    if changed & IFF_UP as u32 != 0 {
        host.set_up(index, flags & IFF_UP as u32 != 0)?;
    }
    Ok(())
}

fn change_address(host: &Host, request: NlmsgHeader, body: &Body<'_>) -> Result<()> {
    if body.is_v6()? {
        return change_v6_address(host, request, body);
    }
    let (prefix_len, scope, index) = (body.byte(1), body.byte(3), body.word(4));
    let (local, network) = (body.ip::<Ipv4Addr>(IFA_LOCAL)?, body.ip(IFA_ADDRESS)?);
    let ip = local.or(network).ok_or(Errno::EINVAL)?;
    if request.kind == RTM_DELADDR {
        if attributes(body.rest).any(|(kind, _)| kind == IFA_LABEL) {
            let label = body.label(host, index)?;
            let interface = host.interface(index).ok_or(Errno::ENODEV)?;
            let is_meant = |known: &InterfaceAddress| {
                known.ip == IpAddr::V4(ip) && known.prefix_len == prefix_len
            };
            let found = interface.addresses.iter().find(|known| is_meant(known));
            if found.is_none_or(|found| found.label != label) {
                return Err(Errno::EADDRNOTAVAIL);
            }
        }
        return host.remove_address(index, ip, Some(prefix_len));
    }
    let address = InterfaceAddress {
        ip: ip.into(),
        prefix_len,
        peer: network.filter(|network| *network != ip),
        broadcast: body.ip(IFA_BROADCAST)?,
        scope,
        life: AddressLife::default(),
        label: body.label(host, index)?,
    };
    let replace = request.flags & NLM_F_REPLACE != 0;
    host.add_address(index, address, replace)
}

fn change_v6_address(host: &Host, request: NlmsgHeader, body: &Body<'_>) -> Result<()> {
    let (prefix_len, index) = (body.byte(1), body.word(4));
    let (local, network) = (body.ip::<Ipv6Addr>(IFA_LOCAL)?, body.ip(IFA_ADDRESS)?);
    let ip = local.or(network).ok_or(Errno::EINVAL)?;
    if request.kind == RTM_DELADDR {
        return host.remove_ipv6_address(index, ip, Some(prefix_len));
    }
    let flags = body.number(IFA_FLAGS)?.unwrap_or(body.byte(2).into());
    let lifetimes = body.value::<8>(IFA_CACHEINFO)?;
    let word = |bytes: [u8; 8], at: usize| {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let [preferred, valid] =
        lifetimes.map_or([u32::MAX; 2], |bytes| [0, 4].map(|at| word(bytes, at)));
    if valid == 0 || preferred > valid {
        return Err(Errno::EINVAL);
    }
    let mut flags = flags & (address_flag::NO_DAD | address_flag::NO_PREFIX_ROUTE);
    if valid == u32::MAX {
        flags |= address_flag::PERMANENT;
    }
    if preferred == 0 {
        flags |= address_flag::DEPRECATED;
    }
    let address = InterfaceAddress {
        life: AddressLife {
            flags,
            preferred_until: host.after(preferred),
            valid_until: host.after(valid),
        },
        ..InterfaceAddress::of_v6(ip, prefix_len)
    };
    host.add_address(index, address, request.flags & NLM_F_REPLACE != 0)
}

fn change_route<A: Family>(host: &Host, request: NlmsgHeader, body: &Body<'_>) -> Result<()> {
    let table = body.number(RTA_TABLE)?.unwrap_or(body.byte(4).into());
    if !matches!(table, 0 | RT_TABLE_MAIN) || body.byte(2) != 0 || body.byte(3) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let to = body.ip(RTA_DST)?.unwrap_or(A::NONE);
    let destination = Prefix::of(to, body.byte(1)).ok_or(Errno::EINVAL)?;
    if destination.address != to {
        return Err(Errno::EINVAL);
    }
    let kind = match body.byte(7) {
        0 => None,
        1 => Some(Kind::Unicast),
        6 => Some(Kind::Blackhole),
        7 => Some(Kind::Unreachable),
        8 => Some(Kind::Prohibit),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let (interface, metric) = (body.number(RTA_OIF)?, body.number(RTA_PRIORITY)?);
    let (gateway, source) = (body.ip::<A>(RTA_GATEWAY)?, body.ip(RTA_PREFSRC)?);
    let (protocol, scope) = (body.byte(5), body.byte(6));
    if request.kind == RTM_DELROUTE {
        let filter = Filter {
            kind,
            interface,
            gateway,
            source,
            metric,
            protocol: Some(protocol).filter(|protocol| *protocol != 0),
            scope: Some(scope).filter(|scope| A::HAS_SCOPES && *scope != ANY_SCOPE),
        };
        return A::remove(host, destination, &filter);
    }
    let insert = match request.flags {
        flags if flags & NLM_F_REPLACE != 0 => Insert::Replace,
        flags if flags & NLM_F_CREATE == 0 => return Err(Errno::ENOENT),
        flags if flags & NLM_F_EXCL != 0 => Insert::Exclusive,
        flags if flags & NLM_F_APPEND != 0 => Insert::Append,
        _ => Insert::Prepend,
    };
    let route = Route {
        destination,
        kind: kind.ok_or(Errno::EINVAL)?,
        interface: interface.unwrap_or(0),
        gateway: gateway.filter(|gateway| *gateway != A::NONE),
        source,
        metric: metric.filter(|metric| *metric != 0).unwrap_or(A::METRIC),
        protocol,
        scope: if A::HAS_SCOPES { scope } else { 0 },
    };
    A::add(host, route, insert)
}

fn change_neighbour(host: &Host, request: NlmsgHeader, body: &Body<'_>) -> Result<()> {
    let address = if body.is_v6()? {
        body.ip::<Ipv6Addr>(NDA_DST)?.map(IpAddr::V6)
    } else {
        body.ip::<Ipv4Addr>(NDA_DST)?.map(IpAddr::V4)
    };
    let key = Key {
        interface: body.word(4),
        address: address.ok_or(Errno::EINVAL)?,
    };
    if host.interface(key.interface).is_none() {
        return Err(Errno::ENODEV);
    }
    if request.kind == RTM_DELNEIGH {
        return host.remove_neighbour(key);
    }
    let state = match u16::from_ne_bytes([body.byte(8), body.byte(9)]) {
        0x02 => State::Reachable,
        0x04 => State::Stale,
        0x08 => State::Delay,
        0x10 => State::Probe,
        // `NUD_NOARP` is never asked, either.
        0x40 | 0x80 => State::Permanent,
        _ => return Err(Errno::EINVAL),
    };
    let hardware = body.value::<6>(NDA_LLADDR)?.ok_or(Errno::EINVAL)?;
    let create = request.flags & NLM_F_CREATE != 0;
    let exclusive = request.flags & NLM_F_EXCL != 0;
    host.set_neighbour(key, hardware, state, (create, exclusive))
}
