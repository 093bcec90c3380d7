//! The interfaces of a host, beside its loop.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::Ipv4Addr;
use core::sync::atomic::AtomicUsize;

use abi::errno::Errno;
use fallible::Text;
use fs::Result;
use ip::groups::Groups;
use linux_raw_sys::net::net_device_flags::{
    IFF_BROADCAST, IFF_LOWER_UP, IFF_MULTICAST, IFF_NOARP, IFF_POINTOPOINT, IFF_RUNNING, IFF_UP,
};

use super::super::loopback::Loopback;
use super::link::LinkDevice;
use super::send_queue::SendQueue;
use super::v6::Ipv6Link;
use crate::socket::{Interface, InterfaceName, LinkKind, NetDevice, NewInterface, Traffic};

/// Interfaces that there may be, beside the loop.
const MOST: usize = 256;
/// `ARPHRD_*`.
const ETHERNET: u16 = 1;
const NONE: u16 = 0xfffe;
/// The least MTU that an interface may have (RFC 791, section 3.2).
pub(super) const LEAST_MTU: u32 = ip::ipv4::LEAST_MTU as u32;

/// An interface with its driver.
pub(super) struct Registered {
    /// The interface, without its traffic, which its card counts.
    pub(super) shown: Interface,
    pub(super) card: Arc<LinkDevice>,
    pub(super) max_mtu: u32,
    pub(super) v6: Ipv6Link,
    /// Groups of IPv4.
    pub(super) groups: Groups<Ipv4Addr>,
    has_carrier: bool,
}

impl Registered {
    /// The interface as lists show it, with its traffic.
    pub(super) fn interface(&self) -> Interface {
        Interface {
            received: self.card.received.read(),
            sent: self.card.sent.read(),
            ..self.shown.clone()
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.shown.has_flag(IFF_UP)
    }

    /// Sets `IFF_UP`; the flags that follow from it follow.
    pub(super) fn set_up(&mut self, is_up: bool) {
        self.set_flag(IFF_UP as u32, is_up);
        self.update_running();
    }

    /// Sets whether the link is up. Returns whether that is news.
    pub(super) fn set_carrier(&mut self, has_carrier: bool) -> bool {
        let is_news = has_carrier != self.has_carrier;
        self.has_carrier = has_carrier;
        self.update_running();
        is_news
    }

    /// Whether the link is up.
    pub(super) fn has_carrier(&self) -> bool {
        self.has_carrier
    }

    fn set_flag(&mut self, flag: u32, is_set: bool) {
        if is_set {
            self.shown.flags |= flag;
        } else {
            self.shown.flags &= !flag;
        }
    }

    fn update_running(&mut self) {
        let running = self.is_up() && self.has_carrier;
        self.set_flag(IFF_RUNNING as u32 | IFF_LOWER_UP as u32, running);
    }
}

/// Interfaces in the order of their numbers.
#[derive(Default)]
pub(super) struct Registry {
    interfaces: Vec<Registered>,
    /// The number that was given last; none comes back.
    last_index: u32,
    /// Number that grows whenever an interface may have changed.
    version: u64,
    /// Interfaces before which something waits to be sent.
    busy_cards: Arc<AtomicUsize>,
}

impl Registry {
    /// All interfaces, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Registered> {
        self.version += 1;
        self.interfaces.iter_mut()
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The number of interfaces before which something waits to be sent.
    pub(super) fn busy_cards(&self) -> Arc<AtomicUsize> {
        self.busy_cards.clone()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.interfaces.iter()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Registered> {
        self.position(index).map(|at| &self.interfaces[at])
    }

    /// The interface with a number.
    ///
    /// # Errors
    /// `ENODEV`.
    pub(super) fn get_mut(&mut self, index: u32) -> Result<&mut Registered> {
        let at = self.position(index).ok_or(Errno::ENODEV)?;
        self.version += 1;
        Ok(&mut self.interfaces[at])
    }

    /// The interface with a number, to be changed in ways that no packet's way hangs on.
    pub(super) fn get_unseen(&mut self, index: u32) -> Option<&mut Registered> {
        let at = self.position(index)?;
        self.nth_unseen(at)
    }

    /// The interface at a place, as [`Self::get_unseen`].
    pub(super) fn nth_unseen(&mut self, at: usize) -> Option<&mut Registered> {
        self.interfaces.get_mut(at)
    }

    fn position(&self, index: u32) -> Option<usize> {
        self.interfaces
            .binary_search_by_key(&index, |known| known.shown.index)
            .ok()
    }

    /// Adds an interface, which is down. Returns its number.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken, `EINVAL` for one that cannot be or an MTU that is too
    /// small, `ENFILE` if there are too many, `ENOMEM`.
    pub(super) fn add(
        &mut self,
        new: &NewInterface<'_>,
        device: Arc<dyn NetDevice>,
        v6: Ipv6Link,
    ) -> Result<u32> {
        if self.interfaces.len() >= MOST {
            return Err(Errno::ENFILE);
        }
        let name = self.new_name(new.name)?;
        if !(LEAST_MTU..=new.max_mtu).contains(&new.mtu) {
            return Err(Errno::EINVAL);
        }
        let (hardware_type, hardware_address, flags) = match new.link {
            LinkKind::Ethernet(address) => (
                ETHERNET,
                Some(address),
                IFF_BROADCAST as u32 | IFF_MULTICAST as u32,
            ),
            LinkKind::PointToPoint => (
                NONE,
                None,
                IFF_POINTOPOINT as u32 | IFF_NOARP as u32 | IFF_MULTICAST as u32,
            ),
        };
        let index = self
            .last_index
            .max(Loopback::INDEX)
            .checked_add(1)
            .filter(|index| index.cast_signed() > 0)
            .ok_or(Errno::ENFILE)?;
        let registered = Registered {
            shown: Interface {
                index,
                name,
                flags,
                hardware_type,
                mtu: new.mtu,
                queue_len: new.queue_len,
                hardware_address,
                addresses: Arc::default(),
                received: Traffic::default(),
                sent: Traffic::default(),
            },
            card: LinkDevice::new(
                index,
                device,
                SendQueue::new(new.queue_len, self.busy_cards.clone()),
            ),
            max_mtu: new.max_mtu,
            v6,
            groups: Groups::default(),
            has_carrier: new.has_carrier,
        };
        fallible::push(&mut self.interfaces, registered)?;
        self.last_index = index;
        self.version += 1;
        Ok(index)
    }

    /// Takes an interface out.
    ///
    /// # Errors
    /// `ENODEV`.
    pub(super) fn remove(&mut self, index: u32) -> Result<Registered> {
        let at = self.position(index).ok_or(Errno::ENODEV)?;
        self.version += 1;
        Ok(self.interfaces.remove(at))
    }

    /// A name that no interface has, of one with or without `%d` in it.
    ///
    /// # Errors
    /// `EEXIST`, `EINVAL`.
    pub(super) fn new_name(&self, asked: &str) -> Result<InterfaceName> {
        let is_taken = |name: &InterfaceName| {
            *name == Loopback::name() || self.iter().any(|known| known.shown.name == *name)
        };
        let Some((before, after)) = asked.split_once("%d") else {
            // Any other sign of a format is refused, as by Linux.
            let name = InterfaceName::new(asked).filter(|name| !name.contains('%'));
            let name = name.ok_or(Errno::EINVAL)?;
            return if is_taken(&name) {
                Err(Errno::EEXIST)
            } else {
                Ok(name)
            };
        };
        for number in 0..=MOST {
            let mut text = Text::default();
            write!(text, "{before}{number}{after}").map_err(|_| Errno::ENOMEM)?;
            let name = InterfaceName::new(&text.into_string()).filter(|name| !name.contains('%'));
            let name = name.ok_or(Errno::EINVAL)?;
            if !is_taken(&name) {
                return Ok(name);
            }
        }
        Err(Errno::ENFILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{Frame, FrameRefused};

    struct Nowhere;

    impl NetDevice for Nowhere {
        fn transmit(&self, _: Frame) -> core::result::Result<(), FrameRefused> {
            Err(FrameRefused::Lost)
        }
    }

    fn new(name: &str) -> NewInterface<'_> {
        NewInterface {
            name,
            link: LinkKind::PointToPoint,
            mtu: 1500,
            max_mtu: 65_535,
            queue_len: 500,
            has_carrier: true,
            has_ipv6: false,
        }
    }

    #[test]
    fn numbers_do_not_come_back_and_names_do() {
        let mut registry = Registry::default();
        let mut add = |name| registry.add(&new(name), Arc::new(Nowhere), Ipv6Link::default());
        assert_eq!(
            (add("tun%d"), add("tun%d"), add("tun%d")),
            (Ok(2), Ok(3), Ok(4))
        );
        assert_eq!(
            (add("tun1"), add("lo")),
            (Err(Errno::EEXIST), Err(Errno::EEXIST))
        );
        for bad in ["", "a%s", "%d%d", "fourteen-char-%d%d", "sixteen-letters-"] {
            assert_eq!(add(bad), Err(Errno::EINVAL), "{bad}");
        }
        registry.remove(3).unwrap();
        assert_eq!(
            registry.add(&new("tun%d"), Arc::new(Nowhere), Ipv6Link::default()),
            Ok(5)
        );
        assert_eq!(&*registry.get(5).unwrap().shown.name, "tun1");
        assert!(registry.get(3).is_none() && registry.remove(3).is_err());
    }

    #[test]
    fn there_is_a_bound() {
        let mut registry = Registry::default();
        for _ in 0..MOST {
            registry
                .add(&new("tun%d"), Arc::new(Nowhere), Ipv6Link::default())
                .unwrap();
        }
        assert_eq!(
            registry.add(&new("one-more"), Arc::new(Nowhere), Ipv6Link::default()),
            Err(Errno::ENFILE)
        );
    }

    #[test]
    fn a_link_runs_if_it_is_up_and_has_a_carrier() {
        let mut registry = Registry::default();
        let index = registry
            .add(&new("tun0"), Arc::new(Nowhere), Ipv6Link::default())
            .unwrap();
        let one = registry.get_mut(index).unwrap();
        assert!(!one.is_up() && !one.shown.has_flag(IFF_RUNNING));
        one.set_up(true);
        assert!(one.shown.has_flag(IFF_RUNNING) && one.shown.has_flag(IFF_LOWER_UP));
        assert!(one.set_carrier(false) && !one.set_carrier(false));
        assert!(one.is_up() && !one.shown.has_flag(IFF_RUNNING));
    }
}
