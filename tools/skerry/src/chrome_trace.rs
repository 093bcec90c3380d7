//! Records as a trace in Chrome's JSON format ("Trace Event Format"), which ui.perfetto.dev and
//! `chrome://tracing` open.
//!
//! Every thread has a track, with its system calls, page faults, shoot-downs and waits for locks,
//! and the wake-ups it made. Every CPU has one, in a process of its own, with the threads that ran
//! and the interrupts.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ::trace::{Kind, Record, THREAD_ENDS, THREAD_IS, THREAD_NAME, WAKE_DETAILS};
use serde_json::{Value, json};

/// Numbers of the tracks that are no Linux threads: above all that are.
const CPUS: u64 = 1 << 30;
const KERNEL: u64 = CPUS + 1;
const FIRST_CPU: u64 = CPUS + 2;
const FIRST_SLOT: u64 = FIRST_CPU + (1 << 20);

/// Names of what records have numbers of.
#[derive(Debug, Default)]
pub struct Names {
    /// System calls.
    pub calls: BTreeMap<u64, String>,
    /// Interrupt vectors.
    pub vectors: BTreeMap<u8, String>,
    /// Lock sites.
    pub locks: BTreeMap<u64, String>,
}

/// A track: number of its process, and its own.
type Track = (u64, u64);

/// Identity of the thread that has a thread slot at the moment.
#[derive(Clone, Debug)]
struct SlotThread {
    track: Track,
    name: String,
}

struct Writer<'a> {
    names: &'a Names,
    out: &'a mut dyn Write,
    /// The records' first moment.
    start: u64,
    any: bool,
    tenants: BTreeMap<u32, SlotThread>,
    /// Events that have begun and not ended, by track, the innermost last.
    open: BTreeMap<Track, Vec<Kind>>,
    /// Thread that runs on each CPU, and since when.
    running: BTreeMap<u16, (u32, u64)>,
    /// The names that tracks and processes have in the end.
    titles: BTreeMap<Track, String>,
}

/// Writes `records`, in order of time, as a trace. Returns how many records were lost.
///
/// # Errors
/// Those of `out`.
pub fn write(records: &[Record], names: &Names, out: &mut dyn Write) -> io::Result<u64> {
    let start = records.first().map_or(0, |record| record.time);
    let mut writer = Writer {
        names,
        out,
        start,
        any: false,
        tenants: BTreeMap::new(),
        open: BTreeMap::new(),
        running: BTreeMap::new(),
        titles: BTreeMap::new(),
    };
    writeln!(writer.out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut lost = 0;
    for record in records {
        if record.kind == Kind::Lost {
            lost += record.a;
        }
        writer.record(record)?;
    }
    writer.end(records.last().map_or(start, |record| record.time))?;
    writeln!(out, "\n],\"otherData\":{{\"lost_records\":{lost}}}}}")?;
    Ok(lost)
}

impl Writer<'_> {
    /// Microseconds since the start, to the nanosecond.
    fn time(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.start) as f64 / 1e3
    }

    fn emit(&mut self, event: &Value) -> io::Result<()> {
        if std::mem::replace(&mut self.any, true) {
            writeln!(self.out, ",")?;
        }
        serde_json::to_writer(&mut *self.out, event).map_err(io::Error::from)
    }

    fn slot_thread(&self, slot: u32) -> SlotThread {
        let unknown = || SlotThread {
            track: (KERNEL, FIRST_SLOT + u64::from(slot)),
            name: format!("slot {slot}"),
        };
        self.tenants.get(&slot).cloned().unwrap_or_else(unknown)
    }

    fn cpu(&mut self, cpu: u16) -> Track {
        let track = (CPUS, FIRST_CPU + u64::from(cpu));
        self.titles
            .entry(track)
            .or_insert_with(|| format!("CPU {cpu}"));
        track
    }

    fn thread(&mut self, slot: u32) -> Track {
        let tenant = self.slot_thread(slot);
        self.titles.entry(tenant.track).or_insert(tenant.name);
        tenant.track
    }

    fn begin(
        &mut self,
        track: Track,
        kind: Kind,
        name: &str,
        time: u64,
        args: Value,
    ) -> io::Result<()> {
        self.open.entry(track).or_default().push(kind);
        let ts = self.time(time);
        self.emit(&json!({"ph": "B", "name": name, "pid": track.0, "tid": track.1, "ts": ts, "args": args}))
    }

    /// Ends the innermost `kind` of a track, and what began inside it: its end was lost. Nothing if
    /// its beginning is not here.
    fn finish(&mut self, track: Track, kind: Kind, time: u64, args: &Value) -> io::Result<()> {
        let depth = self
            .open
            .get(&track)
            .and_then(|open| open.iter().rposition(|begun| *begun == kind));
        depth.map_or(Ok(()), |depth| self.close_spans(track, depth, time, args))
    }

    fn close_spans(
        &mut self,
        track: Track,
        depth: usize,
        time: u64,
        args: &Value,
    ) -> io::Result<()> {
        let ts = self.time(time);
        while self.open.get(&track).is_some_and(|open| open.len() > depth) {
            self.open.entry(track).or_default().pop();
            self.emit(&json!({"ph": "E", "pid": track.0, "tid": track.1, "ts": ts, "args": args}))?;
        }
        Ok(())
    }

    fn instant(&mut self, track: Track, name: &str, time: u64, args: Value) -> io::Result<()> {
        let ts = self.time(time);
        self.emit(&json!({"ph": "i", "s": "t", "name": name, "pid": track.0, "tid": track.1, "ts": ts, "args": args}))
    }

    fn record(&mut self, r: &Record) -> io::Result<()> {
        let nothing = json!({});
        match r.kind {
            Kind::Switch => {
                self.end_run(r.cpu, r.thread, r.time)?;
                self.running.insert(r.cpu, (r.a as u32, r.time));
                Ok(())
            }
            Kind::Wake => {
                let (waker, woken) = (self.thread(r.thread), self.slot_thread(r.a as u32));
                let how = WAKE_DETAILS
                    .get(usize::from(r.detail))
                    .copied()
                    .unwrap_or("unknown");
                self.instant(
                    waker,
                    &format!("wake {}", woken.name),
                    r.time,
                    json!({"thread": woken.track.1, "cpu": r.b, "how": how}),
                )
            }
            Kind::Steal => {
                let (track, thread) = (self.cpu(r.cpu), self.slot_thread(r.a as u32));
                self.instant(
                    track,
                    &format!("give {}", thread.name),
                    r.time,
                    json!({"thread": thread.track.1, "cpu": r.b}),
                )
            }
            Kind::IrqBegin => {
                let track = self.cpu(r.cpu);
                let name = self
                    .names
                    .vectors
                    .get(&r.detail)
                    .cloned()
                    .unwrap_or_else(|| format!("vector {:#x}", r.detail));
                self.begin(track, r.kind, &name, r.time, json!({"vector": r.detail}))
            }
            Kind::IrqEnd => {
                let track = self.cpu(r.cpu);
                self.finish(track, Kind::IrqBegin, r.time, &nothing)
            }
            Kind::CallBegin => {
                let name = self
                    .names
                    .calls
                    .get(&r.a)
                    .cloned()
                    .unwrap_or_else(|| format!("call {}", r.a));
                let track = self.thread(r.thread);
                self.begin(track, r.kind, &name, r.time, nothing)
            }
            Kind::CallEnd => {
                let track = self.thread(r.thread);
                self.finish(
                    track,
                    Kind::CallBegin,
                    r.time,
                    &json!({"result": r.a.cast_signed()}),
                )
            }
            Kind::FaultBegin => {
                let access = ["read", "write", "execution"]
                    .get(usize::from(r.detail))
                    .copied()
                    .unwrap_or("access");
                let track = self.thread(r.thread);
                self.begin(
                    track,
                    r.kind,
                    "page fault",
                    r.time,
                    json!({"address": format!("{:#x}", r.a), "access": access}),
                )
            }
            Kind::FaultEnd => {
                let track = self.thread(r.thread);
                self.finish(track, Kind::FaultBegin, r.time, &nothing)
            }
            Kind::ShootdownBegin => {
                let track = self.thread(r.thread);
                let args =
                    json!({"start": format!("{:#x}", r.a), "bytes": r.b.saturating_sub(r.a)});
                self.begin(track, r.kind, "shoot-down", r.time, args)
            }
            Kind::ShootdownEnd => {
                let track = self.thread(r.thread);
                self.finish(track, Kind::ShootdownBegin, r.time, &nothing)
            }
            Kind::LockBegin => {
                let site = self
                    .names
                    .locks
                    .get(&r.a)
                    .cloned()
                    .unwrap_or_else(|| format!("site {}", r.a));
                let track = self.thread(r.thread);
                self.begin(track, r.kind, "lock", r.time, json!({"site": site}))
            }
            Kind::LockEnd => {
                let track = self.thread(r.thread);
                self.finish(track, Kind::LockBegin, r.time, &nothing)
            }
            Kind::Thread => self.about_thread(r),
            Kind::Lost => {
                let track = self.cpu(r.cpu);
                self.instant(track, "records lost", r.time, json!({"count": r.a}))
            }
        }
    }

    /// Writes the span in which `slot` has run on a CPU until now.
    fn end_run(&mut self, cpu: u16, slot: u32, time: u64) -> io::Result<()> {
        let since = match self.running.remove(&cpu) {
            // Otherwise records of switches in between are lost.
            Some((running, since)) if running == slot => since,
            Some(_) => return Ok(()),
            None => self.start,
        };
        let (track, thread) = (self.cpu(cpu), self.slot_thread(slot));
        let (ts, dur) = (self.time(since), time.saturating_sub(since) as f64 / 1e3);
        self.emit(&json!({
            "ph": "X", "name": thread.name, "pid": track.0, "tid": track.1, "ts": ts, "dur": dur,
            "args": {"pid": thread.track.0, "tid": thread.track.1},
        }))
    }

    fn about_thread(&mut self, r: &Record) -> io::Result<()> {
        let mut tenant = self.slot_thread(r.thread);
        match r.detail {
            THREAD_IS => {
                let track = if r.b == 0 {
                    (KERNEL, FIRST_SLOT + u64::from(r.thread))
                } else {
                    (r.b, r.a)
                };
                if track != tenant.track {
                    self.close_spans(tenant.track, 0, r.time, &json!({}))?;
                    tenant.track = track;
                }
            }
            THREAD_NAME => {
                let bytes: Vec<u8> = [r.a, r.b]
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .take_while(|byte| *byte != 0)
                    .collect();
                tenant.name = String::from_utf8_lossy(&bytes).into_owned();
                // The last name counts, of those that have a track.
                self.titles
                    .entry(tenant.track)
                    .and_modify(|title| title.clone_from(&tenant.name));
            }
            THREAD_ENDS => self.close_spans(tenant.track, 0, r.time, &json!({}))?,
            _ => {}
        }
        self.tenants.insert(r.thread, tenant);
        Ok(())
    }

    /// Ends what has begun, and names the tracks.
    fn end(&mut self, time: u64) -> io::Result<()> {
        for (cpu, (slot, _)) in self.running.clone() {
            self.end_run(cpu, slot, time)?;
        }
        for track in self.open.keys().copied().collect::<Vec<_>>() {
            self.close_spans(track, 0, time, &json!({}))?;
        }
        let titles = std::mem::take(&mut self.titles);
        for (&(pid, tid), title) in &titles {
            self.emit(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}}))?;
        }
        let mut processes: BTreeMap<u64, &str> = BTreeMap::new();
        for (&(pid, tid), title) in &titles {
            match pid {
                CPUS => processes.insert(pid, "CPUs"),
                KERNEL => processes.insert(pid, "kernel"),
                // A process is called as its first thread.
                _ if pid == tid => processes.insert(pid, title),
                _ => None,
            };
        }
        for (pid, name) in processes {
            self.emit(
                &json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ::trace::Note;

    use super::*;

    fn name(slot: u32, text: &str) -> Record {
        let mut bytes = [0; 16];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let word = u128::from_le_bytes(bytes);
        Record::new(
            1000,
            0,
            slot,
            Kind::Thread,
            Note {
                detail: THREAD_NAME,
                a: word as u64,
                b: (word >> 64) as u64,
            },
        )
    }

    fn is(slot: u32, pid: u64, tid: u64, time: u64) -> Record {
        Record::new(
            time,
            0,
            slot,
            Kind::Thread,
            Note {
                detail: THREAD_IS,
                a: tid,
                b: pid,
            },
        )
    }

    fn events(records: &[Record]) -> (Vec<Value>, u64) {
        let names = Names {
            calls: [(0, "read".to_owned())].into(),
            vectors: [(0xef, "timer".to_owned())].into(),
            ..Names::default()
        };
        let mut out = Vec::new();
        let lost = write(records, &names, &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(trace["otherData"]["lost_records"], lost);
        (trace["traceEvents"].as_array().unwrap().clone(), lost)
    }

    /// On each track every B has its E, and no E comes without.
    fn balanced(events: &[Value]) {
        let mut depth: BTreeMap<(u64, u64), i64> = BTreeMap::new();
        for event in events {
            let track = (
                event["pid"].as_u64().unwrap(),
                event["tid"].as_u64().unwrap_or(0),
            );
            match event["ph"].as_str().unwrap() {
                "B" => *depth.entry(track).or_default() += 1,
                "E" => {
                    let depth = depth.entry(track).or_default();
                    *depth -= 1;
                    assert!(*depth >= 0, "an end without a beginning");
                }
                _ => {}
            }
        }
        assert!(
            depth.values().all(|depth| *depth == 0),
            "beginnings without an end: {depth:?}"
        );
    }

    #[test]
    fn a_wake_up_and_a_switch() {
        let (events, lost) = events(&[
            is(3, 10, 11, 1000),
            name(3, "ping"),
            is(4, 10, 12, 1000),
            name(4, "pong"),
            Record::new(2000, 1, 3, Kind::CallBegin, Note::two(0, 0)),
            Record::new(
                2500,
                1,
                3,
                Kind::Wake,
                Note {
                    detail: 1,
                    a: 4,
                    b: 0,
                },
            ),
            Record::new(3000, 1, 3, Kind::Switch, Note::two(4, 0)),
            Record::new(3100, 1, 4, Kind::IrqBegin, Note::detail(0xef)),
            Record::new(3200, 1, 4, Kind::IrqEnd, Note::detail(0xef)),
            Record::new(4000, 1, 4, Kind::Switch, Note::two(3, 0)),
            Record::new(4100, 1, 3, Kind::CallEnd, Note::two(u64::MAX, 0)),
        ]);
        balanced(&events);
        assert_eq!(lost, 0);
        let of = |ph: &str| {
            events
                .iter()
                .filter(|e| e["ph"] == ph)
                .cloned()
                .collect::<Vec<_>>()
        };
        let ran: Vec<_> = of("X")
            .iter()
            .map(|e| (e["name"].clone(), e["ts"].clone(), e["dur"].clone()))
            .collect();
        assert_eq!(
            ran[..2],
            [
                ("ping".into(), 0.0.into(), 2.0.into()),
                ("pong".into(), 2.0.into(), 1.0.into())
            ]
        );
        let wake = &of("i")[0];
        assert_eq!(
            (&wake["name"], &wake["args"]["how"], &wake["tid"]),
            (&"wake pong".into(), &WAKE_DETAILS[1].into(), &11.into())
        );
        let begun: Vec<_> = of("B").iter().map(|e| e["name"].clone()).collect();
        assert_eq!(begun, ["read", "timer"]);
        assert!(of("E").iter().any(|e| e["args"]["result"] == -1));
        let named = |pid: u64, tid: u64, title: &str| {
            of("M")
                .iter()
                .any(|e| e["pid"] == pid && e["tid"] == tid && e["args"]["name"] == title)
        };
        assert!(named(10, 11, "ping") && named(CPUS, FIRST_CPU + 1, "CPU 1"));
        assert!(
            !named(10, 12, "pong"),
            "a thread that only ran has no track of its own"
        );
    }

    #[test]
    fn what_has_no_beginning_or_no_end_is_mended() {
        let (events, lost) = events(&[
            // Begun before the records did.
            Record::new(1000, 0, 3, Kind::CallEnd, Note::two(0, 0)),
            // A fault whose end was lost, in a call.
            Record::new(1100, 0, 3, Kind::CallBegin, Note::two(0, 0)),
            Record::new(1200, 0, 3, Kind::FaultBegin, Note::two(0x1000, 0)),
            Record::new(1300, 0, u32::MAX, Kind::Lost, Note::two(17, 0)),
            Record::new(1400, 0, 3, Kind::CallEnd, Note::two(0, 0)),
            // A thread that ends in a call, and another one in its slot.
            Record::new(1500, 0, 3, Kind::CallBegin, Note::two(60, 0)),
            Record::new(1600, 0, 3, Kind::Thread, Note::detail(THREAD_ENDS)),
            is(3, 20, 21, 1700),
            Record::new(1800, 0, 3, Kind::LockBegin, Note::two(5, 0)),
        ]);
        balanced(&events);
        assert_eq!(lost, 17);
        assert!(
            events.iter().any(|e| e["name"] == "call 60")
                && events.iter().any(|e| e["args"]["site"] == "site 5")
        );
    }
}
