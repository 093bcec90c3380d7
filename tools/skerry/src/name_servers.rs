//! Name servers that instances with a network are told of (`docs/instance-networks.md`), in the
//! form of resolv.conf(5): the network's own first, then those that this machine has.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;

/// Name servers of an instance, in its root file system.
pub const FILE: &str = "etc/resolv.conf";
/// Name servers of this machine: those that somebody, or a client of DHCP, has put there, else
/// those of the kernel's command line.
const SOURCES: [&str; 2] = ["/etc/resolv.conf", "/proc/net/pnp"];
/// Bytes that are read of such a file, at most.
const MOST: u64 = 64 << 10;
/// Servers that resolvers ask, at most (`MAXNS` of glibc; musl has the same), but for our own.
const SERVERS: usize = 2;

/// Settings of a resolver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    servers: Vec<Ipv4Addr>,
    /// Domains that are tried, after the last `search` or `domain`.
    search: Vec<String>,
    options: Vec<String>,
}

impl Resolver {
    /// Settings of this machine at this moment; none where there is no file of them.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let text = SOURCES.iter().find_map(|path| read(path).ok());
        Self::parse(&text.unwrap_or_default())
    }

    /// Reads the text of a resolv.conf(5). Servers are left out that an instance does not reach:
    /// those of the loop, and of IPv6.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            // A keyword stands at the beginning of its line.
            if line.starts_with(|c: char| c.is_whitespace()) {
                continue;
            }
            let mut words = line.split_whitespace();
            let keyword = words.next().unwrap_or_default();
            let words = words.take_while(|word| !word.starts_with(['#', ';']));
            let mut words = words.map(str::to_owned);
            match keyword {
                "nameserver" => {
                    let server = words.next().and_then(|word| word.parse().ok());
                    let is_reached =
                        |server: &Ipv4Addr| !server.is_loopback() && !server.is_unspecified();
                    all.servers.extend(server.filter(is_reached));
                }
                "search" | "domain" => all.search = words.collect(),
                "options" => all.options.extend(words),
                _ => {}
            }
        }
        all
    }

    /// The first server.
    #[must_use]
    pub fn first(&self) -> Option<Ipv4Addr> {
        self.servers.first().copied()
    }

    /// The text of the file of an instance, in whose network `own` has the names of its siblings.
    #[must_use]
    pub fn text(&self, own: Ipv4Addr) -> String {
        let mut text = String::from(
            "# Made by skerry: the first server has the names of siblings and no others, the rest \
             are the supervisor's.\n",
        );
        // Writing to a string does not fail.
        for server in std::iter::once(&own).chain(self.servers.iter().take(SERVERS)) {
            let _ = writeln!(text, "nameserver {server}");
        }
        if !self.search.is_empty() {
            let _ = writeln!(text, "search {}", self.search.join(" "));
        }
        // A name without a dot is a sibling's before it is one of a domain.
        let has_dots = self.options.iter().any(|word| word.starts_with("ndots:"));
        let own = (!has_dots).then_some("ndots:0");
        let options = self.options.iter().map(String::as_str).chain(own);
        let _ = writeln!(text, "options {}", options.collect::<Vec<_>>().join(" "));
        text
    }
}

fn read(path: &str) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

    fn lines(text: &str) -> Vec<String> {
        let text = Resolver::parse(text).text(OWN);
        text.lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn an_instance_has_our_server_and_those_of_the_machine() {
        let pnp = "#MANUAL\nnameserver 10.0.2.3\nbootserver 10.0.2.4\n";
        assert_eq!(
            lines(pnp),
            [
                "nameserver 10.88.0.1",
                "nameserver 10.0.2.3",
                "options ndots:0"
            ]
        );
        assert_eq!(
            Resolver::parse(pnp).first(),
            Some(Ipv4Addr::new(10, 0, 2, 3))
        );
        assert_eq!(lines(""), ["nameserver 10.88.0.1", "options ndots:0"]);
        assert_eq!(Resolver::parse("").first(), None);
    }

    #[test]
    fn what_the_machine_has_is_kept_as_far_as_an_instance_can_use_it() {
        let text = "; a remark\n# another\ndomain old\nsearch corp.example example # eth0\n \
                    nameserver 10.9.9.9\nnameserver\t127.0.0.53\nnameserver fe80::1%eth0\n\
                    nameserver nonsense\nnameserver 0.0.0.0\nnameserver 10.0.0.1 # eth0\n\
                    nameserver 10.0.0.2\nnameserver 10.0.0.3\noptions timeout:1\n\
                    options edns0 ;x\nsortlist 10.0.0.0\n";
        assert_eq!(
            lines(text),
            [
                "nameserver 10.88.0.1",
                "nameserver 10.0.0.1",
                "nameserver 10.0.0.2",
                "search corp.example example",
                "options timeout:1 edns0 ndots:0"
            ]
        );
        assert_eq!(lines("options ndots:2")[1], "options ndots:2");
    }
}
