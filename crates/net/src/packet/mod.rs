//! `AF_PACKET`: packets as they go over an interface, link's header and all (`packet(7)`), one by
//! one or in memory that is mapped.
//!
//! The loop carries no packets: they are made for who listens here (`inet/frame.rs`), and as long
//! as nobody does that costs a load for each message.

mod ring;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::errno::Errno;
use fallible::Text;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;
use linux_raw_sys::net::net_device_flags::{IFF_LOOPBACK, IFF_UP};
use ring::{Ring, RingPacket, RingRequest};
use task::Mutex;

use crate::inet::{InetStack, frame};
use crate::socket::endpoint::{Endpoint, RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::socket::extended_options::{SKF_AD_CPU, realtime_ns, this_cpu};
use crate::socket::tap::{PACKET_HOST, PACKET_OUTGOING, PacketTap, TapScope};
use crate::socket::{Interface, SocketMemory, caller_ucred, timer};
use crate::{
    Address, Caller, LinkAddress, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketOps,
    SocketOptions, SocketType, WaitPolicy,
};

/// The level of the options, and those there are.
const SOL_PACKET: u32 = 263;
const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const RX_RING: u32 = 5;
const STATISTICS: u32 = 6;
const AUXDATA: u32 = 8;
const ORIGIN: u32 = 9;
const VERSION: u32 = 10;
const HEADER_LENGTH: u32 = 11;
const RESERVE: u32 = 12;
const TIMESTAMP: u32 = 17;
const IGNORE_OUTGOING: u32 = 23;
/// The protocol number of every protocol.
const ETH_P_ALL: u16 = 3;
/// The bytes of the receiver's buffer that a packet takes up besides its own.
const PACKET_OVERHEAD: usize = 256;

/// The packet sockets of a network stack (Linux `struct netns_packet`).
pub struct PacketStack {
    inet: Arc<InetStack>,
    sockets: Mutex<Vec<Weak<PacketSocket>>>,
}

/// A packet that waits.
struct QueuedPacket {
    data: Vec<u8>,
    /// The number of bytes before the filter.
    original_len: usize,
    from: LinkAddress,
    timestamp_ns: u64,
}

#[derive(Default)]
struct PacketQueue {
    packets: VecDeque<QueuedPacket>,
    charged_bytes: usize,
    ring: Option<Ring>,
    /// Received and lost since somebody asked.
    statistics: (u32, u32),
}

/// The protocol and interface a socket listens to.
#[derive(Clone, Copy, Default)]
struct PacketBinding {
    protocol: u16,
    /// 0: every one. The socket's [`TapScope`] is that, too.
    interface: u32,
}

/// An `AF_PACKET` socket.
pub(crate) struct PacketSocket {
    _counted: census::Packets,
    stack: Arc<PacketStack>,
    socket_type: SocketType,
    endpoint: Endpoint<PacketQueue>,
    binding: Mutex<PacketBinding>,
    scope: TapScope,
    auxdata: AtomicBool,
    ignore_outgoing: AtomicBool,
    version: AtomicU32,
    reserve: AtomicU32,
    /// `PACKET_ORIGDEV` and `PACKET_TIMESTAMP`, which change nothing here.
    origdev: AtomicU32,
    timestamp_source: AtomicU32,
    uid: u32,
    this: Weak<Self>,
}

/// The packet as a filter sees it.
struct FilterInput<'a> {
    data: &'a [u8],
    protocol: u16,
    packet_type: u8,
    interface: u32,
}

impl bpf::Data for FilterInput<'_> {
    fn length(&self) -> u32 {
        self.data.len() as u32
    }

    fn load(&self, at: u32, size: u32) -> Option<u32> {
        (self.data, &[][..]).load(at, size)
    }

    fn beside(&self, number: u32) -> u32 {
        const PROTOCOL: u32 = 0;
        const WAY: u32 = 4;
        const INTERFACE: u32 = 8;
        match number {
            PROTOCOL => self.protocol.into(),
            WAY => self.packet_type.into(),
            INTERFACE => self.interface,
            SKF_AD_CPU => this_cpu(),
            _ => 0,
        }
    }
}

impl PacketStack {
    pub(crate) fn new(inet: Arc<InetStack>) -> Arc<Self> {
        Arc::new(Self {
            inet,
            sockets: Mutex::default(),
        })
    }

    /// A new socket. `protocol` is in the network's order of bytes.
    ///
    /// # Errors
    /// `ESOCKTNOSUPPORT`, `ENOMEM`.
    pub(crate) fn socket(
        self: &Arc<Self>,
        socket_type: SocketType,
        protocol: i32,
    ) -> Result<Socket> {
        if !matches!(socket_type, SocketType::Raw | SocketType::Datagram) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        let core = &self.inet.core;
        let options = Arc::new(SocketOptions::new(core.clone()));
        let socket = Arc::new_cyclic(|this: &Weak<PacketSocket>| PacketSocket {
            _counted: census::Packets::default(),
            stack: self.clone(),
            socket_type,
            endpoint: Endpoint::new(options.clone()),
            binding: Mutex::new(PacketBinding {
                protocol: u16::from_be(protocol as u16),
                interface: 0,
            }),
            scope: TapScope::all(),
            auxdata: AtomicBool::new(false),
            ignore_outgoing: AtomicBool::new(false),
            version: AtomicU32::new(0),
            reserve: AtomicU32::new(0),
            origdev: AtomicU32::new(0),
            timestamp_source: AtomicU32::new(0),
            uid: caller_ucred().uid,
            this: this.clone(),
        });
        core.taps.add(socket.tap(), socket.scope.clone())?;
        self.sockets.lock().push(Arc::downgrade(&socket));
        Ok(Socket::new(socket, options))
    }

    /// The lines of `/proc/net/packet`, one for each socket.
    ///
    /// # Errors
    /// `ENOMEM`: there may be thousands of lines.
    pub fn proc_net_packet(&self) -> Result<String> {
        let mut text = Text::default();
        let mut add = |line: Arguments<'_>| text.write_fmt(line).map_err(|_| Errno::ENOMEM);
        add(format_args!(
            "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n"
        ))?;
        for socket in self.sockets.lock().iter().filter_map(Weak::upgrade) {
            let (bound, charge) = (
                *socket.binding.lock(),
                socket.endpoint.queue.lock().charged_bytes,
            );
            let (uid, ino) = (socket.uid, socket.endpoint.ino());
            let running = u8::from(bound.protocol != 0);
            let kind = socket.socket_type.as_raw();
            let PacketBinding {
                protocol,
                interface,
            } = bound;
            add(format_args!(
                "{:016x} {:<6} {kind:<4} {protocol:04x}   {interface:<5} {running} {charge:<6} {uid:<6} {ino:<6}\n",
                0, 3
            ))?;
        }
        Ok(text.into_string())
    }
}

/// Tells a socket that the block that is being filled has waited long enough.
struct BlockRetireTimer {
    socket: Weak<PacketSocket>,
    sequence: u64,
}

impl timer::TimerCallback for BlockRetireTimer {
    fn on_expiry(&self) {
        let Some(socket) = self.socket.upgrade() else {
            return;
        };
        let given = socket
            .endpoint
            .queue
            .lock()
            .ring
            .as_mut()
            .is_some_and(|ring| ring.retire_expired_block(self.sequence));
        if given {
            socket.endpoint.readable.notify_events(Events::READABLE);
        }
    }
}

/// The hardware address that a frame says it is from, and its length.
fn sender_address(frame: &[u8], interface: &Interface) -> (u8, [u8; 8]) {
    let mut address = [0; 8];
    let len = usize::from(interface.hardware_len());
    if let Some(from) = frame.get(len..len * 2) {
        address[..len].copy_from_slice(from);
    }
    (len as u8, address)
}

impl PacketTap for PacketSocket {
    fn receive_frame(&self, frame: &[u8], interface: &Interface, packet_type: u8) {
        let bound = *self.binding.lock();
        let protocol = frame::protocol(frame, interface);
        let meant = match bound.protocol {
            0 => false,
            // What goes out is for those only who want everything.
            ETH_P_ALL => {
                packet_type != PACKET_OUTGOING || !self.ignore_outgoing.load(Ordering::Relaxed)
            }
            wanted => packet_type != PACKET_OUTGOING && wanted == protocol,
        };
        if !meant
            || !(bound.interface == 0 || bound.interface == interface.index)
            || self.endpoint.is_shut_down(RCV_SHUTDOWN)
        {
            return;
        }
        let link_header_len = if self.socket_type == SocketType::Raw {
            interface.link_header_len()
        } else {
            0
        };
        let mut data = if link_header_len == 0 {
            &frame[interface.link_header_len().min(frame.len())..]
        } else {
            frame
        };
        let (hardware_len, hardware_address) = sender_address(frame, interface);
        let original_len = data.len();
        if let Some(filter) = self.endpoint.options.filter() {
            match filter.run(&FilterInput {
                data,
                protocol,
                packet_type,
                interface: interface.index,
            }) as usize
            {
                0 => return,
                length => data = &data[..length.min(data.len())],
            }
        }
        let from = LinkAddress {
            protocol,
            interface_index: interface.index.cast_signed(),
            hardware_type: interface.hardware_type,
            packet_type,
            hardware_len,
            hardware_address,
        };
        let told = {
            let mut queue = self.endpoint.queue.lock();
            let queue = &mut *queue;
            let (taken, told, pending) = match &mut queue.ring {
                Some(ring) => {
                    let was = ring.pending_block();
                    let address = Address::Packet(from).encode();
                    let (taken, told) = ring.write_packet(&RingPacket {
                        data,
                        original_len,
                        link_header_len,
                        timestamp_ns: realtime_ns(),
                        address: &address,
                    });
                    (
                        taken,
                        told,
                        ring.pending_block().filter(|waits| Some(*waits) != was),
                    )
                }
                None if queue.charged_bytes > 0
                    && queue.charged_bytes + data.len() + PACKET_OVERHEAD
                        > self.endpoint.options.receive_buffer() =>
                {
                    (false, false, None)
                }
                None => {
                    queue.charged_bytes += data.len() + PACKET_OVERHEAD;
                    queue.packets.push_back(QueuedPacket {
                        data: data.to_vec(),
                        original_len,
                        from,
                        timestamp_ns: self.endpoint.options.receive_timestamp(),
                    });
                    (true, true, None)
                }
            };
            let (received, lost) = &mut queue.statistics;
            *(if taken { received } else { lost }) += 1;
            if let Some((sequence, retire_timeout_ms)) = pending {
                let time = BlockRetireTimer {
                    socket: self.this.clone(),
                    sequence,
                };
                timer::schedule_timer(u64::from(retire_timeout_ms) * 1_000_000, Arc::new(time));
            }
            told
        };
        if told {
            self.endpoint.readable.notify_events(Events::READABLE);
        }
    }
}

impl PacketSocket {
    /// The socket as the interfaces' taps know it.
    fn tap(&self) -> Weak<dyn PacketTap> {
        self.this.clone()
    }

    fn next_packet(&self, flags: MsgFlags, wait: WaitPolicy) -> Result<QueuedPacket> {
        let attempt = || {
            if let Some(error) = self.endpoint.take_error() {
                return Some(Err(error));
            }
            let mut queue = self.endpoint.queue.lock();
            if flags.contains(MsgFlags::PEEK) {
                let QueuedPacket {
                    data,
                    original_len,
                    from,
                    timestamp_ns,
                } = queue.packets.front()?;
                return Some(Ok(QueuedPacket {
                    data: data.clone(),
                    original_len: *original_len,
                    from: *from,
                    timestamp_ns: *timestamp_ns,
                }));
            }
            let packet = queue.packets.pop_front()?;
            queue.charged_bytes -= packet.data.len() + PACKET_OVERHEAD;
            Some(Ok(packet))
        };
        wait.wait_on(&self.endpoint.readable, attempt)
    }

    /// `struct tpacket_auxdata`.
    fn auxdata(&self, packet: &QueuedPacket) -> Vec<u8> {
        let network = if self.socket_type == SocketType::Raw {
            self.interface(packet.from.interface_index.cast_unsigned())
                .ok()
                .flatten()
                .map_or(0, |interface| interface.link_header_len() as u16)
        } else {
            0
        };
        let words = [
            ring::TP_STATUS_USER,
            packet.original_len as u32,
            packet.data.len() as u32,
        ]
        .map(u32::to_ne_bytes)
        .concat();
        [words, [0, network, 0, 0].map(u16::to_ne_bytes).concat()].concat()
    }

    /// The interface with a number; 0: none in particular.
    fn interface(&self, index: u32) -> Result<Option<Interface>> {
        if index == 0 {
            return Ok(None);
        }
        let core = &self.stack.inet.core;
        core.find_interface(|known| known.index == index)
            .ok_or(Errno::ENODEV)
            .map(Some)
    }

    fn set_ring(&self, value: &[u8]) -> Result<()> {
        let version = self.version.load(Ordering::Relaxed);
        let word = |at: usize| {
            let bytes = value
                .get(at * 4..)
                .and_then(|rest| rest.first_chunk())
                .ok_or(Errno::EINVAL)?;
            Ok::<_, Errno>(u32::from_ne_bytes(*bytes))
        };
        let (retire_timeout_ms, private_size) = if version == ring::TPACKET_V3 {
            (word(4)?, word(5)? as usize)
        } else {
            (0, 0)
        };
        let shape = RingRequest {
            block_size: word(0)? as usize,
            block_count: word(1)? as usize,
            frame_size: word(2)? as usize,
            frame_count: word(3)? as usize,
            retire_timeout_ms,
            private_size,
        };
        let reserve = self.reserve.load(Ordering::Relaxed) as usize;
        let ring = if shape.block_count == 0 {
            None
        } else {
            Some(Ring::new(shape, version, reserve)?)
        };
        let old = {
            let mut queue = self.endpoint.queue.lock();
            if queue.ring.is_some() && ring.is_some() {
                return Err(Errno::EBUSY);
            }
            queue.charged_bytes = 0;
            (
                core::mem::replace(&mut queue.ring, ring),
                core::mem::take(&mut queue.packets),
            )
        };
        drop(old);
        Ok(())
    }
}

/// The pages of a ring.
struct RingPages(Weak<PacketSocket>);

impl vm::Backing for RingPages {
    fn page(&self, index: u64) -> Result<vm::Page> {
        self.cached(index).ok_or(Errno::EFAULT)
    }

    fn cached(&self, index: u64) -> Option<vm::Page> {
        self.0
            .upgrade()?
            .endpoint
            .queue
            .lock()
            .ring
            .as_ref()?
            .page(index)
    }
}

impl FileOps for PacketSocket {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = self.endpoint.options.receive_wait(file.is_nonblocking());
        self.receive(buf, MsgFlags::empty(), wait)
            .map(|got| got.copied)
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        self.send(
            OutgoingMessage::plain(buf),
            MsgFlags::empty(),
            WaitPolicy::NONBLOCKING,
        )
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.endpoint.readable);
        }
        let news = {
            let queue = self.endpoint.queue.lock();
            !queue.packets.is_empty() || queue.ring.as_ref().is_some_and(Ring::is_readable)
        };
        let mut events = Events::WRITABLE | Events::WRBAND;
        events.set(Events::ERR, self.endpoint.has_error());
        events.set(Events::READABLE, news);
        events
    }

    fn backing(&self, _: &File) -> Result<Arc<dyn vm::Backing>> {
        if self.endpoint.queue.lock().ring.is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(Arc::new(RingPages(self.this.clone())))
    }

    fn release(&self, _: &File) {
        self.stack.inet.core.taps.remove(&self.tap());
        let mut sockets = self.stack.sockets.lock();
        sockets.retain(|known| !known.ptr_eq(&self.this));
        drop(sockets);
        self.endpoint.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
        let old = core::mem::take(&mut *self.endpoint.queue.lock());
        drop(old);
    }
}

impl SocketOps for PacketSocket {
    fn family(&self) -> u32 {
        net::AF_PACKET
    }

    fn socket_type(&self) -> SocketType {
        self.socket_type
    }

    fn protocol_number(&self) -> i32 {
        self.binding.lock().protocol.to_be().into()
    }

    fn is_listening(&self) -> bool {
        false
    }

    fn bind(&self, _: &Caller<'_>, address: &Address) -> Result<()> {
        let Address::Packet(address) = address else {
            return Err(Errno::EINVAL);
        };
        let interface = self
            .interface(address.interface_index.cast_unsigned())?
            .map_or(0, |interface| interface.index);
        let mut bound = self.binding.lock();
        let protocol = if address.protocol == 0 {
            bound.protocol
        } else {
            address.protocol
        };
        *bound = PacketBinding {
            protocol,
            interface,
        };
        self.scope.set(interface);
        Ok(())
    }

    fn connect(&self, _: &Caller<'_>, _: &Address, _: WaitPolicy) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self, _: WaitPolicy) -> Result<Socket> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local_address(&self) -> Address {
        let PacketBinding {
            protocol,
            interface,
        } = *self.binding.lock();
        let found = self.interface(interface).ok().flatten();
        let (hardware_type, hardware_len) = found
            .as_ref()
            .map_or((0, 0), |known| (known.hardware_type, known.hardware_len()));
        let hardware_address = found.map_or([0; 8], |known| known.padded_hardware_address());
        Address::Packet(LinkAddress {
            protocol,
            interface_index: interface.cast_signed(),
            hardware_type,
            packet_type: PACKET_HOST,
            hardware_len,
            hardware_address,
        })
    }

    fn peer_address(&self) -> Result<Address> {
        Err(Errno::EOPNOTSUPP)
    }

    fn shutdown(&self, _: bool, _: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn send(&self, message: OutgoingMessage<'_>, flags: MsgFlags, _: WaitPolicy) -> Result<usize> {
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let bound = *self.binding.lock();
        let (index, protocol) = match message.to {
            None => (bound.interface, bound.protocol),
            Some((_, Address::Packet(to))) => (to.interface_index.cast_unsigned(), to.protocol),
            Some(_) => return Err(Errno::EINVAL),
        };
        let interface = self.interface(index)?.ok_or(Errno::ENXIO)?;
        if !interface.has_flag(IFF_UP) {
            return Err(Errno::ENETDOWN);
        }
        let header_len = interface.link_header_len();
        let is_raw = self.socket_type == SocketType::Raw;
        if is_raw && message.data.len() < header_len {
            return Err(Errno::EINVAL);
        }
        let header_room = if is_raw { 0 } else { header_len };
        if message.data.len() + header_room > interface.mtu as usize + header_len {
            return Err(Errno::EMSGSIZE);
        }
        let mut frame = fallible::with_capacity(header_room + message.data.len())?;
        if header_room > 0 {
            let to = match message.to {
                Some((_, Address::Packet(to))) => {
                    *to.hardware_address.first_chunk().unwrap_or(&[0; 6])
                }
                _ => [0; 6],
            };
            frame.extend_from_slice(&to);
            frame.extend_from_slice(&interface.hardware_address.unwrap_or_default());
            frame.extend_from_slice(&protocol.to_be_bytes());
        }
        frame.extend_from_slice(message.data);
        let (stack, sender) = (&self.stack.inet, self.tap());
        if interface.has_flag(IFF_LOOPBACK) {
            stack.core.taps.deliver(&frame, &interface, Some(&sender));
        } else {
            let taps = &stack.core.taps;
            taps.deliver_one_way(&frame, &interface, PACKET_OUTGOING, Some(&sender));
        }
        stack.transmit_frame(interface.index, frame)?;
        Ok(message.data.len())
    }

    fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        let packet = self.next_packet(flags, wait)?;
        self.endpoint.options.record_timestamp(packet.timestamp_ns);
        let mut control = self
            .endpoint
            .options
            .timestamp_messages(packet.timestamp_ns);
        if self.auxdata.load(Ordering::Relaxed) {
            control.push((SOL_PACKET, AUXDATA, self.auxdata(&packet)));
        }
        let mut data = packet.data;
        let message_len = data.len();
        data.truncate(limit);
        let copied = data.len();
        Ok((
            data,
            ReceivedMessage {
                copied,
                message_len,
                from: Some(Address::Packet(packet.from)),
                control,
                ..ReceivedMessage::default()
            },
        ))
    }

    fn take_error(&self) -> Option<Errno> {
        self.endpoint.take_error()
    }

    fn set_error(&self, error: Errno) {
        self.endpoint.set_error(error);
    }

    fn receive_queue_bytes(&self) -> usize {
        self.endpoint
            .queue
            .lock()
            .packets
            .front()
            .map_or(0, |packet| packet.data.len())
    }

    fn send_queue_bytes(&self) -> usize {
        0
    }

    fn memory_info(&self) -> SocketMemory {
        let queue = self.endpoint.queue.lock();
        SocketMemory {
            receive_bytes: queue.charged_bytes,
            send_bytes: 0,
            drops: queue.statistics.1.into(),
        }
    }

    fn option_with_argument(&self, level: u32, option: u32, given: u32) -> Result<Vec<u8>> {
        if (level, option) == (SOL_PACKET, HEADER_LENGTH) {
            return Ok((ring::header_length(given)? as u32).to_ne_bytes().to_vec());
        }
        self.option(level, option)
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        if level != SOL_PACKET {
            return Err(Errno::ENOPROTOOPT);
        }
        let number = match option {
            STATISTICS => {
                let mut queue = self.endpoint.queue.lock();
                let (received, lost) = core::mem::take(&mut queue.statistics);
                let mut words = [received + lost, lost].map(u32::to_ne_bytes).concat();
                if self.version.load(Ordering::Relaxed) == ring::TPACKET_V3 {
                    let freezes = queue
                        .ring
                        .as_mut()
                        .map_or(0, |ring| core::mem::take(&mut ring.freezes));
                    words.extend_from_slice(&freezes.to_ne_bytes());
                }
                return Ok(words);
            }
            AUXDATA => self.auxdata.load(Ordering::Relaxed).into(),
            ORIGIN => self.origdev.load(Ordering::Relaxed),
            VERSION => self.version.load(Ordering::Relaxed),
            RESERVE => self.reserve.load(Ordering::Relaxed),
            TIMESTAMP => self.timestamp_source.load(Ordering::Relaxed),
            IGNORE_OUTGOING => self.ignore_outgoing.load(Ordering::Relaxed).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        const MEMBERSHIP: usize = 16;
        if level != SOL_PACKET {
            return Err(Errno::ENOPROTOOPT);
        }
        if option == RX_RING {
            return self.set_ring(value);
        }
        let number = value
            .first_chunk()
            .map(|bytes| u32::from_ne_bytes(*bytes))
            .ok_or(Errno::EINVAL)?;
        let ring = self.endpoint.queue.lock().ring.is_some();
        match option {
            // Every packet of the loop is heard without asking for more.
            ADD_MEMBERSHIP | DROP_MEMBERSHIP if value.len() < MEMBERSHIP => {
                return Err(Errno::EINVAL);
            }
            ADD_MEMBERSHIP | DROP_MEMBERSHIP => drop(self.interface(number)?),
            AUXDATA => self.auxdata.store(number != 0, Ordering::Relaxed),
            ORIGIN => self
                .origdev
                .store(u32::from(number != 0), Ordering::Relaxed),
            VERSION | RESERVE if ring => return Err(Errno::EBUSY),
            VERSION => {
                ring::header_length(number)?;
                self.version.store(number, Ordering::Relaxed);
            }
            RESERVE if number > 65_536 => return Err(Errno::EINVAL),
            RESERVE => self.reserve.store(number, Ordering::Relaxed),
            TIMESTAMP => self.timestamp_source.store(number, Ordering::Relaxed),
            IGNORE_OUTGOING if number > 1 => return Err(Errno::EINVAL),
            IGNORE_OUTGOING => self.ignore_outgoing.store(number != 0, Ordering::Relaxed),
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    fn attach_file(&self, file: &Arc<File>) {
        self.endpoint.attach_file(file);
    }
}
