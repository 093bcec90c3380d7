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

/// Function that prints what `resources` shows of cores and processors, in short.
const RESOURCES: &str = "resources() { skerry resources | grep -v memory | \
     sed -n 's/  */ /g; s/ withheld.*/ withheld/; /[0-9]/p'; }";

/// The supervisor has a thread of one core; the other is free.
const WITHHELD: &str = "
resources
for smt in deny allow; do
    message=$(skerry run --cpus 3 --smt $smt -- true 2>&1)
    echo \"status $?, $(echo \"$message\" | sed 's/skerry: //; s/ withheld,.*/ withheld)/')\"
done";

/// One instance has a thread of the free core, and another wants the other.
const SHARED: &str = "
skerry run -d --name one --smt allow -- sleep 1000 >/dev/null
skerry run -- true >/dev/null 2>&1; echo \"denied beside allow: $?\"
skerry run --smt allow -- true >/dev/null 2>&1; echo \"allowed beside allow: $?\"
skerry rm --force one >/dev/null
skerry run -d --name one -- sleep 1000 >/dev/null
echo while one has a thread:; resources
skerry run --smt allow -- true >/dev/null 2>&1; echo \"allowed beside deny: $?\"
skerry rm --force one >/dev/null
echo afterwards:; resources";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let program = build::test_programs()?.program("machine-tests");
    let machine = |supervisor_cpus: u32| -> Machine {
        let mut machine = setting.machine(&format!("supervisor-of-{supervisor_cpus}"));
        (machine.hardware.cpus, machine.hardware.threads) = (4, 2);
        machine.append = format!("supervisor_cpus={supervisor_cpus} mitigations=auto");
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
    // The sibling of the supervisor's processor is nobody's.
    let seen = "0-1\n0-1\n\n0-1\n0-1\n\n1\ncpu cores\t: 1\nsiblings\t: 2";
    let run = "skerry run --cpus 2 --";
    let mut steps = vec![
        Step::new(
            "an instance has a whole core",
            format!("{run} sh -c \"{LISTS}\""),
            Text(seen.into()),
        ),
        Step::new(
            "the sibling of the supervisor's thread is withheld, even from those that share",
            format!("{RESOURCES}{WITHHELD}"),
            Text(
                "cores 2 1 0 1 0 0\nCPUs 4 1 0 2 0 0\n1 CPU is withheld\n\
                 status 125, only 2 CPUs are free (asked for 3; 1 withheld)\n\
                 status 125, only 2 CPUs are free (asked for 3; 1 withheld)"
                    .into(),
            ),
        ),
        Step::new(
            "two instances share a core only if both allow it",
            format!("{RESOURCES}{SHARED}"),
            Text(
                "denied beside allow: 125\nallowed beside allow: 0\nwhile one has a thread:\n\
                 cores 2 1 1 0 0 0\nCPUs 4 1 1 0 0 0\n2 CPUs are withheld\n\
                 allowed beside deny: 125\nafterwards:\ncores 2 1 0 1 0 0\nCPUs 4 1 0 2 0 0\n\
                 1 CPU is withheld"
                    .into(),
            ),
        ),
        Step::new(
            "an instance has the supervisor's choice of mitigations, or its own behind it",
            "skerry run -- cat /proc/cmdline; \
             skerry run --kernel-args mitigations=off -- cat /proc/cmdline",
            Text("mitigations=auto \nmitigations=auto mitigations=off".into()),
        ),
    ];
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
