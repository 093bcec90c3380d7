//! What a signal handler finds on its stack: `struct rt_sigframe` of x86-64 Linux, byte for byte.
//! glibc's unwinder, Go's runtime and everybody's crash reports read it.

use guard::user::UserRegs;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::siginfo::SigInfo;

/// Bytes below the stack pointer that belong to the running function (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;
/// Alignment of the floating-point part, as XRSTOR needs it.
const FPU_ALIGN: u64 = 64;

/// `uc_flags`: the floating-point part has the extended format.
const UC_FP_XSTATE: u64 = 1;
/// `uc_flags`: the stack segment is saved.
const UC_SIGCONTEXT_SS: u64 = 2;
/// `uc_flags`: and it is restored as it is.
const UC_STRICT_RESTORE_SS: u64 = 4;

/// An alternate signal stack as `sigaltstack(2)` takes it: `stack_t`.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AltStack {
    /// Lowest address of the stack.
    pub sp: u64,
    /// State of the stack (`SS_*`).
    pub flags: u32,
    padding: u32,
    /// Size of the stack, in bytes.
    pub size: u64,
}

impl AltStack {
    /// The flag of a stack that is not used.
    pub const DISABLE: u32 = linux_raw_sys::general::SS_DISABLE;
    /// The flag of a stack that is being used.
    pub const ONSTACK: u32 = linux_raw_sys::general::SS_ONSTACK;

    /// No alternate stack (`SS_DISABLE`).
    #[must_use]
    pub fn none() -> Self {
        Self {
            flags: Self::DISABLE,
            ..Self::default()
        }
    }

    /// This stack with other flags.
    #[must_use]
    pub fn with_flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    /// Whether there is one.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.flags & Self::DISABLE == 0 && self.size != 0
    }

    /// Whether a stack pointer is on it.
    #[must_use]
    pub fn contains(&self, sp: u64) -> bool {
        self.enabled() && sp > self.sp && sp - self.sp <= self.size
    }
}

/// Registers of the interrupted program: `struct sigcontext`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigContext {
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    err: u64,
    trapno: u64,
    oldmask: u64,
    cr2: u64,
    fpstate: u64,
    reserved: [u64; 8],
}

/// State of the interrupted program that a handler sees: `struct ucontext`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UContext {
    flags: u64,
    link: u64,
    stack: AltStack,
    context: SigContext,
    mask: u64,
}

/// Frame of a handler on the program's stack: `struct rt_sigframe`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Frame {
    /// Address the handler returns to.
    restorer: u64,
    ucontext: UContext,
    info: SigInfo,
}

const _: () = {
    use core::mem::offset_of;
    assert!(
        size_of::<SigContext>() == 256 && size_of::<UContext>() == 304 && size_of::<Frame>() == 440
    );
    assert!(
        offset_of!(SigContext, rip) == 128
            && offset_of!(SigContext, cs) == 144
            && offset_of!(SigContext, fpstate) == 184
    );
    assert!(offset_of!(UContext, context) == 40 && offset_of!(UContext, mask) == 296);
};

/// Registers of the last fault, which handlers see.
#[derive(Clone, Copy, Default, Debug)]
pub struct LastFault {
    /// Vector of the exception.
    pub trapno: u64,
    /// Error code of the exception.
    pub err: u64,
    /// Address of the page fault.
    pub cr2: u64,
}

/// Addresses of the parts of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramePlacement {
    /// The frame, and the handler's stack pointer.
    pub frame: u64,
    /// Address of the floating-point part, a multiple of 64.
    pub fpu: u64,
}

/// Finds the place for a frame below `sp`, or on the alternate stack. `None` if it does not fit
/// there.
#[must_use]
pub fn place_frame(
    sp: u64,
    alternate: Option<&AltStack>,
    fpu_size: usize,
) -> Option<FramePlacement> {
    let top = match alternate {
        Some(stack) => stack.sp.checked_add(stack.size)?,
        None => sp.checked_sub(RED_ZONE)?,
    };
    let fpu = top.checked_sub(fpu_size as u64)? & !(FPU_ALIGN - 1);
    // As after a call: the return address makes the stack pointer 8 less than a multiple of 16.
    let frame = (fpu.checked_sub(size_of::<Frame>() as u64)? & !15).checked_sub(8)?;
    match alternate {
        Some(stack) if frame < stack.sp => None,
        _ => Some(FramePlacement { frame, fpu }),
    }
}

impl Frame {
    /// The frame for a handler that interrupts the program at `regs`; `mask` is what becomes the
    /// signal mask afterwards.
    #[inline(always)]
    #[must_use]
    pub fn new(
        regs: &UserRegs,
        placement: FramePlacement,
        restorer: u64,
        info: &SigInfo,
        stack: AltStack,
        mask: u64,
        fault: LastFault,
    ) -> Self {
        let flags = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
        Self {
            restorer,
            ucontext: UContext {
                flags,
                link: 0,
                stack,
                context: SigContext {
                    r8: regs.r8,
                    r9: regs.r9,
                    r10: regs.r10,
                    r11: regs.r11,
                    r12: regs.r12,
                    r13: regs.r13,
                    r14: regs.r14,
                    r15: regs.r15,
                    rdi: regs.rdi,
                    rsi: regs.rsi,
                    rbp: regs.rbp,
                    rbx: regs.rbx,
                    rdx: regs.rdx,
                    rax: regs.rax,
                    rcx: regs.rcx,
                    rsp: regs.rsp,
                    rip: regs.rip,
                    rflags: regs.rflags,
                    cs: UserRegs::CS,
                    gs: 0,
                    fs: 0,
                    ss: UserRegs::SS,
                    err: fault.err,
                    trapno: fault.trapno,
                    oldmask: mask,
                    cr2: fault.cr2,
                    fpstate: placement.fpu,
                    reserved: [0; 8],
                },
                mask,
            },
            info: *info,
        }
    }

    /// Offset in a frame of the interrupted program's state.
    pub const UCONTEXT: usize = core::mem::offset_of!(Self, ucontext);
}

impl UContext {
    /// Puts the registers back; segment bases are not in the frame and stay as they are, and so do
    /// the flags that a frame does not change.
    pub fn restore(&self, regs: &mut UserRegs) {
        /// Flags a frame has: CF, PF, AF, ZF, SF, TF, DF, OF, RF, AC (`FIX_EFLAGS`).
        const FLAGS: u64 = 0x0005_0dd5;
        let c = &self.context;
        *regs = UserRegs {
            rax: c.rax,
            rbx: c.rbx,
            rcx: c.rcx,
            rdx: c.rdx,
            rsi: c.rsi,
            rdi: c.rdi,
            rbp: c.rbp,
            r8: c.r8,
            r9: c.r9,
            r10: c.r10,
            r11: c.r11,
            r12: c.r12,
            r13: c.r13,
            r14: c.r14,
            r15: c.r15,
            rip: c.rip,
            rflags: regs.rflags & !FLAGS | c.rflags & FLAGS,
            rsp: c.rsp,
            // No system call is under way any more: nothing is to be restarted.
            orig_rax: u64::MAX,
        };
    }

    /// The signal mask to go back to.
    #[must_use]
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// The alternate stack to go back to.
    #[must_use]
    pub fn stack(&self) -> AltStack {
        self.stack
    }

    /// Address of the floating-point part; 0 for none.
    #[must_use]
    pub fn fpu(&self) -> u64 {
        self.context.fpstate
    }
}

/// Sets registers so that the handler runs with the frame at `place`.
pub fn enter_handler(regs: &mut UserRegs, placement: FramePlacement, handler: u64, signal: i32) {
    use core::mem::offset_of;
    /// Flags that a function may rely on being clear: direction, and those that trap.
    const CLEARED: u64 = 0x400 | 0x100 | 0x1_0000;
    regs.rdi = signal as u64;
    regs.rsi = placement.frame + offset_of!(Frame, info) as u64;
    regs.rdx = placement.frame + offset_of!(Frame, ucontext) as u64;
    regs.rax = 0;
    regs.rsp = placement.frame;
    regs.rip = handler;
    regs.rflags &= !CLEARED;
    regs.orig_rax = u64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs() -> UserRegs {
        UserRegs {
            rax: 1,
            rbx: 2,
            rip: 0x40_1000,
            rsp: 0x7000_0123,
            rflags: 0x646,
            orig_rax: 5,
            ..UserRegs::default()
        }
    }

    #[test]
    fn the_frame_keeps_out_of_the_red_zone_and_is_aligned() {
        let placement = place_frame(regs().rsp, None, 836).unwrap();
        assert!(placement.fpu + 836 <= regs().rsp - 128);
        assert_eq!((placement.fpu % 64, placement.frame % 16), (0, 8));
        assert!(placement.frame + 440 <= placement.fpu);
    }

    #[test]
    fn a_small_alternate_stack_is_refused() {
        let stack = AltStack {
            sp: 0x1000,
            size: 0x800,
            ..AltStack::default()
        };
        assert_eq!(place_frame(regs().rsp, Some(&stack), 2048), None);
        let placement = place_frame(regs().rsp, Some(&stack), 512).unwrap();
        assert!(placement.frame >= 0x1000 && placement.fpu + 512 <= 0x1800);
        assert!(
            stack.contains(0x1800)
                && stack.contains(0x1001)
                && !stack.contains(0x1000)
                && !AltStack::none().contains(5)
        );
    }

    #[test]
    fn registers_come_back() {
        let before = regs();
        let placement = place_frame(before.rsp, None, 512).unwrap();
        let frame = Frame::new(
            &before,
            placement,
            0x40_2000,
            &SigInfo::kernel(10),
            AltStack::none(),
            0x55,
            LastFault::default(),
        );
        let mut now = before;
        enter_handler(&mut now, placement, 0x40_3000, 10);
        assert_eq!(
            (now.rdi, now.rip, now.rsp, now.rflags & 0x400),
            (10, 0x40_3000, placement.frame, 0)
        );
        assert_eq!(
            (now.rsi - placement.frame, now.rdx - placement.frame),
            (312, 8)
        );
        let bytes = frame.as_bytes();
        assert_eq!(bytes[..8], 0x40_2000u64.to_ne_bytes());
        assert_eq!(bytes[8 + 40 + 128..][..8], before.rip.to_ne_bytes());
        assert_eq!(bytes[8 + 296..][..8], 0x55u64.to_ne_bytes());
        // NT and ID are no part of a frame: what the handler has done to them stays.
        let mut back = UserRegs {
            rflags: 0x20_4202,
            ..UserRegs::default()
        };
        frame.ucontext.restore(&mut back);
        assert_eq!(
            back,
            UserRegs {
                rflags: 0x20_4202 | before.rflags,
                orig_rax: u64::MAX,
                ..before
            }
        );
        assert_eq!(
            (frame.ucontext.mask(), frame.ucontext.fpu()),
            (0x55, placement.fpu)
        );
    }
}
