//! Classic BPF: checking a program, and running it over the numbers of a system call (seccomp
//! filters) or over a packet (socket filters).
//!
//! Facts: Linux, `Documentation/networking/filter.rst` (the instructions) and `seccomp(2)` (which
//! of them, over what).
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;

use abi::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most instructions of a program.
pub const MAX_LENGTH: usize = 4096;
/// Words of memory of a program.
const MEMORY: usize = 16;

/// `struct sock_filter`: one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Instruction {
    /// Operation code (`BPF_*`).
    pub code: u16,
    /// Number of instructions to skip if the condition holds.
    pub if_true: u8,
    /// Number of instructions to skip if the condition does not hold.
    pub if_false: u8,
    /// Operand: a number, an offset or a jump distance.
    pub k: u32,
}

/// Data that a program is run on: a packet, or a structure such as `seccomp_data`.
pub trait Data {
    /// Length of the data in bytes.
    fn length(&self) -> u32;

    /// The number of 1, 2 or 4 bytes at a place, in the order of bytes the program expects; `None`
    /// if it is not there.
    fn load(&self, at: u32, size: u32) -> Option<u32>;

    /// A fact about the packet that is not in its bytes, by number (`SKF_AD_*`); 0 for unknown
    /// ones.
    fn beside(&self, _number: u32) -> u32 {
        0
    }
}

/// A packet: what is in front of it, and the rest.
impl Data for (&[u8], &[u8]) {
    fn length(&self) -> u32 {
        u32::try_from(self.0.len() + self.1.len()).unwrap_or(u32::MAX)
    }

    fn load(&self, at: u32, size: u32) -> Option<u32> {
        let byte = |at: usize| {
            self.0
                .get(at)
                .or_else(|| self.1.get(at - self.0.len()))
                .copied()
        };
        (at as usize..at as usize + size as usize)
            .try_fold(0, |value, at| Some(value << 8 | u32::from(byte(at)?)))
    }
}

/// Use of a program; each use allows instructions of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// System calls: whole words, within so many bytes.
    Calls(u32),
    /// Packets.
    Packets,
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
const MODE_IND: u16 = 0x40;
const MODE_MEM: u16 = 0x60;
const MODE_LEN: u16 = 0x80;
/// Four times the low half of a byte: the length of an IPv4 header.
const MODE_MSH: u16 = 0xa0;
/// Places from here on are what is not in the packet.
const BESIDE: u32 = 0xffff_f000;
/// The last of these that there is, and the one that is an operation.
const LAST_BESIDE: u32 = 60;
const XOR_X: u32 = 40;
const RET_A: u16 = 0x10;
const TXA: u16 = 0x80;

/// The bytes that a load is of; `None` if there is no such size.
const fn size(code: u16) -> Option<u32> {
    match code & 0x18 {
        0 => Some(4),
        8 => Some(2),
        0x10 => Some(1),
        _ => None,
    }
}

/// A program that was checked: it ends, and touches nothing but its data and its memory.
#[derive(Clone, Debug)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// Checks a program.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(code: Vec<Instruction>, purpose: Purpose) -> Result<Self, Errno> {
        let ends = code.last().is_some_and(|last| last.code & 7 == RET);
        let length = code.len();
        let sound = |(at, op): (usize, &Instruction)| {
            let within = |skip: usize| at + 1 + skip < length;
            let k = op.k as usize;
            match op.code & 7 {
                LD => match (op.code & 0xe0, purpose) {
                    (MODE_IMM | MODE_LEN, _) => size(op.code) == Some(4),
                    (MODE_MEM, _) => size(op.code) == Some(4) && k < MEMORY,
                    (MODE_ABS, Purpose::Calls(length)) => {
                        size(op.code) == Some(4) && op.k.is_multiple_of(4) && op.k < length
                    }
                    (MODE_ABS, Purpose::Packets) => {
                        let known = |number: u32| number.is_multiple_of(4) && number <= LAST_BESIDE;
                        size(op.code).is_some() && op.k.checked_sub(BESIDE).is_none_or(known)
                    }
                    (MODE_IND, Purpose::Packets) => size(op.code).is_some(),
                    _ => false,
                },
                LDX => match op.code & 0xf8 {
                    MODE_IMM | MODE_LEN => true,
                    MODE_MEM => k < MEMORY,
                    _ => op.code & 0xf8 == MODE_MSH | 0x10 && purpose == Purpose::Packets,
                },
                ST | STX => op.code & 0xf8 == 0 && k < MEMORY,
                ALU => match op.code >> 4 {
                    // Add, subtract, multiply, or, and, negate, exclusive or.
                    0..=2 | 4 | 5 | 8 | 0xa => true,
                    3 => op.code & BY_X != 0 || k != 0,
                    6 | 7 => op.code & BY_X != 0 || k < 32,
                    9 => purpose == Purpose::Packets && (op.code & BY_X != 0 || k != 0),
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
        if fits && ends && code.iter().enumerate().all(sound) {
            Ok(Self(code))
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Instructions of the program.
    #[must_use]
    pub fn code(&self) -> &[Instruction] {
        &self.0
    }

    /// Number of instructions.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// Runs the program and returns its result. A load beyond the data, or a division by zero, ends
    /// it with 0.
    #[must_use]
    pub fn run(&self, data: &impl Data) -> u32 {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
        let mut at = 0;
        // Jumps lead forward only, so that this ends.
        while let Some(op) = self.0.get(at) {
            at += 1;
            let k = op.k as usize;
            let operand = if op.code & BY_X != 0 { x } else { op.k };
            let width = size(op.code).unwrap_or(4);
            let loaded = || match op.code & 0xe0 {
                MODE_ABS if op.k == BESIDE + XOR_X => Some(a ^ x),
                MODE_ABS if op.k >= BESIDE => Some(data.beside(op.k - BESIDE)),
                MODE_ABS => data.load(op.k, width),
                MODE_IND => data.load(op.k.checked_add(x)?, width),
                MODE_MSH => Some((data.load(op.k, 1)? & 0xf) * 4),
                MODE_MEM => Some(memory[k % MEMORY]),
                MODE_LEN => Some(data.length()),
                _ => Some(op.k),
            };
            match op.code & 7 {
                class @ (LD | LDX) => match loaded() {
                    Some(value) if class == LD => a = value,
                    Some(value) => x = value,
                    None => return 0,
                },
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
        9 => a.checked_rem(operand)?,
        _ => a ^ operand,
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn op(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction {
            code,
            if_true,
            if_false,
            k,
        }
    }

    /// Words, as a system call's are.
    struct Words([u32; 16]);

    impl Data for Words {
        fn length(&self) -> u32 {
            64
        }

        fn load(&self, at: u32, _: u32) -> Option<u32> {
            self.0.get(at as usize / 4).copied()
        }
    }

    const CALLS: Purpose = Purpose::Calls(64);

    fn data(number: u32, first: u32) -> Words {
        let mut words = [0; 16];
        (words[0], words[4]) = (number, first);
        Words(words)
    }

    #[test]
    fn a_usual_filter() {
        // Load the number; 39: go on; otherwise return 7. Load the first argument's low word; above
        // 9: return 8; otherwise 9.
        let program = vec![
            op(0x20, 0, 0, 0),
            op(0x15, 39, 0, 3),
            op(0x20, 16, 0, 0),
            op(0x25, 9, 1, 0),
            op(0x06, 9, 0, 0),
            op(0x06, 7, 0, 0),
        ];
        let program = Program::new(program, CALLS).unwrap();
        assert_eq!(
            [
                program.run(&data(39, 3)),
                program.run(&data(39, 10)),
                program.run(&data(40, 3))
            ],
            [9, 7, 7]
        );
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
        assert_eq!(
            Program::new(program, CALLS).unwrap().run(&data(0, 0)),
            34 + 64
        );
        let by_zero = vec![op(0x01, 0, 0, 0), op(0x3c, 0, 0, 0), op(0x06, 5, 0, 0)];
        assert_eq!(Program::new(by_zero, CALLS).unwrap().run(&data(0, 0)), 0);
    }

    #[test]
    fn packets_are_read_in_the_order_of_the_network() {
        let packet = (&[0x45, 0x02, 0x03][..], &[0x04, 0x05, 0x06, 0x07][..]);
        let run = |ops: Vec<Instruction>| Program::new(ops, Purpose::Packets).unwrap().run(&packet);
        let ret = op(0x16, 0, 0, 0);
        assert_eq!(run(vec![op(0x20, 1, 0, 0), ret]), 0x0203_0405);
        assert_eq!(run(vec![op(0x28, 2, 0, 0), ret]), 0x0304);
        assert_eq!(run(vec![op(0x30, 6, 0, 0), ret]), 7);
        // X = 4 * (0x45 & 15) = 20; behind the end.
        assert_eq!(run(vec![op(0xb1, 0, 0, 0), op(0x87, 0, 0, 0), ret]), 20);
        assert_eq!(
            run(vec![
                op(0xb1, 0, 0, 0),
                op(0x50, 0, 0, 0),
                op(0x06, 1, 0, 0)
            ]),
            0
        );
        assert_eq!(run(vec![op(0x01, 2, 0, 0), op(0x50, 1, 0, 0), ret]), 4);
        assert_eq!(run(vec![op(0x20, 4, 0, 0), op(0x06, 1, 0, 0)]), 0);
        assert_eq!(run(vec![op(0x80, 0, 0, 0), op(0x94, 4, 0, 0), ret]), 3);
        assert_eq!(
            run(vec![
                op(0x00, 6, 0, 0),
                op(0x01, 5, 0, 0),
                op(0x20, BESIDE + XOR_X, 0, 0),
                ret
            ]),
            3
        );
        assert!(Program::new(vec![op(0x20, BESIDE + 1, 0, 0), ret], Purpose::Packets).is_err());
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
            assert_eq!(Program::new(bad, CALLS).err(), Some(Errno::EINVAL));
        }
    }

    #[test]
    fn what_is_beside_a_packet_has_its_number() {
        struct Beside;
        impl Data for Beside {
            fn length(&self) -> u32 {
                0
            }

            fn load(&self, _: u32, _: u32) -> Option<u32> {
                None
            }

            fn beside(&self, number: u32) -> u32 {
                1000 + number
            }
        }
        let program = vec![op(0x20, BESIDE + 4, 0, 0), op(0x16, 0, 0, 0)];
        assert_eq!(
            Program::new(program, Purpose::Packets)
                .unwrap()
                .run(&Beside),
            1004
        );
    }

    /// Of lengths, jumps, memory words and shifts of a filter the last allowed value is accepted,
    /// and the next one refused.
    #[test]
    fn bounds_are_where_they_should_be() {
        let ret = op(0x06, 0, 0, 0);
        let accepted = |code: Vec<Instruction>, purpose| Program::new(code, purpose).is_ok();
        // Loads and stores of memory, by each of the four instructions.
        for code in [0x60, 0x61, 0x02, 0x03] {
            assert!(accepted(vec![op(code, 15, 0, 0), ret], CALLS), "{code:#x}");
            assert!(!accepted(vec![op(code, 16, 0, 0), ret], CALLS), "{code:#x}");
        }
        // Jumps to the last instruction, and behind it, on either way.
        assert!(accepted(vec![op(0x05, 0, 0, 0), ret], CALLS));
        for code in [0x15, 0x25, 0x35, 0x45, 0x1d] {
            assert!(
                accepted(vec![op(code, 0, 1, 0), ret, ret], CALLS)
                    && accepted(vec![op(code, 0, 0, 1), ret, ret], CALLS)
            );
            assert!(
                !accepted(vec![op(code, 0, 2, 0), ret, ret], CALLS),
                "{code:#x}"
            );
            assert!(
                !accepted(vec![op(code, 0, 0, 2), ret, ret], CALLS),
                "{code:#x}"
            );
        }
        assert!(
            !accepted(vec![op(0x0d, 0, 0, 0), ret], CALLS),
            "an unconditional jump by X"
        );
        assert!(
            !accepted(vec![op(0x55, 0, 0, 0), ret], CALLS),
            "a condition that there is not"
        );
        // Shifts, divisions and remainders by constants.
        assert!(accepted(
            vec![
                op(0x64, 31, 0, 0),
                op(0x74, 31, 0, 0),
                op(0x34, 1, 0, 0),
                ret
            ],
            CALLS
        ));
        assert!(!accepted(vec![op(0x74, 32, 0, 0), ret], CALLS));
        assert!(
            accepted(
                vec![
                    op(0x6c, 32, 0, 0),
                    op(0x7c, 99, 0, 0),
                    op(0x3c, 0, 0, 0),
                    ret
                ],
                CALLS
            ),
            "by X, whatever the constant"
        );
        assert!(accepted(
            vec![op(0x94, 1, 0, 0), op(0x9c, 0, 0, 0), ret],
            Purpose::Packets
        ));
        assert!(!accepted(vec![op(0x94, 0, 0, 0), ret], Purpose::Packets));
        assert!(
            !accepted(vec![op(0x94, 1, 0, 0), ret], CALLS)
                && !accepted(vec![op(0x9c, 0, 0, 0), ret], CALLS)
        );
        assert!(
            !accepted(vec![op(0xb4, 0, 0, 0), ret], CALLS),
            "an operation that there is not"
        );
        // System calls are loaded as words from within; packets at any size and place.
        assert!(accepted(vec![op(0x20, 60, 0, 0), ret], CALLS));
        for code in [0x28, 0x30, 0x40, 0xb1] {
            assert!(!accepted(vec![op(code, 0, 0, 0), ret], CALLS), "{code:#x}");
            assert!(
                accepted(
                    vec![op(code, u32::from(code == 0x28) * 999, 0, 0), ret],
                    Purpose::Packets
                ),
                "{code:#x}"
            );
        }
        for (k, known) in [
            (0, true),
            (4, true),
            (60, true),
            (61, false),
            (62, false),
            (64, false),
        ] {
            assert_eq!(
                accepted(vec![op(0x20, BESIDE + k, 0, 0), ret], Purpose::Packets),
                known,
                "{k}"
            );
        }
        for code in [0x38, 0x58, 0x08, 0x88, 0x68] {
            assert!(
                !accepted(vec![op(code, 0, 0, 0), ret], Purpose::Packets),
                "{code:#x} has no such size"
            );
        }
        // The length of the program, its end, and codes of more than a byte.
        assert!(accepted(vec![ret; MAX_LENGTH], CALLS));
        assert!(
            !accepted(vec![op(0x00, 1, 0, 0), op(0x07, 0, 0, 0)], CALLS),
            "it does not end by returning"
        );
        assert!(
            !accepted(vec![op(0x106, 0, 0, 0)], CALLS) && !accepted(vec![op(0x0e, 0, 0, 0)], CALLS)
        );
        assert!(!accepted(vec![op(0x0f, 0, 0, 0), ret], CALLS));
    }

    /// Each operation and condition, by a constant and by X.
    #[test]
    fn each_operation_does_its_own() {
        let run = |a, code: u16, operand, ops: &[Instruction]| {
            let by_x = [
                op(0x00, a, 0, 0),
                op(0x01, operand, 0, 0),
                op(code | BY_X, 0, ops.len() as u8, 0),
            ];
            let by_k = [
                op(0x00, a, 0, 0),
                op(0x01, 7, 0, 0),
                op(code, operand, ops.len() as u8, 0),
            ];
            let end = [op(0x16, 0, 0, 0)];
            let run = |begin: &[Instruction]| {
                Program::new([begin, ops, &end[..]].concat(), Purpose::Packets)
                    .unwrap()
                    .run(&(&[][..], &[][..]))
            };
            assert_eq!(run(&by_x), run(&by_k), "{code:#x}");
            run(&by_k)
        };
        let calculations = [
            (0x04, u32::MAX, 2, 1),
            (0x14, 1, 2, u32::MAX),
            (0x24, 3, 5, 15),
            (0x34, 17, 5, 3),
            (0x44, 0b1100, 0b1010, 0b1110),
            (0x54, 0b1100, 0b1010, 0b1000),
            (0x64, 3, 31, 1 << 31),
            (0x74, 1 << 31, 31, 1),
            (0x84, 5, 1, 5u32.wrapping_neg()),
            (0x94, 17, 5, 2),
            (0xa4, 0b1100, 0b1010, 0b0110),
        ];
        for (code, a, operand, result) in calculations {
            assert_eq!(run(a, code, operand, &[]), result, "{code:#x}");
        }
        // A condition that holds leaves out what sets A to 99.
        let conditions = [
            (0x15, [(4, 5, false), (5, 5, true), (6, 5, false)]),
            (0x25, [(4, 5, false), (5, 5, false), (6, 5, true)]),
            (0x35, [(4, 5, false), (5, 5, true), (6, 5, true)]),
            (0x45, [(4, 5, true), (2, 5, false), (0, 5, false)]),
        ];
        for (code, cases) in conditions {
            for (a, operand, holds) in cases {
                assert_eq!(
                    run(a, code, operand, &[op(0x00, 99, 0, 0)]),
                    if holds { a } else { 99 },
                    "{code:#x} {a} {operand}"
                );
            }
        }
        // Shifts by X may be by too much, and then nothing is left.
        for code in [0x6c, 0x7c] {
            let program = vec![
                op(0x00, 1, 0, 0),
                op(0x01, 32, 0, 0),
                op(code, 0, 0, 0),
                op(0x16, 0, 0, 0),
            ];
            assert_eq!(Program::new(program, CALLS).unwrap().run(&data(0, 0)), 0);
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_accepted_ends(ops in proptest::collection::vec((0u16..0x110, 0u32..80, 0u8..4, 0u8..4), 1..40), number in 0..500u32) {
            let code = ops.into_iter().map(|(code, k, t, f)| op(code, k, t, f)).collect();
            let code: Vec<Instruction> = code;
            if let Ok(program) = Program::new(code.clone(), CALLS) {
                let _ = program.run(&data(number, 1));
            }
            if let Ok(program) = Program::new(code, Purpose::Packets) {
                let _ = program.run(&(&[1, 2, 3][..], &[4; 40][..]));
            }
        }
    }
}
