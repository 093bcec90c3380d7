//! `skerry top`: what the CPUs do, who has them, and which locks are waited for.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use abi::dev::Status;
use serde::Serialize;

use crate::counters::{Counters, Lock};
use crate::device::Device;
use crate::failure::{Context, Failure, Result};
use crate::instances::{self, label};
use crate::streams::Signals;
use crate::{peers, show, size};

/// Lock sites shown.
const LOCKS: usize = 8;

/// Options of `skerry top`.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time from one picture to the next.
    pub delay: Duration,
    /// Number of pictures; without end if `None`.
    pub count: Option<u64>,
    /// One below the other as plain text.
    pub batch: bool,
    /// JSON output, one document in each line.
    pub json: bool,
}

/// A CPU in a picture. Rates are per second.
#[derive(Debug, Serialize)]
struct Cpu {
    cpu: u32,
    /// Part of the time with a thread, in percent.
    busy_percent: f64,
    idle_percent: f64,
    /// Threads running or waiting for the CPU.
    runnable: u64,
    /// Every other counter of `/proc/skerry/cpus`, by name.
    rates: BTreeMap<String, f64>,
    /// Interrupts taken, by what they are for.
    interrupts: BTreeMap<String, f64>,
}

/// A lock site in a picture.
#[derive(Debug, Serialize)]
struct Site {
    site: String,
    waits: f64,
    /// Milliseconds waited, per second.
    wait_ms: f64,
}

/// An instance in a picture.
#[derive(Debug, Serialize)]
struct Instance {
    name: String,
    state: &'static str,
    cpus: u32,
    memory: u64,
    /// Its messages with all peers, a second.
    messages: peers::Rates,
}

/// Instances at a moment, and their peers.
type Instances = Vec<(Status, Vec<peers::Shown>)>;

fn look(device: &dyn Device) -> Result<Instances> {
    let all = instances::all(device)?;
    let with_peers = |status: Status| {
        let peers = peers::of(device, status.id);
        let peers = peers.context(|| format!("cannot look at {}", label(&status)))?;
        Ok((status, peers))
    };
    all.into_iter().map(with_peers).collect()
}

/// Figures that `top` shows at one moment: rates since the moment before.
#[derive(Debug, Serialize)]
struct Snapshot {
    seconds: f64,
    cpus: Vec<Cpu>,
    locks: Vec<Site>,
    /// `null` inside an instance, which knows of no others.
    instances: Option<Vec<Instance>>,
}

impl Snapshot {
    /// Rates over so many seconds; `now` for figures that are no rates.
    fn new(
        since: &Counters,
        now: &Counters,
        passed: Duration,
        statuses: Option<[&Instances; 2]>,
    ) -> Self {
        let seconds = passed.as_secs_f64();
        let rate = |count: u64| (count as f64 / seconds * 10.0).round() / 10.0;
        let cpu = |(&cpu, counts): (&u32, &BTreeMap<String, u64>)| {
            let idle = counts
                .get("idle_ns")
                .map_or(0.0, |ns| *ns as f64 / seconds / 1e7)
                .clamp(0.0, 100.0);
            let idle = (idle * 10.0).round() / 10.0;
            let counted = counts
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "idle_ns" | "runnable"));
            let interrupts = since.interrupts.get(&cpu).into_iter().flatten();
            Cpu {
                cpu,
                busy_percent: ((100.0 - idle) * 10.0).round() / 10.0,
                idle_percent: idle,
                runnable: now
                    .cpus
                    .get(&cpu)
                    .and_then(|counts| counts.get("runnable"))
                    .copied()
                    .unwrap_or(0),
                rates: counted
                    .map(|(name, count)| (name.clone(), rate(*count)))
                    .collect(),
                interrupts: interrupts
                    .map(|(name, count)| (name.clone(), rate(*count)))
                    .collect(),
            }
        };
        let mut locks: Vec<&Lock> = since.locks.iter().collect();
        locks.sort_by_key(|lock| std::cmp::Reverse(lock.wait_ns));
        let site = |lock: &&Lock| Site {
            site: lock.site.clone(),
            waits: rate(lock.waits),
            wait_ms: lock.wait_ns as f64 / 1e6 / seconds,
        };
        let rows = |[before, now]: [&Instances; 2]| {
            let row = |(status, peers): &(Status, Vec<peers::Shown>)| {
                let mut earlier = before.iter();
                let earlier = earlier.find(|(other, _)| other.id == status.id);
                let earlier = earlier.map_or(&[][..], |(_, peers)| peers);
                Instance {
                    name: label(status).to_owned(),
                    state: show::state_name(status),
                    cpus: status.cpus,
                    memory: status.mem,
                    messages: peers::Rates::sum(&peers::rated(earlier, peers, passed)),
                }
            };
            now.iter().map(row).collect()
        };
        Self {
            seconds,
            cpus: since.cpus.iter().map(cpu).collect(),
            locks: locks.iter().take(LOCKS).map(site).collect(),
            instances: statuses.map(rows),
        }
    }

    /// Prints the picture as text.
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let heading = [
            "CPU", "BUSY%", "IDLE%", "RUN", "SWITCH/s", "WAKE/s", "IPI/s", "SAVED/s", "STEAL/s",
            "POLL/s", "SHOOT/s", "IRQ/s", "OF WHICH",
        ];
        let mut rows = vec![heading.map(String::from).to_vec()];
        for cpu in &self.cpus {
            let rate = |name: &str| {
                cpu.rates
                    .get(name)
                    .map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"))
            };
            let mut kinds: Vec<_> = cpu
                .interrupts
                .iter()
                .filter(|(_, rate)| **rate > 0.0)
                .collect();
            kinds.sort_by(|a, b| b.1.total_cmp(a.1));
            let kinds: Vec<_> = kinds
                .iter()
                .map(|(name, rate)| format!("{name} {rate:.0}"))
                .collect();
            rows.push(vec![
                cpu.cpu.to_string(),
                format!("{:.1}", cpu.busy_percent),
                format!("{:.1}", cpu.idle_percent),
                cpu.runnable.to_string(),
                rate("switches"),
                rate("wakes"),
                rate("ipis"),
                rate("ipis_saved"),
                rate("steals"),
                rate("polls"),
                rate("shootdowns"),
                format!("{:.0}", cpu.interrupts.values().sum::<f64>()),
                kinds.join(", "),
            ]);
        }
        show::table(&rows, out)?;
        if let Some(instances) = &self.instances {
            writeln!(out)?;
            let mut rows = vec![
                [
                    "INSTANCE",
                    "STATE",
                    "CPUS",
                    "MEMORY",
                    "SENT/s",
                    "RECEIVED/s",
                    "REFUSED/s",
                    "HELD BACK/s",
                ]
                .map(String::from)
                .to_vec(),
            ];
            let rate = |rate: f64| format!("{rate:.0}");
            let row = |i: &Instance| {
                vec![
                    i.name.clone(),
                    i.state.into(),
                    i.cpus.to_string(),
                    size::format(i.memory),
                    rate(i.messages.sent),
                    rate(i.messages.received),
                    rate(i.messages.refused),
                    rate(i.messages.held_back),
                ]
            };
            rows.extend(instances.iter().map(row));
            show::table(&rows, out)?;
        }
        if !self.locks.is_empty() {
            writeln!(out)?;
            let mut rows = vec![
                ["LOCK WAITED FOR AT", "WAITS/s", "WAITED ms/s"]
                    .map(String::from)
                    .to_vec(),
            ];
            rows.extend(self.locks.iter().map(|l| {
                vec![
                    l.site.clone(),
                    format!("{:.1}", l.waits),
                    format!("{:.3}", l.wait_ms),
                ]
            }));
            show::table(&rows, out)?;
        }
        Ok(())
    }
}

/// Shows one picture after the other.
///
/// # Errors
/// There are no counters, or nowhere to show them.
pub fn run(device: Option<&dyn Device>, options: Options, out: &mut dyn Write) -> Result<()> {
    if options.delay.is_zero() {
        return Err(Failure {
            status: 2,
            ..Failure::new("--delay 0: there must be time between two pictures")
        });
    }
    let read = || Counters::now().context(|| "cannot read the kernel's counters: is this Skerry?");
    // On a terminal each picture replaces the one before.
    let in_place = !options.batch && !options.json && io::stdout().is_terminal();
    let mut signals = Signals::new().context(|| "cannot catch signals")?;
    let (mut before, mut at) = (read()?, Instant::now());
    let mut instances_before = device.map(look).transpose()?.unwrap_or_default();
    for number in 0.. {
        if options.count.is_some_and(|count| number >= count) || signals.wait(options.delay) {
            break;
        }
        let (now, passed) = (read()?, at.elapsed());
        at = Instant::now();
        let instances = device.map(look).transpose()?;
        let both = instances.as_ref().map(|now| [&instances_before, now]);
        let picture = Snapshot::new(&now.since(&before), &now, passed, both);
        before = now;
        instances_before = instances.unwrap_or_default();
        let shown = if options.json {
            serde_json::to_writer(&mut *out, &picture)
                .map_err(io::Error::from)
                .and_then(|()| writeln!(out))
        } else {
            let before = match (in_place, number) {
                // Home, and clear what is below.
                (true, _) => "\x1b[H\x1b[J",
                (false, 0) => "",
                (false, _) => "\n",
            };
            write!(out, "{before}").and_then(|()| picture.show(out))
        };
        match shown.and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other.context(|| "standard output")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_shows_rates() {
        let counts = |pairs: &[(&str, u64)]| {
            pairs
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        let since = Counters {
            cpus: [(
                0,
                counts(&[("switches", 100), ("idle_ns", 500_000_000), ("runnable", 0)]),
            )]
            .into(),
            interrupts: [(0, counts(&[("timer", 4), ("reschedule", 20)]))].into(),
            locks: vec![Lock {
                number: 1,
                site: "crates/x.rs:7".into(),
                waits: 4,
                wait_ns: 2_000_000,
            }],
        };
        let now = Counters {
            cpus: [(0, counts(&[("runnable", 3)]))].into(),
            ..Counters::default()
        };
        let peer = |sent| peers::Shown {
            name: "b".into(),
            group: None,
            id: Some(2),
            sent,
            received: 0,
            refused: 0,
            doorbells: 0,
            held_back: 0,
        };
        let mut status: Status = abi::dev::zeroed();
        (status.id, status.label) = (1, abi::dev::field("web").unwrap());
        let instances = |sent| vec![(status, vec![peer(sent)])];
        let passed = Duration::from_secs(2);
        let both = [&instances(10), &instances(30)];
        let picture = Snapshot::new(&since, &now, passed, Some(both));
        let mut text = Vec::new();
        picture.show(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..6], ["0", "75.0", "25.0", "3", "50", "-"]);
        assert!(
            text.contains("reschedule 10, timer 2") && text.contains("crates/x.rs:7"),
            "{text}"
        );
        let row = text.lines().find(|line| line.starts_with("web")).unwrap();
        assert!(row.contains(" 10 "), "{row}");
        let json = serde_json::to_value(&picture).unwrap();
        assert_eq!(json["instances"][0]["messages"]["sent"], 10.0);
        assert_eq!(
            (
                json["cpus"][0]["rates"]["switches"].as_f64(),
                json["locks"][0]["wait_ms"].as_f64()
            ),
            (Some(50.0), Some(1.0))
        );
    }
}
