//! Signals: delivery, frames, masks, interrupted calls, and the ones that faults raise.

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use anyhow::{Result, ensure};
use libc::{c_int, c_void, siginfo_t, ucontext_t};

use crate::calls::{Fd, call, fails, is};
use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("signals-reach-their-handler", reach_their_handler),
    ("signals-wait-while-blocked", wait_while_blocked),
    ("signals-keep-registers", keep_registers),
    ("signals-nest", nest),
    ("signals-interrupt-a-sleep", interrupt_a_sleep),
    ("signals-restart-a-read", restart_a_read),
    ("signals-reach-one-thread", reach_one_thread),
    ("signals-use-the-alternate-stack", use_the_alternate_stack),
    ("signals-page-fault-can-be-mended", page_fault_can_be_mended),
    (
        "signals-division-fault-tells-its-place",
        division_fault_tells_its_place,
    ),
    ("signals-alarm-arrives", alarm_arrives),
    (
        "signals-thread-number-means-its-process",
        thread_number_means_its_process,
    ),
    (
        "signals-descriptors-signal-is-the-infos",
        descriptors_signal_is_the_infos,
    ),
    ("signals-frame-that-has-no-room", frame_that_has_no_room),
    ("signals-errors-in-order", errors_in_order),
    ("signals-nested-task-flag-stays", nested_task_flag_stays),
];

type Action = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Installs `action` for `signal`.
fn handle(signal: c_int, action: Action, flags: c_int) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`, and the handlers of this file only touch atomics,
    // their frame, and call what is safe to call from a handler.
    unsafe {
        let mut request: libc::sigaction = mem::zeroed();
        request.sa_sigaction = action as usize;
        request.sa_flags = libc::SA_SIGINFO | flags;
        checked(libc::sigaction(signal, &request, ptr::null_mut()))?;
    }
    Ok(())
}

/// Blocks or unblocks `signal` in this thread.
fn mask(how: c_int, signal: c_int) -> io::Result<()> {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        checked(libc::pthread_sigmask(how, &set, ptr::null_mut()))?;
    }
    Ok(())
}

fn send_to_self(signal: c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    checked(unsafe { libc::kill(libc::getpid(), signal) }).map(drop)
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static SENDER: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    COUNT.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO; these signals come
    // from `kill`.
    SENDER.store(unsafe { (*info).si_pid() }, Ordering::SeqCst);
}

fn reach_their_handler() -> Result<()> {
    handle(libc::SIGUSR1, count, 0)?;
    for expected in 1..=100 {
        send_to_self(libc::SIGUSR1)?;
        let seen = COUNT.load(Ordering::SeqCst);
        ensure!(
            seen == expected,
            "after {expected} signals the handler has run {seen} times"
        );
    }
    let sender = SENDER.load(Ordering::SeqCst);
    ensure!(
        sender as u32 == std::process::id(),
        "the sender is given as {sender}"
    );
    Ok(())
}

fn wait_while_blocked() -> Result<()> {
    handle(libc::SIGUSR1, count, 0)?;
    mask(libc::SIG_BLOCK, libc::SIGUSR1)?;
    send_to_self(libc::SIGUSR1)?;
    send_to_self(libc::SIGUSR1)?;
    ensure!(
        COUNT.load(Ordering::SeqCst) == 0,
        "a blocked signal was delivered"
    );
    // SAFETY: the set is initialised by `sigpending`.
    let pending = unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        checked(libc::sigpending(&mut set))?;
        libc::sigismember(&set, libc::SIGUSR1)
    };
    ensure!(pending == 1, "it is not pending");
    mask(libc::SIG_UNBLOCK, libc::SIGUSR1)?;
    let seen = COUNT.load(Ordering::SeqCst);
    ensure!(
        seen == 1,
        "two pending signals of a kind were delivered {seen} times instead of once"
    );
    Ok(())
}

/// Uses the vector registers, so that a frame that does not keep them is noticed.
extern "C" fn scribble(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let mut value = COUNT.fetch_add(1, Ordering::SeqCst) as f64;
    for _ in 0..50 {
        value = (value + 2.0).sqrt();
    }
    SCRIBBLED.store(value.to_bits(), Ordering::SeqCst);
}

static SCRIBBLED: AtomicU64 = AtomicU64::new(0);

fn keep_registers() -> Result<()> {
    handle(libc::SIGUSR1, scribble, 0)?;
    let work = || {
        let (mut float, mut integer) = (1.0f64, 1u64);
        for step in 0..3_000_000u64 {
            float = (float + step as f64).sqrt();
            integer = integer.rotate_left(5) ^ integer.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step;
        }
        (float, integer)
    };
    let undisturbed = work();
    // SAFETY: the call takes nothing.
    let me = unsafe { libc::pthread_self() };
    let done = std::sync::atomic::AtomicBool::new(false);
    let disturbed = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                // SAFETY: the thread that is signalled is in the scope around this one: it lives.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                thread::sleep(Duration::from_micros(500));
            }
        });
        let disturbed = work();
        done.store(true, Ordering::SeqCst);
        disturbed
    });
    ensure!(
        COUNT.load(Ordering::SeqCst) > 0,
        "no signal arrived during the work"
    );
    ensure!(
        undisturbed == disturbed,
        "undisturbed {undisturbed:?}, with signals {disturbed:?}"
    );
    Ok(())
}

extern "C" fn outer(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // The inner signal must interrupt this handler; the outer one again must wait for its end.
    let before = COUNT.load(Ordering::SeqCst);
    let sent = send_to_self(libc::SIGUSR2).is_ok();
    if sent && COUNT.load(Ordering::SeqCst) == before + 1 {
        DEPTH.fetch_add(1, Ordering::SeqCst);
    }
}

static DEPTH: AtomicUsize = AtomicUsize::new(0);

fn nest() -> Result<()> {
    handle(libc::SIGUSR1, outer, 0)?;
    handle(libc::SIGUSR2, count, 0)?;
    send_to_self(libc::SIGUSR1)?;
    ensure!(
        DEPTH.load(Ordering::SeqCst) == 1,
        "the inner signal did not interrupt the outer handler"
    );
    Ok(())
}

/// Runs `call` while another thread sends SIGUSR1 to this one again and again: if the call waits
/// long enough, some come while it does.
fn under_signals<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: the call takes nothing.
    let me = unsafe { libc::pthread_self() } as usize;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                // SAFETY: the thread waits for this one's end, so it lives.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(1));
            }
        });
        let result = call();
        over.store(true, Ordering::SeqCst);
        result
    })
}

fn interrupt_a_sleep() -> Result<()> {
    handle(libc::SIGUSR1, count, libc::SA_RESTART)?;
    let request = libc::timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut left = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let (result, error, slept) = under_signals(|| {
        let start = Instant::now();
        // SAFETY: both point to valid structures.
        let result = unsafe { libc::nanosleep(&request, &mut left) };
        (result, io::Error::last_os_error(), start.elapsed())
    });
    ensure!(
        result == -1 && error.kind() == io::ErrorKind::Interrupted,
        "nanosleep returned {result}: {error}"
    );
    let left = Duration::new(left.tv_sec as u64, left.tv_nsec as u32);
    let asked = Duration::from_secs(20);
    ensure!(
        left <= asked && left + slept + Duration::from_millis(1) >= asked,
        "it slept {slept:?}, {left:?} are left"
    );
    Ok(())
}

fn restart_a_read() -> Result<()> {
    handle(libc::SIGUSR1, count, libc::SA_RESTART)?;
    let (mut reader, mut writer) = io::pipe()?;
    let writing = thread::spawn(move || {
        while COUNT.load(Ordering::SeqCst) < 50 {
            thread::sleep(Duration::from_millis(1));
        }
        io::Write::write_all(&mut writer, b"x")
    });
    let mut byte = [0];
    // The library's `read` reports an interrupted call; with SA_RESTART there is none.
    let read = under_signals(|| io::Read::read(&mut reader, &mut byte))?;
    writing.join().expect("the thread ended well")?;
    ensure!(read == 1, "read {read} bytes");
    handle(libc::SIGUSR1, count, 0)?;
    let (mut reader, _writer) = io::pipe()?;
    let result = under_signals(|| io::Read::read(&mut reader, &mut byte));
    ensure!(
        result.is_err_and(|error| error.kind() == io::ErrorKind::Interrupted),
        "without SA_RESTART the read was not interrupted"
    );
    Ok(())
}

extern "C" fn note_thread(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the call takes nothing and may be made in a handler.
    HANDLED_BY.store(unsafe { libc::gettid() }, Ordering::SeqCst);
}

static HANDLED_BY: AtomicI32 = AtomicI32::new(0);

fn reach_one_thread() -> Result<()> {
    handle(libc::SIGUSR1, note_thread, 0)?;
    // Blocked here, so a signal to the process has one thread to go to.
    mask(libc::SIG_BLOCK, libc::SIGUSR1)?;
    let thread = thread::spawn(|| -> Result<i32> {
        mask(libc::SIG_UNBLOCK, libc::SIGUSR1)?;
        send_to_self(libc::SIGUSR1)?;
        let start = Instant::now();
        while HANDLED_BY.load(Ordering::SeqCst) == 0 && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the call takes nothing.
        Ok(unsafe { libc::gettid() })
    });
    let id = thread.join().expect("the thread ended well")?;
    let handled_by = HANDLED_BY.load(Ordering::SeqCst);
    ensure!(
        handled_by == id,
        "thread {handled_by} handled the signal, not {id}"
    );
    Ok(())
}

static STACK_USED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_stack(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let local = 0u8;
    STACK_USED.store(ptr::from_ref(&local) as usize, Ordering::SeqCst);
}

fn use_the_alternate_stack() -> Result<()> {
    let mut area = vec![0u8; 64 * 1024];
    let stack = libc::stack_t {
        ss_sp: area.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: area.len(),
    };
    // SAFETY: the area outlives its use as a stack: the stack is switched off again below.
    checked(unsafe { libc::sigaltstack(&stack, ptr::null_mut()) })?;
    handle(libc::SIGUSR1, note_stack, libc::SA_ONSTACK)?;
    send_to_self(libc::SIGUSR1)?;
    let off = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: no handler runs on the alternate stack now.
    checked(unsafe { libc::sigaltstack(&off, ptr::null_mut()) })?;
    let used = STACK_USED.load(Ordering::SeqCst);
    ensure!(
        area.as_ptr_range().contains(&(used as *const u8)),
        "the handler ran on another stack, at {used:#x}"
    );
    Ok(())
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static FAULT_ADDRESS: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn mend(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel passes a valid siginfo with an address for SIGSEGV; the page is the
    // check's own mapping.
    unsafe {
        FAULT_ADDRESS.store((*info).si_addr() as usize, Ordering::SeqCst);
        libc::mprotect(
            PAGE.load(Ordering::SeqCst) as *mut c_void,
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
        );
    }
}

fn page_fault_can_be_mended() -> Result<()> {
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    ensure!(
        page != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    PAGE.store(page as usize, Ordering::SeqCst);
    handle(libc::SIGSEGV, mend, 0)?;
    let place = page.cast::<u8>().wrapping_add(123);
    // SAFETY: the place is in the mapping above; the handler makes it writable when the write
    // faults.
    let value = unsafe {
        place.write_volatile(42);
        place.read_volatile()
    };
    let (faults, address) = (
        FAULTS.load(Ordering::SeqCst),
        FAULT_ADDRESS.load(Ordering::SeqCst),
    );
    ensure!(
        value == 42 && faults == 1 && address == place as usize,
        "value {value}, {faults} faults, at {address:#x} for {place:p}"
    );
    Ok(())
}

extern "C" fn skip_division(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel passes a valid siginfo and context to a handler with SA_SIGINFO. The
    // faulting instruction is the two-byte division of the check below, and execution goes on after
    // it.
    unsafe {
        FAULT_ADDRESS.store((*info).si_addr() as usize, Ordering::SeqCst);
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        HANDLED_BY.store(registers[libc::REG_R12 as usize] as i32, Ordering::SeqCst);
        registers[libc::REG_RIP as usize] += 2;
        registers[libc::REG_R12 as usize] = 99;
    }
}

fn division_fault_tells_its_place() -> Result<()> {
    handle(libc::SIGFPE, skip_division, 0)?;
    let (place, r12): (usize, u64);
    // SAFETY: the division by zero raises SIGFPE, whose handler goes on after the two bytes of
    // `div ecx`; rax and rdx are declared as lost, r12 is changed by the handler and declared so.
    unsafe {
        std::arch::asm!(
            "lea {place}, [rip + 2f]",
            "xor ecx, ecx",
            "mov eax, 1",
            "xor edx, edx",
            "2: div ecx",
            place = out(reg) place,
            out("rax") _, out("rcx") _, out("rdx") _,
            inout("r12") 4711u64 => r12,
        );
    }
    let address = FAULT_ADDRESS.load(Ordering::SeqCst);
    ensure!(
        FAULTS.load(Ordering::SeqCst) == 1 && address == place,
        "the fault is given at {address:#x}, it is at {place:#x}"
    );
    let seen = HANDLED_BY.load(Ordering::SeqCst);
    ensure!(
        seen == 4711 && r12 == 99,
        "the handler saw {seen} in r12 and left {r12}"
    );
    Ok(())
}

fn alarm_arrives() -> Result<()> {
    handle(libc::SIGALRM, count, 0)?;
    let timer = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 20_000,
        },
        it_value: libc::timeval {
            tv_sec: 0,
            tv_usec: 20_000,
        },
    };
    let start = Instant::now();
    // SAFETY: the structure is valid, and nothing is returned through the null pointer.
    checked(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) })?;
    while COUNT.load(Ordering::SeqCst) < 5 && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(5));
    }
    let seen = COUNT.load(Ordering::SeqCst);
    ensure!(seen >= 5, "{seen} alarms in {:?}", start.elapsed());
    ensure!(
        start.elapsed() >= Duration::from_millis(100),
        "5 alarms of 20 ms came within {:?}",
        start.elapsed()
    );
    Ok(())
}

static WORKER: AtomicI32 = AtomicI32::new(0);

/// Runs `check` with the number of a thread of this process that is not its first, and has SIGUSR2
/// blocked.
fn with_thread(check: impl FnOnce(i32) -> Result<()>) -> Result<()> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = mask(libc::SIG_BLOCK, libc::SIGUSR2);
            // SAFETY: the call takes nothing.
            WORKER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        });
        while WORKER.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let result = check(WORKER.load(Ordering::SeqCst));
        over.store(true, Ordering::SeqCst);
        result
    })
}

fn thread_number_means_its_process() -> Result<()> {
    handle(libc::SIGUSR2, count, 0)?;
    let own = i64::from(std::process::id());
    with_thread(|tid| {
        is(
            call!(SYS_kill, tid, 0),
            0,
            "kill of a thread's number with nothing",
        )?;
        is(
            call!(SYS_kill, tid, libc::SIGUSR2),
            0,
            "kill of a thread's number",
        )?;
        // It is the process's, and the thread that was named does not take it.
        ensure!(COUNT.load(Ordering::SeqCst) == 1, "nobody took it");
        // SAFETY: all zeroes is a siginfo.
        let mut info: siginfo_t = unsafe { mem::zeroed() };
        (info.si_signo, info.si_code) = (libc::SIGUSR2, libc::SI_QUEUE);
        let queue = |pid: i64, info: &siginfo_t| {
            call!(SYS_rt_sigqueueinfo, pid, libc::SIGUSR2, ptr::from_ref(info))
        };
        is(
            queue(tid.into(), &info),
            0,
            "rt_sigqueueinfo of a thread's number",
        )?;
        ensure!(COUNT.load(Ordering::SeqCst) == 2, "nobody took the second");
        // Only a thread may say of itself that its signal is the kernel's.
        info.si_code = libc::SI_USER;
        is(queue(own, &info), 0, "a thread about itself")?;
        fails(
            queue(tid.into(), &info),
            libc::EPERM,
            "a thread about another",
        )
    })
}

fn descriptors_signal_is_the_infos() -> Result<()> {
    handle(libc::SIGUSR1, count, 0)?;
    let own = Fd::new(call!(SYS_pidfd_open, std::process::id(), 0), "pidfd_open")?;
    // SAFETY: all zeroes is a siginfo.
    let mut info: siginfo_t = unsafe { mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGUSR2, libc::SI_QUEUE);
    let send = |info: &siginfo_t| {
        call!(
            SYS_pidfd_send_signal,
            own.0,
            libc::SIGUSR1,
            ptr::from_ref(info),
            0
        )
    };
    fails(
        send(&info),
        libc::EINVAL,
        "another signal than the information's",
    )?;
    info.si_signo = libc::SIGUSR1;
    is(send(&info), 0, "the information's")?;
    ensure!(
        COUNT.load(Ordering::SeqCst) == 1,
        "the handler has run another number of times"
    );
    fails(
        call!(SYS_pidfd_send_signal, own.0, libc::SIGUSR1, 0, 1u32 << 20),
        libc::EINVAL,
        "a flag there is not",
    )
}

extern "C" fn no_room(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let (signal, code) = unsafe { ((*info).si_signo, (*info).si_code) };
    if signal == libc::SIGSEGV && code == SI_KERNEL {
        FAULTS.fetch_add(1, Ordering::SeqCst);
        // Now there is room.
        // SAFETY: the stack is the one of `frame_that_has_no_room`, which is mapped until the end.
        unsafe {
            libc::mprotect(
                STACK.load(Ordering::SeqCst) as *mut c_void,
                STACK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
    }
}

const SI_KERNEL: i32 = 0x80;
const STACK_SIZE: usize = 1 << 16;
static STACK: AtomicUsize = AtomicUsize::new(0);

/// A signal whose frame has no room is told by SIGSEGV, which is handled on another stack; the
/// first signal is lost.
fn frame_that_has_no_room() -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let stack = call!(SYS_mmap, 0, STACK_SIZE, libc::PROT_READ, flags, -1i32, 0);
    ensure!(stack > 0, "mmap: {stack}");
    STACK.store(stack as usize, Ordering::SeqCst);
    let alternate = libc::stack_t {
        ss_sp: stack as *mut c_void,
        ss_flags: 0,
        ss_size: STACK_SIZE,
    };
    is(
        call!(SYS_sigaltstack, &raw const alternate, 0),
        0,
        "sigaltstack",
    )?;
    handle(libc::SIGHUP, count, libc::SA_ONSTACK)?;
    handle(libc::SIGSEGV, no_room, 0)?;
    for round in 1..=3 {
        is(
            call!(SYS_mprotect, stack, STACK_SIZE, libc::PROT_READ),
            0,
            "mprotect",
        )?;
        send_to_self(libc::SIGHUP)?;
        ensure!(
            FAULTS.load(Ordering::SeqCst) == round,
            "SIGSEGV was not handled"
        );
        ensure!(
            COUNT.load(Ordering::SeqCst) == round - 1,
            "the signal was handled, too"
        );
        let mut blocked = [0u64; 1];
        is(
            call!(SYS_rt_sigprocmask, 0, 0, blocked.as_mut_ptr(), 8),
            0,
            "rt_sigprocmask",
        )?;
        ensure!(blocked == [0], "left blocked: {blocked:x?}");
        send_to_self(libc::SIGHUP)?;
        ensure!(
            COUNT.load(Ordering::SeqCst) == round,
            "the next was not handled"
        );
    }
    // With that handler on the same stack there is no way on.
    in_child(|| {
        handle(libc::SIGSEGV, no_room, libc::SA_ONSTACK)?;
        is(
            call!(SYS_mprotect, stack, STACK_SIZE, libc::PROT_READ),
            0,
            "mprotect",
        )?;
        send_to_self(libc::SIGHUP)?;
        ensure!(false, "the process lives");
        Ok(())
    })
    .map_or_else(
        |error| {
            ensure!(
                error.to_string().contains("status 0xb")
                    || error.to_string().contains("status 0x8b"),
                "{error}"
            );
            Ok(())
        },
        |()| Err(anyhow::anyhow!("the process ended well")),
    )
}

/// Whether there is the process is looked at before whether there is the signal; `rt_sigpending(2)`
/// fills as much as it is given.
fn errors_in_order() -> Result<()> {
    const NOBODY: c_int = 0x3fff_ffff;
    let error = |result: libc::c_long| {
        if result == -1 {
            io::Error::last_os_error().raw_os_error()
        } else {
            None
        }
    };
    let mut pending = [0xffu8; 8];
    // SAFETY: numbers, and memory of this function's own that is as long as the call is told.
    unsafe {
        ensure!(error(libc::kill(NOBODY, 65).into()) == Some(libc::ESRCH));
        ensure!(error(libc::kill(libc::getpid(), 65).into()) == Some(libc::EINVAL));
        let mut info: siginfo_t = mem::zeroed();
        info.si_code = libc::SI_QUEUE;
        ensure!(
            error(libc::syscall(
                libc::SYS_rt_sigqueueinfo,
                NOBODY,
                65,
                &raw mut info
            )) == Some(libc::ESRCH)
        );
        ensure!(
            error(libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                0,
                0,
                libc::SIGUSR1,
                &raw mut info
            )) == Some(libc::EINVAL)
        );
        ensure!(
            error(libc::syscall(
                libc::SYS_rt_sigpending,
                pending.as_mut_ptr(),
                4
            ))
            .is_none()
        );
        ensure!(
            error(libc::syscall(
                libc::SYS_rt_sigpending,
                pending.as_mut_ptr(),
                9
            )) == Some(libc::EINVAL)
        );
    }
    ensure!(
        pending == [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        "{pending:?}"
    );
    Ok(())
}

static FLAGS_AT_TRAP: AtomicU64 = AtomicU64::new(0);

extern "C" fn trapped(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid context for the time of the handler.
    let flags =
        unsafe { (*context.cast::<ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] };
    FLAGS_AT_TRAP.fetch_or(flags as u64, Ordering::SeqCst);
}

/// The flag of nested tasks, of which 64-bit programs have no use, is a program's as others are:
/// a page fault, a system call, and a trap after each instruction with its handler leave it.
fn nested_task_flag_stays() -> Result<()> {
    const NESTED_TASK: u64 = 1 << 14;
    const TRAP: u64 = 1 << 8;
    handle(libc::SIGTRAP, trapped, 0)?;
    for trap in [0, TRAP] {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = call!(
            SYS_mmap,
            0,
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            kind,
            -1i32,
            0
        );
        ensure!(page > 0, "mmap: {page}");
        let flags: u64;
        // SAFETY: the flags are as they were before at the end; the store is to memory that is
        // this function's, and getpid changes nothing but the registers that are named.
        unsafe {
            asm!(
                "pushfq",
                "pop {before}",
                "mov {flags}, {before}",
                "or {flags}, {set}",
                "push {flags}",
                "popfq",
                "mov byte ptr [{page}], 1",
                "syscall",
                "pushfq",
                "pop {flags}",
                "push {before}",
                "popfq",
                before = out(reg) _,
                flags = out(reg) flags,
                set = in(reg) NESTED_TASK | trap,
                page = in(reg) page,
                inout("rax") libc::SYS_getpid => _,
                out("rcx") _,
                out("r11") _,
            );
        }
        let set = flags & (NESTED_TASK | TRAP);
        ensure!(set == NESTED_TASK | trap, "{trap:#x}: {set:#x}");
    }
    let seen = FLAGS_AT_TRAP.load(Ordering::SeqCst);
    ensure!(
        seen & (NESTED_TASK | TRAP) == NESTED_TASK | TRAP,
        "{seen:#x}"
    );
    Ok(())
}
