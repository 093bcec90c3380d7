//! Signals when a directory changes: `F_NOTIFY` of `fcntl(2)`. Made of a group of
//! [`crate::inotify`] with one mark, each of whose events is a signal instead of something to read.

use alloc::sync::{Arc, Weak};

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
    (sys::DN_RENAME, sys::IN_MOVED_FROM | sys::IN_MOVED_TO),
    (sys::DN_ATTRIB, sys::IN_ATTRIB),
];

/// Events that an opening of a directory is watched for.
pub(crate) struct DnotifyMark {
    file: Weak<File>,
    fd: i32,
    group: Arc<File>,
    /// `DN_*`; nothing once a signal has been sent, without `DN_MULTISHOT`.
    wanted: Mutex<u32>,
}

impl DnotifyMark {
    fn inotify(&self) -> Option<&Arc<Inotify>> {
        self.group.ops_as::<InotifyFile>().map(InotifyFile::group)
    }
}

impl PollObserver for DnotifyMark {
    fn on_event(self: Arc<Self>, _: Events) {
        let Some(group) = self.inotify() else { return };
        for _ in 0..group.drain() {
            {
                let mut wanted = self.wanted.lock();
                match *wanted {
                    0 => return,
                    several if several & sys::DN_MULTISHOT != 0 => {}
                    _ => *wanted = 0,
                }
            }
            if let Some(file) = self.file.upgrade() {
                sigio::message(&file, self.fd);
            }
        }
    }
}

/// Watches a directory for what `wanted` says (`DN_*`), besides what it is watched for already by
/// this opening; nothing ends it.
///
/// # Errors
/// `ENOTDIR`; `ENOSPC` for too many.
pub fn set(file: &Arc<File>, fd: i32, wanted: u32) -> Result<()> {
    if file.inode().kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if wanted & !sys::DN_MULTISHOT == 0 {
        file.set_watch(None);
        return Ok(());
    }
    let watch = match file.watch() {
        Some(watch) => watch,
        None => {
            let group = inotify::inotify(OpenFlags::NONBLOCK);
            let watch = Arc::new(DnotifyMark {
                file: Arc::downgrade(file),
                fd,
                group,
                wanted: Mutex::new(0),
            });
            let _ = watch.group.poll(Some(&mut PollTable::new(
                watch.clone(),
                Events::all(),
                Events::empty(),
            )));
            file.set_watch(Some(watch.clone()));
            watch
        }
    };
    let all = {
        let mut now = watch.wanted.lock();
        *now |= wanted;
        *now
    };
    let mask = EVENTS
        .iter()
        .filter(|(dn, _)| all & dn != 0)
        .fold(0, |mask, (_, events)| mask | events);
    watch
        .inotify()
        .map_or(Ok(()), |group| group.add(file.inode(), mask).map(drop))
}
