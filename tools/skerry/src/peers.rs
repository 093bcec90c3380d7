//! Instances that exchange messages (`--peer`; `docs/messages.md`).

use std::fmt;

use abi::dev::{self, Create, Peers};
use abi::messages::MAX_NAMES;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::names;

/// A peer in `inspect --json`.
#[derive(Debug, PartialEq, Eq, Serialize)]
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
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            sent,
            received,
            refused,
            doorbells,
            ..
        } = self;
        match self.id {
            None => write!(f, "{name} (not there)"),
            Some(_) => write!(
                f,
                "{name}: {sent} sent, {received} received, {refused} refused, {doorbells} doorbells"
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
    fn peers_are_shown_as_the_kernel_tells_of_them() {
        let mut peers: Peers = dev::zeroed();
        assert_eq!(shown(&peers), []);
        peers.count = 2;
        peers.peers[0].label = dev::field("here").unwrap();
        peers.peers[0].state = dev::PEER_CONNECTED;
        (peers.peers[0].instance, peers.peers[0].sent) = (7, 3);
        peers.peers[1].label = dev::field("away").unwrap();
        let [here, away] = &shown(&peers)[..] else {
            panic!("two");
        };
        assert_eq!((&*here.name, here.id, here.sent), ("here", Some(7), 3));
        assert_eq!((&*away.name, away.id), ("away", None));
    }
}
