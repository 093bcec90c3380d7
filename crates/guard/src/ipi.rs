//! Interrupts between CPUs. A destination is a CPU of this instance, or a doorbell that the
//! descriptor names: the supervisor's, or a peer's. There is no way to address anything else.

use crate::arch::apic;
use crate::cpu::{self, CpuId};
use crate::irq::{RESCHEDULE_VECTOR, TLB_VECTOR};
use crate::{cpu_table, peers, role};

/// With interrupts off from the look into the table on: a grace period after a CPU has left the
/// table, nothing is on its way to it, which may have another owner then.
fn send(cpu: CpuId, vector: u8) {
    cpu::without_irqs(|| {
        if let Some(apic_id) = cpu_table::apic_id(cpu.0 as usize) {
            apic::send_ipi(apic_id, vector);
        }
    });
}

/// Makes a CPU of this instance run its reschedule handler. Ignored if there is no such CPU.
pub fn reschedule(cpu: CpuId) {
    send(cpu, RESCHEDULE_VECTOR);
}

/// Makes a CPU of this instance look for a TLB shootdown.
pub(crate) fn tlb(cpu: CpuId) {
    send(cpu, TLB_VECTOR);
}

/// Rings the supervisor. Does nothing in the supervisor itself, nor before this kernel can ring:
/// the supervisor looks at the window from time to time anyway.
pub fn ring_peer() {
    if !apic::is_ready() {
        return;
    }
    let descriptor = role::descriptor();
    if !descriptor.is_supervisor()
        && let Ok(vector @ 0x20..=0xfe) = u8::try_from(descriptor.doorbell_vector)
    {
        apic::send_ipi(descriptor.doorbell_apic_id, vector);
    }
}

/// Rings the peer that has a place by the last epoch that was adopted. Does nothing if there is
/// none.
pub fn ring_place(place: usize) {
    cpu::without_irqs(|| {
        if let Some((apic_id, vector)) = peers::doorbell(place) {
            // Before the doorbell: who hears it finds it counted.
            peers::count_doorbell(place);
            apic::send_ipi(apic_id, vector);
        }
    });
}
