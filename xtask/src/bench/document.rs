//! `cargo xtask bench --document`: puts a run's figures into docs/performance.md, and draws the
//! ratios as a bar chart (SVG).

use std::fmt::Write;
use std::{fs, iter};

use anyhow::{Context, Result};

use super::SKERRY;
use super::table::{Figure, Table};
use crate::paths;

/// Limit for the cost of an operation in each of eight processes, as a part of the cost in one
/// alone.
const MAX_COST_RATIO: f64 = 1.05;

/// Writes the figures into the part of docs/performance.md between the marks of `section`, and the
/// chart beside it.
///
/// # Errors
/// When a file cannot be written, or the document lacks the section's marks.
pub fn write(table: &Table, section: &str) -> Result<()> {
    let chart = paths::root().join(format!("docs/performance-{section}.svg"));
    fs::write(&chart, draw(&table.peers(), &bars(table)))
        .with_context(|| format!("cannot write {}", chart.display()))?;
    let alt = format!("Skerry's share of the other systems' figure for each metric ({section})");
    replace(
        section,
        &format!(
            "![{alt}](performance-{section}.svg)\n\n{}\n{}",
            figures(table),
            scaling(table)
        ),
    )
}

/// Puts `body` into docs/performance.md between the marks of `section`.
///
/// # Errors
/// When the document cannot be written, or lacks the marks.
pub fn replace(section: &str, body: &str) -> Result<()> {
    let page = paths::root().join("docs/performance.md");
    let failed = || format!("cannot write {}", page.display());
    let text = fs::read_to_string(&page).with_context(failed)?;
    let (begin, end) = (
        format!("<!-- begin {section} -->\n"),
        format!("<!-- end {section} -->"),
    );
    let (before, rest) = text
        .split_once(&begin)
        .with_context(|| format!("no {begin:?} in {}", page.display()))?;
    let (_, after) = rest
        .split_once(&end)
        .with_context(|| format!("no {end:?} in {}", page.display()))?;
    fs::write(&page, format!("{before}{begin}{body}{end}{after}")).with_context(failed)
}

/// A line for each metric that does not scale.
fn figures(table: &Table) -> String {
    let (mut text, mut rule) = (
        String::from("| metric | unit | goal | Skerry |"),
        String::from("|---|---|---:|---:|"),
    );
    for peer in table.peers() {
        write!(text, " {peer} | ratio |").expect("a string");
        rule += "---:|---:|";
    }
    writeln!(text, "\n{rule}").expect("a string");
    for row in table.rows().filter(|row| !row.metric.starts_with("scale-")) {
        let goal = row
            .skerry
            .and_then(|figure| figure.goal)
            .map(number)
            .unwrap_or_default();
        let missed = if row.missed() { " **missed**" } else { "" };
        write!(
            text,
            "| {} | {} | {goal} | {}{missed} |",
            row.metric,
            row.unit,
            cell(row.skerry)
        )
        .expect("a string");
        for (index, peer) in row.peers.iter().enumerate() {
            let ratio = row
                .ratio(index)
                .map(|ratio| format!("{ratio:.2}"))
                .unwrap_or_default();
            write!(text, " {} | {ratio} |", cell(*peer)).expect("a string");
        }
        text.push('\n');
    }
    text
}

/// A line for each operation by 1, 2, 4, 8 workers; nothing if none was measured.
fn scaling(table: &Table) -> String {
    let mut text = String::new();
    let systems: Vec<&str> = iter::once(SKERRY).chain(table.peers()).collect();
    for row in table.rows() {
        let Some(operation) = row
            .metric
            .strip_prefix("scale-")
            .and_then(|name| name.strip_suffix('1'))
        else {
            continue;
        };
        if text.is_empty() {
            text += "| by 1, 2, 4, 8 workers |";
            for system in &systems {
                write!(text, " {system} | | | |").expect("a string");
            }
            writeln!(text, "\n|---|{}", "---:|".repeat(4 * systems.len())).expect("a string");
        }
        let kind = if operation.ends_with('p') {
            "processes"
        } else {
            "threads"
        };
        let name = operation
            .split_once('-')
            .map_or(operation, |(name, _)| name);
        write!(text, "| {name}, {kind} |").expect("a string");
        for &system in &systems {
            let by =
                |workers: u32| table.find(&format!("scale-{operation}{workers}"), row.unit, system);
            for workers in [1, 2, 4, 8] {
                write!(text, " {} |", cell(by(workers))).expect("a string");
            }
            let median = |workers| by(workers).and_then(|figure| figure.median);
            let loses = median(1)
                .zip(median(8))
                .is_some_and(|(one, eight)| eight > one * MAX_COST_RATIO);
            if loses && system == SKERRY && kind == "processes" && row.unit == "instructions" {
                text.truncate(text.len() - 1);
                text += "**missed** |";
            }
        }
        text.push('\n');
    }
    text
}

/// A figure for people.
fn cell(figure: Option<&Figure>) -> String {
    match figure {
        None => String::new(),
        Some(Figure {
            median: Some(median),
            ..
        }) => number(*median),
        Some(Figure { error, .. }) => {
            format!(
                "n/a ({})",
                error
                    .as_deref()
                    .and_then(|error| error.split_whitespace().next())
                    .unwrap_or("?")
            )
        }
    }
}

/// A number with its thousands apart; a decimal where it is small.
pub fn number(value: f64) -> String {
    if value.fract() != 0.0 && value < 1000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A metric in the chart: its name, and the ratio to each peer.
type Bars = (String, Vec<Option<f64>>);

/// Bars of the chart; of the scaling metrics those with the most workers.
fn bars(table: &Table) -> Vec<Bars> {
    table
        .rows()
        .filter(|row| !row.metric.starts_with("scale-") || row.metric.ends_with('8'))
        .map(|row| {
            let ratios =
                (0..row.peers.len()).map(|peer| row.ratio(peer).filter(|&ratio| ratio > 0.0));
            (row.metric.to_owned(), ratios.collect::<Vec<_>>())
        })
        .filter(|(_, ratios)| ratios.iter().any(Option::is_some))
        .collect()
}

/// A horizontal bar for each ratio, on a logarithmic scale with a line at 1; the bars of one metric
/// under each other, each peer's in a shade of its own.
fn draw(peers: &[&str], bars: &[Bars]) -> String {
    const BAR: f64 = 11.0;
    const LEFT: f64 = 220.0;
    const WIDTH: f64 = 520.0;
    const TOP: f64 = 52.0;
    const SHADES: [f64; 3] = [1.0, 0.55, 0.3];
    // The scale's ends, as powers of two.
    let logs = || {
        bars.iter()
            .flat_map(|(_, ratios)| ratios)
            .flatten()
            .map(|ratio| ratio.log2())
    };
    let (low, high) = (
        logs().fold(-1.0, f64::min).floor(),
        logs().fold(1.0, f64::max).ceil(),
    );
    let x = |log: f64| LEFT + (log - low) / (high - low) * WIDTH;
    let row_height = BAR * peers.len() as f64 + 7.0;
    let height = TOP + row_height * bars.len() as f64 + 10.0;
    let shade = |peer: usize| SHADES[peer % SHADES.len()];
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"820\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"16\">Skerry's figure / the other's: less than 1 is cheaper than the other</text>\n"
    );
    for (index, peer) in peers.iter().enumerate() {
        let at = LEFT + 150.0 * index as f64;
        writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"26\" r=\"5\" fill=\"#2a7f62\" fill-opacity=\"{}\"/><text x=\"{at:.1}\" y=\"30\">{peer}</text>",
            at - 10.0,
            shade(index)
        )
        .expect("a string");
    }
    for power in low as i32..=high as i32 {
        let (at, bottom, width) = (
            x(f64::from(power)),
            height - 6.0,
            if power == 0 { 2 } else { 1 },
        );
        let name = if power < 0 {
            format!("1/{}", 1 << -power)
        } else {
            format!("{}", 1 << power)
        };
        writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#999\" stroke-width=\"{width}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">{name}</text>",
            TOP - 4.0
        )
        .expect("a string");
    }
    for (index, (name, ratios)) in bars.iter().enumerate() {
        let top = TOP + row_height * index as f64 + 3.0;
        let middle = top + BAR * ratios.len() as f64 / 2.0 + 4.0;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0
        )
        .expect("a string");
        for (peer, ratio) in ratios
            .iter()
            .enumerate()
            .filter_map(|(peer, ratio)| Some((peer, (*ratio)?)))
        {
            let (y, one, end) = (top + BAR * peer as f64, x(0.0), x(ratio.log2()));
            let colour = if ratio <= 1.0 { "#2a7f62" } else { "#b5482f" };
            writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#333\" font-size=\"10\">{ratio:.2}</text>",
                one.min(end),
                (end - one).abs(),
                BAR - 1.0,
                shade(peer),
                one.max(end) + 5.0,
                y + BAR - 2.0
            )
            .expect("a string");
        }
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::{draw, number};

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(999.5), "999.5");
        assert_eq!(number(80.0), "80");
        assert_eq!(number(100_000.4), "100,000");
    }

    #[test]
    fn every_ratio_has_its_bar() {
        let svg = draw(
            &["one", "other"],
            &[
                ("a".into(), vec![Some(0.5), Some(0.25)]),
                ("b".into(), vec![None, Some(3.0)]),
            ],
        );
        assert_eq!(svg.matches("<rect").count(), 4);
        assert!(
            [">0.50<", ">0.25<", ">3.00<", ">one<", ">other<"]
                .iter()
                .all(|text| svg.contains(text))
        );
    }
}
