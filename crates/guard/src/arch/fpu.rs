//! Registers of programs that the kernel does not use: floating point, vectors, the bases of FS and
//! GS.
//!
//! They stay in the CPU across system calls, interrupts and kernel threads. They are saved when
//! their thread leaves the CPU, and loaded when it comes back only if another program's were loaded
//! there since, or the thread comes from another CPU. The save area has XSAVE's standard format,
//! which is also what Linux puts into signal frames; XSAVEOPT writes neither what is in its initial
//! state nor what is unchanged. Without XSAVE the format is FXSAVE's, its first 512 bytes.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use x86_spec::control::cr4;
use x86_spec::debug::{DR7_CONDITIONS, DR7_ENABLE, DR7_EXACT, DR7_FIXED};
pub use x86_spec::segment::SegmentBases;
use x86_spec::xsave::{
    self, DEFAULT_MXCSR_MASK, HEADER_BYTES, LEGACY, LEGACY_BYTES, MXCSR_MASK, signal_frame,
};

use super::cpu::{CpuId, IrqsOff};
use super::features::{self, Features};
use super::usercopy::{self, UserFault};
use super::{cpu, msr, user};
use crate::speculation::{self, Restrictions};

/// Bits of DR7 that a program may choose.
const DR7_ALLOWED: u64 = DR7_CONDITIONS | DR7_EXACT | DR7_ENABLE;

static BYTES: AtomicU32 = AtomicU32::new(LEGACY_BYTES as u32);
static ENABLED: AtomicU64 = AtomicU64::new(LEGACY);
static ALLOWED_MXCSR: AtomicU32 = AtomicU32::new(DEFAULT_MXCSR_MASK);

/// Sets up XCR0 and the initial state on this CPU. The first one decides which components there
/// are, and finds out the sizes; a further one that lacks a component is a panic.
pub(super) fn init_cpu(cpu: CpuId) {
    if features::has(Features::XSAVE) {
        let enabled = if cpu.0 == 0 {
            let leaf = __cpuid_count(0xd, 0);
            xsave::enabled(u64::from(leaf.edx) << 32 | u64::from(leaf.eax))
        } else {
            ENABLED.load(Ordering::Relaxed)
        };
        // SAFETY: CR4.OSXSAVE is set; the value holds x87 and components in permitted combinations,
        // which the first CPU supports. One that does not refuses the value by an exception.
        unsafe {
            asm!("xsetbv", in("ecx") 0, in("eax") enabled as u32, in("edx") (enabled >> 32) as u32, options(nostack, nomem));
        }
        if cpu.0 == 0 {
            ENABLED.store(enabled, Ordering::Relaxed);
            // EBX: the size for what XCR0 enables now.
            BYTES.store(__cpuid_count(0xd, 0).ebx, Ordering::Relaxed);
        }
    }
    forget_registers();
    let mut probe = LegacyArea([0; LEGACY_BYTES]);
    // SAFETY: the area is 16-byte aligned and 512 bytes long; `fninit` has no operand.
    unsafe { asm!("fninit", "fxsave64 [{}]", in(reg) &raw mut probe, options(nostack)) };
    let mask = u32::from_le_bytes([
        probe.0[MXCSR_MASK],
        probe.0[MXCSR_MASK + 1],
        probe.0[MXCSR_MASK + 2],
        probe.0[MXCSR_MASK + 3],
    ]);
    if mask != 0 {
        ALLOWED_MXCSR.store(mask, Ordering::Relaxed);
    }
}

/// Puts all registers of this module into their initial state, so that nothing of the CPU's last
/// owner is in them.
fn forget_registers() {
    let mut initial = Initial([0; LEGACY_BYTES + HEADER_BYTES]);
    xsave::initialize(&mut initial.0);
    let area = &raw const initial;
    // SAFETY: the area is 64-byte aligned, holds the legacy part in its initial state and a header
    // that says that nothing else is in it; XRSTOR needs CR4.OSXSAVE, which is set with the
    // feature.
    unsafe {
        if features::has(Features::XSAVE) {
            asm!("xrstor64 [{}]", in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, readonly));
        } else {
            asm!("fxrstor64 [{}]", in(reg) area, options(nostack, readonly));
        }
    }
}

#[repr(C, align(64))]
struct Initial([u8; LEGACY_BYTES + HEADER_BYTES]);

#[repr(C, align(16))]
struct LegacyArea([u8; LEGACY_BYTES]);

fn area_bytes() -> usize {
    BYTES.load(Ordering::Relaxed) as usize
}

/// The processor's area, and the word that ends a signal frame.
fn layout() -> Layout {
    Layout::from_size_align(area_bytes() + 4, 64).expect("the size is CPUID's and small")
}

/// Bytes of a signal frame's floating-point part, including its final magic word.
#[must_use]
pub fn signal_frame_size() -> usize {
    if features::has(Features::XSAVE) {
        area_bytes() + 4
    } else {
        LEGACY_BYTES
    }
}

/// The software-reserved bytes of a signal frame with the extended format.
fn description() -> usercopy::SignalFrame {
    let size = area_bytes() as u64;
    usercopy::SignalFrame {
        magic_and_total: u64::from(signal_frame::MAGIC1) | (size + 4) << 32,
        features: ENABLED.load(Ordering::Relaxed),
        size,
    }
}

/// Not the address of a user segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidAddress;

/// State that hardly any program has, and that costs the others one look.
#[derive(Clone, Copy, Default)]
struct Uncommon {
    /// Whether any of the following is not as in other programs.
    any: bool,
    /// Addresses that are watched (DR0 to DR3), below `USER_END`.
    watched: [u64; 4],
    /// DR7 without its fixed bit; 0 unless something is watched.
    debug_control: u64,
    /// Whether the program must not read the time-stamp counter (`CR4.TSD`).
    no_tsc: bool,
    restrictions: Restrictions,
}

impl Uncommon {
    /// The same with [`Self::any`] as it must be.
    fn noted(self) -> Self {
        let any = self.debug_control != 0 || self.no_tsc || !self.restrictions.is_empty();
        Self { any, ..self }
    }
}

/// Saved floating-point and vector registers of one thread, and its segment bases.
pub struct UserFpu {
    area: NonNull<u8>,
    /// Canonical addresses.
    bases: SegmentBases,
    uncommon: Uncommon,
    /// The CPU that has these registers loaded, if it says so too (`CpuArea::fpu_area`), or
    /// [`NO_CPU`].
    cpu: AtomicU32,
}

/// No CPU.
const NO_CPU: u32 = u32::MAX;

// SAFETY: exclusively owned memory, like a `Box<[u8]>`.
unsafe impl Send for UserFpu {}
// SAFETY: shared references only read it.
unsafe impl Sync for UserFpu {}

impl UserFpu {
    /// The state a new program starts with; `None` if memory is short.
    #[must_use]
    pub fn new() -> Option<Self> {
        let mut fpu = Self::allocate()?;
        xsave::initialize(fpu.bytes_mut());
        Some(fpu)
    }

    /// Makes this the same state as `other`, which is that of no running thread or was just saved.
    pub fn copy_from(&mut self, other: &Self) {
        *self.cpu.get_mut() = NO_CPU;
        self.bytes_mut().copy_from_slice(other.bytes());
        self.bases = other.bases;
        self.uncommon = Uncommon {
            no_tsc: other.uncommon.no_tsc,
            restrictions: other.uncommon.restrictions,
            ..self.uncommon
        }
        .noted();
    }

    fn allocate() -> Option<Self> {
        // SAFETY: the layout's size is at least 512.
        let area = NonNull::new(unsafe { alloc_zeroed(layout()) })?;
        Some(Self {
            area,
            bases: SegmentBases::default(),
            uncommon: Uncommon::default(),
            cpu: AtomicU32::new(NO_CPU),
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, initialised, and borrowed with `self`.
        unsafe { core::slice::from_raw_parts(self.area.as_ptr(), layout().size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.area.as_ptr(), layout().size()) }
    }

    /// Base addresses of FS and GS.
    #[must_use]
    pub fn bases(&self) -> SegmentBases {
        self.bases
    }

    /// Changes the base addresses of FS and GS.
    ///
    /// # Errors
    /// [`InvalidAddress`] if one is not below `USER_END`.
    pub fn set_bases(&mut self, bases: SegmentBases) -> Result<(), InvalidAddress> {
        if bases.fs.max(bases.gs) >= user::USER_END as u64 {
            return Err(InvalidAddress);
        }
        self.bases = bases;
        *self.cpu.get_mut() = NO_CPU;
        Ok(())
    }

    /// Watches for four addresses as the DR7 `control` says. Takes effect with `restore`.
    ///
    /// # Errors
    /// [`InvalidAddress`] if one is not below `USER_END`, or `control` has bits other than those
    /// that switch an address on and tell length and kind of access.
    pub fn set_breakpoints(
        &mut self,
        addresses: [u64; 4],
        control: u64,
    ) -> Result<(), InvalidAddress> {
        if addresses
            .iter()
            .any(|&address| address >= user::USER_END as u64)
            || control & !DR7_ALLOWED != 0
        {
            return Err(InvalidAddress);
        }
        self.uncommon = Uncommon {
            watched: addresses,
            debug_control: if control & DR7_ENABLE != 0 {
                control
            } else {
                0
            },
            ..self.uncommon
        }
        .noted();
        *self.cpu.get_mut() = NO_CPU;
        Ok(())
    }

    /// Whether the program may read the time-stamp counter.
    #[must_use]
    pub fn has_tsc(&self) -> bool {
        !self.uncommon.no_tsc
    }

    /// Allows it to, or not: then the instruction is a general protection fault. Takes effect with
    /// `restore`.
    pub fn set_tsc(&mut self, allowed: bool) {
        self.uncommon.no_tsc = !allowed;
        self.uncommon = self.uncommon.noted();
        *self.cpu.get_mut() = NO_CPU;
    }

    /// Restrictions of its speculation.
    #[must_use]
    pub fn restrictions(&self) -> Restrictions {
        self.uncommon.restrictions
    }

    /// Restricts its speculation, as far as the processor can. Takes effect with `restore`.
    pub fn restrict(&mut self, restrictions: Restrictions) {
        self.uncommon.restrictions = restrictions;
        self.uncommon = self.uncommon.noted();
        *self.cpu.get_mut() = NO_CPU;
    }

    /// Switches this CPU's breakpoints off, until `restore`.
    #[inline]
    pub fn disarm(&mut self, _: IrqsOff<'_>) {
        if self.uncommon.any {
            *self.cpu.get_mut() = NO_CPU;
            load_debug(&Uncommon::default());
            speculation::leave(self.restrictions());
        }
    }

    /// Saves this CPU's registers here, where they were loaded from; it watches nothing any more.
    #[inline]
    pub fn save(&mut self, irqs: IrqsOff<'_>) {
        self.disarm(irqs);
        let area = self.area.as_ptr();
        let features = features::get();
        // SAFETY: the area is 64-byte aligned, as large as XCR0 needs, and exclusively ours.
        // XSAVEOPT leaves out only what is unchanged since it was restored from this very area.
        unsafe {
            if features.contains(Features::XSAVEOPT) {
                asm!("xsaveopt64 [{}]", in(reg) area, in("eax") -1, in("edx") -1, options(nostack, preserves_flags));
            } else if features.contains(Features::XSAVE) {
                asm!("xsave64 [{}]", in(reg) area, in("eax") -1, in("edx") -1, options(nostack, preserves_flags));
            } else {
                asm!("fxsave64 [{}]", in(reg) area, options(nostack, preserves_flags));
            }
        }
        if features.contains(Features::FSGSBASE) {
            // Without it a program cannot change them by itself.
            self.bases = read_bases(irqs);
        }
    }

    /// Loads this CPU's registers from here, unless they are still there. All of them: nothing of
    /// another program's stays.
    #[inline]
    pub fn restore(&self, irqs: IrqsOff<'_>) {
        let area = self.area.as_ptr();
        let (here, loaded) = (cpu::current().0, &cpu::area().fpu_area);
        if loaded.load(Ordering::Relaxed) == area as usize
            && self.cpu.load(Ordering::Relaxed) == here
        {
            return;
        }
        loaded.store(area as usize, Ordering::Relaxed);
        self.cpu.store(here, Ordering::Relaxed);
        // SAFETY: the area is aligned and holds what `new`, `save` or `load_signal_frame` put
        // there, none of which sets a reserved bit, so this cannot fault.
        unsafe {
            if features::has(Features::XSAVE) {
                asm!("xrstor64 [{}]", in(reg) area, in("eax") -1, in("edx") -1, options(nostack, preserves_flags, readonly));
            } else {
                asm!("fxrstor64 [{}]", in(reg) area, options(nostack, preserves_flags, readonly));
            }
        }
        load_bases(self.bases, irqs);
        speculation::fill_return_stack();
        if self.uncommon.any {
            load_debug(&self.uncommon);
            speculation::arrive(self.restrictions());
        }
    }

    /// Stores this CPU's registers, which belong here, as a signal frame in the program's memory.
    /// The address is a multiple of 64.
    ///
    /// # Errors
    /// [`UserFault`] if there is no room for all of it.
    pub fn store_signal_frame(&mut self, to: usize, irqs: IrqsOff<'_>) -> Result<(), UserFault> {
        if features::has(Features::XSAVE) {
            return usercopy::store_registers(to, &description());
        }
        self.save(irqs);
        self.restore(irqs);
        usercopy::write_bytes(to, self.signal_frame())
    }

    /// Takes this CPU's registers, which belong here, from a signal frame in the program's memory.
    ///
    /// # Errors
    /// [`UserFault`] if not all of it is there. The registers may have changed, to something of the
    /// program's.
    pub fn take_signal_frame(&mut self, from: usize, irqs: IrqsOff<'_>) -> Result<(), UserFault> {
        if features::has(Features::XSAVE) && usercopy::load_registers(from, &description()).is_ok()
        {
            return Ok(());
        }
        // The program has changed it, or it was never ours: what can be loaded of it is.
        let result = self.load_signal_frame(|to| usercopy::read_bytes(to, from));
        self.restore(irqs);
        result
    }

    /// The state as Linux puts it into signal frames, [`signal_frame_size`] bytes. The frame's
    /// address must be a multiple of 64 for a program that restores it by itself.
    pub fn signal_frame(&mut self) -> &[u8] {
        let total = signal_frame_size();
        let frame = self.bytes_mut();
        if features::has(Features::XSAVE) {
            xsave::fill_in(frame);
            signal_frame::describe(&mut frame[..total], ENABLED.load(Ordering::Relaxed));
        }
        &frame[..total]
    }

    /// Takes the state from a signal frame, whose [`signal_frame_size`] bytes `read` copies.
    /// Whatever the program wrote there, and even if `read` fails half way, the result can be
    /// loaded.
    ///
    /// # Errors
    /// What `read` says.
    pub fn load_signal_frame<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        *self.cpu.get_mut() = NO_CPU;
        let (size, total) = (area_bytes(), signal_frame_size());
        let bytes = self.bytes_mut();
        let result = read(&mut bytes[..total]);
        let present = if signal_frame::is_extended(bytes, size) {
            xsave::present(bytes)
        } else {
            LEGACY
        };
        let present = present & ENABLED.load(Ordering::Relaxed);
        xsave::sanitize(
            &mut bytes[..size],
            present,
            ALLOWED_MXCSR.load(Ordering::Relaxed),
        );
        result
    }
}

/// The program's bases of FS and GS, on a machine with FSGSBASE.
#[inline]
fn read_bases(_: IrqsOff<'_>) -> SegmentBases {
    let (fs, gs): (u64, u64);
    // SAFETY: CR4.FSGSBASE is set. Between the two SWAPGS interrupts are off, and NMI and machine
    // check handlers do not rely on GS.
    unsafe {
        asm!(
            "rdfsbase {}",
            "swapgs",
            "rdgsbase {}",
            "swapgs",
            out(reg) fs,
            out(reg) gs,
            options(nostack, preserves_flags)
        );
    }
    SegmentBases { fs, gs }
}

/// Loads the bases of FS and GS for a program. They are canonical: user addresses, or what the
/// processor took from the program before.
#[inline]
fn load_bases(SegmentBases { fs, gs }: SegmentBases, _: IrqsOff<'_>) {
    // SAFETY: the bases are canonical. As in `read_bases`; without FSGSBASE, KERNEL_GS_BASE holds
    // the program's base while the kernel runs.
    unsafe {
        if features::has(Features::FSGSBASE) {
            asm!(
                "wrfsbase {}",
                "swapgs",
                "wrgsbase {}",
                "swapgs",
                in(reg) fs,
                in(reg) gs,
                options(nostack, preserves_flags)
            );
        } else {
            msr::write(msr::FS_BASE, fs);
            msr::write(msr::KERNEL_GS_BASE, gs);
        }
    }
}

/// Loads the debug registers, and whether ring 3 may read the time-stamp counter. The addresses are
/// a program's, and DR7 has no bits but the allowed ones. Interrupts are off.
#[cold]
fn load_debug(state: &Uncommon) {
    let [a, b, c, d] = state.watched;
    // SAFETY: what is watched is a program's: in the kernel the exception is passed over (`trap`).
    // Reserved bits are as they must be, and the one of CR4 that changes means nothing in ring 0.
    unsafe {
        asm!(
            // Nothing is watched while the addresses change.
            "mov dr7, {off}",
            "mov dr0, {a}",
            "mov dr1, {b}",
            "mov dr2, {c}",
            "mov dr3, {d}",
            "mov dr7, {control}",
            "mov {a}, cr4",
            "and {a}, {keep}",
            "or {a}, {no_tsc}",
            "mov cr4, {a}",
            off = in(reg) DR7_FIXED,
            a = inout(reg) a => _,
            b = in(reg) b,
            c = in(reg) c,
            d = in(reg) d,
            control = in(reg) state.debug_control | DR7_FIXED,
            no_tsc = in(reg) if state.no_tsc { cr4::TSD } else { 0 },
            keep = const !cr4::TSD as i32,
            options(nostack)
        );
    }
}

impl Drop for UserFpu {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `allocate`, whose size does not change after the
        // first CPU is set up.
        unsafe { dealloc(self.area.as_ptr(), layout()) };
    }
}

#[cfg(test)]
mod tests {
    use x86_spec::xsave::{INITIAL_FCW, MXCSR};

    use super::*;

    #[test]
    fn legacy_frames_round_trip_and_mxcsr_is_masked() {
        let mut fpu = UserFpu::new().unwrap();
        let mut frame = fpu.signal_frame().to_vec();
        assert_eq!(frame.len(), LEGACY_BYTES);
        assert_eq!(frame[..2], INITIAL_FCW.to_le_bytes());
        frame[MXCSR..MXCSR + 4].fill(0xff);
        frame[200] = 7;
        let read = |to: &mut [u8]| {
            to.copy_from_slice(&frame);
            Ok::<(), ()>(())
        };
        fpu.load_signal_frame(read).unwrap();
        let mut copy = UserFpu::new().unwrap();
        copy.copy_from(&fpu);
        assert_eq!(
            copy.bytes()[MXCSR..MXCSR + 4],
            DEFAULT_MXCSR_MASK.to_le_bytes()
        );
        assert_eq!(copy.bytes()[200], 7);
        assert_eq!(fpu.load_signal_frame(|_| Err(5)), Err(5));
    }
}
