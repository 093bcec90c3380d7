//! Debian's nginx and curl, unmodified, on two machines joined by a wire: one runs Skerry, the
//! other one Debian's Linux, in both roles. What Skerry has sent is read by tshark.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::pair::{self, Shape, sum};
use crate::bench::newest_linux;
use crate::cleanup::Directory;
use crate::test::batch::{self, Step};
use crate::test::{Check, Setting};
use crate::vm::Kernel;
use crate::wire::{End, Faults, Wire};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/nginx.cases");

const SERVER: &str = "10.0.9.1";
const CLIENT: &str = "10.0.9.2";
/// Bytes of what is sent of which a capture is kept.
const CAPTURED: u64 = 64 << 20;

/// The server's case, which a function looks at.
const SERVES: &str = "nginx serves until it is told that all is over";

/// How much is fetched.
#[derive(Clone, Copy)]
struct Size {
    /// Bytes of the large file.
    large: u64,
    /// The rate of the download that a reload must not cut off, as curl spells it.
    rate: &'static str,
    /// Memory of each machine.
    memory: &'static str,
    /// Seconds that a case may take.
    limit: u32,
}

/// Some megabytes.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(
        setting,
        Size {
            large: 6_000_017,
            rate: "2M",
            memory: "1G",
            limit: 300,
        },
    )
}

/// A gigabyte.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(
        setting,
        Size {
            large: 1_000_000_007,
            rate: "50M",
            memory: "3G",
            limit: 3000,
        },
    )
}

fn run(setting: &Setting, size: Size) -> Result<Vec<Check>> {
    let linux = Kernel::Linux(newest_linux()?);
    let ours = setting.machine("ours").kernel;
    let mut checks = Vec::new();
    for (kernels, is_server, role) in [
        ([&ours, &linux], true, "serves"),
        ([&linux, &ours], false, "fetches"),
    ] {
        let found = pair(setting, size, kernels, is_server)
            .with_context(|| format!("where Skerry {role}"))?;
        checks.extend(found.into_iter().map(|check| Check {
            what: format!("where Skerry {role}: {}", check.what),
            ..check
        }));
    }
    Ok(checks)
}

/// A server's machine, and a client's, by their kernels.
fn pair(
    setting: &Setting,
    size: Size,
    [server, client]: [&Kernel; 2],
    is_server: bool,
) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let pcap = directory.join("pcap");
    let captured = Some((pcap.as_path(), CAPTURED));
    let wire = Wire::new(&directory.join(""), Faults::default(), captured)?;
    let shape = Shape {
        memory: size.memory,
        patience: Duration::from_secs(4 * u64::from(size.limit)),
        programs: &rootfs::cached(&[packages::WEB_WIRE])?,
    };
    let machine = |kernel: &Kernel, end: End, name: &str| {
        let side = if is_server { "serves" } else { "fetches" };
        let name = format!("{side}-{name}");
        pair::machine(setting, &name, (kernel, end), &[&wire], &shape)
    };
    let serving = machine(server, End::A, "server")?;
    let fetching = machine(client, End::B, "client")?;
    let (serves, fetches) = steps(size, is_server)?;
    let machines = [(serving, &serves[..]), (fetching, &fetches[..])];
    let (checks, traffic) = pair::run(&[&wire], machines)?;
    let mut checks = checks.into_iter().flatten().collect::<Vec<_>>();
    let ours = if is_server { End::A } else { End::B };
    let hardware = pair::hardware(ours, 0);
    let looked = traffic
        .iter()
        .map(|traffic| pair::look(&pcap, &hardware, &checks, *traffic));
    let looked = looked.collect::<Vec<_>>();
    checks.extend(looked);
    Ok(checks)
}

/// The server's steps, and the client's; `is_server` says which of them is Skerry's.
fn steps(size: Size, is_server: bool) -> Result<(Vec<Step>, Vec<Step>)> {
    let numbers = format!("seq 999999999 2>/dev/null | head -c {}", size.large);
    let sum = |filter: &str| sum(&format!("{numbers} | {filter}"));
    let names = [
        ("@SERVER@", SERVER.to_owned()),
        ("@LARGE@", size.large.to_string()),
        ("@RATE@", size.rate.to_owned()),
        ("@SUM@", sum("cat")?),
        ("@SMALL@", sum("head -c 100000")?),
        ("@PART@", sum("head -c 67891 | tail -c 55546")?),
    ];
    let of = |own: &str, is_theirs: fn(usize) -> bool| -> Result<Vec<Step>> {
        let card = if own == SERVER { "eth0" } else { "eth1" };
        let own_names = [("@OWN@", own.to_owned()), ("@CARD@", card.to_owned())];
        let steps = batch::steps(CASES, &[(SERVES, served)])?;
        let steps = steps.into_iter().enumerate();
        let mine = steps.filter(|(at, _)| is_theirs(*at)).map(|(_, step)| step);
        let clean = pair::repeats_step((own == SERVER) == is_server, card)?;
        let mine = mine.chain([clean]).map(|mut step| {
            step.limit = size.limit;
            pair::fill_in(&mut step, &own_names);
            pair::fill_in(&mut step, &names);
            step
        });
        Ok(mine.collect())
    };
    Ok((of(SERVER, |at| at < 2)?, of(CLIENT, |at| at != 1)?))
}

/// Looks at what the server's case has printed.
fn served(said: &str) -> Result<String> {
    ensure!(said == "nginx ended with 0\n1 206", "it said {said:?}");
    Ok(String::new())
}
