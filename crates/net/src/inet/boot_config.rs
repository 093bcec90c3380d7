//! The address that the kernel's command line gives the machine, in Linux' words
//! (`Documentation/admin-guide/nfs/nfsroot.rst`):
//!
//! ```text
//! ip=ADDRESS:SERVER:GATEWAY:NETMASK:HOSTNAME:DEVICE:AUTOCONF:DNS0:DNS1:NTP0
//! ```

use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;
use core::net::{IpAddr, Ipv4Addr};

use ::ip::route::{Insert, Kind, Prefix, Route, netmask_len};
use abi::errno::Errno;
use linux_raw_sys::net::net_device_flags::IFF_LOOPBACK;

use super::host::{Host, class_prefix_len};
use crate::socket::{AddressLife, Interface, InterfaceAddress, Interfaces};

/// Maker of routes at boot (`RTPROT_BOOT`).
const BY_BOOT: u8 = 3;

/// The settings of an interface on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootConfig<'a> {
    /// Address of the machine.
    pub address: Ipv4Addr,
    /// Bits of the network's prefix; of the address' class if there is no netmask.
    pub prefix_len: u8,
    /// Server that a root file system would come from, which `/proc/net/pnp` tells.
    pub server: Option<Ipv4Addr>,
    /// Gateway of the default route.
    pub gateway: Option<Ipv4Addr>,
    /// Name of the machine.
    pub hostname: Option<&'a str>,
    /// Interface; the first one that is not the loop if none is named.
    pub device: Option<&'a str>,
    /// Name servers, which `/proc/net/pnp` tells.
    pub name_servers: [Option<Ipv4Addr>; 2],
}

impl<'a> BootConfig<'a> {
    /// Settings of the value of `ip=`; `None` if it asks for nothing (`off`, `none`).
    ///
    /// # Errors
    /// The field that makes no sense, or what is not there: addresses that the network gives.
    pub fn parse(value: &'a str) -> Result<Option<Self>, &'static str> {
        if value.split(':').count() > 10 {
            return Err("there are more than ten fields");
        }
        let mut fields = value
            .split(':')
            .map(|field| Some(field).filter(|f| !f.is_empty()));
        let mut next = || fields.next().flatten();
        let (first, server, gateway, netmask) = (next(), next(), next(), next());
        let (hostname, device, autoconf) = (next(), next(), next());
        let (dns0, dns1, ntp) = (next(), next(), next());
        // One word alone is how addresses are asked for, not an address.
        let is_word = first.is_some_and(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
        let (address, autoconf) = match (is_word, value.contains(':')) {
            (true, false) => (None, first),
            _ => (first, autoconf),
        };
        match autoconf {
            None | Some("off" | "none" | "static") => {}
            Some("on" | "any" | "dhcp" | "bootp" | "rarp" | "both") if address.is_none() => {
                return Err("the kernel asks no server for an address: give one, or run udhcpc");
            }
            Some("on" | "any" | "dhcp" | "bootp" | "rarp" | "both") => {}
            Some(_) => return Err("AUTOCONF is none of off, none, static, on, any, dhcp"),
        }
        let Some(address) = address else {
            return Ok(None);
        };
        let address: Ipv4Addr = address.parse().map_err(|_| "ADDRESS is no IPv4 address")?;
        if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            return Err("ADDRESS is no host's");
        }
        let prefix_len = match netmask {
            None => class_prefix_len(address),
            Some(mask) => netmask_len(mask.parse().map_err(|_| "NETMASK is no netmask")?)
                .ok_or("NETMASK has holes")?,
        };
        optional(ntp, "NTP0 is no IPv4 address")?;
        Ok(Some(Self {
            address,
            prefix_len,
            server: optional(server, "SERVER is no IPv4 address")?,
            gateway: optional(gateway, "GATEWAY is no IPv4 address")?,
            hostname,
            device,
            name_servers: [
                optional(dns0, "DNS0 is no IPv4 address")?,
                optional(dns1, "DNS1 is no IPv4 address")?,
            ],
        }))
    }

    /// Sets the interface up, with the address and the default route. Returns the interface's name.
    ///
    /// # Errors
    /// What was refused; nothing is undone, as on Linux.
    pub fn apply(&self, host: &Host) -> Result<String, String> {
        let Some(interface) = self.interface(host) else {
            return Err(match self.device {
                Some(name) => format!("there is no interface {name}"),
                None => "there is no interface but the loop".into(),
            });
        };
        let refused = |what: &'static str| move |error: Errno| format!("{what}: {error}");
        let index = interface.index;
        host.set_up(index, true)
            .map_err(refused("the interface does not come up"))?;
        let broadcast = Prefix::of(self.address, self.prefix_len).and_then(Prefix::broadcast);
        let address = InterfaceAddress {
            ip: IpAddr::V4(self.address),
            prefix_len: self.prefix_len,
            peer: None,
            broadcast,
            scope: 0,
            life: AddressLife::default(),
            label: None,
        };
        host.add_address(index, address, true)
            .map_err(refused("the address is refused"))?;
        if let Some(gateway) = self.gateway {
            let route = Route {
                destination: Prefix {
                    address: Ipv4Addr::UNSPECIFIED,
                    length: 0,
                },
                kind: Kind::Unicast,
                interface: index,
                gateway: Some(gateway),
                source: None,
                metric: 0,
                protocol: BY_BOOT,
                scope: 0,
            };
            host.add_route(route, Insert::Exclusive)
                .map_err(refused("the gateway is refused"))?;
        }
        Ok(String::from(&*interface.name))
    }

    fn interface(&self, host: &Host) -> Option<Interface> {
        match self.device {
            Some(name) => host.interface_named(name),
            None => host
                .interfaces()
                .into_iter()
                .find(|one| one.flags & IFF_LOOPBACK as u32 == 0),
        }
    }

    /// The text of `/proc/net/pnp`, which can be a machine's `resolv.conf`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("#MANUAL\n");
        let lines = [
            ("nameserver", self.name_servers[0]),
            ("nameserver", self.name_servers[1]),
            ("bootserver", self.server),
        ];
        for (key, address) in lines {
            if let Some(address) = address {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{key} {address}");
            }
        }
        text
    }
}

fn optional(field: Option<&str>, wrong: &'static str) -> Result<Option<Ipv4Addr>, &'static str> {
    let address = field.map(str::parse::<Ipv4Addr>).transpose();
    let address = address.map_err(|_| wrong)?;
    Ok(address.filter(|address| !address.is_unspecified()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Option<BootConfig<'_>> {
        BootConfig::parse(value).unwrap()
    }

    #[test]
    fn all_fields_are_read() {
        let config = parse(
            "10.0.2.15:10.0.2.9:10.0.2.2:255.255.255.0:rock:eth1:off:10.0.2.3:10.0.2.4:10.0.2.5",
        );
        let expected = BootConfig {
            address: Ipv4Addr::new(10, 0, 2, 15),
            prefix_len: 24,
            server: Some(Ipv4Addr::new(10, 0, 2, 9)),
            gateway: Some(Ipv4Addr::new(10, 0, 2, 2)),
            hostname: Some("rock"),
            device: Some("eth1"),
            name_servers: [3, 4].map(|last| Some(Ipv4Addr::new(10, 0, 2, last))),
        };
        assert_eq!(config, Some(expected));
        assert_eq!(
            expected.text(),
            "#MANUAL\nnameserver 10.0.2.3\nnameserver 10.0.2.4\nbootserver 10.0.2.9\n"
        );
    }

    #[test]
    fn what_is_left_out_is_as_on_linux() {
        let short = parse("192.168.7.1").unwrap();
        assert_eq!((short.prefix_len, short.gateway), (24, None));
        assert_eq!(parse("10.1.1.1::0.0.0.0").unwrap().gateway, None);
        assert_eq!(parse("10.1.1.1").unwrap().prefix_len, 8);
        assert_eq!(parse("172.16.0.1").unwrap().prefix_len, 16);
        assert_eq!(parse("10.1.1.1:::255.255.255.255").unwrap().prefix_len, 32);
        for nothing in ["off", "none", "", ":::::eth0:off"] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        for (value, field) in [
            ("10.0.0", "ADDRESS"),
            ("224.0.0.1", "ADDRESS"),
            ("10.0.0.1:::255.0.255.0", "NETMASK"),
            ("10.0.0.1::x", "GATEWAY"),
            ("10.0.0.1:x", "SERVER"),
            ("10.0.0.1::::::sometimes", "AUTOCONF"),
            ("10.0.0.1:::::::x", "DNS0"),
            ("10.0.0.1:::::::::x", "NTP0"),
            ("10.0.0.1::::::::::", "ten fields"),
            ("dhcp", "udhcpc"),
            (":::::eth0:dhcp", "udhcpc"),
        ] {
            let error = BootConfig::parse(value).unwrap_err();
            assert!(error.contains(field), "{value}: {error}");
        }
    }
}
