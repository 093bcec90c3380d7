//! The figures of a run, printed as a table and as JSON.

use std::borrow::Cow;
use std::collections::BTreeSet;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::SKERRY;

/// One figure of one system.
#[derive(Serialize, Deserialize)]
pub struct Figure {
    /// Name of the metric.
    pub metric: String,
    /// The system it was measured on.
    pub system: String,
    /// The unit of the three values.
    pub unit: Cow<'static, str>,
    /// The median of the runs; none if the system cannot run it.
    pub median: Option<f64>,
    /// The smallest.
    pub min: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
    /// Number of measurements.
    pub runs: usize,
    /// Goal, an upper limit, if the design names one.
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
        system: &str,
        unit: &'static str,
        goal: Option<f64>,
        mut values: Vec<f64>,
    ) {
        values.sort_by(f64::total_cmp);
        if values.is_empty() {
            return;
        }
        let (system, unit) = (system.into(), unit.into());
        let (median, min, max) = (
            values.get(values.len() / 2).copied(),
            values.first().copied(),
            values.last().copied(),
        );
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
        system: &str,
        unit: &'static str,
        goal: Option<f64>,
        error: String,
    ) {
        let (system, unit) = (system.into(), unit.into());
        let (median, min, max) = (None, None, None);
        self.figures.push(Figure {
            metric: metric.into(),
            system,
            unit,
            median,
            min,
            max,
            runs: 0,
            goal,
            error: Some(error),
        });
    }

    /// Makes a part of the first other system's figure Skerry's goal.
    pub fn set_share_as_goal(&mut self, metric: &str, share: f64) {
        let of = |other: bool| {
            move |figure: &&mut Figure| {
                figure.metric == metric && (figure.system != SKERRY) == other
            }
        };
        let theirs = self.figures.iter_mut().find(of(true));
        if let Some(theirs) = theirs.and_then(|figure| figure.median) {
            for figure in self.figures.iter_mut().filter(of(false)) {
                figure.goal = Some((theirs * share).round());
            }
        }
    }

    /// The figure of one metric on one system.
    pub fn find(&self, metric: &str, unit: &str, system: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| {
            figure.system == system && figure.metric == metric && figure.unit == unit
        })
    }

    /// The systems that Skerry stands beside, in the order in which they were added.
    pub fn peers(&self) -> Vec<&str> {
        let mut peers: Vec<&str> = Vec::new();
        for Figure { system, .. } in &self.figures {
            if system != SKERRY && !peers.contains(&system.as_str()) {
                peers.push(system);
            }
        }
        peers
    }

    /// Each metric with all systems' figures, in the order in which they were added.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let (mut seen, peers) = (BTreeSet::new(), self.peers());
        let first = self
            .figures
            .iter()
            .filter(move |figure| seen.insert((&figure.metric, &figure.unit)));
        first.map(move |Figure { metric, unit, .. }| Row {
            metric,
            unit,
            skerry: self.find(metric, unit, SKERRY),
            peers: peers
                .iter()
                .map(|peer| self.find(metric, unit, peer))
                .collect(),
        })
    }

    /// Prints a line for each metric: Skerry's median and spread, the goal, and of each peer the
    /// median, the spread, and how much of it Skerry's is.
    pub fn print(&self) {
        print!(
            "{:<56} {:<14} {:>14} {:>9} {:>10}",
            "metric", "unit", SKERRY, "spread", "goal"
        );
        for peer in self.peers() {
            print!(" {peer:>14} {:>9} {:>7}", "spread", "ratio");
        }
        println!();
        for row in self.rows() {
            let goal = row
                .skerry
                .and_then(|figure| figure.goal)
                .map(|goal| format!("{goal}"))
                .unwrap_or_default();
            let Row {
                metric,
                unit,
                skerry,
                ..
            } = row;
            print!(
                "{metric:<56} {unit:<14} {:>14} {:>9} {goal:>10}",
                shown(skerry),
                spread(skerry)
            );
            for (number, peer) in row.peers.iter().enumerate() {
                let ratio = row
                    .ratio(number)
                    .map(|ratio| format!("{ratio:.2}"))
                    .unwrap_or_default();
                print!(" {:>14} {:>9} {ratio:>7}", shown(*peer), spread(*peer));
            }
            println!("{}", if row.missed() { " missed" } else { "" });
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
        let measured: BTreeSet<_> = self
            .figures
            .iter()
            .map(|figure| figure.system.clone())
            .collect();
        let known: BTreeSet<_> = self
            .figures
            .iter()
            .map(|figure| (figure.metric.clone(), figure.unit.clone()))
            .collect();
        let wanted = |figure: &Figure| {
            !measured.contains(&figure.system)
                && known.contains(&(figure.metric.clone(), figure.unit.clone()))
        };
        self.figures.extend(earlier.into_iter().filter(wanted));
        Ok(())
    }

    /// The same as JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.figures)?)
    }
}

/// One metric on all systems.
pub struct Row<'a> {
    /// Name of the metric.
    pub metric: &'a str,
    /// The unit.
    pub unit: &'a str,
    /// Skerry's figure.
    pub skerry: Option<&'a Figure>,
    /// The other systems' figures, as [`Table::peers`] orders them.
    pub peers: Vec<Option<&'a Figure>>,
}

impl Row<'_> {
    /// Skerry's median as a part of a peer's.
    pub fn ratio(&self, peer: usize) -> Option<f64> {
        let other = self
            .peers
            .get(peer)
            .copied()??
            .median
            .filter(|&median| median > 0.0)?;
        Some(self.skerry?.median? / other)
    }

    /// Whether there is a goal and Skerry does not reach it.
    pub fn missed(&self) -> bool {
        self.skerry.is_some_and(|figure| {
            figure
                .goal
                .is_some_and(|goal| figure.median.is_none_or(|median| median > goal))
        })
    }
}

/// The median, for people.
fn shown(figure: Option<&Figure>) -> String {
    match figure {
        None => String::new(),
        Some(Figure {
            median: Some(median),
            ..
        }) if *median < 1000.0 => format!("{median:.2}"),
        Some(Figure {
            median: Some(median),
            ..
        }) => format!("{median:.0}"),
        Some(_) => "n/a".into(),
    }
}

/// From the least to the largest, in parts of the median.
fn spread(figure: Option<&Figure>) -> String {
    match figure {
        Some(Figure {
            median: Some(median),
            min: Some(min),
            max: Some(max),
            ..
        }) if *median > 0.0 => {
            format!("{:.1}%", (max - min) / median * 100.0)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_another_systems_figure_is_a_goal() {
        let mut table = Table::default();
        for (metric, skerry, linux) in [("near", 49.0, 100.0), ("far", 51.0, 100.0)] {
            table.add(metric, SKERRY, "instructions", None, vec![skerry]);
            table.add(metric, "linux", "instructions", None, vec![linux]);
            table.set_share_as_goal(metric, 0.5);
        }
        let missed: Vec<_> = table.rows().filter(Row::missed).collect();
        assert_eq!(missed.len(), 1);
        assert_eq!((missed[0].metric, missed[0].ratio(0)), ("far", Some(0.51)));
        assert_eq!(missed[0].skerry.unwrap().goal, Some(50.0));
        // Alone there is nothing to compare with.
        let mut alone = Table::default();
        alone.add("m", SKERRY, "instructions", None, vec![1.0]);
        alone.set_share_as_goal("m", 0.5);
        assert!(!alone.rows().any(|row| row.missed()));
    }
}
