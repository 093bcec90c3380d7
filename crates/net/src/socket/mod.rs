//! Sockets of whatever family: what they have in common, and the trait that a family implements.
//! Nothing here knows a family.

mod address;
pub(crate) mod byte_stream;
pub(crate) mod core_stack;
mod credentials;
mod dev_ioctl;
mod device;
pub(crate) mod endpoint;
pub(crate) mod error_queue;
mod ethtool;
pub(crate) mod extended_options;
pub(crate) mod if_req;
pub(crate) mod interface;
pub(crate) mod memory;
pub(crate) mod message;
mod options;
mod route_ioctl;
mod scm;
pub(crate) mod send_account;
pub(crate) mod socket_list;
mod sysctl;
pub(crate) mod tap;
pub(crate) mod timer;

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
pub use address::{Address, LinkAddress, UnixName};
pub use core_stack::CoreStack;
pub use credentials::{SupplementaryGroups, Ucred, set_credentials_provider};
pub(crate) use credentials::{caller_administers_networks, caller_groups, caller_ucred};
pub use device::{
    DeviceDetails, Frame, FrameRefused, LinkKind, NetDevice, NewInterface, TunDetails,
};
pub use extended_options::TxTime;
use fs::ioctl::IoctlRequest;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, FileType, OpenFlags, Path, Result};
pub use interface::{
    AddressChange, AddressLife, ArpEntry, Interface, InterfaceAddress, InterfaceChange,
    InterfaceName, Interfaces, OperState, RouteRequest, Traffic, address_flag,
};
use linux_raw_sys::{ioctl, net};
pub(crate) use message::ControlMessage;
pub use message::{Caller, MsgFlags, OutgoingMessage, ReceivedMessage, WaitPolicy};
pub use options::{Linger, SocketOptions};
pub(crate) use scm::PeekedRights;
pub use scm::{InflightTable, ScmRights};
pub use send_account::SendAccount;
pub(crate) use sysctl::CONGESTION_CONTROLS;
pub use sysctl::{Sysctl, Sysctls};
pub use timer::{TimerCallback, set_timer_scheduler};

/// The type of a socket (`SOCK_*`): what travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketType {
    /// Bytes, in order, between two (`SOCK_STREAM`).
    Stream,
    /// Messages, each for itself, from anybody (`SOCK_DGRAM`).
    Datagram,
    /// Messages, in order, between two (`SOCK_SEQPACKET`).
    Seqpacket,
    /// Packets of a protocol below that of ports (`SOCK_RAW`).
    Raw,
}

impl SocketType {
    /// The number of the type.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        match self {
            Self::Stream => 1,
            Self::Datagram => 2,
            Self::Raw => 3,
            Self::Seqpacket => 5,
        }
    }

    /// Whether two sockets of the type are connected before anything is sent.
    #[must_use]
    pub const fn is_connection_oriented(self) -> bool {
        !matches!(self, Self::Datagram | Self::Raw)
    }
}

/// An access of a program to an option of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionAccess {
    /// `getsockopt(2)`.
    Get,
    /// `setsockopt(2)` with a value of `len` bytes.
    Set {
        /// Bytes of the value.
        len: usize,
    },
}

/// The contents of a socket's queues, bytes (`SO_MEMINFO`).
#[derive(Clone, Copy, Default, Debug)]
pub struct SocketMemory {
    /// Bytes that wait to be received.
    pub receive_bytes: usize,
    /// Bytes that were sent and wait to be received by the peer.
    pub send_bytes: usize,
    /// The number of messages lost for want of room.
    pub drops: u64,
}

/// A socket that the kernel itself sends to, not as an answer.
pub trait KernelMailbox: Send + Sync {
    /// Waits until the socket has room for a message.
    ///
    /// # Errors
    /// `ERESTARTSYS` for a signal.
    fn wait_for_room(&self) -> Result<()>;

    /// Puts a message into its queue; none if memory is short.
    fn post(&self, message: &[u8]);
}

/// The operations of one family's sockets.
pub trait SocketOps: FileOps {
    /// The family's number.
    fn family(&self) -> u32;

    /// The kind.
    fn socket_type(&self) -> SocketType;

    /// The number of the protocol.
    fn protocol_number(&self) -> i32 {
        0
    }

    /// Whether the socket waits for connections.
    fn is_listening(&self) -> bool;

    /// Gives it an address.
    ///
    /// # Errors
    /// Those of `bind(2)`.
    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()>;

    /// Connects it, or (of datagrams) sets whom it talks to.
    ///
    /// # Errors
    /// Those of `connect(2)`.
    fn connect(&self, caller: &Caller<'_>, address: &Address, wait: WaitPolicy) -> Result<()>;

    /// Connects it to where a message is to go, before that is sent (`MSG_FASTOPEN`); does nothing
    /// where messages have no connections.
    ///
    /// # Errors
    /// Those of [`Self::connect`]; `EOPNOTSUPP`; `EINVAL` without an address.
    fn connect_for_message(&self, address: Option<&Address>, wait: WaitPolicy) -> Result<()> {
        let _ = (address, wait);
        Ok(())
    }

    /// Waits for connections from now on.
    ///
    /// # Errors
    /// Those of `listen(2)`.
    fn listen(&self, backlog: usize) -> Result<()>;

    /// Takes a connection.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    fn accept(&self, wait: WaitPolicy) -> Result<Socket>;

    /// The socket's own address.
    fn local_address(&self) -> Address;

    /// The peer's address.
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn peer_address(&self) -> Result<Address>;

    /// Ends receiving or sending.
    ///
    /// # Errors
    /// Those of `shutdown(2)`.
    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()>;

    /// The way by which the kernel itself sends to it (`mq_notify(2)`); `None` if that is no socket
    /// of `AF_NETLINK`.
    fn kernel_mailbox(self: Arc<Self>) -> Option<Arc<dyn KernelMailbox>> {
        None
    }

    /// Checks a message before its bytes are looked at, of a socket that keeps messages apart:
    /// where it goes, and how long it is.
    ///
    /// # Errors
    /// Those of `send(2)`.
    fn check_message(&self, _to: Option<&Address>, _length: usize, flags: MsgFlags) -> Result<()> {
        if flags.contains(MsgFlags::OOB) {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }

    /// Waits until a stream that is connected has room for anything, as it does before the bytes
    /// are looked at.
    ///
    /// # Errors
    /// Those of `send(2)`.
    fn wait_for_send_space(&self, _wait: WaitPolicy) -> Result<()> {
        Ok(())
    }

    /// Sends. How much was sent may be less than all of a stream's bytes.
    ///
    /// # Errors
    /// Those of `send(2)`.
    fn send(
        &self,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize>;

    /// Receives.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    fn receive(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        let (data, got) = self.receive_to_vec(buf.len(), flags, wait)?;
        buf[..data.len()].copy_from_slice(&data);
        Ok(got)
    }

    /// Receives into memory of its own: at most `limit` bytes, and no more than there are.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)>;

    /// The identity of the peer when it was connected (`SO_PEERCRED`).
    fn peer_credentials(&self) -> Ucred {
        Ucred::INVALID
    }

    /// The peer's supplementary groups when it was connected (`SO_PEERGROUPS`); `None` if nobody is
    /// known.
    fn peer_groups(&self) -> Option<SupplementaryGroups> {
        None
    }

    /// The error that happened while nobody called, which is then forgotten (`SO_ERROR`).
    fn take_error(&self) -> Option<Errno>;

    /// Keeps an error for [`Self::take_error`], or the next call.
    fn set_error(&self, error: Errno);

    /// Bytes that wait to be received (`SIOCINQ`).
    fn receive_queue_bytes(&self) -> usize;

    /// Bytes that were sent and have not gone out (`SIOCOUTQNSD`).
    fn unsent_bytes(&self) -> usize {
        0
    }

    /// Bytes that were sent and not received by the peer (`SIOCOUTQ`).
    fn send_queue_bytes(&self) -> usize;

    /// The contents of the queues.
    fn memory_info(&self) -> SocketMemory {
        SocketMemory {
            receive_bytes: self.receive_queue_bytes(),
            send_bytes: self.send_queue_bytes(),
            drops: 0,
        }
    }

    /// Takes the oldest entry of the error queue (`MSG_ERRQUEUE`), with at most `limit` bytes.
    ///
    /// # Errors
    /// `EAGAIN` if there is nothing.
    fn receive_error_queue(&self, _limit: usize) -> Result<(Vec<u8>, ReceivedMessage)> {
        Err(Errno::EAGAIN)
    }

    /// Completes a `MSG_ZEROCOPY` send, which was copied.
    fn complete_zerocopy(&self) {}

    /// Whether `SO_ZEROCOPY` can be set.
    fn supports_zerocopy(&self) -> bool {
        false
    }

    /// Whether `SO_PEEK_OFF` can be set.
    fn supports_peek_offset(&self) -> bool {
        false
    }

    /// The number from which what is sent is counted if that begins now: of a stream that of the
    /// byte that is sent next.
    ///
    /// # Errors
    /// `EINVAL` if it cannot begin.
    fn initial_timestamp_key(&self) -> Result<u32> {
        Ok(0)
    }

    /// Checks whether an option of a level below that of all sockets may be set or shown, as far as
    /// that is known before anything of the program's memory is read.
    ///
    /// # Errors
    /// Those of `setsockopt(2)` and `getsockopt(2)`.
    fn check_option(&self, _level: u32, _option: u32, _access: OptionAccess) -> Result<()> {
        Ok(())
    }

    /// An option of a level below that of all sockets.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    fn option(&self, _level: u32, _option: u32) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Gives an option whose value depends on a number that the program gives, else as
    /// [`SocketOps::option`].
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    fn option_with_argument(&self, level: u32, option: u32, _given: u32) -> Result<Vec<u8>> {
        self.option(level, option)
    }

    /// Sets such an option.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    fn set_option(&self, _level: u32, _option: u32, _value: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// An option that every socket has was set.
    fn on_socket_option(&self, option: u32) {
        let _ = option;
    }

    /// Whether the next byte is urgent (`SIOCATMARK`).
    ///
    /// # Errors
    /// `ENOTTY`.
    fn at_mark(&self) -> Result<bool> {
        Err(Errno::ENOTTY)
    }

    /// Tells the socket its open file, which is its only one.
    fn attach_file(&self, file: &Arc<File>);
}

/// An open socket.
///
/// ```
/// use std::sync::Arc;
///
/// use net::inet::Loopback;
/// use net::{MsgFlags, OutgoingMessage, SocketType, Stack, WaitPolicy};
///
/// let stack = Stack::new(Arc::new(Loopback));
/// let (one, other) = stack.socket_pair(SocketType::Seqpacket, 0)?;
/// let now = WaitPolicy {
///     nonblocking: true,
///     timeout_ns: 0,
/// };
/// let flags = MsgFlags::empty();
/// one.ops().send(OutgoingMessage::plain(b"hello"), flags, now)?;
/// let (bytes, _) = other.ops().receive_to_vec(100, flags, now)?;
/// assert_eq!(bytes, b"hello");
/// # Ok::<(), abi::errno::Errno>(())
/// ```
pub struct Socket {
    _counted: census::Socket,
    ops: Arc<dyn SocketOps>,
    options: Arc<SocketOptions>,
}

impl Socket {
    /// A socket of `ops`, which shares `options` with it.
    #[must_use]
    pub fn new(ops: Arc<dyn SocketOps>, options: Arc<SocketOptions>) -> Self {
        Self {
            _counted: census::Socket::default(),
            ops,
            options,
        }
    }

    /// The operations of the socket's family.
    #[must_use]
    pub fn ops(&self) -> &dyn SocketOps {
        &*self.ops
    }

    /// The way by which the kernel itself sends to it, if there is one.
    #[must_use]
    pub fn kernel_mailbox(&self) -> Option<Arc<dyn KernelMailbox>> {
        self.ops.clone().kernel_mailbox()
    }

    /// The socket's options.
    #[must_use]
    pub fn options(&self) -> &SocketOptions {
        &self.options
    }

    /// An open file of it. `flags` may hold `O_NONBLOCK`.
    #[must_use]
    pub fn into_file(self, flags: OpenFlags) -> Arc<File> {
        let path = Path::anonymous("socket:", FileType::Socket, 0o777, |_| Err(Errno::ENXIO));
        let protocol = self.ops.clone();
        let file = File::new(path, Arc::new(self), flags | OpenFlags::RDWR);
        protocol.attach_file(&file);
        file
    }

    /// The terms on which a call that sends waits.
    #[must_use]
    pub fn send_wait(&self, nonblocking: bool) -> WaitPolicy {
        self.options.send_wait(nonblocking)
    }

    /// The terms on which a call that receives, connects or accepts waits.
    #[must_use]
    pub fn receive_wait(&self, nonblocking: bool) -> WaitPolicy {
        self.options.receive_wait(nonblocking)
    }
}

impl FileOps for Socket {
    fn memory(&self) -> usize {
        let queued = self.ops.memory_info();
        queued.receive_bytes + queued.send_bytes
    }

    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        self.ops.read(file, buf)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        self.ops.write(file, buf)
    }

    fn poll(&self, file: &File, table: Option<&mut PollTable>) -> Events {
        self.ops.poll(file, table)
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        const SIOCATMARK: u32 = 0x8905;
        const SIOCGSTAMP: u32 = 0x8906;
        const SIOCGSTAMPNS: u32 = 0x8907;
        const SIOCOUTQNSD: u32 = 0x894b;
        let incoming = match request.command {
            linux_raw_sys::ioctl::FIONREAD => true,
            linux_raw_sys::ioctl::TIOCOUTQ => false,
            SIOCATMARK
                if self.ops.socket_type() == SocketType::Stream
                    || self.ops.family() == net::AF_UNIX =>
            {
                request.write(&i32::from(self.ops.at_mark()?))?;
                return Ok(0);
            }
            SIOCGSTAMP | SIOCGSTAMPNS | ioctl::SIOCGSTAMP_NEW | ioctl::SIOCGSTAMPNS_NEW
                if self.ops.family() != net::AF_UNIX =>
            {
                let time = self.options.last_timestamp()?;
                let nanoseconds = matches!(request.command, SIOCGSTAMPNS | ioctl::SIOCGSTAMPNS_NEW);
                request.write(&[
                    time.sec,
                    i64::from(if nanoseconds {
                        time.nsec
                    } else {
                        time.nsec / 1000
                    }),
                ])?;
                return Ok(0);
            }
            SIOCOUTQNSD
                if self.ops.family() != net::AF_UNIX
                    && self.ops.socket_type() == SocketType::Stream =>
            {
                request.write(&(self.ops.unsent_bytes() as i32))?;
                return Ok(0);
            }
            // Whatever the family: the C library asks the first socket it gets.
            _ => {
                let family = self.ops.family();
                return dev_ioctl::ioctl(self.options.stack(), family, request);
            }
        };
        if self.ops.is_listening() {
            return Err(Errno::EINVAL);
        }
        let bytes = if incoming {
            self.ops.receive_queue_bytes()
        } else {
            self.ops.send_queue_bytes()
        };
        request.write(&i32::try_from(bytes).unwrap_or(i32::MAX))?;
        Ok(0)
    }

    fn backing(&self, file: &File) -> Result<Arc<dyn vm::Backing>> {
        self.ops.backing(file)
    }

    fn release(&self, file: &File) {
        self.ops.release(file);
    }
}
