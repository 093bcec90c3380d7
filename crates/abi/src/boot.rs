//! The boot blob: what an instance runs. Written by the program that creates the instance, read
//! once by its kernel.
//!
//! Layout, little-endian: magic (8 bytes), version, flags, number of arguments, number of variables
//! (each `u32`), then the strings, each a `u32` length and its bytes: working directory, host name,
//! arguments, variables.

use core::str;

/// First bytes.
pub const MAGIC: [u8; 8] = *b"SKERRYBB";
/// Version of this layout.
pub const VERSION: u32 = 1;
/// Most bytes of a blob: what Linux allows for arguments and environment.
pub const MAX_BYTES: usize = 2 << 20;

/// `flags`: the standard streams are a terminal.
pub const FLAG_TERMINAL: u32 = 1;

/// A parsed blob; the strings are where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot<'a> {
    /// `FLAG_*`.
    pub flags: u32,
    /// Working directory.
    pub cwd: &'a str,
    /// Host name.
    pub hostname: &'a str,
    arguments: u32,
    variables: u32,
    strings: &'a [u8],
}

/// The reason why a boot blob is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The blob does not begin with the magic and the version.
    Header,
    /// The blob ends within an entry, or goes on after the last one.
    Length,
    /// A string is not UTF-8 where it must be, or holds a NUL.
    Text,
    /// The blob names no program to run.
    NoProgram,
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Invalid> {
    let (taken, left) = rest.split_at_checked(len).ok_or(Invalid::Length)?;
    *rest = left;
    Ok(taken)
}

fn number(rest: &mut &[u8]) -> Result<u32, Invalid> {
    let bytes = take(rest, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Invalid> {
    let len = number(rest)?;
    let bytes = take(rest, len as usize)?;
    if bytes.contains(&0) {
        Err(Invalid::Text)
    } else {
        Ok(bytes)
    }
}

impl<'a> Boot<'a> {
    /// Reads a blob, and checks all of it.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn parse(blob: &'a [u8]) -> Result<Self, Invalid> {
        let mut rest = blob;
        if take(&mut rest, MAGIC.len())? != MAGIC || number(&mut rest)? != VERSION {
            return Err(Invalid::Header);
        }
        let (flags, arguments, variables) =
            (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let text = |bytes| str::from_utf8(bytes).map_err(|_| Invalid::Text);
        let cwd = text(string(&mut rest)?)?;
        let hostname = text(string(&mut rest)?)?;
        let strings = rest;
        for _ in 0..u64::from(arguments) + u64::from(variables) {
            string(&mut rest)?;
        }
        match () {
            () if !rest.is_empty() => Err(Invalid::Length),
            () if arguments == 0 => Err(Invalid::NoProgram),
            () => Ok(Self {
                flags,
                cwd,
                hostname,
                arguments,
                variables,
                strings,
            }),
        }
    }

    fn all(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.strings;
        // Checked by `parse`.
        core::iter::from_fn(move || string(&mut rest).ok())
    }

    /// The arguments, the program's name first.
    pub fn arguments(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all().take(self.arguments as usize)
    }

    /// The environment, `NAME=value` each.
    pub fn variables(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all()
            .skip(self.arguments as usize)
            .take(self.variables as usize)
    }
}

/// Writes a blob, piece by piece, into `emit`.
pub fn write<'a>(
    flags: u32,
    cwd: &'a str,
    hostname: &'a str,
    arguments: impl ExactSizeIterator<Item = &'a [u8]>,
    variables: impl ExactSizeIterator<Item = &'a [u8]>,
    mut emit: impl FnMut(&[u8]),
) {
    emit(&MAGIC);
    for number in [
        VERSION,
        flags,
        arguments.len() as u32,
        variables.len() as u32,
    ] {
        emit(&number.to_le_bytes());
    }
    let strings = [cwd.as_bytes(), hostname.as_bytes()]
        .into_iter()
        .chain(arguments)
        .chain(variables);
    for string in strings {
        emit(&(string.len() as u32).to_le_bytes());
        emit(string);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut blob = Vec::new();
        let arguments: [&[u8]; 2] = [b"sh", b"-c"];
        let variables: [&[u8]; 1] = [b"A=b"];
        write(
            FLAG_TERMINAL,
            "/",
            "box",
            arguments.into_iter(),
            variables.into_iter(),
            |bytes| blob.extend_from_slice(bytes),
        );
        blob
    }

    #[test]
    fn round_trip() {
        let blob = sample();
        let boot = Boot::parse(&blob).unwrap();
        assert_eq!(
            (boot.flags, boot.cwd, boot.hostname),
            (FLAG_TERMINAL, "/", "box")
        );
        assert_eq!(boot.arguments().collect::<Vec<_>>(), [b"sh", b"-c"]);
        assert_eq!(boot.variables().collect::<Vec<_>>(), [b"A=b"]);
    }

    #[test]
    fn every_cut_and_every_flip_is_an_error_or_harmless() {
        let blob = sample();
        for len in 0..blob.len() {
            assert!(Boot::parse(&blob[..len]).is_err());
        }
        for at in 0..blob.len() {
            let mut torn = blob.clone();
            torn[at] ^= 0x80;
            if let Ok(boot) = Boot::parse(&torn) {
                assert_eq!(boot.arguments().count() + boot.variables().count(), 3);
            }
        }
        assert_eq!(
            Boot::parse(&[blob, std::vec![0]].concat()),
            Err(Invalid::Length)
        );
    }

    /// Each thing that can be wrong with a blob, and the name it has then.
    #[test]
    fn each_fault_is_named() {
        let blob = |cwd: &[u8], hostname: &[u8], arguments: &[&[u8]], variables: &[&[u8]]| {
            let mut blob = MAGIC.to_vec();
            for number in [VERSION, 0, arguments.len() as u32, variables.len() as u32] {
                blob.extend_from_slice(&number.to_le_bytes());
            }
            for string in [cwd, hostname]
                .into_iter()
                .chain(arguments.iter().copied())
                .chain(variables.iter().copied())
            {
                blob.extend_from_slice(&(string.len() as u32).to_le_bytes());
                blob.extend_from_slice(string);
            }
            blob
        };
        let verdict = |blob: &[u8]| Boot::parse(blob).map(|_| ());
        let good = blob(b"/", b"box", &[b"sh"], &[]);
        assert_eq!(verdict(&good), Ok(()));
        assert_eq!(
            verdict(&blob(b"", b"", &[b""], &[b"\xff="])),
            Ok(()),
            "what programs are told is bytes"
        );
        for (at, fault) in [
            (0, Invalid::Header),
            (7, Invalid::Header),
            (8, Invalid::Header),
        ] {
            let mut wrong = good.clone();
            wrong[at] += 1;
            assert_eq!(verdict(&wrong), Err(fault), "{at}");
        }
        assert_eq!(verdict(&good[..good.len() - 1]), Err(Invalid::Length));
        assert_eq!(verdict(&[&good[..], &[0]].concat()), Err(Invalid::Length));
        assert_eq!(
            verdict(&blob(b"/", b"box", &[], &[b"A=b"])),
            Err(Invalid::NoProgram)
        );
        for wrong in [
            blob(b"\xff", b"box", &[b"sh"], &[]),
            blob(b"/\0", b"box", &[b"sh"], &[]),
            blob(b"/", b"\xff", &[b"sh"], &[]),
            blob(b"/", b"b\0x", &[b"sh"], &[]),
            blob(b"/", b"box", &[b"s\0"], &[]),
            blob(b"/", b"box", &[b"sh"], &[b"\0"]),
        ] {
            assert_eq!(verdict(&wrong), Err(Invalid::Text));
        }
    }
}
