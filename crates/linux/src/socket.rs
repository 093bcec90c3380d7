//! Pairs of connected sockets: `socketpair(2)` and what is done with them. Other sockets are not there yet.
//!
//! Each direction is a queue of what was sent. A stream is read across the pieces; of a packet socket every read takes one piece.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::poll::{Events, PollTable, Source};
use fs::{File, FileOps, FileType, OpenFlags, Path};
use linux_raw_sys::{general as sys, net};
use task::Mutex;

use crate::process::signal_broken_pipe;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// What one direction holds at most (Linux' default `wmem`), bytes.
const CAPACITY: usize = 212_992;
/// The most one call transfers.
const MAX_TRANSFER: usize = CAPACITY;

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The sending side will send nothing more.
    ended: bool,
    /// The receiving side will receive nothing more.
    abandoned: bool,
}

#[derive(Default)]
struct Direction {
    queue: Mutex<Queue>,
    readable: Source,
    writable: Source,
}

impl Direction {
    fn end(&self) {
        self.queue.lock().ended = true;
        self.readable.notify();
    }

    fn abandon(&self) {
        let left = {
            let mut queue = self.queue.lock();
            queue.abandoned = true;
            queue.bytes = 0;
            core::mem::take(&mut queue.pieces)
        };
        drop(left);
        self.writable.notify();
    }
}

/// One of two connected sockets.
struct Socket {
    /// Whether pieces stay apart.
    packets: bool,
    incoming: Arc<Direction>,
    outgoing: Arc<Direction>,
}

impl Socket {
    fn receive(&self, buf: &mut [u8], nonblocking: bool) -> SysResult {
        let attempt = || {
            let mut queue = self.incoming.queue.lock();
            if queue.pieces.is_empty() {
                return if queue.ended || queue.abandoned { Some(Ok(0)) } else { nonblocking.then_some(Err(Errno::EAGAIN)) };
            }
            let mut done = 0;
            while done < buf.len() {
                let Some(mut piece) = queue.pieces.pop_front() else { break };
                let n = piece.len().min(buf.len() - done);
                buf[done..done + n].copy_from_slice(&piece[..n]);
                done += n;
                queue.bytes -= n;
                if self.packets {
                    // What does not fit is lost.
                    queue.bytes -= piece.len() - n;
                    break;
                }
                if n < piece.len() {
                    piece.drain(..n);
                    queue.pieces.push_front(piece);
                }
            }
            Some(Ok(done))
        };
        let n = self.incoming.readable.wait(attempt)??;
        self.incoming.writable.notify();
        Ok(n)
    }

    fn send(&self, buf: &[u8], nonblocking: bool) -> SysResult {
        if self.packets && buf.len() > CAPACITY {
            return Err(Errno::EMSGSIZE);
        }
        let attempt = || {
            let mut queue = self.outgoing.queue.lock();
            if queue.abandoned || queue.ended {
                return Some(Err(Errno::EPIPE));
            }
            let room = CAPACITY - queue.bytes;
            let n = if self.packets { buf.len() } else { buf.len().min(room) };
            if n > room || room == 0 {
                return nonblocking.then_some(Err(Errno::EAGAIN));
            }
            queue.pieces.push_back(buf[..n].to_vec());
            queue.bytes += n;
            Some(Ok(n))
        };
        let n = self.outgoing.writable.wait(attempt)??;
        self.outgoing.readable.notify();
        Ok(n)
    }
}

impl FileOps for Socket {
    fn read(&self, file: &File, buf: &mut [u8]) -> fs::Result<usize> {
        self.receive(buf, file.nonblocking())
    }

    fn write(&self, file: &File, buf: &[u8]) -> fs::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.send(&buf[done..], file.nonblocking()) {
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.incoming.readable);
            table.watch(&self.outgoing.writable);
        }
        let mut events = Events::empty();
        let (ended, empty) = {
            let queue = self.incoming.queue.lock();
            (queue.ended || queue.abandoned, queue.pieces.is_empty())
        };
        let (abandoned, full) = {
            let queue = self.outgoing.queue.lock();
            (queue.abandoned || queue.ended, queue.bytes >= CAPACITY)
        };
        events.set(Events::READABLE, ended || !empty);
        events.set(Events::RDHUP, ended);
        events.set(Events::WRITABLE, abandoned || !full);
        events.set(Events::HUP, ended && abandoned);
        events
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.outgoing.end();
        self.incoming.abandon();
    }
}

/// `socketpair(2)`
pub fn sys_socketpair(task: &Task, domain: u32, kind: u32, protocol: i32, fds: UserPtr<[i32; 2]>) -> SysResult {
    const FLAGS: u32 = sys::O_CLOEXEC | sys::O_NONBLOCK;
    if domain != net::AF_UNIX {
        return Err(if domain == net::AF_INET || domain == net::AF_INET6 { Errno::EOPNOTSUPP } else { Errno::EAFNOSUPPORT });
    }
    let packets = match kind & !FLAGS {
        STREAM => false,
        DATAGRAM | SEQPACKET => true,
        _ => return Err(Errno::ESOCKTNOSUPPORT),
    };
    if protocol != 0 && protocol.cast_unsigned() != net::AF_UNIX {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let (there, back) = (Arc::<Direction>::default(), Arc::<Direction>::default());
    let flags = OpenFlags::from_bits_retain(kind & sys::O_NONBLOCK) | OpenFlags::RDWR;
    let make = |incoming: &Arc<Direction>, outgoing: &Arc<Direction>| {
        let socket = Socket { packets, incoming: incoming.clone(), outgoing: outgoing.clone() };
        let path = Path::anonymous("socket:", FileType::Socket, 0o777, |_| Err(Errno::ENXIO));
        File::new(path, Arc::new(socket), flags)
    };
    let files = task.files();
    let cloexec = kind & sys::O_CLOEXEC != 0;
    let first = files.install(make(&there, &back), cloexec)? as i32;
    let result = files.install(make(&back, &there), cloexec).and_then(|second| {
        let second = second as i32;
        fds.write(&[first, second]).or_else(|e| files.close(second).and(Err(e)))
    });
    // Either both descriptors are there and known, or neither.
    result.or_else(|e| files.close(first).and(Err(e))).map(|()| 0)
}

const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const SEQPACKET: u32 = 5;

/// Runs `f` on the socket behind a descriptor.
fn with_socket<R>(task: &Task, fd: i32, f: impl FnOnce(&Socket, &File) -> Result<R, Errno>) -> Result<R, Errno> {
    let file = task.files().get_io(fd)?;
    f(file.ops_as::<Socket>().ok_or(Errno::ENOTSOCK)?, &file)
}

/// `sendto(2)`, of a connected socket: the address must be null.
pub fn sys_sendto(task: &Task, fd: i32, buf: usize, len: usize, flags: u32, addr: usize, _addr_len: u32) -> SysResult {
    with_socket(task, fd, |socket, file| {
        if addr != 0 {
            return Err(Errno::EISCONN);
        }
        let mut bytes = vec![0; if socket.packets { len.min(CAPACITY + 1) } else { len.min(MAX_TRANSFER) }];
        uaccess::read_bytes(buf, &mut bytes)?;
        let result = socket.send(&bytes, file.nonblocking() || flags & net::MSG_DONTWAIT != 0);
        if result == Err(Errno::EPIPE) && flags & net::MSG_NOSIGNAL == 0 {
            signal_broken_pipe(task);
        }
        result
    })
}

/// `recvfrom(2)`; the sender has no name.
pub fn sys_recvfrom(task: &Task, fd: i32, buf: usize, len: usize, flags: u32, addr: usize, addr_len: UserPtr<u32>) -> SysResult {
    with_socket(task, fd, |socket, file| {
        if flags & (net::MSG_PEEK | net::MSG_OOB) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut bytes = vec![0; len.min(MAX_TRANSFER)];
        let n = socket.receive(&mut bytes, file.nonblocking() || flags & net::MSG_DONTWAIT != 0)?;
        uaccess::write_bytes(buf, &bytes[..n])?;
        if addr != 0 {
            addr_len.write_optional(&0)?;
        }
        Ok(n)
    })
}

/// `shutdown(2)`
pub fn sys_shutdown(task: &Task, fd: i32, how: u32) -> SysResult {
    const READ: u32 = 0;
    const WRITE: u32 = 1;
    const BOTH: u32 = 2;
    with_socket(task, fd, |socket, _| {
        if how > BOTH {
            return Err(Errno::EINVAL);
        }
        if how != READ {
            socket.outgoing.end();
            socket.outgoing.writable.notify();
        }
        if how != WRITE {
            socket.incoming.abandon();
            socket.incoming.readable.notify();
        }
        Ok(0)
    })
}
