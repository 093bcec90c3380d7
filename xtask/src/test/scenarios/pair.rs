//! Two machines that are joined by wires, one of which runs Skerry and the other one Debian's
//! Linux: what tests of servers and clients on them share.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::modules;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel, Machine};
use crate::wire::{End, Traffic, Wire};

const CASES: &str = include_str!("../../../../tests/cases/clean-wire.cases");

/// The case that tells of what was sent again.
const CLEAN: &str = "a clean wire has nothing sent again";
/// The same of Skerry's machine, and of the other one.
const CLEAN_OURS: &str = "Skerry sends nothing again on a clean wire";
const CLEAN_THEIRS: &str = "Linux tells what it has sent again";
/// The answer of a machine that has sent nothing again.
const NOTHING: &str = "no segment was sent again, and no frame lost";

/// Segments that one time-out may have sent again: as many as a new connection sends at once
/// (RFC 6928). The acknowledgements that were late are there before that.
const OF_A_TIMEOUT: u64 = 10;

/// Properties that the machines of a test have in common.
pub struct Shape<'a> {
    /// Memory of each, as QEMU spells it.
    pub memory: &'a str,
    /// How long each may run.
    pub patience: Duration,
    /// Archive of the programs.
    pub programs: &'a Path,
}

/// The hardware address of a machine's card on the wire of this number.
///
/// Cards have addresses by their places, and the first one of both would have the same: at the
/// second end it is on no wire.
pub fn hardware(end: End, wire: usize) -> String {
    format!("52:54:00:12:34:{:02x}", 0x56 + wire + end as usize)
}

/// The machine at one end of wires, whose programs are in `/programs.tar`.
pub fn machine(
    setting: &Setting,
    name: &str,
    (kernel, end): (&Kernel, End),
    wires: &[&Wire],
    shape: &Shape<'_>,
) -> Result<Machine> {
    let mut machine = setting.machine(name);
    machine.kernel = kernel.clone();
    machine.hardware.cpus = 2;
    machine.hardware.memory = shape.memory.into();
    let unused = (end == End::B).then(|| "user,restrict=on".into());
    let joined = wires.iter().map(|wire| wire.network(end));
    machine.hardware.networks = unused.into_iter().chain(joined).collect();
    machine.timeout = Some(shape.patience);
    machine.additions.push(Addition {
        host: shape.programs.to_owned(),
        guest: "/programs.tar".into(),
    });
    if let Kernel::Linux(image) = kernel {
        let needed = [&modules::NETWORK[..], &["drivers/net/veth"]].concat();
        machine.additions.extend(modules::of(image, &needed)?);
    }
    Ok(machine)
}

/// Runs two machines at a time, and the wires until both have ended. Returns the checks of each.
pub fn run(
    wires: &[&Wire],
    machines: [(Machine, &[Step]); 2],
) -> Result<([Vec<Check>; 2], Vec<Traffic>)> {
    let panicked = || anyhow!("a thread of the test panicked");
    let [first, second] = machines;
    thread::scope(|scope| {
        let carried: Vec<_> = wires
            .iter()
            .map(|wire| scope.spawn(move || wire.carry()))
            .collect();
        let first = scope.spawn(move || batch::run(first.0, first.1));
        let second = batch::run(second.0, second.1);
        let first = first.join();
        wires.iter().for_each(|wire| wire.end());
        let traffic = carried
            .into_iter()
            .map(|wire| wire.join().map_err(|_| panicked())?);
        let traffic = traffic.collect::<Result<_>>();
        Ok(([first.map_err(|_| panicked())??, second?], traffic?))
    })
}

/// The step that tells what a machine has sent again by then, which is judged if it is Skerry's;
/// `card` is on the wire.
pub fn repeats_step(is_ours: bool, card: &str) -> Result<Step> {
    let judge = if is_ours { judge_repeats } else { tell_repeats };
    let mut steps = batch::steps(CASES, &[(CLEAN, judge)])?;
    let mut step = steps.pop().context("no case")?;
    step.what = if is_ours { CLEAN_OURS } else { CLEAN_THEIRS }.into();
    step.script = step.script.replace("@CARD@", card);
    Ok(step)
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
/// is a matter of the host: it may have as much sent again as one timer does. Without a timer there
/// is no reason on a clean wire, and for a frame that its own card has no room for there never is.
fn judge_repeats(printed: &str) -> Result<String> {
    let counters = repeats(printed)?;
    let value = |name: &str| {
        let found = counters.iter().find(|(found, _)| *found == name);
        found
            .map(|(_, value)| *value)
            .with_context(|| format!("no counter {name}"))
    };
    let (timeouts, probes) = (value("TCPTimeouts")?, value("TCPLossProbes")?);
    ensure!(
        value("dropped")? == 0,
        "frames were lost before the card: {counters:?}"
    );
    let allowed = OF_A_TIMEOUT * timeouts + probes;
    ensure!(
        value("RetransSegs")? <= allowed,
        "more was sent again than the timers asked for: {counters:?}"
    );
    let is_fast = value("TCPFastRetrans")? > 0 && timeouts == 0;
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

/// The segments that Skerry says it has sent again; none if that was not judged well.
fn counted(checks: &[Check]) -> Option<usize> {
    let check = checks.iter().find(|check| check.what == CLEAN_OURS)?;
    let told = check.result.as_deref().ok()?;
    let repeats = told
        .split(", ")
        .find_map(|one| one.strip_prefix("RetransSegs "));
    match repeats {
        Some(count) => count.parse().ok(),
        None => (told == NOTHING).then_some(0),
    }
}

/// The SHA-256 of what a script prints on the host.
pub fn sum(script: &str) -> Result<String> {
    let output = Command::new("sh")
        .args(["-c", &format!("{script} | sha256sum")])
        .stdin(Stdio::null())
        .output()
        .context("cannot run sha256sum")?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Counts the frames of a capture that a filter of tshark's lets through.
fn frames(pcap: &Path, filter: &str) -> Result<usize> {
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(pcap)
        // What programs say to each other is theirs.
        .args([
            "-d",
            "tcp.port==1-65535,data",
            "-d",
            "udp.port==1-65535,data",
        ])
        .args(["-o", "ip.check_checksum:TRUE"])
        .args(["-o", "tcp.check_checksum:TRUE"])
        .args(["-o", "udp.check_checksum:TRUE"])
        .args(["-Y", filter, "-T", "fields", "-e", "frame.number"])
        .stdin(Stdio::null())
        .output()
        .context("cannot run tshark (`make setup` installs it)")?;
    ensure!(
        output.status.success(),
        "tshark: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}

/// The check of what was sent from a hardware address on a clean wire, by its capture: nothing is
/// malformed or wrongly summed, and nothing is sent again that is not counted.
pub fn look(pcap: &Path, hardware: &str, checks: &[Check], traffic: Traffic) -> Check {
    let look = || -> Result<String> {
        let count = |filter: &str| frames(pcap, &format!("eth.src == {hardware} && ({filter})"));
        let all = count("eth")?;
        ensure!(all > 1000, "it has sent {all} frames only");
        for (filter, what) in [
            ("_ws.malformed", "are malformed"),
            ("_ws.expert.severity == error", "have something wrong"),
            ("ip.checksum.status == 0", "have a wrong checksum of IP"),
            ("tcp.checksum.status == 0", "have a wrong checksum of TCP"),
            ("udp.checksum.status == 0", "have a wrong checksum of UDP"),
            ("icmp.checksum.status == 0", "have a wrong checksum of ICMP"),
            (
                "icmpv6.checksum.status == 0",
                "have a wrong checksum of ICMPv6",
            ),
        ] {
            let found = count(filter)?;
            ensure!(found == 0, "{found} of {all} frames {what}");
        }
        let again = count("tcp.analysis.retransmission || tcp.analysis.out_of_order")?;
        let told = counted(checks);
        ensure!(
            told.is_none_or(|told| again <= told),
            "{again} segments were sent again, and {told:?} are counted"
        );
        let Traffic { carried, lost } = traffic;
        let [four, six] = [count("ip")?, count("ipv6")?];
        Ok(format!(
            "{all} frames ({four} of IPv4, {six} of IPv6), {again} sent again; the wire has \
             carried {carried}, and {lost} to nobody"
        ))
    };
    Check::new(
        "tshark finds nothing malformed or wrongly summed of what it has sent",
        look(),
    )
}

/// Fills names in, in a script and in what it is to print.
pub fn fill_in(step: &mut Step, names: &[(&str, String)]) {
    let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
    let fill_in = |text: &str| names.iter().fold(text.to_owned(), fill);
    step.script = fill_in(&step.script);
    if let Expect::Text(text) = &mut step.expect {
        *text = fill_in(text).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(again: u64, fast: u64, timeouts: u64, probes: u64, dropped: u64) -> String {
        format!(
            "RetransSegs {again}\nTCPFastRetrans {fast}\nTCPTimeouts {timeouts}\n\
             TCPLossProbes {probes}\ndropped {dropped}"
        )
    }

    #[test]
    fn timers_excuse_what_they_ask_for_and_no_more() {
        let judged = |counters: [u64; 5]| {
            let [again, fast, timeouts, probes, dropped] = counters;
            judge_repeats(&printed(again, fast, timeouts, probes, dropped))
        };
        assert_eq!(judged([0, 0, 0, 0, 0]).unwrap(), NOTHING);
        assert_eq!(judged([0, 0, 0, 3, 0]).unwrap(), NOTHING);
        assert!(judged([3, 0, 0, 3, 0]).is_ok());
        assert!(judged([4, 0, 0, 3, 0]).is_err());
        assert!(judged([1, 0, 0, 0, 0]).is_err());
        assert!(judged([12, 2, 1, 2, 0]).is_ok());
        assert!(judged([13, 0, 1, 2, 0]).is_err());
        assert!(judged([1, 1, 0, 1, 0]).is_err());
        assert!(judged([0, 0, 0, 0, 1]).is_err());
        assert!(judge_repeats("RetransSegs 0").is_err());
    }

    #[test]
    fn what_is_counted_is_read_from_the_check() {
        let counted_of = |result| counted(&[Check::new(CLEAN_OURS, result)]);
        assert_eq!(counted_of(Ok(NOTHING.into())), Some(0));
        assert_eq!(counted_of(tell_repeats(&printed(7, 0, 1, 0, 0))), Some(7));
        assert_eq!(counted_of(Err(anyhow!("no"))), None);
        assert_eq!(counted(&[]), None);
    }
}
