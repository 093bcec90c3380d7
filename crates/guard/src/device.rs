//! What drivers have of the machine, for the trusted crate `devices`: where configuration space is,
//! mapping what is not memory, memory that a device reaches, and messages that interrupt.
//!
//! An instance maps only what its descriptor names (`own`).
//!
//! This is the one place where an address of the machine goes over the guard's border. Naming one
//! does nothing; mapping is `unsafe`, so that `devices` alone does it. What a device is told to do
//! with the address of memory is the driver's to answer for, until there is an IOMMU
//! (`docs/devices.md`).

mod own;
mod tables;

use alloc::vec::Vec;
use core::arch::asm;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use abi::layout::{DEVICE_ADDRESSES, PAGE_SIZE};
use acpi::ConfigWindow;
use arrayvec::ArrayVec;
use lfmutex::Once;
pub use own::{FunctionPlace, MAX_REGISTERS, own_functions};
pub(crate) use own::{entries, let_in, places, shut_out};
use raw_cpuid::CpuId;

use crate::cpu::CpuId as Cpu;
use crate::mem::alloc::Block;
use crate::mem::frame::Frame;
use crate::mem::phys::{self, PhysAddr};
use crate::mem::{Page, direct};
pub use crate::paging::kernel::{MmioRegion, Register};
use crate::{cpu_table, faults, partition, role};

/// Segments of a machine whose configuration space is known; more are left out.
const MAX_CONFIG_WINDOWS: usize = 16;
/// Bytes of the registers of an interrupt controller, and of the addresses at which processors take
/// interrupt messages.
const APIC_BYTES: u64 = 1 << 12;
const MESSAGES: core::ops::Range<u64> = abi::live::MESSAGE_ADDRESSES;

/// Bytes that a processor's caches hold as one, at least.
const CACHE_LINE: usize = 64;

/// Order of the largest block for a device: 2 MiB.
const MAX_DMA_ORDER: u8 = 9;

/// Places that ACPI tells.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Configuration space.
    pub config_windows: ArrayVec<ConfigWindow, MAX_CONFIG_WINDOWS>,
    /// The table of units that confine devices (DMAR or IVRS): its address and length.
    pub remapping: Option<(u64, u32)>,
}

static PLACES: Once<Places> = Once::new();

/// Keeps what ACPI says; once.
pub(crate) fn init(places: Places) {
    PLACES.call_once(|| places);
}

/// Physical address and length of ACPI's table of units that confine devices (DMAR or IVRS), whose
/// checksum was right at boot; `None` without one, and in an instance.
#[must_use]
pub fn remapping_table() -> Option<(u64, usize)> {
    let (at, len) = PLACES.get()?.remapping?;
    Some((at, len as usize))
}

/// Places of PCI Express configuration space, as ACPI says; none in an instance.
#[must_use]
pub fn config_windows() -> &'static [ConfigWindow] {
    PLACES.get().map_or(&[], |places| &places.config_windows)
}

/// Functions that instances have of a supervisor before this one, by the numbers of these: they may
/// be in use. A number that is there twice is the first one's; of one that was not told of there is
/// nothing but the number.
///
/// # Panics
/// Without memory for that.
#[must_use]
pub fn kept_functions() -> Vec<(u32, FunctionPlace)> {
    partition::kept_functions()
}

/// Why registers cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Memory, an interrupt controller or nothing that can be addressed is there; or, in an
    /// instance, nothing that is its own.
    Taken,
    /// There is no memory for a page table, or no address left.
    NoMemory,
}

/// Maps `len` bytes of device registers from physical address `at` on. For the crate `devices`.
///
/// # Errors
/// [`MapError`]; nothing is mapped.
///
/// # Safety
/// A device of this machine answers there, and neither reads nor writes of its registers change
/// memory that is not given to it for that.
pub unsafe fn map(at: u64, len: usize) -> Result<MmioRegion, MapError> {
    check(at, len as u64)?;
    MmioRegion::map(PhysAddr(at), len).map_err(|_| MapError::NoMemory)
}

/// Checks that registers of a device may be at physical addresses.
///
/// # Errors
/// [`MapError::Taken`].
pub(crate) fn check(at: u64, len: u64) -> Result<(), MapError> {
    let descriptor = role::descriptor();
    let end = at.checked_add(len).ok_or(MapError::Taken)?;
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
    let is_foreign = !role::is_supervisor() && !own::names(at..end);
    // Below 1 MiB is what firmware left, and the trampoline.
    if is_taken || is_foreign || len == 0 || at < 1 << 20 || end > 1 << address_bits() {
        return Err(MapError::Taken);
    }
    Ok(())
}

/// Ends a mapping. When it returns, no CPU reaches the registers by it. For the crate `devices`.
///
/// # Safety
/// The region is what [`map`] returned, not a part, and neither it nor any copy or part of it is
/// used any more.
pub unsafe fn unmap(region: MmioRegion) {
    // SAFETY: by the caller's promise.
    unsafe { region.unmap() };
}

/// Address at which devices reach a page, as long as somebody holds it.
#[must_use]
pub fn bus_address(page: &Page) -> u64 {
    faults::stray_address().unwrap_or_else(|| address_of(page.frame()))
}

/// Address at which devices reach a frame: in an instance whose functions are confined, by its
/// number; otherwise where it is.
fn address_of(frame: Frame) -> u64 {
    if own::are_confined() {
        by_number(frame.0)
    } else {
        phys::of(frame).0
    }
}

/// Address at which confined functions of an instance reach its frame of this number.
pub(crate) const fn by_number(frame: u64) -> u64 {
    DEVICE_ADDRESSES + frame * PAGE_SIZE as u64
}

/// A write to memory that interrupts a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Address that is written to.
    pub address: u64,
    /// Number that is written.
    pub data: u32,
}

/// APIC id of a CPU; `None` if there is no such one.
#[must_use]
pub fn apic_id(cpu: Cpu) -> Option<u32> {
    cpu_table::apic_id(cpu.0 as usize)
}

/// The message that sends a vector to a CPU (Intel SDM volume 3, 11.11); `None` if there is no such
/// CPU, or its number does not fit into a message.
#[must_use]
pub fn message(cpu: Cpu, vector: u8) -> Option<Message> {
    let id = apic_id(cpu)?;
    (id < 0xff).then(|| Message {
        address: MESSAGES.start | u64::from(id) << 12,
        data: u32::from(vector),
    })
}

/// The message that a device is told when it is to send this one: the same, but for a test that
/// wants an instance's device to send another.
#[must_use]
pub fn as_told(message: Message) -> Message {
    faults::stray_message().unwrap_or(message)
}

/// Memory in one piece that a device reads and writes while the kernel does.
///
/// There are only copies and single numbers, no references: what they would point to changes.
#[derive(Debug)]
pub struct DmaBlock {
    block: ManuallyDrop<Block>,
    /// Flag: it is units' memory, which outlives the supervisor's kernel.
    is_units: bool,
}

impl DmaBlock {
    /// Allocates zeroes, so many bytes or more; `None` if there are not so many in one piece.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Option<Self> {
        let order = order_of(bytes)?;
        let block = (order <= MAX_DMA_ORDER).then(|| Block::zeroed(order))??;
        Some(Self {
            block: ManuallyDrop::new(block),
            is_units: false,
        })
    }

    /// Allocates zeroes for a unit that confines devices, 256 KiB at most: where the supervisor may
    /// start again in place, they are there until this is dropped, whatever becomes of its kernel.
    #[must_use]
    pub fn for_unit(bytes: usize) -> Option<Self> {
        if !tables::are_kept() {
            return Self::zeroed(bytes);
        }
        tables::take(order_of(bytes)?).map(Self::of_unit)
    }

    /// Takes over such memory of a kernel before this one, as it is, by its physical address;
    /// `None` if it is not such, or was taken over already.
    #[must_use]
    pub fn taken_over(at: u64, bytes: usize) -> Option<Self> {
        tables::claim(at, order_of(bytes)?).map(Self::of_unit)
    }

    fn of_unit(block: Block) -> Self {
        Self {
            block: ManuallyDrop::new(block),
            is_units: true,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// Address at which devices reach the first byte.
    #[must_use]
    pub fn bus_address(&self) -> u64 {
        address_of(self.block.first())
    }

    /// Address of `len` bytes from `offset` on, if they are all in the block.
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let is_within = offset <= self.bytes() && len <= self.bytes() - offset;
        is_within.then(|| self.block.ptr().wrapping_add(offset))
    }

    /// The number at an even offset, for single accesses.
    fn word(&self, offset: usize) -> Option<&AtomicU16> {
        let at = self.at(offset, 2).filter(|_| offset.is_multiple_of(2))?;
        // SAFETY: within the block, which is in the direct map and ours as long as it is borrowed;
        // aligned, as blocks are. Nobody has references to it but such, and what else reaches it
        // are a device and the copies below, which the compiler knows nothing of.
        Some(unsafe { AtomicU16::from_ptr(at.cast()) })
    }

    /// Loads a number in one access, with acquire order; `None` outside of the block, or at an odd
    /// offset.
    #[must_use]
    pub fn load16(&self, offset: usize) -> Option<u16> {
        Some(u16::from_le(self.word(offset)?.load(Ordering::Acquire)))
    }

    /// Stores a number in one access, with release order; `None` as with [`Self::load16`].
    pub fn store16(&self, offset: usize, value: u16) -> Option<()> {
        self.word(offset)?.store(value.to_le(), Ordering::Release);
        Some(())
    }

    /// The number of 64 bits at an offset that is a multiple of 8, for single accesses.
    fn long_word(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: as in `word`; what the two refer to are different accesses of one kind of memory,
        // none of which the compiler may rely on.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Loads a number in one access, with acquire order; `None` outside of the block, or at an
    /// offset that is no multiple of 8.
    #[must_use]
    pub fn load64(&self, offset: usize) -> Option<u64> {
        let word = self.long_word(offset)?.load(Ordering::Acquire);
        Some(u64::from_le(word))
    }

    /// Stores a number in one access, with release order; `None` as with [`Self::load64`].
    pub fn store64(&self, offset: usize, value: u64) -> Option<()> {
        let word = self.long_word(offset)?;
        word.store(value.to_le(), Ordering::Release);
        Some(())
    }

    /// Writes bytes back to memory that are in this processor's caches, for a device that does not
    /// look there; `None` if they are not all in the block. What was stored before has arrived when
    /// it returns.
    pub fn write_back(&self, offset: usize, len: usize) -> Option<()> {
        let first = self.at(offset, len)?;
        // The shortest line that there is; a longer one is written back more than once.
        for line in (0..len + first as usize % CACHE_LINE).step_by(CACHE_LINE) {
            // SAFETY: changes no memory, and within the block, a line that it begins in apart,
            // which is whole in the block's page.
            unsafe {
                asm!("clflush [{}]", in(reg) first.wrapping_add(line), options(nostack, preserves_flags));
            };
        }
        // SAFETY: orders memory accesses.
        unsafe { asm!("mfence", options(nostack, preserves_flags)) };
        Some(())
    }

    /// Copies bytes out; `None`, with nothing copied, if they are not all in the block.
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> Option<()> {
        let from = self.at(offset, buf.len())?;
        // SAFETY: within the block, which is in the direct map; `buf` is no part of it, as nobody
        // has references into blocks but to numbers, for the length of one access.
        unsafe { direct::copy(buf.as_mut_ptr(), from, buf.len()) };
        Some(())
    }

    /// Copies bytes in; `None`, with nothing copied, if they do not all fit.
    pub fn write(&self, offset: usize, buf: &[u8]) -> Option<()> {
        let to = self.at(offset, buf.len())?;
        // SAFETY: as in `read`.
        unsafe { direct::copy(to, buf.as_ptr(), buf.len()) };
        Some(())
    }
}

/// Order of the block that has room for so many bytes.
fn order_of(bytes: usize) -> Option<u8> {
    let pages = bytes.div_ceil(PAGE_SIZE).checked_next_power_of_two()?;
    u8::try_from(pages.max(1).ilog2()).ok()
}

impl Drop for DmaBlock {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        if self.is_units {
            tables::give_back(block);
        }
    }
}

/// Frees units' memory of a kernel before this one that was not [taken
/// over](DmaBlock::taken_over). For the crate `iommu`.
///
/// # Safety
/// No unit uses any of it.
pub unsafe fn free_units_rest() {
    // SAFETY: by the caller's promise.
    unsafe { tables::settle() };
}

/// Bits of a physical address that this processor can use: a page-table entry with others faults.
fn address_bits() -> u8 {
    CpuId::new()
        .get_processor_capacity_feature_info()
        .map_or(36, |capacity| capacity.physical_address_bits())
        .min(52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::host;

    #[test]
    fn memory_of_devices_ends_where_it_does() {
        host::set_up();
        let block = DmaBlock::zeroed(5000).unwrap();
        assert_eq!(block.bytes(), 8192);
        assert_eq!(block.store16(8190, 0x1234), Some(()));
        assert_eq!(block.load16(8190), Some(0x1234));
        let mut bytes = [1; 4];
        assert_eq!(block.read(8188, &mut bytes), Some(()));
        assert_eq!(bytes, [0, 0, 0x34, 0x12]);
        assert_eq!(block.write(8189, &bytes), None);
        assert_eq!(block.read(8189, &mut bytes), None);
        for offset in [1, 8191, 8192, usize::MAX, usize::MAX - 1] {
            assert_eq!(block.load16(offset), None);
            assert_eq!(block.store16(offset, 0), None);
        }
        assert!(block.bus_address().is_multiple_of(8192));
        assert!(DmaBlock::zeroed(usize::MAX).is_none());
    }
}
