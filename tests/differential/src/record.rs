//! Record of a program's run: a line of text for each observation, in an order that does not depend
//! on luck.
//!
//! Lines of steps are `NUMBER CALL WHAT: RESULT`, where `WHAT` is `result`, `argument N` (memory
//! that changed), `signal`; lines of what is left at the end are `left WHAT: VALUE`. Two kernels
//! did the same if their lines are the same.

/// A difference between two records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The call and what differs: `fcntl_dup result`, `left descriptor`.
    pub what: String,
    /// The first kernel's word.
    pub first: String,
    /// The second kernel's word.
    pub second: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} | {}", self.what, self.first, self.second)
    }
}

/// A hash of a record, or of bytes of one: FNV-1a, by words so that megabytes are hashed quickly.
pub fn hash(bytes: &[u8]) -> u64 {
    let chunks = bytes.chunks(8).map(|chunk| {
        chunk
            .iter()
            .rev()
            .fold(0u64, |word, &byte| word << 8 | u64::from(byte))
    });
    chunks.fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, |hash, word| {
        (hash ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
    })
}

/// The first line in which two records differ.
pub fn difference(first: &str, second: &str) -> Option<Difference> {
    let (mut ours, mut theirs) = (first.lines(), second.lines());
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => return Some(between(a, b)),
        }
    }
}

fn between(first: Option<&str>, second: Option<&str>) -> Difference {
    let (a, b) = (first.map(parts), second.map(parts));
    match (a, b) {
        (Some((what, one)), Some((other, two))) if what == other => {
            let (one, two) = first_part(one, two);
            Difference {
                what: kind(what),
                first: class(one),
                second: class(two),
            }
        }
        // One kernel has a line more: of the earlier step, or of the step at all.
        (Some((what, one)), Some((other, _))) if step(what) <= step(other) => Difference {
            what: kind(what),
            first: class(one),
            second: "nothing".into(),
        },
        (_, Some((other, two))) => Difference {
            what: kind(other),
            first: "nothing".into(),
            second: class(two),
        },
        (Some((what, one)), None) => Difference {
            what: kind(what),
            first: class(one),
            second: "nothing".into(),
        },
        (None, None) => Difference {
            what: String::new(),
            first: String::new(),
            second: String::new(),
        },
    }
}

fn parts(line: &str) -> (&str, &str) {
    line.split_once(": ").unwrap_or((line, ""))
}

/// Of two values with commas, the first parts that differ.
fn first_part<'a>(first: &'a str, second: &'a str) -> (&'a str, &'a str) {
    let (one, two) = (first.split(", "), second.split(", "));
    one.zip(two)
        .find(|(a, b)| a != b)
        .unwrap_or((first, second))
}

/// The number of the step that a line is about; lines on what is left come after all steps.
fn step(what: &str) -> usize {
    what.split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(usize::MAX)
}

/// A line's subject without the numbers of steps, descriptors and names of files, so that one cause
/// has one name.
fn kind(what: &str) -> String {
    let words = what.split(' ');
    match what.strip_prefix("left ") {
        Some(_) => words.take(2).collect::<Vec<_>>().join(" "),
        None => words.skip(1).collect::<Vec<_>>().join(" "),
    }
}

/// A value in a form in which one cause looks the same in many programs: short words with a name as
/// they are, numbers and hashes as `other`.
fn class(value: &str) -> String {
    let named = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.len() < 40
        && !value.contains("hash");
    if named {
        value.to_owned()
    } else {
        "other".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_names_the_difference() {
        assert_eq!(difference("0 open result: 3\n", "0 open result: 3\n"), None);
        let found = difference(
            "0 open result: 3\n1 read result: 5\n",
            "0 open result: 3\n1 read result: EIO\n",
        )
        .unwrap();
        assert_eq!(found.to_string(), "read result: other | EIO");
        let found = difference(
            "left descriptor 3: type 1, flags 2\n",
            "left descriptor 3: type 1, flags 3\n",
        )
        .unwrap();
        assert_eq!(found.to_string(), "left descriptor: flags 2 | flags 3");
        let found = difference(
            "0 a result: 0\n0 a argument 1: 00\n1 b result: 0\n",
            "0 a result: 0\n1 b result: 0\n",
        )
        .unwrap();
        assert_eq!(
            (found.what.as_str(), found.second.as_str()),
            ("a argument 1", "nothing")
        );
    }
}
