//! Signals when a directory changes: `F_NOTIFY` of `fcntl(2)`. Made of an instance of
//! [`crate::inotify`] with one mark, whose events are signals and not read.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicI32, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::Mutex;

use crate::inotify::{self, Inotify, InotifyFile};
use crate::poll::{Events, PollObserver, PollTable};
use crate::{File, FileType, OpenFlags, Result, sigio};

/// Events of `F_NOTIFY` (`DN_*`), with what `inotify(7)` calls them.
const EVENTS: [(u32, u32); 6] = [
    (sys::DN_ACCESS, sys::IN_ACCESS),
    (sys::DN_MODIFY, sys::IN_MODIFY),
    (sys::DN_CREATE, sys::IN_CREATE | sys::IN_MOVED_TO),
    (sys::DN_DELETE, sys::IN_DELETE | sys::IN_MOVED_FROM),
    (sys::DN_RENAME, inotify::DN_RENAME),
    (sys::DN_ATTRIB, sys::IN_ATTRIB),
];

/// Watch of an open directory: its events, and the descriptor that signals show (Linux
/// `dnotify_mark`).
pub(crate) struct DnotifyMark {
    file: Weak<File>,
    fd: i32,
    group: Arc<File>,
    /// Requested events (`DN_*`); 0 once a signal has been sent, without `DN_MULTISHOT`.
    mask: Mutex<u32>,
}

impl DnotifyMark {
    fn inotify(&self) -> Option<&Arc<Inotify>> {
        self.group.ops_as::<InotifyFile>().map(InotifyFile::group)
    }
}

impl PollObserver for DnotifyMark {
    fn on_event(self: Arc<Self>, _: Events) {
        let Some(group) = self.inotify() else { return };
        for _ in 0..group.discard_events() {
            {
                let mut mask = self.mask.lock();
                match *mask {
                    0 => return,
                    several if several & sys::DN_MULTISHOT != 0 => {}
                    _ => *mask = 0,
                }
            }
            if let Some(file) = self.file.upgrade() {
                sigio::notify_poll_msg(&file, self.fd);
            }
        }
    }
}

/// Whether directories can be watched: not if it is 0 (`/proc/sys/fs/dir-notify-enable`).
pub static ENABLED: AtomicI32 = AtomicI32::new(1);

/// Adds `mask` (`DN_*`) to the events that an open directory is watched for; 0 removes the mark
/// (Linux `fcntl_dirnotify`).
///
/// # Errors
/// `EINVAL` while this is forbidden; `ENOTDIR` if it is no directory; `ENOSPC` for too many
/// watches.
pub fn fcntl_dirnotify(file: &Arc<File>, fd: i32, mask: u32) -> Result<()> {
    if ENABLED.load(Ordering::Relaxed) == 0 {
        return Err(Errno::EINVAL);
    }
    if file.inode().kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if mask & !sys::DN_MULTISHOT == 0 {
        file.set_dnotify_mark(None);
        return Ok(());
    }
    let mark = match file.dnotify_mark() {
        Some(mark) => mark,
        None => {
            let group = inotify::inotify(OpenFlags::NONBLOCK);
            let mark = Arc::new(DnotifyMark {
                file: Arc::downgrade(file),
                fd,
                group,
                mask: Mutex::new(0),
            });
            let _ = mark.group.poll(Some(&mut PollTable::new(
                mark.clone(),
                Events::all(),
                Events::empty(),
            )));
            file.set_dnotify_mark(Some(mark.clone()));
            mark
        }
    };
    let all = {
        let mut now = mark.mask.lock();
        *now |= mask;
        *now
    };
    let inotify_mask = EVENTS
        .iter()
        .filter(|(dn, _)| all & dn != 0)
        .fold(0, |all, (_, events)| all | events);
    mark.inotify().map_or(Ok(()), |group| {
        group.add(file.inode(), inotify_mask).map(drop)
    })
}
