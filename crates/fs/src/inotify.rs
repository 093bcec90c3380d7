//! Watching files and directories for changes: `inotify(7)`.
//!
//! A mark joins a file to a group, which is what a descriptor of `inotify_init(2)` refers to. Marks
//! are kept by the file's address, and hold the file, so the address stays its own. Whatever
//! changes a file reports it here afterwards, through one of the functions at the end; while nobody
//! watches anything that costs one load.
//!
//! Locks: the table of marks, then a group's queue; both are innermost, and nobody is woken with
//! either held.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::Mutex;

use crate::file::{FileOps, OpenFlags, Whence};
use crate::ioctl::IoctlRequest;
use crate::poll::{Events, PollQueue, PollTable};
use crate::{Dentry, File, FileType, Inode, Path, Result};

/// How many events a group keeps; then it says that some are lost (`IN_Q_OVERFLOW`).
pub const MAX_QUEUED: usize = 16_384;
/// How many marks there may be in all.
pub const MAX_WATCHES: usize = 65_536;
/// The size of an event without its name, and what names are padded to.
const HEADER: usize = 16;

/// An event that is sent whether asked for or not.
const ALWAYS: u32 = sys::IN_UNMOUNT | sys::IN_IGNORED | sys::IN_Q_OVERFLOW;

struct Mark {
    _counted: census::Watch,
    group: Weak<Inotify>,
    wd: i32,
    inode: Arc<dyn Inode>,
    mask: AtomicU32,
    /// Taken away: nothing more is reported.
    removed: AtomicBool,
}

/// The marks of each file that has some.
static MARKS: Mutex<BTreeMap<usize, Vec<Arc<Mark>>>> = Mutex::new(BTreeMap::new());
/// How many marks there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether anybody watches anything.
#[inline]
pub(crate) fn anybody() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// How many files have marks.
pub(crate) fn watched_files() -> u64 {
    MARKS.lock().len() as u64
}

fn key(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>().addr()
}

fn marks(inode: &Arc<dyn Inode>) -> Vec<Arc<Mark>> {
    MARKS.lock().get(&key(inode)).cloned().unwrap_or_default()
}

#[derive(Clone, PartialEq, Eq)]
struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: Box<[u8]>,
}

impl Event {
    /// How many bytes the name takes: with a NUL, to a multiple of the header's size; none without
    /// a name.
    fn name_len(&self) -> usize {
        if self.name.is_empty() {
            0
        } else {
            (self.name.len() + 1).next_multiple_of(HEADER)
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

/// A group of marks and the events they gave.
pub struct Inotify {
    _counted: census::Inotify,
    state: Mutex<State>,
    readable: PollQueue,
    this: Weak<Inotify>,
}

/// An opening of a group.
pub struct InotifyFile(Arc<Inotify>);

impl InotifyFile {
    /// The group.
    #[must_use]
    pub fn group(&self) -> &Arc<Inotify> {
        &self.0
    }
}

/// A new group without marks. `flags` may hold `O_NONBLOCK`.
#[must_use]
pub fn inotify(flags: OpenFlags) -> Arc<File> {
    let group = Arc::new_cyclic(|this| Inotify {
        _counted: census::Inotify::default(),
        state: Mutex::default(),
        readable: PollQueue::new(),
        this: this.clone(),
    });
    File::anonymous(
        "anon_inode:inotify",
        Arc::new(InotifyFile(group)),
        flags | OpenFlags::RDONLY,
    )
}

/// Whether a mask has an event, and nothing that means nothing.
///
/// # Errors
/// `EINVAL` if not.
pub fn check_mask(mask: u32) -> Result<()> {
    const KNOWN: u32 = sys::IN_ALL_EVENTS
        | ALWAYS
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
    /// Watches `inode` for what `mask`, which [`check_mask`] has seen, says
    /// (`inotify_add_watch(2)`), or changes what it is watched for. Returns the descriptor.
    ///
    /// # Errors
    /// `EEXIST` with `IN_MASK_CREATE`, `ENOSPC` beyond [`MAX_WATCHES`].
    pub fn add(&self, inode: &Arc<dyn Inode>, mask: u32) -> Result<i32> {
        let kept = mask & (sys::IN_ALL_EVENTS | sys::IN_EXCL_UNLINK | sys::IN_ONESHOT);
        let mut table = MARKS.lock();
        let of_file = table.entry(key(inode)).or_default();
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
        if COUNT.load(Ordering::Relaxed) >= MAX_WATCHES {
            if of_file.is_empty() {
                table.remove(&key(inode));
            }
            return Err(Errno::ENOSPC);
        }
        let mut state = self.state.lock();
        state.last_wd += 1;
        let mark = Arc::new(Mark {
            _counted: census::Watch::default(),
            group: self.this.clone(),
            wd: state.last_wd,
            inode: inode.clone(),
            mask: AtomicU32::new(kept),
            removed: AtomicBool::new(false),
        });
        state.marks.insert(mark.wd, mark.clone());
        COUNT.fetch_add(1, Ordering::Relaxed);
        let wd = mark.wd;
        of_file.push(mark);
        Ok(wd)
    }

    /// Ends a watch (`inotify_rm_watch(2)`); `IN_IGNORED` is the last of its events.
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
        forget(&mark, sys::IN_IGNORED);
        Ok(())
    }

    /// Queues an event. One that says the same as the last is not told twice.
    fn push(&self, event: Event) {
        {
            let mut state = self.state.lock();
            if state.queue.back() == Some(&event) {
                return;
            }
            if state.queue.len() >= MAX_QUEUED {
                let overflow = Event {
                    wd: -1,
                    mask: sys::IN_Q_OVERFLOW,
                    cookie: 0,
                    name: Box::default(),
                };
                if state.queue.back() == Some(&overflow) {
                    return;
                }
                state.queue.push_back(overflow);
            } else {
                state.queue.push_back(event);
            }
        }
        self.readable.notify_events(Events::READABLE);
    }

    /// Throws the events away, and says how many there were, of marks that go on.
    pub(crate) fn drain(&self) -> usize {
        let events = core::mem::take(&mut self.state.lock().queue);
        events
            .iter()
            .filter(|event| event.mask & sys::IN_IGNORED == 0)
            .count()
    }

    /// Takes as many events as fit, in the form of `read(2)`.
    fn take(&self, buf: &mut [u8]) -> Option<Result<usize>> {
        let mut state = self.state.lock();
        let mut done = 0;
        while let Some(event) = state.queue.front() {
            let len = HEADER + event.name_len();
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
            to[HEADER..][..event.name.len()].copy_from_slice(&event.name);
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
            unlist(&mark);
        }
    }
}

impl FileOps for InotifyFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        match self.0.take(buf) {
            Some(result) => result,
            None if file.nonblocking() => Err(Errno::EAGAIN),
            None => self.0.readable.wait(|| self.0.take(buf))?,
        }
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
            .map(|e| HEADER + e.name_len())
            .sum();
        request.write(&i32::try_from(bytes).unwrap_or(i32::MAX))?;
        Ok(0)
    }

    /// Zero: the position of an inotify file does not move.
    fn seek(&self, _: &File, _: Whence, _: i64) -> Result<u64> {
        Ok(0)
    }
}

/// Takes a mark out of the table. False: somebody else did.
fn unlist(mark: &Arc<Mark>) -> bool {
    if mark.removed.swap(true, Ordering::AcqRel) {
        return false;
    }
    let mut table = MARKS.lock();
    let key = key(&mark.inode);
    if let Some(of_file) = table.get_mut(&key) {
        of_file.retain(|m| !Arc::ptr_eq(m, mark));
        if of_file.is_empty() {
            table.remove(&key);
        }
    }
    census::released(COUNT.fetch_sub(1, Ordering::Relaxed), 1);
    true
}

/// Ends a mark, with this as its last event.
fn forget(mark: &Arc<Mark>, last: u32) {
    if !unlist(mark) {
        return;
    }
    if let Some(group) = mark.group.upgrade() {
        let own = group.state.lock().marks.remove(&mark.wd);
        drop(own);
        group.push(Event {
            wd: mark.wd,
            mask: last,
            cookie: 0,
            name: Box::default(),
        });
    }
}

/// Tells the marks of one file.
fn tell(inode: &Arc<dyn Inode>, mask: u32, name: &[u8], cookie: u32, unlinked: bool) {
    for mark in marks(inode) {
        let wanted = mark.mask.load(Ordering::Relaxed);
        if mask & (wanted | ALWAYS) & !sys::IN_ISDIR == 0 || mark.removed.load(Ordering::Acquire) {
            continue;
        }
        if unlinked && wanted & sys::IN_EXCL_UNLINK != 0 {
            continue;
        }
        if let Some(group) = mark.group.upgrade() {
            group.push(Event {
                wd: mark.wd,
                mask,
                cookie,
                name: name.into(),
            });
        }
        if wanted & sys::IN_ONESHOT != 0 {
            forget(&mark, sys::IN_IGNORED);
        }
    }
}

fn with_kind(mask: u32, kind: FileType) -> u32 {
    if kind == FileType::Directory {
        mask | sys::IN_ISDIR
    } else {
        mask
    }
}

/// Something happened to the file `dentry` names: its own marks hear of it, and those of the
/// directory it is in.
pub(crate) fn happened(dentry: &Arc<Dentry>, mask: u32) {
    if anybody() {
        report(dentry, mask);
    }
}

/// Something happened to the file at `path`: its own marks hear of it, and those of the directory
/// it is in.
pub fn happened_at(path: &Path, mask: u32) {
    happened(path.dentry(), mask);
}

#[cold]
fn report(dentry: &Arc<Dentry>, mask: u32) {
    let mask = with_kind(mask, dentry.kind());
    let place = dentry.place();
    if let Some(parent) = &place.parent {
        tell(parent.inode(), mask, &place.name, 0, place.removed);
    }
    tell(dentry.inode(), mask, b"", 0, false);
}

/// An entry of a directory was made (`IN_CREATE`) or removed (`IN_DELETE`).
pub(crate) fn entry_changed(dir: &Arc<dyn Inode>, mask: u32, name: &[u8], kind: FileType) {
    if anybody() {
        tell(dir, with_kind(mask, kind), name, 0, false);
    }
}

/// The file's number of links changed.
pub(crate) fn links_changed(inode: &Arc<dyn Inode>) {
    if anybody() {
        tell(
            inode,
            with_kind(sys::IN_ATTRIB, inode.kind()),
            b"",
            0,
            false,
        );
    }
}

/// A name was moved from one directory to another, or within one.
pub(crate) fn moved(
    inode: &Arc<dyn Inode>,
    from: (&Arc<dyn Inode>, &[u8]),
    to: (&Arc<dyn Inode>, &[u8]),
) {
    /// Ties the two halves of a move together.
    static COOKIE: AtomicU32 = AtomicU32::new(1);
    if !anybody() {
        return;
    }
    let cookie = COOKIE.fetch_add(1, Ordering::Relaxed);
    let kind = inode.kind();
    tell(
        from.0,
        with_kind(sys::IN_MOVED_FROM, kind),
        from.1,
        cookie,
        false,
    );
    tell(to.0, with_kind(sys::IN_MOVED_TO, kind), to.1, cookie, false);
    // What happens to a watched file itself is told without its kind, as on Linux.
    tell(inode, sys::IN_MOVE_SELF, b"", 0, false);
}

/// The last use of a removed name is over: if it was the file's last name, its marks end with it.
pub(crate) fn released(inode: &Arc<dyn Inode>) {
    if !anybody() {
        return;
    }
    let marks = marks(inode);
    if marks.is_empty() || inode.metadata().nlink != 0 {
        return;
    }
    tell(inode, sys::IN_DELETE_SELF, b"", 0, false);
    marks.iter().for_each(|mark| forget(mark, sys::IN_IGNORED));
}

/// A file system (by device number) is mounted nowhere any more.
pub(crate) fn unmounted(dev: u64) {
    if !anybody() {
        return;
    }
    let all: Vec<Arc<Mark>> = MARKS.lock().values().flatten().cloned().collect();
    for mark in all.iter().filter(|m| m.inode.metadata().dev == dev) {
        tell(&mark.inode, sys::IN_UNMOUNT, b"", 0, false);
        forget(mark, sys::IN_IGNORED);
    }
}
