//! The park page: where CPUs wait that no instance owns (decision 004; protocol in `abi::park`).
//!
//! It is one page of position-independent assembly, part of the supervisor's text, that every
//! instance maps read-execute at `layout::PARK`: nobody can write to it once the supervisor runs on
//! its own tables. There are a few page tables beside it, which map that page, the slots behind it
//! (read-write, in these tables only), and the page below 1 MiB where a reset CPU starts. A CPU
//! comes in by [`enter`] (end of an instance, or NMI with the halt word set) or through the
//! trampoline (INIT and start-up message), and leaves by an order in its slot, never otherwise.
//!
//! A parked CPU halts with interrupts off. An NMI wakes it, and its handler looks at the slot:
//! every order comes with an NMI, and one that arrives while the handler runs is taken right after
//! it, so no wake-up is lost.
//!
//! A CPU enters and leaves *with NMIs blocked*, because for a few instructions it has new page
//! tables and no stack in them. It enters from an NMI handler only ([`enter`] sends itself one),
//! and the return that ends that NMI is the park page's; it leaves from the park page's NMI
//! handler, and allows NMIs when it can take them ([`allow_nmi`]). An earlier version entered
//! directly, and an NMI from the supervisor that met the CPU at the door reset the machine once in
//! 20 instances.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::mem::{offset_of, size_of};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::descriptor::{MAX_CPUS, ROLE_SUBOS};
use abi::layout::{DESCRIPTOR, IMAGE, PAGE_SIZE, PARK, WINDOW};
use abi::park::Slot;
use abi::window::{State, Status};
use abi::{Descriptor, Window};
use x86_spec::debug::DR6_CLEAR;
use x86_spec::machine_check;

use crate::arch::{self, apic, cpu, msr};
use crate::speculation;

/// Address where a reset CPU starts, below 1 MiB and on a page boundary: ordinary memory on every
/// PC.
pub(crate) const TRAMPOLINE: u64 = 0x8000;
/// The slots, behind the park page.
const SLOTS: usize = PARK + PAGE_SIZE;
/// Offset of the park page's entry for reset CPUs.
const RESET_ENTRY: usize = 16;
/// A slot and the stack for NMI frames behind it.
const STRIDE: usize = 256;

/// A CPU's slot and its stack.
#[repr(C, align(256))]
struct Place {
    slot: Slot,
    _stack: UnsafeCell<[u8; STRIDE - size_of::<Slot>()]>,
}

const _: () = assert!(size_of::<Place>() == STRIDE);

#[repr(C, align(4096))]
struct Places([Place; MAX_CPUS]);

// SAFETY: slots are atomics; the stacks are touched by the parked CPU they belong to and nobody
// else.
unsafe impl Sync for Places {}

/// Kept, as CPUs wait there, when the supervisor starts again in place.
#[cfg_attr(target_os = "none", unsafe(link_section = ".bss.keep"))]
static PLACES: Places = Places(
    [const {
        Place {
            slot: Slot::new(0),
            _stack: UnsafeCell::new([0; STRIDE - size_of::<Slot>()]),
        }
    }; MAX_CPUS],
);

#[repr(C, align(4096))]
struct RawTable([AtomicU64; 512]);

impl RawTable {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    fn set(&self, index: usize, value: u64) {
        self.0[index % 512].store(value, Ordering::Relaxed);
    }

    /// Physical address of the table, in the supervisor, whose image is loaded where it is linked.
    fn phys(&self) -> u64 {
        loaded_at(ptr::from_ref(self).addr())
    }
}

/// The park tables: root; three for the park page and the slots, three for the trampoline. Kept as
/// the places are.
#[cfg_attr(target_os = "none", unsafe(link_section = ".bss.keep"))]
static TABLES: [RawTable; 7] = [const { RawTable::new() }; 7];

/// Physical address of something in the supervisor's image.
pub(crate) const fn loaded_at(va: usize) -> u64 {
    (va - IMAGE) as u64
}

#[cfg(target_os = "none")]
global_asm!(
    r#"
    .pushsection .text.park, "ax", @progbits
    .balign 4096
    .globl park_page
park_page:
    xor r12d, r12d
    jmp 10f
    # Where a reset CPU comes in.
    .org park_page + {reset_entry}
    mov r12d, 1
    jmp 10f
    .balign 8
    .globl park_cr3
park_cr3:
    .quad 0
    .globl park_x2apic
park_x2apic:
    .long 0
    .globl park_count
park_count:
    .long 0
park_gdtr:
    .word 3 * 8 - 1
    .quad {page} + (park_gdt - park_page)
park_idtr:
    .word 19 * 16 - 1
    .quad {page} + (park_idt - park_page)
    .balign 8
park_gdt:
    .quad 0
    .quad 0
    .quad 0x00af9b000000ffff
    .balign 16
park_idt:
    .macro park_gate handler
    .word \handler - park_page
    .word 0x10, 0x8e00, {page_middle}
    .long {page_high}, 0
    .endm
    .rept 2
    park_gate park_stray
    .endr
    park_gate park_nmi
    .rept 15
    park_gate park_stray
    .endr
    park_gate park_machine_check

10: cli
    cld
    # PAE, MCE, OSFXSR, OSXMMEXCPT: leaving out PGE also forgets the instance's global translations.
    mov eax, 0x660
    mov cr4, rax
    mov rax, [rip + park_cr3]
    mov cr3, rax
    # What is left of the last owner's addresses goes with its tables.
    xor eax, eax
    mov dr7, rax
    mov dr0, rax
    mov dr1, rax
    mov dr2, rax
    mov dr3, rax
    mov eax, {dr6_clear}
    mov dr6, rax
    xor esi, esi
    xor ebp, ebp
    xor r11d, r11d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    cmp dword ptr [rip + park_x2apic], 0
    je 11f
    mov ecx, 0x1b
    rdmsr
    or eax, 0xc00
    wrmsr
    # Its own APIC id, into edx.
11: xor eax, eax
    cpuid
    cmp eax, 0xb
    jb 12f
    mov eax, 0xb
    xor ecx, ecx
    cpuid
    test ebx, ebx
    jnz 13f
12: mov eax, 1
    cpuid
    shr ebx, 24
    mov edx, ebx
13: movabs rbx, {slots}
    mov ecx, [rip + park_count]
14: test ecx, ecx
    jz park_stray
    cmp [rbx + {apic_id}], edx
    je 15f
    add rbx, {stride}
    dec ecx
    jmp 14b
15: lea rsp, [rbx + {stride}]
    lgdt [rip + park_gdtr]
    lidt [rip + park_idtr]
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov ss, eax
    inc dword ptr [rbx + {parks}]
    add [rbx + {resets}], r12d
    # The interrupt return loads CS, and ends the NMI that brought the CPU here, if one did.
    push 0
    lea rax, [rbx + {stride}]
    push rax
    push 2
    push 0x10
    lea rax, [rip + park_loop]
    push rax
    # The order to stay that its coming is proved by may wait already, and its NMI be lost to a reset. It is claimed before the
    # CPU says that it is parked: until then nobody orders it away.

    # Woken: NMIs are blocked from here to the interrupt return, or, on the way out, until the instance allows them.
park_nmi:
    mov eax, [rbx + {ready}]
    test eax, eax
    jz 17f
    mov r8, [rbx + {cr3}]
    mov r9, [rbx + {rip}]
    mov rdi, [rbx + {arg}]
    mov r10, [rbx + {epoch}]
    xor ecx, ecx
    lock cmpxchg [rbx + {ready}], ecx
    jne park_nmi
    test r9, r9
    jz 16f
    mov dword ptr [rbx + {state}], 0
    mov [rbx + {claimed}], r10
    mov cr3, r8
    jmp r9
16: mov [rbx + {claimed}], r10
17: mov dword ptr [rbx + {state}], 1
    iretq

park_loop:
    hlt
    jmp park_loop

    # The banks are the next owner's to read. But the next one must not find this one in progress: that would be a shutdown.
    # (Ends the blocking of NMIs; where that matters there is no stack for this one either, or it is early in an instance, which
    # then ends.)
park_machine_check:
    push rax
    push rcx
    push rdx
    mov rax, cr3
    cmp rax, [rip + park_cr3]
    jne 19f
    inc dword ptr [rbx + {machine_checks}]
19: mov ecx, {mcg_status}
    xor eax, eax
    xor edx, edx
    wrmsr
    pop rdx
    pop rcx
    pop rax
    iretq

    # An exception here, or in an instance that has just been entered and has no table of its own yet. In an instance it is the
    # end of that instance, which nobody can tell later; NMIs are blocked since the CPU left, so it comes back as it is. Anywhere
    # else nothing is known.
park_stray:
    cli
    mov rax, cr3
    cmp rax, [rip + park_cr3]
    je 18f
    movabs rax, {role}
    cmp dword ptr [rax], {role_subos}
    jne 18f
    movabs rax, {told_state}
    mov dword ptr [rax], {panicked}
    jmp park_page
18: hlt
    jmp 18b
    .balign 4096
    .popsection
    "#,
    page = const PARK,
    page_middle = const (PARK >> 16) & 0xffff,
    page_high = const PARK >> 32,
    slots = const SLOTS,
    stride = const STRIDE,
    ready = const offset_of!(Slot, ready),
    state = const offset_of!(Slot, state),
    cr3 = const offset_of!(Slot, cr3),
    rip = const offset_of!(Slot, rip),
    arg = const offset_of!(Slot, arg),
    epoch = const offset_of!(Slot, epoch),
    claimed = const offset_of!(Slot, claimed),
    parks = const offset_of!(Slot, parks),
    resets = const offset_of!(Slot, resets),
    machine_checks = const offset_of!(Slot, machine_checks),
    mcg_status = const machine_check::GLOBAL_STATUS,
    reset_entry = const RESET_ENTRY,
    dr6_clear = const DR6_CLEAR,
    role = const DESCRIPTOR + offset_of!(Descriptor, role),
    role_subos = const ROLE_SUBOS,
    told_state = const WINDOW + offset_of!(Window, status) + offset_of!(Status, state),
    panicked = const State::Panicked as u32,
    apic_id = const offset_of!(Slot, apic_id),
);

// The gates above put offsets below 64 KiB and the page's own bits side by side.
const _: () = assert!(PARK & 0xffff == 0);

#[cfg(target_os = "none")]
global_asm!(
    r#"
    .pushsection .data.trampoline, "aw", @progbits
    .balign 16
    .globl trampoline_start
trampoline_start:
    .code16
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl {at} + (31f - trampoline_start)
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    ljmpl $8, $({at} + (30f - trampoline_start))
    .code32
30: movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x660, %eax
    movl %eax, %cr4
    movl {at} + (trampoline_cr3 - trampoline_start), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x900, %eax
    wrmsr
    movl $0x80010033, %eax
    movl %eax, %cr0
    ljmpl $0x18, $({at} + (32f - trampoline_start))
    .code64
32: movabsq ${page}, %rax
    jmpq *%rax
    .balign 8
    .word 0
31: .word 4 * 8 - 1
    .long {at} + (33f - trampoline_start)
    .balign 8
33: .quad 0
    .quad 0x00cf9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x00af9b000000ffff
    .globl trampoline_cr3
trampoline_cr3:
    .long 0
    .globl trampoline_end
trampoline_end:
    .popsection
    "#,
    at = const TRAMPOLINE,
    page = const PARK + RESET_ENTRY,
    options(att_syntax),
);

unsafe extern "C" {
    static park_page: u8;
    static park_cr3: AtomicU64;
    static park_x2apic: AtomicU32;
    static park_count: AtomicU32;
    static trampoline_start: u8;
    static trampoline_end: u8;
    static trampoline_cr3: AtomicU32;
}

/// Fills in the park page, its tables, the slots and the trampoline.
///
/// # Safety
/// Runs in the supervisor, on the boot code's tables (physical memory below 4 GiB at its own
/// address), once before any other CPU is started, and then with the same arguments only: so CPUs
/// in the park page find what was there. The page at [`TRAMPOLINE`] is memory that nobody
/// uses.
pub(crate) unsafe fn install(apic_ids: &[u32], x2apic: bool) {
    const PRESENT: u64 = 1;
    const WRITE: u64 = 1 << 1;
    const NO_EXECUTE: u64 = 1 << 63;
    let [root, high3, high2, high1, low3, low2, low1] = &TABLES;
    for (table, va, next) in [
        (root, PARK >> 39, high3),
        (high3, PARK >> 30, high2),
        (high2, PARK >> 21, high1),
    ] {
        table.set(va, next.phys() | PRESENT | WRITE);
    }
    high1.set(
        PARK >> 12,
        loaded_at((&raw const park_page).addr()) | PRESENT,
    );
    for (page, offset) in (0..size_of::<Places>()).step_by(PAGE_SIZE).enumerate() {
        let at = loaded_at((&raw const PLACES).addr() + offset);
        high1.set((SLOTS >> 12) + page, at | PRESENT | WRITE | NO_EXECUTE);
    }
    for (table, next) in [(root, low3), (low3, low2), (low2, low1)] {
        table.set(0, next.phys() | PRESENT | WRITE);
    }
    low1.set((TRAMPOLINE >> 12) as usize, TRAMPOLINE | PRESENT);
    for (place, id) in PLACES.0.iter().zip(apic_ids) {
        place.slot.apic_id.store(*id, Ordering::Relaxed);
    }
    // SAFETY: words of the park page and the trampoline in this image's data, which only this
    // function writes; the copy goes to a page that nobody uses, seen at its physical address, by
    // the caller's promise.
    unsafe {
        park_cr3.store(root.phys(), Ordering::Relaxed);
        park_x2apic.store(u32::from(x2apic), Ordering::Relaxed);
        park_count.store(apic_ids.len() as u32, Ordering::Relaxed);
        trampoline_cr3.store(root.phys() as u32, Ordering::Release);
        let start = &raw const trampoline_start;
        let len = (&raw const trampoline_end).addr() - start.addr();
        ptr::copy_nonoverlapping(
            start,
            ptr::with_exposed_provenance_mut(TRAMPOLINE as usize),
            len,
        );
    }
}

/// Virtual address of the park page's memory in the supervisor's image.
pub(crate) fn page() -> usize {
    (&raw const park_page).addr()
}

/// Machine checks that parked CPUs took.
pub(crate) fn machine_checks() -> u64 {
    let count = |place: &Place| u64::from(place.slot.machine_checks.load(Ordering::Relaxed));
    PLACES.0.iter().map(count).sum()
}

/// The slot of the CPU with that index in the machine's list.
pub(crate) fn slot(index: usize) -> &'static Slot {
    &PLACES.0[index].slot
}

/// Sends this CPU to the park page, for good as far as this instance is concerned: by way of an NMI
/// to itself, or, where it does not take NMIs yet, as it is.
pub(crate) fn enter() -> ! {
    cpu::irqs_off();
    arch::mark_stopping();
    if !apic::is_ready() || !cpu::is_online(cpu::current()) {
        // SAFETY: NMIs are blocked since this CPU left the park page, and interrupts are off.
        unsafe { enter_with_nmis_blocked() };
    }
    apic::send_nmi(apic::id());
    // If the NMI does not come (this is an NMI handler already), the supervisor resets the CPU.
    msr::halt_forever()
}

/// The end of [`enter`].
///
/// # Safety
/// NMIs are blocked, as they are in the NMI handler, and interrupts are off.
pub(crate) unsafe fn enter_with_nmis_blocked() -> ! {
    speculation::leave_cpu();
    // SAFETY: every instance maps the park page there, and its code needs nothing of the state it
    // finds but that NMIs are blocked, which the caller vouches for.
    unsafe { asm!("jmp {}", in(reg) PARK, options(noreturn)) };
}

/// Allows NMIs again, which are blocked since this CPU left the park page. Its interrupt table is
/// in place.
#[cfg(target_os = "none")]
pub(crate) fn allow_nmi() {
    // SAFETY: an interrupt return to the next instruction, with everything as it is; only the
    // blocking ends.
    unsafe {
        asm!(
            "mov {scratch}, rsp",
            "push 0",
            "push {scratch}",
            "pushfq",
            "mov {scratch:e}, cs",
            "push {scratch}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "iretq",
            "2:",
            scratch = out(reg) _,
        );
    }
}
