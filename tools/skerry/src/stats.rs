//! `stats`: what instances use, by their own counters.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use abi::dev::{self, Stats, Status};
use serde::Serialize;

use crate::device::Device;
use crate::failure::{Context, Result};
use crate::instances::{self, label};
use crate::streams::Signals;
use crate::{networks, peers, show, size};

/// Time from one picture to the next, as docker has it.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time that an instance has to put together what it is asked, and that between two looks for it.
const ANSWER_LIMIT: Duration = Duration::from_millis(100);
const ANSWER_LOOK: Duration = Duration::from_millis(2);

/// Options of `skerry stats`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also instances that do not run.
    pub all: bool,
    /// One picture only.
    pub once: bool,
    /// A document a line.
    pub json: bool,
    /// Only these instances; all that run if there are none.
    pub names: Vec<String>,
}

/// Figures of what an instance has used since its start. Memory in bytes, times in microseconds,
/// summed over its CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// Memory in use; `null` if it has not told yet.
    pub memory_used: Option<u64>,
    /// Number of its programs' threads; likewise.
    pub threads: Option<u32>,
    /// Time of programs.
    pub user_us: f64,
    /// Time of its kernel.
    pub system_us: f64,
    /// Time without a thread.
    pub idle_us: f64,
    /// Time paused.
    pub paused_us: f64,
    /// Time that the supervisor has worked for it.
    pub supervisor_us: f64,
    /// Number of context switches.
    pub switches: u64,
    /// Number of interrupts.
    pub interrupts: u64,
    /// Number of messages that it was sent.
    pub messages: u64,
    /// Bytes of standard input.
    pub input_bytes: u64,
    /// Bytes of standard output and error.
    pub output_bytes: u64,
    /// Bytes of its kernel's log.
    pub log_bytes: u64,
}

impl Usage {
    /// From the device's record.
    #[must_use]
    pub fn new(stats: &Stats) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let has_told = stats.answered != 0;
        Self {
            memory_used: has_told.then_some(stats.mem_used),
            threads: has_told.then_some(stats.threads),
            user_us: us(stats.user_ns),
            system_us: us(stats.system_ns),
            idle_us: us(stats.idle_ns),
            paused_us: us(stats.paused_ns),
            supervisor_us: us(stats.supervisor_ns),
            switches: stats.switches,
            interrupts: stats.interrupts,
            messages: stats.messages,
            input_bytes: stats.input_bytes,
            output_bytes: stats.output_bytes,
            log_bytes: stats.log_bytes,
        }
    }
}

/// An instance in a picture.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    id: u32,
    state: &'static str,
    cpus: u32,
    memory: u64,
    /// CPU time since the picture before, in percent of one CPU.
    cpu_percent: f64,
    /// Bytes that its network card was given; `null` without a network.
    net_received_bytes: Option<u64>,
    /// Bytes that its network card has sent; likewise.
    net_sent_bytes: Option<u64>,
    /// Messages exchanged with each peer, in all and a second.
    peers: Vec<peers::Rated>,
    #[serde(flatten)]
    usage: Usage,
}

/// Figures of an instance at a look.
#[derive(Clone, Debug, Default)]
struct Seen {
    stats: Stats,
    peers: Vec<peers::Shown>,
}

impl<'a> Row<'a> {
    /// Figures of `now`; rates since `before`.
    fn new(status: &'a Status, before: &Seen, now: &Seen, passed: Duration) -> Self {
        let busy = |seen: &Seen| seen.stats.user_ns + seen.stats.system_ns;
        let used = busy(now).saturating_sub(busy(before)) as f64;
        let percent = used / passed.as_nanos().max(1) as f64 * 100.0;
        let has_network = networks::address(status).is_some();
        Self {
            name: label(status),
            id: status.id,
            state: show::state_name(status),
            cpus: status.cpus,
            memory: status.mem,
            cpu_percent: (percent * 100.0).round() / 100.0,
            net_received_bytes: has_network.then_some(status.network.received_bytes),
            net_sent_bytes: has_network.then_some(status.network.sent_bytes),
            peers: peers::rated(&before.peers, &now.peers, passed),
            usage: Usage::new(&now.stats),
        }
    }

    /// Sum of a count over all peers; `None` if it has no names of any.
    fn messages(&self, count: impl Fn(&peers::Shown) -> u64) -> Option<u64> {
        // Each number is an instance's word: the sum may be more than fits.
        let all = self.peers.iter().map(|rated| count(&rated.peer));
        (!self.peers.is_empty()).then(|| all.fold(0, u64::saturating_add))
    }

    fn cells(&self) -> Vec<String> {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "--".into());
        let used = self.usage.memory_used;
        let percent = used.map(|used| used as f64 / self.memory.max(1) as f64 * 100.0);
        vec![
            self.name.into(),
            format!("{:.2}%", self.cpu_percent),
            format!(
                "{} / {}",
                or_none(used.map(size::format)),
                size::format(self.memory)
            ),
            or_none(percent.map(|percent| format!("{percent:.2}%"))),
            match (self.net_received_bytes, self.net_sent_bytes) {
                (Some(received), Some(sent)) => {
                    format!("{} / {}", size::format(received), size::format(sent))
                }
                _ => "--".into(),
            },
            format!(
                "{} / {}",
                size::format(self.usage.input_bytes),
                size::format(self.usage.output_bytes)
            ),
            match (
                self.messages(|peer| peer.sent),
                self.messages(|peer| peer.received),
            ) {
                (Some(sent), Some(received)) => format!("{sent} / {received}"),
                _ => "--".into(),
            },
            or_none(self.messages(|peer| peer.refused).map(|n| n.to_string())),
            self.usage.interrupts.to_string(),
            format!("{:.1} ms", self.usage.supervisor_us / 1e3),
            or_none(self.usage.threads.map(|threads| threads.to_string())),
        ]
    }
}

/// Figures of what instances have used, with what they tell when they are asked now. Who does not
/// answer in time is not waited for: then that is what it told last. One that is gone is left out.
///
/// # Errors
/// The device's.
pub fn fresh(device: &dyn Device, ids: &[u32]) -> io::Result<Vec<Stats>> {
    let ask = |flags| -> io::Result<Vec<Stats>> {
        let each = ids.iter().map(|&id| device.stats(id, flags));
        each.filter(|stats| !is_gone(stats)).collect()
    };
    let mut all = ask(dev::STATS_ASK)?;
    let begun = Instant::now();
    // Another tool may ask meanwhile: then its question is answered, too.
    while all.iter().any(|stats| stats.answered != stats.asked) && begun.elapsed() < ANSWER_LIMIT {
        thread::sleep(ANSWER_LOOK);
        all = ask(0)?;
    }
    Ok(all)
}

fn is_gone(stats: &io::Result<Stats>) -> bool {
    matches!(stats, Err(error) if error.kind() == ErrorKind::NotFound)
}

/// The instances to be shown, and what they have used.
fn look(device: &dyn Device, options: &Options) -> Result<Vec<(Status, Seen)>> {
    let wanted = match options.names.as_slice() {
        [] => {
            let mut all = instances::all(device)?;
            all.retain(|status| options.all || status.state == dev::STATE_RUNNING);
            all
        }
        names => names
            .iter()
            .map(|name| instances::find(device, name))
            .collect::<Result<_>>()?,
    };
    let mut shown = Vec::with_capacity(wanted.len());
    for status in wanted {
        // What it tells is there at the next look.
        let stats = device.stats(status.id, dev::STATS_ASK);
        // Else it was removed meanwhile.
        if !is_gone(&stats) {
            let failed = || format!("cannot look at {}", label(&status));
            let stats = stats.context(failed)?;
            let peers = peers::of(device, status.id).context(failed)?;
            shown.push((status, Seen { stats, peers }));
        }
    }
    Ok(shown)
}

fn print(rows: &[Row<'_>], json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        for row in rows {
            serde_json::to_writer(&mut *out, row)?;
            writeln!(out)?;
        }
        return out.flush();
    }
    let heading = [
        "NAME",
        "CPU %",
        "MEM USAGE / LIMIT",
        "MEM %",
        "NET I/O",
        "STREAM I/O",
        "MESSAGES",
        "REFUSED",
        "INTERRUPTS",
        "SUPERVISOR",
        "THREADS",
    ];
    let mut table = vec![heading.map(String::from).to_vec()];
    table.extend(rows.iter().map(Row::cells));
    show::table(&table, out)?;
    out.flush()
}

/// Shows one picture after the other, or one only.
///
/// # Errors
/// The device's, or those of standard output but that nobody reads it any more.
pub fn run(device: &dyn Device, options: &Options, out: &mut dyn Write) -> Result<()> {
    let in_place = !options.once && !options.json && io::stdout().is_terminal();
    let mut signals = Signals::new().context(|| "cannot catch signals")?;
    let mut at = Instant::now();
    let figures = |shown: &[(Status, Seen)]| -> BTreeMap<u32, Seen> {
        shown
            .iter()
            .map(|(status, seen)| (status.id, seen.clone()))
            .collect()
    };
    let mut before = figures(&look(device, options)?);
    while !signals.wait(INTERVAL) {
        let shown = look(device, options)?;
        let passed = at.elapsed();
        at = Instant::now();
        let rows: Vec<_> = shown
            .iter()
            .map(|(status, now)| {
                // One that is new has used all of it since.
                let none = Seen::default();
                let before = before.get(&status.id).unwrap_or(&none);
                Row::new(status, before, now, passed)
            })
            .collect();
        if in_place {
            // Home, and clear what is below.
            let _ = write!(out, "\x1b[H\x1b[J");
        }
        match print(&rows, options.json, out) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            other => other.context(|| "standard output")?,
        }
        if options.once {
            break;
        }
        before = figures(&shown);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{create, find, start};
    use crate::mock::{Mock, request};

    fn running(mock: &Mock, name: &str) -> Status {
        let created = create(mock, &request(name, &["sleep"]), SystemTime::now()).unwrap();
        start(mock, &created).unwrap();
        find(mock, name).unwrap()
    }

    #[test]
    fn a_row_is_a_rate_and_sums() {
        let mock = Mock::new(4, 1 << 30);
        let status = running(&mock, "box");
        let before = Stats {
            user_ns: 1_000_000_000,
            ..Stats::default()
        };
        let now = Stats {
            user_ns: 2_000_000_000,
            system_ns: 500_000_000,
            supervisor_ns: 1_500_000,
            interrupts: 7,
            input_bytes: 10,
            output_bytes: 2048,
            mem: 64 << 20,
            mem_used: 16 << 20,
            threads: 3,
            answered: 1,
            ..Stats::default()
        };
        let seen = |stats: Stats| Seen {
            stats,
            peers: Vec::new(),
        };
        let (before, mut now) = (seen(before), seen(now));
        let row = Row::new(&status, &before, &now, Duration::from_secs(2));
        assert_eq!(
            row.cells(),
            [
                "box",
                "75.00%",
                "16 MiB / 64 MiB",
                "25.00%",
                "--",
                "10 B / 2 KiB",
                "--",
                "--",
                "7",
                "1.5 ms",
                "3"
            ]
        );
        let mut connected = status;
        connected.address = 1;
        connected.network.received_bytes = 2048;
        let row = Row::new(&connected, &before, &now, Duration::from_secs(2));
        assert_eq!(row.cells()[4], "2 KiB / 0 B");
        let peer = peers::Shown {
            name: "b".into(),
            group: None,
            id: Some(2),
            sent: 40,
            received: 7,
            refused: 2,
            doorbells: 1,
            held_back: 0,
        };
        let liar = peers::Shown {
            name: "c".into(),
            received: u64::MAX,
            ..peer.clone()
        };
        now.peers = vec![peer, liar];
        let row = Row::new(&status, &before, &now, Duration::from_secs(2));
        assert_eq!(row.cells()[6..8], [&*format!("80 / {}", u64::MAX), "4"]);
        let json = serde_json::to_value(&row).unwrap();
        let [peer, _] = json["peers"].as_array().unwrap().as_slice() else {
            panic!("two: {json}");
        };
        assert_eq!((&peer["name"], &peer["refused"]), (&"b".into(), &2.into()));
        assert_eq!(peer["rates"]["sent"], 20.0);
        let unknown = seen(Stats {
            answered: 0,
            ..now.stats
        });
        let row = Row::new(&status, &unknown, &unknown, Duration::from_secs(1));
        assert_eq!(row.cells()[1..4], ["0.00%", "-- / 64 MiB", "--"]);
        let json = serde_json::to_value(&row).unwrap();
        assert!(json["memory_used"].is_null() && json["user_us"] == 2e6);
    }

    #[test]
    fn those_that_run_are_shown_unless_others_are_asked_for() {
        let mock = Mock::new(4, 1 << 30);
        running(&mock, "one");
        create(&mock, &request("two", &["sleep"]), SystemTime::now()).unwrap();
        let names = |options: &Options| -> Vec<String> {
            let shown = look(&mock, options).unwrap();
            shown.iter().map(|(s, _)| label(s).to_owned()).collect()
        };
        assert_eq!(names(&Options::default()), ["one"]);
        let all = Options {
            all: true,
            ..Options::default()
        };
        assert_eq!(names(&all), ["one", "two"]);
        let named = Options {
            names: vec!["two".into()],
            ..Options::default()
        };
        assert_eq!(names(&named), ["two"]);
        let missing = Options {
            names: vec!["three".into()],
            ..Options::default()
        };
        assert!(look(&mock, &missing).is_err());
    }
}
