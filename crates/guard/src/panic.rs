//! The end of an instance: registers, back trace, and out of the others' way.
//!
//! The supervisor prints to the serial port, stops its other CPUs and resets the machine, or starts
//! again in place, if its command line asks for that (`restart`). An instance prints to its log
//! ring, tells the supervisor by its status word and the doorbell, and sends all its CPUs to the
//! park page; nobody else notices. Both do the latter after the time that `/proc/sys/kernel/panic`
//! says, at first at once.

use core::arch::asm;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::window::State;
use x86_spec::interrupt::{DOUBLE_FAULT, GENERAL_PROTECTION, MACHINE_CHECK, PAGE_FAULT};

use crate::arch::{self, msr, probe};
use crate::cpu::{self, CpuId};
use crate::entry::trap::KernelFrame;
use crate::log::early;
use crate::{ipi, machine_check, park, power, restart, role, stack, symbols};

/// Deepest back trace.
const MAX_FRAMES: usize = 40;
const NO_CPU: u32 = u32::MAX;

/// Number of the CPU that panics.
static PANICKING: AtomicU32 = AtomicU32::new(NO_CPU);

#[cfg_attr(target_os = "none", panic_handler)]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    begin();
    match info.location() {
        Some(at) => early!(
            "panic: {} at {}:{} (CPU {})",
            info.message(),
            at.file(),
            at.line(),
            cpu_number()
        ),
        None => early!("panic: {} (CPU {})", info.message(), cpu_number()),
    }
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) frame, options(nostack, nomem, preserves_flags)) };
    back_trace(frame);
    end()
}

/// An exception in the kernel that nothing caters for.
pub(crate) fn exception(frame: &KernelFrame, address: Option<usize>) -> ! {
    begin();
    let vector = frame.vector as u8;
    let name = match vector {
        0 => "divide error",
        6 => "invalid opcode",
        DOUBLE_FAULT => "double fault",
        GENERAL_PROTECTION => "general protection fault",
        PAGE_FAULT => "page fault",
        MACHINE_CHECK => "machine check",
        _ => "exception",
    };
    early!(
        "panic: {name} in the kernel: vector {vector}, code {:#x} (CPU {})",
        frame.error,
        cpu_number()
    );
    if let Some(address) = address {
        early!(
            "  address {address:#018x}{}",
            if stack::is_guard_page(address) {
                ": kernel stack overflow"
            } else {
                ""
            }
        );
    }
    if vector == MACHINE_CHECK {
        machine_check::print();
    }
    print_registers(frame);
    print_frame(0, frame.rip, 0);
    back_trace(frame.rbp);
    end()
}

fn print_registers(f: &KernelFrame) {
    early!(
        "  rip {:016x}  cs {:02x}  rflags {:08x}  rsp {:016x}",
        f.rip,
        f.cs,
        f.rflags,
        f.rsp
    );
    early!(
        "  rax {:016x}  rbx {:016x}  rcx {:016x}  rdx {:016x}",
        f.rax,
        f.rbx,
        f.rcx,
        f.rdx
    );
    early!(
        "  rsi {:016x}  rdi {:016x}  rbp {:016x}  cr3 {:016x}",
        f.rsi,
        f.rdi,
        f.rbp,
        msr::cr3()
    );
    early!(
        "  r8  {:016x}  r9  {:016x}  r10 {:016x}  r11 {:016x}",
        f.r8,
        f.r9,
        f.r10,
        f.r11
    );
    early!(
        "  r12 {:016x}  r13 {:016x}  r14 {:016x}  r15 {:016x}",
        f.r12,
        f.r13,
        f.r14,
        f.r15
    );
}

/// Follows the saved frame pointers. Each is checked and read carefully: a broken stack ends the
/// trace, not the panic.
fn back_trace(mut frame: u64) {
    if !cpu::is_online(CpuId(0)) {
        // No descriptor tables yet, so a bad pointer would be the end of everything.
        return;
    }
    for depth in 1..=MAX_FRAMES {
        let (Some(next), Some(rip)) = (
            probe(frame as usize),
            probe((frame as usize).wrapping_add(8)),
        ) else {
            return;
        };
        if rip == 0 {
            return;
        }
        // A return address is the instruction after the call, which may be the next function's
        // first.
        print_frame(depth, rip, 1);
        if next <= frame {
            return;
        }
        frame = next;
    }
}

fn print_frame(depth: usize, rip: u64, back: u64) {
    let known = symbols::lookup(rip - back, |name, distance| {
        early!(
            "  #{depth:<2} {rip:016x} {name}+{:#x}",
            u64::from(distance) + back
        );
    });
    if known.is_none() {
        early!("  #{depth:<2} {rip:016x}");
    }
}

/// The CPU's number, or that of the first one if it has no area yet.
fn cpu_number() -> u32 {
    if cpu::is_online(CpuId(0)) {
        cpu::current().0
    } else {
        0
    }
}

/// The first CPU that panics goes on, alone; others stop. A panic within the panic goes straight to
/// the end.
fn begin() {
    cpu::irqs_off();
    match PANICKING.compare_exchange(NO_CPU, cpu_number(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            if cpu::is_online(CpuId(0)) {
                arch::stop_other_cpus();
            }
        }
        Err(first) if first == cpu_number() => {
            early!("panic: again, while panicking");
            end()
        }
        Err(_) => stop_here(),
    }
}

fn stop_here() -> ! {
    if role::is_supervisor() {
        restart::stand_by()
    } else {
        park::enter()
    }
}

fn end() -> ! {
    power::wait_after_panic();
    if let Some(window) = role::window() {
        window.set_state(State::Panicked);
        ipi::ring_peer();
        park::enter()
    }
    restart::begin();
    power::reset_machine()
}
