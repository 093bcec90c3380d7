//! Who is whose peer (`docs/messages.md`): instances that were created with each other's names.
//!
//! Two become peers when the younger one starts, and cease to be when one of them has ended: its
//! CPUs are parked then, and nobody else has them yet.

use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::dev::{self, LABEL_BYTES, PeerInfo};
use abi::messages::{COMMAND_LINE, MAX_NAMES, Peer};
use guard::partition::{Offer, Partition};
use task::{Mutex, MutexGuard};

use crate::instance::Instance;
use crate::label::Label;

/// Held while instances become peers, or cease to be.
static PAIRING: Mutex<()> = Mutex::new(());
/// The next generation; 0: there are no more.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// A generation that no other two peers have or had.
fn new_generation() -> Option<u32> {
    let next = |now: u32| (now != 0).then(|| now.wrapping_add(1));
    let taken = GENERATION.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    taken.ok()
}

/// Names of peers that an instance was created with.
pub(crate) struct Names([Option<Label>; MAX_NAMES]);

impl Names {
    /// The names in a call, for an instance of a name; `None` if one of them cannot be.
    pub(crate) fn new(fields: &[[u8; LABEL_BYTES]; MAX_NAMES], own: Label) -> Option<Self> {
        let mut names = Self([None; MAX_NAMES]);
        let given = fields.iter().filter(|field| field[0] != 0);
        for (number, field) in given.enumerate() {
            let name = Label::new(field)?;
            // It becomes a file's name, and a word on a command line.
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            let text = name.as_str().as_bytes();
            let is_good = text[0].is_ascii_alphanumeric() && text.iter().copied().all(is_plain);
            if !is_good || name == own || names.number_of(name).is_some() {
                return None;
            }
            names.0[number] = Some(name);
        }
        Some(names)
    }

    fn iter(&self) -> impl Iterator<Item = Label> {
        self.0.iter().copied().flatten()
    }

    fn number_of(&self, name: Label) -> Option<u8> {
        let number = self.iter().position(|one| one == name)?;
        u8::try_from(number).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// The word for the command line of the instance's kernel, with a space before it; nothing if
    /// there are no names.
    pub(crate) fn command_line(&self) -> String {
        let mut word = String::new();
        for name in self.iter() {
            word += match word.is_empty() {
                true => " ",
                false => ",",
            };
            if word.len() == 1 {
                word += COMMAND_LINE;
                word += "=";
            }
            word += name.as_str();
        }
        word
    }

    /// The names, with the peers that there are.
    pub(crate) fn tell(
        &self,
        partition: Option<&Partition>,
        to: &mut [PeerInfo; MAX_NAMES],
    ) -> usize {
        let mut count = 0;
        for (number, (name, to)) in self.iter().zip(to).enumerate() {
            *to = PeerInfo {
                label: name.0,
                ..dev::zeroed()
            };
            let mut peers = partition.into_iter().flat_map(Partition::peers);
            if let Some((peer, counters)) = peers.find(|(one, _)| usize::from(one.name) == number) {
                to.state = dev::PEER_CONNECTED;
                to.instance = peer.instance;
                to.sent = counters.sent.load(Ordering::Relaxed);
                to.received = counters.received.load(Ordering::Relaxed);
                to.refused = counters.refused.load(Ordering::Relaxed);
                to.doorbells = counters.doorbells.load(Ordering::Relaxed);
                to.held_back = counters.held_back.load(Ordering::Relaxed);
            }
            count += 1;
        }
        count
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
    offered: [Option<Offered>; MAX_NAMES],
    /// Not there for an instance without names.
    _alone: Option<MutexGuard<'static, ()>>,
}

impl<'a> Pairing<'a> {
    /// Begins it. The instance's record must not be locked.
    pub(crate) fn begin(instance: &'a Instance) -> Self {
        let names = instance.peer_names();
        Self {
            instance,
            offered: [const { None }; MAX_NAMES],
            _alone: (!names.is_empty()).then(|| PAIRING.lock()),
        }
    }

    /// Asks those that have this instance among their names for a place. Returns their offers, and
    /// who they are, for [`Partition::join`].
    pub(crate) fn offer(&mut self) -> [Option<(Offer, Peer)>; MAX_NAMES] {
        let mut accepted = [const { None }; MAX_NAMES];
        let (id, label) = (self.instance.id(), self.instance.label());
        let names = self.instance.peer_names().iter();
        for (number, name) in names.enumerate() {
            let mut others = crate::active_instances();
            let is_it = |other: &Arc<Instance>| other.id() != id && other.label() == name;
            let Some(other) = others.find(is_it) else {
                continue;
            };
            let Some(name_there) = other.peer_names().number_of(label) else {
                log::warn!("instance {label} is no peer of {name}, which does not name it");
                continue;
            };
            let offer = other.with_partition(|partition| {
                partition
                    .offer()
                    .map(|offer| (offer, partition.doorbell_apic_id()))
            });
            let Some(Some((offer, Some(apic_id)))) = offer else {
                // One that does not run yet asks for a place when it starts.
                continue;
            };
            let place = offer.place();
            let Some(generation) = new_generation() else {
                log::error!("no two instances become peers any more on this machine");
                other.with_partition(|partition| partition.take_back_offer(place));
                return accepted;
            };
            let peer = |name, instance, apic_id| Peer {
                place,
                name,
                instance,
                apic_id,
                generation,
            };
            accepted[number] = Some((offer, peer(number as u8, other.id(), apic_id)));
            self.offered[number] = Some(Offered {
                by: other,
                place,
                theirs: peer(name_there, id, 0),
            });
        }
        accepted
    }

    /// The instance has started, with its doorbell at that CPU: tells its peers.
    pub(crate) fn complete(mut self, apic_id: Option<u32>) {
        let Some(apic_id) = apic_id else {
            return;
        };
        for offered in self.offered.iter_mut().filter_map(Option::take) {
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
        for offered in self.offered.iter().flatten() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str) -> [u8; LABEL_BYTES] {
        dev::field(name).unwrap()
    }

    fn names(of: &[&str]) -> Option<Names> {
        let mut fields = [[0; LABEL_BYTES]; MAX_NAMES];
        for (to, name) in fields.iter_mut().zip(of) {
            *to = field(name);
        }
        Names::new(&fields, Label(field("own")))
    }

    #[test]
    fn names_are_plain_and_once_and_anothers() {
        let good = names(&["a", "", "b-1.x_Y"]).unwrap();
        assert_eq!(good.command_line(), " peers=a,b-1.x_Y");
        assert_eq!(good.number_of(Label(field("b-1.x_Y"))), Some(1));
        assert!(!good.is_empty());
        let none = names(&[]).unwrap();
        assert!(none.is_empty() && none.command_line().is_empty());
        for bad in ["own", "a/b", "a b", "a,b", "-a", "..", "\u{e4}"] {
            assert!(names(&["a", bad]).is_none(), "{bad}");
        }
        assert!(names(&["a", "a"]).is_none());
    }
}
