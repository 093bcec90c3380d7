//! The kernel image: start-up by role, wiring of the crates, nothing else.
//!
//! The guard calls [`kernel_main`] on the instance's first CPU and [`kernel_secondary`] on each
//! further one. Everything else happens in threads: [`start::main`] sets the file system up, starts
//! what the role has, and then the first program.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

extern crate alloc;

use guard::Authority;

mod exec_program;
mod proc_skerry;
mod root;
mod start;
mod trace;

guard::entry!(kernel_main, kernel_secondary);

fn kernel_main(authority: Authority) -> ! {
    task::init(&authority.boot);
    if task::spawn("start", None, || start::main(authority)).is_err() {
        panic!("no memory for the first thread");
    }
    task::run_cpu()
}

fn kernel_secondary() -> ! {
    task::run_cpu()
}
