//! `doctor`: what this machine has, what is wrong with it, and what helps.
//!
//! Facts are gathered first and judged then, so that every judgement is a unit test. A fact that
//! cannot be had is a finding, not an error.

use std::fs;
use std::io::{self, Write};

use abi::dev::{self, Info, Status};
use serde::Serialize;

use crate::device::Device;
use crate::devices;
use crate::failure::{Result, plain};
use crate::instances::{self, label};
use crate::managed::is_aside;
use crate::restart::Policy;
use crate::state::{Record, Store};
use crate::{apply, monitor, show, size};

/// Folder in which Linux' interface lists leaks of processors.
const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";
/// File that tells what comes after a panic of the supervisor.
const PANIC: &str = "/proc/skerry/panic";
/// File that names the source of time.
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// All is well.
    Good,
    /// Something could be better.
    Warning,
    /// Something does not work.
    Bad,
}

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject of the finding.
    check: &'static str,
    grade: Grade,
    /// The finding in words.
    text: String,
    /// A remedy, unless all is well.
    remedy: Option<String>,
}

impl Finding {
    fn good(check: &'static str, text: impl Into<String>) -> Self {
        Self {
            check,
            grade: Grade::Good,
            text: text.into(),
            remedy: None,
        }
    }

    fn new(
        check: &'static str,
        grade: Grade,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            check,
            grade,
            text: text.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Facts about the machine, before they are judged.
struct Facts {
    info: io::Result<Info>,
    instances: Vec<(Status, Option<Record>)>,
    cpuinfo: String,
    /// Name and state of each of Linux' list.
    vulnerabilities: Vec<(String, String)>,
    clock: String,
    /// Whether a monitor is at work.
    monitor: bool,
    /// Whether an `apply` was begun that nobody is at work on.
    unfinished: bool,
    /// Consequence of a panic of the supervisor, as its kernel tells it.
    panic: String,
}

impl Facts {
    fn gather(device: &dyn Device, store: &Store) -> Result<Self> {
        let mut all = Vec::new();
        for status in instances::all(device)? {
            all.push((status, store.read(status.id)?));
        }
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let entries = fs::read_dir(VULNERABILITIES)
            .into_iter()
            .flatten()
            .flatten();
        let mut vulnerabilities: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let state = fs::read_to_string(entry.path()).ok()?;
                Some((name, state.trim().to_owned()))
            })
            .collect();
        vulnerabilities.sort();
        Ok(Self {
            info: device.info(),
            instances: all,
            cpuinfo: text("/proc/cpuinfo"),
            vulnerabilities,
            clock: text(CLOCK).trim().to_owned(),
            monitor: monitor::is_at_work(store)?,
            unfinished: apply::is_unfinished(store)?,
            panic: text(PANIC).trim().to_owned(),
        })
    }

    fn judge(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match &self.info {
            Ok(info) => {
                findings.extend(cpus(info));
                findings.extend(cores(info));
                findings.extend(memory(info));
                findings.push(self.devices(info));
            }
            Err(error) => findings.push(Finding::new(
                "supervisor",
                Grade::Bad,
                format!("/dev/skerry does not answer: {}", plain(error)),
                "tool and kernel must be of one version: `skerry version`",
            )),
        }
        findings.push(self.processor());
        findings.push(self.leaks());
        findings.push(self.clock());
        findings.push(self.panic());
        findings.extend(self.health());
        findings.extend(self.policies());
        if self.unfinished {
            findings.push(Finding::new(
                "apply",
                Grade::Bad,
                "a `skerry apply` was killed at work",
                "the next `skerry apply` takes back or finishes what it began",
            ));
        }
        findings
    }

    /// Devices of instances that nothing confines.
    fn devices(&self, info: &Info) -> Finding {
        let mut all = self.instances.iter().map(|(status, _)| status);
        let is_at_large =
            |status: &&Status| status.state == dev::STATE_RUNNING && devices::is_unsafe(status);
        match (all.find(is_at_large), info.iommus) {
            (Some(status), _) => Finding::new(
                "devices",
                Grade::Warning,
                format!(
                    "nothing confines what devices of {} read and write",
                    label(status)
                ),
                "a machine with an IOMMU, and no --unsafe-dma",
            ),
            (None, 0) => Finding::good(
                "devices",
                "no IOMMU: an instance gets some with --unsafe-dma only",
            ),
            (None, count) => Finding::good("devices", format!("confined by {count} IOMMUs")),
        }
    }

    /// Consequences of a panic of the supervisor's kernel for instances.
    fn panic(&self) -> Finding {
        match self.panic.strip_prefix("reset") {
            None if self.panic == "restart" => Finding::good(
                "panic",
                "the supervisor's starts its kernel again, and instances go on",
            ),
            None => Finding::new(
                "panic",
                Grade::Warning,
                format!("{PANIC} does not tell what comes after one of the supervisor"),
                "mount /proc",
            ),
            Some(why) => Finding::new(
                "panic",
                Grade::Warning,
                format!(
                    "the supervisor's resets the machine, and all instances end{}",
                    why.replacen(':', ",", 1)
                ),
                "no supervisor_panic=reset on the supervisor's command line; one segment of PCI",
            ),
        }
    }

    /// Features without which something is slower or less safe.
    fn processor(&self) -> Finding {
        const WANTED: [(&str, &str); 9] = [
            ("x2apic", "interrupts between CPUs cost more"),
            ("tsc_deadline_timer", "timers cost more"),
            ("nonstop_tsc", "time may stand still while a CPU sleeps"),
            ("pcid", "switches between programs flush translations"),
            ("invpcid", "page-table isolation costs more"),
            ("fsgsbase", "switches between threads cost more"),
            (
                "smep",
                "the kernel could be made to execute programs' pages",
            ),
            ("smap", "the kernel could be made to read programs' pages"),
            ("rdrand", "random numbers rest on timing alone"),
        ];
        let flags = self
            .cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("flags"));
        let Some(flags) = flags else {
            return Finding::new(
                "processor",
                Grade::Warning,
                "/proc/cpuinfo does not tell its features",
                "mount /proc",
            );
        };
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        let missing: Vec<_> = WANTED
            .iter()
            .filter(|(flag, _)| !has(flag))
            .map(|(flag, effect)| format!("no {flag}: {effect}"))
            .collect();
        if missing.is_empty() {
            return Finding::good("processor", "has all features that Skerry uses");
        }
        Finding::new(
            "processor",
            Grade::Warning,
            missing.join("; "),
            "a newer processor, or a hypervisor that passes them on (QEMU: -cpu host or max)",
        )
    }

    /// Leaks of processors that nothing keeps in.
    fn leaks(&self) -> Finding {
        if self.vulnerabilities.is_empty() {
            return Finding::new(
                "leaks",
                Grade::Warning,
                format!("{VULNERABILITIES} is not there"),
                "mount /sys",
            );
        }
        let open: Vec<_> = self
            .vulnerabilities
            .iter()
            .filter(|(_, state)| state.starts_with("Vulnerable"))
            .map(|(name, state)| format!("{name}: {state}"))
            .collect();
        if open.is_empty() {
            return Finding::good("leaks", "nothing is known that is not mitigated");
        }
        Finding::new(
            "leaks",
            Grade::Warning,
            open.join("; "),
            "new microcode, or another choice of mitigations= on the kernel's command line",
        )
    }

    fn clock(&self) -> Finding {
        match self.clock.as_str() {
            "tsc" => Finding::good("clock", "the time stamp counter"),
            "" => Finding::new(
                "clock",
                Grade::Warning,
                "its source is not told",
                "mount /sys",
            ),
            other => Finding::new(
                "clock",
                Grade::Warning,
                format!("{other}, which costs more to read than the time stamp counter"),
                "an invariant time stamp counter (QEMU: -cpu host,+invtsc)",
            ),
        }
    }

    /// Instances that do not do what they should.
    fn health(&self) -> Vec<Finding> {
        let sick = |(status, _): &&(Status, Option<Record>)| {
            status.state == dev::STATE_RUNNING && status.health != dev::HEALTH_GOOD
        };
        let mut findings: Vec<_> = self
            .instances
            .iter()
            .filter(sick)
            .map(|(status, _)| {
                let (name, health) = (label(status), dev::health_name(status.health));
                let detail = dev::text(&status.detail).unwrap_or_default();
                Finding::new(
                    "instances",
                    Grade::Bad,
                    format!("{name} is {health}: {detail}"),
                    format!("`skerry logs --kernel {name}`; `skerry restart --time 0 {name}`"),
                )
            })
            .collect();
        for (status, record) in &self.instances {
            let error = record.as_ref().and_then(|record| record.error.as_ref());
            if let Some(error) = error.filter(|_| instances::has_ended(status) && !is_aside(status))
            {
                findings.push(Finding::new(
                    "instances",
                    Grade::Bad,
                    format!("{} could not be restarted: {error}", label(status)),
                    "it is tried again at most each minute",
                ));
            }
        }
        if findings.is_empty() {
            findings.push(Finding::good("instances", "none hangs"));
        }
        findings
    }

    /// Restart policies that nobody carries out.
    fn policies(&self) -> Option<Finding> {
        let names: Vec<_> = self
            .instances
            .iter()
            .filter(|(status, record)| {
                let record = record.as_ref().filter(|_| !is_aside(status));
                record.is_some_and(|record| {
                    let waits = match status.state {
                        dev::STATE_CREATED => false,
                        dev::STATE_RUNNING => true,
                        _ => record.restart.wants(status, record.restarts),
                    };
                    record.restart != Policy::No && !record.stopped && waits
                })
            })
            .map(|(status, _)| label(status))
            .collect();
        match (names.is_empty(), self.monitor) {
            (true, _) => None,
            (false, true) => Some(Finding::good("restarts", "the monitor is at work")),
            (false, false) => Some(Finding::new(
                "restarts",
                Grade::Bad,
                format!("no monitor is at work to restart {}", names.join(", ")),
                "`skerry monitor --background`",
            )),
        }
    }
}

fn count(count: u32, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

fn cpus(info: &Info) -> Vec<Finding> {
    let mut findings = vec![Finding::good(
        "CPUs",
        format!(
            "{}, of which {} free",
            count(info.cpus_total, "CPU"),
            info.cpus_free
        ),
    )];
    if info.cpus_lost > 0 {
        findings.push(Finding::new(
            "CPUs",
            Grade::Bad,
            format!("{} did not start at boot", count(info.cpus_lost, "CPU")),
            "it is free if it starts later; else start the machine again",
        ));
    }
    if info.cpus_quarantined > 0 {
        findings.push(Finding::new(
            "CPUs",
            Grade::Bad,
            format!(
                "{} did not come back from an instance, and {} with it",
                count(info.cpus_quarantined, "CPU"),
                size::format(info.mem_quarantined)
            ),
            "both are free when it answers: its host may have stopped it",
        ));
    }
    if info.cpus_total <= info.cpus_supervisor {
        findings.push(Finding::new(
            "CPUs",
            Grade::Bad,
            "the supervisor has all of them: no instance can be made",
            "a machine of more CPUs, or a smaller supervisor_cpus=",
        ));
    }
    findings
}

fn cores(info: &Info) -> Vec<Finding> {
    if info.cores_total == info.cpus_total {
        return vec![Finding::good("cores", "each has one thread")];
    }
    let text = format!(
        "{} of several threads; each belongs to one instance",
        count(info.cores_total, "core")
    );
    if info.cpus_withheld == 0 {
        return vec![Finding::good("cores", text)];
    }
    vec![Finding::new(
        "cores",
        Grade::Warning,
        format!(
            "{text}, so {} given to nobody",
            match info.cpus_withheld {
                1 => "1 CPU is".into(),
                many => format!("{many} CPUs are"),
            }
        ),
        "instances of whole cores: --cpus in multiples of a core's threads",
    )]
}

fn memory(info: &Info) -> Vec<Finding> {
    let mut findings = Vec::new();
    let text = format!("{} free for instances", size::format(info.mem_free));
    // Less than a kernel with a program needs at least.
    if info.mem_free < 8 << 20 {
        findings.push(Finding::new(
            "memory",
            Grade::Warning,
            format!("{text}: what the supervisor keeps for itself is not given out"),
            "stop an instance",
        ));
    } else {
        findings.push(Finding::good("memory", text));
    }
    if info.mem_leaked > 0 {
        findings.push(Finding::new(
            "memory",
            Grade::Bad,
            format!(
                "{} cannot be used until the machine is started again",
                size::format(info.mem_leaked)
            ),
            "`cat /proc/skerry/machine_checks` tells of errors of hardware",
        ));
    }
    findings
}

/// Prints what was found. Returns whether something does not work.
///
/// # Errors
/// If nothing can be found out.
pub fn run(
    device: &dyn Device,
    store: &Store,
    json: bool,
    out: &mut dyn Write,
) -> Result<(bool, io::Result<()>)> {
    let findings = Facts::gather(device, store)?.judge();
    let bad = findings.iter().any(|finding| finding.grade == Grade::Bad);
    if json {
        return Ok((bad, show::json(&findings, out)));
    }
    let printed = findings.iter().try_for_each(|finding| {
        let grade = format!("{:?}", finding.grade).to_lowercase();
        writeln!(out, "{grade:<8} {:<11} {}", finding.check, finding.text)?;
        match &finding.remedy {
            Some(remedy) => writeln!(out, "{:<8} {:<11} -> {remedy}", "", ""),
            None => Ok(()),
        }
    });
    Ok((bad, printed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{TestDirectory, request};

    fn machine() -> Facts {
        Facts {
            info: Ok(Info {
                cpus_total: 4,
                cpus_supervisor: 1,
                cpus_free: 3,
                cores_total: 4,
                mem_free: 1 << 30,
                ..Info::default()
            }),
            instances: Vec::new(),
            cpuinfo: "model name : x\nflags\t\t: x2apic tsc_deadline_timer nonstop_tsc pcid \
                      invpcid fsgsbase smep smap rdrand\n"
                .into(),
            vulnerabilities: vec![("meltdown".into(), "Not affected".into())],
            clock: "tsc".into(),
            monitor: false,
            unfinished: false,
            panic: "restart".into(),
        }
    }

    fn found(facts: &Facts, check: &str) -> (Grade, String) {
        let findings = facts.judge();
        let worst = findings.iter().filter(|finding| finding.check == check);
        let worst = worst.max_by_key(|finding| finding.grade as u8).unwrap();
        assert_eq!(worst.grade == Grade::Good, worst.remedy.is_none());
        (worst.grade, worst.text.clone())
    }

    #[test]
    fn a_machine_without_faults_has_none() {
        let findings = machine().judge();
        assert!(
            findings.iter().all(|finding| finding.grade == Grade::Good),
            "{findings:?}"
        );
        assert!(findings.len() >= 6);
    }

    #[test]
    fn what_the_machine_lacks_is_told() {
        let mut facts = machine();
        facts.cpuinfo = facts.cpuinfo.replace("smap ", "");
        assert_eq!(found(&facts, "processor").0, Grade::Warning);
        assert!(found(&facts, "processor").1.contains("no smap"));
        facts
            .vulnerabilities
            .push(("mds".into(), "Vulnerable: no microcode".into()));
        assert!(found(&facts, "leaks").1.contains("mds"));
        facts.panic = "reset: PCI has more than one segment".into();
        let (grade, text) = found(&facts, "panic");
        assert_eq!(grade, Grade::Warning);
        assert!(
            text.ends_with("end, PCI has more than one segment"),
            "{text}"
        );
        facts.panic.clear();
        assert_eq!(found(&facts, "panic").0, Grade::Warning);
        facts.clock = "hpet".into();
        assert_eq!(found(&facts, "clock").0, Grade::Warning);
        let info = facts.info.as_mut().unwrap();
        (info.cpus_lost, info.mem_free, info.mem_leaked) = (1, 0, 4096);
        (info.cores_total, info.cpus_withheld) = (2, 1);
        assert_eq!(
            found(&facts, "CPUs"),
            (Grade::Bad, "1 CPU did not start at boot".into())
        );
        assert_eq!(found(&facts, "cores").0, Grade::Warning);
        assert_eq!(found(&facts, "memory").0, Grade::Bad);
        facts.info = Err(io::Error::from_raw_os_error(libc::ENOTTY));
        assert_eq!(found(&facts, "supervisor").0, Grade::Bad);
    }

    #[test]
    fn a_policy_without_a_monitor_is_told() {
        let directory = TestDirectory::new();
        let store = Store::at(&directory.0, "boot").unwrap();
        let mut status: Status = dev::zeroed();
        status.label = dev::field("web").unwrap();
        status.state = dev::STATE_RUNNING;
        let mut record = store.record(&request("web", &["x"]), Policy::Always);
        let mut facts = machine();
        facts.instances = vec![(status, Some(record.clone()))];
        assert_eq!(
            found(&facts, "restarts"),
            (Grade::Bad, "no monitor is at work to restart web".into())
        );
        facts.monitor = true;
        assert_eq!(found(&facts, "restarts").0, Grade::Good);
        facts.monitor = false;
        record.stopped = true;
        facts.instances = vec![(status, Some(record.clone()))];
        assert!(
            facts
                .judge()
                .iter()
                .all(|finding| finding.check != "restarts")
        );
        status.health = dev::HEALTH_HUNG;
        facts.instances = vec![(status, None)];
        assert_eq!(found(&facts, "instances").0, Grade::Bad);
        record.error = Some("no CPU is free".into());
        status.state = dev::STATE_EXITED;
        facts.instances = vec![(status, Some(record))];
        assert!(
            found(&facts, "instances")
                .1
                .contains("could not be restarted: no CPU")
        );
        facts.unfinished = true;
        assert_eq!(found(&facts, "apply").0, Grade::Bad);
    }
}
