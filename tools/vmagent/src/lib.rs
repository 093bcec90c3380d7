//! The wire between `cargo xtask vm` on the host and `vmagent` in the machine.
//!
//! The two talk over one serial line (COM2, `/dev/ttyS1`) in frames: a kind byte, the payload's
//! length as a little-endian `u32`, the payload. The line is reliable but shallow, and nothing on
//! it is flow controlled by hardware, so standard input is flow controlled here: the host may have
//! at most [`STDIN_WINDOW`] bytes under way that the agent has not yet handed to the command, and
//! the agent returns [`Kind::Credit`] for what it has handed on.
//!
//! A run is: the run's random [`Config::nonce`] from the agent, as firmware and boot loaders may
//! have written to the line before; `Ready` from the agent; any mixture of `Stdin`, `StdinEof`,
//! `Signal` (to the machine) and `Stdout`, `Stderr`, `Credit` (to the host); `Exit` from the agent;
//! `Bye` from the host, on which the agent powers the machine off.
//!
//! With a terminal the command owns the line itself. The agent then sends `Ready`, the line carries
//! plain terminal bytes both ways, and its end is marked by the nonce once more, followed by an
//! `Exit` frame.
#![forbid(unsafe_code)]

pub mod config;
pub mod frame;

pub use config::Config;
pub use frame::{Decoder, Frame, Kind};

/// Bytes of standard input that may be under way to the command and not yet credited.
pub const STDIN_WINDOW: usize = 2048;

/// The longest payload either side sends in one frame, in bytes.
pub const MAX_PAYLOAD: usize = 4096;
