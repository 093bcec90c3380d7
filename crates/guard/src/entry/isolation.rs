//! Page-table isolation: where the processor needs it, programs run on tables without the kernel
//! (`docs/mitigations.md`).
//!
//! Each address space has a second root then, whose lower half is the first one's and whose upper
//! half maps the text of this file's assembly, the interrupt table, and the `EntryArea` of each CPU
//! (`paging::isolated`). An entry changes to the kernel's tables before it touches anything else,
//! and goes on in `trap` and `user`; a return to ring 3 ends here.
//!
//! An NMI, double fault or machine check can come on either root. It looks which one is loaded, and
//! puts the program's back.

use core::arch::global_asm;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_spec::paging::{Entry, Flags};

use super::trap::{KernelFrame, Stubs, pass_over_debug, pop_registers, push_registers, stubs};
use super::{gdt, idt};
use crate::arch::cpu::{self, CpuArea, CpuId, EntryArea};
use crate::arch::features::{self, Features};
use crate::arch::user;
use crate::mem::phys::PhysAddr;
use crate::paging::{Translations, isolated, kernel};
use crate::speculation;

/// Bit of CR3 that keeps what is cached under the identifier loaded.
const KEEP: u64 = 1 << 63;
/// Bit that the identifier of an address space has while its program runs.
const PROGRAM: u64 = 1 << 11;

global_asm!(
    ".pushsection .text.isolated, \"ax\", @progbits",
    ".macro skerry_isolated_entries kind",
    ".global skerry_isolated_stubs_\\kind",
    stubs!("skerry_isolated"),
    "",
    "skerry_isolated_common_\\kind:",
    "test byte ptr [rsp + {cs}], 3",
    "jz skerry_trap_common_\\kind",
    // The change of tables waits for all that is before it, and nothing runs ahead of it, as with
    // LFENCE.
    "skerry_isolated_from_user_\\kind:",
    "swapgs",
    "push rax",
    "mov rax, gs:[{kernel_cr3}]",
    "mov cr3, rax",
    "jmp skerry_trap_registers_\\kind",
    "",
    "skerry_isolated_debug_\\kind:",
    "test byte ptr [rsp + {cs}], 3",
    "jnz skerry_isolated_from_user_\\kind",
    pass_over_debug!(),
    "",
    "skerry_isolated_nmi_\\kind:",
    push_registers!(),
    "lea rsi, [rsp + {frame_bytes} - {nmi_top}]",
    "jmp skerry_isolated_from_anywhere_\\kind",
    "skerry_isolated_double_fault_\\kind:",
    push_registers!(),
    "lea rsi, [rsp + {frame_bytes} - {double_fault_top}]",
    "jmp skerry_isolated_from_anywhere_\\kind",
    "skerry_isolated_machine_check_\\kind:",
    push_registers!(),
    "lea rsi, [rsp + {frame_bytes} - {machine_check_top}]",
    "",
    // RSI: this CPU's area. R15: CR3 to go back to, or 0. Only the addresses of roots are compared:
    // an address space's two differ in them.
    "skerry_isolated_from_anywhere_\\kind:",
    "xor r15d, r15d",
    "mov rbx, cr3",
    "mov rax, [rsi + {user_cr3}]",
    "xor rax, rbx",
    "shl rax, 1",
    "shr rax, 13",
    "jnz 2f",
    "mov r15, rbx",
    "or r15, [rsi + {keep}]",
    "mov rax, [rsi + {kernel_cr3}]",
    "mov cr3, rax",
    "2:",
    "mov rdi, rsp",
    "call skerry_trap_special_\\kind",
    "test r15, r15",
    "jz 3f",
    "mov cr3, r15",
    "3:",
    pop_registers!(),
    "iretq",
    ".endm",
    "skerry_isolated_entries plain",
    "skerry_isolated_entries restrict",
    ".purgem skerry_isolated_entries",
    "",
    // SYSCALL: nothing but the stack pointer can be had until it is put aside.
    ".macro skerry_isolated_syscall_entry",
    "swapgs",
    "mov gs:[{scratch}], rsp",
    "mov rsp, gs:[{kernel_cr3}]",
    "mov cr3, rsp",
    ".endm",
    ".global skerry_isolated_syscall, skerry_isolated_syscall_restrict",
    "skerry_isolated_syscall:",
    "skerry_isolated_syscall_entry",
    "jmp {syscall}",
    "skerry_isolated_syscall_restrict:",
    "skerry_isolated_syscall_entry",
    "jmp {syscall_restrict}",
    ".purgem skerry_isolated_syscall_entry",
    "",
    // The program's registers are loaded, and RSP is its own or on the entry stack. What was to be
    // dropped under the program's identifier is dropped by this.
    ".macro skerry_isolated_leave",
    "mov gs:[{scratch}], rax",
    "mov rax, gs:[{user_cr3}]",
    "mov cr3, rax",
    "mov rax, gs:[{keep}]",
    "or gs:[{user_cr3}], rax",
    "mov rax, gs:[{scratch}]",
    "verw word ptr [rip + skerry_isolated_selector]",
    "swapgs",
    ".endm",
    ".global skerry_leave_by_sysret, skerry_leave_by_iret",
    "skerry_leave_by_sysret:",
    "skerry_isolated_leave",
    "sysretq",
    "skerry_leave_by_iret:",
    "skerry_isolated_leave",
    "iretq",
    ".purgem skerry_isolated_leave",
    ".balign 4",
    // What `speculation::VERW_SELECTOR` is on the kernel's tables.
    "skerry_isolated_selector:",
    ".long {kernel_data}",
    ".popsection",
    cs = const 3 * 8,
    dr6_clear = const x86_spec::debug::DR6_CLEAR,
    frame_bytes = const size_of::<KernelFrame>(),
    nmi_top = const cpu::NMI_STACK_TOP,
    double_fault_top = const cpu::DOUBLE_FAULT_STACK_TOP,
    machine_check_top = const cpu::MACHINE_CHECK_STACK_TOP,
    kernel_cr3 = const cpu::GS_KERNEL_CR3,
    user_cr3 = const cpu::GS_USER_CR3,
    keep = const cpu::GS_KEEP,
    scratch = const cpu::GS_ENTRY_SCRATCH,
    syscall = sym user::syscall_isolated,
    syscall_restrict = sym user::syscall_isolated_restrict,
    kernel_data = const gdt::KERNEL_DATA,
);

unsafe extern "C" {
    pub(crate) static skerry_isolated_stubs_plain: Stubs;
    pub(crate) static skerry_isolated_stubs_restrict: Stubs;
    static isolated_text_start: u8;
    static isolated_text_end: u8;
}

unsafe extern "sysv64" {
    /// Entries of SYSCALL.
    pub(crate) fn skerry_isolated_syscall();
    pub(crate) fn skerry_isolated_syscall_restrict();
    /// Ends of a run of the kernel: the program's registers are loaded, for SYSRET, or the stack
    /// pointer is at a frame for IRETQ on the entry stack.
    pub(crate) fn skerry_leave_by_sysret();
    pub(crate) fn skerry_leave_by_iret();
}

static ON: AtomicBool = AtomicBool::new(false);

/// Whether programs run on tables without the kernel.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Decides, once, on the first CPU. Its features are known, and there is memory.
///
/// # Panics
/// If memory is short.
pub(crate) fn init() {
    if !speculation::isolates() {
        return;
    }
    let done = isolated::init().is_ok()
        && [text(), idt::range()]
            .into_iter()
            .all(|part| isolated::expose(part).is_ok())
        && expose_area(cpu::area());
    assert!(done, "no memory for the tables that programs run on");
    ON.store(true, Ordering::Relaxed);
}

/// Puts the part of a CPU's area that its entries need into the tables of all programs; `false` if
/// memory is short.
pub(crate) fn expose_area(area: &CpuArea) -> bool {
    !speculation::isolates() || isolated::expose(entry_area(area)).is_ok()
}

/// Addresses of the assembly above, which has whole pages.
fn text() -> Range<usize> {
    (&raw const isolated_text_start).addr()..(&raw const isolated_text_end).addr()
}

fn entry_area(area: &CpuArea) -> Range<usize> {
    let start = core::ptr::from_ref(&area.entry).addr();
    start..start + size_of::<EntryArea>()
}

/// Sets this CPU's roots: no program's, until one is activated.
pub(crate) fn init_cpu(area: &CpuArea) {
    if is_on() {
        let keep = if features::has(Features::PCID) {
            KEEP
        } else {
            0
        };
        area.entry.keep.store(keep, Ordering::Relaxed);
        set_roots(kernel::root(), isolated::root(), 0, Translations::Dropped);
    }
}

/// Sets the roots between which this CPU changes from now on, which have the identifier `asid`, 0
/// where there are none. What is cached of the program's under it is dropped at the next return to
/// ring 3, unless it is kept. Interrupts are off.
pub(crate) fn set_roots(kernel: PhysAddr, user: PhysAddr, asid: u64, cached: Translations) {
    let area = &cpu::area().entry;
    let bit = area.keep.load(Ordering::Relaxed);
    let program = if bit == 0 { 0 } else { asid | PROGRAM };
    area.kernel_cr3
        .store(kernel.0 | asid | bit, Ordering::Relaxed);
    area.user_cr3.store(
        user.0 | program | if cached == Translations::Kept { bit } else { 0 },
        Ordering::Relaxed,
    );
}

/// Drops what is cached under the program's identifier at the next return to ring 3.
pub(crate) fn drop_at_return() {
    if is_on() {
        cpu::area()
            .entry
            .user_cr3
            .fetch_and(!KEEP, Ordering::Relaxed);
    }
}

/// Whether something is to be dropped at the next return to ring 3.
pub(crate) fn drops_at_return() -> bool {
    cpu::area().entry.user_cr3.load(Ordering::Relaxed) & KEEP == 0
}

/// Part of the kernel that a program has in its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first and last instructions of entries and returns.
    Text,
    /// The interrupt table.
    Interrupts,
    /// Descriptor table, task state and stacks of a CPU.
    Cpu,
    /// Anything else, which should not be there.
    Other,
}

impl Part {
    fn at(va: usize) -> Self {
        let is_area = |cpu| cpu::area_of(cpu).is_some_and(|area| entry_area(area).contains(&va));
        match () {
            () if text().contains(&va) => Self::Text,
            () if idt::range().contains(&va) => Self::Interrupts,
            () if (0..cpu::MAX_CPUS as u32).any(|cpu| is_area(CpuId(cpu))) => Self::Cpu,
            () => Self::Other,
        }
    }
}

/// A page of the kernel that a program has in its tables, for ring 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// Address of the page.
    pub at: usize,
    /// The part of the kernel that has the address.
    pub part: Part,
    /// Whether it can be written to.
    pub write: bool,
    /// Whether it can be executed.
    pub exec: bool,
    /// Whether ring 3 may use it, which is a mistake.
    pub user: bool,
}

/// Calls `each` with every page in the upper half of the root with which this CPU goes on with the
/// calling program, as the tables in memory have it; with none where that root is the kernel's.
pub fn for_each_exposed(mut each: impl FnMut(Exposed)) {
    if !is_on() {
        return;
    }
    let root = cpu::area().entry.user_cr3.load(Ordering::Relaxed);
    isolated::for_each_page(Entry(root).address(), |at, entry| {
        let has = |flag| entry.flags().contains(flag);
        each(Exposed {
            at,
            part: Part::at(at),
            write: has(Flags::WRITE),
            exec: !has(Flags::NO_EXECUTE),
            user: has(Flags::USER),
        });
    });
}
