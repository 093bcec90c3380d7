//! `metrics`: figures of the machine and its instances in Prometheus' text format (version 0.0.4),
//! once or served over HTTP.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use abi::dev::{self, Info, Stats, Status};

use crate::device::Device;
use crate::failure::{Context, Failure, Result};
use crate::instances::{self, has_ended, label};
use crate::show::{Instance, Resources};
use crate::{networks, peers, stats};

/// The content type of the format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Time limit for a client, from the connection to the last byte of the answer: others wait.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);
/// Most bytes of a request's head.
const REQUEST_BYTES: usize = 8 << 10;
/// Most fields of a request's head.
const REQUEST_FIELDS: usize = 64;

/// A document in the text format.
#[derive(Debug, Default)]
struct Document(String);

impl Document {
    /// Begins a metric whose values go up and down.
    fn gauge(&mut self, name: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge");
    }

    /// Begins a metric whose values only grow.
    fn counter(&mut self, name: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} counter");
    }

    /// Adds a value of a metric.
    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0 += name;
        for (index, (label, text)) in labels.iter().enumerate() {
            let opening = if index == 0 { "{" } else { "," };
            let _ = write!(self.0, "{opening}{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.0 += "}";
        }
        let _ = writeln!(self.0, " {value}");
    }
}

/// A label's value as it stands between quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The figures at this moment.
///
/// # Errors
/// The device's.
pub fn text(device: &dyn Device) -> Result<String> {
    let look = || "cannot look at the machine";
    let info = device.info().context(look)?;
    let all = instances::all(device)?;
    // The supervisor, and then all instances.
    let ids: Vec<_> = [0].into_iter().chain(all.iter().map(|s| s.id)).collect();
    let used = stats::fresh(device, &ids).context(look)?;
    let mut exchanged = BTreeMap::new();
    for status in &all {
        let peers = peers::of(device, status.id).context(look)?;
        exchanged.insert(status.id, peers);
    }
    Ok(document(&info, &all, &used, &exchanged))
}

/// Peers of instances, by the instances' numbers.
type Exchanged = BTreeMap<u32, Vec<peers::Shown>>;

fn document(info: &Info, all: &[Status], used: &[Stats], exchanged: &Exchanged) -> String {
    let mut text = Document::default();
    let resources = Resources::new(info, all.len());
    text.gauge("skerry_build_info", "Versions of tool and kernel.");
    let kernel = dev::text(&info.version).unwrap_or_default();
    text.value(
        "skerry_build_info",
        &[("tool", env!("CARGO_PKG_VERSION")), ("kernel", kernel)],
        1.0,
    );
    let (cpus, memory) = (&resources.cpus, &resources.memory);
    text.gauge("skerry_cpus", "The machine's CPUs by who has them.");
    for (owner, count) in [
        ("supervisor", cpus.by_owner.supervisor),
        ("instances", cpus.by_owner.in_use),
        ("free", cpus.by_owner.free),
        ("withheld", cpus.withheld),
        ("quarantined", cpus.by_owner.quarantined),
        ("lost", cpus.by_owner.lost),
    ] {
        text.value("skerry_cpus", &[("owner", owner)], count.into());
    }
    text.gauge(
        "skerry_memory_bytes",
        "The machine's memory by who has it, in bytes.",
    );
    for (owner, bytes) in [
        ("supervisor", memory.supervisor),
        ("instances", memory.in_use),
        ("free", memory.free),
        ("quarantined", memory.quarantined),
        ("leaked", memory.leaked),
    ] {
        text.value("skerry_memory_bytes", &[("owner", owner)], bytes as f64);
    }
    of_instances(&mut text, all);
    usage(&mut text, all, used);
    messages(&mut text, all, exchanged);
    text.0
}

/// Name of a metric of a pair of peers, its help, and its value.
type PeerFigure = (&'static str, &'static str, fn(&peers::Shown) -> u64);

/// Labels of a metric of a pair of peers.
fn labels<'a>(name: &'a str, peer: &'a peers::Shown) -> Vec<(&'static str, &'a str)> {
    let group = peer.group.as_deref();
    let mut labels = vec![("name", name), ("peer", &peer.name)];
    labels.extend(group.map(|group| ("group", group)));
    labels
}

/// Messages between each instance and its peers.
fn messages(text: &mut Document, all: &[Status], exchanged: &Exchanged) {
    let each = || {
        all.iter().flat_map(|status| {
            let peers = exchanged.get(&status.id).into_iter().flatten();
            // A group without another member is no peer.
            let peers = peers.filter(|peer| peer.group.is_none() || peer.id.is_some());
            peers.map(move |peer| (label(status), peer))
        })
    };
    let name = "skerry_instance_peer_connected";
    text.gauge(name, "Whether an instance exchanges messages with a peer.");
    for (label, peer) in each() {
        let value = f64::from(u8::from(peer.id.is_some()));
        text.value(name, &labels(label, peer), value);
    }
    let name = "skerry_instance_peer_messages_total";
    text.counter(
        name,
        "Messages that an instance has sent to a peer, and has taken from it.",
    );
    for (label, peer) in each() {
        for (direction, count) in [("sent", peer.sent), ("received", peer.received)] {
            let mut labels = labels(label, peer);
            labels.push(("direction", direction));
            text.value(name, &labels, count as f64);
        }
    }
    let counters: [PeerFigure; 3] = [
        (
            "skerry_instance_peer_refused_total",
            "Messages to a peer for which there was no room.",
            |peer| peer.refused,
        ),
        (
            "skerry_instance_peer_doorbells_total",
            "Doorbells that an instance has rung at a peer.",
            |peer| peer.doorbells,
        ),
        (
            "skerry_instance_peer_held_back_total",
            "Times that doorbells were held back, because a peer had rung for nothing.",
            |peer| peer.held_back,
        ),
    ];
    for (name, help, value) in counters {
        text.counter(name, help);
        for (label, peer) in each() {
            text.value(name, &labels(label, peer), value(peer) as f64);
        }
    }
}

/// Name of a metric of instances, its help, and its value.
type Figure = (&'static str, &'static str, fn(&Stats) -> f64);

/// Figures of what the supervisor and each instance have used.
fn usage(text: &mut Document, all: &[Status], used: &[Stats]) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let modes = |stats: &Stats| {
        [
            ("user", stats.user_ns),
            ("system", stats.system_ns),
            ("idle", stats.idle_ns),
            ("paused", stats.paused_ns),
        ]
    };
    text.counter(
        "skerry_supervisor_cpu_seconds_total",
        "Time of the supervisor's CPUs by what they did.",
    );
    for stats in used.iter().filter(|stats| stats.id == 0) {
        for (mode, ns) in modes(stats) {
            let name = "skerry_supervisor_cpu_seconds_total";
            text.value(name, &[("mode", mode)], seconds(ns));
        }
    }
    let of = |status: &Status| used.iter().find(|stats| stats.id == status.id);
    let each = || {
        all.iter()
            .filter_map(|s| of(s).map(|stats| (label(s), stats)))
    };
    text.counter(
        "skerry_instance_cpu_seconds_total",
        "Time of an instance's CPUs by what they did.",
    );
    for (name, stats) in each() {
        for (mode, ns) in modes(stats) {
            let labels = [("name", name), ("mode", mode)];
            text.value("skerry_instance_cpu_seconds_total", &labels, seconds(ns));
        }
    }
    text.counter(
        "skerry_instance_stream_bytes_total",
        "Bytes that went through an instance's streams.",
    );
    for (name, stats) in each() {
        for (stream, bytes) in [
            ("input", stats.input_bytes),
            ("output", stats.output_bytes),
            ("log", stats.log_bytes),
        ] {
            let labels = [("name", name), ("stream", stream)];
            text.value("skerry_instance_stream_bytes_total", &labels, bytes as f64);
        }
    }
    text.counter(
        "skerry_instance_network_bytes_total",
        "Bytes that an instance's network card was given, and has sent.",
    );
    for status in all.iter().filter(|s| networks::address(s).is_some()) {
        let counters = &status.network;
        for (direction, bytes) in [
            ("received", counters.received_bytes),
            ("sent", counters.sent_bytes),
        ] {
            let labels = [("name", label(status)), ("direction", direction)];
            let name = "skerry_instance_network_bytes_total";
            text.value(name, &labels, bytes as f64);
        }
    }
    let counters: [Figure; 4] = [
        (
            "skerry_instance_supervisor_seconds_total",
            "CPU time that the supervisor has spent on an instance.",
            |stats| stats.supervisor_ns as f64 / 1e9,
        ),
        (
            "skerry_instance_interrupts_total",
            "Interrupts that an instance's CPUs have taken.",
            |stats| stats.interrupts as f64,
        ),
        (
            "skerry_instance_context_switches_total",
            "Context switches of an instance's CPUs.",
            |stats| stats.switches as f64,
        ),
        (
            "skerry_instance_messages_total",
            "Messages that an instance was sent.",
            |stats| stats.messages as f64,
        ),
    ];
    for (name, help, value) in counters {
        text.counter(name, help);
        each().for_each(|(label, stats)| text.value(name, &[("name", label)], value(stats)));
    }
    let gauges: [Figure; 2] = [
        (
            "skerry_instance_memory_used_bytes",
            "Memory in use in an instance, in bytes, as it told last.",
            |stats| stats.mem_used as f64,
        ),
        (
            "skerry_instance_threads",
            "Threads of an instance's programs, as it told last.",
            |stats| f64::from(stats.threads),
        ),
    ];
    for (name, help, value) in gauges {
        text.gauge(name, help);
        let told = each().filter(|(_, stats)| stats.answered != 0);
        told.for_each(|(label, stats)| text.value(name, &[("name", label)], value(stats)));
    }
}

/// Figures of each instance.
fn of_instances(text: &mut Document, all: &[Status]) {
    text.gauge(
        "skerry_instance_info",
        "An instance, its state and its health; always 1.",
    );
    for status in all {
        let shown = Instance::new(status);
        let id = shown.id.to_string();
        let labels = [
            ("name", shown.name),
            ("id", &id),
            ("state", shown.state),
            ("health", shown.health),
            ("mode", shown.mode),
        ];
        text.value("skerry_instance_info", &labels, 1.0);
    }
    let mut each = |name: &str, help: &str, of: &dyn Fn(&Status) -> Option<f64>| {
        text.gauge(name, help);
        for status in all {
            if let Some(value) = of(status) {
                text.value(name, &[("name", label(status))], value);
            }
        }
    };
    let has = |status: &Status, what: f64| (!has_ended(status)).then_some(what);
    each("skerry_instance_cpus", "CPUs that an instance has.", &|s| {
        has(s, s.cpus.into())
    });
    each(
        "skerry_instance_memory_bytes",
        "Memory that an instance has, in bytes.",
        &|s| has(s, s.mem as f64),
    );
    each(
        "skerry_instance_start_time_seconds",
        "Time of the start, in seconds since 1970.",
        &|s| Instance::new(s).started,
    );
    each(
        "skerry_instance_exit_code",
        "Exit code of an instance's first program.",
        &|s| Instance::new(s).exit_code.map(f64::from),
    );
}

/// An address to listen at: `ADDRESS:PORT`, or a port alone, of which only programs of this machine
/// know.
///
/// # Errors
/// Says what an address looks like.
pub fn parse_address(text: &str) -> std::result::Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    let whole = match port.parse::<u16>() {
        Ok(_) if text.starts_with(':') => format!("0.0.0.0:{port}"),
        Ok(_) => format!("127.0.0.1:{port}"),
        Err(_) => text.to_owned(),
    };
    whole.parse().map_err(|_| {
        "expected a port such as 9101, or an address and a port such as 127.0.0.1:9101 or :9101"
            .to_owned()
    })
}

/// Serves the figures at `/metrics`, for ever. Prints the address when it is ready.
///
/// # Errors
/// Names the address that it cannot listen at.
pub fn serve(device: &dyn Device, address: SocketAddr, out: &mut dyn Write) -> Result<()> {
    let at = || format!("cannot listen at {address}");
    let listener = TcpListener::bind(address).context(at)?;
    let local = listener.local_addr().context(at)?;
    // Somebody who does not read that is served all the same.
    let _ = writeln!(out, "serving http://{local}/metrics").and_then(|()| out.flush());
    loop {
        match listener.accept() {
            // A client that is too slow or goes away is its own loss.
            Ok((client, _)) => drop(answer(&client, || text(device))),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error).context(at),
        }
    }
}

/// Whether an error of `accept` is one of that client only.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

/// Reads a request and answers it; the connection ends with the answer.
fn answer(mut client: &TcpStream, figures: impl FnOnce() -> Result<String>) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT_LIMIT;
    let (status, body) = match read_request(client, deadline)? {
        Request::Metrics => match figures() {
            Ok(text) => ("200 OK", text),
            Err(Failure { message, .. }) => ("503 Service Unavailable", message + "\n"),
        },
        Request::Elsewhere => ("404 Not Found", "the figures are at /metrics\n".into()),
        Request::OtherMethod => ("405 Method Not Allowed", "only GET is answered\n".into()),
        Request::Malformed => ("400 Bad Request", "this is no request of HTTP/1\n".into()),
    };
    client.set_write_timeout(Some(left(deadline)?))?;
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    Elsewhere,
    OtherMethod,
    Malformed,
}

/// Reads the head of a request.
fn read_request(mut client: &TcpStream, deadline: Instant) -> io::Result<Request> {
    let (mut head, mut length) = ([0; REQUEST_BYTES], 0);
    loop {
        if let Some(request) = parse(&head[..length]) {
            return Ok(request);
        }
        if length == head.len() {
            return Ok(Request::Malformed);
        }
        client.set_read_timeout(Some(left(deadline)?))?;
        match client.read(&mut head[length..])? {
            0 => return Ok(Request::Malformed),
            count => length += count,
        }
    }
}

/// Request that a head makes; `None` if the head is not complete.
fn parse(head: &[u8]) -> Option<Request> {
    let mut fields = [httparse::EMPTY_HEADER; REQUEST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Err(_) => Some(Request::Malformed),
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            Some(match (request.method, path.split('?').next()) {
                (Some("GET"), Some("/metrics")) => Request::Metrics,
                (Some("GET"), _) => Request::Elsewhere,
                _ => Request::OtherMethod,
            })
        }
    }
}

/// Time until a deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::thread;
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{create, start};
    use crate::mock::{Mock, request};

    #[test]
    fn a_document_has_the_machine_and_its_instances() {
        let mock = Mock::new(4, 1 << 30);
        let one = create(&mock, &request("one", &["sleep"]), SystemTime::now()).unwrap();
        start(&mock, &one).unwrap();
        let two = create(
            &mock,
            &request("two", &["say", "x", "3"]),
            SystemTime::now(),
        )
        .unwrap();
        start(&mock, &two).unwrap();
        let text = text(&mock).unwrap();
        for line in [
            "# TYPE skerry_cpus gauge",
            "skerry_cpus{owner=\"instances\"} 1",
            "skerry_memory_bytes{owner=\"instances\"} 67108864",
            "skerry_instance_info{name=\"one\",id=\"1\",state=\"running\",health=\"good\",\
             mode=\"cooperative\"} 1",
            "skerry_instance_cpus{name=\"one\"} 1",
            "skerry_instance_exit_code{name=\"two\"} 3",
            "# TYPE skerry_instance_cpu_seconds_total counter",
            "skerry_instance_cpu_seconds_total{name=\"one\",mode=\"idle\"} 0",
            "skerry_instance_memory_used_bytes{name=\"one\"} 16777216",
            "skerry_instance_stream_bytes_total{name=\"two\",stream=\"log\"} 0",
            "skerry_supervisor_cpu_seconds_total{mode=\"user\"} 0",
        ] {
            assert!(text.lines().any(|had| had == line), "{line}:\n{text}");
        }
        assert!(
            !text.contains("skerry_instance_cpus{name=\"two\"}"),
            "{text}"
        );
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn addresses_to_listen_at() {
        let parsed = |text| parse_address(text).map(|address| address.to_string());
        assert_eq!(parsed("9101").as_deref(), Ok("127.0.0.1:9101"));
        assert_eq!(parsed(":9101").as_deref(), Ok("0.0.0.0:9101"));
        assert_eq!(parsed("[::1]:9101").as_deref(), Ok("[::1]:9101"));
        for text in ["", ":", "65536", "localhost", "1.2.3.4"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn requests_are_told_apart() {
        for (head, asked) in [
            ("", None),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                Some(Request::Metrics),
            ),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Some(Request::Metrics)),
            ("GET /metricsx HTTP/1.1\r\n\r\n", Some(Request::Elsewhere)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Request::OtherMethod)),
            ("\u{1}\u{2}\r\n\r\n", Some(Request::Malformed)),
        ] {
            assert_eq!(parse(head.as_bytes()), asked, "{head:?}");
        }
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(REQUEST_FIELDS + 1)
        );
        assert_eq!(parse(many.as_bytes()), Some(Request::Malformed));
    }

    fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut asking = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            answer(&client, || Ok("figures\n".into()))
        });
        asking.write_all(request).unwrap();
        asking.shutdown(std::net::Shutdown::Write).unwrap();
        let mut lines = io::BufReader::new(&asking).lines();
        let first = lines.next().unwrap().unwrap();
        let last = lines.map_while(io::Result::ok).last().unwrap_or_default();
        server.join().unwrap().unwrap();
        format!("{first} {last}")
    }

    #[test]
    fn requests_are_answered() {
        assert_eq!(
            ask(b"GET /metrics HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 200 OK figures"
        );
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").contains("404"));
        assert!(ask(b"GET /metrics HTTP/1.1\r\n").contains("400"));
        assert!(ask(&[b'A'; REQUEST_BYTES]).contains("400"));
    }
}
