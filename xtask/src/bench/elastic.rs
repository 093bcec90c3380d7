//! `cargo xtask bench elastic`: how long instances take to come, to change and to go, beside Linux'
//! hot-plug of processors and memory in the same emulator, and beside what papers tell.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{Arguments, System, document};
use crate::qemu::Iommu;
use crate::vm::{Addition, Kernel, Machine};
use crate::{build, paths};

/// Repetitions in time, and where instructions are counted.
const REPETITIONS: usize = 100;
const COUNTED_REPETITIONS: usize = 20;

/// Limit for one machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// All figures, in the order in which they are shown.
const METRICS: [Metric; 18] = [
    Metric {
        name: "create_first_user",
        goal: Some(50_000.0),
        papers: "RainForest 6.1 s, Pisces 266 ms",
    },
    Metric {
        name: "destroy",
        goal: None,
        papers: "RainForest 0 s",
    },
    Metric {
        name: "cpu_online",
        goal: Some(1000.0),
        papers: "RainForest 66 ms, Pisces 34 ms",
    },
    Metric {
        name: "cpu_offline",
        goal: Some(1000.0),
        papers: "RainForest 54 ms",
    },
    Metric {
        name: "memory_128m_in",
        goal: Some(2000.0),
        papers: "Pisces 83 ms",
    },
    Metric {
        name: "memory_512m_in",
        goal: Some(2000.0),
        papers: "RainForest 20 ms",
    },
    Metric {
        name: "memory_512m_out",
        goal: Some(10_000.0),
        papers: "RainForest 60 ms",
    },
    Metric {
        name: "scrub_512m",
        goal: None,
        papers: "",
    },
    Metric {
        name: "crash_to_respawn",
        goal: Some(150_000.0),
        papers: "",
    },
    Metric {
        name: "hang_to_found",
        goal: Some(100_000.0),
        papers: "",
    },
    Metric {
        name: "device_in",
        goal: Some(11_900.0),
        papers: "Pisces 119 ms",
    },
    Metric {
        name: "device_out",
        goal: Some(11_900.0),
        papers: "",
    },
    Metric {
        name: "device_reset",
        goal: None,
        papers: "",
    },
    Metric {
        name: "iommu_map_2m",
        goal: None,
        papers: "",
    },
    Metric {
        name: "iommu_unmap_2m",
        goal: None,
        papers: "",
    },
    Metric {
        name: "ficm_one_way",
        goal: None,
        papers: "",
    },
    Metric {
        name: "ficm_round_trip_polling",
        goal: Some(3.0),
        papers: "",
    },
    Metric {
        name: "ficm_round_trip_idle",
        goal: None,
        papers: "",
    },
];

/// Goals where instructions are counted, of those that have another one there: 2,000 instructions.
const COUNTED_GOALS: [(&str, f64); 1] = [("ficm_round_trip_polling", 2.0)];

/// A figure that is measured, in microseconds.
struct Metric {
    name: &'static str,
    goal: Option<f64>,
    /// Figures of papers, of real machines: RainForest's Table 4, Pisces' Table 3.
    papers: &'static str,
}

impl Metric {
    /// The goal for figures of a unit.
    fn goal_in(&self, unit: &str) -> Option<f64> {
        let counted = COUNTED_GOALS.iter().find(|(name, _)| *name == self.name);
        match counted.filter(|_| unit == COUNTED) {
            Some((_, goal)) => Some(*goal),
            None => self.goal,
        }
    }
}

/// Unit of a clock that counts instructions.
const COUNTED: &str = "us counted";

/// Microseconds of each repetition, by metric.
type Samples = BTreeMap<String, Vec<f64>>;

/// One metric of one system.
#[derive(Debug, PartialEq, Serialize)]
struct Figure {
    /// Name of the metric; of others than Skerry with the system's before it.
    metric: String,
    /// `us`, or `us counted` of a clock that counts instructions.
    unit: &'static str,
    n: usize,
    p50: f64,
    p99: f64,
    max: f64,
}

/// Changes instances, and prints what the tool tells of each, behind a word.
const SCRIPT: &str = r#"
line() { echo "$1 $(tr -d '\n')"; }
mkdir -p /tmp/r/bin; cp /bin/busybox /tmp/r/bin/; tar cf /tmp/r.tar -C /tmp/r .
until dmesg | grep -q 'of free memory scrubbed'; do sleep 0.1; done
n=0; while [ $n -lt TURNS ]; do n=$((n + 1))
    skerry run --name i --cpus 1 --mem 512M --rootfs /tmp/r.tar -- /bin/busybox true || exit 1
    skerry inspect i --json | line life; skerry rm i >/dev/null
done
skerry run -d --name i --cpus 1 --mem 64M --rootfs /tmp/r.tar -- /bin/busybox sleep 1000000 >/dev/null
n=0; while [ $n -lt TURNS ]; do n=$((n + 1))
    skerry resize i --cpus 2 --json | line cpu_online
    skerry resize i --cpus 1 --json | line cpu_offline
    skerry resize i --mem 192M --json | line memory_128m_in
    skerry resize i --mem 704M --json | line memory_512m_in
    skerry resize i --mem 192M --json | line memory_512m_out
    skerry resize i --mem 64M --json >/dev/null
done
skerry rm --force i >/dev/null
n=0; while [ $n -lt TURNS ]; do n=$((n + 1))
    skerry run -d --name i$n --cpus 1 --mem 64M --restart on-failure:1 -- \
        sh -c 'echo panic > /proc/skerry/fault' >/dev/null
    until [ "$(skerry inspect i$n --json | tr -d ' \n' | grep '"state":"panicked".*"restarts":1,')" ]; do
        sleep 0.05
    done
    skerry events --json i$n | grep '"panic"' | head -n 1 | line crash
    skerry inspect i$n --json | line respawn; skerry rm i$n >/dev/null
done
n=0; while [ $n -lt TURNS ]; do n=$((n + 1))
    skerry run --name h$n --on-hang stop --cpus 1 --mem 64M -- sh -c \
        "sleep 0.1; adjtimex | sed -n 's/.*tv_.*sec: *//p'; echo hang > /proc/skerry/fault" |
        { read s; read us; printf 'hang {"time": %d.%06d}\n' $s $us; }
    skerry events --json h$n | grep '"health"' | head -n 1 | line found; skerry rm h$n >/dev/null
done
skerry run -d --name a --peer b -- messages echo /dev/skerry-peers/b >/dev/null
skerry run --name b --peer a -- messages measure /dev/skerry-peers/a TURNS WAY || exit 1
skerry rm --force a b >/dev/null
"#;

/// Gives an instance a network card and takes it back; changes its memory without the card and with
/// it.
const DEVICE_SCRIPT: &str = r#"
line() { echo "$1 $(tr -d '\n')"; }
mkdir -p /tmp/r/bin; cp /bin/busybox /tmp/r/bin/; tar cf /tmp/r.tar -C /tmp/r .
until dmesg | grep -q 'of free memory scrubbed'; do sleep 0.1; done
skerry run -d --name i --cpus 1 --mem 64M --rootfs /tmp/r.tar -- /bin/busybox sleep 1000000 >/dev/null
changes() {
    n=0; while [ $n -lt TURNS ]; do n=$((n + 1))
        skerry resize i --mem 576M --json | line in_$1
        skerry resize i --mem 64M --json | line out_$1
    done
}
n=0; while [ $n -lt TURNS ]; do n=$((n + 1))
    skerry device add i 01:00.0 --json | line device_in
    skerry device remove i 01:00.0 --json | line device_out
done
changes free
skerry device add i 01:00.0 >/dev/null || exit 1
changes confined
skerry rm --force i >/dev/null
"#;

/// Switches the last processor and the last memory of Linux off and on.
const LINUX_SCRIPT: &str = r#"
blocks() { ls -d /sys/devices/system/memory/memory* | sort -V | tail -n $1 | sed 's|$|/state|'; }
for block in $(blocks 4); do echo offline > $block; done 2>/dev/null
for block in $(blocks 4); do echo online_movable > $block || exit 1; done
hotplug cpu TURNS 0 1 /sys/devices/system/cpu/cpu2/online &&
hotplug 128m TURNS offline online_movable $(blocks 1) &&
hotplug 512m TURNS offline online_movable $(blocks 4)
"#;

/// Measures the systems, prints the table, and writes the figures where the arguments say.
pub fn run(arguments: &Arguments, systems: &[System]) -> Result<()> {
    if arguments.names.len() != 1 || arguments.with.is_some() {
        bail!("`bench elastic` stands alone: no other metrics, and no --with");
    }
    let default = if arguments.icount {
        COUNTED_REPETITIONS
    } else {
        REPETITIONS
    };
    let turns = arguments.runs.unwrap_or(default).max(1);
    let unit = if arguments.icount { COUNTED } else { "us" };
    let mut figures = Vec::new();
    for System { name, kernel } in systems {
        let (samples, prefix) = match kernel {
            Kernel::Linux(_) => (linux(arguments, kernel, turns)?, format!("{name}_")),
            Kernel::Skerry | Kernel::Mutant(_) => {
                (skerry(arguments, kernel, turns)?, String::new())
            }
        };
        for Metric { name, .. } in METRICS {
            if let Some(samples) = samples.get(name) {
                figures.extend(figure(format!("{prefix}{name}"), unit, samples));
            }
        }
    }
    print(&figures, systems);
    if let Some(path) = &arguments.json {
        fs::write(path, serde_json::to_string_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.document {
        let kind = if arguments.icount { "counted" } else { "time" };
        let section = format!("elastic-{kind}");
        let chart = paths::root().join(format!("docs/{section}.svg"));
        fs::write(&chart, draw(&figures))
            .with_context(|| format!("cannot write {}", chart.display()))?;
        let alt = "Medians, 99th percentiles and the largest of each figure";
        let body = format!("![{alt}]({section}.svg)\n\n{}\n", rows(&figures, systems));
        document::replace(&section, &body)?;
    }
    Ok(())
}

/// Runs a script in a machine; returns what it printed.
fn collect(
    arguments: &Arguments,
    kernel: &Kernel,
    memory: &str,
    script: &str,
    turns: usize,
    prepare: impl FnOnce(&mut Machine),
) -> Result<String> {
    let script = script.replace("TURNS", &turns.to_string());
    let mut machine = Machine {
        kernel: kernel.clone(),
        append: format!("quiet {}", arguments.append),
        timeout: Some(LIMIT),
        log: super::scratch("log"),
        command: ["/bin/sh", "-c", &script].map(OsString::from).to_vec(),
        ..Machine::default()
    };
    (machine.hardware.cpus, machine.hardware.memory) = (3, memory.into());
    machine.hardware.icount = arguments.icount;
    prepare(&mut machine);
    super::output_of(&machine)
}

/// Figures of all that needs no devices, and of devices in a machine of their own.
fn skerry(arguments: &Arguments, kernel: &Kernel, turns: usize) -> Result<Samples> {
    let mut samples = instances(arguments, kernel, turns)?;
    let output = collect(arguments, kernel, "2G", DEVICE_SCRIPT, turns, |machine| {
        machine.append += " pci.hide=01:00.0";
        machine.hardware.iommu = Some(Iommu::Intel);
        machine.hardware.extra = [
            "-device",
            "pcie-root-port,id=port1,chassis=1,slot=1,addr=0x10",
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net,romfile=,iommu_platform=on,bus=port1",
        ]
        .map(OsString::from)
        .to_vec();
    })?;
    samples.append(&mut device_samples(&output)?);
    Ok(samples)
}

/// Units of 2 MiB by which `DEVICE_SCRIPT` changes memory.
const UNITS: f64 = 256.0;

/// Reads what the tool told of devices, and of memory without and with one.
fn device_samples(output: &str) -> Result<Samples> {
    let mut samples = Samples::new();
    let mut memory = Samples::new();
    for line in output.lines() {
        let (word, json) = line.split_once(' ').unwrap_or((line, ""));
        let told: Value =
            serde_json::from_str(json).with_context(|| format!("the machine printed {line:?}"))?;
        let number = |field: &str| {
            told[field]
                .as_f64()
                .with_context(|| format!("no {field} in {line:?}"))
        };
        let took = number("took_us")?;
        let mut add = |metric: &str, value| {
            samples.entry(metric.to_owned()).or_default().push(value);
        };
        match word {
            "device_in" => add(word, took - number("reset_us")?),
            "device_out" => {
                // The instance's driver has reset it before the supervisor does.
                let reset = number("reset_us")?;
                add(word, took - 2.0 * reset);
                add("device_reset", reset);
            }
            _ => {
                let took = took - number("scrub_us")?;
                memory.entry(word.to_owned()).or_default().push(took);
            }
        }
    }
    for (metric, way) in [("iommu_map_2m", "in"), ("iommu_unmap_2m", "out")] {
        let of = |kind| memory.get(&format!("{way}_{kind}"));
        let (Some(free), Some(confined)) = (of("free"), of("confined")) else {
            continue;
        };
        let more = |(free, confined)| (confined - free) / UNITS;
        let differences = free.iter().zip(confined).map(more).collect();
        samples.insert(metric.to_owned(), differences);
    }
    Ok(samples)
}

fn instances(arguments: &Arguments, kernel: &Kernel, turns: usize) -> Result<Samples> {
    let program = build::bench_programs()?.program("messages");
    let way = if arguments.icount { "counted" } else { "timed" };
    let script = SCRIPT.replace("WAY", way);
    let output = collect(arguments, kernel, "2G", &script, turns, |machine| {
        machine.additions = vec![Addition {
            host: program,
            guest: "/bin/messages".into(),
        }];
    })?;
    skerry_samples(&output)
}

/// Reads what the tool told of instances.
fn skerry_samples(output: &str) -> Result<Samples> {
    let mut samples = Samples::new();
    let mut add = |metric: &str, value: f64| {
        samples.entry(metric.to_owned()).or_default().push(value);
    };
    let (mut crashed, mut hangs) = (None, None);
    for line in output.lines() {
        let (word, json) = line.split_once(' ').unwrap_or((line, ""));
        let told: Value =
            serde_json::from_str(json).with_context(|| format!("the machine printed {line:?}"))?;
        let number = |field: &str| {
            told.pointer(field)
                .and_then(Value::as_f64)
                .with_context(|| format!("no {field} in {line:?}"))
        };
        match word {
            "life" => {
                add("create_first_user", number("/run_us")?);
                let scrub = number("/reclaim/scrub_us")?;
                add("destroy", number("/reclaim/total_us")? - scrub);
                add("scrub_512m", scrub);
            }
            "crash" => crashed = Some(number("/time")?),
            "respawn" => {
                let crashed: f64 = crashed.take().context("no panic before a restart")?;
                let started = (number("/started")? - crashed) * 1e6;
                add("crash_to_respawn", started + number("/boot_us")?);
            }
            "hang" => hangs = Some(number("/time")?),
            "found" => {
                let hangs: f64 = hangs.take().context("nothing hung")?;
                add("hang_to_found", (number("/time")? - hangs) * 1e6);
            }
            _ if word.starts_with("ficm_") => add(word, number("")?),
            _ => add(word, number("/took_us")? - number("/scrub_us")?),
        }
    }
    Ok(samples)
}

fn linux(arguments: &Arguments, kernel: &Kernel, turns: usize) -> Result<Samples> {
    let program = build::bench_programs()?.program("hotplug");
    // Of 512 MiB that it knows as memory which can be taken out.
    let memory = "1G,slots=1,maxmem=4G";
    let output = collect(arguments, kernel, memory, LINUX_SCRIPT, turns, |machine| {
        machine.additions = vec![Addition {
            host: program,
            guest: "/bin/hotplug".into(),
        }];
        machine.hardware.extra = [
            "-object",
            "memory-backend-ram,id=memory1,size=512M",
            "-device",
            "pc-dimm,memdev=memory1",
        ]
        .map(OsString::from)
        .to_vec();
    })?;
    let mut samples = Samples::new();
    for line in output.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [what, state, nanoseconds] = words.as_slice() else {
            bail!("the machine printed {line:?}");
        };
        let metric = match (*what, *state) {
            ("cpu", "on") => "cpu_online",
            ("cpu", "off") => "cpu_offline",
            ("128m", "on") => "memory_128m_in",
            ("512m", "on") => "memory_512m_in",
            ("512m", "off") => "memory_512m_out",
            _ => continue,
        };
        let sample = nanoseconds.parse::<f64>()? / 1000.0;
        samples.entry(metric.to_owned()).or_default().push(sample);
    }
    Ok(samples)
}

/// Nothing of no samples.
fn figure(metric: String, unit: &'static str, samples: &[f64]) -> Option<Figure> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The least sample that so many hundredths of all do not exceed.
    let percentile = |hundredths: usize| {
        let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
        sorted.get(rank - 1).copied()
    };
    Some(Figure {
        metric,
        unit,
        n: sorted.len(),
        p50: percentile(50)?,
        p99: percentile(99)?,
        max: *sorted.last()?,
    })
}

/// Each metric with each system's figure, Skerry's first, in the order in which they are shown.
fn in_order<'a>(
    figures: &'a [Figure],
    systems: &[System],
) -> Vec<(&'static Metric, &'a Figure, bool)> {
    let find = |name: &str| figures.iter().find(|figure| figure.metric == name);
    let mut rows = Vec::new();
    for metric in &METRICS {
        rows.extend(find(metric.name).map(|figure| (metric, figure, true)));
        for System { name, .. } in systems {
            let figure = find(&format!("{name}_{}", metric.name));
            rows.extend(figure.map(|figure| (metric, figure, false)));
        }
    }
    rows
}

fn print(figures: &[Figure], systems: &[System]) {
    let unit = figures.first().map_or("", |figure| figure.unit);
    println!(
        "{:<24} {:>5} {:>12} {:>12} {:>12} {:>9}  ({unit})",
        "metric", "n", "p50", "p99", "max", "goal"
    );
    for (metric, figure, ours) in in_order(figures, systems) {
        let papers = if ours { metric.papers } else { "" };
        let goal = metric.goal_in(figure.unit).filter(|_| ours);
        let Figure {
            metric,
            n,
            p50,
            p99,
            max,
            ..
        } = figure;
        let goal = goal.map(|goal| format!("{goal}"));
        let decimals = if *p50 < 10.0 { 3 } else { 1 };
        println!(
            "{metric:<24} {n:>5} {p50:>12.decimals$} {p99:>12.decimals$} {max:>12.decimals$} {:>9}  {papers}",
            goal.unwrap_or_default()
        );
    }
}

/// The same for a page.
fn rows(figures: &[Figure], systems: &[System]) -> String {
    let unit = figures.first().map_or("", |figure| figure.unit);
    let mut text = format!("| {unit} | n | p50 | p99 | max | goal | papers |\n");
    text += "|---|---:|---:|---:|---:|---:|---|\n";
    for (metric, figure, ours) in in_order(figures, systems) {
        let goal = metric.goal_in(figure.unit).filter(|_| ours);
        let missed = goal.is_some_and(|goal| figure.p50 > goal);
        writeln!(
            text,
            "| {} | {} | {}{} | {} | {} | {} | {} |",
            figure.metric,
            figure.n,
            document::number(figure.p50),
            if missed { " **missed**" } else { "" },
            document::number(figure.p99),
            document::number(figure.max),
            goal.map(document::number).unwrap_or_default(),
            if ours { metric.papers } else { "" },
        )
        .expect("a string");
    }
    text
}

/// A line for each figure on a logarithmic scale, from the median to the largest, with marks at the
/// median and at the 99th hundredth.
fn draw(figures: &[Figure]) -> String {
    const LEFT: f64 = 220.0;
    const WIDTH: f64 = 520.0;
    const ROW: f64 = 18.0;
    const TOP: f64 = 44.0;
    // What is less stands at the left end.
    const LEAST: f64 = 0.1;
    let low = figures.iter().fold(1000.0, |low, one| one.p50.min(low));
    let high = figures.iter().fold(1000.0, |high, one| one.max.max(high));
    let (low, high) = (low.max(LEAST).log10().floor(), high.log10().ceil());
    let x = |value: f64| LEFT + (value.max(LEAST).log10() - low) / (high - low).max(1.0) * WIDTH;
    let height = TOP + ROW * figures.len() as f64 + 10.0;
    let unit = figures.first().map_or("", |figure| figure.unit);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"820\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"16\">{unit}: median (disc), 99th percentile (stroke), largest (end of the line)</text>\n"
    );
    for power in low as i32..=high as i32 {
        let at = x(10_f64.powi(power));
        writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ccc\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">10^{power}</text>",
            height - 6.0,
            TOP - 6.0
        )
        .expect("a string");
    }
    for (row, figure) in figures.iter().enumerate() {
        let y = TOP + ROW * (row as f64 + 0.6);
        let (middle, late, end) = (x(figure.p50), x(figure.p99), x(figure.max));
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <line x1=\"{middle:.1}\" y1=\"{y:.1}\" x2=\"{end:.1}\" y2=\"{y:.1}\" stroke=\"#2a7f62\"/>\
             <line x1=\"{late:.1}\" y1=\"{:.1}\" x2=\"{late:.1}\" y2=\"{:.1}\" stroke=\"#2a7f62\"/>\
             <circle cx=\"{middle:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#2a7f62\"/>",
            LEFT - 8.0,
            y + 4.0,
            figure.metric,
            y - 5.0,
            y + 5.0
        )
        .expect("a string");
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let many = figure("m".into(), "us", &samples).unwrap();
        assert_eq!(
            (many.n, many.p50, many.p99, many.max),
            (100, 50.0, 99.0, 100.0)
        );
        let one = figure("m".into(), "us", &[7.0]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (7.0, 7.0, 7.0));
        assert_eq!(figure("m".into(), "us", &[]), None);
    }

    #[test]
    fn what_the_tool_tells_becomes_samples() {
        let output = r#"life {"run_us": 10.0, "reclaim": {"total_us": 5.5, "scrub_us": 4.0}}
cpu_online { "took_us": 255, "scrub_us": 55 }
crash {"time": 100.25}
respawn {"started": 100.5, "boot_us": 50.0}
hang {"time": 200.25}
found {"time": 200.5}
ficm_one_way 1.5
"#;
        let samples = skerry_samples(output).unwrap();
        let one = |metric: &str| samples[metric].as_slice();
        assert_eq!(one("create_first_user"), [10.0]);
        assert_eq!(
            (one("destroy"), one("scrub_512m")),
            (&[1.5][..], &[4.0][..])
        );
        assert_eq!(one("cpu_online"), [200.0]);
        assert_eq!(one("crash_to_respawn"), [250_050.0]);
        assert_eq!(one("hang_to_found"), [250_000.0]);
        assert_eq!(one("ficm_one_way"), [1.5]);
        skerry_samples("life nonsense").unwrap_err();
    }

    #[test]
    fn resets_are_apart_and_memory_is_compared() {
        let output = r#"device_in {"took_us": 100010, "reset_us": 100000}
device_in {"took_us": 20, "reset_us": 0}
device_out {"took_us": 200030, "reset_us": 100000}
in_free {"took_us": 256, "scrub_us": 0}
out_free {"took_us": 300, "scrub_us": 44}
in_confined {"took_us": 512, "scrub_us": 0}
out_confined {"took_us": 1112, "scrub_us": 88}
"#;
        let samples = device_samples(output).unwrap();
        let one = |metric: &str| samples[metric].as_slice();
        assert_eq!(one("device_in"), [10.0, 20.0]);
        assert_eq!(
            (one("device_out"), one("device_reset")),
            (&[30.0][..], &[100_000.0][..])
        );
        assert_eq!(
            (one("iommu_map_2m"), one("iommu_unmap_2m")),
            (&[1.0][..], &[3.0][..])
        );
        device_samples("device_in {}").unwrap_err();
    }

    #[test]
    fn instructions_have_a_goal_of_their_own() {
        let goals = |unit| {
            let named = |name| METRICS.iter().find(move |metric| metric.name == name);
            let of = |name| named(name).unwrap().goal_in(unit);
            (of("ficm_round_trip_polling"), of("cpu_online"))
        };
        assert_eq!(goals("us"), (Some(3.0), Some(1000.0)));
        assert_eq!(goals(COUNTED), (Some(2.0), Some(1000.0)));
        for (name, _) in COUNTED_GOALS {
            assert!(METRICS.iter().any(|metric| metric.name == name), "{name}");
        }
    }

    #[test]
    fn each_figure_has_its_line_in_the_chart() {
        let figures = [
            figure("short".into(), "us", &[3.0, 4.0]).unwrap(),
            figure("long".into(), "us", &[2e6]).unwrap(),
        ];
        let svg = draw(&figures);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(">short<") && svg.contains(">long<") && svg.contains("10^7"));
    }
}
