//! The kernel's counters, as `/proc/skerry` shows them: tables of words with a heading
//! (`docs/observability.md`).

use std::collections::BTreeMap;
use std::io;

/// Where they are.
pub const DIRECTORY: &str = "/proc/skerry";

/// The counters of all CPUs, by CPU and by name.
pub type Cpus = BTreeMap<u32, BTreeMap<String, u64>>;

/// A place in the kernel's source where threads wait for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Number of the lock site in records.
    pub number: u64,
    /// File and line.
    pub site: String,
    /// Number of waits.
    pub waits: u64,
    /// Duration of the waits together, in nanoseconds.
    pub wait_ns: u64,
}

/// All counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Of CPUs.
    pub cpus: Cpus,
    /// Interrupts by CPU and by what they are for.
    pub interrupts: Cpus,
    /// By place.
    pub locks: Vec<Lock>,
}

/// Reads one of the files.
///
/// # Errors
/// The call's; not being there means that this is no Skerry.
pub fn read(name: &str) -> io::Result<String> {
    std::fs::read_to_string(format!("{DIRECTORY}/{name}"))
}

impl Counters {
    /// Reads the present counters.
    ///
    /// # Errors
    /// As [`read`].
    pub fn now() -> io::Result<Self> {
        Ok(Self {
            cpus: cpus(&read("cpus")?),
            interrupts: interrupts(&read("interrupts")?),
            locks: locks(&read("locks")?),
        })
    }

    /// Difference of the counters since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let difference = |now: &Cpus, before: &Cpus| {
            let counted = |cpu: &u32, name: &String| {
                before
                    .get(cpu)
                    .and_then(|cpu| cpu.get(name))
                    .copied()
                    .unwrap_or(0)
            };
            let of = |(cpu, counts): (&u32, &BTreeMap<String, u64>)| {
                let counts = counts
                    .iter()
                    .map(|(name, count)| (name.clone(), count.saturating_sub(counted(cpu, name))));
                (*cpu, counts.collect())
            };
            now.iter().map(of).collect()
        };
        let locks = self.locks.iter().map(|lock| {
            let old = before.locks.iter().find(|old| old.number == lock.number);
            let (waits, wait_ns) = old.map_or((0, 0), |old| (old.waits, old.wait_ns));
            Lock {
                waits: lock.waits.saturating_sub(waits),
                wait_ns: lock.wait_ns.saturating_sub(wait_ns),
                ..lock.clone()
            }
        });
        Self {
            cpus: difference(&self.cpus, &before.cpus),
            interrupts: difference(&self.interrupts, &before.interrupts),
            locks: locks.filter(|lock| lock.waits != 0).collect(),
        }
    }
}

/// A table whose heading names the columns, the first of which is the CPU. Lines that do not fit
/// are left out.
fn cpus(text: &str) -> Cpus {
    let mut lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let names = lines.next().unwrap_or_default();
    let row = |words: Vec<&str>| {
        let cpu = words.first()?.parse().ok()?;
        let counts = names.iter().zip(&words).skip(1);
        Some((
            cpu,
            counts
                .filter_map(|(name, count)| Some(((*name).to_owned(), count.parse().ok()?)))
                .collect(),
        ))
    };
    lines.filter_map(row).collect()
}

/// Lines of CPU, vector, name, count.
fn interrupts(text: &str) -> Cpus {
    let mut all = Cpus::new();
    for line in text.lines() {
        if let [cpu, _, name, count] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let (Ok(cpu), Ok(count)) = (cpu.parse(), count.parse::<u64>())
        {
            *all.entry(cpu)
                .or_default()
                .entry(name.to_owned())
                .or_default() += count;
        }
    }
    all
}

/// Lines of number, waits, nanoseconds, place.
pub fn locks(text: &str) -> Vec<Lock> {
    let lock = |line: &str| {
        let [number, waits, ns, site] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Lock {
            number: number.parse().ok()?,
            site: site.to_owned(),
            waits: waits.parse().ok()?,
            wait_ns: ns.parse().ok()?,
        })
    };
    text.lines().filter_map(lock).collect()
}

/// Names of interrupt vectors, from the same table.
#[must_use]
pub fn vectors(text: &str) -> BTreeMap<u8, String> {
    let name = |line: &str| {
        let [_, vector, name, _] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        Some((
            u8::from_str_radix(vector.strip_prefix("0x")?, 16).ok()?,
            name.to_owned(),
        ))
    };
    text.lines().filter_map(name).collect()
}

/// Names of system calls: lines of number and name.
#[must_use]
pub fn calls(text: &str) -> BTreeMap<u64, String> {
    let name = |line: &str| {
        line.split_once(' ')
            .and_then(|(number, name)| Some((number.parse().ok()?, name.to_owned())))
    };
    text.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_by_their_headings() {
        let before = Counters {
            cpus: cpus("cpu switches idle_ns\n0 5 100\n1 6 200\nirq 0xef cpu 0 7\n"),
            interrupts: interrupts("cpu vector name count\n0 0xef timer 4\n"),
            locks: locks("number waits wait_ns site\n7 2 30 crates/x.rs:12\n"),
        };
        let now = Counters {
            cpus: cpus("cpu switches idle_ns new\n0 8 150 3\n1 6 300 0\n"),
            interrupts: interrupts(
                "cpu vector name count\n0 0xef timer 9\n0 0x30 isa 1\n0 0x34 isa 2\n",
            ),
            locks: locks("number waits wait_ns site\n7 2 30 crates/x.rs:12\n9 1 5 elsewhere\n"),
        };
        let since = now.since(&before);
        assert_eq!(
            (
                since.cpus[&0]["switches"],
                since.cpus[&0]["new"],
                since.cpus[&1]["idle_ns"]
            ),
            (3, 3, 100)
        );
        assert_eq!(
            (since.interrupts[&0]["timer"], since.interrupts[&0]["isa"]),
            (5, 3)
        );
        assert_eq!(
            since
                .locks
                .iter()
                .map(|l| (l.number, l.waits))
                .collect::<Vec<_>>(),
            [(9, 1)]
        );
        assert_eq!(
            vectors("cpu vector name count\n0 0xef timer 9\n")[&0xef],
            "timer"
        );
        assert_eq!(calls("0 read\n39 getpid\n")[&39], "getpid");
    }
}
