//! Networks of instances (`docs/instance-networks.md`): the bridge between their cards and the
//! supervisor's interfaces, one for each network.
//!
//! One thread takes what instances send, a bounded number of frames from one after the other, and
//! gives it to whom it is for. What the supervisor sends is given by the thread that sends it.
//! Nobody here waits for an instance.

mod flows;
mod networks;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicBool, Ordering};

use abi::dev::{self, NetworkCounters, PublishedPort, Status};
use abi::errno::Errno;
use abi::keep::KeptLease;
use abi::network::{Subnet, mac_of};
pub(crate) use flows::adopt_flows;
use guard::partition::NetworkPages;
use ip::nat::Protocol;
use net::inet::Host;
use net::{Frame, FrameRefused, NetDevice};
pub(crate) use networks::{AddRefused, add, adopt_networks, info, remove};
use switch::{AddError, Port, Source, Switch, Verdict};
use task::{Event, Mutex, Once};
use virtio::net::{Collected, Server, Stopped};
use virtqueue::Left;

use crate::brief::lock_briefly;
use crate::label::Label;
use crate::names::Names;

/// Frames that are taken of one instance before the next one's turn.
const TURN: usize = 32;
/// Frames that one to the name server counts for: it is answered, and names are looked through.
const QUERY: usize = 4;

/// Set when an instance may have sent something, and when one is gone.
static WAKE: Event = Event::new();
static BRIDGE: Mutex<Bridge> = Mutex::new(Bridge {
    networks: Vec::new(),
    frame: Vec::new(),
});
/// Flag: what instances have sent waits until flows of the supervisor before this one go on.
static IS_HELD: AtomicBool = AtomicBool::new(true);
/// The host that the supervisor's programs have.
static HOST: Once<Arc<Host>> = Once::new();

/// State of an instance's port, as it is known outside of the bridge.
#[derive(Default)]
struct PortState {
    /// Nobody needs the port any more.
    is_gone: AtomicBool,
    counters: Mutex<NetworkCounters>,
}

/// An address in the network of instances, and the port there, until it is dropped or given back.
pub(crate) struct Lease {
    /// Number of the instance.
    number: u32,
    /// Number of the network.
    network: u32,
    label: Label,
    subnet: Subnet,
    address: Ipv4Addr,
    port: Arc<PortState>,
}

impl Lease {
    /// The address.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Number of the network.
    pub(crate) fn network(&self) -> u32 {
        self.network
    }

    /// Name of the network.
    pub(crate) fn label(&self) -> Label {
        self.label
    }

    /// The supervisor's address in the network.
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        self.subnet.gateway()
    }

    /// Words for the command line of the instance's kernel, by which it sets its interface up: with
    /// the network's name server, and another one behind it, if there is one.
    pub(crate) fn command_line(&self, name_server: Option<Ipv4Addr>) -> String {
        let (address, own, mask) = (self.address, self.gateway(), self.subnet.mask());
        let behind = name_server.map_or_else(String::new, |server| format!(":{server}"));
        format!("ip={address}::{own}:{mask}::eth0:off:{own}{behind}")
    }

    /// Frames that have gone through the port.
    pub(crate) fn counters(&self) -> NetworkCounters {
        *lock_briefly(&self.port.counters)
    }

    /// Leads a port of the machine to one of the instance, until the address is given back.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn publish(&self, port: &PublishedPort) -> fs::Result<()> {
        self.publish_by(port, Host::publish)
    }

    /// Does so in one of two ways.
    fn publish_by(
        &self,
        port: &PublishedPort,
        publish: fn(&Host, Protocol, SocketAddrV4, SocketAddrV4, u64) -> fs::Result<()>,
    ) -> fs::Result<()> {
        let protocol = match port.protocol {
            dev::PROTOCOL_TCP => Protocol::Tcp,
            dev::PROTOCOL_UDP => Protocol::Udp,
            _ => return Err(Errno::EINVAL),
        };
        let host = HOST.get().ok_or(Errno::ENETDOWN)?;
        let at = SocketAddrV4::new(Ipv4Addr::from_bits(port.address), port.port);
        let to = SocketAddrV4::new(self.address, port.inner);
        publish(host, protocol, at, to, self.number.into())
    }

    /// The address for a supervisor that starts again, with the ports that a status says.
    pub(crate) fn kept(&self, status: &Status) -> KeptLease {
        let mut kept = KeptLease {
            network: self.network,
            address: self.address.to_bits(),
            ..KeptLease::default()
        };
        let ports = status.ports();
        kept.ports[..ports.len()].copy_from_slice(ports);
        kept
    }

    /// Gives address and port back, and takes back what was published. The card's pages are let go
    /// a little later.
    pub(crate) fn give_back(&self) {
        // Once: the address is somebody else's afterwards.
        if self.port.is_gone.load(Ordering::Acquire) {
            return;
        }
        if let Some(host) = HOST.get() {
            host.withdraw(self.number.into());
            host.forget(self.address);
        }
        self.port.is_gone.store(true, Ordering::Release);
        WAKE.set();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Why an instance has no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no network of that name.
    Unknown,
    /// The instance of this number has the address.
    Taken(u32),
    /// No instance may have the address.
    Foreign,
    /// All addresses are taken.
    Full,
    /// There is no memory, or no interface for the supervisor.
    Unable,
}

/// An instance's end of its port.
struct Card {
    state: Arc<PortState>,
    /// Not there before the instance is created.
    server: Option<Server<NetworkPages>>,
    /// Something was done with the queues since the instance was last told.
    is_touched: bool,
    stopped: Option<Stopped>,
}

/// A network: its switch, and the supervisor's interface to it.
struct Network {
    /// Number that no other one has, or gets.
    number: u32,
    label: Label,
    /// Name and number of the interface.
    interface: String,
    uplink: u32,
    switch: Switch<Card>,
}

struct Bridge {
    /// Networks in the order in which they were made.
    networks: Vec<Network>,
    /// The frame that is being moved.
    frame: Vec<u8>,
}

/// Gives the bridge the host that its interface is to be of. Once.
pub(crate) fn init(host: &Arc<Host>) {
    HOST.call_once(|| host.clone());
    host.keep_journal(flows::note);
}

/// Has the thread look at what instances have sent. May be called by the handler of the doorbell.
pub(crate) fn look() {
    WAKE.set();
}

/// Gives an instance of a number an address in a network: the one that is wanted, or the lowest
/// that is free.
///
/// # Errors
/// Nothing was changed: [`Refused`].
pub(crate) fn lease(number: u32, label: Label, wanted: Option<Ipv4Addr>) -> Result<Lease, Refused> {
    networks::ensure(label)?;
    lease_of(number, wanted, |network| network.label == label)
}

/// Does so in the network for which `is_meant` is true.
fn lease_of(
    number: u32,
    wanted: Option<Ipv4Addr>,
    is_meant: impl Fn(&Network) -> bool,
) -> Result<Lease, Refused> {
    let mut bridge = BRIDGE.lock();
    bridge.remove_gone();
    let mut networks = bridge.networks.iter_mut();
    let network = networks.find(|one| is_meant(one));
    let network = network.ok_or(Refused::Unknown)?;
    let port = Arc::<PortState>::default();
    let card = Card {
        state: port.clone(),
        server: None,
        is_touched: false,
        stopped: None,
    };
    match network.switch.add(number, wanted, card) {
        Ok(address) => Ok(Lease {
            number,
            network: network.number,
            label: network.label,
            subnet: network.switch.subnet(),
            address,
            port,
        }),
        Err(AddError::Taken(owner)) => Err(Refused::Taken(owner)),
        Err(AddError::Foreign) => Err(Refused::Foreign),
        Err(AddError::Full) => Err(Refused::Full),
        Err(AddError::NoMemory) => Err(Refused::Unable),
    }
}

/// Gives the card of an instance that has an address its pages, before the instance is started.
pub(crate) fn attach(number: u32, pages: NetworkPages) {
    let mut bridge = BRIDGE.lock();
    if let Some(port) = bridge.port(number) {
        let mac = mac_of(port.address());
        port.value.server = Some(Server::new(pages, mac));
    }
}

/// Gives an instance of the supervisor before this one the address that it had, the ports that lead
/// there, and its card, and has its status say so; `None` if there is no such network, or no
/// memory.
pub(crate) fn adopt_lease(
    number: u32,
    kept: &KeptLease,
    pages: NetworkPages,
    status: &mut Status,
) -> Option<Lease> {
    let address = Ipv4Addr::from_bits(kept.address);
    networks::ensure_number(kept.network);
    let lease = lease_of(number, Some(address), |one| one.number == kept.network).ok()?;
    if let Some(port) = BRIDGE.lock().port(number) {
        port.value.server = Some(Server::adopted(pages, mac_of(address)));
        // To be told that it is to reset its card.
        port.value.is_touched = true;
    }
    (status.address, status.network_label) = (kept.address, lease.label.0);
    let ports = kept.ports.iter().filter(|port| port.protocol != 0);
    for (port, place) in ports.zip(&mut status.ports) {
        match lease.publish_by(port, Host::publish_ahead) {
            Ok(()) => {
                *place = *port;
                status.port_count += 1;
            }
            Err(errno) => {
                log::error!(
                    "instance {number}: port {} leads there no more: {errno}",
                    port.port
                );
            }
        }
    }
    Some(lease)
}

/// The supervisor's end of its interface to the network of this number.
struct Uplink(u32);

impl NetDevice for Uplink {
    fn transmit(&self, frame: Frame) -> Result<(), FrameRefused> {
        let is_heard = {
            let mut bridge = BRIDGE.lock();
            let mut networks = bridge.networks.iter_mut();
            let network = networks.find(|one| one.number == self.0);
            let network = network.ok_or(FrameRefused::Lost)?;
            let verdict = network.switch.judge(Source::Uplink, &frame.data);
            network.forward(verdict, Source::Uplink, &frame.data)
        };
        ring_all();
        is_heard.then_some(()).ok_or(FrameRefused::Lost)
    }
}

/// Interrupts the instances that want to be.
fn ring_all() {
    loop {
        let Some(number) = BRIDGE.lock().next_to_ring() else {
            return;
        };
        if let Some(instance) = crate::active_instance(number) {
            instance.ring();
        }
    }
}

/// Main function of the thread that moves what instances send. It has the priority of an ordinary
/// program: all instances together get no more of a busy CPU by it than one of those does.
fn serve() {
    let mut frames = Vec::new();
    loop {
        WAKE.wait();
        loop {
            if IS_HELD.load(Ordering::Acquire) || !round(&mut frames) {
                break;
            }
        }
    }
}

/// Gives each instance a turn. True if there is more to do.
fn round(frames: &mut Vec<Vec<u8>>) -> bool {
    BRIDGE.lock().remove_gone();
    let (mut last, mut more) = (0, false);
    loop {
        let next = BRIDGE.lock().next_after(last);
        let Some(number) = next else {
            return more;
        };
        let instance = crate::active_instance(number);
        let _charge = instance.as_ref().map(|instance| instance.charge());
        let (uplink, turn) = BRIDGE.lock().turn(number, frames);
        ring_all();
        for data in frames.drain(..) {
            if let Some(host) = HOST.get() {
                host.receive(uplink, &data);
            }
        }
        (last, more) = (number, more || turn == Left::Something);
    }
}

impl Bridge {
    fn ports(&self) -> impl Iterator<Item = &Port<Card>> {
        self.networks.iter().flat_map(|one| one.switch.ports())
    }

    /// The port of an instance.
    fn port(&mut self, number: u32) -> Option<&mut Port<Card>> {
        let mut networks = self.networks.iter_mut();
        networks.find_map(|one| one.switch.port_mut(number))
    }

    /// Takes the ports away that nobody needs any more.
    fn remove_gone(&mut self) {
        let is_gone = |port: &Port<Card>| port.value.state.is_gone.load(Ordering::Acquire);
        for network in &mut self.networks {
            while let Some(number) = network.first(is_gone) {
                network.switch.remove(number);
            }
        }
    }

    /// The instance whose turn comes after that of another.
    fn next_after(&self, last: u32) -> Option<u32> {
        let numbers = self.ports().map(Port::number);
        numbers.filter(|number| *number > last).min()
    }

    /// Moves up to [`TURN`] frames of an instance; those for the supervisor, by the interface whose
    /// number is returned, go into `frames`.
    fn turn(&mut self, number: u32, frames: &mut Vec<Vec<u8>>) -> (u32, Left) {
        let mut networks = self.networks.iter_mut();
        let network = networks.find(|one| one.switch.port(number).is_some());
        let Some(network) = network else {
            return (0, Left::Nothing);
        };
        let left = network.turn(number, &mut self.frame, frames);
        (network.uplink, left)
    }

    /// The next instance that wants to be interrupted for what was done with its queues; what is
    /// known of those that were touched is brought up to date.
    fn next_to_ring(&mut self) -> Option<u32> {
        let ports = self.networks.iter_mut();
        let mut ports = ports.flat_map(|one| one.switch.ports_mut());
        ports.find_map(|port| {
            let wants = core::mem::take(&mut port.value.is_touched) && settle(port);
            wants.then_some(port.number())
        })
    }
}

impl Network {
    /// Number of the first port of which something is true.
    fn first(&self, holds: impl Fn(&Port<Card>) -> bool) -> Option<u32> {
        let mut ports = self.switch.ports();
        ports.find(|port| holds(port)).map(Port::number)
    }

    /// Moves up to [`TURN`] frames of an instance, each by way of `frame`.
    fn turn(&mut self, number: u32, frame: &mut Vec<u8>, frames: &mut Vec<Vec<u8>>) -> Left {
        if let Some(server) = self.server(number) {
            server.follow();
            let _ = server.want_frames(false);
        }
        let mut budget = TURN;
        while budget > 0 {
            let collected = self.server(number).and_then(|server| server.collect(frame));
            match collected {
                Some(Collected::Frame) => {
                    let heard = self.take(number, frame, frames);
                    budget = budget.saturating_sub(heard);
                }
                Some(Collected::Lost) => {
                    if let Some(port) = self.switch.port_mut(number) {
                        port.counters.sent_lost += 1;
                    }
                    budget -= 1;
                }
                None => break,
            }
        }
        if let Some(port) = self.switch.port_mut(number) {
            // What was taken is told of, and counted.
            port.value.is_touched = true;
        }
        match self.server(number) {
            Some(_) if budget == 0 => Left::Something,
            Some(server) => server.want_frames(true),
            None => Left::Nothing,
        }
    }

    /// Moves a frame of an instance; one for the supervisor goes into `frames`. Returns how many
    /// it counts for.
    fn take(&mut self, number: u32, frame: &[u8], frames: &mut Vec<Vec<u8>>) -> usize {
        let source = Source::Port(number);
        let verdict = self.switch.judge(source, frame);
        // Before what the instance sends next: who asks several servers at once hears us first.
        if verdict == Verdict::Uplink && self.answer(number, frame) {
            return QUERY;
        }
        if matches!(verdict, Verdict::Uplink | Verdict::All) {
            // Without memory it is lost, as on a wire.
            let copy = fallible::copy_of(frame);
            let _ = copy.and_then(|copy| fallible::push(frames, copy));
        }
        self.forward(verdict, source, frame);
        match verdict {
            Verdict::All => self.switch.ports().count(),
            _ => 1,
        }
    }

    /// Answers a frame of an instance if it is for the name server. `false`: it is for somebody
    /// else.
    fn answer(&mut self, number: u32, frame: &[u8]) -> bool {
        let subnet = self.switch.subnet();
        let names = Names {
            network: self.number,
            subnet,
        };
        let Some(reply) = dns::answer_frame(frame, subnet.gateway(), &names) else {
            return false;
        };
        if let (Some(reply), Some(port)) = (reply, self.switch.port_mut(number)) {
            deliver(port, reply.bytes());
        }
        true
    }

    fn server(&mut self, number: u32) -> Option<&mut Server<NetworkPages>> {
        self.switch.port_mut(number)?.value.server.as_mut()
    }

    /// Gives a frame to the instances that it is for. `false` if somebody had no room.
    fn forward(&mut self, verdict: Verdict, source: Source, frame: &[u8]) -> bool {
        let mut is_heard = true;
        for port in self.switch.ports_mut() {
            let is_for = match verdict {
                Verdict::Port(number) => number == port.number(),
                Verdict::All => source != Source::Port(port.number()),
                Verdict::Refused | Verdict::Nobody | Verdict::Uplink => false,
            };
            if is_for {
                is_heard &= deliver(port, frame);
            }
        }
        is_heard
    }
}

/// Gives a frame to an instance. `false` if it has no room.
fn deliver(port: &mut Port<Card>, frame: &[u8]) -> bool {
    let server = port.value.server.as_mut();
    let is_given = server.is_some_and(|server| server.deliver(frame));
    let counters = &mut port.counters;
    if is_given {
        counters.received += 1;
        counters.received_bytes += frame.len() as u64;
    } else {
        counters.received_lost += 1;
    }
    port.value.is_touched = true;
    is_given
}

/// Publishes what is known of a card, and tells whether its instance wants to be interrupted.
fn settle(port: &mut Port<Card>) -> bool {
    let number = port.number();
    let card = &mut port.value;
    let Some(server) = &mut card.server else {
        return false;
    };
    let wants = server.must_interrupt();
    let stopped = server.stopped();
    let counters = &mut port.counters;
    if let Some(why) = stopped.filter(|_| card.stopped != stopped) {
        counters.stops += 1;
        if counters.stops.is_power_of_two() {
            log::error!(
                "instance {number}: its network is stopped until its driver resets it, for the \
                 {} time: {why}",
                counters.stops
            );
        }
    }
    card.stopped = stopped;
    counters.is_stopped = stopped.is_some().into();
    *lock_briefly(&card.state.counters) = *counters;
    wants
}
