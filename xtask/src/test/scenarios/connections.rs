//! Very many connections: what finding one of them costs, what each takes, and that none of them
//! wakes anybody while it is idle. Instructions are counted, so no clock decides.

use anyhow::{Result, ensure};

use crate::bench::network_figures;
use crate::test::{Check, Setting};

/// The most that a segment for one of 100,000 connections may cost, by one for one of 1,000. Of 10
/// connections several segments share an answer.
const FLAT: f64 = 1.1;
/// The same of one that is not answered, by one for one of 10.
const QUIET: f64 = 1.1;
/// The most bytes that a connection may take, with its socket and its descriptor.
const BYTES: f64 = 8192.0;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let kernel = setting.machine("all").kernel;
    let segments = || -> Result<String> {
        let [few, many] = network_figures(&kernel, ["net-segment-1000", "segment-100000"])?;
        let seen = format!("{few:.0} instructions of 1,000, {many:.0} of 100,000");
        ensure!(many < few * FLAT, "{seen}");
        Ok(seen)
    };
    let quiet = || -> Result<String> {
        let names = [
            "quiet-segment-10",
            "quiet-segment-1000",
            "quiet-segment-100000",
        ];
        let [ten, few, many] = network_figures(&kernel, names)?;
        let seen = format!("{ten:.0} instructions of 10, {few:.0} of 1,000, {many:.0} of 100,000");
        ensure!(few.max(many) < ten * QUIET, "{seen}");
        Ok(seen)
    };
    let idle = || -> Result<String> {
        let [wakes] = network_figures(&kernel, ["net-idle-10000"])?;
        ensure!(wakes == 0.0, "{wakes} wake-ups in ten seconds");
        Ok(String::new())
    };
    let memory = || -> Result<String> {
        let [bytes] = network_figures(&kernel, ["net-connection-bytes"])?;
        ensure!(bytes < BYTES, "{bytes:.0} bytes each");
        Ok(format!("{bytes:.0} bytes each"))
    };
    Ok(vec![
        Check::new(
            "a segment for one of 100,000 connections costs what one for one of 1,000 does",
            segments(),
        ),
        Check::new(
            "one that is not answered costs the same from 10 connections to 100,000",
            quiet(),
        ),
        Check::new("10,000 idle connections wake no processor", idle()),
        Check::new("a connection takes less than 8 KiB", memory()),
    ])
}
