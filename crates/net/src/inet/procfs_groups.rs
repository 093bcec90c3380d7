//! Texts of `/proc/net` about groups.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use abi::errno::Errno;
use fallible::Text;
use ip::groups::igmp::{self, ALL_HOSTS};
use ip::v6::address::{ALL_NODES, ALL_NODES_OF_INTERFACE, group_hardware};

use super::host::Host;
use super::loopback::Loopback;
use super::stack::InetStack;

/// The text of `/proc/net/igmp`: the groups that programs are in, and that of all hosts, which
/// every interface is in.
///
/// # Errors
/// `ENOMEM`.
pub fn igmp(stack: &InetStack) -> Result<String, Errno> {
    let joined = stack.host().map_or(Ok(Vec::new()), Host::joined_v4)?;
    let mut text = Text::default();
    let mut write =
        |line: core::fmt::Arguments<'_>| text.write_fmt(line).map_err(|_| Errno::ENOMEM);
    write(format_args!(
        "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n"
    ))?;
    for interface in stack.core.interfaces() {
        let of_interface = joined.iter().filter(|one| one.interface == interface.index);
        // Who is in that of all hosts is so beside the host itself.
        let (all_hosts, others): (Vec<_>, Vec<_>) =
            of_interface.partition(|one| one.group == ALL_HOSTS);
        let others = others.iter().map(|one| (one.group, one.members));
        let hosts = 1 + all_hosts.iter().map(|one| one.members).sum::<u32>();
        let (index, name) = (interface.index, interface.name);
        let count = others.len() + 1;
        write(format_args!("{index}\t{name:<10}: {count:5}      V3\n"))?;
        for (group, users) in others.chain([(ALL_HOSTS, hosts)]) {
            let group = u32::from_ne_bytes(group.octets());
            write(format_args!(
                "\t\t\t\t{group:08X} {users:5} 0:00000000\t\t0\n"
            ))?;
        }
    }
    Ok(text.into_string())
}

/// The text of `/proc/net/igmp6`.
///
/// # Errors
/// `ENOMEM`.
pub fn igmp6(stack: &InetStack) -> Result<String, Errno> {
    // Linux `MAF_LOADED`, `MAF_NOREPORT`.
    const LOADED: u32 = 4;
    const NO_REPORT: u32 = 8;
    let joined = stack.host().map_or(Ok(Vec::new()), Host::joined_v6)?;
    let mut text = Text::default();
    for interface in stack.core.interfaces() {
        let of_interface = joined.iter().filter(|one| one.interface == interface.index);
        let others = of_interface.map(|one| (one.group, one.members, LOADED));
        let own = [
            (ALL_NODES, 1, LOADED | NO_REPORT),
            (ALL_NODES_OF_INTERFACE, 1, NO_REPORT),
        ];
        for (group, users, flags) in others.chain(own) {
            let (index, name, group) = (interface.index, interface.name, u128::from(group));
            writeln!(
                text,
                "{index:<4} {name:<15} {group:032x} {users:5} {flags:08X} 0"
            )
            .map_err(|_| Errno::ENOMEM)?;
        }
    }
    Ok(text.into_string())
}

/// The text of `/proc/net/dev_mcast`: the hardware addresses of groups that interfaces listen to.
///
/// # Errors
/// `ENOMEM`.
pub fn dev_mcast(stack: &InetStack) -> Result<String, Errno> {
    let host = stack.host();
    let v4 = host.map_or(Ok(Vec::new()), Host::joined_v4)?;
    let v6 = host.map_or(Ok(Vec::new()), Host::joined_v6)?;
    let mut text = Text::default();
    for interface in stack.core.interfaces() {
        if interface.index == Loopback::INDEX || interface.hardware_address.is_none() {
            continue;
        }
        let (index, name) = (interface.index, interface.name);
        // Several groups may have one address.
        let mut known = Vec::new();
        let of_v4 = v4.iter().filter(|one| one.interface == index);
        let of_v6 = v6.iter().filter(|one| one.interface == index);
        let all = [igmp::group_hardware(ALL_HOSTS), group_hardware(ALL_NODES)]
            .into_iter()
            .chain(of_v4.map(|one| igmp::group_hardware(one.group)))
            .chain(of_v6.map(|one| group_hardware(one.group)));
        for address in all {
            match known.iter_mut().find(|(other, _)| *other == address) {
                Some((_, count)) => *count += 1,
                None => fallible::push(&mut known, (address, 1))?,
            }
        }
        for ([a, b, c, d, e, f], count) in known {
            writeln!(
                text,
                "{index:<4} {name:<15} {count:<5} {:<5} {a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}",
                0
            )
            .map_err(|_| Errno::ENOMEM)?;
        }
    }
    Ok(text.into_string())
}
