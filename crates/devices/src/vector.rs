//! Interrupts of functions: messages, each to a vector of one CPU, which wakes one thread.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::live::DEVICE_VECTORS;
use guard::BootToken;
use guard::cpu::{self, CpuId, MAX_CPUS};
use guard::device::{self, Message, MmioRegion};
use guard::irq::{self, FIRST_DEVICE_VECTOR};
use guard::role;
use lfmutex::Once;
use pci::MsixEntry;
use task::Event;

use crate::claim::{Claim, UsedMessage};

/// A vector of a CPU.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    is_taken: AtomicBool,
    event: Event,
    /// The slot of the same CPU whose event is set after this one's: its number and one, or 0.
    also: AtomicUsize,
}

impl Slot {
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Gives the vector back, whose messages nobody sends any more.
    pub(crate) fn free(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    fn other<'a>(&self, slots: &'a [Self]) -> Option<&'a Self> {
        let index = self.also.load(Ordering::Acquire).checked_sub(1)?;
        slots.get(index)
    }
}

/// The vectors of each CPU that ever had one: never freed, for the handler looks here.
static SLOTS: [Once<Vec<Slot>>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];

/// Has vectors of devices wake who has them; once, at start-up.
pub fn init(token: &BootToken) {
    irq::set_device_handler(token, on_interrupt);
}

/// Wakes who has a vector of this CPU. Called with interrupts off; takes no lock.
fn on_interrupt(vector: u8) -> bool {
    let slots = SLOTS[cpu::current().0 as usize].get();
    let index = usize::from(vector - FIRST_DEVICE_VECTOR);
    let Some(slots) = slots else {
        return false;
    };
    let Some(slot) = slots.get(index) else {
        return false;
    };
    slot.event.set();
    if let Some(other) = slot.other(slots) {
        other.event.set();
    }
    // A message that was on its way when the vector was given up wakes nobody.
    slot.is_taken.load(Ordering::Acquire)
}

/// No interrupt is to be had: the function has no such message, or somebody has it, or the CPU has
/// no vector left, may have none ([`vector_cpus`]) or cannot be reached by messages, or there is no
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoVector;

/// An interrupt message of a claimed function, with a vector of one CPU. Dropping it masks the
/// message and gives the vector back.
#[derive(Debug)]
pub struct Vector {
    slot: &'static Slot,
    cpu: CpuId,
    entry: u16,
    claim: Arc<Claim>,
}

/// Number of CPUs, the first ones, that vectors can be of: all of the supervisor's, and of an
/// instance the first, which is the only one that never leaves.
#[must_use]
pub fn vector_cpus() -> usize {
    if role::is_supervisor() {
        cpu::count()
    } else {
        1
    }
}

/// Takes a free vector of a CPU that is one of these, and its slot.
pub(crate) fn take(cpu: CpuId, vectors: Range<u64>) -> Option<(u8, &'static Slot)> {
    let place = SLOTS.get(cpu.0 as usize)?;
    if place.get().is_none() {
        let mut slots = Vec::new();
        slots.try_reserve_exact(irq::DEVICE_VECTORS).ok()?;
        slots.resize_with(irq::DEVICE_VECTORS, Slot::default);
        // Somebody may have been faster; then theirs are the ones.
        let _ = place.set(slots);
    }
    let slots = (FIRST_DEVICE_VECTOR..).zip(place.get()?);
    let mut slots = slots.filter(|(vector, _)| vectors.contains(&u64::from(*vector)));
    let taken = slots.find(|(_, slot)| !slot.is_taken.swap(true, Ordering::AcqRel));
    taken.inspect(|(_, slot)| {
        // What came for who had it before.
        slot.also.store(0, Ordering::Release);
        slot.event.try_wait();
    })
}

/// Writes an entry of a table of messages, or masks it.
pub(crate) fn write_entry(table: MmioRegion, entry: u16, message: Option<MsixEntry>) {
    let at = usize::from(entry) * MsixEntry::BYTES;
    table.write(at + MsixEntry::CONTROL, MsixEntry::MASKED);
    if let Some(message) = message {
        for (offset, word) in message.words() {
            table.write(at + offset, word);
        }
        table.write(at + MsixEntry::CONTROL, 0_u32);
    }
    // What was written has arrived when something is read.
    let _ = table.read::<u32>(at + MsixEntry::CONTROL);
}

/// Vector that was taken: its slot, what is to be sent, and what that is to the unit.
type Taken = (&'static Slot, Message, Option<iommu::Interrupts>);

impl Claim {
    /// Number of interrupt messages that the function has.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        let entries = self.msix.as_ref().map_or(0, |msix| msix.entries);
        let told = *self.device.messages.lock();
        let most = told.map(|messages| messages.count.into());
        entries.min(most.unwrap_or(u16::MAX))
    }

    /// Takes a vector of a CPU for message `entry`: what the function is to send, and what that is
    /// to the unit that remaps it.
    fn take_message(&self, entry: u16, cpu: CpuId) -> Option<Taken> {
        let told = *self.device.messages.lock();
        if let Some(messages) = told {
            let vector = messages.vectors().start + u64::from(entry);
            let (_, slot) = take(cpu, vector..vector + 1)?;
            let sends = Message {
                address: messages.address.into(),
                data: entry.into(),
            };
            return Some((slot, sends, None));
        }
        let (vector, slot) = take(cpu, DEVICE_VECTORS)?;
        let function = self.device.function.address;
        let sends = if iommu::is_remapped(function) {
            iommu::Interrupts::new(function, 0).and_then(|remapped| {
                let apic_id = device::apic_id(cpu)?;
                remapped.lead(vector, apic_id).ok()?;
                Some((remapped.message(), Some(remapped)))
            })
        } else {
            device::message(cpu, vector).map(|message| (message, None))
        };
        if sends.is_none() {
            slot.free();
        }
        sends.map(|(message, remapped)| (slot, message, remapped))
    }

    /// Gives message `entry` of the function to a CPU.
    ///
    /// # Errors
    /// [`NoVector`]; nothing is changed.
    pub fn vector(self: &Arc<Self>, entry: u16, cpu: CpuId) -> Result<Vector, NoVector> {
        let msix = self.msix.as_ref().ok_or(NoVector)?;
        let mut messages = self.messages.lock();
        let is_used = messages.used.iter().any(|used| used.entry == entry);
        if entry >= self.vectors() || is_used || cpu.0 as usize >= vector_cpus() {
            return Err(NoVector);
        }
        messages.used.try_reserve(1).map_err(|_| NoVector)?;
        let table = match messages.table {
            Some(table) => table,
            None => {
                let len = usize::from(msix.entries) * MsixEntry::BYTES;
                let place = msix.table;
                let table = self
                    .map(place.bar, place.offset, len)
                    .map_err(|_| NoVector)?;
                for entry in 0..msix.entries {
                    write_entry(table, entry, None);
                }
                msix.enable(&self.device.registers);
                *messages.table.insert(table)
            }
        };
        let (slot, message, remapped) = self.take_message(entry, cpu).ok_or(NoVector)?;
        let Message { address, data } = device::as_told(message);
        let sends = MsixEntry { address, data };
        messages.used.push(UsedMessage {
            entry,
            sends,
            _remapped: remapped,
        });
        write_entry(table, entry, Some(sends));
        Ok(Vector {
            slot,
            cpu,
            entry,
            claim: self.clone(),
        })
    }
}

impl Vector {
    /// Number of the message in the function's table.
    #[must_use]
    pub fn entry(&self) -> u16 {
        self.entry
    }

    /// The event that the interrupt sets. One thread at a time waits for it; it may happen without
    /// the device having sent anything.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.slot.event
    }

    /// Has the interrupt set the event of another vector of the same CPU, too, after its own: the
    /// thread that waits there looks at both. It goes on as long as this vector is there, whoever
    /// has the other one.
    ///
    /// # Errors
    /// [`NoVector`] if the other one is of another CPU.
    pub fn also_wake(&self, other: &Self) -> Result<(), NoVector> {
        if self.cpu != other.cpu {
            return Err(NoVector);
        }
        let slots = SLOTS[self.cpu.0 as usize].get().ok_or(NoVector)?;
        let mut numbers = (1..).zip(slots);
        let (number, _) = numbers
            .find(|(_, slot)| core::ptr::eq(*slot, other.slot))
            .ok_or(NoVector)?;
        self.slot.also.store(number, Ordering::Release);
        Ok(())
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        let mut messages = self.claim.messages.lock();
        if let Some(table) = messages.table {
            write_entry(table, self.entry, None);
        }
        messages.used.retain(|used| used.entry != self.entry);
        self.slot.free();
    }
}
