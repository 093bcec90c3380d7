//! System calls on the host: a task of a process of its own, without a program, makes them in the
//! test's thread.
//!
//! Memory of programs is the test's own, at addresses as a program has them. There is nobody to
//! mend a fault, so bad pointers of these tests are addresses of the kernel, which are refused
//! before they are touched.

mod credentials;
mod descriptors;
mod futexes;
mod ipc;
mod processes;
mod scheduling;
mod signals;
mod timers;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::hint::black_box;
use std::sync::Once;

use abi::errno::Errno;
use fs::ramfs::RamFs;
use fs::{FsStruct, mount};
use uapi::pid::Pid;
use uapi::sigframe::AltStack;
use uapi::user_addr::UserAddr;
use vm::AddressSpace;

use crate::process::task::NewTask;
use crate::process::{NewProcess, Process, process_table};
use crate::state::credentials::Credentials;
use crate::state::fdtable::FdTable;
use crate::state::sched_params::SchedParams;
use crate::state::{namespaces, rlimit};
use crate::uaccess::{SyscallArg, UserPtr};
use crate::{SysResult, Task};

/// An address that no program can have.
const BAD: UserAddr = UserAddr::new(abi::layout::USER_END);

/// The result of a call: a value, or the number of an error.
fn outcome(result: SysResult) -> Result<usize, i32> {
    result.map_err(Errno::raw)
}

/// A value in a program's memory.
struct User<T>(Vec<T>);

impl<T: Copy> User<T> {
    fn new(value: T) -> Self {
        Self(vec![value])
    }

    fn addr(&self) -> UserAddr {
        UserAddr::new(black_box(self.0.as_ptr()).expose_provenance())
    }

    fn ptr(&self) -> UserPtr<T> {
        UserPtr::new(self.addr())
    }

    /// Value that is there now.
    fn get(&self) -> T {
        black_box(&self.0)[0]
    }
}

/// A null pointer to a `T` in user memory.
fn null<T>() -> UserPtr<T> {
    UserPtr::NULL
}

/// A pointer to what is not there.
fn bad<T>() -> UserPtr<T> {
    UserPtr::new(BAD)
}

/// A `pid_t` as a system call gets it from a register.
fn pid_arg<T: SyscallArg>(raw: i32) -> T {
    T::from_register(u64::from(raw.cast_unsigned()))
}

/// A process with one task, which no thread runs yet, as a child of `parent`.
fn new_task(parent: Pid, maker: Weak<Task>, cred: Credentials) -> Arc<Task> {
    let tid = process_table::allocate().unwrap();
    let cred = Arc::new(cred);
    let process = Process::new(NewProcess {
        pid: tid.led_process(),
        creator: maker,
        exit_signal: 17,
        space: AddressSpace::new(vm::USER_END).unwrap(),
        sighand: Arc::default(),
        limits: rlimit::default_limits(),
        cred: cred.clone(),
        image: Default::default(),
        oom_score_adj: 0,
        oom_score_adj_min: 0,
        personality: 0,
        dump_filter: Default::default(),
        logs_syscalls: false,
    });
    let inherited = NewTask {
        files: Arc::new(FdTable::new()),
        fs: Arc::new(FsStruct::new(mount::Namespace::new(
            RamFs::new("tmpfs", None, 0o755),
            "none",
        ))),
        namespaces: namespaces::initial().clone(),
        cred: cred.into(),
        name: "test".into(),
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
    process.add_task(task.clone()).unwrap();
    process_table::add_process(parent, process);
    process_table::add_task(&task);
    task
}

/// A task of the superuser that the calling thread runs. Process 1, which signals treat
/// differently, is there before.
fn task() -> Arc<Task> {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        assert_eq!(
            new_task(Pid::NONE, Weak::new(), Credentials::root()).pid(),
            Pid::INIT
        );
    });
    let task = new_task(Pid::INIT, Weak::new(), Credentials::root());
    task.bind_thread();
    task
}

/// A child of a task's process.
fn child_of(task: &Arc<Task>) -> Arc<Task> {
    new_task(task.pid(), Arc::downgrade(task), (*task.cred()).clone())
}
