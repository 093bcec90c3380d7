//! `/proc/sys`: settings.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use ::task::RtLimits;
use abi::errno::Errno;
use fs::charge;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use net::socket::Sysctl;

use super::system::Text;
use super::{core_dump, ipv6_conf, remembered, settings};
use crate::process::namespaces;
use crate::seccomp::actions_logged;
use crate::system::sysinfo;

/// Runs `f` with a sysctl, by its number, of the network stack of who asks.
fn with_net_sysctl<R>(
    number: usize,
    f: impl FnOnce(&Sysctl) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let net = namespaces::net();
    f(net.sysctls().all().nth(number).ok_or(Errno::ENOENT)?)
}

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let constants = [
        ("kernel/ngroups_max", "65536\n"),
        ("kernel/cap_last_cap", "40\n"),
        ("kernel/cad_pid", "1\n"),
        ("kernel/ctrl-alt-del", "0\n"),
        ("kernel/modules_disabled", "1\n"),
        ("kernel/kexec_load_disabled", "1\n"),
        ("kernel/unprivileged_bpf_disabled", "2\n"),
        ("kernel/printk_delay", "0\n"),
        ("kernel/sched_autogroup_enabled", "0\n"),
        ("kernel/sched_schedstats", "0\n"),
        ("kernel/tainted", "0\n"),
        ("kernel/sysrq", "0\n"),
        ("kernel/perf_event_paranoid", "3\n"),
        ("kernel/overflowuid", "65534\n"),
        ("kernel/overflowgid", "65534\n"),
        ("kernel/random/poolsize", "256\n"),
        ("vm/mmap_min_addr", "65536\n"),
        ("vm/mmap_rnd_bits", "28\n"),
        ("vm/legacy_va_layout", "0\n"),
        ("fs/inode-nr", "0\t0\n"),
        ("fs/dentry-state", "0\t0\t45\t0\t0\t0\n"),
        ("fs/inode-state", "0\t0\t0\t0\t0\t0\t0\n"),
        ("fs/overflowuid", "65534\n"),
        ("fs/overflowgid", "65534\n"),
        ("net/ipv4/tcp_available_congestion_control", "reno cubic\n"),
        ("net/ipv4/tcp_allowed_congestion_control", "reno cubic\n"),
        // The engine does so always: resets do not end TIME_WAIT, RACK and tail loss probes find
        // losses, nothing is corked by itself.
        ("net/ipv4/tcp_rfc1337", "1\n"),
        ("net/ipv4/tcp_recovery", "1\n"),
        ("net/ipv4/tcp_early_retrans", "3\n"),
        ("net/ipv4/tcp_autocorking", "0\n"),
    ];
    settings::add(dir, dev);
    remembered::add(dir, dev);
    for (path, text) in constants {
        add_at_path(dir, path, pseudo::constant(dev, text));
    }
    core_dump::add(dir, dev);
    ipv6_conf::add(dir, dev);
    let texts: [(&str, Text); 5] = [
        ("kernel/seccomp/actions_avail", actions_logged::all_names),
        ("fs/file-nr", || {
            let open = census::File::count();
            format!("{open}\t0\t{}\n", charge::MAX_FILES.get())
        }),
        ("kernel/ostype", || {
            format!("{}\n", sysinfo::uname().sysname)
        }),
        ("kernel/osrelease", || {
            format!("{}\n", sysinfo::uname().release)
        }),
        ("kernel/version", || {
            format!("{}\n", sysinfo::uname().version)
        }),
    ];
    for (path, text) in texts {
        add_at_path(
            dir,
            path,
            pseudo::file(PseudoAttr::new(dev, 0o444), move || Ok(text().into_bytes())),
        );
    }
    for limit in charge::LIMITS {
        let set = |text: &[u8]| {
            let number = core::str::from_utf8(text).ok();
            let number = number.and_then(|text| text.trim().parse::<u32>().ok());
            limit.set(number.ok_or(Errno::EINVAL)? as usize);
            Ok(())
        };
        let show = || Ok(format!("{}\n", limit.get()).into_bytes());
        let file = pseudo::setting_file(PseudoAttr::new(dev, 0o644), show, set);
        add_at_path(dir, &format!("fs/{}", limit.path), file);
    }
    for (number, sysctl) in namespaces::net().sysctls().all().enumerate() {
        for path in [sysctl.path()].into_iter().chain(sysctl.alias()) {
            let file = pseudo::setting_file(
                PseudoAttr::new(dev, 0o644),
                move || with_net_sysctl(number, |sysctl| Ok(sysctl.text().into_bytes())),
                move |text| with_net_sysctl(number, |sysctl| sysctl.set(text)),
            );
            add_at_path(dir, &format!("net/{path}"), file);
        }
    }
    for (name, show, set) in [RT_PERIOD, RT_RUNTIME] {
        let set = move |text: &[u8]| {
            let number = core::str::from_utf8(text)
                .ok()
                .and_then(|text| text.trim().parse::<i32>().ok())
                .ok_or(Errno::EINVAL)?;
            ::task::change_rt_limits(|limits| {
                set(limits, number).filter(is_valid).ok_or(Errno::EINVAL)
            })
        };
        let show = move || Ok(format!("{}\n", show(::task::rt_limits())).into_bytes());
        add_at_path(
            dir,
            name,
            pseudo::setting_file(PseudoAttr::new(dev, 0o644), show, set),
        );
    }
    let hostname = pseudo::setting_file(
        PseudoAttr::new(dev, 0o644),
        || Ok([&sysinfo::uname().nodename[..], b"\n"].concat()),
        |text| sysinfo::set_hostname(text.trim_ascii_end()),
    );
    add_at_path(dir, "kernel/hostname", hostname);
    let domainname = pseudo::setting_file(
        PseudoAttr::new(dev, 0o644),
        || Ok([&sysinfo::domain_name()[..], b"\n"].concat()),
        |text| sysinfo::set_domain_name(text.trim_ascii_end()),
    );
    add_at_path(dir, "kernel/domainname", domainname);
    // There is nothing that could be dropped: files are not copies of what is elsewhere.
    let dropped = |text: &[u8]| match text.trim_ascii() {
        [b'1'..=b'4'] => Ok(()),
        _ => Err(Errno::EINVAL),
    };
    add_at_path(
        dir,
        "vm/drop_caches",
        pseudo::setting_file(PseudoAttr::new(dev, 0o200), || Err(Errno::EINVAL), dropped),
    );
    // As on a Linux that cannot set any aside: it takes the number, and has fewer.
    for name in ["nr_hugepages", "nr_overcommit_hugepages"] {
        let accept = |text: &[u8]| {
            core::str::from_utf8(text)
                .ok()
                .and_then(|t| t.trim().parse::<u64>().ok())
                .map(drop)
        };
        let file = pseudo::setting_file(
            PseudoAttr::new(dev, 0o644),
            || Ok(b"0\n".to_vec()),
            move |text| accept(text).ok_or(Errno::EINVAL),
        );
        add_at_path(dir, &format!("vm/{name}"), file);
    }
    let uuid = |random: [u8; 16]| {
        let hex = |range: core::ops::Range<usize>| {
            random[range]
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
        };
        format!(
            "{}-{}-{}-{}-{}\n",
            hex(0..4),
            hex(4..6),
            hex(6..8),
            hex(8..10),
            hex(10..16)
        )
    };
    let random_uuid = move || {
        let mut random = [0; 16];
        fs::devfs::fill_random(&mut random);
        // Version 4, variant 1 (RFC 9562).
        random[6] = random[6] & 0x0f | 0x40;
        random[8] = random[8] & 0x3f | 0x80;
        uuid(random)
    };
    add_at_path(
        dir,
        "kernel/random/boot_id",
        pseudo::constant(dev, random_uuid()),
    );
    add_at_path(
        dir,
        "kernel/random/entropy_avail",
        pseudo::file(PseudoAttr::new(dev, 0o444), || {
            Ok(format!("{}\n", guard::random::seed_bits()).into_bytes())
        }),
    );
    add_at_path(
        dir,
        "kernel/random/uuid",
        pseudo::file(PseudoAttr::new(dev, 0o444), move || {
            Ok(random_uuid().into_bytes())
        }),
    );
}

/// A file, the number it shows of the limits, and the limits after that number was written, unless
/// it is invalid by itself.
type RtLimitFile = (
    &'static str,
    fn(RtLimits) -> i64,
    fn(RtLimits, i32) -> Option<RtLimits>,
);

/// Nanoseconds of a microsecond.
const US: u64 = 1000;
/// `runtime_ns` of real-time threads that may run without limit.
const UNLIMITED: u64 = u64::MAX;

const RT_PERIOD: RtLimitFile = (
    "kernel/sched_rt_period_us",
    |limits| (limits.period_ns / US).cast_signed(),
    |limits, us| {
        Some(RtLimits {
            period_ns: u64::try_from(us).ok().filter(|&us| us != 0)? * US,
            ..limits
        })
    },
);
const RT_RUNTIME: RtLimitFile = (
    "kernel/sched_rt_runtime_us",
    |limits| {
        if limits.runtime_ns == UNLIMITED {
            -1
        } else {
            (limits.runtime_ns / US).cast_signed()
        }
    },
    |limits, us| {
        Some(RtLimits {
            runtime_ns: if us == -1 {
                UNLIMITED
            } else {
                u64::try_from(us).ok()? * US
            },
            ..limits
        })
    },
);

/// Whether real-time threads have no more than the whole period, or no limit.
fn is_valid(
    &RtLimits {
        runtime_ns,
        period_ns,
    }: &RtLimits,
) -> bool {
    runtime_ns <= period_ns || runtime_ns == UNLIMITED
}

/// Adds a file below directories that are made as needed.
pub(crate) fn add_at_path(dir: &Arc<StaticDir>, path: &str, file: Arc<dyn fs::Inode>) {
    match path.rsplit_once('/') {
        Some((above, name)) => dir.subdir(above).add(name, file),
        None => dir.add(path, file),
    }
}
