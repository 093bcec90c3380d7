//! Ring 3 and back: [`enter`] runs a program until it needs the kernel, and returns why.
//!
//! The caller's callee-saved registers stay on its kernel stack; the stack pointer at that moment is where the processor
//! (through the task state segment) and the system call entry continue, so a return to the kernel is a return from
//! `enter`, whatever caused it. Everything above is ordinary Rust.
//!
//! A program cannot reach a segment of its choice: CS and SS are constants, DS, ES, FS and GS are null selectors, there is
//! no compatibility mode. Debug registers are never set on a program's behalf, so no debug exception can hit the first
//! instructions of the kernel.

use core::arch::{asm, naked_asm};
use core::mem::offset_of;

use super::features::{self, Features};
use super::{cpu, gdt, msr, trap};
use crate::irq::{self, Hook};

pub use super::usercopy::{
    UserFault, cmpxchg_u32, load_u32, load_u64, read_bytes, read_cstr, store_u32, store_u64, write_bytes, zero,
};

/// One past the highest address of a program.
pub const USER_END: usize = abi::layout::USER_END;

/// A program's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UserRegs {
    /// Accumulator; the system call's result.
    pub rax: u64,
    #[allow(missing_docs)]
    pub rbx: u64,
    /// After a system call the same as `rip`, as SYSCALL leaves it.
    pub rcx: u64,
    #[allow(missing_docs)]
    pub rdx: u64,
    #[allow(missing_docs)]
    pub rsi: u64,
    #[allow(missing_docs)]
    pub rdi: u64,
    #[allow(missing_docs)]
    pub rbp: u64,
    #[allow(missing_docs)]
    pub r8: u64,
    #[allow(missing_docs)]
    pub r9: u64,
    #[allow(missing_docs)]
    pub r10: u64,
    /// After a system call the same as `rflags`, as SYSCALL leaves it.
    pub r11: u64,
    #[allow(missing_docs)]
    pub r12: u64,
    #[allow(missing_docs)]
    pub r13: u64,
    #[allow(missing_docs)]
    pub r14: u64,
    #[allow(missing_docs)]
    pub r15: u64,
    /// Where the program continues.
    pub rip: u64,
    /// Flags; `enter` keeps only those a program may set.
    pub rflags: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Base address of FS (thread-local storage).
    pub fs_base: u64,
    /// Base address of GS.
    pub gs_base: u64,
    /// Number of the system call the program made, or `u64::MAX` after any other trap.
    pub orig_rax: u64,
}

impl UserRegs {
    /// What a system call shows as the code segment.
    pub const CS: u16 = gdt::USER_CODE;
    /// What it shows as the stack segment.
    pub const SS: u16 = gdt::USER_DATA;
}

/// Why a program stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It executed SYSCALL; the number is in `orig_rax`, the arguments in `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`.
    Syscall,
    /// It touched memory that is not mapped as needed.
    PageFault {
        /// The address touched.
        addr: usize,
        /// It was to be written.
        write: bool,
        /// It was to be executed.
        exec: bool,
        /// Something is mapped there, but does not allow the access.
        present: bool,
    },
    /// Any other exception.
    Exception {
        /// Its vector.
        vector: u8,
        /// Its error code, or 0.
        code: u64,
    },
    /// An interrupt; it was handled. Time to look at signals and at the scheduler.
    Interrupt,
}

/// Flags a program may set: CF, PF, AF, ZF, SF, TF, DF, OF, RF, AC, ID.
const FLAGS_ALLOWED: u64 = 0x0025_0dd5;
/// Flags a program always has: the fixed bit, and interrupts on.
const FLAGS_FORCED: u64 = 0x0202;
/// Those of the allowed ones that SYSRET can load: not TF, which would trap in the kernel's last instruction, and not RF.
const FLAGS_SYSRET: u64 = FLAGS_ALLOWED & !0x1_0100;
/// Flags SYSCALL clears: TF, IF, DF, IOPL, NT, RF, AC.
const SYSCALL_FLAG_MASK: u64 = 0x0005_7700;
/// Bits of an address in the lower, canonical half, which is where a program's code and segment bases are.
const USER_BITS: u32 = 47;
/// What `run` reports for a system call, beyond all vectors.
const SYSCALL: u64 = 0x100;

/// System call registers of this CPU.
pub(super) fn init_cpu() {
    // SAFETY: the registers exist on every 64-bit CPU. The entry is assembly made for it; the selectors are those of our
    // GDT. There is no compatibility mode to come from, so CSTAR gets no handler; a zero SYSENTER_CS makes SYSENTER fault.
    unsafe {
        msr::write(msr::STAR, u64::from(gdt::SYSRET_BASE) << 48 | u64::from(gdt::KERNEL_CODE) << 32);
        msr::write(msr::LSTAR, syscall_entry as *const () as u64);
        msr::write(msr::CSTAR, 0);
        msr::write(msr::SFMASK, SYSCALL_FLAG_MASK);
        msr::write(msr::SYSENTER_CS, 0);
    }
}

/// Runs the program with these registers in the active address space until something happens, and leaves its registers
/// there. Interrupts are on at call and return.
///
/// Registers a program cannot have (a code address outside user space, a segment base that is not canonical) end in a
/// general protection exception of the program, without running it.
///
/// # Panics
/// Within `CpuLocal::with`.
#[inline(always)]
pub fn enter(regs: &mut UserRegs) -> Trap {
    enter_unless(regs, || false)
}

/// Like [`enter`], but first asks `stop` with interrupts off: if it is true the program does not run and
/// [`Trap::Interrupt`] is the answer. A signal or a wake-up that is announced by an interrupt after the question ends the
/// program's run, so none is lost between looking and leaving.
#[inline(always)]
pub fn enter_unless(regs: &mut UserRegs, stop: impl FnOnce() -> bool) -> Trap {
    cpu::assert_not_pinned();
    cpu::irqs_off();
    if stop() {
        cpu::irqs_on();
        return Trap::Interrupt;
    }
    if (regs.rip | regs.fs_base | regs.gs_base) >> USER_BITS != 0 {
        cpu::irqs_on();
        return Trap::Exception { vector: trap::GENERAL_PROTECTION, code: 0 };
    }
    // SYSRET takes RIP from RCX and RFLAGS from R11, so it is for programs that have them there anyway.
    let sysret = regs.rcx == regs.rip && regs.r11 == regs.rflags && regs.rflags & !FLAGS_SYSRET == FLAGS_FORCED;
    if !sysret {
        regs.rflags = regs.rflags & FLAGS_ALLOWED | FLAGS_FORCED;
    }
    set_bases(regs);
    // SAFETY: interrupts are off; this CPU's area, GDT, IDT and system call registers are set up since `init_cpu`; the
    // registers are exclusively borrowed until the program is back; RIP is below the canonical limit, the bases are too,
    // and flags and selectors are good ones, so neither IRETQ nor SYSRET can fault in the kernel.
    let RawTrap { vector, code } = unsafe { run(regs, sysret) };
    save_bases(regs);
    if vector == SYSCALL {
        cpu::irqs_on();
        return Trap::Syscall;
    }
    trap::close_user_memory();
    let vector = vector as u8;
    let trap = match vector {
        // CR2 is still this fault's: interrupts are off, and kernel code does not fault in between.
        trap::PAGE_FAULT => trap::user_page_fault(msr::cr2(), code),
        irq::FIRST_VECTOR..=255 => {
            irq::handle(vector);
            Trap::Interrupt
        }
        _ => Trap::Exception { vector, code },
    };
    cpu::irqs_on();
    trap
}

/// Loads the program's FS and GS bases. With FSGSBASE a program changes them by itself, so nothing is remembered.
#[inline]
fn set_bases(regs: &UserRegs) {
    if features::has(Features::FSGSBASE) {
        // SAFETY: CR4.FSGSBASE is set, the bases are canonical. Between the two SWAPGS interrupts are off, and NMI and
        // machine check handlers do not rely on GS.
        unsafe {
            asm!("wrfsbase {}", in(reg) regs.fs_base, options(nostack, preserves_flags));
            asm!("swapgs", "wrgsbase {}", "swapgs", in(reg) regs.gs_base, options(nostack, preserves_flags));
        }
    } else {
        // SAFETY: the registers exist, the bases are canonical; KERNEL_GS_BASE holds the user's while in the kernel.
        unsafe {
            msr::write(msr::FS_BASE, regs.fs_base);
            msr::write(msr::KERNEL_GS_BASE, regs.gs_base);
        }
    }
}

/// Reads them back, where a program can have changed them.
#[inline]
fn save_bases(regs: &mut UserRegs) {
    if features::has(Features::FSGSBASE) {
        let (fs, gs): (u64, u64);
        // SAFETY: as in `set_bases`.
        unsafe {
            asm!("rdfsbase {}", out(reg) fs, options(nostack, nomem, preserves_flags));
            asm!("swapgs", "rdgsbase {}", "swapgs", out(reg) gs, options(nostack, preserves_flags));
        }
        regs.fs_base = fs;
        regs.gs_base = gs;
    }
}

struct RawTrap {
    vector: u64,
    code: u64,
}

/// Goes to ring 3. Every entry from there ends in a `ret` that continues here. In line, so that the caller saves only the registers it needs.
///
/// # Safety
/// Interrupts off, the CPU set up, `regs.rip`, flags and segment bases checked; `sysret` only if RCX and R11 equal RIP and
/// RFLAGS.
#[inline(always)]
unsafe fn run(regs: &mut UserRegs, sysret: bool) -> RawTrap {
    let (vector, code);
    // SAFETY: the caller vouches for the registers. RBX and RBP are saved on the stack, all others are declared as lost, and
    // the stack pointer comes back as it was: the entries from ring 3 load it from where it is stored here, and
    // return to the address on top of it, with the vector in RAX and the error code in RDX.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "lea rax, [rip + 3f]",
            "push rax",
            "mov gs:[{gs_user_regs}], rdi",
            "mov gs:[{gs_kernel_rsp}], rsp",
            "test sil, sil",
            "mov rax, [rdi + {rax}]",
            "mov rbx, [rdi + {rbx}]",
            "mov rcx, [rdi + {rcx}]",
            "mov rdx, [rdi + {rdx}]",
            "mov rsi, [rdi + {rsi}]",
            "mov rbp, [rdi + {rbp}]",
            "mov r8, [rdi + {r8}]",
            "mov r9, [rdi + {r9}]",
            "mov r10, [rdi + {r10}]",
            "mov r11, [rdi + {r11}]",
            "mov r12, [rdi + {r12}]",
            "mov r13, [rdi + {r13}]",
            "mov r14, [rdi + {r14}]",
            "mov r15, [rdi + {r15}]",
            "jz 2f",
            "mov rsp, [rdi + {rsp}]",
            "mov rdi, [rdi + {rdi}]",
            "swapgs",
            "sysretq",
            "2:",
            "push {user_data}",
            "push [rdi + {rsp}]",
            "push [rdi + {rflags}]",
            "push {user_code}",
            "push [rdi + {rip}]",
            "mov rdi, [rdi + {rdi}]",
            "swapgs",
            "iretq",
            "3:",
            "pop rbp",
            "pop rbx",
            gs_user_regs = const cpu::GS_USER_REGS,
            gs_kernel_rsp = const cpu::GS_KERNEL_RSP,
            user_data = const gdt::USER_DATA,
            user_code = const gdt::USER_CODE,
            rax = const offset_of!(UserRegs, rax),
            rbx = const offset_of!(UserRegs, rbx),
            rcx = const offset_of!(UserRegs, rcx),
            rdx = const offset_of!(UserRegs, rdx),
            rsi = const offset_of!(UserRegs, rsi),
            rdi = const offset_of!(UserRegs, rdi),
            rbp = const offset_of!(UserRegs, rbp),
            r8 = const offset_of!(UserRegs, r8),
            r9 = const offset_of!(UserRegs, r9),
            r10 = const offset_of!(UserRegs, r10),
            r11 = const offset_of!(UserRegs, r11),
            r12 = const offset_of!(UserRegs, r12),
            r13 = const offset_of!(UserRegs, r13),
            r14 = const offset_of!(UserRegs, r14),
            r15 = const offset_of!(UserRegs, r15),
            rip = const offset_of!(UserRegs, rip),
            rflags = const offset_of!(UserRegs, rflags),
            rsp = const offset_of!(UserRegs, rsp),
            inout("rdi") core::ptr::from_mut(regs) => _,
            inout("rsi") u64::from(sysret) => _,
            out("rax") vector,
            out("rdx") code,
            out("rcx") _,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
        );
    }
    RawTrap { vector, code }
}

/// Where SYSCALL goes: saves all registers into the `UserRegs` of the running `enter`, which the stack pointer names for
/// the time being (interrupts are off, and NMI and machine checks have stacks of their own).
#[unsafe(naked)]
unsafe extern "sysv64" fn syscall_entry() {
    naked_asm!(
        "swapgs",
        "mov gs:[{gs_scratch}], rsp",
        "mov rsp, gs:[{gs_user_regs}]",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {orig_rax}], rax",
        "mov [rsp + {rbx}], rbx",
        "mov [rsp + {rcx}], rcx",
        "mov [rsp + {rip}], rcx",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rbp}], rbp",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r11}], r11",
        "mov [rsp + {rflags}], r11",
        "mov [rsp + {r12}], r12",
        "mov [rsp + {r13}], r13",
        "mov [rsp + {r14}], r14",
        "mov [rsp + {r15}], r15",
        "mov rcx, gs:[{gs_scratch}]",
        "mov [rsp + {rsp}], rcx",
        "mov rsp, gs:[{gs_kernel_rsp}]",
        "mov eax, {syscall}",
        "ret",
        syscall = const SYSCALL,
        gs_scratch = const cpu::GS_SCRATCH,
        gs_user_regs = const cpu::GS_USER_REGS,
        gs_kernel_rsp = const cpu::GS_KERNEL_RSP,
        rax = const offset_of!(UserRegs, rax),
        rbx = const offset_of!(UserRegs, rbx),
        rcx = const offset_of!(UserRegs, rcx),
        rdx = const offset_of!(UserRegs, rdx),
        rsi = const offset_of!(UserRegs, rsi),
        rdi = const offset_of!(UserRegs, rdi),
        rbp = const offset_of!(UserRegs, rbp),
        r8 = const offset_of!(UserRegs, r8),
        r9 = const offset_of!(UserRegs, r9),
        r10 = const offset_of!(UserRegs, r10),
        r11 = const offset_of!(UserRegs, r11),
        r12 = const offset_of!(UserRegs, r12),
        r13 = const offset_of!(UserRegs, r13),
        r14 = const offset_of!(UserRegs, r14),
        r15 = const offset_of!(UserRegs, r15),
        rip = const offset_of!(UserRegs, rip),
        rflags = const offset_of!(UserRegs, rflags),
        rsp = const offset_of!(UserRegs, rsp),
        orig_rax = const offset_of!(UserRegs, orig_rax),
    )
}

static FAULT_HANDLER: Hook<fn(usize, bool) -> bool> = Hook::new();

/// Sets what is called when the kernel faults on a user address in one of the user copies: in thread context, interrupts
/// on. `true` means: try again.
pub fn set_fault_handler(handler: fn(addr: usize, write: bool) -> bool) {
    FAULT_HANDLER.set(handler);
}

/// Gives a kernel-mode fault on a user address to the registered handler.
pub(super) fn handle_kernel_fault(address: usize, write: bool) -> bool {
    FAULT_HANDLER.get().is_some_and(|handler| handler(address, write))
}
