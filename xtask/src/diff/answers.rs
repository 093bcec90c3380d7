//! Linux's answers to the programs that the tests run each time, kept in the tree: Linux is the
//! slower of the two machines, and what it answers does not change with Skerry.
//!
//! An answer is found by the text of its program. It holds as long as the executor and what the
//! specification says of calls are as they were; then all are asked anew. A kept answer that is
//! wrong (another Linux, a race) makes no finding: a program that differs from it is run again, on
//! Linux, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use differential::program::Program;
use differential::record;
use differential::spec;

use crate::paths;

/// The file, and what it is called in messages.
const FILE: &str = "tests/differential/linux.answers";
/// Begin of the file.
const HEAD: &str = "\
# What Linux does in the programs of machine/diff, which are the same each time: the hash of a
# program's text, and the hash of its record. `cargo xtask diff --record` writes this file
# (docs/differential.md, \"Kept answers\").
";
/// Sources of the library that make programs and say nothing of how they are run.
const GENERATORS: [&str; 6] = [
    "coverage.rs",
    "directed.rs",
    "generate.rs",
    "interruptions.rs",
    "minimise.rs",
    "random.rs",
];

/// Kept answers of a Linux.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Release of the Linux that gave them.
    linux: String,
    /// Hash of the executor that ran the programs.
    executor: u64,
    /// The answer by the hash of the program's text.
    answers: BTreeMap<u64, String>,
}

impl Answers {
    /// No answers yet, of the Linux in this image and the executor of this tree.
    pub fn none(image: &Path) -> Result<Self> {
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            linux: name.trim_start_matches("vmlinuz-").to_owned(),
            executor: executor()?,
            answers: BTreeMap::new(),
        })
    }

    /// The answers that are kept; none where there is no file, or one of another executor.
    pub fn kept() -> Result<Self> {
        let path = path();
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
        let kept = Self::parse(&text)?;
        Ok(if kept.executor == executor()? {
            kept
        } else {
            Self::default()
        })
    }

    fn parse(text: &str) -> Result<Self> {
        let mut answers = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (key, value) = line
                .split_once(' ')
                .with_context(|| format!("{FILE}: no two words: {line}"))?;
            let number = |word| {
                u64::from_str_radix(word, 16).with_context(|| format!("{FILE}: no hash: {line}"))
            };
            match key {
                "linux" => value.clone_into(&mut answers.linux),
                "executor" => answers.executor = number(value)?,
                _ => drop(answers.answers.insert(number(key)?, value.to_owned())),
            }
        }
        Ok(answers)
    }

    /// Replaces the file.
    pub fn write(&self) -> Result<()> {
        fs::write(path(), self.text()).with_context(|| format!("cannot write {FILE}"))
    }

    fn text(&self) -> String {
        let Self {
            linux,
            executor,
            answers,
        } = self;
        let lines = answers
            .iter()
            .map(|(program, answer)| format!("{program:016x} {answer}\n"));
        format!(
            "{HEAD}linux {linux}\nexecutor {executor:016x}\n{}",
            lines.collect::<String>()
        )
    }

    /// Whether they are of the same Linux and executor.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.linux, self.executor) == (&other.linux, other.executor)
    }

    /// Number of answers.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// The answers to these programs; `None` if one is not kept.
    pub fn to(&self, programs: &[Program]) -> Option<Vec<String>> {
        programs
            .iter()
            .map(|program| self.answers.get(&key(program)).cloned())
            .collect()
    }

    /// Keeps an answer.
    pub fn keep(&mut self, program: &Program, answer: String) {
        self.answers.insert(key(program), answer);
    }
}

/// The kept answers are those of these programs, each and no other.
///
/// # Errors
/// Says what is to be done otherwise.
pub fn check(programs: &[Program]) -> Result<String> {
    let answers = Answers::kept()?;
    let missing = programs
        .iter()
        .filter(|program| !answers.answers.contains_key(&key(program)))
        .count();
    let keys: BTreeSet<u64> = programs.iter().map(key).collect();
    let stale = answers
        .answers
        .keys()
        .filter(|key| !keys.contains(key))
        .count();
    ensure!(
        missing + stale == 0,
        "{FILE} lacks {missing} of {} programs and has {stale} of none (or is of another executor): \
         `cargo xtask diff --record` asks Linux for what is missing, in up to five minutes",
        programs.len()
    );
    Ok(String::new())
}

fn path() -> PathBuf {
    paths::root().join(FILE)
}

fn key(program: &Program) -> u64 {
    record::hash(program.to_string().as_bytes())
}

/// Hash of what makes a record of a program's text: the sources of the executor, and what the
/// specification says of calls and structures.
fn executor() -> Result<u64> {
    let library = paths::root().join("tests/differential/src");
    let mut files = Vec::new();
    for directory in [library.clone(), library.join("bin/executor")] {
        for entry in fs::read_dir(&directory)
            .with_context(|| format!("cannot read {}", directory.display()))?
        {
            let path = entry?.path();
            let generates = GENERATORS.iter().any(|name| path == library.join(name));
            if path.is_file() && !generates {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut all = String::new();
    for path in files {
        all += &fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    spec::definitions().for_each(|line| all += &line);
    Ok(record::hash(all.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> Program {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_kept_is_found_after_it_was_written() {
        let mut answers = Answers {
            linux: "6.1.0-1-amd64".into(),
            executor: 5,
            answers: BTreeMap::new(),
        };
        let one = program("area files\nactor root\n0 getpid()\n");
        let other = program("area files\nactor root\n0 getppid()\n");
        answers.keep(&one, "00000000000000aa".into());
        let again = Answers::parse(&answers.text()).unwrap();
        assert_eq!(again, answers);
        assert_eq!(
            again.to(std::slice::from_ref(&one)),
            Some(vec!["00000000000000aa".to_owned()])
        );
        assert_eq!(again.to(&[one, other]), None);
    }

    #[test]
    fn a_line_that_is_none_is_an_error() {
        assert!(Answers::parse("linux x\nexecutor 1\nzz 1\n").is_err());
        assert!(Answers::parse("word\n").is_err());
    }
}
