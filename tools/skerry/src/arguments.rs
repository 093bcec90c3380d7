//! The command line's commands and options, as clap reads them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exec::parse_user;
use crate::instances::OnHang;
use crate::loans::{Class, CpuRange};
use crate::metrics;
use crate::networks::Network;
use crate::pages::Shell;
use crate::ports::Port;
use crate::restart::Policy;
use crate::root_disk::RootDisk;
use crate::subnets::Range;

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
    pub(crate) command: AnyCommand,
}

#[expect(
    clippy::large_enum_variant,
    reason = "there is one in a process, and it does not move"
)]
#[derive(Debug, Subcommand)]
pub(crate) enum AnyCommand {
    #[command(flatten)]
    Manage(Command),
    #[command(flatten)]
    Observe(ObserveCommand),
    #[command(flatten)]
    Pages(PagesCommand),
}

/// Texts about this program, for which no supervisor is needed.
#[derive(Debug, Subcommand)]
pub(crate) enum PagesCommand {
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
pub(crate) enum ObserveCommand {
    /// Show what the CPUs do, who has them, and which locks are waited for
    Top(Top),
    /// Record what the kernel does, as a trace that ui.perfetto.dev opens
    Trace(Trace),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create an instance, run a program in it, and return its output and exit status
    Run(Run),
    /// Create an instance without starting it
    Create(Create),
    /// Start created instances
    ///
    /// Other than in docker, one that has ended is started again by `restart` only.
    Start(Start),
    /// End instances: ask their programs, then take their CPUs
    Stop(Stop),
    /// End instances and start them again, as they were created
    ///
    /// Other than in docker, a new instance takes the place and the name of the old one: it has
    /// another number, and a copy of what the root file system is now. The old one is kept for its
    /// logs (`logs --previous`) until the next one takes its place.
    Restart(Restart),
    /// Give an instance another name
    Rename(Rename),
    /// Have all CPUs of running instances stand still
    ///
    /// Programs notice as little as of `docker pause`: they get no CPU time, and their clocks go
    /// on, so what was to happen meanwhile happens at `unpause`. `logs`, `wait`, `stats`, `kill`
    /// and `rename` work; `stop`, `restart` and `kill` with KILL or TERM unpause, `stop --force`
    /// and `rm --force` end it as it is. Other than in docker, it cannot be resized meanwhile, and
    /// its kernel stands still with its programs.
    Pause(Names),
    /// Have the CPUs of paused instances go on
    Unpause(Names),
    /// Change how many CPUs a running instance has, or give it more memory
    Resize(Resize),
    /// Move CPUs from one instance to another while the other's latency is too high
    ///
    /// One CPU at most at each look. It goes on until it is told to end by a signal, and then gives
    /// back all that was lent. One that was killed is no loss: the next one goes on with its loan.
    Autoscale(Autoscale),
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
    /// Show what instances use: CPU time, memory, streams, interrupts
    ///
    /// A new picture each second, as `docker stats`. Other than there, LIMIT is the memory that the
    /// instance has, STREAM I/O what went through its standard streams (in / out), INTERRUPTS what
    /// its CPUs took since its start, SUPERVISOR the CPU time that the supervisor has spent on it,
    /// and THREADS are those of its programs. Figures are the instance's own word, but NET I/O.
    Stats(Stats),
    /// Connect to the program of a running instance
    Attach(Attach),
    /// Run a program beside the first one of a running instance
    ///
    /// As `docker exec`: standard output and error stay apart, and the exit status is the program's
    /// (126 and 127: it could not be executed, was not found). Other than there, signals are passed
    /// on to the program; when this tool ends before it, as after the third interrupt, the program
    /// is told by SIGHUP, and what it writes then leads nowhere; users are numbers. An instance has
    /// at most four such programs at a time, those of `--detach` not counted.
    Exec(Exec),
    /// Copy files from a running instance, or into it
    ///
    /// As `docker cp`: into a directory, or in place of a file; `DIR/.` is what is in a directory;
    /// `-` is a tar archive on standard output or input. Links are copied as links, files belong to
    /// root (to you, when they come from an instance) without --archive; devices, fifos and sockets
    /// are left out. Other than there, the instance has to run, and it is its own `tar` (and
    /// `test`) that reads and writes its files, as with `kubectl cp`.
    Cp(Cp),
    /// Show the machine's CPUs and memory, and who has them
    Resources(Json),
    /// Make networks of instances, list them, look into them, take them away
    Network {
        #[command(subcommand)]
        command: NetworkCommand,
    },
    /// Give running instances devices, take them back, list those of the machine
    Device {
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Look for what is wrong with the machine, and say what would help
    ///
    /// The exit status is 1 if something does not work; warnings do not count.
    Doctor(Json),
    /// Print figures of the machine and its instances for Prometheus
    Metrics(Metrics),
    /// Wait until instances end, and print their exit statuses
    Wait(Names),
    /// Send a signal to an instance's program
    Kill(Kill),
    /// Make the instances that a file declares, all of them or none
    ///
    /// Like `docker compose up --detach`, but as one transaction: if one instance cannot be created
    /// or its program cannot begin, everything is as it was. More CPUs and memory are given to
    /// instances that run; every other change has a new instance take the place of the old one,
    /// which is stopped when all new ones run. `skerry validate --schema` prints the form of the
    /// file.
    Apply(Apply),
    /// Show what `apply` would do; the exit status is 0 for nothing, 1 for something
    Diff(Diff),
    /// Check a file of declared instances
    Validate(Validate),
    /// Carry out restart policies (it is started when it is needed)
    ///
    /// The state of restarts is written down, and not lost with the monitor: another one goes on
    /// where it was killed. Without `--background` it stays, for an init that starts it again when
    /// it ends.
    Monitor(Monitor),
    /// Show the versions of this program and of the kernel
    Version(Json),
}

/// Commands about devices of running instances.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Give a running instance a PCI function, until it is taken back or the instance ends
    ///
    /// Returns when the instance uses it: a disk is in its /dev, a card among its interfaces. An
    /// instance that is started again begins without it.
    Add {
        /// Also if no IOMMU confines it: it can read and write all memory, the supervisor's too
        #[arg(long)]
        unsafe_dma: bool,
        #[command(flatten)]
        options: DeviceOptions,
    },
    /// Take a PCI function back from a running instance
    ///
    /// Returns when the function was reset and is free. One that is in use (mounted, open, an
    /// interface that is up) stays.
    #[command(visible_alias = "rm")]
    Remove {
        /// Also if it is in use: who uses it gets errors, as when a device is pulled out
        #[arg(short = 'f', long)]
        force: bool,
        #[command(flatten)]
        options: DeviceOptions,
    },
    /// List the PCI functions of the machine, who has them, and if an instance could
    Ls(Json),
}

#[derive(Args, Debug)]
pub(crate) struct DeviceOptions {
    /// Seconds to wait for its answer [default: until it answers]
    #[arg(short = 't', long, value_name = "S")]
    pub(crate) time: Option<u32>,
    /// Say whether it could be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The instance
    pub(crate) name: String,
    /// The function: an address as 0000:01:00.0, or a name as vda, nvme0, eth0 in the machine
    pub(crate) device: String,
}

/// Commands about networks of instances.
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Make a network, whose instances reach each other and the world, but no other network's
    Create {
        /// Addresses of the network [default: the first /24 from 10.89.0.0 on that is free]
        #[arg(long, value_name = "ADDRESS/BITS")]
        subnet: Option<Range>,
        /// The supervisor's address in it [default: the second address of the subnet]
        #[arg(long, value_name = "ADDRESS", requires = "subnet")]
        gateway: Option<Ipv4Addr>,
        /// Name of the network
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List networks
    Ls {
        /// Print only the names
        #[arg(short = 'q', long, conflicts_with = "json")]
        quiet: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Take networks away that no instance has an address of
    Rm(Names),
    /// Show all there is to know about networks, and who is in them
    Inspect(Inspect),
}

#[derive(Args, Debug)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Names {
    /// Their names
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct What {
    /// Name of the instance [default: a made-up one]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How many CPUs it gets; of a range, as many as are free
    #[arg(long, default_value = "1", value_name = "N|N..M")]
    pub(crate) cpus: CpuRange,
    /// Rank when CPUs are short: batch with a range lends CPUs, latency borrows them
    ///
    /// An instance of class latency that lacks CPUs when it is created or resized gets some of
    /// those that instances of class batch have above the least of their range, as long as it runs.
    #[arg(long, value_enum, value_name = "batch|latency")]
    pub(crate) class: Option<Class>,
    /// Whether its cores' threads may be others' too that are created with `allow`
    #[arg(long, value_enum, default_value_t = Smt::Deny, value_name = "deny|allow")]
    pub(crate) smt: Smt,
    /// Policy for a CPU of it that runs on and on with interrupts off
    #[arg(long, value_enum, default_value_t = OnHang::Report, value_name = "report|stop|ignore")]
    pub(crate) on_hang: OnHang,
    /// How much memory it gets: a number and k, m or g
    #[arg(
        short = 'm',
        long = "mem",
        visible_alias = "memory",
        default_value = "64M",
        value_name = "SIZE"
    )]
    pub(crate) memory: String,
    /// PCI function that it gets: its address, as lspci shows it, or its device, such as nvme0, vda
    /// or eth0; may be given several times
    ///
    /// Devices of a kind are counted by their addresses in the machine, whoever has them. A name
    /// that the supervisor's own device has is refused: give the address.
    ///
    /// Its drivers find it at the start, and have its disk or network card; it is reset and free at
    /// the instance's end. The supervisor's own drivers must not have it: start the machine with
    /// `pci.hide=ADDR` on the kernel's command line.
    #[arg(long = "device", value_name = "ADDR|NAME")]
    pub(crate) devices: Vec<String>,
    /// Give devices even if nothing confines their DMA
    ///
    /// Without an IOMMU a device writes wherever its driver, or who broke into that, tells it, in
    /// the memory of the supervisor and of all instances.
    #[arg(long)]
    pub(crate) unsafe_dma: bool,
    /// Network of the instance: none, or a card on the supervisor's switch
    ///
    /// With `bridge` it has an interface `eth0`, with an address of 10.88.0.0/16 and the supervisor
    /// (10.88.0.1) as its gateway and name server before its program begins, as with docker. Other
    /// networks are made by `skerry network create`; their instances do not reach each other's.
    #[arg(
        long = "net",
        visible_alias = "network",
        default_value_t = Network::None,
        value_name = "none|bridge|NAME"
    )]
    pub(crate) network: Network,
    /// Address that it has in that network [default: the lowest that is free]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Option<String>,
    /// Lead a port of the machine to one of the instance (may be given several times)
    ///
    /// Both ports are to be given, other than with docker. It needs a network, and is at all
    /// addresses of the supervisor's unless one is given; 127.0.0.1 is for the supervisor's own
    /// programs.
    #[arg(
        short = 'p',
        long = "publish",
        value_name = "[ADDRESS:]PORT:PORT[/udp]"
    )]
    pub(crate) ports: Vec<Port>,
    /// Instance with which it exchanges messages (may be given eight times)
    ///
    /// It has to be created with this one's name, too, before or after. Programs find the other one
    /// as /dev/skerry-peers/NAME, which is read, written and polled: 64 bytes a message.
    #[arg(long = "peer", value_name = "NAME")]
    pub(crate) peers: Vec<String>,
    /// Group with whose members it exchanges messages (may be given four times)
    ///
    /// Members are all instances that were created with its name. Programs find it as
    /// /dev/skerry-groups/NAME: what is written goes to all other members, and who has no room
    /// misses it.
    #[arg(long = "group", value_name = "NAME")]
    pub(crate) groups: Vec<String>,
    /// Root file system: a folder, a tar archive or a cpio archive [default: a copy of /]
    #[arg(long, value_name = "DIR|TAR|CPIO")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Disk that is its root file system, as its kernel names it: of a device that it is given
    ///
    /// As /dev/vda1, /dev/nvme0n1p1, PARTUUID=…, UUID=… or LABEL=…; read-only with `:ro` behind it.
    /// What programs write stays there: when the program has ended, all of it is written back.
    #[arg(
        long,
        value_name = "DISK[:ro]",
        conflicts_with = "rootfs",
        requires = "devices"
    )]
    pub(crate) root: Option<RootDisk>,
    /// Set a variable of the program's environment, or pass on one of this environment
    #[arg(short = 'e', long = "env", value_name = "K[=V]")]
    pub(crate) env: Vec<String>,
    /// Working directory of the program [default: /]
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    pub(crate) directory: Option<String>,
    /// Host name of the instance [default: its name]
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname: Option<String>,
    /// Give the program a terminal
    #[arg(short = 't', long = "tty")]
    pub(crate) terminal: bool,
    /// Print the programs' system calls, as strace does
    #[arg(long)]
    pub(crate) trace: bool,
    /// Policy for its end: no, on-failure (or on-failure:N, at most N times) or always
    ///
    /// Delays are docker's: 0.1 s, then twice as long each time up to a minute; 0.1 s again after a
    /// life of 10 s. `always` is docker's `unless-stopped`: what somebody has stopped stays so.
    #[arg(long, default_value_t = Policy::No, value_name = "POLICY")]
    pub(crate) restart: Policy,
    /// More for the command line of the instance's kernel
    #[arg(long = "kernel-args", value_name = "ARGS", default_value = "")]
    pub(crate) kernel: String,
    /// The program, looked for in PATH, and its arguments
    #[arg(
        value_name = "PROG",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<String>,
}

/// Whether an instance's cores are its own.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Smt {
    /// Nobody else has threads of its cores.
    #[default]
    Deny,
    /// Others that allow it, too, may have threads of its cores.
    Allow,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) what: What,
    /// Remove the instance when it has ended
    #[arg(long, conflicts_with = "restart")]
    pub(crate) rm: bool,
    /// Print the instance's name and do not wait for it
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Connect standard input (it is, unless detached; for those used to it)
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) what: What,
}

#[derive(Args, Debug)]
pub(crate) struct Start {
    /// Connect to the program, as `run` does
    #[arg(short = 'a', long)]
    pub(crate) attach: bool,
    /// Connect standard input too
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    #[command(flatten)]
    pub(crate) names: Names,
}

#[derive(Args, Debug)]
pub(crate) struct Stop {
    /// Take the CPUs at once
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Seconds a program has to end
    #[arg(short = 't', long, value_name = "S", default_value_t = 10)]
    pub(crate) time: u32,
    #[command(flatten)]
    pub(crate) names: Names,
}

#[derive(Args, Debug)]
pub(crate) struct Restart {
    /// Seconds a program has to end
    #[arg(short = 't', long, value_name = "S", default_value_t = 10)]
    pub(crate) time: u32,
    #[command(flatten)]
    pub(crate) names: Names,
}

#[derive(Args, Debug)]
pub(crate) struct Rename {
    /// The instance
    pub(crate) name: String,
    /// The new name; the host name stays
    pub(crate) to: String,
}

#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// Remove instances that an earlier version of the file declared
    #[arg(long)]
    pub(crate) prune: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Seconds to wait for each program to begin
    #[arg(short = 't', long, value_name = "S", default_value_t = 60)]
    pub(crate) time: u32,
    /// Seconds that programs have to end whose place is taken
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub(crate) grace: u32,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The file
    pub(crate) file: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Diff {
    /// Instances that an earlier version of the file declared would be removed
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The file
    pub(crate) file: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Validate {
    /// Print the JSON schema of such files
    #[arg(long, conflicts_with = "file", required_unless_present = "file")]
    pub(crate) schema: bool,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The file
    pub(crate) file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Monitor {
    /// Go into the background, and end when there is nothing left to do
    #[arg(long)]
    pub(crate) background: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Resize {
    /// How many CPUs it is to have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cpus: Option<u32>,
    /// How much memory it is to have: a number and k, m or g; not less than it was created with
    #[arg(
        short = 'm',
        long = "mem",
        visible_alias = "memory",
        value_name = "SIZE",
        required_unless_present = "cpus"
    )]
    pub(crate) memory: Option<String>,
    /// Seconds to wait for its answer [default: until it answers]
    #[arg(short = 't', long, value_name = "S")]
    pub(crate) time: Option<u32>,
    /// Say whether it could be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// If memory cannot leave, have its caches written back and emptied, and try again
    #[arg(long, requires = "memory")]
    pub(crate) force_reclaim: bool,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The instance
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct Autoscale {
    /// The instance that lends CPUs
    #[arg(long, value_name = "NAME")]
    pub(crate) from: String,
    /// The instance that gets them, whose latency it is
    #[arg(long, value_name = "NAME")]
    pub(crate) to: String,
    /// File whose last line is the latency: 183ms, 0.2s; a number alone is milliseconds
    #[arg(long, value_name = "FILE", required_unless_present = "latency_cmd")]
    pub(crate) latency_file: Option<PathBuf>,
    /// Command for /bin/sh that prints it
    #[arg(long, value_name = "COMMAND", conflicts_with = "latency_file")]
    pub(crate) latency_cmd: Option<String>,
    /// Latency below which CPUs go back
    #[arg(long, value_name = "TIME")]
    pub(crate) low: String,
    /// Latency above which CPUs are lent
    #[arg(long, value_name = "TIME")]
    pub(crate) high: String,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) interval: String,
    /// How many CPUs the lender keeps
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: u32,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// Stop those that run, without asking
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) names: Names,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// List those, too, whose place another one has taken, and which are kept for their logs
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Print only the names
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) json: Json,
    #[command(flatten)]
    pub(crate) names: Names,
}

#[derive(Args, Debug)]
pub(crate) struct Logs {
    /// Go on until the instance ends
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Show the log of its kernel
    #[arg(short = 'k', long)]
    pub(crate) kernel: bool,
    /// Show only the last lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Show what it has written before it was restarted last
    #[arg(short = 'p', long)]
    pub(crate) previous: bool,
    /// The instance
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Go on with events as they come
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Of those that are kept, show only the last ones
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Print JSON, one document a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Instances whose events are shown [default: all]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Stats {
    /// Show also instances that do not run
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Print one picture, of the second that follows, and end
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// Print JSON, one document a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Instances that are shown [default: all that run]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Metrics {
    /// Serve them at this address, for ever: a port of 127.0.0.1, or an address and a port
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics::parse_address)]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct Attach {
    /// Do not connect standard input
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// The program has a terminal (`run -t`)
    #[arg(short = 't', long = "tty")]
    pub(crate) terminal: bool,
    /// The instance
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct Exec {
    /// Pass standard input on
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// Give the program a terminal
    #[arg(short = 't', long = "tty", conflicts_with = "detach")]
    pub(crate) terminal: bool,
    /// Do not wait for the program: its streams lead nowhere
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Set a variable, or pass it on (may be given several times)
    #[arg(short = 'e', long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Working directory [default: the first program's]
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    pub(crate) directory: Option<String>,
    /// User, and group
    #[arg(
        short = 'u',
        long,
        value_name = "UID[:GID]",
        default_value = "0:0",
        value_parser = parse_user
    )]
    pub(crate) user: (u32, u32),
    /// The instance
    pub(crate) name: String,
    /// The program, looked for in PATH, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG"
    )]
    pub(crate) command: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Cp {
    /// Keep owners and groups, set-user-ID, set-group-ID and sticky bits
    #[arg(short = 'a', long)]
    pub(crate) archive: bool,
    /// Do not say how much was copied
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// A file or directory: NAME:PATH in an instance, PATH here, `-` an archive
    #[arg(value_name = "FROM", allow_hyphen_values = true)]
    pub(crate) from: String,
    /// Place of the copy: a file or directory, likewise, or `-`
    #[arg(value_name = "TO", allow_hyphen_values = true)]
    pub(crate) to: String,
}

#[derive(Args, Debug)]
pub(crate) struct Kill {
    /// The signal, as a number or a name
    #[arg(short = 's', long, value_name = "SIG", default_value = "KILL")]
    pub(crate) signal: String,
    #[command(flatten)]
    pub(crate) names: Names,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Seconds from one picture to the next
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) delay: Duration,
    /// Stop after so many pictures
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Print one picture below the other
    #[arg(short = 'b', long)]
    pub(crate) batch: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// Events to record: `all`, or a list of switch, wake, steal, irq, call, fault, shootdown, lock
    #[arg(short = 'e', long, value_name = "LIST", default_value = "all")]
    pub(crate) events: String,
    /// End after so many seconds [default: with the program, or when interrupted]
    #[arg(short = 's', long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
    /// File that the trace is written to; `-` is standard output
    #[arg(short = 'o', long, value_name = "FILE", default_value = "trace.json")]
    pub(crate) output: PathBuf,
    /// A program to run meanwhile, and its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<String>,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
