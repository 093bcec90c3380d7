//! Programs from a seed.
//!
//! A program has a few steps. What one call returns flows into later ones: an argument that wants a
//! descriptor of some sort gets one that an earlier step made, and where there is none, mostly a
//! step that makes one comes first. Numbers come from the sets of the specification and now and
//! then from the edges of their type; lengths from around 0, the page, the chunks in which kernels
//! copy, and far beyond; one pointer in twenty cannot be used, and one memory in seven ends at a
//! hole or reaches into it.

use crate::layout::{LARGE, STEPS};
use crate::program::{Actor, BadAddress, Fill, Memory, Place, Program, Step, Value};
use crate::random::Random;
use crate::spec::{Area, Call, Pointer, ResultKind, Spec, Structure, Target, Type};

/// Names that programs use; the executor makes those there are (`docs/differential.md` has the
/// list).
pub const NAMES: [&str; 26] = [
    "a",
    "b",
    "d",
    "d/f",
    "l",
    "o",
    "x",
    "p",
    "s",
    "n",
    "w",
    "w/f",
    "q",
    "q/f",
    "new",
    "d/new",
    "w/new",
    "a/under",
    ".",
    "",
    "d/../a",
    "d/",
    "a/",
    "/dev/null",
    "m",
    "new/new",
];

/// Numbers at the edges of what an argument can be.
const EDGES: [i64; 12] = [
    0,
    1,
    -1,
    2,
    63,
    64,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX,
    i64::MIN,
];
/// Lengths: within a page, around it, around the chunks in which kernels copy, and nonsense.
const SMALL: [i64; 8] = [0, 1, 2, 7, 8, 10, 16, 100];
const MIDDLE: [i64; 7] = [511, 4095, 4096, 4097, 8191, 8192, 8193];
const BIG: [i64; 8] = [
    65535, 65536, 65537, 131_072, 300_000, 0xf_ffff, 0x10_0001, 0x20_0001,
];
const ABSURD: [i64; 5] = [-1, 0x7fff_ffff, 0x7fff_f000, 0x8000_0000, 0x100_0000_0000];
/// Descriptors that are not there, or stand for something else.
const ODD_DESCRIPTORS: [i64; 6] = [-1, -100, 1000, 0, 2, 0x7fff_ffff];
/// Processes that are not there.
pub(crate) const MISSING_PIDS: [i64; 3] = [0, 0x3fff_ffff, 0x7fff_ffff];

/// Program number `index` of `seed` in this area.
pub fn program(spec: &Spec, area: &Area, seed: u64, index: u64) -> Program {
    let mut random = Random::new(seed, index);
    let mut actors = vec![Actor {
        thread: false,
        nobody: random.chance(25),
    }];
    while actors.len() < 3 && random.chance(18) {
        actors.push(Actor {
            thread: random.chance(50),
            nobody: random.chance(30),
        });
    }
    // A thread shares its process's credentials only until one of them changes its own; here it
    // begins with them.
    let first = actors[0].nobody;
    actors
        .iter_mut()
        .filter(|actor| actor.thread || first)
        .for_each(|actor| actor.nobody = first);
    let wanted = 2 + random.below(9);
    let program = Program {
        area: area.name.clone(),
        actors,
        steps: Vec::new(),
    };
    // Connections keep their ports for a minute after their end: programs must not meet.
    let port = 10_000 + random.below(20_000) as u16;
    let mut generator = Generator {
        spec,
        area,
        random,
        program,
        port,
        timed: false,
    };
    while generator.program.steps.len() < wanted {
        let call = *generator.random.pick(&area.calls);
        generator.step(&spec.calls[call], 0);
    }
    generator.program
}

struct Generator<'a> {
    spec: &'a Spec,
    area: &'a Area,
    random: Random,
    program: Program,
    port: u16,
    /// Whether an argument of the step being made is a short time.
    timed: bool,
}

impl Generator<'_> {
    fn step(&mut self, call: &Call, depth: usize) {
        if self.program.steps.len() >= STEPS {
            return;
        }
        let actor = if self.random.chance(60) {
            0
        } else {
            self.random.below(self.program.actors.len())
        };
        let mut arguments = Vec::new();
        self.timed = false;
        while let Some((_, kind)) = call.arguments.get(arguments.len()) {
            if let Type::Descriptor(sorts) = kind {
                self.provide(sorts, depth);
                self.timed = false;
            }
            let next = call
                .arguments
                .get(arguments.len() + 1)
                .map(|(_, kind)| kind);
            let (value, length) = self.value(kind, next);
            arguments.push(value);
            arguments.extend(length.map(Value::Number));
        }
        let timed = self.timed;
        self.program.steps.push(Step {
            actor,
            call: call.name.clone(),
            arguments,
            timed,
        });
    }

    /// Makes a descriptor of one of these sorts, mostly, if there is none.
    fn provide(&mut self, sorts: &[String], depth: usize) {
        if sorts.is_empty() && !self.program.steps.is_empty()
            || depth > 2
            || !self.descriptors(sorts).is_empty()
            || !self.random.chance(85)
        {
            return;
        }
        let makes = |call: &&usize| match &self.spec.calls[**call].answer {
            ResultKind::Descriptor(sort) | ResultKind::Descriptors(sort) => {
                sorts.is_empty() || sorts.contains(sort)
            }
            _ => false,
        };
        let makers: Vec<usize> = self.area.calls.iter().filter(makes).copied().collect();
        if !makers.is_empty() {
            let maker = *self.random.pick(&makers);
            self.step(&self.spec.calls[maker], depth + 1);
        }
    }

    /// The descriptors of these sorts, or of all, that steps so far have made.
    fn descriptors(&self, sorts: &[String]) -> Vec<Value> {
        let mut found = Vec::new();
        for (index, step) in self.program.steps.iter().enumerate() {
            let Some(call) = self.spec.call(&step.call) else {
                continue;
            };
            match &call.answer {
                ResultKind::Descriptor(sort) if sorts.is_empty() || sorts.contains(sort) => {
                    found.push(Value::Result(index, 0));
                }
                ResultKind::Descriptors(sort) if sorts.is_empty() || sorts.contains(sort) => {
                    found.extend([Value::Result(index, 1), Value::Result(index, 2)]);
                }
                _ => {}
            }
        }
        found
    }

    /// A value, and where it is memory whose length the next argument says, that length.
    fn value(&mut self, kind: &Type, next: Option<&Type>) -> (Value, Option<i64>) {
        if let Type::Pointer(pointer) = kind {
            return self.pointer(pointer, next);
        }
        (self.plain(kind), None)
    }

    fn plain(&mut self, kind: &Type) -> Value {
        let random = &mut self.random;
        Value::Number(match kind {
            Type::Descriptor(sorts) => return self.descriptor(sorts),
            Type::Path(_) => return self.path(),
            Type::Handler => match random.below(10) {
                number @ 0..2 => number as i64,
                _ => return Value::Handler,
            },
            Type::Restorer => return Value::Restorer,
            Type::Result(call) => return self.result_of(call),
            Type::Who => return self.who(),
            Type::Sets(names) => {
                let names = names.clone();
                return Value::Number(self.combined(&names));
            }
            Type::Size | Type::Count => length(random),
            Type::WaitMilliseconds => {
                let time = *random.pick(&[0, 0, 1, 1, -1, 1_000_000]);
                self.timed |= time == 1;
                time
            }
            Type::Port => (self.port + random.below(2) as u16).to_be().into(),
            Type::Constant(number) => *number,
            Type::Pointer(_) => 0,
        })
    }

    fn descriptor(&mut self, sorts: &[String]) -> Value {
        if sorts.iter().any(|sort| sort == "directory") && self.random.chance(60) {
            return Value::Number(-100);
        }
        let fitting = self.descriptors(sorts);
        if !fitting.is_empty() && self.random.chance(88) {
            return self.random.pick(&fitting).clone();
        }
        let all = self.descriptors(&[]);
        if !all.is_empty() && self.random.chance(60) {
            return self.random.pick(&all).clone();
        }
        Value::Number(*self.random.pick(&ODD_DESCRIPTORS))
    }

    fn path(&mut self) -> Value {
        match self.random.below(60) {
            0 => Value::LongPath(*self.random.pick(&[255, 256, 4095, 4096])),
            1..3 => Value::BadAddress(self.random.pick(&BadAddress::ALL).0),
            _ => Value::Path((*self.random.pick(&NAMES)).to_owned()),
        }
    }

    fn result_of(&mut self, call: &str) -> Value {
        let steps = self
            .program
            .steps
            .iter()
            .enumerate()
            .filter(|(_, step)| step.call == call);
        let results: Vec<usize> = steps.map(|(index, _)| index).collect();
        if !results.is_empty() && self.random.chance(92) {
            return Value::Result(*self.random.pick(&results), 0);
        }
        Value::Number(*self.random.pick(&EDGES))
    }

    fn who(&mut self) -> Value {
        let is_pid = |step: &Step| {
            self.spec
                .call(&step.call)
                .is_some_and(|call| call.answer == ResultKind::Pid)
        };
        let made: Vec<usize> = self
            .program
            .steps
            .iter()
            .enumerate()
            .filter(|(_, step)| is_pid(step))
            .map(|(index, _)| index)
            .collect();
        if !made.is_empty() && self.random.chance(50) {
            return Value::Result(*self.random.pick(&made), 0);
        }
        if self.random.chance(75) {
            return Value::Who(self.random.below(self.program.actors.len()));
        }
        Value::Number(*self.random.pick(&MISSING_PIDS))
    }

    /// Members of some sets, or-ed.
    fn combined(&mut self, names: &[String]) -> i64 {
        let mut number = 0;
        for name in names {
            let set = self.spec.set(name);
            if set.combined {
                let count = *self.random.pick(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4]);
                (0..count).for_each(|_| number |= self.random.pick(&set.choices));
            } else {
                number |= self.random.pick(&set.choices);
            }
        }
        match self.random.below(100) {
            _ if names.iter().any(|name| self.spec.set(name).closed) => number,
            0 => number ^ 1 << self.random.below(34),
            1 => *self.random.pick(&EDGES),
            _ => number,
        }
    }

    fn pointer(&mut self, pointer: &Pointer, next: Option<&Type>) -> (Value, Option<i64>) {
        let before = self.timed;
        let (memory, count) = self.memory(pointer, next);
        let told = match (pointer.array || pointer.target == Target::Bytes, next) {
            (true, Some(Type::Size | Type::Count)) => Some(if self.random.chance(4) {
                length(&mut self.random)
            } else {
                count
            }),
            _ => None,
        };
        let value = match self.random.below(100) {
            _ if pointer.optional && self.random.chance(30) => Value::Number(0),
            0..5 => Value::BadAddress(self.random.pick(&BadAddress::ALL).0),
            _ => Value::Memory(memory),
        };
        if !matches!(value, Value::Memory(_)) {
            // A time that nobody is told of ends no wait.
            self.timed = before;
        }
        (value, told)
    }

    /// Memory for a pointer's target, and how many bytes or elements it has for whom the next
    /// argument tells that.
    fn memory(&mut self, pointer: &Pointer, next: Option<&Type>) -> (Memory, i64) {
        let mut fields = Vec::new();
        let (element, count) = match (&pointer.target, pointer.array) {
            (Target::Bytes, _) => {
                let length = if next == Some(&Type::Size) {
                    length(&mut self.random)
                } else {
                    64
                };
                (1, length)
            }
            (target, false) => (self.element(target, 0, &mut fields), 1),
            (target, true) => {
                let count = *self.random.pick(&[0, 1, 1, 2, 2, 3, 5]);
                let mut size = 0;
                for index in 0..count as usize {
                    size = self.element(target, index * size, &mut fields);
                }
                (size.max(1), count)
            }
        };
        if !pointer.input {
            fields.clear();
        }
        let room = if (0..=LARGE as i64).contains(&count) {
            count as usize
        } else {
            4096
        };
        let size = (element * room).max(1);
        let fill = match (pointer.input, &pointer.target) {
            (false, _) => Fill::Canary,
            (true, Target::Bytes) => Fill::Pattern(1 + self.random.below(9) as u8),
            _ => Fill::Zero,
        };
        let place = match self.random.below(100) {
            0..5 => Place::At(1 + self.random.below(7)),
            5..12 => Place::Cut(0),
            12..19 => Place::Cut(1 + self.random.below(size)),
            _ => Place::At(0),
        };
        (
            Memory {
                size,
                place,
                fill,
                fields,
            },
            count,
        )
    }

    /// Adds the fields of one element at `base`; returns its size.
    fn element(
        &mut self,
        target: &Target,
        base: usize,
        fields: &mut Vec<(usize, usize, Value)>,
    ) -> usize {
        match target {
            Target::Bytes => 1,
            Target::Wait => self.wait(base, 1_000_000_000, fields),
            Target::WaitMicroseconds => self.wait(base, 1_000_000, fields),
            Target::Scalar(width, names) => {
                if !names.is_empty() {
                    let number = self.combined(names);
                    fields.push((base, *width, Value::Number(number)));
                }
                *width
            }
            Target::Structure(name) => {
                let structure: &Structure = self.spec.structure(name);
                let mut told = None;
                for (index, field) in structure.fields.iter().enumerate() {
                    let Some(kind) = &field.kind else { continue };
                    let next = structure
                        .fields
                        .get(index + 1)
                        .and_then(|field| field.kind.as_ref());
                    let value = match told.take() {
                        Some(length) => Value::Number(length),
                        None => {
                            let (value, length) = self.value(kind, next);
                            told = length;
                            value
                        }
                    };
                    fields.push((base + field.offset, field.width, value));
                }
                structure.size
            }
        }
    }

    /// A time: none, a millisecond, for ever, or one that there cannot be.
    fn wait(&mut self, base: usize, second: i64, fields: &mut Vec<(usize, usize, Value)>) -> usize {
        let choices = [
            (0, 0),
            (0, 0),
            (0, second / 1000),
            (0, second / 1000),
            (1_000_000, 0),
            (0, second),
            (-1, 0),
            (0, -1),
        ];
        let &(seconds, rest) = self.random.pick(&choices);
        // A sleep of nothing sleeps, too, until the next interrupt of a timer.
        self.timed |= seconds == 0 && (0..second).contains(&rest);
        fields.push((base, 8, Value::Number(seconds)));
        fields.push((base + 8, 8, Value::Number(rest)));
        16
    }
}

fn length(random: &mut Random) -> i64 {
    match random.below(20) {
        0..9 => *random.pick(&SMALL),
        9..14 => *random.pick(&MIDDLE),
        14..18 => *random.pick(&BIG),
        18 => *random.pick(&ABSURD),
        _ => random.below(10_000) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_programs_again_and_their_text_too() {
        let spec = Spec::builtin();
        for area in &spec.areas {
            for index in 0..200 {
                let made = program(&spec, area, 7, index);
                assert_eq!(made, program(&spec, area, 7, index));
                assert_eq!(made.to_string().parse(), Ok(made));
            }
        }
    }

    #[test]
    fn arguments_are_as_many_as_the_call_has() {
        let spec = Spec::builtin();
        for area in &spec.areas {
            for step in (0..200).flat_map(|index| program(&spec, area, 3, index).steps) {
                let call = spec.call(&step.call).expect("it is of the specification");
                assert_eq!(step.arguments.len(), call.arguments.len(), "{step}");
            }
        }
    }
}
