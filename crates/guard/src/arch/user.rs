//! Ring 3 and back: [`enter`] runs a program until it needs the kernel, and returns why.
//!
//! The caller's callee-saved registers stay on its kernel stack; the stack pointer at that moment
//! is where the processor (through the task state segment) and the system call entry continue, so a
//! return to the kernel is a return from `enter`, whatever caused it. Everything above is ordinary
//! Rust.
//!
//! Most system calls need no more than their arguments and change no more than the result. For
//! these the entry calls a function ([`FastPath`]) right away and goes back to ring 3: the
//! registers that a function preserves are not even saved. Only if the function says so, or
//! something else is to be done first, does `enter` return.
//!
//! A program cannot reach a segment of its choice: CS and SS are constants, DS, ES, FS and GS are
//! null selectors, there is no compatibility mode. Debug registers hold addresses of programs only
//! (`UserFpu::set_breakpoints`).

use core::arch::{asm, naked_asm};
use core::cell::Cell;
use core::sync::atomic::{AtomicU8, Ordering};

use mitigations::Entry;
use x86_spec::control::rflags;
use x86_spec::interrupt::{DEBUG, GENERAL_PROTECTION, PAGE_FAULT};

pub use super::usercopy::{
    ShortString, UserFault, cmpxchg_u32, load_u32, load_u64, read_bytes, read_cstr, store_u8,
    store_u32, store_u64, with_value, write_bytes, zero,
};
use super::{cpu, msr};
use crate::entry::{gdt, trap};
use crate::irq::{self, Hook};
use crate::machine_check::{self, BadPage};
use crate::{BootToken, isolation, speculation};

/// One past the highest address of a program.
pub const USER_END: usize = abi::layout::USER_END;

/// A program's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct UserRegs {
    /// Accumulator; the system call's result.
    pub rax: u64,
    pub rbx: u64,
    /// After a system call the same as `rip`, as SYSCALL leaves it.
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    /// After a system call the same as `rflags`, as SYSCALL leaves it.
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// Instruction pointer: the program continues there.
    pub rip: u64,
    /// Flags; `enter` keeps only those a program may set.
    pub rflags: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Number of the system call the program made, or `u64::MAX` after any other trap.
    pub orig_rax: u64,
}

impl UserRegs {
    /// Code segment of programs, as a system call shows it.
    pub const CS: u16 = gdt::USER_CODE;
    /// Stack segment of programs, as a system call shows it.
    pub const SS: u16 = gdt::USER_DATA;
}

/// An assembly macro's invocation in which each register's name stands for its offset in
/// [`UserRegs`]: the lines in parentheses, then operands. Names that the lines do not need are in a
/// comment of theirs, because each has to occur.
macro_rules! with_registers {
    ($register:ident) => {
        core::mem::offset_of!($crate::user::UserRegs, $register)
    };
    ($asm:ident ($($lines:tt)*) $($operands:tt)*) => {
        $asm! {
            $($lines)*
            rax = const $crate::user::with_registers!(rax),
            rbx = const $crate::user::with_registers!(rbx),
            rcx = const $crate::user::with_registers!(rcx),
            rdx = const $crate::user::with_registers!(rdx),
            rsi = const $crate::user::with_registers!(rsi),
            rdi = const $crate::user::with_registers!(rdi),
            rbp = const $crate::user::with_registers!(rbp),
            r8 = const $crate::user::with_registers!(r8),
            r9 = const $crate::user::with_registers!(r9),
            r10 = const $crate::user::with_registers!(r10),
            r11 = const $crate::user::with_registers!(r11),
            r12 = const $crate::user::with_registers!(r12),
            r13 = const $crate::user::with_registers!(r13),
            r14 = const $crate::user::with_registers!(r14),
            r15 = const $crate::user::with_registers!(r15),
            rip = const $crate::user::with_registers!(rip),
            rflags = const $crate::user::with_registers!(rflags),
            rsp = const $crate::user::with_registers!(rsp),
            orig_rax = const $crate::user::with_registers!(orig_rax),
            $($operands)*
        }
    };
}
pub(crate) use with_registers;

/// Loads the program's registers from the [`UserRegs`] at RDI, but RDI and RSP.
macro_rules! load_registers {
    () => {
        "mov rax, [rdi + {rax}]\nmov rbx, [rdi + {rbx}]\nmov rcx, [rdi + {rcx}]\n\
         mov rdx, [rdi + {rdx}]\nmov rsi, [rdi + {rsi}]\nmov rbp, [rdi + {rbp}]\n\
         mov r8, [rdi + {r8}]\nmov r9, [rdi + {r9}]\nmov r10, [rdi + {r10}]\n\
         mov r11, [rdi + {r11}]\nmov r12, [rdi + {r12}]\nmov r13, [rdi + {r13}]\n\
         mov r14, [rdi + {r14}]\nmov r15, [rdi + {r15}]"
    };
}

/// Makes the stack ready for IRETQ, and loads RDI, from the [`UserRegs`] there.
macro_rules! push_frame {
    () => {
        "push {user_data}\npush [rdi + {rsp}]\npush [rdi + {rflags}]\npush {user_code}\n\
         push [rdi + {rip}]\nmov rdi, [rdi + {rdi}]"
    };
}

/// Why a program stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// A system call (SYSCALL) for which the fast-path function returned
    /// [`SyscallOutcome::needs_slow_path`], with its word in `rax`; the number is the lower half of
    /// `orig_rax`, the arguments in `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`.
    Syscall,
    /// A page fault: memory is not mapped as the access needs.
    PageFault {
        /// The address touched.
        addr: usize,
        /// The access was a write.
        write: bool,
        /// The access was an instruction fetch.
        exec: bool,
        /// Something is mapped there, but does not allow the access.
        present: bool,
    },
    /// Any other exception.
    Exception {
        /// Vector of the exception.
        vector: u8,
        /// Error code, or 0; of a debug exception (1) its cause: DR6, without the bits that are
        /// always the same.
        code: u64,
    },
    /// The program has met an uncorrected error in this page of its memory. Going on, it would meet
    /// it again.
    MemoryError(BadPage),
    /// An interrupt, which was handled, or the flag to stop was set. Time to look at signals.
    Interrupt,
}

/// Outcome of a fast-path function: the result of the system call, or a request for the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SyscallOutcome {
    value: u64,
    slow: u64,
}

impl SyscallOutcome {
    /// The system call is done, with this result.
    #[inline]
    #[must_use]
    pub const fn done(result: u64) -> Self {
        Self {
            value: result,
            slow: 0,
        }
    }

    /// The system call needs all registers, or `enter`'s caller: [`Trap::Syscall`], with this word.
    #[inline]
    #[must_use]
    pub const fn needs_slow_path(word: u64) -> Self {
        Self {
            value: word,
            slow: 1,
        }
    }

    /// The result or the word, and whether it is a word.
    #[must_use]
    pub const fn parts(self) -> (u64, bool) {
        (self.value, self.slow != 0)
    }
}

/// A function that answers a system call, called in thread context with interrupts on. Of the
/// registers, those that hold the number and the arguments, `rip`, `rsp` and `rflags` are the
/// program's; the others are stale.
pub type FastCall<C> = extern "sysv64" fn(&C, &UserRegs) -> SyscallOutcome;

/// Functions that answer a program's system calls without leaving [`enter`], and when to leave it
/// all the same.
pub struct FastPath<'a, C> {
    /// The functions, by number. A number beyond gets `SyscallOutcome::needs_slow_path(0)`.
    pub calls: &'a [FastCall<C>],
    /// First argument of the functions.
    pub context: &'a C,
    /// Stop flag: while it is not 0 the program does not go on, and [`Trap::Interrupt`] is the
    /// answer. A flag that is set before an interrupt to this CPU ends the program's run, so none
    /// is lost between looking and leaving.
    pub stop: &'a AtomicU8,
    /// Number of calls that still get their function; the one after those gets
    /// `SyscallOutcome::needs_slow_path(0)`, and then there are 2^32 again.
    pub left: Cell<u32>,
}

/// Flags a program may set. NT among them makes IRETQ fault where it is set already, not where it
/// is loaded; each entry to the kernel clears it.
const FLAGS_ALLOWED: u64 = {
    use rflags::{AC, AF, CF, DF, ID, NT, OF, PF, RF, SF, TF, ZF};
    CF | PF | AF | ZF | SF | TF | DF | OF | NT | RF | AC | ID
};
/// Flags a program always has.
const FLAGS_FORCED: u64 = rflags::FIXED | rflags::IF;
/// Allowed flags that SYSRET can load: not TF, which would trap in the kernel's last instruction,
/// and not RF.
const FLAGS_SYSRET: u64 = FLAGS_ALLOWED & !(FLAGS_SLOW as u64);
/// Flags SYSCALL clears.
const SYSCALL_FLAG_MASK: u64 = {
    use rflags::{AC, DF, IF, IOPL, NT, RF, TF};
    TF | IF | DF | IOPL | NT | RF | AC
};
/// Bits of an address in the lower, canonical half, which is where a program's code and segment
/// bases are.
const USER_BITS: u32 = 47;
/// Flags that SYSRET must not restore; programs that have one return by IRETQ.
const FLAGS_SLOW: u32 = (rflags::TF | rflags::RF) as u32;
const _: () = assert!(
    FLAGS_ALLOWED == 0x0025_4dd5 && SYSCALL_FLAG_MASK == 0x0005_7700 && FLAGS_SLOW == 0x1_0100
);
/// Code that `run` reports for a system call, beyond all vectors.
const SYSCALL: u64 = 0x100;

/// System call registers of this CPU.
pub(super) fn init_cpu() {
    // SAFETY: the registers exist on every 64-bit CPU. The entry is assembly made for it; the
    // selectors are those of our GDT. There is no compatibility mode to come from, so CSTAR gets no
    // handler; a zero SYSENTER_CS makes SYSENTER fault.
    unsafe {
        msr::write(msr::STAR, msr::star(gdt::SYSRET_BASE, gdt::KERNEL_CODE));
        msr::write(
            msr::LSTAR,
            syscall_entry_of(speculation::entry(), isolation::is_on()) as *const () as u64,
        );
        msr::write(msr::CSTAR, 0);
        msr::write(msr::SFMASK, SYSCALL_FLAG_MASK);
        msr::write(msr::SYSENTER_CS, 0);
    }
}

/// The entry of SYSCALL among those of the kind.
fn syscall_entry_of(entry: Entry, isolated: bool) -> unsafe extern "sysv64" fn() {
    match (entry, isolated) {
        (Entry::Plain, false) => syscall_entry,
        (Entry::ClearBuffers, false) => syscall_entry_clear,
        (Entry::RestrictBranches, false) => syscall_entry_restrict,
        (Entry::Plain | Entry::ClearBuffers, true) => isolation::skerry_isolated_syscall,
        (Entry::RestrictBranches, true) => isolation::skerry_isolated_syscall_restrict,
    }
}

/// Runs the program with these registers in the active address space until something happens that
/// `fast` does not deal with, and leaves its registers there. Interrupts are on at call and
/// return. The registers that a `UserFpu` holds are loaded.
///
/// A code address that a program cannot have ends in a general protection exception of the program,
/// without running it.
///
/// # Panics
/// Within `CpuLocal::with`.
#[inline(always)]
pub fn enter<C>(regs: &mut UserRegs, fast: &FastPath<'_, C>) -> Trap {
    cpu::assert_not_pinned();
    cpu::irqs_off();
    if fast.stop.load(Ordering::SeqCst) != 0 {
        cpu::irqs_on();
        return Trap::Interrupt;
    }
    if regs.rip >> USER_BITS != 0 {
        cpu::irqs_on();
        return Trap::Exception {
            vector: GENERAL_PROTECTION,
            code: 0,
        };
    }
    // SYSRET takes RIP from RCX and RFLAGS from R11, so it is for programs that have them there
    // anyway.
    let sysret = regs.rcx == regs.rip
        && regs.r11 == regs.rflags
        && regs.rflags & !FLAGS_SYSRET == FLAGS_FORCED;
    if !sysret {
        regs.rflags = regs.rflags & FLAGS_ALLOWED | FLAGS_FORCED;
    }
    // SAFETY: interrupts are off; this CPU's area, GDT, IDT and system call registers are set up
    // since `init_cpu`; the registers are exclusively borrowed until the program is back, but for
    // the shared borrow that the fast-path function gets; RIP is below the canonical limit, and
    // flags and selectors are good ones, so neither IRETQ nor SYSRET can fault in the kernel. The
    // function gets the context of its own type.
    let RawTrap { vector, code, left } = unsafe { run(regs, sysret, fast) };
    fast.left.set(left);
    if vector == SYSCALL {
        // As the instruction left them.
        (regs.rcx, regs.r11) = (regs.rip, regs.rflags);
        cpu::irqs_on();
        return if code != 0 {
            Trap::Syscall
        } else {
            Trap::Interrupt
        };
    }
    trap::disable_user_access();
    let vector = vector as u8;
    let trap = match vector {
        // CR2 is still this fault's: interrupts are off, and kernel code does not fault in between.
        PAGE_FAULT => trap::user_page_fault(msr::cr2(), code),
        irq::FIRST_VECTOR..=255 => {
            let bad_page = match vector {
                irq::MEMORY_ERROR_VECTOR => machine_check::take_consumed(),
                _ => None,
            };
            irq::handle(vector);
            bad_page.map_or(Trap::Interrupt, Trap::MemoryError)
        }
        DEBUG => Trap::Exception {
            vector,
            code: msr::take_dr6(),
        },
        _ => Trap::Exception { vector, code },
    };
    cpu::irqs_on();
    trap
}

struct RawTrap {
    vector: u64,
    code: u64,
    left: u32,
}

/// Words that `run` leaves on the stack for the system call entry, from the stored stack pointer
/// up: the return address, then these, RBP and RBX. Eight words keep the stack aligned for the
/// call.
const STACK_CALLS: usize = 8;
const STACK_COUNT: usize = 16;
/// The upper half of that word: how many calls are left.
const STACK_LEFT: usize = 20;
const STACK_CONTEXT: usize = 24;
const STACK_STOP: usize = 32;
const STACK_REGS: usize = 40;

/// Goes to ring 3. Every entry from there ends in a `ret` that continues here, or goes back by
/// itself. In line, so that the caller saves only the registers it needs.
///
/// # Safety
/// Interrupts off, the CPU set up, `regs.rip` and flags checked; `sysret` only if RCX and R11 equal
/// RIP and RFLAGS.
#[inline(always)]
unsafe fn run<C>(regs: &mut UserRegs, sysret: bool, fast: &FastPath<'_, C>) -> RawTrap {
    let (vector, code, count): (u64, u64, u64);
    // SAFETY: the caller vouches for the registers. RBX and RBP are saved on the stack, all others
    // are declared as lost, and the stack pointer comes back as it was: the entries from ring 3
    // load it from where it is stored here, and return to the address on top of it, with the vector
    // in RAX and the error code in RDX. The stack is aligned for a call, here and eight words
    // further down.
    unsafe {
        with_registers!(asm (
            "push rbx",
            "push rbp",
            "push rdi",
            "push r8",
            "push rcx",
            "push r9",
            "push rdx",
            "lea rax, [rip + 3f]",
            "push rax",
            "mov gs:[{gs_user_regs}], rdi",
            "mov gs:[{gs_kernel_rsp}], rsp",
            "cmp byte ptr [rip + {entry}], 0",
            "jne 4f",
            "test sil, sil",
            load_registers!(),
            "jz 2f",
            "mov rsp, [rdi + {rsp}]", "mov rdi, [rdi + {rdi}]",
            "swapgs",
            "sysretq",
            "2:",
            push_frame!(),
            "swapgs",
            "iretq",
            // The same with what the processor needs; buffers are cleared last.
            "4:",
            "test byte ptr [rip + {entry}], {restrict_branches}",
            "jz 5f",
            "mov ecx, {spec_ctrl}",
            "mov eax, gs:[{gs_user_spec_ctrl}]",
            "xor edx, edx",
            "wrmsr",
            "5:",
            "test byte ptr [rip + {entry}], {isolate}",
            "jnz 7f",
            "test sil, sil",
            load_registers!(),
            "jz 6f",
            "mov rsp, [rdi + {rsp}]", "mov rdi, [rdi + {rdi}]",
            "verw word ptr [rip + {selector}]",
            "swapgs",
            "sysretq",
            "6:",
            push_frame!(),
            "verw word ptr [rip + {selector}]",
            "swapgs",
            "iretq",
            // The same on tables without the kernel, where only the entry stack is.
            "7:",
            "test sil, sil",
            load_registers!(),
            "jz 8f",
            "mov rsp, [rdi + {rsp}]", "mov rdi, [rdi + {rdi}]",
            "jmp {leave_by_sysret}",
            "8:",
            "mov rsp, gs:[0]",
            "lea rsp, [rsp + {entry_stack_top}]",
            push_frame!(),
            "jmp {leave_by_iret}",
            "3:",
            "mov r9, [rsp + 8]",
            "add rsp, 40",
            "pop rbp",
            "pop rbx",
            "/* {orig_rax} */",
        )
            gs_user_regs = const cpu::GS_USER_REGS,
            gs_kernel_rsp = const cpu::GS_KERNEL_RSP,
            user_data = const gdt::USER_DATA,
            user_code = const gdt::USER_CODE,
            entry = sym speculation::ENTRY,
            restrict_branches = const speculation::RESTRICT_BRANCHES,
            isolate = const speculation::ISOLATE,
            leave_by_sysret = sym isolation::skerry_leave_by_sysret,
            leave_by_iret = sym isolation::skerry_leave_by_iret,
            entry_stack_top = const cpu::ENTRY_STACK_TOP,
            spec_ctrl = const msr::SPEC_CTRL,
            gs_user_spec_ctrl = const cpu::GS_USER_SPEC_CTRL,
            selector = sym speculation::VERW_SELECTOR,
            inout("rdi") core::ptr::from_mut(regs) => _,
            inout("rsi") u64::from(sysret) => _,
            out("rax") vector,
            inout("rdx") fast.calls.as_ptr() => code,
            inout("rcx") core::ptr::from_ref(fast.context) => _,
            inout("r8") core::ptr::from_ref(fast.stop) => _,
            inout("r9") fast.calls.len() as u64 | u64::from(fast.left.get()) << 32 => count,
            out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    RawTrap {
        vector,
        code,
        left: (count >> 32) as u32,
    }
}

/// Makes an entry of SYSCALL: saves what a function may change into the `UserRegs` of the running
/// `enter`, which the stack pointer names for the time being (interrupts are off, and NMI and
/// machine checks have stacks of their own), and calls the fast-path function on the stack that
/// `run` prepared. If it has dealt with the call and nothing else is to be done, back by SYSRET:
/// RIP comes from an instruction that was executed, below `USER_END`, and is not the function's to
/// change.
///
/// `arriving` are the first lines, up to where the kernel's tables are in force and the stack
/// pointer is in `scratch`; `entering` those of before the call, which may change RCX, RDX, R8 and
/// R9; `leaving` those of before the registers are loaded, which may change RDX and R8 to R10;
/// `last` the end, which changes flags only.
macro_rules! syscall_entry {
    (
        $(#[$meta:meta])*
        $vis:vis $name:ident,
        scratch: $scratch:expr,
        arriving: [$($arriving:expr),*],
        entering: [$($entering:expr),*],
        leaving: [$($leaving:expr),*],
        last: [$($last:expr),*]
    ) => {
        $(#[$meta])*
        #[unsafe(naked)]
        $vis unsafe extern "sysv64" fn $name() {
            with_registers!(naked_asm (
                $($arriving,)*
                "mov rsp, gs:[{gs_user_regs}]",
                "mov [rsp + {orig_rax}], rax",
                "mov [rsp + {rip}], rcx", "mov [rsp + {rflags}], r11", "mov [rsp + {rdx}], rdx",
                "mov [rsp + {rsi}], rsi", "mov [rsp + {rdi}], rdi", "mov [rsp + {r8}], r8",
                "mov [rsp + {r9}], r9", "mov [rsp + {r10}], r10",
                "mov rcx, gs:[{gs_scratch}]",
                "mov [rsp + {rsp}], rcx",
                "mov rsi, rsp",
                $($entering,)*
                "mov rsp, gs:[{gs_kernel_rsp}]",
                "sti",
                // Of the number only the lower half counts, as on Linux: the instruction after the
                // jump clears the upper one. In speculation that passes by the jump it clears all.
                "cmp eax, [rsp + {count}]",
                "jae 3f",
                "cmovae eax, gs:[{gs_zero}]",
                "sub dword ptr [rsp + {left}], 1",
                "jc 3f",
                "mov rdi, [rsp + {context}]",
                "mov rcx, [rsp + {calls}]",
                "call [rcx + 8 * rax]",
                "cli",
                "mov rdi, [rsp + {stop}]",
                "mov rcx, [rsp + {regs}]",
                "movzx edi, byte ptr [rdi]",
                "or edi, edx",
                "jnz 2f",
                "mov r11, [rcx + {rflags}]",
                "test r11d, {slow}",
                "jnz 2f",
                // The thread may have slept in between, and may be on another CPU now.
                "mov gs:[{gs_user_regs}], rcx",
                "mov gs:[{gs_kernel_rsp}], rsp",
                $($leaving,)*
                "mov rdx, [rcx + {rdx}]", "mov rsi, [rcx + {rsi}]", "mov rdi, [rcx + {rdi}]",
                "mov r8, [rcx + {r8}]", "mov r9, [rcx + {r9}]", "mov r10, [rcx + {r10}]",
                "mov rsp, [rcx + {rsp}]", "mov rcx, [rcx + {rip}]",
                $($last,)*
                "3:",
                "xor eax, eax",
                "mov edx, 1",
                "cli",
                "mov rcx, rsi",
                "2:",
                "mov [rcx + {rax}], rax", "mov [rcx + {rbx}], rbx", "mov [rcx + {rbp}], rbp",
                "mov [rcx + {r12}], r12", "mov [rcx + {r13}], r13", "mov [rcx + {r14}], r14",
                "mov [rcx + {r15}], r15",
                "mov eax, {syscall}",
                "ret",
                "/* {rcx} {r11} {selector} {spec_ctrl} {kernel} {gs_user_spec_ctrl} {leave} */",
            )
                syscall = const SYSCALL,
                slow = const FLAGS_SLOW,
                calls = const STACK_CALLS,
                count = const STACK_COUNT,
                left = const STACK_LEFT,
                context = const STACK_CONTEXT,
                stop = const STACK_STOP,
                regs = const STACK_REGS,
                leave = sym isolation::skerry_leave_by_sysret,
                gs_scratch = const $scratch,
                gs_user_regs = const cpu::GS_USER_REGS,
                gs_kernel_rsp = const cpu::GS_KERNEL_RSP,
                gs_zero = const cpu::GS_ZERO,
                gs_user_spec_ctrl = const cpu::GS_USER_SPEC_CTRL,
                selector = sym speculation::VERW_SELECTOR,
                spec_ctrl = const msr::SPEC_CTRL,
                kernel = sym speculation::KERNEL_SPEC_CTRL,
            )
        }
    };
}

/// First lines of an entry on tables that the kernel shares with the program.
macro_rules! arrive {
    () => {
        "swapgs\nmov gs:[{gs_scratch}], rsp"
    };
}

/// Restricts indirect branches, as `syscall_entry!`'s `entering`.
macro_rules! restrict {
    () => {
        "mov r8d, eax\nmov ecx, {spec_ctrl}\nmov eax, [rip + {kernel}]\nxor edx, edx\nwrmsr\n\
         mov eax, r8d"
    };
}

/// Lifts the restriction, as `syscall_entry!`'s `leaving`.
macro_rules! lift {
    () => {
        "mov r8, rax\nmov r9, rcx\nmov ecx, {spec_ctrl}\nmov eax, gs:[{gs_user_spec_ctrl}]\n\
         xor edx, edx\nwrmsr\nmov rax, r8\nmov rcx, r9"
    };
}

syscall_entry! {
    /// The entry of processors that need nothing.
    syscall_entry,
    scratch: cpu::GS_SCRATCH,
    arriving: [arrive!()],
    entering: [],
    leaving: [],
    last: ["swapgs", "sysretq"]
}

syscall_entry! {
    /// The entry that clears buffers before it leaves.
    syscall_entry_clear,
    scratch: cpu::GS_SCRATCH,
    arriving: [arrive!()],
    entering: [],
    leaving: [],
    last: ["verw word ptr [rip + {selector}]", "swapgs", "sysretq"]
}

syscall_entry! {
    /// The entry that restricts indirect branches until it leaves, and clears buffers.
    syscall_entry_restrict,
    scratch: cpu::GS_SCRATCH,
    arriving: [arrive!()],
    entering: [restrict!()],
    leaving: [lift!()],
    last: ["verw word ptr [rip + {selector}]", "swapgs", "sysretq"]
}

syscall_entry! {
    /// The entry of isolated programs, from where it is on the kernel's tables.
    pub(crate) syscall_isolated,
    scratch: cpu::GS_ENTRY_SCRATCH,
    arriving: [],
    entering: [],
    leaving: [],
    last: ["jmp {leave}"]
}

syscall_entry! {
    /// The same with indirect branches restricted until it leaves.
    pub(crate) syscall_isolated_restrict,
    scratch: cpu::GS_ENTRY_SCRATCH,
    arriving: [],
    entering: [restrict!()],
    leaving: [lift!()],
    last: ["jmp {leave}"]
}

static FAULT_HANDLER: Hook<fn(usize, bool) -> bool> = Hook::new();

/// Sets what is called when the kernel faults on a user address in one of the user copies: in
/// thread context, interrupts on. `true` means: try again.
pub fn set_fault_handler(_: &BootToken, handler: fn(addr: usize, write: bool) -> bool) {
    FAULT_HANDLER.set(handler);
}

/// Gives a kernel-mode fault on a user address to the registered handler.
pub(crate) fn handle_kernel_fault(address: usize, write: bool) -> bool {
    FAULT_HANDLER
        .get()
        .is_some_and(|handler| handler(address, write))
}
