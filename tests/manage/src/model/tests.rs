use super::*;

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
