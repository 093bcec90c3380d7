//! The tool's own priority: what manages a machine goes before what that machine runs, or it could
//! not be used to end a program that takes all there is.

use std::sync::OnceLock;

use rustix::process::{getpriority_process, setpriority_process};

/// The most urgent nice level.
const URGENT: i32 = -20;

/// Nice level that the tool was started with, if it has another one now.
static OWN: OnceLock<i32> = OnceLock::new();

/// Gives the tool the most urgent nice level. Who may not do that keeps its own.
pub fn raise() {
    if let Ok(own) = getpriority_process(None)
        && setpriority_process(None, URGENT).is_ok()
    {
        let _ = OWN.set(own);
    }
}

/// Gives the tool its own nice level again, for what is no management: to pass on what a program
/// writes must not take the CPU from others.
pub fn lower() {
    if let Some(own) = OWN.get() {
        let _ = setpriority_process(None, *own);
    }
}
