//! CPUs: which one this is, its private area, interrupts on and off, and idling.
//!
//! Each CPU has one `CpuArea`, found through the GS base while in the kernel. Its fields are
//! atomics used with relaxed ordering: only the owner writes them, but an interrupt handler of the
//! same CPU may look at any moment.

use alloc::alloc::{Layout, alloc_zeroed};
use alloc::boxed::Box;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

use x86_spec::control::rflags;
use x86_spec::segment::Tss;

pub(crate) use super::cpuinfo::levels;
pub use super::cpuinfo::{CpuInfo, brand, topology};
use super::features::{self, Features};
use super::{msr, timer};
use crate::entry::gdt::Gdt;
pub use crate::leave::leave;
use crate::mem::percpu::{self, CpuCache};
use crate::{cpu_table, heartbeat, isolation, role, speculation};

/// Most CPUs of one instance.
pub const MAX_CPUS: usize = abi::descriptor::MAX_CPUS;

/// A CPU of this instance, by its index in the partition descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

impl core::fmt::Display for CpuId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes of each of the three stacks that NMI, double fault and machine check run on.
const IST_STACK_BYTES: usize = 8 << 10;

/// Stack of an entry.
#[repr(C, align(16))]
struct EntryStack<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

impl<const BYTES: usize> EntryStack<BYTES> {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; BYTES]))
    }
}

/// Bytes of the stack on which exceptions and interrupts arrive from a program that has no other of
/// the kernel's stacks in its tables.
const ENTRY_STACK_BYTES: usize = 1 << 10;

/// Part of a CPU's area that is in a program's tables even where they do not have the kernel
/// (`isolation`): what the processor and the first instructions of an entry need, in whole pages.
#[repr(C, align(4096))]
pub(crate) struct EntryArea {
    /// A program's register, for a few instructions.
    scratch: AtomicUsize,
    /// CR3 for the kernel, while a program's tables are active.
    pub(crate) kernel_cr3: AtomicU64,
    /// CR3 for the program. Without the bit of `keep` the translations under its identifier are
    /// dropped at the next return to ring 3.
    pub(crate) user_cr3: AtomicU64,
    /// Bit of CR3 that keeps translations; 0 where there are no identifiers.
    pub(crate) keep: AtomicU64,
    /// Stack of entries from ring 3.
    stack: EntryStack<ENTRY_STACK_BYTES>,
    /// Task state segment of such a CPU: its stack for entries from ring 3 is that one.
    pub(crate) tss: UnsafeCell<Tss>,
    /// Descriptor table of such a CPU.
    pub(crate) gdt: UnsafeCell<Gdt>,
    /// Stack of the NMI handler.
    nmi_stack: EntryStack<IST_STACK_BYTES>,
    /// Stack of the double fault handler.
    double_fault_stack: EntryStack<IST_STACK_BYTES>,
    /// Stack of the machine check handler.
    machine_check_stack: EntryStack<IST_STACK_BYTES>,
}

impl EntryArea {
    const fn new() -> Self {
        Self {
            scratch: AtomicUsize::new(0),
            kernel_cr3: AtomicU64::new(0),
            user_cr3: AtomicU64::new(0),
            keep: AtomicU64::new(0),
            stack: EntryStack::new(),
            tss: UnsafeCell::new(Tss::new([0; 7])),
            gdt: UnsafeCell::new(Gdt::new()),
            nmi_stack: EntryStack::new(),
            double_fault_stack: EntryStack::new(),
            machine_check_stack: EntryStack::new(),
        }
    }
}

/// Per-CPU area. The assembly in `trap` and `user` uses the offsets below.
#[repr(C, align(64))]
pub(crate) struct CpuArea {
    /// This structure's own address, so that `gs:0` is a pointer to it.
    this: AtomicUsize,
    /// Address at which the user registers are stored on the next entry from ring 3.
    pub(super) user_regs: AtomicUsize,
    /// The user's stack pointer, for a few instructions of the system call entry.
    pub(super) scratch: AtomicUsize,
    /// Number of this CPU.
    number: AtomicU32,
    /// Always 0: the assembly's index where a bound was passed by in speculation.
    zero: AtomicU32,
    /// Depth of `CpuLocal::with` closures.
    pinned: AtomicU32,
    /// Depth of interrupt handlers. Right behind `pinned`: most who ask for one ask for both, in
    /// one instruction.
    pub(crate) irq_depth: AtomicU32,
    /// Identity of the running context; 0 before the first one is adopted.
    pub(super) context: AtomicU64,
    /// Identity of the context that is the stack the CPU came up on; 0 before it is adopted.
    pub(super) boot_context: AtomicU64,
    /// The `UserFpu` whose registers are loaded, by its address: compared only.
    pub(super) fpu_area: AtomicUsize,
    /// Deadline of the timer, in nanoseconds; `u64::MAX` if the timer is not armed.
    pub(super) deadline: AtomicU64,
    /// The CPU's share of free memory; null before there is any.
    memory: AtomicPtr<CpuCache>,
    /// The register for speculation (`SPEC_CTRL`) while the running program is in ring 3.
    pub(crate) user_spec_ctrl: AtomicU64,
    /// Puts the stack pointer inside the task state segment, which is at 4 in it, on an 8-byte
    /// boundary.
    _tss_offset: AtomicU32,
    /// Task state segment: holds the kernel stack pointer for entries from ring 3, and the three
    /// special stacks.
    pub(crate) tss: UnsafeCell<Tss>,
    /// Descriptor table.
    pub(crate) gdt: UnsafeCell<Gdt>,
    /// Interrupts taken, by vector.
    pub(crate) interrupts: [AtomicU64; 256],
    /// The frame, plus one, with an error that this CPU's program has met (`machine_check`).
    pub(crate) consumed: AtomicU64,
    /// Quiescent states passed (`rcu`).
    pub(crate) quiescent: AtomicU64,
    /// The CPU sleeps, and has not switched context since.
    pub(crate) idle: AtomicBool,
    /// Part that programs' tables may have.
    pub(crate) entry: EntryArea,
}

// SAFETY: the cells are the TSSs and GDTs, written by the owning CPU before it loads them and, for
// the kernel stack pointer in the TSS, by its assembly with interrupts off; and the stacks, which
// only the processor and the handlers on them use.
unsafe impl Sync for CpuArea {}

/// `gs:` offset of [`CpuArea::user_regs`].
pub(crate) const GS_USER_REGS: usize = offset_of!(CpuArea, user_regs);
/// `gs:` offset of [`CpuArea::scratch`].
pub(super) const GS_SCRATCH: usize = offset_of!(CpuArea, scratch);
/// `gs:` offset of [`CpuArea::zero`].
pub(super) const GS_ZERO: usize = offset_of!(CpuArea, zero);
/// `gs:` offset of [`CpuArea::user_spec_ctrl`].
pub(super) const GS_USER_SPEC_CTRL: usize = offset_of!(CpuArea, user_spec_ctrl);
/// `gs:` offset of the kernel stack pointer for entries from ring 3, in the task state segment.
pub(crate) const GS_KERNEL_RSP: usize = offset_of!(CpuArea, tss) + offset_of!(Tss, rsp0);
/// `gs:` offset of [`EntryArea::scratch`].
pub(crate) const GS_ENTRY_SCRATCH: usize = offset_of!(CpuArea, entry.scratch);
/// `gs:` offset of [`EntryArea::kernel_cr3`].
pub(crate) const GS_KERNEL_CR3: usize = offset_of!(CpuArea, entry.kernel_cr3);
/// `gs:` offset of [`EntryArea::user_cr3`].
pub(crate) const GS_USER_CR3: usize = offset_of!(CpuArea, entry.user_cr3);
/// `gs:` offset of [`EntryArea::keep`].
pub(crate) const GS_KEEP: usize = offset_of!(CpuArea, entry.keep);
/// Distance from the area's start to the top of the stack of entries from ring 3.
pub(crate) const ENTRY_STACK_TOP: usize = offset_of!(CpuArea, entry.stack) + ENTRY_STACK_BYTES;
/// Distance from the area's start to the top of each special stack, by which the handlers on them
/// find the area.
pub(crate) const NMI_STACK_TOP: usize = offset_of!(CpuArea, entry.nmi_stack) + IST_STACK_BYTES;
pub(crate) const DOUBLE_FAULT_STACK_TOP: usize =
    offset_of!(CpuArea, entry.double_fault_stack) + IST_STACK_BYTES;
pub(crate) const MACHINE_CHECK_STACK_TOP: usize =
    offset_of!(CpuArea, entry.machine_check_stack) + IST_STACK_BYTES;

const _: () = {
    assert!(offset_of!(CpuArea, this) == 0);
    // Naturally aligned, so that the one store per user entry does not straddle cache lines.
    assert!(GS_KERNEL_RSP.is_multiple_of(8));
    assert!(NMI_STACK_TOP.is_multiple_of(16) && ENTRY_STACK_TOP.is_multiple_of(16));
    assert!(offset_of!(CpuArea, pinned).is_multiple_of(8));
    assert!(offset_of!(CpuArea, irq_depth) == offset_of!(CpuArea, pinned) + 4);
};

impl CpuArea {
    const fn new() -> Self {
        Self {
            this: AtomicUsize::new(0),
            user_regs: AtomicUsize::new(0),
            scratch: AtomicUsize::new(0),
            number: AtomicU32::new(0),
            zero: AtomicU32::new(0),
            pinned: AtomicU32::new(0),
            irq_depth: AtomicU32::new(0),
            context: AtomicU64::new(0),
            boot_context: AtomicU64::new(0),
            fpu_area: AtomicUsize::new(0),
            memory: AtomicPtr::new(ptr::null_mut()),
            deadline: AtomicU64::new(0),
            user_spec_ctrl: AtomicU64::new(0),
            _tss_offset: AtomicU32::new(0),
            tss: UnsafeCell::new(Tss::new([0; 7])),
            gdt: UnsafeCell::new(Gdt::new()),
            interrupts: [const { AtomicU64::new(0) }; 256],
            consumed: AtomicU64::new(0),
            quiescent: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            entry: EntryArea::new(),
        }
    }
}

/// The first CPU's area exists before there is a heap.
static FIRST_AREA: CpuArea = CpuArea::new();

static AREAS: [AtomicPtr<CpuArea>; MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS];
static ONLINE: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// Allocates the area of a CPU that is about to be started; see `arch::prepare_cpu`.
pub(super) fn allocate_area(cpu: CpuId) -> bool {
    let Some(slot) = AREAS.get(cpu.0 as usize) else {
        return false;
    };
    if !slot.load(Ordering::Acquire).is_null() {
        return true;
    }
    // SAFETY: the layout has a size; the result is checked. All-zero bytes are a valid `CpuArea`
    // (atomics, integers, bytes).
    let area = unsafe { alloc_zeroed(Layout::new::<CpuArea>()) }.cast::<CpuArea>();
    // SAFETY: just allocated, and valid, unless memory is short.
    if !unsafe { area.as_ref() }.is_some_and(isolation::expose_area) {
        return false;
    }
    // Never freed: a CPU that is given away and comes back finds it again. If another thread was
    // faster its area is used and this one leaks, which takes two threads starting the same CPU.
    let _ = slot.compare_exchange(ptr::null_mut(), area, Ordering::Release, Ordering::Relaxed);
    true
}

/// Makes the area of `cpu` this CPU's own.
pub(crate) fn install_area(cpu: CpuId) -> &'static CpuArea {
    let slot = &AREAS[cpu.0 as usize];
    if cpu.0 == 0 {
        slot.store((&raw const FIRST_AREA).cast_mut(), Ordering::Release);
    }
    let pointer = slot.load(Ordering::Acquire);
    assert!(!pointer.is_null(), "CPU {cpu} started without an area");
    // SAFETY: set to the first CPU's static or by `allocate_area` to memory that is never freed;
    // only shared references exist.
    let area = unsafe { &*pointer };
    area.this.store(pointer as usize, Ordering::Relaxed);
    area.number.store(cpu.0, Ordering::Relaxed);
    area.pinned.store(0, Ordering::Relaxed);
    area.irq_depth.store(0, Ordering::Relaxed);
    area.context.store(0, Ordering::Relaxed);
    area.fpu_area.store(0, Ordering::Relaxed);
    area.deadline.store(u64::MAX, Ordering::Relaxed);
    area.consumed.store(0, Ordering::Relaxed);
    set_gs_base(area);
    install_memory();
    area
}

/// Notes this CPU's share of memory in its area. Called again on the first CPU, whose area is older
/// than memory.
pub(crate) fn install_memory() {
    let share =
        percpu::of(current()).map_or(ptr::null_mut(), |share| ptr::from_ref(share).cast_mut());
    area().memory.store(share, Ordering::Relaxed);
}

/// The share of memory of the CPU this runs on, once there is memory. The thread may be moved at
/// any moment: it is any CPU's.
#[inline]
pub(crate) fn memory() -> Option<&'static CpuCache> {
    let pointer: *const CpuCache;
    // SAFETY: in the kernel GS points to this CPU's area; the pointer there is null or leads to a
    // share, which is never freed.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) pointer, const offset_of!(CpuArea, memory), options(nostack, preserves_flags, readonly));
        pointer.as_ref()
    }
}

/// Points GS at the area, and leaves no user value in FS and in the exchange register.
pub(super) fn set_gs_base(area: &'static CpuArea) {
    // SAFETY: the registers exist on every 64-bit CPU; the kernel reaches its area through GS from
    // here on.
    unsafe {
        msr::write(msr::GS_BASE, ptr::from_ref(area) as u64);
        msr::write(msr::KERNEL_GS_BASE, 0);
        msr::write(msr::FS_BASE, 0);
    }
}

/// This CPU's area. The caller may move to another CPU right after, unless interrupts are off.
#[inline]
pub(crate) fn area() -> &'static CpuArea {
    let pointer: *const CpuArea;
    // SAFETY: in the kernel GS points to this CPU's area, whose first word is its address; areas
    // are never freed.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
        &*pointer
    }
}

/// Whether a context runs on this CPU that is known by its identity.
pub(crate) fn has_context() -> bool {
    area().context.load(Ordering::Relaxed) != 0
}

pub(super) fn mark_online(cpu: CpuId) {
    ONLINE[cpu.0 as usize].store(true, Ordering::Release);
}

/// With a full fence: `rcu` waits for the CPU no more, which has left all sections for good.
pub(crate) fn mark_offline(cpu: CpuId) {
    ONLINE[cpu.0 as usize].store(false, Ordering::SeqCst);
}

/// Whether the CPU entered this kernel and has an area.
#[must_use]
pub fn is_online(cpu: CpuId) -> bool {
    ONLINE
        .get(cpu.0 as usize)
        .is_some_and(|flag| flag.load(Ordering::Acquire))
}

/// The area of any CPU that was ever set up.
pub(crate) fn area_of(cpu: CpuId) -> Option<&'static CpuArea> {
    let pointer = AREAS.get(cpu.0 as usize)?.load(Ordering::Acquire);
    // SAFETY: non-null entries point to areas that are never freed and only shared.
    unsafe { pointer.as_ref() }
}

/// The CPU this runs on. Unless interrupts are off, that may have changed when the caller looks at
/// the answer.
#[inline]
#[must_use]
pub fn current() -> CpuId {
    let number;
    // SAFETY: in the kernel GS points to this CPU's area.
    unsafe {
        asm!("mov {:e}, gs:[{}]", out(reg) number, const offset_of!(CpuArea, number), options(nostack, preserves_flags, readonly));
    }
    CpuId(number)
}

/// This CPU's counts of `CpuLocal::with` closures and of interrupt handlers, read in one
/// instruction: a thread that is moved right before or after it sees 0, because it cannot be moved
/// while its own CPU's counts are not.
#[inline]
fn pinned() -> u64 {
    let counts;
    // SAFETY: as in `current`; the two counts are next to each other, and aligned as one.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) counts, const offset_of!(CpuArea, pinned), options(nostack, preserves_flags, readonly));
    }
    counts
}

/// Whether an interrupt handler runs on this CPU; in one instruction, for the same reason.
#[inline]
pub(crate) fn in_handler() -> bool {
    let depth: u32;
    // SAFETY: as in `current`.
    unsafe {
        asm!("mov {:e}, gs:[{}]", out(reg) depth, const offset_of!(CpuArea, irq_depth), options(nostack, preserves_flags, readonly));
    }
    depth != 0
}

/// The most CPUs that this instance may have.
#[must_use]
pub fn limit() -> usize {
    role::descriptor().cpu_limit()
}

/// Number of CPUs of this instance, started or not. It may grow, and shrink.
#[must_use]
pub fn count() -> usize {
    cpu_table::count()
}

/// The most CPUs that this instance has had so far. What those that have left counted stays.
#[must_use]
pub fn most() -> usize {
    cpu_table::most()
}

/// Whether interrupts are on.
#[inline]
#[must_use]
pub fn irqs_enabled() -> bool {
    let flags: u64;
    // SAFETY: reads the flags by way of one balanced push and pop.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & rflags::IF != 0
}

#[inline]
pub(crate) fn irqs_off() {
    // SAFETY: turning interrupts off cannot break memory safety.
    unsafe { asm!("cli", options(nostack)) };
}

/// Turns interrupts off in a thread, to be turned on again with [`irqs_on`].
///
/// # Panics
/// Within `CpuLocal::with`, and in interrupt handlers.
#[inline]
pub(crate) fn irqs_off_in_thread() {
    // SAFETY: reads this CPU's area, whose address GS has; turning interrupts off cannot break
    // memory safety.
    unsafe {
        asm!(
            "cmp qword ptr gs:[{pinned}], 0",
            "jne {is_pinned}",
            "cli",
            pinned = const offset_of!(CpuArea, pinned),
            is_pinned = label { assert_not_pinned() },
            options(nostack)
        );
    }
}

#[inline]
pub(crate) fn irqs_on() {
    // SAFETY: callers are `enable_irqs` and code that restores the state it found; the interrupt
    // handlers are in place.
    unsafe { asm!("sti", options(nostack)) };
}

/// Turns interrupts on.
///
/// # Panics
/// Within `CpuLocal::with`, whose reference is only safe while they are off, and in interrupt
/// handlers, which do not nest.
#[inline]
pub fn enable_irqs() {
    assert_not_pinned();
    irqs_on();
}

#[inline]
pub(super) fn assert_not_pinned() {
    assert!(
        pinned() == 0,
        "interrupts enabled or context switched within CpuLocal::with or an interrupt handler"
    );
}

/// Runs `f` with interrupts off, and restores the state found.
#[inline]
pub fn without_irqs<R>(f: impl FnOnce() -> R) -> R {
    let were_on = irqs_enabled();
    irqs_off();
    let result = f();
    if were_on {
        irqs_on();
    }
    result
}

/// Whether the stack that this CPU came up on is in use, and nothing keeps the CPU where it is.
/// Interrupts are off.
pub(crate) fn is_on_boot_stack() -> bool {
    let area = area();
    let running = area.context.load(Ordering::Relaxed);
    running != 0 && running == area.boot_context.load(Ordering::Relaxed) && pinned() == 0
}

/// Takes interrupts until the next one has come. They are off before and after.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: as in `idle_halt`; the handlers are in place.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Sleeps until the next interrupt if `should_sleep` says so. It is asked with interrupts off, and
/// they come on together with the halt, so a wake-up that arrives after the question ends the
/// sleep. Interrupts are on at return.
pub fn idle_halt(should_sleep: impl FnOnce() -> bool) {
    assert_not_pinned();
    irqs_off();
    if should_sleep() {
        // Again, should it have turned them on: the flag is this CPU's.
        irqs_off();
        let idle = &area().idle;
        idle.store(true, Ordering::Relaxed);
        heartbeat::rest();
        speculation::before_sleep();
        // SAFETY: `sti` takes effect after the following instruction, so no interrupt is taken
        // between the two; the halt ends with the next one.
        unsafe { asm!("sti", "hlt", options(nostack)) };
        // With a full fence: an NMI ends the sleep too, and `rcu` relies on it.
        idle.store(false, Ordering::SeqCst);
        heartbeat::wake();
    } else {
        irqs_on();
    }
}

/// Asks `done` again and again until it says so, or for `limit_ns`.
pub fn idle_poll(limit_ns: u64, done: impl FnMut() -> bool) {
    timer::poll_ticks(
        (u128::from(limit_ns) * u128::from(timer::tsc_hz()) / 1_000_000_000) as u64,
        done,
    );
}

/// Whether the processor can sleep until a word is written to ([`idle_mwait`]).
#[must_use]
pub fn has_mwait() -> bool {
    features::has(Features::MWAIT)
}

/// Whether there is a hypervisor or an emulator below.
#[must_use]
pub fn is_guest() -> bool {
    features::has(Features::HYPERVISOR)
}

/// Sleeps like [`idle_halt`], until an interrupt or a write to `word`. `should_sleep` is asked with
/// interrupts off; the processor sleeps only while the word is still `value`.
///
/// # Panics
/// If the processor has no MWAIT.
pub fn idle_mwait(word: &AtomicU32, value: u32, should_sleep: impl FnOnce() -> bool) {
    assert_not_pinned();
    assert!(
        features::has(Features::MWAIT),
        "this processor cannot watch a word"
    );
    irqs_off();
    if should_sleep() {
        // As in `idle_halt`.
        irqs_off();
        // SAFETY: the instruction exists and only arms the monitor, on memory that is readable.
        unsafe {
            asm!("monitor", in("rax") ptr::from_ref(word), in("ecx") 0, in("edx") 0, options(nostack, preserves_flags));
        }
        // After the monitor is armed: an earlier write is seen here, a later one ends the sleep.
        if word.load(Ordering::SeqCst) == value {
            let idle = &area().idle;
            idle.store(true, Ordering::Relaxed);
            heartbeat::rest();
            speculation::before_sleep();
            // SAFETY: as in `idle_halt`; hint 0 is the shallowest sleep.
            unsafe { asm!("sti", "mwait", in("eax") 0, in("ecx") 0, options(nostack)) };
            // With a full fence: no interrupt need have come, and `rcu` relies on it.
            idle.store(false, Ordering::SeqCst);
            heartbeat::wake();
            return;
        }
    }
    irqs_on();
}

/// One value per CPU, made at its first use on (or of) that CPU.
///
/// The first use allocates, so it must happen in a thread; later ones may come from interrupt
/// handlers.
pub struct CpuLocal<T: 'static> {
    slots: [AtomicPtr<T>; MAX_CPUS],
    make: fn(CpuId) -> T,
    owns: PhantomData<T>,
}

// SAFETY: `with` gives a reference to one CPU's value only on that CPU with interrupts off, where
// neither another CPU nor another thread can hold one (enabling interrupts or switching context
// inside panics); values move between threads at most once, when made, hence `Send`. `of` shares
// between CPUs and asks for `Sync` itself.
unsafe impl<T: Send> Sync for CpuLocal<T> {}

/// Proof that interrupts are off, and that the thread stays on its CPU, as long as it lives: what
/// would turn them on or switch context panics meanwhile. [`CpuLocal::with_irqs_off`] makes it, and
/// it does not leave the call.
///
/// ```compile_fail
/// # use guard::cpu::{CpuLocal, IrqsOff};
/// fn kept(local: &CpuLocal<u8>) -> IrqsOff<'_> {
///     local.with_irqs_off(|_, irqs| irqs)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct IrqsOff<'call>(PhantomData<(&'call (), *mut ())>);

impl IrqsOff<'_> {
    /// Pretended, for doubles of the kernel on the host, where there are no interrupts.
    #[cfg(not(target_os = "none"))]
    #[must_use]
    pub const fn on_host() -> Self {
        Self(PhantomData)
    }
}

impl<T: Send> CpuLocal<T> {
    /// A set of values, each made by `make` when first used.
    #[must_use]
    pub const fn new(make: fn(CpuId) -> T) -> Self {
        Self {
            slots: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS],
            make,
            owns: PhantomData,
        }
    }

    fn slot(&self, cpu: CpuId) -> &T {
        let slot = &self.slots[cpu.0 as usize];
        let mut pointer = slot.load(Ordering::Acquire);
        if pointer.is_null() {
            let fresh = Box::into_raw(Box::new((self.make)(cpu)));
            match slot.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => pointer = fresh,
                Err(winner) => {
                    // SAFETY: `fresh` came from `Box::into_raw` above and was not published.
                    drop(unsafe { Box::from_raw(fresh) });
                    pointer = winner;
                }
            }
        }
        // SAFETY: published pointers come from `Box::into_raw` and are never freed.
        unsafe { &*pointer }
    }

    /// Makes the value of a CPU that is about to be started, where allocating may not be possible
    /// yet.
    pub fn prepare(&self, cpu: CpuId) {
        self.slot(cpu);
    }

    /// Runs `f` with this CPU's value, with interrupts off. Calls may nest.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.with_irqs_off(|value, _| f(value))
    }

    /// Runs `f` as [`Self::with`] does, and lends it the proof that interrupts are off.
    #[inline(always)]
    pub fn with_irqs_off<R>(&self, f: impl FnOnce(&T, IrqsOff<'_>) -> R) -> R {
        loop {
            let were_on = irqs_enabled();
            irqs_off();
            let area = area();
            let number = area.number.load(Ordering::Relaxed);
            let pointer = self.slots[number as usize].load(Ordering::Acquire);
            // SAFETY: published pointers come from `Box::into_raw` and are never freed.
            if let Some(value) = unsafe { pointer.as_ref() } {
                area.pinned
                    .store(area.pinned.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                compiler_fence(Ordering::SeqCst);
                let result = f(value, IrqsOff(PhantomData));
                compiler_fence(Ordering::SeqCst);
                area.pinned
                    .store(area.pinned.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                if were_on {
                    irqs_on();
                }
                return result;
            }
            if were_on {
                irqs_on();
            }
            // Outside of the closed section, because the first use allocates.
            self.slot(CpuId(number));
        }
    }
}

impl<T: Send + Sync> CpuLocal<T> {
    /// A CPU's value, from anywhere.
    ///
    /// # Panics
    /// If `cpu` is beyond [`MAX_CPUS`].
    pub fn of(&self, cpu: CpuId) -> &T {
        self.slot(cpu)
    }
}
