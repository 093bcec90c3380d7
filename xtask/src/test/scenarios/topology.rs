//! Processors that are threads of one core: what the supervisor and an instance say of them, and
//! how tasks are spread over them.

use anyhow::Result;

use crate::build;
use crate::test::batch::{self, Expect::Text, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Machine};

const GUEST: &str = "/bin/machine-tests";

/// Checks of `tests/programs`.
const NAMES: [&str; 3] = [
    "topology-as-processors-say",
    "topology-siblings-used-last",
    "topology-siblings-used-first",
];

const LISTS: &str = "cd /sys/devices/system/cpu; cat cpu*/topology/thread_siblings_list; echo; \
     cat cpu*/topology/package_cpus_list; echo; \
     cat smt/active; grep -E 'siblings|cpu cores' /proc/cpuinfo | sort -u";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let program = build::test_programs()?.program("machine-tests");
    let machine = |supervisor_cpus: u32| -> Machine {
        let mut machine = setting.machine(&format!("supervisor-of-{supervisor_cpus}"));
        (machine.hardware.cpus, machine.hardware.threads) = (4, 2);
        machine.append = format!("supervisor_cpus={supervisor_cpus}");
        machine.additions.push(Addition {
            host: program.clone(),
            guest: GUEST.into(),
        });
        machine
    };
    let seen = "0-1\n0-1\n2-3\n2-3\n\n0-3\n0-3\n0-3\n0-3\n\n1\ncpu cores\t: 2\nsiblings\t: 4";
    let mut steps = vec![Step::new(
        "two cores of two threads",
        LISTS,
        Text(seen.into()),
    )];
    steps.extend(NAMES.map(|name| step(name, "")));
    let mut checks = batch::run(machine(4), &steps)?;
    // The sibling of the instance's first processor is the supervisor's.
    let seen = "0\n1-2\n1-2\n\n0-2\n0-2\n0-2\n\n1\ncpu cores\t: 2\nsiblings\t: 3";
    let run = "skerry run --cpus 3 --";
    let mut steps = vec![Step::new(
        "an instance has a core and a thread of another",
        format!("{run} sh -c \"{LISTS}\""),
        Text(seen.into()),
    )];
    steps.extend(NAMES.map(|name| step(name, run)));
    checks.extend(batch::run(machine(1), &steps)?);
    Ok(checks)
}

fn step(name: &'static str, before: &str) -> Step {
    let place = if before.is_empty() {
        "in the supervisor"
    } else {
        "in an instance"
    };
    Step::new(
        format!("{name}, {place}"),
        format!("{before} {GUEST} {name} | sed s/^ok.*/ok/"),
        Text("ok".into()),
    )
}
