//! Program of a round, as a function of its seed: a list of calls for each of its threads. Nothing
//! here makes a call, so the same list can be shown on the host.

use std::fmt;

use super::arena::{self, PAGE};
use super::shapes::Shaper;
use super::themes::THEMES;

/// Calls of each thread of a round.
const CALLS: usize = 250;
/// Placeholder for a number that is known only when the call is made: the round's process.
pub const OWN_PID: u64 = 0x6f77_6e00_0000_0001;
/// A child of the round's process, which does nothing.
pub const CHILD_PID: u64 = 0x6f77_6e00_0000_0002;

/// Where values at and over the edge of what a call can mean come from: powers of two, their
/// neighbours, signs.
const EDGES: [u64; 24] = [
    0,
    1,
    2,
    3,
    7,
    8,
    63,
    64,
    255,
    4095,
    4096,
    4097,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
    u64::MAX - 1,
    u64::MAX - 4094,
    u64::MAX - 4095,
];

/// Addresses that no program has anything at, and some of the kernel's.
const WILD: [u64; 12] = [
    0,
    1,
    0xfff,
    0x7fff_ffff_f000,
    0x7fff_ffff_ffff,
    0x8000_0000_0000,
    0xffff_7fff_ffff_ffff,
    0xffff_8000_0000_0000,
    0xffff_9000_0000_0000,
    0xffff_ffff_8000_0000,
    0xffff_ffff_ffff_f000,
    u64::MAX,
];

/// Descriptors that are not there, or stand for something.
const ODD_FDS: [u64; 8] = [
    u64::MAX,
    (-100i64) as u64,
    0xffff_ff9c,
    0x7fff_ffff,
    0x8000_0000,
    200,
    1023,
    65536,
];

/// Calls that end the round, or the instance, without a chance for anything to go wrong.
pub const LEFT_OUT: [&str; 5] = ["exit", "exit_group", "reboot", "vhangup", "rt_sigsuspend"];
/// Calls whose whole numbers are processes: they must not hit the one that watches.
const OF_PROCESSES: [&str; 31] = [
    "kill",
    "tkill",
    "tgkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_open",
    "prlimit64",
    "setpriority",
    "getpriority",
    "setpgid",
    "getpgid",
    "getsid",
    "wait4",
    "waitid",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "migrate_pages",
    "move_pages",
    "get_robust_list",
    "sched_setparam",
    "sched_getparam",
    "sched_setscheduler",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_setaffinity",
    "sched_getaffinity",
    "sched_setattr",
    "sched_getattr",
    "ioprio_set",
];

/// One line of the table of calls: what the kernel's own table says of it.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Number of the call.
    pub number: u64,
    /// Name of the call.
    pub name: String,
    kinds: Vec<String>,
}

/// Reads lines `NUMBER NAME KIND…`.
pub fn signatures(text: &str) -> Vec<Signature> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (number, name) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        Some(Signature {
            number,
            name,
            kinds: words.map(str::to_owned).collect(),
        })
    };
    text.lines().filter_map(parse).collect()
}

/// One call, and what is written into the program's memory before it.
#[derive(Clone)]
pub struct Call {
    /// Number of the call; it need not be one that there is.
    pub number: u64,
    /// All six, whatever the call takes.
    pub arguments: [u64; 6],
    /// Where, in the arena, and what.
    pub pokes: Vec<(u64, u64)>,
    /// For `rt_sigreturn(2)`: where the frame is.
    pub frame: Option<u64>,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    /// The stream of a thread of a round.
    pub fn new(seed: u64, round: u64, thread: u64) -> Self {
        let mut random = Self(seed ^ round.wrapping_mul(0xd134_2543_de82_ef95) ^ thread << 56);
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The calls of one thread of a round.
pub fn calls(signatures: &[Signature], seed: u64, round: u64, thread: u64) -> Vec<Call> {
    let mut random = Random::new(seed, round, thread);
    // A few calls of a round are made again and again: races and states need them together.
    let favourites: Vec<_> = (0..6)
        .map(|_| random.below(signatures.len() as u64) as usize)
        .collect();
    let theme = random.pick(&THEMES);
    let themed: Vec<_> = (0..signatures.len())
        .filter(|&index| theme.contains(&signatures[index].name.as_str()))
        .collect();
    let mut calls = Vec::with_capacity(CALLS);
    while calls.len() < CALLS {
        let index = match random.below(4) {
            0 => random.pick(&favourites),
            1 | 2 if !themed.is_empty() => random.pick(&themed),
            _ => random.below(signatures.len() as u64) as usize,
        };
        let signature = &signatures[index];
        if LEFT_OUT.contains(&signature.name.as_str())
            || signature.name == "rt_sigreturn" && random.below(8) != 0
        {
            continue;
        }
        calls.push(call(&mut random, signature));
    }
    calls
}

fn call(random: &mut Random, signature: &Signature) -> Call {
    let processes = OF_PROCESSES.contains(&signature.name.as_str());
    let mut call = Call {
        number: signature.number,
        arguments: [0; 6],
        pokes: Vec::new(),
        frame: None,
    };
    if signature.name == "rt_sigreturn" {
        signal_frame(random, &mut call);
        return call;
    }
    if random.below(3) != 0
        && let Some(arguments) = Shaper::new(random, &mut call.pokes).arguments(&signature.name)
    {
        call.arguments = arguments;
        return call;
    }
    call.pokes.clear();
    for index in 0..6 {
        let kind = signature.kinds.get(index).map_or("", String::as_str);
        call.arguments[index] = match kind {
            "Fd" => fd(random),
            "Ptr" => pointer(random, &mut call.pokes),
            "Str" => path(random),
            "Sig" => random.pick(&[
                0,
                1,
                2,
                9,
                10,
                14,
                15,
                17,
                18,
                19,
                20,
                23,
                32,
                33,
                34,
                64,
                65,
                u64::MAX,
            ]),
            "Oct" => random.pick(&[
                0,
                0o644,
                0o700,
                0o777,
                0o1777,
                0o4755,
                0o7777,
                0o100644,
                0o20666,
                0o60600,
                0o10600,
                0o140600,
                u64::MAX,
            ]),
            _ if processes && kind == "Int" => process(random),
            _ => number(random),
        };
    }
    if random.below(100) == 0 {
        call.number |= random.pick(&[0x4000_0000, 0x8000_0000, 1 << 32, u64::MAX << 32]);
    }
    if random.below(60) == 0 {
        call.number = random.below(600);
    }
    if [60, 169, 231].contains(&(call.number & 0xffff)) {
        call.number = 39;
    }
    call
}

/// A descriptor's number, of anything or nothing.
pub fn fd(random: &mut Random) -> u64 {
    match random.below(12) {
        0 => random.pick(&ODD_FDS),
        1 => random.pick(&EDGES),
        _ => random.below(arena::LAST_FD),
    }
}

fn process(random: &mut Random) -> u64 {
    random.pick(&[
        0,
        0,
        OWN_PID,
        OWN_PID,
        CHILD_PID,
        CHILD_PID,
        99_999,
        0x7fff_ffff,
        0x8000_0000,
        u64::MAX - 7,
        (-99_999i64) as u64,
    ])
}

fn number(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.pick(&EDGES),
        1 => 1 << random.below(64),
        2 => random.next() & random.next() & random.next() & 0xffff_ffff,
        3 => random.next(),
        4 => random.below(PAGE * 4),
        _ => random.below(40),
    }
}

/// A value such as structures hold: small, an edge, an address of the arena.
pub fn word(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.pick(&EDGES),
        1 => arena::BASE + random.below(arena::LENGTH),
        2 => fd(random) | random.next() << 32,
        3 => random.next(),
        _ => random.below(100),
    }
}

/// An address, and perhaps something at it.
pub fn pointer(random: &mut Random, pokes: &mut Vec<(u64, u64)>) -> u64 {
    match random.below(16) {
        0 => random.pick(&WILD),
        1 => 0,
        2 => random.next(),
        // What ends before the structure does.
        3 => arena::end_of_writable(random.below(arena::WRITABLE)) - random.below(130),
        4 => arena::BASE + random.below(arena::LENGTH),
        5 => arena::BASE + (random.below(arena::LENGTH) & !(PAGE - 1)),
        6 => path(random),
        _ => {
            let address =
                arena::writable(random.below(arena::WRITABLE)) + (random.below(PAGE - 256) & !7);
            for index in 0..random.below(16) {
                pokes.push((address + index * 8, word(random)));
            }
            address
        }
    }
}

/// Where a name is.
pub fn path(random: &mut Random) -> u64 {
    match random.below(20) {
        0 => random.pick(&WILD),
        1 => arena::BASE + random.below(arena::LENGTH),
        2..10 => arena::path(random.below(arena::OWN_PATHS)),
        _ => arena::path(random.below(arena::PATHS.len() as u64)),
    }
}

/// A frame such as `rt_sigreturn(2)` takes registers from: all of it wrong, or only some of it.
fn signal_frame(random: &mut Random, call: &mut Call) {
    let frame = arena::writable(random.below(arena::WRITABLE)) + 8 * random.below(4);
    // struct ucontext: flags, link, stack (3), 18 registers, segments, 4 words, the floating-point
    // state's address, 8 reserved, mask.
    for index in 0..40 {
        let value = match index {
            21..23 => random.pick(&[
                0x8000_0000_0000,
                0xffff_8000_0000_0000,
                0x7fff_ffff_ffff,
                arena::BASE,
                0,
                0x40_1000,
            ]),
            23 => random.pick(&[0x202, 0x3202, u64::MAX, 0x4_0202, 0x1_4302, 0]),
            24 if random.below(2) == 0 => 0x002b_0000_0000_0033,
            28 => random.pick(&[
                0,
                frame + 512,
                frame + 513,
                arena::BASE + PAGE,
                !63,
                arena::end_of_writable(0) - 256,
            ]),
            _ => word(random),
        };
        call.pokes.push((frame + index * 8, value));
    }
    // The floating-point state, if it is there: control words, the software's words with their
    // mark, the header of XSAVE.
    for (offset, value) in [
        (0, 0x037f),
        (24, 0xffff_ffff_ffff),
        (464, 0x1a88_4650_5853),
        (472, u64::MAX),
        (512, u64::MAX),
        (520, u64::MAX),
    ] {
        if random.below(2) == 0 {
            call.pokes.push((frame + 512 + offset, value));
        }
    }
    call.frame = Some(frame);
}

/// A call as it is shown.
pub struct Shown<'a>(pub &'a Call, pub &'a [Signature]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(call, signatures) = self;
        let known = signatures
            .iter()
            .find(|signature| signature.number == call.number);
        match known {
            Some(signature) => write!(f, "{}(", signature.name)?,
            None => write!(f, "call {:#x}(", call.number)?,
        }
        let count = known.map_or(6, |signature| signature.kinds.len());
        for (index, argument) in call.arguments[..count].iter().enumerate() {
            write!(f, "{}{argument:#x}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, ")")
    }
}
