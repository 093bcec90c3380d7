//! Supervision of programs: prepares their surroundings, gives actors their turns, sees who waits,
//! and writes the record.
//!
//! An actor *waits* when it is in a system call and the kernel says twice that its thread sleeps,
//! with nothing done in between. A step is over when every actor is idle, has ended, or waits; so
//! the order of events does not depend on how fast anybody is.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use differential::errno;
use differential::interruptions::{self, Interruption};
use differential::layout::{ACTORS, MAPPING_AREA};
use differential::normalise;
use differential::program::{Program, Value};
use differential::spec::{Call, ResultKind, Spec};

use crate::actor::{self, ActorContext, RunPidNames};
use crate::shared::{self, Shared};
use crate::{final_state, sys};

/// Where programs have their directories.
pub const ROOT: &str = "/tmp/differential";
/// Time limit for a program to come to rest before it is given up; what it did until then still
/// counts.
const PATIENCE: Duration = Duration::from_secs(20);

/// Outcome of a step.
pub struct Outcome {
    /// Number of the step.
    pub step: usize,
    /// Result of the call.
    pub result: i64,
    /// Ways in which signals met the step while it waited.
    pub ways: Vec<Interruption>,
}

/// Runs programs one after the other.
pub struct Supervisor {
    spec: &'static Spec,
    shared: &'static Shared,
}

impl Supervisor {
    /// Ready to run programs.
    pub fn new(spec: &'static Spec) -> Self {
        Self {
            spec,
            shared: Shared::map(),
        }
    }

    /// Runs a program; returns its record, and what became of each step that was made.
    pub fn run(&self, program: &Program) -> (String, Vec<Outcome>) {
        let context = ActorContext {
            spec: self.spec,
            program,
            shared: self.shared,
        };
        self.shared.clear();
        let directory = Surroundings::make(program);
        let leader = sys::fork();
        if leader == 0 {
            enter(context, &directory.path);
            actor::lead(context);
        }
        let mut run = Run {
            context,
            leader,
            ended: None,
            stats: Default::default(),
            waited: vec![false; program.steps.len()],
            late: Vec::new(),
        };
        run.steps();
        let ended = run.end();
        let mut record = run.record();
        match ended {
            Some(status) if libc::WIFSIGNALED(status) => {
                record.push_str(&format!("left end: signal {}\n", libc::WTERMSIG(status)));
            }
            Some(status) => {
                record.push_str(&format!("left end: status {}\n", libc::WEXITSTATUS(status)));
            }
            None => record.push_str("left end: it did not end\n"),
        }
        record.push_str(&self.shared.left.read());
        record.push_str(&final_state::files(&directory.path));
        let made =
            (0..program.steps.len()).filter(|&step| self.shared.steps[step].done.load(SeqCst) == 1);
        let outcome = |step| Outcome {
            step,
            result: self.shared.steps[step].result.load(SeqCst),
            ways: run.ways(step),
        };
        (record, made.map(outcome).collect())
    }
}

/// The child's first steps.
fn enter(context: ActorContext<'_>, directory: &std::path::Path) {
    let surroundings = context
        .spec
        .area(&context.program.area)
        .map_or(&[][..], |area| &area.surroundings);
    for (word, namespace) in [
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("mounts", libc::CLONE_NEWNS),
    ] {
        if surroundings.iter().any(|known| known == word) {
            sys::simple(libc::SYS_unshare, [namespace as u64, 0, 0]);
        }
    }
    if surroundings.iter().any(|known| known == "uts") {
        let name = c"differential";
        sys::simple(
            libc::SYS_sethostname,
            [sys::address(name), name.count_bytes() as u64, 0],
        );
    }
    sys::simple(libc::SYS_setpgid, [0; 3]);
    let null = sys::simple(
        libc::SYS_open,
        [sys::address(c"/dev/null"), libc::O_RDWR as u64, 0],
    );
    for fd in 0..3 {
        sys::simple(libc::SYS_dup2, [null as u64, fd, 0]);
    }
    sys::simple(libc::SYS_close_range, [3, u64::from(u32::MAX), 0]);
    // Kernels make these of the machine's memory, or leave them to whoever starts the first
    // process. Linux gives message queues back some time after the end of their name space: many
    // programs' have to fit (RLIMIT_MSGQUEUE, 12).
    for (resource, soft, hard) in [
        (6, 1000, 1000),
        (7, 1024, 4096),
        (8, 1 << 23, 1 << 23),
        (11, 1000, 1000),
        (12, 1 << 26, 1 << 26),
    ] {
        let limit: [u64; 2] = [soft, hard];
        sys::simple(libc::SYS_setrlimit, [resource, limit.as_ptr() as u64, 0]);
    }
    actor::map_rooms(context.program);
    if std::env::set_current_dir(directory).is_err() {
        sys::exit(99);
    }
}

/// The directory of a program, which goes when this value does.
struct Surroundings {
    path: PathBuf,
}

impl Surroundings {
    /// Makes the directory with what the program's paths name.
    fn make(program: &Program) -> Self {
        let path = PathBuf::from(ROOT).join("program");
        let mut names = Vec::new();
        program
            .steps
            .iter()
            .flat_map(|step| &step.arguments)
            .for_each(|value| paths(value, &mut names));
        let this = Self { path };
        if let Err(error) = this.fill(&names) {
            println!("! cannot prepare {}: {error}", this.path.display());
        }
        this
    }

    fn fill(&self, names: &[&str]) -> std::io::Result<()> {
        // What a program before this one could not be kept from leaving.
        drop(fs::remove_dir_all(&self.path));
        fs::create_dir_all(&self.path)?;
        fs::set_permissions(&self.path, PermissionsExt::from_mode(0o777))?;
        let wants = |name: &str| {
            names
                .iter()
                .any(|path| path.split('/').any(|part| part == name))
        };
        let file = |name: &str, length: usize, mode: u32| -> std::io::Result<()> {
            let path = self.path.join(name);
            fs::write(
                &path,
                (0..length)
                    .map(|at| differential::program::pattern(11, at))
                    .collect::<Vec<_>>(),
            )?;
            fs::set_permissions(&path, PermissionsExt::from_mode(mode))
        };
        for (name, length, mode) in [
            ("a", 10, 0o644),
            ("b", 9000, 0o666),
            ("s", 100, 0o4755),
            ("n", 5, 0),
            ("m", 300, 0o600),
        ] {
            if wants(name) || name == "a" && (wants("l") || wants("..")) {
                file(name, length, mode)?;
            }
        }
        for (name, mode) in [("d", 0o755), ("w", 0o1777), ("q", 0o700)] {
            if wants(name) {
                fs::create_dir(self.path.join(name))?;
                file(&format!("{name}/f"), 20, 0o644)?;
                fs::set_permissions(self.path.join(name), PermissionsExt::from_mode(mode))?;
            }
        }
        for (name, target) in [("l", "a"), ("o", "o"), ("x", "nothing")] {
            if wants(name) {
                symlink(target, self.path.join(name))?;
            }
        }
        if wants("p") {
            let name = std::ffi::CString::new(self.path.join("p").as_os_str().as_encoded_bytes())?;
            sys::simple(libc::SYS_mknod, [sys::address(&name), 0o10666, 0]);
        }
        Ok(())
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.path));
    }
}

fn paths<'a>(value: &'a Value, names: &mut Vec<&'a str>) {
    match value {
        Value::Path(path) => names.push(path),
        Value::Memory(memory) => memory
            .fields
            .iter()
            .for_each(|(_, _, value)| paths(value, names)),
        _ => {}
    }
}

/// A program that runs.
struct Run<'a> {
    context: ActorContext<'a>,
    leader: i32,
    ended: Option<i32>,
    /// Open `/proc/PID/task/TID/stat` of each actor's thread.
    stats: [RefCell<Option<Stat>>; ACTORS],
    /// The steps that waited for others.
    waited: Vec<bool>,
    /// Steps that ended later than they began: which, and during which.
    late: Vec<(usize, usize)>,
}

impl Run<'_> {
    fn steps(&mut self) {
        let (program, shared) = (self.context.program, self.context.shared);
        if program.actors.len() == 1 {
            self.turn(0, program.steps.len() as u32);
            self.settle(usize::MAX);
            // Who waits for nobody is interrupted, and goes on.
            while let Some(step) = self.waiting(0) {
                if self.waited[step] {
                    return;
                }
                self.waited[step] = true;
                self.interrupt(0);
                self.settle(usize::MAX);
            }
            return;
        }
        // Who has not begun has no number that others could name.
        self.settle(usize::MAX);
        for (index, step) in program.steps.iter().enumerate() {
            let state = shared.actors[step.actor].state.load(SeqCst);
            if state == shared::DONE || self.waiting(step.actor).is_some() {
                continue;
            }
            // Looked at first: whoever is let go may be quicker than this.
            let before = self.waiters();
            self.turn(step.actor, index as u32 + 1);
            self.settle(index);
            self.note_late(&before, index);
            if self.waiting(step.actor) == Some(index) {
                self.waited[index] = true;
            }
        }
        for actor in 0..program.actors.len() {
            if self.waiting(actor).is_some() {
                self.interrupt(actor);
                self.settle(usize::MAX);
            }
        }
    }

    /// Lets everybody come to an end, and ends who does not; returns the leader's status.
    fn end(&mut self) -> Option<i32> {
        let actors = self.context.program.actors.len();
        for actor in (0..actors).rev() {
            self.turn(actor, shared::END);
            self.settle(usize::MAX);
            let state = &self.context.shared.actors[actor];
            if self.ended.is_none() && self.is_stopped(actor) {
                sys::signal_thread(
                    state.process.load(SeqCst),
                    state.thread.load(SeqCst),
                    libc::SIGCONT,
                );
                self.settle(usize::MAX);
            }
        }
        if self.ended.is_none() && self.all_done() {
            self.ended = sys::reap(self.leader, true).map(|(_, status)| status);
        }
        let alone = actors == 1
            && !self
                .context
                .program
                .steps
                .iter()
                .any(|step| self.makes_processes(&step.call));
        if !alone || self.ended.is_none() {
            sys::kill(-1, libc::SIGKILL);
            sys::kill(-1, libc::SIGCONT);
            while sys::reap(-1, true).is_some() {}
        }
        self.ended
    }

    /// Whether the leader's process has ended or is about to: no thread of it takes steps any more.
    fn all_done(&self) -> bool {
        let ActorContext {
            program, shared, ..
        } = self.context;
        let own = program
            .actors
            .iter()
            .enumerate()
            .filter(|(index, actor)| *index == 0 || actor.thread);
        own.map(|(index, _)| index).all(|actor| {
            shared.actors[actor].state.load(SeqCst) == shared::DONE || !self.alive(actor)
        })
    }

    fn makes_processes(&self, call: &str) -> bool {
        self.context
            .spec
            .call(call)
            .is_some_and(|call| call.answer == ResultKind::Pid)
    }

    fn turn(&self, actor: usize, turn: u32) {
        let actor = &self.context.shared.actors[actor];
        actor.turn.store(turn, SeqCst);
        sys::futex_wake(&actor.turn);
    }

    fn interrupt(&self, actor: usize) {
        // A stopped process sees it when it goes on. (One that is not must not be sent this: it may
        // stop in its next step.)
        let stopped = self.is_stopped(actor);
        let actor = &self.context.shared.actors[actor];
        sys::signal_thread(
            actor.process.load(SeqCst),
            actor.thread.load(SeqCst),
            sys::INTERRUPT,
        );
        if stopped {
            sys::signal_thread(
                actor.process.load(SeqCst),
                actor.thread.load(SeqCst),
                libc::SIGCONT,
            );
        }
    }

    /// The step whose call an actor has begun and not come back from.
    fn in_call(&self, actor: usize) -> Option<usize> {
        let actor = &self.context.shared.actors[actor];
        (actor.state.load(SeqCst) == shared::CALL).then(|| actor.step.load(SeqCst) as usize)
    }

    /// The step in which an actor waits for others.
    fn waiting(&self, actor: usize) -> Option<usize> {
        self.in_call(actor)
            .filter(|_| self.ended.is_none() && self.alive(actor))
    }

    /// The steps in which actors wait for others.
    fn waiters(&self) -> Vec<usize> {
        (0..self.context.program.actors.len())
            .filter_map(|actor| self.waiting(actor))
            .collect()
    }

    /// Lists the waiting steps that ended during another one.
    fn note_late(&mut self, before: &[usize], during: usize) {
        let ended = before.iter().filter(|&&step| {
            step != during && self.context.shared.steps[step].done.load(SeqCst) == 1
        });
        self.late.extend(ended.map(|&step| (step, during)));
    }

    /// Waits until every actor is idle, has ended, or waits for others.
    fn settle(&mut self, during: usize) {
        let actors = self.context.program.actors.len();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let event = self.context.shared.event.load(SeqCst);
            if self.ended.is_none() {
                self.ended = sys::reap(self.leader, false).map(|(_, status)| status);
            }
            // Twice: who was looked at first may have been woken by who was looked at last, and is
            // now seen as resting, too.
            if (0..2).all(|_| (0..actors).all(|actor| self.at_rest(actor, during))) {
                break;
            }
            sys::futex_wait(&self.context.shared.event, event, Some(1));
        }
    }

    fn at_rest(&self, actor: usize, during: usize) -> bool {
        let shared = self.context.shared;
        let state = &shared.actors[actor];
        match state.state.load(SeqCst) {
            // A process's end is told to its parent, the leader, who must not be asked before what
            // it was told.
            shared::DONE => {
                actor == 0 || self.context.program.actors[actor].thread || self.stands(actor)
            }
            // The leader's end is everybody's whose thread it was; children go on.
            _ if self.ended.is_some()
                && (actor == 0 || self.context.program.actors[actor].thread) =>
            {
                true
            }
            shared::IDLE if state.turn.load(SeqCst) != shared::END && !self.has_steps(actor) => {
                // A step that may have told it something: to end, to stop.
                let told = self
                    .context
                    .program
                    .steps
                    .get(during)
                    .and_then(|step| self.context.spec.call(&step.call));
                !told.is_some_and(Call::concerns_processes) || self.sleeps(actor)
            }
            // It was ended by another, or stopped, and cannot take its turn.
            shared::IDLE => (0..2).all(|_| self.stands(actor)),
            shared::CALL => {
                let step = state.step.load(SeqCst);
                if self.context.program.steps[step as usize].timed && self.alive(actor) {
                    return false;
                }
                let twice = (0..2).all(|_| self.sleeps(actor));
                twice
                    && (self.stands(actor) || self.has_slept(actor))
                    && state.state.load(SeqCst) == shared::CALL
                    && state.step.load(SeqCst) == step
            }
            // The number first: without one there is nobody to look at yet.
            shared::NEW | shared::BUSY => state.thread.load(SeqCst) != 0 && !self.alive(actor),
            _ => false,
        }
    }

    /// Whether an actor may take a step that it has not taken; those that it missed while it waited
    /// are among them.
    fn has_steps(&self, actor: usize) -> bool {
        let ActorContext {
            program, shared, ..
        } = self.context;
        let turn = shared.actors[actor].turn.load(SeqCst) as usize;
        let due = program
            .steps
            .iter()
            .enumerate()
            .take(turn)
            .filter(|(_, step)| step.actor == actor);
        due.into_iter()
            .any(|(index, _)| shared.steps[index].done.load(SeqCst) == 0)
    }

    /// Whether a step sent the signal that ended the leader's process, its own: the last step of
    /// that process did. If another thread took the signal, the step returns or does not, as that
    /// thread is slow or quick to end everybody.
    fn is_own_end(&self, step: usize) -> bool {
        let ActorContext {
            program, shared, ..
        } = self.context;
        let signaled = self.ended.is_some_and(|status| libc::WIFSIGNALED(status));
        let sends = ["kill", "sigqueueinfo", "send_signal"]
            .iter()
            .any(|part| program.steps[step].call.contains(part));
        if !signaled || !sends {
            return false;
        }
        let done = |step: usize| shared.steps[step].done.load(SeqCst) == 1;
        let succeeded = !done(step) || shared.steps[step].result.load(SeqCst) >= 0;
        let is_own = |step: usize| {
            program.steps[step].actor == 0 || program.actors[program.steps[step].actor].thread
        };
        let in_call = |step: usize| self.in_call(program.steps[step].actor) == Some(step);
        let is_last = (step + 1..program.steps.len())
            .all(|later| !is_own(later) || !done(later) && !in_call(later));
        succeeded && is_own(step) && is_last
    }

    /// Ways in which signals met a step while it waited.
    fn ways(&self, step: usize) -> Vec<Interruption> {
        let program = self.context.program;
        let end = self
            .late
            .iter()
            .find(|(late, _)| *late == step)
            .map_or(program.steps.len(), |&(_, during)| during);
        if self.waited[step] {
            interruptions::met(program, step, end)
        } else {
            Vec::new()
        }
    }

    /// The letter of the state of an actor's thread, if there is such a thread.
    fn letter(&self, actor: usize) -> Option<char> {
        let mut stat = self.stats[actor].borrow_mut();
        let actor = &self.context.shared.actors[actor];
        let (process, thread) = (actor.process.load(SeqCst), actor.thread.load(SeqCst));
        if !matches!(&*stat, Some(open) if (open.process, open.thread) == (process, thread)) {
            *stat = Stat::open(process, thread);
        }
        stat.as_ref()?.letter()
    }

    fn alive(&self, actor: usize) -> bool {
        self.letter(actor)
            .is_some_and(|letter| !matches!(letter, 'Z' | 'X'))
    }

    /// Whether it sleeps until others act, is stopped, or is no more. (Linux' `D` ends by itself:
    /// it waits for a disk, a lock, or a module that a program's family of sockets made it look
    /// for.)
    fn sleeps(&self, actor: usize) -> bool {
        self.letter(actor)
            .is_none_or(|letter| !matches!(letter, 'R' | 'D'))
    }

    /// Whether an actor in a call has gone to sleep there. The letter alone does not tell: on
    /// Linux it is `S` from before the thread looks whether there is what is waited for, and one
    /// that others pre-empt then keeps it.
    fn has_slept(&self, actor: usize) -> bool {
        let actor = &self.context.shared.actors[actor];
        let (process, thread) = (actor.process.load(SeqCst), actor.thread.load(SeqCst));
        fs::read_to_string(format!("/proc/{process}/task/{thread}/status"))
            .ok()
            .and_then(|status| {
                let (_, rest) = status.split_once("\nvoluntary_ctxt_switches:")?;
                rest.lines().next()?.trim().parse::<u64>().ok()
            })
            .is_none_or(|switches| switches > actor.switches.load(SeqCst))
    }

    fn is_stopped(&self, actor: usize) -> bool {
        self.letter(actor).is_some_and(|letter| letter == 'T')
    }

    /// Whether it cannot go on by itself: stopped, or no more.
    fn stands(&self, actor: usize) -> bool {
        !self.alive(actor) || self.is_stopped(actor)
    }

    fn record(&self) -> String {
        let ActorContext {
            spec,
            program,
            shared,
        } = self.context;
        let mut record = String::new();
        for (index, step) in program.steps.iter().enumerate() {
            let Some(call) = spec.call(&step.call) else {
                continue;
            };
            let state = &shared.steps[index];
            let mut line = |what: &str, value: &str| {
                // Writing to a string does not fail.
                let _ = writeln!(record, "{index} {} {what}: {value}", step.call);
            };
            if self.waited[index] {
                line("waits", "yes");
            }
            if let Some((_, during)) = self.late.iter().find(|(late, _)| *late == index) {
                line("ends", &format!("during {during}"));
            }
            if self.is_own_end(index) {
                line("result", "the end of its process");
                continue;
            }
            if state.done.load(SeqCst) == 0 {
                line("result", "none");
                continue;
            }
            line("result", &self.answer(call, state, self.waited[index]));
            if !normalise::has_contents(state.result.load(SeqCst)) {
                continue;
            }
            for change in state.text.read().lines() {
                let (name, bytes) = change.split_once(' ').unwrap_or((change, ""));
                line(&format!("argument {name}"), bytes);
            }
        }
        let mut signals: Vec<_> = shared
            .noted()
            .iter()
            .map(|noted| self.signal(noted))
            .collect();
        signals.sort();
        record + &signals.concat()
    }

    fn answer(&self, call: &Call, state: &shared::StepState, waited: bool) -> String {
        let result = state.result.load(SeqCst);
        match call.answer {
            _ if (-4095..0).contains(&result) => errno::name(-result as i32).to_owned(),
            ResultKind::Ignored => "success".to_owned(),
            // Who waited for more room and was interrupted tells how much there was.
            ResultKind::Room if normalise::is_room(result) || waited && result > 0 => {
                "as much as there is room for".to_owned()
            }
            ResultKind::Truth => if result == 0 { "0" } else { "not 0" }.to_owned(),
            ResultKind::Someone => {
                normalise::someone(&RunPidNames(self.context), result).to_string()
            }
            ResultKind::Pid => normalise::pid(&RunPidNames(self.context), result).to_string(),
            ResultKind::Address
                if !(MAPPING_AREA..MAPPING_AREA + (1 << 32)).contains(&(result as u64)) =>
            {
                "address".to_owned()
            }
            ResultKind::Address => format!("{result:#x}"),
            ResultKind::Descriptors(_) => {
                format!(
                    "{result}, {} and {}",
                    state.parts[0].load(SeqCst),
                    state.parts[1].load(SeqCst)
                )
            }
            _ => result.to_string(),
        }
    }

    fn signal(&self, noted: &shared::Noted) -> String {
        let [signal, code, pid, value] = [0, 1, 2, 3].map(|index| noted.what[index].load(SeqCst));
        let sender = if code <= 0 || signal == libc::SIGCHLD {
            normalise::pid(&RunPidNames(self.context), pid.into())
        } else {
            0
        };
        let value = if code == libc::SI_QUEUE || signal == libc::SIGCHLD {
            value
        } else {
            0
        };
        let mask = noted.mask.load(SeqCst);
        format!(
            "{} handler called: signal {signal}, code {code}, from {sender}, value {value}, blocked {mask:x}\n",
            noted.step.load(SeqCst)
        )
    }
}

/// The file in /proc that has the state of a thread: it is read again and again, and opened once.
struct Stat {
    process: i32,
    thread: i32,
    file: File,
}

impl Stat {
    fn open(process: i32, thread: i32) -> Option<Self> {
        let file = File::open(format!("/proc/{process}/task/{thread}/stat")).ok()?;
        Some(Self {
            process,
            thread,
            file,
        })
    }

    /// The letter of the thread's state; `None` if there is no such thread any more.
    fn letter(&self) -> Option<char> {
        // What comes before the letter are a number and a name of 16 bytes at most.
        let mut bytes = [0; 64];
        let length = self.file.read_at(&mut bytes, 0).ok()?;
        let end = bytes[..length].windows(2).rposition(|two| two == b") ")?;
        bytes.get(end + 2).map(|&letter| letter.into())
    }
}

/// The letter of a thread's state in /proc, if there is such a thread.
pub fn letter(process: i32, thread: i32) -> Option<char> {
    Stat::open(process, thread)?.letter()
}
