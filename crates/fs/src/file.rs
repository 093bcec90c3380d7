//! Open files.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ::block::CachedRun;
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use linux_raw_sys::general as sys;
use task::{Mutex, Once};
use vm::Page;

use crate::file_ops::{DirectoryOps, RegularFileOps};
pub use crate::flags::OpenFlags;
use crate::ioctl::IoctlRequest;
use crate::poll::{Events, PollObserver, PollTable};
use crate::sigio::FileOwner;
use crate::{
    DirEntry, FileType, Inode, Metadata, Path, Result, WriteAccess, dnotify, inotify, lease, lock,
};

/// Where `lseek(2)` counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The beginning.
    Set,
    /// The present offset.
    Current,
    /// The end.
    End,
    /// The next data at or behind the offset.
    Data,
    /// The next hole at or behind the offset.
    Hole,
}

/// Choice of a call that cannot go on at once: wait or fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// Sleeps until it can.
    Wait,
    /// Fails with `EAGAIN`.
    Fail,
}

impl Blocking {
    /// [`Self::Fail`] if `nonblocking`.
    #[inline]
    #[must_use]
    pub fn unless(nonblocking: bool) -> Self {
        if nonblocking { Self::Fail } else { Self::Wait }
    }

    /// The result of a call that cannot go on: `None`, as it waits, or `EAGAIN`.
    #[inline]
    pub(crate) fn would_block<T>(self) -> Option<Result<T>> {
        match self {
            Self::Wait => None,
            Self::Fail => Some(Err(Errno::EAGAIN)),
        }
    }
}

/// Behaviour of an open file when it is read, written, polled and controlled. Pipes, terminals and
/// devices implement it; files and directories of a file system have one in this module.
///
/// A method may block unless [`File::is_nonblocking`]. A blocking wait that a signal ends returns
/// `ERESTARTSYS` if nothing was transferred. The defaults are the answers of something that cannot
/// do it.
pub trait FileOps: Any + Send + Sync {
    /// Reads at the file's own position. 0 is end of file. `buf` is not empty.
    ///
    /// # Errors
    /// `EAGAIN` instead of blocking; whatever the device says.
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let _ = (file, buf);
        Err(Errno::EINVAL)
    }

    /// Answer to a read of no bytes, which [`Self::read`] is not asked for.
    ///
    /// # Errors
    /// Those of a read that are found before there is anything to read.
    fn read_nothing(&self, file: &File) -> Result<usize> {
        let _ = file;
        Ok(0)
    }

    /// Writes at the file's own position. `EPIPE` makes the system call raise `SIGPIPE`. `buf` may
    /// be empty: that is an error of some devices, and a message to a socket.
    ///
    /// # Errors
    /// `EAGAIN` instead of blocking; whatever the device says.
    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let _ = (file, buf);
        Err(Errno::EINVAL)
    }

    /// Reads at an offset and leaves the position.
    ///
    /// # Errors
    /// `ESPIPE` where there are no offsets.
    fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _ = (file, offset, buf);
        Err(Errno::ESPIPE)
    }

    /// Writes at an offset and leaves the position.
    ///
    /// # Errors
    /// `ESPIPE` where there are no offsets.
    fn write_at(&self, file: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        let _ = (file, offset, buf);
        Err(Errno::ESPIPE)
    }

    /// Reads at an offset or (`None`) at the file's own position, for the caller to copy from the
    /// pages that the file is in; how many bytes of them were read. `None` where it has none, so
    /// that the caller reads into a buffer of its own. `run` is an empty one.
    fn read_run(
        &self,
        file: &File,
        offset: Option<u64>,
        len: usize,
        run: &mut CachedRun,
    ) -> Option<Result<usize>> {
        let _ = (file, offset, len, run);
        None
    }

    /// Reads whole pages into `pages`, which are a program's, at an offset or (`None`) at the
    /// file's own position: what an opening with `O_DIRECT` can do without a copy. `None` where
    /// this one cannot, so that the caller reads into a buffer of its own.
    fn read_pages(
        &self,
        file: &File,
        offset: Option<u64>,
        pages: &[Page],
    ) -> Option<Result<usize>> {
        let _ = (file, offset, pages);
        None
    }

    /// Writes whole pages of a program's, as [`Self::read_pages`] reads them.
    fn write_pages(
        &self,
        file: &File,
        offset: Option<u64>,
        pages: &[Page],
    ) -> Option<Result<usize>> {
        let _ = (file, offset, pages);
        None
    }

    /// Whether [`Self::read_at`] and [`Self::write_at`] are more than errors.
    fn supports_pread(&self) -> bool {
        false
    }

    /// Whether it makes a difference what is written: a device that takes everything need not see
    /// it.
    fn needs_data(&self) -> bool {
        true
    }

    /// Moves the position.
    ///
    /// # Errors
    /// `ESPIPE` where there is none.
    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        let _ = (file, whence, offset);
        Err(Errno::ESPIPE)
    }

    /// Events that the file is ready for now. With a table, names every source the answer depends
    /// on *before* looking.
    fn poll(&self, file: &File, table: Option<&mut PollTable>) -> Events {
        let _ = (file, table);
        Events::READABLE | Events::WRITABLE
    }

    /// Further lines of `/proc/<pid>/fdinfo`.
    fn fdinfo(&self) -> String {
        String::new()
    }

    /// Whether epoll may watch it (ordinary files are always ready, and refused).
    fn is_pollable(&self) -> bool {
        true
    }

    /// Whether a read goes on until the buffer is full or the end is reached, rather than giving
    /// what there is now.
    fn fills_buffers(&self) -> bool {
        !self.is_pollable()
    }

    /// The least bytes of a read or write; a shorter one is `EINVAL`, also one of nothing.
    fn min_transfer(&self) -> usize {
        0
    }

    /// Whether `splice(2)` and `sendfile(2)` may read it.
    fn is_spliceable(&self) -> bool {
        true
    }

    /// Whether what is read stays where the program cannot take it. A counter is taken before that
    /// is known.
    fn keeps_data_on_fault(&self) -> bool {
        true
    }

    /// How much of what is written it looks at: what comes behind need not even be there.
    fn max_write(&self) -> usize {
        usize::MAX
    }

    /// Bytes of the kernel's that are in the file and go with it: for the choice of who ends when
    /// there is no memory.
    fn memory(&self) -> usize {
        0
    }

    /// A device's own operations.
    ///
    /// # Errors
    /// `ENOTTY` for a request it does not know.
    fn ioctl(&self, file: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        let _ = (file, request);
        Err(Errno::ENOTTY)
    }

    /// The pages behind a mapping.
    ///
    /// # Errors
    /// `ENODEV` where there are none.
    fn backing(&self, file: &File) -> Result<Arc<dyn vm::Backing>> {
        let _ = file;
        Err(Errno::ENODEV)
    }

    /// Lists a directory from the position on, until `emit` says no, and moves the position behind
    /// what was taken.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else.
    fn readdir(&self, file: &File, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let _ = (file, emit);
        Err(Errno::ENOTDIR)
    }

    /// Brings everything to the medium.
    ///
    /// # Errors
    /// `EINVAL` where that means nothing.
    fn sync(&self) -> Result<()> {
        Err(Errno::EINVAL)
    }

    /// Writes a range of bytes back, not what the device keeps in its own cache
    /// (`sync_file_range(2)`).
    ///
    /// # Errors
    /// Those of writing back that this opening was not told of.
    fn sync_range(&self, bytes: Range<u64>) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Tells of the last failure to write back a file of its file system that this opening was not
    /// told of (`syncfs(2)`).
    ///
    /// # Errors
    /// That of the failure.
    fn check_file_system_errors(&self) -> Result<()> {
        Ok(())
    }

    /// Called when a descriptor of it is closed by who may have something to give back by that.
    fn flush(&self, file: &File) {
        let _ = file;
    }

    /// Called when the last reference to the open file is gone.
    fn release(&self, file: &File) {
        let _ = file;
    }
}

/// State of a file with `O_ASYNC`.
#[derive(Default)]
struct AsyncState {
    owner: FileOwner,
    fasync: Option<Arc<dyn PollObserver>>,
    /// Events that the directory is watched for (`F_NOTIFY`).
    dnotify: Option<Arc<dnotify::DnotifyMark>>,
}

/// An open file: what descriptors refer to, shared by `dup(2)` and `fork(2)`.
///
/// ```
/// use fs::OpenFlags;
/// use fs::pipe::pipe;
///
/// let (reader, writer) = pipe(OpenFlags::NONBLOCK);
/// assert_eq!(writer.write(b"four"), Ok(4));
/// let mut bytes = [0; 8];
/// assert_eq!(reader.read(&mut bytes), Ok(4));
/// assert_eq!(reader.read(&mut bytes), Err(abi::errno::Errno::EAGAIN));
/// drop(writer);
/// assert_eq!(reader.read(&mut bytes), Ok(0));
/// ```
pub struct File {
    _counted: census::File,
    path: Path,
    ops: Arc<dyn FileOps>,
    /// The operations' answer, which never changes.
    fills_buffers: bool,
    /// Whether reads may be answered at once: the operations allow it, and the file is open for
    /// reading, which does not change either.
    has_fast_read: bool,
    flags: AtomicU32,
    /// The position. Changed by who holds `position_lock`.
    offset: AtomicU64,
    position_lock: Mutex<()>,
    /// Receiver and number of signals, if they were ever set.
    async_state: Mutex<Option<Box<AsyncState>>>,
    /// Whether the file was ever locked with `flock`, or by a record lock; spares the others a
    /// look at the lock table.
    has_locks: AtomicBool,
    /// Whether it ever had a lease.
    has_leases: AtomicBool,
    /// Count as a writer of the file, for as long as it is open.
    _write_access: Option<WriteAccess>,
}

impl File {
    /// An open file at `path` that does what `ops` does.
    #[must_use]
    pub fn new(path: Path, ops: Arc<dyn FileOps>, flags: OpenFlags) -> Arc<Self> {
        Self::with_write_access(path, ops, flags, None)
    }

    /// An open file as of [`Self::new`], and whether it keeps the file from being run.
    #[must_use]
    pub fn with_write_access(
        path: Path,
        ops: Arc<dyn FileOps>,
        flags: OpenFlags,
        writing: Option<WriteAccess>,
    ) -> Arc<Self> {
        let fills_buffers = ops.fills_buffers();
        Self::new_inner(path, ops, fills_buffers, flags, writing)
    }

    #[inline(always)]
    fn new_inner(
        path: Path,
        ops: Arc<dyn FileOps>,
        fills_buffers: bool,
        flags: OpenFlags,
        writing: Option<WriteAccess>,
    ) -> Arc<Self> {
        let flags = flags.difference(OpenFlags::TRANSIENT).bits();
        Arc::new(Self {
            _counted: census::File::default(),
            path,
            ops,
            fills_buffers,
            has_fast_read: fills_buffers && OpenFlags::from_bits_retain(flags).is_readable(),
            flags: AtomicU32::new(flags),
            offset: AtomicU64::new(0),
            position_lock: Mutex::new(()),
            async_state: Mutex::new(None),
            has_locks: AtomicBool::new(false),
            has_leases: AtomicBool::new(false),
            _write_access: writing,
        })
    }

    /// An open file that is in no tree, such as a device's stream; `name` is
    /// what `/proc/<pid>/fd` shows. To programs it looks like a pipe; opening it again
    /// (`/dev/stdin`) shares its operations.
    #[must_use]
    pub fn anonymous(name: &str, ops: Arc<dyn FileOps>, flags: OpenFlags) -> Arc<Self> {
        Self::new_anonymous(name, FileType::Anonymous, ops, flags)
    }

    /// The same for what programs are to take for a pipe. (Node.js throws away what it writes to a
    /// standard stream without a type.)
    #[must_use]
    pub fn anonymous_fifo(name: &str, ops: Arc<dyn FileOps>, flags: OpenFlags) -> Arc<Self> {
        Self::new_anonymous(name, FileType::Fifo, ops, flags)
    }

    fn new_anonymous(
        name: &str,
        kind: FileType,
        ops: Arc<dyn FileOps>,
        flags: OpenFlags,
    ) -> Arc<Self> {
        let again = Arc::downgrade(&ops);
        let path = Path::anonymous(name, kind, 0o600, move |_| {
            again.upgrade().ok_or(Errno::ENXIO)
        });
        Self::new(path, ops, flags)
    }

    /// An open regular file or directory with the ordinary operations, and whether it keeps the
    /// file from being run.
    #[must_use]
    pub fn from_inode(path: Path, flags: OpenFlags, writing: Option<WriteAccess>) -> Arc<Self> {
        // Neither has anything of its own, so there is one of each.
        static DIRECTORY: Once<Arc<dyn FileOps>> = Once::new();
        static REGULAR: Once<Arc<dyn FileOps>> = Once::new();
        let (ops, fills_buffers) = match path.dentry().kind() {
            FileType::Directory => (
                DIRECTORY.call_once(|| Arc::new(DirectoryOps)),
                DirectoryOps.fills_buffers(),
            ),
            _ => (
                REGULAR.call_once(|| Arc::new(RegularFileOps)),
                RegularFileOps.fills_buffers(),
            ),
        };
        Self::new_inner(path, ops.clone(), fills_buffers, flags, writing)
    }

    /// Where in the tree it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file itself.
    #[must_use]
    pub fn inode(&self) -> &Arc<dyn Inode> {
        self.path.inode()
    }

    /// The operations of the file. Downcast through `Any` to find out what it is.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn FileOps> {
        &self.ops
    }

    /// The operations as the type `T`, if that is what they are.
    #[must_use]
    pub fn ops_as<T: FileOps>(&self) -> Option<&T> {
        (&*self.ops as &dyn Any).downcast_ref()
    }

    /// The flags `fcntl(F_GETFL)` shows.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Whether a read goes on until the buffer is full ([`FileOps::fills_buffers`]).
    #[inline]
    #[must_use]
    pub fn fills_buffers(&self) -> bool {
        self.fills_buffers
    }

    /// Changes the flags that may change ([`OpenFlags::SETTABLE`]), as `fcntl(F_SETFL)` does.
    pub fn set_flags(&self, flags: OpenFlags) {
        let keep = self.flags() - OpenFlags::SETTABLE;
        self.flags.store(
            (keep | (flags & OpenFlags::SETTABLE)).bits(),
            Ordering::Relaxed,
        );
    }

    /// Adds flags to those that `fcntl(F_GETFL)` shows, also such as only concern the call that
    /// opens: a message queue shows them.
    pub fn add_status_flags(&self, flags: OpenFlags) {
        self.flags.fetch_or(flags.bits(), Ordering::Relaxed);
    }

    /// Whether a call returns `EAGAIN` instead of blocking.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.flags().contains(OpenFlags::NONBLOCK)
    }

    /// The same as a mode of a call.
    #[inline]
    #[must_use]
    pub fn blocking(&self) -> Blocking {
        Blocking::unless(self.is_nonblocking())
    }

    /// Receiver and number of the signals of `O_ASYNC`.
    #[must_use]
    pub fn owner(&self) -> FileOwner {
        self.async_state
            .lock()
            .as_ref()
            .map_or_else(FileOwner::default, |state| state.owner)
    }

    /// Changes receiver and number of the signals of `O_ASYNC`.
    pub fn update_owner(&self, change: impl FnOnce(&mut FileOwner)) {
        change(&mut self.async_state.lock().get_or_insert_default().owner);
    }

    pub(crate) fn set_fasync(&self, fasync: Option<Arc<dyn PollObserver>>) {
        let old = match (&mut *self.async_state.lock(), fasync) {
            (None, None) => None,
            (state, fasync) => {
                core::mem::replace(&mut state.get_or_insert_default().fasync, fasync)
            }
        };
        drop(old);
    }

    pub(crate) fn dnotify_mark(&self) -> Option<Arc<dnotify::DnotifyMark>> {
        self.async_state
            .lock()
            .as_ref()
            .and_then(|state| state.dnotify.clone())
    }

    pub(crate) fn set_dnotify_mark(&self, mark: Option<Arc<dnotify::DnotifyMark>>) {
        let old = core::mem::replace(
            &mut self.async_state.lock().get_or_insert_default().dnotify,
            mark,
        );
        drop(old);
    }

    /// Metadata, as `fstat(2)` shows them.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        self.inode().metadata()
    }

    pub(crate) fn set_has_leases(&self) {
        self.has_leases.store(true, Ordering::Relaxed);
    }

    pub(crate) fn set_has_locks(&self) {
        self.has_locks.store(true, Ordering::Relaxed);
    }

    /// Tells who watches the file of a transfer.
    fn notify_transfer(&self, transferred: &Result<usize>, what: u32) {
        if inotify::has_marks() && transferred.is_ok_and(|n| n > 0) {
            inotify::notify_dentry(self.path.dentry(), what);
        }
    }

    /// The file was read: that shows in its access time, unless the open file or the mount says
    /// otherwise.
    pub fn file_accessed(&self) {
        let mount = self.path.mount();
        let flags = mount.flags();
        let mut unnoticed = flags & sys::MS_NOATIME != 0
            || self.flags().contains(OpenFlags::NOATIME)
            || mount.is_read_only();
        if flags & sys::MS_NODIRATIME != 0 {
            unnoticed |= self.path.dentry().kind() == FileType::Directory;
        }
        if !unnoticed {
            self.inode().touch_atime(flags & sys::MS_RELATIME == 0);
        }
    }

    fn require(&self, granted: bool) -> Result<()> {
        if granted { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Reads at the file's position. An empty buffer reads nothing.
    ///
    /// # Errors
    /// `EBADF` if not open for reading, else what the file says.
    #[inline]
    pub fn read(&self, buf: &mut [u8]) -> Result<usize> {
        self.require(self.flags().is_readable())?;
        if buf.is_empty() {
            return self.ops.read_nothing(self);
        }
        self.read_some(buf)
    }

    /// Tells who watches the file of a read that was done otherwise than by [`Self::read`].
    pub fn note_read(&self, result: &Result<usize>) {
        self.notify_transfer(result, sys::IN_ACCESS);
    }

    /// Reads without waiting, as [`Self::read`], if the file is open for reading, and what there is
    /// to read is not taken from anybody by that; `None` if not. `buf` is not empty.
    #[inline(always)]
    pub fn read_fast(&self, buf: &mut [u8]) -> Option<Result<usize>> {
        self.has_fast_read.then(|| self.read_some(buf))
    }

    #[inline(always)]
    fn read_some(&self, buf: &mut [u8]) -> Result<usize> {
        let result = self.ops.read(self, buf);
        self.notify_transfer(&result, sys::IN_ACCESS);
        result
    }

    /// Writes at the file's position. What an empty buffer means is the file's to say.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, else what the file says.
    pub fn write(&self, buf: &[u8]) -> Result<usize> {
        self.require(self.flags().is_writable())?;
        let result = self.ops.write(self, buf);
        self.notify_transfer(&result, sys::IN_MODIFY);
        result
    }

    /// Reads at an offset.
    ///
    /// # Errors
    /// As [`File::read`]; `ESPIPE` where there are no offsets.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.require(self.flags().is_readable())?;
        let result = self.ops.read_at(self, offset, buf);
        self.notify_transfer(&result, sys::IN_ACCESS);
        result
    }

    /// Writes at an offset (behind the end if opened with `O_APPEND`, as Linux does).
    ///
    /// # Errors
    /// As [`File::write`]; `ESPIPE` where there are no offsets.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.require(self.flags().is_writable())?;
        let result = self.ops.write_at(self, offset, buf);
        self.notify_transfer(&result, sys::IN_MODIFY);
        result
    }

    /// Reads for the caller to copy from the file's pages ([`FileOps::read_run`]).
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_run(
        &self,
        offset: Option<u64>,
        len: usize,
        run: &mut CachedRun,
    ) -> Option<Result<usize>> {
        if let Err(error) = self.require(self.flags().is_readable()) {
            return Some(Err(error));
        }
        let result = self.ops.read_run(self, offset, len, run)?;
        self.notify_transfer(&result, sys::IN_ACCESS);
        Some(result)
    }

    /// Reads into pages of a program's ([`FileOps::read_pages`]).
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_pages(&self, offset: Option<u64>, pages: &[Page]) -> Option<Result<usize>> {
        if let Err(error) = self.require(self.flags().is_readable()) {
            return Some(Err(error));
        }
        let result = self.ops.read_pages(self, offset, pages)?;
        self.notify_transfer(&result, sys::IN_ACCESS);
        Some(result)
    }

    /// Writes pages of a program's ([`FileOps::write_pages`]).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_pages(&self, offset: Option<u64>, pages: &[Page]) -> Option<Result<usize>> {
        if let Err(error) = self.require(self.flags().is_writable()) {
            return Some(Err(error));
        }
        let result = self.ops.write_pages(self, offset, pages)?;
        self.notify_transfer(&result, sys::IN_MODIFY);
        Some(result)
    }

    /// Runs a transfer of whole pages from a page on, if it begins with one: at `offset`, or
    /// (`None`) at the position, which it moves.
    pub(crate) fn transfer_pages(
        &self,
        offset: Option<u64>,
        transfer: impl FnOnce(u64) -> Option<Result<usize>>,
    ) -> Option<Result<usize>> {
        const PAGE: u64 = PAGE_SIZE as u64;
        self.transfer_at(offset, |at| {
            let first = at.is_multiple_of(PAGE).then_some(at / PAGE)?;
            transfer(first)
        })
    }

    /// Runs a transfer at `offset`, or (`None`) at the position, which it moves.
    pub(crate) fn transfer_at(
        &self,
        offset: Option<u64>,
        transfer: impl FnOnce(u64) -> Option<Result<usize>>,
    ) -> Option<Result<usize>> {
        let Some(offset) = offset else {
            return self.with_offset(|at| {
                let result = transfer(*at)?;
                *at += *result.as_ref().unwrap_or(&0) as u64;
                Some(result)
            });
        };
        transfer(offset)
    }

    /// Writes behind the end (`RWF_APPEND`), and moves the position there if asked. What has no end
    /// is written as ever.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn append(&self, buf: &[u8], moves: bool) -> Result<usize> {
        self.require(self.flags().is_writable())?;
        if self.inode().kind() != FileType::Regular {
            return self.write(buf);
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let (at, n) = self.inode().append(buf)?;
        inotify::notify_dentry(self.path.dentry(), sys::IN_MODIFY);
        if moves {
            self.with_offset(|offset| *offset = at + n as u64);
        }
        Ok(n)
    }

    /// Moves the position and returns it.
    ///
    /// # Errors
    /// `EINVAL` for a negative result, `ENXIO` for `Data`/`Hole` behind the end, `ESPIPE` where
    /// there is no position.
    pub fn seek(&self, whence: Whence, offset: i64) -> Result<u64> {
        self.ops.seek(self, whence, offset)
    }

    /// Events that the file is ready for; see [`FileOps::poll`].
    #[must_use]
    pub fn poll(&self, table: Option<&mut PollTable>) -> Events {
        self.ops.poll(self, table)
    }

    /// A descriptor of it is closed by who may have something to give back by that.
    pub fn flush(&self) {
        self.ops.flush(self);
    }

    /// A device's own operations.
    ///
    /// # Errors
    /// `ENOTTY` for a request the file does not know.
    pub fn ioctl(&self, request: &IoctlRequest<'_>) -> Result<usize> {
        self.ops.ioctl(self, request)
    }

    /// The pages behind a mapping of the file.
    ///
    /// # Errors
    /// `ENODEV` where there are none.
    pub fn backing(&self) -> Result<Arc<dyn vm::Backing>> {
        self.ops.backing(self)
    }

    /// Lists a directory; see [`FileOps::readdir`].
    ///
    /// # Errors
    /// `ENOTDIR` for anything else.
    pub fn readdir(&self, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.ops.readdir(self, emit)?;
        inotify::notify_dentry(self.path.dentry(), sys::IN_ACCESS);
        Ok(())
    }

    /// Runs `f` on the position, alone: calls that use and move it wait for each other.
    pub fn with_offset<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        let _alone = self.position_lock.lock();
        let mut offset = self.offset.load(Ordering::Relaxed);
        let result = f(&mut offset);
        self.offset.store(offset, Ordering::Relaxed);
        result
    }

    /// The position that the last call left, without waiting for one that is under way: which may
    /// be the one that asks.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.has_locks.load(Ordering::Relaxed) {
            lock::release_flock(self);
        }
        if self.has_leases.load(Ordering::Relaxed) {
            lease::release(self);
        }
        self.ops.release(self);
        let flags = self.flags();
        if !flags.contains(OpenFlags::PATH) {
            let event = if flags.is_writable() {
                sys::IN_CLOSE_WRITE
            } else {
                sys::IN_CLOSE_NOWRITE
            };
            inotify::notify_dentry(self.path.dentry(), event);
        }
    }
}
