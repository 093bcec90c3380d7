//! Programs that the supervisor asks for, beside process 1 (`skerry exec`): without a parent, in
//! a session of their own.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::{File, FsStruct};
use linux_raw_sys::general as sys;
use uapi::pid::Pid;
use uapi::siginfo::{self, SigInfo};

use crate::entry::init::{InitProgram, take_terminal};
use crate::process::{Process, process_table, send_signal};
use crate::process_control::kernel_exec::{self, KernelProgram};
use crate::state::credentials::{Credentials, Ids};
use crate::state::rlimit;

/// A program that was asked for, while it runs and after its end.
pub struct RunningProgram {
    process: Arc<Process>,
}

/// Root and working directory for a program that is asked for: those of process 1 at the moment.
///
/// # Errors
/// `ESRCH`: there is no process 1 any more.
pub fn context() -> Result<Arc<FsStruct>, Errno> {
    let init = process_table::find(Pid::INIT).ok_or(Errno::ESRCH)?;
    Ok(init.fs().ok_or(Errno::ESRCH)?.fork())
}

/// Runs a program as this user and group, with these descriptors 0 to 2. When this returns it is
/// running.
///
/// # Errors
/// Those of `execve(2)`.
pub fn spawn(
    program: InitProgram,
    context: Arc<FsStruct>,
    stdio: [Arc<File>; 3],
    (user, group): (u32, u32),
) -> Result<RunningProgram, Errno> {
    let root = Credentials::root();
    let cred = Credentials {
        group: Ids::all(group),
        ..root.with_user(Ids::all(user))
    };
    let cwd = context
        .lookup_context(&cred.fs_cred())
        .lookup(&program.cwd, fs::path::LookupFlags::empty())?;
    context.set_cwd(cwd);
    let prepared = kernel_exec::prepare(KernelProgram {
        path: &program.path,
        args: program.args,
        env: &program.env,
        fs: context,
        files: stdio.into(),
        limits: rlimit::default_limits(),
        cred,
        name: "exec".into(),
        logs_syscalls: guard::role::cmdline_has("trace"),
    })?;
    let terminal = program.terminal;
    let process = prepared.start(|| take_terminal(terminal), || ())?;
    Ok(RunningProgram { process })
}

impl RunningProgram {
    /// Sends it a signal, as the terminal does.
    pub fn signal(&self, signo: i32) {
        if (1..=siginfo::NSIG).contains(&signo) && !process_table::has_ended(&self.process) {
            send_signal::send(&self.process, SigInfo::kernel(signo));
        }
    }

    /// Tells it and its process group that nobody is there any more, as a terminal that is hung up
    /// does.
    pub fn hang_up(&self) {
        if process_table::has_ended(&self.process) {
            return;
        }
        for signo in [sys::SIGHUP, sys::SIGCONT] {
            let group = self.process.pid().own_group();
            send_signal::send_group(group, SigInfo::kernel(signo as i32));
        }
    }

    /// Waits for its end; returns its status as shells show it.
    #[must_use]
    pub fn wait(&self) -> u8 {
        let is_over = || process_table::has_ended(&self.process).then_some(());
        self.process.exit_waiters.wait_uninterruptible(is_over);
        let status = self.process.group_exit_status.lock().unwrap_or(0);
        let shown = crate::entry::init::shown_status(status);
        u8::try_from(shown).unwrap_or(u8::MAX)
    }
}
