//! Setting the personality up, and its first process.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Once;
use abi::errno::Errno;
use fs::tty::Tty;
use fs::{Cred, File, FsStruct};
use guard::{BootToken, PowerToken, user};
use uapi::pid::Pid;
use uapi::siginfo::{self, SigInfo};

use crate::cred::setuid;
use crate::entry::{taskstats, user_loop};
use crate::files::sigio::SigioSender;
use crate::mm::oom;
use crate::process::process_table::{self, TtyJobControl};
use crate::process::send_signal;
use crate::process::upcalls::{self, Upcalls};
use crate::process_control::kernel_exec::{self, KernelProgram};
use crate::state::credentials::Credentials;
use crate::state::{namespaces, rlimit, timer_queue};
use crate::system::{klog, sysinfo};
use crate::{procfs, socket};

/// Functions by which the personality tells the kernel around it of events.
pub struct Hooks {
    /// Process 1 has ended: the instance's work is done. The status is as shells show it: what the
    /// program returned, or 128 and the signal that ended it.
    pub init_exited: fn(status: i32),
}

/// The program that process 1 runs, with its arguments, environment and terminal.
pub struct InitProgram {
    /// Path of the program's file.
    pub path: Vec<u8>,
    /// Arguments of the program, the name it sees itself by included.
    pub args: Vec<Vec<u8>>,
    /// Environment of the program: `NAME=value` each.
    pub env: Vec<Vec<u8>>,
    /// Working directory of the program.
    pub cwd: Vec<u8>,
    /// Terminal that becomes the controlling terminal of its session.
    pub terminal: Option<Arc<Tty>>,
}

static HOOKS: Once<Hooks> = Once::new();

/// Sets the personality up; once, before the first process, in a thread. `power` is for
/// `reboot(2)`.
pub fn init(boot: &BootToken, power: PowerToken, hooks: Hooks) {
    HOOKS.call_once(|| hooks);
    sysinfo::set_power(power);
    procfs::init_pressure(boot);
    upcalls::set(Upcalls {
        run_user: user_loop::run,
        run_helper: kernel_exec::run_helper,
        on_init_exit,
    });
    klog::init(boot);
    user::set_fault_handler(boot, user_loop::handle_kernel_fault);
    fs::tty::set_job_control(Arc::new(TtyJobControl));
    fs::set_keeps_setid_bits(setuid::keeps_setid_bits);
    fs::ext4::set_may_use_reserved(setuid::may_use_reserved_blocks);
    fs::charge::set_unlimited(is_superuser);
    fs::sigio::set_sender(Arc::new(SigioSender));
    net::set_credentials_provider(socket::caller_ucred, socket::groups, socket::is_capable);
    net::netlink::set_taskstats_provider(taskstats::taskstats);
    if let Err(error) = net::tun::register(namespaces::host()) {
        log::warn!("no /dev/net/tun: {error}");
    }
    net::set_timer_scheduler(timer_queue::schedule_for_socket);
    timer_queue::start();
    oom::init(boot, may_pass_mark);
}

/// Whether the calling thread is the superuser's or the kernel's: limits of the whole system do not
/// concern it.
fn is_superuser() -> bool {
    crate::current_task().is_none_or(|task| task.cred().has_sys_admin())
}

/// Whether the kernel may take memory for the calling thread beyond its high mark.
fn may_pass_mark() -> bool {
    is_superuser() || oom::may_use_reserve()
}

/// Starts process 1 with these descriptors 0 to 2. When this returns it is running. With the word
/// `trace` on the kernel's command line its system calls, and those of its descendants, are written
/// to the kernel log.
///
/// # Errors
/// Those of `execve(2)`.
pub fn spawn_init(
    program: &InitProgram,
    context: Arc<FsStruct>,
    stdio: [Arc<File>; 3],
) -> Result<(), Errno> {
    let root_user = Cred::root();
    let cwd = context
        .lookup_context(&root_user)
        .lookup(&program.cwd, fs::path::LookupFlags::empty())?;
    context.set_cwd(cwd);
    let prepared = kernel_exec::prepare(KernelProgram {
        path: &program.path,
        args: program.args.clone(),
        env: &program.env,
        fs: context,
        files: stdio.into(),
        limits: rlimit::default_limits(),
        cred: Credentials::root(),
        name: "init".into(),
        logs_syscalls: guard::role::cmdline_has("trace"),
    })?;
    let terminal = program.terminal.clone();
    let report = || {
        let ticks = guard::timer::tsc().wrapping_sub(guard::role::boot_tsc());
        log::info!(
            "boot: first user instruction after {} us (tsc delta {ticks})",
            guard::timer::ticks_to_ns(ticks) / 1000
        );
        if !guard::role::is_supervisor() {
            guard::instance::mark_first_user();
        }
    };
    prepared.start(|| take_terminal(terminal), report).map(drop)
}

/// Makes this the controlling terminal of the calling session leader.
pub(crate) fn take_terminal(terminal: Option<Arc<Tty>>) {
    if let Some(tty) = terminal
        && let Err(error) = tty.set_controlling(false)
    {
        log::warn!("no controlling terminal: {error}");
    }
}

/// Stops the machine or instance because process 1 has ended, with this wait status.
fn on_init_exit(status: i32) {
    let shown = shown_status(status);
    if let Some(hooks) = HOOKS.get() {
        (hooks.init_exited)(shown);
    }
}

/// A wait status as shells show it.
pub(crate) fn shown_status(status: i32) -> i32 {
    if status & 0x7f == 0 {
        status >> 8 & 0xff
    } else {
        128 + (status & 0x7f)
    }
}

/// Sends a signal to process 1 from outside, as the terminal does: also one that it does not
/// handle.
pub fn signal_init(signo: i32) {
    if let Some(process) = process_table::find(Pid::INIT)
        && (1..=siginfo::NSIG).contains(&signo)
    {
        send_signal::send(&process, SigInfo::kernel(signo));
    }
}
