//! Settings of core dumps (`core(5)`): the names of files and the programs that take them, as
//! `/proc/sys/kernel/core_pattern` says, and whether there are any of programs with powers.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use ::task::Mutex;
use fallible::TryExtend;

/// Most bytes of the pattern; what is longer is cut (Linux' `CORENAME_MAX_SIZE`, less a NUL).
const MAX_PATTERN: usize = 127;

/// `kernel.core_pattern`; `core` until somebody sets it.
static PATTERN: Mutex<Option<Vec<u8>>> = Mutex::new(None);
/// `kernel.core_uses_pid`: the name of a file gets the number of the process, unless it has it.
pub(crate) static USES_PID: AtomicU32 = AtomicU32::new(0);
/// `kernel.core_pipe_limit`: most programs that take a dump at a time, each of which is waited for;
/// 0 for any number, and nobody waits.
pub(crate) static PIPE_LIMIT: AtomicU32 = AtomicU32::new(0);
/// `fs.suid_dumpable`: whether programs that got powers by their file, or changed who they are,
/// dump core: 0 not, 1 as others, 2 for root only.
pub(crate) static SUID_DUMPABLE: AtomicU32 = AtomicU32::new(0);

/// The pattern in force.
pub(crate) fn pattern() -> Vec<u8> {
    PATTERN.lock().clone().unwrap_or_else(|| b"core".to_vec())
}

/// Sets the pattern to a line that somebody wrote.
pub(crate) fn set_pattern(line: &[u8]) {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    *PATTERN.lock() = Some(line[..line.len().min(MAX_PATTERN)].to_vec());
}

/// The value that processes with new powers have for `PR_GET_DUMPABLE`.
pub(crate) fn suid_dumpable() -> i32 {
    SUID_DUMPABLE.load(Ordering::Relaxed).cast_signed()
}

/// Facts about a process that dumps core, for the specifiers of the pattern.
pub(crate) struct Facts<'a> {
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) dumpable: i32,
    pub(crate) signal: i32,
    /// Seconds since 1970.
    pub(crate) time: u64,
    pub(crate) host: &'a [u8],
    /// Name of the thread (`comm`).
    pub(crate) name: &'a [u8],
    /// Path of the program's file.
    pub(crate) executable: &'a [u8],
    /// Soft limit of the size of core files.
    pub(crate) limit: u64,
    pub(crate) uses_pid: bool,
}

/// Destination of a core dump.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Into a file of this name.
    File(Vec<u8>),
    /// To a program that reads it, with these arguments, the first of which is its path.
    Program(Vec<Vec<u8>>),
}

/// Adds a text that must not lead to another directory.
fn add_escaped(to: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    let begin = to.len();
    to.try_extend(text).ok()?;
    let added = &mut to[begin..];
    if matches!(added, [b'.'] | [b'.', b'.']) {
        added[0] = b'!';
    }
    // A name that is empty would be the directory before it.
    if text.is_empty() {
        to.try_extend(b"!").ok()?;
    }
    to[begin..]
        .iter_mut()
        .filter(|byte| **byte == b'/')
        .for_each(|byte| *byte = b'!');
    Some(())
}

/// Adds the text of one specifier; unknown ones have none. Returns whether it is the process's
/// number.
fn add_specifier(to: &mut Vec<u8>, specifier: u8, facts: &Facts<'_>) -> Option<bool> {
    let number = match specifier {
        b'p' | b'P' => i64::from(facts.pid),
        b'i' | b'I' => i64::from(facts.tid),
        b'u' => i64::from(facts.uid),
        b'g' => i64::from(facts.gid),
        b'd' => i64::from(facts.dumpable),
        b's' => i64::from(facts.signal),
        b't' => facts.time.cast_signed(),
        b'c' => {
            to.try_extend(alloc::format!("{}", facts.limit).as_bytes())
                .ok()?;
            return Some(false);
        }
        b'%' => {
            to.try_extend(b"%").ok()?;
            return Some(false);
        }
        b'h' => return add_escaped(to, facts.host).map(|()| false),
        b'e' => return add_escaped(to, facts.name).map(|()| false),
        b'E' => return add_escaped(to, facts.executable).map(|()| false),
        b'f' => {
            let name = facts.executable.rsplit(|&byte| byte == b'/').next();
            return add_escaped(to, name.unwrap_or_default()).map(|()| false);
        }
        _ => return Some(false),
    };
    to.try_extend(alloc::format!("{number}").as_bytes()).ok()?;
    Some(specifier == b'p')
}

/// The destination that a pattern gives a dump. `None` if memory is short, or the pattern names no
/// program.
pub(crate) fn expand(pattern: &[u8], facts: &Facts<'_>) -> Option<Destination> {
    let (pattern, is_program) = match pattern {
        [b'|', rest @ ..] => (rest, true),
        all => (all, false),
    };
    let mut parts = vec![Vec::new()];
    let mut has_pid = false;
    let mut rest = pattern.iter();
    while let Some(&byte) = rest.next() {
        let part = parts.last_mut()?;
        match byte {
            // Arguments are parted before anything is filled in: a name may hold spaces.
            b' ' | b'\t' if is_program => {
                if !part.is_empty() {
                    parts.push(Vec::new());
                }
            }
            b'%' => {
                // A lone one at the end is left out.
                let Some(&specifier) = rest.next() else { break };
                has_pid |= add_specifier(part, specifier, facts)?;
            }
            other => part.try_extend(&[other]).ok()?,
        }
    }
    if is_program {
        parts.retain(|part| !part.is_empty());
        return (!parts.is_empty()).then_some(Destination::Program(parts));
    }
    let mut name = parts.pop()?;
    if facts.uses_pid && !has_pid {
        name.try_extend(alloc::format!(".{}", facts.pid).as_bytes())
            .ok()?;
    }
    Some(Destination::File(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts<'_> = Facts {
        pid: 10,
        tid: 11,
        uid: 12,
        gid: 13,
        dumpable: 1,
        signal: 6,
        time: 1_700_000_000,
        host: b"host",
        name: b"a/b",
        executable: b"/usr/bin/prog",
        limit: u64::MAX,
        uses_pid: false,
    };

    fn file(pattern: &str, facts: &Facts<'_>) -> String {
        match expand(pattern.as_bytes(), facts) {
            Some(Destination::File(name)) => String::from_utf8(name).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn specifiers_are_filled_in() {
        assert_eq!(file("core", &FACTS), "core");
        assert_eq!(
            file("%p %P %i %I %u %g %d %s %t %%", &FACTS),
            "10 10 11 11 12 13 1 6 1700000000 %"
        );
        assert_eq!(
            file("%h/%e/%f/%E/%c", &FACTS),
            "host/a!b/prog/!usr!bin!prog/18446744073709551615"
        );
        assert_eq!(file("a%qb%", &FACTS), "ab");
    }

    #[test]
    fn names_do_not_lead_elsewhere() {
        for (name, shown) in [(".", "!"), ("..", "!."), ("", "!"), ("../x", "..!x")] {
            let facts = Facts {
                name: name.as_bytes(),
                ..FACTS
            };
            assert_eq!(file("/tmp/%e", &facts), format!("/tmp/{shown}"));
        }
    }

    #[test]
    fn the_process_is_named_once() {
        let facts = Facts {
            uses_pid: true,
            ..FACTS
        };
        assert_eq!(file("core", &facts), "core.10");
        assert_eq!(file("core-%p", &facts), "core-10");
        assert_eq!(file("core-%P", &facts), "core-10.10");
    }

    #[test]
    fn programs_get_arguments() {
        let facts = Facts {
            name: b"two words",
            uses_pid: true,
            ..FACTS
        };
        let program = |pattern: &str| match expand(pattern.as_bytes(), &facts) {
            Some(Destination::Program(args)) => Some(
                args.into_iter()
                    .map(|arg| String::from_utf8(arg).unwrap())
                    .collect::<Vec<_>>(),
            ),
            _ => None,
        };
        assert_eq!(
            program("|/bin/x  %e a%s "),
            Some(vec!["/bin/x".into(), "two words".into(), "a6".into()])
        );
        assert_eq!(program("|  "), None);
    }

    #[test]
    fn a_pattern_is_a_line() {
        assert_eq!(pattern(), b"core");
        set_pattern(b"/tmp/%e\nrest");
        assert_eq!(pattern(), b"/tmp/%e");
        set_pattern(&[b'x'; 200]);
        assert_eq!(pattern().len(), 127);
        set_pattern(b"\n");
        assert_eq!(pattern(), b"");
    }
}
