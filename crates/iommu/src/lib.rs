//! Units that confine what functions of the machine read, write and interrupt: trusted, the
//! supervisor's alone (`docs/iommu.md`).
//!
//! [`start`] finds them (Intel's VT-d, AMD's AMD-Vi), and switches translation on with all
//! functions passing, and remapping of interrupts with those of the machine's lines. A function
//! that an instance gets is held back first ([`Domain::hold`]), and then reaches what that
//! instance's [`Domain`] maps, and interrupts by its own [`Interrupts`].
//!
//! | file | subject |
//! |---|---|
//! | `topology` | which function is behind which unit |
//! | `unit` | what units can be told, and what they have in common |
//! | `intel`, `amd` | one unit: its registers, its tables of functions, its queue |
//! | `domain` | what the functions of an instance reach |
//! | `interrupts` | what functions and lines interrupt |
//! | `faults` | what was refused |
#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

mod amd;
mod domain;
mod faults;
mod intel;
mod interrupts;
mod topology;
mod unit;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use acpi::{Dmar, Ivrs};
use amd::AmdVi;
pub use domain::{Attachment, Domain, NoDomain};
pub use faults::{Access, Refused, report_faults, rest_from_faults, take_faults};
use guard::device::{self, MmioRegion};
use guard::{partition, role};
use intel::Vtd;
use interrupts::Remapping;
pub use interrupts::{Interrupts, NotLed};
use iotable::{Format, Geometry};
use lfmutex::{Mutex, Once};
use pci::{Address, Function};
use topology::{Place, Topology};
pub use unit::Unanswered;
use unit::{Reach, Unit};

/// The domain of functions that pass untranslated. 0 is left out: units that remember absence use
/// it for that (VT-d 6.1).
const PASSING: u16 = 1;
/// Entries for interrupts of a function of an instance, as a power of two.
const INSTANCE_ORDER: u8 = partition::MAX_MESSAGES.ilog2() as u8;
/// Most domains of instances at a time.
const MAX_DOMAINS: usize = 256;

/// Units of the machine, all of which translate.
struct Machine {
    units: Vec<Box<dyn Unit>>,
    /// Functions that there are, by address.
    places: Vec<(Address, Place)>,
    /// Tables that all units can read.
    geometry: Geometry,
    /// Numbers of domains that are in use.
    domains: Mutex<[bool; MAX_DOMAINS]>,
    /// Remapping of interrupts, if the machine has that.
    remapping: Option<Remapping>,
    /// Functions that instances have of a kernel before this one, and nobody has taken over yet.
    kept: Mutex<Vec<KeptEntries>>,
}

/// A function that an instance has of a kernel before this one, with its entries for interrupts.
struct KeptEntries {
    function: Address,
    /// The first of so many as a function of an instance has, until somebody has them.
    entries: Option<u16>,
}

/// A function that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The function.
    pub function: &'a Function,
    /// Physical address of its page of configuration space.
    pub config: u64,
    /// Flag: it is no bridge, or one that passes on what comes from behind it in the name of who
    /// sends it.
    pub keeps_names: bool,
}

/// A function that an instance has of a kernel before this one.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The function.
    pub function: Address,
    /// Address of its interrupt messages, if it was told such.
    pub messages: Option<u64>,
}

static MACHINE: Once<Option<Machine>> = Once::new();

fn machine() -> Option<&'static Machine> {
    MACHINE.get()?.as_ref()
}

/// Reason why nothing confines a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No unit translates for it.
    NoUnit,
    /// The firmware has it use memory of its own.
    Reserved,
    /// Nothing confines what it interrupts.
    Interrupts,
    /// The function sends in the name of others.
    Shared,
    /// The unit of the function does not answer.
    Unanswered,
}

/// Number of units that translate.
#[must_use]
pub fn units() -> usize {
    machine().map_or(0, |machine| machine.units.len())
}

/// Looks whether something can confine a function.
///
/// # Errors
/// [`Obstacle`].
pub fn check(function: Address) -> Result<(), Obstacle> {
    confining_unit(function).map(drop)
}

/// The unit that can confine a function.
fn confining_unit(function: Address) -> Result<(&'static Machine, &'static dyn Unit), Obstacle> {
    let (machine, place, unit) = place(function).ok_or(Obstacle::NoUnit)?;
    if place.is_reserved {
        return Err(Obstacle::Reserved);
    }
    if !place.is_alone {
        return Err(Obstacle::Shared);
    }
    if !remaps_interrupts() {
        return Err(Obstacle::Interrupts);
    }
    Ok((machine, unit))
}

fn place(function: Address) -> Option<(&'static Machine, Place, &'static dyn Unit)> {
    let machine = machine()?;
    let index = machine
        .places
        .binary_search_by_key(&function, |(address, _)| *address);
    let (_, place) = machine.places[index.ok()?];
    Some((machine, place, &*machine.units[place.unit?]))
}

/// Finds the units and switches translation on: these functions, all that there are, pass
/// untranslated, and others reach nothing. Interrupts of lines are remapped from here on, and those
/// of functions have to be ([`Interrupts`]). Once, in the supervisor, before a function is given to
/// anybody. A unit that cannot be used is said in the log, and then none is.
///
/// Units that translate for a supervisor that starts again in place do so all the while. Functions
/// of `kept` go on as they are, until somebody takes them over ([`Attachment::take_over`]); others
/// that did not pass are held back ([`is_held`]).
///
/// # Panics
/// If units translate, and it is not known how.
pub fn start<'a>(functions: impl Iterator<Item = Found<'a>> + Clone, kept: &[Kept]) {
    MACHINE.call_once(|| match try_start(functions, kept) {
        Ok(machine) => machine,
        Err(error) => {
            assert!(
                !is_again() || error.is_of_before(),
                "the IOMMU cannot be taken over: {error}"
            );
            log::error!("no IOMMU is used: {error}");
            None
        }
    });
    REMAPS.call_once(|| machine().is_some_and(interrupts::switch_on));
}

/// Whether the supervisor has started again in place.
fn is_again() -> bool {
    partition::restarts() > 0
}

/// Whether a function that nobody has is held back: an instance of a kernel before this one had it.
#[must_use]
pub fn is_held(function: Address) -> bool {
    place(function).is_some_and(|(machine, _, unit)| {
        let reach = unit.reach(number_of(function), machine.geometry);
        matches!(reach, Some(Reach::Nothing))
    })
}

/// Has a function reach nothing that nobody has, whatever it reached; true if a unit has it.
///
/// # Errors
/// [`Unanswered`]: it may still reach that.
pub fn hold_back(function: Address) -> Result<bool, Unanswered> {
    place(function).map_or(Ok(false), |(_, _, unit)| {
        unit.block(number_of(function)).map(|()| true)
    })
}

/// Has a function pass again that [is held](is_held) back.
///
/// # Errors
/// [`Unanswered`]: it is held back, or passes.
///
/// # Safety
/// It was reset, and only who it is given to next has it reach memory.
pub unsafe fn pass(function: Address) -> Result<(), Unanswered> {
    place(function).map_or(Ok(()), |(_, _, unit)| {
        unit.change(number_of(function), PASSING, Reach::Everything)
    })
}

/// Ends what a kernel before this one had of units, and nobody has taken over: functions are
/// blocked, and memory of tables is free. Once, when all instances were taken over.
pub fn settle() {
    if let Some(machine) = machine() {
        for KeptEntries { function, .. } in machine.kept.lock().drain(..) {
            let blocked =
                place(function).map_or(Ok(()), |(_, _, unit)| unit.block(number_of(function)));
            blocked.expect("an IOMMU does not answer");
        }
    }
    if MACHINE.get().is_some() {
        // SAFETY: each entry of a unit's tables is that of a function which somebody has taken over
        // with its domain, or passes, or is blocked; units that are not used are off.
        unsafe { device::free_units_rest() };
    }
}

static REMAPS: Once<bool> = Once::new();

/// Whether interrupts are remapped.
fn remaps_interrupts() -> bool {
    REMAPS.get() == Some(&true)
}

/// Whether the interrupts of a function are remapped: one that is to send some has [`Interrupts`].
#[must_use]
pub fn is_remapped(function: Address) -> bool {
    remaps_interrupts() && place(function).is_some()
}

/// Reason why units are not used.
enum StartError {
    Dmar(acpi::DmarError),
    Ivrs(acpi::IvrsError),
    Unreadable,
    NoMemory,
    Vtd(u64, vtd::Unable),
    AmdVi(u64, amdvi::Unable),
    Unanswered(u64),
    Off(u64),
    Strange(u64),
}

impl StartError {
    /// Whether it was the same with the kernel before this one, whose units then were off.
    const fn is_of_before(&self) -> bool {
        matches!(
            self,
            Self::Dmar(_) | Self::Ivrs(_) | Self::Vtd(..) | Self::AmdVi(..) | Self::Off(_)
        )
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dmar(error) => write!(f, "ACPI's table DMAR makes no sense: {error}"),
            Self::Ivrs(error) => write!(f, "ACPI's table IVRS makes no sense: {error}"),
            Self::Unreadable => f.write_str("ACPI's table, or a unit, cannot be read"),
            Self::NoMemory => f.write_str("no memory for its tables"),
            Self::Vtd(at, unable) => write!(f, "the unit at {at:#x}: {unable}"),
            Self::AmdVi(at, unable) => write!(f, "the unit at {at:#x}: {unable}"),
            Self::Unanswered(at) => write!(f, "the unit at {at:#x} does not do as it is told"),
            Self::Off(at) => write!(f, "the unit at {at:#x} was off before"),
            Self::Strange(at) => {
                write!(
                    f,
                    "the unit at {at:#x} has tables that are not as they were left"
                )
            }
        }
    }
}

fn try_start<'a>(
    functions: impl Iterator<Item = Found<'a>> + Clone,
    kept: &[Kept],
) -> Result<Option<Machine>, StartError> {
    let Some((at, len)) = device::remapping_table() else {
        return Ok(None);
    };
    if role::cmdline_value("iommu") == Some("off") {
        log::warn!("the IOMMU is not used, as the command line says");
        return Ok(None);
    }
    let bytes = read_table(at, len)?;
    let (topology, mut units) = find_units(&bytes, &functions)?;
    if let Some(unit) = units.iter().find(|unit| !unit.goes_on())
        && !kept.is_empty()
    {
        return Err(StartError::Off(unit.at()));
    }
    let is_kept = |address| kept.iter().any(|kept| kept.function == address);
    let places = places(&topology, &functions)?;
    for (address, place) in &places {
        if let Some(unit) = place.unit
            && !is_kept(*address)
        {
            let added = units[unit].add(place.sender.number);
            added.map_err(|()| StartError::NoMemory)?;
        }
    }
    let abilities = || units.iter().map(|unit| unit.abilities());
    let geometry = Geometry {
        format: match topology {
            Topology::Dmar(_) => Format::Intel,
            Topology::Ivrs(_) => Format::Amd,
        },
        four_levels: abilities().all(|unit| unit.four_levels),
        large_pages: abilities().all(|unit| unit.large_pages),
    };
    if !geometry.four_levels
        && let Some(unit) = units.iter().find(|unit| !unit.abilities().three_levels)
    {
        return Err(StartError::Vtd(unit.at(), vtd::Unable::Levels));
    }
    for (number, unit) in units.iter().enumerate() {
        if unit.goes_on() {
            unit.hold_others(&|function| {
                let mut known = places
                    .iter()
                    .filter(|(_, place)| place.unit == Some(number));
                known.any(|(_, place)| place.sender.number == function)
            });
            let goes_on = unit.go_on();
            goes_on.map_err(|Unanswered| StartError::Unanswered(unit.at()))?;
        } else if unit.switch_on().is_err() {
            units[..=number].iter().for_each(|unit| unit.switch_off());
            return Err(StartError::Unanswered(unit.at()));
        }
    }
    log::info!(
        "IOMMU: {} units ({}) translate for {} PCI functions",
        units.len(),
        match topology {
            Topology::Dmar(_) => "VT-d",
            Topology::Ivrs(_) => "AMD-Vi",
        },
        places.len()
    );
    let was_remapping = units
        .iter()
        .any(|unit| unit.goes_on() && unit.is_remapping());
    let remapping = match Remapping::plan(&topology, &mut units, &functions, !kept.is_empty()) {
        Ok(remapping) => Some(remapping),
        // What goes on to be remapped cannot be told where to go.
        Err(_) if was_remapping => return Err(StartError::NoMemory),
        Err(unable) => {
            log::warn!("interrupts of devices are not confined: {unable}");
            None
        }
    };
    let entries = kept_entries(&units, &places, kept)?;
    units.iter().for_each(|unit| unit.clear_free_entries());
    let most = units.iter().map(|unit| unit.abilities().domains).min();
    let most = most.unwrap_or(0) as usize;
    let used = core::array::from_fn(|number| number <= usize::from(PASSING) || number >= most);
    Ok(Some(Machine {
        units,
        places,
        geometry,
        domains: Mutex::new(used),
        remapping,
        kept: Mutex::new(entries),
    }))
}

/// Has units keep the entries for interrupts that functions were told of.
fn kept_entries(
    units: &[Box<dyn Unit>],
    places: &[(Address, Place)],
    kept: &[Kept],
) -> Result<Vec<KeptEntries>, StartError> {
    let mut all = Vec::new();
    (all.try_reserve_exact(kept.len())).map_err(|_| StartError::NoMemory)?;
    for Kept { function, messages } in kept {
        let at = places.binary_search_by_key(function, |(address, _)| *address);
        let place = at.ok().map(|at| places[at].1);
        let entries = place.and_then(|place| {
            let unit = &units[place.unit?];
            let first = unit.message_entry((*messages)?)?;
            let table = unit.interrupts(place.sender.number)?;
            table.take_at(first, INSTANCE_ORDER).then_some(first)
        });
        all.push(KeptEntries {
            function: *function,
            entries,
        });
    }
    Ok(all)
}

/// Reads ACPI's table, which is in no memory of the supervisor's.
fn read_table(at: u64, len: usize) -> Result<Vec<u8>, StartError> {
    let mut bytes = Vec::new();
    (bytes.try_reserve_exact(len)).map_err(|_| StartError::NoMemory)?;
    // SAFETY: firmware's memory, where it has left the table; it is only read.
    let region = unsafe { device::map(at, len) };
    let region: MmioRegion = region.map_err(|_| StartError::Unreadable)?;
    bytes.extend((0..len).map(|offset| region.read::<u8>(offset)));
    // SAFETY: what `map` has returned, and the only copy.
    unsafe { device::unmap(region) };
    Ok(bytes)
}

/// Finds the units that a table names, of either maker. They are as they were.
fn find_units<'a, 'b>(
    table: &'b [u8],
    functions: &(impl Iterator<Item = Found<'a>> + Clone),
) -> Result<(Topology<'b>, Vec<Box<dyn Unit>>), StartError> {
    let mut units: Vec<Box<dyn Unit>> = Vec::new();
    let mut add = |unit| {
        units.try_reserve(1).map_err(|_| StartError::NoMemory)?;
        units.push(unit);
        Ok(())
    };
    if table.starts_with(b"IVRS") {
        let ivrs = Ivrs::parse(table).map_err(StartError::Ivrs)?;
        for unit in ivrs.units() {
            let number = u32::from(unit.segment) << 16 | u32::from(unit.function);
            let itself = Address::from_number(number);
            let mut all = functions.clone();
            let config = all.find(|found| found.function.address == itself);
            let buses = functions.clone().map(|found| found.function.address.bus);
            let buses = buses.max().map_or(0, usize::from) + 1;
            let unit = AmdVi::new(&unit, config.map(|found| found.config), buses, is_again())?;
            add(Box::new(unit))?;
        }
        return Ok((Topology::Ivrs(ivrs), units));
    }
    let dmar = Dmar::parse(table).map_err(StartError::Dmar)?;
    for unit in dmar.units() {
        add(Box::new(Vtd::new(
            unit.registers,
            unit.segment,
            is_again(),
        )?))?;
    }
    Ok((Topology::Dmar(dmar), units))
}

/// The place of each function.
fn places<'a>(
    topology: &Topology<'_>,
    functions: &(impl Iterator<Item = Found<'a>> + Clone),
) -> Result<Vec<(Address, Place)>, StartError> {
    let mut places = Vec::new();
    for Found { function, .. } in functions.clone() {
        places.try_reserve(1).map_err(|_| StartError::NoMemory)?;
        places.push((function.address, topology.place(function, functions)));
    }
    places.sort_unstable_by_key(|(address, _)| *address);
    Ok(places)
}

/// Number of a function in its segment, as units have it.
fn number_of(function: Address) -> u16 {
    u16::from(function.bus) << 8 | u16::from(function.devfn())
}
