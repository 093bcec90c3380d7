//! The file by which a message goes to all peers.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::devfs::CharDevice;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags, Result};

use super::{Bytes, Line, to_write, words_of};

/// `/dev/skerry-broadcast`, and its open files: they have nothing of their own.
pub(super) struct Device(pub(super) Vec<Arc<Line>>);

impl CharDevice for Device {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        Ok(self)
    }
}

impl Device {
    /// Sends a message to each peer that has room.
    fn send(&self, message: &Bytes) -> Result<()> {
        let [header, words @ ..] = words_of(message);
        // No generation is that of all.
        if header as u32 != 0 {
            return Err(Errno::EINVAL);
        }
        let mut outcome = Err(Errno::ENOTCONN);
        for line in &self.0 {
            if let Some(peer) = line.connections.lock().peer() {
                let is_sent = peer.send_counted(&words);
                line.count_moved(usize::from(is_sent));
                outcome = match (is_sent, outcome) {
                    (true, _) | (_, Ok(())) => Ok(()),
                    (false, Err(_)) => Err(Errno::EAGAIN),
                };
            }
        }
        outcome
    }
}

impl FileOps for Device {
    fn read(&self, _: &File, _: &mut [u8]) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        let messages = to_write(buf)?;
        for (sent, message) in messages.iter().enumerate() {
            match self.send(message) {
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(size_of_val(&messages[..sent])),
                Ok(()) => {}
            }
        }
        Ok(buf.len())
    }

    fn poll(&self, _: &File, _: Option<&mut PollTable>) -> Events {
        Events::WRITABLE
    }

    fn is_spliceable(&self) -> bool {
        false
    }
}
