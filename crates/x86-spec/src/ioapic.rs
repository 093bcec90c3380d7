//! Registers of the I/O APIC (Intel 82093AA data sheet, 3.0).

/// Offset of the register that selects another one.
pub const SELECT: usize = 0x00;
/// Offset of the window to the selected register.
pub const WINDOW: usize = 0x10;
/// Bytes of the register page that are used.
pub const BYTES: usize = WINDOW + 4;

/// Register: version and number of inputs.
pub const VERSION: u32 = 0x01;
/// First register of the redirection table, which has two for each input.
const REDIRECTION: u32 = 0x10;

/// In the lower half of an entry: the input is active low.
pub const ACTIVE_LOW: u32 = 1 << 13;
/// In the lower half of an entry: the input is level-triggered.
pub const LEVEL: u32 = 1 << 15;
/// In the lower half of an entry: no interrupts from this input.
pub const MASKED: u32 = 1 << 16;

/// Number of inputs, by the value of [`VERSION`], which holds the number of the last one.
#[inline]
#[must_use]
pub const fn inputs(version: u32) -> u32 {
    (version >> 16 & 0xff) + 1
}

/// Register with the lower half of an input's entry: vector and mode.
#[inline]
#[must_use]
pub const fn entry_low(input: u32) -> u32 {
    REDIRECTION + 2 * input
}

/// Register with the upper half of an input's entry: the destination.
#[inline]
#[must_use]
pub const fn entry_high(input: u32) -> u32 {
    entry_low(input) + 1
}

/// Upper half of an entry: one CPU, by an APIC id of 8 bits.
#[inline]
#[must_use]
pub const fn destination(apic_id: u32) -> u32 {
    apic_id << 24
}

/// The APIC id in the upper half of an entry for one CPU.
#[inline]
#[must_use]
pub const fn apic_id(high: u32) -> u32 {
    high >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 82093AA data sheet, table 2: version 0x11 with 24 inputs; entries from 0x10 to 0x3F.
    #[test]
    fn the_82093aa() {
        assert_eq!(inputs(0x0017_0011), 24);
        assert_eq!((entry_low(0), entry_high(0)), (0x10, 0x11));
        assert_eq!((entry_low(23), entry_high(23)), (0x3e, 0x3f));
        assert_eq!(destination(5), 0x0500_0000);
        assert_eq!(apic_id(destination(5)), 5);
    }
}
