//! Starting CPUs: all of the machine's at boot, into the park page; an instance's own, out of it.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use abi::descriptor::MAX_CPUS;
use abi::park::STATE_PARKED;
use ring::mailbox::{Order, Publisher};

use crate::arch::{self, apic, timer};
use crate::cpu::CpuId;
use crate::mem::percpu;
use crate::paging::kernel;
use crate::stack::KernelStack;
use crate::{faults, park, role};

/// End of each CPU's first stack; 0 for the first CPU, which has the boot stack.
static STACKS: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];
/// CPUs of this instance that have entered it.
static ENTERED: AtomicU32 = AtomicU32::new(0);

#[cfg(target_os = "none")]
global_asm!(
    r#"
    .pushsection .text
    .globl instance_entry
instance_entry:
    lea rax, [rip + {stacks}]
    mov edi, edi
    mov rsp, [rax + rdi * 8]
    test rsp, rsp
    jnz 2f
    lea rsp, [rip + boot_stack_top]
2:  cli
    xor ebp, ebp
    push rbp
    push rbp
    call {start}
    ud2
    .popsection
    "#,
    stacks = sym STACKS,
    start = sym start,
);

unsafe extern "C" {
    /// Entry of a CPU into an instance from the park page, with its number in RDI.
    fn instance_entry();
}

/// Address of the entry; the same in every instance.
pub(crate) fn entry() -> u64 {
    instance_entry as *const () as u64
}

/// First Rust code of a CPU in an instance.
extern "C" fn start(number: u32) -> ! {
    if number == 0 {
        crate::boot::start_instance()
    }
    faults::at_boot("further");
    let cpu = CpuId(number);
    arch::init_cpu(cpu);
    ENTERED.fetch_add(1, Ordering::Release);
    crate::boot::enter_secondary()
}

/// Makes ready what the further CPUs of this instance need when they enter: areas and stacks. False
/// if memory is short.
pub(crate) fn prepare() -> bool {
    (1..role::descriptor().cpus().len()).all(|number| prepare_cpu(CpuId(number as u32)))
}

/// The same for one CPU; what it has already stays.
pub(crate) fn prepare_cpu(cpu: CpuId) -> bool {
    let place = &STACKS[cpu.0 as usize];
    if place.load(Ordering::Acquire) == 0 {
        let Some(stack) = KernelStack::new() else {
            return false;
        };
        place.store(stack.top(), Ordering::Release);
        // The CPU's own for ever: its idle thread runs there.
        core::mem::forget(stack);
    }
    percpu::add(cpu) && arch::prepare_cpu(cpu)
}

/// Supervisor: starts its own further CPUs, through the same mailbox as everybody's. Returns how
/// many came.
pub(crate) fn start_own() -> u32 {
    let descriptor = role::descriptor();
    let further = descriptor.cpus().len().saturating_sub(1) as u32;
    wait_parked(1..descriptor.cpus().len());
    for (number, entry) in descriptor.cpus().iter().enumerate().skip(1) {
        let mut publisher = Publisher::new(park::slot(entry.slot as usize));
        if publisher.publish(Order {
            cr3: kernel::root().0,
            rip: self::entry(),
            arg: number as u64,
        }) {
            apic::send_nmi(entry.apic_id);
        }
    }
    timer::poll_us(1_000_000, || ENTERED.load(Ordering::Acquire) == further);
    ENTERED.load(Ordering::Acquire)
}

/// Starts a reset CPU, into the park page; ignored by one that runs.
pub(crate) fn start_up(apic_id: u32) {
    apic::send_startup(apic_id, (park::TRAMPOLINE >> 12) as u8);
}

/// CPUs of the machine, which is also the number of park slots.
static MACHINE_CPUS: AtomicUsize = AtomicUsize::new(1);

/// Supervisor: the number of CPUs of the machine.
pub(crate) fn machine_cpus() -> usize {
    MACHINE_CPUS.load(Ordering::Relaxed)
}

fn apic_id(slot: usize) -> u32 {
    park::slot(slot).apic_id.load(Ordering::Relaxed)
}

/// Supervisor, once: notes the number of the machine's CPUs, and unless the supervisor starts again
/// in place sends all but this one on their way into the park page. They come while the boot goes
/// on; [`wait_parked`] is for whoever needs one of them.
pub(crate) fn bring_up(total: usize, in_place: bool) {
    MACHINE_CPUS.store(total, Ordering::Relaxed);
    if total > 1 && !in_place {
        (1..total).for_each(|slot| apic::send_init(apic_id(slot)));
        timer::poll_us(100, || false);
        (1..total).for_each(|slot| start_up(apic_id(slot)));
    }
}

/// Supervisor: waits until these CPUs have parked, which [`bring_up`] started, and names those that
/// do not.
pub(crate) fn wait_parked(slots: impl Iterator<Item = usize> + Clone) {
    let missing = || slots.clone().filter(|slot| !is_parked(*slot));
    // Recent CPUs need one message; the manual asks for a second one if the first went unnoticed.
    if timer::poll_us(20_000, || slots.clone().all(is_parked)) {
        return;
    }
    missing().for_each(|slot| start_up(apic_id(slot)));
    if !timer::poll_us(5_000_000, || slots.clone().all(is_parked)) {
        missing()
            .for_each(|slot| log::warn!("the CPU with APIC id {} did not start", apic_id(slot)));
    }
}

/// Whether a CPU says that it is parked.
pub(crate) fn is_parked(slot: usize) -> bool {
    park::slot(slot).state.load(Ordering::Acquire) == STATE_PARKED
}
