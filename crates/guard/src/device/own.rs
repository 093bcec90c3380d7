//! The PCI functions of an instance, as its descriptor names them (`docs/descriptor.md`).
//!
//! They are looked at when somebody first asks, and follow the descriptor from then on.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::layout::PAGE_SIZE;
use abi::live::{
    self, Entry, KIND_FUNCTION, KIND_REGISTERS, MAX_ENTRIES, Messages, Refusal, Registers,
};
use arrayvec::ArrayVec;
use lfmutex::Mutex;
use ring::epoch::Copied;

use crate::{instance, role};

/// Most registers of a function: those of six base address registers.
pub const MAX_REGISTERS: usize = 6;

/// A function's place in the machine: its number, and where its configuration space and its
/// registers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionPlace {
    /// Segment, bus, and device and function in one byte, as one number.
    pub number: u32,
    /// Identity of a virtual function, which does not say itself what it is: manufacturer in the
    /// lower half, and product. 0 of others.
    pub identity: u32,
    /// Physical address of its page of configuration space.
    pub config: u64,
    /// Interrupt messages, if a unit remaps them.
    pub messages: Option<Messages>,
    /// Registers that are memory, in the order of the base address registers.
    pub registers: ArrayVec<Registers, MAX_REGISTERS>,
}

impl FunctionPlace {
    /// The entries for it in a descriptor's dynamic part.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let registers = self.registers.iter().map(Registers::entry);
        let function =
            live::virtual_function(self.number, self.identity, self.config, self.messages);
        core::iter::once(function).chain(registers)
    }
}

/// Entries for the functions of this instance and their registers; nothing before somebody has
/// looked.
static ENTRIES: Mutex<Option<Vec<Entry>>> = Mutex::new(None);

/// Flag: a unit confines the functions, which reach frames by their numbers.
static ARE_CONFINED: AtomicBool = AtomicBool::new(false);

/// Calls `see` with the entries, having looked for them.
fn with_entries<T>(see: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
    let mut entries = ENTRIES.lock();
    see(entries.get_or_insert_with(|| {
        let found = look();
        note_confined(&found);
        found
    }))
}

/// A copy of the entries; `None` without memory.
pub(crate) fn entries() -> Option<Vec<Entry>> {
    with_entries(|entries| {
        let mut copy = Vec::new();
        copy.try_reserve_exact(entries.len()).ok()?;
        copy.extend_from_slice(entries);
        Some(copy)
    })
}

/// Has what a function's entries name be mapped from here on, which are of an epoch that was
/// checked. False without memory.
pub(crate) fn let_in(place: &FunctionPlace) -> bool {
    with_entries(|entries| {
        let is_room = entries.try_reserve(1 + MAX_REGISTERS).is_ok();
        if is_room {
            entries.extend(place.entries());
            note_confined(entries);
        }
        is_room
    })
}

/// Has nothing of the function of a number be mapped any more.
pub(crate) fn shut_out(number: u32) {
    with_entries(|entries| {
        let is_it = |entry: &Entry| {
            live::is_of(entry, KIND_FUNCTION) && live::function_of(entry).0 == number
        };
        if let Some(first) = entries.iter().position(is_it) {
            let count = live::function_entries(entries, number).len();
            entries.drain(first..first + count);
        }
        note_confined(entries);
    });
}

/// Takes in whether a unit confines what these entries name. All are alike, and without functions
/// nothing is told to any.
fn note_confined(entries: &[Entry]) {
    let are_remapped = (entries.iter())
        .any(|entry| live::is_of(entry, KIND_FUNCTION) && live::function_of(entry).2.is_some());
    ARE_CONFINED.store(are_remapped, Ordering::Release);
}

/// Whether devices reach this instance's frames by their numbers, as they are confined.
pub(super) fn are_confined() -> bool {
    ARE_CONFINED.load(Ordering::Acquire)
}

/// Looks at the dynamic part of the descriptor.
fn look() -> Vec<Entry> {
    if role::is_supervisor() {
        return Vec::new();
    }
    let Some(mut copy) = instance::room_for_epoch() else {
        log::error!("no memory to look for devices");
        return Vec::new();
    };
    let count = match instance::live_table().read(&mut copy) {
        // Before the first there are none.
        Copied::Whole { epoch: 0, .. } => return Vec::new(),
        Copied::Whole { count, .. } => count,
        // The one that lists functions is there until it is answered, which is later: this is
        // another one, of an instance without functions.
        Copied::Torn => return Vec::new(),
    };
    let checked = match usize::try_from(count) {
        Ok(count @ ..=MAX_ENTRIES) => {
            copy.truncate(count);
            instance::check_epoch(&copy, None)
        }
        _ => Err(Refusal::Count),
    };
    if let Err(refusal) = checked {
        log::error!("no devices: the descriptor is refused: {refusal}");
        return Vec::new();
    }
    copy.retain(live::is_of_function);
    copy
}

/// The functions of this instance, by number; none in the supervisor, whose functions are found by
/// a scan.
pub fn own_functions() -> Vec<FunctionPlace> {
    with_entries(|entries| places(entries).collect())
}

/// The functions of entries that were checked.
pub(crate) fn places(entries: &[Entry]) -> impl Iterator<Item = FunctionPlace> {
    let starts = (0..entries.len()).filter(|index| live::is_of(&entries[*index], KIND_FUNCTION));
    starts.map(|start| {
        let (number, config, messages) = live::function_of(&entries[start]);
        let behind = entries[start + 1..].iter();
        let registers = behind
            .take_while(|entry| live::is_of(entry, KIND_REGISTERS))
            .map(Registers::of);
        FunctionPlace {
            number,
            identity: live::identity_of(&entries[start]),
            config,
            messages,
            registers: registers.collect(),
        }
    })
}

/// Whether addresses are all within what one entry for a function names.
pub(super) fn names(addresses: Range<u64>) -> bool {
    with_entries(|entries| are_named(entries, &addresses))
}

fn are_named(entries: &[Entry], addresses: &Range<u64>) -> bool {
    let is_within = |start: u64, bytes: u64| {
        start <= addresses.start && addresses.end <= start.saturating_add(bytes)
    };
    entries.iter().any(|entry| {
        if live::is_of(entry, KIND_FUNCTION) {
            is_within(live::function_of(entry).1, PAGE_SIZE as u64)
        } else {
            let registers = Registers::of(entry);
            live::is_of(entry, KIND_REGISTERS) && is_within(registers.phys, registers.bytes)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_entries_name_is_ones_own() {
        let registers = |bar, phys, bytes| Registers {
            bar,
            flags: 0,
            phys,
            bytes,
        };
        let disk = FunctionPlace {
            number: 0x100,
            identity: 0x0010_1b36,
            config: 0xb010_0000,
            messages: Some(Messages {
                address: 0xfee0_0038,
                vector: 0x40,
                count: 16,
            }),
            registers: [
                registers(1, 0xfe00_0000, 4096),
                registers(4, 0xfe40_0000, 1 << 14),
            ]
            .into_iter()
            .collect(),
        };
        let card = FunctionPlace {
            number: 0x200,
            config: 0xb020_0000,
            ..FunctionPlace::default()
        };
        let entries: Vec<Entry> = disk.entries().chain(card.entries()).collect();
        assert_eq!(entries.len(), 4);
        assert!(places(&entries).eq([disk, card]));
        let named = |start: u64, bytes: u64| are_named(&entries, &(start..start + bytes));
        for (start, bytes) in [
            (0xb010_0000, 4096),
            (0xb020_0ffc, 4),
            (0xfe00_0000, 4096),
            (0xfe40_3ff0, 16),
        ] {
            assert!(named(start, bytes), "{start:#x}");
        }
        for (start, bytes) in [
            (0xb010_0000, 4097),
            (0xb00f_ffff, 2),
            (0xb010_1000, 4096),
            (0xfe00_0fff, 2),
            (0xfe00_1000, 4),
            (0xfe40_0000, 1 << 15),
            (0, 4),
        ] {
            assert!(!named(start, bytes), "{start:#x}");
        }
        assert!(!are_named(
            &[live::function(1, 0, None)],
            &(u64::MAX - 3..u64::MAX)
        ));
    }
}
