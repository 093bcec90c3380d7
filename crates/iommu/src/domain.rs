//! What the functions of an instance reach.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use guard::device::DmaBlock;
use guard::partition;
use iotable::{GRANULE, Tables, Walk};
use lfmutex::Mutex;
use pci::Address;

use crate::unit::{self, Reach, Unanswered, Unit};
use crate::{Machine, Obstacle, confining_unit, machine, number_of};

/// Addresses that the functions of an instance may read and write, and the memory that they stand
/// for: nothing at first. Clones are the same one, which is there as long as a function is held by
/// it.
#[derive(Clone)]
pub struct Domain(Arc<Inner>);

struct Inner {
    machine: &'static Machine,
    number: u16,
    /// Address of the root of its tables.
    root: u64,
    tables: Mutex<Pages>,
}

/// The pages of a domain's tables, by address. There is one for each GiB of memory, or with units
/// that know no large pages one for each granule.
struct Pages {
    pages: Vec<DmaBlock>,
    is_coherent: bool,
}

/// Reason why there is no domain more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDomain {
    /// There is no unit.
    NoUnit,
    /// The units tell no more of them apart.
    Numbers,
    /// The supervisor is short of memory.
    NoMemory,
}

impl Pages {
    fn of(machine: &Machine) -> Self {
        Self {
            pages: Vec::new(),
            is_coherent: (machine.units.iter()).all(|unit| unit.abilities().is_coherent),
        }
    }

    fn add(&mut self) -> Option<u64> {
        self.pages.try_reserve(1).ok()?;
        Some(self.insert(unit::page()?))
    }

    /// Adds a page, for which there is room.
    fn insert(&mut self, page: DmaBlock) -> u64 {
        let at = page.bus_address();
        let index = self.pages.partition_point(|other| other.bus_address() < at);
        self.pages.insert(index, page);
        at
    }

    /// Adds a page of a kernel before this one, as it is, for which there is room. False if it is
    /// none, or somebody has it.
    fn take_over(&mut self, at: u64) -> bool {
        let page = unit::page_of_before(at);
        page.map(|page| self.insert(page)).is_some()
    }

    fn page(&self, at: u64) -> &DmaBlock {
        let index = self.pages.binary_search_by_key(&at, DmaBlock::bus_address);
        &self.pages[index.expect("a table's entries name its own")]
    }
}

impl Tables for Pages {
    fn table(&mut self) -> Option<u64> {
        self.add()
    }

    fn load(&self, table: u64, index: usize) -> u64 {
        let entry = self.page(table).load64(index * 8);
        entry.expect("a table has 512 entries")
    }

    fn store(&mut self, table: u64, index: usize, entry: u64) {
        unit::store(self.page(table), index * 8, entry, self.is_coherent);
    }
}

/// Tables of a kernel before this one, which are taken over as they are come by.
struct TakeOver<'a>(&'a mut Pages);

impl Walk for TakeOver<'_> {
    fn enter(&mut self, table: u64) -> bool {
        let room = self.0.pages.try_reserve(1);
        room.expect("no memory to take over tables of a domain");
        self.0.take_over(table)
    }

    fn load(&self, table: u64, index: usize) -> u64 {
        Tables::load(self.0, table, index)
    }

    fn granule(&mut self, _: u64, _: u64) -> bool {
        true
    }
}

/// A comparison of tables with granules of devices' addresses, and of the machine's, ascending.
struct Comparison<'a> {
    tables: &'a Pages,
    wanted: &'a mut dyn Iterator<Item = (u64, u64)>,
}

impl Walk for Comparison<'_> {
    fn enter(&mut self, _: u64) -> bool {
        true
    }

    fn load(&self, table: u64, index: usize) -> u64 {
        Tables::load(self.tables, table, index)
    }

    fn granule(&mut self, at: u64, phys: u64) -> bool {
        self.wanted.next() == Some((at, phys))
    }
}

impl Domain {
    /// A domain in which functions reach nothing.
    ///
    /// # Errors
    /// [`NoDomain`].
    pub fn new() -> Result<Self, NoDomain> {
        let machine = machine().ok_or(NoDomain::NoUnit)?;
        let mut tables = Pages::of(machine);
        let root = tables.add().ok_or(NoDomain::NoMemory)?;
        let number = {
            let mut used = machine.domains.lock();
            let free = used.iter().position(|is_used| !is_used);
            let free = free.ok_or(NoDomain::Numbers)?;
            used[free] = true;
            free as u16
        };
        let tables = Mutex::new(tables);
        Ok(Self(Arc::new(Inner {
            machine,
            number,
            root,
            tables,
        })))
    }

    /// The domain of that number whose tables of a kernel before this one have their root there.
    /// If there is no such one, the pages of what looks like its tables: they may be used until no
    /// entry names them.
    ///
    /// # Panics
    /// Without memory for lists of them.
    fn taken_over(machine: &'static Machine, number: u16, root: u64) -> Result<Self, Pages> {
        let mut tables = Pages::of(machine);
        if !iotable::walk(&mut TakeOver(&mut tables), root, machine.geometry) {
            return Err(tables);
        }
        {
            let mut used = machine.domains.lock();
            match used.get_mut(usize::from(number)) {
                Some(used) if !*used => *used = true,
                _ => return Err(tables),
            }
        }
        let tables = Mutex::new(tables);
        Ok(Self(Arc::new(Inner {
            machine,
            number,
            root,
            tables,
        })))
    }

    /// Whether its addresses stand for what these granules say, ascending, and for nothing else.
    fn is_exactly(&self, wanted: &mut dyn Iterator<Item = (u64, u64)>) -> bool {
        let Inner { machine, root, .. } = &*self.0;
        let tables = &*self.0.tables.lock();
        let is_like = iotable::walk(&mut Comparison { tables, wanted }, *root, machine.geometry);
        is_like && wanted.next().is_none()
    }

    /// Holds a function back, which passed until now: when this returns it reaches nothing, and
    /// what it has written has arrived.
    ///
    /// # Errors
    /// Nothing can confine it, or its unit did not answer: then it reaches nothing, or what it did.
    pub fn hold(&self, function: Address) -> Result<Attachment, Obstacle> {
        let (_, unit) = confining_unit(function)?;
        let passing = crate::PASSING;
        let held = unit.change(number_of(function), passing, Reach::Nothing);
        held.map_err(|Unanswered| Obstacle::Unanswered)?;
        Ok(Attachment {
            domain: Some(self.clone()),
            unit,
            function,
        })
    }

    /// Has all units forget what they know of the domain's addresses.
    fn forget(&self) -> Result<(), Unanswered> {
        let domain = self.0.number;
        let mut units = self.0.machine.units.iter();
        units.try_for_each(|unit| unit.forget(domain))
    }

    /// Maps granules, and has units forget that there was nothing, if they know that.
    fn add(&self, at: u64, phys: u64, bytes: u64) -> bool {
        let Inner { machine, root, .. } = &*self.0;
        let mut tables = self.0.tables.lock();
        for offset in (0..bytes).step_by(GRANULE as usize) {
            let (at, phys) = (at + offset, phys + offset);
            if iotable::map(&mut *tables, *root, machine.geometry, at, phys).is_err() {
                return false;
            }
        }
        drop(tables);
        let mut units = machine.units.iter();
        let forgets = units.any(|unit| unit.abilities().caches_absence);
        !forgets || self.forget().is_ok()
    }

    /// Unmaps granules, and has units forget them.
    fn remove(&self, at: u64, bytes: u64) -> bool {
        let Inner { machine, root, .. } = &*self.0;
        let mut tables = self.0.tables.lock();
        for offset in (0..bytes).step_by(GRANULE as usize) {
            iotable::unmap(&mut *tables, *root, machine.geometry, at + offset);
        }
        drop(tables);
        self.forget().is_ok()
    }
}

impl Drop for Inner {
    /// No function is held by it: so no entry names its tables, and no unit remembers what they
    /// said.
    fn drop(&mut self) {
        self.machine.domains.lock()[usize::from(self.number)] = false;
    }
}

// SAFETY: a unit translates for the functions of a domain by its tables, in which there is what was
// mapped and not unmapped since; nothing else writes there. `unmap` is true when all units have
// said that they remember nothing of it, and that what was let through before has arrived.
unsafe impl partition::Domain for Domain {
    fn id(&self) -> u64 {
        self.0.number.into()
    }

    unsafe fn map(&self, at: u64, phys: u64, bytes: u64) -> bool {
        self.add(at, phys, bytes)
    }

    fn unmap(&self, at: u64, bytes: u64) -> bool {
        self.remove(at, bytes)
    }

    fn maps_only(&self, runs: &mut dyn Iterator<Item = (u64, u64, u64)>) -> bool {
        let mut granules = runs.flat_map(|(at, phys, bytes)| {
            let offsets = (0..bytes).step_by(GRANULE as usize);
            offsets.map(move |offset| (at + offset, phys + offset))
        });
        self.is_exactly(&mut granules)
    }
}

/// A function that is held by a domain. Dropped, it still is, for ever, and the domain with it: the
/// way to let go of it is [`Self::release`].
pub struct Attachment {
    /// There until it is released.
    domain: Option<Domain>,
    unit: &'static dyn Unit,
    function: Address,
}

impl Attachment {
    /// Takes over a function that an instance has of a kernel before this one, as it is held;
    /// `domain` is that of the instance's others, if there are such, and is set by the first one.
    /// One that is held by anything but a domain that makes sense is blocked from here on. `None`
    /// if it passes, or no unit has it.
    ///
    /// # Panics
    /// Without memory for that; and if its unit does not answer.
    #[must_use]
    pub fn take_over(function: Address, domain: &mut Option<Domain>) -> Option<Self> {
        let (machine, _, unit) = crate::place(function)?;
        (machine.kept.lock()).retain(|kept| kept.function != function);
        let number = number_of(function);
        let found = match (unit.reach(number, machine.geometry), domain.as_ref()) {
            (Some(Reach::Everything), _) => return None,
            (Some(Reach::Domain(number, root, _)), Some(domain)) => {
                let is_same = (domain.0.number, domain.0.root) == (number, root);
                is_same.then(|| domain.clone()).ok_or(None)
            }
            (Some(Reach::Domain(number, root, _)), None) => {
                Domain::taken_over(machine, number, root).map_err(Some)
            }
            (Some(Reach::Nothing) | None, _) => Err(None),
        };
        let held = found.unwrap_or_else(|pages| {
            unit.block(number).expect("an IOMMU does not answer");
            // No entry names them any more, and no unit remembers them.
            drop(pages);
            Domain::new().expect("no memory to take over a function")
        });
        let attachment = Self {
            domain: Some(held.clone()),
            unit,
            function,
        };
        domain.get_or_insert(held);
        Some(attachment)
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.domain.as_ref().expect("there until it is released")
    }

    /// Lets the function reach what the domain maps.
    ///
    /// # Errors
    /// [`Unanswered`]: it reaches nothing, or that.
    ///
    /// # Safety
    /// It is a function of the instance whose memory the domain maps.
    pub unsafe fn attach(&self) -> Result<(), Unanswered> {
        let Domain(inner) = self.domain();
        let reach = Reach::Domain(inner.number, inner.root, inner.machine.geometry);
        (self.unit).change(number_of(self.function), inner.number, reach)
    }

    /// Has the function reach nothing: when this returns, what it has written has arrived.
    ///
    /// # Errors
    /// [`Unanswered`]: it may still reach what the domain maps.
    pub fn block(&self) -> Result<(), Unanswered> {
        let number = self.domain().0.number;
        (self.unit).change(number_of(self.function), number, Reach::Nothing)
    }

    /// Lets go of a function: it is blocked first, and passes then if it `may_pass`. A function
    /// that cannot be blocked keeps the domain. True if it passes.
    ///
    /// # Safety
    /// A function that may pass was reset, and only who it is given to next has it reach memory.
    #[must_use]
    pub unsafe fn release(mut self, may_pass: bool) -> bool {
        self.let_go(may_pass)
    }

    fn let_go(&mut self, may_pass: bool) -> bool {
        if self.block().is_err() {
            return false;
        }
        self.domain = None;
        let unit = self.unit;
        let function = number_of(self.function);
        let pass = || unit.change(function, crate::PASSING, Reach::Everything);
        let passes = may_pass && pass().is_ok();
        if !passes {
            log::error!("PCI function {} stays blocked", self.function);
        }
        passes
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(domain) = self.domain.take() {
            log::error!("PCI function {} keeps its domain", self.function);
            mem::forget(domain);
        }
    }
}
