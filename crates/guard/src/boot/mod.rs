//! Boot, from the first instruction to `kernel_main` (`docs/boot.md`).
//!
//! There are two ways in. A machine starts at `entry`'s 32-bit code, which a boot loader jumps to;
//! the code here then writes the supervisor's own partition descriptor. An instance starts at
//! `smp::instance_entry`, out of the park page, with a descriptor its supervisor has written. Both
//! go on in `run`: from the descriptor on there is one path.
//!
//! | file | subject |
//! |---|---|
//! | `entry` | the 32-bit entry, long mode, the first page tables |
//! | `machine` | the supervisor's descriptor |
//! | `clock` | rates of TSC and local APIC timer; wall clock |
//! | `devices` | devices as a supervisor that starts again in place needs them |

mod clock;
mod devices;
mod entry;
mod machine;

use core::ops::Range;

use abi::layout::{DESCRIPTOR, PAGE_SIZE, PARK};

use crate::arch;
use crate::cpu::CpuId;
use crate::mem::frame::Frame;
use crate::mem::{self, Start};
use crate::paging::build::{Access, ImageLayout, Shared};
use crate::{Authority, BootToken, faults, keep, log as logging, park, role, smp, timer};

unsafe extern "C" {
    static image_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static data_start: u8;
    static data_end: u8;
    static image_end: u8;
    static pristine_data: u8;
}

unsafe extern "Rust" {
    safe fn skerry_kernel_main(authority: Authority) -> !;
    safe fn skerry_kernel_secondary() -> !;
}

/// Names the functions of the kernel crate that the guard calls: on the first CPU, with everything
/// of the guard's set up and interrupts off, which gets the [`Authority`], and on each further CPU
/// of the instance.
#[macro_export]
macro_rules! entry {
    ($main:path, $secondary:path) => {
        const _: () = {
            // SAFETY: the one definition of this symbol, with the type the guard declares.
            #[unsafe(no_mangle)]
            fn skerry_kernel_main(authority: $crate::Authority) -> ! {
                let main: fn($crate::Authority) -> ! = $main;
                main(authority)
            }
            // SAFETY: as above.
            #[unsafe(no_mangle)]
            fn skerry_kernel_secondary() -> ! {
                let secondary: fn() -> ! = $secondary;
                secondary()
            }
        };
    };
}

/// Layout of the image as linked.
pub(crate) fn image() -> ImageLayout {
    ImageLayout {
        text: (&raw const image_start).addr()..(&raw const text_end).addr(),
        rodata: (&raw const text_end).addr()..(&raw const rodata_end).addr(),
        data: (&raw const rodata_end).addr()..(&raw const image_end).addr(),
    }
}

/// The parts of the image that an instance's copy is made of: what never changes, and the data as
/// it was when the boot loader left, which the entry code has put aside. The rest of the image is
/// zeroes.
pub(crate) struct ImageParts {
    /// Text and constants, from the image's start on.
    pub constant: &'static [u8],
    /// Offset of the data in the image.
    pub data_offset: usize,
    /// The data.
    pub data: &'static [u8],
}

/// See [`ImageParts`].
pub(crate) fn image_parts() -> ImageParts {
    let between = |range: Range<*const u8>| {
        // SAFETY: the bounds are the linker's; text and constants are mapped readable and never
        // change. The pristine copy is written by the entry code before any Rust runs, and never
        // after.
        unsafe { core::slice::from_raw_parts(range.start, range.end.addr() - range.start.addr()) }
    };
    let (start, data) = (&raw const image_start, (&raw const data_start).addr());
    let data_len = (&raw const data_end).addr() - data;
    let copy = &raw const pristine_data;
    ImageParts {
        constant: between(start..&raw const rodata_end),
        data_offset: data - start.addr(),
        data: between(copy..copy.wrapping_add(data_len)),
    }
}

/// First Rust code of a machine: called once by the entry assembly, on the boot stack, with
/// interrupts off.
extern "C" fn start_machine(kind: u32, info: u32) -> ! {
    role::set_entry_tsc(timer::tsc());
    logging::use_com1();
    // SAFETY: this is the entry code's call.
    let machine = unsafe { machine::build_descriptor(kind, info) };
    prepare_notes(kind == entry::IN_PLACE);

    let descriptor = machine.descriptor;
    role::adopt(descriptor);
    let frame_of =
        |va: usize| Frame(descriptor.image_frame + ((va - image().text.start) / PAGE_SIZE) as u64);
    let shared = [
        Shared {
            va: DESCRIPTOR,
            at: frame_of(core::ptr::from_ref(descriptor).addr()),
            pages: abi::descriptor::SIZE / PAGE_SIZE,
            access: Access::Read,
        },
        Shared {
            va: PARK,
            at: frame_of(park::page()),
            pages: 1,
            access: Access::ReadExecute,
        },
    ];
    // SAFETY: the descriptor was written from the firmware's memory map with everything in use
    // reserved; the boot tables map the low 4 GiB at their own addresses.
    unsafe {
        mem::init(
            descriptor,
            Start::Boot {
                base: 0,
                reach: 4 << 30,
            },
            &image(),
            &shared,
        );
    };
    // SAFETY: the tables just loaded map it there.
    unsafe { role::adopt_mapped() };

    run(|| {
        smp::bring_up(machine.cpus, kind == entry::IN_PLACE);
        crate::power::init(machine.power);
        crate::device::init(machine.places);
    })
}

/// Makes the supervisor's notes new, or sees that they hold, if it starts again in place.
fn prepare_notes(in_place: bool) {
    let Some(notes) = keep::notes() else {
        return;
    };
    if !in_place {
        notes.init();
    } else if notes.has_bad_record() {
        logging::early!("what was kept of an instance does not prove itself");
        crate::power::reset_machine();
    } else {
        // Before any memory is used that a device of the kernel before was told of.
        devices::silence(&notes);
    }
}

/// First Rust code of an instance's first CPU.
pub(crate) fn start_instance() -> ! {
    role::enter_as_instance();
    role::set_entry_tsc(timer::tsc());
    // From here on a panic ends this instance, and says so.
    logging::use_ring();
    if let Some(window) = role::window() {
        window
            .status
            .entry_tsc
            .store(role::boot_tsc(), core::sync::atomic::Ordering::Relaxed);
    }
    // SAFETY: the supervisor's tables, which are in force, map this instance's descriptor there.
    unsafe { role::adopt_mapped() };
    faults::at_boot("entry");
    // SAFETY: the descriptor validated and is the supervisor's word; the tables are complete.
    unsafe { mem::init(role::descriptor(), Start::Loaded, &image(), &[]) };
    faults::at_boot("memory");

    run(|| faults::at_boot("processor"))
}

/// The common path: the CPU, the log, what the role wants, and the kernel.
fn run(as_role: impl FnOnce()) -> ! {
    arch::init_cpu(CpuId(0));
    logging::init();

    as_role();

    skerry_kernel_main(Authority::new())
}

/// Called by each further CPU of the instance when it is set up.
pub(crate) fn enter_secondary() -> ! {
    skerry_kernel_secondary()
}

/// Brings the instance's further CPUs in: the supervisor starts its own at once, an instance asks
/// its supervisor to. They arrive in the kernel's secondary entry. False if there is no memory for
/// them; then they stay where they are.
pub fn start_further_cpus(_: &BootToken) -> bool {
    if role::descriptor().cpus().len() == 1 {
        return true;
    }
    if !smp::prepare() {
        return false;
    }
    match role::window() {
        None => {
            let wanted = role::descriptor().cpus().len() as u32 - 1;
            let came = smp::start_own();
            if came < wanted {
                log::warn!("{} of the supervisor's CPUs did not start", wanted - came);
            }
        }
        Some(window) => {
            window
                .status
                .wants_cpus
                .store(1, core::sync::atomic::Ordering::Release);
            crate::ipi::ring_peer();
        }
    }
    true
}
