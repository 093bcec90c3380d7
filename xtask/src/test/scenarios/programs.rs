//! Static programs in Rust and Go that check the Linux interface from inside: threads, futexes,
//! signals, memory, files, processes, clocks. Their sources are in `tests/programs`.
//!
//! They run on one, two and four processors, on the supervisor and in an instance. Each check but
//! the large ones ([`LARGE`]) runs on one and on four processors, once on the supervisor and once
//! in an instance; by name, `long/programs-2` is the same on two, and `long/programs` everything
//! everywhere.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel, Machine};

/// Seconds that a check may take, on a machine that is emulated and busy.
const LIMIT: u32 = 150;
/// Seconds for all of them: some hang, each for its time, and the others are seen nevertheless.
const TIMEOUT: u64 = 900;
/// Memory of an instance.
const INSTANCE_MEMORY: &str = "1G";
/// Checks of large amounts and long times, of one thread: they run on four processors only, since
/// nothing in them depends on the number, and took a fifth of the time of all.
const LARGE: [&str; 7] = [
    "inotify-overflows",
    "paths-directory-of-100000",
    "proc-kinds-of-memory",
    "proc-transfers",
    "processes-100-in-a-row",
    "time-limit-of-the-processor",
    "transfers-beyond-the-most-of-one-call",
];
const RUST: &str = "/bin/machine-tests";
const GO: &str = "/bin/go-tests";

/// Setup of a Linux as a distribution's first process does it, and Skerry's kernel itself: the loop
/// is up, and file systems are mounted.
const LINUX_SETUP: &str = "ip link set lo up; mkdir -p /dev/pts; \
    mount -t devpts -o ptmxmode=666 devpts /dev/pts; mount -t cgroup2 cgroup2 /sys/fs/cgroup";

/// Command line of that Linux: the emulator's time-stamp counter is its clock, as a real
/// processor's is, and programs write to the kernel log as much as they like.
const LINUX_APPEND: &str = "tsc=reliable printk.devkmsg=on";

/// The module that has the loop devices of a Debian kernel, as its checks expect it.
fn loop_module(image: &Path) -> Option<Addition> {
    let version = image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?;
    let host = format!("/lib/modules/{version}/kernel/drivers/block/loop.ko");
    Path::new(&host).exists().then(|| Addition {
        host: host.into(),
        guest: "/loop.ko".into(),
    })
}

/// Where a check runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In the machine's first kernel.
    Supervisor = 0,
    /// In an instance with as many processors.
    Instance = 1,
}

/// A check, and where it runs.
pub struct Chosen {
    program: &'static str,
    name: String,
    side: Side,
}

/// Every check once on one processor, every other of them in an instance; with the kernel's entries
/// and exits of processors that need every mitigation, but on page tables of their own in the
/// instance only: under an emulator each change of page tables forgets all translations. With
/// them on both sides the scenario took 136 s instead of 106.
pub fn on_one(setting: &Setting) -> Result<Vec<Check>> {
    let append = ["mitigations=force pti=off", "mitigations=force"];
    halves(setting, 1, 0, &LARGE, append)
}

/// The same on two processors, with what this processor needs.
pub fn on_two(setting: &Setting) -> Result<Vec<Check>> {
    halves(setting, 2, 0, &LARGE, [""; 2])
}

/// The same on four processors, with the other half in the instance, and with what this processor
/// needs there.
pub fn on_four(setting: &Setting) -> Result<Vec<Check>> {
    halves(setting, 4, 1, &[], ["mitigations=force pti=off", ""])
}

/// Every check on either side with each number of processors, and with programs on page tables of
/// their own and no other mitigation.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for cpus in [1, 2, 4] {
        for side in setting.sides() {
            checks.extend(
                Family {
                    cpus,
                    append: setting.for_skerry(["pti=on"; 2]),
                }
                .run(setting, choose(|_, _| Some(side))?)?,
            );
        }
    }
    Ok(checks)
}

/// Every check but `without`; `append` is for Skerry's command lines, of the supervisor and of the
/// instance.
fn halves(
    setting: &Setting,
    cpus: u32,
    odd: usize,
    without: &[&str],
    append: [&str; 2],
) -> Result<Vec<Check>> {
    let sides = setting.sides();
    let all = choose(|_, _| Some(Side::Supervisor))?;
    let unknown = |name: &&str| all.iter().all(|check| check.name != *name);
    ensure!(
        !without.iter().any(unknown),
        "a name in LARGE is no check's"
    );
    let chosen = choose(|index, name| {
        (!without.contains(&name)).then(|| sides[(index + odd) % sides.len()])
    })?;
    Family {
        cpus,
        append: setting.for_skerry(append),
    }
    .run(setting, chosen)
}

impl Setting {
    /// Where checks run: Linux has no instances.
    pub fn sides(&self) -> Vec<Side> {
        match self.kernel {
            Kernel::Skerry | Kernel::Mutant(_) => vec![Side::Supervisor, Side::Instance],
            Kernel::Linux(_) => vec![Side::Supervisor],
        }
    }

    /// Words for the command lines of Skerry; nothing for Linux.
    fn for_skerry(&self, append: [&str; 2]) -> [String; 2] {
        match self.kernel {
            Kernel::Skerry | Kernel::Mutant(_) => append.map(str::to_owned),
            Kernel::Linux(_) => Default::default(),
        }
    }
}

/// The checks of both programs for which `side` has an answer, given their place in the list and
/// their name.
pub fn choose(side: impl Fn(usize, &str) -> Option<Side>) -> Result<Vec<Chosen>> {
    let rust = names(&build::test_programs()?.program("machine-tests"))?
        .into_iter()
        .map(|name| (RUST, name));
    let go = names(&build::go_test_program()?)?
        .into_iter()
        .map(|name| (GO, name));
    let chosen = |(index, (program, name)): (usize, (&'static str, String))| {
        side(index, &name).map(|side| Chosen {
            program,
            name,
            side,
        })
    };
    Ok(rust.chain(go).enumerate().filter_map(chosen).collect())
}

/// The names of a program's checks.
fn names(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program)
        .arg("list")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8(output.stdout)?
        .lines()
        .map(str::to_owned)
        .collect())
}

/// A machine for checks.
pub struct Family {
    /// Processors of the supervisor, and of the instance.
    pub cpus: u32,
    /// For the kernels' command lines, the supervisor's and the instance's, and for the names of
    /// the checks there.
    pub append: [String; 2],
}

impl Family {
    /// Runs checks side by side, first those of the supervisor and then those of the instance.
    pub fn run(&self, setting: &Setting, chosen: Vec<Chosen>) -> Result<Vec<Check>> {
        let directory = Directory::create()?;
        let mut machine = setting.machine(&format!("{}-cpus", self.cpus));
        machine.additions.push(Addition {
            host: build::test_programs()?.program("machine-tests"),
            guest: RUST.into(),
        });
        machine.additions.push(Addition {
            host: build::go_test_program()?,
            guest: GO.into(),
        });
        self.size(setting, &mut machine);
        if machine.kernel.trial().is_some() {
            // One after the other, on the supervisor: it is of interest which check comes by a
            // mutant.
            let step = |check: &Chosen| Step {
                script: format!("{} {}", check.program, check.name),
                ..self.step(check)
            };
            return batch::run(machine, &chosen.iter().map(step).collect::<Vec<_>>());
        }
        let mut commands = Vec::new();
        if matches!(setting.kernel, Kernel::Linux(_)) {
            commands.push(LINUX_SETUP.to_owned());
        }
        for side in setting.sides() {
            let line = |(number, check): (usize, &Chosen)| {
                (check.side == side).then(|| format!("{number} {} {}\n", check.program, check.name))
            };
            let lines: String = chosen.iter().enumerate().filter_map(line).collect();
            if lines.is_empty() {
                continue;
            }
            let name = if side == Side::Supervisor {
                "supervisor"
            } else {
                "instance"
            };
            fs::write(directory.join(name), lines)?;
            machine.additions.push(Addition {
                host: directory.join(name),
                guest: format!("/check/{name}"),
            });
            commands.push(self.command(side, name));
        }
        machine.command = ["/bin/sh", "-c", &commands.join("; ")]
            .map(OsString::from)
            .to_vec();
        machine.timeout = Some(Duration::from_secs(TIMEOUT));
        batch::finish(
            &machine,
            &chosen
                .iter()
                .map(|check| self.step(check))
                .collect::<Vec<_>>(),
            chosen.len(),
        )
    }

    /// Command that runs a list of checks.
    fn command(&self, side: Side, list: &str) -> String {
        let batch = format!("{RUST} batch {} {LIMIT} /check/{list}", 2 * self.cpus + 2);
        match side {
            Side::Supervisor => batch,
            Side::Instance => {
                let arguments = match self.append(side) {
                    "" => String::new(),
                    append => format!("--kernel-args '{append}'"),
                };
                let run = format!(
                    "skerry run --name checks --cpus {} --mem {INSTANCE_MEMORY} {arguments} \
                     -- {batch}",
                    self.cpus
                );
                // If the instance's kernel panics, what it said is worth more than that.
                format!(
                    "{run} </dev/null || \
                     {{ status=$?; skerry logs --kernel checks >&2; exit $status; }}"
                )
            }
        }
    }

    /// Words for the command line of a kernel.
    fn append(&self, side: Side) -> &str {
        &self.append[side as usize]
    }

    /// Processors and memory for all that runs in the machine.
    fn size(&self, setting: &Setting, machine: &mut Machine) {
        machine.hardware.cpus = self.cpus * setting.sides().len() as u32;
        machine.hardware.memory = "3G".into();
        machine.append = match setting.kernel {
            Kernel::Skerry | Kernel::Mutant(_) => {
                format!(
                    "supervisor_cpus={} {}",
                    self.cpus,
                    self.append(Side::Supervisor)
                )
            }
            Kernel::Linux(_) => format!("{LINUX_APPEND} {}", self.append(Side::Supervisor)),
        };
        if let Kernel::Linux(image) = &setting.kernel {
            machine.additions.extend(loop_module(image));
        }
    }

    fn step(&self, check: &Chosen) -> Step {
        let place = if check.side == Side::Supervisor {
            ""
        } else {
            ", instance"
        };
        let append = match self.append(check.side) {
            "" => String::new(),
            append => format!(", {append}"),
        };
        let what = format!("{}, {} CPUs{place}{append}", check.name, self.cpus);
        Step::new(what, "", Expect::Accepted(says_ok)).limit(LIMIT)
    }
}

fn says_ok(printed: &str) -> Result<String> {
    ensure!(
        printed.starts_with("ok ") && !printed.contains('\n'),
        "it does not say ok"
    );
    Ok(String::new())
}
