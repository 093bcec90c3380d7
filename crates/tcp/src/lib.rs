//! The Transmission Control Protocol as an engine without input and output: segments and times go
//! in, segments and times come out (`docs/tcp.md`).
//!
//! A [`Connection`] is driven by three calls. [`Connection::arrive`] takes a segment of its peer;
//! [`Connection::next`] gives the next segment that is due, until there is none; then
//! [`Connection::deadline`] says when to ask again if nothing happens before. The bytes are the
//! caller's, behind the trait [`Buffers`]. The engine knows no clock, no random numbers, no
//! addresses beyond what [`Secret`] hashes, no locks; it takes memory fallibly, for what came out
//! of order and for one record of each segment that is outstanding.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod congestion;
mod connection;
mod cubic;
mod handshake;
mod isn;
mod listener;
mod offload;
mod rack;
mod reassembly;
mod rtt;
mod scoreboard;
mod segment;
mod seq;
mod syn_cookies;
mod time_wait;

pub use config::{Config, KeepAlive};
pub use congestion::Algorithm;
pub use connection::{
    Arrival, Buffers, Connection, Error, Gone, Info, Outgoing, Phase, Repairs, Space, State,
};
pub use handshake::{Ends, Handshake};
pub use isn::Secret;
pub use listener::{
    CookiePolicy, Incoming, ListenConfig, ListenCounts, Listener, Reaction, defer_accept_retries,
    defer_accept_seconds,
};
pub use offload::Merged;
pub use segment::{
    Flags, HEADER, Header, LONGEST_HEADER, Malformed, Options, SackBlocks, Segment, Timestamps,
    checksum,
};
pub use seq::{Position, Seq};
pub use syn_cookies::SynCookies;
pub use time_wait::{TimeWait, Verdict};

/// Nanoseconds: a time since some beginning, or a span.
pub type Nanos = u64;

/// A millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// A second.
pub const SECOND: Nanos = 1000 * MILLISECOND;
