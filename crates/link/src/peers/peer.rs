//! The file of a peer.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::errno::Errno;
use fs::devfs::CharDevice;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags, Result};
use ring::pair::Full;

use super::{Bytes, Connection, Line, put_words, to_read, to_write, words_of};

/// `/dev/skerry-peers/NAME`.
pub(super) struct Device(pub(super) Arc<Line>);

/// An open file of a peer.
struct PeerFile {
    line: Arc<Line>,
    /// Generation of the peer that it has talked to last; 0: none.
    seen: AtomicU32,
    /// Somebody waits for events of the file, or did.
    is_watched: AtomicBool,
}

fn generation(connection: Option<&Connection>) -> u32 {
    connection.map_or(0, |connection| connection.generation)
}

impl CharDevice for Device {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        let line = self.0.clone();
        let seen = generation(line.connections.lock().peer().as_deref());
        Ok(Arc::new(PeerFile {
            line,
            seen: AtomicU32::new(seen),
            is_watched: AtomicBool::new(false),
        }))
    }
}

/// Sends whole messages, as many as there is room for. Returns their number.
fn send(connection: &mut Connection, messages: &[Bytes]) -> Result<usize> {
    let mut sent = 0;
    let outcome = messages.iter().try_for_each(|message| {
        let [header, words @ ..] = words_of(message);
        // The lower half of the header, which comes first.
        if header as u32 != 0 && header as u32 != connection.generation {
            return Err(Errno::ECONNRESET);
        }
        connection.send(&words).map_err(|Full| Errno::EAGAIN)?;
        sent += 1;
        Ok(())
    });
    connection.count(sent as u64, u64::from(outcome == Err(Errno::EAGAIN)));
    match (sent, outcome) {
        (0, Err(error)) => Err(error),
        _ => Ok(sent),
    }
}

/// Takes the messages that are there, as many as fit. Returns their number.
fn receive(connection: &mut Connection, messages: &mut [Bytes]) -> usize {
    let mut received = 0;
    for to in messages {
        let Some(message) = connection.receive() else {
            break;
        };
        let header = u64::from(message.number) << 32 | u64::from(connection.generation);
        put_words(to, core::iter::once(header).chain(message.words));
        received += 1;
    }
    connection.count_received(received as u64);
    received
}

impl PeerFile {
    /// Looks who the peer is; an error, once, if it is another one than before, or gone.
    fn check(&self, connection: Option<&Connection>) -> Result<()> {
        let now = generation(connection);
        match self.seen.swap(now, Ordering::Relaxed) {
            before if before == now || before == 0 => Ok(()),
            _ => Err(Errno::ECONNRESET),
        }
    }

    /// Takes what is there; asks for a doorbell if there is nothing and `asks` says so.
    fn try_read(&self, messages: &mut [Bytes], asks: bool) -> Option<Result<usize>> {
        let mut connections = self.line.connections.lock();
        let connection = connections.peer();
        if let Err(error) = self.check(connection.as_deref()) {
            return Some(Err(error));
        }
        // Without a peer there is nothing; the next one's coming is told.
        let connection = connection?;
        let mut count = receive(connection, messages);
        if count == 0 && asks && self.line.await_message(connection) {
            count = receive(connection, messages);
        }
        self.line.count_moved(count);
        (count > 0).then_some(Ok(count))
    }

    /// Sends what there is room for; likewise.
    fn try_write(&self, messages: &[Bytes], asks: bool) -> Option<Result<usize>> {
        let mut connections = self.line.connections.lock();
        let connection = connections.peer();
        if let Err(error) = self.check(connection.as_deref()) {
            return Some(Err(error));
        }
        let Some(connection) = connection else {
            return Some(Err(Errno::ENOTCONN));
        };
        let mut sent = send(connection, messages);
        if sent == Err(Errno::EAGAIN) && asks && self.line.await_room(connection) {
            sent = send(connection, messages);
        }
        self.line.count_moved(sent.unwrap_or_default());
        (sent != Err(Errno::EAGAIN)).then_some(sent)
    }

    fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }
}

impl FileOps for PeerFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let messages = to_read(buf)?;
        let look = |asks| self.try_read(messages, asks);
        self.line.result(file, self.is_watched(), look)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let messages = to_write(buf)?;
        let look = |asks| self.try_write(messages, asks);
        self.line.result(file, self.is_watched(), look)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.line.changed);
            self.is_watched.store(true, Ordering::Relaxed);
        }
        let mut connections = self.line.connections.lock();
        let connection = connections.peer();
        let seen = self.seen.load(Ordering::Relaxed);
        let mut events = Events::empty();
        if seen != 0 && seen != generation(connection.as_deref()) {
            events |= Events::READABLE | Events::ERR;
        }
        if let Some(connection) = connection {
            if self.line.await_message(connection) {
                events |= Events::READABLE;
            }
            if connection.has_room() || self.line.await_room(connection) {
                events |= Events::WRITABLE;
            }
        }
        events
    }

    fn is_spliceable(&self) -> bool {
        false
    }
}
