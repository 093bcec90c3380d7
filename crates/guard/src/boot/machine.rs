//! The supervisor's partition descriptor: everything of the machine that nobody else owns, which at
//! boot is everything.

use core::cell::UnsafeCell;
use core::ops::Range;

use abi::Descriptor;
use abi::descriptor::{
    CpuEntry, FLAG_COM1, FLAG_INVARIANT_TSC, FLAG_TSC_DEADLINE, FLAG_X2APIC, IRQ_ACTIVE_LOW,
    IRQ_LEVEL, IoApic, IrqLine, MAX_CPUS, MAX_RANGES, MemRange, PortRange, RESERVED_FIRMWARE,
    RESERVED_IMAGE, ROLE_SUPERVISOR, Reserved,
};
use abi::layout::{GRANULE_FRAMES, LAPIC_MMIO, PAGE_SIZE};
use acpi::{MadtEntry, Memory, PowerOff, Tables};
use arrayvec::ArrayVec;
use bootinfo::BootInfo;
use mitigations::Mode;
use raw_cpuid::CpuId;
use topology::{Siblings, cores};
use zerocopy::FromZeros;

use super::clock::{self, Calibration};
use super::entry::{IN_PLACE, MULTIBOOT2, PVH};
use crate::arch::{apic, cpu, timer};
use crate::device::Places;
use crate::keep::Reset;
use crate::log::early;
use crate::mem::early;
use crate::{keep, park, power, role};

/// The machine as the boot code found it, beside the descriptor.
pub(super) struct Machine {
    /// The supervisor's descriptor, in the image.
    pub descriptor: &'static Descriptor,
    /// Number of CPUs, which is the number of park slots. The first is this one.
    pub cpus: usize,
    /// Registers that switch the machine off.
    pub power: PowerOff,
    /// Configuration space of PCI.
    pub places: Places,
}

struct Cell(UnsafeCell<Descriptor>);

// SAFETY: written by `build_descriptor` only, which runs once, before anybody else exists.
unsafe impl Sync for Cell {}

static DESCRIPTOR: Cell = Cell(UnsafeCell::new(
    // SAFETY: a descriptor is integers and bytes; all zeroes is a value of it.
    unsafe { core::mem::zeroed() },
));

/// Physical memory below 4 GiB, seen at its own addresses on the boot tables.
struct LowMemory;

impl Memory for LowMemory {
    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        if at == 0
            || at
                .checked_add(to.len() as u64)
                .is_none_or(|end| end > 4 << 30)
        {
            return false;
        }
        // SAFETY: the boot tables map it, `build_descriptor` runs on them, and `to` is this code's
        // own. What is read may be anything; all callers treat it as such.
        unsafe {
            core::ptr::copy_nonoverlapping(
                core::ptr::with_exposed_provenance(at as usize),
                to.as_mut_ptr(),
                to.len(),
            );
        };
        true
    }
}

/// Reads what loader, firmware and processor say, and writes the supervisor's descriptor; installs
/// the park page. A supervisor that starts again in place has the clocks of before, and is none if
/// the machine is not described as it was.
///
/// # Safety
/// Called once, on the boot tables, by the entry code's call with what the loader passed.
pub(super) unsafe fn build_descriptor(kind: u32, info: u32) -> Machine {
    let again = (kind == IN_PLACE).then(kept_boot);
    let calibration = again.is_none().then(Calibration::start);
    let (kind, info_at) = again.map_or((kind, info), |boot| (boot.kind, boot.info));
    let info = match kind {
        PVH => BootInfo::from_pvh(&LowMemory, u64::from(info_at)),
        MULTIBOOT2 => BootInfo::from_multiboot2(&LowMemory, u64::from(info_at)),
        _ => None,
    };
    let Some(info) = info else {
        panic!("the boot loader's information makes no sense")
    };
    // SAFETY: this runs once, before anybody else refers to it.
    let descriptor = unsafe { &mut *DESCRIPTOR.0.get() };
    descriptor.stamp();
    descriptor.role = ROLE_SUPERVISOR;
    descriptor.set_label("supervisor");
    descriptor.set_cmdline(info.cmdline());

    let tables = match info.rsdp.or_else(|| given_root_pointer(info.cmdline())) {
        Some(rsdp) => Tables::new(&LowMemory, rsdp),
        None => Tables::of_bios(&LowMemory),
    };
    if tables.is_none() {
        early!("no ACPI tables: one CPU, no interrupt lines, no power switch");
    }
    let cpuid = CpuId::new();
    let x2apic = cpuid.get_feature_info().is_some_and(|f| f.has_x2apic());
    descriptor.lapic_phys = tables
        .as_ref()
        .and_then(acpi::local_apic_address)
        .unwrap_or(0xfee0_0000);
    if x2apic {
        descriptor.flags |= FLAG_X2APIC;
    } else {
        map_local_apic(descriptor.lapic_phys);
    }
    apic::init_mode(x2apic);

    let mut apic_ids = ArrayVec::<u32, MAX_CPUS>::new();
    apic_ids.push(apic::id());
    let mut irqs = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|isa: u8| IrqLine {
        isa,
        gsi: u32::from(isa),
        ..IrqLine::new_zeroed()
    });
    if let Some(tables) = &tables {
        tables.for_each_madt_entry(|entry| match entry {
            MadtEntry::Cpu { apic_id } => {
                // Firmware may list a CPU twice, by its old and its new kind of entry.
                if !apic_ids.contains(&apic_id) && (x2apic || apic_id < 0xff) {
                    let _ = apic_ids.try_push(apic_id);
                }
            }
            MadtEntry::IoApic {
                id,
                address,
                gsi_base,
            } => {
                let ioapic = IoApic {
                    phys: u64::from(address),
                    gsi_base,
                    id: u32::from(id),
                };
                let _ = descriptor.push_ioapic(ioapic);
            }
            MadtEntry::Override { source, gsi, flags } => {
                if let Some(line) = irqs.get_mut(usize::from(source)) {
                    line.gsi = gsi;
                    line.flags = if flags & 3 == 3 { IRQ_ACTIVE_LOW } else { 0 }
                        | if flags >> 2 & 3 == 3 { IRQ_LEVEL } else { 0 };
                }
            }
        });
        // The cascade of the old controllers is no line, and the clock's and the lines below are
        // claimed by nobody.
        for line in irqs {
            if line.isa != 2 {
                let _ = descriptor.push_irq(line);
            }
        }
    }
    // COM1 is the log's; the others are there for drivers.
    descriptor.flags |= FLAG_COM1;
    for base in [0x3f8, 0x2f8, 0x3e8, 0x2e8] {
        let _ = descriptor.push_ports(PortRange { base, len: 8 });
    }

    let own = role::value_in(info.cmdline(), "supervisor_cpus");
    let own = own.and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
    for (slot, apic_id) in arrange(&mut apic_ids, own, info.cmdline()) {
        let _ = descriptor.push_cpu(CpuEntry {
            apic_id: *apic_id,
            slot: slot as u32,
        });
    }

    describe_memory(descriptor, &info, again.is_some());
    let places = tables.as_ref().map(places).unwrap_or_default();
    keep::set_plan(if keep::is_refused(info.cmdline()) {
        Err(Reset::Asked)
    } else {
        reserve_notes(descriptor, &places)
    });
    let check = keep::check_of(descriptor);
    if again.is_some_and(|boot| boot.descriptor != check) {
        early!("the machine is not described as it was: it cannot start again in place");
        power::reset_machine();
    }
    describe_features(descriptor, &cpuid);
    match (again, calibration) {
        (Some(boot), _) => {
            (descriptor.tsc_hz, descriptor.lapic_hz) = (boot.tsc_hz, boot.lapic_hz);
            (descriptor.tsc_base, descriptor.wall_base_ns) = (boot.tsc_base, boot.wall_base_ns);
        }
        (None, Some(calibration)) => describe_clock(descriptor, calibration),
        (None, None) => unreachable!("measured unless it starts again in place"),
    }
    if again.is_none() && keep::notes().is_some() {
        keep::note_boot(keep::Boot {
            kind,
            info: info_at,
            tsc_hz: descriptor.tsc_hz,
            lapic_hz: descriptor.lapic_hz,
            tsc_base: descriptor.tsc_base,
            wall_base_ns: descriptor.wall_base_ns,
            descriptor: check,
        });
    }
    if let Err(error) = descriptor.validate() {
        panic!("the machine's description: {error}");
    }
    let usable = |range: &Range<u64>| {
        range.contains(&park::TRAMPOLINE) && range.contains(&(park::TRAMPOLINE + 0xfff))
    };
    assert!(
        info.memory.iter().any(usable),
        "no memory at {:#x} to start CPUs from",
        park::TRAMPOLINE
    );
    // SAFETY: on the boot tables, once; memory below 1 MiB is in nobody's descriptor.
    unsafe { park::install(&apic_ids, x2apic) };
    let power = tables.map(|tables| tables.power()).unwrap_or_default();
    Machine {
        descriptor,
        cpus: apic_ids.len(),
        power,
        places,
    }
}

/// How the machine was booted, of a supervisor that starts again in place.
fn kept_boot() -> keep::Boot {
    let Some(boot) = keep::boot() else {
        early!("what was kept of the boot does not prove itself");
        power::reset_machine()
    };
    boot
}

/// Has room for the notes of a supervisor that is to start again in place, where that is possible.
fn reserve_notes(descriptor: &mut Descriptor, places: &Places) -> Result<(), Reset> {
    let segments = places.config_windows.iter().map(|window| window.segment);
    if segments.max().unwrap_or(0) > 0 {
        return Err(Reset::Segments);
    }
    if !keep::reserve(descriptor, early::lowest_free) {
        return Err(Reset::NoMemory);
    }
    let at = descriptor
        .phys_of(keep::first_frame().0)
        .unwrap_or_default();
    // SAFETY: reserved just now, in a row below 4 GiB, which the boot tables map at its own
    // addresses.
    unsafe { keep::map_at(core::ptr::with_exposed_provenance_mut(at as usize)) };
    Ok(())
}

/// Configuration space of PCI, as far as there is room to note it, and the table of units.
fn places(tables: &Tables<'_, LowMemory>) -> Places {
    let mut places = Places::default();
    tables.for_each_config_window(|window| {
        let _ = places.config_windows.try_push(window);
    });
    let table = tables.find(b"DMAR").or_else(|| tables.find(b"IVRS"));
    places.remapping = table.map(|(at, header)| (at, header.length));
    places
}

/// ACPI's root pointer as the command line says it, in hexadecimal: for loaders that do not, on a
/// machine without a BIOS.
fn given_root_pointer(cmdline: &str) -> Option<u64> {
    let given = role::value_in(cmdline, "acpi_rsdp")?;
    u64::from_str_radix(given.trim_start_matches("0x"), 16).ok()
}

/// Brings the CPUs into the order of the slots, in which the supervisor takes its own from the
/// start: whole cores, or one thread of each core if no others are used. Returns those it has,
/// which are `wanted` at most, and the first one at least.
fn arrange<'a>(
    apic_ids: &'a mut ArrayVec<u32, MAX_CPUS>,
    wanted: usize,
    cmdline: &str,
) -> impl Iterator<Item = (usize, &'a u32)> {
    let levels = cpu::levels();
    let listed = apic_ids.clone();
    let single_threads = Mode::parse(cmdline).single_threads;
    let order = if single_threads {
        Siblings::Last
    } else {
        Siblings::First
    };
    let mut ranked: ArrayVec<((usize, usize), u32), MAX_CPUS> = listed
        .iter()
        .map(|&id| (cores::rank(levels, &listed, id, order), id))
        .collect();
    ranked.sort_unstable();
    for (slot, (_, id)) in apic_ids.iter_mut().zip(&ranked) {
        *slot = *id;
    }
    let first_threads = ranked.iter().filter(|(rank, _)| rank.0 == 0).count();
    let most = if single_threads {
        first_threads
    } else {
        apic_ids.len()
    };
    apic_ids.iter().enumerate().take(wanted.clamp(1, most))
}

/// Memory from 1 MiB on, and what of it is in use. `again`: the archive was looked at before, by
/// the kernel that this one follows in place.
fn describe_memory(descriptor: &mut Descriptor, info: &BootInfo, again: bool) {
    const FIRST: u64 = 1 << 20;
    const PAGE: u64 = PAGE_SIZE as u64;
    let mut runs = info.memory.clone();
    runs.sort_unstable_by_key(|run| run.start);
    let mut next_frame = 0u64;
    for run in &runs {
        let start = run.start.max(FIRST).next_multiple_of(PAGE);
        // A last page that is only partly memory, or not reported as such, is left out, unless the
        // archive ends in it: QEMU's microvm puts it there. What else is in that page was read
        // before it is freed with the archive.
        let whole = run.end / PAGE * PAGE;
        let rounded = whole + PAGE;
        let ends_here = |module: &Range<u64>| {
            module.start < whole && (whole + 1..=rounded).contains(&module.end)
        };
        let end = if info.module.as_ref().is_some_and(ends_here) {
            rounded
        } else {
            whole
        };
        if start >= end {
            continue;
        }
        // Congruent to the physical number, so that granules of one are granules of the other.
        let first_frame = next_frame + start / PAGE % GRANULE_FRAMES;
        let range = MemRange {
            first_frame,
            phys: start,
            count: (end - start) / PAGE,
        };
        if !descriptor.push_range(range) {
            early!("more than {MAX_RANGES} runs of memory: the rest is left unused");
            break;
        }
        next_frame = (first_frame + range.count).next_multiple_of(GRANULE_FRAMES);
    }
    let image = super::image();
    let start = park::loaded_at(image.text.start);
    let pages = (image.data.end - image.text.start) / PAGE_SIZE;
    descriptor.image_frame = reserve(
        descriptor,
        start..start + (pages * PAGE_SIZE) as u64,
        RESERVED_IMAGE,
    )
    .expect("the image is in memory that the loader reports");
    descriptor.image_frames = pages as u64;
    for own in &info.own {
        reserve(descriptor, own.clone(), RESERVED_FIRMWARE);
    }
    if let Some(module) = &info.module {
        place_archive(descriptor, module, again);
    }
}

/// Says where the archive is. One that is not whole pages of memory is copied to where there is
/// room: the firmware counts memory as its own, at the end of what it reports, that QEMU's loader
/// wrote the archive's last pages to if the machine has disks of several kinds. `again`: it has
/// been copied.
fn place_archive(descriptor: &mut Descriptor, module: &Range<u64>, again: bool) {
    const PAGE: u64 = PAGE_SIZE as u64;
    let Some(len) = module.end.checked_sub(module.start) else {
        return;
    };
    let pages = len.div_ceil(PAGE);
    let place = frame_of_run(descriptor, module.clone());
    let first = match place {
        Some(first) if module.start.is_multiple_of(PAGE) => first,
        _ if module.end > 4 << 30 => {
            early!("the initramfs is above 4 GiB, and not in memory: ignored");
            return;
        }
        _ => {
            let room = early::lowest_free(descriptor, pages);
            let Some((room, to)) =
                room.and_then(|room| Some((room.0, descriptor.phys_of(room.0)?)))
            else {
                early!("no room for the initramfs of {len} bytes: ignored");
                return;
            };
            if !again {
                // SAFETY: on the boot tables, which map both below 4 GiB. Where it goes is memory
                // that the descriptor leaves free, for which nobody is allocated anything before
                // this returns; all that is still read of loader and firmware is elsewhere.
                unsafe {
                    core::ptr::copy(
                        core::ptr::with_exposed_provenance::<u8>(module.start as usize),
                        core::ptr::with_exposed_provenance_mut(to as usize),
                        len as usize,
                    );
                }
            }
            room
        }
    };
    descriptor.initramfs_frame = first;
    descriptor.initramfs_len = len;
}

/// The frame that a byte of memory is in.
fn frame_at(descriptor: &Descriptor, phys: u64) -> Option<u64> {
    frame_of_run(descriptor, phys..phys + 1)
}

/// The frame that the first one of some bytes is in, if all of them are in one run of memory: then
/// they are in frames with numbers in a row.
fn frame_of_run(descriptor: &Descriptor, bytes: Range<u64>) -> Option<u64> {
    let has_all = |r: &&MemRange| {
        let end = r.phys + r.count * PAGE_SIZE as u64;
        (r.phys..end).contains(&bytes.start) && bytes.end <= end
    };
    let range = descriptor.ranges().iter().find(has_all)?;
    Some(range.first_frame + (bytes.start - range.phys) / PAGE_SIZE as u64)
}

/// Marks memory as in use; returns its first frame, if it is the supervisor's memory at all.
fn reserve(descriptor: &mut Descriptor, bytes: Range<u64>, kind: u32) -> Option<u64> {
    let first_frame = frame_at(descriptor, bytes.start)?;
    let pages = (bytes.end.div_ceil(PAGE_SIZE as u64) - bytes.start / PAGE_SIZE as u64) as u32;
    assert!(
        descriptor.push_reserved(Reserved {
            first_frame,
            count: pages,
            kind
        }),
        "a handful of reservations"
    );
    Some(first_frame)
}

fn describe_clock(descriptor: &mut Descriptor, calibration: Calibration) {
    let (unix_time, read_at) = (clock::unix_time(), timer::tsc());
    let rates = calibration.finish();
    descriptor.tsc_hz = rates.tsc;
    descriptor.lapic_hz = rates.lapic;
    descriptor.tsc_base = role::boot_tsc();
    let since_boot =
        u128::from(read_at - descriptor.tsc_base) * 1_000_000_000 / u128::from(rates.tsc);
    descriptor.wall_base_ns = (unix_time * 1_000_000_000).saturating_sub(since_boot as u64);
}

fn describe_features(descriptor: &mut Descriptor, cpuid: &CpuId<raw_cpuid::CpuIdReaderNative>) {
    if cpuid
        .get_feature_info()
        .is_some_and(|f| f.has_tsc_deadline())
    {
        descriptor.flags |= FLAG_TSC_DEADLINE;
    }
    if cpuid
        .get_advanced_power_mgmt_info()
        .is_some_and(|p| p.has_invariant_tsc())
    {
        descriptor.flags |= FLAG_INVARIANT_TSC;
    }
}

/// Maps the local APIC's registers at their fixed address on the boot tables, for machines without
/// x2APIC.
fn map_local_apic(phys: u64) {
    use core::sync::atomic::{AtomicU64, Ordering};

    #[repr(C, align(4096))]
    struct Table([AtomicU64; 512]);
    static TABLES: [Table; 3] = [const { Table([const { AtomicU64::new(0) }; 512]) }; 3];
    const PRESENT_WRITE: u64 = 3;
    const UNCACHED: u64 = 1 << 4;
    let phys_of = |table: &Table| park::loaded_at(core::ptr::from_ref(table).addr());
    let [third, second, first] = &TABLES;
    third.0[LAPIC_MMIO >> 30 & 511].store(phys_of(second) | PRESENT_WRITE, Ordering::Relaxed);
    second.0[LAPIC_MMIO >> 21 & 511].store(phys_of(first) | PRESENT_WRITE, Ordering::Relaxed);
    first.0[LAPIC_MMIO >> 12 & 511].store(phys | PRESENT_WRITE | UNCACHED, Ordering::Relaxed);
    let root = crate::arch::msr::cr3() as usize;
    // SAFETY: the boot tables' root, seen at its own address; its entry for device registers is
    // unused.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u64>(root)
            .add(LAPIC_MMIO >> 39 & 511)
            .write_volatile(phys_of(third) | PRESENT_WRITE);
    }
}
