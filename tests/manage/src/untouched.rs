//! The machine as it was before a hunt, and that it is so again when all instances are removed.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::driver::resources;
use crate::model::{Entry, Resources, SLACK};
use crate::tool;

/// Time limit for what instances had to come back.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Resources before the first instance.
pub(crate) struct Untouched(Resources);

impl Untouched {
    pub(crate) fn now() -> Result<Self> {
        // What is made once and kept has been made when the resources are counted.
        for _ in 0..2 {
            let first = [
                "run", "--rm", "--name", "first", "--mem", "64M", "--", "true",
            ];
            let seen = tool::run(&words(&first))?;
            ensure!(seen.status == 0, "the first instance did not run: {seen:?}");
        }
        Ok(Self(resources()?))
    }

    /// Removes all instances, and looks whether everything has come back.
    pub(crate) fn is_again(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            for entry in entries()? {
                tool::run(&words(&["rm", "--force", &entry.name]))?;
            }
            let (now, base) = (resources()?, &self.0);
            let back = now.cpus == base.cpus
                && now.instances == 0
                && now.memory.in_use == 0
                && now.memory.free.abs_diff(base.memory.free) <= SLACK;
            if back {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("with everything removed: {now:?} was {base:?}");
            }
            thread::sleep(PAUSE);
        }
    }
}

/// The instances there are.
pub(crate) fn entries() -> Result<Vec<Entry>> {
    let seen = tool::run(&words(&["ls", "--json"]))?;
    serde_json::from_slice(&seen.out).with_context(|| format!("`skerry ls`: {seen:?}"))
}

pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
