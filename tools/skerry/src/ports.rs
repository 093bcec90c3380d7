//! Published ports of instances (`docs/instance-networks.md`).

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::str::FromStr;

use abi::dev::{self, Publish, PublishedPort, Status};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::failure::{Failure, Result, plain};
use crate::instances::label;

/// A port of the machine that leads to one of an instance, as docker writes it:
/// `[ADDRESS:]PORT:PORT[/tcp|udp]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Port(PublishedPort);

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no published port: give the machine's and the instance's, like \
                 8080:80, 127.0.0.2:8080:80 or 53:53/udp"
            )
        };
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol {
            "tcp" => dev::PROTOCOL_TCP,
            "udp" => dev::PROTOCOL_UDP,
            _ => return Err(wrong()),
        };
        let (outer, inner) = ports.rsplit_once(':').ok_or_else(wrong)?;
        let (address, outer) = match outer.rsplit_once(':') {
            Some((address, outer)) => (address.parse().map_err(|_| wrong())?, outer),
            None => (Ipv4Addr::UNSPECIFIED, outer),
        };
        let number = |text: &str| match text.parse() {
            Ok(0) | Err(_) => Err(wrong()),
            Ok(number) => Ok(number),
        };
        Ok(Self(PublishedPort {
            address: address.to_bits(),
            protocol,
            port: number(outer)?,
            inner: number(inner)?,
        }))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PublishedPort {
            address,
            protocol,
            port,
            inner,
        } = self.0;
        if address != 0 {
            write!(f, "{}:", Ipv4Addr::from_bits(address))?;
        }
        write!(f, "{port}:{inner}")?;
        match protocol {
            dev::PROTOCOL_UDP => f.write_str("/udp"),
            _ => Ok(()),
        }
    }
}

impl TryFrom<String> for Port {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<Port> for String {
    fn from(port: Port) -> Self {
        port.to_string()
    }
}

/// Publishes ports for a created instance.
///
/// # Errors
/// The first one that cannot be, and why.
pub fn publish(device: &dyn Device, id: u32, ports: &[Port]) -> Result<()> {
    for port in ports {
        let mut call = Publish {
            id,
            port: port.0,
            ..Publish::default()
        };
        device.publish(&mut call).map_err(|error| {
            let owner = match call.owner {
                0 => None,
                owner => device.status(owner).ok(),
            };
            Failure::new(refusal(*port, &call, owner.as_ref(), &error))
        })?;
    }
    Ok(())
}

/// Message for a port that cannot be published: the reason and the remedy.
fn refusal(port: Port, call: &Publish, owner: Option<&Status>, error: &io::Error) -> String {
    let why = match (call.reason, owner) {
        (dev::REASON_PORT, Some(owner)) => format!(
            "it is published for {}: give another one, or stop that instance",
            label(owner)
        ),
        (dev::REASON_PORT, None) => {
            "a program of the supervisor has it: give another one, or end that (`netstat -lnp` \
             shows it)"
                .into()
        }
        (dev::REASON_NO_NETWORK, _) => "the instance has no network: give --net bridge".into(),
        (dev::REASON_PORTS, _) => format!("{} ports are the most", dev::MAX_PORTS),
        _ if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
            "the supervisor does not have that address (`ip addr` shows those that it has)".into()
        }
        _ => plain(error),
    };
    format!("cannot publish {port}: {why}")
}

/// Ports that are or were published for an instance.
pub fn all(status: &Status) -> impl Iterator<Item = Port> {
    status.ports().iter().copied().map(Port)
}

/// Published ports of an instance for people.
#[must_use]
pub fn shown(status: &Status) -> String {
    let all: Vec<String> = all(status).map(String::from).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances;
    use crate::mock::{Mock, request};

    fn create(mock: &Mock, name: &str, network: &str, ports: &[&str]) -> Result<Status> {
        let mut options = request(name, &["sleep", "9"]);
        options.network = network.parse().unwrap();
        options.ports = ports.iter().map(|text| text.parse().unwrap()).collect();
        instances::create(mock, &options, SystemTime::now())
    }

    #[test]
    fn ports_are_read_and_shown_as_docker_does() {
        for text in ["8080:80", "10.0.2.15:8080:80", "53:53/udp"] {
            let port: Port = text.parse().unwrap();
            assert_eq!(port.to_string(), text);
            let json = serde_json::to_string(&port).unwrap();
            assert_eq!(serde_json::from_str::<Port>(&json).unwrap(), port);
        }
        assert_eq!("1:2/tcp".parse::<Port>().unwrap().to_string(), "1:2");
        for wrong in [
            "80", "80:", ":80", "0:80", "80:0", "65536:1", "x:1:2", "1:2/sctp", "",
        ] {
            let why = wrong.parse::<Port>().unwrap_err();
            assert!(why.contains("is no published port"), "{wrong}: {why}");
        }
    }

    #[test]
    fn what_is_refused_says_why_and_leaves_nothing() {
        let mock = Mock::new(4, 1 << 30);
        let one = create(&mock, "one", "bridge", &["80:8080", "53:53/udp"]).unwrap();
        let shown: Vec<_> = all(&one).map(|port| port.to_string()).collect();
        assert_eq!(shown, ["80:8080", "53:53/udp"]);
        for (network, port, why) in [
            ("bridge", "80:80", "it is published for one"),
            (
                "none",
                "81:80",
                "the instance has no network: give --net bridge",
            ),
        ] {
            let message = create(&mock, "two", network, &[port]).unwrap_err().message;
            assert!(message.contains(why), "{message}");
            assert_eq!(instances::all(&mock).unwrap().len(), 1);
        }
    }
}
