//! The settings of a terminal: `termios(3)`.

use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many control characters the kernel's structure has.
pub const NCCS: usize = 19;

/// The kernel's `struct termios`, as `TCGETS` and `TCSETS` exchange it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Termios {
    /// Input modes.
    pub iflag: u32,
    /// Output modes.
    pub oflag: u32,
    /// Control modes, the speed among them.
    pub cflag: u32,
    /// Local modes.
    pub lflag: u32,
    /// Line discipline; always 0.
    pub line: u8,
    /// Control characters.
    pub cc: [u8; NCCS],
}

/// `struct termio`, as `TCGETA` and `TCSETA` exchange it: the lower half of each of the modes, and
/// the first control characters.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Termio {
    iflag: u16,
    oflag: u16,
    cflag: u16,
    lflag: u16,
    line: u8,
    cc: [u8; 8],
    padding: u8,
}

impl From<&Termios> for Termio {
    fn from(termios: &Termios) -> Self {
        let mut cc = [0; 8];
        cc.copy_from_slice(&termios.cc[..8]);
        let [iflag, oflag, cflag, lflag] =
            [termios.iflag, termios.oflag, termios.cflag, termios.lflag].map(|flags| flags as u16);
        Self {
            iflag,
            oflag,
            cflag,
            lflag,
            line: termios.line,
            cc,
            padding: 0,
        }
    }
}

impl Termio {
    /// `termios` with what this one can say.
    pub(super) fn change(&self, termios: Termios) -> Termios {
        let half = |old: u32, new: u16| old & 0xffff_0000 | u32::from(new);
        let mut cc = termios.cc;
        cc[..8].copy_from_slice(&self.cc);
        Termios {
            iflag: half(termios.iflag, self.iflag),
            oflag: half(termios.oflag, self.oflag),
            cflag: half(termios.cflag, self.cflag),
            lflag: half(termios.lflag, self.lflag),
            line: self.line,
            cc,
        }
    }
}

/// Mode in which a terminal's input is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputMode {
    /// By lines, which can be edited (`ICANON`).
    Canonical,
    /// By bytes.
    Raw,
}

impl InputMode {
    pub(super) fn is_canonical(self) -> bool {
        self == Self::Canonical
    }
}

/// The kernel's `struct termios2`: with speeds as numbers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Termios2 {
    /// The ordinary part.
    pub termios: Termios,
    /// Input speed, bits per second.
    pub ispeed: u32,
    /// Output speed, bits per second.
    pub ospeed: u32,
}

const _: () = assert!(size_of::<Termios>() == 36 && size_of::<Termios2>() == 44);

/// The size of a terminal's window, as `TIOCGWINSZ` gives it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct WinSize {
    /// Rows of characters.
    pub rows: u16,
    /// Columns of characters.
    pub cols: u16,
    /// Width in pixels; unused.
    pub xpixel: u16,
    /// Height in pixels; unused.
    pub ypixel: u16,
}

/// The value of a control character that is switched off.
pub const DISABLED: u8 = 0;

impl Default for Termios {
    /// A terminal for people: canonical, with echo and signals, 38400 bits per second (as Linux
    /// starts a terminal).
    fn default() -> Self {
        let mut cc = [DISABLED; NCCS];
        for (index, value) in [
            (sys::VINTR, 0x03),
            (sys::VQUIT, 0x1c),
            (sys::VERASE, 0x7f),
            (sys::VKILL, 0x15),
            (sys::VEOF, 0x04),
            (sys::VMIN, 1),
            (sys::VSTART, 0x11),
            (sys::VSTOP, 0x13),
            (sys::VSUSP, 0x1a),
            (sys::VREPRINT, 0x12),
            (sys::VDISCARD, 0x0f),
            (sys::VWERASE, 0x17),
            (sys::VLNEXT, 0x16),
        ] {
            cc[index as usize] = value;
        }
        Self {
            iflag: sys::ICRNL | sys::IXON,
            oflag: sys::OPOST | sys::ONLCR,
            cflag: sys::B38400 | sys::CS8 | sys::CREAD | sys::HUPCL,
            lflag: sys::ISIG
                | sys::ICANON
                | sys::ECHO
                | sys::ECHOE
                | sys::ECHOK
                | sys::ECHOCTL
                | sys::ECHOKE
                | sys::IEXTEN,
            line: 0,
            cc,
        }
    }
}

impl Termios {
    /// A line that passes every byte through, as `cfmakeraw(3)` sets it.
    #[must_use]
    pub fn raw() -> Self {
        Self {
            iflag: 0,
            oflag: 0,
            lflag: 0,
            ..Self::default()
        }
    }

    /// Sets the speed that serial consoles have by custom, 115200 bits per second.
    pub fn set_speed_115200(&mut self) {
        self.cflag = self.cflag & !sys::CBAUD | sys::B115200;
    }

    /// Nothing set.
    pub(super) const fn zero() -> Self {
        Self {
            iflag: 0,
            oflag: 0,
            cflag: 0,
            lflag: 0,
            line: 0,
            cc: [0; NCCS],
        }
    }

    /// These settings, but what `locked` has set as in `old`.
    pub(super) fn with_locked(&self, old: &Self, locked: &Self) -> Self {
        let flags = |new: u32, old: u32, locked: u32| new & !locked | old & locked;
        let mut cc = self.cc;
        for (i, cc) in cc
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| locked.cc[*i] != 0)
        {
            *cc = old.cc[i];
        }
        Self {
            iflag: flags(self.iflag, old.iflag, locked.iflag),
            oflag: flags(self.oflag, old.oflag, locked.oflag),
            cflag: flags(self.cflag, old.cflag, locked.cflag),
            lflag: flags(self.lflag, old.lflag, locked.lflag),
            line: if locked.line == 0 {
                self.line
            } else {
                old.line
            },
            cc,
        }
    }

    pub(super) fn input(&self, flag: u32) -> bool {
        self.iflag & flag != 0
    }

    pub(super) fn output(&self, flag: u32) -> bool {
        self.oflag & flag != 0
    }

    pub(super) fn local(&self, flag: u32) -> bool {
        self.lflag & flag != 0
    }

    /// Mode in which input is read.
    pub(super) fn input_mode(&self) -> InputMode {
        if self.local(sys::ICANON) {
            InputMode::Canonical
        } else {
            InputMode::Raw
        }
    }

    /// Whether `byte` is the control character `which`.
    pub(super) fn is(&self, which: u32, byte: u8) -> bool {
        byte != DISABLED && self.cc[which as usize] == byte
    }

    /// The speed in bits per second.
    #[must_use]
    pub fn speed(&self) -> u32 {
        match self.cflag & sys::CBAUD {
            sys::B0 => 0,
            sys::B300 => 300,
            sys::B600 => 600,
            sys::B1200 => 1200,
            sys::B2400 => 2400,
            sys::B4800 => 4800,
            sys::B9600 => 9600,
            sys::B19200 => 19_200,
            sys::B57600 => 57_600,
            sys::B115200 => 115_200,
            sys::B230400 => 230_400,
            sys::B460800 => 460_800,
            sys::B921600 => 921_600,
            _ => 38_400,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_numbers() {
        let speed = |bits: u32| {
            Termios {
                cflag: sys::CS8 | bits,
                ..Termios::default()
            }
            .speed()
        };
        for (bits, number) in [
            (sys::B0, 0),
            (sys::B300, 300),
            (sys::B9600, 9600),
            (sys::B38400, 38_400),
            (sys::B921600, 921_600),
        ] {
            assert_eq!(speed(bits), number);
        }
        let mut termios = Termios::default();
        termios.set_speed_115200();
        assert_eq!(
            (termios.speed(), termios.cflag & !sys::CBAUD),
            (115_200, Termios::default().cflag & !sys::CBAUD)
        );
    }

    #[test]
    fn what_is_locked_stays() {
        let (old, new) = (
            Termios::default(),
            Termios {
                line: 3,
                cc: [9; NCCS],
                ..Termios::raw()
            },
        );
        assert_eq!(new.with_locked(&old, &Termios::zero()), new);
        let mut locked = Termios::zero();
        (locked.iflag, locked.lflag, locked.line) = (sys::IXON, sys::ECHO, 1);
        locked.cc[sys::VINTR as usize] = 1;
        let mut expected = Termios {
            iflag: sys::IXON,
            lflag: sys::ECHO,
            line: old.line,
            ..new
        };
        expected.cc[sys::VINTR as usize] = 3;
        assert_eq!(new.with_locked(&old, &locked), expected);
    }

    #[test]
    fn the_old_structure_says_a_part() {
        let termios = Termios {
            cflag: 0x1234_5678,
            ..Termios::default()
        };
        let mut old = Termio::from(&termios);
        assert_eq!((old.cflag, old.cc[sys::VINTR as usize]), (0x5678, 3));
        (old.cflag, old.lflag) = (0x9abc, 0);
        old.cc[7] = 77;
        let changed = old.change(termios);
        assert_eq!(
            (changed.cflag, changed.lflag, changed.cc[7], changed.cc[8]),
            (0x1234_9abc, 0, 77, termios.cc[8])
        );
        assert_eq!(changed.iflag, termios.iflag);
    }
}
