//! Memory until there is none, and back: nothing is lost, and the kernel lives on.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::build;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Ending, Machine, last_lines};

/// Kinds of kernel objects that `machine/memory` makes until there is no memory: those that end
/// soon. `long/memory` makes all.
const SOON: [&str; 25] = [
    "pipes",
    "stream-sockets",
    "datagram-sockets",
    "descriptors-under-way",
    "tcp",
    "backlog",
    "udp",
    "socket-filters",
    "epoll",
    "eventfd",
    "memfd",
    "inotify",
    "proc-files",
    "processes",
    "threads",
    "page-tables-2m",
    "page-tables-1g",
    "contents-of-files",
    "symbolic-links",
    "extended-attributes",
    "exec-strings",
    "queued-signals",
    "messages",
    "semaphores",
    "seccomp-filters",
];

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks: Vec<Check> = [1, 4, 8]
        .map(|cpus| {
            Check::new(
                format!("all memory is taken and given back on {cpus} processors"),
                exhaust(setting, cpus),
            )
        })
        .into();
    checks.extend(exhaust_kernel(setting, 2, &SOON)?);
    checks.extend(exhaust_instance(setting, 2, &SOON)?);
    Ok(checks)
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for cpus in [1, 2, 4] {
        checks.extend(exhaust_kernel(setting, cpus, &[])?);
        checks.extend(exhaust_instance(setting, cpus, &[])?);
    }
    Ok(checks)
}

/// An unprivileged user makes kernel objects of each kind, and the kernel outlives it.
fn exhaust_kernel(setting: &Setting, cpus: u32, kinds: &[&str]) -> Result<Vec<Check>> {
    let (machine, said) = run_machine(setting, cpus, "96M", "exhaust-kernel", kinds)?;
    let mut checks = kinds_of(&said, &format!("{cpus} processors"));
    checks.push(Check::new(
        format!("the machine with {cpus} processors ran to its end"),
        machine,
    ));
    Ok(checks)
}

/// The same in an instance of 48 MiB, which runs to its end.
fn exhaust_instance(setting: &Setting, cpus: u32, kinds: &[&str]) -> Result<Vec<Check>> {
    let mut machine = machine(setting, &format!("exhaust-instance-{cpus}"))?;
    machine.hardware.cpus = cpus + 1;
    machine.hardware.memory = "256M".into();
    let script = format!(
        "mkdir -p r/bin && cp /bin/machine-tests r/bin && \
         skerry run --cpus {cpus} --mem 48M --rootfs r -- /bin/machine-tests exhaust-kernel {}",
        kinds.join(" ")
    );
    machine.command = ["sh", "-c", &script].map(OsString::from).into();
    let ran = run_to_end(&machine)?;
    let place = format!("{cpus} processors of an instance");
    let mut checks = kinds_of(&ran.said, &place);
    checks.push(Check::new(format!("{place} ran to their end"), ran.judged));
    Ok(checks)
}

/// A check for each kind that `machine-tests exhaust-kernel` has told of.
fn kinds_of(said: &str, place: &str) -> Vec<Check> {
    said.lines()
        .filter_map(|line| {
            let (result, rest) = match line.strip_prefix("not ok ") {
                Some(rest) => (false, rest),
                None => (true, line.strip_prefix("ok ")?),
            };
            let (kind, detail) = rest.split_once(": ")?;
            let detail = detail.to_owned();
            Some(Check::new(
                format!("{kind} until there is no memory on {place} end no kernel"),
                if result {
                    Ok(detail)
                } else {
                    Err(anyhow!(detail))
                },
            ))
        })
        .collect()
}

/// A machine with the test program in it.
fn machine(setting: &Setting, name: &str) -> Result<Machine> {
    let mut machine = setting.machine(name);
    machine.timeout = Some(Duration::from_secs(600));
    machine.additions.push(Addition {
        host: build::test_programs()?.program("machine-tests"),
        guest: "/bin/machine-tests".into(),
    });
    Ok(machine)
}

/// End of a machine's run, and what its command printed.
struct Ran {
    judged: Result<String>,
    said: String,
}

/// Runs a machine, which must power off after its command has ended well.
fn run_to_end(machine: &Machine) -> Result<Ran> {
    let run = machine.run_collected()?;
    let judge = || {
        let told = || {
            format!(
                "{}{}; the log ends:\n{}",
                run.output,
                run.complaints,
                last_lines(&machine.log, 25)
            )
        };
        ensure!(
            run.ending == Ending::Exited(0),
            "{:?}: {}",
            run.ending,
            told()
        );
        ensure!(run.powered_off, "it did not power off: {}", told());
        Ok(String::new())
    };
    Ok(Ran {
        judged: judge(),
        said: run.output,
    })
}

/// Runs `machine-tests` on a supervisor; how that ended, and what it printed.
fn run_machine(
    setting: &Setting,
    cpus: u32,
    memory: &str,
    command: &str,
    arguments: &[&str],
) -> Result<(Result<String>, String)> {
    let mut machine = machine(setting, &format!("{command}-{cpus}"))?;
    machine.hardware.cpus = cpus;
    machine.hardware.memory = memory.into();
    machine.append = format!("supervisor_cpus={cpus}");
    machine.command = ["/bin/machine-tests", command]
        .iter()
        .chain(arguments)
        .map(OsString::from)
        .collect();
    let Ran { judged, said } = run_to_end(&machine)?;
    let judged = judged.and_then(|_| {
        let log = std::fs::read_to_string(&machine.log)?;
        ensure!(
            log.contains("Out of memory: Killed process") && log.contains("(machine-tests)"),
            "nobody is named: {said}"
        );
        Ok(String::new())
    });
    Ok((judged, said))
}

fn exhaust(setting: &Setting, cpus: u32) -> Result<String> {
    let (machine, said) = run_machine(setting, cpus, "160M", "exhaust", &[&cpus.to_string()])?;
    machine?;
    Ok(said.trim().trim_start_matches("ok exhaust: ").to_owned())
}
