//! Options of `tmpfs` (`tmpfs(5)`).

use alloc::format;
use alloc::string::String;

use abi::errno::Errno;

use crate::Result;

/// Words that `huge=` takes. Files get large pages by their mappings' advice, whatever it says.
const HUGE: [&str; 4] = ["never", "always", "within_size", "advise"];

/// Mount options of a file system in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most pages of all files; 0 for no limit.
    pub pages: u64,
    /// The most files; 0 for no limit.
    pub inodes: u64,
    /// Permissions, owner and group of the top directory.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    pub(super) huge: usize,
    /// The machine's memory, in pages: percentages are of that, and half of it is the limit if
    /// nothing is said.
    pub(super) memory: u64,
}

/// A number as Linux' `memparse` reads it, and what follows.
fn memparse(text: &str) -> Option<(u64, &str)> {
    let (digits, radix) = match text {
        _ if text.starts_with("0x") || text.starts_with("0X") => (&text[2..], 16),
        _ if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        _ => (text, 10),
    };
    let end = digits
        .find(|c: char| !c.is_digit(radix))
        .unwrap_or(digits.len());
    let number = match &digits[..end] {
        "" if radix == 8 => 0,
        digits => u64::from_str_radix(digits, radix).ok()?,
    };
    let rest = &digits[end..];
    let shift = match rest.bytes().next().map(|unit| unit.to_ascii_lowercase()) {
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        Some(b't') => 40,
        Some(b'p') => 50,
        Some(b'e') => 60,
        _ => return Some((number, rest)),
    };
    Some((number.checked_mul(1 << shift)?, &rest[1..]))
}

fn parse_whole(text: &str) -> Option<u64> {
    memparse(text)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(number, _)| number)
}

impl Options {
    /// Options of a `tmpfs` that was given none, in a machine of so many pages.
    #[must_use]
    pub const fn of_tmpfs(memory: u64) -> Self {
        Self {
            pages: memory / 2,
            inodes: memory / 2,
            mode: 0o1777,
            uid: 0,
            gid: 0,
            huge: 0,
            memory,
        }
    }

    /// Options of a file system without limits.
    #[must_use]
    pub const fn unlimited(mode: u32) -> Self {
        Self {
            pages: 0,
            inodes: 0,
            mode,
            uid: 0,
            gid: 0,
            huge: 0,
            memory: 0,
        }
    }

    /// With what a text says, options with commas between them.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn with_text(self, text: &str) -> Result<Self> {
        text.split(',')
            .filter(|option| !option.is_empty())
            .try_fold(self, |options, option| {
                options.with_option(option).ok_or(Errno::EINVAL)
            })
    }

    fn with_option(mut self, option: &str) -> Option<Self> {
        let (name, value) = option
            .split_once('=')
            .map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("size", Some(value)) => {
                let (size, rest) = memparse(value)?;
                self.pages = match rest {
                    "" => size.div_ceil(super::PAGE_SIZE),
                    "%" => u64::try_from(u128::from(size) * u128::from(self.memory) / 100).ok()?,
                    _ => return None,
                };
            }
            ("nr_blocks", Some(value)) => {
                self.pages = parse_whole(value).filter(|pages| i64::try_from(*pages).is_ok())?;
            }
            ("nr_inodes", Some(value)) => self.inodes = parse_whole(value)?,
            ("mode", Some(value)) => self.mode = u32::from_str_radix(value, 8).ok()? & 0o7777,
            ("uid", Some(value)) => self.uid = value.parse().ok().filter(|id| *id != u32::MAX)?,
            ("gid", Some(value)) => self.gid = value.parse().ok().filter(|id| *id != u32::MAX)?,
            ("huge", Some(value)) => self.huge = HUGE.iter().position(|known| *known == value)?,
            // There is one node.
            ("mpol", Some("default" | "local" | "prefer:0" | "bind:0" | "interleave:0"))
            | ("inode64", None) => {}
            _ => return None,
        }
        Some(self)
    }

    /// Options of a `tmpfs` as `/proc/mounts` shows them.
    pub(super) fn show(&self) -> String {
        let usual = Self::of_tmpfs(self.memory);
        let mut text = String::new();
        if self.pages != usual.pages {
            text += &format!(",size={}k", self.pages * (super::PAGE_SIZE / 1024));
        }
        if self.inodes != usual.inodes {
            text += &format!(",nr_inodes={}", self.inodes);
        }
        if self.mode != usual.mode {
            text += &format!(",mode={:03o}", self.mode);
        }
        for (name, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id != 0 {
                text += &format!(",{name}={id}");
            }
        }
        text += ",inode64";
        if self.huge != 0 {
            text += &format!(",huge={}", HUGE[self.huge]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Options = Options::of_tmpfs(1000);

    #[test]
    fn options_are_read_as_linux_reads_them() {
        let read = |text: &str| USUAL.with_text(text).unwrap();
        assert_eq!(read("size=8k").pages, 2);
        assert_eq!(read("size=4097").pages, 2);
        assert_eq!(read("size=0x2000,nr_inodes=1k").inodes, 1024);
        assert_eq!(read("size=25%").pages, 250);
        assert_eq!(read("size=0").pages, 0);
        assert_eq!(read("nr_blocks=010,mode=0750").pages, 8);
        assert_eq!((read("uid=7,gid=8").uid, read("uid=7,gid=8").gid), (7, 8));
        for wrong in [
            "size=1x",
            "size=",
            "bogus",
            "mode=9",
            "uid=-1",
            "huge=sometimes",
            "size",
            "nr_blocks=5%",
        ] {
            assert_eq!(USUAL.with_text(wrong), Err(Errno::EINVAL), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_usual_is_shown() {
        assert_eq!(USUAL.show(), ",inode64");
        let text = USUAL
            .with_text("size=1m,nr_inodes=5,mode=755,uid=1,gid=2,huge=advise")
            .unwrap()
            .show();
        assert_eq!(
            text,
            ",size=1024k,nr_inodes=5,mode=755,uid=1,gid=2,inode64,huge=advise"
        );
        let again = USUAL.with_text(&text).unwrap();
        assert_eq!(again.show(), text);
    }
}
