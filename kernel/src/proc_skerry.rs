//! `/proc/skerry`: what this kernel says about itself, a way to have requests for memory refused,
//! and, in an instance, one to make it fail for the tests of isolation.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use abi::errno::Errno;
use fallible::inject;
use fs::Inode;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use guard::FaultToken;
use guard::faults::{self, Fault};
use guard::irq::MACHINE_CHECK;
use guard::isolation::Part;
use guard::machine_check;
use link::ExecFault;
use task::{Event, Mutex, Once};

use crate::trace;

/// For the files `fault` and `search`.
static FAULTS: Once<FaultToken> = Once::new();

/// Has every procfs have the directory from now on. Once, before the first procfs is made.
pub(crate) fn init(token: FaultToken) {
    FAULTS.call_once(|| token);
    linux::procfs::extend(|dir, dev| add(&dir.subdir("skerry"), dev));
}

fn fault_token() -> Result<&'static FaultToken, Errno> {
    FAULTS.get().ok_or(Errno::EPERM)
}

/// Adds the files of the directory.
fn add(dir: &Arc<StaticDir>, dev: u64) {
    dir.add(
        "role",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(role())),
    );
    dir.add(
        "cpus",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(cpus())),
    );
    dir.add(
        "rcu",
        pseudo::file(PseudoAttr::new(dev, 0o444), || {
            Ok(format!("grace_periods {}\n", guard::rcu::grace_periods()).into_bytes())
        }),
    );
    dir.add(
        "interrupts",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(interrupts())),
    );
    dir.add(
        "locks",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(locks())),
    );
    dir.add(
        "network",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(network_locks())),
    );
    dir.add(
        "calls",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(calls())),
    );
    dir.add(
        "machine_checks",
        pseudo::file(PseudoAttr::new(dev, 0o400), machine_checks),
    );
    dir.add(
        "isolation",
        pseudo::file(PseudoAttr::new(dev, 0o400), || Ok(isolation())),
    );
    dir.add("trace", trace::file(dev));
    dir.add(
        "objects",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(objects())),
    );
    dir.add(
        "memory",
        pseudo::file(PseudoAttr::new(dev, 0o444), || Ok(memory())),
    );
    dir.add("fail-nth", fail_nth(dev));
    if guard::role::is_supervisor() {
        let restarts = || Ok(format!("{}\n", guard::partition::restarts()).into_bytes());
        dir.add(
            "restarts",
            pseudo::file(PseudoAttr::new(dev, 0o444), restarts),
        );
        let plan = || {
            let plan = match guard::partition::plan_of_panic() {
                Ok(()) => String::from("restart\n"),
                Err(why) => format!("reset: {why}\n"),
            };
            Ok(plan.into_bytes())
        };
        dir.add("panic", pseudo::file(PseudoAttr::new(dev, 0o444), plan));
        dir.add(
            "crash-at",
            pseudo::writable_file(PseudoAttr::new(dev, 0o200), || Ok(Vec::new()), crash_at),
        );
    }
    if !guard::role::is_supervisor() {
        let write = |text: &[u8]| {
            let name = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
            let name = name.trim();
            if let Some(fault) = ExecFault::from_name(name) {
                fault.inject();
                return Ok(());
            }
            if name == "network-nonsense" {
                drivers::window_net::offer_nonsense();
                return Ok(());
            }
            let fault = Fault::from_name(name).ok_or(Errno::EINVAL)?;
            faults::inject(fault_token()?, fault);
            Ok(())
        };
        dir.add("search", search(dev));
        dir.add(
            "fault",
            pseudo::writable_file(PseudoAttr::new(dev, 0o200), || Ok(Vec::new()), write),
        );
    }
}

/// Writing the name of a step of management has this kernel panic when it next comes there, and
/// writing what is to be wrong with what it keeps of an instance, or the name of a fault behind
/// `fault: `, at once.
fn crash_at(text: &[u8]) -> Result<(), Errno> {
    let step = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    if let "damaged record" | "lost record" = step.trim() {
        faults::damage_record(fault_token()?, step.trim() == "lost record");
        panic!("on purpose, with a {}", step.trim());
    }
    if let Some(name) = step.trim().strip_prefix("fault: ") {
        let fault = Fault::from_name(name).ok_or(Errno::EINVAL)?;
        faults::end_supervisor(fault_token()?, fault);
        return Err(Errno::EINVAL);
    }
    match faults::crash_at(fault_token()?, step.trim()) {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

/// Writing `n` has the `n`-th request for memory of the writing thread that can fail be refused;
/// reading gives how many are left until then, 0 if it was refused.
fn fail_nth(dev: u64) -> Arc<dyn Inode> {
    let show = || Ok(format!("{}\n", inject::left()).into_bytes());
    let store = |text: &[u8]| {
        let n = core::str::from_utf8(text).ok();
        let n = n.and_then(|n| n.trim().parse().ok());
        inject::set(n.ok_or(Errno::EINVAL)?)
    };
    pseudo::writable_file(PseudoAttr::new(dev, 0o600), show, store)
}

/// Writing a product (see `faults::search`) in hexadecimal starts a search; reading gives the last
/// one's result.
fn search(dev: u64) -> Arc<dyn Inode> {
    let last = Arc::new(Mutex::new((0, 0)));
    let show = {
        let last = last.clone();
        move || {
            let (found, all) = *last.lock();
            Ok(format!("found in {found} of {all} frames\n").into_bytes())
        }
    };
    let store = move |text: &[u8]| {
        let product = core::str::from_utf8(text)
            .ok()
            .and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let result = faults::search(fault_token()?, product.ok_or(Errno::EINVAL)?);
        *last.lock() = result;
        Ok(())
    };
    pseudo::writable_file(PseudoAttr::new(dev, 0o600), show, store)
}

fn role() -> Vec<u8> {
    let descriptor = guard::role::descriptor();
    let role = if descriptor.is_supervisor() {
        "supervisor"
    } else {
        "subos"
    };
    format!("{role} {}\n", descriptor.label()).into_bytes()
}

fn cpus() -> Vec<u8> {
    let mut text = String::from(
        "cpu switches wakes ipis idle_ns runnable remote_wakes ipis_saved steals polls sleeps shootdowns\n",
    );
    for cpu in (0..task::cpu_count() as u32).map(task::CpuId) {
        let s = task::stats::cpu(cpu);
        let shootdowns = guard::paging::shootdowns(cpu);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{cpu} {} {} {} {} {} ",
            s.switches, s.wakes, s.ipis, s.idle_ns, s.runnable
        );
        let _ = writeln!(
            text,
            "{} {} {} {} {} {shootdowns}",
            s.remote_wakes, s.ipis_saved, s.steals, s.polls, s.sleeps
        );
    }
    text.into_bytes()
}

fn interrupts() -> Vec<u8> {
    let mut text = String::from("cpu vector name count\n");
    let every = (0..task::cpu_count() as u32)
        .flat_map(|n| (0..=u8::MAX).map(move |vector| (task::CpuId(n), vector)));
    for (cpu, vector) in every {
        let count = guard::irq::count(cpu, vector);
        if count != 0 {
            let name = guard::irq::vector_name(vector);
            let _ = writeln!(text, "{cpu} {vector:#x} {name} {count}");
        }
    }
    text.into_bytes()
}

/// Counts of machine checks, after a look at each CPU's banks.
fn machine_checks() -> Result<Vec<u8>, Errno> {
    let looked = Arc::new(Event::new());
    for cpu in (0..task::cpu_count() as u32).map(task::CpuId) {
        let tell = looked.clone();
        let look = move || {
            machine_check::poll();
            tell.set();
        };
        task::spawn("mcheck", Some(cpu), look).map_err(|_| Errno::ENOMEM)?;
        looked.wait();
    }
    let exceptions: u64 = (0..task::cpu_count() as u32)
        .map(|cpu| guard::irq::count(task::CpuId(cpu), MACHINE_CHECK))
        .sum();
    let counts = machine_check::counts();
    Ok(format!(
        "exceptions {exceptions}\ncorrected {}\nuncorrected {}\nretired {}\nparked {}\n",
        counts.corrected, counts.uncorrected, counts.retired, counts.parked
    )
    .into_bytes())
}

/// Pages of the kernel in the reader's tables, where it runs on tables of its own.
fn isolation() -> Vec<u8> {
    let mut text = String::new();
    guard::isolation::for_each_exposed(|page| {
        let part = match page.part {
            Part::Text => "text",
            Part::Interrupts => "interrupts",
            Part::Cpu => "cpu",
            Part::Other => "other",
        };
        let right = |has, letter| if has { letter } else { '-' };
        let _ = writeln!(
            text,
            "{part} {:x} {}{}{}",
            page.at,
            right(page.write, 'w'),
            right(page.exec, 'x'),
            right(page.user, 'u'),
        );
    });
    text.into_bytes()
}

fn locks() -> Vec<u8> {
    let mut text = String::from("number waits wait_ns site\n");
    for task::Site {
        number,
        location,
        waits,
        ns,
    } in task::lock_sites()
    {
        let _ = match location {
            Some(site) => writeln!(
                text,
                "{number} {waits} {ns} {}:{}",
                site.file(),
                site.line()
            ),
            None => writeln!(text, "{number} {waits} {ns} elsewhere"),
        };
    }
    text.into_bytes()
}

fn network_locks() -> Vec<u8> {
    let counts = linux::network_host().lock_counts();
    format!(
        "tables_locked {}\nshards_locked {}\nsegments_looked_up {}\n",
        counts.tables, counts.shards, counts.looked_up
    )
    .into_bytes()
}

fn calls() -> Vec<u8> {
    let lines =
        linux::entry::syscall_trace::names().map(|(number, name)| format!("{number} {name}\n"));
    lines.collect::<String>().into_bytes()
}

/// Counts of what programs can leave behind: objects by class, entries of tables, small objects of
/// the heap by size, frames by kind. What waits for the end of a grace period is freed first.
fn objects() -> Vec<u8> {
    guard::rcu::drain();
    let mut text = String::new();
    let mut line = |name: &str, count: u64| {
        let _ = writeln!(text, "{name} {count}");
    };
    census::counts().for_each(|(name, count)| line(name, count));
    linux::object_counts(&mut line);
    guard::mem::heap_objects()
        .for_each(|(size, count)| line(&format!("heap_{size}"), count as u64));
    let m = guard::mem::stats();
    line("frames_user", m.user);
    line("frames_heap", m.heap);
    line("frames_kernel", m.kernel - m.heap);
    line("frames_leaked", m.leaked);
    line("large_pages", guard::paging::large_pages());
    text.into_bytes()
}

fn memory() -> Vec<u8> {
    let m = guard::mem::stats();
    format!(
        "frames total {} free {} user {} kernel {} heap {} stacks {} tables {} mark {} granted {} leaked {}\n",
        m.total,
        m.free,
        m.user,
        m.kernel,
        m.heap,
        m.stacks,
        m.tables,
        m.kernel_mark,
        m.granted,
        m.leaked
    )
    .into_bytes()
}
