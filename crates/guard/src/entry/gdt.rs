//! Segments: the few that 64-bit mode still needs.
//!
//! The order is Linux's, so that the selectors in signal frames and core files are the ones tools
//! know, and the one that SYSCALL and SYSRET ask for. There is no 32-bit user code segment:
//! programs cannot enter compatibility mode.

use core::arch::asm;
use core::mem::size_of;

use x86_spec::segment::{CODE, DATA, DPL3, TablePointer, Tss, limit_only, task_state};

use super::isolation;
use crate::arch::cpu::{self, CpuArea, CpuId};

/// Kernel code.
pub const KERNEL_CODE: u16 = 0x10;
/// Kernel data.
pub const KERNEL_DATA: u16 = 0x18;
/// Base of the selectors that SYSRET loads: user data is the next descriptor, user code the one
/// after.
pub const SYSRET_BASE: u16 = 0x23;
/// User data, as programs see it.
pub const USER_DATA: u16 = 0x2b;
/// User code, as programs see it.
pub const USER_CODE: u16 = 0x33;
const TSS_SELECTOR: u16 = 0x40;

/// Entry of the segment whose limit is the CPU's number, where the vDSO finds it; as on Linux.
const NUMBER_ENTRY: usize = (vdso::SEGMENT >> 3) as usize;

/// One CPU's descriptor table.
#[repr(C, align(16))]
pub struct Gdt([u64; NUMBER_ENTRY + 1]);

impl Gdt {
    pub const fn new() -> Self {
        Self([0; NUMBER_ENTRY + 1])
    }
}

/// Interrupt stack table index of the NMI stack.
pub const IST_NMI: u8 = 1;
/// Interrupt stack table index of the double fault stack.
pub const IST_DOUBLE_FAULT: u8 = 2;
/// Interrupt stack table index of the machine check stack.
pub const IST_MACHINE_CHECK: u8 = 3;

/// Fills in and loads this CPU's descriptor table, segments and task state.
pub fn load(area: &'static CpuArea, number: CpuId) {
    let base = core::ptr::from_ref(area) as u64;
    let isolated = isolation::is_on();
    let (tss, gdt) = if isolated {
        (area.entry.tss.get(), area.entry.gdt.get())
    } else {
        (area.tss.get(), area.gdt.get())
    };
    let [tss_low, tss_high] = task_state(tss as u64);
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
        tss_low,
        tss_high,
    ]);
    table.0[NUMBER_ENTRY] = limit_only(number.0 as u16);
    // SAFETY: this CPU alone uses its TSS and GDT, and with interrupts off nothing reads them now
    // except by the old GDT, which is another one or identical. The unaligned write respects the
    // packing.
    unsafe {
        let mut state = Tss::new(ist);
        if isolated {
            state.rsp0 = base + cpu::ENTRY_STACK_TOP as u64;
        }
        tss.write_unaligned(state);
        gdt.write(table);
    }
    let pointer = TablePointer::new(gdt as u64, size_of::<Gdt>());
    // SAFETY: the table lives as long as the CPU runs this kernel; the selectors name valid
    // descriptors in it. The far return reloads CS with a 64-bit code segment and continues at the
    // next instruction. Null in the data segments is what 64-bit mode wants; SS keeps the kernel's
    // data segment.
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
