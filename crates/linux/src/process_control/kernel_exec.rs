//! Programs that the kernel starts itself, without a parent: process 1, those that take core dumps,
//! and those that the supervisor asks for.

use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::{File, FsStruct, OpenFlags, ops};
use guard::fpu::UserFpu;
use uapi::fd::Fd;
use uapi::pid::Pid;
use uapi::sigframe::AltStack;
use vm::{AddressSpace, DumpFilter};

use crate::Task;
use crate::process::image::ProcessImage;
use crate::process::task::NewTask;
use crate::process::{NewProcess, Process, core_dump, process_table, upcalls};
use crate::process_control::exec::{self, LoadedProgram};
use crate::state::credentials::Credentials;
use crate::state::fdtable::{CloseOnExec, FdTable};
use crate::state::namespaces;
use crate::state::rlimit::{self, Resource, Rlimit, Rlimits};
use crate::state::sched_params::SchedParams;

/// A program that the kernel starts.
pub(crate) struct KernelProgram<'a> {
    /// Path of the program's file.
    pub(crate) path: &'a [u8],
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) env: &'a [Vec<u8>],
    /// Root and working directory of the new process.
    pub(crate) fs: Arc<FsStruct>,
    /// Open files of the new process: its descriptors from 0 on.
    pub(crate) files: Vec<Arc<File>>,
    pub(crate) limits: Rlimits,
    pub(crate) cred: Credentials,
    /// Name of the thread until the program runs.
    pub(crate) name: String,
    pub(crate) logs_syscalls: bool,
}

/// A process with its program loaded, which has still to be run.
pub(crate) struct PreparedProcess {
    task: Arc<Task>,
    loaded: LoadedProgram,
    fpu: UserFpu,
}

/// Makes a process and loads its program.
///
/// # Errors
/// Those of `execve(2)`; `EAGAIN`, `ENOMEM`.
pub(crate) fn prepare(program: KernelProgram<'_>) -> Result<PreparedProcess, Errno> {
    let user = program.cred.fs_cred();
    let file = ops::open(
        &program.fs.lookup_context(&user),
        program.path,
        OpenFlags::empty(),
        0,
    )?;
    let files = Arc::new(FdTable::new());
    for (fd, file) in (0..).map(Fd::new).zip(program.files) {
        files.install_at(fd, file, CloseOnExec::No)?;
    }
    let tid = process_table::allocate().ok_or(Errno::EAGAIN)?;
    let cred = Arc::new(program.cred);
    // An empty space until the program is loaded.
    let space = AddressSpace::new(vm::USER_END).ok_or(Errno::ENOMEM)?;
    let process = Process::new(NewProcess {
        pid: tid.led_process(),
        creator: Weak::new(),
        exit_signal: 0,
        space,
        sighand: Arc::default(),
        limits: program.limits,
        cred: cred.clone(),
        image: ProcessImage::default(),
        oom_score_adj: 0,
        oom_score_adj_min: 0,
        personality: 0,
        dump_filter: DumpFilter::default(),
        logs_syscalls: program.logs_syscalls,
    });
    let inherited = NewTask {
        files,
        fs: program.fs,
        namespaces: namespaces::initial().clone(),
        cred: cred.into(),
        name: program.name,
        blocked: 0,
        stack: AltStack::none(),
        cpus_allowed: Vec::new(),
        sched_params: SchedParams::default(),
        seccomp: Default::default(),
        memory_policy: Default::default(),
        io_priority: 0,
        prctl: Default::default(),
    };
    let task = Task::new(tid, process.clone(), inherited);
    let file = exec::ExecFile::new(&task, file)?;
    let loaded = exec::load(&task, file, program.path, program.args, program.env)?;
    let fpu = UserFpu::new().ok_or(Errno::ENOMEM)?;
    process.add_task(task.clone())?;
    process_table::add_process(Pid::NONE, process);
    process_table::add_task(&task);
    Ok(PreparedProcess { task, loaded, fpu })
}

impl PreparedProcess {
    /// Starts the process in a kernel thread, which calls `before` as the process's, then `started`
    /// when all is ready for the program's first instruction.
    ///
    /// # Errors
    /// `ENOMEM`: there is no such process.
    pub(crate) fn start(
        self,
        before: impl FnOnce() + Send + 'static,
        started: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Process>, Errno> {
        let Self { task, loaded, fpu } = self;
        let process = task.process().clone();
        let (name, kept) = (task.name(), task.clone());
        let body = move || {
            task.bind_thread();
            before();
            let regs = loaded.registers();
            exec::begin_new_exec(&task, loaded);
            task.thread().set_fpu(Some(fpu));
            started();
            (upcalls::get().run_user)(&task, regs);
        };
        if ::task::spawn(&name, None, body).is_err() {
            process_table::remove_task(kept.tid());
            process.remove_unstarted(&kept);
            process_table::remove_unstarted_process(process.pid());
            return Err(Errno::ENOMEM);
        }
        Ok(process)
    }
}

/// Runs a program of root's that reads from `stdin` (Linux: `call_usermodehelper`); its path is the
/// first of `args`. It dumps no core itself.
///
/// # Errors
/// Those of `execve(2)`; `EAGAIN`, `ENOMEM`.
pub(crate) fn run_helper(args: Vec<Vec<u8>>, stdin: Arc<File>) -> Result<Arc<Process>, Errno> {
    let init = process_table::find(Pid::INIT).ok_or(Errno::ESRCH)?;
    let fs = init.fs().ok_or(Errno::ESRCH)?.fork();
    fs.set_cwd(fs.root());
    let path = args.first().ok_or(Errno::ENOENT)?.clone();
    let mut limits = rlimit::default_limits();
    limits[Resource::Core] = Rlimit::both(core_dump::HELPER_LIMIT);
    let program = KernelProgram {
        path: &path,
        args,
        env: &[],
        fs,
        files: alloc::vec![stdin],
        limits,
        cred: Credentials::root(),
        name: "helper".into(),
        logs_syscalls: false,
    };
    prepare(program)?.start(|| (), || ())
}
