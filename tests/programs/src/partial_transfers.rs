//! Transfers that end before all bytes have gone: at a bad address, at a limit, in a full pipe.

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::credentials::in_child;
use crate::transfers::{Model, file, holds, pattern, position, read_all, same, seek};

pub const CHECKS: &[(&str, Check)] = &[
    ("transfers-that-end-in-a-fault", that_end_in_a_fault),
    ("transfers-that-are-not-delivered", that_are_not_delivered),
    ("transfers-up-to-a-limit", up_to_a_limit),
    ("transfers-into-full-pipes", into_full_pipes),
    (
        "transfers-beyond-the-most-of-one-call",
        beyond_the_most_of_one_call,
    ),
];

/// Two pages, of which only the first is there.
struct Edge(usize);

impl Edge {
    fn new() -> Result<Self> {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let address = call!(SYS_mmap, 0, 8192, prot, flags, -1i32, 0);
        ensure!(address > 0, "mmap: {address}");
        is(call!(SYS_munmap, address + 4096, 4096), 0, "munmap")?;
        Ok(Self(address as usize))
    }

    /// An address behind which `len` bytes are there.
    fn before(&self, len: usize) -> usize {
        self.0 + 4096 - len
    }

    /// The last bytes that are there.
    fn last(&self, len: usize) -> Vec<u8> {
        // SAFETY: they are in the first page, which nobody else uses.
        unsafe { std::slice::from_raw_parts(self.before(len) as *const u8, len) }.to_vec()
    }
}

fn entry(address: usize, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: len,
    }
}

fn that_end_in_a_fault() -> Result<()> {
    let edge = Edge::new()?;
    let size = 200_000;
    let data = pattern(size, 7);
    for good in [1usize, 17, 300, 4096] {
        // One buffer of which only the first bytes are there.
        let mut model = Model::new()?;
        let fd = model.fd.0;
        is(
            call!(SYS_write, fd, edge.before(good), good + 1000),
            good as i64,
            &format!("write of {good} and a fault"),
        )?;
        model.put(0, &edge.last(good));
        is(position(&model.fd), good as i64, "the position")?;
        is(
            call!(SYS_pwrite64, fd, edge.before(good), good + 1000, 10),
            good as i64,
            "pwrite64",
        )?;
        model.put(10, &edge.last(good));
        holds(&model.fd, &model.bytes)?;
        seek(&model.fd, 0)?;
        is(
            call!(SYS_write, fd, data.as_ptr(), size),
            size as i64,
            "write",
        )?;
        model.put(0, &data);
        seek(&model.fd, 3)?;
        is(
            call!(SYS_read, fd, edge.before(good), good + 1000),
            good as i64,
            &format!("read of {good} and a fault"),
        )?;
        is(
            position(&model.fd),
            3 + good as i64,
            "the position after read",
        )?;
        is(
            call!(SYS_pread64, fd, edge.before(good), good + 1000, 50),
            good as i64,
            "pread64",
        )?;
        fails(
            call!(SYS_read, fd, edge.before(0), 8),
            libc::EFAULT,
            "read of a fault",
        )?;
        fails(
            call!(SYS_read, fd, edge.before(0), 1),
            libc::EFAULT,
            "read of a byte that is a fault",
        )?;
        fails(
            call!(SYS_read, fd, edge.before(0), 8000),
            libc::EFAULT,
            "read of a larger fault",
        )?;
        is(
            position(&model.fd),
            3 + good as i64,
            "the position after reads of nothing",
        )?;
        // Several buffers, behind a chunk or two.
        for len in [1, 5000, 65_536, 70_000, 140_000] {
            let mut buffer = vec![0u8; len];
            let iov = [
                entry(buffer.as_mut_ptr() as usize, len),
                entry(edge.before(good), good + 9),
                entry(8, 100),
            ];
            let expected = (len + good) as i64;
            is(
                call!(SYS_preadv, fd, iov.as_ptr(), 3, 0, 0),
                expected,
                &format!("preadv of {len}, {good} and a fault"),
            )?;
            same(&buffer, &data[..len])?;
            seek(&model.fd, 0)?;
            is(call!(SYS_readv, fd, iov.as_ptr(), 3), expected, "readv")?;
            is(position(&model.fd), expected, "the position after readv")?;
            let other = Model::new()?;
            is(
                call!(SYS_writev, other.fd.0, iov.as_ptr(), 3),
                expected,
                &format!("writev of {len}, {good} and a fault"),
            )?;
            is(position(&other.fd), expected, "the position after writev")?;
            let mut whole = data[..len].to_vec();
            whole.extend(edge.last(good));
            holds(&other.fd, &whole)?;
        }
    }
    Ok(())
}

/// Data that cannot be delivered is not lost.
fn that_are_not_delivered() -> Result<()> {
    let edge = Edge::new()?;
    let [reader, writer] = pipe(libc::O_NONBLOCK)?;
    let [near, far] = pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    for (from, to, what) in [(writer.0, reader.0, "a pipe"), (near.0, far.0, "a socket")] {
        is(
            call!(SYS_write, from, c"0123456789".as_ptr(), 10),
            10,
            "write",
        )?;
        for len in [1, 8, 10, 300, 70_000] {
            fails(
                call!(SYS_read, to, edge.before(0), len),
                libc::EFAULT,
                &format!("read of {len} from {what}"),
            )?;
        }
        let mut text = [0u8; 16];
        is(
            call!(SYS_read, to, text.as_mut_ptr(), 16),
            10,
            &format!("read from {what} afterwards"),
        )?;
        same(&text[..10], b"0123456789")?;
        fails(
            call!(SYS_write, from, edge.before(0), 10),
            libc::EFAULT,
            &format!("write of nothing into {what}"),
        )?;
        fails(
            call!(SYS_read, to, text.as_mut_ptr(), 16),
            libc::EAGAIN,
            &format!("read of nothing from {what}"),
        )?;
    }
    // Into a pipe a small write goes in whole or not at all.
    fails(
        call!(SYS_write, writer.0, edge.before(10), 20),
        libc::EFAULT,
        "write of half a message",
    )?;
    fails(
        call!(SYS_read, reader.0, edge.before(10), 10),
        libc::EAGAIN,
        "read of half a message",
    )
}

fn up_to_a_limit() -> Result<()> {
    in_child(|| {
        let limit = 100_000usize;
        let words = [limit as u64; 2];
        is(
            call!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, words.as_ptr(), 0),
            0,
            "prlimit64",
        )?;
        // SAFETY: ignoring a signal is always sound.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let data = pattern(300_000, 8);
        let source = Model::new()?;
        is(
            call!(SYS_write, source.fd.0, data.as_ptr(), data.len()),
            limit as i64,
            "write beyond the limit",
        )?;
        is(position(&source.fd), limit as i64, "the position")?;
        holds(&source.fd, &data[..limit])?;
        fails(
            call!(SYS_write, source.fd.0, data.as_ptr(), 1),
            libc::EFBIG,
            "write at the limit",
        )?;
        is(
            call!(SYS_write, source.fd.0, data.as_ptr(), 0),
            0,
            "write of nothing at the limit",
        )?;
        is(
            call!(SYS_pwrite64, source.fd.0, data.as_ptr(), 50, limit - 1),
            1,
            "pwrite64 across the limit",
        )?;
        fails(
            call!(SYS_pwrite64, source.fd.0, data.as_ptr(), 1, limit),
            libc::EFBIG,
            "pwrite64 at the limit",
        )?;
        fails(
            call!(SYS_ftruncate, source.fd.0, limit + 1),
            libc::EFBIG,
            "ftruncate beyond the limit",
        )?;
        fails(
            call!(SYS_fallocate, source.fd.0, 0, 0, limit + 1),
            libc::EFBIG,
            "fallocate beyond the limit",
        )?;
        // The calls that copy between files stop there, too.
        let target = file()?;
        seek(&target, limit - 10)?;
        let mut offset = 0i64;
        is(
            call!(SYS_sendfile, target.0, source.fd.0, &raw mut offset, 1000),
            10,
            "sendfile across the limit",
        )?;
        ensure!(offset == 10, "sendfile leaves {offset}");
        fails(
            call!(SYS_sendfile, target.0, source.fd.0, &raw mut offset, 1000),
            libc::EFBIG,
            "sendfile at the limit",
        )?;
        let (mut a, mut b) = (0i64, limit as i64 - 20);
        is(
            call!(
                SYS_copy_file_range,
                source.fd.0,
                &raw mut a,
                target.0,
                &raw mut b,
                1000,
                0
            ),
            20,
            "copy_file_range",
        )?;
        let at_limit = call!(
            SYS_copy_file_range,
            source.fd.0,
            &raw mut a,
            target.0,
            &raw mut b,
            1000,
            0
        );
        fails(at_limit, libc::EFBIG, "copy_file_range at the limit")?;
        let [reader, writer] = pipe(0)?;
        is(
            call!(SYS_write, writer.0, data.as_ptr(), 500),
            500,
            "write into a pipe",
        )?;
        let mut b = limit as i64 - 30;
        is(
            call!(SYS_splice, reader.0, 0, target.0, &raw mut b, 500, 0),
            30,
            "splice across the limit",
        )?;
        fails(
            call!(SYS_splice, reader.0, 0, target.0, &raw mut b, 500, 0),
            libc::EFBIG,
            "splice at the limit",
        )?;
        is(
            call!(SYS_read, reader.0, vec![0u8; 1000].as_mut_ptr(), 1000),
            470,
            "what is left in the pipe",
        )
    })
}

fn into_full_pipes() -> Result<()> {
    let [reader, writer] = pipe(libc::O_NONBLOCK)?;
    let data = pattern(300_000, 9);
    is(
        call!(SYS_write, writer.0, data.as_ptr(), data.len()),
        65_536,
        "write into an empty pipe",
    )?;
    fails(
        call!(SYS_write, writer.0, data.as_ptr(), 1),
        libc::EAGAIN,
        "write into a full pipe",
    )?;
    same(&read_all(reader.0, 65_536)?, &data[..65_536])?;
    let source = file()?;
    is(
        call!(SYS_write, source.0, data.as_ptr(), data.len()),
        data.len() as i64,
        "write",
    )?;
    let mut offset = 0i64;
    is(
        call!(
            SYS_splice,
            source.0,
            &raw mut offset,
            writer.0,
            0,
            data.len(),
            0
        ),
        65_536,
        "splice into an empty pipe",
    )?;
    ensure!(offset == 65_536, "splice leaves {offset}");
    fails(
        call!(SYS_splice, source.0, &raw mut offset, writer.0, 0, 1, 0),
        libc::EAGAIN,
        "splice into a full pipe",
    )?;
    ensure!(offset == 65_536, "and leaves {offset}");
    same(&read_all(reader.0, 65_536)?, &data[..65_536])?;
    is(
        call!(
            SYS_sendfile,
            writer.0,
            source.0,
            &raw mut offset,
            data.len()
        ),
        65_536,
        "sendfile into an empty pipe",
    )?;
    same(&read_all(reader.0, 65_536)?, &data[65_536..131_072])
}

fn beyond_the_most_of_one_call() -> Result<()> {
    /// Linux' `MAX_RW_COUNT`.
    const MOST: i64 = 0x7fff_f000;
    const ROOM: usize = 3 << 30;
    // Nothing of it is touched: the device takes everything without a look.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let room = call!(SYS_mmap, 0, ROOM, libc::PROT_READ, flags, -1i32, 0);
    ensure!(room > 0, "mmap: {room}");
    let null = Fd::new(
        call!(SYS_open, c"/dev/null".as_ptr(), libc::O_RDWR),
        "open of /dev/null",
    )?;
    is(call!(SYS_write, null.0, room, ROOM), MOST, "write")?;
    is(call!(SYS_pwrite64, null.0, room, ROOM, 0), MOST, "pwrite64")?;
    let vector = |parts: &[usize]| {
        parts
            .iter()
            .flat_map(|part| [room as usize, *part])
            .collect::<Vec<_>>()
    };
    for parts in [
        &[ROOM][..],
        &[16, ROOM],
        &[ROOM, 16],
        &[16, ROOM, 16],
        &[1 << 30, 1 << 30, 1 << 30],
    ] {
        is(
            call!(SYS_writev, null.0, vector(parts).as_ptr(), parts.len()),
            MOST,
            &format!("writev of {parts:?}"),
        )?;
    }
    is(call!(SYS_munmap, room, ROOM), 0, "munmap")?;
    // Where there is nothing to transfer, nobody looks at the flags.
    let (bytes, empty) = ([0u8; 8], vector(&[0, 0]));
    let some = [bytes.as_ptr().addr(), bytes.len()];
    for (call, name) in [
        (libc::SYS_preadv2, "preadv2"),
        (libc::SYS_pwritev2, "pwritev2"),
    ] {
        let call = |vector: &[usize]| {
            crate::calls::make(
                call,
                &[
                    null.0 as usize,
                    vector.as_ptr().addr(),
                    vector.len() / 2,
                    0,
                    0,
                    1 << 20,
                ],
            )
        };
        is(
            call(&empty),
            0,
            &format!("{name} of nothing with an unknown flag"),
        )?;
        fails(
            call(&some),
            libc::EOPNOTSUPP,
            &format!("{name} with an unknown flag"),
        )?;
    }
    Ok(())
}
