//! Steps that are no system call of their own: children that do one thing, and accesses to memory.
//! And those that are, but after which there would be one more of the caller, or another program in
//! its place.

use differential::spec::Call;

use crate::{supervisor, sys};

/// Whether [`call`] takes the step.
pub fn is_own(call: &Call) -> bool {
    matches!(
        call.number,
        ..0 | libc::SYS_clone
            | libc::SYS_fork
            | libc::SYS_vfork
            | libc::SYS_execve
            | libc::SYS_execveat
    )
}

/// Takes a step that is not just the system call.
pub fn call(call: &Call, arguments: [u64; 6]) -> i64 {
    match call.number {
        libc::SYS_execve | libc::SYS_execveat => sys::call_in_child(call.number, arguments),
        libc::SYS_clone | libc::SYS_fork | libc::SYS_vfork => {
            let child = sys::call_and_end_child(call.number, arguments);
            if child > 0 {
                settle(child, false);
            }
            child
        }
        -1 => spawn(arguments[0]),
        -2 => sys::peek(arguments[0], 1)[0].into(),
        -3 => {
            sys::poke(arguments[0], &[arguments[1] as u8]);
            0
        }
        _ => -i64::from(libc::ENOSYS),
    }
}

/// Order to a child to sleep until it is killed.
const SLEEP: u64 = 0x1000;

/// Makes a child that ends with a status below 256, or of the signal above it, or sleeps until it
/// is killed.
fn spawn(what: u64) -> i64 {
    // The raw call: the library's waits for locks, and threads of this process may hold them.
    let child = sys::simple(libc::SYS_fork, [0; 3]);
    if child != 0 {
        if child > 0 {
            settle(child, what == SLEEP);
        }
        return child;
    }
    if what == SLEEP {
        loop {
            sys::simple(libc::SYS_pause, [0; 3]);
        }
    }
    if let 1..=64 = what >> 8 {
        sys::simple(
            libc::SYS_kill,
            [sys::simple(libc::SYS_getpid, [0; 3]) as u64, what >> 8, 0],
        );
    }
    sys::exit(i32::from(what as u8))
}

/// Waits until a child sleeps, is stopped, or has ended, so that no later step finds it in between.
fn settle(child: i64, sleeps: bool) {
    if sleeps {
        return rest(child);
    }
    let how = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
    let wait = [libc::P_PID.into(), child as u64, 0, how as u64, 0, 0];
    while sys::call(libc::SYS_waitid, wait) == -i64::from(libc::EINTR) {}
}

/// Waits until a child of this process has done what it was sent; not for ever, since it may be one
/// that never rests.
pub fn rest(child: i64) {
    let rests =
        || supervisor::letter(child as i32, child as i32).is_none_or(|letter| letter != 'R');
    for _ in 0..2000 {
        if (0..2).all(|_| rests()) {
            return;
        }
        sys::simple(libc::SYS_sched_yield, [0; 3]);
    }
}
