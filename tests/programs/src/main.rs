//! Checks of the Linux interface from inside: an ordinary static program that knows nothing of the
//! kernel it runs on.
//!
//! `machine-tests list` prints the checks' names; `machine-tests NAME` runs one and prints
//! `ok NAME`, or says what is wrong and exits with status 1. Every check passes on Linux.
//! `machine-tests stress` prints the names of those that run longer, `machine-tests wake-ups N`
//! does as many of one of them as it is told, `machine-tests quiet` counts interrupts as only
//! Skerry shows them, `machine-tests batch …` runs the checks of a list, and `machine-tests fuzz …`
//! is `cargo xtask fuzz syscalls` inside the machine. `machine-tests stop-threads …` and
//! `hold-thread …` run beside the machine instead, and make it late.

mod acls;
mod af_packet;
mod bad_memory;
mod busy_loops;
mod calls;
mod canary;
mod clock_discipline;
mod core_dumps;
mod corks;
mod credentials;
mod datagrams;
mod disconnects;
mod empty_transfers;
mod errnos;
mod error_queue;
mod event_fds;
mod exclusive;
mod exhaust;
mod exhaust_kernel;
mod failures;
mod fd_flags;
mod file_attributes;
mod file_handles;
mod file_requests;
mod filecaps;
mod files;
mod fpu_state;
mod futexes;
mod fuzz;
mod growth;
mod inet;
mod inet_sockets;
mod inotify;
mod ipc;
mod isolation;
mod job_control;
mod kernel_settings;
mod klog;
mod large_pages;
mod layout;
mod leaks;
mod leases;
mod leaving_cpus;
mod limits;
mod locks;
mod loop_devices;
mod lost_wakeups;
mod mappings;
mod meminfo;
mod memory;
mod message_groups;
mod messages;
mod mm_queries;
mod mm_stress;
mod mount_api;
mod mounts;
mod moved_pages;
mod mqueue;
mod msg_oob;
mod name_servers;
mod namespaces;
mod net_admin;
mod new_cpus;
mod open_files;
mod other_processes;
mod overruns;
mod partial_transfers;
mod paths;
mod paused;
mod prctl;
mod precedence;
mod pressure;
mod proc;
mod processes;
mod ptrace;
mod ptrace_queries;
mod ptys;
mod quiet;
mod raw_sockets;
mod receive_options;
mod rseq;
mod runner;
mod rusage;
mod scheduling;
mod scm_rights;
mod seccomp;
mod seccomp_notify;
mod settings;
mod shootdowns;
mod sigio;
mod signal_masks;
mod signals;
mod sockets;
mod splice;
mod stopper;
mod sysv_info;
mod taskstats;
mod text_busy;
mod threads;
mod time;
mod tlb_coherence;
mod tokio_server;
mod topology;
mod transfers;
mod tun;
mod unrefused;
mod user_limits;
mod users;
mod wake_reasons;
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
        core_dumps::CHECKS,
        overruns::CHECKS,
        precedence::CHECKS,
        corks::CHECKS,
        meminfo::CHECKS,
        memory::CHECKS,
        mm_stress::CHECKS,
        tlb_coherence::CHECKS,
        shootdowns::CHECKS,
        isolation::CHECKS,
        mappings::CHECKS,
        mm_queries::CHECKS,
        large_pages::CHECKS,
        layout::CHECKS,
        rseq::CHECKS,
        files::CHECKS,
        open_files::CHECKS,
        splice::CHECKS,
        paths::CHECKS,
        lost_wakeups::CHECKS,
        loop_devices::CHECKS,
        inotify::CHECKS,
        leases::CHECKS,
        file_attributes::CHECKS,
        file_handles::CHECKS,
        file_requests::CHECKS,
        mounts::CHECKS,
        namespaces::CHECKS,
        mount_api::CHECKS,
        xattrs::CHECKS,
        ptys::CHECKS,
        sigio::CHECKS,
        pressure::CHECKS,
        proc::CHECKS,
        processes::CHECKS,
        text_busy::CHECKS,
        job_control::CHECKS,
        credentials::CHECKS,
        filecaps::CHECKS,
        seccomp::CHECKS,
        seccomp_notify::CHECKS,
        prctl::CHECKS,
        rusage::CHECKS,
        ptrace::CHECKS,
        ptrace_queries::CHECKS,
        watchpoints::CHECKS,
        time::CHECKS,
        clock_discipline::CHECKS,
        fpu_state::CHECKS,
        ipc::CHECKS,
        sysv_info::CHECKS,
        mqueue::CHECKS,
        klog::CHECKS,
        sockets::CHECKS,
        scm_rights::CHECKS,
        msg_oob::CHECKS,
        receive_options::CHECKS,
        error_queue::CHECKS,
        acls::CHECKS,
        af_packet::CHECKS,
        tun::CHECKS,
        net_admin::CHECKS,
        taskstats::CHECKS,
        raw_sockets::CHECKS,
        inet::CHECKS,
        datagrams::CHECKS,
        disconnects::CHECKS,
        tokio_server::CHECKS,
        event_fds::CHECKS,
        empty_transfers::CHECKS,
        errnos::CHECKS,
        fd_flags::CHECKS,
        signal_masks::CHECKS,
        other_processes::CHECKS,
        users::CHECKS,
        kernel_settings::CHECKS,
        settings::CHECKS,
        wake_reasons::CHECKS,
        transfers::CHECKS,
        partial_transfers::CHECKS,
        limits::CHECKS,
        user_limits::CHECKS,
        leaks::CHECKS,
        failures::CHECKS,
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
        ["descriptors-child"] => fd_flags::child(),
        ["core-dump-take", arguments @ ..] => core_dumps::take(arguments),
        ["core-dump-ignore", arguments @ ..] => core_dumps::ignore(arguments),
        ["canary", arguments @ ..] => canary::run(arguments),
        ["growth", bytes] => growth::run(bytes),
        ["moved-pages", kib, done] => moved_pages::run(kib, done),
        ["unrefused", done] => unrefused::run(done),
        ["messages-echo", file] => messages::echo(file),
        ["messages-ping", file, count, way] => messages::ping(file, count, way),
        ["messages-flood", file] => messages::flood(file),
        ["messages-check", file, count, ends] => messages::check(file, count, ends),
        ["messages-errors", file] => messages::errors(file),
        ["groups-echo", file] => message_groups::echo(file),
        ["groups-ask", file, count, members] => message_groups::ask(file, count, members),
        ["groups-flood", file] => message_groups::flood(file),
        ["groups-check", file, count, senders] => message_groups::check(file, count, senders),
        ["groups-errors", file] => message_groups::errors(file),
        ["new-cpus", count] => new_cpus::run(count),
        ["leaving-cpus"] => leaving_cpus::leave_and_return(),
        ["changing-cpus"] => leaving_cpus::change(),
        ["paused"] => paused::run(),
        ["usage"] => paused::usage(),
        ["bad-memory"] => bad_memory::run(),
        ["name-server", address] => name_servers::serve(address),
        ["name-nonsense", server, count] => name_servers::pester(server, count),
        ["real-time-loop"] => busy_loops::real_time(),
        ["ordinary-loop"] => busy_loops::ordinary(),
        ["hold-thread", process, number] => stopper::hold([process, number]),
        ["stop-threads", process, seed] => stopper::run([process, seed]),
        ["fuzz", arguments @ ..] => fuzz::run(arguments),
        ["fuzz-executables", arguments @ ..] => fuzz::run_executables(arguments),
        ["fuzz-ioctls", arguments @ ..] => fuzz::run_ioctls(arguments),
        ["fuzz-show", arguments @ ..] => fuzz::show(arguments),
        ["batch", jobs, seconds, list] => runner::run([jobs, seconds, list]),
        ["failures", name] => failures::run(name),
        ["exhaust", processes] => exhaust::run(processes),
        ["exhaust-kernel", kinds @ ..] => exhaust_kernel::run(kinds),
        ["exhaust-kernel-pause", ..] => exhaust_kernel::pause_for_ever(),
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
