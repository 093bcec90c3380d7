//! Configuration space in memory (ECAM; PCI Express Base 5.0, 7.2.2): 4 KiB for each function.
//!
//! The supervisor finds its functions by a scan, an instance in its descriptor.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::live::{Messages, Registers};
use acpi::ConfigWindow;
use guard::device::{self, FunctionPlace, MmioRegion};
use guard::role;
use lfmutex::{Mutex, Once};
use pci::{Address, Bar, BarKind, ConfigRegisters, EXTENDED_CONFIG_BYTES, Function, Layout};
use task::WaitQueue;

use crate::StillReaches;
use crate::virtual_functions::{self, Offer};

/// Bytes of the configuration space of all functions of a bus.
const BUS_BYTES: usize = 256 * EXTENDED_CONFIG_BYTES as usize;
/// Offsets in a header: manufacturer and product; class and revision.
const IDENTITY: u16 = 0x00;
const CLASS: u16 = 0x08;

/// Configuration space of one function; of one that has left, nothing: as hardware answers for what
/// is not there.
#[derive(Debug)]
pub(crate) struct FunctionRegisters {
    region: Mutex<Option<MmioRegion>>,
    /// Manufacturer and product of a virtual function, which has ones in their place (PCI Express
    /// Base 5.0, 9.3.4.1.1); 0 of others.
    identity: u32,
}

impl FunctionRegisters {
    fn new(region: MmioRegion) -> Self {
        Self::of_virtual(region, 0)
    }

    /// Registers of a virtual function that is this, if it is not 0.
    pub(crate) fn of_virtual(region: MmioRegion, identity: u32) -> Self {
        Self {
            region: Mutex::new(Some(region)),
            identity,
        }
    }

    /// Identity of a virtual function; 0 of others.
    pub(crate) const fn identity(&self) -> u32 {
        self.identity
    }
}

impl ConfigRegisters for FunctionRegisters {
    fn read(&self, offset: u16) -> u32 {
        let region = self.region.lock();
        let read = |offset: u16| region.map_or(u32::MAX, |region| region.read(offset.into()));
        // What answers is there: its class is known then.
        match offset {
            IDENTITY if self.identity != 0 && read(CLASS) != u32::MAX => self.identity,
            _ => read(offset),
        }
    }

    fn write(&self, offset: u16, value: u32) {
        let region = self.region.lock();
        if let Some(region) = *region {
            region.write(usize::from(offset), value);
        }
    }
}

/// Owner of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A driver of this kernel.
    Driver,
    /// The instance of this number.
    Instance(u32),
    /// Nobody: it did not prove that it was reset, and is to do so before somebody gets it
    /// ([`PciDevice::recover`]).
    Quarantine,
    /// Somebody else's kernel: it has left this instance.
    Elsewhere,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver => f.write_str("a driver has it"),
            Self::Instance(id) => write!(f, "instance {id} has it"),
            Self::Quarantine => f.write_str("it did not prove that it was reset"),
            Self::Elsewhere => f.write_str("it has left"),
        }
    }
}

/// Notified when an owner has let go of a function.
pub(crate) static LEFT: WaitQueue = WaitQueue::new();

/// State of a function when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// A state that is not known: the firmware, or a kernel before this one, has left it so.
    Unknown,
    /// Reset, with the proof of that, since somebody had it.
    Reset,
}

/// The owner of a function as one word, to be changed in one step.
#[derive(Debug, Default)]
pub(crate) struct Ownership(AtomicU64);

impl Ownership {
    const NOBODY: u64 = 0;
    const DRIVER: u64 = 1;
    const QUARANTINE: u64 = 2;
    const ELSEWHERE: u64 = 3;
    /// Nobody, since it was reset.
    const RESET: u64 = 4;
    const INSTANCE: u64 = 1 << 32;

    const fn word(owner: Option<Owner>) -> u64 {
        match owner {
            None => Self::NOBODY,
            Some(Owner::Driver) => Self::DRIVER,
            Some(Owner::Quarantine) => Self::QUARANTINE,
            Some(Owner::Elsewhere) => Self::ELSEWHERE,
            Some(Owner::Instance(id)) => Self::INSTANCE | id as u64,
        }
    }

    const fn owner(word: u64) -> Option<Owner> {
        match word {
            Self::NOBODY | Self::RESET => None,
            Self::DRIVER => Some(Owner::Driver),
            Self::QUARANTINE => Some(Owner::Quarantine),
            Self::ELSEWHERE => Some(Owner::Elsewhere),
            word => Some(Owner::Instance(word as u32)),
        }
    }

    /// Makes somebody the owner if nobody is; says how the function was left.
    ///
    /// # Errors
    /// The owner.
    pub(crate) fn take(&self, owner: Owner) -> Result<Before, Owner> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if let Some(owner) = Self::owner(word) {
                return Err(owner);
            }
            let taken = Self::word(Some(owner));
            match (self.0).compare_exchange(word, taken, Ordering::AcqRel, Ordering::Acquire) {
                Ok(Self::RESET) => return Ok(Before::Reset),
                Ok(_) => return Ok(Before::Unknown),
                Err(now) => word = now,
            }
        }
    }

    /// Makes somebody the owner of what is in quarantine; false if it is not.
    pub(crate) fn take_from_quarantine(&self, owner: Owner) -> bool {
        let taken = Self::word(Some(owner));
        let of = Self::QUARANTINE;
        (self.0)
            .compare_exchange(of, taken, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The owner at this moment.
    pub(crate) fn now(&self) -> Option<Owner> {
        Self::owner(self.0.load(Ordering::Acquire))
    }

    /// Takes the function from its owner.
    pub(crate) fn leave_to(&self, owner: Option<Owner>) {
        self.0.store(Self::word(owner), Ordering::Release);
        LEFT.wake_all();
    }

    /// The owner, who has seen that the function was reset, and has not used it since, lets go.
    pub(crate) fn leave_reset(&self) {
        self.0.store(Self::RESET, Ordering::Release);
        LEFT.wake_all();
    }
}

/// A function of the machine.
#[derive(Debug)]
pub struct PciDevice {
    pub(crate) function: Function,
    pub(crate) registers: FunctionRegisters,
    /// Physical address of its page of configuration space.
    pub(crate) config: u64,
    /// Interrupt messages that the descriptor of an instance names.
    pub(crate) messages: Mutex<Option<Messages>>,
    pub(crate) ownership: Ownership,
    /// The function's place as its owner was told, an instance that has it of a supervisor before
    /// this one, and which has not got it yet.
    pub(crate) kept: Mutex<Option<FunctionPlace>>,
    /// Time of all its resets, in nanoseconds.
    pub(crate) resetting_ns: AtomicU64,
    /// Flag: its last reset was not proven.
    pub(crate) is_unproven: AtomicBool,
    /// Virtual functions that it has, if any are on.
    pub(crate) offer: Option<Offer>,
}

impl PciDevice {
    /// Whether drivers are to leave it alone: `pci.hide=` on the command line has its address, as
    /// `0000:00:03.0` or `00:03.0`, among others behind commas; or it is a virtual function of this
    /// machine, which are for instances.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        if self.function.physical.is_some() {
            return true;
        }
        let hidden = role::cmdline_value("pci.hide").unwrap_or_default();
        let mut hidden = hidden.split(',').map(str::parse);
        hidden.any(|address| address == Ok(self.function.address))
    }

    /// Whether it is here: it has not left this instance.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.ownership.now() != Some(Owner::Elsewhere)
    }

    /// Time that its resets have taken so far, in nanoseconds: waits that the standard asks for,
    /// almost all of it.
    #[must_use]
    pub fn resetting_ns(&self) -> u64 {
        self.resetting_ns.load(Ordering::Relaxed)
    }

    /// Whether its last reset was not proven.
    #[must_use]
    pub(crate) fn is_unproven(&self) -> bool {
        self.is_unproven.load(Ordering::Acquire)
    }

    /// Forgets how its resets ended: its driver is to let go of it, and only what comes of that
    /// counts for [`remove_function`].
    pub fn expect_reset(&self) {
        self.is_unproven.store(false, Ordering::Release);
    }

    /// The function, as it was found.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Copies from the function's configuration space; returns how many bytes there were before
    /// its end.
    pub fn read_config(&self, offset: u16, to: &mut [u8]) -> usize {
        let end = usize::from(self.function.config_bytes);
        let start = usize::from(offset).min(end);
        let len = to.len().min(end - start);
        let mut word = None;
        for (at, byte) in (start..start + len).zip(&mut *to) {
            let aligned = at & !3;
            let (_, bytes) = match word {
                Some(read @ (from, _)) if from == aligned => read,
                _ => (aligned, self.registers.read(aligned as u16).to_le_bytes()),
            };
            word = Some((aligned, bytes));
            *byte = bytes[at % 4];
        }
        len
    }
}

/// The buses of a window of configuration space, mapped when they are first looked at.
struct Buses<'a> {
    window: ConfigWindow,
    /// Functions that instances have already.
    kept: &'a [(u32, FunctionPlace)],
    /// The bus that was looked at last.
    mapped: Mutex<Option<(u8, MmioRegion)>>,
}

impl Buses<'_> {
    fn bus(&self, bus: u8) -> Option<MmioRegion> {
        let mut mapped = self.mapped.lock();
        if let Some((number, region)) = *mapped
            && number == bus
        {
            return Some(region);
        }
        let at = self
            .window
            .base
            .checked_add(u64::from(bus) * BUS_BYTES as u64)?;
        // SAFETY: ACPI says that configuration space is there. Nobody but this crate writes there:
        // the scan, which sizes registers with the function switched off and puts their values
        // back, and a `Claim`, which lets a function reach memory only as long as there is one.
        let region = unsafe { device::map(at, BUS_BYTES) };
        match region {
            Ok(region) => {
                *mapped = Some((bus, region));
                Some(region)
            }
            Err(error) => {
                log::warn!("cannot look at PCI bus {bus:02x}: {error:?}");
                None
            }
        }
    }
}

impl pci::Machine for Buses<'_> {
    type Registers = FunctionRegisters;

    fn registers(&self, address: Address) -> Option<FunctionRegisters> {
        let bytes = usize::from(EXTENDED_CONFIG_BYTES);
        let offset = usize::from(address.devfn()) * bytes;
        self.bus(address.bus)?
            .part(offset, bytes)
            .map(FunctionRegisters::new)
    }

    fn is_in_use(&self) -> bool {
        !self.kept.is_empty()
    }

    fn known_bars(&self, address: Address) -> Option<[Option<Bar>; 6]> {
        // Of an instance that was told of it. Another one is to be ended, and does not use it, or
        // may not go on: its registers are looked for.
        let (_, place) = kept(self.kept, address).filter(|(_, place)| place.config != 0)?;
        Some(bars_of(place))
    }
}

/// Most functions that an instance has had in its life: so many places there are for them.
const MAX_OWN: usize = 64;

/// Functions that came to this instance since it looked first. A place is kept for when its
/// function comes back.
static COME: [Once<PciDevice>; MAX_OWN] = [const { Once::new() }; MAX_OWN];

/// Functions that were there when somebody first asked.
fn found() -> &'static [PciDevice] {
    static DEVICES: Once<Vec<PciDevice>> = Once::new();
    DEVICES.call_once(|| {
        if role::is_supervisor() {
            find_all()
        } else {
            own_devices()
        }
    })
}

/// All functions that there are or were.
fn known() -> impl Iterator<Item = &'static PciDevice> + Clone {
    let come = COME.iter().map_while(Once::get);
    found().iter().chain(come)
}

/// All functions of the machine, by address, or in an instance its own, those behind the others
/// that came while it ran. They are looked for when this is first called.
pub fn pci_devices() -> impl Iterator<Item = &'static PciDevice> + Clone {
    known().filter(|device| device.is_here())
}

/// The function at an address, if there is one.
#[must_use]
pub fn pci_device(address: Address) -> Option<&'static PciDevice> {
    pci_devices().find(|device| device.function.address == address)
}

/// Takes a function that has come to this instance, which can be mapped. `None` without memory, or
/// if it does not answer. By one thread at a time.
#[must_use]
pub fn add_function(place: &FunctionPlace) -> Option<&'static PciDevice> {
    let is_same = |device: &&PciDevice| {
        device.function.address.number() == place.number
            && device.config == place.config
            && device.registers.identity == place.identity
            && device.function.bars == bars_of(place)
    };
    let Some(device) = known().find(is_same) else {
        let device = own_device(place)?;
        let free = COME.iter().find(|place| place.get().is_none())?;
        return Some(free.call_once(|| device));
    };
    if device.registers.region.lock().is_some() {
        // It was among those that were found first.
        return Some(device);
    }
    let region = map_page(place.config)?;
    *device.messages.lock() = place.messages;
    *device.registers.region.lock() = Some(region);
    device.ownership.leave_to(None);
    Some(device)
}

/// Lets a function of this instance go, when its driver has let go of it, which is waited for:
/// nothing of it is mapped any more then. One that its driver could not stop is tried again; if it
/// still cannot be, its driver has it, or nobody, and this may be called again.
///
/// # Errors
/// [`StillReaches`]: it does not prove that it was reset.
pub fn remove_function(device: &'static PciDevice) -> Result<(), StillReaches> {
    device.recover(Owner::Driver)?;
    let take = || match device.ownership.take(Owner::Elsewhere) {
        Ok(_) | Err(Owner::Elsewhere) => Some(Ok(())),
        // What is under way of a driver that cannot stop it may never be over.
        Err(Owner::Driver | Owner::Instance(_)) if device.is_unproven() => Some(Err(StillReaches)),
        Err(Owner::Driver | Owner::Instance(_)) => None,
        Err(Owner::Quarantine) => Some(Err(StillReaches)),
    };
    LEFT.wait(take)?;
    let region = device.registers.region.lock().take();
    if let Some(region) = region {
        // SAFETY: it is what was mapped for this function, and the only copy that there is.
        unsafe { device::unmap(region) };
    }
    Ok(())
}

/// The functions that the descriptor of an instance names.
fn own_devices() -> Vec<PciDevice> {
    let mut found = Vec::new();
    for place in device::own_functions() {
        let address = Address::from_number(place.number);
        match own_device(&place) {
            Some(device) if found.try_reserve(1).is_ok() => found.push(device),
            _ => log::error!("PCI function {address} does not answer, or there is no memory"),
        }
    }
    found
}

/// Maps the page of configuration space of one function, which is there.
pub(crate) fn map_page(config: u64) -> Option<MmioRegion> {
    let bytes = usize::from(EXTENDED_CONFIG_BYTES);
    // SAFETY: the descriptor of this instance says that configuration space of a function of its
    // own is there, or it is within what ACPI says. Nobody but this crate writes there, and only a
    // `Claim` does, which lets the function reach memory only as long as there is one.
    unsafe { device::map(config, bytes) }.ok()
}

fn own_device(place: &FunctionPlace) -> Option<PciDevice> {
    let registers = FunctionRegisters::of_virtual(map_page(place.config)?, place.identity);
    let address = Address::from_number(place.number);
    let function = Function::with_bars(address, None, bars_of(place), &registers)?;
    Some(PciDevice {
        messages: Mutex::new(place.messages),
        ..device(&function, registers, place.config, &[])
    })
}

/// A function that was found, which the instance has that `kept` says.
pub(crate) fn device(
    function: &Function,
    registers: FunctionRegisters,
    config: u64,
    in_use: &[(u32, FunctionPlace)],
) -> PciDevice {
    let ownership = Ownership::default();
    let owner = kept(in_use, function.address);
    if let Some((instance, _)) = owner {
        ownership.leave_to(Some(Owner::Instance(*instance)));
    }
    PciDevice {
        function: *function,
        registers,
        config,
        messages: Mutex::new(None),
        ownership,
        kept: Mutex::new(owner.map(|(_, place)| place.clone())),
        resetting_ns: AtomicU64::new(0),
        is_unproven: AtomicBool::new(false),
        offer: None,
    }
}

/// The base address registers of a place.
pub(crate) fn bars_of(place: &FunctionPlace) -> [Option<Bar>; 6] {
    let mut bars = [None; 6];
    for of in &place.registers {
        if let Some(bar) = bars.get_mut(usize::from(of.bar)) {
            *bar = Some(bar_of(of));
        }
    }
    bars
}

/// The instance that has a function already, and its place.
pub(crate) fn kept(
    all: &[(u32, FunctionPlace)],
    address: Address,
) -> Option<&(u32, FunctionPlace)> {
    all.iter()
        .find(|(_, place)| place.number == address.number())
}

/// The base address register that the descriptor's words stand for.
fn bar_of(registers: &Registers) -> Bar {
    let has = |flag| registers.flags & flag != 0;
    Bar {
        kind: if has(Registers::WIDE) {
            BarKind::Memory64
        } else {
            BarKind::Memory32
        },
        prefetchable: has(Registers::PREFETCHABLE),
        address: registers.phys,
        size: registers.bytes,
        flags: registers.flags.into(),
    }
}

fn find_all() -> Vec<PciDevice> {
    let mut found: Vec<PciDevice> = Vec::new();
    let in_use = device::kept_functions();
    for window in device::config_windows() {
        let buses = Buses {
            window: *window,
            kept: &in_use,
            mapped: Mutex::new(None),
        };
        let add = |function: Function, registers| {
            found.try_reserve(1).ok()?;
            let address = function.address;
            let page = u64::from(address.bus) << 8 | u64::from(address.devfn());
            let config = window.base + page * u64::from(EXTENDED_CONFIG_BYTES);
            found.push(device(&function, registers, config, &in_use));
            Some(())
        };
        let ConfigWindow {
            segment,
            first_bus,
            last_bus,
            ..
        } = *window;
        if pci::scan(&buses, segment, first_bus, last_bus, add).is_none() {
            log::warn!("no memory for more than {} PCI functions", found.len());
            break;
        }
    }
    virtual_functions::find(&mut found, &in_use);
    found.sort_unstable_by_key(|device| device.function.address);
    let functions = found.iter().map(|device| iommu::Found {
        function: &device.function,
        config: device.config,
        keeps_names: device.function.layout != Layout::Bridge
            || pci::keeps_names(&device.registers),
    });
    let told = kept_of(&found).expect("no memory to take functions over");
    iommu::start(functions, &told);
    found.iter().for_each(free_if_held);
    found
}

/// Functions that instances have of a supervisor before this one; `None` without memory.
fn kept_of(found: &[PciDevice]) -> Option<Vec<iommu::Kept>> {
    let mut all = Vec::new();
    for device in found {
        if let Some(place) = &*device.kept.lock() {
            all.try_reserve(1).ok()?;
            all.push(iommu::Kept {
                function: device.function.address,
                messages: place.messages.map(|messages| messages.address.into()),
            });
        }
    }
    Some(all)
}

/// Resets a function that is held back, and that nobody has: an instance of a supervisor before
/// this one had it. One that does not prove its reset stays so.
fn free_if_held(device: &PciDevice) {
    if device.ownership.now().is_some() || !iommu::is_held(device.function.address) {
        return;
    }
    device.ownership.leave_to(Some(Owner::Quarantine));
    // One that does not stays there, and is said so.
    let _ = device.recover(Owner::Driver);
}

/// All functions that instances had of a supervisor before this one were taken over: what else
/// units had of that is free.
pub fn settle() {
    // Units are found with the functions.
    found();
    iommu::settle();
}
