//! A datagram that is put together from several messages (`MSG_MORE`, `UDP_CORK`).

use abi::errno::Errno;
use fallible::TryExtend;
use fs::Result;
use task::Mutex;

use super::datagram::Datagram;

/// Whether a part of a datagram waits for more, or is the last one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CorkState {
    /// More is to come.
    Waits,
    /// The datagram is whole.
    Goes,
}

/// The datagram of a socket of which more is to come, if there is one.
#[derive(Default)]
pub(super) struct Corked(Mutex<Option<Datagram>>);

impl Corked {
    pub(super) fn is_some(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().as_ref().map_or(0, |held| held.data.len())
    }

    /// Adds to the datagram, which has `longest` bytes at most; the whole of it if that was the
    /// last part. `None` if there is none that waits.
    ///
    /// # Errors
    /// `EMSGSIZE`, `ENOMEM`; the datagram is gone then, as without all of its parts it is worth
    /// nothing.
    pub(super) fn append(
        &self,
        data: &[u8],
        longest: usize,
        state: CorkState,
    ) -> Option<Result<Option<Datagram>>> {
        let mut corked = self.0.lock();
        let held = corked.as_mut()?;
        let result = if held.data.len() + data.len() > longest {
            Err(Errno::EMSGSIZE)
        } else {
            held.data.try_extend(data)
        };
        let whole = if result.is_err() || state == CorkState::Goes {
            corked.take()
        } else {
            None
        };
        drop(corked);
        Some(result.map(|()| whole))
    }

    /// Keeps the first part of a datagram, or gives it back if it is whole.
    pub(super) fn hold(&self, datagram: Datagram, state: CorkState) -> Option<Datagram> {
        match state {
            CorkState::Goes => Some(datagram),
            CorkState::Waits => {
                let before = self.0.lock().replace(datagram);
                drop(before);
                None
            }
        }
    }

    /// Takes the datagram, whole or not.
    pub(super) fn take(&self) -> Option<Datagram> {
        self.0.lock().take()
    }
}
