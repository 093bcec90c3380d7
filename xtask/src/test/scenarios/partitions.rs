//! Instances beside the supervisor: created, used, looked at, destroyed; and everything comes back.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};

use super::json::{self, part};
use super::{pause, resize};
use crate::build;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect::Accepted, Judge, Step};
use crate::test::host_requests::HostRequests;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Machine};

const LIFE: &str = include_str!("../../../../tests/cases/life.cases");
const EXACT: &str = include_str!("../../../../tests/cases/exact.cases");
const RESTART: &str = include_str!("../../../../tests/cases/restart.cases");
const APPLY: &str = include_str!("../../../../tests/cases/apply.cases");
const AUTOSCALE: &str = include_str!("../../../../tests/cases/autoscale.cases");
const EXEC: &str = include_str!("../../../../tests/cases/exec.cases");
const CHURN: &str = include_str!("../../../../tests/cases/churn.cases");
const FAULTS: &str = include_str!("../../../../tests/cases/faults.cases");
const ENDS: &str = include_str!("../../../../tests/cases/ends.cases");
const MESSAGES: &str = include_str!("../../../../tests/cases/messages.cases");
const GROUPS: &str = include_str!("../../../../tests/cases/groups.cases");
const HOSTILE_PEER: &str = include_str!("../../../../tests/cases/hostile_peer.cases");
const RESERVE: &str = include_str!("../../../../tests/cases/reserve.cases");
const FOUR: &str = include_str!("../../../../tests/cases/four.cases");

/// A machine of `cpus` processors with the test program in it.
fn machine(setting: &Setting, name: &str, cpus: u32, seconds: u64) -> Result<Machine> {
    let mut machine = setting.machine(name);
    machine.hardware.cpus = cpus;
    machine.timeout = Some(Duration::from_secs(seconds));
    let program = build::test_programs()?.program("machine-tests");
    machine.additions.push(Addition {
        host: program,
        guest: "/bin/machine-tests".into(),
    });
    Ok(machine)
}

/// The life of an instance, as a user of the tool sees it.
pub fn life(setting: &Setting) -> Result<Vec<Check>> {
    let mut steps = batch::steps(
        LIFE,
        &[
            ("a megabyte comes out whole", same_lines),
            ("ls and inspect show a running instance", shown),
            (
                "too many processors: nothing changes, and the message says what would help",
                |printed| {
                    let message = refused(printed)?;
                    ensure!(
                        message.contains("asked for 100") && message.contains("CPU"),
                        "{message}"
                    );
                    Ok(message)
                },
            ),
            (
                "too much memory: nothing changes, and the message says what would help",
                |printed| {
                    let message = refused(printed)?;
                    ensure!(message.to_lowercase().contains("memory"), "{message}");
                    Ok(message)
                },
            ),
            (
                "a killed tool leaves what ls explains and rm clears",
                cleared,
            ),
            (
                "thirty busy programs get the CPU a few times while an instance is made and ended",
                outranked,
            ),
            (
                "thirty busy programs of an ordinary user get the CPU a few times while `skerry ls` answers",
                answered,
            ),
            (
                "a real-time loop of root leaves management a quarter of the processor, and `skerry ls` answers",
                throttled,
            ),
            (
                "a flood of output leaves a busy program its share of the processor",
                flooded,
            ),
            (
                "an instance that rings for ever is heard at most each 200 µs",
                heard,
            ),
        ],
    )?;
    let free =
        "what is created and removed again, or not created after all, leaves everything free";
    let slow = "two megabytes arrive whole at a reader who begins when nothing more has room";
    let exact = batch::steps(EXACT, &[(free, all_free), (slow, same_lines)])?;
    steps.extend(exact.into_iter().map(|step| step.limit(240)));
    steps.extend(resize::steps()?);
    steps.extend(pause::steps()?);
    for cases in [EXEC, RESTART, APPLY, AUTOSCALE] {
        let more = batch::steps(cases, &[])?;
        steps.extend(more.into_iter().map(|step| step.limit(120)));
    }
    batch::run(machine(setting, "life", 4, 1500)?, &steps)
}

/// The instance that runs is in the list, and is described by itself.
fn shown(printed: &str) -> Result<String> {
    let entry = json::instance(part(printed, "ls")?, "shown")?;
    ensure!(
        entry["state"] == "running" && entry["cpus"] == 2 && entry["memory"] == 128 << 20,
        "{entry}"
    );
    ensure!(entry["mode"] == "cooperative", "{entry}");
    let inspected = json::parse(part(printed, "inspect")?)?;
    ensure!(
        inspected["name"] == "shown" && inspected["state"] == "running",
        "{inspected}"
    );
    Ok(String::new())
}

/// The message to a request that changed nothing.
fn refused(printed: &str) -> Result<String> {
    unchanged(printed)?;
    Ok(part(printed, "message")?.to_owned())
}

/// The instance whose tool was killed was in the list, and left nothing when it was removed.
fn cleared(printed: &str) -> Result<String> {
    json::instance(part(printed, "ls")?, "orphan")?;
    ensure!(
        part(printed, "after")? == "[]",
        "it is still there: {printed}"
    );
    let resources = json::resources(part(printed, "resources")?)?;
    ensure!(
        resources.cpus_free + 1 == resources.cpus_total && resources.cpus_lost == 0,
        "{resources:?}"
    );
    Ok(String::new())
}

/// Numbers on a line of a part.
fn numbers(printed: &str, name: &str) -> Result<Vec<u64>> {
    let words = part(printed, name)?.split_whitespace();
    Ok(words.map(str::parse).collect::<Result<_, _>>()?)
}

/// Switches of the supervisor's processor while an instance was made and ended beside busy
/// programs. Were it done when each of the thirty has had its turn, every wait would be thirty of
/// them, and it waits some fifty times. While it waits for the instance they take turns, the more
/// the later the host is: 727 once.
fn outranked(printed: &str) -> Result<String> {
    fewer_switches(printed, 1_000)
}

/// Switches of the supervisor's processor while the tool answered ten times beside busy programs of
/// an ordinary user: some 30, as each of its waits may give one of them a turn. Where its shell was
/// a program among them it was 359.
fn answered(printed: &str) -> Result<String> {
    fewer_switches(printed, 200)
}

/// Checks that there were fewer than `limit` switches between the two counts that are printed.
fn fewer_switches(printed: &str, limit: u64) -> Result<String> {
    let (before, after) = (numbers(printed, "before")?, numbers(printed, "after")?);
    let switches = after[0] - before[0];
    ensure!(switches < limit, "{switches} switches");
    Ok(format!("{switches} switches"))
}

/// The real-time program had the processor but for a quarter of it, more than the twentieth that
/// Linux's limit leaves; so management was served, which the script waits for. A host that is late
/// takes time from whoever has the processor, so the program may have had less.
fn throttled(printed: &str) -> Result<String> {
    let (before, after) = (numbers(printed, "before")?, numbers(printed, "after")?);
    let [elapsed, used] = [0, 1].map(|i| after[i] - before[i]);
    let share = used * 100 / elapsed.max(1);
    ensure!(
        (40..=85).contains(&share),
        "the real-time program had {share}% of the processor"
    );
    let served = numbers(printed, "served")?[0];
    Ok(format!(
        "the real-time program had {share}%; {served} answers in {elapsed} hundredths of a second"
    ))
}

/// Doorbells were masked for 200 µs after each.
fn heard(printed: &str) -> Result<String> {
    let (before, after) = (numbers(printed, "before")?, numbers(printed, "after")?);
    let [elapsed, doorbells] = [0, 1].map(|i| after[i] - before[i]);
    // The clock is read in hundredths.
    let most = (elapsed + 1) * 50;
    let said = format!("{doorbells} doorbells in {elapsed} hundredths of a second");
    ensure!(doorbells <= most, "{said}");
    Ok(said)
}

/// The busy program had its share beside the flood.
fn flooded(printed: &str) -> Result<String> {
    let (before, after) = (numbers(printed, "before")?, numbers(printed, "after")?);
    let [elapsed, used] = [0, 1].map(|i| after[i] - before[i]);
    let share = used * 100 / elapsed.max(1);
    ensure!(
        share >= 40,
        "the busy program had {share}% of the processor"
    );
    Ok(format!("the busy program had {share}%"))
}

/// Every request had the result it should have, and nothing is left of any.
fn all_free(printed: &str) -> Result<String> {
    unchanged(printed)?;
    ensure!(
        !printed.contains("failed") && !printed.contains("it fits"),
        "a request had another result"
    );
    Ok(String::new())
}

fn unchanged(printed: &str) -> Result<()> {
    let (before, after) = (
        json::resources(part(printed, "before")?)?,
        json::resources(part(printed, "after")?)?,
    );
    ensure!(
        before.is_as(&after) && part(printed, "ls")? == "[]",
        "{before:?} became {after:?}"
    );
    Ok(())
}

fn same_lines(printed: &str) -> Result<String> {
    let mut lines = printed.lines().map(|line| line.split_whitespace().next());
    let first = lines.next().context("nothing was printed")?;
    ensure!(lines.all(|line| line == first), "the lines differ");
    Ok(String::new())
}

/// Work whose result is known, over and over, by a neighbour of whatever else happens.
const NEIGHBOUR: &str = r#"
skerry run -d --name neighbour --cpus 1 --mem 96M -- sh -c '
    want=$(seq 1 3000 | sha256sum)
    n=0
    while [ ! -e /tmp/stop ]; do
        got=$(seq 1 3000 | sha256sum)
        [ "$got" = "$want" ] || { echo wrong after $n; exit 1; }
        n=$((n + 1))
        echo round $n done
    done' >/dev/null
# The last of the lines that are whole; 0 before the first.
rounds() { skerry logs neighbour | awk '$3 == "done" {n = $2} END {print n + 0}'; }
until [ $(rounds) -gt 0 ]; do sleep 0.1; done
before=$(rounds)
"#;

/// Runs `$victim`. If it says that it is going to hang, its tool is ended when the neighbour has
/// done fifty rounds more.
const VICTIM: &str = r#"
skerry run --name victim --cpus 1 --mem 64M -- sh -c "$victim" >out 2>&1 &
tool=$!
while [ -e /proc/$tool/exe ] && ! grep -q now out; do sleep 0.1; done
if grep -q now out; then
    begin=$(rounds)
    until [ $(rounds) -ge $((begin + 50)) ]; do sleep 0.1; done
    kill -KILL $tool
fi
wait $tool
cat out
"#;

/// Script after the fault: the neighbour has gone on, the supervisor works, everything but the
/// neighbour's is back.
const AFTERWARDS: &str = r#"
until [ $(rounds) -gt $before ]; do sleep 0.1; done
after=$(rounds)
echo "== rounds"; echo "$before $after"
skerry logs neighbour | grep -c wrong
skerry stop --force victim >/dev/null 2>&1
echo "== ls"; skerry ls --json
echo "== inspected"; skerry inspect victim --json
echo "== log"; skerry logs --kernel victim 2>&1 | tail -n 40
skerry rm --force victim >/dev/null
echo "== again"; skerry run --cpus 1 --mem 64M -- echo works
skerry rm --force neighbour >/dev/null
echo "== resources"; skerry resources --json
"#;

/// A fault in one instance is a fault in no other.
pub fn faults(setting: &Setting) -> Result<Vec<Check>> {
    let fault = |what: &str, command: &str, check: fn(&str) -> Result<String>| {
        let script = format!("{NEIGHBOUR}\nvictim='{command}'\n{VICTIM}\n{AFTERWARDS}");
        Step::new(what, script, Accepted(check)).limit(90)
    };
    let mut steps = vec![
        fault(
            "an instance panics: its neighbour and the supervisor go on",
            "echo last words; echo panic > /proc/skerry/fault; sleep 100",
            |printed| {
                contained(printed, "panicked")?;
                ensure!(
                    part(printed, "log")?.contains("panic"),
                    "the log does not tell of the panic"
                );
                went_on(printed)
            },
        ),
        fault(
            "an instance follows a wild pointer in its kernel, and ends as late as it was told",
            "echo 1 > /proc/sys/kernel/panic; echo wild > /proc/skerry/fault; sleep 100",
            |printed| {
                contained(printed, "panicked")?;
                ensure!(
                    part(printed, "log")?.contains("waiting for 1 seconds"),
                    "the log does not tell of the wait"
                );
                went_on(printed)
            },
        ),
        fault(
            "an instance runs with interrupts off for ever, and is stopped by force",
            "echo now; echo hang > /proc/skerry/fault & sleep 100",
            |printed| {
                contained(printed, "")?;
                went_on(printed)
            },
        ),
        fault(
            "an instance is deaf to NMIs too: its processor is reset, and used again",
            "echo now; echo deaf > /proc/skerry/fault & sleep 100",
            |printed| {
                contained(printed, "")?;
                let victim =
                    serde_json::from_str::<serde_json::Value>(part(printed, "inspected")?)?;
                ensure!(
                    victim["reclaim"]["reset_cpus"] == 1,
                    "no processor was reset: {}",
                    victim["reclaim"]
                );
                went_on(printed)
            },
        ),
        fault("an instance just ends", "exit 3", |printed| {
            contained(printed, "exited")?;
            went_on(printed)
        }),
        fault(
            "an instance uses up its memory",
            "dd if=/dev/zero of=/tmp/big bs=1048576 count=500; echo still here",
            |printed| {
                contained(printed, "")?;
                went_on(printed)
            },
        ),
    ];
    steps.push(fault(
        "an instance leaves interrupts waiting: the next one on its processor does not get them",
        "echo last words; echo pending > /proc/skerry/fault; sleep 100",
        |printed| {
            contained(printed, "panicked")?;
            went_on(printed)
        },
    ));
    let more = batch::steps(FAULTS, &[])?;
    steps.extend(more.into_iter().map(|step| step.limit(120)));
    let mut machine = machine(setting, "faults", 4, 800)?;
    let mut requests = HostRequests::new(&mut machine)?;
    batch::run_beside(machine, &steps, &mut requests)
}

/// The victim is in `state` (any if empty), and after its removal everything is free.
fn contained(printed: &str, state: &str) -> Result<()> {
    let victim = json::instance(part(printed, "ls")?, "victim")?;
    ensure!(
        state.is_empty() || victim["state"] == state,
        "the victim is {}",
        victim["state"]
    );
    let neighbour = json::instance(part(printed, "ls")?, "neighbour")?;
    ensure!(
        neighbour["state"] == "running",
        "the neighbour is {}",
        neighbour["state"]
    );
    ensure!(
        part(printed, "again")? == "works",
        "the next instance did not work"
    );
    let resources = json::resources(part(printed, "resources")?)?;
    ensure!(
        resources.cpus_free + 1 == resources.cpus_total,
        "processors did not come back: {resources:?}"
    );
    ensure!(
        resources.cpus_lost == 0 && resources.memory_leaked == 0,
        "something is lost: {resources:?}"
    );
    Ok(())
}

/// The neighbour's rounds went on all along, and all were right.
fn went_on(printed: &str) -> Result<String> {
    let mut lines = part(printed, "rounds")?.lines();
    let rounds: Vec<u64> = lines
        .next()
        .context("no rounds")?
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    ensure!(
        lines.next() == Some("0"),
        "the neighbour computed something wrong"
    );
    ensure!(
        rounds.len() == 2 && rounds[1] > rounds[0],
        "the neighbour stood still: {rounds:?}"
    );
    Ok(format!(
        "the neighbour went from round {} to {}",
        rounds[0], rounds[1]
    ))
}

/// Many instances in a row, and their memory.
pub fn churn(setting: &Setting) -> Result<Vec<Check>> {
    let judge: Judge = |printed| {
        unchanged(printed)?;
        ensure!(!printed.contains("another status"), "a status was wrong");
        Ok(String::new())
    };
    let name = "20 instances in a row, and all processors and memory are back";
    let steps = batch::steps(CHURN, &[(name, judge)])?;
    let mut steps = batch::limit(steps, &[240, 120])?;
    steps.extend(ends(24, 240)?);
    let mut machine = machine(setting, "churn", 4, 660)?;
    let mut requests = HostRequests::new(&mut machine)?;
    let mut checks = batch::run_beside(machine, &steps, &mut requests)?;
    checks.push(Check::new(
        "what an instance had when its supervisor panicked, none has after the reset",
        after_reset(setting),
    ));
    Ok(checks)
}

/// First process of a machine that is reset while an instance runs. It knows the second start by
/// the error that was the end of the first: a bank of the processor still holds it.
const RESET: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /tmp /sbin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
if grep -q '^uncorrected 0' /proc/skerry/machine_checks; then
    skerry run -d --name w --cpus 1 --mem 400M -- sh -c 'machine-tests canary write; sleep 1000'
    skerry logs -f w >/dev/console
else
    skerry run --cpus 1 --mem 700M -- machine-tests canary scan >/dev/console
    poweroff -f
fi
"#;

/// Boots, has an instance fill its memory with a pattern, ends the supervisor with a machine check,
/// and looks for the pattern after the reset.
fn after_reset(setting: &Setting) -> Result<String> {
    const WRITTEN: &str = "written, and found by the kernel";
    let mut machine = machine(setting, "reset", 2, 180)?;
    machine.hardware.memory = "1G".into();
    let requests = HostRequests::new(&mut machine)?;
    let extra = &mut machine.hardware.extra;
    extra.extend(["-action", "reboot=reset"].map(Into::into));
    let directory = Directory::create()?;
    let init = directory.join("init");
    fs::write(&init, RESET)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let (tools, programs) = (build::tools()?, build::test_programs()?);
    fs::write(&machine.log, "")?;
    let over = AtomicBool::new(false);
    let log = thread::scope(|scope| {
        let ending = scope.spawn(|| {
            while !fs::read_to_string(&machine.log)?.contains(WRITTEN) {
                ensure!(!over.load(Ordering::Relaxed), "nothing was written");
                thread::sleep(Duration::from_millis(100));
            }
            // Its context is corrupt: whoever runs cannot go on.
            requests.monitor("mce 0 5 0xb200000000000000 0x5 0x0 0x0")
        });
        let log = machine.run_without_agent(&init, |archive| {
            archive.host(Path::new("/bin/busybox"), "/bin/busybox")?;
            archive.host(&tools.program("skerry"), "/bin/skerry")?;
            archive.host(&programs.program("machine-tests"), "/bin/machine-tests")
        });
        over.store(true, Ordering::Relaxed);
        let ended = ending.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        log
    })?;
    ensure!(
        log.contains("panic: machine check"),
        "it did not panic: {log}"
    );
    ensure!(log.contains("no trace"), "it was found: {log}");
    Ok(String::new())
}

/// The steps in which processors stand still, with so many ends.
fn ends(count: u32, seconds: u32) -> Result<Vec<Step>> {
    let judge: Judge = |printed| {
        unchanged(printed)?;
        ensure!(!printed.contains("instead of"), "a status was wrong");
        let hung = part(printed, "hung")?;
        ensure!(hung == "end", "these work, and were found to hang: {hung}");
        Ok(String::new())
    };
    let still =
        "a processor that stands still is in quarantine with its instance's memory, and comes back";
    let many = "instances end while the host lets processors stand still";
    let steps = batch::steps(ENDS, &[(still, quarantined), (many, judge)])?;
    let with_numbers = |step: Step| {
        let script = format!("ends={count} seed={count}\n{}", step.script);
        Step { script, ..step }.limit(seconds)
    };
    Ok(steps.into_iter().map(with_numbers).collect())
}

/// The processor that stood still was kept from everybody, and is back.
fn quarantined(printed: &str) -> Result<String> {
    unchanged(printed)?;
    let during = json::parse(part(printed, "during")?)?;
    let (cpus, memory) = (&during["cpus"], &during["memory"]);
    ensure!(
        cpus["quarantined"] == 1 && cpus["free"] == 2 && memory["quarantined"] == 64 << 20,
        "{during}"
    );
    let reclaim = &json::parse(part(printed, "inspected")?)?["reclaim"];
    ensure!(
        reclaim["lost_cpus"] == 1 && reclaim["leaked_bytes"] == 64 << 20,
        "{reclaim}"
    );
    let health: Vec<_> = part(printed, "health")?.lines().collect();
    ensure!(
        matches!(
            health[..],
            [
                "(still): CPU 0 does not answer: its host may have stopped it",
                "(still) goes on"
            ]
        ),
        "{health:?}"
    );
    ensure!(
        part(printed, "meanwhile")? == "two work" && part(printed, "again")? == "three work",
        "an instance did not work"
    );
    Ok(String::new())
}

/// Ten thousand ends while processors stand still.
pub fn long_ends(setting: &Setting) -> Result<Vec<Check>> {
    const SECONDS: u32 = 6 * 3600;
    let mut machine = machine(setting, "ends", 4, u64::from(SECONDS) + 60)?;
    let mut requests = HostRequests::new(&mut machine)?;
    batch::run_beside(machine, &ends(10_002, SECONDS)?, &mut requests)
}

/// The supervisor of a small machine has enough left for itself, whatever is asked of it.
pub fn reserve(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = machine(setting, "reserve", 2, 300)?;
    machine.hardware.memory = "160M".into();
    let steps = batch::steps(RESERVE, &[])?;
    let steps: Vec<_> = steps.into_iter().map(|step| step.limit(120)).collect();
    batch::run(machine, &steps)
}

/// Messages between instances, two and whole groups: exchanged, flooded, with ends on all sides.
pub fn messages(setting: &Setting) -> Result<Vec<Check>> {
    let mut steps = batch::steps(MESSAGES, &[])?;
    steps.extend(batch::steps(GROUPS, &[])?);
    let steps: Vec<_> = steps.into_iter().map(|step| step.limit(90)).collect();
    batch::run(machine(setting, "messages", 5, 900)?, &steps)
}

/// A peer that is hostile for a minute. Its victim's CPU time is that of its own accounting: what
/// its threads have had, its kernel's among them. The handlers that begin them, of some hundred
/// instructions each, count for the idle time that they end.
pub fn long_messages(setting: &Setting) -> Result<Vec<Check>> {
    let judge: Judge = |printed| {
        let usage =
            |name| Ok::<_, anyhow::Error>(json::parse(part(printed, name)?)?["usage"].clone());
        let (before, after) = (usage("before")?, usage("after")?);
        let passed = |field: &str| {
            let of = |usage: &serde_json::Value| usage[field].as_f64().context("no time");
            Ok::<_, anyhow::Error>(of(&after)? - of(&before)?)
        };
        let busy = passed("user_us")? + passed("system_us")?;
        let whole = busy + passed("idle_us")?;
        let part_of = busy / whole * 100.0;
        ensure!(whole > 30e6, "only {whole} us have passed");
        ensure!(part_of < 1.0, "{part_of:.2}% of a CPU");
        let after = json::parse(part(printed, "after")?)?;
        let peers = after["peers"].as_array().context("no peers")?;
        let received: u64 = peers
            .iter()
            .filter_map(|peer| peer["received"].as_u64())
            .sum();
        ensure!(peers.len() == 2 && received == 0, "{after}");
        let rung = json::parse(part(printed, "other")?)?["peers"][0]["doorbells"].clone();
        let rung = rung.as_u64().context("no doorbells")?;
        ensure!(rung > 10_000, "only {rung} doorbells");
        ensure!(part(printed, "status")? == "0", "{printed}");
        let logs = part(printed, "logs")?;
        ensure!(logs == "1 ends\nchecked\nready\nready\nreset", "{logs}");
        Ok(format!("{part_of:.2}% of a CPU, {rung} doorbells"))
    };
    let name = "a kernel that writes random words and rings for a minute costs its peer no wrong \
                message, and less than a hundredth of a CPU";
    let steps = batch::steps(HOSTILE_PEER, &[(name, judge)])?;
    let steps: Vec<_> = steps.into_iter().map(|step| step.limit(200)).collect();
    batch::run(machine(setting, "long-messages", 3, 300)?, &steps)
}

/// Four instances at once.
pub fn four(setting: &Setting) -> Result<Vec<Check>> {
    let judge: Judge = |printed| {
        let during = json::resources(part(printed, "resources")?)?;
        ensure!(
            during.cpus_free == 0,
            "{} processors are free while four instances have seven",
            during.cpus_free
        );
        let want = part(printed, "want")?;
        for n in 1..=4 {
            let name = format!("i{n}");
            ensure!(
                json::instance(part(printed, "ls")?, &name)?["state"] == "running",
                "{name} does not run"
            );
            let out = part(printed, &format!("out{n}"))?;
            ensure!(
                out == format!("{want}\n{}", n * 100),
                "{name} printed {out:?}"
            );
        }
        let end = json::resources(part(printed, "end")?)?;
        ensure!(
            end.cpus_free == 7 && end.cpus_lost == 0,
            "afterwards: {end:?}"
        );
        Ok(String::new())
    };
    let steps = batch::steps(FOUR, &[("four instances at once on 8 processors", judge)])?;
    let steps: Vec<_> = steps.into_iter().map(|step| step.limit(120)).collect();
    batch::run(machine(setting, "four", 8, 200)?, &steps)
}
