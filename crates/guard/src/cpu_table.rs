//! CPUs of this instance: how many there are, and their APIC ids. At first they are those of the
//! descriptor; its dynamic part adds further ones, and takes them away (`docs/descriptor.md`).

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use abi::Descriptor;
use abi::descriptor::MAX_CPUS;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static APIC_IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// Adopts the CPUs of a descriptor.
pub(crate) fn init(descriptor: &Descriptor) {
    for (to, cpu) in APIC_IDS.iter().zip(descriptor.cpus()) {
        to.store(cpu.apic_id, Ordering::Relaxed);
    }
    COUNT.store(descriptor.cpus().len(), Ordering::Release);
    MOST.store(descriptor.cpus().len(), Ordering::Release);
}

/// Number of the CPUs, started or not.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// APIC id of the CPU of a number, if there is one.
pub(crate) fn apic_id(number: usize) -> Option<u32> {
    let id = APIC_IDS[..count()].get(number)?;
    Some(id.load(Ordering::Relaxed))
}

/// APIC ids of all CPUs, by number.
pub(crate) fn apic_ids() -> impl ExactSizeIterator<Item = u32> {
    APIC_IDS[..count()]
        .iter()
        .map(|id| id.load(Ordering::Relaxed))
}

/// Adds a CPU, with the next number. By one caller at a time.
pub(crate) fn push(apic_id: u32) {
    let number = count();
    APIC_IDS[number].store(apic_id, Ordering::Relaxed);
    COUNT.store(number + 1, Ordering::Release);
    MOST.fetch_max(number + 1, Ordering::Release);
}

/// Removes the CPU with the highest number. By one caller at a time, which is the one of [`push`].
pub(crate) fn pop() {
    COUNT.store(count() - 1, Ordering::SeqCst);
}

/// The most CPUs that there ever were: those of these numbers that have left are not online, and
/// what they have counted stays.
pub(crate) fn most() -> usize {
    MOST.load(Ordering::Acquire)
}
