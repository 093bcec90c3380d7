//! Siblings: `/sys` and `/proc/cpuinfo` tell what each processor says of itself, and tasks are
//! spread accordingly.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result, ensure};
use tasks::Siblings;

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("topology-as-processors-say", as_processors_say),
    ("topology-siblings-used-last", siblings_used_last),
    ("topology-siblings-used-first", siblings_used_first),
];

/// `0-3,6` as numbers.
fn list(text: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(cpus)
}

/// `00000001,80000000` as numbers.
fn mask(text: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for (place, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16)?;
        cpus.extend(
            (0..32)
                .filter(|bit| word >> bit & 1 != 0)
                .map(|bit| place * 32 + bit),
        );
    }
    Ok(cpus)
}

fn of_cpu(cpu: usize, name: &str) -> Result<String> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
    fs::read_to_string(&path).context(path)
}

pub fn online() -> Result<Vec<usize>> {
    list(&fs::read_to_string("/sys/devices/system/cpu/online")?)
}

pub fn move_to(cpu: usize) -> Result<()> {
    let mut set = [0u64; 16];
    set[cpu / 64] = 1 << (cpu % 64);
    // SAFETY: the mask is readable and as long as said.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(&set),
            set.as_ptr(),
        ) as i32
    })?;
    Ok(())
}

/// The processor's own answer in leaf 0xB: its id, and how many low bits of it name the thread and
/// what is in the package. None if it has no such leaf.
fn own_words() -> Option<(u32, u32, u32)> {
    let id = __cpuid_count(0xb, 0);
    if __cpuid(0).eax < 0xb || id.ebx & 0xffff == 0 {
        return None;
    }
    let levels = (0..8)
        .map(|level| __cpuid_count(0xb, level))
        .take_while(|level| level.ecx >> 8 & 0xff != 0);
    let (mut thread, mut package) = (0, 0);
    for level in levels {
        package = level.eax & 0x1f;
        if level.ecx >> 8 & 0xff == 1 {
            thread = package;
        }
    }
    Some((id.edx, thread, package))
}

fn as_processors_say() -> Result<()> {
    let cpus = online()?;
    let mut said = Vec::new();
    for cpu in &cpus {
        move_to(*cpu)?;
        let Some(words) = own_words() else {
            return Ok(());
        };
        said.push(words);
    }
    let sharing = |index: usize, low: fn(&(u32, u32, u32)) -> u32| -> Vec<usize> {
        let group = |words: &(u32, u32, u32)| u64::from(words.0) >> low(words);
        (0..cpus.len())
            .filter(|other| group(&said[*other]) == group(&said[index]))
            .map(|other| cpus[other])
            .collect()
    };
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let info: Vec<&str> = info.trim().split("\n\n").collect();
    ensure!(
        info.len() == cpus.len(),
        "/proc/cpuinfo has {} processors, not {}",
        info.len(),
        cpus.len()
    );
    for (index, cpu) in cpus.iter().enumerate() {
        let (core, package) = (
            sharing(index, |words| words.1),
            sharing(index, |words| words.2),
        );
        for (names, expected) in [
            (["thread_siblings", "core_cpus"], &core),
            (["core_siblings", "package_cpus"], &package),
        ] {
            for name in names {
                let found = (
                    mask(&of_cpu(*cpu, name)?)?,
                    list(&of_cpu(*cpu, &format!("{name}_list"))?)?,
                );
                ensure!(
                    found.0 == *expected && found.1 == *expected,
                    "{name} of {cpu}: {found:?}, not {expected:?}"
                );
            }
        }
        let value = |name: &str| -> Result<usize> {
            let mut lines = info[index].lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines
                .find(|(key, _)| key.trim_end() == name)
                .with_context(|| format!("no {name}"))?;
            Ok(value.trim().parse()?)
        };
        let cores: BTreeSet<u64> = package
            .iter()
            .map(|other| {
                let words = said[cpus.iter().position(|cpu| cpu == other).expect("online")];
                u64::from(words.0) >> words.1
            })
            .collect();
        let counts = (
            value("siblings")?,
            value("cpu cores")?,
            value("apicid")?,
            value("initial apicid")?,
        );
        let id = said[index].0 as usize;
        ensure!(
            counts == (package.len(), cores.len(), id, id),
            "processor {cpu}: {counts:?}"
        );
        let ids = (value("core id")?, value("physical id")?);
        let same = (
            of_cpu(*cpu, "core_id")?.trim().parse()?,
            of_cpu(*cpu, "physical_package_id")?.trim().parse()?,
        );
        ensure!(
            ids == same,
            "processor {cpu} is {ids:?} in /proc, {same:?} in /sys"
        );
    }
    Ok(())
}

/// The processors that as many tasks as said run on at a time.
fn used(siblings: Siblings, count: usize) -> BTreeSet<usize> {
    tasks::prefer(siblings);
    let all_there = Barrier::new(count);
    let cpus = tasks::run(count, |_| {
        all_there.wait();
        // SAFETY: no pointers.
        unsafe { libc::sched_getcpu() as usize }
    });
    cpus.into_iter().collect()
}

/// The processors by core.
fn cores() -> Result<BTreeSet<Vec<usize>>> {
    online()?
        .into_iter()
        .map(|cpu| list(&of_cpu(cpu, "thread_siblings_list")?))
        .collect()
}

fn siblings_used_last() -> Result<()> {
    ensure!(
        thread::available_parallelism()?.get() == online()?.len(),
        "not all processors may be used"
    );
    let cores = cores()?;
    let used = used(Siblings::Last, cores.len());
    ensure!(
        cores
            .iter()
            .all(|core| core.iter().filter(|cpu| used.contains(cpu)).count() == 1),
        "{used:?} of {cores:?}"
    );
    Ok(())
}

fn siblings_used_first() -> Result<()> {
    let cores = cores()?;
    let first = cores.first().context("no cores")?;
    let used = used(Siblings::First, first.len());
    ensure!(
        first.len() == 1 || used.iter().eq(first),
        "{used:?} of {cores:?}"
    );
    Ok(())
}
