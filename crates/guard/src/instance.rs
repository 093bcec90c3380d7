//! Calls of an instance about itself: its window, its boot blob, changes of what it has, its end.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use abi::descriptor::MemRange;
use abi::layout::{ANSWERS, LIVE, PAGE_SIZE};
use abi::live::{
    self, Answer, Answers, Holdings, KIND_CPU, KIND_MEMORY, KIND_PEER, Live, MAX_ENTRIES, Refusal,
    Totals, Verdict,
};
use abi::window::State;
use abi::{Network, Window};
use lfmutex::Mutex;
use ring::epoch::{Copied, Table, WORDS};

use crate::arch::{self, timer};
use crate::cpu::{self, CpuId};
use crate::device::FunctionPlace;
use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::{cpu_table, device, faults, heartbeat, ipi, leave, mem, park, peers, role, smp};

/// The window shared with the supervisor.
///
/// # Panics
/// In the supervisor.
#[must_use]
pub fn window() -> &'static Window {
    role::window().expect("the supervisor has no window")
}

/// The pages of the network that this instance shares with the supervisor; `None` if it has no
/// network, and in the supervisor.
#[must_use]
pub fn network() -> Option<&'static Network> {
    role::network()
}

/// The boot blob: the command to run, as put together by the tool that created the instance
/// (`abi::boot`).
#[must_use]
pub fn boot_blob() -> &'static [u8] {
    let descriptor = role::descriptor();
    let len = descriptor.boot_blob_len as usize;
    if len == 0 {
        return &[];
    }
    // SAFETY: the descriptor validated, so the frames are the instance's and contiguous; they stay
    // reserved for ever and nobody writes to them.
    unsafe { core::slice::from_raw_parts(direct::ptr(Frame(descriptor.boot_blob_frame)), len) }
}

/// Outcome of a look at the dynamic part of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epoch {
    /// The same as at the last look.
    Same,
    /// One that is being written: whoever writes it rings when that is done.
    Torn,
    /// A new one, adopted as a whole.
    Taken {
        /// Number of the epoch.
        epoch: u64,
        /// Possessions of the instance by it.
        totals: Totals,
    },
    /// A new one, of which nothing was adopted.
    Refused {
        /// Number of the epoch.
        epoch: u64,
        /// The first thing that is wrong with it.
        refusal: Refusal,
    },
}

/// The last epoch that was looked at; held while one is adopted.
static LAST_EPOCH: Mutex<u64> = Mutex::new(0);

/// The possessions of this instance, with entries for its functions if it has looked for them.
struct Own<'a>(Option<&'a [live::Entry]>);

impl Holdings for Own<'_> {
    fn first_memory(&self) -> &[MemRange] {
        role::descriptor().ranges()
    }
    fn frames(&self) -> u64 {
        mem::total_frames()
    }
    fn limit(&self) -> u64 {
        role::descriptor().frame_limit()
    }
    fn granule(&self, first_frame: u64) -> Option<u64> {
        mem::added_granule(Frame(first_frame))
    }
    fn cpus(&self) -> usize {
        cpu::count()
    }
    fn cpu_limit(&self) -> usize {
        cpu::limit()
    }
    fn apic_id(&self, number: usize) -> Option<u32> {
        cpu_table::apic_id(number)
    }
    fn functions(&self) -> Option<&[live::Entry]> {
        self.0
    }
    fn places(&self) -> usize {
        role::descriptor().places()
    }
}

/// The table of the descriptor's dynamic part.
pub(crate) fn live_table() -> Table<'static> {
    // SAFETY: an instance's tables map the dynamic part there for as long as it runs; it consists
    // of atomics.
    let live: &Live = unsafe { &*core::ptr::with_exposed_provenance(LIVE) };
    Table::new(&live.counter, &live.count, &live.entries)
}

/// Room for a copy of the table; `None` without memory.
pub(crate) fn room_for_epoch() -> Option<Vec<live::Entry>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(MAX_ENTRIES).ok()?;
    copy.resize(MAX_ENTRIES, [0; WORDS]);
    Some(copy)
}

/// Checks an epoch against what this instance has; `functions` are entries for those that it has,
/// if it has looked for them.
pub(crate) fn check_epoch(
    entries: &[live::Entry],
    functions: Option<&[live::Entry]>,
) -> Result<Totals, Refusal> {
    live::check(entries, &Own(functions))
}

/// Callbacks of the kernel for changes of what its instance has.
#[derive(Clone, Copy, Debug)]
pub struct Adopters {
    /// Makes what it needs for a CPU that is about to come; false if memory is short.
    pub prepare_cpu: fn(CpuId) -> bool,
    /// Takes in that there are more CPUs. They come at any time from now on.
    pub cpus_added: fn(),
    /// Takes all threads off a CPU, which is the one with the highest number, and sees to it that
    /// no other one comes; then its idle thread calls `cpu::leave`. May return before that.
    pub drain_cpu: fn(CpuId),
    /// Takes in that there are fewer CPUs.
    pub cpus_removed: fn(),
    /// Moves pages out of memory that is to leave (`mem::leaving_index`), those that it can.
    pub move_pages: fn(),
    /// Writes back what caches hold of files and disks, so that they can give it up. May wait for
    /// disks.
    pub write_back: fn(),
    /// Takes a PCI function that has come, which can be mapped, and starts its driver. False
    /// without memory.
    pub add_function: fn(&FunctionPlace) -> bool,
    /// Takes the function of a number from its driver, and ends all mappings of it; if the flag is
    /// set, whoever uses it.
    pub remove_function: fn(u32, bool) -> Result<(), Refusal>,
}

/// Looks at the dynamic part of the descriptor, adopts what is new or refuses it, and answers. In
/// the supervisor, which has none, it is always the same.
pub fn adopt_epoch(adopters: &Adopters) -> Epoch {
    if role::is_supervisor() {
        return Epoch::Same;
    }
    let mut last = LAST_EPOCH.lock();
    // SAFETY: an instance's tables map the page of answers there for as long as it runs; it
    // consists of atomics.
    let answers: &Answers = unsafe { &*core::ptr::with_exposed_provenance(ANSWERS) };
    let table = live_table();
    if table.epoch() == Some(*last) {
        return Epoch::Same;
    }
    let mut copy = room_for_epoch().unwrap_or_default();
    let Copied::Whole { epoch, count } = table.read(&mut copy) else {
        return Epoch::Torn;
    };
    *last = epoch;
    let result = match usize::try_from(count) {
        _ if copy.is_empty() || faults::refuses_epochs() => Err(Refusal::NoMemory),
        Ok(count @ ..=MAX_ENTRIES) => adopt(&copy[..count], adopters),
        _ => Err(Refusal::Count),
    };
    let (verdict, outcome) = match result {
        Ok(totals) => (Verdict::Taken, Epoch::Taken { epoch, totals }),
        Err(refusal) => (Verdict::Refused(refusal), Epoch::Refused { epoch, refusal }),
    };
    let answer = Answer {
        epoch: epoch as u32,
        verdict,
    };
    answers.last.store(answer.to_word(), Ordering::Release);
    drop(last);
    ipi::ring_peer();
    outcome
}

/// Memory that must be free for each new CPU: several times what it needs, because what is made for
/// it by the allocator of small objects is not made fallibly.
const CPU_BYTES: usize = 512 << 10;

/// Makes what the CPUs of these numbers need. What was made stays, for when they come after all.
fn prepare_cpus(numbers: Range<usize>, adopters: &Adopters) -> Result<(), Refusal> {
    for number in numbers {
        let cpu = CpuId(number as u32);
        let made = mem::has_room(CPU_BYTES) && smp::prepare_cpu(cpu) && (adopters.prepare_cpu)(cpu);
        made.then_some(()).ok_or(Refusal::NoMemory)?;
        leave::expect(cpu);
    }
    Ok(())
}

/// How often caches are asked, at most, for one change: programs may fill them as fast.
const RECLAIMS: usize = 4;

/// Has memory leave so that frames `0..to` are left. With `reclaims`, caches give up what they can
/// if it cannot leave at once.
fn shrink(to: u64, reclaims: bool, adopters: &Adopters) -> Result<(), Refusal> {
    let mut left = if reclaims { RECLAIMS } else { 0 };
    loop {
        let Err(refusal) = mem::leaving::shrink(to, adopters.move_pages) else {
            return Ok(());
        };
        if left == 0 {
            return Err(refusal);
        }
        left -= 1;
        (adopters.write_back)();
        if !mem::reclaim_all() {
            return Err(refusal);
        }
    }
}

/// Has functions leave that an epoch does not list, and takes those that it lists and that are not
/// among the known ones. What is half done when this fails is undone by the next epoch.
fn follow_functions(
    entries: &[live::Entry],
    known: &[live::Entry],
    adopters: &Adopters,
) -> Result<(), Refusal> {
    let is_in = |entries, number| !live::function_entries(entries, number).is_empty();
    let is_forced = entries.contains(&live::FORCE);
    for number in live::function_numbers(known).filter(|number| !is_in(entries, *number)) {
        (adopters.remove_function)(number, is_forced)?;
        device::shut_out(number);
    }
    for place in device::places(entries).filter(|place| !is_in(known, place.number)) {
        if !device::let_in(&place) || !(adopters.add_function)(&place) {
            device::shut_out(place.number);
            return Err(Refusal::NoMemory);
        }
    }
    Ok(())
}

/// Adopts a whole epoch; returns what the instance has by it. CPUs that leave are gone when this
/// returns.
fn adopt(entries: &[live::Entry], adopters: &Adopters) -> Result<Totals, Refusal> {
    let known = device::entries().ok_or(Refusal::NoMemory)?;
    let totals = check_epoch(entries, Some(&known))?;
    // First of all, because only this can be left half done.
    prepare_cpus(cpu::count()..totals.cpus, adopters)?;
    follow_functions(entries, &known, adopters)?;
    let has = mem::total_frames();
    if totals.frames < has {
        let reclaims = entries.contains(&live::RECLAIM);
        shrink(totals.frames, reclaims, adopters)?;
    }
    let of_kind = |kind| entries.iter().filter(move |entry| live::is_of(entry, kind));
    // Of each range the part that is new.
    let ranges = of_kind(KIND_MEMORY).map(live::range);
    let new = ranges.filter_map(move |range| {
        let known = has.saturating_sub(range.first_frame);
        (known < range.count).then(|| MemRange {
            first_frame: range.first_frame + known,
            phys: range.phys + known * PAGE_SIZE as u64,
            count: range.count - known,
        })
    });
    // SAFETY: checked: whole granules that go on where the numbers end, within the limit, and no
    // memory that this instance has already. The supervisor has let go of them; the lock is held.
    if unsafe { mem::grow(new) }.is_err() {
        return Err(Refusal::NoMemory);
    }
    peers::adopt(of_kind(KIND_PEER));
    if totals.cpus > cpu::count() {
        of_kind(KIND_CPU)
            .skip(cpu::count())
            .for_each(|entry| cpu_table::push(live::place(entry).apic_id));
        (adopters.cpus_added)();
    } else if totals.cpus < cpu::count() {
        for number in (totals.cpus..cpu::count()).rev() {
            leave::send_away(CpuId(number as u32), adopters.drain_cpu);
            (adopters.cpus_removed)();
        }
    }
    Ok(totals)
}

/// Notes the moment at which the first program begins, once, and tells the supervisor that the
/// instance runs.
pub fn mark_first_user() {
    let window = window();
    let first = &window.status.first_user_tsc;
    if first
        .compare_exchange(0, timer::tsc(), Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        window.set_running();
        heartbeat::wake();
        ipi::ring_peer();
    }
}

/// Ends this instance: its status is `code`, and all its CPUs go to the park page.
pub fn exit(code: u32) -> ! {
    arch::stop_other_cpus();
    if let Some(window) = role::window() {
        window.status.exit_code.store(code, Ordering::Relaxed);
        window.set_state(State::Exited);
        ipi::ring_peer();
    }
    park::enter()
}
