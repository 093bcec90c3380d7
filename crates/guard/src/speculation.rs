//! What is done about weaknesses of the processor (`docs/mitigations.md`). What that is, the crate
//! `mitigations` says; here it is read from the processor and carried out.
//!
//! Registers that hold for good are written when a CPU is set up. There are several routines of
//! each kind by which a CPU enters the kernel and leaves it (`user`, `trap`, `isolation`), of which
//! one is chosen before the first program runs, so that one which does nothing costs nothing.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use lfmutex::Once;
pub use mitigations::{Bugs, Restrictions, Vulnerability};
use mitigations::{Capabilities, Entry, Microcode, Plan, Processor, Report};
use x86_spec::msr::{
    ARCH_CAPABILITIES, EFER, FLUSH_CMD, FLUSH_CMD_L1D, MCU_OPT_CTRL, PRED_CMD, PRED_CMD_IBPB,
    SPEC_CTRL, TSX_CTRL, TSX_OFF, arch_capabilities, efer,
};

use crate::arch::{cpu, cpuid, msr};
use crate::entry::gdt::KERNEL_DATA;
use crate::role;

/// Report on the processors, and the plan that is carried out: with `mitigations=force` another one
/// than the report's.
struct State {
    report: Report,
    plan: Plan,
}

static STATE: Once<State> = Once::new();

/// The routines of entry and exit, for the assembly in `user`: 0 for those that do nothing but the
/// work, otherwise with the bits below where they do that too.
pub(crate) static ENTRY: AtomicU8 = AtomicU8::new(0);
/// Bit of the routines that clear buffers; all that do anything do that.
const CLEAR_BUFFERS: u8 = 1;
/// Bit of those that restrict branches.
pub(crate) const RESTRICT_BRANCHES: u8 = 2;
/// Bit of those that change page tables (`isolation`).
pub(crate) const ISOLATE: u8 = 4;
/// Lower half of the register for speculation while the kernel runs; its upper half is 0.
pub(crate) static KERNEL_SPEC_CTRL: AtomicU32 = AtomicU32::new(0);
/// Operand of VERW: a selector that may be written through. Only in this form, with memory as its
/// operand, the instruction clears buffers.
pub(crate) static VERW_SELECTOR: AtomicU32 = AtomicU32::new(KERNEL_DATA as u32);

static FILL_RETURN_STACK: AtomicBool = AtomicBool::new(false);

/// Weaknesses of this machine's processors, and what is done about them.
#[must_use]
pub fn report() -> &'static Report {
    &state().report
}

/// Restrictions that a thread can ask for.
#[must_use]
pub fn available() -> Restrictions {
    state().plan.restrictions()
}

/// Found when the first CPU is set up.
fn state() -> &'static State {
    STATE.call_once(find)
}

/// Emulators ignore writes to registers that they do not know; processors do not.
fn is_emulated() -> bool {
    const NAME: [u32; 3] = [0x5447_4354, 0x4354_4743, 0x4743_5447];
    let [_, hypervisor @ ..] = cpuid(0x4000_0000, 0);
    cpuid(1, 0)[2] & 1 << 31 != 0 && hypervisor == NAME
}

fn read_microcode(has: Capabilities) -> Microcode {
    if cfg!(not(target_os = "none")) {
        // Unit tests run in ring 3.
        return Microcode::default();
    }
    // SAFETY: the registers exist, by CPUID and by what the first says of the second; reading them
    // has no effect.
    unsafe {
        let arch_capabilities = if has.contains(Capabilities::ARCH_CAPABILITIES) {
            msr::read(ARCH_CAPABILITIES)
        } else {
            0
        };
        let has_options = has.contains(Capabilities::SRBDS_CONTROL)
            || arch_capabilities & arch_capabilities::GDS_CTRL != 0;
        Microcode {
            arch_capabilities,
            options: if has_options {
                msr::read(MCU_OPT_CTRL)
            } else {
                0
            },
        }
    }
}

fn find() -> State {
    let mode = role::mitigations();
    let report = Report::new(Processor::read(cpuid, read_microcode), mode);
    let plan = if mode.force && is_emulated() {
        Plan::forced(mode)
    } else {
        report.plan
    };
    let mut entry = match plan.entry {
        Entry::Plain => 0,
        Entry::ClearBuffers => CLEAR_BUFFERS,
        Entry::RestrictBranches => CLEAR_BUFFERS | RESTRICT_BRANCHES,
    };
    if plan.isolate {
        entry |= CLEAR_BUFFERS | ISOLATE;
    }
    ENTRY.store(entry, Ordering::Relaxed);
    KERNEL_SPEC_CTRL.store(plan.kernel_spec_ctrl as u32, Ordering::Relaxed);
    FILL_RETURN_STACK.store(plan.fill_return_stack, Ordering::Relaxed);
    State { report, plan }
}

/// The routines by which CPUs enter the kernel and leave it.
pub(crate) fn entry() -> Entry {
    state().plan.entry
}

/// Whether programs run on page tables without the kernel.
pub(crate) fn isolates() -> bool {
    state().plan.isolate
}

/// Makes this CPU forget what its last owner left, and sets the registers that hold for good.
pub(crate) fn init_cpu() {
    let plan = &state().plan;
    forget_last_owner(plan);
    // SAFETY: the registers exist, by the plan, and with these values none of them changes what an
    // instruction does, only how fast, and whether it leaves traces. (On an emulator that a plan
    // was forced on, they are ignored.)
    unsafe {
        if plan.has_spec_ctrl {
            msr::write(SPEC_CTRL, plan.kernel_spec_ctrl);
        }
        if plan.auto_ibrs {
            msr::write(EFER, msr::read(EFER) | efer::AIBRSE);
        }
        if plan.tsx_off {
            msr::write(TSX_CTRL, TSX_OFF);
        }
    }
    set_user_value(plan, Restrictions::empty());
}

/// Whatever the command line says: what is left here may be another instance's.
fn forget_last_owner(plan: &Plan) {
    if plan.ibpb {
        drop_predictions();
    }
    if plan.flush_l1d {
        // SAFETY: the register exists, by the plan; the command loses no data.
        unsafe { msr::write(FLUSH_CMD, FLUSH_CMD_L1D) };
    }
    clear_buffers();
}

/// Lifts the restrictions of this CPU, which is about to go to the park page: the core's other
/// thread must not be slowed by what nobody needs.
pub(crate) fn leave_cpu() {
    if let Some(State { plan, .. }) = STATE.get()
        && plan.has_spec_ctrl
    {
        // SAFETY: the register exists, by the plan; 0 is its value after a reset.
        unsafe { msr::write(SPEC_CTRL, 0) };
    }
}

/// Drops the predictions of indirect branches. The register exists, by the plan.
fn drop_predictions() {
    // SAFETY: the caller looked at the plan; the command changes nothing but speed.
    unsafe { msr::write(PRED_CMD, PRED_CMD_IBPB) };
}

/// Overwrites internal buffers, where microcode does that; otherwise it takes a few cycles.
pub(crate) fn clear_buffers() {
    // SAFETY: the instruction changes a flag. Its operand is a selector of ours.
    unsafe { asm!("verw word ptr [rip + {}]", sym VERW_SELECTOR, options(nostack)) };
}

/// Overwrites internal buffers before the CPU sleeps, so that the core's other thread does not find
/// in them what this one did last, if they are cleared at all.
#[inline]
pub(crate) fn before_sleep() {
    if ENTRY.load(Ordering::Relaxed) != 0 {
        clear_buffers();
    }
}

/// Restrictions of the thread whose registers were just loaded.
#[cold]
pub(crate) fn arrive(restrictions: Restrictions) {
    switch(restrictions, restrictions);
}

/// The thread with these restrictions leaves the CPU.
#[cold]
pub(crate) fn leave(restrictions: Restrictions) {
    switch(restrictions, Restrictions::empty());
}

/// A thread with restrictions comes or goes; `next` are in force from now on.
fn switch(of: Restrictions, next: Restrictions) {
    let plan = &state().plan;
    set_user_value(plan, next);
    if of.contains(Restrictions::INDIRECT_BRANCH) && plan.indirect_branch {
        drop_predictions();
    }
}

/// Sets the value of the register for speculation while a program runs: at once, or, if it is
/// written at each entry and exit, from the next exit on.
fn set_user_value(plan: &Plan, restrictions: Restrictions) {
    let value = plan.spec_ctrl(restrictions);
    let user = &cpu::area().user_spec_ctrl;
    if user.swap(value, Ordering::Relaxed) != value
        && plan.has_spec_ctrl
        && plan.entry != Entry::RestrictBranches
    {
        // SAFETY: the register and the bits exist, by the plan, and change nothing but speed.
        unsafe { msr::write(SPEC_CTRL, value) };
    }
}

/// Overwrites the predictions of returns when another program's thread comes to the CPU, so that
/// those of the program before are not used: 32, which is as many as any processor keeps.
#[inline]
pub(crate) fn fill_return_stack() {
    if FILL_RETURN_STACK.load(Ordering::Relaxed) {
        fill();
    }
}

#[inline(never)]
fn fill() {
    // SAFETY: the calls go to the next instructions, and what they leave on the stack is taken off
    // again. The trap behind each call is where a processor stands that predicts a return by it.
    unsafe {
        asm!(
            "mov {left:e}, 16",
            "2:",
            "call 3f",
            "int3",
            "3:",
            "call 4f",
            "int3",
            "4:",
            "add rsp, 16",
            "dec {left:e}",
            "jnz 2b",
            "lfence",
            left = out(reg) _,
        );
    }
}

/// The lesser of two numbers, by a move that waits for both: `number` where a check before has
/// found that it is at most `last`, and `last` where the processor goes on as if it had (Spectre,
/// variant 1). The compiler would find that it is not needed.
#[inline(always)]
#[must_use]
pub fn clamp(number: usize, last: usize) -> usize {
    let clamped;
    // SAFETY: compares and moves two registers.
    unsafe {
        asm!(
            "cmp {number}, {last}",
            "cmova {number}, {last}",
            number = inout(reg) number => clamped,
            last = in(reg) last,
            options(pure, nomem, nostack)
        );
    }
    clamped
}

#[cfg(test)]
mod tests {
    use super::clamp;

    #[test]
    fn the_lesser_of_two() {
        for (number, last) in [
            (0, 0),
            (1, 0),
            (0, 1),
            (usize::MAX, 1 << 47),
            (5, usize::MAX),
        ] {
            assert_eq!(clamp(number, last), number.min(last));
        }
    }
}
