//! The files of one process: `/proc/<pid>`, `/proc/<pid>/task/<tid>`.

use super::mem::MemFile;
use super::{PID_SHIFT, machine::NS_PER_TICK, memory, number};
use crate::fdtable::FdTable;
use crate::process::Process;
use crate::process_table as processes;
use crate::schedule::Schedule;
use crate::{oom, peer, prctl_mm};
use abi::errno::Errno;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering;
use fs::mount::{self, MS_NODEV, MS_NOEXEC, MS_NOSUID};
use fs::pseudo::{self, Attr, DynamicDir, Listed, StaticDir};
use fs::{FileType, Inode, Link, Path, Result};
use linux_raw_sys::general::{CAP_SYS_NICE, CAP_SYS_RESOURCE};

/// A file of the directory: its name, kind and permissions. Its place in the table is part of its number.
const FILES: &[(&str, FileType, u32)] = &[
    ("auxv", FileType::Regular, 0o400),
    ("cgroup", FileType::Regular, 0o444),
    ("cmdline", FileType::Regular, 0o444),
    ("comm", FileType::Regular, 0o644),
    ("coredump_filter", FileType::Regular, 0o644),
    ("cwd", FileType::Symlink, 0o777),
    ("environ", FileType::Regular, 0o400),
    ("gid_map", FileType::Regular, 0o444),
    ("loginuid", FileType::Regular, 0o444),
    ("exe", FileType::Symlink, 0o777),
    ("fd", FileType::Directory, 0o500),
    ("fdinfo", FileType::Directory, 0o500),
    ("limits", FileType::Regular, 0o444),
    ("maps", FileType::Regular, 0o444),
    ("mem", FileType::Regular, 0o600),
    ("mountinfo", FileType::Regular, 0o444),
    ("mounts", FileType::Regular, 0o444),
    ("net", FileType::Symlink, 0o777),
    ("ns", FileType::Directory, 0o511),
    ("oom_score", FileType::Regular, 0o444),
    ("oom_score_adj", FileType::Regular, 0o644),
    ("personality", FileType::Regular, 0o400),
    ("root", FileType::Symlink, 0o777),
    ("sessionid", FileType::Regular, 0o444),
    ("setgroups", FileType::Regular, 0o444),
    ("smaps", FileType::Regular, 0o444),
    ("smaps_rollup", FileType::Regular, 0o444),
    ("stack", FileType::Regular, 0o400),
    ("stat", FileType::Regular, 0o444),
    ("statm", FileType::Regular, 0o444),
    ("status", FileType::Regular, 0o444),
    ("syscall", FileType::Regular, 0o400),
    ("timerslack_ns", FileType::Regular, 0o666),
    ("uid_map", FileType::Regular, 0o444),
    ("wchan", FileType::Regular, 0o444),
    ("task", FileType::Directory, 0o555),
];
/// Where the numbers of descriptors' files begin.
const FD_INO: u64 = 1 << 16;
/// And those of namespaces.
const NS_INO: u64 = 1 << 12;
/// The number of the first namespace; Linux's begin here, too.
const FIRST_NAMESPACE: usize = 0xf000_0000;

fn find(pid: i32) -> Result<Arc<Process>> {
    processes::find(pid).ok_or(Errno::ESRCH)
}

/// The directory of a process, by its id or one of its threads'.
pub(super) fn directory(dev: u64, pid: i32) -> Result<Arc<dyn Inode>> {
    let process = processes::find(pid).ok_or(Errno::ENOENT)?;
    let attr = attr(dev, &process, 0, 0o555);
    Ok(pseudo::dynamic_dir(ProcessDir { attr, pid, tid: None, process: Arc::downgrade(&process) }))
}

fn attr(dev: u64, process: &Process, place: u64, mode: u32) -> Attr {
    let (uid, gid) = process.owner();
    Attr { dev, ino: ((process.pid() as u64) << PID_SHIFT) + place, mode, uid, gid }
}

/// The directory of a process, or of one thread of it.
struct ProcessDir {
    attr: Attr,
    pid: i32,
    tid: Option<i32>,
    /// Which of those that ever had the number.
    process: Weak<Process>,
}

/// The process whose directory in `/proc` this is; none if it is another file, an error if that process is gone.
///
/// # Errors
/// `ESRCH`.
pub(crate) fn of_directory(inode: &Arc<dyn Inode>) -> Option<Result<Arc<Process>>> {
    let dir = pseudo::as_dynamic::<ProcessDir>(inode).filter(|dir| dir.tid.is_none())?;
    Some(dir.process.upgrade().ok_or(Errno::ESRCH))
}

impl DynamicDir for ProcessDir {
    fn attr(&self) -> Attr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let process = processes::find(self.pid).ok_or(Errno::ENOENT)?;
        let place = FILES.iter().position(|f| f.0.as_bytes() == name).ok_or(Errno::ENOENT)?;
        let (name, _, mode) = FILES[place];
        let attr = attr(self.attr.dev, &process, place as u64 + 1, mode);
        let (pid, tid) = (self.pid, self.tid);
        Ok(match name {
            "task" if tid.is_some() => return Err(Errno::ENOENT),
            "task" => pseudo::dynamic_dir(TaskDir { attr, pid }),
            "fd" => pseudo::dynamic_dir(FdDir { attr, pid, info: false }),
            "fdinfo" => pseudo::dynamic_dir(FdDir { attr, pid, info: true }),
            "mem" => Arc::new(MemFile { attr, pid }),
            "net" => pseudo::link(attr, || Ok(Link::Text(b"/proc/net".to_vec()))),
            "ns" => namespaces(attr),
            "exe" => link(attr, pid, |p| p.executable().ok_or(Errno::ENOENT)),
            "cwd" => link(attr, pid, |p| p.fs().map(|fs| fs.cwd()).ok_or(Errno::ENOENT)),
            "root" => link(attr, pid, |p| p.fs().map(|fs| fs.root()).ok_or(Errno::ENOENT)),
            "comm" => pseudo::writable_file(
                attr,
                move || text(name, pid, tid),
                move |new| find(pid).map(|p| p.set_name(new.trim_ascii_end())),
            ),
            "oom_score_adj" => {
                pseudo::writable_file(attr, move || text(name, pid, tid), move |text| set_oom_adjustment(pid, parsed(text)?))
            }
            "timerslack_ns" => pseudo::writable_file(
                attr,
                move || timer_slack(pid, tid, None),
                move |text| timer_slack(pid, tid, Some(parsed(text)?)).map(drop),
            ),
            // Accepted and without effect: there is no core dump.
            "coredump_filter" => pseudo::writable_file(attr, move || text(name, pid, tid), |_| Ok(())),
            _ => pseudo::file(attr, move || text(name, pid, tid)),
        })
    }

    fn list(&self, after: u64) -> Result<Vec<Listed>> {
        let listed = |(place, &(name, kind, _)): (usize, &(&str, FileType, u32))| {
            let key = place as u64 + 1;
            let shown = key > after && !(self.tid.is_some() && name == "task");
            shown.then(|| Listed { name: name.into(), ino: self.attr.ino + key, kind, key })
        };
        Ok(FILES.iter().enumerate().filter_map(listed).collect())
    }
}

fn link(attr: Attr, pid: i32, target: fn(&Process) -> Result<Path>) -> Arc<dyn Inode> {
    let show = move || {
        let root = crate::current_task().map(|task| task.fs().root());
        Ok(target(&*find(pid)?)?.to_bytes(root.as_ref()))
    };
    pseudo::link_with_text(attr, move || target(&*find(pid)?).map(Link::Jump), show)
}

/// `/proc/<pid>/ns`: the namespaces there are, one of each kind, which cannot be entered.
fn namespaces(attr: Attr) -> Arc<dyn Inode> {
    let dir = StaticDir::new(attr.dev);
    for (place, name) in ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"].into_iter().enumerate() {
        let text = format!("{name}:[{}]", FIRST_NAMESPACE + place);
        let attr = Attr { ino: attr.ino + NS_INO + place as u64, mode: 0o777, ..attr };
        let shown = move || Ok(text.clone().into_bytes());
        dir.add(name, pseudo::link_with_text(attr, || Err(Errno::EACCES), shown));
    }
    dir
}

/// `/proc/<pid>/task`
struct TaskDir {
    attr: Attr,
    pid: i32,
}

impl DynamicDir for TaskDir {
    fn attr(&self) -> Attr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let tid = number(name).ok_or(Errno::ENOENT)?;
        let process = processes::find(self.pid).ok_or(Errno::ENOENT)?;
        if !process.snapshot().threads.contains(&tid) {
            return Err(Errno::ENOENT);
        }
        let attr = Attr { ino: (tid as u64) << PID_SHIFT, mode: 0o555, ..self.attr };
        Ok(pseudo::dynamic_dir(ProcessDir { attr, pid: self.pid, tid: Some(tid), process: Arc::downgrade(&process) }))
    }

    fn list(&self, after: u64) -> Result<Vec<Listed>> {
        let mut threads = processes::find(self.pid).ok_or(Errno::ENOENT)?.snapshot().threads;
        threads.sort_unstable();
        let listed = |tid: i32| Listed {
            name: format!("{tid}").into_bytes(),
            ino: (tid as u64) << PID_SHIFT,
            kind: FileType::Directory,
            key: tid as u64,
        };
        Ok(threads.into_iter().map(listed).filter(|l| l.key > after).collect())
    }
}

/// `/proc/<pid>/fd` and `/proc/<pid>/fdinfo`
struct FdDir {
    attr: Attr,
    pid: i32,
    info: bool,
}

impl FdDir {
    fn files(&self) -> Result<Arc<FdTable>> {
        processes::find(self.pid).and_then(|p| p.files()).ok_or(Errno::ENOENT)
    }
}

impl DynamicDir for FdDir {
    fn attr(&self) -> Attr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let fd = number(name).ok_or(Errno::ENOENT)?;
        let file = self.files()?.get(fd).map_err(|_| Errno::ENOENT)?;
        let flags = file.flags();
        let mode = if self.info { 0o400 } else { (u32::from(flags.readable()) * 0o500) | (u32::from(flags.writable()) * 0o300) };
        let attr = Attr { ino: self.attr.ino + FD_INO + fd as u64, mode, ..self.attr };
        let pid = self.pid;
        let open = move || {
            let files = processes::find(pid).and_then(|p| p.files()).ok_or(Errno::ENOENT)?;
            files.get(fd).map_err(|_| Errno::ENOENT)
        };
        if !self.info {
            return Ok(pseudo::link_with_text(
                attr,
                move || Ok(Link::Jump(open()?.path().clone())),
                move || {
                    let root = crate::current_task().map(|task| task.fs().root());
                    Ok(open()?.path().to_bytes(root.as_ref()))
                },
            ));
        }
        Ok(pseudo::file(attr, move || {
            let file = open()?;
            let mount = file.path().mount().id();
            Ok(format!("pos:\t{}\nflags:\t0{:o}\nmnt_id:\t{mount}\n", file.with_offset(|o| *o), file.flags().bits()).into_bytes())
        }))
    }

    fn list(&self, after: u64) -> Result<Vec<Listed>> {
        let kind = if self.info { FileType::Regular } else { FileType::Symlink };
        let listed = |(fd, _)| Listed {
            name: format!("{fd}").into_bytes(),
            ino: self.attr.ino + FD_INO + fd as u64,
            kind,
            key: fd as u64 + 1,
        };
        Ok(self.files()?.list().into_iter().map(listed).filter(|l| l.key > after).collect())
    }
}

/// The contents of one file of a process, or of its thread `tid`.
fn text(name: &str, pid: i32, tid: Option<i32>) -> Result<Vec<u8>> {
    let process = find(pid)?;
    let text = match name {
        "auxv" => return Ok(auxiliary(&process)),
        "cgroup" => "0::/\n".into(),
        "cmdline" => return Ok(process.arguments()),
        "comm" => format!("{}\n", process.snapshot().name),
        "coredump_filter" => "00000033\n".into(),
        "environ" => return Ok(process.environment()),
        "limits" => limits(&process),
        "maps" => memory::maps(&process),
        "mountinfo" => mount_table(true),
        "mounts" => mount_table(false),
        "oom_score" => format!("{}\n", oom::score(&process)),
        "oom_score_adj" => format!("{}\n", process.oom_adjustment.load(Ordering::Relaxed)),
        "smaps" => memory::smaps(&process),
        "smaps_rollup" => memory::smaps_rollup(&process),
        // All users and groups are those of the one namespace.
        "uid_map" | "gid_map" => format!("{:>10} {:>10} {:>10}\n", 0, 0, u32::MAX),
        "setgroups" => "allow\n".into(),
        // Nobody logs in through the kernel.
        "loginuid" | "sessionid" => format!("{}\n", u32::MAX),
        "personality" => format!("{:08x}\n", process.persona.load(Ordering::Relaxed)),
        "syscall" => "running\n".into(),
        "stack" => stack(&process, tid),
        "stat" => stat(&process, tid),
        "statm" => memory::statm(&process),
        "status" => status(&process, tid),
        "wchan" => waits_in(&process, tid),
        _ => return Err(Errno::ENOENT),
    };
    Ok(text.into_bytes())
}

/// The auxiliary vector, up to the entry that ends it.
fn auxiliary(process: &Process) -> Vec<u8> {
    let all = process.image.lock().aux.clone();
    let end = all.chunks_exact(16).position(|entry| entry[..8] == [0; 8]).map_or(all.len(), |last| 16 * (last + 1));
    all[..end].to_vec()
}

/// A number that was written to a file.
fn parsed<T: core::str::FromStr>(text: &[u8]) -> Result<T> {
    core::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()).ok_or(Errno::EINVAL)
}

/// Tells by how much a thread's sleeps may be late, after it was set. Others need to be allowed to change its priority for both.
fn timer_slack(pid: i32, tid: Option<i32>, new: Option<usize>) -> Result<Vec<u8>> {
    let tid = tid.unwrap_or(pid);
    let task = find(pid)?.find_task(|task| task.tid() == tid).ok_or(Errno::ESRCH)?;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    if !Arc::ptr_eq(&caller, &task) && !caller.cred().capable(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let mut settings = task.settings.lock();
    if let Some(new) = new {
        settings.set_timer_slack(new);
    }
    Ok(format!("{}\n", settings.timer_slack).into_bytes())
}

/// Only who may use more of the machine than others makes a process less likely to be chosen.
fn set_oom_adjustment(pid: i32, value: i32) -> Result<()> {
    if !oom::ADJUSTMENTS.contains(&value) {
        return Err(Errno::EINVAL);
    }
    let own = &find(pid)?.oom_adjustment;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    if value < own.load(Ordering::Relaxed) && !caller.cred().capable(CAP_SYS_RESOURCE) {
        return Err(Errno::EACCES);
    }
    own.store(value, Ordering::Relaxed);
    Ok(())
}

/// Shows the functions in which a thread waits, from the innermost outwards.
fn calls(process: &Process, tid: Option<i32>, show: impl FnMut(&str, u32)) {
    let tid = tid.unwrap_or(process.pid());
    if let Some(thread) = process.tasks().iter().find(|task| task.tid() == tid).and_then(|task| task.started()) {
        thread.calls(show);
    }
}

fn stack(process: &Process, tid: Option<i32>) -> String {
    let mut text = String::new();
    calls(process, tid, |name, distance| text += &format!("[<0>] {name}+{distance:#x}\n"));
    text
}

/// The innermost function that is not a means of waiting itself.
fn waits_in(process: &Process, tid: Option<i32>) -> String {
    const MEANS: [&str; 5] = ["guard::", "task::", "lfmutex::", "core::", "alloc::"];
    let mut found = None;
    calls(process, tid, |name, _| {
        if found.is_none() && !MEANS.iter().any(|means| name.trim_start_matches('<').starts_with(means)) {
            found = Some(name.into());
        }
    });
    found.unwrap_or_else(|| "0".into())
}

const PAGE: u64 = 4096;

/// Where the parts of its memory are: code (with where the stack begins), and data with heap, arguments and environment. Nothing that
/// tells somebody who may not look into the process.
fn places(process: &Arc<Process>) -> [String; 2] {
    let Ok(l) = prctl_mm::layout_of(process) else { return ["0 0 0".into(), "0 0 0 0 0 0 0".into()] };
    if crate::current_task().is_none_or(|caller| peer::check(&caller, process).is_err()) {
        return ["1 1 0".into(), "0 0 0 0 0 0 0".into()];
    }
    [
        format!("{} {} {}", l.start_code, l.end_code, l.start_stack),
        format!("{} {} {} {} {} {} {}", l.start_data, l.end_data, l.start_brk, l.arg_start, l.arg_end, l.env_start, l.env_end),
    ]
}

fn stat(process: &Arc<Process>, tid: Option<i32>) -> String {
    let s = process.snapshot_of(tid.unwrap_or(process.pid()));
    let [pid, parent, group, session] = s.ids;
    let terminal = fs::tty::controlling(session as u32);
    let tty = terminal.as_ref().map_or(0, |t| t.id().encode());
    let foreground = terminal.and_then(|t| t.foreground()).map_or(-1, |g| g as i32);
    let (own, children) = (&s.usage, &s.children_usage);
    let [code, data] = places(process);
    let [size, resident] = s.memory;
    let [pending, blocked, ignored, caught] = s.signals;
    let Schedule { policy, priority: rt, nice, .. } = s.schedule;
    // As Linux counts: below 0 for those with priorities, 0 to 39 for the others.
    let priority = if rt == 0 { 20 + nice } else { -1 - rt.cast_signed() };
    format!(
        "{} ({}) {} {parent} {group} {session} {tty} {foreground} 0 {} {} 0 0 {} {} {} {} {priority} {nice} {} 0 {} {size} {} \
         18446744073709551615 {code} 0 0 {pending} {blocked} {ignored} {caught} 0 0 0 17 {} {rt} {policy} 0 0 0 {data} 0\n",
        tid.unwrap_or(pid),
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
        resident / PAGE,
        s.cpu,
    )
}

fn status(process: &Process, tid: Option<i32>) -> String {
    let s = process.snapshot_of(tid.unwrap_or(process.pid()));
    let [pid, parent, ..] = s.ids;
    let state = match s.state {
        'R' => "running",
        'T' => "stopped",
        't' => "tracing stop",
        'Z' => "zombie",
        'D' => "disk sleep",
        _ => "sleeping",
    };
    let tracer = process.find_task(|task| task.tid() == tid.unwrap_or(pid)).and_then(|task| crate::ptrace::tracer_of(&task));
    let tracer = tracer.map_or(0, |tracer| tracer.tid());
    let four = |ids: [u32; 4]| ids.map(|id| format!("{id}")).join("\t");
    let [pending, blocked, ignored, caught] = s.signals;
    let groups: String = s.groups.iter().map(|g| format!("{g} ")).collect();
    let masks: Vec<String> =
        s.allowed_cpus.iter().rev().flat_map(|w| [w >> 32, w & 0xffff_ffff]).map(|w| format!("{w:08x}")).collect();
    format!(
        "Name:\t{}\nUmask:\t{:04o}\nState:\t{} ({state})\nTgid:\t{pid}\nNgid:\t0\nPid:\t{}\nPPid:\t{parent}\nTracerPid:\t{}\n\
         Uid:\t{}\nGid:\t{}\nFDSize:\t{}\nGroups:\t{groups}\n{}Threads:\t{}\n\
         SigPnd:\t0000000000000000\nShdPnd:\t{pending:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n\
         CapInh:\t{:016x}\nCapPrm:\t{:016x}\nCapEff:\t{:016x}\nCapBnd:\t{:016x}\n\
         CapAmb:\t{:016x}\nNoNewPrivs:\t{}\nSeccomp:\t{}\nCpus_allowed:\t{}\nMems_allowed:\t1\nMems_allowed_list:\t0\n",
        s.name,
        process.fs().map_or(0, |fs| fs.umask()),
        s.state,
        tid.unwrap_or(pid),
        tracer,
        four(s.uids),
        four(s.gids),
        process.files().map_or(0, |f| f.size()),
        memory::status(process),
        s.threads.len(),
        s.capabilities.inheritable,
        s.capabilities.permitted,
        s.capabilities.effective,
        s.capabilities.bounding,
        s.capabilities.ambient,
        u8::from(s.no_new_privileges),
        s.seccomp,
        masks.join(","),
    )
}

fn limits(process: &Process) -> String {
    let mut text = format!("{:<26}{:<21}{:<21}{:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    for (name, units, [soft, hard]) in process.limits() {
        let shown = |value: u64| if value == u64::MAX { "unlimited".into() } else { format!("{value}") };
        let _ = writeln!(text, "{name:<26}{:<21}{:<21}{units:<10}", shown(soft), shown(hard));
    }
    text
}

/// What cannot stand in a field of a mount table is written in octal.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, &b| {
        let _ = match b {
            b' ' | b'\t' | b'\n' | b'\\' => write!(text, "\\{b:03o}"),
            _ => write!(text, "{}", char::from(b)),
        };
        text
    })
}

/// `/proc/<pid>/mounts`, or `mountinfo`.
fn mount_table(long: bool) -> String {
    let root = crate::current_task().map(|task| task.fs().root());
    let mut text = String::new();
    for mount in mount::list() {
        let point = match mount.point() {
            Some(point) => point.to_bytes(root.as_ref()),
            None => b"/".to_vec(),
        };
        if point.starts_with(b"(unreachable)") {
            continue;
        }
        let flags = mount.flags();
        let mut options = String::from(if mount.read_only() { "ro" } else { "rw" });
        for (flag, name) in [(MS_NOSUID, ",nosuid"), (MS_NODEV, ",nodev"), (MS_NOEXEC, ",noexec")] {
            if flags & flag != 0 {
                options.push_str(name);
            }
        }
        let (source, point) = (escaped(mount.source().as_bytes()), escaped(&point));
        let (kind, more) = (mount.fs().name(), mount.fs().options());
        let _ = if long {
            let parent = mount.point().map_or(0, |p| p.mount().id());
            let dev = fs::DeviceId::decode(mount.root().inode().metadata().dev);
            writeln!(
                text,
                "{} {parent} {}:{} {} {point} {options} - {kind} {source} rw{more}",
                mount.id(),
                dev.major,
                dev.minor,
                escaped(&mount.root_name())
            )
        } else {
            writeln!(text, "{source} {point} {kind} {options}{more} 0 0")
        };
    }
    text
}
