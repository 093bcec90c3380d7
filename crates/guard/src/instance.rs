//! Calls of an instance about itself: its window, its boot blob, its end.

use core::sync::atomic::Ordering;

use abi::Window;
use abi::window::State;

use crate::arch::{self, timer};
use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::{heartbeat, ipi, park, role};

/// The window shared with the supervisor.
///
/// # Panics
/// In the supervisor.
#[must_use]
pub fn window() -> &'static Window {
    role::window().expect("the supervisor has no window")
}

/// The boot blob: the command to run, as put together by the tool that created the instance
/// (`abi::boot`).
#[must_use]
pub fn boot_blob() -> &'static [u8] {
    let descriptor = role::descriptor();
    let len = descriptor.boot_blob_len as usize;
    if len == 0 {
        return &[];
    }
    // SAFETY: the descriptor validated, so the frames are the instance's and contiguous; they stay
    // reserved for ever and nobody writes to them.
    unsafe { core::slice::from_raw_parts(direct::ptr(Frame(descriptor.boot_blob_frame)), len) }
}

/// Notes the moment at which the first program begins, once, and tells the supervisor that the
/// instance runs.
pub fn mark_first_user() {
    let window = window();
    let first = &window.status.first_user_tsc;
    if first
        .compare_exchange(0, timer::tsc(), Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        window.set_running();
        heartbeat::wake();
        ipi::ring_peer();
    }
}

/// Ends this instance: its status is `code`, and all its CPUs go to the park page.
pub fn exit(code: u32) -> ! {
    arch::stop_other_cpus();
    if let Some(window) = role::window() {
        window.status.exit_code.store(code, Ordering::Relaxed);
        window.set_state(State::Exited);
        ipi::ring_peer();
    }
    park::enter()
}
