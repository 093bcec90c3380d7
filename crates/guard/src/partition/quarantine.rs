//! CPUs and functions that did not come back from an instance, and the instance's memory, which
//! they may still use.
//!
//! Nothing of it is used, and nothing of it is forgotten: a CPU that stood still, because the host
//! of a virtual machine stopped it or the firmware was in its way, proves at some time where it is.
//! Then it is free. With the last one of the instance its functions are stopped, and with the last
//! of those the memory is free, too. A function that was not reset is tried again.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use lfmutex::Mutex;

use super::functions::Functions;
use super::{InstanceCpu, SharedPages, Unproven, cpus, smp};
use crate::mem::Scrubbing;
use crate::mem::grant::Granules;
use crate::timer;

/// CPUs, functions and memory of one instance.
pub(super) struct Rest {
    /// The instance's number.
    pub id: u32,
    /// The CPUs that have not come back.
    pub cpus: Vec<InstanceCpu>,
    /// Functions that were not stopped.
    pub functions: Functions,
    /// Time at which it was tried last to stop them.
    pub stopped_ns: u64,
    /// All memory of the instance.
    pub memory: Option<Granules>,
    /// Descriptor and window, which are still mapped where the CPUs are.
    pub _shared: Option<SharedPages>,
}

/// Interval between attempts to stop functions.
const STOP_AGAIN_NS: u64 = 5_000_000_000;

struct Rests {
    list: Vec<Rest>,
    /// Bytes of those that were released and may come back.
    released_bytes: u64,
    /// Number of functions that instances have, each of which may bring about a rest.
    functions: usize,
}

impl Rests {
    /// Makes room for one rest for each CPU and for each of so many functions; `None` without
    /// memory.
    fn reserve(&mut self, functions: usize) -> Option<()> {
        let most = smp::machine_cpus() + functions;
        let more = most.saturating_sub(self.list.len());
        self.list.try_reserve(more).ok()
    }
}

static RESTS: Mutex<Rests> = Mutex::new(Rests {
    list: Vec::new(),
    released_bytes: 0,
    functions: 0,
});
/// Number of rests, to be read without the lock; those that were released and may come back count.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes room for one rest for each CPU, more than which there cannot be but for functions: what
/// comes here must not be lost because memory is short. False without memory.
#[must_use]
pub(super) fn reserve() -> bool {
    let mut rests = RESTS.lock();
    let functions = rests.functions;
    rests.reserve(functions).is_some()
}

/// Room for one rest more, for a function that an instance has.
pub(super) struct Room(());

impl Room {
    /// Makes room; `None` without memory.
    pub(super) fn take() -> Option<Self> {
        let mut rests = RESTS.lock();
        // Each rest there is has a CPU or a function of its own, and so has each that may come.
        let functions = rests.functions + 1;
        rests.reserve(functions)?;
        rests.functions = functions;
        Some(Self(()))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        RESTS.lock().functions -= 1;
    }
}

/// Takes what did not come back.
pub(super) fn take(rest: Rest) {
    let unproven = Unproven {
        cpus: rest.cpus.len(),
        functions: rest.functions.len(),
    };
    log::error!(
        "instance {}: {unproven}; they and {} MiB are in quarantine until they do",
        rest.id,
        rest.bytes() >> 20
    );
    COUNT.fetch_add(1, Ordering::AcqRel);
    RESTS.lock().list.push(rest);
}

impl Rest {
    fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Granules::bytes)
    }

    /// Whether it is to be looked at whether it is free: all CPUs are back, and nobody has tried to
    /// stop its functions just now.
    fn is_due(&self, now: u64) -> bool {
        let waits =
            !self.functions.is_empty() && now.saturating_sub(self.stopped_ns) < STOP_AGAIN_NS;
        self.cpus.is_empty() && !waits
    }
}

/// Bytes of memory in quarantine.
pub(super) fn bytes() -> u64 {
    let rests = RESTS.lock();
    rests.released_bytes + rests.list.iter().map(Rest::bytes).sum::<u64>()
}

/// Whether there is anything for [`release`] to look at.
#[must_use]
pub fn is_empty() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// An instance's rest all of whose CPUs came back. Dropped, it is in quarantine again.
pub struct Released {
    /// Always there until it is reclaimed or dropped.
    rest: Option<Rest>,
}

impl Released {
    /// The instance's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.rest.as_ref().map_or(0, |rest| rest.id)
    }

    /// Stops the functions that have not proved that they are, and takes the memory back, for the
    /// caller to scrub. `None` if one still does not: then it is in quarantine again. Sleeps if
    /// there are functions.
    #[must_use]
    pub fn reclaim(mut self) -> Option<Scrubbing> {
        let rest = self.rest.as_mut()?;
        if rest.functions.stop() > 0 {
            rest.stopped_ns = timer::now_ns();
            return None;
        }
        let mut rest = self.rest.take()?;
        COUNT.fetch_sub(1, Ordering::AcqRel);
        RESTS.lock().released_bytes -= rest.bytes();
        let mut memory = rest.memory.take()?;
        log::warn!(
            "{} MiB of instance {} came back from quarantine",
            memory.bytes() >> 20,
            rest.id
        );
        // SAFETY: every CPU of the instance has proved that it is in the park page, on the park
        // tables; every function of it, afterwards, that it reaches no memory.
        unsafe { memory.take_back() };
        Some(memory.into_scrubbing())
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let mut rests = RESTS.lock();
        rests.released_bytes -= self.rest.as_ref().map_or(0, Rest::bytes);
        // There is room: it was here before.
        rests.list.extend(self.rest.take());
    }
}

/// Looks at everything in quarantine; frees the CPUs that have proved where they are, and returns
/// the rest of an instance whose last one did. To be called again at once if there was one, and
/// some time later if not.
pub fn release() -> Option<Released> {
    if is_empty() {
        return None;
    }
    let now = timer::now_ns();
    let mut rests = RESTS.lock();
    for rest in &mut rests.list {
        let mut all = cpus();
        rest.cpus.retain_mut(|cpu| {
            let back = cpu.look(now);
            if back {
                cpu.give_back(&mut all);
                log::warn!(
                    "the CPU with APIC id {} of instance {} came back from quarantine",
                    cpu.apic_id,
                    rest.id
                );
            }
            !back
        });
    }
    let done = rests.list.iter().position(|rest| rest.is_due(now))?;
    let rest = rests.list.swap_remove(done);
    rests.released_bytes += rest.bytes();
    Some(Released { rest: Some(rest) })
}
