//! A program that computes until hardware loses some of its memory.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, mem, ptr};

/// Code of the signal, plus one, and how many bits of its address are not known.
static TOLD: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_bus_error(_: i32, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO; `si_addr_lsb` is
    // behind the address, at 24.
    let (code, bits) = unsafe {
        (
            (*info).si_code,
            info.cast::<u8>().add(24).cast::<i16>().read(),
        )
    };
    TOLD.store(
        (u64::from(code as u32) + 1) | ((bits as u64) << 32),
        Ordering::Release,
    );
}

/// `machine-tests bad-memory`: says what the signal says that it gets.
pub fn run() -> ExitCode {
    // SAFETY: all-zero is a valid `sigaction`; the handler only stores into a static.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
    println!("computes");
    // The output may be a pipe, and whoever reads it wants to know now.
    let _ = io::stdout().flush();
    let told = loop {
        match TOLD.load(Ordering::Acquire) {
            0 => {}
            told => break told,
        }
    };
    println!("code {}, {} bits", (told as u32) - 1, told >> 32);
    ExitCode::SUCCESS
}
