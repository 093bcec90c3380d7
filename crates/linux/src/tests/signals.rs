//! Masks, actions, pending signals, and who may send one to whom.

use uapi::sigframe::AltStack;
use uapi::siginfo::{SigInfo, SigSet, UNBLOCKABLE, sigmask};
use uapi::time::TimeSpec;

use super::{BAD, User, bad, child_of, null, outcome, pid_arg, task};
use crate::process::send_signal;
use crate::signal::kill::{sys_kill, sys_tgkill, sys_tkill};
use crate::signal::sigwait::{sys_rt_sigpending, sys_rt_sigprocmask, sys_rt_sigtimedwait};
use crate::signal::{sys_rt_sigaction, sys_sigaltstack};
use crate::state::sighand::{SIG_IGN, SigAction};
use crate::uaccess::UserPtr;

const SIZE: usize = size_of::<SigSet>();
const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGCHLD: i32 = 17;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;
const REAL_TIME: i32 = 40;
const SETMASK: u32 = 2;

fn pending(task: &crate::Task) -> SigSet {
    let set = User::new(0);
    assert_eq!(outcome(sys_rt_sigpending(task, set.ptr(), SIZE)), Ok(0));
    set.get()
}

fn block(task: &crate::Task, mask: SigSet) {
    assert_eq!(
        outcome(sys_rt_sigprocmask(
            task,
            SETMASK,
            User::new(mask).ptr(),
            null(),
            SIZE
        )),
        Ok(0)
    );
}

#[test]
fn masks_are_changed_three_ways_and_never_hold_kill_and_stop() {
    let task = task();
    let (mask, old) = (User::new(u64::MAX), User::new(0));
    assert_eq!(
        outcome(sys_rt_sigprocmask(&task, 0, mask.ptr(), old.ptr(), SIZE)),
        Ok(0)
    );
    assert_eq!(old.get(), 0);
    assert_eq!(
        outcome(sys_rt_sigprocmask(
            &task,
            1,
            User::new(sigmask(SIGUSR1)).ptr(),
            old.ptr(),
            SIZE
        )),
        Ok(0)
    );
    assert_eq!(old.get(), !UNBLOCKABLE);
    assert_eq!(
        outcome(sys_rt_sigprocmask(
            &task,
            SETMASK,
            User::new(5).ptr(),
            old.ptr(),
            SIZE
        )),
        Ok(0)
    );
    assert_eq!(old.get(), !UNBLOCKABLE & !sigmask(SIGUSR1));
    assert_eq!(
        outcome(sys_rt_sigprocmask(&task, 99, null(), old.ptr(), SIZE)),
        Ok(0),
        "nothing is changed"
    );
    assert_eq!(old.get(), 5);
    assert_eq!(
        outcome(sys_rt_sigprocmask(&task, 3, mask.ptr(), null(), SIZE)),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_rt_sigprocmask(&task, 0, mask.ptr(), null(), 4)),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_rt_sigprocmask(&task, 0, bad(), null(), SIZE)),
        Err(EFAULT)
    );
}

#[test]
fn ordinary_signals_wait_once_and_real_time_ones_each() {
    let task = task();
    block(&task, sigmask(SIGUSR1) | sigmask(REAL_TIME));
    for _ in 0..3 {
        assert_eq!(outcome(sys_kill(&task, task.pid().raw(), SIGUSR1)), Ok(0));
        assert_eq!(outcome(sys_tkill(&task, task.tid(), REAL_TIME)), Ok(0));
    }
    assert_eq!(pending(&task), sigmask(SIGUSR1) | sigmask(REAL_TIME));
    let now = User::new(TimeSpec::default());
    let wanted = User::new(sigmask(SIGUSR1) | sigmask(REAL_TIME));
    let mut taken = Vec::new();
    while let Ok(signal) = sys_rt_sigtimedwait(&task, wanted.ptr(), null(), now.ptr(), SIZE) {
        taken.push(signal as i32);
    }
    assert_eq!(
        taken,
        [REAL_TIME, REAL_TIME, REAL_TIME, SIGUSR1],
        "the thread's own come first"
    );
    assert_eq!(
        outcome(sys_rt_sigtimedwait(
            &task,
            wanted.ptr(),
            null(),
            now.ptr(),
            SIZE
        )),
        Err(EAGAIN)
    );
    assert_eq!(pending(&task), 0);
}

#[test]
fn what_is_told_with_a_signal_names_the_sender() {
    let task = task();
    block(&task, sigmask(SIGUSR2));
    assert_eq!(
        outcome(sys_tgkill(&task, task.pid(), task.tid(), SIGUSR2)),
        Ok(0)
    );
    let info = User::new(SigInfo::kernel(0));
    let taken = sys_rt_sigtimedwait(
        &task,
        User::new(sigmask(SIGUSR2)).ptr(),
        info.ptr(),
        null(),
        SIZE,
    );
    assert_eq!(outcome(taken), Ok(SIGUSR2 as usize));
    let info = info.get();
    assert_eq!((info.signo, info.code), (SIGUSR2, -6), "SI_TKILL");
    assert_eq!(info.fields[..2], [task.pid().as_u32(), 0]);
}

#[test]
fn an_ignored_signal_is_not_kept_unless_it_is_blocked() {
    let task = task();
    let ignore = User::new(SigAction {
        handler: SIG_IGN,
        ..SigAction::default()
    });
    assert_eq!(
        outcome(sys_rt_sigaction(&task, SIGUSR1, ignore.ptr(), null(), SIZE)),
        Ok(0)
    );
    assert_eq!(outcome(sys_kill(&task, task.pid().raw(), SIGUSR1)), Ok(0));
    assert_eq!(pending(&task), 0);
    block(&task, sigmask(SIGUSR1));
    assert_eq!(outcome(sys_kill(&task, task.pid().raw(), SIGUSR1)), Ok(0));
    assert_eq!(pending(&task), sigmask(SIGUSR1));
    // Setting it to be ignored forgets what waits (POSIX).
    assert_eq!(
        outcome(sys_rt_sigaction(&task, SIGUSR1, ignore.ptr(), null(), SIZE)),
        Ok(0)
    );
    assert_eq!(pending(&task), 0);
}

#[test]
fn actions_keep_known_flags_only_and_kill_and_stop_have_none() {
    let task = task();
    let new = User::new(SigAction {
        handler: 0x1000,
        flags: u64::MAX,
        mask: u64::MAX,
        ..SigAction::default()
    });
    let old = User::new(SigAction::default());
    assert_eq!(
        outcome(sys_rt_sigaction(&task, SIGUSR1, new.ptr(), null(), SIZE)),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_rt_sigaction(&task, SIGUSR1, null(), old.ptr(), SIZE)),
        Ok(0)
    );
    assert_eq!(
        (old.get().flags, old.get().mask),
        (0xdc00_080f & !0x8, !UNBLOCKABLE),
        "as a Linux 6.1 tells it"
    );
    for signal in [SIGKILL, SIGSTOP] {
        assert_eq!(
            outcome(sys_rt_sigaction(&task, signal, new.ptr(), null(), SIZE)),
            Err(EINVAL)
        );
        assert_eq!(
            outcome(sys_rt_sigaction(&task, signal, null(), old.ptr(), SIZE)),
            Ok(0)
        );
    }
    for signal in [0, -1, 65] {
        assert_eq!(
            outcome(sys_rt_sigaction(&task, signal, null(), old.ptr(), SIZE)),
            Err(EINVAL)
        );
    }
    assert_eq!(
        outcome(sys_rt_sigaction(&task, SIGUSR1, bad(), null(), SIZE)),
        Err(EFAULT)
    );
    assert_eq!(
        outcome(sys_rt_sigaction(&task, SIGUSR1, null(), old.ptr(), 16)),
        Err(EINVAL)
    );
}

#[test]
fn stop_signals_and_continue_take_each_other_back() {
    let task = task();
    block(&task, sigmask(SIGCONT) | sigmask(SIGTSTP));
    assert_eq!(outcome(sys_kill(&task, task.pid().raw(), SIGTSTP)), Ok(0));
    assert_eq!(pending(&task), sigmask(SIGTSTP));
    assert_eq!(outcome(sys_kill(&task, task.pid().raw(), SIGCONT)), Ok(0));
    assert_eq!(pending(&task), sigmask(SIGCONT));
    assert_eq!(outcome(sys_kill(&task, task.pid().raw(), SIGTSTP)), Ok(0));
    assert_eq!(pending(&task), sigmask(SIGTSTP));
}

#[test]
fn only_the_owner_and_the_superuser_send_signals() {
    let task = task();
    let child = child_of(&task);
    let user = |id| {
        let cred = child.cred();
        cred.with_user(cred.user.setuid(true, id).unwrap())
    };
    child.set_cred(user(1000));
    assert_eq!(
        outcome(sys_kill(&task, child.pid().raw(), 0)),
        Ok(0),
        "the superuser may"
    );
    assert_eq!(outcome(sys_kill(&child, task.pid().raw(), 0)), Err(EPERM));
    assert_eq!(
        outcome(sys_kill(&child, child.pid().raw(), 0)),
        Ok(0),
        "oneself one may"
    );
    assert_eq!(
        outcome(sys_kill(&child, task.pid().raw(), SIGCONT)),
        Ok(0),
        "of one session"
    );
    assert_eq!(outcome(sys_kill(&task, 0x7fff_fff0, 0)), Err(ESRCH));
    assert_eq!(outcome(sys_kill(&task, task.pid().raw(), 65)), Err(EINVAL));
    assert_eq!(
        outcome(sys_tgkill(&task, task.pid(), pid_arg(-1), 0)),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_tgkill(&task, child.pid(), task.tid(), 0)),
        Err(ESRCH),
        "no thread of that process"
    );
}

#[test]
fn a_forced_signal_cannot_be_blocked() {
    let task = task();
    block(&task, sigmask(11));
    send_signal::force(&task, SigInfo::fault(11, 1, 0x1234), Default::default());
    assert_eq!(task.signals.lock().blocked, 0);
    assert_eq!(
        task.signals.lock().pending.set(),
        sigmask(11),
        "which ends the process when the thread looks"
    );
}

#[test]
fn alternate_stacks_have_a_least_size() {
    let task = task();
    let mut regs = guard::user::UserRegs::default();
    let mut set = |stack: AltStack, old: UserPtr<AltStack>| {
        outcome(sys_sigaltstack(
            &task,
            &mut regs,
            User::new(stack).ptr(),
            old,
        ))
    };
    let stack = |size| {
        let mut stack = AltStack::none().with_flags(0);
        (stack.sp, stack.size) = (0x10_0000, size);
        stack
    };
    let sound = stack(0x4000);
    assert_eq!(set(sound, null()), Ok(0));
    assert_eq!(set(stack(2047), null()), Err(ENOMEM));
    assert_eq!(set(sound.with_flags(4), null()), Err(EINVAL));
    let old = User::new(AltStack::none());
    assert_eq!(set(AltStack::none(), old.ptr()), Ok(0));
    assert_eq!(
        (old.get().sp, old.get().size, old.get().flags),
        (0x10_0000, 0x4000, 0),
        "the one before"
    );
    assert_eq!(set(sound, UserPtr::new(BAD)), Err(EFAULT));
}

#[test]
fn a_child_that_stops_and_goes_on_is_told_to_its_parent() {
    let task = task();
    block(&task, sigmask(SIGCHLD));
    let child = child_of(&task);
    child.process().stop(SIGSTOP);
    assert!(child.process().is_stopped());
    let info = User::new(SigInfo::kernel(0));
    let wanted = User::new(sigmask(SIGCHLD));
    assert_eq!(
        outcome(sys_rt_sigtimedwait(
            &task,
            wanted.ptr(),
            info.ptr(),
            null(),
            SIZE
        )),
        Ok(SIGCHLD as usize)
    );
    assert_eq!(
        (
            info.get().code,
            info.get().fields[0] as i32,
            info.get().fields[2] as i32
        ),
        (5, child.pid().raw(), SIGSTOP),
        "CLD_STOPPED"
    );
    assert_eq!(outcome(sys_kill(&task, child.pid().raw(), SIGCONT)), Ok(0));
    assert!(!child.process().is_stopped());
    assert_eq!(
        outcome(sys_rt_sigtimedwait(
            &task,
            wanted.ptr(),
            info.ptr(),
            null(),
            SIZE
        )),
        Ok(SIGCHLD as usize)
    );
    assert_eq!(info.get().code, 6, "CLD_CONTINUED");
}
