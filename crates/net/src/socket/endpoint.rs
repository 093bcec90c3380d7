//! The receiving side of a socket: its queue, and what others need to know of it. The same for all
//! families; what the queue holds is theirs.

use alloc::sync::{Arc, Weak};

use abi::errno::Errno;
use fs::File;
use fs::poll::{Events, PollQueue};
use linux_raw_sys::net;
use task::sync::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use task::{Mutex, MutexGuard, Once};

use super::options::SocketOptions;

/// Receiving has ended (`SHUT_RD`).
pub(crate) const RCV_SHUTDOWN: u8 = 1;
/// Sending has ended (`SHUT_WR`).
pub(crate) const SEND_SHUTDOWN: u8 = 2;
/// The peer has said that it sends nothing more.
pub(crate) const FIN_RECEIVED: u8 = 4;
/// The peer has ended the connection with a reset.
pub(crate) const WAS_RESET: u8 = 8;

/// The poll events that come true for a sender when there is room again.
const WRITE_SPACE: Events = Events::WRITABLE.union(Events::WRBAND);

/// The receiving side of one socket, with a queue of kind `Q`.
pub struct Endpoint<Q> {
    pub(crate) options: Arc<SocketOptions>,
    pub(crate) queue: Mutex<Q>,
    /// There is more to receive or accept, or never will be.
    pub(crate) readable: PollQueue,
    /// There is more room to send into, or (a listener) for connections.
    pub(crate) writable: PollQueue,
    /// The socket's open file, once it has one.
    file: Once<Weak<File>>,
    shutdown: AtomicU8,
    error: AtomicI32,
    /// Whether `error` is anything: spares the fast path an exchange.
    error_pending: AtomicBool,
}

impl<Q: Default> Endpoint<Q> {
    pub(crate) fn new(options: Arc<SocketOptions>) -> Self {
        Self::with_queue(options, Q::default())
    }
}

impl<Q> Endpoint<Q> {
    pub(crate) fn with_queue(options: Arc<SocketOptions>, queue: Q) -> Self {
        Self {
            options,
            queue: Mutex::new(queue),
            readable: PollQueue::new(),
            writable: PollQueue::new(),
            file: Once::new(),
            shutdown: AtomicU8::new(0),
            error: AtomicI32::new(0),
            error_pending: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_shut_down(&self, what: u8) -> bool {
        self.shutdown.load(Ordering::Acquire) & what == what
    }

    /// Bit 0: receiving has ended; bit 1: sending.
    pub(crate) fn shutdown_mask(&self) -> u8 {
        self.shutdown.load(Ordering::Acquire) & (RCV_SHUTDOWN | SEND_SHUTDOWN)
    }

    /// Ends receiving or sending, and tells whoever waits for either.
    pub(crate) fn shutdown(&self, what: u8) {
        self.note_shutdown(what);
        self.notify_all();
    }

    /// Ends receiving or sending without telling whoever waits: the caller does.
    pub(crate) fn note_shutdown(&self, what: u8) {
        self.shutdown.fetch_or(what, Ordering::AcqRel);
    }

    /// Tells whoever waits for anything that the endpoint has changed.
    pub(crate) fn notify_all(&self) {
        self.readable.notify();
        self.writable.notify();
    }

    /// Undoes [`Self::shutdown`]: the socket begins anew.
    pub(crate) fn reopen(&self) {
        self.shutdown.store(0, Ordering::Release);
    }

    /// The result for a receiver that found nothing in the queue, which it still holds: an error,
    /// `end` if nothing comes any more, or nothing yet.
    pub(crate) fn empty_queue_result<R>(
        &self,
        queue: MutexGuard<'_, Q>,
        end: R,
    ) -> Option<Result<R, Errno>> {
        // Looked at while the queue is held: what was sent before the end is in it by then. Looked
        // at later, an end overtook the last bytes.
        let ended = self.is_shut_down(RCV_SHUTDOWN);
        drop(queue);
        match self.take_error() {
            Some(error) => Some(Err(error)),
            None => ended.then_some(Ok(end)),
        }
    }

    /// Tells senders that there is room again.
    #[inline]
    pub(crate) fn notify_write_space(&self) {
        self.writable.notify_events(WRITE_SPACE);
    }

    /// The socket has an open file from now on.
    pub(crate) fn attach_file(&self, file: &Arc<File>) {
        self.file.call_once(|| Arc::downgrade(file));
    }

    /// The number of its open file.
    pub(crate) fn ino(&self) -> u64 {
        self.file
            .get()
            .and_then(Weak::upgrade)
            .map_or(0, |file| file.path().metadata().ino)
    }

    /// Signals the file's owner that urgent data has come.
    pub(crate) fn send_sigurg(&self) {
        if let Some(file) = self.file.get().and_then(Weak::upgrade) {
            fs::sigio::notify_urgent(&file);
        }
    }

    /// Whether urgent data is received with the other (`SO_OOBINLINE`).
    pub(crate) fn is_oob_inline(&self) -> bool {
        self.options.is_enabled(net::SO_OOBINLINE)
    }

    pub(crate) fn set_error(&self, error: Errno) {
        self.error.store(error.raw(), Ordering::Relaxed);
        self.error_pending.store(true, Ordering::Release);
    }

    pub(crate) fn has_error(&self) -> bool {
        self.error_pending.load(Ordering::Acquire)
    }

    pub(crate) fn take_error(&self) -> Option<Errno> {
        if !self.has_error() || !self.error_pending.swap(false, Ordering::AcqRel) {
            return None;
        }
        Some(Errno::from_raw(self.error.load(Ordering::Relaxed)))
    }
}
