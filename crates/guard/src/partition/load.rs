//! Filling an instance's memory: kernel image, archive, boot blob, page tables, descriptor.
//!
//! The instance's frames are used from 0 up in that order; what follows is free. All of it is
//! written through the supervisor's direct map before the memory is granted.

use core::fmt;

use abi::descriptor::{
    Descriptor, FLAG_GROUPS, FLAG_INVARIANT_TSC, FLAG_NETWORK, FLAG_PEERS, FLAG_SEEDED,
    FLAG_TSC_DEADLINE, FLAG_X2APIC, MAX_RANGES, MemRange, RESERVED_IMAGE, RESERVED_TABLES,
    ROLE_SUBOS, Reserved,
};
use abi::layout::{
    ANSWERS, DESCRIPTOR, GRANULE_FRAMES, LIVE, MESSAGES, NETWORK, PAGE_SIZE, PARK, WINDOW,
};
use abi::messages::{MAX_PLACES, PEER_PLACES};
use abi::{Network, Window, descriptor, live};
use arrayvec::ArrayVec;

use super::{Partition, Spec};
use crate::mem::frame::Frame;
use crate::mem::grant::Granules;
use crate::mem::{CpuCounts, direct, phys};
use crate::paging::TableView;
use crate::paging::build::{self, Access, Plan, Shared};
use crate::{boot, irq, mem, park, random, role, smp};

/// Why something could not be put into an instance. It is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The instance was started already.
    Started,
    /// The instance's memory is too small; so many bytes would be needed in all.
    NoRoom {
        /// The least memory that would do.
        needed: u64,
    },
    /// The instance has one already.
    AlreadySet,
    /// A write beyond what was announced.
    PastEnd,
    /// There is no room to keep where it is for a supervisor that starts again.
    NotKept,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("the instance was started already"),
            Self::NoRoom { needed } => write!(
                f,
                "the instance would need {} MiB",
                needed.div_ceil(1 << 20)
            ),
            Self::AlreadySet => f.write_str("the instance has one already"),
            Self::PastEnd => f.write_str("write beyond the announced length"),
            Self::NotKept => f.write_str("too many instances run"),
        }
    }
}

impl core::error::Error for LoadError {}

/// Frames a kernel needs free when it starts, beside its tables of pages and frames: a first heap,
/// its program's stack.
const MIN_FREE_FRAMES: u64 = 256;

/// Most memory that an instance may have while it runs, as a multiple of what it has first: its
/// tables for it are made at the start, and take a thousandth of that.
const GROWTH: u64 = 16;

/// The CPUs of an instance that has so many at first: it may have all but the supervisor's.
pub(super) fn cpu_counts(first: usize) -> CpuCounts {
    let others = smp::machine_cpus() - role::descriptor().cpus().len();
    CpuCounts {
        first,
        most: first.max(others),
    }
}

/// The most frames that an instance may have which has so many at first.
fn limit(frames: u64) -> u64 {
    let machine = mem::total_frames().next_multiple_of(GRANULE_FRAMES);
    frames.max((frames * GROWTH).min(machine))
}

/// Frames that nothing may be loaded into, of an instance with so many frames, in however many
/// runs: its page tables, its tables of frames, what a kernel needs to start, and the shares of
/// memory without which it makes no files, those of the archive included. They grow with memory,
/// and the tables of frames lie in a row.
fn elbow_room(frames: u64, image_frames: u64, cpus: &CpuCounts) -> u64 {
    let runs = (frames / GRANULE_FRAMES).clamp(1, MAX_RANGES as u64) as usize;
    let tables = build::max_tables(frames, runs, image_frames as usize) as u64;
    tables
        + mem::table_frames(frames, limit(frames), cpus)
        + mem::shares_of(frames)
        + MIN_FREE_FRAMES
}

/// Frames of the largest machine there could be: 52 bits of physical addresses.
const MOST_FRAMES: u64 = 1 << 40;

/// The least number of frames, whole granules, of an instance into which so many are loaded, its
/// image among them. If no machine has as many, what comes with them is not counted.
fn least_frames(loaded: u64, image_frames: u64, cpus: &CpuCounts) -> u64 {
    if loaded > MOST_FRAMES {
        return loaded;
    }
    let mut least = loaded;
    // What a frame more costs is far less than a frame, so this comes to an end.
    loop {
        let elbow = elbow_room(least, image_frames, cpus);
        let needed = (loaded + elbow).next_multiple_of(GRANULE_FRAMES);
        if needed <= least {
            return least;
        }
        least = needed;
    }
}

/// The least memory an instance of so many granules needs, in bytes.
pub(super) fn min_memory(image_frames: u64, granules: u64, cpus: usize) -> u64 {
    let elbow = elbow_room(granules * GRANULE_FRAMES, image_frames, &cpu_counts(cpus));
    (image_frames + elbow) * PAGE_SIZE as u64
}

impl Partition {
    /// Fills in the part of the descriptor that is known from the start.
    pub(super) fn fill_descriptor(&mut self, spec: &Spec<'_>) {
        let machine = role::descriptor();
        let runs = self
            .granules()
            .runs()
            .expect("checked when the granules were taken");
        let d = &mut *self.staged;
        d.role = ROLE_SUBOS;
        d.instance_id = spec.id;
        d.flags = machine.flags & (FLAG_X2APIC | FLAG_TSC_DEADLINE | FLAG_INVARIANT_TSC);
        d.tsc_hz = machine.tsc_hz;
        d.lapic_hz = machine.lapic_hz;
        d.lapic_phys = machine.lapic_phys;
        d.doorbell_apic_id = machine.cpus()[0].apic_id;
        d.doorbell_vector = u32::from(irq::DOORBELL_VECTOR);
        d.image_frame = 0;
        d.image_frames = machine.image_frames;
        d.set_label(spec.label);
        d.set_cmdline(spec.cmdline);
        random::fill(&mut d.random_seed);
        if random::seed_bits() >= random::ENOUGH_BITS {
            d.flags |= FLAG_SEEDED;
        }
        if spec.network {
            d.flags |= FLAG_NETWORK;
        }
        if spec.places > 0 {
            d.flags |= FLAG_PEERS;
        }
        if spec.places > PEER_PLACES {
            d.flags |= FLAG_GROUPS;
        }
        for run in &runs {
            let range = MemRange {
                first_frame: run.first,
                phys: phys::of(run.at).0,
                count: run.count,
            };
            let _ = d.push_range(range);
        }
        d.limit_frames = limit(d.total_frames());
        d.limit_cpus = cpu_counts(spec.cpus as usize).most as u64;
        let image = Reserved {
            first_frame: 0,
            count: d.image_frames as u32,
            kind: RESERVED_IMAGE,
        };
        let _ = d.push_reserved(image);
    }

    pub(super) fn granules(&self) -> &Granules {
        self.memory.as_ref().expect("there until it is reclaimed")
    }

    pub(super) fn granules_mut(&mut self) -> &mut Granules {
        self.memory.as_mut().expect("there until it is reclaimed")
    }

    /// Speaks for frames of the instance; returns the first.
    fn reserve(&mut self, bytes: u64) -> Result<u64, LoadError> {
        if self.started {
            return Err(LoadError::Started);
        }
        let frames = self.memory_bytes() / PAGE_SIZE as u64;
        let count = bytes.div_ceil(PAGE_SIZE as u64);
        let loaded = self.next_frame.saturating_add(count);
        let image = self.staged.image_frames;
        let cpus = cpu_counts(self.cpus.len());
        let elbow = elbow_room(frames, image, &cpus);
        if loaded.saturating_add(elbow) > frames {
            let least = least_frames(loaded, image, &cpus);
            return Err(LoadError::NoRoom {
                needed: least.saturating_mul(PAGE_SIZE as u64),
            });
        }
        let first = self.next_frame;
        self.next_frame += count;
        Ok(first)
    }

    /// Announces the archive of the instance's file system, of `len` bytes.
    ///
    /// # Errors
    /// If there is no room, or it was announced before.
    pub fn announce_initramfs(&mut self, len: u64) -> Result<(), LoadError> {
        if self.staged.initramfs_len != 0 {
            return Err(LoadError::AlreadySet);
        }
        self.staged.initramfs_frame = self.reserve(len)?;
        self.staged.initramfs_len = len;
        Ok(())
    }

    /// Writes a part of the announced archive.
    ///
    /// # Errors
    /// If it is beyond what was announced, or the instance was started.
    pub fn write_initramfs(&mut self, offset: u64, bytes: &[u8]) -> Result<(), LoadError> {
        if self.started {
            return Err(LoadError::Started);
        }
        if offset
            .checked_add(bytes.len() as u64)
            .is_none_or(|end| end > self.staged.initramfs_len)
        {
            return Err(LoadError::PastEnd);
        }
        let at = self.staged.initramfs_frame * PAGE_SIZE as u64 + offset;
        self.granules_mut().write(at, bytes);
        Ok(())
    }

    /// Gives the instance its boot blob: what to run.
    ///
    /// # Errors
    /// If there is no room, or it has one.
    pub fn set_boot_blob(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        if self.staged.boot_blob_len != 0 {
            return Err(LoadError::AlreadySet);
        }
        let first = self.reserve(bytes.len() as u64)?;
        self.staged.boot_blob_frame = first;
        self.staged.boot_blob_len = bytes.len() as u64;
        self.granules_mut().write(first * PAGE_SIZE as u64, bytes);
        Ok(())
    }

    /// Writes image, tables and descriptor, and grants the memory. Returns what goes into CR3.
    pub(super) fn load(&mut self) -> Result<u64, LoadError> {
        self.reserve(0)?;
        self.write_image();
        let root = self.build_tables()?;
        let first = self.staged.reserved().len();
        debug_assert!(first > 0, "the image at least");
        // The clock starts with the supervisor's, so that both tell the same time.
        let machine = role::descriptor();
        self.staged.tsc_base = machine.tsc_base;
        self.staged.wall_base_ns = machine.wall_base_ns;
        debug_assert_eq!(self.staged.validate(), Ok(()));
        let to = self.shared().descriptor.ptr();
        // SAFETY: a block of the descriptor's size, ours, which the instance does not see before it
        // is started.
        unsafe {
            core::ptr::copy_nonoverlapping(
                core::ptr::from_ref::<Descriptor>(&self.staged).cast::<u8>(),
                to,
                descriptor::SIZE,
            );
        };
        let id = self.id;
        self.granules_mut().grant(id);
        Ok(root)
    }

    /// The kernel as the boot loader left it, at the instance's frame 0.
    fn write_image(&mut self) {
        let image = boot::image_parts();
        let frames = self.staged.image_frames;
        let granules = self.granules_mut();
        // Zeroes first from the data on: what the image's file does not hold is zero, and memory
        // unused since boot may hold anything.
        for frame in (image.data_offset / PAGE_SIZE) as u64..frames {
            let at = granules.frame(frame).expect("the image fits, by `create`");
            // SAFETY: a frame of ours that is not granted yet.
            unsafe { direct::zero(direct::ptr(at), 1) };
        }
        granules.write(0, image.constant);
        granules.write(image.data_offset as u64, image.data);
    }

    fn build_tables(&mut self) -> Result<u64, LoadError> {
        let runs = self
            .granules()
            .runs()
            .expect("checked when the granules were taken");
        let shared = self.shared();
        let machine = role::descriptor();
        let image = boot::image();
        let park_frame =
            machine.image_frame + ((park::page() - image.text.start) / PAGE_SIZE) as u64;
        let network = shared.network.as_ref().map(|pages| Shared {
            va: NETWORK,
            at: pages.first(),
            pages: Network::SIZE / PAGE_SIZE,
            access: Access::ReadWrite,
        });
        let always = [
            Shared {
                va: DESCRIPTOR,
                at: shared.descriptor.first(),
                pages: descriptor::SIZE / PAGE_SIZE,
                access: Access::Read,
            },
            Shared {
                va: LIVE,
                at: shared.live.first(),
                pages: live::SIZE / PAGE_SIZE,
                access: Access::Read,
            },
            Shared {
                va: WINDOW,
                at: shared.window.first(),
                pages: Window::SIZE.div_ceil(PAGE_SIZE),
                access: Access::ReadWrite,
            },
            Shared {
                va: ANSWERS,
                at: shared.answers(),
                pages: 1,
                access: Access::ReadWrite,
            },
            Shared {
                va: PARK,
                at: Frame(park_frame),
                pages: 1,
                access: Access::ReadExecute,
            },
        ];
        let message_pages = shared.places.mapped().flatten();
        let messages = message_pages.enumerate().map(|(number, at)| Shared {
            va: MESSAGES + number * PAGE_SIZE,
            at,
            pages: 1,
            access: match number % 2 {
                0 => Access::ReadWrite,
                _ => Access::Read,
            },
        });
        let maps: ArrayVec<Shared, { 6 + 2 * MAX_PLACES }> =
            always.into_iter().chain(network).chain(messages).collect();
        let first = self.next_frame;
        let mut next = first;
        let plan = Plan {
            runs: &runs,
            image_first: 0,
            image: &image,
            shared: &maps,
        };
        let granules = self.granules();
        let mut take = || {
            next += 1;
            granules.frame(next - 1)
        };
        // SAFETY: frames of the instance that are spoken for by nobody, each once, not granted yet.
        let root = unsafe { build::build(&plan, TableView::Direct, &mut take) };
        let Ok(root) = root else {
            return Err(LoadError::NoRoom {
                needed: self.memory_bytes() + (2 << 20),
            });
        };
        let tables = Reserved {
            first_frame: first,
            count: (next - first) as u32,
            kind: RESERVED_TABLES,
        };
        self.staged.root_table_frame = first;
        let _ = self.staged.push_reserved(tables);
        self.next_frame = next;
        Ok(phys::of(root).0)
    }

    /// Physical address of the root table, for CR3, of an instance that was loaded.
    pub(super) fn root(&self) -> u64 {
        self.staged
            .phys_of(self.staged.root_table_frame)
            .expect("one of its frames")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: CpuCounts = CpuCounts { first: 2, most: 4 };

    /// A kernel of 1500 MiB once ended before it could say so: its count of references, four bytes
    /// a frame, did not fit into what was left.
    #[test]
    fn what_is_left_grows_with_memory() {
        for granules in [4, 100, 750, 1 << 15] {
            let frames = granules * GRANULE_FRAMES;
            let room = elbow_room(frames, 2000, &CPUS) * PAGE_SIZE as u64;
            let references = frames * 4;
            let shares = mem::shares_of(frames) * PAGE_SIZE as u64;
            let free = shares + MIN_FREE_FRAMES * PAGE_SIZE as u64;
            assert!(room > references + free);
            assert!(
                room < references + references / 2 + shares + (8 << 20),
                "{room}"
            );
        }
    }

    /// Memory that is said to be needed is enough, and a granule less is not.
    #[test]
    fn what_would_be_enough_is_exact() {
        for loaded in [2000, 2001, 5000, 20_000, 400_000, 4_000_000, 1 << 32] {
            let least = least_frames(loaded, 2000, &CPUS);
            let fits = |frames| loaded + elbow_room(frames, 2000, &CPUS) <= frames;
            assert!(least.is_multiple_of(GRANULE_FRAMES));
            assert!(fits(least) && !fits(least - GRANULE_FRAMES), "{loaded}");
        }
        // Whatever a program announces.
        for loaded in [MOST_FRAMES, MOST_FRAMES + 1, u64::MAX] {
            assert!(least_frames(loaded, 2000, &CPUS) >= loaded);
        }
    }
}
