//! Device drivers, in safe code over what the guard grants: ports and interrupt lines.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod uart;
