//! Bound sockets by name: those in the file system by the number of their file, abstract ones by
//! name.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use fs::path::LookupFlags;
use fs::{Access, FileType, Metadata, NewInodeKind, Path, Result, ops};
use task::Mutex;

use super::UnixSocket;
use super::stack::UnixStack;
use crate::{Caller, SocketType, UnixName};

/// Device and number of the file.
type FileKey = (u64, u64);

/// The key of an abstract name: every type has names of its own.
type AbstractKey = (i32, Arc<[u8]>);

/// The bound sockets of a stack.
#[derive(Default)]
pub(super) struct NameTable {
    pathname_sockets: Mutex<BTreeMap<FileKey, Weak<UnixSocket>>>,
    abstract_sockets: Mutex<BTreeMap<AbstractKey, Weak<UnixSocket>>>,
    /// The name that is tried next for who asks for none.
    next_autobind: AtomicU32,
}

/// A socket's entry in the table of its stack; dropping it takes the entry away.
pub(super) struct Binding {
    stack: Arc<UnixStack>,
    key: BindingKey,
}

enum BindingKey {
    /// By its file, which is kept so that its number is not given to another.
    Path(Path),
    /// By its abstract name.
    Abstract(AbstractKey),
}

impl Drop for Binding {
    fn drop(&mut self) {
        let names = &self.stack.names;
        match &self.key {
            BindingKey::Path(path) => {
                let key = file_key(&path.metadata());
                drop(names.pathname_sockets.lock().remove(&key));
            }
            BindingKey::Abstract(key) => drop(names.abstract_sockets.lock().remove(key)),
        }
    }
}

fn file_key(meta: &Metadata) -> FileKey {
    (meta.dev, meta.ino)
}

/// Enters `socket` under `name`, which has to be free; makes the file if it is a path.
pub(super) fn bind(
    stack: &Arc<UnixStack>,
    caller: &Caller<'_>,
    kind: SocketType,
    name: &UnixName,
    socket: &Weak<UnixSocket>,
) -> Result<Binding> {
    match name {
        UnixName::Unnamed => Err(Errno::EINVAL),
        UnixName::Path(text) => {
            let made = ops::create_node(
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
            let key = file_key(&path.metadata());
            let mut table = stack.names.pathname_sockets.lock();
            table.insert(key, socket.clone());
            Ok(Binding {
                stack: stack.clone(),
                key: BindingKey::Path(path),
            })
        }
        UnixName::Abstract(name) => {
            insert_abstract(stack, (kind.as_raw(), name.clone()), socket).ok_or(Errno::EADDRINUSE)
        }
    }
}

fn insert_abstract(
    stack: &Arc<UnixStack>,
    key: AbstractKey,
    socket: &Weak<UnixSocket>,
) -> Option<Binding> {
    let mut table = stack.names.abstract_sockets.lock();
    if table.contains_key(&key) {
        return None;
    }
    table.insert(key.clone(), socket.clone());
    Some(Binding {
        stack: stack.clone(),
        key: BindingKey::Abstract(key),
    })
}

/// Enters `socket` under a free abstract name of five hexadecimal digits.
pub(super) fn autobind(
    stack: &Arc<UnixStack>,
    kind: SocketType,
    socket: &Weak<UnixSocket>,
) -> Result<(Binding, UnixName)> {
    const NAMES: u32 = 1 << 20;
    for _ in 0..NAMES {
        let number = stack.names.next_autobind.fetch_add(1, Ordering::Relaxed) % NAMES;
        let name: Arc<[u8]> = format!("{number:05x}").into_bytes().into();
        if let Some(binding) = insert_abstract(stack, (kind.as_raw(), name.clone()), socket) {
            return Ok((binding, UnixName::Abstract(name)));
        }
    }
    Err(Errno::ENOSPC)
}

impl NameTable {
    /// The number of bound names.
    pub(super) fn len(&self) -> usize {
        self.pathname_sockets.lock().len() + self.abstract_sockets.lock().len()
    }

    /// The socket of this kind bound at `name`, which the caller must be allowed to write.
    pub(super) fn find_socket(
        &self,
        caller: &Caller<'_>,
        kind: SocketType,
        name: &UnixName,
    ) -> Result<Arc<UnixSocket>> {
        let found = match name {
            UnixName::Unnamed => return Err(Errno::EINVAL),
            UnixName::Path(text) => {
                let path = caller.walk.lookup(text, LookupFlags::empty())?;
                let meta = path.metadata();
                let cred = caller.walk.cred;
                cred.check_inode(&**path.inode(), Access::WRITE)?;
                if meta.kind != FileType::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                self.pathname_sockets
                    .lock()
                    .get(&file_key(&meta))
                    .and_then(Weak::upgrade)
            }
            UnixName::Abstract(name) => self
                .abstract_sockets
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
}
