//! Registers of devices in memory, for the trusted crate `devices`: where configuration space is,
//! and mapping what is not memory.
//!
//! This is the one place where an address of the machine goes over the guard's border. Naming one
//! does nothing; mapping is `unsafe`, so that `devices` alone does it.

use acpi::ConfigWindow;
use arrayvec::ArrayVec;
use lfmutex::Once;
use raw_cpuid::CpuId;

use crate::mem::phys::PhysAddr;
pub use crate::paging::kernel::MmioRegion;
use crate::role;

/// Segments of a machine whose configuration space is known; more are left out.
const MAX_CONFIG_WINDOWS: usize = 16;
/// Bytes of the registers of an interrupt controller, and of the addresses at which processors take
/// interrupt messages.
const APIC_BYTES: u64 = 1 << 12;
const MESSAGES: core::ops::Range<u64> = 0xfee0_0000..0xfef0_0000;

pub(crate) type ConfigWindows = ArrayVec<ConfigWindow, MAX_CONFIG_WINDOWS>;

static CONFIG_WINDOWS: Once<ConfigWindows> = Once::new();

/// Keeps what ACPI says of configuration space; once.
pub(crate) fn init(windows: ConfigWindows) {
    CONFIG_WINDOWS.call_once(|| windows);
}

/// Places of PCI Express configuration space, as ACPI says; none in an instance.
#[must_use]
pub fn config_windows() -> &'static [ConfigWindow] {
    CONFIG_WINDOWS.get().map_or(&[], |windows| windows)
}

/// Why registers cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Memory, an interrupt controller or nothing that can be addressed is there.
    Taken,
    /// There is no memory for a page table, or no address left.
    NoMemory,
}

/// Maps `len` bytes of device registers from physical address `at` on, for good. For the crate
/// `devices`.
///
/// # Errors
/// [`MapError`]; nothing is mapped.
///
/// # Safety
/// A device of this machine answers there, and neither reads nor writes of its registers change
/// memory that is not given to it for that.
pub unsafe fn map(at: u64, len: usize) -> Result<MmioRegion, MapError> {
    let descriptor = role::descriptor();
    let end = at.checked_add(len as u64).ok_or(MapError::Taken)?;
    let meets = |first: u64, bytes: u64| at < first + bytes && first < end;
    let memory = descriptor.ranges().iter();
    let controllers = descriptor.ioapics().iter();
    let is_taken = memory
        .map(|range| (range.phys, range.count << 12))
        .any(|(first, bytes)| meets(first, bytes))
        || controllers
            .map(|controller| controller.phys)
            .any(|first| meets(first, APIC_BYTES))
        || meets(descriptor.lapic_phys, APIC_BYTES)
        || meets(MESSAGES.start, MESSAGES.end - MESSAGES.start);
    // Below 1 MiB is what firmware left, and the trampoline.
    if is_taken || len == 0 || at < 1 << 20 || end > 1 << address_bits() {
        return Err(MapError::Taken);
    }
    MmioRegion::map(PhysAddr(at), len).map_err(|_| MapError::NoMemory)
}

/// Bits of a physical address that this processor can use: a page-table entry with others faults.
fn address_bits() -> u8 {
    CpuId::new()
        .get_processor_capacity_feature_info()
        .map_or(36, |capacity| capacity.physical_address_bits())
        .min(52)
}
