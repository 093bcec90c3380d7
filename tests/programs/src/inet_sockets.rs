//! Helpers for checks of `AF_INET` and `AF_INET6` sockets: pairs, addresses, options, control
//! messages.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Result, ensure};

use crate::checked;

pub const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Two connected sockets: client and server.
pub fn pair_at(ip: impl Into<std::net::IpAddr>) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::new(ip.into(), 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

pub fn pair() -> Result<(TcpStream, TcpStream)> {
    pair_at(LOCAL)
}

pub fn socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the new number belongs to nobody else.
    unsafe {
        Ok(OwnedFd::from_raw_fd(checked(libc::socket(
            family, kind, 0,
        ))?))
    }
}

pub fn raw_v4(ip: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    // SAFETY: a structure of numbers may be zero.
    let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
    address.sin_family = libc::AF_INET as _;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    address
}

pub type AddressCall =
    unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int;

pub fn with_v4(fd: &impl AsRawFd, ip: Ipv4Addr, port: u16, call: AddressCall) -> io::Result<()> {
    let address = raw_v4(ip, port);
    // SAFETY: the address is alive during the call.
    checked(unsafe {
        call(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of_val(&address) as _,
        )
    })
    .map(drop)
}

pub fn with_v6(fd: &impl AsRawFd, ip: Ipv6Addr, port: u16, call: AddressCall) -> io::Result<()> {
    // SAFETY: a structure of numbers may be zero.
    let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    address.sin6_family = libc::AF_INET6 as _;
    address.sin6_port = port.to_be();
    address.sin6_addr.s6_addr = ip.octets();
    // SAFETY: the address is alive during the call.
    checked(unsafe {
        call(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of_val(&address) as _,
        )
    })
    .map(drop)
}

/// The port a socket is bound to.
pub fn port_of(fd: &impl AsRawFd) -> io::Result<u16> {
    // SAFETY: a structure of numbers may be zero; it is large enough for either family, which have
    // the port at the same place.
    let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: both are alive during the call.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) })?;
    Ok(u16::from_be(address.sin6_port))
}

pub fn listen(fd: &impl AsRawFd, backlog: libc::c_int) -> io::Result<()> {
    // SAFETY: a plain system call.
    checked(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

pub fn get(fd: &impl AsRawFd, level: libc::c_int, option: libc::c_int) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = 4;
    // SAFETY: both are alive during the call.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

pub fn set<T>(
    fd: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is alive during the call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast(),
            len,
        )
    })
    .map(drop)
}

pub fn nonblocking(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        let flags = checked(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        checked(libc::fcntl(
            fd.as_raw_fd(),
            libc::F_SETFL,
            flags | libc::O_NONBLOCK,
        ))
        .map(drop)
    }
}

/// Waits until one of `events` is so, and returns all that is.
pub fn wait_for(fd: &impl AsRawFd, events: i16) -> Result<i16> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, alive during the call.
    let n = checked(unsafe { libc::poll(&raw mut entry, 1, 20_000) })?;
    ensure!(n == 1, "none of {events:x} in 20 s");
    Ok(entry.revents)
}

/// A port at which nobody listens: below those that are given to who asks for any, because other
/// checks ask, too.
pub const UNUSED_PORT: u16 = 1;

/// Control messages that `recvmsg` gives: level, kind, bytes.
pub fn receive_control(fd: &impl AsRawFd) -> io::Result<Vec<(i32, i32, Vec<u8>)>> {
    receive_all(fd, 0).map(|all| all.control)
}

/// Result of `recvmsg`.
pub struct Received {
    pub data: Vec<u8>,
    pub flags: i32,
    /// Of the address.
    pub name: Vec<u8>,
    /// Level, kind, bytes.
    pub control: Vec<(i32, i32, Vec<u8>)>,
}

/// One message with all that comes with it.
pub fn receive_all(fd: &impl AsRawFd, flags: i32) -> io::Result<Received> {
    let mut bytes = [0u8; 256];
    let mut name = [0u8; 128];
    let mut control = [0u64; 32];
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a structure of numbers and pointers may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = name.len() as libc::socklen_t;
    // SAFETY: all it points to is alive during the call.
    let n =
        checked(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) } as libc::c_int)?;
    let control: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut rest = &control[..message.msg_controllen];
    let mut told = Vec::new();
    while rest.len() >= 16 {
        let len = usize::from_ne_bytes(rest[..8].try_into().unwrap_or_default());
        let word = |at: usize| i32::from_ne_bytes(rest[at..at + 4].try_into().unwrap_or_default());
        told.push((word(8), word(12), rest[16..len].to_vec()));
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    let (data, name) = (
        bytes[..n as usize].to_vec(),
        name[..message.msg_namelen as usize].to_vec(),
    );
    Ok(Received {
        data,
        flags: message.msg_flags,
        name,
        control: told,
    })
}
