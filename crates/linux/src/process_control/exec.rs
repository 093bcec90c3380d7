//! Running another program: `execve(2)`.
//!
//! Everything that can fail happens beside the old program, in a new address space; when that is
//! complete the other threads end and the new one takes the process over.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::path::LookupFlags;
use fs::{Access as FileAccess, DenyWriteAccess, File, FileType, Path};
use guard::fpu::UserFpu;
use guard::user::UserRegs;
use linux_raw_sys::{auxvec, general as sys};
use uapi::elf;
use uapi::fd::Fd;
use uapi::initial_stack::{self, Strings};
use uapi::sigframe::{AltStack, Frame};
use uapi::user_addr::UserAddr;
use vm::{
    AddressSpace, MapRequest, Object, PAGE_SIZE, Placement, Prot, SharedWrites, USER_END, VmaFlags,
    page_align_down,
};

use crate::files::namei;
use crate::process::image::ProcessImage;
use crate::process::personality::{
    self, ADDR_COMPAT_LAYOUT, PER_CLEAR_ON_SETID, RANDOMIZE_VA_SPACE, READ_IMPLIES_EXEC,
    has_personality_bit,
};
use crate::process::{process_table, rlimit};
use crate::sched::rseq;
use crate::seccomp::syscall_user_dispatch;
use crate::state::credentials::Credentials;
use crate::state::exec_credentials::{FileCapabilities, SetIds};
use crate::state::fdtable::CloseOnExec;
use crate::state::rlimit::Resource;
use crate::time::{posix_timers, vdso};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, futex, ptrace};

/// The longest single argument.
const MAX_STRING: usize = 32 * PAGE_SIZE;
/// The most bytes of all arguments and the environment.
const MAX_STRINGS: usize = 2 << 20;
/// Most interpreters in a row that are scripts themselves.
const MAX_SCRIPTS: usize = 5;
/// Address of relocatable programs, as on Linux: two thirds up.
const PROGRAM_BASE: usize = USER_END / 3 * 2;
/// The vDSO is above the stack, at one of so many places.
const VDSO_BITS: u32 = 9;
/// Most bytes that the vDSO takes with the room for its place.
const VDSO_ROOM: usize = ((1 << VDSO_BITS) + 1) * PAGE_SIZE + vdso::LEN;
/// Room kept between the stack and what is mapped below it.
const STACK_GAP: usize = 16 << 20;
/// The most a stack takes of the address space.
const MAX_STACK: usize = 1 << 30;
/// Bytes of a stack that are mapped from the beginning.
const FIRST_STACK: usize = 32 * PAGE_SIZE;

/// A program that is ready to run.
pub(crate) struct LoadedProgram {
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) image: ProcessImage,
    /// Address of the first instruction, and the stack pointer.
    entry: usize,
    sp: u64,
    /// Name of the program, as `/proc/<pid>/comm` shows it.
    name: Vec<u8>,
    /// Credentials that the file gives the program.
    cred: Credentials,
    /// Whether its user may look into it (`PR_GET_DUMPABLE`): it may do no more than before, and
    /// its file is no secret.
    dumpable: bool,
    /// Whether the program gets privileges by its file (`AT_SECURE`).
    secure: bool,
}

impl LoadedProgram {
    /// Registers at its beginning.
    pub(crate) fn registers(&self) -> UserRegs {
        UserRegs {
            rip: self.entry as u64,
            rsp: self.sp,
            rflags: 0x202,
            orig_rax: u64::MAX,
            ..UserRegs::default()
        }
    }
}

/// Parts of a program that are at random addresses.
#[derive(Clone, Copy)]
struct Randomization {
    random: bool,
    heap: bool,
}

impl Randomization {
    fn of(task: &Task) -> Self {
        let setting = RANDOMIZE_VA_SPACE.load(Ordering::Relaxed);
        let random = setting > 0
            && task.process().personality.load(Ordering::Relaxed) & personality::ADDR_NO_RANDOMIZE
                == 0;
        Self {
            random,
            heap: random && setting > 1,
        }
    }

    /// Random pages, below `2^bits`, as bytes; none if nothing is to be random.
    fn offset(self, bits: u32) -> usize {
        if !self.random {
            return 0;
        }
        let mut bytes = [0; 8];
        guard::random::fill(&mut bytes);
        (usize::from_ne_bytes(bytes) & ((1 << bits) - 1)) * PAGE_SIZE
    }
}

/// The arguments that an array of pointers in user memory names.
fn read_strings(array: UserAddr, budget: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut strings = Vec::new();
    if array.is_null() {
        return Ok(strings);
    }
    let array = UserPtr::<u64>::new(array);
    loop {
        let addr = array.add(strings.len()).read()?;
        if addr == 0 {
            return Ok(strings);
        }
        let mut string = uaccess::read_cstr(addr.into(), MAX_STRING).map_err(|e| {
            if e == Errno::ENAMETOOLONG {
                Errno::E2BIG
            } else {
                e
            }
        })?;
        *budget = budget
            .checked_sub(string.len() + 1 + size_of::<u64>())
            .ok_or(Errno::E2BIG)?;
        // There may be a hundred thousand short ones.
        string.shrink_to_fit();
        strings.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        strings.push(string);
    }
}

/// A file to be run, which nobody changes meanwhile.
pub(crate) struct ExecFile {
    file: Arc<File>,
    running: Arc<DenyWriteAccess>,
    /// Whether the interpreter of a script could open it: not by a descriptor that is closed.
    reachable: bool,
}

impl ExecFile {
    /// # Errors
    /// `EACCES`; `ETXTBSY`.
    pub(crate) fn new(task: &Task, file: Arc<File>) -> Result<Self, Errno> {
        check_executable(task, file.path())?;
        deny_write(file)
    }

    /// The file, as what a process runs.
    pub(crate) fn into_running(self) -> Arc<DenyWriteAccess> {
        self.running
    }
}

/// Opens a file to run it. Nobody needs to be allowed to read it, and a descriptor may be one of
/// `O_PATH`: the file is opened anew.
fn open(task: &Task, dirfd: Fd, name: &[u8], flags: LookupFlags) -> Result<ExecFile, Errno> {
    let path = match (name, dirfd) {
        ([], Fd::CWD) => task.fs().cwd(),
        ([], _) => task.files().get(dirfd)?.path().clone(),
        _ => namei::lookup_exec(task, dirfd, name, flags)?,
    };
    if path.inode().kind() == FileType::Symlink {
        return Err(Errno::ELOOP);
    }
    check_executable(task, &path)?;
    let reachable =
        !is_by_descriptor(dirfd, name) || task.files().cloexec(dirfd)? == CloseOnExec::No;
    Ok(ExecFile {
        reachable,
        ..deny_write(fs::ops::open_exec(path)?)?
    })
}

/// Whether a program's file is looked for from a descriptor on.
fn is_by_descriptor(dirfd: Fd, name: &[u8]) -> bool {
    dirfd != Fd::CWD && !name.starts_with(b"/")
}

/// Name by which the interpreter of a script opens it, and the program finds itself (`AT_EXECFN`):
/// as it was called, or through `/dev/fd`.
fn exec_name(dirfd: Fd, name: &[u8]) -> Vec<u8> {
    match name {
        _ if !is_by_descriptor(dirfd, name) => name.to_vec(),
        [] => format!("/dev/fd/{}", dirfd.raw()).into_bytes(),
        _ => [format!("/dev/fd/{}/", dirfd.raw()).as_bytes(), name].concat(),
    }
}

/// Denies writing to the file for as long as it is run.
fn deny_write(file: Arc<File>) -> Result<ExecFile, Errno> {
    let running = Arc::new(DenyWriteAccess::acquire(file.path())?);
    Ok(ExecFile {
        file,
        running,
        reachable: true,
    })
}

fn check_executable(task: &Task, path: &Path) -> Result<(), Errno> {
    let meta = path.metadata();
    if meta.kind != FileType::Regular || path.mount().flags() & fs::mount::MS_NOEXEC != 0 {
        return Err(Errno::EACCES);
    }
    task.fs_cred()
        .check_inode(&**path.inode(), FileAccess::EXEC)
}

/// Reads up to `len` bytes of a file from `at` on.
fn read_at_most(file: &File, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = fallible::zeroed(len)?;
    let mut done = 0;
    while done < len {
        match file.inode().read_at(at + done as u64, &mut bytes[done..])? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn parse(file: &File) -> Result<elf::ElfProgram, Errno> {
    let header = elf::header(&read_at_most(file, 0, elf::HEADER)?)?;
    let (at, len) = header.table;
    elf::program(&header, &read_at_most(file, at, len)?)
}

/// The mappable object of a file.
fn object(file: &File) -> Result<Arc<Object>, Errno> {
    let meta = file.metadata();
    Ok(Object::file_with(
        file.backing()?,
        SharedWrites::Denied,
        file.path().to_bytes(None),
        (meta.dev, meta.ino),
        file.path().mount().clone(),
    ))
}

/// Maps a program's segments at `base` beyond their addresses.
fn map_segments(
    space: &AddressSpace,
    file: &File,
    program: &elf::ElfProgram,
    base: usize,
) -> Result<(), Errno> {
    let object = object(file)?;
    for segment in &program.segments {
        let pages = segment.pages();
        let file_start = pages.start;
        let file_end = segment.file.end.next_multiple_of(PAGE_SIZE);
        let place = |at: usize| Placement::FixedIfFree(base + at);
        let conflict = |e: Errno| if e == Errno::EEXIST { Errno::ENOMEM } else { e };
        if segment.file.end > segment.file.start {
            let first = page_align_down(segment.offset as usize) / PAGE_SIZE;
            let request = MapRequest {
                placement: place(file_start),
                len: file_end - file_start,
                prot: segment.prot,
                flags: VmaFlags::empty(),
                object: Some((object.clone(), first as u64)),
            };
            space.mmap(request).map_err(conflict)?;
        }
        let zero_start = if segment.file.end > segment.file.start {
            file_end
        } else {
            file_start
        };
        if pages.end > zero_start {
            let flags = VmaFlags::empty();
            let request = MapRequest {
                placement: place(zero_start),
                len: pages.end - zero_start,
                prot: segment.prot,
                flags,
                object: None,
            };
            space.mmap(request).map_err(conflict)?;
        }
        // What comes after the file's part is zero to the end of the page, also beyond the segment:
        // the dynamic linker takes its first memory from there.
        let zeros = segment.file.end..file_end;
        if segment.prot.contains(Prot::WRITE) && segment.end > segment.file.end && !zeros.is_empty()
        {
            space.write(base + zeros.start, &[0; PAGE_SIZE][..zeros.len()])?;
        }
    }
    Ok(())
}

/// Whether another process has the same root, working directory and mask (`CLONE_FS`), and could
/// change them under a program that gets more powers.
fn shares_fs(task: &Task) -> bool {
    let own = task.fs();
    process_table::processes_where(|_, entry| !Arc::ptr_eq(&entry.process, task.process()))
        .iter()
        .flat_map(|process| process.tasks())
        .any(|other| Arc::ptr_eq(&other.fs(), &own))
}

/// Credentials after running the file, and whether the program must not trust its environment.
fn exec_credentials(task: &Task, file: &File) -> Result<(Credentials, bool), Errno> {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2010;
    let meta = file.metadata();
    // Who is traced by somebody who may not trace everybody gets no powers from the file.
    let watched =
        ptrace::tracer_of(task).is_some_and(|tracer| !tracer.cred().capable(sys::CAP_SYS_PTRACE));
    let capability = file.inode().xattr(fs::xattr::CAPABILITY);
    let lends = meta.mode & SET_UID != 0 || meta.mode & SET_GID == SET_GID || capability.is_ok();
    let nosuid = watched
        || file.path().mount().flags() & fs::mount::MS_NOSUID != 0
        || lends && !task.cred().capable(sys::CAP_SETUID) && shares_fs(task);
    let set_ids = SetIds {
        user: (!nosuid && meta.mode & SET_UID != 0).then_some(meta.uid),
        group: (!nosuid && meta.mode & SET_GID == SET_GID).then_some(meta.gid),
    };
    let capabilities = match capability {
        Ok(value) if !nosuid => FileCapabilities::parse(&value)?,
        _ => None,
    };
    task.cred().after_exec(set_ids, capabilities)
}

/// Loads a program. `name` is what it was called by.
pub(crate) fn load(
    task: &Task,
    program: ExecFile,
    name: &[u8],
    mut args: Vec<Vec<u8>>,
    env: &[Vec<u8>],
) -> Result<LoadedProgram, Errno> {
    // A script shows its own name, not its interpreter's.
    let shown = name
        .rsplit(|&b| b == b'/')
        .next()
        .unwrap_or_default()
        .to_vec();
    let mut exec_name = name.to_vec();
    let ExecFile {
        mut file,
        mut running,
        mut reachable,
    } = program;
    let mut depth = 0;
    loop {
        let beginning = read_at_most(&file, 0, elf::SCRIPT_LINE)?;
        if !beginning.starts_with(b"#!") {
            break;
        }
        if !reachable {
            return Err(Errno::ENOENT);
        }
        depth += 1;
        if depth > MAX_SCRIPTS {
            return Err(Errno::ELOOP);
        }
        let (interpreter, argument) = elf::script(&beginning)?;
        let rest = args.split_off(args.len().min(1));
        args = vec![interpreter.clone()];
        args.extend(argument);
        args.push(exec_name);
        args.extend(rest);
        ExecFile {
            file,
            running,
            reachable,
        } = open(task, Fd::CWD, &interpreter, LookupFlags::empty())?;
        exec_name = interpreter;
    }
    let (cred, secure) = exec_credentials(task, &file)?;
    let readable = task
        .fs_cred()
        .check(&file.metadata(), FileAccess::READ)
        .is_ok();
    let program = parse(&file)?;
    let interpreter = match program.interpreter {
        None => None,
        Some((at, len)) => {
            let mut name = read_at_most(&file, at, len)?;
            name.truncate(name.iter().position(|&b| b == 0).ok_or(Errno::ENOEXEC)?);
            let interpreter = open(task, Fd::CWD, &name, LookupFlags::empty())?;
            let program = parse(&interpreter.file)?;
            Some((interpreter, program))
        }
    };

    let limits = *task.process().limits.lock();
    let stack_limit = limits[Resource::Stack].soft_size().min(MAX_STACK);
    let layout = if secure {
        Randomization {
            random: true,
            heap: true,
        }
    } else {
        Randomization::of(task)
    };
    let stack_top = USER_END - VDSO_ROOM - layout.offset(22);
    let top =
        page_align_down(stack_top - stack_limit.max(FIRST_STACK) - STACK_GAP - layout.offset(28));
    let space = AddressSpace::new(top).ok_or(Errno::ENOMEM)?;
    if !secure && has_personality_bit(task, ADDR_COMPAT_LAYOUT) {
        space.set_legacy_base(page_align_down(USER_END / 3) + layout.offset(28));
    }
    rlimit::apply_memory_limits(&limits, &space);
    space.forbid_large_pages(
        task.process()
            .space()
            .is_some_and(|old| !old.may_have_large_pages()),
    );

    let base = if program.relocatable {
        // As the program asks, but not so coarse that nothing of the base is left.
        let align = program.align.min(1 << 40);
        ((PROGRAM_BASE + layout.offset(28)) & !(align - 1)) - (program.span().start & !(align - 1))
    } else {
        0
    };
    map_segments(&space, &file, &program, base)?;
    let heap_gap = if layout.heap { layout.offset(13) } else { 0 };
    space.set_brk_start(base + program.span().end + heap_gap);
    let program_entry = base + program.entry;
    let (entry, interpreter_base) = match &interpreter {
        None => (program_entry, 0),
        Some((ExecFile { file, .. }, interpreter)) => {
            let span = interpreter.span();
            let at = if interpreter.relocatable {
                top - span.len() - layout.offset(10) - span.start
            } else {
                0
            };
            map_segments(&space, file, interpreter, at)?;
            (at + interpreter.entry, at)
        }
    };

    let vdso = vdso::map(&space, stack_top + PAGE_SIZE + layout.offset(VDSO_BITS))?;

    let mut random = [0; 16];
    guard::random::fill(&mut random);
    let cpu = guard::cpu::brand();
    let headers = if program.headers == 0 {
        0
    } else {
        base + program.headers
    };
    let aux = [
        (auxvec::AT_RSEQ_FEATURE_SIZE, rseq::FEATURES),
        (auxvec::AT_RSEQ_ALIGN, u64::from(rseq::SIZE)),
        (auxvec::AT_SYSINFO_EHDR, vdso as u64),
        (auxvec::AT_HWCAP, u64::from(cpu.hwcap())),
        (auxvec::AT_PAGESZ, PAGE_SIZE as u64),
        (auxvec::AT_CLKTCK, 100),
        (auxvec::AT_PHDR, headers as u64),
        (auxvec::AT_PHENT, 56),
        (auxvec::AT_PHNUM, program.header_count as u64),
        (auxvec::AT_BASE, interpreter_base as u64),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, program_entry as u64),
        (auxvec::AT_UID, u64::from(cred.user.real)),
        (auxvec::AT_EUID, u64::from(cred.user.effective)),
        (auxvec::AT_GID, u64::from(cred.group.real)),
        (auxvec::AT_EGID, u64::from(cred.group.effective)),
        (auxvec::AT_SECURE, u64::from(secure)),
        (
            auxvec::AT_MINSIGSTKSZ,
            (size_of::<Frame>() + guard::fpu::signal_frame_size() + 64) as u64,
        ),
    ];
    let strings = Strings {
        args: &args,
        env,
        name: &exec_name,
        platform: b"x86_64",
        random,
    };
    let image = initial_stack::build(stack_top as u64, &strings, &aux)?;
    let mut prot = Prot::READ | Prot::WRITE;
    prot.set(Prot::EXEC, program.executable_stack);
    let stack_start = page_align_down(stack_top - FIRST_STACK.max(image.bytes.len() + PAGE_SIZE));
    let len = stack_top.next_multiple_of(PAGE_SIZE) - stack_start;
    space.mmap(MapRequest {
        placement: Placement::FixedIfFree(stack_start),
        len,
        prot,
        flags: VmaFlags::GROWSDOWN,
        object: None,
    })?;
    space.write(image.sp as usize, &image.bytes)?;

    let dumpable = readable
        && !cred.exceeds(&task.cred())
        && cred.user.effective == cred.user.real
        && cred.group.effective == cred.group.real;
    let [code, data] = program
        .code_and_data()
        .map(|part| base + part.start..base + part.end);
    let (args, env, aux) = (image.args, image.env, image.aux.into());
    let (image, sp) = (
        ProcessImage {
            executable: Some(running),
            args,
            env,
            aux,
            code,
            data,
            stack: image.sp as usize,
        },
        image.sp,
    );
    Ok(LoadedProgram {
        space,
        image,
        entry,
        sp,
        name: shown,
        cred,
        dumpable,
        secure,
    })
}

/// A thread that is about to run another program, from before it is decided what that may do until
/// it does it (Linux' `cred_guard_mutex`).
struct Execve<'a>(&'a Task);

impl<'a> Execve<'a> {
    fn begin(task: &'a Task) -> Self {
        task.in_execve.store(true, Ordering::Relaxed);
        // Who has begun to trace it is seen from now on, and nobody else begins.
        drop(task.ptrace.lock());
        Self(task)
    }
}

impl Drop for Execve<'_> {
    fn drop(&mut self) {
        self.0.in_execve.store(false, Ordering::Relaxed);
        self.0.process().execve_over.wake_all();
    }
}

/// Makes the calling thread, the last of its process, run what was loaded.
pub(crate) fn begin_new_exec(task: &Task, loaded: LoadedProgram) {
    let process = task.process();
    // The old memory's last words.
    futex::exec_release(task);
    task.pi_locks_released.store(false, Ordering::SeqCst);
    task.clear_child_tid.store(0, Ordering::Relaxed);
    rseq::on_exec(task);
    syscall_user_dispatch::on_exec(task);
    task.thread().set_user(Some(loaded.space.clone()));
    if !loaded.dumpable {
        // Until the credentials are in force: `access` says who could see what.
        process.dumpable.store(0, Ordering::Release);
    }
    process.replace_program(loaded.space, loaded.image);
    // There is no way back to the old program.
    if task.unshare_files().is_err() {
        process.kill(sys::SIGKILL as i32);
    }
    task.files().close_on_exec();
    if loaded.secure {
        // Nobody has come to share them since that was looked at.
        task.unshare_fs();
    }
    process.replace_sighand(process.sighand().after_exec());
    posix_timers::on_exec(process);
    {
        let mut signals = task.signals.lock();
        signals.alt_stack = AltStack::none();
        signals.saved_sigmask = None;
    }
    if process.exit_signal() != 0 {
        process.set_exit_signal(sys::SIGCHLD as i32);
    }
    task.set_name(&loaded.name);
    task.install_cred(loaded.cred);
    if loaded.dumpable {
        process.dumpable.store(1, Ordering::Release);
    } else {
        process.forbid_dumps();
    }
    process.personality.fetch_and(
        !(if loaded.secure {
            PER_CLEAR_ON_SETID
        } else {
            READ_IMPLIES_EXEC
        }),
        Ordering::Relaxed,
    );
    if loaded.secure {
        task.parent_death_signal.store(0, Ordering::Relaxed);
    }
    process_table::set_did_exec(process.pid());
    task.complete_vfork_done();
}

fn exec(
    task: &Task,
    regs: &mut UserRegs,
    dirfd: Fd,
    name: &[u8],
    flags: u32,
    args: UserAddr,
    env: UserAddr,
) -> SysResult {
    let mut budget = MAX_STRINGS;
    let mut args = read_strings(args, &mut budget)?;
    let env = read_strings(env, &mut budget)?;
    if args.is_empty() {
        // A program may rely on having a name (Linux since 5.18).
        args.push(Vec::new());
    }
    // Only now, as on Linux, where the file is opened after the strings are copied.
    if flags & !(sys::AT_EMPTY_PATH | sys::AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut lookup = LookupFlags::empty();
    lookup.set(LookupFlags::NOFOLLOW, flags & sys::AT_SYMLINK_NOFOLLOW != 0);
    let file = open(task, dirfd, name, lookup)?;
    let _nobody_attaches = Execve::begin(task);
    let loaded = load(task, file, &exec_name(dirfd, name), args, &env)?;
    let former = task.tid();
    task.process()
        .de_thread(task, || ptrace::replace_leader(task))?;
    *regs = loaded.registers();
    begin_new_exec(task, loaded);
    if !reset_fpu(task) {
        log::warn!(
            "process {}: no memory for registers: it keeps those of the program before",
            task.pid()
        );
    }
    ptrace::on_exec(task, regs, former);
    Ok(0)
}

/// `execve(2)`: runs another program in this process.
pub fn sys_execve(
    task: &Task,
    regs: &mut UserRegs,
    name: UserAddr,
    args: UserAddr,
    env: UserAddr,
) -> SysResult {
    let mut buffer = namei::UserPath::new();
    let name = buffer.read(name)?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    exec(task, regs, Fd::CWD, name, 0, args, env)
}

/// `execveat(2)`: runs another program, from a directory on or by descriptor.
pub fn sys_execveat(
    task: &Task,
    regs: &mut UserRegs,
    dirfd: Fd,
    name: UserAddr,
    args: UserAddr,
    env: UserAddr,
    flags: u32,
) -> SysResult {
    let mut buffer = namei::UserPath::new();
    let name = buffer.read(name)?;
    if name.is_empty() && flags & sys::AT_EMPTY_PATH == 0 {
        return Err(Errno::ENOENT);
    }
    exec(task, regs, dirfd, name, flags, args, env)
}

/// Gives the calling thread floating-point registers in their initial state, with the restrictions
/// of its speculation that stay, or false if memory is short.
fn reset_fpu(task: &Task) -> bool {
    let Some(mut fpu) = UserFpu::new() else {
        return false;
    };
    let restrictions = {
        let mut settings = task.prctl.lock();
        settings.speculation = settings.speculation.after_exec();
        settings.speculation.restrictions()
    };
    fpu.restrict(restrictions);
    task.thread().set_fpu(Some(fpu));
    true
}
