//! The save area of FXSAVE and XSAVE, in its standard format (SDM vol. 1, 10.5 and 13.4; APM vol.
//! 2, 11.5).

/// Components: x87, SSE, AVX, and the three of AVX-512.
pub const COMPONENTS: u64 = 0b1110_0111;
/// Components that every 64-bit CPU has: x87 and SSE.
pub const LEGACY: u64 = X87 | SSE;
/// Component: x87.
const X87: u64 = 1 << 0;
/// Component: SSE.
const SSE: u64 = 1 << 1;
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
/// Offset of the registers of the x87 unit.
const ST: usize = 32;
/// Offset of the registers of SSE.
const XMM: usize = 160;
/// End of the registers of SSE.
const XMM_END: usize = 416;
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
    if enabled & AVX512_AND_AVX == AVX512_AND_AVX {
        enabled
    } else {
        enabled & 0b111
    }
}

/// Components that a saved area says are not in their initial state.
#[inline]
#[must_use]
pub fn present(area: &[u8]) -> u64 {
    u64::from_le_bytes(
        area[XSTATE_BV..XSTATE_BV + 8]
            .try_into()
            .expect("eight bytes"),
    )
}

/// Makes a zeroed area the initial state of x87 and SSE, as FXRSTOR and XRSTOR load it.
pub fn initialize(area: &mut [u8]) {
    area[..2].copy_from_slice(&INITIAL_FCW.to_le_bytes());
    area[MXCSR..MXCSR + 4].copy_from_slice(&INITIAL_MXCSR.to_le_bytes());
}

/// Writes what XSAVEOPT left out because it is in its initial state, which only x87 and SSE
/// describe by more than zeros, and marks those two as present, as programs expect.
pub fn fill_in(area: &mut [u8]) {
    let present = present(area);
    if present & X87 == 0 {
        area[..MXCSR].fill(0);
        area[..2].copy_from_slice(&INITIAL_FCW.to_le_bytes());
        area[ST..XMM].fill(0);
    }
    if present & SSE == 0 {
        area[XMM..XMM_END].fill(0);
        area[MXCSR..MXCSR + 4].copy_from_slice(&INITIAL_MXCSR.to_le_bytes());
    }
    area[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&(present | LEGACY).to_le_bytes());
}

/// Makes an area with any content one that FXRSTOR and XRSTOR load without a fault: no reserved bit
/// is set. Of its components, which XCR0 enables, those `present` count.
pub fn sanitize(area: &mut [u8], present: u64, allowed_mxcsr: u32) {
    let mxcsr = u32::from_le_bytes(area[MXCSR..MXCSR + 4].try_into().expect("four bytes"));
    area[MXCSR..MXCSR + 4].copy_from_slice(&(mxcsr & allowed_mxcsr).to_le_bytes());
    if area.len() > LEGACY_BYTES {
        // The rest of the header is zero: standard format, no reserved bits.
        area[XSTATE_BV..XSTATE_BV + HEADER_BYTES].fill(0);
        area[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&present.to_le_bytes());
    }
}

/// Signal frames of Linux, which are save areas with a description in the bytes that processors
/// leave to software (`arch/x86/include/uapi/asm/sigcontext.h`).
pub mod signal_frame {
    use super::{HEADER_BYTES, LEGACY_BYTES, SOFTWARE_BYTES};

    /// First word of the description in [`SOFTWARE_BYTES`] (`FP_XSTATE_MAGIC1`).
    pub const MAGIC1: u32 = 0x4650_5853;
    /// Word after the area (`FP_XSTATE_MAGIC2`).
    pub const MAGIC2: u32 = 0x4650_5845;

    /// Describes a frame, an area of the components `enabled` with room for a word after it.
    pub fn describe(frame: &mut [u8], enabled: u64) {
        let total = frame.len();
        let software = &mut frame[SOFTWARE_BYTES..LEGACY_BYTES];
        software.fill(0);
        software[0..4].copy_from_slice(&MAGIC1.to_le_bytes());
        software[4..8].copy_from_slice(&(total as u32).to_le_bytes());
        software[8..16].copy_from_slice(&enabled.to_le_bytes());
        software[16..20].copy_from_slice(&(total as u32 - 4).to_le_bytes());
        frame[total - 4..].copy_from_slice(&MAGIC2.to_le_bytes());
    }

    /// Whether a frame says that it is a whole area of `size` bytes.
    #[must_use]
    pub fn is_extended(frame: &[u8], size: usize) -> bool {
        let word = |at: usize| {
            frame
                .get(at..at + 4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        let is = |at: usize, value: usize| word(at).is_some_and(|word| word as usize == value);
        is(SOFTWARE_BYTES, MAGIC1 as usize)
            && is(SOFTWARE_BYTES + 4, size + 4)
            && is(SOFTWARE_BYTES + 16, size)
            && size > LEGACY_BYTES + HEADER_BYTES
            && is(size, MAGIC2 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::signal_frame::{describe, is_extended};
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

    #[test]
    fn only_a_complete_description_is_extended() {
        const SIZE: usize = 832;
        let mut frame = [0; SIZE + 4];
        assert!(!is_extended(&frame, SIZE));
        describe(&mut frame, LEGACY);
        assert!(is_extended(&frame, SIZE));
        assert!(!is_extended(&frame[..SIZE], SIZE));
        assert!(!is_extended(&frame, SIZE + 64));
        frame[SIZE] = 0;
        assert!(!is_extended(&frame, SIZE));
    }

    #[test]
    fn what_was_left_out_is_filled_in() {
        let mut area = [0xaa; 832];
        area[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&0b100u64.to_le_bytes());
        fill_in(&mut area);
        assert_eq!(present(&area), 0b111);
        assert_eq!(
            (&area[..2], &area[2..MXCSR]),
            (&INITIAL_FCW.to_le_bytes()[..], &[0; 22][..])
        );
        assert_eq!(area[MXCSR..MXCSR + 4], INITIAL_MXCSR.to_le_bytes());
        assert!(area[ST..XMM_END].iter().all(|&byte| byte == 0));
        let before = area;
        fill_in(&mut area);
        assert_eq!(area, before);
    }

    #[test]
    fn any_bytes_can_be_made_loadable() {
        let mut area = [0xff; 832];
        sanitize(&mut area, 0b101, DEFAULT_MXCSR_MASK);
        assert_eq!(area[MXCSR..MXCSR + 4], DEFAULT_MXCSR_MASK.to_le_bytes());
        assert_eq!(present(&area), 0b101);
        assert!(
            area[XSTATE_BV + 8..XSTATE_BV + HEADER_BYTES]
                .iter()
                .all(|&byte| byte == 0)
        );
        let mut legacy = [0xff; LEGACY_BYTES];
        sanitize(&mut legacy, 0, DEFAULT_MXCSR_MASK);
        assert_eq!(legacy[MXCSR..MXCSR + 4], DEFAULT_MXCSR_MASK.to_le_bytes());
    }
}
