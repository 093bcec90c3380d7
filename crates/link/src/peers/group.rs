//! The file of a group.
//!
//! Who has no room misses a message, and no member can stop the others: only when none has room
//! there is something to wait for.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use abi::messages::WORDS;
use fs::devfs::CharDevice;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags, Result};
use ring::pair::Received;

use super::{Bytes, Connection, Connections, Line, put_words, to_read, to_write, words_of};

/// `/dev/skerry-groups/NAME`.
pub(super) struct Device(pub(super) Arc<Line>);

/// An open file of a group.
struct GroupFile {
    line: Arc<Line>,
    /// Somebody waits for events of the file, or did.
    is_watched: AtomicBool,
}

impl CharDevice for Device {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        Ok(Arc::new(GroupFile {
            line: self.0.clone(),
            is_watched: AtomicBool::new(false),
        }))
    }
}

/// Sends a message that is meant for a member, who misses it if it has no room. True if it has.
fn send_to(member: &mut Connection, content: &[u64]) -> bool {
    member.meant = member.meant.wrapping_add(1);
    let mut words = [0; WORDS];
    words[0] = u64::from(member.meant);
    words[1..].copy_from_slice(content);
    member.send_counted(&words)
}

/// Sends a message to all members, or to the one that its header names.
fn send(members: &mut [Connection], message: &Bytes) -> Result<()> {
    // The lower half of the header's first word comes first.
    let [header, _, content @ ..] = words_of(message);
    let generation = header as u32;
    if generation == 0 {
        if members.is_empty() {
            return Err(Errno::ENOTCONN);
        }
        if !members.iter().any(Connection::has_room) {
            members.iter().for_each(|member| member.count(0, 1));
            return Err(Errno::EAGAIN);
        }
        for member in members {
            send_to(member, &content);
        }
        return Ok(());
    }
    let mut named = members.iter_mut();
    let named = named.find(|member| member.generation == generation);
    let member = named.ok_or(Errno::ECONNRESET)?;
    if !member.has_room() {
        member.count(0, 1);
        return Err(Errno::EAGAIN);
    }
    send_to(member, &content);
    Ok(())
}

/// Sends messages until there is an error. Returns their number, or the error of the first.
fn send_all(members: &mut [Connection], messages: &[Bytes]) -> Result<usize> {
    for (sent, message) in messages.iter().enumerate() {
        match send(members, message) {
            Err(error) if sent == 0 => return Err(error),
            Err(_) => return Ok(sent),
            Ok(()) => {}
        }
    }
    Ok(messages.len())
}

/// A message as its reader has it. The sender's word is only its number, and the content.
fn put(to: &mut Bytes, member: &Connection, message: &Received) {
    let [number, content @ ..] = message.words;
    let header = number << 32 | u64::from(member.generation);
    let words = [header, u64::from(member.instance)];
    put_words(to, words.into_iter().chain(content));
}

impl Connections {
    /// Takes one message of each member in turn, as many as fit. Returns their number.
    fn receive(&mut self, messages: &mut [Bytes]) -> usize {
        let members = self.all.len();
        let (mut received, mut without) = (0, 0);
        while received < messages.len() && without < members {
            let at = self.turn % members;
            self.turn = (at + 1) % members;
            let member = &mut self.all[at];
            match member.receive() {
                None => without += 1,
                Some(message) => {
                    put(&mut messages[received], member, &message);
                    member.count_received(1);
                    (received, without) = (received + 1, 0);
                }
            }
        }
        received
    }
}

impl GroupFile {
    fn try_read(&self, messages: &mut [Bytes], asks: bool) -> Option<Result<usize>> {
        let mut connections = self.line.connections.lock();
        let mut count = connections.receive(messages);
        if count == 0 && asks && self.await_message(&connections) {
            count = connections.receive(messages);
        }
        self.line.count_moved(count);
        (count > 0).then_some(Ok(count))
    }

    fn try_write(&self, messages: &[Bytes], asks: bool) -> Option<Result<usize>> {
        let mut connections = self.line.connections.lock();
        let mut sent = send_all(&mut connections.all, messages);
        if sent == Err(Errno::EAGAIN) && asks && self.await_room(&mut connections) {
            sent = send_all(&mut connections.all, messages);
        }
        self.line.count_moved(sent.unwrap_or_default());
        (sent != Err(Errno::EAGAIN)).then_some(sent)
    }

    /// Asks all members for a doorbell for the next message. True if there is one after all.
    fn await_message(&self, connections: &Connections) -> bool {
        let mut is_there = false;
        for member in &connections.all {
            is_there |= self.line.await_message(member);
        }
        is_there
    }

    /// Asks all members for one when there is room. True if there is after all.
    fn await_room(&self, connections: &mut Connections) -> bool {
        let mut is_there = false;
        for member in &mut connections.all {
            is_there |= self.line.await_room(member);
        }
        is_there
    }

    fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }
}

impl FileOps for GroupFile {
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
        let mut events = Events::empty();
        if self.await_message(&connections) {
            events |= Events::READABLE;
        }
        let has_room = connections.all.iter().any(Connection::has_room);
        if has_room || self.await_room(&mut connections) {
            events |= Events::WRITABLE;
        }
        events
    }

    fn is_spliceable(&self) -> bool {
        false
    }
}
