//! The host: the network that holds the Internet Protocol, over interfaces and the loop
//! (`docs/ip.md`).

mod alarms;
mod config;
mod counts;
mod forward;
mod ifreq;
mod input;
mod nat;
mod output;
mod published;
mod registry;
mod state;
mod tcp;
mod v6;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;
use alarms::Alarms;
use counts::{Counter, PacketCounts};
use fs::Result;
pub(super) use ifreq::class_prefix_len;
use ip::Nanos;
use ip::ipv4::Header;
use ip::nat::Protocol;
use nat::KeptPorts;
use output::{OutgoingPacket, transport_header};
use state::{Class, ETH_P_ARP, HostState, OutgoingFrame, Work};
use task::{Mutex, Once};
use tcp::TcpLayer;
pub(super) use tcp::UnownedConnection;
use v6::Ipv6Link;

pub use self::state::Change;
pub use self::v6::{Ipv6Scope, Ipv6Setting};
use super::bind_table::ephemeral_ports;
use super::datagram::Datagram;
use super::frame::{self, ETH_P_IP, ETH_P_IPV6};
use super::icmp_errors::QuotedError;
use super::ip::ICMP;
use super::link_of;
use super::loopback::Loopback;
use super::network::{Network, Route};
use super::stack::InetStack;
use super::tcp::ConnectRequest;
use crate::socket::tap::{
    PACKET_BROADCAST, PACKET_HOST, PACKET_MULTICAST, PACKET_OTHERHOST, PACKET_OUTGOING,
};
use crate::socket::timer::{self, TimerCallback};
use crate::socket::{Frame, Interface, InterfaceChange, Interfaces, NetDevice, NewInterface};

/// The one who is told of changes of a host's tables.
pub trait ChangeListener: Send + Sync {
    /// Tells of a change, after it has happened, without locks.
    fn changed(&self, host: &Host, change: &Change);

    /// Tells that an interface is gone, as [`Self::changed`].
    fn link_removed(&self, interface: &Interface);
}

/// A host with interfaces, and the loop among them.
pub struct Host {
    state: Mutex<HostState>,
    /// The stack above, once there is one.
    stack: Once<Weak<InetStack>>,
    listener: Once<Weak<dyn ChangeListener>>,
    /// Nanoseconds since some time before.
    clock: fn() -> Nanos,
    alarms: Alarms,
    tcp: TcpLayer,
    counts: Arc<PacketCounts>,
    kept_ports: KeptPorts,
    this: Weak<Self>,
}

/// An entry of the host in the timers of sockets.
struct HostTimer {
    host: Weak<Host>,
    at: Nanos,
}

impl TimerCallback for HostTimer {
    fn on_expiry(&self) {
        if let Some(host) = self.host.upgrade() {
            host.alarms.went_off(self.at);
            host.run_timers();
        }
    }
}

impl Host {
    /// A host with the loop alone.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with_clock(task::now_ns)
    }

    /// A host with the loop alone, and with a clock of its own: nanoseconds since some time before.
    #[must_use]
    pub fn with_clock(clock: fn() -> Nanos) -> Arc<Self> {
        let counts = Arc::<PacketCounts>::default();
        Arc::new_cyclic(|this| Self {
            state: Mutex::new(HostState::new(counts.clone())),
            stack: Once::new(),
            listener: Once::new(),
            clock,
            alarms: Alarms::default(),
            tcp: TcpLayer::new(),
            counts,
            kept_ports: KeptPorts::default(),
            this: this.clone(),
        })
    }

    /// The time.
    pub(crate) fn now(&self) -> Nanos {
        (self.clock)()
    }

    /// Has a listener told of changes. The first call counts.
    pub fn set_listener(&self, listener: Weak<dyn ChangeListener>) {
        self.listener.call_once(|| listener);
    }

    /// Makes an interface, which is down, over a device. Returns its number.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken, `EINVAL` for one that cannot be or an MTU that is too
    /// small, `ENFILE` if there are too many, `ENOMEM`.
    pub fn add_interface(&self, new: &NewInterface<'_>, device: Arc<dyn NetDevice>) -> Result<u32> {
        self.with_state(|state, work| {
            let v6 = Ipv6Link::new(&state.v6, !new.has_ipv6);
            let index = state.interfaces.add(new, device, v6)?;
            work.tell(Change::Link { index });
            Ok(index)
        })
    }

    /// Tells whether the link of an interface is up.
    pub fn set_carrier(&self, index: u32, has_carrier: bool) {
        let now = self.now();
        self.with_state(|state, work| {
            if let Ok(interface) = state.interfaces.get_mut(index)
                && interface.set_carrier(has_carrier)
            {
                work.tell(Change::Link { index });
                state.run_v6(now, index, work);
                state.settle_v6(work);
            }
        });
    }

    /// An interface by its number.
    #[must_use]
    pub fn interface(&self, index: u32) -> Option<Interface> {
        let state = self.state.lock();
        state.interfaces.get(index).map(|known| known.shown.clone())
    }

    /// Takes a frame that an interface has received, with its link's header. What becomes of it
    /// happens before this returns, in this thread, which holds no lock that sending by the same
    /// device takes.
    pub fn receive(&self, index: u32, frame: Frame) {
        let Some(stack) = self.stack.get().and_then(Weak::upgrade) else {
            return;
        };
        let Some(interface) = self.count_arrival(index, &frame) else {
            return;
        };
        let packet_type = packet_type(&frame.data, &interface);
        if stack.core.taps.any() {
            let taps = &stack.core.taps;
            taps.deliver_one_way(&frame.data, &interface, packet_type, None);
        }
        if packet_type == PACKET_OTHERHOST {
            return;
        }
        let packet = &frame.data[interface.link_header_len()..];
        match frame::protocol(&frame.data, &interface) {
            ETH_P_ARP => self.receive_arp(&interface, packet, packet_type),
            ETH_P_IP => self.receive_ipv4(&stack, &interface, packet, packet_type),
            ETH_P_IPV6 => self.receive_ipv6(&stack, &interface, packet, packet_type),
            _ => {}
        }
    }

    /// Counts a frame. Returns its interface, if that takes it.
    fn count_arrival(&self, index: u32, frame: &Frame) -> Option<Interface> {
        let mut state = self.state.lock();
        let interface = state.interfaces.get_mut(index).ok()?;
        if !interface.is_up() {
            interface.shown.received.dropped += 1;
            return None;
        }
        if frame.data.len() < interface.shown.link_header_len() || frame.data.is_empty() {
            interface.shown.received.errors += 1;
            return None;
        }
        let kind = packet_type(&frame.data, &interface.shown);
        let counts = &mut interface.shown.received;
        counts.packets += 1;
        counts.bytes += frame.data.len() as u64;
        counts.multicast += u64::from(kind == PACKET_MULTICAST);
        Some(interface.shown.clone())
    }

    /// Works on the tables, and then, without their lock, does what that has left to do.
    fn with_state<R>(&self, f: impl FnOnce(&mut HostState, &mut Work) -> R) -> R {
        let mut work = Work::default();
        let (result, due) = {
            let mut state = self.state.lock();
            let result = f(&mut state, &mut work);
            state.collect_events(&mut work);
            (result, state.deadline())
        };
        self.wake_by(due);
        self.finish(work);
        result
    }

    /// Has the timers run when a deadline has come.
    fn wake_by(&self, due: Option<Nanos>) {
        let now = self.now();
        let Some(at) = due.filter(|due| self.alarms.is_needed(now, *due)) else {
            return;
        };
        let host = self.this.clone();
        timer::schedule_timer(at.saturating_sub(now), Arc::new(HostTimer { host, at }));
    }

    /// Counts of packets over interfaces.
    pub(in crate::inet) fn packet_counts(&self) -> &PacketCounts {
        &self.counts
    }

    /// When [`Self::run_timers`] has something to do, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let due = [self.state.lock().deadline(), self.tcp.deadline()];
        due.into_iter().flatten().min()
    }

    /// Sends frames that tables have left to be sent.
    fn send_frames(&self, frames: &mut Vec<OutgoingFrame>) {
        let stack = self.stack.get().and_then(Weak::upgrade);
        for outgoing in frames.drain(..) {
            if let Some(stack) = &stack
                && stack.core.taps.any()
                && let Some(interface) = self.interface(outgoing.index)
            {
                let taps = &stack.core.taps;
                taps.deliver_one_way(&outgoing.frame, &interface, PACKET_OUTGOING, None);
            }
            // What is lost is counted.
            let _ = self.hand_over(outgoing.index, &*outgoing.device, outgoing.frame);
        }
    }

    /// Does work that tables have left to do, with no lock of a connection held: it may be about
    /// that one.
    fn finish(&self, mut work: Work) {
        self.send_frames(&mut work.frames);
        let stack = self.stack.get().and_then(Weak::upgrade);
        if let Some(listener) = self.listener.get().and_then(Weak::upgrade) {
            for change in &work.changes {
                listener.changed(self, change);
            }
        }
        if let Some(stack) = &stack {
            for packet in work.unreachable {
                self.report_unreachable(stack, packet);
            }
            for quote in &work.expired {
                self.complain_of_expiry(stack, quote);
            }
            for (index, packet) in &work.unreachable_v6 {
                self.report_unreachable_v6(stack, *index, packet);
            }
            for (index, quote) in &work.expired_v6 {
                self.complain_of_v6_expiry(stack, *index, quote);
            }
        }
    }

    /// Gives a frame that was counted to its device.
    fn hand_over(&self, index: u32, device: &dyn NetDevice, frame: Vec<u8>) -> Result<()> {
        let length = frame.len() as u64;
        let result = device.transmit(Frame { data: frame });
        if result.is_err()
            && let Ok(interface) = self.state.lock().interfaces.get_mut(index)
        {
            let counts = &mut interface.shown.sent;
            counts.packets -= 1;
            counts.bytes -= length;
            counts.dropped += 1;
        }
        result.map_err(|_| Errno::ENOBUFS)
    }

    /// Does what is due. The timers of sockets call this at the host's deadlines; who gives a host
    /// a clock of its own does.
    pub fn run_timers(&self) {
        let now = self.now();
        self.with_state(|state, work| {
            state.neighbours.tick(now);
            state.tick_v6(now, work);
            while let Some(expired) = state.reassembly.expire(now) {
                self.counts.count(Counter::ReasmTimeout);
                self.counts.count(Counter::ReasmFails);
                let _ = fallible::push(&mut work.expired, expired.quote);
            }
        });
        self.run_tcp_timers();
    }
}

/// Tells who has begun a connection that it cannot be.
fn fail_connection(request: &ConnectRequest, error: Errno) {
    if let Some(initiator) = request.initiator() {
        initiator.connect_failed(error);
    }
}

/// For whom a frame of an interface is (`PACKET_*`).
fn packet_type(frame: &[u8], interface: &Interface) -> u8 {
    match (frame.first_chunk::<6>(), interface.hardware_address) {
        (_, None) => PACKET_HOST,
        (Some(to), Some(own)) if *to == own => PACKET_HOST,
        (Some(to), _) if *to == ip::EVERYBODY => PACKET_BROADCAST,
        (Some(to), _) if to[0] & 1 != 0 => PACKET_MULTICAST,
        _ => PACKET_OTHERHOST,
    }
}

impl Interfaces for Host {
    fn interfaces(&self) -> Vec<Interface> {
        let mut all = Loopback.interfaces();
        let state = self.state.lock();
        all.extend(state.interfaces.iter().map(|known| known.shown.clone()));
        all
    }

    fn change_interface(&self, index: u32, change: &InterfaceChange<'_>) -> Result<()> {
        self.change(index, change)
    }
}

impl Network for Host {
    fn route(&self, to: IpAddr, via: u32) -> Result<Route> {
        match to {
            IpAddr::V4(to) if !to.is_loopback() => self.state.lock().route(self.now(), to, via),
            IpAddr::V6(to) if !to.is_loopback() && via != Loopback::INDEX => {
                self.state.lock().route_v6(self.now(), to, via)
            }
            _ => Loopback.route(to, via),
        }
    }

    fn leaves(&self, to: SocketAddr, route: &Route) -> bool {
        !route.local || self.published_route(Protocol::Tcp, to).is_some()
    }

    fn connect(&self, stack: &InetStack, request: ConnectRequest) {
        let via = link_of(request.to, request.options().interface);
        match self.route(request.to.ip(), via) {
            Ok(route) if route.local => match self.published_route(Protocol::Tcp, request.to) {
                None => Loopback.connect(stack, request),
                Some(Ok(route)) => self.begin_connection(stack, request, &route),
                Some(Err(error)) => fail_connection(&request, error),
            },
            Ok(route) => self.begin_connection(stack, request, &route),
            Err(error) => fail_connection(&request, error),
        }
    }

    fn can_connect(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.can_begin(from, to)
    }

    fn stop_listening(&self, listener: u64) {
        self.stop_tcp_listener(listener);
    }

    fn handle_tcp_error(&self, error: &QuotedError<'_>, errno: Errno) -> bool {
        self.take_tcp_error(error, errno)
    }

    fn transmit(&self, stack: &InetStack, datagram: Datagram) -> Result<()> {
        let is_local = datagram.interface_index == Loopback::INDEX;
        if is_local && !self.leads_elsewhere(&datagram) {
            return Loopback.transmit(stack, datagram);
        }
        let (source, destination) = match (datagram.from.ip(), datagram.to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                return self.transmit_v6(stack, datagram, source, destination);
            }
            _ => return Err(Errno::ENETUNREACH),
        };
        let transport = transport_header(&datagram)?;
        if datagram.protocol == ICMP {
            self.counts.send_icmp(&datagram.data);
        }
        let packet = OutgoingPacket {
            interface: datagram.interface_index,
            header: Header {
                tos: datagram.tos,
                id: 0,
                dont_fragment: false,
                more_fragments: false,
                offset: 0,
                ttl: datagram.ttl,
                protocol: datagram.protocol,
                source,
                destination,
            },
            payload: [&transport, &datagram.data],
            discovery: datagram.path_mtu_discovery,
        };
        let now = self.now();
        let class = self.with_state(|state, work| {
            if is_local {
                state.send_to_published(now, &packet, ephemeral_ports(&stack.core), work)?;
                return Ok(Class::Own);
            }
            state.send(now, &packet, work)?;
            Ok::<_, Errno>(state.class(destination))
        })?;
        // Who is in the group, or hears everybody, on this host hears it as well.
        if matches!(class, Class::Broadcast | Class::Multicast) {
            let _ = stack.deliver_packet(datagram);
        }
        Ok(())
    }

    fn transmit_frame(&self, stack: &InetStack, index: u32, frame: Vec<u8>) -> Result<()> {
        if index == Loopback::INDEX {
            return Loopback.transmit_frame(stack, index, frame);
        }
        let device = {
            let mut state = self.state.lock();
            let interface = state.interfaces.get_mut(index)?;
            if !interface.is_up() {
                return Err(Errno::ENETDOWN);
            }
            interface.shown.sent.packets += 1;
            interface.shown.sent.bytes += frame.len() as u64;
            interface.device.clone()
        };
        self.hand_over(index, &*device, frame)
    }

    fn attach(&self, stack: &Arc<InetStack>) {
        self.stack.call_once(|| Arc::downgrade(stack));
    }

    fn learn_path_mtu(&self, error: &QuotedError<'_>) {
        self.learn(error);
    }

    fn host(&self) -> Option<&Host> {
        Some(self)
    }
}
