//! The supervisor's side of instances: taking CPUs and memory for one, starting it, and getting
//! everything back.
//!
//! Creation stages everything and commits at the end; on any error nothing has changed. Ends are
//! confirmed: a CPU counts as back when it has claimed an order in the park page, and memory is
//! only taken back when all CPUs of the instance are. What cannot be confirmed is in quarantine
//! until it can. (Pisces section 4; RainForest section 5.3, "Destroying a subOS".)

mod adopt;
mod functions;
mod grow;
mod halt;
mod health;
mod hotplug;
mod load;
mod network;
mod pause;
mod peers;
pub mod quarantine;
mod recovery;
mod watch;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::DerefMut;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::descriptor::{self, CpuEntry, Descriptor};
use abi::layout::{GRANULE_SIZE, PAGE_SIZE};
use abi::window::BadFrames;
use abi::{Network, Window, live, messages, window};
use adopt::KeptRecord;
pub use adopt::{
    Adopted, Note, adopt_all, forget_network, is_up, kept_flow, kept_networks, last_generation,
    note_flow, note_generation, note_last_id, note_network, plan_of_panic, restarts,
};
pub(crate) use adopt::{kept_functions, shared_frames};
use arrayvec::ArrayVec;
use functions::Functions;
pub use functions::{AssignError, Domain, Function, MAX_FUNCTIONS, MAX_MESSAGES};
pub use grow::{GrowError, Less, More, Settled, Staged, Taker};
pub use halt::{HaltProgress, HaltReport, Unproven};
pub use health::{Hang, Health};
pub use hotplug::{InsertError, Leaving};
use lfmutex::Mutex;
pub use load::LoadError;
pub use network::NetworkPages;
pub use pause::Pause;
use peers::Places;
pub use peers::{Offer, PeerPages};
use recovery::Recovery;
use ring::mailbox::{Order, Publisher};
pub use topology::cores::Sharing;
use topology::cores::{self, State, Thread};
use watch::Watch;

use crate::arch::{apic, cpu};
use crate::faults::crash_point;
pub use crate::keep::Reset;
use crate::machine_check::BadPage;
use crate::mem::alloc::Block;
use crate::mem::frame::Frame;
use crate::mem::grant::{Granules, NoGranules};
use crate::mem::heap::try_zeroed_box;
use crate::mem::{self};
use crate::{irq, keep, park, role, smp, timer};

/// Owner of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Supervisor,
    Free,
    Instance(u32),
    /// The CPU did not come back from an instance yet.
    Quarantine,
    /// The CPU did not start yet.
    Lost,
}

struct Cpu {
    apic_id: u32,
    owner: Owner,
    /// Slot of the first thread of its core.
    core: usize,
    /// The owner shares its cores: an instance that was created so, or a supervisor that was
    /// started so.
    shares: bool,
}

impl Cpu {
    fn thread(&self) -> Thread {
        let state = match self.owner {
            Owner::Free => State::Free,
            _ => State::Held {
                shares: self.shares,
            },
        };
        Thread {
            core: self.core as u16,
            state,
        }
    }
}

/// CPUs as the rules for cores see them.
type Threads = ArrayVec<Thread, { descriptor::MAX_CPUS }>;

fn threads(cpus: &[Cpu]) -> Threads {
    cpus.iter().map(Cpu::thread).collect()
}

/// Rule by which an instance gets CPUs: what was asked for, unless the machine uses one thread of
/// each core only.
fn rule(asked: Sharing) -> Sharing {
    if role::mitigations().single_threads {
        Sharing::SingleThread
    } else {
        asked
    }
}

/// CPUs, by park slot.
type Cpus = ArrayVec<Cpu, { descriptor::MAX_CPUS }>;

/// All CPUs of the machine; none before the first look. Made in place: by way of a stack it would
/// take a fifth of one, and it was first made at the bottom of a CREATE, which overflowed.
static CPUS: Mutex<Cpus> = Mutex::new(ArrayVec::new_const());

/// Takes stock of the machine's CPUs: the supervisor has its own, those of the others that have
/// parked are free, but for those that a supervisor before has sent to an instance.
fn take_stock(all: &mut Cpus) {
    let own = role::descriptor().cpus().len();
    let kept = |slot: usize| match keep::notes().map(|notes| notes.cpu(slot)) {
        None | Some(keep::Owner::Supervisor) => None,
        Some(keep::Owner::Instance(id)) => Some(Owner::Instance(id)),
        Some(keep::Owner::Units | keep::Owner::Unknown) => Some(Owner::Quarantine),
    };
    smp::wait_parked((own..smp::machine_cpus()).filter(|slot| kept(*slot).is_none()));
    let levels = cpu::levels();
    let place = |slot: usize| {
        let place = levels.place(park::slot(slot).apic_id.load(Ordering::Relaxed));
        (place.package, place.core)
    };
    for slot in 0..smp::machine_cpus() {
        let owner = match slot {
            _ if slot < own => Owner::Supervisor,
            _ if let Some(owner) = kept(slot) => owner,
            _ if smp::is_parked(slot) => Owner::Free,
            _ => Owner::Lost,
        };
        let core = (0..slot).find(|&other| place(other) == place(slot));
        all.push(Cpu {
            apic_id: park::slot(slot).apic_id.load(Ordering::Relaxed),
            owner,
            core: core.unwrap_or(slot),
            shares: owner == Owner::Supervisor && role::cmdline_value("smt") == Some("allow"),
        });
    }
}

fn cpus() -> impl DerefMut<Target = Cpus> {
    let mut all = CPUS.lock();
    if all.is_empty() {
        take_stock(&mut all);
    }
    all
}

/// The CPUs, after a look at those that had not started: one that is parked now is free.
fn cpus_now() -> impl DerefMut<Target = Cpus> {
    let mut all = cpus();
    for (slot, cpu) in all.iter_mut().enumerate() {
        if cpu.owner == Owner::Lost && smp::is_parked(slot) {
            log::info!("the CPU with APIC id {} has started after all", cpu.apic_id);
            cpu.owner = Owner::Free;
        }
    }
    all
}

/// Number of CPUs of the machine, whoever has them. Unlike [`resources`], it does not wait for CPUs
/// that are still on their way into the park page.
#[must_use]
pub fn machine_cpus() -> usize {
    smp::machine_cpus()
}

/// The machine's resources. Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// All CPUs.
    pub cpus_total: u32,
    /// The supervisor's own.
    pub cpus_supervisor: u32,
    /// Parked, and free for an instance that does not share its cores.
    pub cpus_free: u32,
    /// Did not start.
    pub cpus_lost: u32,
    /// Did not come back from an instance yet.
    pub cpus_quarantined: u32,
    /// Parked, and not free, because another thread of the core has an owner or is lost, or the
    /// machine uses one thread of each core only.
    pub cpus_withheld: u32,
    /// All cores.
    pub cores_total: u32,
    /// Cores with a thread of the supervisor's.
    pub cores_supervisor: u32,
    /// Cores that nobody has a thread of.
    pub cores_free: u32,
    /// Cores with a thread that did not start.
    pub cores_lost: u32,
    /// Cores with a thread that did not come back from an instance yet.
    pub cores_quarantined: u32,
    /// All memory.
    pub mem_total: u64,
    /// Free for instances. What the supervisor keeps free for itself is not counted.
    pub mem_free: u64,
    /// Bytes of memory with instances.
    pub mem_granted: u64,
    /// Bytes of memory that CPUs in quarantine may still use.
    pub mem_quarantined: u64,
    /// Unusable until the machine is restarted.
    pub mem_leaked: u64,
}

/// CPUs and memory of the machine, by owner.
#[must_use]
pub fn resources() -> Resources {
    let memory = mem::stats();
    let bytes = |frames: u64| frames * PAGE_SIZE as u64;
    let mem_quarantined = quarantine::bytes();
    let cpus = cpus_now();
    let count = |owner: Owner| cpus.iter().filter(|cpu| cpu.owner == owner).count() as u32;
    let free = cores::available(&threads(&cpus), rule(Sharing::WholeCores)) as u32;
    let cores = || (0..cpus.len()).filter(|&slot| cpus[slot].core == slot);
    let has = |core: usize, owner: Owner| {
        let mut threads = cpus.iter().filter(|cpu| cpu.core == core);
        threads.any(|cpu| cpu.owner == owner)
    };
    let is_lost = |core: usize| has(core, Owner::Lost);
    let is_quarantined = |core: usize| !is_lost(core) && has(core, Owner::Quarantine);
    let is_supervisors =
        |core: usize| has(core, Owner::Supervisor) && !is_lost(core) && !is_quarantined(core);
    let is_free = |core: usize| {
        let mut threads = cpus.iter().filter(|cpu| cpu.core == core);
        threads.all(|cpu| cpu.owner == Owner::Free)
    };
    Resources {
        cpus_total: cpus.len() as u32,
        cpus_supervisor: count(Owner::Supervisor),
        cpus_free: free,
        cpus_withheld: count(Owner::Free) - free,
        cpus_lost: count(Owner::Lost),
        cpus_quarantined: count(Owner::Quarantine),
        cores_total: cores().count() as u32,
        cores_supervisor: cores().filter(|&core| is_supervisors(core)).count() as u32,
        cores_free: cores().filter(|&core| is_free(core)).count() as u32,
        cores_lost: cores().filter(|&core| is_lost(core)).count() as u32,
        cores_quarantined: cores().filter(|&core| is_quarantined(core)).count() as u32,
        mem_total: bytes(memory.total),
        mem_free: bytes(memory.free.saturating_sub(mem::supervisors_reserve())),
        mem_granted: bytes(memory.granted).saturating_sub(mem_quarantined),
        mem_quarantined,
        mem_leaked: bytes(memory.leaked),
    }
}

/// Why an instance could not be created. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Fewer CPUs are free.
    Cpus {
        /// Number of CPUs that such an instance could have.
        free: u32,
        /// Rule by which it would have got them.
        sharing: Sharing,
    },
    /// Less memory is free in whole granules.
    Memory {
        /// Free memory in bytes.
        free: u64,
    },
    /// The memory asked for does not hold the kernel.
    TooSmall {
        /// The least that does, in bytes.
        least: u64,
    },
    /// The supervisor itself has no memory for the instance's window.
    Window,
    /// The supervisor itself has no memory for the pages of the instance's network.
    Network,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus { free, .. } => write!(f, "only {free} CPUs are free"),
            Self::Memory { free } => write!(f, "only {} MiB are free", free >> 20),
            Self::TooSmall { least } => write!(f, "an instance needs at least {} MiB", least >> 20),
            Self::Window => f.write_str("no memory for the instance's window"),
            Self::Network => f.write_str("no memory for the instance's network"),
        }
    }
}

impl core::error::Error for CreateError {}

/// Memory of the supervisor's that an instance sees: descriptor, its dynamic part, window with the
/// page of answers behind it, the pages of its network if it has one, and those of its peers.
struct SharedPages {
    /// Says where they are, as long as they are the instance's, and is given up before them.
    record: Option<KeptRecord>,
    descriptor: Block,
    live: Block,
    window: Block,
    network: Option<NetworkPages>,
    places: Places,
}

/// Orders of the blocks.
const DESCRIPTOR_ORDER: u8 = (descriptor::SIZE / PAGE_SIZE).ilog2() as u8;
const LIVE_ORDER: u8 = (live::SIZE / PAGE_SIZE).ilog2() as u8;
const WINDOW_ORDER: u8 = (Window::SIZE / PAGE_SIZE + 1).next_power_of_two().ilog2() as u8;

impl SharedPages {
    /// The page of answers.
    fn answers(&self) -> Frame {
        self.window.first().add((Window::SIZE / PAGE_SIZE) as u64)
    }
}

/// CPUs and memory of one instance. Dropping it before it was started gives everything back;
/// dropped while the instance or a device of it may still run, it ends the instance and goes into
/// [quarantine]. The orderly way is [`Partition::begin_halt`], [`Partition::halt_step`],
/// [`Partition::reclaim`].
///
/// In the supervisor, which alone has CPUs and memory to give:
///
/// ```no_run
/// use guard::partition::{HaltProgress, Partition, Sharing, Spec};
///
/// # fn example(archive: &[u8], blob: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
/// let sharing = Sharing::WholeCores;
/// let (cpus, memory, network, places) = (2, 64 << 20, false, 0);
/// let spec = Spec { id: 1, cpus, sharing, memory, network, places, label: "web", cmdline: "" };
/// let mut partition = Partition::create(&spec)?;
/// partition.announce_initramfs(archive.len() as u64)?;
/// partition.write_initramfs(0, archive)?;
/// partition.set_boot_blob(blob)?;
/// partition.start()?;
/// // Some time later, when its doorbell has rung:
/// partition.begin_halt();
/// while partition.halt_step() == HaltProgress::Pending {}
/// let scrubbing = partition.reclaim()?;
/// # Ok(())
/// # }
/// ```
pub struct Partition {
    id: u32,
    /// Rule for the cores that its CPUs are threads of.
    sharing: Sharing,
    /// The publishing ends of its CPUs' mailboxes.
    cpus: Vec<InstanceCpu>,
    memory: Option<Granules>,
    /// Devices, which may reach the memory until they were stopped.
    functions: Functions,
    /// Always there until it is dropped.
    shared: Option<SharedPages>,
    /// Staged; copied to where the instance sees it when it starts.
    staged: Box<Descriptor>,
    /// The next frame of the instance that is not spoken for.
    next_frame: u64,
    started: bool,
    /// The change that the instance has not answered yet.
    pending: Option<grow::Pending>,
    further_started: AtomicBool,
    halting: bool,
    /// The last order to stand still or to go on (`Orders::pause`).
    pause: u32,
    /// Facts about it for a supervisor that starts again, beside what it has.
    note: Note,
}

struct InstanceCpu {
    slot: usize,
    apic_id: u32,
    mailbox: Publisher<'static>,
    /// How far the CPU is on its way back; `None` if it was sent away and not called back.
    recovery: Option<Recovery>,
    /// Findings about its heartbeat.
    watch: Watch,
}

impl InstanceCpu {
    /// Takes a parked CPU for an instance.
    fn take(all: &mut Cpus, slot: usize, id: u32, sharing: Sharing) -> Self {
        all[slot].owner = Owner::Instance(id);
        all[slot].shares = sharing == Sharing::Shared;
        Self {
            slot,
            apic_id: all[slot].apic_id,
            mailbox: Publisher::new(park::slot(slot)),
            recovery: Some(Recovery::parked()),
            watch: Watch::new(),
        }
    }

    /// Makes it free; it is in the park page.
    fn give_back(&self, all: &mut Cpus) {
        debug_assert!(self.is_parked(), "nobody knows where it is");
        keep::set_cpu(self.slot, 0);
        all[self.slot].owner = Owner::Free;
        all[self.slot].shares = false;
    }

    /// The CPU as the instance is told of it.
    fn entry(&self) -> CpuEntry {
        CpuEntry {
            apic_id: self.apic_id,
            slot: self.slot as u32,
        }
    }
}

/// CPUs that only an instance which has some already can have: the free threads of cores of which
/// it has the others. An instance that shares has them by the rule for all that do.
fn own_siblings(all: &Cpus, id: u32, sharing: Sharing) -> impl Iterator<Item = usize> {
    let is_own = move |core: usize| {
        let mut held = all
            .iter()
            .filter(move |cpu| cpu.core == core && cpu.owner != Owner::Free)
            .peekable();
        held.peek().is_some() && held.all(|cpu| cpu.owner == Owner::Instance(id))
    };
    let is_free = move |slot: &usize| {
        sharing == Sharing::WholeCores && all[*slot].owner == Owner::Free && is_own(all[*slot].core)
    };
    (0..all.len()).filter(is_free)
}

/// Number of CPUs that an instance which has some already could have besides.
fn available_more(all: &Cpus, id: u32, sharing: Sharing) -> usize {
    own_siblings(all, id, sharing).count() + cores::available(&threads(all), sharing)
}

/// Marks CPUs for an instance that has some already: threads of its own cores first, then by the
/// rule for a new owner. False if so many are not free.
fn choose_more(all: &Cpus, id: u32, count: usize, sharing: Sharing, marks: &mut [bool]) -> bool {
    let own = own_siblings(all, id, sharing).take(count).count();
    if !cores::choose(&threads(all), count - own, sharing, marks) {
        return false;
    }
    own_siblings(all, id, sharing)
        .take(own)
        .for_each(|slot| marks[slot] = true);
    true
}

/// Description of an instance to create.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// The instance's number.
    pub id: u32,
    /// Number of CPUs.
    pub cpus: u32,
    /// Rule for the cores that they are threads of.
    pub sharing: Sharing,
    /// Memory in bytes; rounded up to whole granules.
    pub memory: u64,
    /// Whether it has a network.
    pub network: bool,
    /// Number of its places for peers ([`abi::messages::places`]).
    pub places: usize,
    /// Name of the instance, for messages.
    pub label: &'a str,
    /// Command line of the instance's kernel.
    pub cmdline: &'a str,
}

impl Partition {
    /// Takes CPUs and memory for an instance.
    ///
    /// # Errors
    /// Says what is short; nothing was changed.
    pub fn create(spec: &Spec<'_>) -> Result<Self, CreateError> {
        let granules = spec.memory.div_ceil(GRANULE_SIZE as u64);
        let image = role::descriptor().image_frames;
        let least = load::min_memory(image, granules, spec.cpus as usize);
        if granules * (GRANULE_SIZE as u64) < least {
            return Err(CreateError::TooSmall {
                least: least.next_multiple_of(GRANULE_SIZE as u64),
            });
        }
        let sharing = rule(spec.sharing);
        let free = cores::available(&threads(&cpus_now()), sharing) as u32;
        if spec.cpus == 0 || free < spec.cpus {
            return Err(CreateError::Cpus { free, sharing });
        }
        if !quarantine::reserve() {
            return Err(CreateError::Window);
        }
        if !mem::has_room(descriptor::SIZE * 2 + live::SIZE + Window::SIZE) {
            return Err(CreateError::Window);
        }
        if spec.places > 0 && !mem::has_room(spec.places * messages::PLACE_BYTES) {
            return Err(CreateError::Window);
        }
        if spec.network && !mem::has_room(Network::SIZE) {
            return Err(CreateError::Network);
        }
        let memory = Granules::take(granules).map_err(|error| match error {
            NoGranules::Short { free } => CreateError::Memory {
                free: free * GRANULE_SIZE as u64,
            },
            NoGranules::Scattered => CreateError::Memory { free: 0 },
            NoGranules::NoMemory => CreateError::Window,
        })?;
        let shared = SharedPages {
            record: None,
            descriptor: Block::zeroed(DESCRIPTOR_ORDER).ok_or(CreateError::Window)?,
            live: Block::zeroed(LIVE_ORDER).ok_or(CreateError::Window)?,
            window: Block::zeroed(WINDOW_ORDER).ok_or(CreateError::Window)?,
            network: match spec.network {
                true => Some(NetworkPages::take().ok_or(CreateError::Network)?),
                false => None,
            },
            places: Places::take(spec.places).ok_or(CreateError::Window)?,
        };
        // In place: it is half as large as this thread's stack, which an interrupt must fit on as
        // well.
        let mut staged = try_zeroed_box::<Descriptor>().ok_or(CreateError::Window)?;
        staged.stamp();
        let mut cpus = Vec::new();
        cpus.try_reserve_exact(spec.cpus as usize)
            .map_err(|_| CreateError::Window)?;
        let mut partition = Self {
            id: spec.id,
            sharing,
            cpus,
            memory: Some(memory),
            functions: Functions::default(),
            shared: Some(shared),
            staged,
            next_frame: image,
            started: false,
            pending: None,
            further_started: AtomicBool::new(false),
            halting: false,
            pause: 0,
            note: Note::default(),
        };
        partition.window().init();
        partition.fill_descriptor(spec);
        partition.take_cpus(spec)?;
        Ok(partition)
    }

    /// The last step of creation, and the only one that could fail because somebody else was
    /// faster.
    fn take_cpus(&mut self, spec: &Spec<'_>) -> Result<(), CreateError> {
        let mut all = cpus();
        let threads = threads(&all);
        let sharing = rule(spec.sharing);
        let mut marks = [false; descriptor::MAX_CPUS];
        let marks = &mut marks[..threads.len()];
        if !cores::choose(&threads, spec.cpus as usize, sharing, marks) {
            return Err(CreateError::Cpus {
                free: cores::available(&threads, sharing) as u32,
                sharing,
            });
        }
        for slot in (0..marks.len()).filter(|&slot| marks[slot]) {
            let cpu = InstanceCpu::take(&mut all, slot, self.id, sharing);
            let _ = self.staged.push_cpu(cpu.entry());
            self.cpus.push(cpu);
        }
        Ok(())
    }

    fn shared(&self) -> &SharedPages {
        self.shared.as_ref().expect("there until the end")
    }

    /// The instance's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Number of CPUs of the instance.
    #[must_use]
    pub fn cpu_count(&self) -> u32 {
        self.cpus.len() as u32
    }

    /// Memory of the instance in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Granules::bytes)
    }

    /// Whether a page is of the instance's memory.
    #[must_use]
    pub fn holds(&self, page: &BadPage) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.contains(page.frame()))
    }

    /// Has a page of the instance's memory go out of use when the instance has ended.
    pub fn retire(&mut self, page: &BadPage) {
        if let Some(memory) = &mut self.memory {
            memory.retire(page.frame());
        }
    }

    /// Has the pages go out of use that the instance has noted: its own only, and as many as there
    /// is room for in the window.
    fn retire_noted(&mut self) {
        let noted: ArrayVec<u64, { BadFrames::CAPACITY }> =
            self.window().bad_frames.noted().collect();
        let Some(memory) = &mut self.memory else {
            return;
        };
        for frame in noted {
            if let Some(frame) = memory.frame(frame) {
                memory.retire(frame);
            }
        }
    }

    /// The window shared with the instance. What is in it is the instance's word and nothing more.
    #[must_use]
    pub fn window(&self) -> &Window {
        // SAFETY: a block of the window's size and more, ours as long as `self`, zeroed when it was
        // made; a window consists of atomics, so the instance may write while we read.
        unsafe { &*self.shared().window.ptr().cast::<Window>() }
    }

    /// The pages of the instance's network, if it has one. What is in them is the instance's word.
    #[must_use]
    pub fn network(&self) -> Option<NetworkPages> {
        self.shared().network.clone()
    }

    /// Rings the instance's doorbell: one interrupt to its first CPU.
    pub fn ring(&self) {
        if let Some(first) = self.cpus.first().filter(|_| self.started && !self.halting) {
            apic::send_ipi(first.apic_id, irq::DOORBELL_VECTOR);
        }
    }

    /// Starts the instance: its first CPU enters its kernel.
    ///
    /// # Errors
    /// If it was started before, or its memory is too small for its page tables; nothing was
    /// changed.
    pub fn start(&mut self) -> Result<(), LoadError> {
        if self.started {
            return Err(LoadError::Started);
        }
        let loaded = match self.keep_record() {
            true => self.load(),
            false => Err(LoadError::NotKept),
        };
        let cr3 = loaded.inspect_err(|_| {
            self.places_mut().leave();
            self.forget_record();
        })?;
        crash_point("start: granted");
        self.places_mut().started();
        if !self.functions.is_empty() || self.shared().places.has_peer() {
            self.publish_table(self.cpus.len(), self.memory_bytes(), None);
            let first = self.staged.cpus()[0].apic_id;
            self.functions.hand_over(first);
        }
        self.started = true;
        self.publish(0, cr3);
        crash_point("start: sent");
        Ok(())
    }

    /// Lets the instance's further CPUs in, once it says that it is ready for them. To be called
    /// when its doorbell rings.
    pub fn admit_further_cpus(&mut self) {
        if self.window().status.wants_cpus.load(Ordering::Acquire) != 0 {
            self.start_further_cpus();
        }
    }

    /// Sends the instance all CPUs that it was created with but the first, once, and not at its
    /// end. Those that were added since come when it has adopted them.
    fn start_further_cpus(&mut self) {
        if self.started && !self.halting && !self.further_started.swap(true, Ordering::AcqRel) {
            let cr3 = self.root();
            // A supervisor before this one may have sent some.
            let is_here = |number: &usize| self.cpus[*number].recovery.is_some();
            let here = (1..self.staged.cpus().len()).filter(is_here);
            let here: ArrayVec<usize, { descriptor::MAX_CPUS }> = here.collect();
            for number in here {
                self.publish(number, cr3);
            }
        }
    }

    fn publish(&mut self, number: usize, cr3: u64) {
        let cpu = &mut self.cpus[number];
        cpu.recovery = None;
        keep::set_cpu(cpu.slot, self.id);
        if cpu.mailbox.publish(Order {
            cr3,
            rip: smp::entry(),
            arg: number as u64,
        }) {
            apic::send_nmi(cpu.apic_id);
        }
    }

    /// True once the instance has said that it ended, or that it cannot go on.
    #[must_use]
    pub fn reports_end(&self) -> bool {
        self.window().state().is_some_and(window::State::is_final)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let all_parked = |cpus: &[InstanceCpu]| cpus.iter().all(InstanceCpu::is_parked);
        if !all_parked(&self.cpus) {
            self.begin_halt();
        }
        let mut all = cpus();
        for cpu in &self.cpus {
            if cpu.is_parked() {
                cpu.give_back(&mut all);
            } else {
                all[cpu.slot].owner = Owner::Quarantine;
                all[cpu.slot].shares = false;
            }
        }
        drop(all);
        // Functions of an instance that was never started have reached nothing.
        let may_reach = self.started && !self.functions.is_empty();
        if !all_parked(&self.cpus) || may_reach {
            let mut cpus = core::mem::take(&mut self.cpus);
            cpus.retain(|cpu| !cpu.is_parked());
            quarantine::take(quarantine::Rest {
                id: self.id,
                cpus,
                stopped_ns: timer::now_ns(),
                memory: self.memory.take(),
                functions: core::mem::take(&mut self.functions),
                _shared: self.shared.take(),
            });
        }
    }
}
