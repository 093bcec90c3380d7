//! Hosts with a card each, on a wire that the test runs by itself.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use abi::errno::Errno;
use fs::{File, OpenFlags};
use ip::SECOND;
use linux_raw_sys::net as sys;
use net::inet::Host;
use net::socket::{AddressLife, InterfaceAddress};
use net::{Address, Frame, FrameRefused, LinkKind, NetDevice, NewInterface, SocketType, Stack};

use super::{NOW, call, protocol};

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

thread_local! {
    /// The time of the test in this thread.
    pub static TIME: Cell<u64> = const { Cell::new(SECOND) };
}

pub fn pair() -> [Machine; 2] {
    TIME.set(SECOND);
    [1, 2].map(|number| Machine::new(Host::with_clock(|| TIME.get()), number))
}

/// Carries frames until no more are sent.
pub fn carry(machines: &[Machine; 2]) {
    loop {
        let mut any = false;
        for (from, to) in [(0, 1), (1, 0)] {
            let to = &machines[to];
            for data in machines[from].end.take() {
                any = true;
                to.host.receive(to.index, &data);
            }
        }
        if !any {
            return;
        }
    }
}

pub fn socket(machine: &Machine, kind: SocketType, port: u16) -> Arc<File> {
    let file = machine.stack.socket(sys::AF_INET, kind, 0);
    let file = file.unwrap().into_file(OpenFlags::NONBLOCK);
    let any = inet(Ipv4Addr::UNSPECIFIED, port);
    call(|caller| protocol(&file).bind(caller, &any)).unwrap();
    file
}

/// Connections from the first machine to the second.
pub fn connections(machines: &[Machine; 2], count: usize) -> Vec<[Arc<File>; 2]> {
    let listener = socket(&machines[1], SocketType::Stream, 80);
    protocol(&listener).listen(count).unwrap();
    let mut all = Vec::new();
    for _ in 0..count {
        let client = socket(&machines[0], SocketType::Stream, 0);
        let to = inet(machines[1].address, 80);
        let begun = call(|caller| protocol(&client).connect(caller, &to, NOW));
        assert_eq!(begun, Err(Errno::EINPROGRESS));
        carry(machines);
        let server = protocol(&listener).accept(NOW).unwrap();
        all.push([client, server.into_file(OpenFlags::NONBLOCK)]);
    }
    all
}
