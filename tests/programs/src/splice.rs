//! Data moved inside the kernel: `splice`, `tee`, `vmsplice`, `sendfile`, `copy_file_range`, and
//! the flags of `preadv2`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{call, fails, is, pipe};
use crate::files::Scratch;

pub const CHECKS: &[(&str, Check)] = &[
    ("splice-through-a-pipe", through_a_pipe),
    ("splice-tee-leaves-what-it-copies", tee_leaves),
    ("splice-tee-does-not-wait", tee_does_not_wait),
    ("splice-user-memory", user_memory),
    ("splice-refuses-what-cannot-be", refuses),
    ("splice-sendfile", sendfile),
    ("splice-copies-ranges", copies_ranges),
    ("splice-flags-of-one-transfer", flags_of_one_transfer),
    (
        "splice-from-a-unix-socket-does-not-wait",
        from_a_unix_socket,
    ),
    ("memory-devices-small-answers", memory_devices),
];

fn bytes(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn splice(
    from: RawFd,
    from_at: Option<&mut i64>,
    to: RawFd,
    to_at: Option<&mut i64>,
    len: usize,
    flags: u32,
) -> io::Result<usize> {
    let pointer = |at: Option<&mut i64>| at.map_or(null_mut(), std::ptr::from_mut);
    // SAFETY: the offsets are valid or null.
    bytes(unsafe { libc::splice(from, pointer(from_at), to, pointer(to_at), len, flags) })
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn through_a_pipe() -> Result<()> {
    let scratch = Scratch::new()?;
    let data: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    fs::write(scratch.path("from"), &data)?;
    let (from, to) = (
        File::open(scratch.path("from"))?,
        File::create(scratch.path("to"))?,
    );
    let (reader, writer) = io::pipe()?;
    let mut at = 0;
    let mut to_at = 0;
    while (at as usize) < data.len() {
        let into = splice(
            from.as_raw_fd(),
            Some(&mut at),
            writer.as_raw_fd(),
            None,
            data.len(),
            0,
        )?;
        ensure!(
            into > 0 && into <= 65_536,
            "{into} bytes went into a pipe of 64 KiB"
        );
        let mut out = 0;
        while out < into {
            out += splice(
                reader.as_raw_fd(),
                None,
                to.as_raw_fd(),
                Some(&mut to_at),
                into - out,
                0,
            )?;
        }
    }
    ensure!(fs::read(scratch.path("to"))? == data, "the copy differs");
    ensure!(
        splice(
            from.as_raw_fd(),
            Some(&mut at),
            writer.as_raw_fd(),
            None,
            10,
            0
        )? == 0,
        "there is more behind the end"
    );
    let empty = splice(
        reader.as_raw_fd(),
        None,
        to.as_raw_fd(),
        None,
        10,
        libc::SPLICE_F_NONBLOCK,
    );
    ensure!(
        errno(empty) == Some(libc::EAGAIN),
        "an empty pipe gives something"
    );
    // Through sockets, and from one pipe to another.
    let (mut near, far) = UnixStream::pair()?;
    near.write_all(b"through a socket")?;
    ensure!(
        splice(far.as_raw_fd(), None, writer.as_raw_fd(), None, 100, 0)? == 16,
        "a socket gives less"
    );
    let (mut reader2, writer2) = io::pipe()?;
    ensure!(
        splice(reader.as_raw_fd(), None, writer2.as_raw_fd(), None, 7, 0)? == 7,
        "a pipe gives less"
    );
    ensure!(
        splice(reader.as_raw_fd(), None, far.as_raw_fd(), None, 100, 0)? == 9,
        "a socket takes less"
    );
    let mut text = [0; 7];
    reader2.read_exact(&mut text)?;
    let mut rest = [0; 9];
    near.read_exact(&mut rest)?;
    ensure!(
        &text == b"through" && &rest == b" a socket",
        "{text:?} and {rest:?} came through"
    );
    drop((writer, writer2));
    ensure!(
        splice(reader.as_raw_fd(), None, far.as_raw_fd(), None, 1, 0)? == 0,
        "a pipe without writers does not end"
    );
    Ok(())
}

fn tee(from: RawFd, to: RawFd, len: usize, flags: u32) -> io::Result<usize> {
    // SAFETY: the call takes numbers only.
    bytes(unsafe { libc::tee(from, to, len, flags) })
}

fn tee_leaves() -> Result<()> {
    let ((mut reader, mut writer), (mut reader2, writer2)) = (io::pipe()?, io::pipe()?);
    let early = tee(
        reader.as_raw_fd(),
        writer2.as_raw_fd(),
        10,
        libc::SPLICE_F_NONBLOCK,
    );
    ensure!(errno(early) == Some(libc::EAGAIN), "tee of nothing");
    writer.write_all(b"twice told")?;
    ensure!(
        tee(reader.as_raw_fd(), writer2.as_raw_fd(), 100, 0)? == 10,
        "tee copies less"
    );
    let (mut one, mut other) = ([0; 10], [0; 10]);
    reader.read_exact(&mut one)?;
    reader2.read_exact(&mut other)?;
    ensure!(
        one == other && &one == b"twice told",
        "{one:?} and {other:?}"
    );
    ensure!(
        errno(tee(reader.as_raw_fd(), writer.as_raw_fd(), 1, 0)) == Some(libc::EINVAL),
        "tee of a pipe into itself"
    );
    Ok(())
}

fn user_memory() -> Result<()> {
    let (mut reader, writer) = io::pipe()?;
    let parts = [IoSlice::new(b"some "), IoSlice::new(b"parts")];
    // SAFETY: an `IoSlice` is a `struct iovec`, and the slices live on.
    let n = bytes(unsafe { libc::vmsplice(writer.as_raw_fd(), parts.as_ptr().cast(), 2, 0) })?;
    ensure!(n == 10, "{n} bytes went in");
    let mut text = [0; 6];
    reader.read_exact(&mut text)?;
    ensure!(&text == b"some p", "{text:?} came out");
    let mut rest = [0; 8];
    let target = libc::iovec {
        iov_base: rest.as_mut_ptr().cast(),
        iov_len: rest.len(),
    };
    // SAFETY: one valid buffer.
    let n = bytes(unsafe { libc::vmsplice(reader.as_raw_fd(), &target, 1, 0) })?;
    ensure!(
        n == 4 && rest.starts_with(b"arts"),
        "{n} bytes {rest:?} came out"
    );
    Ok(())
}

fn refuses() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "contents")?;
    let file = File::open(scratch.path("file"))?;
    let other = OpenOptions::new()
        .append(true)
        .create(true)
        .open(scratch.path("log"))?;
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(b"x")?;
    let (file, other, reader_fd, writer_fd) = (
        file.as_raw_fd(),
        other.as_raw_fd(),
        reader.as_raw_fd(),
        writer.as_raw_fd(),
    );
    let mut at = 0;
    let cases = [
        (
            "two files",
            splice(file, None, other, None, 1, 0),
            libc::EINVAL,
        ),
        (
            "an offset of a pipe",
            splice(reader_fd, Some(&mut at), other, None, 1, 0),
            libc::ESPIPE,
        ),
        (
            "the wrong end",
            splice(writer_fd, None, other, None, 1, 0),
            libc::EBADF,
        ),
        (
            "a file to append to",
            splice(reader_fd, None, other, None, 1, 0),
            libc::EINVAL,
        ),
        (
            "unknown flags",
            splice(reader_fd, None, other, None, 1, 0x100),
            libc::EINVAL,
        ),
        (
            "a pipe into itself",
            splice(reader_fd, None, writer_fd, None, 1, 0),
            libc::EINVAL,
        ),
    ];
    for (what, result, expected) in cases {
        let found = errno(result);
        ensure!(
            found == Some(expected),
            "{what}: {found:?} instead of {expected}"
        );
    }
    drop(reader);
    let broken = splice(file, None, writer_fd, None, 1, 0);
    ensure!(
        errno(broken) == Some(libc::EPIPE),
        "a pipe without readers takes bytes"
    );
    Ok(())
}

fn sendfile() -> Result<()> {
    let scratch = Scratch::new()?;
    let data: Vec<u8> = (0..300_000u32).map(|n| (n % 241) as u8).collect();
    fs::write(scratch.path("from"), &data)?;
    let from = File::open(scratch.path("from"))?;
    let send = |to: RawFd, from: RawFd, at: Option<&mut i64>, len: usize| {
        // SAFETY: the offset is valid or null.
        bytes(unsafe { libc::sendfile(to, from, at.map_or(null_mut(), std::ptr::from_mut), len) })
    };
    let (near, mut far) = UnixStream::pair()?;
    let wanted = data.clone();
    let receiver = std::thread::spawn(move || {
        let mut received = vec![0; wanted.len()];
        far.read_exact(&mut received).map(|()| received == wanted)
    });
    let mut at = 0;
    while (at as usize) < data.len() {
        send(
            near.as_raw_fd(),
            from.as_raw_fd(),
            Some(&mut at),
            data.len(),
        )?;
    }
    ensure!(
        receiver.join().expect("the thread ended well")?,
        "other bytes came through the socket"
    );
    // Into a pipe it gives what there is room for, and does not wait for more.
    let (reader, writer) = io::pipe()?;
    let n = send(writer.as_raw_fd(), from.as_raw_fd(), None, data.len())?;
    ensure!(n > 0 && n <= 65_536, "{n} bytes went into a pipe of 64 KiB");
    let (zeroes, random) = (File::open("/dev/zero")?, File::open("/dev/urandom")?);
    let to = File::create(scratch.path("to"))?;
    let socket = send(to.as_raw_fd(), near.as_raw_fd(), None, 1);
    ensure!(
        matches!(errno(socket), Some(libc::EINVAL)),
        "sendfile out of a socket"
    );
    // Until Linux 6.5 no pipe took anything of /dev/zero, and so sendfile did not either.
    let zeroes = send(to.as_raw_fd(), zeroes.as_raw_fd(), None, 10_000);
    ensure!(
        matches!(errno(zeroes), Some(libc::EINVAL)),
        "sendfile of zeroes"
    );
    ensure!(
        send(to.as_raw_fd(), random.as_raw_fd(), None, 10_000)? == 10_000,
        "/dev/urandom gives less"
    );
    ensure!(
        fs::read(scratch.path("to"))? != vec![0; 10_000],
        "/dev/urandom gives nothing but zeroes"
    );
    drop(reader);
    Ok(())
}

fn copies_ranges() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("from"), "0123456789")?;
    let from = File::open(scratch.path("from"))?;
    let to = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(scratch.path("to"))?;
    let copy = |from: &File, mut from_at: i64, to: &File, mut to_at: i64, len: usize| {
        // SAFETY: both offsets are valid.
        bytes(unsafe {
            libc::copy_file_range(
                from.as_raw_fd(),
                &mut from_at,
                to.as_raw_fd(),
                &mut to_at,
                len,
                0,
            )
        })
    };
    ensure!(copy(&from, 2, &to, 1, 4)? == 4, "it copies less");
    ensure!(
        fs::read(scratch.path("to"))? == b"\x002345",
        "the copy differs"
    );
    ensure!(
        copy(&from, 8, &to, 0, 100)? == 2,
        "it copies beyond the end"
    );
    ensure!(
        copy(&from, 10, &to, 0, 1)? == 0,
        "there is something behind the end"
    );
    ensure!(copy(&to, 0, &to, 5, 5)? == 5, "ranges of one file");
    ensure!(
        errno(copy(&to, 0, &to, 2, 5)) == Some(libc::EINVAL),
        "ranges that overlap"
    );
    ensure!(
        errno(copy(&to, 0, &from, 0, 1)) == Some(libc::EBADF),
        "a file open for reading is written"
    );
    Ok(())
}

fn flags_of_one_transfer() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.path("file"), "begin")?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(scratch.path("file"))?;
    let part = [IoSlice::new(b" end")];
    // SAFETY: an `IoSlice` is a `struct iovec`, and the slice lives on.
    let n = bytes(unsafe {
        libc::pwritev2(
            file.as_raw_fd(),
            part.as_ptr().cast(),
            1,
            0,
            libc::RWF_APPEND,
        )
    })?;
    ensure!(
        n == 4 && fs::read(scratch.path("file"))? == b"begin end",
        "RWF_APPEND wrote elsewhere"
    );
    let mut buf = [0; 5];
    let target = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: one valid buffer.
    let n = bytes(unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            &target,
            1,
            -1,
            libc::RWF_SYNC | libc::RWF_HIPRI,
        )
    })?;
    ensure!(n == 5 && &buf == b"begin", "preadv2 reads {buf:?}");
    // SAFETY: one valid buffer.
    let unknown = bytes(unsafe { libc::preadv2(file.as_raw_fd(), &target, 1, 0, 1 << 20) });
    ensure!(
        errno(unknown) == Some(libc::EOPNOTSUPP),
        "an unknown flag is taken"
    );
    Ok(())
}

/// Whichever pipe does not wait: an empty one that is read and a full one that is written end the
/// call.
fn tee_does_not_wait() -> Result<()> {
    for first in [true, false] {
        let ([from, filler], [reader, to]) = (pipe(0)?, pipe(0)?);
        let tee = || call!(SYS_tee, from.0, to.0, 100, 0);
        let quick = if first { &from } else { &to };
        is(
            call!(SYS_fcntl, quick.0, libc::F_SETFL, libc::O_NONBLOCK),
            0,
            "fcntl",
        )?;
        fails(tee(), libc::EAGAIN, "tee from an empty pipe")?;
        is(call!(SYS_write, filler.0, b"bytes".as_ptr(), 5), 5, "write")?;
        is(tee(), 5, "tee")?;
        let size = call!(SYS_fcntl, to.0, libc::F_GETPIPE_SZ);
        let mut bytes = vec![0u8; size as usize];
        is(call!(SYS_read, reader.0, bytes.as_mut_ptr(), 5), 5, "read")?;
        is(call!(SYS_write, to.0, bytes.as_ptr(), size), size, "write")?;
        fails(tee(), libc::EAGAIN, "tee into a full pipe")?;
    }
    Ok(())
}

/// With `SPLICE_F_NONBLOCK` an empty UNIX stream socket ends the call, though the socket itself
/// waits for who reads it.
fn from_a_unix_socket() -> Result<()> {
    let (socket, mut peer) = UnixStream::pair()?;
    let (mut reader, writer) = io::pipe()?;
    let splice = |len| {
        splice(
            socket.as_raw_fd(),
            None,
            writer.as_raw_fd(),
            None,
            len,
            libc::SPLICE_F_NONBLOCK,
        )
    };
    ensure!(
        errno(splice(100)) == Some(libc::EAGAIN),
        "an empty socket does not end the call"
    );
    peer.write_all(b"bytes")?;
    ensure!(splice(100)? == 5, "splice moves another number of bytes");
    let mut buf = [0; 5];
    reader.read_exact(&mut buf)?;
    ensure!(&buf == b"bytes", "splice moves {buf:?}");
    ensure!(
        errno(splice(100)) == Some(libc::EAGAIN),
        "a socket that was read empty does not end the call"
    );
    drop(peer);
    ensure!(splice(100)? == 0, "the end is not told");
    Ok(())
}

/// Answers of memory devices that differ from one to another: who can be polled, and who knows
/// `RWF_NOWAIT`.
fn memory_devices() -> Result<()> {
    for (name, pollable, nowait) in [
        ("null", false, true),
        ("zero", false, true),
        ("full", false, false),
        ("random", true, true),
        ("urandom", false, true),
    ] {
        let path = format!("/dev/{name}");
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let fd = file.as_raw_fd();
        let set = call!(SYS_epoll_create1, 0);
        let mut event = libc::epoll_event { events: 1, u64: 0 };
        let add = call!(SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
        if pollable {
            is(add, 0, &format!("EPOLL_CTL_ADD of {path}"))?;
        } else {
            fails(add, libc::EPERM, &format!("EPOLL_CTL_ADD of {path}"))?;
        }
        call!(SYS_close, set);
        let mut byte = 0u8;
        let target = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let read = call!(
            SYS_preadv2,
            fd,
            &raw const target,
            1,
            -1i64,
            0,
            libc::RWF_NOWAIT
        );
        match (nowait, name) {
            (true, "null") => is(read, 0, &format!("RWF_NOWAIT of {path}"))?,
            (true, _) => is(read, 1, &format!("RWF_NOWAIT of {path}"))?,
            (false, _) => fails(read, libc::EOPNOTSUPP, &format!("RWF_NOWAIT of {path}"))?,
        }
    }
    Ok(())
}
