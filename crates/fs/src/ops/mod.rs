//! The calls that open and change names. Each does what the system call of its name does, short of
//! reading its arguments; each either succeeds whole or changes nothing.

mod attributes;
mod names;
mod opening;

pub use attributes::{TimeUpdate, chmod, chown, set_times, truncate};
pub use names::{link, make, remove, rename};
pub use opening::{open, open_path, open_place, open_program};
