//! The supervisor's interface: the calls of `/dev/skerry` ([`abi::dev`]) as a trait.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use abi::dev::{
    self, AddDevice, Create, Exec, Info, Load, NetworkInfo, Peers, Publish, Resize, Settle, Stats,
    Status,
};

/// Why an instance was not created. Nothing was changed.
#[derive(Debug)]
pub enum CreateError {
    /// Too few CPUs are free.
    Cpus {
        /// Number of CPUs that such an instance could have.
        free: u32,
        /// CPUs that nobody gets while another thread of their core is in use.
        withheld: u32,
    },
    /// Too few cores are free, of which one thread each is used.
    Cores {
        /// Number of CPUs that such an instance could have.
        free: u32,
    },
    /// Too little memory is free.
    Memory {
        /// Free memory in bytes.
        free: u64,
    },
    /// The memory asked for does not hold a kernel.
    TooSmall {
        /// The least that does, in bytes.
        least: u64,
    },
    /// Another instance has that name.
    Taken,
    /// An instance has the address.
    Address {
        /// Number of the instance.
        owner: u32,
    },
    /// No instance may have the address.
    NoAddress,
    /// There is no network of that name.
    UnknownNetwork,
    /// All addresses of the network are taken.
    NoFreeAddress,
    /// The supervisor cannot give a network.
    Network,
    /// Something else.
    Other(io::Error),
}

impl CreateError {
    /// Converts the `error` of a refused call, with what the kernel wrote into it.
    #[must_use]
    pub fn from_call(call: &Create, error: io::Error) -> Self {
        match call.reason {
            dev::REASON_CPUS => Self::Cpus {
                free: call.free_cpus,
                withheld: call.withheld_cpus,
            },
            dev::REASON_CORES => Self::Cores {
                free: call.free_cpus,
            },
            dev::REASON_MEMORY => Self::Memory {
                free: call.free_mem,
            },
            dev::REASON_TOO_SMALL => Self::TooSmall { least: call.least },
            dev::REASON_LABEL if error.raw_os_error() == Some(libc::EEXIST) => Self::Taken,
            dev::REASON_ADDRESS => Self::Address { owner: call.owner },
            dev::REASON_NO_ADDRESS => Self::NoAddress,
            dev::REASON_UNKNOWN_NETWORK => Self::UnknownNetwork,
            dev::REASON_ADDRESSES => Self::NoFreeAddress,
            dev::REASON_NETWORK => Self::Network,
            _ => Self::Other(error),
        }
    }
}

/// Reasons for nothing to be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The instance's memory does not hold it.
    TooLarge {
        /// The least memory of an instance that would, in bytes.
        least: u64,
    },
    /// Something else.
    Other(io::Error),
}

impl LoadError {
    /// Converts the `error` of a refused call, with what the kernel wrote into it.
    #[must_use]
    pub fn from_call(call: &Load, error: io::Error) -> Self {
        match call.needed {
            0 => Self::Other(error),
            least => Self::TooLarge { least },
        }
    }
}

/// One of an instance's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// Standard input, to be written.
    Stdin = dev::STREAM_STDIN,
    /// Standard output.
    Stdout = dev::STREAM_STDOUT,
    /// Standard error.
    Stderr = dev::STREAM_STDERR,
    /// The kernel's log.
    Klog = dev::STREAM_KLOG,
}

/// The supervisor.
pub trait Device {
    /// CPUs and memory of the machine.
    ///
    /// # Errors
    /// The call's.
    fn info(&self) -> io::Result<Info>;

    /// The numbers of all instances, in the order of creation.
    ///
    /// # Errors
    /// The call's.
    fn list(&self) -> io::Result<Vec<u32>>;

    /// State of an instance.
    ///
    /// # Errors
    /// The call's; `ENOENT` if there is none.
    fn status(&self, id: u32) -> io::Result<Status>;

    /// Takes CPUs and memory; returns the instance's number.
    ///
    /// # Errors
    /// What is short; nothing was changed.
    fn create(&self, call: &mut Create) -> Result<u32, CreateError>;

    /// Gives an instance that was created or runs a PCI function.
    ///
    /// # Errors
    /// The call's, with a reason in `call`; nothing was changed.
    fn add_device(&self, call: &mut AddDevice) -> io::Result<()>;

    /// Asks a running instance to let go of a PCI function.
    ///
    /// # Errors
    /// The call's, with a reason in `call`; nothing was changed.
    fn remove_device(&self, call: &mut AddDevice) -> io::Result<()>;

    /// Leads a port of the machine to one of a created instance.
    ///
    /// # Errors
    /// The call's, with a reason in `call`; nothing was changed.
    fn publish(&self, call: &mut Publish) -> io::Result<()>;

    /// Makes a network for instances.
    ///
    /// # Errors
    /// The call's, with a reason in `call`; nothing was changed.
    fn add_network(&self, call: &mut NetworkInfo) -> io::Result<()>;

    /// Takes a network away.
    ///
    /// # Errors
    /// The call's: `ENOENT` if there is none of that name, `EPERM` for the one that there always
    /// is, `EBUSY` while an instance has an address of it.
    fn remove_network(&self, name: &str) -> io::Result<()>;

    /// All networks of instances.
    ///
    /// # Errors
    /// The call's.
    fn networks(&self) -> io::Result<Vec<NetworkInfo>>;

    /// Peers of an instance and members of its groups, but for the first `from`.
    ///
    /// # Errors
    /// The call's; `ENOENT` if there is no such instance.
    fn peers(&self, id: u32, from: u32) -> io::Result<Peers>;

    /// Gives a created instance a part of its archive or its boot blob: `bytes` at `offset` of
    /// `total`.
    ///
    /// # Errors
    /// The call's; [`LoadError::TooLarge`] if its memory does not hold it.
    fn load(
        &self,
        id: u32,
        kind: u32,
        total: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), LoadError>;

    /// Makes one of the calls that take a [`dev::Target`]: `START`, `SIGNAL`, `SHUTDOWN`, `HALT`,
    /// `DESTROY`, `WINSIZE`, `PAUSE`, `UNPAUSE`.
    ///
    /// # Errors
    /// The call's.
    fn control(&self, call: u32, id: u32, value: u32) -> io::Result<()>;

    /// A descriptor for one of an instance's streams; `flags` are `dev::ATTACH_*`.
    ///
    /// # Errors
    /// The call's.
    fn attach(&self, id: u32, stream: Stream, flags: u32) -> io::Result<OwnedFd>;

    /// Asks a running instance for a program; returns the descriptor that tells of it.
    ///
    /// # Errors
    /// The call's, with a reason in `call`.
    fn exec(&self, call: &mut Exec, request: &[u8]) -> io::Result<OwnedFd>;

    /// A descriptor for a stream of the program of this number in an instance.
    ///
    /// # Errors
    /// The call's.
    fn attach_exec(&self, id: u32, number: u32, stream: Stream) -> io::Result<OwnedFd>;

    /// A descriptor from which [`dev::Event`]s are read; `flags` are `dev::EVENTS_*`.
    ///
    /// # Errors
    /// The call's.
    fn events(&self, flags: u32) -> io::Result<OwnedFd>;

    /// Waits until an instance has ended and what it had is free; for ever without a limit.
    ///
    /// # Errors
    /// The call's; `ETIMEDOUT`.
    fn wait(&self, id: u32, limit: Option<Duration>) -> io::Result<()>;

    /// Waits until an instance's program has begun, or the instance has ended before that; for ever
    /// without a limit.
    ///
    /// # Errors
    /// The call's; `ETIMEDOUT`.
    fn wait_up(&self, id: u32, limit: Option<Duration>) -> io::Result<()>;

    /// Waits until all CPUs of an instance stand still, or they are not to any more, or it has
    /// ended; for ever without a limit.
    ///
    /// # Errors
    /// The call's; `ETIMEDOUT`.
    fn wait_paused(&self, id: u32, limit: Option<Duration>) -> io::Result<()>;

    /// Figures of what an instance, or with number 0 the supervisor, has used so far; `flags` are
    /// `dev::STATS_*`.
    ///
    /// # Errors
    /// The call's; `ENOENT` if there is none.
    fn stats(&self, id: u32, flags: u32) -> io::Result<Stats>;

    /// Gives an instance another name; `flags` are `dev::RENAME_*`.
    ///
    /// # Errors
    /// The call's; nothing was changed.
    fn rename(&self, id: u32, name: &str, flags: u32) -> io::Result<()>;

    /// Gives a running instance more CPUs or memory; it answers later.
    ///
    /// # Errors
    /// The call's, with a reason in `call`; nothing was changed.
    fn resize(&self, call: &mut Resize) -> io::Result<()>;

    /// Waits until an instance has answered a change.
    ///
    /// # Errors
    /// The call's; `ETIMEDOUT`.
    fn settle(&self, call: &mut Settle) -> io::Result<()>;
}
