//! Namespaces that a thread is in (`namespaces(7)`), beside that of mounts, which it has with its
//! directories.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::{Mutex, Once};
use fs::mount::FileSystem;
use fs::nsfs::{self, NamespaceKind};
use linux_raw_sys::general as sys;
use net::Stack;
use net::inet::Host;

use crate::state::ipc::limits::IpcLimits;
use crate::state::ipc::{mqueue, msg, sem, shm};

/// The longest name of a machine, bytes (`__NEW_UTS_LEN`).
pub(crate) const NAME_MAX: usize = 64;

/// The machine's names (`uts_namespaces(7)`), which are any bytes.
pub(crate) struct UtsNamespace {
    pub(crate) number: u32,
    pub(crate) nodename: Mutex<Vec<u8>>,
    pub(crate) domain: Mutex<Vec<u8>>,
}

/// System V objects and POSIX message queues (`ipc_namespaces(7)`).
pub(crate) struct IpcNamespace {
    pub(crate) number: u32,
    pub(crate) limits: IpcLimits,
    pub(crate) semaphores: sem::Sets,
    pub(crate) messages: msg::Queues,
    pub(crate) segments: shm::Segments,
    pub(crate) queues: mqueue::Queues,
    pub(crate) queue_files: Once<Arc<dyn FileSystem>>,
}

/// Namespaces of a thread beside that of mounts, which it has with its directories.
#[derive(Clone)]
pub(crate) struct Namespaces {
    pub(crate) uts: Arc<UtsNamespace>,
    pub(crate) ipc: Arc<IpcNamespace>,
    /// The network stack (`network_namespaces(7)`); there is one.
    pub(crate) net: Arc<Stack>,
}

impl UtsNamespace {
    /// Names of the machine before any program sets them.
    fn initial() -> Self {
        let names = [&b"skerry"[..], b"(none)"].map(|name| Mutex::new(name.to_vec()));
        let [nodename, domain] = names;
        Self {
            number: NamespaceKind::Uts.initial_number(),
            nodename,
            domain,
        }
    }

    /// A copy for somebody else.
    fn copy(&self) -> Arc<Self> {
        let [nodename, domain] =
            [&self.nodename, &self.domain].map(|name| Mutex::new(name.lock().clone()));
        Arc::new(Self {
            number: nsfs::new_number(),
            nodename,
            domain,
        })
    }
}

impl IpcNamespace {
    const fn new(number: u32) -> Self {
        Self {
            number,
            limits: IpcLimits::new(),
            semaphores: sem::Sets::new(),
            messages: msg::Queues::new(),
            segments: shm::Segments::new(),
            queues: Mutex::new(BTreeMap::new()),
            queue_files: Once::new(),
        }
    }
}

/// The host below the network stack, which drivers of network devices add interfaces to.
pub fn host() -> &'static Arc<Host> {
    static HOST: Once<Arc<Host>> = Once::new();
    HOST.call_once(Host::new)
}

/// Namespaces of process 1.
pub(crate) fn initial() -> &'static Namespaces {
    static FIRST: Once<Namespaces> = Once::new();
    FIRST.call_once(|| {
        let net = Stack::new(host().clone());
        net.sysctls().scale(guard::mem::total_frames());
        Namespaces {
            uts: Arc::new(UtsNamespace::initial()),
            ipc: Arc::new(IpcNamespace::new(NamespaceKind::Ipc.initial_number())),
            net,
        }
    })
}

impl Namespaces {
    /// These, but new ones where bits ask for them.
    pub(crate) fn with_new(mut self, bits: u32) -> Self {
        if bits & sys::CLONE_NEWUTS != 0 {
            self.uts = self.uts.copy();
        }
        if bits & sys::CLONE_NEWIPC != 0 {
            self.ipc = Arc::new(IpcNamespace::new(nsfs::new_number()));
        }
        self
    }
}
