//! `skerry trace`: records what the kernel does while a program runs, or for a while, and writes it
//! as a trace that ui.perfetto.dev opens.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ::trace::{Class, RECORD_BYTES, Record};

use crate::chrome_trace::{self, Names};
use crate::counters;
use crate::failure::{Context, Failure, Result, plain};
use crate::streams::Signals;

/// Sleep of the tool when it has read all records. A ring holds the records of that time.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Size of the buffer for records, in bytes.
const BUFFER_LEN: usize = RECORD_BYTES << 13;

/// Options of `skerry trace`.
#[derive(Debug)]
pub struct Options {
    /// Classes of events, by name.
    pub events: String,
    /// Not longer than this.
    pub limit: Option<Duration>,
    /// Where the trace goes.
    pub output: PathBuf,
    /// Command to run while events are recorded.
    pub command: Vec<String>,
}

/// Records, and writes the trace. Returns the program's exit status.
///
/// # Errors
/// What is missing.
pub fn run(request: &Options, err: &mut dyn Write) -> Result<u8> {
    if Class::parse(&request.events).is_none() {
        let known: Vec<_> = Class::ALL.iter().map(|(_, name)| *name).collect();
        return Err(Failure {
            status: 2,
            ..Failure::new(format!(
                "--events {}: use `all` or a list of {}",
                request.events,
                known.join(",")
            ))
        });
    }
    // Before anything is recorded: a name that cannot be written costs nobody his trace.
    let output: Box<dyn Write> = match request.output.as_os_str() == "-" {
        true => Box::new(io::stdout()),
        false => Box::new(
            File::create(&request.output)
                .context(|| format!("cannot write {}", request.output.display()))?,
        ),
    };
    let mut signals = Signals::new().context(|| "cannot catch signals")?;
    let mut recording = Recording::start(&request.events)?;
    let status = recording.follow(request, &mut signals)?;
    let records = recording.end()?;
    let mut output = BufWriter::new(output);
    let lost = chrome_trace::write(&records, &names()?, &mut output)
        .and_then(|lost| output.flush().map(|()| lost))
        .context(|| format!("cannot write {}", request.output.display()))?;
    // Whoever does not read it has the file.
    let _ = writeln!(
        err,
        "skerry: {} events in {}{}",
        records.len(),
        request.output.display(),
        lost_notice(lost)
    );
    Ok(status)
}

/// Sentence about records that were lost.
fn lost_notice(lost: u64) -> String {
    match lost {
        0 => String::new(),
        lost => format!(
            "; {lost} more were lost: record fewer classes of events (--events), or leave the tool a CPU"
        ),
    }
}

/// Names of what records have numbers of.
fn names() -> Result<Names> {
    let read = |name: &str| {
        counters::read(name).context(|| format!("cannot read {}/{name}", counters::DIRECTORY))
    };
    Ok(Names {
        calls: counters::calls(&read("calls")?),
        vectors: counters::vectors(&read("interrupts")?),
        locks: counters::locks(&read("locks")?)
            .into_iter()
            .map(|lock| (lock.number, lock.site))
            .collect(),
    })
}

/// The kernel records while this exists.
struct Recording {
    file: File,
    records: Vec<Record>,
    buffer: Vec<u8>,
}

impl Recording {
    fn start(events: &str) -> Result<Self> {
        let path = Path::new(counters::DIRECTORY).join("trace");
        let failure = |error: io::Error| {
            let remedy = match error.kind() {
                ErrorKind::NotFound => "this is not a Skerry kernel",
                ErrorKind::PermissionDenied => "run skerry as root",
                ErrorKind::ResourceBusy => "somebody records already",
                ErrorKind::OutOfMemory => "there is too little memory for the records",
                _ => "the kernel log may say more",
            };
            Failure::new(format!("{}: {}: {remedy}", path.display(), plain(&error)))
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failure)?;
        file.write_all(events.as_bytes()).map_err(failure)?;
        Ok(Self {
            file,
            records: Vec::new(),
            buffer: vec![0; BUFFER_LEN],
        })
    }

    /// Reads all records that there are.
    fn drain(&mut self) -> Result<()> {
        loop {
            let count = self
                .file
                .read(&mut self.buffer)
                .context(|| "cannot read the records")?;
            let whole = self.buffer[..count].as_chunks::<RECORD_BYTES>().0;
            self.records
                .extend(whole.iter().filter_map(Record::from_bytes));
            // Less than fits is all there was. What reading itself adds to the records is for the
            // next time.
            if count < self.buffer.len() / 2 {
                return Ok(());
            }
        }
    }

    /// Reads records while the program runs, for as long as was asked, or until a signal comes,
    /// which goes to the program too.
    fn follow(&mut self, request: &Options, signals: &mut Signals) -> Result<u8> {
        let mut child: Option<Child> = match request.command.split_first() {
            None => None,
            Some((program, arguments)) => Some(
                Command::new(program)
                    .args(arguments)
                    .spawn()
                    .map_err(|error| Failure {
                        status: if error.kind() == ErrorKind::NotFound {
                            127
                        } else {
                            126
                        },
                        ..Failure::new(format!("cannot run {program}: {}", plain(&error)))
                    })?,
            ),
        };
        let end = request.limit.map(|limit| Instant::now() + limit);
        loop {
            self.drain()?;
            if let Some(child) = &mut child
                && let Some(status) = child.try_wait().context(|| "cannot wait for the program")?
            {
                let signal = status.signal().map_or(0, |signal| 128 + signal);
                return Ok(u8::try_from(status.code().unwrap_or(signal)).unwrap_or(u8::MAX));
            }
            let came = signals.take();
            if end.is_some_and(|end| Instant::now() >= end)
                || (child.is_none() && came.iter().any(|signal| *signal != libc::SIGWINCH))
            {
                return Ok(0);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// All records, in order of time.
    fn end(mut self) -> Result<Vec<Record>> {
        self.file
            .write_all(b"off")
            .context(|| "cannot end the recording")?;
        self.drain()?;
        // Stable: those of one CPU stay as they are.
        self.records.sort_by_key(|record| record.time);
        Ok(self.records)
    }
}
