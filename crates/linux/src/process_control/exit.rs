//! How threads and processes end: `exit(2)`, `exit_group(2)`, and what comes after the last
//! instruction.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as sys;
use uapi::pid::Pid;
use uapi::siginfo::SigInfo;

use crate::ipc::{sem, shm};
use crate::mm::oom;
use crate::process::{
    Process, accounting, namespaces, notify_parent, process_table, send_signal,
    sigchld_code_and_status, upcalls,
};
use crate::time::posix_timers;
use crate::{SysResult, Task, futex, ptrace};

/// Ends a thread that has left user mode for good: gives back what it has, and ends the process if
/// it was the last.
pub(crate) fn do_exit(task: &Arc<Task>) {
    let process = task.process().clone();
    fallible::inject::clear();
    ptrace::exit_ptrace(task);
    futex::exit_release(task);
    task.complete_vfork_done();
    task.exit_files();
    shm::exit_shm(task);
    let thread = task.thread();
    thread.set_user(None);
    thread.end_system_time();
    // Before a thread that calls `execve` sees that it is alone, and takes the number over.
    process_table::remove_task(task.tid());
    let last = {
        let mut tasks = process.tasks.lock();
        *process.name.lock() = task.name();
        process.exited_usage.lock().add(&task.usage());
        tasks.retain(|t| !Arc::ptr_eq(t, task));
        process.tasks_changed.notify_all(&tasks);
        tasks.is_empty()
    };
    exit_fs(task);
    if task.is_ptraced() {
        ptrace::on_tracee_exit(task, exit_status(task));
    }
    if last {
        exit_process(&process);
    }
}

/// Lets go of the thread's root and working directory: who has waited for the process may unmount
/// them, though the thread itself is there a little longer. It has those of process 1 instead, and
/// nobody finds it any more to look.
fn exit_fs(task: &Task) {
    if let Some(fs) = process_table::find(Pid::INIT).and_then(|init| init.fs()) {
        task.replace_fs(fs);
    }
}

/// Wait status of a thread that ends: its own, or that of its whole process.
pub(crate) fn exit_status(task: &Task) -> i32 {
    let own = task.exit_status.load(Ordering::Relaxed);
    let whole = *task.process().group_exit_status.lock();
    if task.exiting.load(Ordering::Relaxed) {
        own
    } else {
        whole.unwrap_or(own)
    }
}

/// Ends a process whose last thread is gone.
fn exit_process(process: &Arc<Process>) {
    process.update_max_rss();
    let space = process.space.lock().take();
    accounting::account_exited_process(process);
    drop(space);
    let image = core::mem::take(&mut *process.image.lock());
    drop(image);
    oom::exit_victim(process);
    posix_timers::exit_itimers(process);
    sem::exit_sem(process, &namespaces::current().ipc);
    let status = *process
        .group_exit_status
        .lock()
        .get_or_insert(process.last_exit_status.load(Ordering::Relaxed));
    if process.pid() == Pid::INIT {
        (upcalls::get().on_init_exit)(status);
    }
    let session = process_table::relations(process.pid()).session;
    if session == process.pid().own_session() {
        fs::tty::session_leader_exits(session.as_u32());
    }
    let tracer = ptrace::defer_exit_report(process);
    let aftermath = process_table::exit_notify(process, status, tracer.is_some());
    process.exit_waiters.notify();
    for orphan in aftermath.reparented {
        for thread in orphan.tasks() {
            let signo = thread.parent_death_signal.load(Ordering::Relaxed);
            if signo != 0 {
                send_signal::send(&orphan, SigInfo::kernel(signo));
            }
        }
    }
    for group in aftermath.orphaned_groups {
        send_signal::signal_orphaned_group(group);
    }
    if let Some(init) = aftermath.new_reaper {
        init.wait_chldexit.wake_all();
        send_signal::send(&init, SigInfo::kernel(sys::SIGCHLD as i32));
    }
    match tracer {
        // The parent is told when the tracer has been.
        Some(tell) => tell(status),
        None => {
            let (code, value) = sigchld_code_and_status(status);
            notify_parent(aftermath.parent, process, code, value);
            drop(aftermath.announcement);
        }
    }
}

/// `exit(2)`: ends the calling thread.
pub fn sys_exit(task: &Task, status: i32) -> SysResult {
    task.process()
        .last_exit_status
        .store((status & 0xff) << 8, Ordering::Relaxed);
    task.exit_status
        .store((status & 0xff) << 8, Ordering::Relaxed);
    task.exiting.store(true, Ordering::Relaxed);
    task.signal_wake_up();
    Ok(0)
}

/// `exit_group(2)`: ends the process.
pub fn sys_exit_group(task: &Task, status: i32) -> SysResult {
    task.process().group_exit((status & 0xff) << 8);
    Ok(0)
}
