//! Sockets of datagrams: where datagrams wait to be received, and what is said beside their bytes.
//! The same for UDP and for what speaks IP itself.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;

use super::datagram::{Datagram, PathMtuDiscovery};
use super::inet_socket::{Family, InetSocket};
use super::option_table::{IP, IPV6};
use super::options;
use super::udp_counts::{UdpCounts, UdpEvent};
use crate::socket::ControlMessage;
use crate::socket::SendAccount;
use crate::socket::core_stack::CoreStack;
use crate::socket::endpoint::{self, RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::socket::error_queue::{ErrorQueueEntry, ExtendedError};
use crate::socket::memory::{BufferMemory, Transport};
use crate::{
    Address, Caller, MsgFlags, OptionAccess, OutgoingMessage, ReceivedMessage, Socket,
    SocketMemory, SocketOps, SocketOptions, SocketType, WaitPolicy,
};

/// The bytes of the receiver's buffer that a datagram takes up besides its own.
const DATAGRAM_OVERHEAD: usize = 256;

/// The datagrams that wait to be received.
#[derive(Default)]
pub(super) struct DatagramQueue {
    datagrams: VecDeque<Datagram>,
    /// The bytes of the receiver's buffer they take up.
    charged_bytes: usize,
    /// The memory for them.
    memory: BufferMemory,
    closed: bool,
}

/// The receiving side of a datagram socket.
pub(super) struct DatagramReceiver {
    pub(super) endpoint: endpoint::Endpoint<DatagramQueue>,
    pub(super) options: Arc<SocketOptions>,
    /// Account of the datagrams that wait before a card.
    pub(super) sent: Arc<SendAccount>,
    drops: AtomicU64,
    /// Counts of all sockets of UDP, if it is one.
    counts: Option<Arc<UdpCounts>>,
}

impl DatagramReceiver {
    pub(super) fn new(stack: Arc<CoreStack>) -> Self {
        let options = Arc::new(SocketOptions::new(stack));
        Self {
            endpoint: endpoint::Endpoint::new(options.clone()),
            sent: SendAccount::new(options.clone()),
            options,
            drops: AtomicU64::new(0),
            counts: None,
        }
    }

    /// The receiving side of a socket of UDP.
    pub(super) fn of_udp(stack: &Arc<CoreStack>, counts: &Arc<UdpCounts>) -> Self {
        let receiver = Self {
            counts: Some(counts.clone()),
            ..Self::new(stack.clone())
        };
        receiver.endpoint.queue.lock().memory =
            BufferMemory::new(&receiver.options, Transport::Udp);
        receiver
    }

    /// Error, data: whoever waits for either looks again.
    pub(super) fn report_error(&self, error: Errno) {
        self.endpoint.set_error(error);
        self.endpoint.readable.notify();
    }

    /// Tells who asks for that by how much a packet was too long that must not be cut (Linux
    /// `ip_local_error`).
    pub(super) fn report_too_long(&self, to: SocketAddr, mtu: u32) {
        self.options.queue_error(ErrorQueueEntry {
            error: ExtendedError::too_long(mtu),
            offender: None,
            to: Some(to),
            time: None,
            data: Vec::new(),
        });
        self.endpoint.readable.notify_events(Events::ERR);
    }

    /// Tells when a datagram that has gone out did; `control` is what was said of it.
    pub(super) fn queue_tx_timestamps(
        &self,
        control: &[ControlMessage],
        packet: impl FnOnce() -> Vec<u8>,
    ) {
        let stages = SocketOptions::datagram_tx_flags(self.options.tx_timestamp_flags(control));
        if stages != 0 {
            self.options
                .queue_tx_timestamps(stages, self.options.next_timestamp_key(), packet);
            self.endpoint.readable.notify_events(Events::ERR);
        }
    }

    /// The bytes of the receiver's buffer that waiting datagrams take up.
    pub(super) fn charged_bytes(&self) -> usize {
        self.endpoint.queue.lock().charged_bytes
    }

    /// Datagrams that were lost because there was no room, or the filter threw them away.
    pub(super) fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }

    fn count(&self, datagram: &Datagram, event: UdpEvent) {
        if let Some(counts) = &self.counts {
            counts.count(datagram, event);
        }
    }

    /// Counts a datagram that is lost.
    fn count_drop(&self, datagram: &Datagram, why: UdpEvent) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        self.count(datagram, why);
    }

    /// A datagram has arrived. `header` is what the filter sees in front of its bytes.
    pub(super) fn enqueue(&self, mut datagram: Datagram, header: &[u8]) {
        if self.options.filter().is_some() {
            let Some(length) = self.options.apply_filter(header, &datagram.data) else {
                return self.count_drop(&datagram, UdpEvent::Filtered);
            };
            datagram.data.truncate(length - header.len());
        }
        datagram.timestamp_ns = self.options.receive_timestamp();
        datagram.drops = self.drops() as u32;
        {
            let mut queue = self.endpoint.queue.lock();
            if queue.closed || self.endpoint.is_shut_down(RCV_SHUTDOWN) {
                return;
            }
            let cost = datagram.data.len() + DATAGRAM_OVERHEAD;
            let charged = queue.charged_bytes;
            let is_full = charged > 0 && charged + cost > self.options.receive_buffer();
            if is_full {
                return self.count_drop(&datagram, UdpEvent::NoReceiveRoom);
            }
            if !queue.memory.covers(charged + cost) {
                return self.count_drop(&datagram, UdpEvent::NoMemory);
            }
            queue.charged_bytes += cost;
            queue.datagrams.push_back(datagram);
        }
        self.endpoint.readable.notify_events(Events::READABLE);
    }

    /// Waits until the buffer has room for one more datagram to be sent.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`]; the endpoint's own error, `EPIPE`.
    fn wait_to_send(&self, wait: WaitPolicy) -> Result<()> {
        self.sent.wait(wait, || {
            if let Some(error) = self.endpoint.take_error() {
                return Some(Err(error));
            }
            let is_shut = self.endpoint.is_shut_down(SEND_SHUTDOWN);
            is_shut.then_some(Err(Errno::EPIPE))
        })
    }

    /// Ends receiving or sending.
    fn shutdown(&self, what: u8) {
        self.endpoint.shutdown(what);
        self.sent.room().notify();
    }

    /// The next datagram, and how many of its bytes are left out.
    fn next_datagram(
        &self,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<Option<(Datagram, usize)>> {
        let attempt = || {
            if let Some(error) = self.endpoint.take_error() {
                return Some(Err(error));
            }
            let mut skip = self.options.peek_skip(flags);
            let mut queue = self.endpoint.queue.lock();
            let found = if flags.contains(MsgFlags::PEEK) {
                let beyond = queue.datagrams.iter().find(|datagram| {
                    let within = skip == 0 || skip < datagram.data.len();
                    skip -= if within { 0 } else { datagram.data.len() };
                    within
                });
                beyond.cloned()
            } else {
                let taken = queue.datagrams.pop_front();
                queue.charged_bytes -= taken
                    .as_ref()
                    .map_or(0, |d| d.data.len() + DATAGRAM_OVERHEAD);
                let charged = queue.charged_bytes;
                queue.memory.trim(charged);
                taken
            };
            match found {
                Some(datagram) => Some(Ok(Some((datagram, skip)))),
                None => self.endpoint.is_shut_down(RCV_SHUTDOWN).then_some(Ok(None)),
            }
        };
        wait.wait_on(&self.endpoint.readable, attempt)
    }

    /// The message that `recvmsg(2)` is given of a datagram, with its control messages.
    fn received_message(&self, common: &InetSocket, datagram: &Datagram) -> ReceivedMessage {
        self.options.record_timestamp(datagram.timestamp_ns);
        let mut control = self.options.timestamp_messages(datagram.timestamp_ns);
        if datagram.drops > 0 && self.options.is_enabled(net::SO_RXQ_OVFL) {
            control.push((
                net::SOL_SOCKET,
                net::SO_RXQ_OVFL,
                datagram.drops.to_ne_bytes().to_vec(),
            ));
        }
        if common.options.wants_control.load(Ordering::Relaxed) {
            add_control_messages(common, datagram, &mut control);
        }
        ReceivedMessage {
            message_len: datagram.data.len(),
            from: Some(common.user_address(datagram.from)),
            control,
            ..ReceivedMessage::default()
        }
    }

    /// Implements `SocketOps::receive_to_vec`.
    pub(super) fn receive_owned(
        &self,
        common: &InetSocket,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        let Some((mut datagram, skip)) = self.next_datagram(flags, wait)? else {
            return Ok((Vec::new(), ReceivedMessage::default()));
        };
        if !flags.contains(MsgFlags::PEEK) {
            self.count(&datagram, UdpEvent::Received);
        }
        let mut got = self.received_message(common, &datagram);
        if skip > 0 {
            datagram.data.drain(..skip);
        }
        datagram.data.truncate(limit);
        got.copied = datagram.data.len();
        self.options.advance_peek_offset(got.copied, flags);
        Ok((datagram.data, got))
    }

    /// The number of bytes of the next datagram.
    pub(super) fn next_datagram_len(&self) -> usize {
        self.endpoint
            .queue
            .lock()
            .datagrams
            .front()
            .map_or(0, |d| d.data.len())
    }

    /// Implements `FileOps::poll`.
    pub(super) fn poll(&self, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.endpoint.readable);
            table.poll_wait(&self.endpoint.writable);
            table.poll_wait_events(self.sent.room(), Events::WRITABLE | Events::WRBAND);
        }
        let shut = |what| self.endpoint.is_shut_down(what);
        let mut events = Events::empty();
        events.set(Events::WRITABLE | Events::WRBAND, self.sent.is_writable());
        events.set(
            Events::ERR,
            self.endpoint.has_error() || self.options.error_queue.has_entries(),
        );
        events.set(Events::HUP, shut(RCV_SHUTDOWN | SEND_SHUTDOWN));
        events.set(Events::READABLE | Events::RDHUP, shut(RCV_SHUTDOWN));
        events.set(
            Events::READABLE,
            shut(RCV_SHUTDOWN) || !self.endpoint.queue.lock().datagrams.is_empty(),
        );
        events
    }

    /// Throws away the queue; nothing comes any more.
    pub(super) fn close(&self) {
        let old = core::mem::replace(
            &mut *self.endpoint.queue.lock(),
            DatagramQueue {
                closed: true,
                ..DatagramQueue::default()
            },
        );
        drop(old);
        self.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
    }
}

/// A transport of datagrams: what UDP and raw sockets do each in its own way.
pub(super) trait DatagramProtocol: Send + Sync + 'static {
    /// The state that all internet sockets have.
    fn common(&self) -> &InetSocket;

    /// The receiving side.
    fn receiver(&self) -> &DatagramReceiver;

    /// Implements `SocketOps::socket_type`.
    fn socket_type(&self) -> SocketType;

    /// The number of the protocol.
    fn protocol_number(&self) -> i32;

    /// The socket's own address and the peer's.
    fn addresses(&self) -> (SocketAddr, Option<SocketAddr>);

    /// Whether it has an address of its own.
    fn is_bound(&self) -> bool;

    /// Implements `SocketOps::bind`.
    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()>;

    /// Implements `SocketOps::connect`.
    fn connect(&self, address: &Address) -> Result<()>;

    /// Implements `SocketOps::check_message`.
    fn check_message(&self, to: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()>;

    /// Implements `SocketOps::send`.
    fn send(&self, message: OutgoingMessage<'_>, flags: MsgFlags) -> Result<usize>;

    /// Implements `SocketOps::check_option`.
    fn check_option(&self, level: u32, option: u32, access: OptionAccess) -> Result<()> {
        options::check(
            self.common(),
            options::Transport::Datagram,
            level,
            option,
            access,
        )
    }

    /// Implements `SocketOps::option`.
    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        options::get(self.common(), None, self.addresses().1, level, option)
    }

    /// Implements `SocketOps::set_option`.
    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        options::set(self.common(), None, self.is_bound(), level, option, value)
    }

    /// Bytes of a message that has not gone out.
    fn send_queue_bytes(&self) -> usize {
        0
    }

    /// Whether it spares copies, and looks at what waits from an offset on.
    fn is_udp(&self) -> bool;

    /// Ends the socket, which nobody will use again.
    fn close(&self);
}

/// An open socket of such a transport.
pub(super) struct DatagramSocket<T>(Arc<T>);

impl<T: DatagramProtocol> DatagramSocket<T> {
    pub(super) fn socket(transport: Arc<T>) -> Socket {
        let options = transport.receiver().options.clone();
        Socket::new(Arc::new(Self(transport)), options)
    }
}

impl<T: DatagramProtocol> FileOps for DatagramSocket<T> {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        self.receive(
            buf,
            MsgFlags::empty(),
            self.0
                .receiver()
                .options
                .receive_wait(file.is_nonblocking()),
        )
        .map(|incoming| incoming.copied)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let receiver = self.0.receiver();
        let wait = receiver.options.send_wait(file.is_nonblocking());
        receiver.wait_to_send(wait)?;
        self.0.send(OutgoingMessage::plain(buf), MsgFlags::empty())
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        self.0.receiver().poll(table)
    }

    fn release(&self, _: &File) {
        self.0.close();
    }
}

impl<T: DatagramProtocol> SocketOps for DatagramSocket<T> {
    fn family(&self) -> u32 {
        self.0.common().family().number()
    }

    fn socket_type(&self) -> SocketType {
        self.0.socket_type()
    }

    fn protocol_number(&self) -> i32 {
        self.0.protocol_number()
    }

    fn is_listening(&self) -> bool {
        false
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        self.0.bind(caller, address)
    }

    fn connect(&self, _: &Caller<'_>, address: &Address, _: WaitPolicy) -> Result<()> {
        self.0.connect(address)
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self, _: WaitPolicy) -> Result<Socket> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local_address(&self) -> Address {
        self.0.common().user_address(self.0.addresses().0)
    }

    fn peer_address(&self) -> Result<Address> {
        self.0
            .addresses()
            .1
            .map(|peer| self.0.common().user_address(peer))
            .ok_or(Errno::ENOTCONN)
    }

    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()> {
        let connected = self.0.addresses().1.is_some();
        self.0
            .receiver()
            .shutdown((u8::from(receiving) * RCV_SHUTDOWN) | (u8::from(sending) * SEND_SHUTDOWN));
        // Linux does it, and says so all the same.
        if connected {
            Ok(())
        } else {
            Err(Errno::ENOTCONN)
        }
    }

    fn check_message(&self, to: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()> {
        self.0.check_message(to, length, flags)
    }

    fn send(
        &self,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        self.0.receiver().wait_to_send(wait)?;
        self.0.send(message, flags)
    }

    fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        // UDP knows nothing urgent and does not look for it.
        if flags.contains(MsgFlags::OOB) && !self.0.is_udp() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.0
            .receiver()
            .receive_owned(self.0.common(), limit, flags, wait)
    }

    fn take_error(&self) -> Option<Errno> {
        self.0.receiver().endpoint.take_error()
    }

    fn set_error(&self, error: Errno) {
        self.0.receiver().endpoint.set_error(error);
    }

    fn receive_queue_bytes(&self) -> usize {
        self.0.receiver().next_datagram_len()
    }

    fn send_queue_bytes(&self) -> usize {
        self.0.send_queue_bytes() + self.0.receiver().sent.bytes()
    }

    fn memory_info(&self) -> SocketMemory {
        SocketMemory {
            receive_bytes: self.0.receiver().charged_bytes(),
            send_bytes: self.0.receiver().sent.bytes(),
            drops: self.0.receiver().drops(),
        }
    }

    fn receive_error_queue(&self, limit: usize) -> Result<(Vec<u8>, ReceivedMessage)> {
        self.0
            .common()
            .receive_error_queue(&self.0.receiver().options, limit)
    }

    fn complete_zerocopy(&self) {
        let receiver = self.0.receiver();
        receiver
            .options
            .error_queue
            .push_zerocopy(receiver.options.receive_buffer());
        receiver.endpoint.readable.notify_events(Events::ERR);
    }

    fn supports_zerocopy(&self) -> bool {
        self.0.is_udp()
    }

    fn supports_peek_offset(&self) -> bool {
        self.0.is_udp()
    }

    fn attach_file(&self, file: &Arc<File>) {
        self.0.common().attach_file(file);
    }

    fn check_option(&self, level: u32, option: u32, access: OptionAccess) -> Result<()> {
        self.0.check_option(level, option, access)
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        self.0.option(level, option)
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        self.0.set_option(level, option, value)
    }
}

/// The values that go into a datagram's header.
pub(super) struct SendParameters {
    pub(super) hop_limit: i32,
    pub(super) traffic_class: i32,
    pub(super) source: Option<IpAddr>,
    /// The interface to send by, if the message says so (`IPV6_PKTINFO`).
    interface: u32,
    pub(super) path_mtu_discovery: PathMtuDiscovery,
}

impl SendParameters {
    /// The parameters of a datagram: as the options say, unless the message says otherwise.
    ///
    /// # Errors
    /// `EINVAL` for what makes no sense, or an address that is not this host's.
    pub(super) fn new(common: &InetSocket, to: IpAddr, control: &[ControlMessage]) -> Result<Self> {
        let options = &common.options;
        let (hops, class) = match (to.is_multicast(), to.is_ipv4()) {
            (false, true) => ((IP, net::IP_TTL), (IP, net::IP_TOS)),
            (true, true) => ((IP, net::IP_MULTICAST_TTL), (IP, net::IP_TOS)),
            (false, false) => ((IPV6, net::IPV6_UNICAST_HOPS), (IPV6, net::IPV6_TCLASS)),
            (true, false) => ((IPV6, net::IPV6_MULTICAST_HOPS), (IPV6, net::IPV6_TCLASS)),
        };
        let mtu_discover = match to {
            IpAddr::V4(_) => (IP, net::IP_MTU_DISCOVER),
            IpAddr::V6(_) => (IPV6, net::IPV6_MTU_DISCOVER),
        };
        let chosen = options.int_options([hops, class, mtu_discover]);
        let [hop_limit, traffic_class, mtu_discover] = chosen;
        let mut sends = Self {
            hop_limit,
            traffic_class,
            source: None,
            interface: 0,
            path_mtu_discovery: PathMtuDiscovery::from_option(mtu_discover),
        };
        for (level, kind, bytes) in control {
            if *level == net::SOL_SOCKET {
                // Checked when it was said; what it means is looked at where it counts.
                continue;
            }
            let number = match (bytes.first_chunk(), &bytes[..]) {
                (Some(word), _) => i32::from_ne_bytes(*word),
                (None, [byte]) if *level == IP => i32::from(*byte),
                _ => return Err(Errno::EINVAL),
            };
            let ip = |at: usize, len: usize| -> Result<IpAddr> {
                let octets = bytes.get(at..at + len).ok_or(Errno::EINVAL)?;
                let v4 = octets
                    .first_chunk::<4>()
                    .map(|octets| IpAddr::from(*octets));
                octets
                    .first_chunk::<16>()
                    .map(|octets| IpAddr::from(*octets).to_canonical())
                    .or(v4)
                    .ok_or(Errno::EINVAL)
            };
            match (*level, *kind) {
                (IP, net::IP_TTL) | (IPV6, net::IPV6_HOPLIMIT) => sends.hop_limit = number,
                (IP, net::IP_TOS) | (IPV6, net::IPV6_TCLASS) => sends.traffic_class = number,
                // The address to send from stands behind the interface, or before it.
                (IP, net::IP_PKTINFO) => sends.source = Some(ip(4, 4)?),
                (IPV6, net::IPV6_PKTINFO) => {
                    sends.source = Some(ip(0, 16)?);
                    let index = bytes.get(16..).and_then(|rest| rest.first_chunk());
                    sends.interface = u32::from_ne_bytes(*index.ok_or(Errno::EINVAL)?);
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        // "As it is chosen."
        if sends.hop_limit == -1 {
            sends.hop_limit = hop_limit;
        }
        if sends.traffic_class == -1 {
            sends.traffic_class = traffic_class;
        }
        sends.source = sends.source.filter(|ip| !ip.is_unspecified());
        let is_local = |ip| common.stack().is_local_address(SocketAddr::new(ip, 0));
        let known = sends.source.is_none_or(is_local);
        let fits = |number: i32| (0..=255).contains(&number);
        if known && fits(sends.hop_limit) && fits(sends.traffic_class) {
            Ok(sends)
        } else {
            Err(Errno::EINVAL)
        }
    }
}

impl SendParameters {
    /// A destination with the interface that the message says it is to be reached by.
    pub(super) fn by_interface(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V6(mut v6) if self.interface != 0 => {
                v6.set_scope_id(self.interface);
                v6.into()
            }
            _ => to,
        }
    }
}

/// Says what a socket's options ask for of a datagram that it received.
fn add_control_messages(common: &InetSocket, datagram: &Datagram, told: &mut Vec<ControlMessage>) {
    let wanted = |level, option| common.options.is_enabled(level, option);
    let number = |n: u8| i32::from(n).to_ne_bytes().to_vec();
    if let IpAddr::V4(to) = datagram.to.ip() {
        if wanted(IP, net::IP_PKTINFO) {
            // `struct in_pktinfo`: interface, the address it was taken at, the one in its header.
            let bytes = [
                datagram.interface_index.to_ne_bytes(),
                to.octets(),
                to.octets(),
            ]
            .concat();
            told.push((IP, net::IP_PKTINFO, bytes));
        }
        if wanted(IP, net::IP_RECVTTL) {
            told.push((IP, net::IP_TTL, number(datagram.ttl)));
        }
        if wanted(IP, net::IP_RECVTOS) {
            told.push((IP, net::IP_TOS, alloc::vec![datagram.tos]));
        }
        if wanted(IP, net::IP_RECVORIGDSTADDR) {
            told.push((
                IP,
                net::IP_RECVORIGDSTADDR,
                Address::Inet(datagram.to).encode(),
            ));
        }
    }
    if common.family() == Family::V6 {
        let older = wanted(IPV6, net::IPV6_2292PKTINFO);
        if older || wanted(IPV6, net::IPV6_RECVPKTINFO) {
            let ip = match datagram.to.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let bytes = [&ip.octets()[..], &datagram.interface_index.to_ne_bytes()].concat();
            told.push((
                IPV6,
                if older {
                    net::IPV6_2292PKTINFO
                } else {
                    net::IPV6_PKTINFO
                },
                bytes,
            ));
        }
        if wanted(IPV6, net::IPV6_RECVHOPLIMIT) {
            told.push((IPV6, net::IPV6_HOPLIMIT, number(datagram.ttl)));
        }
        if wanted(IPV6, net::IPV6_2292HOPLIMIT) {
            told.push((IPV6, net::IPV6_2292HOPLIMIT, number(datagram.ttl)));
        }
        if wanted(IPV6, net::IPV6_RECVORIGDSTADDR) {
            told.push((
                IPV6,
                net::IPV6_RECVORIGDSTADDR,
                common.user_address(datagram.to).encode(),
            ));
        }
        if wanted(IPV6, net::IPV6_RECVTCLASS) {
            told.push((IPV6, net::IPV6_TCLASS, number(datagram.tos)));
        }
    }
}
