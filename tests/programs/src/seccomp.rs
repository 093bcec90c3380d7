//! Filters of system calls.

use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, ptr, thread};

use anyhow::{Result, ensure};

use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("seccomp-errors", errors),
    ("seccomp-any-error", any_error),
    ("seccomp-arguments-and-order", arguments_and_order),
    ("seccomp-trap", trap),
    ("seccomp-kills", kills),
    ("seccomp-kills-a-thread", kills_a_thread),
    ("seccomp-strict", strict),
    ("seccomp-threads-and-children", threads_and_children),
];

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const TRAP: u32 = 0x0003_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const KILL_THREAD: u32 = 0;

const fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A program that returns `action` for one system call.
pub fn for_call(number: libc::c_long, action: u32) -> Vec<libc::sock_filter> {
    vec![
        op(0x20, 0, 0, 0),
        op(0x15, number as u32, 0, 1),
        op(0x06, action, 0, 0),
        op(0x06, ALLOW, 0, 0),
    ]
}

fn install(program: &[libc::sock_filter], flags: u32) -> io::Result<i32> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: a valid program; it is copied.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, 1, flags, &raw const program) } as i32)
}

pub fn no_new_privileges() -> Result<()> {
    // SAFETY: numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    Ok(())
}

/// The error of `getppid`, which has none by itself.
fn getppid() -> io::Result<i32> {
    // SAFETY: the call takes nothing.
    checked(unsafe { libc::syscall(libc::SYS_getppid) } as i32)
}

fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    ensure!(
        result
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(errno)),
        "{what}: {result:?}"
    );
    Ok(())
}

fn errors() -> Result<()> {
    in_child(|| {
        // SAFETY: numbers.
        unsafe {
            checked(libc::setresuid(1000, 1000, 1000))?;
            ensure!(
                libc::prctl(libc::PR_GET_SECCOMP) == 0,
                "a filter is there already"
            );
        }
        refused(
            install(&for_call(libc::SYS_getppid, ERRNO | 5), 0),
            libc::EACCES,
            "a filter with all privileges to come",
        )?;
        no_new_privileges()?;
        refused(
            install(&[op(0x20, 0, 0, 0)], 0),
            libc::EINVAL,
            "a program without end",
        )?;
        refused(
            install(&[op(0x20, 64, 0, 0), op(0x06, 0, 0, 0)], 0),
            libc::EINVAL,
            "a program that looks too far",
        )?;
        install(&for_call(libc::SYS_getppid, ERRNO | 5), 0)?;
        refused(getppid(), 5, "the call that is not allowed")?;
        ensure!(
            // SAFETY: numbers.
            unsafe { libc::prctl(libc::PR_GET_SECCOMP) } == 2,
            "it is not told"
        );
        let text = std::fs::read_to_string("/proc/self/status")?;
        ensure!(text.contains("\nSeccomp:\t2\n"), "/proc tells otherwise");
        Ok(())
    })
}

/// Every number that a filter may choose comes out as it is, also those by which a kernel tells
/// itself to make an interrupted call again; those beyond the last error are the last one.
fn any_error() -> Result<()> {
    for (chosen, told) in [
        (511, 511),
        (512, 512),
        (513, 513),
        (514, 514),
        (515, 515),
        (516, 516),
        (517, 517),
        (4095, 4095),
        (4096, 4095),
        (0xffff, 4095),
    ] {
        in_child(|| {
            no_new_privileges()?;
            install(&for_call(libc::SYS_getppid, ERRNO | chosen), 0)?;
            refused(getppid(), told, "the call that is not allowed")
        })?;
    }
    Ok(())
}

fn arguments_and_order() -> Result<()> {
    in_child(|| {
        no_new_privileges()?;
        // `kill` with signal 0 of process 1 is an error 7; of others it is allowed.
        let number = libc::SYS_kill as u32;
        let program = [
            op(0x20, 0, 0, 0),
            op(0x15, number, 0, 4),
            op(0x20, 16, 0, 0),
            op(0x15, 1, 0, 2),
            op(0x20, 4, 0, 0),
            op(0x15, 0xc000_003e, 1, 0),
            op(0x06, ALLOW, 0, 0),
            op(0x06, ERRNO | 7, 0, 0),
        ];
        install(&program, 0)?;
        // SAFETY: signal 0 does nothing.
        let kill = |pid: i32| checked(unsafe { libc::kill(pid, 0) });
        refused(kill(1), 7, "what the filter forbids")?;
        kill(std::process::id() as i32)?;
        // A later filter can only forbid more.
        install(&for_call(libc::SYS_kill, ALLOW), 0)?;
        refused(kill(1), 7, "what an earlier filter forbids")?;
        install(&for_call(libc::SYS_kill, ERRNO | 9), 0)?;
        refused(kill(1), 9, "of two errors the later filter's")
    })
}

static TRAPPED: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_trap(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure; the number and the processor's kind are behind an
    // address.
    let (code, errno, number) = unsafe {
        let words = info.cast::<i32>();
        (*words.add(2), *words.add(1), *words.add(6))
    };
    if code == 1 && errno == 33 {
        TRAPPED.store(number as u32, Ordering::SeqCst);
    }
}

fn trap() -> Result<()> {
    in_child(|| {
        no_new_privileges()?;
        // SAFETY: the handler only notes numbers.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) =
                (note_trap as *const () as usize, libc::SA_SIGINFO);
            checked(libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()))?;
        }
        install(&for_call(libc::SYS_getppid, TRAP | 33), 0)?;
        let _ = getppid();
        ensure!(
            TRAPPED.load(Ordering::SeqCst) == libc::SYS_getppid as u32,
            "the handler saw {TRAPPED:?}"
        );
        Ok(())
    })
}

/// Runs `work` in a child; its wait status.
fn status_of(work: impl FnOnce()) -> Result<i32> {
    // SAFETY: the program has one thread.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        work();
        // SAFETY: the child ends here.
        unsafe { libc::_exit(3) };
    }
    let mut status = 0;
    // SAFETY: the word is valid.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    Ok(status & 0x7f | status >> 8 << 8)
}

fn kills() -> Result<()> {
    let status = status_of(|| {
        if no_new_privileges().is_ok()
            && install(&for_call(libc::SYS_getppid, KILL_PROCESS), 0).is_ok()
        {
            let _ = getppid();
        }
    })?;
    ensure!(status == libc::SIGSYS, "the process ended with {status:#x}");
    Ok(())
}

/// Progress of the thread that is to be killed.
static CAME_TO: AtomicU32 = AtomicU32::new(0);

extern "C" fn call_what_kills(_: *mut libc::c_void) -> *mut libc::c_void {
    if no_new_privileges().is_ok() && install(&for_call(libc::SYS_getppid, KILL_THREAD), 0).is_ok()
    {
        CAME_TO.store(1, Ordering::SeqCst);
        let _ = getppid();
        CAME_TO.store(2, Ordering::SeqCst);
    }
    ptr::null_mut()
}

fn kills_a_thread() -> Result<()> {
    in_child(|| {
        // SAFETY: the function takes nothing; the number is written before it is read. (A thread of
        // the library that ends in a call would leave without what it should have returned, which
        // nobody reads here.)
        unsafe {
            let mut thread = std::mem::zeroed();
            let made =
                libc::pthread_create(&mut thread, ptr::null(), call_what_kills, ptr::null_mut());
            ensure!(made == 0, "no thread: {made}");
            libc::pthread_join(thread, ptr::null_mut());
        }
        ensure!(
            CAME_TO.load(Ordering::SeqCst) == 1,
            "the thread came to {CAME_TO:?}"
        );
        ensure!(getppid().is_ok(), "the filter of one thread is another's");
        Ok(())
    })?;
    // Of the only thread it ends the process.
    let status = status_of(|| {
        let _ = call_what_kills(ptr::null_mut());
    })?;
    ensure!(
        status & 0x7f == libc::SIGSYS,
        "a process of one thread ended with {status:#x}"
    );
    Ok(())
}

fn strict() -> Result<()> {
    let status = status_of(|| {
        // SAFETY: numbers, and two bytes; `exit` of the only thread ends the process.
        unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, 1, 0, 0, 0);
            libc::syscall(libc::SYS_write, -1, c"x".as_ptr(), 1);
            libc::syscall(libc::SYS_exit, 4);
        }
    })?;
    ensure!(status == 4 << 8, "what is allowed ended with {status:#x}");
    let status = status_of(|| {
        // SAFETY: numbers.
        unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, 1, 0, 0, 0);
        }
        let _ = getppid();
    })?;
    ensure!(
        status == libc::SIGKILL,
        "what is not allowed ended with {status:#x}"
    );
    Ok(())
}

fn threads_and_children() -> Result<()> {
    const TSYNC: u32 = 1;
    in_child(|| {
        no_new_privileges()?;
        let (go, done) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| -> Result<()> {
            let other = scope.spawn(|| {
                let before = getppid().is_ok();
                go.store(1, Ordering::SeqCst);
                while done.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                (before, getppid())
            });
            while go.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let installed = install(&for_call(libc::SYS_getppid, ERRNO | 5), TSYNC);
            done.store(1, Ordering::SeqCst);
            ensure!(installed? == 0, "a thread stands in the way");
            let (before, after) = other.join().expect("the thread ended well");
            ensure!(before, "the filter was there too early");
            refused(after, 5, "the other thread's call")
        })?;
        refused(
            thread::spawn(getppid)
                .join()
                .expect("the thread ended well"),
            5,
            "a new thread's call",
        )?;
        in_child(|| refused(getppid(), 5, "a child's call"))
    })
}
