//! Differential execution: short programs of system calls that run on Skerry and on Linux, and must
//! do the same on both.
//!
//! The library is what both ends share and makes no system call: the specification of the calls
//! ([`spec`], from the files in `spec/`), the generator that makes a program of a seed
//! ([`generate`]), the programs that show what the specification lists ([`directed`]) and how
//! signals meet who waits ([`interruptions`]), programs and their text ([`program`]), what may
//! differ between two kernels ([`normalise`]), and what was seen ([`coverage`]). The executor
//! (`src/bin/executor`) is a static program that runs in the machine; `cargo xtask diff` drives one
//! on each kernel. `docs/differential.md` describes the whole.
#![forbid(unsafe_code)]

pub mod coverage;
pub mod directed;
pub mod errno;
pub mod generate;
pub mod interruptions;
pub mod layout;
pub mod minimise;
pub mod normalise;
pub mod program;
pub mod random;
pub mod record;
pub mod spec;
