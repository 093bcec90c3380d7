//! A supervisor in memory, for tests: what programs do is told by their name.
//!
//! `say TEXT STATUS` prints and ends, `panic` panics, `true` ends, `polite` ends when asked,
//! `refuse` refuses each change, `ignore` answers none, `missing` cannot be executed, `silent`
//! never gets so far, anything else runs until it is halted.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abi::boot::Boot;
use abi::dev::{
    self, AddDevice, Create, Exec, ExecState, Info, NetworkInfo, PeerInfo, Peers, Publish,
    PublishedPort, Resize, Settle, Stats, Status,
};
use abi::live::{Answer, Refusal, Verdict};
use abi::network::{BRIDGE, Subnet};
use rustix::pipe::{PipeFlags, pipe_with};
use zerocopy::IntoBytes;

use crate::device::{CreateError, Device, LoadError, Stream};
use crate::instances::{CreateOptions, has_ended};
use crate::state::Store;

/// A request for an instance with an empty root file system.
pub fn request(name: &str, command: &[&str]) -> CreateOptions {
    CreateOptions {
        name: Some(name.into()),
        cpus: 1,
        memory: 64 << 20,
        rootfs: Some(rootfs().into()),
        command: command.iter().map(|word| (*word).into()).collect(),
        ..CreateOptions::default()
    }
}

/// A machine, and the files in which the tool remembers instances: of both, changes can be made to
/// fail at a step.
pub struct Here {
    _directory: TestDirectory,
    pub mock: Mock,
    pub store: Store,
}

impl Here {
    /// A machine with so many CPUs, of which one is the supervisor's, and 1 GiB of memory.
    pub fn new(cpus: u32) -> Self {
        let directory = TestDirectory::new();
        let mock = Mock::new(cpus, 1 << 30);
        let mut store = Store::at(&directory.0, "boot").unwrap();
        store.fuse = mock.fuse.clone();
        Self {
            _directory: directory,
            mock,
            store,
        }
    }
}

/// A folder of a test's own, removed with it.
pub struct TestDirectory(pub PathBuf);

impl TestDirectory {
    /// A new one, which is empty.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("skerry-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// End of what a tool does, at one of its changes: of the machine, or of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// The change fails.
    Failure,
    /// The tool is killed before it.
    Death,
}

/// Counts the changes that a tool makes, and lets one of them go wrong.
#[derive(Clone, Debug, Default)]
pub struct Fuse(Rc<Cell<Option<(u32, Accident)>>>);

impl Fuse {
    /// Lets so many changes succeed, and the next one not.
    pub fn set(&self, changes: u32, accident: Accident) {
        self.0.set(Some((changes, accident)));
    }

    /// Lets all further changes succeed. Returns whether one did not.
    pub fn clear(&self) -> bool {
        matches!(self.0.take(), Some((u32::MAX, _)))
    }

    /// Called before each change.
    pub fn step(&self) -> io::Result<()> {
        match self.0.get() {
            None | Some((u32::MAX, Accident::Failure)) => Ok(()),
            // Nothing that is done while the stack is unwound has any effect.
            Some((0 | u32::MAX, Accident::Death)) => {
                self.0.set(Some((u32::MAX, Accident::Death)));
                std::panic::resume_unwind(Box::new(Accident::Death));
            }
            Some((0, accident)) => {
                self.0.set(Some((u32::MAX, accident)));
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            Some((left, accident)) => {
                self.0.set(Some((left - 1, accident)));
                Ok(())
            }
        }
    }
}

/// A folder that makes a small root file system.
pub fn rootfs() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/src/rootfs")
}

struct Record {
    status: Status,
    command: Vec<String>,
    /// Flag: asked to end while it was paused, and will.
    asked_to_end: bool,
    /// Its caches keep memory from leaving.
    holds: bool,
    stats: Stats,
    /// Names of peers and groups, who are not there.
    peers: Vec<PeerInfo>,
    /// Where standard output, standard error and kernel log go while somebody is attached.
    attached: Vec<(Stream, File)>,
}

impl Record {
    fn written(&self, stream: Stream) -> String {
        let text = self
            .command
            .get(1)
            .filter(|_| self.command[0] == "say" && self.status.state > dev::STATE_CREATED);
        match (stream, text) {
            (Stream::Stdout, Some(text)) => text.clone(),
            (Stream::Stderr, Some(text)) => format!("errors of {text}"),
            (Stream::Klog, _) => "last words\n".into(),
            _ => String::new(),
        }
    }

    fn end(&mut self, state: u32, exit_code: i32) {
        (
            self.status.state,
            self.status.exit_code,
            self.status.ended_ns,
        ) = (state, exit_code, 1);
        self.status.paused = dev::PAUSED_NO;
        for (stream, mut file) in std::mem::take(&mut self.attached) {
            file.write_all(self.written(stream).as_bytes()).unwrap();
        }
    }
}

struct State {
    records: Vec<Record>,
    next_id: u32,
    refuse_loads: bool,
    /// The first one is there always.
    networks: Vec<NetworkInfo>,
    /// Text that the last program of `exec` writes.
    said: String,
}

/// See the module.
pub struct Mock {
    cpus: u32,
    memory: u64,
    state: RefCell<State>,
    /// Counts changes, those of files too.
    pub fuse: Fuse,
    /// A folder for what a tool remembers.
    pub directory: TestDirectory,
}

impl Mock {
    /// A machine, one of whose CPUs is the supervisor's.
    pub fn new(cpus: u32, memory: u64) -> Self {
        Self {
            cpus,
            memory,
            fuse: Fuse::default(),
            directory: TestDirectory::new(),
            state: RefCell::new(State {
                records: Vec::new(),
                next_id: 1,
                refuse_loads: false,
                networks: vec![network(dev::field(BRIDGE).unwrap(), Subnet::BRIDGE)],
                said: String::new(),
            }),
        }
    }

    /// From now on nothing fits.
    pub fn refuse_loads(&self) {
        self.state.borrow_mut().refuse_loads = true;
    }

    /// Called before each change.
    fn step(&self) -> io::Result<()> {
        self.fuse.step()
    }

    fn with<R>(&self, id: u32, f: impl FnOnce(&mut Record) -> io::Result<R>) -> io::Result<R> {
        let mut state = self.state.borrow_mut();
        let record = state
            .records
            .iter_mut()
            .find(|record| record.status.id == id);
        f(record.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?)
    }
}

/// A network with these addresses.
fn network(label: [u8; dev::LABEL_BYTES], subnet: Subnet) -> NetworkInfo {
    NetworkInfo {
        label,
        gateway: subnet.gateway().to_bits(),
        prefix_len: subnet.prefix_len().into(),
        interface: dev::field("skerry0").unwrap(),
        ..dev::zeroed()
    }
}

fn subnet(network: &NetworkInfo) -> Option<Subnet> {
    let prefix_len = u8::try_from(network.prefix_len).ok()?;
    Subnet::new(Ipv4Addr::from_bits(network.gateway), prefix_len)
}

impl Device for Mock {
    fn info(&self) -> io::Result<Info> {
        let state = self.state.borrow();
        let holds = |record: &&Record| record.status.state <= dev::STATE_RUNNING;
        let cpus: u32 = state
            .records
            .iter()
            .filter(holds)
            .map(|record| record.status.cpus)
            .sum();
        let memory: u64 = state
            .records
            .iter()
            .filter(holds)
            .map(|record| record.status.mem)
            .sum();
        Ok(Info {
            cpus_total: self.cpus,
            cpus_supervisor: 1,
            cpus_free: self.cpus - 1 - cpus,
            cores_total: self.cpus,
            cores_supervisor: 1,
            cores_free: self.cpus - 1 - cpus,
            mem_total: self.memory,
            mem_free: self.memory - memory,
            mem_granted: memory,
            ..Info::default()
        })
    }

    fn list(&self) -> io::Result<Vec<u32>> {
        Ok(self
            .state
            .borrow()
            .records
            .iter()
            .map(|record| record.status.id)
            .collect())
    }

    fn status(&self, id: u32) -> io::Result<Status> {
        self.with(id, |record| Ok(record.status))
    }

    fn create(&self, call: &mut Create) -> Result<u32, CreateError> {
        self.step().map_err(CreateError::Other)?;
        let free = self.info().unwrap();
        let mut state = self.state.borrow_mut();
        match () {
            () if state
                .records
                .iter()
                .any(|record| record.status.label == call.label) =>
            {
                return Err(CreateError::Taken);
            }
            () if call.cpus > free.cpus_free => {
                return Err(CreateError::Cpus {
                    free: free.cpus_free,
                    withheld: free.cpus_withheld,
                });
            }
            () if call.mem > free.mem_free => {
                return Err(CreateError::Memory {
                    free: free.mem_free,
                });
            }
            () => {}
        }
        let taken = |address: Ipv4Addr| {
            let mut all = state.records.iter().map(|record| &record.status);
            all.find(|status| !has_ended(status) && status.address == address.to_bits())
                .map(|status| status.id)
        };
        let network = match call.network[0] {
            0 => state.networks.first(),
            _ => state.networks.iter().find(|one| one.label == call.network),
        };
        let network = *network.ok_or(CreateError::UnknownNetwork)?;
        let subnet = subnet(&network).unwrap();
        let numbers = || (1..255).map(|number| subnet.address(number));
        let mut free =
            numbers().filter(|address| subnet.is_assignable(*address) && taken(*address).is_none());
        let address = match call.address {
            _ if call.flags & dev::CREATE_NETWORK == 0 => None,
            0 => Some(free.next().ok_or(CreateError::NoFreeAddress)?),
            bits => Some(Ipv4Addr::from_bits(bits)),
        };
        if let Some(address) = address {
            if !subnet.is_assignable(address) {
                return Err(CreateError::NoAddress);
            }
            if let Some(owner) = taken(address) {
                return Err(CreateError::Address { owner });
            }
        }
        let mut status: Status = dev::zeroed();
        if let Some(address) = address {
            status.address = address.to_bits();
            status.network_label = network.label;
            call.gateway = network.gateway;
        }
        (status.id, status.state, status.label) = (state.next_id, dev::STATE_CREATED, call.label);
        (status.cpus, status.mem) = (call.cpus, call.mem);
        status.requested_ns = call.requested_ns;
        state.next_id += 1;
        let named = |flags| {
            move |label: &[u8; dev::LABEL_BYTES]| PeerInfo {
                label: *label,
                flags,
                ..dev::zeroed()
            }
        };
        let peers = call.peers.iter().map(named(0));
        let groups = call.groups.iter().map(named(dev::PEER_GROUP));
        let peers = peers.chain(groups).filter(|peer| peer.label[0] != 0);
        let peers = peers.collect();
        state.records.push(Record {
            status,
            command: Vec::new(),
            asked_to_end: false,
            holds: false,
            stats: Stats::default(),
            peers,
            attached: Vec::new(),
        });
        Ok(status.id)
    }

    /// There are functions on buses 1 to 8, and no IOMMU.
    fn add_device(&self, call: &mut AddDevice) -> io::Result<()> {
        self.fuse.step()?;
        let mut state = self.state.borrow_mut();
        let records = &mut state.records;
        let owner = records.iter().find(|record| {
            let status = &record.status;
            status.state <= dev::STATE_RUNNING && status.devices().contains(&call.function)
        });
        let refused = if call.function & 0xff != 0 || !(1..9).contains(&(call.function >> 8)) {
            Some((dev::REASON_NO_FUNCTION, libc::ENODEV))
        } else if call.flags & dev::DEVICE_UNSAFE_DMA == 0 {
            Some((dev::REASON_IOMMU, libc::EPERM))
        } else {
            owner.map(|owner| {
                call.owner = owner.status.id;
                (dev::REASON_OWNER, libc::EBUSY)
            })
        };
        if let Some((reason, errno)) = refused {
            call.reason = reason;
            return Err(io::Error::from_raw_os_error(errno));
        }
        if call.flags & dev::DEVICE_DRY_RUN != 0 {
            return Ok(());
        }
        let mut all = records.iter_mut();
        let record = all.find(|record| record.status.id == call.id).unwrap();
        let status = &mut record.status;
        call.epoch = u64::from(status.state == dev::STATE_RUNNING);
        call.reset_us = 7;
        if call.epoch != 0 && matches!(record.command[0].as_str(), "refuse" | "ignore") {
            return Ok(());
        }
        status.devices[status.device_count as usize] = call.function;
        status.device_count += 1;
        status.device_flags |= call.flags;
        Ok(())
    }

    fn remove_device(&self, call: &mut AddDevice) -> io::Result<()> {
        self.step()?;
        self.with(call.id, |record| {
            let status = &mut record.status;
            if status.state != dev::STATE_RUNNING {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            let at = (status.devices().iter()).position(|number| *number == call.function);
            let Some(at) = at else {
                call.reason = dev::REASON_NOT_ITS;
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            };
            if call.flags & dev::DEVICE_DRY_RUN == 0 {
                call.epoch = 1;
                status.devices[at..].rotate_left(1);
                status.device_count -= 1;
                if status.device_count == 0 {
                    status.device_flags = 0;
                }
            }
            Ok(())
        })
    }

    fn add_network(&self, call: &mut NetworkInfo) -> io::Result<()> {
        self.fuse.step()?;
        let networks = &mut self.state.borrow_mut().networks;
        let refused = |errno| Err(io::Error::from_raw_os_error(errno));
        let Some(wanted) = subnet(call) else {
            call.reason = dev::REASON_SUBNET;
            return refused(libc::EINVAL);
        };
        if networks.iter().any(|one| one.label == call.label) {
            call.reason = dev::REASON_NETWORK_LABEL;
            return refused(libc::EEXIST);
        }
        if networks.len() == dev::MAX_NETWORKS {
            call.reason = dev::REASON_NETWORKS;
            return refused(libc::ENOSPC);
        }
        let mut others = networks.iter();
        if let Some(other) = others.find(|one| subnet(one).unwrap().overlaps(wanted)) {
            *call = NetworkInfo {
                label: call.label,
                reason: dev::REASON_OVERLAP,
                ..*other
            };
            return refused(libc::EADDRINUSE);
        }
        networks.push(network(call.label, wanted));
        Ok(())
    }

    fn remove_network(&self, name: &str) -> io::Result<()> {
        self.fuse.step()?;
        let state = &mut *self.state.borrow_mut();
        let refused = |errno| Err(io::Error::from_raw_os_error(errno));
        let label = dev::field(name).unwrap();
        let at = state.networks.iter().position(|one| one.label == label);
        let is_member =
            |record: &Record| !has_ended(&record.status) && record.status.network_label == label;
        match at {
            None => refused(libc::ENOENT),
            Some(0) => refused(libc::EPERM),
            Some(_) if state.records.iter().any(is_member) => refused(libc::EBUSY),
            Some(at) => {
                state.networks.remove(at);
                Ok(())
            }
        }
    }

    fn networks(&self) -> io::Result<Vec<NetworkInfo>> {
        let state = self.state.borrow();
        let all = state.networks.iter().map(|network| {
            let all = state.records.iter().map(|record| &record.status);
            let here = all.filter(|one| !has_ended(one) && one.network_label == network.label);
            NetworkInfo {
                members: here.count() as u32,
                ..*network
            }
        });
        Ok(all.collect())
    }

    fn peers(&self, id: u32, from: u32) -> io::Result<Peers> {
        self.with(id, |record| {
            let mut told: Peers = dev::zeroed();
            (told.id, told.from, told.total) = (id, from, record.peers.len() as u32);
            let rest = record.peers.iter().skip(from as usize);
            for (to, peer) in told.peers.iter_mut().zip(rest) {
                *to = *peer;
                told.count += 1;
            }
            Ok(told)
        })
    }

    fn publish(&self, call: &mut Publish) -> io::Result<()> {
        self.fuse.step()?;
        let mut state = self.state.borrow_mut();
        let records = &mut state.records;
        let overlaps = |port: &PublishedPort| {
            (port.protocol, port.port) == (call.port.protocol, call.port.port)
        };
        let owner = records.iter().find(|record| {
            !has_ended(&record.status) && record.status.ports().iter().any(overlaps)
        });
        if let Some(owner) = owner {
            (call.reason, call.owner) = (dev::REASON_PORT, owner.status.id);
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        let mut all = records.iter_mut();
        let record = all.find(|record| record.status.id == call.id).unwrap();
        let status = &mut record.status;
        if status.address == 0 {
            call.reason = dev::REASON_NO_NETWORK;
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        status.ports[status.port_count as usize] = call.port;
        status.port_count += 1;
        Ok(())
    }

    fn load(&self, id: u32, kind: u32, _: u64, _: u64, bytes: &[u8]) -> Result<(), LoadError> {
        self.step().map_err(LoadError::Other)?;
        if self.state.borrow().refuse_loads {
            return Err(LoadError::TooLarge { least: 66 << 20 });
        }
        let loaded = self.with(id, |record| {
            if kind == dev::LOAD_BOOT_BLOB {
                let boot =
                    Boot::parse(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
                record.command = boot
                    .arguments()
                    .map(|word| String::from_utf8(word.to_vec()).unwrap())
                    .collect();
            }
            Ok(())
        });
        loaded.map_err(LoadError::Other)
    }

    fn control(&self, call: u32, id: u32, _: u32) -> io::Result<()> {
        self.step()?;
        let refused = |errno| Err(io::Error::from_raw_os_error(errno));
        if call == dev::DESTROY {
            self.with(id, |record| {
                if record.status.state == dev::STATE_RUNNING {
                    refused(libc::EBUSY)
                } else {
                    Ok(())
                }
            })?;
            self.state
                .borrow_mut()
                .records
                .retain(|record| record.status.id != id);
            return Ok(());
        }
        self.with(id, |record| {
            let running = record.status.state == dev::STATE_RUNNING;
            let program = record.command[0].clone();
            match call {
                dev::START if record.status.state != dev::STATE_CREATED => {
                    return refused(libc::EBUSY);
                }
                dev::START => {
                    record.status.state = dev::STATE_RUNNING;
                    record.status.start_to_user_ns = u64::from(program != "missing");
                    match program.as_str() {
                        "say" => record.end(dev::STATE_EXITED, record.command[2].parse().unwrap()),
                        "missing" => record.end(dev::STATE_EXITED, 127),
                        "true" => record.end(dev::STATE_EXITED, 0),
                        "panic" => record.end(dev::STATE_PANICKED, 137),
                        _ => {}
                    }
                }
                _ if !running => return refused(libc::ESRCH),
                dev::PAUSE if record.status.paused != dev::PAUSED_NO => {
                    return refused(libc::EALREADY);
                }
                dev::UNPAUSE if record.status.paused == dev::PAUSED_NO => {
                    return refused(libc::EALREADY);
                }
                dev::PAUSE if program == "ignore" => record.status.paused = dev::PAUSED_ASKED,
                dev::PAUSE => record.status.paused = dev::PAUSED_YES,
                dev::UNPAUSE => {
                    record.status.paused = dev::PAUSED_NO;
                    if record.asked_to_end {
                        record.end(dev::STATE_EXITED, 143);
                    }
                }
                dev::SHUTDOWN if record.status.paused != dev::PAUSED_NO => {
                    record.asked_to_end = program == "polite";
                }
                dev::SHUTDOWN if program == "polite" => record.end(dev::STATE_EXITED, 143),
                dev::HALT => record.end(dev::STATE_HALTED, 137),
                _ => {}
            }
            Ok(())
        })
    }

    fn attach(&self, id: u32, stream: Stream, flags: u32) -> io::Result<OwnedFd> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        if stream == Stream::Stdin {
            // Nobody reads it; the pipe holds what tests write.
            return Ok(write);
        }
        let mut write = File::from(write);
        self.with(id, |record| {
            if record.status.state > dev::STATE_RUNNING || flags & dev::ATTACH_FOLLOW == 0 {
                write.write_all(record.written(stream).as_bytes())?;
            } else {
                record.attached.push((stream, write));
            }
            Ok(())
        })?;
        Ok(read)
    }

    fn exec(&self, call: &mut Exec, request: &[u8]) -> io::Result<OwnedFd> {
        let boot = Boot::parse(request).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let words: Vec<&str> = (boot.arguments())
            .map(|word| std::str::from_utf8(word).unwrap())
            .collect();
        if self.status(call.id)?.paused != dev::PAUSED_NO {
            call.reason = dev::REASON_PAUSED;
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let (state, value) = match words.as_slice() {
            ["say", text, status] => {
                self.state.borrow_mut().said = (*text).into();
                (dev::EXEC_ENDED, status.parse().unwrap())
            }
            _ => (dev::EXEC_REFUSED, libc::ENOENT as u32),
        };
        call.number = 1;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        File::from(write).write_all(ExecState { state, value }.as_bytes())?;
        Ok(read)
    }

    fn attach_exec(&self, _: u32, _: u32, stream: Stream) -> io::Result<OwnedFd> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        if stream == Stream::Stdin {
            return Ok(write);
        }
        if stream == Stream::Stdout {
            File::from(write).write_all(self.state.borrow().said.as_bytes())?;
        }
        Ok(read)
    }

    fn events(&self, _: u32) -> io::Result<OwnedFd> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut write = File::from(write);
        let mut sequence = 0;
        let mut tell = |status: &Status, kind, value| {
            sequence += 1;
            write.write_all(
                dev::Event {
                    sequence,
                    time_ns: sequence * 1_000_000_000,
                    value,
                    id: status.id,
                    kind,
                    cpus: if kind == dev::EVENT_CREATE {
                        status.cpus
                    } else {
                        0
                    },
                    reserved: 0,
                    label: status.label,
                }
                .as_bytes(),
            )
        };
        for Record { status, .. } in &self.state.borrow().records {
            tell(status, dev::EVENT_CREATE, status.mem)?;
            if status.state >= dev::STATE_RUNNING {
                tell(status, dev::EVENT_START, 0)?;
            }
            if status.state == dev::STATE_EXITED {
                tell(status, dev::EVENT_EXIT, status.exit_code as u64)?;
            }
        }
        Ok(read)
    }

    fn wait(&self, id: u32, limit: Option<Duration>) -> io::Result<()> {
        self.with(id, |record| match record.status.state {
            state if state > dev::STATE_RUNNING => Ok(()),
            _ if limit.is_some() => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            _ => panic!("a test would wait for ever"),
        })
    }

    fn wait_up(&self, id: u32, limit: Option<Duration>) -> io::Result<()> {
        self.step()?;
        self.with(id, |record| match record.status.state {
            dev::STATE_RUNNING if record.command[0] != "silent" => Ok(()),
            dev::STATE_CREATED | dev::STATE_RUNNING if limit.is_some() => {
                Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
            }
            dev::STATE_CREATED | dev::STATE_RUNNING => panic!("a test would wait for ever"),
            _ => Ok(()),
        })
    }

    fn wait_paused(&self, id: u32, limit: Option<Duration>) -> io::Result<()> {
        self.with(id, |record| match record.status.paused {
            dev::PAUSED_ASKED if limit.is_some() => {
                Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
            }
            dev::PAUSED_ASKED => panic!("a test would wait for ever"),
            _ => Ok(()),
        })
    }

    fn stats(&self, id: u32, flags: u32) -> io::Result<Stats> {
        if id == 0 {
            return Ok(Stats::default());
        }
        self.with(id, |record| {
            let asked = record.stats.asked + u32::from(flags & dev::STATS_ASK != 0);
            record.stats = Stats {
                id,
                cpus: record.status.cpus,
                mem: record.status.mem,
                mem_used: record.status.mem / 4,
                threads: 1,
                asked,
                // It has answered all but the last question.
                answered: record.stats.asked,
                user_ns: record.stats.user_ns + 1_000_000,
                ..record.stats
            };
            Ok(record.stats)
        })
    }

    fn rename(&self, id: u32, name: &str, flags: u32) -> io::Result<()> {
        self.step()?;
        let label = dev::field(name).unwrap();
        let old = self.status(id)?.label;
        let mut state = self.state.borrow_mut();
        let other = (state.records.iter_mut()).find(|record| record.status.label == label);
        match (other, flags & dev::RENAME_EXCHANGE != 0) {
            (Some(other), true) => other.status.label = old,
            (None, false) => {}
            (Some(_), false) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
            (None, true) => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
        drop(state);
        self.with(id, |record| {
            record.status.label = label;
            Ok(())
        })
    }

    fn resize(&self, call: &mut Resize) -> io::Result<()> {
        self.step()?;
        let info = self.info()?;
        let free = info.mem_free;
        self.with(call.id, |record| {
            let has = record.status.mem;
            let or = |asked, has| if asked == 0 { has } else { asked };
            let mem = or(call.mem, has);
            let cpus = or(call.cpus.into(), record.status.cpus.into()) as u32;
            (call.mem, call.free_mem, call.most) = (has, free, 1 << 29);
            call.least = 64 << 20;
            (call.cpus, call.free_cpus) = (record.status.cpus, info.cpus_free);
            call.most_cpus = self.cpus - 1;
            let (reason, errno) = match () {
                () if record.status.state != dev::STATE_RUNNING => (dev::REASON_NONE, libc::ESRCH),
                () if record.status.paused != dev::PAUSED_NO => (dev::REASON_PAUSED, libc::EBUSY),
                () if mem < call.least => (dev::REASON_SHRINK, libc::EINVAL),
                () if mem > call.most || cpus > call.most_cpus => (dev::REASON_LIMIT, libc::EINVAL),
                () if mem.saturating_sub(has) > free => (dev::REASON_MEMORY, libc::ENOMEM),
                () if cpus.saturating_sub(call.cpus) > call.free_cpus => {
                    (dev::REASON_CPUS, libc::ENOSPC)
                }
                () => {
                    let program = record.command[0].as_str();
                    let is_done = call.flags & dev::RESIZE_DRY_RUN == 0;
                    // What holds memory are caches.
                    let reclaims = call.flags & dev::RESIZE_RECLAIM != 0;
                    record.holds = program == "hold" && !reclaims;
                    if is_done && !record.holds && !matches!(program, "refuse" | "ignore") {
                        (record.status.mem, record.status.cpus) = (mem, cpus);
                    }
                    call.epoch = u64::from(is_done);
                    return Ok(());
                }
            };
            call.reason = reason;
            Err(io::Error::from_raw_os_error(errno))
        })
    }

    fn settle(&self, call: &mut Settle) -> io::Result<()> {
        self.with(call.id, |record| {
            (call.outcome, call.answer) = match record.command[0].as_str() {
                program if program == "refuse" || record.holds => {
                    let verdict = Verdict::Refused(if record.holds {
                        Refusal::pages_of_kernel(37)
                    } else {
                        Refusal::NoMemory
                    });
                    let answer = Answer { epoch: 1, verdict };
                    (dev::OUTCOME_REFUSED, answer.to_word())
                }
                "ignore" => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
                _ => (dev::OUTCOME_TAKEN, 0),
            };
            Ok(())
        })
    }
}
