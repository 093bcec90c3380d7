//! Namespaces of a thread.

use alloc::sync::Arc;

use fs::Path;
use fs::nsfs::{self, NamespaceKind, NamespaceRef};
use net::Stack;

use crate::Task;
use crate::state::namespaces::{Namespaces, initial};

/// Namespaces of the calling thread; the first ones in a thread of the kernel.
pub(crate) fn current() -> Namespaces {
    crate::current_task().map_or_else(|| initial().clone(), |task| task.namespaces())
}

/// The network stack of the calling thread; the first one in a thread of the kernel.
pub(crate) fn net() -> Arc<Stack> {
    crate::current_task().map_or_else(|| initial().net.clone(), |task| task.net())
}

/// The file that a name in `/proc/<pid>/ns` leads to.
pub(crate) fn file(task: &Task, kind: NamespaceKind) -> Path {
    let own = task.namespaces();
    let (number, held) = match kind {
        NamespaceKind::Mount => {
            let space = task.fs().namespace();
            (space.number(), NamespaceRef::Mounts(space))
        }
        NamespaceKind::Uts => (own.uts.number, NamespaceRef::Other(own.uts)),
        NamespaceKind::Ipc => (own.ipc.number, NamespaceRef::Other(own.ipc)),
        _ => (kind.initial_number(), NamespaceRef::Only),
    };
    nsfs::path(kind, number, held)
}
