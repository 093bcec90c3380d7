//! Many small checks in one boot: shell scripts, or programs, each in an empty directory with a
//! time limit of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, bail, ensure};

use super::{Check, cases, left};
use crate::cleanup::Directory;
use crate::mutants::trial;
use crate::paths;
use crate::vm::{Addition, Ending, Machine, Streams, last_lines};

/// Expected output of a script (standard output and error together); it must end with status 0
/// unless said otherwise.
pub enum Expect {
    /// The output of the same script on the host, under the same busybox.
    SameAsHost,
    /// Exactly this, but for white space around it.
    Text(Cow<'static, str>),
    /// Something that this function accepts.
    Accepted(Judge),
}

/// A function that looks at the output of a script and returns what is worth showing.
pub type Judge = fn(&str) -> Result<String>;

/// One script.
pub struct Step {
    /// Statement that the script shows to hold.
    pub what: String,
    /// For busybox's `sh`.
    pub script: String,
    /// Expected output.
    pub expect: Expect,
    /// Seconds it may take.
    pub limit: u32,
}

impl Step {
    /// A script that may take 30 seconds.
    pub fn new(what: impl Into<String>, script: impl Into<String>, expect: Expect) -> Self {
        Self {
            what: what.into(),
            script: script.into(),
            expect,
            limit: 30,
        }
    }

    /// The same with another time limit.
    pub fn limit(self, seconds: u32) -> Self {
        Self {
            limit: seconds,
            ..self
        }
    }
}

/// The steps of a `.cases` file, in its order, each with 30 seconds.
///
/// A case of `judges` is judged by the function beside its name; any other prints its text or,
/// without a text, the same as on the host.
///
/// # Errors
/// When a name of `judges` is no case, or one that has a text.
pub fn steps(text: &str, judges: &[(&str, Judge)]) -> Result<Vec<Step>> {
    let cases = cases::parse(text);
    for (name, _) in judges {
        let case = cases.iter().find(|case| case.name == *name);
        let case = case.with_context(|| format!("no case is named {name:?}"))?;
        ensure!(case.prints.is_none(), "{name:?} has a text and a judge");
    }
    let step = |case: cases::Case| {
        let judge = judges.iter().find(|(name, _)| case.name == *name);
        let expect = match (judge, case.prints) {
            (Some((_, judge)), _) => Expect::Accepted(*judge),
            (None, Some(prints)) => Expect::Text(prints.into()),
            (None, None) => Expect::SameAsHost,
        };
        Step::new(case.name, case.script, expect)
    };
    Ok(cases.into_iter().map(step).collect())
}

/// The steps with as many seconds each as `seconds` has in their order.
///
/// # Errors
/// When there are not as many.
pub fn limit(steps: Vec<Step>, seconds: &[u32]) -> Result<Vec<Step>> {
    ensure!(
        steps.len() == seconds.len(),
        "{} steps, and limits for {}",
        steps.len(),
        seconds.len()
    );
    let limited = |(step, seconds): (Step, &u32)| step.limit(*seconds);
    Ok(steps.into_iter().zip(seconds).map(limited).collect())
}

/// The mark before and after each script's output; no script prints it.
const MARK: &str = "@@skerry-check@@";
/// The mark after it, before the script's status.
const END: &str = "@@skerry-check@@ end ";

/// Functions of the driver for instances that a script has left: they are the next ones' business,
/// which were written with it, unless it has failed.
const LEFTOVERS: &str = r#"
known() { echo $(skerry ls -a -q 2>/dev/null); }
clean() {
    for name in $(known); do
        case " $1 " in
            *" $name "*) ;;
            *) skerry rm --force $name > /dev/null 2>&1 ;;
        esac
    done
}
"#;

/// Runs the scripts, one after the other. It is given the scripts' directory, and told by its input
/// of each script whether it has passed.
const DRIVER: &str = r#"
look() { grep -v -f /left.lines /proc/skerry/objects; skerry resources --json | sed -f /left.sed; }
tell() { [ ! -r /proc/skerry/objects ] || echo "@@skerry-check@@ objects $1
$2
@@skerry-check@@ objects end"; }
# What the first look itself leaves behind, it leaves before the second one; and the file system of
# namespaces is made by whoever looks first.
: < /proc/self/ns/mnt
look > /dev/null 2>&1
# So are the directories in which the tool remembers instances.
[ -r /proc/skerry/objects ] && skerry prune > /dev/null 2>&1
before=$(look 2>&1)
# Somebody who just ended may still be there for a moment: two looks must agree.
end=$(($(date +%s) + 20))
while again=$(look 2>&1); [ "$again" != "$before" ] && [ $(date +%s) -lt $end ]; do
    before=$again
done
tell 'before machine' "$before"
# Milliseconds, of a file that says 12.05 or 0.09.
now() { read -r up _ < /proc/uptime || up=0.00; ms=$((${up%.*} * 1000 + 1${up#*.}0 - 1000)); }
for script in $1/*.sh; do
    name=${script##*/}
    rm -rf /tmp/work; mkdir -p /tmp/work; cd /tmp/work
    echo "@@skerry-check@@ begin ${name%.sh}"
    [ ! -r /proc/skerry/objects ] || before_it=$(known)
    now; start=$ms
    timeout -s KILL $(cat ${script%.sh}.limit) sh $script </dev/null 3>&2 2>&1
    status=$?
    now
    echo "
@@skerry-check@@ end $status $((ms - start))"
    [ ! -r /proc/skerry/objects ] || ! read -r verdict || [ $verdict = passed ] || clean "$before_it"
done
cd /; rm -rf /tmp/work
# Instances that ended are known until somebody says so.
[ -r /proc/skerry/objects ] && skerry prune > /dev/null 2>&1
# What ends by itself may take its time.
end=$(($(date +%s) + 20))
while after=$(look 2>&1); [ "$after" != "$before" ] && [ $(date +%s) -lt $end ]; do :; done
tell 'after machine' "$after"
"#;

/// Runs `steps` in `machine`; each becomes a check.
pub fn run(machine: Machine, steps: &[Step]) -> Result<Vec<Check>> {
    run_beside(machine, steps, &mut Vec::new())
}

/// The same, with what the driver says on standard error, and scripts on descriptor 3, written to
/// `complaints`.
pub fn run_beside(
    mut machine: Machine,
    steps: &[Step],
    complaints: &mut (dyn Write + Send),
) -> Result<Vec<Check>> {
    let directory = Directory::create()?;
    let scripts = directory.join("check");
    fs::create_dir(&scripts)?;
    fs::write(directory.join("driver.sh"), [LEFTOVERS, DRIVER].concat())?;
    fs::write(directory.join("left.lines"), left::ignored_lines())?;
    fs::write(directory.join("left.sed"), left::ignored_resources())?;
    let trial = machine.kernel.trial();
    let factor = trial.map_or(1, |_| trial::TIME_FACTOR);
    let mut wanted = 0;
    for (index, step) in steps
        .iter()
        .enumerate()
        .filter(|(index, _)| trial.is_none_or(|trial| trial.wants(&machine.log, *index)))
    {
        wanted += 1;
        let before = trial.map(|trial| trial.before(index)).unwrap_or_default();
        fs::write(
            scripts.join(format!("{index:03}.sh")),
            before + &step.script,
        )?;
        fs::write(
            scripts.join(format!("{index:03}.limit")),
            (step.limit * factor).to_string(),
        )?;
    }
    if let Some(trial) = trial {
        trial.keep_names(&machine.log, steps.iter().map(|step| step.what.as_str()))?;
        if wanted == 0 {
            return Ok(Vec::new());
        }
    }
    machine.additions.push(Addition {
        host: scripts,
        guest: "/check".into(),
    });
    for name in ["driver.sh", "left.lines", "left.sed"] {
        machine.additions.push(Addition {
            host: directory.join(name),
            guest: format!("/{name}"),
        });
    }
    machine.command = ["/bin/sh", "/driver.sh", "/check"]
        .map(OsString::from)
        .to_vec();

    finish_beside(&machine, steps, wanted, complaints)
}

/// Runs a machine whose command marks its output as the driver does, and judges it; each of the
/// `wanted` steps becomes a check. The command may do several steps at a time if it says `start`
/// before each, and prints what one printed at once.
pub fn finish(machine: &Machine, steps: &[Step], wanted: usize) -> Result<Vec<Check>> {
    finish_beside(machine, steps, wanted, &mut Vec::new())
}

fn finish_beside(
    machine: &Machine,
    steps: &[Step],
    wanted: usize,
    beside: &mut (dyn Write + Send),
) -> Result<Vec<Check>> {
    let (verdicts, told) = mpsc::channel();
    let mut output = Judged {
        steps,
        output: Vec::new(),
        judged: 0,
        searched: 0,
        results: BTreeMap::new(),
        verdicts,
    };
    let mut complaints = Tee {
        kept: Vec::new(),
        beside,
    };
    let streams = Streams {
        input: Box::new(Verdicts {
            told,
            rest: Vec::new(),
        }),
        output: &mut output,
        error: &mut complaints,
    };
    let outcome = machine.run(streams)?;
    let complaints = complaints.kept;
    let mut judged = output.results;
    let output = String::from_utf8_lossy(&output.output);
    let results = parse(&output);
    let mut checks: Vec<_> = steps
        .iter()
        .enumerate()
        .filter_map(|(index, step)| {
            let result = match judged.remove(&index) {
                Some(result) => result,
                None => judge(step, results.get(&index)?),
            };
            Some(Check::new(&step.what, result))
        })
        .collect();
    let missing = wanted - checks.len();
    checks.extend(left::behind(&output, MARK));
    let end = match outcome.ending {
        Ending::Exited(0) if missing == 0 && outcome.powered_off => Ok(String::new()),
        Ending::Exited(0) if missing == 0 => Err("it did not power off by itself".to_owned()),
        ending => {
            let complaints = String::from_utf8_lossy(&complaints);
            Err(format!(
                "{ending:?}; {missing} checks have no result; {complaints}\nthe log ends:\n{}",
                last_lines(&machine.log, 25)
            ))
        }
    };
    checks.push(Check {
        what: "the machine ran to its end and powered off".into(),
        result: end,
    });
    Ok(checks)
}

/// The driver's output, which is kept; each script is judged when it is over, and the driver told.
struct Judged<'a> {
    steps: &'a [Step],
    output: Vec<u8>,
    /// Bytes of the output that are of scripts which were judged.
    judged: usize,
    /// Bytes of it that hold no mark which is not looked at.
    searched: usize,
    results: BTreeMap<usize, Result<String>>,
    verdicts: Sender<&'static [u8]>,
}

impl Write for Judged<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        while let Some(at) = find(&self.output[self.searched..], END.as_bytes()) {
            self.searched += at;
            let Some(line) = find(&self.output[self.searched..], b"\n") else {
                return Ok(bytes.len());
            };
            self.searched += line;
            let over = String::from_utf8_lossy(&self.output[self.judged..self.searched]);
            self.judged = self.searched;
            for (index, ran) in parse(&over) {
                let Some(step) = self.steps.get(index).filter(|_| ran.status.is_some()) else {
                    continue;
                };
                let result = judge(step, &ran);
                let verdict: &[u8] = if result.is_ok() {
                    b"passed\n"
                } else {
                    b"failed\n"
                };
                self.results.insert(index, result);
                // A machine that has stopped is told nothing.
                let _ = self.verdicts.send(verdict);
            }
        }
        // The next mark may have begun.
        let least = self.output.len().saturating_sub(END.len() - 1);
        self.searched = self.searched.max(least);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The place of some bytes among others.
fn find(all: &[u8], wanted: &[u8]) -> Option<usize> {
    all.windows(wanted.len()).position(|bytes| bytes == wanted)
}

/// The driver's input: a line for each script that was judged.
struct Verdicts {
    told: Receiver<&'static [u8]>,
    rest: Vec<u8>,
}

impl Read for Verdicts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest.extend(self.told.recv().unwrap_or_default());
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

/// A stream that is kept, and read by somebody else, too.
struct Tee<'a> {
    kept: Vec<u8>,
    beside: &'a mut (dyn Write + Send),
}

impl Write for Tee<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kept.extend_from_slice(bytes);
        self.beside.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.beside.flush()
    }
}

/// Result of one script.
struct Ran {
    output: String,
    /// None if it was not over when the machine stopped.
    status: Option<i32>,
    /// Milliseconds, where the command says so.
    took: Option<u32>,
}

/// Takes the output of the driver apart.
fn parse(output: &str) -> BTreeMap<usize, Ran> {
    let mut results = BTreeMap::new();
    for part in output.split(&format!("{MARK} begin ")).skip(1) {
        let (index, rest) = part.split_once('\n').unwrap_or((part, ""));
        let Ok(index) = index.trim().parse() else {
            continue;
        };
        let (output, end) = rest
            .split_once(&format!("{MARK} end "))
            .unwrap_or((rest, ""));
        let mut words = end.lines().next().unwrap_or_default().split_whitespace();
        let status = words.next().and_then(|word| word.parse().ok());
        let took = words.next().and_then(|word| word.parse().ok());
        results.insert(
            index,
            Ran {
                output: output.to_owned(),
                status,
                took,
            },
        );
    }
    for part in output.split(&format!("{MARK} start ")).skip(1) {
        let Some(Ok(index)) = part.lines().next().map(|line| line.trim().parse()) else {
            continue;
        };
        results.entry(index).or_insert(Ran {
            output: String::new(),
            status: None,
            took: None,
        });
    }
    results
}

/// How long something took, of milliseconds.
pub fn seconds(took: u32) -> String {
    format!("{:.1} s", f64::from(took) / 1000.0)
}

fn judge(step: &Step, ran: &Ran) -> Result<String> {
    let printed = ran.output.trim();
    match ran.status {
        None => bail!("the machine stopped during it; it had printed {printed:?}"),
        Some(137) => bail!(
            "it did not end within {} s; it had printed\n{printed}",
            step.limit
        ),
        Some(0) => {}
        Some(status) => bail!("it ended with status {status} and printed {printed:?}"),
    }
    let seen = ran.took.map_or_else(String::new, seconds);
    match &step.expect {
        Expect::SameAsHost => {
            let expected = on_host(&step.script)?;
            ensure!(
                printed == expected.trim(),
                "it printed {printed:?}, on the host {:?}",
                expected.trim()
            );
            Ok(seen)
        }
        Expect::Text(expected) => {
            ensure!(
                printed == expected.trim(),
                "it printed {printed:?} instead of {:?}",
                expected.trim()
            );
            Ok(seen)
        }
        Expect::Accepted(accepts) => {
            let worth_showing =
                accepts(printed).with_context(|| format!("it printed {printed:?}"))?;
            Ok(match (worth_showing, seen) {
                (text, seen) if text.is_empty() => seen,
                (text, seen) if seen.is_empty() => text,
                (text, seen) => format!("{text}; {seen}"),
            })
        }
    }
}

/// Output of `script` on the host, with nothing but busybox to call.
fn on_host(script: &str) -> Result<String> {
    let applets = applets().context("cannot install busybox's applets for the host")?;
    let (work, scripts) = (Directory::create()?, Directory::create()?);
    fs::write(scripts.join("script"), script)?;
    let merged = format!("exec 2>&1; . {}", scripts.join("script").display());
    run_on_host(&merged, &work.join(""), applets).context("on the host")
}

/// A directory with a link to busybox for each of its applets.
fn applets() -> Result<&'static Path> {
    static APPLETS: Mutex<Option<&'static Path>> = Mutex::new(None);
    let mut applets = APPLETS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(applets) = *applets {
        return Ok(applets);
    }
    let directory = paths::target().join("test-applets");
    fs::create_dir_all(&directory)?;
    let status = Command::new("/bin/busybox")
        .args(["--install", "-s"])
        .arg(&directory)
        .stderr(Stdio::null())
        .status()?;
    ensure!(
        status.success() || directory.join("sh").exists(),
        "busybox --install: {status}"
    );
    Ok(applets.insert(Box::leak(directory.into_boxed_path())))
}

fn run_on_host(script: &str, directory: &Path, path: &Path) -> Result<String> {
    let output = Command::new("/bin/busybox")
        .args(["sh", "-c", script])
        .current_dir(directory)
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/root")
        .env("LANG", "C")
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        output.status.success(),
        "the script ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_without_text_has_a_judge_or_asks_the_host() {
        let text = "== a\necho 1\n-- 1\n== b\ndate\n== c\nseq 3\n";
        let kinds = |judges: &[(&str, Judge)]| {
            let kind = |step: &Step| match &step.expect {
                Expect::SameAsHost => "host".to_owned(),
                Expect::Text(text) => text.trim().to_owned(),
                Expect::Accepted(_) => "judge".to_owned(),
            };
            steps(text, judges).map(|steps| steps.iter().map(kind).collect::<Vec<_>>())
        };
        let judge: Judge = |_| Ok(String::new());
        assert_eq!(kinds(&[("b", judge)]).unwrap(), ["1", "judge", "host"]);
        assert!(kinds(&[("a", judge)]).is_err());
        assert!(kinds(&[("d", judge)]).is_err());
    }

    #[test]
    fn results_are_told_apart_from_what_was_going_on() {
        let said = format!(
            "\n{MARK} start 0\n\n{MARK} start 1\n\n{MARK} begin 1\nok one\n\n{MARK} end 0 1500\n\
             \n{MARK} start 2\n\n{MARK} begin 2\nnot ok\n\n{MARK} end 1\n"
        );
        let ran = parse(&said);
        let seen: Vec<_> = ran
            .iter()
            .map(|(index, ran)| (*index, ran.output.trim(), ran.status, ran.took))
            .collect();
        assert_eq!(
            seen,
            [
                (0, "", None, None),
                (1, "ok one", Some(0), Some(1500)),
                (2, "not ok", Some(1), None)
            ]
        );
    }

    #[test]
    fn each_script_is_judged_when_it_is_over_and_the_driver_told() {
        let text = Expect::Text("ok".into());
        let steps = [
            Step::new("a", "", text),
            Step::new("b", "", Expect::Text("ok".into())),
            Step::new("c", "", Expect::Text("ok".into())),
        ];
        let (verdicts, told) = mpsc::channel();
        let mut judged = Judged {
            steps: &steps,
            output: Vec::new(),
            judged: 0,
            searched: 0,
            results: BTreeMap::new(),
            verdicts,
        };
        let said = format!(
            "{MARK} objects before\n{MARK} objects end\n{MARK} begin 000\nok\n{MARK} end 0 5\n\
             {MARK} begin 001\nwr\u{f6}ng\n{MARK} end 0 5\n{MARK} begin 002\nok\n{MARK} end"
        );
        // In pieces that end anywhere, also within a letter.
        for byte in said.as_bytes() {
            judged.write_all(&[*byte]).unwrap();
        }
        let passed: Vec<_> = judged.results.values().map(Result::is_ok).collect();
        assert_eq!(passed, [true, false], "the third is not over");
        let mut heard = String::new();
        drop(judged);
        let mut input = Verdicts {
            told,
            rest: Vec::new(),
        };
        input.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "passed\nfailed\n");
    }

    #[test]
    fn what_a_failed_script_has_left_is_removed_and_nothing_else() {
        let tool = r#"skerry() {
            case "$1" in
                ls) printf '%s\n' web db web2 b ;;
                rm) echo "$@" >> removed ;;
            esac
        }"#;
        let script = format!("{tool}\n{LEFTOVERS}\nclean 'web b'\ncat removed");
        let work = Directory::create().unwrap();
        let printed = run_on_host(&script, &work.join(""), applets().unwrap()).unwrap();
        assert_eq!(printed, "rm --force db\nrm --force web2\n");
    }
}
