//! Run of a model: the thread whose turn it is, and the events that threads wait for.

use std::collections::HashMap;
use std::fmt::Write;
use std::panic::Location;
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::Kept;
use crate::LockMode;
use crate::model::Workers;
use crate::plan::{Choice, Plan};

/// Most threads of a model.
pub(crate) const THREADS: usize = 8;
/// Most steps of a run.
const STEPS: u32 = 20_000;
/// Number of each thread's last steps that are shown.
const SHOWN: usize = 10;

/// Event that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The thread's turn: nothing else keeps it from going on.
    Turn,
    /// A turn of another thread: the thread has yielded.
    Others,
    /// A lock.
    Lock(usize),
    /// A notification at an address.
    Queue(usize),
    /// The thread's permit, at most until a time.
    Permit(Option<u64>),
    /// The end of another thread.
    End(usize),
    /// No event: the thread has ended.
    Over,
}

struct Thread {
    name: String,
    wait: Wait,
    permit: bool,
    /// Only the clock could end its sleep, and nobody has had the turn since.
    by_time_alone: bool,
    kept: Option<Kept>,
}

struct Step {
    thread: usize,
    what: &'static str,
    at: &'static Location<'static>,
}

/// Owners of a lock.
#[derive(Default)]
struct Held {
    owner: Option<usize>,
    sharing: usize,
}

struct State {
    threads: Vec<Thread>,
    turn: usize,
    clock_ns: u64,
    locks: HashMap<usize, Held>,
    /// Threads that wait at addresses, in order.
    queues: Vec<(usize, usize)>,
    plan: Plan,
    steps: Vec<Step>,
    failure: Option<String>,
}

/// See the module.
pub(crate) struct Run {
    state: Mutex<State>,
    turns: [Condvar; THREADS],
    over: Condvar,
    pub(crate) workers: Workers,
}

type Guard<'a> = MutexGuard<'a, State>;

impl State {
    /// Possible next steps, those that pre-empt last. `goes_on`: a thread that can go on and would.
    fn choices(&self, goes_on: Option<usize>) -> Vec<Choice> {
        let mut choices = Vec::new();
        choices.extend(goes_on.map(|thread| Choice {
            thread,
            time: false,
            preempts: false,
        }));
        let preempts = goes_on.is_some();
        let ready = (0..self.threads.len())
            .filter(|&thread| Some(thread) != goes_on && self.threads[thread].wait == Wait::Turn);
        choices.extend(ready.map(|thread| Choice {
            thread,
            time: false,
            preempts,
        }));
        let deadline = |thread: &usize| match self.threads[*thread].wait {
            Wait::Permit(Some(deadline)) => Some((deadline, *thread)),
            _ => None,
        };
        if let Some((_, thread)) = (0..self.threads.len())
            .filter_map(|thread| deadline(&thread))
            .min()
        {
            choices.push(Choice {
                thread,
                time: true,
                preempts: !choices.is_empty(),
            });
        }
        choices
    }

    /// Gives the turn to one of those that can go on.
    fn pass_turn(&mut self, goes_on: Option<usize>) -> Result<(), String> {
        let choices = self.choices(goes_on);
        if choices.is_empty() {
            return Err("nobody can go on: a deadlock, or a wake-up was lost".into());
        }
        if self.plan.step >= STEPS {
            return Err(format!("no end after {STEPS} steps"));
        }
        let choice = self.plan.choose(&choices)?;
        if choice.thread != self.turn {
            self.threads
                .iter_mut()
                .for_each(|thread| thread.by_time_alone = false);
        }
        if choice.time {
            self.pass_time(choice.thread);
            self.threads[choice.thread].by_time_alone = choices.len() == 1;
        }
        self.turn = choice.thread;
        Ok(())
    }

    /// Time passes up to a sleeper's deadline.
    fn pass_time(&mut self, sleeper: usize) {
        if let Wait::Permit(Some(deadline)) = self.threads[sleeper].wait {
            self.clock_ns = self.clock_ns.max(deadline);
        }
        let now = self.clock_ns;
        for thread in &mut self.threads {
            if matches!(thread.wait, Wait::Permit(Some(deadline)) if deadline <= now) {
                thread.wait = Wait::Turn;
            }
        }
    }

    /// All that wait for this may go on.
    fn wake(&mut self, waits_for: Wait) {
        for thread in self
            .threads
            .iter_mut()
            .filter(|thread| thread.wait == waits_for)
        {
            thread.wait = Wait::Turn;
        }
    }

    fn note(&mut self, thread: usize, what: &'static str, at: &'static Location<'static>) {
        self.steps.push(Step { thread, what, at });
    }

    /// Text about a run that failed: where each thread waits, and the last steps.
    fn describe(&self, why: &str) -> String {
        let mut text = format!("{why}\n");
        for (number, thread) in self.threads.iter().enumerate() {
            let waits = match thread.wait {
                Wait::Turn if number == self.turn => "had the turn".to_owned(),
                Wait::Turn | Wait::Others => "could go on".to_owned(),
                Wait::Lock(lock) => match self.locks.get(&lock).and_then(|held| held.owner) {
                    Some(owner) => format!("waits for a lock that thread {owner} has"),
                    None => "waits for a lock that is shared".to_owned(),
                },
                Wait::Queue(_) => "waits to be notified".to_owned(),
                Wait::Permit(None) => "sleeps".to_owned(),
                Wait::Permit(Some(deadline)) => {
                    format!("sleeps until {deadline} (it is {})", self.clock_ns)
                }
                Wait::End(other) => format!("waits for the end of thread {other}"),
                Wait::Over => "has ended".to_owned(),
            };
            let _ = writeln!(
                text,
                "thread {number} ({}) {waits}; its last steps:",
                thread.name
            );
            let mine: Vec<_> = self
                .steps
                .iter()
                .enumerate()
                .filter(|(_, step)| step.thread == number)
                .collect();
            for (at, step) in &mine[mine.len().saturating_sub(SHOWN)..] {
                let _ = writeln!(
                    text,
                    "  {at:4} {} at {}:{}",
                    step.what,
                    step.at.file(),
                    step.at.line()
                );
            }
        }
        text
    }
}

impl Run {
    /// A run whose first thread has the turn.
    pub(crate) fn new(plan: Plan, workers: Workers) -> Self {
        Self {
            state: Mutex::new(State {
                threads: Vec::new(),
                turn: 0,
                clock_ns: 1,
                locks: HashMap::new(),
                queues: Vec::new(),
                plan,
                steps: Vec::new(),
                failure: None,
            }),
            turns: [const { Condvar::new() }; THREADS],
            over: Condvar::new(),
            workers,
        }
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().expect("nobody panics who has it")
    }

    /// Adds a thread and returns its number.
    pub(crate) fn begin(&self, name: &str) -> usize {
        let mut state = self.lock();
        assert!(
            state.threads.len() < THREADS,
            "a model has at most {THREADS} threads"
        );
        state.threads.push(Thread {
            name: name.into(),
            wait: Wait::Turn,
            permit: false,
            by_time_alone: false,
            kept: None,
        });
        state.threads.len() - 1
    }

    /// Waits until the run is over; returns its plan, and what was wrong.
    pub(crate) fn wait(&self) -> (Plan, Option<String>) {
        let over = |state: &mut State| {
            state.failure.is_none() && state.threads.iter().any(|thread| thread.wait != Wait::Over)
        };
        let mut state = self
            .over
            .wait_while(self.lock(), over)
            .expect("nobody panics who has it");
        let plan = std::mem::replace(
            &mut state.plan,
            Plan::new(crate::plan::Way::Replay(Vec::new())),
        );
        (plan, state.failure.take())
    }

    /// Waits for a thread's turn.
    pub(crate) fn await_turn(&self, me: usize) {
        self.until_turn(self.lock(), me);
    }

    fn until_turn(&self, state: Guard<'_>, me: usize) {
        // After a failure nobody has it any more: the threads of that run stay where they are.
        let others = |state: &mut State| state.turn != me || state.failure.is_some();
        drop(
            self.turns[me]
                .wait_while(state, others)
                .expect("nobody panics who has it"),
        );
    }

    /// Somebody gets the turn, maybe the caller, who had it; returns when it is the caller's.
    fn offer(&self, mut state: Guard<'_>, me: usize) {
        let passed = state.pass_turn(Some(me));
        self.passed(state, me, passed);
    }

    /// Somebody else gets the turn, which the caller had; returns when it is the caller's again.
    fn pass(&self, mut state: Guard<'_>, me: usize) {
        let passed = state.pass_turn(None);
        self.passed(state, me, passed);
    }

    fn passed(&self, mut state: Guard<'_>, me: usize, passed: Result<(), String>) {
        match passed {
            Ok(()) if state.turn == me => return,
            Ok(()) => self.turns[state.turn].notify_one(),
            Err(why) => self.fail_with(&mut state, &why),
        }
        self.until_turn(state, me);
    }

    fn fail_with(&self, state: &mut State, why: &str) {
        if state.failure.is_none() {
            state.failure = Some(state.describe(why));
        }
        self.over.notify_one();
    }

    /// The thread has ended, or has panicked with a message.
    pub(crate) fn ended(&self, me: usize, panic: Option<&str>) {
        let mut state = self.lock();
        if let Some(message) = panic {
            return self.fail_with(&mut state, &format!("thread {me} panicked: {message}"));
        }
        state.threads[me].wait = Wait::Over;
        state.wake(Wait::End(me));
        if state.threads.iter().all(|thread| thread.wait == Wait::Over) {
            return self.over.notify_one();
        }
        match state.pass_turn(None) {
            Ok(()) => self.turns[state.turn].notify_one(),
            Err(why) => self.fail_with(&mut state, &why),
        }
    }

    pub(crate) fn point(&self, me: usize, what: &'static str, at: &'static Location<'static>) {
        if std::thread::panicking() {
            return;
        }
        let mut state = self.lock();
        state.note(me, what, at);
        self.offer(state, me);
    }

    pub(crate) fn yields(&self, me: usize, at: &'static Location<'static>) {
        let mut state = self.lock();
        state.note(me, "yield", at);
        state.threads[me].wait = Wait::Others;
        let passed = if state.choices(None).is_empty() {
            Ok(())
        } else {
            state.pass_turn(None)
        };
        state.threads[me].wait = Wait::Turn;
        self.passed(state, me, passed);
    }

    /// Sleeps until what is waited for has come.
    pub(crate) fn sleep(
        &self,
        me: usize,
        wait: Wait,
        what: &'static str,
        at: &'static Location<'static>,
    ) {
        let mut state = self.lock();
        state.note(me, what, at);
        if let Wait::End(other) = wait
            && state.threads[other].wait == Wait::Over
        {
            return;
        }
        state.threads[me].wait = wait;
        self.pass(state, me);
    }

    pub(crate) fn acquire(
        &self,
        me: usize,
        lock: usize,
        mode: LockMode,
        at: &'static Location<'static>,
    ) {
        self.point(me, mode.action(), at);
        loop {
            let mut state = self.lock();
            if take(&mut state, me, lock, mode) {
                return;
            }
            if std::thread::panicking() {
                // It goes on without, so that its panic is what is reported.
                return;
            }
            state.threads[me].wait = Wait::Lock(lock);
            self.pass(state, me);
        }
    }

    pub(crate) fn try_acquire(
        &self,
        me: usize,
        lock: usize,
        at: &'static Location<'static>,
    ) -> bool {
        self.point(me, "try lock", at);
        take(&mut self.lock(), me, lock, LockMode::Exclusive)
    }

    pub(crate) fn release(&self, me: usize, lock: usize) {
        let mut state = self.lock();
        let held = state.locks.entry(lock).or_default();
        if held.owner == Some(me) {
            held.owner = None;
        } else {
            held.sharing = held.sharing.saturating_sub(1);
        }
        if held.owner.is_none() && held.sharing == 0 {
            state.locks.remove(&lock);
        }
        state.wake(Wait::Lock(lock));
    }

    pub(crate) fn park(&self, me: usize, deadline_ns: Option<u64>, at: &'static Location<'static>) {
        self.point(me, "park", at);
        let mut state = self.lock();
        state.threads[me].by_time_alone = false;
        if !std::mem::take(&mut state.threads[me].permit)
            && deadline_ns.is_none_or(|deadline| deadline > state.clock_ns)
        {
            state.threads[me].wait = Wait::Permit(deadline_ns);
            self.pass(state, me);
        }
    }

    pub(crate) fn unpark(&self, me: usize, thread: usize, at: &'static Location<'static>) {
        self.point(me, "unpark", at);
        let mut state = self.lock();
        let Some(other) = state.threads.get_mut(thread) else {
            return;
        };
        match other.wait {
            Wait::Permit(_) => other.wait = Wait::Turn,
            _ => other.permit = true,
        }
    }

    pub(crate) fn wait_at(
        &self,
        me: usize,
        queue: usize,
        lock: usize,
        at: &'static Location<'static>,
    ) {
        self.lock().queues.push((queue, me));
        self.release(me, lock);
        self.sleep(me, Wait::Queue(queue), "wait", at);
        self.acquire(me, lock, LockMode::Exclusive, at);
    }

    pub(crate) fn notify_at(
        &self,
        me: usize,
        queue: usize,
        most: usize,
        at: &'static Location<'static>,
    ) {
        self.point(me, "notify", at);
        let mut state = self.lock();
        for _ in 0..most {
            let Some(at) = state.queues.iter().position(|(here, _)| *here == queue) else {
                return;
            };
            let (_, thread) = state.queues.remove(at);
            state.threads[thread].wait = Wait::Turn;
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.lock().clock_ns
    }

    pub(crate) fn wait_satisfied(&self, me: usize) {
        let mut state = self.lock();
        if state.threads[me].by_time_alone {
            self.fail_with(
                &mut state,
                &format!("thread {me} slept until its deadline with its condition true: a wake-up was lost"),
            );
            self.until_turn(state, me);
        }
    }

    pub(crate) fn kept(&self, thread: usize) -> Option<Kept> {
        self.lock().threads[thread].kept.clone()
    }

    pub(crate) fn keep(&self, thread: usize, kept: Kept) {
        self.lock().threads[thread].kept = Some(kept);
    }
}

/// Takes a lock if it can be had.
fn take(state: &mut State, me: usize, lock: usize, mode: LockMode) -> bool {
    let held = state.locks.entry(lock).or_default();
    match mode {
        _ if held.owner.is_some() => return false,
        LockMode::Shared => held.sharing += 1,
        LockMode::Exclusive if held.sharing > 0 => return false,
        LockMode::Exclusive => held.owner = Some(me),
    }
    true
}
