//! The layout of a process's memory as `PR_SET_MM` takes it, and what can be one.

use abi::errno::Errno;
use abi::layout::{USER_END, USER_START};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The lowest address that can be meant (`/proc/sys/vm/mmap_min_addr`).
const MMAP_MIN_ADDR: u64 = USER_START as u64;
/// There is no such descriptor: the program stays the same.
pub const NO_FILE: u32 = u32::MAX;

/// `struct prctl_mm_map`: where what is, addresses of the first byte and of the one behind the
/// last.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PrctlMmMap {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub brk: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
    pub auxv: u64,
    pub auxv_size: u32,
    pub exe_fd: u32,
}

const _: () = assert!(size_of::<PrctlMmMap>() == 104);

impl PrctlMmMap {
    /// Whether all of it can be. `most`: the limit of data (`RLIMIT_DATA`).
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check(&self, most: u64) -> Result<(), Errno> {
        let ranges = [
            self.start_data..self.end_data,
            self.start_brk..self.brk,
            self.arg_start..self.arg_end,
            self.env_start..self.env_end,
        ];
        let all = [self.start_code, self.end_code, self.start_stack];
        let mut all = ranges
            .iter()
            .flat_map(|range| [range.start, range.end])
            .chain(all);
        let sound = all.all(|at| (MMAP_MIN_ADDR..USER_END as u64).contains(&at))
            && self.start_code < self.end_code
            && ranges.iter().all(|range| range.start <= range.end);
        let data = || (self.brk - self.start_brk).saturating_add(self.end_data - self.start_data);
        if sound && (most == u64::MAX || data() <= most) {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: PrctlMmMap = PrctlMmMap {
        start_code: 0x40_0000,
        end_code: 0x40_1000,
        start_data: 0x50_0000,
        end_data: 0x50_0000,
        start_brk: 0x60_0000,
        brk: 0x60_2000,
        start_stack: 0x7000_0000,
        arg_start: 0x7000_1000,
        arg_end: 0x7000_1010,
        env_start: 0x7000_1010,
        env_end: 0x7000_1010,
        auxv: 0,
        auxv_size: 0,
        exe_fd: NO_FILE,
    };

    #[test]
    fn layouts_are_checked() {
        assert_eq!(SOUND.check(u64::MAX), Ok(()));
        assert_eq!(
            (SOUND.check(0x2000), SOUND.check(0x1fff)),
            (Ok(()), Err(Errno::EINVAL))
        );
        let wrong = [
            PrctlMmMap {
                end_code: SOUND.start_code,
                ..SOUND
            },
            PrctlMmMap {
                end_data: SOUND.start_data - 1,
                ..SOUND
            },
            PrctlMmMap { brk: 0, ..SOUND },
            PrctlMmMap {
                start_stack: USER_END as u64,
                ..SOUND
            },
            PrctlMmMap {
                arg_start: u64::MAX,
                ..SOUND
            },
            PrctlMmMap {
                env_end: SOUND.env_start - 1,
                ..SOUND
            },
        ];
        for layout in wrong {
            assert_eq!(layout.check(u64::MAX), Err(Errno::EINVAL), "{layout:?}");
        }
    }
}
