//! Watching files and directories for changes: `inotify(7)`.
//!
//! A mark joins a file to a group, which is what a descriptor of `inotify_init(2)` refers to. Marks
//! are kept by the file's address, and hold the file, so the address stays its own. Whatever
//! changes a file reports it here afterwards, through one of the `notify_*` functions; while there
//! are no marks that costs one load.
//!
//! Locks: the table of marks, then a group's queue; both are innermost, and no thread is woken with
//! either held.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::Mutex;

use crate::charge::{self, Charge, Resource};
use crate::file::{FileOps, OpenFlags, Whence};
use crate::ioctl::IoctlRequest;
use crate::poll::{Events, PollQueue, PollTable};
use crate::{Dentry, DeviceId, File, FileType, Inode, Path, Result};

/// Events that a group queues at most (`/proc/sys/fs/inotify/max_queued_events`); further ones are
/// dropped and reported as `IN_Q_OVERFLOW`.
pub static MAX_QUEUED_EVENTS: AtomicUsize = AtomicUsize::new(16_384);
/// Bytes of `struct inotify_event` without its name; names are padded to a multiple of it.
const EVENT_HEADER_SIZE: usize = 16;

/// Event of our own, for `F_NOTIFY`: a name was changed within the directory.
pub(crate) const DN_RENAME: u32 = 1 << 27;
/// Events that are reported whatever the mask.
const UNMASKABLE_EVENTS: u32 = sys::IN_UNMOUNT | sys::IN_IGNORED | sys::IN_Q_OVERFLOW;

/// A watch: joins an inode to the group that is notified (Linux `fsnotify_mark`).
struct Mark {
    _counted: census::Watch,
    _charge: Option<Charge>,
    group: Weak<Inotify>,
    wd: i32,
    inode: Arc<dyn Inode>,
    mask: AtomicU32,
    /// The mark is removed: nothing more is reported.
    detached: AtomicBool,
}

/// Marks by inode address ([`inode_address`]); inodes without marks have no entry.
static MARKS: Mutex<BTreeMap<usize, Vec<Arc<Mark>>>> = Mutex::new(BTreeMap::new());
/// Number of all marks.
static MARK_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any marks.
#[inline]
pub(crate) fn has_marks() -> bool {
    MARK_COUNT.load(Ordering::Relaxed) != 0
}

/// Number of inodes that have marks.
pub(crate) fn marked_inode_count() -> u64 {
    MARKS.lock().len() as u64
}

/// Address of an inode: the key of its marks, which hold it.
fn inode_address(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>().addr()
}

fn marks(inode: &Arc<dyn Inode>) -> Vec<Arc<Mark>> {
    MARKS
        .lock()
        .get(&inode_address(inode))
        .cloned()
        .unwrap_or_default()
}

#[derive(Clone, PartialEq, Eq)]
struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: Box<[u8]>,
}

impl Event {
    /// Bytes that the name takes in an event: with a NUL, padded; 0 without a name.
    fn name_len(&self) -> usize {
        if self.name.is_empty() {
            0
        } else {
            (self.name.len() + 1).next_multiple_of(EVENT_HEADER_SIZE)
        }
    }
}

#[derive(Default)]
struct State {
    /// The group's marks by descriptor.
    marks: BTreeMap<i32, Arc<Mark>>,
    last_wd: i32,
    queue: VecDeque<Event>,
}

/// An inotify instance: its marks and the events they queued (Linux `fsnotify_group`).
pub struct Inotify {
    _counted: census::Inotify,
    state: Mutex<State>,
    readable: PollQueue,
    /// The user who made it, and is charged for it and its watches; none for the kernel's own.
    charge: Option<Charge>,
    /// Events it queues at most, as was set when it was made.
    max_events: usize,
    this: Weak<Inotify>,
}

/// Operations of an open inotify file.
pub struct InotifyFile(Arc<Inotify>);

impl InotifyFile {
    /// The inotify instance behind the file.
    #[must_use]
    pub fn group(&self) -> &Arc<Inotify> {
        &self.0
    }
}

/// A new inotify instance as [`inotify`] makes it, for which `user` is charged.
///
/// # Errors
/// `EMFILE` if he has as many as there may be.
pub fn inotify_for(user: u32, flags: OpenFlags) -> Result<Arc<File>> {
    let most = charge::MAX_USER_INSTANCES.get();
    let charge = Charge::new(user, Resource::InotifyInstances, 1, most).ok_or(Errno::EMFILE)?;
    Ok(instance(Some(charge), flags))
}

/// A new inotify instance without marks, as an open file. `flags` may hold `O_NONBLOCK`.
#[must_use]
pub fn inotify(flags: OpenFlags) -> Arc<File> {
    instance(None, flags)
}

fn instance(charge: Option<Charge>, flags: OpenFlags) -> Arc<File> {
    let group = Arc::new_cyclic(|this| Inotify {
        _counted: census::Inotify::default(),
        state: Mutex::default(),
        readable: PollQueue::new(),
        charge,
        max_events: MAX_QUEUED_EVENTS.load(Ordering::Relaxed),
        this: this.clone(),
    });
    File::anonymous(
        "anon_inode:inotify",
        Arc::new(InotifyFile(group)),
        flags | OpenFlags::RDONLY,
    )
}

/// Checks that a mask has an event or flag of `inotify_add_watch(2)`, and no unknown bit.
///
/// # Errors
/// `EINVAL` if not.
pub fn check_mask(mask: u32) -> Result<()> {
    const KNOWN: u32 = sys::IN_ALL_EVENTS
        | UNMASKABLE_EVENTS
        | sys::IN_ISDIR
        | sys::IN_ONLYDIR
        | sys::IN_DONT_FOLLOW
        | sys::IN_EXCL_UNLINK
        | sys::IN_MASK_ADD
        | sys::IN_MASK_CREATE
        | sys::IN_ONESHOT;
    if mask & !KNOWN != 0 || mask & KNOWN == 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

impl Inotify {
    /// Adds a watch of `inode`, or changes its mask (`inotify_add_watch(2)`); the caller has
    /// checked `mask` by [`check_mask`]. Returns the watch descriptor.
    ///
    /// # Errors
    /// `EEXIST` with `IN_MASK_CREATE`, `ENOSPC` if the user has as many as there may be, `ENOMEM`.
    pub fn add(&self, inode: &Arc<dyn Inode>, mask: u32) -> Result<i32> {
        let kept = mask & (sys::IN_ALL_EVENTS | sys::IN_EXCL_UNLINK | sys::IN_ONESHOT | DN_RENAME);
        let mut table = MARKS.lock();
        let of_file = table.entry(inode_address(inode)).or_default();
        let own = of_file
            .iter()
            .find(|m| m.group.as_ptr() == self.this.as_ptr());
        if let Some(mark) = own {
            if mask & sys::IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            if mask & sys::IN_MASK_ADD != 0 {
                mark.mask.fetch_or(kept, Ordering::Relaxed);
            } else {
                mark.mask.store(kept, Ordering::Relaxed);
            }
            return Ok(mark.wd);
        }
        // Many may watch one file.
        if !vm::has_kernel_room() || of_file.try_reserve(1).is_err() {
            if of_file.is_empty() {
                table.remove(&inode_address(inode));
            }
            return Err(Errno::ENOMEM);
        }
        let charge = match &self.charge {
            None => None,
            Some(own) => {
                let most = charge::MAX_INOTIFY_WATCHES.get();
                let charge = Charge::new(own.user(), Resource::InotifyWatches, 1, most);
                if charge.is_none() {
                    if of_file.is_empty() {
                        table.remove(&inode_address(inode));
                    }
                    return Err(Errno::ENOSPC);
                }
                charge
            }
        };
        let mut state = self.state.lock();
        state.last_wd += 1;
        let mark = Arc::new(Mark {
            _counted: census::Watch::default(),
            _charge: charge,
            group: self.this.clone(),
            wd: state.last_wd,
            inode: inode.clone(),
            mask: AtomicU32::new(kept),
            detached: AtomicBool::new(false),
        });
        state.marks.insert(mark.wd, mark.clone());
        MARK_COUNT.fetch_add(1, Ordering::Relaxed);
        let wd = mark.wd;
        of_file.push(mark);
        Ok(wd)
    }

    /// Removes a watch (`inotify_rm_watch(2)`); `IN_IGNORED` is the last of its events.
    ///
    /// # Errors
    /// `EINVAL` if there is none with this descriptor.
    pub fn remove(&self, wd: i32) -> Result<()> {
        let mark = self
            .state
            .lock()
            .marks
            .get(&wd)
            .cloned()
            .ok_or(Errno::EINVAL)?;
        destroy_mark(&mark, sys::IN_IGNORED);
        Ok(())
    }

    /// Queues an event, unless it is the same as the last one.
    fn queue_event(&self, event: Event) {
        {
            let mut state = self.state.lock();
            if state.queue.back() == Some(&event) {
                return;
            }
            // With a place for what says that events are lost.
            if state.queue.len() >= self.max_events
                || !vm::has_kernel_room()
                || state.queue.try_reserve(2).is_err()
            {
                let overflow = Event {
                    wd: -1,
                    mask: sys::IN_Q_OVERFLOW,
                    cookie: 0,
                    name: Box::default(),
                };
                if state.queue.back() == Some(&overflow) || state.queue.try_reserve(1).is_err() {
                    return;
                }
                state.queue.push_back(overflow);
            } else {
                state.queue.push_back(event);
            }
        }
        self.readable.notify_events(Events::READABLE);
    }

    /// Discards the queued events; returns how many there were, `IN_IGNORED` not counted.
    pub(crate) fn discard_events(&self) -> usize {
        let events = core::mem::take(&mut self.state.lock().queue);
        events
            .iter()
            .filter(|event| event.mask & sys::IN_IGNORED == 0)
            .count()
    }

    /// Moves as many queued events as fit into `buf`, as `read(2)` does. `None`: none is queued.
    fn read_events(&self, buf: &mut [u8]) -> Option<Result<usize>> {
        let mut state = self.state.lock();
        let mut done = 0;
        while let Some(event) = state.queue.front() {
            let len = EVENT_HEADER_SIZE + event.name_len();
            let Some(to) = buf.get_mut(done..done + len) else {
                return Some(if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::EINVAL)
                });
            };
            to.fill(0);
            to[..4].copy_from_slice(&event.wd.to_ne_bytes());
            to[4..8].copy_from_slice(&event.mask.to_ne_bytes());
            to[8..12].copy_from_slice(&event.cookie.to_ne_bytes());
            to[12..16].copy_from_slice(&(event.name_len() as u32).to_ne_bytes());
            to[EVENT_HEADER_SIZE..][..event.name.len()].copy_from_slice(&event.name);
            done += len;
            state.queue.pop_front();
        }
        (done > 0).then_some(Ok(done))
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        let marks = core::mem::take(&mut self.state.get_mut().marks);
        for mark in marks.into_values() {
            detach_mark(&mark);
        }
    }
}

impl FileOps for InotifyFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        match self.0.read_events(buf) {
            Some(result) => result,
            None if file.is_nonblocking() => Err(Errno::EAGAIN),
            None => self.0.readable.wait(|| self.0.read_events(buf))?,
        }
    }

    /// Waits for an event, as any read, and then has no room for it.
    fn read_nothing(&self, file: &File) -> Result<usize> {
        self.read(file, &mut [])
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.0.readable);
        }
        if self.0.state.lock().queue.is_empty() {
            Events::empty()
        } else {
            Events::READABLE
        }
    }

    fn fdinfo(&self) -> String {
        let marks: Vec<Arc<Mark>> = self.0.state.lock().marks.values().cloned().collect();
        marks.iter().fold(String::new(), |text, mark| {
            let meta = mark.inode.metadata();
            // As the kernel has it, not as `st_dev`.
            let dev = DeviceId::decode(meta.dev);
            text + &format!(
                "inotify wd:{:x} ino:{:x} sdev:{:x} mask:{:x} ignored_mask:0 \n",
                mark.wd,
                meta.ino,
                dev.major << 20 | dev.minor,
                mark.mask.load(Ordering::Relaxed) & !DN_RENAME
            )
        })
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        if request.command != linux_raw_sys::ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let bytes: usize = self
            .0
            .state
            .lock()
            .queue
            .iter()
            .map(|e| EVENT_HEADER_SIZE + e.name_len())
            .sum();
        request.write(&i32::try_from(bytes).unwrap_or(i32::MAX))?;
        Ok(0)
    }

    /// Zero: the position of an inotify file does not move.
    fn seek(&self, _: &File, _: Whence, _: i64) -> Result<u64> {
        Ok(0)
    }
}

/// Takes a mark out of the table. False: it was out already.
fn detach_mark(mark: &Arc<Mark>) -> bool {
    if mark.detached.swap(true, Ordering::AcqRel) {
        return false;
    }
    let mut table = MARKS.lock();
    let key = inode_address(&mark.inode);
    if let Some(of_file) = table.get_mut(&key) {
        of_file.retain(|m| !Arc::ptr_eq(m, mark));
        if of_file.is_empty() {
            table.remove(&key);
        }
    }
    census::released(MARK_COUNT.fetch_sub(1, Ordering::Relaxed), 1);
    true
}

/// Removes a mark and queues `last` as its last event.
fn destroy_mark(mark: &Arc<Mark>, last: u32) {
    if !detach_mark(mark) {
        return;
    }
    if let Some(group) = mark.group.upgrade() {
        let own = group.state.lock().marks.remove(&mark.wd);
        drop(own);
        group.queue_event(Event {
            wd: mark.wd,
            mask: last,
            cookie: 0,
            name: Box::default(),
        });
    }
}

/// Queues an event for the marks of one inode whose mask has it (Linux `fsnotify`).
fn notify_marks(inode: &Arc<dyn Inode>, mask: u32, name: &[u8], cookie: u32) {
    notify_marks_without(inode, mask, name, cookie, 0);
}

/// Queues an event as [`notify_marks`], but not for marks that have a flag of `without`.
fn notify_marks_without(inode: &Arc<dyn Inode>, mask: u32, name: &[u8], cookie: u32, without: u32) {
    for mark in marks(inode) {
        let wanted = mark.mask.load(Ordering::Relaxed);
        if mask & (wanted | UNMASKABLE_EVENTS) & !sys::IN_ISDIR == 0
            || mark.detached.load(Ordering::Acquire)
        {
            continue;
        }
        if wanted & without != 0 {
            continue;
        }
        if let Some(group) = mark.group.upgrade() {
            group.queue_event(Event {
                wd: mark.wd,
                mask,
                cookie,
                name: name.into(),
            });
        }
        if wanted & sys::IN_ONESHOT != 0 {
            destroy_mark(&mark, sys::IN_IGNORED);
        }
    }
}

/// `mask`, with `IN_ISDIR` for a directory.
fn with_isdir(mask: u32, kind: FileType) -> u32 {
    if kind == FileType::Directory {
        mask | sys::IN_ISDIR
    } else {
        mask
    }
}

/// Notifies the marks of the file that `dentry` names, and those of the directory it is in (Linux
/// `fsnotify_dentry`).
pub(crate) fn notify_dentry(dentry: &Arc<Dentry>, mask: u32) {
    if has_marks() {
        notify_with_parent(dentry, mask);
    }
}

/// Notifies the marks of the file at `path`, and those of the directory it is in (Linux
/// `fsnotify_path`).
pub fn notify_path(path: &Path, mask: u32) {
    notify_dentry(path.dentry(), mask);
}

#[cold]
fn notify_with_parent(dentry: &Arc<Dentry>, mask: u32) {
    let mask = with_isdir(mask, dentry.kind());
    let location = dentry.location();
    if let Some(parent) = &location.parent {
        let without = match location.removed {
            true => sys::IN_EXCL_UNLINK,
            false => 0,
        };
        notify_marks_without(parent.inode(), mask, &location.name, 0, without);
    }
    notify_marks(dentry.inode(), mask, b"", 0);
}

/// Notifies the marks of a directory that an entry was created (`IN_CREATE`) or removed
/// (`IN_DELETE`).
pub(crate) fn notify_dir_entry(dir: &Arc<dyn Inode>, mask: u32, name: &[u8], kind: FileType) {
    if has_marks() {
        notify_marks(dir, with_isdir(mask, kind), name, 0);
    }
}

/// Notifies the marks of a file that its number of links changed (`IN_ATTRIB`).
pub(crate) fn notify_link_count(inode: &Arc<dyn Inode>) {
    if has_marks() {
        notify_marks(inode, with_isdir(sys::IN_ATTRIB, inode.kind()), b"", 0);
    }
}

/// Notifies the marks of both directories and of the file that a name was moved.
pub(crate) fn notify_move(
    inode: &Arc<dyn Inode>,
    from: (&Arc<dyn Inode>, &[u8]),
    to: (&Arc<dyn Inode>, &[u8]),
) {
    /// Connects `IN_MOVED_FROM` and `IN_MOVED_TO` of one rename.
    static COOKIE: AtomicU32 = AtomicU32::new(1);
    if !has_marks() {
        return;
    }
    let cookie = COOKIE.fetch_add(1, Ordering::Relaxed);
    let kind = inode.kind();
    notify_marks(from.0, with_isdir(sys::IN_MOVED_FROM, kind), from.1, cookie);
    notify_marks(to.0, with_isdir(sys::IN_MOVED_TO, kind), to.1, cookie);
    if inode_address(from.0) == inode_address(to.0) {
        notify_marks(from.0, DN_RENAME, to.1, 0);
    }
    // What happens to a watched file itself is told without its kind, as on Linux.
    notify_marks(inode, sys::IN_MOVE_SELF, b"", 0);
}

/// Notifies of the deletion of a file (`IN_DELETE_SELF`) and removes its marks, if the dentry that
/// was released was its last name.
pub(crate) fn notify_delete_self(inode: &Arc<dyn Inode>) {
    if !has_marks() {
        return;
    }
    let marks = marks(inode);
    if marks.is_empty() || inode.metadata().nlink != 0 {
        return;
    }
    notify_marks(inode, sys::IN_DELETE_SELF, b"", 0);
    marks
        .iter()
        .for_each(|mark| destroy_mark(mark, sys::IN_IGNORED));
}

/// Notifies of the unmounting of a file system, by its device number (`IN_UNMOUNT`), and removes
/// its marks.
pub(crate) fn notify_unmount(dev: u64) {
    if !has_marks() {
        return;
    }
    let all: Vec<Arc<Mark>> = MARKS.lock().values().flatten().cloned().collect();
    for mark in all.iter().filter(|m| m.inode.metadata().dev == dev) {
        notify_marks(&mark.inode, sys::IN_UNMOUNT, b"", 0);
        destroy_mark(mark, sys::IN_IGNORED);
    }
}
