//! `events`: what has happened to instances.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, UNIX_EPOCH};

use abi::dev::{self, Event};
use pci::Address;
use serde::Serialize;
use zerocopy::FromBytes;

use crate::device::Device;
use crate::failure::{Context, Result};
use crate::resize::cpus_text;
use crate::size;
use crate::streams::is_ready;

/// Options of `skerry events`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Go on with events as they come.
    pub follow: bool,
    /// Of those that are there, only so many last ones.
    pub tail: Option<usize>,
    /// A document a line.
    pub json: bool,
    /// Only those of instances with these names or numbers; all if there are none.
    pub names: Vec<String>,
}

/// An event in `events --json`. Fields that its kind has nothing for are left out.
#[derive(Debug, Default, Serialize)]
struct Shown<'a> {
    /// Number of the event.
    sequence: u64,
    /// Time in seconds since 1970.
    time: f64,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    /// Number of CPUs that it has from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u32>,
    /// Memory that it has from then on, or, of `release`, that is back, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    /// Number of the refused change.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u64>,
    /// Times that devices of it were refused memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<u64>,
    /// Address of the PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Number of events that are not kept any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<u64>,
}

impl<'a> Shown<'a> {
    fn new(event: &'a Event) -> Self {
        let value = Some(event.value);
        let shown = Self {
            sequence: event.sequence,
            time: event.time_ns as f64 / 1e9,
            event: dev::event_name(event.kind),
            name: dev::text(&event.label),
            id: Some(event.id),
            ..Self::default()
        };
        match event.kind {
            dev::EVENT_CREATE | dev::EVENT_RESIZE => Self {
                cpus: Some(event.cpus),
                memory: value,
                ..shown
            },
            dev::EVENT_RELEASE => Self {
                memory: value,
                ..shown
            },
            dev::EVENT_REFUSE => Self {
                epoch: value,
                ..shown
            },
            dev::EVENT_HEALTH => Self {
                health: Some(dev::health_name(event.value as u32)),
                ..shown
            },
            dev::EVENT_EXIT => Self {
                exit_code: value,
                ..shown
            },
            dev::EVENT_DMA_FAULT => Self {
                faults: value,
                ..shown
            },
            dev::EVENT_DEVICE_ADD | dev::EVENT_DEVICE_REMOVE => Self {
                device: Some(Address::from_number(event.value as u32).to_string()),
                ..shown
            },
            dev::EVENT_LOST => Self {
                event: shown.event,
                missed: value,
                ..Self::default()
            },
            _ => shown,
        }
    }

    /// One line for people.
    fn line(&self) -> String {
        if let Some(missed) = self.missed {
            return format!("({missed} events before the next one are not kept any more)");
        }
        let time = UNIX_EPOCH + Duration::from_secs_f64(self.time);
        let mut line = format!(
            "{}  {:<8} {}",
            humantime::format_rfc3339_millis(time),
            self.event,
            self.name.unwrap_or_default()
        );
        let details = [
            match (self.cpus, self.memory.map(size::format)) {
                (Some(cpus), Some(memory)) => Some(format!("{}, {memory}", cpus_text(cpus))),
                (_, memory) => memory,
            },
            self.epoch.map(|epoch| format!("epoch {epoch}")),
            self.health.map(String::from),
            self.exit_code.map(|code| format!("status {code}")),
            self.faults.map(|count| format!("{count} so far")),
            self.device.clone(),
        ];
        for detail in details.into_iter().flatten() {
            line += &format!(" ({detail})");
        }
        line
    }
}

impl Options {
    fn wants(&self, event: &Event) -> bool {
        self.names.is_empty()
            || event.kind == dev::EVENT_LOST
            || self
                .names
                .iter()
                .any(|name| dev::text(&event.label) == Some(name) || name.parse() == Ok(event.id))
    }

    fn print(&self, event: &Event, out: &mut dyn Write) -> io::Result<()> {
        let shown = Shown::new(event);
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)
        } else {
            writeln!(out, "{}", shown.line())
        }
    }
}

/// Prints the events that are kept, and then, if asked, those that come.
///
/// # Errors
/// The device's, or those of standard output but that nobody reads it any more.
pub fn show(device: &dyn Device, options: &Options, out: &mut dyn Write) -> Result<()> {
    match print(device, options, out) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context(|| "cannot show events"),
    }
}

fn print(device: &dyn Device, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let flags = if options.follow {
        dev::EVENTS_FOLLOW
    } else {
        0
    };
    let mut from = File::from(device.events(flags)?);
    if let Some(count) = options.tail {
        let mut there = Vec::new();
        while is_ready(&from)? {
            let events = read(&mut from)?;
            if events.is_empty() {
                break;
            }
            there.extend(events.into_iter().filter(|event| options.wants(event)));
        }
        let first = there.len().saturating_sub(count);
        for event in &there[first..] {
            options.print(event, out)?;
        }
    }
    loop {
        out.flush()?;
        let events = read(&mut from)?;
        if events.is_empty() {
            return Ok(());
        }
        for event in events.iter().filter(|event| options.wants(event)) {
            options.print(event, out)?;
        }
    }
}

/// Waits for events; none at their end.
fn read(from: &mut File) -> io::Result<Vec<Event>> {
    let mut bytes = [0; 64 * size_of::<Event>()];
    let count = loop {
        match from.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    Ok(bytes[..count]
        .chunks_exact(size_of::<Event>())
        .filter_map(|event| Event::read_from_bytes(event).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{create, start};
    use crate::mock::{Mock, request};

    fn lines(mock: &Mock, options: &Options) -> Vec<String> {
        let mut out = Vec::new();
        show(mock, options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(String::from).collect()
    }

    fn two_instances() -> Mock {
        let mock = Mock::new(4, 1 << 30);
        for (name, status) in [("one", "0"), ("two", "3")] {
            let created = create(
                &mock,
                &request(name, &["say", "x", status]),
                SystemTime::now(),
            );
            start(&mock, &created.unwrap()).unwrap();
        }
        mock
    }

    #[test]
    fn events_are_lines_with_time_and_name() {
        let lines = lines(&two_instances(), &Options::default());
        assert_eq!(
            lines,
            [
                "1970-01-01T00:00:01.000Z  create   one (1 CPU, 64 MiB)",
                "1970-01-01T00:00:02.000Z  start    one",
                "1970-01-01T00:00:03.000Z  exit     one (status 0)",
                "1970-01-01T00:00:04.000Z  create   two (1 CPU, 64 MiB)",
                "1970-01-01T00:00:05.000Z  start    two",
                "1970-01-01T00:00:06.000Z  exit     two (status 3)",
            ]
        );
    }

    #[test]
    fn some_can_be_chosen() {
        let mock = two_instances();
        let of = |tail, names: &[&str]| {
            let names = names.iter().map(|name| (*name).into()).collect();
            let options = Options {
                tail,
                names,
                ..Options::default()
            };
            lines(&mock, &options)
        };
        assert_eq!(of(Some(2), &[]).len(), 2);
        assert!(of(Some(1), &["one"])[0].contains("exit     one"));
        assert_eq!(of(None, &["2"]).len(), 3);
        assert!(of(None, &["three"]).is_empty());
        assert!(of(Some(0), &[]).is_empty());
    }

    #[test]
    fn json_has_what_the_kind_has() {
        let options = Options {
            json: true,
            tail: Some(1),
            ..Options::default()
        };
        assert_eq!(
            lines(&two_instances(), &options),
            [r#"{"sequence":6,"time":6.0,"event":"exit","name":"two","id":2,"exit_code":3}"#]
        );
        let mut added: Event = dev::zeroed();
        (added.kind, added.value) = (dev::EVENT_DEVICE_ADD, 0x0308);
        let shown = Shown::new(&added);
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(
            (&json["event"], &json["device"]),
            (&"device-add".into(), &"0000:03:01.0".into())
        );
        assert!(shown.line().contains("(0000:03:01.0)"));
        let mut lost: Event = dev::zeroed();
        (lost.kind, lost.value) = (dev::EVENT_LOST, 7);
        let shown = Shown::new(&lost);
        assert_eq!(
            serde_json::to_string(&shown).unwrap(),
            r#"{"sequence":0,"time":0.0,"event":"lost","missed":7}"#
        );
        assert!(shown.line().contains("7 events"));
    }
}
