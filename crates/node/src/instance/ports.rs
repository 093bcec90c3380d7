//! Published ports of an instance (`docs/instance-networks.md`).

use alloc::sync::Arc;

use abi::dev::{self, PublishedPort};
use abi::errno::Errno;

use super::{Instance, Refused};
use crate::TABLE;
use crate::brief::lock_briefly;

impl Instance {
    /// Leads a port of the machine to one of the instance, from now on until its end.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn publish(&self, port: &PublishedPort) -> Result<(), Refused> {
        let network = self
            .network
            .as_ref()
            .ok_or(Refused::new(dev::REASON_NO_NETWORK, Errno::EOPNOTSUPP))?;
        // Its end takes back what was published, and begins with the record's lock.
        let published = {
            let mut record = self.record.lock();
            let status = &mut record.status;
            if status.state != dev::STATE_CREATED {
                return Err(Errno::EBUSY.into());
            }
            let count = status.port_count as usize;
            let place = status.ports.get_mut(count);
            let place = place.ok_or(Refused::new(dev::REASON_PORTS, Errno::ENOSPC))?;
            let published = network.publish(port);
            if published.is_ok() {
                *place = *port;
                status.port_count += 1;
            }
            published
        };
        published.map_err(|errno| match errno {
            Errno::EADDRINUSE => Refused {
                owner: publisher(port),
                ..Refused::new(dev::REASON_PORT, errno)
            },
            _ => errno.into(),
        })
    }
}

/// Number of the instance that a port is published for; 0 if there is none.
fn publisher(port: &PublishedPort) -> u32 {
    let overlaps = |other: &PublishedPort| {
        (other.protocol, other.port) == (port.protocol, port.port)
            && (other.address == port.address || other.address == 0 || port.address == 0)
    };
    let mut last = 0;
    // Records are not looked into while the table is locked.
    while let Some(instance) = next_active(last) {
        let status = lock_briefly(&instance.record).status;
        if status.ports().iter().any(overlaps) {
            return instance.id;
        }
        last = instance.id;
    }
    0
}

/// The instance with CPUs and memory whose number comes after another.
fn next_active(last: u32) -> Option<Arc<Instance>> {
    let table = lock_briefly(&TABLE);
    let mut later = table.active.range(last.checked_add(1)?..);
    later.next().map(|(_, instance)| instance.clone())
}
