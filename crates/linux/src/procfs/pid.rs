//! The directory of one process: `/proc/<pid>`, `/proc/<pid>/task/<tid>`.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::nsfs::NamespaceKind;
use fs::pseudo::{self, DynamicDir, DynamicEntry, OpenedText, PseudoAttr, StaticDir};
use fs::{Access, Cred, FileType, Inode, LinkTarget, Path, Result};
use linux_raw_sys::general::{CAP_SYS_NICE, CAP_SYS_RESOURCE};
use uapi::pid::{Pid, Tid};
use vm::AddressSpace;

use super::fd::FdDir;
use super::mem::MemFile;
use super::options::{self, Options};
use super::pagemap::{self, MapFiles, PageMap};
use super::{PID_SHIFT, core_dump, maps, mounts, parse_pid, status};
use crate::Task;
use crate::mm::oom;
use crate::process::{Process, access, namespaces, process_table};
use crate::state::credentials::TraceCreds;

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
    ("gid_map", FileType::Regular, 0o644),
    ("loginuid", FileType::Regular, 0o644),
    ("exe", FileType::Symlink, 0o777),
    ("fd", FileType::Directory, 0o500),
    ("fdinfo", FileType::Directory, 0o555),
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
    ("projid_map", FileType::Regular, 0o644),
    ("root", FileType::Symlink, 0o777),
    ("sched", FileType::Regular, 0o644),
    ("schedstat", FileType::Regular, 0o444),
    ("sessionid", FileType::Regular, 0o444),
    ("setgroups", FileType::Regular, 0o644),
    ("smaps", FileType::Regular, 0o444),
    ("smaps_rollup", FileType::Regular, 0o444),
    ("stack", FileType::Regular, 0o400),
    ("stat", FileType::Regular, 0o444),
    ("statm", FileType::Regular, 0o444),
    ("status", FileType::Regular, 0o444),
    ("syscall", FileType::Regular, 0o400),
    ("timens_offsets", FileType::Regular, 0o644),
    ("timerslack_ns", FileType::Regular, 0o666),
    ("uid_map", FileType::Regular, 0o644),
    ("wchan", FileType::Regular, 0o444),
    ("task", FileType::Directory, 0o555),
];
/// Names of files that only processes have.
const PROCESS_ONLY: [&str; 3] = ["task", "map_files", "timerslack_ns"];
/// Names of files that only threads have.
const THREAD_ONLY: [&str; 1] = ["children"];

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

/// A process of which files show something, and not another one that gets its number later.
#[derive(Clone)]
pub(super) struct ProcessRef {
    pid: Pid,
    process: Weak<Process>,
}

impl ProcessRef {
    fn new(process: &Arc<Process>) -> Self {
        Self {
            pid: process.pid(),
            process: Arc::downgrade(process),
        }
    }

    /// The process.
    ///
    /// # Errors
    /// `ESRCH` if it has ended and was waited for.
    pub(super) fn find(&self) -> Result<Arc<Process>> {
        process_table::find(self.pid)
            .filter(|found| core::ptr::eq(Arc::as_ptr(found), self.process.as_ptr()))
            .ok_or(Errno::ESRCH)
    }

    /// The process, if the caller may look into it.
    ///
    /// # Errors
    /// `ESRCH`; `EACCES`.
    pub(super) fn find_accessible(&self) -> Result<Arc<Process>> {
        let process = self.find()?;
        accessible_space(&process).map(|_| process)
    }

    /// Memory of the process, if the caller may look into it, for an opening of a file about it.
    ///
    /// # Errors
    /// `ESRCH`; `EACCES`.
    pub(super) fn space_of_opening(&self) -> Result<Weak<AddressSpace>> {
        let space = accessible_space(&self.find()?)?;
        Ok(space
            .map(|space| Arc::downgrade(&space))
            .unwrap_or_default())
    }
}

/// Memory of a process that the caller may look into; `None` if it has ended.
///
/// # Errors
/// `EACCES`.
pub(super) fn accessible_space(process: &Arc<Process>) -> Result<Option<Arc<AddressSpace>>> {
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    access::traceable_space(&caller, process, TraceCreds::Fs).map_err(|_| Errno::EACCES)
}

/// The directory of a process, by its id or one of its threads'.
pub(super) fn directory(dev: u64, pid: Pid, options: &options::Shared) -> Result<Arc<dyn Inode>> {
    let process = process_table::find(pid)
        .filter(|process| options.lock().shows(process))
        .ok_or(Errno::ENOENT)?;
    Ok(pseudo::dynamic_dir(ProcessDir {
        attr: attr(dev, &process, 0, DIRECTORY_MODE),
        process: ProcessRef::new(&process),
        tid: None,
        options: options.clone(),
    }))
}

/// Mode of directories that anybody may list. They belong to whom the process acts as, for those
/// who ask them who that is.
const DIRECTORY_MODE: u32 = 0o555;

/// Attributes of a file with this place in the directory of a process (Linux `task_dump_owner`).
fn attr(dev: u64, process: &Process, place: u64, mode: u32) -> PseudoAttr {
    let hidden = mode != DIRECTORY_MODE && (process.space().is_none() || !process.is_dumpable());
    let (uid, gid) = if hidden {
        (0, 0)
    } else {
        let owner = process.credentials();
        (owner.user.effective, owner.group.effective)
    };
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
    process: ProcessRef,
    tid: Option<Tid>,
    options: options::Shared,
}

/// Checks what somebody wants of the directory of a process, which the options of the mount may
/// forbid.
fn check_access(
    attr: PseudoAttr,
    process: &ProcessRef,
    options: &options::Shared,
    cred: &Cred,
    want: Access,
) -> Result<()> {
    let process = process.find()?;
    let options = *options.lock();
    if options != Options::default() {
        options.check_enter(&process)?;
    }
    cred.check(&attr.metadata(FileType::Directory), want)
}

/// Process whose directory in `/proc` this is; `None` if it is another file, an error if that
/// process is gone.
///
/// # Errors
/// `ESRCH`.
pub(crate) fn process_of_pid_dir(inode: &Arc<dyn Inode>) -> Option<Result<Arc<Process>>> {
    let dir = pseudo::as_dynamic::<ProcessDir>(inode).filter(|dir| dir.tid.is_none())?;
    Some(dir.process.process.upgrade().ok_or(Errno::ESRCH))
}

impl DynamicDir for ProcessDir {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        check_access(self.attr, &self.process, &self.options, cred, want)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let process = self.process.find().map_err(|_| Errno::ENOENT)?;
        let named =
            |f: &(&str, FileType, u32)| f.0.as_bytes() == name && is_shown(f.0, self.tid.is_some());
        let place = FILES.iter().position(named).ok_or(Errno::ENOENT)?;
        let (name, _, mode) = FILES[place];
        let attr = attr(self.attr.dev, &process, place as u64 + 1, mode);
        let (of, tid) = (self.process.clone(), self.tid);
        let show = {
            let of = of.clone();
            move || text(name, &of, tid)
        };
        Ok(match name {
            "task" => pseudo::dynamic_dir(TaskDir {
                attr,
                process: of,
                options: self.options.clone(),
            }),
            "fd" | "fdinfo" => pseudo::dynamic_dir(FdDir {
                attr,
                process: of,
                info: name == "fdinfo",
            }),
            "map_files" => pseudo::dynamic_dir(MapFiles { attr, process: of }),
            "pagemap" => Arc::new(PageMap { attr, process: of }),
            "mem" => Arc::new(MemFile { attr, process: of }),
            "net" => pseudo::symlink(attr, || Ok(LinkTarget::Text(b"/proc/net".to_vec()))),
            "ns" => namespaces(attr, &of, tid),
            "exe" => link(attr, of, |p| p.executable().ok_or(Errno::ENOENT)),
            "cwd" => link(attr, of, |p| p.fs().map(|fs| fs.cwd()).ok_or(Errno::ENOENT)),
            "root" => link(attr, of, |p| {
                p.fs().map(|fs| fs.root()).ok_or(Errno::ENOENT)
            }),
            "auxv" | "environ" | "maps" | "numa_maps" | "smaps" | "smaps_rollup" => {
                memory_file(attr, name, of)
            }
            "stack" => pseudo::file_by_opening(attr, move || {
                let caller = crate::current_task().ok_or(Errno::ESRCH)?;
                let (show, privileged) = (show.clone(), caller.cred().has_sys_admin());
                Ok(OpenedText::new(move || {
                    if privileged {
                        show()
                    } else {
                        Err(Errno::EACCES)
                    }
                }))
            }),
            "mountinfo" | "mounts" | "mountstats" => pseudo::file_by_opening(attr, move || {
                let context = of.find()?.fs().ok_or(Errno::EINVAL)?;
                let (space, root) = (context.namespace(), context.root());
                let shown = space.clone();
                let show = move || mounts::table(&shown, &root, name).map(String::into_bytes);
                Ok(OpenedText::new(show).watching(space))
            }),
            "clear_refs" => pseudo::writable_file(
                attr,
                || Err(Errno::EINVAL),
                move |text| pagemap::clear_refs(&*of.find()?, parse_number(text)?),
            ),
            "comm" => pseudo::writable_file(attr, show, move |new| set_name(&of, tid, new)),
            "oom_adj" => pseudo::writable_file(attr, show, move |text| {
                let value = oom::from_oom_adj(parse_number(text)?)?;
                set_oom_adjustment(&of, OomScale::Adj, value)
            }),
            "oom_score_adj" => pseudo::writable_file(attr, show, move |text| {
                set_oom_adjustment(&of, OomScale::Score, parse_number(text)?)
            }),
            "timerslack_ns" => {
                let shown = of.clone();
                pseudo::writable_file(
                    attr,
                    move || timer_slack(&shown, tid, None),
                    move |text| timer_slack(&of, tid, Some(parse_number(text)?)).map(drop),
                )
            }
            "coredump_filter" => pseudo::writable_file(attr, show, move |text| {
                core_dump::set_filter(&*of.find()?, text)
            }),
            // Accepted and without effect: there are no statistics to reset.
            "sched" => pseudo::writable_file(attr, show, |_| Ok(())),
            // All ids are mapped, to themselves; and nobody logs in through the kernel.
            "uid_map" | "gid_map" | "projid_map" | "loginuid" => {
                pseudo::writable_file(attr, show, |_| Err(Errno::EPERM))
            }
            "timens_offsets" => pseudo::writable_file(attr, show, |_| Err(Errno::EACCES)),
            "setgroups" => pseudo::writable_file(attr, show, |text| match text.trim_ascii_end() {
                b"allow" => Ok(()),
                b"deny" => Err(Errno::EPERM),
                _ => Err(Errno::EINVAL),
            }),
            _ => pseudo::file(attr, show),
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

/// A file about the memory of a process. An opening shows the memory that the process had then,
/// and nothing once it has another: who was let in does not see what a program with more powers
/// does.
fn memory_file(attr: PseudoAttr, name: &'static str, of: ProcessRef) -> Arc<dyn Inode> {
    pseudo::file_by_opening(attr, move || {
        let (of, space) = (of.clone(), of.space_of_opening()?);
        if name == "auxv" {
            let (process, space) = (of.find()?, space.upgrade());
            let vector = space.map_or_else(Vec::new, |space| auxiliary(&process, &space));
            return Ok(OpenedText::new(move || Ok(vector.clone())));
        }
        Ok(OpenedText::new(move || {
            let process = of.find()?;
            // Somebody else may hold the memory of a program that is gone.
            let Some(space) = space.upgrade().filter(|space| process.has_space(space)) else {
                return Ok(Vec::new());
            };
            Ok(match name {
                "environ" => process.environment(&space),
                "maps" => maps::maps(&space)?.into_bytes(),
                "numa_maps" => pagemap::numa_maps(&space)?.into_bytes(),
                "smaps" => maps::smaps(&space)?.into_bytes(),
                _ => maps::smaps_rollup(&space)?.into_bytes(),
            })
        }))
    })
}

fn link(attr: PseudoAttr, of: ProcessRef, target: fn(&Process) -> Result<Path>) -> Arc<dyn Inode> {
    let shown = of.clone();
    let show = move || {
        let root = crate::current_task().map(|task| task.fs().root());
        Ok(target(&*shown.find_accessible()?)?.to_bytes(root.as_ref()))
    };
    let follow = move || target(&*of.find_accessible()?).map(LinkTarget::MagicLink);
    pseudo::symlink_with_text(attr, follow, show)
}

/// `/proc/<pid>/ns`: the namespaces that the process is in.
fn namespaces(attr: PseudoAttr, of: &ProcessRef, tid: Option<Tid>) -> Arc<dyn Inode> {
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
    let dir = StaticDir::with(attr);
    for (place, (name, kind)) in NAMES.into_iter().enumerate() {
        let attr = PseudoAttr {
            ino: attr.ino + NS_INO + place as u64,
            mode: 0o777,
            ..attr
        };
        let of = of.clone();
        let target = move || {
            let process = of.find_accessible()?;
            let task = process
                .find_task(|task| task.tid() == tid.unwrap_or(of.pid.leader()))
                .or_else(|| process.tasks().into_iter().next());
            Ok(namespaces::file(&*task.ok_or(Errno::ENOENT)?, kind))
        };
        let follow = target.clone();
        dir.add(
            name,
            pseudo::symlink_with_text(
                attr,
                move || follow().map(LinkTarget::MagicLink),
                move || Ok(target()?.to_bytes(None)),
            ),
        );
    }
    dir
}

/// The directory `/proc/<pid>/task`: one for each thread.
struct TaskDir {
    attr: PseudoAttr,
    process: ProcessRef,
    options: options::Shared,
}

impl DynamicDir for TaskDir {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        check_access(self.attr, &self.process, &self.options, cred, want)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let tid = parse_pid(name).map(Tid::new).ok_or(Errno::ENOENT)?;
        let process = self.process.find().map_err(|_| Errno::ENOENT)?;
        if !process.snapshot().threads.contains(&tid) {
            return Err(Errno::ENOENT);
        }
        let attr = PseudoAttr {
            ino: (tid.raw() as u64) << PID_SHIFT,
            ..self.attr
        };
        Ok(pseudo::dynamic_dir(ProcessDir {
            attr,
            process: self.process.clone(),
            tid: Some(tid),
            options: self.options.clone(),
        }))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let process = self.process.find().map_err(|_| Errno::ENOENT)?;
        let mut threads = process.snapshot().threads;
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
fn text(name: &str, of: &ProcessRef, tid: Option<Tid>) -> Result<Vec<u8>> {
    let process = of.find()?;
    // A process's first thread counts as there until somebody has waited for the process.
    if tid.is_some_and(|tid| {
        tid != of.pid.leader() && process.find_task(|task| task.tid() == tid).is_none()
    }) {
        return Err(Errno::ESRCH);
    }
    let accessible = || accessible_space(&process);
    match name {
        "io" => drop(accessible()?),
        // What Linux takes a lock for, by which it says so.
        "personality" | "stack" | "syscall" => drop(accessible().map_err(|_| Errno::EPERM)?),
        _ => {}
    }
    let text = match name {
        "arch_status" => String::new(),
        "cgroup" => "0::/\n".into(),
        "cmdline" => return Ok(process.arguments()),
        "children" => children(&process, tid),
        "comm" => format!("{}\n", process.snapshot_of(tid).name),
        // As in a kernel without groups of processors.
        "cpuset" => "/\n".into(),
        "io" => status::io(&process, tid),
        "coredump_filter" => core_dump::filter_text(&process),
        "limits" => status::limits(&process),
        "oom_adj" => format!(
            "{}
",
            oom::to_oom_adj(process.oom_score_adj.load(Ordering::Relaxed))
        ),
        "oom_score" => format!("{}\n", oom::score(&process)),
        "oom_score_adj" => format!("{}\n", process.oom_score_adj.load(Ordering::Relaxed)),
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
        "wchan" if accessible().is_err() => "0".into(),
        "wchan" => status::wchan(&process, tid),
        _ => return Err(Errno::ENOENT),
    };
    Ok(text.into_bytes())
}

/// The auxiliary vector, up to the entry that ends it.
fn auxiliary(process: &Process, space: &Arc<AddressSpace>) -> Vec<u8> {
    let Some(all) = process.of_image(space, |image| image.aux.clone()) else {
        return Vec::new();
    };
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
fn set_name(of: &ProcessRef, tid: Option<Tid>, name: &[u8]) -> Result<()> {
    let process = of.find()?;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    if !Arc::ptr_eq(caller.process(), &process) {
        return Err(Errno::EINVAL);
    }
    let is_meant = |task: &Task| task.tid() == tid.unwrap_or(of.pid.leader());
    process
        .find_task(is_meant)
        .ok_or(Errno::ESRCH)?
        .set_name(name.trim_ascii_end());
    Ok(())
}

/// Tells by how much a thread's sleeps may be late, after it was set. Others need to be allowed to
/// change its priority for both.
fn timer_slack(of: &ProcessRef, tid: Option<Tid>, new: Option<usize>) -> Result<Vec<u8>> {
    let tid = tid.unwrap_or(of.pid.leader());
    let task = of
        .find()?
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

/// The scale of a file that adjusts how likely a process is to be chosen as a victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OomScale {
    /// `oom_score_adj`.
    Score,
    /// `oom_adj`, the older one.
    Adj,
}

/// Sets the adjustment of a process. Only who may use more of the machine than others makes it less
/// likely to be chosen than such a one has made it; by the older scale, than it is.
fn set_oom_adjustment(of: &ProcessRef, scale: OomScale, value: i32) -> Result<()> {
    if !oom::OOM_SCORE_ADJ_RANGE.contains(&value) {
        return Err(Errno::EINVAL);
    }
    let process = of.find()?;
    let caller = crate::current_task().ok_or(Errno::ESRCH)?;
    let privileged = caller.cred().capable(CAP_SYS_RESOURCE);
    let lowest = match scale {
        OomScale::Score => &process.oom_score_adj_min,
        OomScale::Adj => &process.oom_score_adj,
    };
    if value < lowest.load(Ordering::Relaxed) && !privileged {
        return Err(Errno::EACCES);
    }
    process.oom_score_adj.store(value, Ordering::Relaxed);
    if privileged && scale == OomScale::Score {
        process.oom_score_adj_min.store(value, Ordering::Relaxed);
    }
    Ok(())
}
