use super::*;
use crate::numbered_lines::KEPT;
use crate::spec::Signal;

const MIB: u64 = 1 << 20;

fn base() -> Resources {
    Resources {
        cpus: Cpus {
            total: 5,
            supervisor: 1,
            in_use: 0,
            free: 4,
            lost: 0,
            quarantined: 0,
        },
        memory: Memory {
            total: 2048 * MIB,
            supervisor: 48 * MIB,
            in_use: 0,
            free: 2000 * MIB,
            leaked: 0,
            quarantined: 0,
        },
        instances: 0,
    }
}

fn spec(name: &str, program: Program) -> Spec {
    Spec {
        name: name.into(),
        cpus: 2,
        memory: ("33M".into(), 33 * MIB),
        root: Root::Folder,
        program,
        seed: 7,
    }
}

fn seen(status: u8, out: impl AsRef<[u8]>, err: &str) -> Observed {
    Observed {
        status,
        out: out.as_ref().to_vec(),
        err: err.as_bytes().to_vec(),
    }
}

fn entry(name: &str, id: u32, state: &str, exit_code: Option<u8>) -> Entry {
    let reclaim = matches!(state, "exited" | "panicked" | "halted");
    Entry {
        name: name.into(),
        id,
        state: state.into(),
        exit_code,
        cpus: 2,
        memory: 34 * MIB,
        reclaim: reclaim.then_some(Reclaim {
            scrubbed_bytes: 34 * MIB,
            lost_cpus: 0,
            leaked_bytes: 0,
        }),
    }
}

/// A model with one instance that was started.
fn with(program: Program) -> Model {
    let mut model = Model::new(base());
    model
        .judge(&Op::RunDetached(spec("a", program)), &seen(0, "a\n", ""))
        .unwrap();
    model
}

/// Resources while instances have so many CPUs and so much memory.
fn used(cpus: u32, memory: u64, instances: usize) -> Resources {
    let mut now = base();
    (now.cpus.in_use, now.cpus.free) = (cpus, 4 - cpus);
    (now.memory.in_use, now.memory.free) = (memory, now.memory.free - memory);
    now.instances = instances;
    now
}

#[test]
fn a_life_as_it_should_be() {
    let mut model = Model::new(base());
    let op = Op::Create(spec("a", Program::Exit(3)));
    model.judge(&op, &seen(0, "a\n", "")).unwrap();
    model.observe(&[entry("a", 1, "created", None)]).unwrap();
    let mut staged = used(2, 0, 1);
    (staged.memory.free, staged.memory.supervisor) = (1966 * MIB, 82 * MIB);
    model.account(&staged).unwrap();
    model
        .judge(
            &op,
            &seen(1, "", "skerry: there is an instance called a already\n"),
        )
        .unwrap();
    model
        .judge(&Op::Start("a".into()), &seen(0, "a\n", ""))
        .unwrap();
    model.observe(&[entry("a", 1, "running", None)]).unwrap();
    model.account(&used(2, 34 * MIB, 1)).unwrap();
    model
        .judge(&Op::Wait("a".into(), 1), &seen(0, "3\n", ""))
        .unwrap();
    model.observe(&[entry("a", 1, "exited", Some(3))]).unwrap();
    model.account(&used(0, 0, 1)).unwrap();
    model.judge(&Op::Prune, &seen(0, "a\n", "")).unwrap();
    model.observe(&[]).unwrap();
    model.account(&base()).unwrap();
}

#[test]
fn what_is_lost_is_noticed() {
    let mut model = with(Program::Sleep);
    model.observe(&[entry("a", 1, "running", None)]).unwrap();
    model
        .judge(&Op::RemoveForce("a".into()), &seen(0, "a\n", ""))
        .unwrap();
    model.observe(&[]).unwrap();
    let lost = |change: fn(&mut Resources)| {
        let mut now = base();
        change(&mut now);
        model.account(&now).unwrap_err()
    };
    assert!(lost(|now| (now.cpus.lost, now.cpus.free) = (2, 2)).contains("CPUs are lost"));
    assert!(lost(|now| (now.cpus.in_use, now.cpus.free) = (2, 2)).contains("CPUs of instances"));
    assert!(lost(|now| now.cpus.free = 2).contains("free CPUs"));
    assert!(lost(|now| now.memory.leaked = 1).contains("leaked"));
    assert!(lost(|now| now.memory.quarantined = 1).contains("in quarantine"));
    assert!(lost(|now| now.cpus.quarantined = 1).contains("in quarantine"));
    assert!(
        lost(|now| (now.memory.in_use, now.memory.free) = (34 * MIB, 1966 * MIB))
            .contains("memory of instances")
    );
    assert!(
        lost(|now| (now.memory.supervisor, now.memory.free) = (82 * MIB, 1966 * MIB))
            .contains("of the supervisor")
    );
    assert!(lost(|now| now.instances = 1).contains("instances"));
    // A name still taken, and one that came from nowhere.
    assert!(model.observe(&[entry("a", 1, "halted", None)]).is_err());
    let taken = seen(1, "", "skerry: there is an instance called a already\n");
    assert!(
        model
            .judge(&Op::Create(spec("a", Program::Sleep)), &taken)
            .is_err()
    );
}

#[test]
fn an_instance_that_did_not_give_everything_back_is_noticed() {
    let mut model = with(Program::Exit(3));
    let mut short = entry("a", 1, "exited", Some(3));
    short.reclaim = Some(Reclaim {
        scrubbed_bytes: 32 * MIB,
        lost_cpus: 0,
        leaked_bytes: 0,
    });
    assert!(
        model
            .observe(&[short])
            .unwrap_err()
            .contains("not everything came back")
    );
    assert!(
        model.observe(&[entry("a", 1, "exited", Some(4))]).is_err(),
        "another status"
    );
    assert!(model.observe(&[entry("a", 1, "panicked", None)]).is_err());
    model.observe(&[entry("a", 1, "exited", Some(3))]).unwrap();
    assert!(
        model.observe(&[entry("a", 1, "running", None)]).is_err(),
        "an end is final"
    );
    assert!(
        model.observe(&[entry("a", 2, "exited", Some(3))]).is_err(),
        "another number"
    );
}

#[test]
fn what_cannot_be_is_refused_for_the_right_reason() {
    let mut model = with(Program::Sleep);
    let refusal = |model: &mut Model, change: fn(&mut Spec), says: &str| {
        let mut spec = spec("b", Program::Exit(0));
        change(&mut spec);
        let op = Op::Create(spec);
        model.judge(&op, &seen(0, "b\n", "")).expect_err(says);
        model
            .judge(&op, &seen(1, "", "skerry: for no reason\n"))
            .expect_err(says);
        model
            .judge(&op, &seen(1, "", &format!("skerry: {says}\n")))
            .unwrap();
        model
            .judge(&op, &seen(125, "", &format!("skerry: {says}\n")))
            .expect_err("the status of another verb");
    };
    refusal(
        &mut model,
        |spec| spec.cpus = 3,
        "only 2 CPUs are free (asked for 3)",
    );
    refusal(&mut model, |spec| spec.cpus = 0, "an instance needs a CPU");
    refusal(
        &mut model,
        |spec| spec.name = "-b".into(),
        "cannot be a name",
    );
    refusal(
        &mut model,
        |spec| spec.name = "a".into(),
        "called a already",
    );
    refusal(&mut model, |spec| spec.memory.1 = 2 * MIB, "too little");
    refusal(
        &mut model,
        |spec| spec.memory.1 = 64 << 30,
        "memory are free (asked for 64 GiB)",
    );
    refusal(
        &mut model,
        |spec| {
            spec.root = Root::Refused {
                path: "x",
                says: "gunzip",
            }
        },
        "unpack it with gunzip",
    );
    assert_eq!(model.instances.len(), 1);
    // An error is one line, and the tool's.
    let op = Op::Create(spec("a", Program::Exit(0)));
    model
        .judge(
            &op,
            &seen(1, "", "thread main panicked\nskerry: called a already\n"),
        )
        .unwrap_err();
}

#[test]
fn of_what_may_end_both_are_right_until_one_is_seen() {
    let mut model = with(Program::Exit(3));
    model.account(&used(2, 34 * MIB, 1)).unwrap();
    model.account(&used(0, 0, 1)).unwrap();
    model
        .judge(&Op::StopForce("a".into()), &seen(0, "a\n", ""))
        .unwrap();
    for wrong in [
        entry("a", 1, "running", None),
        entry("a", 1, "exited", Some(143)),
        entry("a", 1, "panicked", None),
    ] {
        assert!(model.observe(&[wrong]).is_err());
    }
    model.observe(&[entry("a", 1, "halted", None)]).unwrap();
    assert!(
        model
            .judge(&Op::Wait("a".into(), 1), &seen(0, "3\n", ""))
            .is_err()
    );
    model
        .judge(&Op::Wait("a".into(), 1), &seen(0, "137\n", ""))
        .unwrap();
}

#[test]
fn signals_end_what_is_ready_as_they_should() {
    let term = Signal {
        name: "TERM",
        number: 15,
        fatal: true,
        handled: true,
    };
    let quiet = Signal {
        name: "WINCH",
        number: 28,
        fatal: false,
        handled: false,
    };
    let kill = |signal| Op::Kill("a".into(), signal);
    let mut model = with(Program::Trap(9));
    model.is_ready("a");
    model.judge(&kill(quiet), &seen(0, "a\n", "")).unwrap();
    assert!(model.instances["a"].surely_runs());
    model.judge(&kill(term), &seen(0, "a\n", "")).unwrap();
    assert!(
        model
            .observe(&[entry("a", 1, "exited", Some(143))])
            .is_err(),
        "it has a handler"
    );
    model
        .judge(&Op::Wait("a".into(), 1), &seen(0, "9\n", ""))
        .unwrap();
    model
        .judge(&Op::Logs("a".into()), &seen(0, "ready\nsignal 15\n", ""))
        .unwrap();
    model
        .judge(&Op::Logs("a".into()), &seen(0, "ready\n", ""))
        .unwrap_err();
    model
        .judge(&kill(term), &seen(1, "", "skerry: a does not run\n"))
        .unwrap();
    model.judge(&kill(term), &seen(0, "a\n", "")).unwrap_err();
    // Before it is ready, the signal may come to nobody.
    let mut early = with(Program::Sleep);
    early.judge(&kill(term), &seen(0, "a\n", "")).unwrap();
    early.observe(&[entry("a", 1, "running", None)]).unwrap();
    early
        .observe(&[entry("a", 1, "exited", Some(143))])
        .unwrap();
}

#[test]
fn output_is_whole() {
    let spec = spec(
        "a",
        Program::Write {
            out: 30_000,
            err: 10,
            code: 5,
        },
    );
    let [out, err] = spec.program.output(7, &[]).unwrap();
    let err = String::from_utf8(err).unwrap();
    let judge = |seen: &Observed, whole| {
        Model::new(base()).judge_run(&spec, Vec::new(), whole, false, seen)
    };
    judge(&seen(5, &out, &err), true).unwrap();
    judge(&seen(4, &out, &err), true).unwrap_err();
    judge(&seen(5, &out[..out.len() - 1], &err), true).unwrap_err();
    judge(&seen(5, [&out[..1600], &out[1616..]].concat(), &err), true).unwrap_err();
    judge(&seen(5, &out, ""), true).unwrap_err();
    judge(&seen(5, &out[..77], &err), false).unwrap();
    judge(&seen(5, &out[1..77], &err), false).unwrap_err();
    let mut model = Model::new(base());
    model
        .judge_run(&spec, Vec::new(), true, false, &seen(5, &out, &err))
        .unwrap();
    let logs = Op::Logs("a".into());
    model
        .judge(&logs, &seen(0, &out[out.len() - KEPT..], &err))
        .unwrap();
    model
        .judge(&logs, &seen(0, &out[out.len() - KEPT + 1..], &err))
        .unwrap_err();
    model
        .judge(&logs, &seen(0, &out[..KEPT], &err))
        .unwrap_err();
}

#[test]
fn followers_read_to_the_last_byte() {
    let mut model = with(Program::Endless);
    model
        .judge(&Op::StopForce("a".into()), &seen(0, "a\n", ""))
        .unwrap();
    let all = numbered_lines::lines(7, 1000);
    let logs = seen(0, &all, "");
    let judge = |status, out: &[u8], attach| {
        model.judge_follower("a", attach, &seen(status, out, ""), &logs)
    };
    judge(137, &all[160..], true).unwrap();
    judge(0, &all[160..], true).unwrap_err();
    judge(137, &all[160..all.len() - 5], true).unwrap_err();
    let holed = [&all[..320], &all[640..]].concat();
    judge(137, &holed, true).unwrap_err();
    judge(0, &holed, false).unwrap();
}

#[test]
fn what_became_of_a_killed_tools_work_is_looked_up() {
    let mut model = with(Program::Sleep);
    model.loosen(&Op::Create(spec("b", Program::Exit(0))));
    model.loosen(&Op::RemoveForce("a".into()));
    model.observe(&[entry("b", 2, "created", None)]).unwrap();
    assert!(!model.instances.contains_key("a") && model.instances["b"].phase == Phase::Created);
    assert!(model.observe(&[]).is_err(), "from now on it is known");
    let twice = [
        entry("b", 2, "created", None),
        entry("b", 3, "created", None),
    ];
    assert!(model.observe(&twice).unwrap_err().contains("one name"));
}

/// A change of the memory of `a`.
fn to_memory(mib: u64) -> Op {
    Op::Resize(Resize {
        name: "a".into(),
        cpus: None,
        memory: Some((format!("{mib}M"), mib * MIB)),
        limit: None,
        dry_run: false,
    })
}

/// Any of it was once taken for granted: a killed tool that had asked for 64 GiB made the model
/// expect that nothing was free any more.
#[test]
fn what_a_killed_tool_asked_for_may_be_granted_or_not() {
    let refused = |has: u64, free: u64| {
        let text = format!("skerry: b has {has} MiB, and {free} MiB of memory are free\n");
        seen(1, "", &text)
    };
    let grown = |bytes: u64| resized((2, 34 * MIB), (2, bytes), Some(1));
    for (asked, others_may_be_refused) in [(65_536, false), (1900, true)] {
        let mut model = with(Program::Sleep);
        let b = Op::RunDetached(spec("b", Program::Sleep));
        model.judge(&b, &seen(0, "b\n", "")).unwrap();
        model.loosen(&to_memory(asked));
        model
            .observe(&[
                entry("a", 1, "running", None),
                entry("b", 2, "running", None),
            ])
            .unwrap();
        let Op::Resize(mut resize) = to_memory(334) else {
            panic!("not a change")
        };
        resize.name = "b".into();
        let refusal = model.judge(&Op::Resize(resize.clone()), &refused(34, 66));
        assert_eq!(refusal.is_ok(), others_may_be_refused, "{asked}");
        model.judge(&Op::Resize(resize), &grown(334 * MIB)).unwrap();
    }
}

#[test]
fn nobody_may_do_anything() {
    let denied = "skerry: cannot open /dev/skerry: Permission denied\n";
    Model::judge_nobody(&Op::Prune, &seen(1, "", denied)).unwrap();
    Model::judge_nobody(&Op::Prune, &seen(0, "", "")).unwrap_err();
    Model::judge_nobody(
        &Op::RunDetached(spec("a", Program::Sleep)),
        &seen(125, "", denied),
    )
    .unwrap();
}

/// The answer of `resize --json`.
fn resized(before: (u32, u64), after: (u32, u64), epoch: Option<u64>) -> Observed {
    let change = serde_json::json!({
        "epoch": epoch, "cpus_before": before.0, "memory_before": before.1,
        "cpus": after.0, "memory": after.1,
    });
    seen(0, change.to_string(), "")
}

fn to_cpus(cpus: u32) -> Op {
    Op::Resize(Resize {
        name: "a".into(),
        cpus: Some(cpus),
        memory: None,
        limit: None,
        dry_run: false,
    })
}

#[test]
fn a_cpu_that_leaves_is_given_back() {
    let mut model = with(Program::Sleep);
    let change = resized((2, 34 * MIB), (1, 34 * MIB), Some(1));
    model.judge(&to_cpus(1), &change).unwrap();
    model.account(&used(1, 34 * MIB, 1)).unwrap();
    let kept = model.account(&used(2, 34 * MIB, 1));
    assert!(kept.unwrap_err().contains("CPUs of instances"));
    model
        .observe(&[entry("a", 1, "running", None)])
        .expect_err("it has two still");
    // What is not so must not be said, and nothing is done twice.
    model.judge(&to_cpus(1), &change).unwrap_err();
    let same = resized((1, 34 * MIB), (1, 34 * MIB), None);
    model.judge(&to_cpus(1), &same).unwrap();
    let short = seen(
        1,
        "",
        "skerry: a has 1 CPU and could have 3 more (asked for 5)\n",
    );
    model.judge(&to_cpus(4), &short).unwrap_err();
    let limit = seen(1, "", "skerry: a may have 4 CPUs at most (asked for 5)\n");
    model.judge(&to_cpus(5), &limit).unwrap();
}

#[test]
fn a_change_without_an_answer_is_one_of_two() {
    let mut model = with(Program::Fault("hang"));
    let Op::Resize(resize) = to_cpus(4) else {
        panic!("not a change")
    };
    let late = seen(
        1,
        "",
        "skerry: a has not answered yet: it keeps what it has\n",
    );
    let patient = Op::Resize(resize.clone());
    model
        .judge(&patient, &late)
        .expect_err("nobody set a limit");
    let limit = Some(1);
    let op = Op::Resize(Resize { limit, ..resize });
    model.judge(&op, &late).unwrap();
    model.account(&used(4, 34 * MIB, 1)).unwrap();
    model.observe(&[entry("a", 1, "running", None)]).unwrap();
    let pending = seen(1, "", "skerry: a has not answered the last change yet\n");
    model.judge(&op, &pending).unwrap();
    model
        .judge(&Op::StopForce("a".into()), &seen(0, "a\n", ""))
        .unwrap();
    model.observe(&[entry("a", 1, "halted", None)]).unwrap();
    model.account(&used(0, 0, 1)).unwrap();
}

#[test]
fn what_is_paused_is_paused_until_it_goes_on() {
    let mut model = with(Program::Exit(3));
    let (pause, unpause) = (Op::Pause("a".into()), Op::Unpause("a".into()));
    let done = seen(0, "a\n", "");
    model.judge(&unpause, &done).unwrap_err();
    model.judge(&pause, &done).unwrap();
    // It would have ended, and does not.
    for wrong in [
        entry("a", 1, "running", None),
        entry("a", 1, "exited", Some(3)),
    ] {
        model.observe(&[wrong]).unwrap_err();
    }
    model.observe(&[entry("a", 1, "paused", None)]).unwrap();
    model.judge(&pause, &done).unwrap_err();
    let refused = seen(1, "", "skerry: a is paused: `skerry unpause a` first\n");
    model.judge(&to_cpus(1), &refused).unwrap();
    model.judge(&unpause, &done).unwrap();
    model.observe(&[entry("a", 1, "exited", Some(3))]).unwrap();
}

#[test]
fn a_name_is_given_up_when_another_one_is_taken() {
    let mut model = with(Program::Sleep);
    let to = |to: &str| Op::Rename {
        name: "a".into(),
        to: to.into(),
    };
    let odd = seen(1, "", "skerry: \".b\" cannot be a name\n");
    model.judge(&to(".b"), &odd).unwrap();
    model.judge(&to("b"), &seen(0, "", "")).unwrap();
    model
        .observe(&[entry("a", 1, "running", None)])
        .expect_err("it is called b");
    model.observe(&[entry("b", 1, "running", None)]).unwrap();
    let unknown = seen(1, "", "skerry: no instance is called \"a\"\n");
    model.judge(&to("c"), &unknown).unwrap();
}

#[test]
fn a_restarted_instance_is_a_new_one_and_the_old_one_is_kept() {
    let mut model = with(Program::Sleep);
    model.observe(&[entry("a", 1, "running", None)]).unwrap();
    let (restart, done) = (Op::Restart("a".into()), seen(0, "a\n", ""));
    model.judge(&restart, &done).unwrap();
    let old = entry("~1", 1, "halted", None);
    model
        .observe(&[entry("a", 1, "running", None)])
        .expect_err("the same one");
    model
        .observe(&[old.clone(), entry("a", 2, "running", None)])
        .unwrap();
    model.account(&used(2, 34 * MIB, 2)).unwrap();
    model
        .judge(&Op::LogsPrevious("a".into()), &seen(0, "", ""))
        .unwrap();
    model
        .judge(&Op::RemoveForce("a".into()), &seen(0, "a\n", ""))
        .unwrap();
    model.observe(&[old]).expect_err("it goes with the new one");
    model.observe(&[]).unwrap();
}

/// The answer of `apply --json`.
fn applied(changes: &[(&str, &str)]) -> Observed {
    let change =
        |(name, action): &(&str, &str)| serde_json::json!({"name": name, "action": action});
    let changes: Vec<_> = changes.iter().map(change).collect();
    seen(
        0,
        serde_json::json!({"changes": changes, "applied": true}).to_string(),
        "",
    )
}

#[test]
fn a_declared_set_is_made_as_a_whole() {
    let mut model = Model::new(base());
    let apply = |specs: &[Spec]| Op::Apply {
        specs: specs.to_vec(),
        prune: true,
    };
    let (one, two) = (spec("one", Program::Sleep), spec("two", Program::Sleep));
    let both = apply(&[one.clone(), two.clone()]);
    let created = applied(&[("one", "create"), ("two", "create")]);
    model
        .judge(&both, &applied(&[("one", "create")]))
        .unwrap_err();
    model.judge(&both, &created).unwrap();
    let [first, second] =
        [("one", 1), ("two", 2)].map(|(name, id)| entry(name, id, "running", None));
    model.observe(&[first.clone(), second]).unwrap();
    model.judge(&both, &created).unwrap_err();
    let nothing = applied(&[("one", "nothing"), ("two", "nothing")]);
    model.judge(&both, &nothing).unwrap();
    // There is no room for a third beside them, so nothing is done.
    let other = spec("two", Program::Trap(1));
    let short = seen(
        1,
        "",
        "skerry: two: no CPU is free (asked for 2): stop an instance\n",
    );
    model.judge(&apply(&[one.clone(), other]), &short).unwrap();
    model.judge(&both, &nothing).unwrap();
    let fewer = applied(&[("one", "nothing"), ("two", "remove")]);
    model.judge(&apply(&[one]), &fewer).unwrap();
    model.observe(&[first]).unwrap();
    model.account(&used(2, 34 * MIB, 1)).unwrap();
}
