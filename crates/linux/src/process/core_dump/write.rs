//! Core dumps (`core(5)`): what a process leaves of itself when a signal ends it that stands for a
//! mistake. The memory, the registers of all threads and what a debugger has to know go into an ELF
//! file, or to a program that `/proc/sys/kernel/core_pattern` names.
//!
//! The thread that takes the signal writes; the others wait at their ends (`process::core_dump`).
//! `SIGKILL` ends the writing where it is.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use fs::ops::{self, Removal};
use fs::{Cred, File, OpenFlags, pipe};
use guard::timer;
use guard::user::UserRegs;
use uapi::core_file::{self, Layout, MappedFile, PrPsInfo, PrStatus, Segment};
use uapi::siginfo::SigInfo;
use uapi::time::NS_PER_SEC;
use vm::{AddressSpace, DumpArea, PAGE_SIZE, Prot};
use zerocopy::IntoBytes;

use super::{DumpResult, DumpedRegisters};
use crate::Task;
use crate::process::{Process, process_table, upcalls};
use crate::state::core_pattern::{self, Destination, Facts};
use crate::state::rlimit::Resource;
use crate::state::usage::Usage;

/// Mode of core files: they hold secrets.
const MODE: u32 = 0o600;
/// Value of `PR_GET_DUMPABLE` of processes whose dumps are for root only.
const ROOT_ONLY: i32 = 2;
/// Limit of core files that a program which takes dumps has: it dumps none itself.
pub(crate) const HELPER_LIMIT: u64 = 1;
/// Bytes of memory that are looked at together for something to dump.
const STRIDE: usize = 2 << 20;

/// Programs that take a dump at the moment.
static HELPERS: AtomicU32 = AtomicU32::new(0);

/// Why no more is written: the limit is reached, there is no room, or the process was killed.
struct Stopped;

/// A thread and the registers it had.
struct DumpedTask<'a> {
    task: &'a Task,
    registers: &'a DumpedRegisters,
}

/// Ends the caller's process by the signal that `info` describes, with a core dump if it is to
/// leave one. The caller left its program with `regs`, and ends when this returns.
pub(crate) fn dump_and_kill(task: &Task, regs: &UserRegs, info: &SigInfo) {
    if let Some(me) = crate::current_task() {
        dump(&me, regs, info);
    }
    task.process().kill(info.signo);
}

fn dump(task: &Arc<Task>, regs: &UserRegs, info: &SigInfo) {
    let process = task.process();
    let dumpable = process.dumpable.load(Ordering::Relaxed);
    let limit = process.limits.lock()[Resource::Core].soft;
    let pattern = core_pattern::pattern();
    let refused = match pattern.first() {
        // A program that takes dumps ends without one, or it would have itself to look at.
        Some(b'|') => limit == HELPER_LIMIT,
        _ => limit < PAGE_SIZE as u64,
    };
    if dumpable == 0 || refused {
        return;
    }
    let Some(destination) = destination(task, info, &pattern, dumpable, limit) else {
        return;
    };
    if !process.begin_core_dump(task, info.signo) {
        return;
    }
    // What is pending for this thread must not keep it from writing.
    task.thread().clear_signal_pending();
    let dumped = match destination {
        Destination::File(name) => {
            let file = create(task, &name, dumpable == ROOT_ONLY);
            let most = process.file_size_limit.load(Ordering::Relaxed);
            file.is_ok_and(|file| {
                let mut writer = Writer::new(task, &file, limit.min(most), true);
                write(&mut writer, regs, info)
            })
        }
        Destination::Program(args) => dump_to_program(task, args, regs, info),
    };
    process.end_core_dump(if dumped {
        DumpResult::Written
    } else {
        DumpResult::Nothing
    });
}

fn destination(
    task: &Task,
    info: &SigInfo,
    pattern: &[u8],
    dumpable: i32,
    limit: u64,
) -> Option<Destination> {
    let process = task.process();
    let cred = task.cred();
    let name = task.name();
    let host = task.namespaces().uts.nodename.lock().clone();
    let executable = process
        .executable()
        .map(|path| path.to_bytes(None))
        .unwrap_or_default();
    core_pattern::expand(
        pattern,
        &Facts {
            pid: process.pid().raw(),
            tid: task.tid().raw(),
            uid: cred.user.real,
            gid: cred.group.real,
            dumpable,
            signal: info.signo,
            time: timer::wall_ns() / NS_PER_SEC,
            host: &host,
            name: name.as_bytes(),
            executable: &executable,
            limit,
            uses_pid: core_pattern::USES_PID.load(Ordering::Relaxed) != 0,
        },
    )
}

/// Makes the file of a dump, anew: nobody has it open, and no link leads elsewhere. That of a
/// process with powers is root's, and at a place that its user cannot choose.
fn create(task: &Task, name: &[u8], for_root: bool) -> Result<Arc<File>, Errno> {
    let cred;
    let context;
    if for_root {
        if name.first() != Some(&b'/') {
            log::warn!(
                "process {}: no core dump, as core_pattern is not an absolute path",
                task.pid()
            );
            return Err(Errno::EPERM);
        }
        cred = Arc::new(Cred::root());
        context = process_table::find(uapi::pid::Pid::INIT)
            .and_then(|init| init.fs())
            .ok_or(Errno::ENOENT)?;
    } else {
        cred = task.fs_cred();
        context = task.fs();
    }
    let walk = context.lookup_context(&cred);
    if !for_root {
        // There may be none.
        let _ = ops::remove(&walk, name, Removal::Unlink);
    }
    let mode = MODE & !context.umask();
    if mode != MODE {
        return Err(Errno::EACCES);
    }
    let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::NOFOLLOW;
    ops::open(&walk, name, flags, mode)
}

/// Starts the program that takes the dump, and writes it into its standard input. Returns whether
/// something was written.
fn dump_to_program(task: &Task, args: Vec<Vec<u8>>, regs: &UserRegs, info: &SigInfo) -> bool {
    let limit = core_pattern::PIPE_LIMIT.load(Ordering::Relaxed);
    let running = HELPERS.fetch_add(1, Ordering::Relaxed) + 1;
    let dumped = if limit != 0 && running > limit {
        log::warn!(
            "process {} ({}): no core dump, {limit} are being taken",
            task.pid(),
            task.name()
        );
        false
    } else {
        let (reader, writer) = pipe::pipe(OpenFlags::empty());
        match (upcalls::get().run_helper)(args, reader) {
            Ok(helper) => {
                let mut to = Writer::new(task, &writer, u64::MAX, false);
                let dumped = write(&mut to, regs, info);
                drop(writer);
                if limit != 0 {
                    wait_for(task, &helper);
                }
                dumped
            }
            Err(error) => {
                log::warn!(
                    "process {} ({}): no core dump, its program cannot be run: {error}",
                    task.pid(),
                    task.name()
                );
                false
            }
        }
    };
    HELPERS.fetch_sub(1, Ordering::Relaxed);
    dumped
}

/// Waits until the program that takes the dump has ended: it may look at the process meanwhile.
fn wait_for(task: &Task, helper: &Arc<Process>) {
    let is_over = || process_table::has_ended(helper).then_some(());
    while helper.exit_waiters.wait(is_over).is_err() {
        if task.process().core_dump.is_aborted() {
            return;
        }
        task.thread().clear_signal_pending();
    }
}

/// A dump as far as it is written.
struct Writer<'a> {
    task: &'a Task,
    file: &'a File,
    /// Whether it may have holes, and has no position: a file, and not a pipe.
    is_file: bool,
    at: u64,
    /// Most bytes that are written.
    left: u64,
}

impl<'a> Writer<'a> {
    fn new(task: &'a Task, file: &'a File, left: u64, is_file: bool) -> Self {
        Self {
            task,
            file,
            is_file,
            at: 0,
            left,
        }
    }

    fn check_killed(&self) -> Result<(), Stopped> {
        if self.task.process().core_dump.is_aborted() {
            Err(Stopped)
        } else {
            Ok(())
        }
    }

    fn emit(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        let mut rest = bytes;
        self.left = self.left.checked_sub(rest.len() as u64).ok_or(Stopped)?;
        while !rest.is_empty() {
            self.check_killed()?;
            let written = if self.is_file {
                self.file.write_at(self.at, rest)
            } else {
                self.file.write(rest)
            };
            match written {
                Ok(0) => return Err(Stopped),
                Ok(n) => {
                    self.at += n as u64;
                    rest = &rest[n..];
                }
                // Whatever was sent meanwhile comes too late, but for what kills.
                Err(e) if e.is_restart() || e == Errno::EINTR => {
                    self.task.thread().clear_signal_pending();
                }
                Err(_) => return Err(Stopped),
            }
        }
        Ok(())
    }

    /// Goes on behind `len` zeros.
    fn skip(&mut self, len: usize) -> Result<(), Stopped> {
        if self.is_file {
            self.at += len as u64;
            return self.check_killed();
        }
        let zeros = [0; 512];
        let mut left = len;
        while left > 0 {
            let now = left.min(zeros.len());
            self.emit(&zeros[..now])?;
            left -= now;
        }
        Ok(())
    }

    /// Makes the file as long as what was skipped says.
    fn finish(&self) {
        if self.is_file && self.file.metadata().size < self.at {
            // Without the zeros at its end it is worth as much.
            let _ = self.file.inode().truncate(self.at);
        }
    }
}

/// Writes the dump. Returns whether something was.
fn write(to: &mut Writer<'_>, regs: &UserRegs, info: &SigInfo) -> bool {
    let process = to.task.process().clone();
    let Some(space) = process.space() else {
        return false;
    };
    let Ok(areas) = space.dump_areas(process.core_dump.filter()) else {
        return false;
    };
    let own = DumpedRegisters::of_caller(to.task, regs);
    let first = DumpedTask {
        task: to.task,
        registers: &own,
    };
    let Ok(first_notes) = first_notes(&process, &first, info, &areas) else {
        return false;
    };
    // Without memory for the rest it is cut short.
    let _ = write_parts(to, &space, &areas, &first_notes, info, own.extended.len());
    to.finish();
    true
}

fn write_parts(
    to: &mut Writer<'_>,
    space: &AddressSpace,
    areas: &[DumpArea],
    first_notes: &[u8],
    info: &SigInfo,
    extended: usize,
) -> Result<(), Stopped> {
    let process = to.task.process().clone();
    let others: Vec<_> = process
        .tasks()
        .into_iter()
        .filter(|task| !task.dumped.registers.lock().is_empty())
        .collect();
    let mut segments = fallible::with_capacity(areas.len()).map_err(|_| Stopped)?;
    segments.extend(areas.iter().map(|area| Segment {
        memory: area.range.clone(),
        dumped: area.dumped,
        access: [Prot::READ, Prot::WRITE, Prot::EXEC].map(|may| area.prot.contains(may)),
    }));
    let note_len = first_notes.len() + others.len() * thread_notes_len(extended);
    let layout = Layout::new(&segments, note_len);
    to.emit(&layout.header())?;
    to.emit(&layout.note_header())?;
    let mut offset = layout.memory;
    for segment in &segments {
        to.emit(&segment.header(offset))?;
        offset += segment.dumped as u64;
    }
    to.emit(first_notes)?;
    for task in &others {
        let registers = task.dumped.registers.lock();
        let mut notes = Vec::new();
        if let Some(registers) = registers.first() {
            let thread = DumpedTask { task, registers };
            add_status(&mut notes, &thread, info)
                .and_then(|()| add_fpu(&mut notes, &thread, extended))
                .map_err(|_| Stopped)?;
        }
        drop(registers);
        to.emit(&notes)?;
    }
    to.skip(layout.padding())?;
    let mut page = fallible::zeroed(PAGE_SIZE).map_err(|_| Stopped)?;
    for area in areas {
        write_area(to, space, area, &mut page)?;
    }
    match layout.trailer() {
        Some(trailer) => to.emit(&trailer),
        None => Ok(()),
    }
}

/// Writes the memory of an area, as far as it is dumped.
fn write_area(
    to: &mut Writer<'_>,
    space: &AddressSpace,
    area: &DumpArea,
    page: &mut [u8],
) -> Result<(), Stopped> {
    let end = area.range.start + area.dumped;
    let mut at = area.range.start;
    while at < end {
        let next = end.min((at + 1).next_multiple_of(STRIDE));
        if !space.has_dumped_pages(&(at..next)) {
            to.skip(next - at)?;
            at = next;
            continue;
        }
        for va in (at..next).step_by(PAGE_SIZE) {
            if space.read_dumped_page(va, page) {
                to.emit(page)?;
            } else {
                to.skip(PAGE_SIZE)?;
            }
        }
        at = next;
    }
    Ok(())
}

/// Bytes of the notes about a thread other than the first, whose extended registers take so many.
fn thread_notes_len(extended: usize) -> usize {
    /// Length, kind and name of a note.
    const HEAD: usize = 20;
    let fpu = if extended == 0 {
        0
    } else {
        2 * HEAD + FPREGS + extended
    };
    HEAD + size_of::<PrStatus>() + fpu
}

/// Size of `struct user_fpregs_struct`, in bytes.
const FPREGS: usize = 512;

/// Seconds and microseconds of a time.
fn time(ns: u64) -> [i64; 2] {
    [
        (ns / NS_PER_SEC).cast_signed(),
        (ns % NS_PER_SEC / 1000).cast_signed(),
    ]
}

fn relations(process: &Process) -> [i32; 3] {
    let relations = process_table::relations(process.pid());
    [
        relations.parent.raw(),
        relations.group.raw(),
        relations.session.raw(),
    ]
}

/// Adds the note about what a thread was doing.
fn add_status(notes: &mut Vec<u8>, thread: &DumpedTask<'_>, info: &SigInfo) -> Result<(), Errno> {
    let task = thread.task;
    let process = task.process();
    let is_leader = task.tid() == process.pid().leader();
    let usage = if is_leader {
        process.usage()
    } else {
        task.usage()
    };
    let children: Usage = *process.children_usage.lock();
    let (pending, blocked) = {
        let signals = task.signals.lock();
        (signals.pending.set(), signals.blocked)
    };
    let times = [
        usage.user_ns,
        usage.system_ns,
        children.user_ns,
        children.system_ns,
    ];
    let mut status = PrStatus::new(info, thread.registers.general);
    (status.pending, status.blocked) = (pending, blocked);
    status.tid = task.tid().raw();
    status.relations = relations(process);
    status.times = times.map(time);
    core_file::add_note(notes, core_file::NT_PRSTATUS, status.as_bytes())
}

/// Adds the notes about a thread's other registers, which take `len` bytes; zeros if there was no
/// memory to keep them.
fn add_fpu(notes: &mut Vec<u8>, thread: &DumpedTask<'_>, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let zeros;
    let extended = if thread.registers.extended.is_empty() {
        zeros = fallible::zeroed(len)?;
        &zeros
    } else {
        &thread.registers.extended
    };
    core_file::add_note(notes, core_file::NT_FPREGSET, &extended[..FPREGS])?;
    core_file::add_note(notes, core_file::NT_X86_XSTATE, extended)
}

/// The notes about the thread that took the signal, and about the process.
fn first_notes(
    process: &Process,
    thread: &DumpedTask<'_>,
    info: &SigInfo,
    areas: &[DumpArea],
) -> Result<Vec<u8>, Errno> {
    let mut notes = Vec::new();
    add_status(&mut notes, thread, info)?;
    let (arguments, aux) = {
        let image = process.image.lock();
        (image.args.clone(), image.aux.clone())
    };
    let mut shown = [0; 79];
    let shown = &mut shown[..arguments.len().min(79)];
    let readable = process
        .require_space()
        .is_ok_and(|space| space.read(arguments.start, shown).is_ok());
    let cred = process.credentials();
    let shown = if readable { &*shown } else { &[] };
    let mut about = PrPsInfo::new(thread.task.name().as_bytes(), shown);
    about.nice = thread.task.sched_params().nice as i8;
    about.ids = [cred.user.real, cred.group.real];
    about.pid = process.pid().raw();
    about.relations = relations(process);
    core_file::add_note(&mut notes, core_file::NT_PRPSINFO, about.as_bytes())?;
    core_file::add_note(&mut notes, core_file::NT_SIGINFO, info.as_bytes())?;
    core_file::add_note(&mut notes, core_file::NT_AUXV, &aux)?;
    let files = areas.iter().filter_map(|area| {
        area.file().map(|(name, offset)| MappedFile {
            memory: area.range.clone(),
            offset,
            name,
        })
    });
    let files = core_file::file_note(files)?;
    if !files.is_empty() {
        core_file::add_note(&mut notes, core_file::NT_FILE, &files)?;
    }
    add_fpu(&mut notes, thread, thread.registers.extended.len())?;
    Ok(notes)
}
