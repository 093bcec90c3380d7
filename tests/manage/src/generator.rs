//! Choice of the next operation: one that suits the present state, or one that does not. The same
//! from the same seed and the same state.

use crate::model::{Instance, LARGE_NEEDS, Model, Pause, Phase};
use crate::random::Random;
use crate::spec::{Exec, Op, Program, Reader, Resize, Root, RunMode, Signal, Spec, Step};

/// Names that are used again and again.
const NAMES: [&str; 5] = ["a", "b-1", "c.2", "d_3", "E"];
/// Names of the declared set, mostly.
const SET_NAMES: [&str; 3] = ["s1", "s2", "s3"];
/// Seconds that a tool waits for an instance that may never answer.
const LIMIT: u32 = 2;
/// Names that there cannot be, but for the last.
const ODD_NAMES: [&str; 7] = [
    "",
    ".hidden",
    "two words",
    "sla/sh",
    "caf\u{e9}",
    "x123456789012345678901234567890123456789012345678901234567890123",
    "x12345678901234567890123456789012345678901234567890123456789012",
];
/// Sizes as the tool reads them.
const SIZES: [(&str, u64); 6] = [
    ("24M", 24 << 20),
    ("32m", 32 << 20),
    ("33M", 33 << 20),
    ("40000k", 40_000 << 10),
    ("0.0625G", 64 << 20),
    ("64MiB", 64 << 20),
];
const ODD_SIZES: [(&str, u64); 8] = [
    ("0", 0),
    ("many", 0),
    ("4096", 4096),
    ("2M", 2 << 20),
    ("6M", 6 << 20),
    ("8M", 8 << 20),
    ("12M", 12 << 20),
    ("64G", 64 << 30),
];
const REFUSED: [(&str, &str); 5] = [
    ("nowhere", "No such file"),
    ("text", "neither a folder"),
    ("gzip", "gunzip"),
    ("empty", "neither a folder"),
    ("half.tar", "half.tar"),
];
const BROKEN: [&str; 3] = ["header.cpio", "noise.cpio", "half.cpio"];
const FILES: [(&str, u8); 5] = [
    ("/bin/nothing", 127),
    ("nothing", 127),
    ("/bin", 126),
    ("/text", 126),
    ("/noise", 126),
];
const FAULTS: [&str; 5] = ["panic", "wild", "overflow", "hang", "deaf"];
const SIGNALS: [Signal; 12] = [
    signal("KILL", 9, true, false),
    signal("TERM", 15, true, true),
    signal("INT", 2, true, true),
    signal("hup", 1, true, true),
    signal("SIGUSR1", 10, true, true),
    signal("12", 12, true, true),
    signal("QUIT", 3, true, false),
    signal("ALRM", 14, true, false),
    signal("WINCH", 28, false, false),
    signal("CONT", 18, false, false),
    signal("CHLD", 17, false, false),
    signal("40", 40, true, false),
];

const fn signal(name: &'static str, number: u8, fatal: bool, handled: bool) -> Signal {
    Signal {
        name,
        number,
        fatal,
        handled,
    }
}

/// The next step.
pub(crate) fn step(random: &mut Random, model: &Model) -> Step {
    match random.below(20) {
        0 => {
            let count = 2 + random.below(3);
            let mut ops: Vec<Op> = (0..count).map(|_| racing(random, model)).collect();
            // Whoever waits for a program does so for as long as it is paused.
            if ops.iter().any(|op| matches!(op, Op::Pause(_))) {
                ops.retain(|op| !matches!(op, Op::Exec(_) | Op::Run { .. }));
            }
            Step::Race(ops)
        }
        1 | 2 => {
            let op = racing(random, model);
            Step::One(
                op,
                RunMode::Killed(random.below(4).pow(3) * random.below(3000)),
            )
        }
        3 => Step::One(racing(random, model), RunMode::AsNobody),
        _ => Step::One(op(random, model), RunMode::Alone),
    }
}

/// One that ends by itself whatever others do meanwhile.
fn racing(random: &mut Random, model: &Model) -> Op {
    loop {
        match op(random, model) {
            Op::Wait(..) | Op::Follow { .. } | Op::Ready(_) | Op::Attach(_) => {}
            // What it asks may be asked of another one meanwhile, that does not answer.
            Op::Resize(resize) => {
                return Op::Resize(Resize {
                    limit: Some(LIMIT),
                    ..resize
                });
            }
            Op::Run { spec, .. } if spec.program == Program::Endless => {}
            op => return op,
        }
    }
}

/// An operation: mostly one that an instance of those there are is in the right state for.
fn op(random: &mut Random, model: &Model) -> Op {
    if random.once_in(6) {
        let name = random.pick(&SET_NAMES);
        return set(random, model, name);
    }
    let runs = |name: &&&str| {
        let instance = model.instances.get(**name);
        instance.is_some_and(|instance| matches!(instance.phase, Phase::Running { .. }))
    };
    let running: Vec<&str> = NAMES.iter().filter(runs).copied().collect();
    let name = match running.as_slice() {
        // Most of what can be done is done to these.
        [_, ..] if random.once_in(2) => random.pick(&running),
        _ => random.pick(&NAMES),
    };
    let name = name.to_owned();
    let Some(instance) = model.instances.get(&name) else {
        return match random.below(12) {
            0..3 => run(random, model, name),
            3..7 => Op::RunDetached(spec(random, model, name, false)),
            7..11 => Op::Create(spec(random, model, name, false)),
            _ => any(random, model, name),
        };
    };
    let program = instance.spec.as_ref().map(|spec| &spec.program);
    let (choice, dice) = (random.below(10), random.below(8));
    match &instance.phase {
        Phase::Created if choice < 5 => Op::Start(name),
        Phase::Running { .. } if instance.pause != Pause::No => match dice {
            0..3 => Op::Unpause(name),
            3 => Op::Kill(name, random.pick(&SIGNALS)),
            4 if instance.pause == Pause::Yes => Op::Attach(name),
            4 | 5 => change(random, model, &name, instance),
            6 => Op::StopForce(name),
            _ => any(random, model, name),
        },
        Phase::Running { surely: true, .. } if choice < 5 => Op::Wait(name, 1 + dice as u32 % 3),
        Phase::Running { .. } if choice == 0 => Op::StopForce(name),
        Phase::Running { ends, .. }
            if ends.is_empty()
                && !instance.ready
                && choice < 5
                && !matches!(program, None | Some(Program::Cat(_) | Program::Count(_))) =>
        {
            Op::Ready(name)
        }
        Phase::Running { ends, .. }
            if ends.is_empty() && program == Some(&Program::Endless) && choice < 3 =>
        {
            let reader = Some(reader(random, false))
                .filter(|reader| *reader != Reader::Late)
                .unwrap_or(Reader::Fast);
            Op::Follow {
                name,
                attach: dice < 5,
                reader,
            }
        }
        // One that is not up yet keeps the tool waiting, and one that hangs for longer.
        Phase::Running { .. } if instance.ready && !instance.may_hang() && dice < 4 => {
            Op::Exec(exec(random, name))
        }
        Phase::Running { .. } if choice < 8 => change(random, model, &name, instance),
        Phase::Running { .. } if choice == 8 => match dice {
            0..5 => Op::Kill(name, random.pick(&SIGNALS)),
            5 => Op::Stop(name),
            6 => Op::StopForce(name),
            _ => Op::RemoveForce(name),
        },
        Phase::Ended(_) if choice < 8 => match dice {
            0 if instance.previous.is_some() => Op::LogsPrevious(name),
            0 | 1 => Op::Logs(name),
            2 => Op::Restart(name),
            3 => Op::Wait(name, 2),
            4 => Op::Prune,
            _ => Op::Remove(name),
        },
        _ => any(random, model, name),
    }
}

/// A change of what there is: mostly one that is possible.
fn change(random: &mut Random, model: &Model, name: &str, instance: &Instance) -> Op {
    let name = name.to_owned();
    match random.below(10) {
        0..5 => Op::Resize(resize(random, model, name, instance)),
        // One that hangs is waited for.
        5 | 6 if !instance.may_hang() || random.once_in(3) => Op::Pause(name),
        5..8 => Op::Restart(name),
        8 => Op::Rename {
            name,
            to: new_name(random),
        },
        _ => Op::Unpause(name),
    }
}

/// A program that ends, beside the first one.
fn exec(random: &mut Random, name: String) -> Exec {
    let code = random.next() as u8;
    let program = match random.below(8) {
        0 => Program::File {
            path: "/no/such",
            code: 127,
        },
        1 => Program::Exit(code),
        2..4 => Program::Cat(code),
        4 => Program::Count(code),
        _ => Program::Write {
            out: random.below(3000) as u32,
            err: random.below(300) as u32,
            code,
        },
    };
    Exec {
        name,
        program,
        seed: random.next() as u32,
        input: (random.below(3) * random.below(100_000)) as usize,
    }
}

fn new_name(random: &mut Random) -> String {
    if random.once_in(8) {
        random.pick(&ODD_NAMES).to_owned()
    } else {
        random.pick(&NAMES).to_owned()
    }
}

fn resize(random: &mut Random, model: &Model, name: String, instance: &Instance) -> Resize {
    let (_, free) = model.free_cpus();
    let cpus = match random.below(12) {
        0 => instance.cpus + free + 1,
        1 => 64,
        2 => instance.cpus,
        3..8 => instance.cpus + 1 + random.below(u64::from(free.max(1))) as u32,
        _ => 1 + random.below(instance.cpus.into()) as u32,
    };
    let (mib, first) = (instance.memory >> 20, instance.first_memory >> 20);
    let mib = match random.below(14) {
        0 => mib.saturating_sub(1).max(1),
        1 => mib * 16 + 1,
        2 => 64 << 10,
        3 => mib,
        4 => first.saturating_sub(2).max(1),
        5..7 => first + random.below(mib.saturating_sub(first) + 1),
        _ => mib + 1 + random.below(32),
    };
    let memory = (format!("{mib}M"), mib << 20);
    let what = random.below(5);
    Resize {
        name,
        cpus: Some(cpus).filter(|_| what < 4),
        memory: Some(memory).filter(|_| what > 2),
        limit: Some(LIMIT).filter(|_| instance.may_hang() || instance.pending()),
        dry_run: random.once_in(8),
    }
}

/// A declared set that has something to do with what there is.
fn set(random: &mut Random, model: &Model, name: &str) -> Op {
    let declared: Vec<&String> = model.set().map(|(name, _)| name).collect();
    if !declared.is_empty() && random.once_in(3) {
        let name = random.pick(&declared).clone();
        let instance = &model.instances[&name];
        let paused = instance.pause != Pause::No;
        return match random.below(5) {
            0 if paused => Op::Unpause(name),
            0..4 => change(random, model, &name, instance),
            _ => Op::RemoveForce(name),
        };
    }
    let mut names: Vec<&str> = SET_NAMES
        .into_iter()
        .filter(|_| random.once_in(2))
        .collect();
    if names.is_empty() {
        names.push(name);
    }
    if random.once_in(12) {
        // Maybe somebody else's.
        names.push(NAMES[0]);
    }
    names.sort_unstable();
    let specs = names
        .into_iter()
        .map(|name| declared_spec(random, model, name));
    Op::Apply {
        specs: specs.collect(),
        prune: random.once_in(2),
    }
}

/// An instance of the declared set: as it is, or not quite.
fn declared_spec(random: &mut Random, model: &Model, name: &str) -> Spec {
    let present = model.instances.get(name);
    let (text, bytes) = random.pick(&[("32M", 32 << 20), ("64M", 64 << 20)]);
    let memory = (text.to_owned(), bytes);
    if let Some(spec) = present.and_then(|instance| instance.spec.clone())
        && !random.once_in(3)
    {
        let cpus = spec.cpus + random.below(2) as u32;
        return match random.below(4) {
            0 | 1 => spec,
            2 => Spec { cpus, ..spec },
            _ => Spec { memory, ..spec },
        };
    }
    let program = match random.below(8) {
        0..4 => Program::Sleep,
        4 => Program::Trap(random.next() as u8),
        5 => Program::Exit(random.next() as u8),
        6 => Program::Fault("panic"),
        _ => {
            let (path, code) = FILES[0];
            Program::File { path, code }
        }
    };
    Spec {
        name: name.to_owned(),
        cpus: 1,
        memory,
        root: random.pick(&[Root::Folder, Root::Folder, Root::Tar]),
        program,
        seed: 0,
    }
}

/// Any operation, whether it makes sense or not.
fn any(random: &mut Random, model: &Model, name: String) -> Op {
    let may_wait = |model: &Model| {
        let phase = model.instances.get(&name).map(|instance| &instance.phase);
        let paused = |name| {
            model
                .instances
                .get(name)
                .is_some_and(|one| one.pause != Pause::No)
        };
        !paused(&name)
            && !matches!(
                phase,
                Some(Phase::Created | Phase::Running { surely: false, .. })
            )
    };
    let has_phase = |is_it: fn(&Phase) -> bool| {
        let instance = model.instances.get(&name);
        instance.is_none_or(|instance| is_it(&instance.phase))
    };
    match random.below(21) {
        20 if has_phase(|phase| !matches!(phase, Phase::Running { .. })) => {
            Op::Exec(exec(random, name))
        }
        0 | 1 => Op::Create(spec(random, model, name, false)),
        2 => run(random, model, name),
        3 => Op::RunDetached(spec(random, model, name, false)),
        4 => Op::Start(name),
        5 => Op::Stop(name),
        6 => Op::StopForce(name),
        7 => Op::Kill(name, random.pick(&SIGNALS)),
        8 if may_wait(model) => Op::Wait(name, 1),
        8 | 9 => Op::Logs(name),
        10 if !model
            .instances
            .get(&name)
            .is_some_and(|instance| matches!(instance.phase, Phase::Running { .. })) =>
        {
            Op::Attach(name)
        }
        10 | 11 => Op::Inspect(name),
        12 => Op::Remove(name),
        13 => Op::RemoveForce(name),
        14 => Op::Pause(name),
        15 => Op::Unpause(name),
        16 => Op::Restart(name),
        17 => Op::LogsPrevious(name),
        18 => Op::Rename {
            name,
            to: new_name(random),
        },
        _ => {
            let Some(instance) = model.instances.get(&name) else {
                return Op::Resize(Resize {
                    name,
                    cpus: Some(1),
                    memory: None,
                    limit: Some(LIMIT),
                    dry_run: false,
                });
            };
            let resize = resize(random, model, name, instance);
            Op::Resize(resize)
        }
    }
}

fn run(random: &mut Random, model: &Model, name: String) -> Op {
    if random.once_in(3) {
        // More than all buffers hold, or so much that the last of it is in the instance's when it
        // ends: nobody reads until then.
        let out = random.pick(&[21_000, 40_000]) + random.below(7000) as u32;
        let program = Program::Write {
            out,
            err: random.below(300) as u32,
            code: random.next() as u8,
        };
        let (cpus, memory) = (1 + random.below(2) as u32, ("32M".to_owned(), 32 << 20));
        let spec = Spec {
            name,
            cpus,
            memory,
            root: Root::Folder,
            program,
            seed: random.next() as u32,
        };
        return Op::Run {
            spec,
            reader: Reader::Late,
            input: 0,
            remove: random.once_in(2),
        };
    }
    let spec = spec(random, model, name, true);
    let big = matches!(spec.program, Program::Write { out, .. } if out > 20_000);
    let input = match spec.program {
        Program::Cat(_) | Program::Count(_) => random.below(3) * random.below(200_000),
        _ => random.below(2) * random.below(5000),
    };
    let may_die = !big || random.once_in(3);
    Op::Run {
        reader: reader(random, may_die),
        input: input as usize,
        remove: random.once_in(3),
        spec,
    }
}

fn reader(random: &mut Random, may_die: bool) -> Reader {
    match random.below(8) {
        0 | 1 => Reader::Fast,
        2 => Reader::Slow {
            piece: random.pick(&[1, 7, 100, 4096]),
            pauses: random.below(300) as u32,
        },
        3..6 => Reader::Late,
        6 if may_die => {
            Reader::Dies(1 + random.below(3).pow(2) as usize * random.below(100_000) as usize)
        }
        _ => Reader::Stopped(1 + random.below(5) as u32),
    }
}

/// Specification of a new instance: mostly one that can be created; `ends`: the program ends by
/// itself.
fn spec(random: &mut Random, model: &Model, name: String, ends: bool) -> Spec {
    let odd = random.below(30);
    let name = if odd == 0 {
        random.pick(&ODD_NAMES).to_owned()
    } else {
        name
    };
    let (_, free) = model.free_cpus();
    let cpus = match odd {
        1 => 0,
        2 => free + 1,
        3 => 100,
        _ => 1 + random.below(u64::from(free.clamp(1, 3))) as u32,
    };
    let (text, bytes) = if (4..8).contains(&odd) {
        random.pick(&ODD_SIZES)
    } else {
        random.pick(&SIZES)
    };
    let mut memory = (text.to_owned(), bytes);
    let root = match odd {
        8 | 9 => {
            let (path, says) = random.pick(&REFUSED);
            Root::Refused { path, says }
        }
        10 => Root::Broken {
            path: random.pick(&BROKEN),
        },
        11 => {
            memory = if random.once_in(2) {
                ("24M".into(), LARGE_NEEDS)
            } else {
                ("128M".into(), 128 << 20)
            };
            Root::Large
        }
        _ if random.once_in(4) => Root::Tar,
        _ => Root::Folder,
    };
    let broken = matches!(root, Root::Broken { .. });
    let program = if broken {
        Program::Exit(0)
    } else {
        program(random, ends)
    };
    Spec {
        name,
        cpus,
        memory,
        root,
        program,
        seed: random.next() as u32,
    }
}

fn program(random: &mut Random, ends: bool) -> Program {
    let code = random.next() as u8;
    let lines = |random: &mut Random| match random.below(4) {
        0 => random.below(10) as u32,
        1 => 16_000 + random.below(12_000) as u32,
        2 => random.below(5000) as u32,
        _ => random.below(80_000) as u32,
    };
    match random.below(if ends { 12 } else { 24 }) {
        0 | 1 => Program::Exit(code),
        2..6 => Program::Write {
            out: lines(random),
            err: lines(random) / 8,
            code,
        },
        6 | 7 if ends => Program::Cat(code),
        8 if ends => Program::Count(code),
        6 | 7 => Program::Exit(code),
        8..10 => {
            let (path, code) = random.pick(&FILES);
            Program::File { path, code }
        }
        10 | 11 => Program::Fault(random.pick(if ends { &FAULTS[..3] } else { &FAULTS })),
        12..15 => Program::Endless,
        15..21 => Program::Sleep,
        _ => Program::Trap(code),
    }
}
