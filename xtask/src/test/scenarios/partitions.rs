//! Instances beside the supervisor: created, used, looked at, destroyed; and everything comes back.

use std::time::Duration;

use Expect::{Accepted, Text};
use anyhow::{Context, Result, ensure};

use super::json::{self, part};
use crate::build;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Machine};

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
    let mut steps: Vec<_> = [
        ("run gives the program's output", "skerry run -- echo hello from inside", "hello from inside"),
        ("run gives its exit status", "skerry run -- sh -c 'exit 42'; echo $?", "42"),
        ("run gives the status of a killed program", "skerry run --name k -- sh -c 'echo ready; exec sleep 100' >out & until grep -qs ready out; do sleep 0.1; done; skerry kill k >/dev/null; wait $!; echo $?", "137"),
        ("standard input goes in and its end too", "seq 1 5000 | skerry run -- sh -c 'wc -l; echo done'", "5000\ndone"),
        ("standard error stays apart", "skerry run -- sh -c 'echo out; echo err >&2' 2>/dev/null; skerry run -- sh -c 'echo out; echo err >&2' 2>&1 >/dev/null", "out\nerr"),
        ("a megabyte comes out whole", "skerry run -- sh -c 'seq 1 160000' | md5sum; seq 1 160000 | md5sum | sed s/-//", ""),
        ("--env, and the arguments as they are", "skerry run --env GREETING='a  b' -- sh -c 'echo \"$GREETING|$1|$2\"' x 'c  d' ''", "a  b|c  d|"),
        ("--cpus gives that many processors", "skerry run --cpus 2 -- grep -c ^processor /proc/cpuinfo; skerry run --cpus 1 -- grep -c ^processor /proc/cpuinfo", "2\n1"),
        ("the instance has processes of its own", "skerry run -- sh -c 'ps -o pid,comm | grep -c vmagent; [ -e /dev/skerry ] || echo no supervisor device'", "0\nno supervisor device"),
        ("--rootfs is all there is", "mkdir -p r/bin r/dir; cp /bin/busybox r/bin/; ln -s busybox r/bin/sh; echo seen > r/dir/file; skerry run --rootfs r -- /bin/sh -c '/bin/busybox cat /dir/file; /bin/busybox ls /bin'; tar cf r.tar -C r .; skerry run --rootfs r.tar -- /bin/busybox cat /dir/file", "seen\nbusybox\nsh\nseen"),
        ("a program that is not there", "skerry run -- /no/such/program 2>/dev/null; echo $?", "127"),
        ("create and start are two steps", "skerry create --name two --cpus 1 -- echo two steps >/dev/null; skerry ls | grep -c two; skerry start two >/dev/null; skerry wait two; skerry logs two; skerry rm two >/dev/null; skerry ls | grep -c two || :", "1\n0\ntwo steps\n0"),
        ("logs -f follows until the end", "skerry run -d --name f -- sh -c 'for i in 1 2 3; do echo $i; sleep 1; done' >/dev/null; skerry logs -f f; skerry rm f >/dev/null", "1\n2\n3"),
        ("attach connects to a running one", "skerry run -d --name a -- sh -c 'read line; echo got $line' >/dev/null; echo word | skerry attach a; skerry rm --force a >/dev/null 2>&1 || :", "got word"),
        ("stop asks, and the program may answer", "skerry run -d --name s -- sh -c 'trap \"echo asked; exit 9\" TERM; echo ready; while :; do sleep 1; done' >/dev/null; until skerry logs s | grep -q ready; do sleep 0.1; done; skerry stop s >/dev/null; skerry logs s; skerry rm s >/dev/null", "ready\nasked"),
        ("stop ends a program that does not answer", "skerry run -d --name deaf -- sh -c 'trap \"\" TERM; echo ready; while :; do sleep 1; done' >/dev/null; until skerry logs deaf | grep -q ready; do sleep 0.1; done; skerry stop --time 1 deaf >/dev/null; skerry wait deaf; skerry rm deaf >/dev/null", "137"),
        ("Ctrl-C reaches the program", "skerry run --name c -- sh -c 'trap \"exit 7\" INT; echo ready; while :; do sleep 1; done' >out & until grep -qs ready out; do sleep 0.1; done; kill -INT $!; wait $!; echo $?", "7"),
        ("--rm leaves nothing behind", "skerry run --rm --name gone -- true; skerry ls | grep -c gone || :", "0"),
    ]
    .into_iter()
    .map(|(what, script, text)| Step::new(what, script, if text.is_empty() { Accepted(same_lines) } else { Text(text) }))
    .collect();
    // What follows looks at the list of instances: it begins empty.
    steps.push(Step::new(
        "prune forgets all that have ended",
        "skerry prune >/dev/null; skerry ls --json",
        Text("[]"),
    ));
    steps.push(Step::new("ls and inspect show a running instance", "skerry run -d --name shown --cpus 2 --mem 128M -- sleep 100 >/dev/null; echo '== ls'; skerry ls --json; echo '== inspect'; skerry inspect shown --json; skerry stop --force shown >/dev/null; skerry rm shown >/dev/null", Accepted(|printed| {
        let entry = json::instance(part(printed, "ls")?, "shown")?;
        ensure!(entry["state"] == "running" && entry["cpus"] == 2 && entry["memory"] == 128 << 20, "{entry}");
        ensure!(entry["mode"] == "cooperative", "{entry}");
        let inspected = json::parse(part(printed, "inspect")?)?;
        ensure!(inspected["name"] == "shown" && inspected["state"] == "running", "{inspected}");
        Ok(String::new())
    })));
    steps.push(Step::new(
        "too many processors: nothing changes, and the message says what would help",
        shortage("--cpus 100"),
        Accepted(|printed| {
            unchanged(printed)?;
            let message = part(printed, "message")?;
            ensure!(
                message.contains("asked for 100") && message.contains("CPU"),
                "{message}"
            );
            Ok(message.to_owned())
        }),
    ));
    steps.push(Step::new(
        "too much memory: nothing changes, and the message says what would help",
        shortage("--mem 64G"),
        Accepted(|printed| {
            unchanged(printed)?;
            let message = part(printed, "message")?;
            ensure!(message.to_lowercase().contains("memory"), "{message}");
            Ok(message.to_owned())
        }),
    ));
    steps.push(Step::new("a taken name is refused", "skerry run -d --name one -- sleep 50 >/dev/null; skerry run --name one -- true 2>&1 | grep -c one; skerry stop --force one >/dev/null; skerry rm one >/dev/null", Text("1")));
    steps.push(Step::new("a killed tool leaves what ls explains and rm clears", "skerry prune >/dev/null; skerry run --name orphan -- sh -c 'echo ready; exec sleep 1000' >out & until grep -qs ready out; do sleep 0.1; done; kill -9 $!; wait $! 2>/dev/null; echo '== ls'; skerry ls --json; echo '== after'; skerry rm --force orphan >/dev/null; skerry ls --json; echo '== resources'; skerry resources --json", Accepted(|printed| {
        json::instance(part(printed, "ls")?, "orphan")?;
        ensure!(part(printed, "after")? == "[]", "it is still there: {printed}");
        let resources = json::resources(part(printed, "resources")?)?;
        ensure!(resources.cpus_free + 1 == resources.cpus_total && resources.cpus_lost == 0, "{resources:?}");
        Ok(String::new())
    })));
    steps.push(Step::new(
        "8 MiB are enough for `busybox true`",
        "mkdir -p r/bin; cp /bin/busybox r/bin/; skerry run --mem 8M --rootfs r -- /bin/busybox true; echo $?",
        Text("0"),
    ));
    steps.extend(exact());
    batch::run(machine(setting, "life", 4, 900)?, &steps)
}

/// Statuses, output and resources, to the last.
fn exact() -> [Step; 4] {
    [
        Step::new(
            "what is created and removed again, or not created after all, leaves everything free",
            r#"
skerry prune >/dev/null; mkdir -p r/bin; cp /bin/busybox r/bin/; dd if=/dev/zero of=large bs=1M count=16 2>/dev/null
echo '== before'; skerry resources --json
for i in $(seq 1 12); do
    skerry create --name again --cpus 2 --mem 64M --rootfs r -- /bin/busybox true >/dev/null && skerry rm again >/dev/null || echo failed
    ln large r/large
    skerry create --name large --cpus 2 --mem 16M --rootfs r -- /bin/busybox true >/dev/null 2>&1 && echo 'it fits'
    rm r/large
done
echo '== after'; skerry resources --json; echo '== ls'; skerry ls --json"#,
            Accepted(|printed| {
                unchanged(printed)?;
                ensure!(!printed.contains("failed") && !printed.contains("it fits"), "a request had another result");
                Ok(String::new())
            }),
        )
        .limit(240),
        Step::new(
            "two megabytes arrive whole at a reader who begins when nothing more has room",
            r#"
mkfifo pipe
skerry run --name slow -- seq 1 300000 >pipe &
exec 3<pipe
until [ $(skerry logs slow 2>/dev/null | wc -c) -ge 262144 ]; do usleep 10000; done
{ for i in $(seq 1 40); do dd bs=100 count=1 2>/dev/null; done; cat; } <&3 | md5sum
wait; skerry rm slow >/dev/null
seq 1 300000 | md5sum"#,
            Accepted(same_lines),
        )
        .limit(240),
        Step::new(
            "run, wait and inspect tell the same status",
            r#"
mkdir -p r/bin; cp /bin/busybox r/bin/; ln -s busybox r/bin/sh
for code in 0 1 42 127 128 200 255; do
    skerry run --name s --rootfs r -- sh -c "exit $code"; run=$?
    said="$run $(skerry wait s) $(skerry inspect --json s | grep exit_code | tr -dc 0-9)"
    [ "$said" = "$code $code $code" ] || echo "$code: $said"
    skerry rm s >/dev/null
done
echo all"#,
            Text("all"),
        )
        .limit(240),
        Step::new(
            "a signal that ends the program is 128 and its number",
            r#"
mkdir -p r/bin; cp /bin/busybox r/bin/; ln -s busybox r/bin/sh
for signal in 1 2 9 12 15 64; do
    skerry run -d --name s --rootfs r -- sh -c 'echo ready; exec busybox sleep 1000' >/dev/null
    until skerry logs s | grep -q ready; do usleep 10000; done
    skerry kill -s $signal s >/dev/null
    said="$(skerry wait s) $(skerry inspect --json s | grep exit_code | tr -dc 0-9)"
    [ "$said" = "$((128 + signal)) $((128 + signal))" ] || echo "$signal: $said"
    skerry rm s >/dev/null
done
echo all"#,
            Text("all"),
        )
        .limit(240),
    ]
}

/// A script that asks for too much and shows what is there before and after.
fn shortage(option: &str) -> String {
    format!(
        "echo '== before'; skerry resources --json; echo '== message'; skerry run {option} -- true 2>&1; echo '== after'; skerry resources --json; echo '== ls'; skerry ls --json"
    )
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
    let steps = [
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
            "an instance follows a wild pointer in its kernel",
            "echo wild > /proc/skerry/fault; sleep 100",
            |printed| {
                contained(printed, "panicked")?;
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
    batch::run(machine(setting, "faults", 4, 500)?, &steps)
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
    let steps = [
        Step::new("50 instances in a row, and all processors and memory are back", "echo '== before'; skerry resources --json; for i in $(seq 1 50); do skerry run --rm --cpus $((1 + i % 3)) --mem $((64 + i % 5 * 32))M -- sh -c \"exit $i\"; [ $? = $i ] || echo \"instance $i ended with another status\"; done; echo '== after'; skerry resources --json; echo '== ls'; skerry ls --json", Accepted(|printed| {
            unchanged(printed)?;
            ensure!(!printed.contains("another status"), "a status was wrong");
            Ok(String::new())
        })).limit(240),
        Step::new("what one instance wrote, the next does not find", "skerry run --rm --cpus 3 --mem 512M -- machine-tests canary write; for i in 1 2 3; do skerry run --rm --cpus 3 --mem 512M -- machine-tests canary scan; done", Text("written, and found by the kernel\nno trace\nno trace\nno trace")).limit(120),
    ];
    batch::run(machine(setting, "churn", 4, 420)?, &steps)
}

/// Four instances at once.
pub fn four(setting: &Setting) -> Result<Vec<Check>> {
    let script = r#"
for i in 1 2 3 4; do
    skerry run -d --name i$i --cpus $((1 + (i > 1))) --mem 128M -- sh -c "seq 1 20000 | sha256sum; seq 1 $((i * 100)) | wc -l; exec sleep 1000" >/dev/null
done
for i in 1 2 3 4; do until [ $(skerry logs i$i | wc -l) = 2 ]; do sleep 0.1; done; done
echo "== ls"; skerry ls --json
echo "== resources"; skerry resources --json
for i in 1 2 3 4; do echo "== out$i"; skerry logs i$i; skerry rm --force i$i >/dev/null; done
echo "== want"; seq 1 20000 | sha256sum
echo "== end"; skerry resources --json
"#;
    let step = Step::new(
        "four instances at once on 8 processors",
        script,
        Accepted(|printed| {
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
        }),
    );
    batch::run(machine(setting, "four", 8, 200)?, &[step.limit(120)])
}
