//! Signals instead of waiting: `O_ASYNC` with `F_SETOWN` and `F_SETSIG` (`fcntl(2)`).
//!
//! A file with the flag has a watcher at its own sources, as an epoll set would leave one; each
//! change that finds the file ready sends its owner a signal.

use alloc::sync::{Arc, Weak};

use task::Once;

use crate::poll::{Events, PollObserver, PollTable};
use crate::{File, OpenFlags};

/// Receiver of the signals of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OwnerTarget {
    /// Nobody.
    #[default]
    Nobody,
    /// A thread.
    Thread(i32),
    /// A process.
    Process(i32),
    /// A process group.
    Group(i32),
}

/// Receiver and number of the signals a file sends (Linux `fown_struct`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileOwner {
    /// The receiver.
    pub target: OwnerTarget,
    /// Number of the signal; 0 for `SIGIO` without particulars.
    pub signal: i32,
    /// The user ids, real and effective, of who named the target; only whom these may signal is
    /// told.
    pub sender: (u32, u32),
}

/// Sends the signals of files; the Linux personality implements it.
pub trait SendSigio: Send + Sync {
    /// Sends what `notice` says: `events` are so at the descriptor `fd`.
    fn send(&self, notice: FileOwner, events: Events, fd: i32);

    /// Sends what `notice` says: something has happened to what the descriptor `fd` means
    /// (`POLL_MSG`).
    fn send_message(&self, notice: FileOwner, fd: i32);

    /// Sends `SIGURG` to whom `notice` says.
    fn send_urgent(&self, notice: FileOwner);
}

static SENDER: Once<Arc<dyn SendSigio>> = Once::new();

/// Installs the personality's side. Only the first call counts.
pub fn set_sender(sender: Arc<dyn SendSigio>) {
    SENDER.call_once(|| sender);
}

struct FasyncEntry {
    file: Weak<File>,
    fd: i32,
}

impl PollObserver for FasyncEntry {
    fn on_event(self: Arc<Self>, what: Events) {
        let Some(file) = self.file.upgrade() else {
            return;
        };
        if !file.flags().contains(OpenFlags::ASYNC) {
            return;
        }
        let events = file.poll(None) & what;
        let notice = file.notice();
        if let Some(sender) = SENDER.get()
            && !events.is_empty()
            && notice.target != OwnerTarget::Nobody
        {
            sender.send(notice, events, self.fd);
        }
    }
}

/// Something has happened to a file of which its owner asked to hear, by the descriptor `fd`.
pub(crate) fn message(file: &File, fd: i32) {
    let notice = file.notice();
    if let Some(sender) = SENDER.get()
        && notice.target != OwnerTarget::Nobody
    {
        sender.send_message(notice, fd);
    }
}

/// Urgent data has come for a file: its owner hears of it, `O_ASYNC` or not.
pub fn urgent(file: &File) {
    let notice = file.notice();
    if let Some(sender) = SENDER.get()
        && notice.target != OwnerTarget::Nobody
    {
        sender.send_urgent(notice);
    }
}

/// After the flags of `file` changed by the descriptor `fd`: makes the watcher if it is needed now.
pub fn update(file: &Arc<File>, fd: i32) {
    if !file.flags().contains(OpenFlags::ASYNC) {
        file.set_watcher(None);
        return;
    }
    let watcher: Arc<dyn PollObserver> = Arc::new(FasyncEntry {
        file: Arc::downgrade(file),
        fd,
    });
    // What is so already is not told.
    let _ = file.poll(Some(&mut PollTable::new(
        watcher.clone(),
        Events::all(),
        Events::empty(),
    )));
    file.set_watcher(Some(watcher));
}
