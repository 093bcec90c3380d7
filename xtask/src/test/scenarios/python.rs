//! Python's own tests of what it asks of the system.

use anyhow::{Context, Result, bail, ensure};

use crate::packages;
use crate::test::cases::{Instance, Ran};
use crate::test::{Check, Setting, batch};

/// The modules.
const MODULES: [&str; 8] = [
    "test_os",
    "test_subprocess",
    "test_signal",
    "test_threading",
    "test_mmap",
    "test_select",
    "test_socket",
    "test_pty",
];

/// Classes of them that take seconds together.
const SHORT: [&str; 6] = [
    "test_mmap",
    "test_select",
    "test_os -k .FileTests -k PidTests -k SpawnTests -k ExtendedAttribute \
     -k TestSendfile -k Memfd -k Eventfd -k LinkTests",
    "test_signal -k PosixTests -k ItimerTest -k RaiseSignal -k WakeupSignal",
    "test_threading -k .LockTests -k ThreadJoinOnShutdown -k ConditionTests",
    "test_socket -k BasicTCPTest -k BasicUDPTest -k SendmsgUnixStream \
     -k RecvmsgSCMRights -k TestUnixDomain -k TestLinuxAbstract",
];

pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &SHORT, 300, 900)
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &MODULES, 900, 3000)
}

fn run(setting: &Setting, modules: &[&str], limit: u32, patience: u64) -> Result<Vec<Check>> {
    let scripts: Vec<_> = modules
        .iter()
        .map(|module| format!("python3 -m unittest -v test.{module}"))
        .collect();
    let scripts: Vec<_> = scripts.iter().map(String::as_str).collect();
    let instance = Instance {
        packages: &[packages::BASE, packages::PYTHON],
        cpus: 2,
        memory: 1536,
        files: &[],
        limit,
        patience,
        beside: None,
    };
    let ran = instance.run(setting.machine("all"), &scripts)?;
    let check = |(module, ran): (&&str, &Ran)| {
        let took = ran.took.map_or_else(String::new, batch::seconds);
        Check::new(*module, judge(ran).map(|told| format!("{told}; {took}")))
    };
    Ok(modules.iter().zip(&ran).map(check).collect())
}

/// Counts what unittest says; no test may have failed.
fn judge(ran: &Ran) -> Result<String> {
    let mut lines = ran.printed.lines().rev();
    let Some(tests) = lines.find_map(|line| {
        line.strip_prefix("Ran ")?
            .split(' ')
            .next()?
            .parse::<usize>()
            .ok()
    }) else {
        bail!(
            "it did not come to its end (status {:?}); the last it said:\n{}",
            ran.status,
            last(&ran.printed)
        );
    };
    ensure!(
        tests > 0 && ran.status == Some(0),
        "of {tests} tests some failed:\n{}",
        reports(&ran.printed)
    );
    let verdict = ran
        .printed
        .lines()
        .rev()
        .find(|line| line.starts_with("OK"))
        .context("it does not say OK")?;
    let skipped = verdict
        .strip_prefix("OK (skipped=")
        .and_then(|rest| rest.strip_suffix(')'))
        .unwrap_or("0");
    Ok(format!("{tests} tests, {skipped} skipped, 0 failed"))
}

/// The reports of what failed, which follow the first double line.
fn reports(printed: &str) -> &str {
    printed
        .find("\n====")
        .map_or(printed, |start| &printed[start + 1..])
}

/// The end of what was printed.
fn last(printed: &str) -> String {
    let lines: Vec<_> = printed.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unittest_is_understood() {
        let ran = |printed: &str, status| {
            judge(&Ran {
                printed: printed.into(),
                status: Some(status),
                took: None,
            })
        };
        assert_eq!(
            ran("Ran 44 tests in 1.2s\n\nOK (skipped=8)", 0).unwrap(),
            "44 tests, 8 skipped, 0 failed"
        );
        assert!(
            ran(
                "FAIL: test_new (x)\nRan 9 tests in 1s\n\nFAILED (failures=1)",
                1
            )
            .is_err()
        );
        assert!(ran("Ran 0 tests in 0s\n\nOK", 0).is_err());
        assert!(ran("Segmentation fault", 139).is_err());
    }
}
