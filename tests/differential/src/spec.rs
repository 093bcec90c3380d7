//! The specification of the calls: their arguments, what they return, the errors of the manual.
//!
//! The files in `spec/` hold one area each, as lines:
//!
//! ```text
//! # remark
//! use CALL …                       calls of other areas that belong here, too
//! surroundings WORD …              what a program of the area needs, a namespace of its own
//!                                  (`ipc`, `uts`, `mounts`), or has told of its end: `maps`,
//!                                  `status`, `limits`
//! flags NAME = LABEL:NUMBER …      any of them together
//! enum NAME = LABEL:NUMBER …       one of them
//! values NAME = NUMBER …           one of them
//! only NAME = LABEL:NUMBER …       one of them, and never any other number (the others are now
//!                                  and then replaced by an odd one)
//! struct NAME SIZE: FIELD, …       FIELD is `OFFSET:WIDTH NAME TYPE [~COMPARE]`
//! NUMBER CALL(NAME: TYPE, …) [-> RESULT] [! ERROR …] [~ LABEL …]
//! good [ACTOR, …:] STEP; …         a program whose last step succeeds, which directed programs
//!                                  vary
//! case [ACTOR, …:] STEP; …         a program that shows something else of the calls in it
//! wait [ACTOR, …:] STEP; … [=> STEP; …]
//!                                  a program in which the last step before `=>` waits, and what
//!                                  comes behind it ends the wait
//! ```
//!
//! Behind `!` are the errors of the manual, behind `~` members of sets with which this call never
//! succeeds. A label in small letters is none of the manual's names, and may be refused, too. Steps
//! are as in programs ([`crate::program`]); where there is one actor, they are without its number,
//! and where none is named, it is root. In a line `wait` that names no actors root waits, and a
//! thread of its process takes the steps behind `=>`; signals are sent by one process more
//! ([`crate::interruptions`]). What cannot be seen is in `spec/unseen.list`, with the reasons.
//!
//! `*N` behind a member makes it N times as frequent. A line that begins with white space goes on
//! with the line before. A negative number is a step that the executor takes itself. `TYPE` is the
//! name of a set (several with `|` between them are or-ed) or one of the words of [`Type`]. What
//! may differ between two kernels is said by `RESULT` and `COMPARE`: [`ResultKind`] and
//! [`Compare`].

use std::collections::HashMap;

use crate::errno;
use crate::program::{Actor, Program};

/// Items that cannot be seen, each with the reason.
const UNSEEN: &str = include_str!("../spec/unseen.list");

/// The files, by area.
const FILES: [(&str, &str); 20] = [
    ("files", include_str!("../spec/files.spec")),
    ("events", include_str!("../spec/events.spec")),
    ("ipc", include_str!("../spec/ipc.spec")),
    ("time", include_str!("../spec/time.spec")),
    ("sockets", include_str!("../spec/sockets.spec")),
    ("signals", include_str!("../spec/signals.spec")),
    ("processes", include_str!("../spec/processes.spec")),
    ("memory", include_str!("../spec/memory.spec")),
    ("sched", include_str!("../spec/sched.spec")),
    ("credentials", include_str!("../spec/credentials.spec")),
    ("limits", include_str!("../spec/limits.spec")),
    ("names", include_str!("../spec/names.spec")),
    ("futex", include_str!("../spec/futex.spec")),
    ("exec", include_str!("../spec/exec.spec")),
    ("peers", include_str!("../spec/peers.spec")),
    ("system", include_str!("../spec/system.spec")),
    ("mounts", include_str!("../spec/mounts.spec")),
    ("numa", include_str!("../spec/numa.spec")),
    ("messages", include_str!("../spec/messages.spec")),
    ("vmsplice", include_str!("../spec/vmsplice.spec")),
];

/// All calls of all areas.
#[derive(Debug, Default)]
pub struct Spec {
    /// The calls; what refers to one does so by its index here.
    pub calls: Vec<Call>,
    /// The areas.
    pub areas: Vec<Area>,
    /// Errors of the manual that cannot be caused in a test machine.
    pub unreachable: Vec<Unreachable>,
    /// System calls that no program makes, with the reason.
    pub excluded: Vec<(String, String)>,
    sets: HashMap<String, Set>,
    structures: HashMap<String, Structure>,
}

/// An error that cannot be caused in a test machine.
#[derive(Debug)]
pub struct Unreachable {
    /// The error.
    pub error: i32,
    /// The system calls whose manual has it.
    pub calls: Vec<String>,
    /// Why it cannot be.
    pub reason: String,
}

/// Calls that are tried together.
#[derive(Debug, Default)]
pub struct Area {
    /// Name of the area.
    pub name: String,
    /// Calls of the area's own and calls that it uses, by their index.
    pub calls: Vec<usize>,
    /// Needs of programs as to their surroundings.
    pub surroundings: Vec<String>,
    /// Number of calls of the area's own; those it uses follow them.
    pub own: usize,
    /// Programs of the lines `case`.
    pub cases: Vec<Program>,
    /// Waits of the lines `wait`.
    pub waits: Vec<Wait>,
    used: Vec<String>,
}

/// A program with a step that waits for another actor.
#[derive(Debug)]
pub struct Wait {
    /// The program; steps behind the one that waits end the wait.
    pub program: Program,
    /// Number of the step that waits.
    pub waits: usize,
}

/// A system call.
#[derive(Debug)]
pub struct Call {
    /// Name of the call; two entries may be forms of one call: `fcntl_dup` and `fcntl_lock` are
    /// both 72.
    pub name: String,
    /// Number of the call; negative for calls that the executor makes itself.
    pub number: i64,
    /// Names and types of its arguments.
    pub arguments: Vec<(String, Type)>,
    /// Kind of the result.
    pub answer: ResultKind,
    /// The errors that the manual names.
    pub errors: Vec<i32>,
    /// Labels of members with which it never succeeds.
    pub refused: Vec<String>,
    /// A program whose last step is this call and succeeds.
    pub good: Option<Program>,
}

impl Call {
    /// Whether it names processes, and may so change what others do.
    pub fn concerns_processes(&self) -> bool {
        self.arguments.iter().any(|(_, kind)| match kind {
            Type::Who => true,
            Type::Descriptor(sorts) => sorts.iter().any(|sort| sort == "pidfd"),
            _ => false,
        })
    }
}

/// Kind of a call's result, which says how two results are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultKind {
    /// A number that is the same everywhere: 0, a count, a mode.
    Exact,
    /// A descriptor of this sort.
    Descriptor(String),
    /// 0, and two descriptors of this sort through a pointer.
    Descriptors(String),
    /// The number of a process or thread that the call made.
    Pid,
    /// The number of a process or thread that may be anybody's: later steps are not given it.
    Someone,
    /// A number of which only is compared whether it is 0: a time that is left, an order of the
    /// kernel's own.
    Truth,
    /// An address: only whether there is one is compared, unless it was asked for.
    Address,
    /// A number that says nothing: only success is compared.
    Ignored,
    /// A count; where it is large, it tells how much room the kernel's buffers have, and only that
    /// is compared ([`crate::normalise::is_room`]).
    Room,
}

/// Way of comparing a field that the kernel wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Byte by byte.
    Exact,
    /// Not at all: times, numbers of devices and inodes, addresses of the kernel.
    Ignored,
    /// Whether it is 0.
    Zero,
    /// Number of a process.
    Pid,
    /// Remaining time of a wait ([`crate::normalise::time_left`]).
    Time,
    /// Address in the executor: only numbers below a page are the same everywhere.
    Address,
}

/// Kind of an argument or field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// `fd`, `fd(SORT SORT)`: a descriptor, of one of these sorts where there is a choice.
    Descriptor(Vec<String>),
    /// `path`, `path(NAME)`: the address of a name; in directed programs first of this one.
    Path(String),
    /// Names of sets, or-ed together.
    Sets(Vec<String>),
    /// `in T`, `out T`, `inout T`; with `?` behind the first word, 0 is a good value, too.
    Pointer(Pointer),
    /// `size`: the bytes of the memory before it; without one, a length.
    Size,
    /// `count`: the elements of the array before it.
    Count,
    /// `who`: an actor, a child, nobody.
    Who,
    /// `port`: a port that hardly another program has used, as it stands in an address.
    Port,
    /// `wait-ms`: a time in milliseconds, an `int`.
    WaitMilliseconds,
    /// `result(CALL)`: what a step with this call returned.
    Result(String),
    /// A number.
    Constant(i64),
    /// `handler`: the address of the executor's handler, or `SIG_DFL`, or `SIG_IGN`.
    Handler,
    /// `restorer`: the address of the code that ends a handler.
    Restorer,
}

/// A pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    /// Whether the kernel writes there.
    pub out: bool,
    /// Whether the kernel reads what is there.
    pub input: bool,
    /// Whether 0 means something.
    pub optional: bool,
    /// To what.
    pub target: Target,
    /// Whether to several, as many as the next argument says.
    pub array: bool,
}

/// Target of a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Bytes, as many as the next argument says.
    Bytes,
    /// A structure by its name.
    Structure(String),
    /// `wait`: a timespec that is 0, short, for ever, or wrong.
    Wait,
    /// `wait-us`: the same as a timeval.
    WaitMicroseconds,
    /// `u64`, `i32` and so on: so many bytes with one of the set's values.
    Scalar(usize, Vec<String>),
}

/// A structure.
#[derive(Debug, Clone)]
pub struct Structure {
    /// Size in bytes.
    pub size: usize,
    /// Fields that are not just zeros and compared as they are.
    pub fields: Vec<Field>,
}

/// A field of a structure.
#[derive(Debug, Clone)]
pub struct Field {
    /// Where it begins.
    pub offset: usize,
    /// Width in bytes.
    pub width: usize,
    /// Name of the field.
    pub name: String,
    /// Values that the field is set to; zeros without one.
    pub kind: Option<Type>,
    /// Comparison after the call.
    pub compare: Compare,
}

/// Values with names.
#[derive(Debug, Clone)]
pub struct Set {
    /// Whether they may be combined.
    pub combined: bool,
    /// Whether no other number may ever stand in their place.
    pub closed: bool,
    /// Label and number.
    pub members: Vec<(String, i64)>,
    /// The numbers, each as often as it has weight.
    pub choices: Vec<i64>,
}

impl Spec {
    /// The specification that is part of this program.
    ///
    /// # Panics
    /// When a file of `spec/` is wrong, which a test of this module would have found.
    pub fn builtin() -> Self {
        Self::parse(&FILES)
            .and_then(|spec| spec.with_unseen(UNSEEN))
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// Reads the texts of some areas.
    ///
    /// # Errors
    /// What is wrong, with the area and the line.
    pub fn parse(files: &[(&str, &str)]) -> Result<Self, String> {
        let mut spec = Self::default();
        for (area, text) in files {
            spec.areas.push(Area {
                name: (*area).to_owned(),
                ..Area::default()
            });
            for line in joined(text) {
                spec.line(&line)
                    .map_err(|why| format!("{area}: {why} in `{line}`"))?;
            }
        }
        for index in 0..spec.areas.len() {
            spec.areas[index].own = spec.areas[index].calls.len();
            for name in spec.areas[index].used.clone() {
                let call = spec.call_index(&name).ok_or_else(|| {
                    format!("{} uses {name}, which there is not", spec.areas[index].name)
                })?;
                spec.areas[index].calls.push(call);
            }
        }
        spec.resolve().map(|()| spec)
    }

    /// Adds what cannot be seen, of lines `excluded CALL …: REASON` and
    /// `unreachable ERROR CALL …: REASON`.
    fn with_unseen(mut self, text: &str) -> Result<Self, String> {
        for line in joined(text) {
            let (what, reason) = line
                .split_once(": ")
                .ok_or_else(|| format!("no reason in `{line}`"))?;
            let mut words = what.split_whitespace();
            match words.next() {
                Some("excluded") => self
                    .excluded
                    .extend(words.map(|call| (call.to_owned(), reason.to_owned()))),
                Some("unreachable") => {
                    let error = words
                        .next()
                        .and_then(errno::number)
                        .ok_or_else(|| format!("no error in `{line}`"))?;
                    let calls: Vec<String> = words.map(str::to_owned).collect();
                    if let Some(name) = calls.iter().find(|name| {
                        self.call(name)
                            .is_none_or(|call| call.errors.contains(&error))
                    }) {
                        let error = errno::name(error);
                        return Err(format!(
                            "{error} is unreachable for {name}, which is no call or has it among those that can be seen"
                        ));
                    }
                    self.unreachable.push(Unreachable {
                        error,
                        calls,
                        reason: reason.to_owned(),
                    });
                }
                _ => {
                    return Err(format!(
                        "a line begins with excluded or unreachable, not `{line}`"
                    ));
                }
            }
        }
        Ok(self)
    }

    /// The area of this name.
    pub fn area(&self, name: &str) -> Option<&Area> {
        self.areas.iter().find(|area| area.name == name)
    }

    /// The call of this name.
    pub fn call(&self, name: &str) -> Option<&Call> {
        self.call_index(name).map(|index| &self.calls[index])
    }

    /// The index of the call of this name.
    pub fn call_index(&self, name: &str) -> Option<usize> {
        self.calls.iter().position(|call| call.name == name)
    }

    /// Whether a line `wait` has this call wait for others.
    pub fn waits(&self, call: &Call) -> bool {
        let waits = |wait: &Wait| wait.program.steps[wait.waits].call == call.name;
        self.areas.iter().flat_map(|area| &area.waits).any(waits)
    }

    /// A set that an argument names: there is one, [`Spec::parse`] has seen to that.
    pub fn set(&self, name: &str) -> &Set {
        &self.sets[name]
    }

    /// A structure that an argument names: there is one, [`Spec::parse`] has seen to that.
    pub fn structure(&self, name: &str) -> &Structure {
        &self.structures[name]
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "use" => self
                .last_area()
                .used
                .extend(rest.split_whitespace().map(str::to_owned)),
            "surroundings" => self
                .last_area()
                .surroundings
                .extend(rest.split_whitespace().map(str::to_owned)),
            "flags" | "enum" | "values" | "only" => {
                let (name, members) = rest.split_once('=').ok_or("a set is NAME = MEMBERS")?;
                let members = members
                    .split_whitespace()
                    .map(member)
                    .collect::<Result<Vec<_>, _>>()?;
                let choices = members
                    .iter()
                    .flat_map(|(_, number, weight)| std::iter::repeat_n(*number, *weight))
                    .collect();
                let members = members
                    .into_iter()
                    .map(|(label, number, _)| (label, number))
                    .collect();
                let set = Set {
                    combined: word == "flags",
                    closed: word == "only",
                    members,
                    choices,
                };
                if set.members.is_empty() || self.sets.insert(name.trim().to_owned(), set).is_some()
                {
                    return Err("a set is empty, or there is one of this name already".into());
                }
            }
            "struct" => {
                let (head, fields) = rest.split_once(':').unwrap_or((rest, ""));
                let (name, size) = head
                    .split_once(' ')
                    .ok_or("a structure is NAME SIZE: FIELDS")?;
                let size = size.trim().parse().map_err(|_| "the size is no number")?;
                let fields = split(fields, ',')
                    .into_iter()
                    .map(field)
                    .collect::<Result<Vec<_>, _>>()?;
                if fields.iter().any(|field| field.offset + field.width > size) {
                    return Err("a field ends behind the structure".into());
                }
                if self
                    .structures
                    .insert(name.to_owned(), Structure { size, fields })
                    .is_some()
                {
                    return Err("there is a structure of this name already".into());
                }
            }
            "good" | "case" => {
                let program = example(&self.last_area().name, rest)?;
                if word == "case" {
                    self.last_area().cases.push(program);
                    return Ok(());
                }
                let name = program.steps.last().map_or("", |step| step.call.as_str());
                let index = self
                    .call_index(name)
                    .ok_or_else(|| format!("{name} is no call so far"))?;
                self.calls[index].good = Some(program);
            }
            "wait" => {
                let area = self.last_area();
                area.waits.push(wait(&area.name, rest)?);
            }
            _ => {
                let call = call(line)?;
                if self.call(&call.name).is_some() {
                    return Err("there is a call of this name already".into());
                }
                let index = self.calls.len();
                self.last_area().calls.push(index);
                self.calls.push(call);
            }
        }
        Ok(())
    }

    fn last_area(&mut self) -> &mut Area {
        self.areas
            .last_mut()
            .expect("lines are read after their area was added")
    }

    /// Checks that every name that a type or a program mentions is there.
    fn resolve(&self) -> Result<(), String> {
        let cases = self.areas.iter().flat_map(|area| &area.cases);
        let waits = self
            .areas
            .iter()
            .flat_map(|area| &area.waits)
            .map(|wait| &wait.program);
        let programs = cases
            .chain(waits)
            .chain(self.calls.iter().filter_map(|call| call.good.as_ref()));
        for step in programs.flat_map(|program| &program.steps) {
            if self
                .call(&step.call)
                .is_none_or(|call| call.arguments.len() != step.arguments.len())
            {
                return Err(format!("no call has the arguments of the step `{step}`"));
            }
        }
        let arguments = self.calls.iter().flat_map(|call| {
            call.arguments
                .iter()
                .map(|(_, kind)| (call.name.as_str(), kind))
        });
        let fields = self.structures.iter().flat_map(|(name, structure)| {
            structure
                .fields
                .iter()
                .filter_map(|field| Some((name.as_str(), field.kind.as_ref()?)))
        });
        for (owner, kind) in arguments.chain(fields) {
            let missing = match kind {
                Type::Sets(names) => names.iter().find(|name| !self.sets.contains_key(*name)),
                Type::Result(call) => Some(call).filter(|call| self.call(call).is_none()),
                Type::Pointer(Pointer {
                    target: Target::Structure(name),
                    ..
                }) => Some(name).filter(|name| !self.structures.contains_key(*name)),
                Type::Pointer(Pointer {
                    target: Target::Scalar(_, names),
                    ..
                }) => names.iter().find(|name| !self.sets.contains_key(*name)),
                _ => None,
            };
            if let Some(name) = missing {
                return Err(format!("{owner} mentions {name}, which there is not"));
            }
        }
        Ok(())
    }
}

/// The lines of a text without remarks, those that go on joined.
fn joined(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text
        .lines()
        .map(|line| line.split('#').next().unwrap_or("").trim_end())
        .filter(|line| !line.is_empty())
    {
        match lines.last_mut() {
            Some(last) if line.starts_with(char::is_whitespace) => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Lines of the specification that are no programs: what each call and structure is, and so how the
/// result of a call is recorded.
pub fn definitions() -> impl Iterator<Item = String> {
    let programs = ["good ", "case ", "wait "];
    let lines = FILES.iter().flat_map(|(_, text)| joined(text));
    lines.filter(move |line| !programs.iter().any(|word| line.starts_with(word)))
}

/// The parts of a text between separators that are not within parentheses.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            c if c == separator && depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn number(text: &str) -> Result<i64, String> {
    let (negative, digits) = text
        .strip_prefix('-')
        .map_or((false, text), |digits| (true, digits));
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
        None => digits.parse(),
    };
    let number = number.map_err(|_| format!("{text} is no number"))? as i64;
    Ok(if negative {
        number.wrapping_neg()
    } else {
        number
    })
}

/// A member of a set: label, number, weight.
fn member(text: &str) -> Result<(String, i64, usize), String> {
    let (text, weight) = text.split_once('*').unwrap_or((text, "1"));
    let (label, value) = text.split_once(':').unwrap_or((text, text));
    let weight = weight
        .parse()
        .map_err(|_| format!("{weight} is no weight"))?;
    Ok((label.to_owned(), number(value)?, weight))
}

fn field(text: &str) -> Result<Field, String> {
    let (text, compare) = match text.split_once('~') {
        Some((text, "ignore")) => (text, Compare::Ignored),
        Some((text, "time")) => (text, Compare::Time),
        Some((text, "zero")) => (text, Compare::Zero),
        Some((text, "pid")) => (text, Compare::Pid),
        Some((text, "address")) => (text, Compare::Address),
        Some(_) => {
            return Err("a field is compared ~ignore, ~zero, ~time, ~pid or ~address".into());
        }
        None => (text, Compare::Exact),
    };
    let mut words = text.trim().splitn(3, ' ');
    let (offset, width) = words
        .next()
        .and_then(|word| word.split_once(':'))
        .ok_or("a field begins with OFFSET:WIDTH")?;
    let parse = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    let name = words.next().ok_or("a field has a name")?.to_owned();
    let kind = words
        .next()
        .map(str::trim)
        .filter(|kind| *kind != "-")
        .map(kind)
        .transpose()?;
    Ok(Field {
        offset: parse(offset)?,
        width: parse(width)?,
        name,
        kind,
        compare,
    })
}

/// A program of a line `good` or `case`.
fn example(area: &str, text: &str) -> Result<Program, String> {
    let actor = |word: &str| {
        let (user, rest) = word.trim().split_once(' ').unwrap_or((word.trim(), ""));
        let known = matches!(user, "root" | "nobody") && matches!(rest, "" | "thread");
        known.then(|| Actor {
            nobody: user == "nobody",
            thread: rest == "thread",
        })
    };
    let actors = |list: &str| list.split(',').map(actor).collect::<Option<Vec<_>>>();
    let named = text
        .split_once(": ")
        .and_then(|(list, steps)| Some((actors(list)?, steps)));
    let (actors, steps) = named.unwrap_or_else(|| {
        (
            vec![Actor {
                nobody: false,
                thread: false,
            }],
            text,
        )
    });
    let number = if actors.len() == 1 { "0 " } else { "" };
    let steps = split(steps, ';')
        .into_iter()
        .map(|step| format!("{number}{step}").parse());
    Ok(Program {
        area: area.to_owned(),
        steps: steps.collect::<Result<_, _>>()?,
        actors,
    })
}

/// A program of a line `wait`.
fn wait(area: &str, text: &str) -> Result<Wait, String> {
    let (before, after) = text.split_once("=>").unwrap_or((text, ""));
    let numbered = |steps: &str, actor: usize| {
        split(steps, ';')
            .into_iter()
            .map(|step| format!("{actor} {step}; "))
            .collect()
    };
    let text: String = match text.split_once(": ") {
        Some((list, _)) if !list.contains('(') => format!("{before}; {after}"),
        _ => [
            "root, root thread: ".to_owned(),
            numbered(before, 0),
            numbered(after, 1),
        ]
        .concat(),
    };
    let program = example(area, &text)?;
    let waits = program
        .steps
        .len()
        .checked_sub(split(after, ';').len() + 1)
        .ok_or("no step waits")?;
    Ok(Wait { program, waits })
}

fn call(line: &str) -> Result<Call, String> {
    let (line, refused) = line.split_once('~').unwrap_or((line, ""));
    let (line, errors) = line.split_once('!').unwrap_or((line, ""));
    let (line, answer) = line
        .split_once("->")
        .map_or((line, "int"), |(line, answer)| (line, answer.trim()));
    let (head, arguments) = line
        .trim()
        .strip_suffix(')')
        .and_then(|line| line.split_once('('))
        .ok_or("a call is NUMBER NAME(ARGUMENTS)")?;
    let (call_number, name) = head
        .split_once(' ')
        .ok_or("a call begins with its number")?;
    let arguments = split(arguments, ',').into_iter().map(|argument| {
        let (name, text) = argument
            .split_once(':')
            .ok_or_else(|| format!("{argument} has no type"))?;
        Ok((name.trim().to_owned(), kind(text.trim())?))
    });
    let words: Vec<_> = answer.split_whitespace().collect();
    let answer = match words.as_slice() {
        ["int"] => ResultKind::Exact,
        ["fd", sort] => ResultKind::Descriptor((*sort).to_owned()),
        ["fds", sort] => ResultKind::Descriptors((*sort).to_owned()),
        ["pid"] => ResultKind::Pid,
        ["someone"] => ResultKind::Someone,
        ["truth"] => ResultKind::Truth,
        ["address"] => ResultKind::Address,
        ["ignore"] => ResultKind::Ignored,
        ["room"] => ResultKind::Room,
        _ => return Err(format!("`{answer}` is nothing that a call returns")),
    };
    let errors = errors
        .split_whitespace()
        .map(|name| errno::number(name).ok_or_else(|| format!("{name} is no error")));
    Ok(Call {
        name: name.trim().to_owned(),
        number: number(call_number)?,
        arguments: arguments.collect::<Result<_, String>>()?,
        answer,
        errors: errors.collect::<Result<_, String>>()?,
        refused: refused.split_whitespace().map(str::to_owned).collect(),
        good: None,
    })
}

fn kind(text: &str) -> Result<Type, String> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let inner = |prefix: &str| {
        text.strip_prefix(prefix)
            .and_then(|rest| rest.strip_suffix(')'))
    };
    if let Some(sorts) = inner("fd(") {
        return Ok(Type::Descriptor(
            sorts.split_whitespace().map(str::to_owned).collect(),
        ));
    }
    if let Some(call) = inner("result(") {
        return Ok(Type::Result(call.to_owned()));
    }
    if let Some(name) = inner("path(") {
        return Ok(Type::Path(name.to_owned()));
    }
    Ok(match word.trim_end_matches('?') {
        "fd" => Type::Descriptor(Vec::new()),
        "path" => Type::Path("a".to_owned()),
        "size" => Type::Size,
        "count" => Type::Count,
        "who" => Type::Who,
        "port" => Type::Port,
        "wait-ms" => Type::WaitMilliseconds,
        "handler" => Type::Handler,
        "restorer" => Type::Restorer,
        "in" | "out" | "inout" => {
            let (target, array) = rest
                .strip_suffix("[]")
                .map_or((rest, false), |target| (target, true));
            let (out, input) = (word.contains("out"), word.starts_with("in"));
            Type::Pointer(Pointer {
                out,
                input,
                optional: word.ends_with('?'),
                target: target_of(target)?,
                array,
            })
        }
        _ if number(text).is_ok() => Type::Constant(number(text)?),
        _ if rest.is_empty() => Type::Sets(text.split('|').map(str::to_owned).collect()),
        _ => return Err(format!("`{text}` is no type")),
    })
}

fn target_of(text: &str) -> Result<Target, String> {
    let scalar = |width: usize, rest: &str| {
        let names = rest.trim_start_matches('(').trim_end_matches(')');
        Target::Scalar(
            width,
            split(names, '|').into_iter().map(str::to_owned).collect(),
        )
    };
    Ok(match text {
        "" => return Err("a pointer points to something".into()),
        "bytes" => Target::Bytes,
        "wait" => Target::Wait,
        "wait-us" => Target::WaitMicroseconds,
        _ => match (text.strip_prefix("u32"), text.strip_prefix("u64")) {
            (Some(rest), _) => scalar(4, rest),
            (_, Some(rest)) => scalar(8, rest),
            _ => Target::Structure(text.to_owned()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_right() {
        let spec = Spec::builtin();
        assert!(spec.areas.iter().all(|area| !area.calls.is_empty()));
        assert!(spec.calls.iter().all(|call| call.arguments.len() <= 6));
    }

    #[test]
    fn programs_and_what_cannot_be_seen_are_read() {
        let text = "1 f(a: fd) -> fd file ! EPERM ~ A\ngood f(1)\ncase root, nobody thread: 0 f(2); 1 f($0)";
        let spec = Spec::parse(&[("area", text)]).expect("it is right");
        assert_eq!(
            spec.calls[0]
                .good
                .as_ref()
                .map(std::string::ToString::to_string),
            Some("area area\nactor root\n0 f(1)\n".into())
        );
        assert_eq!(
            spec.areas[0].cases[0].actors[1],
            Actor {
                nobody: true,
                thread: true
            }
        );
        assert_eq!(
            (
                spec.calls[0].errors.as_slice(),
                spec.calls[0].refused.as_slice()
            ),
            (&[1][..], &["A".to_owned()][..])
        );
        let read =
            |line: &str| Spec::parse(&[("area", text)]).and_then(|spec| spec.with_unseen(line));
        let unseen =
            read("unreachable EIO f: no disk\nexcluded g h: not there").expect("it is right");
        assert_eq!((unseen.unreachable[0].error, unseen.excluded.len()), (5, 2));
        for line in [
            "unreachable EPERM f: it can be seen",
            "unreachable EIO g: no call",
            "excluded g",
            "hidden g: no such word",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (text, word) in [
            ("1 f(a: b)", "b"),
            ("use g", "g"),
            ("1 f(a: in s)", "s"),
            ("1 f() ! EFOO", "EFOO"),
            ("flags f = ", "empty"),
            ("1 f", "NUMBER"),
            ("1 f()\ngood f(1)", "arguments"),
            ("case g()", "arguments"),
        ] {
            let why = Spec::parse(&[("area", text)]).map(drop).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
