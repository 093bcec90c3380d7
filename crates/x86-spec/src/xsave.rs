//! The save area of FXSAVE and XSAVE, in its standard format (SDM vol. 1, 10.5 and 13.4; APM vol. 2, 11.5).

/// Components: x87, SSE, AVX, and the three of AVX-512.
pub const COMPONENTS: u64 = 0b1110_0111;
/// Components that every 64-bit CPU has: x87 and SSE.
pub const LEGACY: u64 = 0b11;
/// Components of AVX-512, and AVX, without which they are not allowed in XCR0.
const AVX512_AND_AVX: u64 = 0b1110_0100;

/// Bytes of the area that FXSAVE writes.
pub const LEGACY_BYTES: usize = 512;
/// Bytes of the header that follows.
pub const HEADER_BYTES: usize = 64;
/// Offset of MXCSR.
pub const MXCSR: usize = 24;
/// Offset of the mask of MXCSR's supported bits.
pub const MXCSR_MASK: usize = 28;
/// Offset of 48 bytes that processors leave to software.
pub const SOFTWARE_BYTES: usize = 464;
/// Offset of the first word of the header: which components are not in their initial state.
pub const XSTATE_BV: usize = 512;

/// Control word of the x87 unit after FNINIT.
pub const INITIAL_FCW: u16 = 0x037f;
/// MXCSR after a reset.
pub const INITIAL_MXCSR: u32 = 0x1f80;
/// Bits of MXCSR that processors support whose mask is 0 (SDM vol. 1, 11.6.6).
pub const DEFAULT_MXCSR_MASK: u32 = 0xffbf;

/// The value of XCR0 that enables what we manage of the `supported` components.
#[must_use]
pub const fn enabled(supported: u64) -> u64 {
    let enabled = supported & COMPONENTS | LEGACY;
    // The three AVX-512 components come together, and with AVX.
    if enabled & AVX512_AND_AVX == AVX512_AND_AVX { enabled } else { enabled & 0b111 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 1, 13.3: XCR0 must not have one of the AVX-512 components without the others.
    #[test]
    fn avx512_is_all_or_nothing() {
        assert_eq!(enabled(0), 0b11);
        assert_eq!(enabled(0b111), 0b111);
        assert_eq!(enabled(0b0010_0111), 0b111);
        assert_eq!(enabled(0b1110_0011), 0b11);
        assert_eq!(enabled(u64::MAX), 0b1110_0111);
    }

    /// SDM vol. 1, table 10-2 and 13.4.1, 13.4.2.
    #[test]
    fn offsets() {
        assert_eq!((MXCSR, MXCSR_MASK), (24, 28));
        assert_eq!(SOFTWARE_BYTES + 48, LEGACY_BYTES);
        assert_eq!(XSTATE_BV, LEGACY_BYTES);
    }
}
