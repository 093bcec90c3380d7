//! Sockets: `socket(2)` and what is done with a socket as a whole. Messages are in `send_recv`,
//! options in `sockopt`.

pub mod send_recv;
pub(crate) mod sock_fprog;
pub mod sockopt;

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::{File, OpenFlags};
use linux_raw_sys::{general as sys, net as consts};
use net::{Address, Caller, Socket, SocketType, Ucred, WaitPolicy};
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use crate::state::fdtable::CloseOnExec;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Most bytes of an address: `struct sockaddr_storage`.
pub(crate) const MAX_ADDRESS: usize = 128;
/// The flags that `socket(2)` and `accept4(2)` take beside the type.
const FLAGS: u32 = sys::O_CLOEXEC | sys::O_NONBLOCK;

/// Credentials of the calling thread as sockets show them to their peers.
pub(crate) fn caller_ucred() -> Ucred {
    crate::current_task().map_or(Ucred::OVERFLOW, |task| {
        let cred = task.cred();
        Ucred {
            pid: task.pid().raw(),
            uid: cred.user.effective,
            gid: cred.group.effective,
        }
    })
}

/// The supplementary groups of who runs the calling thread.
pub(crate) fn groups() -> net::SupplementaryGroups {
    crate::current_task().map_or_else(|| Arc::from([]), |task| task.cred().groups.clone())
}

/// Whether who runs the calling thread has a capability.
pub(crate) fn is_capable(capability: u32) -> bool {
    crate::current_task().is_some_and(|task| task.cred().capable(capability))
}

/// The socket that an open file is.
///
/// # Errors
/// `ENOTSOCK`.
pub(crate) fn of_file(file: &File) -> Result<&Socket, Errno> {
    file.ops_as::<Socket>().ok_or(Errno::ENOTSOCK)
}

/// Runs `f` with the socket that a descriptor means.
///
/// # Errors
/// `EBADF`, `ENOTSOCK`, and those of `f`.
pub(crate) fn with_socket<R>(
    task: &Task,
    fd: Fd,
    f: impl FnOnce(&Socket, &File) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let file = task.file_io(fd)?;
    f(of_file(&file)?, &file)
}

/// Runs `f` with what the calling task means by names.
pub(crate) fn with_caller<R>(task: &Task, f: impl FnOnce(&Caller<'_>) -> R) -> R {
    let cred = task.fs_cred();
    let context = task.fs();
    f(&Caller {
        walk: context.lookup_context(&cred),
        umask: context.umask(),
    })
}

/// Use of an address that a caller passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressUse {
    /// `bind(2)`.
    Bind,
    /// Destination of a message.
    Destination,
}

/// The address that a caller passed, as a socket means it. Who leaves out the family means the
/// socket's if that is IPv4, where an address is to be bound only with no address in particular.
///
/// # Errors
/// `EINVAL`, `EFAULT`.
pub(crate) fn read_address(
    socket: &Socket,
    addr: UserAddr,
    len: u32,
    purpose: AddressUse,
) -> Result<Address, Errno> {
    let (mut bytes, len) = copy_address(addr, len)?;
    let family = socket.ops().family();
    let left_out = family == consts::AF_INET && bytes[..2] == [0; 2];
    if left_out
        && (purpose != AddressUse::Bind
            || len < size_of::<consts::sockaddr_in>()
            || bytes[4..8] == [0; 4])
    {
        bytes[..2].copy_from_slice(&(consts::AF_INET as u16).to_ne_bytes());
    }
    Ok(Address::decode_for_family(family, &bytes[..len]))
}

/// The bytes of an address that a caller passed, whatever they mean, and how many they are.
///
/// # Errors
/// `EINVAL`, `EFAULT`.
fn copy_address(addr: UserAddr, len: u32) -> Result<([u8; MAX_ADDRESS], usize), Errno> {
    let len = len as usize;
    if len > MAX_ADDRESS {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; MAX_ADDRESS];
    uaccess::read_bytes(addr, &mut bytes[..len])?;
    Ok((bytes, len))
}

/// Gives a caller an address: as much of it as there is room for, and its whole length.
///
/// # Errors
/// `EFAULT`, `EINVAL` for a negative length.
pub(crate) fn write_address(bytes: &[u8], addr: UserAddr, len: UserPtr<i32>) -> Result<(), Errno> {
    let room = usize::try_from(len.read()?).map_err(|_| Errno::EINVAL)?;
    let shown = &bytes[..bytes.len().min(room)];
    if !shown.is_empty() {
        uaccess::write_bytes(addr, shown)?;
    }
    len.write(&(bytes.len() as i32))
}

/// The kind of socket and the flags that a type argument holds.
fn decode_type(domain: u32, kind: u32, protocol: i32) -> Result<(SocketType, OpenFlags), Errno> {
    const STREAM: u32 = 1;
    const DATAGRAM: u32 = 2;
    const RAW: u32 = 3;
    const SEQPACKET: u32 = 5;
    // Linux' SOCK_MAX and NPROTO: kinds and families beyond have no name at all.
    const KINDS: u32 = 11;
    const FAMILIES: u32 = 46;
    if kind & !(FLAGS | 0xf) != 0 || kind & 0xf >= KINDS && domain < FAMILIES {
        return Err(Errno::EINVAL);
    }
    if !matches!(
        domain,
        consts::AF_UNIX
            | consts::AF_INET
            | consts::AF_INET6
            | consts::AF_NETLINK
            | consts::AF_PACKET
    ) {
        return Err(Errno::EAFNOSUPPORT);
    }
    let flags = OpenFlags::from_bits_retain(kind & FLAGS);
    match kind & !FLAGS {
        STREAM => Ok((SocketType::Stream, flags)),
        DATAGRAM => Ok((SocketType::Datagram, flags)),
        // Of these families it is another word for datagrams.
        RAW if matches!(domain, consts::AF_UNIX | consts::AF_NETLINK) => {
            Ok((SocketType::Datagram, flags))
        }
        RAW => Ok((SocketType::Raw, flags)),
        SEQPACKET => Ok((SocketType::Seqpacket, flags)),
        // Here the protocol comes before the kind.
        _ if domain == consts::AF_UNIX => {
            net::unix::check_protocol(protocol).and(Err(Errno::ESOCKTNOSUPPORT))
        }
        // There is no protocol of these families with such a number.
        _ if matches!(domain, consts::AF_INET | consts::AF_INET6)
            && !(0..=consts::IPPROTO_MPTCP as i32).contains(&protocol) =>
        {
            Err(Errno::EINVAL)
        }
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

fn install(task: &Task, socket: Socket, flags: OpenFlags) -> SysResult {
    task.files().install(
        socket.into_file(flags & OpenFlags::NONBLOCK),
        CloseOnExec::of_flags(flags),
    )
}

/// `socket(2)`: makes a socket.
pub fn sys_socket(task: &Task, domain: u32, kind: u32, protocol: i32) -> SysResult {
    let (kind, flags) = decode_type(domain, kind, protocol)?;
    install(task, make(task, domain, kind, protocol)?, flags)
}

fn make(task: &Task, domain: u32, kind: SocketType, protocol: i32) -> Result<Socket, Errno> {
    if (kind == SocketType::Raw || domain == consts::AF_PACKET)
        && !task.cred().capable(sys::CAP_NET_RAW)
    {
        return Err(Errno::EPERM);
    }
    task.net().socket(domain, kind, protocol)
}

/// `socketpair(2)`: makes two connected sockets.
pub fn sys_socketpair(
    task: &Task,
    domain: u32,
    kind: u32,
    protocol: i32,
    fds: UserPtr<[Fd; 2]>,
) -> SysResult {
    if kind & !(FLAGS | 0xf) != 0 {
        return Err(Errno::EINVAL);
    }
    // As Linux: the numbers are chosen and told before the family is looked at.
    fds.write(&task.files().next_two()?)?;
    let (kind, flags) = decode_type(domain, kind, protocol)?;
    if domain != consts::AF_UNIX {
        // What is wrong with one such socket comes before that there are no pairs.
        return make(task, domain, kind, protocol).and(Err(Errno::EOPNOTSUPP));
    }
    let (a, b) = task.net().socket_pair(kind, protocol)?;
    // Files from here on: dropping one closes its socket.
    let [a, b] = [a, b].map(|socket| socket.into_file(flags & OpenFlags::NONBLOCK));
    let files = task.files();
    let cloexec = CloseOnExec::of_flags(flags);
    let first = Fd::from_index(files.install(a, cloexec)?);
    let result = files.install(b, cloexec).and_then(|second| {
        let second = Fd::from_index(second);
        fds.write(&[first, second])
            .or_else(|e| files.close(second).and(Err(e)))
    });
    // Either both descriptors are there and known, or neither.
    result
        .or_else(|e| files.close(first).and(Err(e)))
        .map(|()| 0)
}

/// `bind(2)`: gives a socket its address.
pub fn sys_bind(task: &Task, fd: Fd, addr: UserAddr, len: u32) -> SysResult {
    with_socket(task, fd, |socket, _| {
        let address = read_address(socket, addr, len, AddressUse::Bind)?;
        with_caller(task, |caller| socket.ops().bind(caller, &address)).map(|()| 0)
    })
}

/// The address that a socket is to be connected to, from the bytes that a caller passed.
///
/// # Errors
/// `EINVAL` if they have no family.
fn decode_peer(socket: &Socket, bytes: &[u8]) -> Result<Address, Errno> {
    if bytes.len() < size_of::<consts::__kernel_sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    Ok(Address::decode_for_family(socket.ops().family(), bytes))
}

/// Connects a socket to where a message goes, before it is sent (`MSG_FASTOPEN`).
///
/// # Errors
/// Those of `connect(2)`; `EOPNOTSUPP`.
pub(crate) fn connect_for_message(
    socket: &Socket,
    to: UserAddr,
    len: u32,
    wait: WaitPolicy,
) -> Result<(), Errno> {
    let address = if to.is_null() {
        None
    } else {
        let (bytes, len) = copy_address(to, len)?;
        Some(decode_peer(socket, &bytes[..len])?)
    };
    socket.ops().connect_for_message(address.as_ref(), wait)
}

/// `connect(2)`: connects a socket to an address.
pub fn sys_connect(task: &Task, fd: Fd, addr: UserAddr, len: u32) -> SysResult {
    let file = task.file_io(fd)?;
    // As on Linux: the address comes before whether it is a socket, what it means after that.
    let (bytes, len) = copy_address(addr, len)?;
    let socket = of_file(&file)?;
    let address = decode_peer(socket, &bytes[..len])?;
    let wait = socket.send_wait(file.is_nonblocking());
    with_caller(task, |caller| socket.ops().connect(caller, &address, wait)).map(|()| 0)
}

/// `listen(2)`: lets a socket accept connections.
pub fn sys_listen(task: &Task, fd: Fd, backlog: i32) -> SysResult {
    // A negative number is a very large one.
    with_socket(task, fd, |socket, _| {
        socket
            .ops()
            .listen(backlog.cast_unsigned() as usize)
            .map(|()| 0)
    })
}

/// `accept4(2)`: accepts a connection, with flags; returns its descriptor.
pub fn sys_accept4(
    task: &Task,
    fd: Fd,
    addr: UserAddr,
    len: UserPtr<i32>,
    flags: u32,
) -> SysResult {
    if flags & !FLAGS != 0 {
        task.file_io(fd)?;
        return Err(Errno::EINVAL);
    }
    let flags = OpenFlags::from_bits_retain(flags);
    with_socket(task, fd, |socket, file| {
        let files = task.files();
        let number = files.reserve(CloseOnExec::of_flags(flags))?;
        let accepted = socket
            .ops()
            .accept(socket.receive_wait(file.is_nonblocking()))?;
        let accepted: Arc<File> = accepted.into_file(flags & OpenFlags::NONBLOCK);
        if !addr.is_null() {
            write_address(
                &of_file(&accepted)?.ops().peer_address()?.encode(),
                addr,
                len,
            )?;
        }
        Ok(number.install(accepted))
    })
}

/// `accept(2)`: accepts a connection; returns its descriptor.
pub fn sys_accept(task: &Task, fd: Fd, addr: UserAddr, len: UserPtr<i32>) -> SysResult {
    sys_accept4(task, fd, addr, len, 0)
}

/// `getsockname(2)`: stores the address of a socket.
pub fn sys_getsockname(task: &Task, fd: Fd, addr: UserAddr, len: UserPtr<i32>) -> SysResult {
    with_socket(task, fd, |socket, _| {
        write_address(&socket.ops().local_address().encode(), addr, len).map(|()| 0)
    })
}

/// `getpeername(2)`: stores the address of a socket's peer.
pub fn sys_getpeername(task: &Task, fd: Fd, addr: UserAddr, len: UserPtr<i32>) -> SysResult {
    with_socket(task, fd, |socket, _| {
        write_address(&socket.ops().peer_address()?.encode(), addr, len).map(|()| 0)
    })
}

/// `shutdown(2)`: ends sending or receiving of a connection.
pub fn sys_shutdown(task: &Task, fd: Fd, how: u32) -> SysResult {
    const READ: u32 = 0;
    const WRITE: u32 = 1;
    const BOTH: u32 = 2;
    with_socket(task, fd, |socket, _| {
        if how > BOTH {
            return Err(Errno::EINVAL);
        }
        socket.ops().shutdown(how != WRITE, how != READ).map(|()| 0)
    })
}
