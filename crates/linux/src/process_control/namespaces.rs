//! Namespaces (`namespaces(7)`): of mounts, of the machine's names, of System V objects and message
//! queues. Of the other kinds there is one each, as in a kernel that was built without them.
//! `unshare(2)`, `setns(2)`, and what `/proc/<pid>/ns` leads to.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::nsfs::{self, NamespaceKind, NamespaceRef};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;

use crate::ipc::{sem, shm};
use crate::process::{access, namespaces, pidfd};
use crate::state::credentials::TraceCreds;
use crate::{SysResult, Task};

/// Flags of `clone(2)` and `unshare(2)` that make a namespace.
pub(crate) const CLONE_NEW_FLAGS: u32 = sys::CLONE_NEWNS
    | sys::CLONE_NEWCGROUP
    | sys::CLONE_NEWUTS
    | sys::CLONE_NEWIPC
    | sys::CLONE_NEWUSER
    | sys::CLONE_NEWPID
    | sys::CLONE_NEWNET
    | sys::CLONE_NEWTIME;
/// Flags of the kinds of namespaces that can be made.
const SUPPORTED: u32 = sys::CLONE_NEWNS | sys::CLONE_NEWUTS | sys::CLONE_NEWIPC;

/// Whether somebody may have the new namespaces that bits ask for.
///
/// # Errors
/// `EINVAL` for kinds of which there is one, `EPERM`.
pub(crate) fn check_new(task: &Task, bits: u32) -> Result<(), Errno> {
    if bits & sys::CLONE_NEWUSER != 0 {
        return Err(Errno::EINVAL);
    }
    if bits & CLONE_NEW_FLAGS != 0 {
        may_mount(task)?;
    }
    if bits & CLONE_NEW_FLAGS & !SUPPORTED != 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// Moves the calling thread into a namespace (`setns(2)`).
fn install_namespace(task: &Task, kind: NamespaceKind, held: &NamespaceRef) -> Result<(), Errno> {
    let cred = task.cred();
    if kind == NamespaceKind::User {
        // It is the caller's already.
        return Err(Errno::EINVAL);
    }
    may_mount(task)?;
    match held {
        NamespaceRef::Mounts(space) => {
            if !cred.capable(sys::CAP_SYS_CHROOT) {
                return Err(Errno::EPERM);
            }
            let context = task.fs();
            // The thread, this variable, and nobody else.
            if Arc::strong_count(&context) > 2 {
                return Err(Errno::EINVAL);
            }
            context.set_namespace(space.clone());
        }
        NamespaceRef::Other(other) => {
            let mut own = task.namespaces();
            match (kind, other.clone()) {
                (NamespaceKind::Uts, other) => {
                    own.uts = other.downcast().map_err(|_| Errno::EINVAL)?;
                }
                (_, other) => {
                    sem::exit_sem(task.process(), &own.ipc);
                    shm::exit_shm(task);
                    own.ipc = other.downcast().map_err(|_| Errno::EINVAL)?;
                }
            }
            task.set_namespaces(own);
        }
        NamespaceRef::Only => {}
    }
    Ok(())
}

/// `setns(2)`: the namespace of a descriptor, or those of a process that bits name.
pub fn sys_setns(task: &Task, fd: Fd, bits: u32) -> SysResult {
    const ORDER: [NamespaceKind; 8] = [
        NamespaceKind::User,
        NamespaceKind::Mount,
        NamespaceKind::Uts,
        NamespaceKind::Ipc,
        NamespaceKind::Pid,
        NamespaceKind::Cgroup,
        NamespaceKind::Net,
        NamespaceKind::Time,
    ];
    let file = task.file_io(fd)?;
    if let Some(namespace) = nsfs::from_inode(file.inode()) {
        if bits != 0 && bits != namespace.kind().flag() {
            return Err(Errno::EINVAL);
        }
        return install_namespace(task, namespace.kind(), namespace.namespace()).map(|()| 0);
    }
    let (process, _) = pidfd::process_of(task, fd).map_err(|_| Errno::EINVAL)?;
    if bits == 0 || bits & !CLONE_NEW_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let other = process.tasks().into_iter().next().ok_or(Errno::ESRCH)?;
    access::check_trace_access(task, &process, TraceCreds::Real)?;
    for kind in ORDER.into_iter().filter(|kind| bits & kind.flag() != 0) {
        let path = namespaces::file(&other, kind);
        let namespace = nsfs::from_inode(path.inode()).ok_or(Errno::EINVAL)?;
        install_namespace(task, kind, namespace.namespace())?;
    }
    Ok(0)
}

/// `unshare(2)`: stops sharing what flags say, or makes namespaces.
pub fn sys_unshare(task: &Task, bits: u64) -> SysResult {
    const ALONE: u32 = sys::CLONE_THREAD | sys::CLONE_SIGHAND | sys::CLONE_VM;
    let bits = u32::try_from(bits).map_err(|_| Errno::EINVAL)?;
    if bits & !(CLONE_NEW_FLAGS | ALONE | sys::CLONE_FILES | sys::CLONE_FS | sys::CLONE_SYSVSEM)
        != 0
    {
        return Err(Errno::EINVAL);
    }
    if bits & (ALONE | sys::CLONE_NEWUSER) != 0 && task.process().tasks().len() > 1 {
        return Err(Errno::EINVAL);
    }
    check_new(task, bits)?;
    if bits & sys::CLONE_FILES != 0 {
        task.unshare_files()?;
    }
    if bits & (sys::CLONE_FS | sys::CLONE_NEWNS) != 0 {
        task.unshare_fs();
    }
    if bits & sys::CLONE_NEWNS != 0 {
        task.fs().copy_namespace();
    }
    if bits & (sys::CLONE_NEWIPC | sys::CLONE_SYSVSEM) != 0 {
        sem::exit_sem(task.process(), &task.ipc());
    }
    if bits & sys::CLONE_NEWIPC != 0 {
        shm::exit_shm(task);
    }
    task.set_namespaces(task.namespaces().with_new(bits));
    Ok(0)
}

/// Whether somebody may change the tree of mounts.
pub(crate) fn may_mount(task: &Task) -> Result<(), Errno> {
    if task.cred().capable(sys::CAP_SYS_ADMIN) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
