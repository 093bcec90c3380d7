//! Instances that exchange messages (`--peer`; `docs/messages.md`).

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use abi::dev::{self, Create, Peers};
use abi::messages::MAX_NAMES;
use serde::Serialize;

use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::names;

/// A peer in `inspect --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Name of the peer.
    pub name: String,
    /// Number of the instance, if they exchange messages.
    pub id: Option<u32>,
    /// Messages sent to it, since it has been there.
    pub sent: u64,
    /// Messages taken from it.
    pub received: u64,
    /// Messages that programs wanted to send when there was no room.
    pub refused: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Times that it did not listen to doorbells for a millisecond, because the peer had rung for
    /// nothing.
    pub held_back: u64,
}

impl Shown {
    /// Counts of this peer that are sums over time.
    fn counts(&self) -> [u64; 5] {
        let Self {
            name: _,
            id: _,
            sent,
            received,
            refused,
            doorbells,
            held_back,
        } = self;
        [sent, received, refused, doorbells, held_back].map(|count| *count)
    }
}

/// A peer in `stats --json`: its counts, and those of a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rated {
    /// The peer.
    #[serde(flatten)]
    pub peer: Shown,
    /// Its counts in a second.
    pub rates: Rates,
}

/// Counts of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Messages sent.
    pub sent: f64,
    /// Messages taken.
    pub received: f64,
    /// Messages for which there was no room.
    pub refused: f64,
    /// Doorbells rung.
    pub doorbells: f64,
    /// Times that doorbells were held back.
    pub held_back: f64,
}

impl Rates {
    fn new(before: Option<&Shown>, now: &Shown, passed: Duration) -> Self {
        let since = before.map_or([0; 5], Shown::counts);
        let seconds = passed.as_secs_f64().max(1e-9);
        let mut rates = now.counts().into_iter().zip(since).map(|(now, before)| {
            // An instance can write any number; one that became less begins anew.
            let more = now.checked_sub(before).unwrap_or(now);
            (more as f64 / seconds * 10.0).round() / 10.0
        });
        let mut next = || rates.next().unwrap_or_default();
        Self {
            sent: next(),
            received: next(),
            refused: next(),
            doorbells: next(),
            held_back: next(),
        }
    }

    /// Sum of the rates of several peers.
    #[must_use]
    pub fn sum(all: &[Rated]) -> Self {
        all.iter().fold(Self::default(), |sum, one| Self {
            sent: sum.sent + one.rates.sent,
            received: sum.received + one.rates.received,
            refused: sum.refused + one.rates.refused,
            doorbells: sum.doorbells + one.rates.doorbells,
            held_back: sum.held_back + one.rates.held_back,
        })
    }
}

/// Peers with what their counts became in the time since an earlier look. One that is another
/// incarnation by now has all of its counts since.
#[must_use]
pub fn rated(before: &[Shown], now: &[Shown], passed: Duration) -> Vec<Rated> {
    let rate = |peer: &Shown| {
        let is_it = |other: &&Shown| other.name == peer.name && other.id == peer.id;
        Rated {
            peer: peer.clone(),
            rates: Rates::new(before.iter().find(is_it), peer, passed),
        }
    };
    now.iter().map(rate).collect()
}

/// The peers of an instance; none if it is gone.
///
/// # Errors
/// The device's.
pub fn of(device: &dyn Device, id: u32) -> io::Result<Vec<Shown>> {
    match device.peers(id) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        peers => Ok(shown(&peers?)),
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            sent,
            received,
            refused,
            doorbells,
            held_back,
            id: _,
        } = self;
        match self.id {
            None => write!(f, "{name} (not there)"),
            Some(_) => write!(
                f,
                "{name}: {sent} sent, {received} received, {refused} refused, {doorbells} \
                 doorbells, {held_back} held back"
            ),
        }
    }
}

/// Checks the names of an instance's peers; `own` is its name, if it was given one.
///
/// # Errors
/// Says what is wrong, and what would be right.
pub fn check(peers: &[String], own: Option<&str>) -> Result<()> {
    if peers.len() > MAX_NAMES {
        return Err(Failure::new(format!(
            "{} peers are too many: give --peer at most {MAX_NAMES} times",
            peers.len()
        )));
    }
    for (number, name) in peers.iter().enumerate() {
        names::check(name)?;
        if own == Some(name) {
            return Err(Failure::new(format!(
                "{name} cannot be its own peer: give --peer the name of another instance"
            )));
        }
        if peers[..number].contains(name) {
            return Err(Failure::new(format!("--peer {name} is given twice")));
        }
    }
    Ok(())
}

/// Puts names that were [checked](check) into a call.
pub fn ask(call: &mut Create, peers: &[String]) {
    for (to, name) in call.peers.iter_mut().zip(peers) {
        *to = dev::field(name).unwrap_or([0; dev::LABEL_BYTES]);
    }
}

/// The peers of an instance, from the device's record.
#[must_use]
pub fn shown(peers: &Peers) -> Vec<Shown> {
    let known = peers.peers.iter().take(peers.count as usize);
    let show = |peer: &dev::PeerInfo| Shown {
        name: dev::text(&peer.label).unwrap_or_default().to_owned(),
        id: (peer.state == dev::PEER_CONNECTED).then_some(peer.instance),
        sent: peer.sent,
        received: peer.received,
        refused: peer.refused,
        doorbells: peer.doorbells,
        held_back: peer.held_back,
    };
    known.map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_anything_is_made() {
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().copied().map(String::from).collect();
            check(&names, Some("own")).map_err(|failure| failure.message)
        };
        check(&[]).unwrap();
        check(&["a", "b"]).unwrap();
        for (names, said) in [
            (&["a", "own"][..], "its own peer"),
            (&["a", "b", "a"], "given twice"),
            (&["a b"], "letters"),
            (&["1", "2", "3", "4", "5", "6", "7", "8", "9"], "at most 8"),
        ] {
            assert!(check(names).unwrap_err().contains(said), "{names:?}");
        }
    }

    #[test]
    fn rates_are_of_one_incarnation() {
        let peer = |id, sent, refused| Shown {
            name: "b".into(),
            id: Some(id),
            sent,
            received: 0,
            refused,
            doorbells: 0,
            held_back: 0,
        };
        let rates = |before: &[Shown], now| {
            let [one] = &rated(before, &[now], Duration::from_secs(2))[..] else {
                panic!("one");
            };
            (one.rates.sent, one.rates.refused)
        };
        assert_eq!(rates(&[peer(1, 10, 1)], peer(1, 30, 4)), (10.0, 1.5));
        assert_eq!(rates(&[peer(1, 10, 1)], peer(2, 30, 4)), (15.0, 2.0));
        assert_eq!(rates(&[], peer(1, 30, 4)), (15.0, 2.0));
        // One that lies tells of a great number, and nothing else happens.
        assert_eq!(rates(&[peer(1, u64::MAX, 5)], peer(1, 30, 5)), (15.0, 0.0));
        let all = rated(
            &[],
            &[peer(1, 30, 4), peer(1, 10, 0)],
            Duration::from_secs(2),
        );
        assert_eq!(Rates::sum(&all).sent, 20.0);
    }

    #[test]
    fn peers_are_shown_as_the_kernel_tells_of_them() {
        let mut peers: Peers = dev::zeroed();
        assert_eq!(shown(&peers), []);
        peers.count = 2;
        peers.peers[0].label = dev::field("here").unwrap();
        peers.peers[0].state = dev::PEER_CONNECTED;
        (peers.peers[0].instance, peers.peers[0].sent) = (7, 3);
        peers.peers[1].label = dev::field("away").unwrap();
        peers.peers[0].held_back = 9;
        let [here, away] = &shown(&peers)[..] else {
            panic!("two");
        };
        assert_eq!((&*here.name, here.id, here.sent), ("here", Some(7), 3));
        assert_eq!(here.held_back, 9);
        assert_eq!((&*away.name, away.id), ("away", None));
    }
}
