//! The switch between instances and their supervisor, as pure logic
//! (`docs/instance-networks.md`): who has which address, who may send what, and who gets it.
//!
//! It holds no frames. Whoever moves them asks it about each ([`Switch::judge`]).
//!
//! ```
//! use abi::network::Subnet;
//! use switch::{Source, Switch, Verdict};
//!
//! let mut switch = Switch::new(Subnet::BRIDGE);
//! let first = switch.add(7, None, "first").unwrap();
//! let second = switch.add(8, None, "second").unwrap();
//! assert_eq!([first, second].map(|address| address.octets()), [[10, 88, 0, 2], [10, 88, 0, 3]]);
//!
//! let mut frame = [0; 34];
//! frame[..6].copy_from_slice(&abi::network::mac_of(second));
//! frame[6..12].copy_from_slice(&abi::network::mac_of(first));
//! frame[12..14].copy_from_slice(&[8, 0]);
//! frame[14] = 0x45;
//! frame[26..30].copy_from_slice(&first.octets());
//! let verdict = switch.judge(Source::Port(7), &frame);
//! assert_eq!(verdict, Verdict::Port(8));
//! frame[29] += 1;
//! assert_eq!(switch.judge(Source::Port(7), &frame), Verdict::Refused);
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod frame;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use abi::descriptor::MAX_CPUS;
use abi::dev::NetworkCounters;
use abi::network::{Subnet, mac_of};
pub use frame::sends_as;

/// Ports that there may be, beside the uplink: an instance has a CPU at least.
pub const MOST_PORTS: usize = MAX_CPUS;

/// A port, with what its owner keeps there.
#[derive(Debug)]
pub struct Port<T> {
    number: u32,
    address: Ipv4Addr,
    /// Frames that went through the port, and that did not.
    pub counters: NetworkCounters,
    /// The owner's own.
    pub value: T,
}

impl<T> Port<T> {
    /// Number of its owner.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The only address that it sends from.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}

/// Why there is no port for an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// A port has the address, and this number.
    Taken(u32),
    /// The address is not one that an instance may have.
    Foreign,
    /// There are [`MOST_PORTS`], or all addresses are taken.
    Full,
    /// There is no memory.
    NoMemory,
}

/// Sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The supervisor.
    Uplink,
    /// The port of this number.
    Port(u32),
}

/// Whereto with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nowhere: its sender may not send it.
    Refused,
    /// Nowhere: nobody has its destination.
    Nobody,
    /// To the supervisor.
    Uplink,
    /// To the port of this number.
    Port(u32),
    /// To all but its sender.
    All,
}

/// The switch: ports in the order of their addresses.
#[derive(Debug)]
pub struct Switch<T> {
    subnet: Subnet,
    ports: Vec<Port<T>>,
}

impl<T> Switch<T> {
    /// A switch with the uplink alone, of a network with these addresses.
    #[must_use]
    pub const fn new(subnet: Subnet) -> Self {
        Self {
            subnet,
            ports: Vec::new(),
        }
    }

    /// Addresses of the network.
    #[must_use]
    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// All ports, in the order of their addresses.
    pub fn ports(&self) -> impl Iterator<Item = &Port<T>> {
        self.ports.iter()
    }

    /// All ports, to be changed.
    pub fn ports_mut(&mut self) -> impl Iterator<Item = &mut Port<T>> {
        self.ports.iter_mut()
    }

    /// The port of a number.
    #[must_use]
    pub fn port(&self, number: u32) -> Option<&Port<T>> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// The port of a number, to be changed.
    pub fn port_mut(&mut self, number: u32) -> Option<&mut Port<T>> {
        self.ports.iter_mut().find(|port| port.number == number)
    }

    /// The place of an address among the ports: where it is, or where it would be.
    fn place(&self, address: Ipv4Addr) -> Result<usize, usize> {
        self.ports
            .binary_search_by_key(&address, |port| port.address)
    }

    /// Adds a port with a number that no other one has, and an address: the one that is wanted, or
    /// the lowest that is free. Returns the address.
    ///
    /// # Errors
    /// Nothing was changed: [`AddError`].
    pub fn add(
        &mut self,
        number: u32,
        wanted: Option<Ipv4Addr>,
        value: T,
    ) -> Result<Ipv4Addr, AddError> {
        if self.ports.len() >= MOST_PORTS {
            return Err(AddError::Full);
        }
        let address = match wanted {
            Some(address) if !self.subnet.is_assignable(address) => {
                return Err(AddError::Foreign);
            }
            Some(address) => address,
            // If there are as many one of them is free: there are fewer ports.
            None => (1..=MOST_PORTS as u32 + 2)
                .map(|number| self.subnet.address(number))
                .find(|address| {
                    self.subnet.is_assignable(*address) && self.place(*address).is_err()
                })
                .ok_or(AddError::Full)?,
        };
        let at = match self.place(address) {
            Ok(at) => return Err(AddError::Taken(self.ports[at].number)),
            Err(at) => at,
        };
        let port = Port {
            number,
            address,
            counters: NetworkCounters::default(),
            value,
        };
        fallible::push(&mut self.ports, port).map_err(|_| AddError::NoMemory)?;
        self.ports[at..].rotate_right(1);
        Ok(address)
    }

    /// Takes the port of a number away; its address is free then.
    pub fn remove(&mut self, number: u32) -> Option<Port<T>> {
        let at = self.ports.iter().position(|port| port.number == number)?;
        Some(self.ports.remove(at))
    }

    /// Says whereto with a frame, and counts it if it goes nowhere. The supervisor may send what it
    /// likes: it forwards what others have sent.
    pub fn judge(&mut self, source: Source, frame: &[u8]) -> Verdict {
        if let Source::Port(number) = source {
            let Some(port) = self.port_mut(number) else {
                return Verdict::Refused;
            };
            if !sends_as(frame, port.address) {
                port.counters.refused += 1;
                return Verdict::Refused;
            }
        }
        let verdict = self.destination(frame);
        // A frame to its own sender is for nobody here.
        let is_own = match (source, verdict) {
            (Source::Uplink, Verdict::Uplink) => true,
            (Source::Port(from), Verdict::Port(to)) => from == to,
            _ => false,
        };
        let verdict = if is_own { Verdict::Nobody } else { verdict };
        if let Source::Port(number) = source
            && let Some(port) = self.port_mut(number)
        {
            if verdict == Verdict::Nobody {
                port.counters.sent_lost += 1;
            } else {
                port.counters.sent += 1;
                port.counters.sent_bytes += frame.len() as u64;
            }
        }
        verdict
    }

    /// The one whose address a frame has as its destination.
    fn destination(&self, frame: &[u8]) -> Verdict {
        let Some(to) = frame.first_chunk::<6>() else {
            return Verdict::Nobody;
        };
        if to[0] & 1 != 0 {
            return Verdict::All;
        }
        let [_, _, a, b, c, d] = *to;
        let address = Ipv4Addr::new(a, b, c, d);
        if mac_of(address) != *to {
            return Verdict::Nobody;
        }
        match self.place(address) {
            Ok(at) => Verdict::Port(self.ports[at].number),
            Err(_) if address == self.subnet.gateway() => Verdict::Uplink,
            Err(_) => Verdict::Nobody,
        }
    }
}
