//! The host: the network that holds the Internet Protocol, over interfaces and the loop
//! (`docs/ip.md`).

mod alarms;
mod burst;
mod config;
mod counts;
mod destinations;
mod forward;
mod fragments;
mod groups;
mod ifreq;
mod index;
mod input;
mod link;
mod nat;
mod output;

mod published;
mod registry;
mod send_queue;
mod state;
mod tcp;
mod translation;
mod v6;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use alarms::Alarms;
use counts::PacketCounts;
use destinations::{Destination, Destinations, PacketIds};
use fragments::Fragments;
use fs::Result;
pub(super) use ifreq::class_prefix_len;
use ip::Nanos;
use ip::ipv4::Header;
use ip::nat::Protocol;
use link::{LinkDevice, View};
use nat::KeptPorts;
use output::{OutgoingPacket, transport_header};
use registry::Registered;
use send_queue::QueuePlace;
use state::{Class, HostState, OutgoingFrame, Work};
use task::{Mutex, MutexGuard, Once, RcuArc};
use tcp::TcpLayer;
pub(super) use tcp::UnownedConnection;
use translation::Translation;
use v6::Ipv6Link;

pub use self::burst::Burst;
pub use self::state::Change;
pub use self::v6::{Ipv6Scope, Ipv6Setting};
use super::bind_table::ephemeral_ports;
use super::datagram::Datagram;
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
use crate::socket::{
    ArpEntry, DeviceDetails, Interface, InterfaceChange, Interfaces, NetDevice, NewInterface,
    RouteRequest, SendAccount,
};

/// The one who is told of changes of a host's tables.
pub trait ChangeListener: Send + Sync {
    /// Tells of a change, after it has happened, without locks.
    fn changed(&self, host: &Host, change: &Change);

    /// Tells that an interface is gone, as [`Self::changed`].
    fn link_removed(&self, interface: &Interface);
}

/// How often locks of a host were taken since it was made, and what had to be looked up with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockCounts {
    /// The lock of interfaces, addresses, routes and neighbours.
    pub tables: u64,
    /// The locks of the shards of the table of connections.
    pub shards: u64,
    /// Segments of open connections of which the tables were asked for whom they are.
    pub looked_up: u64,
}

/// A host with interfaces, and the loop among them.
pub struct Host {
    state: Mutex<HostState>,
    /// The version of `state`: see [`HostState::version`].
    version: AtomicU64,
    /// Whether packets may have other ends than they come with.
    translates: AtomicBool,
    translation: Translation,
    /// The interfaces; none for want of memory.
    view: RcuArc<View>,
    /// Interfaces before which something waits to be sent.
    busy_cards: Arc<AtomicUsize>,
    fragments: Arc<Fragments>,
    destinations: Destinations,
    /// The stack above, once there is one.
    stack: Once<Weak<InetStack>>,
    listener: Once<Weak<dyn ChangeListener>>,
    /// Nanoseconds since some time before.
    clock: fn() -> Nanos,
    alarms: Alarms,
    tcp: TcpLayer,
    counts: Arc<PacketCounts>,
    ids: Arc<PacketIds>,
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
        let ids = Arc::new(PacketIds::new());
        let state = HostState::new(counts.clone(), ids.clone());
        Arc::new_cyclic(|this| Self {
            busy_cards: state.interfaces.busy_cards(),
            fragments: state.fragments.clone(),
            translation: Translation::new(state.known_flows.clone()),
            state: Mutex::new(state),
            version: AtomicU64::new(0),
            translates: AtomicBool::new(false),
            view: RcuArc::empty(),
            destinations: Destinations::new(),
            stack: Once::new(),
            listener: Once::new(),
            clock,
            alarms: Alarms::default(),
            tcp: TcpLayer::new(),
            counts,
            ids,
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
                state.run_groups(now, index, work);
                state.run_v6(now, index, work);
                state.settle_v6(work);
            }
        });
    }

    /// Tells that the device of an interface, which has refused a frame for want of room, has room
    /// now, or takes nothing any more. What waits is sent in this thread, which holds no lock that
    /// sending by the same device takes.
    pub fn has_room(&self, index: u32) {
        let card = match self.view().as_deref().and_then(|view| view.get(index)) {
            Some(seen) => Some(seen.card.clone()),
            None => {
                let state = self.lock_state();
                state.interfaces.get(index).map(|one| one.card.clone())
            }
        };
        if let Some(card) = card {
            card.serve();
        }
    }

    /// Whether something waits to be sent by an interface.
    fn has_busy_card(&self) -> bool {
        self.busy_cards.load(Ordering::Relaxed) > 0
    }

    /// An interface by its number.
    #[must_use]
    pub fn interface(&self, index: u32) -> Option<Interface> {
        let state = self.lock_state();
        state.interfaces.get(index).map(Registered::interface)
    }

    /// Whether there is an interface of that number, and it is up.
    #[must_use]
    pub fn is_up(&self, index: u32) -> bool {
        let view = self.view();
        let seen = view.as_deref().and_then(|view| view.get(index));
        seen.is_some_and(|seen| seen.is_up)
    }

    /// Locks the tables. What has changed is seen by those without the lock when it is given back.
    fn lock_state(&self) -> LockedState<'_> {
        let mut state = self.state.lock();
        state.locked += 1;
        LockedState { host: self, state }
    }

    /// The interfaces as they are; `None` for want of memory.
    fn view(&self) -> Option<Arc<View>> {
        if let Some(view) = self.view.load() {
            return Some(view);
        }
        self.show(&self.state.lock());
        self.view.load()
    }

    /// Lets those without the lock see the interfaces.
    fn show(&self, state: &HostState) {
        let view = View::of(&state.interfaces).ok();
        // It is let go with the tables locked: it holds no more than their interfaces do, and cards
        // that have gone, whose drivers do not call the host when they go.
        self.view.swap(view.map(Arc::new));
    }

    /// The way to a destination, if it is known and good.
    fn way(&self, now: Nanos, to: IpAddr, via: u32) -> Option<Arc<Destination>> {
        let version = self.version.load(Ordering::Acquire);
        self.destinations.find(now, version, to, via)
    }

    /// Remembers a way that the tables have led.
    fn remember(&self, now: Nanos, way: Option<Destination>) {
        let Some(way) = way else { return };
        let version = way.version;
        self.destinations.remember(now, way);
        // The interface may have gone meanwhile: its device is not to be kept.
        if self.version.load(Ordering::SeqCst) != version {
            self.destinations.forget_all();
        }
    }

    /// Works on the tables, and then, without their lock, does what that has left to do.
    fn with_state<R>(&self, f: impl FnOnce(&mut HostState, &mut Work) -> R) -> R {
        let mut work = Work::default();
        let (result, due) = {
            let mut state = self.lock_state();
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

    /// How often the locks that connections share were taken.
    #[must_use]
    pub fn lock_counts(&self) -> LockCounts {
        LockCounts {
            tables: self.state.lock().locked,
            shards: self.tcp.shards_locked(),
            looked_up: self.tcp.looked_up(),
        }
    }

    /// Counts of packets over interfaces.
    pub(in crate::inet) fn packet_counts(&self) -> &PacketCounts {
        &self.counts
    }

    /// When [`Self::run_timers`] has something to do, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let tables = self.lock_state().deadline();
        let due = [tables, self.fragments.deadline(), self.tcp.deadline()];
        due.into_iter().flatten().min()
    }

    /// Sends frames that tables have left to be sent.
    fn send_frames(&self, work: &mut Work) {
        let stack = self.stack.get().and_then(Weak::upgrade);
        let sender = work.sender.as_ref();
        for outgoing in work.frames.drain(..) {
            let OutgoingFrame { card, frame } = outgoing;
            self.send_frame(stack.as_deref(), &card, sender, frame, QueuePlace::Behind);
        }
    }

    /// Sends a frame; while it waits it takes up room of its sender's buffer, if a socket sends it.
    /// One that is lost is counted.
    fn send_frame(
        &self,
        stack: Option<&InetStack>,
        card: &LinkDevice,
        sender: Option<&Arc<SendAccount>>,
        frame: Vec<u8>,
        place: QueuePlace,
    ) {
        if let Some(stack) = stack
            && stack.core.taps.any()
            && let Some(view) = self.view()
            && let Some(seen) = view.get(card.index)
        {
            let taps = &stack.core.taps;
            taps.deliver_one_way(&frame, &seen.shown, PACKET_OUTGOING, None);
        }
        let _ = card.transmit_for(sender, frame, place);
    }

    /// Does work that tables have left to do, with no lock of a connection held: it may be about
    /// that one.
    fn finish(&self, mut work: Work) {
        if work.is_empty() {
            return;
        }
        self.send_frames(&mut work);
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

    /// Does what is due. The timers of sockets call this at the host's deadlines; who gives a host
    /// a clock of its own does.
    pub fn run_timers(&self) {
        let now = self.now();
        self.with_state(|state, work| {
            state.neighbours.tick(now);
            state.tick_v6(now, work);
            if state.groups_due.is_some_and(|due| due <= now) {
                state.tell_of_groups(now, work);
            }
            self.fragments.expire(now, &self.counts, work);
        });
        self.wake_by(self.fragments.deadline());
        self.run_tcp_timers();
    }
}

/// The tables of a host, locked.
struct LockedState<'a> {
    host: &'a Host,
    state: MutexGuard<'a, HostState>,
}

impl Deref for LockedState<'_> {
    type Target = HostState;

    fn deref(&self) -> &HostState {
        &self.state
    }
}

impl DerefMut for LockedState<'_> {
    fn deref_mut(&mut self) -> &mut HostState {
        &mut self.state
    }
}

impl Drop for LockedState<'_> {
    fn drop(&mut self) {
        let host = self.host;
        let version = self.state.version();
        let (known, interfaces) = self.state.published;
        if version != known {
            let seen = self.state.interfaces.version();
            if seen != interfaces {
                host.show(&self.state);
            }
            self.state.published = (version, seen);
            host.version.store(version, Ordering::SeqCst);
        }
        host.translation.show(&mut self.state);
        let translates = !self.state.nat.is_idle();
        if host.translates.load(Ordering::Relaxed) != translates {
            host.translates.store(translates, Ordering::Relaxed);
        }
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
        let state = self.lock_state();
        all.extend(state.interfaces.iter().map(Registered::interface));
        all
    }

    fn change_interface(&self, index: u32, change: &InterfaceChange<'_>) -> Result<()> {
        self.change(index, change)
    }

    fn device(&self, index: u32) -> DeviceDetails {
        let device = {
            let state = self.lock_state();
            state
                .interfaces
                .get(index)
                .map(|one| one.card.device.clone())
        };
        device.map_or_else(DeviceDetails::default, |device| device.details())
    }

    fn change_route(&self, request: &RouteRequest, is_new: bool) -> Result<()> {
        self.change_ioctl_route(request, is_new)
    }

    fn arp_entry(&self, ip: Ipv4Addr, interface: u32) -> Option<ArpEntry> {
        self.find_arp(ip, interface)
    }

    fn change_arp(&self, entry: &ArpEntry) -> Result<()> {
        self.change_ioctl_arp(entry)
    }
}

impl Network for Host {
    fn route(&self, to: IpAddr, via: u32) -> Result<Route> {
        match to {
            IpAddr::V4(v4) if !v4.is_loopback() => {
                let now = self.now();
                match self.way(now, to, via) {
                    Some(way) => Ok(way.route),
                    None => self.lock_state().route(now, v4, via),
                }
            }
            IpAddr::V6(v6) if !v6.is_loopback() && via != Loopback::INDEX => {
                let now = self.now();
                match self.way(now, to, via) {
                    Some(way) => Ok(way.route),
                    None => self.lock_state().route_v6(now, v6, via),
                }
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

    fn transmit(&self, stack: &InetStack, mut datagram: Datagram) -> Result<()> {
        // Who receives it has nothing to do with that.
        let sender = datagram.sender.take();
        let is_local = datagram.interface_index == Loopback::INDEX;
        if is_local && !self.leads_elsewhere(&datagram) {
            return Loopback.transmit(stack, datagram);
        }
        let (source, destination) = match (datagram.from.ip(), datagram.to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                return self.transmit_v6(stack, datagram, sender, (source, destination));
            }
            _ => return Err(Errno::ENETUNREACH),
        };
        let transport = transport_header(&datagram);
        let transport = transport.as_ref().map_or(&[][..], |header| header);
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
            payload: [transport, &datagram.data],
            discovery: datagram.path_mtu_discovery,
        };
        let now = self.now();
        let interface = packet.interface;
        if !is_local
            && let Some(result) = self
                .send_directly(stack, now, 0, &packet, sender.as_ref())
                .or_else(|| self.send_directly(stack, now, interface, &packet, sender.as_ref()))
        {
            return result;
        }
        let (class, way) = self.with_state(|state, work| {
            work.sender = sender;
            if is_local {
                state.send_to_published(now, &packet, ephemeral_ports(&stack.core), work)?;
                return Ok((Class::Own, None));
            }
            state.send(now, &packet, work)?;
            let any = state.way_to(now, destination, 0);
            let way = match any.filter(|way| way.route.interface_index == interface) {
                Some(way) => Some(way),
                None => state.way_to(now, destination, interface),
            };
            Ok::<_, Errno>((state.class(destination), way))
        })?;
        self.remember(now, way);
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
        let view = self.view().ok_or(Errno::ENOBUFS)?;
        let seen = view.get(index).ok_or(Errno::ENODEV)?;
        if !seen.is_up {
            return Err(Errno::ENETDOWN);
        }
        seen.card.transmit(frame, QueuePlace::Behind)
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
