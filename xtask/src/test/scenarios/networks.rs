//! Networks of instances: who reaches whom, and what becomes of it when one ends.

use std::time::Duration;

use anyhow::Result;

use crate::build;
use crate::test::{Check, Setting, batch};
use crate::vm::Addition;

const CASES: &str = include_str!("../../../../tests/cases/networks.cases");

/// Command line of the supervisor: it has a name server to tell of, and no card.
const COMMAND_LINE: &str = "ip=10.0.2.15::10.0.2.2:255.255.255.0::eth0:off:10.0.2.3";

/// A program of Debian's that asks for names by its C library, with that library.
const PROGRAMS: [(&str, &str); 3] = [
    ("/usr/bin/getent", "/usr/bin/getent"),
    (
        "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "/lib64/ld-linux-x86-64.so.2",
    ),
    (
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libc.so.6",
    ),
];

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("networks");
    machine.hardware.cpus = 5;
    machine.timeout = Some(Duration::from_secs(600));
    machine.append = COMMAND_LINE.into();
    for (host, guest) in PROGRAMS {
        machine.additions.push(Addition {
            host: host.into(),
            guest: guest.into(),
        });
    }
    machine.additions.push(Addition {
        host: build::test_programs()?.program("machine-tests"),
        guest: "/bin/machine-tests".into(),
    });
    let steps = batch::steps(CASES, &[])?;
    let steps: Vec<_> = steps.into_iter().map(|step| step.limit(240)).collect();
    batch::run(machine, &steps)
}
