//! Specifications: instances, the programs in them, operations of the tool. Values only;
//! `generator` makes them, `model` judges them.

use std::fmt;

use crate::numbered_lines;

/// Where the programs are in the instances' file systems.
pub(crate) const PROGRAM: &str = "/bin/manage";
/// Text that a program writes when it has got as far as it goes by itself.
pub(crate) const READY: &[u8] = b"ready\n";

/// Program that runs in an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Ends with this status.
    Exit(u8),
    /// Writes so many lines to each of its outputs, and ends.
    Write { out: u32, err: u32, code: u8 },
    /// Copies its input to its output, and ends.
    Cat(u8),
    /// Counts its input, and ends.
    Count(u8),
    /// Says that it is ready, and sleeps for ever.
    Sleep,
    /// Says that it is ready; tells of a signal that it has a handler for, and ends.
    Trap(u8),
    /// Writes lines without end.
    Endless,
    /// Makes its kernel fail in this way (`/proc/skerry/fault`).
    Fault(&'static str),
    /// Another file: not there, not to be executed.
    File { path: &'static str, code: u8 },
}

/// Root file system of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// A folder with the program in it.
    Folder,
    /// The same as a tar archive.
    Tar,
    /// A folder with much beside the program.
    Large,
    /// An archive that the tool refuses, with its message.
    Refused {
        path: &'static str,
        says: &'static str,
    },
    /// Archives that the tool does not look into, and the instance's kernel does.
    Broken { path: &'static str },
}

/// Specification of an instance to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) cpus: u32,
    /// Memory, as the tool is told and in bytes.
    pub(crate) memory: (String, u64),
    pub(crate) root: Root,
    pub(crate) program: Program,
    /// Of its lines.
    pub(crate) seed: u32,
}

/// Directory of the file systems, in the supervisor.
pub(crate) const ROOTS: &str = "/tmp/manage";
/// File of the declared set.
pub(crate) const SET: &str = "/tmp/manage/set.toml";

impl Root {
    /// Path of the folder or archive in the supervisor.
    pub(crate) fn path(self) -> String {
        let name = match self {
            Self::Folder => "root",
            Self::Tar => "root.tar",
            Self::Large => "large",
            Self::Refused { path, .. } | Self::Broken { path } => path,
        };
        format!("{ROOTS}/{name}")
    }
}

impl Program {
    /// The command in the instance.
    pub(crate) fn command(&self, seed: u32) -> Vec<String> {
        let words: Vec<String> = match self {
            Self::File { path, .. } => return vec![(*path).into()],
            Self::Exit(code) => vec!["exit".into(), code.to_string()],
            Self::Write { out, err, code } => {
                vec![
                    "write".into(),
                    seed.to_string(),
                    out.to_string(),
                    err.to_string(),
                    code.to_string(),
                ]
            }
            Self::Cat(code) => vec!["cat".into(), code.to_string()],
            Self::Count(code) => vec!["count".into(), code.to_string()],
            Self::Sleep => vec!["sleep".into()],
            Self::Trap(code) => vec!["trap".into(), code.to_string()],
            Self::Endless => vec!["endless".into(), seed.to_string()],
            Self::Fault(name) => vec!["fault".into(), (*name).into()],
        };
        [PROGRAM.to_owned(), "guest".to_owned()]
            .into_iter()
            .chain(words)
            .collect()
    }

    /// Text that it writes to its two outputs if it ends by itself, given this input; `None` if
    /// that is not known.
    pub(crate) fn output(&self, seed: u32, input: &[u8]) -> Option<[Vec<u8>; 2]> {
        Some(match self {
            Self::Exit(_) | Self::File { .. } => [vec![], vec![]],
            Self::Write { out, err, .. } => [
                numbered_lines::lines(seed, (*out).into()),
                numbered_lines::lines(!seed, (*err).into()),
            ],
            Self::Cat(_) => [input.to_vec(), vec![]],
            Self::Count(_) => [count(input).into_bytes(), vec![]],
            Self::Sleep | Self::Trap(_) | Self::Endless | Self::Fault(_) => return None,
        })
    }
}

/// Output of [`Program::Count`].
pub(crate) fn count(input: &[u8]) -> String {
    let sum = input.iter().fold(0u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    format!("{} {sum:016x}\n", input.len())
}

/// Reader of the tool's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Reads as fast as the output comes.
    Fast,
    /// A few bytes at a time, with pauses, at first.
    Slow { piece: usize, pauses: u32 },
    /// Begins when the program cannot write any more because nothing has room.
    Late,
    /// The tool itself is stopped and continued so often.
    Stopped(u32),
    /// Goes away after so many bytes.
    Dies(usize),
}

/// One use of the tool, or several that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create(Spec),
    /// With this much input.
    Run {
        spec: Spec,
        reader: Reader,
        input: usize,
        remove: bool,
    },
    RunDetached(Spec),
    Start(String),
    Stop(String),
    StopForce(String),
    Kill(String, Signal),
    /// So many tools wait at the same time.
    Wait(String, u32),
    Logs(String),
    /// Logs of the instance whose place it took.
    LogsPrevious(String),
    /// Two readers follow, and the instance is halted by force: `attach`, or `logs -f`.
    Follow {
        name: String,
        attach: bool,
        reader: Reader,
    },
    Attach(String),
    Inspect(String),
    /// Waits until the program says so.
    Ready(String),
    Remove(String),
    RemoveForce(String),
    Prune,
    Pause(String),
    Unpause(String),
    Resize(Resize),
    Rename {
        name: String,
        to: String,
    },
    Restart(String),
    Exec(Exec),
    /// Makes these as a declared set; `prune`: and removes what is declared no more.
    Apply {
        specs: Vec<Spec>,
        prune: bool,
    },
}

/// A program that ends by itself, beside the first one of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exec {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// Of its lines.
    pub(crate) seed: u32,
    /// Bytes of its input.
    pub(crate) input: usize,
}

/// A change of what an instance has, to these amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resize {
    pub(crate) name: String,
    pub(crate) cpus: Option<u32>,
    /// Memory, as the tool is told and in bytes.
    pub(crate) memory: Option<(String, u64)>,
    /// Seconds that the tool waits for an answer; without, until there is one.
    pub(crate) limit: Option<u32>,
    pub(crate) dry_run: bool,
}

/// A signal as the tool is told, and what it does to a program without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) name: &'static str,
    pub(crate) number: u8,
    /// Whether the signal ends the program.
    pub(crate) fatal: bool,
    /// Whether [`Program::Trap`] has a handler for the signal.
    pub(crate) handled: bool,
}

/// Way in which an operation is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    Alone,
    /// The tool is killed after so many microseconds.
    Killed(u64),
    /// By a user who may not.
    AsNobody,
}

/// One step: what is done, all of it at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    One(Op, RunMode),
    Race(Vec<Op>),
}

impl Spec {
    /// The tool's arguments, from the options on.
    fn arguments(&self) -> Vec<String> {
        let options = [
            "--cpus",
            &self.cpus.to_string(),
            "--mem",
            &self.memory.0,
            "--rootfs",
            &self.root.path(),
            "--",
        ];
        let name = format!("--name={}", self.name);
        let options = [name.as_str()]
            .into_iter()
            .chain(options)
            .map(str::to_owned);
        options.chain(self.program.command(self.seed)).collect()
    }
}

impl Resize {
    fn arguments(&self) -> Vec<String> {
        let mut words = vec!["resize".to_owned(), "--json".into()];
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        };
        option("--cpus", self.cpus.map(|cpus| cpus.to_string()));
        option("--mem", self.memory.as_ref().map(|memory| memory.0.clone()));
        option("--time", self.limit.map(|limit| limit.to_string()));
        words.extend(self.dry_run.then(|| "--dry-run".into()));
        words.push(self.name.clone());
        words
    }
}

/// Text of the file that declares these.
pub(crate) fn declaration(specs: &[Spec]) -> String {
    let quoted = |text: &str| format!("{text:?}");
    specs.iter().fold(String::new(), |text, spec| {
        let command = spec.program.command(spec.seed);
        let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        text + &format!(
            "[instances.{}]\ncommand = [{}]\nrootfs = {}\ncpus = {}\nmem = {}\n",
            quoted(&spec.name),
            command.join(", "),
            quoted(&spec.root.path()),
            spec.cpus,
            quoted(&spec.memory.0)
        )
    })
}

impl Op {
    /// The names it is about.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Create(spec) | Self::RunDetached(spec) | Self::Run { spec, .. } => {
                vec![&spec.name]
            }
            Self::Start(name)
            | Self::Stop(name)
            | Self::StopForce(name)
            | Self::Kill(name, _)
            | Self::Wait(name, _)
            | Self::Logs(name)
            | Self::LogsPrevious(name)
            | Self::Follow { name, .. }
            | Self::Attach(name)
            | Self::Inspect(name)
            | Self::Ready(name)
            | Self::Pause(name)
            | Self::Unpause(name)
            | Self::Restart(name)
            | Self::Resize(Resize { name, .. })
            | Self::Exec(Exec { name, .. })
            | Self::Remove(name)
            | Self::RemoveForce(name) => vec![name],
            Self::Rename { name, to } => vec![name, to],
            Self::Apply { specs, .. } => specs.iter().map(|spec| spec.name.as_str()).collect(),
            Self::Prune => Vec::new(),
        }
    }

    /// The tool's arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        match self {
            Self::Create(spec) => [words(&["create"]), spec.arguments()].concat(),
            Self::RunDetached(spec) => [words(&["run", "-d"]), spec.arguments()].concat(),
            Self::Run {
                spec, remove: true, ..
            } => [words(&["run", "--rm"]), spec.arguments()].concat(),
            Self::Run { spec, .. } => [words(&["run"]), spec.arguments()].concat(),
            Self::Start(name) => words(&["start", name]),
            Self::Stop(name) => words(&["stop", "--time", "2", name]),
            Self::StopForce(name) => words(&["stop", "--force", name]),
            Self::Kill(name, signal) => words(&["kill", "-s", signal.name, name]),
            Self::Wait(name, _) => words(&["wait", name]),
            Self::Logs(name) | Self::Ready(name) => words(&["logs", name]),
            Self::LogsPrevious(name) => words(&["logs", "--previous", name]),
            Self::Follow {
                name,
                attach: false,
                ..
            } => words(&["logs", "-f", name]),
            Self::Follow { name, .. } | Self::Attach(name) => {
                words(&["attach", "--no-stdin", name])
            }
            Self::Inspect(name) => words(&["inspect", "--json", name]),
            Self::Remove(name) => words(&["rm", name]),
            Self::RemoveForce(name) => words(&["rm", "--force", name]),
            Self::Prune => words(&["prune"]),
            Self::Pause(name) => words(&["pause", name]),
            Self::Unpause(name) => words(&["unpause", name]),
            Self::Resize(resize) => resize.arguments(),
            Self::Rename { name, to } => words(&["rename", name, to]),
            Self::Restart(name) => words(&["restart", "--time", "2", name]),
            Self::Exec(Exec {
                name,
                program,
                seed,
                ..
            }) => [words(&["exec", "-i", name]), program.command(*seed)].concat(),
            Self::Apply { prune, .. } => {
                let prune = if *prune { &["--prune"][..] } else { &[] };
                words(&[&["apply", "--json", "--grace", "2"], prune, &[SET]].concat())
            }
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skerry {}", self.arguments().join(" "))?;
        match self {
            Self::Run { reader, input, .. } => write!(f, " (input {input}, reader {reader:?})"),
            Self::Exec(Exec { input, .. }) => write!(f, " (input {input})"),
            Self::Follow { reader, .. } => {
                write!(f, " (two of them, reader {reader:?}, then stop --force)")
            }
            Self::Wait(_, count) if *count > 1 => write!(f, " ({count} of them)"),
            Self::Ready(_) => write!(f, " (until it is ready)"),
            Self::Apply { specs, .. } => {
                write!(
                    f,
                    " ({})",
                    declaration(specs).trim_end().replace('\n', "; ")
                )
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(op, RunMode::Alone) => write!(f, "{op}"),
            Self::One(op, RunMode::Killed(after)) => write!(f, "{op}; killed after {after} us"),
            Self::One(op, RunMode::AsNobody) => write!(f, "{op}; as nobody"),
            Self::Race(ops) => {
                let ops: Vec<_> = ops.iter().map(Op::to_string).collect();
                write!(f, "at the same time: {}", ops.join(" | "))
            }
        }
    }
}
