//! The calls that open and change names. Each does what the system call of its name does, short of
//! reading its arguments; each either succeeds whole or changes nothing.

mod namei;
mod open;
mod setattr;

pub use namei::{link, make, remove, rename};
pub use open::{open, open_path, open_place, open_program};
pub use setattr::{TimeUpdate, chmod, chown, set_times, truncate};
