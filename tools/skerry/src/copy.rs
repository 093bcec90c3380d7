//! `cp`: files from an instance and into it, by a `tar` of its own (as `kubectl cp` does it), which
//! runs beside its first program.

mod pack;
mod unpack;

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::thread;

use abi::dev::Status;

use crate::device::Device;
use crate::exec;
use crate::failure::{Context, Failure, Result};
use crate::instances::{find, label};
use crate::run::Stdio;
use crate::size;

/// Bytes of what an instance's `tar` says of its failure that are told.
const COMPLAINT_LEN: usize = 2 << 10;

/// Options of `skerry cp`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep owners, and all bits of modes.
    pub archive: bool,
    /// Do not say how much was copied.
    pub quiet: bool,
}

/// Outcome of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Copied {
    /// Bytes of files.
    bytes: u64,
    /// Number of entries that were left out: devices, fifos, sockets.
    left_out: u32,
}

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path here.
    Here(PathBuf),
    /// An archive on standard input, or output.
    Stream,
    /// A path in an instance.
    There {
        /// The instance.
        instance: String,
        /// The path, relative to `/`.
        path: Inner,
    },
}

/// A path in an instance, taken apart by its text alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The path, from `/`.
    whole: String,
    /// The directory that its last name is in.
    parent: String,
    /// The last name; none of `/`, and of what ends in `.` or `..`: the contents of a directory.
    name: Option<String>,
    /// Whether only a directory can be meant: it ends in `/`.
    is_directory: bool,
}

impl Inner {
    fn new(path: &str) -> Self {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let join = |names: &[&str]| format!("/{}", names.join("/"));
        let (name, parent) = match names.split_last() {
            Some((&last, parent)) if last != "." && last != ".." => (Some(last.to_owned()), parent),
            _ => (None, &names[..]),
        };
        Self {
            whole: join(&names),
            parent: join(parent),
            name,
            is_directory: path.ends_with('/'),
        }
    }
}

impl Place {
    /// Reads an argument: `INSTANCE:PATH`, a path, or `-`. What has a slash before its first colon
    /// is a path.
    #[must_use]
    pub fn new(text: &str) -> Self {
        match text.split_once(':') {
            _ if text == "-" => Self::Stream,
            Some((instance, path)) if !instance.is_empty() && !instance.contains('/') => {
                Self::There {
                    instance: instance.to_owned(),
                    path: Inner::new(path),
                }
            }
            _ => Self::Here(text.into()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(path) => path.display().fmt(f),
            Self::Stream => f.write_str("-"),
            Self::There { instance, path } => write!(f, "{instance}:{}", path.whole),
        }
    }
}

/// Copies what is at `from` to `to`, one of which is in an instance.
///
/// # Errors
/// If there is no such file, or it cannot be where it shall be; what the instance's `tar` says.
pub fn copy(
    device: &dyn Device,
    from: &Place,
    to: &Place,
    options: Options,
    here: &mut Stdio<'_>,
) -> Result<()> {
    let copied = match (from, to) {
        (Place::There { instance, path }, Place::Here(_) | Place::Stream) => {
            let status = find(device, instance)?;
            let instance = Instance::new(device, &status, here.signals);
            copy_out(&instance, path, to, options, here)?
        }
        (Place::Here(_) | Place::Stream, Place::There { instance, path }) => {
            let status = find(device, instance)?;
            let instance = Instance::new(device, &status, here.signals);
            copy_in(&instance, from, path, options, here)?
        }
        (Place::There { .. }, _) => {
            return Err(Failure::new(
                "nothing is copied from instance to instance: `skerry cp A:PATH - | skerry cp - \
                 B:DIR` does it",
            ));
        }
        _ => {
            return Err(Failure::new(
                "neither is in an instance: write one of the two as NAME:PATH",
            ));
        }
    };
    if !options.quiet && ![from, to].contains(&&Place::Stream) {
        let mut line = format!("copied {} to {to}", size::format(copied.bytes));
        if copied.left_out > 0 {
            let count = copied.left_out;
            line += &format!("; left out {count}: neither files, directories nor links");
        }
        writeln!(here.err, "{line}").context(|| "standard error")?;
    }
    Ok(())
}

/// A running instance, whose programs do their part of a copy.
struct Instance<'a> {
    device: &'a dyn Device,
    status: &'a Status,
    signals: bool,
}

impl<'a> Instance<'a> {
    fn new(device: &'a dyn Device, status: &'a Status, signals: bool) -> Self {
        Self {
            device,
            status,
            signals,
        }
    }

    fn name(&self) -> &str {
        label(self.status)
    }

    /// Runs a program as root there; returns its status and what it says on standard error.
    fn run(
        &self,
        command: &[&str],
        input: Option<BorrowedFd<'_>>,
        out: &mut dyn Write,
        signals: bool,
    ) -> Result<(u8, String)> {
        let options = exec::Options {
            interactive: input.is_some(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            ..exec::Options::default()
        };
        let mut complaint = Complaint::default();
        let mut stdio = Stdio {
            input,
            out,
            err: &mut complaint,
            signals,
        };
        match exec::exec(self.device, self.status, &options, &mut stdio) {
            Ok(status) => Ok((status, complaint.text())),
            Err(failure) if failure.status == 127 => Err(Failure::new(format!(
                "{0} has no program `{1}`: `skerry cp` needs `tar` and `test` in the instance",
                self.name(),
                command[0]
            ))),
            Err(failure) => Err(failure),
        }
    }

    /// Runs its `tar`.
    fn tar(
        &self,
        arguments: &[&str],
        input: Option<BorrowedFd<'_>>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let command = [&["tar"], arguments].concat();
        match self.run(&command, input, out, self.signals)? {
            (0, _) => Ok(()),
            (status, said) if said.is_empty() => Err(Failure::new(format!(
                "`tar` in {} ended with status {status}",
                self.name()
            ))),
            (_, said) => Err(Failure::new(format!("{}: {said}", self.name()))),
        }
    }

    /// Asks `test` there.
    fn test(&self, condition: &str, path: &str) -> Result<bool> {
        let command = ["test", condition, path];
        let (status, _) = self.run(&command, None, &mut io::sink(), false)?;
        Ok(status == 0)
    }
}

/// The end of what a program says, on one line.
#[derive(Default)]
struct Complaint(Vec<u8>);

impl Complaint {
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.join("; ")
    }
}

impl Write for Complaint {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        let excess = self.0.len().saturating_sub(COMPLAINT_LEN);
        self.0.drain(..excess);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies from an instance.
fn copy_out(
    instance: &Instance<'_>,
    path: &Inner,
    to: &Place,
    options: Options,
    here: &mut Stdio<'_>,
) -> Result<Copied> {
    let what = path.name.as_deref().unwrap_or(".");
    // A name that begins with a dash is none of tar's options.
    let what = format!("./{what}");
    let arguments = ["-C", &path.parent, "-cf", "-", &what];
    let Place::Here(to) = to else {
        return instance
            .tar(&arguments, None, here.out)
            .map(|()| Copied::default());
    };
    let target = unpack::Target::new(to, path.name.as_deref())?;
    let (archive, writer) = io::pipe().context(|| "pipe")?;
    let (sent, unpacked) = thread::scope(|scope| {
        let unpacked = scope.spawn(|| target.unpack(archive, options.archive));
        let sent = instance.tar(&arguments, None, &mut { writer });
        (sent, unpacked.join().expect("it does not panic"))
    });
    // The cause before the consequence: an archive that nobody reads on, or one that is cut short.
    match (sent, unpacked) {
        (_, Err(unpack::Error::Here(failure))) | (Err(failure), _) => Err(failure),
        (Ok(()), Err(unpack::Error::CutShort)) => Err(Failure::new(format!(
            "`tar` in {} sent nothing, or no whole archive",
            instance.name()
        ))),
        (Ok(()), Ok(unpacked)) => unpacked.finish(),
    }
}

/// Copies into an instance.
fn copy_in(
    instance: &Instance<'_>,
    from: &Place,
    to: &Inner,
    options: Options,
    here: &mut Stdio<'_>,
) -> Result<Copied> {
    let is_directory = instance.test("-d", &to.whole)?;
    let Place::Here(from) = from else {
        if !is_directory {
            return Err(Failure::new(format!(
                "{}:{} is no directory: an archive is unpacked in one",
                instance.name(),
                to.whole
            )));
        }
        let input = here
            .input
            .ok_or_else(|| Failure::new("there is no standard input"))?;
        instance.tar(&["-C", &to.whole, "-xf", "-"], Some(input), &mut io::sink())?;
        return Ok(Copied::default());
    };
    let plan = &pack::Plan::new(from)?;
    let (directory, name) = if is_directory {
        (&to.whole, plan.name())
    } else {
        let refused = |why| {
            Failure::new(format!(
                "cannot copy {} to {}:{}: {why}",
                from.display(),
                instance.name(),
                to.whole
            ))
        };
        let name = to
            .name
            .as_deref()
            .ok_or_else(|| refused("it is not there"))?;
        if plan.is_directory() && instance.test("-e", &to.whole)? {
            return Err(refused("a directory does not take the place of a file"));
        }
        if !plan.is_directory() && to.is_directory {
            return Err(refused("there is no such directory"));
        }
        if !instance.test("-d", &to.parent)? {
            return Err(refused("the directory that it shall be in is not there"));
        }
        (&to.parent, name.as_ref())
    };
    let (archive, writer) = io::pipe().context(|| "pipe")?;
    let (received, packed) = thread::scope(|scope| {
        let packed = scope.spawn(move || plan.pack(writer, name, options.archive));
        let received = instance.tar(
            &["-C", directory, "-xf", "-"],
            Some(archive.as_fd()),
            &mut io::sink(),
        );
        drop(archive);
        (received, packed.join().expect("it does not panic"))
    });
    match (received, packed) {
        (_, Err(pack::Error::Here(failure))) | (Err(failure), _) => Err(failure),
        (Ok(()), Err(pack::Error::NotTaken)) => Err(Failure::new(format!(
            "`tar` in {} did not read to the end",
            instance.name()
        ))),
        (Ok(()), Ok(copied)) => Ok(copied),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let there = |instance: &str, path| Place::There {
            instance: instance.into(),
            path: Inner::new(path),
        };
        assert_eq!(Place::new("web:/etc/x"), there("web", "/etc/x"));
        assert_eq!(Place::new("web:x"), there("web", "/x"));
        assert_eq!(Place::new("./web:x"), Place::Here("./web:x".into()));
        assert_eq!(Place::new(":x"), Place::Here(":x".into()));
        assert_eq!(Place::new("-"), Place::Stream);
    }

    #[test]
    fn inner_paths_are_taken_apart() {
        let parts = |path| {
            let inner = Inner::new(path);
            (inner.whole, inner.parent, inner.name, inner.is_directory)
        };
        let named = |whole: &str, parent: &str, name: &str, is_directory| {
            (
                whole.to_owned(),
                parent.to_owned(),
                Some(name.to_owned()),
                is_directory,
            )
        };
        assert_eq!(parts("/a/b"), named("/a/b", "/a", "b", false));
        assert_eq!(parts("b/"), named("/b", "/", "b", true));
        assert_eq!(parts("/"), ("/".into(), "/".into(), None, true));
        assert_eq!(parts("a/."), ("/a/.".into(), "/a/.".into(), None, false));
        assert_eq!(
            parts("/a/.."),
            ("/a/..".into(), "/a/..".into(), None, false)
        );
    }
}
