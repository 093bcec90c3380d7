//! IPv6 between Skerry and Linux on one wire, both ways, and with a router that advertises itself:
//! QEMU's own network on another card.

use std::ffi::OsString;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::modules;
use crate::bench;
use crate::cleanup::Directory;
use crate::test::{Check, Setting, batch};
use crate::vm::Kernel;

const CASES: &str = include_str!("../../../../tests/cases/ipv6.cases");
const PEER_CASES: &str = include_str!("../../../../tests/cases/ipv6-peer.cases");

/// Seconds that a step may take: a slow host is no failure.
const STEP: u32 = 300;

/// A wire between two machines: sockets of datagrams, each of which is a frame.
fn wire(own: &Path, other: &Path) -> OsString {
    let (own, other) = (own.display(), other.display());
    format!("dgram,local.type=unix,local.path={own},remote.type=unix,remote.path={other}").into()
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let (first, second) = (directory.join("machine"), directory.join("peer"));
    let mut machine = setting.machine("skerry");
    machine.hardware.cpus = 2;
    machine.timeout = Some(Duration::from_secs(900));
    let mut peer = setting.machine("linux");
    peer.timeout = machine.timeout;
    let image = bench::newest_linux()?;
    peer.additions
        .extend(modules::of(&image, &modules::NETWORK)?);
    peer.kernel = Kernel::Linux(image);
    // Cards have addresses by their places: the second of one machine is not the first of another.
    machine.hardware.networks = vec!["user,ipv6=on".into(), wire(&first, &second)];
    peer.hardware.networks = vec![wire(&second, &first)];
    let limited = |text| -> Result<Vec<batch::Step>> {
        let steps = batch::steps(text, &[])?.into_iter();
        Ok(steps.map(|step| step.limit(STEP)).collect())
    };
    let (steps, peer_steps) = (limited(CASES)?, limited(PEER_CASES)?);
    let (checks, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(|| batch::run(peer, &peer_steps));
        let checks = batch::run(machine, &steps);
        let theirs = theirs.join();
        (
            checks,
            theirs.unwrap_or_else(|_| Err(anyhow!("the peer panicked"))),
        )
    });
    let mut all = checks?;
    all.extend(theirs?);
    Ok(all)
}
