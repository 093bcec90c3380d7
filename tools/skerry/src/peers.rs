//! Instances that exchange messages (`--peer`, `--group`; `docs/messages.md`).

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use abi::dev::{self, Create, PeerInfo};
use abi::messages::{MAX_GROUPS, MAX_NAMES};
use serde::Serialize;

use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::instances::label;
use crate::names;

/// A peer, or another member of a group, in `inspect --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Name of the peer; empty for a group without another member.
    pub name: String,
    /// Group that it is a member of, unless it is a peer by its own name.
    pub group: Option<String>,
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
    /// Times that it did not listen to doorbells for a while, because the peer had rung for
    /// nothing.
    pub held_back: u64,
}

impl Shown {
    /// Counts of this peer that are sums over time.
    fn counts(&self) -> [u64; 5] {
        let Self {
            name: _,
            group: _,
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
    /// Messages and doorbells exchanged with the peer, a second.
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
        let is_it = |other: &&Shown| (&other.group, other.id) == (&peer.group, peer.id);
        let is_it = |other: &&Shown| is_it(other) && other.name == peer.name;
        Rated {
            peer: peer.clone(),
            rates: Rates::new(before.iter().find(is_it), peer, passed),
        }
    };
    now.iter().map(rate).collect()
}

/// The peers of an instance, and the members of its groups; none if it is gone.
///
/// # Errors
/// The device's.
pub fn of(device: &dyn Device, id: u32) -> io::Result<Vec<Shown>> {
    match all(device, id) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        peers => peers,
    }
}

fn all(device: &dyn Device, id: u32) -> io::Result<Vec<Shown>> {
    let mut shown = Vec::new();
    loop {
        let told = device.peers(id, shown.len() as u32)?;
        let count = (told.count as usize).min(told.peers.len());
        shown.extend(told.peers[..count].iter().map(|peer| {
            let member = device.status(peer.instance);
            let member = member.ok().map(|status| label(&status).to_owned());
            show(peer, member)
        }));
        if count == 0 || shown.len() >= told.total as usize {
            return Ok(shown);
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            group,
            sent,
            received,
            refused,
            doorbells,
            held_back,
            id: _,
        } = self;
        if let Some(group) = group {
            write!(f, "{group}: ")?;
        }
        match self.id {
            None if group.is_some() => f.write_str("no other member"),
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
    check_each("peer", peers, MAX_NAMES)?;
    match peers.iter().find(|name| own == Some(name)) {
        None => Ok(()),
        Some(name) => Err(Failure::new(format!(
            "{name} cannot be its own peer: give --peer the name of another instance"
        ))),
    }
}

/// Checks the names of an instance's groups.
///
/// # Errors
/// Says what is wrong, and what would be right.
pub fn check_groups(groups: &[String]) -> Result<()> {
    check_each("group", groups, MAX_GROUPS)
}

/// Checks the names that were given to an option.
fn check_each(option: &str, given: &[String], most: usize) -> Result<()> {
    if given.len() > most {
        return Err(Failure::new(format!(
            "{} {option}s are too many: give --{option} at most {most} times",
            given.len()
        )));
    }
    for (number, name) in given.iter().enumerate() {
        names::check(name)?;
        if given[..number].contains(name) {
            return Err(Failure::new(format!("--{option} {name} is given twice")));
        }
    }
    Ok(())
}

/// Puts names that were checked into a call.
pub fn ask(call: &mut Create, peers: &[String], groups: &[String]) {
    let peers = call.peers.iter_mut().zip(peers);
    for (to, name) in peers.chain(call.groups.iter_mut().zip(groups)) {
        *to = dev::field(name).unwrap_or([0; dev::LABEL_BYTES]);
    }
}

/// A peer from the device's record, or, with its name, a group's member.
fn show(peer: &PeerInfo, member: Option<String>) -> Shown {
    let name = dev::text(&peer.label).unwrap_or_default().to_owned();
    let is_member = peer.flags & dev::PEER_GROUP != 0;
    let (name, group) = match is_member {
        true => (member.unwrap_or_default(), Some(name)),
        false => (name, None),
    };
    Shown {
        name,
        group,
        id: (peer.state == dev::PEER_CONNECTED).then_some(peer.instance),
        sent: peer.sent,
        received: peer.received,
        refused: peer.refused,
        doorbells: peer.doorbells,
        held_back: peer.held_back,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{CreateOptions, create};
    use crate::mock::{Mock, request};

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
            group: None,
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
    fn groups_are_checked_as_peers_are() {
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().copied().map(String::from).collect();
            check_groups(&names).map_err(|failure| failure.message)
        };
        check(&["a", "b", "c", "d"]).unwrap();
        for (names, said) in [
            (&["a", "a"][..], "--group a is given twice"),
            (&["a/b"], "letters"),
            (&["1", "2", "3", "4", "5"], "--group at most 4 times"),
        ] {
            assert!(check(names).unwrap_err().contains(said), "{names:?}");
        }
    }

    #[test]
    fn peers_are_shown_as_the_kernel_tells_of_them() {
        let mut info: PeerInfo = dev::zeroed();
        info.label = dev::field("here").unwrap();
        let away = show(&info, None);
        assert_eq!((&*away.name, &away.group, away.id), ("here", &None, None));
        assert_eq!(away.to_string(), "here (not there)");
        info.state = dev::PEER_CONNECTED;
        (info.instance, info.sent, info.held_back) = (7, 3, 9);
        let here = show(&info, Some("here".into()));
        assert_eq!((here.id, here.sent, here.held_back), (Some(7), 3, 9));
        assert!(here.to_string().starts_with("here: 3 sent, "), "{here}");
        info.flags = dev::PEER_GROUP;
        let member = show(&info, Some("one".into()));
        assert_eq!(
            (&*member.name, member.group.as_deref()),
            ("one", Some("here"))
        );
        assert!(
            member.to_string().starts_with("here: one: 3 sent"),
            "{member}"
        );
        info.state = dev::PEER_ABSENT;
        assert_eq!(show(&info, None).to_string(), "here: no other member");
    }

    #[test]
    fn all_records_are_asked_for_until_there_are_no_more() {
        let mock = Mock::new(4, 1 << 30);
        let groups = ["g", "h"].map(String::from).to_vec();
        let peers = (0..8).map(|n| format!("p{n}")).collect();
        let options = CreateOptions {
            peers,
            groups,
            ..request("one", &["sleep"])
        };
        let created = create(&mock, &options, SystemTime::now()).unwrap();
        let all = of(&mock, created.id).unwrap();
        assert_eq!(all.len(), 10);
        assert_eq!(all[7].name, "p7");
        assert_eq!(all[9].group.as_deref(), Some("h"));
        assert_eq!(of(&mock, 99).unwrap(), []);
    }
}
