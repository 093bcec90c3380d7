//! The clients of the servers that `bench net` measures: a process of the host, which the emulator
//! starts when the machine's program connects to it, and whose instructions nobody counts.
//!
//! It reads lines of `SERVER CONNECTIONS ROUNDS`, and answers each with `done` once that many
//! connections to the server have had that many requests each.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// How long an answer may take: an emulated machine that counts is slow, one that is stuck is
/// slower.
const PATIENCE: Duration = Duration::from_secs(60);

/// Name of the task on the command line.
pub const TASK: &str = "load";

/// Ask the servers of a machine that is measured
#[derive(Args)]
pub struct Arguments {
    /// The host's port by which the web server is reached
    http: u16,
    /// The host's port by which the database is reached
    redis: u16,
}

/// A server that is asked.
#[derive(Clone, Copy)]
enum Server {
    Http,
    Redis,
}

/// Carries out `cargo xtask load`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut output = io::stdout();
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let [server, connections, rounds] = words.as_slice() else {
            bail!("{line:?} is no request")
        };
        let (server, port) = match *server {
            "http" => (Server::Http, arguments.http),
            "redis" => (Server::Redis, arguments.redis),
            other => bail!("nobody is called {other:?}"),
        };
        ask(server, port, connections.parse()?, rounds.parse()?)?;
        writeln!(output, "done")?;
        output.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens so many connections, sends a request on each, takes all answers, and so on: the requests
/// of a round are with the server together, as those of many clients are.
fn ask(server: Server, port: u16, connections: usize, rounds: usize) -> Result<()> {
    let connect = |_| {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(BufReader::new(stream))
    };
    let mut streams: Vec<_> = (0..connections)
        .map(connect)
        .collect::<io::Result<_>>()
        .context("cannot connect")?;
    for round in 0..rounds {
        for stream in &mut streams {
            stream.get_mut().write_all(server.request(round))?;
        }
        for stream in &mut streams {
            server.take_answer(round, stream)?;
        }
    }
    Ok(())
}

impl Server {
    fn request(self, round: usize) -> &'static [u8] {
        match self {
            Self::Http => {
                b"GET / HTTP/1.1\r\nHost: skerry\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n"
            }
            Self::Redis if round.is_multiple_of(2) => {
                b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3\r\nxxx\r\n"
            }
            Self::Redis => b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
        }
    }

    /// Reads the answer to the request of a round; anything else is an error.
    fn take_answer(self, round: usize, from: &mut impl BufRead) -> Result<()> {
        match self {
            Self::Http => take_page(from),
            Self::Redis => {
                let expected: &[u8] = if round.is_multiple_of(2) {
                    b"+OK\r\n"
                } else {
                    b"$3\r\nxxx\r\n"
                };
                let mut answer = [0; 9];
                let answer = &mut answer[..expected.len()];
                from.read_exact(answer)?;
                ensure!(answer == expected, "the database said {answer:?}");
                Ok(())
            }
        }
    }
}

/// Reads a page with its head.
fn take_page(from: &mut impl BufRead) -> Result<()> {
    let mut length = None;
    for number in 0.. {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim_end();
        if number == 0 {
            ensure!(line == "HTTP/1.1 200 OK", "the web server said {line:?}");
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(value.parse::<u64>()?);
        }
    }
    let length = length.context("a page without a length")?;
    let taken = io::copy(&mut from.take(length), &mut io::sink())?;
    ensure!(
        taken == length,
        "a page of {length} bytes ended after {taken}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Server;

    #[test]
    fn an_answer_is_taken_whole_and_no_more() {
        let page =
            b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 404 No\r\n";
        let mut rest = page.as_slice();
        Server::Http.take_answer(0, &mut rest).unwrap();
        assert!(rest.starts_with(b"HTTP/1.1 404"));
        assert!(Server::Http.take_answer(0, &mut rest).is_err());
        let mut rest = b"+OK\r\n$3\r\nxxx\r\n-ERR no\r\n".as_slice();
        Server::Redis.take_answer(0, &mut rest).unwrap();
        Server::Redis.take_answer(1, &mut rest).unwrap();
        assert!(Server::Redis.take_answer(2, &mut rest).is_err());
    }

    #[test]
    fn an_answer_that_ends_early_is_an_error() {
        for answer in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi"] {
            assert!(Server::Http.take_answer(0, &mut &answer[..]).is_err());
        }
    }
}
