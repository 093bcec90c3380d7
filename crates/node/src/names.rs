//! Names of instances in a network (`docs/instance-networks.md`).

use core::net::Ipv4Addr;

use abi::network::Subnet;
use dns::{Name, Zone};

use crate::instance::Instance;
use crate::{MANAGEMENT_PRIORITY, TABLE};

/// Names of the instances that have CPUs and memory, and an address of a network: from CREATE until
/// they have given both back. Of two that only differ in capitals the older one has it.
///
/// All are looked through under one lock, under which names are changed, too: of two instances that
/// exchange theirs a query finds the one or the other.
pub(crate) struct Names {
    /// Number of the network.
    pub(crate) network: u32,
    /// Addresses of the network.
    pub(crate) subnet: Subnet,
}

impl Names {
    /// The first instance of the network of which something is found.
    fn find<T>(&self, found: impl Fn(&Instance, Ipv4Addr) -> Option<T>) -> Option<T> {
        // Whoever has the table goes before what programs do, as in calls.
        let _raised = task::raise(MANAGEMENT_PRIORITY);
        let table = TABLE.lock();
        let mut instances = table.active.values();
        instances.find_map(|instance| {
            let lease = instance.network()?;
            let is_here = lease.network() == self.network;
            is_here.then(|| found(instance, lease.address()))?
        })
    }
}

impl Zone for Names {
    fn address_of(&self, name: &Name) -> Option<Ipv4Addr> {
        self.find(|instance, address| name.is(instance.label().as_str()).then_some(address))
    }

    fn contains(&self, address: Ipv4Addr) -> bool {
        self.subnet.contains(address)
    }

    fn name_of(&self, address: Ipv4Addr) -> Option<Name> {
        let label = self.find(|instance, own| (own == address).then(|| instance.label()));
        Name::new(label?.as_str())
    }
}
