//! A virtio network card on a wire whose other end is the test, and one on QEMU's own network.

mod host;
mod peer;
mod segments;

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use host::Host;
use peer::Peer;

use super::modules;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect};
use crate::test::{Check, Setting};
use crate::vm::Kernel;

const CASES: &str = include_str!("../../../../tests/cases/wire.cases");

/// The machine's own processors, the address of the first card by the command line, and the case
/// that looks for that.
const BOOT_CONFIG: &str =
    "supervisor_cpus=8 ip=10.0.2.15:10.0.2.4:10.0.2.2:255.255.255.0:rock:eth0:off:10.0.2.3";
const CONFIGURED: &str = "the command line gives a card its address, and the machine its name";

/// The case of instances, which Linux has none of.
const PUBLISHED: &str =
    "a port of the machine leads to an instance, which has the world behind the machine's address";

/// The cases of Skerry's own counters.
const LOCKS: &str = "segments of open connections take no lock that connections share";
const WAITS: &str = "a connection for each of eight processors waits for no lock of the others";

/// A wire whose ends are sockets of datagrams, each of which is a frame.
fn wire(machine: &Path, peer: &Path) -> OsString {
    let (machine, peer) = (machine.display(), peer.display());
    format!("dgram,local.type=unix,local.path={machine},remote.type=unix,remote.path={peer}").into()
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let (own, theirs) = (directory.join("peer"), directory.join("machine"));
    let mut machine = setting.machine("all");
    // Eight are the machine's own, as Skerry's command line says; the others are for instances.
    machine.hardware.cpus = 11;
    machine.timeout = Some(Duration::from_secs(600));
    let host = Host::new()?;
    let user = format!("user,hostfwd=tcp:127.0.0.1:{}-:80", host.forwarded);
    machine.hardware.networks = vec![user.into(), wire(&theirs, &own)];
    let mut steps = batch::steps(CASES, &[])?;
    match &machine.kernel {
        Kernel::Linux(image) => {
            machine
                .additions
                .extend(modules::of(image, &modules::NETWORK)?);
            // Debian's kernel leaves `ip=` to its initramfs.
            steps.retain(|step| {
                ![CONFIGURED, PUBLISHED, LOCKS, WAITS].contains(&step.what.as_str())
            });
        }
        _ => machine.append = BOOT_CONFIG.into(),
    }
    for step in &mut steps {
        step.limit = 300;
        step.script = host.fill_in(&step.script)?;
        if let Expect::Text(text) = &mut step.expect {
            *text = host.fill_in(text)?.into();
        }
    }
    host.serve()?;
    let is_over = AtomicBool::new(false);
    let peer = Peer::new(&own, &is_over)?;
    let (checks, seen) = thread::scope(|scope| {
        let peer = scope.spawn(|| peer.run(&theirs));
        let checks = batch::run(machine, &steps);
        is_over.store(true, Ordering::Relaxed);
        let seen = peer
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the peer panicked")));
        (checks, seen)
    });
    let mut checks = checks?;
    let seen = seen.map(|seen| {
        format!(
            "{} answers, {} files, a hop, among {} frames of nonsense and {} SYNs",
            seen.answers, seen.files, seen.nonsense, seen.syns
        )
    });
    checks.push(Check::new(
        "the host on the wire has its echoes and files, also after nonsense and floods",
        seen,
    ));
    Ok(checks)
}
