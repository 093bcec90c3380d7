//! Networks of instances as such: making them, showing them, taking them away
//! (`docs/instance-networks.md`).

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::str::FromStr;

use abi::dev::{self, NetworkInfo};
use serde::Serialize;

use crate::device::Device;
use crate::failure::{Context, Failure, Result, plain};
use crate::instances::{self, has_ended, label};
use crate::networks::{self, Shown, subnet_text};
use crate::show;

/// Addresses from which a network has some if none are asked for: a /24 of 10.89.0.0 and what is
/// behind it in 10.0.0.0/8.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 0);
const LAST: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 0);
const PREFIX_LEN: u32 = 24;
const STEP: u64 = 1 << (32 - PREFIX_LEN);

/// Addresses that begin with the same bits, as users write them: `10.90.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    network: Ipv4Addr,
    prefix_len: u32,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("{text:?} is no range of addresses: give one like 10.90.0.0/24");
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let prefix_len: u32 = length.parse().map_err(|_| wrong())?;
        let host = u32::MAX.checked_shr(prefix_len).unwrap_or(0);
        if prefix_len > 32 {
            return Err(wrong());
        }
        let network = Ipv4Addr::from_bits(address.to_bits() & !host);
        if network != address {
            return Err(format!(
                "{text:?} begins within a range: give {}",
                subnet_text(network, prefix_len)
            ));
        }
        Ok(Self {
            network,
            prefix_len,
        })
    }
}

impl Range {
    fn text(self) -> String {
        subnet_text(self.network, self.prefix_len)
    }
}

/// The range of a network's addresses.
fn range(info: &NetworkInfo) -> Range {
    let host = u32::MAX.checked_shr(info.prefix_len).unwrap_or(0);
    Range {
        network: Ipv4Addr::from_bits(info.gateway & !host),
        prefix_len: info.prefix_len,
    }
}

fn name(info: &NetworkInfo) -> &str {
    dev::text(&info.label).unwrap_or("?")
}

fn interface(info: &NetworkInfo) -> &str {
    dev::text(&info.interface).unwrap_or_default()
}

/// Makes a network, with the addresses that are asked for, or the first that are free.
///
/// # Errors
/// What is in the way, and what would help.
pub fn create(
    device: &dyn Device,
    name: &str,
    wanted: Option<Range>,
    gateway: Option<Ipv4Addr>,
) -> Result<()> {
    networks::check_name(name)?;
    if let Some(range) = wanted {
        let gateway = gateway.unwrap_or_else(|| second(range.network));
        let mut call = call(name, range.prefix_len, gateway);
        let added = device.add_network(&mut call);
        return added
            .map_err(|error| Failure::new(refusal(device, name, (range, gateway), &call, &error)));
    }
    let mut next = u64::from(FIRST.to_bits());
    while next <= u64::from(LAST.to_bits()) {
        let range = Range {
            network: Ipv4Addr::from_bits(next as u32),
            prefix_len: PREFIX_LEN,
        };
        let gateway = second(range.network);
        let mut call = call(name, PREFIX_LEN, gateway);
        let Err(error) = device.add_network(&mut call) else {
            return Ok(());
        };
        if call.reason != dev::REASON_OVERLAP {
            let refusal = refusal(device, name, (range, gateway), &call, &error);
            return Err(Failure::new(refusal));
        }
        // Behind what is in the way.
        let other = self::range(&call);
        let end = u64::from(other.network.to_bits()) + (1 << (32 - other.prefix_len.min(32)));
        next = end.next_multiple_of(STEP).max(next + STEP);
    }
    Err(Failure::new(format!(
        "no /{PREFIX_LEN} from {FIRST} to {LAST} is free: give a --subnet (`ip route` shows what is \
         taken)"
    )))
}

/// Address behind the first one of a network, which is the supervisor's by default.
fn second(network: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(network.to_bits() | 1)
}

fn call(name: &str, prefix_len: u32, gateway: Ipv4Addr) -> NetworkInfo {
    NetworkInfo {
        label: dev::field(name).unwrap_or([0; dev::LABEL_BYTES]),
        gateway: gateway.to_bits(),
        prefix_len,
        ..dev::zeroed()
    }
}

/// Message for a network that is not made: the reason and the remedy.
fn refusal(
    device: &dyn Device,
    name: &str,
    (range, gateway): (Range, Ipv4Addr),
    call: &NetworkInfo,
    error: &io::Error,
) -> String {
    let why = match call.reason {
        dev::REASON_NETWORK_LABEL => {
            return format!(
                "there is a network called {name} already: choose another name, or remove it with \
                 `skerry network rm {name}`"
            );
        }
        dev::REASON_SUBNET => format!(
            "no network of instances can be {} with {gateway} as the supervisor's address: give a \
             --subnet of a /8 to a /30 with addresses of hosts, and a --gateway that is neither its \
             first nor its last one",
            range.text()
        ),
        dev::REASON_OVERLAP => {
            let other = self::range(call);
            let all = device.networks().unwrap_or_default();
            let whose = match all.iter().find(|one| self::range(one) == other) {
                Some(network) => format!("that of network {}", self::name(network)),
                None => match interface(call) {
                    "" => "to which the supervisor has a route".into(),
                    interface => format!(
                        "where the supervisor has an address or a route ({interface}, see `ip addr` \
                         and `ip route`)"
                    ),
                },
            };
            format!(
                "{} overlaps {}, {whose}: give another --subnet, or none for one that is free",
                range.text(),
                other.text()
            )
        }
        dev::REASON_NETWORKS => format!(
            "{} networks are the most: remove one (`skerry network ls` shows who is in which)",
            dev::MAX_NETWORKS
        ),
        dev::REASON_NETWORK => {
            "the supervisor is short of memory or of interfaces (see `dmesg`)".into()
        }
        _ => plain(error),
    };
    format!("cannot make network {name}: {why}")
}

/// Takes a network away.
///
/// # Errors
/// If there is none of that name, or it is in use: by whom, and what would help.
pub fn remove(device: &dyn Device, name: &str) -> Result<()> {
    let Err(error) = device.remove_network(name) else {
        return Ok(());
    };
    let message = match error.raw_os_error() {
        Some(libc::ENOENT) => none_of_that_name(device, name),
        Some(libc::EPERM) => format!("network {name} is always there, and cannot be removed"),
        Some(libc::EBUSY) => {
            let members = members(device, name)?;
            let names: Vec<_> = members.iter().map(|one| one.name.as_str()).collect();
            match names.as_slice() {
                [] => format!("network {name} was in use: try again"),
                names => format!(
                    "network {name} is in use by {}: stop them first (`skerry stop`; one that was \
                     not started: `skerry rm`)",
                    names.join(", ")
                ),
            }
        }
        _ => format!("cannot remove network {name}: {}", plain(&error)),
    };
    Err(Failure::new(message))
}

/// Message for a network that there is not: the remedy.
fn none_of_that_name(device: &dyn Device, wanted: &str) -> String {
    let all = device.networks().unwrap_or_default();
    let names: Vec<_> = all.iter().map(name).collect();
    format!(
        "no network is called {wanted:?}: there are {}",
        names.join(", ")
    )
}

/// A network in JSON.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Name of the network.
    pub name: String,
    /// Range of the network's addresses, such as `10.90.0.0/24`.
    pub subnet: String,
    /// The supervisor's address in it.
    pub gateway: Ipv4Addr,
    /// The supervisor's interface; `null` before an instance has needed it.
    pub interface: Option<String>,
    /// How many instances have an address of it.
    pub instances: u32,
}

/// An instance of a network in JSON.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Name of the instance.
    name: String,
    /// Number of the instance.
    id: u32,
    /// State of the instance.
    state: String,
    /// Address and counters of the instance, in the form of its own JSON.
    network: Option<Shown>,
}

/// A network with its instances in JSON.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Inspected {
    #[serde(flatten)]
    network: Listed,
    /// Hardware address of the supervisor's interface.
    mac: String,
    /// Instances that have an address of it.
    members: Vec<Member>,
}

fn listed(info: &NetworkInfo) -> Listed {
    Listed {
        name: name(info).into(),
        subnet: range(info).text(),
        gateway: Ipv4Addr::from_bits(info.gateway),
        interface: Some(interface(info).to_owned()).filter(|name| !name.is_empty()),
        instances: info.members,
    }
}

/// All networks.
///
/// # Errors
/// The device's.
pub fn all(device: &dyn Device) -> Result<Vec<Listed>> {
    let all = device.networks().context(|| "cannot list the networks")?;
    Ok(all.iter().map(listed).collect())
}

/// The rows of a table of networks, with its heading.
#[must_use]
pub fn rows(all: &[Listed]) -> Vec<Vec<String>> {
    let heading = ["NAME", "SUBNET", "GATEWAY", "INTERFACE", "INSTANCES"];
    let rows = all.iter().map(|one| {
        vec![
            one.name.clone(),
            one.subnet.clone(),
            one.gateway.to_string(),
            one.interface.clone().unwrap_or_else(|| "--".into()),
            one.instances.to_string(),
        ]
    });
    std::iter::once(heading.map(String::from).to_vec())
        .chain(rows)
        .collect()
}

/// The instances that have an address of a network.
fn members(device: &dyn Device, network: &str) -> Result<Vec<Member>> {
    let all = instances::all(device)?;
    let here = all
        .iter()
        .filter(|status| !has_ended(status) && networks::label(status) == network);
    let member = here.map(|status| Member {
        name: label(status).into(),
        id: status.id,
        state: show::state(status),
        network: networks::shown(status),
    });
    Ok(member.collect())
}

/// A network, with the instances that have an address of it.
///
/// # Errors
/// If there is none of that name.
pub fn inspect(device: &dyn Device, wanted: &str) -> Result<Inspected> {
    let all = device.networks().context(|| "cannot list the networks")?;
    let found = all.iter().find(|info| name(info) == wanted);
    let found = found.ok_or_else(|| Failure::new(none_of_that_name(device, wanted)))?;
    Ok(Inspected {
        network: listed(found),
        mac: networks::mac_text(Ipv4Addr::from_bits(found.gateway)),
        members: members(device, wanted)?,
    })
}

impl Inspected {
    /// Prints it for people.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let network = &self.network;
        let interface = network.interface.as_deref().unwrap_or("not made yet");
        let rows = [
            ("name", network.name.clone()),
            ("subnet", network.subnet.clone()),
            ("gateway", format!("{} ({})", network.gateway, self.mac)),
            ("interface", interface.into()),
            ("instances", network.instances.to_string()),
        ];
        let rows = rows.map(|(what, value)| vec![what.to_owned(), value]);
        show::table(&rows, out)?;
        for member in &self.members {
            writeln!(out)?;
            let first = vec![member.name.clone(), member.state.clone()];
            let lines = member.network.iter().flat_map(Shown::lines);
            let lines = lines.filter(|(_, value)| !value.is_empty());
            let lines = lines.map(|(what, value)| vec![format!("  {what}"), value]);
            let rows: Vec<_> = std::iter::once(first).chain(lines).collect();
            show::table(&rows, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::mock::{Mock, request};

    fn make(mock: &Mock, name: &str, subnet: Option<&str>) -> std::result::Result<(), String> {
        let subnet = subnet.map(|text| text.parse().unwrap());
        create(mock, name, subnet, None).map_err(|failure| failure.message)
    }

    fn subnets(mock: &Mock) -> Vec<String> {
        let all = all(mock).unwrap();
        all.iter()
            .map(|one| format!("{} {}", one.name, one.subnet))
            .collect()
    }

    #[test]
    fn ranges_are_read_as_they_are_written() {
        for text in [
            "10.90.0.0/24",
            "172.16.0.0/12",
            "192.168.7.4/30",
            "0.0.0.0/0",
        ] {
            assert_eq!(text.parse::<Range>().unwrap().text(), text);
        }
        for (text, why) in [
            ("10.90.0.0", "is no range"),
            ("10.90.0/24", "is no range"),
            ("10.90.0.0/33", "is no range"),
            ("10.90.0.0/-1", "is no range"),
            ("10.90.0.7/24", "give 10.90.0.0/24"),
        ] {
            let message = text.parse::<Range>().unwrap_err();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn a_network_has_the_first_addresses_that_are_free() {
        let mock = Mock::new(4, 1 << 30);
        make(&mock, "a", None).unwrap();
        make(&mock, "wide", Some("10.89.2.0/23")).unwrap();
        for name in ["b", "c"] {
            make(&mock, name, None).unwrap();
        }
        make(&mock, "rest", Some("10.128.0.0/9")).unwrap();
        assert_eq!(
            subnets(&mock),
            [
                "bridge 10.88.0.0/16",
                "a 10.89.0.0/24",
                "wide 10.89.2.0/23",
                "b 10.89.1.0/24",
                "c 10.89.4.0/24",
                "rest 10.128.0.0/9"
            ]
        );
        let listed = all(&mock).unwrap();
        assert_eq!(listed[1].gateway, Ipv4Addr::new(10, 89, 0, 1));
    }

    #[test]
    fn what_is_refused_says_why_and_changes_nothing() {
        let mock = Mock::new(4, 1 << 30);
        make(&mock, "a", None).unwrap();
        let before = subnets(&mock);
        for (name, subnet, why) in [
            ("a", None, "there is a network called a already"),
            ("bridge", None, "there is a network called bridge already"),
            ("none", None, "another meaning"),
            ("x y", None, "cannot be a name"),
            (
                "b",
                Some("10.89.0.0/16"),
                "overlaps 10.89.0.0/24, that of network a",
            ),
            ("b", Some("10.88.7.0/24"), "that of network bridge"),
            (
                "b",
                Some("10.90.0.0/31"),
                "give a --subnet of a /8 to a /30",
            ),
            (
                "b",
                Some("127.0.0.0/8"),
                "no network of instances can be 127.0.0.0/8",
            ),
        ] {
            let message = make(&mock, name, subnet).unwrap_err();
            assert!(message.contains(why), "{message}");
            assert_eq!(subnets(&mock), before);
        }
        for number in 2..dev::MAX_NETWORKS {
            make(&mock, &format!("n{number}"), None).unwrap();
        }
        let message = make(&mock, "more", None).unwrap_err();
        assert!(message.contains("32 networks are the most"), "{message}");
    }

    #[test]
    fn a_network_that_is_used_stays_and_says_by_whom() {
        let mock = Mock::new(4, 1 << 30);
        make(&mock, "back", None).unwrap();
        let mut options = request("db", &["sleep", "9"]);
        options.network = "back".parse().unwrap();
        let db = instances::create(&mock, &options, SystemTime::now()).unwrap();
        let message = remove(&mock, "back").unwrap_err().message;
        assert!(
            message.contains("network back is in use by db: stop"),
            "{message}"
        );
        for (name, why) in [
            ("bridge", "is always there"),
            (
                "front",
                "no network is called \"front\": there are bridge, back",
            ),
        ] {
            let message = remove(&mock, name).unwrap_err().message;
            assert!(message.contains(why), "{message}");
        }
        let back = inspect(&mock, "back").unwrap();
        let json = serde_json::to_value(&back).unwrap();
        assert_eq!(json["subnet"], "10.89.0.0/24");
        assert_eq!(json["members"][0]["name"], "db");
        assert_eq!(json["members"][0]["network"]["address"], "10.89.0.2");
        let mut out = Vec::new();
        back.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("10.89.0.1 (02:73:0a:59:00:01)"), "{text}");
        assert!(
            text.contains("10.89.0.2 (02:73:0a:59:00:02) in back"),
            "{text}"
        );
        mock.control(dev::DESTROY, db.id, 0).unwrap();
        remove(&mock, "back").unwrap();
        assert_eq!(subnets(&mock), ["bridge 10.88.0.0/16"]);
    }

    #[test]
    fn a_network_that_is_full_says_so() {
        let mock = Mock::new(4, 1 << 30);
        make(&mock, "tiny", Some("10.90.0.0/30")).unwrap();
        let create = |name| {
            let mut options = request(name, &["sleep", "9"]);
            options.network = "tiny".parse().unwrap();
            instances::create(&mock, &options, SystemTime::now())
        };
        create("one").unwrap();
        let message = create("two").unwrap_err().message;
        assert!(
            message.contains("all addresses of network tiny are taken"),
            "{message}"
        );
    }
}
