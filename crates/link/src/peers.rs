//! Messages between this instance and its peers, as files (`docs/messages.md`).
//!
//! For each name that the instance was created with there is a device, for a group as for a peer. A
//! peer's doorbell wakes one thread on the CPU where it rings, which tells those that wait for
//! messages or for room to look again. Who finds what he looks for is not rung.

mod broadcast;
mod group;
mod peer;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::errno::Errno;
use abi::messages::{
    COMMAND_LINE, GROUPS_COMMAND_LINE, MAX_GROUPS, MAX_NAMES, MEMBER_PLACES, MESSAGE_BYTES, Peer,
    WORDS,
};
use fs::devfs::{self, CharDevice};
use fs::poll::PollQueue;
use fs::{File, Result};
use guard::{irq, peers, role};
use ring::pair::{Doorbell, Full, Pair, Received, Receiver, Sender};
use task::{CpuId, Deadline, Event, Mutex, NoMemory, Once};

/// Time for which doorbells are not listened to after one that was rung for nothing; after each
/// further one in a row twice as long, up to the most.
const DEAF_NS: u64 = 1_000_000;
const MOST_DEAF_NS: u64 = 16 * DEAF_NS;

static RUNG: Event = Event::new();
static LINES: Once<Lines> = Once::new();

/// Takes in that a peer has rung. To be called by the handler of its doorbell.
pub fn on_peer_doorbell() {
    RUNG.set();
}

/// A message as a program has it.
type Bytes = [u8; MESSAGE_BYTES];
/// A message's words, with its header.
type Words = [u64; WORDS + 1];

fn words_of(message: &Bytes) -> Words {
    let (bytes, _) = message.as_chunks();
    core::array::from_fn(|index| u64::from_le_bytes(bytes[index]))
}

fn put_words(to: &mut Bytes, words: impl IntoIterator<Item = u64>) {
    for (to, word) in to.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
}

/// Both ends of what is exchanged with one incarnation of a peer.
struct Connection {
    generation: u32,
    /// Number of the instance that it is.
    instance: u32,
    place: usize,
    pair: Pair<'static>,
    sender: Sender,
    receiver: Receiver,
    /// Number of the last message to a group that was meant for this member.
    meant: u32,
    /// Doorbells that the peer had rung at the last look, and whether that was more than before.
    heard: u64,
    has_rung: bool,
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
            instance: peer.instance,
            place,
            pair: peers::pair(place)?,
            sender: Sender::new(peer.generation),
            receiver: Receiver::new(peer.generation),
            meant: 0,
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

    fn has_room(&self) -> bool {
        self.sender.has_room(&self.pair)
    }

    /// Sends a message, and rings.
    fn send(&mut self, words: &[u64; WORDS]) -> core::result::Result<(), Full> {
        let doorbell = self.sender.send(&self.pair, words)?;
        self.ring(doorbell);
        Ok(())
    }

    /// Counts messages that were sent, and those for which there was no room.
    fn count(&self, sent: u64, refused: u64) {
        if let Some(counters) = peers::counters(self.place) {
            add(&counters.sent, sent);
            add(&counters.refused, refused);
        }
    }

    /// Sends a message that may be missed, and counts it. True if it was sent.
    fn send_counted(&mut self, words: &[u64; WORDS]) -> bool {
        let is_sent = self.send(words).is_ok();
        self.count(u64::from(is_sent), u64::from(!is_sent));
        is_sent
    }

    /// Takes the next message, and rings.
    fn receive(&mut self) -> Option<Received> {
        let message = self.receiver.receive(&self.pair)?;
        self.ring(message.doorbell);
        Some(message)
    }

    fn count_received(&self, received: u64) {
        if let Some(counters) = peers::counters(self.place) {
            add(&counters.received, received);
        }
    }

    /// Whether there is anything for which the peer may have rung.
    fn look(&mut self) -> bool {
        let rung = peers::doorbells_of_peer(self.place);
        self.has_rung = rung != self.heard;
        self.heard = rung;
        self.receiver.has_message(&self.pair) || self.sender.has_room_again(&self.pair)
    }
}

/// Connections of a name: of a peer one at most, of a group those to its other members.
#[derive(Default)]
struct Connections {
    all: Vec<Connection>,
    /// Number of the member whose turn it is to be read.
    turn: usize,
}

impl Connections {
    /// The one of a peer.
    fn peer(&mut self) -> Option<&mut Connection> {
        self.all.first_mut()
    }
}

/// A name of a peer or of a group, and who has it at the moment.
struct Line {
    connections: Mutex<Connections>,
    /// Notified when there may be messages, or room, and when peers come or go.
    changed: PollQueue,
    /// Somebody has asked for a doorbell since the last one.
    has_asked: AtomicBool,
    /// Messages taken and sent, at the last doorbell and now.
    moved: [AtomicU64; 2],
    /// There was something to ring for at the last doorbell.
    was_awaited: AtomicBool,
}

impl Line {
    /// A name that as many may have at once.
    fn new(most: usize) -> core::result::Result<Self, NoMemory> {
        let mut connections = Connections::default();
        let reserved = connections.all.try_reserve_exact(most);
        reserved.map_err(|_| NoMemory)?;
        Ok(Self {
            connections: Mutex::new(connections),
            changed: PollQueue::new(),
            has_asked: AtomicBool::new(false),
            moved: [const { AtomicU64::new(0) }; 2],
            was_awaited: AtomicBool::new(false),
        })
    }

    /// Takes over who has the name by the last epoch.
    fn follow<'a>(&self, peers: impl Iterator<Item = &'a Peer> + Clone) {
        let mut connections = self.connections.lock();
        let all = &mut connections.all;
        let before = all.len();
        all.retain(|known| {
            let mut peers = peers.clone();
            peers.any(|peer| peer.generation == known.generation)
        });
        let mut has_changed = all.len() != before;
        for peer in peers {
            let is_known = all.iter().any(|known| known.generation == peer.generation);
            // There are never more than room was made for: an epoch has no more places.
            if !is_known
                && all.len() < all.capacity()
                && let Some(connection) = Connection::new(peer)
            {
                all.push(connection);
                has_changed = true;
            }
        }
        drop(connections);
        if has_changed {
            self.changed.notify();
        }
    }

    /// Has those that wait look again. Returns whether it was rung for something: messages have
    /// moved since the last time, or they can now, and could not then. A peer that says by turns
    /// that there is room and that there is none does not get more than the first look by that.
    fn look(&self) -> bool {
        let mut is_awaited = false;
        for connection in &mut self.connections.lock().all {
            is_awaited |= connection.look();
        }
        let [before, now] = &self.moved;
        let moved = now.load(Ordering::Relaxed);
        let has_moved = before.swap(moved, Ordering::Relaxed) != moved;
        let was_awaited = self.was_awaited.swap(is_awaited, Ordering::Relaxed);
        // Who found nothing and still would has its wish where the peer sees it.
        if is_awaited && self.has_asked.swap(false, Ordering::AcqRel) {
            self.changed.notify();
        }
        has_moved || is_awaited && !was_awaited
    }

    /// Counts that doorbells are held back, for those that have rung before the last look.
    fn count_held_back(&self) {
        let connections = self.connections.lock();
        for connection in connections.all.iter().filter(|one| one.has_rung) {
            if let Some(counters) = peers::counters(connection.place) {
                add(&counters.held_back, 1);
            }
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

    /// Takes in that messages were taken or sent, for the next doorbell. The connections are
    /// locked.
    fn count_moved(&self, count: usize) {
        add(&self.moved[1], count as u64);
    }

    /// Waits for the result of a look, which is told whether to ask for a doorbell, unless the file
    /// does not wait; `is_watched` says that somebody waits for its events. Returns bytes.
    fn result(
        &self,
        file: &File,
        is_watched: bool,
        mut look: impl FnMut(bool) -> Option<Result<usize>>,
    ) -> Result<usize> {
        let waits = !file.is_nonblocking();
        let count = match look(!waits && is_watched) {
            Some(result) => result?,
            None if waits => self.changed.wait(|| look(true))??,
            None => return Err(Errno::EAGAIN),
        };
        Ok(count * MESSAGE_BYTES)
    }
}

/// The whole messages of a buffer that is read into.
fn to_read(buf: &mut [u8]) -> Result<&mut [Bytes]> {
    let (messages, _) = buf.as_chunks_mut();
    match messages.is_empty() {
        true => Err(Errno::EINVAL),
        false => Ok(messages),
    }
}

/// The messages of a buffer that is written.
fn to_write(buf: &[u8]) -> Result<&[Bytes]> {
    let (messages, rest) = buf.as_chunks();
    match messages.is_empty() || !rest.is_empty() {
        true => Err(Errno::EINVAL),
        false => Ok(messages),
    }
}

/// The lines of all names, by number.
struct Lines {
    peers: Vec<Arc<Line>>,
    groups: Vec<Arc<Line>>,
}

impl Lines {
    fn all(&self) -> impl Iterator<Item = (usize, &Arc<Line>)> {
        let groups = (MAX_NAMES..).zip(&self.groups);
        self.peers.iter().enumerate().chain(groups)
    }
}

/// All lines, if there are any.
fn lines() -> impl Iterator<Item = (usize, &'static Arc<Line>)> {
    LINES.get().into_iter().flat_map(Lines::all)
}

fn register(path: &str, device: Arc<dyn CharDevice>) {
    if let Err(error) = devfs::register(path, device) {
        log::error!("no /dev/{path}: {error:?}");
    }
}

/// Lines for the names behind a word of the command line, each with its device.
fn make(
    key: &str,
    (most, members): (usize, usize),
    device: impl Fn(&str, Arc<Line>),
) -> core::result::Result<Vec<Arc<Line>>, NoMemory> {
    let mut lines = Vec::new();
    let names = role::cmdline_value(key).into_iter();
    for name in names.flat_map(|names| names.split(',')).take(most) {
        let line = Arc::new(Line::new(members)?);
        device(name, line.clone());
        lines.push(line);
    }
    Ok(lines)
}

/// Makes the devices of all names on the command line, and the thread that hears doorbells.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn start() -> core::result::Result<(), NoMemory> {
    let peers = make(COMMAND_LINE, (MAX_NAMES, 1), |name, line| {
        register(
            &format!("skerry-peers/{name}"),
            Arc::new(peer::Device(line)),
        );
    })?;
    let members = (MAX_GROUPS, MEMBER_PLACES);
    let groups = make(GROUPS_COMMAND_LINE, members, |name, line| {
        register(
            &format!("skerry-groups/{name}"),
            Arc::new(group::Device(line)),
        );
    })?;
    if !peers.is_empty() {
        register(
            "skerry-broadcast",
            Arc::new(broadcast::Device(peers.clone())),
        );
    }
    if peers.is_empty() && groups.is_empty() {
        return Ok(());
    }
    LINES.call_once(|| Lines { peers, groups });
    task::spawn("peers", Some(CpuId(0)), listen).map(drop)
}

/// Takes over who the peers are by the last epoch.
pub(crate) fn follow() {
    let peers = peers::all();
    for (name, line) in lines() {
        line.follow(peers.iter().filter(|peer| usize::from(peer.name) == name));
    }
}

/// Main function of the thread that hears doorbells. Who rings for nothing is not heard for a
/// while: neither he nor anybody else, as there is one doorbell for all.
fn listen() {
    let mut deaf_ns = DEAF_NS;
    loop {
        RUNG.wait();
        let mut is_wanted = false;
        for (_, line) in lines() {
            is_wanted |= line.look();
        }
        if is_wanted {
            deaf_ns = DEAF_NS;
        } else {
            lines().for_each(|(_, line)| line.count_held_back());
            irq::mask_doorbell();
            Event::new().wait_until(Deadline::after_ns(deaf_ns));
            irq::unmask_doorbell();
            deaf_ns = (2 * deaf_ns).min(MOST_DEAF_NS);
        }
    }
}
