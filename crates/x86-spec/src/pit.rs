//! The interval timer of PCs (Intel 8254 data sheet).

/// Rate of the timer in Hz, the same on every PC.
pub const HZ: u64 = 1_193_182;
/// Count of the longest countdown but one, 55 ms.
pub const MAX_COUNT: u16 = u16::MAX;

/// Port of channel 0's count.
pub const CHANNEL_0: u16 = 0x40;
/// Port of commands.
pub const COMMAND: u16 = 0x43;

/// Command: channel 0, both bytes, one countdown (mode 0).
pub const COUNT_DOWN: u8 = 0b0011_0000;
/// Command: read back status and count of channel 0.
pub const READ_BACK: u8 = 0b1100_0010;
/// In the status: the countdown is over, so the count says nothing any more.
pub const OVER: u8 = 1 << 7;
