//! PCI functions of an instance (`docs/devices.md`): given before its start or while it runs,
//! listed in the dynamic part of its descriptor, and taken back while it runs or at its end, before
//! its memory is.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use abi::descriptor::{Descriptor, MemRange};
use abi::layout::PAGE_SIZE;
use abi::live::{self, Entry, Holdings, Refusal};
use abi::messages::MAX_NAMES;

use super::{Partition, quarantine};
use crate::device::{self, FunctionPlace};
use crate::irq;
use crate::mem::phys;
use crate::paging::build::Run;

/// Most functions of an instance.
pub const MAX_FUNCTIONS: usize = 8;

/// Most interrupt messages of a function of an instance, where a unit remaps them: so many that all
/// functions together have as many vectors as a CPU has for devices.
pub const MAX_MESSAGES: u8 = 16;

const _: () = assert!(MAX_FUNCTIONS * MAX_MESSAGES as usize <= irq::DEVICE_VECTORS);

/// A function of the machine that an instance has, or is to have. It is the crate `devices` that
/// has such.
///
/// # Safety
/// At the addresses of [`Self::place`] this function answers, and nothing else of the machine, as
/// long as the value lives. It reaches no memory until [`Self::hand_over`] is called, unless it is
/// one that an instance of a supervisor before this one has, nor after [`Self::stop`] has returned
/// true.
pub unsafe trait Function: Send + Sync {
    /// The function's place.
    fn place(&self) -> &FunctionPlace;

    /// Has its interrupt messages be vectors from this one on, [`MAX_MESSAGES`] of them, if a unit
    /// remaps them. Called before its place is looked at.
    fn set_vectors(&mut self, first: u8);

    /// An instance has it from here on, and takes its messages with the CPU of this APIC id.
    fn hand_over(&self, apic_id: u32);

    /// Takes it from an instance none of whose CPUs run, or which has let go of it, so that it
    /// reaches no memory. False if that is not proven; then it may be tried again. Sleeps; one of
    /// several does it at a time.
    fn stop(&self) -> bool;

    /// Has it reach no memory, as far as that can be had without its help, as the instance that has
    /// it could not reset it. That proves nothing of it: [`Self::stop`] does.
    fn hold_back(&self);

    /// The domain that confines it; `None` if nothing does.
    fn domain(&self) -> Option<&dyn Domain>;

    /// Whether the messages that its place tells, if it tells such, go to the CPU of this APIC id.
    fn is_led(&self, apic_id: u32) -> bool;
}

/// Memory that confined functions reach, by addresses of their own. It is the crate `iommu` that
/// has such.
///
/// # Safety
/// Functions of the domain reach what was mapped, and nothing else. When [`Self::unmap`] has
/// returned true they do not reach that any more, and what they wrote there has arrived.
pub unsafe trait Domain: Send {
    /// A number that no other domain has meanwhile.
    fn id(&self) -> u64;

    /// Has addresses from `at` on stand for memory from `phys` on, whole granules. False, with some
    /// of it mapped, if there is no memory for tables.
    ///
    /// # Safety
    /// It is memory of the instance whose functions the domain confines, and is unmapped before it
    /// is anybody else's, or all functions of the domain are stopped before.
    unsafe fn map(&self, at: u64, phys: u64, bytes: u64) -> bool;

    /// Has addresses stand for nothing. False if it is not proven that functions know that; then it
    /// may be tried again.
    fn unmap(&self, at: u64, bytes: u64) -> bool;

    /// Whether addresses stand for what these runs say, ascending, and for nothing else: address,
    /// memory and bytes of each.
    fn maps_only(&self, runs: &mut dyn Iterator<Item = (u64, u64, u64)>) -> bool;
}

/// Functions of an instance, by number.
#[derive(Default)]
pub(super) struct Functions(pub(super) Vec<Assigned>);

pub(super) struct Assigned {
    pub(super) function: Arc<dyn Function>,
    /// Flag: the instance is not told of it any more.
    pub(super) leaves: bool,
    /// Place in quarantine, for what may wait for it.
    _room: quarantine::Room,
}

/// Reason why an instance does not get a function. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignError {
    /// The instance has as many as it may.
    Full,
    /// The function's place makes no sense beside what the machine and the instance have.
    Place(Refusal),
    /// Another function of the instance is confined and this one is not, or the other way, or by
    /// another domain.
    Mixed,
    /// The supervisor is short of memory.
    NoMemory,
}

impl fmt::Display for AssignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "the instance has {MAX_FUNCTIONS}"),
            Self::Place(refusal) => write!(f, "its registers: {refusal}"),
            Self::Mixed => f.write_str("its others are confined otherwise"),
            Self::NoMemory => f.write_str("no memory"),
        }
    }
}

impl core::error::Error for AssignError {}

/// Possessions of an instance when it was created: what an epoch with functions is compared with.
struct Staged<'a>(&'a Descriptor);

impl Holdings for Staged<'_> {
    fn first_memory(&self) -> &[MemRange] {
        self.0.ranges()
    }
    fn frames(&self) -> u64 {
        self.0.total_frames()
    }
    fn limit(&self) -> u64 {
        self.0.frame_limit()
    }
    fn granule(&self, _: u64) -> Option<u64> {
        None
    }
    fn cpus(&self) -> usize {
        self.0.cpus().len()
    }
    fn cpu_limit(&self) -> usize {
        self.0.cpu_limit()
    }
    fn apic_id(&self, number: usize) -> Option<u32> {
        self.0.cpus().get(number).map(|cpu| cpu.apic_id)
    }
    fn functions(&self) -> Option<&[Entry]> {
        None
    }
    fn places(&self) -> usize {
        self.0.places()
    }
}

impl Functions {
    /// Entries for all of them in a descriptor's dynamic part, but for those that leave.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let all = self.0.iter().filter(|given| !given.leaves);
        all.flat_map(|given| given.function.place().entries())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The domain that confines them all, if they are confined.
    fn domain(&self) -> Option<&dyn Domain> {
        self.0.first()?.function.domain()
    }

    /// Whether there is one that the instance is not told of any more.
    pub(super) fn does_one_leave(&self) -> bool {
        self.0.iter().any(|given| given.leaves)
    }

    /// Has them reach memory that the instance numbers like that. False, with nothing changed that
    /// the instance was told of, if there is no memory for tables.
    pub(super) fn reach(&self, runs: impl Iterator<Item = Run>) -> bool {
        let Some(domain) = self.domain() else {
            return true;
        };
        let mut runs = runs;
        runs.all(|run| {
            let bytes = run.count * PAGE_SIZE as u64;
            // SAFETY: these are the functions of a partition, and the runs are of its memory, which
            // it takes back when they have left it, or were stopped.
            unsafe { domain.map(device::by_number(run.first), phys::of(run.at).0, bytes) }
        })
    }

    /// Has them not reach these frames any more. False if that is not proven.
    pub(super) fn leave(&self, frames: Range<u64>) -> bool {
        let bytes = frames.end.saturating_sub(frames.start) * PAGE_SIZE as u64;
        let domain = self.domain().filter(|_| bytes > 0);
        domain.is_none_or(|domain| domain.unmap(device::by_number(frames.start), bytes))
    }

    /// Numbers of all of them.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|given| given.function.place().number)
    }

    /// Adds one, in the order of the numbers. False without memory.
    pub(super) fn add(&mut self, function: Arc<dyn Function>, room: quarantine::Room) -> bool {
        let number = function.place().number;
        let index = (self.0).partition_point(|given| given.function.place().number < number);
        let is_room = self.0.try_reserve(1).is_ok();
        if is_room {
            let given = Assigned {
                function,
                leaves: false,
                _room: room,
            };
            self.0.insert(index, given);
        }
        is_room
    }

    /// The instance has them from here on; its first CPU has this APIC id.
    pub(super) fn hand_over(&self, apic_id: u32) {
        let all = self.0.iter();
        all.for_each(|given| given.function.hand_over(apic_id));
    }

    fn position(&self, number: u32) -> Option<usize> {
        let mut all = self.0.iter();
        all.position(|given| given.function.place().number == number)
    }

    /// The function of a number.
    pub(super) fn get(&self, number: u32) -> Option<&Arc<dyn Function>> {
        self.position(number).map(|index| &self.0[index].function)
    }

    /// Has the instance be told of the function of a number, or not any more.
    pub(super) fn set_leaving(&mut self, number: u32, leaves: bool) {
        if let Some(index) = self.position(number) {
            self.0[index].leaves = leaves;
        }
    }

    /// Forgets the function of a number.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(index) = self.position(number) {
            self.0.remove(index);
        }
    }

    /// The first of [`MAX_MESSAGES`] vectors that no function has.
    fn free_vectors(&self) -> u8 {
        let is_taken = |first: u8| {
            let mut all = self.0.iter();
            all.any(|given| {
                let messages = given.function.place().messages;
                messages.is_some_and(|messages| messages.vector == first)
            })
        };
        let mut blocks = (irq::FIRST_DEVICE_VECTOR..).step_by(MAX_MESSAGES.into());
        blocks
            .find(|first| !is_taken(*first))
            .expect("there is one for each of `MAX_FUNCTIONS`")
    }

    /// Stops and resets all of them that do not prove that they are; returns how many still do not.
    /// Sleeps.
    pub(super) fn stop(&mut self) -> usize {
        self.0.retain(|given| !given.function.stop());
        self.0.len()
    }
}

impl Partition {
    /// Gives a function to the instance. If it was not started yet, and never is, the function is
    /// free again with the partition. One that runs gets it by [`Self::insert`].
    ///
    /// # Errors
    /// [`AssignError`]; the function is dropped.
    pub fn assign(&mut self, function: Box<dyn Function>) -> Result<(), AssignError> {
        if self.functions.len() >= MAX_FUNCTIONS {
            return Err(AssignError::Full);
        }
        let mut function = function;
        function.set_vectors(self.functions.free_vectors());
        let id = |domain: Option<&dyn Domain>| domain.map(Domain::id);
        if !self.functions.is_empty() && id(self.functions.domain()) != id(function.domain()) {
            return Err(AssignError::Mixed);
        }
        let place = function.place();
        let registers = place.registers.iter().map(|of| (of.phys, of.bytes));
        for (at, bytes) in registers.chain([(place.config, PAGE_SIZE as u64)]) {
            device::check(at, bytes).map_err(|_| AssignError::Place(Refusal::Overlap(0)))?;
        }
        let number = place.number;
        let room = quarantine::Room::take().ok_or(AssignError::NoMemory)?;
        if !self.functions.add(Arc::from(function), room) {
            return Err(AssignError::NoMemory);
        }
        let mut checked = self.check_table();
        let is_first = self.functions.len() == 1;
        if is_first
            && checked.is_ok()
            && !self.functions.reach(self.granules().runs_of(0..u64::MAX))
        {
            checked = Err(AssignError::NoMemory);
        }
        if checked.is_err() {
            self.functions.remove(number);
        }
        checked
    }

    /// Takes a function over that the instance has had of the supervisor before this one.
    ///
    /// # Panics
    /// Without memory for that.
    pub fn adopt_function(&mut self, function: Box<dyn Function>) {
        let room = quarantine::Room::take();
        let function = Arc::from(function);
        let is_added = room.is_some_and(|room| self.functions.add(function, room));
        assert!(is_added, "no memory to adopt a function");
    }

    /// Whether all functions that were taken over reach the instance's memory and nothing else, by
    /// the addresses that it uses, and interrupt its first CPU, as it was told; or are confined by
    /// nothing, and it knows that.
    #[must_use]
    pub fn functions_agree(&self) -> bool {
        let all = &self.functions.0;
        let id = |domain: Option<&dyn Domain>| domain.map(Domain::id);
        let domain = self.functions.domain();
        let Some(first) = self.cpus.first().filter(|_| !all.is_empty()) else {
            return true;
        };
        let are_alike = all.iter().all(|given| {
            let function = &given.function;
            id(function.domain()) == id(domain) && function.is_led(first.apic_id)
        });
        let is_told =
            (all.iter()).all(|given| given.function.place().messages.is_some() == domain.is_some());
        let runs = self.granules().runs_of(0..u64::MAX);
        let mut runs = runs.map(|run| {
            let bytes = run.count * PAGE_SIZE as u64;
            (device::by_number(run.first), phys::of(run.at).0, bytes)
        });
        are_alike && is_told && domain.is_none_or(|domain| domain.maps_only(&mut runs))
    }

    /// Checks what an epoch with the functions would be, as the instance will: beside its first
    /// memory, and what it has besides now.
    fn check_table(&self) -> Result<(), AssignError> {
        let mut entries = Vec::new();
        let first = self.staged.total_frames();
        let added = || self.granules().runs_of(first..u64::MAX);
        let count = self.cpus.len() + self.functions.entries().count() + added().count();
        if count + MAX_NAMES > live::MAX_ENTRIES {
            return Err(AssignError::NoMemory);
        }
        (entries.try_reserve_exact(count)).map_err(|_| AssignError::NoMemory)?;
        let cpus = (0..).zip(&self.cpus);
        entries.extend(cpus.map(|(number, cpu)| live::cpu(number, cpu.entry())));
        entries.extend(self.functions.entries());
        entries.extend(added().map(|run| {
            live::memory(MemRange {
                first_frame: run.first,
                phys: phys::of(run.at).0,
                count: run.count,
            })
        }));
        live::check(&entries, &Staged(&self.staged))
            .map(drop)
            .map_err(AssignError::Place)
    }
}
