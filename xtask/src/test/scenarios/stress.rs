//! stress-ng: each stressor alone, a moment, checking its own results.

use anyhow::{Result, ensure};

use crate::packages;
use crate::test::cases::{Instance, Ran};
use crate::test::{Check, Setting};

/// Classes of stressors; those of signals and timers are stress-ng's class `interrupt`.
const CLASSES: [&str; 7] = [
    "cpu",
    "memory",
    "vm",
    "filesystem",
    "pipe",
    "scheduler",
    "interrupt",
];

/// A few of each class, for every day.
const SHORT_CLASSES: &str = "cpu matrix qsort vm malloc mmap mremap dentry flock \
     lease rename pipe fifo splice tee switch yield affinity futex kill sigq sigsuspend";

/// Stressors that do not end with status 0, and why.
const EXPLAINED: [(&str, &str); 10] = [
    ("aiol", "there is no io_setup(2)"),
    (
        "bind-mount",
        "stress-ng leaves it out itself, as it may hang any machine",
    ),
    ("binderfs", "stress-ng has no --binderfs-ops"),
    (
        "mlockmany",
        "stress-ng leaves it out itself, as it may hang any machine",
    ),
    ("netlink-proc", "there is no netlink connector"),
    (
        "oom-pipe",
        "stress-ng leaves it out itself, as it may hang any machine",
    ),
    (
        "smi",
        "stress-ng leaves it out itself, as it may hang any machine",
    ),
    ("swap", "nothing is swapped, so there is no swapon(2)"),
    ("uprobe", "there is no tracefs"),
    (
        "watchdog",
        "stress-ng leaves it out itself, as it may hang any machine",
    ),
];

/// Runs the stressors in `$all`; says `@ NAME STATUS` of each, and what one that failed said.
const RUN: &str = r#"for s in $all; do
    timeout -s KILL 30 stress-ng --$s 1 --$s-ops 20 --timeout 2 --verify > out 2>&1; status=$?
    echo "@ $s $status"
    usual='dispatching\|defaulting\|successful run\|setting to'
    [ $status = 0 ] || grep -v "^stress-ng: info: .*\($usual\)" out | tail -n 8
done"#;

pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(
        setting,
        &[("a few stressors", format!("all='{SHORT_CLASSES}'\n{RUN}"))],
        400,
        600,
    )
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let class = |name| {
        (
            name,
            format!("all=$(stress-ng --class {name}? | sed 's/.*: //')\n{RUN}"),
        )
    };
    run(setting, &CLASSES.map(class), 2400, 6000)
}

fn run(
    setting: &Setting,
    scripts: &[(&str, String)],
    limit: u32,
    patience: u64,
) -> Result<Vec<Check>> {
    let instance = Instance {
        packages: &[packages::BASE, packages::STRESS],
        cpus: 2,
        memory: 1536,
        files: &[],
        limit,
        patience,
        beside: None,
    };
    let texts: Vec<_> = scripts.iter().map(|(_, text)| text.as_str()).collect();
    let ran = instance.run(setting.machine("all"), &texts)?;
    Ok(scripts
        .iter()
        .zip(&ran)
        .map(|((name, _), ran)| Check::new(*name, judge(ran)))
        .collect())
}

/// Every stressor that failed must be explained; those that are and do not fail any more are named.
fn judge(ran: &Ran) -> Result<String> {
    ensure!(
        ran.status.is_some_and(|status| status != 137),
        "it did not end; it printed\n{}",
        ran.printed
    );
    let (mut count, mut failed, mut unexplained, mut mended) =
        (0, Vec::new(), Vec::new(), Vec::new());
    for line in ran.printed.lines() {
        let Some((name, status)) = line
            .strip_prefix("@ ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        count += 1;
        let explained = EXPLAINED.iter().any(|(known, _)| *known == name);
        match (status, explained) {
            ("0", false) => {}
            ("0", true) => mended.push(name),
            (_, true) => failed.push(format!("{name} ({status})")),
            (_, false) => unexplained.push(format!("{name} ({status})")),
        }
    }
    ensure!(count > 0, "no stressor ran: {}", ran.printed);
    ensure!(
        unexplained.is_empty(),
        "{} failed of {count}, with {failed:?}, which are known:\n{}",
        unexplained.join(", "),
        ran.printed
    );
    let list = |what: &str, names: String| {
        if names.is_empty() {
            names
        } else {
            format!("; {what}: {names}")
        }
    };
    Ok(format!(
        "{count} ran{}{}",
        list("known to fail", failed.join(", ")),
        list("not failing any more", mended.join(", "))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_judged() {
        let ran = |printed: &str| {
            judge(&Ran {
                printed: printed.into(),
                status: Some(0),
                took: None,
            })
        };
        assert_eq!(ran("@ cpu 0\n@ vm 0").unwrap(), "2 ran");
        assert_eq!(
            ran("@ smi 1\nsaid\n@ vm 0\n@ uprobe 0").unwrap(),
            "3 ran; known to fail: smi (1); not failing any more: uprobe"
        );
        assert!(ran("@ vm 2").is_err());
        assert!(ran("").is_err());
    }
}
