//! Networks of instances (`docs/instance-networks.md`).

use std::net::Ipv4Addr;

use abi::dev::{self, Create, Status};
use abi::network;
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::name_servers::Resolver;

/// Network of an instance.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// None but the loop.
    #[default]
    None,
    /// A card on the supervisor's switch, with an address of 10.88.0.0/16.
    Bridge,
}

/// Reads an address that an instance is to have, of a network of this kind.
///
/// # Errors
/// If it is none, or the instance has no network.
pub fn parse(text: Option<&str>, network: Network) -> Result<Option<Ipv4Addr>> {
    let Some(text) = text else {
        return Ok(None);
    };
    let address = text.parse().map_err(|_| {
        Failure::new(format!(
            "{text:?} is no IPv4 address: give one like 10.88.0.7"
        ))
    })?;
    if network == Network::None {
        return Err(Failure::new(format!(
            "without a network there is no address {address}: give --net bridge as well"
        )));
    }
    Ok(Some(address))
}

/// Asks for a network of this kind, and an address, in a call of CREATE.
pub fn ask(call: &mut Create, network: Network, address: Option<Ipv4Addr>, servers: &Resolver) {
    if network == Network::Bridge {
        call.flags |= dev::CREATE_NETWORK;
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

/// Message for an address that no instance can have: the remedy.
#[must_use]
pub fn impossible(address: Ipv4Addr) -> String {
    format!(
        "no instance can have the address {address}: give an --ip of {}/{} that is neither {} (the \
         supervisor's) nor the first or last one",
        prefix(),
        network::PREFIX_LEN,
        network::SUPERVISOR
    )
}

/// The network's first address.
fn prefix() -> Ipv4Addr {
    let mask = !(u32::MAX >> network::PREFIX_LEN);
    Ipv4Addr::from_bits(network::SUPERVISOR.to_bits() & mask)
}

/// The address that an instance has or had; `None` if it has no network.
#[must_use]
pub fn address(status: &Status) -> Option<Ipv4Addr> {
    (status.address != 0).then(|| Ipv4Addr::from_bits(status.address))
}

/// An instance's network in JSON: its place, and frames by the supervisor's count.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
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

/// The network of an instance, if it has one.
#[must_use]
pub fn shown(status: &Status) -> Option<Shown> {
    let address = address(status)?;
    let [a, b, c, d, e, f] = network::mac_of(address);
    let counters = &status.network;
    Some(Shown {
        address,
        mac: format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
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
            ("address", format!("{} ({})", self.address, self.mac)),
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
        options.network = Network::Bridge;
        options.address = parse(ip, options.network)?;
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
        assert_eq!(shown.lines()[0].1, "10.88.0.7 (02:73:0a:58:00:07)");
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
        let message = parse(Some("10.88.0.7"), Network::None).unwrap_err().message;
        assert!(message.contains("give --net bridge"), "{message}");
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
