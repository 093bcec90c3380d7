//! Messages of sockets: `send(2)`, `recv(2)` and their relatives, with what travels beside the
//! bytes (`cmsg(3)`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Deadline;
use abi::errno::Errno;
use fs::File;
use fs::charge::{self, Charge};
use fs::poll::Events;
use linux_raw_sys::{general as sys, net as consts};
use net::{
    MsgFlags, OutgoingMessage, ReceivedMessage, ScmRights, Socket, SocketType, Ucred, WaitPolicy,
};
use uapi::fd::Fd;
use uapi::pid::Pid;
use uapi::time::TimeSpec;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::{process_table, signal_broken_pipe};
use crate::socket::{
    AddressUse, MAX_ADDRESS, connect_for_message, of_file, read_address, with_caller, write_address,
};
use crate::state::credentials::Ids;
use crate::state::fdtable::CloseOnExec;
use crate::state::rlimit::Resource;
use crate::time::deadline_after;
use crate::uaccess::{self, UserPtr};
use crate::uio::{IoVec, IoVecs, MAX_TRANSFER, STACK_BUFFER_LEN, UserBuf, for_each_segment, total};
use crate::{SysResult, Task};

/// The most that is sent of a stream in one step.
const CHUNK: usize = 65_536;
/// Longest message of the internet's protocols, in bytes.
const MAX_DATAGRAM: usize = 65_535;
/// Bytes of a stream that Linux puts into one buffer: as much is sent or not.
const PIECE: usize = 36_544;
/// The most descriptors in one message (`SCM_MAX_FD`).
const MAX_RIGHTS: usize = 253;
/// The most bytes beside those of the message (`net.core.optmem_max`).
const MAX_CONTROL: usize = 20_480;
/// The most messages in one call of `sendmmsg(2)`; further ones are left.
const MAX_MESSAGES: usize = 1024;

/// The sender does not want its bytes copied, and hears when it may use their memory again.
const MSG_ZEROCOPY: u32 = 0x400_0000;
/// The message goes to an address to which its socket is to be connected first.
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Address, buffers and control messages of a message: `struct msghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MsgHdr {
    name: u64,
    name_len: u32,
    padding: u32,
    iov: u64,
    iov_len: u64,
    control: u64,
    control_len: u64,
    flags: u32,
    padding2: u32,
}

/// One message of `sendmmsg(2)` or `recvmmsg(2)` with its length: `struct mmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MMsgHdr {
    header: MsgHdr,
    len: u32,
    padding: u32,
}

/// Length, level and type of a control message: `struct cmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CmsgHdr {
    len: u64,
    level: u32,
    kind: u32,
}

const CMSG_HEADER: usize = size_of::<CmsgHdr>();

/// How long a call waits: not at all with `MSG_DONTWAIT`.
fn wait_mode(timeout: WaitPolicy, flags: u32) -> WaitPolicy {
    WaitPolicy {
        nonblocking: timeout.nonblocking || flags & consts::MSG_DONTWAIT != 0,
        ..timeout
    }
}

/// Control messages that go with a message's bytes.
#[derive(Default)]
struct ControlMessages {
    rights: Option<ScmRights>,
    credentials: Option<Ucred>,
    /// Level, kind and bytes of what is the protocol's.
    other: Vec<(u32, u32, Vec<u8>)>,
}

fn is_inet(socket: &Socket) -> bool {
    matches!(socket.ops().family(), consts::AF_INET | consts::AF_INET6)
}

/// Checks who a sender says it is.
fn check_credentials(task: &Task, who: Ucred) -> Result<(), Errno> {
    let cred = task.cred();
    let is = |ids: &Ids, id: u32| [ids.real, ids.effective, ids.saved].contains(&id);
    if !cred.has_sys_admin()
        && (who.pid != task.pid().raw() || !is(&cred.user, who.uid) || !is(&cred.group, who.gid))
    {
        return Err(Errno::EPERM);
    }
    if process_table::find(Pid::new(who.pid)).is_none() {
        Err(Errno::ESRCH)
    } else {
        Ok(())
    }
}

/// Reads the bytes of the control messages of a call that sends.
///
/// # Errors
/// `ENOBUFS` if they are too many, `EFAULT`.
fn read_control(addr: UserAddr, len: usize) -> Result<Vec<u8>, Errno> {
    if len > MAX_CONTROL {
        return Err(Errno::ENOBUFS);
    }
    let mut bytes = fallible::zeroed(len)?;
    if len > 0 {
        uaccess::read_bytes(addr, &mut bytes)?;
    }
    Ok(bytes)
}

/// The control messages in the bytes that a call gave to send.
fn parse_control(task: &Task, socket: &Socket, bytes: &[u8]) -> Result<ControlMessages, Errno> {
    let inet = is_inet(socket) || socket.ops().family() == consts::AF_PACKET;
    let mut beside = ControlMessages::default();
    let mut files: Vec<Arc<File>> = Vec::new();
    let mut rest = bytes;
    while rest.len() >= CMSG_HEADER {
        let (header, _) = CmsgHdr::read_from_prefix(rest).map_err(|_| Errno::EINVAL)?;
        let len = usize::try_from(header.len)
            .ok()
            .filter(|&l| l >= CMSG_HEADER && l <= rest.len())
            .ok_or(Errno::EINVAL)?;
        let data = &rest[CMSG_HEADER..len];
        match (header.level, header.kind) {
            // Linux' `__sock_cmsg_send`: they mean something to `AF_UNIX` only.
            (consts::SOL_SOCKET, consts::SCM_RIGHTS | consts::SCM_CREDENTIALS) if inet => {}
            (consts::SOL_SOCKET, consts::SCM_RIGHTS)
                if socket.ops().family() != consts::AF_UNIX =>
            {
                return Err(Errno::EINVAL);
            }
            (consts::SOL_SOCKET, consts::SCM_RIGHTS) => {
                if files.len() + data.len() / 4 > MAX_RIGHTS {
                    return Err(Errno::EINVAL);
                }
                for fd in data.as_chunks::<4>().0 {
                    files.push(task.files().get(Fd::new(i32::from_ne_bytes(*fd)))?);
                }
            }
            (consts::SOL_SOCKET, consts::SCM_CREDENTIALS) => {
                let (words, []) = data.as_chunks::<4>() else {
                    return Err(Errno::EINVAL);
                };
                let [pid, uid, gid] = words else {
                    return Err(Errno::EINVAL);
                };
                let who = Ucred {
                    pid: i32::from_ne_bytes(*pid),
                    uid: u32::from_ne_bytes(*uid),
                    gid: u32::from_ne_bytes(*gid),
                };
                check_credentials(task, who)?;
                beside.credentials = Some(who);
            }
            (consts::SOL_SOCKET, kind) if inet => {
                let cred = task.cred();
                let marks = cred.capable(sys::CAP_NET_ADMIN) || cred.capable(sys::CAP_NET_RAW);
                socket.options().check_control_message(kind, data, marks)?;
                beside.other.push((consts::SOL_SOCKET, kind, data.to_vec()));
            }
            (consts::SOL_SOCKET, _) => return Err(Errno::EINVAL),
            (level, kind) => beside.other.push((level, kind, data.to_vec())),
        }
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    if !files.is_empty() {
        let charge = charge_in_flight(task, files.len())?;
        beside.rights = Some(task.net().scm_rights(files, Some(charge)));
    }
    Ok(beside)
}

/// Charges the caller's user for open files that are sent: so many may be under way as he may have
/// descriptors, with those of one message.
///
/// # Errors
/// `ETOOMANYREFS`.
fn charge_in_flight(task: &Task, count: usize) -> Result<Charge, Errno> {
    let cred = task.cred();
    let most = if cred.capable(sys::CAP_SYS_RESOURCE) || cred.has_sys_admin() {
        usize::MAX
    } else {
        let limit = task.process().limits.lock()[Resource::OpenFiles].soft_size();
        limit.saturating_add(count)
    };
    Charge::new(cred.user.real, charge::Resource::FilesInFlight, count, most)
        .ok_or(Errno::ETOOMANYREFS)
}

/// Destination of a message: an address in user memory, or nowhere in particular.
struct Destination {
    addr: UserAddr,
    len: u32,
}

fn send(
    task: &Task,
    file: &File,
    buffers: &[UserBuf],
    to: &Destination,
    mut beside: ControlMessages,
    flags: u32,
) -> SysResult {
    let socket = of_file(file)?;
    let wanted = total(buffers);
    let protocol = socket.ops();
    let wait = wait_mode(socket.send_wait(file.is_nonblocking()), flags);
    let message_flags = MsgFlags::from_bits_truncate(flags);
    let stream = protocol.socket_type() == SocketType::Stream;
    let address = if to.addr.is_null() {
        None
    } else {
        Some(read_address(
            socket,
            to.addr,
            to.len,
            AddressUse::Destination,
        )?)
    };
    if flags & MSG_FASTOPEN != 0 {
        connect_for_message(socket, to.addr, to.len, wait)?;
    }
    let address = address.filter(|_| match protocol.family() {
        // A connection has its other end, whatever the address means.
        consts::AF_INET | consts::AF_INET6 => !stream,
        consts::AF_UNIX => to.len > 0,
        _ => true,
    });
    // The last byte of the message is urgent, not that of each step.
    let step_flags = message_flags - MsgFlags::OOB;
    let mut once = |data: &[u8], message_flags: MsgFlags| {
        let ControlMessages {
            rights,
            credentials,
            other,
        } = core::mem::take(&mut beside);
        let plain = OutgoingMessage {
            rights,
            credentials,
            control: other,
            ..OutgoingMessage::plain(data)
        };
        match &address {
            Some(to) => with_caller(task, |caller| {
                protocol.send(
                    OutgoingMessage {
                        to: Some((caller, to)),
                        ..plain
                    },
                    message_flags,
                    wait,
                )
            }),
            None => protocol.send(plain, message_flags, wait),
        }
    };
    // Where it goes and how long it is come before whether it can be read.
    let check = || protocol.check_message(address.as_ref(), wanted, message_flags);
    if !stream && wanted > MAX_DATAGRAM.max(socket.options().send_buffer()) {
        return check().and(Err(Errno::EMSGSIZE));
    }
    let mut small = [0; STACK_BUFFER_LEN];
    let mut large = Vec::new();
    let buf = if wanted <= STACK_BUFFER_LEN {
        &mut small[..wanted]
    } else {
        large.resize(if stream { wanted.min(CHUNK) } else { wanted }, 0);
        &mut large[..]
    };
    let (mut done, mut step) = (0, buf.len());
    let sent = loop {
        let len = (wanted - done).min(step);
        let copied = for_each_segment(buffers, done, len, |addr, range| {
            uaccess::read_bytes(addr, &mut buf[range])
        });
        let sent = match copied {
            // What there is before the place that cannot be read is sent in pieces of this size.
            Err(_) if stream && len > PIECE => {
                step = PIECE;
                continue;
            }
            Ok(()) if done + len == wanted => once(&buf[..len], message_flags),
            Ok(()) => once(&buf[..len], step_flags),
            // Whether bytes can be sent at all comes before whether they can be read.
            Err(e) if stream && done == 0 => once(&[], step_flags)
                .and_then(|_| protocol.wait_for_send_space(wait))
                .and(Err(e)),
            Err(e) => check().and(Err(e)),
        };
        match sent {
            Ok(n) => {
                done += n;
                if n < len || done == wanted {
                    break Ok(done);
                }
            }
            Err(Errno::EPIPE) if stream => {
                if flags & consts::MSG_NOSIGNAL == 0 {
                    signal_broken_pipe(task);
                }
                break if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::EPIPE)
                };
            }
            Err(_) if done > 0 => break Ok(done),
            Err(e) => break Err(e),
        }
    };
    if flags & MSG_ZEROCOPY != 0
        && matches!(sent, Ok(1..))
        && socket.options().is_enabled(consts::SO_ZEROCOPY)
    {
        protocol.complete_zerocopy();
    }
    sent
}

/// The buffer of a call that has but one. Whether it can be a program's comes before what it is
/// sent from or received into.
fn one_buffer(addr: UserAddr, len: usize) -> Result<UserBuf, Errno> {
    let len = len.min(MAX_TRANSFER);
    if addr.access_ok(len) {
        Ok(UserBuf { addr, len })
    } else {
        Err(Errno::EFAULT)
    }
}

/// `sendto(2)`: sends a buffer, to an address if one is given.
pub fn sys_sendto(
    task: &Task,
    fd: Fd,
    buf: UserAddr,
    len: usize,
    flags: u32,
    addr: UserAddr,
    addr_len: u32,
) -> SysResult {
    let buffer = one_buffer(buf, len)?;
    let file = task.file_io(fd)?;
    send(
        task,
        &file,
        &[buffer],
        &Destination {
            addr,
            len: addr_len,
        },
        ControlMessages::default(),
        flags,
    )
}

/// Writes to a socket that keeps messages apart, as one message however long it is. `None`: it is
/// another file.
pub(crate) fn write_message(task: &Task, file: &File, buffers: &[UserBuf]) -> Option<SysResult> {
    kind_of(file)
        .filter(|&kind| kind != SocketType::Stream)
        .and_then(|_| write_to_socket(task, file, buffers))
}

/// Writes to a socket right from user memory. `None`: the file is none.
pub(crate) fn write_to_socket(task: &Task, file: &File, buffers: &[UserBuf]) -> Option<SysResult> {
    kind_of(file).map(|_| {
        send(
            task,
            file,
            buffers,
            &Destination {
                addr: UserAddr::NULL,
                len: 0,
            },
            ControlMessages::default(),
            0,
        )
    })
}

/// A message's head. An address that cannot be one is refused, or cut to the longest there is.
fn read_header(message: UserPtr<MsgHdr>) -> Result<MsgHdr, Errno> {
    let mut header = message.read()?;
    if header.name != 0 && header.name_len.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    header.name_len = header.name_len.min(MAX_ADDRESS as u32);
    Ok(header)
}

fn buffers(header: &MsgHdr) -> Result<IoVecs, Errno> {
    IoVecs::read(
        UserPtr::<IoVec>::new(header.iov.into()),
        header.iov_len as usize,
    )
    .map_err(|e| {
        // Too many of them is a long message here.
        if e == Errno::EINVAL && header.iov_len > 1024 {
            Errno::EMSGSIZE
        } else {
            e
        }
    })
}

/// Sends a message; the last one of several if not all of it was sent.
fn send_message(
    task: &Task,
    file: &File,
    header: &MsgHdr,
    flags: u32,
) -> Result<MessageResult, Errno> {
    let socket = of_file(file)?;
    let to = Destination {
        addr: if header.name_len == 0 {
            UserAddr::NULL
        } else {
            header.name.into()
        },
        len: header.name_len,
    };
    // Whether the address can be read comes before what is wrong with all else, and what it means
    // after.
    let in_order = |error| {
        if to.addr.is_null() {
            return error;
        }
        let mut bytes = [0; MAX_ADDRESS];
        let len = bytes.len().min(to.len as usize);
        uaccess::read_bytes(to.addr, &mut bytes[..len])
            .err()
            .unwrap_or(error)
    };
    let buffers = buffers(header).map_err(in_order)?;
    let control =
        read_control(header.control.into(), header.control_len as usize).map_err(in_order)?;
    if socket.ops().socket_type() == SocketType::Seqpacket && socket.ops().peer_address().is_err() {
        return Err(in_order(Errno::ENOTCONN));
    }
    let beside = parse_control(task, socket, &control).map_err(in_order)?;
    let len = send(task, file, buffers.as_slice(), &to, beside, flags)?;
    Ok(MessageResult {
        len,
        is_last: len < total(buffers.as_slice()),
    })
}

/// `sendmsg(2)`: sends buffers with control messages.
pub fn sys_sendmsg(task: &Task, fd: Fd, message: UserPtr<MsgHdr>, flags: u32) -> SysResult {
    let file = task.file_io(fd)?;
    send_message(task, &file, &read_header(message)?, flags).map(|message| message.len)
}

/// Result of `sendmmsg(2)` or `recvmmsg(2)` after at least one message.
struct BatchResult {
    /// Number of messages that were sent or received.
    done: usize,
    /// Error of the message after those, which the call does not return.
    error: Option<Errno>,
}

/// Runs `each` on up to `count` messages one after the other, stores the length of each, and ends
/// with the first that `is_last`.
fn for_each_message(
    messages: UserPtr<MMsgHdr>,
    count: u32,
    mut each: impl FnMut(usize, UserPtr<MsgHdr>) -> Result<MessageResult, Errno>,
) -> Result<BatchResult, Errno> {
    let count = (count as usize).min(MAX_MESSAGES);
    for i in 0..count {
        let at = messages.add(i).addr();
        let result = each(i, UserPtr::new(at)).and_then(|MessageResult { len, is_last }| {
            UserPtr::<u32>::new(at.wrapping_add(core::mem::offset_of!(MMsgHdr, len)))
                .write(&(len as u32))
                .map(|()| is_last)
        });
        match result {
            Ok(false) => {}
            Ok(true) => {
                return Ok(BatchResult {
                    done: i + 1,
                    error: None,
                });
            }
            Err(error) if i == 0 => return Err(error),
            Err(error) => {
                return Ok(BatchResult {
                    done: i,
                    error: Some(error),
                });
            }
        }
    }
    Ok(BatchResult {
        done: count,
        error: None,
    })
}

/// Result of sending or receiving one message.
struct MessageResult {
    /// Number of bytes, as `sendmsg(2)` and `recvmsg(2)` return it.
    len: usize,
    /// `sendmmsg(2)` and `recvmmsg(2)` end with this message.
    is_last: bool,
}

/// Refuses `MSG_CMSG_COMPAT` in calls with several messages, which is the kernel's own: before all
/// other checks.
fn check_mmsg_flags(flags: u32) -> Result<(), Errno> {
    const CMSG_COMPAT: u32 = 0x8000_0000;
    if flags & CMSG_COMPAT == 0 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// `sendmmsg(2)`: sends several messages; returns their number.
pub fn sys_sendmmsg(
    task: &Task,
    fd: Fd,
    messages: UserPtr<MMsgHdr>,
    count: u32,
    flags: u32,
) -> SysResult {
    check_mmsg_flags(flags)?;
    let file = task.file_io(fd)?;
    of_file(&file)?;
    for_each_message(messages, count, |_, message| {
        send_message(task, &file, &read_header(message)?, flags)
    })
    .map(|sent| sent.done)
}

/// Receives into the caller's buffers. Also returns what has to be said of it in flags, and where
/// it came from.
fn receive(
    socket: &Socket,
    file: &File,
    buffers: &[UserBuf],
    flags: u32,
) -> Result<(usize, u32, ReceivedMessage), Errno> {
    let protocol = socket.ops();
    let wait = wait_mode(socket.receive_wait(file.is_nonblocking()), flags);
    let message_flags = MsgFlags::from_bits_truncate(flags);
    let wanted = total(buffers);
    if flags & consts::MSG_ERRQUEUE != 0 && is_inet(socket) {
        let (data, got) = protocol.receive_error_queue(wanted)?;
        for_each_segment(buffers, 0, data.len(), |addr, range| {
            uaccess::write_bytes(addr, &data[range])
        })?;
        let cut = if got.message_len > got.copied {
            consts::MSG_TRUNC
        } else {
            0
        };
        return Ok((got.copied, consts::MSG_ERRQUEUE | cut, got));
    }
    let bytes = protocol.socket_type() == SocketType::Stream;
    // TCP throws away what it is asked to cut off.
    let discards = bytes && flags & consts::MSG_TRUNC != 0 && protocol.family() != consts::AF_UNIX;
    if discards {
        let (_, got) = protocol.receive_to_vec(wanted, message_flags, wait)?;
        return Ok((got.copied, 0, got));
    }
    // Bytes must not be lost because they cannot be delivered; a message is.
    let wanted = if bytes {
        writable_prefix(file, buffers)?
    } else {
        wanted
    };
    let got = if wanted <= STACK_BUFFER_LEN {
        let mut buf = [0; STACK_BUFFER_LEN];
        let got = protocol.receive(&mut buf[..wanted], message_flags, wait)?;
        for_each_segment(buffers, 0, got.copied, |addr, range| {
            uaccess::write_bytes(addr, &buf[range])
        })?;
        got
    } else {
        let (data, mut got) = protocol.receive_to_vec(wanted, message_flags, wait)?;
        for_each_segment(buffers, 0, data.len(), |addr, range| {
            uaccess::write_bytes(addr, &data[range])
        })?;
        // One turn takes no more than the kernel wants to hold at once; `MSG_WAITALL` ends with the
        // caller's last byte.
        let goes_on = bytes
            && flags & consts::MSG_WAITALL != 0
            && flags & (consts::MSG_PEEK | consts::MSG_OOB) == 0;
        while goes_on && got.copied < wanted && got.rights.is_none() {
            let Ok((data, more)) =
                protocol.receive_to_vec(wanted - got.copied, message_flags, wait)
            else {
                break;
            };
            got.rights = more.rights;
            if data.is_empty() {
                break;
            }
            for_each_segment(buffers, got.copied, data.len(), |addr, range| {
                uaccess::write_bytes(addr, &data[range])
            })?;
            got.copied += data.len();
        }
        got
    };
    let cut = !bytes && got.message_len > got.copied;
    let result = if cut && flags & consts::MSG_TRUNC != 0 {
        got.message_len
    } else {
        got.copied
    };
    let shown =
        if cut { consts::MSG_TRUNC } else { 0 } | if got.urgent { consts::MSG_OOB } else { 0 };
    Ok((result, shown, got))
}

/// The sender's address as `recvmsg(2)` shows it: nothing for one without a name, nor for a peer of
/// TCP.
fn sender_address(socket: &Socket, got: &ReceivedMessage) -> Vec<u8> {
    let from = match &got.from {
        Some(from) => Some(from.clone()),
        None if got.copied > 0
            && socket.ops().family() == consts::AF_UNIX
            && socket.ops().socket_type().is_connection_oriented() =>
        {
            socket.ops().peer_address().ok()
        }
        None => None,
    };
    match from {
        Some(net::Address::Unix(net::UnixName::Unnamed)) | None => Vec::new(),
        Some(address) => address.encode(),
    }
}

/// `recvfrom(2)`: receives into a buffer; stores the sender's address.
pub fn sys_recvfrom(
    task: &Task,
    fd: Fd,
    buf: UserAddr,
    len: usize,
    flags: u32,
    addr: UserAddr,
    addr_len: UserPtr<i32>,
) -> SysResult {
    let buffer = one_buffer(buf, len)?;
    let file = task.file_io(fd)?;
    let socket = of_file(&file)?;
    let (n, _, got) = receive(socket, &file, &[buffer], flags)?;
    if !addr.is_null() {
        write_address(&sender_address(socket, &got), addr, addr_len)?;
    }
    Ok(n)
}

/// Control messages on their way to the caller.
struct ControlWriter {
    at: UserAddr,
    room: usize,
    used: usize,
    /// There was no room for all.
    cut: bool,
}

impl ControlWriter {
    /// Adds one, cut if there is no room for all of it. Where the caller's memory is not there it
    /// is left out: the message has been received.
    fn put(&mut self, level: u32, kind: u32, data: &[u8]) {
        if self.room < CMSG_HEADER {
            self.cut = true;
            return;
        }
        let whole = CMSG_HEADER + data.len();
        let len = whole.min(self.room);
        self.cut |= len < whole;
        if uaccess::write_bytes(
            self.at.wrapping_add(CMSG_HEADER),
            &data[..len - CMSG_HEADER],
        )
        .is_ok()
        {
            self.put_header(level, kind, len);
        }
    }

    /// Writes the header of a control message whose data is there already.
    fn put_header(&mut self, level: u32, kind: u32, len: usize) {
        let header = CmsgHdr {
            len: len as u64,
            level,
            kind,
        };
        if uaccess::write_bytes(self.at, header.as_bytes()).is_ok() {
            let step = len.next_multiple_of(8).min(self.room);
            self.at = self.at.wrapping_add(step);
            self.room -= step;
            self.used += step;
        }
    }

    /// Gives the caller descriptors of what arrived: as many as there is room for, and none whose
    /// number he cannot be told.
    fn put_rights(&mut self, task: &Task, rights: ScmRights, cloexec: CloseOnExec) {
        let files = rights.into_files();
        let count = files.len();
        let room = self.room.saturating_sub(CMSG_HEADER) / size_of::<i32>();
        let table = task.files();
        let mut len = CMSG_HEADER;
        for file in files.into_iter().take(room) {
            let Ok(fd) = table.install_shared(file, cloexec) else {
                break;
            };
            let fd = Fd::from_index(fd);
            if uaccess::write_bytes(self.at.wrapping_add(len), fd.as_bytes()).is_err() {
                // Another thread may have closed it already.
                let _ = table.close(fd);
                break;
            }
            len += size_of::<i32>();
        }
        self.cut |= len < CMSG_HEADER + count * size_of::<i32>();
        if len > CMSG_HEADER {
            self.put_header(consts::SOL_SOCKET, consts::SCM_RIGHTS, len);
        }
    }
}

/// Receives a message; the last one of several if it is urgent data.
fn receive_message(
    task: &Task,
    file: &File,
    message: UserPtr<MsgHdr>,
    flags: u32,
) -> Result<MessageResult, Errno> {
    let socket = of_file(file)?;
    let mut header = read_header(message)?;
    let buffers = buffers(&header)?;
    let (n, mut shown, mut got) = receive(socket, file, buffers.as_slice(), flags)?;
    if header.name != 0 {
        let bytes = sender_address(socket, &got);
        let room = bytes.len().min(header.name_len as usize);
        uaccess::write_bytes(header.name.into(), &bytes[..room])?;
        header.name_len = bytes.len() as u32;
    }
    let room = if header.control == 0 {
        0
    } else {
        header.control_len as usize
    };
    let mut control = ControlWriter {
        at: header.control.into(),
        room,
        used: 0,
        cut: false,
    };
    if let Some(Ucred { pid, uid, gid }) = got.credentials {
        let bytes = [pid.to_ne_bytes(), uid.to_ne_bytes(), gid.to_ne_bytes()].concat();
        control.put(consts::SOL_SOCKET, consts::SCM_CREDENTIALS, &bytes);
    }
    for (level, kind, bytes) in &got.control {
        control.put(*level, *kind, bytes);
    }
    if let Some(rights) = got.rights.take() {
        control.put_rights(
            task,
            rights,
            CloseOnExec::when(flags & consts::MSG_CMSG_CLOEXEC != 0),
        );
    }
    if control.cut {
        shown |= consts::MSG_CTRUNC;
    }
    header.control_len = control.used as u64;
    header.flags = shown | flags & consts::MSG_CMSG_CLOEXEC;
    message.write(&header)?;
    Ok(MessageResult {
        len: n,
        is_last: shown & consts::MSG_OOB != 0,
    })
}

/// `recvmsg(2)`: receives into buffers, with control messages.
pub fn sys_recvmsg(task: &Task, fd: Fd, message: UserPtr<MsgHdr>, flags: u32) -> SysResult {
    let file = task.file_io(fd)?;
    receive_message(task, &file, message, flags).map(|message| message.len)
}

/// `recvmmsg(2)`. The timeout is looked at between messages only, as on Linux. An error after the
/// first message is kept as the socket's.
pub fn sys_recvmmsg(
    task: &Task,
    fd: Fd,
    messages: UserPtr<MMsgHdr>,
    count: u32,
    flags: u32,
    timeout: UserPtr<TimeSpec>,
) -> SysResult {
    const WAITFORONE: u32 = 0x1_0000;
    check_mmsg_flags(flags)?;
    let deadline = timeout.read_optional()?.map(deadline_after).transpose()?;
    let file = task.file_io(fd)?;
    let socket = of_file(&file)?;
    // What was left when the last message had come.
    let mut left = None;
    let received = for_each_message(messages, count, |i, message| {
        if left == Some(0) {
            return Err(Errno::EAGAIN);
        }
        let patience = if i > 0 && flags & WAITFORONE != 0 {
            consts::MSG_DONTWAIT
        } else {
            0
        };
        let received = receive_message(task, &file, message, flags & !WAITFORONE | patience)?;
        left = deadline.map(Deadline::remaining_ns);
        Ok(received)
    })?;
    match received.error {
        // Linux keeps an interruption, too, and the next call returns a number that means nothing
        // to its caller.
        None | Some(Errno::EAGAIN | Errno::ERESTARTSYS) => {}
        Some(error) => socket.ops().set_error(error),
    }
    if let Some(left) = left {
        timeout.write(&TimeSpec::from_ns(left))?;
    }
    Ok(received.done)
}

/// Number of bytes that can be read from a stream now, as far as the first; 0 at its end.
pub(crate) fn readable_bytes(file: &File) -> SysResult {
    let socket = of_file(file)?;
    let (_, got) = socket
        .ops()
        .receive_to_vec(1, MsgFlags::PEEK, socket.receive_wait(true))?;
    Ok(got.copied)
}

/// Type of the socket that an open file is; `None` if it is none.
pub(crate) fn kind_of(file: &File) -> Option<SocketType> {
    of_file(file).ok().map(|socket| socket.ops().socket_type())
}

/// Receives from a socket as `read(2)` does: at most `limit` bytes, and no more than there are.
///
/// # Errors
/// Those of `read(2)`.
pub(crate) fn receive_for_read(file: &File, limit: usize) -> Result<Vec<u8>, Errno> {
    let socket = of_file(file)?;
    let wait = socket.receive_wait(file.is_nonblocking());
    let (data, _) = socket
        .ops()
        .receive_to_vec(limit, MsgFlags::empty(), wait)?;
    file.note_read(&Ok(data.len()));
    Ok(data)
}

/// Whether a broken pipe of this file is told by a signal too: not of sockets that keep messages
/// apart.
pub(crate) fn signals_broken_pipe(file: &File) -> bool {
    kind_of(file).is_none_or(|kind| kind == SocketType::Stream)
}

/// Makes sure that the program can write at `addr` what is taken out of a socket: it would be lost.
/// While there is nothing to take, the socket answers for itself (`EAGAIN`, the end, a wait).
pub(crate) fn probe(file: &File, addr: UserAddr) -> Result<(), Errno> {
    if !file.ops().keeps_data_on_fault() {
        return Ok(());
    }
    uaccess::probe_write(addr).or_else(|fault| {
        let has_bytes = file.poll(None).intersects(Events::READABLE) && readable_bytes(file)? > 0;
        if has_bytes { Err(fault) } else { Ok(()) }
    })
}

/// Number of bytes of the buffers before one that cannot be written to: what is taken out of
/// something that has it only once must not be lost. Only their beginnings are looked at.
///
/// # Errors
/// `EFAULT` for none at all.
pub(crate) fn writable_prefix(file: &File, buffers: &[UserBuf]) -> Result<usize, Errno> {
    let mut sound = 0;
    for &UserBuf { addr, len } in buffers.iter().filter(|buffer| buffer.len > 0) {
        match if sound == 0 {
            probe(file, addr)
        } else {
            uaccess::probe_write(addr)
        } {
            Ok(()) => sound += len,
            Err(e) if sound == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(sound)
}
