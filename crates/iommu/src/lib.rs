//! Units that confine what functions of the machine read, write and interrupt: trusted, the
//! supervisor's alone (`docs/iommu.md`).
//!
//! [`start`] finds them (Intel's VT-d), and switches translation on with all functions passing, and
//! remapping of interrupts with those of the machine's lines. A function that an instance gets is
//! held back first ([`Domain::hold`]), and then reaches what that instance's [`Domain`] maps, and
//! interrupts by its own [`Interrupts`].
//!
//! | file | subject |
//! |---|---|
//! | `unit` | one unit: its registers, its tables of functions, its queue |
//! | `domain` | what the functions of an instance reach |
//! | `interrupts` | what functions and lines interrupt |
//! | `faults` | what was refused |
#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

mod domain;
mod faults;
mod interrupts;
mod unit;

use alloc::vec::Vec;
use core::fmt;

use acpi::Dmar;
pub use domain::{Attachment, Domain, NoDomain};
pub use faults::{Refused, report_faults, rest_from_faults, take_faults};
use guard::device::{self, MmioRegion};
use guard::role;
use interrupts::Remapping;
pub use interrupts::{Interrupts, NotLed};
use lfmutex::{Mutex, Once};
use pci::{Address, Function};
pub use unit::Unanswered;
use unit::Unit;
use vtd::{Geometry, Source};

/// The domain of functions that pass untranslated. 0 is left out: units that remember absence use
/// it for that (VT-d 6.1).
const PASSING: u16 = 1;
/// Most domains of instances at a time.
const MAX_DOMAINS: usize = 256;

/// Units of the machine, all of which translate.
struct Machine {
    units: Vec<Unit>,
    /// Functions that there are, by address.
    places: Vec<(Address, Place)>,
    /// Tables that all units can read.
    geometry: Geometry,
    /// Numbers of domains that are in use.
    domains: Mutex<[bool; MAX_DOMAINS]>,
    /// Remapping of interrupts, if the machine has that.
    remapping: Option<Remapping>,
}

/// Place of a function: the unit that it is behind, and the name that it has there.
#[derive(Clone, Copy, Debug)]
struct Place {
    unit: Option<usize>,
    is_reserved: bool,
    source: Source,
}

/// A function that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The function.
    pub function: &'a Function,
    /// Flag: it is no bridge, or one that passes on what comes from behind it in the name of who
    /// sends it.
    pub keeps_names: bool,
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
fn confining_unit(function: Address) -> Result<(&'static Machine, &'static Unit), Obstacle> {
    let (machine, place, unit) = place(function).ok_or(Obstacle::NoUnit)?;
    if place.is_reserved {
        return Err(Obstacle::Reserved);
    }
    if !remaps_interrupts() {
        return Err(Obstacle::Interrupts);
    }
    Ok((machine, unit))
}

fn place(function: Address) -> Option<(&'static Machine, Place, &'static Unit)> {
    let machine = machine()?;
    let index = machine
        .places
        .binary_search_by_key(&function, |(address, _)| *address);
    let (_, place) = machine.places[index.ok()?];
    Some((machine, place, &machine.units[place.unit?]))
}

/// Finds the units and switches translation on: these functions, all that there are, pass
/// untranslated, and others reach nothing. Interrupts of lines are remapped from here on, and those
/// of functions have to be ([`Interrupts`]). Once, in the supervisor, before a function is given to
/// anybody. A unit that cannot be used is said in the log, and then none is.
pub fn start<'a>(functions: impl Iterator<Item = Found<'a>> + Clone) {
    MACHINE.call_once(|| match try_start(functions) {
        Ok(machine) => machine,
        Err(error) => {
            log::error!("no IOMMU is used: {error}");
            None
        }
    });
    REMAPS.call_once(|| machine().is_some_and(interrupts::switch_on));
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
    Table(acpi::DmarError),
    Unreadable,
    NoMemory,
    Unable(u64, vtd::Unable),
    Unanswered(u64),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => write!(f, "ACPI's table DMAR makes no sense: {error}"),
            Self::Unreadable => f.write_str("ACPI's table DMAR cannot be read"),
            Self::NoMemory => f.write_str("no memory for its tables"),
            Self::Unable(at, unable) => write!(f, "the unit at {at:#x}: {unable}"),
            Self::Unanswered(at) => write!(f, "the unit at {at:#x} does not do as it is told"),
        }
    }
}

fn try_start<'a>(
    functions: impl Iterator<Item = Found<'a>> + Clone,
) -> Result<Option<Machine>, StartError> {
    let Some((at, len)) = device::remapping_table() else {
        return Ok(None);
    };
    if role::cmdline_value("iommu") == Some("off") {
        log::warn!("the IOMMU is not used, as the command line says");
        return Ok(None);
    }
    let bytes = read_table(at, len)?;
    let dmar = Dmar::parse(&bytes).map_err(StartError::Table)?;
    let mut units: Vec<Unit> = Vec::new();
    for unit in dmar.units() {
        units.try_reserve(1).map_err(|_| StartError::NoMemory)?;
        units.push(Unit::new(unit.registers, unit.segment)?);
    }
    let places = places(&dmar, functions.clone())?;
    for (address, place) in &places {
        if let Some(unit) = place.unit {
            (units[unit].add(*address)).map_err(|_| StartError::NoMemory)?;
        }
    }
    let geometry = Geometry {
        four_levels: units.iter().all(Unit::has_four_levels),
        large_pages: units.iter().all(|unit| unit.abilities().large_pages),
    };
    if !geometry.four_levels
        && let Some(unit) = units.iter().find(|unit| !unit.abilities().three_levels)
    {
        return Err(StartError::Unable(unit.at(), vtd::Unable::Levels));
    }
    for (number, unit) in units.iter().enumerate() {
        if unit.switch_on().is_err() {
            units[..=number].iter().for_each(Unit::switch_off);
            return Err(StartError::Unanswered(unit.at()));
        }
    }
    log::info!(
        "IOMMU: {} units (VT-d) translate for {} PCI functions",
        units.len(),
        places.len()
    );
    let remapping = match Remapping::plan(&dmar, &mut units, buses_of(&functions, 0)) {
        Ok(remapping) => Some(remapping),
        Err(unable) => {
            log::warn!("interrupts of devices are not confined: {unable}");
            None
        }
    };
    let most = units.iter().map(|unit| unit.abilities().domains).min();
    let most = most.unwrap_or(0) as usize;
    let used = core::array::from_fn(|number| number <= usize::from(PASSING) || number >= most);
    Ok(Some(Machine {
        units,
        places,
        geometry,
        domains: Mutex::new(used),
        remapping,
    }))
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

/// Finds the buses behind a bridge of a segment, by bus and place on it.
fn buses_of<'a>(
    functions: &(impl Iterator<Item = Found<'a>> + Clone),
    segment: u16,
) -> impl Fn(u8, u8) -> Option<(u8, u8)> {
    move |bus, devfn| {
        let mut all = functions.clone().map(|found| found.function);
        let bridge = all.find(|bridge| {
            let at = bridge.address;
            (at.segment, at.bus, at.devfn()) == (segment, bus, devfn)
        });
        bridge?.buses
    }
}

/// The place of each function.
fn places<'a>(
    dmar: &Dmar<'_>,
    functions: impl Iterator<Item = Found<'a>> + Clone,
) -> Result<Vec<(Address, Place)>, StartError> {
    let mut places = Vec::new();
    for Found { function, .. } in functions.clone() {
        let Address { segment, bus, .. } = function.address;
        let place = (bus, function.address.devfn());
        let buses = buses_of(&functions, segment);
        places.try_reserve(1).map_err(|_| StartError::NoMemory)?;
        places.push((
            function.address,
            Place {
                unit: dmar.unit_of(segment, place, &buses),
                is_reserved: dmar.is_reserved(segment, place, &buses),
                source: source_of(function, &functions),
            },
        ));
    }
    places.sort_unstable_by_key(|(address, _)| *address);
    Ok(places)
}

/// Name in which what a function sends comes to its unit.
fn source_of<'a>(
    function: &Function,
    functions: &(impl Iterator<Item = Found<'a>> + Clone),
) -> Source {
    let mut source = Source::Function(number_of(function.address));
    let mut upstream = function.upstream;
    // No more steps than there are functions, whatever they say.
    for _ in functions.clone() {
        let bridge = functions
            .clone()
            .find(|found| Some(found.function.address) == upstream);
        let Some(bridge) = bridge else { break };
        if !bridge.keeps_names {
            source = Source::Buses {
                first: bridge.function.address.bus,
                last: function.address.bus,
            };
        }
        upstream = bridge.function.upstream;
    }
    source
}

/// Number of a function in its segment, as units have it.
fn number_of(function: Address) -> u16 {
    u16::from(function.bus) << 8 | u16::from(function.devfn())
}
