//! Role of this instance, supervisor or not: its descriptor, its window, and what follows from
//! them.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use abi::descriptor::{FLAG_NETWORK, FLAG_X2APIC};
use abi::layout::{DESCRIPTOR, NETWORK, WINDOW};
use abi::{Descriptor, Network, Window};
use mitigations::Mode;

use crate::cpu_table;

/// Address of the descriptor: in the boot code's hands first, at its fixed address afterwards.
static ADOPTED: AtomicPtr<Descriptor> = AtomicPtr::new(core::ptr::null_mut());
/// The TSC when this kernel's first instruction in Rust ran.
static ENTRY_TSC: AtomicU64 = AtomicU64::new(0);

/// This kernel was entered from the park page: it is an instance, whatever its descriptor says.
static ENTERED_AS_INSTANCE: AtomicBool = AtomicBool::new(false);

/// Notes that this kernel is an instance, first of all.
pub(crate) fn enter_as_instance() {
    ENTERED_AS_INSTANCE.store(true, Ordering::Relaxed);
}

/// Adopts a descriptor that the boot code has filled in.
pub(crate) fn adopt(descriptor: &'static Descriptor) {
    ADOPTED.store(
        core::ptr::from_ref(descriptor).cast_mut(),
        Ordering::Release,
    );
    cpu_table::init(descriptor);
}

/// Adopts the descriptor at its fixed address, which the tables in force map there, read-only.
///
/// # Panics
/// If it does not validate: then nothing is known of this instance, and it must not go on.
///
/// # Safety
/// The tables in force map a descriptor there that lives as long as this instance, and its author
/// only writes while the instance does not run.
pub(crate) unsafe fn adopt_mapped() {
    // SAFETY: by the caller's promise; all bit patterns are a `Descriptor`.
    let descriptor: &'static Descriptor =
        unsafe { &*core::ptr::with_exposed_provenance(DESCRIPTOR) };
    if let Err(error) = descriptor.validate() {
        panic!("{error}");
    }
    adopt(descriptor);
}

/// The partition descriptor of this instance.
///
/// # Panics
/// Before the boot code has adopted one.
#[must_use]
pub fn descriptor() -> &'static Descriptor {
    // SAFETY: null, or what `adopt` was given: a reference that is valid for ever.
    match unsafe { ADOPTED.load(Ordering::Acquire).as_ref() } {
        Some(descriptor) => descriptor,
        None => panic!("no partition descriptor yet"),
    }
}

fn adopted() -> Option<&'static Descriptor> {
    // SAFETY: as in `descriptor`.
    unsafe { ADOPTED.load(Ordering::Acquire).as_ref() }
}

/// Whether the local interrupt controllers are x2APICs, whose numbers have 32 bits.
#[must_use]
pub fn has_x2apic() -> bool {
    adopted().is_some_and(|descriptor| descriptor.has(FLAG_X2APIC))
}

/// True in the supervisor. Before there is a descriptor, whoever was not entered as an instance
/// boots a machine.
#[must_use]
pub fn is_supervisor() -> bool {
    match adopted() {
        Some(descriptor) => descriptor.is_supervisor(),
        None => !ENTERED_AS_INSTANCE.load(Ordering::Relaxed),
    }
}

/// The window this instance shares with its supervisor; `None` in the supervisor itself.
#[must_use]
pub(crate) fn window() -> Option<&'static Window> {
    if is_supervisor() {
        return None;
    }
    // SAFETY: an instance's tables map its window there for as long as it runs; it consists of
    // atomics.
    Some(unsafe { &*core::ptr::with_exposed_provenance(WINDOW) })
}

/// The pages of this instance's network; `None` if it has none, and in the supervisor.
pub(crate) fn network() -> Option<&'static Network> {
    if !descriptor().has(FLAG_NETWORK) {
        return None;
    }
    // SAFETY: the tables of an instance whose descriptor says so map its pages there for as long as
    // it runs; they consist of atomics.
    Some(unsafe { &*core::ptr::with_exposed_provenance(NETWORK) })
}

/// The kernel command line; empty before there is a descriptor.
#[must_use]
pub fn cmdline() -> &'static str {
    adopted().map_or("", Descriptor::cmdline)
}

/// The value of `name=value` on the command line; the last one counts.
#[must_use]
pub fn cmdline_value(name: &str) -> Option<&'static str> {
    value_in(cmdline(), name)
}

/// The value of `name=value` on `cmdline`; the last one counts.
pub(crate) fn value_in<'a>(cmdline: &'a str, name: &str) -> Option<&'a str> {
    cmdline
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .rfind(|(key, _)| *key == name)
        .map(|word| word.1)
}

/// Whether the command line has `word` by itself.
#[must_use]
pub fn cmdline_has(word: &str) -> bool {
    cmdline().split_whitespace().any(|w| w == word)
}

/// The choice of mitigations on the command line.
#[must_use]
pub(crate) fn mitigations() -> Mode {
    Mode::parse(cmdline())
}

pub(crate) fn set_entry_tsc(tsc: u64) {
    ENTRY_TSC.store(tsc, Ordering::Relaxed);
}

/// The TSC when this kernel was entered.
#[must_use]
pub fn boot_tsc() -> u64 {
    ENTRY_TSC.load(Ordering::Relaxed)
}
