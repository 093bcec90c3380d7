//! The figures of a run, printed as a table and as JSON.

use std::borrow::Cow;
use std::collections::BTreeSet;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// One figure of one system.
#[derive(Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub metric: String,
    /// The system it was measured on.
    pub system: Cow<'static, str>,
    /// The unit of the three values.
    pub unit: Cow<'static, str>,
    /// The median of the runs; none if the system cannot run it.
    pub median: Option<f64>,
    /// The smallest.
    pub min: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
    /// How often it was measured.
    pub runs: usize,
    /// What it is to be at most, if the design says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<f64>,
    /// Why there are no values: the errno and the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The figures of a run.
#[derive(Default)]
pub struct Table {
    figures: Vec<Figure>,
}

impl Table {
    /// Adds what was measured some times; nothing if it was not.
    pub fn add(
        &mut self,
        metric: impl Into<String>,
        system: &'static str,
        unit: &'static str,
        goal: Option<f64>,
        mut values: Vec<f64>,
    ) {
        values.sort_by(f64::total_cmp);
        if values.is_empty() {
            return;
        }
        let (system, unit) = (system.into(), unit.into());
        let (median, min, max) = (values.get(values.len() / 2).copied(), values.first().copied(), values.last().copied());
        self.figures.push(Figure {
            metric: metric.into(),
            system,
            unit,
            median,
            min,
            max,
            runs: values.len(),
            goal,
            error: None,
        });
    }

    /// Adds what the system cannot run.
    pub fn add_not_available(
        &mut self,
        metric: &str,
        system: &'static str,
        unit: &'static str,
        goal: Option<f64>,
        error: String,
    ) {
        let (system, unit) = (system.into(), unit.into());
        let (median, min, max) = (None, None, None);
        self.figures.push(Figure { metric: metric.into(), system, unit, median, min, max, runs: 0, goal, error: Some(error) });
    }

    /// The figure of one metric on one system.
    pub fn find(&self, metric: &str, unit: &str, system: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.system == system && figure.metric == metric && figure.unit == unit)
    }

    /// Each metric with both systems' figures, in the order in which they were added.
    pub fn pairs(&self) -> impl Iterator<Item = Pair<'_>> {
        let mut seen = BTreeSet::new();
        let first = self.figures.iter().filter(move |figure| seen.insert((&figure.metric, &figure.unit)));
        first.map(|Figure { metric, unit, .. }| Pair {
            metric,
            unit,
            skerry: self.find(metric, unit, "Skerry"),
            linux: self.find(metric, unit, "Linux"),
        })
    }

    /// Prints a line for each metric: both systems' medians, how much of Linux's Skerry's is, the spread of each, the goal.
    pub fn print(&self) {
        println!(
            "{:<56} {:<14} {:>14} {:>14} {:>7} {:>9} {:>9} {:>10}",
            "metric", "unit", "Skerry", "Linux", "ratio", "spread", "spread", "goal"
        );
        for pair in self.pairs() {
            let Pair { metric, unit, skerry, linux } = pair;
            let ratio = pair.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            let goal = skerry.and_then(|figure| figure.goal).map(|goal| format!("{goal}")).unwrap_or_default();
            println!(
                "{metric:<56} {unit:<14} {:>14} {:>14} {ratio:>7} {:>9} {:>9} {goal:>10}{}",
                shown(skerry),
                shown(linux),
                spread(skerry),
                spread(linux),
                if pair.missed() { " missed" } else { "" }
            );
        }
        for figure in &self.figures {
            if let Some(error) = &figure.error {
                println!("{} on {}: n/a: {error}", figure.metric, figure.system);
            }
        }
    }

    /// Adds an earlier run's figures of what this one did not measure.
    pub fn add_earlier(&mut self, json: &str) -> Result<()> {
        let earlier: Vec<Figure> = serde_json::from_str(json)?;
        let measured: BTreeSet<_> = self.figures.iter().map(|figure| figure.system.clone()).collect();
        let known: BTreeSet<_> = self.figures.iter().map(|figure| (figure.metric.clone(), figure.unit.clone())).collect();
        let wanted =
            |figure: &Figure| !measured.contains(&figure.system) && known.contains(&(figure.metric.clone(), figure.unit.clone()));
        self.figures.extend(earlier.into_iter().filter(wanted));
        Ok(())
    }

    /// The same as JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.figures)?)
    }
}

/// One metric on both systems.
pub struct Pair<'a> {
    /// What was measured.
    pub metric: &'a str,
    /// The unit.
    pub unit: &'a str,
    /// Skerry's figure.
    pub skerry: Option<&'a Figure>,
    /// Linux's figure.
    pub linux: Option<&'a Figure>,
}

impl Pair<'_> {
    /// Skerry's median as a part of Linux's.
    pub fn ratio(&self) -> Option<f64> {
        let linux = self.linux?.median.filter(|&median| median > 0.0)?;
        Some(self.skerry?.median? / linux)
    }

    /// Whether there is a goal and Skerry does not reach it.
    pub fn missed(&self) -> bool {
        self.skerry.is_some_and(|figure| figure.goal.is_some_and(|goal| figure.median.is_none_or(|median| median > goal)))
    }
}

/// The median, for people.
fn shown(figure: Option<&Figure>) -> String {
    match figure {
        None => String::new(),
        Some(Figure { median: Some(median), .. }) if *median < 1000.0 => format!("{median:.2}"),
        Some(Figure { median: Some(median), .. }) => format!("{median:.0}"),
        Some(_) => "n/a".into(),
    }
}

/// From the least to the largest, in parts of the median.
fn spread(figure: Option<&Figure>) -> String {
    match figure {
        Some(Figure { median: Some(median), min: Some(min), max: Some(max), .. }) if *median > 0.0 => {
            format!("{:.1}%", (max - min) / median * 100.0)
        }
        _ => String::new(),
    }
}
