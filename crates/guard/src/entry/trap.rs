//! The ways into the kernel other than SYSCALL: exceptions and interrupts.
//!
//! Each vector has a 16-byte stub that makes the stack look the same (error code, vector) and goes
//! on to one of
//!
//! * `from_user`: saves the program's registers into the `UserRegs` of the running `user::enter`,
//!   and returns from it;
//! * `from_kernel`: saves all registers on the stack, calls [`kernel_trap`], restores them;
//! * `from_anywhere` (NMI, double fault, machine check, each on its own stack): these may interrupt
//!   the few instructions where the kernel runs with the user's GS or stack. A program can put any
//!   value into its GS base, so nothing can be concluded from it: the handler finds its per-CPU
//!   area by the stack it runs on, sets the GS base, and puts the old one back at the end.
//!
//! A debug exception in the kernel is of a program's watchpoint: the kernel touched what is
//! watched, or MOV SS held the exception back until the first instruction of an entry, where the
//! stack and GS are still the program's. It is passed over, on a stack of its own (the double
//! fault's, from which nobody returns), without touching anything else. Linux tells nobody of it,
//! either.
//!
//! Interrupts are off in all of them. Direction and alignment-check flags are the interrupted
//! code's and are cleared first.

use core::arch::{asm, global_asm};
use core::mem::size_of;
use core::sync::atomic::Ordering;

use mitigations::Entry;
use x86_spec::control::rflags;
use x86_spec::interrupt::{DOUBLE_FAULT, MACHINE_CHECK, NMI, PAGE_FAULT, page_fault};

use super::isolation;
use crate::arch::features::{self, Features};
use crate::arch::{self, cpu, msr, user, usercopy};
use crate::{heartbeat, irq, leave, machine_check, panic, park, pause, restart, role, speculation};

/// Registers of interrupted kernel code, as the stubs leave them on the stack.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

const _: () = assert!(size_of::<KernelFrame>().is_multiple_of(16));

const STUB_BYTES: usize = 16;

/// Pushes the general registers in the order of [`KernelFrame`].
macro_rules! push_registers {
    () => {
        "push rdi\npush rsi\npush rdx\npush rcx\npush rax\npush r8\npush r9\npush r10\npush r11\npush rbx\npush rbp\n\
         push r12\npush r13\npush r14\npush r15"
    };
}

/// The reverse, and drops vector and error code.
macro_rules! pop_registers {
    () => {
        "pop r15\npop r14\npop r13\npop r12\npop rbp\npop rbx\npop r11\npop r10\npop r9\npop r8\npop rax\npop rcx\n\
         pop rdx\npop rsi\npop rdi\nadd rsp, 16"
    };
}

/// The stubs of all vectors, which go on to the routines of that name and kind: `common`, or that
/// of the vector.
macro_rules! stubs {
    ($name:literal) => {
        concat!(
            ".balign 16\n",
            $name,
            "_stubs_\\kind:\n.set skerry_vector, 0\n.rept 256\n.balign 16\n",
            // Vectors for which the processor pushes an error code itself.
            ".if (skerry_vector == 8) || ((skerry_vector >= 10) && (skerry_vector <= 14)) || \
             (skerry_vector == 17) || (skerry_vector == 21) || (skerry_vector == 29) || \
             (skerry_vector == 30)\n.else\npush 0\n.endif\n",
            // `push imm32`, spelled out because an assembler variable as an operand means memory
            // here.
            ".byte 0x68\n.long skerry_vector\n.if skerry_vector == 1\njmp ",
            $name,
            "_debug_\\kind\n.elseif skerry_vector == 2\njmp ",
            $name,
            "_nmi_\\kind\n.elseif skerry_vector == 8\njmp ",
            $name,
            "_double_fault_\\kind\n.elseif skerry_vector == 18\njmp ",
            $name,
            "_machine_check_\\kind\n.else\njmp ",
            $name,
            "_common_\\kind\n.endif\n.set skerry_vector, skerry_vector + 1\n.endr"
        )
    };
}

/// Passes over a debug exception in the kernel, behind a stub.
macro_rules! pass_over_debug {
    () => {
        "mov [rsp], rax\nmov eax, {dr6_clear}\nmov dr6, rax\npop rax\nadd rsp, 8\niretq"
    };
}

pub(crate) use {pass_over_debug, pop_registers, push_registers, stubs};

user::with_registers!(global_asm (
    // The stubs of all vectors, and what they go on to. `restrict` is 1 where indirect branches are
    // restricted as long as the kernel runs: until that is done returns are the only ones. The
    // global ones are those that `isolation` goes on to.
    ".macro skerry_trap_entries kind, restrict",
    ".global skerry_trap_common_\\kind, skerry_trap_registers_\\kind, skerry_trap_special_\\kind",
    stubs!("skerry_trap"),
    "",
    "skerry_trap_common_\\kind:",
    "test byte ptr [rsp + {cs}], 3",
    "jnz skerry_trap_from_user_\\kind",
    "",
    // Nor in speculation is anything read through the base of GS that the other way would have.
    "lfence",
    push_registers!(),
    "cld",
    "mov rdi, rsp",
    "call {kernel_trap}",
    pop_registers!(),
    "iretq",
    "",
    // On the stack that `enter` prepared; the registers go where it said, the stack pointer goes
    // back to where it was, and the rest is a return from `enter` with the vector in RAX and the
    // error code in RDX.
    "skerry_trap_from_user_\\kind:",
    "swapgs",
    "lfence",
    "push rax",
    "skerry_trap_registers_\\kind:",
    "mov rax, gs:[{gs_user_regs}]",
    "mov [rax + {rbx}], rbx", "mov [rax + {rcx}], rcx", "mov [rax + {rdx}], rdx",
    "mov [rax + {rsi}], rsi", "mov [rax + {rdi}], rdi", "mov [rax + {rbp}], rbp",
    "mov [rax + {r8}], r8", "mov [rax + {r9}], r9", "mov [rax + {r10}], r10",
    "mov [rax + {r11}], r11", "mov [rax + {r12}], r12", "mov [rax + {r13}], r13",
    "mov [rax + {r14}], r14", "mov [rax + {r15}], r15",
    ".if \\restrict",
    "mov rdi, rax",
    "mov ecx, {spec_ctrl}",
    "mov eax, [rip + {kernel_spec_ctrl}]",
    "xor edx, edx",
    "wrmsr",
    "mov rax, rdi",
    ".endif",
    "pop rcx",
    "mov [rax + {rax}], rcx",
    "mov qword ptr [rax + {orig_rax}], -1",
    "pop rsi", // vector
    "pop rdx", // error code
    "pop rcx",
    "mov [rax + {rip}], rcx",
    "add rsp, 8", // code segment
    "pop rcx",
    "mov [rax + {rflags}], rcx",
    "pop rcx",
    "mov [rax + {rsp}], rcx",
    "mov rax, rsi",
    "mov rsp, gs:[{gs_kernel_rsp}]",
    "cld",
    "ret",
    "",
    "skerry_trap_debug_\\kind:",
    "test byte ptr [rsp + {cs}], 3",
    "jnz skerry_trap_from_user_\\kind",
    pass_over_debug!(),
    "",
    "skerry_trap_nmi_\\kind:",
    push_registers!(),
    "lea rsi, [rsp + {frame_bytes} - {nmi_top}]",
    "jmp skerry_trap_from_anywhere_\\kind",
    "skerry_trap_double_fault_\\kind:",
    push_registers!(),
    "lea rsi, [rsp + {frame_bytes} - {double_fault_top}]",
    "jmp skerry_trap_from_anywhere_\\kind",
    "skerry_trap_machine_check_\\kind:",
    push_registers!(),
    "lea rsi, [rsp + {frame_bytes} - {machine_check_top}]",
    "skerry_trap_from_anywhere_\\kind:",
    "mov rdi, rsp",
    "call skerry_trap_special_\\kind",
    pop_registers!(),
    "iretq",
    "",
    // RDI: the registers, a stack of 16 bytes alignment; RSI: this CPU's area.
    "skerry_trap_special_\\kind:",
    "push rdi",
    "cld",
    "mov ecx, {gs_base}",
    "rdmsr",
    "mov r12d, eax",
    "mov r13d, edx",
    "mov rax, rsi",
    "mov rdx, rsi",
    "shr rdx, 32",
    "wrmsr",
    ".if \\restrict",
    "mov ecx, {spec_ctrl}",
    "rdmsr",
    "mov r14d, eax",
    "mov eax, [rip + {kernel_spec_ctrl}]",
    "xor edx, edx",
    "wrmsr",
    ".endif",
    "call {special_trap}",
    ".if \\restrict",
    "mov ecx, {spec_ctrl}",
    "mov eax, r14d",
    "xor edx, edx",
    "wrmsr",
    ".endif",
    "mov ecx, {gs_base}",
    "mov eax, r12d",
    "mov edx, r13d",
    "wrmsr",
    "pop rdi",
    "ret",
    ".endm",
    ".global skerry_trap_stubs_plain",
    "skerry_trap_entries plain, 0",
    ".global skerry_trap_stubs_restrict",
    "skerry_trap_entries restrict, 1",
    ".purgem skerry_trap_entries",
)
    cs = const 3 * 8,
    dr6_clear = const x86_spec::debug::DR6_CLEAR,
    kernel_trap = sym kernel_trap,
    special_trap = sym special_trap,
    frame_bytes = const size_of::<KernelFrame>(),
    nmi_top = const cpu::NMI_STACK_TOP,
    double_fault_top = const cpu::DOUBLE_FAULT_STACK_TOP,
    machine_check_top = const cpu::MACHINE_CHECK_STACK_TOP,
    gs_base = const msr::GS_BASE,
    gs_user_regs = const cpu::GS_USER_REGS,
    gs_kernel_rsp = const cpu::GS_KERNEL_RSP,
    spec_ctrl = const msr::SPEC_CTRL,
    kernel_spec_ctrl = sym speculation::KERNEL_SPEC_CTRL,
);

/// A stub for each vector.
pub(crate) type Stubs = [[u8; STUB_BYTES]; 256];

unsafe extern "C" {
    static skerry_trap_stubs_plain: Stubs;
    static skerry_trap_stubs_restrict: Stubs;
}

/// Address of a vector's entry stub among those of the kind. Buffers are cleared on the way out.
pub fn stub(vector: u8, entry: Entry, isolated: bool) -> u64 {
    // SAFETY: the symbols are defined above and in `isolation` with 256 stubs each; only an address
    // is taken.
    unsafe {
        let stubs = match (entry, isolated) {
            (Entry::Plain | Entry::ClearBuffers, false) => &raw const skerry_trap_stubs_plain,
            (Entry::RestrictBranches, false) => &raw const skerry_trap_stubs_restrict,
            (Entry::Plain | Entry::ClearBuffers, true) => {
                &raw const isolation::skerry_isolated_stubs_plain
            }
            (Entry::RestrictBranches, true) => &raw const isolation::skerry_isolated_stubs_restrict,
        };
        &raw const (*stubs)[usize::from(vector)] as u64
    }
}

/// Forbids access to user memory until the next `stac`; interrupted code may have been in a user
/// copy, and a program may have set the flag.
#[inline]
pub fn disable_user_access() {
    if features::has(Features::SMAP) {
        // SAFETY: the instruction exists with SMAP, and only takes a permission away. It comes back
        // with the flags of the interrupted code.
        unsafe { asm!("clac", options(nostack)) };
    }
}

/// An exception or interrupt in kernel code, on the interrupted stack.
extern "C" fn kernel_trap(frame: &mut KernelFrame) {
    disable_user_access();
    let vector = frame.vector as u8;
    match vector {
        irq::FIRST_VECTOR..=255 => irq::handle(vector),
        PAGE_FAULT => kernel_page_fault(frame),
        _ => {
            if let Some(fixup) = usercopy::fixup(frame.rip) {
                frame.rip = fixup;
            } else {
                panic::exception(frame, None);
            }
        }
    }
}

fn kernel_page_fault(frame: &mut KernelFrame) {
    // Read first: the next fault overwrites it.
    let address = msr::cr2();
    let Some(fixup) = usercopy::fixup(frame.rip) else {
        panic::exception(frame, Some(address))
    };
    let write = frame.error & page_fault::WRITE != 0;
    let ordinary = frame.error & (page_fault::RESERVED | page_fault::FETCH) == 0;
    if address < user::USER_END && ordinary && frame.rflags & rflags::IF != 0 {
        // The copy ran in a thread with interrupts on, so its fault may sleep.
        cpu::enable_irqs();
        let retry = user::handle_kernel_fault(address, write);
        cpu::irqs_off();
        if retry {
            return;
        }
    }
    frame.rip = fixup;
}

/// NMI, double fault and machine check, on their own stacks.
extern "C" fn special_trap(frame: &mut KernelFrame) {
    disable_user_access();
    match frame.vector as u8 {
        NMI => {
            crate::faults::on_nmi();
            let area = cpu::area();
            area.interrupts[usize::from(NMI)].fetch_add(1, Ordering::Relaxed);
            if let Some(window) = role::window() {
                if window.halt_ordered() || arch::is_stopping() || leave::is_over() {
                    // SAFETY: this is the NMI handler; it runs with interrupts off.
                    unsafe { park::enter_with_nmis_blocked() };
                }
                heartbeat::answer(frame);
                pause::before_return(frame, &window.orders);
            } else if arch::is_stopping() {
                restart::stand_by();
            }
        }
        // A double fault is a fault that could not be delivered, most often because of where the
        // stack pointer is.
        DOUBLE_FAULT => panic::exception(frame, Some(msr::cr2())),
        MACHINE_CHECK if machine_check::on_exception(frame) => {}
        _ => panic::exception(frame, None),
    }
}

/// A program's page fault, from its error code.
pub fn user_page_fault(address: usize, error: u64) -> user::Trap {
    user::Trap::PageFault {
        addr: address,
        write: error & page_fault::WRITE != 0,
        exec: error & page_fault::FETCH != 0,
        present: error & page_fault::PRESENT != 0,
    }
}
