//! Keeping the CPUs' translation caches honest.
//!
//! After an entry was made less permissive, no CPU may go on using the old one: what it led to can
//! be given away only when all have forgotten it. The initiator publishes one request, sends an
//! interrupt to the CPUs concerned (those on which the page table is active; all of the instance's
//! for the kernel half) and *sleeps* until the last one has acknowledged. Requests are taken one at
//! a time, under a sleeping lock. If no other CPU is concerned, no lock is taken and no interrupt
//! sent: a single-threaded program on its own CPU never disturbs anybody.
//!
//! A page table is *active* on a CPU from [`activate`] until another one is activated there, or
//! [`detach`] is requested because it is about to be freed. The CPU announces itself in the table's
//! mask before it reads how many changes there were and loads CR3; the initiator changes entries
//! and counts the change before it reads the mask, all sequentially consistent: either the
//! initiator sees the CPU, or the CPU sees the change, and drops what it may have cached of the
//! table when it last ran it (`asid`). CPUs that do not run the table are never interrupted.
//!
//! Where programs run on roots of their own (`isolation`) a CPU caches the same translations under
//! two identifiers, and drops those of the program's at its next return to ring 3. One that runs
//! something else before it returns gives the identifier up.

use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use ::trace::{Kind, Note};
use abi::layout::PAGE_SIZE;
use lfmutex::Mutex;

use super::asid::{Asids, Translations};
use super::{isolated, kernel};
use crate::cpu::{CpuId, MAX_CPUS};
use crate::mem::phys::PhysAddr;
use crate::trace;

/// Pages up to which single translations are dropped; beyond, all of them are.
const SINGLE_PAGES: usize = 32;

/// A set of CPUs.
#[derive(Debug)]
pub(super) struct CpuMask([AtomicU64; MAX_CPUS / 64]);

impl CpuMask {
    /// No CPU.
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_CPUS / 64])
    }

    fn insert(&self, cpu: CpuId) {
        self.0[cpu.0 as usize / 64].fetch_or(1 << (cpu.0 % 64), Ordering::SeqCst);
    }

    /// Removes a CPU; `true` if it was there.
    fn remove(&self, cpu: CpuId) -> bool {
        let bit = 1 << (cpu.0 % 64);
        self.0[cpu.0 as usize / 64].fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Calls `each` for every CPU that was in the set when its word was read.
    fn for_each(&self, mut each: impl FnMut(CpuId)) {
        for (word, bits) in self.0.iter().enumerate() {
            let mut bits = bits.load(Ordering::SeqCst);
            while bits != 0 {
                each(CpuId((word * 64) as u32 + bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }
}

/// State of a user page table that CPUs read while it is active there.
#[derive(Debug)]
pub(super) struct ActiveTable {
    root: PhysAddr,
    /// Root that the program runs on, if that is another one.
    pub(super) user_root: Option<PhysAddr>,
    /// Never reused, not 0.
    id: u64,
    /// Number of times that a translation was taken away.
    changes: AtomicU64,
    cpus: CpuMask,
}

impl ActiveTable {
    /// A table that is active nowhere.
    pub(super) fn new(root: PhysAddr, user_root: Option<PhysAddr>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            root,
            user_root,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            changes: AtomicU64::new(0),
            cpus: CpuMask::new(),
        }
    }
}

/// The instructions.
#[cfg(target_os = "none")]
mod cpu {
    use core::arch::asm;

    use x86_spec::paging::Flags;

    use crate::arch::features::{self, Features};
    pub(super) use crate::cpu::{current, without_irqs};
    pub(super) use crate::ipi::tlb as interrupt;
    pub(in super::super) use crate::isolation::is_on as isolates;
    pub(super) use crate::isolation::{drop_at_return, drops_at_return, set_roots};
    use crate::mem::phys::PhysAddr;
    use crate::paging::Translations;

    /// The bit that forbids execution, if there is one.
    pub(in super::super) fn no_execute() -> Flags {
        if features::has(Features::NX) {
            Flags::NO_EXECUTE
        } else {
            Flags::empty()
        }
    }

    /// Whether translations are told apart by identifiers.
    pub(super) fn has_asids() -> bool {
        features::has(Features::PCID)
    }

    /// Loads CR3, which drops all translations under `asid` but global ones, unless they are kept.
    /// Without identifiers `asid` is 0 and nothing is kept.
    ///
    /// # Safety
    /// `root` is a complete root table, and stays one while it is loaded. All roots have the same
    /// kernel half, so the code, stack and data in use stay mapped as they are. What is kept was
    /// cached from this very table, and not changed since.
    pub(super) unsafe fn load(root: PhysAddr, asid: u64, cached: Translations) {
        let value = root.0 | asid | u64::from(cached == Translations::Kept) << 63;
        // SAFETY: by the caller's promise; PCIDE is set if the value has more than an address.
        unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
    }

    /// Drops all translations of the active table but global ones.
    pub(super) fn flush_user() {
        // SAFETY: loading CR3 with its own value, whose highest bit reads as 0, changes no mapping.
        unsafe {
            asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags));
        };
    }

    /// Drops the translation of one page in the active table, and a global one.
    pub(super) fn flush_page(va: usize) {
        // SAFETY: dropping a translation changes no mapping.
        unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) };
    }

    /// Drops all translations, global ones too.
    pub(super) fn flush_everything() {
        const PGE: u64 = 1 << 7;
        without_irqs(|| {
            // SAFETY: changing CR4.PGE drops everything (SDM vol. 3A, 4.10.4.1) and changes no
            // mapping; the second write restores the value found. Interrupts are off, so nobody
            // else changes CR4 in between.
            unsafe {
                asm!(
                    "mov {old}, cr4",
                    "mov {new}, {old}",
                    "xor {new}, {pge}",
                    "mov cr4, {new}",
                    "mov cr4, {old}",
                    old = out(reg) _,
                    new = out(reg) _,
                    pge = const PGE,
                    options(nostack),
                );
            }
        });
    }
}

/// The processors of the unit tests.
#[cfg(not(target_os = "none"))]
mod tests;
pub(super) use cpu::{isolates, no_execute};
#[cfg(not(target_os = "none"))]
use tests::cpu;
#[cfg(test)]
pub(super) use tests::cpu::isolating;

/// The user page table that each CPU has loaded; null: the kernel's own.
static CURRENT: [AtomicPtr<ActiveTable>; MAX_CPUS] =
    [const { AtomicPtr::new(null_mut()) }; MAX_CPUS];

/// The identifiers of each CPU.
static ASIDS: [Asids; MAX_CPUS] = [const { Asids::new() }; MAX_CPUS];

/// CPUs that take part in shootdowns of the kernel half.
static ONLINE: CpuMask = CpuMask::new();

/// Counts this CPU in: it runs on the kernel's tables and takes interrupts from now on (they may
/// still be off). Translations that changed before it was counted in are forgotten.
pub(crate) fn init_cpu() {
    let me = cpu::current();
    ONLINE.insert(me);
    ASIDS[me.0 as usize].invalidate_others(0);
    cpu::flush_everything();
}

/// Goes back to the kernel's own tables on this CPU.
pub(crate) fn leave_user_table() {
    deactivate(None);
}

/// Counts a CPU out that runs on the kernel's own tables, and in them touches nothing that changes:
/// no shootdown of the kernel half asks it any more when this returns. Those under way still may
/// until then, whatever they concern, so the CPU takes their interrupts. May sleep.
pub(crate) fn retire(cpu: CpuId) {
    let _turn = SHOOTDOWN_LOCK.lock();
    ONLINE.remove(cpu);
}

/// Drops what this CPU has cached of a range in the active table. Interrupts are off.
fn flush_local(range: &Range<usize>) {
    if range.len() / PAGE_SIZE <= SINGLE_PAGES {
        for va in range.clone().step_by(PAGE_SIZE) {
            cpu::flush_page(va);
        }
    } else {
        cpu::flush_user();
    }
    cpu::drop_at_return();
}

/// The same for a range of the kernel half. Translations are global, but what leads to them is
/// cached per identifier.
fn flush_local_kernel(range: &Range<usize>) {
    let me = cpu::current().0 as usize;
    if range.len() / PAGE_SIZE > SINGLE_PAGES {
        return cpu::flush_everything();
    }
    flush_local(range);
    // SAFETY: a table in `CURRENT` has this CPU in its mask, and is not freed before the mask is
    // empty (`detach`).
    let active = unsafe { CURRENT[me].load(Ordering::Relaxed).as_ref() };
    ASIDS[me].invalidate_others(active.map_or(0, |table| table.id));
}

/// Takes a change of `table` in on this CPU, if it is active here; otherwise the CPU finds out when
/// it activates it.
fn apply_change(table: *const ActiveTable, range: &Range<usize>, change: u64) {
    let me = cpu::current().0 as usize;
    let current = CURRENT[me].load(Ordering::Relaxed);
    if !core::ptr::eq(current, table) {
        return;
    }
    flush_local(range);
    // SAFETY: as in `flush_local_kernel`.
    if let Some(current) = unsafe { current.as_ref() } {
        ASIDS[me].note_flushed(current.id, change);
    }
}

/// Makes a user table the active one on this CPU. Cheap if it is already.
#[inline]
pub(super) fn activate(table: &ActiveTable) {
    cpu::without_irqs(|| {
        let me = cpu::current();
        if !core::ptr::eq(CURRENT[me.0 as usize].load(Ordering::Relaxed), table) {
            replace(table, me);
        }
    });
}

/// The same if it is not, with interrupts off.
#[inline(never)]
fn replace(table: &ActiveTable, me: CpuId) {
    let current = &CURRENT[me.0 as usize];
    let new: *const ActiveTable = table;
    let old = current.load(Ordering::Relaxed);
    // SAFETY: a table in `CURRENT` has this CPU in its mask, and is not freed before the mask is
    // empty (`detach`).
    let old = unsafe { old.as_ref() };
    leave(old, me);
    table.cpus.insert(me);
    let (asid, cached) = if cpu::has_asids() {
        ASIDS[me.0 as usize].acquire(table.id, table.changes.load(Ordering::SeqCst))
    } else {
        (0, Translations::Dropped)
    };
    if let Some(user_root) = table.user_root {
        cpu::set_roots(table.root, user_root, asid, cached);
    }
    // SAFETY: `PageTable` made the root, with the kernel half linked in, and frees it after
    // `detach` only. What is cached under the identifier is kept only if it is this table's and no
    // change was missed.
    unsafe { cpu::load(table.root, asid, cached) };
    current.store(new.cast_mut(), Ordering::Relaxed);
    if let Some(old) = old {
        old.cpus.remove(me);
    }
}

/// Gives up the identifier of the table that was active here, if something under it was to be
/// dropped at a return to ring 3 that will not come.
fn leave(old: Option<&ActiveTable>, me: CpuId) {
    if let Some(old) = old
        && old.user_root.is_some()
        && cpu::drops_at_return()
    {
        ASIDS[me.0 as usize].give_up(old.id);
    }
}

/// Goes back to the kernel's own tables on this CPU, if `table` (or, if `None`, any user table) is
/// active here.
pub(super) fn deactivate(table: Option<*const ActiveTable>) {
    cpu::without_irqs(|| {
        let me = cpu::current();
        let current = &CURRENT[me.0 as usize];
        let old = current.load(Ordering::Relaxed);
        if old.is_null() || table.is_some_and(|table| !core::ptr::eq(table, old)) {
            return;
        }
        // SAFETY: as in `replace`; the last use of the table is the removal itself.
        let old = unsafe { &*old };
        leave(Some(old), me);
        if old.user_root.is_some() {
            cpu::set_roots(kernel::root(), isolated::root(), 0, Translations::Dropped);
        }
        // SAFETY: the kernel's root, never freed.
        unsafe { cpu::load(kernel::root(), 0, Translations::Dropped) };
        current.store(null_mut(), Ordering::Relaxed);
        old.cpus.remove(me);
    });
}

/// Kinds of requests to a CPU: drop a page table's user translations, drop kernel translations,
/// leave a page table.
const DROP_USER: u32 = 0;
const DROP_KERNEL: u32 = 1;
const DETACH: u32 = 2;

/// The one request at a time. The initiator owns it while it holds `SHOOTDOWN_LOCK`; a CPU reads it
/// between seeing its bit in `asked` (set after the fields) and its decrement of `missing`.
struct Request {
    kind: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    table: AtomicPtr<ActiveTable>,
    change: AtomicU64,
    waiter: AtomicUsize,
    asked: CpuMask,
    missing: AtomicU32,
}

static SHOOTDOWN_LOCK: Mutex<()> = Mutex::new(());
static REQUEST: Request = Request {
    kind: AtomicU32::new(0),
    start: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
    table: AtomicPtr::new(null_mut()),
    change: AtomicU64::new(0),
    waiter: AtomicUsize::new(0),
    asked: CpuMask::new(),
    missing: AtomicU32::new(0),
};

/// Shootdowns that had to interrupt other CPUs, by the CPU that began them.
static SHOOTDOWNS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Number of shootdowns so far that a CPU began and that interrupted others.
pub fn shootdowns(cpu: CpuId) -> u64 {
    SHOOTDOWNS
        .get(cpu.0 as usize)
        .map_or(0, |count| count.load(Ordering::Relaxed))
}

/// No CPU uses translations of `range` in `table` from before the call any more when this returns.
/// May sleep.
pub(super) fn flush(table: &ActiveTable, range: Range<usize>) {
    let change = table.changes.fetch_add(1, Ordering::SeqCst) + 1;
    if !run_locally(&table.cpus, || apply_change(table, &range, change)) {
        shootdown(DROP_USER, &range, table, change, &table.cpus);
    }
}

/// The same for a range of the kernel half, on all CPUs of the instance.
pub(super) fn flush_kernel(range: Range<usize>) {
    if !run_locally(&ONLINE, || flush_local_kernel(&range)) {
        shootdown(DROP_KERNEL, &range, null_mut(), 0, &ONLINE);
    }
}

/// The table is active on no CPU when this returns; the caller sees to it that nobody activates it
/// any more.
pub(super) fn detach(table: &ActiveTable) {
    if !run_locally(&table.cpus, || deactivate(Some(table))) {
        shootdown(DETACH, &(0..0), table, 0, &table.cpus);
    }
}

/// Does `work` here and returns true if no CPU but this one is in the set.
fn run_locally(cpus: &CpuMask, work: impl FnOnce()) -> bool {
    cpu::without_irqs(|| {
        // The entries were changed before the set is read.
        fence(Ordering::SeqCst);
        let me = cpu::current();
        let (mut here, mut others) = (false, false);
        cpus.for_each(|cpu| {
            if cpu == me {
                here = true;
            } else {
                others = true;
            }
        });
        if here && !others {
            work();
        }
        !others
    })
}

fn shootdown(
    kind: u32,
    range: &Range<usize>,
    table: *const ActiveTable,
    change: u64,
    cpus: &CpuMask,
) {
    let scheduler = lfmutex::scheduler();
    let _turn = SHOOTDOWN_LOCK.lock();
    trace::event(Kind::ShootdownBegin, || {
        Note::two(range.start as u64, range.end as u64)
    });
    REQUEST.kind.store(kind, Ordering::Relaxed);
    REQUEST.start.store(range.start, Ordering::Relaxed);
    REQUEST.end.store(range.end, Ordering::Relaxed);
    REQUEST.table.store(table.cast_mut(), Ordering::Relaxed);
    REQUEST.change.store(change, Ordering::Relaxed);
    REQUEST
        .waiter
        .store(scheduler.current().into_raw(), Ordering::Relaxed);
    // One more than are asked, so that nobody is the last before all are asked.
    REQUEST.missing.store(1, Ordering::Relaxed);
    // The set is read again: this thread may have moved while it waited for its turn. With
    // interrupts off it stays where it is until its own CPU has been served and all others have
    // been told.
    cpu::without_irqs(|| {
        fence(Ordering::SeqCst);
        let me = cpu::current();
        SHOOTDOWNS[me.0 as usize].fetch_add(1, Ordering::Relaxed);
        cpus.for_each(|cpu| {
            REQUEST.missing.fetch_add(1, Ordering::Relaxed);
            REQUEST.asked.insert(cpu);
            if cpu == me {
                interrupt();
            } else {
                cpu::interrupt(cpu);
            }
        });
    });
    if REQUEST.missing.fetch_sub(1, Ordering::AcqRel) != 1 {
        while REQUEST.missing.load(Ordering::Acquire) != 0 {
            scheduler.park();
        }
    }
    trace::event(Kind::ShootdownEnd, Note::default);
}

/// A shootdown interrupt arrived on this CPU. Interrupts are off.
pub(crate) fn interrupt() {
    let me = cpu::current();
    // A late or stray interrupt finds nothing asked.
    if !REQUEST.asked.remove(me) {
        return;
    }
    let range = REQUEST.start.load(Ordering::Relaxed)..REQUEST.end.load(Ordering::Relaxed);
    match REQUEST.kind.load(Ordering::Relaxed) {
        DETACH => deactivate(Some(REQUEST.table.load(Ordering::Relaxed))),
        DROP_KERNEL => flush_local_kernel(&range),
        _ => apply_change(
            REQUEST.table.load(Ordering::Relaxed),
            &range,
            REQUEST.change.load(Ordering::Relaxed),
        ),
    }
    let waiter = REQUEST.waiter.load(Ordering::Relaxed);
    if REQUEST.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
        lfmutex::scheduler().unpark(lfmutex::Token::from_raw(waiter));
    }
}
