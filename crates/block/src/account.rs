//! Accounts of transfers: threads that read from disks, make pages dirty and wait are told to
//! who keeps accounts of processes (`/proc/PID/io`, `/proc/pressure/io`).

use task::Once;

/// Accounts of processes. Called by the thread that it is about, which may hold locks: nothing is
/// waited for but locks of the accounts' own, nor allocated.
pub trait Accounts: Send + Sync {
    /// The thread has so many bytes read from a device.
    fn read(&self, bytes: u64);

    /// The thread has made so many bytes differ from what the device has: they will be written.
    fn made_dirty(&self, bytes: u64);

    /// The thread has given up so many bytes before they were written.
    fn gave_up(&self, bytes: u64);

    /// The thread begins to wait for a device; whether that counts, so that the end of it is to be
    /// told.
    fn begins_to_wait(&self) -> bool;

    /// The thread has what it waited for.
    fn has_waited(&self);
}

static ACCOUNTS: Once<&'static dyn Accounts> = Once::new();

/// Has accounts kept from now on. The first call counts.
pub fn keep(accounts: &'static dyn Accounts) {
    ACCOUNTS.call_once(|| accounts);
}

/// Notes that the thread has so many bytes read from a device.
pub fn note_read(bytes: u64) {
    if let Some(accounts) = ACCOUNTS.get() {
        accounts.read(bytes);
    }
}

pub(crate) fn note_dirty(bytes: u64) {
    if let Some(accounts) = ACCOUNTS.get() {
        accounts.made_dirty(bytes);
    }
}

pub(crate) fn note_given_up(bytes: u64) {
    if bytes > 0
        && let Some(accounts) = ACCOUNTS.get()
    {
        accounts.gave_up(bytes);
    }
}

/// Runs `work`, in which the thread waits for a device.
pub fn waiting<R>(work: impl FnOnce() -> R) -> R {
    let accounts = ACCOUNTS.get().filter(|accounts| accounts.begins_to_wait());
    let result = work();
    if let Some(accounts) = accounts {
        accounts.has_waited();
    }
    result
}
