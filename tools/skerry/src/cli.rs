//! The command line (`docs/cli.md`).

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use abi::dev::{self, Status};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::device::Device;
use crate::failure::{Context, Failure, Result, STATUS_TOOL_FAILED};
use crate::instances::{self, CreateOptions, OnHang, has_ended, label};
use crate::kernel::Kernel;
use crate::pages::{self, Shell};
use crate::run::{self, Stdio};
use crate::show::{self, Inspected, Instance, Resources};
use crate::{events, logs, metrics, priority, resize, size, top, trace};

/// Runs programs in operating-system instances of their own, on CPUs and memory of their own.
#[derive(Debug, Parser)]
#[command(
    name = "skerry",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    command: AnyCommand,
}

#[derive(Debug, Subcommand)]
enum AnyCommand {
    #[command(flatten)]
    Manage(Command),
    #[command(flatten)]
    Observe(ObserveCommand),
    #[command(flatten)]
    Pages(PagesCommand),
}

/// Texts about this program, for which no supervisor is needed.
#[derive(Debug, Subcommand)]
enum PagesCommand {
    /// Print the completions for a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write the manual pages
    Man {
        /// A folder that exists, such as /usr/local/share/man/man1
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

/// Figures that an instance can tell of itself, too.
#[derive(Debug, Subcommand)]
enum ObserveCommand {
    /// Show what the CPUs do, who has them, and which locks are waited for
    Top(Top),
    /// Record what the kernel does, as a trace that ui.perfetto.dev opens
    Trace(Trace),
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create an instance, run a program in it, and return its output and exit status
    Run(Run),
    /// Create an instance without starting it
    Create(Create),
    /// Start created instances
    Start(Start),
    /// End instances: ask their programs, then take their CPUs
    Stop(Stop),
    /// Give a running instance more memory
    Resize(Resize),
    /// Forget instances that do not run
    Rm(Remove),
    /// Forget all instances that have ended
    Prune,
    /// List instances
    #[command(visible_alias = "ps")]
    Ls(List),
    /// Show all there is to know about instances
    Inspect(Inspect),
    /// Show what an instance's program has written
    Logs(Logs),
    /// Show what has happened to instances
    Events(Events),
    /// Connect to the program of a running instance
    Attach(Attach),
    /// Show the machine's CPUs and memory, and who has them
    Resources(Json),
    /// Print figures of the machine and its instances for Prometheus
    Metrics(Metrics),
    /// Wait until instances end, and print their exit statuses
    Wait(Names),
    /// Send a signal to an instance's program
    Kill(Kill),
    /// Show the versions of this program and of the kernel
    Version(Json),
}

#[derive(Args, Debug)]
struct Json {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Names {
    /// The instances
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

#[derive(Args, Debug)]
struct What {
    /// Name of the instance [default: a made-up one]
    #[arg(long)]
    name: Option<String>,
    /// How many CPUs it gets
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u32,
    /// Whether its cores' threads may be others' too that are created with `allow`
    #[arg(long, value_enum, default_value_t = Smt::Deny, value_name = "deny|allow")]
    smt: Smt,
    /// Policy for a CPU of it that runs on and on with interrupts off
    #[arg(long, value_enum, default_value_t = OnHang::Report, value_name = "report|stop|ignore")]
    on_hang: OnHang,
    /// How much memory it gets: a number and k, m or g
    #[arg(
        short = 'm',
        long = "mem",
        visible_alias = "memory",
        default_value = "64M",
        value_name = "SIZE"
    )]
    memory: String,
    /// Its root file system: a folder, a tar archive or a cpio archive [default: a copy of /]
    #[arg(long, value_name = "DIR|TAR|CPIO")]
    rootfs: Option<PathBuf>,
    /// Set a variable of the program's environment, or pass on one of this environment
    #[arg(short = 'e', long = "env", value_name = "K[=V]")]
    env: Vec<String>,
    /// Working directory of the program [default: /]
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    directory: Option<String>,
    /// Host name of the instance [default: its name]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Give the program a terminal
    #[arg(short = 't', long = "tty")]
    terminal: bool,
    /// Print the programs' system calls, as strace does
    #[arg(long)]
    trace: bool,
    /// More for the command line of the instance's kernel
    #[arg(long = "kernel-args", value_name = "ARGS", default_value = "")]
    kernel: String,
    /// The program, looked for in PATH, and its arguments
    #[arg(
        value_name = "PROG",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Smt {
    Deny,
    Allow,
}

#[derive(Args, Debug)]
struct Run {
    #[command(flatten)]
    what: What,
    /// Remove the instance when it has ended
    #[arg(long)]
    rm: bool,
    /// Print the instance's name and do not wait for it
    #[arg(short = 'd', long)]
    detach: bool,
    /// Connect standard input (it is, unless detached; for those used to it)
    #[arg(short = 'i', long)]
    interactive: bool,
}

#[derive(Args, Debug)]
struct Create {
    #[command(flatten)]
    what: What,
}

#[derive(Args, Debug)]
struct Start {
    /// Connect to the program, as `run` does
    #[arg(short = 'a', long)]
    attach: bool,
    /// Connect standard input too
    #[arg(short = 'i', long)]
    interactive: bool,
    #[command(flatten)]
    names: Names,
}

#[derive(Args, Debug)]
struct Stop {
    /// Take the CPUs at once
    #[arg(short = 'f', long)]
    force: bool,
    /// Seconds a program has to end
    #[arg(short = 't', long, value_name = "S", default_value_t = 10)]
    time: u32,
    #[command(flatten)]
    names: Names,
}

#[derive(Args, Debug)]
struct Resize {
    /// How many CPUs it is to have; not fewer than it has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// How much memory it is to have: a number and k, m or g; not less than it has
    #[arg(
        short = 'm',
        long = "mem",
        visible_alias = "memory",
        value_name = "SIZE",
        required_unless_present = "cpus"
    )]
    memory: Option<String>,
    /// Seconds to wait for its answer [default: until it answers]
    #[arg(short = 't', long, value_name = "S")]
    time: Option<u32>,
    /// Say whether it could be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    json: Json,
    /// The instance
    name: String,
}

#[derive(Args, Debug)]
struct Remove {
    /// Stop those that run, without asking
    #[arg(short = 'f', long)]
    force: bool,
    #[command(flatten)]
    names: Names,
}

#[derive(Args, Debug)]
struct List {
    /// List all (they are; for those used to it)
    #[arg(short = 'a', long)]
    all: bool,
    /// Print only the names
    #[arg(short = 'q', long, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Args, Debug)]
struct Inspect {
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    names: Names,
}

#[derive(Args, Debug)]
struct Logs {
    /// Go on until the instance ends
    #[arg(short = 'f', long)]
    follow: bool,
    /// Show the log of its kernel
    #[arg(short = 'k', long)]
    kernel: bool,
    /// Show only the last lines
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// The instance
    name: String,
}

#[derive(Args, Debug)]
struct Events {
    /// Go on with events as they come
    #[arg(short = 'f', long)]
    follow: bool,
    /// Of those that are kept, show only the last ones
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Print JSON, one document a line
    #[arg(long)]
    json: bool,
    /// Instances whose events are shown [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Args, Debug)]
struct Metrics {
    /// Serve them at this address, for ever: a port of 127.0.0.1, or an address and a port
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics::parse_address)]
    listen: Option<SocketAddr>,
}

#[derive(Args, Debug)]
struct Attach {
    /// Do not connect standard input
    #[arg(long)]
    no_stdin: bool,
    /// The program has a terminal (`run -t`)
    #[arg(short = 't', long = "tty")]
    terminal: bool,
    /// The instance
    name: String,
}

#[derive(Args, Debug)]
struct Kill {
    /// The signal, as a number or a name
    #[arg(short = 's', long, value_name = "SIG", default_value = "KILL")]
    signal: String,
    #[command(flatten)]
    names: Names,
}

#[derive(Args, Debug)]
struct Top {
    /// Seconds from one picture to the next
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    delay: Duration,
    /// Stop after so many pictures
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Print one picture below the other
    #[arg(short = 'b', long)]
    batch: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Args, Debug)]
struct Trace {
    /// Events to record: `all`, or a list of switch, wake, steal, irq, call, fault, shootdown, lock
    #[arg(short = 'e', long, value_name = "LIST", default_value = "all")]
    events: String,
    /// End after so many seconds [default: with the program, or when interrupted]
    #[arg(short = 's', long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Where the trace goes; `-` is standard output
    #[arg(short = 'o', long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// A program to run meanwhile, and its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Does what the process's command line says.
#[must_use]
pub fn main() -> ExitCode {
    let asked = SystemTime::now();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Where the message goes is gone: nothing more can be said.
            let _ = error.print();
            let runs = arguments.get(1).is_some_and(|command| command == "run");
            return match error.use_stderr() {
                true if runs => STATUS_TOOL_FAILED.into(),
                true => 2.into(),
                false => ExitCode::SUCCESS,
            };
        }
    };
    let runs = matches!(cli.command, AnyCommand::Manage(Command::Run(_)));
    if matches!(cli.command, AnyCommand::Manage(_)) {
        priority::raise();
    }
    let stdin = io::stdin();
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let here = Stdio {
        input: Some(stdin.as_fd()),
        out: &mut out,
        err: &mut err,
        signals: true,
    };
    let result = match cli.command {
        AnyCommand::Pages(command) => print_pages(command, here.out),
        AnyCommand::Observe(look) => {
            let kernel = Kernel::open().ok();
            let device = kernel.as_ref().map(|kernel| kernel as &dyn Device);
            observe(look, device, here)
        }
        AnyCommand::Manage(command) => match Kernel::open() {
            Ok(kernel) => run_command(command, Some(&kernel), asked, here),
            Err(_) if matches!(command, Command::Version(_)) => {
                run_command(command, None, asked, here)
            }
            Err(failure) => Err(if runs { failure.ours() } else { failure }),
        },
    };
    match result {
        Ok(status) => status.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                let _ = writeln!(io::stderr(), "skerry: {failure}");
            }
            failure.status.into()
        }
    }
}

/// Carries out `completion` or `man`.
fn print_pages(command: PagesCommand, out: &mut dyn Write) -> Result<u8> {
    match command {
        PagesCommand::Completion { shell } => output(pages::completion(shell, out)),
        PagesCommand::Man { folder } => pages::manual(&folder).map(|()| 0),
    }
}

/// Exit status after printing; nothing has failed if our reader has seen enough.
fn output(result: io::Result<()>) -> Result<u8> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(0),
        other => other.context(|| "standard output").map(|()| 0),
    }
}

/// Carries out `top` or `trace`.
fn observe(look: ObserveCommand, device: Option<&dyn Device>, here: Stdio<'_>) -> Result<u8> {
    match look {
        ObserveCommand::Top(Top {
            delay,
            count,
            batch,
            json,
        }) => top::run(
            device,
            top::Options {
                delay,
                count,
                batch,
                json: json.json,
            },
            here.out,
        )
        .map(|()| 0),
        ObserveCommand::Trace(Trace {
            events,
            seconds,
            output,
            command,
        }) => trace::run(
            &trace::Options {
                events,
                limit: seconds,
                output,
                command,
            },
            here.err,
        ),
    }
}

fn request(what: What) -> Result<CreateOptions> {
    Ok(CreateOptions {
        memory: size::parse(&what.memory)?,
        name: what.name,
        cpus: what.cpus,
        shared_cores: what.smt == Smt::Allow,
        on_hang: what.on_hang,
        rootfs: what.rootfs,
        env: what.env,
        hostname: what.hostname,
        directory: what.directory,
        terminal: what.terminal,
        trace: what.trace,
        kernel: what.kernel,
        command: what.command,
    })
}

/// Carries out a command on the supervisor's device.
fn run_command(
    command: Command,
    device: Option<&dyn Device>,
    asked: SystemTime,
    here: Stdio<'_>,
) -> Result<u8> {
    let Some(device) = device else {
        return version(None, &command, here.out);
    };
    match command {
        Command::Run(Run {
            what,
            rm,
            detach,
            interactive: _,
        }) => {
            let options = run::Options {
                detach,
                remove: rm,
                terminal: what.terminal,
                trace: what.trace,
            };
            run::run(
                device,
                &request(what).map_err(Failure::ours)?,
                options,
                asked,
                here,
            )
        }
        Command::Create(Create { what }) => {
            let created = instances::create(device, &request(what)?, asked)?;
            output(writeln!(here.out, "{}", label(&created)))
        }
        Command::Start(start) => start_all(device, &start, here),
        Command::Stop(Stop { force, time, names }) => {
            for_each_instance(device, &names, here.out, |status| {
                if force {
                    instances::halt(device, status)
                } else {
                    instances::stop(device, status, Duration::from_secs(time.into()))
                }
            })
        }
        Command::Resize(Resize {
            cpus,
            memory,
            time,
            dry_run,
            json,
            name,
        }) => {
            let options = resize::Options {
                cpus,
                memory: memory.as_deref().map(size::parse).transpose()?,
                limit: time.map(|seconds| Duration::from_secs(seconds.into())),
                dry_run,
            };
            let status = instances::find(device, &name)?;
            let change = resize::resize(device, &status, options)?;
            output(if json.json {
                show::json(&change, here.out)
            } else {
                writeln!(here.out, "{name}")
            })
        }
        Command::Rm(Remove { force, names }) => {
            for_each_instance(device, &names, here.out, |status| {
                if force {
                    instances::halt(device, status)?;
                }
                instances::remove(device, status)
            })
        }
        Command::Prune => {
            let ended: Vec<_> = instances::all(device)?
                .iter()
                .filter(|s| has_ended(s))
                .map(|s| label(s).to_owned())
                .collect();
            for_each_instance(device, &Names { names: ended }, here.out, |status| {
                instances::remove(device, status)
            })
        }
        Command::Ls(List {
            all: _,
            quiet,
            json,
        }) => {
            let all = instances::all(device)?;
            output(match (json.json, quiet) {
                (true, _) => {
                    show::json(&all.iter().map(Instance::new).collect::<Vec<_>>(), here.out)
                }
                (false, true) => all
                    .iter()
                    .try_for_each(|status| writeln!(here.out, "{}", label(status))),
                (false, false) => {
                    show::instances(&all.iter().collect::<Vec<_>>(), SystemTime::now(), here.out)
                }
            })
        }
        Command::Inspect(Inspect { json, names }) => {
            let all: Vec<Status> = names
                .names
                .iter()
                .map(|name| instances::find(device, name))
                .collect::<Result<_>>()?;
            output(match (json.json, all.as_slice()) {
                (true, [one]) => show::json(&Inspected::new(one), here.out),
                (true, many) => show::json(
                    &many.iter().map(Inspected::new).collect::<Vec<_>>(),
                    here.out,
                ),
                (false, many) => many
                    .iter()
                    .try_for_each(|status| show::inspected(status, here.out)),
            })
        }
        Command::Logs(Logs {
            follow,
            kernel,
            tail,
            name,
        }) => {
            let status = instances::find(device, &name)?;
            logs::show(
                device,
                &status,
                logs::Options {
                    follow,
                    kernel,
                    tail,
                },
                here.out,
                here.err,
            )
            .map(|()| 0)
        }
        Command::Events(Events {
            follow,
            tail,
            json,
            names,
        }) => {
            let options = events::Options {
                follow,
                tail,
                json,
                names,
            };
            events::show(device, &options, here.out).map(|()| 0)
        }
        Command::Attach(Attach {
            no_stdin,
            terminal,
            name,
        }) => {
            let status = instances::find(device, &name)?;
            let input = here.input.filter(|_| !no_stdin);
            run::attach(
                device,
                &status,
                run::Options {
                    terminal,
                    ..run::Options::default()
                },
                Stdio { input, ..here },
            )
        }
        Command::Resources(Json { json }) => {
            let info = device.info().context(|| "cannot look at the machine")?;
            let resources = Resources::new(&info, instances::all(device)?.len());
            output(if json {
                show::json(&resources, here.out)
            } else {
                show::resources(&resources, here.out)
            })
        }
        Command::Metrics(Metrics { listen: None }) => {
            output(here.out.write_all(metrics::text(device)?.as_bytes()))
        }
        Command::Metrics(Metrics {
            listen: Some(address),
        }) => {
            // To serve figures is no management: it must not keep programs from the CPU.
            priority::lower();
            metrics::serve(device, address, here.out).map(|()| 0)
        }
        Command::Wait(names) => {
            for name in &names.names {
                let status = instances::find(device, name)?;
                device
                    .wait(status.id, None)
                    .context(|| format!("cannot wait for {name}"))?;
                let ended = device
                    .status(status.id)
                    .context(|| format!("cannot look at {name}"))?;
                output(writeln!(here.out, "{}", ended.exit_code))?;
            }
            Ok(0)
        }
        Command::Kill(Kill { signal, names }) => {
            let signal = signal_number(&signal)?;
            for_each_instance(device, &names, here.out, |status| {
                device
                    .control(dev::SIGNAL, status.id, signal)
                    .map_err(|error| match error.raw_os_error() {
                        Some(libc::ESRCH) => {
                            Failure::new(format!("{} does not run", label(status)))
                        }
                        _ => Failure::new(format!(
                            "cannot send a signal to {}: {error}",
                            label(status)
                        )),
                    })
            })
        }
        Command::Version(_) => version(Some(device), &command, here.out),
    }
}

/// Does something to each of the instances, and prints the names of those it was done to.
fn for_each_instance(
    device: &dyn Device,
    names: &Names,
    out: &mut dyn Write,
    mut act: impl FnMut(&Status) -> Result<()>,
) -> Result<u8> {
    let mut failures = Vec::new();
    for name in &names.names {
        match instances::find(device, name).and_then(|status| act(&status)) {
            // Somebody who does not read the names does not stop what is done.
            Ok(()) => drop(writeln!(out, "{name}")),
            Err(failure) => failures.push(failure),
        }
    }
    match failures.len() {
        0 => Ok(0),
        _ => Err(Failure::new(
            failures
                .iter()
                .map(|failure| failure.message.as_str())
                .collect::<Vec<_>>()
                .join("\nskerry: "),
        )),
    }
}

fn start_all(device: &dyn Device, start: &Start, mut here: Stdio<'_>) -> Result<u8> {
    if !start.attach && !start.interactive {
        return for_each_instance(device, &start.names, here.out, |status| {
            instances::start(device, status)
        });
    }
    let [name] = start.names.names.as_slice() else {
        return Err(Failure::new("--attach connects to one instance: name one"));
    };
    let status = instances::find(device, name)?;
    if !start.interactive {
        here.input = None;
    }
    run::attach_until_end(
        device,
        &status,
        run::Options::default(),
        run::Join::Start,
        &mut here,
    )
}

fn version(device: Option<&dyn Device>, command: &Command, out: &mut dyn Write) -> Result<u8> {
    let info = device.and_then(|device| device.info().ok());
    let kernel = info.as_ref().and_then(|info| dev::text(&info.version));
    let tool = env!("CARGO_PKG_VERSION");
    let printed = match command {
        Command::Version(Json { json: true }) => {
            show::json(&serde_json::json!({ "tool": tool, "kernel": kernel }), out)
        }
        _ => writeln!(
            out,
            "skerry {tool}\nkernel {}",
            kernel.unwrap_or("none: this is not a supervisor")
        ),
    };
    printed.context(|| "standard output").map(|()| 0)
}

/// A signal's number, from its number or its name with or without `SIG`.
fn signal_number(text: &str) -> Result<u32> {
    const NAMES: [(&str, i32); 16] = [
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("QUIT", libc::SIGQUIT),
        ("ABRT", libc::SIGABRT),
        ("KILL", libc::SIGKILL),
        ("USR1", libc::SIGUSR1),
        ("SEGV", libc::SIGSEGV),
        ("USR2", libc::SIGUSR2),
        ("PIPE", libc::SIGPIPE),
        ("ALRM", libc::SIGALRM),
        ("TERM", libc::SIGTERM),
        ("CHLD", libc::SIGCHLD),
        ("CONT", libc::SIGCONT),
        ("STOP", libc::SIGSTOP),
        ("TSTP", libc::SIGTSTP),
        ("WINCH", libc::SIGWINCH),
    ];
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = NAMES
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, number)| *number as u32);
    by_name
        .or_else(|| text.parse().ok().filter(|number| (1..=64).contains(number)))
        .ok_or_else(|| {
            Failure::new(format!(
                "{text:?} is not a signal: give a number from 1 to 64 or a name such as TERM"
            ))
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::mock::Mock;

    fn call(mock: &Mock, arguments: &[&str]) -> (Result<u8>, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let cli = Cli::try_parse_from(std::iter::once(&"skerry").chain(arguments)).unwrap();
        let here = Stdio {
            input: None,
            out: &mut out,
            err: &mut err,
            signals: false,
        };
        let AnyCommand::Manage(command) = cli.command else {
            panic!("not a command about instances")
        };
        let result = run_command(command, Some(mock), SystemTime::now(), here);
        (result, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_behind_the_program_are_the_programs() {
        for arguments in [
            &["skerry", "run", "--", "sh", "-c", "x", "--rm"][..],
            &["skerry", "run", "sh", "-c", "x", "--rm"],
        ] {
            let AnyCommand::Manage(Command::Run(run)) =
                Cli::try_parse_from(arguments).unwrap().command
            else {
                panic!("not run")
            };
            assert_eq!(run.what.command, ["sh", "-c", "x", "--rm"]);
            assert!(!run.rm);
        }
        assert!(Cli::try_parse_from(["skerry", "run"]).is_err());
    }

    #[test]
    fn from_create_to_prune() {
        let mock = Mock::new(4, 1 << 30);
        let rootfs = crate::mock::rootfs();
        let create = [
            "create", "--name", "one", "--mem", "32M", "--rootfs", rootfs, "--", "say", "x", "3",
        ];
        assert_eq!(call(&mock, &create).1, "one\n");
        assert!(call(&mock, &["ls"]).1.contains("created"));
        assert_eq!(call(&mock, &["start", "one"]).1, "one\n");
        assert_eq!(call(&mock, &["wait", "one"]).1, "3\n");
        assert_eq!(call(&mock, &["logs", "one"]).1, "x");
        let listed: serde_json::Value =
            serde_json::from_str(&call(&mock, &["ls", "--json"]).1).unwrap();
        assert_eq!(
            (listed[0]["state"].as_str(), listed[0]["exit_code"].as_i64()),
            (Some("exited"), Some(3))
        );
        assert_eq!(call(&mock, &["ps", "-q"]).1, "one\n");
        assert_eq!(call(&mock, &["prune"]).1, "one\n");
        assert_eq!(call(&mock, &["ls", "--json"]).1, "[]\n");
        assert!(call(&mock, &["resources"]).1.contains("memory"));
    }

    #[test]
    fn of_several_names_each_is_tried() {
        let mock = Mock::new(4, 1 << 30);
        let rootfs = crate::mock::rootfs();
        for name in ["a", "b"] {
            call(
                &mock,
                &["create", "--name", name, "--rootfs", rootfs, "true"],
            )
            .0
            .unwrap();
        }
        let (result, out) = call(&mock, &["rm", "a", "x", "b"]);
        assert_eq!(out, "a\nb\n");
        assert!(result.unwrap_err().message.contains("\"x\""));
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("9", 9), ("KILL", 9), ("sigterm", 15), ("64", 64)] {
            assert_eq!(signal_number(text).unwrap(), number);
        }
        for text in ["", "0", "65", "FOO", "-1"] {
            assert!(signal_number(text).is_err(), "{text}");
        }
    }
}
