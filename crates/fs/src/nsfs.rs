//! Namespaces as files (`namespaces(7)`): what `/proc/<pid>/ns` leads to, what `setns(2)` takes,
//! and what keeps a namespace while nobody lives in it.

use alloc::format;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::Once;

use crate::file::{FileOps, OpenFlags};
use crate::ioctl::IoctlRequest;
use crate::mount::{self, FileSystem, Mount, Namespace, SuperBlock, new_anonymous_device};
use crate::{File, FileType, Inode, Metadata, Path, Result, StatFs};

/// A kind of namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceKind {
    /// Control groups.
    Cgroup,
    /// System V objects and POSIX message queues.
    Ipc,
    /// Mounts.
    Mount,
    /// Networks.
    Net,
    /// Numbers of processes.
    Pid,
    /// Clocks.
    Time,
    /// Users.
    User,
    /// The machine's names.
    Uts,
}

impl NamespaceKind {
    /// Its name in `/proc/<pid>/ns`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mnt",
            Self::Net => "net",
            Self::Pid => "pid",
            Self::Time => "time",
            Self::User => "user",
            Self::Uts => "uts",
        }
    }

    /// Its `CLONE_NEW*` bit.
    #[must_use]
    pub const fn flag(self) -> u32 {
        match self {
            Self::Cgroup => sys::CLONE_NEWCGROUP,
            Self::Ipc => sys::CLONE_NEWIPC,
            Self::Mount => sys::CLONE_NEWNS,
            Self::Net => sys::CLONE_NEWNET,
            Self::Pid => sys::CLONE_NEWPID,
            Self::Time => sys::CLONE_NEWTIME,
            Self::User => sys::CLONE_NEWUSER,
            Self::Uts => sys::CLONE_NEWUTS,
        }
    }

    /// The number of the first one, as on Linux.
    #[must_use]
    pub const fn initial_number(self) -> u32 {
        match self {
            Self::Time => 0xefff_fffa,
            Self::Cgroup => 0xefff_fffb,
            Self::Pid => 0xefff_fffc,
            Self::User => 0xefff_fffd,
            Self::Uts => 0xefff_fffe,
            Self::Ipc => 0xefff_ffff,
            Self::Mount => FIRST_DYNAMIC,
            Self::Net => FIRST_DYNAMIC - 7,
        }
    }
}

/// Where numbers that are given out begin.
const FIRST_DYNAMIC: u32 = 0xf000_0000;

/// A number for a new namespace.
pub fn new_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(FIRST_DYNAMIC);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Reference that a namespace's file holds.
#[derive(Clone)]
pub enum NamespaceRef {
    /// The one there is of its kind.
    Only,
    /// A tree of mounts.
    Mounts(Arc<Namespace>),
    /// Something of the Linux personality.
    Other(Arc<dyn Any + Send + Sync>),
}

/// A namespace as a file.
pub struct NsInode {
    kind: NamespaceKind,
    number: u32,
    namespace: NamespaceRef,
}

fn mount() -> &'static Arc<Mount> {
    static MOUNT: Once<Arc<Mount>> = Once::new();
    MOUNT.call_once(|| mount::detached_mount(SuperBlock::for_fs(Arc::new(NsFs), 0), "nsfs"))
}

fn device() -> u64 {
    static DEVICE: Once<u64> = Once::new();
    *DEVICE.call_once(new_anonymous_device)
}

/// The file of a namespace.
#[must_use]
pub fn path(kind: NamespaceKind, number: u32, held: NamespaceRef) -> Path {
    let name = format!("{}:[{number}]", kind.name());
    Path::pseudo_in(
        mount().clone(),
        Arc::new(NsInode {
            kind,
            number,
            namespace: held,
        }),
        &name,
    )
}

/// The namespace a file is, if it is one.
#[must_use]
pub fn from_inode(inode: &Arc<dyn Inode>) -> Option<&NsInode> {
    (&**inode as &dyn Any).downcast_ref()
}

impl NsInode {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> NamespaceKind {
        self.kind
    }

    /// Itself.
    #[must_use]
    pub fn namespace(&self) -> &NamespaceRef {
        &self.namespace
    }

    /// Itself, if it is one of mounts.
    #[must_use]
    pub fn mount_namespace(&self) -> Option<&Arc<Namespace>> {
        match &self.namespace {
            NamespaceRef::Mounts(space) => Some(space),
            _ => None,
        }
    }
}

impl Inode for NsInode {
    fn metadata(&self) -> Metadata {
        Metadata::generated(device(), self.number.into(), FileType::Regular, 0o444)
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        if flags.is_writable() {
            Err(Errno::EPERM)
        } else {
            Ok(Some(Arc::new(NsFileOps(self.kind))))
        }
    }
}

/// `NS_GET_*` of `ioctl_ns(2)`.
const NS_GET_USERNS: u32 = 0xb701;
const NS_GET_PARENT: u32 = 0xb702;
const NS_GET_NSTYPE: u32 = 0xb703;
const NS_GET_OWNER_UID: u32 = 0xb704;

struct NsFileOps(NamespaceKind);

impl FileOps for NsFileOps {
    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        let above = self.0 == NamespaceKind::User;
        match request.command {
            // The owner of all of them; there is none above it.
            NS_GET_USERNS if above => Err(Errno::EPERM),
            NS_GET_USERNS => {
                let user = path(
                    NamespaceKind::User,
                    NamespaceKind::User.initial_number(),
                    NamespaceRef::Only,
                );
                request.caller.install(
                    File::new(
                        user,
                        Arc::new(NsFileOps(NamespaceKind::User)),
                        OpenFlags::empty(),
                    ),
                    OpenFlags::CLOEXEC,
                )
            }
            NS_GET_PARENT if above || self.0 == NamespaceKind::Pid => Err(Errno::EPERM),
            NS_GET_PARENT => Err(Errno::EINVAL),
            NS_GET_NSTYPE => Ok(self.0.flag() as usize),
            NS_GET_OWNER_UID if above => request.write(&0_u32).map(|()| 0),
            NS_GET_OWNER_UID => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// The file system of namespaces, which has no tree.
struct NsFs;

struct NsRoot;

impl Inode for NsRoot {
    fn metadata(&self) -> Metadata {
        Metadata::generated(device(), 0, FileType::Directory, 0o500)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }
}

impl FileSystem for NsFs {
    fn name(&self) -> &'static str {
        "nsfs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::new(NsRoot)
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            magic: 0x6e73_6673,
            block_size: 4096,
            ..StatFs::default()
        }
    }
}
