//! Instances by name: finding, creating, loading, ending them.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abi::boot;
use abi::dev::{self, Create, Status};
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::{CreateError, Device, LoadError};
use crate::failure::{Context, Failure, Result, plain};
use crate::loans::{Class, CpuRange};
use crate::name_servers::{self, Resolver};
use crate::networks::{self, Network};
use crate::ports::{self, Port};
use crate::root_disk::RootDisk;
use crate::rootfs::RootFs;
use crate::{devices, names, peers, show, size};

/// A search path for programs, and the rest of the environment every program gets.
const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
];
/// From this size on loading shows its progress on a terminal.
const SHOW_PROGRESS: u64 = 16 << 20;
/// Number of names that are tried when generated ones are taken.
const NAME_TRIES: usize = 64;
/// Time limit for an instance that is halted by force: CPUs that do not answer are reset, and then
/// given up.
const HALT_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the CPUs of an instance that is paused.
const PAUSE_LIMIT: Duration = Duration::from_secs(10);

/// Policy of the supervisor for a CPU of an instance that hangs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum OnHang {
    /// Nobody looks, and no CPU is ever disturbed by the question.
    Ignore,
    /// `ls` and `inspect` show it, and the supervisor's log tells of it.
    #[default]
    Report,
    /// The instance is stopped by force.
    Stop,
}

impl OnHang {
    /// Its flag of `CREATE`.
    fn flag(self) -> u32 {
        match self {
            Self::Ignore => dev::CREATE_UNWATCHED,
            Self::Report => 0,
            Self::Stop => dev::CREATE_STOP_WHEN_HUNG,
        }
    }
}

/// Options of an instance to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateOptions {
    /// Name of the instance; one is made up without.
    pub name: Option<String>,
    /// Number of CPUs, its own; some of them may be lent.
    pub cpus: u32,
    /// Numbers of CPUs that it is content with.
    #[serde(default)]
    pub cpu_range: Option<CpuRange>,
    /// Whether it lends or borrows CPUs.
    #[serde(default)]
    pub class: Option<Class>,
    /// Whether threads of its cores may be others' that allow it, too.
    #[serde(rename = "smt")]
    pub shared_cores: bool,
    /// Policy for a CPU of it that hangs.
    pub on_hang: OnHang,
    /// Memory in bytes.
    #[serde(rename = "mem")]
    pub memory: u64,
    /// PCI functions, by address.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Whether devices are given though nothing confines their DMA.
    #[serde(default)]
    pub unsafe_dma: bool,
    /// Network.
    #[serde(default, rename = "net")]
    pub network: Network,
    /// Address in the network; one is given without.
    #[serde(default, rename = "ip")]
    pub address: Option<Ipv4Addr>,
    /// Published ports.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Instances with which it exchanges messages.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Groups with whose members it exchanges messages.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Root file system; a copy of `/` without.
    pub rootfs: Option<PathBuf>,
    /// Disk of its own that is its root file system.
    #[serde(default)]
    pub root: Option<RootDisk>,
    /// More environment: `NAME=value`, or `NAME` for this process's value.
    pub env: Vec<String>,
    /// Host name; the instance's name without.
    pub hostname: Option<String>,
    /// The program's working directory; `/` without.
    #[serde(rename = "workdir")]
    pub directory: Option<String>,
    /// Whether the program has a terminal.
    #[serde(rename = "tty")]
    pub terminal: bool,
    /// Whether system calls are printed into the kernel log.
    pub trace: bool,
    /// More for its kernel's command line.
    #[serde(rename = "kernel_args")]
    pub kernel: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

impl CreateOptions {
    /// Gives variables that are passed on the values that they have in this process, so that the
    /// options mean the same in any other.
    #[must_use]
    pub fn resolved(mut self, inherited: impl Fn(&str) -> Option<String>) -> Self {
        let env = std::mem::take(&mut self.env);
        self.env = resolved_env(env, self.terminal, inherited);
        self.rootfs = self
            .rootfs
            .map(|path| std::path::absolute(&path).unwrap_or(path));
        self
    }
}

/// Variables of a program, those that are passed on with their values, and with `terminal` what
/// `TERM` is here.
#[must_use]
pub fn resolved_env(
    mut env: Vec<String>,
    terminal: bool,
    inherited: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    if terminal
        && !env
            .iter()
            .any(|given| given.split('=').next() == Some("TERM"))
    {
        let term = inherited("TERM").unwrap_or_else(|| "xterm".into());
        env.push(format!("TERM={term}"));
    }
    env.into_iter()
        .filter_map(|given| match given.contains('=') {
            true => Some(given),
            false => inherited(&given).map(|value| format!("{given}={value}")),
        })
        .collect()
}

/// All instances, in the order of creation.
///
/// # Errors
/// The device's.
pub fn all(device: &dyn Device) -> Result<Vec<Status>> {
    let numbers = device.list().context(|| "cannot list the instances")?;
    let mut all = Vec::with_capacity(numbers.len());
    for id in numbers {
        match device.status(id) {
            Ok(status) => all.push(status),
            // Removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(|| format!("cannot look at instance {id}")),
        }
    }
    Ok(all)
}

/// The instance called `name`, or with that number.
///
/// # Errors
/// If there is none.
pub fn find(device: &dyn Device, name: &str) -> Result<Status> {
    let all = all(device)?;
    let by_name = all.iter().find(|status| label(status) == name);
    let by_number = || {
        name.parse()
            .ok()
            .and_then(|id: u32| all.iter().find(|status| status.id == id))
    };
    by_name.or_else(by_number).copied().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(label).collect();
        let remedy = match names.as_slice() {
            [] => "there are no instances".into(),
            names if names.len() <= 8 => format!("there are {}", names.join(", ")),
            _ => "`skerry ls` lists them".into(),
        };
        Failure::new(format!("no instance is called {name:?}: {remedy}"))
    })
}

/// An instance's name.
#[must_use]
pub fn label(status: &Status) -> &str {
    dev::text(&status.label).unwrap_or("?")
}

/// Whether it will not run (any more).
#[must_use]
pub fn has_ended(status: &Status) -> bool {
    status.state > dev::STATE_RUNNING
}

/// Message for an instance that is not created: the reason and the remedy.
#[must_use]
pub fn creation_error(refused: &CreateError, request: &CreateOptions, name: &str) -> String {
    match refused {
        CreateError::Cpus { free, withheld } => too_few_cpus(*free, Some(*withheld), request),
        CreateError::Cores { free } => too_few_cpus(*free, None, request),
        CreateError::Memory { free } => format!(
            "only {} of memory are free (asked for {}): stop an instance or lower --mem",
            size::format(*free),
            size::format(request.memory)
        ),
        CreateError::TooSmall { least } => {
            format!(
                "{} of memory are too little: give --mem {} or more",
                size::format(request.memory),
                size::option(*least)
            )
        }
        CreateError::Taken => {
            format!(
                "there is an instance called {name} already: choose another --name, or remove it with `skerry rm {name}`"
            )
        }
        CreateError::Network => format!(
            "the supervisor has no network for {name}: it is short of memory, or could not make \
             its interface skerry0 (see `dmesg`); stop an instance, or give --net none"
        ),
        CreateError::Address { owner } => networks::taken(asked_address(request), *owner),
        CreateError::NoAddress => networks::impossible(asked_address(request), &request.network),
        CreateError::UnknownNetwork => networks::unknown(&request.network),
        CreateError::NoFreeAddress => networks::full(&request.network),
        CreateError::Other(error) => format!("cannot create {name}: {}", plain(error)),
    }
}

/// The address that was asked for, of a call that was refused because of it.
fn asked_address(request: &CreateOptions) -> Ipv4Addr {
    request.address.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

/// Message for want of CPUs. `withheld`: how many nobody gets while other threads of their cores
/// are in use; none is counted where one thread of each core is used anyway.
fn too_few_cpus(free: u32, withheld: Option<u32>, request: &CreateOptions) -> String {
    let asked = request.cpus;
    let is_free = match free {
        0 => "no CPU is".into(),
        1 => "only 1 CPU is".into(),
        _ => format!("only {free} CPUs are"),
    };
    let remedy = match (free, request.shared_cores) {
        (0, _) => "stop an instance",
        _ => "stop an instance or lower --cpus",
    };
    let withheld = match withheld {
        None => {
            return format!(
                "{is_free} free (asked for {asked}; one thread of each core is used, because the \
                 supervisor was started with mitigations=auto,nosmt): {remedy}"
            );
        }
        Some(0) => return format!("{is_free} free (asked for {asked}): {remedy}"),
        Some(withheld) => withheld,
    };
    let share = if request.shared_cores {
        "only instances with --smt allow share"
    } else {
        "--smt allow shares cores with others that allow it"
    };
    format!(
        "{is_free} free (asked for {asked}; {withheld} withheld, because another thread of their \
         core is in use): {remedy}; {share}"
    )
}

/// Creates and loads an instance; on failure nothing is left of it.
///
/// # Errors
/// What is short or wrong, and what would help.
pub fn create(device: &dyn Device, request: &CreateOptions, asked: SystemTime) -> Result<Status> {
    if let Some(name) = &request.name {
        names::check(name)?;
    }
    create_as(device, request, request.name.as_deref(), asked)
}

/// Creates and loads an instance under another name than its own, or under a made-up one; on
/// failure nothing is left of it.
///
/// # Errors
/// What is short or wrong, and what would help.
pub fn create_as(
    device: &dyn Device,
    request: &CreateOptions,
    label: Option<&str>,
    asked: SystemTime,
) -> Result<Status> {
    if request.cpus == 0 {
        return Err(Failure::new(
            "an instance needs a CPU: give --cpus 1 or more",
        ));
    }
    let words = match &request.root {
        Some(disk) => format!("{} {}", request.kernel, disk.words()),
        None => request.kernel.clone(),
    };
    let kernel = dev::field(words.trim_start())
        .ok_or_else(|| Failure::new("the kernel command line is longer than 255 bytes"))?;
    let functions = devices::parse(&request.devices)?;
    if let (Some(disk), []) = (&request.root, functions.as_slice()) {
        return Err(Failure::new(format!(
            "{disk} can be the root only if it is on a device of the instance's: give --device"
        )));
    }
    peers::check(&request.peers, label)?;
    peers::check_groups(&request.groups)?;
    let mut rootfs = match &request.root {
        Some(_) => RootFs::empty(),
        None => RootFs::open(request.rootfs.as_deref())?,
    };
    let servers = match request.network {
        Network::None => Resolver::default(),
        Network::Named(_) => Resolver::of_this_machine(),
    };
    let (id, name, gateway) = allocate(device, request, label, (kernel, &servers), asked)?;
    let own_name = request.name.as_deref().unwrap_or(&name);
    let loaded = devices::add(device, id, &functions, request.unsafe_dma)
        .and_then(|()| ports::publish(device, id, &request.ports))
        .and_then(|()| match gateway {
            Some(gateway) => rootfs.put(name_servers::FILE, servers.text(gateway).into()),
            None => Ok(()),
        })
        .and_then(|()| load(device, id, request, own_name, &rootfs));
    if let Err(failure) = loaded {
        // What was begun must not stay.
        let _ = device.control(dev::DESTROY, id, 0);
        return Err(failure);
    }
    device
        .status(id)
        .context(|| format!("cannot look at {name}"))
}

/// Allocates CPUs and memory to a new instance; returns its number, its name, and the supervisor's
/// address in its network.
fn allocate(
    device: &dyn Device,
    request: &CreateOptions,
    label: Option<&str>,
    (kernel, servers): ([u8; 256], &Resolver),
    asked: SystemTime,
) -> Result<(u32, String, Option<Ipv4Addr>)> {
    for _ in 0..NAME_TRIES {
        let name = label.map_or_else(names::generate, str::to_owned);
        let mut call = Create {
            label: dev::field(&name).unwrap_or([0; dev::LABEL_BYTES]),
            cpus: request.cpus,
            flags: if request.trace { dev::CREATE_TRACE } else { 0 }
                | if request.shared_cores {
                    dev::CREATE_SHARED_CORES
                } else {
                    0
                }
                | request.on_hang.flag(),
            mem: request.memory,
            requested_ns: nanoseconds(asked),
            cmdline: kernel,
            ..dev::zeroed()
        };
        networks::ask(&mut call, &request.network, request.address, servers);
        peers::ask(&mut call, &request.peers, &request.groups);
        match device.create(&mut call) {
            Ok(id) => {
                let gateway = (call.gateway != 0).then(|| Ipv4Addr::from_bits(call.gateway));
                return Ok((id, name, gateway));
            }
            Err(CreateError::Taken) if label.is_none() => {}
            Err(refused) => return Err(Failure::new(creation_error(&refused, request, &name))),
        }
    }
    Err(Failure::new("no name was free: give one with --name"))
}

fn load(
    device: &dyn Device,
    id: u32,
    request: &CreateOptions,
    name: &str,
    rootfs: &RootFs,
) -> Result<()> {
    let blob = boot_blob(request, name, |variable| std::env::var(variable).ok());
    device
        .load(id, dev::LOAD_BOOT_BLOB, blob.len() as u64, 0, &blob)
        .map_err(|error| match error {
            LoadError::TooLarge { least } => too_little_memory(
                request,
                ("the command and its environment", blob.len() as u64),
                least,
            ),
            LoadError::Other(error) => {
                Failure::new(format!("the command is refused: {}", plain(&error)))
            }
        })?;
    let total = rootfs.len();
    let mut progress = Progress::new(total);
    let mut sent = 0;
    rootfs.send(&mut |bytes| {
        device
            .load(id, dev::LOAD_INITRAMFS, total, sent, bytes)
            .map_err(|error| match error {
                LoadError::TooLarge { least } => {
                    too_little_memory(request, ("the root file system", total), least)
                }
                LoadError::Other(error) => Failure::new(format!(
                    "cannot load the root file system: {}",
                    plain(&error)
                )),
            })?;
        sent += bytes.len() as u64;
        progress.show(sent);
        Ok(())
    })
}

/// Failure for a root file system or a program, with its size, that does not fit into the
/// instance's memory; `least` would be enough.
fn too_little_memory(request: &CreateOptions, (what, len): (&str, u64), least: u64) -> Failure {
    Failure::new(format!(
        "{what} ({}) does not fit into {} of memory: give --mem {} or more, or a smaller --rootfs",
        size::format(len),
        size::format(request.memory),
        size::option(least)
    ))
}

/// Boot blob: the command that the instance's kernel is to run (`abi::boot`).
fn boot_blob(
    request: &CreateOptions,
    name: &str,
    inherited: impl Fn(&str) -> Option<String>,
) -> Vec<u8> {
    let hostname = request.hostname.as_deref().unwrap_or(name);
    let mut variables: Vec<(String, String)> = ENVIRONMENT
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    variables.push(("HOSTNAME".into(), hostname.into()));
    if request.terminal {
        variables.push((
            "TERM".into(),
            inherited("TERM").unwrap_or_else(|| "xterm".into()),
        ));
    }
    for given in &request.env {
        let (key, value) = match given.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (given.as_str(), inherited(given)),
        };
        variables.retain(|(known, _)| known != key);
        if let Some(value) = value {
            variables.push((key.to_owned(), value));
        }
    }
    let variables: Vec<Vec<u8>> = variables
        .into_iter()
        .map(|(key, value)| format!("{key}={value}").into_bytes())
        .collect();
    let mut blob = Vec::new();
    boot::write(
        if request.terminal {
            boot::FLAG_TERMINAL
        } else {
            0
        },
        request.directory.as_deref().unwrap_or("/"),
        hostname,
        request.command.iter().map(String::as_bytes),
        variables.iter().map(Vec::as_slice),
        |bytes| blob.extend_from_slice(bytes),
    );
    blob
}

/// Time in nanoseconds since 1970, as the kernel's records have it.
#[must_use]
pub fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// A line on the terminal that tells how far loading is.
struct Progress {
    total: u64,
    shown: u64,
    wanted: bool,
}

impl Progress {
    fn new(total: u64) -> Self {
        Self {
            total,
            shown: 0,
            wanted: total >= SHOW_PROGRESS && io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, sent: u64) {
        let percent = sent * 100 / self.total.max(1);
        if !self.wanted || percent < self.shown + 5 && sent != self.total {
            return;
        }
        self.shown = percent;
        let end = if sent == self.total { "\r\x1b[K" } else { "" };
        // Decoration: nothing depends on it.
        let _ = write!(
            io::stderr(),
            "\rloading the root file system: {percent} %{end}"
        );
    }
}

/// Starts a created instance.
///
/// # Errors
/// If it was started before, or its memory is too small.
pub fn start(device: &dyn Device, status: &Status) -> Result<()> {
    let name = label(status);
    device.control(dev::START, status.id, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            let now = device.status(status.id).map_or("started", |now| show::state_name(&now));
            let remedy = match now {
                "paused" => format!("`skerry unpause {name}` has it go on"),
                _ => format!("`skerry restart {name}` starts it again"),
            };
            Failure::new(format!("{name} cannot be started: it is {now} ({remedy})"))
        }
        Some(libc::ENOMEM) => Failure::new(format!(
            "{name} cannot be started: {} of memory are too little for it: create it with more --mem",
            size::format(status.mem)
        )),
        _ => Failure::new(format!("{name} cannot be started: {}", plain(&error))),
    })
}

/// Waits until an instance has a program, which is what a pause has stand still.
///
/// # Errors
/// If it has none after a while.
pub fn wait_pausable(device: &dyn Device, status: &Status) -> Result<()> {
    if status.state != dev::STATE_RUNNING {
        return Ok(());
    }
    device
        .wait_up(status.id, Some(PAUSE_LIMIT))
        .context(|| format!("cannot wait for the program of {}", label(status)))
}

/// Tells all CPUs of a running instance to stand still; [`wait_paused`] waits until they do.
///
/// # Errors
/// Why they were not told.
pub fn pause(device: &dyn Device, status: &Status) -> Result<()> {
    let name = label(status);
    device
        .control(dev::PAUSE, status.id, 0)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EALREADY) => Failure::new(format!("{name} is paused already")),
            Some(libc::ESRCH) => Failure::new(format!(
                "{name} does not run: only a running instance can be paused"
            )),
            Some(libc::EBUSY) => Failure::new(format!(
                "{name} has not answered the last change yet: try again when it has"
            )),
            _ => Failure::new(format!("cannot pause {name}: {}", plain(&error))),
        })
}

/// Waits until all CPUs of an instance that was told to pause stand still.
///
/// # Errors
/// Why it is not paused. One whose CPUs have not obeyed after a while is when they do.
pub fn wait_paused(device: &dyn Device, status: &Status) -> Result<()> {
    let (id, name) = (status.id, label(status));
    device
        .wait_paused(id, Some(PAUSE_LIMIT))
        .map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Failure::new(format!(
                "not all CPUs of {name} stand still after {} s: it is paused when they do, unless \
                 `skerry unpause {name}` takes that back",
                PAUSE_LIMIT.as_secs()
            )),
            _ => Failure::new(format!("cannot wait for {name}: {}", plain(&error))),
        })?;
    let ended = || Failure::new(format!("{name} has ended meanwhile"));
    let now = match device.status(id) {
        // It was removed at once.
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(ended()),
        now => now.context(|| format!("cannot look at {name}"))?,
    };
    match now.paused {
        dev::PAUSED_YES => Ok(()),
        _ if has_ended(&now) => Err(ended()),
        _ => Err(Failure::new(format!(
            "somebody else has unpaused {name} meanwhile"
        ))),
    }
}

/// Has the CPUs of a paused instance go on.
///
/// # Errors
/// If it is not paused.
pub fn unpause(device: &dyn Device, status: &Status) -> Result<()> {
    let name = label(status);
    device
        .control(dev::UNPAUSE, status.id, 0)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EALREADY | libc::ESRCH) => Failure::new(format!("{name} is not paused")),
            _ => Failure::new(format!("cannot unpause {name}: {}", plain(&error))),
        })
}

/// Has an instance go on that may be paused, so that it obeys what it was told.
///
/// # Errors
/// The device's.
pub fn go_on(device: &dyn Device, id: u32) -> Result<()> {
    match device.control(dev::UNPAUSE, id, 0) {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EALREADY | libc::ESRCH)) => {
            Err(error).context(|| format!("cannot unpause instance {id}"))
        }
        _ => Ok(()),
    }
}

/// Ends an instance: asks it first, unless `force`, and takes its CPUs if it has not ended after
/// `grace`. One that does not run stays as it is.
///
/// # Errors
/// If it has not ended even so.
pub fn stop(device: &dyn Device, status: &Status, grace: Duration) -> Result<()> {
    if status.state != dev::STATE_RUNNING {
        return Ok(());
    }
    let (id, name) = (status.id, label(status));
    if device.control(dev::SHUTDOWN, id, 0).is_ok() {
        go_on(device, id)?;
        match device.wait(id, Some(grace)) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            other => return other.context(|| format!("cannot wait for {name}")),
        }
    }
    halt(device, status)
}

/// Takes the CPUs of a running instance away, and waits until it has ended.
///
/// # Errors
/// If it has not ended after a while.
pub fn halt(device: &dyn Device, status: &Status) -> Result<()> {
    if status.state != dev::STATE_RUNNING {
        return Ok(());
    }
    let (id, name) = (status.id, label(status));
    match device.control(dev::HALT, id, 0) {
        // It has ended by itself in this moment.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        other => other.context(|| format!("cannot halt {name}"))?,
    }
    device
        .wait(id, Some(HALT_LIMIT))
        .map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Failure::new(format!(
                "{name} has not ended after {} s",
                HALT_LIMIT.as_secs()
            )),
            _ => Failure::new(format!("cannot wait for {name}: {}", plain(&error))),
        })
}

/// Forgets an instance.
///
/// # Errors
/// If it runs.
pub fn remove(device: &dyn Device, status: &Status) -> Result<()> {
    let name = label(status);
    device
        .control(dev::DESTROY, status.id, 0)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => Failure::new(format!(
                "{name} is running: stop it first, or use `skerry rm --force {name}`"
            )),
            _ => Failure::new(format!("cannot remove {name}: {}", plain(&error))),
        })
}

#[cfg(test)]
mod tests {
    use abi::boot::Boot;

    use super::*;
    use crate::mock::{Mock, request};

    #[test]
    fn shortages_name_what_would_help() {
        let request = CreateOptions {
            cpus: 3,
            memory: 1 << 30,
            ..CreateOptions::default()
        };
        let say = |refused| creation_error(&refused, &request, "a");
        assert_eq!(
            say(CreateError::Cpus {
                free: 1,
                withheld: 0
            }),
            "only 1 CPU is free (asked for 3): stop an instance or lower --cpus"
        );
        assert_eq!(
            say(CreateError::Cpus {
                free: 0,
                withheld: 0
            }),
            "no CPU is free (asked for 3): stop an instance"
        );
        // No choice of the caller's shares a core there.
        assert_eq!(
            say(CreateError::Cores { free: 1 }),
            "only 1 CPU is free (asked for 3; one thread of each core is used, because the \
             supervisor was started with mitigations=auto,nosmt): stop an instance or lower --cpus"
        );
        assert_eq!(
            say(CreateError::Memory { free: 512 << 20 }),
            "only 512 MiB of memory are free (asked for 1 GiB): stop an instance or lower --mem"
        );
        assert_eq!(
            say(CreateError::TooSmall { least: 6 << 20 }),
            "1 GiB of memory are too little: give --mem 6M or more"
        );
        assert!(say(CreateError::Taken).contains("skerry rm a"));
    }

    #[test]
    fn the_environment_is_the_users_on_top_of_ours() {
        let mut request = request("box", &["sh"]);
        request.env = vec![
            "HOME=/here".into(),
            "GIVEN".into(),
            "MISSING".into(),
            "A=b=c".into(),
        ];
        let blob = boot_blob(&request, "box", |name| {
            (name == "GIVEN").then(|| "from outside".into())
        });
        let boot = Boot::parse(&blob).unwrap();
        let variables: Vec<_> = boot
            .variables()
            .map(|v| String::from_utf8_lossy(v).into_owned())
            .collect();
        assert!(variables[0].starts_with("PATH=") && boot.hostname == "box" && boot.cwd == "/");
        assert_eq!(
            &variables[1..],
            ["HOSTNAME=box", "HOME=/here", "GIVEN=from outside", "A=b=c"]
        );
    }

    #[test]
    fn resolved_options_mean_the_same_elsewhere() {
        let mut options = request("box", &["sh"]);
        options.env = vec!["A=b".into(), "GIVEN".into(), "MISSING".into()];
        options.terminal = true;
        options.rootfs = Some("web.tar".into());
        let given = |name: &str| (name == "GIVEN").then(|| "from here".into());
        let resolved = options.resolved(given);
        assert_eq!(resolved.env, ["A=b", "GIVEN=from here", "TERM=xterm"]);
        assert!(resolved.rootfs.as_ref().unwrap().is_absolute());
        assert_eq!(
            resolved
                .clone()
                .resolved(|_| panic!("nothing is left to ask")),
            resolved
        );
    }

    #[test]
    fn what_is_done_about_a_hang_is_one_flag_at_most() {
        let flags = [OnHang::Report, OnHang::Ignore, OnHang::Stop].map(OnHang::flag);
        assert_eq!(
            flags,
            [0, dev::CREATE_UNWATCHED, dev::CREATE_STOP_WHEN_HUNG]
        );
        assert_eq!(OnHang::default(), OnHang::Report);
    }

    #[test]
    fn a_failed_load_leaves_nothing() {
        let mock = Mock::new(4, 1 << 30);
        mock.refuse_loads();
        let failure = create(&mock, &request("box", &["true"]), SystemTime::now()).unwrap_err();
        assert!(failure.message.contains("give --mem 66M"), "{failure}");
        assert!(mock.list().unwrap().is_empty());
        assert_eq!(mock.info().unwrap().cpus_free, 3);
    }

    #[test]
    fn instances_are_found_by_name_and_by_number() {
        let mock = Mock::new(4, 1 << 30);
        let created = create(&mock, &request("box", &["true"]), SystemTime::now()).unwrap();
        assert_eq!(find(&mock, "box").unwrap().id, created.id);
        assert_eq!(label(&find(&mock, &created.id.to_string()).unwrap()), "box");
        assert_eq!(
            find(&mock, "bax").unwrap_err().message,
            "no instance is called \"bax\": there are box"
        );
        let again = create(&mock, &request("box", &["true"]), SystemTime::now()).unwrap_err();
        assert!(again.message.contains("already"), "{again}");
    }

    #[test]
    fn a_running_instance_is_removed_by_force_only() {
        let mock = Mock::new(4, 1 << 30);
        let status = create(&mock, &request("box", &["sleep", "9"]), SystemTime::now()).unwrap();
        start(&mock, &status).unwrap();
        let running = find(&mock, "box").unwrap();
        assert!(
            remove(&mock, &running)
                .unwrap_err()
                .message
                .contains("--force")
        );
        assert!(
            start(&mock, &running)
                .unwrap_err()
                .message
                .contains("running")
        );
        halt(&mock, &running).unwrap();
        remove(&mock, &running).unwrap();
        assert!(all(&mock).unwrap().is_empty());
    }

    #[test]
    fn pause_and_unpause_tell_what_is_not_so() {
        let mock = Mock::new(4, 1 << 30);
        let status = create(&mock, &request("box", &["sleep", "9"]), SystemTime::now()).unwrap();
        let refused = |result: Result<()>, words: &str| {
            let message = result.unwrap_err().message;
            assert!(message.contains(words), "{message}");
        };
        refused(pause(&mock, &status), "does not run");
        start(&mock, &status).unwrap();
        let running = find(&mock, "box").unwrap();
        refused(unpause(&mock, &running), "is not paused");
        pause(&mock, &running).unwrap();
        wait_paused(&mock, &running).unwrap();
        refused(pause(&mock, &running), "is paused already");
        refused(start(&mock, &running), "it is paused (`skerry unpause box`");
        unpause(&mock, &running).unwrap();
        assert_eq!(find(&mock, "box").unwrap().paused, dev::PAUSED_NO);
        let deaf = create(&mock, &request("deaf", &["ignore"]), SystemTime::now()).unwrap();
        start(&mock, &deaf).unwrap();
        let deaf = find(&mock, "deaf").unwrap();
        pause(&mock, &deaf).unwrap();
        refused(
            wait_paused(&mock, &deaf),
            "not all CPUs of deaf stand still",
        );
        unpause(&mock, &deaf).unwrap();
    }

    #[test]
    fn a_paused_instance_is_stopped_as_any_other() {
        let mock = Mock::new(4, 1 << 30);
        for (name, state) in [("polite", dev::STATE_EXITED), ("deaf", dev::STATE_HALTED)] {
            let status = create(&mock, &request(name, &[name]), SystemTime::now()).unwrap();
            start(&mock, &status).unwrap();
            let running = find(&mock, name).unwrap();
            pause(&mock, &running).unwrap();
            stop(&mock, &running, Duration::from_millis(5)).unwrap();
            assert_eq!(find(&mock, name).unwrap().state, state);
        }
    }

    #[test]
    fn stop_asks_before_it_forces() {
        let mock = Mock::new(4, 1 << 30);
        for (name, state) in [("polite", dev::STATE_EXITED), ("deaf", dev::STATE_HALTED)] {
            let status = create(&mock, &request(name, &[name]), SystemTime::now()).unwrap();
            start(&mock, &status).unwrap();
            let running = find(&mock, name).unwrap();
            stop(&mock, &running, Duration::from_millis(5)).unwrap();
            assert_eq!(find(&mock, name).unwrap().state, state);
        }
    }
}
