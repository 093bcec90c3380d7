//! I/O ports, for drivers: claimed in ranges, checked against the partition descriptor.

use core::arch::asm;

use crate::role;

/// Reads a byte from a port.
///
/// # Safety
/// Reading the port has no effect that breaks an invariant of the kernel. The same goes for the
/// functions below.
#[inline]
pub(crate) unsafe fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: the caller vouches for the port.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
///
/// # Safety
/// See [`inb`].
#[inline]
pub(crate) unsafe fn outb(port: u16, value: u8) {
    // SAFETY: the caller vouches for port and value.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Reads a 16-bit word from a port.
///
/// # Safety
/// See [`inb`].
#[inline]
pub(crate) unsafe fn inw(port: u16) -> u16 {
    let value;
    // SAFETY: the caller vouches for the port.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a 16-bit word to a port.
///
/// # Safety
/// See [`inb`].
#[inline]
pub(crate) unsafe fn outw(port: u16, value: u16) {
    // SAFETY: the caller vouches for port and value.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// Reads a 32-bit word from a port.
///
/// # Safety
/// See [`inb`].
#[inline]
pub(crate) unsafe fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: the caller vouches for the port.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack, preserves_flags));
    };
    value
}

/// Writes a 32-bit word to a port.
///
/// # Safety
/// See [`inb`].
#[inline]
pub(crate) unsafe fn outl(port: u16, value: u32) {
    // SAFETY: the caller vouches for port and value.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags));
    };
}

/// Ports by which a driver could reach memory or another instance's devices behind the guard's
/// back, so that nobody can claim them: ISA DMA, the 8259s, PCI configuration space.
const RESERVED: [(u16, u16); 6] = [
    (0x00, 0x20),
    (0x20, 2),
    (0x80, 0x10),
    (0xa0, 2),
    (0xc0, 0x20),
    (0xcf8, 8),
];

/// The ports asked for are not the instance's to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// A range of I/O ports of this instance.
#[derive(Debug)]
pub struct Ports {
    base: u16,
    len: u16,
}

impl Ports {
    /// Claims `len` ports from `base`.
    ///
    /// # Errors
    /// [`Denied`] if the partition descriptor does not list all of them, or the guard keeps some
    /// for itself.
    pub fn claim(base: u16, len: u16) -> Result<Self, Denied> {
        let end = u32::from(base) + u32::from(len);
        let guarded = RESERVED.iter().any(|&(first, n)| {
            u32::from(base) < u32::from(first) + u32::from(n) && u32::from(first) < end
        });
        if guarded || !role::descriptor().owns_ports(base, len) {
            Err(Denied)
        } else {
            Ok(Self { base, len })
        }
    }

    #[track_caller]
    fn port(&self, offset: u16, bytes: u16) -> u16 {
        assert!(
            offset < self.len && bytes <= self.len - offset,
            "port offset {offset} outside the claimed range"
        );
        self.base + offset
    }

    /// Reads the byte at `offset`.
    ///
    /// # Panics
    /// This and the following, if the access is not within the range.
    #[must_use]
    pub fn read8(&self, offset: u16) -> u8 {
        // SAFETY: the port belongs to the instance, and no device there can reach memory.
        unsafe { inb(self.port(offset, 1)) }
    }

    /// Writes the byte at `offset`.
    pub fn write8(&self, offset: u16, value: u8) {
        // SAFETY: as in `read8`.
        unsafe { outb(self.port(offset, 1), value) }
    }

    /// Reads the 16-bit word at `offset`.
    #[must_use]
    pub fn read16(&self, offset: u16) -> u16 {
        // SAFETY: as in `read8`.
        unsafe { inw(self.port(offset, 2)) }
    }

    /// Writes the 16-bit word at `offset`.
    pub fn write16(&self, offset: u16, value: u16) {
        // SAFETY: as in `read8`.
        unsafe { outw(self.port(offset, 2), value) }
    }

    /// Reads the 32-bit word at `offset`.
    #[must_use]
    pub fn read32(&self, offset: u16) -> u32 {
        // SAFETY: as in `read8`.
        unsafe { inl(self.port(offset, 4)) }
    }

    /// Writes the 32-bit word at `offset`.
    pub fn write32(&self, offset: u16, value: u32) {
        // SAFETY: as in `read8`.
        unsafe { outl(self.port(offset, 4), value) }
    }
}
