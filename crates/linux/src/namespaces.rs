//! Namespaces (`namespaces(7)`): of mounts, of the machine's names, of System V objects and message queues. Of the other kinds there is one each, as in a
//! kernel that was built without them. `unshare(2)`, `setns(2)`, and what `/proc/<pid>/ns` leads to.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::{Mutex, Once};
use abi::errno::Errno;
use fs::Path;
use fs::nsfs::{self, Held, Kind};
use linux_raw_sys::general as sys;

use crate::{SysResult, Task, mount, mqueue, mqueuefs, msg, peer, pidfd, sem, shm};

/// The machine's names (`uts_namespaces(7)`), which are any bytes.
pub(crate) struct Uts {
    number: u32,
    pub(crate) nodename: Mutex<Vec<u8>>,
    pub(crate) domain: Mutex<Vec<u8>>,
}

/// System V objects and POSIX message queues (`ipc_namespaces(7)`).
pub(crate) struct Ipc {
    number: u32,
    pub(crate) semaphores: sem::Sets,
    pub(crate) messages: msg::Queues,
    pub(crate) segments: shm::Segments,
    pub(crate) queues: mqueue::Queues,
    pub(crate) queue_files: Once<Arc<mqueuefs::QueueFs>>,
}

/// Those a thread is in, beside that of mounts, which it has with its directories.
#[derive(Clone)]
pub(crate) struct Namespaces {
    pub(crate) uts: Arc<Uts>,
    pub(crate) ipc: Arc<Ipc>,
}

impl Uts {
    /// The first one, in which nobody has named anything.
    fn first() -> Self {
        let names = [&b"skerry"[..], b"(none)"].map(|name| Mutex::new(name.to_vec()));
        let [nodename, domain] = names;
        Self { number: Kind::Uts.first_number(), nodename, domain }
    }

    /// A copy for somebody else.
    fn copy(&self) -> Arc<Self> {
        let [nodename, domain] = [&self.nodename, &self.domain].map(|name| Mutex::new(name.lock().clone()));
        Arc::new(Self { number: nsfs::new_number(), nodename, domain })
    }
}

impl Ipc {
    const fn new(number: u32) -> Self {
        Self {
            number,
            semaphores: sem::Sets::new(sem::MAX_SETS),
            messages: msg::Queues::new(msg::MAX_QUEUES),
            segments: shm::Segments::new(),
            queues: Mutex::new(BTreeMap::new()),
            queue_files: Once::new(),
        }
    }
}

/// The first ones.
pub(crate) fn first() -> &'static Namespaces {
    static FIRST: Once<Namespaces> = Once::new();
    FIRST.call_once(|| Namespaces { uts: Arc::new(Uts::first()), ipc: Arc::new(Ipc::new(Kind::Ipc.first_number())) })
}

/// Those of the calling thread, or the first ones.
pub(crate) fn current() -> Namespaces {
    crate::current_task().map_or_else(|| first().clone(), |task| task.namespaces())
}

/// All bits that mean a namespace.
pub(crate) const ALL: u32 = sys::CLONE_NEWNS
    | sys::CLONE_NEWCGROUP
    | sys::CLONE_NEWUTS
    | sys::CLONE_NEWIPC
    | sys::CLONE_NEWUSER
    | sys::CLONE_NEWPID
    | sys::CLONE_NEWNET
    | sys::CLONE_NEWTIME;
/// Those of which there can be more than one.
const MADE: u32 = sys::CLONE_NEWNS | sys::CLONE_NEWUTS | sys::CLONE_NEWIPC;

/// Whether somebody may have the new namespaces that bits ask for.
///
/// # Errors
/// `EINVAL` for kinds of which there is one, `EPERM`.
pub(crate) fn check_new(task: &Task, bits: u32) -> Result<(), Errno> {
    if bits & sys::CLONE_NEWUSER != 0 {
        return Err(Errno::EINVAL);
    }
    if bits & ALL != 0 {
        mount::may_mount(task)?;
    }
    if bits & ALL & !MADE != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

impl Namespaces {
    /// These, but new ones where bits ask for them.
    pub(crate) fn with_new(mut self, bits: u32) -> Self {
        if bits & sys::CLONE_NEWUTS != 0 {
            self.uts = self.uts.copy();
        }
        if bits & sys::CLONE_NEWIPC != 0 {
            self.ipc = Arc::new(Ipc::new(nsfs::new_number()));
        }
        self
    }
}

/// What a name in `/proc/<pid>/ns` leads to.
pub(crate) fn file(task: &Task, kind: Kind) -> Path {
    let own = task.namespaces();
    let (number, held) = match kind {
        Kind::Mount => {
            let space = task.fs().namespace();
            (space.number(), Held::Mounts(space))
        }
        Kind::Uts => (own.uts.number, Held::Other(own.uts)),
        Kind::Ipc => (own.ipc.number, Held::Other(own.ipc)),
        _ => (kind.first_number(), Held::Only),
    };
    nsfs::path(kind, number, held)
}

/// A thread's files and directories are nobody else's, or it cannot enter a namespace of mounts.
fn enter(task: &Task, kind: Kind, held: &Held) -> Result<(), Errno> {
    let cred = task.cred();
    if kind == Kind::User {
        // It is the caller's already.
        return Err(Errno::EINVAL);
    }
    mount::may_mount(task)?;
    match held {
        Held::Mounts(space) => {
            if !cred.capable(sys::CAP_SYS_CHROOT) {
                return Err(Errno::EPERM);
            }
            let context = task.fs();
            // The thread, this variable, and nobody else.
            if Arc::strong_count(&context) > 2 {
                return Err(Errno::EINVAL);
            }
            context.enter(space.clone());
        }
        Held::Other(other) => {
            let mut own = task.namespaces();
            match (kind, other.clone()) {
                (Kind::Uts, other) => own.uts = other.downcast().map_err(|_| Errno::EINVAL)?,
                (_, other) => {
                    sem::process_ends(task.process(), &own.ipc);
                    own.ipc = other.downcast().map_err(|_| Errno::EINVAL)?;
                }
            }
            task.set_namespaces(own);
        }
        Held::Only => {}
    }
    Ok(())
}

/// `setns(2)`: the namespace of a descriptor, or those of a process that bits name.
pub fn sys_setns(task: &Task, fd: i32, bits: u32) -> SysResult {
    const ORDER: [Kind; 8] = [Kind::User, Kind::Mount, Kind::Uts, Kind::Ipc, Kind::Pid, Kind::Cgroup, Kind::Net, Kind::Time];
    let file = task.file_io(fd)?;
    if let Some(namespace) = nsfs::of(file.inode()) {
        if bits != 0 && bits != namespace.kind().flag() {
            return Err(Errno::EINVAL);
        }
        return enter(task, namespace.kind(), namespace.held()).map(|()| 0);
    }
    let (process, _) = pidfd::process_of(task, fd).map_err(|_| Errno::EINVAL)?;
    if bits == 0 || bits & !ALL != 0 {
        return Err(Errno::EINVAL);
    }
    let other = process.tasks().into_iter().next().ok_or(Errno::ESRCH)?;
    peer::check(task, &process)?;
    for kind in ORDER.into_iter().filter(|kind| bits & kind.flag() != 0) {
        let path = self::file(&other, kind);
        let namespace = nsfs::of(path.inode()).ok_or(Errno::EINVAL)?;
        enter(task, kind, namespace.held())?;
    }
    Ok(0)
}

/// `unshare(2)`
pub fn sys_unshare(task: &Task, bits: u64) -> SysResult {
    const ALONE: u32 = sys::CLONE_THREAD | sys::CLONE_SIGHAND | sys::CLONE_VM;
    let bits = u32::try_from(bits).map_err(|_| Errno::EINVAL)?;
    if bits & !(ALL | ALONE | sys::CLONE_FILES | sys::CLONE_FS | sys::CLONE_SYSVSEM) != 0 {
        return Err(Errno::EINVAL);
    }
    if bits & (ALONE | sys::CLONE_NEWUSER) != 0 && task.process().tasks().len() > 1 {
        return Err(Errno::EINVAL);
    }
    check_new(task, bits)?;
    if bits & sys::CLONE_FILES != 0 {
        task.unshare_files();
    }
    if bits & (sys::CLONE_FS | sys::CLONE_NEWNS) != 0 {
        task.unshare_fs();
    }
    if bits & sys::CLONE_NEWNS != 0 {
        task.fs().copy_namespace();
    }
    if bits & (sys::CLONE_NEWIPC | sys::CLONE_SYSVSEM) != 0 {
        sem::process_ends(task.process(), &task.ipc());
    }
    task.set_namespaces(task.namespaces().with_new(bits));
    Ok(0)
}
