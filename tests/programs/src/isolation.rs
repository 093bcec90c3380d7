//! Where a program runs on page tables without the kernel, they hold of it only what an entry
//! needs, on each processor; as the kernel that has made them reads them
//! (`/proc/skerry/isolation`).

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result, bail, ensure};

use crate::shootdowns::keep_to;
use crate::{Check, topology};

pub const CHECKS: &[(&str, Check)] = &[("kernel-pages-in-program-tables", kernel_pages)];

/// Most pages of the instructions of entries and returns.
const TEXT_PAGES: usize = 3;
/// Pages of a processor's own: task state and descriptors, and three stacks.
const CPU_PAGES: usize = 7;
/// Lowest address of the kernel.
const KERNEL: usize = 0xffff_8000_0000_0000;

fn kernel_pages() -> Result<()> {
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags"));
    let isolated = flags
        .context("no line of flags")?
        .split_whitespace()
        .any(|flag| flag == "pti");
    let told = fs::read_to_string("/sys/devices/system/cpu/vulnerabilities/meltdown")?;
    ensure!(
        isolated || told != "Mitigation: PTI\n",
        "no flag, but {told:?}"
    );
    for cpu in topology::online()? {
        keep_to(cpu)?;
        let pages = match fs::read_to_string("/proc/skerry/isolation") {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            pages => pages?,
        };
        ensure!(
            isolated != pages.is_empty(),
            "isolated: {isolated}, but {pages:?}"
        );
        if isolated {
            check(&pages).with_context(|| format!("on processor {cpu}: {pages}"))?;
        }
    }
    Ok(())
}

/// Checks the list of pages: part, address, and rights.
fn check(pages: &str) -> Result<()> {
    let (mut text, mut tables, mut own) = (0, 0, 0);
    for line in pages.lines() {
        let mut words = line.split_whitespace();
        let mut word = || words.next().context("a line is short");
        let (part, at, rights) = (word()?, word()?, word()?);
        let at = usize::from_str_radix(at, 16)?;
        ensure!(at >= KERNEL, "{line}");
        match (part, rights) {
            ("text", "-x-") => text += 1,
            ("interrupts", "w--" | "---") => tables += 1,
            ("cpu", "w--") => own += 1,
            _ => bail!("{line}"),
        }
    }
    ensure!((1..=TEXT_PAGES).contains(&text) && tables == 1);
    ensure!(own > 0 && own % CPU_PAGES == 0, "{own} pages of processors");
    Ok(())
}
