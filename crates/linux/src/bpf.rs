//! Classic BPF over the numbers of a system call, as seccomp filters use it: checking a program, and running it.
//!
//! Facts: Linux, `Documentation/networking/filter.rst` (the instructions) and `seccomp(2)` (which of them, over what).

use alloc::vec::Vec;

use abi::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most instructions of a program.
const MAX_LENGTH: usize = 4096;
/// Words of memory of a program.
const MEMORY: usize = 16;

/// `struct sock_filter`: one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions it skips if its condition holds.
    pub if_true: u8,
    /// And if not.
    pub if_false: u8,
    /// Its operand.
    pub k: u32,
}

/// `struct seccomp_data`: what a program looks at.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Data {
    /// The call's number.
    pub number: i32,
    /// The kind of processor (`AUDIT_ARCH_X86_64`).
    pub arch: u32,
    /// Where the call comes from.
    pub ip: u64,
    /// Its arguments.
    pub args: [u64; 6],
}

// Classes of instructions.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;
/// The operand is the index register instead of the constant.
const BY_X: u16 = 8;
const MODE_IMM: u16 = 0;
const MODE_ABS: u16 = 0x20;
const MODE_MEM: u16 = 0x60;
const MODE_LEN: u16 = 0x80;
const RET_A: u16 = 0x10;
const TXA: u16 = 0x80;

/// A program that was checked: it ends, and touches nothing but its data and its memory.
#[derive(Clone, Debug)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// Checks a program.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(code: Vec<Instruction>) -> Result<Self, Errno> {
        let ends = code.last().is_some_and(|last| last.code & 7 == RET);
        let length = code.len();
        let sound = |(at, op): (usize, &Instruction)| {
            let within = |skip: usize| at + 1 + skip < length;
            let k = op.k as usize;
            match op.code & 7 {
                LD => match op.code & 0xf8 {
                    MODE_IMM | MODE_LEN => true,
                    MODE_ABS => k.is_multiple_of(4) && k < size_of::<Data>(),
                    MODE_MEM => k < MEMORY,
                    _ => false,
                },
                LDX => match op.code & 0xf8 {
                    MODE_IMM | MODE_LEN => true,
                    MODE_MEM => k < MEMORY,
                    _ => false,
                },
                ST | STX => op.code & 0xf8 == 0 && k < MEMORY,
                ALU => match op.code >> 4 {
                    // Add, subtract, multiply, or, and, negate, exclusive or.
                    0..=2 | 4 | 5 | 8 | 0xa => true,
                    3 => op.code & BY_X != 0 || k != 0,
                    6 | 7 => op.code & BY_X != 0 || k < 32,
                    _ => false,
                },
                JMP => match op.code >> 4 {
                    0 => op.code & BY_X == 0 && within(k),
                    1..=4 => within(op.if_true.into()) && within(op.if_false.into()),
                    _ => false,
                },
                RET => matches!(op.code & 0xf8, 0 | RET_A),
                _ => matches!(op.code & 0xf8, 0 | TXA),
            }
        };
        let fits = (1..=MAX_LENGTH).contains(&length) && code.iter().all(|op| op.code < 0x100);
        if fits && ends && code.iter().enumerate().all(sound) { Ok(Self(code)) } else { Err(Errno::EINVAL) }
    }

    /// How many instructions it has.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// What it returns for a call.
    #[must_use]
    pub fn run(&self, data: &Data) -> u32 {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
        let mut at = 0;
        // Jumps lead forward only, so that this ends.
        while let Some(op) = self.0.get(at) {
            at += 1;
            let k = op.k as usize;
            let operand = if op.code & BY_X != 0 { x } else { op.k };
            let load = |mode: u16| match mode {
                MODE_ABS => data.as_bytes().get(k..k + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
                MODE_MEM => memory[k % MEMORY],
                MODE_LEN => size_of::<Data>() as u32,
                _ => op.k,
            };
            match op.code & 7 {
                LD => a = load(op.code & 0xf8),
                LDX => x = load(op.code & 0xf8),
                ST => memory[k % MEMORY] = a,
                STX => memory[k % MEMORY] = x,
                ALU => match calculate(op.code >> 4, a, operand) {
                    Some(result) => a = result,
                    None => return 0,
                },
                JMP if op.code >> 4 == 0 => at += k,
                JMP => {
                    let holds = match op.code >> 4 {
                        1 => a == operand,
                        2 => a > operand,
                        3 => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += usize::from(if holds { op.if_true } else { op.if_false });
                }
                RET => return if op.code & RET_A != 0 { a } else { op.k },
                MISC if op.code & TXA != 0 => a = x,
                _ => x = a,
            }
        }
        0
    }
}

/// `None` for a division by zero, which ends the program with 0.
fn calculate(operation: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        0 => a.wrapping_add(operand),
        1 => a.wrapping_sub(operand),
        2 => a.wrapping_mul(operand),
        3 => a.checked_div(operand)?,
        4 => a | operand,
        5 => a & operand,
        6 => a.checked_shl(operand).unwrap_or(0),
        7 => a.checked_shr(operand).unwrap_or(0),
        8 => a.wrapping_neg(),
        _ => a ^ operand,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn op(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction { code, if_true, if_false, k }
    }

    fn data(number: i32, first: u64) -> Data {
        Data { number, arch: 0xc000_003e, ip: 0x1234, args: [first, 0, 0, 0, 0, 6] }
    }

    #[test]
    fn a_usual_filter() {
        // Load the number; 39: go on; otherwise return 7. Load the first argument's low word; above 9: return 8; otherwise 9.
        let program = vec![
            op(0x20, 0, 0, 0),
            op(0x15, 39, 0, 3),
            op(0x20, 16, 0, 0),
            op(0x25, 9, 1, 0),
            op(0x06, 9, 0, 0),
            op(0x06, 7, 0, 0),
        ];
        let program = Program::new(program).unwrap();
        assert_eq!([program.run(&data(39, 3)), program.run(&data(39, 10)), program.run(&data(40, 3))], [9, 7, 7]);
    }

    #[test]
    fn memory_and_arithmetic() {
        let program = vec![
            op(0x00, 6, 0, 0), // A = 6
            op(0x02, 3, 0, 0), // M[3] = A
            op(0x61, 3, 0, 0), // X = M[3]
            op(0x2c, 0, 0, 0), // A *= X
            op(0x14, 2, 0, 0), // A -= 2
            op(0x07, 0, 0, 0), // X = A
            op(0x80, 0, 0, 0), // A = length
            op(0x0c, 0, 0, 0), // A += X
            op(0x16, 0, 0, 0), // return A
        ];
        assert_eq!(Program::new(program).unwrap().run(&data(0, 0)), 34 + 64);
        let by_zero = vec![op(0x01, 0, 0, 0), op(0x3c, 0, 0, 0), op(0x06, 5, 0, 0)];
        assert_eq!(Program::new(by_zero).unwrap().run(&data(0, 0)), 0);
    }

    #[test]
    fn unsound_programs_are_refused() {
        let ret = op(0x06, 0, 0, 0);
        for bad in [
            vec![],
            vec![op(0x20, 0, 0, 0)],
            vec![op(0x20, 2, 0, 0), ret],
            vec![op(0x20, 64, 0, 0), ret],
            vec![op(0x15, 0, 1, 0), ret],
            vec![op(0x05, 1, 0, 0), ret],
            vec![op(0x02, 16, 0, 0), ret],
            vec![op(0x34, 0, 0, 0), ret],
            vec![op(0x64, 32, 0, 0), ret],
            vec![op(0x28, 0, 0, 0), ret],
            vec![ret; MAX_LENGTH + 1],
        ] {
            assert_eq!(Program::new(bad).err(), Some(Errno::EINVAL));
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_accepted_ends(ops in proptest::collection::vec((0u16..0x110, 0u32..80, 0u8..4, 0u8..4), 1..40), number in 0..500) {
            let code = ops.into_iter().map(|(code, k, t, f)| op(code, k, t, f)).collect();
            if let Ok(program) = Program::new(code) {
                let _ = program.run(&data(number, 1));
            }
        }
    }
}
