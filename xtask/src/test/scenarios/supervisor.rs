//! The supervisor's own end: its kernel panics and starts again in place, and its instances go on
//! (`docs/supervisor-restart.md`).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::json::{self, Resources};
use super::{devices, iommu, virtual_functions};
use crate::build;
use crate::cleanup::Directory;
use crate::qemu::{Hardware, Iommu};
use crate::test::{Check, Setting};

/// First process of all machines here.
const INIT: &str = include_str!("../../../../tests/cases/supervisor-restart.sh");
/// First process of a machine whose instances are tied to each other.
const TIES: &str = include_str!("../../../../tests/cases/supervisor-ties.sh");
/// First process of a machine whose supervisor ends in each way that a kernel can.
const FAULTS: &str = include_str!("../../../../tests/cases/supervisor-faults.sh");
/// First process of a machine whose instances have disks.
const DEVICES: &str = include_str!("../../../../tests/cases/supervisor-devices.sh");
/// First process of a machine whose instances have disks that an IOMMU confines.
const CONFINED: &str = include_str!("../../../../tests/cases/supervisor-iommu.sh");
/// First process of a machine whose instances have virtual functions.
const VIRTUAL: &str = include_str!("../../../../tests/cases/supervisor-virtual.sh");
/// First process of a machine whose instances talk to the host by their supervisor's address.
const NAT: &str = include_str!("../../../../tests/cases/supervisor-nat.sh");
/// First process of a machine whose supervisor panics a hundred times.
const HUNDRED: &str = include_str!("../../../../tests/cases/supervisor-hundred.sh");
/// First process of a supervisor that panics at once, as the first line's `HOW` says.
const CRASH: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /tmp
/bin/busybox mount -t proc proc /proc
skerry run -d --name kept --cpus 1 --mem 64M -- /bin/busybox sleep 1000
HOW
"#;

/// Line of the log by which a supervisor says that it starts again.
const AGAIN: &str = "the supervisor starts again in place";

/// Runs `init` as the first process, with words on the kernel's command line; returns the log.
fn run(
    setting: &Setting,
    name_and_minutes: (&str, u64),
    words: &str,
    init: &str,
) -> Result<String> {
    run_on(setting, name_and_minutes, words, init, |_| ())
}

/// Does so on hardware to which something is added.
fn run_on(
    setting: &Setting,
    (name, minutes): (&str, u64),
    words: &str,
    init: &str,
    add: impl FnOnce(&mut Hardware),
) -> Result<String> {
    let mut machine = setting.machine(name);
    machine.hardware.cpus = 6;
    add(&mut machine.hardware);
    machine.append = words.into();
    machine.timeout = Some(Duration::from_secs(60 * minutes));
    let directory = Directory::create()?;
    let path = directory.join("init");
    fs::write(&path, init)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let (tools, programs) = (build::tools()?, build::test_programs()?);
    machine.run_without_agent(&path, |archive| {
        archive.host(std::path::Path::new("/bin/busybox"), "/bin/busybox")?;
        archive.host(&programs.program("machine-tests"), "/bin/machine-tests")?;
        archive.host(&tools.program("skerry"), "/bin/skerry")
    })
}

/// A supervisor that starts again under an instance which has a virtual function.
pub fn virtual_functions(setting: &Setting) -> Result<Vec<Check>> {
    let words = "supervisor_panic=restart supervisor_cpus=2 pci.sriov=01:00.0:2";
    let directory = Directory::create()?;
    let images = virtual_functions::images(&directory)?;
    let log = run_on(setting, ("virtual", 5), words, VIRTUAL, |hardware| {
        hardware.iommu = Some(Iommu::Intel);
        virtual_functions::attach(hardware, &images);
    })?;
    let said = Said(log);
    let all = |wanted: &[(u32, &str, &str)]| -> Result<String> {
        let mut wanted = wanted.iter();
        wanted.try_for_each(|(step, key, value)| said.is(*step, key, value))?;
        Ok(String::new())
    };
    let registers = |step| said.is(step, "registers", said.get(0, "registers")?);
    Ok(vec![
        Check::new(
            "an instance keeps its virtual function, and writes and reads without a fault",
            registers(1).and_then(|()| all(&[(1, "numbers", "2"), (1, "writes", "whole")])),
        ),
        Check::new(
            "the supervisor has its controller again, and gives one of nobody's to an instance",
            all(&[(1, "own", "mine"), (1, "taken", "1"), (1, "other", "mine")]),
        ),
        Check::new(
            "virtual functions of nobody are there again",
            registers(2).and_then(|()| all(&[(2, "numbers", "2"), (2, "again", "whole")])),
        ),
    ])
}

/// A log in which each start of the supervisor has said what it saw.
struct Said(String);

impl Said {
    /// The value of a key that the start of that number has said.
    fn get(&self, step: u32, key: &str) -> Result<&str> {
        let head = format!("{step} {key}: ");
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(&head));
        let value = value.with_context(|| format!("start {step} says nothing of {key:?}"))?;
        Ok(value.trim())
    }

    fn is(&self, step: u32, key: &str, wanted: &str) -> Result<()> {
        let found = self.get(step, key)?;
        ensure!(
            found == wanted,
            "{key} of start {step}: {found:?}, not {wanted:?}"
        );
        Ok(())
    }

    fn resources(&self, step: u32, key: &str) -> Result<Resources> {
        json::resources(self.get(step, key)?)
    }

    /// Instances have as many CPUs and as much memory at two moments, and nothing is lost.
    fn same(&self, one: (u32, &str), other: (u32, &str)) -> Result<()> {
        let (one, other) = (
            self.resources(one.0, one.1)?,
            self.resources(other.0, other.1)?,
        );
        let same = Resources {
            memory_free: other.memory_free,
            ..one
        };
        ensure!(same == other, "{one:?}, then {other:?}");
        ensure!(one.cpus_lost == 0 && one.memory_leaked == 0, "{one:?}");
        Ok(())
    }

    /// Nothing is an instance's, and nothing lost, as at the beginning.
    fn all_free(&self, steps: &[u32]) -> Result<String> {
        steps
            .iter()
            .try_for_each(|step| self.same((0, "before"), (*step, "free")))
            .map(|()| String::new())
    }
}

/// A hundred panics under instances that compute, write without end, and come and go.
pub fn hundred(setting: &Setting) -> Result<Vec<Check>> {
    let words = "supervisor_panic=restart supervisor_cpus=2";
    let said = Said(run(setting, ("hundred", 60), words, HUNDRED)?);
    let held = said.0.lines().filter(|line| line.trim().ends_with(" held"));
    let held = held.count();
    let complaints = ["hole", "wrong", "other instances", "no third"];
    let complaint = complaints.iter().find_map(|word| {
        let mut lines = said.0.lines().filter(|line| !line.starts_with('['));
        lines.find(|line| line.contains(word))
    });
    Ok(vec![Check::new(
        "instances go on through a hundred panics of their supervisor, and all is free at the end",
        (|| {
            ensure!(held == 101, "{held} starts of 101 saw that all was well");
            ensure!(complaint.is_none(), "{complaint:?}");
            said.same((0, "before"), (100, "free"))?;
            Ok(String::new())
        })(),
    )])
}

/// Number of the panics in [`TIES`].
const TIES_RESTARTS: usize = 6;

/// Panics under instances that exchange messages, and have networks.
pub fn ties(setting: &Setting) -> Result<Vec<Check>> {
    let words = "supervisor_panic=restart supervisor_cpus=2";
    let said = Said(run(setting, ("ties", 10), words, TIES)?);
    let restarts = said.0.matches(AGAIN).count();
    let all = |results: &[&dyn Fn() -> Result<()>]| -> Result<String> {
        results.iter().try_for_each(|result| result())?;
        Ok(String::new())
    };
    Ok(vec![
        Check::new(
            "instances with peers and networks keep CPUs, memory, addresses, and networks are there",
            all(&[
                &|| said.is(1, "names", said.get(0, "names")?),
                &|| said.is(1, "networks", said.get(0, "networks")?),
                &|| said.same((0, "resources"), (1, "resources")),
            ]),
        ),
        Check::new(
            "peers talk on while their supervisor starts again, and none is told of an end",
            all(&[
                &|| {
                    let last = said.get(0, "last")?.split(' ').nth(1).unwrap_or("");
                    let (last, first): (u64, u64) = (last.parse()?, said.get(1, "first")?.parse()?);
                    ensure!(
                        first > last,
                        "{first} messages after the panic, {last} before"
                    );
                    Ok(())
                },
                &|| said.is(1, "told", "0 0"),
                &|| said.is(1, "group", "all have answered"),
            ]),
        ),
        Check::new(
            "a connection between two instances goes on without a hole; each card was reset once",
            all(&[&|| said.is(1, "connection", "whole"), &|| {
                said.is(1, "cards", "1 1")
            }]),
        ),
        Check::new(
            "published ports answer again, siblings find each other, and what is taken stays so",
            all(&[
                &|| said.is(1, "pages", "page page page"),
                &|| said.is(1, "siblings", "page 1 packets received"),
                &|| said.is(1, "taken", "1"),
                &|| said.is(2, "taken", "1"),
            ]),
        ),
        Check::new(
            "who has started when the supervisor ended is the peer of who was not told of it",
            all(&[
                &|| said.is(2, "names", "asks other echoes"),
                &|| said.is(2, "group", "all have answered"),
                &|| said.is(2, "page", "page"),
            ]),
        ),
        Check::new(
            "one that has not answered that its peer is gone is adopted, and has the next one",
            all(&[&|| said.is(3, "names", "asks other"), &|| {
                said.is(3, "paused", "2")
            }]),
        ),
        Check::new(
            "a peer that ends with the supervisor is followed by another one",
            said.is(4, "names", "asks other echoes")
                .map(|()| String::new()),
        ),
        Check::new(
            "peers have another name and stay peers; a port ends with its instance",
            all(&[
                &|| said.is(5, "names", "asks other named"),
                &|| said.is(5, "younger", "0"),
                &|| said.is(5, "port", "1"),
            ]),
        ),
        Check::new(
            "a network that was removed does not come back, and everything is free",
            all(&[
                &|| {
                    let networks = said.get(6, "networks")?;
                    ensure!(!networks.contains("own"), "{networks}");
                    Ok(())
                },
                &|| said.all_free(&[5, 6]).map(drop),
                &|| {
                    ensure!(restarts == TIES_RESTARTS, "{restarts} restarts");
                    Ok(())
                },
            ]),
        ),
    ])
}

/// Faults of the supervisor's kernel, and what was left in memory before.
pub fn faults(setting: &Setting) -> Result<Vec<Check>> {
    let words = "supervisor_panic=restart supervisor_cpus=2 fault=adopt@6";
    let said = Said(run(setting, ("faults", 10), words, FAULTS)?);
    let restarts = said.0.matches(AGAIN).count();
    let ended_by = |step: u32, what: &str| -> Result<String> {
        ensure!(said.0.contains(what), "nobody says {what:?}");
        said.is(step, "kept", "whole").map(|()| String::new())
    };
    Ok(vec![
        Check::new(
            "what an instance and the supervisor left is nowhere to be found afterwards",
            (|| {
                said.is(0, "wrote", "written, and found by the kernel")?;
                said.is(0, "left", "left")?;
                said.is(1, "fresh", "no trace")?;
                said.is(1, "scan", "no trace")?;
                said.is(1, "kept", "whole").map(|()| String::new())
            })(),
        ),
        Check::new(
            "a supervisor that runs out of stack starts again, on its first CPU and on another one",
            ended_by(2, ": kernel stack overflow").and_then(|_| ended_by(5, "double fault")),
        ),
        Check::new(
            "one with a machine check that is fatal does",
            ended_by(3, "panic: machine check in the kernel"),
        ),
        Check::new(
            "one that reads where nothing is does, and only faults that end it are to be had",
            ended_by(4, "panic: page fault in the kernel").and_then(|what| {
                said.is(2, "refused", "1")?;
                Ok(what)
            }),
        ),
        Check::new(
            "one that panics while it starts again does so a second time, and everything is free",
            ended_by(7, "on purpose, before instances are adopted").and_then(|what| {
                ensure!(restarts == 7, "{restarts} starts");
                said.same((0, "before"), (7, "free"))?;
                Ok(what)
            }),
        ),
    ])
}

/// Panics under instances that have devices, whose transfers go on meanwhile.
pub fn devices(setting: &Setting) -> Result<Vec<Check>> {
    let words = "supervisor_panic=restart supervisor_cpus=2 fault=unreset pci.hide=01:00.0,02:00.0";
    let images = Directory::create()?;
    let disks = ["one", "two", "own"].map(|name| images.join(name));
    for disk in &disks {
        fs::write(disk, vec![0; 32 << 20])?;
    }
    let log = run_on(setting, ("devices", 10), words, DEVICES, |hardware| {
        for (bus, disk) in (1..).zip(&disks) {
            let id = format!("disk{bus}");
            devices::drive(hardware, &id, disk);
            devices::behind_port(hardware, bus, &format!("virtio-blk-pci,drive={id}"));
        }
    })?;
    let said = Said(log);
    let all = |results: &[&dyn Fn() -> Result<()>]| -> Result<String> {
        results.iter().try_for_each(|result| result())?;
        Ok(String::new())
    };
    Ok(vec![
        Check::new(
            "an instance keeps its disk, and writes and reads it without a fault meanwhile",
            all(&[
                &|| said.is(1, "devices", said.get(0, "devices")?),
                &|| said.is(1, "registers", said.get(0, "registers")?),
                &|| said.same((0, "resources"), (1, "resources")),
                &|| said.is(1, "writes", "whole"),
            ]),
        ),
        Check::new(
            "the supervisor has its own disk again, and gives an instance's to nobody",
            all(&[&|| said.is(1, "own", "mine"), &|| said.is(1, "taken", "1")]),
        ),
        Check::new(
            "a disk of one that has not run is reset, and the next one's",
            all(&[&|| said.is(2, "second", "whole"), &|| {
                said.is(2, "writes", "whole")
            }]),
        ),
        Check::new(
            "memory that a disk may still reach stays out of use over a panic, until it does not",
            all(&[&|| said.is(3, "waits", "0"), &|| {
                said.is(3, "names", "writes")
            }]),
        ),
        Check::new(
            "an instance with a disk ends in the middle of panics, and everything is free",
            all(&[
                &|| said.is(4, "more", "whole"),
                &|| said.is(5, "again", "whole"),
                &|| said.same((0, "before"), (5, "free")),
            ]),
        ),
        Check::new(
            "what was given while it ran stays over a panic, and can be taken back",
            all(&[
                &|| said.is(6, "added", "keeps"),
                &|| said.is(6, "written", "0"),
                &|| said.is(7, "read", "kept"),
                &|| said.is(7, "stuck", "1"),
                &|| said.is(7, "removed", "keeps"),
                &|| said.is(7, "added", "keeps"),
            ]),
        ),
        Check::new(
            "an instance whose devices were being changed ends, and everything is free",
            all(&[&|| said.same((0, "before"), (8, "free"))]),
        ),
    ])
}

/// Panics under instances whose disks an IOMMU confines, of either kind, and transfer meanwhile.
pub fn confined(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for (kind, name) in [(Iommu::Intel, "iommu-intel"), (Iommu::Amd, "iommu-amd")] {
        checks.extend(confined_by(setting, kind, name)?);
    }
    Ok(checks)
}

fn confined_by(setting: &Setting, kind: Iommu, name: &str) -> Result<Vec<Check>> {
    // Why those of AMD's are on bus 0, and none of their faults is counted: docs/iommu.md.
    let (one, two, notes) = match kind {
        Iommu::Intel => ("01:00.0", "02:00.0", ""),
        Iommu::Amd => ("00:04.0", "00:05.0", "return;"),
    };
    let script = (CONFINED.replace("@ONE@", one).replace("@TWO@", two)).replace("@NOTES@", notes);
    let words = format!("supervisor_panic=restart supervisor_cpus=2 pci.hide={one},{two}");
    let images = Directory::create()?;
    let memory = images.join("memory");
    let disks = ["one", "two", "own"].map(|name| images.join(name));
    let [one, two, own] = &disks;
    iommu::write_disk(two)?;
    for disk in [one, own] {
        fs::write(disk, vec![0; iommu::DISK])?;
    }
    let log = run_on(setting, (name, 15), &words, &script, |hardware| {
        hardware.iommu = Some(kind);
        iommu::keep_memory(hardware, &memory);
        for (bus, disk) in (1..).zip(&disks) {
            let id = format!("disk{bus}");
            devices::drive(hardware, &id, disk);
            let device = format!("nvme,serial={id},drive={id}");
            match kind {
                Iommu::Intel => devices::behind_port(hardware, bus, &device),
                Iommu::Amd => devices::on_bus_0(hardware, bus + 3, &device),
            }
        }
    })?;
    let said = Said(log);
    let all = |results: &[&dyn Fn() -> Result<()>]| -> Result<String> {
        results.iter().try_for_each(|result| result())?;
        Ok(String::new())
    };
    Ok(vec![
        Check::new(
            "instances keep their disks, confined as before, and transfer without a fault meanwhile",
            all(&[
                &|| said.is(2, "devices", said.get(1, "devices")?),
                &|| said.same((1, "resources"), (2, "resources")),
                &|| said.is(2, "writes", "whole"),
            ]),
        ),
        Check::new(
            "what a disk is refused is counted for who has it, and for nobody else",
            all(&[&|| said.is(2, "faults", "0")]),
        ),
        Check::new(
            "the supervisor has its own disk again, and gives an instance's to nobody",
            all(&[&|| said.is(2, "own", "mine"), &|| said.is(2, "taken", "1")]),
        ),
        Check::new(
            "memory comes to an instance that was taken over, and leaves it, and its disk reaches it",
            all(&[&|| said.is(2, "resized", "whole 0"), &|| {
                said.is(2, "next", "whole")
            }]),
        ),
        Check::new(
            "panics in the middle of a start, a change and an end: the others go on",
            all(&[
                &|| said.is(3, "writes", "whole"),
                &|| said.is(4, "names", "strays"),
                &|| said.is(4, "writes", "whole"),
                &|| said.is(5, "writes", "whole"),
            ]),
        ),
        Check::new(
            "everything is free at the end",
            said.same((0, "before"), (5, "free"))
                .map(|()| String::new()),
        ),
        Check::new(
            "the host finds what the disk sent nowhere in the machine's memory",
            iommu::find_none(&memory, 0..(iommu::DISK / iommu::PAGE) as u64),
        ),
    ])
}

/// A conversation of the host's with an instance: the number that was echoed last, and why it has
/// ended, if it has.
#[derive(Clone, Default)]
struct Talk(Arc<Mutex<(u64, Option<String>)>>);

impl Talk {
    /// Sends numbers, each when the one before has come back, until the connection ends.
    fn go_on(&self, stream: TcpStream) {
        let echo = || -> Result<()> {
            let mut writer = stream.try_clone()?;
            let mut lines = BufReader::new(stream).lines();
            for number in 1_u64.. {
                writeln!(writer, "{number}")?;
                let line = lines.next().context("the connection was closed")??;
                ensure!(line == number.to_string(), "{line} after {number} was sent");
                self.0.lock().unwrap().0 = number;
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        };
        let ended = echo().err().map(|error| format!("{error:#}"));
        self.0.lock().unwrap().1 = ended;
    }
}

/// Panics under instances that talk to the host, as clients from one port and as a server.
pub fn nat(setting: &Setting) -> Result<Vec<Check>> {
    let words = "supervisor_panic=restart supervisor_cpus=2";
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let init = NAT.replace("OUT", &listener.local_addr()?.port().to_string());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(|| Talk::default().go_on(stream));
        }
    });
    let forwarded = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let visit = Talk::default();
    let visitor = visit.clone();
    // QEMU takes a connection whether or not somebody is there behind it.
    thread::spawn(move || {
        for _ in 0..600 {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", forwarded)) {
                visitor.go_on(stream);
            }
            if visitor.0.lock().unwrap().0 > 0 {
                break;
            }
            thread::sleep(Duration::from_millis(500));
        }
    });
    let log = run_on(setting, ("nat", 10), words, &init, |hardware| {
        let user = format!("user,hostfwd=tcp:127.0.0.1:{forwarded}-:8080");
        hardware.networks.push(user.into());
    })?;
    let said = Said(log);
    let goes_on = |name: &str| {
        let whole = [1, 2].into_iter().map(|step| said.is(step, name, "whole"));
        whole.collect::<Result<()>>().map(|()| String::new())
    };
    Ok(vec![
        Check::new(
            "a connection of an instance with the world goes on through two panics",
            goes_on("one"),
        ),
        Check::new(
            "so does one from the same port, which another port stands for",
            goes_on("two"),
        ),
        Check::new(
            "a visitor of a published port stays, and everything is free at the end",
            goes_on("in").and_then(|_| {
                let (count, ended) = visit.0.lock().unwrap().clone();
                ensure!(count > 40, "{count} numbers, then {ended:?}");
                said.same((0, "before"), (2, "free"))?;
                Ok(format!("{count} numbers"))
            }),
        ),
    ])
}

/// Thirteen panics, each at another moment, and what a machine does that cannot go on.
pub fn restart(setting: &Setting) -> Result<Vec<Check>> {
    // As it is without a word of it.
    let words = "supervisor_panic= supervisor_cpus=2";
    let log = run(setting, ("steps", 10), words, INIT)?;
    let said = Said(log);
    let ok = |result: Result<()>| result.map(|()| String::new());
    let all = |results: &[&dyn Fn() -> Result<()>]| -> Result<String> {
        results.iter().try_for_each(|result| result())?;
        Ok(String::new())
    };
    let restarts = said.0.matches(AGAIN).count();
    Ok(vec![
        Check::new("the supervisor starts again after each panic", {
            let what = format!("{restarts} times");
            if restarts == 13 {
                Ok(what)
            } else {
                Err(anyhow::anyhow!(what))
            }
        }),
        Check::new(
            "instances keep names, CPUs and memory, and one of them counts on without a hole",
            all(&[
                &|| said.is(1, "names", said.get(0, "names")?),
                &|| said.same((0, "resources"), (1, "resources")),
                &|| said.is(1, "one", "whole"),
                &|| said.is(1, "two", "whole"),
                &|| {
                    let (last, first): (u64, u64) = (
                        said.get(0, "last")?.parse()?,
                        said.get(1, "first")?.parse()?,
                    );
                    ensure!(
                        first + 200 > last,
                        "after {last} the log begins with {first}"
                    );
                    Ok(())
                },
            ]),
        ),
        Check::new(
            "exec, stop and rename work on them; new instances have memory of their own, scrubbed",
            all(&[
                &|| said.is(1, "exec", "inside"),
                &|| said.is(1, "new", "no trace"),
                &|| said.is(1, "states", r#""state":"running" "state":"running""#),
                &|| {
                    // By itself or by force.
                    let states = said.get(1, "stopped")?;
                    let running = states.matches("running").count();
                    ensure!(
                        running == 1 && states.starts_with(r#""state":"r"#),
                        "{states}"
                    );
                    Ok(())
                },
            ]),
        ),
        Check::new(
            "a record of which one copy is damaged is adopted, by its new name and old number",
            all(&[
                &|| said.is(2, "names", "first"),
                &|| said.is(2, "numbers", r#""id":1"#),
                // What the kernel before this one has numbered is nobody else's.
                &|| said.is(2, "number", r#""id":4"#),
            ]),
        ),
        Check::new(
            "a panic in the middle of a start: who was not sent away is forgotten, who was comes up",
            all(&[
                &|| said.is(3, "names", "late"),
                &|| said.is(4, "names", "late begun"),
                &|| said.is(4, "cpus", "2"),
            ]),
        ),
        Check::new(
            "a panic in the middle of a change: the instance ends, and everything comes back",
            all(&[&|| said.is(5, "ended", "1")]).and_then(|_| said.all_free(&[5, 6])),
        ),
        Check::new(
            "what was added before is adopted, and can be taken away again",
            all(&[
                &|| said.is(7, "names", "changed"),
                &|| {
                    let resources = said.resources(7, "resources")?;
                    ensure!(resources.memory_in_use == 128 << 20, "{resources:?}");
                    Ok(())
                },
                &|| {
                    let resources = said.resources(7, "smaller")?;
                    ensure!(resources.memory_in_use == 64 << 20, "{resources:?}");
                    Ok(())
                },
            ]),
        ),
        Check::new(
            "a panic at each step of an end: everything comes back",
            said.all_free(&[8, 9, 10]),
        ),
        Check::new(
            "one that is paused stays so, and goes on when it is told; one that was not started is forgotten",
            all(&[&|| said.is(11, "names", "paused"), &|| {
                said.is(11, "one", "whole")
            }]),
        ),
        Check::new(
            "a program beside the first one is told that its tool is gone",
            ok(said.is(12, "told", "yes")),
        ),
        Check::new("at the end everything is free", said.all_free(&[2, 13])),
        Check::new(
            "a supervisor that does not come up again resets the machine, after three attempts",
            crashed(
                setting,
                "attempts",
                "supervisor_panic=restart fault=adopt",
                "echo c >/proc/sysrq-trigger",
            )
            .and_then(|log| {
                let attempts = log.matches(AGAIN).count();
                ensure!(attempts == 3, "{attempts} attempts");
                Ok(String::new())
            }),
        ),
        Check::new(
            "a record of which both copies are damaged resets the machine",
            crashed(
                setting,
                "lost",
                "supervisor_panic=restart",
                "echo lost record >/proc/skerry/crash-at",
            )
            .and_then(|log| {
                ensure!(
                    log.contains("does not prove itself"),
                    "it says nothing of that"
                );
                Ok(String::new())
            }),
        ),
        Check::new(
            "a supervisor that was not asked to resets the machine",
            crashed(
                setting,
                "refused",
                "supervisor_panic=reset",
                "echo c >/proc/sysrq-trigger",
            )
            .and_then(|log| {
                ensure!(!log.contains(AGAIN), "it starts again");
                Ok(String::new())
            }),
        ),
    ])
}

/// Log of a machine whose supervisor panics beside an instance, and which is reset then: QEMU ends
/// it there.
fn crashed(setting: &Setting, name: &str, words: &str, how: &str) -> Result<String> {
    let log = run(setting, (name, 5), words, &CRASH.replace("HOW", how))?;
    ensure!(log.contains("panic: "), "no panic:\n{log}");
    Ok(log)
}
