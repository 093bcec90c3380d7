//! Descriptors: small numbers for open files, per process or shared (`CLONE_FILES`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use fallible::Pieces;
use fs::lock::{self, LockOwner};
use fs::{Cred, File, FsStruct, OpenFlags, charge, ops};
use task::{Mutex, Once, RcuArc};
use uapi::fd::Fd;
use uapi::pid::Pid;

use crate::SysResult;

/// Whether `execve(2)` closes a descriptor (`FD_CLOEXEC`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseOnExec {
    /// The next program has it, too.
    No,
    /// `execve(2)` closes the descriptor.
    Yes,
}

impl CloseOnExec {
    /// `Yes` if a flag is set.
    #[must_use]
    #[inline(always)]
    pub const fn when(flag: bool) -> Self {
        if flag { Self::Yes } else { Self::No }
    }

    /// `Yes` if the flags of a call contain `O_CLOEXEC`.
    #[must_use]
    #[inline(always)]
    pub fn of_flags(flags: OpenFlags) -> Self {
        Self::when(flags.contains(OpenFlags::CLOEXEC))
    }

    /// Whether it is `Yes`.
    #[must_use]
    #[inline(always)]
    pub const fn is_set(self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// Number of descriptors a process may have unless `RLIMIT_NOFILE` says otherwise.
pub const DEFAULT_LIMIT: usize = 1024;
/// The highest limit that can be set, to which `/proc/sys/fs/nr_open` can be raised.
pub const MAX_LIMIT: usize = 1 << 21;
/// `/proc/sys/fs/nr_open`: numbers of descriptors are below this one, whatever the limit.
pub(crate) static NR_OPEN: AtomicUsize = AtomicUsize::new(1 << 20);
/// The least that [`NR_OPEN`] takes.
pub(crate) const LEAST_NR_OPEN: usize = 64;

/// Numbers in the first chunk; each further one makes the table eight times as large.
const FIRST: usize = 64;
/// Chunks after the first, up to [`MAX_LIMIT`].
const FURTHER_CHUNKS: usize = 5;

/// Open files by number. Looking one up takes no lock (RCU), and chunks never move.
struct Files {
    first: [RcuArc<File>; FIRST],
    further: [Once<Box<[RcuArc<File>]>>; FURTHER_CHUNKS],
}

impl Files {
    const fn new() -> Self {
        Self {
            first: [const { RcuArc::empty() }; FIRST],
            further: [const { Once::new() }; FURTHER_CHUNKS],
        }
    }

    /// Position of a descriptor beyond the first chunk: which further chunk, where it starts, how
    /// many it has.
    fn chunk(fd: usize) -> (usize, usize, usize) {
        let chunk = ((fd / FIRST).ilog2() / 3) as usize;
        let start = FIRST << (3 * chunk);
        (chunk, start, 7 * start)
    }

    /// Slot of a descriptor, if its chunk exists.
    #[inline]
    fn slot(&self, fd: usize) -> Option<&RcuArc<File>> {
        if fd < FIRST {
            return Some(&self.first[fd]);
        }
        let (chunk, start, _) = Self::chunk(fd);
        self.further.get(chunk)?.get()?.get(fd - start)
    }

    /// Slot of a descriptor below [`MAX_LIMIT`]; makes the chunk.
    ///
    /// # Errors
    /// `ENOMEM`; `EMFILE` if the table is not to grow so far (`/proc/sys/fs/nr_open`).
    #[inline(always)]
    fn make_slot(&self, fd: usize) -> Result<&RcuArc<File>, Errno> {
        if fd < FIRST {
            return Ok(&self.first[fd]);
        }
        self.make_further_slot(fd)
    }

    #[cold]
    #[inline(never)]
    fn make_further_slot(&self, fd: usize) -> Result<&RcuArc<File>, Errno> {
        let (chunk, start, size) = Self::chunk(fd);
        let chunk = &self.further[chunk];
        let slots = match chunk.get() {
            Some(slots) => slots,
            None if fd >= NR_OPEN.load(Ordering::Relaxed) => return Err(Errno::EMFILE),
            None => {
                let mut slots = fallible::with_capacity(size)?;
                slots.resize_with(size, RcuArc::empty);
                chunk.call_once(|| slots.into_boxed_slice())
            }
        };
        Ok(&slots[fd - start])
    }

    /// Whether the number behind the first chunk has never been taken.
    #[inline]
    fn further_are_free(&self) -> bool {
        self.further[0].get().is_none()
    }

    #[inline(always)]
    fn get(&self, fd: usize) -> Option<Arc<File>> {
        self.slot(fd)?.load()
    }

    /// All that are open.
    fn iter(&self) -> impl Iterator<Item = Arc<File>> {
        let further = self.further.iter().filter_map(Once::get);
        let slots = self
            .first
            .iter()
            .chain(further.flat_map(|chunk| chunk.iter()));
        slots.filter_map(RcuArc::load)
    }
}

/// Bit map of descriptors' numbers.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, fd: usize) -> bool {
        self.0
            .get(fd / 64)
            .is_some_and(|word| word & 1 << (fd % 64) != 0)
    }

    #[inline]
    fn set(&mut self, fd: usize, value: bool) {
        match self.0.get_mut(fd / 64) {
            Some(word) => *word = *word & !(1 << (fd % 64)) | u64::from(value) << (fd % 64),
            None => self.extend(fd, value),
        }
    }

    #[cold]
    fn extend(&mut self, fd: usize, value: bool) {
        self.0.resize(fd / 64 + 1, 0);
        self.set(fd, value);
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.iter_from(0)
    }

    /// The numbers from `least` on that have one.
    fn iter_from(&self, least: usize) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate().skip(least / 64);
        words.flat_map(move |(i, &word)| {
            let first = least.saturating_sub(i * 64).min(64);
            (first..64)
                .filter(move |bit| word & 1 << bit != 0)
                .map(move |bit| i * 64 + bit)
        })
    }

    /// The lowest number from `least` on that has none.
    fn lowest_free(&self, least: usize) -> usize {
        let word = |i: usize| self.0.get(i).copied().unwrap_or(0);
        let (mut i, mut taken) = (least / 64, word(least / 64) | ((1 << (least % 64)) - 1));
        while taken == u64::MAX {
            i += 1;
            taken = word(i);
        }
        i * 64 + taken.trailing_ones() as usize
    }
}

/// Numbers that are taken; changes of the table are made under its lock.
#[derive(Clone, Default)]
struct FdBitmaps {
    /// Descriptors in use, a bit each.
    open_fds: Bits,
    /// Numbers of [`ReservedFd`], which are taken, but nobody's descriptors yet.
    reserved: Bits,
    cloexec: Bits,
    /// Below this every number is taken.
    lowest_free: usize,
}

impl FdBitmaps {
    fn check(&self, fd: Fd) -> Result<usize, Errno> {
        // A negative number is beyond all there are.
        Some(fd.index())
            .filter(|&fd| self.is_open(fd))
            .ok_or(Errno::EBADF)
    }

    fn is_open(&self, fd: usize) -> bool {
        self.open_fds.has(fd) && !self.reserved.has(fd)
    }

    /// The numbers of open files.
    fn open(&self) -> impl Iterator<Item = usize> {
        self.open_fds.iter().filter(|&fd| !self.reserved.has(fd))
    }

    /// Marks a descriptor as in use.
    #[inline]
    fn allocate(&mut self, fd: usize, cloexec: CloseOnExec) {
        self.open_fds.set(fd, true);
        if self.cloexec.has(fd) != cloexec.is_set() {
            self.cloexec.set(fd, cloexec.is_set());
        }
    }

    /// Allocates the lowest free descriptor from `least` on.
    #[inline(always)]
    fn allocate_lowest(
        &mut self,
        least: usize,
        limit: usize,
        cloexec: CloseOnExec,
    ) -> Result<usize, Errno> {
        let free = self.open_fds.lowest_free(least.max(self.lowest_free));
        if free >= limit {
            return Err(Errno::EMFILE);
        }
        self.allocate(free, cloexec);
        if least <= self.lowest_free {
            self.lowest_free = free + 1;
        }
        Ok(free)
    }

    fn free(&mut self, fd: usize) {
        self.open_fds.set(fd, false);
        self.lowest_free = self.lowest_free.min(fd);
    }
}

/// A look at one descriptor after the other, which is cheaper while they are near each other.
pub(crate) struct FdCursor<'a> {
    files: &'a Files,
    /// The chunk of the last one, and the number of its first slot.
    slots: &'a [RcuArc<File>],
    start: usize,
}

impl FdCursor<'_> {
    /// The open file behind a descriptor, if there is one that was not opened with `O_PATH`.
    #[inline(always)]
    pub(crate) fn get_io(&mut self, fd: Fd) -> Option<Arc<File>> {
        let fd = fd.index();
        let slot = match self.slots.get(fd.wrapping_sub(self.start)) {
            Some(slot) => slot,
            None => self.seek(fd)?,
        };
        slot.load()
            .filter(|file| !file.flags().contains(OpenFlags::PATH))
    }

    #[cold]
    #[inline(never)]
    fn seek(&mut self, fd: usize) -> Option<&RcuArc<File>> {
        (self.slots, self.start) = if fd < FIRST {
            (&self.files.first[..], 0)
        } else {
            let (chunk, start, _) = Files::chunk(fd);
            (&self.files.further.get(chunk)?.get()?[..], start)
        };
        self.slots.get(fd - self.start)
    }
}

/// A thread's share in a table. When the last thread has given its share back everything in the
/// table is closed, whoever looks at it at that moment.
pub(crate) struct FdTableRef {
    table: Arc<FdTable>,
    released: AtomicBool,
}

impl FdTableRef {
    pub(crate) fn new(table: Arc<FdTable>) -> Self {
        table.users.fetch_add(1, Ordering::Relaxed);
        Self {
            table,
            released: AtomicBool::new(false),
        }
    }

    /// Reference of a thread that has given its descriptors back: to the one table that is empty,
    /// and that nothing can be put in.
    pub(crate) fn empty() -> Arc<Self> {
        static NOTHING: Once<Arc<FdTableRef>> = Once::new();
        NOTHING
            .call_once(|| Arc::new(Self::new(Arc::new(FdTable::with(FdBitmaps::default(), 0)))))
            .clone()
    }

    pub(crate) fn table(&self) -> &Arc<FdTable> {
        &self.table
    }

    /// Whether other threads have the table, too.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.table.users.load(Ordering::Acquire) > 1
    }

    /// Drops a thread's use of the table; what nobody else uses is closed.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel)
            && census::released(self.table.users.fetch_sub(1, Ordering::AcqRel), 1) == 1
        {
            self.table.close_where(|_, _| true);
        }
    }
}

impl Drop for FdTableRef {
    fn drop(&mut self) {
        self.release();
    }
}

/// A number that is kept for a file, and free again if it never gets one.
pub(crate) struct ReservedFd<'a> {
    table: &'a FdTable,
    fd: usize,
}

impl ReservedFd<'_> {
    /// Installs an open file at the reserved descriptor.
    #[inline(never)]
    pub(crate) fn install(self, file: Arc<File>) -> usize {
        let (table, fd) = (self.table, self.fd);
        core::mem::forget(self);
        let mut numbers = table.numbers.lock();
        numbers.reserved.set(fd, false);
        let slot = table.files.slot(fd).expect("made when it was reserved");
        slot.swap(Some(file));
        fd
    }
}

impl Drop for ReservedFd<'_> {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        let mut numbers = self.table.numbers.lock();
        numbers.reserved.set(self.fd, false);
        self.table.remove(&mut numbers, self.fd);
    }
}

/// A table of descriptors.
pub struct FdTable {
    _counted: census::FdTable,
    /// The owner of POSIX record locks; never reused.
    id: u64,
    files: Files,
    /// Held while a descriptor and its slot in `files` change.
    numbers: Mutex<FdBitmaps>,
    limit: AtomicUsize,
    /// Number of threads that have this table.
    users: AtomicUsize,
    /// Whether a POSIX record lock was ever set, or a notification asked for, through this table;
    /// only then does closing have to look for some.
    flushes: AtomicBool,
}

impl Default for FdTable {
    fn default() -> Self {
        Self::with(FdBitmaps::default(), DEFAULT_LIMIT)
    }
}

impl FdTable {
    fn with(numbers: FdBitmaps, limit: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            _counted: census::FdTable::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            files: Files::new(),
            numbers: Mutex::new(numbers),
            limit: AtomicUsize::new(limit),
            users: AtomicUsize::new(0),
            flushes: AtomicBool::new(false),
        }
    }

    /// A table without descriptors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy with the same openings, as `fork(2)` makes it. Record locks are not inherited.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        let numbers = self.numbers.lock();
        // What is being opened is this table's alone.
        let mut open = numbers.clone();
        core::mem::take(&mut open.reserved)
            .iter()
            .for_each(|fd| open.free(fd));
        let copy = Self::with(open, self.limit());
        for fd in numbers.open() {
            copy.files.make_slot(fd)?.swap(self.files.get(fd));
        }
        Ok(Arc::new(copy))
    }

    /// The number below which descriptors must stay (`RLIMIT_NOFILE`).
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit; descriptors above it stay open.
    pub fn set_limit(&self, limit: usize) {
        let most = NR_OPEN.load(Ordering::Relaxed);
        self.limit.store(limit.min(most), Ordering::Relaxed);
    }

    /// The open file behind a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline(always)]
    pub fn get(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        self.find(fd).ok_or(Errno::EBADF)
    }

    /// The open file behind a descriptor, if there is one.
    #[inline(always)]
    pub(crate) fn find(&self, fd: Fd) -> Option<Arc<File>> {
        // A negative number is beyond all there are.
        self.files.get(fd.index())
    }

    /// Bytes of the kernel's behind the descriptors: `each` for an open file, and what is in it.
    pub(crate) fn memory(&self, each: usize) -> usize {
        self.files
            .iter()
            .map(|file| each + file.ops().memory())
            .sum()
    }

    /// Begins a look at several descriptors.
    pub(crate) fn cursor(&self) -> FdCursor<'_> {
        FdCursor {
            files: &self.files,
            slots: &self.files.first,
            start: 0,
        }
    }

    /// The open file behind a descriptor that was not opened with `O_PATH`.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn get_io(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        Self::for_io(self.get(fd)?)
    }

    /// An open file that was not opened with `O_PATH`.
    #[inline]
    pub(crate) fn for_io(file: Arc<File>) -> Result<Arc<File>, Errno> {
        if file.flags().contains(OpenFlags::PATH) {
            Err(Errno::EBADF)
        } else {
            Ok(file)
        }
    }

    /// Gives a file that was opened just now the lowest free number.
    ///
    /// # Errors
    /// `EMFILE`; `ENFILE` if it is one more than there may be.
    pub fn install(&self, file: Arc<File>, cloexec: CloseOnExec) -> SysResult {
        charge::check_files(0)?;
        self.install_lowest(file, cloexec, 0)
    }

    /// Gives a file that somebody has open the lowest free number.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn install_shared(&self, file: Arc<File>, cloexec: CloseOnExec) -> SysResult {
        self.install_lowest(file, cloexec, 0)
    }

    /// Checks that there may be one more open file, and is a descriptor for it unless another
    /// thread takes it: what could not be undone is not done without.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    #[inline]
    pub(crate) fn check_fd_available(&self) -> Result<(), Errno> {
        charge::check_files(1)?;
        if self.files.further_are_free() && FIRST < self.limit() {
            Ok(())
        } else {
            self.check_fd_available_slow()
        }
    }

    /// Slow path of [`Self::check_fd_available`]: for a table that is or was larger than its first
    /// chunk, or has a low limit.
    #[cold]
    fn check_fd_available_slow(&self) -> Result<(), Errno> {
        let numbers = self.numbers.lock();
        if numbers.open_fds.lowest_free(numbers.lowest_free) < self.limit() {
            Ok(())
        } else {
            Err(Errno::EMFILE)
        }
    }

    /// The two numbers that the next two open files will have, if nobody else opens one.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn next_two(&self) -> Result<[Fd; 2], Errno> {
        let numbers = self.numbers.lock();
        let first = numbers.open_fds.lowest_free(numbers.lowest_free);
        let second = numbers.open_fds.lowest_free(first + 1);
        if second < self.limit() {
            Ok([first, second].map(Fd::from_index))
        } else {
            Err(Errno::EMFILE)
        }
    }

    /// Gives a file that somebody has open the lowest free number that is at least `least`.
    ///
    /// # Errors
    /// `EMFILE`; `EINVAL` if `least` is beyond the limit.
    pub fn install_from(&self, file: Arc<File>, cloexec: CloseOnExec, least: usize) -> SysResult {
        self.install_lowest(file, cloexec, least)
    }

    /// Installs like [`Self::install_from`]; in line, because mostly any number will do.
    #[inline(always)]
    fn install_lowest(&self, file: Arc<File>, cloexec: CloseOnExec, least: usize) -> SysResult {
        let limit = self.limit();
        if least >= limit && least > 0 {
            return Err(Errno::EINVAL);
        }
        let mut numbers = self.numbers.lock();
        let fd = numbers.allocate_lowest(least, limit, cloexec);
        if let Ok(fd) = fd {
            match self.files.make_slot(fd) {
                Ok(slot) => drop(slot.swap(Some(file))),
                Err(error) => {
                    numbers.free(fd);
                    drop(numbers);
                    return Err(error);
                }
            }
        } else {
            // The file is dropped after the lock.
            drop(numbers);
        }
        fd
    }

    /// Keeps the lowest free number for a file that is still to be opened: others open files while
    /// this one waits for somebody.
    ///
    /// # Errors
    /// `EMFILE`; `ENFILE` if there may be no further open file.
    #[inline(never)]
    pub(crate) fn reserve(&self, cloexec: CloseOnExec) -> Result<ReservedFd<'_>, Errno> {
        charge::check_files(1)?;
        let mut numbers = self.numbers.lock();
        let fd = numbers.allocate_lowest(0, self.limit(), cloexec)?;
        if let Err(error) = self.files.make_slot(fd) {
            numbers.free(fd);
            return Err(error);
        }
        numbers.reserved.set(fd, true);
        Ok(ReservedFd { table: self, fd })
    }

    /// Gives an open file this number, closing what had it (`dup2(2)`).
    ///
    /// # Errors
    /// `EBADF` if the number is not allowed, `EBUSY` if it is kept for a file that is being opened.
    pub fn install_at(&self, fd: Fd, file: Arc<File>, cloexec: CloseOnExec) -> SysResult {
        let index = fd.index();
        if index >= self.limit() {
            return Err(Errno::EBADF);
        }
        let mut numbers = self.numbers.lock();
        if numbers.reserved.has(index) {
            return Err(Errno::EBUSY);
        }
        // A number that is too high for anybody is none to be had.
        let slot = self.files.make_slot(index).map_err(|error| match error {
            Errno::EMFILE => Errno::EBADF,
            error => error,
        })?;
        numbers.allocate(index, cloexec);
        let old = slot.swap(Some(file));
        drop(numbers);
        if let Some(old) = old {
            self.closed(&old);
        }
        Ok(index)
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        self.free(fd).map(drop)
    }

    /// Frees a number, and returns its file, which the caller drops.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub(crate) fn free(&self, fd: Fd) -> Result<Option<Arc<File>>, Errno> {
        let mut numbers = self.numbers.lock();
        let fd = numbers.check(fd)?;
        let file = self.remove(&mut numbers, fd);
        drop(numbers);
        Ok(file.inspect(|file| self.closed(file)))
    }

    /// Removes a descriptor and returns its file.
    fn remove(&self, numbers: &mut FdBitmaps, fd: usize) -> Option<Arc<File>> {
        numbers.free(fd);
        self.files.slot(fd)?.swap(None)
    }

    /// Whoever closes a descriptor has something to give back from now on.
    pub(crate) fn flush_on_close(&self) {
        self.flushes.store(true, Ordering::Relaxed);
    }

    /// POSIX: closing any descriptor of a file gives back all the process's record locks on it, and
    /// one of a message queue its notification.
    fn closed(&self, file: &Arc<File>) {
        if self.flushes.load(Ordering::Relaxed) {
            file.flush();
            lock::release_record_locks(
                file,
                LockOwner::Process {
                    table: self.id,
                    pid: 0,
                },
            );
        }
    }

    /// The owner of POSIX record locks that `pid` sets through this table.
    pub fn record_lock_owner(&self, pid: Pid) -> LockOwner {
        self.flush_on_close();
        LockOwner::Process {
            table: self.id,
            pid: pid.raw(),
        }
    }

    /// Closes every descriptor for which `which(fd, cloexec)` holds. One after the other: a list of
    /// them takes memory, and processes end because there is none.
    fn close_where(&self, which: impl Fn(usize, bool) -> bool) {
        let mut from = 0;
        loop {
            let mut numbers = self.numbers.lock();
            let closes =
                |&fd: &usize| !numbers.reserved.has(fd) && which(fd, numbers.cloexec.has(fd));
            let Some(fd) = numbers.open_fds.iter_from(from).find(closes) else {
                return;
            };
            let file = self.remove(&mut numbers, fd);
            drop(numbers);
            if let Some(file) = file {
                self.closed(&file);
            }
            from = fd + 1;
        }
    }

    /// Closes what is marked close-on-exec.
    pub fn close_on_exec(&self) {
        self.close_where(|_, cloexec| cloexec);
    }

    /// Closes the descriptors with these numbers.
    pub fn close_range(&self, range: &RangeInclusive<usize>) {
        self.close_where(|fd, _| range.contains(&fd));
    }

    /// Marks the descriptors with these numbers close-on-exec.
    pub fn set_cloexec_range(&self, range: &RangeInclusive<usize>) {
        let mut numbers = self.numbers.lock();
        let mut from = *range.start();
        loop {
            let next = numbers.open_fds.iter_from(from).next();
            let Some(fd) = next.filter(|fd| range.contains(fd)) else {
                return;
            };
            if !numbers.reserved.has(fd) {
                numbers.cloexec.set(fd, true);
            }
            from = fd + 1;
        }
    }

    /// Whether a descriptor is close-on-exec.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn cloexec(&self, fd: Fd) -> Result<CloseOnExec, Errno> {
        let numbers = self.numbers.lock();
        Ok(CloseOnExec::when(numbers.cloexec.has(numbers.check(fd)?)))
    }

    /// Marks a descriptor close-on-exec, or takes the mark away.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_cloexec(&self, fd: Fd, cloexec: CloseOnExec) -> Result<(), Errno> {
        let mut numbers = self.numbers.lock();
        let fd = numbers.check(fd)?;
        numbers.cloexec.set(fd, cloexec.is_set());
        Ok(())
    }

    /// Whether `which` holds for one of the open files.
    pub(crate) fn any(&self, which: impl FnMut(&Arc<File>) -> bool) -> bool {
        let files: Pieces<Arc<File>> = {
            let _numbers = self.numbers.lock();
            self.files.iter().collect()
        };
        files.iter().any(which)
    }

    /// The first open files from a number on, at most `most`.
    pub(crate) fn list_from(&self, first: usize, most: usize) -> Vec<(Fd, Arc<File>)> {
        let numbers = self.numbers.lock();
        numbers
            .open_fds
            .iter_from(first)
            .filter_map(|fd| Some((Fd::from_index(fd), self.files.get(fd)?)))
            .take(most)
            .collect()
    }

    /// Number of descriptors there is room for now, as `FDSize` of `/proc/<pid>/status` shows it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.numbers.lock().open_fds.0.len() * 64
    }

    /// Opens `name` as descriptors 0, 1 and 2, for a program the kernel starts.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub fn open_stdio(&self, context: &FsStruct, name: &[u8]) -> Result<(), Errno> {
        let cred = Cred::root();
        let file = ops::open(&context.lookup_context(&cred), name, OpenFlags::RDWR, 0)?;
        for fd in 0..3 {
            self.install_at(Fd::new(fd), file.clone(), CloseOnExec::No)?;
        }
        Ok(())
    }
}
