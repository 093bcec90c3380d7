//! `/init` of the boot benchmark: tells on the console how long the machine took to get here, and
//! powers off. The same program runs on Skerry and on Linux. Where the file system has a bash, that
//! has run `true` before.
//!
//! Two clocks tell it. The time-stamp counter starts at power-on and counts firmware and boot
//! loader too; under `--icount` it counts instructions. The monotonic clock starts when the kernel
//! sets it up, which leaves out what the kernel did before.

use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::system::{RebootCommand, reboot};
use rustix::time::{ClockId, clock_gettime};

const SHELL: &str = "/usr/bin/bash";

fn main() {
    if Path::new(SHELL).exists() {
        let status = Command::new(SHELL).args(["-c", "true"]).status();
        assert!(
            status.as_ref().is_ok_and(ExitStatus::success),
            "{SHELL}: {status:?}"
        );
    }
    // SAFETY: every x86-64 processor has the instruction, and no kernel measured here forbids it to
    // programs.
    let counter = unsafe { core::arch::x86_64::_rdtsc() };
    let monotonic = clock_gettime(ClockId::Monotonic);
    println!(
        "\nfirst-instruction: tsc {counter} monotonic_ns {}",
        monotonic.tv_sec * 1_000_000_000 + monotonic.tv_nsec
    );
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        println!("first-instruction: cannot power off: {error}");
    }
}
