//! The partition descriptor: everything an instance knows about the machine (decision 004).
//!
//! The supervisor writes it before the instance starts; the instance sees it read-only at
//! [`crate::layout::DESCRIPTOR`]. An instance probes nothing: what is not in here, it does not
//! have. The supervisor runs from one too, written by its boot code.
//!
//! Physical addresses appear in here and are used by the guard alone.

use core::mem::{offset_of, size_of};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// `"SKERRYPD"` as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SKERRYPD");
/// Version of the layout below; both sides must agree exactly.
pub const VERSION: u32 = 3;
/// Most CPUs in one instance.
pub const MAX_CPUS: usize = 256;
/// Most memory ranges in one instance.
pub const MAX_RANGES: usize = 64;
/// Most boot-time reservations.
pub const MAX_RESERVED: usize = 32;
/// Most I/O port ranges.
pub const MAX_PORTS: usize = 32;
/// Most interrupt lines.
pub const MAX_IRQS: usize = 16;
/// Most I/O APICs.
pub const MAX_IOAPICS: usize = 8;
/// Frame numbers end here: 64 TiB, the size of the direct map's part of the address space.
pub const MAX_FRAMES: u64 = 1 << 34;
/// Bytes of the kernel command line.
pub const CMDLINE_BYTES: usize = 1024;
/// Bytes of the label.
pub const LABEL_BYTES: usize = 64;

/// The instance owns what nobody else owns, and creates the others.
pub const ROLE_SUPERVISOR: u32 = 0;
/// The instance runs on a slice given by a supervisor.
pub const ROLE_SUBOS: u32 = 1;

/// Trust mode: page tables and the compiler keep the instance in (decision 007).
pub const TRUST_COOPERATIVE: u32 = 0;

/// The CPUs' APICs are in x2APIC mode (registers are MSRs); otherwise their page is mapped at
/// `LAPIC_MMIO`.
pub const FLAG_X2APIC: u32 = 1 << 0;
/// MONITOR/MWAIT must not be used for idling (absent, or emulated as a busy loop).
pub const FLAG_NO_MWAIT: u32 = 1 << 1;
/// The local APIC timer accepts TSC deadlines.
pub const FLAG_TSC_DEADLINE: u32 = 1 << 2;
/// The TSC runs at a constant rate in all power states.
pub const FLAG_INVARIANT_TSC: u32 = 1 << 3;
/// Flag: a 16550 is at port 0x3f8 and this instance may write its log to it.
pub const FLAG_COM1: u32 = 1 << 4;
/// The random seed cannot be guessed: whoever drew it had enough to draw from.
pub const FLAG_SEEDED: u32 = 1 << 5;
/// The instance has a network, and its pages ([`crate::Network`]).
pub const FLAG_NETWORK: u32 = 1 << 6;
/// The instance has places for peers, and their pages ([`crate::messages`]).
pub const FLAG_PEERS: u32 = 1 << 7;
/// The instance has places for members of groups, too.
pub const FLAG_GROUPS: u32 = 1 << 9;

/// One CPU of the instance. Its index in the table is its CPU number; the first one enters the
/// kernel first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CpuEntry {
    /// Destination of its interrupts.
    pub apic_id: u32,
    /// Slot of this CPU in the supervisor's park area, or [`CpuEntry::NO_SLOT`].
    pub slot: u32,
}

impl CpuEntry {
    /// A CPU that has no park slot (a CPU the supervisor keeps for itself).
    pub const NO_SLOT: u32 = u32::MAX;
}

/// A run of frames that is contiguous in physical memory too.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MemRange {
    /// Number of its first frame within the instance.
    pub first_frame: u64,
    /// Physical address of that frame.
    pub phys: u64,
    /// Number of frames.
    pub count: u64,
}

/// Frames that are in use when the instance starts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Reserved {
    /// First frame.
    pub first_frame: u64,
    /// Number of frames.
    pub count: u32,
    /// One of the `RESERVED_*` numbers.
    pub kind: u32,
}

/// Firmware, boot loader or otherwise unusable for good.
pub const RESERVED_FIRMWARE: u32 = 0;
/// The kernel image.
pub const RESERVED_IMAGE: u32 = 1;
/// Page tables and boot stacks.
pub const RESERVED_TABLES: u32 = 2;
/// The initramfs; free once it is unpacked.
pub const RESERVED_INITRAMFS: u32 = 3;
/// The boot blob; free once it is read.
pub const RESERVED_BOOT_BLOB: u32 = 4;
/// The pristine copy of `.data`, the park area, descriptors and windows (supervisor only).
pub const RESERVED_SUPERVISOR: u32 = 5;

/// A run of I/O ports the instance may use.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PortRange {
    /// First port.
    pub base: u32,
    /// Number of ports.
    pub len: u32,
}

/// An interrupt line the instance may use.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IrqLine {
    /// Number of the line as an ISA interrupt.
    pub isa: u8,
    /// `IRQ_*` bits.
    pub flags: u8,
    /// Zero.
    pub reserved: u16,
    /// Global system interrupt of the line, i.e. the I/O APIC input.
    pub gsi: u32,
}

/// The line is level-triggered.
pub const IRQ_LEVEL: u8 = 1 << 0;
/// The line is active-low.
pub const IRQ_ACTIVE_LOW: u8 = 1 << 1;

/// An I/O APIC the instance may program.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IoApic {
    /// Physical address of its registers.
    pub phys: u64,
    /// First global system interrupt of this I/O APIC.
    pub gsi_base: u32,
    /// Id of this I/O APIC.
    pub id: u32,
}

/// The partition descriptor. Prefer the accessors to the fields: they clamp the counts.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Descriptor {
    /// Magic number: [`MAGIC`].
    pub magic: u64,
    /// Version of the layout: [`VERSION`].
    pub version: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// `ROLE_*`.
    pub role: u32,
    /// Number of the instance; 0 is the supervisor.
    pub instance_id: u32,
    /// `TRUST_*`.
    pub trust: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Entries of `cpus` in use.
    pub ncpus: u32,
    /// Entries of `ranges` in use.
    pub nranges: u32,
    /// Entries of `reserved` in use.
    pub nreserved: u32,
    /// Entries of `ports` in use.
    pub nports: u32,
    /// Entries of `irqs` in use.
    pub nirqs: u32,
    /// Entries of `ioapics` in use.
    pub nioapics: u32,
    /// Bytes of `cmdline` in use.
    pub cmdline_len: u32,
    /// Bytes of `label` in use.
    pub label_len: u32,
    /// TSC ticks per second.
    pub tsc_hz: u64,
    /// Local APIC timer ticks per second with divider 1.
    pub lapic_hz: u64,
    /// Unix time in nanoseconds at the moment the TSC stood at `tsc_base`.
    pub wall_base_ns: u64,
    /// See `wall_base_ns`; the instance's monotonic clock is 0 there too.
    pub tsc_base: u64,
    /// Physical address of the local APICs' registers (xAPIC mode).
    pub lapic_phys: u64,
    /// Seed of the instance's random generator, never given twice; zeroes in the supervisor's.
    pub random_seed: [u8; 32],
    /// APIC id of the supervisor CPU that takes this instance's doorbells.
    pub doorbell_apic_id: u32,
    /// Vector of those doorbells.
    pub doorbell_vector: u32,
    /// Root of the park page tables, physical.
    pub park_cr3: u64,
    /// Entry of the park code, virtual, valid in the instance and under `park_cr3`.
    pub park_entry: u64,
    /// Address of the slots, virtual, valid under `park_cr3` only.
    pub park_slots: u64,
    /// First frame of the boot blob.
    pub boot_blob_frame: u64,
    /// Bytes of the boot blob; 0 if there is none.
    pub boot_blob_len: u64,
    /// First frame of the initramfs.
    pub initramfs_frame: u64,
    /// Bytes of the initramfs; 0 if there is none.
    pub initramfs_len: u64,
    /// First frame of the kernel image, which is contiguous in frame numbers.
    pub image_frame: u64,
    /// Frames of the kernel image.
    pub image_frames: u64,
    /// First frame of the boot page tables' root.
    pub root_table_frame: u64,
    /// Physical address of the frame that holds this descriptor, for the supervisor's own use.
    pub self_phys: u64,
    /// See [`Self::frame_limit`].
    pub limit_frames: u64,
    /// See [`Self::cpu_limit`].
    pub limit_cpus: u64,
    /// The CPUs.
    pub cpus: [CpuEntry; MAX_CPUS],
    /// The memory, ascending by frame number, without overlaps.
    pub ranges: [MemRange; MAX_RANGES],
    /// Ranges of the memory that are in use at the start.
    pub reserved: [Reserved; MAX_RESERVED],
    /// The I/O ports.
    pub ports: [PortRange; MAX_PORTS],
    /// The interrupt lines.
    pub irqs: [IrqLine; MAX_IRQS],
    /// The I/O APICs.
    pub ioapics: [IoApic; MAX_IOAPICS],
    /// The kernel command line, UTF-8.
    pub cmdline: [u8; CMDLINE_BYTES],
    /// The instance's name, UTF-8.
    pub label: [u8; LABEL_BYTES],
    /// Zero.
    pub padding: [u8; PADDING],
}

/// Fixed size of a descriptor: four pages.
pub const SIZE: usize = 16 << 10;
const HEAD: usize = 248;
const TABLES: usize = MAX_CPUS * size_of::<CpuEntry>()
    + MAX_RANGES * size_of::<MemRange>()
    + MAX_RESERVED * size_of::<Reserved>()
    + MAX_PORTS * size_of::<PortRange>()
    + MAX_IRQS * size_of::<IrqLine>()
    + MAX_IOAPICS * size_of::<IoApic>()
    + CMDLINE_BYTES
    + LABEL_BYTES;
const PADDING: usize = SIZE - HEAD - TABLES;

const _: () = {
    assert!(
        size_of::<CpuEntry>() == 8 && size_of::<MemRange>() == 24 && size_of::<Reserved>() == 16
    );
    assert!(size_of::<PortRange>() == 8 && size_of::<IrqLine>() == 8 && size_of::<IoApic>() == 16);
    assert!(offset_of!(Descriptor, role) == 16);
    assert!(offset_of!(Descriptor, ncpus) == 32);
    assert!(offset_of!(Descriptor, tsc_hz) == 64);
    assert!(offset_of!(Descriptor, random_seed) == 104);
    assert!(offset_of!(Descriptor, doorbell_apic_id) == 136);
    assert!(offset_of!(Descriptor, park_cr3) == 144);
    assert!(offset_of!(Descriptor, boot_blob_frame) == 168);
    assert!(offset_of!(Descriptor, cpus) == HEAD);
    assert!(size_of::<Descriptor>() == SIZE);
};

/// Why a descriptor is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The magic number is wrong: there is no descriptor here.
    Magic,
    /// Written by a kernel of another version.
    Version(u32),
    /// The size field is wrong.
    Size(u32),
    /// The role is unknown.
    Role(u32),
    /// A count exceeds its table (the field's name), or a table that must not be empty is.
    Count(&'static str),
    /// Two CPUs share an APIC id.
    DuplicateCpu(u32),
    /// A memory range is empty, unaligned, out of order, overlapping or beyond the address space;
    /// its index.
    Range(usize),
    /// A run of reserved frames, of the initramfs or of the boot blob lies outside the memory.
    Outside(&'static str),
    /// A port range ends beyond port 65535; its index.
    Port(usize),
    /// A clock rate is zero.
    Clock,
    /// The most frames are more than can have numbers.
    Limit,
    /// The command line or the label is no UTF-8.
    Text(&'static str),
}

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Magic => f.write_str("no partition descriptor (wrong magic)"),
            Self::Version(v) => write!(
                f,
                "partition descriptor of version {v}, this kernel speaks {VERSION}"
            ),
            Self::Size(s) => write!(f, "partition descriptor of {s} bytes instead of {SIZE}"),
            Self::Role(r) => write!(f, "unknown role {r}"),
            Self::Count(what) => write!(f, "count of {what} out of range"),
            Self::DuplicateCpu(id) => write!(f, "APIC id {id} twice"),
            Self::Range(i) => write!(f, "memory range {i} malformed"),
            Self::Outside(what) => write!(f, "{what} outside the instance's memory"),
            Self::Port(i) => write!(f, "port range {i} malformed"),
            Self::Clock => f.write_str("clock rate missing"),
            Self::Limit => f.write_str("limit of frames out of range"),
            Self::Text(what) => write!(f, "{what} is no UTF-8"),
        }
    }
}

fn used<T>(table: &[T], count: u32) -> &[T] {
    &table[..(count as usize).min(table.len())]
}

impl Descriptor {
    /// An empty descriptor with magic, version and size filled in.
    #[must_use]
    pub fn empty() -> Self {
        let mut d = Self::new_zeroed();
        d.stamp();
        d
    }

    /// Fills in magic, version and size, in a descriptor that was zeroed in place.
    pub fn stamp(&mut self) {
        self.magic = MAGIC;
        self.version = VERSION;
        self.size = SIZE as u32;
    }

    /// The CPUs of the instance.
    #[must_use]
    pub fn cpus(&self) -> &[CpuEntry] {
        used(&self.cpus, self.ncpus)
    }

    /// The memory of the instance.
    #[must_use]
    pub fn ranges(&self) -> &[MemRange] {
        used(&self.ranges, self.nranges)
    }

    /// Frames in use at the start.
    #[must_use]
    pub fn reserved(&self) -> &[Reserved] {
        used(&self.reserved, self.nreserved)
    }

    /// I/O ports of the instance.
    #[must_use]
    pub fn ports(&self) -> &[PortRange] {
        used(&self.ports, self.nports)
    }

    /// Interrupt lines of the instance.
    #[must_use]
    pub fn irqs(&self) -> &[IrqLine] {
        used(&self.irqs, self.nirqs)
    }

    /// I/O APICs of the instance.
    #[must_use]
    pub fn ioapics(&self) -> &[IoApic] {
        used(&self.ioapics, self.nioapics)
    }

    /// The kernel command line; empty if it is no UTF-8.
    #[must_use]
    pub fn cmdline(&self) -> &str {
        core::str::from_utf8(used(&self.cmdline, self.cmdline_len)).unwrap_or("")
    }

    /// The instance's name; empty if it is no UTF-8.
    #[must_use]
    pub fn label(&self) -> &str {
        core::str::from_utf8(used(&self.label, self.label_len)).unwrap_or("")
    }

    /// Whether this is the supervisor's descriptor.
    #[must_use]
    pub fn is_supervisor(&self) -> bool {
        self.role == ROLE_SUPERVISOR
    }

    /// Number of places that the instance has for peers.
    #[must_use]
    pub fn places(&self) -> usize {
        crate::messages::places(self.has(FLAG_PEERS), self.has(FLAG_GROUPS))
    }

    /// Whether all the given `FLAG_*` bits are set.
    #[must_use]
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether `len` ports from `base` all belong to the instance, within one of its ranges.
    #[must_use]
    pub fn owns_ports(&self, base: u16, len: u16) -> bool {
        let (start, end) = (u64::from(base), u64::from(base) + u64::from(len));
        len != 0
            && end <= 0x1_0000
            && self
                .ports()
                .iter()
                .any(|p| u64::from(p.base) <= start && end <= u64::from(p.base) + u64::from(p.len))
    }

    /// The instance's interrupt line for an ISA interrupt number.
    #[must_use]
    pub fn isa_irq(&self, isa: u8) -> Option<IrqLine> {
        self.irqs().iter().copied().find(|line| line.isa == isa)
    }

    /// Number of frames, over all ranges.
    #[must_use]
    pub fn total_frames(&self) -> u64 {
        self.ranges()
            .iter()
            .fold(0, |sum, r| sum.saturating_add(r.count))
    }

    /// The most frames that the instance may have while it runs ([`crate::live`]): what it has,
    /// unless its creator has set aside room for more.
    #[must_use]
    pub fn frame_limit(&self) -> u64 {
        let end = |r: &MemRange| r.first_frame.saturating_add(r.count);
        self.ranges().last().map_or(0, end).max(self.limit_frames)
    }

    /// The most CPUs that the instance may have while it runs: what it has, unless its creator has
    /// set aside room for more.
    #[must_use]
    pub fn cpu_limit(&self) -> usize {
        self.cpus().len().max(self.limit_cpus as usize)
    }

    /// Physical address of a frame, if it belongs to the instance. For the guard.
    #[must_use]
    pub fn phys_of(&self, frame: u64) -> Option<u64> {
        self.ranges()
            .iter()
            .find(|r| frame >= r.first_frame && frame - r.first_frame < r.count)
            .map(|r| r.phys + (frame - r.first_frame) * 4096)
    }

    /// Sets the command line, cut at a character boundary to what fits.
    pub fn set_cmdline(&mut self, text: &str) {
        self.cmdline_len = store_text(&mut self.cmdline, text);
    }

    /// Sets the label, cut at a character boundary to what fits.
    pub fn set_label(&mut self, text: &str) {
        self.label_len = store_text(&mut self.label, text);
    }

    /// Appends to a table of the descriptor; `false` if it is full.
    pub fn push_cpu(&mut self, cpu: CpuEntry) -> bool {
        push(&mut self.cpus, &mut self.ncpus, cpu)
    }

    /// Appends a memory range; `false` if the table is full.
    pub fn push_range(&mut self, range: MemRange) -> bool {
        push(&mut self.ranges, &mut self.nranges, range)
    }

    /// Appends a reservation; `false` if the table is full.
    pub fn push_reserved(&mut self, reserved: Reserved) -> bool {
        push(&mut self.reserved, &mut self.nreserved, reserved)
    }

    /// Appends a port range; `false` if the table is full.
    pub fn push_ports(&mut self, ports: PortRange) -> bool {
        push(&mut self.ports, &mut self.nports, ports)
    }

    /// Appends an interrupt line; `false` if the table is full.
    pub fn push_irq(&mut self, line: IrqLine) -> bool {
        push(&mut self.irqs, &mut self.nirqs, line)
    }

    /// Appends an I/O APIC; `false` if the table is full.
    pub fn push_ioapic(&mut self, ioapic: IoApic) -> bool {
        push(&mut self.ioapics, &mut self.nioapics, ioapic)
    }

    fn contains_frames(&self, first: u64, count: u64) -> bool {
        let Some(end) = first.checked_add(count) else {
            return false;
        };
        // Ranges are ascending; a run may span several of them if they are adjacent in frame
        // numbers.
        let mut next = first;
        for r in self.ranges() {
            if next >= end {
                break;
            }
            if next >= r.first_frame && next - r.first_frame < r.count {
                next = r.first_frame + r.count;
            }
        }
        next >= end
    }

    /// Checks everything that can be checked without looking at the machine. An instance refuses to
    /// start otherwise.
    ///
    /// # Errors
    /// The first thing found wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.magic != MAGIC {
            return Err(Invalid::Magic);
        }
        if self.version != VERSION {
            return Err(Invalid::Version(self.version));
        }
        if self.size as usize != SIZE {
            return Err(Invalid::Size(self.size));
        }
        if self.role > ROLE_SUBOS {
            return Err(Invalid::Role(self.role));
        }
        for (name, count, least, most) in [
            ("cpus", self.ncpus, 1, MAX_CPUS),
            ("ranges", self.nranges, 1, MAX_RANGES),
            ("reserved", self.nreserved, 0, MAX_RESERVED),
            ("ports", self.nports, 0, MAX_PORTS),
            ("irqs", self.nirqs, 0, MAX_IRQS),
            ("ioapics", self.nioapics, 0, MAX_IOAPICS),
            ("cmdline", self.cmdline_len, 0, CMDLINE_BYTES),
            ("label", self.label_len, 0, LABEL_BYTES),
        ] {
            if count < least || count as usize > most {
                return Err(Invalid::Count(name));
            }
        }
        if self.tsc_hz == 0 || self.lapic_hz == 0 {
            return Err(Invalid::Clock);
        }
        for (i, cpu) in self.cpus().iter().enumerate() {
            if self.cpus()[..i]
                .iter()
                .any(|other| other.apic_id == cpu.apic_id)
            {
                return Err(Invalid::DuplicateCpu(cpu.apic_id));
            }
        }
        self.validate_ranges()?;
        if self.limit_frames > MAX_FRAMES || self.limit_cpus > MAX_CPUS as u64 {
            return Err(Invalid::Limit);
        }
        for r in self.reserved() {
            if !self.contains_frames(r.first_frame, u64::from(r.count)) {
                return Err(Invalid::Outside("reservation"));
            }
        }
        for (name, first, count) in [
            (
                "boot blob",
                self.boot_blob_frame,
                self.boot_blob_len.div_ceil(4096),
            ),
            (
                "initramfs",
                self.initramfs_frame,
                self.initramfs_len.div_ceil(4096),
            ),
            ("image", self.image_frame, self.image_frames),
        ] {
            if count != 0 && !self.contains_frames(first, count) {
                return Err(Invalid::Outside(name));
            }
        }
        for (i, p) in self.ports().iter().enumerate() {
            if u64::from(p.base) + u64::from(p.len) > 0x1_0000 {
                return Err(Invalid::Port(i));
            }
        }
        for (name, text, len) in [
            ("command line", &self.cmdline[..], self.cmdline_len),
            ("label", &self.label[..], self.label_len),
        ] {
            if core::str::from_utf8(used(text, len)).is_err() {
                return Err(Invalid::Text(name));
            }
        }
        Ok(())
    }

    fn validate_ranges(&self) -> Result<(), Invalid> {
        let mut next_frame = 0;
        for (i, r) in self.ranges().iter().enumerate() {
            let bytes = r.count.checked_mul(4096).ok_or(Invalid::Range(i))?;
            let end = r.phys.checked_add(bytes).ok_or(Invalid::Range(i))?;
            let end_frame = r
                .first_frame
                .checked_add(r.count)
                .ok_or(Invalid::Range(i))?;
            if r.count == 0
                || r.phys % 4096 != 0
                || end > 1 << 52
                || r.first_frame < next_frame
                || end_frame > MAX_FRAMES
            {
                return Err(Invalid::Range(i));
            }
            if self.ranges()[..i]
                .iter()
                .any(|o| r.phys < o.phys + o.count * 4096 && o.phys < end)
            {
                return Err(Invalid::Range(i));
            }
            next_frame = end_frame;
        }
        Ok(())
    }
}

fn push<T>(table: &mut [T], count: &mut u32, value: T) -> bool {
    let Some(slot) = table.get_mut(*count as usize) else {
        return false;
    };
    *slot = value;
    *count += 1;
    true
}

fn store_text(field: &mut [u8], text: &str) -> u32 {
    let mut len = text.len().min(field.len());
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field[len..].fill(0);
    len as u32
}

#[cfg(test)]
mod tests;
