//! Users, groups and capabilities: `setuid(2)`, `capset(2)` and their relatives. The rules are in
//! [`crate::state::credentials`].

pub mod capability;
pub mod setuid;
