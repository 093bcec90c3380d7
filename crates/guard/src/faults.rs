//! Faults on purpose, and a search of memory, for tests of the isolation between instances. The
//! supervisor refuses both; on its command line one can be asked for that has something stay in
//! quarantine for longer ([`doubts_reset`]).

use core::arch::asm;
use core::hint::black_box;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi::layout::PAGE_SIZE;

use crate::arch::apic;
use crate::device::Message;
use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::{FaultToken, cpu, ipi, irq, keep, mem, peers, role};

/// A way for a kernel to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `panic!`.
    Panic,
    /// Reads a kernel address that is not mapped.
    Wild,
    /// Stops this CPU with interrupts off, for ever.
    Hang,
    /// The same, deaf to NMIs as well: only a reset gets the CPU back.
    Deaf,
    /// Runs out of kernel stack.
    Overflow,
    /// Takes a machine check of which no bank says that anybody can go on.
    MachineCheck,
    /// Ends with interrupts waiting that its next owner would take for its own, one that stops all
    /// CPUs among them.
    Pending,
    /// Refuses from now on whatever is new in the descriptor's dynamic part.
    Refuse,
    /// Rings the supervisor without a pause, for ever.
    Ring,
    /// Writes random words where its peers look for messages, and rings them without a pause, for
    /// ever.
    Scribble,
    /// Tells a device, of the next page that it is lent, this address in its place.
    Stray(u64),
    /// Does not believe the next proofs that a function was reset, so many of them.
    Unreset(usize),
    /// Tells a device, as the next interrupt message that it is to send, these in its place.
    Message(Message),
}

impl Fault {
    /// The fault of this name, as tests write it to `/proc/skerry/fault`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "panic" => Self::Panic,
            "wild" => Self::Wild,
            "hang" => Self::Hang,
            "deaf" => Self::Deaf,
            "overflow" => Self::Overflow,
            "machine-check" => Self::MachineCheck,
            "pending" => Self::Pending,
            "refuse" => Self::Refuse,
            "ring" => Self::Ring,
            "scribble" => Self::Scribble,
            name => {
                let number = |text| u64::from_str_radix(text, 16).ok();
                if let Some(count) = name.strip_prefix("unreset=") {
                    return Some(Self::Unreset(count.parse().ok()?));
                }
                if let Some(message) = name.strip_prefix("message=") {
                    let (address, data) = message.split_once(':')?;
                    return Some(Self::Message(Message {
                        address: number(address)?,
                        data: number(data)?.try_into().ok()?,
                    }));
                }
                Self::Stray(number(name.strip_prefix("stray=")?)?)
            }
        })
    }
}

/// Flag: this instance's NMIs are not to be answered.
static IGNORES_NMI: AtomicBool = AtomicBool::new(false);

/// Flag: nothing new in the descriptor is adopted.
static REFUSES_EPOCHS: AtomicBool = AtomicBool::new(false);

/// Whether a proof that a function was reset is not to be believed: the first one in a supervisor
/// whose command line says `fault=unreset`, or as many as `fault=unreset=2` says.
#[must_use]
pub fn doubts_reset() -> bool {
    static DOUBTED: AtomicUsize = AtomicUsize::new(0);
    let fault = role::cmdline_value("fault").filter(|_| role::is_supervisor());
    let Some(count) = fault.and_then(|fault| fault.strip_prefix("unreset")) else {
        return false;
    };
    let count = (count.strip_prefix('=')).map_or(Ok(1), str::parse);
    count.is_ok_and(|count| DOUBTED.fetch_add(1, Ordering::Relaxed) < count)
}

/// Number of proofs that a function of this instance was reset which are not to be believed.
static DOUBTS: AtomicUsize = AtomicUsize::new(0);

/// Whether a proof that a function was reset is not to be believed in this instance
/// ([`Fault::Unreset`]).
#[must_use]
pub fn doubts_own_reset() -> bool {
    let less = |count: usize| count.checked_sub(1);
    DOUBTS
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// Step at which this supervisor is to panic, as a number of [`CRASH_POINTS`] and one more; 0: at
/// none.
static CRASH_AT: AtomicUsize = AtomicUsize::new(0);

/// Steps of management at which a supervisor can be made to panic.
const CRASH_POINTS: [&str; 10] = [
    "start: granted",
    "start: sent",
    "change: staged",
    "change: told",
    "change: adopted",
    "device: staged",
    "device: told",
    "halt: begun",
    "end: proved",
    "end: taken back",
];

/// Has this supervisor panic when it next comes to a step of management of that name. False if
/// there is no such step, and in an instance.
#[must_use]
pub fn crash_at(_: &FaultToken, step: &str) -> bool {
    let found = CRASH_POINTS.iter().position(|point| *point == step);
    let found = found.filter(|_| role::is_supervisor());
    CRASH_AT.store(found.map_or(0, |number| number + 1), Ordering::Relaxed);
    found.is_some()
}

/// Damages what is kept of the first instance for a supervisor that starts again: one copy, or
/// both.
pub fn damage_record(_: &FaultToken, both: bool) {
    if let Some(notes) = keep::notes()
        && let Some((place, _)) = notes.records().next()
    {
        (0..=usize::from(both)).for_each(|copy| notes.damage(place, copy));
    }
}

/// Whether a supervisor that has started again is to panic before it looks after its instances, as
/// its command line says: each time (`fault=adopt`), or the time of a number (`fault=adopt@3`).
pub(crate) fn fails_to_adopt() -> bool {
    let restarts = keep::restarts();
    let wanted = role::cmdline_value("fault").filter(|_| restarts > 0);
    wanted.is_some_and(|wanted| match wanted.split_once('@') {
        None => wanted == "adopt",
        Some((what, number)) => what == "adopt" && number.parse() == Ok(restarts),
    })
}

/// A step of management, at which [`crash_at`] may have a supervisor panic.
pub(crate) fn crash_point(step: &'static str) {
    let number = CRASH_AT.load(Ordering::Relaxed);
    if number > 0 && CRASH_POINTS.get(number - 1) == Some(&step) {
        panic!("on purpose, at {step}");
    }
}

/// Address that a device is told next; none is at this one.
static STRAY: AtomicU64 = AtomicU64::new(NO_STRAY);
const NO_STRAY: u64 = u64::MAX;

/// The address that a device is to be told in place of a page's, once, if somebody wants that.
pub(crate) fn stray_address() -> Option<u64> {
    let is_set = STRAY.load(Ordering::Relaxed) != NO_STRAY;
    let stray = is_set.then(|| STRAY.swap(NO_STRAY, Ordering::Relaxed))?;
    (stray != NO_STRAY).then_some(stray)
}

/// Message that a device is told next: address and number; none has this address.
static MESSAGE: (AtomicU64, AtomicU64) = (AtomicU64::new(NO_STRAY), AtomicU64::new(0));

/// The message that a device is to be told in place of its own, once, if somebody wants that.
pub(crate) fn stray_message() -> Option<Message> {
    let (address, data) = &MESSAGE;
    let is_set = address.load(Ordering::Relaxed) != NO_STRAY;
    let address = is_set.then(|| address.swap(NO_STRAY, Ordering::Relaxed))?;
    (address != NO_STRAY).then(|| Message {
        address,
        data: data.load(Ordering::Relaxed) as u32,
    })
}

/// Whether this instance refuses what is new in its descriptor.
pub(crate) fn refuses_epochs() -> bool {
    REFUSES_EPOCHS.load(Ordering::Relaxed)
}

/// Fails as told. Returns after [`Fault::Refuse`], [`Fault::Unreset`], [`Fault::Stray`] and
/// [`Fault::Message`], and in the supervisor, where it does nothing.
pub fn inject(_: &FaultToken, fault: Fault) {
    if !role::is_supervisor() {
        fail(fault);
    }
}

/// Fails on the way up if an instance's command line says `fault=NAME@PLACE` and `place` is that
/// place.
pub(crate) fn at_boot(place: &str) {
    let wanted = role::cmdline_value("fault").and_then(|value| value.split_once('@'));
    if let Some((name, at)) = wanted
        && at == place
        && !role::is_supervisor()
        && let Some(fault) = Fault::from_name(name)
    {
        fail(fault);
    }
}

/// Ends the supervisor's kernel in that way: by a panic, or an exception that is none of its
/// programs'. Does nothing in an instance, and for other faults.
pub fn end_supervisor(_: &FaultToken, fault: Fault) {
    let ends = matches!(
        fault,
        Fault::Panic | Fault::Wild | Fault::Overflow | Fault::MachineCheck
    );
    if role::is_supervisor() && ends {
        fail(fault);
    }
}

fn fail(fault: Fault) {
    match fault {
        Fault::Panic => panic!("on purpose"),
        Fault::Wild => {
            // The far end of the area for stacks: never handed out, so never mapped.
            let nowhere = abi::layout::MMIO - 2 * PAGE_SIZE;
            // SAFETY: not sound, and not meant to be: the read faults, which ends this instance
            // before its result exists.
            black_box(unsafe { ptr::read_volatile(nowhere as *const u64) });
        }
        Fault::Hang => hang(),
        Fault::Deaf => {
            IGNORES_NMI.store(true, Ordering::SeqCst);
            apic::send_nmi(apic::id());
            hang();
        }
        Fault::Overflow => {
            black_box(overflow_stack(1));
        }
        // SAFETY: calls the handler of the exception, which is in place on each CPU that runs
        // threads, as the processor would; it has no error code.
        Fault::MachineCheck => unsafe { asm!("int 18") },
        Fault::Pending => {
            cpu::irqs_off();
            for vector in [
                irq::HALT_VECTOR,
                irq::RESCHEDULE_VECTOR,
                irq::TLB_VECTOR,
                irq::DOORBELL_VECTOR,
                irq::TIMER_VECTOR,
            ] {
                apic::send_self(vector);
            }
            panic!("on purpose, with interrupts waiting");
        }
        Fault::Refuse => REFUSES_EPOCHS.store(true, Ordering::Relaxed),
        Fault::Unreset(count) => DOUBTS.store(count, Ordering::Relaxed),
        Fault::Stray(address) => STRAY.store(address, Ordering::Relaxed),
        Fault::Message(message) => {
            MESSAGE.1.store(message.data.into(), Ordering::Relaxed);
            MESSAGE.0.store(message.address, Ordering::Relaxed);
        }
        Fault::Ring => loop {
            ipi::ring_peer();
        },
        Fault::Scribble => peers::scribble(),
    }
}

/// Factor of a word in [`search`]; odd, so different words have different products.
pub const SEARCH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Looks at all memory of this instance as it is, free frames included, for an aligned word whose
/// product with [`SEARCH_FACTOR`] is `product`; returns in how many frames there is one, and in how
/// many it looked. (A product, because the word itself would be found in the memory of whoever
/// asks.) In the supervisor it looks nowhere.
#[must_use]
pub fn search(_: &FaultToken, product: u64) -> (u64, u64) {
    const WORDS: usize = PAGE_SIZE / size_of::<u64>();
    if role::is_supervisor() {
        return (0, 0);
    }
    let holds = |frame: Frame| {
        let words = direct::ptr(frame).cast::<u64>();
        (0..WORDS).any(|index| {
            // SAFETY: all memory of an instance is in its direct map, whole frames of it; it may
            // change meanwhile, so the reads are volatile, and any bits are an `u64`.
            unsafe { words.add(index).read_volatile() }.wrapping_mul(SEARCH_FACTOR) == product
        })
    };
    mem::leaving::while_all_stays(|| {
        mem::all_frames().fold((0, 0), |(found, all), frame| {
            (found + u64::from(holds(frame)), all + 1)
        })
    })
}

/// Called by the NMI handler first of all: stays there, where no other NMI is taken, if that is the
/// fault.
pub(crate) fn on_nmi() {
    if IGNORES_NMI.load(Ordering::Relaxed) {
        hang();
    }
}

fn hang() -> ! {
    cpu::irqs_off();
    loop {
        black_box(());
    }
}

#[expect(unconditional_recursion, reason = "that is the fault")]
fn overflow_stack(depth: u64) -> u64 {
    let filler = black_box([depth; 64]);
    black_box(overflow_stack(depth + 1)) + filler[63]
}
