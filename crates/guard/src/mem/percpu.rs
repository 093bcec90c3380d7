//! Per-CPU caches of free memory. Threads of any CPU may use any of them: nothing here needs
//! interrupts off or preemption disabled, and a CPU's share can be taken back by whoever is short
//! of memory.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use abi::descriptor::MAX_CPUS;
use frames::Stash;

use super::alloc::Block;

/// Zeroed pages kept by each CPU: 256 KiB.
pub(super) const ZEROED: usize = 64;

/// A CPU's share of free memory. All-zero bytes are a valid one, with nothing in it.
#[repr(align(64))]
pub(crate) struct CpuCache {
    /// Frames of zeroes, by number plus one.
    pub(super) zeroed: Stash<ZEROED>,
    /// Pages that may be made before somebody has to look how much memory is left.
    pub(super) budget: AtomicU64,
    /// Pages made minus pages freed by way of this CPU, modulo 2^64.
    pub(super) pages: AtomicU64,
    /// Frames taken by the heap minus frames given back by way of this CPU, modulo 2^64.
    pub(super) heap: AtomicU64,
    /// Page tables of programs made minus freed by way of this CPU, modulo 2^64.
    pub(super) tables: AtomicU64,
    /// Free small objects.
    pub(super) magazines: slab::Magazines,
}

/// The shares of the CPUs `0..COUNT`.
static CACHES: [AtomicPtr<CpuCache>; MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the table of the first shares.
pub(super) const fn bytes(cpus: usize) -> usize {
    cpus * size_of::<CpuCache>()
}

/// Puts the table at `at`.
///
/// # Safety
/// `bytes(cpus)` bytes from `at` on, page-aligned, are zero, mapped, and the table's for good.
pub(super) unsafe fn init(at: *mut u8, cpus: usize) {
    if COUNT.load(Ordering::Acquire) == 0 {
        for (cpu, slot) in CACHES[..cpus].iter().enumerate() {
            slot.store(at.cast::<CpuCache>().wrapping_add(cpu), Ordering::Relaxed);
        }
        COUNT.store(cpus, Ordering::Release);
    }
    #[cfg(target_os = "none")]
    crate::arch::cpu::install_memory();
}

/// Number of the CPU this runs on: which share to use, and no more than that, since the thread may
/// be moved at any moment.
#[inline]
pub(super) fn cpu() -> usize {
    #[cfg(target_os = "none")]
    {
        crate::cpu::current().0 as usize
    }
    #[cfg(not(target_os = "none"))]
    {
        0
    }
}

/// Makes a share for a CPU that comes later, with the next number; one that was there before has
/// it still. False if memory is short. By one caller at a time.
pub(crate) fn add(cpu: crate::cpu::CpuId) -> bool {
    let number = cpu.0 as usize;
    if number < COUNT.load(Ordering::Acquire) {
        return true;
    }
    const PAGES: usize = size_of::<CpuCache>()
        .div_ceil(abi::layout::PAGE_SIZE)
        .next_power_of_two();
    let Some(block) = Block::zeroed(PAGES.ilog2() as u8) else {
        return false;
    };
    // All-zero bytes are a `CpuCache`.
    let share = block.ptr().cast::<CpuCache>();
    block.into_raw();
    CACHES[number].store(share, Ordering::Relaxed);
    COUNT.store(number + 1, Ordering::Release);
    if slab::poison::on() {
        all().skip(number).for_each(|share| share.magazines.close());
    }
    true
}

/// All shares.
pub(super) fn all() -> impl ExactSizeIterator<Item = &'static CpuCache> + Clone {
    let shares = &CACHES[..COUNT.load(Ordering::Acquire)];
    assert!(!shares.is_empty(), "memory used before mem::init");
    // SAFETY: shares below `COUNT` are there, and never freed.
    shares
        .iter()
        .map(|share| unsafe { &*share.load(Ordering::Relaxed) })
}

/// The share of a CPU.
pub(crate) fn of(cpu: crate::cpu::CpuId) -> Option<&'static CpuCache> {
    let share = CACHES[..COUNT.load(Ordering::Acquire)].get(cpu.0 as usize)?;
    // SAFETY: as in `all`.
    unsafe { share.load(Ordering::Relaxed).as_ref() }
}

/// The share of the CPU this runs on.
#[inline]
pub(super) fn mine() -> &'static CpuCache {
    #[cfg(target_os = "none")]
    {
        crate::arch::cpu::memory().expect("memory used before mem::init")
    }
    #[cfg(not(target_os = "none"))]
    {
        all().next().expect("there is one CPU at least")
    }
}

/// Sums a balance over all CPUs. Read one after another, the parts may add up to less than nothing
/// for a moment.
pub(super) fn sum(part: impl Fn(&CpuCache) -> &AtomicU64) -> u64 {
    let sum = all().fold(0u64, |sum, local| {
        sum.wrapping_add(part(local).load(Ordering::Relaxed))
    });
    if sum > u64::MAX / 2 { 0 } else { sum }
}
