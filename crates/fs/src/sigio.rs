//! Signals instead of waiting: `O_ASYNC` with `F_SETOWN` and `F_SETSIG` (`fcntl(2)`).
//!
//! A file with the flag has an observer at its own poll queues, as an epoll instance would add one;
//! each change that finds the file ready sends its owner a signal.

use alloc::sync::{Arc, Weak};

use task::Once;

use crate::poll::{Events, PollObserver, PollTable};
use crate::{File, OpenFlags, Result};

/// Receiver of the signals of a file (`F_SETOWN_EX`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OwnerTarget {
    /// No receiver: no signals.
    #[default]
    Nobody,
    /// A thread, by its id (`F_OWNER_TID`).
    Thread(i32),
    /// A process, by its id (`F_OWNER_PID`).
    Process(i32),
    /// A process group, by its id (`F_OWNER_PGRP`).
    Group(i32),
}

/// Receiver and number of the signals a file sends (Linux `fown_struct`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileOwner {
    /// Receiver of the signals.
    pub target: OwnerTarget,
    /// Number of the signal; 0 for `SIGIO` without particulars.
    pub signal: i32,
    /// Users of the process that set the owner; a receiver that they may not signal gets nothing.
    pub setter: SetterUids,
}

/// User ids of the process that set the owner of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetterUids {
    /// Real user id.
    pub real: u32,
    /// Effective user id.
    pub effective: u32,
}

/// Sends the signals of files; the Linux personality implements it.
pub trait SendSigio: Send + Sync {
    /// Sends the signal of `owner`: the file behind descriptor `fd` is ready for `events`.
    fn send_sigio(&self, owner: FileOwner, events: Events, fd: i32);

    /// Sends the signal of `owner` with the code `POLL_MSG` for the file behind descriptor `fd`: a
    /// lease is to be broken, or a directory changed.
    fn send_poll_msg(&self, owner: FileOwner, fd: i32);

    /// Sends `SIGURG` to `owner`.
    fn send_sigurg(&self, owner: FileOwner);
}

static SENDER: Once<Arc<dyn SendSigio>> = Once::new();

/// Installs the sender of signals. Only the first call counts.
pub fn set_sender(sender: Arc<dyn SendSigio>) {
    SENDER.call_once(|| sender);
}

/// Observer that sends signals for a file with `O_ASYNC` (Linux `fasync_struct`).
struct FasyncEntry {
    file: Weak<File>,
    fd: i32,
}

impl PollObserver for FasyncEntry {
    fn on_event(self: Arc<Self>, events: Events) {
        let Some(file) = self.file.upgrade() else {
            return;
        };
        if !file.flags().contains(OpenFlags::ASYNC) {
            return;
        }
        let events = file.poll(None) & events;
        let owner = file.owner();
        if let Some(sender) = SENDER.get()
            && !events.is_empty()
            && owner.target != OwnerTarget::Nobody
        {
            sender.send_sigio(owner, events, self.fd);
        }
    }
}

/// Sends the owner of a file its signal with the code `POLL_MSG`; `fd` is the descriptor that it
/// shows.
pub(crate) fn notify_poll_msg(file: &File, fd: i32) {
    let owner = file.owner();
    if let Some(sender) = SENDER.get()
        && owner.target != OwnerTarget::Nobody
    {
        sender.send_poll_msg(owner, fd);
    }
}

/// Sends `SIGURG` to the owner of a file that urgent data has come for, `O_ASYNC` or not.
pub fn notify_urgent(file: &File) {
    let owner = file.owner();
    if let Some(sender) = SENDER.get()
        && owner.target != OwnerTarget::Nobody
    {
        sender.send_sigurg(owner);
    }
}

/// Adds or removes the observer of a file after its `O_ASYNC` flag may have changed; `fd` is the
/// descriptor that its signals show (Linux `fasync_helper`).
///
/// # Errors
/// `ENOMEM`: no signals will come.
pub fn update_fasync(file: &Arc<File>, fd: i32) -> Result<()> {
    if !file.flags().contains(OpenFlags::ASYNC) {
        file.set_fasync(None);
        return Ok(());
    }
    let observer: Arc<dyn PollObserver> = Arc::new(FasyncEntry {
        file: Arc::downgrade(file),
        fd,
    });
    // No signal for what is ready already.
    let mut table = PollTable::new(observer.clone(), Events::all(), Events::empty());
    let _ = file.poll(Some(&mut table));
    table.result()?;
    file.set_fasync(Some(observer));
    Ok(())
}
