//! The `skerry` program as a library: everything but the entry point (see `docs/cli.md`).
//!
//! What talks to the kernel is behind [`device::Device`], so that all the rest runs in ordinary
//! unit tests.
//!
//! | module | subject |
//! |---|---|
//! | [`cli`], `arguments` | the command line: what is done, and what there is |
//! | [`device`], [`kernel`] | the calls of `/dev/skerry`; the real ones (the only `unsafe`) |
//! | [`instances`] | finding instances by name, creating, ending |
//! | [`devices`] | PCI functions for instances |
//! | [`managed`], [`state`] | instances with what is remembered of them; the files of that |
//! | [`restart`], [`monitor`] | restart policies, and who carries them out |
//! | [`apply`] | `apply`, `diff`, `validate`: sets of instances |
//! | [`autoscale`] | `autoscale`: CPUs move by latency |
//! | [`loans`] | `--class`: CPUs that are lent by rank |
//! | [`run`] | `run`, `start -a`, `attach`: a program's streams, signals and status |
//! | [`logs`], [`events`] | `logs`; `events` |
//! | [`exec`] | `exec`: a program beside the first one |
//! | [`copy`] | `cp`: files from an instance, and into it |
//! | [`show`] | tables and JSON |
//! | [`doctor`] | `doctor`: what is wrong with the machine |
//! | [`stats`] | `stats`: what instances use |
//! | [`metrics`] | `metrics`: figures for Prometheus |
//! | [`rootfs`] | root file systems out of folders and archives |
//! | [`top`], [`counters`] | `top`; the kernel's counters |
//! | [`trace`], [`chrome_trace`] | `trace`: recording, and the file it makes |
//! | [`networks`], [`subnets`] | networks of an instance; `network`: making them |
//! | [`name_servers`] | name servers that instances are told of |
//! | [`names`], [`size`] | names and sizes |
//! | [`ports`] | published ports |
//! | [`priority`] | before other programs |
//! | [`pages`] | manual pages and completions, made of the command line |
#![deny(unsafe_code)]

pub mod apply;
mod arguments;
pub mod autoscale;
pub mod chrome_trace;
pub mod cli;
pub mod copy;
pub mod counters;
pub mod device;
pub mod devices;
pub mod doctor;
pub mod events;
pub mod exec;
pub mod failure;
mod functions;
pub mod instances;
pub mod kernel;
pub mod loans;
pub mod logs;
pub mod managed;
pub mod metrics;
#[cfg(test)]
mod mock;
pub mod monitor;
pub mod name_servers;
pub mod names;
pub mod networks;
pub mod pages;
pub mod peers;
pub mod plug;
pub mod ports;
pub mod priority;
pub mod resize;
pub mod restart;
pub mod root_disk;
pub mod rootfs;
pub mod run;
pub mod show;
pub mod size;
pub mod state;
pub mod stats;
mod streams;
pub mod subnets;
mod terminal;
pub mod top;
pub mod trace;
