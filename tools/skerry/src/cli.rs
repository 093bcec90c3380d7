//! The command line (`docs/cli.md`).

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use abi::dev;
use clap::Parser;

use crate::arguments::{
    AnyCommand, Apply, Attach, Autoscale, Cli, Command, Cp, Create, DeviceCommand, Diff, Events,
    Exec, Inspect, Json, Kill, List, Logs, Metrics, Monitor, Names, NetworkCommand, ObserveCommand,
    PagesCommand, Remove, Rename, Resize, Restart, Run, Smt, Start, Stats, Stop, Top, Trace,
    Validate, What,
};
use crate::copy::{self, Place};
use crate::device::Device;
use crate::failure::{Context, Failure, Result, STATUS_TOOL_FAILED};
use crate::instances::{self, CreateOptions, has_ended, label};
use crate::kernel::Kernel;
use crate::loans::Class;
use crate::run::{self, Stdio};
use crate::show::{self, Inspected, Instance, Resources};
use crate::state::Store;
use crate::{
    apply, autoscale, doctor, events, exec, logs, managed, metrics, monitor, networks, pages,
    peers, plug, priority, resize, size, stats, subnets, top, trace,
};

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
            Ok(kernel) => run_command(command, Some(&kernel), &Store::open, asked, here),
            Err(_) if matches!(command, Command::Version(_) | Command::Validate(_)) => {
                run_command(command, None, &Store::open, asked, here)
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
        address: networks::parse(what.ip.as_deref(), &what.network)?,
        network: what.network,
        ports: what.ports,
        peers: what.peers,
        groups: what.groups,
        memory: size::parse(&what.memory)?,
        name: what.name,
        cpus: what.cpus.most,
        cpu_range: (what.cpus.least < what.cpus.most).then_some(what.cpus),
        class: what.class,
        shared_cores: what.smt == Smt::Allow,
        on_hang: what.on_hang,
        devices: what.devices,
        unsafe_dma: what.unsafe_dma,
        rootfs: what.rootfs,
        root: what.root,
        env: what.env,
        hostname: what.hostname,
        directory: what.directory,
        terminal: what.terminal,
        trace: what.trace,
        kernel: what.kernel,
        command: what.command,
    }
    // Whoever starts it again has another environment.
    .resolved(|variable| std::env::var(variable).ok()))
}

fn autoscale_options(asked: Autoscale) -> Result<autoscale::Options> {
    let source = match (asked.latency_cmd, asked.latency_file) {
        (Some(command), _) => autoscale::Source::Command(command),
        (None, Some(file)) => autoscale::Source::File(file),
        (None, None) => return Err(Failure::new("give --latency-file or --latency-cmd")),
    };
    Ok(autoscale::Options {
        from: asked.from,
        to: asked.to,
        source,
        low: autoscale::parse_time(&asked.low)?,
        high: autoscale::parse_time(&asked.high)?,
        interval: autoscale::parse_time(&asked.interval)?,
        keep: asked.keep,
        json: asked.json.json,
    })
}

/// Prints what a file declares, or the form of such files.
fn validate(asked: Validate, out: &mut dyn Write) -> Result<u8> {
    match asked.file {
        Some(file) => apply::validate(&file, asked.json.json, out).map(|()| 0),
        None => output(apply::print_schema(out)),
    }
}

/// Carries out a command on the supervisor's device.
fn run_command(
    command: Command,
    device: Option<&dyn Device>,
    open_store: &dyn Fn() -> Result<Store>,
    asked: SystemTime,
    here: Stdio<'_>,
) -> Result<u8> {
    let Some(device) = device else {
        return match command {
            Command::Validate(asked) => validate(asked, here.out),
            _ => version(None, &command, here.out),
        };
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
                restart: what.restart,
            };
            run::run(
                device,
                &open_store().map_err(Failure::ours)?,
                &request(what).map_err(Failure::ours)?,
                options,
                asked,
                here,
            )
        }
        Command::Create(Create { what }) => {
            let restart = what.restart;
            let (store, request) = (open_store()?, request(what)?);
            let created = managed::create(device, &store, &request, restart, asked)?;
            if request.class == Some(Class::Latency) {
                monitor::ensure(&store)?;
            }
            output(writeln!(here.out, "{}", label(&created)))
        }
        Command::Start(start) => start_all(device, &open_store()?, &start, here),
        Command::Stop(Stop { force, time, names }) => {
            let store = open_store()?;
            for_each_name(&names, here.out, |name| {
                let status = managed::mark_stopped(device, &store, name)?;
                if force {
                    instances::halt(device, &status)
                } else {
                    instances::stop(device, &status, Duration::from_secs(time.into()))
                }
            })
        }
        Command::Restart(Restart { time, names }) => {
            let store = open_store()?;
            for_each_name(&names, here.out, |name| {
                ensure_monitor(device, &store, name)?;
                let grace = Duration::from_secs(time.into());
                managed::restart(device, &store, name, grace, asked).map(drop)
            })
        }
        Command::Pause(names) => {
            let store = open_store()?;
            for_each_name(&names, here.out, |name| {
                managed::pause(device, &store, name)
            })
        }
        Command::Unpause(names) => for_each_name(&names, here.out, |name| {
            instances::unpause(device, &instances::find(device, name)?)
        }),
        Command::Rename(Rename { name, to }) => {
            managed::rename(device, &open_store()?, &name, &to)?;
            Ok(0)
        }
        Command::Apply(Apply {
            prune,
            dry_run,
            time,
            grace,
            json,
            file,
        }) => {
            let store = open_store()?;
            let options = apply::Options {
                prune,
                dry_run,
                json: json.json,
                limit: Duration::from_secs(time.into()),
                grace: Duration::from_secs(grace.into()),
            };
            let ensure = || monitor::ensure(&store);
            apply::apply(device, &store, &file, options, &ensure, here.out).map(|()| 0)
        }
        Command::Diff(Diff { prune, json, file }) => {
            let differs = open_store()
                .and_then(|store| apply::diff(device, &store, &file, prune, json.json, here.out));
            // As `diff` has it: 2 is trouble.
            differs.map(u8::from).map_err(|failure| Failure {
                status: 2,
                ..failure
            })
        }
        Command::Validate(asked) => validate(asked, here.out),
        Command::Monitor(Monitor { background }) => {
            monitor::run(device, &open_store()?, background, here.out).map(|()| 0)
        }
        Command::Autoscale(asked) => {
            let options = autoscale_options(asked)?;
            autoscale::run(device, &open_store()?, &options, here.out).map(|()| 0)
        }
        Command::Resize(Resize {
            cpus,
            memory,
            time,
            dry_run,
            force_reclaim,
            json,
            name,
        }) => {
            let options = resize::Options {
                cpus,
                memory: memory.as_deref().map(size::parse).transpose()?,
                limit: time.map(|seconds| Duration::from_secs(seconds.into())),
                dry_run,
                force_reclaim,
            };
            let store = open_store()?;
            let change = managed::resize(device, &store, &name, options)?;
            output(if json.json {
                show::json(&change, here.out)
            } else {
                writeln!(here.out, "{name}")
            })
        }
        Command::Rm(Remove { force, names }) => {
            let store = open_store()?;
            for_each_name(&names, here.out, |name| {
                managed::remove(device, &store, name, force)
            })
        }
        Command::Prune => {
            let store = open_store()?;
            let ended: Vec<_> = instances::all(device)?
                .into_iter()
                .filter(has_ended)
                .map(|status| label(&status).to_owned())
                .collect();
            for_each_name(&Names { names: ended }, here.out, |name| {
                managed::remove_ended(device, &store, name)
            })
        }
        Command::Ls(List {
            all: with_previous,
            quiet,
            json,
        }) => {
            let mut all = instances::all(device)?;
            all.retain(|status| with_previous || !managed::is_previous(status));
            // What is not remembered is not shown.
            let store = open_store().ok();
            let root = |status: &dev::Status| store.as_ref()?.read(status.id).ok()??.options.root;
            let roots: Vec<_> = all.iter().map(root).collect();
            output(match (json.json, quiet) {
                (true, _) => {
                    let shown = all.iter().zip(&roots).map(|(status, root)| Instance {
                        root: root.clone(),
                        ..Instance::new(status)
                    });
                    show::json(&shown.collect::<Vec<_>>(), here.out)
                }
                (false, true) => all
                    .iter()
                    .try_for_each(|status| writeln!(here.out, "{}", label(status))),
                (false, false) => {
                    let all: Vec<_> = all.iter().zip(&roots).collect();
                    show::instances(&all, SystemTime::now(), here.out)
                }
            })
        }
        Command::Inspect(Inspect { json, names }) => {
            let store = open_store()?;
            let look = |name: &String| {
                let status = instances::find(device, name)?;
                let used = stats::fresh(device, &[status.id])
                    .context(|| format!("cannot look at {name}"))?;
                let used = used.first().copied().unwrap_or_default();
                let peers = peers::of(device, status.id)
                    .context(|| format!("cannot look at the peers of {name}"))?;
                Ok::<_, Failure>((status, store.read(status.id)?, used, peers))
            };
            let all: Vec<_> = names.names.iter().map(look).collect::<Result<_>>()?;
            let inspected = all.iter().map(|(status, record, used, known)| Inspected {
                peers: known.clone(),
                ..Inspected::new(status, record.as_ref(), used)
            });
            output(
                match (json.json, inspected.collect::<Vec<_>>().as_slice()) {
                    (true, [one]) => show::json(one, here.out),
                    (true, many) => show::json(&many, here.out),
                    (false, many) => many
                        .iter()
                        .zip(&all)
                        .try_for_each(|(one, (status, ..))| show::inspected(one, status, here.out)),
                },
            )
        }
        Command::Logs(Logs {
            follow,
            kernel,
            tail,
            previous,
            name,
        }) => {
            let mut status = instances::find(device, &name)?;
            if previous {
                status = managed::previous(device, &open_store()?, &status)?;
            }
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
        Command::Stats(Stats {
            all,
            no_stream,
            json,
            names,
        }) => {
            let options = stats::Options {
                all,
                once: no_stream,
                json,
                names,
            };
            stats::run(device, &options, here.out).map(|()| 0)
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
        Command::Exec(Exec {
            interactive,
            terminal,
            detach,
            env,
            directory,
            user,
            name,
            command,
        }) => {
            let options = exec::Options {
                detach,
                interactive,
                terminal,
                env,
                directory,
                user,
                command,
            };
            let status = instances::find(device, &name)?;
            exec::exec(device, &status, &options, &mut { here })
        }
        Command::Cp(Cp {
            archive,
            quiet,
            from,
            to,
        }) => copy::copy(
            device,
            &Place::new(&from),
            &Place::new(&to),
            copy::Options { archive, quiet },
            &mut { here },
        )
        .map(|()| 0),
        Command::Resources(Json { json }) => {
            let info = device.info().context(|| "cannot look at the machine")?;
            let resources = Resources::new(&info, instances::all(device)?.len());
            output(if json {
                show::json(&resources, here.out)
            } else {
                show::resources(&resources, here.out)
            })
        }
        Command::Doctor(Json { json }) => {
            let (bad, printed) = doctor::run(device, &open_store()?, json, here.out)?;
            output(printed).map(|_| u8::from(bad))
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
            let store = open_store()?;
            for_each_name(&names, here.out, |name| {
                // Who sends one of these does not want it to be started again.
                let ends = matches!(signal.cast_signed(), libc::SIGKILL | libc::SIGTERM);
                let status = &match ends {
                    true => managed::mark_stopped(device, &store, name)?,
                    false => instances::find(device, name)?,
                };
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
                    })?;
                if ends {
                    instances::go_on(device, status.id)
                } else {
                    Ok(())
                }
            })
        }
        Command::Network { command } => network(device, command, here.out),
        Command::Device { command } => devices(device, command, here.out),
        Command::Version(_) => version(Some(device), &command, here.out),
    }
}

/// Carries out a command about devices.
fn devices(device: &dyn Device, command: DeviceCommand, out: &mut dyn Write) -> Result<u8> {
    let (way, asked) = match command {
        DeviceCommand::Ls(json) => {
            let all = plug::list(device)?;
            return output(match json.json {
                true => show::json(&all, out),
                false => show::table(&plug::rows(&all), out),
            });
        }
        DeviceCommand::Add {
            unsafe_dma,
            options,
        } => (
            plug::Way::In {
                is_unsafe: unsafe_dma,
            },
            options,
        ),
        DeviceCommand::Remove { force, options } => (plug::Way::Out { is_forced: force }, options),
    };
    let options = plug::Options {
        way,
        limit: asked
            .time
            .map(|seconds| Duration::from_secs(seconds.into())),
        dry_run: asked.dry_run,
    };
    let status = instances::find(device, &asked.name)?;
    let change = plug::change(device, &status, &asked.device, options)?;
    output(match asked.json.json {
        true => show::json(&change, out),
        false => writeln!(out, "{}", asked.name),
    })
}

/// Carries out a command about networks.
fn network(device: &dyn Device, command: NetworkCommand, out: &mut dyn Write) -> Result<u8> {
    match command {
        NetworkCommand::Create {
            subnet,
            gateway,
            name,
        } => {
            subnets::create(device, &name, subnet, gateway)?;
            output(writeln!(out, "{name}"))
        }
        NetworkCommand::Ls { quiet, json } => {
            let all = subnets::all(device)?;
            output(match (json.json, quiet) {
                (true, _) => show::json(&all, out),
                (false, true) => all.iter().try_for_each(|one| writeln!(out, "{}", one.name)),
                (false, false) => show::table(&subnets::rows(&all), out),
            })
        }
        NetworkCommand::Rm(names) => {
            for_each_name(&names, out, |name| subnets::remove(device, name))
        }
        NetworkCommand::Inspect(Inspect { json, names }) => {
            let look = |name: &String| subnets::inspect(device, name);
            let all: Vec<_> = names.names.iter().map(look).collect::<Result<_>>()?;
            output(match (json.json, all.as_slice()) {
                (true, [one]) => show::json(one, out),
                (true, many) => show::json(&many, out),
                (false, many) => many.iter().try_for_each(|one| one.print(out)),
            })
        }
    }
}

/// Sees to it that a monitor is at work if an instance needs one.
fn ensure_monitor(device: &dyn Device, store: &Store, name: &str) -> Result<()> {
    let status = instances::find(device, name)?;
    let record = store.read(status.id)?;
    match record.is_some_and(|record| monitor::is_needed(&record.options, record.restart)) {
        true => monitor::ensure(store),
        false => Ok(()),
    }
}

/// Does something to each of the instances, and prints the names of those it was done to.
fn for_each_name(
    names: &Names,
    out: &mut dyn Write,
    mut act: impl FnMut(&str) -> Result<()>,
) -> Result<u8> {
    let mut failures = Vec::new();
    for name in &names.names {
        match act(name) {
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

fn start_all(device: &dyn Device, store: &Store, start: &Start, mut here: Stdio<'_>) -> Result<u8> {
    if !start.attach && !start.interactive {
        return for_each_name(&start.names, here.out, |name| {
            ensure_monitor(device, store, name)?;
            managed::start(device, store, name)
        });
    }
    let [name] = start.names.names.as_slice() else {
        return Err(Failure::new("--attach connects to one instance: name one"));
    };
    ensure_monitor(device, store, name)?;
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
        let open = || Store::at(&mock.directory.0, "boot");
        let result = run_command(command, Some(mock), &open, SystemTime::now(), here);
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
