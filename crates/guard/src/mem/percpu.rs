//! Per-CPU caches of free memory. Threads of any CPU may use any of them: nothing here needs
//! interrupts off or preemption disabled, and a CPU's share can be taken back by whoever is short
//! of memory.

use core::sync::atomic::{AtomicU64, Ordering};

use frames::Stash;
use lfmutex::Once;

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

static CACHES: Once<&'static [CpuCache]> = Once::new();

/// Bytes of the table.
pub(super) const fn bytes(cpus: usize) -> usize {
    cpus * size_of::<CpuCache>()
}

/// Puts the table at `at`.
///
/// # Safety
/// `bytes(cpus)` bytes from `at` on, page-aligned, are zero, mapped, and the table's for good.
pub(super) unsafe fn init(at: *mut u8, cpus: usize) {
    CACHES.call_once(|| {
        // SAFETY: by the caller's promise; all-zero bytes are a `CpuCache`.
        unsafe { core::slice::from_raw_parts(at.cast::<CpuCache>(), cpus) }
    });
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

/// All shares.
pub(super) fn all() -> &'static [CpuCache] {
    CACHES.get().expect("memory used before mem::init")
}

/// The share of a CPU.
pub(crate) fn of(cpu: crate::cpu::CpuId) -> Option<&'static CpuCache> {
    CACHES.get()?.get(cpu.0 as usize)
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
        &all()[0]
    }
}

/// Sums a balance over all CPUs. Read one after another, the parts may add up to less than nothing
/// for a moment.
pub(super) fn sum(part: impl Fn(&CpuCache) -> &AtomicU64) -> u64 {
    let sum = all().iter().fold(0u64, |sum, local| {
        sum.wrapping_add(part(local).load(Ordering::Relaxed))
    });
    if sum > u64::MAX / 2 { 0 } else { sum }
}
