//! Transfers of every call that moves bytes, of sizes around those in which kernels move them,
//! against an array: contents, counts and positions; and transfers that end early, by a buffer that
//! is not there, a limit or a full pipe.

use std::io::Write;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};

pub const CHECKS: &[(&str, Check)] = &[
    ("transfers-written-and-read", written_and_read),
    ("transfers-in-pieces", in_pieces),
    ("transfers-between-files", between_files),
    ("transfers-through-pipes", through_pipes),
    ("transfers-through-sockets", through_sockets),
    (
        "transfers-while-calls-are-recorded",
        while_calls_are_recorded,
    ),
    ("transfers-of-recorded-events", of_recorded_events),
];

const SIZES: [usize; 10] = [
    0,
    1,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    65_537,
    300_000,
    2 << 20,
];

/// Bytes in which no part is like another.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect()
}

pub fn file() -> Result<Fd> {
    Fd::new(
        call!(SYS_memfd_create, c"transfers".as_ptr(), 0),
        "memfd_create",
    )
}

pub fn position(fd: &Fd) -> i64 {
    call!(SYS_lseek, fd.0, 0, libc::SEEK_CUR)
}

pub fn seek(fd: &Fd, to: usize) -> Result<()> {
    is(
        call!(SYS_lseek, fd.0, to, libc::SEEK_SET),
        to as i64,
        "lseek",
    )
}

/// Checks that a file has these contents, in one read.
pub fn holds(fd: &Fd, expected: &[u8]) -> Result<()> {
    // SAFETY: all zeroes is a stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    is(call!(SYS_fstat, fd.0, &raw mut stat), 0, "fstat")?;
    ensure!(
        stat.st_size == expected.len() as i64,
        "it has {} bytes, not {}",
        stat.st_size,
        expected.len()
    );
    let address = call!(
        SYS_mmap,
        0,
        expected.len().max(1),
        libc::PROT_READ,
        libc::MAP_SHARED,
        fd.0,
        0
    );
    ensure!(address > 0, "mmap: {address}");
    // SAFETY: the mapping is as long as the file.
    let found = unsafe { std::slice::from_raw_parts(address as *const u8, expected.len()) };
    let differs = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    is(
        call!(SYS_munmap, address, expected.len().max(1)),
        0,
        "munmap",
    )?;
    ensure!(differs.is_none(), "byte {differs:?} differs");
    Ok(())
}

pub fn same(found: &[u8], expected: &[u8]) -> Result<()> {
    let differs = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    ensure!(
        found.len() == expected.len() && differs.is_none(),
        "{} bytes of {}, byte {differs:?}",
        found.len(),
        expected.len()
    );
    Ok(())
}

/// A file with an array beside it.
pub struct Model {
    pub fd: Fd,
    pub bytes: Vec<u8>,
}

impl Model {
    pub fn new() -> Result<Self> {
        Ok(Self {
            fd: file()?,
            bytes: Vec::new(),
        })
    }

    pub fn put(&mut self, at: usize, data: &[u8]) {
        if !data.is_empty() {
            self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
            self.bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    pub fn part(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at.min(self.bytes.len())..(at + len).min(self.bytes.len())]
    }
}

fn written_and_read() -> Result<()> {
    for size in SIZES {
        // The largest takes an emulator long, and one place for it is enough.
        for at in [1, 0, 4096, 70_001]
            .into_iter()
            .take(if size > 300_000 { 1 } else { 4 })
        {
            let mut model = Model::new()?;
            let (data, other) = (pattern(size, 1), pattern(size, 2));
            seek(&model.fd, at)?;
            is(
                call!(SYS_write, model.fd.0, data.as_ptr(), size),
                size as i64,
                "write",
            )?;
            model.put(at, &data);
            is(
                position(&model.fd),
                (at + size) as i64,
                "the position after write",
            )?;
            holds(&model.fd, &model.bytes).with_context(|| format!("write of {size} at {at}"))?;
            // Elsewhere, and the position stays.
            let there = at + size / 2;
            is(
                call!(SYS_pwrite64, model.fd.0, other.as_ptr(), size, there),
                size as i64,
                "pwrite64",
            )?;
            model.put(there, &other);
            is(
                position(&model.fd),
                (at + size) as i64,
                "the position after pwrite64",
            )?;
            holds(&model.fd, &model.bytes)
                .with_context(|| format!("pwrite64 of {size} at {there}"))?;
            let mut buffer = vec![0u8; size];
            let expected = model.part(there, size).to_vec();
            is(
                call!(SYS_pread64, model.fd.0, buffer.as_mut_ptr(), size, there),
                expected.len() as i64,
                "pread64",
            )?;
            same(&buffer[..expected.len()], &expected).context("pread64")?;
            seek(&model.fd, there + 1)?;
            let expected = model.part(there + 1, size).to_vec();
            is(
                call!(SYS_read, model.fd.0, buffer.as_mut_ptr(), size),
                expected.len() as i64,
                "read to the end",
            )?;
            same(&buffer[..expected.len()], &expected).context("read")?;
            is(
                position(&model.fd),
                (there + 1 + expected.len()) as i64,
                "the position after read",
            )?;
        }
    }
    Ok(())
}

pub fn vector(data: &[u8], lengths: &[usize]) -> Vec<libc::iovec> {
    let mut at = 0;
    lengths
        .iter()
        .map(|&len| {
            let entry = libc::iovec {
                iov_base: data[at..].as_ptr().cast_mut().cast(),
                iov_len: len,
            };
            at += len;
            entry
        })
        .collect()
}

/// Ways to divide bytes among buffers.
const DIVISIONS: [&[usize]; 6] = [
    &[],
    &[0, 0, 1, 0],
    &[1, 4095, 1, 4096, 0, 4097],
    &[65_536, 1, 65_536],
    &[3, 131_071, 7, 65_537, 100],
    &[300_000, 0, 300_001],
];

fn in_pieces() -> Result<()> {
    for lengths in DIVISIONS {
        let size: usize = lengths.iter().sum();
        let mut model = Model::new()?;
        let data = pattern(size, 3);
        let from = vector(&data, lengths);
        let mut buffer = vec![0u8; size];
        let to = vector(&buffer, lengths);
        let count = from.len();
        is(
            call!(SYS_writev, model.fd.0, from.as_ptr(), count),
            size as i64,
            "writev",
        )?;
        model.put(0, &data);
        is(
            call!(SYS_pwritev, model.fd.0, from.as_ptr(), count, 777, 0),
            size as i64,
            "pwritev",
        )?;
        model.put(777, &data);
        is(
            call!(SYS_pwritev2, model.fd.0, from.as_ptr(), count, 99_999, 0, 0),
            size as i64,
            "pwritev2",
        )?;
        model.put(99_999, &data);
        is(position(&model.fd), size as i64, "the position")?;
        is(
            call!(
                SYS_pwritev2,
                model.fd.0,
                from.as_ptr(),
                count,
                -1i64,
                -1i64,
                0
            ),
            size as i64,
            "pwritev2 at the position",
        )?;
        model.put(size, &data);
        is(
            position(&model.fd),
            2 * size as i64,
            "the position after pwritev2",
        )?;
        let end = model.bytes.len();
        is(
            call!(
                SYS_pwritev2,
                model.fd.0,
                from.as_ptr(),
                count,
                0,
                0,
                libc::RWF_APPEND
            ),
            size as i64,
            "RWF_APPEND",
        )?;
        model.put(end, &data);
        holds(&model.fd, &model.bytes).with_context(|| format!("{lengths:?}"))?;
        let mut read = |result: i64, at: usize, what: &str| -> Result<()> {
            let expected = model.part(at, size);
            is(result, expected.len() as i64, what)?;
            same(&buffer[..expected.len()], expected).context(what.to_owned())?;
            buffer.fill(0);
            Ok(())
        };
        seek(&model.fd, 777)?;
        read(
            call!(SYS_readv, model.fd.0, to.as_ptr(), count),
            777,
            "readv",
        )?;
        read(
            call!(SYS_preadv, model.fd.0, to.as_ptr(), count, end, 0),
            end,
            "preadv",
        )?;
        read(
            call!(SYS_preadv2, model.fd.0, to.as_ptr(), count, end + 5, 0, 0),
            end + 5,
            "preadv2",
        )?;
        is(
            position(&model.fd),
            (777 + size) as i64,
            "the position after preadv2",
        )?;
    }
    Ok(())
}

fn between_files() -> Result<()> {
    for size in SIZES {
        let places = [(1usize, 4095usize), (0, 0), (4097, 3)];
        for (from_at, to_at) in places.into_iter().take(if size > 300_000 { 1 } else { 3 }) {
            let (mut from, mut to) = (Model::new()?, Model::new()?);
            let data = pattern(size + from_at + 10, 4);
            is(
                call!(SYS_pwrite64, from.fd.0, data.as_ptr(), data.len(), 0),
                data.len() as i64,
                "pwrite64",
            )?;
            from.put(0, &data);
            // With offsets, and then with positions.
            let (mut a, mut b) = (from_at as i64, to_at as i64);
            let done = call!(
                SYS_copy_file_range,
                from.fd.0,
                &raw mut a,
                to.fd.0,
                &raw mut b,
                size,
                0
            );
            is(done, size as i64, "copy_file_range")?;
            to.put(to_at, from.part(from_at, size));
            ensure!(
                (a, b) == ((from_at + size) as i64, (to_at + size) as i64),
                "copy_file_range leaves {a} and {b}"
            );
            is(
                position(&from.fd) + position(&to.fd),
                0,
                "the positions after copy_file_range",
            )?;
            holds(&to.fd, &to.bytes)
                .with_context(|| format!("copy_file_range of {size} from {from_at} to {to_at}"))?;
            seek(&to.fd, to_at + size / 3)?;
            let mut a = from_at as i64;
            is(
                call!(SYS_sendfile, to.fd.0, from.fd.0, &raw mut a, size),
                size as i64,
                "sendfile",
            )?;
            to.put(to_at + size / 3, from.part(from_at, size));
            is(
                position(&to.fd),
                (to_at + size / 3 + size) as i64,
                "the position after sendfile",
            )?;
            ensure!(a == (from_at + size) as i64, "sendfile leaves {a}");
            seek(&from.fd, from_at + 5)?;
            let rest = size + 5;
            is(
                call!(SYS_sendfile, to.fd.0, from.fd.0, 0, size + 100),
                rest as i64,
                "sendfile to the end",
            )?;
            let at = to_at + size / 3 + size;
            to.put(at, from.part(from_at + 5, rest));
            is(
                position(&from.fd),
                data.len() as i64,
                "the position after sendfile to the end",
            )?;
            holds(&to.fd, &to.bytes)
                .with_context(|| format!("sendfile of {size} from {from_at} to {to_at}"))?;
        }
    }
    Ok(())
}

/// Moves `size` bytes by `step`, which is told how many are left.
fn steps(size: usize, mut step: impl FnMut(usize) -> i64) -> Result<()> {
    let mut left = size;
    while left > 0 {
        let moved = step(left);
        ensure!((1..=left as i64).contains(&moved), "{moved} of {left}");
        left -= moved as usize;
    }
    Ok(())
}

pub fn read_all(fd: i32, len: usize) -> Result<Vec<u8>> {
    let mut found = vec![0u8; len];
    let mut done = 0;
    while done < len {
        match call!(SYS_read, fd, found[done..].as_mut_ptr(), len - done) {
            0 => break,
            n @ 1.. => done += n as usize,
            error => is(error, 0, "read")?,
        }
    }
    found.truncate(done);
    Ok(found)
}

fn through_pipes() -> Result<()> {
    for size in SIZES {
        let data = pattern(size, 5);
        let source = file()?;
        is(
            call!(SYS_write, source.0, data.as_ptr(), size),
            size as i64,
            "write",
        )?;
        // Written here, and there spliced into a file; spliced out of a file there, and read here.
        let [reader, writer] = pipe(0)?;
        let target = file()?;
        thread::scope(|scope| {
            let (reader, target) = (&reader, &target);
            let moves = scope.spawn(move || {
                steps(size, |left| {
                    call!(SYS_splice, reader.0, 0, target.0, 0, left, 0)
                })
            });
            is(
                call!(SYS_write, writer.0, data.as_ptr(), size),
                size as i64,
                "write into a pipe",
            )?;
            moves
                .join()
                .map_err(|_| anyhow::anyhow!("the thread panicked"))?
        })?;
        holds(&target, &data).with_context(|| format!("{size} bytes through a pipe"))?;
        is(position(&target), size as i64, "the position after splice")?;
        thread::scope(|scope| {
            let (writer, source) = (&writer, &source);
            let mut offset = 0i64;
            let moves = scope.spawn(move || {
                steps(size, |left| {
                    call!(SYS_splice, source.0, &raw mut offset, writer.0, 0, left, 0)
                })
            });
            let found = read_all(reader.0, size)?;
            moves
                .join()
                .map_err(|_| anyhow::anyhow!("the thread panicked"))??;
            same(&found, &data).with_context(|| format!("{size} bytes out of a file"))
        })?;
        // Copied from pipe to pipe and still there.
        let part = &data[..size.min(40_000)];
        if !part.is_empty() {
            let [copied, copies] = pipe(0)?;
            is(
                call!(SYS_write, writer.0, part.as_ptr(), part.len()),
                part.len() as i64,
                "write",
            )?;
            is(
                call!(SYS_tee, reader.0, copies.0, part.len(), 0),
                part.len() as i64,
                "tee",
            )?;
            same(&read_all(copied.0, part.len())?, part).context("tee's copy")?;
            same(&read_all(reader.0, part.len())?, part).context("tee's original")?;
        }
    }
    Ok(())
}

fn through_sockets() -> Result<()> {
    use std::os::fd::AsRawFd;
    for size in SIZES {
        let data = pattern(size, 6);
        let source = file()?;
        is(
            call!(SYS_write, source.0, data.as_ptr(), size),
            size as i64,
            "write",
        )?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let near = std::net::TcpStream::connect(listener.local_addr()?)?;
        let far = listener.accept()?.0;
        let local = pair(libc::SOCK_STREAM)?;
        for (near, far, what) in [
            (near.as_raw_fd(), far.as_raw_fd(), "TCP"),
            (local[0].0, local[1].0, "AF_UNIX"),
        ] {
            thread::scope(|scope| {
                let (data, source) = (&data, &source);
                let send = move || -> Result<()> {
                    is(
                        call!(SYS_sendto, near, data.as_ptr(), size, 0, 0, 0),
                        size as i64,
                        "sendto",
                    )?;
                    let lengths = [size / 3, 0, size - size / 3];
                    let iov = vector(data, &lengths);
                    // SAFETY: a message without anything is one.
                    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
                    (message.msg_iov, message.msg_iovlen) = (iov.as_ptr().cast_mut(), 3);
                    is(
                        call!(SYS_sendmsg, near, &raw const message, 0),
                        size as i64,
                        "sendmsg",
                    )?;
                    let mut offset = 0i64;
                    steps(size, |left| {
                        call!(SYS_sendfile, near, source.0, &raw mut offset, left)
                    })
                };
                let sends = scope.spawn(move || {
                    let sent = send();
                    if sent.is_err() {
                        // So that the receiver does not wait for what will not come, and the error
                        // is seen.
                        call!(SYS_shutdown, near, libc::SHUT_WR);
                    }
                    sent
                });
                let receive = |call: &str| -> Result<()> {
                    let mut found = vec![0u8; size];
                    if size > 0 {
                        is(
                            call!(
                                SYS_recvfrom,
                                far,
                                found.as_mut_ptr(),
                                size,
                                libc::MSG_WAITALL,
                                0,
                                0
                            ),
                            size as i64,
                            "recvfrom",
                        )?;
                    }
                    same(&found, data).with_context(|| format!("{call} of {size} over {what}"))
                };
                let received = ["sendto", "sendmsg", "sendfile"]
                    .into_iter()
                    .try_for_each(receive);
                if received.is_err() {
                    // So that the sender does not wait for room.
                    call!(SYS_shutdown, near, libc::SHUT_RDWR);
                }
                let sent = sends
                    .join()
                    .map_err(|_| anyhow::anyhow!("the thread panicked"))?;
                received
                    .with_context(|| format!("the sender: {sent:?}"))
                    .and(sent)
            })?;
        }
    }
    Ok(())
}

/// Somebody who begins to look on while a call waits ends no call early. Where nothing can be
/// recorded, only the call is checked.
fn while_calls_are_recorded() -> Result<()> {
    let [sends, receives] = pair(libc::SOCK_STREAM)?;
    let mut trace = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/skerry/trace")
        .ok();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut found = [0u8; 3];
            (
                call!(
                    SYS_recvfrom,
                    receives.0,
                    found.as_mut_ptr(),
                    3,
                    libc::MSG_WAITALL,
                    0,
                    0
                ),
                found,
            )
        });
        for byte in 1..=3u8 {
            is(call!(SYS_write, sends.0, &raw const byte, 1), 1, "write")?;
            let mut left = 1i32;
            while left != 0 && !waits.is_finished() {
                is(
                    call!(SYS_ioctl, receives.0, libc::FIONREAD, &raw mut left),
                    0,
                    "FIONREAD",
                )?;
                thread::yield_now();
            }
            for switch in ["call", "off"] {
                trace
                    .as_mut()
                    .map_or(Ok(()), |trace| trace.write_all(switch.as_bytes()))?;
            }
        }
        let seen = waits
            .join()
            .map_err(|_| anyhow::anyhow!("the thread panicked"))?;
        ensure!(seen == (3, [1, 2, 3]), "recvfrom: {seen:?}");
        Ok(())
    })
}

/// Only one process at a time records events of the machine, and it reads whole records.
fn of_recorded_events() -> Result<()> {
    const RECORD: usize = 32;
    let path = c"/proc/skerry/trace";
    let trace = call!(SYS_open, path.as_ptr(), libc::O_RDWR);
    if trace == -i64::from(libc::ENOENT) {
        return Ok(());
    }
    let trace = Fd::new(trace, "open")?;
    fails(
        call!(SYS_open, path.as_ptr(), libc::O_RDONLY),
        libc::EBUSY,
        "somebody else",
    )?;
    fails(
        call!(SYS_lseek, trace.0, 0, libc::SEEK_SET),
        libc::ESPIPE,
        "lseek",
    )?;
    is(call!(SYS_write, trace.0, c"call".as_ptr(), 4), 4, "write")?;
    call!(SYS_getppid);
    is(call!(SYS_write, trace.0, c"off".as_ptr(), 3), 3, "write")?;
    let mut buf = [0u8; RECORD];
    fails(
        call!(SYS_read, trace.0, buf.as_mut_ptr(), RECORD - 1),
        libc::EINVAL,
        "less than a record",
    )?;
    is(
        call!(SYS_read, trace.0, buf.as_mut_ptr(), RECORD),
        RECORD as i64,
        "a record",
    )?;
    drop(trace);
    drop(Fd::new(
        call!(SYS_open, path.as_ptr(), libc::O_RDONLY),
        "opened again",
    )?);
    Ok(())
}
