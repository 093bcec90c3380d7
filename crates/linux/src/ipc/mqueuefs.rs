//! The file system of POSIX message queues: each is a file, whose text says what is in it
//! (`mq_overview(7)`).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use ::task::{Mutex, Once};
use abi::errno::Errno;
use fs::mount::{FileSystem, new_anonymous_device};
use fs::{
    DirEntry, FileOps, FileType, Inode, Metadata, NewInode, NewInodeKind, OpenFlags, SetAttr,
    StatFs,
};

use crate::ipc::mqueue::{self, Descriptor};
use crate::process::namespaces;
use crate::state::ipc::mqueue::PosixQueue;
use crate::state::namespaces::IpcNamespace;

const MAGIC: u64 = 0x1980_0202;

/// Metadata of a new file here.
pub(crate) fn metadata(kind: FileType, mode: u32) -> Metadata {
    static DEVICE: Once<u64> = Once::new();
    // In the order they are made, which listings follow.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Metadata::generated(
        *DEVICE.call_once(new_anonymous_device),
        NEXT.fetch_add(1, Ordering::Relaxed),
        kind,
        mode,
    )
}

impl Inode for PosixQueue {
    fn metadata(&self) -> Metadata {
        *self.metadata.lock()
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn set_attr(&self, attr: &SetAttr) -> Result<(), Errno> {
        attr.apply_to(&mut self.metadata.lock());
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        // `echo > queue` makes one and truncates it first.
        Ok(())
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>, Errno> {
        Ok(Some(Arc::new(Descriptor(self))))
    }
}

/// The directory of all queues of a namespace.
struct Root {
    ipc: Weak<IpcNamespace>,
    metadata: Mutex<Metadata>,
}

impl Root {
    /// The namespace, as long as somebody is in it.
    fn ipc(&self) -> Result<Arc<IpcNamespace>, Errno> {
        self.ipc.upgrade().ok_or(Errno::ENOENT)
    }
}

impl Inode for Root {
    fn metadata(&self) -> Metadata {
        *self.metadata.lock()
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn has_stable_names(&self) -> bool {
        false
    }

    fn set_attr(&self, attr: &SetAttr) -> Result<(), Errno> {
        attr.apply_to(&mut self.metadata.lock());
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        Ok(self
            .ipc()?
            .queues
            .lock()
            .get(name)
            .ok_or(Errno::ENOENT)?
            .clone())
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        let task = crate::current_task()
            .filter(|_| matches!(new.kind, NewInodeKind::Regular))
            .ok_or(Errno::EPERM)?;
        let ipc = self.ipc()?;
        let mut queues = ipc.queues.lock();
        if queues.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        Ok(mqueue::add(
            &task,
            &mut queues,
            name.to_vec(),
            new.mode,
            None,
        )?)
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        let queue = self
            .ipc()?
            .queues
            .lock()
            .remove(name)
            .ok_or(Errno::ENOENT)?;
        queue.metadata.lock().nlink = 0;
        Ok(())
    }

    fn readdir(
        &self,
        cursor: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let ipc = self.ipc()?;
        let mut entries: Vec<(u64, Vec<u8>)> = ipc
            .queues
            .lock()
            .iter()
            .map(|(name, queue)| (queue.metadata.lock().ino, name.clone()))
            .filter(|e| e.0 > cursor)
            .collect();
        entries.sort_unstable();
        for (ino, name) in &entries {
            if !emit(DirEntry {
                name,
                ino: *ino,
                kind: FileType::Regular,
                next: *ino,
            }) {
                break;
            }
        }
        Ok(())
    }
}

/// The file system of a namespace.
pub(crate) struct QueueFs {
    root: Arc<Root>,
}

impl FileSystem for QueueFs {
    fn name(&self) -> &'static str {
        "mqueue"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            magic: MAGIC,
            block_size: 4096,
            ..StatFs::default()
        }
    }
}

/// The file system of the caller's namespace.
pub(crate) fn file_system() -> Arc<dyn FileSystem> {
    let ipc = namespaces::current().ipc;
    let make = || -> Arc<dyn FileSystem> {
        let metadata = Mutex::new(metadata(FileType::Directory, 0o1777));
        Arc::new(QueueFs {
            root: Arc::new(Root {
                ipc: Arc::downgrade(&ipc),
                metadata,
            }),
        })
    };
    ipc.queue_files.call_once(make).clone()
}
