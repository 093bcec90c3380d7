//! Checks of the Linux interface from inside: an ordinary static program that knows nothing of the
//! kernel it runs on.
//!
//! `machine-tests list` prints the checks' names; `machine-tests NAME` runs one and prints
//! `ok NAME`, or says what is wrong and exits with status 1. Every check passes on Linux.
//! `machine-tests stress` prints the names of those that run longer, `machine-tests wake-ups N`
//! does as many of one of them as it is told, `machine-tests quiet` counts interrupts as only
//! Skerry shows them, `machine-tests batch …` runs the checks of a list, and `machine-tests fuzz …`
//! is `cargo xtask fuzz syscalls` inside the machine.

mod administration;
mod alone;
mod areas;
mod arrivals;
mod calls;
mod canary;
mod coherence;
mod credentials;
mod datagrams;
mod descriptors;
mod events;
mod exhaust;
mod filecaps;
mod files;
mod futexes;
mod fuzz;
mod handles;
mod inet;
mod inet_sockets;
mod ipc;
mod jobs;
mod klog;
mod large_pages;
mod layout;
mod leaks;
mod leases;
mod listeners;
mod listening;
mod locks;
mod mappings;
mod masks;
mod memory;
mod mounts;
mod namespaces;
mod newmounts;
mod notices;
mod numbers;
mod openings;
mod others;
mod packets;
mod partial_transfers;
mod pressure;
mod proc;
mod processes;
mod ptys;
mod queues;
mod quiet;
mod readiness;
mod refusals;
mod runner;
mod running;
mod scheduling;
mod scm_rights;
mod seccomp;
mod sequences;
mod settings;
mod shootdowns;
mod signals;
mod sockets;
mod spaces;
mod splicing;
mod surveys;
mod threads;
mod time;
mod tokio_server;
mod topology;
mod tracing;
mod transfers;
mod trees;
mod urgent;
mod used;
mod vectors;
mod wakes;
mod wakings;
mod watching;
mod watchpoints;
mod xattrs;

use std::process::ExitCode;

use anyhow::Result;

/// A check: it returns when what its name says has been seen to be so.
type Check = fn() -> Result<()>;

fn checks() -> Vec<(&'static str, Check)> {
    [
        threads::CHECKS,
        futexes::CHECKS,
        scheduling::CHECKS,
        topology::CHECKS,
        signals::CHECKS,
        memory::CHECKS,
        spaces::CHECKS,
        coherence::CHECKS,
        shootdowns::CHECKS,
        mappings::CHECKS,
        areas::CHECKS,
        large_pages::CHECKS,
        layout::CHECKS,
        sequences::CHECKS,
        files::CHECKS,
        openings::CHECKS,
        splicing::CHECKS,
        trees::CHECKS,
        wakes::CHECKS,
        watching::CHECKS,
        leases::CHECKS,
        handles::CHECKS,
        mounts::CHECKS,
        namespaces::CHECKS,
        newmounts::CHECKS,
        xattrs::CHECKS,
        ptys::CHECKS,
        readiness::CHECKS,
        pressure::CHECKS,
        proc::CHECKS,
        processes::CHECKS,
        running::CHECKS,
        jobs::CHECKS,
        credentials::CHECKS,
        filecaps::CHECKS,
        seccomp::CHECKS,
        listeners::CHECKS,
        settings::CHECKS,
        used::CHECKS,
        tracing::CHECKS,
        watchpoints::CHECKS,
        time::CHECKS,
        vectors::CHECKS,
        ipc::CHECKS,
        surveys::CHECKS,
        queues::CHECKS,
        klog::CHECKS,
        sockets::CHECKS,
        scm_rights::CHECKS,
        urgent::CHECKS,
        arrivals::CHECKS,
        notices::CHECKS,
        listening::CHECKS,
        administration::CHECKS,
        packets::CHECKS,
        inet::CHECKS,
        datagrams::CHECKS,
        tokio_server::CHECKS,
        events::CHECKS,
        refusals::CHECKS,
        descriptors::CHECKS,
        masks::CHECKS,
        others::CHECKS,
        wakings::CHECKS,
        transfers::CHECKS,
        partial_transfers::CHECKS,
        numbers::CHECKS,
        leaks::CHECKS,
    ]
    .concat()
}

/// Checks that run longer.
fn stress() -> Vec<(&'static str, Check)> {
    [scheduling::STRESS, locks::STRESS].concat()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => print_names(&checks()),
        ["stress"] => print_names(&stress()),
        ["wake-ups", count] => report(
            "wake-ups",
            count
                .parse()
                .map_err(Into::into)
                .and_then(scheduling::wake_ups),
        ),
        ["quiet"] => report("quiet", quiet::run()),
        ["child", what @ ..] => processes::child(what),
        ["credentials-child", what @ ..] => credentials::child(what),
        ["layout-child"] => layout::child(),
        ["descriptors-child"] => descriptors::child(),
        ["canary", what] => canary::run(what),
        ["fuzz", arguments @ ..] => fuzz::run(arguments),
        ["fuzz-show", arguments @ ..] => fuzz::show(arguments),
        ["batch", jobs, seconds, list] => runner::run([jobs, seconds, list]),
        ["exhaust", processes] => exhaust::run(processes),
        [name] => match checks()
            .iter()
            .chain(&stress())
            .find(|(known, _)| known == name)
        {
            Some((_, check)) => report(name, check()),
            None => {
                eprintln!("no check is called {name}; `machine-tests list` names them");
                ExitCode::from(2)
            }
        },
        _ => {
            eprintln!("usage: machine-tests list | machine-tests NAME");
            ExitCode::from(2)
        }
    }
}

fn print_names(checks: &[(&str, Check)]) -> ExitCode {
    for (name, _) in checks {
        println!("{name}");
    }
    ExitCode::SUCCESS
}

fn report(name: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => {
            println!("ok {name}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("not ok {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `result` of a C library call, or the error it left in `errno`.
fn checked(result: libc::c_int) -> std::io::Result<libc::c_int> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
