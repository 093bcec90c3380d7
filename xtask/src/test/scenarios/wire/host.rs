//! The host behind QEMU's own network: a server for the machine's programs, and a visitor of the
//! machine's server, to which a port of the host's leads.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

/// Bytes of the large file, which is no multiple of any segment's.
const LARGE: usize = 3_000_017;
/// Visits to the machine's server by one visitor after the other, and by several at once.
const VISITS: usize = 30;
const VISITS_AT_ONCE: usize = 56;
/// Visitors at once, fewer than busybox httpd lets wait (9): a listener whose queue is full drops
/// the end of a handshake and repeats its answer, as Linux does, and QEMU's network answers that
/// without ever sending the request again. 20 of 20 connections that met it hung.
const VISITORS: usize = 8;
/// Waits for a server that has not begun. A slow host is no failure: the whole has the machine's
/// time limit.
const TRIES: u32 = 600;
const LOOK: Duration = Duration::from_millis(100);

/// The host: a server of HTTP at one port, of nothing but bytes at another.
pub struct Host {
    web: TcpListener,
    /// The same over IPv6; none where the host has not got that itself.
    web_v6: Option<TcpListener>,
    raw: TcpListener,
    /// A port of the host's that nobody listens at.
    pub closed: u16,
    /// The host's port that leads to the machine's server.
    pub forwarded: u16,
    large: Arc<Vec<u8>>,
}

/// A port that is free now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

impl Host {
    pub fn new() -> Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen");
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let large = (0..LARGE).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        Ok(Self {
            web: bind()?,
            web_v6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok(),
            raw: bind()?,
            closed: free_port()?,
            forwarded: free_port()?,
            large: Arc::new(large.collect()),
        })
    }

    /// Puts what is known of the host in the place of its names in a script.
    pub fn fill_in(&self, script: &str) -> Result<String> {
        let port = |of: &TcpListener| Ok::<_, io::Error>(of.local_addr()?.port().to_string());
        let mut webs = format!("10.0.2.2:{}", port(&self.web)?);
        if let Some(web) = &self.web_v6 {
            write!(webs, " [fec0::2]:{}", port(web)?)?;
        }
        Ok(script
            .replace("@WEBS@", &webs)
            .replace("@WEB@", &port(&self.web)?)
            .replace("@RAW@", &port(&self.raw)?)
            .replace("@CLOSED@", &self.closed.to_string())
            .replace("@SUM@", &sum(&self.large)?))
    }

    /// Serves until the program ends: each visitor in a thread of its own.
    pub fn serve(self) -> Result<()> {
        let (raw, large) = (self.raw, self.large.clone());
        thread::Builder::new().spawn(move || {
            for visitor in raw.incoming().flatten() {
                let large = large.clone();
                thread::spawn(move || echo_sum(visitor, &large));
            }
        })?;
        for web in [Some(self.web), self.web_v6].into_iter().flatten() {
            let (large, forwarded) = (self.large.clone(), self.forwarded);
            thread::Builder::new().spawn(move || {
                for visitor in web.incoming().flatten() {
                    let large = large.clone();
                    thread::spawn(move || answer(visitor, &large, forwarded));
                }
            })?;
        }
        Ok(())
    }
}

/// The SHA-256 of bytes, by the host's own program.
fn sum(bytes: &[u8]) -> Result<String> {
    let mut command = Command::new("sha256sum");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run sha256sum")?;
    child.stdin.take().context("no pipe")?.write_all(bytes)?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Takes all that comes, and says what it was.
fn echo_sum(mut visitor: TcpStream, large: &[u8]) -> io::Result<()> {
    let mut all = Vec::new();
    visitor.read_to_end(&mut all)?;
    let is_same = if all == large {
        "as sent"
    } else {
        "other bytes"
    };
    writeln!(visitor, "{} bytes, {is_same}", all.len())?;
    visitor.shutdown(Shutdown::Write)
}

/// Answers a request.
fn answer(mut visitor: TcpStream, large: &[u8], forwarded: u16) -> Result<()> {
    let mut first = [0; 10];
    visitor.read_exact(&mut first)?;
    if &first == b"GET /reset" {
        // What is left of the request is not read: closing resets.
        visitor.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun")?;
        return Ok(());
    }
    let mut head = first.to_vec();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        visitor.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let body = match path {
        "/large" => large.to_vec(),
        "/visit" => visit(forwarded, large)
            .unwrap_or_else(|error| format!("{error:#}\n"))
            .into(),
        _ => format!("you asked for {path}\n").into_bytes(),
    };
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    visitor.write_all(head.as_bytes())?;
    visitor.write_all(&body)?;
    Ok(())
}

/// Asks the machine's server for a file.
fn get(port: u16, path: &str) -> Result<Vec<u8>> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut all = Vec::new();
    server.read_to_end(&mut all)?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.with_context(|| format!("an answer of {} bytes without a head", all.len()))?;
    ensure!(all.starts_with(b"HTTP/1."), "no answer of HTTP");
    Ok(all.split_off(end + 4))
}

/// One visitor's share of the visits at once.
fn visit_again_and_again(port: u16) -> Result<()> {
    for _ in 0..VISITS_AT_ONCE / VISITORS {
        let small = get(port, "/small")?;
        ensure!(small == b"small\n", "the small file is another");
    }
    Ok(())
}

/// Visits the machine's server in all ways. Returns what was seen.
fn visit(port: u16, large: &[u8]) -> Result<String> {
    let mut seen = String::new();
    // QEMU takes connections before there is a server.
    let begun = (0..TRIES).any(|_| {
        let is_there = get(port, "/small").is_ok();
        if !is_there {
            thread::sleep(LOOK);
        }
        is_there
    });
    ensure!(begun, "the machine's server does not answer");
    let whole = get(port, "/large").context("the large file does not come")?;
    ensure!(whole == large, "the large file is another");
    writeln!(seen, "the large file is whole")?;
    for n in 0..VISITS {
        let small = get(port, "/small").with_context(|| format!("visitor {n}"))?;
        ensure!(small == b"small\n", "the small file is another");
    }
    writeln!(seen, "{VISITS} visitors one after the other")?;
    let visitors: Vec<_> = (0..VISITORS)
        .map(|_| thread::spawn(move || visit_again_and_again(port)))
        .collect();
    for visitor in visitors {
        visitor
            .join()
            .map_err(|_| anyhow!("a visitor panicked"))?
            .context("of many at once one is not served")?;
    }
    writeln!(seen, "{VISITS_AT_ONCE} visits, {VISITORS} at once")?;
    // Some leave in the middle.
    for _ in 0..5 {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        server.write_all(b"GET /large HTTP/1.0\r\n\r\n")?;
        let begun = server.read_exact(&mut [0; 1000]);
        begun.context("one that leaves is not served")?;
    }
    let whole = get(port, "/large").context("the large file does not come again")?;
    ensure!(whole == large, "the large file is another");
    writeln!(seen, "it serves after visitors that left")?;
    Ok(seen)
}
