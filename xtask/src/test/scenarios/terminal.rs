//! A shell on a terminal: line editing, signals from the keyboard, job control, full-screen
//! programs.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::test::{Check, Setting};
use crate::vm::Ending;
use crate::vm::terminal::Session;

/// Time limit for anything on the screen to appear.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// The prompt, which no echo of a typed command contains.
const PROMPT: &str = "ready> ";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("shell");
    machine.command = ["/bin/sh", "-c", "PS1='ready> ' exec sh -i"]
        .map(OsString::from)
        .to_vec();
    let mut session = Session::start(&machine, (30, 90))?;
    session.expect(PROMPT, Duration::from_secs(60))?;
    let mut checks = Vec::new();
    for (what, step) in STEPS {
        let result = step(&mut session);
        let failed = result.is_err();
        checks.push(Check::new(*what, result.map(|()| String::new())));
        if failed {
            return Ok(checks);
        }
    }
    session.send("exit 5\n")?;
    let outcome = session.wait(Some(Instant::now() + PROMPT_TIMEOUT), &mut |_| {})?;
    let ended = match outcome.ending {
        Ending::Exited(5) => Ok(String::new()),
        other => Err(format!("{other:?}")),
    };
    checks.push(Check {
        what: "the shell's exit status is the machine's".into(),
        result: ended,
    });
    Ok(checks)
}

type Action = fn(&mut Session) -> Result<()>;

const STEPS: &[(&str, Action)] = &[
    ("typed lines are echoed and run", |session| {
        let shown = type_line(session, "echo sum $((40 + 2))")?;
        ensure!(shown.contains("sum 42"), "{shown:?}");
        Ok(())
    }),
    ("the terminal has the size it was given", |session| {
        let shown = type_line(session, "stty size")?;
        ensure!(shown.contains("30 90"), "{shown:?}");
        Ok(())
    }),
    (
        "the command has it as its controlling terminal",
        |session| {
            let shown = type_line(session, "tty; echo by name > /dev/tty")?;
            ensure!(
                shown.contains("/dev/ttyS1") && shown.contains("by name"),
                "{shown:?}"
            );
            Ok(())
        },
    ),
    ("erase, and kill of a line, in canonical mode", |session| {
        // What is typed before the shell has given the terminal back would be its line editor's.
        begin(session, "cat")?;
        session.send("wrong\x15helloo\x7f world\n")?;
        session.expect("hello world\r\n", PROMPT_TIMEOUT)?;
        session.send("\x04")?;
        session.expect(PROMPT, PROMPT_TIMEOUT).map(drop)
    }),
    ("Ctrl-C ends what runs, and not the shell", |session| {
        begin(session, "while :; do :; done")?;
        session.send("\x03")?;
        session.expect(PROMPT, PROMPT_TIMEOUT)?;
        begin(session, SLEEPER)?;
        session.expect("awake\r\n", PROMPT_TIMEOUT)?;
        session.send("\x03")?;
        session.expect(PROMPT, PROMPT_TIMEOUT)?;
        let shown = type_line(session, "echo alive $?")?;
        ensure!(shown.contains("alive 130"), "{shown:?}");
        Ok(())
    }),
    ("Ctrl-Z stops a job; bg and fg go on with it", |session| {
        begin(session, SLEEPER)?;
        session.expect("awake\r\n", PROMPT_TIMEOUT)?;
        session.send("\x1a")?;
        let shown = session.expect(PROMPT, PROMPT_TIMEOUT)?;
        ensure!(shown.contains("Stopped"), "{shown:?}");
        let shown = type_line(session, "jobs; ps -o stat,args | grep [s]leep")?;
        ensure!(
            shown.contains("Stopped") && shown.lines().any(|line| line.starts_with('T')),
            "{shown:?}"
        );
        type_line(session, "bg")?;
        let shown = type_line(session, "jobs")?;
        ensure!(shown.contains("Running"), "{shown:?}");
        session.send("fg\n")?;
        session.expect("sleep 1000", PROMPT_TIMEOUT)?;
        session.expect("\r\n", PROMPT_TIMEOUT)?;
        session.send("\x03")?;
        session.expect(PROMPT, PROMPT_TIMEOUT).map(drop)
    }),
    (
        "a background job that reads the terminal is stopped",
        |session| {
            type_line(
                session,
                "cat & until grep -q '^State:.T' /proc/$!/status; do :; done",
            )?;
            let shown = type_line(session, "jobs")?;
            ensure!(shown.contains("Stopped"), "{shown:?}");
            type_line(session, "kill -9 %1; wait")?;
            Ok(())
        },
    ),
    ("vi shows, edits and saves a file", |session| {
        type_line(session, "printf 'first line\\nsecond line\\n' > /tmp/text")?;
        session.send("vi /tmp/text\n")?;
        session.expect("second line", PROMPT_TIMEOUT)?;
        session.expect("/tmp/text", PROMPT_TIMEOUT)?;
        session.send("jdd:1\niSkerry \x1b")?;
        session.expect("kerry first line", PROMPT_TIMEOUT)?;
        // The cursor goes back when vi takes the escape for one. What came within 50 ms of it would
        // be part of an unknown key's sequence, and dropped.
        session.expect("\x1b[1;7H", PROMPT_TIMEOUT)?;
        session.send(":wq\n")?;
        session.expect(PROMPT, PROMPT_TIMEOUT)?;
        let shown = type_line(session, "cat /tmp/text; wc -l < /tmp/text")?;
        ensure!(shown.contains("Skerry first line\r\n1\r\n"), "{shown:?}");
        Ok(())
    }),
    ("top shows itself until q is typed", |session| {
        session.send("top -d 1\n")?;
        session.expect("Load average:", PROMPT_TIMEOUT)?;
        session.expect(" top", PROMPT_TIMEOUT)?;
        session.send("q")?;
        session.expect(PROMPT, PROMPT_TIMEOUT).map(drop)
    }),
    (
        "an instance with a terminal: its size, its signals, its job control, \
         and the shell's again",
        |session| {
            let shown = type_line(
                session,
                "skerry run -t --rm --cpus 1 --mem 64M -- stty size",
            )?;
            ensure!(
                shown.contains("30 90"),
                "the first program does not find the size: {shown:?}"
            );
            session.send("skerry run -t --rm --cpus 1 --mem 64M -e PS1='inside> ' -- sh -i\n")?;
            session.expect("\n", PROMPT_TIMEOUT)?;
            session.expect("inside> ", PROMPT_TIMEOUT)?;
            session.send("tty; stty size; cat /proc/skerry/role\n")?;
            let shown = session.expect("subos", PROMPT_TIMEOUT)?;
            ensure!(
                shown.contains("/dev/console") && shown.contains("30 90"),
                "{shown:?}"
            );
            session.expect("inside> ", PROMPT_TIMEOUT)?;
            begin(session, SLEEPER)?;
            session.expect("awake\r\n", PROMPT_TIMEOUT)?;
            session.send("\x1a")?;
            session.expect("Stopped", PROMPT_TIMEOUT)?;
            session.expect("inside> ", PROMPT_TIMEOUT)?;
            session.send("fg\n")?;
            session.expect("sleep 1000", PROMPT_TIMEOUT)?;
            session.expect("\r\n", PROMPT_TIMEOUT)?;
            session.send("\x03")?;
            session.expect("inside> ", PROMPT_TIMEOUT)?;
            session.send("exit 7\n")?;
            session.expect(PROMPT, PROMPT_TIMEOUT)?;
            let shown = type_line(session, "echo status $?")?;
            ensure!(shown.contains("status 7"), "{shown:?}");
            let shown = type_line(session, "stty -a | tr -s ' ' '\\n' | grep -c '^icanon'")?;
            ensure!(shown.contains('1'), "{shown:?}");
            Ok(())
        },
    ),
    (
        "a second program of an instance on a terminal: its size, its signals, its job control, \
         and the shell's again",
        |session| {
            type_line(
                session,
                "skerry run -d --name box --cpus 1 --mem 64M -- sleep 1000",
            )?;
            type_line(
                session,
                "until skerry exec box true 2>/dev/null; do sleep 0.1; done",
            )?;
            session.send("skerry exec -it -e PS1='beside> ' box sh -i\n")?;
            session.expect("\n", PROMPT_TIMEOUT)?;
            session.expect("beside> ", PROMPT_TIMEOUT)?;
            session.send("tty; stty size; cat /proc/skerry/role\n")?;
            let shown = session.expect("subos", PROMPT_TIMEOUT)?;
            ensure!(
                shown.contains("/dev/pts/0") && shown.contains("30 90"),
                "{shown:?}"
            );
            session.expect("beside> ", PROMPT_TIMEOUT)?;
            begin(session, SLEEPER)?;
            session.expect("awake\r\n", PROMPT_TIMEOUT)?;
            session.send("\x1a")?;
            session.expect("Stopped", PROMPT_TIMEOUT)?;
            session.expect("beside> ", PROMPT_TIMEOUT)?;
            session.send("fg\n")?;
            session.expect("sleep 1000", PROMPT_TIMEOUT)?;
            session.expect("\r\n", PROMPT_TIMEOUT)?;
            session.send("\x03")?;
            session.expect("beside> ", PROMPT_TIMEOUT)?;
            session.send("exit 7\n")?;
            session.expect(PROMPT, PROMPT_TIMEOUT)?;
            let shown = type_line(session, "echo status $?; skerry rm --force box")?;
            ensure!(shown.contains("status 7"), "{shown:?}");
            let shown = type_line(session, "stty -a | tr -s ' ' '\\n' | grep -c '^icanon'")?;
            ensure!(shown.contains('1'), "{shown:?}");
            Ok(())
        },
    ),
    ("raw mode passes every key", |session| {
        begin(
            session,
            "stty raw -echo; echo r''aw; dd bs=1 count=3 2>/dev/null | hexdump -C; stty sane",
        )?;
        session.expect("raw\n", PROMPT_TIMEOUT)?;
        session.send("\x03\r\x1a")?;
        session.expect("03 0d 1a", PROMPT_TIMEOUT)?;
        session.expect(PROMPT, PROMPT_TIMEOUT).map(drop)
    }),
];

/// A sleep that is in the foreground, in a group of its own, when what it says is seen.
const SLEEPER: &str = "sh -c 'echo aw\"\"ake; exec sleep 1000'";

/// Types a command and waits until the shell has begun to run it.
fn begin(session: &mut Session, line: &str) -> Result<()> {
    // Not the echo of what is typed.
    session.send(&format!("echo beg''un; {line}\n"))?;
    session.expect("begun\r\n", PROMPT_TIMEOUT).map(drop)
}

/// Types a command; returns what it showed.
fn type_line(session: &mut Session, line: &str) -> Result<String> {
    session.send(&format!("{line}\n"))?;
    // The shell's editor may wrap a long line on the screen, so its end is what is waited for.
    session.expect("\n", PROMPT_TIMEOUT)?;
    session.expect(PROMPT, PROMPT_TIMEOUT)
}
