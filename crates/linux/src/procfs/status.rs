//! What a process is doing, what it has used and what it may:
//! `/proc/<pid>/{stat,status,io,sched,schedstat,limits,stack,wchan}`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use uapi::pid::Tid;
use vm::PAGE_SIZE;

use super::maps;
use super::snapshot::SignalSets;
use super::system::NS_PER_TICK;
use crate::process::image::mm_map_of;
use crate::process::process_table::Relations;
use crate::process::{Process, access, send_signal};
use crate::ptrace;
use crate::state::credentials::{Ids, TraceCreds};
use crate::state::rlimit::{Resource, Rlimit, UNLIMITED};
use crate::state::sched_params::SchedParams;
use crate::state::seccomp::SeccompStatus;
use crate::state::speculation::{Means, SpeculationKind};
use crate::state::usage::Usage;

/// Passes the functions in which a thread waits to `show`, from the innermost outwards.
fn for_each_stack_frame(process: &Process, tid: Option<Tid>, show: impl FnMut(&str, u32)) {
    let tid = tid.unwrap_or(process.pid().leader());
    if let Some(thread) = process
        .tasks()
        .iter()
        .find(|task| task.tid() == tid)
        .and_then(|task| task.started_thread())
    {
        thread.backtrace(show);
    }
}

pub(super) fn stack(process: &Process, tid: Option<Tid>) -> String {
    let mut text = String::new();
    for_each_stack_frame(process, tid, |name, distance| {
        text += &format!("[<0>] {name}+{distance:#x}\n");
    });
    text
}

/// Innermost function in which a thread waits that is not a means of waiting itself.
pub(super) fn wchan(process: &Process, tid: Option<Tid>) -> String {
    const MEANS: [&str; 5] = ["guard::", "task::", "lfmutex::", "core::", "alloc::"];
    let mut found = None;
    for_each_stack_frame(process, tid, |name, _| {
        if found.is_none()
            && !MEANS
                .iter()
                .any(|means| name.trim_start_matches('<').starts_with(means))
        {
            found = Some(name.into());
        }
    });
    found.unwrap_or_else(|| "0".into())
}

/// Fields of `stat` that are addresses: of code and stack; of data, heap, arguments and
/// environment. Without addresses for a caller that may not look into the process.
fn address_fields(process: &Arc<Process>) -> [String; 2] {
    let Ok(l) = mm_map_of(process) else {
        return ["0 0 0".into(), "0 0 0 0 0 0 0".into()];
    };
    if crate::current_task()
        .is_none_or(|caller| access::check_trace_access(&caller, process, TraceCreds::Fs).is_err())
    {
        return ["1 1 0".into(), "0 0 0 0 0 0 0".into()];
    }
    [
        format!("{} {} {}", l.start_code, l.end_code, l.start_stack),
        format!(
            "{} {} {} {} {} {} {}",
            l.start_data, l.end_data, l.start_brk, l.arg_start, l.arg_end, l.env_start, l.env_end
        ),
    ]
}

pub(super) fn stat(process: &Arc<Process>, tid: Option<Tid>) -> String {
    let s = process.snapshot_of(tid);
    let pid = s.pid;
    let Relations {
        parent,
        group,
        session,
    } = s.relations;
    let terminal = fs::tty::controlling(session.as_u32());
    let tty = terminal.as_ref().map_or(0, |t| t.id().encode());
    let foreground = terminal
        .and_then(|t| t.foreground())
        .map_or(-1, |g| g as i32);
    let (own, children) = (&s.usage, &s.children_usage);
    let [code, data] = address_fields(process);
    let (size, resident) = (s.size_bytes, s.resident_bytes);
    let SignalSets {
        own_pending,
        pending,
        blocked,
        ignored,
        caught,
    } = s.signals;
    let SchedParams {
        policy,
        priority: rt,
        nice,
        ..
    } = s.schedule;
    // As Linux counts: below 0 for those with priorities, 0 to 39 for the others.
    let priority = if rt == 0 {
        20 + nice
    } else {
        -1 - rt.cast_signed()
    };
    let limit = process.limits.lock()[Resource::ResidentSet].soft;
    format!(
        "{} ({}) {} {parent} {group} {session} {tty} {foreground} 0 {} {} 0 0 {} {} {} {} {priority} {nice} {} 0 {} {size} {} \
         {limit} {code} 0 0 {} {blocked} {ignored} {caught} {} 0 0 {} {} {rt} {policy} 0 0 0 {data} 0\n",
        tid.unwrap_or(pid.leader()),
        s.name,
        s.state,
        own.faults,
        children.faults,
        own.user_ns / NS_PER_TICK,
        own.system_ns / NS_PER_TICK,
        children.user_ns / NS_PER_TICK,
        children.system_ns / NS_PER_TICK,
        s.threads.len(),
        s.start_ns / NS_PER_TICK,
        resident / PAGE_SIZE as u64,
        own_pending | pending,
        u8::from(s.state == 'S'),
        if tid.is_some_and(|tid| tid != pid.leader()) {
            -1
        } else {
            process.exit_signal()
        },
        s.cpu,
    )
}

/// A set of CPUs as a list of ranges.
fn ranges(words: &[u64]) -> String {
    let has = |n: usize| {
        words
            .get(n / 64)
            .is_some_and(|word| word >> (n % 64) & 1 != 0)
    };
    let (mut text, mut n) = (String::new(), 0);
    while n < words.len() * 64 {
        let end = (n..).find(|&n| !has(n)).unwrap_or(n);
        let comma = if text.is_empty() { "" } else { "," };
        match end - n {
            0 => {}
            1 => text += &format!("{comma}{n}"),
            _ => text += &format!("{comma}{n}-{}", end - 1),
        }
        n = end + 1;
    }
    text
}

pub(super) fn status(process: &Process, tid: Option<Tid>) -> String {
    let s = process.snapshot_of(tid);
    let pid = s.pid;
    let Relations {
        parent,
        group,
        session,
    } = s.relations;
    let state = match s.state {
        'R' => "running",
        'T' => "stopped",
        't' => "tracing stop",
        'Z' => "zombie",
        'D' => "disk sleep",
        _ => "sleeping",
    };
    let own = tid.unwrap_or(pid.leader());
    let tracer = process
        .find_task(|task| task.tid() == own)
        .and_then(|task| ptrace::tracer_of(&task));
    let tracer = tracer.map_or(Tid::default(), |tracer| tracer.tid());
    let four = |ids: Ids| ids.list().map(|id| format!("{id}")).join("\t");
    let SignalSets {
        own_pending,
        pending,
        blocked,
        ignored,
        caught,
    } = s.signals;
    let groups: String = s.groups.iter().map(|g| format!("{g} ")).collect();
    let masks: Vec<String> = s
        .allowed_cpus
        .iter()
        .rev()
        .flat_map(|w| [w >> 32, w & 0xffff_ffff])
        .map(|w| format!("{w:08x}"))
        .collect();
    let SeccompStatus { mode, filters } = s.seccomp;
    let [store_bypass, indirect_branch] = [
        SpeculationKind::StoreBypass,
        SpeculationKind::IndirectBranch,
    ]
    .map(|kind| s.speculation.words(kind, Means::of_machine()));
    let switches = s.usage.switches;
    let queued = send_signal::queued_by_user(s.uids.real);
    let limit = process.limits.lock()[Resource::PendingSignals].soft;
    format!(
        "Name:\t{}\nUmask:\t{:04o}\nState:\t{} ({state})\nTgid:\t{pid}\nNgid:\t0\nPid:\t{own}\nPPid:\t{parent}\nTracerPid:\t{tracer}\n\
         Uid:\t{}\nGid:\t{}\nFDSize:\t{}\nGroups:\t{groups}\nNStgid:\t{pid}\nNSpid:\t{own}\nNSpgid:\t{group}\nNSsid:\t{session}\n{}\
         Threads:\t{}\nSigQ:\t{queued}/{limit}\n\
         SigPnd:\t{own_pending:016x}\nShdPnd:\t{pending:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n\
         CapInh:\t{:016x}\nCapPrm:\t{:016x}\nCapEff:\t{:016x}\nCapBnd:\t{:016x}\nCapAmb:\t{:016x}\n\
         NoNewPrivs:\t{}\nSeccomp:\t{mode}\nSeccomp_filters:\t{filters}\n\
         Speculation_Store_Bypass:\t{store_bypass}\nSpeculationIndirectBranch:\t{indirect_branch}\n\
         Cpus_allowed:\t{}\nCpus_allowed_list:\t{}\nMems_allowed:\t1\nMems_allowed_list:\t0\n\
         voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}\n",
        s.name,
        process.fs().map_or(0, |fs| fs.umask()),
        s.state,
        four(s.uids),
        four(s.gids),
        process.files().map_or(0, |f| f.size()),
        maps::status(process),
        s.threads.len(),
        s.capabilities.inheritable,
        s.capabilities.permitted,
        s.capabilities.effective,
        s.capabilities.bounding,
        s.capabilities.ambient,
        u8::from(s.no_new_privileges),
        masks.join(","),
        ranges(&s.allowed_cpus),
        switches.voluntary,
        switches.involuntary,
    )
}

/// Transfers of the process, or of one thread.
pub(super) fn io(process: &Process, tid: Option<Tid>) -> String {
    let snapshot = process.snapshot_of(tid);
    let mut usage = snapshot.usage;
    if tid.is_none() {
        // Those of children that were waited for are the process's, as on Linux.
        usage.add(&snapshot.children_usage);
    }
    let Usage {
        read,
        written,
        storage,
        ..
    } = usage;
    format!(
        "rchar: {}\nwchar: {}\nsyscr: {}\nsyscw: {}\n\
         read_bytes: {}\nwrite_bytes: {}\ncancelled_write_bytes: {}\n",
        read.bytes,
        written.bytes,
        read.calls,
        written.calls,
        storage.read,
        storage.written,
        storage.cancelled,
    )
}

/// Time on processors, and how often it got one. How long it waited for that is not counted.
pub(super) fn schedstat(process: &Process, tid: Option<Tid>) -> String {
    let usage = process
        .snapshot_of(Some(tid.unwrap_or(process.pid().leader())))
        .usage;
    format!("{} 0 {}\n", usage.total_ns(), usage.switches.total())
}

/// Scheduling of a thread (`/proc/<pid>/sched`).
pub(super) fn sched(process: &Process, tid: Option<Tid>) -> String {
    let tid = tid.unwrap_or(process.pid().leader());
    let s = process.snapshot_of(Some(tid));
    let SchedParams {
        policy,
        priority: rt,
        nice,
        ..
    } = s.schedule;
    let priority = if rt == 0 {
        120 + nice
    } else {
        99 - rt.cast_signed()
    };
    let (ns, switches) = (s.usage.total_ns(), s.usage.switches);
    let mut text = format!(
        "{} ({tid}, #threads: {})\n{:-<67}\n",
        s.name,
        s.threads.len(),
        ""
    );
    let time = format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000);
    let rows = [
        ("se.sum_exec_runtime", time),
        ("nr_switches", format!("{}", switches.total())),
        ("nr_voluntary_switches", format!("{}", switches.voluntary)),
        (
            "nr_involuntary_switches",
            format!("{}", switches.involuntary),
        ),
        ("policy", format!("{policy}")),
        ("prio", format!("{priority}")),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<45}:{value:>21}");
    }
    text
}

pub(super) fn limits(process: &Process) -> String {
    let mut text = format!(
        "{:<26}{:<21}{:<21}{:<10}\n",
        "Limit", "Soft Limit", "Hard Limit", "Units"
    );
    for (name, units, Rlimit { soft, hard }) in process.limits() {
        let shown = |value: u64| {
            if value == UNLIMITED {
                "unlimited".into()
            } else {
                format!("{value}")
            }
        };
        let _ = writeln!(
            text,
            "{name:<26}{:<21}{:<21}{units:<10}",
            shown(soft),
            shown(hard)
        );
    }
    text
}
