//! CPUs that did not come back from an instance, and the instance's memory, which such a CPU may
//! still use.
//!
//! Nothing of it is used, and nothing of it is forgotten: a CPU that stood still, because the host
//! of a virtual machine stopped it or the firmware was in its way, proves at some time where it is.
//! Then it is free, and with the last one of the instance the memory is, too.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use lfmutex::Mutex;

use super::{InstanceCpu, Owner, SharedPages, cpus, smp};
use crate::mem::Scrubbing;
use crate::mem::grant::Granules;
use crate::timer;

/// CPUs and memory of one instance.
pub(super) struct Rest {
    /// The instance's number.
    pub id: u32,
    /// The CPUs that have not come back.
    pub cpus: Vec<InstanceCpu>,
    /// All memory of the instance.
    pub memory: Option<Granules>,
    /// Descriptor and window, which are still mapped where the CPUs are.
    pub _shared: Option<SharedPages>,
}

static RESTS: Mutex<Vec<Rest>> = Mutex::new(Vec::new());
/// Number of rests, to be read without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes room for one rest for each CPU, more than which there cannot be: what comes here must not
/// be lost because memory is short.
pub(super) fn init() {
    RESTS.lock().reserve(smp::machine_cpus());
}

/// Takes what did not come back.
pub(super) fn take(rest: Rest) {
    log::error!(
        "instance {}: {} CPUs did not come back; they and {} MiB are in quarantine until they do",
        rest.id,
        rest.cpus.len(),
        rest.bytes() >> 20
    );
    let mut rests = RESTS.lock();
    rests.push(rest);
    COUNT.store(rests.len(), Ordering::Release);
}

impl Rest {
    fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Granules::bytes)
    }
}

/// Bytes of memory in quarantine.
pub(super) fn bytes() -> u64 {
    RESTS.lock().iter().map(Rest::bytes).sum()
}

/// Whether there is anything for [`release`] to look at.
#[must_use]
pub fn is_empty() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// An instance's rest that came back as a whole.
pub struct Released {
    /// The instance's number.
    pub id: u32,
    /// Memory of the instance, for the caller to scrub.
    pub memory: Scrubbing,
}

/// Looks at everything in quarantine; frees the CPUs that have proved where they are, and returns
/// the memory of an instance whose last one did. To be called again at once if there was one, and
/// some time later if not.
pub fn release() -> Option<Released> {
    if is_empty() {
        return None;
    }
    let now = timer::now_ns();
    let mut rests = RESTS.lock();
    for rest in rests.iter_mut() {
        let mut all = cpus().lock();
        rest.cpus.retain_mut(|cpu| {
            let back = cpu.look(now);
            if back {
                all[cpu.slot].owner = Owner::Free;
                log::warn!(
                    "the CPU with APIC id {} of instance {} came back from quarantine",
                    cpu.apic_id,
                    rest.id
                );
            }
            !back
        });
    }
    let done = rests.iter().position(|rest| rest.cpus.is_empty())?;
    let mut rest = rests.swap_remove(done);
    COUNT.store(rests.len(), Ordering::Release);
    drop(rests);
    let mut memory = rest.memory.take()?;
    log::warn!(
        "{} MiB of instance {} came back from quarantine",
        memory.bytes() >> 20,
        rest.id
    );
    // SAFETY: every CPU of the instance has proved that it is in the park page, on the park tables;
    // an instance has no devices yet.
    unsafe { memory.take_back() };
    Some(Released {
        id: rest.id,
        memory: memory.into_scrubbing(),
    })
}
