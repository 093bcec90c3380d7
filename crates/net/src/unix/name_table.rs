//! Bound sockets by name: those in the file system by the number of their file, abstract ones by
//! name.

use super::UnixSocket;
use crate::{Caller, SocketType, UnixName};
use abi::errno::Errno;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU32, Ordering};
use fs::path::LookupFlags;
use fs::{Access, FileType, Metadata, NewInodeKind, Path, Result, ops};
use task::Mutex;

/// Device and number of the file.
type FileKey = (u64, u64);

/// The key of an abstract name: every type has names of its own.
type AbstractKey = (i32, Arc<[u8]>);

static PATHNAME_SOCKETS: Mutex<BTreeMap<FileKey, Weak<UnixSocket>>> = Mutex::new(BTreeMap::new());
static ABSTRACT_SOCKETS: Mutex<BTreeMap<AbstractKey, Weak<UnixSocket>>> =
    Mutex::new(BTreeMap::new());

/// A socket's entry in a table; dropping it takes the entry away.
pub(super) enum Binding {
    /// By its file, which is kept so that its number is not given to another.
    Path(Path),
    /// By its abstract name.
    Abstract(AbstractKey),
}

impl Drop for Binding {
    fn drop(&mut self) {
        match self {
            Self::Path(path) => drop(PATHNAME_SOCKETS.lock().remove(&file_key(&path.metadata()))),
            Self::Abstract(key) => drop(ABSTRACT_SOCKETS.lock().remove(key)),
        }
    }
}

fn file_key(meta: &Metadata) -> FileKey {
    (meta.dev, meta.ino)
}

/// Enters `socket` under `name`, which has to be free; makes the file if it is a path.
pub(super) fn bind(
    caller: &Caller<'_>,
    kind: SocketType,
    name: &UnixName,
    socket: &Weak<UnixSocket>,
) -> Result<Binding> {
    match name {
        UnixName::Unnamed => Err(Errno::EINVAL),
        UnixName::Path(text) => {
            let made = ops::make(
                &caller.walk,
                text,
                NewInodeKind::Socket,
                0o777 & !caller.umask,
            );
            let path = made.map_err(|e| {
                if e == Errno::EEXIST {
                    Errno::EADDRINUSE
                } else {
                    e
                }
            })?;
            PATHNAME_SOCKETS
                .lock()
                .insert(file_key(&path.metadata()), socket.clone());
            Ok(Binding::Path(path))
        }
        UnixName::Abstract(name) => {
            insert_abstract((kind.as_raw(), name.clone()), socket).ok_or(Errno::EADDRINUSE)
        }
    }
}

/// The number of bound names.
pub(crate) fn bound_name_count() -> u64 {
    (PATHNAME_SOCKETS.lock().len() + ABSTRACT_SOCKETS.lock().len()) as u64
}

fn insert_abstract(key: AbstractKey, socket: &Weak<UnixSocket>) -> Option<Binding> {
    let mut table = ABSTRACT_SOCKETS.lock();
    if table.contains_key(&key) {
        return None;
    }
    table.insert(key.clone(), socket.clone());
    Some(Binding::Abstract(key))
}

/// Enters `socket` under a free abstract name of five hexadecimal digits.
pub(super) fn autobind(kind: SocketType, socket: &Weak<UnixSocket>) -> Result<(Binding, UnixName)> {
    const NAMES: u32 = 1 << 20;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..NAMES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % NAMES;
        let name: Arc<[u8]> = format!("{number:05x}").into_bytes().into();
        if let Some(binding) = insert_abstract((kind.as_raw(), name.clone()), socket) {
            return Ok((binding, UnixName::Abstract(name)));
        }
    }
    Err(Errno::ENOSPC)
}

/// The socket of this kind bound at `name`, which the caller must be allowed to write.
pub(super) fn find_socket(
    caller: &Caller<'_>,
    kind: SocketType,
    name: &UnixName,
) -> Result<Arc<UnixSocket>> {
    let found = match name {
        UnixName::Unnamed => return Err(Errno::EINVAL),
        UnixName::Path(text) => {
            let path = caller.walk.lookup(text, LookupFlags::empty())?;
            let meta = path.metadata();
            caller.walk.cred.check(&meta, Access::WRITE)?;
            if meta.kind != FileType::Socket {
                return Err(Errno::ECONNREFUSED);
            }
            PATHNAME_SOCKETS
                .lock()
                .get(&file_key(&meta))
                .and_then(Weak::upgrade)
        }
        UnixName::Abstract(name) => ABSTRACT_SOCKETS
            .lock()
            .get(&(kind.as_raw(), name.clone()))
            .and_then(Weak::upgrade),
    };
    let found = found.ok_or(Errno::ECONNREFUSED)?;
    if found.socket_type == kind {
        Ok(found)
    } else {
        Err(Errno::EPROTOTYPE)
    }
}
