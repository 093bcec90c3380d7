//! Segments: the few that 64-bit mode still needs.
//!
//! The order is Linux's, so that the selectors in signal frames and core files are the ones tools know, and the one that
//! SYSCALL and SYSRET ask for. There is no 32-bit user code segment: programs cannot enter compatibility mode.

use core::arch::asm;
use core::mem::{offset_of, size_of};

use super::cpu::{self, CpuArea, CpuId};

/// Kernel code.
pub const KERNEL_CODE: u16 = 0x10;
/// Kernel data.
pub const KERNEL_DATA: u16 = 0x18;
/// What SYSRET counts from: user data is the next descriptor, user code the one after.
pub const SYSRET_BASE: u16 = 0x23;
/// User data, as programs see it.
pub const USER_DATA: u16 = 0x2b;
/// User code, as programs see it.
pub const USER_CODE: u16 = 0x33;
const TSS_SELECTOR: u16 = 0x40;

const CODE: u64 = 0x00af_9a00_0000_ffff;
const DATA: u64 = 0x00cf_9200_0000_ffff;
const DPL3: u64 = 3 << 45;
/// Read-only data of programs; the limit is the CPU's number, where the vDSO finds it (`vdso::SEGMENT`).
const NUMBER: u64 = 0x0040_f500_0000_0000;
/// Its place, as on Linux.
const NUMBER_ENTRY: usize = (vdso::SEGMENT >> 3) as usize;

/// One CPU's descriptor table.
#[repr(C, align(16))]
pub struct Gdt([u64; NUMBER_ENTRY + 1]);

impl Gdt {
    pub const fn new() -> Self {
        Self([0; NUMBER_ENTRY + 1])
    }
}

/// Task state segment (64-bit): stack pointers and the end of the (empty) I/O permission map.
#[repr(C, packed(4))]
pub struct Tss {
    reserved0: u32,
    /// Stack for entries from ring 3.
    pub rsp0: u64,
    rsp12: [u64; 2],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    io_map: u16,
}

const _: () = assert!(offset_of!(Tss, rsp0) == 4 && offset_of!(Tss, ist) == 36 && offset_of!(Tss, io_map) == 102);

impl Tss {
    pub const fn new() -> Self {
        Self { reserved0: 0, rsp0: 0, rsp12: [0; 2], reserved1: 0, ist: [0; 7], reserved2: 0, reserved3: 0, io_map: 104 }
    }
}

/// Interrupt stack table index of the NMI stack.
pub const IST_NMI: u8 = 1;
/// Of the double fault stack.
pub const IST_DOUBLE_FAULT: u8 = 2;
/// Of the machine check stack.
pub const IST_MACHINE_CHECK: u8 = 3;

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Fills in and loads this CPU's descriptor table, segments and task state.
pub fn load(area: &'static CpuArea, number: CpuId) {
    let base = core::ptr::from_ref(area) as u64;
    let tss = area.tss.get();
    let tss_base = tss as u64;
    let mut ist = [0; 7];
    ist[usize::from(IST_NMI) - 1] = base + cpu::NMI_STACK_TOP as u64;
    ist[usize::from(IST_DOUBLE_FAULT) - 1] = base + cpu::DOUBLE_FAULT_STACK_TOP as u64;
    ist[usize::from(IST_MACHINE_CHECK) - 1] = base + cpu::MACHINE_CHECK_STACK_TOP as u64;
    let mut table = Gdt::new();
    table.0[..10].copy_from_slice(&[
        0,
        0,
        CODE,
        DATA,
        0,
        DATA | DPL3,
        CODE | DPL3,
        0,
        // Available 64-bit TSS, limit 103, in two entries.
        103 | (tss_base & 0xff_ffff) << 16 | 0x89 << 40 | (tss_base >> 24 & 0xff) << 56,
        tss_base >> 32,
    ]);
    table.0[NUMBER_ENTRY] = NUMBER | u64::from(number.0 & 0xffff);
    // SAFETY: this CPU alone uses its TSS and GDT, and with interrupts off nothing reads them now except by the old GDT,
    // which is another one or identical. The unaligned write respects the packing.
    unsafe {
        tss.write_unaligned(Tss { ist, ..Tss::new() });
        area.gdt.get().write(table);
    }
    let pointer = TablePointer { limit: (size_of::<Gdt>() - 1) as u16, base: area.gdt.get() as u64 };
    // SAFETY: the table lives as long as the CPU runs this kernel; the selectors name valid descriptors in it. The far
    // return reloads CS with a 64-bit code segment and continues at the next instruction. Null in the data segments is
    // what 64-bit mode wants; SS keeps the kernel's data segment.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {tmp}, [rip + 2f]",
            "push {tmp}",
            "retfq",
            "2:",
            "mov ss, {data:e}",
            "xor {tmp:e}, {tmp:e}",
            "mov ds, {tmp:e}",
            "mov es, {tmp:e}",
            "mov fs, {tmp:e}",
            "mov gs, {tmp:e}",
            "lldt {tmp:x}",
            "ltr {task:x}",
            pointer = in(reg) &raw const pointer,
            code = const KERNEL_CODE,
            data = in(reg) u32::from(KERNEL_DATA),
            task = in(reg) TSS_SELECTOR,
            tmp = out(reg) _,
        );
    }
}
