//! Programs that are made to show what the specification lists, not drawn at random: those of its
//! lines `good`, `case` and `wait`, and of each call one for each member of its sets, each bad
//! pointer, each name, each edge of a length, and each kind of caller.
//!
//! A program of these is a `good` one (of a call that has none, the first that its types allow)
//! with one thing changed in its last step, so that a result says something of this one thing;
//! changes that make the call fail share programs.

use crate::interruptions;
use crate::layout::{LARGE, STEPS};
use crate::program::{Actor, BadAddress, Fill, Memory, Place, Program, Step, Value};
use crate::spec::{Area, Call, Pointer, ResultKind, Set, Spec, Target, Type};

/// Names that a path is replaced by for whom the name is the matter.
const NAMES: [&str; 24] = [
    "a",
    "b",
    "d",
    "d/f",
    "l",
    "o/x",
    "o",
    "x",
    "p",
    "s",
    "n",
    "q",
    "w/f",
    "q/f",
    "new",
    "d/new",
    "q/new",
    "a/under",
    ".",
    "",
    "d/",
    "a/",
    "/dev/null",
    "new/new",
];
/// Lengths at the edges of pages, of the chunks in which kernels copy, and of what a length can be.
const LENGTHS: [i64; 13] = [
    0,
    1,
    2,
    4095,
    4096,
    4097,
    8192,
    65536,
    65537,
    0x10_0001,
    0x7fff_ffff,
    0x8000_0000,
    -1,
];
/// Numbers of elements, around the limits that calls have.
const COUNTS: [i64; 6] = [0, 2, 1024, 1025, 0x7fff_ffff, -1];
/// Descriptors that are not there, and the one that stands for the directory.
const DESCRIPTORS: [i64; 4] = [-1, 1000, -100, 2];
/// Processes that are not there, and the caller.
const PROCESSES: [i64; 3] = [0, 0x3fff_ffff, 0x7fff_ffff];
/// Names that an ordinary user may be refused.
const OF_OTHERS: [&str; 9] = [
    "b",
    "q",
    "d/f",
    "q/f",
    "n",
    "m",
    "d/new",
    "q/new",
    "/dev/null",
];
/// Steps that most likely fail and share a program.
const TOGETHER: usize = 16;
/// Number of steps that a good program may have so that others fit before it.
const DEPTH: usize = 4;

/// All directed programs of an area, in an order that is the same each time. Each call's are made
/// when they are asked for: the executor, which forks for every program, stays small.
pub fn programs<'a>(spec: &'a Spec, area: &'a Area) -> impl Iterator<Item = Program> + 'a {
    let cases = area.cases.iter().cloned();
    let waits = area.waits.iter().flat_map(interruptions::programs);
    let calls = area.calls[..area.own].iter().flat_map(move |&call| {
        let good = good(spec, area, &spec.calls[call], 0);
        let mut programs = callers(&good);
        programs.extend(variations(spec, area, &good));
        programs.push(good);
        programs
    });
    let all = cases.chain(waits).chain(calls).enumerate();
    all.map(move |(index, program)| finished(spec, area, index, program))
}

/// A directed program with what depends on its number, and its area's name.
fn finished(spec: &Spec, area: &Area, index: usize, mut program: Program) -> Program {
    // Connections keep their ports for a while after their end: programs must not meet.
    let port = u16::try_from(index % 20_000).unwrap_or(0) + 30_000;
    program.area.clone_from(&area.name);
    for step in &mut program.steps {
        let kinds = spec
            .call(&step.call)
            .map_or(&[][..], |call| &call.arguments);
        for ((_, kind), value) in kinds.iter().zip(&mut step.arguments) {
            set_ports(spec, kind, value, port);
            step.timed |= sleeps(spec, kind, value);
        }
    }
    program
}

/// A program whose last step is this call, and most likely succeeds.
fn good(spec: &Spec, area: &Area, call: &Call, depth: usize) -> Program {
    if let Some(good) = &call.good {
        return good.clone();
    }
    let mut maker = Maker {
        spec,
        area,
        depth,
        program: bare(area),
    };
    let mut arguments = Vec::new();
    while let Some((_, kind)) = call.arguments.get(arguments.len()) {
        let (value, told) = maker.value(
            kind,
            call.arguments
                .get(arguments.len() + 1)
                .map(|(_, kind)| kind),
        );
        arguments.push(value);
        arguments.extend(told.map(Value::Number));
    }
    maker.program.steps.push(Step {
        actor: 0,
        call: call.name.clone(),
        arguments,
        timed: false,
    });
    maker.program
}

fn bare(area: &Area) -> Program {
    Program {
        area: area.name.clone(),
        actors: vec![Actor {
            thread: false,
            nobody: false,
        }],
        steps: Vec::new(),
    }
}

/// Makes the first value that a type allows, and steps that it needs.
struct Maker<'a> {
    spec: &'a Spec,
    area: &'a Area,
    depth: usize,
    program: Program,
}

impl Maker<'_> {
    /// A value, and what the next argument tells of it.
    fn value(&mut self, kind: &Type, next: Option<&Type>) -> (Value, Option<i64>) {
        let number = match kind {
            Type::Descriptor(sorts) if sorts.iter().any(|sort| sort == "directory") => -100,
            Type::Descriptor(sorts) => return (self.descriptor(sorts), None),
            Type::Path(name) => return (Value::Path(name.clone()), None),
            Type::Sets(names) => names
                .iter()
                .map(|name| first(self.spec.set(name)))
                .fold(0, |all, one| all | one),
            Type::Pointer(pointer) => return self.pointer(pointer, next),
            Type::Size => 10,
            Type::Count => 1,
            Type::Who => return (Value::Who(0), None),
            Type::Port | Type::WaitMilliseconds => 0,
            Type::Result(call) => return (self.result(call), None),
            Type::Constant(number) => *number,
            Type::Handler => return (Value::Handler, None),
            Type::Restorer => return (Value::Restorer, None),
        };
        (Value::Number(number), None)
    }

    fn descriptor(&mut self, sorts: &[String]) -> Value {
        if sorts.is_empty() {
            return self.result("open");
        }
        let maker = sorts
            .iter()
            .find_map(|sort| maker(self.spec, self.area, sort));
        maker.map_or(Value::Number(-1), |maker| self.result(&maker.name))
    }

    /// Result of a step with this call; the step is made if there is none.
    fn result(&mut self, call: &str) -> Value {
        let there = self.program.steps.iter().position(|step| step.call == call);
        let Some(call) = self.spec.call(call).filter(|_| self.depth < DEPTH) else {
            return Value::Number(-1);
        };
        let index = there.unwrap_or_else(|| {
            let made = good(self.spec, self.area, call, self.depth + 1);
            append(&mut self.program, &made);
            self.program.steps.len() - 1
        });
        Value::Result(
            index,
            usize::from(matches!(call.answer, ResultKind::Descriptors(_))),
        )
    }

    fn pointer(&mut self, pointer: &Pointer, next: Option<&Type>) -> (Value, Option<i64>) {
        let mut fields = Vec::new();
        let (size, told) = match &pointer.target {
            Target::Bytes if next == Some(&Type::Size) => (16, Some(16)),
            Target::Bytes => (64, None),
            Target::Wait | Target::WaitMicroseconds => {
                fields.extend([(0, 8, Value::Number(0)), (8, 8, Value::Number(0))]);
                (16, None)
            }
            Target::Scalar(width, names) => {
                let number = names
                    .iter()
                    .map(|name| first(self.spec.set(name)))
                    .fold(0, |all, one| all | one);
                fields.push((0, *width, Value::Number(number)));
                (*width, None)
            }
            Target::Structure(name) => {
                let structure = self.spec.structure(name);
                let mut told = None;
                for (index, field) in structure.fields.iter().enumerate() {
                    let Some(kind) = &field.kind else { continue };
                    let next = structure
                        .fields
                        .get(index + 1)
                        .and_then(|field| field.kind.as_ref());
                    let (value, length) = match told.take() {
                        Some(length) => (Value::Number(length), None),
                        None => self.value(kind, next),
                    };
                    told = length;
                    fields.push((field.offset, field.width, value));
                }
                (structure.size, None)
            }
        };
        let counted = pointer.array && matches!(next, Some(Type::Size | Type::Count));
        if !pointer.input {
            fields.clear();
        }
        let fill = match (pointer.input, &pointer.target) {
            (false, _) => Fill::Canary,
            (true, Target::Bytes) => Fill::Pattern(1),
            _ => Fill::Zero,
        };
        let memory = Memory {
            size: size.max(1),
            place: Place::At(0),
            fill,
            fields,
        };
        (Value::Memory(memory), if counted { Some(1) } else { told })
    }
}

/// The first member: 0 of what may be combined.
fn first(set: &Set) -> i64 {
    if set.combined { 0 } else { set.members[0].1 }
}

/// A call that makes descriptors of this sort, one of the area if there is.
fn maker<'a>(spec: &'a Spec, area: &Area, sort: &str) -> Option<&'a Call> {
    let makes = |call: &&Call| matches!(&call.answer, ResultKind::Descriptor(made) | ResultKind::Descriptors(made) if made == sort);
    area.calls
        .iter()
        .map(|&call| &spec.calls[call])
        .find(makes)
        .or_else(|| spec.calls.iter().find(makes))
}

/// Adds the steps of `other`, whose actor is the first.
fn append(program: &mut Program, other: &Program) {
    let before = program.steps.len();
    program
        .steps
        .extend(other.steps.iter().cloned().map(|mut step| {
            step.arguments
                .iter_mut()
                .for_each(|value| value.shift(&|index| index + before));
            step
        }));
}

/// The same program by an ordinary user, and with its last step by another process or thread.
fn callers(good: &Program) -> Vec<Program> {
    if good.actors.len() != 1 {
        return Vec::new();
    }
    let mut programs = Vec::new();
    let mut ordinary = good.clone();
    ordinary.actors[0].nobody = true;
    programs.push(ordinary);
    for other in [
        Actor {
            thread: false,
            nobody: true,
        },
        Actor {
            thread: true,
            nobody: false,
        },
    ] {
        let mut program = good.clone();
        program.actors.push(other);
        program
            .steps
            .last_mut()
            .into_iter()
            .for_each(|step| step.actor = 1);
        programs.push(program);
    }
    programs
}

/// Programs with one thing changed in the last step. What most likely succeeds has a program of its
/// own; what most likely fails shares one with others of its kind.
fn variations(spec: &Spec, area: &Area, good: &Program) -> Vec<Program> {
    let Some((last, before)) = good.steps.split_last() else {
        return Vec::new();
    };
    let Some(call) = spec.call(&last.call) else {
        return Vec::new();
    };
    let (mut programs, mut tries, mut ordinary) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (_, kind)) in call.arguments.iter().enumerate() {
        let next = call.arguments.get(at + 1).map(|(_, kind)| kind);
        let Some(value) = last.arguments.get(at) else {
            continue;
        };
        for Change { value, told, alone } in changed(spec, kind, next, value) {
            let mut step = last.clone();
            let of_others =
                matches!(&value, Value::Path(name) if OF_OTHERS.contains(&name.as_str()));
            step.arguments[at] = value;
            if let (Some(told), Some(argument)) = (told, step.arguments.get_mut(at + 1)) {
                *argument = Value::Number(told);
            }
            ordinary.extend(of_others.then(|| step.clone()));
            if alone {
                programs.push(Program {
                    steps: [before, &[step]].concat(),
                    ..good.clone()
                });
            } else {
                tries.push(step);
            }
        }
        if matches!(kind, Type::Descriptor(_)) {
            programs.extend(with_descriptors(good, &others(spec, area), at));
        }
    }
    let room = (STEPS - before.len()).min(TOGETHER);
    programs.extend(tries.chunks(room).map(|steps| Program {
        steps: [before, steps].concat(),
        ..good.clone()
    }));
    if good.actors.len() == 1 {
        for steps in ordinary.chunks(room) {
            let mut program = Program {
                steps: [before, steps].concat(),
                ..good.clone()
            };
            program.actors[0].nobody = true;
            programs.push(program);
        }
    }
    programs
}

/// Something else that an argument or field can be.
struct Change {
    value: Value,
    /// Value of the argument or field behind it then.
    told: Option<i64>,
    /// Whether the call most likely succeeds, and may leave nothing for another one to do.
    alone: bool,
}

impl Change {
    fn new(value: Value) -> Self {
        Self {
            value,
            told: None,
            alone: false,
        }
    }

    fn numbers(numbers: &[i64]) -> Vec<Self> {
        numbers
            .iter()
            .map(|&number| Self::new(Value::Number(number)))
            .collect()
    }
}

/// Programs that end with a descriptor of another sort each.
fn others(spec: &Spec, area: &Area) -> Vec<(Program, usize)> {
    let mut sorts = vec!["file", "pipe"];
    for &call in &area.calls {
        if let ResultKind::Descriptor(sort) | ResultKind::Descriptors(sort) =
            &spec.calls[call].answer
            && !sorts.contains(&sort.as_str())
        {
            sorts.push(sort);
        }
    }
    let makers = sorts.iter().filter_map(|sort| maker(spec, area, sort));
    let mut programs: Vec<_> = makers
        .map(|call| {
            (
                good(spec, area, call, 1),
                usize::from(matches!(call.answer, ResultKind::Descriptors(_))),
            )
        })
        .filter(|(program, _)| program.actors.len() == 1)
        .collect();
    // A directory, a file that can only be read, only be written, and a name only.
    for (path, flags) in [("d", 0), ("b", 0), ("b", 1), ("a", 0x20_0000)] {
        let mut program = bare(area);
        let arguments = vec![
            Value::Path(path.into()),
            Value::Number(flags),
            Value::Number(0),
        ];
        program.steps.push(Step {
            actor: 0,
            call: "open".into(),
            arguments,
            timed: false,
        });
        programs.push((program, 0));
    }
    programs
}

/// The good program with argument `at` of its last step from the end of another, several of them in
/// one.
fn with_descriptors(good: &Program, others: &[(Program, usize)], at: usize) -> Vec<Program> {
    let mut programs = Vec::new();
    for others in others.chunks(3) {
        let mut program = Program {
            steps: Vec::new(),
            ..good.clone()
        };
        let mut made = Vec::new();
        for (other, part) in others {
            append(&mut program, other);
            made.push(Value::Result(program.steps.len() - 1, *part));
        }
        append(&mut program, good);
        if let Some(last) = program.steps.pop() {
            program.steps.extend(made.into_iter().map(|made| {
                let mut step = last.clone();
                step.arguments[at] = made;
                step
            }));
        }
        programs.extend((program.steps.len() <= STEPS).then_some(program));
    }
    programs
}

/// Other values of an argument or field.
fn changed(spec: &Spec, kind: &Type, next: Option<&Type>, value: &Value) -> Vec<Change> {
    match kind {
        Type::Sets(names) => {
            let Value::Number(now) = value else {
                return Vec::new();
            };
            of_sets(spec, names, *now)
        }
        Type::Path(_) => {
            let names = NAMES.iter().map(|name| Value::Path((*name).into()));
            let bad = BadAddress::ALL
                .iter()
                .map(|(bad, _)| Value::BadAddress(*bad));
            let values = names
                .chain([255, 256, 4096].map(Value::LongPath))
                .chain(bad);
            values
                .filter(|other| other != value)
                .map(Change::new)
                .collect()
        }
        Type::Descriptor(_) => Change::numbers(&DESCRIPTORS),
        Type::Who => Change::numbers(&PROCESSES),
        Type::Size => Change::numbers(&LENGTHS),
        Type::Count => Change::numbers(&COUNTS),
        Type::Handler => Change::numbers(&[0, 1]),
        Type::Result(_) => Change::numbers(&[-1, 0x7fff_ffff]),
        Type::WaitMilliseconds => Change::numbers(&[1, -1]),
        Type::Pointer(pointer) => pointers(spec, pointer, next, value),
        Type::Constant(_) | Type::Restorer | Type::Port => Vec::new(),
    }
}

/// The value with each member of each set, and with all that may be combined.
fn of_sets(spec: &Spec, names: &[String], now: i64) -> Vec<Change> {
    let mut changes = Vec::new();
    for set in names.iter().map(|name| spec.set(name)) {
        let all = set.members.iter().fold(0, |all, (_, number)| all | number);
        for (label, number) in &set.members {
            let value = match (set.combined, names.len()) {
                (true, _) => now | number,
                (false, 1) => *number,
                (false, _) => now & !all | number,
            };
            let alone = label.starts_with(|c: char| c.is_ascii_uppercase());
            changes.push(Change {
                alone,
                ..Change::new(Value::Number(value))
            });
        }
        changes.extend(set.combined.then(|| Change::new(Value::Number(now | all))));
    }
    changes
}

fn pointers(spec: &Spec, pointer: &Pointer, next: Option<&Type>, value: &Value) -> Vec<Change> {
    let mut changes: Vec<_> = BadAddress::ALL
        .iter()
        .map(|(bad, _)| Change::new(Value::BadAddress(*bad)))
        .collect();
    changes.extend(pointer.optional.then(|| Change::new(Value::Number(0))));
    let Value::Memory(memory) = value else {
        return changes;
    };
    let here = |memory: Memory| Change::new(Value::Memory(memory));
    for place in [
        Place::At(1),
        Place::Cut(0),
        Place::Cut(1),
        Place::Cut(memory.size / 2),
        Place::Cut(memory.size),
    ] {
        changes.push(here(Memory {
            place,
            ..memory.clone()
        }));
    }
    if pointer.target == Target::Bytes && next == Some(&Type::Size) {
        for length in LENGTHS {
            let size =
                usize::try_from(length).map_or(1, |length| length.clamp(1, LARGE as usize / 2));
            changes.push(Change {
                told: Some(length),
                ..here(Memory {
                    size,
                    ..memory.clone()
                })
            });
            if (4096..=65536).contains(&length) {
                let cut = Memory {
                    size,
                    place: Place::Cut(1000),
                    ..memory.clone()
                };
                changes.push(Change {
                    told: Some(length),
                    ..here(cut)
                });
            }
        }
    } else if let Some(kind @ (Type::Size | Type::Count)) = next {
        changes.extend(
            changed(spec, kind, None, &Value::Number(0))
                .into_iter()
                .filter_map(|change| match change.value {
                    Value::Number(told) => Some(Change {
                        told: Some(told),
                        ..Change::new(value.clone())
                    }),
                    _ => None,
                }),
        );
    }
    for (index, (offset, _, field)) in memory.fields.iter().enumerate() {
        for Change { value, told, alone } in of_field(spec, &pointer.target, *offset, field) {
            let mut memory = memory.clone();
            memory.fields[index].2 = value;
            if let (Some(told), Some(field)) = (told, memory.fields.get_mut(index + 1)) {
                field.2 = Value::Number(told);
            }
            changes.push(Change {
                alone,
                ..here(memory)
            });
        }
    }
    changes
}

fn of_field(spec: &Spec, target: &Target, offset: usize, value: &Value) -> Vec<Change> {
    match target {
        Target::Bytes => Vec::new(),
        Target::Scalar(_, names) => changed(spec, &Type::Sets(names.clone()), None, value),
        Target::Wait | Target::WaitMicroseconds if offset == 0 => Change::numbers(&[1_000_000, -1]),
        Target::Wait => Change::numbers(&[1_000_000, 1_000_000_000, -1]),
        Target::WaitMicroseconds => Change::numbers(&[1000, 1_000_000, -1]),
        Target::Structure(name) => {
            let structure = spec.structure(name);
            let offset = offset % structure.size.max(1);
            let Some(at) = structure
                .fields
                .iter()
                .position(|field| field.offset == offset)
            else {
                return Vec::new();
            };
            let next = structure
                .fields
                .get(at + 1)
                .and_then(|field| field.kind.as_ref());
            structure.fields[at]
                .kind
                .as_ref()
                .map_or_else(Vec::new, |kind| changed(spec, kind, next, value))
        }
    }
}

/// Puts the port where one stands that was not given.
fn set_ports(spec: &Spec, kind: &Type, value: &mut Value, port: u16) {
    match (kind, value) {
        (Type::Port, value @ Value::Number(0)) => *value = Value::Number(port.to_be().into()),
        (
            Type::Pointer(Pointer {
                target: Target::Structure(name),
                ..
            }),
            Value::Memory(memory),
        ) => {
            let structure = spec.structure(name);
            for (offset, _, value) in &mut memory.fields {
                let field = structure
                    .fields
                    .iter()
                    .find(|field| field.offset == *offset % structure.size.max(1));
                field
                    .and_then(|field| field.kind.as_ref())
                    .into_iter()
                    .for_each(|kind| set_ports(spec, kind, value, port));
            }
        }
        _ => {}
    }
}

/// Whether the value lets the call sleep for a time of its own.
fn sleeps(spec: &Spec, kind: &Type, value: &Value) -> bool {
    match (kind, value) {
        (Type::WaitMilliseconds, Value::Number(1)) => true,
        (
            Type::Pointer(Pointer {
                target: target @ (Target::Wait | Target::WaitMicroseconds),
                ..
            }),
            Value::Memory(memory),
        ) => {
            let second = if *target == Target::Wait {
                1_000_000_000
            } else {
                1_000_000
            };
            let number = |at: usize| match memory.fields.get(at) {
                Some((_, _, Value::Number(number))) => *number,
                _ => 0,
            };
            number(0) == 0 && (0..second).contains(&number(1))
        }
        (
            Type::Pointer(Pointer {
                target: Target::Structure(name),
                ..
            }),
            Value::Memory(memory),
        ) => {
            let structure = spec.structure(name);
            memory.fields.iter().any(|(offset, _, value)| {
                let field = structure
                    .fields
                    .iter()
                    .find(|field| field.offset == *offset % structure.size.max(1));
                field
                    .and_then(|field| field.kind.as_ref())
                    .is_some_and(|kind| sleeps(spec, kind, value))
            })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ACTORS;

    #[test]
    fn each_program_can_be_run_and_its_text_says_all() {
        let spec = Spec::builtin();
        for area in &spec.areas {
            for program in programs(&spec, area) {
                assert!(
                    program.steps.len() <= STEPS && program.actors.len() <= ACTORS,
                    "{program}"
                );
                assert_eq!(program.to_string().parse(), Ok(program));
            }
        }
    }

    #[test]
    fn each_call_and_each_member_has_its_program() {
        let spec = Spec::parse(&[(
            "area",
            "flags f = A:1 B:2\nenum e = X:4 Y:8\n1 f(a: e|f, b: out bytes, c: size)\n2 open(a: path, b: 0, c: 0) -> fd file",
        )]);
        let spec = spec.expect("it is right");
        let made: Vec<_> = programs(&spec, &spec.areas[0]).collect();
        let has = |at: usize, value: &Value| {
            made.iter()
                .flat_map(|program| &program.steps)
                .any(|step| &step.arguments[at] == value)
        };
        assert!(
            [4, 5, 6, 7, 8]
                .iter()
                .all(|&number| has(0, &Value::Number(number)))
        );
        assert!(
            BadAddress::ALL
                .iter()
                .all(|&(bad, _)| has(1, &Value::BadAddress(bad)))
        );
        assert!(has(0, &Value::Path("q/f".into())));
    }
}
