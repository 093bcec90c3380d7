//! `autoscale`: CPUs go from one instance to another while the other's latency is too high
//! (`docs/autoscale.md`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use abi::dev::{self, Status};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::failure::{Context, Failure, Result};
use crate::instances::label;
use crate::state::{FileStamp, Store};
use crate::streams::Signals;
use crate::{managed, resize};

/// Time that an instance has to answer a change, and a command to tell a latency; and that between
/// two looks at the latter.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of the end of what tells a latency.
const TAIL: u64 = 4096;

/// Source of latencies.
#[derive(Clone, Debug)]
pub enum Source {
    /// The last line of a file that somebody writes.
    File(PathBuf),
    /// The last line that a command of the shell prints.
    Command(String),
}

/// Options of `skerry autoscale`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The instance that lends CPUs.
    pub from: String,
    /// The instance that gets them, whose latency it is.
    pub to: String,
    /// Source of the latency.
    pub source: Source,
    /// Latency below which CPUs go back.
    pub low: Duration,
    /// Latency above which CPUs are lent.
    pub high: Duration,
    /// Time between two looks.
    pub interval: Duration,
    /// Number of CPUs that the lender keeps.
    pub keep: u32,
    /// Print a document for each look.
    pub json: bool,
}

/// CPUs that two instances had before one began to lend to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// CPUs of the lender.
    pub from_had: u32,
    /// CPUs of the other.
    pub to_had: u32,
}

impl Loan {
    /// Number of CPUs that are lent, or on their way.
    fn lent(self, from: u32) -> u32 {
        self.from_had.saturating_sub(from)
    }

    /// CPUs that both are to have when so many are lent.
    fn shares(self, lent: u32) -> (u32, u32) {
        (self.from_had - lent, self.to_had + lent)
    }
}

/// Outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    /// A CPU was lent.
    Lend,
    /// A CPU was given back.
    Return,
    /// Nothing was to be done.
    None,
    /// A CPU would be lent, but the lender has no more.
    Least,
    /// A change was refused, or is not answered yet.
    Failed,
}

/// Line about a look.
#[derive(Debug, Serialize)]
struct Look<'a> {
    /// Seconds since 1970.
    time: f64,
    /// Milliseconds; `null` if it is not known.
    latency_ms: Option<f64>,
    from: &'a str,
    from_cpus: u32,
    to: &'a str,
    to_cpus: u32,
    lent: u32,
    action: Action,
    error: Option<String>,
}

impl Look<'_> {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        if json {
            serde_json::to_writer(&mut *out, self)?;
            writeln!(out)?;
            return out.flush();
        }
        let latency = match self.latency_ms {
            Some(latency) => format!("{latency:.1} ms"),
            None => "unknown".into(),
        };
        let done = match (&self.error, self.action) {
            (Some(error), _) => error.clone(),
            (None, Action::Lend) => format!("{} lends a CPU", self.from),
            (None, Action::Return) => format!("{} gives a CPU back", self.to),
            (None, Action::Least) => format!("{} has no more to lend", self.from),
            (None, Action::None | Action::Failed) => String::new(),
        };
        let text = format!(
            "{:.1}  {latency:>10}  {} {}  {} {}  lent {}  {done}",
            self.time, self.from, self.from_cpus, self.to, self.to_cpus, self.lent
        );
        writeln!(out, "{}", text.trim_end())?;
        out.flush()
    }
}

/// Number of CPUs that are to be lent, and what to call that. In between nothing changes.
fn decide(latency: Option<Duration>, options: &Options, lent: u32, from: u32) -> (u32, Action) {
    match latency {
        Some(latency) if latency > options.high => {
            if from > options.keep {
                (lent + 1, Action::Lend)
            } else {
                (lent, Action::Least)
            }
        }
        Some(latency) if latency < options.low && lent > 0 => (lent - 1, Action::Return),
        _ => (lent, Action::None),
    }
}

/// Reads a time: `183ms`, `0.2s`; a number alone is milliseconds.
///
/// # Errors
/// Says what a time looks like.
pub fn parse_time(text: &str) -> Result<Duration> {
    let text = text.trim();
    let wrong = || {
        Failure::new(format!(
            "{text:?} is no time: give a number and a unit, such as 160ms or 0.2s"
        ))
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "" | "ms" => 1e-3,
        "us" => 1e-6,
        "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// The time in the last line of a text.
fn last_time(text: &[u8]) -> Result<Duration> {
    let text = String::from_utf8_lossy(text);
    parse_time(text.trim_end().lines().last().unwrap_or(""))
}

/// The latency now; `None` if there is none since the last look.
fn latency(source: &Source, seen: &mut Option<FileStamp>) -> Result<Option<Duration>> {
    match source {
        Source::File(path) => {
            let stamp = FileStamp::of(Some(path));
            if stamp.is_some() && *seen == stamp {
                return Ok(None);
            }
            let time = last_time(&tail(path).context(|| path.display().to_string())?)?;
            *seen = stamp;
            Ok(Some(time))
        }
        Source::Command(command) => last_time(&output(command)?).map(Some),
    }
}

/// The end of a file.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text)?;
    Ok(text)
}

/// The beginning of what a command prints. One that takes too long is killed.
fn output(command: &str) -> Result<Vec<u8>> {
    let failed = || format!("cannot run {command:?}");
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(failed)?;
    // Whoever else has the pipe may keep it open: then that thread is left to itself.
    let (sender, receiver) = std::sync::mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stdout.take(TAIL).read_to_end(&mut text);
            let _ = sender.send(text);
        });
    }
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().context(failed)? {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Failure::new(format!("{command:?} did not end")));
            }
            None => thread::sleep(LOOK),
        }
    };
    if !status.success() {
        return Err(Failure::new(format!("{command:?} failed: {status}")));
    }
    receiver
        .recv_timeout(PATIENCE)
        .map_err(|_| Failure::new(format!("{command:?} did not close its output")))
}

/// Two instances, and what one has lent to the other.
struct Pair<'a> {
    device: &'a dyn Device,
    store: &'a Store,
    options: &'a Options,
    /// CPUs that both had after the last step, if it was not left half done.
    settled: Option<(u32, u32)>,
    /// The loan as it was seen last.
    loan: Option<Loan>,
}

impl Pair<'_> {
    fn find(&self, name: &str) -> Result<Status> {
        let status = crate::instances::find(self.device, name)?;
        if status.state == dev::STATE_RUNNING {
            Ok(status)
        } else {
            Err(Failure::new(format!(
                "{name} does not run: CPUs move between running instances only"
            )))
        }
    }

    /// Both, and the loan, as it is after others have resized one of them.
    fn look(&mut self) -> Result<(Status, Status, Loan)> {
        let (from, to) = (self.find(&self.options.from)?, self.find(&self.options.to)?);
        let record = self.store.read(to.id)?;
        let known = record.and_then(|record| record.borrowed.get(label(&from)).copied());
        let fresh = Loan {
            from_had: from.cpus,
            to_had: to.cpus,
        };
        let mut loan = known.unwrap_or(fresh);
        if let Some((from_had, to_had)) = self.settled
            && (from_had, to_had) != (from.cpus, to.cpus)
        {
            let changed = |base: u32, now: u32, then: u32| (base + now).saturating_sub(then).max(1);
            loan = Loan {
                from_had: changed(loan.from_had, from.cpus, from_had),
                to_had: changed(loan.to_had, to.cpus, to_had),
            };
        }
        if known != Some(loan) {
            self.remember(&to, label(&from), Some(loan))?;
        }
        self.loan = Some(loan);
        Ok((from, to, loan))
    }

    fn remember(&self, to: &Status, from: &str, loan: Option<Loan>) -> Result<()> {
        let (_lock, status) = managed::find_locked(self.device, self.store, label(to))?;
        self.store.update(status.id, |record| {
            match loan {
                Some(loan) => record.borrowed.insert(from.to_owned(), loan),
                None => record.borrowed.remove(from),
            };
        })
    }

    /// Has an instance have so many CPUs.
    fn set(&self, name: &str, cpus: u32) -> Result<()> {
        let options = resize::Options {
            cpus: Some(cpus),
            limit: Some(PATIENCE),
            ..resize::Options::default()
        };
        managed::resize(self.device, self.store, name, options).map(drop)
    }

    /// Brings both to what they are to have when so many CPUs are lent: first who has too many
    /// gives, then the other gets it. If that fails it goes home.
    fn carry(&mut self, loan: Loan, lent: u32) -> Result<()> {
        self.settled = None;
        let (from, to) = (self.find(&self.options.from)?, self.find(&self.options.to)?);
        let (from_share, to_share) = loan.shares(lent);
        let names = [label(&from), label(&to)];
        let mut sides = [
            (names[0], from.cpus, from_share),
            (names[1], to.cpus, to_share),
        ];
        sides.sort_by_key(|(_, has, share)| has <= share);
        let [giver, taker] = sides;
        if giver.1 != giver.2 {
            self.set(giver.0, giver.2)?;
        }
        if taker.1 != taker.2
            && let Err(failure) = self.set(taker.0, taker.2)
        {
            if giver.1 > giver.2 {
                // If it cannot either, the next step finds it so.
                let _ = self.set(giver.0, giver.1);
            }
            return Err(failure);
        }
        self.settled = Some((from_share, to_share));
        Ok(())
    }

    /// One look, and what follows from it.
    fn step(&mut self, latency: Result<Option<Duration>>, out: &mut dyn Write) -> Result<()> {
        let (from, _, loan) = self.look()?;
        let (latency, mut error) = match latency {
            Ok(latency) => (latency, None),
            Err(failure) => (None, Some(failure.message)),
        };
        let lent = loan.lent(from.cpus);
        let (wanted, mut action) = decide(latency, self.options, lent, from.cpus);
        if let Err(failure) = self.carry(loan, wanted) {
            (action, error) = (Action::Failed, Some(failure.message));
        }
        let (from, to) = (self.find(&self.options.from)?, self.find(&self.options.to)?);
        let look = Look {
            time: since_epoch(),
            latency_ms: latency.map(|latency| latency.as_secs_f64() * 1e3),
            from: label(&from),
            from_cpus: from.cpus,
            to: label(&to),
            to_cpus: to.cpus,
            lent: loan.lent(from.cpus),
            action,
            error,
        };
        look.print(self.options.json, out)
            .context(|| "cannot write")
    }

    /// Gives everything back.
    fn end(&mut self) -> Result<()> {
        let (from, to, loan) = self.look()?;
        self.carry(loan, 0)?;
        self.remember(&to, label(&from), None)
    }

    /// Gives back what can be when one of the two has ended: what it had is free.
    fn end_alone(&self) {
        if let Some(loan) = self.loan {
            // The failure that led here is told.
            let _ = self.set(&self.options.from, loan.from_had);
        }
    }
}

fn since_epoch() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Moves CPUs until a signal comes; then all are given back.
///
/// # Errors
/// The options', those of an instance that does not run any more, and of standard output.
pub fn run(
    device: &dyn Device,
    store: &Store,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    if options.low > options.high {
        return Err(Failure::new(
            "--low is above --high: CPUs would go to and fro",
        ));
    }
    let mut signals = Signals::new().context(|| "cannot catch signals")?;
    let mut pair = Pair {
        device,
        store,
        options,
        settled: None,
        loan: None,
    };
    let (from, to, _) = pair.look()?;
    if from.id == to.id {
        return Err(Failure::new(format!(
            "{} cannot lend to itself: give two instances",
            label(&from)
        )));
    }
    let mut seen = None;
    while !signals.wait(options.interval) {
        let latency = latency(&options.source, &mut seen);
        if let Err(failure) = pair.step(latency, out) {
            pair.end_alone();
            return Err(failure);
        }
    }
    pair.end()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::instances::find;
    use crate::mock::{Mock, TestDirectory, request};
    use crate::restart::Policy;

    struct Here {
        directory: TestDirectory,
        mock: Mock,
        store: Store,
    }

    impl Here {
        /// With `batch`, which has three CPUs, and `web`, which has one.
        fn new() -> Self {
            let directory = TestDirectory::new();
            let mock = Mock::new(8, 1 << 30);
            let store = Store::at(&directory.0, "boot").unwrap();
            let here = Self {
                directory,
                mock,
                store,
            };
            for (name, cpus) in [("batch", 3), ("web", 1)] {
                let mut wanted = request(name, &["sleep"]);
                wanted.cpus = cpus;
                let now = SystemTime::now();
                managed::create(&here.mock, &here.store, &wanted, Policy::No, now).unwrap();
                managed::start(&here.mock, &here.store, name).unwrap();
            }
            here
        }

        fn cpus(&self) -> (u32, u32) {
            let of = |name| find(&self.mock, name).unwrap().cpus;
            (of("batch"), of("web"))
        }

        fn loan(&self) -> Option<Loan> {
            let web = find(&self.mock, "web").unwrap();
            let record = self.store.read(web.id).unwrap().unwrap();
            record.borrowed.get("batch").copied()
        }
    }

    fn options() -> Options {
        Options {
            from: "batch".into(),
            to: "web".into(),
            source: Source::Command("echo 1".into()),
            low: Duration::from_millis(160),
            high: Duration::from_millis(200),
            interval: Duration::from_secs(10),
            keep: 1,
            json: true,
        }
    }

    fn pair<'a>(here: &'a Here, options: &'a Options) -> Pair<'a> {
        Pair {
            device: &here.mock,
            store: &here.store,
            options,
            settled: None,
            loan: None,
        }
    }

    fn step(pair: &mut Pair<'_>, ms: u64) -> String {
        let mut out = Vec::new();
        let latency = Ok(Some(Duration::from_millis(ms)));
        pair.step(latency, &mut out).unwrap();
        let told: serde_json::Value = serde_json::from_slice(&out).unwrap();
        told["action"].as_str().unwrap().to_owned()
    }

    #[test]
    fn cpus_go_one_by_one_and_come_back() {
        let (here, options) = (Here::new(), options());
        let mut pair = pair(&here, &options);
        let expected = [
            (201, "lend", (2, 2)),
            (180, "none", (2, 2)),
            (900, "lend", (1, 3)),
            (900, "least", (1, 3)),
            (160, "none", (1, 3)),
            (159, "return", (2, 2)),
            (1, "return", (3, 1)),
            (1, "none", (3, 1)),
        ];
        for (ms, action, cpus) in expected {
            assert_eq!((step(&mut pair, ms).as_str(), here.cpus()), (action, cpus));
        }
        step(&mut pair, 300);
        pair.end().unwrap();
        assert_eq!((here.cpus(), here.loan()), ((3, 1), None));
    }

    #[test]
    fn who_comes_after_one_that_was_killed_goes_on_with_its_loan() {
        let (here, options) = (Here::new(), options());
        step(&mut pair(&here, &options), 300);
        // Killed when the lender had given another one that nobody had yet.
        let half = resize::Options {
            cpus: Some(1),
            ..resize::Options::default()
        };
        managed::resize(&here.mock, &here.store, "batch", half).unwrap();
        assert_eq!(here.cpus(), (1, 2));
        let mut next = pair(&here, &options);
        assert_eq!(step(&mut next, 180), "none");
        assert_eq!(here.cpus(), (1, 3));
        next.end().unwrap();
        assert_eq!((here.cpus(), here.loan()), ((3, 1), None));
    }

    #[test]
    fn what_somebody_else_resizes_is_theirs() {
        let (here, options) = (Here::new(), options());
        let mut pair = pair(&here, &options);
        step(&mut pair, 300);
        let more = resize::Options {
            cpus: Some(4),
            ..resize::Options::default()
        };
        managed::resize(&here.mock, &here.store, "batch", more).unwrap();
        assert_eq!(step(&mut pair, 180), "none");
        assert_eq!(here.cpus(), (4, 2));
        pair.end().unwrap();
        assert_eq!(here.cpus(), (5, 1));
    }

    #[test]
    fn latencies_are_the_last_lines_of_what_tells_them() {
        let here = Here::new();
        let path = here.directory.0.join("latency");
        let mut seen = None;
        let file = Source::File(path.clone());
        latency(&file, &mut seen).unwrap_err();
        fs::write(&path, "1s\n183.5ms\n\n").unwrap();
        let read = latency(&file, &mut seen).unwrap();
        assert_eq!(read, Some(Duration::from_micros(183_500)));
        assert_eq!(latency(&file, &mut seen).unwrap(), None, "it is no news");
        for (command, wanted) in [
            ("echo 7; echo 250us", Some(Duration::from_micros(250))),
            ("echo 0.2s", Some(Duration::from_millis(200))),
            ("echo 12", Some(Duration::from_millis(12))),
            ("echo soon", None),
            ("true", None),
            ("echo 5; exit 1", None),
            ("echo -5", None),
            ("echo 1e300s", None),
        ] {
            let read = latency(&Source::Command(command.into()), &mut seen);
            assert_eq!(read.ok().flatten(), wanted, "{command}");
        }
    }
}
