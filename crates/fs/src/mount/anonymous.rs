//! The mount of files that are in no tree.

use alloc::sync::Arc;

use task::Once;

use super::{ANON_DEV, FileSystem, Mount, SuperBlock};
use crate::{FileType, Inode, Metadata, StatFs};

/// The mount of files without a name, which is in no namespace.
pub(crate) fn anonymous() -> Arc<Mount> {
    static ANON: Once<Arc<Mount>> = Once::new();
    ANON.call_once(|| super::detached_mount(SuperBlock::for_fs(Arc::new(AnonFs), 0), "anon"))
        .clone()
}

/// The file system of files without names.
struct AnonFs;

struct AnonRoot;

impl Inode for AnonRoot {
    fn metadata(&self) -> Metadata {
        Metadata::generated(ANON_DEV, 0, FileType::Directory, 0o500)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }
}

impl FileSystem for AnonFs {
    fn name(&self) -> &'static str {
        "anon_inodefs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::new(AnonRoot)
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            magic: 0x0904_1934,
            block_size: 4096,
            ..StatFs::default()
        }
    }
}
