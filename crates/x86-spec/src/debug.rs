//! Debug registers (SDM vol. 3B, 19.2).

/// DR6 while no debug condition is reported: its reserved bits that read as 1.
pub const DR6_CLEAR: u32 = 0xffff_0ff0;

/// Bits of DR7 that switch on the four breakpoints (L0, G0 to L3, G3).
pub const DR7_ENABLE: u64 = 0xff;
/// LE and GE: exact data breakpoints, which today's processors ignore.
pub const DR7_EXACT: u64 = 3 << 8;
/// Kind of access and length for each breakpoint (R/W0, LEN0 to R/W3, LEN3).
pub const DR7_CONDITIONS: u64 = 0xffff_0000;
/// The reserved bit of DR7 that is always 1.
pub const DR7_FIXED: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 3A, table 10-1: the values after a reset.
    #[test]
    fn reset_values() {
        assert_eq!(DR6_CLEAR, 0xffff_0ff0);
        assert_eq!(DR7_FIXED, 0x400);
    }

    #[test]
    fn fields_of_dr7_do_not_overlap() {
        let fields = [DR7_ENABLE, DR7_EXACT, DR7_CONDITIONS, DR7_FIXED];
        assert_eq!(
            fields.iter().sum::<u64>(),
            fields.iter().fold(0, |all, field| all | field)
        );
    }
}
