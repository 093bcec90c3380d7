//! Runs programs of system calls in a machine and tells what they did. `cargo xtask diff` drives it
//! by lines on standard input:
//!
//! | line | answer |
//! |---|---|
//! | `range AREA SEED FIRST COUNT` | a hash of each record, 16 digits each, then `.` |
//! | `directed AREA FIRST COUNT` | the same of the area's directed programs |
//! | `show AREA SEED NUMBER` | the program, a line `--`, its record, then `.` |
//! | `run`, a program's lines, `.` | its record, then `.` |
//! | `mark N` | `.`; a kernel with mutants (`cargo xtask mutants`) takes it for the beginning of part N |
//! | `coverage` | the numbers of what has been seen since the last time, then `.` |
//!
//! It is run as root in a machine of its own: at the end of a program it kills every process that
//! it can.

mod actor;
mod final_state;
mod pseudo;
mod shared;
mod supervisor;
mod sys;

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use differential::layout::{self, PAGE};
use differential::program::Program;
use differential::spec::Spec;
use differential::{coverage, directed, generate, record};
use supervisor::Supervisor;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "areas") {
        Spec::builtin()
            .areas
            .iter()
            .for_each(|area| println!("{}", area.name));
        return ExitCode::SUCCESS;
    }
    map();
    // Orphans of programs come here, and not to a process that this one does not know.
    sys::simple(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER as u64, 1, 0]);
    sys::simple(libc::SYS_umask, [0o22, 0, 0]);
    // A session of its own, which both kernels have a number for.
    sys::simple(libc::SYS_setsid, [0; 3]);
    if let Err(error) = std::fs::create_dir_all(supervisor::ROOT) {
        eprintln!("diff-executor: {}: {error}", supervisor::ROOT);
        return ExitCode::FAILURE;
    }
    // The same file system on both kernels; where it cannot be mounted, the directory is one of
    // what is there.
    let (kind, place) = (
        sys::address(c"tmpfs"),
        std::ffi::CString::new(supervisor::ROOT).unwrap_or_default(),
    );
    sys::call(libc::SYS_mount, [kind, sys::address(&place), kind, 0, 0, 0]);
    // What programs know by a name outside their directory outlives them, and must not change: root
    // could unlink it.
    let null = sys::address(c"/dev/null");
    sys::call(libc::SYS_mount, [null, null, 0, libc::MS_BIND, 0, 0]);
    sys::call(
        libc::SYS_mount,
        [
            null,
            null,
            0,
            libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY,
            0,
            0,
        ],
    );
    // Terminals, which Linux has where somebody mounts them.
    if std::fs::create_dir("/dev/pts").is_ok() {
        let terminals = sys::address(c"devpts");
        sys::call(
            libc::SYS_mount,
            [terminals, sys::address(c"/dev/pts"), terminals, 0, 0, 0],
        );
    }
    // Linux lets nobody send pings without rights until somebody sets this, as most systems do at
    // boot; on Skerry it is so from the beginning.
    drop(std::fs::write(
        "/proc/sys/net/ipv4/ping_group_range",
        "0 2147483647",
    ));
    // A port that an earlier program used is free again at once, and not after a minute as on
    // Linux.
    drop(std::fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0"));
    let spec: &'static Spec = Box::leak(Box::new(Spec::builtin()));
    sys::raise_loop();
    let mut items = vec![Vec::new(); spec.calls.len()];
    coverage::items(spec)
        .into_iter()
        .enumerate()
        .for_each(|(index, item)| items[item.call].push((index, item)));
    let mut server = Server {
        spec,
        watch: Supervisor::new(spec),
        items,
        seen: BTreeSet::new(),
        directed: None,
    };
    match server.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("diff-executor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Maps what all programs have for memory; children inherit it.
fn map() {
    let private = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    sys::map(layout::READ_ONLY, PAGE, libc::PROT_READ, private);
    sys::map(layout::NO_ACCESS, PAGE, libc::PROT_NONE, private);
    sys::map(
        layout::MAPPING_AREA,
        layout::MAPPING_AREA_PAGES * PAGE,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE,
    );
}

struct Server {
    spec: &'static Spec,
    watch: Supervisor,
    /// Items of coverage to be seen, by call, with their indices.
    items: Vec<Vec<(usize, coverage::Item)>>,
    /// Indexes of items that were seen and not yet told.
    seen: BTreeSet<usize>,
    /// Directed programs that come next, if one was asked for.
    directed: Option<Directed>,
}

/// Directed programs of an area from a certain one on.
struct Directed {
    area: &'static str,
    /// The number of the next.
    next: u64,
    programs: Box<dyn Iterator<Item = Program>>,
}

impl Server {
    fn serve(&mut self) -> io::Result<()> {
        let mut lines = io::stdin().lock().lines();
        let mut output = io::stdout().lock();
        while let Some(line) = lines.next().transpose()? {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["range", area, seed, first, count] => {
                    let (seed, first, count) = (number(seed), number(first), number(count));
                    for index in first..first + count {
                        let record = self
                            .program(area, seed, index)
                            .map(|program| self.run(&program));
                        writeln!(
                            output,
                            "{:016x}",
                            record::hash(record.unwrap_or_default().as_bytes())
                        )?;
                        output.flush()?;
                    }
                }
                ["directed", area, first, count] => {
                    let (first, count) = (number(first), number(count));
                    for index in first..first + count {
                        let Some(program) = self.directed(area, index) else {
                            break;
                        };
                        writeln!(
                            output,
                            "{:016x}",
                            record::hash(self.run(&program).as_bytes())
                        )?;
                        output.flush()?;
                    }
                }
                ["show", area, seed, index] => {
                    if let Some(program) = self.program(area, number(seed), number(index)) {
                        write!(output, "{program}--\n{}", self.run(&program))?;
                    }
                }
                ["run"] => {
                    let mut text = String::new();
                    for line in lines.by_ref() {
                        let line = line?;
                        if line == "." {
                            break;
                        }
                        text.push_str(&line);
                        text.push('\n');
                    }
                    let known = |program: &Program| {
                        program
                            .steps
                            .iter()
                            .all(|step| self.spec.call(&step.call).is_some())
                    };
                    match text.parse() {
                        Ok(program) if !known(&program) => {
                            writeln!(output, "! a step makes a call that there is not")?;
                        }
                        Ok(program) => write!(output, "{}", self.run(&program))?,
                        Err(why) => writeln!(output, "! {why}")?,
                    }
                }
                ["mark", number] => {
                    let name = format!("mutant-{number}");
                    sys::simple(
                        libc::SYS_sethostname,
                        [name.as_ptr() as u64, name.len() as u64, 0],
                    );
                }
                ["coverage"] => {
                    for item in std::mem::take(&mut self.seen) {
                        writeln!(output, "{item}")?;
                    }
                }
                _ => writeln!(output, "! no such command: {line}")?,
            }
            writeln!(output, ".")?;
            output.flush()?;
        }
        Ok(())
    }

    fn program(&self, area: &str, seed: u64, index: u64) -> Option<Program> {
        Some(generate::program(
            self.spec,
            self.spec.area(area)?,
            seed,
            index,
        ))
    }

    /// Directed program number `index` of an area; none after the last one.
    fn directed(&mut self, area: &str, index: u64) -> Option<Program> {
        let area = self.spec.area(area)?;
        let goes_on = |directed: &Directed| directed.area == area.name && directed.next == index;
        let mut directed = match self.directed.take().filter(goes_on) {
            Some(directed) => directed,
            None => Directed {
                area: &area.name,
                next: index,
                programs: Box::new(directed::programs(self.spec, area).skip(index as usize)),
            },
        };
        let program = directed.programs.next();
        directed.next += 1;
        self.directed = Some(directed);
        program
    }

    fn run(&mut self, program: &Program) -> String {
        let (record, outcomes) = self.watch.run(program);
        for supervisor::Outcome { step, result, ways } in outcomes {
            let step = &program.steps[step];
            let Some(call) = self.spec.call_index(&step.call) else {
                continue;
            };
            let ordinary = program
                .actors
                .get(step.actor)
                .is_some_and(|actor| actor.nobody);
            let shown = self.items[call].iter().filter(|(_, item)| {
                coverage::shows(self.spec, item, step, ordinary, result, &ways)
            });
            self.seen.extend(shown.map(|(index, _)| *index));
        }
        record
    }
}

/// A number of a command line; what is none counts as 0, since the other end is this repository's
/// own.
fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}
