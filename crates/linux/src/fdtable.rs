//! Descriptors: small numbers for open files, per process or shared (`CLONE_FILES`).

use crate::SysResult;
use abi::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use fs::lock::{self, Owner};
use fs::{Cred, File, FsContext, OpenFlags, ops};
use task::Mutex;

/// How many descriptors a process may have unless `RLIMIT_NOFILE` says otherwise.
pub const DEFAULT_LIMIT: usize = 1024;
/// The highest limit that can be set.
pub const MAX_LIMIT: usize = 1 << 20;

#[derive(Clone)]
struct Slot {
    file: Arc<File>,
    cloexec: bool,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Slot>>,
    /// Below this every number is taken.
    lowest_free: usize,
}

impl Slots {
    fn get(&self, fd: i32) -> Result<&Slot, Errno> {
        // A negative number is beyond all there are.
        self.slots.get(fd as u32 as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    fn get_mut(&mut self, fd: i32) -> Result<&mut Slot, Errno> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        self.slots.get_mut(index).and_then(Option::as_mut).ok_or(Errno::EBADF)
    }

    /// Puts a slot at the lowest free number from `least` on.
    fn insert(&mut self, slot: Slot, least: usize, limit: usize) -> Result<usize, Errno> {
        let from = least.max(self.lowest_free);
        let free = self.slots.iter().skip(from).position(Option::is_none).map_or(self.slots.len().max(from), |i| from + i);
        if free >= limit {
            return Err(Errno::EMFILE);
        }
        self.place(free, slot);
        if least <= self.lowest_free {
            self.lowest_free = free + 1;
        }
        Ok(free)
    }

    fn place(&mut self, index: usize, slot: Slot) -> Option<Slot> {
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots[index].replace(slot)
    }

    fn take(&mut self, index: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(index)?.take();
        if slot.is_some() {
            self.lowest_free = self.lowest_free.min(index);
        }
        slot
    }
}

/// A table of descriptors.
pub struct FdTable {
    /// The owner of POSIX record locks; never reused.
    id: u64,
    slots: Mutex<Slots>,
    limit: AtomicUsize,
    /// Whether a POSIX record lock was ever set through this table; only then does closing have to look for some.
    has_record_locks: AtomicBool,
}

impl Default for FdTable {
    fn default() -> Self {
        Self::with(Slots::default(), DEFAULT_LIMIT)
    }
}

impl FdTable {
    fn with(slots: Slots, limit: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: Mutex::new(slots),
            limit: AtomicUsize::new(limit),
            has_record_locks: AtomicBool::new(false),
        }
    }

    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy with the same openings, as `fork(2)` makes it. Record locks are not inherited.
    #[must_use]
    pub fn fork(&self) -> Arc<Self> {
        let slots = self.slots.lock();
        let copy = Slots { slots: slots.slots.clone(), lowest_free: slots.lowest_free };
        drop(slots);
        Arc::new(Self::with(copy, self.limit()))
    }

    /// The number below which descriptors must stay (`RLIMIT_NOFILE`).
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit; descriptors above it stay open.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit.min(MAX_LIMIT), Ordering::Relaxed);
    }

    /// The open file behind a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn get(&self, fd: i32) -> Result<Arc<File>, Errno> {
        self.slots.lock().get(fd).map(|slot| slot.file.clone())
    }

    /// The open file behind a descriptor that was not opened with `O_PATH`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn get_io(&self, fd: i32) -> Result<Arc<File>, Errno> {
        let file = self.get(fd)?;
        if file.flags().contains(OpenFlags::PATH) { Err(Errno::EBADF) } else { Ok(file) }
    }

    /// Gives an open file the lowest free number.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn install(&self, file: Arc<File>, cloexec: bool) -> SysResult {
        self.install_from(file, cloexec, 0)
    }

    /// Gives an open file the lowest free number that is at least `least`.
    ///
    /// # Errors
    /// `EMFILE`; `EINVAL` if `least` is beyond the limit.
    pub fn install_from(&self, file: Arc<File>, cloexec: bool, least: usize) -> SysResult {
        let limit = self.limit();
        if least >= limit && least > 0 {
            return Err(Errno::EINVAL);
        }
        // If there is no number the file is dropped after the lock.
        let slot = Slot { file, cloexec };
        let result = self.slots.lock().insert(slot.clone(), least, limit);
        drop(slot);
        result
    }

    /// Gives an open file this number, closing what had it (`dup2(2)`).
    ///
    /// # Errors
    /// `EBADF` if the number is not allowed.
    pub fn install_at(&self, fd: i32, file: Arc<File>, cloexec: bool) -> SysResult {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if index >= self.limit() {
            return Err(Errno::EBADF);
        }
        let old = self.slots.lock().place(index, Slot { file, cloexec });
        if let Some(old) = old {
            self.closed(&old.file);
        }
        Ok(index)
    }

    /// Frees a number.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, fd: i32) -> Result<(), Errno> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let slot = self.slots.lock().take(index).ok_or(Errno::EBADF)?;
        self.closed(&slot.file);
        Ok(())
    }

    /// POSIX: closing any descriptor of a file gives back all the process's record locks on it.
    fn closed(&self, file: &Arc<File>) {
        if self.has_record_locks.load(Ordering::Relaxed) {
            lock::release(file, Owner::Process { table: self.id, pid: 0 });
        }
    }

    /// The owner of POSIX record locks that `pid` sets through this table.
    pub fn record_lock_owner(&self, pid: i32) -> Owner {
        self.has_record_locks.store(true, Ordering::Relaxed);
        Owner::Process { table: self.id, pid }
    }

    /// Closes every descriptor for which `which(fd, cloexec)` holds.
    fn close_where(&self, which: impl Fn(usize, bool) -> bool) {
        let closed: Vec<Slot> = {
            let mut slots = self.slots.lock();
            let doomed = |(fd, slot): (usize, &Option<Slot>)| slot.as_ref().filter(|s| which(fd, s.cloexec)).map(|_| fd);
            let doomed: Vec<usize> = slots.slots.iter().enumerate().filter_map(doomed).collect();
            doomed.into_iter().filter_map(|fd| slots.take(fd)).collect()
        };
        for slot in closed {
            self.closed(&slot.file);
        }
    }

    /// Closes what is marked close-on-exec.
    pub fn close_on_exec(&self) {
        self.close_where(|_, cloexec| cloexec);
    }

    /// Closes everything: the process ends.
    pub fn close_all(&self) {
        self.close_where(|_, _| true);
    }

    /// Closes the numbers `first..=last`, or marks them close-on-exec.
    pub fn close_range(&self, first: usize, last: usize, only_mark: bool) {
        if !only_mark {
            self.close_where(|fd, _| (first..=last).contains(&fd));
            return;
        }
        let mut slots = self.slots.lock();
        for slot in slots.slots.iter_mut().take(last.saturating_add(1)).skip(first).flatten() {
            slot.cloexec = true;
        }
    }

    /// Whether a descriptor is close-on-exec.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn cloexec(&self, fd: i32) -> Result<bool, Errno> {
        self.slots.lock().get(fd).map(|slot| slot.cloexec)
    }

    /// Marks a descriptor close-on-exec, or takes the mark away.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), Errno> {
        self.slots.lock().get_mut(fd).map(|slot| slot.cloexec = cloexec)
    }

    /// All descriptors, ascending.
    #[must_use]
    pub fn list(&self) -> Vec<(i32, Arc<File>)> {
        let slots = self.slots.lock();
        let entry = |(fd, slot): (usize, &Option<Slot>)| Some((i32::try_from(fd).ok()?, slot.as_ref()?.file.clone()));
        slots.slots.iter().enumerate().filter_map(entry).collect()
    }

    /// How many descriptors there is room for now, as `FDSize` of `/proc/<pid>/status` shows it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.slots.lock().slots.len().next_multiple_of(64)
    }

    /// Opens `name` as descriptors 0, 1 and 2, for a program the kernel starts.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub fn open_stdio(&self, context: &FsContext, name: &[u8]) -> Result<(), Errno> {
        let cred = Cred::root();
        let file = ops::open(&context.walk(&cred), name, OpenFlags::RDWR, 0)?;
        for fd in 0..3 {
            self.install_at(fd, file.clone(), false)?;
        }
        Ok(())
    }
}
