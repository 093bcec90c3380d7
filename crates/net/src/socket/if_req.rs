//! `struct ifreq`, which most requests about an interface carry (`netdevice(7)`).

use abi::errno::Errno;
use fs::Result;
use fs::ioctl::IoctlRequest;

use super::interface::{IFNAMSIZ, Interface};

/// Bytes of a `struct ifreq`: the name, and 24 bytes whose meaning is the request's.
const LEN: usize = 40;

/// A `struct ifreq`.
pub(crate) struct IfReq {
    bytes: [u8; LEN],
}

impl IfReq {
    /// One in which all is zero.
    pub(crate) const fn zeroed() -> Self {
        Self { bytes: [0; LEN] }
    }

    /// Reads the one that a request points to.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn read(request: &IoctlRequest<'_>) -> Result<Self> {
        request.read().map(|bytes| Self { bytes })
    }

    /// Writes it to where a request points.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn write(&self, request: &IoctlRequest<'_>) -> Result<()> {
        request.write(&self.bytes)
    }

    /// The name, up to its end.
    ///
    /// # Errors
    /// `EINVAL` for one that is no text.
    pub(crate) fn name(&self) -> Result<&str> {
        text(&self.bytes[..IFNAMSIZ - 1])
    }

    /// Puts an interface's name, or an address' label, into it.
    pub(crate) fn set_name(&mut self, name: &str) {
        let room = &mut self.bytes[..IFNAMSIZ];
        room.fill(0);
        room[..name.len()].copy_from_slice(name.as_bytes());
    }

    /// The value.
    pub(crate) fn value(&self) -> &[u8; LEN - IFNAMSIZ] {
        self.bytes[IFNAMSIZ..].first_chunk().expect("all the rest")
    }

    /// Puts a value in, the rest of whose room stays as it is.
    pub(crate) fn set_value(&mut self, value: &[u8]) {
        self.bytes[IFNAMSIZ..][..value.len()].copy_from_slice(value);
    }

    /// Puts the hardware's address of an interface in (`struct sockaddr`).
    pub(crate) fn set_hardware_address(&mut self, interface: &Interface) {
        self.set_value(&interface.hardware_type.to_ne_bytes());
        let address = interface.hardware_address.unwrap_or_default();
        self.bytes[IFNAMSIZ + 2..][..address.len()].copy_from_slice(&address);
    }

    /// The hardware's address in it, and its kind.
    pub(crate) fn hardware_address(&self) -> (u16, [u8; 6]) {
        let [k0, k1, address @ ..] = self.value();
        let address = address.first_chunk().expect("there are more");
        (u16::from_ne_bytes([*k0, *k1]), *address)
    }

    /// Flags of 16 bits.
    pub(crate) fn flags(&self) -> u32 {
        self.hardware_address().0.into()
    }

    /// A number.
    pub(crate) fn word(&self) -> u32 {
        u32::from_ne_bytes(*self.value().first_chunk().expect("there are more"))
    }

    /// All of it, as lists have it.
    pub(crate) fn into_bytes(self) -> [u8; LEN] {
        self.bytes
    }
}

/// The text before the first zero.
///
/// # Errors
/// `EINVAL` for what is no text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str> {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    core::str::from_utf8(text).map_err(|_| Errno::EINVAL)
}
