//! `/proc/skerry`: what this kernel says about itself, and, in an instance, a way to make it fail for the tests of isolation.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use abi::errno::Errno;
use fs::pseudo::{self, Attr, StaticDir};
use guard::faults::{self, Fault};

/// Adds the directory to procfs.
pub(crate) fn add(dir: &Arc<StaticDir>, dev: u64) {
    dir.add("role", pseudo::file(Attr::new(dev, 0o444), || Ok(role())));
    dir.add("cpus", pseudo::file(Attr::new(dev, 0o444), || Ok(cpus())));
    dir.add("memory", pseudo::file(Attr::new(dev, 0o444), || Ok(memory())));
    if !guard::role::is_supervisor() {
        let write = |text: &[u8]| {
            let name = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
            faults::inject(Fault::from_name(name.trim()).ok_or(Errno::EINVAL)?);
            Ok(())
        };
        dir.add("fault", pseudo::writable_file(Attr::new(dev, 0o200), || Ok(Vec::new()), write));
    }
}

fn role() -> Vec<u8> {
    let descriptor = guard::role::descriptor();
    let role = if descriptor.is_supervisor() { "supervisor" } else { "subos" };
    format!("{role} {}\n", descriptor.label()).into_bytes()
}

fn cpus() -> Vec<u8> {
    let mut text = String::from("cpu switches wakes ipis idle_ns runnable\n");
    for cpu in 0..task::cpu_count() {
        let s = task::stats::cpu(task::CpuId(cpu as u32));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{cpu} {} {} {} {} {}", s.switches, s.wakes, s.ipis, s.idle_ns, s.runnable);
    }
    for count in guard::irq::counts() {
        let _ = writeln!(text, "irq {:#x} cpu {} {}", count.vector, count.cpu, count.count);
    }
    let _ = writeln!(text, "shootdowns {}", guard::paging::shootdowns());
    text.into_bytes()
}

fn memory() -> Vec<u8> {
    let m = guard::mem::stats();
    format!(
        "frames total {} free {} user {} kernel {} heap {} granted {} leaked {}\n",
        m.total, m.free, m.user, m.kernel, m.heap, m.granted, m.leaked
    )
    .into_bytes()
}
