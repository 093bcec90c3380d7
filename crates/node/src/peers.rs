//! Who is whose peer (`docs/messages.md`): instances that were created with each other's names, or
//! with the name of one group.
//!
//! Two become peers when the younger one starts, and cease to be when one of them has ended: its
//! CPUs are parked then, and nobody else has them yet.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::dev::{self, LABEL_BYTES, PeerInfo};
use abi::errno::Errno;
use abi::messages::{
    self, COMMAND_LINE, GROUPS_COMMAND_LINE, MAX_GROUPS, MAX_NAMES, MEMBER_PLACES, Peer, is_group,
};
use fs::Result;
use guard::partition::{self, Offer, Partition, PeerPages, note_generation};
use task::{Mutex, MutexGuard};

use crate::instance::Instance;
use crate::label::Label;

/// Held while instances become peers, or cease to be.
static PAIRING: Mutex<()> = Mutex::new(());
/// The next generation; 0: there are no more.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// A generation that no other two peers have or had. By who holds [`PAIRING`].
fn new_generation() -> Option<u32> {
    let next = |now: u32| (now != 0).then(|| now.wrapping_add(1));
    let taken = GENERATION.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    taken.ok().inspect(|taken| note_generation(*taken))
}

/// Names that an instance was created with, of peers and of groups.
#[derive(Default)]
pub(crate) struct Names {
    peers: [Option<Label>; MAX_NAMES],
    groups: [Option<Label>; MAX_GROUPS],
}

/// The names in fields of a call, each once; `None` if one of them cannot be.
fn plain<const N: usize>(fields: &[[u8; LABEL_BYTES]; N]) -> Option<[Option<Label>; N]> {
    let mut names = [None; N];
    let given = fields.iter().filter(|field| field[0] != 0);
    for (number, field) in given.enumerate() {
        let name = Label::new(field)?;
        // It becomes a file's name, and a word on a command line.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let text = name.as_str().as_bytes();
        let is_good = text[0].is_ascii_alphanumeric() && text.iter().copied().all(is_plain);
        if !is_good || names.contains(&Some(name)) {
            return None;
        }
        names[number] = Some(name);
    }
    Some(names)
}

/// The names that a word on a command line has, with commas; `None` if one of them cannot be.
fn listed<const N: usize>(word: &str) -> Option<[Option<Label>; N]> {
    let mut fields = [[0; LABEL_BYTES]; N];
    for (number, name) in word.split_terminator(',').enumerate() {
        *fields.get_mut(number)? = dev::field(name).filter(|_| !name.is_empty())?;
    }
    plain(&fields)
}

impl Names {
    /// The names on the command line of an instance's kernel ([`Partition::named`]); `None` if one
    /// of them cannot be.
    pub(crate) fn from_command_line([peers, groups]: [&str; 2]) -> Option<Self> {
        Some(Self {
            peers: listed(peers)?,
            groups: listed(groups)?,
        })
    }

    /// The names in a call, for an instance of a name; `None` if one of them cannot be.
    pub(crate) fn new(
        peers: &[[u8; LABEL_BYTES]; MAX_NAMES],
        groups: &[[u8; LABEL_BYTES]; MAX_GROUPS],
        own: Label,
    ) -> Option<Self> {
        let (peers, groups) = (plain(peers)?, plain(groups)?);
        (!peers.contains(&Some(own))).then_some(Self { peers, groups })
    }

    /// The names of peers, with their numbers.
    fn peers(&self) -> impl Iterator<Item = (u8, Label)> {
        (0..).zip(self.peers.iter().copied().flatten())
    }

    /// The groups, with their numbers.
    fn groups(&self) -> impl Iterator<Item = (u8, Label)> {
        (MAX_NAMES as u8..).zip(self.groups.iter().copied().flatten())
    }

    fn number_of_peer(&self, name: Label) -> Option<u8> {
        self.peers().find_map(|(n, one)| (one == name).then_some(n))
    }

    fn number_of_group(&self, name: Label) -> Option<u8> {
        self.groups()
            .find_map(|(n, one)| (one == name).then_some(n))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers().chain(self.groups()).next().is_none()
    }

    /// Number of places that an instance needs for them.
    pub(crate) fn places(&self) -> usize {
        let [peers, groups] = [self.peers[0].is_some(), self.groups[0].is_some()];
        messages::places(peers, groups)
    }

    /// The words for the command line of the instance's kernel, each with a space before it;
    /// nothing if there are no names.
    pub(crate) fn command_line(&self) -> String {
        let mut words = String::new();
        let mut push = |key: &str, names: &mut dyn Iterator<Item = (u8, Label)>| {
            for (number, (_, name)) in names.enumerate() {
                match number {
                    0 => words.extend([" ", key, "=", name.as_str()]),
                    _ => words.extend([",", name.as_str()]),
                }
            }
        };
        push(COMMAND_LINE, &mut self.peers());
        push(GROUPS_COMMAND_LINE, &mut self.groups());
        words
    }

    /// Tells the names with the peers that there are, but for the first `from` records. Returns how
    /// many fit, and how many there are in all.
    pub(crate) fn tell(
        &self,
        partition: Option<&Partition>,
        from: usize,
        to: &mut [PeerInfo],
    ) -> (usize, usize) {
        let (mut count, mut total) = (0, 0);
        let mut push = |info: PeerInfo| {
            if let Some(to) = to.get_mut(count)
                && total >= from
            {
                *to = info;
                count += 1;
            }
            total += 1;
        };
        for (number, name) in self.peers().chain(self.groups()) {
            let absent = PeerInfo {
                label: name.0,
                flags: match is_group(number) {
                    true => dev::PEER_GROUP,
                    false => 0,
                },
                ..dev::zeroed()
            };
            let all = partition.into_iter().flat_map(Partition::peers);
            let mut known = all.filter(|(one, _)| one.name == number).peekable();
            if known.peek().is_none() {
                push(absent);
            }
            for (peer, counters) in known {
                let told = |count: &AtomicU64| count.load(Ordering::Relaxed);
                push(PeerInfo {
                    state: dev::PEER_CONNECTED,
                    instance: peer.instance,
                    sent: told(&counters.sent),
                    received: told(&counters.received),
                    refused: told(&counters.refused),
                    doorbells: told(&counters.doorbells),
                    held_back: told(&counters.held_back),
                    ..absent
                });
            }
        }
        (count, total)
    }
}

/// A running instance's offer to be the peer of one that is about to start.
struct Offered {
    by: Arc<Instance>,
    /// Number of the place there.
    place: u8,
    /// Peer of the one that offers.
    theirs: Peer,
}

/// An instance's becoming a peer of others, which is undone unless it is completed. Nobody else
/// becomes a peer, or ceases to be, meanwhile.
pub(crate) struct Pairing<'a> {
    instance: &'a Instance,
    offered: Vec<Offered>,
    /// Not there for an instance without names.
    _alone: Option<MutexGuard<'static, ()>>,
}

impl<'a> Pairing<'a> {
    /// Begins it. The instance's record must not be locked.
    pub(crate) fn begin(instance: &'a Instance) -> Self {
        let names = instance.peer_names();
        Self {
            instance,
            offered: Vec::new(),
            _alone: (!names.is_empty()).then(|| PAIRING.lock()),
        }
    }

    /// Asks those that have this instance among their names, and the members of its groups, for a
    /// place. Returns their offers, and who they are, for [`Partition::join`].
    ///
    /// # Errors
    /// No memory for a list of them.
    pub(crate) fn offer(&mut self) -> Result<Vec<(Offer, Peer)>> {
        let names = self.instance.peer_names();
        let mut accepted = Vec::new();
        let places = names.places();
        let is_room = accepted.try_reserve_exact(places);
        is_room.map_err(|_| Errno::ENOMEM)?;
        let is_room = self.offered.try_reserve_exact(places);
        is_room.map_err(|_| Errno::ENOMEM)?;
        let (id, label) = (self.instance.id(), self.instance.label());
        for (number, name) in names.peers() {
            let mut others = crate::active_instances();
            let is_it = |other: &Arc<Instance>| other.id() != id && other.label() == name;
            let Some(other) = others.find(is_it) else {
                continue;
            };
            let Some(name_there) = other.peer_names().number_of_peer(label) else {
                log::warn!("instance {label} is no peer of {name}, which does not name it");
                continue;
            };
            accepted.extend(self.ask(other, number, name_there));
        }
        let peers = accepted.len();
        for (number, group) in names.groups() {
            for other in crate::active_instances() {
                let is_room = accepted.len() - peers < MEMBER_PLACES;
                if is_room
                    && other.id() != id
                    && let Some(number_there) = other.peer_names().number_of_group(group)
                {
                    accepted.extend(self.ask(other, number, number_there));
                }
            }
        }
        Ok(accepted)
    }

    /// Asks an instance for a place, by the numbers that their common name has here and there.
    fn ask(&mut self, other: Arc<Instance>, name: u8, name_there: u8) -> Option<(Offer, Peer)> {
        let offer = other.with_partition(|partition| {
            let offer = partition.offer(name_there);
            offer.map(|offer| (offer, partition.doorbell_apic_id()))
        });
        let Some(Some((offer, Some(apic_id)))) = offer else {
            // One that does not run yet asks for a place when it starts.
            return None;
        };
        let place = offer.place();
        let Some(generation) = new_generation() else {
            log::error!("no two instances become peers any more on this machine");
            other.with_partition(|partition| partition.take_back_offer(place));
            return None;
        };
        let peer = |name, instance, apic_id| Peer {
            place,
            name,
            instance,
            apic_id,
            generation,
        };
        let accepted = (offer, peer(name, other.id(), apic_id));
        self.offered.push(Offered {
            by: other,
            place,
            theirs: peer(name_there, self.instance.id(), 0),
        });
        Some(accepted)
    }

    /// The instance has started, with its doorbell at that CPU: tells its peers.
    pub(crate) fn complete(mut self, apic_id: Option<u32>) {
        let Some(apic_id) = apic_id else {
            return;
        };
        for offered in self.offered.drain(..) {
            let peer = Peer {
                apic_id,
                ..offered.theirs
            };
            offered
                .by
                .with_partition(|partition| partition.set_peer(peer));
        }
        crate::request();
    }
}

impl Drop for Pairing<'_> {
    fn drop(&mut self) {
        for offered in &self.offered {
            let place = offered.place;
            offered
                .by
                .with_partition(|partition| partition.take_back_offer(place));
        }
    }
}

/// Takes in that an instance has ended. Its CPUs are parked, or in quarantine, and it has no
/// partition any more.
pub(crate) fn part_from(instance: &Instance) {
    if instance.peer_names().is_empty() {
        return;
    }
    let _alone = PAIRING.lock();
    let with_names = |other: &Arc<Instance>| !other.peer_names().is_empty();
    for other in crate::active_instances().filter(with_names) {
        other.with_partition(|partition: &mut Partition| partition.part_from(instance.id()));
    }
    crate::request();
}

/// Goes on where the supervisor before this one has ended, when all its instances were adopted:
/// what was peers is, whoever was to be told of a peer is told, and whose peer is gone, too.
pub(crate) fn adopt() {
    let _alone = PAIRING.lock();
    // Without knowing which there were there are no more.
    let next = partition::last_generation().map_or(0, |last| last.wrapping_add(1));
    GENERATION.store(next, Ordering::Relaxed);
    for instance in crate::active_instances().filter(|one| !one.peer_names().is_empty()) {
        let mut from = 0;
        let next = |from| instance.with_partition(|partition| partition.next_peer(from));
        while let Some(Some((peer, pages))) = next(from) {
            from = peer.place + 1;
            if !is_mutual(&instance, peer, &pages) {
                instance.with_partition(|partition| partition.leave_peer(peer.place));
            }
        }
    }
}

/// Has an instance that is the peer of another be told of that, if it was not. False if it is not
/// there, or has another peer.
fn is_mutual(instance: &Instance, peer: Peer, pages: &PeerPages) -> bool {
    let other = crate::active_instance(peer.instance);
    let Some(other) = other.filter(|other| !other.is_halted()) else {
        return false;
    };
    let there = other.with_partition(|partition| partition.place_of(pages));
    let Some(Some((place, theirs))) = there else {
        return false;
    };
    if let Some(theirs) = theirs {
        return theirs.instance == instance.id() && theirs.generation == peer.generation;
    }
    let name = match is_group(peer.name) {
        false => other.peer_names().number_of_peer(instance.label()),
        true => {
            let mut groups = instance.peer_names().groups();
            let own = groups.find(|(number, _)| *number == peer.name);
            own.and_then(|(_, group)| other.peer_names().number_of_group(group))
        }
    };
    let doorbell = instance.with_partition(|partition| partition.doorbell_apic_id());
    let (Some(name), Some(Some(apic_id))) = (name, doorbell) else {
        return false;
    };
    let instance = instance.id();
    let theirs = Peer {
        place,
        name,
        instance,
        apic_id,
        generation: peer.generation,
    };
    other.with_partition(|partition| partition.complete_peer(theirs));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str) -> [u8; LABEL_BYTES] {
        dev::field(name).unwrap()
    }

    fn names_and(of: &[&str], groups: &[&str]) -> Option<Names> {
        let mut fields = [[0; LABEL_BYTES]; MAX_NAMES];
        for (to, name) in fields.iter_mut().zip(of) {
            *to = field(name);
        }
        let mut group_fields = [[0; LABEL_BYTES]; MAX_GROUPS];
        for (to, name) in group_fields.iter_mut().zip(groups) {
            *to = field(name);
        }
        Names::new(&fields, &group_fields, Label(field("own")))
    }

    fn names(of: &[&str]) -> Option<Names> {
        names_and(of, &[])
    }

    #[test]
    fn groups_are_named_beside_peers_and_numbered_behind_them() {
        let both = names_and(&["a"], &["own", "", "a"]).unwrap();
        assert_eq!(both.command_line(), " peers=a groups=own,a");
        let number = |name| both.number_of_group(Label(field(name)));
        assert_eq!((number("own"), number("a")), (Some(8), Some(9)));
        assert_eq!(both.places(), messages::MAX_PLACES);
        let alone = names_and(&[], &["g"]).unwrap();
        assert_eq!(alone.command_line(), " groups=g");
        assert!(!alone.is_empty() && alone.places() == messages::MAX_PLACES);
        assert!(names_and(&[], &["g", "g"]).is_none());
        assert!(names_and(&[], &["a/b"]).is_none());
    }

    #[test]
    fn names_are_read_back_from_a_command_line() {
        let most: Vec<String> = (0..MAX_NAMES).map(|n| format!("peer-{n}")).collect();
        let most: Vec<&str> = most.iter().map(String::as_str).collect();
        let groups = ["g", "h", "i", "own"];
        for (peers, groups) in [
            (&[][..], &[][..]),
            (&["a"], &[]),
            (&[], &["g"]),
            (&most, &groups),
        ] {
            let made = names_and(peers, groups).unwrap();
            let line = made.command_line();
            let word = |key| guard_word(&line, key);
            let read = Names::from_command_line([word("peers"), word("groups")]).unwrap();
            assert_eq!((read.peers, read.groups), (made.peers, made.groups));
        }
        for bad in ["a,", ",a", "a,,b", "a,a", "a/b", "1,2,3,4,5,6,7,8,9"] {
            let is_read = Names::from_command_line([bad, ""]).is_some();
            assert_eq!(is_read, bad == "a,", "{bad}");
        }
    }

    fn guard_word<'a>(line: &'a str, key: &str) -> &'a str {
        let mut words = line.split(' ').filter_map(|word| word.split_once('='));
        words.find(|(one, _)| *one == key).map_or("", |word| word.1)
    }

    #[test]
    fn records_are_told_some_at_a_time() {
        let names = names_and(&["a", "b"], &["g"]).unwrap();
        let mut told: [PeerInfo; 2] = [dev::zeroed(); 2];
        assert_eq!(names.tell(None, 0, &mut told), (2, 3));
        assert_eq!((told[0].label, told[1].flags), (field("a"), 0));
        assert_eq!(names.tell(None, 2, &mut told), (1, 3));
        assert_eq!(told[0].label, field("g"));
        assert_eq!((told[0].flags, told[0].state), (dev::PEER_GROUP, 0));
        assert_eq!(names.tell(None, 9, &mut told), (0, 3));
    }

    #[test]
    fn names_are_plain_and_once_and_anothers() {
        let good = names(&["a", "", "b-1.x_Y"]).unwrap();
        assert_eq!(good.command_line(), " peers=a,b-1.x_Y");
        assert_eq!(good.number_of_peer(Label(field("b-1.x_Y"))), Some(1));
        assert!(!good.is_empty() && good.places() == messages::PEER_PLACES);
        let none = names(&[]).unwrap();
        assert!(none.is_empty() && none.command_line().is_empty());
        for bad in ["own", "a/b", "a b", "a,b", "-a", "..", "\u{e4}"] {
            assert!(names(&["a", bad]).is_none(), "{bad}");
        }
        assert!(names(&["a", "a"]).is_none());
    }
}
