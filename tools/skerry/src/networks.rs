//! Networks of instances (`docs/instance-networks.md`).

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use abi::dev::{self, Create, Status};
use abi::network::{self, Subnet};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::name_servers::Resolver;
use crate::names;

/// Network of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Network {
    /// None but the loop.
    #[default]
    None,
    /// A card on the switch of the network of this name, with an address there.
    Named(String),
}

/// Names that are none of networks: they mean something else to docker.
const RESERVED: [&str; 2] = ["none", "host"];

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "host" => Err(
                "an instance does not share the supervisor's network: give --net bridge, and -p \
                 for ports"
                    .into(),
            ),
            _ => match names::check(text) {
                Ok(()) => Ok(Self::Named(text.into())),
                Err(failure) => Err(failure.message),
            },
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Named(name) => name,
        })
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

/// Checks the name of a network that is to be made.
///
/// # Errors
/// Says what names look like.
pub fn check_name(name: &str) -> Result<()> {
    if RESERVED.contains(&name) {
        return Err(Failure::new(format!(
            "{name:?} cannot be the name of a network: --net {name} has another meaning"
        )));
    }
    names::check(name)
}

/// Reads an address that an instance is to have, of a network.
///
/// # Errors
/// If it is none, or the instance has no network.
pub fn parse(text: Option<&str>, network: &Network) -> Result<Option<Ipv4Addr>> {
    let Some(text) = text else {
        return Ok(None);
    };
    let address = text.parse().map_err(|_| {
        Failure::new(format!(
            "{text:?} is no IPv4 address: give one like 10.88.0.7"
        ))
    })?;
    if *network == Network::None {
        return Err(Failure::new(format!(
            "without a network there is no address {address}: give --net bridge as well"
        )));
    }
    Ok(Some(address))
}

/// Asks for a network, and an address, in a call of CREATE.
pub fn ask(call: &mut Create, network: &Network, address: Option<Ipv4Addr>, servers: &Resolver) {
    if let Network::Named(name) = network {
        call.flags |= dev::CREATE_NETWORK;
        call.network = dev::field(name).unwrap_or([0; dev::LABEL_BYTES]);
        call.address = address.map_or(0, Ipv4Addr::to_bits);
        call.name_server = servers.first().map_or(0, Ipv4Addr::to_bits);
    }
}

/// Message for an address that an instance of this number has: the remedy.
#[must_use]
pub fn taken(address: Ipv4Addr, owner: u32) -> String {
    format!(
        "instance {owner} has the address {address}: give another --ip, or none for one that is \
         free, or stop that instance (`skerry ls` shows addresses)"
    )
}

/// Message for an address that no instance of a network can have: the remedy.
#[must_use]
pub fn impossible(address: Ipv4Addr, network: &Network) -> String {
    let range = match network {
        Network::Named(name) if name != network::BRIDGE => format!(
            "of that network that is neither the supervisor's nor the first or last one (`skerry \
             network inspect {name}` shows it)"
        ),
        _ => format!(
            "of {} that is neither {} (the supervisor's) nor the first or last one",
            subnet_text(Subnet::BRIDGE.network(), Subnet::BRIDGE.prefix_len().into()),
            Subnet::BRIDGE.gateway()
        ),
    };
    format!("no instance can have the address {address}: give an --ip {range}")
}

/// Message for a network that there is not: the remedy.
#[must_use]
pub fn unknown(network: &Network) -> String {
    format!(
        "no network is called {network}: `skerry network create {network}` makes it, `skerry \
         network ls` shows those that there are"
    )
}

/// Message for a network all of whose addresses are taken: the remedy.
#[must_use]
pub fn full(network: &Network) -> String {
    format!(
        "all addresses of network {network} are taken: stop an instance in it (`skerry network \
         inspect {network}` shows them), or give another --net"
    )
}

/// Addresses of a network as people write them.
#[must_use]
pub fn subnet_text(network: Ipv4Addr, prefix_len: u32) -> String {
    format!("{network}/{prefix_len}")
}

/// Name of the network that an instance has or had an address of; empty if it has no network.
#[must_use]
pub fn label(status: &Status) -> &str {
    dev::text(&status.network_label).unwrap_or_default()
}

/// The address that an instance has or had; `None` if it has no network.
#[must_use]
pub fn address(status: &Status) -> Option<Ipv4Addr> {
    (status.address != 0).then(|| Ipv4Addr::from_bits(status.address))
}

/// An instance's network in JSON: its place, and frames by the supervisor's count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Name of the network.
    name: String,
    /// Address.
    address: Ipv4Addr,
    /// Hardware address.
    mac: String,
    /// Frames of the instance that went on.
    sent_frames: u64,
    /// Bytes of these.
    sent_bytes: u64,
    /// Frames that were given to the instance.
    received_frames: u64,
    /// Bytes of these.
    received_bytes: u64,
    /// Frames of the instance that were for nobody, or none.
    sent_lost: u64,
    /// Frames for which the instance had no buffer.
    received_lost: u64,
    /// Frames that the instance was not to send: in the name of others, or neither IPv4 nor ARP.
    refused_frames: u64,
    /// Times that its port was stopped, because it broke a rule of the queues.
    stops: u32,
    /// Whether its port is stopped, until its driver resets the card.
    stopped: bool,
}

/// The hardware address of who has an address, as people write it.
#[must_use]
pub fn mac_text(address: Ipv4Addr) -> String {
    network::mac_of(address)
        .map(|byte| format!("{byte:02x}"))
        .join(":")
}

/// The network of an instance, if it has one.
#[must_use]
pub fn shown(status: &Status) -> Option<Shown> {
    let address = address(status)?;
    let counters = &status.network;
    Some(Shown {
        name: label(status).into(),
        address,
        mac: mac_text(address),
        sent_frames: counters.sent,
        sent_bytes: counters.sent_bytes,
        received_frames: counters.received,
        received_bytes: counters.received_bytes,
        sent_lost: counters.sent_lost,
        received_lost: counters.received_lost,
        refused_frames: counters.refused,
        stops: counters.stops,
        stopped: counters.is_stopped != 0,
    })
}

impl Shown {
    /// Lines for people: what each is, and its value; empty ones are not to be shown.
    #[must_use]
    pub fn lines(&self) -> [(&'static str, String); 4] {
        let stopped = match (self.stopped, self.stops) {
            (true, _) => {
                "stopped: its driver broke a rule of the queues, and has to reset the card"
            }
            (false, 1..) => "has been stopped, and was reset",
            (false, 0) => "",
        };
        let frames = |frames: u64, bytes: u64, lost: u64| {
            format!("{frames} frames, {bytes} bytes ({lost} lost)")
        };
        [
            (
                "address",
                format!("{} ({}) in {}", self.address, self.mac, self.name),
            ),
            ("sent", {
                let sent = frames(self.sent_frames, self.sent_bytes, self.sent_lost);
                match self.refused_frames {
                    0 => sent,
                    refused => format!("{sent}, {refused} refused"),
                }
            }),
            (
                "received",
                frames(
                    self.received_frames,
                    self.received_bytes,
                    self.received_lost,
                ),
            ),
            ("network", stopped.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances;
    use crate::mock::{Mock, request};

    fn create(mock: &Mock, name: &str, ip: Option<&str>) -> Result<Status> {
        let mut options = request(name, &["sleep", "9"]);
        options.network = "bridge".parse().unwrap();
        options.address = parse(ip, &options.network)?;
        instances::create(mock, &options, SystemTime::now())
    }

    #[test]
    fn an_instance_has_the_address_that_it_was_given() {
        let mock = Mock::new(4, 1 << 30);
        let one = create(&mock, "one", None).unwrap();
        let two = create(&mock, "two", Some("10.88.0.7")).unwrap();
        let addresses = [&one, &two].map(|status| address(status).unwrap().to_string());
        assert_eq!(addresses, ["10.88.0.2", "10.88.0.7"]);
        let shown = shown(&two).unwrap();
        assert_eq!(
            shown.lines()[0].1,
            "10.88.0.7 (02:73:0a:58:00:07) in bridge"
        );
        let none = instances::create(&mock, &request("none", &["true"]), SystemTime::now());
        assert!(super::shown(&none.unwrap()).is_none());
    }

    #[test]
    fn what_is_refused_says_why_and_what_helps() {
        let mock = Mock::new(4, 1 << 30);
        create(&mock, "one", Some("10.88.0.7")).unwrap();
        for (ip, why) in [
            ("10.88.0", "is no IPv4 address"),
            (
                "10.88.0.7",
                "instance 1 has the address 10.88.0.7: give another --ip",
            ),
            (
                "10.88.0.1",
                "give an --ip of 10.88.0.0/16 that is neither 10.88.0.1",
            ),
            (
                "192.168.0.1",
                "no instance can have the address 192.168.0.1",
            ),
        ] {
            let message = create(&mock, "two", Some(ip)).unwrap_err().message;
            assert!(message.contains(why), "{message}");
            assert_eq!(instances::all(&mock).unwrap().len(), 1);
        }
        let message = parse(Some("10.88.0.7"), &Network::None)
            .unwrap_err()
            .message;
        assert!(message.contains("give --net bridge"), "{message}");
    }

    #[test]
    fn networks_are_named_as_for_docker() {
        for name in ["none", "bridge", "back-end_2"] {
            let network: Network = name.parse().unwrap();
            assert_eq!(network.to_string(), name);
            let json = serde_json::to_string(&network).unwrap();
            assert_eq!(serde_json::from_str::<Network>(&json).unwrap(), network);
        }
        assert_eq!("none".parse::<Network>().unwrap(), Network::None);
        for (name, why) in [("host", "give --net bridge"), ("", "name"), ("a b", "name")] {
            let message = name.parse::<Network>().unwrap_err();
            assert!(message.contains(why), "{message}");
        }
        let mock = Mock::new(4, 1 << 30);
        let mut options = request("one", &["sleep", "9"]);
        options.network = "back".parse().unwrap();
        let message = instances::create(&mock, &options, SystemTime::now()).unwrap_err();
        let message = message.message;
        assert!(
            message.contains("`skerry network create back`"),
            "{message}"
        );
    }

    #[test]
    fn what_went_wrong_is_shown() {
        let mut status: Status = dev::zeroed();
        status.address = Ipv4Addr::new(10, 88, 0, 2).to_bits();
        assert_eq!(shown(&status).unwrap().lines()[3].1, "");
        status.network.refused = 3;
        status.network.stops = 1;
        let lines = shown(&status).unwrap().lines();
        assert!(lines[1].1.ends_with(", 3 refused") && lines[3].1.contains("was reset"));
        status.network.is_stopped = 1;
        assert!(shown(&status).unwrap().lines()[3].1.starts_with("stopped"));
    }
}
