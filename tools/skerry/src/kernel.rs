//! The real [`Device`]: `/dev/skerry`.
#![expect(
    unsafe_code,
    reason = "ioctl(2) and the descriptor one of its calls returns"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use abi::dev::{
    self, AddDevice, Attach, Create, Events, Exec, Info, List, Load, NetworkInfo, Peers, Publish,
    Rename, Resize, Settle, Stats, Status, Target, Wait,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::device::{CreateError, Device, LoadError, Stream};
use crate::failure::{Failure, Result, plain};

/// Where the device is.
const PATH: &str = "/dev/skerry";

/// The open device.
#[derive(Debug)]
pub struct Kernel(File);

impl Kernel {
    /// Opens the device.
    ///
    /// # Errors
    /// Says what a machine needs to have one.
    pub fn open() -> Result<Self> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(PATH)
            .map(Self)
            .map_err(|error| {
                let remedy = match error.kind() {
                    io::ErrorKind::NotFound => "only the supervisor of a Skerry machine has it",
                    io::ErrorKind::PermissionDenied => "run skerry as root",
                    _ => "the kernel log may say more",
                };
                Failure::new(format!("{PATH}: {}: {remedy}", plain(&error)))
            })
    }

    /// Makes a call whose structure holds no address.
    fn call<T: FromBytes + IntoBytes + Immutable>(
        &self,
        number: u32,
        structure: &mut T,
    ) -> io::Result<i32> {
        // SAFETY: the numbers of `abi::dev` carry the size of their structure, and the kernel reads
        // and writes that much; `T` is the structure of `number` at each place this is called from,
        // and any bytes are a `T`. Those that hold addresses (`List`, `Load`, `Exec`) hold those of
        // live buffers of the length they say.
        let result = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::c_ulong::from(number) as _,
                std::ptr::from_mut(structure),
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(result)
        }
    }

    /// Waits for what `flags` say (`dev::WAIT_*`).
    fn wait_for(&self, id: u32, flags: u32, limit: Option<Duration>) -> io::Result<()> {
        let timeout_ms = limit.map_or(-1, |limit| {
            i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)
        });
        loop {
            let mut call = Wait {
                id,
                timeout_ms,
                flags,
                ..Wait::default()
            };
            match self.call(dev::WAIT, &mut call) {
                // Without a limit there is nothing to lose by waiting anew.
                Err(error) if error.kind() == io::ErrorKind::Interrupted && limit.is_none() => {}
                other => return other.map(drop),
            }
        }
    }

    /// Makes a call whose result is a new descriptor: `ATTACH`, `EVENTS` or `EXEC`.
    fn open_descriptor<T: FromBytes + IntoBytes + Immutable>(
        &self,
        number: u32,
        structure: &mut T,
    ) -> io::Result<OwnedFd> {
        let fd = self.call(number, structure)?;
        // SAFETY: the call returned a new descriptor, which nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Device for Kernel {
    fn info(&self) -> io::Result<Info> {
        let mut info = Info::default();
        self.call(dev::INFO, &mut info).map(|_| info)
    }

    fn list(&self) -> io::Result<Vec<u32>> {
        let mut room = 64;
        loop {
            let mut numbers = vec![0u32; room];
            let mut call = List {
                capacity: room as u32,
                count: 0,
                ptr: numbers.as_mut_ptr().expose_provenance() as u64,
            };
            self.call(dev::LIST, &mut call)?;
            let count = call.count as usize;
            if count <= room {
                numbers.truncate(count);
                return Ok(numbers);
            }
            room = count + 16;
        }
    }

    fn status(&self, id: u32) -> io::Result<Status> {
        let mut status: Status = dev::zeroed();
        status.id = id;
        self.call(dev::STATUS, &mut status).map(|_| status)
    }

    fn create(&self, call: &mut Create) -> std::result::Result<u32, CreateError> {
        match self.call(dev::CREATE, call) {
            Ok(_) => Ok(call.id),
            Err(error) => Err(CreateError::from_call(call, error)),
        }
    }

    fn add_device(&self, call: &mut AddDevice) -> io::Result<()> {
        self.call(dev::ADD_DEVICE, call).map(drop)
    }

    fn remove_device(&self, call: &mut AddDevice) -> io::Result<()> {
        self.call(dev::REMOVE_DEVICE, call).map(drop)
    }

    fn publish(&self, call: &mut Publish) -> io::Result<()> {
        self.call(dev::PUBLISH, call).map(drop)
    }

    fn add_network(&self, call: &mut NetworkInfo) -> io::Result<()> {
        self.call(dev::ADD_NETWORK, call).map(drop)
    }

    fn remove_network(&self, name: &str) -> io::Result<()> {
        let none = || io::Error::from_raw_os_error(libc::ENOENT);
        let mut call = NetworkInfo {
            label: dev::field(name).ok_or_else(none)?,
            ..dev::zeroed()
        };
        self.call(dev::REMOVE_NETWORK, &mut call).map(drop)
    }

    fn networks(&self) -> io::Result<Vec<NetworkInfo>> {
        // There never are more.
        let mut all = vec![dev::zeroed::<NetworkInfo>(); dev::MAX_NETWORKS];
        let mut call = List {
            capacity: all.len() as u32,
            count: 0,
            ptr: all.as_mut_ptr().expose_provenance() as u64,
        };
        self.call(dev::NETWORKS, &mut call)?;
        all.truncate(call.count as usize);
        Ok(all)
    }

    fn peers(&self, id: u32, from: u32) -> io::Result<Peers> {
        let mut call = Peers {
            id,
            from,
            ..dev::zeroed()
        };
        self.call(dev::PEERS, &mut call)?;
        Ok(call)
    }

    fn load(
        &self,
        id: u32,
        kind: u32,
        total: u64,
        offset: u64,
        bytes: &[u8],
    ) -> std::result::Result<(), LoadError> {
        let ptr = bytes.as_ptr().expose_provenance() as u64;
        let mut call = Load {
            id,
            kind,
            total,
            offset,
            ptr,
            len: bytes.len() as u64,
            needed: 0,
        };
        match self.call(dev::LOAD, &mut call) {
            Ok(_) => Ok(()),
            Err(error) => Err(LoadError::from_call(&call, error)),
        }
    }

    fn control(&self, call: u32, id: u32, value: u32) -> io::Result<()> {
        self.call(call, &mut Target { id, value }).map(drop)
    }

    fn attach(&self, id: u32, stream: Stream, flags: u32) -> io::Result<OwnedFd> {
        let mut call = Attach {
            id,
            stream: stream as u32,
            flags,
            exec: 0,
        };
        self.open_descriptor(dev::ATTACH, &mut call)
    }

    fn exec(&self, call: &mut Exec, request: &[u8]) -> io::Result<OwnedFd> {
        call.ptr = request.as_ptr().expose_provenance() as u64;
        call.len = request.len() as u64;
        self.open_descriptor(dev::EXEC, call)
    }

    fn attach_exec(&self, id: u32, number: u32, stream: Stream) -> io::Result<OwnedFd> {
        let mut call = Attach {
            id,
            stream: stream as u32,
            flags: 0,
            exec: number,
        };
        self.open_descriptor(dev::ATTACH, &mut call)
    }

    fn events(&self, flags: u32) -> io::Result<OwnedFd> {
        let mut call = Events { flags, reserved: 0 };
        self.open_descriptor(dev::EVENTS, &mut call)
    }

    fn wait(&self, id: u32, limit: Option<Duration>) -> io::Result<()> {
        self.wait_for(id, 0, limit)
    }

    fn wait_up(&self, id: u32, limit: Option<Duration>) -> io::Result<()> {
        self.wait_for(id, dev::WAIT_UP, limit)
    }

    fn wait_paused(&self, id: u32, limit: Option<Duration>) -> io::Result<()> {
        self.wait_for(id, dev::WAIT_PAUSED, limit)
    }

    fn stats(&self, id: u32, flags: u32) -> io::Result<Stats> {
        let mut stats = Stats {
            id,
            flags,
            ..Stats::default()
        };
        self.call(dev::STATS, &mut stats).map(|_| stats)
    }

    fn rename(&self, id: u32, name: &str, flags: u32) -> io::Result<()> {
        let label = dev::field(name).ok_or(io::ErrorKind::InvalidInput)?;
        self.call(dev::RENAME, &mut Rename { id, flags, label })
            .map(drop)
    }

    fn resize(&self, call: &mut Resize) -> io::Result<()> {
        self.call(dev::RESIZE, call).map(drop)
    }

    fn settle(&self, call: &mut Settle) -> io::Result<()> {
        self.call(dev::SETTLE, call).map(drop)
    }
}
