//! The kernel half of an instance's page tables, built from outside.
//!
//! The same code runs twice in a machine's life: the supervisor's boot code builds the supervisor's
//! own tables with it, while it still runs on the assembly's identity map, and partition creation
//! builds an instance's, in the instance's frames and through the supervisor's direct map. The
//! builder names memory in *its own* frame numbers; what ends up in the tables is physical, and
//! what is at which address follows the *target's* frame numbers.
//!
//! Built are (`abi::layout`):
//! * the direct map of the target's frames, by 2 MiB pages wherever a whole granule is there, never
//!   executable, and read-only where it aliases the image's text and read-only data;
//! * the image: text read-execute, read-only data read-only, the rest read-write;
//! * the shared mappings named in the plan (descriptor, window, park page);
//! * empty second-level tables for kernel stacks and device registers, so that the top-level
//!   entries of the kernel half never change afterwards. User page tables copy them once and stay
//!   right for good.

use core::ops::Range;

use abi::layout::{DIRECT, GRANULE_SIZE, MMIO, PAGE_SIZE, STACKS};
use x86_spec::paging::{Entry, Flags};

use super::table::{self, Table, TableView, index};
use crate::mem::frame::Frame;
use crate::mem::phys::{self, PhysAddr};

/// A run of the target's frames: its frames `first..first + count` are the builder's
/// `at..at + count`.
///
/// `first` and the physical frame number must be congruent modulo 512, so that granules of the
/// direct map are granules of physical memory. (An instance's memory comes in whole granules and is
/// numbered from 0; the supervisor's boot code numbers odd runs accordingly.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// First frame, as the target numbers it.
    pub first: u64,
    /// The same frame, as the builder numbers it.
    pub at: Frame,
    /// Number of frames.
    pub count: u64,
}

/// Access to a shared mapping. Never written and executed both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and execute.
    ReadExecute,
}

impl Access {
    /// The entry bits, for a mapping that is not global: another instance has something else at the
    /// same address.
    pub(super) fn flags(self) -> Flags {
        match self {
            Self::Read => Flags::NO_EXECUTE,
            Self::ReadWrite => Flags::NO_EXECUTE | Flags::WRITE,
            Self::ReadExecute => Flags::empty(),
        }
    }
}

/// Pages of the builder's that the target sees as well, at a fixed address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// Address at which the target sees them; page-aligned, in the kernel half.
    pub va: usize,
    /// First frame, as the builder numbers it.
    pub at: Frame,
    /// Number of pages.
    pub pages: usize,
    /// Access that the target has.
    pub access: Access,
}

/// Addresses of the image's parts, as linked: `text.start` is the image's first byte and
/// page-aligned, as are all other bounds; the parts follow each other without gaps in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageLayout {
    /// Executable code.
    pub text: Range<usize>,
    /// Constants.
    pub rodata: Range<usize>,
    /// Data and zeroed data.
    pub data: Range<usize>,
}

/// Everything that goes into the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// All the target's memory.
    pub runs: &'a [Run],
    /// Frame of the image's first byte, as the target numbers it; the image is contiguous in the
    /// target's numbering.
    pub image_first: u64,
    /// The image's parts.
    pub image: &'a ImageLayout,
    /// Descriptor, window, park page.
    pub shared: &'a [Shared],
}

/// Why tables could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildError {
    /// `take` gave no more frames.
    OutOfFrames,
    /// The image lies outside the target's memory.
    Image,
    /// A run's frame numbers are not congruent to its physical ones.
    Run(u64),
}

/// Builds the tables. Each table frame comes from `take` (a frame of the target's, in the builder's
/// numbering, whose content is of no importance) and is reached through `view`. Returns the root,
/// in the builder's numbering: `phys::of(root)` is what goes into CR3.
///
/// On an error the frames taken so far are garbage and free to be reused.
///
/// # Safety
/// The frames that `take` returns are reachable through `view`, distinct, and used by nobody else.
pub(crate) unsafe fn build(
    plan: &Plan<'_>,
    view: TableView,
    take: &mut dyn FnMut() -> Option<Frame>,
) -> Result<Frame, BuildError> {
    let root = new_table(view, take)?;
    let mut builder = Builder { root, view, take };

    let image_pages = |part: &Range<usize>| {
        let offset = (part.start - plan.image.text.start) / PAGE_SIZE;
        (
            plan.image_first + offset as u64,
            (part.end - part.start) / PAGE_SIZE,
        )
    };
    let constant_end = image_pages(&plan.image.data).0;

    for run in plan.runs {
        let at = phys::of(run.at);
        if !(at.0 / PAGE_SIZE as u64)
            .wrapping_sub(run.first)
            .is_multiple_of(abi::layout::GRANULE_FRAMES)
        {
            return Err(BuildError::Run(run.first));
        }
        // Three pieces, the middle one being the image's text and constants if they lie in this
        // run.
        let end = run.first + run.count;
        let cut = |frame: u64| frame.clamp(run.first, end);
        let (a, b) = (cut(plan.image_first), cut(constant_end));
        let writable = Flags::WRITE | Flags::NO_EXECUTE | Flags::GLOBAL;
        for (from, to, flags) in [
            (run.first, a, writable),
            (a, b, writable - Flags::WRITE),
            (b, end, writable),
        ] {
            builder.map(
                direct_va(from),
                at.add((from - run.first) * PAGE_SIZE as u64),
                to - from,
                flags,
            )?;
        }
    }

    for (part, flags) in [
        (&plan.image.text, Flags::GLOBAL),
        (&plan.image.rodata, Flags::GLOBAL | Flags::NO_EXECUTE),
        (
            &plan.image.data,
            Flags::GLOBAL | Flags::NO_EXECUTE | Flags::WRITE,
        ),
    ] {
        let (first, pages) = image_pages(part);
        let (mut frame, end) = (first, first + pages as u64);
        while frame < end {
            let contains = |run: &&Run| frame >= run.first && frame - run.first < run.count;
            let run = plan.runs.iter().find(contains).ok_or(BuildError::Image)?;
            let count = (end - frame).min(run.first + run.count - frame);
            let at = phys::of(run.at).add((frame - run.first) * PAGE_SIZE as u64);
            builder.map(
                part.start + (frame - first) as usize * PAGE_SIZE,
                at,
                count,
                flags,
            )?;
            frame += count;
        }
    }

    for shared in plan.shared {
        builder.map(
            shared.va,
            phys::of(shared.at),
            shared.pages as u64,
            shared.access.flags(),
        )?;
    }
    builder.second_level(STACKS)?;
    builder.second_level(MMIO)?;
    Ok(root)
}

/// Most frames that [`build`] takes for `frames` frames of memory in `runs` runs, with an image of
/// `image_pages` and the shared mappings of `abi::layout`.
pub(crate) fn max_tables(frames: u64, runs: usize, image_pages: usize) -> usize {
    const PER_TABLE: usize = table::ENTRIES;
    let granules = (frames as usize).div_ceil(PER_TABLE);
    let image_tables = image_pages.div_ceil(PER_TABLE) + 1;
    // Root; direct map: third-level tables by GiB, with a ragged one per run, its second level (512
    // GiB each) likewise, and page tables for the ragged ends of runs and around the image; image;
    // shared region; stacks; devices.
    let direct = granules.div_ceil(PER_TABLE)
        + runs
        + granules.div_ceil(PER_TABLE * PER_TABLE)
        + 2 * runs
        + image_tables;
    1 + direct + (2 + image_tables) + (2 + 3) + 1 + 1
}

fn direct_va(frame: u64) -> usize {
    DIRECT + frame as usize * PAGE_SIZE
}

fn new_table(
    view: TableView,
    take: &mut dyn FnMut() -> Option<Frame>,
) -> Result<Frame, BuildError> {
    let frame = take().ok_or(BuildError::OutOfFrames)?;
    // SAFETY: `build`'s caller promises that the frame is ours alone and reachable.
    unsafe { view.table(frame) }.clear();
    Ok(frame)
}

struct Builder<'a> {
    root: Frame,
    view: TableView,
    take: &'a mut dyn FnMut() -> Option<Frame>,
}

impl Builder<'_> {
    /// Maps `pages` pages, by 2 MiB entries where a whole aligned granule is asked for.
    fn map(&mut self, va: usize, at: PhysAddr, pages: u64, flags: Flags) -> Result<(), BuildError> {
        let end = va + pages as usize * PAGE_SIZE;
        let (mut va, mut at) = (va, at);
        while va < end {
            let whole = va.is_multiple_of(GRANULE_SIZE)
                && at.0.is_multiple_of(GRANULE_SIZE as u64)
                && end - va >= GRANULE_SIZE;
            let level = if whole { 2 } else { 1 };
            let table = self.walk(va, level)?;
            // As far as this table and this size of page go.
            let limit = if whole {
                end & !(GRANULE_SIZE - 1)
            } else {
                end
            };
            let stop = limit.min((va | (table::span(level + 1) - 1)).saturating_add(1));
            while va < stop {
                table.set(
                    index(va, level),
                    if whole {
                        Entry::large(at, flags)
                    } else {
                        Entry::page(at, flags)
                    },
                );
                va += table::span(level);
                at = at.add(table::span(level) as u64);
            }
        }
        Ok(())
    }

    /// Makes sure that the top-level entry for `va` points to a table.
    fn second_level(&mut self, va: usize) -> Result<(), BuildError> {
        self.walk(va, 3).map(drop)
    }

    /// The table of `level` (1: of pages, 4: the root) that covers `va`, made if need be.
    fn walk(&mut self, va: usize, level: usize) -> Result<&'static Table, BuildError> {
        // SAFETY: the root and every table linked below it came from `new_table`.
        let mut table = unsafe { self.view.table(self.root) };
        for upper in (level + 1..=4).rev() {
            let slot = index(va, upper);
            let entry = table.get(slot);
            let next = match entry.table() {
                Some(at) => phys::frame_at(at).ok_or(BuildError::OutOfFrames)?,
                None => {
                    let frame = new_table(self.view, self.take)?;
                    table.set(slot, Entry::kernel_table(phys::of(frame)));
                    frame
                }
            };
            // SAFETY: as above.
            table = unsafe { self.view.table(next) };
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use abi::layout::{DESCRIPTOR, GRANULE_FRAMES, IMAGE, PARK, WINDOW};

    use super::*;
    use crate::mem::host::{self, FRAMES, PHYS};

    /// The translation of `va` that the processor would find.
    fn translate(root: Frame, view: TableView, va: usize) -> Option<(u64, Flags)> {
        // SAFETY: tables that `build` made, in memory that the test keeps.
        let mut table = unsafe { view.table(root) };
        for level in (1..=4).rev() {
            let entry = table.get(index(va, level));
            if !entry.present() {
                return None;
            }
            let leaf = level == 1 || entry.flags().contains(Flags::LARGE);
            if leaf {
                let offset = (va & (table::span(level) - 1)) as u64;
                return Some((entry.address().0 + offset, entry.flags()));
            }
            assert!(!entry.flags().contains(Flags::USER));
            // SAFETY: as above.
            table = unsafe { view.table(phys::frame_at(entry.address()).unwrap()) };
        }
        None
    }

    #[test]
    fn an_instance_sees_its_own_and_nothing_else() {
        // The builder's memory is seen as the boot code would, in a buffer of the test's own.
        let base = PHYS;
        host::set_up();
        let mut memory = vec![0xa5_u8; (FRAMES as usize + 1) * PAGE_SIZE];
        let start = memory
            .as_mut_ptr()
            .expose_provenance()
            .next_multiple_of(PAGE_SIZE);
        let view = TableView::Boot(start.wrapping_sub(base as usize));

        // The target: granules 5, 6 and 2 of it, and its image from its frame 3 on.
        let granule = |n: u64| Frame(n * GRANULE_FRAMES);
        let runs = [
            Run {
                first: 0,
                at: granule(5),
                count: 2 * GRANULE_FRAMES,
            },
            Run {
                first: 2 * GRANULE_FRAMES,
                at: granule(2),
                count: GRANULE_FRAMES,
            },
        ];
        let text = IMAGE + GRANULE_SIZE;
        let page = |n: usize| text + n * PAGE_SIZE;
        let image = ImageLayout {
            text: text..page(4),
            rodata: page(4)..page(6),
            data: page(6)..page(600),
        };
        let shared = [
            Shared {
                va: DESCRIPTOR,
                at: Frame(1),
                pages: 4,
                access: Access::Read,
            },
            Shared {
                va: WINDOW,
                at: Frame(8),
                pages: 2,
                access: Access::ReadWrite,
            },
            Shared {
                va: PARK,
                at: Frame(16),
                pages: 1,
                access: Access::ReadExecute,
            },
        ];
        let plan = Plan {
            runs: &runs,
            image_first: 3,
            image: &image,
            shared: &shared,
        };
        let mut taken = 0;
        let mut take = || {
            taken += 1;
            Some(granule(7).add(taken - 1))
        };
        // SAFETY: the frames are in the test's memory, and used for this alone.
        let root = unsafe { build(&plan, view, &mut take) }.unwrap();
        assert!(
            taken as usize <= max_tables(3 * GRANULE_FRAMES, 2, 600),
            "{taken} tables"
        );

        let at = |frame: Frame| base + frame.0 * PAGE_SIZE as u64;
        let rights = |va| {
            translate(root, view, va).map(|(at, flags)| {
                assert!(!flags.contains(Flags::USER));
                let write = flags.contains(Flags::WRITE);
                let exec = !flags.contains(Flags::NO_EXECUTE);
                assert!(!(write && exec), "{va:#x} is writable code");
                (at, write, exec, flags.contains(Flags::LARGE))
            })
        };
        // Direct map: small pages around the image, read-only over its text and constants, large
        // elsewhere.
        assert_eq!(
            rights(direct_va(2)),
            Some((at(granule(5).add(2)), true, false, false))
        );
        assert_eq!(
            rights(direct_va(3)),
            Some((at(granule(5).add(3)), false, false, false))
        );
        assert_eq!(
            rights(direct_va(8)),
            Some((at(granule(5).add(8)), false, false, false))
        );
        assert_eq!(
            rights(direct_va(9)),
            Some((at(granule(5).add(9)), true, false, false))
        );
        assert_eq!(
            rights(direct_va(513)),
            Some((at(granule(6).add(1)), true, false, true))
        );
        assert_eq!(
            rights(direct_va(1024 + 7)),
            Some((at(granule(2).add(7)), true, false, true))
        );
        assert_eq!(rights(direct_va(3 * GRANULE_FRAMES)), None);
        // Image.
        assert_eq!(
            rights(page(0)),
            Some((at(granule(5).add(3)), false, true, false))
        );
        assert_eq!(
            rights(page(5)),
            Some((at(granule(5).add(8)), false, false, false))
        );
        assert_eq!(
            rights(page(599)),
            Some((at(granule(5).add(602)), true, false, false))
        );
        assert_eq!(rights(page(600)), None);
        assert_eq!(rights(text - 1), None);
        // Shared.
        assert_eq!(
            rights(DESCRIPTOR + 3 * PAGE_SIZE),
            Some((at(Frame(4)), false, false, false))
        );
        assert_eq!(
            rights(WINDOW + PAGE_SIZE),
            Some((at(Frame(9)), true, false, false))
        );
        assert_eq!(rights(PARK), Some((at(Frame(16)), false, true, false)));
        assert_eq!(rights(PARK + PAGE_SIZE), None);
        // The top-level entries for what comes later are there; everything else is not.
        // SAFETY: as in `translate`.
        let root = unsafe { view.table(root) };
        let present: Vec<usize> = (0..table::ENTRIES)
            .filter(|slot| root.get(*slot).present())
            .collect();
        assert_eq!(
            present,
            [DIRECT, STACKS, MMIO, DESCRIPTOR, IMAGE].map(|va| index(va, 4))
        );

        // Errors change nothing but the frames taken.
        // SAFETY: as above.
        let failed = |plan: &Plan<'_>, limit| unsafe {
            let mut next = 0;
            build(plan, view, &mut || {
                next += 1;
                (next <= limit).then(|| granule(6).add(next))
            })
        };
        assert_eq!(failed(&plan, taken - 1), Err(BuildError::OutOfFrames));
        assert_eq!(
            failed(
                &Plan {
                    image_first: 1000,
                    ..plan
                },
                100
            ),
            Err(BuildError::Image)
        );
        let odd = [Run {
            first: 1,
            at: granule(5),
            count: 5,
        }];
        assert_eq!(
            failed(&Plan { runs: &odd, ..plan }, 100),
            Err(BuildError::Run(1))
        );
    }
}
