//! Boots a machine whose first process is the program of `bench/micro`, and reads what it tells on
//! the console.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::load;
use super::metrics::{Devices, Metric};
use crate::cleanup::Directory;
use crate::qemu::Hardware;
use crate::test::scenarios::{images, modules, nvme};
use crate::vm::{Addition, Kernel, Machine};
use crate::{build, initramfs, rootfs};

/// Time limit of one machine: emulated, and counting, Linux alone needs a minute or two to boot.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// The same of one with cards, by which 100,000 connections may come.
const NETWORK_TIME_LIMIT: Duration = Duration::from_secs(3000);

/// Packages that the workloads and the servers run.
const PACKAGES: [&str; 8] = [
    "bash",
    "coreutils",
    "findutils",
    "nginx-light",
    "tar",
    "sqlite3",
    "redis-server",
    "redis-tools",
];

/// Networks of a machine with cards: two on one hub, and one with a sink and a source of bytes.
const NETWORKS: [&str; 3] = [
    "hubport,hubid=0",
    "hubport,hubid=0",
    "user,restrict=on,guestfwd=tcp:10.0.2.100:9-cmd:dd of=/dev/null bs=65536,guestfwd=tcp:10.0.2.101:19-cmd:cat /dev/zero",
];

/// Images of the disks of a machine with disks: plain, with a file system, of NVMe.
pub const DISKS: [&str; 3] = ["vda", "vdb", "nvme"];

/// The module by which Linux has checksums made by an instruction, as Debian's systems load it.
const CRC: &str = "arch/x86/crypto/crc32c-intel";

/// Bytes of each.
const DISK_BYTES: u64 = 64 << 20;

/// Outcome of one run of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The metric ran.
    Value {
        /// The median of its batches.
        median: f64,
        /// Number of operations in each batch.
        operations: u64,
    },
    /// The system cannot run it: the errno's name and what failed.
    NotAvailable(String),
}

/// Configuration of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Number of processors.
    pub cpus: u32,
    /// Whether the clock counts instructions.
    pub icount: bool,
    /// Whether its file system has Debian's programs.
    pub packages: bool,
    /// Devices that it has.
    pub devices: Option<Devices>,
    /// More for the kernel's command line.
    pub append: &'a str,
}

/// Outcomes of the metrics of a round, by name.
pub type Results = BTreeMap<&'static str, Outcome>;

/// Runs each of `metrics` once. A machine that dies or hangs costs the metric under way; the rest
/// runs in another one.
///
/// # Errors
/// When there is nothing to run: what a machine starts from cannot be built.
pub fn run(kernel: &Kernel, setup: Setup<'_>, metrics: &[&'static Metric]) -> Result<Results> {
    build::micro()?;
    if *kernel == Kernel::Skerry {
        build::kernel()?;
    }
    let mut results = Results::new();
    loop {
        let left: Vec<_> = metrics
            .iter()
            .map(|metric| metric.name)
            .filter(|name| !results.contains_key(name))
            .collect();
        if left.is_empty() {
            return Ok(results);
        }
        let machine = machine(kernel, setup)?;
        let ended = boot(&machine, setup, &left);
        let log =
            String::from_utf8_lossy(&std::fs::read(&machine.log).unwrap_or_default()).into_owned();
        let reported: Vec<_> = left
            .iter()
            .filter_map(|&name| Some((name, outcome(&log, name)?)))
            .collect();
        let started = log.contains("bench: start");
        results.extend(reported);
        // The first that is missing is the one the machine died of; where the program did not even
        // start, all are lost.
        let why = match ended {
            Ok(_) => "not reported".to_owned(),
            Err(error) => {
                eprintln!("xtask: {error:#}");
                "the machine died".to_owned()
            }
        };
        let missing = left.into_iter().filter(|name| !results.contains_key(name));
        let lost: Vec<_> = missing.take(if started { 1 } else { usize::MAX }).collect();
        results.extend(
            lost.into_iter()
                .map(|name| (name, Outcome::NotAvailable(why.clone()))),
        );
    }
}

/// A machine for the program.
///
/// # Errors
/// When its disks cannot be made.
pub fn machine(kernel: &Kernel, setup: Setup<'_>) -> Result<Machine> {
    let mut machine = Machine {
        kernel: kernel.clone(),
        // Skerry's supervisor is to have all processors, and Linux's symbols the addresses they
        // were linked at.
        append: format!(
            "quiet nokaslr supervisor_cpus={} {}",
            setup.cpus, setup.append
        ),
        log: super::scratch("log"),
        timeout: Some(TIME_LIMIT),
        ..Machine::default()
    };
    (machine.hardware.cpus, machine.hardware.icount) = (setup.cpus, setup.icount);
    let needed = match setup.devices {
        None => return Ok(machine),
        Some(Devices::Network) => {
            machine.timeout = Some(NETWORK_TIME_LIMIT);
            machine.hardware.networks = NETWORKS.map(OsString::from).to_vec();
            if setup.packages {
                machine.hardware.networks[2].push(&clients()?);
                // Clients need real time: a clock that leaps over every wait would have their
                // answers late, and all sent again.
                let awake = ["-icount", "sleep=on"];
                machine.hardware.extra.extend(awake.map(OsString::from));
            }
            modules::NETWORK.to_vec()
        }
        Some(Devices::Disks) => {
            attach_disks(&mut machine.hardware)?;
            [&[CRC], &images::MODULES[..], &nvme::MODULES[..]].concat()
        }
    };
    if let Kernel::Linux(image) = kernel {
        // A kernel whose name tells no version has no modules.
        machine.additions = modules::of(image, &needed).unwrap_or_default();
    }
    Ok(machine)
}

/// More for the emulator's own network: what the servers' clients need. The machine's program
/// starts them by connecting to an address of that network, and they come by ports of the host's.
fn clients() -> Result<OsString> {
    // Held together, so that they are two.
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut options = OsString::new();
    let mut command = OsString::from(",guestfwd=tcp:10.0.2.102:7-cmd:");
    command.push(env::current_exe()?);
    command.push(format!(" {}", load::TASK));
    for (listener, port) in free.into_iter().zip([80, 6379]) {
        let forwarded = listener?.local_addr()?.port();
        options.push(format!(
            ",hostfwd=tcp:127.0.0.1:{forwarded}-10.0.2.15:{port}"
        ));
        command.push(format!(" {forwarded}"));
    }
    options.push(command);
    Ok(options)
}

/// Attaches a disk of virtio, one with an ext4 file system as mke2fs makes it, and one of NVMe.
fn attach_disks(hardware: &mut Hardware) -> Result<()> {
    let [plain, ext4, nvme] = DISKS.map(super::scratch);
    for image in [&plain, &ext4, &nvme] {
        File::create(image)?.set_len(DISK_BYTES)?;
    }
    let nothing = Directory::create()?;
    images::mke2fs(&ext4, &["-b", "4096"], &nothing.join("."))?;
    // How long the host takes is nobody's instruction.
    let drive = |image: &Path| format!("format=raw,cache=unsafe,file={}", image.display());
    images::attach(hardware, &drive(&plain));
    images::attach(hardware, &drive(&ext4));
    let drive = format!("if=none,id=nvme,{}", drive(&nvme));
    let arguments = ["-drive", &drive, "-device", "nvme,serial=rock,drive=nvme"];
    hardware.extra.extend(arguments.map(OsString::from));
    Ok(())
}

/// Boots the machine with the program and these metrics to run; returns the log.
pub fn boot(machine: &Machine, setup: Setup<'_>, names: &[&str]) -> Result<String> {
    let (program, nothing) = build::micro()?;
    let clock = if setup.icount {
        "instructions"
    } else {
        "nanoseconds"
    };
    let conf = names
        .iter()
        .fold(format!("{clock}\n"), |conf, name| conf + name + "\n");
    machine.run_without_agent(&program, |archive| {
        for directory in ["/proc", "/tmp"] {
            archive.directory(directory, 0o755);
        }
        archive.device("/dev/null", 0o666, 1, 3);
        archive.device("/dev/zero", 0o666, 1, 5);
        archive.file("/bench.conf", 0o644, conf.as_bytes());
        archive.host(&nothing, "/nothing")?;
        if setup.devices == Some(Devices::Disks) {
            archive.directory("/bin", 0o755);
            archive.host(&initramfs::busybox()?, "/bin/busybox")?;
        }
        for Addition { host, guest } in &machine.additions {
            archive.host(host, guest)?;
        }
        if setup.packages {
            archive.tar(&rootfs::cached(&[&PACKAGES])?)
        } else {
            Ok(())
        }
    })
}

/// Outcome of one metric by the log: `bench: NAME MEDIAN LEAST MOST OPERATIONS`, or `bench: NAME
/// n/a ERRNO CALL`.
pub fn outcome(log: &str, name: &str) -> Option<Outcome> {
    let rest = log.lines().find_map(|line| {
        line.split_once("bench: ")?
            .1
            .strip_prefix(name)?
            .strip_prefix(' ')
    })?;
    match rest.strip_prefix("n/a ") {
        Some(reason) => Some(Outcome::NotAvailable(reason.trim().to_owned())),
        None => {
            let words: Vec<_> = rest.split_whitespace().collect();
            Some(Outcome::Value {
                median: words.first()?.parse().ok()?,
                operations: words.get(3)?.parse().ok()?,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, outcome};

    #[test]
    fn values_and_refusals_are_told_apart() {
        let log = "\nbench: start\r\nbench: stat 1000.5 1000.0 1001.0 9\r\nbench: epoll n/a ENOSYS epoll_create1(0)\r\n";
        assert_eq!(
            outcome(log, "stat"),
            Some(Outcome::Value {
                median: 1000.5,
                operations: 9
            })
        );
        assert_eq!(
            outcome(log, "epoll"),
            Some(Outcome::NotAvailable("ENOSYS epoll_create1(0)".into()))
        );
        assert_eq!(outcome(log, "sta"), None);
    }
}
