//! Functions that come and go while an instance runs, and who drives them (`docs/devices.md`).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::live::Refusal;
use devices::{PciDevice, StillReaches};
use fs::block::InUse;
use pci::{Address, Function};
use task::Mutex;

/// A driver of a function, as that leaves.
pub trait Started: Send {
    /// Takes away what programs know of the function, and lets go of it, at once or when what is
    /// under way is over.
    ///
    /// # Errors
    /// Why not, unless `force`: who uses it. Nothing was changed.
    fn end(&mut self, force: bool) -> Result<(), Refusal>;
}

/// Brings the `index`th function of a kind up.
pub type Start = dyn Fn(&'static PciDevice, u32) -> Result<Box<dyn Started>, String> + Send + Sync;

/// A kind of functions that has a driver.
pub struct Kind {
    /// Name of the kind, in the plural.
    pub what: &'static str,
    /// Whether a function is of the kind.
    pub is_kind: Box<dyn Fn(&Function) -> bool + Send + Sync>,
    /// The driver.
    pub start: Box<Start>,
}

/// Function with the driver that it has.
struct Driven {
    address: Address,
    what: &'static str,
    index: u32,
    driver: Box<dyn Started>,
}

static KINDS: Mutex<Vec<Arc<Kind>>> = Mutex::new(Vec::new());
static DRIVEN: Mutex<Vec<Driven>> = Mutex::new(Vec::new());

/// Makes a kind known, whose functions have its driver from here on.
pub(crate) fn add_kind(kind: Kind) -> Arc<Kind> {
    let kind = Arc::new(kind);
    KINDS.lock().push(kind.clone());
    kind
}

/// Starts the driver of a function of a kind, with the lowest number that no other one has.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn start(kind: &Kind, device: &'static PciDevice) -> Result<(), String> {
    let index = {
        let driven = DRIVEN.lock();
        let is_taken = |index: &u32| {
            let mut all = driven.iter();
            all.any(|other| other.what == kind.what && other.index == *index)
        };
        (0..).find(|index| !is_taken(index)).unwrap_or(u32::MAX)
    };
    let driver = (kind.start)(device, index)?;
    DRIVEN.lock().push(Driven {
        address: device.function().address,
        what: kind.what,
        index,
        driver,
    });
    Ok(())
}

/// Starts the driver of a function that has come, if there is one for it. A function that cannot be
/// used costs a line in the log.
pub fn came(device: &'static PciDevice) {
    let kinds = KINDS.lock().clone();
    let kind = kinds.iter().find(|kind| (kind.is_kind)(device.function()));
    if let Some(kind) = kind
        && let Err(error) = start(kind, device)
    {
        log::error!("{}: {}: {error}", kind.what, device.function().address);
    }
}

/// Takes a function from its driver, and lets it go: nothing of it is mapped any more then. Waits
/// for what is under way.
///
/// # Errors
/// Why not. Unless `force`, nothing was changed.
pub fn remove(device: &'static PciDevice, force: bool) -> Result<(), Refusal> {
    let address = device.function().address;
    device.expect_reset();
    let driven = {
        let mut all = DRIVEN.lock();
        let index = all.iter().position(|driven| driven.address == address);
        index.map(|index| all.swap_remove(index))
    };
    if let Some(mut driven) = driven
        && let Err(refusal) = driven.driver.end(force)
    {
        log::warn!("PCI function {address} does not leave: {refusal}");
        DRIVEN.lock().push(driven);
        return Err(refusal);
    }
    devices::remove_function(device).map_err(|StillReaches| Refusal::NotReset)
}

/// Why disks do not leave.
pub(crate) fn refusal_of(in_use: InUse) -> Refusal {
    match in_use {
        InUse::Mounted(count) => Refusal::mounted(count),
        InUse::Open(count) => Refusal::open(count),
    }
}
