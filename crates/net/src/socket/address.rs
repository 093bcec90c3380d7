//! Socket addresses, as values and as the bytes of `struct sockaddr`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

/// Bytes of the family at the start of every address.
const FAMILY: usize = 2;
/// Bytes of a name in `struct sockaddr_un`.
const UNIX_PATH_MAX: usize = 108;

/// The name of an `AF_UNIX` socket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum UnixName {
    /// Nowhere.
    Unnamed,
    /// At a name in the file system, as the caller of `bind(2)` wrote it.
    Path(Arc<[u8]>),
    /// In the table of abstract names.
    Abstract(Arc<[u8]>),
}

/// An address of some family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `AF_UNSPEC`: none (`connect(2)` dissolves an association with it).
    Unspec,
    /// `AF_UNIX`.
    Unix(UnixName),
    /// `AF_INET` or `AF_INET6`.
    Inet(SocketAddr),
    /// `AF_NETLINK`: a port, and a set of groups.
    Netlink(u32, u32),
    /// `AF_PACKET`.
    Packet(LinkAddress),
    /// Bytes that are no address of the socket's family, with the error of a call that looks at
    /// them.
    Invalid(Errno),
}

/// The address of a packet's sender or receiver: `struct sockaddr_ll`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkAddress {
    /// The protocol of the contents (`ETH_P_*`).
    pub protocol: u16,
    /// The interface's number.
    pub interface_index: i32,
    /// The kind of interface (`ARPHRD_*`).
    pub hardware_type: u16,
    /// The direction of the packet: to this host, away from it (`PACKET_*`).
    pub packet_type: u8,
    /// Bytes of the hardware's address.
    pub hardware_len: u8,
    /// The hardware's address.
    pub hardware_address: [u8; 8],
}

impl Address {
    /// The address that the bytes of a `struct sockaddr` mean. A name of a path ends at its first
    /// NUL.
    ///
    /// # Errors
    /// `EINVAL` for a wrong length, `EAFNOSUPPORT` for a family nobody knows.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (family, rest) = bytes.split_first_chunk::<FAMILY>().ok_or(Errno::EINVAL)?;
        match u32::from(u16::from_ne_bytes(*family)) {
            net::AF_UNSPEC => Ok(Self::Unspec),
            net::AF_UNIX => match rest {
                _ if rest.len() > UNIX_PATH_MAX => Err(Errno::EINVAL),
                [] => Ok(Self::Unix(UnixName::Unnamed)),
                [0, name @ ..] => Ok(Self::Unix(UnixName::Abstract(name.into()))),
                path => Ok(Self::Unix(UnixName::Path(
                    path.split(|&b| b == 0).next().unwrap_or_default().into(),
                ))),
            },
            net::AF_INET => inet(rest).ok_or(Errno::EINVAL),
            net::AF_INET6 => inet6(rest).ok_or(Errno::EINVAL),
            net::AF_NETLINK => netlink(rest).ok_or(Errno::EINVAL),
            net::AF_PACKET => link(rest).ok_or(Errno::EINVAL),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Decodes a `struct sockaddr` for a socket of a family. Many calls fail for other reasons
    /// first, or need no address: what is none of the family is [`Address::Invalid`].
    #[must_use]
    pub fn decode_for_family(family: u32, bytes: &[u8]) -> Self {
        let named = bytes
            .first_chunk()
            .map(|family| u32::from(u16::from_ne_bytes(*family)));
        // Of an internet address the length comes before the family, of which only they make a
        // difference.
        let least = match family {
            net::AF_INET => 16,
            net::AF_INET6 => 24,
            _ => usize::MAX,
        };
        match Self::decode(bytes) {
            Ok(address)
                if named.is_some_and(|named| named == family || named == net::AF_UNSPEC) =>
            {
                address
            }
            // Datagrams of IPv6 may go to such an address, too.
            Ok(address @ Self::Inet(_))
                if (family, named) == (net::AF_INET6, Some(net::AF_INET)) =>
            {
                address
            }
            _ if named == Some(family) || bytes.len() < least => Self::Invalid(Errno::EINVAL),
            _ => Self::Invalid(Errno::EAFNOSUPPORT),
        }
    }

    /// The address as the kernel gives it to programs. What is none has no bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut family = |family: u32| bytes.extend_from_slice(&(family as u16).to_ne_bytes());
        match self {
            Self::Invalid(_) => {}
            Self::Unspec => family(net::AF_UNSPEC),
            Self::Unix(name) => {
                family(net::AF_UNIX);
                match name {
                    UnixName::Unnamed => {}
                    UnixName::Path(path) => {
                        bytes.extend_from_slice(path);
                        bytes.push(0);
                    }
                    UnixName::Abstract(name) => {
                        bytes.push(0);
                        bytes.extend_from_slice(name);
                    }
                }
            }
            Self::Netlink(port, groups) => {
                family(net::AF_NETLINK);
                bytes.extend_from_slice(&[0; 2]);
                bytes.extend_from_slice(&port.to_ne_bytes());
                bytes.extend_from_slice(&groups.to_ne_bytes());
            }
            Self::Packet(address) => {
                family(net::AF_PACKET);
                bytes.extend_from_slice(&address.protocol.to_be_bytes());
                bytes.extend_from_slice(&address.interface_index.to_ne_bytes());
                bytes.extend_from_slice(&address.hardware_type.to_ne_bytes());
                bytes.extend_from_slice(&[address.packet_type, address.hardware_len]);
                bytes.extend_from_slice(&address.hardware_address);
            }
            Self::Inet(SocketAddr::V4(address)) => {
                family(net::AF_INET);
                bytes.extend_from_slice(&address.port().to_be_bytes());
                bytes.extend_from_slice(&address.ip().octets());
                bytes.extend_from_slice(&[0; 8]);
            }
            Self::Inet(SocketAddr::V6(address)) => {
                family(net::AF_INET6);
                bytes.extend_from_slice(&address.port().to_be_bytes());
                bytes.extend_from_slice(&address.flowinfo().to_be_bytes());
                bytes.extend_from_slice(&address.ip().octets());
                bytes.extend_from_slice(&address.scope_id().to_ne_bytes());
            }
        }
        bytes
    }
}

/// Decodes what follows the family in a `struct sockaddr_in`, padding included.
fn inet(rest: &[u8]) -> Option<Address> {
    let (port, rest) = rest.split_first_chunk()?;
    let (ip, rest) = rest.split_first_chunk::<4>()?;
    rest.first_chunk::<8>()?;
    Some(Address::Inet(
        SocketAddrV4::new(Ipv4Addr::from(*ip), u16::from_be_bytes(*port)).into(),
    ))
}

/// Decodes what follows the family in a `struct sockaddr_ll`.
fn link(rest: &[u8]) -> Option<Address> {
    let (protocol, rest) = rest.split_first_chunk()?;
    let (interface, rest) = rest.split_first_chunk()?;
    let (kind, rest) = rest.split_first_chunk()?;
    let ([way, length], rest) = rest.split_first_chunk()?;
    Some(Address::Packet(LinkAddress {
        protocol: u16::from_be_bytes(*protocol),
        interface_index: i32::from_ne_bytes(*interface),
        hardware_type: u16::from_ne_bytes(*kind),
        packet_type: *way,
        hardware_len: *length,
        hardware_address: *rest.first_chunk()?,
    }))
}

/// Decodes what follows the family in a `struct sockaddr_nl`.
fn netlink(rest: &[u8]) -> Option<Address> {
    let (_, rest) = rest.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk()?;
    let groups = rest.first_chunk()?;
    Some(Address::Netlink(
        u32::from_ne_bytes(*port),
        u32::from_ne_bytes(*groups),
    ))
}

/// Decodes what follows the family in a `struct sockaddr_in6`; the scope may be missing.
fn inet6(rest: &[u8]) -> Option<Address> {
    let (port, rest) = rest.split_first_chunk()?;
    let (flow, rest) = rest.split_first_chunk()?;
    let (ip, rest) = rest.split_first_chunk::<16>()?;
    let scope = rest
        .first_chunk()
        .map_or(0, |scope| u32::from_ne_bytes(*scope));
    let flow = u32::from_be_bytes(*flow);
    Some(Address::Inet(
        SocketAddrV6::new(Ipv6Addr::from(*ip), u16::from_be_bytes(*port), flow, scope).into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(name: &[u8]) -> Vec<u8> {
        [&(net::AF_UNIX as u16).to_ne_bytes(), name].concat()
    }

    #[test]
    fn names_end_where_linux_ends_them() {
        let path = Address::decode(&unix(b"/run/x\0garbage")).unwrap();
        assert_eq!(
            path,
            Address::Unix(UnixName::Path(b"/run/x".as_slice().into()))
        );
        assert_eq!(path.encode(), unix(b"/run/x\0"));
        // An abstract name has the length it is given, NULs included.
        let name = Address::decode(&unix(b"\0a\0b")).unwrap();
        assert_eq!(
            name,
            Address::Unix(UnixName::Abstract(b"a\0b".as_slice().into()))
        );
        assert_eq!(name.encode(), unix(b"\0a\0b"));
        assert_eq!(Address::decode(&unix(b"")).unwrap().encode(), unix(b""));
    }

    #[test]
    fn wrong_lengths_and_families_are_refused() {
        assert_eq!(Address::decode(&[1]), Err(Errno::EINVAL));
        assert_eq!(Address::decode(&unix(&[b'x'; 109])), Err(Errno::EINVAL));
        assert!(Address::decode(&unix(&[b'x'; 108])).is_ok());
        assert_eq!(Address::decode(&[99, 0, 1, 2]), Err(Errno::EAFNOSUPPORT));
    }

    #[test]
    fn what_is_no_address_of_the_family_is_told_as_on_linux() {
        let meant = |family, bytes: &[u8]| Address::decode_for_family(family, bytes);
        let [wrong, foreign] = [Errno::EINVAL, Errno::EAFNOSUPPORT].map(Address::Invalid);
        let v4 = Address::Inet(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80).into());
        assert_eq!(meant(net::AF_INET, &v4.encode()), v4);
        assert_eq!(meant(net::AF_INET6, &v4.encode()), v4);
        assert_eq!(meant(net::AF_UNIX, &v4.encode()), wrong);
        assert_eq!(meant(net::AF_INET, &v4.encode()[..15]), wrong);
        assert_eq!(meant(net::AF_INET, &unix(b"name")), wrong);
        assert_eq!(meant(net::AF_INET, &unix(&[b'n'; 20])), foreign);
        assert_eq!(meant(net::AF_INET, &[0; 2]), Address::Unspec);
        assert_eq!(meant(net::AF_UNIX, &[99, 0, 1]), wrong);
        assert_eq!(meant(net::AF_UNIX, &[1]), wrong);
    }

    proptest::proptest! {
        #[test]
        fn every_decodable_address_survives(bytes in proptest::collection::vec(0u8.., 0..120)) {
            if let Ok(address) = Address::decode(&bytes) {
                let again = address.encode();
                // A path of 108 bytes gets a NUL behind it that does not fit into the structure, as
                // on Linux.
                if again.len() <= FAMILY + UNIX_PATH_MAX {
                    proptest::prop_assert_eq!(Address::decode(&again).unwrap(), address);
                }
            }
        }
    }

    fn of_family(family: u32, rest: &[u8]) -> Vec<u8> {
        [&(family as u16).to_ne_bytes(), rest].concat()
    }

    /// Each structure as it is in memory, the shortest that is accepted, and one byte less.
    #[test]
    fn structures_are_those_of_linux() {
        let v4 = of_family(
            net::AF_INET,
            &[0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        );
        let v6 = [
            &of_family(net::AF_INET6, &[0, 80, 0, 0, 0, 7])[..],
            &Ipv6Addr::LOCALHOST.octets(),
            &3u32.to_ne_bytes(),
        ]
        .concat();
        let netlink = [
            &of_family(net::AF_NETLINK, &[0, 0])[..],
            &55u32.to_ne_bytes(),
            &6u32.to_ne_bytes(),
        ]
        .concat();
        let hardware_address = [1, 2, 3, 4, 5, 6, 0, 0];
        let packet = [
            &of_family(net::AF_PACKET, &[0x08, 0x06])[..],
            &1i32.to_ne_bytes(),
            &772u16.to_ne_bytes(),
            &[4, 6],
            &hardware_address,
        ]
        .concat();
        let link = LinkAddress {
            protocol: 0x0806,
            interface_index: 1,
            hardware_type: 772,
            packet_type: 4,
            hardware_len: 6,
            hardware_address,
        };
        let cases = [
            (v4, 16, Address::Inet("127.0.0.1:8080".parse().unwrap())),
            (
                v6,
                24,
                Address::Inet(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 7, 3).into()),
            ),
            (netlink, 12, Address::Netlink(55, 6)),
            (packet, 20, Address::Packet(link)),
        ];
        for (bytes, least, address) in cases {
            assert_eq!(
                (address.encode(), Address::decode(&bytes)),
                (bytes.clone(), Ok(address.clone()))
            );
            assert_eq!(
                Address::decode(&[&bytes[..], &[9; 20]].concat()),
                Ok(address),
                "what follows is not looked at"
            );
            assert!(Address::decode(&bytes[..least]).is_ok());
            assert_eq!(Address::decode(&bytes[..least - 1]), Err(Errno::EINVAL));
        }
        assert_eq!(
            Address::decode(&of_family(net::AF_UNSPEC, b"")),
            Ok(Address::Unspec)
        );
        assert_eq!(Address::Unspec.encode(), of_family(net::AF_UNSPEC, b""));
        assert_eq!(
            (
                Address::decode(&[]),
                Address::decode(&of_family(net::AF_INET, b""))
            ),
            (Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
    }
}
