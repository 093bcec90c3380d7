//! Changing what a running instance has (`docs/descriptor.md`).

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use abi::dev::{self, Resize, Settle, Status};
use abi::live::{Answer, Refusal, Verdict};
use serde::Serialize;

use crate::device::Device;
use crate::failure::{Failure, Result, plain};
use crate::instances::label;
use crate::size;

/// Options of a change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Number of CPUs that the instance is to have; `None`: what it has.
    pub cpus: Option<u32>,
    /// Memory that it is to have, in bytes; `None`: what it has.
    pub memory: Option<u64>,
    /// Time limit for its answer; none without.
    pub limit: Option<Duration>,
    /// Whether the change is only tried.
    pub dry_run: bool,
    /// Whether its caches give up memory, if else none can leave.
    pub force_reclaim: bool,
}

/// Record of a change.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    name: String,
    /// Number of the change; `null` if nothing was changed.
    epoch: Option<u64>,
    /// Number of CPUs before it.
    cpus_before: u32,
    /// Number of CPUs after it.
    cpus: u32,
    /// The most CPUs that the instance may have.
    cpus_limit: u32,
    /// Memory before it, in bytes.
    memory_before: u64,
    /// Memory after it.
    memory: u64,
    /// The most memory that the instance may have.
    memory_limit: u64,
    /// Time until the instance had adopted it, and what it gave back was free, in microseconds.
    took_us: u64,
    /// Time of these in which memory was scrubbed that it gave back.
    scrub_us: u64,
}

/// Gives a running instance more CPUs or memory, or has it give some back, and waits until it has
/// adopted that, and what it gave back is free.
///
/// # Errors
/// Why it has what it had before; or, of one that does not answer in time, that nothing is known
/// yet.
pub fn resize(device: &dyn Device, status: &Status, options: Options) -> Result<Change> {
    let mut call = Resize {
        id: status.id,
        flags: flag(options.dry_run, dev::RESIZE_DRY_RUN)
            | flag(options.force_reclaim, dev::RESIZE_RECLAIM),
        cpus: options.cpus.unwrap_or(0),
        mem: options.memory.unwrap_or(0),
        ..Resize::default()
    };
    let begun = Instant::now();
    device
        .resize(&mut call)
        .map_err(|error| refused(status, &call, options, &error))?;
    let epoch = (call.epoch != 0).then_some(call.epoch);
    let scrub_ns = match epoch {
        Some(epoch) => settle(device, status, epoch, options)?,
        None => 0,
    };
    let wanted = options.memory.filter(|_| epoch.is_some());
    let memory = wanted.map_or(call.mem, |wanted| {
        wanted.next_multiple_of(abi::layout::GRANULE_SIZE as u64)
    });
    Ok(Change {
        name: label(status).to_owned(),
        epoch,
        cpus_before: call.cpus,
        cpus: options
            .cpus
            .filter(|_| epoch.is_some())
            .unwrap_or(call.cpus),
        cpus_limit: call.most_cpus,
        memory_before: call.mem,
        memory,
        memory_limit: call.most,
        took_us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
        scrub_us: scrub_ns / 1000,
    })
}

/// A flag, if it is set.
fn flag(is_set: bool, flag: u32) -> u32 {
    if is_set { flag } else { 0 }
}

/// A number of CPUs in words.
pub(crate) fn cpus_text(count: u32) -> String {
    format!("{count} CPU{}", if count == 1 { "" } else { "s" })
}

/// Failure for a change that was not begun: the reason and the remedy.
fn refused(status: &Status, call: &Resize, options: Options, error: &io::Error) -> Failure {
    let name = label(status);
    let cpus = options.cpus.unwrap_or(call.cpus);
    let asked = size::format(options.memory.unwrap_or(call.mem));
    let has = size::format(call.mem);
    Failure::new(match call.reason {
        dev::REASON_LIMIT if cpus > call.most_cpus => format!(
            "{name} may have {} at most, all but the supervisor's (asked for {cpus})",
            cpus_text(call.most_cpus)
        ),
        dev::REASON_CPUS => format!(
            "{name} has {} and could have {} more (asked for {cpus}): stop an instance or lower \
             --cpus",
            cpus_text(call.cpus),
            call.free_cpus
        ),
        dev::REASON_SHRINK => format!(
            "{name} was created with {} of memory, which it keeps while it runs (asked for \
             {asked}): give --mem {} or more",
            size::format(call.least),
            size::option(call.least)
        ),
        dev::REASON_LIMIT => format!(
            "{name} may have {} of memory at most, a multiple of what it was created with (asked \
             for {asked}): create it with more --mem",
            size::format(call.most)
        ),
        dev::REASON_PAUSED => {
            format!("{name} is paused: `skerry unpause {name}` first")
        }
        dev::REASON_PENDING => {
            format!("{name} has not answered the last change yet: try again when it has")
        }
        dev::REASON_MEMORY => format!(
            "only {} of memory are free ({name} has {has}, asked for {asked}): stop an instance or \
             lower --mem",
            size::format(call.free_mem)
        ),
        _ if error.raw_os_error() == Some(libc::ESRCH) => {
            format!("{name} does not run: only a running instance can be resized")
        }
        _ => format!("cannot resize {name}: {}", plain(error)),
    })
}

/// An instance's reason to refuse a change, and the remedy where there is one.
fn why_refused(refusal: Refusal, options: Options) -> String {
    let first = if options.force_reclaim {
        "end programs"
    } else {
        "give --force-reclaim, end programs"
    };
    match refusal {
        Refusal::KernelPages(_) | Refusal::UserPages(_) => {
            format!("{refusal}: {first} that hold them, or give more --mem")
        }
        Refusal::Short(_) => format!("{refusal}: {first} in it, or give more --mem"),
        _ => refusal.to_string(),
    }
}

/// Waits for the instance's answer to a change. Returns the time in which what it gave back was
/// scrubbed (ns).
fn settle(device: &dyn Device, status: &Status, epoch: u64, options: Options) -> Result<u64> {
    match wait_settled(device, status, epoch, options.limit)? {
        Settled::Taken { scrub_ns } => Ok(scrub_ns),
        Settled::Refused(refusal) => {
            let why = refusal.map_or_else(
                || "it does not say why".into(),
                |refusal| why_refused(refusal, options),
            );
            Err(Failure::new(format!(
                "{} has refused the change, and has what it had: {why}",
                label(status)
            )))
        }
    }
}

/// Answer of an instance to a change.
pub(crate) enum Settled {
    /// The instance has adopted it. What it gave back was scrubbed in so much time.
    Taken { scrub_ns: u64 },
    /// The instance has refused it, and why, if it says so.
    Refused(Option<Refusal>),
}

/// Waits for the instance's answer to a change.
///
/// # Errors
/// If there is none in time, or the instance has ended.
pub(crate) fn wait_settled(
    device: &dyn Device,
    status: &Status,
    epoch: u64,
    limit: Option<Duration>,
) -> Result<Settled> {
    let name = label(status);
    let mut call = Settle {
        id: status.id,
        timeout_ms: limit.map_or(-1, |limit| {
            i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)
        }),
        epoch,
        ..Settle::default()
    };
    let settled = loop {
        match device.settle(&mut call) {
            // Without a limit there is nothing to lose by waiting anew.
            Err(error) if error.kind() == ErrorKind::Interrupted && limit.is_none() => {}
            other => break other,
        }
    };
    match (settled, call.outcome) {
        (Ok(()), dev::OUTCOME_TAKEN) => Ok(Settled::Taken {
            scrub_ns: call.scrub_ns,
        }),
        (Ok(()), dev::OUTCOME_REFUSED) => {
            let verdict = Answer::from_word(call.answer).map(|answer| answer.verdict);
            Ok(Settled::Refused(match verdict {
                Some(Verdict::Refused(refusal)) => Some(refusal),
                _ => None,
            }))
        }
        (Ok(()), _) => Err(Failure::new(format!("{name} has ended meanwhile"))),
        (Err(error), _) if error.kind() == ErrorKind::TimedOut => Err(Failure::new(format!(
            "{name} has not answered yet: it keeps what it has and what it was given, and does as it \
             was told when it answers"
        ))),
        (Err(error), _) => Err(Failure::new(format!(
            "cannot wait for {name}: {}",
            plain(&error)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{create, find, start};
    use crate::mock::{Mock, request};

    fn running(mock: &Mock, program: &str) -> Status {
        let created = create(mock, &request(program, &[program]), SystemTime::now()).unwrap();
        start(mock, &created).unwrap();
        find(mock, program).unwrap()
    }

    fn to(memory: u64) -> Options {
        Options {
            memory: Some(memory),
            ..Options::default()
        }
    }

    fn to_cpus(cpus: u32) -> Options {
        Options {
            cpus: Some(cpus),
            memory: None,
            ..to(0)
        }
    }

    #[test]
    fn cpus_grow_alone_and_with_memory() {
        let mock = Mock::new(5, 1 << 30);
        let status = running(&mock, "sleep");
        let change = resize(&mock, &status, to_cpus(2)).unwrap();
        assert_eq!(
            (change.cpus_before, change.cpus, change.memory),
            (1, 2, 64 << 20)
        );
        let both = Options {
            cpus: Some(3),
            ..to(96 << 20)
        };
        let change = resize(&mock, &status, both).unwrap();
        assert_eq!(
            (change.cpus_before, change.cpus, change.memory),
            (2, 3, 96 << 20)
        );
        let say = |cpus| resize(&mock, &status, to_cpus(cpus)).unwrap_err().message;
        assert_eq!(
            say(9),
            "sleep may have 4 CPUs at most, all but the supervisor's (asked for 9)"
        );
        let other = running(&mock, "other");
        let say = |cpus| resize(&mock, &other, to_cpus(cpus)).unwrap_err().message;
        assert!(say(3).contains("could have 0 more"), "{}", say(3));
    }

    #[test]
    fn cpus_shrink_also_while_memory_grows() {
        let mock = Mock::new(5, 1 << 30);
        let status = running(&mock, "sleep");
        resize(&mock, &status, to_cpus(4)).unwrap();
        let change = resize(&mock, &status, to_cpus(2)).unwrap();
        assert_eq!((change.cpus_before, change.cpus), (4, 2));
        let both = Options {
            cpus: Some(1),
            ..to(96 << 20)
        };
        let change = resize(&mock, &status, both).unwrap();
        assert_eq!(
            (change.cpus_before, change.cpus, change.memory),
            (2, 1, 96 << 20)
        );
        let less = Options {
            cpus: Some(2),
            ..to(64 << 20)
        };
        let change = resize(&mock, &status, less).unwrap();
        assert_eq!((change.memory_before, change.memory), (96 << 20, 64 << 20));
        assert_eq!(find(&mock, "sleep").unwrap().cpus, 2);
    }

    #[test]
    fn memory_grows_in_whole_granules() {
        let mock = Mock::new(4, 1 << 30);
        let status = running(&mock, "sleep");
        let tried = resize(
            &mock,
            &status,
            Options {
                dry_run: true,
                ..to(96 << 20)
            },
        );
        assert_eq!(tried.unwrap().epoch, None);
        assert_eq!(find(&mock, "sleep").unwrap().mem, 64 << 20);
        let change = resize(&mock, &status, to((95 << 20) + 1)).unwrap();
        assert_eq!(
            (change.epoch, change.memory_before, change.memory),
            (Some(1), 64 << 20, 96 << 20)
        );
    }

    #[test]
    fn what_is_not_begun_names_what_would_help() {
        let mock = Mock::new(4, 256 << 20);
        let status = running(&mock, "sleep");
        let say = |memory| resize(&mock, &status, to(memory)).unwrap_err().message;
        assert_eq!(
            say(32 << 20),
            "sleep was created with 64 MiB of memory, which it keeps while it runs (asked for \
             32 MiB): give --mem 64M or more"
        );
        assert!(say(1 << 30).contains("512 MiB of memory at most"));
        assert_eq!(
            say(512 << 20),
            "only 192 MiB of memory are free (sleep has 64 MiB, asked for 512 MiB): stop an \
             instance or lower --mem"
        );
        let ended = running(&mock, "true");
        let failure = resize(&mock, &ended, to(96 << 20)).unwrap_err();
        assert!(failure.message.contains("does not run"), "{failure}");
    }

    #[test]
    fn a_paused_instance_is_not_resized() {
        let mock = Mock::new(4, 1 << 30);
        let status = running(&mock, "sleep");
        crate::instances::pause(&mock, &status).unwrap();
        let failure = resize(&mock, &status, to(96 << 20)).unwrap_err();
        assert_eq!(
            failure.message,
            "sleep is paused: `skerry unpause sleep` first"
        );
    }

    #[test]
    fn memory_that_caches_hold_leaves_if_it_has_to() {
        let mock = Mock::new(4, 1 << 30);
        let status = running(&mock, "hold");
        assert!(resize(&mock, &status, to(96 << 20)).is_err());
        let forced = Options {
            force_reclaim: true,
            ..to(96 << 20)
        };
        resize(&mock, &status, forced).unwrap();
        assert_eq!(find(&mock, "hold").unwrap().mem, 96 << 20);
    }

    #[test]
    fn what_is_refused_or_late_is_told() {
        let mock = Mock::new(4, 1 << 30);
        for (program, words) in [
            ("refuse", "no memory for tables"),
            (
                "hold",
                "37 pages of its kernel are in what is to leave: give --force-reclaim, end programs",
            ),
            ("ignore", "not answered yet"),
        ] {
            let status = running(&mock, program);
            let failure = resize(&mock, &status, to(96 << 20)).unwrap_err();
            assert!(failure.message.contains(words), "{failure}");
        }
    }
}
