//! Debian's iperf3, openssh, rsync, redis, nginx, curl, wrk, traceroute and mtr, unmodified, on a
//! machine of Skerry's and one of Debian's Linux that are joined by two wires: a clean one, and one
//! that loses, repeats, reorders and damages. The clients of each use the servers of the other.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::pair::{self, sum};
use crate::bench::newest_linux;
use crate::cleanup::Directory;
use crate::test::batch::{self, Step};
use crate::test::{Check, Setting};
use crate::vm::Kernel;
use crate::wire::{End, Faults, Shape, Wire};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/peers.cases");

/// Bytes of what is sent of which a capture is kept.
const CAPTURED: u64 = 256 << 20;

const BEGIN: &str =
    "the programs are there, the cards have addresses, and the machines know each other's keys";
const BEHIND: &str = "a network is behind the machine";
const SERVE: &str = "servers run until the other machine has done with them";
/// The clients that are used on each wire.
const CLIENTS: [(Round, &[&str]); 2] = [
    (
        Round::Clean,
        &[
            "curl: files of the other machine are whole",
            "iperf3 sends and receives, on one connection and on four",
            "iperf3 sends and receives datagrams, whole ones and fragments",
            "ssh, scp and rsync bring what they are given",
            "redis-benchmark has all its answers, and redis-cli what it has stored",
            "wrk has answers only, and no errors",
            "traceroute, mtr and ping reach the other machine",
        ],
    ),
    (
        Round::Faulty,
        &[
            "curl: files of the other machine are whole",
            "iperf3 sends and receives, on one connection and on four",
            "long packets pass a wire with faults in fragments",
        ],
    ),
];
/// The one that asks for a router, which Linux is.
const HOP: &str = "traceroute and mtr see the hop between, and a path that takes less is found";
const DONE: &str = "the clients are done with the servers";
const SERVED_LAST: &str = "the machine that served last waits for the other one";
const FETCHED_LAST: &str = "the machine that fetched last leaves";

/// A wire that is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Clean,
    Faulty,
}

/// How much is done.
struct Size {
    /// Bytes of the large file.
    large: u64,
    /// The file that is fetched on the wire with faults: the large one, or the small one.
    faulty_file: &'static str,
    /// Bytes of each run of iperf3, as it spells them, on each wire.
    bytes: [&'static str; 2],
    /// Requests of each run of redis-benchmark.
    requests: u32,
    /// Seconds of wrk.
    seconds: u32,
    /// The wire's faults.
    faults: Faults,
    /// Seconds that a case may take.
    limit: u32,
}

/// Frames of the wire with faults in a thousand that are lost, carried twice, overtaken, damaged.
const fn faults(loss: u64, others: u64, delay: u64) -> Faults {
    Faults {
        loss,
        duplicate: others,
        reorder: 2 * others,
        corrupt: others,
        seed: 14,
        shape: Shape {
            delay,
            rate: None,
            mtu: Some(1280),
        },
    }
}

/// Some hundred thousand bytes by each program; one frame in a hundred is lost.
const SHORT: Size = Size {
    large: 700_001,
    faulty_file: "large",
    bytes: ["400K", "400K"],
    requests: 300,
    seconds: 1,
    faults: faults(10, 10, 2),
    limit: 300,
};

/// Some millions; three frames in ten are lost.
const LONG: Size = Size {
    large: 5_000_003,
    faulty_file: "small",
    bytes: ["4M", "50K"],
    requests: 20_000,
    seconds: 20,
    faults: faults(300, 30, 5),
    limit: 3000,
};

pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &SHORT)
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &LONG)
}

fn run(setting: &Setting, size: &Size) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let pcap = directory.join("pcap");
    let wire = |name: &str, faults, captured| -> Result<Wire> {
        let at = directory.join(name);
        fs::create_dir(&at)?;
        Wire::new(&at, faults, captured)
    };
    let captured = Some((pcap.as_path(), CAPTURED));
    let clean = wire("clean", Faults::default(), captured)?;
    let faulty = wire("faulty", size.faults, None)?;
    let wires = [&clean, &faulty];
    let shape = pair::Shape {
        memory: "1G",
        patience: Duration::from_secs(6 * u64::from(size.limit)),
        programs: &rootfs::cached(&[packages::PEERS])?,
    };
    let linux = Kernel::Linux(newest_linux()?);
    let skerry = setting.machine("skerry").kernel;
    let ours = pair::machine(setting, "skerry", (&skerry, End::A), &wires, &shape)?;
    let theirs = pair::machine(setting, "linux", (&linux, End::B), &wires, &shape)?;
    let [our_steps, their_steps] = [steps(size, End::A)?, steps(size, End::B)?];
    let machines = [(ours, &our_steps[..]), (theirs, &their_steps[..])];
    let ([ours, theirs], traffic) = pair::run(&wires, machines)?;
    let looked = pair::look(&pcap, &pair::hardware(End::A, 0), &ours, traffic[0]);
    let named = |name: &'static str, checks: Vec<Check>| {
        checks.into_iter().map(move |check| Check {
            what: format!("{name}: {}", check.what),
            ..check
        })
    };
    let mut checks: Vec<_> = named("Skerry", ours).collect();
    checks.extend(named("Linux", theirs));
    checks.push(looked);
    checks.push(Check::new(
        "the wire with faults has had faults",
        faulty_enough(traffic[1].carried, traffic[1].lost),
    ));
    Ok(checks)
}

/// Whether a wire has lost frames.
fn faulty_enough(carried: u64, lost: u64) -> Result<String> {
    anyhow::ensure!(lost > 0, "it has carried {carried} frames, and lost none");
    Ok(format!("it has carried {carried} frames, and lost {lost}"))
}

/// The steps of the machine at one end. On each wire first Skerry serves, at the first end, and
/// then the other one.
fn steps(size: &Size, end: End) -> Result<Vec<Step>> {
    let is_ours = end == End::A;
    let numbers = format!("seq 999999999 2>/dev/null | head -c {}", size.large);
    let large = sum(&numbers)?;
    let small = sum(&format!("{numbers} | head -c 100000"))?;
    let own = 1 + end as usize;
    let card = |wire: usize| format!("eth{}", wire + end as usize);
    let names = [
        ("@OWN@", own.to_string()),
        ("@PEER@", (3 - own).to_string()),
        ("@CLEAN@", card(0)),
        ("@FAULTY@", card(1)),
        ("@LARGE@", size.large.to_string()),
        ("@REQUESTS@", size.requests.to_string()),
        ("@SECONDS@", size.seconds.to_string()),
        ("@SUM@", large.clone()),
        ("@SMALL@", small.clone()),
    ];
    let case = |name: &str, round: Round| -> Result<Step> {
        let steps = batch::steps(CASES, &[])?;
        let step = steps.into_iter().find(|step| step.what == name);
        let mut step = step.with_context(|| format!("no case is named {name:?}"))?;
        let (word, net, file) = match round {
            Round::Clean => ("clean", "9", "large"),
            Round::Faulty => ("faulty", "10", size.faulty_file),
        };
        let file_sum = if file == "large" { &large } else { &small };
        let bytes = size.bytes[round as usize];
        let of_round = [
            ("@ROUND@", word),
            ("@NET@", net),
            ("@FILE@", file),
            ("@FILESUM@", file_sum),
            ("@BYTES@", bytes),
        ];
        let of_round = of_round.map(|(name, value)| (name, value.to_owned()));
        pair::fill_in(&mut step, &of_round);
        pair::fill_in(&mut step, &names);
        if round == Round::Faulty {
            step.what = format!("on a wire with faults, {}", step.what);
        }
        Ok(step)
    };
    let mut all = vec![case(BEGIN, Round::Clean)?];
    if !is_ours {
        all.push(case(BEHIND, Round::Clean)?);
    }
    for (round, clients) in CLIENTS {
        let mut fetches = clients
            .iter()
            .map(|name| case(name, round))
            .collect::<Result<Vec<_>>>()?;
        if is_ours && round == Round::Clean {
            fetches.push(case(HOP, round)?);
        }
        fetches.push(case(DONE, round)?);
        let serves = case(SERVE, round)?;
        if is_ours {
            all.push(serves);
            all.extend(fetches);
        } else {
            all.extend(fetches);
            all.push(serves);
        }
        if round == Round::Clean {
            all.push(pair::repeats_step(is_ours, &card(0))?);
        }
    }
    let last = if is_ours { FETCHED_LAST } else { SERVED_LAST };
    all.push(case(last, Round::Clean)?);
    for step in &mut all {
        step.limit = size.limit;
        if step.what.contains(SERVE) {
            // As long as all the clients' together.
            step.limit *= 4;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_machines_have_all_their_cases_and_nothing_is_left_to_fill_in() {
        for size in [&SHORT, &LONG] {
            for end in [End::A, End::B] {
                let steps = steps(size, end).unwrap();
                let clients = CLIENTS.map(|(_, clients)| clients.len());
                assert!(steps.len() > clients.iter().sum());
                for step in steps {
                    let mut words = step.script.split('@').skip(1);
                    let is_name =
                        |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
                    assert!(!words.any(is_name), "{}", step.script);
                }
            }
        }
    }
}
