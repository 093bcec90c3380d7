//! `logs`: what an instance's program, or its kernel, has written.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};

use abi::dev::{self, Status};

use crate::device::{Device, Stream};
use crate::failure::{Context, Result};
use crate::instances::label;
use crate::streams::{Sink, Streams, is_ready};

/// Options of `skerry logs`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Go on until the instance has ended.
    pub follow: bool,
    /// The kernel's log instead of the program's output.
    pub kernel: bool,
    /// Only so many last lines of each stream.
    pub tail: Option<usize>,
}

/// Shows an instance's streams.
///
/// # Errors
/// The device's, or those of standard output.
pub fn show(
    device: &dyn Device,
    status: &Status,
    options: Options,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<()> {
    let cannot = || format!("cannot read the logs of {}", label(status));
    let flags = dev::ATTACH_FROM_START
        | if options.follow {
            dev::ATTACH_FOLLOW
        } else {
            0
        };
    let mut streams = Streams::new(out, err);
    let wanted: &[(Stream, Sink)] = if options.kernel {
        &[(Stream::Klog, Sink::Out)]
    } else {
        &[(Stream::Stdout, Sink::Out), (Stream::Stderr, Sink::Err)]
    };
    for &(stream, sink) in wanted {
        let mut from = File::from(device.attach(status.id, stream, flags).context(cannot)?);
        let mut ended = false;
        if let Some(lines) = options.tail {
            let kept;
            (kept, ended) = read_ready(&mut from).context(cannot)?;
            match streams.sink(sink).write_all(last_lines(&kept, lines)) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                other => other.context(cannot)?,
            }
        }
        if !ended {
            streams.output(from.into(), sink);
        }
    }
    // The only signal it can tell of: our reader has seen enough.
    match streams.run(None, &mut |_| Err(ErrorKind::BrokenPipe.into())) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context(cannot),
    }
}

/// The part of a stream that is kept now.
///
/// # Errors
/// The device's.
pub fn read(device: &dyn Device, id: u32, stream: Stream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(device.attach(id, stream, dev::ATTACH_FROM_START)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads what there is without waiting; also says whether that is the end.
fn read_ready(from: &mut File) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while is_ready(&*from)? {
        match from.read(&mut piece)? {
            0 => return Ok((bytes, true)),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
    Ok((bytes, false))
}

/// The last `count` lines.
fn last_lines(text: &[u8], count: usize) -> &[u8] {
    if count == 0 {
        return &[];
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut left = count;
    for (at, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            left -= 1;
            if left == 0 {
                return &text[at + 1..];
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{self, create, start};
    use crate::mock::{Mock, request};

    #[test]
    fn the_last_lines() {
        for (text, count, last) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 1, "c"),
            ("a\n", 5, "a\n"),
            ("a\nb", 0, ""),
            ("", 3, ""),
            ("\n\n", 1, "\n"),
        ] {
            assert_eq!(
                last_lines(text.as_bytes(), count),
                last.as_bytes(),
                "{text:?} {count}"
            );
        }
    }

    #[test]
    fn streams_stay_apart_and_can_be_cut() {
        let mock = Mock::new(4, 1 << 30);
        let status = create(
            &mock,
            &request("box", &["say", "one\ntwo\n", "0"]),
            SystemTime::now(),
        )
        .unwrap();
        start(&mock, &status).unwrap();
        let status = instances::find(&mock, "box").unwrap();
        for (options, expected, errors) in [
            (Options::default(), "one\ntwo\n", "errors of one\ntwo\n"),
            (
                Options {
                    tail: Some(1),
                    ..Options::default()
                },
                "two\n",
                "two\n",
            ),
            (
                Options {
                    kernel: true,
                    ..Options::default()
                },
                "last words\n",
                "",
            ),
        ] {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            show(&mock, &status, options, &mut out, &mut err).unwrap();
            assert_eq!(
                (out.as_slice(), err.as_slice()),
                (expected.as_bytes(), errors.as_bytes())
            );
        }
    }
}
