//! `cargo xtask bench autoscale`: a server whose requests come at a rate that changes, beside
//! batch work: in two instances of which one lends the other CPUs (`skerry autoscale`), and in two
//! control groups of one Linux.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{Arguments, System, document};
use crate::vm::{Addition, Kernel, Machine};
use crate::{build, paths};

/// Limit for one machine.
const LIMIT: Duration = Duration::from_secs(3600);
/// Processors for the two kinds of work. The supervisor has one besides.
const CPUS: u32 = 4;
/// Seconds of a run: ten for each rate of `bench/requests`.
const SECONDS: u32 = 60;
/// Latencies, in milliseconds, above which the server gets a CPU, and below which it gives one
/// back.
const HIGH_MS: f64 = 150.0;
const LOW_MS: f64 = 60.0;

const SCRIPT: &str = r#"
skerry run -d --name batch --cpus 3 --mem 256M -- requests batch SECONDS >/dev/null || exit 1
skerry run -d --name web --cpus 1 --mem 256M -- requests serve SECONDS >/dev/null || exit 1
skerry autoscale --from batch --to web --low LOWms --high HIGHms --interval 1s --json \
    --latency-cmd "skerry logs web | tail -n 1 | cut -d ' ' -f 3" >/tmp/trace &
skerry wait web batch >/dev/null; wait
skerry logs web; skerry logs batch; sed 's/^/moved /' /tmp/trace
"#;

/// The same in two groups, of which the server's has ten times the other's weight.
const LINUX_SCRIPT: &str = r#"
mkdir -p /sys /tmp; mount -t sysfs sys /sys 2>/dev/null; mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup && cd /sys/fs/cgroup && echo +cpu >cgroup.subtree_control || exit 1
mkdir web batch && echo 1000 >web/cpu.weight && echo 100 >batch/cpu.weight || exit 1
sh -c 'echo $$ >batch/cgroup.procs; exec requests batch SECONDS' >/tmp/batch &
sh -c 'echo $$ >web/cgroup.procs; exec requests serve SECONDS' >/tmp/web || exit 1
wait; cat /tmp/web /tmp/batch
"#;

/// One system's run.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Run {
    /// Name of the system.
    system: String,
    /// Of each second in which requests were answered: seconds since the beginning, and the 99th
    /// percentile of their latencies in milliseconds.
    latencies: Vec<(f64, f64)>,
    /// Requests that were answered.
    requests: u64,
    /// Pieces of batch work that were done.
    pieces: u64,
    /// Times, likewise, at which the server had another number of CPUs than before, and how many.
    cpus: Vec<(f64, u64)>,
}

impl Run {
    /// Reads what a machine printed.
    fn read(system: &str, output: &str) -> Result<Self> {
        let mut run = Self {
            system: system.into(),
            ..Self::default()
        };
        let mut begin = None;
        for line in output.lines() {
            let wrong = || format!("{system}: the machine printed {line:?}");
            let words: Vec<_> = line.split(' ').collect();
            match words.as_slice() {
                ["served", time, latency, count] => {
                    let time: f64 = time.parse().with_context(wrong)?;
                    // The first line comes a second after the beginning.
                    let time = time - *begin.get_or_insert(time - 1.0);
                    run.latencies
                        .push((time, latency.parse().with_context(wrong)?));
                    run.requests += count.parse::<u64>().with_context(wrong)?;
                }
                ["worked", _, count] => run.pieces += count.parse::<u64>().with_context(wrong)?,
                ["moved", ..] => {
                    let json = line.trim_start_matches("moved ");
                    let told: Value = serde_json::from_str(json).with_context(wrong)?;
                    let time = told["time"].as_f64().with_context(wrong)?;
                    let Some(cpus) = told["to_cpus"].as_u64() else {
                        continue;
                    };
                    if run.cpus.last().is_none_or(|(_, before)| *before != cpus) {
                        let begin = begin.with_context(wrong)?;
                        run.cpus.push(((time - begin).max(0.0), cpus));
                    }
                }
                _ => bail!(wrong()),
            }
        }
        if run.latencies.is_empty() {
            bail!("{system}: no requests were answered");
        }
        Ok(run)
    }

    /// The latency that so many hundredths of the seconds do not exceed.
    fn percentile(&self, hundredths: usize) -> f64 {
        let mut sorted: Vec<f64> = self.latencies.iter().map(|(_, latency)| *latency).collect();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
        sorted[rank - 1]
    }

    /// Seconds in which the latency was above [`HIGH_MS`].
    fn seconds_above(&self) -> usize {
        let above = |(_, latency): &&(f64, f64)| *latency > HIGH_MS;
        self.latencies.iter().filter(above).count()
    }
}

/// Measures the systems, prints the table, and writes the figures where the arguments say.
pub fn run(arguments: &Arguments, systems: &[System]) -> Result<()> {
    if arguments.names.len() != 1 || arguments.with.is_some() || arguments.runs.is_some() {
        bail!("`bench autoscale` stands alone: no other metrics, no --with, no --runs");
    }
    let mut runs = Vec::new();
    for System { name, kernel } in systems {
        runs.push(Run::read(name, &output(arguments, kernel)?)?);
    }
    let rows = rows(&runs);
    println!("{rows}");
    if let Some(path) = &arguments.json {
        fs::write(path, serde_json::to_string_pretty(&runs)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.document {
        let chart = paths::root().join("docs/autoscale.svg");
        fs::write(&chart, draw(&runs))
            .with_context(|| format!("cannot write {}", chart.display()))?;
        let alt = "Latency of the server's requests, and its CPUs, over time";
        document::replace("autoscale", &format!("![{alt}](autoscale.svg)\n\n{rows}\n"))?;
    }
    Ok(())
}

/// Runs one system; returns what it printed.
fn output(arguments: &Arguments, kernel: &Kernel) -> Result<String> {
    let (script, cpus) = match kernel {
        Kernel::Linux(_) => (LINUX_SCRIPT, CPUS),
        Kernel::Skerry | Kernel::Mutant(_) => (SCRIPT, CPUS + 1),
    };
    let script = script
        .replace("SECONDS", &SECONDS.to_string())
        .replace("LOW", &LOW_MS.to_string())
        .replace("HIGH", &HIGH_MS.to_string());
    let mut machine = Machine {
        kernel: kernel.clone(),
        append: format!("quiet {}", arguments.append),
        timeout: Some(LIMIT),
        log: super::scratch("log"),
        command: ["/bin/sh", "-c", &script].map(OsString::from).to_vec(),
        additions: vec![Addition {
            host: build::bench_programs()?.program("requests"),
            guest: "/bin/requests".into(),
        }],
        ..Machine::default()
    };
    (machine.hardware.cpus, machine.hardware.memory) = (cpus, "2G".into());
    machine.hardware.icount = arguments.icount;
    super::output_of(&machine)
}

/// The runs as a table for a page.
fn rows(runs: &[Run]) -> String {
    let mut text = format!(
        "| | seconds above {HIGH_MS} ms | median of seconds | 90th | worst | requests | batch pieces |\n\
         |---|---:|---:|---:|---:|---:|---:|\n"
    );
    for run in runs {
        writeln!(
            text,
            "| {} | {} of {} | {:.0} ms | {:.0} ms | {:.0} ms | {} | {} |",
            run.system,
            run.seconds_above(),
            run.latencies.len(),
            run.percentile(50),
            run.percentile(90),
            run.percentile(100),
            run.requests,
            run.pieces,
        )
        .expect("a string");
    }
    text.pop();
    text
}

/// Latencies over time, on a logarithmic scale, and below them the server's CPUs.
fn draw(runs: &[Run]) -> String {
    const LEFT: f64 = 60.0;
    const WIDTH: f64 = 720.0;
    const TOP: f64 = 40.0;
    const HEIGHT: f64 = 240.0;
    const BOTTOM: f64 = TOP + HEIGHT + 150.0;
    const COLORS: [&str; 3] = ["#2a7f62", "#b5532a", "#555599"];
    let x = |time: f64| LEFT + time.clamp(0.0, f64::from(SECONDS)) / f64::from(SECONDS) * WIDTH;
    // From 10 ms to 10 s.
    let y = |latency: f64| TOP + HEIGHT - (latency.clamp(10.0, 1e4).log10() - 1.0) / 3.0 * HEIGHT;
    let row = |cpus: f64| BOTTOM - cpus / f64::from(CPUS) * 100.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"820\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"16\">99th percentile of the latency in each second (ms)</text>\n\
         <text x=\"10\" y=\"{}\">CPUs of the server's instance</text>\n",
        BOTTOM + 40.0,
        TOP + HEIGHT + 36.0
    );
    let mut line = |y: f64, color: &str, name: &str| {
        writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            y + 4.0
        )
        .expect("a string");
    };
    for latency in [10.0, 100.0, 1000.0, 10_000.0] {
        line(y(latency), "#ddd", &latency.to_string());
    }
    for threshold in [LOW_MS, HIGH_MS] {
        line(y(threshold), "#e0b000", &threshold.to_string());
    }
    for cpus in 0..=CPUS {
        line(row(cpus.into()), "#ddd", &cpus.to_string());
    }
    for second in (0..=SECONDS).step_by(10) {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second} s</text>",
            x(second.into()),
            BOTTOM + 18.0
        )
        .expect("a string");
    }
    for (n, run) in runs.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        let points: Vec<_> = run
            .latencies
            .iter()
            .map(|(time, latency)| format!("{:.1},{:.1}", x(*time), y(*latency)))
            .collect();
        let mut steps = Vec::new();
        for (at, (time, cpus)) in run.cpus.iter().enumerate() {
            let end = run
                .cpus
                .get(at + 1)
                .map_or(f64::from(SECONDS), |next| next.0);
            for time in [*time, end] {
                steps.push(format!("{:.1},{:.1}", x(time), row(*cpus as f64)));
            }
        }
        for points in [points, steps].iter().filter(|points| !points.is_empty()) {
            let points = points.join(" ");
            writeln!(
                svg,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>"
            )
            .expect("a string");
        }
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"16\" fill=\"{color}\">{}</text>",
            500.0 + 100.0 * n as f64,
            run.system
        )
        .expect("a string");
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "served 101.0 20.5 15
served 102.0 200.0 40
worked 101.0 7
worked 102.0 5
moved {\"time\":100.5,\"latency_ms\":null,\"from_cpus\":3,\"to_cpus\":1}
moved {\"time\":101.5,\"latency_ms\":200.0,\"from_cpus\":2,\"to_cpus\":2}
moved {\"time\":102.5,\"latency_ms\":200.0,\"from_cpus\":2,\"to_cpus\":2}
";

    #[test]
    fn what_the_machine_printed_is_a_run() {
        let run = Run::read("skerry", OUTPUT).unwrap();
        assert_eq!(run.latencies, [(1.0, 20.5), (2.0, 200.0)]);
        assert_eq!((run.requests, run.pieces), (55, 12));
        assert_eq!(run.cpus, [(0.5, 1), (1.5, 2)]);
        assert_eq!((run.seconds_above(), run.percentile(50)), (1, 20.5));
        Run::read("skerry", "").unwrap_err();
        Run::read("skerry", "served 1.0 soon 3").unwrap_err();
    }

    #[test]
    fn the_chart_has_a_line_for_latencies_and_one_for_cpus() {
        let run = Run::read("skerry", OUTPUT).unwrap();
        let linux = Run {
            cpus: Vec::new(),
            ..Run::read("linux", OUTPUT).unwrap()
        };
        assert_eq!(draw(&[run, linux]).matches("<polyline").count(), 3);
    }
}
