//! How much there is in the tables of this crate that stand beside the files.

use crate::{charge, inotify, lease, lock, ramfs, tty};

/// Calls `each` with the name and the number of what each table holds.
pub fn census(each: &mut dyn FnMut(&'static str, u64)) {
    let locks = lock::counts();
    each("locked_files", locks.files);
    each("file_locks", locks.locks);
    each("file_lock_waits", locks.blocked);
    each("leases", lease::count());
    each("watched_files", inotify::marked_inode_count());
    each("controlling_terminals", tty::controlling_count());
    each("terminal_pairs", tty::pty::count());
    each("file_pages", ramfs::pages_in_files());
    each("charged_to_users", charge::total());
}
