//! `cargo xtask demo`, which is `make run`: boots a machine and shows what Skerry does.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Result;

use crate::cleanup::Directory;
use crate::vm::{Addition, Machine, Streams, cli};

/// Script of the demonstration, for the machine.
const SCRIPT: &str = include_str!("../../tests/demo.sh");
/// Time limit for the kernel's first line.
const BOOT_TIME: Duration = Duration::from_secs(60);

/// Boots the machine and runs the script; then, on a terminal, a shell.
pub fn run() -> Result<ExitCode> {
    let directory = Directory::create()?;
    let script = directory.join("demo.sh");
    fs::write(&script, SCRIPT)?;
    let interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
    let after = if interactive {
        "\nsay 'This is a shell on the supervisor; `skerry help` tells what there is to do, `exit` powers off.'\ncd /root\nexec sh -l"
    } else {
        ""
    };
    fs::write(&script, format!("{SCRIPT}{after}\n"))?;
    let machine = Machine {
        additions: vec![Addition {
            host: script,
            guest: "/demo.sh".into(),
        }],
        timeout: (!interactive).then_some(Duration::from_secs(300)),
        command: ["/bin/sh", "/demo.sh"].map(OsString::from).to_vec(),
        ..Machine::default()
    };
    println!(
        "Starting a machine of 4 processors and 2 GiB in QEMU; its kernel log is in {}.",
        machine.log.display()
    );
    machine.prepare()?;
    let log = machine.log.clone();
    thread::spawn(move || show_first_line(&log));
    let outcome = if interactive {
        machine.run_on_terminal()?
    } else {
        machine.run(Streams {
            input: Box::new(io::empty()),
            output: &mut io::stdout(),
            error: &mut io::stderr(),
        })?
    };
    cli::exit_code(&machine, &outcome)
}

/// Shows the supervisor's first line as soon as it is in the log.
fn show_first_line(log: &Path) {
    let deadline = Instant::now() + BOOT_TIME;
    while Instant::now() < deadline {
        let text = fs::read_to_string(log).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        if let Some(line) = whole.lines().find(|line| line.contains("Skerry")) {
            print!("{}\r\n", line.trim_end());
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
