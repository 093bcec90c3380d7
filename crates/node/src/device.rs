//! `/dev/skerry`. Every call reads its structure, acts, and writes it back; a call that fails has
//! changed nothing.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::Ipv4Addr;
use core::ops::Deref;
use core::sync::atomic::AtomicU64;

use abi::boot;
use abi::dev::{
    self, AddDevice, Attach, Create, Exec, Info, List, Load, NetworkInfo, Peers, Publish, Rename,
    Resize, Settle, Stats, Status, Target, Wait,
};
use abi::errno::Errno;
use abi::exec;
use abi::live::{Answer, Verdict};
use abi::msg::{self, Message};
use abi::network::Subnet;
use fs::devfs::{self, CharDevice};
use fs::ioctl::IoctlRequest;
use fs::{File, FileOps, OpenFlags, Result};
use guard::partition::{self, CreateError, GrowError, Partition, Sharing, Spec};
use guard::timer;
use task::Deadline;
use zerocopy::IntoBytes;

use crate::events::EventReader;
use crate::exec_files::{ExecHandle, ExecReader, ExecWriter};
use crate::instance::{
    Charge, ExecError, Extent, Instance, OnHang, Outcome, Program, Refusal, Refused as NotGiven,
    ResizeError, Wanted, check_device, supervisors_stats,
};
use crate::label::Label;
use crate::network::{self, AddRefused, Lease, Refused};
use crate::peers::Names;
use crate::stream_files::{StdinWriter, StreamReader};
use crate::{TABLE, instances};

/// Most instances that are remembered, running or not.
const MAX_INSTANCES: usize = 1024;
/// Bytes copied from a program at a time.
const CHUNK: usize = 64 << 10;

struct SkerryDevice;

struct SkerryFile;

pub(crate) fn register() -> Result<()> {
    devfs::register("skerry", Arc::new(SkerryDevice)).map(drop)
}

impl CharDevice for SkerryDevice {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        Ok(Arc::new(SkerryFile))
    }
}

impl FileOps for SkerryFile {
    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        if !request.caller.privileged() {
            return Err(Errno::EPERM);
        }
        let _raised = task::raise(crate::MANAGEMENT_PRIORITY);
        match request.command {
            dev::INFO => info(request),
            dev::CREATE => create(request),
            dev::LOAD => load(request),
            dev::START => find(read_target(request)?.id)?.start().map(|()| 0),
            dev::STATUS => {
                let status: Status = request.read()?;
                request.write(&find(status.id)?.status()).map(|()| 0)
            }
            dev::LIST => list(request),
            dev::SIGNAL => {
                let target = read_target(request)?;
                if !(1..=64).contains(&target.value) {
                    return Err(Errno::EINVAL);
                }
                find(target.id)?.signal(target.value).map(|()| 0)
            }
            dev::SHUTDOWN => find(read_target(request)?.id)?
                .send(Message::new(msg::SHUTDOWN, &[]))
                .map(|()| 0),
            dev::WINSIZE => {
                let target = read_target(request)?;
                let (rows, columns) = (
                    u64::from(target.value >> 16),
                    u64::from(target.value & 0xffff),
                );
                find(target.id)?
                    .send(Message::new(msg::WINSIZE, &[rows, columns]))
                    .map(|()| 0)
            }
            dev::HALT => find(read_target(request)?.id)?.halt().map(|()| 0),
            dev::DESTROY => destroy(read_target(request)?.id),
            dev::ATTACH => attach(request),
            dev::WAIT => wait(request),
            dev::RESIZE => resize(request),
            dev::SETTLE => settle(request),
            dev::EVENTS => events(request),
            dev::STATS => stats(request),
            dev::PAUSE => find(read_target(request)?.id)?.pause().map(|()| 0),
            dev::UNPAUSE => find(read_target(request)?.id)?.unpause().map(|()| 0),
            dev::RENAME => rename(request),
            dev::EXEC => exec(request),
            dev::ADD_DEVICE => change_device(request, add_device),
            dev::REMOVE_DEVICE => change_device(request, |call| find(call.id)?.remove_device(call)),
            dev::PUBLISH => publish(request),
            dev::ADD_NETWORK => add_network(request),
            dev::REMOVE_NETWORK => remove_network(request),
            dev::NETWORKS => list_networks(request),
            dev::PEERS => {
                let call: Peers = request.read()?;
                request.write(&find(call.id)?.peers(call.from)).map(|()| 0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

fn read_target(request: &IoctlRequest<'_>) -> Result<Target> {
    request.read()
}

/// An instance, to which is charged what the call does from now on.
struct Found {
    instance: Arc<Instance>,
    _charge: Charge<Arc<AtomicU64>>,
}

impl Deref for Found {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.instance
    }
}

fn find(id: u32) -> Result<Found> {
    let found = TABLE.lock().instances.get(&id).cloned();
    found.ok_or(Errno::ENOENT).map(|instance| Found {
        _charge: instance.charge(),
        instance,
    })
}

fn info(request: &IoctlRequest<'_>) -> Result<usize> {
    let r = partition::resources();
    let info = Info {
        cpus_total: r.cpus_total,
        cpus_supervisor: r.cpus_supervisor,
        cpus_free: r.cpus_free,
        cpus_lost: r.cpus_lost,
        cpus_quarantined: r.cpus_quarantined,
        cpus_withheld: r.cpus_withheld,
        cores_total: r.cores_total,
        cores_supervisor: r.cores_supervisor,
        cores_free: r.cores_free,
        cores_lost: r.cores_lost,
        cores_quarantined: r.cores_quarantined,
        iommus: devices::iommu_units() as u32,
        mem_total: r.mem_total,
        mem_free: r.mem_free,
        mem_granted: r.mem_granted,
        mem_quarantined: r.mem_quarantined,
        mem_leaked: r.mem_leaked,
        version: dev::field(env!("CARGO_PKG_VERSION")).unwrap_or_default(),
    };
    request.write(&info).map(|()| 0)
}

fn create(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Create = request.read()?;
    let result = try_create(&mut call);
    request.write(&call)?;
    result.map(|()| 0)
}

/// Says why an instance is not made, and what is free. Not inlined: what it needs of the stack
/// would be there beneath a creation.
#[inline(never)]
fn fail(call: &mut Create, reason: u32, errno: Errno) -> Result<()> {
    call.reason = reason;
    let free = partition::resources();
    call.free_cpus = free.cpus_free;
    call.withheld_cpus = free.cpus_withheld;
    call.free_mem = free.mem_free;
    Err(errno)
}

/// Says why the guard does not make an instance, and what is free.
#[inline(never)]
fn fail_with(call: &mut Create, error: CreateError) -> Result<()> {
    match error {
        CreateError::Cpus { free, sharing } => {
            let reason = match sharing {
                Sharing::SingleThread => dev::REASON_CORES,
                Sharing::WholeCores | Sharing::Shared => dev::REASON_CPUS,
            };
            let failed = fail(call, reason, Errno::ENOSPC);
            call.free_cpus = free;
            failed
        }
        CreateError::Memory { free } => {
            let failed = fail(call, dev::REASON_MEMORY, Errno::ENOMEM);
            // What would fit: whole granules, unlike what is free.
            call.free_mem = free;
            failed
        }
        CreateError::TooSmall { least } => {
            call.least = least;
            fail(call, dev::REASON_TOO_SMALL, Errno::EINVAL)
        }
        CreateError::Window => fail(call, dev::REASON_WINDOW, Errno::ENOMEM),
        CreateError::Network => fail(call, dev::REASON_NETWORK, Errno::ENOMEM),
    }
}

fn try_create(call: &mut Create) -> Result<()> {
    let Some(label) = Label::new(&call.label) else {
        return fail(call, dev::REASON_LABEL, Errno::EINVAL);
    };
    let Some(more) = dev::text(&call.cmdline).map(String::from) else {
        return Err(Errno::EINVAL);
    };
    let Some(peers) = Names::new(&call.peers, &call.groups, label) else {
        return fail(call, dev::REASON_PEER, Errno::EINVAL);
    };
    let begun_ns = task::current().cpu_time_ns();
    let Some(reservation) = Reservation::new(label)? else {
        return fail(call, dev::REASON_LABEL, Errno::EEXIST);
    };
    let id = reservation.id;
    let lease = match lease_address(id, call) {
        Ok(lease) => lease,
        Err((reason, errno)) => return fail(call, reason, errno),
    };
    let network = lease.as_ref().map_or_else(String::new, |lease| {
        let server = (call.name_server != 0).then(|| Ipv4Addr::from_bits(call.name_server));
        lease.command_line(server) + " "
    });
    let trace = if call.flags & dev::CREATE_TRACE != 0 {
        "trace "
    } else {
        ""
    };
    // The supervisor's choice, unless the instance has its own, which comes behind.
    let mut mitigations = String::new();
    for name in ["mitigations", "pti"] {
        if let Some(choice) = guard::role::cmdline_value(name) {
            mitigations += &format!("{name}={choice} ");
        }
    }
    // Behind what was asked for: the kernel is told so however it is called.
    let (sharing, smt) = if call.flags & dev::CREATE_SHARED_CORES != 0 {
        (Sharing::Shared, " smt=allow")
    } else {
        (Sharing::WholeCores, "")
    };
    let named = peers.command_line();
    let cmdline = format!("{mitigations}{trace}{network}{more}{smt}{named}");
    let spec = Spec {
        id,
        cpus: call.cpus,
        sharing,
        memory: call.mem,
        network: lease.is_some(),
        places: peers.places(),
        label: label.as_str(),
        cmdline: &cmdline,
    };
    let partition = match Partition::create(&spec) {
        Ok(partition) => partition,
        Err(error) => return fail_with(call, error),
    };
    let mut status: Status = dev::zeroed();
    status.id = id;
    status.state = dev::STATE_CREATED;
    status.cpus = partition.cpu_count();
    status.mem = partition.memory_bytes();
    if let (Some(lease), Some(pages)) = (&lease, partition.network()) {
        status.address = lease.address().to_bits();
        status.network_label = lease.label().0;
        network::attach(id, pages);
    }
    status.requested_ns = call.requested_ns;
    status.created_ns = timer::wall_ns();
    let on_hang = if call.flags & dev::CREATE_UNWATCHED != 0 {
        OnHang::Ignore
    } else if call.flags & dev::CREATE_STOP_WHEN_HUNG != 0 {
        OnHang::Stop
    } else {
        OnHang::Report
    };
    let Ok(instance) = Instance::new(label, partition, status, on_hang, (lease, peers)) else {
        return fail(call, dev::REASON_WINDOW, Errno::ENOMEM);
    };
    instance.charge_since(begun_ns);
    instance.tell_resources(dev::EVENT_CREATE, &status);
    reservation.commit(instance);
    call.id = id;
    call.reason = dev::REASON_NONE;
    Ok(())
}

/// Gives an instance that is to have a network an address; else `None`. If that fails, the reason
/// and the error of the call.
fn lease_address(id: u32, call: &mut Create) -> core::result::Result<Option<Lease>, (u32, Errno)> {
    if call.flags & dev::CREATE_NETWORK == 0 {
        return Ok(None);
    }
    let wanted = (call.address != 0).then(|| Ipv4Addr::from_bits(call.address));
    let unknown = (dev::REASON_UNKNOWN_NETWORK, Errno::ENOENT);
    let named = match call.network[0] {
        0 => dev::field(abi::network::BRIDGE),
        _ => Some(call.network),
    };
    let label = named.as_ref().and_then(Label::new).ok_or(unknown)?;
    match network::lease(id, label, wanted) {
        Ok(lease) => {
            call.address = lease.address().to_bits();
            call.gateway = lease.gateway().to_bits();
            Ok(Some(lease))
        }
        Err(Refused::Taken(owner)) => {
            call.owner = owner;
            Err((dev::REASON_ADDRESS, Errno::EADDRINUSE))
        }
        Err(Refused::Unknown) => Err(unknown),
        Err(Refused::Full) => Err((dev::REASON_ADDRESSES, Errno::ENOSPC)),
        Err(Refused::Foreign) => Err((dev::REASON_NO_ADDRESS, Errno::EADDRNOTAVAIL)),
        Err(Refused::Unable) => Err((dev::REASON_NETWORK, Errno::ENOMEM)),
    }
}

/// A number and a name that nobody else gets while an instance is created: its memory is cleaned
/// meanwhile, and the table is not locked for so long.
struct Reservation {
    id: u32,
}

impl Reservation {
    /// Reserves a number for `label`; `None` if an instance has that name.
    ///
    /// # Errors
    /// `ENFILE`: as many instances are remembered as may be.
    fn new(label: Label) -> Result<Option<Self>> {
        let mut table = TABLE.lock();
        if table.instances.len() + table.reserved.len() >= MAX_INSTANCES {
            return Err(Errno::ENFILE);
        }
        if table.has_label(label) {
            return Ok(None);
        }
        let id = table.next_id;
        table.next_id += 1;
        partition::note_last_id(id);
        table.reserved.insert(id, label);
        Ok(Some(Self { id }))
    }

    /// Puts the instance into the table.
    fn commit(self, instance: Arc<Instance>) {
        let mut table = TABLE.lock();
        table.active.insert(self.id, instance.clone());
        table.instances.insert(self.id, instance);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        table.reserved.remove(&self.id);
        // What fails changes nothing, unless another has the next number already.
        if !table.instances.contains_key(&self.id) && table.next_id == self.id + 1 {
            table.next_id = self.id;
        }
    }
}

fn load(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Load = request.read()?;
    try_load(request, &call).map(|()| 0).or_else(|refusal| {
        if refusal.needed > 0 {
            call.needed = refusal.needed;
            request.write(&call)?;
        }
        Err(refusal.errno)
    })
}

fn try_load(request: &IoctlRequest<'_>, call: &Load) -> core::result::Result<(), Refusal> {
    let instance = find(call.id)?;
    match call.kind {
        dev::LOAD_BOOT_BLOB => {
            if call.len > boot::MAX_BYTES as u64 {
                return Err(Errno::E2BIG.into());
            }
            let mut blob = fallible::zeroed(call.len as usize)?;
            request.caller.read_bytes(call.ptr as usize, &mut blob)?;
            boot::Boot::parse(&blob).map_err(|_| Errno::EINVAL)?;
            instance.load(|partition| partition.set_boot_blob(&blob))
        }
        dev::LOAD_INITRAMFS => {
            if call.offset == 0 {
                instance.load(|partition| partition.announce_initramfs(call.total))?;
            }
            let mut buf = fallible::zeroed(CHUNK.min(call.len as usize))?;
            let mut done = 0;
            while done < call.len {
                let part = &mut buf[..CHUNK.min((call.len - done) as usize)];
                let from = call.ptr.checked_add(done).ok_or(Errno::EFAULT)?;
                request.caller.read_bytes(from as usize, part)?;
                let to = call.offset.checked_add(done).ok_or(Errno::EINVAL)?;
                instance.load(|partition| partition.write_initramfs(to, part))?;
                done += part.len() as u64;
            }
            Ok(())
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

fn list(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: List = request.read()?;
    call.count = 0;
    for instance in instances() {
        if call.count < call.capacity {
            request.caller.write_bytes(
                call.ptr as usize + call.count as usize * size_of::<u32>(),
                &instance.id().to_ne_bytes(),
            )?;
        }
        call.count += 1;
    }
    request.write(&call).map(|()| 0)
}

fn destroy(id: u32) -> Result<usize> {
    let instance = find(id)?;
    instance.destroy()?;
    if TABLE.lock().instances.remove(&id).is_some() {
        instance.tell(dev::EVENT_REMOVE, 0);
    }
    Ok(0)
}

fn attach(request: &IoctlRequest<'_>) -> Result<usize> {
    let call: Attach = request.read()?;
    let instance = find(call.id)?.instance.clone();
    let (ops, flags): (Arc<dyn FileOps>, _) = match call.stream {
        dev::STREAM_STDIN if call.exec != 0 => {
            let writer = ExecWriter::new(instance, call.exec);
            (Arc::new(writer), OpenFlags::WRONLY)
        }
        dev::STREAM_STDOUT | dev::STREAM_STDERR if call.exec != 0 => {
            let reader = ExecReader::new(instance, call.exec, call.stream as usize);
            (Arc::new(reader), OpenFlags::RDONLY)
        }
        _ if call.exec != 0 => return Err(Errno::EINVAL),
        dev::STREAM_STDIN => (Arc::new(StdinWriter::new(instance)), OpenFlags::WRONLY),
        dev::STREAM_STDOUT | dev::STREAM_STDERR | dev::STREAM_KLOG => (
            Arc::new(StreamReader::new(
                instance,
                call.stream as usize - 1,
                call.flags,
            )),
            OpenFlags::RDONLY,
        ),
        _ => return Err(Errno::EINVAL),
    };
    let stream = File::anonymous_fifo("skerry-stream", ops, flags);
    request.caller.install(stream, OpenFlags::CLOEXEC)
}

fn exec(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Exec = request.read()?;
    if call.flags & !dev::EXEC_DETACHED != 0 {
        return Err(Errno::EINVAL);
    }
    if call.len > exec::REQUEST_BYTES as u64 {
        return Err(Errno::E2BIG);
    }
    let mut bytes = fallible::zeroed(call.len as usize)?;
    request.caller.read_bytes(call.ptr as usize, &mut bytes)?;
    boot::Boot::parse(&bytes).map_err(|_| Errno::EINVAL)?;
    let instance = find(call.id)?;
    let program = Program {
        request: &bytes,
        user: call.user,
        group: call.group,
        winsize: call.winsize,
        detached: call.flags & dev::EXEC_DETACHED != 0,
    };
    let (reason, errno) = match instance.exec(&program) {
        Ok(number) => {
            // From here on it is hung up if something fails.
            let handle = Arc::new(ExecHandle::new(instance.instance.clone(), number));
            (call.number, call.reason) = (number, dev::REASON_NONE);
            request.write(&call)?;
            let file = File::anonymous_fifo("skerry-exec", handle, OpenFlags::RDWR);
            return request.caller.install(file, OpenFlags::CLOEXEC);
        }
        Err(ExecError::NotRunning) => (dev::REASON_NONE, Errno::ESRCH),
        Err(ExecError::TooLong) => (dev::REASON_NONE, Errno::E2BIG),
        Err(ExecError::Booting) => (dev::REASON_BOOTING, Errno::EBUSY),
        Err(ExecError::Paused) => (dev::REASON_PAUSED, Errno::EBUSY),
        Err(ExecError::Hung) => (dev::REASON_HUNG, Errno::EBUSY),
        Err(ExecError::Full) => (dev::REASON_EXECS, Errno::EBUSY),
    };
    call.reason = reason;
    request.write(&call)?;
    Err(errno)
}

fn change_device(
    request: &IoctlRequest<'_>,
    change: impl FnOnce(&mut AddDevice) -> core::result::Result<u64, NotGiven>,
) -> Result<usize> {
    let mut call: AddDevice = request.read()?;
    call.reset_us = 0;
    let changed = change(&mut call);
    (call.reason, call.owner, call.epoch) = (dev::REASON_NONE, 0, 0);
    let result = match changed {
        Ok(epoch) => {
            call.epoch = epoch;
            Ok(0)
        }
        Err(refused) => {
            (call.reason, call.owner) = (refused.reason, refused.owner);
            Err(refused.errno)
        }
    };
    request.write(&call)?;
    result
}

/// Adds a device, or says whether any instance could have it.
fn add_device(call: &mut AddDevice) -> core::result::Result<u64, NotGiven> {
    match call.id {
        0 if call.flags & dev::DEVICE_DRY_RUN != 0 => check_device(call).map(|()| 0),
        id => find(id)?.add_device(call),
    }
}

fn publish(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Publish = request.read()?;
    let published = find(call.id)?.publish(&call.port);
    (call.reason, call.owner) = (dev::REASON_NONE, 0);
    let result = published.map_err(|refused| {
        (call.reason, call.owner) = (refused.reason, refused.owner);
        refused.errno
    });
    request.write(&call)?;
    result.map(|()| 0)
}

fn add_network(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: NetworkInfo = request.read()?;
    let result = try_add_network(&mut call);
    request.write(&call)?;
    result.map(|()| 0)
}

fn try_add_network(call: &mut NetworkInfo) -> Result<()> {
    let (reason, errno) = match Label::new(&call.label) {
        None => (dev::REASON_NETWORK_LABEL, Errno::EINVAL),
        Some(label) => match subnet(call).map(|subnet| network::add(label, subnet)) {
            None => (dev::REASON_SUBNET, Errno::EINVAL),
            Some(Ok(())) => {
                call.reason = dev::REASON_NONE;
                return Ok(());
            }
            Some(Err(AddRefused::Label)) => (dev::REASON_NETWORK_LABEL, Errno::EEXIST),
            Some(Err(AddRefused::TooMany)) => (dev::REASON_NETWORKS, Errno::ENOSPC),
            Some(Err(AddRefused::Overlap(other, interface))) => {
                call.gateway = other.address.to_bits();
                call.prefix_len = other.length.into();
                call.interface = interface;
                (dev::REASON_OVERLAP, Errno::EADDRINUSE)
            }
            Some(Err(AddRefused::Unable)) => (dev::REASON_NETWORK, Errno::ENOMEM),
        },
    };
    call.reason = reason;
    Err(errno)
}

/// Addresses that a call asks for; `None` if no network of instances can have them.
fn subnet(call: &NetworkInfo) -> Option<Subnet> {
    let prefix_len = u8::try_from(call.prefix_len).ok()?;
    Subnet::new(Ipv4Addr::from_bits(call.gateway), prefix_len)
}

fn remove_network(request: &IoctlRequest<'_>) -> Result<usize> {
    let call: NetworkInfo = request.read()?;
    let label = Label::new(&call.label).ok_or(Errno::ENOENT)?;
    network::remove(label).map(|()| 0)
}

fn list_networks(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: List = request.read()?;
    call.count = 0;
    while let Some(info) = network::info(call.count as usize) {
        if call.count < call.capacity {
            let offset = call.count as usize * size_of::<NetworkInfo>();
            let to = (call.ptr as usize)
                .checked_add(offset)
                .ok_or(Errno::EFAULT)?;
            request.caller.write_bytes(to, info.as_bytes())?;
        }
        call.count += 1;
    }
    request.write(&call).map(|()| 0)
}

fn events(request: &IoctlRequest<'_>) -> Result<usize> {
    let call: dev::Events = request.read()?;
    let reader = Arc::new(EventReader::new(call.flags)?);
    let stream = File::anonymous_fifo("skerry-events", reader, OpenFlags::RDONLY);
    request.caller.install(stream, OpenFlags::CLOEXEC)
}

fn resize(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Resize = request.read()?;
    if call.flags & !(dev::RESIZE_DRY_RUN | dev::RESIZE_RECLAIM) != 0 {
        return Err(Errno::EINVAL);
    }
    let extent = if call.flags & dev::RESIZE_DRY_RUN == 0 {
        Extent::Full
    } else {
        Extent::DryRun
    };
    let want = Wanted {
        cpus: (call.cpus != 0).then_some(call.cpus),
        memory: (call.mem != 0).then_some(call.mem),
        reclaims: call.flags & dev::RESIZE_RECLAIM != 0,
    };
    let (resized, has) = find(call.id)?.resize(&want, extent);
    (call.mem, call.most) = (has.memory, has.most_memory);
    (call.cpus, call.most_cpus) = (has.cpus, has.most_cpus);
    call.least = has.first_memory;
    call.free_mem = partition::resources().mem_free;
    call.free_cpus = has.free_cpus;
    (call.epoch, call.reason) = (0, dev::REASON_NONE);
    let result = match resized {
        Ok(epoch) => {
            call.epoch = epoch;
            Ok(0)
        }
        Err(ResizeError::Paused) => {
            call.reason = dev::REASON_PAUSED;
            Err(Errno::EBUSY)
        }
        Err(ResizeError::Grow(error)) => Err(match error {
            GrowError::Stopped => Errno::ESRCH,
            GrowError::Pending => {
                call.reason = dev::REASON_PENDING;
                Errno::EBUSY
            }
            GrowError::Memory { free } => {
                (call.reason, call.free_mem) = (dev::REASON_MEMORY, free);
                Errno::ENOMEM
            }
            GrowError::Cpus { free } => {
                (call.reason, call.free_cpus) = (dev::REASON_CPUS, free);
                Errno::ENOSPC
            }
            GrowError::Limit => {
                call.reason = dev::REASON_LIMIT;
                Errno::EINVAL
            }
            GrowError::FirstMemory => {
                call.reason = dev::REASON_SHRINK;
                Errno::EINVAL
            }
            // Nobody can ask for none.
            GrowError::LastCpu => Errno::EINVAL,
            GrowError::Supervisor => {
                call.reason = dev::REASON_WINDOW;
                Errno::ENOMEM
            }
        }),
    };
    request.write(&call)?;
    result
}

fn stats(request: &IoctlRequest<'_>) -> Result<usize> {
    let call: Stats = request.read()?;
    if call.flags & !dev::STATS_ASK != 0 {
        return Err(Errno::EINVAL);
    }
    let ask = call.flags & dev::STATS_ASK != 0;
    let stats = match call.id {
        0 => supervisors_stats(),
        id => find(id)?.stats(ask),
    };
    let flags = call.flags;
    request.write(&Stats { flags, ..stats }).map(|()| 0)
}

fn rename(request: &IoctlRequest<'_>) -> Result<usize> {
    let call: Rename = request.read()?;
    let label = Label::new(&call.label).ok_or(Errno::EINVAL)?;
    if call.flags & !dev::RENAME_EXCHANGE != 0 {
        return Err(Errno::EINVAL);
    }
    // All names are looked at and changed under one lock: nobody sees two of one name, or none.
    let table = TABLE.lock();
    let instance = table.instances.get(&call.id).ok_or(Errno::ENOENT)?;
    let old = instance.label();
    if label == old {
        return Ok(0);
    }
    let other = if call.flags & dev::RENAME_EXCHANGE == 0 {
        if table.has_label(label) {
            return Err(Errno::EEXIST);
        }
        None
    } else {
        let mut instances = table.instances.values();
        let other = instances
            .find(|instance| instance.label() == label)
            .ok_or(Errno::ENOENT)?;
        other.set_label(old);
        other.tell(dev::EVENT_RENAME, 0);
        Some(other.clone())
    };
    instance.set_label(label);
    instance.tell(dev::EVENT_RENAME, 0);
    let changed = [Some(instance.clone()), other];
    drop(table);
    changed
        .iter()
        .flatten()
        .for_each(|instance| instance.note_label());
    Ok(0)
}

/// The deadline of a call that waits for so many milliseconds; none if they are negative.
fn deadline(timeout_ms: i32) -> Option<Deadline> {
    let ms = u64::try_from(timeout_ms).ok()?;
    Some(Deadline::after_ns(ms * 1_000_000))
}

fn settle(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Settle = request.read()?;
    let instance = find(call.id)?;
    let deadline = deadline(call.timeout_ms);
    let settled = || instance.outcome(call.epoch).transpose();
    let outcome = instance
        .state_changed
        .wait_until(deadline, settled)?
        .ok_or(Errno::ETIMEDOUT)??;
    (call.outcome, call.answer) = match outcome {
        Outcome::Taken { scrub_ns } => {
            call.scrub_ns = scrub_ns;
            (dev::OUTCOME_TAKEN, 0)
        }
        Outcome::Ended => (dev::OUTCOME_ENDED, 0),
        Outcome::Refused(refusal) => {
            let answer = Answer {
                epoch: call.epoch as u32,
                verdict: Verdict::Refused(refusal),
            };
            (dev::OUTCOME_REFUSED, answer.to_word())
        }
    };
    request.write(&call).map(|()| 0)
}

fn wait(request: &IoctlRequest<'_>) -> Result<usize> {
    let mut call: Wait = request.read()?;
    let instance = find(call.id)?;
    let deadline = deadline(call.timeout_ms);
    let is_there: fn(&Instance) -> bool = match call.flags {
        0 => Instance::has_ended,
        dev::WAIT_UP => Instance::is_up,
        dev::WAIT_PAUSED => Instance::pause_is_over,
        _ => return Err(Errno::EINVAL),
    };
    if call.flags == 0 {
        instance.hurry();
    }
    instance
        .state_changed
        .wait_until(deadline, || is_there(&instance).then_some(()))?
        .ok_or(Errno::ETIMEDOUT)?;
    call.state = instance.status().state;
    request.write(&call).map(|()| 0)
}
