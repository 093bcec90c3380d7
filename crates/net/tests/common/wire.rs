//! Hosts with a card each, on a wire that the test runs by itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use net::inet::Host;
use net::socket::{AddressLife, InterfaceAddress};
use net::{Address, Frame, FrameRefused, LinkKind, NetDevice, NewInterface, Stack};

/// An end of a wire: what it sends waits until the wire is run, so that no host is called from
/// within itself.
#[derive(Default)]
pub struct End {
    pub sent: Mutex<Vec<Vec<u8>>>,
    /// Frames that wait at most; none: any number.
    pub room: Mutex<Option<usize>>,
    /// Whether somebody was told that there is no room.
    pub is_awaited: AtomicBool,
}

impl End {
    /// Takes the frames that were sent, in order.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }
}

impl NetDevice for End {
    fn transmit(&self, frame: Frame) -> Result<(), FrameRefused> {
        let mut sent = self.sent.lock().unwrap();
        if self
            .room
            .lock()
            .unwrap()
            .is_some_and(|room| sent.len() >= room)
        {
            self.is_awaited.store(true, Ordering::Relaxed);
            return Err(FrameRefused::NoRoom(frame));
        }
        sent.push(frame.data);
        Ok(())
    }
}

/// A host with one card, `eth0`, that is up and has the address 10.0.0.`number`.
pub struct Machine {
    pub host: Arc<Host>,
    pub stack: Arc<Stack>,
    pub end: Arc<End>,
    /// Number of the interface.
    pub index: u32,
    pub address: Ipv4Addr,
}

impl Machine {
    pub fn new(host: Arc<Host>, number: u8) -> Self {
        let end = Arc::new(End::default());
        let stack = Stack::new(host.clone());
        let interface = NewInterface {
            name: "eth%d",
            link: LinkKind::Ethernet([2, 0, 0, 0, 0, number]),
            mtu: 1500,
            max_mtu: 9000,
            queue_len: 1000,
            has_carrier: true,
            has_ipv6: false,
        };
        let index = host.add_interface(&interface, end.clone()).unwrap();
        host.set_up(index, true).unwrap();
        let address = Ipv4Addr::new(10, 0, 0, number);
        host.add_address(index, own(address), false).unwrap();
        Self {
            host,
            stack,
            end,
            index,
            address,
        }
    }
}

/// An address of a host in 10.0.0.0/24.
pub fn own(ip: Ipv4Addr) -> InterfaceAddress {
    InterfaceAddress {
        ip: ip.into(),
        prefix_len: 24,
        peer: None,
        broadcast: Some(Ipv4Addr::new(10, 0, 0, 255)),
        scope: 0,
        life: AddressLife::default(),
        label: None,
    }
}

/// An address of a socket.
pub fn inet(ip: Ipv4Addr, port: u16) -> Address {
    Address::Inet(SocketAddr::new(ip.into(), port))
}
