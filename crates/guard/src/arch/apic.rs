//! The local interrupt controller: acknowledging and sending interrupts, and its timer's registers.
//!
//! One of two register sets, the same on all CPUs: x2APIC (model-specific registers) or xAPIC (a
//! page of memory, which the page tables map at `layout::LAPIC_MMIO`). Logical or broadcast
//! destinations, and shorthands for others than oneself, are never used: they would reach the CPUs
//! of other instances.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_spec::apic::{
    self as spec, COMMAND, COMMAND_HIGH, DELIVERY_INIT, DELIVERY_NMI, DELIVERY_PENDING,
    DELIVERY_STARTUP, DESTINATION_SELF, DIVIDE_BY_16, END_OF_INTERRUPT, ERROR_STATUS, ID,
    IN_SERVICE, LEVEL_ASSERT, LVT_ERROR, LVT_LINT0, LVT_LINT1, LVT_PERFORMANCE, LVT_THERMAL,
    LVT_TIMER, MASKED, REQUESTED, SOFTWARE_ENABLE, SPURIOUS, TASK_PRIORITY, TIMER_CURRENT,
    TIMER_DEADLINE_MODE, TIMER_DIVIDE, TIMER_INITIAL,
};

use super::{cpu, msr, timer};
use crate::irq;

/// Divisor of the timer's input clock.
pub const TIMER_DIVIDER: u64 = 16;

static X2APIC: AtomicBool = AtomicBool::new(false);
/// The mode is chosen, and the registers can be reached.
static READY: AtomicBool = AtomicBool::new(false);

fn read(register: u32) -> u32 {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: all registers of this file but the high command word exist as MSRs in x2APIC
        // mode; that one is not read.
        unsafe { msr::read(spec::msr(register)) as u32 }
    } else {
        // SAFETY: the page at `LAPIC_MMIO` is the local APIC's, uncached, in an instance without
        // x2APIC.
        unsafe {
            ptr::read_volatile((abi::layout::LAPIC_MMIO + spec::offset(register)) as *const u32)
        }
    }
}

fn write(register: u32, value: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: as in `read`; callers write values the registers accept.
        unsafe { msr::write(spec::msr(register), u64::from(value)) };
    } else {
        // SAFETY: as in `read`.
        unsafe {
            ptr::write_volatile(
                (abi::layout::LAPIC_MMIO + spec::offset(register)) as *mut u32,
                value,
            );
        };
    }
}

/// Chooses the register set for this and all later calls, and switches this CPU's APIC on in that
/// mode.
pub fn init_mode(x2apic: bool) {
    // SAFETY: the register exists on every CPU with a local APIC. From disabled or xAPIC, going to
    // x2APIC is allowed; to xAPIC from x2APIC is not, and not asked for, because all CPUs of a
    // machine run in the mode found at boot.
    unsafe {
        let base = msr::read(msr::APIC_BASE) | msr::apic_base::ENABLE;
        let base = if x2apic {
            base | msr::apic_base::X2APIC
        } else {
            base
        };
        msr::write(msr::APIC_BASE, base);
    }
    X2APIC.store(x2apic, Ordering::Relaxed);
    READY.store(true, Ordering::Release);
}

/// Whether interrupts can be sent: a kernel may end before that.
pub fn is_ready() -> bool {
    READY.load(Ordering::Acquire)
}

/// Sets up this CPU's APIC: on, all local sources masked, the timer one-shot on its vector.
pub(super) fn init_cpu(x2apic: bool) {
    init_mode(x2apic);
    write(SPURIOUS, SOFTWARE_ENABLE | u32::from(irq::SPURIOUS_VECTOR));
    write(TASK_PRIORITY, 0);
    // LINT1 is the platform's NMI line and LINT0 the old interrupt controllers': neither is an
    // instance's business.
    for lvt in [
        LVT_LINT0,
        LVT_LINT1,
        LVT_THERMAL,
        LVT_PERFORMANCE,
        LVT_ERROR,
    ] {
        write(lvt, MASKED);
    }
    write(ERROR_STATUS, 0);
    write(TIMER_DIVIDE, DIVIDE_BY_16);
    write(TIMER_INITIAL, 0);
    write(LVT_TIMER, u32::from(irq::TIMER_VECTOR));
    // What a previous owner of this CPU left in service is acknowledged, or its priority class
    // would stay blocked.
    for _ in 0..256 {
        if (IN_SERVICE..IN_SERVICE + 8).all(|register| read(register) == 0) {
            break;
        }
        end_of_interrupt();
    }
}

/// Whether an interrupt waits until this CPU takes interrupts.
pub fn is_requested() -> bool {
    (REQUESTED..REQUESTED + 8).any(|register| read(register) != 0)
}

/// Puts the timer into deadline mode: it fires when the TSC passes the value in its MSR.
pub(super) fn use_deadline_mode() {
    write(
        LVT_TIMER,
        u32::from(irq::TIMER_VECTOR) | TIMER_DEADLINE_MODE,
    );
    // SAFETY: orders the memory write above before the MSR write that arms the timer, as the manual
    // asks for xAPIC mode.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) };
}

/// This CPU's APIC id.
pub fn id() -> u32 {
    let raw = read(ID);
    if X2APIC.load(Ordering::Relaxed) {
        raw
    } else {
        spec::xapic_id(raw)
    }
}

/// Acknowledges the interrupt in service.
#[inline]
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Holds interrupts of a vector's priority class, and those below, back from this CPU, where they
/// stay requested; 0: none.
pub(crate) fn hold_back(vector: u8) {
    write(TASK_PRIORITY, u32::from(vector));
}

/// Sends a command to one CPU.
fn command(apic_id: u32, low: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: the write is not serialising, so the fence orders earlier stores (the message the
        // interrupt is about) before it. Value: a destination and one of the delivery modes below.
        unsafe {
            asm!("mfence", "lfence", options(nostack, preserves_flags));
            msr::write(spec::msr(COMMAND), spec::x2apic_command(apic_id, low));
        }
        return;
    }
    // Both halves belong together, and an interrupt handler may send too.
    cpu::without_irqs(|| {
        wait_idle();
        write(COMMAND_HIGH, spec::xapic_destination(apic_id));
        write(COMMAND, low);
        wait_idle();
    });
}

/// xAPIC: a command written before the last one went out would replace it.
fn wait_idle() {
    // Far longer than any bus takes; a command that is stuck for that long is given up.
    const LIMIT_TICKS: u64 = 1 << 26;
    timer::poll_ticks(LIMIT_TICKS, || read(COMMAND) & DELIVERY_PENDING == 0);
}

/// Sends an interrupt.
pub fn send_ipi(apic_id: u32, vector: u8) {
    command(apic_id, LEVEL_ASSERT | u32::from(vector));
}

/// Sends an interrupt to this CPU itself. Unlike any other command it may interrupt one that is
/// being given: there is no destination to be written before it.
pub fn send_self(vector: u8) {
    const LOW: u32 = LEVEL_ASSERT | DESTINATION_SELF;
    if X2APIC.load(Ordering::Relaxed) {
        command(0, LOW | u32::from(vector));
    } else {
        wait_idle();
        write(COMMAND, LOW | u32::from(vector));
        wait_idle();
    }
}

/// Sends a non-maskable interrupt.
pub fn send_nmi(apic_id: u32) {
    command(apic_id, LEVEL_ASSERT | DELIVERY_NMI);
}

/// Resets a CPU to wait for a start-up message.
pub fn send_init(apic_id: u32) {
    command(apic_id, LEVEL_ASSERT | DELIVERY_INIT);
}

/// Starts a reset CPU in real mode at `page * 4096`.
pub fn send_startup(apic_id: u32, page: u8) {
    command(apic_id, LEVEL_ASSERT | DELIVERY_STARTUP | u32::from(page));
}

/// Starts the timer to count down from here, at the bus clock divided by [`TIMER_DIVIDER`]; 0 stops
/// it.
pub fn start_timer(count: u32) {
    write(TIMER_INITIAL, count);
}

/// The timer's current count.
pub fn timer_count() -> u32 {
    read(TIMER_CURRENT)
}

/// Makes the timer count as it will later, without interrupts, so that boot code can measure its
/// rate.
pub fn prepare_calibration() {
    write(SPURIOUS, SOFTWARE_ENABLE | u32::from(irq::SPURIOUS_VECTOR));
    write(LVT_TIMER, MASKED);
    write(TIMER_DIVIDE, DIVIDE_BY_16);
}
