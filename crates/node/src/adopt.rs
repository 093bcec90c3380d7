//! Instances that have outlived the supervisor before this one (`docs/supervisor-restart.md`).
//!
//! The guard finds CPUs and memory; here each gets its record, its name and its logs again. What
//! only the old kernel knew is gone: what was in the logs, who waited or read, restarts and their
//! reasons, what went through a network.

use abi::dev::{self, Status};
use guard::BootToken;
use guard::partition::{self, Adopted};

use crate::instance::{Instance, adopt_devices};
use crate::label::Label;
use crate::peers::Names;
use crate::{TABLE, network, peers};

/// Takes all of them over. Once, before there is a device to make instances with.
pub(crate) fn adopt(boot: &BootToken) {
    network::adopt_networks();
    let last = partition::adopt_all(boot, adopt_one);
    {
        let mut table = TABLE.lock();
        table.next_id = table.next_id.max(last.saturating_add(1));
    }
    network::adopt_flows();
    peers::adopt();
    if partition::restarts() > 0 {
        devices::settle();
    }
}

#[inline(never)]
fn adopt_one(adopted: Adopted) {
    let Adopted {
        mut partition,
        note,
        mut misfit,
        functions,
    } = adopted;
    let id = partition.id();
    let mut status: Status = dev::zeroed();
    status.id = id;
    status.state = dev::STATE_RUNNING;
    status.cpus = partition.cpu_count();
    status.mem = partition.memory_bytes();
    (status.created_ns, status.started_ns) = (note.created_ns, note.started_ns);
    adopt_devices(&mut partition, &functions, &mut status);
    if misfit.is_none() && !partition.functions_agree() {
        misfit = Some("the IOMMU does not have its devices as it was told");
    }
    let label = label_of(&note.label, id);
    let names = Names::from_command_line(partition.named()).unwrap_or_else(|| {
        misfit = misfit.or(Some("the names of its peers do not hold"));
        Names::default()
    });
    let lease = partition.network().and_then(|pages| {
        let lease = network::adopt_lease(id, &note.lease, pages, &mut status);
        if lease.is_none() {
            misfit = misfit.or(Some("its network is not there any more"));
        }
        lease
    });
    let attached = (lease, names);
    let instance = Instance::adopted(label, partition, status, &note, misfit, attached);
    let Ok(instance) = instance else {
        // Dropped, it is ended, and what does not come back at once is in quarantine.
        log::error!("no memory to look after instance {id} ({label}): it ends");
        return;
    };
    match misfit {
        None => log::info!("instance {id} ({label}) goes on under this supervisor"),
        Some(why) => log::warn!("instance {id} ({label}) cannot go on: {why}"),
    }
    instance.tell(dev::EVENT_ADOPT, partition::restarts());
    let mut table = TABLE.lock();
    table.active.insert(id, instance.clone());
    table.instances.insert(id, instance);
}

/// The name that was noted; if that is none, or another instance has it, which an exchange of two
/// names that was cut short can bring about, one made of the number.
fn label_of(noted: &[u8; dev::LABEL_BYTES], id: u32) -> Label {
    let noted = Label::new(noted).filter(|label| !TABLE.lock().has_label(*label));
    noted.unwrap_or_else(|| Label::numbered(id))
}
