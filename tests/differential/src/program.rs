//! Programs of system calls, and their text: what a difference is reported as, and what anyone can
//! run again.
//!
//! ```
//! let text = "area files\nactor root\nactor nobody thread\n\
//!             0 open(\"a\", 66, 420)\n1 write($0, &300~7, 300)\n";
//! let program: differential::program::Program = text.parse().unwrap();
//! assert_eq!(program.steps.len(), 2);
//! assert_eq!(program.to_string(), text);
//! ```

use std::fmt;
use std::str::FromStr;

use crate::layout::{ACTORS, STEPS};

/// A program: steps that its actors take one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The area of the specification that the calls are from; it decides how the program's
    /// surroundings are prepared.
    pub area: String,
    /// Actors that take the steps. The first one is a process; the others are its children or its
    /// threads.
    pub actors: Vec<Actor>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A process or thread of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Whether it is a thread of the first actor's process, and not a child of it.
    pub thread: bool,
    /// Whether it runs as an ordinary user without capabilities (uid and gid [`NOBODY`]), and not
    /// as root.
    pub nobody: bool,
}

/// The ordinary user's number, and its group's.
pub const NOBODY: u32 = 65534;

/// One system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the actor that makes the step.
    pub actor: usize,
    /// The call's name in the specification.
    pub call: String,
    /// Arguments, as many as the specification has.
    pub arguments: Vec<Value>,
    /// Whether the call sleeps for a time of its own, so that it must not be taken for one that
    /// waits for others.
    pub timed: bool,
}

/// An argument, or a field of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(i64),
    /// Result of an earlier step; -1 if that failed. The second number is a part: 0 for the result,
    /// 1 and 2 for the two descriptors that the step wrote through a pointer.
    Result(usize, usize),
    /// The thread id of an actor.
    Who(usize),
    /// The address of a path.
    Path(String),
    /// The address of a path with a last component of so many letters.
    LongPath(usize),
    /// An address that cannot be used.
    BadAddress(BadAddress),
    /// The address of the executor's signal handler, which notes what it is called with.
    Handler,
    /// The address of the code that ends a signal handler.
    Restorer,
    /// The address of memory with contents.
    Memory(Memory),
}

impl Value {
    /// Gives the steps whose results it is made of new numbers.
    pub fn shift(&mut self, by: &dyn Fn(usize) -> usize) {
        match self {
            Self::Result(step, _) => *step = by(*step),
            Self::Memory(memory) => memory
                .fields
                .iter_mut()
                .for_each(|(_, _, value)| value.shift(by)),
            _ => {}
        }
    }
}

/// Addresses that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadAddress {
    /// 0.
    Null,
    /// Address where nothing is mapped.
    Hole,
    /// Cannot be written.
    ReadOnly,
    /// Cannot be accessed.
    NoAccess,
    /// The kernel's half of the address space.
    Kernel,
}

impl BadAddress {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Null, "null"),
        (Self::Hole, "hole"),
        (Self::ReadOnly, "read-only"),
        (Self::NoAccess, "no-access"),
        (Self::Kernel, "kernel"),
    ];

    /// Name in the text of programs.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(bad, _)| *bad == self)
            .map_or("", |(_, name)| name)
    }
}

/// Memory that an argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Size in bytes.
    pub size: usize,
    /// Where it is placed.
    pub place: Place,
    /// Initial contents, under the fields.
    pub fill: Fill,
    /// Fields: offset, width in bytes, value.
    pub fields: Vec<(usize, usize, Value)>,
}

/// Where memory is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// So many bytes after the start of a room.
    At(usize),
    /// Memory whose last so many bytes are in the hole behind the room; 0: it ends exactly before
    /// the hole.
    Cut(usize),
}

/// Initial contents of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zero,
    /// Bytes that say where they are, different for each seed.
    Pattern(u8),
    /// A byte of which every one that the kernel writes is seen to differ (nearly).
    Canary,
}

/// The byte of [`Fill::Canary`].
pub const CANARY: u8 = 0xc5;

/// Byte `at` of the pattern of a seed.
pub fn pattern(seed: u8, at: usize) -> u8 {
    let mixed = (at as u32 ^ u32::from(seed) << 24).wrapping_mul(0x9e37_79b1);
    (mixed >> 23) as u8
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "area {}", self.area)?;
        for actor in &self.actors {
            let user = if actor.nobody { "nobody" } else { "root" };
            writeln!(
                f,
                "actor {user}{}",
                if actor.thread { " thread" } else { "" }
            )?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}(", self.actor, self.call)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            write!(f, "{}{argument}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, "){}", if self.timed { " timed" } else { "" })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) if (-9999..=9999).contains(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number:#x}"),
            Self::Result(step, 0) => write!(f, "${step}"),
            Self::Result(step, part) => write!(f, "${step}.{part}"),
            Self::Who(actor) => write!(f, "who{actor}"),
            Self::Path(path) => write!(f, "\"{path}\""),
            Self::LongPath(length) => write!(f, "long{length}"),
            Self::BadAddress(bad) => f.write_str(bad.name()),
            Self::Handler => f.write_str("handler"),
            Self::Restorer => f.write_str("restorer"),
            Self::Memory(memory) => memory.fmt(f),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "&{}", self.size)?;
        match self.place {
            Place::At(0) => {}
            Place::At(offset) => write!(f, "@{offset}")?,
            Place::Cut(bytes) => write!(f, "%{bytes}")?,
        }
        match self.fill {
            Fill::Zero => {}
            Fill::Pattern(seed) => write!(f, "~{seed}")?,
            Fill::Canary => f.write_str("?")?,
        }
        if self.fields.is_empty() {
            return Ok(());
        }
        f.write_str("{")?;
        for (index, (offset, width, value)) in self.fields.iter().enumerate() {
            write!(
                f,
                "{}{offset}:{width}={value}",
                if index == 0 { "" } else { " " }
            )?;
        }
        f.write_str("}")
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut program = Self {
            area: String::new(),
            actors: Vec::new(),
            steps: Vec::new(),
        };
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            program
                .line(line)
                .map_err(|why| format!("{why} in the line `{line}`"))?;
        }
        let actors = program.actors.len();
        match () {
            () if program.area.is_empty() => Err("there is no line `area NAME`".into()),
            () if actors == 0 || actors > ACTORS => {
                Err(format!("a program has 1 to {ACTORS} lines `actor USER`"))
            }
            () if program.steps.len() > STEPS => {
                Err(format!("a program has at most {STEPS} steps"))
            }
            () if program.steps.iter().any(|step| step.actor >= actors) => {
                Err("a step is by an actor that there is not".into())
            }
            () => Ok(program),
        }
    }
}

impl Program {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(area) = line.strip_prefix("area ") {
            self.area = area.trim().to_owned();
        } else if let Some(actor) = line.strip_prefix("actor ") {
            let mut words = actor.split_whitespace();
            let nobody = match words.next() {
                Some("root") => false,
                Some("nobody") => true,
                _ => return Err("an actor is root or nobody".into()),
            };
            self.actors.push(Actor {
                nobody,
                thread: words.next() == Some("thread"),
            });
        } else {
            self.steps.push(line.parse()?);
        }
        Ok(())
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (actor, rest) = line
            .split_once(' ')
            .ok_or("a step is `ACTOR CALL(ARGUMENTS)`")?;
        let actor = actor
            .parse()
            .map_err(|_| "a step begins with the actor's number".to_owned())?;
        let mut reader = Reader { rest };
        let call = reader
            .take_while(|c| c.is_ascii_alphanumeric() || c == '_')
            .to_owned();
        reader.expect("(")?;
        let mut arguments = Vec::new();
        while !reader.take(")") {
            if !arguments.is_empty() {
                reader.expect(",")?;
            }
            arguments.push(reader.value()?);
        }
        Ok(Self {
            actor,
            call,
            arguments,
            timed: reader.take("timed"),
        })
    }
}

/// Reads values off the front of a text.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, what: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(what) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, what: &str) -> Result<(), String> {
        if self.take(what) {
            Ok(())
        } else {
            Err(format!("`{what}` is missing before `{}`", self.rest))
        }
    }

    fn take_while(&mut self, accepts: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !accepts(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn number<T: TryFrom<i128>>(&mut self) -> Result<T, String> {
        let negative = self.take("-");
        let (digits, radix) = if self.take("0x") {
            (self.take_while(|c| c.is_ascii_hexdigit()), 16)
        } else {
            (self.take_while(|c| c.is_ascii_digit()), 10)
        };
        let number = i128::from_str_radix(digits, radix)
            .map_err(|_| format!("a number is missing before `{}`", self.rest))?;
        T::try_from(if negative { -number } else { number })
            .map_err(|_| "a number is too large".to_owned())
    }

    fn value(&mut self) -> Result<Value, String> {
        if self.take("$") {
            let step = self.number()?;
            return Ok(Value::Result(
                step,
                if self.take(".") { self.number()? } else { 0 },
            ));
        }
        if self.take("\"") {
            let path = self.take_while(|c| c != '"').to_owned();
            self.expect("\"")?;
            return Ok(Value::Path(path));
        }
        if self.take("&") {
            return self.memory().map(Value::Memory);
        }
        for (bad, name) in BadAddress::ALL {
            if self.take(name) {
                return Ok(Value::BadAddress(bad));
            }
        }
        if self.take("handler") {
            return Ok(Value::Handler);
        }
        if self.take("restorer") {
            return Ok(Value::Restorer);
        }
        if self.take("who") {
            return Ok(Value::Who(self.number()?));
        }
        if self.take("long") {
            return Ok(Value::LongPath(self.number()?));
        }
        // Numbers of all 64 bits may be written either way.
        self.number::<i128>()
            .map(|number| Value::Number(number as i64))
    }

    fn memory(&mut self) -> Result<Memory, String> {
        let size = self.number()?;
        let place = match () {
            () if self.take("@") => Place::At(self.number()?),
            () if self.take("%") => Place::Cut(self.number()?),
            () => Place::At(0),
        };
        let fill = match () {
            () if self.take("~") => Fill::Pattern(self.number()?),
            () if self.take("?") => Fill::Canary,
            () => Fill::Zero,
        };
        let mut fields = Vec::new();
        if self.take("{") {
            while !self.take("}") {
                let offset = self.number()?;
                self.expect(":")?;
                let width = self.number()?;
                self.expect("=")?;
                fields.push((offset, width, self.value()?));
            }
        }
        Ok(Memory {
            size,
            place,
            fill,
            fields,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_as_they_were_written() {
        let text = "area memory\nactor root\nactor nobody\n0 pipe2(&8?, 0)\n1 readv($0.1, &32{0:8=&300%2? 8:8=300 16:8=null 24:8=0x7fffffffffffffff}, 2) timed\n0 kill(who1, -1)\n0 rt_sigaction(10, &32{0:8=handler 16:8=restorer}, hole, 8)\n0 open(long300, -100)\n";
        let program: Program = text.parse().unwrap();
        assert_eq!(program.to_string(), text);
        let Value::Memory(memory) = &program.steps[1].arguments[1] else {
            panic!("no memory")
        };
        assert_eq!(memory.fields.len(), 4);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "area x\n",
            "area x\nactor root\n1 read(0)\n",
            "area x\nactor root\n0 read(0",
            "area x\nactor king\n",
        ] {
            assert!(text.parse::<Program>().is_err(), "{text:?}");
        }
    }
}
