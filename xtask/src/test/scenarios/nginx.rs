//! Debian's nginx and curl, unmodified, on two machines joined by a wire: one runs Skerry, the
//! other one Debian's Linux, in both roles. What Skerry has sent is read by tshark.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::modules;
use crate::bench::newest_linux;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel, Machine};
use crate::wire::{End, Faults, Traffic, Wire};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/nginx.cases");

const SERVER: &str = "10.0.9.1";
const CLIENT: &str = "10.0.9.2";
/// Bytes of what is sent of which a capture is kept.
const CAPTURED: u64 = 64 << 20;

/// The server's case, which a function looks at.
const SERVES: &str = "nginx serves until it is told that all is over";

/// The case of both machines that tells of what was sent again.
const CLEAN: &str = "a clean wire has nothing sent again";

/// The same of Skerry's machine, and of the other one.
const CLEAN_OURS: &str = "Skerry sends nothing again on a clean wire";
const CLEAN_THEIRS: &str = "Linux tells what it has sent again";
/// The answer of a machine that has sent nothing again.
const NOTHING: &str = "no segment was sent again, and no frame lost";

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
    let programs = rootfs::cached(&[packages::WEB_WIRE])?;
    let machine = |kernel: &Kernel, end: End, name: &str| -> Result<Machine> {
        let side = if is_server { "serves" } else { "fetches" };
        let mut machine = setting.machine(&format!("{side}-{name}"));
        machine.kernel = kernel.clone();
        machine.hardware.cpus = 2;
        machine.hardware.memory = size.memory.into();
        // Cards have addresses by their places: a first one of both would have the same.
        machine.hardware.networks = match end {
            End::A => vec![wire.network(end)],
            End::B => vec!["user,restrict=on".into(), wire.network(end)],
        };
        machine.timeout = Some(Duration::from_secs(4 * u64::from(size.limit)));
        machine.additions.push(Addition {
            host: programs.clone(),
            guest: "/programs.tar".into(),
        });
        if let Kernel::Linux(image) = kernel {
            machine
                .additions
                .extend(modules::of(image, &modules::NETWORK)?);
        }
        Ok(machine)
    };
    let serving = machine(server, End::A, "server")?;
    let fetching = machine(client, End::B, "client")?;
    let (serves, fetches) = steps(size, is_server)?;
    let (served, fetched, traffic) = thread::scope(|scope| {
        let carried = scope.spawn(|| wire.carry());
        let served = scope.spawn(|| batch::run(serving, &serves));
        let fetched = batch::run(fetching, &fetches);
        let served = served.join();
        wire.end();
        (served, fetched, carried.join())
    });
    let panicked = || anyhow::anyhow!("a thread of the test panicked");
    let mut checks = served.map_err(|_| panicked())??;
    checks.extend(fetched?);
    let traffic = traffic.map_err(|_| panicked())??;
    let ours = if is_server { SERVER } else { CLIENT };
    let says_clean = |check: &Check| check.result.as_deref() == Ok(NOTHING);
    let is_clean = checks
        .iter()
        .any(|check| check.what == CLEAN_OURS && says_clean(check));
    checks.push(Check::new(
        "tshark finds nothing malformed or wrongly summed of what it has sent",
        look(&pcap, ours, is_clean).map(|seen| {
            let Traffic { carried, lost } = traffic;
            format!("{seen}; the wire has carried {carried} frames, and {lost} to nobody")
        }),
    ));
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
    let fill_in = |text: &str, own: &str| {
        let card = if own == SERVER { "eth0" } else { "eth1" };
        let text = text.replace("@OWN@", own).replace("@CARD@", card);
        let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
        names.iter().fold(text, fill)
    };
    let of = |own: &str, is_theirs: fn(usize) -> bool| -> Result<Vec<Step>> {
        let is_ours = (own == SERVER) == is_server;
        let judge = if is_ours { judge_repeats } else { tell_repeats };
        let steps = batch::steps(CASES, &[(SERVES, served), (CLEAN, judge)])?
            .into_iter()
            .enumerate();
        let mine = steps.filter(|(at, step)| is_theirs(*at) || step.what == CLEAN);
        let mine = mine.map(|(_, mut step)| {
            step.limit = size.limit;
            if step.what == CLEAN {
                let what = if is_ours { CLEAN_OURS } else { CLEAN_THEIRS };
                step.what = what.into();
            }
            step.script = fill_in(&step.script, own);
            if let Expect::Text(text) = &mut step.expect {
                *text = fill_in(text, own).into();
            }
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

/// The counters of what was sent again, as they are printed.
fn repeats(printed: &str) -> Result<Vec<(&str, u64)>> {
    let counters = printed.lines().map(|line| {
        let counter = line
            .split_once(' ')
            .map(|(name, value)| (name, value.parse()));
        match counter {
            Some((name, Ok(value))) => Ok((name, value)),
            _ => bail!("no counter: {line:?}"),
        }
    });
    counters.collect()
}

/// Judges what Skerry has sent again. A timer takes a machine that stands still for a loss, which
/// is a matter of the host; without a timer there is no reason on a clean wire. For a frame that
/// its own card has no room for there never is one.
fn judge_repeats(printed: &str) -> Result<String> {
    let counters = repeats(printed)?;
    let value = |name: &str| {
        let found = counters.iter().find(|(found, _)| *found == name);
        found
            .map(|(_, value)| *value)
            .with_context(|| format!("no counter {name}"))
    };
    let timers = value("TCPTimeouts")? + value("TCPLossProbes")?;
    ensure!(
        value("dropped")? == 0,
        "frames were lost before the card: {counters:?}"
    );
    let is_clean = value("RetransSegs")? == 0 || timers > 0;
    ensure!(
        is_clean,
        "segments were sent again without a timer: {counters:?}"
    );
    let is_fast = value("TCPFastRetrans")? > 0 && value("TCPTimeouts")? == 0;
    ensure!(!is_fast, "segments were taken for lost: {counters:?}");
    match value("RetransSegs")? {
        0 => Ok(NOTHING.into()),
        _ => tell_repeats(printed),
    }
}

/// Tells what was sent again.
fn tell_repeats(printed: &str) -> Result<String> {
    let told = repeats(printed)?
        .into_iter()
        .map(|(name, value)| format!("{name} {value}"));
    Ok(told.collect::<Vec<_>>().join(", "))
}

/// The SHA-256 of what a script prints on the host.
fn sum(script: &str) -> Result<String> {
    let output = Command::new("sh")
        .args(["-c", &format!("{script} | sha256sum")])
        .stdin(Stdio::null())
        .output()
        .context("cannot run sha256sum")?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Has tshark look at what an address has sent; `is_clean` if that says it has repeated nothing.
fn look(pcap: &Path, ours: &str, is_clean: bool) -> Result<String> {
    let count = |filter: &str| -> Result<usize> {
        let output = Command::new("tshark")
            .args(["-n", "-r"])
            .arg(pcap)
            .args(["-o", "ip.check_checksum:TRUE"])
            .args(["-o", "tcp.check_checksum:TRUE"])
            .args(["-o", "udp.check_checksum:TRUE"])
            .args(["-Y", &format!("ip.src == {ours} && ({filter})")])
            .args(["-T", "fields", "-e", "frame.number"])
            .stdin(Stdio::null())
            .output()
            .context("cannot run tshark (`make setup` installs it)")?;
        ensure!(
            output.status.success(),
            "tshark: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).lines().count())
    };
    let all = count("tcp")?;
    ensure!(all > 1000, "it has sent {all} segments only");
    for (filter, what) in [
        ("_ws.malformed", "are malformed"),
        ("ip.checksum.status == 0", "have a wrong checksum of IP"),
        ("tcp.checksum.status == 0", "have a wrong checksum of TCP"),
    ] {
        let found = count(filter)?;
        ensure!(found == 0, "{found} of {all} segments {what}");
    }
    let again = count("tcp.analysis.retransmission")?;
    let fast = count("tcp.analysis.fast_retransmission")?;
    ensure!(
        !is_clean || again == 0,
        "{again} of {all} segments were sent again, and none is counted"
    );
    Ok(format!(
        "{all} segments, {again} sent again, {fast} of them fast"
    ))
}
