//! The 32-bit entry: PVH (QEMU `-kernel`, Firecracker, Cloud Hypervisor) and multiboot2 (GRUB, BIOS
//! and UEFI).
//!
//! Both arrive in protected mode without paging. The image is at the physical address it is linked
//! for. Before any Rust runs, the initial data is put aside: instances are started from it, and so
//! is the supervisor when it starts again in place, which begins at the end of this file.

use core::arch::global_asm;

use abi::layout::IMAGE;

/// `kind` of [`super::start_machine`]: the information is PVH's `hvm_start_info`.
pub(super) const PVH: u32 = 1;
/// `kind`: the information is multiboot2's.
pub(super) const MULTIBOOT2: u32 = 2;
/// `kind`: the supervisor starts again in place; the information is in what it keeps (`keep`).
pub(super) const IN_PLACE: u32 = 3;

/// Bytes of the first CPU's first stack, which its idle thread keeps.
const STACK: usize = 64 << 10;

#[cfg(target_os = "none")]
global_asm!(
    r#"
    .pushsection .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_entry - {base}
    .popsection

    .pushsection .boot_header, "a", @progbits
    .balign 8
multiboot2_header:
    .long 0xe85250d6, 0, multiboot2_header_end - multiboot2_header
    .long -(0xe85250d6 + (multiboot2_header_end - multiboot2_header))
    # Entry address; modules on page boundaries; end.
    .word 3, 0
    .long 12, multiboot2_entry - {base}
    .balign 8
    .word 6, 0
    .long 8
    .word 0, 0
    .long 8
multiboot2_header_end:
    .popsection

    # Where the ELF header says that the image begins (`kernel/link.ld`).
    .pushsection .boot_jump, "ax", @progbits
    .code32
    jmp multiboot2_entry - {base}
    .code64
    .popsection

    .pushsection .bss.boot, "aw", @nobits
    .balign 4096
boot_root:
    .skip 4096
boot_low:
    .skip 4096
boot_high:
    .skip 4096
boot_pages:
    .skip 4 * 4096
    .balign 16
boot_stack:
    .skip {stack}
    .globl boot_stack_top
boot_stack_top:
    .popsection

    .pushsection .text.boot, "ax", @progbits
    .code32
    .globl pvh_entry
pvh_entry:
    movl ${pvh}, %ebp
    jmp 1f
    .globl multiboot2_entry
multiboot2_entry:
    movl ${multiboot2}, %ebp
1:  cli
    cld
    # The data as it is now, for the instances to come.
    movl $(data_start - {base}), %esi
    movl $(pristine_data - {base}), %edi
    movl $(data_end - {base}), %ecx
    subl %esi, %ecx
    rep movsb
    # 4 GiB by 2 MiB pages, at address 0; the first of them at the image's addresses too.
    movl $(boot_pages - {base}), %edi
    movl $0x83, %eax
    movl $2048, %ecx
2:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 2b
    movl $(boot_pages - {base} + 3), %eax
    movl $(boot_low - {base}), %edi
    movl %eax, (boot_high - {base} + 510 * 8)
    movl $4, %ecx
3:  movl %eax, (%edi)
    addl $4096, %eax
    addl $8, %edi
    loop 3b
    movl $(boot_low - {base} + 3), (boot_root - {base})
    movl $(boot_high - {base} + 3), (boot_root - {base} + 511 * 8)
    movl $0x660, %eax
    movl %eax, %cr4
    movl $(boot_root - {base}), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x900, %eax
    wrmsr
    movl $0x80010033, %eax
    movl %eax, %cr0
    lgdtl (5f - {base})
    ljmpl $8, $(4f - {base})
    .balign 8
    .word 0
5:  .word 2 * 8 - 1
    .long 6f - {base}
    .balign 8
6:  .quad 0
    .quad 0x00af9b000000ffff
    .code64
4:  movabsq $7f, %rax
    jmpq *%rax
7:  xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %eax, %fs
    movl %eax, %gs
    leaq boot_stack_top(%rip), %rsp
    movl %ebp, %edi
    movl %ebx, %esi
    xorl %ebp, %ebp
    pushq %rbp
    pushq %rbp
    call {start}
    ud2

    # The start in place, in 64-bit mode, on whatever tables map the image where it is linked. The boot tables are written anew,
    # word for word what they were: they may be in force.
    .globl restart_entry
restart_entry:
    cli
    cld
    xorl %eax, %eax
    movq %rax, %dr7
    leaq boot_pages(%rip), %rdi
    movl $0x83, %eax
    movl $2048, %ecx
12: movq %rax, (%rdi)
    addq $0x200000, %rax
    addq $8, %rdi
    loop 12b
    leaq boot_high(%rip), %rdi
    movl $(boot_pages - {base} + 3), %eax
    movq %rax, 510 * 8(%rdi)
    leaq boot_low(%rip), %rdi
    movl $4, %ecx
13: movq %rax, (%rdi)
    addq $4096, %rax
    addq $8, %rdi
    loop 13b
    leaq boot_root(%rip), %rdi
    movl $(boot_low - {base} + 3), %eax
    movq %rax, (%rdi)
    movl $(boot_high - {base} + 3), %eax
    movq %rax, 511 * 8(%rdi)
    movl $(boot_root - {base}), %eax
    movq %rax, %cr3
    movl $0x660, %eax
    movq %rax, %cr4
    movl $0x80010033, %eax
    movq %rax, %cr0
    lgdtq 15f(%rip)
    # An exception from here on resets the machine.
    lidtq 16f(%rip)
    leaq boot_stack_top(%rip), %rsp
    pushq $8
    leaq 14f(%rip), %rax
    pushq %rax
    lretq
    # The data as the boot loader left it, and zeroes, but for what is kept, the boot tables and this stack.
14: leaq pristine_data(%rip), %rsi
    leaq data_start(%rip), %rdi
    leaq data_end(%rip), %rcx
    subq %rdi, %rcx
    rep movsb
    leaq zeroed_start(%rip), %rdi
    leaq zeroed_end(%rip), %rcx
    subq %rdi, %rcx
    xorl %eax, %eax
    rep stosb
    movl ${in_place}, %ebp
    xorl %ebx, %ebx
    jmp 7b
    .balign 8, 0
15: .word 2 * 8 - 1
    .quad 6b
    .balign 8, 0
16: .word 0
    .quad 0
    .popsection
    "#,
    base = const IMAGE,
    stack = const STACK,
    pvh = const PVH,
    multiboot2 = const MULTIBOOT2,
    in_place = const IN_PLACE,
    start = sym super::start_machine,
    options(att_syntax),
);
