//! Settings of core dumps: `/proc/sys/kernel/core_*`, `/proc/sys/fs/suid_dumpable` and
//! `/proc/<pid>/coredump_filter`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use fs::Result;
use fs::pseudo::{self, PseudoAttr, StaticDir};

use super::sysctl::add_at_path;
use crate::process::Process;
use crate::state::core_pattern;

/// Numbers: path, setting, largest value.
const NUMBERS: [(&str, &AtomicU32, u32); 3] = [
    ("kernel/core_uses_pid", &core_pattern::USES_PID, u32::MAX),
    (
        "kernel/core_pipe_limit",
        &core_pattern::PIPE_LIMIT,
        u32::MAX,
    ),
    ("fs/suid_dumpable", &core_pattern::SUID_DUMPABLE, 2),
];

/// Adds the settings of the machine to `/proc/sys`.
pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    for (path, setting, most) in NUMBERS {
        let show = || Ok(format!("{}\n", setting.load(Ordering::Relaxed)).into_bytes());
        let set = move |text: &[u8]| {
            let number = core::str::from_utf8(text)
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .filter(|&number: &u32| number <= most)
                .ok_or(Errno::EINVAL)?;
            setting.store(number, Ordering::Relaxed);
            Ok(())
        };
        let file = pseudo::setting_file(PseudoAttr::new(dev, 0o644), show, set);
        add_at_path(dir, path, file);
    }
    let pattern = pseudo::setting_file(
        PseudoAttr::new(dev, 0o644),
        || Ok([&core_pattern::pattern()[..], b"\n"].concat()),
        |line| {
            core_pattern::set_pattern(line);
            Ok(())
        },
    );
    add_at_path(dir, "kernel/core_pattern", pattern);
}

/// Contents of `/proc/<pid>/coredump_filter`; nothing for a process that has ended.
pub(super) fn filter_text(process: &Process) -> String {
    match process.space() {
        Some(_) => format!("{:08x}\n", process.core_dump.filter().bits()),
        None => String::new(),
    }
}

/// Sets the kinds of memory that a process's core dump has, by a number as C writes it.
pub(super) fn set_filter(process: &Process, text: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(text)
        .map_err(|_| Errno::EINVAL)?
        .trim();
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    let bits = u32::from_str_radix(digits, radix).map_err(|_| Errno::EINVAL)?;
    process.core_dump.set_filter(bits);
    Ok(())
}
