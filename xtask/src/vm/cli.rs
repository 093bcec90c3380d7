//! `cargo xtask vm`.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{Addition, Ending, Kernel, Machine, Outcome, Streams, last_lines};
use crate::paths;
use crate::qemu::{Board, Firmware, Hardware, Iommu};

/// The exit status for a command that did not end in time.
const TIMED_OUT: u8 = 124;
/// The exit status for a machine that panicked or reset, or could not be started.
const DIED: u8 = 125;
/// The exit status when the user ended the machine from its terminal.
const STOPPED: u8 = 130;
/// Log lines shown when the machine died.
const LOG_LINES: usize = 40;

/// Boot a machine and run one command in it.
///
/// The command's standard output and error come out here, unmixed with kernel log lines; its exit
/// status is this program's: 124 if it did not end in time, 125 if the machine panicked or reset.
#[derive(Args)]
pub struct Arguments {
    /// Processors
    #[arg(long, default_value_t = 4, value_name = "N")]
    cpus: u32,
    /// Threads of each core: divides the number of processors
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Memory
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    mem: String,
    /// Add a file or folder of the host to the machine
    #[arg(long, value_name = "HOST:GUEST", value_parser = parse_addition)]
    add: Vec<Addition>,
    /// The kernel to boot: `skerry`, or `linux=VMLINUZ`
    #[arg(long, default_value = "skerry", value_parser = parse_kernel, value_name = "KERNEL")]
    kernel: Kernel,
    /// The board
    #[arg(long, value_enum, default_value_t)]
    machine: Board,
    /// Boot from an ISO image through this firmware and GRUB
    #[arg(long, value_enum, value_name = "FIRMWARE")]
    iso: Option<Firmware>,
    /// Append to the kernel command line
    #[arg(long, default_value = "", value_name = "WORDS")]
    append: String,
    /// Virtual time counts instructions (deterministic with one processor)
    #[arg(long)]
    icount: bool,
    /// Stop before the first instruction and wait for gdb
    #[arg(long)]
    gdb: bool,
    /// Seconds from power-on to the command's end; 0 is for ever
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
    /// Where the kernel log goes [default: target/vm.log]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Give the command this terminal (Ctrl-A x ends the machine)
    #[arg(long)]
    tty: bool,
    /// Attach a virtio disk, whose contents are this file's; may be given several times
    #[arg(long, value_name = "FILE")]
    disk: Vec<PathBuf>,
    /// Attach a virtio network card to what QEMU's `-netdev` calls so, such as `user` or
    /// `user,hostfwd=tcp:127.0.0.1:8080-:80`; may be given several times
    #[arg(long, value_name = "NETDEV")]
    net: Vec<OsString>,
    /// Have a unit confine what devices read and write
    #[arg(long, value_enum, value_name = "KIND")]
    iommu: Option<Iommu>,
    /// Another argument for QEMU
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu_arg: Vec<OsString>,
    /// The command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

fn parse_addition(text: &str) -> Result<Addition, String> {
    let (host, guest) = text.rsplit_once(':').ok_or("expected HOST:GUEST")?;
    if !guest.starts_with('/') || host.is_empty() {
        return Err("expected HOST:GUEST with an absolute GUEST".into());
    }
    Ok(Addition {
        host: host.into(),
        guest: guest.into(),
    })
}

pub fn parse_kernel(text: &str) -> Result<Kernel, String> {
    match text.split_once('=') {
        None if text == "skerry" => Ok(Kernel::Skerry),
        Some(("linux", image)) if !image.is_empty() => Ok(Kernel::Linux(image.into())),
        _ => Err("expected `skerry` or `linux=VMLINUZ`".into()),
    }
}

/// Carries out `cargo xtask vm`.
pub fn run(arguments: Arguments) -> ExitCode {
    match try_run(arguments) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(DIED)
        }
    }
}

fn try_run(arguments: Arguments) -> Result<ExitCode> {
    ensure!(
        arguments.cpus.is_multiple_of(arguments.threads),
        "{} processors are not a whole number of cores with {} threads",
        arguments.cpus,
        arguments.threads
    );
    // Held until the end: it tells others that the default log is taken.
    let (log, _taken) = match arguments.log {
        Some(log) => (log, None),
        None => default_log()?,
    };
    let machine = Machine {
        kernel: arguments.kernel,
        hardware: Hardware {
            board: arguments.machine,
            cpus: arguments.cpus,
            threads: arguments.threads,
            memory: arguments.mem,
            icount: arguments.icount,
            disks: arguments.disk,
            iommu: arguments.iommu,
            networks: arguments.net,
            gdb: arguments.gdb,
            extra: arguments.qemu_arg,
        },
        additions: arguments.add,
        append: arguments.append,
        timeout: (arguments.timeout > 0 && !arguments.gdb)
            .then(|| Duration::from_secs(arguments.timeout)),
        log,
        command: arguments.command,
        firmware: arguments.iso,
    };
    if machine.hardware.gdb {
        let kernel = paths::target().join("skerry.elf");
        eprintln!(
            "xtask: the machine waits: gdb {} -ex 'target remote :1234' -ex 'hbreak kernel_main' -ex continue",
            kernel.display()
        );
    }
    let outcome = if arguments.tty {
        machine.run_on_terminal()?
    } else {
        let streams = Streams {
            input: Box::new(io::stdin()),
            output: &mut io::stdout(),
            error: &mut io::stderr(),
        };
        machine.run(streams)?
    };
    exit_code(&machine, &outcome)
}

/// `target/vm.log`, or a log of its own for a machine that runs beside another one.
fn default_log() -> Result<(PathBuf, Option<File>)> {
    let usual = paths::target().join("vm.log");
    let file = File::options()
        .create(true)
        .append(true)
        .open(&usual)
        .with_context(|| format!("cannot write {}", usual.display()))?;
    match file.try_lock() {
        Ok(()) => Ok((usual, Some(file))),
        Err(_) => {
            let own = paths::target().join(format!("vm-{}.log", std::process::id()));
            eprintln!(
                "xtask: another machine writes {}; this one's kernel log is {}",
                usual.display(),
                own.display()
            );
            Ok((own, None))
        }
    }
}

/// Tells how a run ended, where that is not the command's own business, and returns the exit status
/// for it.
pub fn exit_code(machine: &Machine, outcome: &Outcome) -> Result<ExitCode> {
    let status = match &outcome.ending {
        Ending::Exited(status) => {
            if !outcome.powered_off {
                eprintln!("xtask: the machine did not power off by itself");
            }
            u8::try_from(*status)
                .with_context(|| format!("the agent reported the status {status}"))?
        }
        Ending::Stopped => STOPPED,
        Ending::TimedOut => {
            let seconds = machine.timeout.unwrap_or_default().as_secs();
            eprintln!(
                "xtask: no end after {seconds} s; the kernel log is in {}",
                machine.log.display()
            );
            TIMED_OUT
        }
        Ending::Died(reason) => {
            let colon = if reason.is_empty() { "" } else { ": " };
            eprintln!("xtask: the machine stopped before the command ended{colon}{reason}");
            eprintln!(
                "xtask: the last lines of {}:\n{}",
                machine.log.display(),
                last_lines(&machine.log, LOG_LINES)
            );
            DIED
        }
    };
    Ok(ExitCode::from(status))
}
