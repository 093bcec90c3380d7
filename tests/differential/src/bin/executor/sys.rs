//! The few system calls that the executor makes for itself, and the one that makes the calls of
//! programs.

use std::arch::asm;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::AtomicU32;

/// The signal that interrupts a call that waits; programs do not use it.
pub const INTERRUPT: i32 = 63;

/// Makes a system call exactly as it is given; returns what the kernel returned.
pub fn call(number: i64, arguments: [u64; 6]) -> i64 {
    let result;
    // SAFETY: not sound in general: this is what a program under test does to its process. The
    // process is a child made for that, the memory it may be told to write lies at addresses of
    // `layout`, and whatever else happens ends with the child.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Makes a call that makes a process or thread, whose whole life is to end; returns what the kernel
/// returned to the caller.
pub fn call_and_end_child(number: i64, arguments: [u64; 6]) -> i64 {
    let result;
    // SAFETY: as for `call`. The child, which may share the caller's memory and stack, touches
    // neither: it has registers only.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, 60",
            "xor edi, edi",
            "syscall",
            "2:",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Has a child make a call that replaces its program. Returns 0 if that ended well, the call's
/// error if it failed.
pub fn call_in_child(number: i64, arguments: [u64; 6]) -> i64 {
    let child: i64;
    // SAFETY: as for `call`. The child of vfork(2), which shares memory and stack, touches neither:
    // it has registers only.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rax, r9",
            "syscall",
            "neg eax",
            "mov edi, eax",
            "mov eax, 231",
            "syscall",
            "2:",
            inlateout("rax") libc::SYS_vfork => child,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") number,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match reap(child as i32, true) {
        _ if child < 0 => child,
        Some((_, status)) if libc::WIFEXITED(status) => -i64::from(libc::WEXITSTATUS(status)),
        _ => -i64::from(libc::ECHILD),
    }
}

/// Maps memory at a fixed address.
pub fn map(address: u64, length: u64, protection: i32, flags: i32) {
    // SAFETY: the addresses are those of `layout`, where nothing of the executor's own is.
    let at = unsafe {
        libc::mmap(
            address as *mut _,
            length as usize,
            protection,
            flags | libc::MAP_FIXED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "no memory at {address:#x}");
}

/// A copy of `length` bytes at an address of the program's memory.
pub fn peek(address: u64, length: usize) -> Vec<u8> {
    // SAFETY: the caller names memory of `layout` that is mapped; a program that unmapped it dies
    // of this, as a child may.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }.to_vec()
}

/// Puts bytes at an address of the program's memory.
pub fn poke(address: u64, bytes: &[u8]) {
    // SAFETY: as for `peek`; nothing of the executor's own is there.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

/// Sleeps until the word is no longer `value`, somebody wakes, or the time is over.
pub fn futex_wait(word: &AtomicU32, value: u32, milliseconds: Option<i64>) {
    let time = milliseconds.map(|time| libc::timespec {
        tv_sec: time / 1000,
        tv_nsec: time % 1000 * 1_000_000,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word and the time live as long as the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            time,
        )
    };
}

/// Wakes all who sleep on the word.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is a reference's.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// `fork(2)`: 0 in the child.
pub fn fork() -> i32 {
    // SAFETY: whoever forks has one thread, so the child may do everything.
    unsafe { libc::fork() }
}

/// Ends this process at once.
pub fn exit(status: i32) -> ! {
    // SAFETY: takes a number.
    unsafe { libc::_exit(status) }
}

/// The calling thread's number.
pub fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Number of times the calling thread went to sleep.
pub fn voluntary_switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure lives through the call, and all zeroes are one, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw as u64
}

/// Sends a signal to a thread of a process.
pub fn signal_thread(process: i32, thread: i32, signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}

/// Sends a signal to a process, or to all that can be reached with -1.
pub fn kill(process: i32, signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(process, signal) };
}

/// The status of a child that has ended, or with `wait` will end; none if there is no such child,
/// or it runs.
pub fn reap(child: i32, wait: bool) -> Option<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: the status is a variable of this function's. __WALL: children that programs made
        // by clone(2) without a signal.
        let pid = unsafe {
            libc::waitpid(
                child,
                &mut status,
                if wait { 0 } else { libc::WNOHANG } | 0x4000_0000,
            )
        };
        match pid {
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            1.. => return Some((pid, status)),
            _ => return None,
        }
    }
}

/// Becomes the ordinary user, without capabilities.
pub fn become_nobody(user: u32) {
    let ids = [u64::from(user); 3];
    call(libc::SYS_setgroups, [0, 0, 0, 0, 0, 0]);
    call(libc::SYS_setresgid, [ids[0], ids[1], ids[2], 0, 0, 0]);
    call(libc::SYS_setresuid, [ids[0], ids[1], ids[2], 0, 0, 0]);
}

/// A call with up to three numbers or addresses of strings.
pub fn simple(number: i64, arguments: [u64; 3]) -> i64 {
    call(number, [arguments[0], arguments[1], arguments[2], 0, 0, 0])
}

/// Brings the interface `lo` up, which Linux leaves to user space.
pub fn raise_loop() {
    const SIOCSIFFLAGS: u64 = 0x8914;
    const UP_AND_RUNNING: u8 = 0x41;
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = UP_AND_RUNNING;
    let socket = simple(
        libc::SYS_socket,
        [libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0],
    ) as u64;
    simple(
        libc::SYS_ioctl,
        [socket, SIOCSIFFLAGS, request.as_ptr() as u64],
    );
    simple(libc::SYS_close, [socket, 0, 0]);
}

/// The address of a string, for [`simple`].
pub fn address(text: &CStr) -> u64 {
    text.as_ptr() as u64
}

/// The address of the code that ends a signal handler, for `sa_restorer`.
pub fn restorer() -> u64 {
    restore as *const () as u64
}

/// Return address of signal handlers (`SA_RESTORER`).
#[unsafe(naked)]
extern "C" fn restore() {
    core::arch::naked_asm!("mov eax, 15", "syscall")
}

/// Takes back what Rust's runtime set up for overflows of the stack: a signal stack for each
/// thread, at an address of the kernel's choice, and handlers.
pub fn forget_runtime() {
    let none = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    simple(libc::SYS_sigaltstack, [&raw const none as u64, 0, 0]);
    handle(libc::SIGSEGV, 0);
    handle(libc::SIGBUS, 0);
}

/// Makes `handler` the handler of a signal, without flags, so that it interrupts calls.
pub fn handle(signal: i32, handler: u64) {
    #[repr(C)]
    struct Action {
        handler: u64,
        flags: u64,
        restorer: u64,
        mask: u64,
    }
    let action = Action {
        handler,
        flags: 0x0400_0000,
        restorer: restorer(),
        mask: 0,
    };
    call(
        libc::SYS_rt_sigaction,
        [signal as u64, &raw const action as u64, 0, 8, 0, 0],
    );
}
