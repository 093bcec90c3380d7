//! The virtual address layout, the same in every instance (`docs/boot.md`).

/// Bytes in a page and in a frame.
pub const PAGE_SIZE: usize = 4096;
/// Bytes in a granule: the unit in which memory changes its owner, and the page size of every
/// direct map.
pub const GRANULE_SIZE: usize = 2 << 20;
/// Frames in a granule.
pub const GRANULE_FRAMES: u64 = (GRANULE_SIZE / PAGE_SIZE) as u64;

/// Lowest address a program may map.
pub const USER_START: usize = 0x1_0000;
/// One past the highest address a program may map.
pub const USER_END: usize = 0x7fff_ffff_f000;

/// Direct map: frame `f` of the instance at `DIRECT + f * PAGE_SIZE`; only frames the instance owns
/// are mapped.
pub const DIRECT: usize = 0xffff_8000_0000_0000;
/// Kernel stacks, each with an unmapped guard page, and other small kernel mappings.
pub const STACKS: usize = 0xffff_c000_0000_0000;
/// Device registers. The local APIC's page, where xAPIC mode needs it, is the first.
pub const MMIO: usize = 0xffff_d000_0000_0000;
/// The local APIC's registers, in instances that run in xAPIC mode.
pub const LAPIC_MMIO: usize = MMIO;
/// Start of the memory shared with the supervisor: the partition descriptor, read-only in the
/// instance.
pub const DESCRIPTOR: usize = 0xffff_e000_0000_0000;
/// The descriptor's dynamic part ([`crate::live::Live`]), read-only in the instance.
pub const LIVE: usize = DESCRIPTOR + (1 << 19);
/// The pages that the instance shares with its peers ([`crate::messages`]): of each place the one
/// that it writes, then the peer's, which it only reads. There are none if it was created without
/// names.
pub const MESSAGES: usize = LIVE + (1 << 18);
/// The instance window ([`crate::Window`]), read-write on both sides.
pub const WINDOW: usize = DESCRIPTOR + (1 << 20);
/// The instance's answers ([`crate::live::Answers`]), read-write on both sides. Apart from the
/// window, which safe code reaches: a refusal makes the supervisor take memory back.
pub const ANSWERS: usize = WINDOW + crate::Window::SIZE;
/// The pages of the instance's network ([`crate::Network`]), read-write on both sides; there are
/// none if the instance has no network.
pub const NETWORK: usize = PARK - crate::Network::SIZE;
/// The park page: supervisor-owned code, read-only and executable in every instance.
pub const PARK: usize = DESCRIPTOR + (2 << 20);
/// The kernel image.
pub const IMAGE: usize = 0xffff_ffff_8000_0000;

/// Address at which confined functions reach frame 0 of their instance; the others follow. Below
/// are no addresses of theirs: neither 0, which a mistake would name, nor those at which interrupt
/// messages are taken, which no unit translates.
pub const DEVICE_ADDRESSES: u64 = 4 << 30;

const _: () = {
    assert!(USER_END < DIRECT);
    assert!(DIRECT < STACKS && STACKS < MMIO && MMIO < DESCRIPTOR && PARK < IMAGE);
    assert!(core::mem::size_of::<crate::Descriptor>() <= LIVE - DESCRIPTOR);
    assert!(crate::live::SIZE <= MESSAGES - LIVE && crate::messages::SIZE <= WINDOW - MESSAGES);
    assert!(ANSWERS.is_multiple_of(PAGE_SIZE) && PAGE_SIZE <= NETWORK - ANSWERS);
    assert!(NETWORK.is_multiple_of(PAGE_SIZE));
};
