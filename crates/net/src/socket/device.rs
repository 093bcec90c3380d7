//! Devices below interfaces: what a driver gives the stack, and is given.

use alloc::string::String;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Result;

/// A frame as the wire has it: with an Ethernet header or, of a link without addresses, without.
/// Checksums are whole, and no frame is longer than the interface's MTU and its header.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The bytes of the frame.
    pub data: Vec<u8>,
}

/// A frame that a device did not take.
#[derive(Clone, Debug)]
pub enum FrameRefused {
    /// The frame is lost: the device's link is down, or nobody hears it. The stack counts it.
    Lost,
    /// The device has no room now. It gives the frame back, and calls [`Host::has_room`] when it
    /// has room again, or takes nothing any more.
    ///
    /// [`Host::has_room`]: crate::inet::Host::has_room
    NoRoom(Frame),
}

/// The sending half of a network device's driver. What it receives it gives to
/// [`Host::receive`](crate::inet::Host::receive).
pub trait NetDevice: Send + Sync {
    /// Sends a frame, or queues it to be sent. Never waits, and is called from any thread, by
    /// several at a time. The only lock of the stack that may be held is that of the queue before
    /// this device, which [`Host::has_room`] takes: it is not called from here.
    ///
    /// # Errors
    /// [`FrameRefused`].
    ///
    /// [`Host::has_room`]: crate::inet::Host::has_room
    fn transmit(&self, frame: Frame) -> core::result::Result<(), FrameRefused>;

    /// Gives the device another hardware address, before the interface has it.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it cannot have another.
    fn set_hardware_address(&self, address: [u8; 6]) -> Result<()> {
        let _ = address;
        Err(Errno::EOPNOTSUPP)
    }

    /// The details that the driver tells of the device.
    fn details(&self) -> DeviceDetails {
        DeviceDetails::default()
    }

    /// Whether the device empties itself, so that programs whose datagrams it has no room for wait
    /// until it has. Before one that another program empties they do not.
    fn drains(&self) -> bool {
        true
    }

    /// The interface is gone: called once, with no lock of the stack held. A thread that is sending
    /// at this moment may end that.
    fn removed(&self) {}
}

/// Details that a driver tells of its device (`ethtool(8)`, `ip -d link`, `/sys/class/net`).
#[derive(Clone, Debug, Default)]
pub struct DeviceDetails {
    /// Linux' name of the driver, if there is one to tell of.
    pub driver: Option<&'static str>,
    /// The device's place on its bus: of a function of PCI its address; else nothing.
    pub bus: String,
    /// Frames that a card's rings hold, to receive and to send, if it has such.
    pub ring: Option<[u32; 2]>,
    /// The hardware address that the device came with.
    pub permanent_address: Option<[u8; 6]>,
    /// Numbers that the driver counts, beside the interface's.
    pub statistics: Vec<(&'static str, u64)>,
    /// The settings of an interface of `/dev/net/tun`.
    pub tun: Option<TunDetails>,
}

/// The settings of an interface of `/dev/net/tun`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TunDetails {
    /// `IFF_*` of `linux/if_tun.h`, the kind among them.
    pub flags: u32,
    /// The user who may attach to it, if one was set.
    pub owner: Option<u32>,
    /// The group of which one has to be, likewise.
    pub group: Option<u32>,
    /// Queues that are attached.
    pub queues: u32,
}

/// The link of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// Ethernet, with this address.
    Ethernet([u8; 6]),
    /// A link to one other host, without addresses and headers: frames are packets of IP.
    PointToPoint,
}

/// An interface that a driver makes.
#[derive(Clone, Copy, Debug)]
pub struct NewInterface<'a> {
    /// The name; `%d` in it becomes the least number that makes a new name.
    pub name: &'a str,
    /// The link.
    pub link: LinkKind,
    /// The largest packet at first, bytes.
    pub mtu: u32,
    /// The largest MTU that can be set.
    pub max_mtu: u32,
    /// Frames that may wait while the device has no room (`txqueuelen`).
    pub queue_len: u32,
    /// Whether the link is up (`IFF_LOWER_UP`); [`Host::set_carrier`] tells later.
    ///
    /// [`Host::set_carrier`]: crate::inet::Host::set_carrier
    pub has_carrier: bool,
    /// Whether IPv6 is on, unless it is off by default.
    pub has_ipv6: bool,
}
