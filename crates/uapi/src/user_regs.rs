//! Registers as debuggers see them: `struct user_regs_struct`, `struct user` and the register sets
//! of core files. Pure.

use guard::fpu::SegmentBases;
use guard::user::{USER_END, UserRegs};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Flags a tracer may change: CF, PF, AF, ZF, SF, TF, DF, OF, NT, RF, AC.
const FLAGS: u64 = 0x0005_4dd5;
/// The flag that makes every instruction trap.
pub const TRAP_FLAG: u64 = 0x100;
/// Offset in `struct user` of the debug registers.
pub const DEBUG: usize = 848;
/// The length of `struct user`.
pub const USER: usize = 928;
/// Offset in an XSAVE area of the bytes that are software's, and their end.
const SOFTWARE: usize = 464;
const LEGACY: usize = 512;
/// Offset in a signal frame of the mask of components, among these bytes.
const FRAME_MASK: usize = SOFTWARE + 8;

/// Registers of a tracee as debuggers see them: `struct user_regs_struct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UserRegsStruct([u64; 27]);

impl UserRegsStruct {
    const ORIG_RAX: usize = 15;
    const CS: usize = 17;
    const FLAGS: usize = 18;
    const SS: usize = 20;
    const FS_BASE: usize = 21;
    const GS_BASE: usize = 22;
    const DS: usize = 23;

    /// Registers of a thread.
    #[must_use]
    pub fn of(regs: &UserRegs, bases: SegmentBases) -> Self {
        let r = regs;
        Self([
            r.r15,
            r.r14,
            r.r13,
            r.r12,
            r.rbp,
            r.rbx,
            r.r11,
            r.r10,
            r.r9,
            r.r8,
            r.rax,
            r.rcx,
            r.rdx,
            r.rsi,
            r.rdi,
            r.orig_rax,
            r.rip,
            UserRegs::CS.into(),
            r.rflags,
            r.rsp,
            UserRegs::SS.into(),
            bases.fs,
            bases.gs,
            0,
            0,
            0,
            0,
        ])
    }

    /// The register at an offset in bytes.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<u64> {
        self.0.get(at / 8).copied()
    }

    /// Changes the register at an offset in bytes. False: it cannot have this value.
    #[must_use]
    pub fn set(&mut self, at: usize, value: u64) -> bool {
        let index = at / 8;
        match index {
            // Segments are what they are; any that a program could have is accepted.
            Self::CS | Self::SS | Self::DS.. => {
                return value as u16 & 3 == 3 || (value as u16 == 0 && index >= Self::DS);
            }
            Self::FS_BASE | Self::GS_BASE if value >= USER_END as u64 => return false,
            Self::FLAGS => self.0[index] = self.0[index] & !FLAGS | value & FLAGS,
            // A number has 32 bits; -1 is none.
            Self::ORIG_RAX => self.0[index] = i64::from(value as i32).cast_unsigned(),
            _ => self.0[index] = value,
        }
        true
    }

    /// Gives a thread these registers; returns the segment bases.
    pub fn store(&self, regs: &mut UserRegs) -> SegmentBases {
        let v = &self.0;
        *regs = UserRegs {
            r15: v[0],
            r14: v[1],
            r13: v[2],
            r12: v[3],
            rbp: v[4],
            rbx: v[5],
            r11: v[6],
            r10: v[7],
            r9: v[8],
            r8: v[9],
            rax: v[10],
            rcx: v[11],
            rdx: v[12],
            rsi: v[13],
            rdi: v[14],
            orig_rax: v[15],
            rip: v[16],
            rflags: v[18],
            rsp: v[19],
        };
        SegmentBases {
            fs: v[Self::FS_BASE],
            gs: v[Self::GS_BASE],
        }
    }
}

/// The register set `NT_X86_XSTATE` from the floating-point part of a signal frame: it has the mask
/// of components where software's bytes begin, and ends with the processor's area.
#[must_use]
pub fn xstate_regset(frame: &[u8]) -> alloc::vec::Vec<u8> {
    // A frame without XSAVE is the set as it is.
    let mut set = frame[..(frame.len() & !63).max(LEGACY)].to_vec();
    if frame.len() > LEGACY {
        set[SOFTWARE..LEGACY].fill(0);
        set[SOFTWARE..SOFTWARE + 8].copy_from_slice(&frame[FRAME_MASK..FRAME_MASK + 8]);
    }
    set
}

/// Puts the bytes of such a set, or of its first part, into a frame, whose description of itself
/// stays.
pub fn put_extended(frame: &mut [u8], set: &[u8]) {
    let len = set.len().min(frame.len() & !63);
    for range in [0..SOFTWARE.min(len), LEGACY.min(len)..len] {
        frame[range.clone()].copy_from_slice(&set[range]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: SegmentBases = SegmentBases { fs: 6, gs: 7 };

    #[test]
    fn registers_are_where_linux_has_them() {
        let regs = UserRegs {
            r15: 1,
            rax: 2,
            rip: 3,
            rsp: 4,
            orig_rax: 5,
            rflags: 0x202,
            ..UserRegs::default()
        };
        let mut seen = UserRegsStruct::of(&regs, BASES);
        assert_eq!(size_of::<UserRegsStruct>(), 216);
        let at = |offset| seen.get(offset).unwrap();
        assert_eq!(
            [at(0), at(80), at(128), at(152), at(120), at(168), at(176)],
            [1, 2, 3, 4, 5, 6, 7]
        );
        assert_eq!([at(136), at(160)], [0x33, 0x2b]);
        assert!(
            seen.set(144, u64::MAX)
                && seen.set(120, 0xffff_ffff)
                && seen.set(136, 0x33)
                && seen.set(184, 0)
        );
        assert!(!seen.set(136, 0x10) && !seen.set(168, u64::MAX));
        let mut back = UserRegs::default();
        assert_eq!(seen.store(&mut back), BASES);
        assert_eq!((back.r15, back.rip, back.orig_rax), (1, 3, u64::MAX));
        // Neither the interrupt flag nor the privilege level.
        assert_eq!(back.rflags, 0x202 | FLAGS);
    }

    #[test]
    fn a_frame_keeps_its_description() {
        let mut frame: alloc::vec::Vec<u8> = (0..836).map(|i| (i % 251) as u8).collect();
        let before = frame.clone();
        let mut set = xstate_regset(&frame);
        assert_eq!((set.len(), &set[464..472]), (832, &before[472..480]));
        set.fill(9);
        put_extended(&mut frame, &set);
        assert_eq!(
            (&frame[464..512], &frame[832..]),
            (&before[464..512], &before[832..])
        );
        assert!(
            frame[..464]
                .iter()
                .chain(&frame[512..832])
                .all(|&byte| byte == 9)
        );
    }
}
