//! Interrupts, from the entry stub to the handlers.
//!
//! A handler runs with interrupts off on the stack of whatever was interrupted. It wakes threads
//! and does nothing else: it takes no lock and allocates nothing. After it the interrupt is
//! acknowledged and the exit hook runs, which may switch to another thread.

use core::marker::PhantomData;
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use ::trace::{Kind, Note};
pub use x86_spec::interrupt::MACHINE_CHECK;
use x86_spec::interrupt::NMI;

pub use crate::arch::ioapic::Line;
use crate::arch::{apic, cpu, ioapic, timer};
use crate::cpu::CpuId;
use crate::{BootToken, heartbeat, machine_check, paging, park, pause, rcu, role, trace, usage};

/// Vectors below are exceptions.
pub(crate) const FIRST_VECTOR: u8 = 0x20;
/// Vector of ISA interrupt 0; the others follow.
pub const ISA_VECTOR: u8 = 0x30;
/// Lines that have a vector.
const ISA_LINES: u8 = 16;
/// First vector that a device may be given: a class above the doorbell's and that of the lines.
pub const FIRST_DEVICE_VECTOR: u8 = 0x40;
/// Number of vectors that devices may be given on each CPU.
pub const DEVICE_VECTORS: usize = (RESCHEDULE_VECTOR - FIRST_DEVICE_VECTOR) as usize;
/// Another CPU of the instance wants this one to schedule.
pub const RESCHEDULE_VECTOR: u8 = 0xe0;
/// TLB shootdown.
pub const TLB_VECTOR: u8 = 0xe1;
/// Doorbell of the supervisor or of an instance of its. With that of peers the only one in use of
/// its priority class, the lowest, so that both can be masked alone.
pub const DOORBELL_VECTOR: u8 = 0x28;
/// Doorbell of an instance with which this one exchanges messages. Of the same class.
pub const PEER_VECTOR: u8 = 0x29;
/// Sent by a CPU to itself, so that its heart beats when it takes interrupts again.
pub(crate) const HEARTBEAT_VECTOR: u8 = 0xe2;
/// Sent by a CPU to itself, so that it stands still when it takes interrupts again.
pub(crate) const PAUSE_VECTOR: u8 = 0xe4;
/// Sent by a CPU to itself, so that the program it runs is interrupted, which has met bad memory.
/// It is delivered before all others: once the timer, which had expired meanwhile, came first, and
/// the kernel that it led to took the error for one that had got by the program.
pub(crate) const MEMORY_ERROR_VECTOR: u8 = 0xf0;
/// Another CPU of the instance stops all of them.
pub const HALT_VECTOR: u8 = 0xe3;
/// The local timer.
pub const TIMER_VECTOR: u8 = 0xef;
/// The local APIC had nothing to deliver after all; not acknowledged.
pub const SPURIOUS_VECTOR: u8 = 0xff;

const _: () = {
    let devices = abi::live::DEVICE_VECTORS;
    assert!(devices.start == FIRST_DEVICE_VECTOR as u64 && devices.end == RESCHEDULE_VECTOR as u64);
};
const _: () = assert!(MEMORY_ERROR_VECTOR > TIMER_VECTOR && TIMER_VECTOR > HALT_VECTOR);

/// A function set at run time, called from interrupt handlers.
pub(crate) struct Hook<F> {
    function: AtomicPtr<()>,
    is: PhantomData<F>,
}

impl<F: Copy + 'static> Hook<F> {
    /// No function.
    pub(crate) const fn new() -> Self {
        assert!(
            size_of::<F>() == size_of::<*mut ()>(),
            "hooks are plain function pointers"
        );
        Self {
            function: AtomicPtr::new(null_mut()),
            is: PhantomData,
        }
    }

    /// Replaces the function.
    pub(crate) fn set(&self, function: F) {
        // SAFETY: `F` has a pointer's size; it is turned back into what it was.
        self.function.store(
            unsafe { core::mem::transmute_copy::<F, *mut ()>(&function) },
            Ordering::Release,
        );
    }

    /// The function, if one was set.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let pointer = self.function.load(Ordering::Acquire);
        if pointer.is_null() {
            return None;
        }
        // SAFETY: only `set` stores non-null values, and they were of type `F`.
        Some(unsafe { core::mem::transmute_copy::<*mut (), F>(&pointer) })
    }
}

static RESCHEDULE: Hook<fn()> = Hook::new();
static DOORBELL: Hook<fn()> = Hook::new();
static PEER: Hook<fn()> = Hook::new();
static EXIT: Hook<fn()> = Hook::new();
static DEVICE: Hook<fn(u8) -> bool> = Hook::new();
static ISA: [Hook<fn()>; ISA_LINES as usize] = [const { Hook::new() }; ISA_LINES as usize];
/// Interrupts nobody claimed: foreign IPIs, late device interrupts.
static UNKNOWN: AtomicU64 = AtomicU64::new(0);

/// Sets what runs when the deadline of `timer::arm` has passed.
pub fn set_timer_handler(_: &BootToken, handler: fn()) {
    timer::set_handler(handler);
}

/// Sets what runs when another CPU called `ipi::reschedule` for this one.
pub fn set_reschedule_handler(_: &BootToken, handler: fn()) {
    RESCHEDULE.set(handler);
}

/// Sets what runs when a peer instance rang.
pub fn set_doorbell_handler(_: &BootToken, handler: fn()) {
    DOORBELL.set(handler);
}

/// Sets what runs when an instance rang with which this one exchanges messages.
pub fn set_peer_handler(_: &BootToken, handler: fn()) {
    PEER.set(handler);
}

/// Holds all doorbells back from this CPU, as their handler may do, until
/// [`unmask_doorbell`]. Of those that ring meanwhile one is kept.
pub fn mask_doorbell() {
    apic::hold_back(DOORBELL_VECTOR);
}

/// Lets doorbells through to this CPU again.
pub fn unmask_doorbell() {
    apic::hold_back(0);
}

/// Sets what runs when a device has sent a vector to this CPU. It tells whether somebody has the
/// vector; if not, the interrupt counts as unclaimed.
pub fn set_device_handler(_: &BootToken, handler: fn(u8) -> bool) {
    DEVICE.set(handler);
}

/// Sets what runs at the end of every interrupt, after its acknowledgement, with interrupts off. It
/// may switch context.
pub fn set_irq_exit_hook(_: &BootToken, hook: fn()) {
    EXIT.set(hook);
}

/// Handles one interrupt on this CPU, with interrupts off.
pub(crate) fn handle(vector: u8) {
    let area = cpu::area();
    let depth = area.irq_depth.load(Ordering::Relaxed);
    match depth {
        DROPPING => return acknowledge(vector),
        LEAVING => {
            match vector {
                TLB_VECTOR => paging::tlb::interrupt(),
                HALT_VECTOR => park::enter(),
                _ => {}
            }
            return acknowledge(vector);
        }
        _ => {}
    }
    // This CPU alone writes these, and not from NMI handlers: no locked operations are needed.
    let count = &area.interrupts[usize::from(vector)];
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    usage::of(cpu::current()).count_interrupt();
    rcu::quiescent_state_in_interrupt();
    heartbeat::beat();
    area.irq_depth.store(depth + 1, Ordering::Relaxed);
    trace::event(Kind::IrqBegin, || Note::detail(vector));
    match vector {
        TIMER_VECTOR => timer::on_interrupt(),
        RESCHEDULE_VECTOR => run(&RESCHEDULE),
        TLB_VECTOR => paging::tlb::interrupt(),
        // Every interrupt is a beat.
        HEARTBEAT_VECTOR => {}
        DOORBELL_VECTOR => run(&DOORBELL),
        PEER_VECTOR => run(&PEER),
        PAUSE_VECTOR => pause::stand_still(),
        // It comes right after the return to the program, where `user::enter` takes the page. If a
        // system call was faster, what the program has read is in the kernel by now.
        MEMORY_ERROR_VECTOR => assert!(
            machine_check::take_consumed().is_none(),
            "a program has met an uncorrected error in memory, and gone on"
        ),
        HALT_VECTOR if !role::is_supervisor() => park::enter(),
        ISA_VECTOR..FIRST_DEVICE_VECTOR => run(&ISA[usize::from(vector - ISA_VECTOR)]),
        FIRST_DEVICE_VECTOR..RESCHEDULE_VECTOR if is_claimed(vector) => {}
        _ => {
            UNKNOWN.fetch_add(1, Ordering::Relaxed);
        }
    }
    acknowledge(vector);
    trace::event(Kind::IrqEnd, || Note::detail(vector));
    area.irq_depth.store(depth, Ordering::Relaxed);
    run(&EXIT);
}

#[inline]
fn acknowledge(vector: u8) {
    if vector != SPURIOUS_VECTOR {
        apic::end_of_interrupt();
    }
}

/// Depth of interrupt handlers that says: drop them.
const DROPPING: u32 = u32::MAX;

/// Depth of interrupt handlers that says: serve shootdowns, and drop all others. Nothing is
/// scheduled.
const LEAVING: u32 = u32::MAX - 1;

/// Serves nothing but shootdowns on this CPU from now on, for good. Interrupts are off.
pub(crate) fn serve_shootdowns_only() {
    cpu::area().irq_depth.store(LEAVING, Ordering::Relaxed);
}

/// Takes the interrupts that wait on this CPU since its last owner had it, and drops them: what
/// they announce is not this instance's. Part of setting up a CPU, before anybody of this instance
/// may send it any.
pub(crate) fn drop_pending() {
    let depth = &cpu::area().irq_depth;
    depth.store(DROPPING, Ordering::Relaxed);
    cpu::irqs_on();
    // One vector is one interrupt, and each is taken between two looks.
    for _ in 0..=u8::MAX {
        if !apic::is_requested() {
            break;
        }
    }
    cpu::irqs_off();
    depth.store(0, Ordering::Relaxed);
}

/// Tells whoever has a device's vector on this CPU, if somebody has it.
fn is_claimed(vector: u8) -> bool {
    DEVICE.get().is_some_and(|tell| tell(vector))
}

#[inline]
fn run(hook: &Hook<fn()>) {
    if let Some(function) = hook.get() {
        function();
    }
}

/// Whether this code runs in an interrupt handler.
#[must_use]
pub fn in_handler() -> bool {
    cpu::in_handler()
}

/// The interrupt line is not the instance's, or another driver has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// A claimed interrupt line; dropping it masks the line.
#[derive(Debug)]
pub struct IsaIrq {
    irq: u8,
}

/// Lines in use, one bit each.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

/// Routes an ISA interrupt line to this CPU and `handler`, which runs as described at the top of
/// this module.
///
/// # Errors
/// [`Denied`] if the partition descriptor does not list the line, or it is claimed already.
pub fn claim_isa(irq: u8, handler: fn()) -> Result<IsaIrq, Denied> {
    let line = role::descriptor()
        .isa_irq(irq)
        .filter(|line| line.isa < ISA_LINES)
        .ok_or(Denied)?;
    let bit = 1 << irq;
    if CLAIMED.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
        return Err(Denied);
    }
    ISA[usize::from(irq)].set(handler);
    let target = crate::cpu_table::apic_id(cpu::current().0 as usize).ok_or(Denied)?;
    if !ioapic::enable(line, ISA_VECTOR + irq, target) {
        CLAIMED.fetch_and(!bit, Ordering::AcqRel);
        return Err(Denied);
    }
    Ok(IsaIrq { irq })
}

/// Ids of the controllers of interrupt lines that this instance has.
pub fn controllers() -> impl Iterator<Item = u8> {
    let all = role::descriptor().ioapics().iter();
    all.map(|controller| controller.id as u8)
}

/// Has interrupt lines name entries of a unit that remaps interrupts, by the words of `by`, from
/// now on; a line for which there is none stays masked. Handlers of lines that are routed already
/// run once. Sleeps. For the crate `iommu`.
pub fn remap_lines(by: fn(Line) -> Option<u64>) {
    ioapic::remap(by);
}

impl Drop for IsaIrq {
    fn drop(&mut self) {
        if let Some(line) = role::descriptor().isa_irq(self.irq) {
            ioapic::disable(line);
        }
        CLAIMED.fetch_and(!(1 << self.irq), Ordering::AcqRel);
    }
}

/// Number of interrupts with a vector that a CPU has taken; 0 if there is no such CPU.
#[must_use]
pub fn count(cpu: CpuId, vector: u8) -> u64 {
    cpu::area_of(cpu).map_or(0, |area| {
        area.interrupts[usize::from(vector)].load(Ordering::Relaxed)
    })
}

/// Short name of a vector's use, for `/proc/interrupts`.
#[must_use]
pub fn vector_name(vector: u8) -> &'static str {
    match vector {
        NMI => "nmi",
        MACHINE_CHECK => "machine_check",
        TIMER_VECTOR => "timer",
        RESCHEDULE_VECTOR => "reschedule",
        TLB_VECTOR => "shootdown",
        DOORBELL_VECTOR => "doorbell",
        PEER_VECTOR => "peer_doorbell",
        HEARTBEAT_VECTOR => "heartbeat",
        PAUSE_VECTOR => "pause",
        MEMORY_ERROR_VECTOR => "memory_error",
        HALT_VECTOR => "halt",
        SPURIOUS_VECTOR => "spurious",
        ISA_VECTOR..FIRST_DEVICE_VECTOR => "isa",
        FIRST_DEVICE_VECTOR..RESCHEDULE_VECTOR => "device",
        _ => "unknown",
    }
}

/// Interrupts with a vector nobody claimed.
#[must_use]
pub fn unclaimed() -> u64 {
    UNKNOWN.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_gives_back_what_was_set() {
        fn double(n: usize) -> usize {
            2 * n
        }
        let hook: Hook<fn(usize) -> usize> = Hook::new();
        assert!(hook.get().is_none());
        hook.set(double);
        assert_eq!(hook.get().map(|f| f(21)), Some(42));
    }
}
