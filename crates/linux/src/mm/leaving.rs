//! Memory that is to leave the instance: which pages are moved out of it, in which order.

use alloc::vec::Vec;

use uapi::pid::Pid;
use vm::{AddressSpace, PageMover};

use crate::process::process_table;

/// Moves pages out of memory that is to leave: those of all programs, then those of objects that
/// programs have mapped and of files in memory, which nobody has in a table by then. What somebody
/// uses at this moment stays, for the next call.
pub fn move_pages() {
    let mut copies = Vec::new();
    let count = guard::mem::leaving_frames();
    // Without room for the list, pages that programs share become copies of their own.
    if copies.try_reserve_exact(count).is_ok() {
        copies.resize_with(count, || None);
    }
    let mut mover = PageMover::new(&guard::mem::leaving_index, &mut copies);
    for_each_space(|space| space.move_leaving_pages(&mut mover));
    for_each_space(|space| space.move_leaving_objects(&mover));
    fs::ramfs::move_pages_of_files(&mover);
}

/// Writes back what caches hold of files and disks, so that they can give it up.
pub fn write_back() {
    fs::block::writeback::sync_all();
}

fn for_each_space(mut each: impl FnMut(&AddressSpace)) {
    let mut last = Pid::NONE;
    while let Some(process) = process_table::next_process(last) {
        last = process.pid();
        if let Some(space) = process.space() {
            each(&space);
        }
    }
}
