//! Ways in which a signal meets a call that waits: programs that show each of them, and which of
//! them a program has shown.
//!
//! The programs are made of the specification's lines `wait`: who waits first says what signals do
//! to it, and a process of its own, which SIGSTOP does not stop, sends them.

use crate::program::{Actor, Fill, Memory, Place, Program, Step, Value};
use crate::spec::Wait;

const SIGHUP: i64 = 1;
const SIGUSR1: i64 = 10;
const SIGUSR2: i64 = 12;
const SIGTERM: i64 = 15;
const SIGCONT: i64 = 18;
const SIGSTOP: i64 = 19;
const SIG_IGN: i64 = 1;
const SA_SIGINFO: i64 = 4;
const SA_RESTORER: i64 = 0x0400_0000;
const SA_RESTART: i64 = 0x1000_0000;

/// A way in which a signal meets who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The signal has a handler without SA_RESTART.
    Handled,
    /// The signal has a handler with SA_RESTART.
    Restarted,
    /// The signal is ignored.
    Ignored,
    /// The signal is blocked, and has a handler.
    Blocked,
    /// The signal is SIGSTOP, and SIGCONT without a handler follows.
    Stopped,
    /// The signal is SIGSTOP, and SIGCONT with a handler without SA_RESTART follows.
    Continued,
}

impl Interruption {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Handled,
        Self::Restarted,
        Self::Ignored,
        Self::Blocked,
        Self::Stopped,
        Self::Continued,
    ];

    /// Words for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handled => "handler",
            Self::Restarted => "SA_RESTART",
            Self::Ignored => "ignored",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
            Self::Continued => "stopped with a handler of SIGCONT",
        }
    }

    /// The signals that are sent.
    const fn signals(self) -> &'static [i64] {
        match self {
            Self::Handled => &[SIGUSR1],
            Self::Restarted => &[SIGUSR2],
            Self::Ignored => &[SIGHUP],
            Self::Blocked => &[SIGTERM],
            Self::Stopped | Self::Continued => &[SIGSTOP, SIGCONT],
        }
    }

    /// The steps that say what the signals do.
    fn prepares(self) -> Vec<Step> {
        let handler =
            |signal, flags| action(signal, Value::Handler, flags | SA_SIGINFO | SA_RESTORER);
        match self {
            Self::Handled => vec![handler(SIGUSR1, 0)],
            Self::Restarted => vec![handler(SIGUSR2, SA_RESTART)],
            Self::Ignored => vec![action(SIGHUP, Value::Number(SIG_IGN), SA_RESTORER)],
            Self::Blocked => {
                let mask = memory(8, vec![(0, 8, Value::Number(bit(SIGTERM)))]);
                vec![
                    handler(SIGTERM, 0),
                    step(
                        "rt_sigprocmask",
                        vec![Value::Number(0), mask, Value::Number(0), Value::Number(8)],
                    ),
                ]
            }
            Self::Stopped => Vec::new(),
            Self::Continued => vec![handler(SIGCONT, 0)],
        }
    }
}

/// Ways that share a program. Those that should end no wait are in one: if one of them does, the
/// record tells which.
const TOGETHER: [&[Interruption]; 4] = [
    &[Interruption::Handled],
    &[Interruption::Restarted],
    &[
        Interruption::Ignored,
        Interruption::Blocked,
        Interruption::Stopped,
    ],
    &[Interruption::Continued],
];

/// Programs of a line `wait`.
pub const PER_WAIT: usize = TOGETHER.len();

/// The programs of a line `wait`.
pub fn programs(wait: &Wait) -> impl Iterator<Item = Program> {
    TOGETHER.iter().map(|ways| program(wait, ways))
}

fn program(wait: &Wait, ways: &[Interruption]) -> Program {
    let Wait { program, waits } = wait;
    let waiter = program.steps[*waits].actor;
    let sender = program.actors.len();
    let mut steps: Vec<_> = ways.iter().flat_map(|way| way.prepares()).collect();
    steps.iter_mut().for_each(|step| step.actor = waiter);
    let (before, after) = program.steps.split_at(waits + 1);
    let prepared = steps.len();
    let signals: Vec<i64> = ways.iter().flat_map(|way| way.signals()).copied().collect();
    let moved = |step: &Step, by: &dyn Fn(usize) -> usize| {
        let mut step = step.clone();
        step.arguments.iter_mut().for_each(|value| value.shift(by));
        step
    };
    let place = |index: usize| index + prepared + if index > *waits { signals.len() } else { 0 };
    steps.extend(before.iter().map(|step| moved(step, &place)));
    steps.extend(signals.iter().map(|&signal| Step {
        actor: sender,
        ..step("tkill", vec![Value::Who(waiter), Value::Number(signal)])
    }));
    steps.extend(after.iter().map(|step| moved(step, &place)));
    let actors = [
        program.actors.as_slice(),
        &[Actor {
            thread: false,
            nobody: false,
        }],
    ]
    .concat();
    Program {
        actors,
        steps,
        ..program.clone()
    }
}

fn action(signal: i64, handler: Value, flags: i64) -> Step {
    let action = memory(
        32,
        vec![
            (0, 8, handler),
            (8, 8, Value::Number(flags)),
            (16, 8, Value::Restorer),
        ],
    );
    step(
        "rt_sigaction",
        vec![
            Value::Number(signal),
            action,
            Value::Number(0),
            Value::Number(8),
        ],
    )
}

fn step(call: &str, arguments: Vec<Value>) -> Step {
    Step {
        actor: 0,
        call: call.to_owned(),
        arguments,
        timed: false,
    }
}

fn memory(size: usize, fields: Vec<(usize, usize, Value)>) -> Value {
    Value::Memory(Memory {
        size,
        place: Place::At(0),
        fill: Fill::Zero,
        fields,
    })
}

/// The bit of a signal in a set.
const fn bit(signal: i64) -> i64 {
    1 << (signal - 1)
}

/// The ways that a step has met which waited until step `ended`, by what other actors sent it.
pub fn met(program: &Program, waited: usize, ended: usize) -> Vec<Interruption> {
    let waiter = program.steps[waited].actor;
    let before = &program.steps[..waited];
    let during = program
        .steps
        .iter()
        .take(ended.saturating_add(1))
        .skip(waited + 1);
    let sent = during.filter_map(
        |step| match (step.call.as_str(), step.arguments.as_slice()) {
            ("tkill", [Value::Who(who), Value::Number(signal)]) if *who == waiter => Some(*signal),
            _ => None,
        },
    );
    sent.filter_map(|signal| way(before, signal)).collect()
}

/// In which way a signal meets who waits after these steps.
fn way(before: &[Step], signal: i64) -> Option<Interruption> {
    let field = |memory: &Value, at: usize| match memory {
        Value::Memory(memory) => memory
            .fields
            .iter()
            .find(|(offset, ..)| *offset == at)
            .map(|(.., value)| value.clone()),
        _ => None,
    };
    let number = |value: Option<Value>| match value {
        Some(Value::Number(number)) => number,
        _ => 0,
    };
    let blocks = |step: &Step| {
        step.call == "rt_sigprocmask"
            && step.arguments[0] == Value::Number(0)
            && number(field(&step.arguments[1], 0)) & bit(signal) != 0
    };
    let sets =
        |step: &&Step| step.call == "rt_sigaction" && step.arguments[0] == Value::Number(signal);
    let action = before
        .iter()
        .rev()
        .find(sets)
        .map(|step| &step.arguments[1]);
    let handler = action.and_then(|action| field(action, 0));
    let restarts = action.is_some_and(|action| number(field(action, 8)) & SA_RESTART != 0);
    match (signal, handler) {
        (1..=64, _) if before.iter().any(blocks) => Some(Interruption::Blocked),
        (SIGCONT, Some(Value::Handler)) => Some(Interruption::Continued),
        (SIGCONT, None) => Some(Interruption::Stopped),
        (_, Some(Value::Handler)) => Some(if restarts {
            Interruption::Restarted
        } else {
            Interruption::Handled
        }),
        (_, Some(Value::Number(SIG_IGN))) => Some(Interruption::Ignored),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    #[test]
    fn each_way_has_a_program_that_shows_it() {
        let spec = Spec::builtin();
        let wait = &spec
            .areas
            .iter()
            .find(|area| !area.waits.is_empty())
            .expect("some call waits")
            .waits[0];
        let mut ways = Vec::new();
        for program in programs(wait) {
            let waits = program
                .steps
                .iter()
                .position(|step| step.call == "tkill")
                .expect("a signal is sent")
                - 1;
            ways.extend(met(&program, waits, program.steps.len()));
            // What ended the wait at once was met; what came afterwards was not.
            assert_eq!(met(&program, waits, waits), []);
        }
        assert_eq!(ways, Interruption::ALL);
    }

    #[test]
    fn each_call_that_signals_interrupt_waits_in_some_line() {
        let spec = Spec::builtin();
        let interrupted = crate::errno::number("EINTR").expect("there is such an error");
        // Called by a program it has nothing to take up again.
        let is_missing =
            |call: &&crate::spec::Call| !spec.waits(call) && call.name != "restart_syscall";
        let calls = spec
            .calls
            .iter()
            .filter(|call| call.errors.contains(&interrupted));
        let missing: Vec<_> = calls.filter(is_missing).map(|call| &call.name).collect();
        assert!(missing.is_empty(), "without a line `wait`: {missing:?}");
    }

    #[test]
    fn steps_that_follow_know_what_came_before() {
        let spec = Spec::parse(&[(
            "area",
            "1 f(a: fd) -> fd file\n2 tkill(a: who, b: 0)\n13 rt_sigaction(a: 0, b: 0, c: 0, d: 0)\nwait f(1); f($0) => f($1); f($2)",
        )]);
        let spec = spec.expect("it is right");
        let program = programs(&spec.areas[0].waits[0])
            .next()
            .expect("there is one");
        let text = program.to_string();
        assert!(
            text.ends_with("0 f(1)\n0 f($1)\n2 tkill(who0, 10)\n1 f($2)\n1 f($4)\n"),
            "{text}"
        );
        assert_eq!(
            program
                .actors
                .iter()
                .map(|actor| actor.thread)
                .collect::<Vec<_>>(),
            [false, true, false]
        );
    }
}
