//! The processor: everything that is x86-64 and not a page table. Layouts and numbers of registers
//! are in `x86_spec`.
//!
//! | file | subject |
//! |---|---|
//! | `features`, `cpuinfo` | what CPUID promises, decided once on the first CPU; what it says of itself |
//! | `cpu` | the per-CPU area, `CpuLocal`, interrupt enable, idle |
//! | `user`, `usercopy` | ring 3 and back; the kernel's access to user memory |
//! | `context`, `fpu` | switching stacks; user floating-point state |
//! | `apic`, `ioapic`, `timer` | interrupts and time |
//! | `port` | I/O ports |

pub(crate) mod apic;
pub mod context;
pub mod cpu;
mod cpuinfo;
pub(crate) mod features;
pub mod fpu;
pub(crate) mod ioapic;
pub(crate) mod msr;
pub mod port;
pub mod timer;
pub mod user;
pub(crate) mod usercopy;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::descriptor::FLAG_X2APIC;
use cpu::CpuId;
pub(crate) use cpuinfo::cpuid;
pub(crate) use usercopy::probe;

use crate::entry::{gdt, idt};
use crate::{cpu_table, isolation, machine_check, paging, role, speculation};

/// Makes room for a further CPU; done by a running CPU before it starts that one. `false` if memory
/// is short.
pub(crate) fn prepare_cpu(cpu: CpuId) -> bool {
    cpu::allocate_area(cpu)
}

/// Sets up the CPU this runs on: control registers, descriptor tables, per-CPU area, system call
/// entry, floating point, local APIC and timer. The same for the first and every further CPU,
/// whatever state it comes from (reset trampoline or park page), so nothing is assumed of the
/// registers it writes.
///
/// Interrupts must be off, the final page tables active, and `prepare_cpu` done for any CPU but the
/// first.
pub(crate) fn init_cpu(cpu: CpuId) {
    let descriptor = role::descriptor();
    if cpu.0 == 0 {
        features::detect();
        isolation::init();
    }
    features::enable();
    let area = cpu::install_area(cpu);
    isolation::init_cpu(area);
    gdt::load(area, cpu);
    // Loading selectors cleared the GS base: set it again, and zero what a program may have left in
    // the others.
    cpu::set_gs_base(area);
    speculation::init_cpu();
    idt::load();
    machine_check::init_cpu();
    usercopy::init_cpu();
    user::init_cpu();
    fpu::init_cpu(cpu);
    if cpu.0 == 0 {
        ioapic::silence_8259();
    }
    apic::init_cpu(descriptor.has(FLAG_X2APIC));
    if cpu.0 == 0 {
        timer::init(descriptor);
    }
    timer::init_cpu();
    timer::number_cpu(cpu);
    // Whoever comes from the park page comes with NMIs blocked.
    #[cfg(target_os = "none")]
    {
        crate::irq::drop_pending();
        crate::park::allow_nmi();
    }
    cpu::mark_online(cpu);
    paging::tlb::init_cpu();
}

/// Set when this instance's CPUs must stop for good at their next NMI.
static STOPPING: AtomicBool = AtomicBool::new(false);
/// Number of the CPU that has stopped the others and goes on, if there is one. An NMI does not stop
/// it: one that asked for its heartbeat once did, and nobody heard of its panic.
static GOES_ON: AtomicU32 = AtomicU32::new(NO_CPU);
const NO_CPU: u32 = u32::MAX;

/// Makes the next NMI on any CPU stop it for good, on this one, too.
pub(crate) fn mark_stopping() {
    if cpu::is_online(CpuId(0)) {
        let me = cpu::current().0;
        // Another one that goes on does so.
        let _ = GOES_ON.compare_exchange(me, NO_CPU, Ordering::AcqRel, Ordering::Relaxed);
    }
    STOPPING.store(true, Ordering::Release);
}

/// Whether an NMI is to stop this CPU for good: somebody called [`mark_stopping`], or another CPU
/// [`stop_other_cpus`].
pub(crate) fn is_stopping() -> bool {
    STOPPING.load(Ordering::Acquire) && GOES_ON.load(Ordering::Acquire) != cpu::current().0
}

/// Stops this instance's other CPUs by NMI: in a subOS they go to the park page, in the supervisor
/// they halt. Returns at once; nobody waits for them. Of two that do so the first goes on. For
/// panic, exit and power-off.
pub(crate) fn stop_other_cpus() {
    if !cpu::is_online(CpuId(0)) {
        // Early boot: there is no descriptor, and nobody else runs.
        STOPPING.store(true, Ordering::Release);
        return;
    }
    let me = cpu::current();
    let _ = GOES_ON.compare_exchange(NO_CPU, me.0, Ordering::AcqRel, Ordering::Relaxed);
    STOPPING.store(true, Ordering::Release);
    for (number, apic_id) in cpu_table::apic_ids().enumerate() {
        if number != me.0 as usize && cpu::is_online(CpuId(number as u32)) {
            apic::send_nmi(apic_id);
        }
    }
}
