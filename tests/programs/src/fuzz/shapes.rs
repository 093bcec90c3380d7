//! Arguments of calls: descriptors of a sort, structures with pointers in them, flags that there
//! are.

use std::cell::RefCell;

use super::arena::{self, PAGE, Sort};
use super::program::{self, CHILD_PID, OWN_PID, Random};

/// Makes the arguments of one call and what they point to.
pub struct Shaper<'a> {
    random: RefCell<&'a mut Random>,
    pokes: RefCell<&'a mut Vec<(u64, u64)>>,
}

/// A signal's number, as likely one that does something as one that is not there.
pub const SIGNALS: [u64; 14] = [1, 2, 9, 10, 12, 14, 15, 17, 18, 19, 20, 34, 64, 65];
/// Lengths that are read and written.
pub const LENGTHS: [u64; 12] = [0, 1, 4, 8, 16, 64, 100, 1000, 4096, 5000, 65536, 300_000];

impl<'a> Shaper<'a> {
    pub fn new(random: &'a mut Random, pokes: &'a mut Vec<(u64, u64)>) -> Self {
        Self {
            random: RefCell::new(random),
            pokes: RefCell::new(pokes),
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.random.borrow_mut().next()
    }

    pub(super) fn below(&self, limit: u64) -> u64 {
        self.random.borrow_mut().below(limit)
    }

    pub(super) fn one<T: Copy>(&self, from: &[T]) -> T {
        self.random.borrow_mut().pick(from)
    }

    pub(super) fn pick(&self, from: &[u64]) -> u64 {
        self.one(from)
    }

    pub(super) fn word(&self) -> u64 {
        program::word(&mut self.random.borrow_mut())
    }

    /// One, two or three of them together.
    pub(super) fn flags(&self, from: &[u64]) -> u64 {
        let one = self.pick(from);
        match self.below(4) {
            0 => one | self.pick(from),
            1 => one | self.pick(from) | self.pick(from),
            _ => one,
        }
    }

    pub(super) fn fd(&self, sorts: &[Sort]) -> u64 {
        if self.below(10) == 0 {
            return program::fd(&mut self.random.borrow_mut());
        }
        let sort = self.one(sorts);
        self.one(&arena::of(sort))
    }

    pub(super) fn any_fd(&self) -> u64 {
        program::fd(&mut self.random.borrow_mut())
    }

    pub(super) fn directory(&self) -> u64 {
        if self.below(2) == 0 {
            (-100i64) as u64
        } else {
            self.fd(&[Sort::Directory])
        }
    }

    pub(super) fn path(&self) -> u64 {
        program::path(&mut self.random.borrow_mut())
    }

    /// The name of an extended attribute.
    pub(super) fn attribute(&self) -> u64 {
        let names: Vec<u64> = (0..arena::PATHS.len() as u64)
            .filter(|&index| arena::PATHS[index as usize].ends_with(".name"))
            .collect();
        if self.below(8) == 0 {
            self.path()
        } else {
            arena::path(self.one(&names))
        }
    }

    pub(super) fn process(&self) -> u64 {
        self.pick(&[0, OWN_PID, CHILD_PID, CHILD_PID])
    }

    /// Puts these words somewhere in writable memory; now and then across the edge of it.
    pub(super) fn words(&self, words: &[u64]) -> u64 {
        let page = arena::writable(self.below(arena::WRITABLE));
        let size = 8 * words.len() as u64;
        let space = PAGE - size;
        let offset = match self.below(12) {
            0 => space + 8 * self.below(size / 8 + 1),
            1 => self.below(space),
            _ => self.below(space / 8 + 1) * 8,
        };
        let fits = words
            .iter()
            .zip((page + offset..=page + PAGE - 8).step_by(8));
        self.pokes
            .borrow_mut()
            .extend(fits.map(|(&word, at)| (at, word)));
        page + offset
    }

    /// A word at this address.
    pub(super) fn at(&self, address: u64, word: u64) {
        self.pokes.borrow_mut().push((address, word));
    }

    /// A place for what a call gives back, and how large it may be.
    pub(super) fn buffer(&self) -> (u64, u64) {
        let length = self.pick(&LENGTHS);
        let at = match self.below(6) {
            0 => program::pointer(&mut self.random.borrow_mut(), &mut self.pokes.borrow_mut()),
            1 => arena::BASE + self.below(arena::LENGTH),
            _ => arena::writable(self.below(arena::WRITABLE)) + self.below(PAGE),
        };
        (at, length)
    }

    pub(super) fn place(&self) -> u64 {
        self.buffer().0
    }

    /// A place, or nothing.
    pub(super) fn maybe(&self) -> u64 {
        if self.below(2) == 0 { 0 } else { self.place() }
    }

    /// A duration or a time that is soon over, mostly.
    pub(super) fn time(&self) -> [u64; 2] {
        match self.below(8) {
            0 => [
                self.pick(&[0, 1, u64::MAX, 1 << 62, 1 << 34, 1 << 63]),
                self.pick(&[0, 999_999_999, 1_000_000_000, u64::MAX]),
            ],
            1 => [0, 0],
            _ => [0, self.below(3_000_000)],
        }
    }

    pub(super) fn time_at(&self) -> u64 {
        if self.below(5) == 0 {
            return 0;
        }
        let time = self.time();
        self.words(&time)
    }

    pub(super) fn interval(&self) -> u64 {
        let [a, b] = [self.time(), self.time()];
        self.words(&[a, b].concat())
    }

    pub(super) fn set(&self) -> u64 {
        let bits = match self.below(3) {
            0 => u64::MAX,
            1 => 1 << self.below(64),
            _ => self.next(),
        };
        self.words(&[bits])
    }

    /// `struct iovec[]`
    pub(super) fn vectors(&self) -> (u64, u64) {
        let count = self.pick(&[0, 1, 2, 2, 3, 8, 16]);
        let mut words = Vec::new();
        for _ in 0..count {
            let (at, length) = self.buffer();
            words.extend([at, length]);
        }
        let claimed = if self.below(12) == 0 {
            self.pick(&[1024, 1025, u64::MAX, 1 << 31])
        } else {
            count
        };
        (self.words(&words), claimed)
    }

    /// A socket's address and its length.
    pub(super) fn address(&self) -> (u64, u64) {
        let port = self.pick(&[5000, 5001, 5002, 5003, 0, 1, 65535]);
        let swapped = u64::from((port as u16).swap_bytes());
        let host = self.pick(&[
            0x0100_007f,
            0x0100_007f,
            0x0200_007f,
            0,
            0xffff_ffff,
            0x0100_00e0,
            0x0100_000a,
        ]);
        match self.below(8) {
            0..3 => (self.words(&[2 | swapped << 16 | host << 32, 0]), 16),
            3..5 => {
                let [high, low] = self.one(&[
                    [0, 1 << 56],
                    [0, 0],
                    [0, 0x0100_007f_ffff_0000],
                    [0x0000_0000_0000_80fe, 1 << 56],
                    [0x02ff, 1 << 56],
                ]);
                let scope = self.pick(&[0, 1, 2, 0xffff_ffff]);
                (self.words(&[10 | swapped << 16, high, low, scope]), 28)
            }
            5 => {
                // A path, or an abstract name.
                let name = self.one(&[
                    *b"socket",
                    *b"new\0\0\0",
                    *b"\0abs\0\0",
                    *b"file\0\0",
                    *b"dir/so",
                ]);
                let word = name
                    .iter()
                    .rev()
                    .fold(0, |word, &byte| word << 8 | u64::from(byte));
                let length = self.pick(&[2, 3, 6, 8, 9, 110, 111]);
                (self.words(&[1 | word << 16, 0]), length)
            }
            6 => (self.words(&[16, self.word(), 0]), 12),
            _ => (
                self.words(&[self.word() & 0xffff, 0, 0, 0]),
                self.pick(&[0, 1, 2, 8, 16, 28, 110, 128, 129, u64::MAX]),
            ),
        }
    }

    /// `struct msghdr`, with an address, vectors and control messages.
    pub(super) fn message(&self) -> [u64; 7] {
        let (name, name_length) = if self.below(2) == 0 {
            (0, 0)
        } else {
            self.address()
        };
        let (vectors, count) = self.vectors();
        let (control, control_length) = match self.below(4) {
            0 => self.control(),
            1 => (self.place(), self.pick(&[16, 24, 64, 256, 4096])),
            _ => (0, 0),
        };
        [
            name,
            name_length,
            vectors,
            count,
            control,
            control_length,
            0,
        ]
    }

    /// Control messages: descriptors, credentials, what there is of IP.
    pub(super) fn control(&self) -> (u64, u64) {
        let mut words = Vec::new();
        for _ in 0..=self.below(3) {
            let (level, kind) = self.one(&[
                (1, 1),
                (1, 1),
                (1, 2),
                (0, 1),
                (0, 2),
                (0, 8),
                (41, 50),
                (41, 52),
                (41, 67),
                (17, 103),
                (1, 37),
                (6, 1),
            ]);
            let data = match kind {
                1 => (0..=self.below(3))
                    .map(|_| self.any_fd() & 0xffff_ffff | self.any_fd() << 32)
                    .collect(),
                2 => vec![self.process() & 0xffff_ffff, 0],
                _ => vec![self.below(4), self.next()],
            };
            let true_length = 16 + 8 * data.len() as u64;
            let length = if self.below(8) == 0 {
                self.pick(&[0, 15, 16, 17, u64::MAX, 1 << 32])
            } else {
                true_length
            };
            words.extend([length, level | kind << 32]);
            words.extend(data);
        }
        let length = 8 * words.len() as u64;
        (self.words(&words), length)
    }

    pub(super) fn messages(&self) -> (u64, u64) {
        let count = 1 + self.below(4);
        let mut words = Vec::new();
        for _ in 0..count {
            words.extend(self.message());
            words.push(0);
        }
        (self.words(&words), count)
    }

    /// `struct pollfd[]`
    pub(super) fn polled(&self) -> (u64, u64) {
        let count = self.below(12);
        let words: Vec<_> = (0..count)
            .map(|_| self.any_fd() & 0xffff_ffff | self.next() << 32)
            .collect();
        (self.words(&words), count)
    }

    /// `struct sigevent`
    pub(super) fn notification(&self) -> u64 {
        let signal = self.pick(&SIGNALS);
        let how = self.pick(&[0, 1, 2, 4, 4]);
        let thread = self.process();
        self.words(&[self.word(), signal | how << 32, thread])
    }

    /// `char *[]`
    pub(super) fn strings(&self) -> u64 {
        let words: Vec<_> = (0..self.below(5)).map(|_| self.path()).chain([0]).collect();
        if self.below(8) == 0 {
            0
        } else {
            self.words(&words)
        }
    }

    /// A filter of a few instructions that ends.
    pub(super) fn filter(&self) -> u64 {
        const RETURNS: [u64; 6] = [
            0x7fff_0000,
            0x7fff_0000,
            0x0005_0001,
            0x7ffc_0000,
            0x0003_0000,
            0x7ff0_0000,
        ];
        let number = self.below(470);
        let (first, second) = (self.pick(&RETURNS), 0x7fff_0000);
        let program = match self.below(3) {
            // Returns the same of all; loads the number and compares it; nonsense.
            0 => vec![6 | first << 32],
            1 => vec![
                0x20,
                0x15 | 1 << 24 | number << 32,
                6 | first << 32,
                6 | second << 32,
            ],
            _ => (0..=self.below(6)).map(|_| self.next()).collect(),
        };
        let count = program.len() as u64;
        let at = self.words(&program);
        self.words(&[count, at])
    }

    pub(super) fn memory(&self) -> (u64, u64) {
        let at = arena::BASE + (self.below(arena::LENGTH) & !(PAGE - 1));
        let length = self.pick(&[
            0,
            1,
            PAGE,
            PAGE,
            2 * PAGE,
            4 * PAGE,
            64 * PAGE,
            u64::MAX,
            1 << 47,
        ]);
        (at, length)
    }
}
