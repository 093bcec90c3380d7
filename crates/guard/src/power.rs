//! The end of the machine, or of this instance.

use core::sync::atomic::{AtomicI32, Ordering};

use acpi::{PowerOff, Register};
use lfmutex::Once;
use x86_spec::segment::TablePointer;

use crate::arch::{self, msr, port, timer};
use crate::log::early;
use crate::{PowerToken, heartbeat, instance, role};

static POWER: Once<PowerOff> = Once::new();

/// Sets the registers that ACPI names for power off and reset; the boot code calls it once.
pub(crate) fn init(power: PowerOff) {
    POWER.call_once(|| power);
}

/// Supervisor: switches the machine off, or resets it if it does not know how. Instance: ends it
/// with status 0.
pub fn off(token: &PowerToken) -> ! {
    if !role::is_supervisor() {
        instance::exit(0);
    }
    arch::stop_other_cpus();
    if let Some((Register::Port(port), value)) = POWER.get().and_then(|power| power.sleep) {
        // SAFETY: the port is the sleep control register, by the firmware's tables; this is the
        // last thing the machine does.
        unsafe {
            if value > 0xff {
                port::outw(port, value);
            } else {
                port::outb(port, value as u8);
            }
        }
        wait();
    }
    log::error!("this machine does not say how to switch it off: resetting it");
    reset(token)
}

/// Supervisor: resets the machine. Instance: ends it with status 0.
pub fn reset(_: &PowerToken) -> ! {
    if !role::is_supervisor() {
        instance::exit(0);
    }
    reset_machine()
}

/// Seconds from a panic to what follows it; 0: nothing follows, less: at once.
static PANIC_TIMEOUT_SECONDS: AtomicI32 = AtomicI32::new(-1);

/// Sets the seconds that pass between a panic and the reset of the machine, or the end of this
/// instance: 0 if neither is to come, less for none, as it is at first (Linux `panic_timeout`).
pub fn set_panic_timeout_seconds(seconds: i32) {
    PANIC_TIMEOUT_SECONDS.store(seconds, Ordering::Relaxed);
}

/// Lets the time pass that was set for after a panic, on the only CPU that still runs: for ever, if
/// it is 0.
pub(crate) fn wait_after_panic() {
    match PANIC_TIMEOUT_SECONDS.load(Ordering::Relaxed) {
        ..0 => {}
        0 => {
            early!("panic: kernel.panic is 0: this kernel stands still");
            msr::halt_forever()
        }
        seconds => {
            early!("panic: waiting for {seconds} seconds (kernel.panic)");
            let ticks = timer::tsc_hz().saturating_mul(seconds.cast_unsigned().into());
            timer::poll_ticks(ticks, || {
                heartbeat::beat();
                false
            });
        }
    }
}

/// Supervisor: resets the machine, also where the kernel has panicked.
pub(crate) fn reset_machine() -> ! {
    arch::stop_other_cpus();
    if let Some((Register::Port(port), value)) = POWER.get().and_then(|power| power.reset) {
        // SAFETY: the port is the reset register, by the firmware's tables.
        unsafe { port::outb(port, value) };
        wait();
    }
    // SAFETY: the keyboard controller's reset pulse, which every PC without the above has.
    unsafe { port::outb(0x64, 0xfe) };
    wait();
    // SAFETY: with an empty interrupt table the breakpoint ends in a triple fault, which resets the
    // machine.
    unsafe {
        core::arch::asm!(
            "lidt [{table}]",
            "int3",
            table = in(reg) &EMPTY_TABLE,
            options(nostack),
        );
    }
    msr::halt_forever()
}

static EMPTY_TABLE: TablePointer = TablePointer::EMPTY;

/// Hardware takes a moment to act.
fn wait() {
    const LIMIT_TICKS: u64 = 1 << 28;
    timer::poll_ticks(LIMIT_TICKS, || false);
}
