//! ext4 on a disk: the crate `ext4` with page caches of files over it (`docs/ext4.md`).

mod acl;
mod contents;
mod device;
mod inode;
mod names;
mod open;
mod removals;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ::block::{ErrorCursor, ErrorSequence, PageCache, writeback};
use ::ext4::{Ext4, ROOT};
use abi::errno::Errno;
use device::DiskDevice;
use inode::{Ext4Inode, InodeState};
use linux_raw_sys::general::MS_RDONLY;
use removals::Removals;
use task::{Mutex, Once};

use crate::block::DiskClaim;
use crate::mount::{FileSystem, SuperBlock};
use crate::{DeviceId, FileType, Inode, Metadata, Result, StatFs, Timestamp, devfs};

/// `EXT4_SUPER_MAGIC`.
const MAGIC: u64 = 0xef53;
/// Age at which changes of metadata are committed (Linux: `commit=5`).
const COMMIT_NS: u64 = 5_000_000_000;
/// Most blocks that are kept for extents which writing back splits.
const MAX_SPARE_BLOCKS: u64 = 4096;

static MAY_USE_RESERVED: Once<fn() -> bool> = Once::new();

/// Installs what tells whether the caller may have the blocks that are kept for the superuser
/// (`CAP_SYS_RESOURCE`). Before that everybody may. Only the first call counts.
pub fn set_may_use_reserved(hook: fn() -> bool) {
    MAY_USE_RESERVED.call_once(|| hook);
}

/// File systems that are mounted, by their disks' numbers.
static MOUNTED: Mutex<BTreeMap<DeviceId, Weak<SuperBlock>>> = Mutex::new(BTreeMap::new());

/// A file as the file system knows it: its state, and its cache, of which pages are given back
/// without touching the file.
struct Known {
    state: Weak<InodeState>,
    cache: Weak<PageCache>,
}

#[derive(Default)]
struct InodeTable {
    by_number: BTreeMap<u32, Known>,
    /// With so many it is time to look for those that ended.
    prune_threshold: usize,
}

/// A mounted ext4 file system.
pub struct Ext4Fs {
    this: Weak<Self>,
    id: DeviceId,
    /// The disk's name, for messages.
    disk: String,
    device: Arc<DiskDevice>,
    /// `None` when it is not mounted any more.
    ext4: Mutex<Option<Ext4>>,
    inodes: Mutex<InodeTable>,
    /// Files of which something is not on the disk yet, by number.
    dirty: Mutex<BTreeMap<u32, Arc<InodeState>>>,
    root: Mutex<Option<Arc<Ext4Inode>>>,
    /// Files in use that have no name.
    orphans: AtomicUsize,
    /// Files that are being removed.
    removals: Removals,
    /// Time since which metadata has changes that are not committed (ns); 0: it has none.
    changed_since: AtomicU64,
    spare_blocks: u64,
    reserved_blocks: u64,
    block_size: u64,
    max_size: u64,
    is_read_only: AtomicBool,
    /// Failures to write files back.
    errors: Mutex<ErrorSequence>,
    /// The journal could not be written.
    has_failed: AtomicBool,
    shows_errors: AtomicBool,
    /// A structure was found to be damaged.
    is_damaged: AtomicBool,
}

impl From<Timestamp> for ::ext4::Timestamp {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.sec,
            nanoseconds: time.nsec,
        }
    }
}

impl From<::ext4::Timestamp> for Timestamp {
    fn from(time: ::ext4::Timestamp) -> Self {
        Self {
            sec: time.seconds,
            nsec: time.nanoseconds,
        }
    }
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    devfs::fill_random(&mut bytes);
    u32::from_le_bytes(bytes)
}

/// Checks options beside those that every file system knows. Each says what is so in any case.
///
/// # Errors
/// `EINVAL`.
pub fn check_options(options: &str) -> Result<()> {
    const KNOWN: [&str; 6] = [
        "errors=remount-ro",
        "data=ordered",
        "barrier",
        "barrier=1",
        "acl",
        "user_xattr",
    ];
    let mut options = options.split(',').filter(|option| !option.is_empty());
    match options.find(|option| !KNOWN.contains(option)) {
        None => Ok(()),
        Some(option) => {
            log::error!("EXT4-fs: Unrecognized mount option \"{option}\"");
            Err(Errno::EINVAL)
        }
    }
}

/// Mounts the file system of a disk, with `bits` of `mount(2)`, or finds it mounted.
///
/// # Errors
/// `ENXIO` if there is no such disk, `EBUSY` if somebody else has it, or it is mounted otherwise;
/// `EACCES` to write to a disk that is read-only; what is wrong with it or not supported, which the
/// log names.
pub fn mount(id: DeviceId, options: &str, bits: u32) -> Result<Arc<SuperBlock>> {
    check_options(options)?;
    // Without the lock: that one's disk may be slow.
    crate::block::await_release(id)?;
    let mut mounted = MOUNTED.lock();
    mounted.retain(|_, known| known.strong_count() > 0);
    if let Some(known) = mounted.get(&id).and_then(Weak::upgrade) {
        let is_other = (known.flags() ^ bits) & MS_RDONLY != 0;
        return if is_other {
            Err(Errno::EBUSY)
        } else {
            Ok(known)
        };
    }
    let fs = Ext4Fs::open(id, options, bits & MS_RDONLY != 0)?;
    let shown = SuperBlock::for_fs(fs, bits);
    mounted.insert(id, Arc::downgrade(&shown));
    Ok(shown)
}

impl Ext4Fs {
    fn open(id: DeviceId, options: &str, read_only: bool) -> Result<Arc<Self>> {
        let claim = DiskClaim::new(id)?;
        let disk = String::from(claim.disk().name());
        if !read_only && claim.disk().device().is_read_only() {
            return Err(Errno::EACCES);
        }
        let sector = claim.disk().device().limits().logical_block;
        let device = Arc::new(DiskDevice::new(claim)?);
        let cache_blocks = (writeback::memory_pages() / 64).clamp(512, 4096) as usize;
        let settings = ::ext4::Options {
            read_only,
            cache_blocks,
            transaction_blocks: cache_blocks / 2,
            clock: || Timestamp::coarse_now().into(),
            generation: random,
        };
        let ext4 = Ext4::mount(device.clone(), settings).map_err(|error| {
            log::error!("EXT4-fs ({disk}): {error}");
            error.errno()
        })?;
        if ext4.block_size() < sector {
            log::error!("EXT4-fs ({disk}): the disk's blocks are larger than the file system's");
            return Err(Errno::EINVAL);
        }
        if let Some(done) = ext4.recovery() {
            let count = done.transactions;
            log::info!("EXT4-fs ({disk}): recovery complete: {count} transactions");
        }
        let mode = if ext4.has_journal() {
            "with ordered data mode"
        } else {
            "without journal"
        };
        let blocks = ext4.statfs().blocks;
        let fs = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            id,
            device,
            spare_blocks: (blocks / 50).min(MAX_SPARE_BLOCKS),
            reserved_blocks: ext4.reserved_blocks(),
            block_size: ext4.block_size().into(),
            max_size: ext4.max_file_size(),
            ext4: Mutex::new(Some(ext4)),
            inodes: Mutex::default(),
            dirty: Mutex::default(),
            root: Mutex::default(),
            orphans: AtomicUsize::new(0),
            removals: Removals::default(),
            changed_since: AtomicU64::new(0),
            is_read_only: AtomicBool::new(read_only),
            errors: Mutex::new(ErrorSequence::none()),
            has_failed: AtomicBool::new(false),
            shows_errors: AtomicBool::new(options.contains("errors=")),
            is_damaged: AtomicBool::new(false),
            disk,
        });
        let owner: Weak<dyn writeback::CacheOwner> = fs.this.clone();
        let ready = fs.inode(ROOT).and_then(|root| {
            *fs.root.lock() = Some(root);
            writeback::register(owner)
        });
        if let Err(error) = ready {
            fs.put_super();
            return Err(error);
        }
        log::info!("EXT4-fs ({}): mounted filesystem {mode}.", fs.disk);
        Ok(fs)
    }

    /// Works with the metadata, alone.
    fn with<R>(&self, work: impl FnOnce(&mut Ext4) -> Result<R>) -> Result<R> {
        let mut ext4 = self.ext4.lock();
        let ext4 = ext4.as_mut().ok_or(Errno::EIO)?;
        let done = work(ext4);
        self.note_state(ext4);
        if matches!(done, Err(Errno::EUCLEAN)) && !self.is_damaged.swap(true, Ordering::Relaxed) {
            log::error!(
                "EXT4-fs error ({}): a structure is damaged, e2fsck may repair it",
                self.disk
            );
        }
        done
    }

    /// The same where blocks may be needed, of which some are left free. If there is none, or what
    /// was done `is_short`, it is done again when the files are gone that are being removed.
    fn with_room<R>(
        &self,
        mut work: impl FnMut(&mut Ext4) -> Result<R>,
        is_short: impl FnOnce(&R) -> bool,
    ) -> Result<R> {
        let before = self.removals.count();
        let kept = self.kept_blocks();
        let mut work = |ext4: &mut Ext4| {
            ext4.keep_blocks(kept);
            let done = work(ext4);
            ext4.keep_blocks(0);
            done
        };
        let done = self.with(&mut work);
        let lacks_room = match &done {
            Ok(done) => is_short(done),
            Err(error) => *error == Errno::ENOSPC,
        };
        if lacks_room && self.removals.wait(before) {
            self.with(work)
        } else {
            done
        }
    }

    /// Notes whether there is something to commit, and whether the journal has failed.
    fn note_state(&self, ext4: &Ext4) {
        let has_changes = !ext4.is_read_only() && !ext4.is_committed();
        let since = self.changed_since.load(Ordering::Relaxed);
        if has_changes && since == 0 {
            let now = task::now_ns().max(1);
            self.changed_since.store(now, Ordering::Relaxed);
            writeback::count_changed();
        } else if !has_changes && since != 0 {
            self.changed_since.store(0, Ordering::Relaxed);
            writeback::uncount_changed();
        }
        if ext4.is_read_only()
            && !self.is_read_only.load(Ordering::Relaxed)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            log::error!(
                "EXT4-fs ({}): the journal cannot be written: nothing is changed any more",
                self.disk
            );
        }
    }

    /// Blocks that the caller leaves free: for the extents that writing back splits, and for root.
    fn kept_blocks(&self) -> u64 {
        let may_use = MAY_USE_RESERVED.get().is_none_or(|hook| hook());
        self.spare_blocks + if may_use { 0 } else { self.reserved_blocks }
    }

    /// The file with a number.
    fn inode(&self, ino: u32) -> Result<Arc<Ext4Inode>> {
        let this = self.this.upgrade().ok_or(Errno::EIO)?;
        let mut table = self.inodes.lock();
        if let Some(state) = table.by_number.get(&ino).and_then(|it| it.state.upgrade()) {
            return Ok(state.user());
        }
        if table.by_number.len() >= table.prune_threshold {
            table
                .by_number
                .retain(|_, known| known.state.strong_count() > 0);
            table.prune_threshold = 2 * table.by_number.len() + 64;
        }
        let state = InodeState::load(this, ino)?;
        let known = Known {
            state: Arc::downgrade(&state),
            cache: state.cache().map_or_else(Weak::new, Arc::downgrade),
        };
        table.by_number.insert(ino, known);
        Ok(state.user())
    }

    /// Takes a file from the table whose last `user` ends and which has no name, so its number may
    /// be another file's. `false` if somebody has found it there since.
    fn forget_inode(&self, state: &Arc<InodeState>, user: &Ext4Inode) -> bool {
        let mut table = self.inodes.lock();
        if !state.is_used_by(user) {
            return false;
        }
        let own = |known: &Known| core::ptr::eq(known.state.as_ptr(), Arc::as_ptr(state));
        if table.by_number.get(&state.number()).is_some_and(own) {
            table.by_number.remove(&state.number());
        }
        true
    }

    /// Takes over what was changed of a file, if it is in use. One that has no name any more is
    /// removed, if not.
    fn update(&self, ino: u32, is_gone: bool) -> Result<()> {
        let known = self
            .inodes
            .lock()
            .by_number
            .get(&ino)
            .and_then(|known| known.state.upgrade())
            .map(InodeState::user);
        match known {
            Some(inode) => inode.refresh(),
            None if is_gone => self.with(|ext4| ext4.release(ino)),
            None => Ok(()),
        }
    }

    /// Calls `each` with every file of which something is not on the disk, and forgets those that
    /// are clean then.
    fn for_each_dirty(&self, mut each: impl FnMut(&InodeState)) {
        let mut next = Some(0);
        while let Some(from) = next {
            let found = self
                .dirty
                .lock()
                .range(from..)
                .next()
                .map(|it| it.1.clone());
            let Some(state) = found else { return };
            next = state.number().checked_add(1);
            state.visit(|state| {
                each(state);
                self.unlist_if_clean(state);
            });
        }
    }

    /// Puts a file on the list of those of which something is not on the disk.
    fn list(&self, state: Arc<InodeState>) {
        let old = self.dirty.lock().insert(state.number(), state);
        drop(old);
    }

    /// Takes a file from the list.
    fn unlist(&self, state: &InodeState) {
        let old = self.dirty.lock().remove(&state.number());
        drop(old);
    }

    fn unlist_if_clean(&self, state: &InodeState) {
        let old = {
            let mut dirty = self.dirty.lock();
            // Who makes it dirty from here on puts it back.
            state.is_listed.swap(false, Ordering::AcqRel);
            if state.is_dirty() {
                state.is_listed.swap(true, Ordering::AcqRel);
                return;
            }
            dirty.remove(&state.number())
        };
        drop(old);
    }

    /// Bytes of a block of the disk, the least that is read or written.
    fn logical_block(&self) -> u32 {
        self.device.logical_block()
    }

    /// Place of a new opener among the failures to write files back.
    fn sample_errors(&self) -> ErrorCursor {
        self.errors.lock().sample()
    }

    /// Tells an opener of the last such failure that it was not told of.
    fn check_errors(&self, told: &mut ErrorCursor) -> Result<()> {
        self.errors.lock().check_and_advance(told)
    }

    /// Brings everything that was changed before to the medium. What was not there when the journal
    /// failed never comes there.
    fn commit(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        self.with(Ext4::sync)
    }

    fn write_all_files(&self) {
        self.for_each_dirty(InodeState::write_all);
    }
}

impl writeback::CacheOwner for Ext4Fs {
    fn write_back(&self, before: u64) {
        self.for_each_dirty(|inode| inode.write_back(before));
        let since = self.changed_since.load(Ordering::Relaxed);
        if since != 0 && task::now_ns().saturating_sub(since) >= COMMIT_NS {
            // A failure is in the log, and the next call that changes something is told.
            let _ = self.commit();
        }
    }

    fn write_all(&self) {
        self.write_all_files();
    }

    fn sync(&self) {
        let _ = FileSystem::sync(self);
    }

    fn try_shrink(&self, count: usize) -> usize {
        let mut freed = 0;
        if let Some(table) = self.inodes.try_lock() {
            for known in table.by_number.values() {
                if freed == count {
                    break;
                }
                if let Some(cache) = known.cache.upgrade() {
                    freed += cache.try_shrink(count - freed);
                }
            }
        }
        if freed < count
            && let Some(mut ext4) = self.ext4.try_lock()
            && let Some(ext4) = ext4.as_mut()
        {
            freed += ext4.shrink(count - freed);
        }
        freed
    }
}

impl FileSystem for Ext4Fs {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> Arc<dyn Inode> {
        match &*self.root.lock() {
            Some(root) => root.clone(),
            None => Arc::new(Unmounted(self.id)),
        }
    }

    fn statfs(&self) -> StatFs {
        self.removals.wait(self.removals.count());
        let figures = self.with(|ext4| Ok(ext4.statfs()));
        figures.map_or_else(
            |_| StatFs::default(),
            |figures| StatFs {
                magic: MAGIC,
                block_size: figures.block_size.into(),
                blocks: figures.blocks,
                blocks_free: figures.free_blocks,
                blocks_reserved: self.spare_blocks
                    + (figures.free_blocks - figures.available_blocks),
                files: figures.inodes.into(),
                files_free: figures.free_inodes.into(),
            },
        )
    }

    fn options(&self) -> String {
        let mut text = String::new();
        if self.shows_errors.load(Ordering::Relaxed) {
            text += ",errors=remount-ro";
        }
        if self.has_failed.load(Ordering::Relaxed) {
            text += ",emergency_ro";
        }
        text
    }

    fn reconfigure(&self, options: &str) -> Result<()> {
        check_options(options)?;
        if options.contains("errors=") {
            self.shows_errors.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_read_only(&self, read_only: bool) -> Result<()> {
        if !read_only {
            self.with(|ext4| {
                ext4.make_writable().map_err(|error| {
                    log::error!("EXT4-fs ({}): {error}", self.disk);
                    error.errno()
                })
            })?;
            self.is_read_only.store(false, Ordering::Relaxed);
            return Ok(());
        }
        self.removals.wait(self.removals.count());
        if self.orphans.load(Ordering::Relaxed) > 0 {
            return Err(Errno::EBUSY);
        }
        self.write_all_files();
        if self.has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.is_read_only.store(true, Ordering::Relaxed);
        self.with(Ext4::make_read_only)
            .inspect_err(|_| self.is_read_only.store(false, Ordering::Relaxed))
    }

    fn sync(&self) -> Result<()> {
        self.write_all_files();
        self.commit()
    }

    fn put_super(&self) {
        // Who syncs or shrinks all caches at this moment has the disk a while longer.
        self.device.leave();
        self.write_all_files();
        let root = self.root.lock().take();
        drop(root);
        let dirty = core::mem::take(&mut *self.dirty.lock());
        drop(dirty);
        let Some(ext4) = self.ext4.lock().take() else {
            return;
        };
        if self.changed_since.swap(0, Ordering::Relaxed) != 0 {
            writeback::uncount_changed();
        }
        match ext4.unmount() {
            Ok(()) => log::info!("EXT4-fs ({}): unmounting filesystem.", self.disk),
            Err(error) => log::error!(
                "EXT4-fs ({}): not everything was written: {}",
                self.disk,
                error.text()
            ),
        }
    }
}

/// The top of a file system that is not mounted any more.
struct Unmounted(DeviceId);

impl Inode for Unmounted {
    fn metadata(&self) -> Metadata {
        Metadata::generated(self.0.encode(), ROOT.into(), FileType::Directory, 0)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }
}
