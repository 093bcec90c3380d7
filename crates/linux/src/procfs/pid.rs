//! The directory of one process: `/proc/<pid>`, `/proc/<pid>/task/<tid>`.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::nsfs::NamespaceKind;
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr, StaticDir};
use fs::{FileType, Inode, LinkTarget, Path, Result};
use linux_raw_sys::general::{CAP_SYS_NICE, CAP_SYS_RESOURCE};
use uapi::pid::{Pid, Tid};

use super::fd::FdDir;
use super::mem::MemFile;
use super::pagemap::{self, MapFiles, PageMap};
use super::{PID_SHIFT, maps, mounts, parse_pid, status};
use crate::Task;
use crate::mm::oom;
use crate::process::{Process, access, namespaces, process_table};

/// A file of the directory: its name, kind and permissions. Its place in the table is part of its
/// number.
const FILES: &[(&str, FileType, u32)] = &[
    ("arch_status", FileType::Regular, 0o444),
    ("auxv", FileType::Regular, 0o400),
    ("cgroup", FileType::Regular, 0o444),
    ("children", FileType::Regular, 0o444),
    ("clear_refs", FileType::Regular, 0o200),
    ("cmdline", FileType::Regular, 0o444),
    ("comm", FileType::Regular, 0o644),
    ("coredump_filter", FileType::Regular, 0o644),
    ("cpuset", FileType::Regular, 0o444),
    ("cwd", FileType::Symlink, 0o777),
    ("environ", FileType::Regular, 0o400),
    ("gid_map", FileType::Regular, 0o444),
    ("loginuid", FileType::Regular, 0o444),
    ("exe", FileType::Symlink, 0o777),
    ("fd", FileType::Directory, 0o500),
    ("fdinfo", FileType::Directory, 0o500),
    ("io", FileType::Regular, 0o400),
    ("limits", FileType::Regular, 0o444),
    ("map_files", FileType::Directory, 0o500),
    ("maps", FileType::Regular, 0o444),
    ("mem", FileType::Regular, 0o600),
    ("mountinfo", FileType::Regular, 0o444),
    ("mounts", FileType::Regular, 0o444),
    ("mountstats", FileType::Regular, 0o400),
    ("net", FileType::Symlink, 0o777),
    ("ns", FileType::Directory, 0o511),
    ("numa_maps", FileType::Regular, 0o444),
    ("oom_adj", FileType::Regular, 0o644),
    ("oom_score", FileType::Regular, 0o444),
    ("oom_score_adj", FileType::Regular, 0o644),
    ("pagemap", FileType::Regular, 0o400),
    ("personality", FileType::Regular, 0o400),
    ("projid_map", FileType::Regular, 0o444),
    ("root", FileType::Symlink, 0o777),
    ("sched", FileType::Regular, 0o444),
    ("schedstat", FileType::Regular, 0o444),
    ("sessionid", FileType::Regular, 0o444),
    ("setgroups", FileType::Regular, 0o444),
    ("smaps", FileType::Regular, 0o444),
    ("smaps_rollup", FileType::Regular, 0o444),
    ("stack", FileType::Regular, 0o400),
    ("stat", FileType::Regular, 0o444),
    ("statm", FileType::Regular, 0o444),
    ("status", FileType::Regular, 0o444),
    ("syscall", FileType::Regular, 0o400),
    ("timens_offsets", FileType::Regular, 0o444),
    ("timerslack_ns", FileType::Regular, 0o666),
    ("uid_map", FileType::Regular, 0o444),
    ("wchan", FileType::Regular, 0o444),
    ("task", FileType::Directory, 0o555),
];
/// Names of files that only processes have.
const PROCESS_ONLY: [&str; 3] = ["task", "map_files", "timerslack_ns"];
/// Names of files that only threads have.
const THREAD_ONLY: [&str; 1] = ["children"];
/// Names of files that only those may read who may trace the process.
const PTRACE_PROTECTED: [&str; 9] = [
    "auxv",
    "environ",
    "io",
    "map_files",
    "pagemap",
    "personality",
    "stack",
    "syscall",
    "timerslack_ns",
];

/// Whether a file is in the directory of a process, or of a thread.
fn is_shown(name: &str, thread: bool) -> bool {
    !(if thread {
        &PROCESS_ONLY[..]
    } else {
        &THREAD_ONLY[..]
    })
    .contains(&name)
}

/// First inode number of namespaces' files.
const NS_INO: u64 = 1 << 12;

fn find(pid: Pid) -> Result<Arc<Process>> {
    process_table::find(pid).ok_or(Errno::ESRCH)
}

/// The directory of a process, by its id or one of its threads'.
pub(super) fn directory(dev: u64, pid: Pid) -> Result<Arc<dyn Inode>> {
    let process = process_table::find(pid).ok_or(Errno::ENOENT)?;
    let attr = attr(dev, &process, 0, 0o555);
    Ok(pseudo::dynamic_dir(ProcessDir {
        attr,
        pid,
        tid: None,
        process: Arc::downgrade(&process),
    }))
}

fn attr(dev: u64, process: &Process, place: u64, mode: u32) -> PseudoAttr {
    let (uid, gid) = process.owner();
    PseudoAttr {
        dev,
        ino: ((process.pid().raw() as u64) << PID_SHIFT) + place,
        mode,
        uid,
        gid,
    }
}

/// The directory of a process, or of one thread of it.
struct ProcessDir {
    attr: PseudoAttr,
    pid: Pid,
    tid: Option<Tid>,
    /// Process itself, among those that ever had the number.
    process: Weak<Process>,
}

/// Process whose directory in `/proc` this is; `None` if it is another file, an error if that
/// process is gone.
///
/// # Errors
/// `ESRCH`.
pub(crate) fn process_of_pid_dir(inode: &Arc<dyn Inode>) -> Option<Result<Arc<Process>>> {
    let dir = pseudo::as_dynamic::<ProcessDir>(inode).filter(|dir| dir.tid.is_none())?;
    Some(dir.process.upgrade().ok_or(Errno::ESRCH))
}

impl DynamicDir for ProcessDir {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let process = process_table::find(self.pid).ok_or(Errno::ENOENT)?;
        let named =
            |f: &(&str, FileType, u32)| f.0.as_bytes() == name && is_shown(f.0, self.tid.is_some());
        let place = FILES.iter().position(named).ok_or(Errno::ENOENT)?;
        let (name, _, mode) = FILES[place];
        let attr = attr(self.attr.dev, &process, place as u64 + 1, mode);
        let (pid, tid) = (self.pid, self.tid);
        Ok(match name {
            "task" => pseudo::dynamic_dir(TaskDir { attr, pid }),
            "fd" => pseudo::dynamic_dir(FdDir {
                attr,
                pid,
                info: false,
            }),
            "fdinfo" => pseudo::dynamic_dir(FdDir {
                attr,
                pid,
                info: true,
            }),
            "map_files" => pseudo::dynamic_dir(MapFiles { attr, pid }),
            "pagemap" => Arc::new(PageMap { attr, pid }),
            "clear_refs" => pseudo::writable_file(
                attr,
                || Err(Errno::EINVAL),
                move |text| pagemap::clear_refs(pid, parse_number(text)?),
            ),
            "oom_adj" => pseudo::writable_file(
                attr,
                move || text(name, pid, tid),
                move |text| set_oom_adjustment(pid, oom::from_oom_adj(parse_number(text)?)?),
            ),
            "mem" => Arc::new(MemFile { attr, pid }),
            "net" => pseudo::symlink(attr, || Ok(LinkTarget::Text(b"/proc/net".to_vec()))),
            "ns" => namespaces(attr, pid, tid),
            "exe" => link(attr, pid, |p| p.executable().ok_or(Errno::ENOENT)),
            "cwd" => link(attr, pid, |p| {
                p.fs().map(|fs| fs.cwd()).ok_or(Errno::ENOENT)
            }),
            "root" => link(attr, pid, |p| {
                p.fs().map(|fs| fs.root()).ok_or(Errno::ENOENT)
            }),
            "comm" => pseudo::writable_file(
                attr,
                move || text(name, pid, tid),
                move |new| set_name(pid, tid, new),
            ),
            "oom_score_adj" => pseudo::writable_file(
                attr,
                move || text(name, pid, tid),
                move |text| set_oom_adjustment(pid, parse_number(text)?),
            ),
            "timerslack_ns" => pseudo::writable_file(
                attr,
                move || timer_slack(pid, tid, None),
                move |text| timer_slack(pid, tid, Some(parse_number(text)?)).map(drop),
            ),
            // Accepted and without effect: there is no core dump.
            "coredump_filter" => {
                pseudo::writable_file(attr, move || text(name, pid, tid), |_| Ok(()))
            }
            "maps" | "numa_maps" | "smaps" | "smaps_rollup" => pseudo::guarded_file(
                attr,
                |attr| check_ptrace_access_pid(Pid::new((attr.ino >> PID_SHIFT) as i32)),
                move || text(name, pid, tid),
            ),
            _ => pseudo::file(attr, move || text(name, pid, tid)),
        })
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let listed = |(place, &(name, kind, _)): (usize, &(&str, FileType, u32))| {
            let key = place as u64 + 1;
            let shown = key > after && is_shown(name, self.tid.is_some());
            shown.then(|| DynamicEntry {
                name: name.into(),
                ino: self.attr.ino + key,
                kind,
                key,
            })
        };
        Ok(FILES.iter().enumerate().filter_map(listed).collect())
    }
}

/// Checks that the caller may look into a process.
fn check_ptrace_access_pid(pid: Pid) -> Result<()> {
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    access::check_trace_access(&caller, &find(pid)?).map_err(|_| Errno::EACCES)
}

fn link(attr: PseudoAttr, pid: Pid, target: fn(&Process) -> Result<Path>) -> Arc<dyn Inode> {
    let show = move || {
        check_ptrace_access_pid(pid)?;
        let root = crate::current_task().map(|task| task.fs().root());
        Ok(target(&*find(pid)?)?.to_bytes(root.as_ref()))
    };
    let follow = move || {
        check_ptrace_access_pid(pid)?;
        target(&*find(pid)?).map(LinkTarget::MagicLink)
    };
    pseudo::symlink_with_text(attr, follow, show)
}

/// `/proc/<pid>/ns`: the namespaces that the process is in.
fn namespaces(attr: PseudoAttr, pid: Pid, tid: Option<Tid>) -> Arc<dyn Inode> {
    const NAMES: [(&str, NamespaceKind); 10] = [
        ("cgroup", NamespaceKind::Cgroup),
        ("ipc", NamespaceKind::Ipc),
        ("mnt", NamespaceKind::Mount),
        ("net", NamespaceKind::Net),
        ("pid", NamespaceKind::Pid),
        ("pid_for_children", NamespaceKind::Pid),
        ("time", NamespaceKind::Time),
        ("time_for_children", NamespaceKind::Time),
        ("user", NamespaceKind::User),
        ("uts", NamespaceKind::Uts),
    ];
    let dir = StaticDir::new(attr.dev);
    for (place, (name, kind)) in NAMES.into_iter().enumerate() {
        let attr = PseudoAttr {
            ino: attr.ino + NS_INO + place as u64,
            mode: 0o777,
            ..attr
        };
        let target = move || {
            check_ptrace_access_pid(pid)?;
            let process = find(pid)?;
            let task = process
                .find_task(|task| task.tid() == tid.unwrap_or(pid.leader()))
                .or_else(|| process.tasks().into_iter().next());
            Ok(namespaces::file(&*task.ok_or(Errno::ENOENT)?, kind))
        };
        dir.add(
            name,
            pseudo::symlink_with_text(
                attr,
                move || target().map(LinkTarget::MagicLink),
                move || Ok(target()?.to_bytes(None)),
            ),
        );
    }
    dir
}

/// The directory `/proc/<pid>/task`: one for each thread.
struct TaskDir {
    attr: PseudoAttr,
    pid: Pid,
}

impl DynamicDir for TaskDir {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let tid = parse_pid(name).map(Tid::new).ok_or(Errno::ENOENT)?;
        let process = process_table::find(self.pid).ok_or(Errno::ENOENT)?;
        if !process.snapshot().threads.contains(&tid) {
            return Err(Errno::ENOENT);
        }
        let attr = PseudoAttr {
            ino: (tid.raw() as u64) << PID_SHIFT,
            mode: 0o555,
            ..self.attr
        };
        Ok(pseudo::dynamic_dir(ProcessDir {
            attr,
            pid: self.pid,
            tid: Some(tid),
            process: Arc::downgrade(&process),
        }))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let mut threads = process_table::find(self.pid)
            .ok_or(Errno::ENOENT)?
            .snapshot()
            .threads;
        threads.sort_unstable();
        let listed = |tid: Tid| DynamicEntry {
            name: format!("{tid}").into_bytes(),
            ino: (tid.raw() as u64) << PID_SHIFT,
            kind: FileType::Directory,
            key: tid.raw() as u64,
        };
        Ok(threads
            .into_iter()
            .map(listed)
            .filter(|l| l.key > after)
            .collect())
    }
}

/// The contents of one file of a process, or of its thread `tid`.
fn text(name: &str, pid: Pid, tid: Option<Tid>) -> Result<Vec<u8>> {
    let process = find(pid)?;
    // A process's first thread counts as there until somebody has waited for the process.
    if tid.is_some_and(|tid| {
        tid != pid.leader() && process.find_task(|task| task.tid() == tid).is_none()
    }) {
        return Err(Errno::ESRCH);
    }
    if PTRACE_PROTECTED.contains(&name) {
        check_ptrace_access_pid(pid)?;
    }
    let text = match name {
        "arch_status" => String::new(),
        "auxv" => return Ok(auxiliary(&process)),
        "cgroup" => "0::/\n".into(),
        "cmdline" => return Ok(process.arguments()),
        "children" => children(&process, tid),
        "comm" => format!("{}\n", process.snapshot_of(tid).name),
        // As in a kernel without groups of processors.
        "cpuset" => "/\n".into(),
        "io" => status::io(&process, tid),
        "coredump_filter" => "00000033\n".into(),
        "environ" => return Ok(process.environment()),
        "limits" => status::limits(&process),
        "maps" => maps::maps(&process)?,
        "mountinfo" | "mounts" | "mountstats" => mounts::table(&process, name),
        "numa_maps" => pagemap::numa_maps(&process)?,
        "oom_adj" => format!(
            "{}
",
            oom::to_oom_adj(process.oom_score_adj.load(Ordering::Relaxed))
        ),
        "oom_score" => format!("{}\n", oom::score(&process)),
        "oom_score_adj" => format!("{}\n", process.oom_score_adj.load(Ordering::Relaxed)),
        "smaps" => maps::smaps(&process)?,
        "smaps_rollup" => maps::smaps_rollup(&process)?,
        // All users and groups are those of the one namespace.
        "uid_map" | "gid_map" | "projid_map" => format!("{:>10} {:>10} {:>10}\n", 0, 0, u32::MAX),
        "setgroups" => "allow\n".into(),
        // Nobody logs in through the kernel.
        "loginuid" | "sessionid" => format!("{}\n", u32::MAX),
        "personality" => format!("{:08x}\n", process.personality.load(Ordering::Relaxed)),
        "sched" => status::sched(&process, tid),
        "schedstat" => status::schedstat(&process, tid),
        "syscall" => "running\n".into(),
        "stack" => status::stack(&process, tid),
        "stat" => status::stat(&process, tid),
        "statm" => maps::statm(&process),
        "status" => status::status(&process, tid),
        "timens_offsets" => format!(
            "{:<10} {:>10} {:>9}\n{:<10} {:>10} {:>9}\n",
            "monotonic", 0, 0, "boottime", 0, 0
        ),
        "wchan" => status::wchan(&process, tid),
        _ => return Err(Errno::ENOENT),
    };
    Ok(text.into_bytes())
}

/// The auxiliary vector, up to the entry that ends it.
fn auxiliary(process: &Process) -> Vec<u8> {
    let all = process.image.lock().aux.clone();
    let end = all
        .chunks_exact(16)
        .position(|entry| entry[..8] == [0; 8])
        .map_or(all.len(), |last| 16 * (last + 1));
    all[..end].to_vec()
}

/// Number that was written to a file.
fn parse_number<T: core::str::FromStr>(text: &[u8]) -> Result<T> {
    core::str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or(Errno::EINVAL)
}

/// The children of a process that one of its threads made; its first thread also has those that it
/// got from others.
fn children(process: &Arc<Process>, tid: Option<Tid>) -> String {
    let made_here = |child: &Process| {
        child
            .creator
            .upgrade()
            .filter(|maker| Arc::ptr_eq(maker.process(), process))
            .map(|m| m.tid())
    };
    let children = process_table::processes_where(|_, node| node.parent() == process.pid());
    let of_thread = |child: &&Arc<Process>| {
        made_here(child).unwrap_or(process.pid().leader()) == tid.unwrap_or(process.pid().leader())
    };
    children
        .iter()
        .filter(of_thread)
        .map(|child| format!("{} ", child.pid()))
        .collect()
}

/// Names a thread. Only the process itself does that.
fn set_name(pid: Pid, tid: Option<Tid>, name: &[u8]) -> Result<()> {
    let process = find(pid)?;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    if !Arc::ptr_eq(caller.process(), &process) {
        return Err(Errno::EINVAL);
    }
    let is_meant = |task: &Task| task.tid() == tid.unwrap_or(pid.leader());
    process
        .find_task(is_meant)
        .ok_or(Errno::ESRCH)?
        .set_name(name.trim_ascii_end());
    Ok(())
}

/// Tells by how much a thread's sleeps may be late, after it was set. Others need to be allowed to
/// change its priority for both.
fn timer_slack(pid: Pid, tid: Option<Tid>, new: Option<usize>) -> Result<Vec<u8>> {
    let tid = tid.unwrap_or(pid.leader());
    let task = find(pid)?
        .find_task(|task| task.tid() == tid)
        .ok_or(Errno::ESRCH)?;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    if !Arc::ptr_eq(&caller, &task) && !caller.cred().capable(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let mut settings = task.prctl.lock();
    if let Some(new) = new {
        settings.set_timer_slack(new);
    }
    Ok(format!("{}\n", settings.timer_slack).into_bytes())
}

/// Only who may use more of the machine than others makes a process less likely to be chosen.
fn set_oom_adjustment(pid: Pid, value: i32) -> Result<()> {
    if !oom::OOM_SCORE_ADJ_RANGE.contains(&value) {
        return Err(Errno::EINVAL);
    }
    let own = &find(pid)?.oom_score_adj;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    if value < own.load(Ordering::Relaxed) && !caller.cred().capable(CAP_SYS_RESOURCE) {
        return Err(Errno::EACCES);
    }
    own.store(value, Ordering::Relaxed);
    Ok(())
}
