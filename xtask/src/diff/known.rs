//! Differences that are known: each with a reason, and a day after which it counts again.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use differential::record::Difference;

use crate::paths;

/// The list, and what it is called in messages.
const LIST: &str = "tests/differential/known.list";

/// The known differences.
pub struct Known {
    entries: Vec<Entry>,
}

struct Entry {
    difference: [String; 3],
    until: String,
}

impl Known {
    /// Reads the list: lines `WHAT | LINUX | SKERRY | until YYYY-MM-DD | REASON`. A word may end in
    /// `*`, which stands for any end.
    pub fn read() -> Result<Self> {
        let text = std::fs::read_to_string(paths::root().join(LIST))
            .with_context(|| format!("cannot read {LIST}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        let mut limit = None;
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            if let Some(number) = line.strip_prefix("limit ") {
                limit = Some(
                    number
                        .parse::<usize>()
                        .with_context(|| format!("{LIST}: {line}"))?,
                );
                continue;
            }
            let parts: Vec<_> = line.split('|').map(str::trim).collect();
            let [what, linux, skerry, until, reason] = parts.as_slice() else {
                anyhow::bail!("{LIST}: a line has five parts between bars: {line}")
            };
            let until = until
                .strip_prefix("until ")
                .with_context(|| format!("{LIST}: no `until YYYY-MM-DD`: {line}"))?;
            ensure!(!reason.is_empty(), "{LIST}: no reason: {line}");
            entries.push(Entry {
                difference: [what, linux, skerry].map(|part| (*part).to_owned()),
                until: until.to_owned(),
            });
        }
        ensure!(
            limit == Some(entries.len()),
            "{LIST}: it has {} entries, and its line `limit` says {limit:?}: the list only shrinks, and the limit with it",
            entries.len()
        );
        Ok(Self { entries })
    }

    /// Whether a difference is in the list, and its day has not come.
    pub fn has(&self, difference: &Difference) -> bool {
        let today = today();
        let words = [&difference.what, &difference.first, &difference.second];
        self.entries.iter().any(|entry| {
            entry.until >= today
                && entry
                    .difference
                    .iter()
                    .zip(words)
                    .all(|(pattern, word)| fits(pattern, word))
        })
    }
}

fn fits(pattern: &str, word: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(pattern == word, |start| word.starts_with(start))
}

/// The day, as text that sorts.
fn today() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    date(seconds / 86400)
}

/// The date so many days after 1 January 1970.
fn date(days: u64) -> String {
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(
            [0, 59, 11016, 20779].map(date),
            ["1970-01-01", "1970-03-01", "2000-02-29", "2026-11-22"]
        );
    }

    #[test]
    fn an_entry_counts_until_its_day() {
        let known = |day: &str| {
            Known::parse(&format!(
                "limit 1\nread result | E* | 5 | until {day} | why\n"
            ))
            .unwrap()
        };
        let difference = |first: &str| Difference {
            what: "read result".into(),
            first: first.into(),
            second: "5".into(),
        };
        assert!(known("2999-01-01").has(&difference("EIO")));
        assert!(!known("2999-01-01").has(&difference("4")));
        assert!(!known("2000-01-01").has(&difference("EIO")));
        assert!(Known::parse("limit 0\na | b | c | until 2999-01-01 | why\n").is_err());
    }

    #[test]
    fn the_list_of_the_tree_is_right() {
        Known::read().unwrap();
    }
}
