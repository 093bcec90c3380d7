//! Instances that outlive their supervisor: what is kept of each while it runs, and how the next
//! supervisor's kernel takes it over (`docs/supervisor-restart.md`).
//!
//! What an instance has is told twice, by pages that it cannot write: its descriptor with the
//! dynamic part, and the words for owners of CPUs and of granules in the notes. Where they agree
//! the instance goes on. Where they do not, or something is under way of which only the old kernel
//! knew what it was, the words for owners count: all that may be in the instance's hands is taken
//! out of them, by the end of the instance.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::descriptor::{self, CpuEntry, Descriptor, FLAG_GROUPS, FLAG_PEERS, LABEL_BYTES};
use abi::dev::MAX_DEVICES;
use abi::keep::{
    KEPT_CHANGING, KEPT_SHARES, KEPT_SINGLE_THREAD, KEPT_STOP_WHEN_HUNG, KEPT_UNWATCHED, Keep,
    KeptFlow, KeptLease, KeptNetwork, NO_FRAME, NO_FUNCTION, Owner, Record,
};
use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE};
use abi::live::{self, Answer, Entry, Live, Verdict};
use abi::messages::{self, MAX_PLACES, Peer};
use arrayvec::ArrayVec;
use ring::epoch::{Copied, Table};
use ring::mailbox::Publisher;

use super::functions::Functions;
use super::grow::Pending;
use super::network::{self, NetworkPages};
use super::peers::{self, AdoptedPages, Pages, Places};
use super::recovery::Recovery;
use super::watch::Watch;
use super::{
    DESCRIPTOR_ORDER, InstanceCpu, LIVE_ORDER, Owner as CpuOwner, Partition, SharedPages, Sharing,
    WINDOW_ORDER, cpus, quarantine,
};
use crate::device::{self, FunctionPlace};
use crate::keep::Reset;
use crate::mem::alloc::{Block, donate};
use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::mem::grant::Granules;
use crate::mem::heap::try_zeroed_box;
use crate::mem::phys::{self, PhysAddr};
use crate::{BootToken, faults, keep, park, role};

/// Facts about an instance for a supervisor that starts again, beside what the instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name of the instance, padded with zeroes.
    pub label: [u8; LABEL_BYTES],
    /// Nobody looks whether it hangs.
    pub unwatched: bool,
    /// Flag: the instance is halted if it hangs.
    pub stop_when_hung: bool,
    /// Unix time at which it was created, in nanoseconds.
    pub created_ns: u64,
    /// Unix time at which it was started, in nanoseconds.
    pub started_ns: u64,
    /// Address of the instance in a network of instances, and the ports that lead there.
    pub lease: KeptLease,
}

impl Default for Note {
    fn default() -> Self {
        Self {
            label: [0; LABEL_BYTES],
            unwatched: false,
            stop_when_hung: false,
            created_ns: 0,
            started_ns: 0,
            lease: KeptLease::default(),
        }
    }
}

/// Place of an instance's record in the notes. Dropped, there is no record any more.
pub(super) struct KeptRecord(usize);

impl Drop for KeptRecord {
    fn drop(&mut self) {
        if let Some(notes) = keep::notes() {
            notes.write(self.0, None);
        }
    }
}

/// Runs of frames that an instance may write to or read, of the supervisor's own memory.
pub(crate) fn shared_frames(record: &Record) -> impl Iterator<Item = Range<u64>> + use<> {
    let blocks = [
        (record.descriptor, DESCRIPTOR_ORDER),
        (record.live, LIVE_ORDER),
        (record.window, WINDOW_ORDER),
        (record.network.unwrap_or(NO_FRAME), network::ORDER),
    ];
    let places = record.places.map(|first| (first, peers::ORDER));
    let all = blocks.into_iter().chain(places);
    all.filter(|(first, _)| *first != NO_FRAME)
        .map(|(first, order)| first..first.saturating_add(1 << order))
}

impl Partition {
    /// Notes what a supervisor that starts again is to know.
    pub fn note(&mut self, note: Note) {
        self.note = note;
        self.write_record(false);
    }

    /// Notes another name.
    pub fn note_label(&mut self, label: [u8; LABEL_BYTES]) {
        self.note.label = label;
        let changing = self.pending.is_some_and(|pending| !pending.is_of_peers);
        self.write_record(changing);
    }

    fn record_flags(&self) -> u32 {
        let sharing = match self.sharing {
            Sharing::WholeCores => 0,
            Sharing::Shared => KEPT_SHARES,
            Sharing::SingleThread => KEPT_SINGLE_THREAD,
        };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        sharing
            | flag(self.note.unwatched, KEPT_UNWATCHED)
            | flag(self.note.stop_when_hung, KEPT_STOP_WHEN_HUNG)
    }

    fn write_record(&self, changing: bool) {
        let shared = self.shared();
        let (Some(KeptRecord(place)), Some(notes)) = (&shared.record, keep::notes()) else {
            return;
        };
        // Nor would the next supervisor know which functions the instance was told of.
        let changing = changing || self.functions.does_one_leave();
        let (mut places, mut second_pages) = ([NO_FRAME; MAX_PLACES], 0);
        for (number, [own, other]) in shared.places.mapped().enumerate() {
            places[number] = own.0.min(other.0);
            second_pages |= u32::from(other < own) << number;
        }
        let record = Record {
            id: self.id,
            flags: self.record_flags() | if changing { KEPT_CHANGING } else { 0 },
            label: self.note.label,
            descriptor: shared.descriptor.first().0,
            live: shared.live.first().0,
            window: shared.window.first().0,
            network: shared.network.as_ref().map(|pages| pages.first().0),
            places,
            second_pages,
            functions: self.function_numbers(),
            lease: self.note.lease,
            created_ns: self.note.created_ns,
            started_ns: self.note.started_ns,
        };
        notes.write(*place, Some(&record));
    }

    fn function_numbers(&self) -> [u32; MAX_DEVICES] {
        let mut numbers = [NO_FUNCTION; MAX_DEVICES];
        for (to, number) in numbers.iter_mut().zip(self.functions.numbers()) {
            *to = number;
        }
        numbers
    }

    /// Has the notes say where the instance's pages are, before anybody of it runs. False if there
    /// is no room.
    pub(super) fn keep_record(&mut self) -> bool {
        let Some(notes) = keep::notes() else {
            return true;
        };
        {
            // One looks for a place at a time.
            let _all = cpus();
            let Some(place) = notes.free_place() else {
                return false;
            };
            if let Some(shared) = &mut self.shared {
                shared.record = Some(KeptRecord(place));
            }
            self.write_record(false);
        }
        true
    }

    /// Ends that, of an instance that was not started after all.
    pub(super) fn forget_record(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.record = None;
        }
    }

    /// Has the notes say whether a change of what the instance has is under way.
    pub(super) fn keep_changing(&self, changing: bool) {
        self.write_record(changing);
    }
}

/// An instance that ran under the supervisor before this one.
pub struct Adopted {
    /// CPUs and memory of the instance, as of one that this supervisor has started.
    pub partition: Partition,
    /// The note about it.
    pub note: Note,
    /// Why it cannot go on, and is to be ended, if so.
    pub misfit: Option<&'static str>,
    /// Numbers of the PCI functions that it may have reach its memory. Before it ends
    /// [`Partition::adopt_function`] has to be called for each, but for those that another one has.
    pub functions: ArrayVec<u32, MAX_DEVICES>,
}

/// Takes over the instances of the supervisor before this one, which `each` gets, and returns the
/// highest number that an instance was made with. What has an owner that nobody knows stays out of
/// use until the machine is reset. Once, before anybody makes an instance; not in parallel.
///
/// # Panics
/// Without memory for that. Then it is tried anew, or the machine is reset (`keep`).
pub fn adopt_all(_: &BootToken, mut each: impl FnMut(Adopted)) -> u32 {
    static DONE: AtomicBool = AtomicBool::new(false);
    let Some(notes) = keep::notes().filter(|_| !DONE.swap(true, Ordering::Relaxed)) else {
        return 0;
    };
    assert!(
        !faults::fails_to_adopt(),
        "on purpose, before instances are adopted"
    );
    assert!(quarantine::reserve(), "no memory to adopt instances");
    let mut last = notes.last_id().unwrap_or(0);
    let mut pages = AdoptedPages::default();
    // A function of one of which nobody runs any more may be another one's meanwhile.
    for runs in [true, false] {
        for (place, record) in notes.records() {
            if has_sent(&notes, record.id) != runs {
                continue;
            }
            last = last.max(record.id);
            match adopt(&notes, place, &record, &mut pages) {
                Some(adopted) => each(adopted),
                None => notes.write(place, None),
            }
        }
    }
    quarantine_rest(&notes);
    // A number of an instance of which nothing is known is nobody else's either.
    let owners = (0..notes.granules()).map(|granule| notes.granule(granule));
    owners
        .filter_map(|owner| match owner {
            Owner::Instance(id) => Some(id),
            Owner::Supervisor | Owner::Units | Owner::Unknown => None,
        })
        .fold(last, u32::max)
}

/// Notes that instances with that number and below were made.
pub fn note_last_id(id: u32) {
    if let Some(notes) = keep::notes() {
        notes.note_id(id);
    }
}

/// Notes that two peers get a generation: no others get that or one below, whatever becomes of this
/// kernel.
pub fn note_generation(generation: u32) {
    if let Some(notes) = keep::notes() {
        notes.note_generation(generation);
    }
}

/// The highest generation that two peers had; `None` if nobody knows.
#[must_use]
pub fn last_generation() -> Option<u32> {
    keep::notes().map_or(Some(0), |notes| notes.last_generation())
}

/// Notes a network of instances; one call at a time. False if there is no room for that.
#[must_use]
pub fn note_network(network: &KeptNetwork) -> bool {
    keep::notes().is_none_or(|notes| notes.note_network(network))
}

/// Notes that there is no network of that number any more; one call at a time.
pub fn forget_network(number: u32) {
    if let Some(notes) = keep::notes() {
        notes.forget_network(number);
    }
}

/// Networks that the supervisor before this one had, but for the one that there always is.
pub fn kept_networks() -> impl Iterator<Item = KeptNetwork> {
    let notes = keep::notes();
    notes.into_iter().flat_map(|notes| notes.networks())
}

/// Notes a flow of address translation at a place below [`abi::keep::FLOWS`], or that there is
/// none; one call at a time.
pub fn note_flow(place: u32, flow: Option<&KeptFlow>) {
    if let Some(notes) = keep::notes() {
        notes.note_flow(place, flow);
    }
}

/// The flow that the supervisor before this one, or this one, has noted at a place.
#[must_use]
pub fn kept_flow(place: u32) -> Option<KeptFlow> {
    keep::notes()?.flow(place)
}

/// The supervisor looks after its instances: should it panic now, that is the first time.
pub fn is_up(_: &BootToken) {
    keep::end_attempt();
}

/// Whether a panic of the supervisor starts its kernel again in place.
///
/// # Errors
/// Why it resets the machine.
pub fn plan_of_panic() -> Result<(), Reset> {
    keep::plan()
}

/// Number of times that the supervisor has started again in place.
#[must_use]
pub fn restarts() -> u64 {
    keep::restarts()
}

/// Keeps what has an owner that is no instance from everybody.
fn quarantine_rest(notes: &Keep<'static>) {
    let mut firsts = Vec::new();
    let held = (0..notes.granules()).filter(|granule| match notes.granule(*granule) {
        Owner::Supervisor | Owner::Units => false,
        Owner::Instance(id) => !is_recorded(notes, id),
        Owner::Unknown => true,
    });
    for granule in held {
        let first = Frame(granule * GRANULE_FRAMES);
        if phys::map().phys(first).is_some() {
            firsts
                .try_reserve(1)
                .expect("no memory to quarantine memory");
            firsts.push(first);
        }
    }
    if !firsts.is_empty() {
        log::error!("memory has an owner that nobody knows");
        // SAFETY: not given to the allocator, because the notes name another owner; in no other
        // list, because that is no instance of a record.
        drop(unsafe { Granules::adopt(&firsts) });
    }
    for cpu in cpus().iter_mut() {
        if let CpuOwner::Instance(id) = cpu.owner
            && !is_recorded(notes, id)
        {
            log::error!(
                "the CPU with APIC id {} has an owner that nobody knows",
                cpu.apic_id
            );
            cpu.owner = CpuOwner::Quarantine;
        }
    }
}

fn is_recorded(notes: &Keep<'_>, id: u32) -> bool {
    notes.records().any(|(_, record)| record.id == id)
}

/// Whether a CPU may be in the hands of an instance.
fn has_sent(notes: &Keep<'_>, id: u32) -> bool {
    (0..descriptor::MAX_CPUS).any(|slot| notes.cpu(slot) == Owner::Instance(id))
}

/// Functions that instances have of a supervisor before this one, each with the number of the
/// instance: those first of which a CPU was sent. Where the instance was not told of one, or its
/// dynamic part was being written, nothing is known but the number.
pub(crate) fn kept_functions() -> Vec<(u32, FunctionPlace)> {
    let mut kept = Vec::new();
    let Some(notes) = keep::notes() else {
        return kept;
    };
    for runs in [true, false] {
        let records = notes.records().map(|(_, record)| record);
        for record in records.filter(|record| has_sent(&notes, record.id) == runs) {
            let numbers = record.functions.into_iter();
            let numbers = numbers.filter(|number| *number != NO_FUNCTION);
            let entries = match numbers.clone().next() {
                Some(_) => entries_of(&record).map_or_else(|_| Vec::new(), |(entries, _)| entries),
                None => Vec::new(),
            };
            for number in numbers {
                let mut places = device::places(&entries);
                let place = places.find(|place| place.number == number);
                let place = place.unwrap_or_else(|| FunctionPlace {
                    number,
                    ..FunctionPlace::default()
                });
                kept.try_reserve(1).expect("no memory to adopt a function");
                kept.push((record.id, place));
            }
        }
    }
    kept
}

/// Takes one instance over; `None` if none of its CPUs was ever sent to it, or all are back, so
/// that there is nothing left of it.
fn adopt(
    notes: &Keep<'static>,
    place: usize,
    record: &Record,
    pages: &mut AdoptedPages,
) -> Option<Adopted> {
    let id = record.id;
    let granules = 0..notes.granules();
    let owned = granules.filter(|granule| notes.granule(*granule) == Owner::Instance(id));
    let is_sent = |slot: usize| notes.cpu(slot) == Owner::Instance(id);
    let blocks_fit = shared_frames(record).all(|frames| {
        let end = Frame(frames.end - 1);
        phys::map().phys(Frame(frames.start)).is_some() && phys::map().phys(end).is_some()
    });
    assert!(blocks_fit, "a record names memory that there is not");
    let functions = record.functions.into_iter();
    let functions: ArrayVec<u32, MAX_DEVICES> =
        functions.filter(|number| *number != NO_FUNCTION).collect();
    // What functions reach is free when they have proved that they do not.
    if !(0..cpus().len()).any(is_sent) && functions.is_empty() {
        for granule in owned {
            // Nobody has been sent there, or all who were have proved that they came back.
            notes.set_granule(granule, 0);
            let frames = granule * GRANULE_FRAMES..(granule + 1) * GRANULE_FRAMES;
            // SAFETY: the allocator has not got it, and nobody uses it.
            unsafe { donate(frames) };
        }
        // SAFETY: likewise; each block once, and the record goes before anything else is noted.
        drop(unsafe { blocks(record, None, pages) });
        return None;
    }

    let mut firsts = Vec::new();
    for granule in owned {
        firsts
            .try_reserve(1)
            .expect("no memory to adopt an instance");
        firsts.push(Frame(granule * GRANULE_FRAMES));
    }
    // SAFETY: the record's blocks were not given to the allocator, and this is the only time that
    // they are adopted.
    let shared = unsafe { blocks(record, Some(KeptRecord(place)), pages) };
    let mut staged = try_zeroed_box::<Descriptor>().expect("no memory to adopt an instance");
    // SAFETY: a block of that size, which nobody but a supervisor writes to; any bytes are a
    // descriptor.
    unsafe {
        core::ptr::copy_nonoverlapping(
            shared.descriptor.ptr(),
            core::ptr::from_mut::<Descriptor>(&mut staged).cast(),
            descriptor::SIZE,
        );
    }
    let mut partition = Partition {
        id,
        sharing: match record.flags & (KEPT_SHARES | KEPT_SINGLE_THREAD) {
            KEPT_SHARES => Sharing::Shared,
            KEPT_SINGLE_THREAD => Sharing::SingleThread,
            _ => Sharing::WholeCores,
        },
        cpus: Vec::new(),
        memory: None,
        functions: Functions::default(),
        shared: Some(shared),
        next_frame: 0,
        staged,
        started: true,
        pending: None,
        further_started: AtomicBool::new(true),
        halting: false,
        pause: 0,
        note: Note {
            label: record.label,
            unwatched: record.flags & KEPT_UNWATCHED != 0,
            stop_when_hung: record.flags & KEPT_STOP_WHEN_HUNG != 0,
            created_ns: record.created_ns,
            started_ns: record.started_ns,
            lease: record.lease,
        },
    };
    let listed = partition.listed(record, &firsts, is_sent);
    let misfit = listed.as_ref().err().copied();
    let (entries, firsts, told) = match listed {
        Ok(Listed {
            cpus,
            granules,
            told,
        }) => (cpus, granules, told),
        // All that it may have, in whatever order: it is ended.
        Err(_) => {
            let slots = (0..cpus().len()).filter(|slot| is_sent(*slot));
            let entry = |slot: usize| CpuEntry {
                apic_id: park::slot(slot).apic_id.load(Ordering::Relaxed),
                slot: slot as u32,
            };
            let mut entries = Vec::new();
            let room = entries.try_reserve_exact(descriptor::MAX_CPUS);
            room.expect("no memory to adopt an instance");
            entries.extend(slots.map(entry));
            (entries, firsts, None)
        }
    };
    // Those that were not sent yet are, when the instance asks for them.
    let is_complete = entries.iter().all(|entry| is_sent(entry.slot as usize));
    partition.further_started = AtomicBool::new(is_complete);
    partition.adopt_cpus(&entries, is_sent);
    // SAFETY: the notes say that the instance has them, so they were not given to the allocator;
    // this is the only list that they are in.
    let memory = unsafe { Granules::adopt(&firsts) };
    partition.memory = Some(memory.expect("no memory to adopt an instance"));
    partition.pause = partition.window().orders.pause.load(Ordering::Acquire);
    if let Some(Told {
        peers,
        unanswered: Some(epoch),
    }) = &told
    {
        partition.places_mut().adopt(peers, false);
        let (cpus, bytes) = (partition.cpus.len(), partition.memory_bytes());
        partition.pending = Some(Pending::of_peers(*epoch, cpus, bytes));
    } else if let Some(Told { peers, .. }) = &told {
        partition.places_mut().adopt(peers, true);
    }
    Some(Adopted {
        note: partition.note,
        partition,
        misfit,
        functions,
    })
}

/// The blocks of a record.
///
/// # Safety
/// They are the supervisor's memory and in nobody's hands but the instance's.
unsafe fn blocks(
    record: &Record,
    kept: Option<KeptRecord>,
    pages: &mut AdoptedPages,
) -> SharedPages {
    // SAFETY: by the caller's promise.
    let block = |first, order| unsafe { Block::from_raw(Frame(first), order) };
    SharedPages {
        record: kept,
        descriptor: block(record.descriptor, DESCRIPTOR_ORDER),
        live: block(record.live, LIVE_ORDER),
        window: block(record.window, WINDOW_ORDER),
        // SAFETY: likewise.
        network: record
            .network
            .map(|first| unsafe { NetworkPages::adopt(Frame(first)) }),
        places: Places::adopted(&record.places, record.second_pages, |first| {
            // SAFETY: likewise; two instances that have the same get them from one list.
            pages.get(first, || unsafe { Pages::adopted(first) })
        }),
    }
}

/// The entries of a dynamic part, and the number of their epoch.
fn entries_in(live: &Live) -> Result<(Vec<Entry>, u64), &'static str> {
    let table = Table::new(&live.counter, &live.count, &live.entries);
    let mut entries = Vec::new();
    entries
        .try_reserve_exact(live::MAX_ENTRIES)
        .map_err(|_| "there is no memory to adopt it")?;
    entries.resize(live::MAX_ENTRIES, [0; 4]);
    let Copied::Whole { epoch, count } = table.read(&mut entries) else {
        return Err("what it has was being changed");
    };
    if count as usize > entries.len() {
        return Err("its dynamic part does not hold");
    }
    entries.truncate(count as usize);
    Ok((entries, epoch))
}

/// The same of a record's, before its instance is adopted.
fn entries_of(record: &Record) -> Result<(Vec<Entry>, u64), &'static str> {
    let first = Frame(record.live);
    if phys::map().phys(first).is_none() {
        return Err("its dynamic part is nowhere");
    }
    // SAFETY: a block of that size, the supervisor's, which was not given to the allocator and is
    // in the direct map for good; it consists of atomics, and only supervisors write there.
    entries_in(unsafe { &*direct::ptr(first).cast::<Live>() })
}

/// CPUs and granules that an instance has, in its order, and whom it was told of.
struct Listed {
    cpus: Vec<CpuEntry>,
    granules: Vec<Frame>,
    told: Option<Told>,
}

/// Peers of the last epoch.
struct Told {
    peers: Vec<Peer>,
    /// The epoch, if the instance has not answered it, or refused it.
    unanswered: Option<u64>,
}

impl Partition {
    /// The instance's possessions as its descriptor tells them, if that agrees with the notes: the
    /// granules `owned`, ascending, and the CPUs that were sent to it.
    #[inline(never)]
    fn listed(
        &self,
        record: &Record,
        owned: &[Frame],
        is_sent: impl Fn(usize) -> bool,
    ) -> Result<Listed, &'static str> {
        let d = &*self.staged;
        if d.validate().is_err() || d.instance_id != self.id || d.is_supervisor() {
            return Err("its descriptor does not hold");
        }
        if record.flags & KEPT_CHANGING != 0 {
            return Err("what it has was being changed");
        }
        if self.window().halt_ordered() {
            return Err("it was being halted");
        }
        let (entries, unanswered) = self.last_epoch()?;
        let mut cpus = Vec::new();
        cpus.try_reserve_exact(descriptor::MAX_CPUS)
            .map_err(|_| "there is no memory to adopt it")?;
        let of_kind = |kind| entries.iter().filter(move |entry| live::is_of(entry, kind));
        if entries.is_empty() {
            cpus.extend(d.cpus().iter().copied());
        } else {
            for entry in of_kind(live::KIND_CPU) {
                if cpus.len() == descriptor::MAX_CPUS {
                    return Err("it has too many CPUs");
                }
                cpus.push(live::place(entry));
            }
        }
        let known = |entry: &CpuEntry| {
            let slot = entry.slot as usize;
            slot < descriptor::MAX_CPUS
                && park::slot(slot).apic_id.load(Ordering::Relaxed) == entry.apic_id
        };
        let sent = (0..descriptor::MAX_CPUS)
            .filter(|slot| is_sent(*slot))
            .count();
        let listed = cpus
            .iter()
            .filter(|entry| is_sent(entry.slot as usize))
            .count();
        if !cpus.iter().all(known) || sent != listed {
            return Err("the notes about its CPUs do not agree");
        }
        let mut granules = Vec::new();
        granules
            .try_reserve_exact(owned.len())
            .map_err(|_| "there is no memory to adopt it")?;
        let added = of_kind(live::KIND_MEMORY).map(live::range);
        for range in d.ranges().iter().copied().chain(added) {
            for granule in 0..range.count / GRANULE_FRAMES {
                let at = range.phys.checked_add(granule * GRANULE_SIZE as u64);
                let first = at.and_then(|at| phys::map().frame(PhysAddr(at)));
                let first = first.filter(|first| first.0.is_multiple_of(GRANULE_FRAMES));
                let first = first.filter(|_| granules.len() < owned.len());
                granules.push(first.ok_or("the notes about its memory do not agree")?);
            }
        }
        let mut sorted = Vec::new();
        sorted
            .try_reserve_exact(owned.len())
            .map_err(|_| "there is no memory to adopt it")?;
        sorted.extend_from_slice(&granules);
        sorted.sort_unstable();
        if sorted != owned {
            return Err("the notes about its memory do not agree");
        }
        let mut numbers = [NO_FUNCTION; MAX_DEVICES];
        let told = of_kind(live::KIND_FUNCTION).map(|entry| live::function_of(entry).0);
        for (to, number) in numbers.iter_mut().zip(told) {
            *to = number;
        }
        if numbers != record.functions {
            return Err("the notes about its devices do not agree");
        }
        let mut peers = Vec::new();
        peers
            .try_reserve_exact(MAX_PLACES)
            .map_err(|_| "there is no memory to adopt it")?;
        for entry in of_kind(live::KIND_PEER) {
            let (peer, _) = live::peer_of(entry);
            if peers.len() == MAX_PLACES || !self.shared().places.can_have(&peer) {
                return Err("the notes about its peers do not agree");
            }
            peers.push(peer);
        }
        Ok(Listed {
            cpus,
            granules,
            told: Some(Told { peers, unanswered }),
        })
    }

    /// The entries of the last epoch, none if there was none, and its number if the instance has
    /// not taken it: then it tells of peers only, as no change of anything else is under way.
    fn last_epoch(&self) -> Result<(Vec<Entry>, Option<u64>), &'static str> {
        let (entries, epoch) = entries_in(self.live())?;
        let answer = Answer::from_word(self.answers().last.load(Ordering::Acquire));
        let is_taken = answer
            .is_some_and(|answer| answer.epoch == epoch as u32 && answer.verdict == Verdict::Taken);
        Ok((entries, (epoch > 0 && !is_taken).then_some(epoch)))
    }

    /// The names of its peers and of its groups, with commas, as its command line tells it.
    #[must_use]
    pub fn named(&self) -> [&str; 2] {
        let d = &*self.staged;
        let words = [
            (FLAG_PEERS, messages::COMMAND_LINE),
            (FLAG_GROUPS, messages::GROUPS_COMMAND_LINE),
        ];
        words.map(|(flag, key)| match d.has(flag) {
            true => role::value_in(d.cmdline(), key).unwrap_or_default(),
            false => "",
        })
    }

    fn adopt_cpus(&mut self, entries: &[CpuEntry], is_sent: impl Fn(usize) -> bool) {
        let room = self.cpus.try_reserve_exact(entries.len());
        room.expect("no memory to adopt an instance");
        let mut all = cpus();
        for (number, entry) in entries.iter().enumerate() {
            let slot = entry.slot as usize;
            all[slot].owner = CpuOwner::Instance(self.id);
            all[slot].shares = self.sharing == Sharing::Shared;
            let answered = self.window().heartbeats[number]
                .answered
                .load(Ordering::Relaxed);
            self.cpus.push(InstanceCpu {
                slot,
                apic_id: entry.apic_id,
                mailbox: Publisher::new(park::slot(slot)),
                recovery: (!is_sent(slot)).then(Recovery::parked),
                watch: Watch::after(answered),
            });
        }
    }
}
