//! Neighbours: asking for them, answering who asks, and who wants an address that is this host's.

use core::net::{IpAddr, Ipv6Addr};

use ip::neighbour::{self, Key};
use ip::v6::address::{ALL_NODES, group_hardware, solicited_node};
use ip::v6::discovery::{self, Advertisement, Message, Nonce, Solicitation};
use ip::v6::{Candidate, Header, next, select_source};
use ip::{HardwareAddress, Nanos};

use super::is_usable;
use crate::inet::host::registry::Registered;
use crate::inet::host::state::{HostState, Work};
use crate::socket::address_flag::{DAD_FAILED, TENTATIVE};

impl HostState {
    /// Sends a message of neighbour discovery.
    fn send_discovery(
        &mut self,
        index: u32,
        to: HardwareAddress,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        message: &[u8],
        work: &mut Work,
    ) {
        let header = Header {
            traffic_class: 0,
            flow_label: 0,
            hop_limit: discovery::HOPS,
            source,
            destination,
        };
        self.push_v6(index, to, &header, next::ICMP, &[message, &[]], work);
    }

    /// Asks for a neighbour: all who may have the address, or the one that is known.
    pub(super) fn solicit_v6(&mut self, key: Key, known: Option<HardwareAddress>, work: &mut Work) {
        let (IpAddr::V6(target), Some(interface)) =
            (key.address, self.interfaces.get(key.interface))
        else {
            return;
        };
        let own = interface.usable_v6_addresses();
        let candidates = own.map(|(address, known)| Candidate {
            address,
            prefix_len: known.prefix_len,
            is_deprecated: false,
            is_outgoing: true,
        });
        let Some(source) = select_source(candidates, target) else {
            return;
        };
        let question = Solicitation {
            target,
            hardware: interface.shown.hardware_address,
            nonce: None,
        };
        let group = solicited_node(target);
        let (to, destination) = match known {
            Some(hardware) => (hardware, target),
            None => (group_hardware(group), group),
        };
        if let Some(message) = question.emit(source, destination) {
            self.send_discovery(key.interface, to, (source, destination), &message, work);
        }
    }

    /// Asks whether anybody has an address that this host wants.
    pub(super) fn ask_for_own(
        &mut self,
        index: u32,
        target: Ipv6Addr,
        nonce: Nonce,
        work: &mut Work,
    ) {
        let question = Solicitation {
            target,
            hardware: None,
            nonce: Some(nonce),
        };
        let (nobody, group) = (Ipv6Addr::UNSPECIFIED, solicited_node(target));
        if let Some(message) = question.emit(nobody, group) {
            let to = group_hardware(group);
            self.send_discovery(index, to, (nobody, group), &message, work);
        }
    }

    /// Takes a message of neighbour discovery that may be believed.
    pub(super) fn take_discovery(
        &mut self,
        now: Nanos,
        index: u32,
        header: &Header,
        message: &Message<'_>,
        work: &mut Work,
    ) {
        match message {
            Message::RouterSolicitation => {}
            Message::RouterAdvertisement(said) => {
                self.take_router(now, index, header.source, said, work);
            }
            Message::Solicitation(asked) => {
                self.take_solicitation(now, index, header, asked, work);
            }
            Message::Advertisement(said) => self.take_advertisement(now, index, said, work),
        }
    }

    /// The flags of an own address of an interface.
    fn own_flags(&self, index: u32, address: Ipv6Addr) -> Option<u32> {
        let mut all = self.interfaces.get(index)?.v6_addresses();
        all.find(|(own, _)| *own == address)
            .map(|(_, known)| known.life.flags)
    }

    fn take_solicitation(
        &mut self,
        now: Nanos,
        index: u32,
        header: &Header,
        asked: &Solicitation,
        work: &mut Work,
    ) {
        let Some(flags) = self.own_flags(index, asked.target) else {
            return;
        };
        if flags & (TENTATIVE | DAD_FAILED) != 0 {
            // Another one wants it, too, unless the wire brings the own question back.
            let is_probe = header.source.is_unspecified() && flags & DAD_FAILED == 0;
            if is_probe && !self.is_own_nonce(index, asked) {
                self.fail_probe(index, asked.target, work);
            }
            return;
        }
        let Some(own_hardware) = self
            .interfaces
            .get(index)
            .and_then(|one| one.shown.hardware_address)
        else {
            return;
        };
        let interface = self.interfaces.get(index);
        let is_router = interface.is_some_and(Registered::forwards_ipv6);
        let mut answer = Advertisement {
            target: asked.target,
            hardware: Some(own_hardware),
            is_router,
            is_solicited: true,
            overrides: true,
        };
        if header.source.is_unspecified() {
            // Who has no address hears it with all others.
            answer.is_solicited = false;
            if let Some(message) = answer.emit(asked.target, ALL_NODES) {
                let ends = (asked.target, ALL_NODES);
                self.send_discovery(index, group_hardware(ALL_NODES), ends, &message, work);
            }
            return;
        }
        let key = Key {
            interface: index,
            address: header.source.into(),
        };
        let to = match asked.hardware {
            Some(hardware) => {
                self.v6.neighbours.heard(now, key, hardware, false, true);
                hardware
            }
            // Who asks a single host need not say where it is: it is known, or it asks again.
            None => match self.known_hardware(key) {
                Some(hardware) => hardware,
                None => return,
            },
        };
        if let Some(message) = answer.emit(asked.target, header.source) {
            let ends = (asked.target, header.source);
            self.send_discovery(index, to, ends, &message, work);
        }
    }

    fn known_hardware(&self, key: Key) -> Option<HardwareAddress> {
        let mut all = self.v6.neighbours.iter();
        all.find(|known| known.key == key)?.hardware
    }

    fn is_own_nonce(&self, index: u32, asked: &Solicitation) -> bool {
        let interface = self.interfaces.get(index);
        interface.is_some_and(|one| {
            let mut probes = one.v6.probes.iter();
            probes.any(|probe| probe.address == asked.target && Some(probe.nonce) == asked.nonce)
        })
    }

    fn take_advertisement(
        &mut self,
        now: Nanos,
        index: u32,
        said: &Advertisement,
        work: &mut Work,
    ) {
        if let Some(flags) = self.own_flags(index, said.target) {
            // One that is in use stays so: a forger may say that it is another's, too.
            if flags & TENTATIVE != 0 && flags & DAD_FAILED == 0 {
                self.fail_probe(index, said.target, work);
            }
            return;
        }
        let key = Key {
            interface: index,
            address: said.target.into(),
        };
        let heard = neighbour::Advertisement {
            hardware: said.hardware,
            is_solicited: said.is_solicited,
            overrides: said.overrides,
            is_router: said.is_router,
        };
        let was_router = self.v6.neighbours.advertised(now, key, &heard);
        if was_router && !said.is_router {
            self.lose_router(index, said.target, work);
        }
    }

    /// The addresses that packets by an interface may come from: of all interfaces, or, to what is
    /// known on the link only, of that one.
    pub(super) fn v6_candidates(
        &self,
        index: u32,
        only_link: bool,
    ) -> impl Iterator<Item = Candidate> {
        use crate::socket::address_flag::DEPRECATED;
        let interfaces = self
            .interfaces
            .iter()
            .filter(move |one| one.carries_ipv6() && (!only_link || one.shown.index == index));
        interfaces.flat_map(move |one| {
            let own = one.v6_addresses().filter(|(_, known)| is_usable(known));
            own.map(move |(address, known)| Candidate {
                address,
                prefix_len: known.prefix_len,
                is_deprecated: known.life.flags & DEPRECATED != 0,
                is_outgoing: one.shown.index == index,
            })
        })
    }
}
