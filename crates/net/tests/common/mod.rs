//! Parts that several test programs have: a stack, a caller, terms of waiting.

#![allow(dead_code, reason = "each program of tests uses some of them")]

use std::sync::{Arc, LazyLock};

use fs::ramfs::RamFs;
use fs::{Cred, File, FsStruct, mount};
use net::inet::Loopback;
use net::{Caller, Socket, SocketOps, Stack, WaitPolicy};

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
