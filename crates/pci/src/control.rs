//! What a function may do, and bringing it back to where it was when it was switched on.

use bitflags::bitflags;

use crate::function::{CAPABILITY_EXPRESS, COMMAND, Function, IDENTITY, capability};
use crate::msix::{CAPABILITY_MSIX, ENABLE, MASK_ALL};
use crate::{ConfigRegisters, Layout};

bitflags! {
    /// Abilities of a function, by bits of its command register (PCI Local Bus 3.0, 6.2.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Abilities: u16 {
        /// The function answers at its ports.
        const PORTS = 1 << 0;
        /// The function answers at its memory addresses.
        const MEMORY = 1 << 1;
        /// The function reads and writes memory, and sends interrupt messages.
        const BUS_MASTER = 1 << 2;
        /// The function does not use its interrupt line.
        const NO_LINE = 1 << 10;
    }
}

/// Changes some of what a function may do.
pub fn set_abilities(registers: &impl ConfigRegisters, changed: Abilities, to: Abilities) {
    // Bits of the upper half, the status, are cleared by writing ones.
    let command = registers.read(COMMAND) & 0xffff;
    let rest = command & !u32::from(changed.bits());
    registers.write(COMMAND, rest | u32::from((changed & to).bits()));
}

/// Capability: power management.
const CAPABILITY_POWER: u8 = 0x01;
/// Offsets in the capability of PCI Express: what there is, control and status.
const EXPRESS_DEVICE: u16 = 4;
const EXPRESS_CONTROL: u16 = 8;
/// The function can be reset by itself (PCI Express Base 5.0, 7.5.3.3).
const CAN_RESET: u32 = 1 << 28;
/// Begins that (7.5.3.4).
const INITIATE_RESET: u32 = 1 << 15;
/// Requests of the function have not been answered yet (7.5.3.5), in the register's upper half.
const IS_PENDING: u32 = 1 << 5 << 16;
/// Offset of control and status of power management, the state in it, and that it keeps its
/// registers when it comes back from D3 (PCI Power Management 1.2, 3.2.4).
const POWER_CONTROL: u16 = 4;
const POWER_STATE: u32 = 3;
const D3: u32 = 3;
const KEEPS_STATE: u32 = 1 << 3;
/// Times that a function has to be left alone after each step (PCI Express Base 5.0, 6.6.2 and
/// 5.3.1.4).
const RESET_MS: u32 = 100;
const D3_MS: u32 = 10;
/// Times to look whether it answers again, a millisecond between them.
const LOOKS: u32 = 1000;

/// A function could not be reset, and may still reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReset;

/// Registers of a header that a reset clears, to be put back.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    bars: [u32; 6],
    rom: u32,
    line: u32,
    express: Option<(u16, u32)>,
}

const BARS: u16 = 0x10;
const ROM: u16 = 0x30;
const LINE: u16 = 0x3c;

impl Saved {
    /// Contents of the registers now.
    #[must_use]
    pub fn of(registers: &impl ConfigRegisters) -> Self {
        let express = capability(registers, CAPABILITY_EXPRESS);
        Self {
            bars: core::array::from_fn(|n| registers.read(BARS + 4 * n as u16)),
            rom: registers.read(ROM),
            line: registers.read(LINE),
            express: express.map(|at| {
                let control = at + EXPRESS_CONTROL;
                (control, registers.read(control) & 0xffff & !INITIATE_RESET)
            }),
        }
    }

    /// The same with another content of a base address register, by its number: of one that there
    /// is not, nothing.
    #[must_use]
    pub fn with_bar(mut self, number: u8, value: u32) -> Self {
        if let Some(bar) = self.bars.get_mut(usize::from(number)) {
            *bar = value;
        }
        self
    }

    fn put_back(&self, registers: &impl ConfigRegisters) {
        for (n, value) in self.bars.iter().enumerate() {
            registers.write(BARS + 4 * n as u16, *value);
        }
        registers.write(ROM, self.rom);
        registers.write(LINE, self.line);
        if let Some((at, control)) = self.express {
            registers.write(at, control);
        }
    }
}

/// Stops a function and resets it: by itself if it can do that, or by taking its power away. When
/// this returns without an error, it reaches no memory, answers at none, and sends no interrupt
/// messages; `saved` is in its header again.
///
/// A function that does not answer at all is not there any more, and so does nothing either.
/// `wait_ms` waits that long, at least.
///
/// # Errors
/// [`NotReset`]: it can do neither, or did not come back.
pub fn reset(
    registers: &impl ConfigRegisters,
    layout: Layout,
    saved: &Saved,
    mut wait_ms: impl FnMut(u32),
) -> Result<(), NotReset> {
    if layout != Layout::Device {
        return Err(NotReset);
    }
    let all = Abilities::all();
    set_abilities(registers, all, Abilities::NO_LINE);
    if is_absent(registers) {
        return Ok(());
    }
    let witness = Witness::set(registers).ok_or(NotReset)?;
    let express = capability(registers, CAPABILITY_EXPRESS);
    if let Some(at) = express {
        // What it has asked for comes before it is reset, or not at all: a time is given to it.
        for _ in 0..RESET_MS {
            if registers.read(at + EXPRESS_CONTROL) & IS_PENDING == 0 {
                break;
            }
            wait_ms(1);
        }
    }
    let by_itself = express.filter(|at| registers.read(at + EXPRESS_DEVICE) & CAN_RESET != 0);
    if let Some(at) = by_itself {
        let control = registers.read(at + EXPRESS_CONTROL) & 0xffff;
        registers.write(at + EXPRESS_CONTROL, control | INITIATE_RESET);
        wait_ms(RESET_MS);
    } else {
        let at = capability(registers, CAPABILITY_POWER).ok_or(NotReset)? + POWER_CONTROL;
        let control = registers.read(at) & 0xffff;
        if control & KEEPS_STATE != 0 {
            return Err(NotReset);
        }
        registers.write(at, control & !POWER_STATE | D3);
        wait_ms(D3_MS);
        registers.write(at, control & !POWER_STATE);
        wait_ms(D3_MS);
    }
    // What was reset has forgotten what it may do; ones are what is not ready yet.
    for _ in 0..LOOKS {
        if Function::is_there(registers) {
            let is_quiet =
                registers.read(COMMAND) & u32::from(all.bits()) == 0 && !witness.is_set(registers);
            saved.put_back(registers);
            set_abilities(registers, all, Abilities::NO_LINE);
            return is_quiet.then_some(()).ok_or(NotReset);
        }
        wait_ms(1);
    }
    if is_absent(registers) {
        Ok(())
    } else {
        Err(NotReset)
    }
}

/// A bit that was set before a reset, and that is clear after it.
struct Witness {
    at: u16,
    bit: u32,
}

impl Witness {
    /// Sets one that changes nothing for a function which reaches no memory: that it does not use
    /// its line, or where that cannot be said, as of a virtual function, that its messages are
    /// masked (PCI Express Base 5.0, 9.3.4.1.3 and 7.7.2.2). `None` if neither stays set: then
    /// nothing would prove a reset.
    fn set(registers: &impl ConfigRegisters) -> Option<Self> {
        let line = Self {
            at: COMMAND,
            bit: Abilities::NO_LINE.bits().into(),
        };
        if line.is_set(registers) {
            return Some(line);
        }
        let at = capability(registers, CAPABILITY_MSIX)?;
        let masked = Self { at, bit: MASK_ALL };
        registers.write(at, registers.read(at) & !ENABLE | MASK_ALL);
        masked.is_set(registers).then_some(masked)
    }

    fn is_set(&self, registers: &impl ConfigRegisters) -> bool {
        registers.read(self.at) & self.bit != 0
    }
}

/// Whether [`reset`] has a way to reset a function.
#[must_use]
pub fn can_reset(registers: &impl ConfigRegisters, layout: Layout) -> bool {
    let express = capability(registers, CAPABILITY_EXPRESS);
    let by_itself = express.is_some_and(|at| registers.read(at + EXPRESS_DEVICE) & CAN_RESET != 0);
    let by_power = || {
        let power = capability(registers, CAPABILITY_POWER);
        power.is_some_and(|at| registers.read(at + POWER_CONTROL) & KEEPS_STATE == 0)
    };
    layout == Layout::Device && (by_itself || by_power())
}

/// Whether nothing answers.
fn is_absent(registers: &impl ConfigRegisters) -> bool {
    registers.read(IDENTITY) == u32::MAX
}
