//! Parts that several test programs have: a stack, a caller, terms of waiting.

#![allow(dead_code, reason = "each program of tests uses some of them")]

pub mod connections;
pub mod router;
pub mod strange;
pub mod v6;
pub mod wire;

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};

use fs::ramfs::RamFs;
use fs::{Cred, File, FsStruct, mount};
use net::inet::Loopback;
use net::{Caller, Frame, Socket, SocketOps, Stack, WaitPolicy};

/// Terms of a call that does not wait.
pub const NOW: WaitPolicy = WaitPolicy {
    nonblocking: true,
    timeout_ns: 0,
};
/// Terms of a call that waits as long as it takes.
pub const PATIENT: WaitPolicy = WaitPolicy {
    nonblocking: false,
    timeout_ns: 0,
};

/// The stack of the test: each runs in a thread of its own.
pub fn stack() -> Arc<Stack> {
    thread_local! {
        static STACK: Arc<Stack> = Stack::new(Arc::new(Loopback));
    }
    STACK.with(Arc::clone)
}

/// Runs `f` as a program with these credentials calls.
pub fn call_as<R>(cred: &Cred, f: impl FnOnce(&Caller<'_>) -> R) -> R {
    static CONTEXT: LazyLock<FsStruct> = LazyLock::new(|| {
        FsStruct::new(mount::Namespace::new(
            RamFs::new("tmpfs", None, 0o755),
            "none",
        ))
    });
    f(&Caller {
        walk: CONTEXT.lookup_context(cred),
        umask: 0,
    })
}

/// Runs `f` as a program of root's calls.
pub fn call<R>(f: impl FnOnce(&Caller<'_>) -> R) -> R {
    call_as(&Cred::root(), f)
}

/// The family's operations of an open socket.
pub fn protocol(file: &File) -> &dyn SocketOps {
    file.ops_as::<Socket>().unwrap().ops()
}

/// An Ethernet frame with a segment from a made-up host to one whose hardware address ends as its
/// own one does.
pub fn forged(
    from: ([u8; 4], u16),
    to: (Ipv4Addr, u16),
    header: &tcp::Header,
    data: &[u8],
) -> Frame {
    let mut segment = vec![0; header.length()];
    let header = tcp::Header {
        source: from.1,
        destination: to.1,
        ..*header
    };
    header.emit(&mut segment).unwrap();
    segment.extend_from_slice(data);
    let sum = tcp::checksum(Ipv4Addr::from(from.0).into(), to.0.into(), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let packet = ip::ipv4::Header {
        tos: 0,
        id: 1,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        ttl: 64,
        protocol: 6,
        source: from.0.into(),
        destination: to.0,
    };
    let mac = [2, 0, 0, 0, 0, to.0.octets()[3]];
    let link = [&mac[..], &[2, 0, 0, 0, 0, 9, 8, 0]].concat();
    Frame {
        data: [&link[..], &packet.emit(segment.len()), &segment].concat(),
    }
}
