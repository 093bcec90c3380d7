//! A router knows of a host's groups what the host wants, whatever was lost on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::Malformed;
use crate::ipv4::{HEADER, Packet};

const GROUPS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(239, 1, 1, 1),
    Ipv4Addr::new(239, 1, 1, 2),
    igmp::ALL_HOSTS,
];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn source(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, number)
}

/// Sources of a group that are wanted, or those that are not, and others are.
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    mode: Mode,
    sources: BTreeSet<Ipv4Addr>,
}

const NOTHING: State = State {
    mode: Mode::Include,
    sources: BTreeSet::new(),
};

/// A router that believes what it hears (RFC 3376, 6.4), and knows of no group by itself.
#[derive(Default)]
struct Router(BTreeMap<Ipv4Addr, State>);

impl Router {
    fn hear(&mut self, report: &[u8]) {
        let count = u16::from_be_bytes([report[6], report[7]]);
        let mut rest = &report[8..];
        for _ in 0..count {
            let address = |at: usize| Ipv4Addr::from(*rest[at..].first_chunk::<4>().unwrap());
            let sources = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
            let listed: BTreeSet<_> = (0..sources).map(|n| address(8 + 4 * n)).collect();
            assert_eq!(listed.len(), sources, "a source is listed twice");
            let state = self.0.entry(address(4)).or_insert(NOTHING);
            match (rest[0], state.mode) {
                (1 | 3, _) => (state.mode, state.sources) = (Mode::Include, listed),
                (2 | 4, _) => (state.mode, state.sources) = (Mode::Exclude, listed),
                (5, Mode::Include) | (6, Mode::Exclude) => state.sources.extend(listed),
                (5 | 6, _) => state.sources.retain(|known| !listed.contains(known)),
                (kind, _) => panic!("a record of kind {kind}"),
            }
            rest = &rest[8 + 4 * sources..];
        }
        assert!(rest.is_empty());
        self.0.retain(|_, state| *state != NOTHING);
    }
}

/// The wishes of members, merged by the book (RFC 3376, 3.2).
fn merged(members: &[State]) -> State {
    let of = |mode: Mode| members.iter().filter(move |member| member.mode == mode);
    let wanted: BTreeSet<_> = of(Mode::Include)
        .flat_map(|one| one.sources.clone())
        .collect();
    let mut unwanted = of(Mode::Exclude).map(|one| one.sources.clone());
    match unwanted.next() {
        None => State {
            mode: Mode::Include,
            sources: wanted,
        },
        Some(first) => {
            let all = unwanted.fold(first, |all, one| &all & &one);
            State {
                mode: Mode::Exclude,
                sources: &all - &wanted,
            }
        }
    }
}

fn list(state: &State) -> Vec<IpAddr> {
    state
        .sources
        .iter()
        .map(|source| (*source).into())
        .collect()
}

fn set(
    groups: &mut Groups<Ipv4Addr>,
    now: Nanos,
    group: Ipv4Addr,
    before: Option<&State>,
    after: Option<&State>,
) {
    let lists = [before, after].map(|state| state.map(list));
    let filter = |state: Option<&State>, at: usize| {
        let sources = lists[at].as_deref()?;
        Some((state?.mode, sources))
    };
    let filter = |state, at| filter(state, at).map(|(mode, sources)| Filter { mode, sources });
    groups
        .change(now, group, filter(before, 0), filter(after, 1))
        .unwrap();
}

fn any_state() -> impl Strategy<Value = Option<State>> {
    let sources = proptest::collection::btree_set((0u8..5).prop_map(source), 0..4);
    proptest::option::weighted(0.7, (any::<bool>(), sources)).prop_map(|state| {
        state.and_then(|(includes, sources)| {
            let mode = if includes {
                Mode::Include
            } else {
                Mode::Exclude
            };
            // Who wants nothing of anybody is no member.
            Some(State { mode, sources }).filter(|state| *state != NOTHING)
        })
    })
}

proptest! {
    /// Members come, go and change; of two rounds of messages one may be lost. In the end the
    /// router knows what is wanted, and the host has nothing left to say.
    #[test]
    fn a_router_comes_to_know_what_is_wanted(
        steps in proptest::collection::vec(
            (0usize..3, 0usize..4, any_state(), any::<bool>(), any::<bool>()),
            0..40,
        ),
    ) {
        let mut groups = Groups::default();
        let mut members: BTreeMap<(usize, usize), State> = BTreeMap::new();
        let mut router = Router::default();
        let (mut now, mut was_lost) = (0, false);
        let mut round = |groups: &mut Groups<_>, router: &mut Router, loses: bool| {
            let Some(due) = groups.deadline() else { return false };
            now = due.max(now);
            was_lost = loses && !was_lost;
            for message in groups.messages(now, |most| most - 1) {
                let MessageOf::Report(report) = message else { panic!("{message:?}") };
                assert!(report.len() <= Ipv4Addr::LONGEST_REPORT);
                if !was_lost {
                    router.hear(&report);
                }
            }
            true
        };
        for (group, member, after, tells, loses) in steps {
            let before = members.get(&(group, member)).cloned();
            set(&mut groups, 0, GROUPS[group], before.as_ref(), after.as_ref());
            match after {
                Some(after) => drop(members.insert((group, member), after)),
                None => drop(members.remove(&(group, member))),
            }
            if tells {
                round(&mut groups, &mut router, loses);
            }
        }
        // The last word of each change may have been lost, its first was not then.
        while round(&mut groups, &mut router, false) {}
        let all = members.keys().map(|(group, _)| *group).collect::<BTreeSet<_>>();
        let mut wanted = BTreeMap::new();
        for at in all {
            let of: Vec<_> = members.iter().filter(|((group, _), _)| *group == at).collect();
            let states: Vec<_> = of.iter().map(|(_, state)| (*state).clone()).collect();
            prop_assert!(groups.contains(GROUPS[at]));
            if GROUPS[at].is_told() {
                wanted.insert(GROUPS[at], merged(&states));
            }
        }
        prop_assert_eq!(&router.0, &wanted);
        // And one that has just come, and asks, hears the same.
        let query = Query { version: Version::Newest, within: SECOND, group: None, robustness: 0 };
        groups.take_query(now, &query, |most| most / 2);
        let mut other = Router::default();
        prop_assert_eq!(groups.deadline(), Some(now + SECOND / 2));
        prop_assert!(groups.messages(now, |_| 0).is_empty(), "it is not time yet");
        for message in groups.messages(now + SECOND / 2, |_| 0) {
            let MessageOf::Report(report) = message else { panic!("{message:?}") };
            other.hear(&report);
        }
        prop_assert_eq!(&other.0, &wanted);
        prop_assert_eq!(groups.deadline(), None);
        // What nobody is in any more leaves nothing.
        for ((group, _), state) in &members {
            set(&mut groups, now, GROUPS[*group], Some(state), None);
        }
        while let Some(due) = groups.deadline() {
            groups.messages(due, |_| 0);
        }
        prop_assert!(groups.groups.is_empty());
    }

    #[test]
    fn no_bytes_panic(mut bytes: Vec<u8>, kind in 0x10u8..0x24, seals: bool) {
        if seals && bytes.len() >= 4 {
            bytes[0] = kind;
            bytes[2..4].fill(0);
            let sum = crate::checksum(&bytes);
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let _ = igmp::Message::parse(&bytes);
    }
}

const ALL: Filter<'_> = Filter {
    mode: Mode::Exclude,
    sources: &[],
};

fn query(bytes: &[u8]) -> Query<Ipv4Addr> {
    let mut bytes = bytes.to_vec();
    let sum = crate::checksum(&bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    match igmp::Message::parse(&bytes) {
        Ok(Some(igmp::Message::Query(query))) => query,
        other => panic!("{other:?}"),
    }
}

#[test]
fn questions_are_read_as_the_rfcs_say() {
    let first = query(&[0x11, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        (first.version, first.within, first.group),
        (Version::First, 10 * SECOND, None)
    );
    let second = query(&[0x11, 5, 0, 0, 239, 1, 1, 1]);
    assert_eq!(
        (second.version, second.within),
        (Version::Second, SECOND / 2)
    );
    assert_eq!(second.group, Some(GROUPS[0]));
    let third = query(&[0x11, 0x9a, 0, 0, 0, 0, 0, 0, 3, 125, 0, 0]);
    // 0x9a: exponent 1, mantissa 10.
    assert_eq!(
        (third.version, third.within),
        (Version::Newest, (26 << 4) * (SECOND / 10))
    );
    assert_eq!(third.robustness, 3);
    for bad in [
        &[0x11, 0, 0xee, 0xff, 0, 0, 0][..],
        &[0x11, 1, 0, 0, 10, 0, 0, 1],
        &[0x11; 10],
    ] {
        let mut sealed = bad.to_vec();
        sealed[2..4].fill(0);
        let sum = crate::checksum(&sealed);
        sealed[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(igmp::Message::parse(&sealed), Err(Malformed), "{bad:?}");
    }
    assert_eq!(
        igmp::Message::parse(&[0x11, 0, 1, 2, 0, 0, 0, 0]),
        Err(Malformed)
    );
}

#[test]
fn older_routers_are_told_in_their_way() {
    let mut groups = Groups::default();
    groups.take_query(0, &query(&[0x11, 100, 0, 0, 0, 0, 0, 0]), |_| 0);
    assert_eq!(groups.version(0), Version::Second);
    groups.change(0, GROUPS[0], None, Some(ALL)).unwrap();
    let first = groups.messages(0, |most| most - 1);
    assert_eq!(first, [MessageOf::Joined(GROUPS[0])]);
    let (header, bytes) = igmp::packet(OWN, Version::Second, &first[0]).unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(
        (packet.header, header.ttl, header.destination),
        (header, 1, GROUPS[0])
    );
    assert_eq!(packet.header_bytes[HEADER..], [148, 4, 0, 0]);
    assert_eq!(packet.payload[0], 0x16);
    assert_eq!(
        igmp::Message::parse(packet.payload),
        Ok(Some(igmp::Message::Report(GROUPS[0])))
    );
    // Told once more within ten seconds.
    assert_eq!(groups.deadline(), Some(10 * SECOND));
    assert_eq!(groups.messages(10 * SECOND, |_| 0).len(), 1);
    assert_eq!(groups.deadline(), None);
    // Who hears another one answer need not.
    groups.take_query(20 * SECOND, &query(&[0x11, 100, 0, 0, 0, 0, 0, 0]), |_| 5);
    groups.heard_report(20 * SECOND, GROUPS[0]);
    assert!(groups.messages(20 * SECOND + 5, |_| 0).is_empty());
    assert_eq!(groups.deadline(), None);
    groups.take_query(20 * SECOND, &query(&[0x11, 100, 0, 0, 239, 1, 1, 1]), |_| 5);
    assert_eq!(groups.messages(20 * SECOND + 5, |_| 0).len(), 1);
    groups
        .change(21 * SECOND, GROUPS[0], Some(ALL), None)
        .unwrap();
    let left = groups.messages(21 * SECOND, |_| 0);
    assert_eq!(left, [MessageOf::Left(GROUPS[0])]);
    let (header, bytes) = igmp::packet(OWN, Version::Second, &left[0]).unwrap();
    assert_eq!(
        (header.destination, bytes[24]),
        (Ipv4Addr::new(224, 0, 0, 2), 0x17)
    );
    assert!(igmp::packet(OWN, Version::First, &left[0]).is_none());
    assert_eq!(
        (groups.deadline(), groups.contains(GROUPS[0])),
        (None, false)
    );
    // When the old router has not asked for long the new version is spoken again.
    assert_eq!(groups.version(280 * SECOND - 1), Version::Second);
    assert_eq!(groups.version(280 * SECOND), Version::Newest);
}

#[test]
fn a_host_is_in_the_groups_of_its_addresses_whatever_programs_do() {
    let mut groups = Groups::default();
    groups.hold(0, GROUPS[0], true).unwrap();
    groups.change(0, GROUPS[0], None, Some(ALL)).unwrap();
    groups.change(0, GROUPS[0], Some(ALL), None).unwrap();
    assert!(groups.contains(GROUPS[0]));
    assert_eq!(groups.iter().collect::<Vec<_>>(), [(GROUPS[0], 1)]);
    groups.change(0, GROUPS[1], None, Some(ALL)).unwrap();
    groups.let_go();
    assert_eq!(groups.iter().collect::<Vec<_>>(), [(GROUPS[1], 1)]);
    // A link that has come up is told of all.
    groups.messages(0, |_| 0);
    groups.tell_all(5);
    assert_eq!(
        (groups.deadline(), groups.messages(5, |_| 0).len()),
        (Some(5), 1)
    );
}
