//! The calls that open and change names. Each does what the system call of its name does, short of
//! reading its arguments; each either succeeds whole or changes nothing.

mod namei;
mod open;
mod setattr;

pub use namei::{CreationMode, Removal, create_node, link, remove, rename};
pub use open::{dentry_open, open, open_exec, open_o_path};
pub use setattr::{TimeUpdate, chmod, chown, set_times, truncate};
