//! Options of sockets: `getsockopt(2)`, `setsockopt(2)`.

use alloc::vec;
use alloc::vec::Vec;

use abi::errno::Errno;
use bpf::{Program, Purpose};
use linux_raw_sys::net as consts;
use net::{Linger, OptionAccess, SocketOps, SocketOptions, TxTime, Ucred};
use uapi::fd::Fd;
use uapi::time::TimeVal;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::socket::sock_fprog::{ProgramPtr, read_program};
use crate::socket::with_socket;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// No option of a protocol is longer.
const MAX_OPTION: usize = 512;
/// The name of an interface, with its NUL (`IFNAMSIZ`).
const MAX_NAME: usize = 16;

const MICROS: i64 = 1_000_000;

/// `struct linger`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UserLinger {
    on: i32,
    seconds: i32,
}

/// `struct sock_txtime`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SockTxTime {
    clock: i32,
    flags: u32,
}

/// The level of the options of `AF_PACKET`.
const SOL_PACKET: u32 = 263;
/// The first number behind those of what filters can load beside a packet.
const BPF_EXTENSIONS: u32 = 64;

/// `getsockopt(2)`: stores an option of a socket.
pub fn sys_getsockopt(
    task: &Task,
    fd: Fd,
    level: u32,
    option: u32,
    value: UserAddr,
    len: UserPtr<i32>,
) -> SysResult {
    with_socket(task, fd, |socket, _| {
        let (protocol, options) = (socket.ops(), socket.options());
        if level != consts::SOL_SOCKET {
            protocol.check_option(level, option, OptionAccess::Get)?;
        }
        let room = usize::try_from(len.read()?).map_err(|_| Errno::EINVAL)?;
        if level != consts::SOL_SOCKET {
            // One option says something of a number that stands where its value goes.
            let given = if level == SOL_PACKET && room >= size_of::<u32>() {
                UserPtr::<u32>::new(value).read()?
            } else {
                0
            };
            let bytes = protocol.option_with_argument(level, option, given)?;
            let mut n = bytes.len().min(room);
            // IP gives small numbers as a byte to who has no room for more.
            if level == consts::IPPROTO_IP as u32
                && (1..4).contains(&room)
                && bytes.len() == 4
                && bytes[1..] == [0; 3]
            {
                n = 1;
            }
            uaccess::write_bytes(value, &bytes[..n])?;
            len.write(&(n as i32))?;
            return Ok(0);
        }
        let bytes = match option {
            consts::SO_TYPE => protocol.socket_type().as_raw().to_ne_bytes().to_vec(),
            consts::SO_PROTOCOL => protocol.protocol_number().to_ne_bytes().to_vec(),
            consts::SO_DOMAIN => protocol.family().to_ne_bytes().to_vec(),
            consts::SO_ACCEPTCONN => u32::from(protocol.is_listening()).to_ne_bytes().to_vec(),
            consts::SO_ERROR => protocol
                .take_error()
                .map_or(0, Errno::raw)
                .to_ne_bytes()
                .to_vec(),
            consts::SO_PEERCRED => {
                let Ucred { pid, uid, gid } = protocol.peer_credentials();
                [pid.to_ne_bytes(), uid.to_ne_bytes(), gid.to_ne_bytes()].concat()
            }
            consts::SO_LINGER => {
                let Linger { on, seconds } = options.linger();
                [i32::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat()
            }
            consts::SO_RCVTIMEO_OLD | consts::SO_RCVTIMEO_NEW => {
                TimeVal::from_ns(options.receive_timeout())
                    .as_bytes()
                    .to_vec()
            }
            consts::SO_SNDTIMEO_OLD | consts::SO_SNDTIMEO_NEW => {
                TimeVal::from_ns(options.send_timeout()).as_bytes().to_vec()
            }
            consts::SO_TIMESTAMPING_OLD | consts::SO_TIMESTAMPING_NEW => {
                [options.timestamping(), 0].map(u32::to_ne_bytes).concat()
            }
            consts::SO_PEERGROUPS => return peer_groups(protocol, value, room, len),
            consts::SO_GET_FILTER => {
                return read_filter(options.filter().as_deref(), value, room, len);
            }
            consts::SO_LOCK_FILTER => u32::from(options.is_filter_locked()).to_ne_bytes().to_vec(),
            consts::SO_BINDTODEVICE => {
                let name = options.bound_device();
                if !name.is_empty() && room < MAX_NAME {
                    return Err(Errno::EINVAL);
                }
                name
            }
            consts::SO_PEEK_OFF if !protocol.supports_peek_offset() => {
                return Err(Errno::EOPNOTSUPP);
            }
            consts::SO_PEEK_OFF => options.peek_offset().to_ne_bytes().to_vec(),
            consts::SO_MEMINFO => memory(protocol, options),
            consts::SO_TXTIME => {
                let TxTime { clock, flags } = options.txtime().unwrap_or_default();
                [clock.to_ne_bytes(), flags.to_ne_bytes()].concat()
            }
            consts::SO_PEERNAME => {
                let name = protocol.peer_address()?.encode();
                if name.len() < room {
                    return Err(Errno::EINVAL);
                }
                name
            }
            consts::SO_BPF_EXTENSIONS => BPF_EXTENSIONS.to_ne_bytes().to_vec(),
            // Neither is there: limits of groups of processes for sockets' memory, interfaces with
            // numbered queues.
            consts::SO_RESERVE_MEM | consts::SO_INCOMING_NAPI_ID => 0u32.to_ne_bytes().to_vec(),
            consts::SO_COOKIE | consts::SO_NETNS_COOKIE if room < size_of::<u64>() => {
                return Err(Errno::EINVAL);
            }
            consts::SO_COOKIE => options.cookie().to_ne_bytes().to_vec(),
            // There is one network for all.
            consts::SO_NETNS_COOKIE => 1u64.to_ne_bytes().to_vec(),
            _ => options.int_option(option)?.to_ne_bytes().to_vec(),
        };
        let n = bytes.len().min(room);
        if n > 0 {
            uaccess::write_bytes(value, &bytes[..n])?;
        }
        len.write(&(n as i32))?;
        Ok(0)
    })
}

/// `setsockopt(2)`: sets an option of a socket.
pub fn sys_setsockopt(
    task: &Task,
    fd: Fd,
    level: u32,
    option: u32,
    value: UserAddr,
    len: i32,
) -> SysResult {
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    with_socket(task, fd, |socket, _| {
        if level != consts::SOL_SOCKET {
            socket
                .ops()
                .check_option(level, option, OptionAccess::Set { len })?;
            let mut bytes = vec![0; len.min(MAX_OPTION)];
            if len > 0 {
                uaccess::read_bytes(value, &mut bytes)?;
            }
            return socket.ops().set_option(level, option, &bytes).map(|()| 0);
        }
        let (protocol, options) = (socket.ops(), socket.options());
        if option == consts::SO_BINDTODEVICE {
            let mut name = vec![0; len.min(MAX_NAME - 1)];
            uaccess::read_bytes(value, &mut name)?;
            return options.bind_to_device(&name).map(|()| 0);
        }
        let need = |size: usize| {
            if len < size {
                Err(Errno::EINVAL)
            } else {
                Ok(())
            }
        };
        need(size_of::<i32>())?;
        let number = UserPtr::<i32>::new(value).read()?;
        match option {
            consts::SO_LINGER => {
                need(size_of::<UserLinger>())?;
                let UserLinger { on, seconds } = UserPtr::new(value).read()?;
                options.set_linger(Linger {
                    on: on != 0,
                    seconds,
                });
            }
            consts::SO_RCVTIMEO_OLD
            | consts::SO_RCVTIMEO_NEW
            | consts::SO_SNDTIMEO_OLD
            | consts::SO_SNDTIMEO_NEW => {
                need(size_of::<TimeVal>())?;
                let TimeVal { sec, usec } = UserPtr::new(value).read()?;
                if !(0..MICROS).contains(&usec) {
                    return Err(Errno::EDOM);
                }
                let nanoseconds = match u64::try_from(sec) {
                    Ok(sec) => sec
                        .saturating_mul(1_000_000_000)
                        .saturating_add(usec.cast_unsigned() * 1000),
                    // In the past: calls do not wait.
                    Err(_) => 1,
                };
                if matches!(option, consts::SO_SNDTIMEO_OLD | consts::SO_SNDTIMEO_NEW) {
                    options.set_send_timeout(nanoseconds);
                } else {
                    options.set_receive_timeout(nanoseconds);
                }
            }
            consts::SO_ATTACH_FILTER => {
                if len != size_of::<ProgramPtr>() {
                    return Err(Errno::EINVAL);
                }
                let unlocked = || {
                    if options.is_filter_locked() {
                        Err(Errno::EPERM)
                    } else {
                        Ok(())
                    }
                };
                options.set_filter(Some(read_program(value, Purpose::Packets, unlocked)?))?;
            }
            consts::SO_DETACH_FILTER => options.set_filter(None)?,
            // As of a kernel without the other sort of BPF.
            consts::SO_ATTACH_BPF | consts::SO_ATTACH_REUSEPORT_EBPF if len != size_of::<u32>() => {
                return Err(Errno::EINVAL);
            }
            consts::SO_ATTACH_BPF | consts::SO_ATTACH_REUSEPORT_EBPF
                if options.is_filter_locked() =>
            {
                return Err(Errno::EPERM);
            }
            consts::SO_ATTACH_BPF | consts::SO_ATTACH_REUSEPORT_EBPF => {
                return Err(Errno::EOPNOTSUPP);
            }
            consts::SO_ATTACH_REUSEPORT_CBPF => {
                if len != size_of::<ProgramPtr>() {
                    return Err(Errno::EINVAL);
                }
                if !options.is_enabled(consts::SO_REUSEPORT) {
                    return Err(Errno::EINVAL);
                }
                options.set_reuseport_program(Some(read_program(
                    value,
                    Purpose::Packets,
                    || Ok(()),
                )?))?;
            }
            consts::SO_DETACH_REUSEPORT_BPF if !options.is_enabled(consts::SO_REUSEPORT) => {
                return Err(Errno::ENOENT);
            }
            consts::SO_DETACH_REUSEPORT_BPF => options.set_reuseport_program(None)?,
            consts::SO_TIMESTAMPING_OLD | consts::SO_TIMESTAMPING_NEW => {
                let first = if options.enables_timestamp_keys(number) {
                    protocol.initial_timestamp_key()?
                } else {
                    0
                };
                options.set_timestamping(option, number, first)?;
            }
            consts::SO_PEEK_OFF if !protocol.supports_peek_offset() => {
                return Err(Errno::EOPNOTSUPP);
            }
            consts::SO_PEEK_OFF => options.set_peek_offset(number),
            consts::SO_ZEROCOPY if !protocol.supports_zerocopy() => return Err(Errno::EOPNOTSUPP),
            consts::SO_ZEROCOPY if !(0..=1).contains(&number) => return Err(Errno::EINVAL),
            consts::SO_TXTIME => {
                if len != size_of::<SockTxTime>() {
                    return Err(Errno::EINVAL);
                }
                let SockTxTime { clock, flags } = UserPtr::new(value).read()?;
                options.set_txtime(
                    clock,
                    flags,
                    task.cred().capable(linux_raw_sys::general::CAP_NET_ADMIN),
                )?;
            }
            consts::SO_RESERVE_MEM => return Err(Errno::EOPNOTSUPP),
            // Another way is taken at once: there is but one.
            consts::SO_CNX_ADVICE => {}
            consts::SO_LOCK_FILTER => options.lock_filter(number != 0)?,
            consts::SO_TYPE
            | consts::SO_PROTOCOL
            | consts::SO_DOMAIN
            | consts::SO_ERROR
            | consts::SO_ACCEPTCONN => {
                return Err(Errno::ENOPROTOOPT);
            }
            _ => {
                options.set_int_option(
                    option,
                    number,
                    task.cred().capable(linux_raw_sys::general::CAP_NET_ADMIN),
                )?;
                protocol.on_socket_option(option);
            }
        }
        Ok(0)
    })
}

/// Memory that the socket's queues hold and may, in the order of `SK_MEMINFO_*`.
fn memory(protocol: &dyn SocketOps, options: &SocketOptions) -> Vec<u8> {
    let memory = protocol.memory_info();
    let (received, sent) = (memory.receive_bytes as u32, memory.send_bytes as u32);
    let (receives, sends) = (
        options.receive_buffer() as u32,
        options.send_buffer() as u32,
    );
    [
        received,
        receives,
        sent,
        sends,
        0,
        sent,
        0,
        0,
        memory.drops as u32,
    ]
    .map(u32::to_ne_bytes)
    .concat()
}

/// The peer's groups, all or (`ERANGE`) only how much room they take.
fn peer_groups(
    protocol: &dyn SocketOps,
    value: UserAddr,
    room: usize,
    len: UserPtr<i32>,
) -> SysResult {
    let groups = protocol.peer_groups().ok_or(Errno::ENODATA)?;
    let size = groups.len() * size_of::<u32>();
    let fits = size <= room;
    if fits {
        for (i, group) in groups.iter().enumerate() {
            UserPtr::<u32>::new(value).add(i).write(group)?;
        }
    }
    len.write(&(size as i32))?;
    if fits { Ok(0) } else { Err(Errno::ERANGE) }
}

/// A filter's instructions; lengths are counts of them.
fn read_filter(
    filter: Option<&Program>,
    value: UserAddr,
    room: usize,
    len: UserPtr<i32>,
) -> SysResult {
    let code = filter.map_or(&[][..], Program::code);
    if room != 0 {
        if room < code.len() {
            return Err(Errno::EINVAL);
        }
        for (i, instruction) in code.iter().enumerate() {
            UserPtr::new(value).add(i).write(instruction)?;
        }
    }
    len.write(&(code.len() as i32)).map(|()| 0)
}
