//! `/dev/net/tun`: interfaces whose frames a program reads and writes (`docs/ip.md`).

mod file;
mod header;
mod interface;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use file::TunFile;
use fs::devfs::{self, CharDevice};
use fs::{DeviceId, FileOps, OpenFlags, Result};
use interface::{Queue, TunInterface};
use linux_raw_sys::if_tun::{
    IFF_MULTI_QUEUE, IFF_NO_PI, IFF_ONE_QUEUE, IFF_TAP, IFF_TUN, IFF_TUN_EXCL, IFF_VNET_HDR,
};
use task::Mutex;

use crate::inet::{Host, Loopback};
use crate::socket::{LinkKind, NewInterface, caller_administers_networks};

/// Flags that a program may ask for besides the kind.
const FEATURES: u32 = IFF_NO_PI | IFF_ONE_QUEUE | IFF_VNET_HDR | IFF_MULTI_QUEUE;
const KINDS: u32 = IFF_TUN | IFF_TAP;
/// The largest MTU: a frame and what comes before it are one `write(2)`, which is copied in one
/// piece up to 64 KiB.
const MAX_MTU: u32 = 65_500;
const MTU: u32 = 1500;

/// The driver of `/dev/net/tun`.
struct TunDriver {
    host: Arc<Host>,
    /// Interfaces, those that have gone lately among them. Held while one is made, found or ended.
    interfaces: Mutex<Vec<Arc<TunInterface>>>,
}

/// Makes `/dev/net/tun`, whose interfaces are a host's.
///
/// # Errors
/// `EEXIST`.
pub fn register(host: &Arc<Host>) -> Result<()> {
    let driver = TunDriver {
        host: host.clone(),
        interfaces: Mutex::new(Vec::new()),
    };
    devfs::register("net/tun", Arc::new(driver)).map(drop)
}

impl CharDevice for TunDriver {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        Ok(Arc::new(TunFile::new(self)?))
    }

    fn id(&self) -> Option<DeviceId> {
        Some(DeviceId::new(10, 200))
    }

    fn mode(&self) -> u32 {
        0o666
    }
}

impl TunDriver {
    /// Attaches a queue to the interface of a name, which is made if there is none.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL` for flags that make no sense or are not the interface's; `EBUSY` if it is
    /// in use or was to be new; those of [`Host::add_interface`] and [`TunInterface::attach`].
    fn attach(&self, name: &str, flags: u32, queue: &Arc<Queue>) -> Result<Arc<TunInterface>> {
        if name == &*Loopback::name() {
            return Err(Errno::EINVAL);
        }
        let mut interfaces = self.interfaces.lock();
        interfaces.retain(|known| !known.is_gone());
        if let Some(there) = self.host.interface_named(name) {
            let tun = interfaces
                .iter()
                .find(|tun| tun.index.load(Ordering::Relaxed) == there.index)
                .ok_or(Errno::EINVAL)?;
            if flags & IFF_TUN_EXCL != 0 {
                return Err(Errno::EBUSY);
            }
            if flags & tun.kind == 0 || (flags ^ tun.flags()) & IFF_MULTI_QUEUE != 0 {
                return Err(Errno::EINVAL);
            }
            tun.check_caller()?;
            if tun.attach(queue)? == 1 {
                tun.set_flags(flags & FEATURES);
                self.host.set_carrier(there.index, true);
            }
            return Ok(tun.clone());
        }
        if !caller_administers_networks() {
            return Err(Errno::EPERM);
        }
        let (kind, pattern, queue_len) = match flags & KINDS {
            0 => return Err(Errno::EINVAL),
            IFF_TAP => (IFF_TAP, "tap%d", 1000),
            _ => (IFF_TUN, "tun%d", 500),
        };
        let link = if kind == IFF_TAP {
            let mut address = [0; 6];
            devfs::fill_random(&mut address);
            // Of one station, given out by nobody.
            address[0] = address[0] & !1 | 2;
            LinkKind::Ethernet(address)
        } else {
            LinkKind::PointToPoint
        };
        let new = NewInterface {
            name: if name.is_empty() { pattern } else { name },
            link,
            mtu: MTU,
            max_mtu: MAX_MTU,
            queue_len,
            has_carrier: true,
            has_ipv6: true,
        };
        interfaces.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        fs::charge::check_memory()?;
        let tun = Arc::new(TunInterface::new(kind, flags & FEATURES));
        tun.attach(queue)?;
        let index = self.host.add_interface(&new, tun.clone())?;
        tun.index.store(index, Ordering::Relaxed);
        interfaces.push(tun.clone());
        Ok(tun)
    }

    /// Takes a queue from an interface, which goes with its last one unless it is to stay.
    fn detach(&self, tun: &TunInterface, queue: &Arc<Queue>) {
        let index = tun.index.load(Ordering::Relaxed);
        {
            let mut interfaces = self.interfaces.lock();
            if tun.detach(queue) == 0 {
                if tun.is_persistent() {
                    self.host.set_carrier(index, false);
                } else {
                    interfaces.retain(|known| !core::ptr::eq(&raw const **known, tun));
                    // Somebody may have taken it away just now.
                    let _ = self.host.remove_interface(index);
                }
            }
        }
        // The queue may have been the one that had no room, for which all others have waited.
        self.host.has_room(index);
    }
}
