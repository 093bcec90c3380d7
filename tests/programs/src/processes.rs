//! Processes: starting, ending, waiting, and what passes between parent and child.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io, thread};

use anyhow::{Result, ensure};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("processes-exit-status", exit_status),
    ("processes-killed-by-signal", killed_by_signal),
    (
        "processes-arguments-and-environment",
        arguments_and_environment,
    ),
    ("processes-streams", streams),
    ("processes-close-on-exec", close_on_exec),
    ("processes-working-directory", working_directory),
    ("processes-100-in-a-row", in_a_row),
    ("processes-20-at-once", at_once),
    ("processes-orphans-find-a-parent", orphans_find_a_parent),
    ("processes-failed-exec", failed_exec),
    ("processes-exec-ends-threads-that-wait", exec_ends_waiters),
    ("processes-groups", groups),
    ("processes-end-with-all-threads", end_with_all_threads),
    ("processes-script-interpreter", script_interpreter),
    ("processes-siblings-end-by-the-parents-signal", siblings),
];

/// The program's other half, run as a child: `machine-tests child WHAT…`.
pub fn child(what: &[&str]) -> ExitCode {
    match what {
        ["exit", status] => ExitCode::from(status.parse::<u8>().unwrap_or(255)),
        ["abort"] => std::process::abort(),
        ["number", wanted] => ExitCode::from(if std::process::id().to_string() == *wanted {
            5
        } else {
            1
        }),
        ["echo", words @ ..] => {
            print!("{}", words.join("|"));
            ExitCode::SUCCESS
        }
        ["upper"] => {
            let mut text = String::new();
            let read = io::stdin().read_to_string(&mut text);
            print!("{}", text.to_uppercase());
            eprint!("{} bytes", text.len());
            ExitCode::from(u8::from(read.is_err()))
        }
        ["environment"] => {
            let mut variables: Vec<_> = env::vars()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            variables.sort();
            print!("{}", variables.join(" "));
            ExitCode::SUCCESS
        }
        ["where"] => {
            print!("{}", env::current_dir().unwrap_or_default().display());
            ExitCode::SUCCESS
        }
        ["group"] => {
            // SAFETY: the call takes nothing.
            print!("{}", unsafe { libc::getpgrp() });
            ExitCode::SUCCESS
        }
        ["descriptors"] => {
            // SAFETY: the call takes numbers only.
            let open = (3..64)
                .filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0)
                .count();
            print!("{open}");
            ExitCode::SUCCESS
        }
        ["threads"] => {
            for _ in 0..5 {
                thread::spawn(|| {
                    loop {
                        thread::park();
                    }
                });
            }
            std::process::exit(9)
        }
        ["exec-beside-waiters"] => {
            let waiters: [fn(); 3] = [
                || thread::park(),
                || drop(io::pipe().map(|(mut reader, _writer)| reader.read(&mut [0]))),
                || {
                    // SAFETY: the call takes nothing.
                    unsafe { libc::pause() };
                },
            ];
            waiters
                .into_iter()
                .for_each(|wait| drop(thread::spawn(wait)));
            let asleep = |task: io::Result<fs::DirEntry>| {
                let stat = fs::read_to_string(task.expect("a thread").path().join("stat"))
                    .unwrap_or_default();
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|rest| rest.starts_with('S'))
            };
            let all_wait = || {
                fs::read_dir("/proc/self/task")
                    .expect("threads")
                    .map(asleep)
                    .filter(|&is| is)
                    .count()
                    == 3
            };
            while !all_wait() {
                thread::yield_now();
            }
            let own = std::process::id().to_string();
            let other = thread::spawn(move || {
                Command::new("/proc/self/exe")
                    .args(["child", "number", &own])
                    .exec()
            });
            let error = other.join();
            eprintln!("exec: {error:?}");
            ExitCode::FAILURE
        }
        ["orphan"] => {
            let own = std::process::id().to_string();
            let grandchild = Command::new("/proc/self/exe")
                .args(["child", "parent", &own])
                .stdin(Stdio::piped())
                .spawn();
            // The grandchild sees the end of its standard input when this process is gone.
            let started =
                grandchild.map(|mut grandchild| std::mem::forget(grandchild.stdin.take()));
            ExitCode::from(u8::from(started.is_err()))
        }
        ["parent", first] => {
            let mut rest = Vec::new();
            let read = io::stdin().read_to_end(&mut rest);
            // A process closes its files before it gives its children away.
            while std::os::unix::process::parent_id().to_string() == *first {
                std::thread::yield_now();
            }
            println!("{}", std::os::unix::process::parent_id());
            ExitCode::from(u8::from(read.is_err()))
        }
        _ => ExitCode::from(2),
    }
}

/// This program as a child that does `what`.
fn command(what: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("child").args(what);
    command
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn exit_status() -> Result<()> {
    for status in [0u8, 1, 42, 255] {
        let code = command(&["exit", &status.to_string()]).status()?.code();
        ensure!(
            code == Some(i32::from(status)),
            "exit({status}) was seen as {code:?}"
        );
    }
    Ok(())
}

fn killed_by_signal() -> Result<()> {
    let signal = command(&["abort"]).stderr(Stdio::null()).status()?.signal();
    ensure!(
        signal == Some(libc::SIGABRT),
        "abort was seen as {signal:?}"
    );
    let mut child = command(&["upper"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    ensure!(
        child.try_wait()?.is_none(),
        "the child is over before its input ended"
    );
    child.kill()?;
    let status = child.wait()?;
    ensure!(
        status.signal() == Some(libc::SIGKILL),
        "SIGKILL was seen as {status}"
    );
    Ok(())
}

fn arguments_and_environment() -> Result<()> {
    let long = "x".repeat(60_000);
    let words = ["echo", "a b", "", "ü", "'\"$", &long];
    let shown = output(&mut command(&words))?;
    ensure!(
        shown == words[1..].join("|"),
        "arguments arrived as {:?}…",
        &shown[..shown.len().min(100)]
    );
    let shown = output(
        command(&["environment"])
            .env_clear()
            .env("B", "2 3")
            .env("A", ""),
    )?;
    ensure!(shown == "A= B=2 3", "the environment arrived as {shown:?}");
    Ok(())
}

fn streams() -> Result<()> {
    let mut child = command(&["upper"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().expect("it is piped");
    let text = "all lower case\n".repeat(20_000);
    let sent = text.clone();
    let sender = thread::spawn(move || input.write_all(sent.as_bytes()));
    let output = child.wait_with_output()?;
    sender.join().expect("the thread ended well")?;
    ensure!(
        output.stdout == text.to_uppercase().as_bytes(),
        "{} bytes came back",
        output.stdout.len()
    );
    ensure!(
        output.stderr == b"300000 bytes",
        "standard error says {:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn close_on_exec() -> Result<()> {
    // SAFETY: the call takes numbers only.
    let inherited = (3..64)
        .filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == 0)
        .count();
    let _kept_from_child = fs::File::open("/dev/null")?;
    let open = output(&mut command(&["descriptors"]))?;
    ensure!(
        open == inherited.to_string(),
        "the child inherited {open} descriptors instead of {inherited}"
    );
    Ok(())
}

fn exec_ends_waiters() -> Result<()> {
    let code = command(&["exec-beside-waiters"]).status()?.code();
    ensure!(
        code == Some(5),
        "a thread's exec beside three that wait gives {code:?}"
    );
    Ok(())
}

fn working_directory() -> Result<()> {
    let shown = output(command(&["where"]).current_dir("/proc"))?;
    ensure!(shown == "/proc", "the child is in {shown}");
    Ok(())
}

fn in_a_row() -> Result<()> {
    for n in 0..100u32 {
        let code = command(&["exit", &(n % 7).to_string()]).status()?.code();
        ensure!(
            code == Some((n % 7) as i32),
            "child {n} ended with {code:?}"
        );
    }
    Ok(())
}

fn at_once() -> Result<()> {
    let children = (0..20)
        .map(|n| command(&["exit", &n.to_string()]).spawn())
        .collect::<io::Result<Vec<_>>>()?;
    for (n, mut child) in children.into_iter().enumerate() {
        let code = child.wait()?.code();
        ensure!(code == Some(n as i32), "child {n} ended with {code:?}");
    }
    Ok(())
}

fn orphans_find_a_parent() -> Result<()> {
    let shown = output(&mut command(&["orphan"]))?;
    let parent: u32 = shown.trim().parse()?;
    // On a machine whose first process is not the nearest reaper this may be another, but never the
    // one that is gone.
    ensure!(
        parent != 0 && fs::metadata(format!("/proc/{parent}")).is_ok(),
        "the orphan's parent is {parent}"
    );
    Ok(())
}

fn failed_exec() -> Result<()> {
    let path = env::temp_dir().join(format!("machine-tests-no-program-{}", std::process::id()));
    fs::write(&path, "\u{7f}ELF, but no more of it")?;
    let forbidden = Command::new(&path).status();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let nonsense = Command::new(&path).status();
    fs::remove_file(&path)?;
    let missing = Command::new(&path).status();
    for (what, result, expected) in [
        ("a file without x", forbidden, libc::EACCES),
        ("nonsense", nonsense, libc::ENOEXEC),
        ("nothing", missing, libc::ENOENT),
    ] {
        let found = result.err().and_then(|error| error.raw_os_error());
        ensure!(
            found == Some(expected),
            "executing {what} gives {found:?} instead of {expected}"
        );
    }
    Ok(())
}

fn groups() -> Result<()> {
    // SAFETY: the call takes nothing.
    let mine = unsafe { libc::getpgrp() };
    ensure!(
        output(&mut command(&["group"]))? == mine.to_string(),
        "a child is in another group"
    );
    let mut child = command(&["upper"])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    // SAFETY: the call takes numbers only.
    let group = checked(unsafe { libc::getpgid(child.id() as i32) })?;
    ensure!(group as u32 == child.id(), "the child leads group {group}");
    // SAFETY: as above.
    checked(unsafe { libc::kill(-group, libc::SIGTERM) })?;
    let status = child.wait()?;
    ensure!(
        status.signal() == Some(libc::SIGTERM),
        "a signal to the group was seen as {status}"
    );
    Ok(())
}

fn end_with_all_threads() -> Result<()> {
    let code = command(&["threads"]).status()?.code();
    ensure!(
        code == Some(9),
        "a process with parked threads ended with {code:?}"
    );
    Ok(())
}

fn script_interpreter() -> Result<()> {
    let path = env::temp_dir().join(format!("machine-tests-script-{}", std::process::id()));
    fs::write(
        &path,
        format!("#!{} child\n", env::current_exe()?.display()),
    )?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let status = Command::new(&path).arg("x").status();
    fs::remove_file(&path)?;
    // The script's path is the interpreter's second argument, which is no child's name: status 2.
    ensure!(status?.code() == Some(2), "the interpreter was not run");
    Ok(())
}

/// A grandchild made by `CLONE_PARENT` is a child whose end is told by `SIGCHLD`, whatever the
/// child asked for. The signal it asked for would end this process.
fn siblings() -> Result<()> {
    // SAFETY: the children make system calls on memory of their own only, and end without returning
    // from here.
    let child = unsafe { checked(libc::fork())? };
    if child == 0 {
        let flags = libc::CLONE_PARENT | libc::SIGRTMIN();
        // SAFETY: as above. Both processes that return from this end.
        unsafe {
            libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0);
            libc::_exit(3);
        }
    }
    for _ in 0..2 {
        let mut status = 0;
        // SAFETY: the status is written to a variable of this function's.
        checked(unsafe { libc::waitpid(-1, &mut status, 0) })?;
        ensure!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3,
            "a child ended with {status:#x}"
        );
    }
    Ok(())
}
