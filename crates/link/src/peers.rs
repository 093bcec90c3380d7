//! Messages between this instance and its peers, as files (`docs/messages.md`).
//!
//! For each name that the instance was created with there is a device. A peer's doorbell wakes one
//! thread on the CPU where it rings, which tells those that wait for messages or for room to look
//! again. Who finds what he looks for is not rung.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi::errno::Errno;
use abi::messages::{COMMAND_LINE, MAX_NAMES, MESSAGE_BYTES, Peer, WORDS};
use fs::devfs::{self, CharDevice};
use fs::poll::{Events, PollQueue, PollTable};
use fs::{File, FileOps, OpenFlags, Result};
use guard::{irq, peers, role};
use ring::pair::{Doorbell, Full, Pair, Receiver, Sender};
use task::{CpuId, Deadline, Event, Mutex, NoMemory, Once};

/// Time for which doorbells are not listened to after one that was rung for nothing.
const DEAF_NS: u64 = 1_000_000;

static RUNG: Event = Event::new();
static LINES: Once<Vec<Arc<Line>>> = Once::new();

/// Takes in that a peer has rung. To be called by the handler of its doorbell.
pub fn on_peer_doorbell() {
    RUNG.set();
}

/// Both ends of what is exchanged with one incarnation of a peer.
struct Connection {
    generation: u32,
    place: usize,
    pair: Pair<'static>,
    sender: Sender,
    receiver: Receiver,
    /// Doorbells that the peer had rung at the last look, and whether that was more than before.
    heard: u64,
    has_rung: bool,
}

/// A name of a peer, and the peer, if there is one at the moment.
struct Line {
    connection: Mutex<Option<Connection>>,
    /// Notified when there may be messages, or room, and when the peer is another one.
    changed: PollQueue,
    /// Somebody has asked for a doorbell since the last one.
    has_asked: AtomicBool,
    /// Messages taken, at the last doorbell and now.
    taken: [AtomicU64; 2],
}

/// An open file of a line.
struct LineFile {
    line: Arc<Line>,
    /// Generation of the peer that it has talked to last; 0: none.
    seen: AtomicU32,
    /// Somebody waits for events of the file, or did.
    is_watched: AtomicBool,
}

/// Adds to a count of this kernel's, which nobody else writes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Connection {
    fn new(peer: &Peer) -> Option<Self> {
        let place = usize::from(peer.place);
        Some(Self {
            generation: peer.generation,
            place,
            pair: peers::pair(place)?,
            sender: Sender::new(peer.generation),
            receiver: Receiver::new(peer.generation),
            heard: peers::doorbells_of_peer(place),
            has_rung: false,
        })
    }

    /// Rings the peer if it has asked for that.
    fn ring(&self, doorbell: Doorbell) {
        if doorbell == Doorbell::Wanted {
            guard::ipi::ring_place(self.place);
        }
    }

    /// Sends whole messages, as many as there is room for. Returns their number.
    fn send(&mut self, messages: &[[u8; MESSAGE_BYTES]]) -> Result<usize> {
        let mut sent = 0;
        let outcome = messages.iter().try_for_each(|message| {
            let [header, words @ ..] = words_of(message);
            // The lower half of the header, which comes first.
            if header as u32 != 0 && header as u32 != self.generation {
                return Err(Errno::ECONNRESET);
            }
            let doorbell = self
                .sender
                .send(&self.pair, &words)
                .map_err(|Full| Errno::EAGAIN)?;
            self.ring(doorbell);
            sent += 1;
            Ok(())
        });
        if let Some(counters) = peers::counters(self.place) {
            add(&counters.sent, sent as u64);
            add(&counters.refused, u64::from(outcome == Err(Errno::EAGAIN)));
        }
        match (sent, outcome) {
            (0, Err(error)) => Err(error),
            _ => Ok(sent),
        }
    }

    /// Takes the messages that are there, as many as fit. Returns their number.
    fn receive(&mut self, messages: &mut [[u8; MESSAGE_BYTES]]) -> usize {
        let mut received = 0;
        for to in messages {
            let Some(message) = self.receiver.receive(&self.pair) else {
                break;
            };
            self.ring(message.doorbell);
            let header = u64::from(message.number) << 32 | u64::from(self.generation);
            let words = core::iter::once(header).chain(message.words);
            for (to, word) in to.as_chunks_mut().0.iter_mut().zip(words) {
                *to = word.to_le_bytes();
            }
            received += 1;
        }
        if let Some(counters) = peers::counters(self.place) {
            add(&counters.received, received as u64);
        }
        received
    }
}

/// A message's words, with its header.
fn words_of(message: &[u8; MESSAGE_BYTES]) -> [u64; WORDS + 1] {
    let (bytes, _) = message.as_chunks();
    core::array::from_fn(|index| u64::from_le_bytes(bytes[index]))
}

impl Line {
    const fn new() -> Self {
        Self {
            connection: Mutex::new(None),
            changed: PollQueue::new(),
            has_asked: AtomicBool::new(false),
            taken: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Takes over who the peer is by the last epoch.
    fn follow(&self, peer: Option<&Peer>) {
        let mut connection = self.connection.lock();
        let old = connection.as_ref().map(|connection| connection.generation);
        if old == peer.map(|peer| peer.generation) {
            return;
        }
        *connection = peer.and_then(Connection::new);
        drop(connection);
        self.changed.notify();
    }

    /// Has those that wait look again. Returns whether there was anything to ring for.
    fn look(&self) -> bool {
        let is_awaited = {
            let mut connection = self.connection.lock();
            connection.as_mut().is_some_and(|connection| {
                let rung = peers::doorbells_of_peer(connection.place);
                connection.has_rung = rung != connection.heard;
                connection.heard = rung;
                connection.receiver.has_message(&connection.pair)
                    || connection.sender.has_room_again(&connection.pair)
            })
        };
        let [before, now] = &self.taken;
        let taken = now.load(Ordering::Relaxed);
        let has_taken = before.swap(taken, Ordering::Relaxed) != taken;
        if self.has_asked.swap(false, Ordering::AcqRel) {
            self.changed.notify();
        }
        is_awaited || has_taken
    }

    /// Counts that doorbells are held back, if the peer has rung before the last look.
    fn count_held_back(&self) {
        if let Some(connection) = &*self.connection.lock()
            && connection.has_rung
            && let Some(counters) = peers::counters(connection.place)
        {
            add(&counters.held_back, 1);
        }
    }

    /// Asks for a doorbell for the next message. True if one is there after all.
    fn await_message(&self, connection: &Connection) -> bool {
        self.has_asked.store(true, Ordering::Release);
        connection.receiver.await_message(&connection.pair)
    }

    /// Asks for a doorbell when there is room. True if there is after all.
    fn await_room(&self, connection: &mut Connection) -> bool {
        self.has_asked.store(true, Ordering::Release);
        connection.sender.await_room(&connection.pair)
    }
}

impl CharDevice for Line {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        let seen = {
            let connection = self.connection.lock();
            connection.as_ref().map_or(0, |known| known.generation)
        };
        Ok(Arc::new(LineFile {
            line: self,
            seen: AtomicU32::new(seen),
            is_watched: AtomicBool::new(false),
        }))
    }
}

impl LineFile {
    /// Looks who the peer is; an error, once, if it is another one than before, or gone.
    fn check(&self, connection: Option<&Connection>) -> Result<()> {
        let now = connection.map_or(0, |connection| connection.generation);
        match self.seen.swap(now, Ordering::Relaxed) {
            before if before == now || before == 0 => Ok(()),
            _ => Err(Errno::ECONNRESET),
        }
    }

    /// Takes what is there; asks for a doorbell if there is nothing and `asks` says so.
    fn try_read(&self, messages: &mut [[u8; MESSAGE_BYTES]], asks: bool) -> Option<Result<usize>> {
        let mut connection = self.line.connection.lock();
        if let Err(error) = self.check(connection.as_ref()) {
            return Some(Err(error));
        }
        // Without a peer there is nothing; the next one's coming is told.
        let connection = connection.as_mut()?;
        let mut count = connection.receive(messages);
        if count == 0 && asks && self.line.await_message(connection) {
            count = connection.receive(messages);
        }
        let taken = &self.line.taken[1];
        add(taken, count as u64);
        (count > 0).then_some(Ok(count))
    }

    /// Sends what there is room for; likewise.
    fn try_write(&self, messages: &[[u8; MESSAGE_BYTES]], asks: bool) -> Option<Result<usize>> {
        let mut connection = self.line.connection.lock();
        if let Err(error) = self.check(connection.as_ref()) {
            return Some(Err(error));
        }
        let Some(connection) = connection.as_mut() else {
            return Some(Err(Errno::ENOTCONN));
        };
        let mut sent = connection.send(messages);
        if sent == Err(Errno::EAGAIN) && asks && self.line.await_room(connection) {
            sent = connection.send(messages);
        }
        (sent != Err(Errno::EAGAIN)).then_some(sent)
    }

    /// Waits for the result of a look, unless the file does not wait.
    fn result(
        &self,
        file: &File,
        mut look: impl FnMut(bool) -> Option<Result<usize>>,
    ) -> Result<usize> {
        let waits = !file.is_nonblocking();
        let asks = waits || self.is_watched.load(Ordering::Relaxed);
        let count = match look(!waits && asks) {
            Some(result) => result?,
            None if waits => self.line.changed.wait(|| look(true))??,
            None => return Err(Errno::EAGAIN),
        };
        Ok(count * MESSAGE_BYTES)
    }
}

impl FileOps for LineFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let (messages, _) = buf.as_chunks_mut();
        if messages.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.result(file, |asks| self.try_read(messages, asks))
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let (messages, rest) = buf.as_chunks();
        if messages.is_empty() || !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.result(file, |asks| self.try_write(messages, asks))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.line.changed);
            self.is_watched.store(true, Ordering::Relaxed);
        }
        let mut connection = self.line.connection.lock();
        let now = connection.as_ref().map_or(0, |known| known.generation);
        let seen = self.seen.load(Ordering::Relaxed);
        let mut events = Events::empty();
        if seen != 0 && seen != now {
            events |= Events::READABLE | Events::ERR;
        }
        if let Some(connection) = connection.as_mut() {
            if self.line.await_message(connection) {
                events |= Events::READABLE;
            }
            if connection.sender.has_room(&connection.pair) || self.line.await_room(connection) {
                events |= Events::WRITABLE;
            }
        }
        events
    }

    fn is_spliceable(&self) -> bool {
        false
    }
}

/// Makes the devices of all names on the command line, and the thread that hears doorbells.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn start() -> core::result::Result<(), NoMemory> {
    let Some(names) = role::cmdline_value(COMMAND_LINE) else {
        return Ok(());
    };
    let lines = names.split(',').take(MAX_NAMES).map(|name| {
        let line = Arc::new(Line::new());
        let path = format!("skerry-peers/{name}");
        if let Err(error) = devfs::register(&path, line.clone()) {
            log::error!("no /dev/{path}: {error:?}");
        }
        line
    });
    LINES.call_once(|| lines.collect());
    task::spawn("peers", Some(CpuId(0)), listen).map(drop)
}

/// Takes over who the peers are by the last epoch.
pub(crate) fn follow() {
    let peers = peers::all();
    for (name, line) in LINES.get().into_iter().flatten().enumerate() {
        line.follow(peers.iter().find(|peer| usize::from(peer.name) == name));
    }
}

/// Main function of the thread that hears doorbells. Who rings for nothing is not heard for a
/// while: neither he nor anybody else, as there is one doorbell for all.
fn listen() {
    loop {
        RUNG.wait();
        let mut is_wanted = false;
        for line in LINES.get().into_iter().flatten() {
            is_wanted |= line.look();
        }
        if !is_wanted {
            for line in LINES.get().into_iter().flatten() {
                line.count_held_back();
            }
            irq::mask_doorbell();
            Event::new().wait_until(Deadline::after_ns(DEAF_NS));
            irq::unmask_doorbell();
        }
    }
}
