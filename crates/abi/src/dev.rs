//! `/dev/skerry`: the calls by which a program manages instances (decision 005;
//! `docs/partitions.md`).
//!
//! All structures have the same layout for kernel and program; a call reads its structure and
//! writes it back. Strings are padded with NULs. Instances are named by the number that [`CREATE`]
//! gives.

mod network;
mod peers;

use core::mem::size_of;

pub use network::{
    INTERFACE_BYTES, MAX_NETWORKS, MAX_PORTS, NetworkCounters, NetworkInfo, PROTOCOL_TCP,
    PROTOCOL_UDP, Publish, PublishedPort,
};
pub use peers::{PEER_ABSENT, PEER_CONNECTED, PEER_GROUP, PEERS_AT_ONCE, PeerInfo, Peers};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::messages::{MAX_GROUPS, MAX_NAMES};

const TYPE: u32 = b'k' as u32;

/// `_IOWR('k', number, T)` of Linux's `asm-generic/ioctl.h`.
const fn request<T>(number: u32) -> u32 {
    3 << 30 | (size_of::<T>() as u32) << 16 | TYPE << 8 | number
}

/// Defines the calls: what each does, its number, and the structure that it reads and writes. The
/// table in `docs/partitions.md` is made of it (`cargo xtask pages`).
macro_rules! calls {
    ($($(#[$attribute:meta])* $name:ident = $number:literal, $argument:ident;)*) => {
        $(
            $(#[$attribute])*
            #[doc = ""]
            #[doc = concat!("The argument is a [`", stringify!($argument), "`].")]
            pub const $name: u32 = request::<$argument>($number);
        )*

        /// All calls, by number from 1 on.
        pub const CALLS: &[u32] = &[$($name),*];
    };
}

calls! {
    /// Gives the machine's CPUs and memory, and who has them.
    INFO = 1, Info;
    /// Takes CPUs and memory for an instance; `id` is the result. If it fails, `reason` and what is
    /// free say more.
    CREATE = 2, Create;
    /// Puts a boot blob (in one piece) or an archive (in pieces, in order) into a created instance.
    LOAD = 3, Load;
    /// Starts a created instance.
    START = 4, Target;
    /// Gives the record of an instance: its state, the exit code included.
    STATUS = 5, Status;
    /// Gives the numbers of all instances.
    LIST = 6, List;
    /// Delivers signal `value` to the first program.
    SIGNAL = 7, Target;
    /// Delivers `SIGTERM` to the first program.
    SHUTDOWN = 8, Target;
    /// Begins the end of an instance by force: takes its CPUs away, whatever it does. Returns at
    /// once; WAIT waits.
    HALT = 9, Target;
    /// Forgets the record of an instance that does not run; of a created one, gives back what it
    /// has.
    DESTROY = 10, Target;
    /// Opens a stream as a new descriptor (close-on-exec), which is the result: standard input is
    /// written, the others are read; `poll` and `O_NONBLOCK` work. Closing the writer of standard
    /// input is the end of input.
    ATTACH = 11, Attach;
    /// Sleeps until the end of an instance is complete, or, with WAIT_UP, its program has begun; a
    /// signal interrupts it.
    WAIT = 12, Wait;
    /// Tells the terminal of an instance its size, rows in the upper and columns in the lower half
    /// of `value`; also before START, so that the program finds it.
    WINSIZE = 13, Target;
    /// Gives a running instance more CPUs or memory, or takes some away, and returns before it has
    /// answered: SETTLE waits for that. If it fails, `reason` and what is free say more.
    RESIZE = 14, Resize;
    /// Sleeps until an instance has answered a change, and what it gave back is free; a signal
    /// interrupts it.
    SETTLE = 15, Settle;
    /// Opens the list of what has happened to instances as a new descriptor (close-on-exec), which
    /// is the result: `read` gives whole [`Event`]s, beginning with the oldest that is kept; `poll`
    /// and `O_NONBLOCK` work.
    EVENTS = 16, Events;
    /// Gives an instance another name; with RENAME_EXCHANGE, the instance that has that name gets
    /// this one's, both at once.
    RENAME = 17, Rename;
    /// Gives what an instance, or with number 0 the supervisor, has used so far, by its own
    /// counters; with STATS_ASK, also asks it for what it has to put together first.
    STATS = 18, Stats;
    /// Has all CPUs of a running instance stand still, and returns before they do: WAIT with
    /// WAIT_PAUSED waits for that.
    PAUSE = 19, Target;
    /// Has the CPUs of a paused instance go on.
    UNPAUSE = 20, Target;
    /// Asks a running instance for a program beside its first one. The result is a new descriptor
    /// (close-on-exec) from which an [`ExecState`] is read each time that it has changed, until the
    /// program has ended; an [`ExecControl`] that is written to it is for the program.
    /// When it is closed, the program is hung up, unless it is detached. If the call fails,
    /// `reason` says more.
    EXEC = 21, Exec;
    /// Gives a PCI function to an instance that was created or runs. It is reset on the way in and
    /// out. Of one that runs it returns when that is told: SETTLE waits for its answer. If the call
    /// fails, `reason` says more.
    ADD_DEVICE = 22, AddDevice;
    /// Leads a port of the machine to one of a created instance that has a network, until its end.
    /// If the call fails, `reason` says more.
    PUBLISH = 23, Publish;
    /// Makes a network for instances, with an interface of the supervisor's. If the call fails,
    /// `reason` says more.
    ADD_NETWORK = 24, NetworkInfo;
    /// Takes a network away, by its name, that no instance has an address of.
    REMOVE_NETWORK = 25, NetworkInfo;
    /// Gives all networks of instances, as [`NetworkInfo`]s: the one that there always is first.
    NETWORKS = 26, List;
    /// Gives the names of an instance's peers and groups, and its exchange of messages with each
    /// peer and member, eight at a time.
    PEERS = 27, Peers;
    /// Asks an instance that runs to let go of a PCI function, and returns when that is told:
    /// SETTLE waits until it has answered, and the function was reset. If the call fails, `reason`
    /// says more.
    REMOVE_DEVICE = 28, AddDevice;
}

/// `state`: it has CPUs and memory.
pub const STATE_CREATED: u32 = 1;
/// `state`: it boots or runs.
pub const STATE_RUNNING: u32 = 2;
/// `state`: its first program ended, with `exit_code`.
pub const STATE_EXITED: u32 = 3;
/// `state`: its kernel could not go on.
pub const STATE_PANICKED: u32 = 4;
/// `state`: its CPUs were taken away.
pub const STATE_HALTED: u32 = 5;
/// `state`: it never ran.
pub const STATE_FAILED: u32 = 6;

/// A state's name, as shown to people.
#[must_use]
pub const fn state_name(state: u32) -> &'static str {
    match state {
        STATE_CREATED => "created",
        STATE_RUNNING => "running",
        STATE_EXITED => "exited",
        STATE_PANICKED => "panicked",
        STATE_HALTED => "halted",
        STATE_FAILED => "failed",
        _ => "unknown",
    }
}

/// `health` of an instance that runs: nothing is known against it.
pub const HEALTH_GOOD: u32 = 0;
/// `health`: a CPU has not answered for a while. Its host may have stopped it.
pub const HEALTH_UNRESPONSIVE: u32 = 1;
/// `health`: a CPU answers, and takes no interrupts any more.
pub const HEALTH_HUNG: u32 = 2;

/// `paused` of an instance that runs: it is not.
pub const PAUSED_NO: u32 = 0;
/// `paused`: its CPUs are to stand still, and not all do yet.
pub const PAUSED_ASKED: u32 = 1;
/// `paused`: all its CPUs stand still.
pub const PAUSED_YES: u32 = 2;

/// A health's name, as shown to people.
#[must_use]
pub const fn health_name(health: u32) -> &'static str {
    match health {
        HEALTH_GOOD => "good",
        HEALTH_UNRESPONSIVE => "unresponsive",
        HEALTH_HUNG => "hung",
        _ => "unknown",
    }
}

/// Bytes of a label.
pub const LABEL_BYTES: usize = 64;

/// `flags` of [`Exec`]: the program has no streams, and runs on when the descriptor is closed.
pub const EXEC_DETACHED: u32 = 1;

/// See [`EXEC`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Exec {
    /// The instance.
    pub id: u32,
    /// `EXEC_*`.
    pub flags: u32,
    /// Address of the request, as a boot blob ([`crate::boot`]): the variables are those it has
    /// beside the first program's; without a working directory it has that one's. Its streams are
    /// a terminal if the blob says so, unless it is detached.
    pub ptr: u64,
    /// Bytes of the request.
    pub len: u64,
    /// User of the program.
    pub user: u32,
    /// Group of the program.
    pub group: u32,
    /// Result: the program's number in its instance, for [`ATTACH`].
    pub number: u32,
    /// `REASON_*` of a failure.
    pub reason: u32,
    /// Size that its terminal begins with: rows in the upper and columns in the lower half.
    pub winsize: u32,
    /// Unused; zero.
    pub reserved: u32,
}

/// `state` of [`ExecState`]: the program runs.
pub const EXEC_STARTED: u32 = 1;
/// `state`: it cannot be run; `value` is an error of `execve(2)`.
pub const EXEC_REFUSED: u32 = 2;
/// `state`: it has ended; `value` is its status as shells show it.
pub const EXEC_ENDED: u32 = 3;

/// State of a program that was asked for by [`EXEC`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ExecState {
    /// `EXEC_STARTED` and so on.
    pub state: u32,
    /// The error of one that was refused, the status of one that has ended; else 0.
    pub value: u32,
}

/// A signal for a program that was asked for by [`EXEC`], or the size of its terminal.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExecControl {
    /// Number of the signal; 0: the terminal has another size.
    pub signal: u32,
    /// The size, as in [`Exec::winsize`]; of a signal 0.
    pub winsize: u32,
}

/// See [`INFO`]. Memory in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Info {
    /// All CPUs.
    pub cpus_total: u32,
    /// The supervisor's own.
    pub cpus_supervisor: u32,
    /// Free for instances that do not share cores.
    pub cpus_free: u32,
    /// Did not start.
    pub cpus_lost: u32,
    /// Did not come back from an instance yet.
    pub cpus_quarantined: u32,
    /// Given to nobody, because another thread of the core has an owner or is lost, or one thread
    /// of each core is used only.
    pub cpus_withheld: u32,
    /// All cores.
    pub cores_total: u32,
    /// Cores with a thread of the supervisor's.
    pub cores_supervisor: u32,
    /// Cores that nobody has a thread of.
    pub cores_free: u32,
    /// Cores with a thread that did not start.
    pub cores_lost: u32,
    /// Cores with a thread that did not come back from an instance yet.
    pub cores_quarantined: u32,
    /// Number of units that confine PCI functions.
    pub iommus: u32,
    /// All memory.
    pub mem_total: u64,
    /// Free for instances. What the supervisor keeps free for itself is not counted.
    pub mem_free: u64,
    /// Bytes of memory with instances.
    pub mem_granted: u64,
    /// Bytes of memory that CPUs in quarantine may still use.
    pub mem_quarantined: u64,
    /// Unusable until the machine is restarted.
    pub mem_leaked: u64,
    /// The kernel's version.
    pub version: [u8; 32],
}

/// `reason` of a failed [`CREATE`]: none.
pub const REASON_NONE: u32 = 0;
/// Too few CPUs are free; `free_cpus` says how many are.
pub const REASON_CPUS: u32 = 1;
/// Too little memory is free; `free_mem`.
pub const REASON_MEMORY: u32 = 2;
/// The memory asked for does not hold a kernel; `least`.
pub const REASON_TOO_SMALL: u32 = 3;
/// The label is in use, empty or not text.
pub const REASON_LABEL: u32 = 4;
/// The supervisor itself is short of memory.
pub const REASON_WINDOW: u32 = 5;
/// Too few cores are free, of which one thread each is used.
pub const REASON_CORES: u32 = 6;

/// `reason` of a failed [`RESIZE`]: the instance was created with more memory, which it keeps;
/// `least`.
pub const REASON_SHRINK: u32 = 7;
/// `reason` of a failed [`RESIZE`]: the instance was created for less; `most`,
/// `most_cpus`.
pub const REASON_LIMIT: u32 = 8;
/// `reason` of a failed [`RESIZE`]: another change was not answered yet.
pub const REASON_PENDING: u32 = 9;
/// `reason` of a failed [`RESIZE`] or [`EXEC`]: the instance is paused.
pub const REASON_PAUSED: u32 = 10;
/// `reason` of a failed [`EXEC`]: a CPU of the instance hangs.
pub const REASON_HUNG: u32 = 11;
/// `reason` of a failed [`EXEC`]: as many programs are at work in the instance as may be beside its
/// first one.
pub const REASON_EXECS: u32 = 12;
/// `reason` of a failed [`EXEC`]: the instance's first program has not begun.
pub const REASON_BOOTING: u32 = 13;

/// `reason` of a failed [`ADD_DEVICE`]: no IOMMU translates for the function, and
/// [`DEVICE_UNSAFE_DMA`] was not given; so it is with the next four.
pub const REASON_IOMMU: u32 = 14;
/// `reason` of a failed [`ADD_DEVICE`]: the machine has no such function.
pub const REASON_NO_FUNCTION: u32 = 15;
/// `reason` of a failed [`ADD_DEVICE`]: the function is a bridge, or of no known layout.
pub const REASON_BRIDGE: u32 = 16;
/// `reason` of a failed [`ADD_DEVICE`]: a driver of the supervisor has the function.
pub const REASON_DRIVER: u32 = 17;
/// `reason` of a failed [`ADD_DEVICE`]: an instance has the function; `owner`.
pub const REASON_OWNER: u32 = 18;
/// `reason` of a failed [`ADD_DEVICE`]: the function has no way to be reset.
pub const REASON_NO_RESET: u32 = 19;
/// `reason` of a failed [`ADD_DEVICE`]: the function did not prove that it was reset.
pub const REASON_NOT_RESET: u32 = 20;
/// `reason` of a failed [`ADD_DEVICE`]: the function has no MSI-X.
pub const REASON_NO_MESSAGES: u32 = 21;
/// `reason` of a failed [`ADD_DEVICE`]: the function has no registers in memory, or shares a page
/// of them with something else.
pub const REASON_NO_REGISTERS: u32 = 22;
/// `reason` of a failed [`ADD_DEVICE`]: the instance has as many as it may, [`MAX_DEVICES`].
pub const REASON_DEVICES: u32 = 23;

/// `reason` of a failed [`CREATE`]: an instance has the address; `owner`.
pub const REASON_ADDRESS: u32 = 24;
/// `reason` of a failed [`CREATE`]: no instance may have the address.
pub const REASON_NO_ADDRESS: u32 = 25;
/// `reason` of a failed [`CREATE`]: the supervisor has no memory for the network's pages, or cannot
/// make its own interface.
pub const REASON_NETWORK: u32 = 26;

/// `reason` of a failed [`PUBLISH`]: the port is published for an instance (`owner`), or a program
/// of the supervisor has it (`owner` is 0).
pub const REASON_PORT: u32 = 27;
/// `reason` of a failed [`PUBLISH`]: the instance has no network.
pub const REASON_NO_NETWORK: u32 = 28;
/// `reason` of a failed [`PUBLISH`]: the instance has as many as it may, [`MAX_PORTS`].
pub const REASON_PORTS: u32 = 29;

/// `reason` of a failed [`CREATE`]: there is no network of that name.
pub const REASON_UNKNOWN_NETWORK: u32 = 30;
/// `reason` of a failed [`CREATE`]: all addresses of the network are taken.
pub const REASON_ADDRESSES: u32 = 35;
/// `reason` of a failed [`ADD_NETWORK`]: a network has the name, or it is empty or not text.
pub const REASON_NETWORK_LABEL: u32 = 31;
/// `reason` of a failed [`ADD_NETWORK`]: no network of instances can have those addresses.
pub const REASON_SUBNET: u32 = 32;
/// `reason` of a failed [`ADD_NETWORK`]: addresses of it are those of another network, or the
/// supervisor has an address or a route there; `gateway`, `prefix_len` and `interface` are that
/// one's.
pub const REASON_OVERLAP: u32 = 33;
/// `reason` of a failed [`ADD_NETWORK`]: there are as many as there may be, [`MAX_NETWORKS`].
pub const REASON_NETWORKS: u32 = 34;
/// `reason`: the name of a peer is none that an instance can have, its own, or there twice.
pub const REASON_PEER: u32 = 42;

/// `reason` of a failed [`ADD_DEVICE`]: the firmware has the function use memory of its own.
pub const REASON_DMA_RESERVED: u32 = 36;
/// `reason` of a failed [`ADD_DEVICE`]: a bridge or a function beside it may take what the function
/// sends, or sends in its name.
pub const REASON_DMA_SHARED: u32 = 37;
/// `reason` of a failed [`ADD_DEVICE`]: a virtual device that reaches memory without the IOMMU.
pub const REASON_DMA_BYPASSES: u32 = 38;
/// `reason` of a failed [`ADD_DEVICE`]: the IOMMU does not answer, or has no domain left, or no
/// entries for interrupts.
pub const REASON_DMA_UNANSWERED: u32 = 39;
/// `reason` of a failed [`ADD_DEVICE`]: other functions of the instance are confined, and this one
/// cannot be.
pub const REASON_DMA_MIXED: u32 = 40;
/// `reason` of a failed [`REMOVE_DEVICE`]: the instance does not have the function.
pub const REASON_NOT_ITS: u32 = 43;
/// `reason`: virtual functions of the function are on: these are given, and not it.
pub const REASON_PHYSICAL: u32 = 44;
/// `reason` of a failed [`ADD_DEVICE`]: nothing confines what the function interrupts.
pub const REASON_DMA_INTERRUPTS: u32 = 41;
/// `reason` of a failed [`ADD_DEVICE`]: the function is in quarantine, as it did not prove that it
/// was reset; with `owner` an instance still has it, whose driver has let go of it. Another call
/// that is no dry run tries again to reset it, if nobody has it.
pub const REASON_QUARANTINE: u32 = 45;

/// `flags` of [`Create`]: print system calls into the kernel log.
pub const CREATE_TRACE: u32 = 1;
/// `flags` of [`Create`]: threads of one core may be the instance's and those of others that have
/// this flag.
pub const CREATE_SHARED_CORES: u32 = 2;

/// `flags` of [`Create`]: nobody looks whether its CPUs hang.
pub const CREATE_UNWATCHED: u32 = 4;
/// `flags` of [`Create`]: it is halted when a CPU of it hangs.
pub const CREATE_STOP_WHEN_HUNG: u32 = 8;
/// `flags` of [`Create`]: it has a network, and an address there.
pub const CREATE_NETWORK: u32 = 16;

/// See [`CREATE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Create {
    /// Name of the instance; no other one has it.
    pub label: [u8; LABEL_BYTES],
    /// Number of CPUs.
    pub cpus: u32,
    /// `CREATE_*`.
    pub flags: u32,
    /// Memory in bytes.
    pub mem: u64,
    /// Time of the user's request, in nanoseconds since 1970, or 0; kept in its [`Status`].
    pub requested_ns: u64,
    /// Out: its number.
    pub id: u32,
    /// Out: `REASON_*`.
    pub reason: u32,
    /// Out: CPUs that such an instance could have.
    pub free_cpus: u32,
    /// Out: CPUs that are given to nobody ([`Info::cpus_withheld`]).
    pub withheld_cpus: u32,
    /// Out: memory that is free.
    pub free_mem: u64,
    /// Out: the least memory that would do.
    pub least: u64,
    /// With `CREATE_NETWORK`, the address that it is to have in the network of instances, as a
    /// number ([`core::net::Ipv4Addr::to_bits`]); 0: the lowest that is free.
    pub address: u32,
    /// Out: of an address that an instance has, that one's number.
    pub owner: u32,
    /// With `CREATE_NETWORK`, the name server that its kernel is told of behind the network's own,
    /// as a number; 0: none.
    pub name_server: u32,
    /// Out: with `CREATE_NETWORK`, the supervisor's address in the network, as a number.
    pub gateway: u32,
    /// With `CREATE_NETWORK`, name of the network; empty: the one that there always is.
    pub network: [u8; LABEL_BYTES],
    /// Names of the instances with which it is to exchange messages; empty ones do not count.
    pub peers: [[u8; LABEL_BYTES]; MAX_NAMES],
    /// Groups with whose members it is to exchange messages, likewise.
    pub groups: [[u8; LABEL_BYTES]; MAX_GROUPS],
    /// More for its kernel's command line.
    pub cmdline: [u8; 256],
}

/// Most PCI functions of an instance.
pub const MAX_DEVICES: usize = 8;

/// `flags` of [`AddDevice`]: the function may reach all memory, if nothing confines it. In a
/// [`Status`]: nothing does.
pub const DEVICE_UNSAFE_DMA: u32 = 1;
/// `flags` of [`AddDevice`], in the call to add one: nothing is done but to say whether an instance
/// could have the function. The instance may be 0, for any.
pub const DEVICE_DRY_RUN: u32 = 2;
/// `flags` of [`AddDevice`], in the call to remove one: whoever uses the function is not asked, and
/// finds that it has gone.
pub const DEVICE_FORCE: u32 = 4;

/// See [`ADD_DEVICE`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddDevice {
    /// The instance.
    pub id: u32,
    /// `DEVICE_*`.
    pub flags: u32,
    /// The function: segment, bus, and device and function in one byte, as one number.
    pub function: u32,
    /// Out: `REASON_*`.
    pub reason: u32,
    /// Out: of a function that an instance has, that one's number.
    pub owner: u32,
    /// Out: time of this call in which the function was reset, in microseconds.
    pub reset_us: u32,
    /// Out: number of the change of an instance that runs, for [`SETTLE`]; 0 of another one.
    pub epoch: u64,
}

/// `kind` of [`Load`]: the archive (cpio, `newc`) its file system is made of.
pub const LOAD_INITRAMFS: u32 = 1;
/// `kind` of [`Load`]: what to run (`abi::boot`).
pub const LOAD_BOOT_BLOB: u32 = 2;

/// See [`LOAD`]. An archive comes in parts, in order; the first announces the whole.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Load {
    /// The instance.
    pub id: u32,
    /// `LOAD_*`.
    pub kind: u32,
    /// Bytes of the whole.
    pub total: u64,
    /// Offset of this part in the whole, in bytes.
    pub offset: u64,
    /// Address of this part in the caller's memory.
    pub ptr: u64,
    /// Length of the image in bytes.
    pub len: u64,
    /// Least memory, in bytes, of an instance that would hold it, if this one does not; 0
    /// otherwise. Written by the kernel.
    pub needed: u64,
}

/// An instance, and a number whose meaning depends on the call.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Target {
    /// The instance.
    pub id: u32,
    /// Depends on the call.
    pub value: u32,
}

/// See [`STATUS`]. Times in nanoseconds, `*_ns` of events since 1970, 0 if it did not happen.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Status {
    /// The instance.
    pub id: u32,
    /// `STATE_*`.
    pub state: u32,
    /// Name of the instance.
    pub label: [u8; LABEL_BYTES],
    /// Exit code of the first program: 0 to 255; 128 and the signal's number if one ended it; 137
    /// if it was halted.
    pub exit_code: i32,
    /// Number of CPUs that the instance has or had.
    pub cpus: u32,
    /// Memory in bytes.
    pub mem: u64,
    /// Time of the user's request, as [`Create`] said.
    pub requested_ns: u64,
    /// Time of creation, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Time of the start, in nanoseconds since 1970.
    pub started_ns: u64,
    /// Time at which CPUs and memory were back, in nanoseconds since 1970.
    pub ended_ns: u64,
    /// Nanoseconds from the start call to the first instruction of the first program.
    pub start_to_user_ns: u64,
    /// Memory scrubbed at its end, in bytes.
    pub scrubbed_bytes: u64,
    /// Duration of the zeroing in nanoseconds.
    pub scrub_ns: u64,
    /// Nanoseconds from the decision to end the instance until CPUs and memory were free, scrubbing
    /// apart.
    pub reclaim_ns: u64,
    /// Memory that has not come back, because CPUs have not.
    pub leaked: u64,
    /// CPUs that have not come back.
    pub lost_cpus: u32,
    /// CPUs that had to be reset.
    pub reset_cpus: u32,
    /// `HEALTH_*`; of one that has ended, as it was then.
    pub health: u32,
    /// `PAUSED_*`; of one that has ended, `PAUSED_NO`.
    pub paused: u32,
    /// Number of PCI functions that the instance has or had.
    pub device_count: u32,
    /// `DEVICE_*` of these, together.
    pub device_flags: u32,
    /// PCI functions, as [`AddDevice`] names them.
    pub devices: [u32; MAX_DEVICES],
    /// Functions that have not come back: they did not prove that they were reset.
    pub lost_devices: u32,
    /// Address that it has or had in the network of instances, as a number; 0 if it has no network.
    pub address: u32,
    /// Frames that have gone through its network; of one that has ended, as they were then.
    pub network: NetworkCounters,
    /// Ports that are or were published for it.
    pub ports: [PublishedPort; MAX_PORTS],
    /// Number of these.
    pub port_count: u32,
    /// Times that its functions were refused memory, at least: not all are reported.
    pub dma_faults: u32,
    /// Name of the network that it has or had an address of; empty if it has no network.
    pub network_label: [u8; LABEL_BYTES],
    /// Reason for the state, in words.
    pub detail: [u8; 128],
}

impl Status {
    /// Ports that are or were published for the instance.
    #[must_use]
    pub fn ports(&self) -> &[PublishedPort] {
        &self.ports[..MAX_PORTS.min(self.port_count as usize)]
    }

    /// PCI functions that the instance has or had, as [`AddDevice`] names them.
    #[must_use]
    pub fn devices(&self) -> &[u32] {
        &self.devices[..MAX_DEVICES.min(self.device_count as usize)]
    }

    /// Sets [`Self::detail`], cut to what fits.
    pub fn set_detail(&mut self, text: &str) {
        self.detail = [0; 128];
        let mut len = text.len().min(self.detail.len() - 1);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.detail[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
}

/// See [`LIST`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct List {
    /// Room in the array, in numbers.
    pub capacity: u32,
    /// Out: how many instances there are.
    pub count: u32,
    /// Address of an array of `u32` in the caller's memory.
    pub ptr: u64,
}

/// `stream`: standard input, to be written.
pub const STREAM_STDIN: u32 = 0;
/// `stream`: standard output.
pub const STREAM_STDOUT: u32 = 1;
/// `stream`: standard error.
pub const STREAM_STDERR: u32 = 2;
/// `stream`: the kernel's log.
pub const STREAM_KLOG: u32 = 3;

/// `flags` of [`Attach`]: reading waits for more until the instance has ended.
pub const ATTACH_FOLLOW: u32 = 1;
/// `flags`: begin with the oldest byte kept, not with what comes.
pub const ATTACH_FROM_START: u32 = 2;
/// `flags`: while this reader is attached nothing it has not read is dropped; the instance waits.
pub const ATTACH_PRESSURE: u32 = 4;

/// See [`ATTACH`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attach {
    /// The instance.
    pub id: u32,
    /// `STREAM_*`.
    pub stream: u32,
    /// `ATTACH_*`.
    pub flags: u32,
    /// Number of a program of [`EXEC`], whose stream it is; 0: the first program's. The streams of
    /// others are not kept: what is read is gone, and `flags` are 0.
    pub exec: u32,
}

/// `flags` of [`Wait`]: until its program has begun, or it has ended before that.
pub const WAIT_UP: u32 = 1;
/// `flags` of [`Wait`]: until all its CPUs stand still, or they are not to any more, or it has
/// ended.
pub const WAIT_PAUSED: u32 = 2;

/// See [`WAIT`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wait {
    /// The instance.
    pub id: u32,
    /// Milliseconds; negative: for ever.
    pub timeout_ms: i32,
    /// Out: `STATE_*`.
    pub state: u32,
    /// `WAIT_*`.
    pub flags: u32,
}

/// `flags` of [`Rename`]: another instance has the name, and gets this one's.
pub const RENAME_EXCHANGE: u32 = 1;

/// See [`RENAME`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rename {
    /// The instance.
    pub id: u32,
    /// `RENAME_*`.
    pub flags: u32,
    /// The name that it gets.
    pub label: [u8; LABEL_BYTES],
}

/// `flags` of [`Events`]: reading waits for more; otherwise the end is where the list ends now.
pub const EVENTS_FOLLOW: u32 = 1;

/// See [`EVENTS`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Events {
    /// `EVENTS_*`.
    pub flags: u32,
    /// Unused; zero.
    pub reserved: u32,
}

/// `kind` of an [`Event`]: it was created; `value` is its memory in bytes.
pub const EVENT_CREATE: u32 = 1;
/// `kind`: its CPUs were started.
pub const EVENT_START: u32 = 2;
/// `kind`: it has adopted a change; `value` is its memory in bytes.
pub const EVENT_RESIZE: u32 = 3;
/// `kind`: it has refused a change, or a PCI function that was to leave it did not prove its reset;
/// `value` is the number of the change.
pub const EVENT_REFUSE: u32 = 4;
/// `kind`: its health has changed; `value` is `HEALTH_*`.
pub const EVENT_HEALTH: u32 = 5;
/// `kind`: its first program has ended; `value` is the exit code.
pub const EVENT_EXIT: u32 = 6;
/// `kind`: its kernel could not go on.
pub const EVENT_PANIC: u32 = 7;
/// `kind`: its CPUs were taken away.
pub const EVENT_HALT: u32 = 8;
/// `kind`: CPUs and memory of it that were in quarantine are back; `value` is the number of bytes.
pub const EVENT_RELEASE: u32 = 9;
/// `kind`: it was forgotten.
pub const EVENT_REMOVE: u32 = 10;
/// `kind`: of no instance; `value` events before the next one are not kept any more.
pub const EVENT_LOST: u32 = 11;
/// `kind`: it has another name, which the event has.
pub const EVENT_RENAME: u32 = 12;
/// `kind`: all its CPUs stand still.
pub const EVENT_PAUSE: u32 = 13;
/// `kind`: its CPUs go on.
pub const EVENT_UNPAUSE: u32 = 14;
/// `kind`: functions of it were refused memory, so often; said again when that has doubled.
pub const EVENT_DMA_FAULT: u32 = 15;
/// `kind`: it goes on under a supervisor that has started again; `value` is how often that has.
pub const EVENT_ADOPT: u32 = 16;
/// `kind`: it uses a PCI function that it was given while it ran; `value` is that one, as
/// [`AddDevice`] names it.
pub const EVENT_DEVICE_ADD: u32 = 17;
/// `kind`: a PCI function has left it while it ran, and is free; `value` is that one.
pub const EVENT_DEVICE_REMOVE: u32 = 18;

/// An event's name, as shown to people.
#[must_use]
pub const fn event_name(kind: u32) -> &'static str {
    match kind {
        EVENT_CREATE => "create",
        EVENT_START => "start",
        EVENT_RESIZE => "resize",
        EVENT_REFUSE => "refuse",
        EVENT_HEALTH => "health",
        EVENT_EXIT => "exit",
        EVENT_PANIC => "panic",
        EVENT_HALT => "halt",
        EVENT_RELEASE => "release",
        EVENT_REMOVE => "remove",
        EVENT_LOST => "lost",
        EVENT_RENAME => "rename",
        EVENT_PAUSE => "pause",
        EVENT_UNPAUSE => "unpause",
        EVENT_DMA_FAULT => "dma-fault",
        EVENT_ADOPT => "adopt",
        EVENT_DEVICE_ADD => "device-add",
        EVENT_DEVICE_REMOVE => "device-remove",
        _ => "unknown",
    }
}

/// Something that happened to an instance. See [`EVENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// Number of the event, from 1; no two have the same.
    pub sequence: u64,
    /// Time of the event, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Depends on the kind.
    pub value: u64,
    /// The instance's number.
    pub id: u32,
    /// `EVENT_*`.
    pub kind: u32,
    /// Of [`EVENT_CREATE`] and [`EVENT_RESIZE`], the number of its CPUs; else 0.
    pub cpus: u32,
    /// Unused; zero.
    pub reserved: u32,
    /// Name of the instance.
    pub label: [u8; LABEL_BYTES],
}

/// `flags` of [`Resize`]: says whether it could be done at this moment, and changes nothing.
pub const RESIZE_DRY_RUN: u32 = 1;
/// `flags` of [`Resize`]: if memory cannot leave, the instance's caches give up theirs, and it is
/// tried again.
pub const RESIZE_RECLAIM: u32 = 2;

/// See [`RESIZE`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Resize {
    /// The instance.
    pub id: u32,
    /// `RESIZE_*`.
    pub flags: u32,
    /// Out: `REASON_*`.
    pub reason: u32,
    /// Number of CPUs that it is to have; 0: as many as it has. Out: what it has before the change.
    pub cpus: u32,
    /// Memory that it is to have, in bytes; rounded up to whole granules; 0: as much as it has.
    /// Out: what it has before the change.
    pub mem: u64,
    /// Out: number of the change, for [`SETTLE`]; 0 if it had all that.
    pub epoch: u64,
    /// Out: memory that is free.
    pub free_mem: u64,
    /// Out: the most memory that the instance may have.
    pub most: u64,
    /// Out: CPUs that the instance could have more.
    pub free_cpus: u32,
    /// Out: the most CPUs that the instance may have.
    pub most_cpus: u32,
    /// Out: memory that the instance was created with, and keeps.
    pub least: u64,
}

/// `outcome` of [`SETTLE`]: the instance has adopted the change, and what it gave back is free.
pub const OUTCOME_TAKEN: u32 = 1;
/// `outcome`: the instance has refused the change, and has what it had.
pub const OUTCOME_REFUSED: u32 = 2;
/// `outcome`: the instance has ended before it answered.
pub const OUTCOME_ENDED: u32 = 3;

/// See [`SETTLE`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Settle {
    /// The instance.
    pub id: u32,
    /// Milliseconds; negative: for ever.
    pub timeout_ms: i32,
    /// Number of the change.
    pub epoch: u64,
    /// Out: `OUTCOME_*`.
    pub outcome: u32,
    /// Unused; zero.
    pub reserved: u32,
    /// Out: of a refused change, the instance's answer ([`crate::live::Answer`]).
    pub answer: u64,
    /// Out: time of the scrubbing of what it gave back, in nanoseconds, of its last change; of a
    /// PCI function, of the reset by the supervisor.
    pub scrub_ns: u64,
}

/// `flags` of [`Stats`]: have the instance tell anew what it has to put together first: `threads`
/// and `mem_used`, with the number of the question in `answered`.
pub const STATS_ASK: u32 = 1;

/// See [`STATS`]. Times are sums over CPUs, in nanoseconds. All but what the supervisor has counted
/// is the instance's word: bounded by what can be, and never less than before.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Stats {
    /// The instance; 0: the supervisor.
    pub id: u32,
    /// `STATS_*`.
    pub flags: u32,
    /// Out: number of CPUs that it has.
    pub cpus: u32,
    /// Out: number of its programs' threads, of the last answer; of the supervisor 0.
    pub threads: u32,
    /// Out: number of the last question.
    pub asked: u32,
    /// Out: number of the last question that is answered; of the supervisor the same.
    pub answered: u32,
    /// Out: time that the CPUs were there: the sum of the four that follow.
    pub up_ns: u64,
    /// Out: time of programs.
    pub user_ns: u64,
    /// Out: time of the kernel.
    pub system_ns: u64,
    /// Out: time without a thread.
    pub idle_ns: u64,
    /// Out: time in which they stood still.
    pub paused_ns: u64,
    /// Out: time that the supervisor has worked for it, by the supervisor's clock.
    pub supervisor_ns: u64,
    /// Out: number of context switches.
    pub switches: u64,
    /// Out: number of interrupts; NMIs are none of them.
    pub interrupts: u64,
    /// Out: number of control messages that it was sent.
    pub messages: u64,
    /// Out: bytes of standard input that it was given.
    pub input_bytes: u64,
    /// Out: bytes of standard output and error that were taken from it.
    pub output_bytes: u64,
    /// Out: bytes of its kernel's log, likewise.
    pub log_bytes: u64,
    /// Out: memory that it has, in bytes.
    pub mem: u64,
    /// Out: memory in use, in bytes, of the last answer.
    pub mem_used: u64,
}

const _: () = {
    assert!(size_of::<Stats>() == 136);
    assert!(size_of::<Info>() == 120);
    assert!(size_of::<Create>() == 1224 && size_of::<Peers>() == 976);
    assert!(size_of::<Load>() == 48);
    assert!(size_of::<Target>() == 8);
    assert!(
        size_of::<Status>() == 680 && size_of::<Publish>() == 24 && size_of::<AddDevice>() == 32
    );
    assert!(size_of::<Resize>() == 64 && size_of::<Settle>() == 40);
    assert!(size_of::<Events>() == 8 && size_of::<Event>() == 104);
    assert!(size_of::<List>() == 16 && size_of::<Attach>() == 16 && size_of::<Wait>() == 16);
    assert!(size_of::<Rename>() == 72 && size_of::<NetworkInfo>() == 96);
};

/// The text of a NUL-padded field; `None` if it is not text.
#[must_use]
pub fn text(field: &[u8]) -> Option<&str> {
    let len = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    core::str::from_utf8(&field[..len]).ok()
}

/// A NUL-padded field of a text; `None` if it does not fit with one NUL to spare.
#[must_use]
pub fn field<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut field = [0; N];
    (text.len() < N).then(|| field[..text.len()].copy_from_slice(text.as_bytes()))?;
    Some(field)
}

/// All zeroes, to be filled in.
#[must_use]
pub fn zeroed<T: FromZeros>() -> T {
    T::new_zeroed()
}

#[cfg(test)]
mod tests;
